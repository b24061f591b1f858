//! Hardware back end: n-tuple rules and the RSS table, through ethtool.
//!
//! The location of a rule is its rank: the NIC uses the matching rule at the lowest location. Rules of
//! other programs stay and occupy their locations. The search takes these rules into account if the
//! back end can parse them.
//!
//! The journal of the crate `apply` records all changes of locations, of RSS contexts and of the RSS table.
//! The back end journals a change, makes it and reads it back. The change is undone at the end of the session
//! or after a kill.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;

use evenkeel_apply::{
    ApplyError, Change, Kernel, Knob, Leftover, Line, Report, RuleBytes, Run, StateDirectory, Storage, Value,
};
use evenkeel_host::SocketName;
use evenkeel_netlink::ethtool::{EthtoolCalls, EthtoolError, ReceiveRules, Rule, RuleMatch};
use evenkeel_receive::{
    AddressMatch, ConfiguredNic, ContextId, Filter, FilterMatch, FlowTuple, NicModel, PortMatch, Precedence,
    QueueId, RssKey, TableId, Transport,
};

use crate::backend::{Applied, Backend, Placement};
use crate::error::SteerError;
use crate::interface::Interface;

pub struct NtupleBackend<K: Kernel, S: Storage> {
    run: Run<K, S>,
    /// `None` in tests.
    interface: Option<Interface>,
    name: String,
    nic: ConfiguredNic,
    table: TableId,
    processors: Vec<u32>,
    /// Rules of Evenkeel, by location.
    rules: BTreeMap<u32, Rule>,
    /// The device's current RSS table; empty if Evenkeel does not change it.
    indirection: Vec<u32>,
    /// Table of each RSS context of Evenkeel, by the device's number of the context.
    contexts: BTreeMap<u32, Vec<u32>>,
    remarks: Vec<String>,
    /// Prevents other processes from steering the interface; `None` in tests.
    alone: Option<SocketName>,
}

impl<K: Kernel, S: Storage> NtupleBackend<K, S> {
    /// Reads the configuration of a device without changing the device. Each of `processors` serves one
    /// queue.
    ///
    /// # Errors
    /// Returns an error if the driver accepts no rules or chooses their locations itself, or if the model
    /// has no filter table with locations.
    pub fn new<C: EthtoolCalls>(
        run: Run<K, S>,
        device: &ReceiveRules<C>,
        model: &NicModel,
        processors: &[u32],
    ) -> Result<Self, SteerError> {
        let name = device.interface();
        let found = device
            .rules()
            .map_err(refused)?
            .filter(|found| found.capacity > 0 && !found.places_by_itself)
            .ok_or_else(|| no_rules(name))?;
        let by_location = |(_, table): &(TableId, &evenkeel_receive::FilterTable)| {
            table.precedence == Precedence::Location && table.fields.take_flows()
        };
        let Some((table, name_of_table)) =
            model.table_ids().find(by_location).map(|(id, table)| (id, table.name.clone()))
        else {
            return Err(SteerError::Usage(format!(
                "the model {} has no filter table with locations, which ethtool rules need; use the model ntuple",
                model.name()
            )));
        };
        let capacity = model.tables()[table.index()].capacity.min(found.capacity as usize);
        let sized = model.clone().with_table_size(&name_of_table, capacity);
        let model = sized.as_ref().unwrap_or(model);
        let queues = u16::try_from(processors.len()).unwrap_or(u16::MAX);
        let mut backend = Self {
            run,
            interface: None,
            name: name.to_owned(),
            nic: ConfiguredNic::new(model, queues)?,
            table,
            processors: processors.to_vec(),
            rules: BTreeMap::new(),
            indirection: Vec::new(),
            contexts: BTreeMap::new(),
            remarks: Vec::new(),
            alone: None,
        };
        backend.take_foreign(&found.rules);
        backend.take_rss(device)?;
        // The table of a context is as long as the device's own table, which must match the model's
        // table.
        if !backend.indirection.is_empty() && device.has_contexts().map_err(refused)? {
            backend.nic.allow_contexts(u16::MAX);
        }
        Ok(backend)
    }

