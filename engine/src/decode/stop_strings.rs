//! The stop strings of a request.

use super::{
    contract::Card,
    options::{OptionLimits, STOP_FIELDS, check_stop_count, check_stop_length},
};
use crate::{
    error::{Error, Result},
    text::vocabulary::BYTES_PER_SYMBOL,
};

/// Maximum bytes of a stop string. No valid one is longer.
const STOP_BYTES: usize = OptionLimits::STOP_SYMBOLS * BYTES_PER_SYMBOL;

/// The stop strings that the model can generate, in the order of the request. The others never match and are left out.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct StopStrings {
    /// The strings as the request states them.
    pub texts: Vec<String>,
    /// The same strings as [`encode_stop`](crate::text::Vocabulary::encode_stop) returns them.
    pub encoded: Vec<Vec<u32>>,
}

impl StopStrings {
    /// Checks and encodes stop strings. Fails if there are too many, or if one is empty or too long before or after normalising.
    pub fn new(texts: Vec<String>, card: &Card) -> Result<Self> {
        check_stop_count(texts.len())?;
        // Checked first: a stop string of megabytes would be encoded only to be rejected.
        for (field, text) in STOP_FIELDS.into_iter().zip(&texts) {
            if text.len() > STOP_BYTES {
                return Err(Error::TooLong { field, length: text.len(), limit: STOP_BYTES, unit: "bytes", why: None });
            }
            check_stop_length(field, card.vocabulary.stop_length(text))?;
        }
        let mut stop = Self::default();
        for (field, text) in STOP_FIELDS.into_iter().zip(texts) {
            if let Some(encoded) = card.vocabulary.encode_stop(&text) {
                check_stop_length(field, encoded.len())?;
                stop.encoded.push(encoded);
                stop.texts.push(text);
            }
        }
        Ok(stop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{TextNormaliser, Vocabulary};

    fn stop(texts: &[&str]) -> Result<StopStrings> {
        let symbols = ["e", "n", "o", " ", "c"];
        let card = Card::for_tests(Vocabulary::from_symbols(&symbols, TextNormaliser::Text8).unwrap());
        StopStrings::new(texts.iter().map(|&text| text.to_owned()).collect(), &card)
    }

    #[test]
    fn strings_that_never_match_are_left_out() {
        let kept = stop(&["\n\n", "C", "q", "e  n"]).unwrap();
        assert_eq!((kept.texts, kept.encoded), (vec!["C".into(), "e  n".into()], vec![vec![4], vec![0, 3, 1]]));
    }

    #[test]
    fn limits_hold_before_and_after_normalising() {
        let long = "q".repeat(257);
        let spaces = " ".repeat(257);
        let ones = "1".repeat(100);
        for (texts, start) in [
            (vec!["q"; 17], "stopping.stop: expected at most 16, found 17"),
            (vec!["c", ""], "stopping.stop[1]: expected 1 to 256 characters, found 0"),
            (vec!["c", &long], "stopping.stop[1]: expected 1 to 256 characters, found 257"),
            (vec![&spaces], "stopping.stop[0]: expected 1 to 256 characters, found 257"),
            (vec!["q", &ones], "stopping.stop[1]: expected 1 to 256 characters, found 401"),
        ] {
            let error = stop(&texts).unwrap_err().to_string();
            assert!(error.starts_with(start), "{error}");
        }
        let bytes = stop(&[&"\n".repeat(STOP_BYTES + 1)]).unwrap_err().to_string();
        assert!(bytes.ends_with("expected at most 8192 bytes, found 8193"), "{bytes}");
    }
}
