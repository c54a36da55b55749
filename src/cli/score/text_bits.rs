//! Bits per byte and per Unicode character of a text, comparable between models of characters, bytes and tokens.

use crate::{decode::contract::Model, text::TextCounter};
use serde_json::{Map, Value, json};
use std::f64::consts::LN_2;

/// Bits of a text and its size, without the first symbol unless that is scored, too.
#[derive(Debug, Clone)]
pub(super) struct TextBits {
    bits: f64,
    chars: usize,
    bytes: usize,
    /// Scored symbols, in a model of tokens.
    tokens: Option<usize>,
}

impl TextBits {
    /// Measures the text of `symbols`, whose scores sum to `nats`.
    pub(super) fn new(model: &dyn Model, symbols: &[u32], nats: f64) -> Self {
        let card = model.card();
        let mut text = TextCounter::new(card.vocabulary.clone());
        let first = usize::from(card.first_logits.is_none());
        for (index, &symbol) in symbols.iter().enumerate() {
            text.push(symbol, index >= first);
        }
        text.finish();
        let tokens = card.vocabulary.is_subword().then(|| symbols.len().saturating_sub(first));
        Self { bits: nats / LN_2, chars: text.chars, bytes: text.bytes, tokens }
    }

    /// Returns the bits per character: `per_symbol`, unless symbols are tokens.
    pub(super) fn per_char(&self, per_symbol: Option<f64>) -> Option<f64> {
        if self.tokens.is_some() { self.per(self.chars) } else { per_symbol }
    }

    fn per(&self, count: usize) -> Option<f64> {
        (count > 0).then(|| self.bits / count as f64)
    }

    /// Adds the figures to a JSON object.
    pub(super) fn add_json(&self, object: &mut Map<String, Value>) {
        object.insert("bits_per_byte".into(), json!(self.per(self.bytes)));
        if let Some(tokens) = self.tokens {
            object.insert("bits_per_token".into(), json!(self.per(tokens)));
        }
    }

    /// Formats the figures of a model of tokens as a part of a sentence.
    pub(super) fn describe(&self) -> String {
        let Some(tokens) = self.tokens else { return String::new() };
        let per =
            |unit: &str, count| self.per(count).map_or_else(String::new, |bits| format!(", {bits:.4} per {unit}"));
        per("byte", self.bytes) + &per("token", tokens)
    }
}
