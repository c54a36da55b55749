//! The options of a request and the symbols it emits. Pure data: ids, not text; the wire and the command line convert.

use crate::{constraint::CompiledConstraint, speculation::Speculation};
use std::{fmt::Display, ops::RangeInclusive, sync::Arc};
use weir_kernels::error::{Error, Result};
use weir_models::contract::{BoundaryOptions, Card, SamplingDefaults, SymbolBoundary, check_mode};

/// A request for generated text.
#[derive(Debug, Clone, Default)]
pub struct Generate {
    /// The prompt's symbols. At least one, unless the model has a start mark ([`Card::first_logits`]).
    pub prompt: Vec<u32>,
    /// How symbols are chosen.
    pub sampling: Sampling,
    /// Conditions under which the generation stops.
    pub stopping: Stopping,
    /// Details emitted in addition to the symbols.
    pub details: Details,
    /// How boundaries are decided.
    pub boundaries: BoundaryOptions,
    /// Symbols that an earlier run of the same request has emitted after the prompt, its end mark or end byte included. They count as
    /// generated and are not emitted again; the prompt is not echoed. Empty for a request that starts from its prompt.
    pub resumed: Vec<u32>,
    /// Speculation of this generation. Without a value it is the engine's setting.
    pub speculation: Option<Speculation>,
    /// The form that the generated text must have, compiled for the model's vocabulary.
    pub constraint: Option<Arc<CompiledConstraint>>,
}

/// A request for the probabilities of a text, or for its segments alone (`logprobs` off).
#[derive(Debug, Clone, Default)]
pub struct Score {
    /// The text's symbols; at least one.
    pub symbols: Vec<u32>,
    /// Number of first symbols that are not returned, nor fed if a cached state covers them: fewer than all. The symbol after them has
    /// no log-probability. 0 with windows.
    pub context: usize,
    /// True for log-probabilities and boundaries; false for boundaries only.
    pub logprobs: bool,
    /// Number of most probable alternatives per symbol.
    pub top: usize,
    /// How boundaries are decided.
    pub boundaries: BoundaryOptions,
    /// Windows to score the text in, each a fresh sequence; none: one sequence.
    pub windows: Option<WindowOptions>,
    /// True to also compute log-probabilities in double precision.
    pub exact: bool,
    /// True if the end-of-text symbol follows the text: it is scored but not fed. Only for a model with special symbols, without
    /// windows.
    pub ends_text: bool,
}

/// The windows of a windowed evaluation: see [`score::windows`](super::score::windows).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowOptions {
    /// Symbols fed in a window.
    pub length: usize,
    /// Symbols scored in a window: the last `stride` symbols fed predict them.
    pub stride: usize,
}

/// How symbols are chosen. In this order: constraint, bias, the three penalties, temperature, then the three cuts, then a draw.
///
/// The default draws from the model's own distribution, with seed 0. [`Card::sampling`] has the checkpoint's defaults.
///
/// ```
/// use weir_engine::options::Sampling;
///
/// let careful = Sampling { temperature: 0.7, top_p: 0.9, seed: 7, ..Sampling::default() };
/// assert_eq!((careful.top_k, careful.repetition_penalty), (0, 1.0));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// 0 takes the most probable symbol (the lowest id of equals).
    pub temperature: f32,
    /// Keep the k most probable symbols; 0 keeps all.
    pub top_k: usize,
    /// Keep the smallest set of most probable symbols whose probabilities add up to this: 0 keeps the most probable one, 1 all.
    pub top_p: f32,
    /// Keep symbols at least this fraction as probable as the most probable one; 0 keeps all.
    pub min_p: f32,
    /// Divide positive and multiply negative logits of the symbols seen so far by this; 1 does nothing.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of symbols that were generated; 0 does nothing.
    pub presence_penalty: f32,
    /// Subtracted from the logit of a symbol for each time that it was generated; 0 does nothing.
    pub frequency_penalty: f32,
    /// Every draw is a function of the seed and the position.
    pub seed: u64,
    /// Added to the logits of these symbols.
    pub logit_bias: Vec<(u32, f32)>,
}

impl Default for Sampling {
    fn default() -> Self {
        SamplingDefaults::default().into()
    }
}

impl From<SamplingDefaults> for Sampling {
    fn from(defaults: SamplingDefaults) -> Self {
        let SamplingDefaults { temperature, top_k, top_p, min_p, repetition_penalty } = defaults;
        Self {
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: 0,
            logit_bias: Vec::new(),
        }
    }
}

