//! Encodes a text that arrives in chunks to tokens, with the bytes of each token. The tokens are the complete text's,
//! wherever the chunks end.
//!
//! Characters and bytes are encoded at once. Subwords are encoded word by word: the text is split only at *safe points*, before
//! a space that follows a letter, a digit or a printable ASCII character, where the tokenizer also splits
//! ([`subwords`](super::subwords) accepts no other). At most one word is held, limited to [`WORD_BYTES`].

use crate::text::{
    StreamDetokenizer, Subword, Vocabulary,
    added_tokens::{Part, Splitter},
    sentencepiece::Place,
};
use std::{ops::ControlFlow, sync::Arc};
use weir_kernels::error::{Error, Result, floor_boundary};

/// Maximum bytes between two safe points.
pub const WORD_BYTES: usize = 1 << 16;

/// One token of a text, with its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenSpan {
    /// Id in the vocabulary.
    pub id: u32,
    /// Offset of its first byte in the text.
    pub start: u64,
    /// Offset after its last byte. An unknown symbol also has bytes; a token that a normaliser inserts has none.
    pub end: u64,
}

/// Comparison of the text received so far with the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitStatus {
    /// The text has at most `limit` tokens so far.
    Within,
    /// The text has more tokens than the limit. The first `limit` tokens were returned.
    Exceeded,
}

/// Encodes a text that arrives in chunks.
#[derive(Debug, Clone)]
pub struct StreamTokenizer {
    vocabulary: Arc<Vocabulary>,
    field: &'static str,
    /// Truncates the text at a word that is too long, instead of failing.
    truncate: bool,
    /// Tokens that may still be returned.
    remaining: usize,
    status: LimitStatus,
    /// Text before the document, until its first chunk.
    prefix: String,
    /// Bytes of that text.
    prefix_bytes: u64,
    /// Bytes of the text before `held`.
    bytes: u64,
    /// Characters of the text before `held`, for messages.
    characters: usize,
    /// Text that is not encoded yet.
    held: String,
    /// True if the last character of the normalised text is a space, after which another space is dropped.
    after_space: bool,
    /// Finds added tokens.
    splitter: Splitter,
    /// Place of the held text.
    place: Place,
    /// The added token with which the text ends so far.
    last_added: Option<u32>,
    /// True once the text has begun.
    begun: bool,
}

impl StreamTokenizer {
    /// Creates the tokenizer of a text of at most `limit` tokens. `field` names the text in messages.
    pub fn new(vocabulary: Arc<Vocabulary>, field: &'static str, limit: usize) -> Self {
        Self {
            vocabulary,
            field,
            truncate: false,
            remaining: limit,
            status: LimitStatus::Within,
            prefix: String::new(),
            prefix_bytes: 0,
            bytes: 0,
            characters: 0,
            held: String::new(),
            after_space: false,
            splitter: Splitter::default(),
            place: Place::Word,
            last_added: None,
            begun: false,
        }
    }

    /// Sets whether a text is truncated at a word of more than [`WORD_BYTES`] bytes instead of rejected.
    pub fn with_truncation(self, truncate: bool) -> Self {
        Self { truncate, ..self }
    }

    /// Sets a text that precedes the first chunk. Its tokens count towards the limit, but have no bytes.
    pub fn with_prefix(self, prefix: &str) -> Self {
        Self { prefix: prefix.to_owned(), prefix_bytes: prefix.len() as u64, ..self }
    }

    /// Returns the vocabulary.
    pub fn vocabulary(&self) -> &Arc<Vocabulary> {
        &self.vocabulary
    }

    /// Returns the number of bytes received so far.
    pub fn bytes(&self) -> u64 {
        let before = self.prefix_bytes - self.prefix.len() as u64;
        (self.bytes + (self.held.len() + self.splitter.held_bytes()) as u64).saturating_sub(before)
    }

