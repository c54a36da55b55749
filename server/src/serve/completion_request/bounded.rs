//! Lists in a request's JSON, bounded while they are parsed: no element beyond the limit is stored.

use crate::{decode::options::OptionLimits, error::quoted};
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};
use std::fmt;

/// Null, a string, or a list of at most `MAX` strings.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(in crate::serve) struct Texts<const MAX: usize>(pub(in crate::serve) Vec<String>);

impl<'de, const MAX: usize> Deserialize<'de> for Texts<MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextsVisitor::<MAX>)
    }
}

struct TextsVisitor<const MAX: usize>;

impl<'de, const MAX: usize> Visitor<'de> for TextsVisitor<MAX> {
    type Value = Texts<MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a string or a list of at most {MAX} strings")
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Texts::default())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Texts(vec![text.to_owned()]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut texts = Vec::new();
        while let Some(text) = list.next_element()? {
            if texts.len() == MAX {
                return Err(A::Error::custom(format!("expected at most {MAX} strings, found more")));
            }
            texts.push(text);
        }
        Ok(Texts(texts))
    }
}

/// Biases by symbol id: null, or an object whose keys are ids.
#[derive(Debug, Default, Clone, PartialEq)]
pub(in crate::serve) struct Biases(pub(in crate::serve) Vec<Bias>);

/// A number that is added to the logit of a symbol.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::serve) struct Bias {
    pub(super) id: u32,
    pub(super) value: f32,
}

impl<'de> Deserialize<'de> for Biases {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(BiasesVisitor)
    }
}

struct BiasesVisitor;

impl<'de> Visitor<'de> for BiasesVisitor {
    type Value = Biases;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object of at most {} symbol ids, each with a number as its value", OptionLimits::LOGIT_BIAS)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Biases::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut biases = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            if biases.len() == OptionLimits::LOGIT_BIAS {
                let limit = OptionLimits::LOGIT_BIAS;
                return Err(A::Error::custom(format!("expected at most {limit} symbol ids, found more")));
            }
            let is_number = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_digit());
            let id = match key.parse() {
                Ok(id) => id,
                // No vocabulary has a symbol of either id.
                Err(_) if is_number => u32::MAX,
                Err(_) => return Err(A::Error::custom(format!("expected symbol ids as keys, found {}", quoted(&key)))),
            };
            let value: f64 = map.next_value()?;
            biases.push(Bias { id, value: value as f32 });
        }
        Ok(Biases(biases))
    }
}
