//! Formats measurements as tables.

use crate::report::{
    compare::DecodeComparison,
    documents::{DocumentComparison, DocumentCost, DocumentResult},
    machine::MeasuredModel,
};
use weir_kernels::error::printable;
use weir_measure::stats::Quantiles;

/// Formats one line per measurement below the comma-separated titles in `head`.
fn columns(head: &str, lines: impl Iterator<Item = Vec<String>>) -> String {
    let mut rows = vec![head.split(", ").map(str::to_owned).collect::<Vec<_>>()];
    rows.extend(lines.map(|line| line.iter().map(|cell| printable(cell)).collect()));
    weir_measure::format::table(&rows)
}

const DECODE: &str = "model, dtype, threads, isa, batch, context, wait, SF, chars/s, step p50 ms, middle %, \
    gap p50/p99 ms, at boundaries, MB/char, GB/s of ceiling";

fn decode_line(entry: &crate::report::decode::DecodeMeasurement) -> Vec<String> {
    let ms = |ns: f64| format!("{:.3}", ns / 1e6);
    let giga = |bytes: f64| format!("{:.1}", bytes / 1e9);
    let gap = |p50: Option<f64>, p99: Option<f64>| match (p50, p99) {
        (Some(p50), Some(p99)) => format!("{:.2}/{:.2}", p50 / 1e6, p99 / 1e6),
        _ => "-".into(),
    };
    let mut cells = setup_cells(&entry.measured);
    cells.extend([entry.batch, entry.context, entry.boundary_wait].map(|count| count.to_string()));
    let levels: Vec<_> = entry.levels.iter().map(|level| factor(Some(level.shortening_factor))).collect();
    cells.extend([
        if levels.is_empty() { factor(entry.shortening_factor) } else { levels.join(" × ") },
        format!("{:.1}", entry.chars_per_second),
        ms(entry.step_ns_p50),
        format!("{:.1}", entry.middle_share * 100.0),
        gap(entry.plain_gap_ns_p50, entry.plain_gap_ns_p99),
        gap(entry.boundary_gap_ns_p50, entry.boundary_gap_ns_p99),
        format!("{:.2}", entry.bytes_per_char / 1e6),
        format!("{} of {}", giga(entry.achieved_bytes_per_second), giga(entry.ceiling_bytes_per_second)),
    ]);
    cells
}

/// Returns the first cells of most lines: model, dtype, threads, instruction set.
fn setup_cells(measured: &MeasuredModel) -> Vec<String> {
    vec![measured.model.clone(), measured.dtype.to_owned(), measured.threads.to_string(), measured.isa.to_owned()]
}

fn factor(factor: Option<f64>) -> String {
    factor.map_or("-".into(), |factor| format!("{factor:.2}"))
}

/// Returns one note for each model whose vocabulary lacks letters of the sample, however often it was measured.
fn missing_letters<'a>(entries: impl Iterator<Item = (&'a str, usize)>) -> String {
    let mut models: Vec<_> = entries.filter(|(_, letters)| *letters > 0).collect();
    models.dedup();
    let note = |(model, letters)| {
        let model = printable(model);
        format!("{model}: its vocabulary lacks {letters} letters of the sample, so SF is not that of English\n")
    };
    models.into_iter().map(note).collect()
}

pub(super) fn decode(entries: &[crate::report::decode::DecodeMeasurement]) -> String {
    columns(DECODE, entries.iter().map(decode_line))
        + &token_lengths(entries.iter())
        + &missing_letters(entries.iter().map(|entry| (&*entry.measured.model, entry.foreign_letters)))
}

pub(super) fn prefill(entries: &[crate::report::prefill::PrefillMeasurement]) -> String {
    let head = "model, dtype, threads, isa, symbols, chunk, SF, symbols/s, run p50 ms, p10, p90, GFLOP/s, peak GFLOP/s";
    let ms = |ns: f64| format!("{:.2}", ns / 1e6);
    let line = |entry: &crate::report::prefill::PrefillMeasurement| {
        let mut cells = setup_cells(&entry.measured);
        cells.extend([entry.symbols.to_string(), entry.chunk.to_string(), factor(entry.shortening_factor)]);
        cells.push(format!("{:.1}", entry.symbols_per_second));
        cells.extend([entry.run_ns_p50, entry.run_ns_p10, entry.run_ns_p90].map(ms));
        cells.push(format!("{:.1}", entry.gflops));
        cells.push(entry.peak_gflops.map_or("-".into(), |gflops| format!("{gflops:.1}")));
        cells
    };
    let no_peak = no_peak(entries.iter().any(|entry| entry.peak_gflops.is_none()));
    columns(head, entries.iter().map(line))
        + no_peak
        + &missing_letters(entries.iter().map(|entry| (&*entry.measured.model, entry.foreign_letters)))
}

