//! Watches all settings on which a session depends.

use std::collections::BTreeSet;

use evenkeel_apply::{FilterPlace, device_inode};
use evenkeel_datapath::{HookKind, HookProgram, egress_programs, ingress_programs};
use evenkeel_host::{Sysfs, XpsMap};
use evenkeel_netlink::tc::Handle;
use evenkeel_netlink::tc_state::{CLSACT_EGRESS, FilterState, HtbClassState, QdiscState};
use evenkeel_netlink::{Netlink, NetlinkError};

use crate::batching::kind_at;
use crate::device::{BeforeMeter, Device, before_meter, is_meter, link_difference};
use crate::error::FairError;

/// The state of a device at the start of the session, with Evenkeel's own programs.
pub(crate) struct Watched {
    netlink: Netlink,
    sysfs: Sysfs,
    index: u32,
    name: String,
    /// Inode of the device's directory in sysfs, because another interface may get the device's name
    /// and index.
    device: Option<u64>,
    queues: u32,
    root: Option<(String, Handle)>,
    /// Evenkeel's qdiscs below the root, by place.
    leaves: Vec<(Handle, String)>,
    tree: Option<Tree>,
    programs: Vec<HookProgram>,
    /// The filters of other programs at clsact egress.
    filters: Vec<FilterState>,
    /// The filters of this process at clsact egress, which its run watches.
    own_filters: Vec<FilterPlace>,
    xps: Vec<XpsMap>,
    /// Known meters of this and other processes. The watch ignores them, except `own_meter`.
    meters: BTreeSet<u32>,
    /// The meter of this process, while the meter is attached.
    own_meter: Option<u32>,
    mover: Option<u32>,
    /// If a flow mover is attached: the programs at tcx ingress, including the mover, without meters.
    ingress: Vec<HookProgram>,
    hook: HookKind,
}

fn root_of(qdiscs: &[QdiscState]) -> Option<(String, Handle)> {
    let root = qdiscs.iter().find(|qdisc| qdisc.parent == Handle::ROOT)?;
    Some((root.kind.clone(), root.handle))
}

fn root_difference(before: Option<&(String, Handle)>, now: Option<&(String, Handle)>) -> String {
    let same_kind = before.map(|(kind, _)| kind) == now.map(|(kind, _)| kind);
    let name = |root: Option<&(String, Handle)>| match root {
        None => "none".to_owned(),
        Some((kind, handle)) if same_kind => format!("{kind} {:x}:", handle.major),
        Some((kind, _)) => kind.clone(),
    };
    format!("another program replaced the root qdisc: {} before, {} now", name(before), name(now))
}

/// Returns the qdiscs without the hooks for ingress and clsact.
fn below_root(mut qdiscs: Vec<QdiscState>) -> Vec<QdiscState> {
    qdiscs.retain(|qdisc| qdisc.parent == Handle::ROOT || qdisc.parent.major != Handle::ROOT.major);
    qdiscs
}

/// An HTB root with its classes, their qdiscs, and the filters of all these. An HTB of another program
/// under the same handle has other classes.
#[derive(Clone)]
struct Tree {
    qdiscs: Vec<QdiscState>,
    classes: Vec<HtbClassState>,
    /// The filters, by the qdisc or class to which they are attached.
    filters: Vec<(Handle, FilterState)>,
}

