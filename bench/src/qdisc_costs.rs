//! Measures the CPU time of qdiscs, their classes and the rules of their filters on the running kernel.
//! A thread sends small packets through each qdisc on an interface in a separate namespace. The program
//! compares the CPU time per packet with the time without a qdisc in the same round.
//!
//! The interface is a bridge without ports, which drops all packets. The queues are empty, so the cost
//! of a packet is one enqueue and one dequeue. Only the CPU time of the thread counts, so other
//! programs affect it only through caches. At the end, the program measures the delay of a shaper's
//! timer. It derives the delay from the rate that `htb` loses with packets of 60,000 bytes and a bucket
//! for one small packet.
//!
//! `qdisc-costs [ROUNDS]`, as root. It names the features that the kernel lacks, and prints a line per
//! case: kind, number of classes, number of rules, nanoseconds in addition to the cost without a qdisc
//! (median, quartiles), and the ratio to `pfifo`.

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Command, ExitCode};
use std::thread::sleep;
use std::time::{Duration, Instant};

use evenkeel_model::change::Handle;
use evenkeel_model::qdisc::{BULK_PORT, Catalogue, Classifier, FilterRules, Surroundings};
use evenkeel_model::units::{BitRate, ByteSize};
use evenkeel_netlink::Netlink;
use evenkeel_netlink::qdisc_tree::{InstallError, install, install_rules, qdisc_counters};
use evenkeel_testbed::{Namespace, TestbedError};

type Fallible<T> = Result<T, Box<dyn Error>>;

const INTERFACE: &str = "evkcost";
/// Number of packets before a measurement, in a measurement, and in one system call.
const WARM_UP: usize = 2_000;
const PACKETS: usize = 40_000;
const BATCH: usize = 200;
const ROUNDS: usize = 11;
/// Length of the shortest frame, bytes.
const SHORT_FRAME: usize = 60;
const LONG_FRAME: usize = 60_000;
/// Rate of the shaper for the timer measurement, bit/s.
const TIMER_RATE: u64 = 20_000_000_000;
const TIMER_TIME: Duration = Duration::from_millis(500);

struct Case {
    kind: String,
    classes: u32,
    rules: Option<FilterRules>,
    steps: Vec<String>,
}

fn main() -> ExitCode {
    let rounds = std::env::args().nth(1).and_then(|rounds| rounds.parse().ok()).unwrap_or(ROUNDS);
    match run(rounds) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("qdisc-costs: {error}");
            ExitCode::from(4)
        }
    }
}

fn run(rounds: usize) -> Fallible<()> {
    let namespace = Namespace::new()?;
    let mut netlink = namespace.netlink()?;
    in_namespace(&namespace, || {
        let add =
            Command::new("ip").args(["link", "add", INTERFACE, "mtu", "65000", "type", "bridge"]).status()?;
        if add.success() { Ok(()) } else { Err(io::Error::other("ip cannot make a bridge")) }
    })?;
    let index = netlink.link_index(INTERFACE)?;
    netlink.set_up(index)?;
    let socket = in_namespace(&namespace, || packet_socket(index))?;

    let cases = cases();
    let mut found: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    let mut lacking: BTreeMap<String, String> = BTreeMap::new();
    for round in 0..rounds {
        // Alternate the order of the cases, so that a drift of the machine's speed cancels out.
        let mut order: Vec<usize> = (0..cases.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for number in order {
            let case = &cases[number];
            if lacking.contains_key(&case.kind) {
                continue;
            }
            let without = measure(&mut netlink, index, &socket, None)?;
            let Some(with) = measure(&mut netlink, index, &socket, Some(case))
                .or_else(|error| lacks(error, case, &mut lacking))?
            else {
                continue;
            };
            let Some(without) = without else { continue };
            found.entry(number).or_default().push(with - without);
        }
    }
    report(&cases, &mut found, &lacking);
    timer(&mut netlink, index, &socket)
}

/// Records a feature that the kernel lacks, and returns `None`. Returns any other error.
fn lacks(
    error: Box<dyn Error>,
    case: &Case,
    lacking: &mut BTreeMap<String, String>,
) -> Fallible<Option<f64>> {
    match error.downcast_ref::<InstallError>() {
        Some(refused) if refused.lacks().is_some() => {
            lacking.insert(case.kind.clone(), refused.to_string());
            Ok(None)
        }
        _ => Err(error),
    }
}

fn in_namespace<T: Send>(namespace: &Namespace, work: impl FnOnce() -> io::Result<T> + Send) -> Fallible<T> {
    let action = "prepare an interface to send over".to_owned();
    Ok(namespace.run(|| work().map_err(|source| TestbedError::System { action, source }))?)
}

fn packet_socket(index: u32) -> io::Result<OwnedFd> {
    let protocol = (libc::ETH_P_IP as u16).to_be();
    // SAFETY: the arguments are plain numbers; the descriptor is checked before it is owned.
    let descriptor = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, i32::from(protocol)) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
    // SAFETY: all zero is a valid address.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol;
    address.sll_ifindex = index as i32;
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: `address` is a valid address of `length` bytes and outlives the call.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    if bound == 0 { Ok(socket) } else { Err(io::Error::last_os_error()) }
}

