//! SentencePiece models: the few fields of their protocol buffer that say how text is cut.

use crate::error::{Error, Result};
use prost::Message;
use std::path::Path;

/// A piece of the vocabulary.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Piece {
    #[prost(string, optional, tag = "1")]
    piece: Option<String>,
    #[prost(float, optional, tag = "2")]
    score: Option<f32>,
    #[prost(int32, optional, tag = "3")]
    kind: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct Trainer {
    #[prost(int32, optional, tag = "3")]
    model_type: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct Normalizer {
    #[prost(bytes = "vec", optional, tag = "2")]
    precompiled_charsmap: Option<Vec<u8>>,
    #[prost(bool, optional, tag = "3")]
    add_dummy_prefix: Option<bool>,
    #[prost(bool, optional, tag = "4")]
    remove_extra_whitespaces: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
struct Model {
    #[prost(message, repeated, tag = "1")]
    pieces: Vec<Piece>,
    #[prost(message, optional, tag = "2")]
    trainer: Option<Trainer>,
    #[prost(message, optional, tag = "3")]
    normalizer: Option<Normalizer>,
}

/// The field's default.
const UNIGRAM: i32 = 1;
const BPE: i32 = 2;
/// A piece of text; others are marks, the unknown one's, and bytes.
const NORMAL: i32 = 1;
const USER_DEFINED: i32 = 4;

/// How text is cut into pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// So that the sum of their scores is the largest.
    Unigram,
    /// By merging neighbours from characters on, whichever make the piece with the largest score.
    Bpe,
}

/// A model.
pub(super) struct SentencePiece {
    pub(super) kind: Kind,
    /// Pieces of text with their scores, in order of the model's ids.
    pub(super) pieces: Vec<(String, f32)>,
    /// What the text's characters are replaced by, in SentencePiece's own form; none for nothing.
    pub(super) charsmap: Option<Vec<u8>>,
    /// Whether a text gets a space in front.
    pub(super) prefix: bool,
    /// Whether spaces in a row count as one, and those at the end as none.
    pub(super) trims: bool,
}

/// Reads a model.
///
/// # Errors
/// What is no such model, or of another kind.
pub(super) fn read(bytes: &[u8], file: &Path) -> Result<SentencePiece> {
    let wrong = |expected: &str, found: String| Error::checkpoint(file, "the file", expected, found);
    let model = Model::decode(bytes).map_err(|error| wrong("a SentencePiece model", error.to_string()))?;
    let kind = match model.trainer.and_then(|trainer| trainer.model_type).unwrap_or(UNIGRAM) {
        UNIGRAM => Kind::Unigram,
        BPE => Kind::Bpe,
        other => return Err(wrong("a unigram or BPE model of SentencePiece", format!("model_type {other}"))),
    };
    let own = model.pieces.iter().find(|piece| piece.kind == Some(USER_DEFINED));
    if let (Kind::Bpe, Some(piece)) = (kind, own) {
        let found = format!("{:?}, which is", piece.piece.as_deref().unwrap_or_default());
        return Err(wrong("no pieces of a BPE model that are defined by its user", found));
    }
    let is_text = |piece: &Piece| [NORMAL, USER_DEFINED].contains(&piece.kind.unwrap_or(NORMAL));
    let pieces: Vec<_> = model.pieces.into_iter().filter(is_text).collect();
    if pieces.is_empty() {
        return Err(wrong("a SentencePiece model", "no pieces".into()));
    }
    let normalizer = model.normalizer.unwrap_or_default();
    Ok(SentencePiece {
        kind,
        pieces: pieces.into_iter().map(|piece| (piece.piece.unwrap_or_default(), piece.score.unwrap_or(0.0))).collect(),
        charsmap: normalizer.precompiled_charsmap.filter(|map| !map.is_empty()),
        prefix: normalizer.add_dummy_prefix.unwrap_or(true),
        trims: normalizer.remove_extra_whitespaces.unwrap_or(true),
    })
}

#[cfg(test)]
pub(super) fn written(pieces: &[(&str, f32, i32)], model_type: i32) -> Vec<u8> {
    let piece = |&(piece, score, kind): &(&str, f32, i32)| Piece {
        piece: Some(piece.into()),
        score: Some(score),
        kind: Some(kind),
    };
    let (pieces, normalizer) = (pieces.iter().map(piece).collect(), None);
    Model { pieces, trainer: Some(Trainer { model_type: Some(model_type) }), normalizer }.encode_to_vec()
}
