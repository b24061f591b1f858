//! SVG charts of a metric against an axis, with one line per series and the range of the repeats.
//!
//! Lines differ by dashes, markers and darkness, so a chart is readable in grey and without colour vision.
//! The horizontal axis spaces the measured values equally, because the values of a sweep often double.

use plotters::coord::Shift;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::coord::types::RangedCoordf64;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::series::DashedLineSeries;

const WIDTH: u32 = 720;
const HEIGHT: u32 = 420;
const LEGEND_ROW: u32 = 18;
const LEGEND_COLUMNS: usize = 4;
const FONT: &str = "sans-serif";
/// Smallest value that a logarithmic axis shows, because 0 has no logarithm.
const LEAST_LOGARITHMIC: f64 = 1e-12;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chart {
    pub title: String,
    pub across: String,
    pub metric: String,
    pub places: Vec<String>,
    pub logarithmic: bool,
    pub lines: Vec<Line>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    pub name: String,
    pub points: Vec<ChartPoint>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChartPoint {
    /// Index in [`Chart::places`].
    pub place: usize,
    pub value: f64,
    /// Minimum and maximum of the repeats.
    pub range: (f64, f64),
}

#[derive(Debug, thiserror::Error)]
#[error("cannot draw the chart {title:?}: {problem}")]
pub struct ChartError {
    pub title: String,
    pub problem: String,
}

#[derive(Clone, Copy)]
struct Look {
    colour: RGBColor,
    /// Lengths of a dash and of the gap after it, in pixels. `None` for a solid line.
    dashes: Option<(u32, u32)>,
    marker: Marker,
}

#[derive(Clone, Copy)]
enum Marker {
    Disc,
    Circle,
    Square,
    Frame,
    Triangle,
    Diamond,
}

/// Returns the style of a line. The first 24 lines differ in their marker or dashes. Each colour has a
/// different darkness.
fn look(number: usize) -> Look {
    const COLOURS: [RGBColor; 5] = [
        RGBColor(0, 0, 0),
        RGBColor(0, 70, 140),
        RGBColor(150, 50, 0),
        RGBColor(70, 130, 60),
        RGBColor(140, 120, 160),
    ];
    const DASHES: [Option<(u32, u32)>; 4] = [None, Some((9, 4)), Some((3, 3)), Some((14, 6))];
    const MARKERS: [Marker; 6] =
        [Marker::Disc, Marker::Circle, Marker::Square, Marker::Frame, Marker::Triangle, Marker::Diamond];
    Look {
        colour: COLOURS[number % COLOURS.len()],
        dashes: DASHES[(number + number / (MARKERS.len() * 2)) % DASHES.len()],
        marker: MARKERS[number % MARKERS.len()],
    }
}

/// Returns the chart as SVG text.
///
/// # Errors
/// Returns an error if there is no data, a value is not finite, a point is outside the axis, or drawing
/// fails.
pub fn svg(chart: &Chart) -> Result<String, ChartError> {
    let fail = |problem: String| ChartError { title: chart.title.clone(), problem };
    let all = || chart.lines.iter().flat_map(|line| &line.points);
    let values = || all().flat_map(|point| [point.value, point.range.0, point.range.1]);
    if values().next().is_none() {
        return Err(fail("nothing was measured".to_owned()));
    }
    if values().any(|value| !value.is_finite()) || all().any(|point| point.place >= chart.places.len()) {
        return Err(fail("a value that is not a number, or outside the axis".to_owned()));
    }
    let mut text = String::new();
    let legend = chart.lines.len().div_ceil(LEGEND_COLUMNS) as u32 * LEGEND_ROW + 8;
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH, HEIGHT + legend)).into_drawing_area();
        draw(&root, chart).map_err(|error| fail(error.to_string()))?;
        root.present().map_err(|error| fail(error.to_string()))?;
    }
    Ok(text)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawError = DrawingAreaErrorKind<std::io::Error>;

