//! Writes SVG 1.1.

use std::fmt::Write;

use super::layout::{CHARACTER, LINE, Layout, Place, layout};
use super::{Arrow, Drawing, Shape, Vertex};

pub(super) fn render(drawing: &Drawing) -> String {
    let Layout { boxes, passages, width, height } = layout(drawing);
    let mut svg = String::new();
    let width = width.max((drawing.title.chars().count() + 4) * CHARACTER);
    // Writing to a string cannot fail.
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} \
         {height}\" font-family=\"monospace\" font-size=\"11\">"
    );
    svg.push_str(concat!(
        "<defs><marker id=\"tip\" viewBox=\"0 0 10 10\" refX=\"10\" refY=\"5\" markerWidth=\"7\" ",
        "markerHeight=\"7\" orient=\"auto\"><path d=\"M0 0L10 5L0 10z\"/></marker></defs>\n",
        "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    ));
    let _ = writeln!(svg, "<title>{}</title>", escaped(&drawing.title));
    let _ = writeln!(svg, "<text x=\"8\" y=\"{}\">{}</text>", height - 8, escaped(&drawing.title));
    for (arrow, passage) in drawing.arrows.iter().zip(&passages) {
        draw_arrow(&mut svg, arrow, &boxes[arrow.from], passage, &boxes[arrow.to]);
    }
    for (vertex, place) in drawing.vertices.iter().zip(&boxes) {
        draw_box(&mut svg, vertex, place);
    }
    svg.push_str("</svg>\n");
    svg
}

fn draw_arrow(svg: &mut String, arrow: &Arrow, from: &Place, passage: &[Place], to: &Place) {
    let start = (from.x, from.y + from.height / 2);
    let end = (to.x, to.y - to.height / 2);
    let points = passage.iter().map(|place| (place.x, place.y)).chain([end]);
    let mut path = format!("M{} {}", start.0, start.1);
    let mut before = start;
    for (x, y) in points {
        let middle = usize::midpoint(before.1, y);
        let _ = write!(path, "C{} {middle} {x} {middle} {x} {y}", before.0);
        before = (x, y);
    }
    let _ = writeln!(svg, "<path d=\"{path}\" fill=\"none\" stroke=\"black\" marker-end=\"url(#tip)\"/>");
    if !arrow.label.is_empty() {
        let next = passage.first().map_or(end, |place| (place.x, place.y));
        // Put the label in the middle: there, the arrows of one box are apart.
        let x = usize::midpoint(start.0, next.0);
        let y = usize::midpoint(start.1, next.1) + LINE / 4;
        let _ = writeln!(
            svg,
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\" stroke=\"white\" stroke-width=\"3\" \
             paint-order=\"stroke\">{}</text>",
            escaped(&arrow.label)
        );
    }
}

fn draw_box(svg: &mut String, vertex: &Vertex, place: &Place) {
    let (fill, extra) = match vertex.shape {
        Shape::Source => ("white", " rx=\"12\""),
        Shape::Function => ("white", ""),
        Shape::Operator => ("#d3d3d3", ""),
        Shape::Configuration => ("#ffffe0", " stroke-dasharray=\"5 3\""),
        Shape::Queue => ("#add8e6", " rx=\"4\""),
    };
    let (left, top) = (place.x - place.width / 2, place.y - place.height / 2);
    let _ = writeln!(
        svg,
        "<rect x=\"{left}\" y=\"{top}\" width=\"{}\" height=\"{}\" fill=\"{fill}\" stroke=\"black\"{extra}/>",
        place.width, place.height
    );
    for (line, text) in vertex.lines.iter().enumerate() {
        let y = top + (line + 1) * LINE;
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{y}\" text-anchor=\"middle\">{}</text>",
            place.x,
            escaped(text)
        );
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
