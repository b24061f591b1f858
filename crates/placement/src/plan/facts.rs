//! Derives a placement problem from a host's facts.

use std::collections::BTreeMap;

use evenkeel_model::host::{Interface, SocketFacts};

use super::{Application, Core, Nic, Problem, interrupt_cores_for, place};
use crate::view::View;

/// Bytes that a connection must have carried to count as an application's work.
const BULK_BYTES: u64 = 10_000_000;
/// Assumed speed of a NIC that reports no speed, bit/s.
const UNKNOWN_BPS: u64 = 1_000_000_000;
/// Largest number of threads placed for one application. Further connections share these threads.
const MOST_THREADS: u32 = 64;

/// Returns the placement problem of a host:
///
/// - the cores that are not isolated;
/// - the NICs with receive interrupts;
/// - the processes whose connections through these NICs have carried much data, with one thread for each of
///   these connections, at most 64. A pinned process keeps its processors.
#[must_use]
pub fn problem(view: &View<'_>) -> Problem {
    let mut cores: BTreeMap<(u32, u32, u32), Vec<u32>> = BTreeMap::new();
    for processor in view.facts.processors.iter().filter(|processor| !processor.isolated) {
        cores.entry((processor.node, processor.package, processor.core)).or_default().push(processor.number);
    }
    let core = |((node, package, _), processors)| Core { node, package, processors };
    let cores = cores.into_iter().map(core).collect();
    let with_interrupts: Vec<&Interface> =
        view.nics().filter(|nic| !view.receive_interrupts(nic).is_empty()).collect();
    let mut applications = Vec::new();
    for (number, nic) in with_interrupts.iter().enumerate() {
        applications.extend(applications_of(view, number, nic));
    }
    let nics = with_interrupts.iter().map(|nic| described(nic)).collect();
    Problem { cores, nics, applications }
}

/// Describes a NIC. An unknown MTU counts as small, so that the interrupts get more cores.
fn described(nic: &Interface) -> Nic {
    Nic {
        name: nic.name.clone(),
        node: nic.node,
        need: interrupt_cores_for(nic.speed_bps.unwrap_or(UNKNOWN_BPS), nic.mtu.unwrap_or(0)),
        queues_most: nic.receive_queue_count().max(1),
    }
}

fn applications_of(view: &View<'_>, number: usize, nic: &Interface) -> Vec<Application> {
    let mut connections: BTreeMap<u32, u32> = BTreeMap::new();
    let is_bulk = |socket: &&SocketFacts| socket.bytes() >= BULK_BYTES;
    for socket in view.connections(nic).into_iter().filter(is_bulk) {
        if let Some(process) = socket.process {
            *connections.entry(process).or_insert(0) += 1;
        }
    }
    let application = |(process, connections): (u32, u32)| Application {
        name: view.facts.process(process).map(|process| process.name.clone()).unwrap_or_default(),
        nic: number,
        threads: connections.min(MOST_THREADS),
        need: 1.0,
        pinned: view.pinned(process).unwrap_or_default(),
    };
    connections.into_iter().map(application).collect()
}

