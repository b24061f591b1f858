//! Shows where packets are lost during a watch.

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use evenkeel_datapath::{DatapathError, DropCount, DropReasons};
use evenkeel_host::NamespaceIdentity;
use evenkeel_host::facts::{Tree, read_facts};
use evenkeel_model::host::{HostFacts, Interface, SaturatingSum, Unknown};
use evenkeel_model::text::counted;
use evenkeel_placement::loss_path::{self, Loss, Place, explained_retransmissions, losses, place_of_reason};
use evenkeel_placement::replaced_qdiscs::replaced_qdiscs;
use evenkeel_placement::view::count;
use evenkeel_report::page::{Heading, Page};
use serde_json::json;

use super::{failure, show};
use crate::arguments::{CheckOptions, Format};
use crate::exit::{Exit, Failure, print, print_page};
use crate::live::say;
use crate::progress::{page, wait};
use crate::signals::Signals;

/// Reads the host, waits, reads it again, and reports the losses in between.
pub fn watch(options: &CheckOptions, time: Duration) -> Result<Exit, Failure> {
    let signals = Signals::catch()?;
    let read = || read_facts(&Tree::live()).map_err(|error| failure(&error));
    let reasons = open_reasons();
    let before = read()?;
    super::require_interface(&before, options.interface.as_deref())?;
    if options.format == Format::Table {
        say(&format!("watching for {}", humantime::format_duration(time)));
    }
    let started = Instant::now();
    wait(time, "watching", &signals);
    let after = read()?;
    super::require_same_interface(&before, &after, options.interface.as_deref(), "during the watch")?;
    let elapsed = started.elapsed();
    let interrupted = signals.came();
    let shown = options.interface.as_deref().map(|name| after.down_from(name));
    let is_shown = |loss: &Loss| {
        let is_part = |shown: &BTreeSet<&str>| shown.contains(loss.subject.as_str());
        shown.as_ref().is_none_or(is_part) || after.interface(&loss.subject).is_none()
    };
    let found: Vec<Loss> = losses(&before, &after).into_iter().filter(is_shown).collect();
    let explained = explained_retransmissions(&before, &after);
    let forwards = loss_path::forwards(&after.counters);
    let reasons = reasons.and_then(|reasons| reasons.counts().map_err(|error| error.to_string()));
    let moves = moves(&before, &after, options.interface.as_deref());
    let mut replaced = replaced_qdiscs(&before, &after);
    let is_shown =
        |gap: &Unknown| shown.as_ref().zip(gap.interface()).is_none_or(|(shown, name)| shown.contains(name));
    replaced.retain(is_shown);
    let unread = unread(&before, &after, &[&moves, &replaced]);
    match options.format {
        Format::Table => {
            let mut page = page();
            // An interrupted watch covers only a part of the requested time, so finding no losses
            // proves nothing.
            if interrupted {
                let (seconds, of) = (elapsed.as_secs_f64(), time.as_secs_f64());
                page.line(&format!("The watch was interrupted after {seconds:.1} s of {of} s."));
            }
            let watched = Watched { before: &before, after: &after, unread: &unread, moves: &moves, elapsed };
            let dropped = reasons.as_deref().unwrap_or_default();
            screen(&mut page, &watched, &found, dropped, options.interface.as_deref());
            if explained > 0 {
                page.line(&format!(
                    "Drops before the wire explain {} (Tcp.RetransSegs): not counted again",
                    counted(usize::try_from(explained).unwrap_or(usize::MAX), "retransmitted segment")
                ));
            }
            reasons_screen(&mut page, reasons.as_ref().map(Vec::as_slice), forwards);
            if !found.is_empty() {
                page.gap();
                page.line("`evenkeel check --explain RULE` shows why, and what fixes it.");
            }
            print_page(page)?;
        }
        Format::Json => {
            let drops: Vec<serde_json::Value> =
                reasons.iter().flatten().map(|drop| reason_json(drop, forwards)).collect();
            let result = json!({
                "host": show::host(&after),
                "seconds": elapsed.as_secs_f64(),
                "interrupted": interrupted,
                "losses": found,
                "retransmissions_explained": explained,
                "not_read": unread,
                "reasons": drops,
                "reasons_missing": reasons.err(),
            });
            print(&format!("{result:#}\n"))?;
        }
    }
    Ok(if interrupted { Exit::Interrupted } else { Exit::Done })
}

