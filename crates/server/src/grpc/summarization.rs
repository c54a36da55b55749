//! The service `Summarization`: passes a document to the model's engine, which encodes it while it arrives, and answers with a
//! stream over the engine's events. A document that may be summarized in parts is received first.

use crate::{
    call::{Call, Reply},
    grpc::{
        codec::QUEUE_RETRY,
        convert::{self, count, nanoseconds},
        generation::{self, JobService, terms},
        request_parts::RequestParts,
        response::{GrpcStream, JobEvents, MessageEncoder, Output, ResponseStream, TaskResponse, is_last, reply},
    },
    middleware::limits::Reservation,
    registry::{Lease, RequestPermit, summarizes},
    tokenization::TokenizationWorkers,
};
use std::{collections::VecDeque, ops::Range, sync::Arc, time::Duration};
use tokio::{task::AbortHandle, time::sleep};
use tokio_util::either::Either;
use tonic::{Request, Streaming};
use weir_engine::{
    DocumentEvent, DocumentSource, DocumentUpload, Event, Events, Terms,
    beam::Hypothesis,
    clock,
    constraint::{CompiledConstraint, Constraint},
    extract::{self, Extract, ExtractLimits},
    options::FinishReason,
    summary::{
        ByteRange, DocumentProgress, EncodedDocument, FieldNames, KeptSpan, LongDocument, LongDocuments, MAX_BYTES,
        Summarize, SummaryResult, TextPart, spans,
    },
};
use weir_kernels::error::{Error, Result};
use weir_models::{
    contract::{Card, DocumentLimits, EncodingStage, KeptVector, PoolingChoice, covers_text, no_text},
    text::{LimitStatus, StreamDetokenizer, StreamTokenizer, TokenSpan},
    usage::{Timing, Usage},
};
use weir_proto::v1::{self, summarization_server, summarize_request::Part, summarize_response::Event as Payload};

/// The response of one job, or of the jobs of all parts.
pub(crate) type SummaryResponses = Either<ResponseStream<SummaryEncoder>, TaskResponse<v1::SummarizeResponse>>;

/// A checked request, and what its jobs need.
struct SummaryCall {
    parts: RequestParts<v1::SummarizeRequest>,
    permit: RequestPermit,
    engine: Lease,
    request: Summarize,
    /// True if the response has the positions of kept tokens.
    kept_tokens: bool,
    terms: Terms,
    call: Call,
}

impl JobService {
    /// Starts a `Summarize`.
    pub(crate) async fn start_summary(
        &self,
        mut parts: RequestParts<v1::SummarizeRequest>,
        call: Call,
    ) -> Result<SummaryResponses> {
        let permit = self.gate.enter()?;
        let first = parts.next().await?;
        let Some(Part::Options(options)) = first.and_then(|first| first.part) else {
            return Err(Error::bad_option("options", "none", "options in the first part of the request"));
        };
        let engine = self.engines.find_able("model", options.model.as_deref(), summarizes)?;
        let request = convert::summary_options(&options, engine.card())?;
        let long_documents = convert::long_documents(&options)?;
        let constraint = self.compile(&options, long_documents, &engine, &call).await?;
        let request = Summarize { constraint, ..request };
        let extract = convert::extract_limits(&options, limits(&engine)?)?;
        let terms = terms(&call, options.priority);
        let kept_tokens = options.kept_tokens();
        let summary = SummaryCall { parts, permit, engine, request, kept_tokens, terms, call };
        if extract.is_some() || long_documents == LongDocuments::Chunk {
            return self.start_parts(summary, long_documents, extract).map(Either::Right);
        }
        self.start_job(summary, options.document_id, long_documents == LongDocuments::Cut).await.map(Either::Left)
    }

    /// Compiles the constraint of a summary, if it has one.
    async fn compile(
        &self,
        options: &v1::SummarizeOptions,
        long_documents: LongDocuments,
        engine: &Lease,
        call: &Call,
    ) -> Result<Option<Arc<CompiledConstraint>>> {
        let Some(wire) = options.constraint.clone() else { return Ok(None) };
        convert::reject_end_when_complete(&wire, "options.constraint.end_when_complete")?;
        let named = |error: Error| error.named(Constraint::option_field);
        let constraint = convert::constraint(wire).map_err(named)?;
        if long_documents == LongDocuments::Chunk {
            let field = Constraint::option_field(constraint.field());
            return Err(Error::bad_option(field, "one", "no value with long_documents chunk"));
        }
        let engine = engine.clone();
        let tenant = call.tenant();
        let memory = Reservation::new(Arc::clone(&self.memory), Arc::clone(&tenant));
        let compile = move || generation::compile(&engine, &memory, &constraint);
        let compiled = self.compilers.run_on_worker(&tenant, compile).await.flatten();
        compiled.map(Some).map_err(named)
    }

