//! Parses TOML files strictly, key by key, with the position of every error.
//!
//! The parsers of scenarios and of other configuration files, such as policies of receive steering, use this
//! module. [`document`] parses text into a tree with the position of every key and value. A [`Table`] over
//! its root returns the keys that the reader requests, and reports the other keys. [`Complaints`] keeps the
//! first error in file order.
//!
//! ```
//! use evenkeel_model::scenario::document::{Complaints, Table, document};
//!
//! let text = "queues = 0\n";
//! let tree = document(text, "x.toml")?;
//! let complaints = Complaints::new(text, "x.toml");
//! let mut root = Table::root(tree.get_ref(), &complaints);
//! let queues = root.take("queues").and_then(|field| field.integer(1..=64));
//! root.finish();
//! assert_eq!(queues, None);
//! let error = complaints.into_error().map(|error| error.to_string());
//! assert!(error.is_some_and(|error| error.starts_with("x.toml:1:10: queues: 0 is out of range")));
//! # Ok::<(), evenkeel_model::scenario::ScenarioError>(())
//! ```

use std::ops::{Range, RangeInclusive};

use super::flow_weights::{self, PROTOCOLS};
pub use super::parse::SCHEMA;
pub use super::parse::document;
pub use super::parse::read_schema;
pub use super::toml_table::{Complaints, Field, Located, Table};
pub use super::value::Spelling;

impl Field<'_> {
    /// Returns the ports that the value states: one port, or a range as `"first-last"`.
    #[must_use]
    pub fn ports(&self) -> Option<RangeInclusive<u16>> {
        flow_weights::ports(self)
    }

    /// Returns the path of a version-2 cgroup below the root, as in `/proc/PID/cgroup` after `0::`.
    #[must_use]
    pub fn cgroup(&self) -> Option<String> {
        flow_weights::cgroup(self)
    }

    /// Returns the IP protocol number of `tcp` or `udp`.
    #[must_use]
    pub fn protocol(&self) -> Option<u8> {
        self.one_of(&PROTOCOLS)
    }

    /// Returns the path of the value's key, such as `class[0].queues`.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the position of the value, as byte offsets in the text.
    #[must_use]
    pub fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    #[must_use]
    pub fn is_list(&self) -> bool {
        matches!(self.value, toml::de::DeValue::Array(_))
    }

    #[must_use]
    pub fn is_table(&self) -> bool {
        matches!(self.value, toml::de::DeValue::Table(_))
    }

    #[must_use]
    pub fn is_string(&self) -> bool {
        matches!(self.value, toml::de::DeValue::String(_))
    }
}
