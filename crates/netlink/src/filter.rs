//! Filters of a clsact qdisc that run a BPF program (cls_bpf with direct action).

use std::os::fd::{AsRawFd, BorrowedFd};

use evenkeel_model::change::{Direction, FILTER_HANDLE, FilterPlace, clsact};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};

use crate::tc::Handle;
use crate::tc_state::{
    CLSACT_EGRESS, CLSACT_INGRESS, FilterState, RTM_DELQDISC, RTM_DELTFILTER, RTM_NEWQDISC, RTM_NEWTFILTER,
    TCA_BPF_NAME, push_attribute, request, request_with, with_options,
};
use crate::transport::{Netlink, NetlinkError};

const TCA_BPF_FD: u16 = 6;
const TCA_BPF_FLAGS: u16 = 8;
const TCA_BPF_FLAG_ACT_DIRECT: u32 = 1;
const ETH_P_ALL: u16 = 3;
/// `TC_H_CLSACT`.
const CLSACT: Handle = Handle::new(0xffff, 0xfff1);
const CLSACT_HANDLE: Handle = Handle::new(0xffff, 0);

fn parent(direction: Direction) -> Handle {
    match direction {
        Direction::Ingress => CLSACT_INGRESS,
        Direction::Egress => CLSACT_EGRESS,
    }
}

/// Returns `tcm_info`: preference and protocol.
fn info(place: FilterPlace) -> u32 {
    u32::from(place.preference) << 16 | u32::from(ETH_P_ALL.to_be())
}

fn is_own(filter: &FilterState) -> bool {
    filter.kind == "bpf" && filter.handle == FILTER_HANDLE
}

impl FilterState {
    /// Returns whether this is Evenkeel's filter at a place. Another program may use the handle of
    /// Evenkeel's filters at another preference.
    #[must_use]
    pub fn is_at(&self, place: FilterPlace) -> bool {
        is_own(self) && self.preference == place.preference
    }
}

impl Netlink {
    /// Returns the state of the clsact qdisc of an interface: one of the texts of [`clsact`].
    pub fn clsact(&mut self, index: u32) -> Result<&'static str, NetlinkError> {
        let Some(qdisc) = self.qdiscs(index)?.into_iter().find(|qdisc| qdisc.kind == "clsact") else {
            return Ok(clsact::NONE);
        };
        // A shared block of filters may be used through other interfaces.
        let mut is_in_use = qdisc.beside.is_some();
        for direction in [Direction::Ingress, Direction::Egress] {
            is_in_use |= self.filters_at(index, direction)?.iter().any(|filter| !is_own(filter));
        }
        Ok(if is_in_use { clsact::IN_USE } else { clsact::EMPTY })
    }

    /// Creates the clsact qdisc.
    ///
    /// # Errors
    /// Returns an error if the interface has a clsact or `ingress` qdisc.
    pub fn add_clsact(&mut self, index: u32) -> Result<(), NetlinkError> {
        let message = with_options(request(RTM_NEWQDISC, index, CLSACT_HANDLE, CLSACT), "clsact", &[]);
        let action = format!("create the clsact qdisc of interface {index}");
        self.change_raw(message, NLM_F_CREATE | NLM_F_EXCL, &action)
    }

    /// Deletes the clsact qdisc with its filters.
    pub fn delete_clsact(&mut self, index: u32) -> Result<(), NetlinkError> {
        let action = format!("delete the clsact qdisc of interface {index}");
        self.change_raw(request(RTM_DELQDISC, index, CLSACT_HANDLE, CLSACT), 0, &action)
    }

    /// Returns the filters at a hook of clsact. Without clsact, the list is empty.
    pub fn filters_at(&mut self, index: u32, direction: Direction) -> Result<Vec<FilterState>, NetlinkError> {
        if !self.qdiscs(index)?.iter().any(|qdisc| qdisc.kind == "clsact") {
            return Ok(Vec::new());
        }
        self.filters(index, parent(direction))
    }

    /// Returns the id of the BPF program of Evenkeel's filter at a place; `None` without such a filter. The
    /// id is 0 if the kernel does not show it.
    pub fn filter_program(&mut self, index: u32, place: FilterPlace) -> Result<Option<u32>, NetlinkError> {
        let found = self.filters_at(index, place.direction)?;
        let own = found.iter().find(|filter| filter.is_at(place));
        Ok(own.map(|filter| filter.program_id.unwrap_or(0)))
    }

    /// Creates a filter that runs a BPF program and returns its verdict (direct action). Replaces no
    /// other filter.
    ///
    /// # Errors
    /// Returns an error if another filter exists at this place.
    pub fn add_filter(
        &mut self,
        index: u32,
        place: FilterPlace,
        program: BorrowedFd<'_>,
        name: &str,
    ) -> Result<(), NetlinkError> {
        let mut options = Vec::new();
        push_attribute(&mut options, TCA_BPF_FD, &program.as_raw_fd().to_ne_bytes());
        push_attribute(&mut options, TCA_BPF_NAME, format!("{name}\0").as_bytes());
        push_attribute(&mut options, TCA_BPF_FLAGS, &TCA_BPF_FLAG_ACT_DIRECT.to_ne_bytes());
        let message =
            request_with(RTM_NEWTFILTER, index, FILTER_HANDLE, parent(place.direction), info(place));
        let action = format!("create a filter at {place} of interface {index}");
        self.change_raw(with_options(message, "bpf", &options), NLM_F_CREATE | NLM_F_EXCL, &action)
    }

    /// Deletes Evenkeel's filter at a place. Other filters of the same preference stay.
    ///
    /// # Errors
    /// Returns an error if the filter does not exist.
    pub fn delete_filter(&mut self, index: u32, place: FilterPlace) -> Result<(), NetlinkError> {
        let message =
            request_with(RTM_DELTFILTER, index, FILTER_HANDLE, parent(place.direction), info(place));
        let action = format!("delete the filter at {place} of interface {index}");
        self.change_raw(with_options(message, "bpf", &[]), 0, &action)
    }
}