/// Returns a note for tables in which a rate has no peak to compare with.
fn no_peak(missing: bool) -> &'static str {
    let note =
        "int8, int4: no peak, since the measured peak is that of f32 products, which differs from that of integers\n";
    if missing { note } else { "" }
}

pub(super) fn compare(comparisons: &[DecodeComparison]) -> String {
    let both = || comparisons.iter().flat_map(|comparison| [&comparison.a, &comparison.b]);
    let mut text = columns(DECODE, both().map(decode_line));
    text.push('\n');
    for DecodeComparison { batch, context, boundary_wait, pairs, a, b, ratio: Quantiles { median, p10, p90 } } in
        comparisons
    {
        let [a, b] = [a, b].map(|entry| printable(&entry.measured.model));
        text += &format!(
            "batch {batch}, context {context}, wait {boundary_wait}: {a} is {median:.3} times as fast as {b} per character \
             (p10 {p10:.3}, p90 {p90:.3}, {pairs} pairs)\n"
        );
    }
    text + &token_lengths(both())
        + &missing_letters(both().map(|entry| (&*entry.measured.model, entry.foreign_letters)))
}

/// Returns one note for each model of tokens: the columns that count symbols count tokens.
fn token_lengths<'a>(entries: impl Iterator<Item = &'a crate::report::decode::DecodeMeasurement>) -> String {
    let of_tokens = entries.filter(|entry| entry.chars_per_symbol != 1.0);
    let mut notes: Vec<_> = of_tokens
        .map(|entry| {
            let model = printable(&entry.measured.model);
            let chars = entry.chars_per_symbol;
            format!("{model}: a symbol is a token of {chars:.2} characters on average; steps, gaps and contexts count tokens\n")
        })
        .collect();
    notes.dedup();
    notes.concat()
}

pub(super) fn summaries(comparisons: &[crate::report::summaries::SummaryComparison]) -> String {
    let head = "model, dtype, threads, isa, batch, encode ms, GFLOP/s of peak, after upload, decode ms/token, \
        GB/s of ceiling, request s, vectors";
    let line = |batch: usize, entry: &crate::report::summaries::SummaryBenchResult| {
        let mut cells = setup_cells(&entry.measured);
        cells.push(batch.to_string());
        cells.push(format!("{:.1}", entry.encode_ns / 1e6));
        let share = |rate: f64, peak: f64| format!("{rate:.1} of {peak:.1} ({:.0} %)", 100.0 * rate / peak.max(1e-9));
        cells.push(share(entry.encode_gflops, entry.peak_gflops));
        cells.push(format!("{:.1} %", entry.encode_share_after_upload * 100.0));
        cells.push(format!("{:.3}", entry.decode_ns_per_token / 1e6));
        let rate = entry.decode_bytes_per_step as f64 / entry.decode_ns_per_token.max(1.0);
        cells.push(share(rate, entry.ceiling_bytes_per_second / 1e9));
        cells.push(format!("{:.2}", entry.request_ns / 1e9));
        cells.push(entry.vectors.to_string());
        cells
    };
    let both = |pair: &crate::report::summaries::SummaryComparison| {
        [line(pair.plan.batch, &pair.a), line(pair.plan.batch, &pair.b)]
    };
    let mut text = columns(head, comparisons.iter().flat_map(both));
    text.push('\n');
    for crate::report::summaries::SummaryComparison { plan, a, b, decode_ratio, request_ratio } in comparisons {
        let crate::report::summaries::SummaryBenchPlan { batch, source, tokens, pairs } = plan;
        let times =
            |Quantiles { median, p10, p90 }: &Quantiles| format!("{median:.2} times (p10 {p10:.2}, p90 {p90:.2})");
        let [a, b] = [a, b].map(|entry| printable(&entry.measured.model));
        let [decode, total] = [decode_ratio, request_ratio].map(times);
        text += &format!(
            "batch {batch}, {source} tokens read, {tokens} written: {a} is {decode} as fast as {b} per token, {total} in total, \
             {pairs} pairs\n"
        );
    }
    text
}

