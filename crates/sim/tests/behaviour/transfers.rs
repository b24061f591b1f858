//! Checks the receiving hosts of transfers: every packet is accounted for on any machine, and closed forms
//! hold.

use std::collections::BTreeMap;

use evenkeel_model::scenario::bundled::{bundled, variant_tables};
use evenkeel_model::scenario::{HostNode, InterruptCores, TransferKnobs, parse};
use evenkeel_model::units::{BitRate, ByteSize, Nanoseconds};
use evenkeel_sim::tcp::{CongestionControl, Profile};
use evenkeel_sim::time::{MICROSECOND, MILLISECOND, SECOND, Span, Time};
use evenkeel_sim::transfers::machine::{Cycles, Machine, Shares};
use evenkeel_sim::transfers::receive_queue::{ReceiveQueue, Train};
use evenkeel_sim::transfers::settings::Settings;
use evenkeel_sim::transfers::simulation::{Account, Simulation, Snapshot};
use proptest::prelude::*;

/// Returns the knobs of one flow with the settings of Table I of *TCP at 100 Gbit/s*.
fn tuned() -> TransferKnobs {
    let (_, text) = bundled().iter().find(|(name, _)| *name == "tcp100g-ramp").unwrap();
    let scenario = parse(text, "test", variant_tables()).unwrap();
    scenario.all_variants().find(|variant| variant.name == "1-flow").unwrap().transfers().unwrap().clone()
}

fn settings(knobs: &TransferKnobs) -> Settings {
    let rate = BitRate::from_bits_per_second(100_000_000_000);
    Settings::new(knobs, rate, vec![CongestionControl::Cubic], Profile::Linux6_18).unwrap()
}

fn balance(account: &Account) -> Result<(), TestCaseError> {
    let Account { sent, in_ports, on_wire, in_ring, in_napi, in_backlog, received, .. } = *account;
    prop_assert_eq!(sent, in_ports + account.dropped_before + on_wire, "before the wire: {:?}", account);
    let places = in_ring + in_napi + in_backlog + received + account.dropped;
    prop_assert_eq!(on_wire, places, "behind the wire: {:?}", account);
    let bytes =
        account.duplicate_bytes + account.out_of_order_bytes + account.readable_bytes + account.read_bytes;
    prop_assert_eq!(account.received_bytes, bytes, "in TCP: {:?}", account);
    Ok(())
}

prop_compose! {
    /// Generates a machine from one of the profiles. Some of its costs, rates and buffers are up to ten times
    /// larger or smaller.
    fn machines()(
        is_old in any::<bool>(),
        factors in prop::collection::vec(-1.0..1.0_f64, 8),
        cores in 1_u32..9,
    ) -> Machine {
        let mut machine = if is_old { Machine::kit_2014() } else { Machine::xeon_6128() };
        let by = |number: usize| 10_f64.powf(factors[number]);
        machine.cores_per_node = cores;
        machine.cycles.packet.netdev *= by(0);
        machine.cycles.buffer.tcp_ip *= by(1);
        machine.cycles.read_buffer.tcp_ip *= by(2);
        machine.copy.local *= by(3);
        machine.interconnect_bps *= by(4);
        machine.pcie_bps *= by(5);
        machine.nic_buffer = (machine.nic_buffer as f64 * by(6)) as u64;
        machine.turbo_hz *= by(7);
        machine.all_cores_hz *= by(7);
        machine
    }
}

