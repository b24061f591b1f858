//! Drawings of graphs, as DOT (Graphviz) and as SVG.

mod dot;
mod layout;
mod svg;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use crate::configured_graph::{ConfiguredGraph, ConfiguredKind};
use crate::filter::{QueueId, TableId};
use crate::nic::{FilterTable, NicModel, NodeKind, Operand, Port, Precedence};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Source,
    /// White, as in Figure 1 of the Dragonet paper. Configured filters also have this shape.
    Function,
    /// Grey.
    Operator,
    /// Dashed.
    Configuration,
    Queue,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Vertex {
    lines: Vec<String>,
    shape: Shape,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Arrow {
    from: usize,
    to: usize,
    label: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drawing {
    title: String,
    vertices: Vec<Vertex>,
    arrows: Vec<Arrow>,
}

impl Drawing {
    #[must_use]
    pub fn of_model(model: &NicModel) -> Self {
        let title = format!("{}: {}", model.name(), model.title());
        let mut drawing = Self { title, vertices: Vec::new(), arrows: Vec::new() };
        let nodes = model.graph().nodes();
        for node in nodes {
            let (shape, lines) = match &node.kind {
                NodeKind::Source => (Shape::Source, vec!["packets".to_owned()]),
                NodeKind::Function => {
                    let asked = |port: &Port| Some(format!("{}: {}", port.name, port.when.as_ref()?));
                    let asked = node.ports.iter().filter_map(asked).flat_map(|text| wrapped(&text));
                    (Shape::Function, [node.name.clone()].into_iter().chain(asked).collect())
                }
                NodeKind::And(_) => (Shape::Operator, vec!["AND".to_owned(), node.name.clone()]),
                NodeKind::Or(_) => (Shape::Operator, vec!["OR".to_owned(), node.name.clone()]),
                NodeKind::Table(table) => {
                    let table = &model.tables()[table.index()];
                    let plural = if table.capacity == 1 { "" } else { "s" };
                    let mut lines = vec![format!("{} ({} filter{plural})", node.name, table.capacity)];
                    lines.push(fields(table));
                    lines.push(precedence(table.precedence));
                    (Shape::Configuration, lines)
                }
                NodeKind::Rss => {
                    let entries = model.rss().map_or(0, |rss| rss.entries);
                    (
                        Shape::Configuration,
                        vec![node.name.clone(), format!("Toeplitz hash, {entries} entries")],
                    )
                }
                NodeKind::Queue(queue) => (Shape::Queue, vec![format!("Q{queue}"), node.name.clone()]),
            };
            drawing.vertices.push(Vertex { lines, shape });
        }
        let steered = drawing.vertices.len();
        for (index, node) in nodes.iter().enumerate() {
            for port in &node.ports {
                let label = if node.kind == NodeKind::Source { "" } else { &port.name };
                for to in &port.to {
                    drawing.arrow(index, to.index(), label);
                }
            }
            match &node.kind {
                NodeKind::And(operands) | NodeKind::Or(operands) => {
                    for Operand { node: from, port } in operands {
                        drawing.arrow(from.index(), index, &nodes[from.index()].ports[*port].name);
                    }
                }
                NodeKind::Table(_) | NodeKind::Rss => drawing.arrow(index, steered, "hit"),
                _ => {}
            }
        }
        let lines = vec![format!("Q0 to Q{}", model.queues() - 1), "as configured".to_owned()];
        drawing.vertices.push(Vertex { lines, shape: Shape::Queue });
        drawing.without_lone_vertices()
    }

    #[must_use]
    pub fn of_configured(graph: &ConfiguredGraph<'_>) -> Self {
        let model = graph.nic().model();
        let title = format!("{}, configured: {}", model.name(), model.title());
        let mut drawing = Self { title, vertices: Vec::new(), arrows: Vec::new() };
        let drawn_as = collapsed(graph);
        for (index, node) in graph.nodes().iter().enumerate() {
            let (shape, lines) = match &node.kind {
                ConfiguredKind::Filter(id, _) if graph.nic().used(id.table) > MOST_FILTERS => {
                    let table = &model.tables()[id.table.index()];
                    let count = format!("{} filters", graph.nic().used(id.table));
                    (Shape::Function, vec![table.name.clone(), count])
                }
                ConfiguredKind::Source => (Shape::Source, vec!["packets".to_owned()]),
                ConfiguredKind::Function(_) => (Shape::Function, vec![node.name.clone()]),
                ConfiguredKind::And(_) => (Shape::Operator, vec!["AND".to_owned(), node.name.clone()]),
                ConfiguredKind::Or(_) => (Shape::Operator, vec!["OR".to_owned(), node.name.clone()]),
                ConfiguredKind::Filter(_, filter) => {
                    let text = filter.matches.to_string();
                    (Shape::Function, [node.name.clone()].into_iter().chain(wrapped(&text)).collect())
                }
                ConfiguredKind::EmptyTable => (Shape::Function, vec![node.name.clone(), "empty".to_owned()]),
                ConfiguredKind::HashOff => (Shape::Function, vec![node.name.clone(), "off".to_owned()]),
                ConfiguredKind::Hash { context: Some(context), .. } => {
                    (Shape::Function, vec![node.name.clone(), format!("context {}", context.0)])
                }
                ConfiguredKind::Hash { up: QueueId(0), .. } => (Shape::Function, vec![node.name.clone()]),
                ConfiguredKind::Hash { up, .. } => {
                    (Shape::Function, vec![node.name.clone(), format!("{up} queues up")])
                }
                ConfiguredKind::Queue(queue) => (Shape::Queue, vec![format!("Q{queue}")]),
            };
            drawing.vertices.push(Vertex { lines, shape });
            for (port, to) in &node.ports {
                let label = if node.kind == ConfiguredKind::Source { "" } else { port };
                for to in to {
                    drawing.arrow(drawn_as[index], drawn_as[*to], label);
                }
            }
            if let ConfiguredKind::And(operands) | ConfiguredKind::Or(operands) = &node.kind {
                for (from, port) in operands {
                    drawing.arrow(drawn_as[*from], drawn_as[index], &graph.nodes()[*from].ports[*port].0);
                }
            }
        }
        // A merged node has arrows to itself, and several arrows to the same node. Drop the loops and
        // the duplicates.
        let mut known = BTreeSet::new();
        drawing.arrows.retain(|arrow| {
            arrow.from != arrow.to && known.insert((arrow.from, arrow.to, arrow.label.clone()))
        });
        drawing.without_lone_vertices()
    }

    fn arrow(&mut self, from: usize, to: usize, label: &str) {
        self.arrows.push(Arrow { from, to, label: label.to_owned() });
    }

    fn without_lone_vertices(mut self) -> Self {
        let mut kept = vec![false; self.vertices.len()];
        for arrow in &self.arrows {
            kept[arrow.from] = true;
            kept[arrow.to] = true;
        }
        let before = |count: &mut usize, kept: &bool| {
            let place = *count;
            *count += usize::from(*kept);
            Some(place)
        };
        let places: Vec<usize> = kept.iter().scan(0, before).collect();
        for arrow in &mut self.arrows {
            (arrow.from, arrow.to) = (places[arrow.from], places[arrow.to]);
        }
        let mut keep = kept.iter();
        self.vertices.retain(|_| keep.next().copied().unwrap_or(false));
        self
    }

    #[must_use]
    pub fn to_dot(&self) -> String {
        dot::render(self)
    }

    #[must_use]
    pub fn to_svg(&self) -> String {
        svg::render(self)
    }
}

/// Largest table that is drawn with one box per filter; more boxes would be unreadable.
const MOST_FILTERS: usize = 32;

/// Returns, for each node, the node that is drawn instead. The first filter of a table with more than
/// [`MOST_FILTERS`] filters represents all of them, and their RSS nodes.
fn collapsed(graph: &ConfiguredGraph<'_>) -> Vec<usize> {
    let mut drawn_as: Vec<usize> = (0..graph.nodes().len()).collect();
    let mut firsts: BTreeMap<TableId, usize> = BTreeMap::new();
    for (index, node) in graph.nodes().iter().enumerate() {
        let ConfiguredKind::Filter(id, _) = node.kind else { continue };
        if graph.nic().used(id.table) <= MOST_FILTERS {
            continue;
        }
        let first = *firsts.entry(id.table).or_insert(index);
        drawn_as[index] = first;
        // A matching packet goes to a queue or to the filter's own hash.
        for to in node.ports.first().into_iter().flat_map(|(_, to)| to) {
            if matches!(graph.nodes()[*to].kind, ConfiguredKind::Hash { .. }) {
                drawn_as[*to] = first;
            }
        }
    }
    drawn_as
}

/// Returns the names of the fields that filters of a table match.
fn fields(table: &FilterTable) -> String {
    let named = table.fields.named();
    let matched: Vec<&str> = named
        .iter()
        .filter(|(_, field)| *field != crate::FieldMatch::Ignored)
        .map(|(name, _)| *name)
        .collect();
    if matched.is_empty() { "any packet".to_owned() } else { matched.join(", ") }
}

fn precedence(precedence: Precedence) -> String {
    match precedence {
        Precedence::Unique => "no two alike".to_owned(),
        Precedence::Priority { levels } => format!("highest of {levels} priorities first"),
        Precedence::Location => "lowest location first".to_owned(),
    }
}

fn wrapped(text: &str) -> Vec<String> {
    const WIDTH: usize = 32;
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
