//! Rules about message-signalled interrupts (MSI, MSI-X) of NICs.

use evenkeel_model::host::Interface;

use super::{Found, Rule, needs};
use crate::Severity::{High, Medium};
use crate::View;
use crate::view::count;

pub(super) const RULES: &[Rule] = &[Rule {
    name: "msi-off",
    looks_at: "pci=nomsi on the kernel's command line, and NICs whose only interrupt comes from a pin (IO-APIC)",
    fires_when: "medium: such a NIC on a host with several processors; high: also a processor that serves the \
                 interrupt spends 30 % of its time in softirqs, and the NIC lost 100 packets and one in a million",
    why: "A NIC has one pin but many MSI-X vectors: without MSI its driver sets up one queue, and one processor \
          takes all packets.",
    fix: "remove pci=nomsi from the kernel's command line; until the restart, receive packet steering",
    source: "Documentation/admin-guide/kernel-parameters.txt (pci=nomsi); Documentation/PCI/msi-howto.rst; vmxnet3_alloc_intr_resources, \
             drivers/net/vmxnet3/vmxnet3_drv.c",
    needs: &[
        needs::COMMAND_LINE,
        needs::INTERRUPTS,
        needs::NIC_INTERRUPTS,
        needs::TIMES,
        needs::STATISTICS,
        needs::DRIVER_STATISTICS,
    ],
    check: |view| view.nics().filter_map(|nic| off(view, nic)).collect(),
}];

/// Returns the word of the kernel's command line that switches MSI off: `pci=nomsi`, `pci=noaer,nomsi`.
fn switched_off<'a>(view: &View<'a>) -> Option<&'a str> {
    let words = view.facts.command_line.iter().map(String::as_str);
    let mut words = words.filter(|word| {
        word.strip_prefix("pci=").is_some_and(|options| options.split(',').any(|option| option == "nomsi"))
    });
    words.next()
}

pub(super) fn off(view: &View<'_>, nic: &Interface) -> Option<Found> {
    const BUSY: f64 = 0.3;
    let word = switched_off(view)?;
    let lines: Vec<_> = view.facts.interrupts_of(&nic.name).collect();
    let first = lines.first()?;
    if view.facts.processors.len() < 2 || lines.iter().any(|line| line.chip.contains("MSI")) {
        return None;
    }
    let share = |server: u32| view.softirq_share(server).unwrap_or(0.0);
    let is_busy = view.interrupt_processors(nic).into_iter().any(|server| share(server) >= BUSY);
    let lost = super::nic::ring_losses(&nic.losses);
    let loses = view.judge_loss(nic, lost, nic.received_packets()).is_some();
    let queues = nic.receive_queue_count();
    let mut text = format!(
        "{word} is on the kernel's command line: the NIC has only interrupt {} of the {}, and {queues} receive queue{} for {} processors",
        first.number,
        first.chip,
        if queues == 1 { "" } else { "s" },
        view.facts.processors.len()
    );
    text += &view.softirq_words(nic);
    if loses {
        text += &format!("; {} packets were lost at the NIC", count(lost));
    }
    let effect = "one processor takes all packets of the NIC";
    let entry = if is_busy && loses {
        Found::measured(High, &nic.name, text, effect)
    } else {
        Found::setting(Medium, &nic.name, text, effect)
    };
    Some(entry.advice(
        "remove nomsi from the kernel's command line and restart: the driver then has a vector for each queue; if it was set for a faulty device, \
         switch MSI off only for that device (/sys/bus/pci/devices/ADDRESS/msi_bus)",
    ))
}
