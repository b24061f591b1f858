//! Queue weights of a device through the kernel's net-shaper interface (Linux 6.13 and later;
//! `Documentation/netlink/specs/net_shaper.yaml`, `include/uapi/linux/net_shaper.h`).
//!
//! Every transmit queue may have a shaper. The shaper's weight applies to a round robin among the
//! queues of the same priority. A queue without a shaper has no rate limit, and is part of the round
//! robin.
//!
//! No hardware driver in Linux 7.2 supports weights: `iavf` supports rates (`bw-min`, `bw-max`), and
//! `mana` supports `bw-max`. Only netdevsim, which has no hardware, supports all parameters.
//!
//! To restore a device, read [`Shapers::queues`] before the first change. Then pass each queue's
//! shaper, or `None`, to [`Shapers::restore_queue`].

use std::collections::BTreeMap;

use netlink_packet_core::DefaultNla;

use crate::generic::{Attributes, Family, GenericNetlink};
use crate::tc::{attributes, words};
use crate::transport::NetlinkError;

const FAMILY: &str = "net-shaper";

const NET_SHAPER_CMD_GET: u8 = 1;
const NET_SHAPER_CMD_SET: u8 = 2;
const NET_SHAPER_CMD_DELETE: u8 = 3;
const NET_SHAPER_CMD_CAP_GET: u8 = 5;

const NET_SHAPER_A_HANDLE: u16 = 1;
const NET_SHAPER_A_METRIC: u16 = 2;
const NET_SHAPER_A_BW_MIN: u16 = 3;
const NET_SHAPER_A_BW_MAX: u16 = 4;
const NET_SHAPER_A_BURST: u16 = 5;
const NET_SHAPER_A_PRIORITY: u16 = 6;
const NET_SHAPER_A_WEIGHT: u16 = 7;
const NET_SHAPER_A_IFINDEX: u16 = 8;

const NET_SHAPER_A_HANDLE_SCOPE: u16 = 1;
const NET_SHAPER_A_HANDLE_ID: u16 = 2;
const NET_SHAPER_SCOPE_QUEUE: u32 = 2;

const NET_SHAPER_A_CAPS_IFINDEX: u16 = 1;
const NET_SHAPER_A_CAPS_SCOPE: u16 = 2;
const NET_SHAPER_A_CAPS_SUPPORT_BW_MAX: u16 = 7;
const NET_SHAPER_A_CAPS_SUPPORT_PRIORITY: u16 = 9;
const NET_SHAPER_A_CAPS_SUPPORT_WEIGHT: u16 = 10;

const NLA_F_NESTED: u16 = 0x8000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCapabilities {
    /// Whether the device supports a weighted round robin among queues.
    pub weight: bool,
    pub priority: bool,
    pub bandwidth_max: bool,
}

/// The shaper of a transmit queue. Fields that are not set are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shaper {
    pub weight: u32,
    pub priority: u32,
    /// Unit of the three fields below: 0 bit/s, 1 packets/s (`enum net_shaper_metric`).
    pub metric: u32,
    pub bandwidth_min: u64,
    pub bandwidth_max: u64,
    pub burst: u64,
}

impl Shaper {
    fn from_answer(answer: &Attributes) -> Self {
        Self {
            weight: answer.u32(NET_SHAPER_A_WEIGHT).unwrap_or(0),
            priority: answer.u32(NET_SHAPER_A_PRIORITY).unwrap_or(0),
            metric: answer.u32(NET_SHAPER_A_METRIC).unwrap_or(0),
            bandwidth_min: answer.uint(NET_SHAPER_A_BW_MIN).unwrap_or(0),
            bandwidth_max: answer.uint(NET_SHAPER_A_BW_MAX).unwrap_or(0),
            burst: answer.uint(NET_SHAPER_A_BURST).unwrap_or(0),
        }
    }

