//! Parses a step: a `tc` command without `tc` and the device.

use crate::text::{excerpt, is_invisible, suggestion};
use crate::units::{BitRate, Nanoseconds};

use super::kinds::{KINDS, KnownOption, OptionType, Place, Width, kind, option_named};
use super::template::{
    Counter, CurveTerm, FilterTemplate, HandleTemplate, NodeTemplate, Number, PortTerm, RateTerm,
    SettingTemplate, SizeTerm, StepTemplate, Term,
};
use super::values::{self, Wrong, wrong};
use super::{Attribute, Classifier};

/// Longest line, bytes.
pub(super) const LONGEST_LINE: usize = 1000;
/// Maximum number of entries in a list: the length of `priomap` (`TC_PRIO_MAX` + 1), and the bands of `ets`
/// (`TCQ_ETS_MAX_BANDS`).
const MOST_ENTRIES: usize = 16;
/// Longest name of a kind (`IFNAMSIZ`, which `struct Qdisc_ops` uses).
const LONGEST_KIND: usize = 15;

/// `tc`'s commands other than `add` and `replace`.
const OTHER_COMMANDS: [&str; 8] = ["del", "delete", "change", "chg", "link", "show", "list", "get"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mistake {
    /// Offset from the start of the line, bytes.
    pub(super) offset: usize,
    pub(super) problem: String,
    pub(super) advice: String,
}

#[derive(Clone, Copy)]
struct Word<'t> {
    text: &'t str,
    offset: usize,
}

impl Word<'_> {
    fn mistake(self, wrong: Wrong) -> Mistake {
        Mistake { offset: self.offset, problem: wrong.problem, advice: wrong.advice }
    }

    fn wrong(self, problem: impl Into<String>, advice: impl Into<String>) -> Mistake {
        self.mistake(wrong(problem, advice))
    }
}

struct Words<'t> {
    words: Vec<Word<'t>>,
    next: usize,
    end: usize,
}

impl<'t> Words<'t> {
    fn new(line: &'t str) -> Self {
        let mut words = Vec::new();
        let mut offset = 0;
        for piece in line.split(|c: char| c.is_ascii_whitespace()) {
            if !piece.is_empty() {
                words.push(Word { text: piece, offset });
            }
            offset += piece.len() + 1;
        }
        let end = line.trim_end().len();
        Self { words, next: 0, end }
    }

    fn peek(&self) -> Option<Word<'t>> {
        self.words.get(self.next).copied()
    }

    fn next(&mut self) -> Option<Word<'t>> {
        let word = self.peek()?;
        self.next += 1;
        Some(word)
    }

    /// Consumes and returns the next word if it is `text`.
    fn take(&mut self, text: &str) -> Option<Word<'t>> {
        self.peek().filter(|word| word.text == text).inspect(|_| self.next += 1)
    }

    /// Returns the next word, or an error at the end of the line.
    fn need(&mut self, what: &str, advice: &str) -> Result<Word<'t>, Mistake> {
        self.next().ok_or_else(|| self.missing(what, advice))
    }

    fn missing(&self, what: &str, advice: &str) -> Mistake {
        Mistake { offset: self.end, problem: format!("{what} is missing"), advice: advice.to_owned() }
    }

    /// Consumes the next word, which must be `text`.
    fn expect(&mut self, text: &str, advice: &str) -> Result<(), Mistake> {
        let word = self.need(&format!("'{text}'"), advice)?;
        if word.text == text {
            return Ok(());
        }
        Err(word.wrong(format!("expected '{text}', found '{}'", excerpt(word.text)), advice))
    }

    fn value<T>(
        &mut self,
        what: &str,
        advice: &str,
        read: impl FnOnce(&str) -> Result<T, Wrong>,
    ) -> Result<T, Mistake> {
        let word = self.need(what, advice)?;
        read(word.text).map_err(|wrong| word.mistake(wrong))
    }

    fn handle(&mut self, what: &str) -> Result<HandleTemplate, Mistake> {
        self.value(what, "write for example 1:10", values::handle)
    }

    fn finish(mut self) -> Result<(), Mistake> {
        match self.next() {
            None => Ok(()),
            Some(word) => Err(word.wrong(
                format!("unexpected '{}' after the end of the step", excerpt(word.text)),
                "write each command as a step of its own",
            )),
        }
    }
}

