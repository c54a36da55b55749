//! Lines, markers and axes. Lines differ in marker and dash as well as in colour, so that a print in grey can be read.

use super::{Line, Panel, Point};
use crate::error::{Error, Result, printable};
use plotters::{
    coord::{
        Shift,
        ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter},
    },
    element::DashedPathElement,
    prelude::*,
};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const WIDTH: u32 = 760;
const CHART: u32 = 400;
const ENTRY: u32 = 20;
/// Decades that are marked on a logarithmic axis.
const MOST_DECADES: usize = 8;
/// Pixels that the bars over one count share.
const SPREAD: i32 = 40;
/// Title above, note and margin below.
const FRAME: u32 = 70;
/// Okabe and Ito's colours, told apart by colour-blind readers too; the lightest is left out.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 0, 0),
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
];
/// Dash and gap in pixels; a gap of none is a whole line.
const DASHES: [(u32, u32); 4] = [(1, 0), (9, 4), (4, 4), (14, 4)];
const DOTS: (u32, u32) = (1, 4);
/// Outlines of markers, around their point.
const MARKERS: [&[(i32, i32)]; 5] = [
    &[(-4, -2), (-2, -4), (2, -4), (4, -2), (4, 2), (2, 4), (-2, 4), (-4, 2)],
    &[(0, -5), (5, 4), (-5, 4)],
    &[(-4, -4), (4, -4), (4, 4), (-4, 4)],
    &[(0, -6), (5, 0), (0, 6), (-5, 0)],
    &[(0, 5), (5, -4), (-5, -4)],
];

/// All panels, one below the other.
pub(super) fn svg(panels: &[Panel]) -> Result<String> {
    let height = |panel: &Panel| FRAME + CHART + ENTRY * panel.lines.len() as u32;
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH, panels.iter().map(height).sum::<u32>().max(1)));
        let mut rest = root.into_drawing_area();
        failed(rest.fill(&WHITE))?;
        for panel in panels {
            let (area, below) = rest.split_vertically(height(panel));
            draw(&area, panel)?;
            rest = below;
        }
        failed(rest.present())?;
    }
    Ok(text)
}

fn failed<T, E: std::fmt::Display>(result: std::result::Result<T, E>) -> Result<T> {
    result.map_err(|error| Error::Internal(format!("the picture could not be drawn: {error}")))
}

/// An axis: the numbers that it reaches from and to, and those it is marked at; logarithms, where it is logarithmic.
#[derive(Clone)]
struct Axis {
    log: bool,
    low: f64,
    high: f64,
    marks: Vec<f64>,
}

impl Axis {
    /// Over counts: marked where something was measured.
    fn counts(numbers: impl Iterator<Item = f64>) -> Self {
        let mut marks: Vec<f64> = numbers.map(f64::log2).collect();
        marks.sort_by(f64::total_cmp);
        // marks closer than a tenth of a doubling would overprint each other
        marks.dedup_by(|a, b| *a - *b < 0.1);
        let (low, high) = (marks.first().copied().unwrap_or(0.0), marks.last().copied().unwrap_or(1.0));
        Self { log: true, low: low - 0.4, high: high + 0.4, marks }
    }

    /// Over what was measured: from zero, or in the steps 1, 2, 5 of each decade.
    fn values(log: bool, numbers: impl Iterator<Item = f64>) -> Self {
        let (least, most) = numbers.fold((f64::INFINITY, f64::MIN_POSITIVE), |(a, b), n| (a.min(n), b.max(n)));
        if !log {
            let size = 10f64.powf((most / 4.0).log10().floor());
            let step = [1.0, 2.0, 5.0, 10.0].map(|k| k * size).into_iter().find(|step| most / step <= 6.0);
            let step = step.unwrap_or(size);
            let marks = (0..=7).map(|k| f64::from(k) * step).filter(|mark| *mark <= most * 1.08).collect();
            return Self { log, low: 0.0, high: most * 1.08, marks };
        }
        let (low, high) = ((least * 0.8).log10(), (most * 1.25).log10());
        let decades = low.floor() as i32..=high.ceil() as i32;
        // the more decades, the fewer of them are marked
        let every = decades.clone().count().div_ceil(MOST_DECADES);
        let within: &[f64] = if every == 1 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let marks = decades.step_by(every).flat_map(|decade| within.iter().map(move |k| k.log10() + f64::from(decade)));
        Self { log, low, high, marks: marks.filter(|mark| (low..=high).contains(mark)).collect() }
    }

