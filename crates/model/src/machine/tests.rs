#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

fn built_in(name: &str) -> &'static str {
    BUILT_IN.iter().find(|(known, _)| *known == name).unwrap().1
}

/// Computes the built-in figures from their source: a core at 3.4 GHz receives 4.8 Gbit/s in payloads of 1448
/// bytes. The source states the share of each part of the stack in these cycles per packet.
#[test]
fn built_in_profiles_have_the_figures_of_their_source() {
    const PROFILED: f64 = 3.4e9 / (4.8e9 / 8.0 / 1448.0);
    let part = |percent: f64| PROFILED * percent / 100.0;
    let (tcp, netdev, memory) = (part(37.2), part(16.1), part(7.0));
    let (skb, lock, sched, other) = (part(7.1), part(5.0), part(4.9), part(9.7 + 8.4));
    let half = 0.5;
    let expected = [
        [0.0, 0.0, netdev, half * memory, 0.0, 0.0, 0.0, 0.0],
        [0.0, 0.75 * tcp, 0.0, 0.0, half * skb, half * lock, 0.0, half * other],
        [0.0, 0.0, 0.0, 0.0, 0.0, half * (half * lock), 0.0, 0.0],
        [0.0, 0.0, 0.0, half * memory, 0.0, 0.0, 0.0, 0.0],
        [0.0, 0.25 * tcp, 0.0, 0.0, half * skb, half * lock, 0.0, half * other],
        [
            0.0,
            half * tcp,
            half * netdev,
            half * memory,
            half * skb,
            half * half * lock,
            0.0,
            half * half * other,
        ],
        [0.0, half * tcp, 0.0, 0.0, half * skb, 0.0, 0.0, 0.0],
        [0.0, 0.0, 2000.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, half * sched, 0.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, half * sched, 0.0],
    ];
    let (kit, xeon) = (MachineProfile::kit_2014(), MachineProfile::xeon_6128());
    for profile in [&kit, &xeon] {
        assert_eq!(profile.cycles.map(|cost| cost.by_share()), expected, "{}", profile.name);
        assert_eq!(profile.reverse_share, 2.0 / 9.0);
        assert_eq!((profile.measured(), profile.interrupt_delay), (Vec::new(), Nanoseconds::from_micros(8)));
        assert_eq!((profile.pcie.bits_per_second(), profile.nic_buffer.bytes()), (125_000_000_000, 1 << 20));
    }
    let (cached, local) = (0.046 * 3.4e9 / (4.8e9 / 8.0), 0.379);
    let copies = |profile: &MachineProfile| {
        let CopyCosts { cached, local, remote } = profile.copy;
        [cached, local, remote].map(|figure| figure.value)
    };
    assert_eq!(copies(&xeon), [cached, local, 1.5 * local]);
    assert_eq!(copies(&kit), [1.08 * cached, 1.08 * local, 1.08 * (1.5 * local)]);
    let clocks = |profile: &MachineProfile| {
        [profile.turbo_hz, profile.all_cores_hz, profile.base_hz].map(|figure| figure.value)
    };
    assert_eq!((clocks(&kit), clocks(&xeon)), ([3.2e9, 2.6e9, 2.4e9], [3.4e9; 3]));
    let shape = |profile: &MachineProfile| (profile.nodes, profile.cores_per_node, profile.nic_node);
    assert_eq!((shape(&kit), shape(&xeon)), ((2, 8, 1), (4, 6, 0)));
    let memory = |profile: &MachineProfile| (profile.miss.value, profile.ddio.bytes());
    assert_eq!((memory(&kit), memory(&xeon)), ((290.0, 2 << 20), (300.0, 3 << 20)));
    let rate = |profile: &MachineProfile| profile.interconnect.bits_per_second();
    assert_eq!((rate(&kit), rate(&xeon)), (68_000_000_000, 160_000_000_000));
}

