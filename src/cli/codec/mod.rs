//! `weir compress` and `weir decompress`: files to compressed files and back, with the engine that the server uses.
//!
//! The blocks of all files run as rows of one batch. Results are collected in order.

mod args;
mod files;
mod output_file;
mod partial_files;
mod pipeline;

pub use args::{CompressArgs, DecompressArgs};

use super::output;
use crate::{
    decode::{
        codec::{CompressOptions, Compressor, Decompressor, Totals, default_windows},
        contract::Model,
    },
    engine::{Handle, Limits},
    error::{Error, Result},
};
use args::CodecArgs;
use files::FilePair;
use pipeline::{Pipeline, Stream};
use serde_json::json;
use std::{
    fmt::Write,
    time::{Duration, Instant},
};

/// Runs `weir compress`. Fails if the model cannot compress, a text is outside of its vocabulary, or a file cannot be read or written.
pub fn run_compress(args: CompressArgs) -> Result<()> {
    let model = args.model.load_with(args.codec.isa)?;
    let card = model.card();
    let pairs = files::compressed_pairs(&args.codec.paths)?;
    let windows = args.windowed.unwrap_or_else(|| default_windows(card));
    let open = |bytes: Option<u64>| -> Result<Stream<'_>> {
        let text_bytes = bytes.filter(|_| !args.normalise);
        let options = CompressOptions { block: args.block, windows, normalise: args.normalise, text_bytes };
        Ok(Box::new(Compressor::new(card, options)?))
    };
    run(start(&model, &args.codec)?, &args.codec, &pairs, open)
}

/// Runs `weir decompress`. Fails if the data are damaged or of another model, or if a file cannot be read or written.
pub fn run_decompress(args: DecompressArgs) -> Result<()> {
    let model = args.model.load_with(args.codec.isa)?;
    let card = model.card();
    let pairs = files::decompressed_pairs(&args.codec.paths)?;
    let open = |_| -> Result<Stream<'_>> { Ok(Box::new(Decompressor::new(card)?)) };
    run(start(&model, &args.codec)?, &args.codec, &pairs, open)
}

/// Starts an engine without limits of time and work: a file takes as long as it takes.
fn start(model: &std::sync::Arc<dyn Model>, args: &CodecArgs) -> Result<Handle> {
    let defaults = Limits::default();
    let limits = Limits {
        rows: args.rows,
        queue: pipeline::max_blocks(args.rows),
        queued_symbols: usize::MAX,
        request_time: Duration::ZERO,
        request_work: usize::MAX,
        chunk: args.chunk,
        step: Duration::ZERO,
        ..defaults
    };
    Handle::start(model.clone(), limits)
}

fn run<'a>(
    engine: Handle,
    args: &CodecArgs,
    pairs: &[FilePair],
    open: impl Fn(Option<u64>) -> Result<Stream<'a>>,
) -> Result<()> {
    pairs.iter().try_for_each(|pair| pair.check(args.force))?;
    let began = Instant::now();
    let mut pipeline = Pipeline::new(engine, args.rows, files::total_bytes(pairs)?, args.force)?;
    for pair in pairs {
        pipeline.run_file(pair, open(pair.bytes()?)?)?;
    }
    let totals = pipeline.finish()?;
    let seconds = began.elapsed().as_secs_f64();
    print(args, pairs, &totals, seconds)
}

fn print(args: &CodecArgs, pairs: &[FilePair], totals: &[Totals], seconds: f64) -> Result<()> {
    let symbols: u64 = totals.iter().map(|totals| totals.symbols).sum();
    let rate = symbols as f64 / seconds;
    if args.json {
        let file = |(pair, totals): (&FilePair, &Totals)| {
            json!({
                "file": pair.input,
                "output": pair.output,
                "text_bytes": totals.text_bytes,
                "chars": totals.symbols,
                "blocks": totals.blocks,
                "compressed_bytes": totals.compressed_bytes,
                "bits_per_char": totals.bits_per_symbol(),
            })
        };
        let files: Vec<_> = pairs.iter().zip(totals).map(file).collect();
        return output::json(&json!({ "files": files, "seconds": seconds, "chars_per_second": rate }));
    }
    let mut out = String::new();
    for (pair, totals) in pairs.iter().zip(totals) {
        let Totals { text_bytes, symbols, compressed_bytes, blocks } = *totals;
        let bits = output::optional(totals.bits_per_symbol());
        let plural = if blocks == 1 { "" } else { "s" };
        let written = writeln!(
            out,
            "{}: {text_bytes} bytes of text, {symbols} characters in {blocks} block{plural}; {compressed_bytes} bytes compressed, \
             {bits} bits per character",
            pair.output.display(),
        );
        written.map_err(|error| Error::Internal(error.to_string()))?;
    }
    output::write(&format!("{out}{rate:.0} characters per second\n"))
}
