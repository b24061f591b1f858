//! `evenkeel study`.

mod options;
mod settings;

use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_files::is_limit;
use evenkeel_host::Host;
use evenkeel_model::shell::Line;
use evenkeel_model::text::{counted, path_text};
use evenkeel_model::world::{Observer, World};
use evenkeel_report::chart;
use evenkeel_study::journal::{self, Journal, JournalError, Settings};
use evenkeel_study::plan::{Extent, timed};
use evenkeel_study::results::Results;
use evenkeel_study::{Request, StudyError, conduct};

use crate::arguments::{Format, Place};
use crate::exit::{Exit, Failure, print};
use crate::progress::{Progress, table_options};
use crate::run::{bed_failure, simulation_failure};

pub use options::{StudyCommand, TcOptions};
use settings::Wanted;

const RECORDS: &str = "evenkeel-records";
const RESULT_FILE: &str = "study-result.json";
const PAGE_FILE: &str = "study.md";

pub fn study(command: &StudyCommand) -> Result<Exit, Failure> {
    match command {
        StudyCommand::Tc(options) => tc(options),
    }
}

fn tc(options: &TcOptions) -> Result<Exit, Failure> {
    let wanted = Wanted::of(options)?;
    let progress = Progress::new(options.quiet)?;
    let (directory, missing) = match wanted.place {
        Place::Netns => {
            Host::live().require_mounted(&["/proc"]).map_err(|error| crate::check::failure(&error))?;
            let mut world = evenkeel_testbed::NetnsWorld::new(None).map_err(|error| bed_failure(&error))?;
            run(&mut world, &wanted, options, &progress, bed_failure)
        }
        Place::Sim => {
            let mut world = crate::run::simulator_of_tenants();
            run(&mut world, &wanted, options, &progress, simulation_failure)
        }
    }?;
    progress.remark(&format!("study: {}", path_text(&directory)));
    if missing > 0 {
        let text = format!("{} without a measurement: every run of them failed", counted(missing, "repeat"));
        let resume = format!("measure again with: {}", resume(&directory));
        return Err(Failure::new(Exit::Failed, text).and(&resume));
    }
    Ok(Exit::Done)
}

fn resume(directory: &Path) -> Line {
    Line::new("evenkeel study tc --resume {}", &[&directory.to_string_lossy()])
}

/// Runs the remaining repeats of the study, stores its result and prints it. Returns the directory, and the
/// number of planned repeats without a measurement.
fn run<W: World>(
    world: &mut W,
    wanted: &Wanted,
    options: &TcOptions,
    progress: &Progress,
    failure: impl Fn(&W::Error) -> Failure,
) -> Result<(PathBuf, usize), Failure> {
    let settings = wanted.settings(world);
    let mut journal = open(&settings, options)?;
    let directory = journal.directory().to_owned();
    if journal.dropped() {
        progress.remark("the last line of the study was damaged: its point is measured again");
    }
    let request = Request {
        scenarios: &wanted.scenarios,
        extent: &wanted.extent,
        rate: wanted.rate,
        seed: wanted.seed,
    };
    let before = journal.is_finished().then(|| journal.entries().len());
    let done = conduct(world, &request, &mut journal, progress);
    progress.finish();
    if matches!(done, Err(StudyError::NothingToRun { .. })) {
        journal.give_up();
    }
    done.map_err(|error| {
        let resume = format!("resume the study with: {}", resume(&directory));
        match error {
            StudyError::World(error) => failure(&error),
            StudyError::Failing(ref inner) => {
                let exit = failure(inner);
                Failure::new(exit.exit(), &error).and(&resume)
            }
            StudyError::Journal(error @ (JournalError::Unplanned { .. } | JournalError::Damaged { .. })) => {
                journal_failure(&error)
            }
            StudyError::Journal(error) => late_failure(&error).and(&resume),
            StudyError::NothingToRun { .. } => Failure::new(Exit::Unable, &error),
            StudyError::Interrupted => {
                Failure::new(Exit::Interrupted, "interrupted; nothing is left changed on this machine")
                    .and(&resume)
            }
        }
    })?;
    let nothing_new = before == Some(journal.entries().len());
    let results = Results::of(journal.settings(), journal.entries(), &request);
    // JSON and the qdisc table have no room for this remark.
    if nothing_new && (options.qdisc_table || options.format == Format::Json) {
        progress.remark(&already(&directory, &results));
        progress.remark(AGAIN);
    }
    let kept = Kept::of(&results)?;
    let written = kept.write(&journal);
    let printed = match options.format {
        _ if options.qdisc_table => print(&evenkeel_study::qdisc_table(&results)),
        Format::Json => print(&kept.json),
        Format::Table if nothing_new => {
            let summary = evenkeel_study::summary(&results, table_options());
            print(&format!("{}\n{AGAIN}\n\n{summary}", already(&directory, &results)))
        }
        Format::Table => print(&evenkeel_study::summary(&results, table_options())),
    };
    // Print the result even if its files cannot be written. The same command writes the files again.
    match (written, printed) {
        (Ok(()), printed) => {
            printed.map_err(|failure| failure.and(&format!("the study is in {}", path_text(&directory))))?;
            Ok((directory, results.runs.missing))
        }
        (Err(error), Ok(())) => {
            Err(late_failure(&error).and("the result was printed, but its files were not written"))
        }
        (Err(error), Err(unprinted)) => Err(late_failure(&error).and(unprinted.message())),
    }
}

