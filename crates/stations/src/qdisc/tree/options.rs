//! The options of one qdisc or class. The builder reads each option once. An unread option is an error.

use evenkeel_model::qdisc::{Curve, Node, SettingValue};

use super::TreeError;
use crate::time::{NANOSECOND, Span};

pub(super) struct Options<'a> {
    node: &'a Node,
    asked: Vec<bool>,
}

impl<'a> Options<'a> {
    pub(super) fn of(node: &'a Node) -> Self {
        Self { node, asked: vec![false; node.settings.len()] }
    }

    fn take(&mut self, name: &str) -> Option<&'a SettingValue> {
        let index = self.node.settings.iter().position(|setting| setting.name == name)?;
        self.asked[index] = true;
        Some(&self.node.settings[index].value)
    }

    fn wrong(&self, name: &str) -> TreeError {
        TreeError::Option { kind: self.node.kind.clone(), handle: self.node.handle, option: name.to_owned() }
    }

    /// Reads a number, a size in bytes or a rate in bit/s.
    pub(super) fn number(&mut self, name: &str) -> Result<Option<u64>, TreeError> {
        match self.take(name) {
            None => Ok(None),
            Some(SettingValue::Count(count)) => Ok(Some(*count)),
            Some(SettingValue::Size(size)) => Ok(Some(size.bytes())),
            Some(SettingValue::Rate(rate)) => Ok(Some(rate.bits_per_second())),
            Some(_) => Err(self.wrong(name)),
        }
    }

    /// Reads a number and limits it to 32 bits.
    pub(super) fn short(&mut self, name: &str) -> Result<Option<u32>, TreeError> {
        Ok(self.number(name)?.map(|value| u32::try_from(value).unwrap_or(u32::MAX)))
    }

    pub(super) fn time(&mut self, name: &str) -> Result<Option<Span>, TreeError> {
        match self.take(name) {
            None => Ok(None),
            Some(SettingValue::Time(time)) => Ok(Some(time.as_u64().saturating_mul(NANOSECOND))),
            Some(_) => Err(self.wrong(name)),
        }
    }

    pub(super) fn class(&mut self, name: &str) -> Result<Option<u16>, TreeError> {
        match self.take(name) {
            None => Ok(None),
            Some(SettingValue::Class(handle)) => Ok(Some(handle.minor)),
            Some(SettingValue::Count(count)) => Ok(u16::try_from(*count).ok()),
            Some(_) => Err(self.wrong(name)),
        }
    }

    pub(super) fn list(&mut self, name: &str) -> Result<Option<&'a [u64]>, TreeError> {
        match self.take(name) {
            None => Ok(None),
            Some(SettingValue::List(list)) => Ok(Some(list)),
            Some(_) => Err(self.wrong(name)),
        }
    }

    pub(super) fn curve(&mut self, name: &str) -> Result<Option<Curve>, TreeError> {
        match self.take(name) {
            None => Ok(None),
            Some(SettingValue::Curve(curve)) => Ok(Some(*curve)),
            Some(_) => Err(self.wrong(name)),
        }
    }

    /// Reads flags. Returns whether at least one flag is set.
    pub(super) fn any(&mut self, names: &[&str]) -> bool {
        // `count` reads all flags; `any` would stop at the first set flag.
        names.iter().filter(|name| self.take(name).is_some()).count() > 0
    }

    pub(super) fn finish(self) -> Result<(), TreeError> {
        match self.asked.iter().position(|asked| !asked) {
            Some(index) => Err(self.wrong(&self.node.settings[index].name)),
            None => Ok(()),
        }
    }
}
