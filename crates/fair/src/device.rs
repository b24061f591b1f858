//! The current state of a device.

use std::collections::BTreeSet;

use evenkeel_apply::{Change, Knob, Value};
use evenkeel_datapath::{HookKind, HookProgram, egress_programs, ingress_programs, meter_socket};
use evenkeel_host::{Channels, Ethtool, SocketName, Sysfs, XpsMap, mask_members};
use evenkeel_model::shell::Line;
use evenkeel_netlink::tc_state::{CLSACT_EGRESS, FilterState, QdiscState};
use evenkeel_netlink::{Link, Netlink};

use crate::error::FairError;

#[derive(Clone, Debug)]
pub struct Device {
    pub index: u32,
    pub name: String,
    pub up: bool,
    /// Name of the driver; `None` if the driver does not report its name.
    pub driver: Option<String>,
    pub queues: u32,
    /// `None` for a driver without channels.
    pub channels: Option<Channels>,
    /// Link speed, bit/s; `None` without carrier, or if the driver reports no speed.
    pub speed_bps: Option<u64>,
    pub xps: Vec<XpsMap>,
    /// `None` if the device has never been up.
    pub root: Option<QdiscState>,
    pub hook: HookKind,
    /// Other programs at tcx egress, except meters (`is_meter`); empty if the kernel has no tcx hooks.
    pub programs: Vec<HookProgram>,
    /// Other programs at tcx ingress, except meters; empty if the kernel has no tcx hooks.
    pub ingress: Vec<HookProgram>,
    pub filters: Vec<FilterState>,
    /// The changes that roll back a killed run. The next run makes them before it starts.
    pub restored: Vec<Change>,
}

/// Describes a change of an interface: it left this network namespace, or was renamed. Returns `None` if
/// neither happened.
pub(crate) fn link_difference(
    netlink: &mut Netlink,
    index: u32,
    name: &str,
) -> Result<Option<String>, FairError> {
    Ok(match netlink.link(index)? {
        None => Some("the interface left this network namespace (deleted or moved)".to_owned()),
        Some(link) if link.name == name => None,
        Some(link) => Some(format!("another program renamed the interface to {}", link.name)),
    })
}

/// Returns whether a program is a meter of an Evenkeel process. A meter changes no packet.
pub(crate) fn is_meter(program: u32) -> Result<bool, FairError> {
    Ok(SocketName::holder(&meter_socket(program))?.is_some_and(|holder| holder.is_trusted()))
}

pub(crate) enum BeforeMeter {
    Detached,
    /// Programs in front of the meter, except other meters. They may hide packets from the meter.
    Foreign(Vec<HookProgram>),
}

/// Returns the programs that run before a meter of this process, without the meters of other Evenkeel
/// processes. Returns [`BeforeMeter::Detached`] if the meter itself is not attached.
///
/// `meters` records the meters of other processes. When such a process exits, its socket can close
/// before the kernel detaches the program, and [`is_meter`] recognises a meter by this socket.
pub(crate) fn before_meter(
    index: u32,
    meter: u32,
    meters: &mut BTreeSet<u32>,
) -> Result<BeforeMeter, FairError> {
    let mut programs = egress_programs(index.cast_signed())?;
    let Some(place) = programs.iter().position(|program| program.id == meter) else {
        return Ok(BeforeMeter::Detached);
    };
    programs.truncate(place);
    Ok(BeforeMeter::Foreign(but_meters(programs, meters)?))
}

/// Returns the programs that are not meters. Adds the meters to `meters`.
pub(crate) fn but_meters(
    mut programs: Vec<HookProgram>,
    meters: &mut BTreeSet<u32>,
) -> Result<Vec<HookProgram>, FairError> {
    for program in &programs {
        if !meters.contains(&program.id) && is_meter(program.id)? {
            meters.insert(program.id);
        }
    }
    programs.retain(|program| !meters.contains(&program.id));
    Ok(programs)
}