    /// Returns true if the text has its end mark, `end`: in Python, T5's tokenizers put no second one after one that is spelled out.
    pub fn is_ended(&self, end: u32) -> bool {
        let puts_marks = self.vocabulary.tokenizer().is_some_and(|tokenizer| !tokenizer.leading().is_empty());
        self.last_added == Some(end) && !puts_marks
    }

    fn offset(&self, byte: usize) -> u64 {
        (self.bytes + byte as u64).saturating_sub(self.prefix_bytes)
    }

    /// Begins the text, if nothing was pushed yet: with the ids that the tokenizer puts before each text, and the prefix.
    fn begin(&mut self, tokens: &mut Vec<TokenSpan>) -> Result<()> {
        if self.begun {
            return Ok(());
        }
        self.begun = true;
        for &id in self.vocabulary.clone().tokenizer().map_or(&[][..], |tokenizer| tokenizer.leading()) {
            self.push_token(id, 0, tokens);
        }
        let prefix = std::mem::take(&mut self.prefix);
        self.push_chunk(&prefix, false, tokens)
    }

    /// Encodes the next chunk and appends the tokens that no later chunk can change. Fails at a character that the vocabulary
    /// cannot encode, and at a word above [`WORD_BYTES`] bytes, unless the text may be truncated there.
    pub fn push(&mut self, chunk: &str, tokens: &mut Vec<TokenSpan>) -> Result<LimitStatus> {
        self.begin(tokens)?;
        self.push_chunk(chunk, false, tokens)?;
        Ok(self.status)
    }

    /// Ends the text and appends the tokens of the text that was held back. Fails as [`push`](Self::push) does.
    pub fn finish(&mut self, tokens: &mut Vec<TokenSpan>) -> Result<LimitStatus> {
        self.begin(tokens)?;
        self.push_chunk("", true, tokens)?;
        self.held = String::new();
        Ok(self.status)
    }

    /// Splits a chunk at added tokens and encodes its parts.
    fn push_chunk(&mut self, chunk: &str, ends: bool, tokens: &mut Vec<TokenSpan>) -> Result<()> {
        if self.status == LimitStatus::Exceeded {
            return Ok(());
        }
        let vocabulary = Arc::clone(&self.vocabulary);
        match vocabulary.added_tokens() {
            None => self.push_text(chunk, tokens)?,
            Some(added) => {
                let mut splitter = std::mem::take(&mut self.splitter);
                let pushed = splitter.push(added, chunk, ends, &mut |part| self.push_part(&part, tokens));
                self.splitter = splitter;
                pushed?;
            }
        }
        if ends { self.end_part(tokens) } else { Ok(()) }
    }

    fn push_part(&mut self, part: &Part<'_>, tokens: &mut Vec<TokenSpan>) -> Result<()> {
        match part {
            Part::Text(text) => return self.push_text(text, tokens),
            Part::Space("") => return Ok(()),
            Part::Space(_) | Part::Token(_) | Part::Gap => self.end_part(tokens)?,
        }
        let tokenizer = self.vocabulary.tokenizer();
        self.place = tokenizer.map_or(self.place, |tokenizer| tokenizer.place_after(part, self.place));
        if self.status == LimitStatus::Exceeded {
            return Ok(());
        }
        match part {
            Part::Token(token) => {
                self.push_token(token.id, token.text.len(), tokens);
                self.skip(&token.text);
                self.last_added = Some(token.id);
            }
            Part::Space(space) => self.skip(space),
            Part::Text(_) | Part::Gap => {}
        }
        Ok(())
    }

    /// Appends a token of the next bytes, unless the limit is reached.
    fn push_token(&mut self, id: u32, bytes: usize, tokens: &mut Vec<TokenSpan>) {
        if self.remaining == 0 {
            self.status = LimitStatus::Exceeded;
            return;
        }
        self.remaining -= 1;
        tokens.push(TokenSpan { id, start: self.offset(0), end: self.offset(bytes) });
    }

