//! Sets up queueing disciplines and classes, and reads their statistics.
//!
//! Rates are bit/s here, but bytes per second in the kernel's structures. HTB's buffers are times in ticks of
//! 64 ns (`PSCHED_SHIFT` 6).

use netlink_packet_core::{DefaultNla, Emitable, NLM_F_CREATE, NLM_F_REPLACE, Nla, NlasIterator};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcOption, TcStats2};

pub use evenkeel_model::change::Handle;

use crate::transport::{Netlink, NetlinkError};

fn raw_handle(handle: Handle) -> TcHandle {
    TcHandle { major: handle.major, minor: handle.minor }
}

/// A range of consecutive transmit queues of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueRange {
    pub first: u16,
    pub count: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Qdisc {
    /// Hierarchical token bucket. Packets without a class go to the default class. If the default class
    /// is 0, these packets bypass the shaper.
    Htb {
        default_class: u16,
    },
    /// One child qdisc per transmit queue.
    Mq,
    Tbf {
        rate_bps: u64,
        /// Bucket size, bytes; at least the largest GSO packet.
        burst_bytes: u32,
        /// Queue limit, bytes.
        limit_bytes: u32,
    },
    Pfifo {
        limit_packets: u32,
    },
    /// Traffic classes of consecutive transmit queues, chosen by the packet's priority.
    Mqprio {
        /// Transmit queues of each traffic class; 1 to 16 classes.
        classes: Vec<QueueRange>,
        /// Traffic class, by the low 4 bits of `skb->priority`.
        class_of_priority: [u8; 16],
        /// Whether the device schedules the classes (`TC_MQPRIO_HW_OFFLOAD_TCS`). The device may then
        /// change the ranges.
        offload: bool,
    },
    /// A qdisc with the kernel's defaults, by name (`pfifo_fast`, `sfq`).
    Named(&'static str),
    /// A qdisc that a BPF program registered under this name (struct_ops of `Qdisc_ops`).
    Registered(String),
}

impl Qdisc {
    #[must_use]
    pub fn kind(&self) -> &str {
        match self {
            Self::Htb { .. } => "htb",
            Self::Mq => "mq",
            Self::Tbf { .. } => "tbf",
            Self::Pfifo { .. } => "pfifo",
            Self::Mqprio { .. } => "mqprio",
            Self::Named(kind) => kind,
            Self::Registered(name) => name,
        }
    }

    pub(crate) fn options(&self) -> Option<Vec<u8>> {
        match self {
            Self::Htb { default_class } => {
                // struct tc_htb_glob: version, rate2quantum, defcls, debug, direct_pkts
                let global = words(&[3, 10, u32::from(*default_class), 0, 0]);
                Some(attributes(&[(TCA_HTB_INIT, global)]))
            }
            Self::Tbf { rate_bps, burst_bytes, limit_bytes } => {
                // struct tc_tbf_qopt: rate, peakrate, limit, buffer, mtu
                let mut parameters = rate_specification(*rate_bps);
                parameters.extend(rate_specification(0));
                parameters.extend(words(&[*limit_bytes, ticks(*burst_bytes, *rate_bps), 0]));
                Some(attributes(&[
                    (TCA_TBF_PARMS, parameters),
                    (TCA_TBF_RATE64, (rate_bps / 8).to_ne_bytes().to_vec()),
                    (TCA_TBF_BURST, words(&[*burst_bytes])),
                ]))
            }
            Self::Pfifo { limit_packets } => Some(words(&[*limit_packets])),
            Self::Mqprio { classes, class_of_priority, offload } => {
                Some(mqprio_options(classes, class_of_priority, *offload))
            }
            Self::Mq | Self::Named(_) | Self::Registered(_) => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HtbClass {
    /// Guaranteed rate, bit/s.
    pub rate_bps: u64,
    /// Maximum rate with borrowing, bit/s.
    pub ceil_bps: u64,
    /// Bucket size for both rates, bytes.
    pub burst_bytes: u32,
    /// Weight in the deficit round robin among borrowing classes, bytes per round. A class sends at least
    /// one packet per round, so a quantum below the packet's length has no effect.
    pub quantum_bytes: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Bytes sent, including the headers of all segments of GSO packets.
    pub bytes: u64,
    /// Packets sent; a GSO packet counts as the number of its segments.
    pub packets: u64,
    pub drops: u64,
    pub queue_length: u64,
    pub backlog_bytes: u64,
}

const TCA_OPTIONS: u16 = 2;
pub(crate) const TCA_HTB_PARMS: u16 = 1;
pub(crate) const TCA_HTB_INIT: u16 = 2;
pub(crate) const TCA_HTB_RATE64: u16 = 6;
pub(crate) const TCA_HTB_CEIL64: u16 = 7;
pub(crate) const TCA_TBF_PARMS: u16 = 1;
pub(crate) const TCA_TBF_RATE64: u16 = 4;
pub(crate) const TCA_TBF_BURST: u16 = 6;
/// `TC_LINKLAYER_ETHERNET`: the kernel computes the rates and needs no rate table.
const LINKLAYER_ETHERNET: u8 = 1;
const TICK_NS: u64 = 64;

pub(crate) fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

pub(crate) fn attributes(list: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let list: Vec<DefaultNla> =
        list.iter().map(|(kind, value)| DefaultNla::new(*kind, value.clone())).collect();
    let mut bytes = vec![0; list.as_slice().buffer_len()];
    list.as_slice().emit(&mut bytes);
    bytes
}

/// Encodes `struct tc_mqprio_qopt`: num_tc, prio_tc_map, hw, count, offset. More than 16 classes do not
/// fit, and the kernel refuses such a number.
fn mqprio_options(classes: &[QueueRange], class_of_priority: &[u8; 16], offload: bool) -> Vec<u8> {
    const MOST: usize = 16;
    let mut bytes = vec![u8::try_from(classes.len()).unwrap_or(u8::MAX)];
    bytes.extend(class_of_priority);
    bytes.push(u8::from(offload));
    let padded = |field: fn(&QueueRange) -> u16| {
        let values = classes.iter().map(field).chain(std::iter::repeat(0)).take(MOST);
        values.flat_map(u16::to_ne_bytes).collect::<Vec<u8>>()
    };
    bytes.extend(padded(|range| range.count));
    bytes.extend(padded(|range| range.first));
    bytes
}

/// Encodes `struct tc_ratespec`: cell_log, linklayer, overhead, cell_align, mpu, rate in bytes per second.
pub(crate) fn rate_specification(rate_bps: u64) -> Vec<u8> {
    let mut bytes = vec![0, LINKLAYER_ETHERNET, 0, 0, 0, 0, 0, 0];
    bytes.extend(u32::try_from(rate_bps / 8).unwrap_or(u32::MAX).to_ne_bytes());
    bytes
}

/// Returns the time to send `bytes` at a rate, in the kernel's ticks.
pub(crate) fn ticks(bytes: u32, rate_bps: u64) -> u32 {
    let nanoseconds = u128::from(bytes) * 8_000_000_000 / u128::from(rate_bps.max(1));
    u32::try_from(nanoseconds / u128::from(TICK_NS)).unwrap_or(u32::MAX)
}

fn message(index: u32, parent: Handle, handle: Handle, kind: &str, options: Option<Vec<u8>>) -> TcMessage {
    let mut message = TcMessage::default();
    message.header.index = index.cast_signed();
    message.header.parent = raw_handle(parent);
    message.header.handle = raw_handle(handle);
    message.attributes.push(TcAttribute::Kind(kind.to_owned()));
    if let Some(options) = options {
        message.attributes.push(TcAttribute::Other(DefaultNla::new(TCA_OPTIONS, options)));
    }
    message
}

impl Netlink {
    /// Installs a qdisc in place of the current qdisc.
    ///
    /// # Errors
    /// `ENOENT` means that the kernel lacks this kind, or that the parent does not exist.
    pub fn replace_qdisc(
        &mut self,
        index: u32,
        parent: Handle,
        handle: Handle,
        qdisc: &Qdisc,
    ) -> Result<(), NetlinkError> {
        let message = message(index, parent, handle, qdisc.kind(), qdisc.options());
        let action = format!("put the qdisc {} at {parent} of interface {index}", qdisc.kind());
        self.change(RouteNetlinkMessage::NewQueueDiscipline(message), NLM_F_CREATE | NLM_F_REPLACE, &action)
    }

    /// Deletes a qdisc with its children. In place of a root qdisc, the kernel then installs its default.
    ///
    /// # Errors
    /// `ENOENT` means that the parent has no qdisc, or only the kernel's default.
    pub fn delete_qdisc(&mut self, index: u32, parent: Handle) -> Result<(), NetlinkError> {
        let mut message = TcMessage::default();
        message.header.index = index.cast_signed();
        message.header.parent = raw_handle(parent);
        let action = format!("delete the qdisc at {parent} of interface {index}");
        self.change(RouteNetlinkMessage::DelQueueDiscipline(message), 0, &action)
    }

    /// Creates an HTB class, or changes an existing class without deleting it.
    pub fn replace_htb_class(
        &mut self,
        index: u32,
        parent: Handle,
        handle: Handle,
        class: &HtbClass,
    ) -> Result<(), NetlinkError> {
        self.set_htb_class(index, parent, handle, class, NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Changes an HTB class.
    ///
    /// # Errors
    /// `ENOENT` means that the class does not exist.
    pub fn change_htb_class(
        &mut self,
        index: u32,
        parent: Handle,
        handle: Handle,
        class: &HtbClass,
    ) -> Result<(), NetlinkError> {
        // Without NLM_F_CREATE, the kernel creates no class (`tc_ctl_tclass`, net/sched/sch_api.c).
        self.set_htb_class(index, parent, handle, class, 0)
    }

    fn set_htb_class(
        &mut self,
        index: u32,
        parent: Handle,
        handle: Handle,
        class: &HtbClass,
        flags: u16,
    ) -> Result<(), NetlinkError> {
        // struct tc_htb_opt: rate, ceil, buffer, cbuffer, quantum, level, prio
        let mut parameters = rate_specification(class.rate_bps);
        parameters.extend(rate_specification(class.ceil_bps));
        parameters.extend(words(&[
            ticks(class.burst_bytes, class.rate_bps),
            ticks(class.burst_bytes, class.ceil_bps),
            class.quantum_bytes,
            0,
            0,
        ]));
        let options = attributes(&[
            (TCA_HTB_PARMS, parameters),
            (TCA_HTB_RATE64, (class.rate_bps / 8).to_ne_bytes().to_vec()),
            (TCA_HTB_CEIL64, (class.ceil_bps / 8).to_ne_bytes().to_vec()),
        ]);
        let message = message(index, parent, handle, "htb", Some(options));
        let action = format!("set the HTB class {handle} of interface {index}");
        self.change(RouteNetlinkMessage::NewTrafficClass(message), flags, &action)
    }

    /// Returns the quantum of each HTB class of an interface, bytes, by handle.
    pub fn htb_quanta(&mut self, index: u32) -> Result<Vec<(Handle, u32)>, NetlinkError> {
        let mut request = TcMessage::default();
        request.header.index = index.cast_signed();
        let action = format!("list the classes of interface {index}");
        let messages = self.dump(RouteNetlinkMessage::GetTrafficClass(request), &action)?;
        Ok(messages
            .into_iter()
            .filter_map(|message| match message {
                RouteNetlinkMessage::NewTrafficClass(class) if class.header.index == index.cast_signed() => {
                    let handle = class.header.handle;
                    htb_quantum(&class).map(|quantum| (Handle::new(handle.major, handle.minor), quantum))
                }
                _ => None,
            })
            .collect())
    }

    /// Returns the counters of an interface's classes, by handle.
    pub fn class_statistics(&mut self, index: u32) -> Result<Vec<(Handle, Statistics)>, NetlinkError> {
        let mut request = TcMessage::default();
        request.header.index = index.cast_signed();
        let action = format!("list the classes of interface {index}");
        Ok(statistics(self.dump(RouteNetlinkMessage::GetTrafficClass(request), &action)?, index, |header| {
            header.handle
        }))
    }

    /// Returns the bytes queued in a qdisc. The bytes of the root include all its descendants.
    pub fn qdisc_backlog(&mut self, index: u32, place: Handle) -> Result<u64, NetlinkError> {
        let mut request = TcMessage::default();
        request.header.index = index.cast_signed();
        request.header.parent = raw_handle(place);
        let action = format!("report the backlog of the qdisc at {place} of interface {index}");
        let answers = self.get_echoed(RouteNetlinkMessage::GetQueueDiscipline(request), &action)?;
        match statistics(answers, index, |header| header.parent).first() {
            Some((_, statistics)) => Ok(statistics.backlog_bytes),
            None => Err(NetlinkError::Answer { action, reason: "it has no statistics".to_owned() }),
        }
    }

    /// Returns the counters of an interface's qdiscs, by parent.
    pub fn qdisc_statistics(&mut self, index: u32) -> Result<Vec<(Handle, Statistics)>, NetlinkError> {
        let mut request = TcMessage::default();
        request.header.index = index.cast_signed();
        let action = format!("list the qdiscs of interface {index}");
        Ok(statistics(
            self.dump(RouteNetlinkMessage::GetQueueDiscipline(request), &action)?,
            index,
            |header| header.parent,
        ))
    }
}

/// Returns the quantum in a class's `struct tc_htb_opt`, which follows two `struct tc_ratespec` and two
/// buffers; `None` for a class of another qdisc.
fn htb_quantum(class: &TcMessage) -> Option<u32> {
    let is_htb = |attribute: &TcAttribute| matches!(attribute, TcAttribute::Kind(kind) if kind == "htb");
    if !class.attributes.iter().any(is_htb) {
        return None;
    }
    class.attributes.iter().find_map(|attribute| {
        let TcAttribute::Options(options) = attribute else { return None };
        options.iter().find_map(|option| {
            // The library does not support this kind, so the options are raw.
            let TcOption::Other(options) = option else { return None };
            let mut bytes = vec![0; options.value_len()];
            options.emit_value(&mut bytes);
            htb_quantum_of_options(&bytes)
        })
    })
}

fn htb_quantum_of_options(options: &[u8]) -> Option<u32> {
    const QUANTUM: std::ops::Range<usize> = 32..36;
    NlasIterator::new(options).map_while(Result::ok).find_map(|option| {
        let quantum = option.value().get(QUANTUM).filter(|_| option.kind() == TCA_HTB_PARMS)?;
        Some(u32::from_ne_bytes(quantum.try_into().ok()?))
    })
}

fn statistics(
    messages: Vec<RouteNetlinkMessage>,
    index: u32,
    key: impl Fn(&netlink_packet_route::tc::TcHeader) -> TcHandle,
) -> Vec<(Handle, Statistics)> {
    messages
        .into_iter()
        .filter_map(|message| match message {
            RouteNetlinkMessage::NewTrafficClass(message)
            | RouteNetlinkMessage::NewQueueDiscipline(message) => Some(message),
            _ => None,
        })
        .filter(|message| message.header.index == index.cast_signed())
        .map(|message| {
            let mut statistics = Statistics::default();
            for attribute in &message.attributes {
                let TcAttribute::Stats2(parts) = attribute else { continue };
                for part in parts {
                    match part {
                        TcStats2::Basic(basic) => {
                            statistics.bytes = basic.bytes;
                            statistics.packets = u64::from(basic.packets);
                        }
                        TcStats2::Queue(queue) => {
                            statistics.drops = u64::from(queue.drops);
                            statistics.queue_length = u64::from(queue.qlen);
                            statistics.backlog_bytes = u64::from(queue.backlog);
                        }
                        _ => {}
                    }
                }
            }
            let handle = key(&message.header);
            (Handle::new(handle.major, handle.minor), statistics)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn class_ids_are_the_kernels() {
        assert_eq!(Handle::new(1, 0x10).class_id(), 0x1_0010);
        assert_eq!(Handle::new(1, 0x1f).to_string(), "1:1f");
        assert_eq!(Handle::ROOT.to_string(), "root");
    }

    #[test]
    fn ticks_are_64_ns() {
        // 1,000,000 bytes at 8 Gbit/s take 1 ms.
        assert_eq!(ticks(1_000_000, 8_000_000_000), 15_625);
        assert_eq!(ticks(u32::MAX, 1), u32::MAX);
    }

    #[test]
    fn rates_beyond_32_bits_saturate_the_short_field() {
        assert_eq!(&rate_specification(100_000_000_000)[8..], &u32::MAX.to_ne_bytes());
        assert_eq!(&rate_specification(8_000)[8..], &1000_u32.to_ne_bytes());
    }

    #[test]
    fn the_quantum_is_found_behind_rates_and_buffers() {
        let parameters: Vec<u8> = words(&[0, 0, 1, 0, 0, 1, 7, 7, 68_572, 0, 0]);
        let options = attributes(&[(TCA_HTB_RATE64, vec![0; 8]), (TCA_HTB_PARMS, parameters)]);
        assert_eq!(htb_quantum_of_options(&options), Some(68_572));
        for length in 0..options.len() {
            assert_eq!(htb_quantum_of_options(&options[..length]), None);
        }
    }

    #[test]
    fn mqprio_options_are_the_kernels_structure() {
        let classes = vec![QueueRange { first: 0, count: 3 }, QueueRange { first: 3, count: 1 }];
        let qdisc = Qdisc::Mqprio { classes, class_of_priority: [1; 16], offload: true };
        let bytes = qdisc.options().unwrap();
        assert_eq!(bytes.len(), 82, "sizeof(struct tc_mqprio_qopt)");
        assert_eq!((bytes[0], &bytes[1..17], bytes[17]), (2, &[1_u8; 16][..], 1));
        let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        assert_eq!((half(18), half(20), half(22)), (3, 1, 0));
        assert_eq!((half(50), half(52), half(54)), (0, 3, 0));
    }

    #[test]
    fn fifo_options_are_bare() {
        assert_eq!(Qdisc::Pfifo { limit_packets: 5 }.options().unwrap(), 5_u32.to_ne_bytes());
        assert_eq!(Qdisc::Mq.options(), None);
    }
}
