//! Links and addresses.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use evenkeel_model::text::name_text;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::tc_state::{attribute, push_attribute};
use crate::transport::{Netlink, NetlinkError, RawMessage};

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
/// Length of `struct ifinfomsg`.
const HEADER_LENGTH: usize = 16;
const INDEX_OFFSET: usize = 4;
const FLAGS_OFFSET: usize = 8;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
/// Length of `struct ifaddrmsg`. The index has the same offset as in `struct ifinfomsg`.
const ADDRESS_HEADER_LENGTH: usize = 8;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// include/uapi/linux/if_link.h.
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_ALT_IFNAME: u16 = 53;
const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_GSO_MAX_SIZE: u16 = 41;
const IFLA_XDP: u16 = 43;
const IFLA_GRO_MAX_SIZE: u16 = 58;
const IFLA_TSO_MAX_SIZE: u16 = 59;
const IFLA_GSO_IPV4_MAX_SIZE: u16 = 63;
const IFLA_GRO_IPV4_MAX_SIZE: u16 = 64;
/// `IFLA_XDP_DRV_PROG_ID`, `_SKB_`, `_HW_`, and `IFLA_XDP_PROG_ID`.
const XDP_PROGRAMS: [u16; 4] = [5, 6, 7, 4];

/// `GSO_LEGACY_MAX_SIZE` (include/linux/netdevice.h): the maximum size on kernels that do not report a
/// size.
const LEGACY_GSO_MAX_BYTES: u32 = 65_536;

#[derive(Clone, Copy, Debug)]
pub struct VethOptions<'a> {
    pub name: &'a str,
    pub peer_name: &'a str,
    pub peer_namespace: BorrowedFd<'a>,
    /// Number of transmit queues, and of receive queues, of each end.
    pub queues: u32,
    pub mtu: u32,
}

/// Maximum sizes of GSO packets that the stack builds for a device, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GsoSizes {
    /// `gso_max_size`: for IPv6, and for protocols without a separate limit. With BIG TCP, it is above 64
    /// KiB.
    pub all: u32,
    /// `gso_ipv4_max_size` (since Linux 6.3). Setting `gso_max_size` to 64 KiB or less also sets
    /// `gso_ipv4_max_size` (`netif_set_gso_max_size`). On older kernels, the field equals `all`.
    pub ipv4: u32,
}

impl GsoSizes {
    /// Fills in the sizes of older kernels, which do not report them.
    fn of(all: Option<u32>, ipv4: Option<u32>) -> Self {
        let all = all.unwrap_or(LEGACY_GSO_MAX_BYTES);
        Self { all, ipv4: ipv4.unwrap_or(all) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Index, which a rename does not change.
    pub index: u32,
    /// Bytes that are not UTF-8 are escaped.
    pub name: String,
    /// Link-layer address; may be empty.
    pub address: Vec<u8>,
    /// Flag `IFF_UP`.
    pub up: bool,
    /// Allocated queues; fewer may be in use.
    pub transmit_queues: u32,
    /// Id of the XDP program. If there are several programs, the program in native mode, else in generic
    /// mode.
    pub xdp_program: Option<u32>,
    pub gso: GsoSizes,
    /// Maximum sizes of GRO packets, bytes. Setting `gro_max_size` to 64 KiB or less also sets the size
    /// for IPv4 (`netif_set_gro_max_size`).
    pub gro: GsoSizes,
    /// Largest packet that the driver can segment (`tso_max_size`, since Linux 5.19), bytes.
    pub tso_max: Option<u32>,
}

impl Link {
    /// Reads an answer. The function parses only the attributes that it needs. So an unexpected form of
    /// another attribute cannot hide an interface.
    fn read(message: &RawMessage) -> Option<Self> {
        let word = |at: usize| message.payload.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
        let (index, flags) = (word(INDEX_OFFSET)?, word(FLAGS_OFFSET)?);
        let list = message.payload.get(HEADER_LENGTH..)?;
        let value = |kind| attribute(list, kind);
        let number = |kind| number(list, kind);
        let name = value(IFLA_IFNAME)?.split(|byte| *byte == 0).next().unwrap_or_default();
        Some(Self {
            index,
            name: name_text(name),
            address: value(IFLA_ADDRESS).unwrap_or_default().to_vec(),
            up: LinkFlags::from_bits_retain(flags).contains(LinkFlags::Up),
            transmit_queues: number(IFLA_NUM_TX_QUEUES).unwrap_or(1),
            xdp_program: value(IFLA_XDP).and_then(xdp_program),
            gso: GsoSizes::of(number(IFLA_GSO_MAX_SIZE), number(IFLA_GSO_IPV4_MAX_SIZE)),
            gro: GsoSizes::of(number(IFLA_GRO_MAX_SIZE), number(IFLA_GRO_IPV4_MAX_SIZE)),
            tso_max: number(IFLA_TSO_MAX_SIZE),
        })
    }
}

fn number(list: &[u8], kind: u16) -> Option<u32> {
    attribute(list, kind)?.try_into().ok().map(u32::from_ne_bytes)
}

fn xdp_program(list: &[u8]) -> Option<u32> {
    XDP_PROGRAMS.iter().filter_map(|kind| number(list, *kind)).find(|program| *program != 0)
}

/// Returns the local address in an answer, and its interface. On a point-to-point interface,
/// `IFA_ADDRESS` is the peer's address, and `IFA_LOCAL` is this host's address. Without a peer, IPv6
/// has only `IFA_ADDRESS` (rtnetlink(7)).
fn read_address(message: &RawMessage) -> Option<(IpAddr, u32)> {
    let index = message.payload.get(INDEX_OFFSET..INDEX_OFFSET + 4)?.try_into().ok()?;
    let list = message.payload.get(ADDRESS_HEADER_LENGTH..)?;
    let bytes = attribute(list, IFA_LOCAL).or_else(|| attribute(list, IFA_ADDRESS))?;
    let address = match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
        _ => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?),
    };
    Some((address, u32::from_ne_bytes(index)))
}

