//! Qdiscs with classes: converts the options of `tc` to trees and tables.

use std::collections::BTreeMap;

use evenkeel_model::change::Handle;
use evenkeel_model::qdisc::{Node, Step};

use super::super::{
    Classifier, DEFAULT_LIMIT, DrrConfig, EtsConfig, HfscClass, HfscConfig, HfscContent, HtbClass, HtbConfig,
    HtbContent, Kind, QfqClass, QfqConfig, ServiceCurve,
};
use super::options::Options;
use super::{Builder, TreeError, shape};
use crate::time::NANOSECOND;

/// Table entry of a flow without a class.
const NO_CLASS: u32 = u32::MAX;
/// Default bands of priorities 0 to 15 (`sch_default_prio2band`).
const DEFAULT_BANDS: [u64; 16] = [1, 2, 2, 2, 1, 2, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1];

/// The leaf of each flow of a qdisc. Leaves are numbered in the order of [`Leaves::enter`].
struct Leaves<'a> {
    flows: &'a [u32],
    classes: Vec<Option<Handle>>,
    table: Vec<u32>,
    count: u32,
}

impl<'a> Leaves<'a> {
    fn new(builder: &Builder<'_>, flows: &'a [u32], classes: Vec<Option<Handle>>) -> Self {
        Self { flows, classes, table: vec![NO_CLASS; builder.flows.len()], count: 0 }
    }

    /// Numbers `class` as the next leaf. Returns the flows of the class.
    fn enter(&mut self, class: Handle) -> Vec<u32> {
        let members = self.flows.iter().zip(&self.classes).filter(|(_, found)| **found == Some(class));
        let members: Vec<u32> = members.map(|(flow, _)| *flow).collect();
        for flow in &members {
            self.table[*flow as usize] = self.count;
        }
        self.count += 1;
        members
    }

    fn table(self) -> Classifier {
        Classifier::Table(self.table.into())
    }
}