/// Starts to count the kernel's drop reasons. The error is one line; it names missing capabilities.
fn open_reasons() -> Result<DropReasons, String> {
    let namespace = NamespaceIdentity::current().map_err(|error| error.to_string())?;
    let inode = u32::try_from(namespace.inode).unwrap_or(0);
    let short = |error: DatapathError| match &error {
        DatapathError::Load { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
            "counting them needs CAP_BPF and CAP_PERFMON: run the command as root".to_owned()
        }
        // Use the first line only: the verifier's log does not help the user.
        error => error.to_string().lines().next().unwrap_or_default().to_owned(),
    };
    DropReasons::attach(inode).map_err(short)
}

/// Formats the flow of a drop: `10.0.0.1:40000 > 10.0.0.2:53 UDP`; `None` if the drop has no flow.
fn flow_words(drop: &DropCount) -> Option<String> {
    let flow = drop.flow?;
    let protocol = match flow.protocol {
        6 => "TCP".to_owned(),
        17 => "UDP".to_owned(),
        1 | 58 => "ICMP".to_owned(),
        other => format!("protocol {other}"),
    };
    Some(format!(
        "{} > {} {protocol}",
        std::net::SocketAddr::new(flow.source, flow.source_port),
        std::net::SocketAddr::new(flow.destination, flow.destination_port)
    ))
}

fn place_of(drop: &DropCount, forwards: bool) -> Option<(Place, &'static str)> {
    place_of_reason(&drop.reason, drop.flow.map(|flow| flow.protocol), forwards)
}

/// Returns the drops with the most packets among those at a known place, with the place and its rule;
/// `None` if no place is known.
fn most_dropped(drops: &[DropCount], forwards: bool) -> Option<(&DropCount, Place, &'static str)> {
    let known =
        drops.iter().filter_map(|drop| place_of(drop, forwards).map(|(place, rule)| (drop, place, rule)));
    known.max_by_key(|(drop, ..)| drop.packets)
}

fn reason_json(drop: &DropCount, forwards: bool) -> serde_json::Value {
    let place = place_of(drop, forwards);
    json!({
        "reason": drop.reason,
        "packets": drop.packets,
        "flow": flow_words(drop),
        "place": place.map(|(place, _)| place),
        "rule": place.map(|(_, rule)| rule),
    })
}

/// Shows the drop reasons with a known place, with the flows that they affect. Shows all other reasons in
/// one line.
fn reasons_screen(page: &mut Page, drops: Result<&[DropCount], &String>, forwards: bool) {
    const MOST_FLOWS: usize = 10;
    let drops = match drops {
        Ok(drops) => drops,
        Err(why) => {
            page.gap();
            page.line(&format!("Without the kernel's own drop reasons: {why}"));
            return;
        }
    };
    let known: Vec<(&DropCount, &str)> =
        drops.iter().filter_map(|drop| Some((drop, place_of(drop, forwards)?.1))).collect();
    if !known.is_empty() {
        page.heading("The kernel's drop reasons, by flow:");
        let row = |(drop, rule): &(&DropCount, &str)| {
            let flow = flow_words(drop).unwrap_or_else(|| "unknown, or none over IP".to_owned());
            vec![drop.reason.clone(), count(drop.packets), flow, (*rule).to_owned()]
        };
        let rows: Vec<Vec<String>> = known.iter().take(MOST_FLOWS).map(row).collect();
        let columns = [
            Heading::text("reason"),
            Heading::number("packets"),
            Heading::text("flow"),
            Heading::text("rule"),
        ];
        page.table(&columns, &rows);
    }
    if known.len() > MOST_FLOWS {
        page.line(&format!("  and {}", counted(known.len() - MOST_FLOWS, "more flow")));
    }
    let mut others: std::collections::BTreeMap<&str, u64> = std::collections::BTreeMap::new();
    for drop in drops.iter().filter(|drop| place_of(drop, forwards).is_none()) {
        let sum = others.entry(drop.reason.as_str()).or_insert(0);
        *sum = sum.saturating_add(drop.packets);
    }
    if !others.is_empty() {
        let list: Vec<String> =
            others.iter().map(|(reason, packets)| format!("{reason} {}", count(*packets))).collect();
        page.gap();
        page.line(&format!("Packets dropped for other reasons: {}", list.join(", ")));
    }
}

