//! Predicates on packets, for the ports of function nodes.
//!
//! ```text
//! predicate = conjunction { "or" conjunction }
//! conjunction = term { "and" term }
//! term = "not" term | "(" predicate ")" | "fragment" | "multicast" | "connection-request"
//!      | "ether-type" "=" ( name | number ) | "protocol" "=" ( name | number )
//! ```

use std::fmt;

use crate::key::{ETHER_TYPE_IPV4, ETHER_TYPE_IPV6};
use crate::packet::Header;

/// Names of Ethernet types (include/uapi/linux/if_ether.h).
const ETHER_TYPES: [(&str, u16); 6] = [
    ("ipv4", ETHER_TYPE_IPV4),
    ("ipv6", ETHER_TYPE_IPV6),
    ("arp", 0x0806),
    ("fcoe", 0x8906),
    ("ptp", 0x88f7),
    ("lldp", 0x88cc),
];
/// Names of IP protocols (include/uapi/linux/in.h).
const PROTOCOLS: [(&str, u8); 5] = [("icmp", 1), ("tcp", 6), ("udp", 17), ("icmpv6", 58), ("sctp", 132)];

/// Maximum nesting of parentheses and `not`, which bounds the recursion.
const DEEPEST: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Predicate {
    EtherType(u16),
    Protocol(u8),
    Fragment,
    /// The group bit of the destination's hardware address is set.
    Multicast,
    /// SYN without ACK.
    ConnectionRequest,
    Not(Box<Self>),
    And(Vec<Self>),
    Or(Vec<Self>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PredicateError {
    pub(super) offset: usize,
    pub(super) problem: String,
}

impl Predicate {
    #[must_use]
    pub fn holds(&self, header: &Header) -> bool {
        match self {
            Self::EtherType(wanted) => header.ether_type == *wanted,
            Self::Protocol(wanted) => header.protocol == *wanted,
            Self::Fragment => header.fragment,
            Self::Multicast => header.multicast,
            Self::ConnectionRequest => header.connection_request,
            Self::Not(inner) => !inner.holds(header),
            Self::And(terms) => terms.iter().all(|term| term.holds(header)),
            Self::Or(terms) => terms.iter().any(|term| term.holds(header)),
        }
    }

    /// Calls `found` for every atom: a term without operator.
    pub(super) fn atoms(&self, found: &mut impl FnMut(&Self)) {
        match self {
            Self::Not(inner) => inner.atoms(found),
            Self::And(terms) | Self::Or(terms) => terms.iter().for_each(|term| term.atoms(found)),
            atom => found(atom),
        }
    }

    pub(super) fn parse(text: &str) -> Result<Self, PredicateError> {
        let mut parser = Parser { text, at: 0, depth: 0 };
        let predicate = parser.disjunction()?;
        match parser.token() {
            "" => Ok(predicate),
            token => Err(parser.error(&format!("'{}' is not expected here", shown(token)))),
        }
    }
}

impl fmt::Display for Predicate {
    /// Writes the syntax of model files.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let joined = |formatter: &mut fmt::Formatter<'_>, terms: &[Self], word: &str| {
            terms.iter().enumerate().try_for_each(|(index, term)| {
                let separator = if index == 0 { "" } else { word };
                match term {
                    Self::Or(_) => write!(formatter, "{separator}({term})"),
                    _ => write!(formatter, "{separator}{term}"),
                }
            })
        };
        match self {
            Self::EtherType(number) => match ETHER_TYPES.iter().find(|(_, known)| known == number) {
                Some((name, _)) => write!(formatter, "ether-type = {name}"),
                None => write!(formatter, "ether-type = {number:#06x}"),
            },
            Self::Protocol(number) => match PROTOCOLS.iter().find(|(_, known)| known == number) {
                Some((name, _)) => write!(formatter, "protocol = {name}"),
                None => write!(formatter, "protocol = {number}"),
            },
            Self::Fragment => formatter.write_str("fragment"),
            Self::Multicast => formatter.write_str("multicast"),
            Self::ConnectionRequest => formatter.write_str("connection-request"),
            Self::Not(inner) => match **inner {
                Self::And(_) | Self::Or(_) => write!(formatter, "not ({inner})"),
                _ => write!(formatter, "not {inner}"),
            },
            Self::And(terms) => joined(formatter, terms, " and "),
            Self::Or(terms) => joined(formatter, terms, " or "),
        }
    }
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
    depth: usize,
}

