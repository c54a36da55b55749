//! The prompts of a request's JSON: a text, ids of symbols, or a list of either.

use super::bounded::{check_count, count_rest};
use crate::error;
use serde::{
    Deserialize, Deserializer,
    de::{Error, SeqAccess, Unexpected, Visitor},
};
use std::fmt;

/// Maximum ids of a prompt, about as over gRPC: a message has at most 65,536 fields there, and each id counts as one.
const MAX_IDS: usize = 65_000;

/// One prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::serve) enum Prompt {
    Text(String),
    /// Ids of the model's vocabulary, which OpenAI's API calls tokens.
    Ids(Vec<u32>),
}

/// The field `prompt` of a request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::serve) enum Prompts<const MAX: usize> {
    /// The request has no such field.
    #[default]
    Missing,
    Null,
    /// At most `MAX` prompts.
    List(Vec<Prompt>),
}

impl<const MAX: usize> Prompts<MAX> {
    /// Returns the prompts, at least one. Fails if the request has none.
    pub(in crate::serve) fn list(&self) -> error::Result<&[Prompt]> {
        let found = match self {
            Self::Missing => "nothing",
            Self::Null => "null",
            Self::List(list) if list.is_empty() => "an empty list",
            Self::List(list) => return Ok(list),
        };
        Err(error::Error::bad_option("prompt", found, "at least one symbol"))
    }
}

impl<'de, const MAX: usize> Deserialize<'de> for Prompts<MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptsVisitor::<MAX>)
    }
}

struct PromptsVisitor<const MAX: usize>;

impl<'de, const MAX: usize> Visitor<'de> for PromptsVisitor<MAX> {
    type Value = Prompts<MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a string, a list of token ids, or a list of at most {MAX} of either")
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Prompts::Null)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Prompts::List(vec![Prompt::Text(text.to_owned())]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut prompts = Vec::new();
        let mut ids = Vec::new();
        while let Some(element) = list.next_element()? {
            match element {
                Element::Id(_) if ids.len() == MAX_IDS => check_ids(MAX_IDS + 1 + count_rest(&mut list)?)?,
                Element::Id(id) if prompts.is_empty() => ids.push(id),
                Element::Prompt(_) if prompts.len() == MAX => {
                    check_count(MAX, "prompts", MAX + 1 + count_rest(&mut list)?)?;
                }
                Element::Prompt(prompt) if ids.is_empty() => prompts.push(prompt),
                _ => return Err(A::Error::custom("expected either token ids or prompts, found both")),
            }
        }
        if !ids.is_empty() {
            prompts.push(Prompt::Ids(ids));
        }
        Ok(Prompts::List(prompts))
    }
}

/// An element of a list: a prompt, or an id of the only prompt.
enum Element {
    Id(u32),
    Prompt(Prompt),
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ElementVisitor)
    }
}

struct ElementVisitor;

impl<'de> Visitor<'de> for ElementVisitor {
    type Value = Element;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a string, a token id from 0 to {}, or a list of token ids", u32::MAX)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Element, E> {
        Ok(Element::Prompt(Prompt::Text(text.to_owned())))
    }

    fn visit_u64<E: Error>(self, id: u64) -> Result<Element, E> {
        u32::try_from(id).map(Element::Id).map_err(|_| E::invalid_value(Unexpected::Unsigned(id), &self))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Element, A::Error> {
        let mut ids = Vec::new();
        while ids.len() < MAX_IDS
            && let Some(id) = list.next_element()?
        {
            ids.push(id);
        }
        check_ids(ids.len() + count_rest(&mut list)?)?;
        if ids.is_empty() {
            return Err(A::Error::custom("expected at least one token id, found none"));
        }
        Ok(Element::Prompt(Prompt::Ids(ids)))
    }
}

/// Fails if a prompt has too many ids.
fn check_ids<E: Error>(count: usize) -> Result<(), E> {
    check_count(MAX_IDS, "token ids in a prompt", count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Vec<Prompt>, String> {
        let prompts: Prompts<2> = serde_json::from_str(json).map_err(|error| error.to_string())?;
        prompts.list().map(<[Prompt]>::to_vec).map_err(|error| error.to_string())
    }

    #[test]
    fn prompts_are_texts_or_ids() {
        let text = |text: &str| Prompt::Text(text.into());
        assert_eq!(parse("\"a\"").unwrap(), [text("a")]);
        assert_eq!(parse("[\"a\", \"\"]").unwrap(), [text("a"), text("")]);
        assert_eq!(parse("[3, 1, 2]").unwrap(), [Prompt::Ids(vec![3, 1, 2])]);
        assert_eq!(parse("[[3], [1, 2]]").unwrap(), [Prompt::Ids(vec![3]), Prompt::Ids(vec![1, 2])]);
        assert_eq!(parse("[[3], \"a\"]").unwrap(), [Prompt::Ids(vec![3]), text("a")]);
    }

    #[test]
    fn a_request_needs_a_prompt() {
        assert_eq!(parse("null").unwrap_err(), "prompt: expected at least one symbol, found null");
        assert_eq!(parse("[]").unwrap_err(), "prompt: expected at least one symbol, found an empty list");
        let missing = Prompts::<2>::default().list().unwrap_err().to_string();
        assert_eq!(missing, "prompt: expected at least one symbol, found nothing");
    }

    #[test]
    fn ids_are_bounded_while_they_are_parsed() {
        let ids = |count: usize| vec!["1"; count].join(",");
        assert!(parse(&format!("[{}]", ids(MAX_IDS))).is_ok());
        for json in [format!("[{}]", ids(MAX_IDS + 1)), format!("[[{}]]", ids(MAX_IDS + 1))] {
            let error = parse(&json).unwrap_err();
            assert!(error.contains("at most 65000 token ids in a prompt, found 65001"), "{error}");
        }
    }

    #[test]
    fn other_values_are_refused() {
        for (json, part) in [
            ("3", "a list of token ids"),
            ("[-1]", "a token id from 0"),
            ("[[]]", "at least one token id"),
            ("[4294967296]", "a token id from 0"),
            ("[1.5]", "a token id from 0"),
            ("[[1, -1]]", "u32"),
            ("[1, \"a\"]", "found both"),
            ("[\"a\", 1]", "found both"),
            ("[\"a\", [1], \"c\"]", "at most 2 prompts, found 3"),
            ("{}", "a list of token ids"),
        ] {
            let error = parse(json).unwrap_err();
            assert!(error.contains(part), "{json}: {error}");
        }
    }
}
