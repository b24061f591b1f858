//! The words every other room uses: units, scenarios, records, and changes to a host.
//!
//! A *scenario* says what to run (link, hosts, workload, variants, the paper's figures); a *record*
//! says what came out. Both are plain data: this room reads no file, opens no socket and knows no
//! kernel. Rates are bits per second, sizes are bytes, times are nanoseconds; each is a type of its
//! own, so that none can be taken for another.

#![warn(missing_docs)]

pub mod change;
pub mod host;
pub mod qdisc;
pub mod record;
pub mod scenario;
pub mod shell;
pub mod soft_nic;
pub mod text;
pub mod units;
pub mod world;
