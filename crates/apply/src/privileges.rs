//! Drops privileges that are no longer needed (capabilities(7)).
//!
//! A guardian, which may wait for days as root, keeps only `CAP_NET_ADMIN`. This is enough: root can
//! write the files that root owns without any capability.
//!
//! | setting to restore | permission that the kernel checks |
//! |---|---|
//! | `/sys/class/net/*` | the file's owner, and `CAP_NET_ADMIN` (net/core/net-sysfs.c) |
//! | `/proc/sys/net/*` | the file's owner, or `CAP_NET_ADMIN` (`net_ctl_permissions`, net/sysctl_net.c) |
//! | `/proc/irq/*`, `/sys/devices/system/cpu/*`, other sysctls | the file's owner |
//! | qdiscs, sizes, shapers, ethtool | `CAP_NET_ADMIN` |
//! | the journal | the file's owner |
//!
//! The guardian cannot enter another network namespace to follow an interface. The journal then stays
//! for `evenkeel revert`.

use std::io;

use evenkeel_host::Capability;
use nix::unistd::geteuid;

/// From include/uapi/linux/capability.h.
const VERSION_3: u32 = 0x2008_0522;
const CAPABILITIES: u32 = 64;

/// `struct __user_cap_header_struct`.
#[repr(C)]
struct Header {
    version: u32,
    process: i32,
}

/// `struct __user_cap_data_struct`, for 32 capabilities.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Sets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

fn control(option: libc::c_int, argument: libc::c_ulong) -> io::Result<()> {
    let nothing: libc::c_ulong = 0;
    // SAFETY: these options take numbers, no pointers.
    let result = unsafe { libc::prctl(option, argument, nothing, nothing, nothing) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Keeps only these capabilities in the calling thread, permanently, and sets `no_new_privs`. Threads
/// started later inherit these limits. A thread of another user than root also keeps
/// `CAP_DAC_OVERRIDE`, because root owns the files to restore.
///
/// # Errors
/// Returns an error if the kernel refuses the change.
pub fn keep_only(wanted: &[Capability]) -> io::Result<()> {
    let foreign = (!geteuid().is_root()).then_some(Capability::DacOverride);
    let kept =
        wanted.iter().copied().chain(foreign).fold(0_u64, |kept, capability| kept | 1 << capability.number());
    for capability in (0..CAPABILITIES).filter(|capability| kept >> capability & 1 == 0) {
        // Ignore errors: the call needs CAP_SETPCAP, and fails for capabilities that the kernel does
        // not know. With no_new_privs, the thread cannot regain a capability.
        let _ = control(libc::PR_CAPBSET_DROP, capability.into());
    }
    // Ignore the error: kernels before Linux 4.3 do not have this option.
    let _ = control(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong);
    let mut header = Header { version: VERSION_3, process: 0 };
    let mut sets = [Sets::default(); 2];
    // SAFETY: version 3 has two words of each set.
    if unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    for (word, sets) in sets.iter_mut().enumerate() {
        let permitted = sets.permitted & (kept >> (32 * word)) as u32;
        *sets = Sets { effective: permitted, permitted, inheritable: 0 };
    }
    // SAFETY: version 3 has two words of each set.
    if unsafe { libc::syscall(libc::SYS_capset, &raw mut header, sets.as_ptr()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    control(libc::PR_SET_NO_NEW_PRIVS, 1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn nothing_else_is_left() {
        let status = std::thread::spawn(|| {
            keep_only(&[Capability::NetAdmin]).unwrap();
            std::fs::read_to_string("/proc/thread-self/status").unwrap()
        });
        let status = status.join().unwrap();
        let value = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            u64::from_str_radix(line.trim(), 16).unwrap()
        };
        let own = if geteuid().is_root() { 0 } else { 1 << Capability::DacOverride.number() };
        let allowed = 1 << Capability::NetAdmin.number() | own;
        for set in ["CapEff:", "CapPrm:", "CapInh:", "CapAmb:"] {
            assert_eq!(value(set) & !allowed, 0, "{set}");
        }
        assert_eq!(value("NoNewPrivs:"), 1);
    }
}
