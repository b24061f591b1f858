//! Programs on the PATH.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Returns a program's path. Searches like a shell, and also in the system directories that an ordinary
/// user's PATH lacks.
#[must_use]
pub fn find_tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(system).map(|directory| directory.join(name)).find(|file| {
        file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    })
}

/// Returns the first line of `name --version` that is not empty; `None` if the program cannot be run or
/// prints no such line.
#[must_use]
pub fn tool_version(name: &str) -> Option<String> {
    let file = find_tool(name)?;
    let output =
        Command::new(file).arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}
