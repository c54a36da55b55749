//! The service `Editing`: passes the messages of a stream to the session of its document, and its requests' results back.
//!
//! [`EditSession`] decides what a session may do; this file translates, and limits sessions, memory, rates and idle time.

use crate::{
    call::{Call, Reply},
    grpc::{
        convert::{self, count, nanoseconds, size},
        generation::{JobService, terms},
        request_parts::RequestParts,
        response::{GrpcStream, Output, TaskResponse, character, reply},
    },
    metrics::EditEvent,
    middleware::limits::{BodyMemory, CallPlace, RequestMemory, Reservation},
    registry::{Lease, continues_text},
    status::{CODE_NAMES, rule_and_field, status},
    tokenization::{INLINE_BYTES, TokenizationWorkers},
};
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    task::{AbortHandle, JoinError, JoinSet},
    time::sleep_until,
};
use tokio_stream::StreamExt;
use tonic::{Request, Streaming};
use tonic_types::StatusExt;
use weir_engine::{
    clock,
    completion::{Completion, CompletionEnd, CompletionRules},
    constraint::Constraint,
    edited_text::{EditedText, Splice},
    editing::{Completions, EditSession, KEPT_DISTRIBUTION_BYTES, Scores, received},
};
use weir_kernels::error::{Error, Result};
use weir_models::text::{StreamDetokenizer, Vocabulary};
use weir_proto::v1::{self, document_closed::Reason, edit_request::Action, edit_response::Event, editing_server};

/// A message of a session. A message of another protocol that cannot be read is the answer to it: it keeps its place, and counts as
/// a splice.
pub(crate) type EditMessage = Result<v1::EditRequest, v1::EditResponse>;

/// Splices may come this much ahead of their rate.
const BURST: Duration = Duration::from_secs(1);

/// A document that was opened.
struct Document {
    engine: Lease,
    session: EditSession,
    /// Bytes that are reserved for what the session keeps for its next searches: distributions, then symbols.
    kept_bytes: usize,
}

impl Document {
    /// Counts the session until the document is dropped.
    fn new(engine: Lease, session: EditSession) -> Self {
        engine.meter().edit_session_opened();
        Self { engine, session, kept_bytes: 0 }
    }

    /// Lets the session keep distributions and the symbols before `cursor` for its next searches, or distributions alone, as far as
    /// that leaves memory for a message.
    fn keep_for_searches(&mut self, cursor: usize, reserved: &Reservation) {
        for symbol_bytes in [self.session.symbol_bytes(cursor), 0] {
            let bytes = KEPT_DISTRIBUTION_BYTES.saturating_add(symbol_bytes);
            if bytes > self.kept_bytes && reserved.add_leaving_a_message(bytes - self.kept_bytes).is_ok() {
                self.kept_bytes = bytes;
                self.session.keep_distributions(KEPT_DISTRIBUTION_BYTES);
                self.session.keep_symbols(symbol_bytes);
            }
        }
    }

    /// Drops what the session keeps for its next searches, and releases its memory. Returns false if it keeps nothing.
    fn drop_kept(&mut self, reserved: &Reservation) -> bool {
        self.session.keep_distributions(0);
        self.session.keep_symbols(0);
        reserved.release(self.kept_bytes);
        std::mem::take(&mut self.kept_bytes) > 0
    }
}

impl Drop for Document {
    fn drop(&mut self) {
        self.engine.meter().edit_session_closed();
    }
}

/// One call of `Edit`.
struct Editor {
    service: JobService,
    call: Call,
    parts: RequestParts<EditMessage>,
    /// The memory of the text, and of what the session keeps for its next searches.
    reserved: Reservation,
    document: Option<Document>,
    running: RunningRequests,
    /// The time at which the splices so far would have come at the highest rate.
    splices_until: Instant,
    _place: CallPlace,
}

/// A request that begins, with the text as it is now.
struct Begun {
    session: EditSession,
    engine: Lease,
    work: RequestWork,
    began: Instant,
}

/// The next step after a message.
enum Next {
    Read,
    Close,
}

