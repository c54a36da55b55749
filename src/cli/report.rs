//! `weir report`: what a running server's models took, as the server saw it, and what it estimates that pooling spared.

use super::{output, reach::TlsArgs, runtime};
use crate::{
    error::{Error, Result},
    serve::client::{
        self, Calibration, EstimatedGain, LatencyHistogram, MeasuredSummaries, MeasuredTexts, ModelReport, ReportPeriod,
    },
};
use serde_json::json;
use std::{
    fmt::{self, Write},
    fs,
    path::PathBuf,
};

/// Tells what a running server's models took. What is measured and what is estimated is told apart in every line.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The server, as host:port or a URL.
    #[arg(value_name = "ADDRESS", default_value = "127.0.0.1:50051")]
    address: String,
    /// The model's name; all models if not given.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Of which time: since the model was loaded, since `weir admin reset-report`, or of the last minute.
    #[arg(long, value_enum, value_name = "WINDOW", env = "WEIR_WINDOW", default_value = "load")]
    window: Since,
    /// The key, if the server asks for one; best in the environment, for other users may see a command's arguments.
    #[arg(long, value_name = "KEY", env = "WEIR_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// A file with the key.
    #[arg(long, value_name = "FILE", env = "WEIR_API_KEY_FILE")]
    api_key_file: Option<PathBuf>,
    #[command(flatten)]
    tls: TlsArgs,
    /// Print JSON, distributions and all.
    #[arg(long, env = "WEIR_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,
}

/// As the command line calls windows.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Since {
    /// All since the model was loaded.
    Load,
    /// All since `weir admin reset-report`.
    Reset,
    /// The last minute, about.
    Minute,
}

/// Runs the command.
///
/// # Errors
/// The server is not there, or refuses.
pub fn run(args: Args) -> Result<()> {
    let Args { address, name, window, api_key, api_key_file, tls, json } = args;
    let key = match (api_key, api_key_file) {
        (Some(key), _) => Some(key),
        (None, Some(file)) => Some(fs::read_to_string(&file).map_err(Error::io(&file))?.trim().to_owned()),
        (None, None) => None,
    };
    let window = match window {
        Since::Load => ReportPeriod::Load,
        Since::Reset => ReportPeriod::Reset,
        Since::Minute => ReportPeriod::Minute,
    };
    let server = tls.reach(&address)?;
    let asked = client::report(&server, key.as_deref(), name, window);
    let models = runtime()?.block_on(asked)?;
    if json {
        return output::json(&json!({ "models": models }));
    }
    let mut out = String::new();
    for model in &models {
        tell(&mut out, model).map_err(|_| Error::Internal("a report that cannot be written".into()))?;
    }
    output::write(&out)
}

fn tell(out: &mut String, model: &ModelReport) -> fmt::Result {
    let ModelReport { model: name, family, shape, dtype, generation, window_ns, .. } = model;
    let over = time(*window_ns);
    writeln!(out, "{name} ({family}, {shape}, {dtype}, generation {generation}), over {over}")?;
    if let Some(texts) = &model.texts {
        tell_texts(out, texts)?;
    }
    if let Some(summaries) = &model.summaries {
        tell_summaries(out, summaries)?;
    }
    if let Some(cache) = &model.cache {
        let (hits, lookups) = (cache.hits, cache.hits + cache.misses);
        let (found, asked) = (cache.found_chars, cache.looked_up_chars);
        writeln!(out, "  measured cache: {hits} of {lookups} lookups hit; {found} of {asked} characters were there")?;
        if let Some(spared) = cache.prefill_spared_estimate_ns {
            writeln!(out, "  ESTIMATED cache: it spared {} of prefill", time(spared))?;
        }
    }
    if let Some(gain) = &model.estimated_gain {
        tell_gain(out, gain)?;
    }
    if let Some(why) = &model.estimate_missing {
        writeln!(out, "  no estimate of the gain: {why}")?;
    }
    writeln!(out)
}

fn tell_texts(out: &mut String, texts: &MeasuredTexts) -> fmt::Result {
    let MeasuredTexts { requests, failed, prompt_chars, generated_chars, .. } = texts;
    writeln!(
        out,
        "  measured: {requests} requests, {failed} failed; {prompt_chars} characters of prompts, {generated_chars} generated"
    )?;
    let (run, skipped) = (texts.middle_steps_run, texts.middle_steps_skipped);
    let factor = output::optional(texts.shortening_factor);
    writeln!(out, "  measured: middle steps {run} run, {skipped} skipped; shortening factor {factor}")?;
    let (rows, middle) = (output::optional(texts.rows_per_step), output::optional(texts.rows_per_middle_step));
    writeln!(out, "  measured: {} steps of {rows} rows; {middle} rows shared a middle step", texts.steps)?;
    head(out)?;
    row(out, "first character", &texts.time_to_first_char)?;
    row(out, "gap, plain", &texts.plain_gap)?;
    row(out, "gap, boundary", &texts.boundary_gap)?;
    row(out, "segment", &texts.segment)?;
    row(out, "queue", &texts.queue)?;
    row(out, "prefill", &texts.prefill)?;
    row(out, "total", &texts.total)
}

