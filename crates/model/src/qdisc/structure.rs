//! Checks a tree's steps: every parent exists, and filters name existing classes. The kernel also
//! detects these errors, but cannot report their position in the file.

use std::collections::{BTreeMap, BTreeSet};

use crate::change::Handle;

use super::kinds::{Classes, kind};
use super::line::is_line;
use super::values::{Wrong, wrong};
use super::{Filter, Node, SettingValue, Step, Surroundings};

#[derive(Clone, Copy)]
struct Qdisc<'t> {
    kind: &'t str,
    /// Classes that exist without a step.
    own: Own,
    /// The class for unclassified packets, and the step that sets it.
    default: Option<(Handle, usize)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Own {
    None,
    /// Minor numbers from 1 to this number.
    UpTo(u16),
    /// Any number except 0: the qdisc has one class with any number ([`Classes::One`]), or its kind is
    /// unknown, so the kernel decides.
    Any,
}

#[derive(Default)]
struct Tree<'t> {
    qdiscs: BTreeMap<u16, Qdisc<'t>>,
    classes: BTreeSet<Handle>,
    places: BTreeSet<Handle>,
}

/// Checks steps. Returns an error with the index of the first invalid step; 0 without a root qdisc.
pub(super) fn check(steps: &[Step], on: &Surroundings) -> Result<(), (usize, Wrong)> {
    let mut tree = Tree::default();
    for (at, step) in steps.iter().enumerate() {
        let made = match step {
            Step::Qdisc(node) => tree.add_qdisc(node, at, on),
            Step::Class(node) => tree.add_class(node),
            Step::Filter { parent, filter } => tree.check_filter(*parent, filter),
        };
        made.map_err(|wrong| (at, wrong))?;
    }
    if !tree.places.contains(&Handle::ROOT) {
        return Err((
            0,
            wrong("the setup has no root qdisc", "begin with a step such as qdisc root handle 1: htb"),
        ));
    }
    for (class, at) in tree.qdiscs.values().filter_map(|qdisc| qdisc.default) {
        // In HTB and HFSC, 0 means no default class; it is not the number of a class.
        if class.minor != 0 && !tree.has_class(class) {
            let advice = "add a step that creates the class, or name another class";
            return Err((at, wrong(format!("there is no class {class} to be the default"), advice)));
        }
    }
    Ok(())
}

fn shown(handle: Handle) -> String {
    format!("{:x}:", handle.major)
}

impl<'t> Tree<'t> {
    fn has_class(&self, class: Handle) -> bool {
        if self.classes.contains(&class) {
            return true;
        }
        self.qdiscs.get(&class.major).is_some_and(|qdisc| match qdisc.own {
            Own::None => false,
            Own::UpTo(most) => (1..=most).contains(&class.minor),
            Own::Any => class.minor > 0,
        })
    }

