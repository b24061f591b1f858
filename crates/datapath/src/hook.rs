//! The kinds of hooks of an interface, and the programs on its tcx hooks.

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use crate::error::DatapathError;
use crate::object::{self, Hook};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HookKind {
    /// By links to the tcx hooks, which the kernel removes when the process ends.
    #[default]
    Tcx,
    /// As filters of a clsact qdisc, for kernels before Linux 6.6, which have no tcx hooks. A filter stays
    /// when the process ends, so the caller attaches and removes it.
    Clsact,
}

impl HookKind {
    /// Returns the kind that the kernel supports, for an interface in the current network namespace.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the query for another reason than a lack of tcx.
    pub fn of_kernel(ifindex: i32) -> Result<Self, DatapathError> {
        match egress_programs(ifindex) {
            Ok(_) => Ok(Self::Tcx),
            Err(DatapathError::System { source, .. }) if source.raw_os_error() == Some(libc::EINVAL) => {
                Ok(Self::Clsact)
            }
            Err(error) => Err(error),
        }
    }
}

/// A program on a hook. The id identifies the program, because the name may be unreadable later.
#[derive(Clone, Debug)]
pub struct HookProgram {
    /// Unique since boot.
    pub id: u32,
    /// At most 15 characters. Empty without `CAP_SYS_ADMIN`, or if the program has no name or is gone.
    pub name: String,
}

impl PartialEq for HookProgram {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for HookProgram {}

impl std::fmt::Display for HookProgram {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name.as_str() {
            "" => write!(formatter, "id {} (reading its name needs CAP_SYS_ADMIN)", self.id),
            name => write!(formatter, "{name} (id {})", self.id),
        }
    }
}

/// Maximum number of programs per hook in the kernel (`BPF_MPROG_MAX`, linux/bpf_mprog.h).
const MOST: usize = 64;

/// Returns the programs at tcx egress of an interface in the current network namespace, in execution order.
///
/// # Errors
/// Returns an error if the kernel refuses: `EINVAL` means that the kernel does not support tcx (before Linux
/// 6.6).
pub fn egress_programs(ifindex: i32) -> Result<Vec<HookProgram>, DatapathError> {
    programs(Hook::Egress, ifindex)
}

/// Returns the programs at tcx ingress; see [`egress_programs`].
pub fn ingress_programs(ifindex: i32) -> Result<Vec<HookProgram>, DatapathError> {
    programs(Hook::Ingress, ifindex)
}

fn programs(hook: Hook, ifindex: i32) -> Result<Vec<HookProgram>, DatapathError> {
    let (kind, action) = match hook {
        Hook::Ingress => (libbpf_sys::BPF_TCX_INGRESS, "list the programs at tcx ingress"),
        Hook::Egress => (libbpf_sys::BPF_TCX_EGRESS, "list the programs at tcx egress"),
    };
    let mut ids = [0_u32; MOST];
    let mut options = MaybeUninit::<libbpf_sys::bpf_prog_query_opts>::zeroed();
    // SAFETY: all zeroes is a valid value of this plain C structure.
    let options = unsafe { options.assume_init_mut() };
    options.sz = size_of::<libbpf_sys::bpf_prog_query_opts>() as libbpf_sys::size_t;
    options.prog_ids = ids.as_mut_ptr();
    options.__bindgen_anon_1.count = MOST as u32;
    // SAFETY: the options point to as many ids as they declare, which outlive the call.
    let result = unsafe { libbpf_sys::bpf_prog_query_opts(ifindex, kind, options) };
    if result < 0 {
        let source = io::Error::from_raw_os_error(-result);
        return Err(DatapathError::System { action, source });
    }
    // SAFETY: the kernel has written the count; every member of the union is an integer.
    let count = unsafe { options.__bindgen_anon_1.count } as usize;
    Ok(ids[..count.min(MOST)].iter().map(|id| HookProgram { id: *id, name: program_name(*id) }).collect())
}

fn program_name(id: u32) -> String {
    // SAFETY: takes an id and returns a descriptor or a negative error.
    let descriptor = unsafe { libbpf_sys::bpf_prog_get_fd_by_id(id) };
    if descriptor < 0 {
        return String::new();
    }
    // SAFETY: the kernel returned this descriptor, and nothing else owns it.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let Ok(info) = object::program_info(descriptor.as_fd()) else { return String::new() };
    let bytes: Vec<u8> = info.name.iter().map(|character| *character as u8).collect();
    CStr::from_bytes_until_nul(&bytes).map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
