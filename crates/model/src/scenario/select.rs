//! Selects variants by name or group.

use super::{Scenario, Variant};
use crate::text::{excerpt, suggestion};

/// A variant or group that the scenario does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("scenario '{scenario}' has no variant or group '{}'; {advice}", excerpt(.name))]
pub struct UnknownVariant {
    pub scenario: String,
    pub name: String,
    /// The most similar name, and all known names.
    pub advice: String,
}

impl Scenario {
    /// Returns all variants, the default ones first.
    pub fn all_variants(&self) -> impl Iterator<Item = &Variant> + Clone {
        self.variants.iter().chain(&self.further_variants)
    }

    #[must_use]
    pub fn variant(&self, name: &str) -> Option<&Variant> {
        self.all_variants().find(|variant| variant.name == name)
    }

    /// Returns the variants that are requested by name or group, in the order of `asked` and without
    /// duplicates. If `asked` is empty, returns [`Scenario::variants`].
    ///
    /// # Errors
    /// Returns the first name that is neither a variant nor a group.
    pub fn select<S: AsRef<str>>(&self, asked: &[S]) -> Result<Vec<&Variant>, UnknownVariant> {
        if asked.is_empty() {
            return Ok(self.variants.iter().collect());
        }
        let mut selected: Vec<&Variant> = Vec::new();
        let mut add = |name: &str| {
            let variant = self.variant(name)?;
            if !selected.iter().any(|present| present.name == variant.name) {
                selected.push(variant);
            }
            Some(())
        };
        for name in asked.iter().map(AsRef::as_ref) {
            let found = match self.groups.get(name) {
                Some(members) => members.iter().try_for_each(|member| add(member)),
                None => add(name),
            };
            if found.is_none() {
                let known = self.groups.keys().chain(self.all_variants().map(|variant| &variant.name));
                let advice = suggestion(name, known.map(String::as_str));
                return Err(UnknownVariant { scenario: self.name.clone(), name: name.to_owned(), advice });
            }
        }
        Ok(selected)
    }
}