pub(super) fn parse(line: &str) -> Result<StepTemplate, Mistake> {
    if line.len() > LONGEST_LINE {
        let problem = format!("the step is longer than {LONGEST_LINE} bytes");
        return Err(Mistake { offset: 0, problem, advice: "shorten the step".to_owned() });
    }
    if let Some((offset, _)) = line.char_indices().find(|(_, c)| is_invisible(*c) && !c.is_ascii_whitespace())
    {
        let problem = "the step contains a control character".to_owned();
        return Err(Mistake { offset, problem, advice: "remove the character".to_owned() });
    }
    let mut words = Words::new(line);
    let _ = words.take("tc");
    let object = words.need("the step", "write for example qdisc root handle 1: htb default 20")?;
    let _ = words.take("add").or_else(|| words.take("replace"));
    if let Some(command) = words.peek().filter(|word| OTHER_COMMANDS.contains(&word.text)) {
        let advice = "a setup starts from an empty device: write 'add', or remove the step";
        return Err(command.wrong(format!("'{}' is not possible", command.text), advice));
    }
    let step = match object.text {
        "qdisc" => {
            skip_device(&mut words)?;
            StepTemplate::Qdisc(qdisc(&mut words)?)
        }
        "class" => {
            skip_device(&mut words)?;
            StepTemplate::Class(class(&mut words)?)
        }
        "filter" => {
            skip_device(&mut words)?;
            filter(&mut words)?
        }
        other => {
            let advice = suggestion(other, ["qdisc", "class", "filter"].into_iter());
            return Err(object.wrong(format!("unknown step '{}'", excerpt(other)), advice));
        }
    };
    words.finish()?;
    let mut counters = step.counters();
    if let Some(one) = counters.next()
        && counters.any(|other| other != one)
    {
        let advice = "write a step for each flow, or one for each queue";
        return Err(object.wrong("a step counts flows or queues, not both", advice));
    }
    Ok(step)
}

/// Skips a device in a command copied from elsewhere, because the tree has its own device.
fn skip_device(words: &mut Words<'_>) -> Result<(), Mistake> {
    if words.take("dev").is_some() {
        words.need("the device's name", "leave dev out: a setup is for any device")?;
    }
    Ok(())
}

fn qdisc(words: &mut Words<'_>) -> Result<NodeTemplate, Mistake> {
    let (mut parent, mut handle) = (None, None);
    loop {
        if words.take("root").is_some() {
            parent = Some(None);
        } else if words.take("parent").is_some() {
            parent = Some(Some(words.handle("the parent")?));
        } else if let Some(word) = words.take("handle") {
            let found = words.handle("the handle")?;
            if found.minor != Number::fixed(0) || found.major == Number::fixed(0) {
                return Err(
                    word.wrong("a qdisc's handle is a number and a colon", "write for example handle 1:")
                );
            }
            handle = Some(found);
        } else if words.peek().is_some_and(|word| word.text == "dev") {
            skip_device(words)?;
        } else {
            break;
        }
    }
    let Some(parent) = parent else {
        return Err(Mistake {
            offset: words.peek().map_or(words.end, |word| word.offset),
            problem: "the qdisc has no parent".to_owned(),
            advice: "write root, or for example parent 1:10, before its kind".to_owned(),
        });
    };
    let kind_word = read_kind(words)?;
    let known = kind(kind_word.text);
    let settings = settings(words, kind_word.text, known.map(|kind| kind.options))?;
    require(words, kind_word, known.map_or(&[], |kind| kind.required), &settings)?;
    Ok(NodeTemplate { parent, handle, kind: kind_word.text.to_owned(), settings })
}

