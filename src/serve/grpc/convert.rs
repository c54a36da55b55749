//! From the wire to the engine: requests become jobs.
//!
//! Here text becomes symbols, absent fields get their defaults, and what only the wire knows is checked; the engine checks
//! the rest when it takes the job. The way back is in [`pieces`](super::pieces) and [`segments`](super::segments).

use crate::{
    decode::{
        contract::{BoundaryMode, BoundaryOptions, Card, Noise},
        options::{self, OptionLimits, Windows},
        summary::Summarize,
    },
    error::{Error, Result, clip},
    text::Vocabulary,
};
use std::hash::{BuildHasher, Hasher, RandomState};
use weir_proto::v1::{self, logit_bias::Symbol};

/// The most that `stream.coalesce_chars` may be.
pub(in crate::serve) const MAX_COALESCE: usize = 4096;
/// What the answer to a `Generate` needs to know of the request.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::serve) struct Plan {
    /// Characters of the prompt.
    pub(in crate::serve) prompt_chars: usize,
    /// Whether the prompt is sent back first.
    pub(in crate::serve) echo: bool,
    /// When a piece is complete.
    pub(in crate::serve) cut: Cut,
    /// What is told of each character.
    pub(in crate::serve) tell: Tell,
    /// The stop strings, as given.
    pub(in crate::serve) stop: Vec<String>,
    /// The seed of all draws.
    pub(in crate::serve) seed: u64,
}

/// When a piece is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::serve) enum Cut {
    /// As soon as it has this many characters.
    Characters(usize),
    /// When a segment ends.
    Segment,
}

/// What is told of each character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::serve) struct Tell {
    /// Whether characters are told one by one at all.
    pub(in crate::serve) characters: bool,
    /// Whether boundaries are told; the engine may have been asked for them for another reason.
    pub(in crate::serve) boundaries: bool,
}

/// A `Generate` as a job, and what its answer needs.
///
/// # Errors
/// What is wrong with a field, by its name.
pub(in crate::serve) fn generate(request: v1::GenerateRequest, card: &Card) -> Result<(options::Generate, Plan)> {
    let seed = request.sampling.as_ref().and_then(|sampling| sampling.seed).unwrap_or_else(draw_seed);
    let boundaries = boundaries(request.boundary_mode.as_deref(), seed, card)?;
    let prompt = card.encode("prompt", &request.prompt)?;
    let cut = cut(request.stream.unwrap_or_default(), card)?;
    let details = request.details.unwrap_or_default();
    let told = options::Details {
        echo: details.echo(),
        logprobs: details.logprobs(),
        top_logprobs: size(details.top_logprobs()),
        boundaries: details.boundaries(),
    };
    let stopping = request.stopping.unwrap_or_default();
    let plan = Plan {
        prompt_chars: prompt.len(),
        echo: told.echo,
        cut,
        tell: Tell {
            characters: told.logprobs || told.boundaries || told.top_logprobs > 0,
            boundaries: told.boundaries,
        },
        stop: stopping.stop.clone(),
        seed,
    };
    let job = options::Generate {
        sampling: sampling(request.sampling.unwrap_or_default(), seed, &card.vocabulary)?,
        stopping: self::stopping(stopping, prompt.len(), card)?,
        details: options::Details { boundaries: told.boundaries || cut == Cut::Segment, ..told },
        boundaries,
        prompt,
    };
    Ok((job, plan))
}

/// A `Score` as a job, and the seed that it got.
///
/// # Errors
/// What is wrong with a field, by its name.
pub(in crate::serve) fn score(request: &v1::ScoreRequest, card: &Card) -> Result<(options::Score, u64)> {
    let windows = request.windows.map(|wire| Windows { length: size(wire.length), stride: size(wire.stride) });
    // before the text, which may be long, is looked at
    windows.map_or(Ok(()), |windows| windows.validate(card))?;
    let symbols = match windows {
        Some(_) => card.vocabulary.encode("text", &request.text, OptionLimits::WINDOWED_SYMBOLS)?,
        None => card.encode("text", &request.text)?,
    };
    let (boundaries, seed) = drawn_boundaries(request.boundary_mode.as_deref(), request.seed, card)?;
    Ok((options::Score { symbols, logprobs: true, top: size(request.top_logprobs()), boundaries, windows }, seed))
}

/// A `Segment` as a job, and the seed that it got.
///
/// # Errors
/// What is wrong with a field, by its name.
pub(in crate::serve) fn segment(request: &v1::SegmentRequest, card: &Card) -> Result<(options::Score, u64)> {
    let symbols = card.encode("text", &request.text)?;
    let (boundaries, seed) = drawn_boundaries(request.boundary_mode.as_deref(), request.seed, card)?;
    Ok((options::Score { symbols, logprobs: false, top: 0, boundaries, windows: None }, seed))
}

