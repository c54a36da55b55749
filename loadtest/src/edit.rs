//! Workload `edit`: replays the keystrokes of a text in a document, and asks for completions after each.
//!
//! A request is a session: one document, which is opened with the text before the cursor. Keystrokes have planned times, which no
//! answer changes.

use crate::error::{Error, Result};
use crate::schedule::{Pacer, ScheduledRequest};
use crate::timer::{AnsweredKeystroke, ClientTimer, KeystrokeTimer};
use crate::workload::{
    self, PreparedRequest, PromptSource, RequestTarget, SendFuture, TypingSpec, WorkloadKind, WorkloadSpec,
    edit_settings,
};
use std::time::Duration;
use tokio::sync::mpsc::{self, Sender};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};
use weir_client::{quoted, status::CODE_NAMES};
use weir_proto::v1::{
    CloseDocument, CompleteDocument, CompletionItem, DocumentCompletions, EditFailure, EditRequest, EditResponse,
    OpenDocument, SpliceDocument, TextSplice, edit_request::Action, edit_response::Event,
};

/// Characters of a completion, at most: the server's default. The text with a completion must fit the model.
const COMPLETION_CHARS: u64 = 32;

/// Edits documents.
pub(crate) const EDIT: WorkloadKind = WorkloadKind {
    name: workload::EDIT,
    check: |spec| {
        spec.typing.check()?;
        if !matches!(spec.prompts, PromptSource::Excerpts(_)) {
            let expected = format!("a length for kind={}: the characters before the cursor", workload::EDIT);
            return Err(Error::option("--prompt-chars", quoted(&spec.prompts.to_string()), expected));
        }
        spec.check_length()
    },
    describe: |spec, _, info| {
        info.output_chars = format!("{} keystrokes", spec.output);
        info.settings = edit_settings(&spec.typing);
    },
    draw: |spec, prompts, rng| {
        let WorkloadSpec { output, typing, max_symbols, model, .. } = spec;
        let PromptSource::Excerpts(length) = spec.prompts else {
            return Err(Error::Internal("a document without a length".into()));
        };
        let room = max_symbols.saturating_sub(COMPLETION_CHARS);
        let before = length.draw(rng, room.saturating_sub(output.longest().unwrap_or(1)))?;
        let count = output.draw(rng, room.saturating_sub(before))?;
        let text = prompts.text.excerpt(rng, before + count);
        let edge = text.char_indices().nth(before as usize).map_or(text.len(), |(edge, _)| edge);
        let (document, typed) = text.split_at(edge);
        let gaps = typing.gaps(rng, typed.chars().count())?;
        let document = document.to_owned();
        Ok(Box::new(EditCall { document, typed: typed.to_owned(), gaps, typing: *typing, model: model.clone() }))
    },
};

struct EditCall {
    /// Text before the cursor.
    document: String,
    /// Characters to type.
    typed: String,
    /// Time before each of them.
    gaps: Vec<Duration>,
    typing: TypingSpec,
    model: Option<String>,
}

impl EditCall {
    /// Returns the request for completions after `number` characters, which end at byte `cursor`.
    fn complete(&self, number: u64, cursor: usize) -> Action {
        let TypingSpec { count, until, .. } = self.typing;
        Action::Complete(CompleteDocument {
            id: number,
            cursor_byte: cursor as u64,
            count: Some(count),
            until: Some(until.into()),
            max_chars: None,
            constraint: None,
        })
    }

    /// Opens the document and waits for its first completions. Returns them, and the stream of later answers.
    async fn open(
        &self,
        model: &str,
        requests: &Sender<EditRequest>,
        answers: impl Future<Output = Result<Streaming<EditResponse>, Status>>,
    ) -> Result<(Vec<String>, Streaming<EditResponse>), Status> {
        let open = OpenDocument { model: Some(model.into()), text: self.document.clone(), ..Default::default() };
        queue(requests, Action::Open(open))?;
        queue(requests, self.complete(0, self.document.len()))?;
        let mut answers = answers.await?;
        loop {
            match next_event(&mut answers).await? {
                Event::Completions(first) => return Ok((texts(first.items), answers)),
                Event::Failed(failure) => return Err(failed(&failure)),
                _ => {}
            }
        }
    }

