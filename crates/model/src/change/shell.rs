//! Equivalent shell lines of changes.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::{FILTER_HANDLE, FilterPlace, Knob, QdiscSnapshot, RuleBytes, Value, clsact};
use crate::shell::Line;

/// Returns a sysctl's name in sysctl(8)'s notation, with slashes if a part contains a dot.
#[must_use]
pub fn sysctl_name(path: &str) -> String {
    if path.contains('.') { path.to_owned() } else { path.replace('/', ".") }
}

/// Returns the line that sets a knob. With the previous value, this line undoes a change. If a shell
/// line cannot express the change, the result is a comment.
#[must_use]
pub fn shell(interface: &str, knob: &Knob, value: &Value) -> Line {
    match (knob, value) {
        (Knob::Sysctl(path), Value::Text(text)) => sysctl_line(path, &one_line(text)),
        (Knob::GsoSizes, Value::Sizes { all, ipv4 }) => sizes_line(interface, "gso", *all, *ipv4),
        (Knob::GroSizes, Value::Sizes { all, ipv4 }) => sizes_line(interface, "gro", *all, *ipv4),
        (Knob::InterfaceFile(file), Value::Text(text)) => {
            Line::write(text, &format!("/sys/class/net/{interface}/{file}"))
        }
        (Knob::HtbQuantum(class), Value::Bytes(bytes)) => Line::new(
            "tc class change dev {} classid {} htb $(tc class show dev {} classid {} | grep -o 'rate.*') quantum {}",
            &[&interface, class, &interface, class, bytes],
        ),
        (Knob::QueueWeight(queue), Value::Weight(weight)) => weight_line(interface, *queue, *weight),
        (Knob::RootQdisc, Value::Qdiscs(qdiscs)) => qdisc_line(interface, qdiscs),
        (Knob::Clsact, Value::Text(state)) => {
            let verb = if state == clsact::NONE { "del" } else { "add" };
            Line::new("tc qdisc {} dev {} clsact", &[&verb, &interface])
        }
        (Knob::Filter(FilterPlace { direction, preference }), Value::Program(None)) => Line::new(
            "tc filter del dev {} {} pref {} handle {} bpf",
            &[&interface, &direction.word(), preference, &format_args!("{FILTER_HANDLE:#x}")],
        ),
        (Knob::NtupleRule(location), Value::Rule(rule)) => rule_line(interface, *location, rule.as_ref()),
        (Knob::RssTable, Value::Table(queues)) => match equal_spread(queues) {
            Some(count) => Line::new("ethtool -X {} equal {}", &[&interface, &count]),
            None => Line::comment(format_args!("RSS table of {interface}: {queues:?}")),
        },
        (Knob::RssContext(context), Value::Context(table)) => {
            context_line(interface, *context, table.as_ref())
        }
        (Knob::InterruptAffinity(interrupt), Value::Text(text)) => {
            Line::write(text, &format!("/proc/irq/{interrupt}/smp_affinity_list"))
        }
        (Knob::Ring(ring), Value::Number(number)) => {
            Line::new("ethtool -G {} {} {}", &[&interface, &ring.word(), number])
        }
        (Knob::Channels(channels), Value::Number(number)) => {
            Line::new("ethtool -L {} {} {}", &[&interface, &channels.word(), number])
        }
        (Knob::Coalescing(parameter), Value::Number(_) | Value::Switch(_)) => {
            Line::new("ethtool -C {} {} {}", &[&interface, &parameter.word(), value])
        }
        (Knob::Feature(name), Value::Switch(_)) => {
            Line::new("ethtool -K {} {} {}", &[&interface, name, value])
        }
        (Knob::FlowHash(flows), Value::Text(fields)) => {
            Line::new("ethtool -N {} rx-flow-hash {} {}", &[&interface, flows, fields])
        }
        (Knob::Mtu, Value::Bytes(bytes)) => Line::new("ip link set dev {} mtu {}", &[&interface, bytes]),
        (Knob::TransmitQueueLength, Value::Number(packets)) => {
            Line::new("ip link set dev {} txqueuelen {}", &[&interface, packets])
        }
        (Knob::ProcessorFile(file), Value::Text(text)) => {
            Line::write(text, &format!("/sys/devices/system/cpu/{file}"))
        }
        (knob, value) => Line::comment(format_args!("{} = {value}", knob.on(interface))),
    }
}

