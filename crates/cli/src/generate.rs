//! Generates man pages and completions from the command line's definition.

use clap::CommandFactory;
use clap_complete::Shell;
use evenkeel_files::ClaimedDirectory;
use evenkeel_model::text::path_text;

use crate::arguments::{Arguments, GenerateOptions, Generated};
use crate::exit::{Exit, Failure};

pub fn generate(options: &GenerateOptions) -> Result<Exit, Failure> {
    let fail = |error: std::io::Error| {
        Failure::new(Exit::Failed, format!("cannot write to {}: {error}", path_text(&options.directory)))
    };
    let mut directory = ClaimedDirectory::claim(&options.directory)?;
    match options.what {
        Generated::Man => clap_mangen::generate_to(Arguments::command(), &options.directory).map_err(fail)?,
        Generated::Completions => {
            for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
                clap_complete::generate_to(shell, &mut Arguments::command(), "evenkeel", &options.directory)
                    .map_err(fail)?;
            }
        }
    }
    directory.keep()?;
    Ok(Exit::Done)
}
