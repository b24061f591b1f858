//! Measures the time to copy a byte from the last-level cache, and from the memory of a node.

use std::fs;
use std::io;
use std::ptr::{self, NonNull};
use std::time::Instant;

use nix::errno::Errno;

use crate::CalibrateError;

const PAGE: usize = 4096;
/// Size of a buffer in memory, and of the part that is copied at a time, bytes.
const MEMORY: usize = 64 << 20;
const PART: usize = 1 << 20;
/// Size of the buffer of a reading application, bytes.
const TARGET: usize = 128 << 10;

/// Anonymous memory of this process.
struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

impl Mapping {
    /// Maps memory of a node, or of any node if `node` is `None`. Writes every page, so that the kernel
    /// allocates it.
    fn new(length: usize, node: Option<u32>) -> Result<Self, CalibrateError> {
        let failed = CalibrateError::system("map memory");
        // SAFETY: a new anonymous mapping at an address that the kernel chooses.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        let start = if start == libc::MAP_FAILED { None } else { NonNull::new(start.cast::<u8>()) };
        let Some(start) = start else { return Err(failed(io::Error::last_os_error())) };
        let mapping = Self { start, length };
        // Huge pages, as in the kernel's own mapping of packets. SAFETY: the range is the mapping.
        unsafe { libc::madvise(mapping.start.as_ptr().cast(), length, libc::MADV_HUGEPAGE) };
        if let Some(node) = node {
            mapping.bind(node)?;
        }
        // SAFETY: the range is the mapping, which only this value uses.
        unsafe { ptr::write_bytes(mapping.start.as_ptr(), 0x5a, length) };
        Ok(mapping)
    }

