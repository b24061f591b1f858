#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::*;

fn surroundings(bulk_flows: u32, probes: u32, queues: u32) -> Surroundings {
    Surroundings {
        rate: BitRate::from_bits_per_second(1_000_000_000),
        bulk_flows,
        probes,
        queues,
        largest_segment: ByteSize::from_bytes(65_550),
        mtu: ByteSize::from_bytes(1500),
    }
}

fn setup(steps: &[&str]) -> QdiscSetup {
    let quoted: Vec<String> = steps.iter().map(|step| format!("{step:?}")).collect();
    let text = format!("schema = 1\n[setup.mine]\nsummary = \"mine\"\nsteps = [{}]\n", quoted.join(", "));
    let catalogue = Catalogue::parse(&text, "mine.toml").unwrap();
    QdiscSetup::clone(&catalogue.get("mine").unwrap())
}

fn resolved(steps: &[&str], on: &Surroundings) -> String {
    setup(steps).resolve(on).unwrap().to_string()
}

fn refusal(steps: &str) -> String {
    let text = format!("schema = 1\n[setup.mine]\nsummary = \"mine\"\nsteps = [\n{steps}\n]\n");
    Catalogue::parse(&text, "mine.toml").unwrap_err().to_string()
}

#[test]
fn the_bundled_file_is_right() {
    let catalogue = Catalogue::parse(Catalogue::bundled_text(), "qdiscs/setups.toml").unwrap();
    assert_eq!(Catalogue::bundled(), catalogue);
    let names: Vec<&str> = catalogue.names().collect();
    for name in [
        "pfifo",
        "bfifo",
        "pfifo_fast",
        "fq",
        "fq_codel",
        "mq-fq_codel",
        "sfq",
        "drr",
        "qfq",
        "htb",
        "htb-two-classes",
        "htb-priority",
        "htb-capped",
        "hfsc",
        "ets",
        "ets-priority",
        "prio",
        "tbf",
        "cake",
        "sfq-prio",
    ] {
        assert!(names.contains(&name), "{name}");
    }
    assert_eq!(names[0], "pfifo", "in the order of the file");
    let priority = catalogue.get("htb-priority").unwrap();
    assert_eq!(priority.claims, [Claim::Priority, Claim::WorkConservation].into());
    assert!(priority.is_classful() && !catalogue.get("fq").unwrap().is_classful());
    assert_eq!(catalogue.get("mq-fq_codel").unwrap().kinds(), ["fq_codel", "mq"].into());
}

#[test]
fn bundled_setups_fit_from_one_flow_to_128() {
    for setup in Catalogue::bundled().setups() {
        for on in [
            surroundings(1, 0, 1),
            surroundings(0, 1, 1),
            surroundings(0, 0, 1),
            surroundings(96, 16, 8),
            surroundings(128, 0, 2),
            Surroundings { largest_segment: ByteSize::from_bytes(1514), ..surroundings(8, 1, 2) },
        ] {
            let tree = setup.resolve(&on).unwrap();
            assert!(tree.root().is_some_and(|root| root.parent == Handle::ROOT), "{}", setup.name);
            assert_eq!(tree.studied_root(), tree.root());
        }
    }
}

