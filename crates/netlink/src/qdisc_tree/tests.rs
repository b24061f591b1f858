//! Compares layouts with the requests of iproute2 6.1.0's `tc`: `strace -e trace=sendmsg -e write=3 tc
//! COMMAND` in a namespace with an interface `v0`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::*;
use crate::tc_state::NESTED;
use evenkeel_model::qdisc::{Catalogue, Surroundings};
use evenkeel_model::units::{BitRate, ByteSize};

const ON: Surroundings = Surroundings {
    rate: BitRate::from_bits_per_second(1_000_000_000),
    bulk_flows: 2,
    probes: 1,
    queues: 2,
    largest_segment: ByteSize::from_bytes(65_550),
    mtu: ByteSize::from_bytes(1500),
};

fn last_step(steps: &[&str]) -> Step {
    let quoted: Vec<String> = steps.iter().map(|step| format!("{step:?}")).collect();
    let text = format!("schema = 1\n[setup.s]\nsummary = \"s\"\nsteps = [{}]\n", quoted.join(", "));
    let tree = Catalogue::parse(&text, "s.toml").unwrap().get("s").unwrap().resolve(&ON).unwrap();
    tree.steps.last().unwrap().clone()
}

fn options_of(step: &Step) -> Option<(u16, Vec<u8>)> {
    let message = match step {
        Step::Qdisc(node) => node_message(RTM_NEWQDISC, 3, node, options::of_qdisc(node)),
        Step::Class(node) => node_message(RTM_NEWTCLASS, 3, node, Some(options::of_class(node))),
        Step::Filter { parent, filter } => filter_message(3, *parent, 7, &filters::of_tree(filter)),
    };
    let kind = attributes_of(&message.payload[20..])[0].1.clone();
    assert_eq!(kind.last(), Some(&0), "the name ends with a zero byte");
    attributes_of(&message.payload[20..]).get(1).cloned()
}

fn attributes_of(mut rest: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let mut found = Vec::new();
    while rest.len() >= 4 {
        let length = u16::from_ne_bytes([rest[0], rest[1]]) as usize;
        found.push((u16::from_ne_bytes([rest[2], rest[3]]), rest[4..length].to_vec()));
        rest = &rest[length.next_multiple_of(4).min(rest.len())..];
    }
    found
}

