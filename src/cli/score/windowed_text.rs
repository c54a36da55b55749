//! A text that was scored in windows.

use super::{scores::Scores, text_bits::TextBits};
use crate::cli::output;
use serde_json::{Value, json};
use std::f64::consts::LN_2;

/// A text that was scored in windows, by a model in this process or by a server.
pub(super) struct WindowedText {
    /// Number of symbols.
    pub(super) symbols: usize,
    /// Unicode characters.
    pub(super) text_chars: usize,
    /// −ln p per symbol, of each window.
    pub(super) window_losses: Vec<f64>,
    pub(super) shortening_factor: Option<f64>,
    /// 1 for each symbol that ends a segment, otherwise 0; without the last symbol.
    pub(super) boundaries: Vec<u8>,
    /// ln p of each scored symbol.
    pub(super) logprobs: Vec<f64>,
    pub(super) text_bits: TextBits,
}

impl WindowedText {
    fn bits_per_char(&self) -> Option<f64> {
        let scored = self.logprobs.len();
        let bits = (scored > 0).then(|| -self.logprobs.iter().sum::<f64>() / scored as f64 / LN_2);
        self.text_bits.per_char(bits)
    }
}

impl Scores for WindowedText {
    fn as_json(&self) -> Value {
        let window_nats = match self.text_bits.is_subword {
            true => "window_nats_per_token",
            false => "window_nats_per_char",
        };
        let mut object = json!({
            "symbols": self.symbols,
            "text_chars": self.text_chars,
            "scored": self.logprobs.len(),
            "bits_per_char": self.bits_per_char(),
            "shortening_factor": self.shortening_factor,
            "windows": self.window_losses.len(),
            window_nats: self.window_losses,
            "boundaries": self.boundaries,
            "logprobs": self.logprobs,
        });
        if let Some(object) = object.as_object_mut() {
            self.text_bits.add_json(object);
        }
        object
    }

    fn as_text(&self) -> String {
        format!(
            "{} symbols scored in {} windows, {} bits per character{}, shortening factor {}\n",
            self.logprobs.len(),
            self.window_losses.len(),
            output::optional(self.bits_per_char()),
            self.text_bits.describe(),
            output::optional(self.shortening_factor)
        )
    }
}