/// Returns the interfaces that appear in only one of the two readings, so that their counters cannot be
/// compared.
fn moves(before: &HostFacts, after: &HostFacts, only: Option<&str>) -> Vec<Unknown> {
    let is_shown = |interface: &&Interface| only.is_none_or(|name| interface.name == name);
    let gap = |interface: &Interface, happened: &str| {
        let Interface { name, .. } = interface;
        Unknown::new(format!("/sys/class/net/{name}"), format!("{name} {happened} during the watch"))
    };
    let gone = before.interfaces.iter().filter(is_shown).filter(|old| after.same_interface(old).is_none());
    let new = after.interfaces.iter().filter(is_shown).filter(|new| before.same_interface(new).is_none());
    gone.map(|old| gap(old, "left this network namespace (deleted or moved)"))
        .chain(new.map(|new| gap(new, "appeared (its losses include losses before the watch)")))
        .collect()
}

/// Returns the loss counters that at least one of the two readings lacks, and the further gaps.
fn unread<'f>(
    before: &'f HostFacts,
    after: &'f HostFacts,
    further: &[&'f [Unknown]],
) -> BTreeSet<&'f Unknown> {
    loss_path::unread(before, after).chain(further.iter().copied().flatten()).collect()
}

/// Two readings of a host, and the facts that are missing in them.
struct Watched<'f> {
    before: &'f HostFacts,
    after: &'f HostFacts,
    unread: &'f BTreeSet<&'f Unknown>,
    /// The interfaces that were added or removed between the readings.
    moves: &'f [Unknown],
    elapsed: Duration,
}

