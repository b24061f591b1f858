//! Prefetching: the state of many flows exceeds the cache, but a processor can load several cache lines
//! in parallel.

const LINE: usize = 64;

#[inline]
#[allow(unsafe_code)]
pub(crate) fn prefetch<T>(value: &T) {
    let begin = std::ptr::from_ref(value).cast::<i8>();
    for offset in (0..size_of::<T>()).step_by(LINE) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the address is inside the value, and a prefetch does not access memory architecturally.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(begin.add(offset));
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (begin, offset);
    }
}
