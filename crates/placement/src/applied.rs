//! Models a host's facts after a setting change, so that a plan is judged before it is applied.
//!
//! Only the changed settings get new values. Counters keep their values, because they count past
//! events.

use std::collections::BTreeSet;

use evenkeel_model::change::{Change, Channels, Coalescing, Handle, Knob, QdiscSnapshot, Ring, Value};
use evenkeel_model::host::{
    HostFacts, Interface, Interrupt, QdiscFacts, ReceiveQueue, TransmitQueue, parse_processor_list,
};

/// Applies changes to the facts, in order. Returns whether every change could be applied.
pub fn apply<'c>(
    facts: &mut HostFacts,
    interface: Option<&str>,
    changes: impl IntoIterator<Item = &'c Change>,
) -> bool {
    changes.into_iter().fold(true, |all, Change { knob, to }| set(facts, interface, knob, to) && all)
}

/// Sets a knob to a value in the facts. Returns false if the facts lack the knob, or if the value does not
/// fit the knob.
pub fn set(facts: &mut HostFacts, interface: Option<&str>, knob: &Knob, value: &Value) -> bool {
    match (knob, value) {
        (Knob::Sysctl(path), Value::Text(text)) => {
            let known = facts.sysctls.get_mut(path);
            return known.map(|known| known.clone_from(text)).is_some();
        }
        (Knob::InterruptAffinity(number), Value::Text(list)) => {
            return set_affinity(facts, *number, list).is_some();
        }
        (Knob::ProcessorFile(file), Value::Text(text)) => {
            return set_processor_file(facts, file, text).is_some();
        }
        (Knob::Channels(kind), Value::Number(number)) => {
            return interface.is_some_and(|name| set_channels(facts, name, *kind, *number).is_some());
        }
        _ => {}
    }
    let Some(nic) = facts.interfaces.iter_mut().find(|nic| Some(nic.name.as_str()) == interface) else {
        return false;
    };
    set_of_interface(nic, knob, value).is_some()
}

fn set_affinity(facts: &mut HostFacts, number: u32, list: &str) -> Option<()> {
    let processors = parse_processor_list(list)?;
    let interrupt = facts.interrupts.iter_mut().find(|interrupt| interrupt.number == number)?;
    if !interrupt.effective.is_empty() {
        interrupt.effective = if processors.contains(interrupt.effective.first()?) {
            interrupt.effective.clone()
        } else {
            processors.first().copied().into_iter().collect()
        };
    }
    interrupt.affinity = processors;
    Some(())
}

fn set_processor_file(facts: &mut HostFacts, file: &str, text: &str) -> Option<()> {
    let (processor, rest) = file.strip_prefix("cpu")?.split_once('/')?;
    let number: u32 = processor.parse().ok()?;
    let processor = facts.processors.iter_mut().find(|processor| processor.number == number)?;
    if rest == "cpufreq/scaling_governor" {
        processor.governor = Some(text.to_owned());
        return Some(());
    }
    let state: u32 = rest.strip_prefix("cpuidle/state")?.strip_suffix("/disable")?.parse().ok()?;
    let state = processor.idle_states.iter_mut().find(|found| found.number == state)?;
    state.disabled = text != "0";
    Some(())
}

/// The default `max_limit` of byte queue limits: `DQL_MAX_LIMIT`, include/linux/dynamic_queue_limits.h.
const NO_LIMIT: u64 = 1_879_048_192;

