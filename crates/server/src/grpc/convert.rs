//! Converts requests to jobs: encodes text, fills in defaults, and validates the fields that the engine never sees.
//!
//! The engine validates the rest when a job is submitted. The encoders of the services convert results back.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    sync::Arc,
    time::Duration,
};
use weir_engine::{
    codec::{CompressOptions, DEFAULT_BLOCK, default_windows},
    constraint::{CompiledConstraint, Constraint},
    extract::ExtractLimits,
    options::{self, FinishReason, OptionLimits, WindowOptions},
    sampling::StopStrings,
    speculation::Speculation,
    summary::{LongDocuments, Summarize},
};
use weir_kernels::error::{Error, Result, quoted};
use weir_models::{
    contract::{self, BoundaryMode, BoundaryOptions, Card, DocumentLimits, EarlyStopping, Noise},
    text::{PlacedText, TextCounter},
    usage::{LevelUsage, Timing, Usage},
};
use weir_proto::v1::{self, constraint::Form, logit_bias::Symbol};

/// Maximum of `stream.coalesce_chars`.
pub(super) const MAX_COALESCE: usize = 4096;

/// The options of a `Generate` that concern its response only.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ResponseFormat {
    /// Characters of the prompt.
    pub(super) prompt_chars: usize,
    /// Unicode characters of the prompt.
    pub(super) prompt_text_chars: usize,
    /// Unicode characters of the prompt, as sent, that normalising replaced or dropped.
    pub(super) normalized_chars: usize,
    /// True if the response begins with the prompt.
    pub(super) echo: bool,
    /// The prompt as it was sent, if the response begins with it and it was a text.
    pub(super) echoed: Option<Arc<PlacedText>>,
    /// Condition under which a piece is complete.
    pub(super) split: PieceSplit,
    /// Which details of each character are sent.
    pub(super) details: CharacterDetails,
    /// The request's stop strings that can match.
    pub(super) stop: Vec<String>,
    /// The seed of sampling.
    pub(super) seed: u64,
    /// Characters that an earlier stream has sent.
    pub(super) resumed_chars: usize,
    /// Unicode characters of their text.
    pub(super) resumed_text_chars: usize,
    /// True if the text must have a form.
    pub(super) is_constrained: bool,
}

/// Condition under which a piece is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PieceSplit {
    /// A piece has at least this many characters.
    Characters(usize),
    /// A piece ends with a segment.
    Segment,
}

/// Which details of each character are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CharacterDetails {
    /// True if the response lists characters one by one.
    pub(super) listed: bool,
    /// True if it has their boundary decisions. The engine may emit them for another reason.
    pub(super) boundaries: bool,
    /// Number of alternatives of each.
    pub(super) alternatives: usize,
    /// True if the response lists the characters' ids.
    pub(super) ids: bool,
}

