//! Charts as inline SVG in the page's own colours, so that they follow its light, dark and printed styles. Models differ in marker
//! as well as in colour, for prints in grey.

use crate::units;
use maud::{Markup, html};

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 225.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 42.0;
/// Number of colours and markers, as in the style sheet.
pub(super) const COLOURS: usize = 7;
/// Number of dashes, as in the style sheet.
pub(super) const DASHES: usize = 4;
/// Share of an axis that a label needs.
const LABEL_SHARE: f64 = 0.07;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    /// Linear from 0.
    Linear,
    Log,
    /// Logarithmic, with ticks at the measured values.
    Counts,
    /// Nanoseconds, linear from 0.
    Time,
    /// Nanoseconds, logarithmic.
    LogTime,
}

/// Line of a chart, or outline of bars.
pub(super) struct ChartSeries {
    pub(super) label: String,
    pub(super) points: Vec<(f64, f64)>,
    /// True if points are the upper corners of steps instead of being joined.
    pub(super) steps: bool,
    pub(super) style: LineStyle,
}

/// Colour and marker stand for a model, the dash for a figure of it. Both are counted from 0 and repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LineStyle {
    pub(super) colour: usize,
    pub(super) dash: usize,
}

pub(super) struct VerticalLine {
    pub(super) x: f64,
    pub(super) label: String,
    pub(super) colour: usize,
}

/// Label of an axis, with the unit, and its scale.
pub(super) struct AxisSpec {
    pub(super) label: String,
    pub(super) scale: Scale,
}

pub(super) struct Chart {
    pub(super) title: String,
    pub(super) x: AxisSpec,
    pub(super) y: AxisSpec,
    pub(super) series: Vec<ChartSeries>,
    pub(super) marks: Vec<VerticalLine>,
    /// Conditions, and the meaning of lines and marks.
    pub(super) note: String,
}

impl AxisSpec {
    pub(super) fn new(label: &str, scale: Scale) -> Self {
        Self { label: label.into(), scale }
    }
}

impl Scale {
    fn is_log(self) -> bool {
        matches!(self, Self::Log | Self::Counts | Self::LogTime)
    }

    fn format(self, value: f64) -> String {
        match self {
            Self::Time | Self::LogTime => units::time(value),
            Self::Linear | Self::Log | Self::Counts if value.fract() == 0.0 && value < 1e6 => format!("{value:.0}"),
            Self::Linear | Self::Log | Self::Counts => units::digits(value),
        }
    }
}

struct ChartAxis {
    scale: Scale,
    low: f64,
    high: f64,
    /// Coordinate of `low`.
    from: f64,
    /// Coordinate of `high`.
    to: f64,
    ticks: Vec<f64>,
}

impl ChartAxis {
    fn new(scale: Scale, values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let drawn: Vec<_> = values.filter(|value| value.is_finite() && (*value > 0.0 || !scale.is_log())).collect();
        let min = drawn.iter().copied().reduce(f64::min).unwrap_or(1.0);
        let max = drawn.iter().copied().reduce(f64::max).unwrap_or(10.0);
        if scale.is_log() {
            let low = min.log10() - 0.04;
            let high = (max.log10() + 0.04).max(min.log10() + 0.3);
            return Self { scale, low, high, from, to, ticks: ticks(scale, drawn, low, high) };
        }
        let max = if max > 0.0 { max } else { 1.0 };
        let step = step(max / 4.0);
        let count = (max * 1.04 / step).floor() as u32;
        let ticks = (0..=count).map(|k| f64::from(k) * step).collect();
        Self { scale, low: 0.0, high: max * 1.04, from, to, ticks }
    }

    fn coordinate(&self, value: f64) -> f64 {
        let value = if self.scale.is_log() { value.max(1e-12).log10() } else { value };
        let share = ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        self.from + share * (self.to - self.from)
    }
}

/// Rounds a step up to 1, 2 or 5 times a power of ten.
pub(super) fn step(rough: f64) -> f64 {
    let size = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|k| k * size).find(|step| *step >= rough).unwrap_or(size)
}

/// Returns the ticks of a logarithmic axis: counts at the measured values that leave room for labels, times at round values.
fn ticks(scale: Scale, mut values: Vec<f64>, low: f64, high: f64) -> Vec<f64> {
    if scale != Scale::Counts || values.is_empty() {
        return decades(low, high);
    }
    values.sort_by(f64::total_cmp);
    values.dedup_by(|next, before| next.log10() - before.log10() < LABEL_SHARE * (high - low));
    values
}

