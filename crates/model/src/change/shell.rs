//! The lines that an administrator would type.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Knob, QdiscSnapshot, RuleBytes, Value};

/// A sysctl's name as sysctl(8) has it; with slashes where a part has a point in it.
#[must_use]
pub fn sysctl_name(path: &str) -> String {
    if path.contains('.') { path.to_owned() } else { path.replace('/', ".") }
}

/// The line that gives a knob a value; of the value from before it is the undo. What no line can say is a comment.
#[must_use]
pub fn shell(interface: &str, knob: &Knob, value: &Value) -> String {
    let quoted = quote(interface);
    match (knob, value) {
        (Knob::Sysctl(name), Value::Text(text)) => {
            format!("sysctl -w {}", quote(&format!("{}={}", sysctl_name(name), one_line(text))))
        }
        (Knob::GsoSizes, Value::Sizes { all, ipv4 }) => sizes_line(&quoted, "gso", *all, *ipv4),
        (Knob::GroSizes, Value::Sizes { all, ipv4 }) => sizes_line(&quoted, "gro", *all, *ipv4),
        (Knob::InterfaceFile(file), Value::Text(text)) => {
            file_line(text, &format!("/sys/class/net/{interface}/{file}"))
        }
        (Knob::HtbQuantum(class), Value::Bytes(bytes)) => format!(
            "tc class change dev {quoted} classid {class} htb \
             $(tc class show dev {quoted} classid {class} | grep -o 'rate.*') quantum {bytes}"
        ),
        (Knob::QueueWeight(queue), Value::Weight(weight)) => weight_line(&quoted, *queue, *weight),
        (Knob::RootQdisc, Value::Qdiscs(qdiscs)) => qdisc_line(&quoted, qdiscs),
        (Knob::NtupleRule(location), Value::Rule(rule)) => rule_line(&quoted, *location, rule.as_ref()),
        (Knob::RssTable, Value::Table(queues)) => match equal_spread(queues) {
            Some(count) => format!("ethtool -X {quoted} equal {count}"),
            None => format!("# RSS table of {interface}: {queues:?}"),
        },
        (Knob::RssContext(context), Value::Context(table)) => context_line(&quoted, *context, table.as_ref()),
        (Knob::InterruptAffinity(interrupt), Value::Text(text)) => {
            file_line(text, &format!("/proc/irq/{interrupt}/smp_affinity_list"))
        }
        (Knob::Ring(ring), Value::Number(number)) => format!("ethtool -G {quoted} {} {number}", ring.word()),
        (Knob::Channels(channels), Value::Number(number)) => {
            format!("ethtool -L {quoted} {} {number}", channels.word())
        }
        (Knob::Coalescing(parameter), Value::Number(number)) => {
            format!("ethtool -C {quoted} {} {number}", parameter.word())
        }
        (Knob::Coalescing(parameter), Value::Switch(_)) => {
            format!("ethtool -C {quoted} {} {value}", parameter.word())
        }
        (Knob::Feature(name), Value::Switch(_)) => format!("ethtool -K {quoted} {} {value}", quote(name)),
        (Knob::FlowHash(flows), Value::Text(fields)) => {
            format!("ethtool -N {quoted} rx-flow-hash {} {}", quote(flows), quote(fields))
        }
        (Knob::Mtu, Value::Bytes(bytes)) => format!("ip link set dev {quoted} mtu {bytes}"),
        (Knob::TransmitQueueLength, Value::Number(packets)) => {
            format!("ip link set dev {quoted} txqueuelen {packets}")
        }
        (Knob::ProcessorFile(file), Value::Text(text)) => {
            file_line(text, &format!("/sys/devices/system/cpu/{file}"))
        }
        (knob, value) => format!("# {} = {value}", knob.on(interface)),
    }
}

/// A kernel writes several figures with tabs between them.
fn one_line(text: &str) -> String {
    text.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
}

fn file_line(text: &str, path: &str) -> String {
    format!("echo {} > {}", quote(text), quote(path))
}

/// Over how many queues a table goes in turn; none if it does something else.
fn equal_spread(queues: &[u32]) -> Option<u32> {
    let count = queues.iter().max()?.checked_add(1)?;
    let in_turn = (0..count).cycle().take(queues.len()).eq(queues.iter().copied());
    in_turn.then_some(count)
}

/// A tree without options is made qdisc by qdisc; of one with options there is only what the kernel shows.
fn qdisc_line(interface: &str, qdiscs: &[QdiscSnapshot]) -> String {
    let Some((root, below)) = qdiscs.split_first().filter(|(root, _)| !root.is_default()) else {
        return format!("tc qdisc del dev {interface} root");
    };
    let major = root.handle.0.major;
    let line = format!("tc qdisc replace dev {interface} root handle {major:x}: {}", root.kind);
    if let Some(remark) = undo_remark(qdiscs) {
        return format!("{line}  # {remark}");
    }
    let leaves = below.iter().filter(|qdisc| !qdisc.is_default()).map(|leaf| {
        let (parent, major) = (leaf.parent, leaf.handle.0.major);
        format!(" && tc qdisc replace dev {interface} parent {parent} handle {major:x}: {}", leaf.kind)
    });
    line + &leaves.collect::<String>()
}

