//! Measures whether a policy of `evenkeel steer` prevents one class of memcached clients from delaying
//! another class, on one interface of this machine's kernel.
//!
//! Each class has its own instance of memcached on its own CPU. The same XDP program steers arriving
//! packets in every variant: by hash, or with one CPU that only serves the high-priority class. The
//! load is an open loop at 50, 80 and 95 % of the host's capacity with hashing. The program measures
//! this capacity first.
//!
//! **The claim**, fixed before the measurement: at 80 % and at 95 %, isolation reduces the median and
//! the 99th percentile of the high-priority class.
//! - The claim has four figures. For each, the program computes the ratio of the latency with isolation to
//!   the latency with hashing, paired by round, over 20 rounds.
//! - A figure is reduced if the whole 95 % confidence interval of the geometric mean is below 1.
//! - All four figures must be reduced, so there is no correction for multiple tests. If a figure is not
//!   reduced, the program exits with 1.
//! - For 50 % and for the 99.9th percentile, the program reports ratios without a claim. With few
//!   packets in the rings the classes rarely interact, and four of 4,000 requests determine the 99.9th
//!   percentile.
//!
//! `--smoke` runs two rounds with loads of one second, to check that the program works. It makes no claim.

mod waiting;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use evenkeel_metrics::paired_ratio;
use evenkeel_netlink::VethOptions;
use evenkeel_testbed::traffic::memcached::{LoadOptions, LoadResult, load};
use evenkeel_testbed::{Namespace, Process, ProcessOptions};
use serde_json::Value;
use waiting::{Fallible, wait_for};

/// The host's interface, whose received packets are steered, and the interface of its clients.
const INTERFACE: &str = "evk0";
const CLIENTS: &str = "evk1";
const ADDRESS: &str = "198.18.0.1";
const CLIENTS_ADDRESS: &str = "198.18.0.2";
/// Port and CPU of the memcached instance for each class. The clients of a class run on the same CPU as
/// its instance.
const HIGH: (u16, usize) = (11211, 0);
const BEST_EFFORT: (u16, usize) = (11212, 1);
const PROCESSORS: u32 = 2;

/// Requests per second of the high-priority class. The rate is low, as is typical of latency-sensitive
/// clients.
const HIGH_RATE: f64 = 1_000.0;
const CONNECTIONS: usize = 16;
const VALUE_BYTES: usize = 1024;
const SETS_PERCENT: u32 = 10;
/// Total load, as share of the capacity.
const LOADS: [f64; 3] = [0.5, 0.8, 0.95];
/// Reported statistics: name, and quantile of the requests.
const STATISTICS: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)];
/// Loads and statistics for which the claim is that isolation reduces the latency.
const CLAIMED_LOADS: [f64; 2] = [0.8, 0.95];
const CLAIMED: [&str; 2] = ["p50", "p99"];
/// Best-effort requests per second while the program measures the capacity. The rate exceeds the capacity of
/// two CPUs, so the rate of responses equals the capacity.
const TOO_MANY: f64 = 150_000.0;
/// Number of measurements of the capacity. The highest result counts, because other programs can only reduce
/// a result.
const TRIES: u64 = 4;
const WHOLE: Extent = Extent { rounds: 20, time: Duration::from_secs(4) };
const SMOKE: Extent = Extent { rounds: 2, time: Duration::from_secs(1) };
/// Time for which the load waits for responses after the last request.
const DRAIN: Duration = Duration::from_secs(2);
const CAPACITY_TIME: Duration = Duration::from_secs(3);

const POLICY: &str =
    "policy = \"balance\"\n[[class]]\nname = \"high\"\ndestination-port = 11211\nqueues = [0]\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    Hash,
    Isolation,
}

const VARIANTS: [Variant; 2] = [Variant::Hash, Variant::Isolation];

fn main() -> ExitCode {
    let is_smoke = std::env::args().nth(1).is_some_and(|argument| argument == "--smoke");
    match run(if is_smoke { &SMOKE } else { &WHOLE }) {
        Ok(holds) if holds || is_smoke => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(1),
        Err(error) => {
            eprintln!("isolation: {error}");
            ExitCode::from(4)
        }
    }
}

struct Bed {
    host: Namespace,
    clients: Namespace,
    evenkeel: PathBuf,
    policy: PathBuf,
    directory: tempfile::TempDir,
}

