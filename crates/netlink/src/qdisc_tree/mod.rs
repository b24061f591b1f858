//! Trees of qdiscs, classes and filters ([`QdiscTree`]), made over netlink, and what they have counted.

mod filters;
mod options;

use std::collections::BTreeSet;

use evenkeel_model::qdisc::{Classifier, FilterRules, Node, QdiscTree, Step};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};

use crate::tc::Handle;
use crate::tc_state::{NOWHERE, RTM_DELQDISC, RTM_NEWQDISC, RTM_NEWTCLASS, RTM_NEWTFILTER};
use crate::tc_state::{TCA_KIND, TCA_OPTIONS, push_attribute, request};
use crate::transport::{Netlink, NetlinkError, RawMessage};

use filters::Encoded;
use options::Options;

/// Preference of the first of a tree's own filters; rules in front of them have a lower one.
const OWN_PREFERENCE: u16 = 0x100;
/// Preference of rules in front of a tree's own filters.
const RULES_PREFERENCE: u16 = 1;
/// `TC_H_INGRESS`, where `clsact` is.
const CLSACT: Handle = Handle::new(0xffff, 0);
/// `TC_H_CLSACT`.
const CLSACT_PARENT: Handle = Handle::new(0xffff, 0xfff1);

/// A tree or rules could not be made.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The kernel refused a step.
    #[error("{source}{}", lacks_in_words(.lacks))]
    Refused {
        /// The step, as a command of `tc`.
        step: String,
        /// What the kernel does not have, if that is why.
        lacks: Option<String>,
        /// The kernel's answer.
        source: NetlinkError,
    },
    /// There are more rules than ports that nothing is sent to.
    #[error("{0} filter rules are too many; use at most {most}", most = filters::MOST_IDLE_RULES)]
    TooManyRules(u32),
}

fn lacks_in_words(lacks: &Option<String>) -> String {
    lacks.as_ref().map(|kind| format!("; this kernel has no {kind}")).unwrap_or_default()
}

impl InstallError {
    /// The kind of qdisc or classifier that this kernel does not have, if that is why.
    #[must_use]
    pub fn lacks(&self) -> Option<&str> {
        match self {
            Self::Refused { lacks, .. } => lacks.as_deref(),
            Self::TooManyRules(_) => None,
        }
    }

    /// The step that was refused, as a command of `tc`.
    #[must_use]
    pub fn step(&self) -> Option<&str> {
        match self {
            Self::Refused { step, .. } => Some(step),
            Self::TooManyRules(_) => None,
        }
    }
}

/// What a qdisc has counted since it was made, and what waits in it now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QdiscCounters {
    /// Its handle; 0:0 is one that the kernel put there by itself.
    pub handle: Handle,
    /// Its place.
    pub parent: Handle,
    /// Its kind.
    pub kind: String,
    /// Bytes sent, the headers of further segments included.
    pub bytes: u64,
    /// Packets sent; GSO packets count as their segments.
    pub packets: u64,
    /// Packets dropped.
    pub drops: u64,
    /// How often a limit held packets back.
    pub overlimits: u64,
    /// How often the device took no packet.
    pub requeues: u64,
    /// Packets that wait.
    pub queue_length: u64,
    /// Bytes that wait.
    pub backlog_bytes: u64,
}

fn node_message(kind: u16, index: u32, node: &Node, options: Option<Options>) -> RawMessage {
    let mut message = request(kind, index, node.handle, node.parent);
    push_attribute(&mut message.payload, TCA_KIND, &[node.kind.as_bytes(), &[0]].concat());
    if let Some(options) = options {
        push_attribute(&mut message.payload, TCA_OPTIONS | options.flags, &options.payload);
    }
    message
}

fn filter_message(index: u32, parent: Handle, preference: u16, filter: &Encoded) -> RawMessage {
    let mut message = request(RTM_NEWTFILTER, index, NOWHERE, parent);
    // `tcm_info`: preference, and the protocol in network byte order.
    let info = u32::from(preference) << 16 | u32::from(filter.protocol.to_be());
    let length = message.payload.len();
    message.payload[length - 4..].copy_from_slice(&info.to_ne_bytes());
    push_attribute(&mut message.payload, TCA_KIND, &[filter.kind.as_bytes(), &[0]].concat());
    push_attribute(&mut message.payload, TCA_OPTIONS, &filter.options);
    message
}

