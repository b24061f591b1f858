//! Links and addresses.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, LinkXdp,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::transport::{Netlink, NetlinkError};

/// `GSO_LEGACY_MAX_SIZE` (include/linux/netdevice.h): the size on kernels that do not report one.
const LEGACY_GSO_MAX_BYTES: u32 = 65_536;

/// A veth pair across two network namespaces.
#[derive(Clone, Copy, Debug)]
pub struct VethOptions<'a> {
    pub name: &'a str,
    pub peer_name: &'a str,
    pub peer_namespace: BorrowedFd<'a>,
    /// Number of transmit queues of this end, and of receive queues of the other end.
    pub queues: u32,
    /// MTU of both ends, bytes.
    pub mtu: u32,
}

/// Maximum sizes of GSO packets that the stack builds for a device, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GsoSizes {
    /// `gso_max_size`: for IPv6, and for protocols without a separate limit; above 64 KiB with BIG TCP.
    pub all: u32,
    /// `gso_ipv4_max_size` (since Linux 6.3). Setting `gso_max_size` to 64 KiB or less also sets this one
    /// (`netif_set_gso_max_size`). On older kernels it equals `all`.
    pub ipv4: u32,
}

impl GsoSizes {
    /// Fills in the sizes of older kernels, which do not report them.
    fn of(all: Option<u32>, ipv4: Option<u32>) -> Self {
        let all = all.unwrap_or(LEGACY_GSO_MAX_BYTES);
        Self { all, ipv4: ipv4.unwrap_or(all) }
    }
}

/// An interface as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Index, which a rename does not change.
    pub index: u32,
    pub name: String,
    /// Link-layer address; may be empty.
    pub address: Vec<u8>,
    /// Flag `IFF_UP`.
    pub up: bool,
    /// Allocated queues; fewer may be in use.
    pub transmit_queues: u32,
    /// `IFLA_XDP_PROG_ID`; if there are several programs, the native-mode one.
    pub xdp_program: Option<u32>,
    pub gso: GsoSizes,
    /// Maximum sizes of GRO packets, bytes, with the same dependency (`netif_set_gro_max_size`).
    pub gro: GsoSizes,
    /// Largest packet that the driver can segment (`tso_max_size`, since Linux 5.19), bytes.
    pub tso_max: Option<u32>,
}

impl From<&LinkMessage> for Link {
    fn from(message: &LinkMessage) -> Self {
        let mut link = Self {
            index: message.header.index,
            name: String::new(),
            address: Vec::new(),
            up: message.header.flags.contains(LinkFlags::Up),
            transmit_queues: 1,
            xdp_program: None,
            gso: GsoSizes::of(None, None),
            gro: GsoSizes::of(None, None),
            tso_max: None,
        };
        let (mut gso, mut gso_ipv4, mut gro, mut gro_ipv4) = (None, None, None, None);
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name.clone_from(name),
                LinkAttribute::Address(address) => link.address.clone_from(address),
                LinkAttribute::NumTxQueues(queues) => link.transmit_queues = *queues,
                LinkAttribute::Xdp(program) => link.xdp_program = xdp_program(program),
                LinkAttribute::GsoMaxSize(bytes) => gso = Some(*bytes),
                LinkAttribute::GsoIpv4MaxSize(bytes) => gso_ipv4 = Some(*bytes),
                LinkAttribute::GroMaxSize(bytes) => gro = Some(*bytes),
                LinkAttribute::GroIpv4MaxSize(bytes) => gro_ipv4 = Some(*bytes),
                LinkAttribute::TsoMaxSize(bytes) => link.tso_max = Some(*bytes),
                _ => {}
            }
        }
        link.gso = GsoSizes::of(gso, gso_ipv4);
        link.gro = GsoSizes::of(gro, gro_ipv4);
        link
    }
}

