//! Files of qdisc setups.

use std::sync::{Arc, LazyLock};

use crate::scenario::document::{Complaints, Field, Table, document, read_schema};
use crate::scenario::{ScenarioError, ScenarioErrorKind};
use crate::units::{BitRate, ByteSize};

use super::resolve::resolve;
use super::step;
use super::template::StepTemplate;
use super::{Claim, QdiscSetup, Surroundings};

const BUNDLED: &str = include_str!("../../../../qdiscs/setups.toml");
/// Name of the bundled file in error messages.
const BUNDLED_ORIGIN: &str = "qdiscs/setups.toml";
/// Maximum numbers of setups in a file, and of steps in a setup. They limit the work for a hostile
/// file.
const MOST_SETUPS: usize = 200;
const MOST_STEPS: usize = 100;
/// Maximum length of a summary, characters.
const LONGEST_SUMMARY: usize = 200;

/// Setups by name, in the order of their files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalogue {
    setups: Vec<Arc<QdiscSetup>>,
}

impl Catalogue {
    #[must_use]
    pub fn bundled() -> Self {
        // A test checks that the file is valid.
        static PARSED: LazyLock<Catalogue> =
            LazyLock::new(|| Catalogue::parse(BUNDLED, BUNDLED_ORIGIN).unwrap_or_default());
        PARSED.clone()
    }

    #[must_use]
    pub fn bundled_text() -> &'static str {
        BUNDLED
    }

    /// Parses a file of setups. Errors name the file as `origin`.
    ///
    /// # Errors
    /// Returns the first error in the text.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ScenarioError> {
        let document = document(text, origin)?;
        let complaints = Complaints::new(text, origin);
        let setups = read(Table::root(document.get_ref(), &complaints)).unwrap_or_default();
        complaints.into_error().map_or(Ok(Self { setups }), Err)
    }

    /// Returns these setups extended by other setups. On equal names, the other setup takes precedence.
    #[must_use]
    pub fn extended(mut self, other: Self) -> Self {
        for setup in other.setups {
            match self.setups.iter_mut().find(|known| known.name == setup.name) {
                Some(known) => *known = setup,
                None => self.setups.push(setup),
            }
        }
        self
    }

    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<QdiscSetup>> {
        self.setups.iter().find(|setup| setup.name == name).cloned()
    }

    pub fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.setups.iter().map(|setup| setup.name.as_str())
    }

    pub fn setups(&self) -> impl Iterator<Item = &Arc<QdiscSetup>> {
        self.setups.iter()
    }
}

fn read(mut root: Table<'_>) -> Option<Vec<Arc<QdiscSetup>>> {
    if !read_schema(&mut root) {
        return None;
    }
    let setups = root.require("setup", "add at least one setup, for example [setup.mine]");
    root.finish();
    let table = setups?;
    // Keep the order of the document.
    let mut entries: Vec<(&str, Field<'_>)> = table.table()?.entries().collect();
    entries.sort_by_key(|(_, field)| field.at_key().span().start);
    if entries.len() > MOST_SETUPS {
        let problem = format!("the file has more than {MOST_SETUPS} setups");
        table.complain(ScenarioErrorKind::BadValue, problem, "move some setups to a second file");
        return None;
    }
    entries.into_iter().map(|(name, field)| read_setup(name, &field).map(Arc::new)).collect()
}

fn read_setup(name: &str, field: &Field<'_>) -> Option<QdiscSetup> {
    let named = field.at_key().check_name(name, "-_");
    let mut table = field.table()?;
    let summary = table.require("summary", "describe the setup in one sentence");
    let summary = summary.and_then(|field| field.prose(LONGEST_SUMMARY, false));
    let claims = table.take("claims").map_or(Some(Vec::new()), |field| {
        field.list("claims")?.iter().map(|claim| claim.one_of(&Claim::SPELLINGS)).collect()
    });
    let steps = table.require("steps", "for example steps = [\"qdisc root handle 1: fq\"]");
    let steps = steps.and_then(|field| read_steps(&field));
    table.finish();
    let (summary, claims, steps) = (summary?, claims?, steps?);
    named.then(|| QdiscSetup { name: name.to_owned(), summary, claims: claims.into_iter().collect(), steps })
}

fn read_steps(field: &Field<'_>) -> Option<Vec<StepTemplate>> {
    let lines = field.list("steps")?;
    if lines.is_empty() || lines.len() > MOST_STEPS {
        let advice = "begin with a step such as \"qdisc root handle 1: htb\"";
        field.complain(
            ScenarioErrorKind::BadValue,
            format!("the setup has {} steps", lines.len()),
            format!("write 1 to {MOST_STEPS}; {advice}"),
        );
        return None;
    }
    let steps: Option<Vec<StepTemplate>> = lines
        .iter()
        .map(|line| {
            let text = line.string("a step, such as \"qdisc root handle 1: fq\"")?;
            step::parse(text)
                .map_err(|mistake| {
                    let (problem, advice) = (mistake.problem, mistake.advice);
                    line.complain_within(ScenarioErrorKind::BadValue, mistake.offset, problem, advice);
                })
                .ok()
        })
        .collect();
    let steps = steps?;
    if let Err(misfit) = resolve(&steps, &EXAMPLE) {
        let line = lines.get(misfit.step).unwrap_or(field);
        line.complain(ScenarioErrorKind::BadValue, misfit.wrong.problem, misfit.wrong.advice);
        return None;
    }
    Some(steps)
}

/// Every setup in a file must resolve on this example device.
const EXAMPLE: Surroundings = Surroundings {
    rate: BitRate::from_bits_per_second(1_000_000_000),
    bulk_flows: 2,
    probes: 1,
    queues: 2,
    largest_segment: ByteSize::from_bytes(65_550),
    mtu: ByteSize::from_bytes(1500),
};
