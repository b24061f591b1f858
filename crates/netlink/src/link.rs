//! Links and addresses.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::transport::{Netlink, NetlinkError};

/// `GSO_LEGACY_MAX_SIZE` (include/linux/netdevice.h), which devices of kernels that do not tell have.
const LEGACY_GSO_MAX_BYTES: u32 = 65_536;

/// A veth pair whose ends live in two network namespaces.
#[derive(Clone, Copy, Debug)]
pub struct VethOptions<'a> {
    /// Name of the end in this namespace.
    pub name: &'a str,
    /// Name of the other end.
    pub peer_name: &'a str,
    /// The other end's network namespace.
    pub peer_namespace: BorrowedFd<'a>,
    /// Transmit queues of this end, and receive queues of the other.
    pub queues: u32,
    /// MTU of both, bytes.
    pub mtu: u32,
}

/// The largest GSO packets that the stack builds for a device, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GsoSizes {
    /// `gso_max_size`: for IPv6, and whatever has no limit of its own; above 64 KiB with BIG TCP.
    pub all: u32,
    /// `gso_ipv4_max_size` (from Linux 6.3 on): for IPv4. Setting `gso_max_size` to 64 KiB or less sets
    /// this one, too (`netif_set_gso_max_size`). On older kernels the same as `all`.
    pub ipv4: u32,
}

impl Netlink {
    /// Makes a veth pair.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn add_veth(&mut self, options: &VethOptions<'_>) -> Result<(), NetlinkError> {
        let mut peer = LinkMessage::default();
        peer.attributes = vec![
            LinkAttribute::IfName(options.peer_name.to_owned()),
            LinkAttribute::Mtu(options.mtu),
            LinkAttribute::NumTxQueues(options.queues),
            LinkAttribute::NumRxQueues(options.queues),
            LinkAttribute::NetNsFd(options.peer_namespace.as_raw_fd()),
        ];
        let mut link = LinkMessage::default();
        link.attributes = vec![
            LinkAttribute::IfName(options.name.to_owned()),
            LinkAttribute::Mtu(options.mtu),
            LinkAttribute::NumTxQueues(options.queues),
            LinkAttribute::NumRxQueues(options.queues),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Veth),
                LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
            ]),
        ];
        let action = format!("make the veth pair {} and {}", options.name, options.peer_name);
        self.change(RouteNetlinkMessage::NewLink(link), NLM_F_CREATE | NLM_F_EXCL, &action)
    }

    /// Index of an interface of the namespace, by name.
    ///
    /// # Errors
    /// When there is none of that name, or the kernel refuses.
    pub fn link_index(&mut self, name: &str) -> Result<u32, NetlinkError> {
        let action = format!("find the interface {name}");
        let links = self.dump(RouteNetlinkMessage::GetLink(LinkMessage::default()), &action)?;
        let found = links.iter().find_map(|message| match message {
            RouteNetlinkMessage::NewLink(link) => link
                .attributes
                .iter()
                .any(|attribute| matches!(attribute, LinkAttribute::IfName(found) if found == name))
                .then_some(link.header.index),
            _ => None,
        });
        found.ok_or_else(|| NetlinkError::Refused {
            action,
            source: std::io::Error::from_raw_os_error(libc::ENODEV),
            kernel_says: None,
        })
    }

    /// Sets an interface up.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_up(&mut self, index: u32) -> Result<(), NetlinkError> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.header.flags = LinkFlags::Up;
        link.header.change_mask = LinkFlags::Up;
        self.change(RouteNetlinkMessage::SetLink(link), 0, &format!("set interface {index} up"))
    }

    /// Sets the largest GSO packet that the stack builds for a device, bytes.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_gso_max_size(&mut self, index: u32, bytes: u32) -> Result<(), NetlinkError> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.attributes.push(LinkAttribute::GsoMaxSize(bytes));
        let action = format!("set gso_max_size of interface {index} to {bytes} bytes");
        self.change(RouteNetlinkMessage::SetLink(link), 0, &action)
    }

    /// The largest GSO packets that the stack builds for a device.
    ///
    /// # Errors
    /// When the interface is gone, or the kernel refuses.
    pub fn gso_sizes(&mut self, index: u32) -> Result<GsoSizes, NetlinkError> {
        let action = format!("read gso_max_size of interface {index}");
        let links = self.dump(RouteNetlinkMessage::GetLink(LinkMessage::default()), &action)?;
        let attributes = links.into_iter().find_map(|message| match message {
            RouteNetlinkMessage::NewLink(link) if link.header.index == index => Some(link.attributes),
            _ => None,
        });
        let attributes = attributes.ok_or_else(|| NetlinkError::Refused {
            action,
            source: std::io::Error::from_raw_os_error(libc::ENODEV),
            kernel_says: None,
        })?;
        let (mut all, mut ipv4) = (None, None);
        for attribute in attributes {
            match attribute {
                LinkAttribute::GsoMaxSize(bytes) => all = Some(bytes),
                LinkAttribute::GsoIpv4MaxSize(bytes) => ipv4 = Some(bytes),
                _ => {}
            }
        }
        let all = all.unwrap_or(LEGACY_GSO_MAX_BYTES);
        Ok(GsoSizes { all, ipv4: ipv4.unwrap_or(all) })
    }

    /// Sets the largest GSO packets that the stack builds for a device.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_gso_sizes(&mut self, index: u32, sizes: GsoSizes) -> Result<(), NetlinkError> {
        self.set_gso_max_size(index, sizes.all)?;
        // Second, because the first may have changed it.
        if self.gso_sizes(index)?.ipv4 == sizes.ipv4 {
            return Ok(());
        }
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.attributes.push(LinkAttribute::GsoIpv4MaxSize(sizes.ipv4));
        let action = format!("set gso_ipv4_max_size of interface {index} to {} bytes", sizes.ipv4);
        self.change(RouteNetlinkMessage::SetLink(link), 0, &action)
    }

    /// Sets how many segments a GSO packet that the stack builds for a device may have; with 1 TCP
    /// sends single segments, as without any segmentation offload.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_gso_max_segments(&mut self, index: u32, segments: u32) -> Result<(), NetlinkError> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.attributes.push(LinkAttribute::GsoMaxSegs(segments));
        let action = format!("set gso_max_segs of interface {index} to {segments}");
        self.change(RouteNetlinkMessage::SetLink(link), 0, &action)
    }

    /// Removes an interface (of a veth pair: both ends).
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn delete_link(&mut self, index: u32) -> Result<(), NetlinkError> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        self.change(RouteNetlinkMessage::DelLink(link), 0, &format!("remove interface {index}"))
    }

    /// Gives an interface an address; IPv6 skips duplicate address detection, so that it can be
    /// used at once.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn add_address(
        &mut self,
        index: u32,
        address: IpAddr,
        prefix_length: u8,
    ) -> Result<(), NetlinkError> {
        let mut message = AddressMessage::default();
        message.header.index = index;
        message.header.prefix_len = prefix_length;
        message.attributes.push(AddressAttribute::Address(address));
        message.attributes.push(AddressAttribute::Local(address));
        message.header.family = match address {
            IpAddr::V4(_) => AddressFamily::Inet,
            IpAddr::V6(_) => {
                message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
                AddressFamily::Inet6
            }
        };
        let action = format!("give interface {index} the address {address}/{prefix_length}");
        self.change(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL, &action)
    }
}
