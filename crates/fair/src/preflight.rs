//! Checks the devices and reports obstacles without changing a setting.

use std::collections::BTreeSet;
use std::path::Path;

use evenkeel_apply::{Change, DEFAULT_QUEUE_LENGTH, Direction, Header, Knob, Value};
use evenkeel_control::{ControlError, OutputLimit};
use evenkeel_datapath::HookKind;
use evenkeel_host::{Capability, Host, Sysfs};
use evenkeel_model::shell::{Line, Script};
use evenkeel_model::text::{counted, path_text};
use evenkeel_netlink::{Link, Netlink};
use evenkeel_transmit::{MAX_QUEUES, Pool};

use crate::balance::{self, BalanceMode};
use crate::batching::{Batching, BatchingMode};
use crate::control_loop::{SegmentMode, backlog_plan};
use crate::device::{Device, SCHEDULES_ALL, waits_by_queue};
use crate::driver_xps;
use crate::error::FairError;
use crate::leftovers::identity_of;
use crate::own_root::OwnRoot;
use crate::queue_weights::{Backend, QueueWeights};
use crate::soft_nic::SoftNic;
use crate::xps::{self, XpsMode, XpsState};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Whether to observe only. Then most obstacles to a queue choice do not matter.
    pub observe: bool,
    pub xps: XpsMode,
    pub segments: SegmentMode,
    pub weights: QueueWeights,
    pub flow_weights: bool,
    pub balance: BalanceMode,
    pub batching: BatchingMode,
    /// Whether to attach by filters of a clsact qdisc even if the kernel has tcx hooks.
    pub filters: bool,
}

impl Request {
    /// Checks the options before any setting is read or changed.
    ///
    /// # Errors
    /// Returns an error if the options exclude each other.
    pub fn check(&self) -> Result<(), FairError> {
        let weights = match self.weights {
            QueueWeights::Off | QueueWeights::Auto => return Ok(()),
            QueueWeights::Htb(rate) => {
                self.batching.check(Backend::SoftNic(rate), true)?;
                "htb"
            }
            QueueWeights::NetShaper => "net-shaper",
            QueueWeights::MaxRate(_) => "max-rate",
        };
        if self.balance == BalanceMode::On {
            return Err(FairError::conflict(
                format!(
                    "--queue-weights {weights} serves queues by weight, which is fairer than --balance on"
                ),
                "use --queue-weights off or --balance off",
            ));
        }
        Ok(())
    }
}

/// A device that can be managed, and its planned changes.
#[derive(Clone, Debug)]
pub struct Planned {
    pub device: Device,
    pub backend: Backend,
    /// Handles of the soft NIC's classes, if a soft NIC is planned.
    pub(crate) soft_nic: SoftNic,
    pub changes: Vec<Change>,
    /// Pools by CPU number; empty if every CPU uses all queues.
    pub pools: Vec<Pool>,
    pub balance: bool,
    pub(crate) batching: Option<Batching>,
}

/// The real devices below an interface, and the plan for each.
#[derive(Clone, Debug)]
pub struct Preflight {
    pub interface: String,
    pub(crate) index: u32,
    pub request: Request,
    /// The devices to attach to: the interface itself, or the devices below it.
    pub devices: Vec<Planned>,
    /// Why each refused device with several queues cannot be managed, and why the queue choice changes no rate
    /// of a managed device.
    pub(crate) unmet: Vec<String>,
    pub remarks: Vec<String>,
}

/// Capabilities for loading and attaching the programs and for changing settings.
pub(crate) const CAPABILITIES: [Capability; 3] = [Capability::NetAdmin, Capability::Perfmon, Capability::Bpf];

impl Preflight {
    /// Checks an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// Returns an error with a remedy for a missing requirement or an obstacle.
    pub fn of(interface: &str, request: Request) -> Result<Self, FairError> {
        Self::after(interface, request, &[])
    }

