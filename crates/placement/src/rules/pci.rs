//! Rules about a NIC's use of its PCI Express slot: requests, completions, firmware.

use std::collections::BTreeMap;

use evenkeel_model::host::Interface;

use super::{Found, Rule, needs};
use crate::Severity::{High, Low, Medium};
use crate::View;
use crate::view::{count, gigabits};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "read-request-small",
        looks_at: "MaxReadReq of NICs of at least 100 Gbit/s (PCI configuration space, which only root can read)",
        fires_when: "low: below 1,024 bytes on Mellanox/NVIDIA NICs, below 512 on others",
        why: "A NIC reads the data that it sends in requests of this size: small ones cost headers and round trips. \
              Receiving does not depend on it.",
        fix: "4,096 bytes on Mellanox/NVIDIA NICs, as in NVIDIA's tuning guides; 512 on others",
        source: "NVIDIA, Understanding PCIe Configuration for Maximum Performance; PCI Express Base Specification, Device Control; setpci(8)",
        needs: &[needs::SPEED, needs::READ_REQUEST],
        check: read_request,
    },
    Rule {
        name: "cqe-compression-off",
        looks_at: "rx_cqe_compress of mlx5_core NICs, and the rates of their PCI Express link and line",
        fires_when: "low: it is off, and the link carries less than 1.25 times the line rate or the NIC discarded \
                     10,000 packets in front of the ring",
        why: "The NIC writes a completion of 64 bytes for each received packet; with compression several share one, \
              and more packets fit through the slot. Compression costs some processor time and excludes hardware \
              timestamps.",
        fix: "rx_cqe_compress on",
        source: "Documentation/networking/device_drivers/ethernet/mellanox/mlx5; NVIDIA, CQE compression; ethtool(8), --set-priv-flags",
        needs: &[
            needs::LINK_SPEED,
            needs::LINK_WIDTH,
            needs::SPEED,
            needs::PRIVATE_FLAGS,
            needs::DRIVER_STATISTICS,
        ],
        check: compression,
    },
    Rule {
        name: "pcie-stalled",
        looks_at: "how often the NIC could not write or read over PCI Express (mlx5_core: outbound_pci_stalled_*)",
        fires_when: "medium: from 1,000 events; high: from 1,000 stalled writes, and the NIC discarded 10,000 \
                     packets or sent 10,000 pause frames",
        why: "The NIC's requests wait for slow memory (few channels, another node), a full bus or the IOMMU. Packets \
              wait in the NIC, which then drops them or pauses the switch.",
        fix: "memory in all channels, buffers on the NIC's node, iommu=pt; until then a lower rate",
        source: "Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst (PCIe counters)",
        needs: &[needs::DRIVER_STATISTICS],
        check: stalled,
    },
    Rule {
        name: "firmware-differs",
        looks_at: "the firmware of NICs of one driver",
        fires_when: "low: NICs of one driver and speed have different versions",
        why: "Drivers work around firmware bugs by version: NICs with two versions behave differently, and one is \
              probably old.",
        fix: "the same, current firmware on all",
        source: "ethtool(8), -i; the vendor's release notes",
        needs: &["/sys/class/net/*/ethtool/firmware", needs::DRIVER, needs::LINK_MODES],
        check: firmware,
    },
];

fn read_request(view: &View<'_>) -> Vec<Found> {
    const FROM_BPS: u64 = 100_000_000_000;
    let mut found = Vec::new();
    for nic in view.nics().filter(|nic| nic.speed_bps.is_some_and(|speed| speed >= FROM_BPS)) {
        let mellanox = nic.driver.as_deref().is_some_and(|driver| driver.starts_with("mlx"));
        let (least, wanted) = if mellanox { (1024, 4096) } else { (512, 512) };
        let Some(now) = nic.max_read_request.filter(|now| *now < least) else { continue };
        let text = format!("MaxReadReq is {now} bytes at {}", gigabits(nic.speed_bps.unwrap_or(0) as f64));
        // Bits 12 to 14 of Device Control: 128 << n bytes.
        let field = if wanted == 4096 { "5000" } else { "2000" };
        found.push(Found::setting(Low, &nic.name, text, "sending takes more requests on the bus than it needs").advice(format!(
            "`setpci -s {} CAP_EXP+8.w={field}:7000` sets {wanted} bytes until the next boot; some firmware has it as an option",
            nic.bus.as_deref().unwrap_or("ADDRESS")
        )));
    }
    found
}

