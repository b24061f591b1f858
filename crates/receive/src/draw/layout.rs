//! Places the boxes of a drawing in layers from top to bottom (Sugiyama, Tagawa, Toda, IEEE SMC 1981).
//!
//! A box is one layer below the lowest box that has an arrow to it. An arrow over several layers passes a
//! reserved gap in each layer, so that it crosses no box. Within a layer, boxes are ordered by the mean
//! position of their neighbours, which removes most crossings.

use super::Drawing;

/// Width of a character and height of a text line, pixels.
pub(super) const CHARACTER: usize = 7;
pub(super) const LINE: usize = 16;
/// Space around text, between boxes and between layers, pixels.
const PADDING: usize = 8;
const GAP: usize = 24;
const LAYER_GAP: usize = 56;
/// Width of the gap that is reserved for an arrow, pixels.
const PASSAGE: usize = 16;
/// Number of passes that improve the order within layers.
const SWEEPS: usize = 8;

/// Centre and size of a box, or of the gap reserved for an arrow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) x: usize,
    pub(super) y: usize,
    pub(super) width: usize,
    pub(super) height: usize,
    layer: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) boxes: Vec<Place>,
    /// Gaps that each arrow passes, from top to bottom.
    pub(super) passages: Vec<Vec<Place>>,
    pub(super) width: usize,
    pub(super) height: usize,
}

pub(super) fn layout(drawing: &Drawing) -> Layout {
    let mut places: Vec<Place> = drawing.vertices.iter().map(size).collect();
    for (index, layer) in layers(drawing).into_iter().enumerate() {
        places[index].layer = layer;
    }
    let boxes = places.len();
    let mut joined: Vec<(usize, usize)> = Vec::new();
    let mut ways: Vec<Vec<usize>> = Vec::new();
    for arrow in &drawing.arrows {
        let (first, last) = (places[arrow.from].layer, places[arrow.to].layer);
        let mut before = arrow.from;
        let mut way = Vec::new();
        for layer in first + 1..last {
            places.push(Place { width: PASSAGE, height: 0, layer, ..Place::default() });
            joined.push((before, places.len() - 1));
            before = places.len() - 1;
            way.push(before);
        }
        joined.push((before, arrow.to));
        ways.push(way);
    }
    let mut rows = rows(&places);
    for sweep in 0..SWEEPS {
        order(&mut rows, &joined, places.len(), sweep % 2 == 0);
    }
    let (width, height) = settle(&mut places, &rows);
    let passages = ways.iter().map(|way| way.iter().map(|index| places[*index]).collect()).collect();
    places.truncate(boxes);
    Layout { boxes: places, passages, width, height }
}

fn size(vertex: &super::Vertex) -> Place {
    let longest = vertex.lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
    Place {
        width: longest * CHARACTER + 2 * PADDING,
        height: vertex.lines.len() * LINE + PADDING,
        ..Place::default()
    }
}

/// Returns the layer of each vertex: the length of the longest path to it. One pass suffices, because arrows
/// lead only to later vertices.
fn layers(drawing: &Drawing) -> Vec<usize> {
    let mut arrows: Vec<(usize, usize)> = drawing.arrows.iter().map(|arrow| (arrow.from, arrow.to)).collect();
    arrows.sort_unstable();
    let mut layers = vec![0; drawing.vertices.len()];
    for (from, to) in arrows {
        layers[to] = layers[to].max(layers[from] + 1);
    }
    layers
}

fn rows(places: &[Place]) -> Vec<Vec<usize>> {
    let mut rows = vec![Vec::new(); places.iter().map(|place| place.layer + 1).max().unwrap_or(0)];
    for (index, place) in places.iter().enumerate() {
        rows[place.layer].push(index);
    }
    rows
}

/// Orders each layer by the mean position of its neighbours in the layer above (or below).
fn order(rows: &mut [Vec<usize>], joined: &[(usize, usize)], count: usize, downwards: bool) {
    let mut neighbours: Vec<Vec<usize>> = vec![Vec::new(); count];
    for (from, to) in joined {
        let (one, other) = if downwards { (*to, *from) } else { (*from, *to) };
        neighbours[one].push(other);
    }
    let mut position = vec![0.0_f64; count];
    let note = |row: &[usize], position: &mut Vec<f64>| {
        let share = 1.0 / (row.len() + 1) as f64;
        for (place, index) in row.iter().enumerate() {
            position[*index] = (place + 1) as f64 * share;
        }
    };
    for row in rows.iter() {
        note(row, &mut position);
    }
    let turns: Vec<usize> =
        if downwards { (0..rows.len()).collect() } else { (0..rows.len()).rev().collect() };
    for turn in turns {
        let mean = |index: &usize| {
            let near = &neighbours[*index];
            if near.is_empty() {
                position[*index]
            } else {
                near.iter().map(|other| position[*other]).sum::<f64>() / near.len() as f64
            }
        };
        let mut row: Vec<(f64, usize)> = rows[turn].iter().map(|index| (mean(index), *index)).collect();
        row.sort_by(|one, other| one.0.total_cmp(&other.0));
        rows[turn] = row.into_iter().map(|(_, index)| index).collect();
        note(&rows[turn], &mut position);
    }
}

/// Assigns coordinates: layers below each other, each centred. Returns the total width and height.
fn settle(places: &mut [Place], rows: &[Vec<usize>]) -> (usize, usize) {
    let row_width = |places: &[Place], row: &[usize]| -> usize {
        row.iter().map(|index| places[*index].width + GAP).sum::<usize>() + GAP
    };
    let width = rows.iter().map(|row| row_width(places, row)).max().unwrap_or(0);
    let mut top = GAP;
    for row in rows {
        let height = row.iter().map(|index| places[*index].height).max().unwrap_or(0);
        let mut left = (width - row_width(places, row)) / 2 + GAP;
        for index in row {
            let place = &mut places[*index];
            place.x = left + place.width / 2;
            place.y = top + height / 2;
            left += place.width + GAP;
        }
        top += height + LAYER_GAP;
    }
    (width, top + GAP)
}
