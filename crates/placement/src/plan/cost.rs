//! What a placement costs, on one scale.
//!
//! | what | cost | the paper |
//! |---|---|---|
//! | interrupts and application on the NIC's node | 0 | case 1 of figure 8: best |
//! | the application on another node | 4 | case 3: fewest losses, but the interconnect's rate |
//! | both on another node | 6 | case 4: losses as in case 2, less of them |
//! | the interrupts on another node | 8 | case 2: worst, data crosses the interconnect twice |
//! | either on another node of the NIC's package | 0.5 | AMD, Linux Network Tuning Guide for EPYC (NPS) |
//! | two on twins of a core | 2 | distribution 2 of figure 10 keeps them off |
//! | two on one processor | 5 | distribution 3: losses and less throughput |
//!
//! The paper ranks these by figures 9 and 11, of which it has no numbers in its text; the scale keeps its order: the
//! socket has "the largest impact" (section III), losses below TCP are worse than a slower flow, and sharing a processor
//! with interrupts loses packets, which an application on the far node does not. Costs of a node count by the traffic that
//! crosses, those of sharing by the lesser need of the two: a unit with little work takes little from the other.

use super::{Distance, Problem, Slot, Unit};

/// Where interrupts and application are, by far node or not: rows the interrupts, columns the application.
const NODES: [[f64; 2]; 2] = [[0.0, 4.0], [8.0, 6.0]];
/// On another node of the package: memory is a few nanoseconds further away.
const OTHER_NODE: f64 = 0.5;
const TWINS: f64 = 2.0;
const SAME_PROCESSOR: f64 = 5.0;

/// What two units cost each other in their places.
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

/// The cost of a unit alone. Applications of a NIC that are not known count as if they ran on its node.
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
    // Packages of a node whose cores are all isolated are not known: then it is as far as any.
    let is_near = problem.cores.iter().any(|other| other.node == node && other.package == core.package);
    if is_near { Distance::OwnPackage } else { Distance::Far }
}

/// What a whole placement costs.
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

/// Whether anything is known to work with a NIC's data.
pub(crate) fn has_applications(units: &[Unit], nic: usize) -> bool {
    units.iter().any(|unit| unit.nic == nic && unit.application.is_some())
}