fn draw(root: &Area<'_>, chart: &Chart) -> Result<(), DrawError> {
    root.fill(&WHITE)?;
    let (upper, lower) = root.split_vertically(HEIGHT);
    let all = || chart.lines.iter().flat_map(|line| &line.points);
    let most = all().map(|point| point.range.1.max(point.value)).fold(0.0, f64::max);
    let places = -0.5..chart.places.len() as f64 - 0.5;
    let mut builder = ChartBuilder::on(&upper);
    builder.caption(&chart.title, (FONT, 18)).margin(10).x_label_area_size(44).y_label_area_size(72);
    if chart.logarithmic {
        let positive = all().flat_map(|point| [point.value, point.range.0]).filter(|value| *value > 0.0);
        let least = positive.fold(most, f64::min).max(LEAST_LOGARITHMIC);
        let range = least / 1.3..(most.max(least) * 1.3);
        let mut context = builder.build_cartesian_2d(places, range.log_scale())?;
        axes(&mut context, chart)?;
        lines(&mut context, chart, least / 1.3)?;
    } else {
        let top = if most > 0.0 { most * 1.06 } else { 1.0 };
        let mut context = builder.build_cartesian_2d(places, 0.0..top)?;
        axes(&mut context, chart)?;
        lines(&mut context, chart, 0.0)?;
    }
    draw_legend(&lower, chart)
}

type Context<'a, 'b, Y> = ChartContext<'b, SVGBackend<'a>, Cartesian2d<RangedCoordf64, Y>>;

fn axes<'a, Y>(context: &mut Context<'a, '_, Y>, chart: &Chart) -> Result<(), DrawError>
where
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let name = |place: &f64| {
        let number = place.round();
        // Tick marks can be between two positions.
        if (place - number).abs() > 1e-6 || number < 0.0 {
            return String::new();
        }
        chart.places.get(number as usize).cloned().unwrap_or_default()
    };
    context
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(chart.places.len() * 2 + 1)
        .x_label_formatter(&name)
        .y_label_formatter(&|value| short(*value))
        .x_desc(&chart.across)
        .y_desc(&chart.metric)
        .label_style((FONT, 12))
        .axis_desc_style((FONT, 13))
        .light_line_style(WHITE)
        .bold_line_style(RGBColor(215, 215, 215))
        .draw()
}

fn short(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 {
        "0".to_owned()
    } else if size >= 100.0 {
        format!("{value:.0}")
    } else if size >= 10.0 {
        format!("{value:.1}")
    } else if size >= 0.1 {
        format!("{value:.2}")
    } else {
        format!("{value:.1e}")
    }
}

fn lines<'a, Y>(context: &mut Context<'a, '_, Y>, chart: &Chart, floor: f64) -> Result<(), DrawError>
where
    Y: Ranged<ValueType = f64>,
{
    let count = chart.lines.len().max(1) as f64;
    for (number, line) in chart.lines.iter().enumerate() {
        let Look { colour, dashes, marker } = look(number);
        // Shift the points and range bars of each line, because several lines have points at the same
        // position.
        let shift = (number as f64 + 0.5) / count * 0.3 - 0.15;
        let at = |point: &ChartPoint, value: f64| (point.place as f64 + shift, value.max(floor));
        let points: Vec<(f64, f64)> = line.points.iter().map(|point| at(point, point.value)).collect();
        match dashes {
            None => context.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?,
            Some((dash, gap)) => context.draw_series(DashedLineSeries::new(
                points.iter().copied(),
                dash,
                gap,
                colour.stroke_width(2),
            ))?,
        };
        let bars = line.points.iter().filter(|point| point.range.1 > point.range.0);
        context.draw_series(bars.flat_map(|point| {
            let ((x, low), (_, high)) = (at(point, point.range.0), at(point, point.range.1));
            let stroke = |points: Vec<(f64, f64)>| PathElement::new(points, colour.stroke_width(1));
            [
                stroke(vec![(x, low), (x, high)]),
                stroke(vec![(x - 0.02, low), (x + 0.02, low)]),
                stroke(vec![(x - 0.02, high), (x + 0.02, high)]),
            ]
        }))?;
        context.draw_series(points.into_iter().map(|place| {
            EmptyElement::at(place)
                + Polygon::new(outline(marker), filling(marker, colour).filled())
                + PathElement::new(outline(marker), colour.stroke_width(1))
        }))?;
    }
    Ok(())
}

/// Returns the outline of a marker, in pixels relative to its centre.
fn outline(marker: Marker) -> Vec<(i32, i32)> {
    match marker {
        Marker::Disc | Marker::Circle => {
            vec![(4, 0), (3, 3), (0, 4), (-3, 3), (-4, 0), (-3, -3), (0, -4), (3, -3), (4, 0)]
        }
        Marker::Square | Marker::Frame => vec![(-3, -3), (3, -3), (3, 3), (-3, 3), (-3, -3)],
        Marker::Triangle => vec![(-4, 3), (0, -5), (4, 3), (-4, 3)],
        Marker::Diamond => vec![(0, -5), (4, 0), (0, 5), (-4, 0), (0, -5)],
    }
}