fn screen(
    page: &mut Page,
    watched: &Watched<'_>,
    losses: &[Loss],
    dropped: &[DropCount],
    only: Option<&str>,
) {
    let Watched { before, after, unread, moves, elapsed } = watched;
    let seconds = elapsed.as_secs_f64();
    let lost = losses.iter().map(|loss| loss.packets).saturating_sum();
    let others = if unread.is_empty() { "" } else { " by the counters that could be read" };
    // A host with containers may add or remove many interfaces. If there are more than `MOST`, the answer
    // states only their number, and the list of gaps below names them.
    const MOST: usize = 2;
    let named = if moves.len() <= MOST { *moves } else { &[] };
    let moves = match moves.len() - named.len() {
        0 => named.iter().map(|gap| format!("; {}", gap.why)).collect(),
        many => format!("; {} appeared or disappeared", counted(many, "interface")),
    };
    page.answer(&match losses.iter().max_by_key(|loss| loss.packets) {
        None => match most_dropped(dropped, loss_path::forwards(&after.counters)) {
            None => format!("No packets lost in {seconds:.1} s{others}{moves}."),
            Some((drop, place, rule)) => format!(
                "No loss counter rose in {seconds:.1} s, but the kernel dropped packets, most of them at the {} \
                 ({}, {rule}){moves}.",
                place.words(),
                drop.reason
            ),
        },
        Some(most) => format!(
            "{} lost in {seconds:.1} s{others}, most of them at the {} ({}){moves}.",
            counted(usize::try_from(lost).unwrap_or(usize::MAX), "packet"),
            most.place.words(),
            most.subject
        ),
    });
    for interface in
        after.interfaces.iter().filter(|interface| only.is_none_or(|name| interface.name == name))
    {
        let earlier = before.same_interface(interface);
        let gained = |name: &str| {
            let before = earlier.map_or(Some(0), |earlier| earlier.statistics.get(name).copied())?;
            Some(interface.statistics.get(name)?.saturating_sub(before))
        };
        let (received, sent) = (gained("rx_packets"), gained("tx_packets"));
        if (received, sent) != (Some(0), Some(0)) {
            let words = |packets: Option<u64>| packets.map_or("?".to_owned(), count);
            page.labelled(
                &format!("  {:<10} ", interface.name),
                &format!("{} packets in, {} out", words(received), words(sent)),
            );
        }
    }
    let gaps: Vec<&&Unknown> = unread.iter().filter(|gap| !named.contains(gap)).collect();
    if !gaps.is_empty() {
        page.line("Some counters could not be read, so losses may be missing here:");
    }
    for gap in gaps {
        page.line(&format!("  {}", gap.why));
    }
    if losses.is_empty() {
        return;
    }
    page.heading("Losses, from the NIC to the socket:");
    let row = |loss: &Loss| {
        vec![
            loss.place.words().to_owned(),
            count(loss.packets),
            loss.subject.clone(),
            loss.rule.to_owned(),
            loss.counter.clone(),
        ]
    };
    let columns = [
        Heading::text("place"),
        Heading::number("packets"),
        Heading::text("of"),
        Heading::text("rule"),
        Heading::text("counter"),
    ];
    page.table(&columns, &losses.iter().map(row).collect::<Vec<_>>());
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use evenkeel_report::table::TableOptions;

    #[test]
    fn unreadable_counters_are_named() {
        let sound = HostFacts::default();
        let gap = Unknown::new("/proc/net/softnet_stat", "/proc/net/softnet_stat:1: unreadable: 'x'");
        let damaged = HostFacts { unknown: vec![gap], ..HostFacts::default() };
        let screen = |before: &HostFacts, after: &HostFacts| {
            let mut page = Page::new(TableOptions::default());
            let moves = moves(before, after, None);
            let unread = unread(before, after, &[&moves]);
            let elapsed = Duration::from_secs(3);
            let watched = Watched { before, after, unread: &unread, moves: &moves, elapsed };
            screen(&mut page, &watched, &[], &[], None);
            page.finish()
        };
        assert_eq!(screen(&sound, &sound), "No packets lost in 3.0 s.\n");
        for text in [screen(&damaged, &sound), screen(&sound, &damaged)] {
            assert!(
                text.contains("softnet_stat:1") && text.contains("by the counters that could be read"),
                "{text}"
            );
        }
        let drop = DropCount { reason: "NEIGH_FAILED".to_owned(), flow: None, packets: 256 };
        let watched = Watched {
            before: &sound,
            after: &sound,
            unread: &BTreeSet::new(),
            moves: &[],
            elapsed: Duration::from_secs(3),
        };
        let mut page = Page::new(TableOptions::default());
        super::screen(&mut page, &watched, &[], &[drop], None);
        let text = page.finish().replace('\n', " ");
        assert!(text.contains("the network layer (NEIGH_FAILED, neighbours-unresolved)"), "{text}");
        let other = Unknown::new("/proc/cpuinfo", "missing");
        let other = HostFacts { unknown: vec![other], ..HostFacts::default() };
        assert_eq!(screen(&other, &sound), "No packets lost in 3.0 s.\n");
    }

    #[test]
    fn interfaces_that_come_or_go_are_named() {
        let host = |interfaces: &[(u32, &str)]| {
            let interface = |(index, name): &(u32, &str)| Interface {
                name: (*name).to_owned(),
                index: Some(*index),
                statistics: [("rx_packets".to_owned(), 7), ("tx_packets".to_owned(), 7)].into(),
                ..Interface::default()
            };
            HostFacts { interfaces: interfaces.iter().map(interface).collect(), ..HostFacts::default() }
        };
        let both = host(&[(1, "e0"), (2, "e1")]);
        let words = |before: &HostFacts, after: &HostFacts| {
            moves(before, after, None).into_iter().map(|gap| gap.why).collect::<Vec<_>>()
        };
        assert_eq!(words(&both, &both), Vec::<String>::new());
        let gone = "e0 left this network namespace (deleted or moved) during the watch";
        let new = "e0 appeared (its losses include losses before the watch) during the watch";
        assert_eq!(words(&both, &host(&[(2, "e1")])), [gone]);
        assert_eq!(words(&host(&[(2, "e1")]), &both), [new]);
        assert_eq!(words(&both, &host(&[(3, "e0"), (2, "e1")])), [gone, new], "deleted and made again");
        assert_eq!(words(&both, &host(&[(1, "wan"), (2, "e1")])), Vec::<String>::new(), "renamed");
        assert_eq!(moves(&both, &host(&[(2, "e1")]), Some("e1")), []);
        let mut page = Page::new(TableOptions::default());
        let (after, moves) = (host(&[(2, "e1")]), moves(&both, &host(&[(2, "e1")]), None));
        let unread = unread(&both, &after, &[&moves]);
        let elapsed = Duration::from_secs(3);
        let watched = Watched { before: &both, after: &after, unread: &unread, moves: &moves, elapsed };
        screen(&mut page, &watched, &[], &[], None);
        let text = page.finish();
        assert!(text.lines().next().unwrap().contains("that could be read; e0 left this"), "{text}");
        assert_eq!(text.matches("e0 left").count(), 1, "{text}");
    }
}