    /// Adds the rules of other programs. A rule that cannot be parsed becomes a match for no packet, so
    /// that it occupies its location.
    fn take_foreign(&mut self, rules: &[Rule]) {
        let mut unread = 0;
        for rule in rules {
            // A rule that refers to the RSS context of another program counts as unparsed.
            let queue = rule.queue().filter(|_| rule.context().is_none());
            let queue = queue.and_then(|queue| u16::try_from(queue).ok()).map(QueueId);
            let known = rule.matches().as_ref().and_then(filter_match).zip(queue);
            let (matches, queue) = known.unwrap_or((nothing(), QueueId(0)));
            let mut taken = self.nic.insert(Filter::new(self.table, rule.location(), matches, queue)).is_ok();
            if !taken || known.is_none() {
                unread += 1;
            }
            if !taken {
                let place = Filter::new(self.table, rule.location(), nothing(), QueueId(0));
                taken = self.nic.insert(place).is_ok();
            }
            if !taken {
                self.remarks.push(format!(
                    "{}: the model cannot represent another program's rule at location {}",
                    self.name,
                    rule.location()
                ));
            }
        }
        if !rules.is_empty() {
            self.remarks.push(format!(
                "{} n-tuple rules of other programs stay in place and use up locations{}",
                rules.len(),
                match unread {
                    0 => String::new(),
                    unread => format!(
                        "; evenkeel cannot read {unread} of these rules, so flows that match them may use other \
                         queues"
                    ),
                }
            ));
        }
    }

    /// Reads the device's RSS key. Also reads its RSS table, if the model's table can represent it.
    fn take_rss<C: EthtoolCalls>(&mut self, device: &ReceiveRules<C>) -> Result<(), SteerError> {
        let Some(found) = device.rss().map_err(refused)? else { return Ok(()) };
        if let Ok(key) = <[u8; 40]>::try_from(found.key.get(..40).unwrap_or_default()) {
            self.nic.set_rss_key(RssKey(key));
        }
        let entries = self.nic.indirection().len();
        let here = found.indirection.len();
        let queue = |entry: usize| found.indirection.get(entry % here.max(1)).copied().unwrap_or(0) as u16;
        // The low bits of the hash index the table. A table that repeats a shorter table is therefore
        // equivalent to the shorter table.
        let periodic = here <= entries
            || (0..here).all(|entry| found.indirection[entry] == u32::from(queue(entry % entries)));
        let fits = here > 0 && (entries.is_multiple_of(here) || here.is_multiple_of(entries)) && periodic;
        let table: Vec<QueueId> = (0..entries).map(|entry| QueueId(queue(entry))).collect();
        if fits && self.nic.set_indirection(table).is_ok() {
            self.indirection = found.indirection;
        } else {
            self.remarks.push(format!(
                "the RSS table of {} has {here} entries, but the table of the model {} has {entries}: evenkeel does \
                 not change the RSS table, so flows without a rule may use other queues than shown",
                self.name,
                self.nic.model().name()
            ));
        }
        Ok(())
    }

    /// Converts the model's table to the device's table; `None` if the device's table is too short, or if
    /// Evenkeel does not change it.
    fn device_table(&self, wanted: &[QueueId]) -> Option<Vec<u32>> {
        let here = self.indirection.len();
        if here == 0 || wanted.is_empty() {
            return None;
        }
        let queue = |entry: usize| u32::from(wanted[entry % wanted.len()].0);
        let table: Vec<u32> = (0..here).map(queue).collect();
        let same = (0..wanted.len()).all(|entry| table[entry % here] == queue(entry));
        same.then_some(table)
    }

    /// Returns Evenkeel's filters in a configuration, by location.
    fn own<'n>(&self, nic: &'n ConfiguredNic) -> impl Iterator<Item = (u32, &'n Filter)> {
        let foreign = |location: u32| self.nic.filters().any(|(id, _)| id.location == location);
        nic.filters_by_rank(self.table)
            .map(|(id, filter)| (id.location, filter))
            .filter(move |(location, _)| !foreign(*location))
    }

    /// Returns Evenkeel's rules for a configuration. `numbers` are the device's numbers of its contexts.
    fn wanted(&self, nic: &ConfiguredNic, numbers: &BTreeMap<ContextId, u32>) -> BTreeMap<u32, Rule> {
        let rule = |(location, filter): (u32, &Filter)| {
            let rule = rule_of(location, filter)?;
            let context = filter.context.map(|context| numbers.get(&context).copied());
            Some((location, context.map_or(Some(rule), |number| Some(rule.over(number?)))?))
        };
        self.own(nic).filter_map(rule).collect()
    }

    /// Returns the device's number of each context that filters use. A context without a number gets a
    /// free number.
    fn numbers(&mut self, nic: &ConfiguredNic) -> Result<BTreeMap<ContextId, u32>, SteerError> {
        let named: BTreeSet<ContextId> = self.own(nic).filter_map(|(_, filter)| filter.context).collect();
        let mut numbers = BTreeMap::new();
        let mut free = 0;
        for context in named {
            let Some(table) = nic.contexts().get(context.index()) else { continue };
            let Some(table) = self.device_table(table) else { continue };
            let standing =
                self.contexts.iter().find(|(_, other)| **other == table).map(|(number, _)| *number);
            let number = match standing {
                Some(number) => number,
                None => {
                    free = self.free_context(free + 1)?;
                    free
                }
            };
            numbers.insert(context, number);
        }
        Ok(numbers)
    }

    /// Returns the lowest free number, at least `first`, because drivers and the kernel allocate the
    /// lowest number.
    fn free_context(&mut self, first: u32) -> Result<u32, SteerError> {
        /// Larger than the number of contexts of any device.
        const MOST: u32 = 4096;
        for number in first..MOST {
            let found = self.run.kernel().read(&Knob::RssContext(number)).map_err(ApplyError::from)?;
            if found == Value::Context(None) {
                return Ok(number);
            }
        }
        Err(SteerError::unable(
            format!("all RSS contexts of {} are in use", self.name),
            format!(
                "delete contexts that are not needed: `{} context N delete`",
                Line::new("ethtool -X {}", &[&self.name])
            ),
        ))
    }

    fn change(&mut self, knob: Knob, to: Value) -> Result<(), SteerError> {
        Ok(self.run.change(&Change::new(knob, to))?)
    }
}