fn bytes(digits: &str) -> Vec<u8> {
    digits
        .as_bytes()
        .chunks_exact(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

fn same_attributes(found: &[u8], expected: &str, leave_out: &[u16]) {
    let sorted = |bytes: &[u8]| {
        let mut list = attributes_of(bytes);
        list.retain(|(kind, _)| !leave_out.contains(kind));
        list.sort();
        list
    };
    assert_eq!(sorted(found), sorted(&bytes(expected)));
}

#[test]
fn qdiscs_with_a_structure_are_as_tc_sends_them() {
    for (step, expected) in [
        ("qdisc root handle 1: pfifo limit 1000", "e8030000"),
        ("qdisc root handle 1: bfifo limit 1500000b", "60e31600"),
        (
            "qdisc root handle 1: sfq limit 1000 perturb 10 quantum 3028 divisor 1024 flows 256 depth 127 headdrop",
            "d40b00000a000000e803000000040000000100007f00000001000000\
             0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000",
        ),
        // tc also sends an empty attribute: 04000200.
        (
            "qdisc root handle 1: prio bands 2 priomap 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 0",
            "0200000001010101010101010101010101010100",
        ),
        ("qdisc root handle 1: hfsc default 0", "0000"),
    ] {
        assert_eq!(options_of(&last_step(&[step])), Some((TCA_OPTIONS, bytes(expected))), "{step}");
    }
    let hfsc = ["qdisc root handle 1: hfsc default 2", "class parent 1: classid 1:2 hfsc ls rate 1mbit"];
    let text = format!("schema = 1\n[setup.s]\nsummary = \"s\"\nsteps = [{:?}, {:?}]\n", hfsc[0], hfsc[1]);
    let tree = Catalogue::parse(&text, "s").unwrap().get("s").unwrap().resolve(&ON).unwrap();
    assert_eq!(options_of(&tree.steps[0]), Some((TCA_OPTIONS, bytes("0200"))));
}

#[test]
fn qdiscs_with_attributes_are_as_tc_sends_them() {
    for (step, expected) in [
        (
            "qdisc root handle 1: fq limit 10000 flow_limit 100 quantum 3028 initial_quantum 15140 maxrate 1gbit \
             buckets 1024 refill_delay 40ms orphan_mask 1023 low_rate_threshold 550kbit ce_threshold 5ms timer_slack 10us \
             horizon 10s horizon_drop pacing",
            "080008000a0000000800010010270000080002006400000008000300d40b000008000400243b0000080005000100000008000700\
             4059730708000b008e0c010008000900409c000008000a00ff03000008000c008813000008000d001027000008000e0080969800\
             05000f0001000000",
        ),
        (
            "qdisc root handle 1: fq_codel limit 10240 flows 1024 quantum 1514 target 5ms interval 100ms ce_threshold \
             1ms memory_limit 32mb drop_batch 64 ecn",
            "0800020000280000080005000004000008000600ea05000008000300a0860100080001008813000008000400010000000800\
             0700e803000008000900000000020800080040000000",
        ),
        (
            "qdisc root handle 1: codel limit 1000 target 5ms interval 100ms noecn",
            "08000200e803000008000300a086010008000100881300000800040000000000",
        ),
        (
            "qdisc root handle 1: pie limit 1000 target 15ms tupdate 15ms alpha 2 beta 20 ecn bytemode",
            "08000200e803000008000300983a000008000100983a000008000400020000000800050014000000080006000100000008000700\
             01000000",
        ),
    ] {
        let (kind, options) = options_of(&last_step(&[step])).unwrap();
        assert_eq!(kind, TCA_OPTIONS, "{step}");
        same_attributes(&options, expected, &[]);
    }
    // tc also sends attribute 9 (TCA_CAKE_AUTORATE): the bandwidth is not measured, which is the kernel's
    // default.
    for (step, expected) in [
        (
            "qdisc root handle 1: cake bandwidth 100mbit besteffort flows nat wash ack-filter split-gso rtt 50ms memlimit \
             4mb overhead 18 mpu 64 ingress",
            "0c00020020bcbe000000000008000300030000000800050004000000080006001200000008000e00400000000800070050c30000\
             08000800c4090000080009000000000008000a000000400008000b000100000008000d0001000000080011000100000008000f00\
             010000000800100001000000",
        ),
        ("qdisc root handle 1: cake unlimited", "0c00020000000000000000000800090000000000"),
    ] {
        // tc computes a target from rtt, and sends the target as attribute 8. Without attribute 8, the
        // kernel computes the same target.
        same_attributes(&options_of(&last_step(&[step])).unwrap().1, expected, &[8, 9]);
    }
    for step in ["drr", "qfq", "mq", "sfq", "fq", "pfifo_fast", "pfifo"] {
        assert_eq!(options_of(&last_step(&[&format!("qdisc root handle 1: {step}")])), None, "{step}");
    }
}

#[test]
fn bands_are_nested() {
    let step = last_step(&["qdisc root handle 1: ets bands 4 strict 1 quanta 1514 3028 priomap 3 2 1"]);
    let expected = "050001000400000005000200010000001400038008000400ea05000008000400d40b00001c0005800500060003000000\
                    05000600020000000500060001000000";
    assert_eq!(options_of(&step), Some((TCA_OPTIONS | NESTED, bytes(expected))));
}

/// Removes fields that `tc` adds for kernels before 3.8: `cell_log` and `cell_align` of both `struct
/// tc_ratespec`. They belong to the rate tables (attributes 3 and 4 of HTB, 2 and 3 of TBF). In a `struct
/// tc_ratespec` without a rate, the fields are 0 already.
fn without_cells(options: &[u8]) -> Vec<u8> {
    let mut plain = options.to_vec();
    for at in [4, 16] {
        plain[at] = 0;
        plain[at + 4..at + 6].fill(0);
    }
    plain
}

#[test]
fn htb_is_as_tc_sends_it() {
    let step = last_step(&["qdisc root handle 1: htb default 0 r2q 100 direct_qlen 1000"]);
    let expected = "18000200030000006400000000000000000000000000000008000500e8030000";
    assert_eq!(options_of(&step), Some((TCA_OPTIONS, bytes(expected))));
    let step = last_step(&["qdisc root handle 1: htb"]);
    assert_eq!(
        options_of(&step).unwrap().1,
        bytes("18000200030000000a000000000000000000000000000000"),
        "r2q is tc's"
    );

    // tc class add dev v0 parent 5: classid 5:10 htb rate 500mbit ceil 1gbit burst 62500 cburst 125000 quantum 68520 prio 1
    let class = last_step(&[
        "qdisc root handle 5: htb",
        "class parent 5: classid 5:10 htb rate 500mbit ceil 1gbit burst 62500 cburst 125000 quantum 68520 prio 1",
    ]);
    let expected =
        "3000010003010000ffff0000a0acb90303010000ffff000040597307093d0000093d0000a80b01000000000001000000";
    assert_eq!(options_of(&class).unwrap().1, without_cells(&bytes(expected)));

    // tc class add dev v0 parent 5: classid 5:11 htb rate 40gbit burst 5000000 cburst 5000000
    let class = last_step(&[
        "qdisc root handle 5: htb",
        "class parent 5: classid 5:11 htb rate 40gbit burst 5000000 cburst 5000000",
    ]);
    let found = options_of(&class).unwrap().1;
    same_attributes(&found[..24], "0c00060000f2052a010000000c00070000f2052a01000000", &[]);
    let expected =
        "3000010003010000ffff0000ffffffff03010000ffff0000ffffffff093d0000093d0000000000000000000000000000";
    assert_eq!(found[24..], without_cells(&bytes(expected)));
}

#[test]
fn tbf_is_as_tc_sends_it() {
    // tc qdisc add dev v0 root handle 1: tbf rate 800mbit burst 100000 limit 1500000
    let step = last_step(&["qdisc root handle 1: tbf rate 800mbit burst 100000 limit 1500000"]);
    let expected = "2800010003010000ffff000000e1f50500000000000000000000000060e31600093d000000000000";
    let found = options_of(&step).unwrap().1;
    assert_eq!(found[..40], without_cells(&bytes(expected)));
    same_attributes(&found[40..], "08000600a0860100", &[]);

    // tc qdisc add dev v0 root handle 1: tbf rate 40gbit burst 5000000 latency 10ms peakrate 80gbit mtu 20000
    // tc computes its bucket times for 34 Gbit/s, the 32-bit maximum; the kernel uses the buckets in bytes
    // instead.
    let step = last_step(&[
        "qdisc root handle 1: tbf rate 40gbit burst 5000000 latency 10ms peakrate 80gbit mtu 20000",
    ]);
    let expected = "2800010007010000ffff0000ffffffff07010000ffff0000ffffffffc03b4703";
    let found = options_of(&step).unwrap().1;
    assert_eq!(found[..32], without_cells(&bytes(expected)));
    let beside = "08000600404b4c000c00040000f2052a0100000008000700204e00000c00050000e40b5402000000";
    same_attributes(&found[40..], beside, &[]);
}

#[test]
fn classes_are_as_tc_sends_them() {
    for (steps, expected) in [
        (
            [
                "qdisc root handle 5: hfsc",
                "class parent 5: classid 5:12 hfsc sc m1 1mbit d 5ms m2 2mbit ul rate 1gbit",
            ],
            "1000010048e801008813000090d003001000020048e801008813000090d0030010000300000000000000000040597307",
        ),
        (
            ["qdisc root handle 5: hfsc", "class parent 5: classid 5:12 hfsc ls rate 500mbit"],
            "100002000000000000000000a0acb903",
        ),
        (["qdisc root handle 5: drr", "class parent 5: classid 5:12 drr quantum 1514"], "08000100ea050000"),
        (["qdisc root handle 5: drr", "class parent 5: classid 5:12 drr"], ""),
        (
            ["qdisc root handle 5: qfq", "class parent 5: classid 5:12 qfq weight 3 maxpkt 2048"],
            "08000100030000000800020000080000",
        ),
    ] {
        assert_eq!(options_of(&last_step(&steps)), Some((TCA_OPTIONS, bytes(expected))), "{steps:?}");
    }
}

#[test]
fn filters_are_as_tc_sends_them() {
    for (step, expected) in [
        (
            "filter parent 5: u32 match ip dport 5201 0xffff classid 5:10",
            "080001001000050024000500010001000000000000000000000000000000ffff000014511400000000000000",
        ),
        (
            "filter parent 5: flower ip_proto tcp dst_port 5201 classid 5:10",
            "05000900060000000600130014510000080001001000050008001600000000000600080008000000",
        ),
    ] {
        let step = last_step(&["qdisc root handle 5: dualpi2", step]);
        assert_eq!(options_of(&step), Some((TCA_OPTIONS, bytes(expected))));
        let Step::Filter { parent, filter } = &step else { panic!("{step}") };
        let message = filter_message(3, *parent, 7, &filters::of_tree(filter));
        // struct tcmsg: family and padding, interface, handle, parent, preference and protocol.
        assert_eq!(message.payload[..20], bytes("0000000003000000000000000000050008000700"));
    }
    // `tc filter add dev v0 parent 5: protocol all prio 7 bpf bytecode '4,40 0 0 12,21 0 1 2048,6 0 0
    // 327696,6 0 0 0'` sends attributes 4 (a 16-bit length) and 5 (code, jt, jf, k). This crate sends
    // the same attributes.
    let step =
        last_step(&["qdisc root handle 5: dualpi2", "filter parent 5: bpf dst_port 5201 classid 5:10"]);
    let found = attributes_of(&options_of(&step).unwrap().1);
    assert_eq!(found[0], (4, bytes("0c00")));
    assert_eq!(found[1].0, 5);
    assert_eq!(found[1].1.len(), 12 * 8);
    assert_eq!(found[1].1[..16], bytes("280000000c000000150000090008000 0".replace(' ', "").as_str()));
    assert_eq!(found[1].1[72..], bytes("150000015114000006000000100005000600000000000000"));
}

#[test]
fn unknown_kinds_are_strict() {
    let step = last_step(&[
        "qdisc root handle 1: dualpi2 attribute 1 u32 5 attribute 2 u8 7 attribute 3 bytes 00ff attribute 4 flag \
         attribute 5 u16 258 attribute 6 u64 1 attribute 7 text on",
    ]);
    let (kind, options) = options_of(&step).unwrap();
    assert_eq!(kind, TCA_OPTIONS | NESTED);
    let expected = [
        (1, 5_u32.to_ne_bytes().to_vec()),
        (2, vec![7]),
        (3, vec![0, 0xff]),
        (4, vec![]),
        (5, 258_u16.to_ne_bytes().to_vec()),
        (6, 1_u64.to_ne_bytes().to_vec()),
        (7, b"on\0".to_vec()),
    ];
    assert_eq!(attributes_of(&options), expected);
}

#[test]
fn messages_are_whole_attributes() {
    let whole = |mut rest: &[u8]| {
        while !rest.is_empty() {
            let length = u16::from_ne_bytes([rest[0], rest[1]]) as usize;
            assert!(length >= 4 && length.next_multiple_of(4) <= rest.len(), "{length} of {}", rest.len());
            rest = &rest[length.next_multiple_of(4)..];
        }
    };
    let on = Surroundings { bulk_flows: 100, probes: 8, queues: 64, ..ON };
    for setup in Catalogue::bundled().setups() {
        for step in setup.resolve(&on).unwrap().on_line(on.rate).steps {
            let message = match &step {
                Step::Qdisc(node) => node_message(RTM_NEWQDISC, 3, node, options::of_qdisc(node)),
                Step::Class(node) => node_message(RTM_NEWTCLASS, 3, node, Some(options::of_class(node))),
                Step::Filter { parent, filter } => filter_message(3, *parent, 7, &filters::of_tree(filter)),
            };
            whole(&message.payload[20..]);
            // These kinds have a structure as options. All other kinds have attributes.
            if let (Some((_, options)), false) = (
                attributes_of(&message.payload[20..]).get(1),
                matches!(&step, Step::Qdisc(node) if ["pfifo", "bfifo", "sfq", "prio", "hfsc"].contains(&node.kind.as_str())),
            ) {
                whole(options);
            }
        }
    }
}

/// Runs a classic BPF program on a packet, like `net/core/filter.c`.
fn run(filter: &Encoded, packet: &[u8]) -> u32 {
    let operations = attributes_of(&filter.options)[1].1.clone();
    let (mut a, mut x, mut at) = (0_u32, 0_u32, 0_usize);
    loop {
        let operation = &operations[at * 8..at * 8 + 8];
        let code = u16::from_ne_bytes([operation[0], operation[1]]);
        let (holds, fails) = (operation[2] as usize, operation[3] as usize);
        let k = u32::from_ne_bytes(operation[4..].try_into().unwrap());
        at += 1;
        let load = |offset: u32, width: usize| {
            let bytes = packet.get(offset as usize..offset as usize + width)?;
            Some(bytes.iter().fold(0, |value, byte| value << 8 | u32::from(*byte)))
        };
        let loaded = match code {
            0x28 => load(k, 2),
            0x30 => load(k, 1),
            0x48 => load(k + x, 2),
            0xb1 => load(k, 1).map(|byte| (byte & 0xf) * 4),
            0x15 => Some(u32::from(a == k)),
            0x35 => Some(u32::from(a >= k)),
            0x45 => Some(u32::from(a & k != 0)),
            0x04 => Some(a.wrapping_add(k)),
            0x14 => Some(a.wrapping_sub(k)),
            0x94 => Some(a % k),
            0x06 => return k,
            0x16 => return a,
            other => panic!("{other:#x}"),
        };
        // A load beyond the packet's end ends the program with 0.
        let Some(value) = loaded else { return 0 };
        match code {
            0x15 | 0x35 | 0x45 => at += if value == 1 { holds } else { fails },
            0xb1 => x = value,
            _ => a = value,
        }
    }
}

fn packet(ethertype: u16, protocol: u8, options: u8, fragment: u16, port: u16) -> Vec<u8> {
    let mut packet = vec![0; 12];
    packet.extend(ethertype.to_be_bytes());
    packet.extend([0x45 + options, 0, 0, 60, 0, 0]);
    packet.extend(fragment.to_be_bytes());
    packet.extend([64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    packet.extend(vec![1; 4 * options as usize]);
    packet.extend(40_000_u16.to_be_bytes());
    packet.extend(port.to_be_bytes());
    packet.extend([0; 16]);
    packet
}

#[test]
fn each_flow_goes_to_its_class() {
    use evenkeel_model::qdisc::Filter;
    let first = Handle::new(1, 0x101);
    let class = |bulk_flows, probes, classes, packet: &[u8]| {
        let filter = Filter::PerFlow { first, bulk_flows, probes, classes, rest: Some(Handle::new(1, 2)) };
        Handle::new(1, (run(&filters::of_tree(&filter), packet) & 0xffff) as u16).minor
    };
    let tcp = |port| packet(0x0800, 6, 0, 0, port);
    for flow in 0..96 {
        assert_eq!(class(96, 4, 100, &tcp(5201 + flow)), 0x101 + flow);
        assert_eq!(class(96, 4, 16, &tcp(5201 + flow)), 0x101 + flow % 16);
    }
    for probe in 0..4 {
        assert_eq!(class(96, 4, 100, &tcp(11_111 + probe)), 0x101 + 96 + probe);
    }
    for port in [0, 1, 5200, 5201 + 96, 11_110, 11_115, 40_000, u16::MAX] {
        assert_eq!(class(96, 4, 100, &tcp(port)), 2, "{port}");
    }
    assert_eq!(class(1, 0, 1, &packet(0x0800, 17, 0, 0, 5201)), 0x101, "UDP");
    assert_eq!(class(1, 0, 1, &packet(0x0800, 6, 3, 0, 5201)), 0x101, "behind options");
    assert_eq!(class(1, 0, 1, &packet(0x0800, 1, 0, 0, 5201)), 2, "ICMP has no ports");
    assert_eq!(class(1, 0, 1, &packet(0x0800, 6, 0, 100, 5201)), 2, "a later fragment");
    assert_eq!(class(1, 0, 1, &packet(0x0800, 6, 0, 0x4000, 5201)), 0x101, "not to be fragmented");
    assert_eq!(class(1, 0, 1, &packet(0x0806, 6, 0, 0, 5201)), 2, "ARP");
    let alone = Filter::PerFlow { first, bulk_flows: 0, probes: 0, classes: 1, rest: None };
    assert_eq!(run(&filters::of_tree(&alone), &tcp(5201)), 0);
}

#[test]
fn roles_and_ports_go_to_their_classes() {
    use evenkeel_model::qdisc::Filter;
    let (probes, bulk) = (Handle::new(1, 0x10), Handle::new(1, 0x20));
    let tcp = |port| packet(0x0800, 6, 0, 0, port);
    let of = |packet: &[u8]| run(&filters::of_tree(&Filter::ByRole { probes, bulk }), packet);
    for port in [11_111, 11_112, 12_134] {
        assert_eq!(of(&tcp(port)), probes.class_id(), "{port}");
    }
    for port in [5201, 11_110, 12_135, 0, u16::MAX] {
        assert_eq!(of(&tcp(port)), bulk.class_id(), "{port}");
    }
    assert_eq!(of(&packet(0x0806, 0, 0, 0, 0)), bulk.class_id(), "ARP");
    let one = filters::idle_rule(Classifier::Bpf, 5, probes).unwrap();
    assert_eq!(run(&one, &tcp(20_005)), probes.class_id());
    assert_eq!((run(&one, &tcp(20_004)), run(&one, &tcp(5201))), (0, 0));
    assert!(filters::idle_rule(Classifier::Bpf, filters::MOST_IDLE_RULES, probes).is_none());
}

#[test]
fn only_a_kind_that_is_not_there_is_lacking() {
    let refused = |code, words: Option<&str>| NetlinkError::Refused {
        action: "make it".to_owned(),
        source: std::io::Error::from_raw_os_error(code),
        kernel_says: words.map(str::to_owned),
    };
    assert!(means_unknown(&refused(libc::ENOENT, Some("Specified qdisc kind is unknown"))));
    assert!(means_unknown(&refused(libc::ENOENT, Some("TC classifier not found"))));
    assert!(means_unknown(&refused(libc::ENOENT, None)));
    assert!(!means_unknown(&refused(libc::ENOENT, Some("Failed to find specified qdisc"))));
    assert!(!means_unknown(&refused(libc::EINVAL, None)));
    assert!(shows_kind(Ok(())).unwrap());
    assert!(!shows_kind(Err(refused(libc::ENOENT, Some("Specified qdisc kind is unknown")))).unwrap());
    for code in [libc::EINVAL, libc::EOPNOTSUPP] {
        assert!(shows_kind(Err(refused(code, None))).unwrap());
    }
    // These errors do not show whether the kernel has the kind.
    for code in [libc::ENOMEM, libc::ENOBUFS, libc::EBUSY, libc::EPERM, libc::ENODEV] {
        assert_eq!(shows_kind(Err(refused(code, None))).unwrap_err().refusal_code(), Some(code));
    }
    assert!(shows_kind(Err(refused(libc::ENOENT, Some("Failed to find specified qdisc")))).is_err());
}