impl Editor {
    async fn run(mut self, output: Output<v1::EditResponse>) -> Result<()> {
        let idle = self.service.editing.config.idle;
        let closing = self.service.gate.closing();
        tokio::pin!(closing);
        let mut changes = self.service.engines.changes();
        let mut active_at = clock::now();
        let mut is_complete = false;
        while !(is_complete && self.running.is_empty()) {
            let read_at = self.splices_until.checked_sub(BURST).unwrap_or(active_at);
            let idle_at = active_at.max(read_at) + idle;
            let is_idle = self.running.is_empty();
            tokio::select! {
                biased;
                () = &mut closing => return output.send(closed(Reason::Draining)).await,
                Ok(()) = changes.changed() => if !self.is_served() {
                    return output.send(closed(Reason::ModelChanged)).await;
                },
                finished = self.running.next() => {
                    active_at = clock::now();
                    if let Some((id, result)) = finished {
                        let answer = result.map(|event| v1::EditResponse { event: Some(event) });
                        output.send(answer.unwrap_or_else(|error| failed(Some(id), &error))).await?;
                    }
                }
                message = async {
                    sleep_until(read_at.into()).await;
                    self.parts.next().await
                }, if !is_complete => {
                    active_at = clock::now();
                    let Some(message) = message? else {
                        is_complete = true;
                        continue;
                    };
                    if let Next::Close = self.take(message, &output).await? {
                        return output.send(closed(Reason::Client)).await;
                    }
                }
                () = sleep_until(idle_at.into()), if is_idle => return output.send(closed(Reason::Idle)).await,
            }
        }
        Ok(())
    }

    /// Returns true unless the document's model was loaded again or unloaded: the session would keep it in memory.
    fn is_served(&self) -> bool {
        let Some(Document { engine, .. }) = &self.document else { return true };
        let serving = self.service.engines.find("model", Some(&engine.card().name));
        serving.is_ok_and(|serving| serving.generation() == engine.generation())
    }

    /// Takes a message. Fails only if the client does not read the answer.
    async fn take(&mut self, message: EditMessage, output: &Output<v1::EditResponse>) -> Result<Next> {
        let id = message.as_ref().ok().and_then(request_id);
        let done = match message.map(|request| request.action) {
            Ok(Some(Action::Open(open))) => self.open(open).await,
            Ok(Some(Action::Splice(splice))) => self.splice(splice).await,
            Ok(Some(Action::Complete(complete))) => self.complete(&complete).map(|()| Vec::new()),
            Ok(Some(Action::Score(score))) => self.score(&score).map(|()| Vec::new()),
            Ok(Some(Action::Close(_))) => return Ok(Next::Close),
            Ok(None) => Err(Error::bad_option("action", "nothing", "open, splice, complete, score or close")),
            Err(refusal) => {
                self.count_splices(1);
                Ok(vec![refusal])
            }
        };
        self.parts.release();
        for response in done.unwrap_or_else(|error| vec![failed(id, &error)]) {
            output.send(response).await?;
        }
        Ok(Next::Read)
    }

    async fn open(&mut self, open: v1::OpenDocument) -> Result<Vec<v1::EditResponse>> {
        if self.document.is_some() {
            return Err(Error::bad_option("open", "a second one", "one open in a session"));
        }
        let v1::OpenDocument { model, text, revision, priority } = open;
        let bytes = text.len();
        let engine = self.service.engines.find_able("model", model.as_deref(), continues_text)?;
        let limit = self.service.editing.config.text_bytes;
        let session = EditSession::open((*engine).clone(), terms(&self.call, priority), text, revision, limit)?;
        let counted = session.clone();
        let count = move || Ok(counted.normalized_chars(counted.text().text()));
        let normalized = self.work().prepare(bytes, count).await?;
        self.reserved.add(bytes)?;
        self.document = Some(Document::new(engine, session));
        Ok(vec![applied(revision, bytes, normalized)])
    }

