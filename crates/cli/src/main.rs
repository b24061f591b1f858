//! The `evenkeel` command: dispatches to the crates and returns the exit codes.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | the command ran, but its result is negative; `evenkeel --help` lists the cases |
//! | 2 | bad usage or bad input file |
//! | 3 | this machine cannot run the command; the message names what is missing and what to do |
//! | 4 | the command failed while running; everything is restored, or the message names what is not |
//! | 130 | interrupted; everything is restored |
//!
//! Results go to standard output, progress and logs to standard error.

mod arguments;
mod calibrate;
mod check;
mod compare;
mod congestion;
mod examples;
mod exit;
mod fair;
mod generate;
mod input;
mod listed_flows;
mod live;
mod machine;
mod managed;
mod memory;
mod metrics;
mod nic;
mod output;
mod progress;
mod report;
mod revert;
mod run;
mod scenario;
mod search;
mod service;
mod signals;
mod simulate;
mod steer;
mod stream;
mod study;
mod top;
mod tune;

use std::process::ExitCode;

use clap::Parser;

use crate::arguments::{Arguments, Command};
use crate::exit::{Exit, Failure};

fn main() -> ExitCode {
    evenkeel_files::report_waits(exit::say);
    let ready = memory::require_stack()
        .and_then(|()| memory::require_address_space())
        .and_then(|()| signals::survive_file_size_limit());
    let result = ready.and_then(|()| match Arguments::try_parse() {
        Ok(Arguments { mut command, .. }) => live::prepare(&command).and_then(|()| {
            live::resolve_names(&mut command)?;
            run_command(command)
        }),
        Err(error) => exit::explain(&arguments::plain(error)),
    });
    exit::end(result.unwrap_or_else(|failure| failure.tell())).into()
}

fn run_command(command: Command) -> Result<Exit, Failure> {
    revert::remind(&command);
    match command {
        Command::Run(options) => run::run(&options),
        Command::Scenario(command) => scenario::scenario(&command),
        Command::Fair(options) => fair::fair(&options),
        Command::Service(options) => service::service(&options),
        Command::Status(options) => service::status(&options),
        Command::Revert(options) => revert::revert(&options),
        Command::Guard(options) => revert::guard(&options),
        Command::Nic(command) => nic::nic(&command),
        Command::Search(command) => search::search(&command),
        Command::Steer(options) => steer::steer(&options),
        Command::Congestion(command) => congestion::congestion(&command),
        Command::Check(options) => check::check(&options),
        Command::Metrics(options) => metrics::metrics(&options),
        Command::Top(options) => top::top(&options),
        Command::Tune(options) => tune::tune(&options),
        Command::Calibrate(options) => calibrate::calibrate(&options),
        Command::Maintain(options) => tune::maintain(&options),
        Command::Study(command) => study::study(&command),
        Command::Compare(options) => compare::compare(&options),
        Command::Report(options) => report::report(&options),
        Command::Generate(options) => generate::generate(&options),
    }
}
