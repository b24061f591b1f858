//! Qdiscs, classes and filters, kept as the kernel's bytes.
//!
//! A qdisc that is removed temporarily must be restored exactly, including options of unknown kinds. So the
//! options are not interpreted: the bytes of a dump recreate the qdisc. A few options that a dump shows
//! differently are converted ([`crate::tc_options`]). Layouts are those of `include/uapi/linux/rtnetlink.h`
//! and `pkt_sched.h`.

use std::collections::BTreeMap;

use evenkeel_model::change::{ClassHandle, QdiscSnapshot};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};

use crate::tc::{Handle, Qdisc};
use crate::tc_options;
use crate::transport::{Netlink, NetlinkError, RawMessage};

pub(crate) const RTM_NEWQDISC: u16 = 36;
pub(crate) const RTM_DELQDISC: u16 = 37;
pub(crate) const RTM_GETQDISC: u16 = 38;
pub(crate) const RTM_NEWTCLASS: u16 = 40;
const RTM_GETTCLASS: u16 = 42;
pub(crate) const RTM_NEWTFILTER: u16 = 44;
pub(crate) const RTM_DELTFILTER: u16 = 45;
const RTM_GETTFILTER: u16 = 46;

pub(crate) const TCA_KIND: u16 = 1;
pub(crate) const TCA_OPTIONS: u16 = 2;
const TCA_STATS2: u16 = 7;
const TCA_STAB: u16 = 8;
const TCA_DUMP_INVISIBLE: u16 = 10;
const TCA_INGRESS_BLOCK: u16 = 13;
const TCA_EGRESS_BLOCK: u16 = 14;
/// An attribute below `TCA_STATS2` (`include/uapi/linux/gen_stats.h`). The attribute is present if the
/// qdisc has a rate estimator, whose parameters a dump does not show.
const TCA_STATS_RATE_EST: u16 = 2;
const TCA_HTB_PARMS: u16 = 1;
const TCA_HTB_INIT: u16 = 2;
const TCA_HTB_RATE64: u16 = 6;
const TCA_HTB_CEIL64: u16 = 7;
pub(crate) const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_ID: u16 = 11;
/// `NLA_F_NESTED`.
pub(crate) const NESTED: u16 = 0x8000;
/// Mask without the flags "nested" and "network byte order".
const ATTRIBUTE_TYPE: u16 = 0x3fff;

/// `struct tcmsg`: family, padding, ifindex, handle, parent, info.
const HEADER_LENGTH: usize = 20;
/// Offset of `quantum` in `struct tc_htb_opt`: two `tc_ratespec` of 12 bytes, buffer, cbuffer.
const QUANTUM_OFFSET: usize = 32;
/// Offset of the second `tc_ratespec`'s rate in `struct tc_htb_opt`.
const CEILING_OFFSET: usize = 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QdiscState {
    pub kind: String,
    /// 0:0 for a qdisc that the kernel installed by default.
    pub handle: Handle,
    pub parent: Handle,
    /// The option bytes of a dump, without counters.
    pub options: Vec<u8>,
    /// A property that the options do not restore, if any: a size table, a shared filter block, or a rate
    /// estimator.
    pub beside: Option<&'static str>,
}

impl QdiscState {
    /// Returns the state of a qdisc with this parent and handle.
    #[must_use]
    pub fn of(qdisc: &Qdisc, parent: Handle, handle: Handle) -> Self {
        let options = qdisc.options().unwrap_or_default();
        Self { kind: qdisc.kind().to_owned(), handle, parent, options, beside: None }
    }

    /// Converts a snapshot. Returns `None` if the snapshot's options are not hexadecimal.
    #[must_use]
    pub fn of_snapshot(snapshot: &QdiscSnapshot) -> Option<Self> {
        Some(Self {
            kind: snapshot.kind.clone(),
            handle: snapshot.handle.0,
            parent: snapshot.parent.0,
            options: snapshot.option_bytes()?,
            beside: None,
        })
    }

