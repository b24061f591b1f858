//! Reads variants, and resolves their inheritance.
//!
//! A variant names a *base* and the knobs that differ from the base. A base is in the same file or in
//! the file's variant table. The bases of a table's variants must be in the same table.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::error::ScenarioError;
use super::error::ScenarioErrorKind::{BadValue, Cycle, Duplicate, UnknownName};
use super::knobs::{Clash, KnobSettings, clash};
use super::parse::{LONGEST_DESCRIPTION, document, read_schema};
use super::receive_knobs::ReceiveSettings;
use super::sections::{KINDS, Kind};
use super::toml_table::{Complaints, Field, Located, Table};
use super::transfer_knobs::TransferSettings;
use super::{Link, Sets, Variant};
use crate::text::{excerpt, list, suggestion};
use crate::units::Nanoseconds;

/// Maximum length of a summary, characters.
const LONGEST_SUMMARY: usize = 200;

/// Characters of a variant's name besides letters and digits.
pub(super) const NAME_MARKS: &str = "-_+:.";

#[derive(Clone, Debug)]
enum Settings {
    Transmit(Box<KnobSettings>),
    /// Knobs of the receive side, in scenarios with requests.
    Receive(Box<ReceiveSettings>),
    /// Hosts and placement, in scenarios with transfers.
    Transfers(Box<TransferSettings>),
}

impl Settings {
    fn none(kind: Kind) -> Self {
        match kind {
            Kind::Requests => Self::Receive(Box::default()),
            Kind::Transfers => Self::Transfers(Box::default()),
            _ => Self::Transmit(Box::default()),
        }
    }

    fn read(table: &mut Table<'_>, complete: bool, kind: Kind) -> Self {
        match kind {
            Kind::Requests => Self::Receive(Box::new(ReceiveSettings::read(table, complete))),
            Kind::Transfers => Self::Transfers(Box::new(TransferSettings::read(table, complete))),
            _ => Self::Transmit(Box::new(KnobSettings::read(table, complete))),
        }
    }

    /// Returns position and path of a setting in its file, by its key.
    fn place_of(&self, key: &str) -> Option<(Range<usize>, String)> {
        match self {
            Self::Transmit(settings) => settings.place_of(key),
            Self::Receive(settings) => settings.place_of(key),
            Self::Transfers(settings) => settings.place_of(key),
        }
    }

    /// Returns these settings, and takes missing settings from `base`. All variants of a scenario have
    /// settings of the same kind.
    fn over(&self, base: Self) -> Self {
        match (self, base) {
            (Self::Transmit(own), Self::Transmit(base)) => Self::Transmit(Box::new(own.over(*base))),
            (Self::Receive(own), Self::Receive(base)) => Self::Receive(Box::new(own.over(*base))),
            (Self::Transfers(own), Self::Transfers(base)) => Self::Transfers(Box::new(own.over(*base))),
            (own, _) => own.clone(),
        }
    }
}

#[derive(Clone, Debug)]
struct Draft {
    name: Located<String>,
    base: Option<Located<String>>,
    summary: String,
    settings: Settings,
}

fn read_drafts(variants: &Table<'_>, kind: Kind) -> Vec<Draft> {
    let read_one = |(name, field): (&str, Field<'_>)| {
        let key = field.at_key();
        key.check_name(name, NAME_MARKS);
        let mut table = field.table()?;
        let base = table.take("base");
        let summary = table.require("summary", "say in one sentence how the variant differs from the others");
        let draft = Draft {
            name: key.located(name.to_owned()),
            base: base
                .as_ref()
                .and_then(|base| Some(base.located(base.string("the name of a variant")?.to_owned()))),
            summary: summary.and_then(|summary| summary.prose(LONGEST_SUMMARY, false)).unwrap_or_default(),
            settings: Settings::read(&mut table, base.is_none(), kind),
        };
        table.finish();
        Some(draft)
    };
    variants.entries().filter_map(read_one).collect()
}

