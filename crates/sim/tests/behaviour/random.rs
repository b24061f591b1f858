//! Generates random valid scenario files, sometimes with keys at their bounds, and runs them.

use evenkeel_model::scenario::{Scenario, bundled, parse};
use evenkeel_model::units::Nanoseconds;
use evenkeel_model::world::{Job, Observer, RawRepeat, World};
use evenkeel_sim::tcp::Profile;
use evenkeel_sim::world::{SimError, SimWorld};
use proptest::prelude::*;

prop_compose! {
    fn knobs(queues: u32, mtu: u32)(
        words in (
            prop::sample::select(vec!["hash", "dqa"]),
            prop::sample::select(vec!["pfifo_fast", "sfq+prio"]),
        ),
        used in prop_oneof![Just(queues), 1..=queues],
        pool in prop_oneof![Just(None), any::<prop::sample::Index>().prop_map(Some)],
        switches in (any::<bool>(), any::<bool>(), prop::bool::weighted(0.8), prop::bool::weighted(0.8)),
        gso in prop_oneof![4 => Just(65_536.max(mtu)), 1 => Just(mtu), 2 => mtu..=524_288],
        piece in prop_oneof![Just(None), (0.0..=1.0_f64).prop_map(Some)],
        small in prop_oneof![Just(None), Just(Some(262_144_u32)), (1_u32..=400_000).prop_map(Some)],
        limit in prop_oneof![
            Just("\"dynamic\"".to_owned()),
            Just("\"off\"".to_owned()),
            (1_u32..=400_000).prop_map(|bytes| format!("\"{bytes}B\"")),
        ],
        interval in prop_oneof![
            Just("\"default\"".to_owned()),
            prop::sample::select(vec![1_u32, 50, 1_000, 100_000]).prop_map(|us| format!("\"{us}us\"")),
        ],
    ) -> String {
        let (weights, batching, tso, interleaving) = switches;
        let divisors: Vec<u32> = (1..=used).filter(|size| used.is_multiple_of(*size)).collect();
        let pool = pool.map_or("\"off\"".to_owned(), |index| index.get(&divisors).to_string());
        let bytes = |size: Option<u32>| size.map_or("\"off\"".to_owned(), |bytes| format!("\"{bytes}B\""));
        let piece = bytes(piece.map(|part| mtu + (part * f64::from(gso - mtu)) as u32));
        format!(
            r#"queue-choice = "{choice}"
queues = {used}
xps-pool = {pool}
queue-weights = {weights}
segment-size = {piece}
transmit-batching = {batching}
qdisc = "{qdisc}"
tcp-small-queues = {small}
byte-queue-limit = {limit}
interrupt-interval = {interval}
gso-size = "{gso}B"
tso = {tso}
tso-interleaving = {interleaving}
"#,
            choice = words.0,
            qdisc = words.1,
            small = bytes(small),
        )
    }
}

prop_compose! {
    fn link_and_variant(least_rate: u64)(
        // Many rings are expensive to simulate, especially packet by packet.
        queues in prop_oneof![30 => 1_u32..=16, 1 => Just(256)],
        mtu in prop_oneof![4 => Just(1500_u32), 1 => Just(576), 1 => Just(65_535), 1 => 576_u32..=9000],
    )(
        queues in Just(queues),
        mtu in Just(mtu),
        rate in prop_oneof![
            4 => prop::sample::select(vec![100_000_000_u64, 1_000_000_000, 10_000_000_000, 100_000_000_000]),
            1 => Just(least_rate),
            1 => Just(1_600_000_000_000),
            2 => least_rate..=400_000_000_000,
        ],
        knobs in knobs(queues, mtu),
    ) -> String {
        format!(
            "[variant.one]\nsummary = \"random\"\n{knobs}\n[link]\nrate = \"{rate}bit\"\nmtu = \"{mtu}B\"\nqueues = {queues}\n"
        )
    }
}

