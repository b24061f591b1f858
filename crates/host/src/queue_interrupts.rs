//! Finds the interrupt of each receive queue, and the CPUs that serve it.
//!
//! Sources (Documentation/core-api/irq/irq-affinity.rst):
//!
//! - `/sys/class/net/INTERFACE/device/msi_irqs`: the interrupts of a device
//! - `/proc/interrupts`: their names
//! - `/proc/irq/N/effective_affinity_list`: the CPUs that serve an interrupt
//!
//! Only the name of an interrupt identifies its queue, in a format that depends on the driver:
//!
//! | name | drivers |
//! |---|---|
//! | `eth0-TxRx-3`, `eth0-rx-3` | ixgbe, igb, igc, bnxt |
//! | `i40e-eth0-TxRx-3`, `ice-eth0-TxRx-3`, `iavf-eth0-TxRx-3` | i40e, ice, iavf |
//! | `eth0-Tx-Rx-3` | ena |
//! | `eth0-rxtx-3` | vmxnet3 |
//! | `eth0-3` | sfc, mlx4 |
//! | `eth0-fp-3` | qede, bnx2x |
//! | `mlx5_comp3@pci:0000:3b:00.0` | mlx5 |
//! | `mana_q3@pci:7870:00:00.0` | mana |
//! | `virtio0-input.3` | virtio_net |
//! | `gve-ntfy-blk19@pci:0000:00:04.0`, `eth%d-ntfy-block.19` | gve: of 32 blocks, 16 to 31 receive |

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_model::host::parse_processor_list;

use crate::facts::{has_word, notify_blocks, queue_of_action};
use crate::{Host, HostError, Sysfs};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueInterrupt {
    pub queue: u32,
    pub number: u32,
    pub name: String,
    /// CPUs that serve the interrupt, ascending: the effective CPUs if the kernel reports them,
    /// otherwise the allowed CPUs. Empty if both lists are unknown.
    pub processors: Vec<u32>,
}

/// Returns the number and the name of an interrupt, from a line of `/proc/interrupts`; `None` for other
/// lines.
fn named(line: &str) -> Option<(u32, &str)> {
    let (number, rest) = line.split_once(':')?;
    Some((number.trim().parse().ok()?, rest.split_ascii_whitespace().next_back()?))
}

impl Host {
    /// Returns the interrupts of an interface's receive queues, by queue. The list is empty if the
    /// device has no interrupts, or its driver uses other names.
    ///
    /// # Errors
    /// Returns an error if `/proc/interrupts` cannot be read.
    pub fn queue_interrupts(&self, sysfs: &Sysfs, interface: &str) -> Result<Vec<QueueInterrupt>, HostError> {
        let of_device = device_interrupts(sysfs, interface);
        let text = self.read("/proc/interrupts")?;
        // If a device does not list its interrupts, only their names identify them.
        let is_its = |(number, name): &(u32, &str)| {
            of_device.as_ref().map_or_else(|| has_word(name, interface), |numbers| numbers.contains(number))
        };
        let own: Vec<(u32, &str)> = text.lines().filter_map(named).filter(is_its).collect();
        let blocks = notify_blocks(own.iter().map(|(_, name)| *name));
        let mut found: BTreeMap<u32, QueueInterrupt> = BTreeMap::new();
        for (number, name) in own {
            let has_name = has_word(name, interface);
            let (Some(queue), true) = queue_of_action(name, interface, blocks) else { continue };
            // Ports may share a device: prefer an interrupt whose name contains the interface's name.
            if found.get(&queue).is_some_and(|other| has_word(&other.name, interface) || !has_name) {
                continue;
            }
            let processors = self.processors_of_interrupt(number);
            found.insert(queue, QueueInterrupt { queue, number, name: name.to_owned(), processors });
        }
        Ok(found.into_values().collect())
    }

    /// Returns the CPUs that serve an interrupt. If the kernel does not report them, returns the
    /// allowed CPUs; empty if both are unknown.
    fn processors_of_interrupt(&self, number: u32) -> Vec<u32> {
        let list = |file: &str| {
            let text = self.read(&format!("/proc/irq/{number}/{file}")).ok()?;
            parse_processor_list(&text).filter(|members| !members.is_empty())
        };
        // `effective_affinity_list` is empty until a driver requests the interrupt.
        list("effective_affinity_list").or_else(|| list("smp_affinity_list")).unwrap_or_default()
    }
}