/// Returns the job of a `Generate`, and the options of its response. Fails if a field is out of bounds, and as `compile`, which compiles
/// its constraint.
pub(crate) fn generate_job(
    mut request: v1::GenerateRequest,
    card: &Card,
    compile: impl Fn(&Constraint) -> Result<Arc<CompiledConstraint>>,
) -> Result<(options::Generate, ResponseFormat)> {
    let wire_constraint = request.constraint.take();
    let end_when_complete = wire_constraint.as_ref().and_then(|constraint| constraint.end_when_complete);
    let constraint = wire_constraint.map(|wire| compile(&constraint(wire)?)).transpose()?;
    let stated_seed = request.sampling.as_ref().and_then(|sampling| sampling.seed);
    let resumed_field = if request.resume_ids.is_empty() { "resume_text" } else { "resume_ids" };
    let resumed = ResumedRequest::new(&request.resume_text, request.resume_ids, stated_seed, card)?;
    let seed = stated_seed.unwrap_or_else(draw_seed);
    let boundaries = boundaries(request.boundary_mode.as_deref(), request.boundary_threshold, seed, card)?;
    let echoes = request.details.as_ref().is_some_and(v1::Details::echo) && resumed.symbols.is_empty();
    let prompt = Prompt::new(&request.prompt, request.prompt_ids, echoes, card)?;
    let split = piece_split(request.stream.unwrap_or_default(), card)?;
    let details = request.details.unwrap_or_default();
    let lists_ids = details.ids();
    let details = options::Details {
        // a resumed stream has sent the prompt
        echo: echoes,
        logprobs: details.logprobs(),
        top_logprobs: size(details.top_logprobs()),
        boundaries: details.boundaries(),
    };
    let mut stopping = request.stopping.unwrap_or_default();
    let stop = StopStrings::new(std::mem::take(&mut stopping.stop), card)?;
    let format = ResponseFormat {
        prompt_chars: prompt.symbols.len(),
        prompt_text_chars: prompt.text_chars,
        normalized_chars: prompt.normalized_chars,
        echo: details.echo,
        echoed: prompt.echoed,
        split,
        details: CharacterDetails {
            listed: details.logprobs || details.boundaries || details.top_logprobs > 0,
            boundaries: details.boundaries,
            alternatives: details.top_logprobs.min(OptionLimits::TOP_LOGPROBS),
            ids: lists_ids,
        },
        stop: stop.texts,
        seed,
        // an id that ends the text is no character
        resumed_chars: resumed.symbols.len()
            - usize::from(resumed.symbols.last().is_some_and(|&id| card.vocabulary.ends_text(id))),
        resumed_text_chars: resumed.text_chars,
        is_constrained: constraint.is_some(),
    };
    let job = options::Generate {
        sampling: sampling(request.sampling.unwrap_or_default(), seed, card)?,
        stopping: options::Stopping {
            end_when_complete,
            ..self::stopping(&stopping, stop.encoded, prompt.symbols.len(), card)
        },
        details: options::Details { boundaries: details.boundaries || split == PieceSplit::Segment, ..details },
        boundaries,
        prompt: prompt.symbols,
        resumed: resumed.symbols,
        speculation: speculation(request.speculate.as_deref())?,
        constraint,
    };
    // a prompt that is too long has an error of its own
    if job.prompt.len() <= card.max_symbols {
        job.check_resumed_length(resumed_field, card)?;
    }
    Ok((job, format))
}

/// Returns the job of a `Score`, and its seed. Fails if a field is out of bounds.
pub(crate) fn score_job(request: &v1::ScoreRequest, card: &Card) -> Result<(options::Score, u64)> {
    let windows = request.windows.map(|wire| WindowOptions { length: size(wire.length), stride: size(wire.stride) });
    // Before the text, which may be long, is encoded.
    windows.map_or(Ok(()), |windows| windows.validate(card))?;
    let end = card.vocabulary.specials().map(|specials| specials.end).filter(|_| windows.is_none());
    let (ids, ends_text) = match &*request.ids {
        [text @ .., last] if Some(*last) == end => (text, true),
        text => (text, false),
    };
    let symbols = match windows {
        Some(_) if ids.is_empty() => card.vocabulary.encode("text", &request.text, OptionLimits::WINDOWED_SYMBOLS)?,
        _ if ids.is_empty() && !ends_text => card.encode("text", &request.text)?,
        Some(_) => TEXT.known_ids(&request.text, ids, OptionLimits::WINDOWED_SYMBOLS, card)?,
        None => TEXT.known_ids(&request.text, ids, card.max_symbols, card)?,
    };
    let (boundaries, seed) =
        seeded_boundaries(request.boundary_mode.as_deref(), request.boundary_threshold, request.seed, card)?;
    let top = size(request.top_logprobs());
    let exact = request.exact_logprobs();
    Ok((options::Score { symbols, context: 0, logprobs: true, top, boundaries, windows, exact, ends_text }, seed))
}

/// The names of the two fields of a request that give a text.
struct TextFields {
    text: &'static str,
    ids: &'static str,
}

/// The text that is read.
const TEXT: TextFields = TextFields { text: "text", ids: "ids" };

/// The text that is continued.
const PROMPT: TextFields = TextFields { text: "prompt", ids: "prompt_ids" };

impl TextFields {
    /// Returns the ids of a text. Fails if the request also has the text, if there are too many ids, or if one cannot occur in a text.
    fn known_ids(&self, text: &str, ids: &[u32], limit: usize, card: &Card) -> Result<Vec<u32>> {
        if !text.is_empty() {
            return Err(Error::Exclusive { first: self.text, second: self.ids });
        }
        let checked = options::check_length_within(self.ids, ids.len(), limit);
        checked.map_err(|error| error.because(card.max_symbols_why.filter(|_| limit == card.max_symbols)))?;
        card.vocabulary.check_text(self.ids, ids)?;
        Ok(ids.to_vec())
    }
}

