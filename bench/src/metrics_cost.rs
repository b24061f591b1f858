//! Measures the CPU time of `evenkeel metrics --listen` at one scrape per second, or of `evenkeel top`
//! at one sample per second, while flows send. The target for the exporter is 1 % of a CPU with 1,000
//! flows, and for `top` 5 % with 10,000 flows.
//!
//! The flows are TCP connections between two network namespaces over a veth with eight queues. Each
//! flow sends 512 bytes every 80 ms, so that all flows are busy. Each of five runs starts the program,
//! and measures its CPU time over 20 s (clock_getcpuclockid(3)). This time does not include the BPF meter in
//! the kernel. `top` draws on a terminal of 120 columns and 40 rows.
//!
//! `metrics-cost [PROGRAM] [--top] [--flows NUMBER] [--smoke]`: the default program is
//! `target/release/evenkeel`. `--smoke` measures 10 flows for 2 s, to check that the benchmark works.

mod waiting;

use std::error::Error;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use evenkeel_netlink::VethOptions;
use evenkeel_testbed::{Namespace, TestbedError};
use nix::pty::{Winsize, openpty};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;
use waiting::{Fallible, wait_for};

const INTERFACE: &str = "evk0";
const PEER: &str = "evk1";
const ADDRESS: &str = "198.18.0.1";
const PEER_ADDRESS: &str = "198.18.0.2";
const PORT: u16 = 5201;
const QUEUES: u32 = 8;
/// The first argument of the receiving process.
const RECEIVE: &str = "--receive";
const EXPORTER: &str = "127.0.0.1:9836";
const RUNS: usize = 5;
/// Period of the sends of a flow. It is shorter than a bin of a window, so that every flow sends in
/// each bin.
const PERIOD: Duration = Duration::from_millis(80);

/// Time between the start of `top`, or the exporter's first answer, and the first reading of the CPU time.
const WARM_UP: Duration = Duration::from_secs(3);

struct Extent {
    flows: usize,
    seconds: u32,
    runs: usize,
    top: bool,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match words.as_slice() {
        [first, flows] if first == RECEIVE => flows.parse().map_err(Into::into).and_then(receive),
        _ => arguments(words.into_iter()).and_then(|(program, extent)| run(&program, &extent)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("metrics-cost: {error}");
            ExitCode::FAILURE
        }
    }
}

fn arguments(mut words: impl Iterator<Item = String>) -> Fallible<(String, Extent)> {
    let mut program = "target/release/evenkeel".to_owned();
    let mut extent = Extent { flows: 1000, seconds: 20, runs: RUNS, top: false };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--top" => extent.top = true,
            "--flows" => extent.flows = words.next().ok_or("--flows NUMBER")?.parse()?,
            "--smoke" => (extent.flows, extent.seconds, extent.runs) = (10, 2, 1),
            other => program = other.to_owned(),
        }
    }
    Ok((program, extent))
}

fn run(program: &str, extent: &Extent) -> Fallible<()> {
    allow_files()?;
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
    // Start the receiver as another process: the limit of open files may be too low for both ends of
    // all flows.
    let listener = peer.run(|| Ok::<_, TestbedError>(TcpListener::bind((PEER_ADDRESS, PORT))))??;
    let mut receiver = Command::new(std::env::current_exe()?);
    receiver.args([RECEIVE, &extent.flows.to_string()]).stdin(OwnedFd::from(listener));
    let _receiver = Measured::start(receiver)?;
    let sender = host.run(|| Ok::<_, TestbedError>(connect(extent.flows)))??;
    let sender = send(sender, Arc::clone(&over));
    let result = measure(&host, program, extent);
    over.store(true, Ordering::Relaxed);
    let _ = sender.join();
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

/// Accepts flows on the listening socket at standard input, and reads from them until all have ended.
fn receive(flows: usize) -> Fallible<()> {
    allow_files()?;
    let listener = TcpListener::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let accepted = listener.incoming().take(flows).flatten();
    let mut streams: Vec<TcpStream> = accepted.inspect(|stream| drop(stream.set_nonblocking(true))).collect();
    let mut bytes = vec![0; 1 << 16];
    loop {
        let count = streams.iter_mut().filter_map(|stream| stream.read(&mut bytes).ok()).sum::<usize>();
        // The sender has closed all flows.
        if count == 0 && streams.iter_mut().all(|stream| matches!(stream.read(&mut bytes), Ok(0))) {
            return Ok(());
        }
        std::thread::sleep(PERIOD);
    }
}

fn allow_files() -> Fallible<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, most, most)?)
}

