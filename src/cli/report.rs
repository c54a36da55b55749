//! `weir report`: latencies that a running server measured, and the time that it estimates pooling saved.

use crate::cli::model::runtime;
use crate::cli::output;
use serde_json::{Value, json};
use std::fmt::{self, Write};
use weir_client::connection::{ServerEndpoint, TIMEOUT};
use weir_client::flags::{AddressArgs, ApiKeyArgs, TlsArgs};
use weir_kernels::error::{Error, Result};
use weir_measure::format;
use weir_proto::v1::{
    CacheEffect, Calibration, EstimatedGain, KeptShares, LatencyHistogram, LevelUsage, MeasuredSummaries,
    MeasuredTexts, MedianGain, ModelReport, ReportWindow, TwinGain,
};

/// Shows the latencies of the models of a running server, by default at 127.0.0.1:50051. Each line is marked as measured or estimated.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    address: AddressArgs,
    /// Name of the model. Default: all models.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Time that the report covers.
    #[arg(long, value_enum, value_name = "WINDOW", env = "WEIR_WINDOW", default_value = "load")]
    window: WindowArg,
    #[command(flatten)]
    api_key: ApiKeyArgs,
    #[command(flatten)]
    tls: TlsArgs,
    /// Print JSON, with the full distributions.
    #[arg(long, env = "WEIR_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,
}

/// Values of `--window`.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum WindowArg {
    /// Since the model was loaded.
    Load,
    /// Since `weir admin reset-report`.
    Reset,
    /// About the last minute.
    Minute,
}

/// Runs the command. Fails if the server cannot be reached or rejects the call.
pub fn run(args: Args) -> Result<()> {
    let Args { address, name, window, api_key, tls, json } = args;
    let key = api_key.key().map_err(Error::Setting)?;
    let window = match window {
        WindowArg::Load => ReportWindow::SinceLoad,
        WindowArg::Reset => ReportWindow::SinceReset,
        WindowArg::Minute => ReportWindow::LastMinute,
    };
    let (argument, address) = address.or_default().map_err(Error::Setting)?;
    let server = ServerEndpoint { key, ..tls.endpoint(argument, address).map_err(Error::Setting)? };
    let models = runtime()?.block_on(async {
        let client = server.connect().await?;
        let reports = client.reports(name, Some(window), TIMEOUT).await;
        client.answered(reports).await
    })?;
    if json {
        return output::json(&json!({ "models": models.iter().map(as_json).collect::<Vec<_>>() }));
    }
    let mut out = String::new();
    for model in &models {
        // Never fails: the writer is a `String`.
        let _ = write_model(&mut out, model);
    }
    output::write(&out)
}

/// Returns a report as JSON, with the name of its window.
fn as_json(model: &ModelReport) -> Value {
    let mut report = json!(model);
    let name = model.window().as_str_name();
    report["window"] = name.trim_start_matches("REPORT_WINDOW_").to_lowercase().into();
    report
}

fn write_model(out: &mut String, model: &ModelReport) -> fmt::Result {
    let ModelReport { model: name, family, shape, dtype, generation, window_ns, .. } = model;
    writeln!(out, "{name} ({family}, {shape}, {dtype}, generation {generation}), over {}", time(*window_ns))?;
    if let Some(texts) = &model.texts {
        write_texts(out, texts)?;
    }
    if let Some(summaries) = &model.summaries {
        write_summaries(out, summaries)?;
    }
    if let Some(gain) = &model.twin_gain {
        write_baseline_gain(out, gain)?;
    }
    if let Some(cache) = &model.cache {
        let CacheEffect { hits, misses, looked_up_chars, found_chars, .. } = cache;
        let lookups = hits + misses;
        writeln!(
            out,
            "  measured cache: {hits} of {lookups} lookups hit; {found_chars} of {looked_up_chars} symbols were cached"
        )?;
        if let Some(saved) = cache.prefill_spared_estimate_ns {
            writeln!(out, "  ESTIMATED cache: saved {} of prefill", time(saved))?;
        }
    }
    if let Some(gain) = &model.estimated_gain {
        write_gain(out, gain)?;
    }
    if let Some(why) = &model.estimate_missing {
        writeln!(out, "  no estimate of the gain: {why}")?;
    }
    writeln!(out)
}