/// Returns the job of a `Segment`, and its seed. Fails if a field is out of bounds.
pub(crate) fn segment_job(request: &v1::SegmentRequest, card: &Card) -> Result<(options::Score, u64)> {
    let symbols = match &*request.ids {
        [] => card.encode("text", &request.text)?,
        ids => TEXT.known_ids(&request.text, ids, card.max_symbols, card)?,
    };
    let (boundaries, seed) =
        seeded_boundaries(request.boundary_mode.as_deref(), request.boundary_threshold, request.seed, card)?;
    Ok((options::Score { symbols, boundaries, ..Default::default() }, seed))
}

/// Returns the options of a `Compress`. The codec checks them.
pub(super) fn compress_options(wire: &v1::CompressOptions, card: &Card) -> CompressOptions {
    let windows = wire.windows.map(|wire| WindowOptions { length: size(wire.length), stride: size(wire.stride) });
    CompressOptions {
        block: wire.block_chars.map_or(DEFAULT_BLOCK, size),
        windows: windows.unwrap_or_else(|| default_windows(card)),
        normalise: wire.normalise(),
        text_bytes: wire.text_bytes,
    }
}

/// Returns the options of a `Summarize`. Fails if a field is out of bounds.
pub(crate) fn summary_options(wire: &v1::SummarizeOptions, card: &Card) -> Result<Summarize> {
    let seed = || wire.sampling.as_ref().and_then(|sampling| sampling.seed).unwrap_or_else(draw_seed);
    let sampled = |sampled: v1::Sampling| v1::Sampling {
        repetition_penalty: sampled.repetition_penalty.or(wire.repetition_penalty),
        ..sampled
    };
    let sampling = wire.sampling.clone().map(|wire| sampling(sampled(wire), seed(), card)).transpose()?;
    let attention = wire.mode() == v1::SummaryMode::Extract;
    Ok(Summarize {
        beam: wire.beam_size.map(size),
        length_penalty: wire.length_penalty,
        min_tokens: wire.min_tokens.map(size),
        // sentences have a limit of their own
        max_tokens: wire.max_tokens.filter(|_| !attention).map(size),
        no_repeat_ngram: wire.no_repeat_ngram.map(size),
        early_stopping: wire.early_stopping.as_deref().map(early_stopping).transpose()?,
        repetition_penalty: wire.repetition_penalty,
        sampling,
        hypotheses: wire.hypotheses.map(size),
        hard: wire.hard_topk,
        constraint: None,
        attention,
    })
}

/// Returns the length of the extract that a `Summarize` asks for; `None` if the model is to write. Fails if an option contradicts the
/// mode or is out of bounds.
pub(super) fn extract_limits(wire: &v1::SummarizeOptions, limits: &DocumentLimits) -> Result<Option<ExtractLimits>> {
    let number = wire.mode.unwrap_or_default();
    let unknown = |_| Error::bad_option("options.mode", number.to_string(), "one of SummaryMode");
    let mode = v1::SummaryMode::try_from(number).map_err(unknown)?;
    if mode != v1::SummaryMode::Extract {
        return match wire.sentences {
            Some(sentences) => {
                Err(Error::bad_option("options.sentences", sentences.to_string(), "no value without mode extract"))
            }
            None => Ok(None),
        };
    }
    if wire.document_id.is_some() {
        let bound = "no value with mode extract, because the server keeps no text of a document";
        return Err(Error::bad_option("options.document_id", "one", bound));
    }
    ExtractLimits::new(wire.sentences.map(size), wire.max_tokens.map(size), limits.tokens).map(Some)
}

/// Returns how a `Summarize` treats a document that is too long. Fails if its two fields contradict each other, and for parts of a
/// document that is already encoded.
pub(crate) fn long_documents(wire: &v1::SummarizeOptions) -> Result<LongDocuments> {
    let field = "options.long_documents";
    let number = wire.long_documents.unwrap_or_default();
    let known = v1::LongDocuments::try_from(number);
    let known = known.map_err(|_| Error::bad_option(field, number.to_string(), "one of LongDocuments"))?;
    let chosen = match (known, wire.cut) {
        (v1::LongDocuments::Unspecified, Some(true)) | (v1::LongDocuments::Cut, None | Some(true)) => {
            LongDocuments::Cut
        }
        (v1::LongDocuments::Unspecified | v1::LongDocuments::Refuse, None | Some(false)) => LongDocuments::Refuse,
        (v1::LongDocuments::Chunk, None | Some(false)) => LongDocuments::Chunk,
        (_, Some(_)) => return Err(Error::Exclusive { first: field, second: "options.cut" }),
    };
    if chosen == LongDocuments::Chunk && wire.document_id.is_some() {
        return Err(Error::bad_option(field, chosen.name(), "refuse or cut (the document is encoded already)"));
    }
    Ok(chosen)
}