    /// Encodes what is held of a text that ends, or is followed by an added token.
    fn end_part(&mut self, tokens: &mut Vec<TokenSpan>) -> Result<()> {
        if self.status == LimitStatus::Within && !self.held.is_empty() {
            self.encode_held(self.held.len(), tokens)?;
        }
        Ok(())
    }

    fn push_text(&mut self, text: &str, tokens: &mut Vec<TokenSpan>) -> Result<()> {
        if self.status == LimitStatus::Exceeded || text.is_empty() {
            return Ok(());
        }
        if !self.vocabulary.is_subword() {
            self.last_added = None;
            return self.encode_characters(text, tokens);
        }
        let mut rest = text;
        // a long text is split into pieces, so that the word limit does not depend on where chunks end
        while self.status == LimitStatus::Within && !rest.is_empty() {
            let free = WORD_BYTES.saturating_sub(self.held.len()) + 1;
            let first = rest.chars().next().map_or(0, char::len_utf8);
            let (piece, after) = rest.split_at(floor_boundary(rest, free.max(first)));
            rest = after;
            // the held text contains no safe point; the first possible one is before the new piece
            let from = self.held.char_indices().next_back().map_or(0, |(offset, _)| offset);
            self.held.push_str(piece);
            let tokenizer = self.vocabulary.tokenizer();
            let is_safe = |before: &str| tokenizer.is_none_or(|tokenizer| !tokenizer.may_reach_on(before));
            if let Some(end) = last_safe_point(&self.held, from, is_safe) {
                self.encode_held(end, tokens)?;
            }
            if self.held.len() > WORD_BYTES && self.status == LimitStatus::Within {
                if self.truncate {
                    self.encode_held(floor_boundary(&self.held, WORD_BYTES), tokens)?;
                    self.status = LimitStatus::Exceeded;
                    break;
                }
                let unit = "bytes without the end of a word";
                return Err(Error::LongerThan { field: self.field, limit: WORD_BYTES, unit, why: None });
            }
        }
        Ok(())
    }

    fn encode_held(&mut self, end: usize, tokens: &mut Vec<TokenSpan>) -> Result<()> {
        let field = self.field;
        let Some(tokenizer) = self.vocabulary.tokenizer() else {
            // fails with the vocabulary's message for a missing tokenizer
            return self.vocabulary.encode(field, &self.held, usize::MAX).map(|_| ());
        };
        let unknown = |found: String| Error::UnknownSymbol { field, found, offset: self.characters, unit: "character" };
        let subwords = tokenizer.encode_part(&self.held[..end], self.place).map_err(unknown)?;
        self.place = Place::Inside;
        if subwords.len() > self.remaining {
            self.status = LimitStatus::Exceeded;
        }
        let count = subwords.len().min(self.remaining);
        self.last_added = self.last_added.filter(|_| count == 0);
        self.remaining -= count;
        tokens.extend(subwords.into_iter().take(count).map(|Subword { id, start, end }| TokenSpan {
            id,
            start: self.offset(start),
            end: self.offset(end),
        }));
        self.bytes += end as u64;
        self.characters += self.held[..end].chars().count();
        self.held.drain(..end);
        Ok(())
    }

    /// Counts text that has no token.
    fn skip(&mut self, text: &str) {
        self.bytes += text.len() as u64;
        self.characters += text.chars().count();
    }

