//! Charts as inline SVG, drawn with the page's own colours, so that they follow its light, dark and printed look. Lines differ in
//! marker and dash as well as in colour, for prints in grey.

use crate::units;
use maud::{Markup, html};

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 52.0;
/// Looks there are: the style sheet has as many.
const LOOKS: usize = 7;

/// The part of an axis that a label needs.
const ROOM: f64 = 0.07;

/// What an axis counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    /// Numbers, from 0.
    Linear,
    /// Numbers that are near to each other and far from 0.
    Near,
    /// Numbers, by their logarithm.
    Log,
    /// Nanoseconds, from 0.
    Time,
    /// Nanoseconds, by their logarithm.
    LogTime,
}

/// A line, or bars.
pub(super) struct ChartSeries {
    pub(super) label: String,
    pub(super) points: Vec<(f64, f64)>,
    /// Whether points are the upper corners of steps rather than joined.
    pub(super) steps: bool,
}

/// A vertical line with a word.
pub(super) struct VerticalLine {
    pub(super) at: f64,
    pub(super) label: String,
}

/// A chart.
pub(super) struct Chart {
    pub(super) title: String,
    /// With the unit.
    pub(super) x: (String, Scale),
    /// With the unit.
    pub(super) y: (String, Scale),
    pub(super) series: Vec<ChartSeries>,
    pub(super) marks: Vec<VerticalLine>,
    /// Conditions, and what lines and marks are.
    pub(super) note: String,
}

impl Scale {
    fn is_log(self) -> bool {
        matches!(self, Self::Log | Self::LogTime)
    }

    fn told(self, value: f64) -> String {
        match self {
            Self::Time | Self::LogTime => units::time(value),
            Self::Linear | Self::Near | Self::Log if value.fract() == 0.0 && value < 1e6 => format!("{value:.0}"),
            Self::Near => format!("{value:.3}"),
            Self::Linear | Self::Log => units::digits(value),
        }
    }
}

/// From numbers to places.
struct ChartAxis {
    scale: Scale,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    ticks: Vec<f64>,
}

impl ChartAxis {
    fn new(scale: Scale, values: impl Iterator<Item = f64>, (from, to): (f64, f64)) -> Self {
        let drawn: Vec<_> = values.filter(|value| value.is_finite() && (*value > 0.0 || !scale.is_log())).collect();
        let (least, most) =
            drawn.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), value| (a.min(*value), b.max(*value)));
        let (least, most) = if least > most { (1.0, 10.0) } else { (least, most) };
        if scale.is_log() {
            let (low, high) = (least.log10() - 0.04, (most.log10() + 0.04).max(least.log10() + 0.3));
            return Self { scale, low, high, from, to, ticks: ticks(scale, drawn, (low, high)) };
        }
        let most = if most > 0.0 { most } else { 1.0 };
        if scale == Scale::Near {
            // at least a hundredth of them, so that what is nearly the same looks so
            let span = (most - least).max(most / 100.0);
            let step = step(span / 4.0);
            let low = ((least - 0.2 * span) / step).floor() * step;
            let count = ((most + 0.2 * span - low) / step).ceil() as u32;
            let ticks = (0..=count).map(|k| low + f64::from(k) * step).collect();
            return Self { scale, low, high: low + f64::from(count) * step, from, to, ticks };
        }
        let step = step(most / 5.0);
        let count = (most * 1.04 / step).floor() as u32;
        let ticks = (0..=count).map(|k| f64::from(k) * step).collect();
        Self { scale, low: 0.0, high: most * 1.04, from, to, ticks }
    }

    fn place(&self, value: f64) -> f64 {
        let value = if self.scale.is_log() { value.max(1e-12).log10() } else { value };
        let share = ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        self.from + share * (self.to - self.from)
    }
}

/// The next larger one of 1, 2 and 5 times a power of ten.
fn step(rough: f64) -> f64 {
    let size = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|k| k * size).find(|step| *step >= rough).unwrap_or(size)
}

