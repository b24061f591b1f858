//! The user's choices: pane, interface, order, filter, position.

use crate::sample::Sample;
use crate::view::table::Extent;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pane {
    Queues,
    Flows,
    Processors,
    Losses,
    Fairness,
}

impl Pane {
    pub const ALL: [Self; 5] = [Self::Queues, Self::Flows, Self::Processors, Self::Losses, Self::Fairness];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Queues => "queues",
            Self::Flows => "flows",
            Self::Processors => "processors",
            Self::Losses => "losses",
            Self::Fairness => "fairness",
        }
    }
}

/// A key, independent of the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPress {
    Character(char),
    Tab,
    BackTab,
    Enter,
    Escape,
    Backspace,
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
}

/// The action that the caller has to take after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    Nothing,
    Draw,
    Quit,
    /// Show the previous (-1) or the next (1) sample of a recording.
    Step(i8),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PaneState {
    /// Column by which the rows are sorted; `None` for the default order.
    pub sort: Option<usize>,
    pub reversed: bool,
    /// Number of rows above the first visible row.
    pub offset: usize,
    pub filter: String,
    /// The extent that was last drawn.
    pub extent: Extent,
}

impl PaneState {
    fn scroll_to(&mut self, offset: usize) {
        self.offset = offset.min(self.extent.rows.saturating_sub(self.extent.height));
    }

