//! The schedule of aggregates: groups, their slots and their states.

use super::super::queue::NONE;

/// Fractional bits of virtual times (`FRAC_BITS`).
const FRACTION_BITS: u32 = 30;
pub(super) const ONE: u32 = 1 << FRACTION_BITS;
/// Longest segment, as a power of two of bytes. The kernel's `QFQ_MTU_SHIFT` is 16, which is less than a
/// segment of 64 KiB with the headers of all its packets. Since 2023 the kernel drops such segments.
pub(super) const LONGEST_SHIFT: u32 = 17;
/// Largest number of classes of an aggregate (`QFQ_MAX_AGG_CLASSES`), as a power of two.
const AGGREGATE_SHIFT: u32 = 3;
const MAX_AGGREGATE_CLASSES: u32 = 1 << AGGREGATE_SHIFT;
/// Number of slots of a group (`QFQ_MAX_SLOTS`).
const SLOTS: u32 = 32;
/// Highest index of a group (`QFQ_MAX_INDEX`).
const MAX_INDEX: u32 = 24;
/// Size of a slot of group 0, as a power of two.
pub(super) const MIN_SLOT_SHIFT: u32 = FRACTION_BITS + LONGEST_SHIFT + AGGREGATE_SHIFT - MAX_INDEX;

/// Classes that the schedule serves as one.
#[derive(Clone, Debug)]
pub(super) struct Aggregate {
    /// Virtual times of start and finish (`S`, `F`).
    pub(super) start: u64,
    pub(super) finish: u64,
    pub(super) group: u32,
    pub(super) weight: u32,
    pub(super) longest: u32,
    /// `ONE` divided by the total weight of the classes.
    pub(super) inverse_weight: u32,
    /// Number of classes; 0 is an unused entry.
    pub(super) classes: u32,
    /// Bytes of one service: a longest segment per class.
    pub(super) budget_max: u32,
    pub(super) initial_budget: u32,
    pub(super) budget: u32,
    /// First and last class with segments, in order of service.
    pub(super) first: u32,
    pub(super) last: u32,
    pub(super) next: u32,
}

impl Aggregate {
    pub(super) fn is_active(&self) -> bool {
        self.first != NONE
    }

    pub(super) fn recharge(&mut self) {
        self.initial_budget = self.budget_max;
        self.budget = self.budget_max;
    }

    /// Sets the finish time from the service received (`charge_actual_service`).
    pub(super) fn charge(&mut self) {
        let received = self.budget_max.min(self.initial_budget - self.budget);
        self.set_finish(received);
    }

    /// Sets the finish time as if the whole budget will be used.
    pub(super) fn plan(&mut self) {
        self.set_finish(self.budget_max);
    }

    fn set_finish(&mut self, bytes: u32) {
        self.finish = self.start.wrapping_add(u64::from(bytes) * u64::from(self.inverse_weight));
    }
}

#[derive(Clone, Debug)]
struct Group {
    /// Virtual times of start and finish, multiples of the slot size.
    start: u64,
    finish: u64,
    shift: u32,
    /// Index of the slot of `start`.
    front: u32,
    /// Bit mask of the slots with aggregates, counted from the front.
    full: u64,
    slots: [u32; SLOTS as usize],
}

impl Group {
    fn round_down(&self, time: u64) -> u64 {
        time & !((1 << self.shift) - 1)
    }

    fn set_start(&mut self, rounded: u64) {
        self.start = rounded;
        self.finish = rounded.wrapping_add(2 << self.shift);
    }

    fn slot(&self, offset: u32) -> usize {
        ((self.front + offset) % SLOTS) as usize
    }
}

/// States of a group with the kernel's numbers: bit 0 is "ineligible", bit 1 is "blocked".
const ELIGIBLE_READY: usize = 0;
const INELIGIBLE_READY: usize = 1;
const ELIGIBLE_BLOCKED: usize = 2;
const INELIGIBLE_BLOCKED: usize = 3;

/// Returns whether virtual time `a` is after `b`. Virtual times wrap.
pub(super) fn after(a: u64, b: u64) -> bool {
    (a.wrapping_sub(b) as i64) > 0
}

fn mask_from(bitmap: u32, from: u32) -> u32 {
    bitmap & !((1 << from) - 1)
}

/// Returns the group of aggregates that finish `budget` / weight after their start (`qfq_calc_index`).
pub(super) fn group_index(inverse_weight: u32, budget: u32) -> u32 {
    let slot_size = u64::from(budget) * u64::from(inverse_weight);
    let scaled = slot_size >> MIN_SLOT_SHIFT;
    if scaled == 0 {
        return 0;
    }
    let index = scaled.ilog2() + 1;
    let exact = slot_size == 1 << (index + MIN_SLOT_SHIFT - 1);
    (index - u32::from(exact)).min(MAX_INDEX)
}

