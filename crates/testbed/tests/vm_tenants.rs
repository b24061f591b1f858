//! Tests tenants behind qdiscs of this kernel: the shares of a line when clients use different write lengths.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../../scripts/vm/guest.rs"]
mod guest;
mod support;

use evenkeel_model::units::BitRate;

use support::tenants::{BOTH, bulk, line, lost, run, scenario, tenants};

fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    sum * sum / (shares.len() as f64 * shares.iter().map(|share| share * share).sum::<f64>())
}

/// Returns the sums over SFQ's buckets. SFQ hashes flows to 1024 buckets and serves the buckets round
/// robin. In 1 of 37 runs, two of 8 flows share a bucket and get half a share each. This function
/// therefore adds up flows well below the largest share until they have a whole share.
fn per_bucket(mut shares: Vec<f64>) -> Vec<f64> {
    shares.sort_by(f64::total_cmp);
    let whole = shares[shares.len() - 1] * 0.75;
    let mut buckets = vec![0.0];
    for share in shares {
        let last = buckets.len() - 1;
        if buckets[last] < whole && share < whole {
            buckets[last] += share;
        } else {
            buckets.push(share);
        }
    }
    buckets.retain(|bucket| *bucket > 0.0);
    buckets
}

#[test]
fn flows_of_one_bucket_are_added_up_and_others_stay() {
    guest::require();
    assert_eq!(per_bucket(vec![8.0, 4.0, 8.0, 4.0]), [8.0, 8.0, 8.0]);
    assert_eq!(per_bucket(vec![3.0, 9.0, 3.0, 3.0]), [9.0, 9.0]);
    assert_eq!(per_bucket(vec![9.0, 2.0, 8.0]), [2.0, 8.0, 9.0]);
}

/// Round-robin qdiscs must give each client the same number of bytes for any write length. Half of the
/// clients write 4 KiB at a time, a quarter 1 KiB, and a quarter 8 KiB.
#[test]
fn fair_qdiscs_share_a_line_alike_among_clients_that_write_differently() {
    guest::require();
    let group = |share: &str, length: &str| {
        format!("[[workload.bulk]]\nshare = \"{share}\"\nlength = \"{length}\"\n")
    };
    let mixed = [group("50%", "4KiB"), group("25%", "1KiB"), group("25%", "8KiB")].concat();
    for setup in ["fq", "sfq", "drr", "qfq"] {
        let mut scenario = scenario(true, &format!("{BOTH}{mixed}"), &[setup], 8);
        // A rate well within the capacity of an emulated machine.
        scenario.link.rate = BitRate::from_bits_per_second(50_000_000);
        let raw = &run(&scenario, 5000)[0];
        assert_eq!(raw.flows.len(), 8);
        let mut shares: Vec<f64> =
            raw.flows.iter().map(|flow| flow.bytes.iter().sum::<u64>() as f64).collect();
        if setup == "sfq" {
            shares = per_bucket(shares);
        }
        let bytes = jain(&shares);
        println!(
            "{setup}: Jain {bytes:.4} by bytes over {} shares, lost {:.4}",
            shares.len(),
            lost(line(raw))
        );
        assert!(bytes >= 0.95, "{setup}: {bytes} by bytes");
        // Packets waited for the line almost always, so the clients shared the line.
        let waited = line(raw).backlog_bytes.iter().filter(|bytes| **bytes > 0).count();
        assert!(waited * 10 >= line(raw).bytes.len() * 9, "{setup}: a backlog in {waited} bins");
    }
}

/// Tests `mq` on a device with one transmit queue, whose child qdisc carries every flow.
#[test]
fn a_qdisc_below_mq_carries_every_flow_of_one_queue() {
    guest::require();
    let mut scenario = scenario(true, &format!("{BOTH}{}", bulk("16KiB")), &["mq-fq_codel"], 4);
    scenario.link.rate = BitRate::from_bits_per_second(50_000_000);
    let raw = &run(&scenario, 2000)[0];
    assert!(raw.flows.iter().all(|flow| flow.queue == Some(0) && flow.payload_bytes > 0), "{:?}", raw.queues);
    let kinds: Vec<&str> = tenants(raw).qdiscs.iter().map(|qdisc| qdisc.kind.as_str()).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == "fq_codel").count(), 1, "{kinds:?}");
    assert!(kinds.contains(&"mq") && !kinds.contains(&"tbf"), "{kinds:?}");
}
