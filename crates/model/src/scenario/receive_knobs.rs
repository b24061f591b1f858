//! The knobs of a variant with requests: how flows get their receive queues.

use std::fmt;
use std::ops::RangeInclusive;

use super::cursor::{Field, Located, Table};
use super::knobs::knob;
use super::value::Spelling;
use super::{Link, MAX_QUEUES, ReceiveKnobs, ReceiveNic, ReceivePolicy, Scenario, Supplied};
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
/// Payloads of messages: each is one packet, so the MTU is the real limit.
const MESSAGES: RangeInclusive<ByteSize> = ByteSize::from_bytes(1)..=ByteSize::from_kib(64);
/// Delays from new flows to a new configuration.
const REACTIONS: RangeInclusive<Nanoseconds> = Nanoseconds::new(0)..=Nanoseconds::from_secs(3600);
/// Headers of IPv4 and UDP (RFC 791, RFC 768), and of memcached's request and response around a value: the frame of
/// UDP, the command, a key of 64 bytes (memaslap's default), flags and lengths, rounded up.
const HEADERS: u64 = 200;

/// Capacity of a receive ring: up to more than the largest ones (`rx_max_pending` of mlx5 is 8192).
const RINGS: RangeInclusive<u32> = 1..=65_536;
/// Default descriptors of a receive ring, as in ixgbe (`IXGBE_DEFAULT_RXD`,
/// drivers/net/ethernet/intel/ixgbe/ixgbe.h).
const RING: u32 = 512;

/// The file's spelling of an enumeration's value; the name of the user's own.
fn word<'w, T: PartialEq>(value: &T, words: &'w [Spelling<T>], own: Option<&'w Supplied>) -> &'w str {
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
    /// The user's policy, if it is one.
    #[must_use]
    pub fn own(&self) -> Option<&Supplied> {
        if let Self::Own(own) = self { Some(own) } else { None }
    }
}

/// One of some words; else a path to a file, or a multi-line text.
fn word_or_own<T: Clone>(field: &Field<'_>, words: &[Spelling<T>], own: fn(Supplied) -> T) -> Option<T> {
    let is_own = |text: &&str| text.contains(['/', '\n']) || text.ends_with(".toml");
    let Some(text) = field.text().filter(is_own) else { return field.one_of(words) };
    let is_text = text.contains('\n');
    Some(own(Supplied {
        origin: if is_text { field.path.clone() } else { text.to_owned() },
        text: is_text.then(|| text.to_owned()),
    }))
}

impl Scenario {
    /// The files of its variants, each with the variant's name. The caller reads those that have only a path.
    pub fn supplied(&mut self) -> impl Iterator<Item = (&str, &mut Supplied)> {
        self.variants.iter_mut().chain(&mut self.further_variants).flat_map(|variant| {
            let (name, knobs) = (variant.name.as_str(), variant.receive.as_mut());
            knobs.into_iter().flat_map(ReceiveKnobs::supplied).map(move |supplied| (name, supplied))
        })
    }
}

impl ReceiveNic {
    /// The user's model, if it is one.
    #[must_use]
    pub fn own(&self) -> Option<&Supplied> {
        if let Self::Own(own) = self { Some(own) } else { None }
    }

    /// Every NIC that a scenario can name.
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

    /// Every knob with its value, in the file's spelling and the reference's order.
    #[must_use]
    pub fn settings(&self) -> [(&'static str, String); 6] {
        // Records have the complete text.
        let with_text = |word: &dyn fmt::Display, own: Option<&Supplied>| {
            let text = own.and_then(|own| own.text.as_ref()).map(|text| format!(" = {text:?}"));
            format!("{word}{}", text.unwrap_or_default())
        };
        [
            ("nic", with_text(&self.nic, self.nic.own())),
            ("policy", with_text(&self.policy, self.policy.own())),
            ("isolated-queues", self.isolated_queues.to_string()),
            ("message", self.message.to_string()),
            ("ring", self.ring.to_string()),
            ("reaction", self.reaction.to_string()),
        ]
    }
}

/// A variant's own knobs; the others come from its base.
#[derive(Clone, Debug, Default)]
pub(super) struct ReceiveSettings {
    nic: Option<Located<ReceiveNic>>,
    policy: Option<Located<ReceivePolicy>>,
    isolated_queues: Option<Located<u32>>,
    message: Option<Located<ByteSize>>,
    ring: Option<Located<u32>>,
    reaction: Option<Located<Nanoseconds>>,
}

impl ReceiveSettings {
    /// Reads the knobs of `table`, all of which are required if `complete`.
    pub(super) fn read(table: &mut Table<'_>, complete: bool) -> Self {
        Self {
            nic: knob(table, complete, "nic", |field| word_or_own(field, &NICS, ReceiveNic::Own)),
            policy: knob(table, complete, "policy", |field| {
                word_or_own(field, &POLICIES, ReceivePolicy::Own)
            }),
            isolated_queues: knob(table, complete, "isolated-queues", |field| field.integer(1..=MAX_QUEUES)),
            message: knob(table, complete, "message", |field| field.quantity(MESSAGES, "1024B")),
            // Newer than the others, so it is optional.
            ring: knob(table, false, "ring", |field| field.integer(RINGS)),
            reaction: knob(table, complete, "reaction", |field| field.quantity(REACTIONS, "430ms")),
        }
    }

    /// These settings, completed by `base`'s.
    pub(super) fn over(&self, base: Self) -> Self {
        let own = self.clone();
        Self {
            nic: own.nic.or(base.nic),
            policy: own.policy.or(base.policy),
            isolated_queues: own.isolated_queues.or(base.isolated_queues),
            message: own.message.or(base.message),
            ring: own.ring.or(base.ring),
            reaction: own.reaction.or(base.reaction),
        }
    }

    /// The knobs; none if one is missing, which has been reported.
    pub(super) fn knobs(&self) -> Option<ReceiveKnobs> {
        Some(ReceiveKnobs {
            nic: self.nic.as_ref()?.value.clone(),
            policy: self.policy.as_ref()?.value.clone(),
            isolated_queues: self.isolated_queues.as_ref()?.value,
            message: self.message.as_ref()?.value,
            ring: self.ring.as_ref().map_or(RING, |ring| ring.value),
            reaction: self.reaction.as_ref()?.value,
        })
    }

    /// A setting that conflicts with the link, if any: position, problem and advice.
    pub(super) fn clash(&self, link: &Link) -> Option<(std::ops::Range<usize>, String, String, String)> {
        if let (Some(policy), Some(queues)) = (&self.policy, &self.isolated_queues)
            && policy.value == ReceivePolicy::Isolation
            && queues.value >= link.queues
        {
            let problem =
                format!("{} queues for high priority, and the link has {}", queues.value, link.queues);
            let advice = "leave one for the others at least".to_owned();
            return Some((queues.span.clone(), queues.path.clone(), problem, advice));
        }
        let message = self.message.as_ref()?;
        let room = link.mtu.bytes().saturating_sub(HEADERS);
        (message.value.bytes() > room).then(|| {
            let problem = format!("a message of {} does not fit into one packet", message.value);
            let advice = format!("use at most {room}B, or raise link.mtu");
            (message.span.clone(), message.path.clone(), problem, advice)
        })
    }
}