fn frame(flow: u16, length: usize) -> Vec<u8> {
    let mut frame = vec![0; length];
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14] = 0x45;
    let total = u16::try_from(length - 14).unwrap_or(u16::MAX);
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    frame[22..24].copy_from_slice(&[64, 6]);
    frame[26..34].copy_from_slice(&[198, 18, 0, 1, 198, 18, 0, 2]);
    frame[34..36].copy_from_slice(&(40_000 + flow).to_be_bytes());
    frame[36..38].copy_from_slice(&(BULK_PORT + flow).to_be_bytes());
    frame
}

/// Sends frames round robin, several per system call.
fn send(socket: &OwnedFd, frames: &[Vec<u8>], packets: usize) -> io::Result<()> {
    let mut parts: Vec<libc::iovec> = (0..BATCH)
        .map(|number| {
            let frame = &frames[number % frames.len()];
            libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: frame.len() }
        })
        .collect();
    let mut messages: Vec<libc::mmsghdr> = parts
        .iter_mut()
        .map(|part| {
            // SAFETY: all zero is a valid, empty header.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
            message
        })
        .collect();
    let mut left = packets;
    while left > 0 {
        let batch = left.min(BATCH);
        // SAFETY: `messages` has at least `batch` headers, each with one part that outlives the call
        // and is only read.
        let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), batch as u32, 0) };
        match usize::try_from(sent) {
            Ok(sent) => left -= sent.clamp(1, left),
            Err(_) => {
                let error = io::Error::last_os_error();
                // A full queue drops the packet.
                if error.raw_os_error() != Some(libc::ENOBUFS) {
                    return Err(error);
                }
                left -= 1;
            }
        }
    }
    Ok(())
}

fn processor_time() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the result.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Returns the CPU time per packet, ns, with the qdisc of a case or without a qdisc.
fn measure(
    netlink: &mut Netlink,
    index: u32,
    socket: &OwnedFd,
    case: Option<&Case>,
) -> Fallible<Option<f64>> {
    let flows = case.map_or(1, |case| case.classes.max(1));
    set_up(netlink, index, case)?;
    let frames: Vec<Vec<u8>> = (0..flows).map(|flow| frame(flow as u16, SHORT_FRAME)).collect();
    send(socket, &frames, WARM_UP)?;
    let begin = processor_time();
    send(socket, &frames, PACKETS)?;
    Ok(Some((processor_time() - begin) / PACKETS as f64))
}

fn set_up(netlink: &mut Netlink, index: u32, case: Option<&Case>) -> Fallible<()> {
    let Some(case) = case else {
        // Delete the root qdisc. A bridge has no queue of its own, so it then has `noqueue`.
        for qdisc in qdisc_counters(netlink, index)? {
            if qdisc.parent == Handle::ROOT && qdisc.kind != "noqueue" {
                netlink.delete_qdisc(index, Handle::ROOT)?;
            }
        }
        return Ok(());
    };
    let steps: Vec<String> = case.steps.iter().map(|step| format!("{step:?}")).collect();
    let text = format!("schema = 1\n[setup.case]\nsummary = \"a case\"\nsteps = [{}]\n", steps.join(", "));
    let setup = Catalogue::parse(&text, "case")?.get("case").ok_or("a case without steps")?;
    let tree = setup.resolve(&Surroundings {
        rate: BitRate::from_bits_per_second(TIMER_RATE),
        bulk_flows: case.classes.max(1),
        probes: 0,
        queues: 1,
        largest_segment: ByteSize::from_bytes(LONG_FRAME as u64),
        mtu: ByteSize::from_bytes(1500),
    })?;
    install(netlink, index, &tree)?;
    if let Some(rules) = &case.rules {
        install_rules(netlink, index, Handle::new(1, 0), rules)?;
    }
    Ok(())
}