fn class(words: &mut Words<'_>) -> Result<NodeTemplate, Mistake> {
    let (mut parent, mut handle) = (None, None);
    loop {
        if words.take("parent").is_some() {
            parent = Some(words.handle("the parent")?);
        } else if words.take("classid").is_some() {
            handle = Some(words.handle("the class")?);
        } else if words.peek().is_some_and(|word| word.text == "dev") {
            skip_device(words)?;
        } else {
            break;
        }
    }
    let here = words.peek().map_or(words.end, |word| word.offset);
    let missing = |what: &str, advice: &str| Mistake {
        offset: here,
        problem: format!("{what} is missing"),
        advice: advice.to_owned(),
    };
    let parent =
        parent.ok_or_else(|| missing("the class's parent", "write for example parent 1: before its kind"))?;
    let handle = handle
        .ok_or_else(|| missing("the class's number", "write for example classid 1:10 before its kind"))?;
    let kind_word = read_kind(words)?;
    let known = kind(kind_word.text);
    let settings = settings(words, kind_word.text, known.map(|kind| kind.class_options))?;
    require(words, kind_word, known.map_or(&[], |kind| kind.class_required), &settings)?;
    Ok(NodeTemplate { parent: Some(parent), handle: Some(handle), kind: kind_word.text.to_owned(), settings })
}

fn read_kind<'t>(words: &mut Words<'t>) -> Result<Word<'t>, Mistake> {
    let word = words.need("the kind", "write for example htb")?;
    let fits = word.text.len() <= LONGEST_KIND
        && word.text.starts_with(|c: char| c.is_ascii_alphabetic())
        && word.text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if fits {
        return Ok(word);
    }
    Err(word.wrong(
        format!("'{}' cannot be a kind of qdisc", excerpt(word.text)),
        format!("use at most {LONGEST_KIND} letters, digits and '_', as in fq_codel"),
    ))
}

/// Returns an error if no option of a group is set.
fn require(
    words: &Words<'_>,
    kind: Word<'_>,
    groups: &[&[&str]],
    settings: &[SettingTemplate],
) -> Result<(), Mistake> {
    let missing =
        groups.iter().find(|group| !settings.iter().any(|setting| group.contains(&setting.name.as_str())));
    missing.map_or(Ok(()), |group| {
        let what = group.join(" or ");
        Err(words.missing(&format!("{what} of {}", kind.text), "tc requires this value, too"))
    })
}

/// Parses all options up to the end of the line. `known` is `None` for an unknown kind.
fn settings(
    words: &mut Words<'_>,
    of: &str,
    known: Option<&'static [KnownOption]>,
) -> Result<Vec<SettingTemplate>, Mistake> {
    let mut settings: Vec<SettingTemplate> = Vec::new();
    while let Some(word) = words.next() {
        let (name, value) = if word.text == "attribute" {
            ("attribute", Term::Attribute(attribute(words)?))
        } else if let Some(option) = option_named(known.unwrap_or_default(), word.text) {
            (option.name, term(words, option)?)
        } else {
            return Err(unknown_option(word, of, known));
        };
        let taken = |setting: &SettingTemplate| match (&setting.value, &value) {
            (Term::Attribute(one), Term::Attribute(other)) => one.number == other.number,
            _ => setting.name == name,
        };
        if settings.iter().any(taken) {
            return Err(word.wrong(format!("'{}' appears twice", excerpt(word.text)), "write it once"));
        }
        if let Some(other) =
            settings.iter().find(|setting| excludes(known.unwrap_or_default(), &setting.name, name))
        {
            let problem = format!("'{name}' and '{}' exclude each other", other.name);
            return Err(word.wrong(problem, "write one of them"));
        }
        settings.push(SettingTemplate { name: name.to_owned(), value });
    }
    Ok(settings)
}

/// Returns whether two options conflict because they set the same value.
fn excludes(known: &'static [KnownOption], one: &str, other: &str) -> bool {
    const EXCLUSIVE: [(&str, &str); 3] = [("sc", "rt"), ("sc", "ls"), ("limit", "latency")];
    let pair = |(first, second): &(&str, &str)| {
        (one == *first && other == *second) || (one == *second && other == *first)
    };
    let place = |name| match option_named(known, name).map(|option| option.place) {
        Some(Place::Attribute(number, _) | Place::Value(number, ..)) => Some(number),
        _ => None,
    };
    EXCLUSIVE.iter().any(pair) || place(one).is_some_and(|number| place(other) == Some(number))
}

