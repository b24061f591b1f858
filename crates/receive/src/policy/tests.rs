//! Tests of policies: files and their errors, costs, and hostile scripts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::flows::generate;

fn bound(text: &str, queues: u16) -> Policy {
    PolicyFile::parse(text, "p.toml").unwrap().bind(&Arc::new(Queues::new(queues))).unwrap()
}

fn fails(text: &str) -> String {
    PolicyFile::parse(text, "p.toml").unwrap_err().to_string()
}

fn flow(class: u8, rate_bps: u64) -> Flow {
    let tuple = generate(0, 1).next().unwrap().tuple;
    Flow {
        tuple,
        class: ClassId(class),
        rate_bps: Some(rate_bps),
        reader: None,
        is_unowned: false,
        before: None,
        is_unsure: false,
    }
}

// ---- Files -------------------------------------------------------------------------------------------

#[test]
fn everything_has_a_default() {
    for text in ["policy = \"balance\"", "policy = \"balance\"\n"] {
        let file = PolicyFile::parse(text, "p.toml").unwrap();
        assert_eq!(file.name, "balance");
        assert_eq!(bound(text, 7).default_queues().len(), 7);
    }
    let names: Vec<&str> = PolicyFile::names().iter().copied().filter(|name| *name != "script").collect();
    assert!(names.iter().all(|name| PolicyFile::built_in(name).is_some_and(|file| file.name == *name)));
    assert!(PolicyFile::built_in("script").is_none() && PolicyFile::built_in("novel").is_none());
}

#[test]
fn isolation_gives_the_last_queues_to_flows_of_high_priority() {
    let policy = bound("policy = \"isolation\"", 10);
    let states: Vec<ClassState> = policy.class_states().collect();
    assert_eq!((states[0].name.as_str(), queue_ranges(&states[0].queues).as_str()), ("high", "6-9"));
    assert_eq!((states[1].name.as_str(), queue_ranges(&states[1].queues).as_str()), ("rest", "0-5"));
    let observed = generate(0, 1).next().unwrap();
    let of =
        |class: &str| policy.classify(&ObservedFlow { class: Some(class.to_owned()), ..observed.clone() });
    assert_eq!((of("HP").class, of("high").class, of("be").class), (ClassId(0), ClassId(0), ClassId(1)));
    assert_eq!(policy.classify(&observed).class, ClassId(1));
    // One of two queues remains for the rest.
    assert_eq!(bound("policy = \"isolation\"", 2).default_queues(), [QueueId(0)]);
}

#[test]
fn a_whole_file() {
    let text = r#"
        [[term]]
        policy = "balance-rate"
        [[term]]
        policy = "locality"
        weight = 0.25
        [[term]]
        policy = "script"
        weight = 2
        script-time = "500ms"
        script = 'fn queue_cost(queue) { queue.count("web") }'

        [[class]]
        name = "web"
        queues = [1, 3]
        protocol = "tcp"
        destination-port = "8000-8099"
        source = "10.0.0.0/8"
        policy = "balance"
        [[class]]
        name = "db"
        queues = "25%"
        label = "database"
        process = "postgres"
        [[class]]
        name = "logs"
        pin = 0
        cgroup = "/system.slice/logs.service"
    "#;
    let policy = bound(text, 8);
    assert_eq!(policy.name(), "balance-rate + locality + script");
    let queues: Vec<String> = policy.class_states().map(|state| queue_ranges(&state.queues)).collect();
    assert_eq!(queues, ["1, 3", "6-7", "0", "0, 2, 4-5"]);
    assert_eq!(policy.classes_as_matches().len(), 0, "a range of 100 ports takes more than a filter");
}