impl Tree {
    fn difference(&self, now: &Self) -> Option<String> {
        let changed = |place: Handle| match kind_at(&now.qdiscs, place) {
            Some(kind) => format!("another program replaced or changed the qdisc at {place}: {kind} now"),
            None => format!("another program removed the qdisc at {place}"),
        };
        let both = |own: &[QdiscState], other: &[QdiscState]| {
            own.iter().find(|qdisc| !other.contains(qdisc)).map(|qdisc| qdisc.parent)
        };
        if let Some(place) = both(&self.qdiscs, &now.qdiscs).or_else(|| both(&now.qdiscs, &self.qdiscs)) {
            return Some(changed(place));
        }
        let has = |classes: &[HtbClassState], handle| classes.iter().any(|class| class.handle == handle);
        if let Some(HtbClassState { handle, .. }) =
            self.classes.iter().find(|class| !now.classes.contains(class))
        {
            let did = if has(&now.classes, *handle) { "changed" } else { "removed" };
            return Some(format!("another program {did} the HTB class {handle}"));
        }
        if let Some(class) = now.classes.iter().find(|class| !has(&self.classes, class.handle)) {
            return Some(format!("another program added the HTB class {}", class.handle));
        }
        let (place, filter) = now.filters.iter().find(|filter| !self.filters.contains(filter))?;
        Some(format!(
            "another program added a filter at {place}: {} (preference {})",
            filter.kind, filter.preference
        ))
    }
}

impl Watched {
    /// Records a device in the calling thread's network namespace. Programs and filters are those of the
    /// preflight, so that the watch also detects what another program attached since then.
    pub(crate) fn new(device: &Device) -> Result<Self, FairError> {
        let mut watched = Self {
            netlink: Netlink::open()?,
            sysfs: Sysfs::of_namespace()?,
            index: device.index,
            name: device.name.clone(),
            device: None,
            queues: device.queues,
            root: None,
            leaves: Vec::new(),
            tree: None,
            programs: device.programs.clone(),
            filters: device.filters.clone(),
            own_filters: Vec::new(),
            xps: Vec::new(),
            meters: BTreeSet::new(),
            own_meter: None,
            mover: None,
            ingress: Vec::new(),
            hook: device.hook,
        };
        watched.device = device_inode(&watched.sysfs, &watched.name)?;
        let qdiscs = watched.netlink.qdiscs(watched.index)?;
        watched.root = root_of(&qdiscs);
        watched.xps = watched.sysfs.xps_maps(&watched.name)?;
        Ok(watched)
    }

    pub(crate) fn expect(&mut self, leaves: Vec<(Handle, String)>) {
        self.leaves = leaves;
    }

    /// Adds the soft NIC to the watched state: every qdisc with its options, every class and every filter.
    pub(crate) fn expect_tree(&mut self) -> Result<(), FairError> {
        let qdiscs = self.netlink.qdiscs(self.index)?;
        self.tree = Some(self.tree_now(qdiscs)?);
        Ok(())
    }

    fn tree_now(&mut self, qdiscs: Vec<QdiscState>) -> Result<Tree, FairError> {
        let classes = self.netlink.htb_classes(self.index)?;
        let root = root_of(&qdiscs).map(|(_, handle)| handle);
        let mut filters = Vec::new();
        for place in root.into_iter().chain(classes.iter().map(|class| class.handle)) {
            let found = self.netlink.filters(self.index, place)?;
            filters.extend(found.into_iter().map(|filter| (place, filter)));
        }
        Ok(Tree { qdiscs: below_root(qdiscs), classes, filters })
    }

    /// Returns another program's change below Evenkeel's own root qdisc. This change is lost when the
    /// root qdisc is removed. Returns `None` if the root qdisc itself has changed.
    pub(crate) fn lost_with_root(&mut self) -> Result<Option<String>, FairError> {
        let qdiscs = self.netlink.qdiscs(self.index)?;
        if root_of(&qdiscs) != self.root {
            return Ok(None);
        }
        let replaced = |(place, kind): &&(Handle, String)| kind_at(&qdiscs, *place) != Some(kind.as_str());
        let mut difference = self.leaves.iter().find(replaced).map(|(place, _)| {
            let now = kind_at(&qdiscs, *place).unwrap_or("none");
            format!("another program replaced the qdisc at {place}: {now} now")
        });
        if let Some(tree) = self.tree.clone() {
            difference = tree.difference(&self.tree_now(qdiscs)?);
        }
        Ok(difference.map(|difference| {
            format!("{difference}; the change is lost when evenkeel removes its own root qdisc")
        }))
    }

