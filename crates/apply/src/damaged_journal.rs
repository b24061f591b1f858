use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use evenkeel_host::Sysfs;
use evenkeel_model::change::Knob;
use evenkeel_model::text::path_text;

use crate::journal::{EXTENSION, was_kept};
use crate::journal_lines::{Contents, Damage};
use crate::printed_command::printed_command;

/// Suffix of a journal that could not be read completely, after its revert.
pub(crate) const DAMAGED: &str = ".damaged";

/// A journal that could not be read completely: some settings may still be changed.
#[derive(Clone, Debug)]
pub struct Damaged {
    pub path: PathBuf,
    /// The interface's current name, if known; otherwise its name at the start of the run. `None` if neither
    /// is known.
    pub interface: Option<String>,
    /// The interface's name at the start of the run, if it has another name now.
    pub former: Option<String>,
    /// The settings in the readable lines.
    pub readable: Vec<Knob>,
    pub damage: Vec<Damage>,
    /// The settings that a new run restored before it ended with this error. `revert` reports its
    /// restored settings separately.
    pub(crate) restored: Option<String>,
    /// The object that has the journal's name; `None` if the file itself can be read.
    pub obstacle: Option<Obstacle>,
}

/// A file, link or directory that is not read as a journal.
#[derive(Clone, Debug)]
pub struct Obstacle {
    pub reason: String,
    /// The action that makes the journal readable again.
    pub next: String,
}

impl Damaged {
    pub(crate) fn of(path: PathBuf, contents: &Contents) -> Self {
        let interface = match &contents.header {
            Some(header) => Some(header.interface.name.clone()),
            None => interface_here(&path),
        };
        let readable = contents.entries.iter().map(|entry| entry.knob.clone()).collect();
        Self {
            path,
            interface,
            former: None,
            readable,
            damage: contents.damage.clone(),
            restored: None,
            obstacle: None,
        }
    }

    /// Describes an unreadable journal of an interface in this namespace; `None` if the name does not belong
    /// to such a journal.
    pub(crate) fn behind(path: PathBuf, obstacle: Obstacle) -> Option<Self> {
        let interface = Some(interface_here(&path)?);
        let (readable, damage) = (Vec::new(), Vec::new());
        Some(Self {
            path,
            interface,
            former: None,
            readable,
            damage,
            restored: None,
            obstacle: Some(obstacle),
        })
    }

    /// Returns whether the journal contains changes that stay after the end of their command.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        was_kept(&self.path)
    }

    #[must_use]
    pub fn is_set_aside(&self) -> bool {
        self.path.to_string_lossy().ends_with(DAMAGED)
    }
}

impl std::error::Error for Damaged {}

impl fmt::Display for Damaged {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = path_text(&self.path);
        let interface = self.interface.as_deref();
        let of = interface.map(|name| format!(" of {name}")).unwrap_or_default();
        let mut compare = match interface {
            Some(name) => {
                format!(
                    "`ip -d link show dev {name}`, `tc qdisc show dev {name}`, /sys/class/net/{name}/queues"
                )
            }
            None => {
                "`ip -d link show`, `tc qdisc show`, /sys/class/net/*/queues, as its interface is unknown"
                    .to_owned()
            }
        };
        if was_kept(&self.path) {
            let ethtool = match interface {
                Some(name) => format!("`ethtool -g {name}`"),
                None => "`ethtool -g` of each interface".to_owned(),
            };
            compare = format!(
                "`sysctl net`, {ethtool} (also -l, -c, -k, -n, -x), /proc/irq/*/smp_affinity_list, {compare}"
            );
        }
        let revert = match interface {
            Some(name) => printed_command("evenkeel revert {}", &[&name]),
            None => printed_command("evenkeel revert", &[]),
        };
        if let Some(Obstacle { reason, next }) = &self.obstacle {
            return write!(
                formatter,
                "settings{of} may still have the values that evenkeel set: the journal {path} cannot be read, because {reason}; {next}, then run \
                 `{revert}`; if the journal is lost, compare the settings with {compare}, restore them by hand, \
                 then remove {path}"
            );
        }
        let damage: Vec<String> = self.damage.iter().map(ToString::to_string).collect();
        let readable: Vec<String> = self
            .readable
            .iter()
            .map(|knob| knob.on(interface.unwrap_or("an unknown interface")).to_string())
            .collect();
        write!(
            formatter,
            "settings{of} may still have the values that evenkeel set: the journal {path} is damaged ({}), so some of its settings are \
             unknown; {}{}; compare the file with {compare}, restore the other settings by hand, then remove the file",
            few(&damage),
            match (readable.is_empty(), self.is_set_aside()) {
                (true, _) => "no setting can be read".to_owned(),
                (false, true) => format!("readable: {}", few(&readable)),
                (false, false) =>
                    format!("readable: {}; `{revert}` restores only these settings", few(&readable)),
            },
            self.restored.as_ref().map(|restored| format!("; {restored}")).unwrap_or_default()
        )
    }
}

fn few(items: &[String]) -> String {
    const SHOWN: usize = 4;
    let shown = items[..items.len().min(SHOWN)].join(", ");
    match items.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown}, and {more} more"),
    }
}

/// Returns the index of a journal's interface, from the file's name.
pub(crate) fn index_of(path: &Path) -> Option<u32> {
    path.file_name()?.to_str()?.split_once('-')?.1.split('.').next()?.parse().ok()
}

/// Returns the current name of a journal's interface, from the numbers in the file's name; `None` if the name
/// lacks these numbers, or if the calling thread's namespace does not contain the interface.
fn interface_here(path: &Path) -> Option<String> {
    let (namespace, _) = path.file_name()?.to_str()?.split_once('-')?;
    let index = index_of(path)?;
    let own = std::fs::metadata("/proc/thread-self/ns/net").ok()?.ino();
    if namespace.parse() != Ok(own) {
        return None;
    }
    name_of(index, &Sysfs::of_namespace().ok()?)
}

pub(crate) fn name_of(index: u32, sysfs: &Sysfs) -> Option<String> {
    let is_named = |name: &String| {
        sysfs.read(&format!("class/net/{name}/ifindex")).is_ok_and(|text| text == index.to_string())
    };
    sysfs.list("class/net").ok()?.into_iter().find(is_named)
}

/// Returns the original name of a journal that was set aside: without `.damaged` or `.2.damaged`.
/// Returns a name without `.damaged` unchanged: another program may have appended `.bak`.
pub(crate) fn name_before_damage(name: &str) -> String {
    let ending = format!(".{EXTENSION}");
    let Some(stem) = name.strip_suffix(DAMAGED) else { return name.to_owned() };
    let numbered =
        stem.rsplit_once('.').filter(|(_, number)| number.bytes().all(|byte| byte.is_ascii_digit()));
    let original = numbered.map_or(stem, |(original, _)| original);
    if original.ends_with(&ending) { original.to_owned() } else { stem.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_journal_that_was_set_aside_is_known() {
        for name in ["1-7.journal", "1-7.kept.journal"] {
            for suffix in ["", ".2", ".12"] {
                assert_eq!(name_before_damage(&format!("{name}{suffix}.damaged")), name);
            }
        }
        for renamed in ["1-7.journal.bak", "1-7.kept.journal~", "1-7.journal.2"] {
            assert_eq!(name_before_damage(renamed), renamed);
            assert_eq!(name_before_damage(&format!("{renamed}.old.damaged")), format!("{renamed}.old"));
        }
    }
}