    fn encode_characters(&mut self, chunk: &str, tokens: &mut Vec<TokenSpan>) -> Result<()> {
        let vocabulary = Arc::clone(&self.vocabulary);
        let mut characters = chunk.char_indices().enumerate().peekable();
        // bytes of the chunk's character that is being normalised
        let mut span = 0..0;
        let mut is_first = true;
        let mut unknown = None;
        vocabulary.normaliser().for_each(chunk, |character, offset| {
            while let Some((index, (byte, original))) = characters.next_if(|(index, _)| *index <= offset) {
                if index == offset {
                    span = byte..byte + original.len_utf8();
                }
            }
            let repeats_space = std::mem::take(&mut is_first) && self.after_space && character == ' ';
            if repeats_space && vocabulary.normaliser().collapses() {
                return ControlFlow::Continue(());
            }
            self.after_space = character == ' ';
            let mut bytes = [0; 4];
            let ids: &[u32] = match (vocabulary.id_or_unknown(character), vocabulary.byte_zero()) {
                (Some(id), _) => &[id],
                (None, Some(zero)) => {
                    let encoded = character.encode_utf8(&mut bytes).len();
                    &std::array::from_fn::<u32, 4, _>(|index| zero + u32::from(bytes[index]))[..encoded]
                }
                (None, None) => {
                    unknown = Some((character, offset));
                    return ControlFlow::Break(());
                }
            };
            for &id in ids {
                if self.remaining == 0 {
                    self.status = LimitStatus::Exceeded;
                    return ControlFlow::Break(());
                }
                self.remaining -= 1;
                let [start, end] = [span.start, span.end].map(|byte| self.offset(byte));
                tokens.push(TokenSpan { id, start, end });
            }
            ControlFlow::Continue(())
        });
        if let Some((character, offset)) = unknown {
            let found = format!("{character:?}");
            return Err(Error::UnknownSymbol {
                field: self.field,
                found,
                offset: self.characters + offset,
                unit: "character",
            });
        }
        self.skip(chunk);
        Ok(())
    }
}

/// Returns the last safe point at or after `from`: before a space, after a character that no normaliser joins it to, and after a text
/// that `is_safe`.
fn last_safe_point(text: &str, from: usize, is_safe: impl Fn(&str) -> bool) -> Option<usize> {
    let mut spaces = text.get(from..)?.rmatch_indices(' ').map(|(offset, _)| from + offset);
    spaces.find(|&space| {
        let before = text.get(..space).unwrap_or_default();
        let last = before.chars().next_back();
        last.is_some_and(|last| last.is_alphanumeric() || last.is_ascii_graphic()) && is_safe(before)
    })
}

// Counts the characters and bytes of the text of symbols.

/// Size of the text of counted symbols.
#[derive(Debug, Clone)]
pub struct TextCounter {
    stream: StreamDetokenizer,
    vocabulary: Arc<Vocabulary>,
    /// Unicode characters.
    pub chars: usize,
    /// Bytes in UTF-8.
    pub bytes: usize,
}

impl TextCounter {
    /// Creates the counter of an empty text.
    pub fn new(vocabulary: Arc<Vocabulary>) -> Self {
        Self { stream: StreamDetokenizer::new(Arc::clone(&vocabulary)), vocabulary, chars: 0, bytes: 0 }
    }

    /// Returns the number of Unicode characters of the text of `symbols`.
    pub fn chars_of(symbols: &[u32], vocabulary: Arc<Vocabulary>) -> usize {
        let mut counter = Self::new(vocabulary);
        symbols.iter().for_each(|&symbol| counter.push(symbol, true));
        counter.finish();
        counter.chars
    }

    /// Takes the next symbol of the text, and counts the text that it completes if `is_counted`.
    pub fn push(&mut self, symbol: u32, is_counted: bool) {
        let is_byte = self.vocabulary.byte_of(symbol).is_some();
        let text = self.stream.push(symbol);
        if is_counted {
            self.chars += text.chars().count();
            // A character's last byte completes it, but each byte counts with its own symbol.
            self.bytes += if is_byte { 1 } else { text.len() };
        }
    }

