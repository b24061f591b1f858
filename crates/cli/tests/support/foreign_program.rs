//! A program of another process at a tcx hook, in front of all other programs.

use std::os::fd::{FromRawFd, OwnedFd};

use evenkeel_testbed::Namespace;

#[derive(Clone, Copy)]
pub enum Hook {
    Ingress,
    Egress,
}

/// Attaches a program named `foreign` that returns `TCX_PASS`, so that no later program sees a packet.
/// Dropping the returned link detaches the program.
pub fn hide_packets(space: &Namespace, index: u32, hook: Hook) -> OwnedFd {
    // `BPF_F_BEFORE` without another program attaches in front of all programs
    // (include/uapi/linux/bpf.h).
    const BEFORE: u32 = 1 << 3;
    // r0 = 0 (TCX_PASS); exit
    const INSTRUCTIONS: [u64; 2] = [0xb7, 0x95];
    let kind = match hook {
        Hook::Ingress => libbpf_sys::BPF_TCX_INGRESS,
        Hook::Egress => libbpf_sys::BPF_TCX_EGRESS,
    };
    let attach = || {
        // SAFETY: the strings end with 0, and the count equals the number of instructions.
        let program = unsafe {
            libbpf_sys::bpf_prog_load(
                libbpf_sys::BPF_PROG_TYPE_SCHED_CLS,
                c"foreign".as_ptr(),
                c"GPL".as_ptr(),
                INSTRUCTIONS.as_ptr().cast(),
                2,
                std::ptr::null_mut(),
            )
        };
        assert!(program >= 0, "{program}");
        // SAFETY: the kernel returned this descriptor, and nothing else owns it.
        let _program = unsafe { OwnedFd::from_raw_fd(program) };
        // SAFETY: all zeroes is a valid value of this plain C structure.
        let mut options: libbpf_sys::bpf_link_create_opts = unsafe { std::mem::zeroed() };
        options.sz = size_of_val(&options) as libbpf_sys::size_t;
        options.flags = BEFORE;
        // SAFETY: the options outlive the call.
        let link =
            unsafe { libbpf_sys::bpf_link_create(program, index.cast_signed(), kind, &raw const options) };
        assert!(link >= 0, "{link}");
        // SAFETY: the kernel returned this descriptor, and nothing else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(link) })
    };
    space.run(attach).unwrap()
}
