//! Limits the data that each flow queues below its socket, by TCP small queues.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::sync::Arc;

use crate::backend::BacklogBackend;
use crate::error::ControlError;
use crate::gate::{Gate, Setting};

const OUTPUT_LIMIT: &str = "/proc/sys/net/ipv4/tcp_limit_output_bytes";

/// The sysctl `net.ipv4.tcp_limit_output_bytes`, which applies to every flow of a network namespace. See
/// [`evenkeel_transmit::segments::equal_backlog`].
pub struct OutputLimit {
    file: File,
    original: u64,
    current: u64,
    gate: Arc<dyn Gate>,
}

impl OutputLimit {
    /// Opens the sysctl of the calling thread's network namespace.
    pub fn open(gate: Arc<dyn Gate>) -> Result<Self, ControlError> {
        let file = open_file()?;
        let original = read(&file)?;
        Ok(Self { file, original, current: original, gate })
    }

    /// Checks that the sysctl can be opened for reading and writing.
    pub fn check() -> Result<(), ControlError> {
        open_file().map(drop)
    }

    #[must_use]
    pub fn original(&self) -> u64 {
        self.original
    }

    fn put(&mut self, bytes: u64) -> Result<(), ControlError> {
        let Self { file, current, gate, .. } = self;
        gate.pass(Setting::OutputLimit(bytes), &mut || {
            let found = read(file)?;
            if found != *current {
                let what = "tcp_limit_output_bytes".to_owned();
                return Err(ControlError::SetByOthers { what, found: found.to_string() });
            }
            let text = format!("{bytes}\n");
            let mut file = &*file;
            file.rewind().and_then(|()| file.write_all(text.as_bytes())).map_err(|source| {
                ControlError::System { action: format!("write {bytes} to {OUTPUT_LIMIT}"), source }
            })?;
            let found = read(file)?;
            if found != bytes {
                let what = OUTPUT_LIMIT.to_owned();
                return Err(ControlError::ReadBack { what, set: bytes, found: found.to_string() });
            }
            *current = bytes;
            Ok(())
        })
    }
}

fn open_file() -> Result<File, ControlError> {
    let opened = File::options().read(true).write(true).open(OUTPUT_LIMIT);
    opened.map_err(|source| ControlError::System { action: format!("open {OUTPUT_LIMIT}"), source })
}

fn read(mut file: &File) -> Result<u64, ControlError> {
    let system = |source| ControlError::System { action: format!("read {OUTPUT_LIMIT}"), source };
    let mut text = String::new();
    file.rewind().and_then(|()| file.read_to_string(&mut text)).map_err(system)?;
    text.trim()
        .parse()
        .map_err(|_| system(std::io::Error::other(format!("'{}' is not a number", text.trim()))))
}

impl BacklogBackend for OutputLimit {
    fn name(&self) -> String {
        "tcp_limit_output_bytes".to_owned()
    }

    fn limit(&mut self, bytes: Option<u64>) -> Result<(), ControlError> {
        let wanted = bytes.map_or(self.original, |bytes| bytes.min(self.original));
        if self.current == wanted { Ok(()) } else { self.put(wanted) }
    }
}
