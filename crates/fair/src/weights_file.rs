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
    /// The file has rules by cgroup, but no usable cgroup v2 hierarchy is mounted.
    #[error("{}: {reason}", path_text(.path))]
    Cgroup { path: PathBuf, reason: String },
}

#[derive(Debug)]
pub struct WeightsFile {
    file: Watched,
    /// The cgroup v2 hierarchy, or why rules by cgroup cannot be used.
    cgroups: Result<Hierarchy, &'static str>,
    weights: FlowWeights,
    rules: Vec<Rule>,
    /// Cgroups in the file that do not exist.
    missing: BTreeSet<String>,
    remarks: Vec<String>,
    /// Why the present file is not in use.
    error: Option<String>,
}

/// A mount of cgroup v2.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hierarchy {
    mount: PathBuf,
    /// Depth of the mount's root below the root of the hierarchy.
    depth: u32,
}

const NOT_MOUNTED: &str = "cgroup v2 is not mounted; mount it (mount -t cgroup2 none /sys/fs/cgroup)";
const DEPTH_UNKNOWN: &str = "this process is in a cgroup namespace, as in a container, where the depth of a cgroup in the \
     kernel's hierarchy is unknown; run evenkeel in the host's cgroup namespace (nsenter --cgroup --mount -t 1)";
/// Inode of the initial cgroup namespace (`PROC_CGROUP_INIT_INO`, include/linux/proc_ns.h).
const FIRST_CGROUP_NAMESPACE: u64 = 0xEFFF_FFFB;
/// Inode of the root of a cgroup hierarchy: the first inode of its kernfs (`kernfs_create_root`,
/// fs/kernfs/dir.c).
const ROOT_INODE: u64 = 1;

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
    /// Returns an error if the file cannot be read, is invalid, or has rules by cgroup while no cgroup v2
    /// hierarchy is mounted, or the depth of its cgroups is unknown.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let inode = |path: &Path| fs::metadata(path).ok().map(|metadata| metadata.ino());
        let is_first = inode(Path::new("/proc/self/ns/cgroup")) == Some(FIRST_CGROUP_NAMESPACE);
        Self::with_cgroups(path, hierarchy(&mounts, is_first, inode))
    }

    fn with_cgroups(path: &Path, cgroups: Result<Hierarchy, &'static str>) -> Result<Self, WeightsError> {
        let (file, text) = Watched::open(path, Kind::Weights)?;
        let weights = parse(&text, path, cgroups.as_ref().err().copied())?;
        let (rules, missing, remarks) = (Vec::new(), BTreeSet::new(), Vec::new());
        let mut file = Self { file, cgroups, weights, rules, missing, remarks, error: None };
        file.resolve();
        Ok(file)
    }

    /// Returns the error of the present file, while the previous weights are in use.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
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
        if let Some(weights) =
            self.read_changed().inspect_err(|error| self.error = Some(error.to_string()))?
        {
            (self.weights, self.error) = (weights, None);
            why = Refreshed::File;
        }
        Ok(self.resolve().then_some(why))
    }

    fn read_changed(&mut self) -> Result<Option<FlowWeights>, WeightsError> {
        let text = self.file.read_changed()?;
        let obstacle = self.cgroups.as_ref().err().copied();
        text.map(|text| parse(&text, self.file.path(), obstacle)).transpose()
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
        let Hierarchy { mount, depth } = self.cgroups.as_ref().ok()?;
        let directory = mount.join(cgroup.trim_start_matches('/'));
        let metadata = fs::metadata(&directory).ok().filter(fs::Metadata::is_dir)?;
        Some(CgroupId { id: metadata.ino(), level: depth + parts(cgroup) })
    }
}

/// Returns the number of cgroups in a path.
fn parts(path: &str) -> u32 {
    u32::try_from(path.split('/').filter(|part| !part.is_empty()).count()).unwrap_or(u32::MAX)
}