/// Where a logarithmic axis is marked: counts where something was measured, as far as labels have room.
fn ticks(scale: Scale, mut values: Vec<f64>, (low, high): (f64, f64)) -> Vec<f64> {
    if scale != Scale::Log || values.is_empty() {
        return decades(low, high);
    }
    values.sort_by(f64::total_cmp);
    values.dedup_by(|next, before| next.log10() - before.log10() < ROOM * (high - low));
    values
}

/// 1, 2 and 5 of every factor of ten between two logarithms; only the 1 where there are many, and more where there are not two: one
/// label does not tell a scale.
fn decades(low: f64, high: f64) -> Vec<f64> {
    let of = |within: &'static [f64]| -> Vec<f64> {
        let all = (low.floor() as i32..=high.ceil() as i32).flat_map(|decade| within.iter().map(move |k| (decade, *k)));
        let values = all.map(|(decade, k)| k * 10f64.powi(decade));
        values.filter(|value| (low..=high).contains(&value.log10())).collect()
    };
    let usual = of(if high - low > 2.5 { &[1.0] } else { &[1.0, 2.0, 5.0] });
    if usual.len() > 1 { usual } else { of(&[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0]) }
}

/// The chart as a figure.
pub(super) fn draw(chart: &Chart) -> Markup {
    let all = || chart.series.iter().flat_map(|series| series.points.iter());
    let marks = chart.marks.iter().map(|mark| mark.at);
    let x = ChartAxis::new(chart.x.1, all().map(|point| point.0).chain(marks), (LEFT, WIDTH - RIGHT));
    let y = ChartAxis::new(chart.y.1, all().map(|point| point.1), (HEIGHT - BOTTOM, TOP));
    html! {
        figure {
            figcaption { strong { (chart.title) } }
            svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-label=(chart.title) {
                (grid(chart, &x, &y))
                @for mark in &chart.marks {
                    @let at = x.place(mark.at);
                    line.mark x1=(at) x2=(at) y1=(TOP) y2=(HEIGHT - BOTTOM) {}
                    text.mark x=(at - 4.0) y=(TOP + 12.0) text-anchor="end" { (mark.label) }
                }
                @for (look, series) in chart.series.iter().enumerate() {
                    (line(series, look % LOOKS, (chart, &x, &y)))
                }
            }
            ul.legend {
                @for (look, series) in chart.series.iter().enumerate() {
                    li {
                        svg.key viewBox="0 0 36 12" aria-hidden="true" {
                            line class=(format!("s{}", look % LOOKS)) x1="1" x2="35" y1="6" y2="6" {}
                            (marker(look % LOOKS, 18.0, 6.0, ""))
                        }
                        " " (series.label)
                    }
                }
            }
            p.note { (chart.note) }
        }
    }
}

fn grid(chart: &Chart, x: &ChartAxis, y: &ChartAxis) -> Markup {
    html! {
        @for tick in &y.ticks {
            @let at = y.place(*tick);
            line.grid x1=(LEFT) x2=(WIDTH - RIGHT) y1=(at) y2=(at) {}
            text x=(LEFT - 6.0) y=(at + 4.0) text-anchor="end" { (y.scale.told(*tick)) }
        }
        @for tick in &x.ticks {
            @let at = x.place(*tick);
            line.grid x1=(at) x2=(at) y1=(TOP) y2=(HEIGHT - BOTTOM) {}
            text x=(at) y=(HEIGHT - BOTTOM + 18.0) text-anchor="middle" { (x.scale.told(*tick)) }
        }
        text x=((LEFT + WIDTH - RIGHT) / 2.0) y=(HEIGHT - 10.0) text-anchor="middle" { (chart.x.0) }
        text transform=(format!("translate(14 {}) rotate(-90)", (HEIGHT - BOTTOM + TOP) / 2.0)) text-anchor="middle" {
            (chart.y.0)
        }
    }
}

