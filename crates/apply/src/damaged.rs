//! Journals that could not be read completely.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use evenkeel_host::Sysfs;
use evenkeel_model::change::Knob;
use evenkeel_model::text::path_text;

use crate::error::{ApplyError, JournalError, KnobError};
use crate::held::is_held;
use crate::identity::{InterfaceIdentity, device_inode};
use crate::journal::Header;
use crate::journal_lines::{Contents, Damage};
use crate::state::{DAMAGED, EXTENSION, StateDirectory};

/// A journal that could not be read completely: some settings may still be changed.
#[derive(Clone, Debug)]
pub struct Damaged {
    /// Where the journal is kept.
    pub path: PathBuf,
    /// Its interface, by the name at the start of the run; by the current name if no line can be read.
    pub interface: Option<String>,
    /// The settings of the readable lines.
    pub readable: Vec<Knob>,
    pub damage: Vec<Damage>,
}

impl Damaged {
    pub(crate) fn of(path: PathBuf, contents: &Contents) -> Self {
        let interface = match &contents.header {
            Some(header) => Some(header.interface.name.clone()),
            None => interface_here(&path),
        };
        let readable = contents.entries.iter().map(|entry| entry.knob.clone()).collect();
        Self { path, interface, readable, damage: contents.damage.clone() }
    }
}

impl std::error::Error for Damaged {}

impl fmt::Display for Damaged {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = path_text(&self.path);
        let interface = self.interface.as_deref();
        let of = interface.map(|name| format!(" of {name}")).unwrap_or_default();
        let name = interface.unwrap_or("IFACE");
        let damage: Vec<String> = self.damage.iter().map(ToString::to_string).collect();
        let readable: Vec<String> =
            self.readable.iter().map(|knob| knob.on(interface.unwrap_or("?")).to_string()).collect();
        write!(
            formatter,
            "settings{of} may still be changed: the journal {path} is damaged ({}), and the settings of the lines that cannot \
             be read are not known; {}; compare the others with `ip -d link show dev {name}`, `tc qdisc show dev {name}`, \
             /sys/class/net/{name}/queues and the file, put them back by hand, then remove the file",
            few(&damage),
            match readable.is_empty() {
                true => "no setting can be read".to_owned(),
                false => format!("readable: {}", few(&readable)),
            }
        )
    }
}

/// Lists the first few.
fn few(items: &[String]) -> String {
    const SHOWN: usize = 4;
    let shown = items[..items.len().min(SHOWN)].join(", ");
    match items.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown}, and {more} more"),
    }
}

/// A damaged journal that was set aside, and its interface's state.
#[derive(Debug)]
pub enum Remains {
    /// Its interface is in this namespace.
    Present(Damaged),
    /// From an earlier boot: its settings are gone.
    Void(PathBuf),
    /// Its interface is gone, or in another namespace.
    Absent(Damaged),
}

/// The damaged journals that were set aside.
///
/// # Errors
/// When the directory or a file cannot be read.
pub fn remains(state: &StateDirectory) -> Result<Vec<Remains>, ApplyError> {
    let mut found = Vec::new();
    for path in state.damaged()? {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let Some(contents) = StateDirectory::read_as(&path, &journal_name(&name))? else { continue };
        let damaged = Damaged::of(path, &contents);
        found.push(match is_present(&damaged, contents.header.as_ref())? {
            None => Remains::Void(damaged.path),
            Some(true) => Remains::Present(damaged),
            Some(false) => Remains::Absent(damaged),
        });
    }
    Ok(found)
}

/// The journals under their own names of which no line can be read, and whose interface is in this namespace. No run holds
/// them.
///
/// # Errors
/// As [`remains`].
pub fn unreadable(state: &StateDirectory) -> Result<Vec<Damaged>, ApplyError> {
    let mut found = Vec::new();
    for path in state.journals()? {
        // Ignore the error, for example of a directory: `evenkeel revert` reports it.
        let Ok(Some(contents)) = StateDirectory::read(&path) else { continue };
        if contents.header.is_some() || contents.shut || is_held(&path)? {
            continue;
        }
        let damaged = Damaged::of(path, &contents);
        found.extend(damaged.interface.is_some().then_some(damaged));
    }
    Ok(found)
}

/// Whether the interface is in this namespace; none after a reboot.
fn is_present(damaged: &Damaged, header: Option<&Header>) -> Result<Option<bool>, ApplyError> {
    // Without a header, its name was found by the number in the file's name.
    let Some(Header { interface, .. }) = header else { return Ok(Some(damaged.interface.is_some())) };
    let here = InterfaceIdentity::here(interface.index, &interface.name).map_err(KnobError::from)?;
    if !interface.same_boot(&here) {
        return Ok(None);
    }
    let sysfs = Sysfs::of_namespace().map_err(KnobError::from)?;
    let found = interface.same_namespace(&here).then(|| name_of(interface.index, &sysfs)).flatten();
    let is_same =
        |name: String| interface.device.is_none() || device_inode(&sysfs, &name) == interface.device;
    Ok(Some(found.is_some_and(is_same)))
}

/// The name of the journal that was renamed to this: without `.damaged` or `.2.damaged`.
fn journal_name(damaged: &str) -> String {
    let ending = format!(".{EXTENSION}");
    let stem = damaged.strip_suffix(DAMAGED).unwrap_or(damaged);
    stem.rfind(&ending).map_or(stem, |at| &stem[..at + ending.len()]).to_owned()
}

/// The current name of a journal's interface, by the numbers in the file's name.
fn interface_here(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let (namespace, rest) = name.split_once('-')?;
    let index: u32 = rest.split('.').next()?.parse().ok()?;
    let own = std::fs::metadata("/proc/thread-self/ns/net").ok()?.ino();
    if namespace.parse() != Ok(own) {
        return None;
    }
    name_of(index, &Sysfs::of_namespace().ok()?)
}

fn name_of(index: u32, sysfs: &Sysfs) -> Option<String> {
    let is_named = |name: &String| {
        sysfs.read(&format!("class/net/{name}/ifindex")).is_ok_and(|text| text == index.to_string())
    };
    sysfs.list("class/net").ok()?.into_iter().find(is_named)
}

impl From<Damaged> for JournalError {
    fn from(damaged: Damaged) -> Self {
        Self::Damaged(Box::new(damaged))
    }
}

impl From<Damaged> for ApplyError {
    fn from(damaged: Damaged) -> Self {
        JournalError::from(damaged).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_journal_that_was_set_aside_is_known() {
        for name in ["1-7.journal", "1-7.kept.journal"] {
            for suffix in ["", ".2", ".12"] {
                assert_eq!(journal_name(&format!("{name}{suffix}.damaged")), name);
            }
        }
    }
}
