//! File handles of network namespaces, which show whether a namespace exists without a process in it.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use serde::{Deserialize, Serialize};

const OWN: &str = "/proc/thread-self/ns/net";

/// A namespace's file handle (name_to_handle_at(2)): its type, a colon, and its bytes in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NamespaceHandle(String);

/// Layout of `struct file_handle`.
#[repr(C)]
struct FileHandle {
    length: u32,
    kind: i32,
    bytes: [u8; HANDLE_LENGTH],
}

/// `MAX_HANDLE_SZ`.
const HANDLE_LENGTH: usize = 128;

impl NamespaceHandle {
    /// Returns the handle of a namespace file; `None` if the file cannot be opened, or on a kernel without
    /// such handles.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let file = File::open(path).ok()?;
        let mut handle = FileHandle { length: HANDLE_LENGTH as u32, kind: 0, bytes: [0; HANDLE_LENGTH] };
        let (mut mount, empty): (libc::c_int, &CStr) = (0, c"");
        // SAFETY: the handle has room for `HANDLE_LENGTH` bytes, as its header says, and the path is an empty C
        // string.
        let result = unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                file.as_raw_fd(),
                empty.as_ptr(),
                &raw mut handle,
                &raw mut mount,
                libc::AT_EMPTY_PATH,
            )
        };
        let bytes = handle.bytes.get(..handle.length as usize).filter(|_| result == 0)?;
        let bytes: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let handle = Self(format!("{}:{bytes}", handle.kind));
        // Some kernels return handles but cannot open them. On such a kernel, every namespace would
        // seem to have been removed.
        handle.open().is_ok().then_some(handle)
    }

    /// Opens the namespace if it exists.
    pub(crate) fn open(&self) -> io::Result<OwnedFd> {
        let damaged = || io::Error::from(io::ErrorKind::InvalidData);
        let (kind, text) = self.0.split_once(':').ok_or_else(damaged)?;
        let digits = text.as_bytes().chunks(2).map(|pair| {
            std::str::from_utf8(pair)
                .ok()
                .and_then(|pair| u8::from_str_radix(pair, 16).ok())
                .ok_or_else(damaged)
        });
        let found: Vec<u8> = digits.collect::<io::Result<_>>()?;
        let mut bytes = [0; HANDLE_LENGTH];
        bytes.get_mut(..found.len()).ok_or_else(damaged)?.copy_from_slice(&found);
        let mut handle =
            FileHandle { length: found.len() as u32, kind: kind.parse().map_err(|_| damaged())?, bytes };
        let own = File::open(OWN)?;
        // SAFETY: the handle's length field matches its bytes.
        let result = unsafe {
            libc::syscall(
                libc::SYS_open_by_handle_at,
                own.as_raw_fd(),
                &raw mut handle,
                libc::O_RDONLY | libc::O_CLOEXEC,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        let descriptor = i32::try_from(result).map_err(io::Error::other)?;
        // SAFETY: the kernel returned this descriptor, and nothing else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_handles_are_errors() {
        for text in ["", "1", "x:00", "1:0", "1:zz", &format!("1:{}", "00".repeat(200))] {
            assert!(NamespaceHandle((*text).to_owned()).open().is_err(), "{text}");
        }
    }
}
