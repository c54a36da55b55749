//! Workload `edit`: replays the keystrokes of a text in a document, and asks for completions after each.
//!
//! A request is a session: one document, which is opened with the text before the cursor. Keystrokes have planned times, which no
//! answer changes.

use crate::error::{Error, Result};
use crate::schedule::{Pacer, ScheduledRequest};
use crate::timer::{AnsweredKeystroke, ClientTimer, KeystrokeTimer};
use crate::workload::{PromptText, RequestTarget, WorkloadSpec};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, LogNormal};
use std::time::Duration;
use tokio::sync::mpsc::{self, Sender};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};
use weir_client::status::CODE_NAMES;
use weir_proto::v1::{
    CloseDocument, CompleteDocument, CompletionItem, DocumentCompletions, EditFailure, EditRequest, EditResponse,
    OpenDocument, SpliceDocument, TextSplice, Until, edit_request::Action, edit_response::Event,
};

/// Characters of a completion, at most: the server's default. The text with a completion must fit the model.
const COMPLETION_CHARS: u64 = 32;

/// Completions that each keystroke asks for.
const COUNT: u32 = 3;

/// Standard deviation of the logarithm of the times between keystrokes. The times of a fast typist and a slow one differ, but
/// both are skewed to the right like this.
const SIGMA: f64 = 0.5;

/// Edits a document.
pub struct EditCall {
    /// Text before the cursor.
    document: String,
    /// Characters to type.
    typed: String,
    /// Time before each of them.
    gaps: Vec<Duration>,
    /// Time from the first completions to the first gap.
    pause: Duration,
}

/// Draws the log-normal times before `count` keystrokes, with the mean 1 / `rate`. Never fails for a rate above 0.
fn gaps(rate: f64, rng: &mut impl Rng, count: usize) -> Result<Vec<Duration>> {
    // the mean of a log-normal distribution is exp(mu + sigma² / 2)
    let mu = -rate.ln() - SIGMA * SIGMA / 2.0;
    let gaps = LogNormal::new(mu, SIGMA).map_err(|error| Error::Internal(format!("a typist: {error}")))?;
    Ok(gaps.sample_iter(rng).take(count).map(Duration::from_secs_f64).collect())
}

impl EditCall {
    /// Draws a session. Fails only if an invariant is broken.
    pub(crate) fn draw(spec: &WorkloadSpec, text: &PromptText, rng: &mut ChaCha8Rng) -> Result<Self> {
        let room = spec.max_symbols.saturating_sub(COMPLETION_CHARS);
        let before = spec.prompt.draw(rng, room.saturating_sub(spec.output.longest().unwrap_or(1)))?;
        let count = spec.output.draw(rng, room.saturating_sub(before))?;
        let text = text.excerpt(rng, before + count);
        let edge = text.char_indices().nth(before as usize).map_or(text.len(), |(edge, _)| edge);
        let (document, typed) = text.split_at(edge);
        let gaps = gaps(spec.rate, rng, typed.chars().count())?;
        Ok(Self { document: document.to_owned(), typed: typed.to_owned(), gaps, pause: spec.pause })
    }

    /// Returns the request for completions after `number` characters, which end at byte `cursor`.
    fn complete(number: u64, cursor: usize) -> Action {
        Action::Complete(CompleteDocument {
            id: number,
            cursor_byte: cursor as u64,
            count: Some(COUNT),
            until: Some(Until::Word.into()),
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
        queue(requests, Self::complete(0, self.document.len()))?;
        let mut answers = answers.await?;
        loop {
            match next_event(&mut answers).await? {
                Event::Completions(first) => return Ok((texts(first.items), answers)),
                Event::Failed(failure) => return Err(failed(&failure)),
                _ => {}
            }
        }
    }

    /// Types the text at its planned times, and reads the answers.
    async fn edit(
        &self,
        requests: &Sender<EditRequest>,
        (first, mut answers): (Vec<String>, Streaming<EditResponse>),
        timer: &mut ClientTimer,
    ) -> Result<(), Status> {
        let begin = Instant::now() + self.pause;
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
                        queue(requests, Self::complete(number, cursor))?;
                        keystrokes.sent(Instant::now());
                    }
                    None => is_typing = false,
                },
                event = next_event(&mut answers) => match event? {
                    Event::Completions(completions) => {
                        timer.record_answer();
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

    /// Runs the session, and records every answer with `timer`.
    pub(crate) async fn send(&self, target: &RequestTarget, timer: &mut ClientTimer) -> Result<(), Status> {
        let connection = target.pool.next()?;
        // room for all messages of the session, so that keystrokes never wait for the server
        let (requests, receiver) = mpsc::channel(2 * self.gaps.len() + 3);
        let request = connection.request_within(ReceiverStream::new(receiver), target.timeout);
        timer.mark_sent();
        let answers = async { Ok(connection.start_edit(request).await?.into_inner()) };
        let opened = self.open(&target.model, &requests, answers).await?;
        timer.record_answer();
        self.edit(&requests, opened, timer).await
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

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn gaps_have_the_rate_and_the_spread_and_follow_the_seed() {
        let gaps = |seed| gaps(8.0, &mut ChaCha8Rng::seed_from_u64(seed), 20_000).unwrap();
        let drawn = gaps(1);
        let mean = drawn.iter().map(Duration::as_secs_f64).sum::<f64>() / 20_000.0;
        assert!((mean * 8.0 - 1.0).abs() < 0.02, "{mean}");
        let logs: Vec<f64> = drawn.iter().map(|gap| gap.as_secs_f64().ln()).collect();
        let middle = logs.iter().sum::<f64>() / 20_000.0;
        let variance = logs.iter().map(|log| (log - middle).powi(2)).sum::<f64>() / 20_000.0;
        assert!((variance.sqrt() - SIGMA).abs() < 0.02, "{variance}");
        assert_eq!(drawn, gaps(1));
        assert_ne!(drawn, gaps(2));
    }
}
