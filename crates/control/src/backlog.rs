//! What each flow has below its socket, as TCP small queues limit it.

use std::fs::File;
use std::io::{Read, Seek, Write};

use crate::backend::BacklogBackend;
use crate::error::ControlError;

const OUTPUT_LIMIT: &str = "/proc/sys/net/ipv4/tcp_limit_output_bytes";

/// How much of a flow TCP keeps below its socket (`net.ipv4.tcp_limit_output_bytes`): of every flow of a
/// network namespace.
/// [`evenkeel_transmit::segments::equal_backlog`] says what it is for.
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

impl BacklogBackend for OutputLimit {
    fn name(&self) -> String {
        "tcp_limit_output_bytes".to_owned()
    }

    fn limit(&mut self, bytes: Option<u64>) -> Result<(), ControlError> {
        let wanted = bytes.map_or(self.original, |bytes| bytes.min(self.original));
        if self.read()? == wanted { Ok(()) } else { self.put(wanted) }
    }
}