fn tell_summaries(out: &mut String, told: &MeasuredSummaries) -> fmt::Result {
    let MeasuredSummaries { requests, failed, document_tokens, summary_tokens, cached_documents, .. } = told;
    writeln!(
        out,
        "  measured: {requests} summaries, {failed} failed, {cached_documents} of documents encoded before; \
         {document_tokens} tokens read, {summary_tokens} written"
    )?;
    head(out)?;
    row(out, "queue", &told.queue)?;
    row(out, "upload", &told.upload)?;
    row(out, "encode", &told.encode)?;
    row(out, "first token", &told.time_to_first_token)?;
    row(out, "decode", &told.decode)?;
    row(out, "decode per token", &told.decode_per_token)?;
    row(out, "total", &told.total)?;
    for (index, layer) in told.layers.iter().enumerate() {
        writeln!(out, "  measured: encoder layer {index}: {} vectors, {}", layer.vectors, time(layer.took_ns))?;
    }
    let (bytes, unpooled) = (told.cross_attention_bytes, told.unpooled_cross_attention_bytes);
    writeln!(out, "  cross-attention: {bytes} bytes held, {unpooled} without pooling, by the model's shape")
}

fn tell_gain(out: &mut String, gain: &EstimatedGain) -> fmt::Result {
    let EstimatedGain { requests, prefill_gain_estimate, decode_gain_estimate, gain_estimate, .. } = *gain;
    let part = |name: &str, measured: u64, estimate: u64, ratio: Option<f64>| {
        let (took, would) = (time(measured), time(estimate));
        format!("  {name}: {took} measured, {would} ESTIMATED without pooling: {}×\n", output::optional(ratio))
    };
    writeln!(out, "  ESTIMATED gain of {requests} requests: {}×", output::optional(gain_estimate))?;
    out.push_str(&part("prefill", gain.measured_prefill_ns, gain.unpooled_prefill_estimate_ns, prefill_gain_estimate));
    out.push_str(&part("decode", gain.measured_decode_ns, gain.unpooled_decode_estimate_ns, decode_gain_estimate));
    match &gain.calibration {
        Some(calibration) => tell_calibration(out, calibration),
        None => Ok(()),
    }
}

fn tell_calibration(out: &mut String, calibration: &Calibration) -> fmt::Result {
    if let Some(doubt) = &calibration.doubt {
        writeln!(out, "  NOT TO BE TRUSTED: {doubt}")?;
    }
    let Calibration { took_ns, fewest_samples, spread, .. } = calibration;
    writeln!(
        out,
        "  from this calibration, which took {}: each step timed at least {fewest_samples} times; spread {} (interquartile range by \
         median, of whole steps)",
        time(*took_ns),
        percent(*spread)
    )?;
    let names = [
        "rows",
        "chars",
        "context",
        "segments",
        "samples",
        "spread",
        "before",
        "middle",
        "after",
        "plain before",
        "plain after",
    ];
    cells(out, &names.map(str::to_owned))?;
    for step in &calibration.steps {
        let plain = |took: Option<u64>| took.map_or("-".into(), time);
        cells(
            out,
            &[
                step.rows.to_string(),
                step.chars.to_string(),
                step.context.to_string(),
                step.segments.to_string(),
                step.samples.to_string(),
                percent(step.spread),
                time(step.symbol_ns),
                time(step.middle_ns),
                time(step.finish_ns),
                plain(step.plain_symbol_ns),
                plain(step.plain_finish_ns),
            ],
        )?;
    }
    Ok(())
}

fn cells(out: &mut String, cells: &[String]) -> fmt::Result {
    write!(out, "   ")?;
    cells.iter().try_for_each(|cell| write!(out, " {cell:>12}"))?;
    writeln!(out)
}

fn head(out: &mut String) -> fmt::Result {
    write!(out, "  {:<17}", "measured")?;
    cells(out, &["count", "mean", "p50", "p90", "p99", "p99.9", "max"].map(str::to_owned))
}

fn row(out: &mut String, name: &str, times: &Option<LatencyHistogram>) -> fmt::Result {
    let Some(times) = times.as_ref().filter(|times| times.count > 0) else { return Ok(()) };
    write!(out, "  {name:<17}")?;
    let LatencyHistogram { mean_ns, p50_ns, p90_ns, p99_ns, p999_ns, max_ns, .. } = *times;
    let told = [mean_ns, p50_ns, p90_ns, p99_ns, p999_ns, max_ns].map(time);
    cells(out, &[&[times.count.to_string()], &told[..]].concat())
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Nanoseconds with three digits and a unit.
fn time(nanoseconds: u64) -> String {
    let ns = nanoseconds as f64;
    let (value, unit) = match ns {
        _ if ns < 1e3 => (ns, "ns"),
        _ if ns < 1e6 => (ns / 1e3, "µs"),
        _ if ns < 1e9 => (ns / 1e6, "ms"),
        _ => (ns / 1e9, "s"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::time;

    #[test]
    fn times_have_three_digits_and_a_unit() {
        let told = [999, 1_234, 56_789, 345_678_000, 1_500_000_000, 90_000_000_000].map(time);
        assert_eq!(told, ["999 ns", "1.23 µs", "56.8 µs", "346 ms", "1.50 s", "90.0 s"]);
    }
}