fn write_texts(out: &mut String, texts: &MeasuredTexts) -> fmt::Result {
    let MeasuredTexts { requests, failed, prompt_chars, generated_chars, .. } = texts;
    let MeasuredTexts { middle_steps_run, middle_steps_skipped, steps, .. } = texts;
    let factor = output::optional(texts.shortening_factor);
    let rows = output::optional(texts.rows_per_step);
    let middle_rows = output::optional(texts.rows_per_middle_step);
    writeln!(
        out,
        "  measured: {requests} requests, {failed} failed; {prompt_chars} prompt symbols, {generated_chars} generated"
    )?;
    writeln!(
        out,
        "  measured: {middle_steps_run} middle steps run, {middle_steps_skipped} skipped; shortening factor {factor}"
    )?;
    for (index, level) in texts.levels.iter().enumerate() {
        let LevelUsage { chunks, shortening_factor, middle_steps } = level;
        let level = index + 1;
        writeln!(
            out,
            "  measured: level {level}: {chunks} segments, {middle_steps} middle steps; shortening factor {shortening_factor:.3}"
        )?;
    }
    writeln!(out, "  measured: {steps} steps of {rows} rows; {middle_rows} rows per middle step")?;
    let rows = [
        ("first symbol", &texts.time_to_first_char),
        ("gap, plain", &texts.plain_gap),
        ("gap, boundary", &texts.boundary_gap),
        ("segment", &texts.segment),
        ("queue", &texts.queue),
        ("prefill", &texts.prefill),
        ("total", &texts.total),
    ];
    write_latencies(out, rows)
}

fn write_summaries(out: &mut String, summaries: &MeasuredSummaries) -> fmt::Result {
    let MeasuredSummaries { requests, failed, document_tokens, summary_tokens, cached_documents, .. } = summaries;
    writeln!(
        out,
        "  measured: {requests} summaries, {failed} failed, {cached_documents} with a cached document; \
         {document_tokens} tokens read, {summary_tokens} written"
    )?;
    let rows = [
        ("queue", &summaries.queue),
        ("upload", &summaries.upload),
        ("encode", &summaries.encode),
        ("first token", &summaries.time_to_first_token),
        ("decode", &summaries.decode),
        ("decode per token", &summaries.decode_per_token),
        ("total", &summaries.total),
    ];
    write_latencies(out, rows)?;
    for (index, layer) in summaries.layers.iter().enumerate() {
        writeln!(out, "  measured: encoder layer {index}: {} vectors, {}", layer.vectors, time(layer.took_ns))?;
    }
    if let Some(KeptShares { count, mean, min, p10, p50, p90, max }) = summaries.kept_share {
        let [mean, min, p10, p50, p90, max] = [mean, min, p10, p50, p90, max].map(percent);
        writeln!(
            out,
            "  measured: kept share of {count} documents: mean {mean}, min {min}, p10 {p10}, p50 {p50}, p90 {p90}, max {max}"
        )?;
    }
    writeln!(
        out,
        "  cross-attention: {} bytes, {} bytes without pooling (from the model's shape)",
        summaries.cross_attention_bytes, summaries.unpooled_cross_attention_bytes
    )
}

