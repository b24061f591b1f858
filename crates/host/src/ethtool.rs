//! What a driver tells of itself and of its channels (`include/uapi/linux/ethtool.h`).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Queues that a device has and could have (`struct ethtool_channels`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Channels {
    /// Transmit-only channels in use.
    pub transmit: u32,
    /// Transmit-only channels at most.
    pub transmit_most: u32,
    /// Channels that transmit and receive, in use.
    pub combined: u32,
    /// Channels that transmit and receive, at most.
    pub combined_most: u32,
}

impl Channels {
    /// Transmit queues that the device could have.
    #[must_use]
    pub fn transmit_queues_most(&self) -> u32 {
        self.transmit_most.max(self.combined_most)
    }
}

/// Asks drivers, over a socket of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Ethtool(OwnedFd);

const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
/// `struct ethtool_drvinfo`, of which the driver's name stands behind the command.
const DRIVER_INFORMATION_LENGTH: usize = 196;
const DRIVER_NAME: std::ops::Range<usize> = 4..36;
/// `struct ethtool_channels`: command, four maxima (rx, tx, other, combined), four counts.
const CHANNELS_WORDS: usize = 9;

#[repr(C)]
struct Request {
    name: [u8; libc::IFNAMSIZ],
    data: *mut libc::c_void,
    /// `struct ifreq` is longer than what is used of it here.
    rest: [u8; 16],
}

impl Ethtool {
    /// Opens a socket.
    ///
    /// # Errors
    /// When the system has none to give.
    pub fn open() -> io::Result<Self> {
        // SAFETY: takes three numbers.
        let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just gave this descriptor to us alone.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(socket) }))
    }

    /// Name of an interface's driver; none if it has none that tells.
    #[must_use]
    pub fn driver(&self, interface: &str) -> Option<String> {
        let mut information = [0_u8; DRIVER_INFORMATION_LENGTH];
        information[..4].copy_from_slice(&ETHTOOL_GDRVINFO.to_ne_bytes());
        self.ask(interface, &mut information).ok()?;
        let name = information[DRIVER_NAME].split(|byte| *byte == 0).next()?;
        (!name.is_empty()).then(|| String::from_utf8_lossy(name).into_owned())
    }

    /// An interface's channels; none of a driver without them.
    #[must_use]
    pub fn channels(&self, interface: &str) -> Option<Channels> {
        let mut bytes = [0_u8; CHANNELS_WORDS * 4];
        bytes[..4].copy_from_slice(&ETHTOOL_GCHANNELS.to_ne_bytes());
        self.ask(interface, &mut bytes).ok()?;
        let word = |at: usize| bytes.get(at * 4..at * 4 + 4)?.try_into().ok().map(u32::from_ne_bytes);
        Some(Channels {
            transmit_most: word(2)?,
            combined_most: word(4)?,
            transmit: word(6)?,
            combined: word(8)?,
        })
    }

    /// `SIOCETHTOOL` with a structure that the kernel reads and fills.
    fn ask(&self, interface: &str, data: &mut [u8]) -> io::Result<()> {
        let mut request =
            Request { name: [0; libc::IFNAMSIZ], data: data.as_mut_ptr().cast(), rest: [0; 16] };
        if interface.len() >= request.name.len() {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        request.name[..interface.len()].copy_from_slice(interface.as_bytes());
        // SAFETY: the request is as long as `struct ifreq`, and its data as long as the structure that
        // the command in its first word has the kernel fill.
        let result =
            unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SIOCETHTOOL as libc::Ioctl, &raw mut request) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn what_is_not_there_has_no_driver() {
        let ethtool = Ethtool::open().unwrap();
        assert_eq!(ethtool.driver("evk-not-here"), None);
        assert_eq!(ethtool.driver("a-name-that-no-interface-can-have"), None);
        assert_eq!(ethtool.channels("lo"), None);
    }
}