    async fn splice(&mut self, splice: v1::SpliceDocument) -> Result<Vec<v1::EditResponse>> {
        self.count_splices(splice.splices.len());
        let work = self.work();
        let Some(document) = &mut self.document else { return Err(not_open()) };
        let revision = splice.revision;
        let before = document.session.text().text().len();
        let splices = self::splices(splice)?;
        document.session.text().check(revision, &splices)?;
        let added: usize = splices.iter().map(|splice| splice.text.len()).sum();
        // Reserved before the text grows.
        if self.reserved.add(added).is_err() {
            document.drop_kept(&self.reserved);
            self.reserved.add(added)?;
        }
        let mut held = work.hold_copy(&document.session, &splices);
        if held.is_err() && document.drop_kept(&self.reserved) {
            held = work.hold_copy(&document.session, &splices);
        }
        let held = held.inspect_err(|_| self.reserved.release(added))?;
        // Cancelled before a long splice is applied: that takes time, and the requests' text is outdated.
        let cancelled = self.running.cancel_all();
        let meter = document.engine.meter();
        cancelled.iter().for_each(|_| meter.edit(EditEvent::Stale));
        let applied_now = work.splice(&mut document.session, revision, splices, held).await;
        let after = document.session.text().text().len();
        self.reserved.release((before + added).saturating_sub(after));
        let answer = match applied_now {
            Ok(normalized) => {
                meter.edit(EditEvent::Splice);
                applied(revision, after, normalized)
            }
            Err(error) => failed(None, &error),
        };
        Ok([answer].into_iter().chain(cancelled.into_iter().map(stale)).collect())
    }

    /// Reserves the memory of a request until the result is dropped. If memory is short, drops what the session keeps for its next
    /// searches and tries again.
    fn reserve(&mut self, work: &RequestWork, bytes: usize) -> Result<Reservation> {
        match work.reserve(bytes) {
            Err(Error::QueueFull { .. })
                if self.document.as_mut().is_some_and(|document| document.drop_kept(&self.reserved)) =>
            {
                work.reserve(bytes)
            }
            reserved => reserved,
        }
    }

    fn complete(&mut self, complete: &v1::CompleteDocument) -> Result<()> {
        let id = complete.id;
        let Begun { session, engine, mut work, began } = self.begin("complete.id", id)?;
        let cursor = offset("complete.cursor_byte", complete.cursor_byte)?;
        session.text().check_offset("complete.cursor_byte", cursor)?;
        let rules = self::rules(complete)?;
        let constraint = constraint(complete)?;
        let is_constrained = constraint.is_some();
        // a constraint takes long, however short it is
        let least_work = if is_constrained { INLINE_BYTES } else { 0 };
        if is_constrained {
            work.workers = self.service.compilers.clone();
        }
        let form_bytes = if is_constrained { EditSession::constraint_bytes() } else { 0 };
        let held = self.reserve(&work, session.completion_bytes(cursor).saturating_add(form_bytes))?;
        // after the request's own memory: it needs none of this
        if let Some(document) = &mut self.document {
            document.keep_for_searches(cursor, &self.reserved);
        }
        self.running.spawn(id, async move {
            let _held = held;
            let revision = session.text().revision();
            let pending = session.into_completion(cursor, rules).constrained(constraint);
            let bytes = pending.unencoded_bytes().max(least_work);
            let memory = Reservation::new(Arc::clone(&work.memory), Arc::clone(&work.tenant));
            let begin = move || pending.begin(|bytes| Ok(Box::new(memory.for_work(bytes)?)));
            let begun = work.prepare(bytes, begin).await;
            let mut task = begun.map_err(|error| error.named(constraint_field))?;
            let mut distributions = Vec::new();
            loop {
                let submit = move || {
                    task.take(distributions)?;
                    task.submit_next().map(|waiting| (task, waiting))
                };
                // if the model has no windows, the whole text is compared with those in the cache
                let (next, waiting) = work.prepare((cursor / COPIED_BYTES).max(least_work), submit).await?;
                task = next;
                if waiting.is_empty() {
                    break;
                }
                distributions = received(waiting).await?;
            }
            engine.meter().edit(EditEvent::Completion);
            let answer = completions(id, revision, task.finish(), &engine.card().vocabulary, is_constrained);
            Ok(Event::Completions(v1::DocumentCompletions { duration_ns: nanoseconds(clock::since(began)), ..answer }))
        });
        Ok(())
    }

