//! TCP LoLa (IEEE LCN 2017) for user space: the C code of `include/evenkeel/lola.h`.
//!
//! ```
//! use evenkeel_transmit::lola::{Ack, Flow, Phase, Settings};
//!
//! let settings = Settings::default();
//! let mut flow = Flow::new(0);
//! // Slow start: the window grows by one packet per acknowledged packet.
//! flow.sample(&settings, 1000, 1000);
//! let ack = Ack { now_us: 1000, acked: 2, cwnd: 10, ssthresh: u32::MAX, mss: 1448, limited: true };
//! assert_eq!(flow.grow(&settings, &ack).cwnd, 12);
//! assert_eq!(flow.phase(), Phase::SlowStart);
//! ```

use crate::raw;

pub const MAX_CWND: u32 = raw::EK_LOLA_MAX_CWND;
pub const MIN_CWND: u32 = raw::EK_LOLA_MIN_CWND;
/// The denominator of the settings `gamma`, `beta` and `cubic`.
pub const ONE: u32 = raw::EK_LOLA_ONE;

/// Settings of a flow. The C header has the source of each default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Queueing delay that starts the hold, µs.
    pub target_us: u32,
    /// Queueing delay that starts fair flow balancing, µs.
    pub balance_us: u32,
    /// Queueing delay that ends slow start, µs.
    pub slow_start_us: u32,
    /// Duration of the hold, µs.
    pub hold_us: u32,
    /// Duration of an RTT measurement, µs.
    pub window_us: u32,
    /// Fewest samples of a measurement.
    pub window_samples: u32,
    /// φ of fair flow balancing: X(t) = (t / φ)³ bytes, t in ms.
    pub curve: u32,
    /// Number of tailored decreases without an RTT close to the base RTT, after which the flow measures
    /// the base RTT again.
    pub base_decreases: u32,
    /// Factor γ of the tailored decrease, in units of 1/[`ONE`].
    pub gamma: u32,
    /// Factor β after a loss, in units of 1/[`ONE`].
    pub beta: u32,
    /// CUBIC's C: `cubic` · 10 / [`ONE`] packets per s³.
    pub cubic: u32,
    pub loss_reaction: bool,
}

impl Default for Settings {
    fn default() -> Self {
        // SAFETY: takes nothing and returns a structure of integers.
        Self::from(unsafe { raw::ek_shim_lola_defaults() })
    }
}

impl Settings {
    /// Checks that each setting is in its range, and that a flow can reach every phase.
    ///
    /// # Errors
    /// Returns a message that names the setting and its range.
    pub fn check(&self) -> Result<(), String> {
        const SECOND: u32 = 1_000_000;
        let ranges = [
            ("target", self.target_us, 100, SECOND, " us"),
            ("balance", self.balance_us, 10, SECOND, " us"),
            ("slow-start", self.slow_start_us, 10, SECOND, " us"),
            ("hold", self.hold_us, 1, 10 * SECOND, " us"),
            ("window", self.window_us, 1000, SECOND, " us"),
            ("samples", self.window_samples, 1, 1000, ""),
            ("curve", self.curve, 1, 10_000, ""),
            ("base-decreases", self.base_decreases, 1, 65_535, ""),
            ("gamma", self.gamma, 1, ONE, ""),
            ("beta", self.beta, 1, ONE, ""),
            ("cubic", self.cubic, 1, ONE, ""),
        ];
        for (name, value, least, most, unit) in ranges {
            if !(least..=most).contains(&value) {
                return Err(format!("{name} is {value}{unit}, but must be between {least} and {most}{unit}"));
            }
        }
        if self.balance_us >= self.target_us {
            return Err(format!(
                "balance is {} us, but must be below target, which is {} us",
                self.balance_us, self.target_us
            ));
        }
        Ok(())
    }
}

impl From<raw::ek_lola_settings> for Settings {
    fn from(raw: raw::ek_lola_settings) -> Self {
        Self {
            target_us: raw.target_us,
            balance_us: raw.balance_us,
            slow_start_us: raw.slow_start_us,
            hold_us: raw.hold_us,
            window_us: raw.window_us,
            window_samples: raw.window_samples,
            curve: raw.curve,
            base_decreases: raw.base_decreases,
            gamma: raw.gamma,
            beta: raw.beta,
            cubic: raw.cubic,
            loss_reaction: raw.loss_reaction != 0,
        }
    }
}