/// Creates the back end of a live interface with `queues` of its queues, or with all queues. First
/// rolls back a run that died, and returns this run with the back end.
///
/// # Errors
/// Returns an error if [`NtupleBackend::new`] fails, another run manages the interface, or a leftover
/// setting cannot be restored.
pub fn live_ntuple(
    interface: &Interface,
    model: &NicModel,
    queues: Option<u16>,
    state: &StateDirectory,
    guardian: Option<Command>,
) -> Result<(Box<dyn Backend>, Option<Leftover>), SteerError> {
    interface.check_rules()?;
    let alone = interface.steer_alone()?;
    let (run, leftover) = Run::begin(state, interface.index, &interface.name, "steer", guardian)?;
    let device = interface.receive_rules()?;
    let (processors, note) = interface.queue_processors(queues)?;
    let mut backend = NtupleBackend::new(run, &device, model, &processors)?;
    (backend.interface, backend.alone) = (Some(interface.clone()), alone);
    backend.remarks.extend(note);
    Ok((Box::new(backend), leftover))
}

pub(crate) fn no_rules(name: &str) -> SteerError {
    SteerError::unable(
        format!("the driver of {name} does not accept n-tuple rules at chosen locations"),
        format!(
            "turn n-tuple filters on if the driver supports them (`{}`), or use --backend xdp",
            Line::new("ethtool -K {} ntuple on", &[&name])
        ),
    )
}

fn refused(error: EthtoolError) -> SteerError {
    SteerError::Apply(ApplyError::Knob(error.into()))
}

/// Returns a match for no packet: source port 0 of the unspecified address.
fn nothing() -> FilterMatch {
    let nowhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    FilterMatch::exact(&FlowTuple {
        transport: Transport::Udp,
        source: nowhere,
        source_port: 0,
        destination: nowhere,
        destination_port: 0,
    })
}

fn filter_match(matches: &RuleMatch) -> Option<FilterMatch> {
    let transport =
        [Transport::Tcp, Transport::Udp].into_iter().find(|known| known.number() == matches.protocol)?;
    // Keep a mask of zero bits, because it determines the IP version.
    let address = |address, mask| Some(AddressMatch::masked(address, mask));
    let port = |port, mask| (mask != 0).then(|| PortMatch::masked(port, mask));
    Some(FilterMatch {
        transport: Some(transport),
        source: address(matches.source, matches.source_mask),
        destination: address(matches.destination, matches.destination_mask),
        source_port: port(matches.source_port, matches.source_port_mask),
        destination_port: port(matches.destination_port, matches.destination_port_mask),
        ..FilterMatch::ANY
    })
}

/// Converts a filter to a rule; `None` if the filter has no protocol, which rules require.
fn rule_of(location: u32, filter: &Filter) -> Option<Rule> {
    let matches = &filter.matches;
    let any = match matches.source.or(matches.destination).map(AddressMatch::address) {
        Some(IpAddr::V6(_)) => IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED),
        _ => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    };
    let address = |end: Option<AddressMatch>| end.map_or((any, 0), |end| (end.address(), end.mask()));
    let port = |end: Option<PortMatch>| end.map_or((0, 0), |end| (end.port(), end.mask()));
    let ((source, source_mask), (destination, destination_mask)) =
        (address(matches.source), address(matches.destination));
    let ((source_port, source_port_mask), (destination_port, destination_port_mask)) =
        (port(matches.source_port), port(matches.destination_port));
    let rule = RuleMatch {
        protocol: matches.transport?.number(),
        source,
        source_mask,
        destination,
        destination_mask,
        source_port,
        source_port_mask,
        destination_port,
        destination_port_mask,
    };
    Some(Rule::steer(location, &rule, u32::from(filter.queue.0)))
}