impl<'b> Builder<'b> {
    fn classes_of(&self, parent: Handle) -> Vec<&'b Node> {
        let classes = self.tree.steps.iter().filter_map(|step| match step {
            Step::Class(node) if node.parent == parent => Some(node),
            _ => None,
        });
        classes.collect()
    }

    fn class_count(&self, node: &Node) -> u32 {
        let major = node.handle.major;
        let is_class = |step: &&Step| matches!(step, Step::Class(class) if class.handle.major == major);
        self.tree.steps.iter().filter(is_class).count() as u32
    }

    /// Returns the class of each flow by the qdisc's filters. Unmatched flows go to the class `default`; if
    /// `default` is `None`, they have no class.
    fn classes_with_default(
        &mut self,
        node: &Node,
        qdisc: u32,
        flows: &[u32],
        default: Option<u16>,
    ) -> Vec<Option<Handle>> {
        let default = default.map(|minor| Handle::new(node.handle.major, minor));
        let found = self.classify(node, qdisc, flows);
        found.into_iter().map(|class| class.or(default)).collect()
    }

    pub(super) fn htb(&mut self, node: &Node, flows: &[u32]) -> Result<Kind, TreeError> {
        let mut options = Options::of(node);
        let default = options.class("default")?.filter(|minor| *minor != 0);
        let direct_limit = options.short("direct_qlen")?.unwrap_or(DEFAULT_LIMIT).max(2);
        let rate_to_quantum = options.number("r2q")?.unwrap_or(10).max(1);
        options.finish()?;
        let qdisc = self.register(node, self.class_count(node), true);
        let classes = self.classes_with_default(node, qdisc, flows, default);
        let mut leaves = Leaves::new(self, flows, classes);
        let mut roots = Vec::new();
        for class in self.classes_of(node.handle) {
            roots.push(self.htb_class(class, rate_to_quantum, &mut leaves)?);
        }
        let classifier = leaves.table();
        Ok(Kind::Htb(HtbConfig { direct_limit, ..HtbConfig::new(classifier, roots) }))
    }

    fn htb_class(
        &mut self,
        node: &Node,
        rate_to_quantum: u64,
        leaves: &mut Leaves<'_>,
    ) -> Result<HtbClass, TreeError> {
        let mut options = Options::of(node);
        let rate = options.number("rate")?.ok_or_else(|| shape(node, "the class has no rate"))?;
        let ceiling = options.number("ceil")?.unwrap_or(rate);
        // The default of `tc`: the bytes of one nanosecond at the rate, plus 1600.
        let usual = |rate: u64| (rate / 8 / 1_000_000_000) as u32 + 1600;
        let burst = options.short("burst")?.unwrap_or(usual(rate));
        let ceiling_burst = options.short("cburst")?.unwrap_or(usual(ceiling));
        let priority = options.number("prio")?.unwrap_or(0).min(7) as u8;
        // Quantum by `r2q`, as in `htb_change_class`.
        let by_rate = (rate / 8 / rate_to_quantum).clamp(1000, 200_000) as u32;
        let quantum = Some(options.short("quantum")?.filter(|quantum| *quantum > 0).unwrap_or(by_rate));
        options.finish()?;
        let children = self.classes_of(node.handle);
        let content = if children.is_empty() {
            let flows = leaves.enter(node.handle);
            HtbContent::Leaf(self.child_or(node.handle, &flows, Kind::Pfifo { limit: DEFAULT_LIMIT })?)
        } else {
            let children = children.into_iter().map(|child| self.htb_class(child, rate_to_quantum, leaves));
            HtbContent::Inner(children.collect::<Result<_, _>>()?)
        };
        Ok(HtbClass { rate, ceiling, burst, ceiling_burst, priority, quantum, content })
    }

    pub(super) fn hfsc(&mut self, node: &Node, flows: &[u32]) -> Result<Kind, TreeError> {
        let mut options = Options::of(node);
        let default = options.class("default")?.filter(|minor| *minor != 0);
        options.finish()?;
        let qdisc = self.register(node, self.class_count(node), true);
        let found = self.classes_with_default(node, qdisc, flows, default);
        let mut leaves = Leaves::new(self, flows, found);
        let mut classes = Vec::new();
        for class in self.classes_of(node.handle) {
            classes.push(self.hfsc_class(class, &mut leaves)?);
        }
        Ok(Kind::Hfsc(HfscConfig { classifier: leaves.table(), classes }))
    }

    fn hfsc_class(&mut self, node: &Node, leaves: &mut Leaves<'_>) -> Result<HfscClass, TreeError> {
        let mut options = Options::of(node);
        let mut curve = |name| -> Result<Option<ServiceCurve>, TreeError> {
            let curve = options.curve(name)?;
            Ok(curve.map(|curve| ServiceCurve {
                first: curve.m1.bits_per_second(),
                delay: curve.first.as_u64().saturating_mul(NANOSECOND),
                second: curve.m2.bits_per_second(),
            }))
        };
        let both = curve("sc")?;
        let (real_time, link_share) = (curve("rt")?.or(both), curve("ls")?.or(both));
        let upper_limit = curve("ul")?;
        options.finish()?;
        let children = self.classes_of(node.handle);
        let content = if children.is_empty() {
            let flows = leaves.enter(node.handle);
            HfscContent::Leaf(self.fifo_limit(node, node.handle, &flows)?)
        } else {
            let children = children.into_iter().map(|child| self.hfsc_class(child, leaves));
            HfscContent::Inner(children.collect::<Result<_, _>>()?)
        };
        Ok(HfscClass { real_time, link_share, upper_limit, content })
    }

    pub(super) fn drr(&mut self, node: &Node, flows: &[u32]) -> Result<Kind, TreeError> {
        Options::of(node).finish()?;
        let (mut leaves, classes) = self.flat_classes(node, flows)?;
        let (mut quanta, mut limits) = (Vec::new(), Vec::new());
        for class in &classes {
            let mut options = Options::of(class);
            quanta.push(options.short("quantum")?.filter(|quantum| *quantum > 0).unwrap_or(self.frame));
            options.finish()?;
            limits.push(self.next_leaf(class, class.handle, &mut leaves)?);
        }
        let limit = common_limit(node, &limits)?;
        Ok(Kind::Drr(DrrConfig { classifier: leaves.table(), quanta, limit }))
    }

    pub(super) fn qfq(&mut self, node: &Node, flows: &[u32]) -> Result<Kind, TreeError> {
        Options::of(node).finish()?;
        let (mut leaves, nodes) = self.flat_classes(node, flows)?;
        let (mut classes, mut limits) = (Vec::new(), Vec::new());
        for class in &nodes {
            let mut options = Options::of(class);
            let weight = options.short("weight")?.unwrap_or(1);
            let longest = options.short("maxpkt")?.unwrap_or(self.frame);
            options.finish()?;
            classes.push(QfqClass { weight, longest });
            limits.push(self.next_leaf(class, class.handle, &mut leaves)?);
        }
        let limit = common_limit(node, &limits)?;
        Ok(Kind::Qfq(QfqConfig { classifier: leaves.table(), classes, limit }))
    }

    pub(super) fn ets(&mut self, node: &Node, flows: &[u32]) -> Result<Kind, TreeError> {
        let mut options = Options::of(node);
        let strict = options.number("strict")?.unwrap_or(0);
        let given = options.list("quanta")?.unwrap_or_default();
        let bands = options.number("bands")?.unwrap_or(strict + given.len() as u64);
        let map = options.list("priomap")?.map(<[u64]>::to_vec);
        options.finish()?;
        if bands > 16 {
            return Err(shape(node, "it has more than 16 bands"));
        }
        if strict + given.len() as u64 > bands {
            return Err(shape(node, "it has more strict bands and quanta than bands"));
        }
        let quantum = |band: u64| {
            let given =
                given.get((band - strict) as usize).map(|quantum| (*quantum).min(u32::MAX.into()) as u32);
            given.unwrap_or(self.frame)
        };
        let quanta: Vec<u32> = (strict..bands).map(quantum).collect();
        // Priorities outside the map go to the last band.
        let map = map.unwrap_or_default();
        let mut leaves = self.bands(node, flows, bands, |priority| {
            map.get(priority).copied().unwrap_or(bands.saturating_sub(1))
        });
        let mut limits = Vec::new();
        for band in 0..bands {
            limits.push(self.next_leaf(node, band_handle(node, band), &mut leaves)?);
        }
        let limit = common_limit(node, &limits)?;
        Ok(Kind::Ets(EtsConfig { classifier: leaves.table(), strict: strict as u8, quanta, limit }))
    }

    pub(super) fn prio(&mut self, node: &Node, flows: &[u32]) -> Result<Kind, TreeError> {
        let mut options = Options::of(node);
        let count = options.number("bands")?.unwrap_or(3);
        let map = options.list("priomap")?.unwrap_or(&DEFAULT_BANDS);
        options.finish()?;
        let mut leaves = self.bands(node, flows, count, |priority| map.get(priority).copied().unwrap_or(1));
        let mut bands = Vec::new();
        for band in 0..count.min(16) {
            let class = band_handle(node, band);
            let flows = leaves.enter(class);
            bands.push(self.child_or(class, &flows, Kind::Pfifo { limit: DEFAULT_LIMIT })?);
        }
        Ok(Kind::Prio { classifier: leaves.table(), bands })
    }

    /// Returns the band of each flow: by filters, or by priority if no filter selects a band of the qdisc.
    fn bands<'f>(
        &mut self,
        node: &Node,
        flows: &'f [u32],
        bands: u64,
        by_priority: impl Fn(usize) -> u64,
    ) -> Leaves<'f> {
        let qdisc = self.register(node, bands as u32, false);
        let mut classes = self.classify(node, qdisc, flows);
        for (flow, class) in flows.iter().zip(&mut classes) {
            let known = class.is_some_and(|class| (1..=bands).contains(&u64::from(class.minor)));
            if !known {
                let band = by_priority(usize::from(self.flows[*flow as usize].priority & 15));
                *class = Some(band_handle(node, band.min(bands.saturating_sub(1))));
            }
        }
        Leaves::new(self, flows, classes)
    }

    /// Returns the leaves and the classes of a qdisc with one level of classes. A flow without a class
    /// is an error, because the kernel would drop its packets.
    fn flat_classes<'f>(
        &mut self,
        node: &Node,
        flows: &'f [u32],
    ) -> Result<(Leaves<'f>, Vec<&'b Node>), TreeError> {
        let nodes = self.classes_of(node.handle);
        let qdisc = self.register(node, nodes.len() as u32, false);
        let classes = self.classify(node, qdisc, flows);
        for (flow, class) in flows.iter().zip(&classes) {
            if !nodes.iter().any(|node| Some(node.handle) == *class) {
                let port = self.flows[*flow as usize].port;
                return Err(shape(
                    node,
                    format!("packets to port {port} have no class, and would be dropped"),
                ));
            }
        }
        Ok((Leaves::new(self, flows, classes), nodes))
    }

    /// Numbers the next leaf, which must be a `pfifo`. Returns its limit, segments.
    fn next_leaf(&mut self, node: &Node, class: Handle, leaves: &mut Leaves<'_>) -> Result<u32, TreeError> {
        let flows = leaves.enter(class);
        self.fifo_limit(node, class, &flows)
    }

    fn fifo_limit(&mut self, node: &Node, class: Handle, flows: &[u32]) -> Result<u32, TreeError> {
        match self.child_or(class, flows, Kind::Pfifo { limit: DEFAULT_LIMIT })? {
            Kind::Pfifo { limit } => Ok(limit),
            _ => Err(shape(node, "its classes can have a pfifo only")),
        }
    }
}

fn band_handle(node: &Node, band: u64) -> Handle {
    Handle::new(node.handle.major, (band + 1) as u16)
}

/// Returns the limit of all classes. Different limits are an error.
fn common_limit(node: &Node, limits: &[u32]) -> Result<u32, TreeError> {
    let counted: BTreeMap<u32, usize> = limits.iter().fold(BTreeMap::new(), |mut counted, limit| {
        *counted.entry(*limit).or_default() += 1;
        counted
    });
    match counted.len() {
        0 | 1 => Ok(limits.first().copied().unwrap_or(DEFAULT_LIMIT)),
        _ => Err(shape(node, "its classes can have limits of one size only")),
    }
}
