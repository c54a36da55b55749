//! Seeds in JSON.

use serde::{Deserialize, Deserializer, de};
use std::fmt;

/// A number of 64 bits, with a sign or without, or the text that answers tell it in: many readers of JSON round such numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::serve) struct Seed(pub(in crate::serve) u64);

impl<'de> Deserialize<'de> for Seed {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Reader)
    }
}

struct Reader;

impl de::Visitor<'_> for Reader {
    type Value = Seed;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a whole number from -2^63 to 2^64 - 1")
    }

    fn visit_u64<E>(self, seed: u64) -> Result<Seed, E> {
        Ok(Seed(seed))
    }

    fn visit_i64<E>(self, seed: i64) -> Result<Seed, E> {
        Ok(Seed(seed.cast_unsigned()))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Seed, E> {
        let signed = || text.parse().map(i64::cast_unsigned);
        text.parse().or_else(|_| signed()).map(Seed).map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_can_be_asked_for() {
        let read = |text: &str| serde_json::from_str::<Seed>(text);
        let cases = [("0", 0), ("17657090610222322651", 17_657_090_610_222_322_651), ("-1", u64::MAX)];
        for (text, seed) in cases {
            assert_eq!(read(text).unwrap(), Seed(seed));
            assert_eq!(read(&format!("\"{text}\"")).unwrap(), Seed(seed));
        }
        for wrong in ["1.5", "\"x\"", "18446744073709551616", "true", "[]"] {
            let told = read(wrong).unwrap_err().to_string();
            assert!(told.contains("2^64 - 1"), "{wrong}: {told}");
        }
    }
}
