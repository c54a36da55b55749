//! Tokens that were added to a tokenizer of transformers written in Python: texts with ids of their own, which a text is searched
//! for before anything else reads it. Such tokenizers are ByT5's, and those without a `tokenizer.json`.
//!
//! The rules are those of `tokenize` in transformers' `tokenization_python.py`: of several tokens the first, then the longest wins;
//! a token may take the white space around it; a token that is a single word has spaces around it, or the end of the text; the text
//! between two tokens is encoded by itself.

use crate::text::VocabularyError;
use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};
use weir_kernels::error::{Result, floor_boundary};

/// Maximum bytes of the compiled pattern of all tokens.
const PATTERN_BYTES: usize = 64 << 20;

/// Maximum bytes of white space that wait for a token.
const SPACE_BYTES: usize = 1 << 16;

/// A text with an id of its own.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AddedToken {
    /// Its id.
    pub id: u32,
    /// The text that becomes this id.
    pub text: String,
    /// True if it has no text when it is decoded.
    #[serde(default)]
    pub special: bool,
    /// True if white space before it belongs to it.
    #[serde(default)]
    pub lstrip: bool,
    /// True if white space after it belongs to it.
    #[serde(default, alias = "strips")]
    pub rstrip: bool,
    /// True if it stays text next to a character that is no space.
    #[serde(default)]
    pub single_word: bool,
    /// True if a word begins after it, in a tokenizer whose words begin with a space.
    #[serde(skip)]
    pub begins_word: bool,
}

#[derive(Debug, Clone, Default)]
pub(super) struct AddedTokens {
    /// The longest first.
    tokens: Vec<AddedToken>,
    /// Their texts; none without tokens.
    pattern: Option<Regex>,
}

impl PartialEq for AddedTokens {
    fn eq(&self, other: &Self) -> bool {
        self.tokens == other.tokens
    }
}

impl AddedTokens {
    /// Fails if there are far too many.
    pub(super) fn new(mut tokens: Vec<AddedToken>) -> std::result::Result<Self, VocabularyError> {
        // of several texts at one place the pattern finds the one that it lists first
        tokens.sort_by(|a, b| b.text.len().cmp(&a.text.len()).then_with(|| a.text.cmp(&b.text)));
        if tokens.is_empty() {
            return Ok(Self::default());
        }
        let texts: Vec<_> = tokens.iter().map(|token| regex::escape(&token.text)).collect();
        let pattern = RegexBuilder::new(&texts.join("|")).size_limit(PATTERN_BYTES).build();
        let wrong = |error: regex::Error| VocabularyError::new("added_tokens", "fewer tokens", error.to_string());
        Ok(Self { pattern: Some(pattern.map_err(wrong)?), tokens })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    pub(super) fn begin_words(&self) -> bool {
        self.tokens.iter().any(|token| token.begins_word)
    }

    pub(super) fn get(&self, id: u32) -> Option<&AddedToken> {
        self.tokens.iter().find(|token| token.id == id)
    }

    /// Returns the first token in a text from a byte on, with its place.
    pub(super) fn find(&self, text: &str, from: usize) -> Option<(usize, &AddedToken)> {
        let found = self.pattern.as_ref()?.find_at(text, from)?;
        Some((found.start(), self.tokens.iter().find(|token| token.text == found.as_str())?))
    }

    /// Bytes at the end of a text whose part in a token is not known: the longest token, and a character after it.
    fn unknown_bytes(&self) -> usize {
        self.tokens.first().map_or(0, |token| token.text.len() + 4)
    }

    /// Splits a complete text, and calls `take` for each part.
    pub(super) fn split(&self, text: &str, take: &mut dyn FnMut(Part<'_>) -> Result<(), String>) -> Result<(), String> {
        Splitter::default().push(self, text, true, take)
    }
}

/// A part of a text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    /// Text that is encoded. It continues the text before it, unless another part is between them.
    Text(&'a str),
    /// White space that belongs to a token.
    Space(&'a str),
    Token(&'a AddedToken),
    /// The next text is encoded by itself.
    Gap,
}

impl Part<'_> {
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Space(text) => text,
            Self::Token(token) => &token.text,
            Self::Gap => "",
        }
    }
}

/// Splits a text that arrives in chunks.
#[derive(Debug, Clone, Default)]
pub(super) struct Splitter {
    /// Text that may belong to a token.
    held: String,
    /// True after a token that takes the white space after it.
    strips: bool,
    /// The character before the held text, or none at the beginning, and after white space that a token took.
    last: Option<char>,
}

impl Splitter {
    /// Bytes of the text that is held back.
    pub(super) fn held_bytes(&self) -> usize {
        self.held.len()
    }

