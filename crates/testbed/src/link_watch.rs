//! Detects changes of the test bed's link by another program. Such changes make the figures of a repeat
//! wrong.

use evenkeel_netlink::Netlink;
use evenkeel_netlink::tc_state::QdiscState;

use crate::error::TestbedError;
use crate::namespace::Namespace;
use crate::wire::{RECEIVER_INTERFACE, SENDER_INTERFACE};

/// Objects with their state, the interface first. The bytes are the options of a `tbf`, which have no
/// text form.
type Settings = Vec<(String, (String, Vec<u8>))>;

/// The ends of the link, with the settings that the test bed gave them.
pub(crate) struct LinkWatch {
    ends: [End; 2],
}

struct End {
    name: &'static str,
    netlink: Netlink,
    index: u32,
    settings: Settings,
}

impl LinkWatch {
    pub(crate) fn new(sender: &Namespace, receiver: &Namespace) -> Result<Self, TestbedError> {
        let end = |host: &Namespace, name| -> Result<End, TestbedError> {
            let mut netlink = host.netlink()?;
            let index = netlink.link_index(name)?;
            let settings = settings(&mut netlink, index, name)?;
            Ok(End { name, netlink, index, settings })
        };
        Ok(Self { ends: [end(sender, SENDER_INTERFACE)?, end(receiver, RECEIVER_INTERFACE)?] })
    }

    /// Returns an error that names the first change of the link.
    pub(crate) fn check(&mut self) -> Result<(), TestbedError> {
        for End { name, netlink, index, settings: before } in &mut self.ends {
            if let Some(change) = difference(before, &settings(netlink, *index, name)?) {
                return Err(TestbedError::Changed(change));
            }
        }
        Ok(())
    }

    /// Returns the change of the link that explains an error. Returns the error itself without a change, and
    /// if the error is an interruption.
    pub(crate) fn explain(&mut self, error: TestbedError) -> TestbedError {
        match (error, self.check()) {
            (TestbedError::Interrupted, _) => TestbedError::Interrupted,
            (_, Err(change @ TestbedError::Changed(_))) => change,
            (error, _) => error,
        }
    }
}

/// Reads the state of an interface, its qdiscs, and the rates of its shapers.
fn settings(netlink: &mut Netlink, index: u32, name: &str) -> Result<Settings, TestbedError> {
    let Some(link) = netlink.link(index)? else { return Ok(Settings::new()) };
    let state = if link.up { "up" } else { "down" };
    let mut found = vec![(name.to_owned(), (state.to_owned(), Vec::new()))];
    for QdiscState { kind, handle, parent, options, .. } in netlink.qdiscs(index)? {
        // Options of other kinds may contain counters.
        let rate = if kind == "tbf" { options } else { Vec::new() };
        found.push((format!("{name}: the qdisc at {parent}"), (format!("{kind} {handle}"), rate)));
    }
    for class in netlink.htb_classes(index)? {
        let ceiling = class.ceiling.map_or_else(|| "unknown".to_owned(), |bytes| format!("{bytes} B/s"));
        found.push((format!("{name}: the ceil of HTB class {}", class.handle), (ceiling, Vec::new())));
    }
    Ok(found)
}

fn difference(before: &Settings, now: &Settings) -> Option<String> {
    let of = |settings: &Settings, key: &str| settings.iter().find(|(known, _)| known == key).cloned();
    let all = before.iter().chain(now).map(|(key, _)| key);
    let key = all.into_iter().find(|key| of(before, key) != of(now, key))?;
    let text = |settings| of(settings, key).map_or_else(|| "absent".to_owned(), |(_, (text, _))| text);
    Some(match (text(before), text(now)) {
        (before, now) if before == now => format!("the rate of {key} ({now}) has changed"),
        (before, now) => format!("{key} was {before}, and is {now} now"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_changed_object_is_named() {
        let settings = |entries: &[(&str, &str, u8)]| -> Settings {
            let entry =
                |(key, text, rate): &(&str, &str, u8)| ((*key).to_owned(), ((*text).to_owned(), vec![*rate]));
            entries.iter().map(entry).collect()
        };
        let bed = [("evk0", "up", 0), ("evk0: the qdisc at root", "tbf 1:0", 1)];
        let words = |now: &[(&str, &str, u8)]| difference(&settings(&bed), &settings(now));
        assert_eq!(words(&bed), None);
        assert_eq!(words(&[]).as_deref(), Some("evk0 was up, and is absent now"));
        let slower = [bed[0], ("evk0: the qdisc at root", "tbf 1:0", 2)];
        assert_eq!(
            words(&slower).as_deref(),
            Some("the rate of evk0: the qdisc at root (tbf 1:0) has changed")
        );
        let gone = words(&bed[..1]);
        assert_eq!(gone.as_deref(), Some("evk0: the qdisc at root was tbf 1:0, and is absent now"));
    }
}
