//! Charts of measurements, drawn from their JSON, so that new and saved measurements look alike.

use serde_json::Value;
use std::{ops::RangeInclusive, path::PathBuf};
use weir_kernels::error::{Error, Result, clip};
use weir_measure::chart::{self, Axis, Chart, Point, Scale, Series};

pub(crate) const MAX_ENTRIES: usize = 10_000;

#[derive(Debug, Clone)]
pub(crate) struct MeasurementFile {
    /// File, or another name for errors.
    pub name: PathBuf,
    /// Entries that `weir bench --json` printed.
    pub entries: Vec<Value>,
}

/// Draws entries of `weir bench decode`, `compare`, `prefill` and `kernels` as SVG. `field` names the option in errors.
/// Fails if there are no entries or more than [`MAX_ENTRIES`]; the error for an entry that cannot be drawn names the entry.
pub(crate) fn svg(field: &'static str, sources: &[MeasurementFile]) -> Result<String> {
    let count: usize = sources.iter().map(|source| source.entries.len()).sum();
    if !(1..=MAX_ENTRIES).contains(&count) {
        let bound = format!("1 to {MAX_ENTRIES} measurements");
        return Err(Error::BadOption { field, found: count.to_string(), bound });
    }
    let mut panels = Panels::default();
    for MeasurementFile { name, entries } in sources {
        for (index, entry) in entries.iter().enumerate() {
            panels.add(entry).map_err(|EntryError { key, expected, found }| {
                let location = if key.is_empty() { format!("entry {index}") } else { format!("entry {index}, {key}") };
                Error::checkpoint(name, location, expected, found)
            })?;
        }
    }
    Ok(chart::picture(&panels.finish()))
}

/// Maximum rows of the read-rate chart. A prefill chunk reads the weights once for hundreds of rows.
const MAX_READ_ROWS: f64 = 16.0;

/// Values that can be drawn. No sum or quotient of them overflows.
const DRAWABLE: RangeInclusive<f64> = 1e-30..=1e30;

/// Maximum bytes of an entry or value that an error quotes.
const MAX_QUOTED: usize = 80;

#[derive(Debug, Clone, PartialEq)]
struct EntryError {
    /// Dotted key of the wrong value; empty for the entry itself.
    key: String,
    expected: String,
    found: String,
}

struct Panels {
    speed: Chart,
    time: Chart,
    ratio: Chart,
    prefill: Chart,
    flops: Chart,
    kernels: Vec<Chart>,
}

impl Default for Panels {
    fn default() -> Self {
        let steps = "Bars: p10 to p90 of single steps. Points: sum of all steps.";
        let floor = "Bars: p10 to p90 of single steps. Hollow: floor, bytes to read / measured read bandwidth.";
        let pairs = "Bars: p10 to p90 of pairs of runs.";
        let runs = "Bars: p10 to p90 of runs.";
        let peak = "Hollow: measured peak in f32.";
        Self {
            speed: panel("Decoding: speed", "batch (rows)", "characters per second, all rows", false, steps),
            time: panel("Decoding: time and its floor", "batch (rows)", "microseconds per character", true, floor),
            ratio: panel("Compared: A / B", "batch (rows)", "speed of A / speed of B", false, pairs),
            prefill: panel("Prefill: speed", "prompt (symbols)", "symbols per second", false, runs),
            flops: panel("Prefill: arithmetic", "prompt (symbols)", "GFLOP/s", false, peak),
            kernels: Vec::new(),
        }
    }
}

