//! Detects whether an interface that left its network namespace was deleted or moved.
//!
//! A request for the interface fails with the same error in both cases, but the notification differs.
//! For a moved interface, the notification has `IFLA_NEW_NETNSID` (`dev_change_net_namespace`,
//! net/core/dev.c). The socket must be opened while the interface exists. The socket's filter passes only
//! `RTM_DELLINK` of this interface, so that other notifications cannot fill the receive buffer.

use std::io;
use std::os::fd::AsRawFd;

use netlink_sys::constants::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    Deleted,
    Moved,
}

/// Listens for the removal of one interface from the network namespace in which the watch was opened.
pub struct DepartureWatch {
    socket: Socket,
    index: u32,
    seen: Option<Departure>,
}

/// From include/uapi/linux/rtnetlink.h.
const RTNLGRP_LINK: u32 = 1;
const RTM_DELLINK: u16 = 17;
/// From include/uapi/linux/if_link.h.
const IFLA_NEW_NETNSID: u16 = 45;
/// Lengths and offsets in `struct nlmsghdr` and `struct ifinfomsg`.
const HEADER_LENGTH: usize = 16;
const LINK_HEADER_LENGTH: usize = 16;
const TYPE_OFFSET: usize = 4;
const INDEX_OFFSET: usize = HEADER_LENGTH + 4;
const ATTRIBUTE_TYPE_MASK: u16 = 0x3fff;

impl DepartureWatch {
    /// Starts listening in the calling thread's network namespace.
    pub fn open(index: u32) -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        attach_filter(&socket, index)?;
        socket.bind(&SocketAddr::new(0, 0))?;
        socket.set_non_blocking(true)?;
        socket.add_membership(RTNLGRP_LINK)?;
        Ok(Self { socket, index, seen: None })
    }

    /// Returns how the interface left, or `None` while the interface exists or if the notification was
    /// missed.
    pub fn departure(&mut self) -> Option<Departure> {
        while let Ok((datagram, _)) = self.socket.recv_from_full() {
            self.seen = departure_in(&datagram, self.index).or(self.seen);
        }
        self.seen
    }
}

fn departure_in(message: &[u8], index: u32) -> Option<Departure> {
    let half = |at: usize| Some(u16::from_ne_bytes(message.get(at..at + 2)?.try_into().ok()?));
    let whole = |at: usize| Some(u32::from_ne_bytes(message.get(at..at + 4)?.try_into().ok()?));
    // When a port leaves its bridge, there is a similar notification with the family AF_BRIDGE.
    let of_interface = *message.get(HEADER_LENGTH)? == 0;
    let is_whole = message.len() >= HEADER_LENGTH + LINK_HEADER_LENGTH;
    if !is_whole || half(TYPE_OFFSET)? != RTM_DELLINK || whole(INDEX_OFFSET)? != index || !of_interface {
        return None;
    }
    let mut at = HEADER_LENGTH + LINK_HEADER_LENGTH;
    while let (Some(length), Some(kind)) = (half(at), half(at + 2)) {
        if kind & ATTRIBUTE_TYPE_MASK == IFLA_NEW_NETNSID {
            return Some(Departure::Moved);
        }
        at += usize::from(length).max(4).next_multiple_of(4);
    }
    Some(Departure::Deleted)
}

fn attach_filter(socket: &Socket, index: u32) -> io::Result<()> {
    // A BPF filter loads numbers in network byte order, but netlink uses the machine's byte order.
    let kind = u32::from(u16::from_be_bytes(RTM_DELLINK.to_ne_bytes()));
    let index = u32::from_be_bytes(index.to_ne_bytes());
    let step = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        step(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, 0, 0, TYPE_OFFSET as u32),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 3, kind),
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, INDEX_OFFSET as u32),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, index),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    ];
    let filter = libc::sock_fprog { len: program.len() as libc::c_ushort, filter: program.as_mut_ptr() };
    // SAFETY: the kernel copies the program before the call returns.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const filter).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, family: u8, index: u32, attributes: &[u16]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_LENGTH + LINK_HEADER_LENGTH];
        bytes[TYPE_OFFSET..TYPE_OFFSET + 2].copy_from_slice(&kind.to_ne_bytes());
        bytes[HEADER_LENGTH] = family;
        bytes[INDEX_OFFSET..INDEX_OFFSET + 4].copy_from_slice(&index.to_ne_bytes());
        for kind in attributes {
            bytes.extend(8_u16.to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend([0; 4]);
        }
        bytes
    }

    #[test]
    fn a_notification_tells_a_deletion_from_a_move() {
        let told = |bytes: &[u8]| departure_in(bytes, 7);
        assert_eq!(told(&message(RTM_DELLINK, 0, 7, &[3, 4])), Some(Departure::Deleted));
        assert_eq!(told(&message(RTM_DELLINK, 0, 7, &[3, IFLA_NEW_NETNSID])), Some(Departure::Moved));
        assert_eq!(told(&message(RTM_DELLINK, 7, 7, &[3])), None, "a port left its bridge");
        assert_eq!(told(&message(RTM_DELLINK, 0, 8, &[3])), None);
        assert_eq!(told(&message(16, 0, 7, &[3])), None);
        for length in 0..32 {
            assert_eq!(told(&message(RTM_DELLINK, 0, 7, &[3])[..length]), None, "{length}");
        }
        let mut endless = message(RTM_DELLINK, 0, 7, &[3]);
        endless[32..34].copy_from_slice(&0_u16.to_ne_bytes());
        assert_eq!(told(&endless), Some(Departure::Deleted));
    }
}