/// Sets the number of channels. The driver then recreates its queues, its interrupts and an evenly filled RSS
/// table.
fn set_channels(facts: &mut HostFacts, name: &str, kind: Channels, number: u32) -> Option<()> {
    let home = facts.interface(name)?.node;
    let nic = facts.interfaces.iter_mut().find(|nic| nic.name == name)?;
    let channels = nic.channels.as_mut()?;
    let queues_before = channels.receive().max(channels.tx + channels.combined);
    let field = match kind {
        Channels::Rx => &mut channels.rx,
        Channels::Tx => &mut channels.tx,
        Channels::Other => &mut channels.other,
        Channels::Combined => &mut channels.combined,
    };
    if *field == number {
        return Some(());
    }
    let had = *field;
    *field = number;
    let (receive, transmit) = (channels.receive(), channels.transmit());
    // The facts may list fewer queues than there are channels. Such unlisted queues do not count as removed.
    let is_new = |shown: usize, now: u32| {
        let before =
            if number > had { now.saturating_sub(number - had) } else { now.saturating_add(had - number) };
        shown > now as usize || shown == before as usize
    };
    if kind != Channels::Tx && is_new(nic.receive_queues.len(), receive) {
        nic.receive_queues.resize(receive as usize, ReceiveQueue::default());
    }
    if kind != Channels::Rx && is_new(nic.transmit_queues.len(), transmit) {
        // A kernel without XPS has no maps. A device that was created with one queue shows no map.
        let queues = &nic.transmit_queues;
        let shows_maps = queues.len() < 2 || queues.iter().any(|queue| queue.has_xps);
        let fresh = TransmitQueue {
            has_xps: transmit > 1 && shows_maps,
            bql_limit_max: nic
                .transmit_queues
                .first()
                .and_then(|queue| queue.bql_limit_max.and(Some(NO_LIMIT))),
            ..TransmitQueue::default()
        };
        nic.transmit_queues.resize(transmit as usize, fresh);
        set_leaves(nic, transmit);
    }
    if let Some(rss) = &mut nic.rss {
        let length = u32::try_from(rss.indirection.len()).unwrap_or(u32::MAX);
        rss.indirection = (0..length).map(|entry| entry % receive.max(1)).collect();
    }
    set_interrupts(facts, name, queues_before, receive.max(transmit), home);
    Some(())
}

/// Adds the missing leaves of `mq`, and removes the leaves of removed queues, whether the kernel or a program
/// added `mq` (`mq_change_real_num_tx`, net/sched/sch_mq.c).
fn set_leaves(nic: &mut Interface, queues: u32) {
    let Some(root) = nic.root_qdisc().filter(|root| root.kind == "mq") else { return };
    let major = root.handle.trim_end_matches(':').trim_start_matches('0').to_owned();
    let place = |queue: u32| format!("{major}:{queue:x}");
    let is_gone = |qdisc: &QdiscFacts| {
        let queue = qdisc.parent.rsplit(':').next().and_then(|minor| u32::from_str_radix(minor, 16).ok());
        !qdisc.is_root() && queue.is_some_and(|queue| queue > queues)
    };
    let leaf = nic.qdiscs.iter().find(|qdisc| !qdisc.is_root()).cloned();
    nic.qdiscs.retain(|qdisc| !is_gone(qdisc));
    let Some(leaf) = leaf else { return };
    for queue in 1..=queues {
        if !nic.qdiscs.iter().any(|qdisc| qdisc.parent == place(queue)) {
            let handle = "0:".to_owned();
            nic.qdiscs.push(QdiscFacts { parent: place(queue), handle, ..leaf.clone() });
        }
    }
}

/// Removes the interrupts of removed queues and adds interrupts for new queues, with the lowest free
/// numbers. If the existing queues share interrupts, the new queues also share interrupts.
fn set_interrupts(facts: &mut HostFacts, name: &str, before: u32, queues: u32, home: Option<u32>) {
    let open = || facts.processors.iter().filter(|processor| !processor.isolated);
    let everywhere: Vec<u32> = open().map(|processor| processor.number).collect();
    let local = open().filter(|processor| Some(processor.node) == home).map(|processor| processor.number);
    // The kernel prefers processors of the device's node (`assign_irq_vector_any_locked`,
    // arch/x86/kernel/apic/vector.c).
    let first: Vec<u32> = Some(local.collect())
        .filter(|local: &Vec<u32>| !local.is_empty())
        .unwrap_or_else(|| everywhere.clone());
    let model: Vec<Interrupt> = {
        let of_queues = || facts.interrupts_of(name).filter(|interrupt| interrupt.queue.is_some());
        let first = of_queues().filter_map(|interrupt| interrupt.queue).min();
        of_queues().filter(|interrupt| interrupt.queue == first).cloned().collect()
    };
    let is_gone = |interrupt: &Interrupt| {
        interrupt.interface == name && interrupt.queue.is_some_and(|queue| (queues..before).contains(&queue))
    };
    facts.interrupts.retain(|interrupt| !is_gone(interrupt));
    // The counters of recreated interrupts start at 0.
    for interrupt in facts.interrupts.iter_mut().filter(|interrupt| interrupt.interface == name) {
        interrupt.served.clear();
    }
    let has_own = |queue: u32| facts.interrupts_of(name).any(|interrupt| interrupt.queue == Some(queue));
    if !(0..before.min(queues)).all(has_own) {
        return;
    }
    let Some(lowest) = model.iter().map(|interrupt| interrupt.number).min() else { return };
    let taken: BTreeSet<u32> = facts.interrupts.iter().map(|interrupt| interrupt.number).collect();
    let mut free = (lowest..).filter(|number| !taken.contains(number));
    for queue in before..queues {
        if facts.interrupts_of(name).any(|interrupt| interrupt.queue == Some(queue)) {
            continue;
        }
        // By default, an interrupt may go to every processor that is not isolated, and the kernel
        // spreads the interrupts over the processors that it prefers.
        let at = first.get(queue as usize % first.len().max(1)).copied();
        for like in &model {
            let Some(number) = free.next() else { return };
            let of = like.queue.unwrap_or(0).to_string();
            facts.interrupts.push(Interrupt {
                number,
                action: like
                    .action
                    .strip_suffix(&of)
                    .map_or_else(|| like.action.clone(), |stem| format!("{stem}{queue}")),
                queue: Some(queue),
                affinity: everywhere.clone(),
                effective: at.into_iter().collect(),
                served: Vec::new(),
                ..like.clone()
            });
        }
    }
    facts.interrupts.sort_by_key(|interrupt| interrupt.number);
}