impl Panels {
    fn add(&mut self, entry: &Value) -> Result<(), EntryError> {
        let has = |key: &str| entry.get(key).is_some();
        if has("ratio") && has("a") && has("b") {
            for side in ["a", "b"] {
                let in_side = |error: EntryError| EntryError { key: format!("{side}.{}", error.key), ..error };
                decode(&entry[side], &mut self.speed, &mut self.time).map_err(in_side)?;
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
            let found = clip(&entry.to_string(), MAX_QUOTED);
            Err(EntryError { key: String::new(), expected: expected.into(), found })
        }
    }

    fn finish(self) -> Vec<Chart> {
        let Self { speed, time, ratio, prefill, flops, kernels } = self;
        let all = [speed, time, ratio, prefill, flops].into_iter().chain(kernels);
        all.filter(|panel| !panel.series.is_empty()).map(sorted).collect()
    }
}

fn panel(title: &str, x: &str, y: &str, log_y: bool, note: &str) -> Chart {
    let y = Axis::new(y, if log_y { Scale::Log } else { Scale::Linear });
    Chart {
        title: title.to_owned(),
        x: Axis::new(x, Scale::Counts),
        y,
        series: Vec::new(),
        marks: Vec::new(),
        note: note.to_owned(),
    }
}

/// Returns the panel with the title of `new`, which is added if there is none.
fn find_or_add(panels: &mut Vec<Chart>, new: Chart) -> &mut Chart {
    let index = panels.iter().position(|panel| panel.title == new.title).unwrap_or_else(|| {
        panels.push(new);
        panels.len() - 1
    });
    &mut panels[index]
}

fn wrong(entry: &Value, key: &str, expected: impl Into<String>) -> EntryError {
    let found = entry.get(key).map_or("nothing".into(), |value| clip(&value.to_string(), MAX_QUOTED));
    EntryError { key: key.into(), expected: expected.into(), found }
}

/// Returns the number at `key`, if there is one.
fn optional(entry: &Value, key: &str) -> Result<Option<f64>, EntryError> {
    let Some(value) = entry.get(key).filter(|value| !value.is_null()) else { return Ok(None) };
    let number = value.as_f64().filter(|number| DRAWABLE.contains(number));
    let expected = || format!("a number from {:e} to {:e}", DRAWABLE.start(), DRAWABLE.end());
    number.map(Some).ok_or_else(|| wrong(entry, key, expected()))
}

/// Returns the numbers at two keys, if there are both.
fn pair(entry: &Value, keys: [&str; 2]) -> Result<Option<(f64, f64)>, EntryError> {
    Ok(optional(entry, keys[0])?.zip(optional(entry, keys[1])?))
}

fn number(entry: &Value, key: &str) -> Result<f64, EntryError> {
    optional(entry, key)?.ok_or_else(|| wrong(entry, key, "a number"))
}

fn text<'a>(entry: &'a Value, key: &str) -> Result<&'a str, EntryError> {
    entry.get(key).and_then(Value::as_str).ok_or_else(|| wrong(entry, key, "a string"))
}

/// Returns the integer at `key`, if there is one.
fn integer(entry: &Value, key: &str) -> Result<Option<u64>, EntryError> {
    let Some(value) = entry.get(key).filter(|value| !value.is_null()) else { return Ok(None) };
    value.as_u64().map(Some).ok_or_else(|| wrong(entry, key, "a whole number"))
}

fn label(entry: &Value) -> Result<String, EntryError> {
    let threads = number(entry, "threads")?;
    let mut label = format!("{}, {}, threads {threads}", text(entry, "model")?, text(entry, "dtype")?);
    // older versions did not save the instruction set
    if let Some(isa) = entry.get("isa").and_then(Value::as_str) {
        label += &format!(", {isa}");
    }
    for (key, name) in [("context", "context"), ("boundary_wait", "wait"), ("chunk", "chunk")] {
        if let Some(value) = integer(entry, key)? {
            label += &format!(", {name} {value}");
        }
    }
    Ok(label)
}

fn add(panel: &mut Chart, label: String, point: Point) {
    match panel.series.iter_mut().find(|line| line.label == label) {
        Some(line) => line.points.push(point),
        None => {
            let index = panel.series.len();
            panel.series.push(Series { label, points: vec![point], steps: false, colour: index, dash: index });
        }
    }
}