impl Device {
    pub fn read(link: &Link, netlink: &mut Netlink, sysfs: &Sysfs) -> Result<Self, FairError> {
        let ethtool = Ethtool::open().ok();
        let qdiscs = netlink.qdiscs(link.index)?;
        let hook = HookKind::of_kernel(link.index.cast_signed())?;
        let programs = |list: fn(i32) -> _| match hook {
            HookKind::Tcx => but_meters(list(link.index.cast_signed())?, &mut BTreeSet::new()),
            HookKind::Clsact => Ok(Vec::new()),
        };
        let has_clsact = qdiscs.iter().any(|qdisc| qdisc.kind == "clsact");
        Ok(Self {
            index: link.index,
            name: link.name.clone(),
            up: link.up,
            driver: ethtool.as_ref().and_then(|ethtool| ethtool.driver(&link.name)),
            queues: sysfs.transmit_queues(&link.name)?,
            channels: ethtool.as_ref().and_then(|ethtool| ethtool.channels(&link.name)),
            speed_bps: sysfs.speed_bps(&link.name),
            xps: sysfs.xps_maps(&link.name)?,
            root: qdiscs.into_iter().find(|qdisc| qdisc.parent == evenkeel_netlink::tc::Handle::ROOT),
            hook,
            programs: programs(egress_programs)?,
            ingress: programs(ingress_programs)?,
            filters: if has_clsact { netlink.filters(link.index, CLSACT_EGRESS)? } else { Vec::new() },
            restored: Vec::new(),
        })
    }

    /// Returns the device in the state after these changes have restored the settings of a killed run.
    #[must_use]
    pub(crate) fn restored(mut self, changes: &[Change]) -> Self {
        for Change { knob, to } in changes {
            match (knob, to) {
                (Knob::RootQdisc, Value::Qdiscs(tree)) => {
                    self.root = tree.first().and_then(QdiscState::of_snapshot);
                }
                (Knob::Filter(place), Value::Program(None)) => {
                    self.filters.retain(|filter| !filter.is_at(*place));
                }
                (Knob::InterfaceFile(file), Value::Text(mask)) => {
                    let is_of =
                        |map: &&mut XpsMap| *file == format!("queues/tx-{}/{}", map.queue, map.key.file());
                    if let Some((map, members)) = self.xps.iter_mut().find(is_of).zip(mask_members(mask)) {
                        map.members = members;
                    }
                }
                _ => {}
            }
        }
        self.restored.extend_from_slice(changes);
        self
    }

    /// Returns the value to which the next run rolls this setting back before it starts, if any.
    pub(crate) fn restored_value(&self, knob: &Knob) -> Option<Value> {
        self.restored.iter().find(|change| change.knob == *knob).map(|change| change.to.clone())
    }

    #[must_use]
    pub fn driver_name(&self) -> &str {
        self.driver.as_deref().unwrap_or("unknown")
    }

    /// Returns the kind of a root qdisc that queues the packets of all transmit queues together; `None`
    /// for other root qdiscs.
    #[must_use]
    pub fn shared_root(&self) -> Option<&str> {
        self.root.as_ref().map(|root| root.kind.as_str()).filter(|kind| !waits_by_queue(kind))
    }

    /// Returns why the queue choice changes no rate; `None` if the root qdisc queues packets per transmit queue.
    pub(crate) fn useless(&self) -> Option<String> {
        Some(format!("the root qdisc {} of {} {SCHEDULES_ALL}", self.shared_root()?, self.name))
    }

    /// Returns whether the root qdisc is `mq`, whose children count per transmit queue.
    #[must_use]
    pub fn counts_by_queue(&self) -> bool {
        self.root.as_ref().is_some_and(|root| root.kind == "mq")
    }

    /// Returns the line rate for the ageing limit, bit/s: the link's speed, or a default if the speed
    /// is unknown.
    #[must_use]
    pub fn rate_bps(&self) -> u64 {
        const USUAL: u64 = 10_000_000_000;
        self.speed_bps.unwrap_or(USUAL)
    }