fn unknown_option(word: Word<'_>, of: &str, known: Option<&'static [KnownOption]>) -> Mistake {
    let problem = format!("unknown option '{}' of {}", excerpt(word.text), excerpt(of));
    let advice = match known {
        Some([]) => {
            format!("{of} has no options by name; give an attribute by its number: attribute 3 u32 5")
        }
        Some(options) => suggestion(word.text, options.iter().map(|option| option.name)),
        None => {
            let kinds = KINDS.iter().map(|kind| kind.name);
            match crate::text::nearest(of, kinds) {
                Some(nearest) => format!("did you mean the kind '{nearest}'?"),
                None => "evenkeel knows no options of this kind: give an attribute by number, as in attribute 3 u32 5"
                    .to_owned(),
            }
        }
    };
    word.wrong(problem, advice)
}

fn attribute(words: &mut Words<'_>) -> Result<Attribute, Mistake> {
    const EXAMPLE: &str = "write for example attribute 3 u32 5";
    /// Higher bits of an attribute's type are flags (`NLA_TYPE_MASK`).
    const MOST: u64 = 0x3fff;
    let number = words.value("the attribute's number", EXAMPLE, |text| values::count(text, 1, MOST))?;
    let of = words.need("the attribute's type", EXAMPLE)?;
    let value = if of.text == "flag" { None } else { words.next() };
    values::attribute(number as u16, of.text, value.map(|word| word.text))
        .map_err(|wrong| value.unwrap_or(of).mistake(wrong))
}

fn term(words: &mut Words<'_>, option: &KnownOption) -> Result<Term, Mistake> {
    let what = format!("the value of {}", option.name);
    Ok(match option.of {
        OptionType::Count(least, most) => Term::Count(words.value(&what, "", |text| {
            let count = values::count(text, least, most)?;
            if matches!(option.place, Place::Logarithm(_)) && !count.is_power_of_two() {
                return Err(wrong(format!("{count} is not a power of two"), "write for example 1024"));
            }
            Ok(count)
        })?),
        OptionType::Rate => Term::Rate(words.value(&what, "write for example 100mbit or 50%", |text| {
            fitting_rate(values::rate(text)?, option.place)
        })?),
        OptionType::Size => {
            Term::Size(words.value(&what, "write for example 1514 or 2*segment", values::size)?)
        }
        OptionType::Time => {
            Term::Time(words.value(&what, "write for example 5ms", |text| {
                fitting_time(values::time(text)?, option.place)
            })?)
        }
        OptionType::Seconds => Term::Seconds(words.value(&what, "write whole seconds", |text| {
            const MOST: u64 = 1_000_000;
            Ok(u32::try_from(values::count(text, 0, MOST)?).unwrap_or(u32::MAX))
        })?),
        OptionType::Minor => Term::Minor(words.value(&what, "write for example 20", values::minor)?),
        OptionType::Bands => Term::Bands(entries(words, &what, |text| {
            Ok(u8::try_from(values::count(text, 0, 15)?).unwrap_or(u8::MAX))
        })?),
        OptionType::Sizes => Term::Sizes(entries(words, &what, values::size)?),
        OptionType::Curve => Term::Curve(curve(words)?),
        OptionType::Flag => Term::Flag,
    })
}

/// Returns the rate if the kernel's field can store it; otherwise, or below a byte per second, an error.
fn fitting_rate(rate: RateTerm, place: Place) -> Result<RateTerm, Wrong> {
    const MOST: u64 = u32::MAX as u64 * 8;
    match rate {
        RateTerm::Fixed(fixed)
            if matches!(place, Place::Attribute(_, Width::Word)) && fixed.bits_per_second() > MOST =>
        {
            Err(wrong(
                format!("{fixed} is out of range"),
                "the kernel keeps 32 bits of bytes per second: write less than 34gbit",
            ))
        }
        RateTerm::Fixed(fixed) if fixed.bits_per_second() < 8 => {
            Err(wrong("less than a byte per second", "write for example 100mbit, or 50% of the line"))
        }
        rate => Ok(rate),
    }
}

