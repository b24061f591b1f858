//! Reads and sets knobs of the running kernel.

use std::io;
use std::time::Duration;

use evenkeel_host::{NetworkNamespace, Sysfs};
use evenkeel_model::change::{ClassHandle, Knob, QdiscSnapshot, RuleBytes, Value};
use evenkeel_model::shell::Line;
use evenkeel_netlink::ethtool::{EthtoolError, EthtoolSocket, ReceiveRules};
use evenkeel_netlink::settings::{Device, Setting, Settings};
use evenkeel_netlink::shaper::{Shaper, Shapers};
use evenkeel_netlink::tc::Handle;
use evenkeel_netlink::tc_state::QdiscState;
use evenkeel_netlink::{Departure, DepartureWatch, GsoSizes, Link, Netlink, NetlinkError};
use nix::fcntl::OFlag;

use crate::error::KnobError;
use crate::filters;
use crate::identity::{InterfaceIdentity, device_inode};
use crate::lost_with_root::lost_with_root;
use crate::namespace::{Whereabouts, find_device};
use crate::qdisc::of_other_kinds;
use crate::setting_file::SettingFile;

/// Maximum time to sleep for an interface that moves, summed over all settings of a rollback.
const PATIENCE: Duration = Duration::from_secs(1);

/// The source and target of knob values: the running kernel, or a model of it in a test.
pub trait Kernel {
    /// Reads a knob.
    ///
    /// # Errors
    /// Returns [`KnobError::Gone`] if the knob no longer exists.
    fn read(&mut self, knob: &Knob) -> Result<Value, KnobError>;

    /// Sets a knob.
    ///
    /// # Errors
    /// Returns [`KnobError::Gone`] if the knob no longer exists. Returns another error if the kernel
    /// refuses the value.
    fn write(&mut self, knob: &Knob, value: &Value) -> Result<(), KnobError>;

    /// Refuses a change that could not be undone exactly. Call this function before the change.
    ///
    /// # Errors
    /// Returns an error if the current value could not be restored or cannot be read.
    fn check_restorable(&mut self, knob: &Knob) -> Result<(), KnobError> {
        self.read(knob).map(drop)
    }

    /// Returns the settings that other programs made below this knob's value, such as qdiscs below a
    /// root. A new value of the knob removes these settings. Leaves out `known` qdiscs.
    fn lost_with(&mut self, _knob: &Knob, _known: &[QdiscSnapshot]) -> Result<Vec<String>, KnobError> {
        Ok(Vec::new())
    }

    /// Applies a restored setting to running flows.
    fn after_restoring(&mut self, _knob: &Knob) {}

    /// Starts to look for a moved interface in other network namespaces, to restore its settings there.
    fn follow(&mut self) {}

    /// Returns whether the interface has its own interrupts.
    fn has_interrupts(&mut self) -> bool {
        false
    }

    /// Returns the other namespace where the moved interface was found; `None` if it was not found or has not
    /// moved.
    fn moved_to(&self) -> Option<String> {
        None
    }

    /// Returns a sentence about a deleted interface. Returns `None` if the interface exists, or may
    /// exist in another namespace.
    fn deleted(&mut self) -> Option<String> {
        None
    }
}

/// The running kernel, in the network namespace in which this value was opened. Sysctls, and the sockets for
/// shapers and ethtool, which are opened later, belong to the calling thread's namespace. It must be the same
/// namespace.
pub struct LiveKernel {
    index: u32,
    name: String,
    netlink: Netlink,
    sysfs: Sysfs,
    /// Inode of the interface's directory, if known. It identifies the interface, even if another
    /// interface gets its index.
    device: Option<u64>,
    /// Whether to look for a moved interface in other namespaces.
    follows: bool,
    /// A watch that reports whether the interface was deleted or moved; `None` if it was not opened.
    departure: Option<DepartureWatch>,
    /// Result of the search in other namespaces.
    whereabouts: Option<Found>,
    /// Time slept between attempts, summed over all knobs.
    waited: Duration,
    /// Whether the namespace no longer exists. If so, its sysctls do not exist either.
    namespace_is_gone: bool,
    /// The shapers, opened on first use.
    shapers: Option<Shapers>,
    /// The ethtool settings, opened on first use.
    settings: Option<Settings>,
}