#[derive(Clone, Debug)]
pub(super) struct Schedule {
    pub(super) aggregates: Vec<Aggregate>,
    groups: Vec<Group>,
    /// Bit mask of the groups in each state.
    states: [u32; 4],
    /// Virtual time (`V`).
    pub(super) virtual_time: u64,
    /// Virtual time at the last update of eligible groups (`oldV`).
    last_virtual_time: u64,
    /// The aggregate in service, which is in no group.
    pub(super) in_service: u32,
}

impl Schedule {
    pub(super) fn new(classes: usize) -> Self {
        let group = |index| Group {
            start: 0,
            finish: 0,
            shift: MIN_SLOT_SHIFT + index,
            front: 0,
            full: 0,
            slots: [NONE; SLOTS as usize],
        };
        Self {
            // Room for one aggregate per class, and one more: a class that moves to a new aggregate
            // still has its old aggregate.
            aggregates: Vec::with_capacity(classes + 1),
            groups: (0..=MAX_INDEX).map(group).collect(),
            states: [0; 4],
            virtual_time: 0,
            last_virtual_time: 0,
            in_service: NONE,
        }
    }

    pub(super) fn pass(&mut self, span: u64) {
        self.virtual_time = self.virtual_time.wrapping_add(span);
    }

    /// Returns an aggregate with room for one more class of this `longest` segment and weight. Creates
    /// the aggregate if none exists.
    pub(super) fn find_aggregate(&mut self, longest: u32, weight: u32) -> u32 {
        let fits = |aggregate: &Aggregate| {
            (1..MAX_AGGREGATE_CLASSES).contains(&aggregate.classes)
                && aggregate.longest == longest
                && aggregate.weight == weight
        };
        if let Some(index) = self.aggregates.iter().position(fits) {
            return index as u32;
        }
        let aggregate = Aggregate {
            start: 0,
            finish: 0,
            group: group_index(ONE / weight, longest),
            weight,
            longest,
            inverse_weight: 0,
            classes: 0,
            budget_max: 0,
            initial_budget: 0,
            budget: 0,
            first: NONE,
            last: NONE,
            next: NONE,
        };
        match self.aggregates.iter().position(|aggregate| aggregate.classes == 0) {
            Some(index) => {
                self.aggregates[index] = aggregate;
                index as u32
            }
            None => {
                self.aggregates.push(aggregate);
                (self.aggregates.len() - 1) as u32
            }
        }
    }

    /// Changes the number of classes in an aggregate (`qfq_update_agg`).
    pub(super) fn resize(&mut self, index: u32, change: i32) {
        let aggregate = &mut self.aggregates[index as usize];
        aggregate.classes = aggregate.classes.saturating_add_signed(change);
        if aggregate.classes > 0 {
            aggregate.budget_max = aggregate.classes * aggregate.longest;
            aggregate.inverse_weight = ONE / (aggregate.weight * aggregate.classes);
        }
    }

    /// Schedules an idle aggregate when a segment arrives (`qfq_activate_agg`). If no aggregate is in
    /// service, this aggregate enters service at once.
    pub(super) fn activate(&mut self, index: u32) {
        self.aggregates[index as usize].recharge();
        self.update_start(index);
        self.aggregates[index as usize].plan();
        if self.in_service == NONE {
            self.in_service = index;
            self.virtual_time = self.aggregates[index as usize].start;
            self.last_virtual_time = self.virtual_time;
        } else if self.in_service != index {
            self.place(index);
        }
    }

    /// Sets the start of an aggregate that was idle (`qfq_update_start`).
    ///
    /// - The start is the aggregate's last finish, if that time is in the near future.
    /// - If another group would block the aggregate, the start is the finish of that group or an
    ///   earlier limit. Blocked groups then stay in order.
    /// - Otherwise the start is the present virtual time.
    fn update_start(&mut self, index: u32) {
        let aggregate = &self.aggregates[index as usize];
        let group = &self.groups[aggregate.group as usize];
        let rounded = group.round_down(aggregate.finish);
        let limit = group.round_down(self.virtual_time).wrapping_add(1 << group.shift);
        let stale = !after(aggregate.finish, self.virtual_time) || after(rounded, limit);
        let start = if stale {
            let ready = mask_from(self.states[ELIGIBLE_READY], aggregate.group);
            let blocking = (ready != 0).then(|| self.groups[ready.trailing_zeros() as usize].finish);
            match blocking {
                Some(finish) if after(rounded, finish) => {
                    if after(limit, finish) {
                        finish
                    } else {
                        limit
                    }
                }
                _ => self.virtual_time,
            }
        } else {
            aggregate.finish
        };
        self.aggregates[index as usize].start = start;
    }