/// Conditions under which the generation stops. The default stops after 256 symbols, or when the model ends the text.
///
/// ```
/// use weir_engine::options::Stopping;
/// use weir_models::text::{TextNormaliser, Vocabulary};
///
/// let vocabulary = Vocabulary::byte_level(TextNormaliser::None);
/// let stop = vocabulary.encode_stop("\n").into_iter().collect();
/// let one_line = Stopping { max_chars: 80, stop, ..Stopping::default() };
/// assert_eq!(one_line.stop, [[10]]);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Stopping {
    /// Maximum symbols to generate. With 0 the prompt is processed, and echoed if requested.
    pub max_chars: usize,
    /// Minimum symbols before a stop string counts or the model may end the text.
    pub min_chars: usize,
    /// Maximum segments to close, if limited.
    pub max_segments: Option<usize>,
    /// Stop strings as [`Vocabulary::encode_stop`](weir_models::text::Vocabulary::encode_stop) returns them; none empty.
    pub stop: Vec<Vec<u32>>,
    /// True if the stop string is part of the answer.
    pub include_stop: bool,
    /// True if the model must not end the text with its end mark or end byte.
    pub ignore_end: bool,
    /// True if a text that has the form of its constraint ends where the model gives more probability to what may not follow than to
    /// what may. Without effect if the model can end the text itself. Without a value: as the constraint's kind does.
    pub end_when_complete: Option<bool>,
}

impl Default for Stopping {
    fn default() -> Self {
        Self {
            max_chars: DEFAULT_MAX_CHARS,
            min_chars: 0,
            max_segments: None,
            stop: Vec::new(),
            include_stop: false,
            ignore_end: false,
            end_when_complete: None,
        }
    }
}

/// Details emitted in addition to the symbols. The default emits none.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Details {
    /// Emit the prompt's symbols first.
    pub echo: bool,
    /// Each symbol's log-probability (natural; of the unmodified distribution).
    pub logprobs: bool,
    /// Number of most probable symbols at each position; independent of `logprobs`.
    pub top_logprobs: usize,
    /// Each symbol's boundary. It is known one step after the symbol, so symbols are emitted a step later.
    pub boundaries: bool,
}

const DEFAULT_MAX_CHARS: usize = 256;

/// Field names of the stop strings.
pub const STOP_FIELDS: [&str; OptionLimits::STOPS] = [
    "stopping.stop[0]",
    "stopping.stop[1]",
    "stopping.stop[2]",
    "stopping.stop[3]",
    "stopping.stop[4]",
    "stopping.stop[5]",
    "stopping.stop[6]",
    "stopping.stop[7]",
    "stopping.stop[8]",
    "stopping.stop[9]",
    "stopping.stop[10]",
    "stopping.stop[11]",
    "stopping.stop[12]",
    "stopping.stop[13]",
    "stopping.stop[14]",
    "stopping.stop[15]",
];

/// Limits of one request's options, as reported to clients.
#[derive(Debug, Clone, Copy)]
pub struct OptionLimits;

impl OptionLimits {
    /// Stop strings.
    pub const STOPS: usize = 16;
    /// Symbols in one stop string.
    pub const STOP_SYMBOLS: usize = 256;
    /// Most probable symbols reported per position.
    pub const TOP_LOGPROBS: usize = 20;
    /// Entries of the logit bias.
    pub const LOGIT_BIAS: usize = 1024;
    /// Symbols of a text that is scored in windows.
    pub const WINDOWED_SYMBOLS: usize = 1 << 24;
}

/// A symbol that a request emits.
#[derive(Debug, Clone, PartialEq)]
pub struct EmittedSymbol {
    /// Its id.
    pub symbol: u32,
    /// Its log-probability, if requested. The first symbol of a text has none in most models.
    pub logprob: Option<f32>,
    /// Its boundary, if requested.
    pub decision: Option<SymbolBoundary>,
    /// The most probable symbols at its position, best first, with their log-probabilities.
    pub top: Vec<(u32, f32)>,
    /// Number of bytes of its text that belong to the answer; `None` if all do. It is set if a stop string begins or ends inside the
    /// token, and is 0 if the symbol ends the text. No symbol follows a cut one.
    pub cut: Option<usize>,
    /// Its log-probability in double precision, if requested.
    pub exact: Option<Box<ExactLogprob>>,
    /// The probability that the model gave to the symbols that the text's constraint allowed here, if log-probabilities are requested.
    pub constraint_mass: Option<f32>,
}

