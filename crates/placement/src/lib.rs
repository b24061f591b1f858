//! Judges the facts of a host: which settings are wrong, which evidence shows the fault, and which
//! change fixes it.
//!
//! Everything here is a pure function of [`HostFacts`](evenkeel_model::host::HostFacts):
//!
//! - [`mod@rules`] is the table of rules;
//! - [`loss_path`] finds where packets were lost between two readings;
//! - [`plan`] chooses the cores of interrupts and applications.
//!
//! All figures come from *this* host. Windows come from its link speeds and the round-trip times of its
//! sockets, ring sizes from the maximum of its NIC, and losses from its counters.
//!
//! The source, if no other is named: M. Hock, M. Veit, F. Neumeister, R. Bless, M. Zitterbart, "TCP at
//! 100 Gbit/s – Tuning, Limitations, Congestion Control" (LCN 2019), called "the paper" below.

#![forbid(unsafe_code)]

pub mod applied;
pub mod current;
pub mod finding;
pub mod load;
pub mod loss_path;
pub mod managed;
pub mod plan;
pub mod replaced_qdiscs;
pub mod rules;
pub mod tune;
pub mod view;

pub use finding::{Basis, Finding, Remedy, Severity};
pub use rules::{
    Found, Judgement, NotJudged, OF_ONE_INTERFACE, Rule, check, check_with, find_rule, judge, judge_with,
    rules, rules_about_nics,
};
pub use view::View;
