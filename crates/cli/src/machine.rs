//! Finds machine profiles by name or path.

use std::path::Path;

use evenkeel_files::{Kind, Text};
use evenkeel_model::machine::MachineProfile;

use crate::exit::{Exit, Failure};
use crate::input;

/// Returns the profile that `--machine` names: a built-in one, or a file.
pub fn load(name: &str) -> Result<MachineProfile, Failure> {
    if let Some(profile) = MachineProfile::built_in(name) {
        return Ok(profile);
    }
    if !input::is_path(name) {
        let names = MachineProfile::built_in_texts().iter().map(|(name, _)| *name);
        return Err(Failure::unknown(
            "machine profile",
            name,
            names,
            "or give a path to a TOML file, as evenkeel calibrate writes it",
        ));
    }
    let Text { text, origin } = input::read(Path::new(name), Kind::MachineProfile)?;
    MachineProfile::parse(&text, &origin).map_err(|error| Failure::new(Exit::Usage, error))
}
