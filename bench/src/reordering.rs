//! Measures retransmits and reordering on this machine's kernel. It shows how many `evenkeel fair`
//! causes in addition to those with the kernel's hashing. It also shows how many result from clearing
//! and restoring XPS maps.
//!
//! Twelve iperf3 flows run over a veth pair with four queues. There is no shaper, so flows send at the
//! highest rate that the CPUs allow. Each round measures every variant, in alternating order, and
//! compares the variant with its baseline in the same round. The kernel provides the counters:
//! - sender: `Tcp: RetransSegs` and `OutSegs`
//! - sender: `TcpExt: TCPDSACKRecv` (spurious retransmits)
//! - receiver: `TcpExt: TCPOFOQueue` (segments that arrived out of order)
//!
//! `reordering [ROUNDS]`, as root; ten rounds by default, about five minutes. It prints one line per
//! variant: medians per million segments, and the ratio of each figure to the baseline with its 95 %
//! interval. The program adds 1 to each count, so that a count of zero has a ratio.

mod waiting;

use std::collections::BTreeMap;
use std::error::Error;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use evenkeel_metrics::paired_ratio;
use evenkeel_netlink::VethOptions;
use evenkeel_netlink::tc::{Handle, Qdisc};
use evenkeel_testbed::{Namespace, Process, ProcessOptions};
use waiting::{Fallible, wait_for};

const INTERFACE: &str = "evk0";
const PEER: &str = "evk1";
const ADDRESS: &str = "198.18.0.1";
const PEER_ADDRESS: &str = "198.18.0.2";
const PORT: u16 = 5201;
const QUEUES: u32 = 4;
const FLOWS: &str = "12";
const ROUNDS: usize = 10;
/// Time for the flows to start, before counting begins.
const WARM_UP: Duration = Duration::from_millis(700);
const TIME: Duration = Duration::from_secs(3);
/// Time between two changes of the XPS maps by the benchmark, and length of a session in a cycle of
/// `evenkeel fair`. So both kinds of cycle take about equally long.
const HALF_CYCLE: Duration = Duration::from_millis(150);

/// XPS maps as a driver sets them with one queue per CPU, on two CPUs.
const DRIVERS_MAPS: [&str; QUEUES as usize] = ["1", "2", "0", "0"];
const NO_MAPS: [&str; QUEUES as usize] = ["0"; QUEUES as usize];

/// The activity while the flows send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Variant {
    Hashing,
    Fair,
    Balance,
    /// The XPS maps of a driver ([`DRIVERS_MAPS`]) stay unchanged.
    Maps,
    /// The benchmark clears and restores the XPS maps repeatedly.
    CyclesByHand,
    /// `evenkeel fair --xps off` clears and restores the XPS maps repeatedly.
    Cycles,
}

impl Variant {
    const ALL: [Self; 6] =
        [Self::Hashing, Self::Fair, Self::Balance, Self::Maps, Self::CyclesByHand, Self::Cycles];

    fn name(self) -> &'static str {
        match self {
            Self::Hashing => "hashing",
            Self::Fair => "fair",
            Self::Balance => "fair --balance on",
            Self::Maps => "driver's XPS maps",
            Self::CyclesByHand => "XPS off and on by hand",
            Self::Cycles => "fair --xps off, cycles",
        }
    }

    fn baseline(self) -> Self {
        match self {
            Self::Hashing | Self::Fair | Self::Balance => Self::Hashing,
            Self::Maps | Self::CyclesByHand | Self::Cycles => Self::Maps,
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    segments: u64,
    retransmits: u64,
    not_needed: u64,
    out_of_order: u64,
    cycles: u64,
}

impl Counts {
    fn since(self, before: Self) -> Self {
        Self {
            segments: self.segments - before.segments,
            retransmits: self.retransmits - before.retransmits,
            not_needed: self.not_needed - before.not_needed,
            out_of_order: self.out_of_order - before.out_of_order,
            cycles: self.cycles,
        }
    }

    /// Returns the count per million segments, after adding 1.
    fn rate(self, count: u64) -> f64 {
        (count + 1) as f64 * 1e6 / self.segments.max(1) as f64
    }
}

fn main() -> ExitCode {
    let rounds = std::env::args().nth(1).and_then(|rounds| rounds.parse().ok()).unwrap_or(ROUNDS);
    match run(rounds) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("reordering: {error}");
            ExitCode::from(4)
        }
    }
}