// This text has no command, because the study does not record the paths of the user's scenarios and setups.
const AGAIN: &str = "to measure again, use the options of this study and a new directory (--out DIR)";

/// Returns the remark that the study is finished, and that this run measured nothing.
fn already(directory: &Path, results: &Results) -> String {
    format!(
        "{} holds a finished study of {}: this run measured nothing",
        path_text(directory),
        results.times.1
    )
}

struct Kept {
    json: String,
    page: String,
    /// Name and content of each chart.
    charts: Vec<(String, String)>,
}

impl Kept {
    fn of(results: &Results) -> Result<Self, Failure> {
        let mut charts: Vec<(String, String)> = Vec::new();
        let mut titles: Vec<(String, String)> = Vec::new();
        for (name, drawn) in evenkeel_study::charts(results) {
            let text = chart::svg(&drawn).map_err(|error| Failure::new(Exit::Failed, error))?;
            let file = format!("{name}.svg");
            titles.push((drawn.title, file.clone()));
            charts.push((file, text));
        }
        let files: Vec<String> = charts.iter().map(|(file, _)| file.clone()).collect();
        let json = format!("{:#}\n", evenkeel_study::json(results, &files));
        let page = evenkeel_study::markdown(results, &titles);
        Ok(Self { json, page, charts })
    }

    fn write(&self, journal: &Journal) -> Result<(), JournalError> {
        for (file, text) in &self.charts {
            journal.keep(file, text)?;
        }
        journal.keep(RESULT_FILE, &self.json)?;
        journal.keep(PAGE_FILE, &self.page)
    }
}

/// Opens the study's directory. Uses the named directory, if given. Otherwise uses the first directory below
/// [`RECORDS`] that contains this study unfinished, is empty, or does not exist yet.
fn open(settings: &Settings, options: &TcOptions) -> Result<Journal, Failure> {
    let failed = |error: JournalError| journal_failure(&error);
    if let Some(directory) = options.resume.as_ref().or(options.out.as_ref()) {
        return Journal::open(directory, settings).map_err(|error| match error {
            JournalError::Other { path, why } if options.resume.is_some() => {
                let path = path_text(&path);
                let text = format!("cannot resume {path} here: {why}; start a new study with --out DIR");
                Failure::new(Exit::Usage, text)
            }
            error => failed(error),
        });
    }
    let effort = if settings.quick { "quick" } else { "full" };
    let mut number = 1_u32;
    loop {
        let suffix = if number == 1 { String::new() } else { format!("-{number}") };
        let directory = Path::new(RECORDS).join(format!("study-tc-{}-{effort}{suffix}", settings.world));
        let is_another = match journal::read(&directory) {
            Ok((found, entries)) => settings.difference(&found).is_some() || journal::is_finished(&entries),
            Err(JournalError::Missing(_)) => {
                std::fs::read_dir(&directory).is_ok_and(|mut entries| entries.next().is_some())
            }
            Err(_) => true,
        };
        if !is_another {
            match Journal::open(&directory, settings) {
                // Another study created this directory at the same moment.
                Err(JournalError::Other { .. } | JournalError::Occupied(_)) => {}
                Err(JournalError::Busy(_)) if is_another_that_begins(&directory, settings) => {}
                opened => return opened.map_err(failed),
            }
        }
        number = number.saturating_add(1);
    }
}

