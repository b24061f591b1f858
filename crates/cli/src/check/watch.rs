//! Where packets are lost while somebody watches.

use std::fmt::Write;
use std::time::{Duration, Instant};

use evenkeel_host::facts::{Tree, read_facts};
use evenkeel_model::host::HostFacts;
use evenkeel_placement::loss::{Loss, losses};
use evenkeel_placement::view::count;
use serde_json::json;

use super::{failure, show};
use crate::arguments::{CheckOptions, Format};
use crate::exit::{Exit, Failure, print};
use crate::live::{Signals, say};

/// How often it is looked whether somebody has had enough.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Reads the host, waits, reads it again, and says what was lost meanwhile.
pub fn watch(options: &CheckOptions, time: Duration) -> Result<Exit, Failure> {
    let signals = Signals::catch()?;
    let read = || read_facts(&Tree::live()).map_err(|error| failure(&error));
    let before = read()?;
    if options.format == Format::Table {
        say(&format!("watching for {:.0} s", time.as_secs_f64()));
    }
    let started = Instant::now();
    while started.elapsed() < time && !signals.interrupted() && !signals.terminated() {
        std::thread::sleep(LOOK_INTERVAL.min(time.saturating_sub(started.elapsed())));
    }
    let after = read()?;
    let elapsed = started.elapsed();
    let found: Vec<Loss> = losses(&before, &after)
        .into_iter()
        .filter(|loss| {
            options
                .interface
                .as_deref()
                .is_none_or(|name| loss.subject == name || after.interface(&loss.subject).is_none())
        })
        .collect();
    match options.format {
        Format::Table => print(&screen(&before, &after, &found, elapsed))?,
        Format::Json => {
            let result =
                json!({"host": show::host(&after), "seconds": elapsed.as_secs_f64(), "losses": found});
            print(&format!("{result:#}\n"))?;
        }
    }
    Ok(if signals.interrupted() { Exit::Interrupted } else { Exit::Done })
}

fn screen(before: &HostFacts, after: &HostFacts, losses: &[Loss], elapsed: Duration) -> String {
    let mut text = String::new();
    let gained = |after: u64, before: u64| after.saturating_sub(before);
    for interface in &after.interfaces {
        let earlier = before.interface(&interface.name);
        let received =
            gained(interface.received_packets(), earlier.map_or(0, |earlier| earlier.received_packets()));
        let sent = gained(interface.sent_packets(), earlier.map_or(0, |earlier| earlier.sent_packets()));
        if received + sent > 0 {
            let _ = writeln!(
                text,
                "  {:<10} {} packets in, {} out",
                interface.name,
                count(received),
                count(sent)
            );
        }
    }
    if losses.is_empty() {
        let _ = writeln!(
            text,
            "No packet was lost in {:.1} s that any counter of this host shows.",
            elapsed.as_secs_f64()
        );
        return text;
    }
    let _ = writeln!(text, "\nLost in {:.1} s, in the order of the way:", elapsed.as_secs_f64());
    for loss in losses {
        let _ = writeln!(
            text,
            "  {:<16} {:>12}  {}  ({}; rule {})",
            loss.place.words(),
            count(loss.packets),
            loss.subject,
            loss.counter,
            loss.rule
        );
    }
    text.push_str("\n`evenkeel check --explain RULE` says why, and what mends it.\n");
    text
}
