//! Two network namespaces as hosts, connected by a veth pair.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;

use evenkeel_host::Host;
use evenkeel_netlink::ethtool::EthtoolError;
use evenkeel_netlink::settings::{Device, Settings};
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
    /// Creates two network namespaces, and a veth pair between them.
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

/// Features of TSO (`ethtool -k`).
pub(crate) const TSO: [&str; 4] = [
    "tx-tcp-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
    "tx-tcp6-segmentation",
];

pub(crate) fn refused(error: EthtoolError) -> TestbedError {
    TestbedError::Qdisc(error.to_string())
}

/// Enables or disables features of a device, by their names in `ethtool -k`.
pub(crate) fn set_features(
    host: &Namespace,
    index: u32,
    name: &str,
    features: &[&str],
    on: bool,
) -> Result<(), TestbedError> {
    host.run(|| {
        let mut settings = Settings::open().map_err(refused)?;
        features.iter().try_for_each(|feature| {
            settings.set_feature(Device { index, name }, feature, on).map_err(refused)
        })
    })
}

/// Enables receive packet steering on the receiving device, so that one CPU receives each flow, as with
/// RSS on a real NIC. Without it, a veth delivers packets on the sending CPU, and a flow can be
/// reordered when its sender migrates.
pub(crate) fn steer_receives_by_flow(receiver: &Namespace, queues: u32) -> Result<(), TestbedError> {
    let cpus: Vec<usize> = (0..Host::live().cpu_times()?.cpus().clamp(1, 1024)).collect();
    steer_receives(receiver, RECEIVER_INTERFACE, queues, &cpus)
}

/// Sets the CPUs that process received packets (RPS).
pub(crate) fn steer_receives(
    host: &Namespace,
    interface: &str,
    queues: u32,
    cpus: &[usize],
) -> Result<(), TestbedError> {
    // The mask consists of 32-bit words, separated by commas (Documentation/networking/scaling.rst).
    let words = cpus.iter().max().map_or(1, |last| last / 32 + 1);
    let word = |word: usize| {
        let bits =
            cpus.iter().filter(|cpu| *cpu / 32 == word).fold(0_u32, |bits, cpu| bits | 1 << (cpu % 32));
        format!("{bits:08x}")
    };
    let mask = (0..words).rev().map(word).collect::<Vec<_>>().join(",");
    let files = (0..queues)
        .map(|queue| (format!("class/net/{interface}/queues/rx-{queue}/rps_cpus"), mask.clone()))
        .collect::<Vec<_>>();
    host.write_sysfs(&files)
}
