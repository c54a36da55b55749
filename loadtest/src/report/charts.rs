//! Charts of the report.

use super::{
    chart::{AxisSpec, Chart, ChartSeries, Scale, VerticalLine, draw},
    data::{Conditions, LoadPoint},
};
use crate::{
    comparison::result::ModelComparison,
    knee::Knee,
    load::workload::WorkloadInfo,
    measure::{
        histogram::{HistogramBar, Percentiles},
        stats::RequestFigures,
        timeline::TimelineSample,
    },
};
use maud::{Markup, html};

fn line(label: &str, points: Vec<(f64, f64)>) -> ChartSeries {
    ChartSeries { label: label.into(), points, steps: false }
}

fn describe_workloads(conditions: &Conditions, figures: Option<&RequestFigures>) -> String {
    let describe = |workload: &WorkloadInfo| {
        let model = workload.model.as_ref().map(|model| format!(", of {model}")).unwrap_or_default();
        format!("prompts of {} characters, answers of {}{model}", workload.prompt_chars, workload.output_chars)
    };
    let all: Vec<_> = conditions.workloads.iter().map(describe).collect();
    let is_split = figures.is_some_and(|figures| figures.plain_gap_ns.is_some());
    let late = if is_split { "; boundaries requested, so that characters come one step later" } else { "" };
    format!("{}{late}", all.join("; "))
}

/// Returns the points of a curve; loads without one of the values are left out.
fn curve(
    points: &[LoadPoint],
    x: fn(&LoadPoint) -> Option<f64>,
    y: impl Fn(&LoadPoint) -> Option<f64>,
) -> Vec<(f64, f64)> {
    points.iter().filter_map(|point| Some((x(point)?, y(point)?))).collect()
}

type Percentile = fn(&Percentiles) -> Option<f64>;

/// Returns the p50, p90 and p99 lines of a figure over `x`.
fn percentiles(
    points: &[LoadPoint],
    x: fn(&LoadPoint) -> Option<f64>,
    y: fn(&RequestFigures) -> Percentiles,
    name: &str,
) -> Vec<ChartSeries> {
    let all: [(&str, Percentile); 3] = [("p50", |s| s.p50), ("p90", |s| s.p90), ("p99", |s| s.p99)];
    let series = all.into_iter().map(|(percentile, value)| {
        line(&format!("{name}, {percentile}"), curve(points, x, |point| value(&y(&point.figures))))
    });
    series.filter(|series| !series.points.is_empty()).collect()
}

fn rate(point: &LoadPoint) -> Option<f64> {
    point.load.rate()
}

fn concurrency(point: &LoadPoint) -> Option<f64> {
    point.load.concurrency().map(|clients| clients as f64)
}

/// Draws latency, and answered requests, over offered rate.
pub(super) fn rates(model: &str, points: &[LoadPoint], knee: &Knee, conditions: &Conditions) -> Markup {
    let marks = || knee.rate.map(|x| VerticalLine { x, label: "knee".into() }).into_iter().collect();
    let mut first = percentiles(points, rate, |figures| figures.time_to_first_char_ns, "from the intended start");
    let from_send = curve(points, rate, |point| point.figures.time_to_first_char_from_send_ns.p90);
    first.push(line("from sending, p90", from_send));
    let workloads = describe_workloads(conditions, points.first().map(|point| &point.figures));
    let note = format!("{model}; {workloads}. Each point is a separate run.");
    let well = curve(points, rate, |point| Some(point.window.succeeded_per_second));
    let good = curve(points, rate, |point| Some(point.window.good_per_second));
    let chart = |title: &str, y: &str, scale, series| {
        let x = AxisSpec::new("offered rate (requests/s)", Scale::Log);
        draw(&Chart { title: title.into(), x, y: AxisSpec::new(y, scale), series, marks: marks(), note: note.clone() })
    };
    html! {
        (chart("Time to first character over rate", "time to first character", Scale::LogTime, first))
        (chart("Gaps over rate", "gap between messages", Scale::LogTime,
            percentiles(points, rate, |figures| figures.gap_ns, "gap")))
        (chart("Answered over offered", "requests/s", Scale::Linear, vec![line("succeeded", well), line("good", good)]))
    }
}

