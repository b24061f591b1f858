//! Measures the cost of the queue choice per segment, with hashing and with dynamic queue assignment in
//! the same program. The cases:
//! - `follows`: a TCP segment of a flow that stays on its queue
//! - `picks`: a segment of a socket with nothing outstanding, so that each segment picks a queue
//! - `no-socket-1`, `no-socket-2`: a forwarded segment, from one CPU and from two CPUs at the same time
//!
//! The kernel measures `follows` and `picks` itself: `BPF_PROG_TEST_RUN` repeats a program on one
//! packet with a socket. In the other cases, another BPF program sends copies without a socket to a
//! bridge without ports. The cost comes from the run-time statistics of BPF programs, and includes the cost
//! of the statistics.
//!
//! `queue-choice [ROUNDS]`, as root. Each round measures both policies of a case one after the other,
//! in alternating order. The benchmark prints one line per case: nanoseconds per segment (medians) and
//! the ratio within a round (median, quartiles).

use std::error::Error;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Command, ExitCode};
use std::sync::Barrier;

use evenkeel_datapath::{QueueSelect, RunTimeStatistics, SelectOptions, Steering};
use evenkeel_testbed::Namespace;
use evenkeel_transmit::Policy;
use libbpf_sys::{bpf_insn, bpf_test_run_opts};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

type Fallible<T> = Result<T, Box<dyn Error>>;

const INTERFACE: &str = "evkchoice";
const ROUNDS: usize = 21;
const QUEUES: u32 = 8;
const REPEATS: u32 = 200_000;
const COPIES: u32 = 100_000;
/// `TC_H_MAKE(1 << 16, 0x10)`: any class id.
const CLASS_BASE: u32 = 0x1_0010;

#[derive(Clone, Copy)]
enum Case {
    Follows,
    Picks,
    WithoutSocket { cpus: usize },
}

const CASES: [(&str, Case); 4] = [
    ("follows", Case::Follows),
    ("picks", Case::Picks),
    ("no-socket-1", Case::WithoutSocket { cpus: 1 }),
    ("no-socket-2", Case::WithoutSocket { cpus: 2 }),
];

fn main() -> ExitCode {
    let rounds = std::env::args().nth(1).and_then(|rounds| rounds.parse().ok()).unwrap_or(ROUNDS);
    match run(rounds) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("queue-choice: {error}");
            ExitCode::from(4)
        }
    }
}

fn run(rounds: usize) -> Fallible<()> {
    let namespace = Namespace::new()?;
    let added = namespace.run(|| {
        Ok(Command::new("ip").args(["link", "add", INTERFACE, "mtu", "65000", "type", "bridge"]).status())
    })??;
    if !added.success() {
        return Err("ip cannot make a bridge".into());
    }
    let mut netlink = namespace.netlink()?;
    let index = netlink.link_index(INTERFACE)?;
    netlink.set_up(index)?;
    println!("{:<12} {:>8} {:>8} {:>20} {:>4}", "case", "hash ns", "dqa ns", "dqa/hash (quartiles)", "n");
    for (name, case) in CASES {
        let mut found: Vec<[f64; 2]> = Vec::new();
        for round in 0..rounds {
            let mut pair = [0.0; 2];
            for step in 0..2 {
                let which = (round + step) % 2;
                pair[which] = measure(&namespace, index, case, [Policy::Hash, Policy::Dqa][which])?;
            }
            found.push(pair);
        }
        let column = |value: fn(&[f64; 2]) -> f64| quartiles(found.iter().map(value).collect());
        let [hash, dqa, ratio] =
            [column(|pair| pair[0]), column(|pair| pair[1]), column(|pair| pair[1] / pair[0])];
        println!(
            "{name:<12} {:>8.1} {:>8.1} {:>6.3} ({:.3} to {:.3}) {rounds:>4}",
            hash[1], dqa[1], ratio[1], ratio[0], ratio[2]
        );
    }
    Ok(())
}

