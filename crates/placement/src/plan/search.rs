//! The search for a placement.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::{BTreeSet, VecDeque};

use super::cost::{alone, between, has_applications, of};
use super::{Placement, Problem, Slot, Unit};

/// Costs with a smaller difference count as equal, because costs are sums of the same terms in another
/// order.
const SAME: f64 = 1e-9;
/// Maximum number of improvement rounds for one initial placement. Each round lowers the cost, and few
/// rounds are needed.
const MOST_ROUNDS: usize = 1000;
/// Maximum number of placements for which the search finally tries every placement, as on small hosts.
const MOST_TRIALS: f64 = 1e6;
/// Maximum number of units for which the search also moves pairs of units. The number of pairs grows
/// with the square of the number of units.
const FEW: usize = 32;

thread_local! {
    /// The last problems and their placements. The rules of a host, and the rounds of a plan, place the
    /// same units, so the results are kept.
    static PLACED: RefCell<VecDeque<(Problem, Placement)>> = const { RefCell::new(VecDeque::new()) };
}
const MOST_KEPT: usize = 8;

/// Places all units. On a host without cores, the placement is empty.
#[must_use]
pub fn place(problem: &Problem) -> Placement {
    PLACED.with_borrow_mut(|placed| {
        if let Some((_, placement)) = placed.iter().find(|(known, _)| known == problem) {
            return placement.clone();
        }
        let placement = searched(problem);
        placed.truncate(MOST_KEPT - 1);
        placed.push_front((problem.clone(), placement.clone()));
        placement
    })
}

fn searched(problem: &Problem) -> Placement {
    let units = problem.units();
    let mut best = found_by_search(problem, &units);
    if let Some(cheaper) = found_by_trial(problem, &units, best.0) {
        best = cheaper;
    }
    let mut placement = described(problem, &units, &best.1, best.0);
    problem.share_out(&mut placement);
    placement
}

/// Returns the cheapest placement that the search finds from several initial orders.
pub(crate) fn found_by_search(problem: &Problem, units: &[Unit]) -> (f64, Vec<Slot>) {
    let mut best: Option<(f64, Vec<Slot>)> = None;
    if problem.cores.is_empty() {
        return (0.0, Vec::new());
    }
    for order in beginnings(units) {
        let mut search = Search::new(problem, units);
        search.begin(&order);
        search.improve();
        let cost = of(problem, units, &search.slots);
        if best.as_ref().is_none_or(|(least, _)| cost < least - SAME) {
            best = Some((cost, search.slots));
        }
        if cost < SAME {
            break;
        }
    }
    best.unwrap_or_default()
}

/// Tries every placement, if there are few enough, and returns a placement that is cheaper than `cost`,
/// if any.
fn found_by_trial(problem: &Problem, units: &[Unit], cost: f64) -> Option<(f64, Vec<Slot>)> {
    let slots = all_slots(problem);
    let placements = (slots.len() as f64).powi(i32::try_from(units.len()).unwrap_or(i32::MAX));
    if cost < SAME || placements > MOST_TRIALS {
        return None;
    }
    let mut trial = Trial { problem, units, slots, chosen: Vec::new(), least: cost - SAME, found: None };
    trial.go_on(0.0);
    trial.found.map(|slots| (of(problem, units, &slots), slots))
}

struct Trial<'a> {
    problem: &'a Problem,
    units: &'a [Unit],
    slots: Vec<Slot>,
    chosen: Vec<Slot>,
    least: f64,
    found: Option<Vec<Slot>>,
}

impl Trial<'_> {
    fn go_on(&mut self, cost: f64) {
        // Costs are never negative, so adding units cannot make a placement cheaper.
        if cost >= self.least {
            return;
        }
        let Some(unit) = self.units.get(self.chosen.len()) else {
            self.least = cost;
            self.found = Some(self.chosen.clone());
            return;
        };
        for at in 0..self.slots.len() {
            let slot = self.slots[at];
            if unit.fixed.is_some_and(|fixed| fixed != slot) {
                continue;
            }
            let mut more = alone(self.problem, unit, slot, has_applications(self.units, unit.nic));
            for (other, place) in self.units.iter().zip(self.chosen.iter()) {
                more += between(self.problem, (unit, slot), (other, *place));
            }
            self.chosen.push(slot);
            self.go_on(cost + more);
            self.chosen.pop();
        }
    }
}

