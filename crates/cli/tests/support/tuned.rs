//! A host with wrong settings, which `evenkeel tune` corrects.

#![allow(dead_code, reason = "several test binaries share this file, and each uses a part of it")]

use std::os::unix::fs::MetadataExt;
use std::process::Command;

use crate::support::managed::{Managed, NAME};
use crate::support::{Ended, end};

/// Sysctls with a wrong value, each with the rule that finds it. They should always be on.
pub const WRONG: [(&str, &str); 4] = [
    ("tcp_window_scaling", "window-scaling-off"),
    ("tcp_sack", "sack-off"),
    ("tcp_moderate_rcvbuf", "autotuning-off"),
    ("tcp_timestamps", "timestamps-off"),
];

/// A host with the sysctls of [`WRONG`] off, and a directory that replaces `/etc`.
pub struct Host {
    pub managed: Managed,
    pub etc: tempfile::TempDir,
}

impl Host {
    pub fn new() -> Self {
        let managed = Managed::new();
        for (name, _) in WRONG {
            managed.host.set_sysctl(&format!("net/ipv4/{name}"), "0").unwrap();
        }
        Self { managed, etc: tempfile::tempdir().unwrap() }
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.managed.command(arguments);
        command.env("EVENKEEL_ETC_DIR", self.etc.path());
        command
    }

    pub fn tune(&self, arguments: &[&str]) -> Ended {
        end(self.command(&[&["tune", NAME], arguments].concat()))
    }

    pub fn revert(&self) -> Ended {
        end(self.command(&["revert", NAME]))
    }

    /// Returns the inode of the network namespace, which is part of the names of files that `tune` writes.
    pub fn namespace(&self) -> u64 {
        let inode = || Ok(std::fs::metadata("/proc/thread-self/ns/net").unwrap().ino());
        self.managed.host.run(inode).unwrap()
    }

    pub fn values(&self) -> Vec<String> {
        let read = |name: &str| {
            let path = format!("/proc/sys/net/ipv4/{name}");
            self.managed.host.run(|| Ok(std::fs::read_to_string(&path).unwrap().trim().to_owned())).unwrap()
        };
        WRONG.iter().map(|(name, _)| read(name)).collect()
    }
}

pub const OFF: [&str; 4] = ["0"; 4];
pub const ON: [&str; 4] = ["1"; 4];
