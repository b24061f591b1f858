//! Reads and sets the maximum rate of each transmit queue: the file `tx_maxrate` in sysfs
//! (`Documentation/ABI/testing/sysfs-class-net-queues`).
//!
//! The maximum rate is a limit, not a weight. In Linux 7.2, these drivers support it: am65-cpsw, cpsw,
//! cxgb4, ice, ixgbe, mlx4 and mlx5. All other drivers refuse every rate with `EOPNOTSUPP`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use evenkeel_model::text::path_text;

#[derive(Debug, thiserror::Error)]
pub enum TxMaxrateError {
    #[error("cannot {action} {}: {source}{}", path_text(.path), unsupported(.source))]
    File {
        action: String,
        path: PathBuf,
        /// The error; `EOPNOTSUPP` means that the driver does not support maximum rates.
        source: io::Error,
    },
    #[error("{} holds '{text}', which is not a rate in Mbit/s", path_text(.path))]
    NotARate { path: PathBuf, text: String },
    /// The device uses a rate that differs from the requested rate.
    #[error("{} was set to {set} Mbit/s, but reads {found} Mbit/s", path_text(.path))]
    NotInForce {
        path: PathBuf,
        /// Mbit/s.
        set: u32,
        /// Mbit/s.
        found: u32,
    },
}

/// Returns the advice for a driver without maximum rates; empty for other errors.
fn unsupported(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::Unsupported => {
            "; the driver does not support maximum rates: use another --queue-weights"
        }
        _ => "",
    }
}

#[derive(Clone, Debug)]
pub struct TxMaxrate {
    queues: PathBuf,
}

impl TxMaxrate {
    /// Uses the files below `sysfs` (`/sys`, as mounted in the interface's network namespace).
    #[must_use]
    pub fn new(sysfs: &Path, interface: &str) -> Self {
        Self { queues: sysfs.join("class/net").join(interface).join("queues") }
    }

    fn path(&self, queue: u32) -> PathBuf {
        self.queues.join(format!("tx-{queue}/tx_maxrate"))
    }

    /// Returns a queue's maximum rate, Mbit/s; 0 means no limit.
    pub fn get(&self, queue: u32) -> Result<u32, TxMaxrateError> {
        let path = self.path(queue);
        let text = fs::read_to_string(&path).map_err(|source| TxMaxrateError::File {
            action: "read".to_owned(),
            path: path.clone(),
            source,
        })?;
        let text = text.trim();
        text.parse().map_err(|_| TxMaxrateError::NotARate { path, text: text.to_owned() })
    }

    /// Returns whether the driver supports maximum rates, without changing a rate. The function writes
    /// a text that is not a number. A driver without rates refuses the write before the kernel parses
    /// the text (`tx_maxrate_store`, net/core/net-sysfs.c).
    pub fn is_supported(&self, queue: u32) -> Result<bool, TxMaxrateError> {
        match self.write(queue, "?") {
            Err(TxMaxrateError::File { source, .. }) if source.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                Ok(false)
            }
            Err(TxMaxrateError::File { source, .. }) if source.raw_os_error() == Some(libc::EINVAL) => {
                Ok(true)
            }
            other => other.map(|()| true),
        }
    }

    /// Sets a queue's maximum rate, Mbit/s (0 for no limit), and reads the rate back as a check.
    ///
    /// # Errors
    /// Returns an error if the queue does not exist, the driver refuses the rate, or the rate that is read
    /// back differs.
    pub fn set(&self, queue: u32, megabits_per_second: u32) -> Result<(), TxMaxrateError> {
        self.write(queue, &megabits_per_second.to_string())?;
        let found = self.get(queue)?;
        if found == megabits_per_second {
            Ok(())
        } else {
            Err(TxMaxrateError::NotInForce { path: self.path(queue), set: megabits_per_second, found })
        }
    }

    fn write(&self, queue: u32, text: &str) -> Result<(), TxMaxrateError> {
        let path = self.path(queue);
        // Do not create the file: if it is missing, the queue does not exist.
        fs::OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(&path)
            .and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes()))
            .map_err(|source| TxMaxrateError::File { action: format!("write {text} to"), path, source })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn interface(content: &str) -> (tempfile::TempDir, TxMaxrate) {
        let root = tempfile::tempdir().unwrap();
        let queue = root.path().join("class/net/eth0/queues/tx-1");
        fs::create_dir_all(&queue).unwrap();
        fs::write(queue.join("tx_maxrate"), content).unwrap();
        let rates = TxMaxrate::new(root.path(), "eth0");
        (root, rates)
    }

    #[test]
    fn sets_and_reads_back() {
        let (_root, rates) = interface("0\n");
        assert_eq!(rates.get(1).unwrap(), 0);
        rates.set(1, 2500).unwrap();
        assert_eq!(rates.get(1).unwrap(), 2500);
    }

    #[test]
    fn a_queue_that_is_not_there_is_named_and_not_made() {
        let (root, rates) = interface("0\n");
        let error = rates.set(7, 100).unwrap_err().to_string();
        assert!(error.contains("write 100 to") && error.contains("tx-7/tx_maxrate"), "{error}");
        assert!(!root.path().join("class/net/eth0/queues/tx-7").exists());
    }

    #[test]
    fn nonsense_is_shown() {
        let (_root, rates) = interface("fast\n");
        assert!(rates.get(1).unwrap_err().to_string().contains("holds 'fast'"));
    }
}