    /// Starts one job for a document that is encoded while it arrives, or for the cached one of this id.
    async fn start_job(
        &self,
        summary: SummaryCall,
        document_id: Option<String>,
        cut: bool,
    ) -> Result<ResponseStream<SummaryEncoder>> {
        let SummaryCall { mut parts, permit, engine, request, kept_tokens, terms, call } = summary;
        let reserved = request.constraint.as_ref().map(|constraint| {
            // each beam has a matcher
            let beams = request.plan(engine.card(), limits(&engine)?, engine.limits().rows)?.rules.beam;
            let reserved = Reservation::new(Arc::clone(&self.memory), call.tenant());
            reserved.add(constraint.bytes().saturating_mul(beams)).map(|_| reserved)
        });
        let reserved = reserved.transpose()?;
        let (events, upload_task) = match document_id {
            Some(id) => {
                // Before the rest of the request is read, so that an unknown id is reported at once.
                let events = engine.summarize(&request, DocumentSource::Cached(id), terms)?;
                if parts.next().await?.is_some() {
                    return Err(Error::bad_option("chunk", "one", "no part after options with a document_id"));
                }
                (events, None)
            }
            None => {
                let (upload, incoming) = engine.upload();
                let events = engine.summarize(&request, DocumentSource::Uploading(incoming), terms)?;
                let receiver = DocumentReceiver::new(&engine, cut, upload, self.workers.clone(), call.tenant())?;
                (events, Some(receiver.spawn(parts)))
            }
        };
        let end = engine.document_limits().map_or(0, |limits| limits.marks.end);
        let mut encoder = SummaryEncoder::new(engine.card(), end, &call.id, kept_tokens, upload_task);
        encoder.text = encoder.text.ending_whole(request.constraint.is_some());
        Ok(ResponseStream::new(JobEvents::new(events, engine, permit, call.span, reserved), encoder))
    }

    /// Starts a task that receives the document and summarizes its parts, or extracts sentences from them. Options are checked before
    /// the document is read.
    fn start_parts(
        &self,
        summary: SummaryCall,
        long_documents: LongDocuments,
        extract: Option<ExtractLimits>,
    ) -> Result<TaskResponse<v1::SummarizeResponse>> {
        let SummaryCall { parts, permit, engine, request, kept_tokens, terms, call } = summary;
        request.plan(engine.card(), limits(&engine)?, engine.limits().rows)?;
        let stall = engine.limits().stall;
        let reserved = Reservation::new(Arc::clone(&self.memory), call.tenant());
        let workers = self.workers.clone();
        let permits = [permit, self.gate.enter()?];
        let deadline = call.deadline;
        let summary = PartedSummary { engine, request, kept_tokens, terms, workers, reserved, call };
        Ok(TaskResponse::spawn(permits, deadline, stall, move |output| async move {
            let text = receive(parts, &summary.reserved).await?;
            match extract {
                Some(extract) => summary.extract(text, long_documents, extract, &output).await,
                None => summary.run(text, &output).await,
            }
        }))
    }
}

/// Returns the limits of documents. Fails if the model does not summarize.
fn limits(engine: &Lease) -> Result<&DocumentLimits> {
    let card = engine.card();
    engine.document_limits().ok_or_else(|| Error::only_continues_text(&card.name, &card.shape))
}

/// Returns the error of a document that is longer than the model reads.
fn longer_than_read(limits: &DocumentLimits) -> Error {
    // The end symbol also counts as a token.
    let limit = limits.tokens.saturating_sub(1);
    Error::LongerThan { field: TEXT, limit, unit: "tokens", why: Some("unless long_documents is chunk or cut") }
}

#[tonic::async_trait]
impl summarization_server::Summarization for JobService {
    type SummarizeStream = GrpcStream<v1::SummarizeResponse>;

    async fn summarize(&self, request: Request<Streaming<v1::SummarizeRequest>>) -> Reply<Self::SummarizeStream> {
        let call = Call::of(&request);
        let response = self.start_summary(RequestParts::of(request), call.clone()).await;
        reply(&call, response, self.first_messages::<SummaryEncoder>()).await
    }
}

/// Receives all chunks of a document. Each is checked against [`MAX_BYTES`] and counted in `reserved` before it is
/// appended, which then releases the memory of its message.
pub(super) async fn receive(mut parts: RequestParts<v1::SummarizeRequest>, reserved: &Reservation) -> Result<String> {
    let mut text = String::new();
    while let Some(message) = parts.next().await? {
        append(&mut text, &chunk_text(message.part)?, reserved)?;
        parts.release();
    }
    Ok(text)
}

/// Appends a chunk. Fails if the text would be too long, or if no memory is left for it.
fn append(text: &mut String, chunk: &str, reserved: &Reservation) -> Result<()> {
    let needed = text.len().saturating_add(chunk.len());
    if needed > MAX_BYTES {
        let unit = "bytes of a document that is cut into parts or sentences";
        return Err(Error::LongerThan { field: TEXT, limit: MAX_BYTES, unit, why: None });
    }
    if needed > text.capacity() {
        let capacity = needed.max(text.capacity().saturating_mul(2)).min(MAX_BYTES);
        reserved.add_leaving_a_message(capacity.saturating_sub(text.capacity()))?;
        text.reserve_exact(capacity.saturating_sub(text.len()));
    }
    text.push_str(chunk);
    Ok(())
}

/// The field of a document's text in errors.
pub(super) const TEXT: &str = "chunk.text";

/// The field of a document's ids in errors.
const IDS: &str = "chunk.ids";

/// The task that receives a document. Dropping this aborts it.
pub(super) struct UploadTask(AbortHandle);

impl Drop for UploadTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A document on its way to the engine.
struct DocumentReceiver {
    /// Tokenize long chunks for this tenant.
    workers: TokenizationWorkers,
    tenant: Arc<str>,
    tokenizer: StreamTokenizer,
    upload: DocumentUpload,
    /// True if a document over the limit is cut instead of rejected.
    cut: bool,
    /// Limits of the document.
    limits: DocumentLimits,
    /// True if a token covers text of the document.
    covers_text: bool,
    /// Number of tokens that were given as ids.
    ids: usize,
    /// The last of them.
    last_id: u32,
}

