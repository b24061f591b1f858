//! Asking for memory before it is needed.
//!
//! With thousands of flows, what is kept of them exceeds the caches of a core, and they have their turns in no
//! order that a processor could foresee. But which of them are next is known: their memory is asked for while
//! those before them are at work.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};

/// Bytes in a line of the cache.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// Asks for the memory of `value`, and goes on. It changes no result.
#[inline(always)]
pub(crate) fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..size_of::<T>()).step_by(LINE) {
        let address = std::ptr::from_ref(value).cast::<i8>().wrapping_add(line);
        // SAFETY: it is a hint, which neither faults nor reads, whatever the address is.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// The same for what is needed only after some other work: it goes to the second level of caches, so that it
/// takes no room in the first from that work.
#[inline(always)]
pub(crate) fn prefetch_early<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..size_of::<T>()).step_by(LINE) {
        let address = std::ptr::from_ref(value).cast::<i8>().wrapping_add(line);
        // SAFETY: as in `prefetch`.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