fn set_of_interface(nic: &mut Interface, knob: &Knob, value: &Value) -> Option<()> {
    match (knob, value) {
        (Knob::InterfaceFile(file), Value::Text(text)) => return set_interface_file(nic, file, text),
        (Knob::Mtu, Value::Bytes(bytes)) => nic.mtu = Some(*bytes),
        (Knob::TransmitQueueLength, Value::Number(packets)) => nic.tx_queue_len = Some(*packets),
        (Knob::GsoSizes, Value::Sizes { all, ipv4 }) => {
            let sizes = nic.packet_sizes.as_mut()?;
            (sizes.gso, sizes.gso_ipv4) = (*all, *ipv4);
        }
        (Knob::GroSizes, Value::Sizes { all, ipv4 }) => {
            let sizes = nic.packet_sizes.as_mut()?;
            (sizes.gro, sizes.gro_ipv4) = (*all, *ipv4);
        }
        (Knob::Ring(Ring::Rx), Value::Number(number)) => nic.rings.as_mut()?.rx = *number,
        (Knob::Ring(Ring::Tx), Value::Number(number)) => nic.rings.as_mut()?.tx = *number,
        (Knob::Coalescing(kind), value) => {
            let coalescing = nic.coalescing.as_mut()?;
            match (kind, value) {
                (Coalescing::RxUsecs, Value::Number(number)) => coalescing.rx_usecs = *number,
                (Coalescing::RxFrames, Value::Number(number)) => coalescing.rx_frames = *number,
                (Coalescing::TxUsecs, Value::Number(number)) => coalescing.tx_usecs = *number,
                (Coalescing::TxFrames, Value::Number(number)) => coalescing.tx_frames = *number,
                (Coalescing::AdaptiveRx, Value::Switch(on)) => coalescing.adaptive_rx = *on,
                (Coalescing::AdaptiveTx, Value::Switch(on)) => coalescing.adaptive_tx = *on,
                _ => return None,
            }
        }
        (Knob::Feature(name), Value::Switch(on)) => {
            let feature = nic.features.get_mut(name).filter(|feature| !feature.fixed)?;
            feature.on = *on;
        }
        (Knob::FlowHash(flow), Value::Text(fields)) => {
            nic.rss.as_mut()?.hash_fields.insert(flow.clone(), fields.clone());
        }
        (Knob::RssTable, Value::Table(table)) => nic.rss.as_mut()?.indirection.clone_from(table),
        (Knob::RootQdisc, Value::Qdiscs(qdiscs)) => {
            // Below a kernel-created qdisc, which has no handle, class names have only the minor number.
            let parent = |qdisc: &QdiscSnapshot| match qdisc.parent.0 {
                Handle { major: 0, minor } => format!(":{minor:x}"),
                place => place.to_string(),
            };
            let fact = |qdisc: &QdiscSnapshot| QdiscFacts {
                kind: qdisc.kind.clone(),
                handle: format!("{:x}:", qdisc.handle.0.major),
                parent: parent(qdisc),
                ..QdiscFacts::default()
            };
            nic.qdiscs = qdiscs.iter().map(fact).collect();
        }
        _ => return None,
    }
    Some(())
}

