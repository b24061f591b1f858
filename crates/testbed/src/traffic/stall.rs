//! A buffer with a missing page, which makes read(2) sleep while it owns the socket: the kernel copies to
//! the page with the socket locked (`tcp_recvmsg`). A page fault of a real application can sleep for a
//! similar time, for example on a swapped page.
//!
//! The page is registered with userfaultfd(2) (Documentation/admin-guide/mm/userfaultfd.rst).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use evenkeel_host::facts::page_bytes;

/// `UFFD_API`, and the requests of include/uapi/linux/userfaultfd.h.
const API: u64 = 0xaa;
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFDIO_ZEROPAGE: libc::c_ulong = 0xc020_aa04;
const MISSING_MODE: u64 = 1;

/// `struct uffdio_register` and `struct uffdio_zeropage`: start, length, mode, result.
type Range = [u64; 4];

/// A buffer for read(2). [`Self::missing`] removes its first page, so that the next access to this page
/// sleeps.
#[derive(Debug)]
pub struct StallingBuffer {
    start: *mut u8,
    length: usize,
    /// Length of the missing page. The kernel refuses a part of a page (`validate_range`, fs/userfaultfd.c).
    page: usize,
    stop: Arc<AtomicBool>,
    handler: Option<JoinHandle<()>>,
}

fn open() -> io::Result<OwnedFd> {
    // SAFETY: takes flags only.
    let descriptor = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as libc::c_int) })
}

/// Returns whether this process may use userfaultfd.
#[must_use]
pub fn is_available() -> bool {
    open().is_ok()
}

fn request<T>(descriptor: &OwnedFd, request: libc::c_ulong, argument: &mut T) -> io::Result<()> {
    // SAFETY: each request takes a pointer to its structure, which `argument` is.
    let result = unsafe { libc::ioctl(descriptor.as_raw_fd(), request, std::ptr::from_mut(argument)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

impl StallingBuffer {
    /// Maps at least `length` bytes. An access to the missing page sleeps for `stall`.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the mapping, userfaultfd or a thread.
    pub fn new(length: usize, stall: Duration) -> io::Result<Self> {
        let page = page_bytes() as usize;
        let length = length.next_multiple_of(page);
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), length, access, kind, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stop = Arc::new(AtomicBool::new(false));
        let mut buffer = Self { start: start.cast(), length, page, stop: Arc::clone(&stop), handler: None };
        let descriptor = open()?;
        request(&descriptor, UFFDIO_API, &mut [API, 0, 0])?;
        let missing = [start as u64, page as u64];
        request(&descriptor, UFFDIO_REGISTER, &mut range(missing, MISSING_MODE))?;
        buffer.handler = Some(
            std::thread::Builder::new()
                .name("page faults".to_owned())
                .spawn(move || handle(&descriptor, missing, stall, &stop))?,
        );
        Ok(buffer)
    }

    /// Returns the buffer, with its first page missing.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses.
    pub fn missing(&mut self) -> io::Result<&mut [u8]> {
        // SAFETY: the page belongs to the mapping, and no reference to it exists. The next access gets a
        // page of zeroes from the handler.
        let result = unsafe { libc::madvise(self.start.cast(), self.page, libc::MADV_DONTNEED) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping has this length, and lives as long as `self`.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.start, self.length) })
    }
}

fn range([start, length]: [u64; 2], mode: u64) -> Range {
    [start, length, mode, 0]
}

/// Resolves each fault after `stall`. `missing`: start and length of the page.
fn handle(descriptor: &OwnedFd, missing: [u64; 2], stall: Duration, stop: &AtomicBool) {
    const WAIT_MS: libc::c_int = 50;
    while !stop.load(Ordering::Relaxed) {
        let mut watched = libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let mut message = [0_u64; 4];
        // SAFETY: one entry, and a buffer for one `struct uffd_msg` of 32 bytes.
        let read = unsafe {
            libc::poll(&raw mut watched, 1, WAIT_MS);
            libc::read(descriptor.as_raw_fd(), message.as_mut_ptr().cast(), size_of_val(&message))
        };
        if read > 0 {
            std::thread::sleep(stall);
            // Ignore the error: another thread's access may already have filled the page.
            let _ = request(descriptor, UFFDIO_ZEROPAGE, &mut range(missing, 0));
        }
    }
}

impl Drop for StallingBuffer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(handler) = self.handler.take() {
            let _ = handler.join();
        }
        // SAFETY: the mapping was made with this length, and no reference to it exists any more.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}