fn write_baseline_gain(out: &mut String, gain: &TwinGain) -> fmt::Result {
    let TwinGain { twin: baseline, encode, decode_per_token, cross_attention_bytes } = gain;
    let ratio = |gain: &Option<MedianGain>| match gain {
        None => "-".to_owned(),
        Some(MedianGain { ratio, low: Some(low), high: Some(high), .. }) => {
            format!("{ratio:.2}× ({low:.2} to {high:.2})")
        }
        Some(MedianGain { ratio, count, twin_count: baseline_count, .. }) => {
            format!("{ratio:.2}× (too few times for an interval: {count} and {baseline_count})")
        }
    };
    writeln!(
        out,
        "  measured gain over {baseline}, if both had the same documents: encode {}, decode per token {}, cross-attention bytes {}×",
        ratio(encode),
        ratio(decode_per_token),
        output::optional(*cross_attention_bytes)
    )
}

fn write_gain(out: &mut String, gain: &EstimatedGain) -> fmt::Result {
    let EstimatedGain { requests, prefill_gain_estimate, decode_gain_estimate, gain_estimate, .. } = *gain;
    let part = |name: &str, measured: u64, estimate: u64, ratio: Option<f64>| {
        let ratio = output::optional(ratio);
        format!("  {name}: {} measured, {} ESTIMATED without pooling: {ratio}×\n", time(measured), time(estimate))
    };
    writeln!(out, "  ESTIMATED gain over {requests} requests: {}×", output::optional(gain_estimate))?;
    out.push_str(&part("prefill", gain.measured_prefill_ns, gain.unpooled_prefill_estimate_ns, prefill_gain_estimate));
    out.push_str(&part("decode", gain.measured_decode_ns, gain.unpooled_decode_estimate_ns, decode_gain_estimate));
    match &gain.calibration {
        Some(calibration) => write_calibration(out, calibration),
        None => Ok(()),
    }
}

fn write_calibration(out: &mut String, calibration: &Calibration) -> fmt::Result {
    if let Some(doubt) = &calibration.doubt {
        writeln!(out, "  DO NOT TRUST: {doubt}")?;
    }
    let Calibration { took_ns, fewest_samples, spread, .. } = calibration;
    writeln!(
        out,
        "  calibration: took {}; timings of each step: at least {fewest_samples}; spread {} (interquartile range ÷ median of \
         whole steps)",
        time(*took_ns),
        percent(*spread)
    )?;
    let counts = ["rows", "chars", "context", "segments", "samples"];
    let times = ["spread", "before", "middle", "after", "plain before", "plain after"];
    let mut lines = vec![counts.into_iter().chain(times).map(str::to_owned).collect::<Vec<_>>()];
    for step in &calibration.steps {
        let plain = |took: Option<u64>| took.map_or("-".into(), time);
        let counts = [step.rows, step.chars, step.context, step.segments, step.samples].map(|count| count.to_string());
        let times = [step.symbol_ns, step.middle_ns, step.finish_ns].map(time);
        let plain = [step.plain_symbol_ns, step.plain_finish_ns].map(plain);
        lines.push(counts.into_iter().chain([percent(step.spread)]).chain(times).chain(plain).collect());
    }
    write_table(out, &lines)
}

/// Writes a table with a line for each kind of time that was measured.
fn write_latencies<const N: usize>(out: &mut String, rows: [(&str, &Option<LatencyHistogram>); N]) -> fmt::Result {
    let names = ["measured", "count", "mean", "p50", "p90", "p99", "p99.9", "max"];
    let mut lines = vec![names.map(str::to_owned).to_vec()];
    for (name, times) in rows {
        let Some(times) = times.as_ref().filter(|times| times.count > 0) else { continue };
        let LatencyHistogram { count, mean_ns, p50_ns, p90_ns, p99_ns, p999_ns, max_ns, .. } = *times;
        let values = [mean_ns, p50_ns, p90_ns, p99_ns, p999_ns, max_ns].map(time);
        lines.push([name.to_owned(), count.to_string()].into_iter().chain(values).collect());
    }
    write_table(out, &lines)
}

fn write_table(out: &mut String, lines: &[Vec<String>]) -> fmt::Result {
    format::table(lines).lines().try_for_each(|line| writeln!(out, "  {line}"))
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn time(nanoseconds: u64) -> String {
    format::time(nanoseconds as f64)
}
