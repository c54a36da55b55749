//! Sessions of each kind of request.

use super::Session;
use crate::{
    decode::{
        codec::{self, Code},
        contract::{Card, Exactness},
        generation::{ControlSymbols, Generator},
        next_symbol::{DistributionsSoFar, Lookahead, NextSymbol},
        options::{Generate, Score},
        prompt::{Prompt, PromptOutput},
        resumed::ResumedSymbols,
        sampling::logprobs::LogprobOptions,
    },
    error::Result,
};

impl Session {
    /// Creates a session that generates. Fails as [`Generate::validate`] does.
    pub fn generate(request: Generate, card: &Card) -> Result<Self> {
        request.validate(card)?;
        let (text, ends_text) = request.resumed_text(card);
        let resumed = ResumedSymbols::new(text, ends_text);
        // an earlier run has emitted the prompt before the resumed text
        let echo = request.details.echo && request.resumed.is_empty();
        let Generate { prompt, sampling, stopping, details, boundaries, speculation, .. } = request;
        let max_symbols = prompt.len().saturating_add(stopping.max_chars).min(card.max_symbols);
        let mode = boundaries.mode.or(card.boundary_modes.first().copied());
        let control = ControlSymbols::new(card.vocabulary.specials(), mode, &stopping);
        let mut generation = Generator::new(sampling, stopping, &details, card, control);
        generation.resumed = resumed;
        generation.see(&prompt);
        let output = PromptOutput {
            symbols: echo,
            logprobs: LogprobOptions { logprobs: details.logprobs, top: details.top_logprobs },
            boundaries: details.boundaries,
            last_logits: true,
        };
        // other models' numbers depend on how symbols are split into steps
        let can_speculate = card.speculates && card.exactness == Exactness::Bitwise;
        let speculation = speculation.filter(|_| can_speculate).unwrap_or_default();
        let session = Self::new(Prompt::new(prompt, None, output), Some(generation), boundaries, card, max_symbols)?;
        Ok(Self { speculation, ..session })
    }

    /// Creates a session that scores a text. Fails as [`Score::validate`] does.
    pub fn score(request: Score, card: &Card) -> Result<Self> {
        request.validate(card)?;
        let Score { symbols, logprobs, top, boundaries, windows } = request;
        let logprobs = LogprobOptions { logprobs, top };
        let output = PromptOutput { symbols: true, logprobs, boundaries: true, last_logits: false };
        let prompt = Prompt::new(symbols, windows, output);
        let max_symbols = prompt.longest();
        Self::new(prompt, None, boundaries, card, max_symbols)
    }

    /// Creates a session that computes the distributions after a text. Fails as [`NextSymbol::validate`] does.
    pub fn next_symbol(request: NextSymbol, card: &Card) -> Result<Self> {
        request.validate(card)?;
        let output = PromptOutput {
            symbols: false,
            logprobs: LogprobOptions { logprobs: false, top: 0 },
            boundaries: false,
            last_logits: true,
        };
        let prompt = Prompt::new(request.symbols, None, output);
        let room = card.max_symbols.saturating_sub(prompt.longest());
        let ahead = request.lookahead.max_symbols.min(room);
        let lookahead = Lookahead { max_symbols: ahead, ..request.lookahead };
        let max_symbols = prompt.longest() + ahead;
        let session = Self::new(prompt, None, request.boundaries, card, max_symbols)?;
        Ok(Self { distributions: Some(DistributionsSoFar::new(lookahead)), ..session })
    }

    /// Creates a session that compresses or decompresses a block. Fails as [`Code::validate`] does, and for damaged data.
    pub fn code(request: Code, card: &Card) -> Result<Self> {
        request.validate(card)?;
        let windows = request.windows;
        let (len, symbols, coder) = request.begin(card)?;
        let prompt = Prompt::coded(len, symbols, windows, coder, card.first_logits.as_deref())?;
        let max_symbols = prompt.longest();
        Self::new(prompt, None, codec::request::boundaries(), card, max_symbols)
    }
}
