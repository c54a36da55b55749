//! Finds the special tokens of a `tokenizer.json`, and keeps text from being encoded as one.

use serde_json::Value;
use std::collections::HashSet;
use tokenizers::Tokenizer;

/// Returns the ids that the tokenizer's post-processor puts before each text. Fails if the library cannot encode a letter.
pub(super) fn leading_ids(tokenizer: &Tokenizer) -> tokenizers::Result<Vec<u32>> {
    let ids = |specials: bool| tokenizer.encode("a", specials).map(|encoding| encoding.get_ids().to_vec());
    let (plain, all) = (ids(false)?, ids(true)?);
    let start = all.windows(plain.len().max(1)).position(|part| part == plain);
    Ok(all[..start.unwrap_or(0)].to_vec())
}

/// Returns the id for text that the tokenizer has no piece for.
pub(super) fn unknown_id(json: &Value, tokenizer: &Tokenizer) -> Option<u32> {
    let model = &json["model"];
    let id = model["unk_id"].as_u64().and_then(|id| u32::try_from(id).ok());
    id.or_else(|| tokenizer.token_to_id(model["unk_token"].as_str()?))
}

/// Returns the ids of the special tokens without that of `unknown`, which text is encoded as.
pub(super) fn special_ids(tokenizer: &Tokenizer, unknown: Option<u32>) -> HashSet<u32> {
    let added = tokenizer.get_added_tokens_decoder();
    let special = added.into_iter().filter(|(_, token)| token.special).map(|(id, _)| id);
    special.filter(|&id| Some(id) != unknown).collect()
}

/// Lowers the scores of special tokens so far that text that spells one out is encoded as other pieces.
pub(super) fn lower_special_scores(json: &mut Value, specials: &HashSet<u32>, unknown: Option<u32>) {
    const PENALTY: f64 = 1000.0;
    let Some(vocabulary) = json["model"]["vocab"].as_array_mut() else { return };
    let is_special = |id: u32| specials.contains(&id) || Some(id) == unknown;
    let text_pieces = (0_u32..).zip(&*vocabulary).filter(|(id, _)| !is_special(*id));
    let lowest = text_pieces.filter_map(|(_, piece)| piece[1].as_f64()).fold(0.0, f64::min);
    for (_, piece) in (0_u32..).zip(vocabulary).filter(|(id, piece)| is_special(*id) && piece[1].is_number()) {
        piece[1] = Value::from(lowest - PENALTY);
    }
}
