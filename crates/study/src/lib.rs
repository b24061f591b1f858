//! Many scenarios of tenants as one study: compares qdiscs and recommends a qdisc for each need.
//!
//! ```text
//! scenarios ─ plan ─> conduct (any world) ─> journal ─ results ─> effect ─> findings
//!                        one repeat a line  └ resumption       ├─> judgements, recommend
//!                                                              └─> page: JSON, Markdown, charts
//! ```
//!
//! [`plan`] determines the repeats and their order. [`conduct()`] runs the repeats in a world, which
//! implements a trait. The [`journal`] stores every repeat when it ends, so a killed study can resume.
//! Everything after [`results`] is a pure function of the measurements: the same directory gives the
//! same page.
//!
//! Source of the questions: the TC performance thesis (see [`findings`]).

#![forbid(unsafe_code)]

mod agreement;
mod charts;
mod conduct;
mod effect;
pub mod findings;
pub mod journal;
mod judgements;
mod page;
pub mod plan;
mod recommend;
pub mod results;

pub use agreement::{Agreement, Compared, agreement};
pub use charts::charts;
pub use conduct::{DISTURBANCE_LIMIT, MOST_AGAIN, MOST_ATTEMPTS, Request, StudyError, conduct};
pub use effect::{Effect, effect};
pub use judgements::{Answer, ClaimJudged, Conservation, FilterCost, claims, conservation, filter_costs};
pub use page::{agreement_json, agreement_table, html, json, markdown, qdisc_table, summary};
pub use recommend::{Ranked, Recommendation, recommendations};