fn compression(view: &View<'_>) -> Vec<Found> {
    const HEADROOM: f64 = 1.25;
    let mut found = Vec::new();
    for nic in view.nics().filter(|nic| nic.driver.as_deref() == Some("mlx5_core")) {
        let (Some(speed), Some(link), Some(false)) =
            (nic.speed_bps, nic.pcie, nic.private_flags.get("rx_cqe_compress").copied())
        else {
            continue;
        };
        let lost = nic.losses.nic.unwrap_or(0);
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
            text += &format!("; the NIC discarded {} packets", count(lost));
        }
        found.push(
            Found::setting(Low, &nic.name, text, "completions take bandwidth of the bus that packets need")
                .advice(format!(
                    "`ethtool --set-priv-flags {} rx_cqe_compress on`, if no hardware timestamps are needed",
                    nic.name
                )),
        );
    }
    found
}

fn stalled(view: &View<'_>) -> Vec<Found> {
    const FEWEST: u64 = 1000;
    const GRAVE: u64 = 10_000;
    let mut found = Vec::new();
    for nic in view.nics() {
        let figure = |name: &str| {
            nic.driver_statistics.get(&format!("outbound_pci_stalled_{name}")).copied().unwrap_or(0)
        };
        let (writes, reads) = (figure("wr_events"), figure("rd_events"));
        if writes.max(reads) < FEWEST {
            continue;
        }
        let (lost, paused) = (nic.losses.nic.unwrap_or(0), nic.losses.pause_sent.unwrap_or(0));
        let mut text =
            format!("PCI Express writes were stalled {} times, reads {} times", count(writes), count(reads));
        if figure("wr").max(figure("rd")) > 0 {
            text += &format!("; writes {} %, reads {} % of the last second", figure("wr"), figure("rd"));
        }
        for (number, verb, what) in [(lost, "discarded", "packets"), (paused, "sent", "pause frames")] {
            if number > 0 {
                text += &format!("; the NIC {verb} {} {what}", count(number));
            }
        }
        let severity = if writes >= FEWEST && lost.max(paused) >= GRAVE { High } else { Medium };
        let translated = nic.iommu.as_deref().is_some_and(|kind| kind.starts_with("DMA"));
        let mut advice =
            "put memory into all channels and buffers on the NIC's node (memory-remote-node), and check the slot"
                .to_owned();
        if translated {
            advice += "; the IOMMU translates each request: set iommu=pt on the kernel's command line";
        }
        found.push(
            Found::measured(severity, &nic.name, text, "packets wait in the NIC for the host's memory")
                .advice(advice),
        );
    }
    found
}

fn firmware(view: &View<'_>) -> Vec<Found> {
    let mut alike: BTreeMap<(&str, Option<u64>), Vec<&Interface>> = BTreeMap::new();
    for nic in view.nics() {
        if let (Some(driver), Some(_)) = (nic.driver.as_deref(), &nic.firmware) {
            alike.entry((driver, nic.supported_bps)).or_default().push(nic);
        }
    }
    let mut found = Vec::new();
    for ((driver, _), nics) in alike {
        let versions: Vec<String> = nics
            .iter()
            .map(|nic| format!("{} {}", nic.name, nic.firmware.as_deref().unwrap_or_default()))
            .collect();
        if nics.iter().all(|nic| nic.firmware == nics[0].firmware) {
            continue;
        }
        let names: Vec<&str> = nics.iter().map(|nic| nic.name.as_str()).collect();
        let text = format!("NICs of {driver} have different firmware: {}", versions.join(", "));
        found.push(
            Found::setting(
                Low,
                &names.join(", "),
                text,
                "bugs of the older version appear only on some ports",
            )
            .advice("update all to the version that the vendor recommends for this driver"),
        );
    }
    found
}