fn cases() -> Vec<Case> {
    let case = |kind: &str, classes, rules, steps: &[String]| Case {
        kind: kind.to_owned(),
        classes,
        rules,
        steps: steps.to_vec(),
    };
    let root = |what: &str| format!("qdisc root handle 1: {what}");
    let mut cases: Vec<Case> =
        ["pfifo", "bfifo", "pfifo_fast", "fq", "fq_codel", "sfq", "cake unlimited", "prio"]
            .into_iter()
            .map(|what| case(what.split(' ').next().unwrap_or(what), 0, None, &[root(what)]))
            .collect();
    cases.push(case("tbf", 0, None, &[root("tbf rate 100% burst 1MiB limit 10MiB")]));
    cases.push(case("ets", 0, None, &[root("ets bands 3 quanta mtu mtu mtu")]));
    let class = |what: &str| format!("class parent 1: classid 1:{{flow+256}} {what}");
    let filter = "filter parent 1: flow classid 1:{flow+256}".to_owned();
    let classful = [
        ("htb", "htb", "htb rate 100%/flows ceil 100% burst 1MiB cburst 1MiB quantum mtu"),
        ("drr", "drr", "drr"),
        ("qfq", "qfq", "qfq weight 1"),
        ("hfsc", "hfsc", "hfsc sc rate 100%/flows"),
    ];
    for (kind, qdisc, of_class) in classful {
        for classes in [1, 8, 96] {
            cases.push(case(kind, classes, None, &[root(qdisc), class(of_class), filter.clone()]));
        }
    }
    for classifier in [Classifier::U32, Classifier::Bpf, Classifier::Flower] {
        for rules in [1, 10, 100, 1000] {
            let kind = format!("htb, {classifier:?}").to_lowercase();
            let rules = Some(FilterRules { classifier, rules });
            cases.push(case(&kind, 1, rules, &[root("htb"), class(classful[0].2), filter.clone()]));
        }
    }
    cases
}

fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = (sorted.len().saturating_sub(1) as f64 * share).round() as usize;
    sorted.get(place).copied().unwrap_or(f64::NAN)
}

fn report(cases: &[Case], found: &mut BTreeMap<usize, Vec<f64>>, lacking: &BTreeMap<String, String>) {
    let mut of_pfifo = f64::NAN;
    println!(
        "{:14} {:>7} {:>6} {:>10} {:>20} {:>8}",
        "kind", "classes", "rules", "ns/packet", "quartiles", "x pfifo"
    );
    for (number, case) in cases.iter().enumerate() {
        let Some(samples) = found.get_mut(&number) else { continue };
        samples.sort_by(f64::total_cmp);
        let median = quantile(samples, 0.5);
        if case.kind == "pfifo" {
            of_pfifo = median;
        }
        let rules = case.rules.map_or(0, |rules| rules.rules);
        println!(
            "{:14} {:>7} {:>6} {:>10.0} {:>9.0} {:>10.0} {:>8.2}",
            case.kind,
            case.classes,
            rules,
            median,
            quantile(samples, 0.25),
            quantile(samples, 0.75),
            median / of_pfifo
        );
    }
    for (kind, why) in lacking {
        println!("{kind}: {why}");
    }
}

fn timer(netlink: &mut Netlink, index: u32, socket: &OwnedFd) -> Fallible<()> {
    let shaper = Case {
        kind: "htb".to_owned(),
        classes: 1,
        rules: None,
        steps: vec![
            "qdisc root handle 1: htb default 100".to_owned(),
            "class parent 1: classid 1:100 htb rate 100% burst 1600b cburst 1600b".to_owned(),
        ],
    };
    set_up(netlink, index, Some(&shaper))?;
    let frames = [frame(0, LONG_FRAME)];
    let mut late = Vec::new();
    for _ in 0..9 {
        let sent = |netlink: &mut Netlink| -> Fallible<u64> {
            let counters = qdisc_counters(netlink, index)?;
            Ok(counters.iter().find(|qdisc| qdisc.parent == Handle::ROOT).map_or(0, |qdisc| qdisc.packets))
        };
        let (before, begin) = (sent(netlink)?, Instant::now());
        while begin.elapsed() < TIMER_TIME {
            send(socket, &frames, 50)?;
        }
        let (packets, took) = (sent(netlink)? - before, begin.elapsed());
        let own = LONG_FRAME as f64 * 8e9 / TIMER_RATE as f64;
        late.push(took.as_nanos() as f64 / packets.max(1) as f64 - own);
        sleep(Duration::from_millis(20));
    }
    late.sort_by(f64::total_cmp);
    println!(
        "a shaper's timer comes late by {:.0} ns (median of {}; quartiles {:.0}, {:.0})",
        quantile(&late, 0.5),
        late.len(),
        quantile(&late, 0.25),
        quantile(&late, 0.75)
    );
    Ok(())
}
