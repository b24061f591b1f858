//! Settings in the PCI Express configuration space of a NIC.

use super::tree::Tree;

/// Length of the configuration space with the PCI capabilities, bytes. Without root, the kernel shows
/// only 64 bytes (`pci_read_config`, drivers/pci/pci-sysfs.c).
const CONFIGURATION_BYTES: usize = 256;

pub(super) fn max_read_request(tree: &Tree, interface: &str) -> Option<u32> {
    let path = format!("/sys/class/net/{interface}/device/config");
    max_read_request_of(&tree.first_bytes(&path, CONFIGURATION_BYTES)?)
}

/// Returns the maximum read request, bytes, from the Device Control register of the PCI Express
/// capability (`PCI_EXP_DEVCTL_READRQ`, include/uapi/linux/pci_regs.h); `None` without this register.
fn max_read_request_of(configuration: &[u8]) -> Option<u32> {
    const STATUS: usize = 0x06;
    const HAS_CAPABILITIES: u8 = 0x10;
    const FIRST_CAPABILITY: usize = 0x34;
    const PCI_EXPRESS: u8 = 0x10;
    const DEVICE_CONTROL: usize = 8;
    /// Limits the walk over a cyclic list. A valid list has no more entries.
    const MOST_CAPABILITIES: usize = 48;
    if configuration.get(STATUS)? & HAS_CAPABILITIES == 0 {
        return None;
    }
    let mut at = usize::from(*configuration.get(FIRST_CAPABILITY)? & !3);
    for _ in 0..MOST_CAPABILITIES {
        if at == 0 {
            return None;
        }
        if *configuration.get(at)? == PCI_EXPRESS {
            let control = configuration.get(at + DEVICE_CONTROL + 1)?;
            return Some(128 << (control >> 4 & 7));
        }
        at = usize::from(*configuration.get(at + 1)? & !3);
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn the_read_request_is_in_device_control() {
        // With a ConnectX-5, PCI Express is the first capability, at 0x60 (`lspci -xxx`).
        let mut configuration = vec![0; 256];
        (configuration[0x06], configuration[0x34]) = (0x10, 0x60);
        (configuration[0x60], configuration[0x61]) = (0x10, 0x48);
        (configuration[0x68], configuration[0x69]) = (0x3f, 0x29);
        assert_eq!(max_read_request_of(&configuration), Some(512));
        configuration[0x69] = 0x59;
        assert_eq!(max_read_request_of(&configuration), Some(4096));
        // Without privileges, the configuration space is truncated before the capability.
        assert_eq!(max_read_request_of(&configuration[..64]), None);
        (configuration[0x60], configuration[0x61]) = (0x05, 0x60);
        assert_eq!(max_read_request_of(&configuration), None);
        assert_eq!(max_read_request_of(&[]), None);
    }
}
