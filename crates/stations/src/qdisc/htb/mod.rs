//! `htb`: the hierarchical token bucket (`net/sched/sch_htb.c`; Devera, *Hierarchical token bucket theory*,
//! 2002).
//!
//! A class with tokens of its rate and its ceiling may send. A class with tokens of its ceiling only borrows
//! from its parent.
//!
//! - Leaves are at level 0, and roots with children are at level 7.
//! - Each level has one *row* per priority for the classes that may send without borrowing.
//! - A class that borrows is in its parent's *feed* of the class's priority.
//! - The lowest level is served first, and within a level the lowest priority number. Deficit round robin
//!   serves the leaves below.
//!
//! Tokens are picoseconds of transmission, but nanoseconds in the kernel. Not modelled: offload, link layer
//! overheads, and the limit of two ticks for a batch of mode changes.

mod config;
mod members;
#[cfg(test)]
mod tests;
mod waiting;

pub use config::{HtbClass, HtbConfig, HtbContent};

use self::members::Members;
use self::waiting::Waiting;
use super::fifo::Fifo;
use super::queue::NONE;
use super::rate::{Rate, as_tokens, filled};
use super::{AnyDiscipline, Classifier, Dequeued, KindError};
use crate::segment::Segment;
use crate::time::{SECOND, Span, Time};

/// Number of levels of the tree (`TC_HTB_MAXDEPTH`).
const LEVELS: usize = 8;
/// Number of priorities (`TC_HTB_NUMPRIO`).
const PRIORITIES: usize = 8;
/// Limit of negative tokens, and of the tokens that are added in one step (`mbuffer`).
const MOST_TOKENS: i64 = (60 * SECOND) as i64;
/// Retry interval if no class has a time at which it may send (`htb_dequeue`).
const IDLE_WAIT: Span = 5 * SECOND;

/// Limit of the steps of a search for a leaf. No tree needs this number of steps. The limit only
/// ensures that a search ends.
const SEARCH_STEPS: u32 = 65_535;

/// Whether a class may send or borrow (`enum htb_cmode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// The class has no tokens of its ceiling.
    Stopped,
    /// The class has tokens of its ceiling, but not of its rate.
    Borrowing,
    /// The class has tokens of rate and ceiling.
    Sending,
}

#[derive(Clone, Debug)]
struct Class {
    parent: u32,
    level: u8,
    priority: u8,
    mode: Mode,
    /// Bit mask of the active priorities (`prio_activity`): of a leaf with a backlog, its priority; of an
    /// inner class, those of its feeds with members.
    activity: u8,
    /// Index of the class's first feed. The next feeds follow, one per priority. Leaves have no feeds.
    feeds: u32,
    rate: Rate,
    ceiling: Rate,
    burst: i64,
    ceiling_burst: i64,
    tokens: i64,
    ceiling_tokens: i64,
    /// Time at which the tokens were last counted (`t_c`).
    checkpoint: Time,
    quantum: i64,
    deficit: [i64; LEVELS],
    queue: Option<AnyDiscipline>,
}

impl Class {
    /// Returns the mode `elapsed` after the checkpoint, and the time until the missing tokens have arrived.
    /// The time is 0 if the class may send without borrowing (`htb_class_mode`).
    fn mode_after(&self, elapsed: i64, hysteresis: bool) -> (Mode, i64) {
        let ceiling_tokens = self.ceiling_tokens.saturating_add(elapsed);
        // `htb_lowater` and `htb_hiwater`.
        let low = if hysteresis && self.mode != Mode::Stopped { -self.ceiling_burst } else { 0 };
        if ceiling_tokens < low {
            return (Mode::Stopped, -ceiling_tokens);
        }
        let tokens = self.tokens.saturating_add(elapsed);
        let high = if hysteresis && self.mode == Mode::Sending { -self.burst } else { 0 };
        if tokens >= high { (Mode::Sending, 0) } else { (Mode::Borrowing, -tokens) }
    }

    fn elapsed(&self, now: Time) -> i64 {
        as_tokens(now.since(self.checkpoint)).min(MOST_TOKENS)
    }

    /// Charges a segment that was sent with tokens of `level` (`htb_charge_class`).
    fn charge(&mut self, now: Time, level: u8, bytes: u64) {
        let elapsed = self.elapsed(now);
        let least = 1 - MOST_TOKENS;
        if self.level >= level {
            let tokens = filled(self.tokens, elapsed, self.burst);
            self.tokens = tokens.saturating_sub(self.rate.tokens(bytes)).max(least);
        } else {
            self.tokens = self.tokens.saturating_add(elapsed);
        }
        let tokens = filled(self.ceiling_tokens, elapsed, self.ceiling_burst);
        self.ceiling_tokens = tokens.saturating_sub(self.ceiling.tokens(bytes)).max(least);
        self.checkpoint = now;
    }
}

