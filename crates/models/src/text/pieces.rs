//! The model of a subword tokenizer. A unigram model of the library finds every piece in a text, so a text that spells out `</s>` or
//! `<0x41>` would become that piece. In SentencePiece only text pieces are found. The others have no text here: [`hide`] takes
//! their names away before the library reads them, and [`Pieces`] gives them back and replaces unknown text by its bytes. A BPE model
//! with `ignore_merges` finds every word that is a piece, so [`Pieces`] looks words up in its place.

use crate::text::AddedToken;
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::{Value, json};
use std::{
    collections::{HashMap, HashSet},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::Arc,
};
use tokenizers::{Model, ModelWrapper, Token, models::TrainerWrapper};

/// Score of a piece that no text has, in a file that weir writes.
pub(crate) const UNUSED_SCORE: f64 = -1e9;

/// Key of the hidden pieces in the model that the library reads.
const HIDDEN_KEY: &str = "hidden";

/// Key of the pieces that no word is, in a BPE model that looks words up.
const UNSPELLED_KEY: &str = "unspelled";

/// Takes the names of those pieces of a unigram model that are no text: special tokens, the unknown piece, pieces of bytes, unused
/// ones, and tokens that are found before. In a BPE model, lists such pieces, and removes the merges that make pieces of bytes.
pub(super) fn hide(json: &mut Value, python: &[AddedToken]) {
    let added = json["added_tokens"].as_array().into_iter().flatten();
    let special: HashSet<String> = added
        .filter(|token| token["special"] == true)
        .filter_map(|token| Some(token["content"].as_str()?.to_owned()))
        .chain(python.iter().filter(|token| token.special).map(|token| token.text.clone()))
        .collect();
    let Some(model) = json.pointer_mut("/model") else { return };
    let unknown = model["unk_id"].as_u64();
    let falls_back = model["byte_fallback"] == true;
    if let Some(vocabulary) = model["vocab"].as_object() {
        let is_unspelled = |name: &&String| {
            special.contains(*name) || model["unk_token"] == **name || (falls_back && byte_of_piece(name).is_some())
        };
        let unspelled: Vec<String> = vocabulary.keys().filter(is_unspelled).cloned().collect();
        if let Some(merges) = model.pointer_mut("/merges").and_then(Value::as_array_mut).filter(|_| falls_back) {
            merges.retain(|merge| !makes_byte_piece(merge));
        }
        if model["ignore_merges"] == true {
            model["ignore_merges"] = false.into();
            model[UNSPELLED_KEY] = unspelled.into();
        }
        return;
    }
    let Some(vocabulary) = model.pointer_mut("/vocab").and_then(Value::as_array_mut) else { return };
    let is_hidden = |(id, piece): (usize, &Value)| {
        let name = piece[0].as_str().unwrap_or_default();
        let is_byte = || falls_back && byte_of_piece(name).is_some();
        unknown == Some(id as u64) || piece[1] == UNUSED_SCORE || special.contains(name) || is_byte()
    };
    let hidden: Vec<usize> = (0..vocabulary.len()).filter(|&id| is_hidden((id, &vocabulary[id]))).collect();
    let mut names = Vec::new();
    for id in hidden {
        let piece = &mut vocabulary[id];
        // the library never finds a piece without a name, and the lowest score is one of text
        names.push(json!([id, piece[0].take()]));
        *piece = json!(["", 0.0]);
    }
    model[HIDDEN_KEY] = names.into();
}

/// Returns the byte of a byte piece such as `<0x0A>`.
pub(super) fn byte_of_piece(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

/// Returns true if a merge, `["<0x4", "1>"]` or `"<0x4 1>"`, makes a byte piece.
fn makes_byte_piece(merge: &Value) -> bool {
    let made = match merge {
        Value::String(pair) => pair.replacen(' ', "", 1),
        pair => [0, 1].map(|part| pair[part].as_str().unwrap_or_default()).concat(),
    };
    byte_of_piece(&made).is_some()
}

/// Runs the library. It panics on some files and texts, which is an error here.
pub(super) fn library<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("a panic of the tokenizers library; its message is in the log".into()),
    }
}

/// A model whose hidden pieces are in no text. Clones share it.
#[derive(Clone)]
pub(super) struct Pieces(Arc<Hiding>);

