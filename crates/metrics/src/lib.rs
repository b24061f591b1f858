//! Definitions of the figures: fairness, latency, completion times, work conservation and the
//! statistics of repeats. All definitions are pure functions of numbers.
//!
//! | figure | function | definition from |
//! |---|---|---|
//! | normalised fairness metric (NFM) | [`nfm`] | Stephens et al., *Titan: Fair Packet Scheduling for Commodity Multiqueue NICs*, USENIX ATC 2017, section 6 |
//! | Jain's fairness index | [`jain`] | Jain, Chiu, Hawe, *A Quantitative Measure of Fairness and Discrimination*, DEC-TR-301, 1984 |
//! | latency percentiles | [`LatencySummary`] | histogram of all samples, three significant digits |
//! | flow completion times and their spread | [`CompletionTimes`] | Titan, section 6.2 and figures 3 and 4 |
//! | work conservation | [`work_conservation`], [`line_use`] | idle time of the link while packets wait |
//! | mean, median, range over repeats | [`Summary`] | |
//! | interval of a median | [`median_interval`] | order statistics |
//! | mean with its confidence interval | [`mean_interval`] | Student's t |
//! | ratio of two variants | [`paired_ratio`], [`mean_ratio`] | Student's t over the logarithms of the pairs' ratios |
//! | share of repeats | [`share_interval`] | Clopper and Pearson, *Biometrika* 26, 1934 |
//! | change between two runs | [`changes`] | Welch, *Biometrika* 34, 1947, on logarithms; Bonferroni |
//!
//! The interval of a median needs at least 6 repeats, every other interval at least [`LEAST_REPEATS`].
//!
//! Arguments have their unit in their name (`_ns` nanoseconds, `_bps` bit/s); sizes are bytes. If the input
//! does not determine a figure (no window with two competing flows, no sample), the figure is `None`, never
//! 0. For invalid input, [`nfm`] returns a typed error, and the other functions return `None`.

#![forbid(unsafe_code)]

mod change;
mod completion;
mod confidence;
mod conservation;
mod fairness;
mod latency;
mod ranges;
mod student;
mod summary;

pub use change::{Change, Confidence, Scale, changes};
pub use completion::CompletionTimes;
pub use confidence::{
    Interval, LEAST_REPEATS, MeanInterval, mean_interval, mean_ratio, median_interval, paired_ratio,
    share_interval,
};
pub use conservation::{LineUse, WorkConservation, line_use, work_conservation};
pub use fairness::{FlowSeries, Nfm, NfmError, jain, nfm, stretched_window_ns};
pub use latency::LatencySummary;
pub use summary::Summary;