/// Returns the lines that set several knobs, in the order of the first setting of each line. A loop sets the
/// files of at least three CPUs, queues or interrupts that get the same value. Each line has the indices of
/// its settings in the list.
#[must_use]
pub fn shell_lines(interface: &str, settings: &[(&Knob, &Value)]) -> Vec<(Line, Vec<usize>)> {
    /// For at least this number of files, a loop is shorter than single lines.
    const MANY: usize = 3;
    let mut lines: Vec<(Line, Vec<usize>)> = Vec::new();
    let mut done = vec![false; settings.len()];
    for at in 0..settings.len() {
        if done[at] {
            continue;
        }
        let (knob, value) = settings[at];
        let series = series(knob);
        let is_alike = |other: &usize| {
            let (knob, other) = settings[*other];
            series.is_some()
                && self::series(knob).map(|found| (found.0, found.2))
                    == series.map(|found| (found.0, found.2))
                && other == value
        };
        let members: Vec<usize> = (at..settings.len()).filter(is_alike).collect();
        let loops = series.filter(|_| members.len() >= MANY).and_then(|(kind, _, rest)| {
            let numbers =
                members.iter().filter_map(|member| self::series(settings[*member].0)).map(|found| found.1);
            series_line(interface, kind, &numbers.collect::<Vec<_>>(), rest, value)
        });
        let (line, members) = match loops {
            Some(line) => (line, members),
            None => (shell(interface, knob, value), vec![at]),
        };
        for member in &members {
            done[*member] = true;
        }
        lines.push((line, members));
    }
    lines
}

/// A group of files whose paths differ only in a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Series {
    Processor,
    ReceiveQueue,
    TransmitQueue,
    Interrupt,
}

/// Returns a knob's series, the knob's number in the series, and the rest of its path; `None` if the
/// knob belongs to no series.
fn series(knob: &Knob) -> Option<(Series, u32, &str)> {
    let (kind, text) = match knob {
        Knob::ProcessorFile(file) => (Series::Processor, file.strip_prefix("cpu")?),
        Knob::InterfaceFile(file) => match file.strip_prefix("queues/rx-") {
            Some(text) => (Series::ReceiveQueue, text),
            None => (Series::TransmitQueue, file.strip_prefix("queues/tx-")?),
        },
        Knob::InterruptAffinity(number) => return Some((Series::Interrupt, *number, "")),
        _ => return None,
    };
    let (number, rest) = text.split_once('/')?;
    Some((kind, number.parse().ok()?, rest))
}

fn series_line(interface: &str, kind: Series, numbers: &[u32], rest: &str, value: &Value) -> Option<Line> {
    let Value::Text(text) = value else { return None };
    let parts = || interface.split('/').chain(rest.split('/'));
    if text.starts_with('-') || text.contains('\\') || parts().any(|part| part == "..") {
        return None;
    }
    let (first, last) = (*numbers.first()?, *numbers.last()?);
    let line = if numbers.iter().copied().eq(first..=last) {
        Line::new("for n in $(seq {} {}); do ", &[&first, &last])
    } else {
        numbers
            .iter()
            .fold(Line::new("for n in", &[]), |line, number| line.with(" {}", &[number]))
            .with("; do ", &[])
    };
    Some(match kind {
        Series::Processor => line.with("echo {} > /sys/devices/system/cpu/cpu$n/{}; done", &[text, &rest]),
        Series::ReceiveQueue => {
            line.with("echo {} > /sys/class/net/{}/queues/rx-$n/{}; done", &[text, &interface, &rest])
        }
        Series::TransmitQueue => {
            line.with("echo {} > /sys/class/net/{}/queues/tx-$n/{}; done", &[text, &interface, &rest])
        }
        Series::Interrupt => line.with("echo {} > /proc/irq/$n/smp_affinity_list; done", &[text]),
    })
}

