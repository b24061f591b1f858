//! Measures whether a service grows while interfaces come and go. The target is no growth: over a day of
//! churn, less than 1 MiB of additional resident memory, and no additional descriptor or journal.
//!
//! The service runs `fair` on three veths with four queues, in a network namespace. Each event changes one
//! veth: its link goes down and up, it gets another name, its number of queues changes, or it moves to
//! another network namespace and back. An event ends when all interfaces are fair again. Then the benchmark
//! reads the supervisor's resident memory and descriptors, the number of its workers, and the number and
//! size of the journals. Slopes are least-squares fits without the first quarter.
//!
//! `service-churn [PROGRAM] [--events NUMBER]`: the default program is `target/release/evenkeel`. 2,880
//! events (the default) are one every 30 s for 24 h; without the pauses between them they take one to two
//! hours.

mod waiting;

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use evenkeel_netlink::{Netlink, VethOptions};
use evenkeel_testbed::Namespace;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use waiting::{Fallible, wait_for};

const INTERFACES: usize = 3;
const QUEUES: u32 = 4;
const EVENTS: usize = 2880;
const SEED: u64 = 1;
const KINDS: [&str; 4] = ["flap", "rename", "queues", "move"];
/// Time after which the service is asked to start waiting workers at once.
const RESUME_AFTER: Duration = Duration::from_secs(3);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("service-churn: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Fallible<()> {
    let (mut program, mut events) = ("target/release/evenkeel".to_owned(), EVENTS);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--events" => events = words.next().ok_or("--events NUMBER")?.parse()?,
            other => program = other.to_owned(),
        }
    }
    let mut random = Xoshiro256PlusPlus::seed_from_u64(SEED);
    let mut bed = Bed::start(&program)?;
    let mut counts = [0; KINDS.len()];
    let mut readings = Vec::new();
    let began = Instant::now();
    println!("events   seconds  {}", FIGURES.map(|(name, _)| format!("{name:>14}")).join(" "));
    for event in 0..=events {
        if event > 0 {
            let kind = random.next_u32() as usize % KINDS.len();
            bed.change(kind, random.next_u32() as usize % INTERFACES)?;
            counts[kind] += 1;
        }
        let reading = bed.read()?;
        if event % (events / 10).max(1) == 0 {
            let figures = reading.map(|figure| format!("{figure:>14}")).join(" ");
            println!("{event:>6} {:>9} {figures}", began.elapsed().as_secs());
        }
        readings.push(reading);
    }
    println!(
        "{}",
        KINDS
            .iter()
            .zip(counts)
            .map(|(kind, count)| format!("{kind} {count}"))
            .collect::<Vec<_>>()
            .join(", ")
    );
    let settled = &readings[readings.len() / 4..];
    for (figure, (name, unit)) in FIGURES.iter().enumerate() {
        let values: Vec<f64> = settled.iter().map(|reading| reading[figure] as f64).collect();
        println!("{name}: {:+.3} {unit} per 1,000 events", slope(&values) * 1000.0);
    }
    bed.end()
}

/// Returns the slope of the least-squares line through values at 0, 1, 2 and so on.
fn slope(values: &[f64]) -> f64 {
    let middle = (values.len() as f64 - 1.0) / 2.0;
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let (mut product, mut square) = (0.0, 0.0);
    for (at, value) in values.iter().enumerate() {
        let distance = at as f64 - middle;
        product += distance * (value - mean);
        square += distance * distance;
    }
    product / square
}

const FIGURES: [(&str, &str); 5] = [
    ("memory", "KiB"),
    ("descriptors", "descriptors"),
    ("workers", "processes"),
    ("journals", "files"),
    ("journal bytes", "bytes"),
];

struct Bed {
    host: Namespace,
    away: Namespace,
    _peer: Namespace,
    netlink: Netlink,
    names: Vec<String>,
    queues: Vec<u32>,
    place: tempfile::TempDir,
    program: String,
    service: Child,
}

impl Bed {
    fn start(program: &str) -> Fallible<Self> {
        let (host, away, peer) = (Namespace::new()?, Namespace::new()?, Namespace::new()?);
        let mut netlink = host.netlink()?;
        let mut far = peer.netlink()?;
        let names: Vec<String> = (0..INTERFACES).map(|number| format!("evk{number}")).collect();
        for name in &names {
            let peer_name = format!("far{name}");
            netlink.add_veth(&VethOptions {
                name,
                peer_name: &peer_name,
                peer_namespace: peer.as_fd(),
                queues: QUEUES,
                mtu: 1500,
            })?;
            let index = far.link_index(&peer_name)?;
            far.set_up(index)?;
            set_up(&host, &mut netlink, name)?;
        }
        let place = tempfile::tempdir()?;
        std::fs::create_dir(place.path().join("journals"))?;
        let socket = place.path().join("control.sock");
        let configuration = place.path().join("evenkeel.toml");
        let text = format!(
            "schema = 1\n[service]\nsocket = \"{}\"\n[[interface]]\nmatch = {{ name = \"evk*\" }}\nfair = {{ xps = \"off\" }}\n",
            socket.display()
        );
        std::fs::write(&configuration, text)?;
        let mut command = inside(&host, program, &["service", "--config"]);
        command.arg(configuration).env("EVENKEEL_STATE_DIR", place.path().join("journals"));
        let service =
            command.stdout(Stdio::null()).stderr(std::fs::File::create(place.path().join("log"))?).spawn();
        let service = service.map_err(|error| format!("{program}: {error}"))?;
        let queues = vec![QUEUES; INTERFACES];
        let program = program.to_owned();
        let mut bed = Self { host, away, _peer: peer, netlink, names, queues, place, program, service };
        bed.wait_until_fair()?;
        Ok(bed)
    }

