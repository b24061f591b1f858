//! Black-box tests of the whole simulation.

#![allow(clippy::unwrap_used, clippy::panic)]

mod conservation;
mod determinism;
mod exact;
mod extensions;
mod fetch;
mod fuzzed;
mod golden;
mod hostile;
mod layers;
mod priorities;
mod random;
mod settings;
mod shares;
mod soft_nic;
mod transfers;
