//! Transmit batching on a live interface: `mq` with Evenkeel's own qdisc at each transmit queue.
//!
//! Titan (section 4.4) changes TCP so that all sockets that send at the same time enqueue before the queue is
//! served. On an unmodified kernel, a BPF qdisc briefly holds the first segment instead. It replaces the
//! administrator's leaf qdiscs while the session runs.
//!
//! The process registers the qdisc's name, which is removed when the process ends. A device keeps the qdisc
//! until its root is restored (`net/sched/bpf_qdisc.c`).

use std::sync::atomic::{AtomicU32, Ordering};

use evenkeel_apply::{ApplyError, Change, ClassHandle, Knob, QdiscSnapshot, Run, Value};
use evenkeel_datapath::{BatchCounters, BatchOptions, DatapathError, TransmitBatching};
use evenkeel_model::shell::{Line, Script};
use evenkeel_model::soft_nic::FIRST_LEAF;
use evenkeel_netlink::Netlink;
use evenkeel_netlink::tc::{Handle, Qdisc};
use evenkeel_netlink::tc_state::QdiscState;

use crate::device::Device;
use crate::error::FairError;
use crate::own_root::OwnRoot;
use crate::queue_weights::Backend;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BatchingMode {
    /// Keeps the leaf qdiscs.
    #[default]
    Off,
    /// Replaces the leaf qdisc of each transmit queue by Evenkeel's. If this is not possible, the
    /// session fails to start.
    On,
}

const PREFIX: &str = "evk_";
/// Maximum number of further attempts if another process of this machine has registered a name.
const NAMES_TRIED: u32 = 16;
/// Three digits at the end of a name leave room for a seven-digit process id (`PID_MAX_LIMIT`).
const NUMBERS: u32 = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Batching {
    root: OwnRoot,
    queues: u32,
}

pub(crate) struct Leaves {
    tree: Batching,
    qdisc: TransmitBatching,
}

impl BatchingMode {
    /// Decides whether to install the leaves on a device, without changing the device. `check_restorable`
    /// reports whether the device's root qdisc could be restored.
    pub(crate) fn plan(
        self,
        device: &Device,
        backend: Backend,
        root: OwnRoot,
        check_restorable: impl FnOnce() -> Result<(), FairError>,
        remarks: &mut Vec<String>,
    ) -> Result<Option<Batching>, FairError> {
        if self == Self::Off {
            return Ok(None);
        }
        self.check(backend, TransmitBatching::is_available()?)?;
        check_restorable()?;
        let BatchOptions { hold_ns, batch_packets, limit_packets, .. } = BatchOptions::default();
        remarks.push(format!(
            "transmit batching: each queue of {} is a FIFO of {limit_packets} segments while this runs; a segment \
             in an empty queue waits up to {} us, or until {batch_packets} are queued",
            device.name,
            hold_ns / 1000
        ));
        Ok(Some(Batching { root, queues: device.queues }))
    }

    /// Returns an error if batching is on, but the back end or the kernel excludes it. Call this function
    /// before other checks, so that this error comes first.
    pub(crate) fn check(self, backend: Backend, available: bool) -> Result<(), FairError> {
        if self == Self::Off {
            return Ok(());
        }
        if let Backend::SoftNic(_) = backend {
            return Err(FairError::conflict(
                "--batching on needs the device's own queues, but --queue-weights htb puts one root qdisc in front \
                 of them",
                "use --batching off, or --queue-weights off",
            ));
        }
        if !available {
            return Err(FairError::unable(
                "transmit batching needs BPF qdiscs, which this kernel does not support",
                "use Linux 6.16 or later with CONFIG_NET_SCH_BPF, or --batching off",
            ));
        }
        Ok(())
    }
}