enum Found {
    /// The open sockets and the sysfs belong to this namespace.
    In(NetworkNamespace),
    Nowhere,
    Unknown(String),
}

impl LiveKernel {
    /// Opens an interface of the calling thread's network namespace. The interface may have been
    /// deleted.
    pub fn open(index: u32, name: &str) -> Result<Self, KnobError> {
        Self::with_sysfs(index, name, Sysfs::of_namespace()?)
    }

    /// Opens this interface only, not another interface that has reused its index.
    pub fn of(interface: &InterfaceIdentity) -> Result<Self, KnobError> {
        let mut kernel = Self::open(interface.index, &interface.name)?;
        kernel.device = interface.device;
        Ok(kernel)
    }

    /// Opens an interface. The files of CPUs and interfaces are read from `sysfs`, which can be a
    /// recorded one.
    pub fn with_sysfs(index: u32, name: &str, sysfs: Sysfs) -> Result<Self, KnobError> {
        let (netlink, name) = (Netlink::open()?, name.to_owned());
        Ok(Self {
            index,
            name,
            netlink,
            sysfs,
            device: None,
            follows: false,
            departure: None,
            whereabouts: None,
            waited: Duration::ZERO,
            namespace_is_gone: false,
            shapers: None,
            settings: None,
        })
    }

    /// Starts to watch for the removal of the interface.
    pub(crate) fn watch_departure(&mut self) {
        // Ignore the error: without the watch, the search covers all namespaces.
        self.departure = DepartureWatch::open(self.index).ok();
    }

    /// Records that the interface's namespace no longer exists, and that this value was opened in
    /// another namespace.
    pub(crate) fn forget_namespace(&mut self) {
        self.namespace_is_gone = true;
    }

    fn link(&mut self) -> Result<Link, KnobError> {
        // The interface may be renamed between the two reads.
        for _ in 0..2 {
            let Some(link) = self.netlink.link(self.index)? else { break };
            if self.device.is_some() {
                match device_inode(&self.sysfs, &link.name)? {
                    None => continue,
                    found if found != self.device => break,
                    _ => {}
                }
            }
            self.name.clone_from(&link.name);
            return Ok(link);
        }
        self.look_elsewhere()?;
        match self.netlink.link(self.index)? {
            Some(link) if device_inode(&self.sysfs, &link.name)? == self.device => Ok(link),
            _ => Err(gone(format!("the interface {}", self.name))),
        }
    }

    /// Searches other namespaces, and continues in the namespace that contains the interface.
    fn look_elsewhere(&mut self) -> Result<(), KnobError> {
        let what = format!("the interface {}", self.name);
        let Some(device) = self.device.filter(|_| self.follows) else { return Err(gone(what)) };
        if self.whereabouts.is_none()
            && self.departure.as_mut().and_then(DepartureWatch::departure) == Some(Departure::Deleted)
        {
            self.whereabouts = Some(Found::Nowhere);
        }
        if self.whereabouts.is_none() {
            self.whereabouts = Some(match find_device(device, !self.namespace_is_gone) {
                Whereabouts::Deleted => Found::Nowhere,
                Whereabouts::Unknown(reason) => Found::Unknown(reason),
                Whereabouts::Moved { namespace, index, name } => {
                    let opened = namespace.run(|| Ok(Self::open(index, &name)))??;
                    (self.netlink, self.sysfs, self.index, self.name) =
                        (opened.netlink, opened.sysfs, index, name);
                    (self.shapers, self.settings) = (None, None);
                    Found::In(namespace)
                }
            });
        }
        match &self.whereabouts {
            Some(Found::In(_)) => Ok(()),
            Some(Found::Unknown(reason)) => {
                // `evenkeel revert` finds the journal by this name, unless the interface was renamed
                // during the run.
                Err(KnobError::Lost { what, interface: self.name.clone(), reason: reason.clone() })
            }
            Some(Found::Nowhere) | None => Err(gone(what)),
        }
    }

