//! Attaches programs as filters of a clsact qdisc, for kernels without tcx hooks (before Linux 6.6).
//!
//! Unlike a tcx link, a filter stays when the process ends. So each filter is a journalled change of
//! the run. The guardian and `revert` recognize the filter by the id of its program and remove it.

use std::os::fd::BorrowedFd;

use evenkeel_apply::{Change, Direction, FilterPlace, Knob, Line, Ours, Run, Value};
use evenkeel_model::change::clsact;
use evenkeel_netlink::Netlink;
use evenkeel_netlink::tc_state::FilterState;

use crate::error::FairError;

/// Attaches a program, in the calling thread's network namespace. Creates clsact if the interface has none.
pub(crate) fn attach(
    run: &mut Run,
    index: u32,
    direction: Direction,
    (program, id): (BorrowedFd<'_>, u32),
    name: &str,
) -> Result<FilterPlace, FairError> {
    let mut netlink = Netlink::open()?;
    if netlink.clsact(index)? == clsact::NONE {
        // Both qdiscs have the handle ffff: (`TC_H_INGRESS` equals `TC_H_CLSACT`).
        if netlink.qdiscs(index)?.iter().any(|qdisc| qdisc.kind == "ingress") {
            return Err(FairError::unable(
                "without tcx hooks evenkeel needs a clsact qdisc, but the interface has an ingress qdisc, \
                 and the kernel permits only one of the two",
                format!(
                    "remove the ingress qdisc with `{}`, or use Linux 6.6 or newer",
                    Line::new("tc qdisc del dev {} ingress", &[&run.interface()])
                ),
            ));
        }
        run.change(&Change::new(Knob::Clsact, Value::Text(clsact::EMPTY.to_owned())))?;
    }
    let preference = free_preference(&netlink.filters_at(index, direction)?);
    let place = FilterPlace { direction, preference };
    let (knob, value) = (Knob::Filter(place), Value::Program(Some(id)));
    run.allow(&knob, Ours::These(vec![value.clone()]))?;
    netlink.add_filter(index, place, program, name)?;
    run.has_set(&knob, Some(value));
    run.verify(&knob)?;
    Ok(place)
}

pub(crate) fn detach(run: &mut Run, place: FilterPlace) -> Result<(), FairError> {
    Ok(run.set(&Knob::Filter(place), &Value::Program(None))?)
}

/// Returns the smallest preference that no filter uses. The filter with the smallest preference runs
/// first.
fn free_preference(filters: &[FilterState]) -> u16 {
    let is_free = |preference: &u16| filters.iter().all(|filter| filter.preference != *preference);
    (1..=u16::MAX).find(is_free).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_free_preference_is_used() {
        let filter = |preference| FilterState {
            kind: "bpf".to_owned(),
            preference,
            handle: 1,
            program: None,
            program_id: None,
        };
        let free = |used: &[u16]| free_preference(&used.iter().map(|used| filter(*used)).collect::<Vec<_>>());
        assert_eq!((free(&[]), free(&[2]), free(&[3, 1, 2]), free(&[49_152])), (1, 1, 4, 1));
    }
}
