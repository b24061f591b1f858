//! The clock of a core, and that of the time stamp counter.

use std::time::Instant;

/// Additions of a chain.
const ADDITIONS: u64 = 100_000;

/// Returns the additions that a core makes in a second, if each needs the result of the one before. Every processor of
/// x86_64 and aarch64 makes one in a cycle. Both operands are registers: some processors fold additions of constants.
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

/// Returns the rate of the time stamp counter over a while: the nominal clock of processors with an invariant one.
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