    /// Counts the character that stands for an unfinished code point at the end of the text.
    pub fn finish(&mut self) {
        let text = self.stream.finish();
        self.chars += text.chars().count();
        if self.vocabulary.is_subword() {
            self.bytes += text.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{StreamDetokenizer, SubwordTokenizer, TextNormaliser, VocabularyError};
    use proptest::prelude::*;
    use serde_json::{Value, json};

    /// A small unigram tokenizer in the form that SentencePiece models are converted to.
    fn file(normalizer: &Value, bytes: bool) -> Value {
        let specials = ["<s>", "<pad>", "</s>", "<unk>"];
        let pieces = ["▁", "▁the", "▁a", "er", "ab", "abc", "▁ab", "▁abab", "é", "ing", "▁▁", "th", "\n", "3", "fi"];
        let letters = ('a'..='z').chain(['.', ',', '!']).map(String::from);
        let mut vocab: Vec<Value> = specials.iter().map(|special| json!([special, 0.0])).collect();
        vocab.extend(pieces.iter().enumerate().map(|(index, piece)| json!([piece, -2.0 - index as f64 * 0.1])));
        vocab.extend(letters.map(|letter| json!([letter, -7.0])));
        if bytes {
            vocab.extend((0..=255).map(|byte| json!([format!("<0x{byte:02X}>"), -9.0])));
        }
        let added: Vec<Value> = specials.iter().enumerate().map(|(id, special)| {
        json!({"id": id, "content": special, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true})
    }).collect();
        let metaspace = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
        let decoder = match bytes {
            false => metaspace.clone(),
            true => json!({"type": "Sequence", "decoders": [{"type": "ByteFallback"}, metaspace]}),
        };
        json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": normalizer, "pre_tokenizer": metaspace, "post_processor": null, "decoder": decoder,
        "model": {"type": "Unigram", "unk_id": 3, "vocab": vocab, "byte_fallback": bytes}})
    }

    fn vocabulary(file: &Value) -> Result<Arc<Vocabulary>, VocabularyError> {
        let tokenizer = Arc::new(SubwordTokenizer::parse(file.to_string().as_bytes())?);
        Ok(Arc::new(Vocabulary::from_tokenizer(tokenizer.len(), Some(tokenizer), TextNormaliser::None)?))
    }

    fn tokenizer(normalizer: &Value, bytes: bool) -> Arc<Vocabulary> {
        vocabulary(&file(normalizer, bytes)).unwrap()
    }

    fn normalizers() -> [Value; 3] {
        let collapsed = json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "});
        let strip = json!({"type": "Strip", "strip_left": false, "strip_right": true});
        [
            Value::Null,
            json!({"type": "NFKC"}),
            json!({"type": "Sequence", "normalizers": [{"type": "Nmt"}, {"type": "NFKC"}, strip, collapsed]}),
        ]
    }

    #[test]
    fn complete_characters_of_byte_pieces_are_released_at_once() {
        let vocabulary = tokenizer(&Value::Null, true);
        let mut stream = StreamDetokenizer::new(Arc::clone(&vocabulary));
        let id = |byte: u8| vocabulary.tokenizer().unwrap().id_of(&format!("<0x{byte:02X}>")).unwrap();
        let released: Vec<_> = "\n\té".bytes().map(|byte| stream.push(id(byte)).to_owned()).collect();
        assert_eq!(released, ["\n", "\t", "", "é"]);
    }

    /// Naive implementation: the tokenizer encodes the complete text.
    fn naive(vocabulary: &Vocabulary, text: &str) -> Vec<TokenSpan> {
        let subwords = vocabulary.tokenizer().unwrap().encode(text).unwrap();
        subwords
            .into_iter()
            .map(|Subword { id, start, end }| TokenSpan { id, start: start as u64, end: end as u64 })
            .collect()
    }