const HEAD: &str = "schema = 1\nname = \"random\"\ntitle = \"Random\"\nvariants = [\"one\"]\n";

fn scenario(text: &str) -> Scenario {
    parse(text, "random.toml", bundled::variant_tables()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

prop_compose! {
    pub fn bulk()(
        head in link_and_variant(1_000_000),
        cores in prop_oneof![4 => 1_u32..=16, 1 => Just(1024)],
        flows in prop_oneof![4 => 1_u32..=40, 1 => 40_u32..=400],
        control in prop::sample::select(vec!["cubic", "reno"]),
        message in prop_oneof![Just(None), Just(Some(64_u32)), (1_u32..=65_536).prop_map(Some)],
    ) -> Scenario {
        let probe = message.map_or(String::new(), |bytes| {
            format!("[workload.latency]\nmessage = \"{bytes}B\"\nduration = \"1ms\"\n")
        });
        scenario(&format!(
            r#"{HEAD}
{head}
[hosts]
sending-cores = {cores}
[workload]
flows = {flows}
congestion-control = "{control}"
{probe}
[measure.windows]
1ms = "1ms"
"#
        ))
    }
}

prop_compose! {
    /// Generates a shuffle of up to five hosts.
    pub fn shuffle()(
        head in link_and_variant(1_000_000),
        hosts in 2_u32..=5,
        cores in 1_u32..=16,
        buffer in prop_oneof![4 => 100_000_u64..=12_000_000, 1 => 1_024_u64..=100_000],
        bytes in prop_oneof![1 => 1_u64..=2_000, 3 => 2_000_u64..=100_000],
        control in prop::sample::select(vec!["cubic", "reno"]),
    ) -> Scenario {
        // The switch must hold at least one packet: the MTU, and 38 bytes of Ethernet.
        let mtu = head.split("mtu = \"").nth(1).and_then(|rest| rest.split('B').next()?.parse::<u64>().ok());
        let buffer = buffer.max(mtu.unwrap() + 38);
        scenario(&format!(
            r#"{HEAD}
{head}
[hosts]
count = {hosts}
sending-cores = {cores}
[switch]
buffer = "{buffer}B"
[workload]
kind = "shuffle"
bytes-per-flow = "{bytes}B"
congestion-control = "{control}"
"#
        ))
    }
}

/// Returns the time in nanoseconds in which a line carries about this many full packets, limited to 20
/// µs to 1000 s. On the slowest lines, most of this time has only timeouts.
pub fn time_of_packets(scenario: &Scenario, packets: u64) -> u64 {
    let bits = packets * (scenario.link.mtu.bytes() + 38) * 8;
    let nanoseconds = u128::from(bits) * 1_000_000_000 / u128::from(scenario.link.rate.bits_per_second());
    u64::try_from(nanoseconds).unwrap_or(u64::MAX).clamp(20_000, 1_000_000_000_000)
}

struct Unobserved;

impl Observer for Unobserved {
    fn progress(&self, _fraction: f64, _activity: &str) {}
    fn remark(&self, _text: &str) {}
    fn interrupted(&self) -> bool {
        false
    }
}

/// Runs a repeat of the scenario's only variant. A bulk scenario runs for about this many packets.
pub fn repeat(
    scenario: &Scenario,
    profile: Profile,
    seed: u64,
    packets: u64,
    exact: bool,
) -> Result<RawRepeat, SimError> {
    const BINS: u64 = 20;
    let bin = time_of_packets(scenario, packets) / BINS;
    let job = Job {
        scenario,
        variant: &scenario.variants[0],
        repeat: 0,
        seed,
        rate: scenario.link.rate,
        warmup: Nanoseconds::new(bin * 3),
        duration: Nanoseconds::new(bin * BINS),
        bin: Nanoseconds::new(bin),
    };
    World::repeat(&mut SimWorld::new(profile).exact(exact), &job, &Unobserved)
}
