//! The cost of a placement, on one scale.
//!
//! | placement | cost | in the paper |
//! |---|---|---|
//! | interrupts and application on the NIC's node | 0 | case 1 of figure 8: best |
//! | the application on a node of another package | 4 | case 3: fewest losses; the interconnect limits the rate |
//! | both on a node of another package | 6 | case 4: losses as in case 2, but fewer |
//! | the interrupts on a node of another package | 8 | case 2: worst, data crosses the interconnect twice |
//! | the interrupts or the application on another node of the NIC's package | 0.5 | AMD, Linux Network Tuning Guide for EPYC (NPS) |
//! | two units on SMT siblings of a core | 2 | distribution 2 of figure 10 avoids this |
//! | two units on one processor | 5 | distribution 3: losses and less throughput |
//!
//! The paper ranks all rows except the AMD row in figures 9 and 11, without numbers in its text. The
//! scale keeps the paper's order:
//!
//! - The socket has "the largest impact" (section III).
//! - Losses below TCP are worse than a slower flow.
//! - An application that shares a processor with interrupts loses more packets than an application in
//!   another package.
//!
//! The cost of another package is weighted by the traffic that crosses the interconnect. The cost of
//! sharing is weighted by the smaller need of the two units, because a unit with little work takes
//! little time from the other unit.

use super::{Distance, Problem, Slot, Unit};

/// Costs of being on the far node: a row for interrupts near or far, a column for the application near or
/// far.
const NODES: [[f64; 2]; 2] = [[0.0, 4.0], [8.0, 6.0]];
/// Cost of another node in the same package: an access to its memory takes a few nanoseconds longer.
const OTHER_NODE: f64 = 0.5;
const TWINS: f64 = 2.0;
const SAME_PROCESSOR: f64 = 5.0;

/// Returns the cost that two units cause each other in their slots.
pub(crate) fn between(problem: &Problem, one: (&Unit, Slot), other: (&Unit, Slot)) -> f64 {
    sharing(one, other) + crossing(problem, one, other)
}

fn sharing((one, here): (&Unit, Slot), (other, there): (&Unit, Slot)) -> f64 {
    if here.core != there.core {
        return 0.0;
    }
    let scale = if here.thread == there.thread { SAME_PROCESSOR } else { TWINS };
    scale * one.need.min(other.need)
}

fn crossing(problem: &Problem, (one, here): (&Unit, Slot), (other, there): (&Unit, Slot)) -> f64 {
    let (interrupts, application) = match (one.application, other.application) {
        (None, Some(_)) => (here, there),
        (Some(_), None) => (there, here),
        _ => return 0.0,
    };
    if one.nic != other.nic {
        return 0.0;
    }
    let far = |slot| usize::from(distance(problem, one.nic, slot) == Distance::Far);
    let near = |slot| f64::from(u8::from(distance(problem, one.nic, slot) == Distance::OwnPackage));
    let crossed = NODES[far(interrupts)][far(application)];
    (crossed + OTHER_NODE * (near(interrupts) + near(application))) * one.traffic
}

/// Returns the cost of a unit on its own; 0 if the NIC has known applications. Unknown applications count as
/// if they ran on the NIC's node.
pub(crate) fn alone(problem: &Problem, unit: &Unit, slot: Slot, has_applications: bool) -> f64 {
    if unit.application.is_some() || has_applications {
        return 0.0;
    }
    match distance(problem, unit.nic, slot) {
        Distance::OwnNode => 0.0,
        Distance::OwnPackage => OTHER_NODE * unit.traffic,
        Distance::Far => NODES[1][0] * unit.traffic,
    }
}

fn distance(problem: &Problem, nic: usize, slot: Slot) -> Distance {
    let node = problem.nics.get(nic).and_then(|nic| nic.node);
    let (Some(node), Some(core)) = (node, problem.cores.get(slot.core)) else { return Distance::OwnNode };
    if core.node == node {
        return Distance::OwnNode;
    }
    // The package of a node whose cores are all isolated is unknown. Such a node counts as far.
    let is_near = problem.cores.iter().any(|other| other.node == node && other.package == core.package);
    if is_near { Distance::OwnPackage } else { Distance::Far }
}

pub(crate) fn of(problem: &Problem, units: &[Unit], slots: &[Slot]) -> f64 {
    let placed: Vec<(&Unit, Slot)> = units.iter().zip(slots.iter().copied()).collect();
    let mut cost = 0.0;
    for (at, one) in placed.iter().enumerate() {
        cost += alone(problem, one.0, one.1, has_applications(units, one.0.nic));
        for other in &placed[at + 1..] {
            cost += between(problem, *one, *other);
        }
    }
    cost
}

pub(crate) fn has_applications(units: &[Unit], nic: usize) -> bool {
    units.iter().any(|unit| unit.nic == nic && unit.application.is_some())
}