#[test]
fn mistakes_are_told_with_their_place() {
    for (text, message) in [
        (
            "policy = \"balence\"",
            "p.toml:1:10: policy: 'balence' is not a value of this key; did you mean 'balance'?",
        ),
        ("polcy = \"balance\"", "p.toml:1:1: polcy: unknown key; did you mean 'policy'?"),
        ("", "p.toml:1:1: policy: missing; for example policy = \"balance\""),
        ("# only a comment\n", "p.toml:1:1: policy: missing"),
        ("policy = 3", "p.toml:1:10: policy: expected one of"),
        ("policy = ", "p.toml:1:10: not TOML"),
        (
            "policy = \"balance\"\n[[term]]\npolicy = \"balance\"",
            "p.toml:2:3: term: a file cannot have both 'policy' and terms",
        ),
        ("[[term]]\nweight = 2", "p.toml:1:1: term[0].policy: missing"),
        (
            "[[term]]\npolicy = \"balance\"\nweight = 0",
            "p.toml:3:10: term[0].weight: the weight 0 is out of range; write a weight from",
        ),
        ("[[term]]\npolicy = \"isolation\"", "p.toml:2:10: term[0].policy: isolation is not a term"),
        (
            "[[term]]\npolicy = \"balance\"\nweight = -1",
            "p.toml:3:10: term[0].weight: a negative number; write a weight from 0.001 to 1000",
        ),
        (
            "[[term]]\npolicy = \"balance\"\nweight = nan",
            "p.toml:3:10: term[0].weight: not a finite number; write a weight from 0.001 to 1000",
        ),
        ("policy = \"script\"\nscript = 'fn cost(q) { print(1); 1 }'", "p.toml:2:"),
        ("policy = \"script\"", "p.toml:1:10: policy: the policy has no script"),
        ("script = 'fn cost(q) { 1 }'", "p.toml:1:1: script: no policy uses this script"),
        ("policy = \"script\"\nscript = 'fn cost(q) { 1'", "p.toml:2:"),
        ("policy = \"script\"\nscript = 'let a = 1;'", "p.toml:2:11: script: the script must define"),
        (
            "policy = \"script\"\nscript = 'fn cost() { 1 }'",
            "p.toml:2:11: script: cost takes 1 parameter, not 0",
        ),
        ("script-time = \"1s\"", "p.toml:1:1: script-time: this key needs a script"),
        (
            "policy = \"script\"\nscript-time = \"90s\"\nscript = 'fn queue_cost(q) { 1 }'",
            "p.toml:2:15: script-time: 90s is out of range",
        ),
        (
            "policy = \"isolation\"\n[[class]]\nname = \"a\"\nqueues = 1\n[[class]]\nname = \"b\"",
            "p.toml:5:1: class[1]: isolation needs queues; reserve queues for the class",
        ),
        (
            "policy = \"isolation\"\n[[class]]\nname = \"a\"\npin = 0",
            "p.toml:4:1: class[0].pin: isolation needs queues",
        ),
        ("[[class]]\nqueues = 1", "p.toml:1:1: class[0].name: missing"),
        (
            "[[class]]\nname = \"rest\"",
            "p.toml:2:8: class[0].name: rest is the class of the flows without a class",
        ),
        (
            "[[class]]\nname = \"a\"\nlabel = \"B\"\n[[class]]\nname = \"b\"",
            "p.toml:5:8: class[1].name: class a already has the label b",
        ),
        (
            "[[class]]\nname = \"a\"\n[[class]]\nname = \"b\"\nlabel = \"a\"",
            "p.toml:5:9: class[1].label: another class has the name a",
        ),
        (
            "[[class]]\nname = \"a\"\nlabel = \"x\"\n[[class]]\nname = \"b\"\nlabel = \"X\"",
            "p.toml:6:9: class[1].label: class a already has the label X",
        ),
        (
            "[[class]]\nname = \"a\"\nlabel = \"rest\"",
            "p.toml:3:9: class[0].label: rest is the class of the flows without a class",
        ),
        (
            "[[class]]\nname = \"a\"\n[[class]]\nname = \"a\"",
            "p.toml:4:8: class[1].name: another class has the name a",
        ),
        ("[[class]]\nname = \"a\"\nqueues = 0", "p.toml:3:10: class[0].queues: 0 is out of range"),
        ("[[class]]\nname = \"a\"\nqueues = \"all\"", "p.toml:3:10: class[0].queues: 'all' is not a share"),
        (
            "[[class]]\nname = \"a\"\nqueues = [1, 1]",
            "p.toml:3:14: class[0].queues[1]: queue 1 appears twice",
        ),
        (
            "[[class]]\nname = \"a\"\nqueues = 1\npin = 2",
            "p.toml:4:1: class[0].pin: a class cannot have both 'pin' and 'queues'",
        ),
        (
            "[[class]]\nname = \"a\"\nsource = \"10.0.0.1/8\"",
            "p.toml:3:10: class[0].source: '10.0.0.1/8' is neither an address nor a network",
        ),
        (
            "[[class]]\nname = \"a\"\nsource-port = \"9-1\"",
            "p.toml:3:15: class[0].source-port: '9-1' is not a range",
        ),
        (
            "[[class]]\nname = \"a\"\npolicy = \"balance\"",
            "p.toml:1:1: class[0]: a class without queues of its own cannot have a policy",
        ),
        (
            "[[class]]\nname = \"a\"\nsource = \"10.0.0.0/8\"\ndestination = \"::1\"",
            "p.toml:1:1: class[0]: source and destination have different IP versions",
        ),
    ] {
        let told = fails(text);
        assert!(told.starts_with(message), "{text}\n{told}\n{message}");
    }
}

