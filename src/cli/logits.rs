//! Writes the files of `--logits`: the logits of a scored text, or of a summary's decoder. The model runs in this process, because no
//! server sends logits.

use crate::cli::{
    document::{Document, TextInput},
    model::read_text_or_stdin,
    output,
};
use std::{path::Path, sync::Arc};
use weir_engine::{
    options::{WindowOptions, check_length},
    score::{forced_target, read_document, run, score_window, target_logits, windows},
};
use weir_kernels::error::{Error, Result};
use weir_models::{
    contract::{BoundaryOptions, DocumentEncoder, Model, SymbolBoundary, Want, covers_text, no_text},
    text::LimitStatus,
};

/// Writes the logits (symbols, vocabulary) after each symbol of a text, and the boundaries of a model that pools. Windows never feed the
/// last symbol. A model with a start-of-text symbol has logits before the first symbol.
pub(super) fn write_scored(
    model: &dyn Model,
    text: &TextInput,
    windowed: Option<WindowOptions>,
    step: usize,
    boundaries: BoundaryOptions,
    out: &Path,
) -> Result<()> {
    let card = model.card();
    let end = card.vocabulary.specials().map(|specials| specials.end);
    let symbols = match &*text.ids {
        [] => card.vocabulary.encode(text.flag, &text.text, usize::MAX)?,
        [symbols @ .., last] if Some(*last) == end => symbols.to_vec(),
        symbols => symbols.to_vec(),
    };
    let mut all = Vec::new();
    let mut ends = Vec::new();
    let mut keep = |_: usize, logits: &[f32], decision: SymbolBoundary| {
        all.extend_from_slice(logits);
        ends.push(u8::from(decision.boundary));
        Ok(())
    };
    match windowed {
        Some(size) => {
            for window in windows(symbols.len(), size) {
                score_window(model, &symbols, window, &boundaries, &mut keep)?;
            }
        }
        None => {
            check_length(text.flag, symbols.len(), card)?;
            if let Some(first) = &card.first_logits {
                keep(0, first, SymbolBoundary { boundary: card.pooled, ..SymbolBoundary::default() })?;
            }
            run(model, &symbols, step, boundaries, Want::All, &mut keep)?;
        }
    }
    output::logits(out, &all, [ends.len(), card.vocabulary.len()], card.pooled.then_some(&*ends))
}

/// Feeds a summary to the decoder and writes the logits (target ids, vocabulary). `cut` reads the beginning of a document that is
/// longer than the model's limit. `hard` keeps the selected vectors unchanged. Fails if the model does not read documents, and if an id
/// or a length is invalid.
pub(super) fn write_forced(
    model: &dyn Model,
    document: &Document,
    cut: bool,
    target: &[u32],
    hard: bool,
    out: &Path,
) -> Result<()> {
    let card = model.card();
    let encoder = model.document_encoder().ok_or_else(|| Error::only_continues_text(&card.name, &card.shape))?;
    let tokens = tokens(model, encoder, document, cut)?;
    let fed = forced_target(model, encoder.limits(), target)?;
    let mut scratch = model.scratch();
    let document = read_document(encoder, encoder.open(hard)?, &tokens, &mut scratch)?;
    let logits = target_logits(model, encoder.begin(&document)?, &fed, &mut scratch)?;
    output::logits(out, &logits, [fed.len(), card.vocabulary.len()], None)
}

/// Returns the tokens of a document, with the end-of-text token.
fn tokens(model: &dyn Model, encoder: &dyn DocumentEncoder, document: &Document, cut: bool) -> Result<Vec<u32>> {
    let limits = encoder.limits();
    let vocabulary = &model.card().vocabulary;
    let text = match document {
        Document::Ids(ids) => return vocabulary.check_ids("--ids", ids).map(|()| ids.clone()),
        Document::File(file) => &read_text_or_stdin("--file", file)?,
        Document::Text(text) => text,
    };
    let mut tokenizer = limits.tokenizer(Arc::clone(vocabulary), "--file").with_truncation(cut);
    let mut tokens = Vec::new();
    let mut status = tokenizer.push(text, &mut tokens)?;
    if status == LimitStatus::Within {
        status = tokenizer.finish(&mut tokens)?;
    }
    if status == LimitStatus::Exceeded && !cut {
        // The end-of-text token also counts.
        let limit = limits.tokens.saturating_sub(1);
        return Err(Error::LongerThan { field: "--file", limit, unit: "tokens", why: Some("use --cut") });
    }
    if !covers_text(&tokens) {
        return Err(no_text("--file"));
    }
    Ok(tokens.iter().map(|token| token.id).chain([limits.marks.end]).collect())
}
