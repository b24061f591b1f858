//! Opens, loads and attaches BPF objects. The error of a load contains the end of libbpf's log.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, Once, PoisonError};

use libbpf_rs::{MapCore, Object, ObjectBuilder, OpenMapMut, OpenObject, PrintLevel};

use crate::error::{DatapathError, io_error, old_kernel};
use crate::statistics::RunTime;

/// The last lines of libbpf's log, for the error message if a load fails.
static WORDS: Mutex<Vec<String>> = Mutex::new(Vec::new());
const LINES_KEPT: usize = 8;

fn keep_words(_level: PrintLevel, text: String) {
    let mut words = WORDS.lock().unwrap_or_else(PoisonError::into_inner);
    // A verifier log is a single text of many lines, with the cause at its end.
    words.extend(text.lines().map(str::to_owned));
    let excess = words.len().saturating_sub(LINES_KEPT);
    words.drain(..excess);
}

pub(crate) fn open(object: &'static str, bytes: &[u8]) -> Result<OpenObject, DatapathError> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        libbpf_rs::set_print(Some((PrintLevel::Warn, keep_words)));
    });
    WORDS.lock().unwrap_or_else(PoisonError::into_inner).clear();
    ObjectBuilder::default()
        .name(object)
        .and_then(|builder| builder.open_memory(bytes))
        .map_err(|error| load_error(object, &error))
}

/// Returns an error if an object needs more file descriptors than the process may open. Otherwise libbpf
/// would continue after the failed system call, and the kernel would report a program without maps instead of
/// the cause.
fn require_descriptors(object: &'static str, opened: &OpenObject) -> Result<(), DatapathError> {
    /// File descriptors that libbpf needs for BTF and for probing features of the kernel.
    const MORE: u64 = 8;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call fills the structure, which lives until it returns.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return Ok(());
    }
    // A program and its link have one descriptor each.
    let needed = opened.maps().count() as u64 + 2 * opened.progs().count() as u64 + MORE;
    // Opening the directory fails if no descriptor is left.
    let used = std::fs::read_dir("/proc/self/fd").map_or(limit.rlim_cur, |files| files.count() as u64);
    let left = limit.rlim_cur.saturating_sub(used);
    if left >= needed {
        return Ok(());
    }
    Err(DatapathError::Descriptors { object, needed, left, limit: limit.rlim_cur })
}