#[test]
fn a_mistake_in_a_script_is_told_at_its_line() {
    let text = "policy = \"script\"\nscript = '''\nfn queue_cost(queue) {\n  let x = ;\n}\n'''\n";
    let told = fails(text);
    assert!(told.starts_with("p.toml:4:11: script: "), "{told}");
}

#[test]
fn classes_cannot_have_queues_that_there_are_not() {
    let told = |text: &str| {
        let file = PolicyFile::parse(text, "p.toml").unwrap();
        file.bind(&Arc::new(Queues::new(4))).unwrap_err().to_string()
    };
    let class = |name: &str, rest: &str| format!("[[class]]\nname = \"{name}\"\n{rest}\n");
    assert!(told(&class("a", "queues = 4")).starts_with("p.toml: the classes ask for 4 of 4 queues (a), "));
    assert!(told(&class("a", "queues = 5")).contains("ask for 5 of 4 queues"));
    assert!(
        told(&class("a", "queues = [4]")).starts_with(
            "p.toml: class a names queue 4, but steering has only queues 0 to 3; with XDP and RPS"
        )
    );
    let twice = [class("a", "queues = [1]"), class("b", "pin = 1")].concat();
    assert!(told(&twice).contains("class b also names it"));
    let other_way = [class("b", "pin = 1"), class("a", "queues = [1]")].concat();
    assert!(told(&other_way).contains("class b also names it"));
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in "(policy|class|term|queues|script|\\[\\[|\\]\\]|=|\"|'|\n|[a-z0-9 ./%-]){0,40}") {
        match PolicyFile::parse(&text, "p.toml") {
            Ok(file) => drop(file.bind(&Arc::new(Queues::new(4)))),
            Err(error) => prop_assert!(!error.to_string().chars().any(char::is_control)),
        }
    }
}

// ---- Costs -------------------------------------------------------------------------------------------

#[test]
fn the_cost_of_balance_is_the_variance() {
    let mut policy = bound("policy = \"balance\"", 10);
    policy.place(&flow(0, 0), QueueId(3));
    assert!((policy.cost().value() - 0.09).abs() < 1e-12, "one flow on ten queues: {}", policy.cost());
    policy.place(&flow(0, 0), QueueId(3));
    assert!((policy.cost().value() - 0.36).abs() < 1e-12, "{}", policy.cost());
    let mut policy = bound("policy = \"balance-rate\"", 2);
    policy.place(&flow(0, 4_000_000), QueueId(0));
    assert!(
        (policy.cost().value() - 4.0).abs() < 1e-6,
        "(4² + 0²) / 2 - 2² = 4 (Mbit/s)²: {}",
        policy.cost()
    );
}

#[test]
fn rates_beyond_reason_do_not_overflow() {
    let mut policy = bound("[[term]]\npolicy = \"balance-rate\"\nweight = 1000\n", 2);
    for _ in 0..1000 {
        policy.place(&flow(0, u64::MAX), QueueId(1));
    }
    assert!(policy.cost().value() > 0.0);
    assert!(policy.change(&flow(0, u64::MAX), QueueId(1), QueueId(0)) < Cost::ZERO);
    for _ in 0..1000 {
        policy.remove(&flow(0, u64::MAX), QueueId(1));
    }
    assert_eq!(policy.cost(), Cost::ZERO);
}

