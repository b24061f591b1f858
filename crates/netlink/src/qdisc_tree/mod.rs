//! Installs trees of qdiscs, classes and filters ([`QdiscTree`]) over netlink, and reads their counters.

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

/// Preference of a tree's first own filter. Rules that precede the filter have a lower preference.
const OWN_PREFERENCE: u16 = 0x100;
/// Preference of rules that precede a tree's own filters.
const RULES_PREFERENCE: u16 = 1;
/// Handle of `clsact`: `TC_H_MAKE(TC_H_CLSACT, 0)`.
const CLSACT: Handle = Handle::new(0xffff, 0);
/// Parent of `clsact`: `TC_H_CLSACT`.
const CLSACT_PARENT: Handle = Handle::new(0xffff, 0xfff1);

#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error("{source}{}", lacks_in_words(.lacks))]
    Refused {
        /// The step as a `tc` command.
        step: String,
        /// The kind that the kernel lacks, if the lack is the reason.
        lacks: Option<String>,
        source: NetlinkError,
    },
    /// There are more rules than ports for rules.
    #[error("{0} filter rules are too many; use at most {most}", most = filters::MOST_IDLE_RULES)]
    TooManyRules(u32),
}

fn lacks_in_words(lacks: &Option<String>) -> String {
    lacks.as_ref().map(|kind| format!("; this kernel has no {kind}")).unwrap_or_default()
}

impl InstallError {
    #[must_use]
    pub fn lacks(&self) -> Option<&str> {
        match self {
            Self::Refused { lacks, .. } => lacks.as_deref(),
            Self::TooManyRules(_) => None,
        }
    }

    #[must_use]
    pub fn step(&self) -> Option<&str> {
        match self {
            Self::Refused { step, .. } => Some(step),
            Self::TooManyRules(_) => None,
        }
    }
}

/// Counters of a qdisc since its creation, and its current backlog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QdiscCounters {
    /// 0:0 for a qdisc that the kernel installed by default.
    pub handle: Handle,
    pub parent: Handle,
    pub kind: String,
    /// Bytes sent, including the headers of all segments of GSO packets.
    pub bytes: u64,
    /// Packets sent; a GSO packet counts as the number of its segments.
    pub packets: u64,
    pub drops: u64,
    /// `overlimits` of tc(8). In a shaper, how often a rate limit delayed packets; other kinds count other
    /// events.
    pub overlimits: u64,
    /// How often the device refused a packet, which the qdisc then queued again.
    pub requeues: u64,
    pub queue_length: u64,
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

/// Returns whether the error means that the kernel lacks the kind (`tc_modify_qdisc`,
/// `net/sched/sch_api.c`; `tcf_proto_lookup_ops`, `net/sched/cls_api.c`). Other errors, such as a
/// missing parent, have the same errno.
fn means_unknown(error: &NetlinkError) -> bool {
    let NetlinkError::Refused { source, kernel_says, .. } = error else { return false };
    source.raw_os_error() == Some(libc::ENOENT)
        && kernel_says.as_ref().is_none_or(|words| {
            words.contains("qdisc kind is unknown") || words.contains("classifier not found")
        })
}

fn needed(step: &Step) -> Option<&str> {
    match step {
        Step::Qdisc(node) => Some(&node.kind),
        Step::Class(_) => None,
        Step::Filter { filter, .. } => Some(filters::of_tree(filter).kind),
    }
}

/// Installs a tree on an interface, after deleting its root qdisc.
///
/// # Errors
/// Returns an error if the kernel refuses a step. Earlier steps remain until the root is deleted.
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
                // Filters with the same preference must be of one kind. Consecutive filters share a
                // preference, as with `tc`. But cls_bpf runs the last filter of a preference first, so
                // each filter of cls_bpf has its own preference.
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

/// Deletes the root qdisc, unless it is the kernel's default.
fn take_root_away(netlink: &mut Netlink, index: u32) -> Result<(), NetlinkError> {
    match netlink.delete_root_qdisc(index) {
        Err(error) if error.refusal_code() != Some(libc::ENOENT) => Err(error),
        _ => Ok(()),
    }
}