/// Returns 1, 2 and 5 times every power of ten between two logarithms; only the powers if there are many, and more multiples if
/// there would be fewer than two ticks, because one label does not show a scale.
fn decades(low: f64, high: f64) -> Vec<f64> {
    let multiples = |factors: &'static [f64]| -> Vec<f64> {
        let decades = low.floor() as i32..=high.ceil() as i32;
        let values = decades.flat_map(|decade| factors.iter().map(move |k| k * 10f64.powi(decade)));
        values.filter(|value| (low..=high).contains(&value.log10())).collect()
    };
    let usual = multiples(if high - low > 2.5 { &[1.0] } else { &[1.0, 2.0, 5.0] });
    if usual.len() > 1 { usual } else { multiples(&[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0]) }
}

pub(super) fn draw(chart: &Chart) -> Markup {
    let points = || chart.series.iter().flat_map(|series| series.points.iter());
    let marks = chart.marks.iter().map(|mark| mark.x);
    let x = ChartAxis::new(chart.x.scale, points().map(|point| point.0).chain(marks), LEFT, WIDTH - RIGHT);
    let y = ChartAxis::new(chart.y.scale, points().map(|point| point.1), HEIGHT - BOTTOM, TOP);
    html! {
        figure {
            figcaption { strong { (chart.title) } }
            svg.chart viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-label=(chart.title) {
                (grid(chart, &x, &y))
                @for (index, mark) in chart.marks.iter().enumerate() { (vertical(mark, index, &x)) }
                @for series in &chart.series { (line(series, chart, &x, &y)) }
            }
            ul.legend {
                @for series in &chart.series {
                    li {
                        svg.key viewBox="0 0 36 12" aria-hidden="true" {
                            line class=(class(series.style)) x1="1" x2="35" y1="6" y2="6" {}
                            @if !series.steps { (marker(series.style.colour % COLOURS, 18.0, 6.0, "")) }
                        }
                        " " (series.label)
                    }
                }
            }
            @if !chart.note.is_empty() { p.note { (chart.note) } }
        }
    }
}

fn class(style: LineStyle) -> String {
    format!("s{} d{}", style.colour % COLOURS, style.dash % DASHES)
}

/// Draws a vertical line; labels of several stand below each other, on the side with room.
fn vertical(mark: &VerticalLine, index: usize, x: &ChartAxis) -> Markup {
    let at = x.coordinate(mark.x);
    let is_left = at < (LEFT + WIDTH) / 2.0;
    let text = if is_left { at + 4.0 } else { at - 4.0 };
    html! {
        line class=(format!("mark s{}", mark.colour % COLOURS)) x1=(at) x2=(at) y1=(TOP) y2=(HEIGHT - BOTTOM) {}
        text.mark x=(text) y=(TOP + 12.0 + 14.0 * index as f64) text-anchor=(if is_left { "start" } else { "end" }) { (mark.label) }
    }
}

fn grid(chart: &Chart, x: &ChartAxis, y: &ChartAxis) -> Markup {
    html! {
        @for tick in &y.ticks {
            @let at = y.coordinate(*tick);
            line.grid x1=(LEFT) x2=(WIDTH - RIGHT) y1=(at) y2=(at) {}
            text x=(LEFT - 6.0) y=(at + 4.0) text-anchor="end" { (y.scale.format(*tick)) }
        }
        @for tick in &x.ticks {
            @let at = x.coordinate(*tick);
            line.grid x1=(at) x2=(at) y1=(TOP) y2=(HEIGHT - BOTTOM) {}
            text x=(at) y=(HEIGHT - BOTTOM + 16.0) text-anchor="middle" { (x.scale.format(*tick)) }
        }
        text x=((LEFT + WIDTH - RIGHT) / 2.0) y=(HEIGHT - 8.0) text-anchor="middle" { (chart.x.label) }
        text transform=(format!("translate(12 {}) rotate(-90)", (HEIGHT - BOTTOM + TOP) / 2.0)) text-anchor="middle" {
            (chart.y.label)
        }
    }
}

fn line(series: &ChartSeries, chart: &Chart, x: &ChartAxis, y: &ChartAxis) -> Markup {
    let drawn = |point: &&(f64, f64)| point.0.is_finite() && point.1.is_finite();
    let mut path = String::new();
    for point in series.points.iter().filter(drawn) {
        let px = x.coordinate(point.0);
        let py = y.coordinate(point.1);
        if path.is_empty() {
            path = format!("M{px:.1} {py:.1}");
        } else if series.steps {
            path += &format!("H{px:.1}V{py:.1}");
        } else {
            path += &format!("L{px:.1} {py:.1}");
        }
    }
    html! {
        path class=(class(series.style)) d=(path) {}
        @if !series.steps && series.points.len() <= 40 {
            @for point in series.points.iter().filter(drawn) {
                @let value = format!("{}: {} at {}", series.label, chart.y.scale.format(point.1), chart.x.scale.format(point.0));
                (marker(series.style.colour % COLOURS, x.coordinate(point.0), y.coordinate(point.1), &value))
            }
        }
    }
}

