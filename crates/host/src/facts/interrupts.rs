//! Interrupts of interfaces: purpose, affinity, and the CPUs that served them.
//!
//! `/proc/interrupts` counts the served interrupts per CPU. The affinity mask lists only the allowed CPUs
//! (`Documentation/core-api/irq/irq-affinity.rst`).

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_model::host::{Interrupt, parse_processor_list};

use super::distinct::{first_gap, repeated, second};
use super::tree::{Bits, Tree, unreadable};
use crate::mask_members;

/// The names and numbers by which an interface's interrupts are identified.
#[derive(Clone, Debug, Default)]
pub(super) struct Owner {
    pub(super) name: String,
    /// Address of the NIC on its bus, as in `mlx5_comp0@pci:0000:81:00.0`.
    pub(super) bus: Option<String>,
    /// Name of the device, such as `virtio2`.
    pub(super) device: Option<String>,
    /// Interrupt numbers that the NIC lists (`device/msi_irqs`).
    pub(super) numbers: BTreeSet<u32>,
    pub(super) is_known: bool,
}

#[derive(Debug, PartialEq)]
struct Row {
    number: u32,
    served: Vec<(u32, u64)>,
    /// Interrupt chip, number at the chip, actions.
    text: String,
}

/// Parses `/proc/interrupts`. Returns the rows whose labels are numbers, and a damaged line, if any, with the
/// reason. Skips rows with other labels, which depend on the architecture.
fn rows(text: &str, online: &[u32]) -> (Vec<Row>, Option<(usize, String)>) {
    let mut lines = text.lines();
    let header = lines.next().unwrap_or_default();
    let columns: Option<Vec<u32>> =
        header.split_ascii_whitespace().map(|word| word.strip_prefix("CPU")?.parse().ok()).collect();
    let processors = columns.unwrap_or_default();
    let row = |line: &str| {
        let (number, mut rest) = line.split_once(':')?;
        let number = number.trim().parse().ok()?;
        let mut served = Vec::new();
        for processor in &processors {
            rest = rest.trim_start();
            let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
            let count: u64 = rest[..end].parse().ok()?;
            if count > 0 {
                served.push((*processor, count));
            }
            rest = &rest[end..];
        }
        Some(Row { number, served, text: rest.trim().to_owned() })
    };
    let is_named = |line: &str| {
        let label = line.split_once(':').map(|(label, _)| label.trim());
        label.is_some_and(|label| {
            label.bytes().any(|byte| byte.is_ascii_alphabetic())
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        })
    };
    // The table has a column for each online CPU.
    let lost = online.iter().find(|number| !processors.contains(number));
    let mut damage = lost.map(|number| (1, format!("no column of processor {number}")));
    if let Some(other) = processors.iter().find(|number| !online.is_empty() && !online.contains(number)) {
        damage = damage.or(Some((1, format!("a column of processor {other}, which is not online"))));
    }
    if processors.is_empty() {
        damage = Some((1, unreadable(header)));
    }
    if let Some((_, processor)) = repeated(processors.iter().copied()) {
        damage = Some((1, format!("a second column of processor {processor}")));
    }
    let mut found: Vec<Row> = Vec::new();
    let mut numbers = BTreeSet::new();
    for (at, line) in lines.enumerate() {
        match row(line) {
            Some(row) if numbers.insert(row.number) => found.push(row),
            Some(row) => damage = damage.or(Some((at + 2, second(&format!("interrupt {}", row.number))))),
            None if is_named(line) => {}
            None => damage = damage.or(Some((at + 2, unreadable(line)))),
        }
    }
    (found, damage)
}

/// Returns the names that the driver gave the interrupt, which follow the chip and the hardware number.
fn action(text: &str) -> &str {
    let mut rest = text;
    while let Some((word, behind)) = rest.split_once(char::is_whitespace) {
        let word = word.to_ascii_lowercase();
        rest = behind.trim_start();
        if word.ends_with("-edge")
            || word.ends_with("-level")
            || word.ends_with("-fasteoi")
            || word == "edge"
            || word == "level"
        {
            return rest;
        }
    }
    rest
}

