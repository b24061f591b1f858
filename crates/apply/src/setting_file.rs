//! The file of a setting below `/proc` or `/sys`.

use std::fs::File;
use std::io::{self, Read, Write};

use evenkeel_host::Sysfs;
use evenkeel_model::change::Value;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

use crate::error::KnobError;

/// The file of a setting, and the mounted directory that contains it. A missing file proves something
/// only if this directory exists: `/proc` may be unmounted, and another file system may hide `/proc` or
/// `/sys`.
pub(crate) struct SettingFile<'a> {
    /// `None`: the paths are absolute.
    sysfs: Option<&'a Sysfs>,
    path: String,
    directory: String,
}

impl<'a> SettingFile<'a> {
    pub(crate) fn of_interface(sysfs: &'a Sysfs, path: String) -> Self {
        Self { sysfs: Some(sysfs), path, directory: "class/net".to_owned() }
    }

    pub(crate) fn of_processors(sysfs: &'a Sysfs, file: &str) -> Self {
        let directory = "devices/system/cpu".to_owned();
        Self { sysfs: Some(sysfs), path: format!("{directory}/{file}"), directory }
    }

    pub(crate) fn of_sysctl(name: &str) -> Self {
        let group = name.split('/').next().unwrap_or_default();
        Self { sysfs: None, path: format!("/proc/sys/{name}"), directory: format!("/proc/sys/{group}") }
    }

    pub(crate) fn of_affinity(interrupt: u32) -> Self {
        let path = format!("/proc/irq/{interrupt}/smp_affinity_list");
        Self { sysfs: None, path, directory: "/proc/irq".to_owned() }
    }

    fn shown(&self, path: &str) -> String {
        if self.sysfs.is_some() { format!("/sys/{path}") } else { path.to_owned() }
    }

    fn open(&self, path: &str, flags: OFlag) -> io::Result<File> {
        match self.sysfs {
            Some(sysfs) => sysfs.open(path, flags),
            None => Ok(open(path, flags | OFlag::O_CLOEXEC, Mode::empty())?.into()),
        }
    }

    pub(crate) fn read_text(&self) -> Result<String, KnobError> {
        let mut text = String::new();
        self.open(&self.path, OFlag::O_RDONLY)
            .and_then(|mut file| file.read_to_string(&mut text))
            .map_err(|source| self.error(format!("read {}", self.shown(&self.path)), source))?;
        Ok(text.trim().to_owned())
    }

    pub(crate) fn read(&self) -> Result<Value, KnobError> {
        self.read_text().map(Value::Text)
    }

    pub(crate) fn write(&self, text: &str) -> Result<(), KnobError> {
        // Do not pass O_CREAT: a removed file must not be created again. Truncation matters only for
        // recorded files.
        self.open(&self.path, OFlag::O_WRONLY | OFlag::O_TRUNC)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|source| self.error(format!("write '{text}' to {}", self.shown(&self.path)), source))
    }

    /// Converts an error. A missing file is a valid state: nothing is left to restore.
    fn error(&self, action: String, source: io::Error) -> KnobError {
        let gone = || KnobError::Gone { what: self.shown(&self.path) };
        match source.kind() {
            io::ErrorKind::NotFound => match self.open(&self.directory, OFlag::O_PATH) {
                Ok(_) => gone(),
                Err(source) => {
                    let directory = self.shown(&self.directory);
                    let reason = format!("cannot open {directory}: {source}; mount its file system again");
                    KnobError::File { action, source: io::Error::other(reason) }
                }
            },
            // The interface was removed while its file was open (`kernfs_fop_write_iter`).
            _ if source.raw_os_error() == Some(libc::ENODEV) => gone(),
            _ => KnobError::File { action, source },
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_file_is_gone_only_if_its_directory_is_there() {
        let root = tempfile::tempdir().unwrap();
        let sysfs = Sysfs::at(root.path());
        let file = SettingFile::of_interface(&sysfs, "class/net/eth0/mtu".to_owned());
        for error in [file.read().unwrap_err(), file.write("1500").unwrap_err()] {
            let words = error.to_string();
            assert!(matches!(error, KnobError::File { .. }) && words.contains("/sys/class/net"), "{words}");
        }
        std::fs::create_dir_all(root.path().join("class/net")).unwrap();
        for error in [file.read().unwrap_err(), file.write("1500").unwrap_err()] {
            assert!(matches!(error, KnobError::Gone { .. }), "{error}");
        }
        let sysctl = SettingFile::of_sysctl("net/ipv4/evenkeel_has_none").read().unwrap_err();
        assert!(matches!(sysctl, KnobError::Gone { .. }), "{sysctl}");
    }
}