/// What a shell line for a root qdisc leaves out: its options, of which there is only what the kernel shows, and then
/// the qdiscs below it.
fn undo_remark(qdiscs: &[QdiscSnapshot]) -> Option<String> {
    let mut made = qdiscs.iter().filter(|qdisc| !qdisc.is_default());
    if !made.any(|qdisc| !qdisc.options.is_empty()) {
        return None;
    }
    let below: Vec<String> = qdiscs
        .iter()
        .skip(1)
        .filter(|qdisc| !qdisc.is_default())
        .map(|qdisc| format!("{} {:x}: at {}", qdisc.kind, qdisc.handle.0.major, qdisc.parent))
        .collect();
    let options = "with the options that `tc qdisc show` shows now";
    Some(if below.is_empty() {
        options.to_owned()
    } else {
        format!("and {} below it, {options}", below.join(", "))
    })
}

/// As ethtool(8) takes it; its masks name the bits that are left open.
fn rule_line(interface: &str, location: u32, rule: Option<&RuleBytes>) -> String {
    let Some(rule) = rule.and_then(RuleBytes::rule) else {
        return format!("ethtool -N {interface} delete {location}");
    };
    let (Some(matches), Some(queue)) = (rule.matches(), rule.queue()) else {
        return format!("# {interface}: {rule} at location {location}");
    };
    let protocol = if matches.protocol == 6 { "tcp" } else { "udp" };
    let is_ipv4 = matches.source.is_ipv4();
    let mut line = format!("ethtool -N {interface} flow-type {protocol}{}", if is_ipv4 { 4 } else { 6 });
    let mut address = |name: &str, address: IpAddr, mask: u128| {
        let full = if is_ipv4 { u128::from(u32::MAX) } else { u128::MAX };
        let open = full & !mask;
        match open {
            0 => line.push_str(&format!(" {name} {address}")),
            _ if open == full => {}
            _ if is_ipv4 => {
                line.push_str(&format!(" {name} {address} m {}", Ipv4Addr::from_bits(open as u32)));
            }
            _ => line.push_str(&format!(" {name} {address} m {}", Ipv6Addr::from_bits(open))),
        }
    };
    address("src-ip", matches.source, matches.source_mask);
    address("dst-ip", matches.destination, matches.destination_mask);
    for (name, port, mask) in [
        ("src-port", matches.source_port, matches.source_port_mask),
        ("dst-port", matches.destination_port, matches.destination_port_mask),
    ] {
        match !mask {
            0 => line.push_str(&format!(" {name} {port}")),
            u16::MAX => {}
            open => line.push_str(&format!(" {name} {port} m {open:#x}")),
        }
    }
    let target = match (rule.context(), queue) {
        (Some(context), 0) => format!("context {context}"),
        (Some(context), up) => format!("context {context} action {up}"),
        (None, queue) => format!("action {queue}"),
    };
    format!("{line} {target} loc {location}")
}

/// As ethtool(8) makes a context; one that it cannot make in a line is a comment.
fn context_line(interface: &str, context: u32, table: Option<&Vec<u32>>) -> String {
    let Some(table) = table else { return format!("ethtool -X {interface} context {context} delete") };
    let first = table.iter().min().copied().unwrap_or(0);
    let moved: Vec<u32> = table.iter().map(|queue| queue - first).collect();
    match equal_spread(&moved) {
        // The kernel gives the lowest number that is free.
        Some(count) => format!("ethtool -X {interface} context new start {first} equal {count}"),
        None => format!("# RSS context {context} of {interface}: {table:?}"),
    }
}

fn sizes_line(interface: &str, what: &str, all: u32, ipv4: u32) -> String {
    format!("ip link set dev {interface} {what}_max_size {all} {what}_ipv4_max_size {ipv4}")
}

/// The kernel's own tool for netlink interfaces (`tools/net/ynl`) takes the interface by its number.
fn weight_line(interface: &str, queue: u32, weight: Option<u32>) -> String {
    let (operation, weight) = match weight {
        Some(weight) => ("set", format!(r#", "weight": {weight}"#)),
        None => ("delete", String::new()),
    };
    format!(
        r#"ynl --family net-shaper --do {operation} --json '{{"ifindex": '$(cat /sys/class/net/{interface}/ifindex)', "handle": {{"scope": "queue", "id": {queue}}}{weight}}}'"#
    )
}

/// A word as a shell takes it literally.
fn quote(word: &str) -> String {
    let plain = |character: char| character.is_ascii_alphanumeric() || "._-@/=:,+".contains(character);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}
