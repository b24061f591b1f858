//! DCTCP (RFC 8257; net/ipv4/tcp_dctcp.c): reduces the window by half of the share of packets that switches
//! marked.
//!
//! The window grows as in NewReno. A loss halves the window.

/// Unit of the share (`DCTCP_MAX_ALPHA`).
const UNIT: u64 = 1024;
/// Weight of the last round trip in the average, as a shift (`dctcp_shift_g`).
const WEIGHT_SHIFT: u32 = 4;

#[derive(Clone, Debug)]
pub(super) struct Dctcp {
    /// Moving average of the share of marked packets (`dctcp_alpha`).
    share: u64,
    /// Packets delivered in this round trip, and packets delivered with a mark.
    delivered: u64,
    marked: u64,
    /// The byte whose acknowledgement ends the round trip (`next_seq`).
    round_end: u64,
}

impl Default for Dctcp {
    /// Returns the state of a new flow. The share begins at its maximum (`dctcp_alpha_on_init`), so a mark on
    /// the first packets halves the window.
    fn default() -> Self {
        Self { share: UNIT, delivered: 0, marked: 0, round_end: 0 }
    }
}

impl Dctcp {
    /// Counts `delivered` packets and their mark. Updates the share once per round trip
    /// (`dctcp_update_alpha`).
    pub fn on_report(&mut self, is_marked: bool, delivered: u64, unacknowledged: u64, next: u64) {
        self.delivered += delivered;
        if is_marked {
            self.marked += delivered;
        }
        if unacknowledged < self.round_end {
            return;
        }
        // If the share is too small for the shift, the share decays to zero (`min_not_zero`).
        let decay = self.share >> WEIGHT_SHIFT;
        self.share -= if decay == 0 { self.share } else { decay };
        let grown = (self.marked << (UNIT.ilog2() - WEIGHT_SHIFT)) / self.delivered.max(1);
        self.share = (self.share + grown).min(UNIT);
        (self.delivered, self.marked, self.round_end) = (0, 0, next);
    }

    /// Returns the slow-start threshold for `window`, packets (`dctcp_ssthresh`).
    pub fn reduced(&self, window: u32) -> u32 {
        let less = u64::from(window) * self.share / (2 * UNIT);
        window.saturating_sub(u32::try_from(less).unwrap_or(u32::MAX)).max(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs round trips of ten packets, of which `marked` packets have a mark.
    fn after(rounds: u64, marked: u64) -> Dctcp {
        let mut dctcp = Dctcp::default();
        for round in 1..=rounds {
            dctcp.on_report(true, marked, round * 10 - 1, round * 10);
            dctcp.on_report(false, 10 - marked, round * 10, (round + 1) * 10);
        }
        dctcp
    }

    #[test]
    fn the_reduction_is_half_of_the_share_of_marked_packets() {
        assert_eq!(Dctcp::default().reduced(1000), 500, "the first mark halves");
        for (marked, window) in [(10, 500), (5, 750), (1, 950)] {
            let reduced = after(200, marked).reduced(1000);
            assert!(reduced.abs_diff(window) <= 10, "{marked} of 10: {reduced}, not {window}");
        }
        assert_eq!(after(200, 0).reduced(1000), 1000);
    }

    #[test]
    fn the_share_is_an_average_over_sixteen_round_trips() {
        // The first report also ends a round trip: (1 - 1/16)^17 = 0.334.
        let reduced = after(16, 0).reduced(1000);
        assert!((828..=838).contains(&reduced), "{reduced}");
    }

    #[test]
    fn the_window_stays_at_two_packets() {
        assert_eq!(after(50, 10).reduced(2), 2);
        assert_eq!(after(50, 10).reduced(3), 2);
    }
}
