//! What the card or the stack does for many packets at once.

use evenkeel_model::change::{Knob, Value};
use evenkeel_model::host::Interface;

use super::{Found, Rule, by_speed, needs};
use crate::Severity::{High, Low, Medium};
use crate::View;

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "gro-off",
        looks_at: "generic-receive-offload of each card",
        speaks: "when it is off and can be switched on; high from 10 Gbit/s on",
        why: "Each packet goes through the stack alone: with 1,500 bytes that is more than forty times the work of a merged one of 64 KB.",
        mends: "switch it on",
        source: "the paper, section III-C and Table I (TSO, GSO, GRO); Documentation/networking/segmentation-offloads.rst",
        needs: &[needs::FEATURES],
        check: |view| {
            switched_off(
                view,
                "rx-gro",
                "generic-receive-offload",
                High,
                Medium,
                "every received packet passes the stack alone",
            )
        },
    },
    Rule {
        name: "tso-off",
        looks_at: "tcp-segmentation-offload of each card",
        speaks: "when it is off and can be switched on; high from 10 Gbit/s on",
        why: "The processor cuts segments and computes headers that the card could.",
        mends: "switch it on",
        source: "the paper, section III-C and Table I (TSO, GSO, GRO); Documentation/networking/segmentation-offloads.rst",
        needs: &[needs::FEATURES],
        check: |view| {
            switched_off(
                view,
                "tx-tcp-segmentation",
                "tcp-segmentation-offload",
                High,
                Medium,
                "the processor segments what the card could",
            )
        },
    },
    Rule {
        name: "gso-off",
        looks_at: "generic-segmentation-offload of each card",
        speaks: "when it is off and can be switched on",
        why: "Protocols and devices without TSO send packet by packet through the whole stack.",
        mends: "switch it on",
        source: "the paper, section III-C and Table I (TSO, GSO, GRO); Documentation/networking/segmentation-offloads.rst",
        needs: &[needs::FEATURES],
        check: |view| {
            switched_off(
                view,
                "tx-generic-segmentation",
                "generic-segmentation-offload",
                Medium,
                Low,
                "packets are cut at the top of the stack",
            )
        },
    },
    Rule {
        name: "rx-checksum-off",
        looks_at: "rx-checksumming of each card",
        speaks: "when it is off and can be switched on",
        why: "The processor reads every byte once more, and GRO merges less.",
        mends: "switch it on",
        source: "Documentation/networking/checksum-offloads.rst",
        needs: &[needs::FEATURES],
        check: |view| {
            switched_off(
                view,
                "rx-checksum",
                "rx-checksumming",
                Medium,
                Low,
                "the processor reads every received byte once more",
            )
        },
    },
    Rule {
        name: "tx-checksum-off",
        looks_at: "transmit checksums of each card",
        speaks: "when all of them are off and one can be switched on",
        why: "The processor sums every byte, and without checksums there is no segmentation offload and no scatter-gather.",
        mends: "switch it on",
        source: "Documentation/networking/checksum-offloads.rst",
        needs: &[needs::FEATURES],
        check: transmit_checksum,
    },
    Rule {
        name: "scatter-gather-off",
        looks_at: "scatter-gather of each card",
        speaks: "when it is off and can be switched on",
        why: "Each packet is copied into one piece, and segmentation offload is off with it.",
        mends: "switch it on",
        source: "Documentation/networking/segmentation-offloads.rst",
        needs: &[needs::FEATURES],
        check: |view| {
            switched_off(
                view,
                "tx-scatter-gather",
                "scatter-gather",
                Medium,
                Low,
                "packets are copied once more, and TSO and GSO are off with it",
            )
        },
    },
    Rule {
        name: "lro-forwards",
        looks_at: "large-receive-offload on a host that forwards",
        speaks: "when it is on and forwarding is as well",
        why: "What LRO merged cannot be taken apart as it was: forwarded packets are damaged or dropped. GRO can be undone.",
        mends: "switch it off",
        source: "Documentation/networking/segmentation-offloads.rst; dev_disable_lro, net/core/dev.c",
        needs: &[needs::FEATURES, "/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"],
        check: merged_and_forwarded,
    },
];

use crate::Severity;

fn switched_off(
    view: &View<'_>,
    name: &str,
    called: &str,
    fast: Severity,
    slow: Severity,
    effect: &str,
) -> Vec<Found> {
    let is_off = |card: &&Interface| card.feature(name).is_some_and(|feature| !feature.on && !feature.fixed);
    view.cards()
        .filter(is_off)
        .map(|card| {
            let entry =
                Found::setting(by_speed(card, fast, slow), &card.name, format!("{called} is off"), effect)
                    .on(&card.name);
            entry.change(Knob::Feature(name.to_owned()), Value::Switch(true))
        })
        .collect()
}

fn transmit_checksum(view: &View<'_>) -> Vec<Found> {
    const KINDS: [&str; 3] = ["tx-checksum-ip-generic", "tx-checksum-ipv4", "tx-checksum-ipv6"];
    let mut found = Vec::new();
    for card in view.cards() {
        let kinds: Vec<_> = KINDS.iter().filter_map(|name| Some((*name, card.feature(name)?))).collect();
        if kinds.iter().any(|(_, feature)| feature.on) {
            continue;
        }
        let able: Vec<&str> =
            kinds.iter().filter(|(_, feature)| !feature.fixed).map(|(name, _)| *name).collect();
        if able.is_empty() {
            continue;
        }
        let text = "transmit checksums are off";
        let effect = "the processor sums every byte, and segmentation offload is off with it";
        let mut entry = Found::setting(by_speed(card, Medium, Low), &card.name, text, effect).on(&card.name);
        for name in able {
            entry = entry.change(Knob::Feature(name.to_owned()), Value::Switch(true));
        }
        found.push(entry);
    }
    found
}

fn merged_and_forwarded(view: &View<'_>) -> Vec<Found> {
    let forwards = ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"]
        .iter()
        .any(|name| view.facts.sysctl_number(name) == Some(1));
    let merges = |card: &&Interface| card.feature("rx-lro").is_some_and(|feature| feature.on);
    let cards = view.cards().filter(|_| forwards).filter(merges);
    cards
        .map(|card| {
            let text = "large-receive-offload is on, and this host forwards";
            let entry = Found::setting(
                Medium,
                &card.name,
                text,
                "forwarded packets are damaged, dropped or sent too large",
            )
            .on(&card.name);
            entry.change(Knob::Feature("rx-lro".to_owned()), Value::Switch(false))
        })
        .collect()
}