impl From<Settings> for raw::ek_lola_settings {
    fn from(settings: Settings) -> Self {
        Self {
            target_us: settings.target_us,
            balance_us: settings.balance_us,
            slow_start_us: settings.slow_start_us,
            hold_us: settings.hold_us,
            window_us: settings.window_us,
            window_samples: settings.window_samples,
            curve: settings.curve,
            base_decreases: settings.base_decreases,
            gamma: settings.gamma,
            beta: settings.beta,
            cubic: settings.cubic,
            loss_reaction: u32::from(settings.loss_reaction),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    SlowStart,
    CubicIncrease,
    Balance,
    Hold,
}

impl Phase {
    /// Returns the phase with a number of the C header, 0 to 3. Any other number gives [`Self::Hold`].
    #[must_use]
    pub fn of(number: u8) -> Self {
        match u32::from(number) {
            number if number == raw::ek_lola_phase::EK_LOLA_SLOW_START.0 => Self::SlowStart,
            number if number == raw::ek_lola_phase::EK_LOLA_CUBIC_INCREASE.0 => Self::CubicIncrease,
            number if number == raw::ek_lola_phase::EK_LOLA_BALANCE.0 => Self::Balance,
            _ => Self::Hold,
        }
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::SlowStart => "slow start",
            Self::CubicIncrease => "CUBIC increase",
            Self::Balance => "fair flow balancing",
            Self::Hold => "hold",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    pub now_us: u64,
    /// Number of acknowledged packets.
    pub acked: u32,
    pub cwnd: u32,
    pub ssthresh: u32,
    /// Size of a packet, bytes.
    pub mss: u32,
    /// Whether the window limits the flow. If not, the window does not grow.
    pub limited: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub cwnd: u32,
    pub ssthresh: u32,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Flow(raw::ek_lola);

impl Flow {
    /// Creates a flow in slow start. All times are of the same monotonic clock.
    #[must_use]
    pub fn new(now_us: u64) -> Self {
        let mut flow = Self::default();
        // SAFETY: the pointer is to a live structure of the C type.
        unsafe { raw::ek_shim_lola_init(&mut flow.0, now_us) };
        flow
    }

    /// Adds the RTT sample of an ACK. Call this before [`Self::grow`].
    pub fn sample(&mut self, settings: &Settings, rtt_us: u32, now_us: u64) {
        let settings = (*settings).into();
        // SAFETY: both pointers are to live structures of the C types; the code keeps none.
        unsafe { raw::ek_shim_lola_sample(&mut self.0, &settings, rtt_us, now_us) };
    }

    /// Returns the window after an ACK of new data.
    #[must_use]
    pub fn grow(&mut self, settings: &Settings, ack: &Ack) -> Window {
        let settings = (*settings).into();
        let ack = raw::ek_lola_ack {
            now_us: ack.now_us,
            acked: ack.acked,
            cwnd: ack.cwnd,
            ssthresh: ack.ssthresh,
            mss: ack.mss,
            limited: u32::from(ack.limited),
        };
        // SAFETY: as in `sample`.
        let window = unsafe { raw::ek_shim_lola_grow(&mut self.0, &settings, &ack) };
        Window { cwnd: window.cwnd, ssthresh: window.ssthresh }
    }

    /// Returns ssthresh after a loss.
    #[must_use]
    pub fn lose(&mut self, settings: &Settings, cwnd: u32, now_us: u64) -> u32 {
        let settings = (*settings).into();
        // SAFETY: as in `sample`.
        unsafe { raw::ek_shim_lola_loss(&mut self.0, &settings, cwnd, now_us) }
    }

    /// Handles the start of sending with nothing in flight.
    pub fn idle_restart(&mut self, settings: &Settings, now_us: u64) {
        let settings = (*settings).into();
        // SAFETY: as in `sample`.
        unsafe { raw::ek_shim_lola_idle_restart(&mut self.0, &settings, now_us) };
    }

    #[must_use]
    pub fn phase(&self) -> Phase {
        Phase::of(self.0.phase)
    }

    /// Returns the base RTT, the smallest RTT since its last reset, µs; `None` if there was no sample since
    /// then. See [`Settings::base_decreases`] for the reset.
    #[must_use]
    pub fn base_rtt_us(&self) -> Option<u32> {
        (self.0.rtt_min_us != 0).then_some(self.0.rtt_min_us)
    }

    /// Returns the result of the last measurement, µs; `None` if no measurement has ended since the
    /// last decrease, loss or long pause.
    #[must_use]
    pub fn rtt_us(&self) -> Option<u32> {
        (self.0.rtt_now_us != 0).then_some(self.0.rtt_now_us)
    }

    #[must_use]
    pub fn decreases(&self) -> u32 {
        self.0.decreases
    }

    #[must_use]
    pub fn losses(&self) -> u32 {
        self.0.losses
    }
}
