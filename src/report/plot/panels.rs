//! Which entries make which lines.

use super::{Line, Panel, Point};
use serde_json::Value;

/// The panels of the entries, or the number of one that nothing is known about.
pub(super) fn panels(entries: &[Value]) -> Result<Vec<Panel>, usize> {
    let [mut speed, mut time, mut ratio, mut prefill, mut flops] = empty();
    let [mut cold, mut hot, mut rate, mut attention] = empty_kernels();
    for (index, entry) in entries.iter().enumerate() {
        let known = if entry.get("ratio").is_some() && entry.get("a").is_some() {
            [&entry["a"], &entry["b"]].into_iter().all(|side| decode(side, &mut speed, &mut time).is_some())
                && compare(entry, &mut ratio).is_some()
        } else if entry.get("chars_per_second").is_some() {
            decode(entry, &mut speed, &mut time).is_some()
        } else if entry.get("symbols_per_second").is_some() {
            prefilled(entry, &mut prefill, &mut flops).is_some()
        } else {
            kernel(entry, [&mut cold, &mut hot, &mut rate, &mut attention]).is_some()
        };
        if !known {
            return Err(index);
        }
    }
    let all = [speed, time, ratio, prefill, flops, cold, hot, rate, attention];
    Ok(all.into_iter().filter(|panel| !panel.lines.is_empty()).map(sorted).collect())
}

fn panel(title: &str, x: &str, y: &str, log_y: bool, note: &str) -> Panel {
    let [title, x, y, note] = [title, x, y, note].map(str::to_owned);
    Panel { title, x, y, log_y, note, lines: Vec::new() }
}

fn empty() -> [Panel; 5] {
    let steps = "Bars: p10 to p90 of single steps. Points: sum of all steps.";
    let floor = "Bars: p10 to p90 of single steps. Dotted: floor, bytes to read / measured read bandwidth.";
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
        panel("Prefill: arithmetic", "prompt (symbols)", "GFLOP/s", false, "Dotted: measured peak."),
    ]
}

fn empty_kernels() -> [Panel; 4] {
    let read = "Bars: p10 to p90 of calls. Dotted: streaming read of the same working set.";
    let peak = "Bars: p10 to p90 of calls. Dotted: measured peak in f32.";
    [
        panel("Matrices, cold weights", "rows", "GB/s of weights", true, read),
        panel("Matrices, hot weights", "rows", "GB/s of weights", true, read),
        panel("Matrices: arithmetic", "rows", "GFLOP/s", true, peak),
        panel("Attention of one row", "keys", "GB/s of keys, values, distances", true, read),
    ]
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
    let steps = number(entry, "step_ns_p10").zip(number(entry, "step_ns_p90"));
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

fn kernel(entry: &Value, [cold, hot, rate, attention]: [&mut Panel; 4]) -> Option<()> {
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
    if kernel == "matrix" {
        let (rows, weights) = (number(entry, "rows")?, text(entry, "weights")?);
        let (inputs, outputs) = (number(entry, "inputs")?, number(entry, "outputs")?);
        let label = format!("{inputs} -> {outputs}, {}, threads {threads}", text(entry, "dtype")?);
        add(if weights == "cold" { cold } else { hot }, label.clone(), read(rows)?);
        let peak = number(entry, "peak_gflops");
        add(rate, format!("{label}, {weights}"), point(rows, number(entry, "gflops")?, peak));
    } else if kernel.starts_with("attention") {
        add(attention, format!("{kernel}, threads {threads}"), read(number(entry, "keys")?)?);
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