    fn score(&mut self, score: &v1::ScoreDocument) -> Result<()> {
        let id = score.id;
        let Begun { session, engine, work, began } = self.begin("score.id", id)?;
        let start = offset("score.start_byte", score.start_byte)?;
        let end = offset("score.end_byte", score.end_byte)?;
        let range = start..end;
        session.check_scored(&range)?;
        let held = self.reserve(&work, session.score_bytes(&range))?;
        self.running.spawn(id, async move {
            let _held = held;
            let revision = session.text().revision();
            let task = work.prepare(end, move || session.score(range)).await?;
            let scored = task.run().await?;
            engine.meter().edit(EditEvent::Score);
            let answer = scores(id, revision, scored, &engine.card().vocabulary);
            Ok(Event::Scores(v1::DocumentScores { duration_ns: nanoseconds(clock::since(began)), ..answer }))
        });
        Ok(())
    }

    /// Begins a request, if the document is open and another request may begin.
    fn begin(&self, field: &'static str, id: u64) -> Result<Begun> {
        let Document { session, engine, .. } = self.document.as_ref().ok_or_else(not_open)?;
        self.running.check(field, id)?;
        Ok(Begun { session: session.clone(), engine: engine.clone(), work: self.work(), began: clock::now() })
    }

    /// Returns the parts of the server that requests use.
    fn work(&self) -> RequestWork {
        let JobService { workers, memory, .. } = &self.service;
        RequestWork { workers: workers.clone(), memory: Arc::clone(memory), tenant: self.call.tenant() }
    }

    /// Moves the time of the next message by the splices of one.
    fn count_splices(&mut self, count: usize) {
        let rate = u32::try_from(self.service.editing.config.splice_rate).unwrap_or(u32::MAX).max(1);
        let count = u32::try_from(count.clamp(1, MAX_SPLICES)).unwrap_or(u32::MAX);
        self.splices_until = self.splices_until.max(clock::now()) + Duration::from_secs(1) * count / rate;
    }
}

fn not_open() -> Error {
    Error::bad_option("action", "a message before open", "open first")
}

impl JobService {
    /// Starts an `Edit`.
    pub(crate) fn start_editing(
        &self,
        parts: RequestParts<EditMessage>,
        call: &Call,
    ) -> Result<TaskResponse<v1::EditResponse>> {
        let place = self.editing.sessions.begin(call.tenant())?;
        let permits = [self.gate.enter()?, self.gate.enter()?];
        let editor = Editor {
            service: self.clone(),
            call: call.clone(),
            parts,
            reserved: Reservation::new(Arc::clone(&self.memory), call.tenant()),
            document: None,
            running: RunningRequests::default(),
            splices_until: clock::now(),
            _place: place,
        };
        let stall = self.engines.stall();
        Ok(TaskResponse::spawn(permits, call.deadline, stall, move |output| editor.run(output)))
    }
}

#[tonic::async_trait]
impl editing_server::Editing for JobService {
    type EditStream = GrpcStream<v1::EditResponse>;

    async fn edit(&self, mut request: Request<Streaming<v1::EditRequest>>) -> Reply<Self::EditStream> {
        let call = Call::of(&request);
        let memory = RequestMemory::take(&mut request);
        let parts = RequestParts::new(request.into_inner().map(|message| message.map(Ok)), memory);
        reply(&call, self.start_editing(parts, &call), 0).await
    }
}

/// Default of `complete.max_chars`.
const MAX_CHARS: u32 = 32;

/// Maximum splices of a message.
pub(crate) const MAX_SPLICES: usize = 256;

/// Returns the id of a request for completions or scores.
pub(crate) fn request_id(message: &v1::EditRequest) -> Option<u64> {
    match &message.action {
        Some(Action::Complete(complete)) => Some(complete.id),
        Some(Action::Score(score)) => Some(score.id),
        _ => None,
    }
}

/// Returns the splices of a message. Fails if they are too many, and for an offset that no text has.
pub(crate) fn splices(message: v1::SpliceDocument) -> Result<Vec<Splice>> {
    let splice = |(index, v1::TextSplice { start_byte, end_byte, text })| {
        let in_item = |error| Error::InItem { list: "splice.splices", index, error: Box::new(error) };
        let start = offset("start_byte", start_byte).map_err(in_item)?;
        let end = offset("end_byte", end_byte).map_err(in_item)?;
        Ok(Splice { range: start..end, text })
    };
    check_splice_count(message.splices.len())?;
    message.splices.into_iter().enumerate().map(splice).collect()
}