fn early_stopping(name: &str) -> Result<EarlyStopping> {
    let names = || EarlyStopping::ALL.map(EarlyStopping::name).join(", ");
    let unknown = || Error::bad_option("options.early_stopping", quoted(name), format!("one of {}", names()));
    EarlyStopping::parse(name).ok_or_else(unknown)
}

/// Returns the boundary options of a job that samples nothing else, and their seed.
fn seeded_boundaries(
    mode: Option<&str>,
    threshold: Option<f32>,
    seed: Option<u64>,
    card: &Card,
) -> Result<(BoundaryOptions, u64)> {
    let seed = seed.unwrap_or_else(draw_seed);
    Ok((boundaries(mode, threshold, seed, card)?, seed))
}

/// Draws a seed for a request without one. The operating system seeds the standard library's hash keys.
fn draw_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

fn boundaries(mode: Option<&str>, threshold: Option<f32>, seed: u64, card: &Card) -> Result<BoundaryOptions> {
    let parse = |name: &str| BoundaryMode::parse(name).ok_or_else(|| contract::unknown_mode(quoted(name), card));
    let mode = mode.filter(|name| !name.is_empty()).map(parse).transpose()?;
    let boundaries = BoundaryOptions { mode, noise: Noise::Seeded(seed), offset: 0, threshold };
    contract::check_mode(&boundaries, card)?;
    Ok(boundaries)
}

fn speculation(setting: Option<&str>) -> Result<Option<Speculation>> {
    let unknown = |text| Error::bad_option("speculate", quoted(text), Speculation::EXPECTED);
    let parse = |text| Speculation::parse(text).ok_or_else(|| unknown(text));
    setting.filter(|text| !text.is_empty()).map(parse).transpose()
}

fn piece_split(stream: v1::Streaming, card: &Card) -> Result<PieceSplit> {
    if stream.per_segment() {
        if stream.coalesce_chars.is_some() {
            return Err(Error::Exclusive { first: "stream.coalesce_chars", second: "stream.per_segment" });
        }
        options::must_pool("stream.per_segment", card)?;
        return Ok(PieceSplit::Segment);
    }
    let count = size(stream.coalesce_chars.unwrap_or(1));
    if !(1..=MAX_COALESCE).contains(&count) {
        return Err(Error::bad_option("stream.coalesce_chars", count.to_string(), format!("1 to {MAX_COALESCE}")));
    }
    Ok(PieceSplit::Characters(count))
}

fn sampling(wire: v1::Sampling, seed: u64, card: &Card) -> Result<options::Sampling> {
    let field = "sampling.logit_bias";
    // Checked first: each symbol is looked up, and a list of a million would be slow.
    if wire.logit_bias.len() > OptionLimits::LOGIT_BIAS {
        return Err(Error::bad_option(
            field,
            wire.logit_bias.len().to_string(),
            format!("at most {}", OptionLimits::LOGIT_BIAS),
        ));
    }
    let biases =
        wire.logit_bias.iter().filter_map(|bias| Some((biased_symbol(field, bias, card).transpose()?, bias.bias)));
    let logit_bias = biases.map(|(symbol, bias)| Ok((symbol?, bias))).collect::<Result<_>>()?;
    let default = card.sampling;
    Ok(options::Sampling {
        temperature: wire.temperature.unwrap_or(default.temperature),
        top_k: wire.top_k.map_or(default.top_k, size),
        top_p: wire.top_p.unwrap_or(default.top_p),
        min_p: wire.min_p.unwrap_or(default.min_p),
        repetition_penalty: wire.repetition_penalty.unwrap_or(default.repetition_penalty),
        presence_penalty: wire.presence_penalty(),
        frequency_penalty: wire.frequency_penalty(),
        seed,
        logit_bias,
    })
}