    /// Returns the fields that are set, as attributes. The weight is always sent, because 0 removes an
    /// earlier weight. A device may refuse any other attribute that it does not support, even with the
    /// value 0.
    fn attributes(&self) -> Vec<DefaultNla> {
        let mut list = vec![DefaultNla::new(NET_SHAPER_A_WEIGHT, words(&[self.weight]))];
        if self.priority != 0 {
            list.push(DefaultNla::new(NET_SHAPER_A_PRIORITY, words(&[self.priority])));
        }
        let rates = [
            (NET_SHAPER_A_BW_MIN, self.bandwidth_min),
            (NET_SHAPER_A_BW_MAX, self.bandwidth_max),
            (NET_SHAPER_A_BURST, self.burst),
        ];
        if rates.iter().any(|(_, value)| *value != 0) {
            list.push(DefaultNla::new(NET_SHAPER_A_METRIC, words(&[self.metric])));
        }
        for (kind, value) in rates.into_iter().filter(|(_, value)| *value != 0) {
            list.push(DefaultNla::new(kind, value.to_ne_bytes().to_vec()));
        }
        list
    }
}

/// Reads and sets the shapers of devices, in the network namespace in which it was opened.
pub struct Shapers {
    netlink: GenericNetlink,
    family: Family,
}

impl Shapers {
    /// Opens the net-shaper interface, or returns `None` if the kernel lacks it.
    pub fn open() -> Result<Option<Self>, NetlinkError> {
        let mut netlink = GenericNetlink::open()?;
        Ok(netlink.family(FAMILY)?.map(|family| Self { netlink, family }))
    }

    /// Returns the queue capabilities of an interface. All capabilities are false if the driver has no
    /// shapers.
    pub fn queue_capabilities(&mut self, index: u32) -> Result<QueueCapabilities, NetlinkError> {
        let action = format!("report the shapers of the queues of interface {index}");
        let request = vec![
            DefaultNla::new(NET_SHAPER_A_CAPS_IFINDEX, words(&[index])),
            DefaultNla::new(NET_SHAPER_A_CAPS_SCOPE, words(&[NET_SHAPER_SCOPE_QUEUE])),
        ];
        match self.netlink.request(self.family, NET_SHAPER_CMD_CAP_GET, request, &action) {
            Err(error) if error.refusal_code() == Some(libc::EOPNOTSUPP) => Ok(QueueCapabilities::default()),
            answers => {
                let answers = answers?;
                let has = |kind| answers.iter().any(|answer| answer.has(kind));
                Ok(QueueCapabilities {
                    weight: has(NET_SHAPER_A_CAPS_SUPPORT_WEIGHT),
                    priority: has(NET_SHAPER_A_CAPS_SUPPORT_PRIORITY),
                    bandwidth_max: has(NET_SHAPER_A_CAPS_SUPPORT_BW_MAX),
                })
            }
        }
    }

    /// Returns a queue's shaper, if any.
    ///
    /// # Errors
    /// Returns an error if the driver does not support shapers.
    pub fn queue(&mut self, index: u32, queue: u32) -> Result<Option<Shaper>, NetlinkError> {
        let action = format!("read the shaper of queue {queue} of interface {index}");
        match self.netlink.request(self.family, NET_SHAPER_CMD_GET, queue_handle(index, queue), &action) {
            Err(error) if error.refusal_code() == Some(libc::ENOENT) => Ok(None),
            answers => Ok(answers?.first().map(Shaper::from_answer)),
        }
    }

    /// Returns all shapers of queues, by queue.
    ///
    /// # Errors
    /// Returns an error if the driver does not support shapers.
    pub fn queues(&mut self, index: u32) -> Result<BTreeMap<u32, Shaper>, NetlinkError> {
        let action = format!("list the shapers of interface {index}");
        let request = vec![DefaultNla::new(NET_SHAPER_A_IFINDEX, words(&[index]))];
        let answers = self.netlink.dump(self.family, NET_SHAPER_CMD_GET, request, &action)?;
        Ok(answers
            .iter()
            .filter_map(|answer| Some((queue_of(answer)?, Shaper::from_answer(answer))))
            .collect())
    }