struct Measured(Child);

impl Drop for Measured {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Measured {
    fn start(mut command: Command) -> Fallible<Self> {
        let program = command.get_program().display().to_string();
        Ok(Self(command.spawn().map_err(|error| format!("{program}: {error}"))?))
    }

    fn cpu_time(&self) -> Fallible<Duration> {
        let clock: ClockId = clock_getcpuclockid(Pid::from_raw(self.0.id().cast_signed()))?;
        Ok(clock.now()?.into())
    }
}

fn measure(host: &Namespace, program: &str, extent: &Extent) -> Fallible<()> {
    let mut shares = Vec::new();
    for run in 1..=extent.runs {
        let (share, remark) =
            if extent.top { top(host, program, extent)? } else { exporter(host, program, extent)? };
        println!("run {run}: {share:.2} % of a processor{remark}");
        shares.push(share);
    }
    shares.sort_by(f64::total_cmp);
    let (least, most) = (shares.first().ok_or("no run")?, shares.last().ok_or("no run")?);
    println!(
        "median {:.2} %, {least:.2} to {most:.2} %, n = {}, {} flows, one {} per second",
        shares[shares.len() / 2],
        shares.len(),
        extent.flows,
        if extent.top { "sample of top" } else { "scrape" }
    );
    Ok(())
}

/// Returns the CPU share of an exporter, %, and a remark with the lowest number of busy flows that it showed.
fn exporter(host: &Namespace, program: &str, extent: &Extent) -> Fallible<(f64, String)> {
    let mut command = inside(host, Command::new(program), &["metrics", INTERFACE, "--listen", EXPORTER]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let exporter = Measured::start(command)?;
    let text = || -> Fallible<String> { Ok(host.run(|| Ok::<_, TestbedError>(scrape()))??) };
    wait_for("the exporter", || Ok(text().is_ok()))?;
    std::thread::sleep(WARM_UP);
    text()?;
    let mut busy = f64::INFINITY;
    let share = share(&exporter, extent, || {
        let series = format!("evenkeel_interface_busy_flows{{interface=\"{INTERFACE}\"}}");
        busy = busy.min(value(&text()?, &series)?);
        Ok(())
    })?;
    Ok((share, format!(", {busy} busy flows at least")))
}

/// Returns the CPU share of `top`, %, and a remark with the number of bytes that it drew per second.
fn top(host: &Namespace, program: &str, extent: &Extent) -> Fallible<(f64, String)> {
    let size = Winsize { ws_row: 40, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
    let terminal = openpty(&size, None)?;
    let mut command = inside(host, Command::new(program), &["top", INTERFACE]);
    command.env("TERM", "xterm-256color");
    command.stdin(terminal.slave.try_clone()?).stdout(terminal.slave.try_clone()?).stderr(Stdio::null());
    drop(terminal.slave);
    let top = Measured::start(command)?;
    let mut screen = File::from(terminal.master);
    let shown = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&shown);
    // The thread ends when `top` has closed the terminal.
    std::thread::spawn(move || {
        let mut bytes = [0; 1 << 14];
        while let Ok(count @ 1..) = screen.read(&mut bytes) {
            counted.fetch_add(count, Ordering::Relaxed);
        }
    });
    std::thread::sleep(WARM_UP);
    let before = shown.load(Ordering::Relaxed);
    let share = share(&top, extent, || Ok(()))?;
    let bytes = shown.load(Ordering::Relaxed) - before;
    if bytes == 0 {
        return Err("top drew nothing".into());
    }
    Ok((share, format!(", {} bytes drawn per second", bytes / extent.seconds as usize)))
}

/// Returns the share of a CPU, %, that a program uses while `each` is called once per second.
fn share(program: &Measured, extent: &Extent, mut each: impl FnMut() -> Fallible<()>) -> Fallible<f64> {
    let (began, first) = (Instant::now(), program.cpu_time()?);
    for second in 1..=extent.seconds {
        std::thread::sleep((Duration::from_secs(1) * second).saturating_sub(began.elapsed()));
        each()?;
    }
    let used = program.cpu_time()?.saturating_sub(first);
    Ok(used.as_secs_f64() / began.elapsed().as_secs_f64() * 100.0)
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