/// Returns the time if the kernel can store it exactly.
fn fitting_time(time: Nanoseconds, place: Place) -> Result<Nanoseconds, Wrong> {
    let (unit, called) = if matches!(place, Place::Nanoseconds(_)) { (1, "ns") } else { (1000, "us") };
    let most = Nanoseconds::new(u64::from(u32::MAX) * unit);
    if time > most {
        return Err(wrong(
            format!("{time} is out of range"),
            format!("the kernel keeps 32 bits of {called}: write at most {most}"),
        ));
    }
    if !time.as_u64().is_multiple_of(unit) {
        return Err(wrong(
            format!("{time} is not a whole number of {called}, the kernel's unit"),
            "round the time to this unit",
        ));
    }
    Ok(time)
}

/// Parses one to [`MOST_ENTRIES`] values, up to the first word that is not a value.
fn entries<T>(
    words: &mut Words<'_>,
    what: &str,
    read: impl Fn(&str) -> Result<T, Wrong>,
) -> Result<Vec<T>, Mistake> {
    let mut entries = vec![words.value(what, "write at least one number", &read)?];
    let is_entry =
        |word: &Word<'_>| word.text.starts_with(|c: char| c.is_ascii_digit()) || read(word.text).is_ok();
    while let Some(word) = words.peek().filter(is_entry) {
        if entries.len() == MOST_ENTRIES {
            return Err(word.wrong(
                format!("the list has more than {MOST_ENTRIES} entries"),
                format!("write at most {MOST_ENTRIES} entries"),
            ));
        }
        words.next += 1;
        entries.push(read(word.text).map_err(|wrong| word.mistake(wrong))?);
    }
    Ok(entries)
}

/// Parses a service curve: `rate R`, `m2 R`, `m1 R d T m2 R` or `umax S dmax T rate R`.
fn curve(words: &mut Words<'_>) -> Result<CurveTerm, Mistake> {
    const FORMS: &str = "write rate R, m2 R, m1 R d T m2 R or umax S dmax T rate R";
    let rate = |words: &mut Words<'_>| {
        words.value("the slope", FORMS, |text| {
            fitting_rate(values::rate(text)?, Place::Attribute(0, Width::Word))
        })
    };
    let time = |words: &mut Words<'_>| {
        words.value("the time", FORMS, |text| fitting_time(values::time(text)?, Place::Structure))
    };
    let word = words.need("the curve", FORMS)?;
    match word.text {
        "rate" | "m2" => Ok(CurveTerm::Straight(rate(words)?)),
        "m1" => {
            // The first piece may have slope 0.
            let flat = words.take("0").or_else(|| words.take("0bit"));
            let m1 = if flat.is_some() { RateTerm::Fixed(BitRate::default()) } else { rate(words)? };
            words.expect("d", FORMS)?;
            let first = time(words)?;
            words.expect("m2", FORMS)?;
            Ok(CurveTerm::Bent { m1, first, m2: rate(words)? })
        }
        "umax" => {
            let umax: SizeTerm = words.value("the size", FORMS, values::size)?;
            words.expect("dmax", FORMS)?;
            let dmax_word = words.peek();
            let dmax = time(words)?;
            if dmax == Nanoseconds::new(0)
                && let Some(word) = dmax_word
            {
                return Err(word.wrong("the time is 0", "write for example dmax 10ms"));
            }
            words.expect("rate", FORMS)?;
            Ok(CurveTerm::Delay { umax, dmax, rate: rate(words)? })
        }
        other => Err(word.wrong(format!("'{}' begins no curve", excerpt(other)), FORMS)),
    }
}

