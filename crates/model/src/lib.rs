//! Shared data types: units, scenarios, records, and changes to a host.
//!
//! A *scenario* defines a run (link, hosts, workload, variants, the paper's figures). A *record*
//! contains the results of a run. Both are plain data: this crate reads no file, opens no socket and is
//! independent of the kernel. Rates are bits per second, sizes are bytes, times are nanoseconds. Each
//! quantity has its own type, so that the compiler detects mixed-up units.

#![forbid(unsafe_code)]

pub mod byte_fields;
pub mod change;
mod distinct_keys;
pub mod host;
pub mod machine;
pub mod objects;
pub mod qdisc;
pub mod record;
pub mod scenario;
pub mod shell;
pub mod soft_nic;
pub mod text;
pub mod units;
pub mod world;
