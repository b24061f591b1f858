//! The configuration of the service: options are checked as on the command lines of `fair`, `steer` and
//! `tune`.

use std::collections::BTreeSet;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use evenkeel_files::{Kind, Text};
use evenkeel_model::scenario::ScenarioError;
use evenkeel_model::shell::Line;
use evenkeel_model::text::{excerpt, list, suggestion};
use evenkeel_placement::{find_rule, rules};
use evenkeel_report::page::Heading;
use evenkeel_service::{
    Configuration, Control, Interface, Interfaces, Kind as WorkerKind, OptionError, Rule,
};

use crate::arguments::{Arguments, Command};
use crate::exit::{Exit, Failure, print_page};
use crate::fair::open_weights;
use crate::input;
use crate::progress::page;
use crate::search::load_policy;

fn parse(text: &Text) -> Result<Configuration, ScenarioError> {
    Configuration::parse(&text.text, &text.origin, &check_options)
}

/// Parses the file of a running service, and reads the files that it names, except pipes: only a worker
/// waits for the writer of a pipe.
pub fn parse_again(text: &Text) -> Result<Configuration, ScenarioError> {
    let is_pipe = |path: &str| std::fs::metadata(path).is_ok_and(|file| file.file_type().is_fifo());
    parse_with_files(text, &|path| !is_pipe(path))
}

/// Parses a file, and reads the wanted files of weights and policies that the file names.
fn parse_with_files(text: &Text, is_wanted: &dyn Fn(&str) -> bool) -> Result<Configuration, ScenarioError> {
    let check = |kind, arguments: &[String]| {
        check_options(kind, arguments).and_then(|()| check_files(arguments, is_wanted))
    };
    Configuration::parse(&text.text, &text.origin, &check)
}

/// Reads the configuration file when the service starts. Accepts only a regular file, because the service
/// reads the file again later.
pub fn read_regular(file: &Path) -> Result<Configuration, Failure> {
    let text =
        evenkeel_files::read_regular(file, Kind::Service).map_err(|error| match error.is_missing() {
            true => Failure::new(
                Exit::Usage,
                format!("{error}; contrib/evenkeel.toml in the source repository is a template"),
            ),
            false => error.into(),
        })?;
    parse(&text).map_err(|error| Failure::with_causes(Exit::Usage, &error))
}

/// Checks arguments of `fair` or `steer`, or names of rules of `tune`.
fn check_options(kind: WorkerKind, arguments: &[String]) -> Result<(), OptionError> {
    if kind == WorkerKind::Tune {
        return arguments.iter().try_for_each(|rule| check_rule(rule));
    }
    let line = ["evenkeel", kind.word()].into_iter().map(str::to_owned);
    let line = line.chain(arguments.iter().cloned()).chain(["--".to_owned(), "IFACE".to_owned()]);
    let parsed = Arguments::try_parse_from(line).map_err(|error| option_error(&error))?;
    let checked = match parsed.command {
        Command::Fair(options) => crate::fair::request(&options).map(drop),
        Command::Steer(options) => crate::steer::refuse_ignored(&options),
        _ => Ok(()),
    };
    checked.map_err(|failure| OptionError {
        key: None,
        problem: failure.message().to_owned(),
        advice: String::new(),
    })
}

/// Opens the wanted files of weights and policies that arguments name.
fn check_files(arguments: &[String], is_wanted: &dyn Fn(&str) -> bool) -> Result<(), OptionError> {
    let failed = |key: &str, failure: Failure| OptionError {
        key: Some(key.to_owned()),
        problem: failure.message().to_owned(),
        advice: String::new(),
    };
    for argument in arguments {
        if let Some(weights) = argument.strip_prefix("--weights=").filter(|path| is_wanted(path)) {
            open_weights(Path::new(weights)).map_err(|failure| failed("weights", failure))?;
        }
        if let Some(policy) = argument.strip_prefix("--policy=").filter(|path| is_wanted(path)) {
            load_policy(policy).map_err(|failure| failed("policy", failure))?;
        }
    }
    Ok(())
}