    /// Checks an interface in the state after the rollback of these killed runs ([`crate::leftovers()`]).
    ///
    /// # Errors
    /// Returns an error with a remedy for a missing requirement or an obstacle.
    pub fn after(
        interface: &str,
        request: Request,
        leftovers: &[(Header, Vec<Change>)],
    ) -> Result<Self, FairError> {
        check_machine(&Host::live())?;
        let mut netlink = Netlink::open()?;
        let sysfs = Sysfs::of_namespace()?;
        let (named, real) = devices_of(interface, &mut netlink, &sysfs)?;
        let mut remarks = Vec::new();
        if real.iter().any(|link| link.index != named.index) {
            let names: Vec<&str> = real.iter().map(|link| link.name.as_str()).collect();
            remarks
                .push(format!("{interface} is a virtual device: its real devices are {}", names.join(", ")));
        }
        let mut devices = Vec::new();
        let (mut refusals, mut unmet) = (Vec::new(), Vec::new());
        for link in &real {
            let moved = |error: FairError| error.of_devices([(link.index, link.name.as_str())]);
            let mut device = Device::read(link, &mut netlink, &sysfs).map_err(moved)?;
            if request.filters {
                device.hook = HookKind::Clsact;
            }
            let identity = identity_of(link)?;
            let is_own = |(header, _): &&(Header, _)| header.interface.same_interface(&identity);
            for (_, changes) in leftovers.iter().filter(is_own) {
                device = device.restored(changes);
            }
            let root = OwnRoot::choose(&mut netlink, link.index)?;
            let queues = device.queues;
            match plan(device, root, request, &sysfs, &mut remarks) {
                Ok(planned) => {
                    let replaces_root = request.weights.is_soft_nic() || request.batching == BatchingMode::On;
                    unmet.extend(planned.device.useless().filter(|_| !replaces_root));
                    devices.push(planned);
                }
                Err(error) => {
                    let error = moved(error);
                    // A device with one queue has no queue to choose, so nothing is missing.
                    unmet.extend((queues > 1).then(|| format!("{} is left out: {error}", link.name)));
                    refusals.push(error);
                }
            }
        }
        if devices.is_empty() {
            return Err(refusals.into_iter().next().unwrap_or_else(|| {
                FairError::unable(
                    format!("{interface} has no device below it"),
                    "add a device to it, or name a device that has transmit queues",
                )
            }));
        }
        // A bond's device that cannot be managed does not exclude the bond's other devices.
        remarks.extend(refusals.iter().map(|error| format!("a device is left out: {error}")));
        let mut preflight =
            Self { interface: interface.to_owned(), index: named.index, request, devices, unmet, remarks };
        if !request.observe {
            request.segments.check()?;
            if let Some(Err(error)) = preflight.backlog_limit() {
                preflight.remarks.push(format!(
                    "tcp_limit_output_bytes stays, so each flow may have more data in the queues: {error}"
                ));
            }
        }
        Ok(preflight)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = (u32, &str)> {
        self.devices.iter().map(|planned| (planned.device.index, planned.device.name.as_str()))
    }

    /// Returns whether the limit of each flow's backlog can be set; `None` if a session does not set it.
    fn backlog_limit(&self) -> Option<Result<(), ControlError>> {
        // The same condition as in `control_loop`.
        let [planned] = &self.devices[..] else { return None };
        let is_shaped = planned.backend != Backend::None || self.request.segments != SegmentMode::Off;
        is_shaped.then(OutputLimit::check)
    }

    /// Describes every change and its undo as shell lines.
    pub fn plan(&self) -> Result<String, FairError> {
        let mut script = Script::default();
        let command = evenkeel_apply::printed_command("evenkeel fair {}", &[&self.interface]);
        // The options change the plan, so mention them.
        let same = if self.request == Request::default() { "" } else { " with the same options" };
        script
            .push(Line::comment(format_args!("What `{command}`{same} would do. Nothing has been changed.")));
        script.extend(self.remarks.iter().map(Line::comment));
        for Planned { device, backend, soft_nic, changes, pools, balance, batching } in &self.devices {
            let name = &device.name;
            script.push(Line::empty());
            script.push(Line::comment(format_args!(
                "{name}: driver {}, {}, root qdisc {}",
                device.driver_name(),
                counted(device.queues as usize, "transmit queue"),
                device.root.as_ref().map_or("none", |root| &root.kind)
            )));
            for change in changes {
                let undo = Change::new(change.knob.clone(), current(device, &change.knob)?);
                script.extend(match backend {
                    Backend::SoftNic(rate) => soft_nic.plan(name, *rate),
                    _ => vec![change.shell(name)],
                });
                script.push(Line::comment(format_args!("  undo: {}", undo.shell(name))));
            }
            if let Some(batching) = batching {
                script.extend(batching.plan(name, current(device, &Knob::RootQdisc)?));
            }
            if batching.is_some() || changes.iter().any(|change| change.knob == Knob::RootQdisc) {
                script.extend(length_plan(device)?);
            }
            script.extend(backend.plan(device)?);
            script.extend(self.request.segments.plan(device)?);
            if let Some(Ok(())) = self.backlog_limit() {
                script.extend(backlog_plan(device)?);
            }
            let untouched = changes.is_empty() && batching.is_none() && *backend == Backend::None;
            if untouched && self.request.segments == SegmentMode::Off {
                script.comment("no setting is changed");
            }
            let choice = if matches!(backend, Backend::SoftNic(_)) {
                "the class of least weight, and the quantum of each class follows its weight".to_owned()
            } else if pools.is_empty() {
                format!("the queue of least weight of 0-{}", device.queues.saturating_sub(1))
            } else {
                "the queue of least weight of the processor's pool".to_owned()
            };
            script.push(Line::comment(format_args!(
                "a BPF program at {} of {name}: a flow with nothing outstanding takes {choice}",
                hook_name(device.hook, Direction::Egress)
            )));
            script.push(undo_of_program(device.hook, Direction::Egress));
            if *balance {
                script.extend(balance::plan_lines(device));
            }
        }
        Ok(script.to_string())
    }
}

pub(crate) fn hook_name(hook: HookKind, direction: Direction) -> String {
    let kind = match hook {
        HookKind::Tcx => "tcx",
        HookKind::Clsact => "clsact",
    };
    format!("{kind} {}", direction.word())
}

/// Describes for `--plan` how to remove a program.
pub(crate) fn undo_of_program(hook: HookKind, direction: Direction) -> Line {
    match hook {
        HookKind::Tcx => {
            Line::comment("  undo: none needed: the kernel removes the program when the process ends")
        }
        HookKind::Clsact => Line::comment(format_args!(
            "  undo: evenkeel removes its filter at {} when the process ends, and the clsact qdisc if \
             evenkeel created the qdisc",
            direction.word()
        )),
    }
}

/// Describes the side effect of a new root qdisc on a device with `txqueuelen` 0: the kernel changes
/// this length.
fn length_plan(device: &Device) -> Result<Script, FairError> {
    let (mut script, knob) = (Script::default(), Knob::TransmitQueueLength);
    let before = current(device, &knob)?;
    if before == Value::Number(0) {
        script.comment(&format!(
            "the kernel may set {} to {DEFAULT_QUEUE_LENGTH} with this qdisc",
            knob.on(&device.name)
        ));
        let undo = Change::new(knob, before).shell(&device.name);
        script.push(Line::comment(format_args!("  undo: {undo}")));
    }
    Ok(script)
}

/// Returns a setting's value before a run changes it: the current value, or the value that the run
/// restores first.
pub(crate) fn current(device: &Device, knob: &Knob) -> Result<Value, FairError> {
    use evenkeel_apply::{ApplyError, Kernel, LiveKernel};
    if let Some(value) = device.restored_value(knob) {
        return Ok(value);
    }
    let read = LiveKernel::open(device.index, &device.name).and_then(|mut kernel| kernel.read(knob));
    Ok(read.map_err(ApplyError::from)?)
}

pub(crate) fn check_machine(host: &Host) -> Result<(), FairError> {
    let missing = host.missing_capabilities(&CAPABILITIES)?;
    if !missing.is_empty() {
        let list: Vec<String> = missing.iter().map(ToString::to_string).collect();
        return Err(FairError::unable(
            format!(
                "this process lacks {}, which evenkeel needs to query the hook, load programs and change settings; \
                 --plan needs them too",
                list.join(", ")
            ),
            host.how_to_be_privileged(),
        ));
    }
    check_types(host)
}

fn check_types(host: &Host) -> Result<(), FairError> {
    if !host.has_sysfs() {
        return Err(FairError::unable("/sys is not mounted", "mount it: mount -t sysfs sysfs /sys"));
    }
    if !host.has_btf() {
        return Err(FairError::unable(
            "the kernel has no BPF type information (/sys/kernel/btf/vmlinux)",
            "use a kernel with CONFIG_DEBUG_INFO_BTF, as all large distributions have",
        ));
    }
    Ok(())
}

/// Returns an interface, and the real devices below it.
pub(crate) fn devices_of(
    interface: &str,
    netlink: &mut Netlink,
    sysfs: &Sysfs,
) -> Result<(Link, Vec<Link>), FairError> {
    let links = netlink.links()?;
    let Some(named) = links.iter().find(|link| link.name == interface) else {
        let others = links.into_iter().map(|link| link.name).filter(|name| name != "lo").collect();
        return Err(FairError::NoInterface { name: interface.to_owned(), others });
    };
    Ok((named.clone(), real_devices(named, &links, sysfs)?))
}

/// Returns the lowest devices below a bond, VLAN, bridge or macvlan, each device once. For an interface
/// without lower devices, returns the interface itself. Follows the links `lower_*`, which sysfs has for all
/// these relations.
pub(crate) fn real_devices(named: &Link, links: &[Link], sysfs: &Sysfs) -> Result<Vec<Link>, FairError> {
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    let mut waiting = vec![named.name.clone()];
    while let Some(name) = waiting.pop() {
        if !seen.insert(name.clone()) {
            continue;
        }
        let lower = sysfs.lower_interfaces(&name)?;
        if lower.is_empty() {
            found.extend(links.iter().filter(|link| link.name == name).cloned());
        }
        waiting.extend(lower);
    }
    found.sort_by_key(|link| link.index);
    Ok(found)
}

fn plan(
    device: Device,
    root: OwnRoot,
    request: Request,
    sysfs: &Sysfs,
    remarks: &mut Vec<String>,
) -> Result<Planned, FairError> {
    let soft_nic = SoftNic::new(root);
    check_link_layer(&device.name, &sysfs.read(&format!("class/net/{}/type", device.name))?)?;
    remark_on_hook(&device, request.observe, remarks);
    if request.observe {
        if device.queues as usize > MAX_QUEUES {
            return Err(too_many_queues(&device));
        }
        remark_on_xps(&device, sysfs, remarks);
        return Ok(Planned {
            device,
            backend: Backend::None,
            soft_nic,
            changes: Vec::new(),
            pools: Vec::new(),
            balance: false,
            batching: None,
        });
    }
    if !request.weights.is_soft_nic() {
        check_queues(&device)?;
    }
    // The kernel creates the root qdisc only when the device is set up, and the plan depends on the
    // root qdisc.
    if !device.up {
        let remedy = format!("bring it up first: {}", Line::new("ip link set {} up", &[&device.name]));
        return Err(FairError::unable(format!("{} is down", device.name), remedy));
    }
    if request.weights.is_soft_nic() {
        check_restorable(&device)?;
        let backend = request.weights.backend(&device, sysfs, remarks)?;
        request.batching.check(backend, true)?;
        let changes = vec![soft_nic.change()];
        let balance = request.balance.plan(&device, backend, &[], remarks)?;
        let pools = Vec::new();
        return Ok(Planned { device, backend, soft_nic, changes, pools, balance, batching: None });
    }
    check_qdisc(&device, request.batching, remarks)?;
    let (changes, pools) = plan_xps(&device, request.xps, sysfs, remarks)?;
    let backend = request.weights.backend(&device, sysfs, remarks)?;
    let balance = request.balance.plan(&device, backend, &pools, remarks)?;
    let restorable = || check_restorable(&device);
    let batching = request.batching.plan(&device, backend, root, restorable, remarks)?;
    if backend == Backend::None
        && let Some(command) = device.more_queues()
    {
        remarks.push(format!(
            "if more flows than queues are busy, some flows share a queue of {} and get less: add queues ({command})",
            device.name
        ));
    }
    Ok(Planned { device, backend, soft_nic, changes, pools, balance, batching })
}

/// `ARPHRD_ETHER` (`include/uapi/linux/if_arp.h`).
const ETHERNET: &str = "1";
/// `ARPHRD_LOOPBACK`: a loopback device also has Ethernet headers (`drivers/net/loopback.c`).
const LOOPBACK: &str = "772";

/// Returns an error for a device without Ethernet headers (WireGuard, tun, ipip, PPP). The programs
/// parse packets from the Ethernet header and would misread the network header.
fn check_link_layer(name: &str, hardware_type: &str) -> Result<(), FairError> {
    if [ETHERNET, LOOPBACK].contains(&hardware_type.trim()) {
        return Ok(());
    }
    Err(FairError::unable(
        format!(
            "packets of {name} have no Ethernet header (/sys/class/net/{name}/type is {}), and the queue choice \
             reads only Ethernet packets",
            hardware_type.trim()
        ),
        "name the Ethernet device that sends its packets",
    ))
}

/// Returns an error if the root qdisc could not be restored after a replacement.
fn check_restorable(device: &Device) -> Result<(), FairError> {
    use evenkeel_apply::{ApplyError, Kernel, LiveKernel};
    let checked = LiveKernel::open(device.index, &device.name)
        .and_then(|mut kernel| kernel.check_restorable(&Knob::RootQdisc));
    match checked {
        // The device still has the root qdisc of the killed run. A run would restore the original first.
        Err(error) if device.restored_value(&Knob::RootQdisc).is_some() => Err(FairError::unable(
            format!("cannot make a plan before the changes of a killed run are restored: {error}"),
            format!("run `{}` first", evenkeel_apply::printed_command("evenkeel revert {}", &[&device.name])),
        )),
        checked => Ok(checked.map_err(ApplyError::from)?),
    }
}

fn too_many_queues(device: &Device) -> FairError {
    FairError::unable(
        format!(
            "{} has {} transmit queues, but the queue choice handles at most {MAX_QUEUES}",
            device.name, device.queues
        ),
        format!("use fewer queues: {}", device.set_queues(MAX_QUEUES as u32)),
    )
}

fn check_queues(device: &Device) -> Result<(), FairError> {
    let name = &device.name;
    if device.queues as usize > MAX_QUEUES {
        return Err(too_many_queues(device));
    }
    if device.queues > 1 {
        return Ok(());
    }
    if matches!(device.driver.as_deref(), Some("bridge" | "bonding" | "team")) {
        let problem = format!("{name} has no interface below it that evenkeel can manage");
        return Err(FairError::unable(problem, format!("add an interface to {name}, or name a real device")));
    }
    const SOFT_NIC: &str = "--queue-weights htb --rate RATE, which makes queues in software";
    let remedy = match device.more_queues() {
        Some(command) => format!("add queues: {command}; or use {SOFT_NIC}"),
        None => format!("the driver ({}) offers only one queue; use {SOFT_NIC}", device.driver_name()),
    };
    Err(FairError::unable(
        format!("{name} has only one transmit queue, so there is no queue to choose"),
        remedy,
    ))
}

fn check_qdisc(device: &Device, batching: BatchingMode, remarks: &mut Vec<String>) -> Result<(), FairError> {
    let name = &device.name;
    let Some(root) = &device.root else { return Ok(()) };
    match root.kind.as_str() {
        "mq" => {}
        // skb_tx_hash restricts the choice to the queues of the packet's traffic class.
        "mqprio" | "taprio" => {
            return Err(FairError::unable(
                format!("{name} has the root qdisc {}, whose traffic classes select the queues", root.kind),
                format!(
                    "replace the root qdisc by mq ({}), or do not run fair on {name}",
                    Line::new("tc qdisc replace dev {} root mq", &[name])
                ),
            ));
        }
        // Evenkeel's mq replaces this root qdisc.
        _ if batching == BatchingMode::On => {}
        kind => remarks.push(format!(
            "{name} has the root qdisc {kind}, which does not count by queue: evenkeel cannot verify that \
             the driver follows the queue choice{}",
            if waits_by_queue(kind) { String::new() } else { format!(". This root qdisc {SCHEDULES_ALL}") }
        )),
    }
    Ok(())
}

fn plan_xps(
    device: &Device,
    mode: XpsMode,
    sysfs: &Sysfs,
    remarks: &mut Vec<String>,
) -> Result<(Vec<Change>, Vec<Pool>), FairError> {
    let name = &device.name;
    match (xps::state(&device.xps), mode) {
        (XpsState::Unset, _) => Ok((Vec::new(), Vec::new())),
        (_, XpsMode::Auto) => {
            driver_xps::check(device.driver_name(), &device.xps, &sysfs.nearest_processors(name))
                .map_err(|difference| maps_of_others(name, &difference, &take_over(device, sysfs)))?;
            remarks.push(format!(
                "the XPS maps of {name} are those that the driver ({}) sets by itself: during the run every processor \
                 may use every queue",
                device.driver_name()
            ));
            Ok((xps::take_over(&device.xps), Vec::new()))
        }
        (state, XpsMode::Respect) => Err(FairError::unable(
            format!("XPS of {name} (driver {}) gives {}", device.driver_name(), overridden(state)),
            take_over(device, sysfs),
        )),
        (_, XpsMode::Off) => Ok((xps::take_over(&device.xps), Vec::new())),
        (_, XpsMode::Pools) => {
            let pools = pools(device, sysfs).map_err(|reason| {
                FairError::unable(
                    format!("no pools can be made of the XPS maps of {name}: {reason}"),
                    "use --xps off",
                )
            })?;
            Ok((xps::take_over(&device.xps), pools))
        }
    }
}

fn pools(device: &Device, sysfs: &Sysfs) -> Result<Vec<Pool>, String> {
    xps::pools(&device.xps, &sysfs.node_of_processors(sysfs.processor_numbers()), device.queues)
}

/// Returns the options that permit a run on a device with XPS maps.
fn take_over(device: &Device, sysfs: &Sysfs) -> String {
    let pools = match pools(device, sysfs) {
        Ok(_) => ", --xps pools keeps to the queues of the processor's NUMA node or pool",
        Err(_) => "",
    };
    format!("let evenkeel manage XPS during this run: --xps off lets every processor use every queue{pools}")
}

fn maps_of_others(name: &str, difference: &str, remedy: &str) -> FairError {
    let setters = driver_xps::possible_setters(Path::new("/"));
    let by = match setters.as_slice() {
        [] => String::new(),
        [first, others @ ..] => {
            let more =
                if others.is_empty() { String::new() } else { format!(" and {} more files", others.len()) };
            format!(" (perhaps {}{more})", path_text(first))
        }
    };
    FairError::unable(
        format!(
            "another program set the XPS maps of {name}{by}, which override the queue choice: {difference}"
        ),
        remedy,
    )
}

/// Describes the XPS maps and their effect on the queue choice.
fn overridden(state: XpsState) -> &'static str {
    match state {
        XpsState::SeveralQueues => "pools of queues to processors, and overrides the queue choice",
        _ => "one queue to each processor, which overrides the queue choice",
    }
}