fn set_interface_file(nic: &mut Interface, file: &str, text: &str) -> Option<()> {
    if file == "bonding/xmit_hash_policy" {
        text.clone_into(&mut nic.bond.as_mut()?.hash_policy);
        return Some(());
    }
    match file {
        "napi_defer_hard_irqs" => {
            nic.napi_defer_hard_irqs = Some(text.parse().ok()?);
            return Some(());
        }
        "gro_flush_timeout" => {
            nic.gro_flush_timeout_ns = Some(text.parse().ok()?);
            return Some(());
        }
        _ => {}
    }
    let (queue, name) = file.strip_prefix("queues/")?.split_once('/')?;
    let at = |prefix: &str| queue.strip_prefix(prefix)?.parse::<usize>().ok();
    match (at("rx-"), at("tx-")) {
        (Some(at), _) => {
            let queue = nic.receive_queues.get_mut(at)?;
            match name {
                "rps_cpus" => queue.rps = members(text)?,
                "rps_flow_cnt" => queue.rps_flow_count = text.parse().ok()?,
                _ => return None,
            }
        }
        (_, Some(at)) => {
            let queue = nic.transmit_queues.get_mut(at)?;
            match name {
                "xps_cpus" => queue.xps_processors = members(text)?,
                "xps_rxqs" => queue.xps_receive_queues = members(text)?,
                "tx_maxrate" => queue.max_rate_mbps = text.parse().ok()?,
                "byte_queue_limits/limit_max" => queue.bql_limit_max = Some(text.parse().ok()?),
                _ => return None,
            }
        }
        _ => return None,
    }
    Some(())
}