    /// Returns the command that gives the device more transmit queues; `None` if the device has the maximum,
    /// or `ethtool` cannot change the number.
    #[must_use]
    pub fn more_queues(&self) -> Option<String> {
        // A tap's queues are opened by its program: `tun_ethtool_ops` (drivers/net/tun.c) has no
        // `set_channels`.
        let channels = self.channels.filter(|_| self.driver.as_deref() != Some("tun"))?;
        let most = channels.transmit_queues_most();
        (most > self.queues).then(|| self.set_queues(most))
    }

    pub(crate) fn set_queues(&self, count: u32) -> String {
        let is_combined =
            self.channels.is_some_and(|channels| channels.combined_most >= channels.transmit_most);
        let kind = if is_combined { "combined" } else { "tx" };
        Line::new("ethtool -L {} {} {}", &[&self.name, &kind, &count]).to_string()
    }

    /// Returns advice about flows that share queues; `None` if the device cannot have more queues.
    #[must_use]
    pub fn advice_on_sharing(&self) -> Option<String> {
        let command = self.more_queues()?;
        Some(format!(
            "flows share queues of {}, and the device can have more queues: with as many queues as busy \
             flows, no two flows share a queue ({command})",
            self.name
        ))
    }

    #[cfg(test)]
    pub(crate) fn for_tests(name: &str) -> Self {
        Self {
            index: 7,
            name: name.to_owned(),
            up: true,
            driver: None,
            queues: 4,
            channels: None,
            speed_bps: None,
            xps: Vec::new(),
            root: None,
            hook: HookKind::Tcx,
            programs: Vec::new(),
            ingress: Vec::new(),
            filters: Vec::new(),
            restored: Vec::new(),
        }
    }
}

/// The effect of a root qdisc that queues the packets of all transmit queues together.
pub(crate) const SCHEDULES_ALL: &str = "schedules all flows together, so the choice of queues changes no rate: use the \
                                        root qdisc mq, or --queue-weights htb";

/// Returns whether a root qdisc of this kind queues packets per transmit queue. Other kinds, such as
/// htb or pfifo, schedule the packets of all queues together. Then two flows on one queue need not
/// share the queue's rate.
#[must_use]
pub fn waits_by_queue(root_qdisc: &str) -> bool {
    ["noqueue", "mq", "mqprio", "taprio", "multiq"].contains(&root_qdisc)
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_host::XpsKey;

    #[test]
    fn a_plan_after_a_dead_run_uses_the_restored_maps() {
        let map = |queue, members| XpsMap { queue, key: XpsKey::Cpus, members };
        let device = Device { xps: vec![map(0, vec![]), map(1, vec![])], ..Device::for_tests("eth0") };
        let file = Knob::InterfaceFile("queues/tx-1/xps_cpus".to_owned());
        let change = Change::new(file.clone(), Value::Text("6".to_owned()));
        let device = device.restored(&[change]);
        assert_eq!(device.xps, [map(0, vec![]), map(1, vec![1, 2])]);
        assert_eq!(device.restored_value(&file), Some(Value::Text("6".to_owned())));
        assert_eq!(device.restored_value(&Knob::RootQdisc), None);
    }

    #[test]
    fn more_queues_are_advised_where_the_device_can_have_them() {
        let device = |transmit_most, combined_most| Device {
            channels: Some(Channels { transmit_most, combined_most, ..Channels::default() }),
            ..Device::for_tests("eth0")
        };
        assert_eq!(device(0, 16).more_queues().as_deref(), Some("ethtool -L eth0 combined 16"));
        assert_eq!(device(8, 0).more_queues().as_deref(), Some("ethtool -L eth0 tx 8"));
        assert_eq!(device(300, 0).set_queues(256), "ethtool -L eth0 tx 256");
        assert_eq!(device(0, 4).advice_on_sharing(), None, "it has all of them");
        assert_eq!(Device::for_tests("eth0").advice_on_sharing(), None, "it does not report");
        assert!(device(0, 16).advice_on_sharing().is_some_and(|advice| advice.contains("combined 16")));
    }
}
