use evenkeel_report::compare::{self as comparison, Question};
use evenkeel_report::store::{self, StoreError};

use crate::arguments::{CompareOptions, Format};
use crate::exit::{Exit, Failure, print};
use crate::progress::table_options;
use crate::study::{self, is_study};

pub fn compare(options: &CompareOptions) -> Result<Exit, Failure> {
    if is_study(&options.first) && is_study(&options.second) {
        if options.within.is_some() || !options.metrics.is_empty() {
            let text = "--within and --metric are for records, not for studies";
            return Err(Failure::new(Exit::Usage, text));
        }
        return study::compare(&options.first, &options.second, options.format);
    }
    let read = |path| {
        store::read(path).map_err(|error| match error {
            StoreError::Input(error) => error.into(),
            error => Failure::with_causes(Exit::Usage, &error),
        })
    };
    let (first, second) = (read(&options.first)?, read(&options.second)?);
    let question = Question { metrics: options.metrics.clone(), within: options.within };
    let compared =
        comparison::compare(&first, &second, &question).map_err(|error| Failure::new(Exit::Usage, error))?;
    match options.format {
        Format::Table => {
            let names = [&options.first, &options.second].map(|path| path.to_string_lossy());
            let names = [names[0].as_ref(), names[1].as_ref()];
            print(&comparison::render(&compared, names, options.all, table_options()))?;
        }
        Format::Json => print(&format!("{:#}\n", comparison::json(&compared)))?,
    }
    Ok(if compared.agrees() { Exit::Done } else { Exit::Unmet })
}