impl Bed {
    fn new() -> Fallible<Self> {
        let evenkeel = std::env::current_exe()?.with_file_name("evenkeel");
        if !evenkeel.exists() {
            return Err(format!("{} does not exist; run cargo build --release", evenkeel.display()).into());
        }
        let directory = tempfile::tempdir()?;
        let policy = directory.path().join("isolation.toml");
        fs::write(&policy, POLICY)?;
        let (host, clients) = (Namespace::new()?, Namespace::new()?);
        for namespace in [&host, &clients] {
            // BBR periodically reduces its window to four packets to measure the round-trip time, which would
            // disturb the measurement.
            namespace.set_sysctl("net/ipv4/tcp_congestion_control", "reno")?;
        }
        let mut near = host.netlink()?;
        let mut far = clients.netlink()?;
        let pair = std::os::fd::AsFd::as_fd(&clients);
        let options = VethOptions {
            name: INTERFACE,
            peer_name: CLIENTS,
            peer_namespace: pair,
            queues: PROCESSORS,
            mtu: 1500,
        };
        near.add_veth(&options)?;
        for (netlink, name, address) in
            [(&mut near, INTERFACE, ADDRESS), (&mut far, CLIENTS, CLIENTS_ADDRESS)]
        {
            let index = netlink.link_index(name)?;
            netlink.add_address(index, address.parse()?, 24)?;
            netlink.set_up(index)?;
        }
        // A NIC fills its rings without using a CPU. On a veth, the sending CPU fills them. Give each
        // CPU its own transmit queue. Otherwise the classes would share a queue before the XDP program
        // steers the packets.
        let own_queue = (0..PROCESSORS).map(|queue| {
            let file = format!("class/net/{CLIENTS}/queues/tx-{queue}/xps_cpus");
            (file, format!("{:x}", 1 << queue))
        });
        clients.write_sysfs(&own_queue.collect::<Vec<_>>())?;
        Ok(Self { host, clients, evenkeel, policy, directory })
    }

    fn server(&self, (port, cpu): (u16, usize)) -> Fallible<Process> {
        let port_text = port.to_string();
        // Run as root: a change of user would clear the parent death signal (prctl(2), PR_SET_PDEATHSIG).
        let arguments = ["-u", "root", "-l", ADDRESS, "-p", &port_text, "-U", "0", "-t", "1", "-m", "64"];
        let process = Process::start(ProcessOptions {
            program: "memcached",
            arguments: arguments.iter().map(Into::into).collect(),
            namespace: &self.host,
            cpu: Some(cpu),
            inherit: None,
        })?;
        let address = ADDRESS.parse()?;
        wait_for("memcached listens", || Ok(self.host.listens(address, port)?))?;
        Ok(process)
    }

    fn steer(&self, variant: Variant) -> Fallible<Process> {
        let policy = if variant == Variant::Isolation { text(&self.policy)? } else { "balance" };
        let mut arguments =
            vec!["steer", INTERFACE, "--backend", "xdp", "--format", "json", "--policy", policy];
        if variant == Variant::Hash {
            arguments.extend(["--baseline", "hash"]);
        }
        let mut process = Process::start(ProcessOptions {
            program: text(&self.evenkeel)?,
            arguments: arguments.iter().map(Into::into).collect(),
            namespace: &self.host,
            cpu: None,
            inherit: None,
        })?;
        wait_for("evenkeel steers", || {
            if process.has_ended()? {
                return Err(process.error_text().into());
            }
            Ok(process.error_text().contains("steered now"))
        })?;
        Ok(process)
    }

    fn options(
        &self,
        (port, cpu): (u16, usize),
        rate: f64,
        time: Duration,
        seed: u64,
    ) -> Fallible<LoadOptions> {
        Ok(LoadOptions {
            server: SocketAddr::new(ADDRESS.parse()?, port),
            connections: CONNECTIONS,
            rate: Some(rate),
            time,
            value: VALUE_BYTES,
            sets_percent: SETS_PERCENT,
            keys: 100,
            seed,
            cpu: Some(cpu),
        })
    }

    /// Runs the load of both classes at the same time; `best_effort` is the rate of the best-effort class.
    fn both(&self, best_effort: f64, time: Duration, seed: u64) -> Fallible<(LoadResult, LoadResult)> {
        let of_high = self.options(HIGH, HIGH_RATE, time, seed)?;
        let of_rest = self.options(BEST_EFFORT, best_effort, time, seed + 1)?;
        std::thread::scope(|scope| {
            let high = scope.spawn(|| load(&self.clients, &of_high));
            let rest = load(&self.clients, &of_rest)?;
            let high = high.join().map_err(|_| "the high-priority load broke off")??;
            Ok((high, rest))
        })
    }
}

fn text(path: &Path) -> Fallible<&str> {
    path.to_str().ok_or_else(|| format!("{} is not UTF-8", path.display()).into())
}

/// Ends a session. Returns the number of packets that the kernel dropped because a ring was full.
fn end(mut session: Process) -> Fallible<u64> {
    session.terminate()?;
    wait_for("evenkeel ends", || Ok(session.has_ended()?))?;
    let seen: Value = serde_json::from_str(&session.output_text()?)?;
    let queues = seen["queues"].as_array().ok_or("evenkeel listed no queues")?;
    Ok(queues.iter().filter_map(|queue| queue["lost"].as_u64()).sum())
}

