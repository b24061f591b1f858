//! What can be changed, and to what.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use evenkeel_netlink::ethtool::Rule;
use serde::{Deserialize, Serialize};

use crate::qdisc::{ClassHandle, QdiscSnapshot};

/// A setting of the host. Those of an interface mean the interface of the run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Knob {
    /// A sysctl, by its path below `/proc/sys`, such as `net/ipv4/tcp_tso_rtt_log`.
    Sysctl(String),
    /// `gso_max_size` and `gso_ipv4_max_size`, which the first drags along.
    GsoSizes,
    /// `gro_max_size` and `gro_ipv4_max_size`.
    GroSizes,
    /// A file of the interface, by its path below `/sys/class/net/INTERFACE`, such as
    /// `queues/tx-0/xps_cpus` or `queues/tx-0/tx_maxrate`.
    InterfaceFile(String),
    /// The `quantum` of an HTB class, bytes.
    HtbQuantum(ClassHandle),
    /// The weight of a transmit queue, by its number, in the kernel's net-shaper interface
    /// (`Documentation/netlink/specs/net_shaper.yaml`).
    QueueWeight(u32),
    /// The root qdisc with what hangs below it.
    RootQdisc,
    /// The n-tuple rule at a location (`ethtool -n`).
    NtupleRule(u32),
    /// The indirection table of receive-side scaling (`ethtool -x`).
    RssTable,
}

/// An n-tuple rule, byte for byte as the kernel has it, in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RuleBytes(String);

impl RuleBytes {
    /// The rule; none if a journal was damaged.
    #[must_use]
    pub fn rule(&self) -> Option<Rule> {
        Rule::from_hex(&self.0)
    }
}

impl From<&Rule> for RuleBytes {
    fn from(rule: &Rule) -> Self {
        Self(rule.to_hex())
    }
}

impl fmt::Display for RuleBytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rule() {
            Some(rule) => rule.fmt(formatter),
            None => write!(formatter, "'{}'", self.0),
        }
    }
}

/// A setting's value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Value {
    /// What a file holds, without white space around it.
    Text(String),
    /// Bytes.
    Bytes(u32),
    /// The weight in a queue's shaper, 0 where that has none; none at all: the queue has no shaper.
    Weight(Option<u32>),
    /// A pair of sizes, bytes; on kernels before 6.3 both are the same.
    Sizes {
        /// `gso_max_size` or `gro_max_size`.
        all: u32,
        /// `gso_ipv4_max_size` or `gro_ipv4_max_size`.
        ipv4: u32,
    },
    /// The root qdisc first, then those below it.
    Qdiscs(Vec<QdiscSnapshot>),
    /// The rule at a location; none: there is none.
    Rule(Option<RuleBytes>),
    /// The queue of each entry of an indirection table.
    Table(Vec<u32>),
}

/// Every value that a run may give a knob: by these it knows its own work again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Ours {
    /// Exactly these.
    These(Vec<Value>),
    /// Bytes between these, both included.
    BytesBetween {
        /// The smallest.
        least: u32,
        /// The largest.
        most: u32,
    },
    /// A file's number or a weight between these, both included.
    NumberBetween {
        /// The smallest.
        least: u64,
        /// The largest.
        most: u64,
    },
}

/// A change that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What to change.
    pub knob: Knob,
    /// The value that it is to have.
    pub to: Value,
}

impl Knob {
    /// Whether two values are the same setting, however the kernel writes it.
    #[must_use]
    pub fn same(&self, one: &Value, other: &Value) -> bool {
        match (one, other) {
            (Value::Text(one), Value::Text(other)) => self.normal_form(one) == self.normal_form(other),
            // Without a weight in its shaper a queue is served as without a shaper.
            (Value::Weight(one), Value::Weight(other)) => one.unwrap_or(0) == other.unwrap_or(0),
            // What the kernel puts there by itself is nobody's setting: its kind and leaves follow the number of
            // queues and `net.core.default_qdisc`, its options the MTU.
            (Value::Qdiscs(one), Value::Qdiscs(other)) => match (one.first(), other.first()) {
                (Some(one), Some(other)) if one.is_default() && other.is_default() => true,
                _ => one == other,
            },
            _ => one == other,
        }
    }