    fn ask(&self, words: &[&str]) -> Command {
        let mut command = inside(&self.host, &self.program, words);
        command.arg("--socket").arg(self.place.path().join("control.sock"));
        command
    }

    /// Changes one interface, and waits until all interfaces are fair.
    fn change(&mut self, kind: usize, which: usize) -> Fallible<()> {
        let name = self.names[which].clone();
        match KINDS[kind] {
            "flap" => {
                tool(&self.host, &["ip", "link", "set", "dev", &name, "down"])?;
                set_up(&self.host, &mut self.netlink, &name)?;
            }
            "rename" => {
                let other = format!("evk{which}{}", if name.len() == 4 { "x" } else { "" });
                let index = self.netlink.link_index(&name)?;
                self.netlink.rename(index, &other)?;
                self.names[which] = other;
            }
            "queues" => {
                self.queues[which] = QUEUES / 2 + QUEUES - self.queues[which];
                tool(
                    &self.host,
                    &["ethtool", "--set-channels", &name, "tx", &self.queues[which].to_string()],
                )?;
            }
            _ => {
                let index = self.netlink.link_index(&name)?;
                self.netlink.move_link(index, self.away.as_fd())?;
                let mut there = self.away.netlink()?;
                let index = there.link_index(&name)?;
                there.move_link(index, self.host.as_fd())?;
                set_up(&self.host, &mut self.netlink, &name)?;
            }
        }
        self.wait_until_fair()
    }

    fn wait_until_fair(&mut self) -> Fallible<()> {
        let mut began = Instant::now();
        let log = self.place.path().join("log");
        let done = wait_for("all interfaces are fair", || {
            if let Some(status) = self.service.try_wait()? {
                return Err(format!("the service ended with {status}").into());
            }
            if began.elapsed() > RESUME_AFTER {
                began = Instant::now();
                self.ask(&["service", "resume"]).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
            }
            let output = self.ask(&["status", "--format", "json"]).stderr(Stdio::null()).output()?;
            let Ok(status) = serde_json::from_slice::<serde_json::Value>(&output.stdout) else {
                return Ok(false);
            };
            let interfaces = status["interfaces"].as_array().cloned().unwrap_or_default();
            let is_fair = |name: &String| {
                interfaces.iter().any(|interface| interface["name"] == **name && interface["state"] == "fair")
            };
            Ok(interfaces.len() == INTERFACES && self.names.iter().all(is_fair))
        });
        if done.is_err() {
            eprintln!("{}", std::fs::read_to_string(log)?);
        }
        done
    }

    fn read(&self) -> Fallible<[u64; FIGURES.len()]> {
        let process = Path::new("/proc").join(self.service.id().to_string());
        let status = std::fs::read_to_string(process.join("status"))?;
        let memory = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse().ok());
        let children = std::fs::read_to_string(process.join(format!("task/{}/children", self.service.id())))?;
        let (mut files, mut bytes) = (0, 0);
        for entry in std::fs::read_dir(self.place.path().join("journals"))? {
            // Another process may have removed the journal.
            let Ok(metadata) = entry?.metadata() else { continue };
            (files, bytes) = (files + 1, bytes + metadata.len());
        }
        Ok([
            memory.ok_or("no VmRSS")?,
            std::fs::read_dir(process.join("fd"))?.count() as u64,
            children.split_whitespace().count() as u64,
            files,
            bytes,
        ])
    }

    fn end(mut self) -> Fallible<()> {
        kill(Pid::from_raw(self.service.id().cast_signed()), Signal::SIGTERM)?;
        let status = self.service.wait()?;
        let left = std::fs::read_dir(self.place.path().join("journals"))?.count();
        println!("the service ended with {status}; {left} journals are left");
        Ok(())
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = self.service.kill();
        let _ = self.service.wait();
    }
}

/// Sets a link up, with a root qdisc that has a class for each queue of the device.
fn set_up(space: &Namespace, netlink: &mut Netlink, name: &str) -> Fallible<()> {
    let index = netlink.link_index(name)?;
    netlink.set_up(index)?;
    tool(space, &["tc", "qdisc", "replace", "dev", name, "root", "handle", "7:", "mq"])
}

fn tool(space: &Namespace, words: &[&str]) -> Fallible<()> {
    let output = inside(space, words[0], &words[1..]).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim()).into())
}

fn inside(space: &Namespace, program: &str, words: &[&str]) -> Command {
    let namespace = space.as_fd().as_raw_fd();
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null());
    // SAFETY: the closure makes one system call, on a descriptor that the fork has copied.
    unsafe {
        command.pre_exec(move || match libc::setns(namespace, libc::CLONE_NEWNET) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    command
}
