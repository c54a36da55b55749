//! Bits of a text by its characters, bytes and tokens.

use crate::{decode::contract::Model, text::TextCounter};
use serde_json::{Map, Value, json};
use std::f64::consts::LN_2;

/// Bits of a text by its size, without the symbols at its beginning that are not scored.
#[derive(Debug, Clone)]
pub(super) struct TextBits {
    /// True in a model of tokens.
    pub(super) is_subword: bool,
    /// Bits per Unicode character, in a model of tokens.
    pub(super) per_char: Option<f64>,
    pub(super) per_byte: Option<f64>,
    /// Bits per scored token, in a model of tokens.
    pub(super) per_token: Option<f64>,
}

impl TextBits {
    /// Measures the text of `symbols`, whose scores sum to `nats`. Its first `unscored` symbols have no score.
    pub(super) fn new(model: &dyn Model, symbols: &[u32], unscored: usize, nats: f64) -> Self {
        let card = model.card();
        let mut text = TextCounter::new(card.vocabulary.clone());
        for (index, &symbol) in symbols.iter().enumerate() {
            text.push(symbol, index >= unscored);
        }
        text.finish();
        let per = |count: usize| (count > 0).then(|| nats / LN_2 / count as f64);
        let tokens = symbols.len().saturating_sub(unscored);
        Self {
            is_subword: card.vocabulary.is_subword(),
            per_char: per(text.chars),
            per_byte: per(text.bytes),
            per_token: per(tokens),
        }
    }

    /// Returns the bits per character: `per_symbol`, unless symbols are tokens.
    pub(super) fn per_char(&self, per_symbol: Option<f64>) -> Option<f64> {
        if self.is_subword { self.per_char } else { per_symbol }
    }

    /// Adds the figures to a JSON object.
    pub(super) fn add_json(&self, object: &mut Map<String, Value>) {
        object.insert("bits_per_byte".into(), json!(self.per_byte));
        if self.is_subword {
            object.insert("bits_per_token".into(), json!(self.per_token));
        }
    }

    /// Formats the figures of a model of tokens as a part of a sentence.
    pub(super) fn describe(&self) -> String {
        if !self.is_subword {
            return String::new();
        }
        let per =
            |unit: &str, bits: Option<f64>| bits.map_or_else(String::new, |bits| format!(", {bits:.4} per {unit}"));
        per("byte", self.per_byte) + &per("token", self.per_token)
    }
}
