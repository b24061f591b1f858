use std::fmt;
use std::path::{Path, PathBuf};

use evenkeel_model::shell::Line;

use crate::journal::Header;
use crate::printed_command::printed_command;

/// A journal that another program renamed or copied. If its run has not finished, its settings are still in
/// force, in the calling thread's network namespace.
#[derive(Clone, Debug)]
pub struct Renamed {
    pub path: PathBuf,
    /// The path at which `evenkeel revert` looks for the journal.
    pub before: PathBuf,
    pub header: Header,
    /// Whether `evenkeel service` made some of the changes.
    pub has_service: bool,
}

impl Renamed {
    #[must_use]
    pub fn fix(&self) -> Line {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let back = Line::new("mv {} {}", &[&text(&self.path), &text(&self.before)]);
        back.and(printed_command("evenkeel revert {}", &[&self.header.interface.name]))
    }
}

impl std::error::Error for Renamed {}

impl fmt::Display for Renamed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Header { interface, command, process, .. } = &self.header;
        write!(
            formatter,
            "settings of {} still have the values that evenkeel set: another program renamed the journal of evenkeel {command} (process {}); `{}` \
             restores them",
            interface.name,
            process.id,
            self.fix()
        )
    }
}