/// Classes of one priority that are served by round robin: a row or a feed (`struct htb_prio`).
#[derive(Clone, Debug)]
struct Feed {
    members: Members,
    pointer: u32,
    /// The last removed member that `pointer` named. Service resumes with this member or its successor.
    last: u32,
}

impl Feed {
    fn new(classes: usize) -> Self {
        Self { members: Members::new(classes), pointer: NONE, last: NONE }
    }

    /// Advances to the next member, or to no member after the last.
    fn advance(&mut self) {
        if self.pointer != NONE {
            self.pointer = self.members.first_from(self.pointer + 1);
        }
    }
}

fn priorities(mut mask: u8) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let priority = mask.trailing_zeros() as usize;
        mask &= mask.wrapping_sub(1);
        (priority < PRIORITIES).then_some(priority)
    })
}

/// Result of a row that returned no segment.
#[derive(Clone, Copy, Debug)]
struct Nothing {
    /// Time at which a shaper below may have a segment.
    until: Option<Time>,
}

#[derive(Clone, Debug)]
pub(super) struct Htb {
    classifier: Classifier,
    classes: Vec<Class>,
    leaves: Vec<u32>,
    /// The rows, level by level, followed by the feeds of classes.
    feeds: Vec<Feed>,
    /// Bit mask of the priorities whose rows have members, per level.
    rows: [u8; LEVELS],
    waiting: Vec<Waiting>,
    direct: Fifo,
    hysteresis: bool,
    segments: usize,
    bytes: u64,
    /// Number of dequeues with a backlog in which no segment was allowed to leave.
    overlimits: u64,
}

impl Htb {
    pub(super) fn new(config: &HtbConfig, seed: u64) -> Result<Self, KindError> {
        let mut classes = Vec::new();
        for root in &config.roots {
            config::build(root, NONE, LEVELS - 1, seed, &mut classes)?;
        }
        let count = classes.len();
        let mut feeds = vec![Feed::new(count); LEVELS * PRIORITIES];
        let mut leaves = Vec::new();
        for (index, class) in classes.iter_mut().enumerate() {
            if class.queue.is_some() {
                leaves.push(index as u32);
            } else {
                class.feeds = feeds.len() as u32;
                feeds.resize(feeds.len() + PRIORITIES, Feed::new(count));
            }
        }
        super::require("htb", "number of leaves", "at least 1", 0, !leaves.is_empty())?;
        Ok(Self {
            classifier: config.classifier.clone(),
            classes,
            leaves,
            feeds,
            rows: [0; LEVELS],
            waiting: vec![Waiting::new(count); LEVELS],
            direct: Fifo::with_segments(config.direct_limit),
            hysteresis: config.hysteresis,
            segments: 0,
            bytes: 0,
            overlimits: 0,
        })
    }

    pub(super) fn enqueue(&mut self, now: Time, segment: Segment, dropped: &mut Vec<Segment>) {
        let Some(leaf) = self.classifier.class(&segment, self.leaves.len()) else {
            let before = (self.direct.len(), self.direct.backlog_bytes());
            self.direct.enqueue(segment, dropped);
            self.recount(before, (self.direct.len(), self.direct.backlog_bytes()));
            return;
        };
        let index = self.leaves[leaf];
        let class = &mut self.classes[index as usize];
        let Some(queue) = &mut class.queue else { return };
        let before = (queue.len(), queue.backlog_bytes());
        queue.enqueue(now, segment, dropped);
        let after = (queue.len(), queue.backlog_bytes());
        if after.0 > 0 && class.activity == 0 {
            class.activity = 1 << class.priority;
            self.activate(index);
        }
        self.recount(before, after);
    }

    pub(super) fn dequeue(&mut self, now: Time, dropped: &mut Vec<Segment>) -> Dequeued {
        if self.segments == 0 {
            return Dequeued::Empty;
        }
        if self.direct.len() > 0 {
            let before = (self.direct.len(), self.direct.backlog_bytes());
            let dequeued = self.direct.dequeue();
            self.recount(before, (self.direct.len(), self.direct.backlog_bytes()));
            return dequeued;
        }
        let mut next = None;
        for level in 0..LEVELS {
            let event = self.run_events(now, level);
            next = earlier(next, event);
            for priority in priorities(self.rows[level]) {
                match self.dequeue_row(now, level, priority, dropped) {
                    Ok(segment) => return Dequeued::Segment(segment),
                    Err(Nothing { until }) => next = earlier(next, until),
                }
            }
        }
        if self.segments == 0 {
            // The leaves have dropped all segments in this call.
            return Dequeued::Empty;
        }
        self.overlimits += 1;
        Dequeued::Wait(next.unwrap_or(now + IDLE_WAIT))
    }

