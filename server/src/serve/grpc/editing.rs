//! The service `Editing`: passes the messages of a stream to the session of its document, and its requests' results back.
//!
//! [`EditSession`] decides what a session may do; this file translates, and limits sessions, memory, rates and idle time.

use super::{
    editing_messages::{self as messages, applied, closed, failed, stale},
    editing_requests::{COPIED_BYTES, RequestWork, RunningRequests},
    generation::{JobService, terms},
    request_parts::RequestParts,
    response_stream::reject,
    task_response::{Output, TaskResponse},
};
use crate::{
    engine::{
        clock,
        editing::{EditSession, KEPT_DISTRIBUTION_BYTES},
    },
    error::{Error, Result},
    metrics::EditEvent,
    serve::{
        call::{Call, Reply},
        middleware::{
            body_limits::{RequestMemory, Reservation},
            call_limits::CallPlace,
        },
        registry::{abilities::continues_text, engines::Lease},
    },
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::time::sleep_until;
use tokio_stream::StreamExt;
use tonic::{Request, Response, Streaming};
use weir_proto::v1::{self, document_closed::Reason, edit_request::Action, edit_response::Event, editing_server};

/// A message of a session. A message of another protocol that cannot be read is the answer to it: it keeps its place, and counts as
/// a splice.
pub(in crate::serve) type EditMessage = Result<v1::EditRequest, v1::EditResponse>;

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
                message = next_message(&mut self.parts, read_at), if !is_complete => {
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
        let id = message.as_ref().ok().and_then(messages::request_id);
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
        let splices = messages::splices(splice)?;
        document.session.check_splices(revision, &splices)?;
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
        let Begun { session, engine, work, began } = self.begin("complete.id", id)?;
        let cursor = messages::offset("complete.cursor_byte", complete.cursor_byte)?;
        session.text().check_offset("complete.cursor_byte", cursor)?;
        let rules = messages::rules(complete)?;
        let held = self.reserve(&work, session.completion_bytes(cursor))?;
        // after the request's own memory: it needs none of this
        if let Some(document) = &mut self.document {
            document.keep_for_searches(cursor, &self.reserved);
        }
        self.running.spawn(id, async move {
            let _held = held;
            let revision = session.text().revision();
            let pending = session.into_completion(cursor, rules);
            let mut task = work.prepare(pending.unencoded_bytes(), move || pending.begin()).await?;
            loop {
                // if the model has no windows, the whole text is compared with those in the cache
                let submit = move || task.submit_next().map(|waiting| (task, waiting));
                let (next, waiting) = work.prepare(cursor / COPIED_BYTES, submit).await?;
                task = next;
                if waiting.is_empty() {
                    break;
                }
                task.take(waiting).await?;
            }
            engine.meter().edit(EditEvent::Completion);
            let answer = messages::completions(id, revision, task.finish(), &engine.card().vocabulary);
            Ok(Event::Completions(v1::DocumentCompletions { duration_ns: nanoseconds_since(began), ..answer }))
        });
        Ok(())
    }

    fn score(&mut self, score: &v1::ScoreDocument) -> Result<()> {
        let id = score.id;
        let Begun { session, engine, work, began } = self.begin("score.id", id)?;
        let start = messages::offset("score.start_byte", score.start_byte)?;
        let end = messages::offset("score.end_byte", score.end_byte)?;
        let range = start..end;
        session.check_scored(&range)?;
        let held = self.reserve(&work, session.score_bytes(&range))?;
        self.running.spawn(id, async move {
            let _held = held;
            let revision = session.text().revision();
            let task = work.prepare(end, move || session.score(range)).await?;
            let scored = task.run().await?;
            engine.meter().edit(EditEvent::Score);
            let answer = messages::scores(id, revision, scored, &engine.card().vocabulary);
            Ok(Event::Scores(v1::DocumentScores { duration_ns: nanoseconds_since(began), ..answer }))
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
        let count = u32::try_from(count.clamp(1, messages::MAX_SPLICES)).unwrap_or(u32::MAX);
        self.splices_until = self.splices_until.max(clock::now()) + Duration::from_secs(1) * count / rate;
    }
}

/// Waits until another message may be read, and reads it. Cancel safe.
async fn next_message(parts: &mut RequestParts<EditMessage>, read_at: Instant) -> Result<Option<EditMessage>> {
    sleep_until(read_at.into()).await;
    parts.next().await
}

fn nanoseconds_since(began: Instant) -> u64 {
    u64::try_from(clock::since(began).as_nanos()).unwrap_or(u64::MAX)
}

fn not_open() -> Error {
    Error::bad_option("action", "a message before open", "open first")
}

impl JobService {
    /// Starts an `Edit`.
    pub(in crate::serve) fn start_editing(
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
        Ok(TaskResponse::spawn(permits, call.clone(), stall, move |output| editor.run(output)))
    }
}

#[tonic::async_trait]
impl editing_server::Editing for JobService {
    type EditStream = TaskResponse<v1::EditResponse>;

    async fn edit(&self, mut request: Request<Streaming<v1::EditRequest>>) -> Reply<Self::EditStream> {
        let call = Call::of(&request);
        let memory = RequestMemory::take(&mut request);
        let parts = RequestParts::new(request.into_inner().map(|message| message.map(Ok)), memory);
        self.start_editing(parts, &call).map(Response::new).map_err(reject(&call))
    }
}
