//! The soft NIC: parameters of a multiqueue NIC made of qdiscs.
//!
//! The test bed builds the soft NIC in the kernel, and the simulator simulates it. Both use this module: the
//! classes of the soft NIC, the features that the soft NIC lacks for a variant, and the placement of the
//! traffic's programs.
//!
//! One HTB class is the link. Each hardware queue is a class below it, with a very small guaranteed rate. So
//! all queues borrow from the link's class. HTB serves them in deficit round robin by their quantum, like a
//! NIC that serves its queues by credits (`net/sched/sch_htb.c`).

use crate::scenario::{ByteQueueLimit, Knobs, Qdisc};
use crate::units::BitRate;

/// Length of the largest GSO packet as qdiscs count it at an MTU of 1500, bytes: 64 KiB, and the headers of
/// 46 packets.
pub const LARGEST_GSO_PACKET_BYTES: u32 = 65_536 + 46 * 66;
/// Limit of the FIFO of each queue, GSO packets: the usual `txqueuelen` of a device. TCP small queues keep
/// far fewer packets in the FIFO.
pub const LEAF_LIMIT_PACKETS: u32 = 1000;
/// XPS pools of an `xps:` variant: two, because a test bed may have only two processors.
pub const XPS_POOLS: u32 = 2;

/// Time that the link's burst must cover if a timer is late, ns; the burst is at least two packets.
const BURST_TIME_NS: u64 = 250_000;
/// A queue's DRR quantum, bytes: the size of the largest packet. With a smaller quantum, HTB would send one
/// large packet of each queue per round, whatever the quantum, because HTB never skips a queue with a
/// negative deficit.
const BASE_QUANTUM_BYTES: u32 = LARGEST_GSO_PACKET_BYTES;
/// The link's rate divided by the sum of the queues' guaranteed rates; the queues borrow the rest.
const OWNED_SHARE: u64 = 1000;
/// Minimum rate of a class, bit/s: 1,000 bytes per second. HTB stores rates in whole bytes per second.
const LEAST_RATE_BPS: u64 = 8_000;

/// Number of queues of the soft NIC above a device; many devices have 8 queues.
pub const DEVICE_QUEUES: u16 = 8;
/// Minor number of the class for the line above a device.
pub const LINE_CLASS: u16 = 1;
/// Minor number of the first queue's class above a device.
pub const FIRST_QUEUE_CLASS: u16 = 0x10;
/// Major number of the qdisc of a device's first queue, below one of Evenkeel's own roots.
pub const FIRST_LEAF: u16 = 0x100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// Guaranteed rate of the class.
    pub rate: BitRate,
    /// Rate including borrowing.
    pub ceiling: BitRate,
    /// Depth of both token buckets, bytes.
    pub burst_bytes: u32,
    /// DRR quantum: bytes per round.
    pub quantum_bytes: u32,
}

#[must_use]
pub fn line(rate: BitRate) -> Class {
    Class { rate, ceiling: rate, burst_bytes: burst_bytes(rate), quantum_bytes: BASE_QUANTUM_BYTES }
}

/// Returns the class of each of `queues` hardware queues on a link with this rate.
#[must_use]
pub fn queue(rate: BitRate, queues: u32) -> Class {
    let own = rate.bits_per_second() / OWNED_SHARE / u64::from(queues.max(1));
    Class { rate: BitRate::from_bits_per_second(own.max(LEAST_RATE_BPS)), ..line(rate) }
}

/// Returns the depth of a token bucket with this rate, bytes.
#[must_use]
pub fn burst_bytes(rate: BitRate) -> u32 {
    let bytes = u128::from(rate.bits_per_second()) * u128::from(BURST_TIME_NS) / 8_000_000_000;
    u32::try_from(bytes).unwrap_or(u32::MAX).max(2 * LARGEST_GSO_PACKET_BYTES)
}

/// Returns a remark about features of a variant that the soft NIC lacks; `None` if it has all of them. `sfq`
/// states whether the queues of the soft NIC can have SFQ.
#[must_use]
pub fn lacking(knobs: &Knobs, sfq: bool) -> Option<String> {
    let fair = knobs.qdisc == Qdisc::SfqPrio;
    let lacking: Vec<&str> = [
        ("SFQ", fair && !sfq),
        ("priority band", fair),
        ("BQL", knobs.byte_queue_limit != ByteQueueLimit::Off),
        ("interrupt interval", knobs.interrupt_interval.is_some()),
        ("transmit batching", knobs.transmit_batching),
        ("TSO interleaving", knobs.tso_interleaving && knobs.tso),
    ]
    .into_iter()
    .filter_map(|(what, lacks)| lacks.then_some(what))
    .collect();
    let leaves = if fair && sfq { "SFQ leaves" } else { "pfifo leaves" };
    (!lacking.is_empty()).then(|| format!("this test bed has no {}: {leaves}", join_or(&lacking)))
}

fn join_or(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [all @ .., last] => format!("{} or {last}", all.join(", ")),
    }
}