/// Parses a file. `obstacle` is the reason why rules by cgroup cannot be used.
fn parse(text: &Text, path: &Path, obstacle: Option<&str>) -> Result<FlowWeights, WeightsError> {
    let weights = FlowWeights::parse(&text.text, &text.origin)?;
    match obstacle.filter(|_| weights.rules.iter().any(|rule| rule.cgroup.is_some())) {
        None => Ok(weights),
        Some(obstacle) => Err(WeightsError::Cgroup {
            path: path.to_owned(),
            reason: format!("the file has rules by cgroup, but {obstacle}"),
        }),
    }
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

/// Returns the mount of cgroup v2 that is closest to the root of the hierarchy, from a table like
/// `/proc/self/mountinfo` (proc_pid_mountinfo(5)), or why there is none. `is_first`: the table is of the
/// initial cgroup namespace. In another namespace, the table shows a mount's root relative to the namespace's
/// root, whose depth is unknown.
fn hierarchy(
    table: &str,
    is_first: bool,
    inode: impl Fn(&Path) -> Option<u64>,
) -> Result<Hierarchy, &'static str> {
    let mounts = table.lines().filter_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let mut fields = place.split(' ').skip(3);
        let (root, mount) = (fields.next()?, fields.next()?);
        // Spaces in paths are octal escapes.
        let is_cgroup2 = kind.split(' ').next() == Some("cgroup2");
        is_cgroup2.then(|| (root, PathBuf::from(mount.replace("\\040", " "))))
    });
    let mut error = NOT_MOUNTED;
    let mut found: Option<Hierarchy> = None;
    for (root, mount) in mounts {
        let depth = match inode(&mount) == Some(ROOT_INODE) {
            true => 0,
            false if is_first => parts(root),
            false => {
                error = DEPTH_UNKNOWN;
                continue;
            }
        };
        if found.as_ref().is_none_or(|found| depth < found.depth) {
            found = Some(Hierarchy { mount, depth });
        }
    }
    found.ok_or(error)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn at(mount: &str, depth: u32) -> Hierarchy {
        Hierarchy { mount: PathBuf::from(mount), depth }
    }

    #[test]
    fn the_version_2_hierarchy_is_found() {
        let table = "30 23 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                     31 23 0:27 / /sys/fs/my\\040cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw\n";
        assert_eq!(hierarchy(table, true, |_| Some(1)), Ok(at("/sys/fs/my cgroup", 0)));
        assert_eq!(hierarchy("garbage\n", true, |_| Some(1)), Err(NOT_MOUNTED));
    }

    /// The kernel counts the depth of a cgroup from the root of the hierarchy, so the depth of a mount's root
    /// is needed.
    #[test]
    fn the_depth_of_a_mounts_root_is_counted() {
        let part = "30 23 0:26 /a/b /srv/part rw - cgroup2 none rw\n";
        let whole = format!("{part}31 23 0:26 / /sys/fs/cgroup rw - cgroup2 none rw\n");
        let inode = |path: &Path| Some(if path.starts_with("/sys") { 1 } else { 77 });
        assert_eq!(hierarchy(part, true, inode), Ok(at("/srv/part", 2)));
        assert_eq!(hierarchy(part, false, inode), Err(DEPTH_UNKNOWN));
        for is_first in [true, false] {
            assert_eq!(hierarchy(&whole, is_first, inode), Ok(at("/sys/fs/cgroup", 0)));
        }
        // In a cgroup namespace, a mount shows the root "/" even if it is not the root of the hierarchy.
        assert_eq!(hierarchy(&whole, false, |_| Some(77)), Err(DEPTH_UNKNOWN));
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
        assert_eq!((file.refresh().unwrap(), file.error()), (Some(Refreshed::File), None));
        assert_eq!(weights(&file), [2]);
        written(directory.path(), "schema = 1\ndefault = 0\n");
        assert!(file.refresh().unwrap_err().to_string().contains("weights.toml:2:11: default: "));
        assert_eq!(
            (weights(&file), file.refresh().unwrap()),
            (vec![2], None),
            "told once, and the old rules stay"
        );
        assert!(file.error().is_some_and(|error| error.contains("weights.toml:2:11: default: ")));
        written(directory.path(), "schema = 1\ndefault = 2\n");
        assert_eq!((file.refresh().unwrap(), file.error()), (None, None), "the rules in use");
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
        let id = || Some(CgroupId { id: fs::metadata(&service).unwrap().ino(), level: 3 + 2 });
        let mut file =
            WeightsFile::with_cgroups(&path, Ok(Hierarchy { mount: root.clone(), depth: 3 })).unwrap();
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
        let error = WeightsFile::with_cgroups(&path, Err(NOT_MOUNTED)).unwrap_err();
        assert!(error.to_string().contains("mount it (mount -t cgroup2"), "{error}");
        assert!(matches!(error, WeightsError::Cgroup { .. }));
        let mut file = WeightsFile::with_cgroups(
            &path,
            Ok(Hierarchy { mount: directory.path().join("root"), depth: 0 }),
        )
        .unwrap();
        assert_eq!((file.rules().len(), file.take_remarks().len()), (1, 1));
    }
}
