//! Charts of the report. Models that were measured by one command share a chart.

use super::{
    chapters::{ModelPoints, ModelRun, colour},
    chart::{AxisSpec, Chart, ChartSeries, LineStyle, Scale, VerticalLine, draw},
    data::LoadPoint,
    figures::TOGETHER_NS,
};
use crate::{
    measure::{
        histogram::{HistogramBar, Percentiles},
        stats::RequestFigures,
        timeline::TimelineSample,
    },
    units,
};
use maud::{Markup, html};

/// Dashes of lines: one for each percentile, or kind of gap.
const DASHES: [&str; 3] = ["p50", "p90", "p99"];

/// Returns the points of a curve; loads without one of the values are left out.
fn curve(
    points: &[LoadPoint],
    x: fn(&LoadPoint) -> Option<f64>,
    y: impl Fn(&LoadPoint) -> Option<f64>,
) -> Vec<(f64, f64)> {
    points.iter().filter_map(|point| Some((x(point)?, y(point)?))).collect()
}

fn line(label: String, points: Vec<(f64, f64)>, style: LineStyle) -> ChartSeries {
    ChartSeries { label, points, steps: false, style }
}

fn rate(point: &LoadPoint) -> Option<f64> {
    point.load.rate()
}

fn concurrency(point: &LoadPoint) -> Option<f64> {
    point.load.concurrency().map(|clients| clients as f64)
}

/// Axis and models of charts over load.
struct LoadCharts<'a> {
    models: &'a [ModelPoints<'a>],
    x: fn(&LoadPoint) -> Option<f64>,
    x_label: &'static str,
    x_scale: Scale,
}

impl LoadCharts<'_> {
    fn draw(&self, title: &str, y: AxisSpec, series: Vec<ChartSeries>, note: &str) -> Markup {
        let series: Vec<_> = series.into_iter().filter(|series| !series.points.is_empty()).collect();
        if series.is_empty() {
            return html! {};
        }
        let marks = self.models.iter().enumerate().filter_map(|(colour, all)| {
            let x = all.knee?.rate?;
            Some(VerticalLine { x, label: "knee".into(), colour })
        });
        let x = AxisSpec::new(self.x_label, self.x_scale);
        draw(&Chart { title: title.into(), x, y, series, marks: marks.collect(), note: note.into() })
    }

    /// Returns a line for each model.
    fn lines(&self, y: impl Fn(&LoadPoint) -> Option<f64>) -> Vec<ChartSeries> {
        let models = self.models.iter().enumerate();
        models
            .map(|(colour, all)| {
                line(all.model.to_owned(), curve(all.points, self.x, &y), LineStyle { colour, dash: 0 })
            })
            .collect()
    }

    /// Returns lines of the percentiles of a figure for each model: p50, p90 and p99 of one model, p50 and p90 of several.
    fn percentiles(&self, y: fn(&RequestFigures) -> Percentiles) -> Vec<ChartSeries> {
        let shown = if self.models.len() > 1 { 2 } else { DASHES.len() };
        let mut series = Vec::new();
        for (colour, all) in self.models.iter().enumerate() {
            for (dash, name) in DASHES.iter().enumerate().take(shown) {
                let value = |point: &LoadPoint| {
                    let figure = y(&point.figures);
                    [figure.p50, figure.p90, figure.p99].get(dash).copied().flatten()
                };
                let label = format!("{}, {name}", all.model);
                series.push(line(label, curve(all.points, self.x, value), LineStyle { colour, dash }));
            }
        }
        series
    }
}

