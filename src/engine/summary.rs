//! A document's job from its first token to the last of its texts: what is encoded, what each of its rows is fed, what comes of
//! it.
//!
//! It can lose its rows, and with them all that the model has of the document, and go on: the tokens are still there, and what it
//! had found by then is not looked for again.

use super::{
    shelf::Kept,
    upload::{Found, Inbox},
};
use crate::{
    decode::{
        beam::{BeamSearch, SearchStep},
        contract::{Card, Model, SequenceRow, Want},
        document::{DocumentEncoder, DocumentLimits, Encoding, EncodingProgress, EncodingStage},
        options::{EmittedSymbol, FinishReason},
        summary::{DocumentProgress, DocumentWaits, EncodedDocument, PoolingUpdate, SummaryPlan, SummaryResult},
        usage::{Timing, Usage},
    },
    error::{Error, Result},
};
use std::{sync::Arc, time::Instant};

/// A job about a document.
pub(super) struct Summary {
    inbox: Arc<Inbox>,
    /// Under what the document is kept, if it is.
    id: Option<String>,
    limits: DocumentLimits,
    /// Whether vectors are kept as they are, where the model would mix others into them.
    hard: bool,
    hypotheses: usize,
    search: BeamSearch,
    most_rows: usize,
    /// Symbols of the longest text, its start included.
    most_symbols: usize,
    vocabulary: usize,
    /// The document while it is encoded, how many of its tokens it has taken, and of how many poolings it was told what they chose.
    encoding: Option<Box<dyn Encoding>>,
    taken: usize,
    chosen: usize,
    /// Since when it has had nothing to do for want of tokens.
    idle: Option<Instant>,
    /// The document once it is encoded; none again after the job had to make way.
    kept: Option<Kept>,
    /// Whether it came encoded.
    cached: bool,
    rewound: bool,
    /// Whether the latest feed was of symbols that others of its rows had been fed.
    refeeds: bool,
    /// How the document was read, from the first time on.
    encoded: Option<Arc<EncodedDocument>>,
    began: Option<Instant>,
    ended: Option<Instant>,
    waits: DocumentWaits,
    told: Vec<EmittedSymbol>,
    /// Tokens of the best text that were told.
    said: usize,
    /// Where a row's feed is laid out.
    feed: Vec<u32>,
}

/// Where it stands after a step of its rows.
pub(super) enum Written {
    /// Symbols that it had fed before are still to be fed again.
    Refeeding,
    /// Its rows go on in this way.
    Goes(Vec<usize>),
    /// It is over.
    Finished(FinishReason),
}

impl Summary {
    /// Of the document in this inbox; `id` if it is one that was kept.
    pub(super) fn new(
        (inbox, id): (Arc<Inbox>, Option<String>),
        plan: SummaryPlan,
        limits: &DocumentLimits,
        card: &Card,
    ) -> Self {
        let SummaryPlan { rules, hypotheses, hard } = plan;
        let (most_rows, most_symbols) = (rules.beam, rules.max_tokens + 1);
        let vocabulary = card.vocabulary.len();
        Self {
            inbox,
            cached: id.is_some(),
            id,
            limits: limits.clone(),
            hard: hard.unwrap_or(false),
            hypotheses,
            search: BeamSearch::new(rules, limits.marks, vocabulary),
            most_rows,
            most_symbols,
            vocabulary,
            encoding: None,
            taken: 0,
            chosen: 0,
            idle: None,
            kept: None,
            rewound: false,
            refeeds: false,
            encoded: None,
            began: None,
            ended: None,
            waits: DocumentWaits::default(),
            told: Vec::new(),
            said: 0,
            feed: Vec::new(),
        }
    }

    /// Under what its document is kept.
    pub(super) fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// The rows that it may come to have.
    pub(super) fn most_rows(&self) -> usize {
        self.most_rows
    }

    /// Rows that it needs once its document is encoded.
    pub(super) fn rows(&self) -> usize {
        self.search.rows()
    }

    /// Tokens of its document, as far as they have come.
    pub(super) fn tokens(&self) -> usize {
        self.inbox.tokens()
    }

    /// Whether all of its document has come.
    pub(super) fn is_whole(&self) -> bool {
        self.inbox.is_whole()
    }

    /// Why its document will never be whole, if so.
    pub(super) fn failure(&self) -> Option<Error> {
        self.inbox.failure()
    }

    /// Tokens that its document may come to have.
    pub(super) fn most_tokens(&self) -> usize {
        if self.is_whole() { self.tokens() } else { self.limits.tokens }
    }

    /// The most bytes that it will hold with texts of so many symbols.
    pub(super) fn bytes(&self, model: &dyn Model, reader: &dyn DocumentEncoder, symbols: usize) -> usize {
        let rows = self.most_rows.saturating_mul(model.bytes_for(symbols));
        reader.bytes_for(self.most_tokens()).saturating_add(rows)
    }

    /// The symbols of its longest text, and those of which it knows now.
    pub(super) fn symbols(&self) -> (usize, usize) {
        (self.most_symbols, self.search.tokens() + 1)
    }