fn all_slots(problem: &Problem) -> Vec<Slot> {
    let threads = |(core, found): (usize, &super::Core)| {
        (0..found.processors.len()).map(move |thread| Slot { core, thread })
    };
    problem.cores.iter().enumerate().flat_map(threads).collect()
}

/// Returns the orders in which to place the units: as listed (interrupts first), the applications first,
/// the highest need first, NIC by NIC, and NIC by NIC backwards. Fixed units are first in each order.
fn beginnings(units: &[Unit]) -> Vec<Vec<usize>> {
    let listed: Vec<usize> = (0..units.len()).collect();
    let by = |compare: &dyn Fn(&Unit, &Unit) -> Ordering| {
        let mut order = listed.clone();
        order.sort_by(|one, other| {
            let (one, other) = (&units[*one], &units[*other]);
            other.fixed.is_some().cmp(&one.fixed.is_some()).then(compare(one, other))
        });
        order
    };
    vec![
        by(&|_, _| Ordering::Equal),
        by(&|one, other| other.application.is_some().cmp(&one.application.is_some())),
        by(&|one, other| other.need.total_cmp(&one.need)),
        by(&|one, other| one.nic.cmp(&other.nic)),
        by(&|one, other| other.nic.cmp(&one.nic)),
    ]
}

struct Search<'a> {
    problem: &'a Problem,
    units: &'a [Unit],
    slots: Vec<Slot>,
    placed: Vec<bool>,
    all: Vec<Slot>,
}

impl<'a> Search<'a> {
    fn new(problem: &'a Problem, units: &'a [Unit]) -> Self {
        let nowhere = Slot { core: 0, thread: 0 };
        Self {
            problem,
            units,
            slots: vec![nowhere; units.len()],
            placed: vec![false; units.len()],
            all: all_slots(problem),
        }
    }

    /// Returns the cost of a unit in a slot, given the units placed so far.
    fn cost_in(&self, number: usize, slot: Slot) -> f64 {
        let unit = &self.units[number];
        let mut cost = alone(self.problem, unit, slot, has_applications(self.units, unit.nic));
        for (other, place) in self.slots.iter().enumerate() {
            if other != number && self.placed[other] {
                cost += between(self.problem, (unit, slot), (&self.units[other], *place));
            }
        }
        cost
    }

    /// Returns the slots that differ for a unit. The empty cores of a node are equivalent if they have the
    /// same number of processors. A fixed unit has only its fixed slot.
    fn places(&self, number: usize) -> Vec<Slot> {
        if let Some(fixed) = self.units[number].fixed {
            return vec![fixed];
        }
        let others =
            self.slots.iter().enumerate().filter(|(other, _)| *other != number && self.placed[*other]);
        let busy: BTreeSet<usize> = others.map(|(_, slot)| slot.core).collect();
        let mut seen = BTreeSet::new();
        let is_new = |slot: &&Slot| {
            let Some(core) = self.problem.cores.get(slot.core) else { return false };
            busy.contains(&slot.core) || (slot.thread == 0 && seen.insert((core.node, core.processors.len())))
        };
        self.all.iter().filter(is_new).copied().collect()
    }

    fn cheapest_place(&self, number: usize) -> (Slot, f64) {
        let costs = self.places(number).into_iter().map(|slot| (slot, self.cost_in(number, slot)));
        costs
            .min_by(|one, other| one.1.total_cmp(&other.1).then(one.0.cmp(&other.0)))
            .unwrap_or((self.slots[number], f64::INFINITY))
    }

    fn begin(&mut self, order: &[usize]) {
        for &number in order {
            self.slots[number] = self.cheapest_place(number).0;
            self.placed[number] = true;
        }
    }

    fn improve(&mut self) {
        for _ in 0..MOST_ROUNDS {
            if !self.move_one() && !self.swap_two() && !self.move_a_nic() && !self.move_two() {
                return;
            }
        }
    }

    fn move_one(&mut self) -> bool {
        let mut moved = false;
        for number in 0..self.units.len() {
            let (slot, cost) = self.cheapest_place(number);
            if cost < self.cost_in(number, self.slots[number]) - SAME {
                self.slots[number] = slot;
                moved = true;
            }
        }
        moved
    }

    fn swap_two(&mut self) -> bool {
        for one in 0..self.units.len() {
            for other in one + 1..self.units.len() {
                let (first, second) = (&self.units[one], &self.units[other]);
                let same_kind = first.nic == second.nic && first.application == second.application;
                if same_kind || first.fixed.is_some() || second.fixed.is_some() {
                    continue;
                }
                if self.is_cheaper(|search| search.slots.swap(one, other), &[one, other]) {
                    return true;
                }
            }
        }
        false
    }