fn xdp_program(attributes: &[LinkXdp]) -> Option<u32> {
    let number = |attribute: &LinkXdp| match attribute {
        LinkXdp::DrvProgId(number)
        | LinkXdp::SkbProgId(number)
        | LinkXdp::HwProgId(number)
        | LinkXdp::ProgId(number) => Some(*number),
        _ => None,
    };
    attributes.iter().filter_map(number).find(|number| *number != 0)
}

fn described(messages: &[RouteNetlinkMessage]) -> Vec<Link> {
    let links = messages.iter().filter_map(|message| match message {
        RouteNetlinkMessage::NewLink(link) => Some(Link::from(link)),
        _ => None,
    });
    links.collect()
}

impl Netlink {
    /// Creates a veth pair.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses.
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

    pub fn links(&mut self) -> Result<Vec<Link>, NetlinkError> {
        let request = RouteNetlinkMessage::GetLink(LinkMessage::default());
        Ok(described(&self.dump(request, "list the interfaces")?))
    }

    /// Returns the interface with this index; none if it does not exist.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses.
    pub fn link(&mut self, index: u32) -> Result<Option<Link>, NetlinkError> {
        let mut request = LinkMessage::default();
        request.header.index = index;
        self.find_link(request, &format!("find interface {index}"))
    }

    /// Returns the interface with this name; none if it does not exist.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses.
    pub fn link_named(&mut self, name: &str) -> Result<Option<Link>, NetlinkError> {
        let mut request = LinkMessage::default();
        request.attributes.push(LinkAttribute::IfName(name.to_owned()));
        self.find_link(request, &format!("find the interface {name}"))
    }

    fn find_link(&mut self, request: LinkMessage, action: &str) -> Result<Option<Link>, NetlinkError> {
        match self.get(RouteNetlinkMessage::GetLink(request), action) {
            Ok(messages) => Ok(described(&messages).pop()),
            // The kernel returns ERANGE for a name longer than IFNAMSIZ.
            Err(error) if matches!(error.refusal_code(), Some(libc::ENODEV | libc::ERANGE)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the index of the interface with this name.
    ///
    /// # Errors
    /// Returns an error if the interface does not exist, or the kernel refuses.
    pub fn link_index(&mut self, name: &str) -> Result<u32, NetlinkError> {
        match self.link_named(name)? {
            Some(link) => Ok(link.index),
            None => Err(NetlinkError::Refused {
                action: format!("find the interface {name}"),
                source: std::io::Error::from_raw_os_error(libc::ENODEV),
                kernel_says: None,
            }),
        }
    }

    /// Moves an interface to another network namespace, where it has no addresses, qdiscs or routes. A physical
    /// device returns when that namespace ends.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses.
    pub fn move_link(&mut self, index: u32, namespace: BorrowedFd<'_>) -> Result<(), NetlinkError> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.attributes.push(LinkAttribute::NetNsFd(namespace.as_raw_fd()));
        let action = format!("move interface {index} into another network namespace");
        self.change(RouteNetlinkMessage::SetLink(link), 0, &action)
    }

    pub fn set_up(&mut self, index: u32) -> Result<(), NetlinkError> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.header.flags = LinkFlags::Up;
        link.header.change_mask = LinkFlags::Up;
        self.change(RouteNetlinkMessage::SetLink(link), 0, &format!("set interface {index} up"))
    }

    /// Sets the device's maximum size of GSO packets, bytes.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses.
    pub fn set_gso_max_size(&mut self, index: u32, bytes: u32) -> Result<(), NetlinkError> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.attributes.push(LinkAttribute::GsoMaxSize(bytes));
        let action = format!("set gso_max_size of interface {index} to {bytes} bytes");
        self.change(RouteNetlinkMessage::SetLink(link), 0, &action)
    }

    /// Returns the device's maximum sizes of GSO packets.
    ///
    /// # Errors
    /// Returns an error if the interface does not exist, or the kernel refuses.
    pub fn gso_sizes(&mut self, index: u32) -> Result<GsoSizes, NetlinkError> {
        let link = self.link(index)?.ok_or_else(|| NetlinkError::Refused {
            action: format!("read gso_max_size of interface {index}"),
            source: std::io::Error::from_raw_os_error(libc::ENODEV),
            kernel_says: None,
        })?;
        Ok(link.gso)
    }

    /// Sets the device's maximum sizes of GSO packets.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses.
    pub fn set_gso_sizes(&mut self, index: u32, sizes: GsoSizes) -> Result<(), NetlinkError> {
        let (all, ipv4) = (LinkAttribute::GsoMaxSize, LinkAttribute::GsoIpv4MaxSize);
        self.set_sizes(index, "gso_max_size", sizes, all, ipv4)
    }

    /// Sets the device's maximum sizes of GRO packets.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses.
    pub fn set_gro_sizes(&mut self, index: u32, sizes: GsoSizes) -> Result<(), NetlinkError> {
        let (all, ipv4) = (LinkAttribute::GroMaxSize, LinkAttribute::GroIpv4MaxSize);
        self.set_sizes(index, "gro_max_size", sizes, all, ipv4)
    }

    /// Sets both sizes in one message. The kernel applies the IPv4 size last (`do_setlink`,
    /// net/core/rtnetlink.c), so the general size does not override it.
    fn set_sizes(
        &mut self,
        index: u32,
        name: &str,
        sizes: GsoSizes,
        all: fn(u32) -> LinkAttribute,
        ipv4: fn(u32) -> LinkAttribute,
    ) -> Result<(), NetlinkError> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.attributes.push(all(sizes.all));
        link.attributes.push(ipv4(sizes.ipv4));
        let action = format!("set {name} of interface {index} to {} bytes", sizes.all);
        self.change(RouteNetlinkMessage::SetLink(link), 0, &action)
    }