/// Returns the processors that should take the receive interrupts of each NIC, for its current number
/// of queues.
#[must_use]
pub fn interrupt_processors(view: &View<'_>) -> BTreeMap<String, Vec<u32>> {
    let problem = problem(view);
    let mut placement = place(&problem);
    problem.share_rest(&mut placement);
    let of_nic = |(nic, mut processors): (&Nic, Vec<u32>)| {
        processors.sort_unstable();
        processors.dedup();
        (nic.name.clone(), processors)
    };
    problem.nics.iter().zip(placement.interrupts).map(of_nic).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::plan::interrupt_changes;
    use evenkeel_model::change::{Knob, Value};
    use evenkeel_model::host::{
        Channels, HostFacts, InterfaceKind, Interrupt, ProcessFacts, Processor, SocketKind, TcpFacts,
    };

    /// Creates a host with two processor sockets of eight cores with two threads each. Each socket has
    /// a NIC of 100 Gbit/s. The second socket also has an application.
    fn host() -> HostFacts {
        let processor = |number: u32| Processor {
            number,
            node: number % 16 / 8,
            package: number % 16 / 8,
            core: number % 8,
            siblings: vec![number % 16, number % 16 + 16],
            isolated: number == 15 || number == 31,
            ..Processor::default()
        };
        let nic = |name: &str, node| Interface {
            name: name.to_owned(),
            kind: InterfaceKind::Device,
            up: true,
            node: Some(node),
            speed_bps: Some(100_000_000_000),
            mtu: Some(9000),
            channels: Some(Channels { combined: 8, combined_max: 63, ..Channels::default() }),
            ..Interface::default()
        };
        let interrupt = |interface: &str, number| Interrupt {
            number,
            interface: interface.to_owned(),
            queue: Some(number),
            receives: true,
            ..Interrupt::default()
        };
        let socket = SocketFacts {
            kind: SocketKind::Tcp,
            interface: Some("eth1".to_owned()),
            process: Some(77),
            tcp: Some(TcpFacts { bytes_received: 1 << 40, ..TcpFacts::default() }),
            ..SocketFacts::default()
        };
        HostFacts {
            processors: (0..32).map(processor).collect(),
            interfaces: vec![nic("eth0", 0), nic("eth1", 1)],
            interrupts: vec![interrupt("eth0", 1), interrupt("eth1", 2)],
            sockets: vec![socket.clone(), socket],
            processes: vec![ProcessFacts {
                number: 77,
                name: "iperf3".to_owned(),
                ..ProcessFacts::default()
            }],
            ..HostFacts::default()
        }
    }

    #[test]
    fn each_nic_has_cores_of_its_own_node() {
        let facts = host();
        let view = View::new(&facts);
        let problem = problem(&view);
        assert_eq!(problem.cores.len(), 15, "one core is isolated");
        assert_eq!(problem.applications.len(), 1);
        assert_eq!((problem.applications[0].nic, problem.applications[0].threads), (1, 2));
        let [zero, one] =
            ["eth0", "eth1"].map(|name| view.planned_processors(facts.interface(name).unwrap()));
        assert!(zero.len() >= 3 && zero.iter().all(|processor| *processor < 8), "{zero:?}");
        assert!(one.len() >= 3 && one.iter().all(|processor| (8..15).contains(processor)), "{one:?}");
        assert!(view.planned_processors(&Interface::default()).is_empty());
    }

    /// Two NICs with four queues each on the first node, all of their interrupts on processor 0.
    #[test]
    fn the_queues_of_two_nics_have_cores_of_their_own() {
        let mut facts = host();
        facts.sockets.clear();
        facts.processors.iter_mut().for_each(|processor| processor.isolated = false);
        facts.interrupts.clear();
        for (at, nic) in facts.interfaces.iter_mut().enumerate() {
            (nic.node, nic.speed_bps) = (Some(0), Some(25_000_000_000));
            nic.channels = Some(Channels { combined: 4, combined_max: 4, ..Channels::default() });
            facts.interrupts.extend((0..4).map(|queue| Interrupt {
                number: 10 * at as u32 + queue,
                interface: nic.name.clone(),
                queue: Some(queue),
                receives: true,
                affinity: vec![0],
                effective: vec![0],
                ..Interrupt::default()
            }));
        }
        let view = View::new(&facts);
        let mut cores: Vec<u32> = facts.interrupts.iter().map(|_| 0).collect();
        for nic in &facts.interfaces {
            for change in interrupt_changes(&view, nic) {
                let (Knob::InterruptAffinity(number), Value::Text(to)) = (change.knob, change.to) else {
                    continue;
                };
                let at = facts.interrupts.iter().position(|interrupt| interrupt.number == number).unwrap();
                cores[at] = to.parse().unwrap();
            }
        }
        cores.sort_unstable();
        assert_eq!(cores, [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}
