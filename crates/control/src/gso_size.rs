//! Sets segment sizes as the device's `gso_max_size`.

use std::fs::File;
use std::io::{Seek, Write};
use std::sync::Arc;

use evenkeel_netlink::GsoSizes;
use evenkeel_netlink::Netlink;

use crate::backend::SegmentBackend;
use crate::error::ControlError;
use crate::gate::{Gate, Setting};

/// Flushes the routes. Running flows then look up their route again and adopt the device's segment size
/// (`sk_setup_caps`). The flush affects the whole network namespace.
#[derive(Debug)]
pub struct RouteRefresh {
    file: File,
}

impl RouteRefresh {
    /// Opens `/proc/sys/net/ipv4/route/flush` of the calling thread's network namespace.
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
            action: "flush the route cache (running flows keep the old segment size)".to_owned(),
            source,
        })
    }
}

pub struct DeviceSegments {
    netlink: Netlink,
    interface: u32,
    original: GsoSizes,
    /// The sizes that were set last.
    current: GsoSizes,
    routes: RouteRefresh,
    gate: Arc<dyn Gate>,
}

impl DeviceSegments {
    /// Reads the interface's sizes without changing them. `netlink` and `routes` must belong to the
    /// interface's network namespace.
    pub fn new(
        mut netlink: Netlink,
        interface: u32,
        routes: RouteRefresh,
        gate: Arc<dyn Gate>,
    ) -> Result<Self, ControlError> {
        let original = netlink.gso_sizes(interface)?;
        Ok(Self { netlink, interface, original, current: original, routes, gate })
    }

    /// Returns the sizes before the first change.
    #[must_use]
    pub fn original(&self) -> GsoSizes {
        self.original
    }

    /// Sets and checks both sizes: setting a `gso_max_size` of at most 64 KiB also changes
    /// `gso_ipv4_max_size`.
    fn put(&mut self, sizes: GsoSizes) -> Result<(), ControlError> {
        let Self { netlink, interface, current, gate, .. } = self;
        gate.pass(Setting::SegmentSizes(sizes), &mut || {
            let found = netlink.gso_sizes(*interface)?;
            if found != *current {
                return Err(ControlError::SetByOthers {
                    what: "gso_max_size".to_owned(),
                    found: format!("{} (IPv4: {})", found.all, found.ipv4),
                });
            }
            netlink.set_gso_sizes(*interface, sizes)?;
            let found = netlink.gso_sizes(*interface)?;
            if found != sizes {
                return Err(ControlError::ReadBack {
                    what: format!("gso_max_size of interface {interface}"),
                    set: u64::from(sizes.all),
                    found: format!("{} (IPv4: {})", found.all, found.ipv4),
                });
            }
            *current = sizes;
            Ok(())
        })
    }
}

/// Returns the sizes for a maximum segment of `bytes`. If the original IPv4 limit is at most `bytes`,
/// returns the original sizes. Otherwise returns both sizes reduced to `bytes`.
#[must_use]
pub fn sizes_of(bytes: u32, original: GsoSizes) -> GsoSizes {
    if bytes >= original.ipv4 {
        return original;
    }
    GsoSizes { all: bytes.min(original.all), ipv4: bytes }
}

impl SegmentBackend for DeviceSegments {
    fn name(&self) -> String {
        "gso_max_size".to_owned()
    }

    fn set(&mut self, bytes: u32) -> Result<(), ControlError> {
        self.put(sizes_of(bytes, self.original))
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
