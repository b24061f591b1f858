//! Finds keys that occur twice in an object of a JSON text. For a map, serde keeps the last value of
//! such a key and reports no error.

use std::collections::BTreeSet;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// A JSON text in which the keys of each object are unique. Objects with the key `statistics` are an
/// exception, because drivers repeat the names of counters.
pub(crate) struct DistinctKeys;

impl<'de> Deserialize<'de> for DistinctKeys {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for DistinctKeys {
    type Value = Self;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self, M::Error> {
        let mut seen = BTreeSet::new();
        while let Some(key) = map.next_key::<String>()? {
            if key == "statistics" {
                map.next_value::<IgnoredAny>()?;
            } else {
                map.next_value::<Self>()?;
            }
            if seen.contains(&key) {
                return Err(M::Error::custom(format!("the key '{key}' is given twice")));
            }
            seen.insert(key);
        }
        Ok(self)
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Self, S::Error> {
        while list.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }
}