fn run(rounds: usize) -> Fallible<()> {
    let state = tempfile::tempdir()?;
    // SAFETY: the process has only one thread, so no other thread reads the environment.
    unsafe { std::env::set_var("EVENKEEL_STATE_DIR", state.path()) };
    let bed = Bed::new()?;
    let mut found: BTreeMap<Variant, Vec<Counts>> = BTreeMap::new();
    for round in 0..rounds {
        let mut order = Variant::ALL;
        if round % 2 == 1 {
            order.reverse();
        }
        for variant in order {
            found.entry(variant).or_default().push(bed.measure(variant)?);
        }
        eprintln!("round {} of {rounds}", round + 1);
    }
    report(&found);
    Ok(())
}

struct Bed {
    host: Namespace,
    peer: Namespace,
    evenkeel: PathBuf,
}

fn start(namespace: &Namespace, program: &str, arguments: &[&str]) -> Fallible<Process> {
    Ok(Process::start(ProcessOptions {
        program,
        arguments: arguments.iter().map(Into::into).collect(),
        namespace,
        cpu: None,
        inherit: None,
    })?)
}

impl Bed {
    fn new() -> Fallible<Self> {
        let evenkeel = std::env::current_exe()?.with_file_name("evenkeel");
        if !evenkeel.exists() {
            return Err(format!("{} does not exist; run cargo build --release", evenkeel.display()).into());
        }
        let (host, peer) = (Namespace::new()?, Namespace::new()?);
        let (mut near, mut far) = (host.netlink()?, peer.netlink()?);
        near.add_veth(&VethOptions {
            name: INTERFACE,
            peer_name: PEER,
            peer_namespace: peer.as_fd(),
            queues: QUEUES,
            mtu: 1500,
        })?;
        for (netlink, name, address) in [(&mut near, INTERFACE, ADDRESS), (&mut far, PEER, PEER_ADDRESS)] {
            let index = netlink.link_index(name)?;
            netlink.add_address(index, address.parse()?, 24)?;
            netlink.set_up(index)?;
            netlink.replace_qdisc(index, Handle::ROOT, Handle::new(7, 0), &Qdisc::Mq)?;
        }
        Ok(Self { host, peer, evenkeel })
    }

    fn set_maps(&self, maps: [&str; QUEUES as usize]) -> Fallible<()> {
        let files = maps.iter().enumerate().map(|(queue, map)| {
            (format!("class/net/{INTERFACE}/queues/tx-{queue}/xps_cpus"), (*map).to_owned())
        });
        Ok(self.host.write_sysfs(&files.collect::<Vec<_>>())?)
    }

    fn counts(&self) -> Fallible<Counts> {
        let read = |namespace: &Namespace| {
            Ok::<_, Box<dyn Error>>(namespace.run(|| {
                let text = |file| std::fs::read_to_string(format!("/proc/thread-self/net/{file}"));
                Ok(text("snmp").unwrap_or_default() + &text("netstat").unwrap_or_default())
            })?)
        };
        let (near, far) = (read(&self.host)?, read(&self.peer)?);
        Ok(Counts {
            segments: counter(&near, "Tcp:", "OutSegs")?,
            retransmits: counter(&near, "Tcp:", "RetransSegs")?,
            not_needed: counter(&near, "TcpExt:", "TCPDSACKRecv")?,
            out_of_order: counter(&far, "TcpExt:", "TCPOFOQueue")?,
            cycles: 0,
        })
    }

    fn measure(&self, variant: Variant) -> Fallible<Counts> {
        let has_maps = variant.baseline() == Variant::Maps;
        self.set_maps(if has_maps { DRIVERS_MAPS } else { NO_MAPS })?;
        let _server = start(&self.peer, "iperf3", &["--server", "--one-off", "--bind", PEER_ADDRESS])?;
        wait_for("iperf3 listens", || Ok(self.peer.listens(PEER_ADDRESS.parse()?, PORT)?))?;
        let _client = start(
            &self.host,
            "iperf3",
            &["--client", PEER_ADDRESS, "--parallel", FLOWS, "--time", "60", "--congestion", "cubic"],
        )?;
        let session = match variant {
            Variant::Fair => Some(self.session(&[])?),
            Variant::Balance => Some(self.session(&["--balance", "on"])?),
            _ => None,
        };
        std::thread::sleep(WARM_UP);
        let before = self.counts()?;
        let cycles = self.time(variant)?;
        let counts = Counts { cycles, ..self.counts()? }.since(before);
        session.map(end).transpose()?;
        Ok(counts)
    }

