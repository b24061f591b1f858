//! A setting that another program changed while a run holds it.

use std::fmt;

use evenkeel_model::change::{Knob, Value};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disturbance {
    pub interface: String,
    pub knob: Knob,
    /// The knob's current value; `None` if the knob no longer exists.
    pub found: Option<Value>,
    /// The value that the run set last, for example by [`Run::change`](crate::Run::change) or
    /// [`Run::set`](crate::Run::set); `None` if this value is unknown.
    pub expected: Option<Value>,
}

impl fmt::Display for Disturbance {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let knob = self.knob.on(&self.interface);
        let Some(found) = &self.found else { return write!(formatter, "{knob} no longer exists") };
        write!(formatter, "another program set {knob} to {found}")?;
        match &self.expected {
            // The text of a qdisc has only its kind and handle.
            Some(expected) if expected.to_string() == found.to_string() => {
                formatter.write_str(", with parameters that evenkeel did not set")
            }
            Some(expected) => write!(formatter, " (evenkeel had set {expected})"),
            None => Ok(()),
        }
    }
}
