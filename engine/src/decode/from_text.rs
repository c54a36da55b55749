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
    /// use weir_engine::{decode::options::Generate, family::{checkpoint::CheckpointSource, load::{Settings, load_as}}};
    ///
    /// let source = CheckpointSource::default(); // the embedded model
    /// let model = load_as(&source, &source.name(), &Settings::default())?;
    /// let mut request = Generate::from_text("the history of ", model.card())?;
    /// request.sampling.temperature = 0.7;
    /// request.stopping.max_chars = 80;
    /// # Ok::<(), weir_engine::error::Error>(())
    /// ```
    pub fn from_text(prompt: &str, card: &Card) -> Result<Self> {
        let prompt = card.encode("prompt", prompt)?;
        let stopping = Stopping { max_chars: Stopping::default_max_chars(prompt.len(), card), ..Stopping::default() };
        Ok(Self {
            prompt,
            sampling: card.sampling.into(),
            stopping,
            details: Default::default(),
            boundaries: Default::default(),
            resumed: Vec::new(),
            speculation: None,
        })
    }
}

impl Score {
    /// A request for the log-probability of each character of `text`. Fails as [`Card::encode`] does.
    ///
    /// ```
    /// # use weir_engine::family::{checkpoint::CheckpointSource, load::{Settings, load_as}};
    /// use weir_engine::{decode::options::Score, engine::{Event, Handle, Job, Limits}};
    ///
    /// # let source = CheckpointSource::default();
    /// # let model = load_as(&source, &source.name(), &Settings::default())?;
    /// let request = Score::from_text("the river", model.card())?;
    /// let engine = Handle::start(model, Limits::default())?;
    /// let mut events = engine.submit(Job::Score(request), None)?;
    /// let mut logprobs = Vec::new();
    /// while let Some(event) = events.blocking_recv() {
    ///     if let Event::Characters(characters) = event? {
    ///         logprobs.extend(characters.into_iter().map(|character| character.logprob));
    ///     }
    /// }
    /// // This model has no start mark, so it cannot predict the first character.
    /// assert!(logprobs.len() == 9 && logprobs[0].is_none() && logprobs[1..].iter().all(Option::is_some));
    /// # Ok::<(), weir_engine::error::Error>(())
    /// ```
    pub fn from_text(text: &str, card: &Card) -> Result<Self> {
        let symbols = card.encode("text", text)?;
        Ok(Self { symbols, logprobs: true, top: 0, boundaries: Default::default(), windows: None })
    }
}