#[test]
fn algorithm_2_rejects_flows_of_two_classes_on_one_queue() {
    let mut policy = bound("policy = \"isolation\"", 10);
    policy.place(&flow(0, 0), QueueId(9));
    policy.place(&flow(1, 0), QueueId(0));
    assert!(policy.cost().is_accepted());
    let balanced = policy.cost();
    policy.shift(&flow(1, 0), QueueId(0), QueueId(9));
    assert_eq!(policy.cost().violations, 1);
    assert!(policy.cost() > balanced && !policy.cost().is_accepted());
    assert_eq!(policy.better_queue(&flow(1, 0), QueueId(9)).unwrap().0, QueueId(0));
}

const POLICIES: [&str; 6] = [
    "policy = \"balance\"",
    "policy = \"balance-rate\"",
    "policy = \"isolation\"",
    "[[term]]\npolicy = \"locality\"\n[[term]]\npolicy = \"fewest-changes\"\nweight = 0.3\n",
    "[[term]]\npolicy = \"balance\"\nweight = 3\n[[term]]\npolicy = \"balance-rate\"\nweight = 0.01\n",
    "policy = \"script\"\nscript = '''\n\
     fn queue_cost(queue) { queue.flows * queue.flows + queue.rate / 1000000 }\n\
     fn flow_cost(flow, queue) { if flow.class == \"rest\" && queue == 0 { reject(1, 0.5) } else { 0 } }\n\
     fn cost(queues) { let most = 0; for queue in queues { if queue.flows > most { most = queue.flows; } } most }\n'''\n",
];

fn placement() -> impl Strategy<Value = (Flow, u16)> {
    (0_u8..2, 0_u64..50, 0_u32..8, prop::option::of(0_u16..6), 0_u16..6).prop_map(
        |(class, rate, reader, before, queue)| {
            let known =
                Flow { reader: Some(reader), before: before.map(QueueId), ..flow(class, rate * 300_000) };
            (known, queue)
        },
    )
}

proptest! {
    /// Checks that a predicted change equals the difference of the costs, for any order of arrival.
    #[test]
    fn changes_are_differences_of_costs(
        text in prop::sample::select(POLICIES.to_vec()),
        flows in prop::collection::vec(placement(), 1..25),
        moved: prop::sample::Index,
        to in 0_u16..6,
    ) {
        let mut policy = bound(text, 6);
        let last = policy.class_states().count() as u8 - 1;
        let flows: Vec<(Flow, QueueId)> = flows
            .into_iter()
            .map(|(flow, queue)| (Flow { class: ClassId(flow.class.0.min(last)), ..flow }, QueueId(queue)))
            .collect();
        for (flow, queue) in &flows {
            policy.place(flow, *queue);
        }
        let (flow, from) = flows[moved.index(flows.len())];
        let to = QueueId(to);
        let before = policy.cost();
        let told = policy.change(&flow, from, to);
        policy.shift(&flow, from, to);
        let difference = policy.cost() - before;
        prop_assert!(before.amount >= 0 && policy.cost().amount >= 0);
        prop_assert_eq!(told.violations, difference.violations);
        // The tolerance allows one step for each term and each rounding. A weight of 1 is 1000 steps.
        prop_assert!((told.amount - difference.amount).abs() <= 16 * 1000, "{} {}", told, difference);

        let mut reversed = bound(text, 6);
        for (other, queue) in flows.iter().rev() {
            reversed.place(other, *queue);
        }
        reversed.shift(&flow, from, to);
        prop_assert_eq!(reversed.cost(), policy.cost());
        prop_assert_eq!(policy.fault(), None);
    }

    /// Checks that the offered queue is better than the present one, and no allowed queue is better than the
    /// offered one.
    #[test]
    fn the_better_queue_is_the_best_one(
        text in prop::sample::select(POLICIES.to_vec()),
        flows in prop::collection::vec(placement(), 1..25),
    ) {
        let mut policy = bound(text, 6);
        let last = policy.class_states().count() as u8 - 1;
        for (flow, queue) in &flows {
            policy.place(&Flow { class: ClassId(flow.class.0.min(last)), ..*flow }, QueueId(*queue));
        }
        for (flow, queue) in flows {
            let (flow, from) = (Flow { class: ClassId(flow.class.0.min(last)), ..flow }, QueueId(queue));
            let all = policy.allowed(&flow).iter().map(|to| policy.change(&flow, from, *to));
            let best = all.filter(|change| *change < Cost::ZERO).min();
            prop_assert_eq!(policy.better_queue(&flow, from).map(|(_, change)| change), best);
        }
    }
}