/// Measures the capacity with hashing: the responses per second under overload.
fn capacity(bed: &Bed) -> Fallible<f64> {
    let session = bed.steer(Variant::Hash)?;
    let mut most = 0.0_f64;
    for seed in 0..TRIES {
        let (high, rest) = bed.both(TOO_MANY, CAPACITY_TIME, seed)?;
        println!(
            "capacity, try {seed}: {:.0} requests/s answered of {:.0} ({:.0} of the high-priority class)",
            high.throughput() + rest.throughput(),
            TOO_MANY + HIGH_RATE,
            high.throughput()
        );
        most = most.max(high.throughput() + rest.throughput());
    }
    end(session)?;
    Ok(most)
}

/// Statistics of the high-priority class with one variant, milliseconds.
type Seen = [f64; STATISTICS.len()];

fn seen(result: &LoadResult, time: Duration) -> Seen {
    // If too few requests were answered to compute the quantile, the quantile is at least the time of the
    // load and the drain.
    let at_least = (time + DRAIN).as_secs_f64() * 1e3;
    STATISTICS.map(|(_, share)| result.quantile(share).map_or(at_least, |ns| ns as f64 / 1e6))
}

struct Extent {
    rounds: u64,
    time: Duration,
}

/// For each load: the statistics of each round, with hashing and with isolation.
type Rounds = Vec<[Vec<Seen>; 2]>;

fn run(extent: &Extent) -> Fallible<bool> {
    let bed = Bed::new()?;
    let _servers = [bed.server(HIGH)?, bed.server(BEST_EFFORT)?];
    let capacity = capacity(&bed)?;
    println!("capacity: {capacity:.0} requests/s, hashed; {HIGH_RATE:.0}/s of any load are high priority");
    println!();
    println!(
        "high priority, ms: p50 p99 p99.9         hash                        isolation           lost at rings"
    );
    let mut rounds: Rounds = vec![Default::default(); LOADS.len()];
    for round in 0..extent.rounds {
        for (load, share) in LOADS.iter().enumerate() {
            let mut lost = [0; 2];
            // Alternate the order of the variants, so that changes of the machine's speed affect both
            // variants equally.
            for turn in 0..2 {
                let which = (turn + round as usize + load) % 2;
                let session = bed.steer(VARIANTS[which])?;
                let best_effort = (capacity * share - HIGH_RATE).max(HIGH_RATE);
                let (high, _) = bed.both(best_effort, extent.time, 100 + round)?;
                lost[which] = end(session)?;
                rounds[load][which].push(seen(&high, extent.time));
            }
            let shown = |which: usize| {
                let last = rounds[load][which].last().copied().unwrap_or_default();
                last.map(|ms| format!("{ms:>8.3}")).join(" ")
            };
            println!(
                "round {:>2}, {:>2.0} %             {}  {}    {} {}",
                round + 1,
                share * 100.0,
                shown(0),
                shown(1),
                lost[0],
                lost[1]
            );
        }
    }
    bed.directory.close()?;
    Ok(judge(&rounds))
}

/// Prints the paired ratios. Returns whether the claim holds.
fn judge(rounds: &Rounds) -> bool {
    println!();
    println!(
        "high-priority latency, isolation over hash, paired by round: geometric mean (95 % confidence interval)"
    );
    let mut holds = true;
    let mut not = Vec::new();
    for (load, [hash, isolation]) in LOADS.iter().zip(rounds) {
        for (number, (name, _)) in STATISTICS.iter().enumerate() {
            let of = |seen: &[Seen]| seen.iter().map(|seen| seen[number]).collect::<Vec<f64>>();
            let (before, after) = (of(hash), of(isolation));
            let Some(ratio) = paired_ratio(&before, &after) else { continue };
            let is_lower = ratio.interval.is_some_and(|interval| interval.high < 1.0);
            let found = match ratio.interval {
                None => "no interval",
                Some(_) if is_lower => "lower",
                Some(interval) if interval.low > 1.0 => "HIGHER",
                Some(_) => "no difference shown",
            };
            let interval =
                ratio.interval.map(|interval| format!("({:.3} to {:.3})", interval.low, interval.high));
            println!(
                "{:>3.0} %  {name:5}  {:.3} {:20} n = {}  {found}",
                load * 100.0,
                ratio.mean,
                interval.unwrap_or_default(),
                ratio.n
            );
            if !is_lower {
                not.push(format!("{name} at {:.0} %", load * 100.0));
                holds &= !(CLAIMED_LOADS.contains(load) && CLAIMED.contains(name));
            }
        }
    }
    println!();
    println!(
        "claim: p50 and p99 are lower with isolation at 80 and at 95 % of the capacity: {}",
        if holds { "holds" } else { "DOES NOT HOLD" }
    );
    if !not.is_empty() {
        println!("not shown to be lower: {}", not.join(", "));
    }
    holds
}