#[test]
fn a_step_is_made_once_for_each_flow() {
    let text = resolved(
        &[
            "qdisc root handle 1: htb default 2",
            "class parent 1: classid 1:2 htb rate 10%",
            "class parent 1: classid 1:{flow+10} htb rate 90%/flows ceil 100% burst 10k quantum 2*segment",
            "qdisc parent 1:{flow+10} handle {flow+10}: pfifo limit 1000",
            "filter parent 1: flow classid 1:{flow+10} rest 1:2",
            "filter parent 1: u32 match ip dport {port} 0xffff flowid 1:{flow+10}",
        ],
        &surroundings(2, 1, 1),
    );
    let expected = "\
qdisc root handle 1: htb default 2
class parent 1: classid 1:2 htb rate 100mbit ceil 100mbit burst 1600b cburst 1600b
class parent 1: classid 1:11 htb rate 300mbit ceil 1gbit burst 10240b quantum 137040b cburst 1600b
class parent 1: classid 1:12 htb rate 300mbit ceil 1gbit burst 10240b quantum 137040b cburst 1600b
class parent 1: classid 1:13 htb rate 300mbit ceil 1gbit burst 10240b quantum 137040b cburst 1600b
qdisc parent 1:11 handle 11: pfifo limit 1000
qdisc parent 1:12 handle 12: pfifo limit 1000
qdisc parent 1:13 handle 13: pfifo limit 1000
filter parent 1: flow classid 1:{flow+10} rest 1:2
filter parent 1: u32 match ip dport 5201 0xffff classid 1:11
filter parent 1: u32 match ip dport 5202 0xffff classid 1:12
filter parent 1: u32 match ip dport 11111 0xffff classid 1:13
";
    assert_eq!(text, expected);
}

#[test]
fn a_segment_counts_as_qdiscs_count_it() {
    // 46 packets with 66 bytes of headers each: 45 with 1448 bytes of payload, and a shorter one.
    assert_eq!(surroundings(1, 0, 1).counted_segment().bytes(), 65_550 + 45 * 66);
    let plain = Surroundings { largest_segment: ByteSize::from_bytes(1514), ..surroundings(1, 0, 1) };
    assert_eq!(plain.counted_segment().bytes(), 1514);
}

#[test]
fn flows_share_classes_in_turn() {
    let steps = ["qdisc root handle 1: prio bands 4", "filter parent 1: flow classid 1:{flow} modulo 4"];
    let classes = |flows| match setup(&steps).resolve(&surroundings(flows, 0, 1)).unwrap().steps[1] {
        Step::Filter { filter: Filter::PerFlow { classes, first, bulk_flows, .. }, .. } => {
            assert_eq!((first, bulk_flows), (Handle::new(1, 1), flows));
            classes
        }
        ref step => panic!("{step}"),
    };
    assert_eq!((classes(1), classes(3), classes(4), classes(96)), (1, 3, 4, 4));
}

#[test]
fn what_tc_fills_in_is_filled_in() {
    let on = surroundings(1, 0, 1);
    assert_eq!(
        resolved(&["qdisc root tbf rate 80mbit burst 100kb latency 50ms"], &on),
        "qdisc root handle 7000: tbf rate 80mbit burst 102400b limit 602400b\n"
    );
    assert_eq!(
        resolved(&["qdisc root handle 1: prio"], &on),
        "qdisc root handle 1: prio bands 3 priomap 1 2 2 2 1 2 0 0 1 1 1 1 1 1 1 1\n"
    );
    assert_eq!(
        resolved(&["qdisc root handle 1: ets strict 1 quanta 1514 2*mtu"], &on),
        "qdisc root handle 1: ets strict 1 quanta 1514b 3000b bands 3\n"
    );
    let hfsc = |curve: &str| {
        let class = format!("class parent 1: classid 1:1 hfsc {curve}");
        let text = resolved(&["qdisc root handle 1: hfsc", &class], &on);
        text.lines().nth(1).unwrap().split_once("hfsc ").unwrap().1.to_owned()
    };
    assert_eq!(hfsc("sc rate 50%"), "rt rate 500mbit ls rate 500mbit");
    assert_eq!(hfsc("rt m1 1mbit d 5ms m2 2mbit ul m2 1gbit"), "rt m1 1mbit d 5ms m2 2mbit ul rate 1gbit");
    // tc class add ... hfsc rt umax 1500b dmax 10ms rate 800kbit: 1500 bytes in 10 ms are 1.2 Mbit/s.
    assert_eq!(hfsc("rt umax 1500b dmax 10ms rate 800kbit"), "rt m1 1.2mbit d 10ms m2 800kbit");
    // At 2 Mbit/s the bytes take only 6 ms, so the slope is 0 for 4 ms.
    assert_eq!(hfsc("rt umax 1500b dmax 10ms rate 2mbit"), "rt m1 0bit d 4ms m2 2mbit");
}