// ---- Scripts -------------------------------------------------------------------------------------------

fn run(script: &str) -> Result<Cost, String> {
    let text = format!("policy = \"script\"\nscript-time = \"5s\"\nscript = '''\n{script}\n'''\n");
    let mut policy = bound(&text, 2);
    policy.begin();
    policy.place(&flow(0, 3_000_000), QueueId(0));
    let cost = policy.cost();
    policy.fault().map_or(Ok(cost), |fault| Err(fault.to_string()))
}

#[test]
fn scripts_see_queues_and_flows() {
    let cost = |script: &str| run(script).unwrap().value();
    assert_eq!(cost("fn queue_cost(q) { q.flows * 2 + q.index }"), 3.0);
    assert_eq!(cost("fn queue_cost(q) { q.count(\"rest\") }"), 1.0);
    assert_eq!(cost("fn queue_cost(q) { q.rate / 1000000.0 }"), 3.0);
    assert_eq!(
        cost(
            "fn flow_cost(f, q) { if f.class == \"rest\" && f.reader == () { f.destination_port } else { 0 } }"
        ),
        11211.0
    );
    assert_eq!(
        cost(
            "fn flow_cost(f, q) { if f.protocol == \"udp\" && f.source == \"10.0.0.1\" { 0.5 } else { 0 } }"
        ),
        0.5
    );
    assert_eq!(
        cost("fn cost(queues) { let s = 0; for q in queues { s += q.flows; } s + queues.len() }"),
        3.0
    );
    assert_eq!(cost("fn helper(x) { x + 1 } fn cost(queues) { helper(4) }"), 5.0);
    assert_eq!(
        run("fn queue_cost(q) { if q.flows > 0 { reject(2, 1.5) } else { 0 } }").unwrap().violations,
        2
    );
    assert_eq!(run("fn queue_cost(q) { if q.flows > 0 { reject() } else { 0 } }").unwrap().violations, 1);
}

#[test]
fn unknown_fields_are_told_with_those_that_there_are() {
    for (script, words) in [
        (
            "fn queue_cost(queue) { queue.flow }",
            "queue has no field 'flow'; did you mean 'flows'? known: index, flows, rate",
        ),
        (
            "fn queue_cost(queue) { queue.count(\"rset\") }",
            "count('rset'): the policy has no such class; did you mean 'rest'? known: rest",
        ),
        ("fn queue_cost(queue) { queue.flows = 1; 0 }", "field 'flows' of a queue cannot be set"),
        ("fn cost(queues) { queues[0].nosuch }", "queue has no field 'nosuch'; known: index, flows, rate"),
        ("fn flow_cost(flow, queue) { flow.src }", "flow has no field 'src'; known: class, rate, protocol"),
        (
            "fn flow_cost(flow, queue) { queue.flows }",
            "has no field 'flows'; in flow_cost a queue is only its number",
        ),
    ] {
        let error = run(script).unwrap_err();
        assert!(error.contains(words), "{script}: {error}");
    }
}