/// A variant with its inherited knobs.
#[derive(Clone, Debug)]
struct Resolved {
    draft: Draft,
    /// The variant's settings merged over the settings of the bases; `None` if a base could not be
    /// resolved.
    settings: Option<Settings>,
}

impl Resolved {
    fn name(&self) -> &str {
        &self.draft.name.value
    }

    fn variant(&self) -> Option<Variant> {
        let sets = match self.settings.as_ref()? {
            Settings::Transmit(settings) => Sets::Transmit(settings.knobs()?),
            Settings::Receive(settings) => Sets::Receive(settings.knobs()?),
            Settings::Transfers(settings) => Sets::Transfers(Box::new(settings.knobs()?)),
        };
        Some(Variant {
            name: self.draft.name.value.clone(),
            base: self.draft.base.as_ref().map(|base| base.value.clone()),
            summary: self.draft.summary.clone(),
            sets,
        })
    }

    fn clash(&self, link: &Link, length: Nanoseconds) -> Option<Clash> {
        match self.settings.as_ref()? {
            Settings::Transmit(settings) => clash(&settings.knobs()?, link),
            Settings::Receive(settings) => settings.clash(link),
            Settings::Transfers(settings) => settings.clash(link, length),
        }
    }

    /// Reports a variant of the scenario's file that cannot run on `link`, or not within `length`. The error
    /// is at the first conflicting knob that this file sets. Without such a knob, it is at the variant's
    /// `base`, or at the variant's name if it has no base.
    fn check_own(&self, link: &Link, length: Nanoseconds, complaints: &Complaints<'_>) {
        // An invalid knob would count as its default.
        if matches!(self.settings, Some(Settings::Transfers(_))) && !complaints.is_empty() {
            return;
        }
        let Some(found) = self.clash(link, length) else { return };
        // A knob from a variant table has a position in another file, so use only the variant's own knobs. No
        // bundled table has receive knobs, so a knob from a base also has a position in this file.
        let own = match &self.settings {
            Some(settings @ Settings::Receive(_)) => settings,
            _ => &self.draft.settings,
        };
        let knob = found.knobs.iter().find_map(|knob| own.place_of(knob));
        let mut problem = found.problem;
        if let (Some(_), Some(base)) = (&knob, &self.draft.base) {
            let is_inherited = |knob: &&&str| {
                let value = self.settings.as_ref().and_then(|settings| settings.place_of(knob));
                value.is_some() && own.place_of(knob).is_none()
            };
            let inherited: Vec<&str> = found.knobs.iter().filter(is_inherited).copied().collect();
            if !inherited.is_empty() {
                problem.push_str(&format!(
                    " (from the base '{}': {})",
                    excerpt(&base.value),
                    list(inherited.into_iter())
                ));
            }
        }
        let base = self.draft.base.as_ref().map(|base| (base.span.clone(), base.path.clone()));
        let name = &self.draft.name;
        let (span, path) = knob.or(base).unwrap_or_else(|| (name.span.clone(), name.path.clone()));
        complaints.push(BadValue, &span, &path, problem, found.advice);
    }

    /// Reports a variant of the table that cannot run on `link`, or not within `length`. The error is at the
    /// place where the scenario names the variant.
    fn check_used(
        &self,
        link: &Link,
        length: Nanoseconds,
        used: &Located<String>,
        complaints: &Complaints<'_>,
    ) {
        let Some(found) = self.clash(link, length) else { return };
        let problem = format!("variant '{}' does not fit the link: {}", excerpt(self.name()), found.problem);
        complaints.push(BadValue, &used.span, &used.path, problem, "remove the variant, or change the link");
    }

    fn fits(&self, link: &Link, length: Nanoseconds) -> bool {
        self.variant().is_some() && self.clash(link, length).is_none()
    }
}

/// The variants of a scenario, from its variant table and from its file.
pub(super) struct VariantSet {
    inherited: Vec<Resolved>,
    own: Vec<Resolved>,
    /// Whether the table and the file could be read completely. If not, a name that is not found may
    /// still exist.
    complete: bool,
}