/// Returns the processors or queues in a mask; `None` if the mask is not hexadecimal.
fn members(mask: &str) -> Option<Vec<u32>> {
    let digits: Vec<char> = mask.trim().chars().filter(|digit| *digit != ',').collect();
    let mut found = Vec::new();
    for (nibble, digit) in (0..).zip(digits.iter().rev()) {
        let bits = digit.to_digit(16)?;
        found.extend((0..4).filter(|bit| bits >> bit & 1 == 1).map(|bit| nibble * 4 + bit));
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::current::current;
    use evenkeel_model::change::root_qdisc;
    use evenkeel_model::host::{BondFacts, Channels as Counts, Feature, IdleState, Processor, Rings, Rss};

    fn host() -> HostFacts {
        let nic = Interface {
            name: "eth0".to_owned(),
            channels: Some(Counts { combined: 4, combined_max: 8, ..Counts::default() }),
            rings: Some(Rings { rx: 512, rx_max: 4096, tx: 512, tx_max: 4096 }),
            coalescing: Some(Default::default()),
            features: [("rx-gro".to_owned(), Feature { on: false, fixed: false })].into(),
            rss: Some(Rss { indirection: vec![0; 8], ..Rss::default() }),
            receive_queues: vec![ReceiveQueue::default(); 4],
            transmit_queues: vec![TransmitQueue { bql_limit_max: Some(1), ..TransmitQueue::default() }; 4],
            bond: Some(BondFacts::default()),
            tx_queue_len: Some(1000),
            mtu: Some(1500),
            ..Interface::default()
        };
        let interrupt = |number| Interrupt {
            number,
            interface: "eth0".to_owned(),
            queue: Some(number - 40),
            affinity: vec![0],
            effective: vec![0],
            ..Interrupt::default()
        };
        HostFacts {
            processors: (0..4)
                .map(|number| Processor {
                    number,
                    governor: Some("powersave".to_owned()),
                    idle_states: vec![IdleState { number: 2, ..IdleState::default() }],
                    ..Processor::default()
                })
                .collect(),
            interfaces: vec![nic],
            interrupts: (40..44).map(interrupt).collect(),
            sysctls: [("net/core/rmem_max".to_owned(), "0".to_owned())].into(),
            ..HostFacts::default()
        }
    }

    #[test]
    fn facts_hold_what_was_set() {
        let text = |text: &str| Value::Text(text.to_owned());
        let file = |file: &str| Knob::InterfaceFile(file.to_owned());
        for (knob, value) in [
            (Knob::Sysctl("net/core/rmem_max".to_owned()), text("1")),
            (Knob::InterruptAffinity(41), text("2-3")),
            (Knob::ProcessorFile("cpu1/cpufreq/scaling_governor".to_owned()), text("performance")),
            (Knob::ProcessorFile("cpu1/cpuidle/state2/disable".to_owned()), text("1")),
            (Knob::Channels(Channels::Combined), Value::Number(2)),
            (Knob::Channels(Channels::Combined), Value::Number(8)),
            (Knob::Ring(Ring::Rx), Value::Number(4096)),
            (Knob::Ring(Ring::Tx), Value::Number(4096)),
            (Knob::Mtu, Value::Bytes(9000)),
            (Knob::TransmitQueueLength, Value::Number(10)),
            (Knob::Coalescing(Coalescing::RxUsecs), Value::Number(20)),
            (Knob::Coalescing(Coalescing::AdaptiveRx), Value::Switch(true)),
            (Knob::Feature("rx-gro".to_owned()), Value::Switch(true)),
            (Knob::FlowHash("tcp4".to_owned()), text("sdfn")),
            (Knob::RssTable, Value::Table(vec![0, 1, 2, 3, 0, 1, 2, 3])),
            (Knob::RootQdisc, Value::Qdiscs(root_qdisc("fq", 4))),
            (file("queues/rx-1/rps_cpus"), text("0000000c")),
            (file("queues/rx-1/rps_flow_cnt"), text("4096")),
            (file("queues/tx-1/xps_cpus"), text("00000001,00000000")),
            (file("queues/tx-1/xps_rxqs"), text("00000002")),
            (file("queues/tx-1/tx_maxrate"), text("100")),
            (file("queues/tx-1/byte_queue_limits/limit_max"), text("7")),
            (file("bonding/xmit_hash_policy"), text("layer3+4")),
        ] {
            let mut facts = host();
            assert!(set(&mut facts, Some("eth0"), &knob, &value), "{knob:?}");
            let now = current(&facts, Some("eth0"), &knob);
            assert!(now.as_ref().is_some_and(|now| knob.same(now, &value)), "{knob:?}: {now:?}");
        }
        let mut facts = host();
        assert!(!set(&mut facts, Some("eth1"), &Knob::Mtu, &Value::Bytes(1)));
        assert!(!set(&mut facts, None, &Knob::Sysctl("net/ipv4/none".to_owned()), &text("1")));
        assert!(!set(&mut facts, Some("eth0"), &file("queues/tx-9/xps_cpus"), &text("1")));
        assert_eq!(facts, host());
    }

    #[test]
    fn channels_bring_their_queues_and_interrupts() {
        let mut facts = host();
        set(&mut facts, Some("eth0"), &Knob::Channels(Channels::Combined), &Value::Number(6));
        assert_eq!((facts.interrupts.len(), facts.interfaces[0].receive_queues.len()), (6, 6));
        set(&mut facts, Some("eth0"), &Knob::Channels(Channels::Combined), &Value::Number(4));
        assert_eq!(facts.interrupts, host().interrupts);
    }

    #[test]
    fn channels_leave_interrupts_of_other_queues_alone() {
        let mut few = host();
        few.interrupts.truncate(2);
        let mut blocks = host();
        blocks
            .interrupts
            .iter_mut()
            .for_each(|interrupt| interrupt.queue = interrupt.queue.map(|at| at + 16));
        for before in [few, blocks] {
            let mut facts = before.clone();
            set(&mut facts, Some("eth0"), &Knob::Channels(Channels::Combined), &Value::Number(6));
            assert_eq!(facts.interrupts, before.interrupts);
            set(&mut facts, Some("eth0"), &Knob::Channels(Channels::Combined), &Value::Number(3));
            assert_eq!(facts.interrupts, before.interrupts);
        }
    }

    #[test]
    fn queues_that_come_show_maps_as_the_others_do() {
        for has_xps in [false, true] {
            let mut facts = host();
            facts.interfaces[0].transmit_queues.iter_mut().for_each(|queue| queue.has_xps = has_xps);
            set(&mut facts, Some("eth0"), &Knob::Channels(Channels::Combined), &Value::Number(6));
            assert!(facts.interfaces[0].transmit_queues.iter().all(|queue| queue.has_xps == has_xps));
        }
    }
}