/// Returns the symbol of a bias, or `None` for a character that the model never generates: its bias has no effect.
fn biased_symbol(field: &'static str, bias: &v1::LogitBias, card: &Card) -> Result<Option<u32>> {
    let text = match &bias.symbol {
        Some(Symbol::Id(id)) => return Ok(Some(*id)),
        Some(Symbol::Text(text)) => text,
        None => return Err(Error::bad_option(field, "nothing", "exactly one symbol")),
    };
    match card.vocabulary.encode_exactly(field, text) {
        Err(Error::UnknownSymbol { .. }) if text.chars().nth(1).is_none() => Ok(None),
        encoded => match encoded?.as_slice() {
            [id] => Ok(Some(*id)),
            _ => Err(Error::bad_option(field, quoted(text), "exactly one symbol")),
        },
    }
}

fn stopping(wire: &v1::Stopping, stop: Vec<Vec<u32>>, prompt_chars: usize, card: &Card) -> options::Stopping {
    options::Stopping {
        max_chars: wire.max_chars.map_or_else(|| options::Stopping::default_max_chars(prompt_chars, card), size),
        min_chars: size(wire.min_chars()),
        max_segments: wire.max_segments.map(size),
        stop,
        include_stop: wire.include_stop(),
        ignore_end: wire.ignore_eos(),
        end_when_complete: None,
    }
}

/// Refuses `end_when_complete`, which only a generation obeys.
pub(super) fn reject_end_when_complete(wire: &v1::Constraint, field: &'static str) -> Result<()> {
    match wire.end_when_complete {
        Some(found) => Err(Error::bad_option(field, found.to_string(), "no value: only generations end so")),
        None => Ok(()),
    }
}

/// Returns the constraint of a message. Fails for one without a form.
pub(super) fn constraint(wire: v1::Constraint) -> Result<Constraint> {
    let none =
        |field, found: &str| Err(Error::bad_option(field, found, format!("one of {}", Constraint::KINDS.join(", "))));
    match wire.form {
        Some(Form::Regex(source)) => Ok(Constraint::Regex(source)),
        Some(Form::Choice(choice)) => Ok(Constraint::Choice(choice.texts)),
        Some(Form::JsonSchema(source)) => Ok(Constraint::JsonSchema(source)),
        Some(Form::JsonObject(true)) => Ok(Constraint::JsonObject),
        Some(Form::JsonObject(false)) => none("constraint.json_object", "false"),
        Some(Form::Grammar(source)) => Ok(Constraint::Grammar(source)),
        None => none("constraint", "nothing"),
    }
}