impl DocumentReceiver {
    fn new(
        engine: &Lease,
        cut: bool,
        upload: DocumentUpload,
        workers: TokenizationWorkers,
        tenant: Arc<str>,
    ) -> Result<Self> {
        let limits = limits(engine)?.clone();
        let tokenizer = limits.tokenizer(Arc::clone(&engine.card().vocabulary), TEXT).with_truncation(cut);
        Ok(Self { workers, tenant, tokenizer, upload, cut, limits, covers_text: false, ids: 0, last_id: 0 })
    }

    /// Receives the document in a task of its own.
    pub(super) fn spawn(self, parts: RequestParts<v1::SummarizeRequest>) -> UploadTask {
        UploadTask(tokio::spawn(self.receive(parts)).abort_handle())
    }

    /// Receives the document to its end or to the limit, and tokenizes long chunks on workers. Text beyond the limit is not read.
    async fn receive(mut self, mut parts: RequestParts<v1::SummarizeRequest>) {
        let vocabulary = Arc::clone(self.tokenizer.vocabulary());
        loop {
            let part = match parts.next().await {
                Ok(message) => message.map(|message| message.part),
                Err(error) => return self.upload.fail(error),
            };
            let ended = part.is_none();
            let bytes = match &part {
                Some(Some(Part::Chunk(chunk))) => chunk.text.len(),
                Some(_) => 0,
                // A long document may have a long last word.
                None => usize::try_from(self.tokenizer.bytes()).unwrap_or(usize::MAX),
            };
            let workers = self.workers.clone();
            let tenant = Arc::clone(&self.tenant);
            let work = move || {
                let pushed = self.push(part);
                (self, pushed)
            };
            // An error means that the tokenizer panicked, which has ended the upload.
            let bytes = vocabulary.work(bytes);
            let Ok((receiver, pushed)) = workers.run(&tenant, bytes, work).await else { return };
            self = receiver;
            match pushed {
                Ok(LimitStatus::Within) if !ended => {}
                Ok(limit_status) => return self.close(limit_status == LimitStatus::Exceeded),
                Err(error) => return self.upload.fail(error),
            }
        }
    }

    /// Tokenizes the next part, or the rest at the end of the document (`None`).
    fn push(&mut self, part: Option<Option<Part>>) -> Result<LimitStatus> {
        let mut tokens = Vec::new();
        let limit_status = match part {
            Some(Some(Part::Chunk(chunk))) if !chunk.ids.is_empty() || self.ids > 0 => return self.push_ids(&chunk),
            None if self.ids > 0 => return Ok(LimitStatus::Within),
            Some(part) => self.tokenizer.push(&chunk_text(part)?, &mut tokens)?,
            None => self.tokenizer.finish(&mut tokens)?,
        };
        if limit_status == LimitStatus::Exceeded && !self.cut {
            return Err(longer_than_read(&self.limits));
        }
        self.covers_text |= covers_text(&tokens);
        let byte_range = |token: &TokenSpan| ByteRange { start: token.start, end: token.end };
        let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
        if !ids.is_empty() {
            self.upload.push(&ids, &tokens.iter().map(byte_range).collect::<Vec<_>>());
        }
        Ok(limit_status)
    }

    /// Takes tokens that are given as ids, the end-of-text id among them.
    fn push_ids(&mut self, chunk: &v1::DocumentChunk) -> Result<LimitStatus> {
        if !chunk.text.is_empty() || self.tokenizer.bytes() > 0 {
            return Err(Error::Exclusive { first: TEXT, second: IDS });
        }
        self.tokenizer.vocabulary().check_ids(IDS, &chunk.ids)?;
        self.ids += chunk.ids.len();
        let limit = self.limits.tokens;
        if self.ids > limit {
            return Err(Error::LongerThan { field: IDS, limit, unit: "tokens", why: None });
        }
        self.last_id = chunk.ids.last().copied().unwrap_or(self.last_id);
        self.upload.push(&chunk.ids, &[]);
        Ok(LimitStatus::Within)
    }

    fn close(self, cut: bool) {
        if self.ids > 0 {
            let end = self.limits.marks.end;
            if self.last_id != end {
                let found = format!("{} at index {}", self.last_id, self.ids - 1);
                return self.upload.fail(Error::bad_option(
                    IDS,
                    found,
                    format!("the end-of-text id, {end}, at the end"),
                ));
            }
            return self.upload.close(false);
        }
        if !self.covers_text {
            return self.upload.fail(no_text(TEXT));
        }
        if !self.tokenizer.is_ended(self.limits.marks.end) {
            let end = self.tokenizer.bytes();
            self.upload.push(&[self.limits.marks.end], &[ByteRange { start: end, end }]);
        }
        self.upload.close(cut);
    }
}

/// Returns the text of a part after the options. Fails for any other part.
pub(super) fn chunk_text(part: Option<Part>) -> Result<String> {
    match part {
        Some(Part::Chunk(chunk)) if chunk.ids.is_empty() => Ok(chunk.text),
        Some(Part::Chunk(_)) => {
            Err(Error::bad_option(IDS, "ids", "text, because the document may be summarized in parts"))
        }
        Some(Part::Options(_)) => {
            Err(Error::bad_option("options", "another message of options", "options in the first part only"))
        }
        None => Err(Error::bad_option("part", "nothing", "options or a chunk")),
    }
}