    /// Lets the kernel allocate pages only on this node (mbind(2)).
    fn bind(&self, node: u32) -> Result<(), CalibrateError> {
        const MPOL_BIND: libc::c_ulong = 2;
        const BITS: usize = libc::c_ulong::BITS as usize;
        let mut mask = vec![0 as libc::c_ulong; node as usize / BITS + 1];
        if let Some(word) = mask.last_mut() {
            *word = 1 << (node as usize % BITS);
        }
        // mbind(2) reads `maxnode - 1` bits of the mask (get_nodes, mm/mempolicy.c).
        let bits = mask.len() * BITS + 1;
        // SAFETY: the range is the mapping, and the mask has as many bits as stated.
        let result = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.start.as_ptr(),
                self.length,
                MPOL_BIND,
                mask.as_ptr(),
                bits,
                0 as libc::c_ulong,
            )
        };
        Errno::result(result)
            .map(drop)
            .map_err(|error| CalibrateError::system("bind memory to a node")(error.into()))
    }

    fn page(&self, number: usize) -> *mut u8 {
        let at = number * PAGE % self.length.max(PAGE);
        // SAFETY: the offset is within the mapping, whose length is a multiple of a page.
        unsafe { self.start.as_ptr().add(at) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping, and no pointer to it is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

// SAFETY: the memory belongs to the value alone.
unsafe impl Send for Mapping {}

/// Copies a page. On x86_64, copies as the kernel does on processors with ERMS (`copy_user_generic`,
/// arch/x86).
fn copy_page(from: *const u8, to: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: both pages are mapped and do not overlap.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rcx") PAGE => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: as above.
    unsafe {
        ptr::copy_nonoverlapping(from, to, PAGE);
    }
}

/// Writes a page back to memory, and removes it from all caches.
#[cfg(target_arch = "x86_64")]
fn evict(page: *const u8) {
    const LINE: usize = 64;
    for line in 0..PAGE / LINE {
        // SAFETY: the line is within a mapped page.
        unsafe { core::arch::x86_64::_mm_clflush(page.add(line * LINE)) };
    }
}

/// Returns the numbers from 0 to `count` - 1 in a pseudo-random order, which a prefetcher cannot predict. The
/// order is the same in every run.
fn shuffled(count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    // Fisher and Yates; the numbers of a linear congruential generator (Knuth, MMIX).
    let mut state = 1_u64;
    for at in (1..count).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(at, (state >> 33) as usize % (at + 1));
    }
    order
}

/// A buffer whose pages are copied.
pub(crate) struct Source {
    memory: Mapping,
    target: Mapping,
    order: Vec<usize>,
    /// First page of the next part of a buffer in memory; `None` for a buffer in the cache.
    next: Option<usize>,
}

impl Source {
    /// Creates a buffer that fits in the last-level cache, but not in the caches of a core. Returns `None` if
    /// the sizes of the caches are unknown, or too close to each other.
    pub(crate) fn cached(core: u32) -> Result<Option<Self>, CalibrateError> {
        let Some((own, last)) = caches(core) else { return Ok(None) };
        let length = (4 * own).min(last / 2) / PAGE * PAGE;
        // A large part of a smaller buffer could stay in the core's cache.
        if length < 2 * own {
            return Ok(None);
        }
        Ok(Some(Self {
            memory: Mapping::new(length, None)?,
            target: Mapping::new(TARGET, None)?,
            order: shuffled(length / PAGE),
            next: None,
        }))
    }

    /// Creates a buffer in the memory of a node, or of any node if `node` is `None`. Returns `None` except on
    /// x86_64, because only there this module can evict a page from the caches.
    pub(crate) fn in_memory(node: Option<u32>) -> Result<Option<Self>, CalibrateError> {
        if cfg!(not(target_arch = "x86_64")) {
            return Ok(None);
        }
        Ok(Some(Self {
            memory: Mapping::new(MEMORY, node)?,
            target: Mapping::new(TARGET, None)?,
            order: shuffled(PART / PAGE),
            next: Some(0),
        }))
    }

    /// Copies the whole buffer, or its next part. Returns the time per byte, ns.
    pub(crate) fn copy(&mut self) -> f64 {
        let base = self.next.unwrap_or(0);
        if let Some(next) = &mut self.next {
            *next = (*next + PART / PAGE) % (MEMORY / PAGE);
            #[cfg(target_arch = "x86_64")]
            {
                self.order.iter().for_each(|page| evict(self.memory.page(base + page)));
                // SAFETY: a fence.
                unsafe { core::arch::x86_64::_mm_mfence() };
            }
        }
        let began = Instant::now();
        for (count, page) in self.order.iter().enumerate() {
            copy_page(self.memory.page(base + page), self.target.page(count));
        }
        began.elapsed().as_nanos() as f64 / (self.order.len() * PAGE) as f64
    }
}

/// Returns the sizes of a core's cache below the last level, and of the last-level cache, bytes. Returns
/// `None` if sysfs does not list them, or if the last level is below 3.
fn caches(core: u32) -> Option<(usize, usize)> {
    let mut levels: Vec<(u32, usize)> = Vec::new();
    for index in 0..8 {
        let read = |name: &str| {
            let path = format!("/sys/devices/system/cpu/cpu{core}/cache/index{index}/{name}");
            fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
        };
        let Some(kind) = read("type") else { break };
        if kind != "Instruction" {
            levels.push((read("level")?.parse().ok()?, bytes(&read("size")?)?));
        }
    }
    levels.sort_unstable();
    match levels.as_slice() {
        [.., (own_level, own), (last_level, last)] if own_level < last_level && *last_level >= 3 => {
            Some((*own, *last))
        }
        _ => None,
    }
}

/// Parses a size of sysfs, such as `2048K`.
fn bytes(text: &str) -> Option<usize> {
    text.strip_suffix('K')?.parse::<usize>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_page_is_visited_once() {
        let mut order = shuffled(1000);
        assert_ne!(order, (0..1000).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..1000).collect::<Vec<_>>());
        assert_eq!((shuffled(0), shuffled(1)), (Vec::new(), vec![0]));
    }

    #[test]
    fn a_copy_has_the_bytes_of_its_source() {
        let (from, to) = (Mapping::new(PAGE, None).unwrap(), Mapping::new(2 * PAGE, None).unwrap());
        // SAFETY: the mapping has a page.
        unsafe { ptr::write_bytes(from.page(0), 0x17, PAGE) };
        copy_page(from.page(0), to.page(1));
        // SAFETY: the bytes are within the mapping.
        let byte = |at: usize| unsafe { *to.start.as_ptr().add(at) };
        assert_eq!([byte(0), byte(PAGE - 1), byte(PAGE), byte(2 * PAGE - 1)], [0x5a, 0x5a, 0x17, 0x17]);
    }

    #[test]
    fn sizes_of_caches_are_those_of_sysfs() {
        assert_eq!(
            (bytes("2048K"), bytes("48K"), bytes("2M"), bytes("")),
            (Some(2 << 20), Some(48 << 10), None, None)
        );
    }

    #[test]
    fn memory_of_an_absent_node_is_an_error() {
        assert!(Mapping::new(PAGE, Some(1000)).is_err());
    }
}
