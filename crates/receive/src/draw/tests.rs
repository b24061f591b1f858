#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::layout::{Place, layout};
use super::*;
use crate::{ConfiguredNic, Filter, FilterMatch, FlowTuple, Transport};

fn drawings() -> Vec<Drawing> {
    let mut drawings = Vec::new();
    for name in NicModel::built_in_names() {
        let model = NicModel::built_in(name).unwrap();
        drawings.push(Drawing::of_model(&model));
        let mut nic = ConfiguredNic::new(&model, 4).unwrap();
        let to = FilterMatch::to(Transport::Udp, "10.0.0.1".parse().unwrap(), 53);
        for (table, description) in model.table_ids() {
            // Some tables refuse this filter.
            let _ = nic.insert(Filter::new(table, *description.priorities().start(), to, QueueId(2)));
        }
        drawings.push(Drawing::of_configured(&ConfiguredGraph::of(&nic)));
    }
    drawings
}

#[test]
fn boxes_do_not_overlap_and_lie_within_the_picture() {
    let apart = |one: &Place, other: &Place| {
        one.x.abs_diff(other.x) * 2 >= one.width + other.width
            || one.y.abs_diff(other.y) * 2 >= one.height + other.height
    };
    for drawing in drawings() {
        let layout = layout(&drawing);
        for (index, one) in layout.boxes.iter().enumerate() {
            assert!(one.x + one.width / 2 <= layout.width && one.y + one.height / 2 <= layout.height);
            assert!(one.x >= one.width / 2 && one.y >= one.height / 2);
            for other in &layout.boxes[..index] {
                assert!(apart(one, other), "{}", drawing.title);
            }
        }
    }
}

#[test]
fn arrows_point_downwards() {
    for drawing in drawings() {
        let layout = layout(&drawing);
        for (arrow, passage) in drawing.arrows.iter().zip(&layout.passages) {
            let (from, to) = (&layout.boxes[arrow.from], &layout.boxes[arrow.to]);
            let heights: Vec<usize> =
                [from].into_iter().chain(passage).chain([to]).map(|place| place.y).collect();
            assert!(heights.is_sorted_by(|above, below| above < below), "{} {arrow:?}", drawing.title);
        }
    }
}

#[test]
fn every_box_and_arrow_is_in_both_renderings() {
    for drawing in drawings() {
        let (dot, svg) = (drawing.to_dot(), drawing.to_svg());
        assert_eq!(dot.matches(" -> ").count(), drawing.arrows.len());
        assert_eq!(svg.matches("marker-end").count(), drawing.arrows.len());
        assert_eq!(dot.matches(" [label=\"").count() - labels(&drawing), drawing.vertices.len());
        // One rectangle more than boxes: the background.
        assert_eq!(svg.matches("<rect").count(), drawing.vertices.len() + 1);
        for tag in ["svg", "text", "title"] {
            assert_eq!(svg.matches(&format!("<{tag}")).count(), svg.matches(&format!("</{tag}>")).count());
        }
    }
}

#[test]
fn very_many_filters_are_one_box() {
    let model = NicModel::built_in("sfc9020").unwrap();
    let mut nic = ConfiguredNic::new(&model, 4).unwrap();
    let table = model.table("full").unwrap();
    let flow = |port| FlowTuple {
        transport: Transport::Tcp,
        source: "10.0.0.1".parse().unwrap(),
        source_port: port,
        destination: "10.0.0.2".parse().unwrap(),
        destination_port: 80,
    };
    for port in 0..8000 {
        let filter = Filter::new(table, 0, FilterMatch::exact(&flow(port)), QueueId(port % 4));
        nic.insert(Filter { spread: port % 5 == 0, ..filter }).unwrap();
    }
    let drawing = Drawing::of_configured(&ConfiguredGraph::of(&nic));
    assert!(drawing.vertices.len() < 24, "{}", drawing.vertices.len());
    let svg = drawing.to_svg();
    assert!(svg.contains(">8000 filters<") && svg.len() < 20_000, "{}", svg.len());
    // The box of the filters has arrows to each of four queues and to the next node.
    let of_table = |vertex: &Vertex| vertex.lines.iter().any(|line| line == "8000 filters");
    let place = drawing.vertices.iter().position(of_table).unwrap();
    let targets: BTreeSet<usize> =
        drawing.arrows.iter().filter(|arrow| arrow.from == place).map(|arrow| arrow.to).collect();
    assert_eq!(targets.len(), 4 + 1);
}

fn labels(drawing: &Drawing) -> usize {
    drawing.arrows.iter().filter(|arrow| !arrow.label.is_empty()).count()
}

#[test]
fn text_cannot_leave_its_place() {
    let drawing = Drawing {
        title: "a\"b</title>&".to_owned(),
        vertices: vec![Vertex { lines: vec!["<x>\"".to_owned(), "\\".to_owned()], shape: Shape::Function }],
        arrows: Vec::new(),
    };
    assert!(drawing.to_dot().contains("label=\"<x>\\\"\\n\\\\\""));
    let svg = drawing.to_svg();
    assert!(svg.contains("&lt;x&gt;&quot;") && svg.contains("<title>a&quot;b&lt;/title&gt;&amp;</title>"));
}
