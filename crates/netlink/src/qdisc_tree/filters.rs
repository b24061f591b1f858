//! Filters in the kernel's format: u32, flower, and classic BPF.
//!
//! One program of classic BPF sends each flow or role to its class, for any number of flows. The program
//! computes the class from the destination port, and returns the number of the class. For other packets, it
//! returns the class for the rest, or 0 without such a class: the filter then does not match
//! (`cls_bpf_classify`, `net/sched/cls_bpf.c`). Layouts follow `include/uapi/linux/pkt_cls.h` and `filter.h`.

use evenkeel_model::qdisc::{BULK_PORT, Classifier, Filter, PROBE_PORT};

use crate::tc::Handle;
use crate::tc_state::push_attribute;

/// `ETH_P_IP`.
const IPV4: u16 = 0x0800;
/// `ETH_P_ALL`.
const EVERYTHING: u16 = 0x0003;
/// Number of destination ports for probes, from [`PROBE_PORT`] on.
const PROBE_PORTS: u32 = 1024;
/// First destination port of rules that match no packet. The range is separate from the flows' ports. It is
/// also below the default range of the clients' ports (`net.ipv4.ip_local_port_range`), which are destination
/// ports in the reverse direction.
const IDLE_PORT: u16 = 20_000;
/// Maximum number of rules that match no packet. Each rule needs a port.
pub(super) const MOST_IDLE_RULES: u32 = 12_000;

/// A filter: kind, protocol, and payload of `TCA_OPTIONS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Encoded {
    pub(super) kind: &'static str,
    pub(super) protocol: u16,
    pub(super) options: Vec<u8>,
}

pub(super) fn of_tree(filter: &Filter) -> Encoded {
    match *filter {
        Filter::PerFlow { first, bulk_flows, probes, classes, rest } => {
            bpf(&per_flow(first, bulk_flows, probes, classes, rest))
        }
        Filter::ByRole { probes, bulk } => bpf(&by_role(probes, bulk)),
        Filter::Port { classifier, port, class } => of_port(classifier, port, class),
    }
}

/// Returns one of the rules that match no packet; the numbers of these rules start at 0. Returns `None` if
/// `number` is [`MOST_IDLE_RULES`] or more.
pub(super) fn idle_rule(classifier: Classifier, number: u32, class: Handle) -> Option<Encoded> {
    let number = u16::try_from(number).ok().filter(|number| u32::from(*number) < MOST_IDLE_RULES)?;
    Some(of_port(classifier, IDLE_PORT + number, class))
}

fn of_port(classifier: Classifier, port: u16, class: Handle) -> Encoded {
    match classifier {
        Classifier::U32 => u32_of_port(port, class),
        Classifier::Flower => flower_of_port(port, class),
        Classifier::Bpf => bpf(&one_port(port, class)),
    }
}

/// Encodes `match ip dport PORT 0xffff`: the second half of the word after an IPv4 header without options.
fn u32_of_port(port: u16, class: Handle) -> Encoded {
    const TCA_U32_CLASSID: u16 = 1;
    const TCA_U32_SEL: u16 = 5;
    const TC_U32_TERMINAL: u8 = 1;
    let mut options = Vec::new();
    push_attribute(&mut options, TCA_U32_CLASSID, &class.class_id().to_ne_bytes());
    // struct tc_u32_sel: flags, offshift, nkeys, padding, offmask, off, offoff, hoff, hmask
    let mut selector = vec![TC_U32_TERMINAL, 0, 1, 0];
    selector.extend([0; 12]);
    // struct tc_u32_key: mask and value in network byte order, off, offmask
    selector.extend(0xffff_u32.to_be_bytes());
    selector.extend(u32::from(port).to_be_bytes());
    selector.extend(20_i32.to_ne_bytes());
    selector.extend(0_i32.to_ne_bytes());
    push_attribute(&mut options, TCA_U32_SEL, &selector);
    Encoded { kind: "u32", protocol: IPV4, options }
}

/// Encodes `ip_proto tcp dst_port PORT`.
fn flower_of_port(port: u16, class: Handle) -> Encoded {
    const TCA_FLOWER_CLASSID: u16 = 1;
    const TCA_FLOWER_KEY_ETH_TYPE: u16 = 8;
    const TCA_FLOWER_KEY_IP_PROTO: u16 = 9;
    const TCA_FLOWER_KEY_TCP_DST: u16 = 19;
    const TCA_FLOWER_FLAGS: u16 = 22;
    const TCP: u8 = 6;
    let mut options = Vec::new();
    push_attribute(&mut options, TCA_FLOWER_KEY_IP_PROTO, &[TCP]);
    push_attribute(&mut options, TCA_FLOWER_KEY_TCP_DST, &port.to_be_bytes());
    push_attribute(&mut options, TCA_FLOWER_CLASSID, &class.class_id().to_ne_bytes());
    push_attribute(&mut options, TCA_FLOWER_FLAGS, &0_u32.to_ne_bytes());
    push_attribute(&mut options, TCA_FLOWER_KEY_ETH_TYPE, &IPV4.to_be_bytes());
    Encoded { kind: "flower", protocol: IPV4, options }
}

/// An instruction (`struct sock_filter`) with symbolic jump targets.
#[derive(Clone, Copy)]
enum Instruction {
    /// Code and operand.
    Plain(u16, u32),
    /// Code, operand, and the targets if the condition is true and if it is false.
    Jump(u16, u32, To, To),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    Next,
    /// A target that skips this number of instructions.
    Skip(u8),
    /// A target at the last instruction, which handles all other packets.
    Last,
}