    /// Masks are written with as many words as the machine has processors; sysctls of several figures are
    /// separated by tabs.
    fn normal_form(&self, text: &str) -> String {
        if self.is_mask() {
            let digits: String = text.trim().chars().filter(|digit| *digit != ',').collect();
            return digits.trim_start_matches('0').to_ascii_lowercase();
        }
        text.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Whether a value is one of a run's own.
    #[must_use]
    pub fn is_ours(&self, value: &Value, ours: &Ours) -> bool {
        match (ours, value) {
            (Ours::BytesBetween { least, most }, Value::Bytes(bytes)) => (least..=most).contains(&bytes),
            (Ours::NumberBetween { least, most }, Value::Text(text)) => {
                text.trim().parse::<u64>().is_ok_and(|number| (least..=most).contains(&&number))
            }
            (Ours::NumberBetween { least, most }, Value::Weight(Some(weight))) => {
                (*least..=*most).contains(&u64::from(*weight))
            }
            (Ours::BytesBetween { .. } | Ours::NumberBetween { .. }, _) => false,
            (Ours::These(list), Value::Qdiscs(found)) => list.iter().any(|own| match own {
                // What hangs below our own root came with it.
                Value::Qdiscs(own) => match (own.first(), found.first()) {
                    (Some(own), Some(found)) => found.is_made_as(own),
                    _ => false,
                },
                _ => false,
            }),
            (Ours::These(list), _) => list.iter().any(|own| self.same(own, value)),
        }
    }

    /// By how much a value differs from another one, of a knob that has figures.
    #[must_use]
    pub fn difference(&self, value: &Value, other: &Value) -> Option<i64> {
        let figure = |value: &Value| match value {
            Value::Bytes(bytes) | Value::Sizes { all: bytes, .. } => Some(i64::from(*bytes)),
            Value::Weight(weight) => weight.map(i64::from),
            Value::Text(text) if !self.is_mask() => text.parse().ok(),
            Value::Text(_) | Value::Qdiscs(_) | Value::Rule(_) | Value::Table(_) => None,
        };
        figure(value)?.checked_sub(figure(other)?)
    }

    fn is_mask(&self) -> bool {
        const MASKS: [&str; 3] = ["/xps_cpus", "/xps_rxqs", "/rps_cpus"];
        matches!(self, Self::InterfaceFile(file) if MASKS.iter().any(|name| file.ends_with(name)))
    }

    /// Its name, with the interface that it belongs to.
    #[must_use]
    pub fn on<'a>(&'a self, interface: &'a str) -> impl fmt::Display + 'a {
        NamedKnob { knob: self, interface }
    }
}

struct NamedKnob<'a> {
    knob: &'a Knob,
    interface: &'a str,
}

impl fmt::Display for NamedKnob<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let interface = self.interface;
        match self.knob {
            Knob::Sysctl(name) => write!(formatter, "the sysctl {}", sysctl_name(name)),
            Knob::GsoSizes => write!(formatter, "gso_max_size of {interface}"),
            Knob::GroSizes => write!(formatter, "gro_max_size of {interface}"),
            Knob::InterfaceFile(file) => write!(formatter, "/sys/class/net/{interface}/{file}"),
            Knob::HtbQuantum(class) => {
                write!(formatter, "the quantum of the HTB class {class} of {interface}")
            }
            Knob::QueueWeight(queue) => {
                write!(formatter, "the shaper weight of queue {queue} of {interface}")
            }
            Knob::RootQdisc => write!(formatter, "the root qdisc of {interface}"),
            Knob::NtupleRule(location) => {
                write!(formatter, "the n-tuple rule at location {location} of {interface}")
            }
            Knob::RssTable => write!(formatter, "the RSS table of {interface}"),
        }
    }
}

/// A sysctl's name as sysctl(8) has it; with slashes where a part has a point in it.
#[must_use]
pub(crate) fn sysctl_name(path: &str) -> String {
    if path.contains('.') { path.to_owned() } else { path.replace('/', ".") }
}