    /// Waits until the measurement ends. Returns the number of cycles that cleared and restored the XPS
    /// maps.
    fn time(&self, variant: Variant) -> Fallible<u64> {
        let until = Instant::now() + TIME;
        let mut cycles = 0;
        match variant {
            Variant::CyclesByHand => {
                while Instant::now() < until {
                    self.set_maps(NO_MAPS)?;
                    std::thread::sleep(HALF_CYCLE);
                    self.set_maps(DRIVERS_MAPS)?;
                    std::thread::sleep(HALF_CYCLE);
                    cycles += 1;
                }
            }
            Variant::Cycles => {
                while Instant::now() < until {
                    let session = self.session(&["--xps", "off"])?;
                    std::thread::sleep(HALF_CYCLE);
                    end(session)?;
                    cycles += 1;
                }
            }
            Variant::Hashing | Variant::Fair | Variant::Balance | Variant::Maps => std::thread::sleep(TIME),
        }
        Ok(cycles)
    }

    fn session(&self, arguments: &[&str]) -> Fallible<Process> {
        let program = self.evenkeel.to_str().ok_or("the path of the binary is not UTF-8")?;
        let mut process = start(&self.host, program, &[&["fair", INTERFACE], arguments].concat())?;
        wait_for("evenkeel manages the interface", || {
            if process.has_ended()? {
                return Err(process.error_text().into());
            }
            Ok(process.error_text().contains("managed now"))
        })?;
        Ok(process)
    }
}

fn end(mut session: Process) -> Fallible<()> {
    session.terminate()?;
    wait_for("evenkeel ends", || Ok(session.has_ended()?))
}

/// Returns a counter of a table such as `/proc/net/netstat`: a line of names and a line of values, both with
/// `prefix`.
fn counter(text: &str, prefix: &str, name: &str) -> Fallible<u64> {
    let lines: Vec<&str> = text.lines().filter(|line| line.split(' ').next() == Some(prefix)).collect();
    let [names, values] = lines[..] else { return Err(format!("no counters {prefix}").into()) };
    let found = names.split(' ').zip(values.split(' ')).find(|(known, _)| *known == name);
    Ok(found.ok_or_else(|| format!("no counter {prefix} {name}"))?.1.parse()?)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn report(found: &BTreeMap<Variant, Vec<Counts>>) {
    type Figure = fn(&Counts) -> u64;
    let figures: [(&str, Figure); 3] = [
        ("retransmits", |counts| counts.retransmits),
        ("of them not needed", |counts| counts.not_needed),
        ("out of order", |counts| counts.out_of_order),
    ];
    let none = Vec::new();
    let of = |variant: Variant| found.get(&variant).unwrap_or(&none);
    println!(
        "for a million segments: median, and ratio to the baseline of the same round with its 95 % interval"
    );
    for variant in Variant::ALL {
        let (counts, baseline) = (of(variant), of(variant.baseline()));
        let segments = median(counts.iter().map(|counts| counts.segments as f64).collect());
        let cycles: u64 = counts.iter().map(|counts| counts.cycles).sum();
        println!(
            "{}: {:.1} million segments a time, {} cycles in all",
            variant.name(),
            segments / 1e6,
            cycles
        );
        for (name, figure) in figures {
            let rates = |counts: &[Counts]| -> Vec<f64> {
                counts.iter().map(|counts| counts.rate(figure(counts))).collect()
            };
            let mine = rates(counts);
            let ratio = paired_ratio(&rates(baseline), &mine).filter(|_| variant != variant.baseline());
            let ratio = ratio.map_or_else(String::new, |ratio| {
                let interval = ratio.interval.map_or_else(String::new, |interval| {
                    format!(" ({:.2} to {:.2})", interval.low, interval.high)
                });
                format!("; {:.2} times {}{interval}, n = {}", ratio.mean, variant.baseline().name(), ratio.n)
            });
            println!("  {name:<20} {:>9.1}{ratio}", median(mine));
        }
    }
}