/// Each change of `kit-2014` is an error with its line, key and remedy.
#[test]
fn errors_name_line_key_and_remedy() {
    let text = built_in("kit-2014");
    let cases = [
        ("schema = 1", "schema = 2", "schema: the file has schema 2"),
        ("name = \"kit-2014\"", "name = \"Kit!\"", "name: 'Kit!' cannot be a name"),
        ("nodes = 2", "nodes = 0", "processor.nodes: 0 is out of range; write a value from 1 to 64"),
        ("nodes = 2\n", "", "processor.nodes: missing; state the number of memory nodes"),
        (
            "nodes = 2\ncores-per-node = 8",
            "nodes = 8\ncores-per-node = 200",
            "processor.cores-per-node: 8 nodes with 200 cores each have 1600 cores; state at most 1024 cores in all",
        ),
        ("\"3.2GHz\"", "3.2", "processor.turbo-clock: a bare number; units are needed"),
        (
            "\"3.2GHz\"",
            "\"3.2gbit\"",
            "processor.turbo-clock: 'gbit' is not a unit of a frequency; use Hz, kHz, MHz or GHz",
        ),
        (
            "\"3.2GHz\"",
            "\"3.2MHz\"",
            "processor.turbo-clock: 3.2MHz is out of range; write a value from 100MHz to 20GHz",
        ),
        ("\"2.6GHz\"", "\"3.3GHz\"", "processor.all-cores-clock: above turbo-clock"),
        ("cached = ", "cashed = ", "copy.cashed: unknown key; did you mean 'cached'?"),
        ("local = 0.40932", "local = -1", "copy.local: a negative number; write a value from 0 to 1000"),
        ("local = 0.40932", "local = 1001", "copy.local: 1001 is out of range; write a value from 0 to 1000"),
        ("local = 0.40932", "local = nan", "copy.local: not a finite number"),
        ("local = 0.40932", "local = \"0.4\"", "copy.local: expected a number, found a string"),
        (
            "local = 0.40932",
            "local = { value = 0.4, low = 0.3, high = 0.5, n = 4 }",
            "copy.local.n: 4 is out of range; write a value from 5 to 1000000",
        ),
        (
            "local = 0.40932",
            "local = { value = 0.4, low = 0.3, n = 9 }",
            "copy.local.high: missing; a measured figure has value, low, high and n",
        ),
        (
            "local = 0.40932",
            "local = { value = 0.4, low = 0.45, high = 0.5, n = 9 }",
            "copy.local.low: above value; the value lies in its 95 % interval",
        ),
        (
            "local = 0.40932",
            "local = { value = 0.4, low = 0.3, high = 0.35, n = 9 }",
            "copy.local.high: below value",
        ),
        ("miss = 290", "miss = 290\nline = 64", "memory.line: unknown key"),
        ("ddio = \"2MiB\"", "ddio = \"2Mb\"", "memory.ddio: 'Mb' is not a unit of a size"),
        ("[cycles.defer]", "[cycles.deffer]", "cycles.deffer: unknown key; did you mean 'defer'?"),
        ("netdev = 2000", "total = 2000", "cycles.interrupt.total: a total without shares"),
        ("netdev = 2000", "net = 2000", "cycles.interrupt.net: unknown key"),
        ("rate = \"68gbit\"", "rate = \"68\"", "interconnect.rate: a rate needs a unit"),
        (
            "reverse-share = 0.2222222222222222",
            "reverse-share = 2",
            "interconnect.reverse-share: 2 is out of range",
        ),
        ("node = 1 #", "node = 2 #", "nic.node: 2 is out of range; write a value from 0 to 1"),
        ("\"8us\"", "\"8s\"", "nic.interrupt-delay: 8s is out of range; write a value from 0ns to 10ms"),
        ("[nic]", "[nicc]", "nicc: unknown key; did you mean 'nic'?"),
    ];
    for (from, to, expected) in cases {
        assert!(text.contains(from), "{from}");
        let line = text[..text.find(from).unwrap()].matches('\n').count() + 1;
        let error = MachineProfile::parse(&text.replacen(from, to, 1), "m.toml").unwrap_err();
        let shown = error.to_string();
        assert!(shown.contains(expected), "{from} -> {to}: {shown}");
        // A missing key is reported at the table's header.
        assert!(error.line.abs_diff(line) <= 2, "{shown}: line {line}");
    }
    let error = MachineProfile::parse("schema = 1\n[", "m.toml").unwrap_err().to_string();
    assert!(error.starts_with("m.toml:2:"), "{error}");
    assert!(MachineProfile::parse("", "m.toml").is_err());
}

#[test]
fn a_total_scales_the_shares() {
    let text = built_in("xeon-6128").replacen(
        "netdev = 2000",
        "netdev = 3\nother = 1\ntotal = { value = 4000, low = 3000, high = 5000, n = 7 }",
        1,
    );
    let profile = MachineProfile::parse(&text, "m.toml").unwrap();
    let interrupt = profile.cost(Operation::Interrupt);
    assert_eq!(interrupt.by_share(), [0.0, 0.0, 3000.0, 0.0, 0.0, 0.0, 0.0, 1000.0]);
    assert_eq!(interrupt.sum(), 4000.0);
    let names: Vec<String> = profile.measured().into_iter().map(|(key, _)| key).collect();
    assert_eq!(names, ["cycles.interrupt.total"]);
}