/// Fails if a message has more than [`MAX_SPLICES`].
pub(crate) fn check_splice_count(count: usize) -> Result<()> {
    if count > MAX_SPLICES {
        let bound = format!("at most {MAX_SPLICES} in a message");
        return Err(Error::bad_option("splice.splices", count.to_string(), bound));
    }
    Ok(())
}

/// Narrows an offset. Fails if it is larger than any text.
pub(crate) fn offset(field: &'static str, offset: u64) -> Result<usize> {
    let too_large = |_| Error::bad_option(field, offset.to_string(), "an offset in the text");
    usize::try_from(offset).map_err(too_large)
}

/// Returns the rules of a search. Fails for an unknown end.
pub(crate) fn rules(message: &v1::CompleteDocument) -> Result<CompletionRules> {
    let number = message.until.unwrap_or_default();
    let unknown = |_| Error::bad_option("complete.until", number.to_string(), "a value of Until");
    let end = match v1::Until::try_from(number).map_err(unknown)? {
        v1::Until::Unspecified | v1::Until::Word => CompletionEnd::Word,
        v1::Until::Line => CompletionEnd::Line,
        v1::Until::Segment => CompletionEnd::Segment,
        v1::Until::MaxChars => CompletionEnd::Length,
    };
    let max_chars = size(message.max_chars.unwrap_or(MAX_CHARS));
    Ok(CompletionRules { count: size(message.count.unwrap_or(1)), end, max_chars })
}

/// Returns the form of a search's completions. Fails for one without a form, and for one next to an end.
pub(crate) fn constraint(message: &v1::CompleteDocument) -> Result<Option<Constraint>> {
    let Some(wire) = message.constraint.clone() else { return Ok(None) };
    if message.until.is_some() {
        return Err(Error::Exclusive { first: "complete.until", second: "complete.constraint" });
    }
    convert::reject_end_when_complete(&wire, "complete.constraint.end_when_complete")?;
    convert::constraint(wire).map(Some).map_err(|error| error.named(constraint_field))
}