    /// Types the text at its planned times, and reads the answers. Returns early if this client cancels the session.
    async fn edit(
        &self,
        requests: &Sender<EditRequest>,
        (first, mut answers): (Vec<String>, Streaming<EditResponse>),
        timer: &mut ClientTimer,
    ) -> Result<(), Status> {
        let begin = Instant::now() + self.typing.pause;
        let due = |after: &mut Duration, gap: &Duration| {
            *after += *gap;
            Some(begin + *after)
        };
        let planned: Vec<Instant> = self.gaps.iter().scan(Duration::ZERO, due).collect();
        let scheduled = (1..).zip(planned.clone());
        let scheduled = scheduled.map(|(number, intended)| ScheduledRequest { number, intended, measured: true });
        let mut keystrokes = KeystrokeTimer::new(&self.typed, planned, first, timer.counts_from);
        let (pacer, mut keys) = Pacer::start(scheduled).map_err(|error| Status::internal(error.to_string()))?;
        let mut rest = self.typed.chars();
        let mut cursor = self.document.len();
        let mut is_typing = true;
        while is_typing || keystrokes.is_waiting() {
            tokio::select! {
                biased;
                key = keys.recv(), if is_typing => match key.zip(rest.next()) {
                    Some((ScheduledRequest { number, .. }, character)) => {
                        queue(requests, insert(number, cursor, character))?;
                        cursor += character.len_utf8();
                        queue(requests, self.complete(number, cursor))?;
                        keystrokes.sent(Instant::now());
                    }
                    None => is_typing = false,
                },
                event = next_event(&mut answers) => match event? {
                    Event::Completions(completions) => {
                        if timer.record_answer().is_break() {
                            return Ok(());
                        }
                        keystrokes.completed(completions.id, answered(completions), Instant::now());
                    }
                    Event::Stale(stale) => keystrokes.stale(stale.id),
                    Event::Failed(failure) => match failure.id {
                        Some(number) => keystrokes.failed(number),
                        None => return Err(failed(&failure)),
                    },
                    Event::Closed(closed) => {
                        return Err(Status::unavailable(format!("the server closed the session: {closed:?}")));
                    }
                    Event::Applied(_) | Event::Scores(_) => {}
                },
            }
        }
        drop(pacer);
        timer.edits = Some(keystrokes.finish());
        queue(requests, Action::Close(CloseDocument {}))?;
        while answers.message().await?.is_some() {}
        Ok(())
    }
}

impl PreparedRequest for EditCall {
    fn send<'a>(&'a self, target: &'a RequestTarget, timer: &'a mut ClientTimer) -> SendFuture<'a> {
        Box::pin(async move {
            let connection = target.pool.next()?;
            // room for all messages of the session, so that keystrokes never wait for the server
            let (requests, receiver) = mpsc::channel(2 * self.gaps.len() + 3);
            let request = connection.request_within(ReceiverStream::new(receiver), target.timeout);
            timer.mark_sent();
            let answers = async { Ok(connection.start_edit(request).await?.into_inner()) };
            let model = self.model.as_ref().unwrap_or(&target.model);
            let opened = self.open(model, &requests, answers).await?;
            if timer.record_answer().is_break() {
                return Ok(());
            }
            self.edit(&requests, opened, timer).await
        })
    }

    fn max_chars(&self) -> u64 {
        self.gaps.len() as u64 + 1
    }
}

/// Queues a message. Never fails, because the channel has room for all messages of the session.
fn queue(requests: &Sender<EditRequest>, action: Action) -> Result<(), Status> {
    let queued = requests.try_send(EditRequest { action: Some(action) });
    queued.map_err(|error| Status::internal(format!("a message of the session: {error}")))
}

async fn next_event(answers: &mut Streaming<EditResponse>) -> Result<Event, Status> {
    let message = answers.message().await?;
    message.and_then(|message| message.event).ok_or_else(|| Status::unknown("the stream ended without `closed`"))
}

fn insert(revision: u64, cursor: usize, character: char) -> Action {
    let at = cursor as u64;
    let splices = vec![TextSplice { start_byte: at, end_byte: at, text: character.into() }];
    Action::Splice(SpliceDocument { revision, splices })
}

fn texts(items: Vec<CompletionItem>) -> Vec<String> {
    items.into_iter().map(|item| item.text).collect()
}

fn answered(completions: DocumentCompletions) -> AnsweredKeystroke {
    AnsweredKeystroke {
        recomputed: completions.recomputed_chars,
        server: Duration::from_nanos(completions.duration_ns),
        texts: texts(completions.items),
    }
}

/// Converts a failure that ends the session to the status of a call.
fn failed(failure: &EditFailure) -> Status {
    let number = CODE_NAMES.iter().position(|name| *name == failure.code);
    let code = number.and_then(|number| i32::try_from(number).ok()).map_or(Code::Unknown, Code::from);
    Status::new(code, failure.message.clone())
}