/// A `Summarize`'s options.
///
/// # Errors
/// What is wrong with a field, by its name.
pub(in crate::serve) fn summarize(wire: &v1::SummarizeOptions, card: &Card) -> Result<Summarize> {
    let seed = || wire.sampling.as_ref().and_then(|sampling| sampling.seed).unwrap_or_else(draw_seed);
    let drawn = wire.sampling.clone().map(|drawn| sampling(drawn, seed(), &card.vocabulary)).transpose()?;
    Ok(Summarize {
        beam: wire.beam_size.map(size),
        length_penalty: wire.length_penalty,
        min_tokens: wire.min_tokens.map(size),
        max_tokens: wire.max_tokens.map(size),
        no_repeat_ngram: wire.no_repeat_ngram.map(size),
        sampling: drawn,
        hypotheses: wire.hypotheses.map(size),
        hard: wire.hard_topk,
    })
}

/// How boundaries are decided where nothing but them is drawn, and the seed.
fn drawn_boundaries(mode: Option<&str>, seed: Option<u64>, card: &Card) -> Result<(BoundaryOptions, u64)> {
    let seed = seed.unwrap_or_else(draw_seed);
    Ok((boundaries(mode, seed, card)?, seed))
}

/// A seed where the request gives none. The standard library's hash keys come from the operating system.
fn draw_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

fn boundaries(mode: Option<&str>, seed: u64, card: &Card) -> Result<BoundaryOptions> {
    let parse = |name: &str| {
        BoundaryMode::parse(name).ok_or_else(|| options::unknown_mode(format!("{:?}", clip(name, 64)), card))
    };
    let mode = mode.filter(|name| !name.is_empty()).map(parse).transpose()?;
    let boundaries = BoundaryOptions { mode, noise: Noise::Seeded(seed), ..Default::default() };
    options::check_mode(&boundaries, card)?;
    Ok(boundaries)
}

fn cut(stream: v1::Streaming, card: &Card) -> Result<Cut> {
    if stream.per_segment() {
        if stream.coalesce_chars.is_some() {
            return Err(Error::Exclusive { first: "stream.coalesce_chars", second: "stream.per_segment" });
        }
        options::must_pool("stream.per_segment", card)?;
        return Ok(Cut::Segment);
    }
    let count = size(stream.coalesce_chars.unwrap_or(1));
    if !(1..=MAX_COALESCE).contains(&count) {
        return Err(bad("stream.coalesce_chars", count.to_string(), format!("1 to {MAX_COALESCE}")));
    }
    Ok(Cut::Characters(count))
}

fn sampling(wire: v1::Sampling, seed: u64, vocabulary: &Vocabulary) -> Result<options::Sampling> {
    let field = "sampling.logit_bias";
    // Looked up one by one: a list of a million is refused before the work.
    if wire.logit_bias.len() > OptionLimits::LOGIT_BIAS {
        return Err(bad(field, wire.logit_bias.len().to_string(), format!("at most {}", OptionLimits::LOGIT_BIAS)));
    }
    let symbol = |bias: &v1::LogitBias| match &bias.symbol {
        Some(Symbol::Id(id)) => Ok(*id),
        Some(Symbol::Text(text)) => match vocabulary.encode_exactly(field, text)?.as_slice() {
            [id] => Ok(*id),
            _ => Err(bad(field, format!("{:?}", clip(text, 64)), "exactly one symbol".into())),
        },
        None => Err(bad(field, "nothing".into(), "exactly one symbol".into())),
    };
    let logit_bias = wire.logit_bias.iter().map(|bias| Ok((symbol(bias)?, bias.bias))).collect::<Result<_>>()?;
    let default = options::Sampling::default();
    Ok(options::Sampling {
        temperature: wire.temperature.unwrap_or(default.temperature),
        top_k: wire.top_k.map_or(default.top_k, size),
        top_p: wire.top_p.unwrap_or(default.top_p),
        min_p: wire.min_p.unwrap_or(default.min_p),
        repetition_penalty: wire.repetition_penalty.unwrap_or(default.repetition_penalty),
        seed,
        logit_bias,
    })
}

