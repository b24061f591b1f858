//! A back end without effects, for plans and for NICs of other hosts.

use evenkeel_apply::Report;
use evenkeel_receive::{ConfiguredNic, Filter, NicModel};

use crate::backend::{Applied, Backend, Placement};
use crate::error::SteerError;
use crate::rps::{SOCKET_FLOWS, UNKNOWN_QUEUES, mask_of};

/// A NIC that behaves as its model, without a device.
pub struct Planned {
    backend: &'static str,
    nic: ConfiguredNic,
    processors: Vec<u32>,
    notes: Vec<String>,
    /// Whether a plan for RPS includes RFS; `None` for other plans.
    follows_readers: Option<bool>,
}

impl Planned {
    /// Creates a NIC without configuration. `processors` are the CPUs of its queues, or empty if
    /// unknown. `note` is a remark about the CPUs.
    ///
    /// # Errors
    /// Returns an error if the model has too few queues.
    pub fn new(
        model: &NicModel,
        queues: u16,
        processors: &[u32],
        note: Option<String>,
    ) -> Result<Self, SteerError> {
        Ok(Self {
            backend: "none",
            nic: ConfiguredNic::new(model, queues)?,
            processors: processors.to_vec(),
            notes: note.into_iter().collect(),
            follows_readers: None,
        })
    }

    /// Names the back end that would apply the plan on this host.
    #[must_use]
    pub fn of_backend(mut self, name: &'static str) -> Self {
        self.backend = name;
        self
    }

    /// Converts the plan to a plan for RPS, in which the queue of a flow is unknown. If
    /// `follows_readers` is set, the plan includes RFS.
    #[must_use]
    pub fn of_rps(mut self, follows_readers: bool) -> Self {
        self.follows_readers = Some(follows_readers);
        self
    }
}

impl Backend for Planned {
    fn name(&self) -> &'static str {
        self.backend
    }

    fn nic(&mut self) -> Result<ConfiguredNic, SteerError> {
        Ok(self.nic.clone())
    }

    fn processors(&self) -> &[u32] {
        &self.processors
    }

    fn knows_queues(&self) -> bool {
        self.follows_readers.is_none()
    }

    fn apply(&mut self, found: &Placement<'_>) -> Result<Applied, SteerError> {
        let nic = found.nic;
        let redirected = nic.indirection().iter().zip(self.nic.indirection());
        let applied = Applied {
            inserted: nic.filters().count(),
            redirected: redirected.filter(|(now, before)| now != before).count(),
            ..Applied::default()
        };
        if let Some(follows_readers) = self.follows_readers {
            let mask = mask_of(nic, &self.processors);
            self.notes = vec![
                UNKNOWN_QUEUES.to_owned(),
                format!("RPS needs the processors {mask} in rps_cpus of each receive queue"),
            ];
            if follows_readers {
                self.notes.push(format!(
                    "RFS needs rps_flow_cnt of the receive queues, {SOCKET_FLOWS} in total, and \
                     net.core.rps_sock_flow_entries above 0"
                ));
            }
        }
        Ok(applied)
    }

    fn check(&mut self) -> Result<Option<String>, SteerError> {
        Ok(None)
    }

    fn finish(self: Box<Self>) -> Result<Report, SteerError> {
        Ok(Report::default())
    }

    fn remarks(&self) -> Vec<String> {
        self.notes.clone()
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use evenkeel_receive::QueueId;

    #[test]
    fn a_plan_for_rps_has_its_processors() {
        let model = NicModel::built_in("rss-only").unwrap();
        let mut nic = ConfiguredNic::new(&model, 4).unwrap();
        let rest = [1, 2, 3].map(QueueId).into_iter().cycle().take(nic.indirection().len()).collect();
        nic.set_indirection(rest).unwrap();
        for follows_readers in [false, true] {
            let planned = Planned::new(&model, 4, &[0, 2, 4, 33], None).unwrap();
            let mut planned = planned.of_rps(follows_readers);
            planned.apply(&Placement { nic: &nic, flows: &[], classes: &[] }).unwrap();
            let remarks = planned.remarks().join("\n");
            assert!(remarks.contains("the processors 00000002,00000014 in rps_cpus"), "{remarks}");
            assert_eq!(remarks.contains("rps_flow_cnt"), follows_readers, "{remarks}");
        }
    }
}
