//! The setting of a completion for speculation, in JSON.

use serde::{Deserialize, Deserializer, de};
use std::fmt;

/// The setting as text: a name, or a number of characters. The gRPC service checks it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Speculate(pub(crate) String);

impl<'de> Deserialize<'de> for Speculate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SpeculateVisitor)
    }
}

struct SpeculateVisitor;

impl de::Visitor<'_> for SpeculateVisitor {
    type Value = Speculate;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(crate::decode::speculation::Speculation::EXPECTED)
    }

    fn visit_u64<E>(self, number: u64) -> Result<Speculate, E> {
        Ok(Speculate(number.to_string()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Speculate, E> {
        Ok(Speculate(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_read() {
        let read = |text: &str| serde_json::from_str::<Speculate>(text).map(|Speculate(text)| text);
        assert_eq!(["\"auto\"", "\"off\"", "\"4\"", "4"].map(|text| read(text).unwrap()), ["auto", "off", "4", "4"]);
        for wrong in ["true", "-1", "1.5", "[]"] {
            let error = read(wrong).unwrap_err().to_string();
            assert!(error.contains("\"auto\", \"off\""), "{wrong}: {error}");
        }
    }
}