/// The log-probability of a symbol of a scored text, in double precision.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExactLogprob {
    /// ln p.
    pub logprob: f64,
    /// ln p among the symbols that a text can contain and its end. `None` unless the model has special symbols.
    pub renormalized: Option<f64>,
}

impl EmittedSymbol {
    /// Creates a symbol without details.
    pub fn plain(symbol: u32) -> Self {
        Self { symbol, logprob: None, decision: None, top: Vec::new(), cut: None, exact: None, constraint_mass: None }
    }
}

impl Generate {
    /// Checks all fields against their limits and the model's. The error names the field.
    pub fn validate(&self, card: &Card) -> Result<()> {
        if card.first_logits.is_none() || !self.prompt.is_empty() {
            check_length("prompt", self.prompt.len(), card)?;
        }
        card.vocabulary.check_text("prompt", &self.prompt)?;
        check_mode(&self.boundaries, card)?;
        self.sampling.validate(card)?;
        self.stopping.validate(card)?;
        self.validate_resumed(card)?;
        if let Some(constraint) = self.constraint.as_ref().filter(|_| self.stopping.max_chars == 0) {
            return Err(bad(constraint.field(), "one", "none, because no character is to be written".into()));
        }
        bounded("details.top_logprobs", self.details.top_logprobs, OptionLimits::TOP_LOGPROBS)
    }
}

impl Score {
    /// Checks all fields against their limits and the model's. Fails as [`Generate::validate`] does.
    pub fn validate(&self, card: &Card) -> Result<()> {
        match self.windows {
            Some(_) => check_length_within("text", self.symbols.len(), OptionLimits::WINDOWED_SYMBOLS)?,
            None => check_length("text", self.symbols.len(), card)?,
        }
        card.vocabulary.check_text("text", &self.symbols)?;
        check_mode(&self.boundaries, card)?;
        self.windows.map_or(Ok(()), |windows| windows.validate(card))?;
        if self.ends_text && (self.windows.is_some() || card.vocabulary.specials().is_none()) {
            return Err(Error::Internal("this text cannot be scored with its end".into()));
        }
        if self.context > 0 && (self.windows.is_some() || self.context >= self.symbols.len()) {
            return Err(Error::Internal(format!("this text cannot be scored after {} symbols", self.context)));
        }
        bounded("top_logprobs", self.top, OptionLimits::TOP_LOGPROBS)
    }
}

impl WindowOptions {
    /// Checks `1 ≤ stride ≤ length ≤ max_symbols`; fails with [`Error::BadOption`], which names the field.
    pub fn validate(&self, card: &Card) -> Result<()> {
        within("windows.length", self.length, 1..=card.max_symbols)?;
        if self.stride == 0 || self.stride > self.length {
            return Err(bad("windows.stride", self.stride, format!("1 to {} (the length of a window)", self.length)));
        }
        Ok(())
    }
}

impl Sampling {
    pub(crate) fn validate(&self, card: &Card) -> Result<()> {
        within("sampling.temperature", self.temperature, 0.0..=100.0)?;
        within("sampling.top_p", self.top_p, 0.0..=1.0)?;
        within("sampling.min_p", self.min_p, 0.0..=1.0)?;
        within("sampling.repetition_penalty", self.repetition_penalty, 0.01..=100.0)?;
        within("sampling.presence_penalty", self.presence_penalty, -2.0..=2.0)?;
        within("sampling.frequency_penalty", self.frequency_penalty, -2.0..=2.0)?;
        bounded("sampling.logit_bias", self.logit_bias.len(), OptionLimits::LOGIT_BIAS)?;
        for &(symbol, bias) in &self.logit_bias {
            card.vocabulary.check_ids("sampling.logit_bias", &[symbol])?;
            within("sampling.logit_bias", bias, -1000.0..=1000.0)?;
        }
        Ok(())
    }
}

impl Stopping {
    fn validate(&self, card: &Card) -> Result<()> {
        within("stopping.max_chars", self.max_chars, 0..=card.max_symbols)?;
        if self.min_chars > self.max_chars {
            return Err(Error::AboveOption {
                field: "stopping.min_chars",
                found: self.min_chars,
                limit: self.max_chars,
                other: "stopping.max_chars",
            });
        }
        if self.max_segments.is_some() {
            must_pool("stopping.max_segments", card)?;
        }
        if self.max_segments == Some(0) {
            return Err(bad("stopping.max_segments", 0, "at least 1".into()));
        }
        check_stop_count(self.stop.len())?;
        for (field, stop) in STOP_FIELDS.into_iter().zip(&self.stop) {
            check_stop_length(field, stop.len())?;
            if !card.vocabulary.is_subword() {
                card.vocabulary.check_text(field, stop)?;
            }
        }
        Ok(())
    }

