//! The clock rates of a core and of the time stamp counter.

use std::time::Instant;

/// Number of additions in a chain.
const ADDITIONS: u64 = 100_000;

/// Returns the number of dependent additions per second: each addition needs the result of the previous
/// addition. On x86_64 and aarch64, a dependent addition takes one cycle. Both operands are registers,
/// because some processors fold additions of constants.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) fn core_hz() -> Option<f64> {
    const UNROLLED: u64 = 20;
    let mut rounds = ADDITIONS / UNROLLED;
    let began = Instant::now();
    // SAFETY: the instructions change only the named registers and the flags.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!(
            "2:",
            ".rept 20",
            "add {sum}, {step}",
            ".endr",
            "sub {rounds}, 1",
            "jnz 2b",
            sum = inout(reg) 0_u64 => _,
            step = in(reg) 3_u64,
            rounds = inout(reg) rounds,
            options(nomem, nostack),
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!(
            "2:",
            ".rept 20",
            "add {sum}, {sum}, {step}",
            ".endr",
            "subs {rounds}, {rounds}, #1",
            "b.ne 2b",
            sum = inout(reg) 0_u64 => _,
            step = in(reg) 3_u64,
            rounds = inout(reg) rounds,
            options(nomem, nostack),
        );
    }
    debug_assert_eq!(rounds, 0);
    Some(ADDITIONS as f64 / began.elapsed().as_secs_f64())
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) fn core_hz() -> Option<f64> {
    None
}

/// Returns the rate of the time stamp counter during `pause`, Hz. An invariant counter usually has
/// the nominal clock rate of the processor.
#[cfg(target_arch = "x86_64")]
pub(crate) fn counter_hz(pause: impl FnOnce()) -> Option<f64> {
    use core::arch::x86_64::_rdtsc;
    // SAFETY: reads a counter.
    let stamp = || (Instant::now(), unsafe { _rdtsc() });
    let (began, first) = stamp();
    pause();
    let (ended, last) = stamp();
    Some((last - first) as f64 / ended.duration_since(began).as_secs_f64())
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn counter_hz(_pause: impl FnOnce()) -> Option<f64> {
    None
}
