//! Lists in a request's JSON, bounded while they are parsed: no element beyond the limit is stored.

use crate::{decode::options::OptionLimits, error::quoted};
use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
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
        while texts.len() < MAX
            && let Some(text) = list.next_element()?
        {
            texts.push(text);
        }
        check_count(MAX, "strings", texts.len() + count_rest(&mut list)?)?;
        Ok(Texts(texts))
    }
}

/// Counts the rest of a list without storing it.
pub(super) fn count_rest<'de, A: SeqAccess<'de>>(list: &mut A) -> Result<usize, A::Error> {
    let mut count = 0;
    while list.next_element::<IgnoredAny>()?.is_some() {
        count += 1;
    }
    Ok(count)
}

/// Fails if there are more than `limit` elements, which the error calls `unit`.
pub(super) fn check_count<E: Error>(limit: usize, unit: &str, count: usize) -> Result<(), E> {
    if count > limit {
        return Err(E::custom(format!("expected at most {limit} {unit}, found {count}")));
    }
    Ok(())
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
        while biases.len() < OptionLimits::LOGIT_BIAS
            && let Some(key) = map.next_key::<String>()?
        {
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
        let mut count = biases.len();
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            count += 1;
        }
        check_count(OptionLimits::LOGIT_BIAS, "symbol ids", count)?;
        Ok(Biases(biases))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_beyond_its_limit_is_counted() {
        let stops = |count: usize| serde_json::from_str::<Texts<16>>(&format!("{:?}", vec!["a"; count]));
        assert_eq!(stops(16).unwrap().0.len(), 16);
        let message = stops(17).unwrap_err().to_string();
        assert!(message.starts_with("expected at most 16 strings, found 17"), "{message}");
        let message = stops(1000).unwrap_err().to_string();
        assert!(message.starts_with("expected at most 16 strings, found 1000"), "{message}");
    }

    #[test]
    fn biases_beyond_their_limit_are_counted() {
        let limit = OptionLimits::LOGIT_BIAS;
        let biases = |count: usize| {
            let entries: Vec<_> = (0..count).map(|id| format!("\"{id}\": 1")).collect();
            serde_json::from_str::<Biases>(&format!("{{{}}}", entries.join(",")))
        };
        assert_eq!(biases(limit).unwrap().0.len(), limit);
        let message = biases(limit + 2).unwrap_err().to_string();
        let expected = format!("expected at most {limit} symbol ids, found {}", limit + 2);
        assert!(message.starts_with(&expected), "{message}");
    }
}