fn filter(words: &mut Words<'_>) -> Result<StepTemplate, Mistake> {
    const KINDS: [&str; 5] = ["flow", "role", "u32", "flower", "bpf"];
    let mut parent = None;
    loop {
        if words.take("parent").is_some() {
            parent = Some(words.handle("the parent")?);
        } else if words.peek().is_some_and(|word| word.text == "dev") {
            skip_device(words)?;
        } else if words.take("protocol").is_some() {
            words.expect("ip", "filters of a setup match IPv4: write protocol ip, or remove the word")?;
        } else if let Some(word) = words.take("prio").or_else(|| words.take("pref")) {
            return Err(word.wrong(
                "a filter has no number here",
                "remove the number: filters apply in the order of the steps",
            ));
        } else {
            break;
        }
    }
    let Some(parent) = parent else {
        return Err(Mistake {
            offset: words.peek().map_or(words.end, |word| word.offset),
            problem: "the filter's parent is missing".to_owned(),
            advice: "write for example parent 1: before its kind".to_owned(),
        });
    };
    let word = words.need("the filter's kind", "write flow, role, u32, flower or bpf")?;
    let filter = match word.text {
        "flow" => per_flow(words)?,
        "role" => {
            let mut classes = [None, None];
            for _ in 0..2 {
                const FORM: &str = "write for example role probes 1:10 bulk 1:20";
                let word = words.need("the role", FORM)?;
                let at = match word.text {
                    "probes" => 0,
                    "bulk" => 1,
                    other => return Err(word.wrong(format!("unknown role '{}'", excerpt(other)), FORM)),
                };
                if classes[at].is_some() {
                    return Err(word.wrong(format!("'{}' appears twice", word.text), FORM));
                }
                classes[at] = Some(words.handle("the class")?);
            }
            let [Some(probes), Some(bulk)] = classes else {
                return Err(word.wrong("a role is missing", "write for example role probes 1:10 bulk 1:20"));
            };
            FilterTemplate::ByRole { probes, bulk }
        }
        "u32" => {
            const FORM: &str = "write for example u32 match ip dport 5201 0xffff classid 1:10";
            for text in ["match", "ip", "dport"] {
                words.expect(text, FORM)?;
            }
            let port = port(words, FORM)?;
            words.expect("0xffff", FORM)?;
            FilterTemplate::Port { classifier: Classifier::U32, port, class: class_of_filter(words, FORM)? }
        }
        "flower" => {
            const FORM: &str = "write for example flower ip_proto tcp dst_port 5201 classid 1:10";
            for text in ["ip_proto", "tcp", "dst_port"] {
                words.expect(text, FORM)?;
            }
            let port = port(words, FORM)?;
            FilterTemplate::Port {
                classifier: Classifier::Flower,
                port,
                class: class_of_filter(words, FORM)?,
            }
        }
        "bpf" => {
            const FORM: &str = "write for example bpf dst_port 5201 classid 1:10";
            words.expect("dst_port", FORM)?;
            let port = port(words, FORM)?;
            FilterTemplate::Port { classifier: Classifier::Bpf, port, class: class_of_filter(words, FORM)? }
        }
        other => {
            let problem = format!("unknown filter '{}'", excerpt(other));
            return Err(word.wrong(problem, suggestion(other, KINDS.into_iter())));
        }
    };
    Ok(StepTemplate::Filter { parent, filter })
}

fn port(words: &mut Words<'_>, form: &str) -> Result<PortTerm, Mistake> {
    if words.take("{port}").is_some() {
        return Ok(PortTerm::OfFlow);
    }
    let port = words.value("the port", form, |text| values::count(text, 1, u64::from(u16::MAX)))?;
    Ok(PortTerm::Fixed(u16::try_from(port).unwrap_or(u16::MAX)))
}

fn class_of_filter(words: &mut Words<'_>, form: &str) -> Result<HandleTemplate, Mistake> {
    if words.take("flowid").is_none() {
        words.expect("classid", form)?;
    }
    words.handle("the class")
}

fn per_flow(words: &mut Words<'_>) -> Result<FilterTemplate, Mistake> {
    const FORM: &str = "write for example flow classid 1:{flow+100} rest 1:1";
    words.expect("classid", FORM)?;
    let word = words.peek();
    let class = words.handle("the class")?;
    if let Some(word) = word
        && (class.minor.counter != Some(Counter::Flow) || class.major.counter.is_some())
    {
        return Err(word.wrong("not a class for each flow", FORM));
    }
    let mut modulo = None;
    if words.take("modulo").is_some() {
        let most = u64::from(u16::MAX);
        let number = words.value("the number of classes", FORM, |text| values::count(text, 1, most))?;
        modulo = Some(u32::try_from(number).unwrap_or(u32::MAX));
    }
    let rest = if words.take("rest").is_some() { Some(words.handle("the class")?) } else { None };
    Ok(FilterTemplate::PerFlow { class, modulo, rest })
}