/// Returns whether a text contains a name as a whole word (not `eth1` in `eth10-TxRx-0`).
pub(crate) fn has_word(text: &str, word: &str) -> bool {
    let is_part = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let mut from = 0;
    while let Some(at) = text[from..].find(word).map(|at| at + from) {
        let end = at + word.len();
        let before = text[..at].chars().next_back().is_none_or(|character| !is_part(character));
        // A dot after the word continues the name of a VLAN.
        let after =
            text[end..].chars().next().is_none_or(|character| !is_part(character) && character != '.');
        if before && after && !word.is_empty() {
            return true;
        }
        from = end.max(from + 1);
        if !text.is_char_boundary(from) {
            return false;
        }
    }
    false
}

/// Returns the interface of an interrupt. The criteria are, in this order: the interface's name, the
/// NIC's address, the device, and the NIC's list of interrupts.
fn owner<'a>(row: &Row, owners: &'a [Owner]) -> Option<&'a Owner> {
    let action = action(&row.text);
    let by = |is_it: &dyn Fn(&Owner) -> bool| {
        let mut found = owners.iter().filter(|owner| is_it(owner));
        let first = found.next()?;
        // If the criterion fits several interfaces, such as two ports of a NIC, use the next criterion.
        found.next().is_none().then_some(first)
    };
    by(&|owner| has_word(action, &owner.name))
        .or_else(|| by(&|owner| owner.bus.as_ref().is_some_and(|bus| action.contains(bus.as_str()))))
        .or_else(|| by(&|owner| owner.device.as_ref().is_some_and(|device| has_word(action, device))))
        .or_else(|| by(&|owner| owner.numbers.contains(&row.number)))
}

/// Returns the number of a notify block of gve: `gve-ntfy-blk3@pci:0000:00:04.0`, or
/// `eth%d-ntfy-block.3` before Linux 6.3.
fn notify_block(action: &str) -> Option<u32> {
    let (_, number) = action.split_once("-ntfy-blk").or_else(|| action.split_once("-ntfy-block."))?;
    number.split('@').next()?.parse().ok()
}

/// Returns the number of notify blocks of a gve NIC, by the actions of its interrupts; 0 for any other
/// driver.
pub fn notify_blocks<'a>(actions: impl Iterator<Item = &'a str>) -> u32 {
    actions.filter_map(notify_block).max().map_or(0, |last| last.saturating_add(1))
}

/// Returns the queue of an interrupt, derived from its action, and whether the interrupt announces
/// received packets. The queue is `None` if the interrupt has another purpose, or its action has no number.
/// `blocks` is the number of notify blocks of a gve NIC: the first half transmits, the second half receives
/// (`gve_rx_idx_to_ntfy`, drivers/net/ethernet/google/gve/gve.h).
#[must_use]
pub fn queue_of_action(action: &str, interface: &str, blocks: u32) -> (Option<u32>, bool) {
    if let Some(block) = notify_block(action) {
        let transmit = blocks.div_ceil(2);
        return (Some(block.checked_sub(transmit).unwrap_or(block)), block >= transmit);
    }
    const NO_QUEUE: [&str; 18] = [
        "async", "config", "control", "ctrl", "event", "mgmnt", "misc", "mbox", "mbx", "mailbox", "fdir",
        "admin", "link", "other", "cmd", "pages", "_hwc", "_sp_",
    ];
    let name = action.split('@').next().unwrap_or_default();
    let rest = match name.find(interface) {
        Some(at) if !interface.is_empty() => &name[at + interface.len()..],
        _ => name,
    };
    let lower = rest.to_ascii_lowercase();
    let transmits_only = lower.contains("output") || lower.contains("tx") && !lower.contains("rx");
    if NO_QUEUE.iter().any(|word| lower.contains(word)) {
        return (None, false);
    }
    let digits = rest.bytes().rev().take_while(u8::is_ascii_digit).count();
    (rest[rest.len() - digits..].parse().ok(), !transmits_only)
}

