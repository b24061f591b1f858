//! Refuses work that needs more memory than this process can have. A failed allocation or a full stack
//! would abort the process.

use evenkeel_host::Host;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};

use crate::exit::{Exit, Failure};

/// Limit for work whose memory depends on the input, bytes. A large number or file must not exhaust a
/// host's memory.
const MOST: u64 = 500_000_000;

/// Minimum limit of the main thread's stack, bytes. Parsers of TOML, JSON and scripts recurse with the
/// nesting of their input. In a debug build, input at their nesting limits needs half of this stack.
const STACK: u64 = 1 << 20;

/// Raises the limit of the main thread's stack (`ulimit -s`) if it is too low. The kernel reads the
/// limit when the stack grows. A stack that cannot grow would abort the process. Returns an error if the
/// limit cannot be raised.
pub fn require_stack() -> Result<(), Failure> {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_STACK) else { return Ok(()) };
    if soft >= STACK || setrlimit(Resource::RLIMIT_STACK, STACK, hard.max(STACK)).is_ok() {
        return Ok(());
    }
    Err(limited("stack", "-s", soft, STACK))
}

/// Returns the error for a limit, in bytes, that is too low. `option` is the shell's option for the
/// limit.
fn limited(what: &str, option: &str, limit: u64, needed: u64) -> Failure {
    let message = format!(
        "the {what} of this process is limited to {} KiB (ulimit {option}), but {} KiB are needed; raise the \
         limit, then run the command again",
        limit >> 10,
        needed >> 10
    );
    Failure::new(Exit::Unable, message)
}

/// Address space that commands need in addition to the program's own, bytes. A simulation of 48 flows
/// on two threads takes 15 MB. A failed allocation would abort the process.
const LEAST_LEFT: u64 = 32 << 20;

/// Returns an error if the limit of the address space (`ulimit -v`) is too low for any command.
pub fn require_address_space() -> Result<(), Failure> {
    let Some((limit, used)) = address_space() else { return Ok(()) };
    let needed = used + LEAST_LEFT;
    if limit >= needed {
        return Ok(());
    }
    Err(limited("memory", "-v", limit, needed))
}

/// Returns an error if `work` on listed flows needs more memory than is available or allowed.
pub fn require_for_flows(needed: u64, work: &str) -> Result<(), Failure> {
    require_within_limit(needed, work, "give fewer flows")
}

/// Returns an error if `work` needs more memory than is available or allowed.
pub fn require_within_limit(needed: u64, work: &str, advice: &str) -> Result<(), Failure> {
    require(needed, work, advice)?;
    if needed > MOST {
        let (needed, most) = (size(needed), size(MOST));
        let message =
            format!("{work} needs up to about {needed} of memory, but at most {most} are allowed; {advice}");
        return Err(Failure::new(Exit::Usage, message));
    }
    Ok(())
}

/// Returns an error if `work` needs more memory than is available.
pub fn require(needed: u64, work: &str, advice: &str) -> Result<(), Failure> {
    match available() {
        Some(available) if available < needed => {
            let (needed, available) = (size(needed), size(available));
            let message = format!(
                "{work} needs up to about {needed} of memory, but only {available} are available; {advice}"
            );
            Err(Failure::new(Exit::Unable, message))
        }
        _ => Ok(()),
    }
}

/// Returns the memory that this process can still allocate, bytes. The machine's memory and the limit
/// of the address space (`ulimit -v`) bound it. Returns `None` if neither is known.
fn available() -> Option<u64> {
    let left = address_space().map(|(limit, used)| limit.saturating_sub(used));
    Host::live().available_memory().into_iter().chain(left).min()
}

/// Returns the limit of the address space and its used part, bytes; `None` without a limit.
fn address_space() -> Option<(u64, u64)> {
    let limit = getrlimit(Resource::RLIMIT_AS).ok().map(|(soft, _)| soft)?;
    let used = || size_in_status(&Host::live().read("/proc/self/status").ok()?);
    (limit != RLIM_INFINITY).then(|| (limit, used().unwrap_or(0)))
}

/// Returns the used address space (`VmSize` of proc(5)), bytes.
fn size_in_status(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

pub fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000_000 => format!("{} MB", bytes / 1_000_000),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_space_is_that_of_the_status() {
        let status = "Name:\tevenkeel\nVmPeak:\t    2000 kB\nVmSize:\t    1000 kB\n";
        assert_eq!(size_in_status(status), Some(1_024_000));
        assert_eq!(size_in_status("Name:\tevenkeel\n"), None);
        assert_eq!((size(12_345_678), size(3_140_000_000)), ("12 MB".to_owned(), "3.1 GB".to_owned()));
    }
}
