//! A request about a document: the upload on its way to the engine, the document's encoding, the feeds of its rows, and the
//! texts that the search generates. A preempted request can resume: its tokens and the texts found are kept.

use crate::{
    beam::{BeamSearch, SearchStep},
    cache::CachedDocument,
    clock,
    options::{EmittedSymbol, FinishReason},
    scheduler::{MEMORY_MARGIN, RowActivity},
    state::WakeSignal,
    summary::{
        ByteRange, DocumentProgress, DocumentWaits, EncodedDocument, PoolingUpdate, SummaryResult, ValidSummarize,
        read_bytes,
    },
};
use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use weir_kernels::{
    error::{Error, Result},
    sync::lock,
};
use weir_models::{
    contract::{
        Card, DocumentEncoder, DocumentLimits, Encoding, EncodingProgress, EncodingStage, Model, SequenceRow, Want,
    },
    usage::{Timing, Usage},
};

pub(crate) struct DocumentRequest {
    pub(crate) inbox: Arc<Inbox>,
    /// Id of the document in the document cache, if it is there.
    pub(crate) id: Option<String>,
    limits: DocumentLimits,
    /// True if poolings keep each vector as it is, where the model would mix others into it.
    hard: bool,
    hypotheses: usize,
    pub(crate) search: BeamSearch,
    /// The attention to each token, once it is known, if the request wants it.
    pub(crate) attention: Option<Vec<f32>>,
    pub(crate) max_rows: usize,
    /// Maximum symbols of a text, with its start mark.
    max_symbols: usize,
    vocabulary_len: usize,
    pub(crate) encoding: Option<Box<dyn Encoding>>,
    /// Tokens pushed into `encoding`.
    pushed: usize,
    /// Bytes of the text up to the end of the last token pushed.
    read_bytes: Option<u64>,
    /// True if the text was cut after the last token.
    cut: bool,
    /// Poolings whose choices were reported.
    reported_choices: usize,
    pub(crate) wait: Option<UploadWait>,
    /// The document once it is encoded; `None` again after a preemption.
    pub(crate) document: Option<CachedDocument>,
    /// True if an earlier request encoded the document.
    pub(crate) was_cached: bool,
    preempted: bool,
    /// True if the latest feed repeated symbols that were fed before a preemption.
    pub(crate) refeeding: bool,
    /// Symbols that the current encoding has counted. A preemption resets it.
    encoded_now: usize,
    /// Most symbols that any encoding of this document has counted.
    encoded_most: usize,
    /// How the document was encoded the first time.
    pub(crate) encoded: Option<Arc<EncodedDocument>>,
    began: Option<Instant>,
    /// Time at which the last token arrived.
    arrived: Option<Instant>,
    waits: DocumentWaits,
    pub(crate) output: Vec<EmittedSymbol>,
    /// Tokens of the best text that `output` has contained.
    emitted: usize,
    feed_buffer: Vec<u32>,
}

impl DocumentRequest {
    /// Creates the request for the document in `inbox`; `id` if it came from the document cache.
    pub(crate) fn new(
        inbox: Arc<Inbox>,
        id: Option<String>,
        plan: ValidSummarize,
        limits: &DocumentLimits,
        card: &Card,
    ) -> Self {
        let vocabulary_len = card.vocabulary.len();
        Self {
            inbox,
            was_cached: id.is_some(),
            id,
            limits: limits.clone(),
            hard: plan.hard.unwrap_or(false),
            hypotheses: plan.hypotheses,
            attention: plan.attention.then(Vec::new),
            max_rows: plan.rules.beam,
            max_symbols: plan.rules.max_tokens + 1,
            search: BeamSearch::new(plan.rules, limits.marks, vocabulary_len),
            vocabulary_len,
            encoding: None,
            pushed: 0,
            read_bytes: None,
            cut: false,
            reported_choices: 0,
            wait: None,
            document: None,
            preempted: false,
            refeeding: false,
            encoded_now: 0,
            encoded_most: 0,
            encoded: None,
            began: None,
            arrived: None,
            waits: DocumentWaits::default(),
            output: Vec::new(),
            emitted: 0,
            feed_buffer: Vec::new(),
        }
    }

    pub(crate) fn max_tokens(&self) -> usize {
        if self.inbox.is_complete() { self.inbox.tokens() } else { self.limits.tokens }
    }