    pub(super) fn overlimits(&self, found: &mut Vec<u64>) {
        found.push(self.overlimits);
        self.classes
            .iter()
            .filter_map(|class| class.queue.as_ref())
            .for_each(|queue| queue.overlimits(found));
    }

    pub(super) fn len(&self) -> usize {
        self.segments
    }

    pub(super) fn backlog_bytes(&self) -> u64 {
        self.bytes
    }

    fn recount(&mut self, before: (usize, u64), after: (usize, u64)) {
        self.segments = self.segments + after.0 - before.0;
        self.bytes = self.bytes + after.1 - before.1;
    }

    fn row(level: usize, priority: usize) -> usize {
        level * PRIORITIES + priority
    }

    fn feed(&self, class: u32, priority: usize) -> usize {
        self.classes[class as usize].feeds as usize + priority
    }

    /// Links an active class and its ancestors, up to a class that does not borrow (`htb_activate_prios`).
    fn activate(&mut self, mut index: u32) {
        let mut mask = self.classes[index as usize].activity;
        loop {
            let Class { mode, parent, .. } = self.classes[index as usize];
            if mode != Mode::Borrowing || parent == NONE || mask == 0 {
                break;
            }
            for priority in priorities(mask) {
                let feed = self.feed(parent, priority);
                if !self.feeds[feed].members.is_empty() {
                    // The parent is already linked in this priority.
                    mask &= !(1 << priority);
                }
                self.feeds[feed].members.insert(index);
            }
            self.classes[parent as usize].activity |= mask;
            index = parent;
        }
        let Class { mode, level, .. } = self.classes[index as usize];
        if mode == Mode::Sending {
            self.rows[usize::from(level)] |= mask;
            for priority in priorities(mask) {
                self.feeds[Self::row(usize::from(level), priority)].members.insert(index);
            }
        }
    }

    /// Undoes [`Self::activate`]. The mode must not have changed since then (`htb_deactivate_prios`).
    fn deactivate(&mut self, mut index: u32) {
        let mut mask = self.classes[index as usize].activity;
        loop {
            let Class { mode, parent, .. } = self.classes[index as usize];
            if mode != Mode::Borrowing || parent == NONE || mask == 0 {
                break;
            }
            let mut emptied = 0;
            for priority in priorities(mask) {
                let feed = self.feed(parent, priority);
                let feed = &mut self.feeds[feed];
                if feed.pointer == index {
                    feed.last = index;
                    feed.pointer = NONE;
                }
                feed.members.remove(index);
                if feed.members.is_empty() {
                    emptied |= 1 << priority;
                }
            }
            mask = emptied;
            self.classes[parent as usize].activity &= !mask;
            index = parent;
        }
        let Class { mode, level, .. } = self.classes[index as usize];
        if mode == Mode::Sending {
            for priority in priorities(mask) {
                let feed = &mut self.feeds[Self::row(usize::from(level), priority)];
                if feed.pointer == index {
                    feed.advance();
                }
                feed.members.remove(index);
                if feed.members.is_empty() {
                    self.rows[usize::from(level)] &= !(1 << priority);
                }
            }
        }
    }

    /// Sets the mode and the links of a class for `elapsed` after its checkpoint. Returns the mode and its
    /// duration (`htb_change_class_mode`).
    fn change_mode(&mut self, index: u32, elapsed: i64) -> (Mode, i64) {
        let class = &mut self.classes[index as usize];
        let (mode, wait) = class.mode_after(elapsed, self.hysteresis);
        if mode != class.mode {
            let active = class.activity != 0;
            if active && class.mode != Mode::Stopped {
                self.deactivate(index);
            }
            self.classes[index as usize].mode = mode;
            if active && mode != Mode::Stopped {
                self.activate(index);
            }
        }
        (mode, wait)
    }

    /// Changes the modes of the level's classes whose wait is over (`htb_do_events`). Returns the time of the
    /// next change; `None` if no class of the level waits.
    fn run_events(&mut self, now: Time, level: usize) -> Option<Time> {
        loop {
            let (at, class) = self.waiting[level].first()?;
            if at > now {
                return Some(at);
            }
            self.waiting[level].remove(class);
            let elapsed = self.classes[class as usize].elapsed(now);
            let (mode, wait) = self.change_mode(class, elapsed);
            if mode != Mode::Sending {
                self.waiting[level].insert(class, now + wait.max(1) as Span);
            }
        }
    }