    /// Repeats an attempt that found no knob, because the interface may have moved during the attempt.
    /// Stops if the interface stays in its place, or exists in no namespace. All knobs together wait at
    /// most [`PATIENCE`].
    fn following<T>(
        &mut self,
        knob: &Knob,
        mut attempt: impl FnMut(&mut Self) -> Result<T, KnobError>,
    ) -> Result<T, KnobError> {
        const CERTAIN: u32 = 3;
        const PAUSE: Duration = Duration::from_millis(10);
        let mut stayed = 0;
        while self.waited < PATIENCE {
            match attempt(self) {
                Err(KnobError::Gone { .. })
                    if self.follows && self.device.is_some() && knob.is_of_interface() => {}
                result => return result,
            }
            let link = self.netlink.link(self.index)?;
            let found = link.map(|link| device_inode(&self.sysfs, &link.name)).transpose()?;
            if found.is_some_and(|found| found == self.device) {
                stayed += 1;
            } else if !matches!(self.whereabouts, Some(Found::Nowhere)) {
                (stayed, self.whereabouts) = (0, None);
            } else {
                break;
            }
            if stayed == CERTAIN {
                break;
            }
            std::thread::sleep(PAUSE);
            self.waited += PAUSE;
        }
        attempt(self)
    }

    fn there<T: Send>(&self, open: impl FnOnce() -> Result<T, KnobError> + Send) -> Result<T, KnobError> {
        match &self.whereabouts {
            Some(Found::In(namespace)) => namespace.run(|| Ok(open()))?,
            _ => open(),
        }
    }

    /// Refuses files that are not settings, and the network sysctls of a namespace that no longer exists.
    fn check(&self, knob: &Knob) -> Result<(), KnobError> {
        if !knob.is_permitted() {
            return Err(KnobError::NotPermitted { what: knob.on(&self.name).to_string() });
        }
        match knob {
            Knob::Sysctl(name) if self.namespace_is_gone && name.starts_with("net/") => {
                Err(gone(knob.on(&self.name)))
            }
            _ => Ok(()),
        }
    }

    fn file(&mut self, file: &str) -> Result<String, KnobError> {
        let name = self.link()?.name;
        Ok(format!("class/net/{name}/{file}"))
    }

    fn qdisc_states(&mut self) -> Result<Vec<QdiscState>, KnobError> {
        self.link()?;
        // The ingress and clsact qdiscs are not part of the tree.
        let hook = |parent: Handle| parent.major == 0xffff && parent != Handle::ROOT;
        let mut found = self.netlink.qdiscs(self.index)?;
        found.retain(|qdisc| !hook(qdisc.parent));
        Ok(found)
    }

    fn qdiscs(&mut self) -> Result<Vec<QdiscSnapshot>, KnobError> {
        Ok(self.qdisc_states()?.iter().map(QdiscSnapshot::from).collect())
    }

    /// Refuses a tree that could not be restored exactly.
    fn check_qdiscs(&mut self) -> Result<(), KnobError> {
        let qdiscs = self.qdisc_states()?;
        let what = format!("the root qdisc of {}", self.name);
        // Skip the kernel's default qdiscs, which the kernel recreates.
        for qdisc in qdiscs.iter().filter(|qdisc| !qdisc.is_default()) {
            let part = format!("the qdisc {} at {}", qdisc.kind, qdisc.parent);
            let reason = if !QdiscSnapshot::from(qdisc).is_restorable() {
                format!("{part} may have classes of its own")
            } else if let Some(beside) = qdisc.beside {
                format!("{part} has {beside}")
            } else if !self.netlink.filters(self.index, qdisc.handle)?.is_empty() {
                format!("{part} has filters")
            } else {
                continue;
            };
            let remove = Line::new("tc qdisc delete dev {} root", &[&self.name]);
            let reason = format!("{reason}; if the root qdisc is not needed, remove it with `{remove}`");
            return Err(KnobError::NotRestorable { what, reason });
        }
        match self.deleted_leaf(&qdiscs)? {
            Some(leaf) => {
                let remove = Line::new("tc qdisc delete dev {} root", &[&self.name]);
                let reason = format!(
                    "the leaf at {leaf} was deleted, but a restore would create it again; `{remove}` restores the default"
                );
                Err(KnobError::NotRestorable { what, reason })
            }
            None => Ok(()),
        }
    }

