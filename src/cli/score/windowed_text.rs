//! A text that was scored in windows.

use crate::{
    cli::{output, scores::Scores},
    decode::{evaluate::windows, options::WindowOptions},
};
use serde_json::{Value, json};

/// A text that was scored in windows.
pub(super) struct WindowedText {
    pub(super) scores: Scores,
    pub(super) windows: WindowOptions,
}

impl WindowedText {
    /// Returns −ln p per symbol of each window.
    fn window_losses(&self) -> Vec<f64> {
        // The first symbol has no score.
        let scored = windows(self.scores.symbols, self.windows)
            .filter_map(|window| self.scores.logprobs.get(window.scored - 1..window.end - 1));
        scored.map(|logprobs| -logprobs.iter().sum::<f64>() / logprobs.len() as f64).collect()
    }

    pub(super) fn as_json(&self) -> Value {
        let Scores { symbols, text_chars, logprobs, boundaries, shortening_factor, text_bits, .. } = &self.scores;
        let window_nats = if text_bits.is_subword { "window_nats_per_token" } else { "window_nats_per_char" };
        let losses = self.window_losses();
        let mut object = json!({
            "symbols": symbols,
            "text_chars": text_chars,
            "scored": logprobs.len(),
            "bits_per_char": self.scores.bits_per_char(),
            "shortening_factor": shortening_factor,
            "windows": losses.len(),
            window_nats: losses,
            "boundaries": boundaries,
            "logprobs": logprobs,
        });
        if let Some(object) = object.as_object_mut() {
            text_bits.add_json(object);
        }
        object
    }

    pub(super) fn as_text(&self) -> String {
        format!(
            "{} symbols scored in {} windows, {} bits per character{}, shortening factor {}\n",
            self.scores.logprobs.len(),
            self.window_losses().len(),
            output::optional(self.scores.bits_per_char()),
            self.scores.text_bits.describe(),
            output::optional(self.scores.shortening_factor)
        )
    }
}
