//! Compares the simulated test bed with the real one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use support::running::{Place, Running};
use support::{end, evenkeel};

/// Twelve flows at a rate that two busy cores can carry. On a slower line, round-trip times are long.
/// Real flows on one queue then do not reach equal shares within these seconds.
const SCENARIO: &str = r#"schema = 1
name = "small"
title = "Twelve flows on eight queues"
variant-table = "titan"
variants = ["dqa"]

[link]
rate = "1gbit"
queues = 8

[hosts]
sending-cores = 8

[workload]
flows = 12

[measure]
warmup = "2s"
long-windows = 1
repeats = 10

[measure.windows]
10ms = "10ms"
2s = "2s"
"#;

/// DQA does not depend on chance: four queues have two flows and four queues have one flow. So the
/// fairness metric is 0.75, apart from the difference between TCP flows on one queue. A segment of 64 KiB
/// is 0.3 % of a flow's fair share in a window of 2 s, so a few segments do not exceed the tolerance.
#[test]
fn both_worlds_agree_where_no_luck_is_involved() {
    let place = Place::new(SCENARIO);
    let real = Running::start(place.command(&["--quiet", "--format", "json", "--out", "real"])).end();
    assert_eq!(real.code, 0, "{real:?}");
    let (first, second) = (place.path().join("real"), place.path().join("simulated"));

    let mut simulate =
        evenkeel(&["run", "--on", "sim", "--nic", "soft", "--quiet", "--format", "json", "--out"]);
    simulate.arg(&second).arg(place.path().join("small.toml"));
    let simulated = end(simulate);
    assert_eq!(simulated.code, 0, "{simulated:?}");

    let judge = |share: &str| {
        let mut command =
            evenkeel(&["compare", "--metric", "nfm.2s", "--metric", "throughput_bps", "--within", share]);
        command.arg(&first).arg(&second);
        end(command)
    };
    let found = judge("15%");
    assert_eq!(found.code, 0, "{}\n{}", found.stdout, found.stderr);
    // With a tolerance of 0 %, the comparison must fail. Otherwise this test proves nothing.
    assert_eq!(judge("0%").code, 1);
}