    /// Returns the class of a deleted leaf of `mq` or `tbf`. A dump shows neither the leaf nor the
    /// `noop_qdisc` in its place. The leaf cannot be restored as deleted, because a new parent gets
    /// default leaves (`mq_init`, net/sched/sch_mq.c; `tbf_change`, net/sched/sch_tbf.c).
    fn deleted_leaf(&mut self, tree: &[QdiscState]) -> Result<Option<Handle>, KnobError> {
        let has_leaves = |qdisc: &&QdiscState| !qdisc.is_default() && ["mq", "tbf"].contains(&&*qdisc.kind);
        let mut parents = tree.iter().filter(has_leaves).peekable();
        if parents.peek().is_none() {
            return Ok(None);
        }
        let leaves: Vec<Handle> =
            self.netlink.qdiscs_with_hidden(self.index)?.iter().map(|qdisc| qdisc.parent).collect();
        // The leaf of a removed queue still exists, but the dump does not show it.
        let files = self.sysfs.list(&format!("class/net/{}/queues", self.name))?;
        let queues = files.iter().filter(|file| file.starts_with("tx-")).count() as u16;
        let classes = parents.flat_map(|parent| {
            let count = if parent.kind == "mq" { queues } else { 1 };
            (1..=count).map(|minor| Handle::new(parent.handle.major, minor))
        });
        Ok(classes.into_iter().find(|class| !leaves.contains(class)))
    }

    fn put_qdiscs(&mut self, wanted: &[QdiscSnapshot]) -> Result<(), KnobError> {
        let now = self.qdiscs()?;
        // The kernel may show no default qdisc for an interface that is down.
        let standing = now.first().filter(|standing| !standing.is_default());
        let Some(root) = wanted.first().filter(|root| !root.is_default()) else {
            if standing.is_some() {
                self.netlink.delete_root_qdisc(self.index)?;
            }
            return self.put_default_kinds(wanted);
        };
        // The kernel does not change a qdisc's kind under the same handle. If this function first removed
        // the qdisc and then crashed, a later revert would find the default qdisc, as if another program
        // had removed the qdisc.
        if let Some(standing) = standing.filter(|standing| standing.handle == root.handle)
            && standing.kind != root.kind
        {
            return Err(KnobError::NotRestorable {
                what: format!("the root qdisc of {}", self.name),
                reason: format!(
                    "the current root qdisc, {}, has the handle of the old root qdisc, {}",
                    standing.kind, root.kind
                ),
            });
        }
        self.put_qdisc(root)?;
        // The loop includes leaves of queues that `ethtool -L` has removed: `mq` has a class for each
        // queue that the device can have (`mq_queue_get`, net/sched/sch_mq.c). The leaf serves the
        // queue when the queue is added again.
        for qdisc in wanted.iter().skip(1).filter(|qdisc| !qdisc.is_default()) {
            self.put_qdisc(qdisc)?;
        }
        self.put_default_kinds(wanted)
    }

    /// Sets the default qdiscs of a tree by their kind if the kernel's default has another kind. The
    /// kernel chooses their handles.
    fn put_default_kinds(&mut self, wanted: &[QdiscSnapshot]) -> Result<(), KnobError> {
        let now = self.qdiscs()?;
        if of_other_kinds(&now, wanted).is_empty() {
            return Ok(());
        }
        // No qdisc can be set below a default root: it has no handle.
        if let Some(root) = wanted.first().filter(|root| root.is_default()) {
            self.put_qdisc(root)?;
        }
        let now = self.qdiscs()?;
        let Some(root) = now.first() else { return Ok(()) };
        for leaf in of_other_kinds(&now, wanted) {
            let parent = ClassHandle(Handle::new(root.handle.0.major, leaf.parent.0.minor));
            self.put_qdisc(&QdiscSnapshot { parent, ..leaf })?;
        }
        Ok(())
    }