/// Widens a count. Supported machines have at least 32 bits.
pub(super) fn size(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Narrows a count. A limit beyond 32 bits is no limit.
pub(super) fn count(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

pub(super) fn usage(usage: Usage) -> v1::Usage {
    v1::Usage {
        prompt_chars: usage.prompt_chars as u64,
        cached_chars: usage.cached_chars as u64,
        generated_chars: usage.generated_chars as u64,
        prompt_segments: usage.prompt_segments as u64,
        generated_segments: usage.generated_segments as u64,
        shortening_factor: usage.shortening_factor(),
        nxt_steps: usage.nxt_steps as u64,
        prompt_text_chars: None,
        generated_text_chars: None,
        normalized_chars: None,
        resumed_chars: usage.resumed_chars as u64,
        drafted_chars: usage.drafted_chars as u64,
        accepted_chars: usage.accepted_chars as u64,
        forced_chars: usage.forced_chars as u64,
    }
}

pub(super) fn timing(timing: Timing) -> v1::Timing {
    let unpooled = timing.unpooled.map(|unpooled| unpooled.prefill_ns.saturating_add(unpooled.decode_ns));
    let measured = timing.prefill_ns.saturating_add(timing.decode_ns);
    v1::Timing {
        queue_ns: timing.queue_ns,
        prefill_ns: timing.prefill_ns,
        time_to_first_char_ns: timing.time_to_first_char_ns,
        decode_ns: timing.decode_ns,
        total_ns: timing.total_ns,
        steps: timing.steps,
        wait_steps: timing.wait_steps,
        middle_steps: timing.middle_steps,
        middle_ns: timing.middle_ns,
        unpooled_estimate_ns: unpooled,
        gain_estimate: unpooled.filter(|_| measured > 0).map(|unpooled| unpooled as f64 / measured as f64),
        unpooled_prefill_estimate_ns: timing.unpooled.map(|unpooled| unpooled.prefill_ns),
        unpooled_decode_estimate_ns: timing.unpooled.map(|unpooled| unpooled.decode_ns),
    }
}

/// Returns the levels of a model with several levels of chunking.
pub(super) fn levels(usage: &Usage, timing: &Timing) -> Vec<v1::LevelUsage> {
    usage.by_level(timing).into_iter().map(level).collect()
}

pub(super) fn level(level: LevelUsage) -> v1::LevelUsage {
    v1::LevelUsage {
        chunks: level.chunks as u64,
        shortening_factor: level.shortening_factor,
        middle_steps: level.middle_steps as u64,
    }
}

pub(super) fn reason(reason: &FinishReason) -> v1::FinishReason {
    match reason {
        FinishReason::MaxChars => v1::FinishReason::MaxChars,
        FinishReason::MaxSegments => v1::FinishReason::MaxSegments,
        FinishReason::Stop(_) => v1::FinishReason::Stop,
        FinishReason::MaxContext => v1::FinishReason::MaxContext,
        FinishReason::EndOfText => v1::FinishReason::EndOfText,
        FinishReason::Constraint => v1::FinishReason::Constraint,
        FinishReason::End => v1::FinishReason::Unspecified,
    }
}

/// The symbols of a prompt, and the sizes that the response reports.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Prompt {
    pub(super) symbols: Vec<u32>,
    /// Unicode characters of its text.
    pub(super) text_chars: usize,
    /// Unicode characters of the text, as sent, that normalising replaced or dropped.
    pub(super) normalized_chars: usize,
    /// The text with the places of its symbols, if the response begins with it.
    pub(super) echoed: Option<Arc<PlacedText>>,
}

impl Prompt {
    /// Encodes a text, or takes ids as they are. Fails if a request has both, and if one is too long or has an unknown symbol.
    pub(super) fn new(text: &str, ids: Vec<u32>, echoes: bool, card: &Card) -> Result<Self> {
        let vocabulary = &card.vocabulary;
        if ids.is_empty() {
            let (symbols, echoed) = if echoes && !text.is_empty() {
                let (symbols, placed) = card.encode_placed(PROMPT.text, text)?;
                (symbols, Some(Arc::new(placed)))
            } else {
                (card.encode(PROMPT.text, text)?, None)
            };
            return Ok(Self {
                echoed,
                text_chars: vocabulary.text_chars(text, &symbols),
                normalized_chars: vocabulary.normaliser().changed_chars(text),
                symbols,
            });
        }
        // The engine checks these too; here they bound the work of counting.
        let ids = PROMPT.known_ids(text, &ids, card.max_symbols, card)?;
        let text_chars = TextCounter::chars_of(&ids, Arc::clone(vocabulary));
        Ok(Self { symbols: ids, text_chars, normalized_chars: 0, echoed: None })
    }
}

/// Marks bytes that are not UTF-8. A text with it does not determine its symbols, if symbols are bytes.
const REPLACEMENT: char = '\u{fffd}';

/// The symbols of the text that an earlier stream has sent; empty without one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ResumedRequest {
    pub(super) symbols: Vec<u32>,
    /// Unicode characters of its text that were sent.
    pub(super) text_chars: usize,
}

impl ResumedRequest {
    /// Encodes a text exactly, or takes ids as they are. Fails if a request has both or no seed, if the model's text does not
    /// determine its symbols, and if a symbol is unknown or the text longer than the model's longest sequence. A text never has the
    /// end byte, because no stream sends it as text; among ids it may only be the last one.
    pub(super) fn new(text: &str, ids: Vec<u32>, seed: Option<u64>, card: &Card) -> Result<Self> {
        if text.is_empty() && ids.is_empty() {
            return Ok(Self::default());
        }
        if !(text.is_empty() || ids.is_empty()) {
            return Err(Error::Exclusive { first: "resume_text", second: "resume_ids" });
        }
        if seed.is_none() {
            return Err(Error::bad_option("sampling.seed", "nothing", "the seed of the stream that is resumed"));
        }
        if ids.is_empty() { Self::from_text(text, card) } else { Self::from_ids(ids, card) }
    }

