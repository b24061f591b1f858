//! Generates man pages and completions from the command line's definition.

use std::io;

use clap::{Command, CommandFactory};
use clap_complete::{Generator, Shell};
use clap_mangen::Man;
use evenkeel_files::{ClaimedDirectory, replace_all};

use crate::arguments::{Arguments, GenerateOptions, Generated};
use crate::exit::{Exit, Failure};

const MODE: u32 = 0o644;

pub fn generate(options: &GenerateOptions) -> Result<Exit, Failure> {
    let mut directory = ClaimedDirectory::claim(&options.directory)?;
    let mut files = Vec::new();
    match options.what {
        Generated::Man => {
            let mut command = Arguments::command().disable_help_subcommand(true);
            command.build();
            add_pages(command, &mut files).map_err(fail)?;
        }
        Generated::Completions => {
            for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
                let mut text = Vec::new();
                clap_complete::generate(shell, &mut Arguments::command(), "evenkeel", &mut text);
                files.push((shell.file_name("evenkeel"), text));
            }
        }
    }
    replace_all(&options.directory, &files, MODE)?;
    directory.keep()?;
    Ok(Exit::Done)
}

/// Adds the man pages of a command and its subcommands, each with its file name.
fn add_pages(command: Command, files: &mut Vec<(String, Vec<u8>)>) -> io::Result<()> {
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        add_pages(command.clone(), files)?;
    }
    let (page, mut text) = (Man::new(command), Vec::new());
    page.render(&mut text)?;
    files.push((page.get_filename(), text));
    Ok(())
}

fn fail(error: io::Error) -> Failure {
    Failure::new(Exit::Failed, format!("cannot generate a man page: {error}"))
}
