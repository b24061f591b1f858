//! BPF array maps that are mapped into memory, so that reads and writes need no system call.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use crate::error::DatapathError;

/// `length` values of `T` that BPF programs may change at any time. So every access is a volatile copy, and
/// no reference into the mapping is returned.
#[derive(Debug)]
pub(crate) struct Mapped<T> {
    memory: NonNull<T>,
    bytes: usize,
    length: usize,
    _values: PhantomData<T>,
}

// SAFETY: no thread owns the mapping; all access is by volatile copies of plain integers, as a concurrent
// writer in the kernel requires.
unsafe impl<T: Copy + Send> Send for Mapped<T> {}
// SAFETY: see the `Send` implementation.
unsafe impl<T: Copy + Send> Sync for Mapped<T> {}

impl<T: Copy> Mapped<T> {
    /// Maps an array map with `BPF_F_MMAPABLE` and `length` values.
    pub(crate) fn new(map: BorrowedFd<'_>, length: usize) -> Result<Self, DatapathError> {
        let bytes = length.checked_mul(size_of::<T>()).filter(|bytes| *bytes > 0).ok_or_else(|| {
            DatapathError::Limit(format!("a BPF array of {length} values cannot be mapped"))
        })?;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps no existing memory.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                map.as_raw_fd(),
                0,
            )
        };
        match NonNull::new(memory.cast::<T>()) {
            Some(pointer) if memory != libc::MAP_FAILED => {
                Ok(Self { memory: pointer, bytes, length, _values: PhantomData })
            }
            _ => Err(DatapathError::System { action: "map a BPF array", source: io::Error::last_os_error() }),
        }
    }

    /// Returns a pointer to a value, for volatile access to one of its fields.
    pub(crate) fn pointer(&self, index: usize) -> *mut T {
        assert!(index < self.length, "index {index} of {}", self.length);
        // SAFETY: the index was checked above.
        unsafe { self.memory.as_ptr().add(index) }
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    pub(crate) fn read(&self, index: usize) -> T {
        // SAFETY: a valid, aligned pointer into the mapping; every bit pattern is valid for the plain C
        // structures that `T` represents.
        unsafe { std::ptr::read_volatile(self.pointer(index)) }
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping of `new`, and no reference into it exists.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.bytes) };
    }
}
