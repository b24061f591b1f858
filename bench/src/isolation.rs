//! Two classes of memcached clients on one interface of this machine's kernel: does a policy of `evenkeel steer` keep
//! the one from waiting for the other?
//!
//! Two instances of memcached, one for each class and processor. What comes in over the interface is steered by the same
//! XDP program in every variant: by hash, balanced, and with a processor for the high-priority class alone. The load is an
//! open loop at a fraction of what the host carries when hashed. Exits 1 unless the high-priority class's 99th percentile
//! is lower by 30 % with isolation than with hashing in every round.

use std::error::Error;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use evenkeel_netlink::VethOptions;
use evenkeel_testbed::traffic::memcached::{LoadOptions, LoadResult, load};
use evenkeel_testbed::{Namespace, Process, ProcessOptions};
use serde_json::Value;

type Fallible<T> = Result<T, Box<dyn Error>>;

/// The interface of the host whose receive side is steered, and that of its clients.
const INTERFACE: &str = "evk0";
const CLIENTS: &str = "evk1";
const ADDRESS: &str = "198.18.0.1";
const CLIENTS_ADDRESS: &str = "198.18.0.2";
/// Port and processor of the instance for each class. Its clients run on the same processor.
const HIGH: (u16, usize) = (11211, 0);
const BEST_EFFORT: (u16, usize) = (11212, 1);
const PROCESSORS: u32 = 2;

/// Requests per second of the high-priority class: few, as those have whom latency matters to.
const HIGH_RATE: f64 = 1_000.0;
const CONNECTIONS: usize = 16;
const VALUE_BYTES: usize = 1024;
const SETS_PERCENT: u32 = 10;
/// What is offered in all, as a share of the capacity.
const OFFERED: f64 = 0.8;
/// Requests per second of the best-effort class that no two processors carry: what is answered of them is the capacity.
const TOO_MANY: f64 = 150_000.0;
/// Tries at the capacity: other work on the machine makes it less, and nothing makes it more.
const TRIES: u64 = 4;
const ROUNDS: u64 = 5;
const TIME: Duration = Duration::from_secs(6);
const CAPACITY_TIME: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(10);
/// Isolation's p99 over hashing's that a round may have at most.
const AT_MOST: f64 = 0.7;

const POLICY: &str =
    "policy = \"balance\"\n[[class]]\nname = \"high\"\ndestination-port = 11211\nqueues = [0]\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    Hash,
    Balance,
    Isolation,
}

const VARIANTS: [Variant; 3] = [Variant::Hash, Variant::Balance, Variant::Isolation];

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("isolation: {error}");
            ExitCode::from(4)
        }
    }
}

/// Waits until something is so.
fn wait_for(what: &str, mut is_so: impl FnMut() -> Fallible<bool>) -> Fallible<()> {
    let deadline = Instant::now() + PATIENCE;
    while !is_so()? {
        if Instant::now() > deadline {
            return Err(format!("not within {} s: {what}", PATIENCE.as_secs()).into());
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

struct Bed {
    host: Namespace,
    clients: Namespace,
    /// The binary that steers, and its policy.
    evenkeel: PathBuf,
    policy: PathBuf,
    directory: tempfile::TempDir,
}

impl Bed {
    fn new() -> Fallible<Self> {
        let evenkeel = std::env::current_exe()?.with_file_name("evenkeel");
        if !evenkeel.exists() {
            return Err(format!("{} is not there: cargo build --release", evenkeel.display()).into());
        }
        let directory = tempfile::tempdir()?;
        let policy = directory.path().join("isolation.toml");
        fs::write(&policy, POLICY)?;
        let (host, clients) = (Namespace::new()?, Namespace::new()?);
        for namespace in [&host, &clients] {
            // BBR leaves four packets under way now and then, to see what the round trip is: that is not what is measured.
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
        // A NIC puts packets in its rings without a processor. Here the one that sends does it, on its own queue: else the
        // classes would meet before anything is steered.
        let own_queue = (0..PROCESSORS).map(|queue| {
            let file = format!("class/net/{CLIENTS}/queues/tx-{queue}/xps_cpus");
            (file, format!("{:x}", 1 << queue))
        });
        clients.write_sysfs(&own_queue.collect::<Vec<_>>())?;
        Ok(Self { host, clients, evenkeel, policy, directory })
    }

    fn server(&self, (port, cpu): (u16, usize)) -> Fallible<Process> {
        let port_text = port.to_string();
        // Another user would make the kernel forget that it is to die with this process (prctl(2), PR_SET_PDEATHSIG).
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

    /// A session of `evenkeel steer` that is at work.
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

    /// Both classes at once: the high-priority one, and the other one at this rate.
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

/// Ends a session; the packets that its rings had no room for.
fn end(mut session: Process) -> Fallible<u64> {
    session.terminate()?;
    wait_for("evenkeel ends", || Ok(session.has_ended()?))?;
    let seen: Value = serde_json::from_str(&session.output_text()?)?;
    let queues = seen["queues"].as_array().ok_or("evenkeel told of no queues")?;
    Ok(queues.iter().filter_map(|queue| queue["lost"].as_u64()).sum())
}

fn milliseconds(result: &LoadResult, share: f64) -> f64 {
    result.quantile(share).map_or(f64::INFINITY, |ns| ns as f64 / 1e6)
}

/// Requests per second that are answered of more than can be, hashed.
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

/// Whether isolation kept what it promises in each round.
fn run() -> Fallible<bool> {
    let bed = Bed::new()?;
    let _servers = [bed.server(HIGH)?, bed.server(BEST_EFFORT)?];
    let capacity = capacity(&bed)?;
    let best_effort = capacity * OFFERED - HIGH_RATE;
    println!(
        "offered: {:.0} % of {capacity:.0} requests/s: {HIGH_RATE:.0}/s high priority, {best_effort:.0}/s best effort",
        OFFERED * 100.0
    );
    println!();
    println!("                      high priority, ms           best effort, ms        lost at");
    println!("round  variant        p50       p99               p50       p99          rings");
    let mut ratios = Vec::new();
    for round in 0..ROUNDS {
        let mut p99 = [0.0; VARIANTS.len()];
        // Each takes its turn at being first, so that what the machine does meanwhile touches all alike.
        for which in (0..VARIANTS.len()).map(|turn| (turn + round as usize) % VARIANTS.len()) {
            let session = bed.steer(VARIANTS[which])?;
            let (high, rest) = bed.both(best_effort, TIME, 100 + round)?;
            let lost = end(session)?;
            p99[which] = milliseconds(&high, 0.99);
            println!(
                "{:>5}  {:10}  {:>8.3}  {:>8.3}          {:>8.3}  {:>8.3}       {lost:>8}",
                round + 1,
                format!("{:?}", VARIANTS[which]).to_lowercase(),
                milliseconds(&high, 0.5),
                p99[which],
                milliseconds(&rest, 0.5),
                milliseconds(&rest, 0.99)
            );
        }
        ratios.push(p99[2] / p99[0]);
    }
    let kept = ratios.iter().filter(|ratio| **ratio <= AT_MOST).count();
    let shown: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.3}")).collect();
    println!();
    println!("high-priority p99, isolation over hash, by round: {}", shown.join(", "));
    println!("at least 30 % lower in {kept} of {ROUNDS} rounds");
    bed.directory.close()?;
    Ok(kept == ratios.len())
}
