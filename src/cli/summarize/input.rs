//! Documents, and their tokens up to the model's limit.

use super::text_reader::TextReader;
use crate::{
    decode::{
        contract::Model,
        document::{DocumentLimits, covers_text, no_text},
        summary::ByteRange,
    },
    error::{Error, Result},
    text::{LimitStatus, TokenSpan},
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// A document to summarize.
pub(super) enum Document {
    /// A file; `-` is standard input.
    File(PathBuf),
    /// A text of a table of documents.
    Text(String),
    /// Token ids, with the end-of-text id.
    Ids(Vec<u32>),
}

/// A document, ready for the encoder.
pub(super) struct InputDocument {
    pub(super) ids: Vec<u32>,
    pub(super) byte_ranges: Vec<ByteRange>,
    /// Text that was read. Empty for a document given by ids.
    pub(super) text: String,
    /// True if the document continues after the text that was read.
    pub(super) cut: bool,
}

impl InputDocument {
    /// Reads a document. `cut` reads the beginning of one that is longer than the model's limit.
    pub(super) fn read(document: &Document, model: &dyn Model, limits: &DocumentLimits, cut: bool) -> Result<Self> {
        match document {
            Document::Ids(ids) => {
                model.card().vocabulary.check_ids("--ids", ids)?;
                Ok(Self { ids: ids.clone(), byte_ranges: Vec::new(), text: String::new(), cut: false })
            }
            Document::File(file) => Self::from_file(file, model, limits, cut),
            Document::Text(text) => {
                let reader = DocumentReader { portions: TextReader::text(text), field: "document" };
                reader.read(model, limits, cut)
            }
        }
    }

    fn from_file(file: &Path, model: &dyn Model, limits: &DocumentLimits, cut: bool) -> Result<Self> {
        DocumentReader { portions: TextReader::open(file)?, field: "--file" }.read(model, limits, cut)
    }
}

/// Source of a document's text.
struct DocumentReader<'a> {
    portions: TextReader<'a>,
    /// Name in errors about the text.
    field: &'static str,
}

impl DocumentReader<'_> {
    fn read(self, model: &dyn Model, limits: &DocumentLimits, cut: bool) -> Result<InputDocument> {
        let Self { mut portions, field } = self;
        // The end-of-text token counts, too.
        let limit = limits.tokens.saturating_sub(1);
        let mut reading = limits.tokenizer(Arc::clone(&model.card().vocabulary), field).with_truncation(cut);
        let mut tokens = Vec::new();
        let mut text = String::new();
        let room = loop {
            let portion = portions.next()?;
            let room = match &portion {
                None => reading.finish(&mut tokens)?,
                Some(portion) => reading.push(portion, &mut tokens)?,
            };
            text += portion.as_deref().unwrap_or_default();
            if portion.is_none() || room == LimitStatus::Exceeded {
                break room;
            }
        };
        if room == LimitStatus::Exceeded && !cut {
            return Err(Error::LongerThan { field, limit, unit: "tokens (--cut summarizes the beginning)", why: None });
        }
        if !covers_text(&tokens) {
            return Err(no_text(field));
        }
        let end = text.len() as u64;
        let byte_range = |token: &TokenSpan| ByteRange { start: token.start, end: token.end };
        let mut ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
        let mut byte_ranges: Vec<_> = tokens.iter().map(byte_range).collect();
        ids.push(limits.marks.end);
        byte_ranges.push(ByteRange { start: end, end });
        Ok(InputDocument { ids, byte_ranges, text, cut: room == LimitStatus::Exceeded })
    }
}
