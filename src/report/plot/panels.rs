//! Which entries make which lines.

use super::{Line, Panel, Point};
use serde_json::Value;

/// The most rows whose speed is told in bytes of weights: a chunk of prefill reads them once for hundreds of rows.
const MOST_STREAMED: f64 = 16.0;

/// The panels of the entries, or the number of one that nothing is known about.
pub(super) fn panels(entries: &[Value]) -> Result<Vec<Panel>, usize> {
    let [mut speed, mut time, mut ratio, mut prefill, mut flops] = empty();
    let mut kernels = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let known = if entry.get("ratio").is_some() && entry.get("a").is_some() {
            [&entry["a"], &entry["b"]].into_iter().all(|side| decode(side, &mut speed, &mut time).is_some())
                && compare(entry, &mut ratio).is_some()
        } else if entry.get("chars_per_second").is_some() {
            decode(entry, &mut speed, &mut time).is_some()
        } else if entry.get("symbols_per_second").is_some() {
            prefilled(entry, &mut prefill, &mut flops).is_some()
        } else {
            kernel(entry, &mut kernels).is_some()
        };
        if !known {
            return Err(index);
        }
    }
    let all = [speed, time, ratio, prefill, flops].into_iter().chain(kernels);
    Ok(all.filter(|panel| !panel.lines.is_empty()).map(sorted).collect())
}

fn panel(title: &str, x: &str, y: &str, log_y: bool, note: &str) -> Panel {
    let [title, x, y, note] = [title, x, y, note].map(str::to_owned);
    Panel { title, x, y, log_y, note, lines: Vec::new() }
}

fn empty() -> [Panel; 5] {
    let steps = "Bars: p10 to p90 of single steps. Points: sum of all steps.";
    let floor = "Bars: p10 to p90 of single steps. Hollow: floor, bytes to read / measured read bandwidth.";
    [
        panel("Decoding: speed", "batch (rows)", "characters per second, all rows", false, steps),
        panel("Decoding: time and its floor", "batch (rows)", "microseconds per character", true, floor),
        panel(
            "Compared: A / B",
            "batch (rows)",
            "speed of A / speed of B",
            false,
            "Bars: p10 to p90 of pairs of runs.",
        ),
        panel("Prefill: speed", "prompt (symbols)", "symbols per second", false, "Bars: p10 to p90 of runs."),
        panel("Prefill: arithmetic", "prompt (symbols)", "GFLOP/s", false, "Hollow: measured peak in f32."),
    ]
}

/// The panel of that title, made if there is none.
fn titled(panels: &mut Vec<Panel>, made: Panel) -> &mut Panel {
    let at = panels.iter().position(|panel| panel.title == made.title).unwrap_or_else(|| {
        panels.push(made);
        panels.len() - 1
    });
    &mut panels[at]
}

fn number(entry: &Value, key: &str) -> Option<f64> {
    entry.get(key)?.as_f64().filter(|number| number.is_finite() && *number > 0.0)
}

fn text<'a>(entry: &'a Value, key: &str) -> Option<&'a str> {
    entry.get(key)?.as_str()
}

/// What tells an entry's line from others.
fn label(entry: &Value) -> Option<String> {
    let threads = number(entry, "threads")?;
    let mut label = format!("{}, {}, threads {threads}", text(entry, "model")?, text(entry, "dtype")?);
    let whole = |key: &str| entry.get(key).and_then(Value::as_u64);
    for (key, name) in [("context", "context"), ("boundary_wait", "wait"), ("chunk", "chunk")] {
        if let Some(value) = whole(key) {
            label += &format!(", {name} {value}");
        }
    }
    Some(label)
}

fn add(panel: &mut Panel, label: String, point: Point) {
    match panel.lines.iter_mut().find(|line| line.label == label) {
        Some(line) => line.points.push(point),
        None => panel.lines.push(Line { label, points: vec![point] }),
    }
}