    /// Returns the maximum symbols that it feeds: its document, and every token of every hypothesis.
    pub(crate) fn max_work(&self) -> usize {
        self.max_tokens().saturating_add(self.max_rows.saturating_mul(self.max_symbols))
    }

    /// Returns the maximum bytes that it holds with its longest texts.
    pub(crate) fn max_bytes(&self, model: &dyn Model, reader: &dyn DocumentEncoder) -> usize {
        self.bytes_for(model, reader, self.max_symbols)
    }

    /// Returns the bytes that it needs now and for the next symbols of its texts.
    pub(crate) fn bytes_soon(&self, model: &dyn Model) -> usize {
        let symbols = (self.symbols() + MEMORY_MARGIN).min(self.max_symbols);
        model.document_encoder().map_or(usize::MAX, |reader| self.bytes_for(model, reader, symbols))
    }

    fn bytes_for(&self, model: &dyn Model, reader: &dyn DocumentEncoder, symbols: usize) -> usize {
        let rows = self.max_rows.saturating_mul(model.bytes_for(symbols));
        reader.bytes_for(self.max_tokens()).saturating_add(rows)
    }

    /// Returns the number of symbols that each of its rows is fed for the known texts.
    fn symbols(&self) -> usize {
        self.search.tokens() + 1
    }

    /// Starts or resumes: from `document` if the cache still has it, else by encoding it. Fails if it cannot pool hard.
    pub(crate) fn begin(
        &mut self,
        reader: &dyn DocumentEncoder,
        document: Option<CachedDocument>,
        now: Instant,
    ) -> Result<()> {
        if self.began.is_none() {
            // the cache may have evicted it while the request waited
            self.was_cached &= document.is_some();
        }
        self.began.get_or_insert(now);
        self.pushed = 0;
        self.read_bytes = None;
        match document {
            Some(document) => self.set_document(document),
            None => self.encoding = Some(reader.open(self.hard)?),
        }
        Ok(())
    }

    /// Pushes newly arrived tokens into the encoding. Fails if a token exceeds the model's limit.
    pub(crate) fn pull(&mut self, now: Instant) -> Result<()> {
        let Some(encoding) = &mut self.encoding else { return Ok(()) };
        let arrived = lock(&self.inbox.0);
        let new = arrived.ids.get(self.pushed..).unwrap_or_default();
        if !new.is_empty() {
            encoding.push(new)?;
        }
        let count = new.len();
        self.read_bytes = self.read_bytes.max(read_bytes(arrived.byte_ranges.get(self.pushed..).unwrap_or_default()));
        self.pushed += count;
        self.cut = arrived.cut;
        let ended = matches!(arrived.end, Some(Ok(())));
        drop(arrived);
        if ended && self.arrived.is_none() {
            self.arrived = Some(now);
            self.waits.blocks_at_end = encoding.progress().blocks;
            self.waits.arrival_ns = nanoseconds_between(self.began, now);
        }
        if ended {
            encoding.close()?;
        }
        let waits = encoding.progress().stage == EncodingStage::Waiting;
        self.wait = waits.then(|| UploadWait::after(self.wait, count, now));
        Ok(())
    }

    /// Returns true if it needs no more tokens to go on.
    pub(crate) fn has_its_input(&self) -> bool {
        self.encoding.is_some() || self.document.is_some() || self.inbox.is_complete()
    }

    /// Returns its next activity if it does not wait for tokens; its `rows` rows have been fed `lens` symbols.
    pub(crate) fn activity(&self, lens: impl Iterator<Item = usize>, rows: usize) -> RowActivity {
        if let Some(encoding) = &self.encoding {
            let progress = encoding.progress();
            let left = progress.total.map_or(1, |total| total.saturating_sub(progress.blocks));
            return RowActivity::Encoding { blocks: left.max(1), block_symbols: self.limits.block.max(1) };
        }
        let left = self.symbols_left(lens);
        if self.document.is_none() || left > self.search.rows() {
            RowActivity::Prefilling(left.max(1))
        } else {
            RowActivity::Decoding(rows)
        }
    }

    /// Returns the bytes that its encoding may still allocate.
    pub(crate) fn growth(&self, reader: &dyn DocumentEncoder) -> usize {
        let held = self.encoding.as_ref().map_or(0, |encoding| encoding.bytes());
        reader.bytes_for(self.pushed).saturating_sub(held)
    }