/// Names of the options in errors.
const NAMES: FieldNames = FieldNames { text: TEXT, long_documents: "options.long_documents" };

/// Bytes of a part's message outside of its summary.
const PART_BYTES: usize = size_of::<v1::SummaryPart>();

/// A call whose document may be longer than the model reads. Summarizes the parts one after another, then their summaries.
pub(super) struct PartedSummary {
    pub(super) engine: Lease,
    pub(super) request: Summarize,
    pub(super) kept_tokens: bool,
    pub(super) terms: Terms,
    pub(super) workers: TokenizationWorkers,
    /// The memory of the document's text, and of the summaries of its parts.
    pub(super) reserved: Reservation,
    pub(super) call: Call,
}

/// The end of a job.
struct JobOutput {
    selected: Vec<v1::Selected>,
    finished: v1::SummaryFinished,
    result: Box<SummaryResult>,
}

impl PartedSummary {
    /// Summarizes a document, and sends the events of the response. Fails as [`LongDocument`] does, and if a job fails.
    pub(super) async fn run(self, text: String, output: &Output<v1::SummarizeResponse>) -> Result<()> {
        let mut totals = PartTotals::new(clock::since(self.call.arrived));
        // Reserved bytes of the round's text, and of the next round's.
        let mut held = text.capacity();
        let mut next_held = 0;
        let mut document = LongDocument::new(text, NAMES, self.engine.limits().document_parts);
        let mut parts: Vec<v1::SummaryPart> = Vec::new();
        loop {
            let (next, part) = self.next_part(document).await?;
            document = next;
            let is_first = part.round == 1 && part.number == 1;
            let submitted = clock::since(self.call.arrived);
            let events = self.submit(&part, is_first, false).await?;
            let job = self.read(events, output, is_first, part.is_whole()).await?;
            totals.add(&job.finished, &job.result);
            if part.is_whole() {
                self.record_jobs(&totals);
                let finished = totals.finish(job.finished, parts, submitted, clock::since(self.call.arrived));
                return output.send(message(Payload::Finished(finished))).await;
            }
            let summarized = summarized_part(&part, &job.finished);
            let bytes = summarized.summary.len();
            // Once in the response, and once in the text of the next round.
            self.when_free(true, || self.reserved.add(2 * bytes + PART_BYTES)).await?;
            next_held += bytes;
            totals.add_part(&part);
            let sent = v1::SummaryPart { selected: job.selected, ..summarized.clone() };
            output.send(message(Payload::Part(sent))).await?;
            document.push_summary(&part, &summarized.summary)?;
            parts.push(summarized);
            if part.is_last {
                self.reserved.release(held);
                held = std::mem::take(&mut next_held);
            }
        }
    }

    /// Ranks the sentences of a document, those of all its parts together, and sends the best ones. Fails as [`LongDocument`] does, if a
    /// job fails, and if the document is too long and `long_documents` refuses it.
    async fn extract(
        self,
        text: String,
        long_documents: LongDocuments,
        extract_limits: ExtractLimits,
        output: &Output<v1::SummarizeResponse>,
    ) -> Result<()> {
        let mut totals = PartTotals::new(clock::since(self.call.arrived));
        let mut document = LongDocument::new(text, NAMES, self.engine.limits().document_parts);
        let mut extract = Extract::default();
        let mut held = 0;
        let mut parts: Vec<v1::SummaryPart> = Vec::new();
        loop {
            let (next, mut part) = self.next_part(document).await?;
            if !part.is_last && long_documents == LongDocuments::Refuse {
                return Err(longer_than_read(limits(&self.engine)?));
            }
            let is_cut = !part.is_last && long_documents == LongDocuments::Cut;
            let is_last = part.is_last || is_cut;
            let is_first = part.number == 1;
            let submitted = clock::since(self.call.arrived);
            let events = self.submit(&part, is_first, is_cut).await?;
            let JobOutput { selected, finished, result } =
                self.read(events, output, is_first, is_first && is_last).await?;
            totals.add(&finished, &result);
            let ranges = std::mem::take(&mut part.byte_ranges);
            let end = if part.is_last { part.end } else { part.next_start() };
            let bytes = part.start as usize..end as usize;
            (document, extract) = self.rank(next, extract, bytes, result.attention, ranges).await?;
            document.skip(&part);
            self.when_free(true, || self.reserved.add(extract.own_bytes() - held + PART_BYTES)).await?;
            held = extract.own_bytes();
            if !(is_first && is_last) {
                totals.add_part(&part);
                let read = summarized_part(&part, &finished);
                output.send(message(Payload::Part(v1::SummaryPart { selected, ..read.clone() }))).await?;
                parts.push(read);
            }
            if is_last {
                self.record_jobs(&totals);
                let (spans, tokens) = extract.choose(extract_limits)?;
                let text = extract::joined(document.text(), &spans);
                output.send(message(Payload::Piece(v1::SummaryPiece { text: text.clone() }))).await?;
                let mut finished = totals.finish(finished, parts, submitted, clock::since(self.call.arrived));
                finished.hypotheses = vec![v1::Hypothesis { text, ..Default::default() }];
                finished.sentences = spans.into_iter().map(span).collect();
                if let Some(usage) = &mut finished.usage {
                    usage.summary_tokens = tokens as u64;
                }
                return output.send(message(Payload::Finished(finished))).await;
            }
        }
    }