    /// Returns `rate2quantum` and `defcls` of an HTB qdisc (`struct tc_htb_glob`), or `None` for
    /// another kind or unreadable options. The structure's other fields are a version, a debug mask and a
    /// counter.
    #[must_use]
    pub fn htb_settings(&self) -> Option<(u32, u32)> {
        let global = attribute(&self.options, TCA_HTB_INIT).filter(|_| self.kind == "htb")?;
        let word = |at: usize| Some(u32::from_ne_bytes(global.get(at..at + 4)?.try_into().ok()?));
        Some((word(4)?, word(8)?))
    }

    /// Returns whether the kernel installed the qdisc by default (`net.core.default_qdisc`, or the device's
    /// choice).
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.handle == Handle::new(0, 0)
    }
}

/// Fields of an HTB class that remain if its quantum is changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HtbClassState {
    pub handle: Handle,
    pub parent: Handle,
    /// The class's `ceil`, bytes per second; `None` if the dump lacks it.
    pub ceiling: Option<u64>,
}

/// Returns the `ceil` of a class, from the 64-bit attribute if it does not fit 32 bits (`htb_dump_class`,
/// net/sched/sch_htb.c).
fn ceiling(options: &[u8]) -> Option<u64> {
    if let Some(rate) = attribute(options, TCA_HTB_CEIL64) {
        return rate.try_into().ok().map(u64::from_ne_bytes);
    }
    let rate = attribute(options, TCA_HTB_PARMS)?.get(CEILING_OFFSET..CEILING_OFFSET + 4)?;
    rate.try_into().ok().map(|rate| u64::from(u32::from_ne_bytes(rate)))
}