/// Returns the numbers of a device's interrupts; `None` if the device does not list them.
fn device_interrupts(sysfs: &Sysfs, interface: &str) -> Option<BTreeSet<u32>> {
    // A virtio_net device is a virtio device below a PCI function.
    let of = |directory: &str| sysfs.list(&format!("class/net/{interface}/{directory}")).ok();
    let names = of("device/msi_irqs").or_else(|| of("device/../msi_irqs"))?;
    Some(names.iter().filter_map(|name| name.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::path::Path;

    /// A machine with these interrupts: number, name, CPU. All interrupts with a CPU belong to one
    /// device.
    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new(interface: &str, device: &str, interrupts: &[(u32, &str, &str)]) -> Self {
            let machine = Self(tempfile::tempdir().unwrap());
            let mut text = String::from("            CPU0       CPU1\n");
            for (number, name, effective) in interrupts {
                let line = format!(" {number}:     1670          0  IR-PCI-MSI 52955137-edge      {name}\n");
                text.push_str(&line);
                machine.put(&format!("proc/irq/{number}/smp_affinity_list"), "0-7");
                if !effective.is_empty() {
                    machine.put(&format!("proc/irq/{number}/effective_affinity_list"), effective);
                    machine.put(&format!("sys/class/net/{interface}/{device}msi_irqs/{number}"), "msix");
                }
            }
            text.push_str(" NMI:          0          0   Non-maskable interrupts\n");
            machine.put("proc/interrupts", &text);
            machine
        }

        fn put(&self, file: &str, text: &str) {
            let path = self.0.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
            std::fs::write(path, format!("{text}\n")).unwrap();
        }

        fn found(&self, interface: &str) -> Vec<(u32, u32, Vec<u32>)> {
            let (host, sysfs) = (Host::at(self.0.path()), Sysfs::at(self.0.path().join("sys")));
            let found = host.queue_interrupts(&sysfs, interface).unwrap();
            found.into_iter().map(|found| (found.queue, found.number, found.processors)).collect()
        }
    }

    #[test]
    fn an_interface_does_not_get_the_interrupts_of_a_longer_name() {
        let machine = Machine::new("eth1", "", &[(78, "eth10-TxRx-0", ""), (79, "eth1-TxRx-0", "")]);
        machine.put("sys/class/net/eth1/mtu", "1500");
        machine.put("proc/irq/79/smp_affinity_list", "3");
        assert_eq!(machine.found("eth1"), [(0, 79, vec![3])]);
    }

    /// The last name of each driver does not belong to a receive queue.
    #[test]
    fn queues_are_told_by_the_names_that_drivers_give() {
        for names in [
            ["eth0-TxRx-0", "eth0-TxRx-1", "eth0"],
            ["eth0-TxRx-0", "eth0-rx-1", "eth0-tx-1"],
            ["i40e-eth0-TxRx-0", "i40e-eth0-TxRx-1", "i40e-0000:04:00.1:misc"],
            ["ice-eth0-TxRx-0", "ice-eth0-TxRx-1", "ice-0000:65:00.0:ctrl-TxRx-0"],
            ["iavf-eth0-TxRx-0", "iavf-eth0-TxRx-1", "iavf-0000:3b:0b.0:mbx"],
            ["mlx5_comp0@pci:0000:08:00.0", "mlx5_comp1@pci:0000:08:00.0", "mlx5_async0@pci:0000:08:00.0"],
            ["eth0-Tx-Rx-0", "eth0-Tx-Rx-1", "ena-mgmnt@pci:0000:00:05.0"],
            ["virtio1-input.0", "virtio1-input.1", "virtio1-output.1"],
            ["eth0-rxtx-0", "eth0-rxtx-1", "eth0-event-4"],
            ["eth0-0", "eth0-1", "eth0-tx-1"],
            ["eth0-fp-0", "eth0-fp-1", "qed_sp_0"],
            ["mana_q0@pci:7870:00:00.0", "mana_q1@pci:7870:00:00.0", "mana_hwc@pci:7870:00:00.0"],
        ] {
            let interrupts = [(78, names[0], "5"), (79, names[1], "2"), (77, names[2], "0")];
            let machine = Machine::new("eth0", "device/", &interrupts);
            assert_eq!(machine.found("eth0"), [(0, 78, vec![5]), (1, 79, vec![2])], "{names:?}");
        }
    }

    #[test]
    fn the_second_half_of_the_notify_blocks_receives() {
        for names in [
            [
                "gve-ntfy-blk0@pci:0000:00:04.0",
                "gve-ntfy-blk1@pci:0000:00:04.0",
                "gve-mgmnt@pci:0000:00:04.0",
            ],
            ["eth%d-ntfy-block.0", "eth%d-ntfy-block.1", "eth%d-mgmnt"],
        ] {
            let interrupts = [(78, names[0], "5"), (79, names[1], "2"), (77, names[2], "0")];
            assert_eq!(Machine::new("ens4", "device/", &interrupts).found("ens4"), [(0, 79, vec![2])]);
        }
    }

    #[test]
    fn the_device_below_counts_and_so_does_what_may_take_it() {
        // With virtio_net, device is a link to virtio1, and the interrupts belong to the parent PCI
        // function.
        let machine =
            Machine::new("eth0", "pci/", &[(38, "virtio1-input.0", "1"), (40, "virtio2-input.0", "")]);
        std::fs::create_dir(machine.0.path().join("sys/class/net/eth0/pci/virtio1")).unwrap();
        std::os::unix::fs::symlink("pci/virtio1", machine.0.path().join("sys/class/net/eth0/device"))
            .unwrap();
        assert_eq!(machine.found("eth0"), [(0, 38, vec![1])]);
        // Without effective_affinity_list, smp_affinity_list is used. The interrupt of the other port,
        // eth0, is not an interrupt of this interface.
        let machine = Machine::new("eth1", "device/", &[(50, "eth0-TxRx-0", "1"), (51, "eth1-TxRx-0", "1")]);
        std::fs::remove_file(machine.0.path().join("proc/irq/51/effective_affinity_list")).unwrap();
        assert_eq!(machine.found("eth1"), [(0, 51, (0..8).collect())]);
    }

    #[test]
    fn without_a_list_the_name_decides_and_strange_lines_are_passed_over() {
        let machine = Machine::new("lo", "device/", &[(30, "eth0-TxRx-0", "1"), (31, "eth1-TxRx-0", "1")]);
        assert_eq!(machine.found("eth1"), [(0, 31, vec![1])]);
        machine.put("proc/interrupts", "x\n:\n 1:\n99999999999: a eth1-TxRx-1\n 7: eth1-TxRx-99999999999\n");
        assert_eq!(machine.found("eth1"), []);
        std::fs::remove_file(machine.0.path().join("proc/interrupts")).unwrap();
        let (host, sysfs) = (Host::at(machine.0.path()), Sysfs::at(machine.0.path().join("sys")));
        assert!(host.queue_interrupts(&sysfs, "eth1").unwrap_err().to_string().contains("proc/interrupts"));
    }
}