/// Draws a marker around a coordinate; each colour has its own shape.
fn marker(colour: usize, x: f64, y: f64, title: &str) -> Markup {
    let shapes: [&[(f64, f64)]; COLOURS] = [
        &[(-3.5, -3.5), (3.5, -3.5), (3.5, 3.5), (-3.5, 3.5)],
        &[(0.0, -5.0), (4.5, 3.5), (-4.5, 3.5)],
        &[(0.0, -5.0), (4.5, 0.0), (0.0, 5.0), (-4.5, 0.0)],
        &[(0.0, 5.0), (4.5, -3.5), (-4.5, -3.5)],
        &[(-4.0, -1.5), (4.0, -1.5), (4.0, 1.5), (-4.0, 1.5)],
        &[(-1.5, -4.5), (1.5, -4.5), (1.5, 4.5), (-1.5, 4.5)],
        &[(-4.0, -2.0), (0.0, -4.5), (4.0, -2.0), (4.0, 2.0), (0.0, 4.5), (-4.0, 2.0)],
    ];
    let outline: Vec<_> = shapes[colour].iter().map(|(dx, dy)| format!("{:.1},{:.1}", x + dx, y + dy)).collect();
    html! { polygon class=(format!("f{colour}")) points=(outline.join(" ")) { @if !title.is_empty() { title { (title) } } } }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>, scale: Scale) -> String {
        let series =
            vec![ChartSeries { label: "a <b>".into(), points, steps: false, style: LineStyle { colour: 8, dash: 5 } }];
        let x = AxisSpec::new("rate (requests/s)", scale);
        let y = AxisSpec::new("time", Scale::LogTime);
        draw(&Chart { title: "t".into(), x, y, series, marks: vec![], note: "n".into() }).into_string()
    }

    #[test]
    fn charts_of_anything_are_drawn_within_their_frame() {
        for scale in [Scale::Linear, Scale::Log, Scale::Counts, Scale::Time, Scale::LogTime] {
            for points in [vec![], vec![(0.0, 0.0)], vec![(1.0, 5e6), (1e9, f64::NAN)], vec![(3.0, 1e3), (5.0, 1e12)]] {
                let drawn = chart(points, scale);
                assert!(!drawn.contains("NaN") && !drawn.contains("inf"), "{drawn}");
                let coordinates = drawn.split("x1=\"").skip(1).map(|rest| rest.split('"').next().unwrap());
                assert!(coordinates.map(|x| x.parse::<f64>().unwrap()).all(|x| (0.0..=WIDTH).contains(&x)));
            }
        }
    }

    #[test]
    fn labels_of_ticks_leave_room_for_the_axis_title() {
        // The title is 12 units from the edge and its letters are as high; a digit is 7 units wide.
        let room = LEFT - 6.0 - 18.0;
        for scale in [Scale::Linear, Scale::Log, Scale::Time, Scale::LogTime] {
            for exponent in -2..8 {
                let most = 3.7 * 10f64.powi(exponent);
                for tick in ChartAxis::new(scale, [0.3 * most, most].into_iter(), 0.0, 1.0).ticks {
                    let label = scale.format(tick);
                    assert!(label.chars().count() as f64 * 7.0 <= room, "{label} is too long for {room} units");
                }
            }
        }
    }

    #[test]
    fn axes_have_few_ticks_in_round_numbers_and_labels_are_escaped() {
        let axis = ChartAxis::new(Scale::Linear, [0.0, 73.0].into_iter(), 0.0, 1.0);
        assert_eq!(axis.ticks, [0.0, 20.0, 40.0, 60.0]);
        assert_eq!(decades(0.0, 1.0), [1.0, 2.0, 5.0, 10.0]);
        assert_eq!(decades(3.0, 6.0), [1e3, 1e4, 1e5, 1e6]);
        for exponent in 0..1000 {
            let min = 10f64.powf(f64::from(exponent) / 250.0);
            let axis = ChartAxis::new(Scale::LogTime, [min, min * 1.1].into_iter(), 0.0, 1.0);
            assert!(axis.ticks.len() > 1, "one label from {min}: {:?}", axis.ticks);
        }
        let drawn = chart(vec![(1.0, 1e6)], Scale::Log);
        assert!(drawn.contains("a &lt;b&gt;") && !drawn.contains("<b>"));
    }
}
