//! The knobs of a variant with requests: the NIC, the distribution of flows over its receive queues, and the
//! messages.

use std::fmt;
use std::ops::{Range, RangeInclusive};

use super::knobs::{Clash, knob, knobs};
use super::sections::MTUS;
use super::toml_table::{Field, Located, Table};
use super::value::Spelling;
use super::{HostMachine, Link, MAX_QUEUES, ReceiveNic, ReceivePolicy, Scenario, Sets, Supplied};
use crate::units::{ByteSize, Nanoseconds};

const NICS: [Spelling<ReceiveNic>; 5] = [
    ("i82599", ReceiveNic::I82599),
    ("sfc9020", ReceiveNic::Sfc9020),
    ("ntuple", ReceiveNic::Ntuple),
    ("rss-only", ReceiveNic::RssOnly),
    ("xdp-cpumap", ReceiveNic::XdpCpumap),
];
const POLICIES: [Spelling<ReceivePolicy>; 3] = [
    ("none", ReceivePolicy::None),
    ("balance", ReceivePolicy::Balance),
    ("isolation", ReceivePolicy::Isolation),
];
/// Allowed sizes of `message`. Each message is one packet, so the MTU is the effective limit.
const MESSAGES: RangeInclusive<ByteSize> = ByteSize::from_bytes(1)..=ByteSize::from_kib(64);
/// Allowed times from the first packet of new flows until the NIC is configured for them.
const REACTIONS: RangeInclusive<Nanoseconds> = Nanoseconds::new(0)..=Nanoseconds::from_secs(3600);
/// Bytes of a packet besides the `message`, rounded up: the IPv4 and UDP headers (RFC 791, RFC 768) and
/// memcached's fields. memcached's fields are the UDP frame, the command, a key of 64 bytes (memaslap's
/// default), flags and lengths.
const HEADERS: u64 = 200;

/// Allowed sizes of a receive ring; the maximum is above that of large rings (`rx_max_pending` of mlx5 is
/// 8192).
const RINGS: RangeInclusive<u32> = 1..=65_536;
/// Default number of descriptors in a receive ring, as in ixgbe (`IXGBE_DEFAULT_RXD`,
/// drivers/net/ethernet/intel/ixgbe/ixgbe.h).
const RING: u32 = 512;

/// Returns the keyword of `value`. Without a keyword, returns the origin of `own`: the path of the user's
/// file, or the key of a text in the scenario.
pub(super) fn word<'w, T: PartialEq>(
    value: &T,
    words: &'w [Spelling<T>],
    own: Option<&'w Supplied>,
) -> &'w str {
    let known = words.iter().find(|(_, spelt)| spelt == value).map(|(word, _)| *word);
    known.or_else(|| own.map(|own| own.origin.as_str())).unwrap_or_default()
}

impl fmt::Display for ReceiveNic {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(word(self, &NICS, self.own()))
    }
}

impl fmt::Display for ReceivePolicy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(word(self, &POLICIES, self.own()))
    }
}

impl ReceivePolicy {
    /// Returns the user's own policy, or `None` for a built-in policy.
    #[must_use]
    pub fn own(&self) -> Option<&Supplied> {
        if let Self::Own(own) = self { Some(own) } else { None }
    }
}

/// Reads one of the keywords in `words`, the path of a file, or the text of a file.
pub(super) fn word_or_own<T: Clone>(
    field: &Field<'_>,
    words: &[Spelling<T>],
    own: fn(Supplied) -> T,
) -> Option<T> {
    let is_file = |text: &str| text.ends_with(".toml");
    // Only a text with a '=' can set a key, but the path of a `.toml` file may also contain a '='.
    let is_text = |text: &str| text.contains('\n') || (text.contains('=') && !is_file(text));
    let is_own = |text: &&str| is_text(text) || is_file(text) || text.contains('/');
    let Some(text) = field.text().filter(is_own) else { return field.one_of(words) };
    let is_text = is_text(text);
    Some(own(Supplied {
        origin: if is_text { field.path.clone() } else { text.to_owned() },
        text: is_text.then(|| text.to_owned()),
    }))
}

