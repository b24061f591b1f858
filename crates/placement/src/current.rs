//! Reads the current value of a knob from the facts, and builds the command that restores the value.

use evenkeel_model::change::{
    Change, Channels, ClassHandle, Coalescing, Handle, Knob, QdiscSnapshot, Ring, Value, naming_kinds, shell,
};
use evenkeel_model::host::{HostFacts, Interface, QdiscFacts, processor_list};

use crate::rules::mask;

/// Returns the current value of a knob; `None` if the facts do not contain the knob.
#[must_use]
pub fn current(facts: &HostFacts, interface: Option<&str>, knob: &Knob) -> Option<Value> {
    let text = |text: String| Some(Value::Text(text));
    match knob {
        Knob::Sysctl(path) => return text(facts.sysctl(path)?.to_owned()),
        Knob::InterruptAffinity(number) => {
            let interrupt = facts.interrupts.iter().find(|interrupt| interrupt.number == *number)?;
            return text(processor_list(&interrupt.affinity)).filter(|_| !interrupt.affinity.is_empty());
        }
        Knob::ProcessorFile(file) => return processor_file(facts, file),
        _ => {}
    }
    let nic = facts.interface(interface?)?;
    match knob {
        Knob::InterfaceFile(file) => interface_file(nic, file),
        Knob::Mtu => nic.mtu.map(Value::Bytes),
        Knob::TransmitQueueLength => nic.tx_queue_len.map(Value::Number),
        Knob::Ring(Ring::Rx) => nic.rings.map(|rings| Value::Number(rings.rx)),
        Knob::Ring(Ring::Tx) => nic.rings.map(|rings| Value::Number(rings.tx)),
        Knob::Channels(kind) => nic.channels.map(|channels| {
            Value::Number(match kind {
                Channels::Rx => channels.rx,
                Channels::Tx => channels.tx,
                Channels::Other => channels.other,
                Channels::Combined => channels.combined,
            })
        }),
        Knob::Coalescing(kind) => nic.coalescing.map(|coalescing| match kind {
            Coalescing::RxUsecs => Value::Number(coalescing.rx_usecs),
            Coalescing::RxFrames => Value::Number(coalescing.rx_frames),
            Coalescing::TxUsecs => Value::Number(coalescing.tx_usecs),
            Coalescing::TxFrames => Value::Number(coalescing.tx_frames),
            Coalescing::AdaptiveRx => Value::Switch(coalescing.adaptive_rx),
            Coalescing::AdaptiveTx => Value::Switch(coalescing.adaptive_tx),
        }),
        Knob::GsoSizes => nic.packet_sizes.map(|sizes| Value::Sizes { all: sizes.gso, ipv4: sizes.gso_ipv4 }),
        Knob::GroSizes => nic.packet_sizes.map(|sizes| Value::Sizes { all: sizes.gro, ipv4: sizes.gro_ipv4 }),
        Knob::Feature(name) => nic.feature(name).map(|feature| Value::Switch(feature.on)),
        Knob::FlowHash(flow) => text(nic.rss.as_ref()?.hash_fields.get(flow)?.clone()),
        Knob::RssTable => nic.rss.as_ref().map(|rss| Value::Table(rss.indirection.clone())),
        Knob::RootQdisc if is_known_tree(nic) => {
            nic.qdiscs.iter().map(snapshot).collect::<Option<Vec<_>>>().map(Value::Qdiscs)
        }
        _ => None,
    }
}

/// Returns whether a knob already has the value of a change.
#[must_use]
pub fn is_made(facts: &HostFacts, interface: Option<&str>, change: &Change) -> bool {
    current(facts, interface, &change.knob).is_some_and(|now| change.knob.same(&now, &change.to))
}

/// Returns the command that undoes a change; `None` if the facts do not contain the previous value.
#[must_use]
pub fn undo(facts: &HostFacts, interface: Option<&str>, change: &Change) -> Option<String> {
    let before = current(facts, interface, &change.knob)?;
    Some(shell(interface.unwrap_or_default(), &change.knob, &restoring(facts, &before)).to_string())
}

/// Returns the value that restores a previous value on the host. The value differs from `before` for
/// default qdiscs of the kernel whose kind is not the current `net.core.default_qdisc`.
#[must_use]
pub fn restoring(facts: &HostFacts, before: &Value) -> Value {
    match (before, facts.sysctl("net/core/default_qdisc")) {
        (Value::Qdiscs(tree), Some(default)) => Value::Qdiscs(naming_kinds(tree, default)),
        _ => before.clone(),
    }
}

