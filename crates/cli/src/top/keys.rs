//! Decodes the bytes that a terminal sends for keys (ECMA-48, xterm).

use evenkeel_monitor::view::KeyPress;

/// Decodes keys, and keeps the bytes of an incomplete key.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
}

const ESCAPE: u8 = 0x1b;
/// Maximum length of a key's sequence, bytes.
const LONGEST: usize = 32;

impl Decoder {
    pub fn is_incomplete(&self) -> bool {
        !self.bytes.is_empty()
    }

    pub fn take(&mut self, bytes: &[u8]) -> Vec<KeyPress> {
        self.bytes.extend_from_slice(bytes);
        let mut keys = Vec::new();
        loop {
            match next(&self.bytes) {
                Next::Key(key, length) => {
                    keys.extend(key);
                    self.bytes.drain(..length);
                }
                Next::Incomplete if self.bytes.len() > LONGEST => self.bytes.clear(),
                Next::Incomplete => return keys,
            }
        }
    }

    /// Returns the key if no further byte has arrived for a while: a lone escape byte is the Escape
    /// key. Discards any other incomplete key.
    pub fn time_out(&mut self) -> Option<KeyPress> {
        let is_escape = self.bytes == [ESCAPE];
        self.bytes.clear();
        is_escape.then_some(KeyPress::Escape)
    }
}

enum Next {
    /// A known key, or `None` for an unknown key, with its number of bytes.
    Key(Option<KeyPress>, usize),
    Incomplete,
}

fn next(bytes: &[u8]) -> Next {
    match bytes {
        [] | [ESCAPE] => Next::Incomplete,
        [ESCAPE, b'[', rest @ ..] => {
            let end = rest.iter().position(|byte| (0x40..=0x7e).contains(byte));
            end.map_or(Next::Incomplete, |end| Next::Key(sequence(&rest[..end], rest[end]), end + 3))
        }
        [ESCAPE, b'O'] => Next::Incomplete,
        [ESCAPE, b'O', last, ..] => Next::Key(sequence(&[], *last), 3),
        [ESCAPE, ..] => Next::Key(Some(KeyPress::Escape), 1),
        [b'\t', ..] => Next::Key(Some(KeyPress::Tab), 1),
        [b'\r' | b'\n', ..] => Next::Key(Some(KeyPress::Enter), 1),
        [0x7f | 0x08, ..] => Next::Key(Some(KeyPress::Backspace), 1),
        [..0x20, ..] => Next::Key(None, 1),
        _ => character(bytes),
    }
}

fn sequence(parameters: &[u8], last: u8) -> Option<KeyPress> {
    match (parameters, last) {
        (_, b'A') => Some(KeyPress::Up),
        (_, b'B') => Some(KeyPress::Down),
        (_, b'C') => Some(KeyPress::Right),
        (_, b'D') => Some(KeyPress::Left),
        (_, b'H') | (b"1" | b"7", b'~') => Some(KeyPress::Home),
        (_, b'F') | (b"4" | b"8", b'~') => Some(KeyPress::End),
        (b"5", b'~') => Some(KeyPress::PageUp),
        (b"6", b'~') => Some(KeyPress::PageDown),
        (_, b'Z') => Some(KeyPress::BackTab),
        _ => None,
    }
}

fn character(bytes: &[u8]) -> Next {
    let chunk = bytes.utf8_chunks().next();
    let first = chunk.as_ref().and_then(|chunk| chunk.valid().chars().next());
    match (first, chunk) {
        (Some(character), _) => Next::Key(
            (!evenkeel_model::text::is_invisible(character)).then_some(KeyPress::Character(character)),
            character.len_utf8(),
        ),
        // The bytes are no character, or the beginning of a character that other bytes interrupt.
        (None, Some(chunk)) if chunk.invalid().len() < bytes.len() || is_whole(bytes) => {
            Next::Key(None, chunk.invalid().len())
        }
        _ => Next::Incomplete,
    }
}

/// Returns whether bytes that are no character cannot become a character with further bytes.
fn is_whole(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(parts: &[&[u8]]) -> Vec<KeyPress> {
        let mut decoder = Decoder::default();
        let mut found: Vec<KeyPress> = parts.iter().flat_map(|part| decoder.take(part)).collect();
        found.extend(decoder.time_out());
        found
    }

    #[test]
    fn keys_of_all_kinds_are_decoded() {
        use KeyPress::{
            BackTab, Backspace, Character, Down, End, Enter, Escape, Home, Left, PageDown, PageUp, Right,
            Tab, Up,
        };
        assert_eq!(keys(&[b"q\t\r\x7f"]), [Character('q'), Tab, Enter, Backspace]);
        assert_eq!(keys(&[b"\x1b[A\x1b[B\x1bOC\x1b[D\x1b[Z"]), [Up, Down, Right, Left, BackTab]);
        assert_eq!(keys(&[b"\x1b[5~\x1b[6~\x1b[H\x1b[4~\x1b[1;5A"]), [PageUp, PageDown, Home, End, Up]);
        assert_eq!(keys(&[b"\x1b"]), [Escape]);
        assert_eq!(keys(&[b"\x1bq"]), [Escape, Character('q')]);
        assert_eq!(
            keys(&[b"\x1b[200~", b"\x1b[3", b"~x"]),
            [Character('x')],
            "unknown sequences are skipped"
        );
        assert_eq!(keys(&["µ".as_bytes(), b"\xc2", b"\xb5\x01\x00\xff\xffa"]).len(), 3);
    }

    #[test]
    fn no_bytes_stop_the_decoder() {
        let mut decoder = Decoder::default();
        decoder.take(b"\x1b[");
        decoder.take(&[b'1'; 1000]);
        assert_eq!(decoder.take(b"q").last(), Some(&KeyPress::Character('q')));
        for first in 0..=255_u8 {
            for second in 0..=255_u8 {
                let mut decoder = Decoder::default();
                decoder.take(&[first, second]);
                decoder.time_out();
                assert_eq!(decoder.take(b"q"), [KeyPress::Character('q')], "{first} {second}");
            }
        }
    }
}
