//! Lossless compression: texts come back on every family, dtype, batch, thread count and instruction set with the same bits, and
//! damaged data never come back as a wrong text.

mod command_line;
mod damage;
mod families;
mod settings;

use super::support::{converted, settings as default_settings};
use std::sync::{Arc, LazyLock};
use weir::{
    decode::{
        codec::{BlockStream, Code, CodeInput, Coded, CompressOptions, Compressor, Decompressor},
        contract::{Model, SequenceRow, advance},
        options::WindowOptions,
        session::{Session, SessionProgress},
    },
    error::Result,
    family::load::{Settings, load},
    report::sample::Sample,
};

/// A block that runs: its session, and its row while it has one.
struct Running {
    session: Session,
    row: SequenceRow,
    coded: Option<Coded>,
}

impl Running {
    fn new(model: &dyn Model, request: Code) -> Result<Self> {
        let session = Session::code(request, model.card())?;
        let row = SequenceRow::new(model.begin(session.boundaries().clone())?);
        Ok(Self { session, row, coded: None })
    }
}

/// Codes blocks side by side, `rows` at a time, in steps of at most `chunk` symbols a row.
fn code_blocks(model: &dyn Model, blocks: Vec<Code>, rows: usize, chunk: usize) -> Result<Vec<Coded>> {
    let mut results = Vec::new();
    let mut blocks = blocks.into_iter().peekable();
    while blocks.peek().is_some() {
        let batch = blocks.by_ref().take(rows).map(|block| Running::new(model, block));
        results.extend(run_batch(model, batch.collect::<Result<_>>()?, chunk)?);
    }
    Ok(results)
}

fn run_batch(model: &dyn Model, mut batch: Vec<Running>, chunk: usize) -> Result<Vec<Coded>> {
    let mut scratch = model.scratch();
    loop {
        let unfinished: Vec<usize> = (0..batch.len()).filter(|&index| batch[index].coded.is_none()).collect();
        if unfinished.is_empty() {
            return Ok(batch.into_iter().filter_map(|running| running.coded).collect());
        }
        // the contract takes rows side by side
        let mut rows: Vec<SequenceRow> = Vec::new();
        for &index in &unfinished {
            let Running { session, row, .. } = &mut batch[index];
            session.feed(row, chunk);
            let empty = SequenceRow::new(model.begin(session.boundaries().clone())?);
            rows.push(std::mem::replace(row, empty));
        }
        let which: Vec<usize> = (0..rows.len()).collect();
        advance(model, &mut rows, &which, &mut scratch)?;
        for (&index, row) in unfinished.iter().zip(rows) {
            let running = &mut batch[index];
            running.row = row;
            if let SessionProgress::Finished(_) = running.session.absorb(&mut running.row)? {
                running.coded = running.session.take_coded();
                assert!(running.coded.is_some(), "a finished block has a result");
            }
        }
    }
}

/// Runs a stream from its input to its output.
fn transcode(
    model: &dyn Model,
    stream: &mut dyn BlockStream,
    input: &[u8],
    rows: usize,
    chunk: usize,
) -> Result<Vec<u8>> {
    let mut blocks = Vec::new();
    for piece in input.chunks(100) {
        stream.push(piece)?;
        while let Some(block) = stream.next_block()? {
            blocks.push(block);
        }
    }
    stream.finish()?;
    while let Some(block) = stream.next_block()? {
        blocks.push(block);
    }
    let mut out = Vec::new();
    for coded in code_blocks(model, blocks, rows, chunk)? {
        stream.accept(coded, &mut out)?;
    }
    stream.end(&mut out)?;
    Ok(out)
}

const WINDOWS: WindowOptions = WindowOptions { length: 48, stride: 31 };

fn compress(model: &dyn Model, text: &[u8], block: usize, rows: usize, chunk: usize) -> Result<Vec<u8>> {
    let text_bytes = Some(text.len() as u64);
    let options = CompressOptions { block, windows: WINDOWS, normalise: false, text_bytes };
    transcode(model, &mut Compressor::new(model.card(), options)?, text, rows, chunk)
}

fn decompress(model: &dyn Model, data: &[u8], rows: usize) -> Result<Vec<u8>> {
    transcode(model, &mut Decompressor::new(model.card())?, data, rows, 16)
}

/// Returns the first `count` characters of the bundled English.
fn english(model: &dyn Model, count: usize) -> Vec<u8> {
    let vocabulary = &model.card().vocabulary;
    vocabulary.decode(&Sample::new(vocabulary).window(0, count)).into_bytes()
}

/// Returns a small model with random weights that pools at spaces.
fn default_fixture() -> Arc<dyn Model> {
    static MODEL: LazyLock<Arc<dyn Model>> = LazyLock::new(|| {
        let settings = Settings { threads: 1, ..default_settings() };
        load(&converted("whitespaces"), &settings).unwrap()
    });
    MODEL.clone()
}