    fn from_text(text: &str, card: &Card) -> Result<Self> {
        let field = "resume_text";
        let vocabulary = &card.vocabulary;
        if !vocabulary.is_spelled_out() {
            let found = format!("{}, whose texts are resumed by ids, over gRPC", card.shape);
            return Err(Error::wrong_kind(field, &card.name, "has a text for each of its symbols", found));
        }
        let text_chars = text.chars().count();
        options::check_length(field, if vocabulary.is_bytes() { text.len() } else { text_chars }, card)?;
        if let Some(offset) = text.chars().position(|character| character == REPLACEMENT)
            && vocabulary.is_bytes()
        {
            let found = format!("U+FFFD at character {offset}, which stands for bytes that are not UTF-8");
            return Err(Error::bad_option(
                field,
                found,
                "a text without U+FFFD (ids, over gRPC, can stand for such bytes)",
            ));
        }
        let symbols = vocabulary.encode_exactly(field, text)?;
        if let Some(end) = vocabulary.end_byte()
            && let Some(offset) = symbols.iter().position(|symbol| *symbol == end)
        {
            let bound = format!("a text without the end byte {end}");
            return Err(Error::bad_option(field, format!("one at byte {offset}"), bound));
        }
        Ok(Self { symbols, text_chars })
    }

