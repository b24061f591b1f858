//! Segment sizes as the device's `gso_max_size`.

use std::fs::File;
use std::io::{Seek, Write};

use evenkeel_netlink::GsoSizes;
use evenkeel_netlink::Netlink;

use crate::backend::SegmentBackend;
use crate::error::ControlError;

/// Makes running flows look their routes up anew, and with them the device's segment size
/// (`sk_setup_caps`): all of a network namespace at once.
#[derive(Debug)]
pub struct RouteRefresh {
    file: File,
}

impl RouteRefresh {
    /// For the network namespace of the calling thread.
    ///
    /// # Errors
    /// When the kernel's file cannot be opened for writing.
    pub fn open() -> Result<Self, ControlError> {
        const PATH: &str = "/proc/sys/net/ipv4/route/flush";
        let file = File::options()
            .write(true)
            .open(PATH)
            .map_err(|source| ControlError::System { action: format!("open {PATH}"), source })?;
        Ok(Self { file })
    }

    fn now(&mut self) -> Result<(), ControlError> {
        self.file.rewind().and_then(|()| self.file.write_all(b"1\n")).map_err(|source| ControlError::System {
            action: "flush the route cache, so that running flows take the new segment size".to_owned(),
            source,
        })
    }
}

/// The segment size of one interface.
pub struct DeviceSegments {
    netlink: Netlink,
    interface: u32,
    original: GsoSizes,
    routes: RouteRefresh,
}

impl DeviceSegments {
    /// Reads what the interface has; nothing is changed yet. `netlink` and `routes` are of the interface's
    /// network namespace.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn new(mut netlink: Netlink, interface: u32, routes: RouteRefresh) -> Result<Self, ControlError> {
        let original = netlink.gso_sizes(interface)?;
        Ok(Self { netlink, interface, original, routes })
    }

    /// What the interface had at first.
    #[must_use]
    pub fn original(&self) -> GsoSizes {
        self.original
    }

    /// `gso_max_size` drags `gso_ipv4_max_size` along where it is at most 64 KiB, so both are set and checked.
    fn put(&mut self, sizes: GsoSizes) -> Result<(), ControlError> {
        self.netlink.set_gso_sizes(self.interface, sizes)?;
        let found = self.netlink.gso_sizes(self.interface)?;
        if found != sizes {
            return Err(ControlError::ReadBack {
                what: format!("gso_max_size of interface {}", self.interface),
                set: u64::from(sizes.all),
                found: format!("{} (IPv4: {})", found.all, found.ipv4),
            });
        }
        Ok(())
    }
}

impl SegmentBackend for DeviceSegments {
    fn name(&self) -> String {
        "gso_max_size".to_owned()
    }

    fn set(&mut self, bytes: u32) -> Result<(), ControlError> {
        let sizes = GsoSizes { all: bytes.min(self.original.all), ipv4: bytes.min(self.original.ipv4) };
        self.put(sizes)
    }

    fn refresh(&mut self) -> Result<(), ControlError> {
        self.routes.now()
    }

    fn restore(&mut self) -> Result<(), ControlError> {
        if self.netlink.gso_sizes(self.interface)? != self.original {
            self.put(self.original)?;
            self.routes.now()?;
        }
        Ok(())
    }
}