    /// Default of `max_chars`, limited to the symbols that fit after the prompt; at least 1.
    pub fn default_max_chars(prompt_chars: usize, card: &Card) -> usize {
        card.max_symbols.saturating_sub(prompt_chars).clamp(1, DEFAULT_MAX_CHARS)
    }
}

/// Checks the number of stop strings; callers do so before they convert them.
pub fn check_stop_count(count: usize) -> Result<()> {
    bounded("stopping.stop", count, OptionLimits::STOPS)
}

/// Checks the length of a stop string in symbols; callers do so before and after they normalise it.
pub fn check_stop_length(field: &'static str, length: usize) -> Result<()> {
    if length == 0 || length > OptionLimits::STOP_SYMBOLS {
        let bound = format!("1 to {} symbols", OptionLimits::STOP_SYMBOLS);
        return Err(bad(field, length, bound));
    }
    Ok(())
}

/// Rejects an option that only models have that pool, or the `model` of such a call.
pub fn must_pool(field: &'static str, card: &Card) -> Result<()> {
    if card.pooled {
        return Ok(());
    }
    Err(Error::wrong_kind(field, &card.name, "pools its input", format!("a model without pooling: {}", card.shape)))
}

/// Rejects an empty text and one longer than the model's maximum sequence length.
pub fn check_length(field: &'static str, length: usize, card: &Card) -> Result<()> {
    check_length_within(field, length, card.max_symbols).map_err(|error| error.because(card.max_symbols_why))
}

/// Rejects an empty text and one of more than `limit` symbols.
pub fn check_length_within(field: &'static str, length: usize, limit: usize) -> Result<()> {
    if length == 0 {
        return Err(bad(field, "\"\"", "at least one symbol".into()));
    }
    if length > limit {
        return Err(Error::TooLong { field, length, limit, unit: "symbols", why: None });
    }
    Ok(())
}

/// Checks that `value` lies in `range`; NaN never does.
pub(crate) fn within<T: PartialOrd + Display>(field: &'static str, value: T, range: RangeInclusive<T>) -> Result<()> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(bad(field, value, format!("{} to {}", range.start(), range.end())))
}

fn bounded(field: &'static str, count: usize, limit: usize) -> Result<()> {
    if count <= limit {
        return Ok(());
    }
    Err(bad(field, count, format!("at most {limit}")))
}

pub(crate) fn bad(field: &'static str, found: impl ToString, bound: String) -> Error {
    Error::BadOption { field, found: found.to_string(), bound }
}

impl Generate {
    /// A request that continues `prompt` with the model's default options. Fails as [`Card::encode`] does.
    ///
    /// ```
    /// use weir_engine::options::Generate;
    /// use weir_models::{checkpoint::CheckpointSource, load::{Settings, load_as}};
    ///
    /// let source = CheckpointSource::default(); // the embedded model
    /// let model = load_as(&source, &source.name(), &Settings::default())?;
    /// let mut request = Generate::from_text("the history of ", model.card())?;
    /// request.sampling.temperature = 0.7;
    /// request.stopping.max_chars = 80;
    /// # Ok::<(), weir_kernels::error::Error>(())
    /// ```
    pub fn from_text(prompt: &str, card: &Card) -> Result<Self> {
        let prompt = card.encode("prompt", prompt)?;
        let stopping = Stopping { max_chars: Stopping::default_max_chars(prompt.len(), card), ..Stopping::default() };
        Ok(Self { prompt, sampling: card.sampling.into(), stopping, ..Self::default() })
    }
}

impl Score {
    /// A request for the log-probability of each character of `text`. Fails as [`Card::encode`] does.
    ///
    /// ```
    /// # use weir_models::{checkpoint::CheckpointSource, load::{Settings, load_as}};
    /// use weir_engine::{Event, Handle, Job, Limits, options::Score};
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
    /// # Ok::<(), weir_kernels::error::Error>(())
    /// ```
    pub fn from_text(text: &str, card: &Card) -> Result<Self> {
        Ok(Self { symbols: card.encode("text", text)?, logprobs: true, ..Self::default() })
    }
}