    /// Sets the meter of this process; `None` without a meter. The watch then detects if another program
    /// detaches the meter.
    pub(crate) fn expect_meter(&mut self, program: Option<u32>) {
        // The socket of a replaced meter may close before the kernel has detached the meter's program.
        self.meters.extend(program);
        self.own_meter = program;
    }

    pub(crate) fn expect_filters(&mut self, own: impl Iterator<Item = FilterPlace>) {
        self.own_filters = own.collect();
    }

    /// Adds the queue choice of this process, which is the last program at tcx egress.
    pub(crate) fn expect_queue_choice(&mut self, program: u32) -> Result<(), FairError> {
        let own = self.programs_now()?.into_iter().find(|attached| attached.id == program);
        self.programs.extend(own);
        Ok(())
    }

    /// Sets the program of this process at tcx ingress. The watch then detects if this program is
    /// detached. It also detects other changes at tcx ingress, because a new program may hide packets from
    /// this program.
    pub(crate) fn expect_mover(&mut self, program: u32) -> Result<(), FairError> {
        self.mover = Some(program);
        self.ingress = self.ingress_now()?;
        Ok(())
    }

    /// Returns the programs at tcx egress, except meters; empty on a kernel without tcx.
    fn programs_now(&mut self) -> Result<Vec<HookProgram>, FairError> {
        if self.hook == HookKind::Clsact && HookKind::of_kernel(self.index.cast_signed())? == HookKind::Clsact
        {
            return Ok(Vec::new());
        }
        let programs = egress_programs(self.index.cast_signed())?;
        self.but_meters(programs)
    }

    /// Returns the programs at tcx ingress, except meters; empty without a mover.
    fn ingress_now(&mut self) -> Result<Vec<HookProgram>, FairError> {
        match self.mover {
            Some(_) => self.but_meters(ingress_programs(self.index.cast_signed())?),
            None => Ok(Vec::new()),
        }
    }

    fn but_meters(&mut self, mut programs: Vec<HookProgram>) -> Result<Vec<HookProgram>, FairError> {
        for program in &programs {
            let is_known = self.programs.contains(program) || self.ingress.contains(program);
            // The socket of a meter may close before the kernel has detached the meter's program.
            if !is_known && !self.meters.contains(&program.id) && is_meter(program.id)? {
                self.meters.insert(program.id);
            }
        }
        programs.retain(|program| !self.meters.contains(&program.id));
        Ok(programs)
    }