    /// Inserts an aggregate into its group by its start (`qfq_schedule_agg`).
    pub(super) fn place(&mut self, index: u32) {
        let number = self.aggregates[index as usize].group;
        let group = &mut self.groups[number as usize];
        let start = self.aggregates[index as usize].start;
        let rounded = group.round_down(start);
        if group.full != 0 {
            if !after(group.start, start) {
                self.insert(number, index, rounded);
                return;
            }
            // Make room for slots before the present front. In theory one slot suffices. An aggregate
            // that does not fit starts with the first possible slot.
            let slots = group.start.wrapping_sub(rounded) >> group.shift;
            let room = u64::from(group.full.leading_zeros()).saturating_sub(u64::from(u64::BITS - SLOTS));
            let slots = slots.min(room) as u32;
            group.full <<= slots;
            group.front = (group.front + SLOTS - slots) % SLOTS;
            let rounded = group.start.wrapping_sub(u64::from(slots) << group.shift);
            group.set_start(rounded);
            self.states[INELIGIBLE_READY] &= !(1 << number);
            self.states[INELIGIBLE_BLOCKED] &= !(1 << number);
            self.states[ELIGIBLE_READY] &= !(1 << number);
            self.states[ELIGIBLE_BLOCKED] &= !(1 << number);
        } else {
            let idle = self.states[ELIGIBLE_READY] == 0 && self.in_service == NONE;
            if idle && after(rounded, self.virtual_time) {
                self.virtual_time = rounded;
            }
            group.set_start(rounded);
        }
        self.enter_state(number);
        let front = self.groups[number as usize].start;
        self.insert(number, index, if after(front, rounded) { front } else { rounded });
    }

    /// Inserts an aggregate into the slot of its rounded start (`qfq_slot_insert`). If that is beyond the
    /// last slot, the aggregate starts earlier.
    fn insert(&mut self, number: u32, index: u32, rounded: u64) {
        let group = &mut self.groups[number as usize];
        let aggregate = &mut self.aggregates[index as usize];
        let mut offset = rounded.wrapping_sub(group.start) >> group.shift;
        let last = u64::from(SLOTS - 2);
        if offset > last {
            let excess = (offset - last) << group.shift;
            aggregate.start = aggregate.start.wrapping_sub(excess);
            aggregate.finish = aggregate.finish.wrapping_sub(excess);
            offset = last;
        }
        let slot = group.slot(offset as u32);
        aggregate.next = std::mem::replace(&mut group.slots[slot], index);
        group.full |= 1 << offset;
    }

    /// Sets the state of a group (`qfq_calc_state`).
    fn enter_state(&mut self, number: u32) {
        let group = &self.groups[number as usize];
        let mut state = usize::from(after(group.start, self.virtual_time));
        let ready = mask_from(self.states[ELIGIBLE_READY], number);
        if ready != 0 && after(group.finish, self.groups[ready.trailing_zeros() as usize].finish) {
            state |= ELIGIBLE_BLOCKED;
        }
        self.states[state] |= 1 << number;
    }

    fn leave_states(&mut self, number: u32) {
        for state in &mut self.states {
            *state &= !(1 << number);
        }
    }

    fn move_groups(&mut self, mask: u32, from: usize, to: usize) {
        self.states[to] |= self.states[from] & mask;
        self.states[from] &= !mask;
    }

    /// Unblocks the groups below a served group if their blocking condition has changed
    /// (`qfq_unblock_groups`).
    fn unblock(&mut self, number: u32, old_finish: u64) {
        let ready = mask_from(self.states[ELIGIBLE_READY], number + 1);
        if ready != 0 && !after(self.groups[ready.trailing_zeros() as usize].finish, old_finish) {
            return;
        }
        let below = (1 << number) - 1;
        self.move_groups(below, ELIGIBLE_BLOCKED, ELIGIBLE_READY);
        self.move_groups(below, INELIGIBLE_BLOCKED, INELIGIBLE_READY);
    }