/// Returns a value with single spaces, because the kernel separates several numbers by tabs.
fn one_line(text: &str) -> String {
    text.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the line that sets a sysctl. The line writes the file directly if sysctl(8) would misread the
/// name: as a pattern (`*`, `?` or `[`), as an option (a leading `-`), or as a name and a value (`=`).
fn sysctl_line(path: &str, value: &str) -> Line {
    if path.starts_with('-') || path.contains(['*', '?', '[', '=']) {
        return Line::write(value, &format!("/proc/sys/{path}"));
    }
    Line::new("sysctl -w {}", &[&format_args!("{}={value}", sysctl_name(path))])
}

/// Returns the line that sets the largest packets of `gso` or `gro`. For a size up to 64 KiB, the
/// kernel also sets the size for IPv4 (`netif_set_gso_max_size`, net/core/dev.h). Only iproute2 6.3 and
/// newer has an option for the IPv4 size.
fn sizes_line(interface: &str, kind: &str, all: u32, ipv4: u32) -> Line {
    const LEGACY_MAX_SIZE: u32 = 65_536;
    let line = Line::new("ip link set dev {} {}_max_size {}", &[&interface, &kind, &all]);
    if all == ipv4 && all <= LEGACY_MAX_SIZE {
        return line;
    }
    line.with(" {}_ipv4_max_size {}", &[&kind, &ipv4])
}

/// Returns the number of queues if the table's entries are 0, 1, 2, ... repeated; `None` for any other
/// table.
fn equal_spread(queues: &[u32]) -> Option<u32> {
    let count = queues.iter().max()?.checked_add(1)?;
    let in_turn = (0..count).cycle().take(queues.len()).eq(queues.iter().copied());
    in_turn.then_some(count)
}

/// Returns a line with one command per qdisc, except for default qdiscs. If the root is a default qdisc or
/// the tree is empty, the line removes the root qdisc. A remark names qdiscs whose options are known only in
/// the kernel's binary form, which `tc` does not accept.
fn qdisc_line(interface: &str, qdiscs: &[QdiscSnapshot]) -> Line {
    let Some((root, below)) = qdiscs.split_first().filter(|(root, _)| !root.is_default()) else {
        return Line::new("tc qdisc del dev {} root", &[&interface]);
    };
    let number = |qdisc: &QdiscSnapshot| format!("{:x}:", qdisc.handle.0.major);
    let with_options = |line: Line, qdisc: &QdiscSnapshot| {
        let words = tc_options(qdisc).unwrap_or_default();
        words.iter().fold(line, |line, word| line.with(" {}", &[word]))
    };
    let line =
        Line::new("tc qdisc replace dev {} root handle {} {}", &[&interface, &number(root), &root.kind]);
    let below = below.iter().filter(|qdisc| !qdisc.is_default());
    let line = below.fold(with_options(line, root), |line, leaf| {
        let next = Line::new(
            "tc qdisc replace dev {} parent {} handle {} {}",
            &[&interface, &leaf.parent, &number(leaf), &leaf.kind],
        );
        line.and(with_options(next, leaf))
    });
    let unknown = qdiscs.iter().filter(|qdisc| !qdisc.is_default() && tc_options(qdisc).is_none());
    let unknown: Vec<String> = unknown.map(|qdisc| format!("{} at {}", qdisc.kind, qdisc.parent)).collect();
    if unknown.is_empty() {
        return line;
    }
    line.remark(format_args!(
        "lacks the options of {}, which evenkeel restores; to restore them by hand, save `tc qdisc show dev {interface}` \
         first",
        unknown.join(", ")
    ))
}

/// Returns a qdisc's options as words of `tc`; `None` if the options are not known.
fn tc_options(qdisc: &QdiscSnapshot) -> Option<Vec<String>> {
    // The options of mq and pfifo_fast cannot be set.
    if qdisc.options.is_empty() || ["mq", "pfifo_fast"].contains(&&*qdisc.kind) {
        return Some(Vec::new());
    }
    let bytes = qdisc.option_bytes()?;
    match qdisc.kind.as_str() {
        "pfifo" | "bfifo" => Some(vec!["limit".to_owned(), word_at(&bytes, 0)?.to_string()]),
        "tbf" => tbf_options(&bytes),
        _ => None,
    }
}

fn word_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Returns the options of TBF as words of `tc`, from `struct tc_tbf_qopt` (`include/uapi/linux/pkt_sched.h`)
/// and the attributes for rates above 32 bits. Returns `None` if the options are damaged, or if a rate has an
/// overhead, an mpu or a link layer other than Ethernet.
fn tbf_options(mut attributes: &[u8]) -> Option<Vec<String>> {
    const PARAMETERS: u16 = 1;
    const RATE: u16 = 4;
    const PEAK_RATE: u16 = 5;
    /// `PSCHED_TICKS2NS`.
    const TICK_NS: u128 = 64;
    let (mut parameters, mut rate, mut peak) = (None, None, None);
    while let Some((header, _)) = attributes.split_first_chunk::<4>() {
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let value = attributes.get(4..length)?;
        let long = || value.try_into().ok().map(u64::from_ne_bytes);
        match u16::from_ne_bytes([header[2], header[3]]) {
            PARAMETERS => parameters = Some(value),
            RATE => rate = long(),
            PEAK_RATE => peak = long(),
            _ => {}
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    let parameters = parameters?;
    let field = |at| word_at(parameters, at);
    // A `struct tc_ratespec` begins with cell_log, linklayer (1: Ethernet), overhead, cell_align and mpu.
    // The rate follows.
    let is_plain = |at: usize| {
        parameters.get(at + 1).is_some_and(|layer| *layer <= 1)
            && parameters
                .get(at + 2..at + 8)
                .is_some_and(|rest| [rest[0], rest[1], rest[4], rest[5]] == [0; 4])
    };
    if !is_plain(0) || !is_plain(12) {
        return None;
    }
    let rate = rate.unwrap_or(u64::from(field(8)?));
    let peak = peak.unwrap_or(u64::from(field(20)?));
    // `tc` rounds the time of a burst down to ticks, so the size in bytes is rounded up to give the same
    // ticks.
    let burst = |ticks: u32, rate: u64| {
        (u128::from(ticks) * TICK_NS * u128::from(rate)).div_ceil(1_000_000_000).to_string()
    };
    let mut words = vec!["rate".to_owned(), format!("{}bit", u128::from(rate) * 8)];
    words.extend(["burst".to_owned(), burst(field(28)?, rate), "limit".to_owned(), field(24)?.to_string()]);
    if peak > 0 {
        words.extend(["peakrate".to_owned(), format!("{}bit", u128::from(peak) * 8)]);
        words.extend(["mtu".to_owned(), burst(field(32)?, peak)]);
    }
    Some(words)
}

/// Returns the line that sets the rule at a location, or deletes it if `rule` is `None`. The device ignores
/// the set bits of a mask in ethtool(8)'s syntax. If a shell line cannot express the rule, the result is a
/// comment.
fn rule_line(interface: &str, location: u32, rule: Option<&RuleBytes>) -> Line {
    let Some(bytes) = rule else {
        return Line::new("ethtool -N {} delete {}", &[&interface, &location]);
    };
    let Some(rule) = bytes.rule() else {
        return Line::comment(format_args!("{interface}: unknown rule at location {location}"));
    };
    let (Some(matches), Some(queue)) = (rule.matches(), rule.queue()) else {
        return Line::comment(format_args!("{interface}: {rule} at location {location}"));
    };
    let protocol = if matches.protocol == 6 { "tcp" } else { "udp" };
    let is_ipv4 = matches.source.is_ipv4();
    let version = if is_ipv4 { 4 } else { 6 };
    let mut line =
        Line::new("ethtool -N {} flow-type {}", &[&interface, &format_args!("{protocol}{version}")]);
    let full = if is_ipv4 { u128::from(u32::MAX) } else { u128::MAX };
    for (name, address, mask) in [
        ("src-ip", matches.source, matches.source_mask),
        ("dst-ip", matches.destination, matches.destination_mask),
    ] {
        let open = full & !mask;
        line = match open {
            0 => line.with(" {} {}", &[&name, &address]),
            _ if open == full => line,
            _ if is_ipv4 => line.with(" {} {} m {}", &[&name, &address, &Ipv4Addr::from_bits(open as u32)]),
            _ => line.with(" {} {} m {}", &[&name, &address, &Ipv6Addr::from_bits(open)]),
        };
    }
    for (name, port, mask) in [
        ("src-port", matches.source_port, matches.source_port_mask),
        ("dst-port", matches.destination_port, matches.destination_port_mask),
    ] {
        line = match !mask {
            0 => line.with(" {} {}", &[&name, &port]),
            u16::MAX => line,
            open => line.with(" {} {} m {}", &[&name, &port, &format_args!("{open:#x}")]),
        };
    }
    line = match (rule.context(), queue) {
        (Some(context), 0) => line.with(" context {}", &[&context]),
        (Some(context), up) => line.with(" context {} action {}", &[&context, &up]),
        (None, queue) => line.with(" action {}", &[&queue]),
    };
    line.with(" loc {}", &[&location])
}

/// Returns an RSS context's table in ethtool(8)'s syntax. If a shell line cannot express the table, the
/// result is a comment.
fn context_line(interface: &str, context: u32, table: Option<&Vec<u32>>) -> Line {
    let Some(table) = table else {
        return Line::new("ethtool -X {} context {} delete", &[&interface, &context]);
    };
    let first = table.iter().min().copied().unwrap_or(0);
    let moved: Vec<u32> = table.iter().map(|queue| queue - first).collect();
    match equal_spread(&moved) {
        // The line cannot state the number: `context new` allocates the lowest free number.
        Some(count) => {
            Line::new("ethtool -X {} context new start {} equal {}", &[&interface, &first, &count])
        }
        None => Line::comment(format_args!("RSS context {context} of {interface}: {table:?}")),
    }
}

/// Returns the line that sets or deletes a queue's shaper with the kernel's netlink tool (`tools/net/ynl`).
/// The tool identifies the interface by its index.
fn weight_line(interface: &str, queue: u32, weight: Option<u32>) -> Line {
    let (operation, weight) = match weight {
        Some(weight) => ("set", format!(r#", "weight": {weight}"#)),
        None => ("delete", String::new()),
    };
    let index = format!("/sys/class/net/{interface}/ifindex");
    let handle = format!(r#", "handle": {{"scope": "queue", "id": {queue}}}{weight}}}"#);
    Line::new(
        r#"ynl --family net-shaper --do {} --json '{"ifindex": '$(cat {}){}"#,
        &[&operation, &index, &handle],
    )
}