    fn put_qdisc(&mut self, qdisc: &QdiscSnapshot) -> Result<(), KnobError> {
        let state = QdiscState::of_snapshot(qdisc).ok_or_else(|| KnobError::WrongKind {
            knob: Knob::RootQdisc.on(&self.name).to_string(),
            value: format!("'{}'", qdisc.options),
        })?;
        Ok(self.netlink.put_qdisc(self.index, &state)?)
    }

    fn shapers(&mut self) -> Result<&mut Shapers, KnobError> {
        if self.shapers.is_none() {
            self.shapers = self.there(|| Ok(Shapers::open()?))?;
        }
        self.shapers.as_mut().ok_or_else(|| gone("the kernel's net-shaper interface"))
    }

    fn weight(&mut self, queue: u32) -> Result<Option<u32>, KnobError> {
        let (name, index) = (self.link()?.name, self.index);
        let shaper = self.shapers()?.queue(index, queue).map_err(|error| or_gone(error, &name))?;
        Ok(shaper.map(|shaper| shaper.weight))
    }

    fn put_weight(&mut self, queue: u32, weight: Option<u32>) -> Result<(), KnobError> {
        let (name, index) = (self.link()?.name, self.index);
        let shapers = self.shapers()?;
        let result = match weight {
            Some(weight) => shapers.set_queue_weight(index, queue, weight),
            None => match shapers.queue(index, queue).map_err(|error| or_gone(error, &name))? {
                // Another program has set other values, such as a rate; keep the shaper.
                Some(shaper) if (Shaper { weight: 0, ..shaper }) != Shaper::default() => {
                    shapers.set_queue_weight(index, queue, 0)
                }
                _ => shapers.restore_queue(index, queue, None),
            },
        };
        result.map_err(|error| match error.refusal_code() {
            // The device has fewer queues than before (net/shaper/shaper.c).
            Some(libc::ENOENT) => gone(format!("queue {queue} of {name}")),
            _ => or_gone(error, &name),
        })
    }

    /// Opens the n-tuple rules and RSS settings of the interface, under its current name.
    fn receive_rules(&mut self) -> Result<ReceiveRules<EthtoolSocket>, KnobError> {
        let name = self.link()?.name;
        let socket = self.there(|| {
            EthtoolSocket::open()
                .map_err(|source| KnobError::File { action: "open a socket for ethtool".to_owned(), source })
        })?;
        Ok(ReceiveRules::new(socket, &name))
    }

    /// Returns the ethtool settings, opened at the first call, and the device with its current name.
    fn settings(&mut self) -> Result<(&mut Settings, Device<'_>), KnobError> {
        self.link()?;
        if self.settings.is_none() {
            self.settings = Some(self.there(|| Ok(Settings::open()?))?);
        }
        let settings = self.settings.as_mut().ok_or_else(|| gone("ethtool's interface"))?;
        Ok((settings, Device { index: self.index, name: &self.name }))
    }

    fn setting(&mut self, knob: &Knob, setting: Setting) -> Result<u32, KnobError> {
        let (settings, device) = self.settings()?;
        let found = settings.get(device, setting).map_err(or_gone_device)?;
        found.ok_or_else(|| gone(knob.on(&self.name)))
    }

    fn put_setting(&mut self, setting: Setting, value: u32) -> Result<(), KnobError> {
        let (settings, device) = self.settings()?;
        settings.set(device, setting, value).map_err(or_gone_device)
    }

    fn feature(&mut self, knob: &Knob, name: &str) -> Result<bool, KnobError> {
        let (settings, device) = self.settings()?;
        let features = settings.features(device).map_err(or_gone_device)?;
        let found = features.iter().find(|feature| feature.name == name);
        found.map(|feature| feature.active).ok_or_else(|| gone(knob.on(&self.name)))
    }

    fn flow_hash(&mut self, knob: &Knob, flows: &str) -> Result<String, KnobError> {
        let (settings, device) = self.settings()?;
        let found = settings.flow_hash(device, flows).map_err(or_gone_device)?;
        found.ok_or_else(|| gone(knob.on(&self.name)))
    }

    fn number_in(&mut self, file: &str) -> Result<u32, KnobError> {
        let path = self.file(file)?;
        let text = SettingFile::of_interface(&self.sysfs, path.clone()).read_text()?;
        text.parse().map_err(|_| KnobError::File {
            action: format!("parse /sys/{path}"),
            source: io::Error::new(io::ErrorKind::InvalidData, format!("'{text}' is not a number")),
        })
    }