    /// Takes the next chunk, the last one if the text `ends`, and calls `take` for the parts that are known by then. Returns its
    /// first error.
    pub(super) fn push<E>(
        &mut self,
        tokens: &AddedTokens,
        chunk: &str,
        ends: bool,
        take: &mut dyn FnMut(Part<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.held.push_str(chunk);
        let held = std::mem::take(&mut self.held);
        // a token that begins before this byte is complete, and so is the character after it
        let known = if ends { held.len() } else { (held.len() + 1).saturating_sub(tokens.unknown_bytes()) };
        let mut done = 0;
        let mut searched = 0;
        while self.strip(&held, &mut done, take)? {
            let found = tokens.find(&held, searched.max(done)).filter(|(start, _)| *start < known);
            let Some((start, token)) = found else { break };
            let end = start + token.text.len();
            searched = end;
            let text = &held[done..start];
            if token.single_word {
                let is_word = |next: Option<char>| next.is_some_and(|next| next != ' ');
                if is_word(text.chars().next_back().or(self.last)) {
                    take(Part::Text(&held[done..end]))?;
                    take(Part::Gap)?;
                    done = end;
                    self.last = None;
                    continue;
                }
                if is_word(held[end..].chars().next()) {
                    take(Part::Text(text))?;
                    take(Part::Gap)?;
                    done = start;
                    continue;
                }
            }
            let kept = if token.lstrip { text.trim_end_matches(is_space) } else { text };
            take(Part::Text(kept))?;
            take(Part::Space(&text[kept.len()..]))?;
            take(Part::Token(token))?;
            done = end;
            self.strips = token.rstrip;
            self.last = token.text.chars().next_back();
        }
        let known = floor_boundary(&held, known).max(done);
        let text = &held[done..known];
        // white space may belong to the next token
        let kept = if ends || text.len() > SPACE_BYTES { text } else { text.trim_end_matches(is_space) };
        self.last = kept.chars().next_back().or(self.last);
        take(Part::Text(kept))?;
        self.held.push_str(&held[done + kept.len()..]);
        Ok(())
    }

    /// Takes white space from `done` on that belongs to the token before it. Returns false if more may follow.
    fn strip<E>(
        &mut self,
        held: &str,
        done: &mut usize,
        take: &mut dyn FnMut(Part<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<bool, E> {
        if self.strips {
            let rest = held[*done..].trim_start_matches(is_space);
            let space = &held[*done..held.len() - rest.len()];
            take(Part::Space(space))?;
            if !space.is_empty() {
                self.last = None;
            }
            *done += space.len();
            self.strips = rest.is_empty();
        }
        Ok(!self.strips)
    }
}

/// Returns true for white space as Python defines it.
fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\x1c'..='\x1f').contains(&character)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tokens() -> AddedTokens {
        let token = |(id, text): (u32, &str)| AddedToken { id, text: text.into(), ..AddedToken::default() };
        let plain = (0..).zip(["<a>", "<ab>", "<l>", "<r>", "<w>", "<rw>"]).map(token);
        let flagged = plain.map(|token| AddedToken {
            lstrip: token.text.contains('l'),
            rstrip: token.text.contains('r'),
            single_word: token.text.contains('w'),
            ..token
        });
        AddedTokens::new(flagged.collect()).unwrap()
    }

    /// Returns the parts of a text in chunks of `size` characters: texts between bars, tokens as they are, white space left out.
    fn parts(text: &str, size: usize) -> String {
        let tokens = tokens();
        let mut splitter = Splitter::default();
        let mut out = String::from("|");
        let mut take = |part: Part<'_>| {
            match part {
                Part::Text(text) => out.push_str(text),
                Part::Space(_) => {}
                Part::Token(token) => out = format!("{out}|{}|", token.text),
                Part::Gap => out.push('|'),
            }
            Ok::<_, ()>(())
        };
        let characters: Vec<char> = text.chars().collect();
        for chunk in characters.chunks(size) {
            splitter.push(&tokens, &chunk.iter().collect::<String>(), false, &mut take).unwrap();
        }
        splitter.push(&tokens, "", true, &mut take).unwrap();
        assert_eq!(splitter.held_bytes(), 0);
        out
    }

    /// As transformers 4.57 splits them.
    #[test]
    fn tokens_are_found_by_the_rules_of_transformers() {
        for (text, expected) in [
            ("x<a>y", "|x|<a>|y"),
            ("x <ab> y", "|x |<ab>| y"),
            ("x\u{1f} <l> y", "|x|<l>| y"),
            ("x <r>\u{a0} y<r>", "|x |<r>|y|<r>|"),
            ("x <w> y", "|x |<w>| y"),
            ("<w>", "||<w>|"),
            ("x<w>y", "|x<w>|y"),
            ("x <w>y <w>", "|x |<w>y |<w>|"),
            ("(<w>", "|(<w>|"),
            ("<a><w>", "||<a>|<w>|"),
            ("<r>  <w>", "||<r>||<w>|"),
            ("x<w><w>", "|x<w>||<w>|"),
            ("x <rw>  y", "|x |<rw>|y"),
            ("<a", "|<a"),
        ] {
            assert_eq!(parts(text, 100), expected, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn chunks_change_nothing(pieces in prop::collection::vec("<a>|<ab>|<l>|<r>|<w>|<rw>|x| |<|é", 0..12), size in 1_usize..6) {
            let text = pieces.concat();
            prop_assert_eq!(parts(&text, size), parts(&text, 100), "{}", text);
        }
    }
}