impl fmt::Display for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(formatter, "'{text}'"),
            Self::Bytes(bytes) => write!(formatter, "{bytes} bytes"),
            Self::Weight(Some(weight)) => write!(formatter, "{weight}"),
            Self::Weight(None) => formatter.write_str("none"),
            Self::Sizes { all, ipv4 } => write!(formatter, "{all} bytes (IPv4: {ipv4})"),
            Self::Qdiscs(qdiscs) => match qdiscs.first() {
                Some(root) if root.is_default() => write!(formatter, "{} (the kernel's default)", root.kind),
                Some(root) => write!(formatter, "{} {:x}:", root.kind, root.handle.0.major),
                None => formatter.write_str("none"),
            },
            Self::Rule(Some(rule)) => rule.fmt(formatter),
            Self::Rule(None) => formatter.write_str("none"),
            Self::Table(queues) => {
                let queues: Vec<String> = queues.iter().map(ToString::to_string).collect();
                write!(formatter, "[{}]", queues.join(" "))
            }
        }
    }
}

impl fmt::Display for Ours {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::These(list) => {
                let list: Vec<String> = list.iter().map(ToString::to_string).collect();
                formatter.write_str(&list.join(" or "))
            }
            Self::BytesBetween { least, most } => write!(formatter, "{least} to {most} bytes"),
            Self::NumberBetween { least, most } => write!(formatter, "{least} to {most}"),
        }
    }
}

impl Change {
    /// A change.
    #[must_use]
    pub fn new(knob: Knob, to: Value) -> Self {
        Self { knob, to }
    }

    /// The shell line that makes it, for people who want advice only.
    #[must_use]
    pub fn shell(&self, interface: &str) -> String {
        let quoted = quote(interface);
        match (&self.knob, &self.to) {
            (Knob::Sysctl(name), Value::Text(text)) => {
                format!("sysctl -w {}", quote(&format!("{}={text}", sysctl_name(name))))
            }
            (Knob::GsoSizes, Value::Sizes { all, ipv4 }) => sizes_line(&quoted, "gso", *all, *ipv4),
            (Knob::GroSizes, Value::Sizes { all, ipv4 }) => sizes_line(&quoted, "gro", *all, *ipv4),
            (Knob::InterfaceFile(file), Value::Text(text)) => {
                format!("echo {} > {}", quote(text), quote(&format!("/sys/class/net/{interface}/{file}")))
            }
            (Knob::HtbQuantum(class), Value::Bytes(bytes)) => format!(
                "tc class change dev {quoted} classid {class} htb \
                 $(tc class show dev {quoted} classid {class} | grep -o 'rate.*') quantum {bytes}"
            ),
            (Knob::QueueWeight(queue), Value::Weight(weight)) => weight_line(&quoted, *queue, *weight),
            (Knob::RootQdisc, Value::Qdiscs(qdiscs)) => match qdiscs.first() {
                Some(root) if !root.is_default() => {
                    let major = root.handle.0.major;
                    let rest = undo_remark(qdiscs).map(|rest| format!("  # {rest}")).unwrap_or_default();
                    format!("tc qdisc replace dev {quoted} root handle {major:x}: {}{rest}", root.kind)
                }
                _ => format!("tc qdisc del dev {quoted} root"),
            },
            (Knob::NtupleRule(location), Value::Rule(rule)) => rule_line(&quoted, *location, rule.as_ref()),
            (Knob::RssTable, Value::Table(queues)) => format!("# RSS table of {interface}: {queues:?}"),
            (knob, value) => format!("# {} = {value}", knob.on(interface)),
        }
    }
}

