//! Splits text into pieces as SentencePiece and the tokenizers of transformers around it do. User-defined pieces of a text stay as they
//! are, and the rest is normalised. Then all pieces compete: a user-defined piece is also found in normalised text, and across words if
//! it contains `▁`, unless another piece fits better.

use crate::text::{
    AddedToken, VocabularyError,
    added_tokens::{AddedTokens, Part},
    pieces::{Pieces, library},
};
use std::ops::Range;
use tokenizers::{Model, NormalizedString, Normalizer, NormalizerWrapper, normalizer};

/// Mark that a normaliser may put in the place of a space.
pub(super) const SPACE_MARK: char = '▁';

/// Place of a part of a text that is encoded by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Where a word begins: at the beginning of the text, or after an added token.
    Word,
    /// After an added token, where no word begins; or after other text, where the part begins with a space.
    Inside,
}

/// Splits text into pieces as SentencePiece does.
pub(super) struct SentencePieceSplitter {
    /// User-defined pieces, which are not normalised.
    kept: AddedTokens,
    /// User-defined pieces that reach over the end of a word.
    joining: AddedTokens,
    /// True if the first word of a text gets a `▁` in front of it.
    adds_prefix: bool,
}

/// A normalised text.
#[derive(Default)]
struct Normal {
    text: String,
    /// For each byte, the range of the original text that it comes from.
    origins: Vec<Range<usize>>,
}

impl SentencePieceSplitter {
    /// Creates the splitter of a tokenizer with these user-defined pieces. With `spaced`, a `▁` in a text counts as a space.
    pub(super) fn new(user_defined: &[AddedToken], spaced: bool, adds_prefix: bool) -> Result<Self, VocabularyError> {
        let kept = user_defined.iter().filter(|piece| !spaced || !piece.text.contains(SPACE_MARK));
        let joining = user_defined.iter().filter(|piece| piece.text.chars().skip(1).any(|c| c == SPACE_MARK));
        Ok(Self {
            kept: AddedTokens::new(kept.cloned().collect())?,
            joining: AddedTokens::new(joining.cloned().collect())?,
            adds_prefix,
        })
    }

    /// Encodes a text, or a part of one between added tokens. Returns the ids with their byte ranges in the text.
    pub(super) fn encode(
        &self,
        model: &Pieces,
        normalizer: Option<&NormalizerWrapper>,
        text: &str,
        place: Place,
    ) -> Result<Vec<(u32, Range<usize>)>, String> {
        let Normal { text, origins } = self.normalise(normalizer, text, place)?;
        let mut ids = Vec::new();
        for word in self.words(&text) {
            let tokens = library(|| model.tokenize(&text[word.clone()]))?;
            ids.extend(tokens.into_iter().map(|token| {
                let (start, end) = token.offsets;
                let own = origins.get(word.start + start..word.start + end).unwrap_or_default();
                let start = own.first().map_or(0, |origin| origin.start);
                (token.id, start..own.last().map_or(start, |origin| origin.end))
            }));
        }
        Ok(ids)
    }

    /// Normalises a text: merges each run of spaces into one and removes spaces at the end. Puts `▁` at the beginning if a word begins
    /// there.
    fn normalise(&self, normalizer: Option<&NormalizerWrapper>, text: &str, place: Place) -> Result<Normal, String> {
        let mut normal = Normal::default();
        let begins_word = place == Place::Word && self.adds_prefix;
        let mut after_space = begins_word || !text.starts_with([' ', SPACE_MARK]);
        let mut from = 0;
        self.kept.split(text, &mut |part| {
            let part_start = from;
            from += part.text().len();
            let mut push = |character: char, origin: Range<usize>| {
                if begins_word && normal.text.is_empty() {
                    normal.push(SPACE_MARK, 0..part_start + origin.start);
                }
                normal.push(character, part_start + origin.start..part_start + origin.end);
            };
            if let Part::Token(AddedToken { text: piece, .. }) = part {
                let skipped = if after_space { piece.len() - piece.trim_start_matches(' ').len() } else { 0 };
                for (at, character) in piece.char_indices().filter(|(at, _)| *at >= skipped) {
                    push(character, at..at + character.len_utf8());
                    after_space = character == ' ';
                }
                return Ok(());
            }
            let mut own = NormalizedString::from(part.text());
            if let Some(normalizer) = normalizer {
                library(|| normalizer.normalize(&mut own))?;
            }
            for (at, character) in own.get().char_indices() {
                if character != ' ' || !after_space {
                    let bytes = normalizer::Range::Normalized(at..at + character.len_utf8());
                    push(character, own.convert_offsets(bytes).unwrap_or_default());
                }
                after_space = character == ' ';
            }
            Ok(())
        })?;
        normal.text.truncate(normal.text.trim_end_matches(SPACE_MARK).len());
        Ok(normal)
    }

    /// Returns the words of a normalised text, which begin with `▁`.
    fn words(&self, text: &str) -> Vec<Range<usize>> {
        let mut words = Vec::new();
        let mut start = 0;
        let mut joined = 0;
        let mut piece = self.joining.find(text, 0);
        for (mark, _) in text.match_indices(SPACE_MARK).filter(|(mark, _)| *mark > 0) {
            while let Some((from, found)) = piece.filter(|(from, _)| *from < mark) {
                joined = joined.max(from + found.text.len());
                let next = text[from..].chars().next().map_or(1, char::len_utf8);
                piece = self.joining.find(text, from + next);
            }
            if mark >= joined {
                words.push(start..mark);
                start = mark;
            }
        }
        words.push(start..text.len());
        words.retain(|word| !word.is_empty());
        words
    }
}

impl Normal {
    /// Appends a character, or `▁` for a space.
    fn push(&mut self, character: char, origin: Range<usize>) {
        let character = if character == ' ' { SPACE_MARK } else { character };
        self.text.push(character);
        self.origins.extend(std::iter::repeat_n(origin, character.len_utf8()));
    }
}
