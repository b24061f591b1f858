//! Segment sizes as the device's `gso_max_size`.

use std::fs::File;
use std::io::{Read, Seek, Write};

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

/// How much of a flow TCP keeps below its socket (`net.ipv4.tcp_limit_output_bytes`): of every flow of a
/// network namespace.
///
/// TCP small queues let a flow have two segments below its socket, or what its pacing rate sends in a
/// millisecond if that is more, and the pacing rate follows the congestion window. A window that grew while
/// segments were large lets a flow have six small ones there, and in a FIFO its share is as much larger: with
/// 48 flows on 8 queues the long-window unfairness was 1.3 where equal backlogs gave 0.04. The window does not
/// come back by itself, since a sender that never waits for it never loses it. So while segments are small,
/// the limit is the same for all.
#[derive(Debug)]
pub struct OutputLimit {
    file: File,
    original: u64,
}

impl OutputLimit {
    /// For the network namespace of the calling thread.
    ///
    /// # Errors
    /// When the kernel's file cannot be opened or read.
    pub fn open() -> Result<Self, ControlError> {
        let system = |source| ControlError::System { action: format!("read {OUTPUT_LIMIT}"), source };
        let file = File::options().read(true).write(true).open(OUTPUT_LIMIT).map_err(system)?;
        let mut limit = Self { file, original: 0 };
        limit.original = limit.read()?;
        Ok(limit)
    }

    fn read(&mut self) -> Result<u64, ControlError> {
        let system = |source| ControlError::System { action: format!("read {OUTPUT_LIMIT}"), source };
        let mut text = String::new();
        self.file.rewind().and_then(|()| self.file.read_to_string(&mut text)).map_err(system)?;
        text.trim()
            .parse()
            .map_err(|_| system(std::io::Error::other(format!("'{}' is no number", text.trim()))))
    }

    fn put(&mut self, bytes: u64) -> Result<(), ControlError> {
        let text = format!("{bytes}\n");
        self.file.rewind().and_then(|()| self.file.write_all(text.as_bytes())).map_err(|source| {
            ControlError::System { action: format!("write {bytes} to {OUTPUT_LIMIT}"), source }
        })?;
        let found = self.read()?;
        if found == bytes {
            return Ok(());
        }
        Err(ControlError::ReadBack { what: OUTPUT_LIMIT.to_owned(), set: bytes, found: found.to_string() })
    }
}

const OUTPUT_LIMIT: &str = "/proc/sys/net/ipv4/tcp_limit_output_bytes";

/// The segment size of one interface.
pub struct DeviceSegments {
    netlink: Netlink,
    interface: u32,
    original: GsoSizes,
    routes: RouteRefresh,
    limit: OutputLimit,
}

impl DeviceSegments {
    /// Reads what the interface has; nothing is changed yet. `netlink`, `routes` and `limit` are of the
    /// interface's network namespace.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn new(
        mut netlink: Netlink,
        interface: u32,
        routes: RouteRefresh,
        limit: OutputLimit,
    ) -> Result<Self, ControlError> {
        let original = netlink.gso_sizes(interface)?;
        Ok(Self { netlink, interface, original, routes, limit })
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

    fn limit_backlog(&mut self, bytes: Option<u64>) -> Result<(), ControlError> {
        let original = self.limit.original;
        self.limit.put(bytes.map_or(original, |bytes| bytes.min(original)))
    }

    fn refresh(&mut self) -> Result<(), ControlError> {
        self.routes.now()
    }

    fn restore(&mut self) -> Result<(), ControlError> {
        if self.netlink.gso_sizes(self.interface)? != self.original {
            self.put(self.original)?;
            self.routes.now()?;
        }
        let original = self.limit.original;
        if self.limit.read()? != original {
            self.limit.put(original)?;
        }
        Ok(())
    }
}