prop_compose! {
    fn random_knobs()(
        hosts in (1_u32..4, 1_u32..4),
        more in 0_u32..6,
        packets in (
            prop::sample::select(vec![576_u64, 1500, 9000, 65_535]), any::<bool>(), any::<bool>(), any::<bool>(),
        ),
        ring in prop::sample::select(vec![64_u32, 256, 1024, 8192]),
        switch in prop::option::of(prop::sample::select(vec![16_u64, 256, 16 << 10])),
        buffers in (64_u64..100_000, 64_u64..100_000),
        interrupts in prop::sample::select(vec![
            InterruptCores::EveryCore,
            InterruptCores::Apart,
            InterruptCores::OnApplications,
            InterruptCores::WithReader,
            InterruptCores::OwnCore,
        ]),
        nodes in (any::<bool>(), any::<bool>()),
        round_trip_us in 5_u64..500,
        reader_us in (prop::sample::select(vec![0_u64, 3000]), prop::sample::select(vec![0_u64, 100, 5000])),
    ) -> TransferKnobs {
        let node = |is_other| if is_other { HostNode::Other } else { HostNode::Nic };
        let (mtu, tso, gro, pacing) = packets;
        TransferKnobs {
            senders: hosts.0,
            receivers: hosts.1,
            flows: hosts.0.max(hosts.1) + more,
            switch_buffer: switch.map(ByteSize::from_kib),
            round_trip: Nanoseconds::from_micros(round_trip_us),
            mtu: ByteSize::from_bytes(mtu),
            ring,
            tso,
            gro,
            pacing,
            receive_buffer: ByteSize::from_kib(buffers.0),
            send_buffer: ByteSize::from_kib(buffers.1),
            interrupts,
            interrupt_node: node(nodes.0),
            application_node: node(nodes.1),
            reader_work: Nanoseconds::from_micros(reader_us.0),
            reader_stall: Nanoseconds::from_micros(reader_us.1),
            ..tuned()
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Checks the accounts at arbitrary times, for any machine, placement and congestion control.
    #[test]
    fn packets_are_conserved(
        machine in machines(),
        knobs in random_knobs(),
        congestion in prop::collection::vec(prop::sample::select(CongestionControl::NAMED.to_vec()), 1..4),
        ecn_threshold in prop::option::of(0_u64..1 << 20),
        seed in any::<u64>(),
        pauses_us in prop::collection::vec(1_u64..2_000, 1..5),
    ) {
        let congestion = congestion.into_iter().map(|(_, control)| control).collect();
        let settings = Settings { machine, congestion, ecn_threshold, ..settings(&knobs) };
        let mut simulation = Simulation::new(settings, seed, Time::ZERO, SECOND, 0);
        let mut now = Time::ZERO;
        for pause in pauses_us {
            now += pause * MICROSECOND;
            simulation.run(now).unwrap();
            balance(&simulation.account())?;
        }
    }
}

/// Checks that packets wait in every location, that ring, NIC and switch drop packets, and that the
/// accounts include all of them.
#[test]
fn every_kind_of_drop_is_accounted_for() {
    let overloaded = |change: &dyn Fn(&mut TransferKnobs, &mut Machine)| {
        let mut knobs = TransferKnobs { flows: 6, pacing: false, ..tuned() };
        let mut machine = Machine::kit_2014();
        change(&mut knobs, &mut machine);
        let mut simulation =
            Simulation::new(Settings { machine, ..settings(&knobs) }, 1, Time::ZERO, SECOND, 0);
        let mut seen = BTreeMap::new();
        for step in 1..=40 {
            simulation.run(Time(step * MILLISECOND)).unwrap();
            let account = simulation.account();
            balance(&account).unwrap();
            for (place, count) in [
                ("ports", account.in_ports),
                ("ring", account.in_ring),
                ("napi", account.in_napi),
                ("backlog", account.in_backlog),
                ("out of order", account.out_of_order_bytes),
            ] {
                *seen.entry(place).or_insert(0) += count;
            }
        }
        (simulation.snapshot().drops, seen)
    };
    let (ring, seen) = overloaded(&|knobs, _| {
        (knobs.ring, knobs.mtu) = (64, ByteSize::from_bytes(1500));
        knobs.interrupts = InterruptCores::OnApplications;
    });
    assert!(ring.ring > 0, "{ring:?}");
    let (_, apart) = overloaded(&|knobs, _| knobs.interrupts = InterruptCores::Apart);
    for (place, count) in seen {
        assert!(count + apart[place] > 0, "no packet in {place}");
    }
    let (nic, _) = overloaded(&|knobs, machine| {
        knobs.interrupt_node = HostNode::Other;
        machine.interconnect_bps = 10e9;
    });
    assert!(nic.nic > 0, "{nic:?}");
    let (switch, _) = overloaded(&|knobs, _| {
        (knobs.senders, knobs.switch_buffer) = (3, Some(ByteSize::from_kib(64)));
    });
    assert!(switch.switch > 0, "{switch:?}");
}

fn measure(settings: Settings, warmup: Span, measured: Span) -> (Snapshot, Snapshot) {
    let mut simulation = Simulation::new(settings, 1, Time::ZERO, SECOND, 0);
    simulation.run(Time(warmup)).unwrap();
    let before = simulation.snapshot();
    simulation.run(Time(warmup + measured)).unwrap();
    (before, simulation.snapshot())
}

fn bytes_per_second((before, after): &(Snapshot, Snapshot)) -> f64 {
    let bytes: u64 = after.read.iter().zip(&before.read).map(|(after, before)| after - before).sum();
    bytes as f64 / (after.at.seconds() - before.at.seconds())
}

/// Checks the packet rate of a core that only polls: its clock divided by the cycles of a packet. The
/// window is smaller than the ring, so no packet is lost. TCP, system calls and copies take no time.
#[test]
fn one_core_has_the_packet_rate_of_its_cycles() {
    let knobs = TransferKnobs {
        mtu: ByteSize::from_bytes(1500),
        gro: false,
        receive_buffer: ByteSize::from_kib(8 << 10),
        interrupts: InterruptCores::OwnCore,
        ..tuned()
    };
    let mut machine = Machine::kit_2014();
    let free = Shares::default();
    let packet = machine.cycles.packet;
    machine.cycles = Cycles {
        buffer: free,
        read_packet: free,
        read_buffer: free,
        segment: free,
        acknowledgement: free,
        defer: free,
        ..machine.cycles
    };
    (machine.copy.cached, machine.copy.local) = (0.0, 0.0);
    let expected = machine.turbo_hz / packet.sum();
    let settings = Settings { machine, ..settings(&knobs) };
    let found = measure(settings, 200 * MILLISECOND, 100 * MILLISECOND);
    assert_eq!(found.1.drops, Default::default());
    let rate = bytes_per_second(&found) / 1448.0;
    assert!((rate / expected - 1.0).abs() < 0.02, "{rate:.0} instead of {expected:.0} packets per second");
}

/// Checks the time until a ring overflows: its size divided by the difference between the rates of
/// arrival and service.
#[test]
fn a_ring_overflows_when_arrivals_exceed_service() {
    const DESCRIPTORS: u32 = 1024;
    let (gap, service) = (100_000, 150_000);
    let mut queue = ReceiveQueue::new(0, DESCRIPTORS);
    let train = Train {
        flow: 0,
        sequence: 0,
        payload: 1_000_000,
        mss: 100,
        first_at: Time(gap),
        gap,
        is_marked: false,
    };
    queue.expect(train, 0);
    let mut now = Time(64 * gap);
    while queue.dropped == 0 {
        queue.admit(now);
        let packets = queue.poll(64, None);
        now += u64::from(packets) * service;
        queue.admit(now);
        queue.end_poll();
        queue.buffers.clear();
    }
    let expected = f64::from(DESCRIPTORS) / (1.0 / gap as f64 - 1.0 / service as f64);
    // A poll of 64 packets frees its descriptors at the end of the poll.
    let poll = 64.0 * service as f64 * (service as f64 / (service - gap) as f64);
    assert!((now.0 as f64 - expected).abs() <= poll, "{} instead of {expected} ps", now.0);
}

/// Checks that a flow carries one window per round trip if its window limits it.
#[test]
fn a_window_limits_a_flow() {
    let knobs = TransferKnobs {
        receive_buffer: ByteSize::from_bytes(8_000_000),
        round_trip: Nanoseconds::from_millis(10),
        ..tuned()
    };
    let found = measure(settings(&knobs), SECOND, SECOND);
    // The window is half of the receive buffer.
    let expected = 4_000_000.0 / 0.01;
    let rate = bytes_per_second(&found);
    assert!((rate / expected - 1.0).abs() < 0.03, "{rate:.0} instead of {expected:.0} bytes per second");
}