#[test]
fn shares_of_a_fast_line_are_what_the_kernel_can_hold() {
    let on = Surroundings { rate: BitRate::from_bits_per_second(100_000_000_000), ..surroundings(1, 0, 1) };
    let text = resolved(&["qdisc root handle 1: fq maxrate 50%"], &on);
    assert_eq!(text, "qdisc root handle 1: fq maxrate 34359738.36kbit\n");
    let text = resolved(&["qdisc root handle 1: hfsc", "class parent 1: classid 1:1 hfsc ls rate 100%"], &on);
    assert!(text.ends_with("ls rate 34359738.36kbit\n"), "{text}");
    let text = resolved(&["qdisc root handle 1: htb", "class parent 1: classid 1:1 htb rate 100%"], &on);
    assert!(text.contains("rate 100gbit ceil 100gbit"), "HTB holds more: {text}");
    for setup in Catalogue::bundled().setups() {
        setup.resolve(&on).unwrap();
    }
}

#[test]
fn what_people_know_can_be_pasted() {
    let pasted = [
        "tc qdisc add dev eth0 root handle 1: htb default 0x20 r2q 100",
        "tc class add dev eth0 parent 1: classid 1:20 htb rate 10mbit ceil 1gbit maxburst 15k prio 1",
        "tc qdisc add dev eth0 parent 1:20 handle 20: sfq perturb 10 quantum 1514b",
        "tc filter add dev eth0 protocol ip parent 1:0 u32 match ip dport 5201 0xffff flowid 1:20",
        "filter add dev eth0 parent 1: protocol ip flower ip_proto tcp dst_port 5202 classid 1:20",
    ];
    let expected = "\
qdisc root handle 1: htb default 20 r2q 100
class parent 1: classid 1:20 htb rate 10mbit ceil 1gbit burst 15360b prio 1 cburst 1600b
qdisc parent 1:20 handle 20: sfq perturb 10 quantum 1514b
filter parent 1: u32 match ip dport 5201 0xffff classid 1:20
filter parent 1: flower ip_proto tcp dst_port 5202 classid 1:20
";
    assert_eq!(resolved(&pasted, &surroundings(1, 0, 1)), expected);
}

#[test]
fn units_are_those_of_tc() {
    let on = surroundings(1, 0, 1);
    for (written, shown) in [
        ("horizon 5000", "horizon 5ms"),
        ("horizon 5msec", "horizon 5ms"),
        ("horizon 2secs", "horizon 2s"),
        ("timer_slack 10usecs", "timer_slack 10us"),
        ("quantum 64kb", "quantum 65536b"),
        ("quantum 64k", "quantum 65536b"),
        ("quantum 64KiB", "quantum 65536b"),
        ("quantum 1mb", "quantum 1048576b"),
        ("maxrate 1000000", "maxrate 1mbit"),
        ("maxrate 2.5Gbit", "maxrate 2.5gbit"),
        ("limit 1000p", "limit 1000"),
        ("orphan_mask 0x3ff", "orphan_mask 1023"),
    ] {
        let text = resolved(&[&format!("qdisc replace dev eth0 root handle 1: fq {written}")], &on);
        assert_eq!(text, format!("qdisc root handle 1: fq {shown}\n"));
    }
}

#[test]
fn a_step_only_adds() {
    for (step, column) in [
        ("tc qdisc del dev eth0 root", 10),
        ("qdisc change dev eth0 root handle 1: pfifo", 7),
        ("class del parent 1: classid 1:1", 7),
        ("filter show dev eth0", 8),
    ] {
        let text = format!("schema = 1\n[setup.s]\nsummary = \"s\"\nsteps = [\"{step}\"]\n");
        let error = Catalogue::parse(&text, "own.toml").unwrap_err().to_string();
        let command = step[column - 1..].split(' ').next().unwrap();
        let expected = format!(
            "own.toml:4:{}: setup.s.steps[0]: '{command}' is not possible; a setup starts from an empty device: \
             write 'add', or remove the step",
            column + 10
        );
        assert_eq!(error, expected);
    }
}