/// What a shell line for a root qdisc leaves out: its options, of which there is only what the kernel shows, and
/// the qdiscs below it.
fn undo_remark(qdiscs: &[QdiscSnapshot]) -> Option<String> {
    let below: Vec<String> = qdiscs
        .iter()
        .skip(1)
        .filter(|qdisc| !qdisc.is_default())
        .map(|qdisc| format!("{} {:x}: at {}", qdisc.kind, qdisc.handle.0.major, qdisc.parent))
        .collect();
    let has_options = qdiscs.iter().any(|qdisc| !qdisc.is_default() && !qdisc.options.is_empty());
    let options = has_options.then_some("with the options that `tc qdisc show` shows now");
    let below = (!below.is_empty()).then(|| format!("and {} below it", below.join(", ")));
    match (below, options) {
        (Some(below), Some(options)) => Some(format!("{below}, {options}")),
        (below, options) => below.or(options.map(str::to_owned)),
    }
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
    format!("{line} action {queue} loc {location}")
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn text(value: &str) -> Value {
        Value::Text(value.to_owned())
    }

    #[test]
    fn the_kernels_way_of_writing_makes_no_difference() {
        let map = Knob::InterfaceFile("queues/tx-0/xps_cpus".to_owned());
        assert!(map.same(&text("0"), &text("00000000,00000000")));
        assert!(map.same(&text("A0"), &text("000000a0")));
        assert!(!map.same(&text("1"), &text("10")));
        let sysctl = Knob::Sysctl("net/ipv4/tcp_wmem".to_owned());
        assert!(sysctl.same(&text("4096\t16384\t4194304"), &text("4096 16384 4194304")));
        assert!(!sysctl.same(&text("0"), &text("00")));
    }

    fn qdisc(kind: &str, major: u16, parent: evenkeel_netlink::tc::Handle, options: &str) -> QdiscSnapshot {
        let handle = ClassHandle(evenkeel_netlink::tc::Handle::new(major, 0));
        let (kind, options) = (kind.to_owned(), options.to_owned());
        QdiscSnapshot { kind, handle, parent: ClassHandle(parent), options }
    }

    #[test]
    fn what_the_kernel_puts_there_by_itself_is_the_same_with_other_queues() {
        use evenkeel_netlink::tc::Handle;
        let tree = |kind: &str, major, leaves: u16| {
            let leaf = |minor| qdisc("fq_codel", 0, Handle::new(major, minor), "00");
            let mut tree = vec![qdisc(kind, major, Handle::ROOT, "")];
            tree.extend((1..=leaves).map(leaf));
            Value::Qdiscs(tree)
        };
        let same = |one: &Value, other: &Value| Knob::RootQdisc.same(one, other);
        assert!(same(&tree("mq", 0, 4), &tree("mq", 0, 2)));
        assert!(same(&tree("mq", 0, 4), &tree("fq_codel", 0, 0)), "ethtool -L, down to one queue");
        // One that somebody made is another one with other leaves.
        assert!(!same(&tree("mq", 7, 4), &tree("mq", 7, 2)));
        assert!(!same(&tree("mq", 7, 4), &tree("mq", 0, 4)));
    }

    #[test]
    fn what_a_line_for_a_root_qdisc_leaves_out_is_said() {
        use evenkeel_netlink::tc::Handle;
        let line = |tree| Change::new(Knob::RootQdisc, Value::Qdiscs(tree)).shell("eth0");
        let root = qdisc("mq", 7, Handle::ROOT, "");
        assert_eq!(line(vec![root.clone()]), "tc qdisc replace dev eth0 root handle 7: mq");
        let tree = vec![
            root,
            qdisc("tbf", 0x11, Handle::new(7, 1), "00"),
            qdisc("pfifo_fast", 0, Handle::new(7, 2), "00"),
        ];
        assert_eq!(
            line(tree),
            "tc qdisc replace dev eth0 root handle 7: mq  # and tbf 11: at 7:1 below it, with the options that \
             `tc qdisc show` shows now"
        );
    }

    #[test]
    fn shell_lines_can_be_pasted() {
        let line = |knob, to| Change::new(knob, to).shell("eth0");
        assert_eq!(
            line(Knob::Sysctl("net/ipv4/tcp_wmem".into()), text("1 2 3")),
            "sysctl -w 'net.ipv4.tcp_wmem=1 2 3'"
        );
        assert_eq!(
            line(Knob::Sysctl("net/ipv4/conf/eth0.7/forwarding".into()), text("1")),
            "sysctl -w net/ipv4/conf/eth0.7/forwarding=1"
        );
        assert_eq!(
            line(Knob::GsoSizes, Value::Sizes { all: 16384, ipv4: 16384 }),
            "ip link set dev eth0 gso_max_size 16384 gso_ipv4_max_size 16384"
        );
        assert_eq!(
            line(Knob::InterfaceFile("queues/tx-0/xps_cpus".into()), text("3")),
            "echo 3 > /sys/class/net/eth0/queues/tx-0/xps_cpus"
        );
        let odd = Change::new(Knob::GsoSizes, Value::Sizes { all: 1, ipv4: 1 }).shell("a$(b)'c");
        assert_eq!(odd, r"ip link set dev 'a$(b)'\''c' gso_max_size 1 gso_ipv4_max_size 1");
    }

    #[test]
    fn a_queue_without_a_weight_is_as_one_without_a_shaper() {
        let knob = Knob::QueueWeight(2);
        let weight = Value::Weight;
        assert!(knob.same(&weight(None), &weight(Some(0))));
        assert!(!knob.same(&weight(None), &weight(Some(1))));
        assert!(!knob.same(&weight(Some(2)), &weight(Some(1))));
        let ours = Ours::NumberBetween { least: 1, most: 9 };
        for (found, own) in
            [(None, false), (Some(0), false), (Some(1), true), (Some(9), true), (Some(10), false)]
        {
            assert_eq!(knob.is_ours(&weight(found), &ours), own, "{found:?}");
        }
        assert_eq!(
            Change::new(knob.clone(), weight(Some(7))).shell("eth0"),
            "ynl --family net-shaper --do set --json '{\"ifindex\": '$(cat /sys/class/net/eth0/ifindex)', \"handle\": \
             {\"scope\": \"queue\", \"id\": 2}, \"weight\": 7}'"
        );
        let undo = Change::new(knob, weight(None)).shell("eth0");
        assert!(undo.contains("--do delete") && !undo.contains("weight"), "{undo}");
    }

    #[test]
    fn a_range_is_ours_to_both_ends() {
        let ours = Ours::BytesBetween { least: 10, most: 20 };
        let knob = Knob::HtbQuantum(ClassHandle(evenkeel_netlink::tc::Handle::new(1, 0x10)));
        for (bytes, own) in [(9, false), (10, true), (20, true), (21, false)] {
            assert_eq!(knob.is_ours(&Value::Bytes(bytes), &ours), own, "{bytes}");
        }
        assert!(!knob.is_ours(&text("15"), &ours));
        let ours = Ours::NumberBetween { least: 10, most: 20 };
        let knob = Knob::Sysctl("net/ipv4/tcp_limit_output_bytes".to_owned());
        for (number, own) in [("9", false), ("10", true), ("20", true), ("21", false), ("x", false)] {
            assert_eq!(knob.is_ours(&text(number), &ours), own, "{number}");
        }
        assert!(!knob.is_ours(&Value::Bytes(15), &ours));
    }

    #[test]
    fn a_rule_is_written_as_ethtool_takes_it() {
        let matches = evenkeel_netlink::ethtool::RuleMatch {
            protocol: 6,
            source: "10.1.0.0".parse().unwrap(),
            source_mask: 0xffff_0000,
            destination: "10.0.0.100".parse().unwrap(),
            destination_mask: u128::from(u32::MAX),
            source_port: 0,
            source_port_mask: 0,
            destination_port: 11211,
            destination_port_mask: u16::MAX,
        };
        let rule = RuleBytes::from(&Rule::steer(7, &matches, 3));
        let knob = Knob::NtupleRule(7);
        assert_eq!(
            Change::new(knob.clone(), Value::Rule(Some(rule.clone()))).shell("eth0"),
            "ethtool -N eth0 flow-type tcp4 src-ip 10.1.0.0 m 0.0.255.255 dst-ip 10.0.0.100 dst-port 11211 action 3 loc 7"
        );
        assert_eq!(Change::new(knob.clone(), Value::Rule(None)).shell("eth0"), "ethtool -N eth0 delete 7");
        // What the journal holds is the rule, byte for byte.
        let text = serde_json::to_string(&Value::Rule(Some(rule.clone()))).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), Value::Rule(Some(rule.clone())));
        assert!(knob.is_ours(&Value::Rule(Some(rule.clone())), &Ours::These(vec![Value::Rule(Some(rule))])));
    }
}