    fn write_interface_file(&mut self, file: &str, text: &str) -> Result<(), KnobError> {
        let path = self.file(file)?;
        SettingFile::of_interface(&self.sysfs, path).write(text)
    }

    /// Creates or changes an RSS context; deletes it without a table. A new context must get the number
    /// `context` of the journal, but the kernel or the driver chooses the number.
    fn put_context(&mut self, context: u32, table: Option<&[u32]>) -> Result<(), KnobError> {
        let device = self.receive_rules()?;
        let exists = device.context(context).map_err(or_gone_device)?.is_some();
        match table {
            Some(table) if exists => device.set_context(context, table).map_err(or_gone_device),
            Some(table) => {
                let made = device.create_context(table).map_err(or_gone_device)?;
                if made == context {
                    return Ok(());
                }
                device.delete_context(made).map_err(or_gone_device)?;
                let what = format!("the driver created RSS context {made} instead of {context}");
                Err(EthtoolError::Answer { interface: device.interface().to_owned(), what }.into())
            }
            None if exists => device.delete_context(context).map_err(or_gone_device),
            None => Ok(()),
        }
    }

    fn wrong_kind(&self, knob: &Knob, value: &Value) -> KnobError {
        KnobError::WrongKind { knob: knob.on(&self.name).to_string(), value: value.to_string() }
    }
}

fn gone(what: impl std::fmt::Display) -> KnobError {
    KnobError::Gone { what: what.to_string() }
}

/// Converts the error of an interface that is removed during the request into [`KnobError::Gone`].
fn or_gone(error: NetlinkError, name: &str) -> KnobError {
    match error.refusal_code() {
        Some(libc::ENODEV) => gone(format!("the interface {name}")),
        _ => KnobError::Netlink(error),
    }
}

fn or_gone_device(error: EthtoolError) -> KnobError {
    match error.code() {
        Some(libc::ENODEV) => gone("the interface"),
        _ => KnobError::Ethtool(error),
    }
}

fn sizes(found: GsoSizes) -> Value {
    Value::Sizes { all: found.all, ipv4: found.ipv4 }
}

impl LiveKernel {
    fn read_once(&mut self, knob: &Knob) -> Result<Value, KnobError> {
        match knob {
            Knob::Sysctl(name) => SettingFile::of_sysctl(name).read(),
            Knob::GsoSizes => Ok(sizes(self.link()?.gso)),
            Knob::GroSizes => Ok(sizes(self.link()?.gro)),
            Knob::InterfaceFile(file) => {
                let path = self.file(file)?;
                SettingFile::of_interface(&self.sysfs, path).read()
            }
            Knob::HtbQuantum(class) => {
                let name = self.link()?.name;
                let found =
                    self.netlink.htb_quantum(self.index, class.0).map_err(|error| or_gone(error, &name))?;
                found.map(Value::Bytes).ok_or_else(|| gone(format!("the HTB class {class} of {name}")))
            }
            Knob::QueueWeight(queue) => self.weight(*queue).map(Value::Weight),
            Knob::RootQdisc => self.qdiscs().map(Value::Qdiscs),
            Knob::Clsact | Knob::Filter(_) => {
                let name = self.link()?.name;
                filters::read(&mut self.netlink, self.index, knob).map_err(|error| or_gone(error, &name))
            }
            Knob::NtupleRule(location) => {
                let device = self.receive_rules()?;
                let rule = device.rule(*location).map_err(or_gone_device)?;
                Ok(Value::Rule(rule.as_ref().map(RuleBytes::from)))
            }
            Knob::RssContext(context) => {
                let found = self.receive_rules()?.context(*context).map_err(or_gone_device)?;
                Ok(Value::Context(found))
            }
            Knob::RssTable => {
                let device = self.receive_rules()?;
                let table = device.rss().map_err(or_gone_device)?;
                let table = table.ok_or_else(|| gone(format!("the RSS table of {}", device.interface())))?;
                Ok(Value::Table(table.indirection))
            }
            Knob::InterruptAffinity(interrupt) => SettingFile::of_affinity(*interrupt).read(),
            Knob::Ring(ring) => self.setting(knob, Setting::Ring(*ring)).map(Value::Number),
            Knob::Channels(channels) => self.setting(knob, Setting::Channels(*channels)).map(Value::Number),
            Knob::Coalescing(parameter) => {
                let found = self.setting(knob, Setting::Coalescing(*parameter))?;
                Ok(if parameter.is_switch() { Value::Switch(found != 0) } else { Value::Number(found) })
            }
            Knob::Feature(name) => self.feature(knob, name).map(Value::Switch),
            Knob::FlowHash(flows) => self.flow_hash(knob, flows).map(Value::Text),
            Knob::Mtu => self.number_in("mtu").map(Value::Bytes),
            Knob::TransmitQueueLength => self.number_in("tx_queue_len").map(Value::Number),
            Knob::ProcessorFile(file) => SettingFile::of_processors(&self.sysfs, file).read(),
        }
    }

