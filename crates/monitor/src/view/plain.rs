//! A sample as plain lines, for a pipe or a log.

use crate::sample::Sample;
use crate::view::figures::timestamp;
use crate::view::panes::{self, Content};
use crate::view::screen::{Origin, Scene, device, sentence};
use crate::view::state::{Pane, PaneState, ViewState};
use crate::view::table::{Palette, lay_out};
use crate::view::{Point, answers};

/// Rows of each table.
const MOST_ROWS: usize = 10;
/// No terminal limits the width.
const WIDTH: usize = 200;

/// Returns a block of lines about one interface: the state's choice.
#[must_use]
pub fn plain(sample: &Sample, points: &[Point], origin: &Origin, state: &ViewState) -> String {
    let scene = Scene { sample, points, origin };
    let interface = state.interface_in(sample).and_then(|at| sample.interfaces.get(at));
    let mut block = format!("{} {}\n", timestamp(sample.at_ms), answers::summary(sample, interface));
    let mut line = |text: &str| {
        block.push_str(text.trim_end());
        block.push('\n');
    };
    if let Some(interface) = interface {
        line(&format!("  {}", device(interface)));
    }
    for pane in Pane::ALL {
        let Content { answer, rows } = panes::content(&scene, interface, pane);
        line(&format!("  {}: {answer}", pane.name()));
        let Some(rows) = rows else {
            if let Some(interface) = interface.filter(|interface| interface.bpf_ns.is_some()) {
                line(&format!("    {}", panes::cost(&scene, interface)));
            }
            continue;
        };
        // The heading, the rows, and a line that names the others.
        let place = (WIDTH, MOST_ROWS + 2);
        let laid = lay_out(rows.as_ref(), &PaneState::default(), place, Palette { colours: false });
        for row in laid.lines {
            line(&format!("    {row}"));
        }
    }
    for text in &sample.not_read {
        line(&format!("  not read: {}", sentence(text)));
    }
    block
}
