//! Disturbs `fair`, `steer` and `tune` at random times, and damages journals. Counts how often a
//! setting was lost, not restored or wrong. Exits with 1 if there was such a case.
//!
//! Arguments: the number of runs to disturb (default 200), the number of journals to damage (default
//! 500), and the seed (default: from the clock).

mod campaign;

use std::process::ExitCode;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use campaign::{Fallible, Options, Outcome};

fn main() -> ExitCode {
    match run() {
        Ok(outcome) if outcome.failures.is_empty() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(1),
        Err(error) => {
            eprintln!("safety: {error}");
            ExitCode::from(4)
        }
    }
}

fn run() -> Fallible<Outcome> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u64>());
    let mut next = |default: u64| arguments.next().unwrap_or(Ok(default));
    let (kills, damaged) = (u32::try_from(next(200)?)?, u32::try_from(next(500)?)?);
    let seed = next(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs())?;
    let binary = std::env::current_exe()?.with_file_name("evenkeel");
    println!("{kills} disturbed runs and {damaged} damaged journals, seed {seed}");
    let began = Instant::now();
    let outcome = campaign::run(&Options { binary, kills, damaged, seed })?;
    println!("{outcome}; {:.0} s in all", began.elapsed().as_secs_f64());
    Ok(outcome)
}
