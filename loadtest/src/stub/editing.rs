//! Editing with scripted delays. A completion repeats the letter `x`: the n-th best one n + 1 times.

use super::server::{Script, Stub, StubSlots, WAITING};
use crate::units::ns;
use std::{future::pending, pin::Pin, sync::Arc, time::Duration};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming};
use weir_proto::v1::{
    CompleteDocument, CompletionItem, DocumentApplied, DocumentClosed, DocumentCompletions, EditFailure, EditRequest,
    EditResponse, OpenDocument, StaleRequest, document_closed::Reason, edit_request::Action, edit_response::Event,
    editing_server,
};

/// Session of one document.
struct StubDocument {
    stub: Stub,
    /// The document's model, once it is open.
    model: Option<(Script, Arc<StubSlots>)>,
    revision: u64,
    text_bytes: u64,
    /// True if completions were requested before.
    is_warm: bool,
    running: Option<RunningCompletion>,
    out: mpsc::Sender<Result<EditResponse, Status>>,
}

/// Completions that are due later.
struct RunningCompletion {
    id: u64,
    work: Pin<Box<dyn Future<Output = Option<DocumentCompletions>> + Send>>,
}

impl StubDocument {
    /// Answers the messages; ends early if the client is gone.
    async fn run(mut self, mut requests: Streaming<EditRequest>) -> Option<()> {
        loop {
            let running = async {
                match &mut self.running {
                    Some(running) => running.work.as_mut().await,
                    None => pending().await,
                }
            };
            tokio::select! {
                answer = running => {
                    self.running = None;
                    self.send(Event::Completions(answer?)).await?;
                }
                message = requests.message() => match message.ok()??.action? {
                    Action::Open(open) => self.open(open).await?,
                    Action::Splice(splice) => {
                        self.revision = splice.revision;
                        self.text_bytes += splice.splices.iter().map(|splice| splice.text.len() as u64).sum::<u64>();
                        self.applied().await?;
                        if let Some(RunningCompletion { id, .. }) = self.running.take() {
                            self.send(Event::Stale(StaleRequest { id })).await?;
                        }
                    }
                    Action::Complete(complete) => self.complete(&complete).await?,
                    Action::Close(_) => {
                        return self.send(Event::Closed(DocumentClosed { reason: Reason::Client.into() })).await;
                    }
                    Action::Score(_) => return None,
                },
            }
        }
    }

    async fn open(&mut self, open: OpenDocument) -> Option<()> {
        let model = self.stub.model(open.model()).cloned();
        let refused = |code: &str| {
            let code = code.to_owned();
            Event::Failed(EditFailure { code, message: "refused by the script".into(), ..Default::default() })
        };
        let Ok(model) = model else { return self.send(refused("NOT_FOUND")).await };
        if self.stub.is_refused(&model.0) {
            return self.send(refused("RESOURCE_EXHAUSTED")).await;
        }
        self.model = Some(model);
        self.text_bytes = open.text.len() as u64;
        self.applied().await
    }

    async fn applied(&mut self) -> Option<()> {
        let revision = self.revision;
        let text_bytes = self.text_bytes;
        self.send(Event::Applied(DocumentApplied { revision, text_bytes, ..Default::default() })).await
    }

    async fn complete(&mut self, complete: &CompleteDocument) -> Option<()> {
        let Some((script, slots)) = self.model.clone() else { return Some(()) };
        let arrived = Instant::now();
        let delay = if self.is_warm { script.plain } else { script.first };
        let recomputed_chars = if self.is_warm { 1 } else { complete.cursor_byte };
        let item = |length: usize| CompletionItem { text: "x".repeat(length), ..Default::default() };
        let items = (2..).map(item).take(complete.count() as usize).collect();
        let answer = DocumentCompletions {
            id: complete.id,
            revision: self.revision,
            items,
            recomputed_chars,
            ..Default::default()
        };
        self.is_warm = true;
        let work = Box::pin(finish(slots, arrived, delay, answer));
        self.running = Some(RunningCompletion { id: complete.id, work });
        Some(())
    }

    async fn send(&mut self, event: Event) -> Option<()> {
        self.out.send(Ok(EditResponse { event: Some(event) })).await.ok()
    }
}

/// Waits for a slot and for the delay of a completion.
async fn finish(
    slots: Arc<StubSlots>,
    arrived: Instant,
    delay: Duration,
    answer: DocumentCompletions,
) -> Option<DocumentCompletions> {
    let mut slot = slots.acquire(arrived).await?;
    let due = slot.begun + delay;
    sleep_until(due).await;
    slot.end = Some(due);
    Some(DocumentCompletions { duration_ns: ns(arrived.elapsed()), ..answer })
}

#[tonic::async_trait]
impl editing_server::Editing for Stub {
    type EditStream = Pin<Box<dyn Stream<Item = Result<EditResponse, Status>> + Send>>;

    async fn edit(&self, request: Request<Streaming<EditRequest>>) -> Result<Response<Self::EditStream>, Status> {
        let (out, responses) = mpsc::channel(WAITING);
        let stub = self.clone();
        let document =
            StubDocument { stub, model: None, revision: 0, text_bytes: 0, is_warm: false, running: None, out };
        tokio::spawn(document.run(request.into_inner()));
        Ok(Response::new(Box::pin(ReceiverStream::new(responses))))
    }
}