/// Returns the field of a `complete` that a field of a constraint is.
fn constraint_field(field: &'static str) -> &'static str {
    match field {
        "constraint" => "complete.constraint",
        "constraint.regex" => "complete.constraint.regex",
        "constraint.choice" => "complete.constraint.choice",
        "constraint.json_schema" => "complete.constraint.json_schema",
        "constraint.json_object" => "complete.constraint.json_object",
        "constraint.grammar" => "complete.constraint.grammar",
        other => other,
    }
}

fn response(event: Event) -> v1::EditResponse {
    v1::EditResponse { event: Some(event) }
}

pub(super) fn applied(revision: u64, bytes: usize, normalized: usize) -> v1::EditResponse {
    let text_bytes = bytes as u64;
    response(Event::Applied(v1::DocumentApplied { revision, text_bytes, normalized_chars: normalized as u64 }))
}

pub(super) fn stale(id: u64) -> v1::EditResponse {
    response(Event::Stale(v1::StaleRequest { id }))
}

pub(super) fn closed(reason: Reason) -> v1::EditResponse {
    response(Event::Closed(v1::DocumentClosed { reason: reason.into() }))
}

/// Returns the answer to a `complete`, without its duration. If the completions must have a form, a code point that is unfinished at the
/// end of one is left out.
pub(super) fn completions(
    id: u64,
    revision: u64,
    found: Completions,
    vocabulary: &Arc<Vocabulary>,
    is_constrained: bool,
) -> v1::DocumentCompletions {
    let text = StreamDetokenizer::new(Arc::clone(vocabulary)).ending_whole(is_constrained);
    let item = |Completion { symbols, logprob, boundaries }: Completion| v1::CompletionItem {
        text: text.decode(&symbols),
        logprob,
        chars: count(symbols.len()),
        boundaries: boundaries.into_iter().map(count).collect(),
    };
    v1::DocumentCompletions {
        id,
        revision,
        items: found.items.into_iter().map(item).collect(),
        cut: found.is_cut,
        reused_chars: found.reused as u64,
        recomputed_chars: found.recomputed as u64,
        distributions: count(found.distributions),
        reused_distributions: count(found.reused_distributions),
        duration_ns: 0,
    }
}

/// Returns the answer to a `score`, without its duration.
pub(super) fn scores(id: u64, revision: u64, scored: Scores, vocabulary: &Vocabulary) -> v1::DocumentScores {
    let Scores { characters, start_bytes, recomputed } = scored;
    v1::DocumentScores {
        id,
        revision,
        characters: characters.into_iter().map(|symbol| character(symbol, true, vocabulary)).collect(),
        recomputed_chars: recomputed as u64,
        duration_ns: 0,
        start_bytes: start_bytes.into_iter().map(|start| start as u64).collect(),
    }
}

/// Returns the answer to a message that was refused, or to a request that failed.
pub(crate) fn failed(id: Option<u64>, error: &Error) -> v1::EditResponse {
    let status = status(error, "");
    let details = status.get_error_details();
    let (rule, field) = rule_and_field(&details);
    response(Event::Failed(v1::EditFailure {
        id,
        code: CODE_NAMES[status.code() as usize].to_owned(),
        reason: rule.to_owned(),
        message: status.message().to_owned(),
        field: field.map(str::to_owned),
    }))
}

/// Maximum requests of a session in progress.
const MAX_REQUESTS: usize = 16;

/// Bytes that are copied or compared in the time that one byte takes to convert (a lower bound).
pub(super) const COPIED_BYTES: usize = 64;

/// Time after which one may have ended.
const RETRY: Duration = Duration::from_millis(50);

/// The parts of the server that a request of a session uses.
pub(super) struct RequestWork {
    pub(super) workers: TokenizationWorkers,
    pub(super) memory: Arc<BodyMemory>,
    pub(super) tenant: Arc<str>,
}

impl RequestWork {
    /// Prepares a request that reads `bytes` bytes of text: here if these are few, otherwise on a worker.
    pub(super) async fn prepare<T: Send + 'static>(
        &self,
        bytes: usize,
        prepare: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.workers.run(&self.tenant, bytes, prepare).await.flatten()
    }

    /// Reserves memory for the copy of a session's text that splices change on a worker; `None` if they are applied at once.
    pub(super) fn hold_copy(&self, session: &EditSession, splices: &[Splice]) -> Result<Option<Reservation>> {
        let is_short = splice_cost(session.text(), splices) < INLINE_BYTES;
        if is_short { Ok(None) } else { self.reserve(session.text().text().len()).map(Some) }
    }

    /// Applies splices to a session: on a worker if memory is `held` for a copy, otherwise on this task. Returns the number of
    /// characters of their texts that the model's normaliser replaces or drops. Fails and changes nothing as
    /// [`EditSession::splice`] does.
    pub(super) async fn splice(
        &self,
        session: &mut EditSession,
        revision: u64,
        splices: Vec<Splice>,
        held: Option<Reservation>,
    ) -> Result<usize> {
        let bytes = splice_cost(session.text(), &splices);
        let apply = move |session: &mut EditSession| -> Result<usize> {
            session.splice(revision, &splices)?;
            Ok(splices.iter().map(|splice| session.normalized_chars(&splice.text)).sum())
        };
        let Some(_held) = held else { return apply(session) };
        let mut changed = session.clone();
        let (changed, normalized) =
            self.prepare(bytes, move || apply(&mut changed).map(|normalized| (changed, normalized))).await?;
        *session = changed;
        Ok(normalized)
    }

    /// Reserves the memory of a request until the result is dropped.
    pub(super) fn reserve(&self, bytes: usize) -> Result<Reservation> {
        let reserved = Reservation::new(Arc::clone(&self.memory), Arc::clone(&self.tenant));
        reserved.add(bytes)?;
        Ok(reserved)
    }
}

/// Returns the cost of applying `splices`, in bytes that would take as long to convert.
pub(super) fn splice_cost(text: &EditedText, splices: &[Splice]) -> usize {
    let added: usize = splices.iter().map(|splice| splice.text.len()).sum();
    added.saturating_add(text.moved_bytes(splices).saturating_add(added) / COPIED_BYTES)
}

/// The completions and scores in progress, which run concurrently until a splice cancels them. Dropping this cancels them.
#[derive(Default)]
pub(super) struct RunningRequests {
    tasks: JoinSet<Finished>,
    /// The requests in progress by their ids.
    requests: BTreeMap<u64, RunningRequest>,
    /// Requests that were started.
    started: u64,
}

/// The result of a request.
struct Finished {
    id: u64,
    serial: u64,
    result: Result<Event>,
}

