//! Requests about a text, with the options that a request has if its caller states none.

use super::{
    contract::Card,
    options::{Generate, Score, Stopping},
};
use crate::error::Result;

impl Generate {
    /// A request that continues `prompt` with the model's default options. Fails as [`Card::encode`] does.
    ///
    /// ```
    /// use weir::{decode::options::Generate, family::{checkpoint::CheckpointSource, load::{Settings, load_as}}};
    ///
    /// let source = CheckpointSource::default(); // the embedded model
    /// let model = load_as(&source, &source.name(), &Settings::default())?;
    /// let mut request = Generate::from_text("the history of ", model.card())?;
    /// request.sampling.temperature = 0.7;
    /// request.stopping.max_chars = 80;
    /// # Ok::<(), weir::error::Error>(())
    /// ```
    pub fn from_text(prompt: &str, card: &Card) -> Result<Self> {
        let prompt = card.encode("prompt", prompt)?;
        let stopping = Stopping {
            max_chars: Stopping::default_max_chars(prompt.len(), card),
            min_chars: 0,
            max_segments: None,
            stop: Vec::new(),
            include_stop: false,
            ignore_end: false,
        };
        let sampling = card.sampling.into();
        Ok(Self { prompt, sampling, stopping, details: Default::default(), boundaries: Default::default() })
    }
}

impl Score {
    /// A request for the log-probability of each character of `text`. Fails as [`Card::encode`] does.
    pub fn from_text(text: &str, card: &Card) -> Result<Self> {
        let symbols = card.encode("text", text)?;
        Ok(Self { symbols, logprobs: true, top: 0, boundaries: Default::default(), windows: None })
    }
}