#[test]
fn an_unknown_kind_takes_part() {
    let steps = [
        "qdisc root handle 1: dualpi2 attribute 1 u32 5 attribute 2 u8 0x1 attribute 3 bytes 00ff attribute 4 flag",
        "class parent 1: classid 1:1 dualpi2 attribute 1 text words",
        "qdisc parent 1:2 handle 2: fq_pie",
    ];
    let text = resolved(&steps, &surroundings(1, 0, 1));
    let expected = "\
qdisc root handle 1: dualpi2 attribute 1 u32 5 attribute 2 u8 1 attribute 3 bytes 00ff attribute 4 flag
class parent 1: classid 1:1 dualpi2 attribute 1 text words
qdisc parent 1:2 handle 2: fq_pie
";
    assert_eq!(text, expected);
    assert_eq!(setup(&steps).kinds(), ["dualpi2", "fq_pie"].into());
}

#[test]
fn the_line_stands_above_the_root() {
    let on = surroundings(1, 1, 1);
    let rate = BitRate::from_bits_per_second(1_000_000_000);
    let tree = Catalogue::bundled().get("prio").unwrap().resolve(&on).unwrap();
    let below = tree.on_line(rate);
    let lines: Vec<String> = below.to_string().lines().map(str::to_owned).collect();
    assert_eq!(lines[0], "qdisc root handle fff0: tbf rate 1gbit burst 137144b limit 4294967295b");
    assert!(lines[1].starts_with("qdisc parent fff0:1 handle 1: prio"), "{}", lines[1]);
    assert_eq!(below.steps[2..], tree.steps[1..]);
    assert_eq!(below.studied_root().unwrap().handle, tree.root().unwrap().handle);
    assert!(is_line(below.root().unwrap().handle) && !is_line(tree.root().unwrap().handle));
}

#[test]
fn below_mq_each_queue_has_a_line() {
    let on = surroundings(1, 0, 2);
    let rate = BitRate::from_bits_per_second(1_000_000_000);
    let tree = Catalogue::bundled().get("mq-fq_codel").unwrap().resolve(&on).unwrap();
    let expected = "\
qdisc root handle 1: mq
qdisc parent 1:1 handle fe01: tbf rate 500mbit burst 137144b limit 4294967295b
qdisc parent fe01:1 handle 101: fq_codel
qdisc parent 1:2 handle fe02: tbf rate 500mbit burst 137144b limit 4294967295b
qdisc parent fe02:1 handle 102: fq_codel
";
    let below = tree.on_line(rate);
    assert_eq!(below.to_string(), expected);
    assert!(below.qdiscs().filter(|node| node.kind == "tbf").all(|node| is_line(node.handle)));
    // Queues without a step have the kernel's default qdisc.
    let plain = resolved(&["qdisc root handle 1: mq", "qdisc parent 1:2 handle 2: fq"], &on);
    assert!(plain.ends_with("qdisc parent 1:1 handle 7000: pfifo_fast\n"), "{plain}");
}

#[test]
fn a_users_file_adds_and_replaces() {
    let text = "schema = 1\n[setup.fq]\nsummary = \"mine\"\nsteps = [\"qdisc root fq quantum 3000\"]\n\
                [setup.own]\nsummary = \"own\"\nsteps = [\"qdisc root own\"]\n";
    let catalogue = Catalogue::bundled().extended(Catalogue::parse(text, "mine.toml").unwrap());
    assert_eq!(catalogue.get("fq").unwrap().summary, "mine");
    assert_eq!(catalogue.names().last(), Some("own"));
    assert_eq!(catalogue.names().count(), Catalogue::bundled().names().count() + 1);
    assert!(catalogue.get("none").is_none());
}