fn check_rule(name: &str) -> Result<(), OptionError> {
    if find_rule(name).is_some() {
        return Ok(());
    }
    let advice = suggestion(name, rules().map(|rule| rule.name));
    let problem = format!("'{}' is not a rule of `evenkeel check`", excerpt(name));
    Err(OptionError { key: None, problem, advice })
}

fn option_error(error: &clap::Error) -> OptionError {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => Some(texts.join(", ")),
        _ => None,
    };
    let argument = text(ContextKind::InvalidArg).unwrap_or_default();
    let key = argument.strip_prefix("--").and_then(|name| name.split([' ', '=']).next()).map(str::to_owned);
    if error.kind() == ErrorKind::MissingRequiredArgument {
        let needed = key.map_or(argument, |key| format!("'{key}'"));
        return OptionError {
            key: None,
            problem: format!("{needed} is missing"),
            advice: format!("add {needed}: the other options need it"),
        };
    }
    let value = text(ContextKind::InvalidValue).unwrap_or_default();
    let mut advice = match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(values)) => format!("use {}", list(values.iter().map(String::as_str))),
        _ => String::new(),
    };
    if advice.is_empty()
        && let Some(source) = std::error::Error::source(error)
    {
        advice = source.to_string();
    }
    OptionError { key, problem: format!("invalid value '{}'", excerpt(&value)), advice }
}

/// Checks a file and the files that it names on this host. Prints the options of each present
/// interface.
pub fn check(file: &Path) -> Result<Exit, Failure> {
    let text = input::read(file, Kind::Service)?;
    let configuration =
        parse_with_files(&text, &|_| true).map_err(|error| Failure::with_causes(Exit::Usage, &error))?;
    Control::check(&configuration.socket, configuration.group.as_deref())
        .map_err(|error| super::failure(&error))?;
    let failed = |error| Failure::with_causes(Exit::Failed, &error);
    let interfaces = Interfaces::open().and_then(|mut interfaces| interfaces.list()).map_err(failed)?;
    print_page(shown(&configuration, &interfaces))?;
    Ok(Exit::Done)
}

/// Returns the command that does the work of a worker by hand.
fn command(rule: &Rule, kind: WorkerKind, interface: &str) -> Line {
    let (template, words) = match kind {
        WorkerKind::Tune => {
            let rules = rule.tune.iter().flatten().cloned();
            ("evenkeel tune", std::iter::once("--apply".to_owned()).chain(rules).collect())
        }
        WorkerKind::Fair => ("evenkeel fair", rule.arguments(kind).unwrap_or_default()),
        WorkerKind::Steer => ("evenkeel steer", rule.arguments(kind).unwrap_or_default()),
    };
    let with_words = |line: Line| words.iter().fold(line, |line, word| line.with(" {}", &[word]));
    let line = match interface.starts_with('-') {
        true => with_words(Line::new(template, &[])).on(&interface, "", &[]),
        false => with_words(Line::new(template, &[]).on(&interface, "", &[])),
    };
    let stays = kind == WorkerKind::Tune && rule.keeps_tune;
    if stays { line.remark("the changes stay when the service ends") } else { line }
}

