//! `evenkeel search`: filters for flows, as a policy wants them.

mod bench;
mod solve;

use std::io::{IsTerminal, Read};
use std::path::Path;
use std::sync::Arc;

use evenkeel_receive::policy::{Policy, PolicyFile, Queues, ScriptSource};
use evenkeel_receive::{ConfiguredNic, NicModel};

use crate::arguments::{Format, SearchCommand, TableSize};
use crate::exit::{Exit, Failure};

/// Largest policy that is read at all, bytes.
const LARGEST_POLICY: u64 = 1 << 20;

/// Runs `evenkeel search`.
pub fn search(command: &SearchCommand) -> Result<Exit, Failure> {
    match command {
        SearchCommand::Solve(options) => solve::solve(options),
        SearchCommand::Bench(options) => bench::bench(options),
    }
}

/// How to print when nothing was asked for: scripts read JSON, people a table.
fn format_or_default(format: Option<Format>) -> Format {
    let default = || if std::io::stdout().is_terminal() { Format::Table } else { Format::Json };
    format.unwrap_or_else(default)
}

/// The bytes of a file, or of standard input for `-`, and its name in errors.
pub fn read_bytes(path: &Path, largest: u64) -> Result<(Vec<u8>, String), Failure> {
    let is_standard_input = path == Path::new("-");
    let origin = if is_standard_input { "standard input".to_owned() } else { path.display().to_string() };
    let unreadable =
        |error: &dyn std::fmt::Display| Failure::new(Exit::Usage, format!("cannot read {origin}: {error}"));
    let mut bytes = Vec::new();
    // One byte more than is allowed tells a file that is too large, also one without a size such as a pipe.
    let read = if is_standard_input {
        std::io::stdin().lock().take(largest + 1).read_to_end(&mut bytes)
    } else {
        let file = std::fs::File::open(path).map_err(|error| unreadable(&error))?;
        file.take(largest + 1).read_to_end(&mut bytes)
    };
    read.map_err(|error| unreadable(&error))?;
    if bytes.len() as u64 > largest {
        return Err(unreadable(&format!("it is larger than {largest} bytes")));
    }
    Ok((bytes, origin))
}

/// A policy by its name, or from a file.
pub fn load_policy(name: &str) -> Result<PolicyFile, Failure> {
    if let Some(policy) = PolicyFile::built_in(name) {
        return Ok(policy);
    }
    let path = Path::new(name);
    if path.extension().is_none() && !name.contains('/') && !path.exists() {
        let known: Vec<&str> = PolicyFile::names().iter().copied().filter(|name| *name != "script").collect();
        return Err(Failure::unknown("policy", name, known, "or give a path to a TOML file"));
    }
    let (bytes, origin) = read_bytes(path, LARGEST_POLICY)?;
    let usage = |error: &dyn std::fmt::Display| Failure::new(Exit::Usage, error);
    let text = evenkeel_model::scenario::decode(&bytes, &origin).map_err(|error| usage(&error))?;
    // What it names lies beside it.
    let beside = path.parent().filter(|_| path != Path::new("-")).unwrap_or(Path::new(""));
    PolicyFile::parse_with_scripts(text, &origin, &|script| read_script(&beside.join(script)))
        .map_err(|error| usage(&error))
}

/// A script in a file of its own.
pub fn read_script(path: &Path) -> Result<ScriptSource, String> {
    let (bytes, origin) = read_bytes(path, LARGEST_POLICY).map_err(|failure| failure.message().to_owned())?;
    let text =
        evenkeel_model::scenario::decode(&bytes, &origin).map_err(|error| error.to_string())?.to_owned();
    Ok(ScriptSource::file(text, origin))
}

/// A policy for so many queues.
fn bind(policy: &PolicyFile, queues: u16) -> Result<Policy, Failure> {
    policy.bind(&Arc::new(Queues::new(queues))).map_err(|error| Failure::new(Exit::Usage, error))
}

/// A NIC without filters, with tables of other sizes where that is asked for.
fn configure(model: NicModel, sizes: &[TableSize], queues: u16) -> Result<ConfiguredNic, Failure> {
    let usage = |error: &dyn std::fmt::Display| Failure::new(Exit::Usage, error);
    let mut model = model;
    for TableSize { table, capacity } in sizes {
        let names: Vec<String> = model.tables().iter().map(|table| table.name.clone()).collect();
        let name = model.name().to_owned();
        model = model.with_table_size(table, *capacity).ok_or_else(|| {
            let kind = format!("filter table of {name}");
            Failure::unknown(&kind, table, names.iter().map(String::as_str), "")
        })?;
    }
    ConfiguredNic::new(&model, queues).map_err(|error| usage(&format!("{}: {error}", model.name())))
}