    fn place(&self, number: f64) -> f64 {
        if self.log { number.log10() } else { number }
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        from + ((value - self.low) / (self.high - self.low) * f64::from(to - from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // the light lines between marks would be asked for as points without labels: there are none
        if hint.weight().allow_light_points() { Vec::new() } else { self.marks.clone() }
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for Axis {}

/// A number as short as it can be told.
fn short(number: f64) -> String {
    if !(1e-3..1e7).contains(&number) && number != 0.0 {
        return format!("{number:.0e}");
    }
    let digits = if number >= 9.95 {
        0
    } else if number >= 0.095 {
        1
    } else {
        3
    };
    let text = format!("{number:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

fn draw(area: &Area<'_>, panel: &Panel) -> Result<()> {
    let points = || panel.lines.iter().flat_map(|line| &line.points);
    let reach = |point: &Point| {
        let (low, high) = point.bar.unwrap_or((point.y, point.y));
        [Some(point.y), Some(low), Some(high), point.bound].into_iter().flatten()
    };
    let x = Axis::counts(points().map(|point| point.x));
    let y = Axis::values(panel.log_y, points().flat_map(reach));
    let (chart_area, legend) = area.split_vertically(CHART + 30);
    let mut chart = failed(
        ChartBuilder::on(&chart_area)
            .caption(printable(&panel.title), ("sans-serif", 20))
            .margin(10)
            .margin_right(24)
            .x_label_area_size(44)
            .y_label_area_size(76)
            .build_cartesian_2d(x.clone(), y.clone()),
    )?;
    failed(
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.15))
            .label_style(("sans-serif", 14))
            .x_desc(&panel.x)
            .y_desc(&panel.y)
            .x_label_formatter(&|mark| short(mark.exp2()))
            .y_label_formatter(&|mark| short(if panel.log_y { 10f64.powf(*mark) } else { *mark }))
            .draw(),
    )?;
    let at = |point: &Point, number: f64| (point.x.log2(), y.place(number));
    for (index, line) in panel.lines.iter().enumerate() {
        let aside = beside(index, panel.lines.len());
        let pixel = |place: (f64, f64)| {
            let (x, y) = chart.backend_coord(&place);
            (x + aside, y)
        };
        let style = Style::of(index);
        style.line(&chart_area, line.points.iter().map(|point| pixel(at(point, point.y))).collect(), style.dash)?;
        let bounds = line.points.iter().filter_map(|point| Some(pixel(at(point, point.bound?)))).collect::<Vec<_>>();
        for &bound in &bounds {
            style.mark(&chart_area, bound, false)?;
        }
        style.line(&chart_area, bounds, DOTS)?;
        for point in &line.points {
            if let Some((low, high)) = point.bar {
                style.bar(&chart_area, pixel(at(point, low)), pixel(at(point, high)))?;
            }
            style.mark(&chart_area, pixel(at(point, point.y)), true)?;
        }
    }
    explain(&legend, &panel.lines, &panel.note)
}

/// Pixels that a line is moved by, so that bars over the same count stand side by side.
fn beside(index: usize, lines: usize) -> i32 {
    let apart = (SPREAD / lines.max(1) as i32).min(10);
    (2 * index as i32 - (lines as i32 - 1)) * apart / 2
}

/// The legend, and the note below it.
fn explain(area: &Area<'_>, lines: &[Line], note: &str) -> Result<()> {
    let font = ("sans-serif", 14).into_text_style(area);
    for (index, line) in lines.iter().enumerate() {
        let y = (index as u32 * ENTRY) as i32 + 8;
        let style = Style::of(index);
        // pixels of the whole picture, as those of the chart are
        let origin = area.get_base_pixel();
        let from = (origin.0 + 86, origin.1 + y);
        style.line(area, vec![from, (from.0 + 44, from.1)], style.dash)?;
        style.mark(area, (from.0 + 22, from.1), true)?;
        failed(area.draw_text(&printable(&line.label), &font, (140, y - 7)))?;
    }
    failed(area.draw_text(note, &font, (86, (lines.len() as u32 * ENTRY) as i32 + 6)))
}

/// How a line looks.
struct Style {
    colour: RGBColor,
    dash: (u32, u32),
    marker: &'static [(i32, i32)],
}

impl Style {
    /// No two of the first 140 are alike, and neighbours differ in everything.
    fn of(index: usize) -> Self {
        Self {
            colour: COLOURS[index % COLOURS.len()],
            dash: DASHES[index % DASHES.len()],
            marker: MARKERS[index % MARKERS.len()],
        }
    }

    fn line(&self, area: &Area<'_>, points: Vec<(i32, i32)>, dash: (u32, u32)) -> Result<()> {
        let (area, points) = local(area, points);
        match dash {
            (_, 0) => failed(area.draw(&PathElement::new(points, self.colour.stroke_width(2)))),
            (dash, gap) => {
                let element = DashedPathElement::new(points, dash, gap, self.colour.stroke_width(2));
                failed(area.draw(&element))
            }
        }
    }

    fn bar(&self, area: &Area<'_>, low: (i32, i32), high: (i32, i32)) -> Result<()> {
        for (from, to) in
            [(low, high), ((low.0 - 4, low.1), (low.0 + 4, low.1)), ((high.0 - 4, high.1), (high.0 + 4, high.1))]
        {
            let (area, points) = local(area, vec![from, to]);
            failed(area.draw(&PathElement::new(points, self.colour.stroke_width(1))))?;
        }
        Ok(())
    }

    /// Full where something was measured, hollow where it could be at best.
    fn mark(&self, area: &Area<'_>, at: (i32, i32), full: bool) -> Result<()> {
        let mut outline: Vec<_> = self.marker.iter().map(|(x, y)| (at.0 + x, at.1 + y)).collect();
        outline.push(outline[0]);
        let (area, outline) = local(area, outline);
        let inside = if full { self.colour } else { WHITE };
        failed(area.draw(&Polygon::new(outline.clone(), inside.filled())))?;
        failed(area.draw(&PathElement::new(outline, self.colour.stroke_width(2))))
    }
}

/// Points in the pixels of the picture, in those of an area of it.
fn local<'a, 'b>(area: &'a Area<'b>, points: Vec<(i32, i32)>) -> (&'a Area<'b>, Vec<(i32, i32)>) {
    let origin = area.get_base_pixel();
    (area, points.into_iter().map(|(x, y)| (x - origin.0, y - origin.1)).collect())
}
