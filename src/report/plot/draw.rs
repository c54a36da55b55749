//! Renders charts as SVG. Lines differ in marker and dash as well as in colour, so that a grey print is readable.

use super::chart::{Line, Panel, Point};
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
/// First and last pixel of an axis.
type PixelRange = (i32, i32);

#[derive(Clone, Copy)]
struct Pixel {
    x: i32,
    y: i32,
}

impl Pixel {
    fn shifted(self, dx: i32, dy: i32) -> Self {
        Self { x: self.x + dx, y: self.y + dy }
    }
}

const WIDTH: u32 = 760;
const CHART: u32 = 400;
const ENTRY: u32 = 20;
/// Maximum labelled decades of a logarithmic axis.
const MAX_DECADES: usize = 8;
/// Width in pixels that the bars at one x value share.
const SPREAD: i32 = 40;
/// Height of the title, the note and the margins.
const FRAME: u32 = 70;
/// Okabe and Ito's colours without the lightest one; colour-blind readers can distinguish them.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 0, 0),
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
];
/// Lengths in pixels. A gap of 0 is a solid line.
#[derive(Clone, Copy)]
struct Dash {
    dash: u32,
    gap: u32,
}

const DASHES: [Dash; 4] =
    [Dash { dash: 1, gap: 0 }, Dash { dash: 9, gap: 4 }, Dash { dash: 4, gap: 4 }, Dash { dash: 14, gap: 4 }];
const DOTS: Dash = Dash { dash: 1, gap: 4 };
/// Outlines of markers, relative to their point.
const MARKERS: [&[(i32, i32)]; 5] = [
    &[(-4, -2), (-2, -4), (2, -4), (4, -2), (4, 2), (2, 4), (-2, 4), (-4, 2)],
    &[(0, -5), (5, 4), (-5, 4)],
    &[(-4, -4), (4, -4), (4, 4), (-4, 4)],
    &[(0, -6), (5, 0), (0, 6), (-5, 0)],
    &[(0, 5), (5, -4), (-5, -4)],
];

pub(super) fn svg(panels: &[Panel]) -> Result<String> {
    let height = |panel: &Panel| FRAME + CHART + ENTRY * panel.lines.len() as u32;
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH, panels.iter().map(height).sum::<u32>().max(1)));
        let mut rest = root.into_drawing_area();
        drawn(rest.fill(&WHITE))?;
        for panel in panels {
            let (area, below) = rest.split_vertically(height(panel));
            draw(&area, panel)?;
            rest = below;
        }
        drawn(rest.present())?;
    }
    Ok(text)
}

fn drawn<T, E: std::fmt::Display>(result: std::result::Result<T, E>) -> Result<T> {
    result.map_err(|error| Error::Internal(format!("cannot draw the chart: {error}")))
}

/// An axis: its range and ticks. The values of a logarithmic axis are logarithms.
#[derive(Clone)]
struct Axis {
    log: bool,
    low: f64,
    high: f64,
    ticks: Vec<f64>,
}

impl Axis {
    /// Creates the x axis, to base 2, with ticks at the measured counts.
    fn counts(numbers: impl Iterator<Item = f64>) -> Self {
        let mut ticks: Vec<f64> = numbers.map(f64::log2).collect();
        ticks.sort_by(f64::total_cmp);
        // the labels of ticks closer than a tenth of a doubling would overlap
        ticks.dedup_by(|a, b| *a - *b < 0.1);
        let low = ticks.first().copied().unwrap_or(0.0);
        let high = ticks.last().copied().unwrap_or(1.0);
        Self { log: true, low: low - 0.4, high: high + 0.4, ticks }
    }

    /// Creates the y axis: linear from zero, or logarithmic with ticks at 1, 2 and 5 of each decade.
    fn values(log: bool, numbers: impl Iterator<Item = f64>) -> Self {
        let (min, max) = numbers.fold((f64::INFINITY, f64::MIN_POSITIVE), |(a, b), n| (a.min(n), b.max(n)));
        if !log {
            let size = 10f64.powf((max / 4.0).log10().floor());
            let step = [1.0, 2.0, 5.0, 10.0].map(|k| k * size).into_iter().find(|step| max / step <= 6.0);
            let step = step.unwrap_or(size);
            let ticks = (0..=7).map(|k| f64::from(k) * step).filter(|tick| *tick <= max * 1.08).collect();
            return Self { log, low: 0.0, high: max * 1.08, ticks };
        }
        let low = (min * 0.8).log10();
        let high = (max * 1.25).log10();
        let decades = low.floor() as i32..=high.ceil() as i32;
        // label every n-th decade only if there are many
        let every = decades.clone().count().div_ceil(MAX_DECADES);
        let factors: &[f64] = if every == 1 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let ticks =
            decades.step_by(every).flat_map(|decade| factors.iter().map(move |k| k.log10() + f64::from(decade)));
        Self { log, low, high, ticks: ticks.filter(|tick| (low..=high).contains(tick)).collect() }
    }

