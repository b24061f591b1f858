//! XDP features of a device (`Documentation/netlink/specs/netdev.yaml`, `include/uapi/linux/netdev.h`;
//! Linux 6.3 and later).

use netlink_packet_core::DefaultNla;

use crate::generic::GenericNetlink;
use crate::tc::words;
use crate::transport::NetlinkError;

const FAMILY: &str = "netdev";
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
/// `NETDEV_XDP_ACT_BASIC`: a program can pass and drop packets.
const BASIC: u64 = 1;
/// `NETDEV_XDP_ACT_REDIRECT`: a program can redirect packets, for example to another CPU.
const REDIRECT: u64 = 2;

/// Returns whether an interface's driver runs XDP programs that redirect packets, or `None` if the
/// kernel does not report XDP features.
pub fn redirects_by_xdp(index: u32) -> Result<Option<bool>, NetlinkError> {
    let mut netlink = GenericNetlink::open()?;
    let Some(family) = netlink.family(FAMILY)? else { return Ok(None) };
    let wanted = vec![DefaultNla::new(NETDEV_A_DEV_IFINDEX, words(&[index]))];
    let action = format!("read the XDP features of interface {index}");
    let answers = netlink.request(family, NETDEV_CMD_DEV_GET, wanted, &action)?;
    let features = answers.iter().find_map(|answer| answer.uint(NETDEV_A_DEV_XDP_FEATURES));
    Ok(features.map(|features| features & (BASIC | REDIRECT) == BASIC | REDIRECT))
}
