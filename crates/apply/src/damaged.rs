//! Journals that could not be read completely.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use evenkeel_host::Sysfs;
use evenkeel_model::change::Knob;
use evenkeel_model::text::path_text;

use crate::journal_lines::{Contents, Damage};

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

pub(crate) fn name_of(index: u32, sysfs: &Sysfs) -> Option<String> {
    let is_named = |name: &String| {
        sysfs.read(&format!("class/net/{name}/ifindex")).is_ok_and(|text| text == index.to_string())
    };
    sysfs.list("class/net").ok()?.into_iter().find(is_named)
}