    /// Returns the bytes of its document, or of its encoding so far.
    pub(crate) fn held(&self) -> usize {
        let encoding = self.encoding.as_ref().map(|encoding| encoding.bytes());
        encoding.or_else(|| self.document.as_ref().map(|cached| cached.document.bytes)).unwrap_or(0)
    }

    pub(crate) fn reading(&self) -> Option<DocumentProgress> {
        let EncodingProgress { stage, blocks, total } = self.encoding.as_ref()?.progress();
        let Self { pushed: tokens, read_bytes, cut, .. } = *self;
        Some(DocumentProgress { stage, tokens, read_bytes, cut, blocks, total })
    }

    /// Returns the choices of poolings that ran since the last call, if there are any.
    pub(crate) fn take_new_choices(&mut self) -> Option<PoolingUpdate> {
        let encoding = self.encoding.as_ref()?;
        let choices = encoding.choices().get(self.reported_choices..).filter(|new| !new.is_empty())?.to_vec();
        self.reported_choices += choices.len();
        let (ids, byte_ranges, _) = self.inbox.contents();
        Some(PoolingUpdate { choices, byte_ranges, tokens: ids.len() })
    }

    /// Ends the encoding if it is complete. `keep` stores a document that others may use and returns its id.
    pub(crate) fn finish_encoding(
        &mut self,
        now: Instant,
        keep: impl FnOnce(&CachedDocument) -> Option<String>,
    ) -> Option<Arc<EncodedDocument>> {
        let encoding = self.encoding.as_ref()?;
        let document = encoding.document()?;
        let blocks = encoding.progress().blocks;
        let (ids, byte_ranges, cut) = self.inbox.contents();
        let is_first = self.encoded.is_none();
        // after a preemption the first report stays valid
        let encoded =
            self.encoded.clone().unwrap_or_else(|| Arc::new(EncodedDocument::new(&document, byte_ranges, cut)));
        if is_first {
            self.waits.rest_ns = nanoseconds_between(self.arrived, now);
            self.waits.blocks = blocks;
        }
        let cached = CachedDocument { document, encoded, ids: ids.into(), hard: self.hard };
        let is_used_once = lock(&self.inbox.0).is_used_once;
        self.id = if is_used_once { None } else { keep(&cached) };
        self.set_document(cached);
        self.encoded.clone()
    }

    fn set_document(&mut self, cached: CachedDocument) {
        self.encoding = None;
        self.wait = None;
        self.encoded = Some(Arc::clone(&cached.encoded));
        self.document = Some(cached);
    }

    /// Returns true if its next feed repeats symbols, or its document is not encoded yet.
    pub(crate) fn is_prefilling(&self, lens: impl Iterator<Item = usize>) -> bool {
        self.document.is_none() || self.symbols_left(lens) > self.search.rows()
    }

    /// Returns true if it encodes its document again after a preemption.
    pub(crate) fn encodes_again(&self) -> bool {
        self.preempted && self.encoded.is_some()
    }

    /// Counts symbols of its document that were encoded. Returns how many of them repeat an encoding before a preemption.
    pub(crate) fn count_encoded(&mut self, symbols: usize) -> usize {
        let before = self.encoded_now;
        self.encoded_now += symbols;
        let repeated = self.encoded_most.min(self.encoded_now).saturating_sub(before);
        self.encoded_most = self.encoded_most.max(self.encoded_now);
        repeated
    }

    /// Returns the number of symbols that its rows, which have been fed `lens`, are still to be fed.
    fn symbols_left(&self, lens: impl Iterator<Item = usize>) -> usize {
        lens.map(|len| self.symbols().saturating_sub(len)).sum()
    }

    /// Feeds each of its rows that lacks symbols an equal share of `symbols`, at least one. Appends their indices to `fed`.
    pub(crate) fn feed(
        &mut self,
        rows: &mut [SequenceRow],
        row_indices: &[usize],
        symbols: usize,
        fed: &mut Vec<usize>,
    ) {
        let target = self.symbols();
        let share = (symbols / row_indices.len().max(1)).max(1);
        let lens = row_indices.iter().map(|&row| rows[row].state.len());
        self.refeeding = self.preempted && self.symbols_left(lens) > row_indices.len();
        for (path, &index) in row_indices.iter().enumerate() {
            let row = &mut rows[index];
            let len = row.state.len();
            let count = share.min(target.saturating_sub(len));
            if count == 0 {
                continue;
            }
            self.feed_buffer.clear();
            self.feed_buffer.extend(self.search.symbols_fed(path).skip(len).take(count));
            row.set(&self.feed_buffer, if len + count == target { Want::Last } else { Want::Nothing });
            fed.push(index);
        }
    }

