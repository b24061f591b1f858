use std::path::Path;

use evenkeel_files::shown;
use evenkeel_report::compare::{self as comparison, Question};
use evenkeel_report::store;
use evenkeel_study::journal;

use crate::arguments::{CompareOptions, Format};
use crate::exit::{Exit, Failure, print};
use crate::input;
use crate::progress::table_options;
use crate::study;

pub fn compare(options: &CompareOptions) -> Result<Exit, Failure> {
    let (first, second) = (Subject::of(&options.first), Subject::of(&options.second));
    let is_study = |subject| matches!(subject, Subject::Study | Subject::FileOfStudy);
    if is_study(first) != is_study(second) || first == Subject::FileOfStudy || second == Subject::FileOfStudy
    {
        let text = format!(
            "{} {}, and {} {}; name two records, or the directories of two studies",
            shown(&options.first),
            first.words(),
            shown(&options.second),
            second.words()
        );
        return Err(Failure::new(Exit::Usage, text));
    }
    if first == Subject::Study {
        if options.within.is_some() || !options.metrics.is_empty() || options.all {
            let text = "--metric, --within and --all are for records, not for studies; leave them out";
            return Err(Failure::new(Exit::Usage, text));
        }
        return study::compare(&options.first, &options.second, options.format);
    }
    let (first, second) = (input::record(&options.first)?, input::record(&options.second)?);
    let question = Question { metrics: options.metrics.clone(), within: options.within };
    let compared =
        comparison::compare(&first, &second, &question).map_err(|error| Failure::new(Exit::Usage, error))?;
    match options.format {
        Format::Table => {
            let names = [&options.first, &options.second].map(|path| shown(path));
            let names = [names[0].as_str(), names[1].as_str()];
            print(&comparison::render(&compared, names, options.all, table_options()))?;
        }
        Format::Json => print(&format!("{:#}\n", comparison::json(&compared)))?,
    }
    Ok(if compared.agrees() { Exit::Done } else { Exit::Unmet })
}

/// The kind of the object at a path, by its name and content.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    Study,
    /// A file in a study's directory.
    FileOfStudy,
    Record,
    /// Any other file. It may contain a record.
    File,
    Neither,
    Missing,
}

impl Subject {
    pub fn of(path: &Path) -> Self {
        if journal::has_study(path) {
            return Self::Study;
        }
        if path.is_dir() {
            return if path.join(store::RECORD_FILE).exists() { Self::Record } else { Self::Neither };
        }
        match path.exists() || path == Path::new("-") {
            true if journal::is_of_study(path) => Self::FileOfStudy,
            true if path.ends_with(store::RECORD_FILE) => Self::Record,
            true => Self::File,
            false => Self::Missing,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Study => "is a study",
            Self::FileOfStudy => "is a file of a study",
            Self::Record => "is a record",
            Self::File => "is a file",
            Self::Neither => "is neither a study nor a record",
            Self::Missing => "does not exist",
        }
    }
}