    /// Begins anew: from the document, if it is still there.
    pub(super) fn begin(&mut self, reader: &dyn DocumentEncoder, kept: Option<Kept>, now: Instant) -> Result<()> {
        self.began.get_or_insert(now);
        let encoding = match kept {
            Some(kept) => {
                self.read(kept);
                return Ok(());
            }
            None if self.hard => reader.open_hard()?,
            None => reader.open(),
        };
        (self.encoding, self.taken) = (Some(encoding), 0);
        Ok(())
    }

    /// Takes what has come of its document.
    pub(super) fn pull(&mut self, now: Instant) -> Result<()> {
        let Some(encoding) = &mut self.encoding else { return Ok(()) };
        let Found { ended, new } = self.inbox.take(self.taken, |ids| encoding.push(ids))?;
        self.taken += new;
        if ended && self.ended.is_none() {
            self.ended = Some(now);
            self.waits.blocks_at_end = encoding.progress().blocks;
            self.waits.arrival_ns = between(self.began, now);
        }
        if ended {
            encoding.close()?;
        }
        let waits = encoding.progress().stage == EncodingStage::Waiting;
        self.idle = waits.then(|| self.idle.filter(|_| new == 0).unwrap_or(now));
        Ok(())
    }

    /// Since when it has waited for tokens, if it does.
    pub(super) fn idle(&self) -> Option<Instant> {
        self.idle
    }

    /// Whether its document is being encoded.
    pub(super) fn is_encoding(&self) -> bool {
        self.encoding.is_some()
    }

    /// Blocks that can run, as far as is known, and what each counts as.
    pub(super) fn blocks(&self) -> (usize, usize) {
        let progress = self.encoding.as_ref().map(|encoding| encoding.progress());
        let left = progress.and_then(|progress| progress.total.map(|total| total.saturating_sub(progress.blocks)));
        (left.unwrap_or(1).max(1), self.limits.block.max(1))
    }

    /// Bytes that its encoding may still take.
    pub(super) fn growth(&self, reader: &dyn DocumentEncoder) -> usize {
        let held = self.encoding.as_ref().map_or(0, |encoding| encoding.bytes());
        reader.bytes_for(self.taken).saturating_sub(held)
    }

    /// Bytes of its document, or of what there is of it.
    pub(super) fn held(&self) -> usize {
        let encoding = self.encoding.as_ref().map(|encoding| encoding.bytes());
        encoding.or_else(|| self.kept.as_ref().map(|kept| kept.document.bytes())).unwrap_or(0)
    }

    /// The encoding, to be worked on.
    pub(super) fn encoding(&mut self) -> Option<&mut (dyn Encoding + 'static)> {
        self.encoding.as_deref_mut()
    }

    /// How far the document is.
    pub(super) fn reading(&self) -> Option<DocumentProgress> {
        let progress = self.encoding.as_ref()?.progress();
        let EncodingProgress { stage, blocks, total } = progress;
        Some(DocumentProgress { stage, tokens: self.taken, blocks, total })
    }

    /// What poolings have chosen since it was last asked, if there is something.
    pub(super) fn newly_chosen(&mut self) -> Option<PoolingUpdate> {
        let encoding = self.encoding.as_ref()?;
        let choices = encoding.choices().get(self.chosen..).filter(|new| !new.is_empty())?.to_vec();
        self.chosen += choices.len();
        let (ids, places, _) = self.inbox.all();
        Some(PoolingUpdate { choices, places, tokens: ids.len() })
    }

    /// Looks, after it was worked on, whether the document is done; it is then kept by `keep`.
    pub(super) fn finish(
        &mut self,
        now: Instant,
        keep: impl FnOnce(&Kept) -> Option<String>,
    ) -> Option<Arc<EncodedDocument>> {
        let encoding = self.encoding.as_ref()?;
        let (document, progress) = (encoding.document()?, encoding.progress());
        let (ids, places, cut) = self.inbox.all();
        // a second time it is read as it was the first time
        let encoded = self.encoded.clone().unwrap_or_else(|| Arc::new(EncodedDocument::of(&*document, places, cut)));
        if !self.rewound {
            self.waits.rest_ns = between(self.ended, now);
            self.waits.blocks = progress.blocks;
        }
        let kept = Kept { document, encoded, ids: ids.into(), hard: self.hard };
        self.id = keep(&kept);
        self.read(kept);
        self.encoded.clone()
    }

    fn read(&mut self, kept: Kept) {
        (self.encoding, self.idle) = (None, None);
        self.encoded = Some(Arc::clone(&kept.encoded));
        self.kept = Some(kept);
    }

    /// The document that its rows begin from.
    pub(super) fn document(&self) -> Option<&Kept> {
        self.kept.as_ref()
    }

    /// Whether what is fed next was fed before, or is a document.
    pub(super) fn is_prefilling(&self, lens: impl Iterator<Item = usize>) -> bool {
        self.kept.is_none() || self.left(lens) > self.search.rows()
    }

    /// Whether what it does now was done before.
    pub(super) fn is_again(&self) -> bool {
        self.rewound && self.encoded.is_some()
    }

