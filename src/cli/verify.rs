//! `weir verify`: compares a checkpoint's outputs with a second implementation's.

use crate::cli::flag_names::with_flag;
use crate::cli::model::{self, CheckpointArgs, LoadArgs};
use crate::cli::output;
use crate::report::sample::Sample;
use crate::verify::load::load_for;
use crate::verify::{Input, Report, verify};
use serde_json::json;
use std::{fmt::Write, path::PathBuf};
use weir_engine::{options::check_length, score::forced_target};
use weir_kernels::error::{Error, Result};
use weir_kernels::{Dtype, Isa};
use weir_models::contract::{DocumentEncoder, DocumentLimits, Model};
use weir_models::text::Vocabulary;

/// Symbols of the sample text. Up to this length the tolerance of f32 is smallest.
const SAMPLE: usize = 160;

/// Tokens of a document's beginning that its decoder is fed if no target is given.
const TARGET: usize = 64;

/// Verifies a checkpoint on a text, or on a sample of English.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// File with the text, or the document, in UTF-8; - for standard input. Default: a sample of English.
    #[arg(long, value_name = "FILE", conflicts_with = "ids")]
    file: Option<PathBuf>,
    /// Symbol ids, separated by commas; for a model that reads documents, the document's, with the end-of-text id.
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    ids: Option<Vec<u32>>,
    /// Ids that the decoder of a model that reads documents is fed, separated by commas. Default: the document's beginning.
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    target_ids: Option<Vec<u32>>,
    /// Instruction set of the kernels: amx (AVX-512, and tiles for int8), avx512 (F, BW, VL and VNNI), avx2 (with FMA) or portable.
    /// Default: the widest that the processor and the system permit.
    #[arg(long, value_name = "NAME", value_parser = model::isa, env = "WEIR_ISA")]
    isa: Option<Isa>,
    /// Print JSON.
    #[arg(long, env = "WEIR_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    #[command(flatten)]
    load: LoadArgs,
}

/// Runs the command. Fails if the checkpoint or the text is invalid, if the second implementation does not compute such a model, or
/// if the outputs differ by more than the tolerance.
pub fn run(args: Args) -> Result<()> {
    let source = args.checkpoint.source()?;
    let model = args.load.load(&source, args.isa)?;
    let reference = load_for(&source, Dtype::parse(model.card().dtype).unwrap_or(Dtype::F32))?;
    let input = args.input(&*model, reference.limit().symbols)?;
    let report = verify(&*model, &*reference, &input).map_err(|error| with_flag(error, "text", args.text_flag()))?;
    if args.json {
        output::json(&as_json(&report, &*model)?)?;
    } else {
        let mut text = String::new();
        // Never fails: the writer is a `String`.
        let _ = write_text(&mut text, &report, &*model);
        output::write(&text)?;
    }
    match report.first_difference {
        None => Ok(()),
        Some(difference) => Err(Error::Unverified { model: model.card().name.clone(), difference }),
    }
}

impl Args {
    fn text_flag(&self) -> &'static str {
        if self.ids.is_some() { "--ids" } else { "--file" }
    }

    /// Encodes the text that a flag gives, and reports what normalising changes; `None` if none does.
    fn symbols(&self, model: &dyn Model) -> Result<Option<Vec<u32>>> {
        let vocabulary = &model.card().vocabulary;
        if let Some(ids) = &self.ids {
            vocabulary.check_text("--ids", ids)?;
            return Ok(Some(ids.clone()));
        }
        let Some(file) = &self.file else { return Ok(None) };
        let text = model::read_text_or_stdin("--file", file)?;
        let symbols = vocabulary.encode("--file", &text, usize::MAX)?;
        let normaliser = vocabulary.normaliser();
        output::characters_changed("--file", &text, normaliser.changed_chars(&text), Some(normaliser.name()));
        match symbols.is_empty() {
            true => Err(Error::bad_option("--file", "\"\"", "at least one symbol")),
            false => Ok(Some(symbols)),
        }
    }

    /// Returns what both implementations are fed. The sample has at most `limit` symbols.
    fn input(&self, model: &dyn Model, limit: usize) -> Result<Input> {
        if let Some(encoder) = model.document_encoder() {
            return self.document(model, encoder);
        }
        let card = model.card();
        if self.target_ids.is_some() {
            return Err(Error::wrong_kind("--target-ids", &card.name, "reads documents", &card.shape));
        }
        let symbols = match self.symbols(model)? {
            Some(symbols) => symbols,
            None => {
                let count = SAMPLE.min(card.max_symbols).min(limit);
                let text: Vec<u32> = card.vocabulary.text_ids().collect();
                let is_special = |id: u32| card.vocabulary.is_special(id);
                // English that the vocabulary encodes as text
                let known = |id: u32| if is_special(id) { text[id as usize % text.len().max(1)] } else { id };
                Sample::new(&card.vocabulary).window(0, count).into_iter().map(known).collect()
            }
        };
        check_length(self.text_flag(), symbols.len(), card)?;
        Ok(Input { symbols, document: Vec::new() })
    }

    fn document(&self, model: &dyn Model, encoder: &dyn DocumentEncoder) -> Result<Input> {
        let limits = encoder.limits();
        let mut document = match self.symbols(model)? {
            Some(document) => document,
            None => document_sample(&model.card().vocabulary, limits)?,
        };
        if self.ids.is_none() {
            document.push(limits.marks.end);
        }
        if document.len() > limits.tokens {
            let field = self.text_flag();
            let length = document.len();
            return Err(Error::TooLong { field, length, limit: limits.tokens, unit: "tokens", why: None });
        }
        let beginning = TARGET.min(limits.targets - 1).min(document.len());
        let target = self.target_ids.as_deref().unwrap_or(&document[..beginning]);
        Ok(Input { symbols: forced_target(model, limits, target)?, document })
    }
}