/// A sending core, which runs one program with its flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendingCore {
    pub flows: u32,
    /// Number of the machine's processor, from 0.
    pub processor: u32,
}

/// Distributes `flows` over at most `cores` sending cores, and the cores over `processors`.
///
/// Titan's two-server experiments distribute flows "such that half of the cores have twice as many
/// active flows as the other half" (section 5), because asymmetry causes unfairness. The function uses
/// the largest even number of cores with an exact division, such as 6 flows on 4 cores (2, 2, 1, 1). If
/// no number divides exactly, the function uses all cores with the nearest division.
#[must_use]
pub fn place(flows: u32, cores: u32, processors: u32) -> Vec<SendingCore> {
    let exact = (1..=cores / 2).rev().map(|half| half * 2).find(|count| flows.is_multiple_of(count / 2 * 3));
    let count = exact.unwrap_or(cores).min(flows).max(1);
    let share = |core: u32| if core < count / 2 { 2_u64 } else { 1 };
    let total: u64 = (0..count).map(share).sum();
    let mut placed = 0;
    let mut passed = 0;
    (0..count)
        .map(|core| {
            // Round cumulatively: the sum is exact, and each core differs from its share by less than one
            // flow.
            passed += share(core);
            let until = (u64::from(flows) * passed).div_ceil(total) as u32;
            let flows = until - placed;
            placed = until;
            let processor = u64::from(core) * u64::from(processors.max(1)) / u64::from(count);
            SendingCore { flows, processor: processor as u32 }
        })
        .filter(|core| core.flows > 0)
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::scenario::bundled::{bundled, variant_tables};
    use crate::scenario::{Scenario, parse};

    const GIGABIT: u64 = 1_000_000_000;

    fn scenario() -> Scenario {
        let (_, text) = bundled().iter().find(|(name, _)| *name == "titan-12-flows").unwrap();
        parse(text, "titan-12-flows", variant_tables()).unwrap()
    }

    fn knobs(variant: &str) -> Knobs {
        scenario().select(&[variant.to_owned()]).unwrap()[0].knobs().clone()
    }

    #[test]
    fn classes() {
        let rate = BitRate::from_bits_per_second(2 * GIGABIT);
        // 250 µs are 62,500 bytes: less than two packets.
        let class = line(rate);
        assert_eq!((class.rate, class.ceiling), (rate, rate));
        assert_eq!((class.burst_bytes, class.quantum_bytes), (137_144, 68_572));
        let own = BitRate::from_bits_per_second(250_000);
        assert_eq!(queue(rate, 8), Class { rate: own, ..class });
        assert_eq!(line(BitRate::from_bits_per_second(100 * GIGABIT)).burst_bytes, 3_125_000);
        let slow = BitRate::from_bits_per_second(1_000_000);
        assert_eq!(queue(slow, 8).rate.bits_per_second(), LEAST_RATE_BPS);
    }

    #[test]
    fn what_is_lacking_is_one_sentence() {
        assert_eq!(
            lacking(&knobs("cvanilla"), false).unwrap(),
            "this test bed has no BQL or TSO interleaving: pfifo leaves"
        );
        assert_eq!(
            lacking(&knobs("cmax"), false).unwrap(),
            "this test bed has no SFQ, priority band, BQL, interrupt interval or TSO interleaving: pfifo leaves"
        );
        assert_eq!(
            lacking(&knobs("dqa"), true).unwrap(),
            "this test bed has no priority band, BQL, interrupt interval, transmit batching or TSO interleaving: SFQ \
             leaves"
        );
        let plain =
            Knobs { byte_queue_limit: ByteQueueLimit::Off, tso_interleaving: false, ..knobs("cvanilla") };
        assert_eq!(lacking(&plain, true), None);
    }

    fn flows(flows: u32, cores: u32) -> Vec<u32> {
        place(flows, cores, 8).iter().map(|core| core.flows).collect()
    }

    #[test]
    fn the_papers_placements() {
        assert_eq!(flows(3, 8), [2, 1]);
        assert_eq!(flows(6, 8), [2, 2, 1, 1]);
        assert_eq!(flows(12, 8), [2, 2, 2, 2, 1, 1, 1, 1]);
        assert_eq!(flows(48, 8), [8, 8, 8, 8, 4, 4, 4, 4]);
        assert_eq!(flows(192, 8), [32, 32, 32, 32, 16, 16, 16, 16]);
    }

    #[test]
    fn odd_numbers_still_add_up() {
        for count in 1..300 {
            for cores in 1..12 {
                let placed = place(count, cores, 2);
                assert_eq!(placed.iter().map(|core| core.flows).sum::<u32>(), count, "{count} on {cores}");
                assert!(placed.iter().all(|core| core.processor < 2));
            }
        }
    }

    #[test]
    fn on_two_processors_the_heavy_half_is_one() {
        let processors: Vec<u32> = place(12, 8, 2).iter().map(|core| core.processor).collect();
        assert_eq!(processors, [0, 0, 0, 0, 1, 1, 1, 1]);
    }
}