#[test]
fn a_draw_stays_near_the_interval_and_changes_only_measured_figures() {
    let measured = Some(Measured { low: 0.8, high: 1.25, n: 9 });
    let figure = Figure { value: 1.0, measured };
    assert_eq!(figure.drawn(0.0), 1.0);
    assert!((figure.drawn(1.96) - 1.25).abs() < 1e-9 && (figure.drawn(-1.96) - 0.8).abs() < 1e-9);
    assert!(figure.drawn(1e9) < 1.5 && figure.drawn(-1e9) > 0.6);
    let mut profile = MachineProfile::xeon_6128();
    assert_eq!(profile.drawn(|| 1.0), profile);
    profile.copy.local = figure;
    let drawn = profile.drawn(|| 1.96);
    assert!((drawn.copy.local.value - 1.25).abs() < 1e-9);
    assert_eq!(MachineProfile { copy: profile.copy, ..drawn }, profile);
}

/// Generates figures; half of them are measured. With a `step`, the values are multiples of it.
fn figures(range: std::ops::Range<f64>, step: f64) -> BoxedStrategy<Figure> {
    let parts = (range, 0.0..0.5_f64, 0.0..0.5_f64, 5..1000_u32, any::<bool>());
    parts
        .prop_map(move |(value, below, above, n, is_measured)| {
            let whole = |value: f64| if step > 0.0 { (value / step).round() * step } else { value };
            let value = whole(value);
            let (low, high) =
                (whole(value * (1.0 - below)).min(value), whole(value * (1.0 + above)).max(value));
            Figure { value, measured: is_measured.then_some(Measured { low, high, n }) }
        })
        // Boxed, because the type of nested strategies would overflow the stack of a test.
        .boxed()
}

fn costs() -> BoxedStrategy<Cost> {
    let shares = proptest::array::uniform8(prop_oneof![Just(0.0), 0.001..1e5_f64]);
    (shares, proptest::option::of(figures(1.0..1e5, 0.0)))
        .prop_map(|(mut shares, total)| {
            if total.is_some() {
                shares[7] += 1.0;
            }
            Cost { shares, total }
        })
        .boxed()
}

prop_compose! {
    fn profiles()(
        name in "[a-z][a-z0-9._-]{0,20}",
        description in "[ -~\n\"\\\\]{0,60}",
        based in prop_oneof![Just(None), Just(Some(KIT_2014.to_owned()))],
        nodes in 1..=4_u32,
        cores_per_node in 1..=64_u32,
        turbo_hz in figures(5e9..6e9, 1.0),
        all_cores_hz in figures(2e9..3e9, 1.0),
        base_hz in figures(1e9..2e9, 1.0),
        copies in proptest::array::uniform3(figures(0.0..2.0, 0.0)).boxed(),
        miss in figures(0.0..1000.0, 0.0),
        cycles in proptest::array::uniform10(costs()).boxed(),
        reverse_share in 0.0..=1.0_f64,
        rates in proptest::array::uniform2(100_000_000..400_000_000_000_u64),
        sizes in proptest::array::uniform2((64_u64 << 10)..(1_u64 << 30)),
        delay in 0..10_000_000_u64,
    ) -> MachineProfile {
        MachineProfile {
            name,
            description: description.trim().to_owned(),
            based_on: based,
            nodes,
            cores_per_node,
            turbo_hz,
            all_cores_hz,
            base_hz,
            copy: CopyCosts { cached: copies[0], local: copies[1], remote: copies[2] },
            miss,
            cycles,
            ddio: ByteSize::from_bytes(sizes[0]),
            interconnect: BitRate::from_bits_per_second(rates[0]),
            reverse_share,
            pcie: BitRate::from_bits_per_second(rates[1]),
            nic_buffer: ByteSize::from_bytes(sizes[1]),
            interrupt_delay: Nanoseconds::new(delay),
            nic_node: nodes - 1,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Reading a written profile returns the same profile.
    #[test]
    fn a_written_profile_is_read_to_the_same(profile in profiles()) {
        let text = profile.to_string();
        prop_assert_eq!(MachineProfile::parse(&text, "m.toml").map_err(|error| format!("{error}\n{text}")), Ok(profile));
    }

    /// A damaged file is a profile or an error, and an error is one printable line.
    #[test]
    fn a_damaged_file_is_no_panic(at in 0..5000_usize, length in 0..40_usize, put in "\\PC{0,8}") {
        let text: Vec<char> = built_in("kit-2014").chars().collect();
        let (from, to) = (at.min(text.len()), (at + length).min(text.len()));
        let damaged: String = text[..from].iter().copied().chain(put.chars()).chain(text[to..].iter().copied()).collect();
        if let Err(error) = MachineProfile::parse(&damaged, "m.toml") {
            prop_assert!(!error.to_string().chars().any(char::is_control));
        }
    }
}