pub(super) fn interrupts(tree: &Tree, owners: &[Owner], online: &[u32]) -> Vec<Interrupt> {
    const FILE: &str = "/proc/interrupts";
    let Some(text) = tree.required_table(FILE) else { return Vec::new() };
    let (rows, damage) = rows(&text, online);
    if let Some((line, reason)) = damage {
        tree.note_line(FILE, line, &reason);
    }
    let mut found = Vec::new();
    let own: Vec<(Row, &Owner)> =
        rows.into_iter().filter_map(|row| owner(&row, owners).map(|owner| (row, owner))).collect();
    let mut blocks = BTreeMap::new();
    for owner in owners {
        let of_owner = own.iter().filter(|(_, other)| other.name == owner.name);
        blocks.insert(owner.name.as_str(), notify_blocks(of_owner.map(|(row, _)| action(&row.text))));
    }
    for (row, owner) in own {
        let action = action(&row.text).to_owned();
        let (queue, receives) = queue_of_action(&action, &owner.name, blocks[owner.name.as_str()]);
        let file = |name: &str| format!("/proc/irq/{}/{name}", row.number);
        let mask = |name: &str, parser: fn(&str) -> Option<Vec<u32>>| {
            tree.processors(&file(name), Bits::AnyWithOnePossible, parser)
        };
        let affinity = mask("smp_affinity_list", parse_processor_list);
        let affinity = affinity.or_else(|| mask("smp_affinity", mask_members));
        // A kernel for a single CPU has no masks.
        if affinity.is_none() && online.len() > 1 {
            tree.require("/proc/irq");
            tree.require(&file("smp_affinity_list"));
        }
        let effective =
            tree.processors(&file("effective_affinity_list"), Bits::Possible, parse_processor_list);
        found.push(Interrupt {
            number: row.number,
            chip: row.text.split_ascii_whitespace().next().unwrap_or_default().to_owned(),
            action,
            interface: owner.name.clone(),
            queue,
            receives,
            affinity: affinity.unwrap_or_default(),
            effective: effective.unwrap_or_default(),
            served: row.served,
        });
    }
    for owner in owners.iter().filter(|owner| !owner.is_known) {
        if found.iter().all(|interrupt| interrupt.interface != owner.name) {
            tree.note(
                FILE,
                format!("the interrupts of {} are unknown: its device cannot be read", owner.name),
            );
        }
    }
    for owner in owners.iter().filter(|_| !tree.is_live()) {
        note_lost_row(tree, &owner.name, &found);
    }
    // The only interrupt of a NIC serves queue 0, even if its name has no number.
    for owner in owners {
        let mut own = found.iter_mut().filter(|interrupt| interrupt.interface == owner.name);
        if let (Some(only), None) = (own.next(), own.next()) {
            (only.queue, only.receives) = (Some(0), true);
        }
    }
    found
}

/// Notes a queue whose interrupt has no row, between two queues with a row. A driver numbers its interrupts
/// without a gap.
fn note_lost_row(tree: &Tree, interface: &str, found: &[Interrupt]) {
    for receives in [true, false] {
        let own = found.iter().filter(|own| own.interface == interface && own.receives == receives);
        let queues = own.filter_map(|own| own.queue?.try_into().ok()).collect();
        if let Some(queue) = first_gap(&queues) {
            let why = format!("/proc/interrupts has no row of queue {queue} of {interface}");
            tree.note(&format!("/sys/class/net/{interface}/interrupts"), why);
        }
    }
}