impl VariantSet {
    /// Reads `variant-table` and the `[variant.NAME]` tables.
    ///
    /// # Errors
    /// Returns the first error in the variant table's text; errors of the scenario are recorded.
    pub(super) fn read(
        root: &mut Table<'_>,
        tables: &[(&str, &str)],
        kind: Kind,
        complaints: &Complaints<'_>,
    ) -> Result<Self, ScenarioError> {
        let inherited = match root.take("variant-table") {
            None => Some(Vec::new()),
            Some(field) => field.string("the name of a variant table").map_or(Ok(None), |name| {
                let Some((name, text)) = tables.iter().find(|(known, _)| *known == name) else {
                    field.unknown_name("variant table", name, tables.iter().map(|(name, _)| *name));
                    return Ok(None);
                };
                let (of, variants) = read_table(text, &format!("variants/{name}.toml"))?;
                if of != kind_of_table(kind) {
                    let problem = format!("the table '{name}' has settings of another kind of workload");
                    field.complain(
                        BadValue,
                        problem,
                        "use another table, or write the variants in this file",
                    );
                    return Ok(None);
                }
                Ok(Some(variants))
            })?,
        };
        let drafts = match root.take("variant") {
            None => Some(Vec::new()),
            Some(field) => field.table().map(|table| read_drafts(&table, kind)),
        };
        let (Some(inherited), Some(drafts)) = (inherited, drafts) else {
            return Ok(Self { inherited: Vec::new(), own: Vec::new(), complete: false });
        };
        let taken: BTreeSet<&str> = inherited.iter().map(Resolved::name).collect();
        for Located { value, span, path } in drafts.iter().map(|draft| &draft.name) {
            if taken.contains(value.as_str()) {
                let problem = format!("'{}' is already in the variant table", excerpt(value));
                let advice = "choose another name; the variant can use the existing one as its base";
                complaints.push(Duplicate, span, path, problem, advice);
            }
        }
        let own = resolve(drafts, &inherited, kind, complaints);
        Ok(Self { inherited, own, complete: true })
    }

    /// Returns all names, or `None` if some names could not be read.
    pub(super) fn names(&self) -> Option<BTreeSet<&str>> {
        self.complete.then(|| self.inherited.iter().chain(&self.own).map(Resolved::name).collect())
    }

    /// Reports variants that cannot run on `link`: all variants of the file, and the variants of the
    /// table that the scenario names.
    pub(super) fn check<'u>(
        &self,
        link: &Link,
        length: Nanoseconds,
        used: impl Iterator<Item = &'u Located<String>>,
        complaints: &Complaints<'_>,
    ) {
        self.own.iter().for_each(|variant| variant.check_own(link, length, complaints));
        let inherited: BTreeMap<&str, &Resolved> =
            self.inherited.iter().map(|variant| (variant.name(), variant)).collect();
        for used in used {
            if let Some(variant) = inherited.get(used.value.as_str()) {
                variant.check_used(link, length, used, complaints);
            }
        }
    }

    /// Returns the listed variants in the order of the list, and the other variants. Both results omit
    /// variants that do not fit the link.
    pub(super) fn finish(
        &self,
        link: &Link,
        length: Nanoseconds,
        listed: &[Located<String>],
    ) -> (Vec<Variant>, Vec<Variant>) {
        let position: BTreeMap<&str, usize> =
            listed.iter().enumerate().map(|(position, name)| (name.value.as_str(), position)).collect();
        let fitting = self.inherited.iter().chain(&self.own).filter(|variant| variant.fits(link, length));
        let (mut first, further): (Vec<Variant>, Vec<Variant>) = fitting
            .filter_map(Resolved::variant)
            .partition(|variant| position.contains_key(variant.name.as_str()));
        first.sort_by_key(|variant| position.get(variant.name.as_str()).copied());
        (first, further)
    }
}

/// Progress of the search for a variant's settings.
#[derive(Clone, Copy)]
enum State {
    NotVisited,
    OnPath,
    Done,
}

