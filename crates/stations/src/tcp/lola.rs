//! TCP LoLa (Hock, Neumeister, Zitterbart, Bless: *TCP LoLa: Congestion Control for Low Latencies and High
//! Throughput*, IEEE LCN 2017), in the arithmetic of `evenkeel_transmit::lola`.

use evenkeel_transmit::lola::{Ack, Flow, Settings};

use crate::time::{MICROSECOND, Span, Time};

#[derive(Clone, Debug)]
pub(super) struct Lola {
    flow: Flow,
    settings: Settings,
    mss: u32,
}

impl Lola {
    pub fn new(loss_reaction: bool, mss: u32) -> Self {
        Self { flow: Flow::new(0), settings: Settings { loss_reaction, ..Settings::default() }, mss }
    }

    /// Handles a packet's round trip (`pkts_acked`).
    pub fn on_delay(&mut self, now: Time, rtt: Span) {
        let rtt = u32::try_from(rtt / MICROSECOND).unwrap_or(u32::MAX);
        self.flow.sample(&self.settings, rtt, microseconds(now));
    }

    /// Handles acknowledged packets (`cong_avoid`). `limited`: whether the window limits the flow.
    pub fn grow(
        &mut self,
        now: Time,
        acknowledged: u32,
        limited: bool,
        window: &mut u32,
        threshold: &mut u32,
    ) {
        let after = self.flow.grow(
            &self.settings,
            &Ack {
                now_us: microseconds(now),
                acked: acknowledged,
                cwnd: *window,
                ssthresh: *threshold,
                mss: self.mss,
                limited,
            },
        );
        (*window, *threshold) = (after.cwnd, after.ssthresh);
    }

    /// Returns the threshold after a loss (`ssthresh`).
    pub fn reduced(&mut self, now: Time, window: u32) -> u32 {
        self.flow.lose(&self.settings, window, microseconds(now))
    }

    /// Handles the start of sending after idle time (`cwnd_event`).
    pub fn resume(&mut self, now: Time) {
        self.flow.idle_restart(&self.settings, microseconds(now));
    }
}

fn microseconds(time: Time) -> u64 {
    time.0 / MICROSECOND
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::MILLISECOND;

    /// Acknowledges 10 packets per millisecond, `rounds` times, with a round trip of `rtt`.
    fn run(lola: &mut Lola, from: u64, rounds: u64, rtt: Span, window: &mut u32, threshold: &mut u32) {
        for round in from..from + rounds {
            let now = Time(round * MILLISECOND);
            lola.on_delay(now, rtt);
            lola.grow(now, 10, true, window, threshold);
        }
    }

    /// Above the delay target, LoLa holds the window for 250 ms. Then the window falls below the share
    /// that fills the path.
    #[test]
    fn a_queue_above_the_target_is_held_and_drained() {
        let mut lola = Lola::new(true, 1448);
        let (mut window, mut threshold) = (1000, 1000);
        lola.on_delay(Time(MILLISECOND), 10 * MILLISECOND);
        run(&mut lola, 2, 100, 16 * MILLISECOND, &mut window, &mut threshold);
        let held = window;
        run(&mut lola, 102, 200, 16 * MILLISECOND, &mut window, &mut threshold);
        assert_eq!(window, held, "held");
        run(&mut lola, 302, 60, 16 * MILLISECOND, &mut window, &mut threshold);
        let drained = held * 10 / 16;
        assert!((drained * 8 / 10..drained).contains(&window), "{window} after {held}");
    }

    #[test]
    fn a_loss_reduces_the_window_unless_it_is_ignored() {
        assert_eq!(Lola::new(true, 1448).reduced(Time(MILLISECOND), 1000), 700);
        assert_eq!(Lola::new(false, 1448).reduced(Time(MILLISECOND), 1000), 1000);
    }
}
