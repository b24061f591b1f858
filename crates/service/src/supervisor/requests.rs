//! Answers clients, and reads the configuration again.

use std::collections::BTreeSet;
use std::time::Instant;

use evenkeel_model::text::{excerpt, suggestion};
use serde_json::{Value, json};

use super::{Priority, Supervisor};
use crate::configuration::Configuration;
use crate::control::{Command, Request};
use crate::status::Phase;

impl Supervisor<'_> {
    /// Reads the configuration again. Returns remarks about parts that are not in force yet, or the error
    /// because of which the previous configuration stays in force.
    pub(super) fn reload(&mut self, now: Instant) -> Result<Vec<String>, String> {
        self.notifier.reloading();
        let read = self.outside.configuration();
        let result = match read {
            Ok(configuration) => {
                let remarks = self.needs_restart(&configuration);
                remarks.iter().for_each(|text| self.log(Priority::Warning, now, text));
                self.configuration = configuration;
                self.error = None;
                self.log(Priority::Info, now, &format!("reloaded {}", self.origin));
                // Drop the list, so that this turn of the loop lists the interfaces again.
                self.listed = None;
                for unit in self.units.values_mut() {
                    if unit.phase == Some(Phase::Refused) {
                        unit.retry(now);
                    }
                }
                Ok(remarks)
            }
            Err(error) => {
                let text = format!("{error}; the previous configuration stays in force");
                self.log(Priority::Error, now, &text);
                self.error = Some(error.clone());
                Err(error)
            }
        };
        self.notifier.ready();
        result
    }

    /// Compares a new configuration with the socket and group of the start. Returns a remark for each
    /// difference.
    fn needs_restart(&self, new: &Configuration) -> Vec<String> {
        let (socket, group) = &self.listens;
        let remark = |what| {
            format!("the new {what} is not in force: it takes effect only after a restart of the service")
        };
        let changed = [(new.socket != *socket, "socket"), (new.group != *group, "group")];
        changed.into_iter().filter(|(is_new, _)| *is_new).map(|(_, what)| remark(what)).collect()
    }

    pub(super) fn answer(&mut self, request: &Request, now: Instant) -> Value {
        match request.command {
            Command::Status => serde_json::to_value(self.status(now)).unwrap_or_default(),
            Command::Reload => match self.reload(now) {
                Ok(remarks) => json!({"done": self.origin, "remarks": remarks}),
                Err(error) => json!({"error": error}),
            },
            Command::Pause | Command::Resume => {
                let is_pause = request.command == Command::Pause;
                match self.set_paused(request.interface.as_deref(), is_pause, now) {
                    Ok(names) => json!({"done": names}),
                    Err(error) => json!({"error": error}),
                }
            }
        }
    }

    /// Pauses or resumes one interface or all. Returns their names.
    fn set_paused(&mut self, name: Option<&str>, pause: bool, now: Instant) -> Result<Vec<String>, String> {
        // A `revert` just before this request may have restored settings.
        self.forget_restored();
        let names: BTreeSet<String> = self.units.values().map(|unit| unit.name.clone()).collect();
        let names: Vec<String> = names.into_iter().collect();
        let Some(name) = name else {
            self.all_paused = pause;
            if !pause {
                self.paused.clear();
                self.units.values_mut().for_each(|unit| unit.retry(now));
            }
            return Ok(names);
        };
        let is_unsettled = self.unsettled.values().any(|left| left.status.name == name);
        if !is_unsettled && !names.iter().any(|known| known == name) {
            if let Some(missing) = self.missing.iter().find(|missing| missing.name == name) {
                return Err(format!("the service manages no interface '{name}': {missing}"));
            }
            let hint = suggestion(name, names.iter().map(String::as_str));
            return Err(format!("the service manages no interface '{}'; {hint}", excerpt(name)));
        }
        if pause {
            self.paused.insert(name.to_owned());
            return Ok(vec![name.to_owned()]);
        }
        // After `pause` without a name, `resume NAME` leaves the others paused.
        if std::mem::take(&mut self.all_paused) {
            self.paused.extend(names.iter().cloned());
        }
        self.paused.remove(name);
        for unit in self.units.values_mut().filter(|unit| unit.name == name) {
            unit.retry(now);
        }
        Ok(vec![name.to_owned()])
    }
}