/// Registers a qdisc under a name that is free on this machine. Each device needs its own qdisc, because
/// instances of a qdisc share their counters, and the same queue of two devices would share its segments.
fn register() -> Result<TransmitBatching, DatapathError> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mut tries = 1..NAMES_TRIED;
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed) % NUMBERS;
        let name = format!("{PREFIX}{}_{number}", std::process::id());
        let registered = TransmitBatching::register(&BatchOptions { name, ..BatchOptions::default() });
        match registered {
            // A process in another PID namespace may have the same id.
            Err(error) if error.is_taken() && tries.next().is_some() => {}
            registered => return registered,
        }
    }
}

/// Returns whether a qdisc was registered by an Evenkeel process.
pub(crate) fn is_own_kind(kind: &str) -> bool {
    kind.starts_with(PREFIX)
}

impl Batching {
    pub(crate) fn major(self) -> u16 {
        self.root.major
    }

    pub(crate) fn register(self) -> Result<Leaves, FairError> {
        Ok(Leaves { tree: self, qdisc: register()? })
    }

    /// Returns parent and handle of each queue's leaf. Minor numbers below `mq` begin at 1.
    fn places(self) -> impl Iterator<Item = (Handle, Handle)> {
        (0..self.queues as u16)
            .map(move |queue| (Handle::new(self.root.major, queue + 1), Handle::new(FIRST_LEAF + queue, 0)))
    }

    fn change(self, name: &str) -> Change {
        let root = QdiscState::of(&Qdisc::Mq, Handle::ROOT, self.root.handle());
        let leaf = |(parent, handle)| QdiscSnapshot {
            kind: name.to_owned(),
            handle: ClassHandle(handle),
            parent: ClassHandle(parent),
            options: String::new(),
        };
        let tree = std::iter::once(QdiscSnapshot::from(&root)).chain(self.places().map(leaf)).collect();
        Change::new(Knob::RootQdisc, Value::Qdiscs(tree))
    }

    /// Describes the change as comments: the qdisc exists only while the process runs, so a shell line would
    /// not work.
    pub(crate) fn plan(self, device: &str, before: Value) -> Script {
        let mut script = Script::default();
        script.comment(
            "transmit batching: a qdisc that the process registers for as long as it runs, at each queue:",
        );
        let root = format!("{:x}:", self.root.major);
        let root = Line::new("tc qdisc replace dev {} root handle {} mq", &[&device, &root]);
        script.push(Line::comment(format_args!("  {root}")));
        for (parent, handle) in self.places() {
            let handle = format!("{:x}:", handle.major);
            let leaf = Line::new(
                "tc qdisc replace dev {} parent {} handle {} evk_PROCESS_NUMBER",
                &[&device, &parent, &handle],
            );
            script.push(Line::comment(format_args!("  {leaf}")));
        }
        let undo = Change::new(Knob::RootQdisc, before).shell(device);
        script.push(Line::comment(format_args!("  undo: {undo}")));
        script
    }
}

impl Leaves {
    /// Creates `mq` with the leaves, and checks the result.
    pub(crate) fn put(&self, run: &mut Run, netlink: &mut Netlink, device: &Device) -> Result<(), FairError> {
        run.change(&self.tree.change(self.qdisc.name()))?;
        let standing = netlink.qdiscs(device.index)?;
        for (place, kind) in self.expected() {
            let found = kind_at(&standing, place);
            if found != Some(&kind) {
                return Err(FairError::Apply(ApplyError::NotTaken {
                    knob: format!("the qdisc at {place} of {}", device.name),
                    wanted: kind,
                    found: found.unwrap_or("none").to_owned(),
                }));
            }
        }
        Ok(())
    }

    /// Returns the expected qdisc kind at each place, to detect changes by another program.
    pub(crate) fn expected(&self) -> Vec<(Handle, String)> {
        self.tree.places().map(|(place, _)| (place, self.qdisc.name().to_owned())).collect()
    }

    /// Returns the counters, summed over all queues.
    pub(crate) fn counters(&self) -> BatchCounters {
        self.qdisc.counters()
    }
}