fn processor_file(facts: &HostFacts, file: &str) -> Option<Value> {
    let (processor, rest) = file.strip_prefix("cpu")?.split_once('/')?;
    let processor = facts.processor(processor.parse().ok()?)?;
    if rest == "cpufreq/scaling_governor" {
        return processor.governor.clone().map(Value::Text);
    }
    let number = rest.strip_prefix("cpuidle/state")?.strip_suffix("/disable")?.parse::<u32>().ok()?;
    let state = processor
        .idle_states
        .iter()
        .find(|state: &&evenkeel_model::host::IdleState| state.number == number)?;
    Some(Value::Text(u8::from(state.disabled).to_string()))
}

fn interface_file(nic: &Interface, file: &str) -> Option<Value> {
    let text = |text: String| Some(Value::Text(text));
    if file == "bonding/xmit_hash_policy" {
        return text(nic.bond.as_ref()?.hash_policy.clone());
    }
    match file {
        "napi_defer_hard_irqs" => return text(nic.napi_defer_hard_irqs?.to_string()),
        "gro_flush_timeout" => return text(nic.gro_flush_timeout_ns?.to_string()),
        _ => {}
    }
    let (queue, name) = file.strip_prefix("queues/")?.split_once('/')?;
    let at = |prefix: &str| queue.strip_prefix(prefix)?.parse::<usize>().ok();
    match (at("rx-"), at("tx-"), name) {
        (Some(at), _, "rps_cpus") => text(mask(&nic.receive_queues.get(at)?.rps)),
        (Some(at), _, "rps_flow_cnt") => text(nic.receive_queues.get(at)?.rps_flow_count.to_string()),
        (_, Some(at), "xps_cpus") => text(mask(&nic.transmit_queues.get(at)?.xps_processors)),
        (_, Some(at), "xps_rxqs") => text(mask(&nic.transmit_queues.get(at)?.xps_receive_queues)),
        (_, Some(at), "tx_maxrate") => text(nic.transmit_queues.get(at)?.max_rate_mbps.to_string()),
        (_, Some(at), "byte_queue_limits/limit_max") => {
            text(nic.transmit_queues.get(at)?.bql_limit_max?.to_string())
        }
        _ => None,
    }
}

/// Returns whether kinds, handles and parents are enough to restore a tree of qdiscs. Deleting a
/// default root restores only default leaves.
fn is_known_tree(nic: &Interface) -> bool {
    let is_default = |qdisc: &QdiscFacts| qdisc.handle == "0:";
    let Some(root) = nic.qdiscs.first() else { return false };
    nic.qdiscs.iter().all(|qdisc| is_default(qdisc) || !is_default(root) && !qdisc.has_own_options)
}

/// Returns the kind, handle and parent of a qdisc. The facts do not contain its options.
fn snapshot(qdisc: &QdiscFacts) -> Option<QdiscSnapshot> {
    let handle = |text: &str| {
        let (major, minor) = text.split_once(':')?;
        let number = |text: &str| if text.is_empty() { Some(0) } else { u16::from_str_radix(text, 16).ok() };
        Some(Handle::new(number(major)?, number(minor)?))
    };
    let parent = if qdisc.is_root() { Handle::ROOT } else { handle(&qdisc.parent)? };
    Some(QdiscSnapshot {
        kind: qdisc.kind.clone(),
        handle: ClassHandle(handle(&qdisc.handle)?),
        parent: ClassHandle(parent),
        options: String::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_qdisc_with_options_has_no_undo() {
        let qdisc = |handle: &str, parent: &str, has_own_options| QdiscFacts {
            kind: if parent == "root" { "mq" } else { "fq_codel" }.to_owned(),
            handle: handle.to_owned(),
            parent: parent.to_owned(),
            has_own_options,
            ..QdiscFacts::default()
        };
        let is_known = |qdiscs: Vec<QdiscFacts>| {
            let nic = Interface { name: "eth0".to_owned(), qdiscs, ..Interface::default() };
            let facts = HostFacts { interfaces: vec![nic], ..HostFacts::default() };
            current(&facts, Some("eth0"), &Knob::RootQdisc).is_some()
        };
        assert!(is_known(vec![qdisc("0:", "root", false), qdisc("0:", ":1", true)]));
        assert!(is_known(vec![qdisc("1:", "root", false), qdisc("2:", "1:1", false)]));
        assert!(!is_known(vec![qdisc("1:", "root", false), qdisc("2:", "1:1", true)]));
        assert!(!is_known(vec![qdisc("0:", "root", false), qdisc("8001:", ":1", false)]));
    }
}