/// Whether the kernel's answer means that it does not have the kind (`tc_modify_qdisc`, `net/sched/sch_api.c`;
/// `tcf_proto_lookup_ops`, `net/sched/cls_api.c`). Others have the same number, as for a parent that is not there.
fn means_unknown(error: &NetlinkError) -> bool {
    let NetlinkError::Refused { source, kernel_says, .. } = error else { return false };
    source.raw_os_error() == Some(libc::ENOENT)
        && kernel_says.as_ref().is_none_or(|words| {
            words.contains("qdisc kind is unknown") || words.contains("classifier not found")
        })
}

/// What a step needs the kernel to have.
fn needed(step: &Step) -> Option<&str> {
    match step {
        Step::Qdisc(node) => Some(&node.kind),
        Step::Class(_) => None,
        Step::Filter { filter, .. } => Some(filters::of_tree(filter).kind),
    }
}

/// Makes a tree on an interface, after what stands at its root has been taken away.
///
/// # Errors
/// When the kernel refuses a step; those before it stay, and go with the root.
pub fn install(netlink: &mut Netlink, index: u32, tree: &QdiscTree) -> Result<(), InstallError> {
    let refused = |step: &Step, source: NetlinkError| InstallError::Refused {
        step: step.to_string(),
        lacks: needed(step).filter(|_| means_unknown(&source)).map(str::to_owned),
        source,
    };
    let Some(first) = tree.steps.first() else { return Ok(()) };
    take_root_away(netlink, index).map_err(|source| refused(first, source))?;
    let mut preference = OWN_PREFERENCE;
    let mut previous: Option<(Handle, &str)> = None;
    for step in &tree.steps {
        let action = format!("make '{step}' on interface {index}");
        let made = match step {
            Step::Qdisc(node) => {
                let message = node_message(RTM_NEWQDISC, index, node, options::of_qdisc(node));
                netlink.change_raw(message, NLM_F_CREATE | NLM_F_REPLACE, &action)
            }
            Step::Class(node) => {
                let message = node_message(RTM_NEWTCLASS, index, node, Some(options::of_class(node)));
                netlink.change_raw(message, NLM_F_CREATE | NLM_F_EXCL, &action)
            }
            Step::Filter { parent, filter } => {
                let encoded = filters::of_tree(filter);
                // Filters of one preference are of one kind; those that follow each other share it, as they would if
                // somebody had written them with `tc`. But cls_bpf asks the last of them first.
                let group = (*parent, encoded.kind);
                if previous.is_some_and(|previous| previous != group || encoded.kind == "bpf") {
                    preference = preference.saturating_add(1);
                }
                previous = Some(group);
                let message = filter_message(index, *parent, preference, &encoded);
                netlink.change_raw(message, NLM_F_CREATE | NLM_F_EXCL, &action)
            }
        };
        made.map_err(|source| refused(step, source))?;
    }
    Ok(())
}

/// Removes the root qdisc, if somebody put one there.
fn take_root_away(netlink: &mut Netlink, index: u32) -> Result<(), NetlinkError> {
    match netlink.delete_root_qdisc(index) {
        Err(error) if error.refusal_code() != Some(libc::ENOENT) => Err(error),
        _ => Ok(()),
    }
}

/// Puts rules in front of the filters of a qdisc; they match nothing that flows and probes send.
///
/// # Errors
/// When the kernel refuses one; those before it stay.
pub fn install_rules(
    netlink: &mut Netlink,
    index: u32,
    parent: Handle,
    rules: &FilterRules,
) -> Result<(), InstallError> {
    // Where a match would go does not matter, and the class need not be there.
    let class = Handle::new(parent.major, u16::MAX);
    let action = format!("put {} rules in front of {parent} of interface {index}", rules.rules);
    for number in 0..rules.rules {
        let rule = filters::idle_rule(rules.classifier, number, class)
            .ok_or(InstallError::TooManyRules(rules.rules))?;
        let message = filter_message(index, parent, RULES_PREFERENCE, &rule);
        netlink.change_raw(message, NLM_F_CREATE | NLM_F_EXCL, &action).map_err(|source| {
            InstallError::Refused {
                step: format!("rule {} of {} at {parent}", number + 1, rules.rules),
                lacks: means_unknown(&source).then(|| rule.kind.to_owned()),
                source,
            }
        })?;
    }
    Ok(())
}

