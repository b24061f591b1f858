//! Tests that no facts cause a panic in a simulation: facts of synthetic, recorded and random hosts, and
//! contradictory facts. A host that is too large is refused with an explanation.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(dead_code, reason = "several test binaries share this file, and each uses a part of it")]
#[path = "support/faults.rs"]
mod faults;
#[path = "support/hosts.rs"]
mod hosts;
#[path = "support/parallel.rs"]
mod parallel;
#[allow(dead_code, reason = "several test binaries share this file, and each uses a part of it")]
#[path = "support/random_hosts.rs"]
mod random_hosts;
#[allow(dead_code, reason = "several test binaries share this file, and each uses a part of it")]
#[path = "support/recorded.rs"]
mod recorded;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use evenkeel_forecast::{Interrupted, of_findings, of_plan};
use evenkeel_host::facts::{Tree, complete, read_facts};
use evenkeel_model::host::{Channels, HostFacts, InterfaceKind, Rings};
use evenkeel_model::world::Observer;
use evenkeel_placement::check;
use evenkeel_placement::tune::{Keep, TuningPlan};
use evenkeel_synthetic::{HostBuilder, NicOptions};
use faults::FAULTS;
use parallel::on_all_processors;

/// Stops the simulations at a check for an interruption, after this number of checks, so that many hosts
/// take little time.
struct Short(AtomicU32);

impl Observer for Short {
    fn progress(&self, _fraction: f64, _activity: &str) {}
    fn remark(&self, _text: &str) {}
    fn interrupted(&self) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_err()
    }
}

fn simulate(facts: &HostFacts) {
    let mut facts = facts.clone();
    complete(&mut facts);
    let _ = of_findings(&facts, None, &check(&facts), None, &Short(AtomicU32::new(4)));
    for nic in facts.interfaces.iter().filter(|nic| nic.kind == InterfaceKind::Device) {
        let plan = TuningPlan::settle(&facts, &nic.name, &Keep::default(), &[]);
        let _ = of_plan(&facts, &nic.name, &plan.steps, None, &Short(AtomicU32::new(2)));
    }
}

#[test]
fn an_interruption_ends_the_simulations() {
    let (_, host) = hosts::HOSTS[0];
    let facts = host();
    assert_eq!(of_findings(&facts, None, &[], None, &Short(AtomicU32::new(10))), Err(Interrupted));
    let plan = TuningPlan::settle(&facts, "ens2f0", &Keep::default(), &[]);
    assert!(
        of_plan(&facts, "ens2f0", &plan.steps, None, &Short(AtomicU32::new(0))).is_ok(),
        "nothing to run"
    );
}

/// The model supports at most 256 cores and 256 queues.
#[test]
fn large_hosts() {
    for (cores, queues, is_simulated) in [(64, 64, true), (65, 65, false)] {
        let options = NicOptions { queues: (queues, queues), ..hosts::MLX5 };
        let facts = HostBuilder::new(4, cores, 1).nic(&options).build();
        let found = of_findings(&facts, None, &[], None, &Short(AtomicU32::new(4)));
        assert_eq!(found == Err(Interrupted), is_simulated, "{found:?}");
        assert!(is_simulated || found.unwrap().obstacles[0].contains("260 cores"));
    }
}

#[test]
fn hosts_with_each_fault() {
    let mut all: Vec<HostFacts> = hosts::HOSTS.iter().map(|(_, host)| host()).collect();
    for fault in FAULTS {
        let (_, host) = (fault.hosts)()[0];
        let mut facts = host();
        (fault.plant)(&mut facts);
        all.push(facts);
    }
    on_all_processors(&all, simulate);
}

#[test]
fn recorded_hosts() {
    let hosts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hosts");
    let files = fs::read_dir(hosts).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<PathBuf> =
        files.filter(|file| file.extension().is_some_and(|kind| kind == "host")).collect();
    assert!(files.len() > 100);
    on_all_processors(&files, |file| {
        let directory = tempfile::tempdir().unwrap();
        recorded::unpack(&fs::read_to_string(file).unwrap(), directory.path()).unwrap();
        simulate(&read_facts(&Tree::recorded(directory.path()).unwrap()).unwrap());
    });
}

#[test]
fn random_hosts() {
    let all: Vec<HostFacts> = (0..60).map(|number| random_hosts::host(0, number)).collect();
    on_all_processors(&all, simulate);
}

/// The facts are at the ends of their ranges, or contradict each other.
#[test]
fn odd_facts() {
    let edits: &[fn(&mut HostFacts)] = &[
        |facts| facts.processors.clear(),
        |facts| facts.interrupts.clear(),
        |facts| facts.interfaces.clear(),
        |facts| facts.processors.truncate(1),
        |facts| facts.processors.iter_mut().for_each(|processor| processor.core = u32::MAX),
        |facts| facts.processors.iter_mut().for_each(|processor| processor.node = u32::MAX),
        |facts| facts.interrupts.iter_mut().for_each(|interrupt| interrupt.queue = Some(u32::MAX)),
        |facts| facts.interrupts.iter_mut().for_each(|interrupt| interrupt.effective = vec![u32::MAX]),
        |facts| nic(facts, |nic| nic.speed_bps = Some(u64::MAX)),
        |facts| nic(facts, |nic| nic.speed_bps = Some(0)),
        |facts| nic(facts, |nic| nic.mtu = Some(0)),
        |facts| nic(facts, |nic| nic.mtu = Some(68)),
        |facts| nic(facts, |nic| nic.node = Some(77)),
        |facts| nic(facts, |nic| nic.rings = Some(Rings { rx: u32::MAX, ..Rings::default() })),
        |facts| nic(facts, |nic| nic.rings = Some(Rings { rx: 1, ..Rings::default() })),
        |facts| nic(facts, |nic| nic.channels = Some(Channels { combined: u32::MAX, ..Channels::default() })),
        |facts| {
            nic(facts, |nic| nic.rss.iter_mut().for_each(|rss| rss.indirection = vec![u32::MAX; 3]));
        },
        |facts| {
            nic(facts, |nic| nic.coalescing.iter_mut().for_each(|found| found.rx_usecs = u32::MAX));
        },
        |facts| {
            nic(facts, |nic| nic.pcie.iter_mut().for_each(|link| link.speed_gts = f64::INFINITY));
        },
        |facts| {
            facts.sysctls.insert("net/ipv4/tcp_rmem".to_owned(), "1 1 1".to_owned());
        },
        |facts| facts.processor_model = Some("x @ NaNGHz".to_owned()),
        |facts| {
            facts.sockets.iter_mut().filter_map(|socket| socket.tcp.as_mut()).for_each(|tcp| {
                (tcp.rtt_us, tcp.min_rtt_us, tcp.bytes_received) = (u64::MAX, u64::MAX, u64::MAX);
            });
        },
    ];
    let hosts: Vec<HostFacts> = edits
        .iter()
        .map(|edit| {
            let (_, host) = hosts::HOSTS[0];
            let mut facts = host();
            edit(&mut facts);
            facts
        })
        .collect();
    on_all_processors(&hosts, |facts| {
        let _ = of_findings(facts, None, &check(facts), None, &Short(AtomicU32::new(4)));
        let _ = of_plan(facts, "ens2f0", &[], None, &Short(AtomicU32::new(4)));
    });
}

fn nic(facts: &mut HostFacts, edit: impl FnOnce(&mut evenkeel_model::host::Interface)) {
    edit(hosts::nic_mut(facts).unwrap());
}