impl<K: Kernel, S: Storage> Backend for NtupleBackend<K, S> {
    fn name(&self) -> &'static str {
        "ntuple"
    }

    fn nic(&mut self) -> Result<ConfiguredNic, SteerError> {
        Ok(self.nic.clone())
    }

    fn processors(&self) -> &[u32] {
        &self.processors
    }

    fn apply(&mut self, found: &Placement<'_>) -> Result<Applied, SteerError> {
        let nic = found.nic;
        let mut applied = Applied::default();
        let numbers = self.numbers(nic)?;
        // Create contexts before the rules that use them. Delete contexts after these rules.
        for (context, number) in &numbers {
            let table = nic.contexts().get(context.index()).and_then(|table| self.device_table(table));
            let Some(table) = table.filter(|_| !self.contexts.contains_key(number)) else { continue };
            self.change(Knob::RssContext(*number), Value::Context(Some(table.clone())))?;
            self.contexts.insert(*number, table);
        }
        let wanted = self.wanted(nic, &numbers);
        // Insert new rules before deleting old rules. In between, RSS or the rules of other programs
        // steer packets without a rule.
        for (location, rule) in &wanted {
            let before = self.rules.get(location).copied();
            if before == Some(*rule) {
                continue;
            }
            self.change(Knob::NtupleRule(*location), Value::Rule(Some(RuleBytes::from(rule))))?;
            self.rules.insert(*location, *rule);
            match before {
                Some(_) => applied.replaced += 1,
                None => applied.inserted += 1,
            }
        }
        if let Some(table) = self.device_table(nic.indirection()).filter(|table| *table != self.indirection) {
            let differs = table.iter().zip(&self.indirection).filter(|(now, before)| now != before).count();
            self.change(Knob::RssTable, Value::Table(table.clone()))?;
            (self.indirection, applied.redirected) = (table, differs);
        }
        let gone: Vec<u32> =
            self.rules.keys().filter(|location| !wanted.contains_key(location)).copied().collect();
        for location in gone {
            self.change(Knob::NtupleRule(location), Value::Rule(None))?;
            self.rules.remove(&location);
            applied.removed += 1;
        }
        let named: BTreeSet<u32> = numbers.into_values().collect();
        let unnamed: Vec<u32> =
            self.contexts.keys().filter(|number| !named.contains(number)).copied().collect();
        for number in unnamed {
            self.change(Knob::RssContext(number), Value::Context(None))?;
            self.contexts.remove(&number);
        }
        Ok(applied)
    }

    fn check(&mut self) -> Result<Option<String>, SteerError> {
        self.alone.iter().for_each(SocketName::answer);
        if let Some(difference) = self.interface.as_ref().map_or(Ok(None), Interface::difference_now)? {
            return Ok(Some(difference));
        }
        Ok(self.run.disturbances()?.first().map(ToString::to_string))
    }

    fn finish(self: Box<Self>) -> Result<Report, SteerError> {
        Ok(self.run.finish()?)
    }

    fn take_remarks(&mut self) -> Vec<String> {
        self.run.take_remarks()
    }

    fn remarks(&self) -> Vec<String> {
        self.remarks.clone()
    }

    fn shell(&self, nic: &ConfiguredNic) -> Option<String> {
        let shell = |knob, value| format!("{}\n", Change::new(knob, value).shell(&self.name));
        // The numbers of contexts if no other program has contexts.
        let numbers: BTreeMap<ContextId, u32> =
            (1..).zip(nic.contexts()).map(|(number, _)| (ContextId(number as u16 - 1), number)).collect();
        let contexts = numbers.iter().filter_map(|(context, number)| {
            let table = self.device_table(nic.contexts().get(context.index())?)?;
            Some(shell(Knob::RssContext(*number), Value::Context(Some(table))))
        });
        let wanted = self.wanted(nic, &numbers);
        let rules = wanted
            .iter()
            .map(|(location, rule)| shell(Knob::NtupleRule(*location), Value::Rule(Some(rule.into()))));
        Some(contexts.chain(rules).collect())
    }
}

#[cfg(test)]
mod tests;