    /// Returns a message if another program has detached the meter or the mover of this process.
    fn lost_program(&self) -> Result<Option<&'static str>, FairError> {
        let index = self.index.cast_signed();
        let is_gone = |own: Option<u32>, list: fn(i32) -> _| -> Result<bool, FairError> {
            let Some(own) = own else { return Ok(false) };
            let programs: Vec<HookProgram> = list(index)?;
            Ok(programs.iter().all(|program| program.id != own))
        };
        if is_gone(self.own_meter, egress_programs)? {
            return Ok(Some("another program detached evenkeel's meter from tcx egress"));
        }
        if is_gone(self.mover, ingress_programs)? {
            return Ok(Some("another program detached evenkeel's program for moves from tcx ingress"));
        }
        Ok(None)
    }

    fn filters_now(&mut self, qdiscs: &[QdiscState]) -> Result<Vec<FilterState>, FairError> {
        if !qdiscs.iter().any(|qdisc| qdisc.kind == "clsact") {
            return Ok(Vec::new());
        }
        Ok(foreign(&self.own_filters, self.netlink.filters(self.index, CLSACT_EGRESS)?))
    }

    /// Returns a change of the device itself: it was deleted or renamed, or has another number of queues.
    pub(crate) fn device_difference(&mut self) -> Result<Option<String>, FairError> {
        if let Some(difference) = link_difference(&mut self.netlink, self.index, &self.name)? {
            return Ok(Some(difference));
        }
        if device_inode(&self.sysfs, &self.name)?.is_some_and(|device| Some(device) != self.device) {
            return Ok(Some("the interface was deleted, and another one has its name now".to_owned()));
        }
        let queues = match self.sysfs.transmit_queues(&self.name) {
            Ok(queues) => queues,
            // The device was deleted between the two reads. The next check reports the deletion.
            Err(_) => return Ok(None),
        };
        if queues != self.queues {
            return Ok(Some(format!(
                "another program changed the number of transmit queues from {} to {queues} (ethtool -L)",
                self.queues
            )));
        }
        Ok(None)
    }

    pub(crate) fn difference(&mut self) -> Result<Option<String>, FairError> {
        self.checked(Self::surroundings)
    }

    /// Returns a change of the device itself or of its root qdisc or XPS maps.
    pub(crate) fn queue_difference(&mut self) -> Result<Option<String>, FairError> {
        self.checked(|watched| match watched.root_change()? {
            Some(root) => Ok(Some(root)),
            None => watched.xps_change(),
        })
    }

    /// Returns a change of the device itself, the loss of a program of this process, or a new program
    /// that may hide packets from the meter of this process. Ignores other programs.
    pub(crate) fn own_difference(&mut self) -> Result<Option<String>, FairError> {
        self.checked(|watched| match watched.lost_program()? {
            Some(lost) => Ok(Some(lost.to_owned())),
            None => watched.hiding_program(),
        })
    }

    /// Returns a message if another program was attached in front of this process's meter.
    fn hiding_program(&mut self) -> Result<Option<String>, FairError> {
        let Some(own) = self.own_meter else { return Ok(None) };
        let BeforeMeter::Foreign(found) = before_meter(self.index, own, &mut self.meters)? else {
            return Ok(None);
        };
        Ok(found.first().map(|program| {
            format!(
                "another process attached a program at tcx egress, which may hide packets from evenkeel's meter: \
                 {program}"
            )
        }))
    }

    fn checked(
        &mut self,
        look: impl FnOnce(&mut Self) -> Result<Option<String>, FairError>,
    ) -> Result<Option<String>, FairError> {
        if let Some(difference) = self.device_difference()? {
            return Ok(Some(difference));
        }
        let found = look(self);
        // The kernel detaches the programs of a device that is deleted during the check.
        match self.device_difference()? {
            Some(difference) => Ok(Some(difference)),
            None => steady(found),
        }
    }

    fn surroundings(&mut self) -> Result<Option<String>, FairError> {
        if let Some(lost) = self.lost_program()? {
            return Ok(Some(lost.to_owned()));
        }
        let programs = self.programs_now()?;
        if programs != self.programs {
            return Ok(Some(hook_difference("tcx egress", &self.programs, &programs)));
        }
        let ingress = self.ingress_now()?;
        if ingress != self.ingress {
            return Ok(Some(hook_difference("tcx ingress", &self.ingress, &ingress)));
        }
        if let Some(root) = self.root_change()? {
            return Ok(Some(root));
        }
        if let Some(lost) = self.lost_with_root()? {
            return Ok(Some(lost));
        }
        let qdiscs = self.netlink.qdiscs(self.index)?;
        if self.filters_now(&qdiscs)? != self.filters {
            return Ok(Some("another program changed the filters at clsact egress".to_owned()));
        }
        self.xps_change()
    }

    fn root_change(&mut self) -> Result<Option<String>, FairError> {
        let root = root_of(&self.netlink.qdiscs(self.index)?);
        Ok((root != self.root).then(|| root_difference(self.root.as_ref(), root.as_ref())))
    }

    fn xps_change(&self) -> Result<Option<String>, FairError> {
        let xps = self.sysfs.xps_maps(&self.name)?;
        let changed = xps.iter().find(|map| !self.xps.contains(map));
        Ok(changed.map(|map| format!("another program changed {} of queue {}", map.key.file(), map.queue)))
    }
}