pub(crate) fn kind_at(qdiscs: &[QdiscState], place: Handle) -> Option<&str> {
    qdiscs.iter().find(|qdisc| qdisc.parent == place).map(|qdisc| qdisc.kind.as_str())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use evenkeel_apply::Cause;
    use evenkeel_model::units::BitRate;

    const TREE: Batching = Batching { root: OwnRoot { major: 0x4001 }, queues: 2 };

    #[test]
    fn what_stands_in_the_way_is_named_with_a_remedy() {
        let soft_nic = Backend::SoftNic(BitRate::from_bits_per_second(1_000_000_000));
        let unsupported = ["BPF qdisc", "Linux 6.16 or later with CONFIG_NET_SCH_BPF"];
        for (backend, available, words, cause) in [
            (Backend::None, false, unsupported, Cause::Unable),
            (soft_nic, true, ["--queue-weights htb", "--batching off"], Cause::Usage),
            (soft_nic, false, ["--queue-weights htb", "--batching off"], Cause::Usage),
        ] {
            let error = BatchingMode::On.check(backend, available).unwrap_err();
            assert_eq!(error.cause(), cause);
            assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}");
            BatchingMode::Off.check(backend, available).unwrap();
        }
        for backend in [Backend::None, Backend::NetShaper] {
            BatchingMode::On.check(backend, true).unwrap();
        }
    }

    #[test]
    fn every_queue_has_a_leaf_of_its_own_below_our_root() {
        let Change { knob, to: Value::Qdiscs(tree) } = TREE.change("evk_7_0") else { panic!() };
        assert_eq!(knob, Knob::RootQdisc);
        let shown: Vec<String> =
            tree.iter().map(|part| format!("{} {} {}", part.kind, part.handle, part.parent)).collect();
        assert_eq!(shown, ["mq 4001:0 root", "evk_7_0 100:0 4001:1", "evk_7_0 101:0 4001:2"]);
    }

    #[test]
    fn the_journal_recognises_only_our_root() {
        let change = TREE.change("evk_7_0");
        let ours = evenkeel_apply::Ours::These(vec![change.to.clone()]);
        // The journal must also recognise the root without some leaves, because the process may die
        // before it creates all leaves.
        let Value::Qdiscs(tree) = &change.to else { panic!() };
        for count in 1..=tree.len() {
            assert!(ours.includes(&change.knob, &Value::Qdiscs(tree[..count].to_vec())));
        }
        let other = Batching { root: OwnRoot { major: 0x4002 }, ..TREE }.change("evk_7_0");
        assert!(!ours.includes(&change.knob, &other.to));
    }

    #[test]
    fn the_plan_shows_every_leaf_and_the_undo_and_nothing_to_paste() {
        let mq = QdiscSnapshot::from(&QdiscState::of(&Qdisc::Mq, Handle::ROOT, Handle::new(7, 0)));
        let text = TREE.plan("eth0", Value::Qdiscs(vec![mq])).to_string();
        assert!(text.contains("dev eth0 root handle 4001: mq\n"), "{text}");
        assert!(text.contains("dev eth0 parent 4001:2 handle 101: evk_PROCESS_NUMBER\n"), "{text}");
        assert!(text.contains("undo: tc qdisc replace dev eth0 root handle 7: mq\n"), "{text}");
        assert!(text.lines().all(|line| line.starts_with('#')), "{text}");
    }

    #[test]
    fn a_leaf_of_another_programs_is_seen() {
        let leaf = |kind: &'static str, minor| {
            QdiscState::of(&Qdisc::Named(kind), Handle::new(0x4001, minor), Handle::new(0x100, 0))
        };
        let standing = [leaf("evk_7_0", 1), leaf("fq", 2)];
        assert_eq!(kind_at(&standing, Handle::new(0x4001, 2)), Some("fq"));
        assert_eq!(kind_at(&standing, Handle::new(0x4001, 3)), None);
    }
}
