//! Generates man pages and completions from the command line's definition.

use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;
use evenkeel_files::{ClaimedDirectory, replace};

use crate::arguments::{Arguments, GenerateOptions, Generated};
use crate::exit::{Exit, Failure};

/// Permissions of generated files.
const MODE: u32 = 0o644;

pub fn generate(options: &GenerateOptions) -> Result<Exit, Failure> {
    let mut directory = ClaimedDirectory::claim(&options.directory)?;
    let new = tempfile::tempdir().map_err(fail)?;
    match options.what {
        Generated::Man => clap_mangen::generate_to(Arguments::command(), &new).map_err(fail)?,
        Generated::Completions => {
            for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
                clap_complete::generate_to(shell, &mut Arguments::command(), "evenkeel", new.path())
                    .map_err(fail)?;
            }
        }
    }
    write_all(new.path(), &options.directory)?;
    directory.keep()?;
    Ok(Exit::Done)
}

/// Writes each file of a directory to another one, whole or not at all.
fn write_all(from: &Path, to: &Path) -> Result<(), Failure> {
    for entry in std::fs::read_dir(from).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let text = std::fs::read(entry.path()).map_err(fail)?;
        replace(&to.join(entry.file_name()), &text, MODE)?;
    }
    Ok(())
}

fn fail(error: std::io::Error) -> Failure {
    Failure::new(Exit::Failed, format!("cannot generate in a temporary directory: {error}"))
}