    /// Encodes a text in chunks whose lengths, in characters, repeat `lengths`.
    fn encode_chunks(
        vocabulary: &Arc<Vocabulary>,
        text: &str,
        lengths: &[usize],
        limit: usize,
    ) -> Result<(Vec<TokenSpan>, LimitStatus)> {
        let mut tokenizer = StreamTokenizer::new(Arc::clone(vocabulary), "text", limit);
        let mut tokens = Vec::new();
        let mut characters = text.chars();
        for &length in lengths.iter().cycle() {
            let chunk: String = characters.by_ref().take(length).collect();
            if chunk.is_empty() {
                break;
            }
            tokenizer.push(&chunk, &mut tokens)?;
        }
        assert!(tokenizer.bytes() == text.len() as u64 || limit < usize::MAX);
        let status = tokenizer.finish(&mut tokens)?;
        Ok((tokens, status))
    }

    fn texts() -> impl Strategy<Value = String> {
        let sign = prop_oneof![
            5 => proptest::sample::select(vec!["a", "b", "c", "the", "er", " ", "  ", ". "]).prop_map(str::to_owned),
            1 => proptest::sample::select(vec![
                "\n", "\t", "é", "e\u{301}", " \u{301}", "\u{200b}", "\u{3000}", "ﬁ", "³", "😀", "</s>", "▁", "\u{feff}", "\r\n",
                "\u{a0}", "\u{d4e}", "日本", "\u{ad}",
            ]).prop_map(str::to_owned),
        ];
        prop::collection::vec(sign, 0..60).prop_map(|signs| signs.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(600))]

        #[test]
        fn chunked_text_has_the_tokens_of_the_complete_text(
            text in texts(), lengths in prop::collection::vec(1_usize..9, 1..5), which in 0_usize..3, bytes in any::<bool>(),
        ) {
            let vocabulary = tokenizer(&normalizers()[which], bytes);
            let naive = naive(&vocabulary, &text);
            let (tokens, status) = encode_chunks(&vocabulary, &text, &lengths, usize::MAX)?;
            prop_assert_eq!(&tokens, &naive, "{:?}", text);
            prop_assert_eq!(status, LimitStatus::Within);
            prop_assert!(tokens.iter().all(|token| token.start <= token.end && token.end <= text.len() as u64));
            prop_assert!(!tokens.iter().any(|token| token.id < 3), "text was encoded as a special token");
            // a limit returns the first `limit` tokens
            let limit = naive.len() / 2;
            let (first, status) = encode_chunks(&vocabulary, &text, &lengths, limit)?;
            prop_assert_eq!(&first[..], &naive[..limit]);
            prop_assert_eq!(status, if naive.is_empty() { LimitStatus::Within } else { LimitStatus::Exceeded });
        }

        #[test]
        fn chunked_text_has_the_characters_and_bytes_of_the_complete_text(
            text in "[a-cA-Z0-9 ,é]{0,40}", lengths in prop::collection::vec(1_usize..9, 1..5), normalise in any::<bool>(),
        ) {
            let normaliser = if normalise { TextNormaliser::Text8 } else { TextNormaliser::None };
            let bytes = Arc::new(Vocabulary::byte_level(normaliser));
            let ids: Vec<u32> = encode_chunks(&bytes, &text, &lengths, usize::MAX)?.0.into_iter().map(|token| token.id).collect();
            prop_assert_eq!(ids, bytes.encode("text", &text, usize::MAX)?);
            let letters: Vec<String> = ('a'..='z').chain([' ']).map(String::from).collect();
            let letters = Arc::new(Vocabulary::from_symbols(&letters, TextNormaliser::Text8).unwrap());
            let (tokens, _) = encode_chunks(&letters, &text, &lengths, usize::MAX)?;
            let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
            prop_assert_eq!(&ids, &letters.encode("text", &text, usize::MAX)?);
            // a lower-case letter is its own normalisation, so its span must contain it
            for token in tokens {
                let original = &text[token.start as usize..token.end as usize];
                prop_assert!(original.chars().count() == 1);
                if original.chars().all(|sign| sign.is_ascii_lowercase()) {
                    prop_assert_eq!(letters.decode(&[token.id]), original);
                }
            }
        }

