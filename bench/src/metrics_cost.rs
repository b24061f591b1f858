//! Measures the processor time of `evenkeel metrics --listen` at one scrape per second, while 1,000 flows send. The target is 1 % of a processor.
//!
//! The flows are TCP connections between two network namespaces over a veth with eight queues. Each sends 512 bytes every
//! 80 ms, so that all of them are busy. Each of five runs starts an exporter, scrapes it for 20 s, and compares its own
//! count of processor time (`evenkeel_collector_cpu_seconds_total`). The time of its BPF meter in the kernel is not in it.
//!
//! `metrics-cost [PROGRAM [--smoke]]`: the program is `target/release/evenkeel` unless it is given. `--smoke` measures
//! 10 flows for 2 s, to check that the benchmark works.

mod waiting;

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use evenkeel_netlink::VethOptions;
use evenkeel_testbed::{Namespace, TestbedError};
use waiting::{Fallible, wait_for};

const INTERFACE: &str = "evk0";
const PEER: &str = "evk1";
const ADDRESS: &str = "198.18.0.1";
const PEER_ADDRESS: &str = "198.18.0.2";
const PORT: u16 = 5201;
const QUEUES: u32 = 8;
const EXPORTER: &str = "127.0.0.1:9836";
const RUNS: usize = 5;
/// Shorter than a bin of a window, so that every flow sends in each.
const PERIOD: Duration = Duration::from_millis(80);

struct Extent {
    flows: usize,
    seconds: u32,
    runs: usize,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_smoke = arguments.iter().any(|argument| argument == "--smoke");
    let extent = match is_smoke {
        true => Extent { flows: 10, seconds: 2, runs: 1 },
        false => Extent { flows: 1000, seconds: 20, runs: RUNS },
    };
    let program = arguments.iter().find(|argument| *argument != "--smoke");
    let program = program.map_or("target/release/evenkeel", String::as_str);
    match run(program, &extent) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("metrics-cost: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(program: &str, extent: &Extent) -> Fallible<()> {
    let (host, peer) = (Namespace::new()?, Namespace::new()?);
    let mut netlink = host.netlink()?;
    netlink.add_veth(&VethOptions {
        name: INTERFACE,
        peer_name: PEER,
        peer_namespace: peer.as_fd(),
        queues: QUEUES,
        mtu: 1500,
    })?;
    let mut far = peer.netlink()?;
    let (index, far_index) = (netlink.link_index(INTERFACE)?, far.link_index(PEER)?);
    netlink.add_address(index, ADDRESS.parse()?, 24)?;
    far.add_address(far_index, PEER_ADDRESS.parse()?, 24)?;
    netlink.set_up(index)?;
    far.set_up(far_index)?;
    let loopback = netlink.link_index("lo")?;
    netlink.set_up(loopback)?;
    let tool =
        inside(&host, Command::new("tc"), &["qdisc", "replace", "dev", INTERFACE, "root", "mq"]).status()?;
    if !tool.success() {
        return Err("tc refused the root mq".into());
    }
    let over = Arc::new(AtomicBool::new(false));
    let listener = peer.run(|| Ok::<_, TestbedError>(TcpListener::bind((PEER_ADDRESS, PORT))))??;
    let receiver = receive(listener, extent.flows, Arc::clone(&over));
    let sender = host.run(|| Ok::<_, TestbedError>(connect(extent.flows)))??;
    let sender = send(sender, Arc::clone(&over));
    let result = measure(&host, program, extent);
    over.store(true, Ordering::Relaxed);
    let _ = (sender.join(), receiver.join());
    result
}

fn inside(space: &Namespace, mut command: Command, arguments: &[&str]) -> Command {
    let namespace = space.as_fd().as_raw_fd();
    command.args(arguments);
    // SAFETY: the closure makes one system call, on a descriptor that the fork has copied.
    unsafe {
        command.pre_exec(move || match libc::setns(namespace, libc::CLONE_NEWNET) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    command
}

fn connect(flows: usize) -> std::io::Result<Vec<TcpStream>> {
    (0..flows).map(|_| TcpStream::connect((PEER_ADDRESS, PORT))).collect()
}

fn send(mut flows: Vec<TcpStream>, over: Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let mut next = Instant::now();
        while !over.load(Ordering::Relaxed) {
            for flow in &mut flows {
                let _ = flow.write(&[7; 512]);
            }
            next += PERIOD;
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    })
}

fn receive(listener: TcpListener, flows: usize, over: Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let accepted = listener.incoming().take(flows).flatten();
        let mut streams: Vec<TcpStream> =
            accepted.inspect(|stream| drop(stream.set_nonblocking(true))).collect();
        let mut bytes = vec![0; 1 << 16];
        while !over.load(Ordering::Relaxed) {
            for stream in &mut streams {
                let _ = stream.read(&mut bytes);
            }
            std::thread::sleep(PERIOD);
        }
    })
}

/// An exporter, which is killed when the value is dropped.
struct Exporter(Child);

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn measure(host: &Namespace, program: &str, extent: &Extent) -> Fallible<()> {
    let mut shares = Vec::new();
    for run in 1..=extent.runs {
        let mut command = inside(host, Command::new(program), &["metrics", INTERFACE, "--listen", EXPORTER]);
        let _exporter = Exporter(
            command
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .map_err(|error| format!("{program}: {error}"))?,
        );
        let is_ready = || host.run(|| Ok::<_, TestbedError>(scrape().is_ok())).unwrap_or(false);
        wait_for("the exporter", || Ok(is_ready()))?;
        std::thread::sleep(Duration::from_secs(2));
        let text = || -> Fallible<String> { Ok(host.run(|| Ok::<_, TestbedError>(scrape()))??) };
        let (began, first) = (Instant::now(), value(&text()?, "evenkeel_collector_cpu_seconds_total")?);
        let mut busy = f64::INFINITY;
        let mut last = first;
        for second in 1..=extent.seconds {
            std::thread::sleep((Duration::from_secs(1) * second).saturating_sub(began.elapsed()));
            let text = text()?;
            last = value(&text, "evenkeel_collector_cpu_seconds_total")?;
            busy = busy
                .min(value(&text, &format!("evenkeel_interface_busy_flows{{interface=\"{INTERFACE}\"}}"))?);
        }
        let share = (last - first) / began.elapsed().as_secs_f64() * 100.0;
        println!("run {run}: {share:.2} % of a processor, {busy} busy flows at least");
        shares.push(share);
    }
    shares.sort_by(f64::total_cmp);
    let (least, most) = (shares.first().ok_or("no run")?, shares.last().ok_or("no run")?);
    println!(
        "median {:.2} %, {least:.2} to {most:.2} %, n = {}, {} flows, one scrape per second",
        shares[shares.len() / 2],
        shares.len(),
        extent.flows
    );
    Ok(())
}

fn scrape() -> std::io::Result<String> {
    let mut stream = TcpStream::connect(EXPORTER)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

fn value(text: &str, series: &str) -> Result<f64, Box<dyn Error>> {
    let found = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok());
    found.ok_or_else(|| format!("no {series} in the exposition").into())
}
