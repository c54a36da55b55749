//! Which entries make which lines.

use super::{Line, Panel, Point, Wrong};
use crate::error::clip;
use serde_json::Value;
use std::ops::RangeInclusive;

/// The most rows whose speed is told in bytes of weights: a chunk of prefill reads them once for hundreds of rows.
const MOST_STREAMED: f64 = 16.0;

/// The numbers that are drawn: far beyond anything measured, and no sum or quotient of them leaves what a float holds.
const DRAWN: RangeInclusive<f64> = 1e-30..=1e30;
/// Bytes of an entry or a value that an error repeats.
const QUOTED: usize = 80;

/// Panels that entries are added to.
pub(super) struct Panels {
    speed: Panel,
    time: Panel,
    ratio: Panel,
    prefill: Panel,
    flops: Panel,
    kernels: Vec<Panel>,
}

impl Default for Panels {
    fn default() -> Self {
        let [speed, time, ratio, prefill, flops] = empty();
        Self { speed, time, ratio, prefill, flops, kernels: Vec::new() }
    }
}

impl Panels {
    /// Draws an entry into the panels of its kind.
    pub(super) fn add(&mut self, entry: &Value) -> Result<(), Wrong> {
        let has = |key: &str| entry.get(key).is_some();
        if has("ratio") && has("a") && has("b") {
            for side in ["a", "b"] {
                let within = |wrong: Wrong| Wrong { key: format!("{side}.{}", wrong.key), ..wrong };
                decode(&entry[side], &mut self.speed, &mut self.time).map_err(within)?;
            }
            compare(entry, &mut self.ratio)
        } else if has("chars_per_second") {
            decode(entry, &mut self.speed, &mut self.time)
        } else if has("symbols_per_second") {
            prefilled(entry, &mut self.prefill, &mut self.flops)
        } else if has("kernel") {
            kernel(entry, &mut self.kernels)
        } else {
            let expected = "a measurement of weir bench decode, compare, prefill or kernels, as --json prints it";
            Err(Wrong { key: String::new(), expected: expected.into(), found: clip(&entry.to_string(), QUOTED) })
        }
    }

    /// Those that have lines.
    pub(super) fn finish(self) -> Vec<Panel> {
        let Self { speed, time, ratio, prefill, flops, kernels } = self;
        let all = [speed, time, ratio, prefill, flops].into_iter().chain(kernels);
        all.filter(|panel| !panel.lines.is_empty()).map(sorted).collect()
    }
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

fn wrong(entry: &Value, key: &str, expected: impl Into<String>) -> Wrong {
    let found = entry.get(key).map_or("nothing".into(), |value| clip(&value.to_string(), QUOTED));
    Wrong { key: key.into(), expected: expected.into(), found }
}

/// A number, where there is one.
fn optional(entry: &Value, key: &str) -> Result<Option<f64>, Wrong> {
    let Some(value) = entry.get(key).filter(|value| !value.is_null()) else { return Ok(None) };
    let number = value.as_f64().filter(|number| DRAWN.contains(number));
    let expected = || format!("a number from {:e} to {:e}", DRAWN.start(), DRAWN.end());
    number.map(Some).ok_or_else(|| wrong(entry, key, expected()))
}

/// Two numbers, where there are both.
fn pair(entry: &Value, keys: [&str; 2]) -> Result<Option<(f64, f64)>, Wrong> {
    Ok(optional(entry, keys[0])?.zip(optional(entry, keys[1])?))
}

fn number(entry: &Value, key: &str) -> Result<f64, Wrong> {
    optional(entry, key)?.ok_or_else(|| wrong(entry, key, "a number"))
}

fn text<'a>(entry: &'a Value, key: &str) -> Result<&'a str, Wrong> {
    entry.get(key).and_then(Value::as_str).ok_or_else(|| wrong(entry, key, "a string"))
}

/// A whole number, where there is one.
fn whole(entry: &Value, key: &str) -> Result<Option<u64>, Wrong> {
    let Some(value) = entry.get(key).filter(|value| !value.is_null()) else { return Ok(None) };
    value.as_u64().map(Some).ok_or_else(|| wrong(entry, key, "a whole number"))
}