/// Returns tokens of English, or ids spread over the vocabulary if it has no tokenizer; without the end mark.
fn document_sample(vocabulary: &Vocabulary, limits: &DocumentLimits) -> Result<Vec<u32>> {
    let most = limits.tokens.saturating_sub(1).clamp(1, SAMPLE - 1);
    let mut tokens = match vocabulary.tokenizer() {
        Some(_) => vocabulary.encode("the sample", Sample::text(), usize::MAX)?,
        None => {
            let marks = limits.marks;
            let first = [marks.start, marks.pad, marks.end, marks.unknown].into_iter().max().unwrap_or_default() + 1;
            let others = (vocabulary.len() as u32).saturating_sub(first).max(1);
            (0..most as u32).map(|index| first + (index * 7919 + index * index) % others).collect()
        }
    };
    tokens.truncate(most);
    Ok(tokens)
}

fn as_json(report: &Report, model: &dyn Model) -> Result<serde_json::Value> {
    let card = model.card();
    let mut object = json!({ "model": card.name, "family": card.family, "dtype": card.dtype });
    let report = serde_json::to_value(report).map_err(|error| Error::Internal(error.to_string()))?;
    if let (Some(object), serde_json::Value::Object(report)) = (object.as_object_mut(), report) {
        object.extend(report);
    }
    Ok(object)
}

fn write_text(out: &mut String, report: &Report, model: &dyn Model) -> std::fmt::Result {
    let card = model.card();
    let bits = |bits: Option<f64>| bits.map_or("-".into(), |bits| format!("{bits:.6}"));
    write!(out, "{}: {}, {}, {} symbols", card.name, card.family, card.dtype, report.symbols)?;
    match report.document_tokens {
        0 => writeln!(out)?,
        tokens => writeln!(out, ", a document of {tokens} tokens")?,
    }
    let unit = match (card.vocabulary.is_bytes(), card.vocabulary.is_subword()) {
        (true, _) => "bits per byte",
        (_, true) => "bits per token",
        _ => "bits per character",
    };
    writeln!(
        out,
        "{unit:<20}{} in weir, {} in the reference",
        bits(report.bits_per_char),
        bits(report.bits_per_char_reference)
    )?;
    writeln!(
        out,
        "logits              differ by at most {:.2e} (for symbol {}), {:.2e} on average",
        report.max_abs, report.max_abs_symbol, report.mean_abs
    )?;
    writeln!(
        out,
        "                    at most {:.2e} of the largest logit; the tolerance is {:.0e}",
        report.max_rel, report.tolerance
    )?;
    let unit = if report.document_tokens > 0 { "kept vectors" } else { "boundaries" };
    if card.pooled || report.max_abs_decision.is_some() || !report.boundaries_equal {
        let item = if report.document_tokens > 0 { "token" } else { "symbol" };
        let equal = match report.first_boundary_difference {
            None => "agree".to_owned(),
            Some(first) => format!("{} differ, the first at {item} {first}", report.boundary_differences),
        };
        let numbers = report.max_abs_decision.map_or(String::new(), |most| {
            format!(
                "; their probabilities or scores differ by at most {most:.2e}, the tolerance is {:.0e}",
                report.tolerance_parts.decisions
            )
        });
        writeln!(out, "{unit:<20}{equal}{numbers}")?;
    }
    match &report.first_difference {
        None => writeln!(out, "verified"),
        Some(difference) => writeln!(out, "not verified: {difference}"),
    }
}