    /// Adds the sentences of a part of the text, `bytes`, to an extract, on a worker if the part is long.
    async fn rank(
        &self,
        document: LongDocument,
        mut extract: Extract,
        bytes: Range<usize>,
        attention: Vec<f32>,
        ranges: Vec<ByteRange>,
    ) -> Result<(LongDocument, Extract)> {
        let length = bytes.len();
        let work = move || {
            extract.add(document.text(), bytes, &attention, &ranges);
            (document, extract)
        };
        self.workers.run(&self.terms.tenant, length, work).await
    }

    /// Records the usage and timing of the jobs in the call's trace.
    fn record_jobs(&self, totals: &PartTotals) {
        if let Some(span) = &self.call.span {
            let (usage, timing) = totals.of_jobs();
            span.record_job(&self.engine.card().name, usage, timing);
        }
    }

    /// Tries until other calls leave a place or memory, up to the stall limit if `waits` is true.
    async fn when_free<T>(&self, waits: bool, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        let began = clock::now();
        loop {
            match attempt() {
                Err(Error::QueueFull { .. }) if waits && clock::since(began) < self.engine.limits().stall => {
                    sleep(QUEUE_RETRY).await;
                }
                done => return done,
            }
        }
    }

    /// Cuts the next part off the document, on a worker if much text is left.
    async fn next_part(&self, document: LongDocument) -> Result<(LongDocument, TextPart)> {
        let engine = self.engine.clone();
        let bytes = engine.card().vocabulary.work(document.bytes_left());
        let work = move || {
            let part = document.next_part(&engine.card().vocabulary, limits(&engine)?)?;
            Ok((document, part))
        };
        self.workers.run(&self.terms.tenant, bytes, work).await?
    }

    /// Submits a part; `is_cut` if nothing after it is read. If the queue is full, the first part fails, and a later one waits up to the
    /// stall limit.
    async fn submit(&self, part: &TextPart, is_first: bool, is_cut: bool) -> Result<Events> {
        // The call was admitted when it arrived.
        let terms = Terms { continues: true, ..self.terms.clone() };
        let submit = || {
            let (upload, incoming) = self.engine.upload();
            upload.push(&part.ids, &part.byte_ranges);
            if !(is_first && (part.is_last || is_cut)) {
                upload.use_once();
            }
            upload.close(is_cut);
            self.engine.summarize(&self.request, DocumentSource::Uploading(incoming), terms.clone())
        };
        self.when_free(!is_first, submit).await
    }

    /// Reads the events of a job to its end. Sends `started` for the first job, and all messages but the last if the part is the
    /// whole text of its round.
    async fn read(
        &self,
        mut events: Events,
        output: &Output<v1::SummarizeResponse>,
        is_first: bool,
        is_whole: bool,
    ) -> Result<JobOutput> {
        let lost = || Error::Internal("the engine dropped a job without a final event".into());
        let card = self.engine.card();
        let end = self.engine.document_limits().map_or(0, |limits| limits.marks.end);
        let mut encoder = SummaryEncoder::new(card, end, &self.call.id, self.kept_tokens, None);
        let mut selected = Vec::new();
        loop {
            let event = events.recv().await.ok_or_else(lost)??;
            let last = is_last(&event);
            let result = match &event {
                Event::Document(DocumentEvent::Summarized(result)) => Some(result.clone()),
                _ => None,
            };
            encoder.push(event);
            if last {
                encoder.close();
            }
            while let Some(response) = encoder.next() {
                match response.event {
                    Some(Payload::Finished(finished)) => {
                        let result = result.ok_or_else(lost)?;
                        return Ok(JobOutput { selected, finished, result });
                    }
                    Some(Payload::Started(started)) if is_first => {
                        output.send(message(Payload::Started(started))).await?
                    }
                    Some(Payload::Started(_)) | None => {}
                    Some(event) if is_whole => output.send(message(event)).await?,
                    Some(Payload::Selected(kept)) => selected.push(kept),
                    Some(_) => {}
                }
            }
            if last {
                return Err(lost());
            }
        }
    }
}

fn message(event: Payload) -> v1::SummarizeResponse {
    v1::SummarizeResponse { event: Some(event) }
}

/// Returns the message for a part that is summarized, without its spans.
fn summarized_part(part: &TextPart, finished: &v1::SummaryFinished) -> v1::SummaryPart {
    let usage = finished.usage.unwrap_or_default();
    v1::SummaryPart {
        round: count(part.round),
        part: count(part.number),
        byte_start: part.start,
        byte_end: part.end,
        round_bytes: part.round_bytes,
        document_tokens: usage.document_tokens,
        summary_tokens: usage.summary_tokens,
        summary: finished.hypotheses.first().map(|best| best.text.clone()).unwrap_or_default(),
        selected: Vec::new(),
    }
}

/// Usage and timing of a document that is summarized in parts: sums over the jobs of its parts and of the last round.
#[derive(Default)]
struct PartTotals {
    /// Time from the call's arrival to the end of its upload.
    upload: Duration,
    /// Bytes of the document up to the end of its last part, if it has parts.
    document_bytes: Option<u64>,
    timing: v1::SummaryTiming,
    /// Decoder steps.
    steps: u64,
    job_usage: Usage,
    job_timing: Timing,
}

impl PartTotals {
    /// Begins with a document whose upload took this long.
    fn new(upload: Duration) -> Self {
        Self { upload, ..Self::default() }
    }

