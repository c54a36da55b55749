//! A document from a file or standard input: read no further than the model does.

use crate::{
    decode::{contract::Model, document::DocumentLimits, summary::ByteRange},
    error::{Error, Result},
    text::{LimitStatus, StreamTokenizer},
};
use std::{fs::File, io::Read, path::Path, sync::Arc};

/// Bytes that are read at a time.
const PORTION: usize = 1 << 16;

/// A document, ready for the encoder.
pub(super) struct Document {
    pub(super) ids: Vec<u32>,
    pub(super) places: Vec<ByteRange>,
    /// The text as far as it was read; none of ids.
    pub(super) text: String,
    /// Whether it goes on.
    pub(super) cut: bool,
}

impl Document {
    /// One given by its ids.
    pub(super) fn of_ids(ids: &[u32], model: &dyn Model) -> Result<Self> {
        model.card().vocabulary.check_ids("--ids", ids)?;
        Ok(Self { ids: ids.to_vec(), places: Vec::new(), text: String::new(), cut: false })
    }

    /// A text that is there already.
    pub(super) fn of_text(text: &str, model: &dyn Model, limits: &DocumentLimits, cut: bool) -> Result<Self> {
        from(&mut text.as_bytes(), (Path::new("a document"), "document"), (model, limits, cut))
    }
}

/// Reads a file; - is standard input.
pub(super) fn read(file: &Path, model: &dyn Model, limits: &DocumentLimits, cut: bool) -> Result<Document> {
    if file.as_os_str() == "-" {
        return from(&mut std::io::stdin().lock(), (Path::new("standard input"), "--file"), (model, limits, cut));
    }
    from(&mut File::open(file).map_err(Error::io(file))?, (file, "--file"), (model, limits, cut))
}

fn from(
    source: &mut dyn Read,
    (file, field): (&Path, &'static str),
    (model, limits, cut): (&dyn Model, &DocumentLimits, bool),
) -> Result<Document> {
    // the end mark is a token, too
    let limit = limits.tokens.saturating_sub(1);
    let mut reading = StreamTokenizer::new(Arc::clone(&model.card().vocabulary), field, limit).with_truncation(cut);
    let (mut tokens, mut text, mut pending) = (Vec::new(), String::new(), Vec::new());
    let room = loop {
        let read = source.take(PORTION as u64).read_to_end(&mut pending).map_err(Error::io(file))?;
        let valid = match std::str::from_utf8(&pending) {
            Ok(all) => all.len(),
            // the rest of a character is still to come
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
    if tokens.is_empty() {
        return Err(Error::BadOption { field, found: "\"\"".into(), bound: "at least one character".into() });
    }
    let end = text.len() as u64;
    let (mut ids, mut places): (Vec<u32>, Vec<ByteRange>) =
        tokens.iter().map(|token| (token.id, (token.start, token.end))).unzip();
    ids.push(limits.marks.end);
    places.push((end, end));
    Ok(Document { ids, places, text, cut: room == LimitStatus::Exceeded })
}
