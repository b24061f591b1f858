//! `evenkeel report`.

use std::path::{Path, PathBuf};

use evenkeel_files::{NewFile, OutputError};
use evenkeel_model::record::Record;
use evenkeel_model::text::path_text;
use evenkeel_report::compare::{self as comparison, Comparison, Question};
use evenkeel_report::html::{self, Source};

use crate::arguments::ReportOptions;
use crate::compare::Subject;
use crate::exit::{Exit, Failure, print, say};
use crate::input;
use crate::signals::Signals;
use crate::study;

const MODE: u32 = 0o644;

pub fn report(options: &ReportOptions) -> Result<Exit, Failure> {
    let content = Content::read(options)?;
    // From here on, a signal must not leave an unfinished file.
    let signals = Signals::catch()?;
    let is_output = options.out == Path::new("-");
    let file = if is_output {
        None
    } else {
        Some(NewFile::claim(&options.out, MODE).map_err(|error| match error {
            // The message of this error ends with the next step.
            OutputError::Exists { .. } => Failure::new(Exit::from(&error), format!("{error} with -o FILE")),
            error => Failure::from(error).and("name another file with -o FILE"),
        })?)
    };
    let page = content.page();
    if signals.came() {
        return Err(Failure::new(Exit::Interrupted, "interrupted; no page was written"));
    }
    match file {
        None => print(&page)?,
        Some(file) => {
            file.finish(page.as_bytes())?;
            say(&format!("report: {}", path_text(&options.out)));
        }
    }
    Ok(Exit::Done)
}

/// The subject of the page.
enum Content {
    Record(Box<Recorded>),
    Comparison(Box<(Recorded, Recorded, Comparison)>),
    /// The page of a study. It depends on few figures, so the program builds it while reading the
    /// study.
    Study(String),
}

/// A record, and the directory of its series.
struct Recorded {
    record: Record,
    directory: Option<PathBuf>,
}

impl Recorded {
    fn read(path: &Path) -> Result<Self, Failure> {
        let record = input::record(path)?;
        let directory = if path.is_dir() {
            Some(path)
        } else {
            // A record from a pipe has no series.
            path.parent().filter(|_| path.is_file())
        };
        let directory = directory.map(|path| match path.as_os_str().is_empty() {
            true => PathBuf::from("."),
            false => path.to_owned(),
        });
        Ok(Self { record, directory })
    }

    fn source(&self) -> Source<'_> {
        Source { record: &self.record, directory: self.directory.as_deref() }
    }
}

impl Content {
    fn read(options: &ReportOptions) -> Result<Self, Failure> {
        let paths = [Some(&options.record), options.second.as_ref()];
        for path in paths.into_iter().flatten() {
            let why = match Subject::of(path) {
                Subject::FileOfStudy => "is a file of a study; name the study's directory",
                Subject::Study if options.second.is_some() => {
                    "is a study; for two studies, use `evenkeel compare`"
                }
                _ => continue,
            };
            return Err(Failure::new(Exit::Usage, format!("{} {why}", evenkeel_files::shown(path))));
        }
        if Subject::of(&options.record) == Subject::Study {
            return Ok(Self::Study(study::page(&options.record)?));
        }
        let first = Recorded::read(&options.record)?;
        let Some(second) = &options.second else { return Ok(Self::Record(Box::new(first))) };
        let second = Recorded::read(second)?;
        let compared = comparison::compare(&first.record, &second.record, &Question::default())
            .map_err(|error| Failure::new(Exit::Usage, error))?;
        Ok(Self::Comparison(Box::new((first, second, compared))))
    }

    fn page(&self) -> String {
        match self {
            Self::Record(recorded) => html::record(&recorded.source()),
            Self::Comparison(parts) => {
                let (first, second, compared) = parts.as_ref();
                html::comparison(&first.source(), &second.source(), compared)
            }
            Self::Study(page) => page.clone(),
        }
    }
}