/// What each qdisc of an interface has counted, in the kernel's order.
///
/// # Errors
/// When the kernel refuses.
pub fn qdisc_counters(netlink: &mut Netlink, index: u32) -> Result<Vec<QdiscCounters>, NetlinkError> {
    let of_interface = |qdisc: crate::tc_overview::QdiscOverview| {
        (qdisc.interface == index).then(|| QdiscCounters {
            handle: qdisc.handle.unwrap_or(NOWHERE),
            parent: qdisc.parent.unwrap_or(NOWHERE),
            kind: qdisc.kind,
            bytes: qdisc.bytes,
            packets: qdisc.packets,
            drops: u64::from(qdisc.drops),
            overlimits: u64::from(qdisc.overlimits),
            requeues: u64::from(qdisc.requeues),
            queue_length: u64::from(qdisc.queue_length),
            backlog_bytes: u64::from(qdisc.backlog_bytes),
        })
    };
    Ok(netlink.all_qdiscs()?.into_iter().filter_map(of_interface).collect())
}

/// Those of some kinds of qdiscs that this kernel does not have, modules that it could load included. The interface
/// should be one that nobody uses: its root qdisc is taken away.
///
/// # Errors
/// When the kernel refuses otherwise than by not knowing a kind or its options.
pub fn missing_kinds<'k>(
    netlink: &mut Netlink,
    index: u32,
    kinds: impl IntoIterator<Item = &'k str>,
) -> Result<BTreeSet<String>, NetlinkError> {
    let mut missing = BTreeSet::new();
    for kind in kinds {
        take_root_away(netlink, index)?;
        let node = Node {
            parent: Handle::ROOT,
            handle: Handle::new(1, 0),
            kind: kind.to_owned(),
            settings: Vec::new(),
        };
        // Without options: a kind that wants some says so, and is there.
        let message = node_message(RTM_NEWQDISC, index, &node, None);
        let action = format!("try the qdisc {kind} on interface {index}");
        match netlink.change_raw(message, NLM_F_CREATE | NLM_F_REPLACE, &action) {
            Err(error) if means_unknown(&error) => drop(missing.insert(kind.to_owned())),
            Err(error @ (NetlinkError::Socket { .. } | NetlinkError::Answer { .. })) => return Err(error),
            Err(error) if matches!(error.refusal_code(), Some(libc::EPERM | libc::ENODEV)) => {
                return Err(error);
            }
            _ => {}
        }
    }
    take_root_away(netlink, index)?;
    Ok(missing)
}

/// The classifiers that this kernel does not have, modules that it could load included. The interface should be one that
/// nobody uses: its `clsact` is taken away.
///
/// # Errors
/// When the kernel refuses otherwise than by not knowing a classifier, or has no `clsact`.
pub fn missing_classifiers(netlink: &mut Netlink, index: u32) -> Result<BTreeSet<Classifier>, NetlinkError> {
    let node =
        Node { parent: CLSACT_PARENT, handle: CLSACT, kind: "clsact".to_owned(), settings: Vec::new() };
    let message = node_message(RTM_NEWQDISC, index, &node, None);
    netlink.change_raw(message, NLM_F_CREATE, &format!("put clsact on interface {index}"))?;
    let mut missing = BTreeSet::new();
    let mut failed = None;
    for classifier in [Classifier::U32, Classifier::Flower, Classifier::Bpf] {
        let parent = crate::tc_state::CLSACT_EGRESS;
        let Some(rule) = filters::idle_rule(classifier, 0, parent) else { continue };
        // Each has a preference of its own: those of one preference are of one kind.
        let preference = RULES_PREFERENCE + classifier as u16;
        let message = filter_message(index, parent, preference, &rule);
        let action = format!("try the classifier {} on interface {index}", rule.kind);
        match netlink.change_raw(message, NLM_F_CREATE | NLM_F_EXCL, &action) {
            Err(error) if means_unknown(&error) => drop(missing.insert(classifier)),
            Err(error) => failed = failed.or(Some(error)),
            Ok(()) => {}
        }
    }
    let gone = request(RTM_DELQDISC, index, CLSACT, CLSACT_PARENT);
    netlink.change_raw(gone, 0, &format!("take clsact from interface {index}"))?;
    failed.map_or(Ok(missing), Err)
}

#[cfg(test)]
mod tests;
