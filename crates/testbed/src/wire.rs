//! Two network namespaces as hosts, connected by a veth pair.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;

use evenkeel_host::Host;
use evenkeel_netlink::{Netlink, VethOptions};

use crate::error::TestbedError;
use crate::kernel;
use crate::namespace::Namespace;

/// Addresses from the IPv4 range for benchmarks (RFC 2544).
pub const SENDER_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
pub const RECEIVER_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
/// Smallest MTU of a link with IPv6. On a link with a smaller MTU, the kernel refuses IPv6 addresses
/// (RFC 8200, section 5).
const LEAST_IPV6_MTU: u32 = 1280;
/// Addresses from the IPv6 range for benchmarks (RFC 5180).
pub const SENDER_ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1);
pub const RECEIVER_ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 2);

pub const SENDER_INTERFACE: &str = "evk0";
pub const RECEIVER_INTERFACE: &str = "evk1";

/// Two hosts and the link between them. The interfaces have addresses but are down, so that the caller
/// can change settings first.
pub struct Wire {
    pub sender: Namespace,
    pub receiver: Namespace,
    pub sender_netlink: Netlink,
    pub receiver_netlink: Netlink,
    pub sender_index: u32,
    pub receiver_index: u32,
}

impl Wire {
    ///
    /// # Errors
    /// Returns an error if the kernel refuses.
    pub fn lay(queues: u32, mtu: u32, sender_sysctls: &[(String, String)]) -> Result<Self, TestbedError> {
        let (sender, receiver) = (Namespace::new()?, Namespace::new()?);
        for (name, value) in sender_sysctls {
            sender.set_sysctl(name, value)?;
        }
        let mut sender_netlink = sender.netlink()?;
        let mut receiver_netlink = receiver.netlink()?;
        sender_netlink.add_veth(&VethOptions {
            name: SENDER_INTERFACE,
            peer_name: RECEIVER_INTERFACE,
            peer_namespace: receiver.as_fd(),
            queues,
            mtu,
        })?;
        let sender_index = sender_netlink.link_index(SENDER_INTERFACE)?;
        let receiver_index = receiver_netlink.link_index(RECEIVER_INTERFACE)?;

        let addresses: [(&mut Netlink, u32, IpAddr, IpAddr); 2] = [
            (&mut sender_netlink, sender_index, SENDER_ADDRESS.into(), SENDER_ADDRESS_V6.into()),
            (&mut receiver_netlink, receiver_index, RECEIVER_ADDRESS.into(), RECEIVER_ADDRESS_V6.into()),
        ];
        for (netlink, index, v4, v6) in addresses {
            netlink.add_address(index, v4, 24)?;
            if kernel::has_ipv6() && mtu >= LEAST_IPV6_MTU {
                netlink.add_address(index, v6, 64)?;
            }
        }
        Ok(Self { sender, receiver, sender_netlink, receiver_netlink, sender_index, receiver_index })
    }
}

/// Enables receive packet steering on the receiving device, so that one CPU receives each flow, as with
/// RSS on a real NIC. Without it, a veth delivers packets on the sending CPU, and a flow is reordered
/// when its sender migrates.
pub(crate) fn steer_receives_by_flow(receiver: &Namespace, queues: u32) -> Result<(), TestbedError> {
    // The mask consists of 32-bit words, separated by commas (Documentation/networking/scaling.rst).
    let cpus = Host::live().cpu_times()?.cpus().clamp(1, 1024);
    let words: Vec<String> = (0..cpus.div_ceil(32))
        .rev()
        .map(|word| {
            let bits = (cpus - word * 32).min(32);
            format!("{:08x}", (1_u64 << bits) - 1)
        })
        .collect();
    let mask = words.join(",");
    let files = (0..queues)
        .map(|queue| (format!("class/net/{RECEIVER_INTERFACE}/queues/rx-{queue}/rps_cpus"), mask.clone()))
        .collect::<Vec<_>>();
    receiver.write_sysfs(&files)
}