    fn coordinate(&self, number: f64) -> f64 {
        if self.log { number.log10() } else { number }
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): PixelRange) -> i32 {
        from + ((value - self.low) / (self.high - self.low) * f64::from(to - from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // light points would be lines without labels between the ticks; there are none
        if hint.weight().allow_light_points() { Vec::new() } else { self.ticks.clone() }
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for Axis {}

fn short(number: f64) -> String {
    if !(1e-3..1e7).contains(&number) && number != 0.0 {
        return format!("{number:.0e}");
    }
    let digits = match number {
        _ if number >= 9.95 => 0,
        _ if number >= 0.095 => 1,
        _ => 3,
    };
    let text = format!("{number:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

fn draw(area: &Area<'_>, panel: &Panel) -> Result<()> {
    let points = || panel.lines.iter().flat_map(|line| &line.points);
    let y_values = |point: &Point| {
        let (low, high) = point.bar.unwrap_or((point.y, point.y));
        [Some(point.y), Some(low), Some(high), point.limit].into_iter().flatten()
    };
    let x = Axis::counts(points().map(|point| point.x));
    let y = Axis::values(panel.log_y, points().flat_map(y_values));
    let (chart_area, legend) = area.split_vertically(CHART + 30);
    let mut chart = drawn(
        ChartBuilder::on(&chart_area)
            .caption(printable(&panel.title), ("sans-serif", 20))
            .margin(10)
            .margin_right(24)
            .x_label_area_size(44)
            .y_label_area_size(76)
            .build_cartesian_2d(x.clone(), y.clone()),
    )?;
    drawn(
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.15))
            .label_style(("sans-serif", 14))
            .x_desc(&panel.x)
            .y_desc(&panel.y)
            .x_label_formatter(&|tick| short(tick.exp2()))
            .y_label_formatter(&|tick| short(if panel.log_y { 10f64.powf(*tick) } else { *tick }))
            .draw(),
    )?;
    for (index, line) in panel.lines.iter().enumerate() {
        let shift = horizontal_shift(index, panel.lines.len());
        let pixel = |point: &Point, number: f64| {
            let (x, y) = chart.backend_coord(&(point.x.log2(), y.coordinate(number)));
            Pixel { x: x + shift, y }
        };
        let style = Style::new(index);
        let values = line.points.iter().map(|point| pixel(point, point.y));
        style.line(&chart_area, values.collect(), style.dash)?;
        let limits = line.points.iter().filter_map(|point| Some(pixel(point, point.limit?)));
        let limits: Vec<_> = limits.collect();
        limits.iter().try_for_each(|&limit| style.marker(&chart_area, limit, false))?;
        style.line(&chart_area, limits, DOTS)?;
        for point in &line.points {
            if let Some((low, high)) = point.bar {
                style.bar(&chart_area, pixel(point, low), pixel(point, high))?;
            }
            style.marker(&chart_area, pixel(point, point.y), true)?;
        }
    }
    draw_legend(&legend, &panel.lines, &panel.note)
}

/// Returns the horizontal shift of a line in pixels, so that bars at the same x value do not overlap.
fn horizontal_shift(index: usize, lines: usize) -> i32 {
    let spacing = (SPREAD / lines.max(1) as i32).min(10);
    (2 * index as i32 - (lines as i32 - 1)) * spacing / 2
}

fn draw_legend(area: &Area<'_>, lines: &[Line], note: &str) -> Result<()> {
    let font = ("sans-serif", 14).into_text_style(area);
    for (index, line) in lines.iter().enumerate() {
        let y = (index as u32 * ENTRY) as i32 + 8;
        let style = Style::new(index);
        // styles draw in pixels of the complete picture
        let origin = area.get_base_pixel();
        let from = Pixel { x: origin.0 + 86, y: origin.1 + y };
        style.line(area, vec![from, from.shifted(44, 0)], style.dash)?;
        style.marker(area, from.shifted(22, 0), true)?;
        drawn(area.draw_text(&printable(&line.label), &font, (140, y - 7)))?;
    }
    drawn(area.draw_text(note, &font, (86, (lines.len() as u32 * ENTRY) as i32 + 6)))
}

struct Style {
    colour: RGBColor,
    dash: Dash,
    marker: &'static [(i32, i32)],
}

impl Style {
    /// Returns the style of a line. The first 140 styles are distinct, and consecutive ones differ in every property.
    fn new(index: usize) -> Self {
        Self {
            colour: COLOURS[index % COLOURS.len()],
            dash: DASHES[index % DASHES.len()],
            marker: MARKERS[index % MARKERS.len()],
        }
    }

    fn line(&self, area: &Area<'_>, points: Vec<Pixel>, dash: Dash) -> Result<()> {
        let (area, points) = local(area, points);
        let stroke = self.colour.stroke_width(2);
        match dash {
            Dash { gap: 0, .. } => drawn(area.draw(&PathElement::new(points, stroke))),
            Dash { dash, gap } => drawn(area.draw(&DashedPathElement::new(points, dash, gap, stroke))),
        }
    }

    fn bar(&self, area: &Area<'_>, low: Pixel, high: Pixel) -> Result<()> {
        for (from, to) in
            [(low, high), (low.shifted(-4, 0), low.shifted(4, 0)), (high.shifted(-4, 0), high.shifted(4, 0))]
        {
            let (area, points) = local(area, vec![from, to]);
            drawn(area.draw(&PathElement::new(points, self.colour.stroke_width(1))))?;
        }
        Ok(())
    }

    /// Draws a marker: filled for a measured value, hollow for a limit.
    fn marker(&self, area: &Area<'_>, position: Pixel, filled: bool) -> Result<()> {
        let mut outline: Vec<_> = self.marker.iter().map(|&(dx, dy)| position.shifted(dx, dy)).collect();
        outline.push(outline[0]);
        let (area, outline) = local(area, outline);
        let inside = if filled { self.colour } else { WHITE };
        drawn(area.draw(&Polygon::new(outline.clone(), inside.filled())))?;
        drawn(area.draw(&PathElement::new(outline, self.colour.stroke_width(2))))
    }
}

/// Converts pixels of the picture to pixels of an area.
fn local<'a, 'b>(area: &'a Area<'b>, points: Vec<Pixel>) -> (&'a Area<'b>, Vec<(i32, i32)>) {
    let origin = area.get_base_pixel();
    (area, points.into_iter().map(|Pixel { x, y }| (x - origin.0, y - origin.1)).collect())
}
