//! Writes DOT, the language of Graphviz (<https://graphviz.org/doc/info/lang.html>).

use std::fmt::Write;

use super::{Drawing, Shape};

pub(super) fn render(drawing: &Drawing) -> String {
    let mut dot = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(dot, "digraph nic {{");
    let _ = writeln!(dot, "  label={};", quoted(&drawing.title));
    let _ = writeln!(dot, "  node [shape=box, style=filled, fillcolor=white, fontname=monospace];");
    for (index, vertex) in drawing.vertices.iter().enumerate() {
        let look = match vertex.shape {
            Shape::Source => "shape=oval",
            Shape::Function => "shape=box",
            Shape::Operator => "fillcolor=lightgrey",
            Shape::Configuration => "style=\"filled,dashed\", fillcolor=lightyellow",
            Shape::Queue => "shape=cylinder, fillcolor=lightblue",
        };
        let _ = writeln!(dot, "  n{index} [label={}, {look}];", quoted(&vertex.lines.join("\n")));
    }
    for arrow in &drawing.arrows {
        let label =
            if arrow.label.is_empty() { String::new() } else { format!(" [label={}]", quoted(&arrow.label)) };
        let _ = writeln!(dot, "  n{} -> n{}{label};", arrow.from, arrow.to);
    }
    dot.push_str("}\n");
    dot
}

fn quoted(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("\"{escaped}\"")
}