    pub fn rename(&mut self, index: u32, name: &str) -> Result<(), NetlinkError> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.attributes.push(LinkAttribute::IfName(name.to_owned()));
        self.change(RouteNetlinkMessage::SetLink(link), 0, &format!("rename interface {index} to {name}"))
    }

    /// Limits the segments per GSO packet of a device; with 1, TCP sends single segments, as without
    /// segmentation offload.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses.
    pub fn set_gso_max_segments(&mut self, index: u32, segments: u32) -> Result<(), NetlinkError> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.attributes.push(LinkAttribute::GsoMaxSegs(segments));
        let action = format!("set gso_max_segs of interface {index} to {segments}");
        self.change(RouteNetlinkMessage::SetLink(link), 0, &action)
    }

    /// Deletes an interface; of a veth pair, both ends.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses.
    pub fn delete_link(&mut self, index: u32) -> Result<(), NetlinkError> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        self.change(RouteNetlinkMessage::DelLink(link), 0, &format!("remove interface {index}"))
    }

    /// Returns the IPv4 and IPv6 addresses of an interface.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses.
    pub fn addresses(&mut self, index: u32) -> Result<Vec<IpAddr>, NetlinkError> {
        let all = self.all_addresses()?;
        Ok(all.into_iter().filter(|(_, owner)| *owner == index).map(|(address, _)| address).collect())
    }

    /// Returns the addresses of all interfaces, each with the interface's index.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses.
    pub fn all_addresses(&mut self) -> Result<Vec<(IpAddr, u32)>, NetlinkError> {
        let request = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        let mut found = Vec::new();
        for answer in self.dump(request, "list addresses")? {
            let RouteNetlinkMessage::NewAddress(message) = answer else { continue };
            let index = message.header.index;
            // On a point-to-point interface, `Address` is the peer's address and `Local` this host's. IPv6
            // has only `Address` (rtnetlink(7)).
            let (mut local, mut address) = (None, None);
            for attribute in message.attributes {
                match attribute {
                    AddressAttribute::Local(found) => local = Some(found),
                    AddressAttribute::Address(found) => address = Some(found),
                    _ => {}
                }
            }
            found.extend(local.or(address).map(|address| (address, index)));
        }
        Ok(found)
    }

    /// Adds an address. IPv6 addresses get no duplicate address detection, so that they are usable
    /// immediately.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses.
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
