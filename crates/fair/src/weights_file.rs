//! Flow weights from a file, which may change while they are in force.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use evenkeel_datapath::{CgroupId, Rule};
use evenkeel_model::scenario::{FlowRule, FlowWeights, ScenarioError, decode};

/// A file of flow weights could not be used.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// It is wrong.
    #[error(transparent)]
    Wrong(#[from] ScenarioError),
    /// It names a cgroup that is not there.
    #[error("{}: {reason}", .path.display())]
    Cgroup {
        /// Which file.
        path: PathBuf,
        /// What is missing.
        reason: String,
    },
}

/// A file of flow weights, and the rules in it.
#[derive(Debug)]
pub struct WeightsFile {
    path: PathBuf,
    /// Where the hierarchy of version-2 cgroups is mounted.
    cgroups: Option<PathBuf>,
    stamp: Option<Stamp>,
    rules: Vec<Rule>,
}

/// What changes when a file is written or replaced: inode, size, modification time in seconds and nanoseconds.
type Stamp = (u64, u64, i64, i64);

impl WeightsFile {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read, is wrong, or names a cgroup that is not there.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let cgroups = cgroup_mount(&mounts).map(PathBuf::from);
        let mut file = Self { path: path.to_owned(), cgroups, stamp: None, rules: Vec::new() };
        file.stamp = Some(file.stamp_now()?);
        file.rules = file.read()?;
        Ok(file)
    }

    /// The rules, in order; the last one matches every flow.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Reads the file again if it has changed; whether the rules are others now.
    ///
    /// # Errors
    /// As [`WeightsFile::open`]; the old rules stay, and the same fault is told once.
    pub fn refresh(&mut self) -> Result<bool, WeightsError> {
        let stamp = self.stamp_now();
        // A file that is gone is told once, too.
        let key = stamp.as_ref().ok().copied();
        if key == self.stamp {
            return Ok(false);
        }
        self.stamp = key;
        stamp?;
        let rules = self.read()?;
        let changed = rules != self.rules;
        self.rules = rules;
        Ok(changed)
    }

    fn fail(&self, source: io::Error) -> WeightsError {
        WeightsError::Read { path: self.path.clone(), source }
    }

    fn stamp_now(&self) -> Result<Stamp, WeightsError> {
        let metadata = fs::metadata(&self.path).map_err(|source| self.fail(source))?;
        Ok((metadata.ino(), metadata.size(), metadata.mtime(), metadata.mtime_nsec()))
    }

    fn read(&self) -> Result<Vec<Rule>, WeightsError> {
        let bytes = fs::read(&self.path).map_err(|source| self.fail(source))?;
        let origin = self.path.display().to_string();
        let weights = FlowWeights::parse(decode(&bytes, &origin)?, &origin)?;
        let mut rules: Vec<Rule> =
            weights.rules.iter().map(|rule| self.rule(rule)).collect::<Result<_, _>>()?;
        rules.push(Rule { weight: weights.default, ..Rule::default() });
        Ok(rules)
    }

    fn rule(&self, rule: &FlowRule) -> Result<Rule, WeightsError> {
        Ok(Rule {
            weight: rule.weight,
            protocol: rule.protocol,
            source_port: rule.source_port.clone(),
            destination_port: rule.destination_port.clone(),
            mark: rule.mark,
            priority: rule.priority,
            cgroup: rule.cgroup.as_deref().map(|path| self.cgroup(path)).transpose()?,
        })
    }

    /// The kernel names a cgroup by the inode of its directory, and looks for it at its depth above the socket's.
    fn cgroup(&self, cgroup: &str) -> Result<CgroupId, WeightsError> {
        let fail = |reason| WeightsError::Cgroup { path: self.path.clone(), reason };
        let root = self.cgroups.as_ref().ok_or_else(|| {
            fail("it has rules by cgroup, and no hierarchy of version-2 cgroups is mounted here".to_owned())
        })?;
        let directory = root.join(cgroup.trim_start_matches('/'));
        let metadata = fs::metadata(&directory).ok().filter(fs::Metadata::is_dir);
        let metadata = metadata.ok_or_else(|| {
            fail(format!("there is no cgroup {cgroup} (no directory {})", directory.display()))
        })?;
        let level = cgroup.split('/').filter(|part| !part.is_empty()).count() as u32;
        Ok(CgroupId { id: metadata.ino(), level })
    }
}

/// Mount point of the version-2 hierarchy in a table like `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
fn cgroup_mount(table: &str) -> Option<String> {
    table.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let is_cgroup2 = kind.split(' ').next() == Some("cgroup2");
        // Spaces in paths are written in octal.
        is_cgroup2.then(|| place.split(' ').nth(4).map(|path| path.replace("\\040", " ")))?
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_version_2_hierarchy_is_found() {
        let table = "30 23 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                     31 23 0:27 / /sys/fs/my\\040cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw\n";
        assert_eq!(cgroup_mount(table).as_deref(), Some("/sys/fs/my cgroup"));
        assert_eq!(cgroup_mount("garbage\n"), None);
    }

    fn written(directory: &Path, text: &str) -> PathBuf {
        let path = directory.join("weights.toml");
        // Replaced as an editor does it, so that the change is seen whatever the clock's grain.
        let new = directory.join("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, &path).unwrap();
        path
    }

    #[test]
    fn a_file_that_changes() {
        let directory = tempfile::tempdir().unwrap();
        let path = written(directory.path(), "schema = 1\n[[rule]]\nweight = 4\nmark = 7\n");
        let mut file = WeightsFile::open(&path).unwrap();
        let weights = |file: &WeightsFile| file.rules().iter().map(|rule| rule.weight).collect::<Vec<_>>();
        assert_eq!(weights(&file), [4, 1], "the default is the last rule");
        assert!(!file.refresh().unwrap());
        written(directory.path(), "schema = 1\ndefault = 2\n");
        assert!(file.refresh().unwrap());
        assert_eq!(weights(&file), [2]);
        written(directory.path(), "schema = 1\ndefault = 0\n");
        assert!(file.refresh().unwrap_err().to_string().contains("weights.toml:2:11: default: "));
        assert_eq!(
            (weights(&file), file.refresh().unwrap()),
            (vec![2], false),
            "told once, and the old rules stay"
        );
        fs::remove_file(&path).unwrap();
        assert!(file.refresh().is_err());
        assert!(!file.refresh().unwrap());
        written(directory.path(), "schema = 1\ndefault = 3\n");
        assert!(file.refresh().unwrap());
    }

    #[test]
    fn cgroups_are_known_by_inode_and_depth() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("root/system.slice/a.service")).unwrap();
        let path = written(
            directory.path(),
            "schema = 1\n[[rule]]\nweight = 4\ncgroup = \"/system.slice/a.service\"\n",
        );
        let mut file = WeightsFile {
            path: path.clone(),
            cgroups: Some(directory.path().join("root")),
            stamp: None,
            rules: Vec::new(),
        };
        let inode = fs::metadata(directory.path().join("root/system.slice/a.service")).unwrap().ino();
        assert_eq!(file.read().unwrap()[0].cgroup, Some(CgroupId { id: inode, level: 2 }));
        file.cgroups = None;
        assert!(file.read().unwrap_err().to_string().contains("no hierarchy"));
        written(directory.path(), "schema = 1\n[[rule]]\nweight = 4\ncgroup = \"/b\"\n");
        file.cgroups = Some(directory.path().join("root"));
        assert!(file.read().unwrap_err().to_string().contains("there is no cgroup /b"));
    }
}
