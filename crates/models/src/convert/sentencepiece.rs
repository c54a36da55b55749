//! Reads SentencePiece models: the fields of their protocol buffer that define how text is split into pieces.

use crate::text::MAX_SYMBOLS;
use base64::{Engine, engine::general_purpose::STANDARD};
use prost::Message;
use serde_json::{Map, Value as Json, json};
use std::{collections::HashSet, path::Path};
use weir_kernels::error::{Error, Result};

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
    #[prost(bool, optional, tag = "22")]
    split_by_whitespace: Option<bool>,
    #[prost(bool, optional, tag = "24")]
    treat_whitespace_as_suffix: Option<bool>,
    #[prost(bool, optional, tag = "35")]
    byte_fallback: Option<bool>,
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
struct ModelProto {
    #[prost(message, repeated, tag = "1")]
    pieces: Vec<Piece>,
    #[prost(message, optional, tag = "2")]
    trainer: Option<Trainer>,
    #[prost(message, optional, tag = "3")]
    normalizer: Option<Normalizer>,
}

/// Default of `model_type`.
const UNIGRAM: i32 = 1;

const BPE: i32 = 2;

/// Kind of a text piece. Text is also split into user-defined pieces and, with byte fallback, into bytes. Pieces of other kinds,
/// such as unused ones, are in no text.
pub(super) const NORMAL: i32 = 1;

/// Kind of the unknown piece.
pub(super) const UNKNOWN: i32 = 2;

/// Kind of special pieces.
pub(super) const CONTROL: i32 = 3;

/// Special pieces that every model has, at ids of its own.
const SPECIAL_PIECES: [&str; 3] = ["<s>", "</s>", "<pad>"];

/// Kind of pieces that text is searched for before it is normalised.
pub(super) const USER_DEFINED: i32 = 4;

/// Algorithm that splits text into pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Algorithm {
    /// Maximizes the sum of the scores.
    Unigram,
    /// Starts from characters and merges the neighbours whose piece has the largest score.
    Bpe,
}

/// Maximum bytes of a piece. [`merges`] takes time with the square of a piece's length, and trainers write at most 16 characters by
/// default.
const MAX_PIECE_BYTES: usize = 512;

pub(super) struct SentencePiece {
    pub(super) algorithm: Algorithm,
    /// Text pieces with their scores, in order of the model's ids.
    pub(super) pieces: Vec<(String, f32)>,
    /// All pieces except the usual special ones, in order of the model's ids.
    pub(super) all: Vec<String>,
    /// All pieces with their scores and kinds; the index is the model's id.
    pub(super) by_id: Vec<(String, f32, i32)>,
    /// True if the model replaces an unknown character by pieces of its bytes.
    pub(super) byte_fallback: bool,
    /// Character replacements of the normaliser, in SentencePiece's own format.
    pub(super) charsmap: Option<Vec<u8>>,
}