    /// Sets a queue's weight, and reads the weight back as a check. Keeps the other fields of the
    /// queue's shaper, and creates a missing shaper.
    ///
    /// # Errors
    /// Returns an error if the device supports no weights, the queue does not exist, or the weight that
    /// is read back differs.
    pub fn set_queue_weight(&mut self, index: u32, queue: u32, weight: u32) -> Result<(), NetlinkError> {
        let action = format!("set the weight of queue {queue} of interface {index} to {weight}");
        let mut request = queue_handle(index, queue);
        request.push(DefaultNla::new(NET_SHAPER_A_WEIGHT, words(&[weight])));
        self.netlink.request(self.family, NET_SHAPER_CMD_SET, request, &action)?;
        let found = self.queue(index, queue)?.unwrap_or_default().weight;
        if found == weight {
            Ok(())
        } else {
            Err(NetlinkError::NotInForce { action, found: format!("a weight of {found}") })
        }
    }

    /// Restores a queue's shaper, or removes the shaper if the queue had none before.
    pub fn restore_queue(
        &mut self,
        index: u32,
        queue: u32,
        shaper: Option<&Shaper>,
    ) -> Result<(), NetlinkError> {
        let mut request = queue_handle(index, queue);
        let Some(shaper) = shaper else {
            let action = format!("delete the shaper of queue {queue} of interface {index}");
            return match self.netlink.request(self.family, NET_SHAPER_CMD_DELETE, request, &action) {
                // Another program has already removed the shaper.
                Err(error) if error.refusal_code() == Some(libc::ENOENT) => Ok(()),
                answers => answers.map(drop),
            };
        };
        let action = format!("restore the shaper of queue {queue} of interface {index}");
        request.extend(shaper.attributes());
        self.netlink.request(self.family, NET_SHAPER_CMD_SET, request, &action).map(drop)
    }
}

fn queue_handle(index: u32, queue: u32) -> Vec<DefaultNla> {
    let handle = attributes(&[
        (NET_SHAPER_A_HANDLE_SCOPE, words(&[NET_SHAPER_SCOPE_QUEUE])),
        (NET_SHAPER_A_HANDLE_ID, words(&[queue])),
    ]);
    vec![
        DefaultNla::new(NET_SHAPER_A_IFINDEX, words(&[index])),
        DefaultNla::new(NET_SHAPER_A_HANDLE | NLA_F_NESTED, handle),
    ]
}

/// Returns the queue of a shaper, or `None` for the shaper of a group or device.
fn queue_of(answer: &Attributes) -> Option<u32> {
    let handle = answer.nested(NET_SHAPER_A_HANDLE)?;
    (handle.u32(NET_SHAPER_A_HANDLE_SCOPE)? == NET_SHAPER_SCOPE_QUEUE)
        .then(|| handle.u32(NET_SHAPER_A_HANDLE_ID))
        .flatten()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn emitted(list: &[DefaultNla]) -> Attributes {
        use netlink_packet_core::Emitable;
        let mut bytes = vec![0; list.buffer_len()];
        list.emit(&mut bytes);
        Attributes::parse(&bytes).unwrap()
    }

    #[test]
    fn a_shaper_survives_the_way_there_and_back() {
        let shaper =
            Shaper { weight: 3, priority: 1, metric: 1, bandwidth_max: 1 << 40, ..Shaper::default() };
        assert_eq!(Shaper::from_answer(&emitted(&shaper.attributes())), shaper);
    }

    #[test]
    fn what_a_shaper_lacks_is_not_named() {
        let sent = emitted(&Shaper::default().attributes());
        assert_eq!(sent.u32(NET_SHAPER_A_WEIGHT), Some(0));
        for kind in [NET_SHAPER_A_METRIC, NET_SHAPER_A_BW_MIN, NET_SHAPER_A_BURST, NET_SHAPER_A_PRIORITY] {
            assert!(!sent.has(kind), "{kind}");
        }
    }

    #[test]
    fn only_queues_have_a_queue() {
        let answer = emitted(&queue_handle(7, 5));
        assert_eq!((answer.u32(NET_SHAPER_A_IFINDEX), queue_of(&answer)), (Some(7), Some(5)));
        let node =
            attributes(&[(NET_SHAPER_A_HANDLE_SCOPE, words(&[3])), (NET_SHAPER_A_HANDLE_ID, words(&[5]))]);
        let answer = emitted(&[DefaultNla::new(NET_SHAPER_A_HANDLE | NLA_F_NESTED, node)]);
        assert_eq!(queue_of(&answer), None);
        assert_eq!(queue_of(&emitted(&[])), None);
    }
}