/// `BPF_LD | BPF_H | BPF_ABS`.
const LOAD_HALF: u16 = 0x28;
/// `BPF_LD | BPF_B | BPF_ABS`.
const LOAD_BYTE: u16 = 0x30;
/// `BPF_LD | BPF_H | BPF_IND`.
const LOAD_HALF_BEHIND_HEADER: u16 = 0x48;
/// `BPF_LDX | BPF_B | BPF_MSH`.
const LOAD_HEADER_LENGTH: u16 = 0xb1;
/// `BPF_JMP | BPF_JEQ | BPF_K`.
const IF_EQUAL: u16 = 0x15;
/// `BPF_JMP | BPF_JGE | BPF_K`.
const IF_NOT_LESS: u16 = 0x35;
/// `BPF_JMP | BPF_JSET | BPF_K`.
const IF_ANY_BIT: u16 = 0x45;
/// `BPF_ALU | BPF_ADD | BPF_K`.
const ADD: u16 = 0x04;
/// `BPF_ALU | BPF_SUB | BPF_K`.
const SUBTRACT: u16 = 0x14;
/// `BPF_ALU | BPF_MOD | BPF_K`.
const REMAINDER: u16 = 0x94;
/// `BPF_RET | BPF_K`.
const RETURN: u16 = 0x06;
/// `BPF_RET | BPF_A`.
const RETURN_RESULT: u16 = 0x16;

/// Returns instructions that load the destination port of a TCP or UDP packet over IPv4. For other packets,
/// they jump to the last instruction. They do the same for fragments after the first, which have no port.
fn load_port() -> Vec<Instruction> {
    use Instruction::{Jump, Plain};
    const ETHERTYPE: u32 = 12;
    const FRAGMENT: u32 = 14 + 6;
    const PROTOCOL: u32 = 14 + 9;
    const HEADER: u32 = 14;
    const DESTINATION_PORT: u32 = 14 + 2;
    vec![
        Plain(LOAD_HALF, ETHERTYPE),
        Jump(IF_EQUAL, IPV4 as u32, To::Next, To::Last),
        Plain(LOAD_BYTE, PROTOCOL),
        Jump(IF_EQUAL, libc::IPPROTO_TCP as u32, To::Skip(1), To::Next),
        Jump(IF_EQUAL, libc::IPPROTO_UDP as u32, To::Next, To::Last),
        Plain(LOAD_HALF, FRAGMENT),
        Jump(IF_ANY_BIT, 0x1fff, To::Last, To::Next),
        Plain(LOAD_HEADER_LENGTH, HEADER),
        Plain(LOAD_HALF_BEHIND_HEADER, DESTINATION_PORT),
    ]
}

fn per_flow(
    first: Handle,
    bulk_flows: u32,
    probes: u32,
    classes: u32,
    rest: Option<Handle>,
) -> Vec<Instruction> {
    use Instruction::{Jump, Plain};
    let mut program = load_port();
    program.extend([
        // A smaller port wraps around to a number above all flows.
        Plain(SUBTRACT, u32::from(BULK_PORT)),
        Jump(IF_NOT_LESS, bulk_flows, To::Next, To::Skip(3)),
        Plain(SUBTRACT, u32::from(PROBE_PORT - BULK_PORT)),
        Jump(IF_NOT_LESS, probes, To::Last, To::Next),
        Plain(ADD, bulk_flows),
        Plain(REMAINDER, classes.max(1)),
        Plain(ADD, first.class_id()),
        Plain(RETURN_RESULT, 0),
        Plain(RETURN, rest.map_or(0, Handle::class_id)),
    ]);
    program
}

fn by_role(probes: Handle, bulk: Handle) -> Vec<Instruction> {
    use Instruction::{Jump, Plain};
    let mut program = load_port();
    program.extend([
        Plain(SUBTRACT, u32::from(PROBE_PORT)),
        Jump(IF_NOT_LESS, PROBE_PORTS, To::Last, To::Next),
        Plain(RETURN, probes.class_id()),
        Plain(RETURN, bulk.class_id()),
    ]);
    program
}

fn one_port(port: u16, class: Handle) -> Vec<Instruction> {
    use Instruction::{Jump, Plain};
    let mut program = load_port();
    program.extend([
        Jump(IF_EQUAL, u32::from(port), To::Next, To::Last),
        Plain(RETURN, class.class_id()),
        Plain(RETURN, 0),
    ]);
    program
}

/// Encodes the program as an array of `struct sock_filter`: code, jt, jf, k.
fn bpf(program: &[Instruction]) -> Encoded {
    const TCA_BPF_OPS_LEN: u16 = 4;
    const TCA_BPF_OPS: u16 = 5;
    let last = program.len().saturating_sub(1);
    let mut operations = Vec::new();
    for (at, instruction) in program.iter().enumerate() {
        let offset = |to: To| match to {
            To::Next => 0,
            To::Skip(instructions) => instructions,
            To::Last => u8::try_from(last.saturating_sub(at + 1)).unwrap_or(u8::MAX),
        };
        let (code, operand, holds, fails) = match *instruction {
            Instruction::Plain(code, operand) => (code, operand, 0, 0),
            Instruction::Jump(code, operand, holds, fails) => (code, operand, offset(holds), offset(fails)),
        };
        operations.extend(code.to_ne_bytes());
        operations.extend([holds, fails]);
        operations.extend(operand.to_ne_bytes());
    }
    let mut options = Vec::new();
    let length = u16::try_from(program.len()).unwrap_or(u16::MAX);
    push_attribute(&mut options, TCA_BPF_OPS_LEN, &length.to_ne_bytes());
    push_attribute(&mut options, TCA_BPF_OPS, &operations);
    Encoded { kind: "bpf", protocol: EVERYTHING, options }
}
