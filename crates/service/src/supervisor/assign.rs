//! Assigns the present interfaces to the rules of the configuration.

use std::collections::BTreeSet;
use std::time::Instant;

use super::{Left, Managed, Supervisor};
use crate::Kind;
use crate::interfaces::Interface;
use crate::pattern::Pattern;
use crate::status::Missing;
use crate::supervisor::Priority;
use crate::unit::Unit;

impl Supervisor<'_> {
    pub(super) fn assign(&mut self, found: &[Interface], now: Instant) {
        self.unmanaged.clear();
        self.find_idle_rules(found);
        for unit in self.units.values_mut() {
            unit.is_gone = found.iter().all(|interface| interface.index != unit.index);
            if unit.is_gone {
                unit.wanted = None;
            }
        }
        for interface in found {
            self.follow_name(interface, now);
            let rule = self.configuration.rule_of(interface);
            let rule = rule.map(|(number, rule)| (number, rule.clone()));
            if rule.as_ref().is_none_or(|(_, rule)| rule.kinds().next().is_none()) {
                self.unmanaged.push(interface.name.clone());
            }
            for kind in Kind::ALL {
                let key = (interface.index, kind);
                let wanted = rule.as_ref().and_then(|(_, rule)| rule.arguments(kind));
                let Some(((number, rule), options)) = rule.as_ref().zip(wanted) else {
                    if let Some(unit) = self.units.get_mut(&key) {
                        unit.wanted = None;
                    }
                    continue;
                };
                let unit = self
                    .units
                    .entry(key)
                    .or_insert_with(|| Unit::new(&interface.name, interface.index, kind, now));
                if unit.wanted.as_ref() != Some(&options) {
                    unit.wanted = Some(options);
                    unit.retry(now);
                }
                unit.rule = *number;
                unit.watches_effect = rule.watch_effect && kind != Kind::Tune;
                unit.keeps = rule.keeps_tune;
            }
        }
    }

    /// Finds the rules that want a worker, but match no present interface. A rule counts as used even if
    /// earlier rules take its interfaces.
    fn find_idle_rules(&mut self, found: &[Interface]) {
        (self.missing, self.idle_rules) = (Vec::new(), Vec::new());
        let used: BTreeSet<usize> = found
            .iter()
            .flat_map(|interface| self.configuration.rules_of(interface))
            .map(|(number, _)| number)
            .collect();
        for (number, rule) in self.configuration.rules.iter().enumerate() {
            if used.contains(&number) || rule.kinds().next().is_none() {
                continue;
            }
            match rule.matches.name.as_ref().and_then(Pattern::exact) {
                Some(name) => self.missing.push(Missing { name: name.to_owned(), rule: number + 1 }),
                None => self.idle_rules.push(number + 1),
            }
        }
    }

    /// Gives the workers and the pause of a renamed interface its new name.
    fn follow_name(&mut self, interface: &Interface, now: Instant) {
        let is_managed =
            self.configuration.rule_of(interface).is_some_and(|(_, rule)| rule.kinds().next().is_some());
        let mut before = None;
        for unit in self.units.values_mut().filter(|unit| unit.index == interface.index) {
            if unit.name == interface.name {
                continue;
            }
            let name = std::mem::replace(&mut unit.name, interface.name.clone());
            if is_managed {
                unit.name.clone_from(&name);
                unit.log(self.outside, Priority::Info, now, &format!("renamed to {}", interface.name));
                unit.name.clone_from(&interface.name);
                unit.retry(now);
                before = Some(name);
            }
        }
        if before.is_some_and(|before| self.paused.remove(&before)) {
            self.paused.insert(interface.name.clone());
        }
    }

    /// Forgets settings that an operator has restored since.
    pub(super) fn forget_restored(&mut self) {
        for unit in self.units.values_mut().filter(|unit| unit.left.is_some()) {
            unit.look_for_left(self.outside);
        }
        let outside = self.outside;
        self.unsettled.retain(|(index, kind), Left { status, made }| {
            let of = Managed { kind: *kind, index: *index, name: &status.name, made, runs: false };
            let reason = outside.left(&of);
            reason.map(|reason| status.reason = reason).is_some()
        });
    }
}