struct Hiding {
    model: ModelWrapper,
    names: HashMap<u32, String>,
    ids: HashMap<String, u32>,
    /// The pieces that replace unknown text, by their bytes.
    bytes: HashMap<u8, u32>,
    unknown: Option<u32>,
    /// The pieces that no word is; none if words are not looked up.
    unspelled: Option<HashSet<String>>,
}

impl<'de> Deserialize<'de> for Pieces {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut model = Value::deserialize(deserializer)?;
        let names = model.as_object_mut().and_then(|keys| keys.remove(HIDDEN_KEY)).unwrap_or_default();
        let names: Vec<(u32, String)> =
            if names.is_null() { Vec::new() } else { serde_json::from_value(names).map_err(D::Error::custom)? };
        let unknown = model["unk_id"].as_u64().and_then(|id| u32::try_from(id).ok());
        let falls_back = !names.is_empty() && model["byte_fallback"] == true;
        if falls_back {
            model["byte_fallback"] = false.into();
        }
        let byte = |(id, name): &(u32, String)| Some((byte_of_piece(name)?, *id));
        let bytes = names.iter().filter(|_| falls_back).filter_map(byte).collect();
        let ids = names.iter().map(|(id, name)| (name.clone(), *id)).collect();
        let unspelled = model.as_object_mut().and_then(|keys| keys.remove(UNSPELLED_KEY)).unwrap_or_default();
        let unspelled = serde_json::from_value(unspelled).map_err(D::Error::custom)?;
        let model = serde_json::from_value(model).map_err(D::Error::custom)?;
        Ok(Self(Arc::new(Hiding { model, names: names.into_iter().collect(), ids, bytes, unknown, unspelled })))
    }
}

impl Pieces {
    /// Returns the pieces of the bytes of an unknown text; none if it stays unknown.
    fn bytes_of(&self, token: &Token) -> Option<Vec<Token>> {
        if self.0.bytes.is_empty() || Some(token.id) != self.0.unknown {
            return None;
        }
        let piece = |(byte, offsets)| {
            let id = *self.0.bytes.get(&byte)?;
            Some(Token::new(id, self.0.names.get(&id)?.clone(), offsets))
        };
        let (start, _) = token.offsets;
        let bytes_at = |(at, character): (usize, char)| {
            let offsets = (start + at, start + at + character.len_utf8());
            token.value[at..].bytes().take(character.len_utf8()).map(move |byte| (byte, offsets))
        };
        token.value.char_indices().flat_map(bytes_at).map(piece).collect()
    }
}

impl Model for Pieces {
    type Trainer = TrainerWrapper;

    fn tokenize(&self, text: &str) -> tokenizers::Result<Vec<Token>> {
        let is_word = self.0.unspelled.as_ref().is_some_and(|unspelled| !unspelled.contains(text));
        if let Some(id) = self.0.model.token_to_id(text).filter(|_| is_word && !text.is_empty()) {
            return Ok(vec![Token::new(id, text.to_owned(), (0, text.len()))]);
        }
        let tokens = self.0.model.tokenize(text)?;
        let in_bytes = |token: Token| self.bytes_of(&token).unwrap_or_else(|| vec![token]);
        Ok(tokens.into_iter().flat_map(in_bytes).collect())
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        let hidden = self.0.ids.get(token).copied();
        hidden.or_else(|| self.0.model.token_to_id(token).filter(|_| !token.is_empty()))
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        self.0.names.get(&id).cloned().or_else(|| self.0.model.id_to_token(id))
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        let mut all = self.0.model.get_vocab();
        if !self.0.names.is_empty() {
            all.remove("");
        }
        all.extend(self.0.ids.clone());
        all
    }

    fn get_vocab_size(&self) -> usize {
        self.0.model.get_vocab_size()
    }

    fn save(&self, folder: &Path, prefix: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        self.0.model.save(folder, prefix)
    }

    fn get_trainer(&self) -> TrainerWrapper {
        self.0.model.get_trainer()
    }
}

#[cfg(test)]
mod tests {
    use crate::text::SubwordTokenizer;
    use serde_json::{Value, json};