    fn write_once(&mut self, knob: &Knob, value: &Value) -> Result<(), KnobError> {
        match (knob, value) {
            (Knob::Sysctl(name), Value::Text(text)) => SettingFile::of_sysctl(name).write(text),
            (Knob::GsoSizes | Knob::GroSizes, Value::Sizes { all, ipv4 }) => {
                let name = self.link()?.name;
                let sizes = GsoSizes { all: *all, ipv4: *ipv4 };
                let result = if *knob == Knob::GsoSizes {
                    self.netlink.set_gso_sizes(self.index, sizes)
                } else {
                    self.netlink.set_gro_sizes(self.index, sizes)
                };
                result.map_err(|error| or_gone(error, &name))
            }
            (Knob::InterfaceFile(file), Value::Text(text)) => self.write_interface_file(file, text),
            (Knob::HtbQuantum(class), Value::Bytes(bytes)) => {
                let name = self.link()?.name;
                self.netlink
                    .set_htb_quantum(self.index, class.0, *bytes)
                    .map_err(|error| or_gone(error, &name))
            }
            (Knob::QueueWeight(queue), Value::Weight(weight)) => self.put_weight(*queue, *weight),
            (Knob::RootQdisc, Value::Qdiscs(wanted)) => self.put_qdiscs(wanted),
            (Knob::Clsact, Value::Text(_)) | (Knob::Filter(_), Value::Program(None)) => {
                self.link()?;
                filters::write(&mut self.netlink, self.index, knob, value)
            }
            (Knob::NtupleRule(location), Value::Rule(None)) => {
                let device = self.receive_rules()?;
                if device.rule(*location).map_err(or_gone_device)?.is_none() {
                    return Ok(());
                }
                device.delete(*location).map_err(or_gone_device)
            }
            (Knob::NtupleRule(_), Value::Rule(Some(bytes))) => {
                let rule = bytes.rule().ok_or_else(|| self.wrong_kind(knob, value))?;
                self.receive_rules()?.insert(&rule).map_err(or_gone_device)
            }
            (Knob::RssContext(context), Value::Context(table)) => {
                self.put_context(*context, table.as_deref())
            }
            (Knob::RssTable, Value::Table(queues)) => {
                let device = self.receive_rules()?;
                let in_turn = device.queues().ok().filter(|count| *count > 0).is_some_and(|count| {
                    queues.iter().enumerate().all(|(entry, queue)| entry as u32 % count == *queue)
                });
                // Reset a table that has the kernel's default form, so that the kernel may adapt it to
                // the number of queues.
                if in_turn && device.reset_indirection().is_ok() {
                    return Ok(());
                }
                device.set_indirection(queues).map_err(or_gone_device)
            }
            (Knob::InterruptAffinity(interrupt), Value::Text(text)) => {
                SettingFile::of_affinity(*interrupt).write(text)
            }
            (Knob::Ring(ring), Value::Number(number)) => self.put_setting(Setting::Ring(*ring), *number),
            (Knob::Channels(channels), Value::Number(number)) => {
                self.put_setting(Setting::Channels(*channels), *number)
            }
            (Knob::Coalescing(parameter), Value::Number(number)) if !parameter.is_switch() => {
                self.put_setting(Setting::Coalescing(*parameter), *number)
            }
            (Knob::Coalescing(parameter), Value::Switch(on)) if parameter.is_switch() => {
                self.put_setting(Setting::Coalescing(*parameter), u32::from(*on))
            }
            (Knob::Feature(name), Value::Switch(on)) => {
                let (settings, device) = self.settings()?;
                settings.set_feature(device, name, *on).map_err(or_gone_device)
            }
            (Knob::FlowHash(flows), Value::Text(fields)) => {
                let (settings, device) = self.settings()?;
                settings.set_flow_hash(device, flows, fields).map_err(or_gone_device)
            }
            (Knob::Mtu, Value::Bytes(bytes)) => self.write_interface_file("mtu", &bytes.to_string()),
            (Knob::TransmitQueueLength, Value::Number(packets)) => {
                self.write_interface_file("tx_queue_len", &packets.to_string())
            }
            (Knob::ProcessorFile(file), Value::Text(text)) => {
                SettingFile::of_processors(&self.sysfs, file).write(text)
            }
            _ => Err(self.wrong_kind(knob, value)),
        }
    }
}

