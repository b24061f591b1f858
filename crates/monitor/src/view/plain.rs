//! A sample as plain lines, for a pipe or a log.

use crate::sample::{Interface, Sample};
use crate::view::figures::timestamp;
use crate::view::panes::{self, Content};
use crate::view::screen::{Origin, Scene, device, sentence};
use crate::view::state::{Pane, PaneState};
use crate::view::table::{Palette, lay_out};
use crate::view::{Point, answers};

/// Maximum number of rows of each table.
const MOST_ROWS: usize = 10;
/// Width of a line, columns: no terminal limits the width.
const WIDTH: usize = 200;

const OF_INTERFACE: [Pane; 3] = [Pane::Queues, Pane::Flows, Pane::Fairness];
const OF_HOST: [Pane; 2] = [Pane::Processors, Pane::Losses];

/// Returns a block of lines about all interfaces of a sample, and the host.
#[must_use]
pub fn plain(sample: &Sample, points: &[Point], origin: &Origin) -> String {
    let scene = Scene { sample, points, origin };
    let time = timestamp(sample.at_ms);
    let mut block = String::new();
    for interface in &sample.interfaces {
        push(&mut block, &format!("{time} {}", answers::summary(sample, Some(interface))));
        push(&mut block, &format!("  {}", device(interface)));
        OF_INTERFACE.iter().for_each(|pane| push_pane(&mut block, &scene, Some(interface), *pane));
    }
    if sample.interfaces.is_empty() {
        push(&mut block, &format!("{time} {}", answers::summary(sample, None)));
    }
    OF_HOST.iter().for_each(|pane| push_pane(&mut block, &scene, None, *pane));
    for text in &sample.not_read {
        push(&mut block, &format!("  not read: {}", sentence(text)));
    }
    block
}

fn push(block: &mut String, line: &str) {
    block.push_str(line.trim_end());
    block.push('\n');
}

fn push_pane(block: &mut String, scene: &Scene<'_>, interface: Option<&Interface>, pane: Pane) {
    let Content { answer, rows } = panes::content(scene, interface, pane);
    push(block, &format!("  {}: {answer}", pane.name()));
    let Some(rows) = rows else {
        if let Some(interface) = interface.filter(|interface| interface.bpf_ns.is_some()) {
            push(block, &format!("    {}", panes::cost(scene, interface)));
        }
        return;
    };
    // Lines: the heading, the rows, and a line that states which rows are shown.
    let place = (WIDTH, MOST_ROWS + 2);
    let laid = lay_out(rows.as_ref(), &PaneState::default(), place, Palette { colours: false });
    for row in laid.lines {
        push(block, &format!("    {row}"));
    }
}