fn remark_on_xps(device: &Device, sysfs: &Sysfs, remarks: &mut Vec<String>) {
    let what = match xps::state(&device.xps) {
        XpsState::Unset => return,
        XpsState::OneQueueEach => "one queue to each processor",
        XpsState::SeveralQueues => "pools of queues to processors",
    };
    let nearest = sysfs.nearest_processors(&device.name);
    let what_then = match driver_xps::check(device.driver_name(), &device.xps, &nearest) {
        Ok(()) => "the driver set these maps, and evenkeel fair empties them while it runs".to_owned(),
        Err(_) if pools(device, sysfs).is_err() => "with --xps off, evenkeel empties these maps".to_owned(),
        Err(_) => "with --xps off or --xps pools, evenkeel empties these maps".to_owned(),
    };
    remarks.push(format!("XPS of {} gives {what}: {what_then}", device.name));
}

fn remark_on_hook(device: &Device, observe: bool, remarks: &mut Vec<String>) {
    if device.hook == HookKind::Clsact {
        remarks.push(format!(
            "{}: programs are attached as filters of clsact, as this kernel has no tcx hooks (Linux 6.6 or newer has them)",
            device.name
        ));
    }
    let managed = evenkeel_apply::is_managed(device.index).unwrap_or(false);
    for program in &device.programs {
        if managed && program.name.starts_with("select_") {
            remarks.push(format!(
                "{} has the queue choice of another evenkeel fair at tcx egress: {} (id {})",
                device.name, program.name, program.id
            ));
            continue;
        }
        let effect = match observe {
            true => "the meter runs first, and also counts packets that the other program drops or redirects",
            false => "it runs first, so the queue choice sees only packets that it passes on (TCX_NEXT)",
        };
        remarks.push(format!("{} has another program at tcx egress: {program}; {effect}", device.name));
    }
    for filter in &device.filters {
        let name = filter.program.as_deref().map(|name| format!(" {name}")).unwrap_or_default();
        let runs = match device.hook {
            HookKind::Tcx => "it runs after tcx, so a queue that it sets replaces the queue choice",
            HookKind::Clsact => {
                "if it has a smaller preference than evenkeel's filter, the queue choice sees only packets that it passes \
                 on (TC_ACT_UNSPEC), else a queue that it sets replaces the queue choice"
            }
        };
        remarks.push(format!(
            "{} has a filter at clsact egress: {}{name} (preference {}); {runs}",
            device.name, filter.kind, filter.preference
        ));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn options_that_exclude_each_other_are_bad_usage() {
        use evenkeel_model::units::BitRate;
        let rate = BitRate::from_bits_per_second(1_000_000_000);
        let by_weight = [QueueWeights::Htb(rate), QueueWeights::NetShaper, QueueWeights::MaxRate(None)];
        for weights in by_weight {
            let request = Request { weights, balance: BalanceMode::On, ..Request::default() };
            let error = request.check().unwrap_err();
            assert_eq!(error.cause(), evenkeel_apply::Cause::Usage);
            assert!(error.to_string().contains("--balance off"), "{error}");
            Request { weights, ..Request::default() }.check().unwrap();
            Request { weights, balance: BalanceMode::Auto, ..Request::default() }.check().unwrap();
        }
        let batching = BatchingMode::On;
        let request = Request { weights: QueueWeights::Htb(rate), batching, ..Request::default() };
        assert_eq!(request.check().unwrap_err().cause(), evenkeel_apply::Cause::Usage);
        Request { balance: BalanceMode::On, batching, ..Request::default() }.check().unwrap();
    }

    #[test]
    fn a_host_without_sysfs_is_not_a_kernel_without_types() {
        let directory = tempfile::tempdir().unwrap();
        let check = || check_types(&Host::at(directory.path())).unwrap_err();
        assert!(check().to_string().contains("/sys is not mounted"), "{}", check());
        std::fs::create_dir_all(directory.path().join("sys/kernel")).unwrap();
        assert!(check().to_string().contains("no BPF type information"), "{}", check());
        // A sandbox may mask the file with an empty file.
        std::fs::create_dir(directory.path().join("sys/kernel/btf")).unwrap();
        std::fs::write(directory.path().join("sys/kernel/btf/vmlinux"), "").unwrap();
        assert!(check().to_string().contains("no BPF type information"), "{}", check());
    }

    #[test]
    fn pools_are_recommended_only_where_they_can_be_made() {
        let directory = tempfile::tempdir().unwrap();
        let sysfs = Sysfs::at(directory.path());
        let remedy = |queues: [u32; 2]| {
            let map =
                |queue| evenkeel_host::XpsMap { queue, key: evenkeel_host::XpsKey::Cpus, members: vec![0] };
            let device = Device { xps: queues.map(map).to_vec(), ..Device::for_tests("eth0") };
            plan_xps(&device, XpsMode::Respect, &sysfs, &mut Vec::new()).unwrap_err().to_string()
        };
        assert!(remedy([0, 1]).contains("--xps pools"), "{}", remedy([0, 1]));
        assert!(!remedy([0, 2]).contains("--xps pools"), "{}", remedy([0, 2]));
    }

    #[test]
    fn devices_without_an_ethernet_header_are_refused() {
        for ethernet in ["1", "1\n", "772"] {
            check_link_layer("eth0", ethernet).unwrap();
        }
        // ARPHRD_NONE (WireGuard, tun), ARPHRD_TUNNEL (ipip), ARPHRD_PPP, ARPHRD_IPGRE.
        for other in ["65534", "768", "512", "778"] {
            let error = check_link_layer("wg0", other).unwrap_err();
            assert_eq!(error.cause(), evenkeel_apply::Cause::Unable);
            assert!(error.to_string().contains("no Ethernet header"), "{error}");
        }
    }
}
