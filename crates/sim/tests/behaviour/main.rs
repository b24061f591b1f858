//! What the whole simulation does, seen from outside.

#![allow(clippy::unwrap_used, clippy::panic)]

mod conservation;
mod determinism;
mod exact;
mod golden;
mod hostile;
mod settings;
mod shares;
