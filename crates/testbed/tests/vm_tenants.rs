//! Tests tenants behind qdiscs of this kernel: the shares of a line when clients use different write lengths.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use evenkeel_model::units::BitRate;
use evenkeel_model::world::{RawFlow, RawRepeat};

use support::nics::require_virtual_machine;
use support::tenants::{BOTH, bulk, line, lost, run, scenario, tenants};

/// Returns Jain's fairness index over the flows.
fn jain(raw: &RawRepeat, of_flow: fn(&RawFlow) -> u64) -> f64 {
    let got: Vec<f64> = raw.flows.iter().map(|flow| of_flow(flow) as f64).collect();
    let sum: f64 = got.iter().sum();
    sum * sum / (got.len() as f64 * got.iter().map(|got| got * got).sum::<f64>())
}

/// Checks that round-robin qdiscs give each client the same number of bytes for any write length. Half of the
/// clients write 4 KiB at a time, a quarter 1 KiB, and a quarter 8 KiB.
#[test]
fn fair_qdiscs_share_a_line_alike_among_clients_that_write_differently() {
    require_virtual_machine();
    let group = |share: &str, length: &str| {
        format!("[[workload.bulk]]\nshare = \"{share}\"\nlength = \"{length}\"\n")
    };
    let mixed = [group("50%", "4KiB"), group("25%", "1KiB"), group("25%", "8KiB")].concat();
    for setup in ["fq", "sfq", "drr", "qfq"] {
        let mut scenario = scenario(true, &format!("{BOTH}{mixed}"), &[setup], 8);
        // A rate well within the capacity of an emulated machine.
        scenario.link.rate = BitRate::from_bits_per_second(50_000_000);
        let raw = &run(&scenario, 5000)[0];
        let (bytes, packets) =
            (jain(raw, |flow| flow.bytes.iter().sum()), jain(raw, |flow| flow.packets.iter().sum()));
        println!("{setup}: Jain {bytes:.4} by bytes, {packets:.4} by packets, lost {:.4}", lost(line(raw)));
        assert_eq!(raw.flows.len(), 8);
        assert!(bytes >= 0.95, "{setup}: {bytes} by bytes");
        // Packets waited for the line nearly always, so the clients shared it.
        let waited = line(raw).backlog_bytes.iter().filter(|bytes| **bytes > 0).count();
        assert!(waited * 10 >= line(raw).bytes.len() * 9, "{setup}: a backlog in {waited} bins");
    }
}

/// Checks `mq` on a device with one transmit queue: its child qdisc carries every flow.
#[test]
fn a_qdisc_below_mq_carries_every_flow_of_one_queue() {
    require_virtual_machine();
    let mut scenario = scenario(true, &format!("{BOTH}{}", bulk("16KiB")), &["mq-fq_codel"], 4);
    scenario.link.rate = BitRate::from_bits_per_second(50_000_000);
    let raw = &run(&scenario, 2000)[0];
    assert!(raw.flows.iter().all(|flow| flow.queue == Some(0) && flow.payload_bytes > 0), "{:?}", raw.queues);
    let kinds: Vec<&str> = tenants(raw).qdiscs.iter().map(|qdisc| qdisc.kind.as_str()).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == "fq_codel").count(), 1, "{kinds:?}");
    assert!(kinds.contains(&"mq") && !kinds.contains(&"tbf"), "{kinds:?}");
}