/// The reason for which a generation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishReason {
    /// `max_chars` symbols were generated.
    MaxChars,
    /// `max_segments` segments were closed.
    MaxSegments,
    /// The text ends with the stop string of this index.
    Stop(usize),
    /// The sequence reached the model's maximum length.
    MaxContext,
    /// The model ended the text: the last emitted symbol is its end mark or end byte.
    EndOfText,
    /// The text has the form of its constraint, and nothing but the end may follow, or the model would leave the form.
    Constraint,
    /// The scored text ended.
    End,
}

impl FinishReason {
    /// The name on the wire and in JSON.
    pub fn name(&self) -> &'static str {
        match self {
            Self::MaxChars => "max_chars",
            Self::MaxSegments => "max_segments",
            Self::Stop(_) => "stop",
            Self::MaxContext => "max_context",
            Self::EndOfText => "end_of_text",
            Self::Constraint => "constraint",
            Self::End => "end",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_models::text::{TextNormaliser, Vocabulary};

    /// A field, a function that sets it, the values at its bounds, and values beyond them.
    type Bounds<T> = (&'static str, fn(&mut Generate, T), &'static [T], &'static [T]);

    const FRACTIONS: [Bounds<f32>; 7] = [
        // with negative zero and the smallest subnormal number
        ("sampling.temperature", |r, v| r.sampling.temperature = v, &[0.0, -0.0, 1e-45, 100.0], &[-1e-3, 100.1]),
        ("sampling.top_p", |r, v| r.sampling.top_p = v, &[0.0, f32::MIN_POSITIVE, 1.0], &[-1e-3, 1.01]),
        ("sampling.min_p", |r, v| r.sampling.min_p = v, &[0.0, 1.0], &[-1e-3, 1.01]),
        ("sampling.repetition_penalty", |r, v| r.sampling.repetition_penalty = v, &[0.01, 100.0], &[-1e-3, 0.0, 100.1]),
        ("sampling.presence_penalty", |r, v| r.sampling.presence_penalty = v, &[-2.0, 2.0], &[-2.1, 2.1]),
        ("sampling.frequency_penalty", |r, v| r.sampling.frequency_penalty = v, &[-2.0, 2.0], &[-2.1, 2.1]),
        ("sampling.logit_bias", |r, v| r.sampling.logit_bias = vec![(0, v)], &[-1000.0, 1000.0], &[-1000.1, 1000.1]),
    ];

    const COUNTS: [Bounds<usize>; 6] = [
        ("sampling.top_k", |r, v| r.sampling.top_k = v, &[0, usize::MAX], &[]),
        ("sampling.logit_bias", |r, v| r.sampling.logit_bias = vec![(0, 0.0); v], &[0, 1024], &[1025]),
        ("stopping.max_chars", |r, v| r.stopping.max_chars = v, &[0, 100], &[101, usize::MAX]),
        ("stopping.min_chars", |r, v| r.stopping.min_chars = v, &[0, 99], &[100, usize::MAX]),
        ("stopping.max_segments", |r, v| r.stopping.max_segments = Some(v), &[1, usize::MAX], &[0]),
        ("details.top_logprobs", |r, v| r.details.top_logprobs = v, &[0, 20], &[21, usize::MAX]),
    ];

    /// Checks that a request with a value at the bounds of a field is accepted, and that one with a value beyond them is refused.
    fn check<T: Copy + Display>((field, set, within, beyond): Bounds<T>) {
        let card = Card::for_tests(Vocabulary::from_symbols(&["a", "b"], TextNormaliser::None).unwrap());
        let validate = |value| {
            let mut request = Generate::from_text("a", &card).unwrap();
            set(&mut request, value);
            request.validate(&card)
        };
        for &value in within {
            validate(value).unwrap_or_else(|error| panic!("{field}: {value}: {error}"));
        }
        for &value in beyond {
            let found = validate(value);
            let named = match found {
                Err(Error::BadOption { field, .. } | Error::AboveOption { field, .. }) => Some(field),
                _ => None,
            };
            assert_eq!(named, Some(field), "{value}: {found:?}");
        }
    }

    #[test]
    fn options_are_bounded() {
        // NaNs of both signs with several payloads
        const NEVER: [f32; 9] = [
            f32::from_bits(0x7fc0_0000),
            f32::from_bits(0xffc0_0000),
            f32::from_bits(0x7f80_0001),
            f32::from_bits(0xff80_0001),
            f32::from_bits(0x7fff_ffff),
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::MIN,
            f32::MAX,
        ];
        for (field, set, within, beyond) in FRACTIONS {
            check((field, set, within, beyond));
            check((field, set, &[], &NEVER));
        }
        COUNTS.into_iter().for_each(check);
    }
}