fn shown(configuration: &Configuration, interfaces: &[Interface]) -> evenkeel_report::page::Page {
    let mut page = page();
    let (mut rows, mut managed) = (Vec::new(), 0);
    let (mut others, mut excluded, mut used) = (Vec::new(), Vec::new(), Vec::new());
    for interface in interfaces {
        match configuration.rule_of(interface) {
            Some((number, rule)) => {
                used.push(number);
                if rule.kinds().next().is_none() {
                    excluded.push(format!("{} (rule {})", interface.name, number + 1));
                    continue;
                }
                managed += 1;
                let driver = interface.driver.clone().unwrap_or_else(|| "-".to_owned());
                rows.extend(rule.kinds().map(|kind| {
                    let command = command(rule, kind, &interface.name).to_string();
                    vec![interface.name.clone(), driver.clone(), (number + 1).to_string(), command]
                }));
            }
            None => others.push(interface.name.as_str()),
        }
    }
    page.answer(&match managed {
        0 if configuration.rules.is_empty() => {
            "The file is valid; it has no [[interface]], so the service manages nothing.".to_owned()
        }
        0 if used.is_empty() => "The file is valid; no present interface matches it.".to_owned(),
        0 => "The file is valid; its rules leave the present interfaces alone.".to_owned(),
        1 => "The file is valid; the service manages 1 of the present interfaces.".to_owned(),
        count => format!("The file is valid; the service manages {count} of the present interfaces."),
    });
    if !rows.is_empty() {
        page.gap();
        let columns = [
            Heading::text("interface"),
            Heading::text("driver").dropped(1),
            Heading::number("rule"),
            Heading::text("as"),
        ];
        page.table(&columns, &rows);
    }
    if !excluded.is_empty() {
        page.line(&format!("left alone (fair = false): {}", list(excluded.iter().map(String::as_str))));
    }
    if !others.is_empty() {
        page.line(&format!("not managed: {}", list(others)));
    }
    let covered: BTreeSet<usize> = interfaces
        .iter()
        .flat_map(|interface| configuration.rules_of(interface).skip(1))
        .map(|(number, _)| number)
        .collect();
    let unused = (0..configuration.rules.len()).filter(|number| !used.contains(number));
    let (covered, idle): (Vec<usize>, Vec<usize>) = unused.partition(|number| covered.contains(number));
    let numbers =
        |rules: &[usize]| rules.iter().map(|number| (number + 1).to_string()).collect::<Vec<_>>().join(", ");
    if !covered.is_empty() {
        page.line(&format!("rules whose interfaces earlier rules take: {}", numbers(&covered)));
    }
    if !idle.is_empty() {
        page.line(&format!("rules without a present interface: {}", numbers(&idle)));
    }
    page
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::CommandFactory;
    use evenkeel_service::{FAIR_KEYS, STEER_KEYS};

    use super::*;

    fn checked(arguments: &[&str]) -> Result<(), OptionError> {
        let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        check_options(WorkerKind::Fair, &arguments)
    }

    #[test]
    fn the_keys_are_the_options_of_fair_and_steer() {
        let command = Arguments::command();
        // Leave out the options that a service sets or cannot use.
        let options = |name: &str, others: &[&str]| {
            let command = command.find_subcommand(name).unwrap();
            // `--clsact` is hidden: it is for tests.
            let shown = command.get_arguments().filter(|option| !option.is_hide_set());
            let options = shown.filter_map(clap::Arg::get_long).filter(|name| !others.contains(name));
            options.map(str::to_owned).collect::<BTreeSet<String>>()
        };
        let keys = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<BTreeSet<String>>();
        let fair = options("fair", &["observe", "plan", "for", "format", "help", "version"]);
        assert_eq!(fair, keys(&FAIR_KEYS));
        let others =
            ["once", "watch", "plan", "flows", "generate", "baseline", "for", "format", "help", "version"];
        assert_eq!(options("steer", &others), keys(&STEER_KEYS));
    }

    #[test]
    fn rules_and_options_of_steer_are_checked() {
        let check = |kind, argument: &str| check_options(kind, &[argument.to_owned()]);
        assert_eq!(check(WorkerKind::Tune, "gro-off"), Ok(()));
        let error = check(WorkerKind::Tune, "gro-of").unwrap_err();
        assert!(error.advice.contains("gro-off"), "{error:?}");
        let steer = |options: &[&str]| {
            let options: Vec<String> = options.iter().map(|text| (*text).to_owned()).collect();
            check_options(WorkerKind::Steer, &options)
        };
        assert_eq!(steer(&["--policy=balance", "--backend=xdp", "--queues=2", "--interval=1s"]), Ok(()));
        assert_eq!(steer(&["--policy=balance", "--queues=0"]).unwrap_err().key.as_deref(), Some("queues"));
        assert!(steer(&["--policy=balance", "--backend=rps", "--model=i82599"]).is_err());
    }

    #[test]
    fn rules_without_an_interface_are_told_from_those_that_come_too_late() {
        let rule = |name: &str| format!("[[interface]]\nmatch.name = \"{name}\"\nfair = {{}}\n");
        let text = format!("schema = 1\n{}{}{}", rule("eth0"), rule("eth*"), rule("wan"));
        let configuration = Configuration::parse(&text, "x", &check_options).unwrap();
        let interface = Interface { name: "eth0".to_owned(), ..Interface::default() };
        let shown = shown(&configuration, &[interface]).finish();
        let end = "rules whose interfaces earlier rules take: 2\nrules without a present interface: 3\n";
        assert!(shown.contains("manages 1 of") && shown.ends_with(end), "{shown}");
    }

    #[test]
    fn a_shown_command_can_be_pasted() {
        let text = "schema = 1\n[[interface]]\nmatch.name = \"a;b\"\nfair.weights = \"/a b\"\ntune = [\"sack-off\"]\n\
                    tune-at-end = \"keep\"\n";
        let configuration = Configuration::parse(text, "x", &check_options).unwrap();
        let shown = |kind, name: &str| command(&configuration.rules[0], kind, name).to_string();
        assert_eq!(shown(WorkerKind::Fair, "a;b"), "evenkeel fair 'a;b' '--weights=/a b'");
        let tune = "evenkeel tune 'a;b' --apply sack-off  # the changes stay when the service ends";
        assert_eq!(shown(WorkerKind::Tune, "a;b"), tune);
        assert_eq!(shown(WorkerKind::Fair, "-x"), "evenkeel fair '--weights=/a b' -- -x");
    }

    #[test]
    fn interfaces_that_a_rule_leaves_alone_are_told_from_those_without_a_rule() {
        let text = "schema = 1\n[[interface]]\nmatch.name = \"eth*\"\nfair = false\n";
        let configuration = Configuration::parse(text, "x", &check_options).unwrap();
        let interfaces =
            ["eth0", "lan"].map(|name| Interface { name: name.to_owned(), ..Interface::default() });
        let shown = shown(&configuration, &interfaces).finish();
        let (alone, others) = ("left alone (fair = false): eth0 (rule 1)\n", "not managed: lan\n");
        assert!(shown.contains(alone) && shown.ends_with(others) && !shown.contains("no present"), "{shown}");
    }

    #[test]
    fn values_are_checked_as_on_the_command_line() {
        assert_eq!(checked(&[]), Ok(()));
        assert_eq!(checked(&["--queue-weights=htb", "--rate=900mbit"]), Ok(()));
        for (arguments, key, words) in [
            (&["--balance=maybe"][..], Some("balance"), "use off, auto, on"),
            (&["--segments=1MiB"], Some("segments"), "between 4KiB and 64KiB"),
            (&["--rate=7"], Some("rate"), "unit"),
            (&["--rate=1gbit"], None, "--rate is for --queue-weights htb and max-rate"),
            (&["--queue-weights=htb"], None, "'rate' is missing"),
            (&["--balance=on", "--queue-weights=htb", "--rate=1gbit"], None, "--balance off"),
        ] {
            let error = checked(arguments).unwrap_err();
            let text = format!("{}; {}", error.problem, error.advice);
            assert_eq!(error.key.as_deref(), key, "{arguments:?}: {text}");
            assert!(text.contains(words), "{arguments:?}: {text}");
        }
    }
}
