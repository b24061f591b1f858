//! A device as it is found.

use evenkeel_datapath::{HookProgram, egress_programs};
use evenkeel_host::{Channels, Ethtool, Sysfs, XpsMap};
use evenkeel_netlink::tc_state::{CLSACT_EGRESS, FilterState, QdiscState};
use evenkeel_netlink::{Link, Netlink};

use crate::error::FairError;

/// A device and everything about it that a queue choice rests on.
#[derive(Clone, Debug)]
pub struct Device {
    /// Its number.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Whether it is set up.
    pub up: bool,
    /// Its driver; none if that does not tell.
    pub driver: Option<String>,
    /// Transmit queues in use.
    pub queues: u32,
    /// Channels, of a driver that has them.
    pub channels: Option<Channels>,
    /// Speed of the link, bit/s; none without carrier.
    pub speed_bps: Option<u64>,
    /// The XPS maps of every queue.
    pub xps: Vec<XpsMap>,
    /// Its root qdisc; none while it is down.
    pub root: Option<QdiscState>,
    /// Programs at tcx egress.
    pub programs: Vec<HookProgram>,
    /// Filters at clsact egress.
    pub filters: Vec<FilterState>,
}

impl Device {
    /// Reads a device.
    ///
    /// # Errors
    /// When the kernel refuses to tell.
    pub fn read(link: &Link, netlink: &mut Netlink, sysfs: &Sysfs) -> Result<Self, FairError> {
        let ethtool = Ethtool::open().ok();
        let qdiscs = netlink.qdiscs(link.index)?;
        let has_clsact = qdiscs.iter().any(|qdisc| qdisc.kind == "clsact");
        Ok(Self {
            index: link.index,
            name: link.name.clone(),
            up: link.up,
            driver: ethtool.as_ref().and_then(|ethtool| ethtool.driver(&link.name)),
            queues: sysfs.transmit_queues(&link.name)?,
            channels: ethtool.as_ref().and_then(|ethtool| ethtool.channels(&link.name)),
            speed_bps: sysfs.speed_bps(&link.name),
            xps: sysfs.xps_maps(&link.name)?,
            root: qdiscs.into_iter().find(|qdisc| qdisc.parent == evenkeel_netlink::tc::Handle::ROOT),
            programs: egress_programs(link.index.cast_signed())?,
            filters: if has_clsact { netlink.filters(link.index, CLSACT_EGRESS)? } else { Vec::new() },
        })
    }

    /// Its driver, in words.
    #[must_use]
    pub fn driver_name(&self) -> &str {
        self.driver.as_deref().unwrap_or("unknown")
    }

    /// Whether the root qdisc has a child for each transmit queue, and so counts by queue.
    #[must_use]
    pub fn counts_by_queue(&self) -> bool {
        self.root.as_ref().is_some_and(|root| root.kind == "mq")
    }

    /// Line rate for the ageing limit, bit/s: what the link says, else a usual one.
    #[must_use]
    pub fn rate_bps(&self) -> u64 {
        const USUAL: u64 = 10_000_000_000;
        self.speed_bps.unwrap_or(USUAL)
    }
}