impl Kernel for LiveKernel {
    fn read(&mut self, knob: &Knob) -> Result<Value, KnobError> {
        self.check(knob)?;
        self.following(knob, |kernel| kernel.read_once(knob))
    }

    fn write(&mut self, knob: &Knob, value: &Value) -> Result<(), KnobError> {
        self.check(knob)?;
        self.following(knob, |kernel| kernel.write_once(knob, value))
    }

    fn lost_with(&mut self, knob: &Knob, known: &[QdiscSnapshot]) -> Result<Vec<String>, KnobError> {
        if *knob != Knob::RootQdisc {
            return Ok(Vec::new());
        }
        let tree = self.qdisc_states()?;
        Ok(lost_with_root(&mut self.netlink, self.index, &tree, known)?)
    }

    /// Flushes the routes, so that running flows adopt the device's segment size at their next route
    /// lookup (`sk_setup_caps`, net/core/sock.c). The flush affects the whole namespace. If the flush
    /// fails, the flows adopt the size later.
    fn after_restoring(&mut self, knob: &Knob) {
        if *knob == Knob::GsoSizes {
            let _ = self.there(|| {
                let _ = std::fs::write("/proc/sys/net/ipv4/route/flush", "1\n");
                Ok(())
            });
        }
    }

    fn follow(&mut self) {
        self.follows = true;
    }

    fn has_interrupts(&mut self) -> bool {
        self.file("device/msi_irqs").is_ok_and(|file| self.sysfs.open(&file, OFlag::O_PATH).is_ok())
    }

    fn moved_to(&self) -> Option<String> {
        match &self.whereabouts {
            Some(Found::In(namespace)) if !self.is_home(namespace) => {
                Some(format!("the network namespace net:[{}] as {}", namespace.inode, self.name))
            }
            _ => None,
        }
    }

    fn deleted(&mut self) -> Option<String> {
        let Err(KnobError::Gone { .. }) = self.link() else { return None };
        let name = &self.name;
        Some(match self.netlink.link_named(name) {
            Ok(Some(_)) => format!("{name} was deleted, and another interface has its name now"),
            _ => format!("{name} was deleted"),
        })
    }

    fn check_restorable(&mut self, knob: &Knob) -> Result<(), KnobError> {
        match knob {
            Knob::RootQdisc => self.check_qdiscs(),
            _ => self.read(knob).map(drop),
        }
    }
}

impl LiveKernel {
    /// Returns whether a namespace is the one in which this value was opened.
    fn is_home(&self, namespace: &NetworkNamespace) -> bool {
        let own = NetworkNamespace::own().ok();
        !self.namespace_is_gone && own.is_some_and(|own| own.inode == namespace.inode)
    }

    pub fn current_name(&mut self) -> Result<Option<String>, KnobError> {
        match self.link() {
            Ok(link) => Ok(Some(link.name)),
            Err(KnobError::Gone { .. } | KnobError::Lost { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