    /// Advances the virtual time if no group is both eligible and ready. Then makes groups eligible whose
    /// start has been reached (`qfq_update_eligible`, `qfq_make_eligible`).
    fn update_eligible(&mut self) {
        let ineligible = self.states[INELIGIBLE_READY] | self.states[INELIGIBLE_BLOCKED];
        if ineligible == 0 {
            return;
        }
        if self.states[ELIGIBLE_READY] == 0 {
            let start = self.groups[ineligible.trailing_zeros() as usize].start;
            if after(start, self.virtual_time) {
                self.virtual_time = start;
            }
        }
        let changed = (self.virtual_time ^ self.last_virtual_time) >> MIN_SLOT_SHIFT;
        if changed != 0 {
            // Group i starts at multiples of 2^i slots of group 0. A group becomes eligible if its bit or a
            // higher bit of the virtual time has flipped.
            let position = changed.ilog2() + 1;
            let mask = if position > 31 { u32::MAX } else { (1 << position) - 1 };
            self.move_groups(mask, INELIGIBLE_READY, ELIGIBLE_READY);
            self.move_groups(mask, INELIGIBLE_BLOCKED, ELIGIBLE_BLOCKED);
        }
    }

    /// Removes the next aggregate to serve from the schedule (`qfq_choose_next_agg`). Returns `NONE` if no
    /// group is both eligible and ready.
    pub(super) fn choose_next(&mut self) -> u32 {
        self.update_eligible();
        self.last_virtual_time = self.virtual_time;
        let ready = self.states[ELIGIBLE_READY];
        if ready == 0 {
            return NONE;
        }
        let number = ready.trailing_zeros();
        let group = &mut self.groups[number as usize];
        let old_finish = group.finish;
        let slot = group.slot(0);
        let index = group.slots[slot];
        let Some(aggregate) = self.aggregates.get(index as usize) else { return NONE };
        group.slots[slot] = aggregate.next;
        if aggregate.next == NONE {
            group.full &= !1;
        }
        if let Some(start) = self.scan(number) {
            let group = &mut self.groups[number as usize];
            let rounded = group.round_down(start);
            if group.start == rounded {
                return index;
            }
            group.set_start(rounded);
            self.states[ELIGIBLE_READY] &= !(1 << number);
            self.enter_state(number);
        } else {
            self.states[ELIGIBLE_READY] &= !(1 << number);
        }
        self.unblock(number, old_finish);
        index
    }

    /// Makes the first slot with aggregates the front (`qfq_slot_scan`). Returns the start of an aggregate in
    /// this slot; `None` if the group is empty.
    fn scan(&mut self, number: u32) -> Option<u64> {
        let group = &mut self.groups[number as usize];
        if group.full == 0 {
            return None;
        }
        let offset = group.full.trailing_zeros();
        group.front = (group.front + offset) % SLOTS;
        group.full >>= offset;
        let index = group.slots[group.slot(0)];
        Some(self.aggregates.get(index as usize)?.start)
    }

    /// Removes an aggregate without active classes from the schedule (`qfq_deactivate_agg`).
    pub(super) fn deactivate(&mut self, index: u32) {
        if index == self.in_service {
            self.aggregates[index as usize].charge();
            self.in_service = self.choose_next();
            return;
        }
        let start = self.aggregates[index as usize].start;
        self.aggregates[index as usize].finish = start;
        let number = self.aggregates[index as usize].group;
        self.remove_from_slot(number, index);
        let group = &self.groups[number as usize];
        if group.full == 0 {
            self.unblock_after_removal(number);
            self.leave_states(number);
        } else if group.full & 1 == 0
            && let Some(start) = self.scan(number)
        {
            let group = &mut self.groups[number as usize];
            let rounded = group.round_down(start);
            if group.start != rounded {
                group.set_start(rounded);
                self.leave_states(number);
                self.enter_state(number);
            }
        }
    }

    fn remove_from_slot(&mut self, number: u32, index: u32) {
        let next = self.aggregates[index as usize].next;
        let group = &mut self.groups[number as usize];
        let rounded = group.round_down(self.aggregates[index as usize].start);
        let offset = (rounded.wrapping_sub(group.start) >> group.shift) as u32;
        let slot = group.slot(offset);
        let (mut previous, mut position) = (NONE, group.slots[slot]);
        while position != NONE && position != index {
            previous = position;
            position = self.aggregates[position as usize].next;
        }
        if previous != NONE {
            self.aggregates[previous as usize].next = next;
        } else {
            group.slots[slot] = next;
            if next == NONE {
                group.full &= !(1 << offset);
            }
        }
    }

    /// Unblocks the groups that only the ready group `number` blocks.
    fn unblock_after_removal(&mut self, number: u32) {
        let ready = self.states[ELIGIBLE_READY];
        if ready & (1 << number) == 0 || mask_from(ready, number + 1) != 0 {
            return;
        }
        let below = ready & ((1 << number) - 1);
        let mask = if below == 0 { u32::MAX } else { !((1 << below.ilog2()) - 1) };
        self.move_groups(mask, ELIGIBLE_BLOCKED, ELIGIBLE_READY);
        self.move_groups(mask, INELIGIBLE_BLOCKED, INELIGIBLE_READY);
    }
}