        #[test]
        fn streamed_pieces_concatenate_to_the_decoded_text(ids in prop::collection::vec(0_u32..305, 0..40), bytes in any::<bool>()) {
            let vocabulary = tokenizer(&Value::Null, bytes);
            let ids: Vec<u32> = ids.into_iter().filter(|&id| (id as usize) < vocabulary.len()).collect();
            let mut stream = StreamDetokenizer::new(Arc::clone(&vocabulary));
            let mut text: String = ids.iter().map(|&id| stream.push(id).to_owned()).collect();
            text += stream.finish();
            prop_assert_eq!(text, vocabulary.decode(&ids));
        }
    }

    #[test]
    fn at_most_one_word_is_held() {
        let vocabulary = tokenizer(&Value::Null, false);
        let mut tokenizer = StreamTokenizer::new(Arc::clone(&vocabulary), "chunk.text", usize::MAX);
        let mut tokens = Vec::new();
        for _ in 0..1000 {
            tokenizer.push("ab the", &mut tokens).unwrap();
            assert!(tokenizer.held.len() < 20);
        }
        let word = "a".repeat(WORD_BYTES / 4);
        let mut tokenizer = StreamTokenizer::new(Arc::clone(&vocabulary), "chunk.text", usize::MAX);
        let error = (0..5).find_map(|_| tokenizer.push(&word, &mut tokens).err()).unwrap();
        assert!(matches!(error, Error::LongerThan { field: "chunk.text", limit: WORD_BYTES, .. }), "{error}");
        // truncation does not depend on where chunks end; a safe point exactly at the limit counts
        let long = format!("a{}", "ab".repeat(WORD_BYTES));
        let mut truncated = Vec::new();
        for chunk in [1, 7, WORD_BYTES - 1, long.len()] {
            let mut tokenizer =
                StreamTokenizer::new(Arc::clone(&vocabulary), "chunk.text", usize::MAX).with_truncation(true);
            let mut tokens = Vec::new();
            let statuses: Vec<_> = long
                .as_bytes()
                .chunks(chunk)
                .map(|part| tokenizer.push(std::str::from_utf8(part).unwrap(), &mut tokens).unwrap())
                .collect();
            assert_eq!(statuses.last(), Some(&LimitStatus::Exceeded));
            assert_eq!(tokenizer.finish(&mut tokens).unwrap(), LimitStatus::Exceeded);
            assert_eq!(tokenizer.bytes(), WORD_BYTES as u64);
            truncated.push(tokens);
        }
        assert!(
            truncated.windows(2).all(|pair| pair[0] == pair[1])
                && truncated[0].last().unwrap().end == WORD_BYTES as u64
        );
        let words = format!("{} {0} {0}", "a".repeat(WORD_BYTES - 1));
        for chunk in [1000, words.len()] {
            let mut tokenizer = StreamTokenizer::new(Arc::clone(&vocabulary), "chunk.text", usize::MAX);
            for part in words.as_bytes().chunks(chunk) {
                assert_eq!(
                    tokenizer.push(std::str::from_utf8(part).unwrap(), &mut tokens).unwrap(),
                    LimitStatus::Within
                );
            }
        }
        // a text with too many tokens ends at the limit
        let mut tokenizer = StreamTokenizer::new(vocabulary, "chunk.text", 100);
        tokens.clear();
        assert_eq!(tokenizer.push(&"ab ".repeat(100_000), &mut tokens).unwrap(), LimitStatus::Exceeded);
        assert!(tokens.len() == 100 && tokenizer.held.len() <= WORD_BYTES);
        assert_eq!(tokenizer.push(&word.repeat(10), &mut tokens).unwrap(), LimitStatus::Exceeded);
        assert_eq!((tokens.len(), tokenizer.finish(&mut tokens).unwrap()), (100, LimitStatus::Exceeded));
        assert_eq!(tokenizer.held.capacity(), 0);
    }

    #[test]
    fn the_error_has_the_offset_in_the_complete_text() {
        let letters = Arc::new(Vocabulary::from_symbols(&["a", "b"], TextNormaliser::None).unwrap());
        let mut tokenizer = StreamTokenizer::new(letters, "chunk.text", 100);
        let mut tokens = Vec::new();
        tokenizer.push("abab", &mut tokens).unwrap();
        let error = tokenizer.push("ab!", &mut tokens).unwrap_err();
        assert_eq!(
            error.to_string(),
            "chunk.text: expected symbols of the model's vocabulary, found '!' at character 6"
        );
    }

    #[test]
    fn tokenizers_that_do_not_encode_words_independently_are_rejected() {
        for (place, value, key) in [
            ("/pre_tokenizer", Value::Null, "pre_tokenizer"),
            ("/pre_tokenizer/split", json!(false), "pre_tokenizer"),
            ("/normalizer", json!({"type": "Prepend", "prepend": "x"}), "normalizer"),
            ("/normalizer", json!({"type": "Strip", "strip_left": true, "strip_right": true}), "normalizer"),
            ("/normalizer", json!({"type": "Replace", "pattern": {"String": "a b"}, "content": "ab"}), "normalizer"),
        ] {
            let mut file = file(&Value::Null, false);
            *file.pointer_mut(place).unwrap() = value;
            assert_eq!(vocabulary(&file).unwrap_err().key, key, "{file}");
        }
    }

    /// The library finds added tokens before it splits the text, so one must not reach over the space after a word.
    #[test]
    fn added_tokens_may_reach_over_a_space() {
        let adding = |content: &str, changes: Value| {
            let mut file = file(&Value::Null, false);
            let id = file["model"]["vocab"].as_array().map(Vec::len);
            let mut token = json!({"id": id, "content": content, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": false});
            token.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
            file["added_tokens"].as_array_mut().unwrap().push(token);
            vocabulary(&file)
        };
        let error = adding(" the", json!({"single_word": true})).unwrap_err();
        assert_eq!(error.key, "added_tokens[4]", "{error}");
        for (content, changes) in [
            ("the ab", json!({"special": true, "rstrip": true})),
            ("the ab", json!({})),
            ("the ", json!({})),
            ("<x>", json!({"rstrip": true})),
            ("<x>", json!({"rstrip": true, "normalized": true})),
            ("<x>", json!({"rstrip": true, "single_word": true})),
            ("the ab", json!({"normalized": true})),
            ("the\tab", json!({"normalized": true})),
            ("the▁ab", json!({"normalized": true})),
            ("the\tab", json!({})),
            ("\t", json!({"normalized": true})),
            (" <x>", json!({})),
            ("<x>", json!({"lstrip": true})),
            ("<x>", json!({"lstrip": true, "rstrip": true, "special": true})),
            ("<x>", json!({"single_word": true})),
        ] {
            let vocabulary = adding(content, changes).unwrap();
            for text in ["the ab <x> the  ab<x>the ab", "<x>\tab the\tab <x>", "ab   <x>", "a \t<x> \tb"] {
                let (tokens, _) = encode_chunks(&vocabulary, text, &[1, 2], usize::MAX).unwrap();
                assert_eq!(tokens, naive(&vocabulary, text), "{content:?} in {text:?}");
            }
        }
    }

    /// The first symbol of a text may have no score.
    #[test]
    fn bytes_of_a_character_count_once_and_with_their_own_symbols() {
        for (text, chars, bytes) in [(&b"\xc3\xa9"[..], 1, 1), (b"a\xc3\xa9\xe2\x82\xac\xe2", 3, 2 + 3 + 1)] {
            let mut counter = TextCounter::new(Arc::new(Vocabulary::byte_level(TextNormaliser::None)));
            for (index, byte) in text.iter().enumerate() {
                counter.push((*byte).into(), index > 0);
            }
            counter.finish();
            assert_eq!((counter.chars, counter.bytes), (chars, bytes), "{text:?}");
        }
    }
}