    /// Sorts by the next visible column. After the last column, restores the default order.
    fn sort_by_next(&mut self) {
        let columns = &self.extent.columns;
        self.sort = match self.sort {
            None => columns.first().copied(),
            Some(column) => columns.iter().copied().find(|next| *next > column),
        };
        self.offset = 0;
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewState {
    pub pane: Pane,
    /// Name of the chosen interface. `None` selects an interface, see [`ViewState::interface_in`].
    pub interface: Option<String>,
    pub help: bool,
    /// Whether to show only one pane even if the screen has space for all panes.
    pub zoomed: bool,
    /// Whether the screen keeps the shown sample.
    pub frozen: bool,
    /// Whether keys edit the text of the filter.
    pub edits_filter: bool,
    panes: [PaneState; 5],
}

impl Default for ViewState {
    fn default() -> Self {
        Self {
            pane: Pane::Queues,
            interface: None,
            help: false,
            zoomed: false,
            frozen: false,
            edits_filter: false,
            panes: Default::default(),
        }
    }
}

/// Maximum length of a filter, characters.
const LONGEST_FILTER: usize = 64;

impl ViewState {
    #[must_use]
    pub fn of(&self, pane: Pane) -> &PaneState {
        &self.panes[pane as usize]
    }

    fn focused(&mut self) -> &mut PaneState {
        &mut self.panes[self.pane as usize]
    }

    /// Stores the drawn extents, so that scrolling ends at the last row.
    pub fn adopt(&mut self, extents: [Option<Extent>; 5]) {
        for (pane, extent) in self.panes.iter_mut().zip(extents) {
            if let Some(extent) = extent {
                pane.extent = extent;
                pane.scroll_to(pane.offset);
            }
        }
    }

    /// Returns the position of the chosen interface in a sample; `None` if the sample has no interface.
    /// Without a choice, or if the sample lacks the chosen interface, prefers an interface with a session,
    /// then an interface that is up and is not `lo`, then the interface that sent most bytes since boot. A
    /// choice by rate would change from sample to sample.
    #[must_use]
    pub fn interface_in(&self, sample: &Sample) -> Option<usize> {
        let chosen = |name: &String| sample.interfaces.iter().position(|interface| interface.name == *name);
        self.interface.as_ref().and_then(chosen).or_else(|| {
            let rank = |(at, interface): &(usize, &crate::Interface)| {
                let is_real = interface.up && interface.name != "lo";
                (interface.management.is_some(), is_real, interface.sent_bytes.total, usize::MAX - at)
            };
            sample.interfaces.iter().enumerate().max_by_key(rank).map(|(at, _)| at)
        })
    }

    pub fn press(&mut self, key: KeyPress, sample: &Sample) -> Request {
        if self.edits_filter {
            return self.edit_filter(key);
        }
        if self.help {
            return match key {
                KeyPress::Character('q') => Request::Quit,
                _ => {
                    self.help = false;
                    Request::Draw
                }
            };
        }
        let page = self.of(self.pane).extent.height.max(1);
        let offset = self.of(self.pane).offset;
        match key {
            KeyPress::Character('q') => return Request::Quit,
            KeyPress::Left => return Request::Step(-1),
            KeyPress::Right => return Request::Step(1),
            KeyPress::Tab => self.pane = self.next_pane(1),
            KeyPress::BackTab => self.pane = self.next_pane(Pane::ALL.len() - 1),
            KeyPress::Character(digit @ '1'..='5') => {
                self.pane = Pane::ALL[digit as usize - '1' as usize];
            }
            KeyPress::Up | KeyPress::Character('k') => self.focused().scroll_to(offset.saturating_sub(1)),
            KeyPress::Down | KeyPress::Character('j') => self.focused().scroll_to(offset + 1),
            KeyPress::PageUp => self.focused().scroll_to(offset.saturating_sub(page)),
            KeyPress::PageDown => self.focused().scroll_to(offset + page),
            KeyPress::Home => self.focused().scroll_to(0),
            KeyPress::End => self.focused().scroll_to(usize::MAX),
            KeyPress::Character('s') => self.focused().sort_by_next(),
            KeyPress::Character('r') => self.focused().reversed ^= true,
            KeyPress::Character('/') => self.edits_filter = true,
            KeyPress::Character('f' | ' ') => self.frozen ^= true,
            KeyPress::Character('z') => self.zoomed ^= true,
            KeyPress::Character('i') => self.choose_next_interface(sample),
            KeyPress::Character('?' | 'h') => self.help = true,
            KeyPress::Escape => {
                self.focused().filter.clear();
            }
            KeyPress::Character(_) | KeyPress::Enter | KeyPress::Backspace => return Request::Nothing,
        }
        Request::Draw
    }

    fn next_pane(&self, steps: usize) -> Pane {
        Pane::ALL[(self.pane as usize + steps) % Pane::ALL.len()]
    }

    fn choose_next_interface(&mut self, sample: &Sample) {
        let Some(at) = self.interface_in(sample) else { return };
        self.interface = Some(sample.interfaces[(at + 1) % sample.interfaces.len()].name.clone());
        self.panes.iter_mut().for_each(|pane| pane.offset = 0);
    }

    fn edit_filter(&mut self, key: KeyPress) -> Request {
        let pane = &mut self.panes[self.pane as usize];
        pane.offset = 0;
        match key {
            KeyPress::Character(character) if pane.filter.chars().count() < LONGEST_FILTER => {
                pane.filter.push(character);
            }
            KeyPress::Backspace => drop(pane.filter.pop()),
            KeyPress::Escape => {
                pane.filter.clear();
                self.edits_filter = false;
            }
            KeyPress::Enter => self.edits_filter = false,
            _ => return Request::Nothing,
        }
        Request::Draw
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{Interface, Interval, Management};

    fn sample(interfaces: &[(&str, u64, bool)]) -> Sample {
        let interface = |(name, sent, managed): &(&str, u64, bool)| Interface {
            name: (*name).to_owned(),
            up: true,
            sent_bytes: Interval { total: *sent, delta: 0 },
            management: managed.then(Management::default),
            ..Interface::default()
        };
        Sample { interfaces: interfaces.iter().map(interface).collect(), ..Sample::default() }
    }

    fn press(state: &mut ViewState, keys: &str, sample: &Sample) {
        for key in keys.chars() {
            state.press(KeyPress::Character(key), sample);
        }
    }

    #[test]
    fn the_first_interface_is_the_managed_or_the_busiest_one() {
        let mut state = ViewState::default();
        let busiest = sample(&[("lo", 99, false), ("eth0", 5, false), ("eth1", 7, false)]);
        assert_eq!(state.interface_in(&busiest), Some(2));
        assert_eq!(state.interface_in(&sample(&[("eth0", 5, true), ("eth1", 7, false)])), Some(0));
        assert_eq!(state.interface_in(&Sample::default()), None);
        press(&mut state, "i", &busiest);
        assert_eq!(state.interface.as_deref(), Some("lo"));
        press(&mut state, "ii", &busiest);
        assert_eq!(state.interface_in(&busiest), Some(2));
        press(&mut state, "i", &Sample::default());
        assert_eq!(state.interface_in(&sample(&[("eth9", 0, false)])), Some(0), "the chosen one has gone");
    }

    #[test]
    fn scrolling_ends_at_the_last_row() {
        let mut state = ViewState::default();
        let extent = Extent { rows: 100, height: 10, columns: vec![0, 2] };
        state.adopt([Some(extent), None, None, None, None]);
        let sample = Sample::default();
        for (key, offset) in [
            (KeyPress::Up, 0),
            (KeyPress::PageDown, 10),
            (KeyPress::Down, 11),
            (KeyPress::End, 90),
            (KeyPress::PageDown, 90),
            (KeyPress::PageUp, 80),
            (KeyPress::Home, 0),
            (KeyPress::End, 90),
        ] {
            assert_eq!(state.press(key, &sample), Request::Draw);
            assert_eq!(state.of(Pane::Queues).offset, offset);
        }
        state.adopt([Some(Extent { rows: 5, height: 10, columns: vec![0, 2] }), None, None, None, None]);
        assert_eq!(state.of(Pane::Queues).offset, 0, "rows went");
        let sorts = |state: &ViewState| state.of(Pane::Queues).sort;
        let mut found = Vec::new();
        for _ in 0..3 {
            press(&mut state, "s", &sample);
            found.push(sorts(&state));
        }
        assert_eq!(found, [Some(0), Some(2), None], "only visible columns");
    }

    #[test]
    fn keys_of_a_filter_are_text() {
        let (mut state, sample) = (ViewState::default(), Sample::default());
        press(&mut state, "2/iq", &sample);
        assert_eq!((state.of(Pane::Flows).filter.as_str(), state.edits_filter), ("iq", true));
        state.press(KeyPress::Backspace, &sample);
        state.press(KeyPress::Enter, &sample);
        assert_eq!((state.of(Pane::Flows).filter.as_str(), state.edits_filter), ("i", false));
        state.press(KeyPress::Escape, &sample);
        assert_eq!(state.of(Pane::Flows).filter, "");
        press(&mut state, "/", &sample);
        press(&mut state, &"x".repeat(1000), &sample);
        assert_eq!(state.of(Pane::Flows).filter.len(), LONGEST_FILTER);
        assert_eq!(state.press(KeyPress::Tab, &sample), Request::Nothing);
        state.press(KeyPress::Escape, &sample);
        assert_eq!((state.of(Pane::Flows).filter.as_str(), state.edits_filter), ("", false));
    }

    #[test]
    fn keys_choose_panes_and_quit() {
        let (mut state, sample) = (ViewState::default(), Sample::default());
        state.press(KeyPress::BackTab, &sample);
        assert_eq!(state.pane, Pane::Fairness);
        state.press(KeyPress::Tab, &sample);
        assert_eq!(state.pane, Pane::Queues);
        press(&mut state, "4", &sample);
        assert_eq!(state.pane, Pane::Losses);
        press(&mut state, "?", &sample);
        assert!(state.help);
        assert_eq!(state.press(KeyPress::Enter, &sample), Request::Draw);
        assert!(!state.help);
        assert_eq!(state.press(KeyPress::Right, &sample), Request::Step(1));
        press(&mut state, "f", &sample);
        assert!(state.frozen);
        press(&mut state, " ", &sample);
        assert!(!state.frozen);
        assert_eq!(state.press(KeyPress::Character('q'), &sample), Request::Quit);
    }
}