/// A request in progress.
struct RunningRequest {
    /// Number among the session's requests: a client may use an id again.
    serial: u64,
    task: AbortHandle,
}

impl RunningRequests {
    /// Returns true if no request is in progress.
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Fails if a request with this id may not begin.
    pub(super) fn check(&self, field: &'static str, id: u64) -> Result<()> {
        if self.requests.contains_key(&id) {
            return Err(Error::bad_option(field, id.to_string(), "an id that no request in progress has"));
        }
        if self.requests.len() >= MAX_REQUESTS {
            let what = "requests of an editing session";
            return Err(Error::TooMany { what, limit: MAX_REQUESTS, retry: RETRY });
        }
        Ok(())
    }

    /// Starts a request.
    pub(super) fn spawn(&mut self, id: u64, work: impl Future<Output = Result<Event>> + Send + 'static) {
        self.started += 1;
        let serial = self.started;
        let task = self.tasks.spawn(async move { Finished { id, serial, result: work.await } });
        self.requests.insert(id, RunningRequest { serial, task });
    }

    /// Cancels all requests. Returns their ids.
    pub(super) fn cancel_all(&mut self) -> Vec<u64> {
        let cancelled = std::mem::take(&mut self.requests);
        let cancel = |(id, request): (u64, RunningRequest)| {
            request.task.abort();
            id
        };
        cancelled.into_iter().map(cancel).collect()
    }

    /// Waits for the end of a request. Returns its id and result, or `None` for one that was cancelled. Does not return while no
    /// task is left. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<(u64, Result<Event>)> {
        match self.tasks.join_next().await {
            Some(ended) => self.take(ended),
            None => std::future::pending().await,
        }
    }

    fn take(&mut self, ended: Result<Finished, JoinError>) -> Option<(u64, Result<Event>)> {
        let Finished { id, serial, result } = match ended {
            Ok(finished) => finished,
            Err(error) if error.is_cancelled() => return None,
            Err(error) => {
                let panicked = self.requests.iter().find(|(_, request)| request.task.id() == error.id());
                let (&id, &RunningRequest { serial, .. }) = panicked?;
                let result = Err(Error::Internal("a request of an editing session panicked".into()));
                Finished { id, serial, result }
            }
        };
        if self.requests.get(&id).is_none_or(|request| request.serial != serial) {
            return None;
        }
        self.requests.remove(&id);
        Some((id, result))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::editing::{RunningRequests, splice_cost};
    use weir_proto::v1::StaleRequest;

    fn event(id: u64) -> Event {
        Event::Stale(StaleRequest { id })
    }

    #[test]
    fn only_keystrokes_are_applied_at_once() {
        let cost = |bytes: usize, count: usize, added: usize| {
            let text = EditedText::new("a".repeat(bytes), 0, 1 << 22).unwrap();
            let splice = Splice { range: 0..0, text: "b".repeat(added) };
            splice_cost(&text, &vec![splice; count])
        };
        assert!(cost(500_000, 1, 1) < INLINE_BYTES && cost(1000, 256, 1) < INLINE_BYTES);
        for (bytes, count, added) in [(1 << 20, 1, 0), (10_000, 256, 64), (0, 1, INLINE_BYTES)] {
            assert!(cost(bytes, count, added) >= INLINE_BYTES, "{bytes} bytes, {count} splices of {added}");
        }
    }

    #[tokio::test]
    async fn a_request_that_was_overtaken_has_no_result() {
        let mut running = RunningRequests::default();
        running.spawn(1, async { Ok(event(1)) });
        // the task ends before it is cancelled, or not at all
        tokio::task::yield_now().await;
        running.spawn(2, std::future::pending());
        assert!(running.check("id", 2).is_err() && running.check("id", 3).is_ok());
        assert_eq!(running.cancel_all(), [1, 2]);
        assert!(running.is_empty());
        running.spawn(1, async { Ok(event(7)) });
        let mut results = Vec::new();
        for _ in 0..3 {
            results.extend(running.next().await);
        }
        assert!(matches!(&results[..], [(1, Ok(found))] if *found == event(7)), "{}", results.len());
        for id in 10..26 {
            running.spawn(id, std::future::pending());
        }
        assert!(running.check("id", 3).unwrap_err().to_string().contains("16"));
    }
}