fn decode(entry: &Value, speed: &mut Panel, time: &mut Panel) -> Option<()> {
    let (x, y, label) = (number(entry, "batch")?, number(entry, "chars_per_second")?, label(entry)?);
    // where rows wait, a round does not give a character to each, and its time says little about a character's
    let even = x < 2.0 || number(entry, "boundary_wait").is_none_or(|wait| wait < 1.0);
    let steps = number(entry, "step_ns_p10").zip(number(entry, "step_ns_p90")).filter(|_| even);
    let bar = steps.map(|(fast, slow)| (x / slow * 1e9, x / fast * 1e9));
    add(speed, label.clone(), Point { x, y, bar, bound: None });
    let bar = steps.map(|(fast, slow)| (fast / x / 1e3, slow / x / 1e3));
    let floor = number(entry, "bytes_per_char").zip(number(entry, "ceiling_bytes_per_second"));
    let bound = floor.map(|(bytes, ceiling)| bytes / ceiling * 1e6);
    add(time, label, Point { x, y: 1e6 / y, bar, bound });
    Some(())
}

fn compare(entry: &Value, panel: &mut Panel) -> Option<()> {
    let (told, a, b) = (entry.get("ratio")?, entry.get("a")?, entry.get("b")?);
    let label = format!("{} / {}", label(a)?, text(b, "model")?);
    let bar = number(told, "p10").zip(number(told, "p90"));
    add(panel, label, Point { x: number(a, "batch")?, y: number(told, "median")?, bar, bound: None });
    Some(())
}

fn prefilled(entry: &Value, speed: &mut Panel, flops: &mut Panel) -> Option<()> {
    let (x, label) = (number(entry, "symbols")?, label(entry)?);
    let runs = number(entry, "run_ns_p10").zip(number(entry, "run_ns_p90"));
    let bar = runs.map(|(fast, slow)| (x / slow * 1e9, x / fast * 1e9));
    add(speed, label.clone(), Point { x, y: number(entry, "symbols_per_second")?, bar, bound: None });
    add(flops, label, Point { x, y: number(entry, "gflops")?, bar: None, bound: number(entry, "peak_gflops") });
    Some(())
}

fn kernel(entry: &Value, panels: &mut Vec<Panel>) -> Option<()> {
    let (kernel, threads) = (text(entry, "kernel")?, number(entry, "threads")?);
    let times = (number(entry, "ns_p50")?, number(entry, "ns_p10")?, number(entry, "ns_p90")?);
    let point = |x: f64, y: f64, bound: Option<f64>| {
        let bar = Some((y * times.0 / times.2, y * times.0 / times.1));
        Point { x, y, bar, bound }
    };
    let read = |x: f64| {
        let bound = number(entry, "ceiling_bytes_per_second").map(|bytes| bytes / 1e9);
        Some(point(x, number(entry, "bytes_per_second")? / 1e9, bound))
    };
    let streamed = "Bars: p10 to p90 of timed groups of calls. Hollow: streaming read of the same working set.";
    let peak = "Bars: p10 to p90 of timed groups of calls. Hollow: measured peak in f32.";
    if kernel == "matrix" {
        let (rows, weights) = (number(entry, "rows")?, text(entry, "weights")?);
        let (inputs, outputs) = (number(entry, "inputs")?, number(entry, "outputs")?);
        let about = format!("{}, {weights} weights, threads {threads}", text(entry, "dtype")?);
        let label = format!("{inputs} -> {outputs}");
        if rows <= MOST_STREAMED {
            let made = panel(&format!("Reading: {about}"), "rows", "GB/s of weights", true, streamed);
            add(titled(panels, made), label.clone(), read(rows)?);
        }
        let made = panel(&format!("Arithmetic: {about}"), "rows", "GFLOP/s", true, peak);
        let bound = number(entry, "peak_gflops");
        add(titled(panels, made), label, point(rows, number(entry, "gflops")?, bound));
    } else if kernel.starts_with("attention") {
        let title = format!("Attention of one row, threads {threads}");
        let made = panel(&title, "keys", "GB/s of keys, values, distances", true, streamed);
        let label = format!("{kernel}, {}", text(entry, "dtype")?);
        add(titled(panels, made), label, read(number(entry, "keys")?)?);
    }
    // the others are single numbers: a table tells them better
    Some(())
}

fn sorted(mut panel: Panel) -> Panel {
    for line in &mut panel.lines {
        line.points.sort_by(|a, b| a.x.total_cmp(&b.x));
    }
    panel
}