    /// Takes the outcome of a step of its rows, which are ready. Returns `None` while symbols that were fed before a preemption are
    /// still to be fed again. Fails if the number of rows, their length or their logits are wrong.
    pub(crate) fn absorb(&mut self, rows: &[SequenceRow], row_indices: &[usize]) -> Result<Option<SearchStep>> {
        let symbols = self.symbols();
        if row_indices.len() != self.search.rows() || row_indices.iter().any(|&row| rows[row].state.len() > symbols) {
            let texts = self.search.rows();
            return Err(Error::Internal(format!("a summary of {texts} texts has {} rows", row_indices.len())));
        }
        if row_indices.iter().any(|&row| rows[row].state.len() < symbols) {
            return Ok(None);
        }
        let logits = row_indices.iter().map(|&row| rows[row].logits.as_slice());
        if let Some(wrong) = logits.clone().find(|logits| logits.len() != self.vocabulary_len) {
            let len = self.vocabulary_len;
            return Err(Error::Internal(format!("{} logits for a vocabulary of {len}", wrong.len())));
        }
        let outcome = self.search.advance(logits)?;
        let settled = self.search.settled_prefix();
        self.output
            .extend(settled.get(self.emitted..).unwrap_or_default().iter().map(|&symbol| EmittedSymbol::plain(symbol)));
        self.emitted = self.emitted.max(settled.len());
        Ok(Some(outcome))
    }

    /// Returns whether the best text ended with the end mark or at the length limit.
    pub(crate) fn reason(&self) -> FinishReason {
        match self.search.finished().first() {
            Some(best)
                if best.tokens.last() == Some(&self.limits.marks.end) && best.tokens.len() < self.max_symbols =>
            {
                FinishReason::EndOfText
            }
            _ => FinishReason::MaxChars,
        }
    }

    /// Drops its document; its rows are taken away.
    pub(crate) fn rewind(&mut self) {
        self.encoding = None;
        self.document = None;
        self.wait = None;
        self.encoded_now = 0;
        self.pushed = 0;
        self.read_bytes = None;
        self.preempted = true;
    }

    pub(crate) fn usage(&self) -> Usage {
        let tokens = self.encoded.as_ref().map_or(self.pushed, |encoded| encoded.tokens);
        let best = self.search.finished().first().map(|best| best.tokens.len());
        Usage {
            prompt_chars: tokens,
            cached_chars: if self.was_cached { tokens } else { 0 },
            generated_chars: best.unwrap_or(self.search.tokens()),
            ..Usage::default()
        }
    }

    pub(crate) fn finish(self, reason: FinishReason, timing: Timing) -> SummaryResult {
        let usage = self.usage();
        let hypotheses = self.search.finished().iter().take(self.hypotheses).cloned().collect();
        let attention = self.attention.unwrap_or_default();
        SummaryResult { hypotheses, document_id: self.id, reason, usage, timing, waits: self.waits, attention }
    }
}

/// Returns the nanoseconds between two times; 0 without the first.
fn nanoseconds_between(from: Option<Instant>, to: Instant) -> u64 {
    from.map_or(0, |from| clock::nanoseconds(to.saturating_duration_since(from)))
}

/// Where the document of a summary comes from.
pub enum DocumentSource {
    /// An upload that was opened with [`Handle::upload`](super::Handle::upload).
    Uploading(IncomingDocument),
    /// The id of a document that was encoded for an earlier request of the same tenant.
    Cached(String),
}

/// The sending side of a document. Dropping it before [`close`](Self::close) cancels the request.
pub struct DocumentUpload {
    inbox: Arc<Inbox>,
    wake_signal: Arc<WakeSignal>,
}

/// The receiving side of a document, from which a request is made.
pub struct IncomingDocument(pub(crate) Arc<Inbox>);

/// Tokens that have arrived. The model's limit bounds them: the request fails at the first token beyond it.
#[derive(Default)]
pub(crate) struct Inbox(Mutex<Arrived>);