    /// Adds a job.
    fn add(&mut self, finished: &v1::SummaryFinished, result: &SummaryResult) {
        let SummaryResult { usage, timing: job_timing, .. } = result;
        self.job_usage.prompt_chars += usage.prompt_chars;
        self.job_usage.cached_chars += usage.cached_chars;
        self.job_usage.generated_chars += usage.generated_chars;
        self.job_timing.queue_ns += job_timing.queue_ns;
        self.job_timing.prefill_ns += job_timing.prefill_ns;
        self.job_timing.decode_ns += job_timing.decode_ns;
        self.job_timing.total_ns += job_timing.total_ns;
        self.job_timing.steps += job_timing.steps;
        self.steps += (usage.generated_chars as u64).saturating_sub(1);
        let Some(timing) = &finished.timing else { return };
        self.timing.queue_ns += timing.queue_ns;
        self.timing.encode_rest_ns += timing.encode_rest_ns;
        self.timing.blocks_at_end += timing.blocks_at_end;
        self.timing.blocks += timing.blocks;
        self.timing.memory_ns += timing.memory_ns;
        self.timing.encode_ns += timing.encode_ns;
        self.timing.decode_ns += timing.decode_ns;
        self.timing.layers.resize(timing.layers.len().max(self.timing.layers.len()), v1::EncoderLayer::default());
        for (sum, layer) in self.timing.layers.iter_mut().zip(&timing.layers) {
            sum.length += layer.length;
            sum.ns += layer.ns;
        }
    }

    /// Records where a part of the first round ends.
    fn add_part(&mut self, part: &TextPart) {
        if part.round == 1 {
            self.document_bytes = Some(part.end);
        }
    }

    /// Returns the sums as the engine counts them.
    fn of_jobs(&self) -> (&Usage, &Timing) {
        (&self.job_usage, &self.job_timing)
    }

    /// Returns the last message of the call: the last job's, with the parts and the sums. The job was submitted `submitted`
    /// after the call's arrival, which is `total` ago.
    fn finish(
        self,
        last: v1::SummaryFinished,
        parts: Vec<v1::SummaryPart>,
        submitted: Duration,
        total: Duration,
    ) -> v1::SummaryFinished {
        let usage = last.usage.unwrap_or_default();
        let timing = last.timing.unwrap_or_default();
        v1::SummaryFinished {
            // An id of the last round's text is not one of the document.
            document_id: last.document_id.filter(|_| parts.is_empty()),
            usage: Some(v1::SummaryUsage {
                document_tokens: self.job_usage.prompt_chars as u64,
                cached_tokens: self.job_usage.cached_chars as u64,
                summary_tokens: self.job_usage.generated_chars as u64,
                document_bytes: self.document_bytes.or(usage.document_bytes),
                ..usage
            }),
            timing: Some(v1::SummaryTiming {
                upload_ns: nanoseconds(self.upload),
                time_to_first_token_ns: nanoseconds(submitted).saturating_add(timing.time_to_first_token_ns),
                decode_ns_per_token: self.timing.decode_ns.checked_div(self.steps),
                total_ns: nanoseconds(total),
                kept_share: timing.kept_share,
                cross_attention_bytes: timing.cross_attention_bytes,
                unpooled_cross_attention_bytes: timing.unpooled_cross_attention_bytes,
                ..self.timing
            }),
            parts,
            ..last
        }
    }
}

/// Bytes of text from which on a message is sent before more events are taken.
const PIECE_BYTES: usize = 4096;

/// Encodes the events of one summary.
pub(crate) struct SummaryEncoder {
    request_id: String,
    model: String,
    /// Id of the end mark.
    end: u32,
    text: StreamDetokenizer,
    kept_tokens: bool,
    /// The task that receives the document, if it is uploaded. Dropped when the summary is over.
    upload_task: Option<UploadTask>,
    started: Option<v1::SummaryStarted>,
    progress: Option<v1::Progress>,
    selected: VecDeque<v1::Selected>,
    /// Poolings whose selection is already queued.
    poolings_selected: usize,
    encoded: Option<Arc<EncodedDocument>>,
    piece: String,
    finished: Option<v1::SummaryFinished>,
    closed: bool,
}

impl SummaryEncoder {
    pub(super) fn new(
        card: &Card,
        end: u32,
        request_id: &str,
        kept_tokens: bool,
        upload_task: Option<UploadTask>,
    ) -> Self {
        Self {
            request_id: request_id.to_owned(),
            model: card.name.clone(),
            text: StreamDetokenizer::new(Arc::clone(&card.vocabulary)),
            end,
            kept_tokens,
            upload_task,
            started: None,
            progress: None,
            selected: VecDeque::new(),
            poolings_selected: 0,
            encoded: None,
            piece: String::new(),
            finished: None,
            closed: false,
        }
    }

    fn push_document(&mut self, event: DocumentEvent) {
        match event {
            DocumentEvent::Reading(reading) => self.progress = Some(progress(reading)),
            DocumentEvent::Chosen(update) => self.select(&update.choices, &update.byte_ranges, update.tokens),
            DocumentEvent::Encoded(encoded) => {
                let new = &encoded.choices[self.poolings_selected.min(encoded.choices.len())..];
                self.select(new, &encoded.byte_ranges, encoded.tokens);
                self.encoded = Some(encoded);
            }
            DocumentEvent::Summarized(summary) => self.finished = Some(self.finish(&summary)),
        }
    }