    /// Returns the next leaf of a row; `None` if the search finds no leaf (`htb_lookup_leaf`).
    fn find_leaf(&mut self, row: usize, priority: usize) -> Option<u32> {
        if self.feeds[row].members.is_empty() {
            return None;
        }
        let mut path = [row; LEVELS];
        let mut depth = 0;
        for _ in 0..SEARCH_STEPS {
            let feed = &mut self.feeds[path[depth]];
            if feed.pointer == NONE && feed.last != NONE {
                feed.pointer = feed.members.first_from(feed.last);
            }
            feed.last = NONE;
            if feed.pointer == NONE {
                // At the end of this feed, return to its start and advance the feed above it.
                feed.pointer = feed.members.first_from(0);
                if depth > 0 {
                    depth -= 1;
                    self.feeds[path[depth]].advance();
                } else if feed.pointer == NONE {
                    return None;
                }
                continue;
            }
            let class = feed.pointer;
            if self.classes[class as usize].level == 0 {
                return Some(class);
            }
            depth += 1;
            *path.get_mut(depth)? = self.feed(class, priority);
        }
        None
    }

    /// Advances past a leaf: in the row at level 0, otherwise in the feed of its parent.
    fn pass_turn(&mut self, leaf: u32, level: usize, priority: usize) {
        let feed = if level == 0 {
            Self::row(0, priority)
        } else {
            self.feed(self.classes[leaf as usize].parent, priority)
        };
        self.feeds[feed].advance();
    }

    /// Dequeues a segment of the next leaf of a row (`htb_dequeue_tree`).
    fn dequeue_row(
        &mut self,
        now: Time,
        level: usize,
        priority: usize,
        dropped: &mut Vec<Segment>,
    ) -> Result<Segment, Nothing> {
        let row = Self::row(level, priority);
        let mut nothing = Nothing { until: None };
        let mut leaf = self.find_leaf(row, priority).ok_or(nothing)?;
        let mut start = leaf;
        loop {
            let Some(queue) = &mut self.classes[leaf as usize].queue else { return Err(nothing) };
            let before = (queue.len(), queue.backlog_bytes());
            if before.0 == 0 {
                // The leaf has dropped its backlog.
                self.retire(leaf);
                let next = self.find_leaf(row, priority).ok_or(nothing)?;
                if leaf == start {
                    start = next;
                }
                leaf = next;
                continue;
            }
            let dequeued = queue.dequeue(now, dropped);
            let after = (queue.len(), queue.backlog_bytes());
            self.recount(before, after);
            match dequeued {
                Dequeued::Segment(segment) => {
                    self.account(now, leaf, level, priority, &segment);
                    return Ok(segment);
                }
                Dequeued::Wait(time) => nothing.until = earlier(nothing.until, Some(time)),
                Dequeued::Empty => {}
            }
            self.pass_turn(leaf, level, priority);
            leaf = self.find_leaf(row, priority).ok_or(nothing)?;
            if leaf == start {
                return Err(nothing);
            }
        }
    }

    fn retire(&mut self, leaf: u32) {
        self.deactivate(leaf);
        self.classes[leaf as usize].activity = 0;
    }

    /// Charges a segment to its leaf and all ancestors, and updates their modes.
    fn account(&mut self, now: Time, leaf: u32, level: usize, priority: usize, segment: &Segment) {
        let bytes = segment.frame_bytes();
        let class = &mut self.classes[leaf as usize];
        let deficit = &mut class.deficit[level];
        *deficit -= i64::from(bytes);
        let used_up = *deficit < 0;
        if used_up {
            *deficit += class.quantum;
        }
        let empty = class.queue.as_ref().is_none_or(|queue| queue.len() == 0);
        if used_up {
            self.pass_turn(leaf, level, priority);
        }
        if empty {
            self.retire(leaf);
        }
        let mut index = leaf;
        while let Some(class) = self.classes.get_mut(index as usize) {
            class.charge(now, level as u8, u64::from(bytes));
            let (old, own_level, parent) = (class.mode, usize::from(class.level), class.parent);
            let (mode, wait) = self.change_mode(index, 0);
            if mode != old {
                if old != Mode::Sending {
                    self.waiting[own_level].remove(index);
                }
                if mode != Mode::Sending {
                    self.waiting[own_level].insert(index, now + wait.max(1) as Span);
                }
            }
            index = parent;
        }
    }
}

fn earlier(a: Option<Time>, b: Option<Time>) -> Option<Time> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        _ => a.or(b),
    }
}
