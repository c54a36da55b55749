//! Seeds in JSON.

use serde::{Deserialize, Deserializer, de};
use std::fmt;

/// A signed or unsigned 64-bit number, or its text. Responses report seeds as text because many JSON parsers round such numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seed(pub(crate) u64);

impl<'de> Deserialize<'de> for Seed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SeedVisitor)
    }
}

struct SeedVisitor;

impl de::Visitor<'_> for SeedVisitor {
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
        let signed = |_| text.parse().map(i64::cast_unsigned);
        text.parse().or_else(signed).map(Seed).map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reported_seed_can_be_requested() {
        let read = |text: &str| serde_json::from_str::<Seed>(text);
        let cases = [("0", 0), ("17657090610222322651", 17_657_090_610_222_322_651), ("-1", u64::MAX)];
        for (text, seed) in cases {
            assert_eq!(read(text).unwrap(), Seed(seed));
            assert_eq!(read(&format!("\"{text}\"")).unwrap(), Seed(seed));
        }
        for wrong in ["1.5", "\"x\"", "18446744073709551616", "true", "[]"] {
            let error = read(wrong).unwrap_err().to_string();
            assert!(error.contains("2^64 - 1"), "{wrong}: {error}");
        }
    }
}