    /// Queues the selections of the next poolings. `ranges` holds the byte range of each of the document's `tokens`.
    fn select(&mut self, choices: &[PoolingChoice], ranges: &[ByteRange], tokens: usize) {
        self.poolings_selected += choices.len();
        self.selected.extend(choices.iter().map(|choice| selection(choice, ranges, tokens, self.kept_tokens)));
    }

    fn finish(&self, summary: &SummaryResult) -> v1::SummaryFinished {
        let SummaryResult { hypotheses, document_id, reason, usage, timing, waits, .. } = summary;
        let tokens = usage.generated_chars;
        let total_ns = timing.total_ns;
        tracing::debug!(?reason, document_tokens = usage.prompt_chars, summary_tokens = tokens, total_ns, "summarized");
        let reason = match reason {
            FinishReason::EndOfText => v1::SummaryFinishReason::EndOfText,
            _ => v1::SummaryFinishReason::MaxTokens,
        };
        let encoded = self.encoded.as_deref();
        let count = |field: fn(&EncodedDocument) -> usize| encoded.map_or(0, |encoded| field(encoded) as u64);
        let layers = encoded.into_iter().flat_map(|encoded| &encoded.layers);
        let steps = (tokens as u64).saturating_sub(1);
        v1::SummaryFinished {
            reason: reason.into(),
            document_id: document_id.clone(),
            hypotheses: hypotheses.iter().map(|hypothesis| self.hypothesis(hypothesis)).collect(),
            usage: Some(v1::SummaryUsage {
                document_tokens: usage.prompt_chars as u64,
                cached_tokens: usage.cached_chars as u64,
                cut: encoded.is_some_and(|encoded| encoded.cut),
                summary_tokens: tokens as u64,
                vectors: count(|encoded| encoded.vectors),
                cross_attention_bytes: count(|encoded| encoded.bytes),
                unpooled_cross_attention_bytes: count(|encoded| encoded.unpooled_bytes),
                document_bytes: encoded.and_then(EncodedDocument::read_bytes),
            }),
            timing: Some(v1::SummaryTiming {
                queue_ns: timing.queue_ns,
                upload_ns: waits.arrival_ns,
                encode_rest_ns: waits.rest_ns,
                blocks_at_end: waits.blocks_at_end as u64,
                blocks: waits.blocks as u64,
                layers: layers.map(|layer| v1::EncoderLayer { length: layer.length as u64, ns: layer.ns }).collect(),
                memory_ns: encoded.map_or(0, |encoded| encoded.memory_ns),
                time_to_first_token_ns: timing.time_to_first_char_ns,
                decode_ns: timing.decode_ns,
                decode_ns_per_token: timing.decode_ns.checked_div(steps),
                total_ns,
                encode_ns: encoded.map_or(0, EncodedDocument::encode_ns),
                kept_share: encoded.and_then(EncodedDocument::kept_share),
                cross_attention_bytes: count(|encoded| encoded.bytes),
                unpooled_cross_attention_bytes: count(|encoded| encoded.unpooled_bytes),
            }),
            parts: Vec::new(),
            sentences: Vec::new(),
        }
    }

    fn hypothesis(&self, hypothesis: &Hypothesis) -> v1::Hypothesis {
        let Hypothesis { tokens, logprobs, score } = hypothesis;
        let text = self.text.decode(hypothesis.text(self.end));
        v1::Hypothesis { text, ids: tokens.clone(), score: *score, logprobs: logprobs.clone() }
    }
}

/// Returns the message for the spans that one pooling keeps, with the positions of its tokens if `kept_tokens` is true.
fn selection(choice: &PoolingChoice, ranges: &[ByteRange], tokens: usize, kept_tokens: bool) -> v1::Selected {
    let (spans, tokens) = spans(choice, ranges, tokens);
    let token = |kept: &KeptVector| v1::KeptToken { position: kept.token as u64, score: kept.score };
    let kept = choice.kept.iter().filter(|_| kept_tokens).map(token).collect();
    let spans = spans.into_iter().map(span).collect();
    v1::Selected { layer: count(choice.layer), spans, tokens: tokens as u64, kept }
}

fn span(KeptSpan { start, end, score }: KeptSpan) -> v1::Span {
    v1::Span { byte_start: start, byte_end: end, score }
}

fn progress(reading: DocumentProgress) -> v1::Progress {
    let DocumentProgress { stage, tokens, read_bytes, cut, blocks, total } = reading;
    let (stage, layer) = match stage {
        EncodingStage::Waiting => ("waiting", None),
        EncodingStage::Layer(layer) => ("layer", Some(layer)),
        EncodingStage::Memory => ("memory", None),
        EncodingStage::Done => ("done", None),
    };
    v1::Progress {
        stage: stage.to_owned(),
        layer: layer.map(count),
        tokens_read: tokens as u64,
        blocks_encoded: blocks as u64,
        blocks_total: total.map(|total| total as u64),
        document_bytes: read_bytes,
        cut,
    }
}

impl MessageEncoder for SummaryEncoder {
    type Message = v1::SummarizeResponse;

    const LEADING: usize = 1;

