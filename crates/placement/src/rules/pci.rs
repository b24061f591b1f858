//! How a card uses its slot: requests, completions, firmware.

use std::collections::BTreeMap;

use evenkeel_model::host::Interface;

use super::{Found, Rule, needs};
use crate::Severity::{High, Low, Medium};
use crate::View;
use crate::view::{count, gigabits};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "read-request-small",
        looks_at: "MaxReadReq of cards of 100 Gbit/s and more (PCI configuration space, which root alone can read)",
        speaks: "low, below 1,024 bytes of Mellanox/NVIDIA cards, below 512 of others",
        why: "A card reads what it sends in requests of that size: small ones cost headers and wait for more round trips on the bus. Receiving \
              does not depend on it.",
        mends: "4,096 bytes on mlx5_core, as NVIDIA's tuning guides have it; 512 and more on others",
        source: "NVIDIA, Understanding PCIe Configuration for Maximum Performance; PCI Express Base Specification, Device Control; setpci(8)",
        needs: &[needs::SPEED],
        check: read_request,
    },
    Rule {
        name: "cqe-compression-off",
        looks_at: "rx_cqe_compress of cards of mlx5_core whose PCI Express link carries little more than the network's",
        speaks: "low, when it is off and the link carries less than 1.25 times the line rate, or the card discarded packets in front of the ring",
        why: "Each received packet comes with a completion of 64 bytes over the bus. Compressed, several share one: more packets fit through a \
              slot that is nearly full. It costs some processor time, and does not go with hardware timestamps.",
        mends: "rx_cqe_compress on",
        source: "Documentation/networking/device_drivers/ethernet/mellanox/mlx5; NVIDIA, CQE compression; ethtool(8), --set-priv-flags",
        needs: &[needs::LINK_SPEED, needs::LINK_WIDTH, "/sys/class/net/*/ethtool/private_flags"],
        check: compression,
    },
    Rule {
        name: "pcie-stalled",
        looks_at: "how often the card wanted to write or read over PCI Express and could not (mlx5_core: outbound_pci_stalled_*)",
        speaks: "medium from 1,000 events on; high where the card discarded packets or sent pause frames at the same time",
        why: "The card's requests wait for credits of the host: memory that is too slow (few channels, another node), a full bus, or an IOMMU \
              that translates each of them. Packets wait in the card, which then drops them or pauses the switch.",
        mends: "memory in all channels, buffers on the card's own node, iommu=pt; until then a lower rate",
        source: "Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst (PCIe counters)",
        needs: &[needs::DRIVER_STATISTICS],
        check: stalled,
    },
    Rule {
        name: "firmware-differs",
        looks_at: "the firmware of cards of one driver",
        speaks: "low, when cards of one driver and speed have different versions",
        why: "Drivers work around faults of firmware by its version; two versions on one host behave differently, and one is likely old. \
              Whether a version is the newest no host can tell.",
        mends: "the same, current firmware on all",
        source: "ethtool(8), -i; the vendor's release notes",
        needs: &["/sys/class/net/*/ethtool/firmware", needs::DRIVER],
        check: firmware,
    },
];

fn read_request(view: &View<'_>) -> Vec<Found> {
    const FROM_BPS: u64 = 100_000_000_000;
    let mut found = Vec::new();
    for card in view.cards().filter(|card| card.speed_bps.is_some_and(|speed| speed >= FROM_BPS)) {
        let mellanox = card.driver.as_deref().is_some_and(|driver| driver.starts_with("mlx"));
        let (least, wanted) = if mellanox { (1024, 4096) } else { (512, 512) };
        let Some(now) = card.max_read_request.filter(|now| *now < least) else { continue };
        let text = format!("MaxReadReq is {now} bytes at {}", gigabits(card.speed_bps.unwrap_or(0) as f64));
        // Bits 12 to 14 of Device Control: 128 << n bytes.
        let field = if wanted == 4096 { "5000" } else { "2000" };
        found.push(Found::setting(Low, &card.name, text, "sending takes more requests on the bus than it needs").advice(format!(
            "`setpci -s {} CAP_EXP+8.w={field}:7000` sets {wanted} bytes until the next boot; some firmware has it as an option",
            card.bus.as_deref().unwrap_or("ADDRESS")
        )));
    }
    found
}