/// Returns no difference if the kernel's list was not consistent. The next check reads the list again.
fn steady(found: Result<Option<String>, FairError>) -> Result<Option<String>, FairError> {
    match found {
        Err(FairError::Netlink(NetlinkError::Unsteady { .. })) => Ok(None),
        found => found,
    }
}

fn foreign(own: &[FilterPlace], mut filters: Vec<FilterState>) -> Vec<FilterState> {
    filters.retain(|filter| !own.iter().any(|place| filter.is_at(*place)));
    filters
}

fn hook_difference(hook: &str, before: &[HookProgram], now: &[HookProgram]) -> String {
    let ids = |programs: &[HookProgram]| programs.iter().map(|program| program.id).collect::<BTreeSet<_>>();
    let (had, has) = (ids(before), ids(now));
    if let Some(program) = now.iter().find(|program| !had.contains(&program.id)) {
        return format!("another process attached a program at {hook}: {program}");
    }
    match before.iter().find(|program| !has.contains(&program.id)) {
        Some(program) => format!("another process detached a program from {hook}: {program}"),
        None => format!("the programs at {hook} were put in another order"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use evenkeel_apply::{Direction, FILTER_HANDLE};

    use super::*;

    #[test]
    fn a_list_that_changed_during_each_dump_is_no_difference() {
        let unsteady = NetlinkError::Unsteady { action: "list qdiscs".to_owned() };
        assert_eq!(steady(Err(unsteady.into())).unwrap(), None);
        let closed =
            NetlinkError::Socket { action: "send a request", source: std::io::Error::other("closed") };
        steady(Err(closed.into())).unwrap_err();
        assert_eq!(steady(Ok(Some("changed".to_owned()))).unwrap().as_deref(), Some("changed"));
    }

    #[test]
    fn a_root_of_the_same_kind_is_named_with_its_handle() {
        let root = |kind: &str, major| Some((kind.to_owned(), Handle::new(major, 0)));
        let words = |before: Option<_>, now: Option<_>| root_difference(before.as_ref(), now.as_ref());
        assert!(words(root("mq", 7), root("mq", 0x4001)).ends_with("mq 7: before, mq 4001: now"));
        assert!(words(root("mq", 7), root("pfifo", 9)).ends_with("mq before, pfifo now"));
        assert!(words(root("mq", 7), None).ends_with("mq before, none now"));
    }

    #[test]
    fn a_filter_of_another_program_may_have_the_handle_of_evenkeels() {
        let filter = |kind: &str, preference, handle| FilterState {
            kind: kind.to_owned(),
            preference,
            handle,
            program: None,
            program_id: None,
        };
        let own = FilterPlace { direction: Direction::Egress, preference: 2 };
        let others = vec![
            filter("bpf", 1, FILTER_HANDLE),
            filter("u32", 2, FILTER_HANDLE),
            filter("bpf", 2, 1),
            filter("bpf", 3, FILTER_HANDLE),
        ];
        let mut all = others.clone();
        all.insert(1, filter("bpf", 2, FILTER_HANDLE));
        assert_eq!(foreign(&[own], all.clone()), others);
        assert_eq!(foreign(&[], all.clone()), all);
    }

    #[test]
    fn who_came_and_who_went_is_named() {
        let program = |id| HookProgram { id, name: format!("p{id}") };
        let words = |before: &[u32], now: &[u32]| {
            let list = |ids: &[u32]| ids.iter().map(|id| program(*id)).collect::<Vec<_>>();
            hook_difference("tcx egress", &list(before), &list(now))
        };
        assert!(words(&[1], &[1, 2]).contains("attached a program at tcx egress: p2 (id 2)"));
        assert!(words(&[1, 2], &[1]).contains("detached a program from tcx egress: p2 (id 2)"));
        assert!(words(&[1, 2], &[2, 1]).contains("another order"));
    }
}