fn decode(entry: &Value, speed: &mut Chart, time: &mut Chart) -> Result<(), EntryError> {
    let x = number(entry, "batch")?;
    let y = number(entry, "chars_per_second")?;
    let label = label(entry)?;
    // if rows wait, a round does not produce one character per row, so its time is not the time of a character
    let one_char_per_row = x < 2.0 || integer(entry, "boundary_wait")?.is_none_or(|wait| wait == 0);
    let steps = pair(entry, ["step_ns_p10", "step_ns_p90"])?.filter(|_| one_char_per_row);
    let bar = steps.map(|(fast, slow)| (x / slow * 1e9, x / fast * 1e9));
    add(speed, label.clone(), Point { x, y, bar, limit: None });
    let bar = steps.map(|(fast, slow)| (fast / x / 1e3, slow / x / 1e3));
    let floor = pair(entry, ["bytes_per_char", "ceiling_bytes_per_second"])?;
    let limit = floor.map(|(bytes, ceiling)| bytes / ceiling * 1e6);
    add(time, label, Point { x, y: 1e6 / y, bar, limit });
    Ok(())
}

fn compare(entry: &Value, panel: &mut Chart) -> Result<(), EntryError> {
    let ratio = &entry["ratio"];
    let a = &entry["a"];
    let label = format!("{} / {}", label(a)?, text(&entry["b"], "model")?);
    let bar = pair(ratio, ["p10", "p90"])?;
    add(panel, label, Point { x: number(a, "batch")?, y: number(ratio, "median")?, bar, limit: None });
    Ok(())
}

fn prefilled(entry: &Value, speed: &mut Chart, flops: &mut Chart) -> Result<(), EntryError> {
    let x = number(entry, "symbols")?;
    let label = label(entry)?;
    let runs = pair(entry, ["run_ns_p10", "run_ns_p90"])?;
    let bar = runs.map(|(fast, slow)| (x / slow * 1e9, x / fast * 1e9));
    add(speed, label.clone(), Point { x, y: number(entry, "symbols_per_second")?, bar, limit: None });
    add(flops, label, Point { x, y: number(entry, "gflops")?, bar: None, limit: optional(entry, "peak_gflops")? });
    Ok(())
}

fn kernel(entry: &Value, panels: &mut Vec<Chart>) -> Result<(), EntryError> {
    let kernel = text(entry, "kernel")?;
    let threads = number(entry, "threads")?;
    let p50 = number(entry, "ns_p50")?;
    let p10 = number(entry, "ns_p10")?;
    let p90 = number(entry, "ns_p90")?;
    let point = |x: f64, y: f64, limit| Point { x, y, bar: Some((y * p50 / p90, y * p50 / p10)), limit };
    let read = |x: f64| {
        let limit = optional(entry, "ceiling_bytes_per_second")?.map(|bytes| bytes / 1e9);
        Ok(point(x, number(entry, "bytes_per_second")? / 1e9, limit))
    };
    let read_note = "Bars: p10 to p90 of timed groups of calls. Hollow: streaming read of the same working set.";
    let peak_note = "Bars: p10 to p90 of timed groups of calls. Hollow: measured peak in f32.";
    if kernel == "matrix" {
        let rows = number(entry, "rows")?;
        let weights = text(entry, "weights")?;
        let label = format!("{} -> {}", number(entry, "inputs")?, number(entry, "outputs")?);
        let about = format!("{}, {weights} weights, threads {threads}", text(entry, "dtype")?);
        if rows <= MAX_READ_ROWS {
            let new = panel(&format!("Reading: {about}"), "rows", "GB/s of weights", true, read_note);
            add(find_or_add(panels, new), label.clone(), read(rows)?);
        }
        let new = panel(&format!("Arithmetic: {about}"), "rows", "GFLOP/s", true, peak_note);
        let limit = optional(entry, "peak_gflops")?;
        add(find_or_add(panels, new), label, point(rows, number(entry, "gflops")?, limit));
    } else if kernel.starts_with("attention") {
        let title = format!("Attention of one row, threads {threads}");
        let new = panel(&title, "keys", "GB/s of keys, values, distances", true, read_note);
        let label = format!("{kernel}, {}", text(entry, "dtype")?);
        add(find_or_add(panels, new), label, read(number(entry, "keys")?)?);
    }
    // other kernels have one value each, which a table shows better
    Ok(())
}

fn sorted(mut panel: Chart) -> Chart {
    for line in &mut panel.series {
        line.points.sort_by(|a, b| a.x.total_cmp(&b.x));
    }
    panel
}