/// Resolves the bases of `drafts` among themselves and in `inherited`.
///
/// Follows the chains with a loop instead of recursion, because a file may make them arbitrarily long.
fn resolve(
    drafts: Vec<Draft>,
    inherited: &[Resolved],
    kind: Kind,
    complaints: &Complaints<'_>,
) -> Vec<Resolved> {
    let index: BTreeMap<&str, usize> =
        drafts.iter().enumerate().map(|(index, draft)| (draft.name.value.as_str(), index)).collect();
    let inherited: BTreeMap<&str, &Resolved> = inherited.iter().map(|base| (base.name(), base)).collect();
    let mut states = vec![State::NotVisited; drafts.len()];
    let mut resolved: Vec<Option<Settings>> = vec![None; drafts.len()];
    for start in 0..drafts.len() {
        let mut path: Vec<usize> = Vec::new();
        let mut at = start;
        let mut settings = loop {
            match states[at] {
                State::Done => break resolved[at].clone(),
                State::OnPath => {
                    let from = path.iter().position(|visited| *visited == at).unwrap_or(0);
                    complain_of_cycle(&drafts, &path[from..], complaints);
                    break None;
                }
                State::NotVisited => {}
            }
            states[at] = State::OnPath;
            path.push(at);
            let Some(base) = &drafts[at].base else { break Some(Settings::none(kind)) };
            match (index.get(base.value.as_str()), inherited.get(base.value.as_str())) {
                (Some(next), _) => at = *next,
                (None, Some(base)) => break base.settings.clone(),
                (None, None) => {
                    if complaints.would_be_first(&base.span) {
                        let known = index.keys().chain(inherited.keys()).copied();
                        let problem = format!("unknown variant '{}'", excerpt(&base.value));
                        let advice = suggestion(&base.value, known);
                        complaints.push(UnknownName, &base.span, &base.path, problem, advice);
                    }
                    break None;
                }
            }
        };
        for visited in path.into_iter().rev() {
            settings = settings.map(|base| drafts[visited].settings.over(base));
            states[visited] = State::Done;
            resolved[visited].clone_from(&settings);
        }
    }
    drafts.into_iter().zip(resolved).map(|(draft, settings)| Resolved { draft, settings }).collect()
}

fn complain_of_cycle(drafts: &[Draft], members: &[usize], complaints: &Complaints<'_>) {
    let base_of = |member: &usize| drafts[*member].base.as_ref();
    let Some(first) = members.iter().filter_map(base_of).min_by_key(|base| base.span.start) else { return };
    let names = list(members.iter().map(|member| drafts[*member].name.value.as_str()));
    let advice = "remove or change the base of one of these variants";
    complaints.push(Cycle, &first.span, &first.path, format!("the bases form a loop: {names}"), advice);
}

/// Returns the kind of the variant tables that a workload of this kind can use.
fn kind_of_table(kind: Kind) -> Kind {
    if matches!(kind, Kind::Requests | Kind::Transfers) { kind } else { Kind::Bulk }
}

/// Reads a table of variants: `schema`, `name`, `description`, `kind` (bulk by default) and the
/// variants.
fn read_table(text: &str, origin: &str) -> Result<(Kind, Vec<Resolved>), ScenarioError> {
    let document = document(text, origin)?;
    let complaints = Complaints::new(text, origin);
    let mut table = Table::root(document.get_ref(), &complaints);
    let mut kind = Kind::Bulk;
    let mut resolved = Vec::new();
    if read_schema(&mut table) {
        table
            .require("name", "write the name of the file, without .toml")
            .and_then(|field| field.name("a name", "-"));
        if let Some(field) = table.take("description") {
            field.prose(LONGEST_DESCRIPTION, true);
        }
        kind = table.take("kind").and_then(|field| field.one_of(&KINDS)).unwrap_or(kind);
        let drafts = table.require("variant", "state at least one variant, as [variant.NAME]");
        let drafts = drafts.and_then(|field| Some(read_drafts(&field.table()?, kind)));
        table.finish();
        resolved = resolve(drafts.unwrap_or_default(), &[], kind, &complaints);
    }
    complaints.into_error().map_or(Ok((kind, resolved)), Err)
}