#[derive(Default)]
struct Arrived {
    ids: Vec<u32>,
    byte_ranges: Vec<ByteRange>,
    /// True if the text was cut after the last token.
    cut: bool,
    /// True if no later request uses the document.
    is_used_once: bool,
    /// Outcome of the upload; `None` while it goes on.
    end: Option<Result<()>>,
}

/// How long an upload may send no token before its request can be preempted for a queued one.
const LONG_WITHOUT_TOKEN: Duration = Duration::from_millis(100);

/// How long it may send tokens that complete no block: otherwise a steady trickle of tokens would hold all rows.
const LONG_WITHOUT_BLOCK: Duration = Duration::from_millis(500);

/// The wait of an encoding for tokens that complete a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UploadWait {
    since: Instant,
    last_token: Instant,
}

impl UploadWait {
    /// Returns the wait that goes on, or begins, after `tokens` have arrived.
    pub(crate) fn after(before: Option<Self>, tokens: usize, now: Instant) -> Self {
        let Self { since, last_token } = before.unwrap_or(Self { since: now, last_token: now });
        Self { since, last_token: if tokens == 0 { last_token } else { now } }
    }

    pub(crate) fn is_long(self, now: Instant) -> bool {
        now.saturating_duration_since(self.last_token) >= LONG_WITHOUT_TOKEN
            || now.saturating_duration_since(self.since) >= LONG_WITHOUT_BLOCK
    }
}

/// Opens an upload; returns both sides.
pub(crate) fn open(wake_signal: &Arc<WakeSignal>) -> (DocumentUpload, IncomingDocument) {
    let inbox = Arc::<Inbox>::default();
    let upload = DocumentUpload { inbox: Arc::clone(&inbox), wake_signal: Arc::clone(wake_signal) };
    (upload, IncomingDocument(inbox))
}

impl DocumentUpload {
    /// Appends tokens, each with its byte range in the text.
    pub fn push(&self, ids: &[u32], byte_ranges: &[ByteRange]) {
        let mut arrived = lock(&self.inbox.0);
        arrived.ids.extend_from_slice(ids);
        arrived.byte_ranges.extend_from_slice(byte_ranges);
        drop(arrived);
        self.wake_signal.raise();
    }

    /// Keeps the document, such as a part of a longer one, out of the document cache: no later request uses it.
    pub fn use_once(&self) {
        lock(&self.inbox.0).is_used_once = true;
    }

    /// Completes the document; `cut` if its text was longer.
    pub fn close(self, cut: bool) {
        self.end(Ok(()), cut);
    }

    /// Ends the request with `error`.
    pub fn fail(self, error: Error) {
        self.end(Err(error), false);
    }

    fn end(&self, end: Result<()>, cut: bool) {
        let mut arrived = lock(&self.inbox.0);
        if arrived.end.is_none() {
            arrived.end = Some(end);
            arrived.cut = cut;
        }
        drop(arrived);
        self.wake_signal.raise();
    }
}

impl Drop for DocumentUpload {
    fn drop(&mut self) {
        self.end(Err(Error::Cancelled), false);
    }
}

impl Inbox {
    pub(crate) fn complete(ids: Vec<u32>, byte_ranges: Vec<ByteRange>, cut: bool) -> Self {
        Self(Mutex::new(Arrived { ids, byte_ranges, cut, is_used_once: false, end: Some(Ok(())) }))
    }

    pub(crate) fn tokens(&self) -> usize {
        lock(&self.0).ids.len()
    }

    pub(crate) fn is_complete(&self) -> bool {
        matches!(lock(&self.0).end, Some(Ok(())))
    }

    /// Returns why the upload failed, if it did. Only the first call returns the upload's own error.
    pub(crate) fn failure(&self) -> Option<Error> {
        match &mut lock(&self.0).end {
            Some(Err(error)) => Some(std::mem::replace(error, Error::Cancelled)),
            _ => None,
        }
    }

    /// Returns copies of all tokens and of their byte ranges, and whether the text was cut.
    pub(crate) fn contents(&self) -> (Vec<u32>, Vec<ByteRange>, bool) {
        let arrived = lock(&self.0);
        (arrived.ids.clone(), arrived.byte_ranges.clone(), arrived.cut)
    }
}