    /// Removes the units of one kind of a NIC, or all units of the NIC, and places them again on one node.
    /// Moving single units may find no improvement, because a unit away from the other units costs more.
    fn move_a_nic(&mut self) -> bool {
        let kinds: BTreeSet<(usize, Option<usize>)> =
            self.units.iter().map(|unit| (unit.nic, unit.application)).collect();
        let nodes: BTreeSet<u32> = self.problem.cores.iter().map(|core| core.node).collect();
        for (nic, application) in kinds {
            let of_kind = |unit: &Unit| unit.nic == nic && unit.application == application;
            let of_nic = |unit: &Unit| unit.nic == nic;
            for node in &nodes {
                for whole in [false, true] {
                    let chosen = |(number, unit): (usize, &Unit)| {
                        (unit.fixed.is_none() && if whole { of_nic(unit) } else { of_kind(unit) })
                            .then_some(number)
                    };
                    let members: Vec<usize> = self.units.iter().enumerate().filter_map(chosen).collect();
                    let to_node = |search: &mut Self| search.place_on(&members, *node);
                    if self.is_cheaper(to_node, &members) {
                        return true;
                    }
                }
            }
        }
        false
    }

    /// Places each pair of units again, together, because each unit may occupy the other unit's best
    /// slot. Large hosts skip this step, because they have too many pairs.
    fn move_two(&mut self) -> bool {
        if self.units.len() > FEW {
            return false;
        }
        for one in 0..self.units.len() {
            for other in one + 1..self.units.len() {
                let before = self.cost_of(&[one, other]);
                if before > SAME && self.place_together(one, other, before) {
                    return true;
                }
            }
        }
        false
    }

    /// Looks for slots of two units that cost less together than `before`, and moves the units there.
    fn place_together(&mut self, one: usize, other: usize, before: f64) -> bool {
        let here = (self.slots[one], self.slots[other]);
        for slot in self.places(one) {
            self.slots[one] = slot;
            let (place, _) = self.cheapest_place(other);
            self.slots[other] = place;
            if self.cost_of(&[one, other]) < before - SAME {
                return true;
            }
            self.slots[other] = here.1;
        }
        self.slots[one] = here.0;
        false
    }

    fn place_on(&mut self, members: &[usize], node: u32) {
        for &number in members {
            self.placed[number] = false;
        }
        for &number in members {
            let on_node =
                |slot: &Slot| self.problem.cores.get(slot.core).is_some_and(|core| core.node == node);
            let places = self.places(number).into_iter().filter(on_node);
            let cheapest = places
                .map(|slot| (slot, self.cost_in(number, slot)))
                .min_by(|one, other| one.1.total_cmp(&other.1).then(one.0.cmp(&other.0)));
            if let Some((slot, _)) = cheapest {
                self.slots[number] = slot;
            }
            self.placed[number] = true;
        }
    }

    /// Applies a change of some units' slots, and keeps it if the total cost becomes lower.
    fn is_cheaper(&mut self, change: impl FnOnce(&mut Self), members: &[usize]) -> bool {
        let (slots, before) = (self.slots.clone(), self.cost_of(members));
        change(self);
        if self.cost_of(members) < before - SAME {
            return true;
        }
        self.slots = slots;
        false
    }

    /// Returns the cost of some units, with each pair counted once.
    fn cost_of(&self, members: &[usize]) -> f64 {
        let mut cost = 0.0;
        for (at, &number) in members.iter().enumerate() {
            cost += self.cost_in(number, self.slots[number]);
            for &other in &members[at + 1..] {
                let (one, two) =
                    ((&self.units[number], self.slots[number]), (&self.units[other], self.slots[other]));
                cost -= between(self.problem, one, two);
            }
        }
        cost
    }
}

fn described(problem: &Problem, units: &[Unit], slots: &[Slot], cost: f64) -> Placement {
    let mut placement = Placement {
        interrupts: vec![Vec::new(); problem.nics.len()],
        applications: vec![Vec::new(); problem.applications.len()],
        cost,
    };
    for (unit, slot) in units.iter().zip(slots) {
        let processor = problem.cores.get(slot.core).and_then(|core| core.processors.get(slot.thread));
        let places = match unit.application {
            Some(application) => placement.applications.get_mut(application),
            None => placement.interrupts.get_mut(unit.nic),
        };
        if let (Some(processor), Some(places)) = (processor, places) {
            places.push(*processor);
        }
    }
    placement
}