/// Draws latency, and answered requests, over offered rate.
pub(super) fn rates(models: &[ModelPoints<'_>]) -> Markup {
    let charts = LoadCharts { models, x: rate, x_label: "offered rate (requests/s)", x_scale: Scale::Log };
    let first = charts.percentiles(|figures| figures.time_to_first_char_ns);
    let good = charts.lines(|point| Some(point.window.good_per_second));
    let time = |label: &str| AxisSpec::new(label, Scale::LogTime);
    html! {
        (charts.draw("Time to first character over rate", time("time to first character"), first, "From the intended start."))
        (charts.draw("Good requests over rate", AxisSpec::new("good requests/s", Scale::Linear), good, ""))
    }
}

/// Returns the percentiles without those of messages that came together.
fn apart(gaps: Percentiles) -> Percentiles {
    let apart = |gap: Option<f64>| gap.filter(|gap| *gap >= TOGETHER_NS);
    Percentiles { p50: apart(gaps.p50), p90: apart(gaps.p90), p99: apart(gaps.p99), ..gaps }
}

/// Draws speed and latency over concurrency.
pub(super) fn batches(models: &[ModelPoints<'_>]) -> Markup {
    let charts = LoadCharts { models, x: concurrency, x_label: "requests at a time", x_scale: Scale::Counts };
    let has_summaries = models.iter().any(|all| all.points.iter().any(|point| point.figures.summaries.is_some()));
    // summaries have equally many tokens, but not characters
    let answered = charts.lines(|point| Some(point.window.succeeded_per_second));
    let all = charts.lines(|point| Some(point.window.chars_per_second));
    let tokens = charts.lines(|point| point.figures.summaries.as_ref()?.tokens_per_second.p50);
    let linear = |label: &str| AxisSpec::new(label, Scale::Linear);
    let gaps = charts.percentiles(|figures| apart(figures.gap_ns));
    let keystrokes =
        charts.percentiles(|figures| figures.edits.as_ref().map(|edits| edits.keystroke_ns).unwrap_or_default());
    html! {
        @if has_summaries {
            (charts.draw("Summaries over batch size", linear("summaries/s"), answered, ""))
            (charts.draw(
                "Speed of a summary over batch size",
                linear("tokens/s of one summary, median"),
                tokens,
                "Reported by the server.",
            ))
        } @else {
            (charts.draw("Characters over batch size", linear("characters/s, all requests"), all, ""))
            (charts.draw("Gaps over batch size", AxisSpec::new("gap between messages", Scale::LogTime), gaps, ""))
            (charts.draw(
                "Keystroke to completions by number of editors",
                AxisSpec::new("keystroke to completions", Scale::LogTime),
                keystrokes,
                "From the planned time of the keystroke.",
            ))
        }
    }
}

/// Returns the outline of a distribution: the share of the values in each bar. Bars of messages that came together are left out.
fn steps(bars: &[HistogramBar]) -> Vec<(f64, f64)> {
    let all: u64 = bars.iter().map(|bar| bar.count).sum();
    let mut points = Vec::new();
    let mut end = None;
    for bar in bars.iter().filter(|bar| bar.from >= TOGETHER_NS) {
        let share = 100.0 * bar.count as f64 / all.max(1) as f64;
        if end.is_none_or(|end: f64| bar.from > end * 1.0001) {
            points.extend(end.map(|end| (end, 0.0)));
            points.push((bar.from, 0.0));
        }
        // up at the bar's lower bound, along to its upper bound
        points.extend([(bar.from, share), (bar.to, share)]);
        end = Some(bar.to);
    }
    points.extend(end.map(|end| (end, 0.0)));
    points
}

/// Returns the share of gaps between messages that came together.
fn share_together(bars: &[HistogramBar]) -> f64 {
    let count = |all: &mut dyn Iterator<Item = &HistogramBar>| all.map(|bar| bar.count).sum::<u64>() as f64;
    count(&mut bars.iter().filter(|bar| bar.from < TOGETHER_NS)) / count(&mut bars.iter()).max(1.0)
}

/// Draws the distributions of the gaps of several models.
pub(super) fn gaps(title: &str, models: &[(&str, &RequestFigures)]) -> Markup {
    let mut series = Vec::new();
    let mut together = Vec::new();
    for (colour, (model, figures)) in models.iter().enumerate() {
        let count = |spread: Option<Percentiles>| spread.map_or(0, |spread| spread.count);
        let is_split = figures.plain_gap_ns.is_some() && figures.boundary_gap_ns.is_some();
        let mut add = |kind: &str, count: u64, bars: &[HistogramBar], dash: usize| {
            let label = format!("{model}, {count}{kind} gaps");
            let share = share_together(bars);
            if share > 0.0 {
                together.push(format!("{} % of {label}", units::digits(100.0 * share)));
            }
            series.push(ChartSeries { label, points: steps(bars), steps: true, style: LineStyle { colour, dash } });
        };
        if is_split {
            add(" plain", count(figures.plain_gap_ns), &figures.plain_gap_bars, 0);
            add(" boundary", count(figures.boundary_gap_ns), &figures.boundary_gap_bars, 1);
        } else {
            add("", figures.gap_ns.count, &figures.plain_gap_bars, 0);
        }
    }
    series.retain(|series| !series.points.is_empty());
    let edits = models.iter().any(|(_, figures)| figures.edits.is_some());
    if series.is_empty() && edits {
        return html! {};
    }
    if series.is_empty() {
        return html! { p.note { "No gaps: no request that succeeded had more than one message." } };
    }
    let mut note = "A step spans a 24th of a factor of ten; shares are of all gaps of the kind.".to_owned();
    if !together.is_empty() {
        note += &format!(" Left out because their messages came together: {}.", together.join(", "));
    }
    draw(&Chart {
        title: title.into(),
        x: AxisSpec::new("gap between messages", Scale::LogTime),
        y: AxisSpec::new("share of its kind (%)", Scale::Linear),
        series,
        marks: vec![],
        note,
    })
}

/// Draws the distributions of the times from keystrokes to completions of several models; nothing without edited documents.
pub(super) fn keystrokes(models: &[(&str, &RequestFigures)]) -> Markup {
    let series = models.iter().enumerate().filter_map(|(colour, (model, figures))| {
        let edits = figures.edits.as_ref()?;
        let label = format!("{model}, {} keystrokes", edits.keystroke_ns.count);
        let points = steps(&edits.keystroke_bars);
        Some(ChartSeries { label, points, steps: true, style: LineStyle { colour, dash: 0 } })
    });
    let series: Vec<_> = series.filter(|series| !series.points.is_empty()).collect();
    if series.is_empty() {
        return html! {};
    }
    draw(&Chart {
        title: "Distribution of times from keystroke to completions".into(),
        x: AxisSpec::new("keystroke to completions", Scale::LogTime),
        y: AxisSpec::new("share of the keystrokes (%)", Scale::Linear),
        series,
        marks: vec![],
        note: "A step spans a 24th of a factor of ten. The clock runs from the planned time of the keystroke.".into(),
    })
}

/// Draws what happened in the course of loads.
pub(super) fn timeline(runs: &[ModelRun<'_>]) -> Markup {
    let mut models = Vec::new();
    let runs: Vec<_> = runs.iter().map(|run| (run, colour(&mut models, &label_of(run, runs)))).collect();
    let lines = |value: fn(&TimelineSample) -> Option<f64>, dash, name: &str| -> Vec<ChartSeries> {
        let series = runs.iter().map(|(run, colour)| {
            let long = run.point.timeline.iter().filter(|sample| sample.span_ns > 10_000_000);
            let middle = |sample: &TimelineSample| sample.at_ns as f64 + sample.span_ns as f64 / 2.0;
            let points = long.filter_map(|sample| Some((middle(sample), value(sample)?))).collect();
            let label = models.get(*colour).map(String::as_str).unwrap_or_default();
            line(format!("{label}{name}"), points, LineStyle { colour: *colour, dash })
        });
        series.filter(|series| !series.points.is_empty()).collect()
    };
    let chart = |title: &str, y: &str, scale, series: Vec<ChartSeries>| {
        let x = AxisSpec::new("time since the end of the warm-up", Scale::Time);
        let chart =
            Chart { title: title.into(), x, y: AxisSpec::new(y, scale), series, marks: vec![], note: String::new() };
        if chart.series.is_empty() {
            html! {}
        } else {
            draw(&chart)
        }
    };
    let speed = |sample: &TimelineSample| Some(sample.characters as f64 / (sample.span_ns as f64 / 1e9));
    let mut first = lines(|sample| sample.time_to_first_char_p50_ns, 0, ", median");
    first.extend(lines(|sample| sample.time_to_first_char_max_ns, 2, ", maximum"));
    html! {
        (chart("Timeline: characters", "characters/s, all requests", Scale::Linear, lines(speed, 0, "")))
        (chart("Timeline: requests in flight", "requests", Scale::Linear, lines(|sample| Some(sample.in_flight as f64), 0, "")))
        (chart("Timeline: time to first character", "of requests that ended then", Scale::LogTime, first))
    }
}

/// Returns a run's name: its model, and its load if the model has several.
pub(super) fn label_of(run: &ModelRun<'_>, all: &[ModelRun<'_>]) -> String {
    if all.iter().filter(|other| other.model == run.model).count() > 1 {
        return format!("{}, {}", run.model, run.point.load.describe());
    }
    run.model.to_owned()
}