impl From<&QdiscState> for QdiscSnapshot {
    fn from(state: &QdiscState) -> Self {
        Self {
            kind: state.kind.clone(),
            handle: ClassHandle(state.handle),
            parent: ClassHandle(state.parent),
            options: state.options.iter().map(|byte| format!("{byte:02x}")).collect(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterState {
    pub kind: String,
    pub preference: u16,
    /// Distinguishes filters with the same preference.
    pub handle: u32,
    /// Name of the filter's BPF program, if any.
    pub program: Option<String>,
    /// Id of the filter's BPF program, if any.
    pub program_id: Option<u32>,
}

/// The ingress hook of `clsact` (`TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS)`).
pub const CLSACT_INGRESS: Handle = Handle::new(0xffff, 0xfff2);
/// The egress hook of `clsact` (`TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_EGRESS)`).
pub const CLSACT_EGRESS: Handle = Handle::new(0xffff, 0xfff3);

pub(crate) struct Answer<'a> {
    pub(crate) index: i32,
    pub(crate) handle: Handle,
    pub(crate) parent: Handle,
    info: u32,
    pub(crate) attributes: &'a [u8],
}

fn handle(raw: u32) -> Handle {
    Handle::new((raw >> 16) as u16, raw as u16)
}

impl<'a> Answer<'a> {
    pub(crate) fn new(payload: &'a [u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_ne_bytes(payload.get(at..at + 4)?.try_into().ok()?));
        Some(Self {
            index: word(4)?.cast_signed(),
            handle: handle(word(8)?),
            parent: handle(word(12)?),
            info: word(16)?,
            attributes: payload.get(HEADER_LENGTH..)?,
        })
    }

    pub(crate) fn kind(&self) -> Option<String> {
        attribute(self.attributes, TCA_KIND).map(text)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

pub(crate) fn attribute(attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes_of(attributes).find_map(|(kind, value)| (kind == wanted).then_some(value))
}

/// Returns the attributes in these bytes, by type, up to the first truncated attribute.
pub(crate) fn attributes_of(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let header = rest.get(..4)?;
        let length = u16::from_ne_bytes([header[0], header[1]]) as usize;
        let kind = u16::from_ne_bytes([header[2], header[3]]) & ATTRIBUTE_TYPE;
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// Describes the first property of a qdisc that is not in its options, if any (`tc_fill_qdisc`,
/// `net/sched/sch_api.c`).
fn beside_options(attributes: &[u8]) -> Option<&'static str> {
    let has = |wanted| attribute(attributes, wanted).is_some();
    if has(TCA_STAB) {
        return Some("a size table (stab)");
    }
    if has(TCA_INGRESS_BLOCK) || has(TCA_EGRESS_BLOCK) {
        return Some("a shared block of filters");
    }
    let statistics = attribute(attributes, TCA_STATS2)?;
    attribute(statistics, TCA_STATS_RATE_EST).map(|_| "a rate estimator")
}

pub(crate) fn push_attribute(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

pub(crate) fn request(kind: u16, index: u32, handle: Handle, parent: Handle) -> RawMessage {
    request_with(kind, index, handle.class_id(), parent, 0)
}

/// Creates a request with `tcm_info`, and a handle that may be a filter's.
pub(crate) fn request_with(kind: u16, index: u32, handle: u32, parent: Handle, info: u32) -> RawMessage {
    let mut payload = vec![0; 4];
    payload.extend(index.to_ne_bytes());
    payload.extend(handle.to_ne_bytes());
    payload.extend(parent.class_id().to_ne_bytes());
    payload.extend(info.to_ne_bytes());
    RawMessage { kind, payload }
}

pub(crate) fn with_options(mut message: RawMessage, kind: &str, options: &[u8]) -> RawMessage {
    let mut name = kind.as_bytes().to_vec();
    name.push(0);
    push_attribute(&mut message.payload, TCA_KIND, &name);
    if !options.is_empty() {
        let flag = if tc_options::is_strictly_nested(kind) { NESTED } else { 0 };
        push_attribute(&mut message.payload, TCA_OPTIONS | flag, options);
    }
    message
}

/// Sorts qdiscs in the order of creation: parents before children.
fn sort_as_tree(qdiscs: &mut [QdiscState]) {
    let parents: BTreeMap<u16, Handle> = qdiscs
        .iter()
        .filter(|qdisc| !qdisc.is_default())
        .map(|qdisc| (qdisc.handle.major, qdisc.parent))
        .collect();
    // ingress and clsact are their own parents, so limit the path to the number of qdiscs.
    let depth = |qdisc: &QdiscState| {
        let mut parent = qdisc.parent;
        let mut depth = 0;
        while parent != Handle::ROOT && depth <= parents.len() {
            depth += 1;
            let Some(above) = parents.get(&parent.major) else { break };
            parent = *above;
        }
        depth
    };
    qdiscs.sort_by_cached_key(|qdisc| (depth(qdisc), qdisc.parent));
}

pub(crate) const NOWHERE: Handle = Handle::new(0, 0);

impl Netlink {
    /// Returns the qdiscs of an interface that the kernel shows by default: the root first, and parents
    /// before children.
    pub fn qdiscs(&mut self, index: u32) -> Result<Vec<QdiscState>, NetlinkError> {
        self.dump_qdiscs(index, request(RTM_GETQDISC, index, NOWHERE, NOWHERE))
    }

    /// Returns the qdiscs like [`Self::qdiscs`], and the qdiscs that the kernel shows only on request,
    /// such as the FIFO below a TBF.
    pub fn qdiscs_with_hidden(&mut self, index: u32) -> Result<Vec<QdiscState>, NetlinkError> {
        let mut message = request(RTM_GETQDISC, index, NOWHERE, NOWHERE);
        push_attribute(&mut message.payload, TCA_DUMP_INVISIBLE, &[]);
        self.dump_qdiscs(index, message)
    }

    fn dump_qdiscs(&mut self, index: u32, message: RawMessage) -> Result<Vec<QdiscState>, NetlinkError> {
        let action = format!("list the qdiscs of interface {index}");
        let answers = self.dump_raw(message, &action)?;
        let mut found: Vec<QdiscState> = answers
            .iter()
            .filter(|answer| answer.kind == RTM_NEWQDISC)
            .filter_map(|answer| Answer::new(&answer.payload))
            .filter(|answer| answer.index == index.cast_signed())
            .filter_map(|answer| {
                let kind = answer.kind()?;
                let shown = attribute(answer.attributes, TCA_OPTIONS).unwrap_or_default();
                Some(QdiscState {
                    handle: answer.handle,
                    parent: answer.parent,
                    options: tc_options::without_counts(&kind, shown),
                    kind,
                    beside: beside_options(answer.attributes),
                })
            })
            .collect();
        sort_as_tree(&mut found);
        Ok(found)
    }

    /// Installs a qdisc with its options at its parent.
    pub fn put_qdisc(&mut self, index: u32, qdisc: &QdiscState) -> Result<(), NetlinkError> {
        let message = request(RTM_NEWQDISC, index, qdisc.handle, qdisc.parent);
        let action = format!("put the qdisc {} at {} of interface {index}", qdisc.kind, qdisc.parent);
        let options = tc_options::to_set(&qdisc.kind, &qdisc.options);
        let message = with_options(message, &qdisc.kind, &options);
        self.change_raw(message, NLM_F_CREATE | NLM_F_REPLACE, &action)
    }

    /// Deletes the root qdisc. The kernel then installs its default (`dev_activate`,
    /// net/sched/sch_generic.c).
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the deletion, for example because the default is already
    /// installed.
    pub fn delete_root_qdisc(&mut self, index: u32) -> Result<(), NetlinkError> {
        let action = format!("remove the root qdisc of interface {index}");
        self.change_raw(request(RTM_DELQDISC, index, NOWHERE, Handle::ROOT), 0, &action)
    }

    /// Returns the filters of a qdisc or hook of an interface.
    pub fn filters(&mut self, index: u32, parent: Handle) -> Result<Vec<FilterState>, NetlinkError> {
        let action = format!("list the filters at {parent} of interface {index}");
        let answers = self.dump_raw(request(RTM_GETTFILTER, index, NOWHERE, parent), &action)?;
        Ok(answers
            .iter()
            .filter(|answer| answer.kind == RTM_NEWTFILTER)
            .filter_map(|answer| Answer::new(&answer.payload))
            // Each filter follows an entry for its chain and preference, which has no handle.
            .filter(|answer| answer.index == index.cast_signed() && answer.handle != NOWHERE)
            .filter_map(|answer| {
                let options = attribute(answer.attributes, TCA_OPTIONS).unwrap_or_default();
                Some(FilterState {
                    kind: answer.kind()?,
                    preference: (answer.info >> 16) as u16,
                    handle: answer.handle.class_id(),
                    program: attribute(options, TCA_BPF_NAME).map(text),
                    program_id: attribute(options, TCA_BPF_ID)
                        .and_then(|id| id.try_into().ok())
                        .map(u32::from_ne_bytes),
                })
            })
            .collect())
    }

    /// Returns the `quantum` of an HTB class, bytes, or `None` if the class does not exist.
    pub fn htb_quantum(&mut self, index: u32, class: Handle) -> Result<Option<u32>, NetlinkError> {
        let Some((_, options)) = self.htb_class(index, class)? else { return Ok(None) };
        Ok(attribute(&options, TCA_HTB_PARMS)
            .and_then(|parameters| parameters.get(QUANTUM_OFFSET..QUANTUM_OFFSET + 4)?.try_into().ok())
            .map(u32::from_ne_bytes))
    }

    /// Sets only the `quantum` of an HTB class.
    pub fn set_htb_quantum(&mut self, index: u32, class: Handle, bytes: u32) -> Result<(), NetlinkError> {
        let action =
            format!("set the quantum of the HTB class {class} of interface {index} to {bytes} bytes");
        let absent = || NetlinkError::Refused {
            action: action.clone(),
            source: std::io::Error::from_raw_os_error(libc::ENOENT),
            kernel_says: None,
        };
        let (parent, options) = self.htb_class(index, class)?.ok_or_else(absent)?;
        let mut parameters = attribute(&options, TCA_HTB_PARMS).ok_or_else(absent)?.to_vec();
        let quantum = parameters.get_mut(QUANTUM_OFFSET..QUANTUM_OFFSET + 4).ok_or_else(absent)?;
        quantum.copy_from_slice(&bytes.to_ne_bytes());
        let mut changed = Vec::new();
        push_attribute(&mut changed, TCA_HTB_PARMS, &parameters);
        for rate in [TCA_HTB_RATE64, TCA_HTB_CEIL64] {
            if let Some(value) = attribute(&options, rate) {
                push_attribute(&mut changed, rate, value);
            }
        }
        let message = with_options(request(RTM_NEWTCLASS, index, class, parent), "htb", &changed);
        self.change_raw(message, 0, &action)
    }

    fn htb_class(&mut self, index: u32, class: Handle) -> Result<Option<(Handle, Vec<u8>)>, NetlinkError> {
        let mut classes = self.htb_classes_raw(index)?.into_iter();
        Ok(classes.find(|(handle, ..)| *handle == class).map(|(_, parent, options)| (parent, options)))
    }

    pub fn htb_classes(&mut self, index: u32) -> Result<Vec<HtbClassState>, NetlinkError> {
        let classes = self.htb_classes_raw(index)?.into_iter();
        Ok(classes
            .map(|(handle, parent, options)| HtbClassState { handle, parent, ceiling: ceiling(&options) })
            .collect())
    }

    fn htb_classes_raw(&mut self, index: u32) -> Result<Vec<(Handle, Handle, Vec<u8>)>, NetlinkError> {
        let action = format!("list the classes of interface {index}");
        let answers = self.dump_raw(request(RTM_GETTCLASS, index, NOWHERE, NOWHERE), &action)?;
        Ok(answers
            .iter()
            .filter(|answer| answer.kind == RTM_NEWTCLASS)
            .filter_map(|answer| Answer::new(&answer.payload))
            .filter(|answer| answer.index == index.cast_signed() && answer.kind().as_deref() == Some("htb"))
            .map(|answer| {
                let options = attribute(answer.attributes, TCA_OPTIONS).unwrap_or_default().to_vec();
                (answer.handle, answer.parent, options)
            })
            .collect())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn a_request_reads_back_as_it_was_written() {
        let message = request(RTM_NEWQDISC, 7, Handle::new(0x8001, 0), Handle::ROOT);
        let message = with_options(message, "fq", &[1, 2, 3, 4]);
        let answer = Answer::new(&message.payload).unwrap();
        assert_eq!((answer.index, answer.handle, answer.parent), (7, Handle::new(0x8001, 0), Handle::ROOT));
        assert_eq!(answer.kind().as_deref(), Some("fq"));
        assert_eq!(attribute(answer.attributes, TCA_OPTIONS), Some(&[1, 2, 3, 4][..]));
    }

    #[test]
    fn the_settings_of_htb_are_told_from_its_counts() {
        let glob = |words: [u32; 5]| {
            let mut options = Vec::new();
            push_attribute(&mut options, 2, &words.map(u32::to_ne_bytes).concat());
            options
        };
        let state = |kind: &str, options| QdiscState {
            kind: kind.to_owned(),
            handle: Handle::new(1, 0),
            parent: Handle::ROOT,
            options,
            beside: None,
        };
        let own = QdiscState::of(&Qdisc::Htb { default_class: 0x10 }, Handle::ROOT, Handle::new(1, 0));
        assert_eq!(own.htb_settings(), Some((10, 0x10)));
        // A dump has these values: HTB_VER, and a count of direct packets.
        assert_eq!(state("htb", glob([0x3_0011, 10, 0x10, 0, 77])).htb_settings(), own.htb_settings());
        assert_eq!(state("htb", glob([0x3_0011, 10, 0x20, 0, 0])).htb_settings(), Some((10, 0x20)));
        assert_eq!(state("fq", glob([3, 10, 0x10, 0, 0])).htb_settings(), None);
        assert_eq!(state("htb", vec![1; 5]).htb_settings(), None);
    }

    #[test]
    fn parents_come_before_their_children() {
        let state = |kind: &str, major, parent| QdiscState {
            kind: kind.to_owned(),
            handle: Handle::new(major, 0),
            parent,
            options: Vec::new(),
            beside: None,
        };
        // A child may have a smaller major number than its parent.
        let mut tree = [
            state("fq", 2, Handle::new(0x10, 1)),
            state("ingress", 0xffff, Handle::new(0xffff, 0xfff1)),
            state("pfifo", 0, Handle::new(0x8001, 2)),
            state("tbf", 0x10, Handle::new(0x8001, 1)),
            state("mq", 0x8001, Handle::ROOT),
        ];
        sort_as_tree(&mut tree);
        let kinds: Vec<&str> = tree.iter().map(|qdisc| qdisc.kind.as_str()).collect();
        assert_eq!(kinds, ["mq", "tbf", "pfifo", "fq", "ingress"]);
    }

    #[test]
    fn what_options_do_not_bring_back_is_noticed() {
        let with = |kind, value: &[u8]| {
            let mut attributes = Vec::new();
            push_attribute(&mut attributes, TCA_KIND, b"fq\0");
            push_attribute(&mut attributes, kind, value);
            beside_options(&attributes)
        };
        let mut statistics = Vec::new();
        push_attribute(&mut statistics, 1, &[0; 16]);
        assert_eq!(with(TCA_STATS2, &statistics), None, "everybody has counts");
        push_attribute(&mut statistics, TCA_STATS_RATE_EST, &[0; 8]);
        assert_eq!(with(TCA_STATS2, &statistics), Some("a rate estimator"));
        assert_eq!(with(TCA_STAB, &[0; 4]), Some("a size table (stab)"));
        assert_eq!(with(TCA_EGRESS_BLOCK, &[1, 0, 0, 0]), Some("a shared block of filters"));
    }

    #[test]
    fn damaged_answers_are_skipped() {
        let message = with_options(request(RTM_NEWQDISC, 7, NOWHERE, NOWHERE), "fq", &[1; 9]);
        for length in 0..message.payload.len() {
            if let Some(answer) = Answer::new(&message.payload[..length]) {
                let _ = (answer.kind(), attribute(answer.attributes, TCA_OPTIONS));
            }
        }
        // A length smaller than the header ends the search.
        assert_eq!(attribute(&[0, 0, 1, 0, 0, 0, 0, 0], 1), None);
    }

    #[test]
    fn a_snapshot_keeps_every_byte() {
        let state = QdiscState {
            kind: "fq".to_owned(),
            handle: Handle::new(0x8001, 0),
            parent: Handle::ROOT,
            options: (0..=255).collect(),
            beside: None,
        };
        let kept = QdiscSnapshot::from(&state);
        let text = serde_json::to_string(&kept).unwrap();
        let read: QdiscSnapshot = serde_json::from_str(&text).unwrap();
        assert_eq!(QdiscState::of_snapshot(&read).unwrap(), state);
    }

    #[test]
    fn damaged_snapshots_are_noticed() {
        let broken = |options: &str| QdiscSnapshot {
            kind: "fq".to_owned(),
            handle: ClassHandle(Handle::new(1, 0)),
            parent: ClassHandle(Handle::ROOT),
            options: options.to_owned(),
        };
        for options in ["0", "zz", "é"] {
            assert!(QdiscState::of_snapshot(&broken(options)).is_none(), "{options}");
        }
    }
}
