//! Flow weights from a file, which may change during a session.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use evenkeel_datapath::{CgroupId, Rule};
use evenkeel_files::{InputError, Kind, Text, Watched, shown};
use evenkeel_model::scenario::{FlowRule, FlowWeights, ScenarioError};
use evenkeel_model::text::path_text;

#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    #[error(transparent)]
    Input(#[from] InputError),
    #[error(transparent)]
    Wrong(#[from] ScenarioError),
    /// The file has rules by cgroup, but cgroup v2 is not mounted.
    #[error("{}: {reason}", path_text(.path))]
    Cgroup { path: PathBuf, reason: String },
}

#[derive(Debug)]
pub struct WeightsFile {
    file: Watched,
    /// Mount point of cgroup v2.
    cgroups: Option<PathBuf>,
    weights: FlowWeights,
    rules: Vec<Rule>,
    /// Cgroups in the file that do not exist.
    missing: BTreeSet<String>,
    remarks: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refreshed {
    File,
    /// A cgroup in the file was created, removed or replaced, for example by a restart of its service.
    Cgroups,
}

impl WeightsFile {
    /// Reads a file of flow weights.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, is invalid, or has rules by cgroup without a cgroup
    /// v2 mount.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let cgroups = cgroup_mount(&mounts).map(PathBuf::from);
        Self::with_cgroups(path, cgroups)
    }

    fn with_cgroups(path: &Path, cgroups: Option<PathBuf>) -> Result<Self, WeightsError> {
        let (file, text) = Watched::open(path, Kind::Weights)?;
        let weights = parse(&text, path, cgroups.is_some())?;
        let (rules, missing, remarks) = (Vec::new(), BTreeSet::new(), Vec::new());
        let mut file = Self { file, cgroups, weights, rules, missing, remarks };
        file.resolve();
        Ok(file)
    }

    pub fn take_remarks(&mut self) -> Vec<String> {
        std::mem::take(&mut self.remarks)
    }

    /// Returns the rules in order; the last rule matches every flow.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Reads the file again if it has changed, and checks the cgroups in the file. Returns the reason
    /// if the rules have changed.
    ///
    /// # Errors
    /// Returns each error of [`WeightsFile::open`] once. The old rules stay in use.
    pub fn refresh(&mut self) -> Result<Option<Refreshed>, WeightsError> {
        let mut why = Refreshed::Cgroups;
        if let Some(text) = self.file.read_changed()? {
            self.weights = parse(&text, self.file.path(), self.cgroups.is_some())?;
            why = Refreshed::File;
        }
        Ok(self.resolve().then_some(why))
    }

    /// Builds rules from the weights and the current cgroups. Returns whether the rules changed.
    fn resolve(&mut self) -> bool {
        let mut rules = Vec::new();
        let mut missing = BTreeSet::new();
        for rule in &self.weights.rules {
            let cgroup = rule.cgroup.as_deref().map(|path| (path, self.cgroup(path)));
            match cgroup {
                None => rules.push(rule_of(rule, None)),
                Some((_, Some(id))) => rules.push(rule_of(rule, Some(id))),
                // The cgroup does not exist, so it has no sockets and needs no rule.
                Some((path, None)) => _ = missing.insert(path.to_owned()),
            }
        }
        rules.push(Rule { weight: self.weights.default, ..Rule::default() });
        for path in missing.difference(&self.missing) {
            let file = shown(self.file.path());
            self.remarks.push(format!(
                "{file}: there is no cgroup {path} now; its rule matches nothing until the cgroup exists"
            ));
        }
        self.missing = missing;
        let changed = rules != self.rules;
        self.rules = rules;
        changed
    }

    /// Returns the id and depth of a cgroup, if it exists. The kernel identifies a cgroup by the inode
    /// of its directory, and compares the socket's ancestor at this depth. A restarted service has a
    /// new cgroup with the same name.
    fn cgroup(&self, cgroup: &str) -> Option<CgroupId> {
        let directory = self.cgroups.as_ref()?.join(cgroup.trim_start_matches('/'));
        let metadata = fs::metadata(&directory).ok().filter(fs::Metadata::is_dir)?;
        let level = cgroup.split('/').filter(|part| !part.is_empty()).count() as u32;
        Some(CgroupId { id: metadata.ino(), level })
    }
}

fn parse(text: &Text, path: &Path, has_cgroups: bool) -> Result<FlowWeights, WeightsError> {
    let weights = FlowWeights::parse(&text.text, &text.origin)?;
    if !has_cgroups && weights.rules.iter().any(|rule| rule.cgroup.is_some()) {
        let reason =
            "the file has rules by cgroup, but cgroup v2 is not mounted; mount it (mount -t cgroup2 none \
             /sys/fs/cgroup)"
                .to_owned();
        return Err(WeightsError::Cgroup { path: path.to_owned(), reason });
    }
    Ok(weights)
}

fn rule_of(rule: &FlowRule, cgroup: Option<CgroupId>) -> Rule {
    Rule {
        weight: rule.weight,
        protocol: rule.protocol,
        source_port: rule.source_port.clone(),
        destination_port: rule.destination_port.clone(),
        mark: rule.mark,
        priority: rule.priority,
        cgroup,
    }
}

/// Returns the mount point of cgroup v2 in a table like `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
fn cgroup_mount(table: &str) -> Option<String> {
    table.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let is_cgroup2 = kind.split(' ').next() == Some("cgroup2");
        // Spaces in paths are octal escapes.
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
        // Replace the file as editors do, so that the change is detected even with a coarse clock.
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
        assert_eq!(file.refresh().unwrap(), None);
        written(directory.path(), "schema = 1\ndefault = 2\n");
        assert_eq!(file.refresh().unwrap(), Some(Refreshed::File));
        assert_eq!(weights(&file), [2]);
        written(directory.path(), "schema = 1\ndefault = 0\n");
        assert!(file.refresh().unwrap_err().to_string().contains("weights.toml:2:11: default: "));
        assert_eq!(
            (weights(&file), file.refresh().unwrap()),
            (vec![2], None),
            "told once, and the old rules stay"
        );
        fs::remove_file(&path).unwrap();
        assert!(file.refresh().is_err());
        assert_eq!(file.refresh().unwrap(), None);
        written(directory.path(), "schema = 1\ndefault = 3\n");
        assert_eq!(file.refresh().unwrap(), Some(Refreshed::File));
    }

    #[test]
    fn cgroups_are_known_by_inode_and_depth_and_followed() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        let service = root.join("system.slice/a.service");
        fs::create_dir_all(&service).unwrap();
        let path = written(
            directory.path(),
            "schema = 1\n[[rule]]\nweight = 4\ncgroup = \"/system.slice/a.service\"\n",
        );
        let cgroups = |file: &WeightsFile| file.rules().iter().map(|rule| rule.cgroup).collect::<Vec<_>>();
        let id = || Some(CgroupId { id: fs::metadata(&service).unwrap().ino(), level: 2 });
        let mut file = WeightsFile::with_cgroups(&path, Some(root.clone())).unwrap();
        assert_eq!(cgroups(&file), [id(), None]);
        assert_eq!(file.refresh().unwrap(), None);

        // The service stops. Its rule is removed, and one message reports the removal.
        fs::remove_dir(&service).unwrap();
        assert_eq!(file.refresh().unwrap(), Some(Refreshed::Cgroups));
        assert_eq!(cgroups(&file), [None]);
        assert!(file.take_remarks()[0].contains("no cgroup /system.slice/a.service"));
        assert_eq!((file.refresh().unwrap(), file.take_remarks()), (None, Vec::new()));

        let other = root.join("system.slice/b.service");
        fs::create_dir(&other).unwrap();
        fs::create_dir(&service).unwrap();
        assert_eq!(file.refresh().unwrap(), Some(Refreshed::Cgroups));
        assert_eq!(cgroups(&file), [id(), None]);
        fs::remove_dir(&service).unwrap();
        fs::rename(other, &service).unwrap();
        assert_eq!(file.refresh().unwrap(), Some(Refreshed::Cgroups));
        assert_eq!(cgroups(&file), [id(), None]);
    }

    #[test]
    fn cgroups_take_a_hierarchy_and_may_come_later() {
        let directory = tempfile::tempdir().unwrap();
        let path = written(directory.path(), "schema = 1\n[[rule]]\nweight = 4\ncgroup = \"/b\"\n");
        let error = WeightsFile::with_cgroups(&path, None).unwrap_err();
        assert!(error.to_string().contains("mount it (mount -t cgroup2"), "{error}");
        assert!(matches!(error, WeightsError::Cgroup { .. }));
        let mut file = WeightsFile::with_cgroups(&path, Some(directory.path().join("root"))).unwrap();
        assert_eq!((file.rules().len(), file.take_remarks().len()), (1, 1));
    }
}