/// Creates a request for one interface, by its index or name (index 0: by name only), or for all
/// interfaces.
pub(crate) fn get_link(index: u32, name: Option<&str>) -> RawMessage {
    let mut payload = vec![0; HEADER_LENGTH];
    payload[INDEX_OFFSET..INDEX_OFFSET + 4].copy_from_slice(&index.to_ne_bytes());
    if let Some(name) = name {
        // The kernel also looks for alternative names with both attributes, but only `IFLA_ALT_IFNAME`
        // may hold a name of `IFNAMSIZ` bytes or more.
        let attribute = if name.len() < libc::IFNAMSIZ { IFLA_IFNAME } else { IFLA_ALT_IFNAME };
        push_attribute(&mut payload, attribute, &[name.as_bytes(), &[0]].concat());
    }
    RawMessage { kind: RTM_GETLINK, payload }
}

pub(crate) fn of_links(messages: &[RawMessage]) -> impl Iterator<Item = &RawMessage> {
    messages.iter().filter(|message| message.kind == RTM_NEWLINK)
}

fn described(messages: &[RawMessage]) -> Vec<Link> {
    of_links(messages).filter_map(Link::read).collect()
}

impl Netlink {
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
        Ok(described(&self.dump_raw(get_link(0, None), "list the interfaces")?))
    }

    /// Returns the interface with this index, or `None` if the interface does not exist.
    pub fn link(&mut self, index: u32) -> Result<Option<Link>, NetlinkError> {
        self.find_link(get_link(index, None), &format!("find interface {index}"))
    }

    /// Returns the interface with this name or alternative name, or `None` if the interface does not
    /// exist.
    pub fn link_named(&mut self, name: &str) -> Result<Option<Link>, NetlinkError> {
        self.find_link(get_link(0, Some(name)), &format!("find the interface {name}"))
    }

    fn find_link(&mut self, request: RawMessage, action: &str) -> Result<Option<Link>, NetlinkError> {
        match self.get_raw(request, action) {
            Ok(messages) => Ok(described(&messages).pop()),
            // The kernel returns ERANGE for a name above the maximum length. Before Linux 5.5, the
            // kernel returns EINVAL for a name longer than `IFNAMSIZ`.
            Err(error)
                if matches!(error.refusal_code(), Some(libc::ENODEV | libc::ERANGE | libc::EINVAL)) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

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

    /// Moves an interface to another network namespace. The interface loses its addresses, qdiscs and routes.
    /// When that namespace ends, the kernel moves a physical device to the initial namespace.
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

    pub fn set_gso_max_size(&mut self, index: u32, bytes: u32) -> Result<(), NetlinkError> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.attributes.push(LinkAttribute::GsoMaxSize(bytes));
        let action = format!("set gso_max_size of interface {index} to {bytes} bytes");
        self.change(RouteNetlinkMessage::SetLink(link), 0, &action)
    }

    pub fn gso_sizes(&mut self, index: u32) -> Result<GsoSizes, NetlinkError> {
        let link = self.link(index)?.ok_or_else(|| NetlinkError::Refused {
            action: format!("read gso_max_size of interface {index}"),
            source: std::io::Error::from_raw_os_error(libc::ENODEV),
            kernel_says: None,
        })?;
        Ok(link.gso)
    }

    pub fn set_gso_sizes(&mut self, index: u32, sizes: GsoSizes) -> Result<(), NetlinkError> {
        let (all, ipv4) = (LinkAttribute::GsoMaxSize, LinkAttribute::GsoIpv4MaxSize);
        self.set_sizes(index, "gso_max_size", sizes, all, ipv4)
    }

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

    /// Limits the segments per GSO packet of a device. With a limit of 1, TCP sends single segments, as
    /// without segmentation offload.
    pub fn set_gso_max_segments(&mut self, index: u32, segments: u32) -> Result<(), NetlinkError> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.attributes.push(LinkAttribute::GsoMaxSegs(segments));
        let action = format!("set gso_max_segs of interface {index} to {segments}");
        self.change(RouteNetlinkMessage::SetLink(link), 0, &action)
    }

    /// Deletes an interface. For a veth pair, the kernel deletes both ends.
    pub fn delete_link(&mut self, index: u32) -> Result<(), NetlinkError> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        self.change(RouteNetlinkMessage::DelLink(link), 0, &format!("remove interface {index}"))
    }

    /// Returns the IPv4 and IPv6 addresses of an interface.
    pub fn addresses(&mut self, index: u32) -> Result<Vec<IpAddr>, NetlinkError> {
        let all = self.all_addresses()?;
        Ok(all.into_iter().filter(|(_, owner)| *owner == index).map(|(address, _)| address).collect())
    }

    /// Returns the addresses of all interfaces, each with the interface's index.
    pub fn all_addresses(&mut self) -> Result<Vec<(IpAddr, u32)>, NetlinkError> {
        let request = RawMessage { kind: RTM_GETADDR, payload: vec![0; ADDRESS_HEADER_LENGTH] };
        let answers = self.dump_raw(request, "list addresses")?;
        Ok(answers.iter().filter(|answer| answer.kind == RTM_NEWADDR).filter_map(read_address).collect())
    }

    /// Adds an address. IPv6 addresses get no duplicate address detection, so they are usable
    /// immediately.
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
