//! Reads a document from a file or standard input, up to the model's limit.

use crate::{
    decode::{contract::Model, document::DocumentLimits, summary::ByteRange},
    error::{Error, Result},
    text::{LimitStatus, TokenSpan},
};
use std::{fs::File, io::Read, path::Path, sync::Arc};

/// Bytes per read.
const READ_BYTES: usize = 1 << 16;

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
    /// Creates a document from token ids.
    pub(super) fn from_ids(ids: &[u32], model: &dyn Model) -> Result<Self> {
        model.card().vocabulary.check_ids("--ids", ids)?;
        Ok(Self { ids: ids.to_vec(), byte_ranges: Vec::new(), text: String::new(), cut: false })
    }

    /// Creates a document from text.
    pub(super) fn from_text(text: &str, model: &dyn Model, limits: &DocumentLimits, cut: bool) -> Result<Self> {
        let reader = DocumentReader { bytes: &mut text.as_bytes(), file: Path::new("a document"), field: "document" };
        reader.read(model, limits, cut)
    }
}

/// Reads a file; `-` is standard input.
pub(super) fn read(file: &Path, model: &dyn Model, limits: &DocumentLimits, cut: bool) -> Result<InputDocument> {
    if file.as_os_str() == "-" {
        let reader =
            DocumentReader { bytes: &mut std::io::stdin().lock(), file: Path::new("standard input"), field: "--file" };
        return reader.read(model, limits, cut);
    }
    let mut bytes = File::open(file).map_err(Error::io(file))?;
    DocumentReader { bytes: &mut bytes, file, field: "--file" }.read(model, limits, cut)
}

/// Source of a document's bytes.
struct DocumentReader<'a> {
    bytes: &'a mut dyn Read,
    /// Name in I/O errors.
    file: &'a Path,
    /// Name in errors about the text.
    field: &'static str,
}

impl DocumentReader<'_> {
    fn read(self, model: &dyn Model, limits: &DocumentLimits, cut: bool) -> Result<InputDocument> {
        let Self { bytes, file, field } = self;
        // The end-of-text token counts, too.
        let limit = limits.tokens.saturating_sub(1);
        let mut reading = limits.tokenizer(Arc::clone(&model.card().vocabulary), field).with_truncation(cut);
        let mut tokens = Vec::new();
        let mut text = String::new();
        let mut pending = Vec::new();
        let room = loop {
            let read = bytes.take(READ_BYTES as u64).read_to_end(&mut pending).map_err(Error::io(file))?;
            let valid = match std::str::from_utf8(&pending) {
                Ok(all) => all.len(),
                // The next read completes the last character.
                Err(error) if error.error_len().is_none() && read > 0 => error.valid_up_to(),
                Err(error) => {
                    let invalid = std::io::Error::new(std::io::ErrorKind::InvalidData, error);
                    return Err(Error::io(file)(invalid));
                }
            };
            let rest = pending.split_off(valid);
            let portion = String::from_utf8(std::mem::replace(&mut pending, rest)).unwrap_or_default();
            let room = if read == 0 { reading.finish(&mut tokens)? } else { reading.push(&portion, &mut tokens)? };
            text += &portion;
            if read == 0 || room == LimitStatus::Exceeded {
                break room;
            }
        };
        if room == LimitStatus::Exceeded && !cut {
            return Err(Error::LongerThan { field, limit, unit: "tokens (--cut summarizes the beginning)", why: None });
        }
        if tokens.is_empty() || text.is_empty() {
            return Err(Error::bad_option(field, "\"\"", "at least one character"));
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
