//! Shared data types: units, scenarios, records, and changes to a host.
//!
//! A *scenario* defines a run (link, hosts, workload, variants, the paper's figures); a *record* has its
//! results. Both are plain data: this crate reads no file, opens no socket and is independent of the kernel.
//! Rates are bits per second, sizes are bytes, times are nanoseconds. Each has its own type, so that they
//! cannot be confused.

#![forbid(unsafe_code)]

pub mod byte_fields;
pub mod change;
mod distinct_keys;
pub mod host;
pub mod objects;
pub mod qdisc;
pub mod record;
pub mod scenario;
pub mod shell;
pub mod soft_nic;
pub mod text;
pub mod units;
pub mod world;
