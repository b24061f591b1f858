//! Drawings of graphs, as DOT (Graphviz) and as SVG.

mod dot;
mod layout;
mod svg;
#[cfg(test)]
mod tests;

use crate::configured_graph::{ConfiguredGraph, ConfiguredKind};
use crate::filter::QueueId;
use crate::nic::{FilterTable, NicModel, NodeKind, Operand, Port, Precedence};

/// What a node is drawn as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Source,
    /// Function nodes, and the filters that come of configuration: white, as in the paper's Figure 1.
    Function,
    /// Grey.
    Operator,
    /// What is to be configured: dashed.
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

/// A graph as it is drawn: boxes with text, and arrows between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drawing {
    title: String,
    vertices: Vec<Vertex>,
    arrows: Vec<Arrow>,
}

impl Drawing {
    /// The graph of a model, with configuration nodes.
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
                    let mut lines = vec![format!("{} ({} filters)", node.name, table.capacity)];
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

    /// The graph of a NIC that is configured.
    #[must_use]
    pub fn of_configured(graph: &ConfiguredGraph<'_>) -> Self {
        let model = graph.nic().model();
        let title = format!("{}, configured: {}", model.name(), model.title());
        let mut drawing = Self { title, vertices: Vec::new(), arrows: Vec::new() };
        for (index, node) in graph.nodes().iter().enumerate() {
            let (shape, lines) = match &node.kind {
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
                    drawing.arrow(index, *to, label);
                }
            }
            if let ConfiguredKind::And(operands) | ConfiguredKind::Or(operands) = &node.kind {
                for (from, port) in operands {
                    drawing.arrow(*from, index, &graph.nodes()[*from].ports[*port].0);
                }
            }
        }
        drawing.without_lone_vertices()
    }

    fn arrow(&mut self, from: usize, to: usize, label: &str) {
        self.arrows.push(Arrow { from, to, label: label.to_owned() });
    }

    /// A queue to which nothing leads is not drawn.
    fn without_lone_vertices(mut self) -> Self {
        let touched = |index: usize| self.arrows.iter().any(|arrow| arrow.from == index || arrow.to == index);
        let kept: Vec<bool> = (0..self.vertices.len()).map(touched).collect();
        let place = |index: usize| kept[..index].iter().filter(|kept| **kept).count();
        for arrow in &mut self.arrows {
            (arrow.from, arrow.to) = (place(arrow.from), place(arrow.to));
        }
        let mut keep = kept.iter();
        self.vertices.retain(|_| keep.next().copied().unwrap_or(false));
        self
    }

    /// As input for Graphviz.
    #[must_use]
    pub fn to_dot(&self) -> String {
        dot::render(self)
    }

    /// As a picture.
    #[must_use]
    pub fn to_svg(&self) -> String {
        svg::render(self)
    }
}

/// Fields that filters of a table match.
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

/// A text on lines of a length that fits a box.
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