/// Returns these interrupts with the present numbers of times that each CPU served them. The numbers stay
/// the same if `/proc/interrupts` cannot be read.
pub(super) fn served_again(tree: &Tree, known: &[Interrupt], online: &[u32]) -> Vec<Interrupt> {
    if known.is_empty() {
        return Vec::new();
    }
    let Some(text) = tree.required_table("/proc/interrupts") else { return known.to_vec() };
    let (rows, _) = rows(&text, online);
    let served: BTreeMap<u32, Vec<(u32, u64)>> =
        rows.into_iter().map(|row| (row.number, row.served)).collect();
    let again = |interrupt: &Interrupt| Interrupt {
        served: served.get(&interrupt.number).cloned().unwrap_or_default(),
        ..interrupt.clone()
    };
    known.iter().map(again).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn every_drivers_names_are_understood() {
        for (action, interface, expected) in [
            ("eth0-TxRx-3", "eth0", (Some(3), true)),
            ("i40e-eth0-TxRx-13", "eth0", (Some(13), true)),
            ("ice-ens1f0-TxRx-7", "ens1f0", (Some(7), true)),
            ("mlx5_comp11@pci:0000:81:00.0", "ens2f0", (Some(11), true)),
            ("mlx5_async0@pci:0000:81:00.0", "ens2f0", (None, false)),
            ("virtio2-input.0", "eth0", (Some(0), true)),
            ("virtio2-output.1", "eth0", (Some(1), false)),
            ("virtio2-config", "eth0", (None, false)),
            ("eth0-rx-1", "eth0", (Some(1), true)),
            ("eth0-tx-1", "eth0", (Some(1), false)),
            ("eth0-Tx-Rx-2", "eth0", (Some(2), true)),
            ("ena-mgmnt@pci:0000:00:05.0", "eth0", (None, false)),
            ("eth0", "eth0", (None, true)),
            ("i40e-0000:81:00.0:misc", "eth0", (None, false)),
            ("gve-mgmnt@pci:0000:00:04.0", "ens4", (None, false)),
            ("gve-ntfy-blk0@pci:0000:00:04.0", "ens4", (Some(0), false)),
            ("gve-ntfy-blk15@pci:0000:00:04.0", "ens4", (Some(15), false)),
            ("gve-ntfy-blk16@pci:0000:00:04.0", "ens4", (Some(0), true)),
            ("eth%d-ntfy-block.31", "ens4", (Some(15), true)),
        ] {
            assert_eq!(queue_of_action(action, interface, 32), expected, "{action}");
        }
    }

    #[test]
    fn rows_have_an_owner_by_name_nic_device_or_list() {
        let text = "           CPU0       CPU2\n\
                     38:          0       1955 PCI-MSIX-0000:00:03.0   1-edge      virtio2-input.0\n\
                     50:          7          0  IR-PCI-MSI 42467330-edge      mlx5_comp1@pci:0000:81:00.0\n\
                     51:          1          1  PCI-MSI 5-edge      eth10-TxRx-0\n\
                     52:          1          1  GICv3 33 Level     old-name-rx-2\n\
                    NMI:          0          0   Non-maskable interrupts\n\
                     60:          x          0  PCI-MSI 5-edge      eth10-TxRx-1\n";
        let (found, damage) = rows(text, &[0, 2]);
        assert_eq!(found.len(), 4, "{found:?}");
        assert_eq!(damage.map(|(line, _)| line), Some(7));
        assert_eq!(found[0].served, [(2, 1955)]);
        let named = |name: &str| Owner { name: name.to_owned(), ..Owner::default() };
        let owners = [
            Owner { device: Some("virtio2".to_owned()), ..named("eth0") },
            Owner { bus: Some("0000:81:00.0".to_owned()), ..named("eth1") },
            named("eth10"),
            Owner { numbers: [52].into(), ..named("lan") },
        ];
        let names: Vec<&str> = found.iter().map(|row| owner(row, &owners).unwrap().name.as_str()).collect();
        assert_eq!(names, ["eth0", "eth1", "eth10", "lan"]);
        assert_eq!(action(&found[3].text), "old-name-rx-2");
    }

    proptest::proptest! {
        #[test]
        fn no_text_trips_the_parsers(text in "(CPU[0-9]|[0-9]{1,3}:|[ \\n.:@-]|eth0|é|x|[0-9]){0,60}", name in "(eth0|é|x|0|){0,3}") {
            for row in rows(&format!("CPU0 CPU1\n{text}"), &[0, 1]).0 {
                let action = action(&row.text);
                let _ = queue_of_action(action, &name, notify_blocks([action].into_iter()));
                has_word(action, &name);
            }
            rows(&text, &[0]);
            let _ = queue_of_action(&text, &name, 3);
            has_word(&text, &name);
        }
    }

    #[test]
    fn damage_is_no_interrupt() {
        for text in ["", "CPU0", "1: 2 3", "CPU0\n1: ", "CPU0\n:", "CPU0 CPU1\n7: 1"] {
            assert_eq!(rows(text, &[]).0, [], "{text}");
        }
        for (text, line) in [("", 1), ("\x01\x02", 1), ("CPU0 CPU1\nNMI: 1 1\n7: 1", 3), ("CPU0\n\x07", 2)] {
            assert_eq!(rows(text, &[]).1.map(|(line, _)| line), Some(line), "{text:?}");
        }
        assert_eq!(rows("CPU0 CPU1\nNMI: 1 2 text\nERR: 0\n1: 2 3 x", &[0, 1]).1, None);
        assert_eq!(
            rows("CPU0 CPU1\nERR: 0", &[0, 2]).1.map(|(line, _)| line),
            Some(1),
            "no column of processor 2"
        );
    }
}
