//! Maximum packet sizes of interfaces, from the kernel or, in a recorded tree, from a file in the
//! format of `ip -d -j link show`.

use std::collections::BTreeMap;

use evenkeel_model::host::PacketSizes;
use evenkeel_netlink::Netlink;
use serde::{Deserialize, Serialize};

use super::distinct::{repeated, second};
use super::ranges::PACKET_BYTES;
use super::tree::Tree;
use crate::HostError;

/// Maximum size of a GRO packet if no size is recorded, bytes (`GRO_LEGACY_MAX_SIZE`,
/// include/linux/netdevice.h).
const LEGACY_BYTES: u32 = 65_536;

/// Name of the source for rules that need the sizes.
pub(super) const SOURCE: &str = "netlink/links";

/// An interface in the output of `ip -d -j link show`, with only the fields that this crate uses.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct LinkLine {
    ifname: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    gso_max_size: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gso_ipv4_max_size: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gro_max_size: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gro_ipv4_max_size: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tso_max_size: Option<u32>,
}

/// Returns the reason why the sizes of a NIC are impossible, if any.
pub(super) fn impossible(sizes: &PacketSizes) -> Option<String> {
    let figures = [("gro_max_size", Some(sizes.gro)), ("tso_max_size", sizes.tso)];
    let mut figures = figures.into_iter().filter_map(|(field, bytes)| Some((field, u64::from(bytes?))));
    if let Some((field, bytes)) = figures.find(|(_, bytes)| !PACKET_BYTES.has(*bytes)) {
        return Some(format!("{field}: {}", PACKET_BYTES.refusal(bytes)));
    }
    let most = sizes.tso.filter(|most| sizes.gso > *most)?;
    let source = "netif_set_tso_max_size, net/core/dev.c";
    Some(format!("gso_max_size: {} is impossible: at most {most}, the tso_max_size ({source})", sizes.gso))
}

pub(super) fn packet_sizes(tree: &Tree) -> Result<BTreeMap<String, PacketSizes>, HostError> {
    let lines: Vec<LinkLine> = if tree.is_live() {
        let links = Netlink::open().and_then(|mut netlink| netlink.links()).unwrap_or_else(|error| {
            tree.note(SOURCE, format!("largest packets of interfaces: {error}"));
            Vec::new()
        });
        let lines = links.into_iter().map(|link| LinkLine {
            ifname: link.name,
            gso_max_size: Some(link.gso.all),
            // A kernel that does not report the driver's limit has no separate sizes for IPv4. Then the
            // general sizes also apply to IPv4.
            gso_ipv4_max_size: link.tso_max.map(|_| link.gso.ipv4),
            gro_max_size: Some(link.gro.all),
            gro_ipv4_max_size: link.tso_max.map(|_| link.gro.ipv4),
            tso_max_size: link.tso_max,
        });
        let lines: Vec<LinkLine> = lines.collect();
        tree.keep_answers("links.json", &lines);
        lines
    } else {
        tree.answers("links.json")?.unwrap_or_else(|| {
            tree.note(SOURCE, "the recording has no evenkeel/links.json");
            Vec::new()
        })
    };
    // Linux reports the driver's limit since 5.19, and sizes for IPv4 since 6.3. So a line with a size for
    // IPv4 but without the driver's limit is incomplete.
    let is_cut = |line: &LinkLine| {
        line.gso_max_size.is_none() || line.gso_ipv4_max_size.is_some() && line.tso_max_size.is_none()
    };
    if let Some(line) = lines.iter().find(|line| is_cut(line)) {
        let name = &line.ifname;
        tree.note(SOURCE, format!("evenkeel/links.json has no gso_max_size or no tso_max_size of {name}"));
    }
    if let Some((_, name)) = repeated(lines.iter().map(|line| &line.ifname)) {
        tree.note(SOURCE, format!("evenkeel/links.json: {}", second(name)));
    }
    let sizes = |line: LinkLine| {
        let (gso, gro) = (line.gso_max_size?, line.gro_max_size.unwrap_or(LEGACY_BYTES));
        let sizes = PacketSizes {
            gso,
            gso_ipv4: line.gso_ipv4_max_size.unwrap_or(gso),
            gro,
            gro_ipv4: line.gro_ipv4_max_size.unwrap_or(gro),
            tso: line.tso_max_size,
        };
        Some((line.ifname, sizes))
    };
    Ok(lines.into_iter().filter_map(sizes).collect())
}
