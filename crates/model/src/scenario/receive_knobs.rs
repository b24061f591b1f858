//! The knobs of a variant in a scenario of requests: how flows get their receive queues.

use std::fmt;
use std::ops::RangeInclusive;

use super::cursor::{Field, Located, Table};
use super::knobs::spelled;
use super::value::Spelling;
use super::{Link, MAX_QUEUES, ReceiveKnobs, ReceiveNic, ReceivePolicy};
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
/// Payloads of messages: each is one packet, so the MTU is the limit that counts.
const MESSAGES: RangeInclusive<ByteSize> = ByteSize::from_bytes(1)..=ByteSize::from_kib(64);
/// Times from new flows to a new configuration.
const REACTIONS: RangeInclusive<Nanoseconds> = Nanoseconds::new(0)..=Nanoseconds::from_secs(3600);
/// Headers of IPv4 and UDP (RFC 791, RFC 768), and of memcached's request and response around a value: the frame of
/// UDP, the command, a key of 64 bytes (memaslap's default), flags and lengths, rounded up.
const HEADERS: u64 = 200;

impl fmt::Display for ReceiveNic {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(spelled(*self, &NICS))
    }
}

impl fmt::Display for ReceivePolicy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(spelled(*self, &POLICIES))
    }
}

impl ReceiveNic {
    /// Every NIC that a scenario can name.
    pub fn all() -> impl Iterator<Item = Self> {
        NICS.iter().map(|(_, nic)| *nic)
    }
}

impl ReceiveKnobs {
    /// Every knob with its value, both as a scenario file spells them, in the order of the reference.
    #[must_use]
    pub fn settings(&self) -> [(&'static str, String); 5] {
        [
            ("nic", self.nic.to_string()),
            ("policy", self.policy.to_string()),
            ("isolated-queues", self.isolated_queues.to_string()),
            ("message", self.message.to_string()),
            ("reaction", self.reaction.to_string()),
        ]
    }
}

/// What one variant says about the knobs; what it leaves unsaid comes from its base.
#[derive(Clone, Debug, Default)]
pub(super) struct ReceiveSettings {
    nic: Option<Located<ReceiveNic>>,
    policy: Option<Located<ReceivePolicy>>,
    isolated_queues: Option<Located<u32>>,
    message: Option<Located<ByteSize>>,
    reaction: Option<Located<Nanoseconds>>,
}

impl ReceiveSettings {
    /// Reads the knobs of `table`, all of which must be there if `complete`.
    pub(super) fn read(table: &mut Table<'_>, complete: bool) -> Self {
        const ADVICE: &str = "a variant without a 'base' sets every knob";
        fn knob<'t, T>(
            table: &mut Table<'t>,
            complete: bool,
            key: &'static str,
            read: impl Fn(&Field<'t>) -> Option<T>,
        ) -> Option<Located<T>> {
            let field = if complete { table.require(key, ADVICE) } else { table.take(key) }?;
            read(&field).map(|value| field.located(value))
        }
        Self {
            nic: knob(table, complete, "nic", |field| field.one_of(&NICS)),
            policy: knob(table, complete, "policy", |field| field.one_of(&POLICIES)),
            isolated_queues: knob(table, complete, "isolated-queues", |field| field.integer(1..=MAX_QUEUES)),
            message: knob(table, complete, "message", |field| field.quantity(MESSAGES, "1024B")),
            reaction: knob(table, complete, "reaction", |field| field.quantity(REACTIONS, "430ms")),
        }
    }

    /// These settings, and `base`'s where they are silent.
    pub(super) fn over(&self, base: Self) -> Self {
        let own = self.clone();
        Self {
            nic: own.nic.or(base.nic),
            policy: own.policy.or(base.policy),
            isolated_queues: own.isolated_queues.or(base.isolated_queues),
            message: own.message.or(base.message),
            reaction: own.reaction.or(base.reaction),
        }
    }

    /// The knobs; none if one is missing, which has been complained about.
    pub(super) fn knobs(&self) -> Option<ReceiveKnobs> {
        Some(ReceiveKnobs {
            nic: self.nic.as_ref()?.value,
            policy: self.policy.as_ref()?.value,
            isolated_queues: self.isolated_queues.as_ref()?.value,
            message: self.message.as_ref()?.value,
            reaction: self.reaction.as_ref()?.value,
        })
    }

    /// The setting that contradicts the link, if one does: where it stands, the problem and the advice.
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