/// Returns the bytes of a structure.
///
/// # Safety
/// The structure has no padding, whose bytes would be undefined.
pub(crate) unsafe fn bytes_of<T: Copy>(value: &T) -> &[u8] {
    // SAFETY: the reference is valid for its size; the caller guarantees that each byte is defined.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// Writes bytes into the initial value of a map, before its object is loaded.
pub(crate) fn initialise(
    map: &mut OpenMapMut<'_>,
    name: &'static str,
    at: usize,
    bytes: &[u8],
) -> Result<(), DatapathError> {
    map.initial_value_mut()
        .and_then(|value| value.get_mut(at..at + bytes.len()))
        .ok_or(DatapathError::Missing { kind: "map of settings", name })?
        .copy_from_slice(bytes);
    Ok(())
}

/// Length of the name of kernel operations in BPF, including the final NUL (`IFNAMSIZ`, `TCP_CA_NAME_MAX`).
pub(crate) const NAME_LENGTH: usize = 16;

/// Returns the name of kernel operations, padded with NULs. `kind` is a noun for the error message,
/// such as `a qdisc`.
pub(crate) fn operations_name(kind: &str, name: &str) -> Result<[u8; NAME_LENGTH], DatapathError> {
    // The characters that the kernel allows in names of BPF objects (bpf_obj_name_cpy).
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.');
    if name.is_empty() || name.len() >= NAME_LENGTH || !name.bytes().all(allowed) {
        return Err(DatapathError::Limit(format!(
            "'{}' is not a name of {kind}: 1 to {} ASCII letters, digits, '_' and '.'",
            name.escape_default(),
            NAME_LENGTH - 1
        )));
    }
    let mut bytes = [0; NAME_LENGTH];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    Ok(bytes)
}

pub(crate) fn load(object: &'static str, opened: OpenObject) -> Result<Object, DatapathError> {
    require_descriptors(object, &opened)?;
    opened.load().map_err(|error| load_error(object, &error))
}

fn load_error(object: &'static str, error: &libbpf_rs::Error) -> DatapathError {
    let log = WORDS.lock().unwrap_or_else(PoisonError::into_inner).join("\n");
    DatapathError::Load { object, source: io_error(error), old_kernel: old_kernel(object), log }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hook {
    Ingress,
    Egress,
}

/// Position among the programs of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Before all other programs: no other program hides packets from this program.
    First,
    Last,
}

/// Attaches a program to a tcx hook of an interface in the current network namespace. Closing the returned
/// descriptor detaches it.
pub(crate) fn attach_tcx(
    object: &Object,
    program: &'static str,
    hook: Hook,
    order: Order,
    ifindex: i32,
) -> Result<OwnedFd, DatapathError> {
    let descriptor = program_fd(object, program)?;
    let (kind, words) = match hook {
        Hook::Ingress => (libbpf_sys::BPF_TCX_INGRESS, "tcx ingress"),
        Hook::Egress => (libbpf_sys::BPF_TCX_EGRESS, "tcx egress"),
    };
    let mut options = MaybeUninit::<libbpf_sys::bpf_link_create_opts>::zeroed();
    // SAFETY: all zeroes is a valid value of this plain C structure.
    let options = unsafe { options.assume_init_mut() };
    options.sz = size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t;
    options.flags = match order {
        // Without a reference to another program, "before" means before all (`bpf_mprog_attach`,
        // kernel/bpf/mprog.c).
        Order::First => libbpf_sys::BPF_F_BEFORE,
        Order::Last => 0,
    };
    // SAFETY: the options outlive the call, and the program's descriptor is open.
    let link =
        unsafe { libbpf_sys::bpf_link_create(descriptor.as_raw_fd(), ifindex, kind, &raw const *options) };
    if link < 0 {
        let source = io::Error::from_raw_os_error(-link);
        return Err(DatapathError::Attach { program, hook: words, ifindex, source });
    }
    // SAFETY: the kernel returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}

pub(crate) fn attach_trace(object: &Object, program: &'static str) -> Result<OwnedFd, DatapathError> {
    let descriptor = program_fd(object, program)?;
    // SAFETY: no options are passed, and the program's descriptor is open.
    let link = unsafe {
        libbpf_sys::bpf_link_create(descriptor.as_raw_fd(), 0, libbpf_sys::BPF_TRACE_FENTRY, std::ptr::null())
    };
    if link < 0 {
        let source = io::Error::from_raw_os_error(-link);
        return Err(DatapathError::Attach { program, hook: "fentry", ifindex: 0, source });
    }
    // SAFETY: the kernel returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}

/// Runs a `syscall` program once. Returns the program's return value.
pub(crate) fn run_once(object: &Object, program: &'static str) -> Result<i32, DatapathError> {
    run_descriptor(program_fd(object, program)?)
}

pub(crate) fn run_descriptor(descriptor: BorrowedFd<'_>) -> Result<i32, DatapathError> {
    let mut options = MaybeUninit::<libbpf_sys::bpf_test_run_opts>::zeroed();
    // SAFETY: all zeroes is a valid value of this plain C structure.
    let options = unsafe { options.assume_init_mut() };
    options.sz = size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t;
    // SAFETY: the descriptor is open and the options are initialised.
    let result = unsafe { libbpf_sys::bpf_prog_test_run_opts(descriptor.as_raw_fd(), options) };
    if result < 0 {
        let source = io::Error::from_raw_os_error(-result);
        return Err(DatapathError::System { action: "run a BPF program", source });
    }
    Ok(options.retval as i32)
}

pub(crate) fn program_id(object: &Object, program: &'static str) -> Result<u32, DatapathError> {
    Ok(program_info(program_fd(object, program)?)?.id)
}

/// Returns a program's descriptor that stays open after the object is closed.
pub(crate) fn program_descriptor(object: &Object, program: &'static str) -> Result<OwnedFd, DatapathError> {
    program_fd(object, program)?
        .try_clone_to_owned()
        .map_err(|source| DatapathError::System { action: "duplicate a BPF program's descriptor", source })
}

/// Runs a program on a packet that is not sent, as if it came from a new socket. Returns the program's return
/// value.
pub(crate) fn run_on_packet(
    object: &Object,
    program: &'static str,
    packet: &[u8],
) -> Result<i32, DatapathError> {
    let descriptor = program_fd(object, program)?;
    let mut options = MaybeUninit::<libbpf_sys::bpf_test_run_opts>::zeroed();
    // SAFETY: all zeroes is a valid value of this plain C structure.
    let options = unsafe { options.assume_init_mut() };
    options.sz = size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t;
    options.data_in = packet.as_ptr().cast();
    options.data_size_in = u32::try_from(packet.len()).unwrap_or(u32::MAX);
    // SAFETY: the descriptor is open, the options are initialised, and the packet has the declared length.
    let result = unsafe { libbpf_sys::bpf_prog_test_run_opts(descriptor.as_raw_fd(), options) };
    if result < 0 {
        let source = io::Error::from_raw_os_error(-result);
        return Err(DatapathError::System { action: "run a BPF program on a packet", source });
    }
    Ok(options.retval.cast_signed())
}

/// Returns the run time of a program (requires [`crate::RunTimeStatistics`]); zero if the program is not
/// loaded.
pub(crate) fn run_time(object: &Object, program: &'static str) -> Result<RunTime, DatapathError> {
    let Ok(descriptor) = program_fd(object, program) else { return Ok(RunTime::default()) };
    let info = program_info(descriptor)?;
    Ok(RunTime { nanoseconds: info.run_time_ns, runs: info.run_cnt })
}

pub(crate) fn program_info(descriptor: BorrowedFd<'_>) -> Result<libbpf_sys::bpf_prog_info, DatapathError> {
    let mut info = MaybeUninit::<libbpf_sys::bpf_prog_info>::zeroed();
    let mut length = size_of::<libbpf_sys::bpf_prog_info>() as u32;
    // SAFETY: `info` is zeroed and as long as `length` says.
    let result = unsafe {
        libbpf_sys::bpf_prog_get_info_by_fd(descriptor.as_raw_fd(), info.as_mut_ptr(), &mut length)
    };
    if result < 0 {
        let source = io::Error::from_raw_os_error(-result);
        return Err(DatapathError::System {
            action: "read the kernel's information about a BPF program",
            source,
        });
    }
    // SAFETY: zeroed above, and all zeroes is a valid value of this plain C structure.
    Ok(unsafe { info.assume_init() })
}

pub(crate) fn program_fd<'a>(
    object: &'a Object,
    name: &'static str,
) -> Result<BorrowedFd<'a>, DatapathError> {
    let descriptor = object
        .progs()
        .find(|program| program.name() == name)
        .map(|program| program.as_fd().as_raw_fd())
        .filter(|descriptor| *descriptor >= 0)
        .ok_or(DatapathError::Missing { kind: "program", name })?;
    // SAFETY: the object owns the descriptor and outlives the borrow.
    Ok(unsafe { BorrowedFd::borrow_raw(descriptor) })
}

pub(crate) fn map<'a>(object: &'a Object, name: &'static str) -> Result<libbpf_rs::Map<'a>, DatapathError> {
    object.maps().find(|map| map.name() == name).ok_or(DatapathError::Missing { kind: "map", name })
}

/// Returns the number of possible CPUs, which is the length of an array map with an entry for each CPU.
pub(crate) fn possible_cpus() -> Result<u32, DatapathError> {
    let count = libbpf_rs::num_possible_cpus().map_err(DatapathError::system("count the CPUs"))?;
    u32::try_from(count).map_err(|_| DatapathError::Limit(format!("{count} CPUs")))
}
