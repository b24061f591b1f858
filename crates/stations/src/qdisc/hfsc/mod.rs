//! `hfsc`: the hierarchical fair service curve (`net/sched/sch_hfsc.c`; Stoica, Zhang, Ng, *A
//! Hierarchical Fair Service Curve Algorithm for Link-Sharing, Real-Time and Priority Services*,
//! SIGCOMM 1997).
//!
//! A leaf with a real-time curve has an eligible time and a deadline for its head. Among the eligible
//! leaves, the leaf with the earliest deadline is served first. If no leaf is eligible, virtual times
//! share the rest. From the root down, the qdisc then selects the active class with the smallest
//! virtual time whose upper limit allows service.
//!
//! Times are picoseconds; the kernel uses units of 64 ns. The simulator searches classes linearly; the kernel
//! uses trees. Not modelled: leaves with a discipline other than `pfifo`, filters, changes of curves.

mod curve;
#[cfg(test)]
mod tests;

use self::curve::Curve;
use super::queue::{Backlog, Item, NONE, Queue};
use super::{Classifier, Dequeued, KindError, require};
use crate::segment::Segment;
use crate::time::{Span, Time};

/// Maximum depth of the tree. The kernel has no such limit.
const MOST_LEVELS: u32 = 16;
/// Index of the root class, the ancestor of all other classes.
const ROOT: usize = 0;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HfscConfig {
    /// Selects the leaf. Leaves are numbered in order of definition.
    pub classifier: Classifier,
    pub classes: Vec<HfscClass>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceCurve {
    /// Initial rate in bit/s (`m1`).
    pub first: u64,
    /// Duration of the initial rate in picoseconds (`d`).
    pub delay: Span,
    /// Rate after the initial rate in bit/s (`m2`).
    pub second: u64,
}

/// A class of `hfsc`. It has a real-time curve, a link-share curve, or both curves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HfscClass {
    /// Guaranteed service of a leaf (`rt`).
    pub real_time: Option<ServiceCurve>,
    /// Share of the excess, relative to the sibling classes (`ls`).
    pub link_share: Option<ServiceCurve>,
    /// Upper bound of the total service by link sharing (`ul`).
    pub upper_limit: Option<ServiceCurve>,
    pub content: HfscContent,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HfscContent {
    /// A class with a queue. The value is the limit of the queue in segments.
    Leaf(u32),
    Inner(Vec<HfscClass>),
}

#[derive(Clone, Debug, Default)]
struct Class {
    parent: u32,
    children: Vec<u32>,
    real_time: Option<Curve>,
    link_share: Option<Curve>,
    upper_limit: Option<Curve>,
    deadline_curve: Curve,
    eligible_curve: Curve,
    virtual_curve: Curve,
    limit_curve: Curve,
    /// Bytes sent by the real-time criterion (`cl_cumul`), and total bytes (`cl_total`).
    real_time_bytes: u64,
    bytes: u64,
    eligible: u64,
    deadline: u64,
    /// Whether the class can become eligible: it has a backlog and a real-time curve.
    is_eligible: bool,
    virtual_time: u64,
    /// Correction of `virtual_time` for times in which an upper limit blocked the class (`cl_vtadj`).
    virtual_adjustment: u64,
    /// Insertion number of an active class. At equal virtual times, the smaller number is first. `None`
    /// if passive.
    active_order: Option<u64>,
    /// Times from which upper limits allow service: to the class by its own limit (`cl_myf`), to the class by
    /// all limits on it and below it (`cl_f`), and to the earliest child (`cl_cfmin`).
    own_fit: u64,
    fit: u64,
    children_fit: u64,
    /// Largest virtual time at which a child was selected in the present active period (`cl_cvtmin`), and
    /// largest virtual time of a child that became passive (`cl_cvtoff`).
    children_least: u64,
    children_offset: u64,
    /// Number of active periods of the class, and the parent's number when the class became active.
    period: u32,
    parent_period: u32,
    active_children: u32,
    queue: Option<Queue>,
    limit: usize,
}

#[derive(Clone, Debug)]
pub(super) struct Hfsc {
    classifier: Classifier,
    classes: Vec<Class>,
    leaves: Vec<u32>,
    insertions: u64,
    backlog: Backlog,
    overlimits: u64,
}

impl Hfsc {
    pub(super) fn new(config: &HfscConfig) -> Result<Self, KindError> {
        let mut hfsc = Self {
            classifier: config.classifier.clone(),
            classes: vec![Class { parent: NONE, ..Class::default() }],
            leaves: Vec::new(),
            insertions: 0,
            backlog: Backlog::default(),
            overlimits: 0,
        };
        hfsc.add(&config.classes, ROOT, 1)?;
        require("hfsc", "number of leaves", "at least 1", 0, !hfsc.leaves.is_empty())?;
        Ok(hfsc)
    }

    fn add(&mut self, classes: &[HfscClass], parent: usize, level: u32) -> Result<(), KindError> {
        require("hfsc", "depth of the tree", "at most 16", level.into(), level <= MOST_LEVELS)?;
        for config in classes {
            let curves = config.real_time.is_some() || config.link_share.is_some();
            require("hfsc", "number of curves rt or ls", "at least 1", 0, curves)?;
            let index = self.classes.len();
            let curve = |curve: &Option<ServiceCurve>| curve.as_ref().map(Curve::new);
            let (real_time, link_share) = (curve(&config.real_time), curve(&config.link_share));
            let upper_limit = curve(&config.upper_limit);
            let real_time = real_time.filter(|_| matches!(config.content, HfscContent::Leaf(_)));
            self.classes.push(Class {
                parent: parent as u32,
                deadline_curve: real_time.unwrap_or_default(),
                virtual_curve: link_share.unwrap_or_default(),
                limit_curve: upper_limit.unwrap_or_default(),
                real_time,
                link_share,
                upper_limit,
                ..Class::default()
            });
            self.classes[parent].children.push(index as u32);
            match &config.content {
                HfscContent::Leaf(limit) => {
                    self.classes[index].queue = Some(Queue::default());
                    self.classes[index].limit = *limit as usize;
                    self.leaves.push(index as u32);
                }
                HfscContent::Inner(children) => self.add(children, index, level + 1)?,
            }
        }
        Ok(())
    }

    pub(super) fn enqueue(&mut self, now: Time, segment: Segment, dropped: &mut Vec<Segment>) {
        let leaf = self.classifier.class(&segment, self.leaves.len()).map(|leaf| self.leaves[leaf] as usize);
        let item = Item::from(segment);
        let Some(index) = leaf else {
            dropped.push(segment);
            return;
        };
        let class = &mut self.classes[index];
        let Some(queue) = class.queue.as_mut().filter(|queue| queue.len() < class.limit) else {
            dropped.push(segment);
            return;
        };
        let first = queue.is_empty();
        queue.push(item);
        self.backlog.add(&item);
        if first {
            self.become_eligible(index, now.0, item.bytes);
            if self.classes[index].link_share.is_some() {
                self.become_active(index, now.0);
            }
        }
    }

    pub(super) fn dequeue(&mut self, now: Time) -> Dequeued {
        if self.backlog.segments == 0 {
            return Dequeued::Empty;
        }
        let real_time = self.most_urgent(now.0);
        let Some(index) = real_time.or_else(|| self.least_virtual_time(now.0)) else {
            self.overlimits += 1;
            return Dequeued::Wait(Time(self.next_change().max(now.0 + 1)));
        };
        let Some(item) = self.classes[index].queue.as_mut().and_then(Queue::pop) else {
            return Dequeued::Empty;
        };
        self.backlog.remove(&item);
        self.charge(index, u64::from(item.bytes));
        let class = &mut self.classes[index];
        if real_time.is_some() {
            class.real_time_bytes += u64::from(item.bytes);
        }
        if class.real_time.is_some() {
            match class.queue.as_ref().map_or(0, Queue::head_bytes) {
                0 => class.is_eligible = false,
                next => {
                    if real_time.is_some() {
                        class.eligible = class.eligible_curve.time_of(class.real_time_bytes);
                    }
                    class.deadline = class.deadline_curve.time_of(class.real_time_bytes + u64::from(next));
                }
            }
        }
        Dequeued::Segment(item.segment)
    }

    pub(super) fn len(&self) -> usize {
        self.backlog.segments
    }

    pub(super) fn backlog_bytes(&self) -> u64 {
        self.backlog.bytes
    }

    pub(super) fn overlimits(&self) -> u64 {
        self.overlimits
    }

    /// Returns the eligible leaf with the earliest deadline (`eltree_get_mindl`).
    fn most_urgent(&self, now: u64) -> Option<usize> {
        let eligible = self.leaves.iter().map(|leaf| *leaf as usize).filter(|leaf| {
            let class = &self.classes[*leaf];
            class.is_eligible && class.eligible <= now
        });
        eligible.min_by_key(|leaf| (self.classes[*leaf].deadline, self.classes[*leaf].eligible))
    }

    /// Returns the leaf that the virtual times select, from the root down (`vttree_get_minvt`); `None` if no
    /// leaf is active or upper limits allow no service.
    fn least_virtual_time(&mut self, now: u64) -> Option<usize> {
        let mut index = ROOT;
        if self.classes[ROOT].children_fit > now {
            return None;
        }
        while self.classes[index].queue.is_none() {
            let fitting = self.active_children(index).filter(|child| self.classes[*child].fit <= now);
            let next = fitting.min_by_key(|child| {
                let class = &self.classes[*child];
                (class.virtual_time, class.active_order)
            })?;
            let virtual_time = self.classes[next].virtual_time;
            let least = &mut self.classes[index].children_least;
            *least = virtual_time.max(*least);
            index = next;
        }
        Some(index)
    }

    fn active_children(&self, index: usize) -> impl Iterator<Item = usize> {
        let children = self.classes[index].children.iter().map(|child| *child as usize);
        children.filter(|child| self.classes[*child].active_order.is_some())
    }

    /// Returns the earliest time at which a class may send again (`hfsc_schedule_watchdog`).
    fn next_change(&self) -> u64 {
        let leaves = self.leaves.iter().map(|leaf| &self.classes[*leaf as usize]);
        let eligible = leaves.filter(|class| class.is_eligible).map(|class| class.eligible).min();
        let fit = Some(self.classes[ROOT].children_fit).filter(|fit| *fit > 0);
        eligible.into_iter().chain(fit).min().unwrap_or(curve::NEVER)
    }

    /// Sets the eligible time and the deadline of a leaf that was empty when a segment arrived (`init_ed`).
    fn become_eligible(&mut self, index: usize, now: u64, bytes: u32) {
        let class = &mut self.classes[index];
        let Some(curve) = class.real_time else { return };
        class.deadline_curve.restart(&curve, now, class.real_time_bytes);
        class.eligible_curve =
            if curve.is_convex() { class.deadline_curve.linear() } else { class.deadline_curve };
        class.eligible = class.eligible_curve.time_of(class.real_time_bytes);
        class.deadline = class.deadline_curve.time_of(class.real_time_bytes + u64::from(bytes));
        class.is_eligible = true;
    }

    /// Activates a leaf and its ancestors among their siblings (`init_vf`).
    fn become_active(&mut self, mut index: usize, now: u64) {
        let mut newly = true;
        while index != ROOT {
            let parent = self.classes[index].parent as usize;
            if newly {
                let class = &mut self.classes[index];
                newly = class.active_children == 0;
                class.active_children += 1;
            }
            if newly {
                self.start_period(index, parent, now);
            }
            let class = &mut self.classes[index];
            class.fit = class.own_fit.max(class.children_fit);
            self.update_children_fit(parent);
            index = parent;
        }
    }

    /// Starts an active period of a class: sets its virtual time relative to its siblings.
    fn start_period(&mut self, index: usize, parent: usize, now: u64) {
        let latest = self.active_children(parent).map(|child| self.classes[child].virtual_time).max();
        self.insertions += 1;
        let insertions = self.insertions;
        let above = &mut self.classes[parent];
        if latest.is_none() {
            above.children_least = 0;
        }
        let (least, offset) = (above.children_least, above.children_offset);
        // If the parent is passive, its period starts after this call.
        let parent_period = above.period + u32::from(above.active_children == 0);
        let current_period = above.period;
        let class = &mut self.classes[index];
        match latest {
            Some(latest) => {
                // The virtual time is halfway between the smallest and the largest virtual time, or the
                // largest if the smallest is 0. It never decreases within a period.
                let time = if least != 0 { least / 2 + latest / 2 } else { latest };
                if current_period != class.parent_period || time > class.virtual_time {
                    class.virtual_time = time;
                }
            }
            None => class.virtual_time = offset,
        }
        if let Some(curve) = class.link_share {
            class.virtual_curve.restart(&curve, class.virtual_time, class.bytes);
        }
        class.virtual_adjustment = 0;
        class.period += 1;
        class.parent_period = parent_period;
        class.fit = 0;
        class.active_order = Some(insertions);
        if let Some(curve) = class.upper_limit {
            class.limit_curve.restart(&curve, now, class.bytes);
            class.own_fit = class.limit_curve.time_of(class.bytes);
        }
    }

    /// Updates virtual times and upper limits of a leaf and its ancestors after a segment was sent
    /// (`update_vf`).
    fn charge(&mut self, mut index: usize, bytes: u64) {
        let leaf = &self.classes[index];
        let mut passive = leaf.link_share.is_some() && leaf.queue.as_ref().is_none_or(Queue::is_empty);
        while index != ROOT {
            let parent = self.classes[index].parent as usize;
            let (least, insertions) = (self.classes[parent].children_least, self.insertions + 1);
            let class = &mut self.classes[index];
            class.bytes += bytes;
            if class.link_share.is_none() || class.active_children == 0 {
                index = parent;
                continue;
            }
            if passive {
                class.active_children -= 1;
                passive = class.active_children == 0;
            }
            class.virtual_time =
                class.virtual_curve.time_of(class.bytes).saturating_add(class.virtual_adjustment);
            if class.virtual_time < least {
                class.virtual_adjustment =
                    class.virtual_adjustment.saturating_add(least - class.virtual_time);
                class.virtual_time = least;
            }
            if passive {
                class.active_order = None;
                let virtual_time = class.virtual_time;
                let above = &mut self.classes[parent];
                above.children_offset = above.children_offset.max(virtual_time);
            } else {
                class.active_order = Some(insertions);
                self.insertions = insertions;
                let class = &mut self.classes[index];
                if class.upper_limit.is_some() {
                    class.own_fit = class.limit_curve.time_of(class.bytes);
                }
                class.fit = class.own_fit.max(class.children_fit);
            }
            self.update_children_fit(parent);
            index = parent;
        }
    }

    /// Updates the time from which upper limits allow service to the earliest child of a class
    /// (`update_cfmin`).
    fn update_children_fit(&mut self, index: usize) {
        let fit = self.active_children(index).map(|child| self.classes[child].fit).min();
        self.classes[index].children_fit = fit.unwrap_or(0);
    }
}
