//! A back end without effects, for plans and for NICs of other hosts.

use evenkeel_apply::Report;
use evenkeel_receive::{ConfiguredNic, Filter, NicModel};

use crate::backend::{Applied, Backend, Placement};
use crate::error::SteerError;
use crate::rps::UNKNOWN_QUEUES;

/// A NIC that behaves as its model, with no device behind it.
pub struct Planned {
    nic: ConfiguredNic,
    processors: Vec<u32>,
    note: Option<String>,
    knows_queues: bool,
}

impl Planned {
    /// Creates a NIC without configuration. `processors` are the CPUs of its queues, and none if they are
    /// unknown; `note` is a remark about them.
    ///
    /// # Errors
    /// Returns an error if the model has fewer queues.
    pub fn new(
        model: &NicModel,
        queues: u16,
        processors: &[u32],
        note: Option<String>,
    ) -> Result<Self, SteerError> {
        Ok(Self {
            nic: ConfiguredNic::new(model, queues)?,
            processors: processors.to_vec(),
            note,
            knows_queues: true,
        })
    }

    /// Turns this into a plan for RPS, in which the queue of a flow is not known.
    #[must_use]
    pub fn of_rps(mut self) -> Self {
        (self.knows_queues, self.note) = (false, Some(UNKNOWN_QUEUES.to_owned()));
        self
    }
}

impl Backend for Planned {
    fn name(&self) -> &'static str {
        "none"
    }

    fn nic(&mut self) -> Result<ConfiguredNic, SteerError> {
        Ok(self.nic.clone())
    }

    fn processors(&self) -> &[u32] {
        &self.processors
    }

    fn knows_queues(&self) -> bool {
        self.knows_queues
    }

    fn apply(&mut self, found: &Placement<'_>) -> Result<Applied, SteerError> {
        let nic = found.nic;
        let redirected = nic.indirection().iter().zip(self.nic.indirection());
        let applied = Applied {
            inserted: nic.filters().count(),
            redirected: redirected.filter(|(now, before)| now != before).count(),
            ..Applied::default()
        };
        Ok(applied)
    }

    fn check(&mut self) -> Result<Option<String>, SteerError> {
        Ok(None)
    }

    fn finish(self: Box<Self>) -> Result<Report, SteerError> {
        Ok(Report::default())
    }

    fn remarks(&self) -> Vec<String> {
        self.note.iter().cloned().collect()
    }

    fn shell(&self, nic: &ConfiguredNic) -> Option<String> {
        let line = |(table, filter): (&str, &Filter)| {
            let priority = filter.priority;
            format!("{table} {priority}: {} -> {}\n", filter.matches, nic.target_of(filter))
        };
        let tables = nic.model().tables();
        let filters =
            nic.filters().map(|(id, filter)| (tables[id.table.index()].name.as_str(), filter)).map(line);
        Some(filters.collect())
    }
}
