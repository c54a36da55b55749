//! The tokenizer of a Hugging Face folder: `tokenizer.json`, `spiece.model`, or bytes, which need no file.

use crate::{
    error::{Error, Result},
    family::{
        checkpoint::{
            VocabularyConfig,
            json::{parse, read_limited},
        },
        convert::{
            converted::read_config,
            sentencepiece::{self, Algorithm, metaspace, normalizer},
        },
    },
    text::{
        SubwordTokenizer,
        subwords::{MAX_TOKENIZER_BYTES, TOKENIZER_FILE},
        vocabulary::MAX_SYMBOLS,
    },
};
use serde_json::{Value as Json, json};
use std::{path::Path, sync::Arc};

const SENTENCEPIECE_FILE: &str = "spiece.model";
const SETTINGS_FILE: &str = "tokenizer_config.json";
/// All files that the tokenizer is read from.
pub(in crate::family::convert) const FILES: [&str; 3] = [TOKENIZER_FILE, SENTENCEPIECE_FILE, SETTINGS_FILE];
/// ByT5: the id of byte 0, and the usual number of ids.
const FIRST_BYTE: u32 = 3;
const BYTE_IDS: usize = 384;
/// The first ids of all vocabularies.
const SPECIALS: [&str; 3] = ["<pad>", "</s>", "<unk>"];
/// Sentinels after the pieces, unless the settings state another number.
const SENTINELS: usize = 100;

/// Returns the vocabulary of `size` ids, and its tokenizer. Without a tokenizer the model takes ids only. Fails if a file is
/// malformed, or does not match the model.
pub(super) fn read(
    dir: &Path,
    config: &Json,
    size: usize,
) -> Result<(VocabularyConfig, Option<Arc<SubwordTokenizer>>)> {
    let settings_file = dir.join(SETTINGS_FILE);
    let settings: Json = match settings_file.exists() {
        true => parse(&read_config(&settings_file)?, &settings_file, "")?,
        false => Json::Null,
    };
    let is_byt5 = |json: &Json| json["tokenizer_class"].as_str() == Some("ByT5Tokenizer");
    let [tokenizer, model] = [TOKENIZER_FILE, SENTENCEPIECE_FILE].map(|name| dir.join(name));
    let has_no_file = !tokenizer.exists() && !model.exists();
    if is_byt5(config) || is_byt5(&settings) || (has_no_file && size == BYTE_IDS) {
        return Ok((VocabularyConfig::SparseBytes(FIRST_BYTE, size), None));
    }
    let (file, json) = match (tokenizer.exists(), model.exists()) {
        (true, _) => {
            let json = read_limited(&tokenizer, MAX_TOKENIZER_BYTES)?;
            (tokenizer, json)
        }
        (false, true) => {
            let json = from_sentencepiece(&model, sentinels(&settings, size, &settings_file)?)?;
            (model, json)
        }
        (false, false) => return Ok((VocabularyConfig::Pieces(size, None), None)),
    };
    let subwords = SubwordTokenizer::parse(&json).map_err(|error| error.in_file(&file))?;
    if subwords.len() > size {
        let expected = format!("at most {size} ids (vocab_size)");
        return Err(Error::checkpoint(&file, "the file", expected, subwords.len().to_string()));
    }
    for (id, special) in (0_u32..).zip(SPECIALS) {
        let found = subwords.piece(id);
        if found.as_deref() != Some(special) {
            let found = found.map_or("nothing".into(), |found| format!("{found:?}"));
            return Err(Error::checkpoint(&file, format!("id {id}"), format!("{special:?}"), found));
        }
    }
    Ok((VocabularyConfig::Pieces(size, Some(TOKENIZER_FILE.into())), Some(Arc::new(subwords))))
}

/// Returns the number of sentinels. Fails if it exceeds `size`, the ids of the model, or the ids that any model may have.
fn sentinels(settings: &Json, size: usize, file: &Path) -> Result<usize> {
    let Some(count) = settings["extra_ids"].as_u64() else { return Ok(SENTINELS) };
    let limit = size.min(MAX_SYMBOLS);
    match usize::try_from(count) {
        Ok(count) if count <= limit => Ok(count),
        _ => {
            let expected = format!("at most {limit}, the number of the model's ids");
            Err(Error::checkpoint(file, "extra_ids", expected, count.to_string()))
        }
    }
}

/// Returns a `tokenizer.json` with the ids of a SentencePiece model, and sentinels after them in reverse order.
fn from_sentencepiece(file: &Path, sentinels: usize) -> Result<Vec<u8>> {
    let model = sentencepiece::read(&read_limited(file, MAX_TOKENIZER_BYTES)?, file)?;
    if model.algorithm != Algorithm::Unigram {
        return Err(Error::checkpoint(file, "the file", "a unigram model", "another algorithm"));
    }
    let first_sentinel = model.by_id.len();
    let sentinels: Vec<String> = (0..sentinels).rev().map(|number| format!("<extra_id_{number}>")).collect();
    let special = |id: usize, content: &str| {
        json!({ "id": id, "content": content, "special": true,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false })
    };
    let mut added: Vec<Json> = SPECIALS.iter().enumerate().map(|(id, content)| special(id, content)).collect();
    added.extend(sentinels.iter().enumerate().map(|(index, content)| special(first_sentinel + index, content)));
    let pieces = model.by_id.iter().map(|(piece, score)| json!([piece, score]));
    let vocab: Vec<Json> = pieces.chain(sentinels.iter().map(|sentinel| json!([sentinel, 0.0]))).collect();
    let metaspace = metaspace("always");
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": normalizer(&model),
        "pre_tokenizer": metaspace, "post_processor": null, "decoder": metaspace,
        "model": { "type": "Unigram", "unk_id": 2, "vocab": vocab, "byte_fallback": false },
    });
    Ok(json.to_string().into_bytes())
}
