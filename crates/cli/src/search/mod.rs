//! `evenkeel search`: filters that place flows under a policy.

mod bench;
pub mod configuration;
mod solve;

use std::path::Path;
use std::sync::Arc;

use evenkeel_files::{InputError, Kind, Text};
use evenkeel_model::text::{counted, excerpt};
use evenkeel_receive::policy::{Policy, PolicyFile, Queues, ScriptSource};
use evenkeel_receive::{ConfiguredNic, NicModel, search};

use crate::arguments::{SearchCommand, TableSize};
use crate::exit::{Exit, Failure, say};
use crate::{input, memory};

pub fn search(command: &SearchCommand) -> Result<Exit, Failure> {
    match command {
        SearchCommand::Solve(options) => solve::solve(options),
        SearchCommand::Bench(options) => bench::bench(options),
    }
}

type Reader = fn(&Path, Kind) -> Result<Text, InputError>;

pub fn load_policy(name: &str) -> Result<PolicyFile, Failure> {
    if let Some(policy) = PolicyFile::built_in(name) {
        return Ok(policy);
    }
    if !input::is_path(name) {
        let known: Vec<&str> = PolicyFile::names().iter().copied().filter(|name| *name != "script").collect();
        return Err(Failure::unknown("policy", name, known, "or give a path to a TOML file"));
    }
    read_policy(Path::new(name), evenkeel_files::read)
}

/// Reads a policy's file again. Unlike [`load_policy`], does not wait for pipes.
pub fn reload_policy(path: &Path) -> Result<PolicyFile, Failure> {
    read_policy(path, evenkeel_files::read_regular)
}

fn read_policy(path: &Path, read: Reader) -> Result<PolicyFile, Failure> {
    let Text { text, origin } = read(path, Kind::Policy)?;
    // The policy's file names are relative to its directory.
    let directory = input::directory_of(path);
    let file = PolicyFile::parse_with_scripts(&text, &origin, &|script| {
        let Text { text, origin } = evenkeel_files::read_regular(&directory.join(script), Kind::Script)
            .map_err(|error| error.to_string())?;
        Ok(ScriptSource::file(text, origin))
    })
    .map_err(|error| Failure::new(Exit::Usage, error))?;
    file.remarks.iter().for_each(|remark| say(remark));
    Ok(file)
}

/// Returns the maximum number of filters for single flows in a NIC's tables. Counts each table, although some
/// tables exclude each other.
pub fn room(model: &NicModel) -> usize {
    model.tables().iter().filter(|table| table.fields.take_flows()).map(|table| table.capacity).sum()
}

/// Returns an error if a search needs more memory than is available or allowed. `more` is additional memory
/// in bytes.
pub fn require_memory(flows: usize, filters: usize, more: usize) -> Result<(), Failure> {
    let work = format!("a search for {}", counted(flows, "flow"));
    memory::require_for_flows(search::memory(flows, filters) + more as u64, &work)
}

fn bind(policy: &PolicyFile, queues: u16) -> Result<Policy, Failure> {
    policy.bind(&Arc::new(Queues::new(queues))).map_err(|error| Failure::new(Exit::Usage, error))
}

/// Returns a NIC without filters, with the requested table sizes.
fn configure(model: NicModel, sizes: &[TableSize], queues: u16) -> Result<ConfiguredNic, Failure> {
    let usage = |error: &dyn std::fmt::Display| Failure::new(Exit::Usage, error);
    let mut model = model;
    for (number, TableSize { table, capacity }) in sizes.iter().enumerate() {
        if sizes[..number].iter().any(|other| other.table == *table) {
            return Err(usage(&format!(
                "--table-size gives two sizes for the table {}; give one size",
                excerpt(table)
            )));
        }
        let names: Vec<String> = model.tables().iter().map(|table| table.name.clone()).collect();
        let name = model.name().to_owned();
        model = model.with_table_size(table, *capacity).ok_or_else(|| {
            let kind = format!("filter table of {name}");
            Failure::unknown(&kind, table, names.iter().map(String::as_str), "")
        })?;
    }
    ConfiguredNic::new(&model, queues).map_err(|error| usage(&format!("{}: {error}", model.name())))
}