/// Draws speed and latency over concurrency.
pub(super) fn batches(model: &str, points: &[LoadPoint], conditions: &Conditions) -> Markup {
    let all = curve(points, concurrency, |point| Some(point.window.chars_per_second));
    let each = curve(points, concurrency, |point| point.figures.chars_per_second.p50);
    let tokens = curve(points, concurrency, |point| point.figures.summaries.as_ref()?.tokens_per_second.p50);
    let workloads = describe_workloads(conditions, points.first().map(|point| &point.figures));
    let remark =
        " Characters of summaries depend on what the model writes with its tokens: compare tokens between models.";
    let has_summaries = points.iter().any(|point| point.figures.summaries.is_some());
    let remark = if has_summaries { remark } else { "" };
    let note = format!("{model}; {workloads}. Each point is a separate run.{remark}");
    let chart = |title: &str, y: &str, scale, series| {
        let x = AxisSpec::new("requests at a time", Scale::Log);
        draw(&Chart { title: title.into(), x, y: AxisSpec::new(y, scale), series, marks: vec![], note: note.clone() })
    };
    html! {
        (chart("Batch-size curve", "characters/s", Scale::Linear,
            vec![line("all requests together", all), line("one request, median", each)]))
        @if !tokens.is_empty() {
            (chart("Tokens of a summary over batch size", "tokens/s (reported by the server)", Scale::Linear,
                vec![line("one summary, median", tokens)]))
        }
        (chart("Gaps over batch size", "gap between messages", Scale::LogTime,
            percentiles(points, concurrency, |figures| figures.gap_ns, "gap")))
    }
}

/// Returns the outline of a distribution: the share of the values in each bar.
fn steps(bars: &[HistogramBar]) -> Vec<(f64, f64)> {
    let all: u64 = bars.iter().map(|bar| bar.count).sum();
    let mut points = Vec::new();
    let mut end = None;
    for bar in bars {
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

pub(super) fn gaps(title: &str, figures: &RequestFigures, conditions: &Conditions) -> Markup {
    let stepped = |label: String, bars: &[HistogramBar]| ChartSeries { label, points: steps(bars), steps: true };
    let count = |spread: Option<Percentiles>| spread.map_or(0, |spread| spread.count);
    let series = match (figures.plain_gap_ns, figures.boundary_gap_ns) {
        (Some(_), Some(_)) => vec![
            stepped(format!("plain, {} gaps", count(figures.plain_gap_ns)), &figures.plain_gap_bars),
            stepped(format!("boundary, {} gaps", count(figures.boundary_gap_ns)), &figures.boundary_gap_bars),
        ],
        _ => vec![stepped(format!("all {} gaps", figures.gap_ns.count), &figures.plain_gap_bars)],
    };
    let series: Vec<_> = series.into_iter().filter(|series| !series.points.is_empty()).collect();
    if series.is_empty() {
        return html! { p.note { "No gaps: no request that succeeded had more than one message." } };
    }
    draw(&Chart {
        title: format!("Distribution of gaps: {title}"),
        x: AxisSpec::new("gap between messages", Scale::LogTime),
        y: AxisSpec::new("share of its kind (%)", Scale::Linear),
        series,
        marks: vec![],
        note: format!("{}. A step spans a 24th of a factor of ten.", describe_workloads(conditions, Some(figures))),
    })
}

pub(super) fn timeline(model: &str, point: &LoadPoint) -> Markup {
    let values = |value: fn(&TimelineSample) -> Option<f64>| -> Vec<(f64, f64)> {
        let long = point.timeline.iter().filter(|sample| sample.span_ns > 10_000_000);
        let middle = |sample: &TimelineSample| sample.at_ns as f64 + sample.span_ns as f64 / 2.0;
        long.filter_map(|sample| Some((middle(sample), value(sample)?))).collect()
    };
    let note = format!(
        "{model}, {}. Until the last request had ended; the measured window is {} long.",
        point.load.describe(),
        crate::units::time(point.window.window_ns as f64)
    );
    let chart = |title: &str, y: &str, scale, series| {
        let x = AxisSpec::new("time since the end of the warm-up", Scale::Time);
        draw(&Chart { title: title.into(), x, y: AxisSpec::new(y, scale), series, marks: vec![], note: note.clone() })
    };
    let speed = values(|sample| Some(sample.characters as f64 / (sample.span_ns as f64 / 1e9)));
    html! {
        (chart("Timeline: characters", "characters/s, all requests", Scale::Linear, vec![line("characters/s", speed)]))
        (chart("Timeline: requests in flight", "requests", Scale::Linear,
            vec![line("in flight", values(|sample| Some(sample.in_flight as f64)))]))
        (chart("Timeline: time to first character", "time to first character", Scale::LogTime, vec![
            line("median of requests that ended then", values(|sample| sample.time_to_first_char_p50_ns)),
            line("maximum of these", values(|sample| sample.time_to_first_char_max_ns)),
        ]))
    }
}

/// Draws bits per character over the measured time per character.
pub(super) fn gains(comparison: &ModelComparison) -> Markup {
    let series: Vec<_> = comparison
        .models
        .iter()
        .filter_map(|model| Some(line(&model.model, vec![(model.medians().char_ns?, model.bits_per_char?)])))
        .collect();
    if series.is_empty() {
        return html! {};
    }
    draw(&Chart {
        title: "Time and quality per character".into(),
        x: AxisSpec::new("time per character, median of rounds", Scale::Time),
        y: AxisSpec::new("bits per character", Scale::Zoomed),
        series,
        marks: vec![],
        note: format!(
            "{} complete rounds, {} at a time; nearer to the lower left corner is better. The axis of bits does not begin at 0.",
            comparison.complete, comparison.concurrency
        ),
    })
}