impl Scenario {
    /// Returns the user's files of all variants, each with the variant's name. The caller reads each
    /// file that has only a path.
    pub fn supplied(&mut self) -> impl Iterator<Item = (&str, &mut Supplied)> {
        self.variants.iter_mut().chain(&mut self.further_variants).flat_map(|variant| {
            let name = variant.name.as_str();
            let (receive, machine) = match &mut variant.sets {
                Sets::Receive(knobs) => (Some(knobs), None),
                Sets::Transfers(knobs) => (None, Some(&mut knobs.machine)),
                _ => (None, None),
            };
            let machine = machine.and_then(|machine| match machine {
                HostMachine::Own(own) => Some(own),
                _ => None,
            });
            let receive = receive.into_iter().flat_map(ReceiveKnobs::supplied);
            receive.chain(machine).map(move |supplied| (name, supplied))
        })
    }
}

impl ReceiveNic {
    /// Returns the user's own model, or `None` for a built-in model.
    #[must_use]
    pub fn own(&self) -> Option<&Supplied> {
        if let Self::Own(own) = self { Some(own) } else { None }
    }

    pub fn all() -> impl Iterator<Item = Self> {
        NICS.iter().map(|(_, nic)| nic.clone())
    }
}

impl ReceiveKnobs {
    fn supplied(&mut self) -> impl Iterator<Item = &mut Supplied> {
        let nic = if let ReceiveNic::Own(own) = &mut self.nic { Some(own) } else { None };
        let policy = if let ReceivePolicy::Own(own) = &mut self.policy { Some(own) } else { None };
        nic.into_iter().chain(policy)
    }
}

/// Appends the text of the user's file to `word`, so that records contain the complete text.
pub(super) fn with_text(word: &dyn fmt::Display, own: Option<&Supplied>) -> String {
    let text = own.and_then(|own| own.text.as_ref()).map(|text| format!(" = {text:?}"));
    format!("{word}{}", text.unwrap_or_default())
}

knobs! {
    #[derive(Clone, Debug, PartialEq, Eq)]
    struct ReceiveKnobs, ReceiveSettings;

    nic: ReceiveNic, "nic", |field| word_or_own(field, &NICS, ReceiveNic::Own), |nic| with_text(nic, nic.own());
    policy: ReceivePolicy, "policy", |field| word_or_own(field, &POLICIES, ReceivePolicy::Own),
        |policy| with_text(policy, policy.own());
    /// Number of exclusive queues for flows of high priority, with [`ReceivePolicy::Isolation`].
    isolated_queues: u32, "isolated-queues", |field| field.integer(1..=MAX_QUEUES), ToString::to_string;
    /// Size of an echo message's payload, or of a memcached value.
    message: ByteSize, "message", |field| field.quantity(MESSAGES, "1024B"), ToString::to_string;
    /// Capacity of a receive ring in packets.
    ring: u32, "ring" or RING, |field| field.integer(RINGS), ToString::to_string;
    /// Time from the first packet of new flows until the NIC is configured for them; during this time the
    /// NIC's hash places them.
    reaction: Nanoseconds, "reaction", |field| field.quantity(REACTIONS, "430ms"), ToString::to_string;
}

impl ReceiveSettings {
    /// Returns the first conflict within the knobs, or with `link`.
    pub(super) fn clash(&self, link: &Link) -> Option<Clash> {
        let knobs = self.knobs()?;
        if knobs.policy == ReceivePolicy::Isolation && knobs.isolated_queues >= link.queues {
            let queues = knobs.isolated_queues;
            return Some(Clash {
                knobs: &["isolated-queues"],
                problem: format!("{queues} queues for high priority, and the link has {}", link.queues),
                advice: "leave at least one queue for the other flows".to_owned(),
            });
        }
        let room = link.mtu.bytes().saturating_sub(HEADERS);
        (knobs.message.bytes() > room).then(|| {
            let needs = ByteSize::from_bytes(knobs.message.bytes().saturating_add(HEADERS));
            let raise = if MTUS.contains(&needs) { ", or raise link.mtu" } else { "" };
            Clash {
                knobs: &["message"],
                problem: format!("a message of {} does not fit into one packet", knobs.message),
                advice: format!("use at most {room}B{raise}"),
            }
        })
    }
}
