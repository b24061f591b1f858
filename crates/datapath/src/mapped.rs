//! BPF array maps seen as memory: reads and writes without a system call.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use crate::error::DatapathError;

/// `length` values of `T` that the kernel's programs change at any time: every access copies one
/// value, volatile, and no reference into it is ever handed out.
#[derive(Debug)]
pub(crate) struct Mapped<T> {
    memory: NonNull<T>,
    bytes: usize,
    length: usize,
    _values: PhantomData<T>,
}

// SAFETY: the memory belongs to the mapping, which no thread owns; all access is by volatile copies
// of plain integers, as it has to be with a writer in the kernel.
unsafe impl<T: Copy + Send> Send for Mapped<T> {}
// SAFETY: as above.
unsafe impl<T: Copy + Send> Sync for Mapped<T> {}

impl<T: Copy> Mapped<T> {
    /// Maps `length` values of an mmapable array map.
    pub(crate) fn new(map: BorrowedFd<'_>, length: usize) -> Result<Self, DatapathError> {
        let bytes = length.checked_mul(size_of::<T>()).filter(|bytes| *bytes > 0).ok_or_else(|| {
            DatapathError::Limit(format!("a BPF array of {length} values cannot be mapped"))
        })?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
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

    /// Pointer to a value, for the volatile access of one of its fields.
    pub(crate) fn pointer(&self, index: usize) -> *mut T {
        assert!(index < self.length, "index {index} of {}", self.length);
        // SAFETY: within the mapping, as just checked.
        unsafe { self.memory.as_ptr().add(index) }
    }

    /// Number of values.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// A copy of a value.
    pub(crate) fn read(&self, index: usize) -> T {
        // SAFETY: a valid, aligned pointer into the mapping; every bit pattern is a value of the
        // plain C structures that this is used with.
        unsafe { std::ptr::read_volatile(self.pointer(index)) }
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that `new` made, and no reference into it exists.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.bytes) };
    }
}