    fn qdisc(&self, handle: Handle) -> Result<&Qdisc<'t>, Wrong> {
        self.qdiscs.get(&handle.major).ok_or_else(|| {
            let problem = format!("there is no qdisc {} yet", shown(handle));
            wrong(problem, "move the step that creates the qdisc above this step")
        })
    }

    fn need_class(&self, class: Handle) -> Result<(), Wrong> {
        let qdisc = self.qdisc(class)?;
        if self.has_class(class) {
            return Ok(());
        }
        let advice = match qdisc.own {
            Own::UpTo(0) => format!("{} has none", qdisc.kind),
            Own::UpTo(most) => {
                format!("{} has the classes {}1 to {}{most:x}", qdisc.kind, shown(class), shown(class))
            }
            Own::None if kind(qdisc.kind).is_some_and(|kind| kind.classes == Classes::None) => {
                format!("{} has none", qdisc.kind)
            }
            Own::None | Own::Any => "add a step that creates the class above this step".to_owned(),
        };
        Err(wrong(format!("there is no class {class}"), advice))
    }

    fn add_qdisc(&mut self, node: &'t Node, at: usize, on: &Surroundings) -> Result<(), Wrong> {
        if is_line(node.handle) || node.handle.major == 0 || node.handle.major == u16::MAX {
            return Err(wrong(
                format!("a setup cannot use the handle {}", shown(node.handle)),
                "use 1: to fdff:",
            ));
        }
        if self.qdiscs.contains_key(&node.handle.major) {
            let problem = format!("the handle {} appears twice", shown(node.handle));
            return Err(wrong(
                problem,
                "give each qdisc its own handle; for a qdisc for each flow, write {flow+100}:",
            ));
        }
        if node.parent != Handle::ROOT {
            self.need_class(node.parent)?;
            if node.kind == "mq" {
                return Err(wrong("mq can only be at the root", "write qdisc root handle 1: mq"));
            }
        }
        if !self.places.insert(node.parent) {
            let place =
                if node.parent == Handle::ROOT { "the root".to_owned() } else { node.parent.to_string() };
            return Err(wrong(
                format!("{place} already has a qdisc"),
                "attach only one qdisc to each parent",
            ));
        }
        let number = |name: &str| match node.setting(name) {
            Some(SettingValue::Count(count)) => u16::try_from(*count).unwrap_or(u16::MAX),
            _ => 0,
        };
        let own = match kind(&node.kind).map(|kind| kind.classes) {
            Some(Classes::Made) => Own::None,
            Some(Classes::None) => Own::UpTo(0),
            Some(Classes::Bands) => Own::UpTo(number("bands")),
            Some(Classes::Queues) => Own::UpTo(u16::try_from(on.queues).unwrap_or(u16::MAX)),
            Some(Classes::One) | None => Own::Any,
        };
        check_bands(node)?;
        let default = match node.setting("default") {
            Some(SettingValue::Class(class)) => Some((*class, at)),
            _ => None,
        };
        self.qdiscs.insert(node.handle.major, Qdisc { kind: &node.kind, own, default });
        Ok(())
    }

    fn add_class(&mut self, node: &Node) -> Result<(), Wrong> {
        let qdisc = self.qdisc(node.handle)?;
        let makes = kind(qdisc.kind).is_none_or(|kind| kind.classes == Classes::Made);
        if !makes {
            let problem = format!("a step cannot create a class of {}", qdisc.kind);
            return Err(wrong(problem, "the qdisc creates its classes: leave this step out"));
        }
        if qdisc.kind != node.kind {
            let problem = format!("the qdisc {} is of kind {}", shown(node.handle), qdisc.kind);
            return Err(wrong(problem, format!("write {} as the kind of the class, too", qdisc.kind)));
        }
        if node.parent.major != node.handle.major {
            let advice = format!("write parent {}", shown(node.handle));
            return Err(wrong(format!("the parent {} is of another qdisc", node.parent), advice));
        }
        if node.handle.minor == 0 {
            return Err(wrong("a class's number cannot be 0", "write for example classid 1:10"));
        }
        if node.parent.minor != 0 && !self.classes.contains(&node.parent) {
            let problem = format!("there is no class {} yet", node.parent);
            return Err(wrong(problem, "move the step that creates the qdisc above this step"));
        }
        if !self.classes.insert(node.handle) {
            let problem = format!("the class {} appears twice", node.handle);
            return Err(wrong(
                problem,
                "give each class its own number; for a class for each flow, write {flow+100}",
            ));
        }
        Ok(())
    }

    fn check_filter(&self, parent: Handle, filter: &Filter) -> Result<(), Wrong> {
        self.qdisc(parent)?;
        if parent.minor != 0 {
            self.need_class(parent)?;
        }
        let target = |class: Handle| {
            if class.major != parent.major {
                let problem = format!("{class} is not a class of {}", shown(parent));
                return Err(wrong(problem, "name a class of the filter's own qdisc"));
            }
            self.need_class(class)
        };
        match *filter {
            Filter::PerFlow { first, classes, bulk_flows, probes, rest } => {
                let used = u16::try_from(classes.min(bulk_flows.saturating_add(probes))).unwrap_or(u16::MAX);
                for number in 0..used {
                    target(Handle::new(first.major, first.minor.saturating_add(number)))?;
                }
                rest.map_or(Ok(()), target)
            }
            Filter::ByRole { probes, bulk } => target(probes).and_then(|()| target(bulk)),
            Filter::Port { class, .. } => target(class),
        }
    }
}

fn check_bands(node: &Node) -> Result<(), Wrong> {
    let Some(SettingValue::Count(bands)) = node.setting("bands") else { return Ok(()) };
    if *bands == 0 || *bands > super::kinds::MOST_BANDS {
        return Err(wrong(
            format!("the qdisc has {bands} bands"),
            format!("use 1 to {}", super::kinds::MOST_BANDS),
        ));
    }
    if let Some(SettingValue::List(map)) = node.setting("priomap")
        && let Some(band) = map.iter().find(|band| *band >= bands)
    {
        let advice = format!("bands count from 0: write a priomap of 0 to {}", bands - 1);
        return Err(wrong(format!("priomap names band {band}, but there are only {bands} bands"), advice));
    }
    let strict = match node.setting("strict") {
        Some(SettingValue::Count(strict)) => *strict,
        _ => 0,
    };
    let quanta = match node.setting("quanta") {
        Some(SettingValue::List(quanta)) => quanta.len() as u64,
        _ => 0,
    };
    if strict + quanta > *bands {
        return Err(wrong(
            format!("{strict} strict bands and {quanta} quanta are more than {bands} bands"),
            "make each band strict or give it a quantum, not both",
        ));
    }
    Ok(())
}