    /// Returns a unigram tokenizer with bytes, and no letter of their names but those of `letters`.
    fn tokenizer(letters: &str) -> SubwordTokenizer {
        let mut vocab = vec![json!(["<unk>", 0.0]), json!(["</s>", 0.0]), json!(["▁", -3.0]), json!(["a", -4.0])];
        vocab.extend((0..=255).map(|byte| json!([format!("<0x{byte:02X}>"), 0.0])));
        vocab.extend(letters.chars().map(|letter| json!([letter.to_string(), -20.0])));
        let space = json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true });
        let added: Vec<Value> = [("<unk>", 0), ("</s>", 1)]
            .iter()
            .map(|(content, id)| {
                json!({ "id": id, "content": content, "special": true, "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false })
            })
            .collect();
        let json = json!({ "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
            "normalizer": null, "pre_tokenizer": space, "post_processor": null, "decoder": { "type": "ByteFallback" },
            "model": { "type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": true } });
        SubwordTokenizer::parse(json.to_string().as_bytes()).unwrap()
    }

    /// With letters, with some, and without any, a spelled piece is its characters or their bytes, but never the piece.
    #[test]
    fn pieces_that_are_no_text_are_in_no_text() {
        for (text, hidden) in
            [("<0x41>", 4 + 0x41), ("a<0x0A>a", 4 + 10), ("</s>", 1), ("<unk>a", 0), ("<0x41><0x41>", 4 + 0x41)]
        {
            for letters in ["<0x41A/sunk>", "<x>", ""] {
                let tokenizer = tokenizer(letters);
                let ids: Vec<u32> = tokenizer.encode(text).unwrap().iter().map(|piece| piece.id).collect();
                assert!(!ids.contains(&hidden), "{text} with {letters:?}: {ids:?}");
                assert_eq!(tokenizer.decode(&ids).replace('▁', ""), text, "with {letters:?}");
            }
        }
        let tokenizer = self::tokenizer("");
        assert_eq!(
            (tokenizer.id_of("</s>"), tokenizer.id_of("<0x41>"), tokenizer.id_of("")),
            (Some(1), Some(69), None)
        );
        assert_eq!((tokenizer.piece(69).as_deref(), tokenizer.len()), (Some("<0x41>"), 260));
    }

    /// Words are looked up before merges apply, except for pieces that are no text.
    #[test]
    fn looked_up_words_are_text() {
        let names = ["<unk>", "</s>", "<0x41>", "<0x4", "a", "b", "ab", "aba", "<", "0", "x", "4", "1", ">", "/", "s"];
        let mut vocab: Vec<String> = names.map(str::to_owned).into();
        vocab.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")).filter(|piece| piece != "<0x41>"));
        let vocab: serde_json::Map<String, Value> = vocab.into_iter().zip((0..).map(Value::from)).collect();
        let end = json!({ "id": 1, "content": "</s>", "special": true, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false });
        let file = |pair: [Value; 3]| {
            json!({ "version": "1.0", "truncation": null, "padding": null, "added_tokens": [end], "normalizer": null,
                "pre_tokenizer": { "type": "WhitespaceSplit" }, "post_processor": null,
                "decoder": { "type": "ByteFallback" }, "model": { "type": "BPE", "dropout": null,
                "unk_token": "<unk>", "continuing_subword_prefix": null, "end_of_word_suffix": null,
                "fuse_unk": false, "byte_fallback": true, "ignore_merges": true, "vocab": vocab, "merges": pair } })
        };
        for merges in [
            [json!(["a", "b"]), json!(["<0x4", "1>"]), json!(["<", ">"])],
            [json!("a b"), json!("<0x4 1>"), json!("< >")],
        ] {
            // merges need their pieces
            let mut file = file(merges);
            for piece in ["1>", "<>"] {
                let id = file["model"]["vocab"].as_object().unwrap().len();
                file["model"]["vocab"][piece] = id.into();
            }
            let tokenizer = SubwordTokenizer::parse(file.to_string().as_bytes()).unwrap();
            for (text, pieces) in [
                ("<0x41>", "< 0 x 4 1 >"),
                ("</s>", "< / s >"),
                ("<unk>", "< <0x75> <0x6E> <0x6B> >"),
                ("aba", "aba"),
                ("abab", "ab ab"),
                ("A", "<0x41>"),
            ] {
                let encoded = tokenizer.encode(text).unwrap();
                let found: Vec<_> = encoded.iter().filter_map(|piece| tokenizer.piece(piece.id)).collect();
                assert_eq!(found.join(" "), pieces, "{text}");
            }
        }
    }

    #[test]
    fn unknown_characters_are_their_bytes() {
        let ids: Vec<u32> = tokenizer("").encode("a€").unwrap().iter().map(|piece| piece.id).collect();
        assert_eq!(ids, [2, 3, 4 + 0xe2, 4 + 0x82, 4 + 0xac]);
    }
}
