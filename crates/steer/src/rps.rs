//! Back end in the kernel: receive packet steering and receive flow steering
//! (`Documentation/networking/scaling.rst`), for drivers that support neither rules nor XDP.
//!
//! RPS spreads flows over CPUs by the kernel's hash. RFS sends a flow to the CPU of its reader. RPS and
//! RFS have no filters, so they support only two parts of a policy:
//!
//! - Flows stay on the CPUs of the queues that no class has for itself.
//! - For locality, flows follow their readers.
//!
//! The queue of a flow is unknown.

use std::collections::BTreeSet;
use std::process::Command;

use evenkeel_apply::{
    Change, Kernel, Knob, Leftover, Report, Run, StateDirectory, Storage, Value, device_inode,
};
use evenkeel_host::{SocketName, Sysfs};
use evenkeel_receive::{ConfiguredNic, NicModel};

use crate::backend::{Applied, Backend, Placement};
use crate::error::SteerError;
use crate::interface::Interface;

/// The model of a NIC that has a hash but no filters.
const MODEL: &str = "rss-only";
/// Number of flows in the RFS table. scaling.rst suggests this number for a moderately loaded server.
pub(crate) const SOCKET_FLOWS: u32 = 32_768;
const SOCKET_FLOWS_FILE: &str = "net/core/rps_sock_flow_entries";

/// A back end that steers by RPS, and also by RFS if the policy has a locality term.
pub struct RpsBackend<K: Kernel, S: Storage> {
    run: Run<K, S>,
    /// `None` for a modelled kernel.
    interface: Option<Interface>,
    model: NicModel,
    processors: Vec<u32>,
    receive_queues: u32,
    follows_readers: bool,
    mask: Option<String>,
    remarks: Vec<String>,
    /// Returns whether a signal ends the session. The back end checks this for each queue, because an
    /// interface may have a thousand queues.
    stops: fn() -> bool,
    /// Prevents other processes from steering the interface; `None` for a modelled kernel.
    alone: Option<SocketName>,
    /// The sysfs, and the inode of the interface's directory. The inode distinguishes the interface
    /// from another interface that gets its name and index later. `None` for a modelled kernel.
    sysfs: Option<(Sysfs, Option<u64>)>,
}

/// Creates the back end of a live interface. First rolls back a run that died. The result includes this
/// run. After `stops` returns true, the back end sets no further queue.
///
/// # Errors
/// Returns an error if another run manages the interface, or the kernel does not support RPS.
pub fn live_rps(
    interface: &Interface,
    processors: &[u32],
    follows_readers: bool,
    stops: fn() -> bool,
    state: &StateDirectory,
    guardian: Option<Command>,
) -> Result<(Box<dyn Backend>, Option<Leftover>), SteerError> {
    check_rps(interface)?;
    let alone = interface.steer_alone()?;
    let sysfs = Sysfs::of_namespace()?;
    let queues = sysfs.receive_queues(&interface.name)?;
    let device = device_inode(&sysfs, &interface.name)?;
    let (run, leftover) = Run::begin(state, interface.index, &interface.name, "steer", guardian)?;
    let mut backend = RpsBackend::new(run, processors, queues, follows_readers)?;
    (backend.interface, backend.alone) = (Some(interface.clone()), alone);
    backend.sysfs = Some((sysfs, device));
    backend.stops = stops;
    Ok((Box::new(backend), leftover))
}

/// Remark of each session and plan with RPS.
pub(crate) const UNKNOWN_QUEUES: &str = "RPS chooses a flow's processor by hash: evenkeel neither knows nor changes the processor of a single flow";

/// Returns [`SteerError::Unable`] unless an interface supports RPS.
pub fn check_rps(interface: &Interface) -> Result<(), SteerError> {
    let sysfs = Sysfs::of_namespace()?;
    if sysfs.read(&format!("class/net/{}/queues/rx-0/rps_cpus", interface.name)).is_err() {
        return Err(SteerError::unable(
            format!("{} has no RPS", interface.name),
            "it needs a kernel with CONFIG_RPS; use --backend xdp",
        ));
    }
    Ok(())
}

impl<K: Kernel, S: Storage> RpsBackend<K, S> {
    /// Returns the reason why settings are missing or incomplete, if the state of the interface shows
    /// the reason.
    fn cause_of_loss(&self) -> Option<String> {
        let (sysfs, device) = self.sysfs.as_ref()?;
        let name = &self.interface.as_ref()?.name;
        if device_inode(sysfs, name).ok()?.is_some_and(|now| Some(now) != *device) {
            return Some("the interface was deleted, and another one has its name now".to_owned());
        }
        let (before, now) = (self.receive_queues, sysfs.receive_queues(name).ok()?);
        (now != before).then(|| {
            format!(
                "another program changed the number of receive queues from {before} to {now} (ethtool -L)"
            )
        })
    }

