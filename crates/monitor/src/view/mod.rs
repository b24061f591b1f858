//! The views of samples that `evenkeel top` shows. Each view is a function of samples and of the user's
//! choices.
//!
//! ```text
//!   Sample ──▶ panes (answer, rows) ──▶ table (sort, filter, fit) ──▶ screen: a buffer of characters
//!          └─▶ history (points) ──▶ sparklines ──────────────────▲        └▶ plain: lines of text
//! ```

mod answers;
mod figures;
mod help;
mod history;
mod panes;
mod plain;
mod rows;
mod screen;
mod state;
mod table;

pub use help::KEYS;
pub use history::{Figure, History, Point};
pub use plain::plain;
pub use screen::{LEAST_HEIGHT, LEAST_WIDTH, Origin, Scene, draw};
pub use state::{KeyPress, Pane, PaneState, Request, ViewState};
pub use table::{Extent, Palette};