/// What tells an entry's line from others.
fn label(entry: &Value) -> Result<String, Wrong> {
    let threads = number(entry, "threads")?;
    let mut label = format!("{}, {}, threads {threads}", text(entry, "model")?, text(entry, "dtype")?);
    // entries saved by older versions tell none
    if let Some(isa) = entry.get("isa").and_then(Value::as_str) {
        label += &format!(", {isa}");
    }
    for (key, name) in [("context", "context"), ("boundary_wait", "wait"), ("chunk", "chunk")] {
        if let Some(value) = whole(entry, key)? {
            label += &format!(", {name} {value}");
        }
    }
    Ok(label)
}

fn add(panel: &mut Panel, label: String, point: Point) {
    match panel.lines.iter_mut().find(|line| line.label == label) {
        Some(line) => line.points.push(point),
        None => panel.lines.push(Line { label, points: vec![point] }),
    }
}

fn decode(entry: &Value, speed: &mut Panel, time: &mut Panel) -> Result<(), Wrong> {
    let (x, y, label) = (number(entry, "batch")?, number(entry, "chars_per_second")?, label(entry)?);
    // where rows wait, a round does not give a character to each, and its time says little about a character's
    let even = x < 2.0 || whole(entry, "boundary_wait")?.is_none_or(|wait| wait == 0);
    let steps = pair(entry, ["step_ns_p10", "step_ns_p90"])?.filter(|_| even);
    let bar = steps.map(|(fast, slow)| (x / slow * 1e9, x / fast * 1e9));
    add(speed, label.clone(), Point { x, y, bar, bound: None });
    let bar = steps.map(|(fast, slow)| (fast / x / 1e3, slow / x / 1e3));
    let floor = pair(entry, ["bytes_per_char", "ceiling_bytes_per_second"])?;
    let bound = floor.map(|(bytes, ceiling)| bytes / ceiling * 1e6);
    add(time, label, Point { x, y: 1e6 / y, bar, bound });
    Ok(())
}

fn compare(entry: &Value, panel: &mut Panel) -> Result<(), Wrong> {
    let (told, a, b) = (&entry["ratio"], &entry["a"], &entry["b"]);
    let label = format!("{} / {}", label(a)?, text(b, "model")?);
    let bar = pair(told, ["p10", "p90"])?;
    add(panel, label, Point { x: number(a, "batch")?, y: number(told, "median")?, bar, bound: None });
    Ok(())
}

fn prefilled(entry: &Value, speed: &mut Panel, flops: &mut Panel) -> Result<(), Wrong> {
    let (x, label) = (number(entry, "symbols")?, label(entry)?);
    let runs = pair(entry, ["run_ns_p10", "run_ns_p90"])?;
    let bar = runs.map(|(fast, slow)| (x / slow * 1e9, x / fast * 1e9));
    add(speed, label.clone(), Point { x, y: number(entry, "symbols_per_second")?, bar, bound: None });
    add(flops, label, Point { x, y: number(entry, "gflops")?, bar: None, bound: optional(entry, "peak_gflops")? });
    Ok(())
}

fn kernel(entry: &Value, panels: &mut Vec<Panel>) -> Result<(), Wrong> {
    let (kernel, threads) = (text(entry, "kernel")?, number(entry, "threads")?);
    let times = (number(entry, "ns_p50")?, number(entry, "ns_p10")?, number(entry, "ns_p90")?);
    let point = |x: f64, y: f64, bound: Option<f64>| {
        let bar = Some((y * times.0 / times.2, y * times.0 / times.1));
        Point { x, y, bar, bound }
    };
    let read = |x: f64| {
        let bound = optional(entry, "ceiling_bytes_per_second")?.map(|bytes| bytes / 1e9);
        Ok(point(x, number(entry, "bytes_per_second")? / 1e9, bound))
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
        let bound = optional(entry, "peak_gflops")?;
        add(titled(panels, made), label, point(rows, number(entry, "gflops")?, bound));
    } else if kernel.starts_with("attention") {
        let title = format!("Attention of one row, threads {threads}");
        let made = panel(&title, "keys", "GB/s of keys, values, distances", true, streamed);
        let label = format!("{kernel}, {}", text(entry, "dtype")?);
        add(titled(panels, made), label, read(number(entry, "keys")?)?);
    }
    // the others are single numbers: a table tells them better
    Ok(())
}

fn sorted(mut panel: Panel) -> Panel {
    for line in &mut panel.lines {
        line.points.sort_by(|a, b| a.x.total_cmp(&b.x));
    }
    panel
}