/// Formats `weir bench documents`: a line for each document, and lines for all of them. A is the model, B its baseline.
pub(super) fn documents(comparisons: &[DocumentComparison]) -> String {
    let head = "document, bytes, kept, A encode ms, B, A ms/token, B, A cross KB, B, gain encode, gain/token, gain total, gain bytes";
    let gain = |Quantiles { median, p10, p90 }: &Quantiles| format!("{median:.2} ({p10:.2}-{p90:.2})");
    let line = |result: &DocumentResult| {
        let DocumentResult { document, bytes, cut, a, b, .. } = result;
        let pair = |value: &dyn Fn(&DocumentCost) -> f64| [a, b].map(|cost| format!("{:.3}", value(cost)));
        let mut cells = vec![document.clone(), format!("{bytes}{}", if *cut { " (cut)" } else { "" })];
        cells.push(a.kept_share.map_or("-".into(), |share| format!("{:.1} %", share * 100.0)));
        cells.extend(pair(&|cost| cost.encode_ns / 1e6));
        cells.extend(pair(&|cost| cost.decode_ns_per_token / 1e6));
        cells.extend(pair(&|cost| cost.cross_attention_bytes as f64 / 1e3));
        cells.extend([&result.encode_gain, &result.decode_gain, &result.total_gain].map(gain));
        cells.push(format!("{:.2}", result.cross_attention_gain));
        cells
    };
    let mut text = String::new();
    for comparison in comparisons {
        let DocumentComparison { plan, a, b, documents, total, median } = comparison;
        let [first, second] = [a, b].map(|measured| printable(&measured.model));
        text += &format!(
            "A: {first}, B: {second}, {}, {} threads; {} tokens decoded, {} pairs; gain: B ÷ A with p10 and p90\n",
            a.dtype, a.threads, plan.tokens, plan.pairs
        );
        text += &columns(head, documents.iter().chain([total, median]).map(line));
    }
    text
}

pub(super) fn kernels(entries: &[crate::report::kernels::KernelMeasurement]) -> String {
    let head = "kernel, dtype, threads, isa, weights, shape, rows, keys, p50 us, p10, p90, GB/s, ceiling GB/s, \
        GFLOP/s, peak GFLOP/s";
    let count = |count: Option<usize>| count.map_or("-".into(), |count| count.to_string());
    let name = |name: Option<&str>| name.unwrap_or("-").to_owned();
    let rate = |rate: Option<f64>, unit: f64| rate.map_or("-".into(), |rate| format!("{:.1}", rate / unit));
    let line = |entry: &crate::report::kernels::KernelMeasurement| {
        let shape = entry.inputs.zip(entry.outputs).map(|(inputs, outputs)| format!("{inputs}->{outputs}"));
        let mut cells =
            vec![entry.kernel.to_owned(), name(entry.dtype), entry.threads.to_string(), entry.isa.to_owned()];
        cells.extend([name(entry.weights), name(shape.as_deref()), entry.rows.to_string(), count(entry.keys)]);
        cells.extend([entry.ns_p50, entry.ns_p10, entry.ns_p90].map(|ns| format!("{:.2}", ns / 1e3)));
        cells.extend([entry.bytes_per_second, entry.ceiling_bytes_per_second].map(|bytes| rate(bytes, 1e9)));
        cells.extend([entry.gflops, entry.peak_gflops].map(|gflops| rate(gflops, 1.0)));
        cells
    };
    let rated =
        |entry: &crate::report::kernels::KernelMeasurement| entry.gflops.is_some() && entry.peak_gflops.is_none();
    columns(head, entries.iter().map(line)) + no_peak(entries.iter().any(rated))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_letters_are_noted_once_per_model() {
        assert_eq!(missing_letters([("a", 0)].into_iter()), "");
        assert_eq!(missing_letters([("a", 3), ("a", 3), ("b", 0)].into_iter()).lines().count(), 1);
    }
}
