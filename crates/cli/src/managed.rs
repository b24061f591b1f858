//! The sessions that run at the same time as `check` and `tune`, and the settings that they manage.

use std::collections::BTreeSet;

use evenkeel_apply::{Header, Knob, StateDirectory, is_managed, live_runs};
use evenkeel_model::change::sysctl_name;
use evenkeel_model::host::HostFacts;
use evenkeel_placement::managed::ManagedSetting;
use serde_json::{Value, json};

pub struct Session {
    header: Header,
    /// The current name of the session's interface.
    interface: String,
    pub settings: Vec<ManagedSetting>,
}

/// Returns the sessions of this network namespace. Returns none if this user may not read the journals.
pub fn sessions(facts: &HostFacts) -> Vec<Session> {
    let runs = live_runs(&StateDirectory::from_environment()).unwrap_or_default();
    let session = |(header, entries): (Header, Vec<evenkeel_apply::Entry>)| {
        let index = Some(header.interface.index);
        let found = facts.interfaces.iter().find(|interface| interface.index == index);
        let interface =
            found.map_or_else(|| header.interface.name.clone(), |interface| interface.name.clone());
        let setting = |entry: evenkeel_apply::Entry| ManagedSetting {
            interface: interface.clone(),
            knob: entry.knob,
            from: entry.from,
        };
        let settings = entries.into_iter().map(setting).collect();
        Session { header, interface, settings }
    };
    runs.into_iter().map(session).collect()
}

pub fn settings(sessions: &[Session]) -> Vec<ManagedSetting> {
    sessions.iter().flat_map(|session| session.settings.clone()).collect()
}

/// Returns the interfaces with a session whose journal this process does not read: the journal is in
/// another state directory, or this user may not read it.
pub fn unread(facts: &HostFacts, sessions: &[Session]) -> Vec<String> {
    let is_read = |index: u32| sessions.iter().any(|session| session.header.interface.index == index);
    let is_unread = |index: u32| !is_read(index) && is_managed(index).unwrap_or(false);
    let interfaces = facts.interfaces.iter().filter(|interface| interface.index.is_some_and(is_unread));
    interfaces.map(|interface| interface.name.clone()).collect()
}

/// Returns a short name of a setting, without the number of a queue.
fn kind(knob: &Knob) -> String {
    match knob {
        Knob::Sysctl(path) => sysctl_name(path),
        Knob::InterfaceFile(file) => file.rsplit('/').next().unwrap_or(file).to_owned(),
        knob => knob.name().split(' ').next().unwrap_or_default().to_owned(),
    }
}

impl Session {
    fn kinds(&self) -> BTreeSet<String> {
        self.settings.iter().map(|setting| kind(&setting.knob)).collect()
    }

    /// Describes the session: its process and its settings.
    pub fn words(&self) -> String {
        let Self { header: Header { command, process, .. }, interface, .. } = self;
        let kinds = self.kinds().into_iter().collect::<Vec<_>>().join(", ");
        format!("evenkeel {command} (process {}) manages {kinds} for {interface}", process.id)
    }

    pub fn json(&self) -> Value {
        let Self { header: Header { command, process, started, .. }, interface, .. } = self;
        json!({
            "interface": interface,
            "command": command,
            "process": process.id,
            "started": started,
            "settings": self.kinds(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_all_queues_have_one_name() {
        let file = |name: &str| Knob::InterfaceFile(format!("queues/{name}"));
        let limit = Knob::Sysctl("net/ipv4/tcp_limit_output_bytes".to_owned());
        let knobs =
            [limit, file("tx-0/xps_cpus"), file("tx-1/xps_cpus"), Knob::QueueWeight(3), Knob::RootQdisc];
        let kinds: BTreeSet<String> = knobs.iter().map(kind).collect();
        let wanted = ["net.ipv4.tcp_limit_output_bytes", "qdisc", "queue-weight", "xps_cpus"];
        assert!(kinds.iter().eq(wanted));
    }
}