fn stopping(wire: v1::Stopping, prompt_chars: usize, card: &Card) -> Result<options::Stopping> {
    options::check_stop_count(wire.stop.len())?;
    let stop = options::STOP_FIELDS.into_iter().zip(&wire.stop);
    let stop = stop.map(|(field, text)| card.vocabulary.encode_exactly(field, text)).collect::<Result<_>>()?;
    Ok(options::Stopping {
        max_chars: wire.max_chars.map_or_else(|| options::Stopping::default_max_chars(prompt_chars, card), size),
        min_chars: size(wire.min_chars()),
        max_segments: wire.max_segments.map(size),
        stop,
        include_stop: wire.include_stop(),
        ignore_end: wire.ignore_eos(),
    })
}

fn bad(field: &'static str, found: String, bound: String) -> Error {
    Error::BadOption { field, found, bound }
}

/// The wire counts in 32 bits; no supported machine in fewer.
fn size(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::TextNormaliser;
    use std::sync::Arc;

    fn card(vocabulary: Vocabulary) -> Card {
        Card {
            name: "m".into(),
            family: "fake",
            shape: "none".into(),
            parameters: 0,
            vocabulary: Arc::new(vocabulary),
            training_length: 8,
            max_symbols: 300,
            max_symbols_why: None,
            boundary_modes: vec![BoundaryMode::Threshold, BoundaryMode::Sampled],
            first_logits: None,
            pooled: true,
            dtype: "f32",
            sha256: String::new(),
        }
    }

    fn letters() -> Card {
        card(Vocabulary::from_symbols(&[" ", "a", "b", "c"], TextNormaliser::Text8).unwrap())
    }

    fn request(prompt: &str) -> v1::GenerateRequest {
        v1::GenerateRequest { prompt: prompt.into(), ..Default::default() }
    }

    #[test]
    fn defaults_are_those_of_the_proto_file() {
        let (job, plan) = generate(request("Ab"), &letters()).unwrap();
        assert_eq!(job.prompt, [1, 2]);
        assert_eq!(job.sampling, options::Sampling { seed: plan.seed, ..Default::default() });
        assert_eq!((job.stopping.max_chars, job.stopping.min_chars, job.stopping.max_segments), (256, 0, None));
        assert_eq!(job.details, options::Details::default());
        assert_eq!((plan.cut, plan.tell.characters, plan.prompt_chars), (Cut::Characters(1), false, 2));
        assert_eq!(job.boundaries.mode, None);
    }

    #[test]
    fn the_default_length_is_what_fits() {
        let (job, _) = generate(request(&"a".repeat(290)), &letters()).unwrap();
        assert_eq!(job.stopping.max_chars, 10);
        let (job, _) = generate(request(&"a".repeat(300)), &letters()).unwrap();
        assert_eq!(job.stopping.max_chars, 1);
    }

    #[test]
    fn seeds_drawn_by_the_server_differ() {
        let seed = || generate(request("a"), &letters()).unwrap().1.seed;
        assert_ne!(seed(), seed());
    }

    #[test]
    fn stop_strings_are_taken_as_given() {
        let stop = |stop: &str, card: &Card| {
            let stopping = Some(v1::Stopping { stop: vec!["a".into(), stop.into()], ..Default::default() });
            generate(v1::GenerateRequest { stopping, ..request("a") }, card)
                .map(|(job, _)| job.stopping.stop[1].clone())
        };
        assert_eq!(stop("b c", &letters()).unwrap(), [2, 0, 3]);
        let message = stop("bC", &letters()).unwrap_err().to_string();
        assert_eq!(message, "stopping.stop[1]: 'C' at character 1 is not in the model's vocabulary");
        assert_eq!(stop("é", &card(Vocabulary::byte_level(TextNormaliser::None))).unwrap(), [0xc3, 0xa9]);
    }

    #[test]
    fn a_biased_symbol_is_one_symbol() {
        let bias = |symbol| {
            let sampling = v1::Sampling { logit_bias: vec![v1::LogitBias { symbol, bias: 1.5 }], ..Default::default() };
            generate(v1::GenerateRequest { sampling: Some(sampling), ..request("a") }, &letters())
                .map(|(job, _)| job.sampling.logit_bias)
        };
        assert_eq!(bias(Some(Symbol::Text("c".into()))).unwrap(), [(3, 1.5)]);
        assert_eq!(bias(Some(Symbol::Id(2))).unwrap(), [(2, 1.5)]);
        assert!(matches!(bias(Some(Symbol::Text("cc".into()))), Err(Error::BadOption { .. })));
        assert!(matches!(bias(Some(Symbol::Text("".into()))), Err(Error::BadOption { .. })));
        assert!(matches!(bias(None), Err(Error::BadOption { .. })));
    }
}