    /// Creates the back end for an interface with `receive_queues` receive queues. Does not change the
    /// interface.
    ///
    /// # Errors
    /// Returns an error if the NIC model for RPS is not built in.
    pub fn new(
        run: Run<K, S>,
        processors: &[u32],
        receive_queues: u32,
        follows_readers: bool,
    ) -> Result<Self, SteerError> {
        let model = NicModel::built_in(MODEL)
            .ok_or_else(|| SteerError::Usage(format!("the model {MODEL} is not built in")))?;
        let processors = processors.to_vec();
        let remarks = vec![UNKNOWN_QUEUES.to_owned()];
        let (interface, mask, alone, sysfs) = (None, None, None, None);
        Ok(Self {
            run,
            interface,
            model,
            processors,
            receive_queues,
            follows_readers,
            mask,
            remarks,
            stops: || false,
            alone,
            sysfs,
        })
    }

    fn set(&mut self, knob: Knob, text: String) -> Result<(), SteerError> {
        if (self.stops)() {
            return Err(SteerError::Stopped);
        }
        Ok(self.run.change(&Change::new(knob, Value::Text(text)))?)
    }

    fn follow_readers(&mut self) -> Result<(), SteerError> {
        let total = Knob::Sysctl(SOCKET_FLOWS_FILE.to_owned());
        match self.run.kernel().read(&total) {
            Ok(Value::Text(text)) if text.trim() == "0" => self.set(total, SOCKET_FLOWS.to_string())?,
            Ok(_) => {}
            // This setting applies to the whole machine, and only the initial network namespace shows it.
            Err(_) => {
                self.remarks.push(
                    "RFS needs the sysctl net.core.rps_sock_flow_entries, which this network namespace does not show: \
                     if it is 0, RFS does not follow the reading processes"
                        .to_owned(),
                );
            }
        }
        for queue in 0..self.receive_queues {
            let each = SOCKET_FLOWS / self.receive_queues.max(1);
            let file = format!("queues/rx-{queue}/rps_flow_cnt");
            self.set(Knob::InterfaceFile(file), each.next_power_of_two().to_string())?;
        }
        Ok(())
    }
}

/// Returns the mask of the CPUs whose queues the RSS table names. These CPUs handle flows without a
/// class.
pub(crate) fn mask_of(nic: &ConfiguredNic, processors: &[u32]) -> String {
    let used = nic.indirection().iter();
    mask(&used.filter_map(|queue| processors.get(queue.index()).copied()).collect())
}

/// Formats a CPU mask as 32-bit hexadecimal words, the highest first (`bitmap_parse`, lib/bitmap-str.c).
fn mask(processors: &BTreeSet<u32>) -> String {
    let words = processors.last().map_or(1, |last| last / 32 + 1);
    let word = |number: u32| {
        let bits = processors.iter().filter(|processor| *processor / 32 == number);
        bits.fold(0_u32, |word, processor| word | 1 << (processor % 32))
    };
    let words: Vec<String> = (0..words).rev().map(|number| format!("{:08x}", word(number))).collect();
    words.join(",")
}

impl<K: Kernel, S: Storage> Backend for RpsBackend<K, S> {
    fn name(&self) -> &'static str {
        "rps"
    }

    fn nic(&mut self) -> Result<ConfiguredNic, SteerError> {
        let queues = u16::try_from(self.processors.len()).unwrap_or(u16::MAX);
        Ok(ConfiguredNic::new(&self.model, queues)?)
    }

    fn processors(&self) -> &[u32] {
        &self.processors
    }

    fn knows_queues(&self) -> bool {
        false
    }

    fn apply(&mut self, found: &Placement<'_>) -> Result<Applied, SteerError> {
        let mask = mask_of(found.nic, &self.processors);
        if self.mask.as_ref() == Some(&mask) {
            return Ok(Applied::default());
        }
        if self.mask.is_none() && self.follows_readers {
            self.follow_readers()?;
        }
        for queue in 0..self.receive_queues {
            self.set(Knob::InterfaceFile(format!("queues/rx-{queue}/rps_cpus")), mask.clone())?;
        }
        self.mask = Some(mask);
        Ok(Applied { redirected: self.receive_queues as usize, ..Applied::default() })
    }

    fn check(&mut self) -> Result<Option<String>, SteerError> {
        self.alone.iter().for_each(SocketName::answer);
        if let Some(difference) = self.interface.as_ref().map_or(Ok(None), Interface::difference_now)? {
            return Ok(Some(difference));
        }
        let disturbances = self.run.disturbances()?;
        // Queues that were added later have no settings that the session could lose.
        let Some(first) = disturbances.first() else { return Ok(self.cause_of_loss()) };
        let cause = if first.found.is_none() { self.cause_of_loss() } else { None };
        Ok(Some(cause.unwrap_or_else(|| first.to_string())))
    }

    fn finish(self: Box<Self>) -> Result<Report, SteerError> {
        Ok(self.run.finish()?)
    }

    fn take_remarks(&mut self) -> Vec<String> {
        self.run.take_remarks()
    }

    fn remarks(&self) -> Vec<String> {
        self.remarks.clone()
    }

    fn shell(&self, _: &ConfiguredNic) -> Option<String> {
        None
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn masks_are_as_the_kernel_reads_them() {
        assert_eq!(mask(&BTreeSet::from([0, 1])), "00000003");
        assert_eq!(mask(&BTreeSet::from([1, 32, 63])), "80000001,00000002");
        assert_eq!(mask(&BTreeSet::new()), "00000000");
    }
}
