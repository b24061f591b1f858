//! Reads, creates and removes the clsact qdisc. Reads and removes Evenkeel's filters below it.

use evenkeel_model::change::{Direction, Knob, Value, clsact};
use evenkeel_netlink::{Netlink, NetlinkError};

use crate::error::KnobError;

pub(crate) fn read(netlink: &mut Netlink, index: u32, knob: &Knob) -> Result<Value, NetlinkError> {
    match knob {
        Knob::Filter(place) => netlink.filter_program(index, *place).map(Value::Program),
        _ => netlink.clsact(index).map(|state| Value::Text(state.to_owned())),
    }
}

pub(crate) fn write(netlink: &mut Netlink, index: u32, knob: &Knob, value: &Value) -> Result<(), KnobError> {
    let exists = netlink.clsact(index)? != clsact::NONE;
    match (knob, value) {
        (Knob::Filter(place), _) if netlink.filter_program(index, *place)?.is_some() => {
            Ok(netlink.delete_filter(index, *place)?)
        }
        (Knob::Clsact, Value::Text(state)) if state == clsact::NONE && exists => {
            for direction in [Direction::Ingress, Direction::Egress] {
                if !netlink.filters_at(index, direction)?.is_empty() {
                    let reason = format!("it has filters at {}", direction.word());
                    return Err(KnobError::NotRestorable { what: "the clsact qdisc".to_owned(), reason });
                }
            }
            Ok(netlink.delete_clsact(index)?)
        }
        (Knob::Clsact, Value::Text(state)) if state != clsact::NONE && !exists => {
            Ok(netlink.add_clsact(index)?)
        }
        _ => Ok(()),
    }
}
