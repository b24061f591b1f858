//! The effect of a change to a host's settings, by simulation.
//!
//! Data flows one way: facts, with the changes applied to them → [`Modelled`] → settings of the
//! simulator → runs → [`Effect`]. Both sides of a comparison take the same path. So a host that already
//! has the change gives the same result as a host with the change applied.

#![forbid(unsafe_code)]

mod effect;
mod forecast;
mod receiver;
mod runs;
mod topology;

pub use effect::Effect;
pub use forecast::{Forecast, PlanForecast, Simulated, Verdict, of_findings, of_plan};
pub use receiver::Modelled;
pub use runs::{Interrupted, SEEDS};
pub use topology::Topology;