/// Returns whether another process has just begun a different study in this directory. The settings of that
/// study appear shortly after its lock. If they do not appear within a second, returns true.
fn is_another_that_begins(directory: &Path, settings: &Settings) -> bool {
    const LOOKS: u32 = 20;
    const BETWEEN: Duration = Duration::from_millis(50);
    for _ in 0..LOOKS {
        if let Ok(found) = journal::read_settings(directory) {
            return settings.difference(&found).is_some();
        }
        std::thread::sleep(BETWEEN);
    }
    true
}

/// Creates the error of a write into a directory that was claimed before. It is no usage error: the
/// directory was writable at that time.
fn late_failure(error: &JournalError) -> Failure {
    match error {
        JournalError::Output(output) if !output.is_limit() => Failure::new(Exit::Failed, error),
        error => journal_failure(error),
    }
}

fn journal_failure(error: &JournalError) -> Failure {
    let exit = match error {
        JournalError::Io { source, .. } if is_limit(source) => Exit::Unable,
        JournalError::Io { .. } => Exit::Failed,
        JournalError::Output(error) => Exit::from(error),
        JournalError::Input(error) => Exit::from(error),
        JournalError::Busy(_)
        | JournalError::Missing(_)
        | JournalError::Occupied(_)
        | JournalError::Damaged { .. }
        | JournalError::Unplanned { .. }
        | JournalError::Settings { .. }
        | JournalError::Schema { .. }
        | JournalError::Other { .. } => Exit::Usage,
    };
    Failure::new(exit, error)
}

/// Returns the HTML page of the study in a directory, finished or not.
pub fn page(directory: &Path) -> Result<String, Failure> {
    let wanted = Wanted::resumed(directory)?;
    let (settings, entries, gaps) =
        journal::read_with_gaps(directory).map_err(|error| journal_failure(&error))?;
    journal::check_figures(directory, &settings, &entries, &wanted.scenarios)
        .map_err(|error| journal_failure(&error))?;
    let request = Request {
        scenarios: &wanted.scenarios,
        extent: &wanted.extent,
        rate: wanted.rate,
        seed: wanted.seed,
    };
    Ok(evenkeel_study::html(&Results::of(&settings, &entries, &request), &gaps))
}

pub fn compare(first: &Path, second: &Path, format: Format) -> Result<Exit, Failure> {
    let mut gaps = Vec::new();
    let mut read = |directory: &Path| -> Result<Results, Failure> {
        let (settings, entries, missing) =
            journal::read_with_gaps(directory).map_err(|error| journal_failure(&error))?;
        gaps.extend(missing.iter().map(|missing| format!("{}: {missing}", path_text(directory))));
        let scenarios = settings::scenarios(directory, &settings)?;
        let extent = Extent { quick: settings.quick, ..Extent::default() };
        journal::check_figures(directory, &settings, &entries, &timed(scenarios.clone(), &extent))
            .map_err(|error| journal_failure(&error))?;
        Ok(Results::bare(&settings, &entries, &scenarios))
    };
    let mut agreement = evenkeel_study::agreement(&read(first)?, &read(second)?);
    if agreement.counts().1 == 0 {
        let why = if agreement.compared.is_empty() {
            "nothing to compare: the studies have no point in common"
        } else {
            "nothing to compare: no point has 5 repeats in both studies, the fewest that give an interval"
        };
        let failure = Failure::new(Exit::Usage, why);
        return Err(if gaps.is_empty() { failure } else { failure.and(&gaps.join("; ")) });
    }
    agreement.warnings.splice(0..0, gaps);
    let names = [first, second].map(path_text);
    match format {
        Format::Table => {
            let names = [names[0].as_str(), names[1].as_str()];
            print(&evenkeel_study::agreement_table(&agreement, names, table_options()))?;
        }
        Format::Json => print(&format!("{:#}\n", evenkeel_study::agreement_json(&agreement)))?,
    }
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_that_resumes_is_quoted() {
        assert_eq!(resume(Path::new("study")), "evenkeel study tc --resume study");
        assert_eq!(resume(Path::new("my study")), "evenkeel study tc --resume 'my study'");
    }
}