/// Returns the nanoseconds per segment. First runs a quarter as many segments, to warm up.
fn measure(namespace: &Namespace, index: u32, case: Case, policy: Policy) -> Fallible<f64> {
    let steering = match case {
        Case::Follows => Steering::Class(CLASS_BASE),
        _ => Steering::Queue,
    };
    let options = SelectOptions { policy, steering, queues: QUEUES, ..SelectOptions::default() };
    let mut select = QueueSelect::load(&options)?;
    match case {
        Case::Follows | Case::Picks => {
            // SAFETY: the call takes an id and returns a new descriptor, or a negative error.
            let program = owned(unsafe { libbpf_sys::bpf_prog_get_fd_by_id(select.program_id()?) })?;
            repeat(&program, &frame(0), REPEATS / 4)?;
            repeat(&program, &frame(0), REPEATS)
        }
        Case::WithoutSocket { cpus } => {
            namespace.run(|| Ok(select.attach(index.cast_signed())))??;
            let program = sender(index)?;
            send_copies(namespace, &program, cpus, COPIES / 4)?;
            // Enable the statistics only here: they would increase the cost of `follows` and `picks`.
            let _statistics = RunTimeStatistics::enable()?;
            let before = select.choice_run_time()?;
            send_copies(namespace, &program, cpus, COPIES)?;
            let spent = select.choice_run_time()? - before;
            let sent = COPIES as u64 * cpus as u64;
            if spent.runs < sent || select.counters().no_socket < sent {
                return Err(format!("{} of {sent} segments arrived", spent.runs).into());
            }
            Ok(spent.nanoseconds as f64 / spent.runs as f64)
        }
    }
}

/// Sends copies of a frame from several CPUs at the same time, with a different flow on each CPU.
fn send_copies(namespace: &Namespace, program: &OwnedFd, cpus: usize, copies: u32) -> Fallible<()> {
    let barrier = Barrier::new(cpus);
    let send = |cpu: usize| {
        namespace.run(|| {
            let mut set = CpuSet::new();
            let pinned = set.set(cpu).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set));
            barrier.wait();
            Ok(pinned.map_err(io::Error::from).and_then(|()| test_run(program, &frame(cpu as u16), copies)))
        })
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cpus).map(|cpu| scope.spawn(move || send(cpu))).collect();
        for thread in threads {
            thread.join().map_err(|_| "a sending thread panicked")???;
        }
        Ok(())
    })
}

fn repeat(program: &OwnedFd, frame: &[u8], repeats: u32) -> Fallible<f64> {
    Ok(f64::from(test_run(program, frame, repeats)?))
}

/// Runs a program on a frame. Returns the mean duration, ns.
fn test_run(program: &OwnedFd, frame: &[u8], repeats: u32) -> io::Result<u32> {
    let mut options = bpf_test_run_opts {
        sz: size_of::<bpf_test_run_opts>() as libbpf_sys::size_t,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        repeat: repeats.cast_signed(),
        ..Default::default()
    };
    // SAFETY: the descriptor is open, and the frame has the declared length.
    let result = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(options.duration) }
}

/// Loads a program that sends a copy of its packet: `bpf_clone_redirect(ctx, index, 0)`.
fn sender(index: u32) -> io::Result<OwnedFd> {
    let instruction = |code: u32, to: u8, value: u32| {
        let mut instruction = bpf_insn { code: code as u8, imm: value.cast_signed(), ..Default::default() };
        instruction.set_dst_reg(to);
        instruction
    };
    let set = libbpf_sys::BPF_ALU64 | libbpf_sys::BPF_MOV | libbpf_sys::BPF_K;
    let instructions = [
        instruction(set, 2, index),
        instruction(set, 3, 0),
        instruction(libbpf_sys::BPF_JMP | libbpf_sys::BPF_CALL, 0, libbpf_sys::BPF_FUNC_clone_redirect),
        instruction(set, 0, 0),
        instruction(libbpf_sys::BPF_JMP | libbpf_sys::BPF_EXIT, 0, 0),
    ];
    // SAFETY: the instructions and the strings outlive the call; no options are passed.
    owned(unsafe {
        libbpf_sys::bpf_prog_load(
            libbpf_sys::BPF_PROG_TYPE_SCHED_CLS,
            c"send_copy".as_ptr(),
            c"GPL".as_ptr(),
            instructions.as_ptr(),
            instructions.len() as libbpf_sys::size_t,
            std::ptr::null_mut(),
        )
    })
}

fn owned(descriptor: i32) -> io::Result<OwnedFd> {
    if descriptor < 0 {
        return Err(io::Error::from_raw_os_error(-descriptor));
    }
    // SAFETY: the kernel returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Creates a TCP/IPv4 frame of full length for a flow.
fn frame(flow: u16) -> Vec<u8> {
    let mut frame = vec![0; 14 + 1500];
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&1500_u16.to_be_bytes());
    frame[22..24].copy_from_slice(&[64, 6]);
    frame[26..34].copy_from_slice(&[198, 18, 0, 1, 198, 18, 0, 2]);
    frame[34..36].copy_from_slice(&(40_000 + flow).to_be_bytes());
    frame[36..38].copy_from_slice(&443_u16.to_be_bytes());
    frame[46] = 5 << 4;
    frame
}

/// Returns the quartiles: the values at a quarter, half and three quarters of the sorted list.
fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    let at =
        |share: usize| values.get(values.len().saturating_sub(1) * share / 4).copied().unwrap_or(f64::NAN);
    [at(1), at(2), at(3)]
}