    fn push(&mut self, event: Event) {
        match event {
            Event::Started { cached_chars } => {
                self.started = Some(v1::SummaryStarted {
                    request_id: std::mem::take(&mut self.request_id),
                    model: std::mem::take(&mut self.model),
                    cached_tokens: cached_chars as u64,
                });
            }
            Event::Characters(tokens) => {
                tokens.iter().for_each(|token| self.piece.push_str(self.text.push(token.symbol)));
            }
            Event::Document(event) => self.push_document(event),
            Event::Finished { .. } | Event::Coding(_) | Event::Coded(_) | Event::Next(_) => {}
        }
    }

    fn close(&mut self) {
        self.upload_task = None;
        self.piece.push_str(self.text.finish());
        self.closed = true;
    }

    fn next(&mut self) -> Option<v1::SummarizeResponse> {
        let payload = if let Some(started) = self.started.take() {
            Payload::Started(started)
        } else if let Some(progress) = self.progress.take() {
            Payload::Progress(progress)
        } else if let Some(selected) = self.selected.pop_front() {
            Payload::Selected(selected)
        } else if !self.piece.is_empty() {
            Payload::Piece(v1::SummaryPiece { text: std::mem::take(&mut self.piece) })
        } else {
            Payload::Finished(self.finished.take_if(|_| self.closed)?)
        };
        Some(v1::SummarizeResponse { event: Some(payload) })
    }

    fn is_full(&self) -> bool {
        self.piece.len() >= PIECE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::TransportConfig, middleware::limits::BodyMemory};

    fn reserved(request_memory: usize) -> Reservation {
        let config = TransportConfig { request_memory, message_bytes: 1 << 10, ..TransportConfig::default() };
        Reservation::new(BodyMemory::new(&config), "a".into())
    }

    #[test]
    fn the_text_is_counted_before_it_is_kept() {
        let reserved = reserved(16 << 10);
        let mut text = String::new();
        let chunk = "a".repeat(1 << 10);
        for count in 1..=4_usize {
            append(&mut text, &chunk, &reserved).unwrap();
            assert_eq!((text.len(), text.capacity()), (count << 10, (count << 10).next_power_of_two()));
        }
        // A tenant has half of the memory, and the rest of it must hold the next message.
        let error = append(&mut text, &chunk, &reserved).unwrap_err();
        assert!(matches!(error, Error::QueueFull { .. } | Error::Oversized { .. }), "{error}");
        assert_eq!(text.len(), 4 << 10);
    }

    #[test]
    fn a_text_that_is_too_long_is_refused_before_memory_is_taken() {
        let reserved = reserved(MAX_BYTES * 4);
        let mut text = String::new();
        append(&mut text, &"a".repeat(MAX_BYTES - 1), &reserved).unwrap();
        append(&mut text, "b", &reserved).unwrap();
        let error = append(&mut text, "c", &reserved).unwrap_err().to_string();
        assert!(error.contains(&format!("at most {MAX_BYTES} bytes")), "{error}");
        assert!(text.capacity() <= MAX_BYTES);
    }

    #[test]
    fn jobs_are_added() {
        let job = |tokens: usize, generated: usize| {
            let layers = vec![v1::EncoderLayer { length: tokens as u64, ns: 5 }; 2];
            let timing = v1::SummaryTiming {
                queue_ns: 1,
                decode_ns: 12,
                time_to_first_token_ns: 7,
                encode_ns: 11,
                kept_share: Some(tokens as f64 / 8.0),
                cross_attention_bytes: 13,
                unpooled_cross_attention_bytes: 17,
                layers,
                ..Default::default()
            };
            let usage = v1::SummaryUsage { document_tokens: tokens as u64, vectors: 3, ..Default::default() };
            let finished = v1::SummaryFinished {
                usage: Some(usage),
                timing: Some(timing),
                document_id: Some("id".into()),
                ..Default::default()
            };
            let result = SummaryResult {
                hypotheses: Vec::new(),
                document_id: None,
                reason: FinishReason::EndOfText,
                usage: Usage { prompt_chars: tokens, generated_chars: generated, ..Usage::default() },
                timing: Timing { queue_ns: 1, total_ns: 9, ..Timing::default() },
                waits: Default::default(),
                attention: Vec::new(),
            };
            (finished, result)
        };
        let mut totals = PartTotals::new(Duration::from_nanos(50));
        for (tokens, generated) in [(10, 3), (4, 2)] {
            let (finished, result) = job(tokens, generated);
            totals.add(&finished, &result);
        }
        totals.document_bytes = Some(9);
        assert_eq!((totals.of_jobs().0.prompt_chars, totals.of_jobs().1.total_ns), (14, 18));
        let parts = vec![v1::SummaryPart::default()];
        let last = totals.finish(job(4, 2).0, parts, Duration::from_nanos(100), Duration::from_nanos(200));
        let usage = last.usage.unwrap();
        assert_eq!((usage.document_tokens, usage.summary_tokens, usage.vectors), (14, 5, 3));
        assert_eq!((usage.document_bytes, last.document_id), (Some(9), None));
        let timing = last.timing.unwrap();
        assert_eq!((timing.queue_ns, timing.upload_ns, timing.decode_ns, timing.total_ns), (2, 50, 24, 200));
        assert_eq!((timing.time_to_first_token_ns, timing.decode_ns_per_token), (107, Some(8)));
        assert_eq!((timing.encode_ns, timing.kept_share), (22, Some(0.5)));
        assert_eq!((timing.cross_attention_bytes, timing.unpooled_cross_attention_bytes), (13, 17));
        assert_eq!(timing.layers, [v1::EncoderLayer { length: 14, ns: 10 }; 2]);
    }
}