#[test]
fn hostile_scripts_end_with_one_error_and_soon() {
    for (script, told) in [
        ("fn queue_cost(q) { loop { } }", "endless loop"),
        ("fn queue_cost(q) { while true { q.flows; } }", "endless loop"),
        ("fn queue_cost(q) { queue_cost(q) }", "levels deep"),
        ("fn queue_cost(q) { let a = []; loop { a.push(1); } }", "too large"),
        ("fn queue_cost(q) { let a = []; loop { a.push(a); } }", "too large"),
        ("fn queue_cost(q) { let s = \"ab\"; loop { s += s; } }", "too large"),
        ("fn queue_cost(q) { let s = \"ab\"; s.pad(1000000000, \"x\"); 1 }", "too large"),
        ("fn queue_cost(q) { let a = []; a.pad(1000000000, 1); 1 }", "too large"),
        (
            "fn queue_cost(q) { let m = #{}; let i = 0; loop { m[i.to_string()] = i; i += 1; } }",
            "endless loop",
        ),
        (
            "fn queue_cost(q) { let a = []; a.pad(1000, 0); let m = #{}; let i = 0; loop { m[`${i}`] = a; i += 1; } }",
            "endless loop",
        ),
        ("fn queue_cost(q) { 1 / 0 }", "Division by zero"),
        ("fn queue_cost(q) { -1 }", "a cost must be between 0 and"),
        ("fn queue_cost(q) { reject(-1) }", "reject(-1): the number of flows must be between 0 and"),
        ("fn queue_cost(q) { reject(9223372036854775807) }", "the number of flows must be between 0 and"),
        ("fn queue_cost(q) { reject(1, -0.5) }", "reject(1, -0.5): a cost must be between 0 and"),
        ("fn queue_cost(q) { reject(1, -5) }", "a cost must be between 0 and"),
        ("fn queue_cost(q) { 1e300 * 1e300 }", "a cost must be between 0 and"),
        ("fn queue_cost(q) { \"much\" }", "not a number"),
        ("fn queue_cost(q) { }", "not a number"),
        ("fn queue_cost(q) { q.colour }", "colour"),
        ("fn queue_cost(q) { nothing(q) }", "nothing"),
        ("fn queue_cost(q) { sleep(10); 1 }", "sleep"),
        ("fn queue_cost(q) { throw \"oh\" }", "oh"),
        ("fn queue_cost(q) { 9223372036854775807 + 1 }", "overflow"),
    ] {
        let begin = Instant::now();
        let error = run(script).expect_err(script);
        assert!(error.contains(told), "{script}\n{error}");
        assert!(error.starts_with("p.toml:4:"), "{error}");
        assert!(!error.chars().any(char::is_control), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(10), "{script}");
    }
    for (script, told) in [
        ("fn queue_cost(q) { eval(\"1\") }", "eval"),
        ("import \"x\" as x; fn queue_cost(q) { 1 }", "import"),
        (&format!("fn queue_cost(q) {{ {}1{} }}", "(".repeat(500), ")".repeat(500)), "complexity"),
    ] {
        let text = format!("policy = \"script\"\nscript = '''{script}'''\n");
        let error = PolicyFile::parse(&text, "p.toml").expect_err(script).to_string();
        assert!(error.contains(told), "{script}\n{error}");
    }
}

#[test]
fn calls_that_take_too_long_together_end_the_search() {
    let text = "policy = \"script\"\nscript-time = \"1ms\"\nscript = '''\n\
                fn queue_cost(q) { let n = 0; while n < 5000 { n += 1; } n }\n'''\n";
    let mut policy = bound(text, 2);
    policy.begin();
    let begin = Instant::now();
    let fault = loop {
        policy.place(&flow(0, 0), QueueId(0));
        if let Some(fault) = policy.fault() {
            break fault.to_string();
        }
        assert!(begin.elapsed() < Duration::from_secs(20));
    };
    assert!(fault.contains("more than 1ms in one search"), "{fault}");
}