impl<'t> Parser<'t> {
    /// Returns the next token, or an empty token at the end.
    fn token(&mut self) -> &'t str {
        let rest = &self.text[self.at..];
        let trimmed = rest.trim_start();
        self.at += rest.len() - trimmed.len();
        let word = |c: char| c.is_alphanumeric() || c == '-';
        let length = match trimmed.chars().next() {
            None => 0,
            Some(first) if word(first) => trimmed.find(|c| !word(c)).unwrap_or(trimmed.len()),
            Some(first) => first.len_utf8(),
        };
        &trimmed[..length]
    }

    /// Skips the next token if it equals `token`. Returns whether a token was skipped.
    fn skip(&mut self, token: &str) -> bool {
        let found = self.token() == token;
        if found {
            self.at += token.len();
        }
        found
    }

    fn error(&self, problem: &str) -> PredicateError {
        PredicateError { offset: self.at, problem: problem.to_owned() }
    }

    fn disjunction(&mut self) -> Result<Predicate, PredicateError> {
        let mut terms = vec![self.conjunction()?];
        while self.skip("or") {
            terms.push(self.conjunction()?);
        }
        Ok(if terms.len() == 1 { terms.swap_remove(0) } else { Predicate::Or(terms) })
    }

    fn conjunction(&mut self) -> Result<Predicate, PredicateError> {
        let mut terms = vec![self.term()?];
        while self.skip("and") {
            terms.push(self.term()?);
        }
        Ok(if terms.len() == 1 { terms.swap_remove(0) } else { Predicate::And(terms) })
    }

    fn term(&mut self) -> Result<Predicate, PredicateError> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(self.error("parentheses and 'not' are nested too deeply"));
        }
        let term = match self.token() {
            "not" => {
                self.skip("not");
                Predicate::Not(Box::new(self.term()?))
            }
            "(" => {
                self.skip("(");
                let inner = self.disjunction()?;
                if !self.skip(")") {
                    return Err(self.error("')' is missing"));
                }
                inner
            }
            _ => self.atom()?,
        };
        self.depth -= 1;
        Ok(term)
    }

    fn atom(&mut self) -> Result<Predicate, PredicateError> {
        let token = self.token();
        let plain = match token {
            "fragment" => Some(Predicate::Fragment),
            "multicast" => Some(Predicate::Multicast),
            "connection-request" => Some(Predicate::ConnectionRequest),
            "ether-type" | "protocol" => None,
            _ => {
                let known = "ether-type = ..., protocol = ..., fragment, multicast, connection-request";
                return Err(self.error(&format!("'{}' is not one of {known}", shown(token))));
            }
        };
        self.skip(token);
        if let Some(plain) = plain {
            return Ok(plain);
        }
        if !self.skip("=") {
            return Err(self.error(&format!("'=' is missing after {token}")));
        }
        let value = self.token();
        let predicate = if token == "ether-type" {
            number(value, &ETHER_TYPES).map(Predicate::EtherType)
        } else {
            number(value, &PROTOCOLS).map(Predicate::Protocol)
        };
        let predicate =
            predicate.ok_or_else(|| self.error(&format!("'{}' is not a value for {token}", shown(value))))?;
        self.skip(value);
        Ok(predicate)
    }
}

/// Parses a name, or a decimal or hexadecimal (`0x`) number; `None` for other texts and numbers out of range.
fn number<T: Copy + TryFrom<u32>>(text: &str, names: &[(&str, T)]) -> Option<T> {
    if let Some((_, number)) = names.iter().find(|(name, _)| *name == text) {
        return Some(*number);
    }
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.ok().and_then(|number| T::try_from(number).ok())
}

/// Returns the start of an untrusted text, escaped for a terminal.
fn shown(text: &str) -> String {
    text.chars().take(32).flat_map(char::escape_default).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    const TCP4: Header = Header {
        ether_type: ETHER_TYPE_IPV4,
        protocol: 6,
        fragment: false,
        multicast: false,
        connection_request: false,
    };

    #[test]
    fn and_binds_closer_than_or() {
        let predicate = Predicate::parse("protocol = udp and fragment or ether-type = ipv4").unwrap();
        assert!(predicate.holds(&TCP4));
        let predicate = Predicate::parse("protocol = udp and (fragment or ether-type = ipv4)").unwrap();
        assert!(!predicate.holds(&TCP4));
        assert!(
            Predicate::parse("not fragment and protocol=0x6 and ether-type = 2048").unwrap().holds(&TCP4)
        );
    }

    #[test]
    fn mistakes_have_a_place() {
        for (text, offset) in [
            ("", 0),
            ("port = 1", 0),
            ("fragment fragment", 9),
            ("fragment and", 12),
            ("(fragment", 9),
            ("ether-type ipv4", 11),
            ("protocol = 256", 11),
            ("protocol = ", 11),
            ("fragment or = ", 12),
            ("ether-type = ipv5", 13),
        ] {
            assert_eq!(Predicate::parse(text).unwrap_err().offset, offset, "{text}");
        }
        assert!(Predicate::parse(&"(".repeat(100_000)).is_err());
        assert!(Predicate::parse(&"not ".repeat(100_000)).is_err());
    }

    fn predicate() -> impl Strategy<Value = Predicate> {
        let atom = prop_oneof![
            any::<u16>().prop_map(Predicate::EtherType),
            any::<u8>().prop_map(Predicate::Protocol),
            Just(Predicate::EtherType(ETHER_TYPE_IPV6)),
            Just(Predicate::Fragment),
            Just(Predicate::Multicast),
            Just(Predicate::ConnectionRequest),
        ];
        atom.prop_recursive(4, 16, 3, |inner| {
            prop_oneof![
                inner.clone().prop_map(|inner| Predicate::Not(Box::new(inner))),
                proptest::collection::vec(inner.clone(), 2..4).prop_map(Predicate::And),
                proptest::collection::vec(inner, 2..4).prop_map(Predicate::Or),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_as_the_same(
            predicate in predicate(),
            (ether_type, protocol) in (any::<u16>(), any::<u8>()),
            (fragment, multicast, connection_request) in any::<(bool, bool, bool)>(),
        ) {
            let read = Predicate::parse(&predicate.to_string()).unwrap();
            let header = Header { ether_type, protocol, fragment, multicast, connection_request };
            prop_assert_eq!(read.holds(&header), predicate.holds(&header));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[a-z0-9=() \u{e4}-]{0,40}") {
            if let Err(error) = Predicate::parse(&text) {
                prop_assert!(text.is_char_boundary(error.offset));
            }
        }
    }
}