/// Reads a model. Fails if the file is not a SentencePiece model, it has too many pieces or too long ones, or its kind or settings are not
/// supported.
pub(super) fn read(bytes: &[u8], file: &Path) -> Result<SentencePiece> {
    let wrong = |expected: &str, found: String| Error::checkpoint(file, "the file", expected, found);
    let model = ModelProto::decode(bytes).map_err(|error| wrong("a SentencePiece model", error.to_string()))?;
    let count = model.pieces.len();
    if count > MAX_SYMBOLS {
        return Err(wrong(&format!("at most {MAX_SYMBOLS} pieces"), format!("{count} pieces")));
    }
    for (id, piece) in model.pieces.iter().enumerate() {
        let length = piece.piece.as_deref().unwrap_or_default().len();
        if length > MAX_PIECE_BYTES {
            let expected = format!("pieces of at most {MAX_PIECE_BYTES} bytes");
            return Err(wrong(&expected, format!("{length} bytes in the piece of id {id}")));
        }
    }
    let trainer = model.trainer.unwrap_or_default();
    let normalizer = model.normalizer.unwrap_or_default();
    // tokenizer.json cannot express other values of these settings.
    let settings = [
        ("trainer_spec.treat_whitespace_as_suffix", trainer.treat_whitespace_as_suffix, false),
        ("trainer_spec.split_by_whitespace", trainer.split_by_whitespace, true),
        ("normalizer_spec.add_dummy_prefix", normalizer.add_dummy_prefix, true),
        ("normalizer_spec.remove_extra_whitespaces", normalizer.remove_extra_whitespaces, true),
    ];
    if let Some((key, _, only)) = settings.into_iter().find(|(_, found, only)| *found == Some(!only)) {
        return Err(Error::checkpoint(file, key, only.to_string(), (!only).to_string()));
    }
    let algorithm = match trainer.model_type.unwrap_or(UNIGRAM) {
        UNIGRAM => Algorithm::Unigram,
        BPE => Algorithm::Bpe,
        other => return Err(wrong("a unigram or BPE model of SentencePiece", format!("model_type {other}"))),
    };
    let own = model.pieces.iter().find(|piece| piece.kind == Some(USER_DEFINED));
    if let (Algorithm::Bpe, Some(piece)) = (algorithm, own) {
        let found = format!("the user-defined piece {:?}", piece.piece.as_deref().unwrap_or_default());
        return Err(wrong("a BPE model without user-defined pieces", found));
    }
    let is_text = |piece: &Piece| [NORMAL, USER_DEFINED].contains(&piece.kind.unwrap_or(NORMAL));
    let usual = |piece: &Piece| match piece.kind.unwrap_or(NORMAL) {
        UNKNOWN => true,
        CONTROL => piece.piece.as_deref().is_some_and(|piece| SPECIAL_PIECES.contains(&piece)),
        _ => false,
    };
    let others = model.pieces.iter().filter(|piece| !usual(piece));
    let all = others.map(|piece| piece.piece.clone().unwrap_or_default()).collect();
    let scored = |piece: &Piece| (piece.piece.clone().unwrap_or_default(), piece.score.unwrap_or(0.0));
    let with_kind = |piece: &Piece| {
        let (text, score) = scored(piece);
        (text, score, piece.kind.unwrap_or(NORMAL))
    };
    let by_id = model.pieces.iter().map(with_kind).collect();
    let pieces: Vec<_> = model.pieces.into_iter().filter(is_text).collect();
    if pieces.is_empty() {
        return Err(wrong("a SentencePiece model", "no pieces".into()));
    }
    Ok(SentencePiece {
        algorithm,
        pieces: pieces.iter().map(scored).collect(),
        all,
        by_id,
        byte_fallback: trainer.byte_fallback == Some(true),
        charsmap: normalizer.precompiled_charsmap.filter(|map| !map.is_empty()),
    })
}

/// Represents a space.
pub(super) const SPACE: &str = "\u{2581}";

/// Returns the pre-tokenizer or decoder of `tokenizer.json` that replaces spaces by [`SPACE`].
pub(super) fn metaspace(prefix: &str) -> Json {
    json!({ "type": "Metaspace", "replacement": SPACE, "prepend_scheme": prefix, "split": true })
}

/// Returns a special token of `tokenizer.json`.
pub(super) fn mark(id: usize, content: &str) -> Json {
    json!({ "id": id, "content": content, "special": true,
        "single_word": false, "lstrip": false, "rstrip": false, "normalized": false })
}

/// Returns the unigram model of `tokenizer.json` with these pieces and scores.
pub(super) fn unigram(vocab: Vec<Json>, unknown: usize, byte_fallback: bool) -> Json {
    json!({ "type": "Unigram", "unk_id": unknown, "vocab": vocab, "byte_fallback": byte_fallback })
}

/// Returns a BPE model for `tokenizer.json` with the ids of `vocab`, which merges `pieces` in the order of their scores. `unknown` is
/// the symbol of `vocab` that replaces unknown characters.
pub(super) fn bpe(vocab: Map<String, Json>, pieces: &[(String, f32)], unknown: &str, byte_fallback: bool) -> Json {
    let merges = merges(pieces);
    json!({ "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": !merges.is_empty(), "byte_fallback": byte_fallback,
        "ignore_merges": false, "vocab": vocab, "merges": merges })
}