#[test]
fn classes_without_flows_are_named() {
    let remarks = |text: &str| PolicyFile::parse(text, "p.toml").unwrap().remarks;
    let class = |name: &str, rest: &str| format!("[[class]]\nname = '{name}'\n{rest}\n");
    let wide = class("web", "destination-port = '80-443'\nqueues = 1");
    for (narrow, is_named) in [
        ("destination-port = 443", true),
        ("protocol = 'tcp'\nsource = '10.0.0.0/8'\ndestination-port = '100-200'", true),
        ("destination-port = '443-444'", false),
        ("source = '10.0.0.0/8'", false),
        ("process = 'nginx'", false),
    ] {
        let found = remarks(&[wide.clone(), class("tls", narrow)].concat());
        assert_eq!(found.len(), usize::from(is_named), "{narrow}: {found:?}");
        assert!(
            found.iter().all(|remark| remark.starts_with("p.toml:5: class tls can match no flow")),
            "{found:?}"
        );
        assert!(
            found.iter().all(|remark| remark.contains("class web above it matches all of these flows first")),
            "{found:?}"
        );
    }
    let below =
        [class("a", "cgroup = '/a'"), class("b", "cgroup = '/a/b'"), class("c", "cgroup = '/ab'")].concat();
    assert_eq!(remarks(&below).len(), 1);
    let nets = [class("a", "source = '10.0.0.0/8'"), class("b", "source = '10.1.0.0/16'")].concat();
    assert_eq!(remarks(&nets).len(), 1);
    let turned = [class("b", "source = '10.1.0.0/16'"), class("a", "source = '10.0.0.0/8'")].concat();
    assert_eq!(remarks(&turned), Vec::<String>::new());
    let together = |rows: [&str; 3]| {
        remarks(&["a", "b", "c"].iter().zip(rows).map(|(name, row)| class(name, row)).collect::<String>())
    };
    for (rows, is_named) in [
        (["destination-port = '1-99'", "destination-port = '80-200'", "destination-port = '50-150'"], true),
        (["destination-port = '1-99'", "destination-port = '101-200'", "destination-port = '50-150'"], false),
        (["protocol = 'tcp'", "protocol = 'udp'", "source = '10.0.0.0/8'"], true),
        (["protocol = 'tcp'", "protocol = 'udp'", "process = 'nginx'"], true),
        (["protocol = 'tcp'", "protocol = 'udp'\nprocess = 'nginx'", "source = '10.0.0.0/8'"], false),
        (["source = '10.0.0.0/9'", "source = '10.128.0.0/9'", "source = '10.0.0.0/8'"], true),
        (["source = '0.0.0.0/0'", "source = '::/0'", "destination-port = 80"], true),
        (["source = '0.0.0.0/0'", "source = '8000::/1'", "destination-port = 80"], false),
    ] {
        let found = together(rows);
        assert_eq!(found.len(), usize::from(is_named), "{rows:?}: {found:?}");
        let words = "class c can match no flow: classes a, b above it match all of these flows first; ";
        assert!(found.iter().all(|remark| remark.contains(words)), "{found:?}");
    }
    let long = remarks(&class("a", "process = 'a-name-of-17-byte'"));
    assert!(long[0].contains("p.toml:1: ") && long[0].contains("15 bytes"), "{long:?}");
}

/// A remark about a fact names the classes in which no flow has the fact. If no flow of any class has
/// it, the remark names no class.
#[test]
fn a_fact_that_some_classes_lack_is_told_of_these() {
    let policy = bound("policy = 'locality'\n[[class]]\nname = 'web'\nqueues = 2\n", 4);
    let told = |readers: [Option<u32>; 2]| {
        let mut policy = policy.clone();
        let flows = [0, 1].map(|class| Flow { reader: readers[class as usize], ..flow(class, 1) });
        flows.iter().for_each(|flow| policy.place(flow, QueueId(0)));
        policy.remarks(flows.iter())
    };
    let effect = "has a reader: the policy's terms about the reader have no effect";
    assert_eq!(told([None, None]), [format!("no flow {effect}")]);
    assert_eq!(told([Some(1), None]), [format!("no flow of rest {effect} there")]);
    assert_eq!(told([None, Some(1)]), [format!("no flow of web {effect} there")]);
    assert_eq!(told([Some(1), Some(1)]), Vec::<String>::new());
}

#[test]
fn a_class_without_conditions_that_no_flow_names_is_told() {
    let mut policy = bound("[[class]]\nname = 'a'\nqueues = 1\n[[class]]\nname = 'b'\n", 4);
    let remarks = |policy: &Policy| policy.remarks([].iter());
    assert_eq!(remarks(&policy), Vec::<String>::new(), "there is no flow at all");
    let observed = generate(0, 1).next().unwrap();
    policy.place(&policy.classify(&observed), QueueId(0));
    let told = remarks(&policy);
    assert!(
        told[0].starts_with("class a has no condition") && told[0].contains("queues (3) stay empty"),
        "{told:?}"
    );
    assert!(told[1].starts_with("class b has no condition") && !told[1].contains("queues"), "{told:?}");
    let named = ObservedFlow { class: Some("A".to_owned()), ..observed };
    policy.place(&policy.classify(&named), QueueId(3));
    assert_eq!(remarks(&policy).len(), 1);
}