#[test]
fn mistakes_are_shown_where_they_are() {
    for (steps, message) in [
        (
            r#""qdisc root handle 1: htb defualt 20""#,
            "mine.toml:5:27: setup.mine.steps[0]: unknown option 'defualt' of htb; did you mean 'default'?",
        ),
        (
            r#""qdisc root handle 1: fq limit many""#,
            "mine.toml:5:32: setup.mine.steps[0]: 'many' is not a whole number",
        ),
        (
            r#""qdisc root handle 1: fq limit""#,
            "mine.toml:5:31: setup.mine.steps[0]: the value of limit is missing",
        ),
        (r#""qdisc handle 1: fq""#, "mine.toml:5:18: setup.mine.steps[0]: the qdisc has no parent"),
        (
            r#""qdsic root fq""#,
            "mine.toml:5:2: setup.mine.steps[0]: unknown step 'qdsic'; did you mean 'qdisc'?",
        ),
        (
            r#""qdisc root handle 1: htbb default 20""#,
            "unknown option 'default' of htbb; did you mean the kind 'htb'?",
        ),
        (r#""qdisc root handle 1: tbf rate 1gbit burst 10kb""#, "limit or latency of tbf is missing"),
        (r#""qdisc root handle 1: tbf rate 1gbps burst 10kb limit 10kb""#, "'gbps' is not a unit of a rate"),
        (
            r#""qdisc root handle 1: tbf rate 120% burst 10kb limit 10kb""#,
            "'120%' is not a share of the line",
        ),
        (r#""qdisc root handle 1: tbf rate 10%/x burst 10kb limit 10kb""#, "'/x' is not a part of a share"),
        (
            r#""qdisc root handle 1: tbf rate 1gbit burst 10kB limit 10kb""#,
            "'kB' is ambiguous: some programs count 1000 bytes, others 1024",
        ),
        (r#""qdisc root handle 1: fq quantum 2*mss""#, "'mss' cannot be multiplied"),
        (r#""qdisc root handle 1: fq buckets 1000""#, "1000 is not a power of two"),
        (r#""qdisc root handle 1: fq horizon 2h""#, "'h' is not a unit of a time"),
        (r#""qdisc root handle 1: fq horizon 10ns""#, "10ns is not a whole number of us"),
        (r#""qdisc root handle 1: fq limit 1 limit 2""#, "'limit' appears twice"),
        (r#""qdisc root handle 1: fq_codel ecn noecn""#, "'noecn' and 'ecn' exclude each other"),
        (
            r#""qdisc root handle 1: cake bandwidth 1gbit unlimited""#,
            "'unlimited' and 'bandwidth' exclude each other",
        ),
        (r#""qdisc root handle 1: fq maxrate 40gbit""#, "40gbit is out of range"),
        (r#""qdisc root handle 1:1 fq""#, "a qdisc's handle is a number and a colon"),
        (r#""qdisc root handle {flow}: fq""#, "the root already has a qdisc"),
        (r#""qdisc root handle {stream}: fq""#, "'{stream}:' is not a handle"),
        (r#""qdisc root handle fff0: fq""#, "a setup cannot use the handle fff0:"),
        (
            r#""qdisc root handle 1: fq", "qdisc parent 1:1 handle 2: fq""#,
            "mine.toml:5:28: setup.mine.steps[1]: there is no class 1:1; fq has none",
        ),
        (
            r#""qdisc root handle 1: prio", "qdisc parent 1:4 handle 2: fq""#,
            "there is no class 1:4; prio has the classes 1:1 to 1:3",
        ),
        (
            r#""qdisc root handle 1: prio", "class parent 1: classid 1:4 prio""#,
            "a step cannot create a class of prio",
        ),
        (
            r#""qdisc root handle 1: drr", "class parent 1: classid 1:4 qfq""#,
            "the qdisc 1: is of kind drr; write drr as the kind of the class, too",
        ),
        (r#""qdisc root handle 1: drr", "class parent 1:3 classid 1:4 drr""#, "there is no class 1:3 yet"),
        (
            r#""qdisc root handle 1: drr", "class parent 1: classid 1:4 drr", "class parent 1: classid 1:4 drr""#,
            "the class 1:4 appears twice",
        ),
        (r#""qdisc root handle 1: htb default 20""#, "there is no class 1:20 to be the default"),
        (
            r#""qdisc root handle 1: prio", "filter parent 2: role probes 1:1 bulk 1:2""#,
            "there is no qdisc 2: yet",
        ),
        (
            r#""qdisc root handle 1: prio", "filter parent 1: role probes 1:1 bulk 1:9""#,
            "there is no class 1:9",
        ),
        (r#""qdisc root handle 1: prio", "filter parent 1: flow classid 1:1""#, "not a class for each flow"),
        (
            r#""qdisc root handle 1: ets bands 2", "filter parent 1: flow classid 1:{flow}""#,
            "there is no class 1:3",
        ),
        (
            r#""qdisc root handle 1: prio", "filter parent 1: prio 1 u32 match ip dport 1 0xffff classid 1:1""#,
            "a filter has no number here",
        ),
        (
            r#""qdisc root handle 1: prio bands 2 priomap 1 2""#,
            "priomap names band 2, but there are only 2 bands",
        ),
        (r#""qdisc parent 1: handle 2: fq""#, "there is no qdisc 1: yet"),
        (
            r#""qdisc root mq", "class parent {flow}:{queue} classid 1:1 x""#,
            "a step counts flows or queues, not both",
        ),
        (r#""qdisc root fq attribute 1 u8 256""#, "256 is out of range"),
        (r#""qdisc root fq attribute 1 float 2""#, "'float' is not a type of an attribute"),
        (r#""qdisc root x attribute 1 text \u001b[2J""#, "contains a control character"),
        (r#""qdisc root fq", 7"#, "expected a step"),
        ("", "0 steps"),
    ] {
        let found = refusal(steps);
        assert!(found.contains(message), "{steps}\n{found}\n{message}");
    }
}

#[test]
fn mistakes_around_steps_are_shown() {
    let refusal = |text: &str| Catalogue::parse(text, "x.toml").unwrap_err().to_string();
    assert!(refusal("schema = 2\n").contains("the file has schema 2"));
    assert!(refusal("schema = 1\n").contains("setup: missing"));
    assert!(
        refusal("schema = 1\n[setup.A]\nsummary = \"a\"\nsteps = [\"qdisc root fq\"]")
            .contains("'A' cannot be a name")
    );
    assert!(
        refusal("schema = 1\n[setup.a]\nsumary = \"a\"\nsteps = [\"qdisc root fq\"]")
            .contains("did you mean 'summary'?")
    );
    let claim = "schema = 1\n[setup.a]\nsummary = \"a\"\nclaims = [\"fair\"]\nsteps = [\"qdisc root fq\"]";
    assert!(refusal(claim).contains("'fair' is not a value of this key"));
}

#[test]
fn more_flows_than_numbers_are_refused() {
    let setup = setup(&["qdisc root handle 1: drr", "class parent 1: classid 1:{flow+ffe0} drr"]);
    let error = setup.resolve(&surroundings(100, 0, 1)).unwrap_err().to_string();
    assert!(
        error.contains("the qdisc setup mine: 'class parent 1: classid 1:{flow+ffe0} drr': number 32"),
        "{error}"
    );
    let error = setup.resolve(&surroundings(30_000, 0, 1)).unwrap_err().to_string();
    assert!(error.contains("more than 20000 steps"), "{error}");
}

#[test]
fn the_documentation_is_right() {
    let text = include_str!("../../../../docs/reference/qdisc-setups.md");
    let example = text.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let catalogue = Catalogue::parse(example, "mine.toml").unwrap();
    assert_eq!(catalogue.names().collect::<Vec<_>>(), ["two-tenants"]);
    let refusal = |from: &str, to: &str| {
        let broken = example.replace(from, to);
        assert_ne!(broken, example);
        Catalogue::parse(&broken, "mine.toml").unwrap_err().to_string()
    };
    let shown = |message: &str| assert!(text.contains(&format!("\n{message}\n")), "{message}");
    shown(&refusal("default", "defualt"));
    shown(&refusal("1:10 htb", "1:11 htb"));
    // Each kind must have a row that contains all its options.
    for kind in kinds::KINDS {
        let name = format!("`{}`", kind.name);
        let row = text
            .lines()
            .find(|line| line.starts_with('|') && line.split('|').nth(1).unwrap().contains(&name));
        let row = row.unwrap_or_else(|| panic!("{name}"));
        let words: Vec<&str> = row.split(|c: char| c.is_whitespace() || c == '`').collect();
        for option in kind.options.iter().chain(kind.class_options) {
            assert!(words.contains(&option.name), "{} of {name}", option.name);
        }
    }
    for setup in Catalogue::bundled().setups() {
        assert!(text.contains(&format!("`{}`", setup.name)), "{}", setup.name);
    }
}

mod properties {
    use super::*;
    use crate::qdisc::kinds::{Classes, KINDS, KnownOption, OptionType, Place};
    use crate::qdisc::step;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn value(option: &KnownOption) -> BoxedStrategy<String> {
        let rate = || {
            prop_oneof![
                (8_u64..30_000_000_000).prop_map(|rate| format!("{rate}bit")),
                (1_u32..=100).prop_map(|percent| format!("{percent}%/flows")),
                Just("12.5%".to_owned()),
                Just("0.0001%/3".to_owned()),
            ]
        };
        let size = || {
            prop_oneof![
                (0_u32..).prop_map(|size| size.to_string()),
                (1_u32..1000).prop_map(|size| format!("{size}k")),
                (1_u32..50).prop_map(|times| format!("{times}*segment")),
                Just("mtu".to_owned()),
            ]
        };
        let time = || (0_u32..4_000_000).prop_map(|time| format!("{time}us"));
        match option.of {
            OptionType::Count(..) if matches!(option.place, Place::Logarithm(_)) => {
                (0_u32..18).prop_map(|bits| (1_u32 << bits).to_string()).boxed()
            }
            OptionType::Count(least, most) => (least..=most).prop_map(|count| count.to_string()).boxed(),
            OptionType::Rate => rate().boxed(),
            OptionType::Size => size().boxed(),
            OptionType::Time => time().boxed(),
            OptionType::Seconds => (0_u32..100).prop_map(|seconds| seconds.to_string()).boxed(),
            // Every tree in this test has the class 1:1.
            OptionType::Minor => Just("1".to_owned()).boxed(),
            OptionType::Bands => vec(0_u8..1, 1..=16)
                .prop_map(|bands| bands.iter().map(u8::to_string).collect::<Vec<_>>().join(" "))
                .boxed(),
            OptionType::Sizes => vec(size(), 1..=16).prop_map(|sizes| sizes.join(" ")).boxed(),
            OptionType::Curve => prop_oneof![
                rate().prop_map(|rate| format!("m2 {rate}")),
                (rate(), time(), rate()).prop_map(|(m1, d, m2)| format!("m1 {m1} d {d} m2 {m2}")),
                (size(), 1_u32..9999, rate())
                    .prop_map(|(umax, dmax, rate)| format!("umax {umax} dmax {dmax}us rate {rate}")),
            ]
            .boxed(),
            OptionType::Flag => Just(String::new()).boxed(),
        }
    }

    fn options(options: &'static [KnownOption]) -> BoxedStrategy<String> {
        let each: Vec<BoxedStrategy<String>> = options
            .iter()
            .map(|option| {
                let name = option.name;
                prop_oneof![
                    Just(String::new()),
                    value(option).prop_map(move |value| format!(" {name} {value}"))
                ]
                .boxed()
            })
            .collect();
        each.prop_map(|each| each.concat()).boxed()
    }

    /// Generates a root of any kind, with classes if the kind has explicit ones.
    fn steps() -> impl Strategy<Value = Vec<String>> {
        proptest::sample::select(KINDS).prop_flat_map(|kind| {
            let name = kind.name;
            (options(kind.options), options(kind.class_options)).prop_map(move |(of_qdisc, of_class)| {
                let mut steps = vec![format!("qdisc root handle 1: {name}{of_qdisc}")];
                if kind.classes == Classes::Made {
                    steps.push(format!("class parent 1: classid 1:1 {name}{of_class}"));
                    steps.push(format!("class parent 1:1 classid 1:{{flow+10}} {name}{of_class}"));
                    steps.push("filter parent 1: flow classid 1:{flow+10} rest 1:1".to_owned());
                }
                steps
            })
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn a_line_reads_back_as_it_was_read(line in "[a-z0-9:{}+%*/ .-]{0,80}") {
            if let Ok(parsed) = step::parse(&line) {
                prop_assert_eq!(step::parse(&parsed.to_string()), Ok(parsed));
            }
        }

        #[test]
        fn nothing_trips_the_parser(line in any::<String>(), text in any::<String>()) {
            if let Err(mistake) = step::parse(&line) {
                prop_assert!(mistake.offset <= line.len());
            }
            let _ = Catalogue::parse(&text, "any.toml");
            let quoted = toml::Value::String(line).to_string();
            let _ = Catalogue::parse(&format!("schema = 1\n[setup.a]\nsummary = 'a'\nsteps = [{quoted}]"), "any.toml");
        }

        #[test]
        fn words_of_steps_in_any_order_do_no_harm(words in vec(proptest::sample::select(vec![
            "tc", "qdisc", "class", "filter", "add", "dev", "root", "parent", "handle", "classid", "1:", "1:{flow+10}",
            "{queue}:", "htb", "tbf", "hfsc", "ets", "rate", "50%", "1gbit", "burst", "2*segment", "sc", "m1", "d", "m2",
            "umax", "dmax", "5ms", "flow", "role", "probes", "bulk", "u32", "match", "ip", "dport", "{port}", "0xffff",
            "quanta", "priomap", "1", "0", "default", "attribute", "u8", "bytes", "limit", "rest", "modulo",
        ]), 0..20)) {
            let line = words.join(" ");
            match step::parse(&line) {
                Ok(parsed) => prop_assert_eq!(step::parse(&parsed.to_string()), Ok(parsed)),
                Err(mistake) => prop_assert!(mistake.offset <= line.len()),
            }
        }

        #[test]
        fn steps_and_trees_read_back_as_they_are(steps in steps(), bulk in 0_u32..5, probes in 0_u32..3, queues in 1_u32..5) {
            let parsed: Result<Vec<_>, _> = steps.iter().map(|line| step::parse(line)).collect();
            // Required options may be missing.
            prop_assume!(parsed.is_ok());
            let parsed = parsed.unwrap();
            for template in &parsed {
                prop_assert_eq!(&step::parse(&template.to_string()).unwrap(), template);
            }
            let on = surroundings(bulk, probes, queues);
            let setup = QdiscSetup { name: "made".to_owned(), steps: parsed, ..QdiscSetup::default() };
            let tree = setup.resolve(&on);
            prop_assume!(tree.is_ok());
            let tree = tree.unwrap();
            let again: Vec<_> = tree.steps.iter().map(|step| step::parse(&step.to_string()).unwrap()).collect();
            let again = QdiscSetup { steps: again, ..setup };
            prop_assert_eq!(again.resolve(&on).unwrap(), tree);
        }
    }
}