    /// Whether the latest feed was of symbols that its rows had been fed before it had to make way.
    pub(super) fn refeeds(&self) -> bool {
        self.refeeds
    }

    /// Symbols that its rows, which have been fed so many, are still to be fed.
    pub(super) fn left(&self, lens: impl Iterator<Item = usize>) -> usize {
        let all = self.search.tokens() + 1;
        lens.map(|len| all.saturating_sub(len)).sum()
    }

    /// Lays what its rows are fed next into them: so many symbols for all of them, but one for each that lacks any.
    pub(super) fn feed(&mut self, rows: &mut [SequenceRow], seats: &[usize], symbols: usize, fed: &mut Vec<usize>) {
        let (all, share) = (self.search.tokens() + 1, (symbols / seats.len().max(1)).max(1));
        self.refeeds = self.rewound && self.left(seats.iter().map(|&seat| rows[seat].state.len())) > seats.len();
        for (path, &seat) in seats.iter().enumerate() {
            let row = &mut rows[seat];
            let at = row.state.len();
            let count = share.min(all.saturating_sub(at));
            if count == 0 {
                continue;
            }
            self.feed.clear();
            self.feed.extend(self.search.symbols_fed(path).skip(at).take(count));
            row.set(&self.feed, if at + count == all { Want::Last } else { Want::Nothing });
            fed.push(seat);
        }
    }

    /// Takes the outcome of a step of its rows, all of which are ready.
    pub(super) fn absorb(&mut self, rows: &[SequenceRow], seats: &[usize]) -> Result<Written> {
        let all = self.search.tokens() + 1;
        if seats.len() != self.search.rows() || seats.iter().any(|&seat| rows[seat].state.len() > all) {
            return Err(Error::Internal(format!("{} rows for {} texts", seats.len(), self.search.rows())));
        }
        if seats.iter().any(|&seat| rows[seat].state.len() < all) {
            return Ok(Written::Refeeding);
        }
        if let Some(&seat) = seats.iter().find(|&&seat| rows[seat].logits.len() != self.vocabulary) {
            let found = rows[seat].logits.len();
            return Err(Error::Internal(format!("{found} logits of a vocabulary of {}", self.vocabulary)));
        }
        let outcome = self.search.advance(seats.iter().map(|&seat| rows[seat].logits.as_slice()))?;
        let settled = self.search.settled_prefix();
        let plain = |&symbol: &u32| EmittedSymbol { symbol, logprob: None, decision: None, top: Vec::new() };
        self.told.extend(settled.get(self.said..).unwrap_or_default().iter().map(plain));
        self.said = self.said.max(settled.len());
        Ok(match outcome {
            SearchStep::Continue(moves) => Written::Goes(moves.into_iter().map(|next| next.from).collect()),
            SearchStep::Done => Written::Finished(self.reason()),
        })
    }

    /// Whether the best text ended by itself.
    fn reason(&self) -> FinishReason {
        let longest = self.most_symbols - 1;
        match self.search.finished().first() {
            Some(best) if best.tokens.len() <= longest => FinishReason::EndOfText,
            _ => FinishReason::MaxChars,
        }
    }

    /// Loses its rows and its document.
    pub(super) fn rewind(&mut self) {
        (self.encoding, self.kept, self.idle, self.taken) = (None, None, None, 0);
        self.rewound = true;
    }

    /// Tokens that each of its texts has.
    pub(super) fn answered(&self) -> usize {
        self.search.tokens()
    }

    /// What is to be told.
    pub(super) fn take(&mut self) -> Vec<EmittedSymbol> {
        std::mem::take(&mut self.told)
    }

    /// Whether there is anything.
    pub(super) fn has_told(&self) -> bool {
        !self.told.is_empty()
    }

    /// What was processed.
    pub(super) fn usage(&self) -> Usage {
        let tokens = self.encoded.as_ref().map_or(self.taken, |encoded| encoded.tokens);
        let best = self.search.finished().first().map(|best| best.tokens.len());
        Usage {
            prompt_chars: tokens,
            cached_chars: if self.cached { tokens } else { 0 },
            generated_chars: best.unwrap_or(self.search.tokens()),
            ..Usage::default()
        }
    }

    /// What is told of its document, once that is encoded.
    pub(super) fn encoded(&self) -> Option<Arc<EncodedDocument>> {
        self.encoded.clone()
    }

    /// Whether its document had been encoded for an earlier job.
    pub(super) fn is_cached(&self) -> bool {
        self.cached
    }

    /// The whole, at the end.
    pub(super) fn outcome(self, reason: FinishReason, timing: Timing) -> SummaryResult {
        let usage = self.usage();
        let hypotheses = self.search.finished().iter().take(self.hypotheses).cloned().collect();
        SummaryResult { hypotheses, document_id: self.id, reason, usage, timing, waits: self.waits }
    }
}

fn between(from: Option<Instant>, to: Instant) -> u64 {
    let took = from.map_or_else(Default::default, |from| to.saturating_duration_since(from));
    u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)
}
