//! Series of the state of each flow's TCP.

use evenkeel_model::world::RawTcp;

use super::Simulation;
use crate::tcp::Sender;
use crate::time::{NANOSECOND, Span, Time};

/// Memory of a flow's TCP per bin in bytes: while the simulation runs, in its result, and in the
/// series.
pub(crate) const TCP_BIN_BYTES: u64 =
    (size_of::<TcpBin>() + size_of::<RawTcp>() + RawTcp::COLUMNS.len() * size_of::<u64>()) as u64;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TcpBin {
    acknowledgements: u64,
    /// Sum and maximum of the round-trip times.
    sum: Span,
    most: Span,
    window: u32,
    in_flight: u32,
    /// In bytes/s.
    pacing_rate: u64,
}

impl TcpBin {
    pub fn record(&mut self, sender: &Sender) {
        let rtt = sender.newest_rtt();
        self.acknowledgements += 1;
        // The sum saturates at 10^7 round trips of 1 s, which is more than the acknowledgements of a
        // bin.
        self.sum = self.sum.saturating_add(rtt);
        self.most = self.most.max(rtt);
        self.window = sender.window_packets();
        self.in_flight = sender.in_flight();
        self.pacing_rate = sender.pacing_rate();
    }

    fn raw(&self) -> RawTcp {
        RawTcp {
            window: self.window.into(),
            rtt_ns: self.sum / self.acknowledgements.max(1) / NANOSECOND,
            rtt_most_ns: self.most / NANOSECOND,
            pacing_bps: self.pacing_rate.saturating_mul(8),
            in_flight: self.in_flight.into(),
        }
    }
}

/// Returns the bin of a time. Returns `None` before the first bin and after the last bin.
pub(super) fn bin_at(bins: &mut [TcpBin], now: Time, begin: Time, bin: Span) -> Option<&mut TcpBin> {
    if now < begin { None } else { bins.get_mut((now.since(begin) / bin.max(1)) as usize) }
}

impl Simulation {
    /// Returns and removes the state of each flow's TCP in each bin. Returns no flows if the state was
    /// not recorded.
    pub fn take_tcp_bins(&mut self) -> Vec<Vec<RawTcp>> {
        let bins = std::mem::take(&mut self.tcp_bins);
        bins.iter().map(|bins| bins.iter().map(TcpBin::raw).collect()).collect()
    }
}