fn line(series: &ChartSeries, look: usize, (chart, x, y): (&Chart, &ChartAxis, &ChartAxis)) -> Markup {
    let drawn = |point: &&(f64, f64)| point.0.is_finite() && point.1.is_finite();
    let mut path = String::new();
    for (px, py) in series.points.iter().filter(drawn) {
        let (px, py) = (x.place(*px), y.place(*py));
        if path.is_empty() {
            path = format!("M{px:.1} {py:.1}");
        } else if series.steps {
            path += &format!("H{px:.1}V{py:.1}");
        } else {
            path += &format!("L{px:.1} {py:.1}");
        }
    }
    html! {
        path class=(format!("s{look}")) d=(path) {}
        @if !series.steps && series.points.len() <= 40 {
            @for point in series.points.iter().filter(drawn) {
                @let told = format!("{}: {} at {}", series.label, chart.y.1.told(point.1), chart.x.1.told(point.0));
                (marker(look, x.place(point.0), y.place(point.1), &told))
            }
        }
    }
}

/// A marker around a place, of a shape of its own.
fn marker(look: usize, x: f64, y: f64, told: &str) -> Markup {
    let shapes: [&[(f64, f64)]; LOOKS] = [
        &[(-3.5, -3.5), (3.5, -3.5), (3.5, 3.5), (-3.5, 3.5)],
        &[(0.0, -5.0), (4.5, 3.5), (-4.5, 3.5)],
        &[(0.0, -5.0), (4.5, 0.0), (0.0, 5.0), (-4.5, 0.0)],
        &[(0.0, 5.0), (4.5, -3.5), (-4.5, -3.5)],
        &[(-4.0, -1.5), (4.0, -1.5), (4.0, 1.5), (-4.0, 1.5)],
        &[(-1.5, -4.5), (1.5, -4.5), (1.5, 4.5), (-1.5, 4.5)],
        &[(-4.0, -2.0), (0.0, -4.5), (4.0, -2.0), (4.0, 2.0), (0.0, 4.5), (-4.0, 2.0)],
    ];
    let outline: Vec<_> = shapes[look].iter().map(|(dx, dy)| format!("{:.1},{:.1}", x + dx, y + dy)).collect();
    html! { polygon class=(format!("f{look}")) points=(outline.join(" ")) { @if !told.is_empty() { title { (told) } } } }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>, scale: Scale) -> String {
        let series = vec![ChartSeries { label: "a <b>".into(), points, steps: false }];
        let [x, y] = ["rate (requests/s)", "time"].map(str::to_owned);
        let (title, note) = ("t".into(), "n".into());
        draw(&Chart { title, x: (x, scale), y: (y, Scale::LogTime), series, marks: vec![], note }).into_string()
    }

    #[test]
    fn charts_of_anything_are_drawn_within_their_frame() {
        for scale in [Scale::Linear, Scale::Log, Scale::Time, Scale::LogTime] {
            for points in [vec![], vec![(0.0, 0.0)], vec![(1.0, 5e6), (1e9, f64::NAN)], vec![(3.0, 1e3), (5.0, 1e12)]] {
                let drawn = chart(points, scale);
                assert!(!drawn.contains("NaN") && !drawn.contains("inf"), "{drawn}");
                let places = drawn.split("x1=\"").skip(1).map(|rest| rest.split('"').next().unwrap());
                assert!(places.map(|place| place.parse::<f64>().unwrap()).all(|place| (0.0..=WIDTH).contains(&place)));
            }
        }
    }

    #[test]
    fn axes_have_few_ticks_in_round_numbers_and_labels_are_escaped() {
        let axis = ChartAxis::new(Scale::Linear, [0.0, 73.0].into_iter(), (0.0, 1.0));
        assert_eq!(axis.ticks, [0.0, 20.0, 40.0, 60.0]);
        assert_eq!(decades(0.0, 1.0), [1.0, 2.0, 5.0, 10.0]);
        assert_eq!(decades(3.0, 6.0), [1e3, 1e4, 1e5, 1e6]);
        for least in 0..1000 {
            let least = 10f64.powf(f64::from(least) / 250.0);
            let axis = ChartAxis::new(Scale::LogTime, [least, least * 1.1].into_iter(), (0.0, 1.0));
            assert!(axis.ticks.len() > 1, "one label from {least}: {:?}", axis.ticks);
        }
        let drawn = chart(vec![(1.0, 1e6)], Scale::Log);
        assert!(drawn.contains("a &lt;b&gt;") && !drawn.contains("<b>"));
    }
}