fn compression(view: &View<'_>) -> Vec<Found> {
    const HEADROOM: f64 = 1.25;
    let mut found = Vec::new();
    for card in view.cards().filter(|card| card.driver.as_deref() == Some("mlx5_core")) {
        let (Some(speed), Some(link), Some(false)) =
            (card.speed_bps, card.pcie, card.private_flags.get("rx_cqe_compress").copied())
        else {
            continue;
        };
        let lost = card.losses.card.unwrap_or(0);
        let tight = link.current_bps() < HEADROOM * speed as f64;
        if !tight && lost < 10_000 {
            continue;
        }
        let mut text = format!(
            "rx_cqe_compress is off; the PCI Express link carries {}, the line {}",
            gigabits(link.current_bps()),
            gigabits(speed as f64)
        );
        if lost > 0 {
            text += &format!("; the card discarded {} packets", count(lost));
        }
        found.push(
            Found::setting(
                Low,
                &card.name,
                text,
                "completions take their share of a bus that is nearly full",
            )
            .advice(format!(
                "`ethtool --set-priv-flags {} rx_cqe_compress on`, where no hardware timestamps are needed",
                card.name
            )),
        );
    }
    found
}

fn stalled(view: &View<'_>) -> Vec<Found> {
    const FEWEST: u64 = 1000;
    const GRAVE: u64 = 10_000;
    let mut found = Vec::new();
    for card in view.cards() {
        let figure = |name: &str| {
            card.driver_statistics.get(&format!("outbound_pci_stalled_{name}")).copied().unwrap_or(0)
        };
        let (writes, reads) = (figure("wr_events"), figure("rd_events"));
        if writes.max(reads) < FEWEST {
            continue;
        }
        let (lost, paused) = (card.losses.card.unwrap_or(0), card.losses.pause_sent.unwrap_or(0));
        let mut text =
            format!("PCI Express writes were stalled {} times, reads {} times", count(writes), count(reads));
        if figure("wr").max(figure("rd")) > 0 {
            text += &format!("; writes {} %, reads {} % of the last second", figure("wr"), figure("rd"));
        }
        for (packets, words) in [(lost, "discarded packets"), (paused, "sent pause frames")] {
            if packets > 0 {
                text += &format!("; the card {words} {} times", count(packets));
            }
        }
        let severity = if writes >= FEWEST && lost.max(paused) >= GRAVE { High } else { Medium };
        let translated = card.iommu.as_deref().is_some_and(|kind| kind.starts_with("DMA"));
        let mut advice =
            "memory in all channels, and buffers on the card's node: see memory-remote-node and the slot"
                .to_owned();
        if translated {
            advice += "; the IOMMU translates each request: iommu=pt on the kernel's command line";
        }
        found.push(
            Found::measured(severity, &card.name, text, "packets wait in the card for the host's memory")
                .advice(advice),
        );
    }
    found
}

fn firmware(view: &View<'_>) -> Vec<Found> {
    let mut alike: BTreeMap<(&str, Option<u64>), Vec<&Interface>> = BTreeMap::new();
    for card in view.cards() {
        if let (Some(driver), Some(_)) = (card.driver.as_deref(), &card.firmware) {
            alike.entry((driver, card.supported_bps)).or_default().push(card);
        }
    }
    let mut found = Vec::new();
    for ((driver, _), cards) in alike {
        let versions: Vec<String> = cards
            .iter()
            .map(|card| format!("{} {}", card.name, card.firmware.as_deref().unwrap_or_default()))
            .collect();
        if cards.iter().all(|card| card.firmware == cards[0].firmware) {
            continue;
        }
        let names: Vec<&str> = cards.iter().map(|card| card.name.as_str()).collect();
        let text = format!("cards of {driver} have different firmware: {}", versions.join(", "));
        found.push(
            Found::setting(
                Low,
                &names.join(", "),
                text,
                "faults of the older version show on some ports alone",
            )
            .advice("bring all to the version that the vendor recommends for this driver"),
        );
    }
    found
}