/// Returns the pairs of neighbours that BPE merges, the best first. SentencePiece has no such list: it merges the neighbours whose
/// piece has the best score. If three neighbours form the same piece in two ways, SentencePiece merges the left pair; this list
/// prefers the way with the longer first part.
fn merges(pieces: &[(String, f32)]) -> Vec<(&str, &str)> {
    let known: HashSet<&str> = pieces.iter().map(|(piece, _)| piece.as_str()).collect();
    let mut sorted: Vec<_> = pieces.iter().collect();
    sorted.sort_by(|a, b| b.1.total_cmp(&a.1));
    let mut merges = Vec::new();
    for (piece, _) in sorted {
        let cuts = piece.char_indices().rev().filter(|(index, _)| *index > 0).map(|(index, _)| piece.split_at(index));
        merges.extend(cuts.filter(|(left, right)| known.contains(left) && known.contains(right)));
    }
    merges
}

/// Returns a `tokenizer.json` with special tokens, normaliser, pre-tokenizer and decoder, and a model.
pub(super) fn tokenizer(marks: Vec<Json>, [normalizer, pre_tokenizer, decoder]: [Json; 3], model: Json) -> Json {
    json!({ "version": "1.0", "truncation": null, "padding": null, "added_tokens": marks, "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer, "post_processor": null, "decoder": decoder, "model": model })
}

/// Returns the normaliser of `tokenizer.json` that does what the model's does before it splits text.
pub(super) fn normalizer(model: &SentencePiece) -> Json {
    let mut steps = Vec::new();
    if let Some(map) = &model.charsmap {
        steps.push(json!({ "type": "Precompiled", "precompiled_charsmap": STANDARD.encode(map) }));
    }
    // a leading space stays: it stands for the prefix that the text would get
    steps.push(json!({ "type": "Strip", "strip_left": false, "strip_right": true }));
    steps.push(json!({ "type": "Replace", "pattern": { "Regex": " {2,}" }, "content": " " }));
    json!({ "type": "Sequence", "normalizers": steps })
}

#[cfg(test)]
pub(super) fn written(pieces: &[(&str, f32, i32)], model_type: i32) -> Vec<u8> {
    let piece = |&(piece, score, kind): &(&str, f32, i32)| Piece {
        piece: Some(piece.into()),
        score: Some(score),
        kind: Some(kind),
    };
    let trainer = Trainer { model_type: Some(model_type), ..Trainer::default() };
    ModelProto { pieces: pieces.iter().map(piece).collect(), trainer: Some(trainer), normalizer: None }.encode_to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_limited() {
        let model = |count| ModelProto { pieces: vec![Piece::default(); count], trainer: None, normalizer: None };
        let Err(error) = read(&model(MAX_SYMBOLS + 1).encode_to_vec(), Path::new("spm.model")) else {
            panic!("too many pieces were accepted")
        };
        let expected = "spm.model: the file: expected at most 1114112 pieces, found 1114113 pieces";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn long_pieces_are_rejected() {
        let model = |bytes: usize| {
            let long = "a".repeat(bytes);
            written(&[("<unk>", 0.0, UNKNOWN), (long.as_str(), -1.0, NORMAL)], BPE)
        };
        assert!(read(&model(MAX_PIECE_BYTES), Path::new("spm.model")).is_ok());
        let Err(error) = read(&model(MAX_PIECE_BYTES + 1), Path::new("spm.model")) else {
            panic!("a long piece was accepted")
        };
        let expected =
            "spm.model: the file: expected pieces of at most 512 bytes, found 513 bytes in the piece of id 1";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn the_unknown_piece_is_named_in_a_bpe_model() {
        assert_eq!(bpe(Map::new(), &[], "<u>", false)["unk_token"], "<u>");
    }

    #[test]
    fn special_pieces_keep_their_ids() {
        let pieces =
            [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), ("<mask>", 0.0, 3), ("a", -1.0, 1), ("b", -2.0, 5)];
        let model = read(&written(&pieces, 1), Path::new("spm.model")).unwrap();
        assert_eq!((model.all, model.pieces.len()), (vec!["<mask>".into(), "a".into(), "b".into()], 1));
    }
}