    fn from_ids(ids: Vec<u32>, card: &Card) -> Result<Self> {
        let field = "resume_ids";
        options::check_length(field, ids.len(), card)?;
        card.vocabulary.check_ids(field, &ids)?;
        let before_end = ids.split_last().filter(|(last, _)| card.vocabulary.ends_text(**last)).map(|(_, text)| text);
        let text = before_end.unwrap_or(&ids);
        if let Some(end) = card.vocabulary.end_byte()
            && let Some(index) = text.iter().position(|id| *id == end)
        {
            let bound = format!("the end byte {end} only as the last id");
            return Err(Error::bad_option(field, format!("one at index {index}"), bound));
        }
        let mut counter = TextCounter::new(Arc::clone(&card.vocabulary));
        text.iter().for_each(|&id| counter.push(id, true));
        if before_end.is_some() {
            counter.finish();
        }
        Ok(Self { symbols: ids, text_chars: counter.chars })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;
    use prost_types::{FileDescriptorSet, field_descriptor_proto::Type};
    use weir_engine::constraint::ConstraintCompiler;
    use weir_models::text::{TextMarks, TextNormaliser, Vocabulary};

    fn card(vocabulary: Vocabulary) -> Card {
        let boundary_modes = vec![BoundaryMode::Threshold, BoundaryMode::Sampled];
        Card { max_symbols: 300, boundary_modes, ..Card::for_tests(vocabulary) }
    }

    fn letters() -> Card {
        card(Vocabulary::from_symbols(&[" ", "a", "b", "c"], TextNormaliser::Text8).unwrap())
    }

    fn job_of(request: v1::GenerateRequest) -> Result<(options::Generate, ResponseFormat)> {
        let card = letters();
        let compiler = ConstraintCompiler::new(Arc::clone(&card.vocabulary));
        generate_job(request, &card, |constraint| compiler.compile(constraint))
    }

    fn request(prompt: &str) -> v1::GenerateRequest {
        v1::GenerateRequest { prompt: prompt.into(), ..Default::default() }
    }

    #[test]
    fn defaults_are_those_of_the_proto_file() {
        let (job, format) = job_of(request("Ab")).unwrap();
        assert_eq!(job.prompt, [1, 2]);
        assert_eq!(job.sampling, options::Sampling { seed: format.seed, ..Default::default() });
        assert_eq!((job.stopping.max_chars, job.stopping.min_chars, job.stopping.max_segments), (256, 0, None));
        assert_eq!(job.details, options::Details::default());
        assert_eq!((format.split, format.details.listed, format.prompt_chars), (PieceSplit::Characters(1), false, 2));
        assert_eq!(job.boundaries.mode, None);
    }

    #[test]
    fn the_engine_checks_each_number_of_sampling() {
        let set = FileDescriptorSet::decode(weir_proto::FILE_DESCRIPTOR_SET).unwrap();
        let sampling =
            set.file.iter().flat_map(|file| &file.message_type).find(|kind| kind.name() == "Sampling").unwrap();
        let numbers: Vec<_> = sampling.field.iter().filter(|field| field.r#type() == Type::Float).collect();
        assert!(numbers.len() >= 4, "{numbers:?}");
        for number in numbers {
            // the field's key with the wire type of four bytes, then its value
            let mut encoded = vec![(number.number() as u8) << 3 | 5];
            encoded.extend(f32::NAN.to_le_bytes());
            let sampling = Some(v1::Sampling::decode(&encoded[..]).unwrap());
            let (job, _) = job_of(v1::GenerateRequest { sampling, ..request("a") }).unwrap();
            let expected = format!("sampling.{}", number.name());
            let found = job.validate(&letters());
            assert!(matches!(found, Err(Error::BadOption { field, .. }) if field == expected), "{expected}: {found:?}");
        }
    }

    #[test]
    fn the_default_length_fits_the_context() {
        let (job, _) = job_of(request(&"a".repeat(290))).unwrap();
        assert_eq!(job.stopping.max_chars, 10);
        let (job, _) = job_of(request(&"a".repeat(300))).unwrap();
        assert_eq!(job.stopping.max_chars, 1);
    }

    #[test]
    fn a_biased_symbol_is_one_symbol() {
        let bias = |symbol| {
            let sampling = v1::Sampling { logit_bias: vec![v1::LogitBias { symbol, bias: 1.5 }], ..Default::default() };
            job_of(v1::GenerateRequest { sampling: Some(sampling), ..request("a") })
                .map(|(job, _)| job.sampling.logit_bias)
        };
        assert_eq!(bias(Some(Symbol::Text("c".into()))).unwrap(), [(3, 1.5)]);
        assert_eq!(bias(Some(Symbol::Id(2))).unwrap(), [(2, 1.5)]);
        assert_eq!(bias(Some(Symbol::Text("é".into()))).unwrap(), []);
        assert!(matches!(bias(Some(Symbol::Text("".into()))), Err(Error::BadOption { .. })));
    }

    fn accented_letters() -> Card {
        Card::for_tests(Vocabulary::from_symbols(&[" ", "a", "b", "é"], TextNormaliser::Text8).unwrap())
    }

    fn byte_level() -> Card {
        Card::for_tests(Vocabulary::byte_level(TextNormaliser::None))
    }

    #[test]
    fn texts_are_not_normalised_and_ids_are_taken_as_they_are() {
        let text = |text, card: &Card| ResumedRequest::new(text, Vec::new(), Some(1), card).unwrap();
        assert_eq!(text(" é  a", &accented_letters()), ResumedRequest { symbols: vec![0, 3, 0, 0, 1], text_chars: 5 });
        assert_eq!(text("é", &byte_level()), ResumedRequest { symbols: vec![0xc3, 0xa9], text_chars: 1 });
        assert_eq!(ResumedRequest::new("", Vec::new(), None, &byte_level()).unwrap(), ResumedRequest::default());
        // the last code point is not complete, so it was not sent
        let ids = ResumedRequest::new("", vec![0x61, 0xc3], Some(1), &byte_level()).unwrap();
        assert_eq!(ids, ResumedRequest { symbols: vec![0x61, 0xc3], text_chars: 1 });
        // the end byte is no text, and nothing completes the code point before it
        let ended = Card::for_tests(Vocabulary::byte_level_with_end(3, TextNormaliser::None).unwrap());
        let ids = ResumedRequest::new("", vec![0x61, 0xc3, 3], Some(1), &ended).unwrap();
        assert_eq!(ids, ResumedRequest { symbols: vec![0x61, 0xc3, 3], text_chars: 2 });
    }

    #[test]
    fn wrong_texts_are_refused_by_name() {
        let marks = TextMarks { start: 254, end: 255 };
        let marked = Card::for_tests(Vocabulary::byte_level_with_marks(marks, TextNormaliser::None).unwrap());
        let ended = Card::for_tests(Vocabulary::byte_level_with_end(3, TextNormaliser::None).unwrap());
        let long = "a".repeat(101);
        for (field, text, ids, card) in [
            ("resume_text", "a\u{3}", vec![], &ended),
            ("resume_ids", "", vec![0x61, 3, 0x62, 3], &ended),
            ("resume_ids", "", vec![3, 0x61], &ended),
            ("resume_text", &long, vec![], &byte_level()),
            ("resume_ids", "", vec![1; 101], &accented_letters()),
            ("resume_text", "a\u{fffd}", vec![], &byte_level()),
            ("resume_text", "a", vec![], &marked),
        ] {
            let message = ResumedRequest::new(text, ids, Some(1), card).unwrap_err().to_string();
            assert!(message.starts_with(&format!("{field}: expected ")), "{message}");
        }
    }
}