/// Inserts rules before the filters of a qdisc. The rules match no packet of the flows and probes.
///
/// # Errors
/// Returns an error if there are too many rules, or the kernel refuses a rule. Earlier rules remain.
pub fn install_rules(
    netlink: &mut Netlink,
    index: u32,
    parent: Handle,
    rules: &FilterRules,
) -> Result<(), InstallError> {
    // The rules never match, so the class does not have to exist.
    let class = Handle::new(parent.major, u16::MAX);
    let action =
        format!("add {} rules in front of the filters at {parent} of interface {index}", rules.rules);
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

/// Returns the counters of each qdisc of an interface, in the kernel's order.
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

/// Returns those of `kinds` that the kernel lacks, even as a module. The interface must not be in use,
/// because its root qdisc is deleted.
///
/// # Errors
/// Returns an error if the exchange with the kernel fails, or an answer does not show whether the kernel has
/// the kind.
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
        // Send no options: a kind that requires options returns another error, so it exists.
        let message = node_message(RTM_NEWQDISC, index, &node, None);
        let action = format!("add the qdisc {kind} to interface {index}, to test whether the kernel has it");
        if !shows_kind(netlink.change_raw(message, NLM_F_CREATE | NLM_F_REPLACE, &action))? {
            missing.insert(kind.to_owned());
        }
    }
    take_root_away(netlink, index)?;
    Ok(missing)
}

/// Returns whether the answer to a new qdisc without options shows that the kernel has its kind.
///
/// After `qdisc_create` (`net/sched/sch_api.c`) found the kind, the kind's `init` returns `EINVAL` for
/// missing options and `EOPNOTSUPP` for an unsuitable device. Other errors, such as `ENOMEM` or `EBUSY`, can
/// also come before the search for the kind.
fn shows_kind(answer: Result<(), NetlinkError>) -> Result<bool, NetlinkError> {
    match answer {
        Ok(()) => Ok(true),
        Err(error) if means_unknown(&error) => Ok(false),
        Err(error) if matches!(error.refusal_code(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Returns the classifiers that the kernel lacks, even as a module. The interface must not be in use, because
/// its `clsact` is deleted.
///
/// # Errors
/// Returns an error if the kernel refuses for any reason except an unknown classifier, or lacks `clsact`.
pub fn missing_classifiers(netlink: &mut Netlink, index: u32) -> Result<BTreeSet<Classifier>, NetlinkError> {
    let node =
        Node { parent: CLSACT_PARENT, handle: CLSACT, kind: "clsact".to_owned(), settings: Vec::new() };
    let message = node_message(RTM_NEWQDISC, index, &node, None);
    netlink.change_raw(message, NLM_F_CREATE, &format!("add clsact to interface {index}"))?;
    let mut missing = BTreeSet::new();
    let mut failed = None;
    for classifier in [Classifier::U32, Classifier::Flower, Classifier::Bpf] {
        let parent = crate::tc_state::CLSACT_EGRESS;
        let Some(rule) = filters::idle_rule(classifier, 0, parent) else { continue };
        // Use a separate preference for each classifier, because filters with the same preference must
        // be of one kind.
        let preference = RULES_PREFERENCE + classifier as u16;
        let message = filter_message(index, parent, preference, &rule);
        let action = format!(
            "add a filter of the kind {} to interface {index}, to test whether the kernel has it",
            rule.kind
        );
        match netlink.change_raw(message, NLM_F_CREATE | NLM_F_EXCL, &action) {
            Err(error) if means_unknown(&error) => drop(missing.insert(classifier)),
            Err(error) => failed = failed.or(Some(error)),
            Ok(()) => {}
        }
    }
    let gone = request(RTM_DELQDISC, index, CLSACT, CLSACT_PARENT);
    netlink.change_raw(gone, 0, &format!("remove clsact from interface {index}"))?;
    failed.map_or(Ok(missing), Err)
}

#[cfg(test)]
mod tests;