fn filling(marker: Marker, colour: RGBColor) -> RGBColor {
    match marker {
        Marker::Disc | Marker::Square | Marker::Triangle => colour,
        Marker::Circle | Marker::Frame | Marker::Diamond => WHITE,
    }
}

fn draw_legend(area: &Area<'_>, chart: &Chart) -> Result<(), DrawError> {
    let column = (WIDTH as usize - 40) / LEGEND_COLUMNS;
    for (number, line) in chart.lines.iter().enumerate() {
        let Look { colour, dashes, marker } = look(number);
        let x = 30 + (number % LEGEND_COLUMNS * column) as i32;
        let y = (number / LEGEND_COLUMNS) as i32 * LEGEND_ROW as i32 + 10;
        let ends = [(x, y), (x + 34, y)];
        match dashes {
            None => area.draw(&PathElement::new(ends.to_vec(), colour.stroke_width(2)))?,
            Some((dash, gap)) => {
                area.draw(&DashedPathElement::new(ends, dash, gap, colour.stroke_width(2)))?;
            }
        }
        let around: Vec<(i32, i32)> =
            outline(marker).into_iter().map(|(dx, dy)| (x + 17 + dx, y + dy)).collect();
        area.draw(&Polygon::new(around.clone(), filling(marker, colour).filled()))?;
        area.draw(&PathElement::new(around, colour.stroke_width(1)))?;
        area.draw(&Text::new(line.name.clone(), (x + 40, y - 6), (FONT, 12)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn chart(lines: usize, logarithmic: bool) -> Chart {
        let point = |place: usize, value: f64| ChartPoint { place, value, range: (value * 0.9, value * 1.1) };
        let line = |number: usize| Line {
            name: format!("setup-{number}"),
            points: (0..3)
                .map(|place| point(place, (number + 1) as f64 * 10_f64.powi(place as i32)))
                .collect(),
        };
        Chart {
            title: "Latency <of> all".to_owned(),
            across: "clients".to_owned(),
            metric: "latency mean, µs".to_owned(),
            places: ["1", "8", "64KiB"].map(str::to_owned).to_vec(),
            logarithmic,
            lines: (0..lines).map(line).collect(),
        }
    }

    #[test]
    fn a_chart_has_its_words_its_lines_and_their_spread() {
        for logarithmic in [false, true] {
            let text = svg(&chart(12, logarithmic)).unwrap();
            assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"), "{text:.100}");
            for word in
                ["Latency &lt;of&gt; all", "clients", "latency mean, µs", "64KiB", "setup-0", "setup-11"]
            {
                assert!(text.contains(word), "{word}");
            }
            // The first line is solid. The second line is dashed, so it has more SVG elements.
            let pieces =
                |colour: &str| text.matches(&format!("stroke=\"{colour}\" stroke-width=\"2\"")).count();
            assert!(
                pieces("#00468C") > 3 * pieces("#000000").min(3),
                "{} {}",
                pieces("#00468C"),
                pieces("#000000")
            );
        }
    }

    #[test]
    fn lines_can_be_told_apart_without_colour() {
        let looks: Vec<_> = (0..20)
            .map(|number| {
                let Look { dashes, marker, colour } = look(number);
                (dashes, outline(marker), filling(marker, colour) == WHITE)
            })
            .collect();
        for (number, look) in looks.iter().enumerate() {
            assert!(!looks[..number].contains(look), "{number}");
        }
    }

    #[test]
    fn what_cannot_be_drawn_is_an_error() {
        assert!(svg(&chart(0, false)).is_err());
        let mut broken = chart(1, false);
        broken.lines[0].points[0].value = f64::NAN;
        assert!(svg(&broken).is_err());
        let mut broken = chart(1, false);
        broken.places.pop();
        assert!(svg(&broken).is_err());
        // The logarithm of zero is undefined, but the chart must still draw the point.
        let mut zeros = chart(1, true);
        for point in &mut zeros.lines[0].points {
            (point.value, point.range) = (0.0, (0.0, 0.0));
        }
        svg(&zeros).unwrap();
    }
}
