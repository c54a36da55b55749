//! The messages that were read before the call of their session takes them.
//!
//! The server reads ahead, so that it answers a client's pings while `--max-edit-rate` holds its session back. A message that was
//! refused keeps its place, and counts as a splice: the call gets a splice that it must refuse, and the queue replaces the answer.

use crate::{error::Result, serve::middleware::body_limits::Reservation};
use prost::Message as _;
use std::collections::VecDeque;
use tokio::sync::mpsc::{OwnedPermit, Sender};
use weir_proto::v1::{
    EditRequest, EditResponse, SpliceDocument, TextSplice, edit_request::Action, edit_response::Event,
};

/// Bytes of messages after which the server reads no further.
pub(super) const READ_AHEAD: usize = 256 << 10;
/// Bytes that a message takes in addition to its length and its splices.
const OVERHEAD: usize = size_of::<QueuedMessage>();

/// A message that waits.
struct QueuedMessage {
    content: Content,
    /// Bytes that it takes.
    bytes: usize,
    /// Bytes that are reserved for it.
    reserved: usize,
}

/// The content of a message.
enum Content {
    Request(EditRequest),
    /// The answer to a message that was refused.
    Refusal(Box<EditResponse>),
}

/// Messages that wait for the call.
pub(super) struct MessageQueue {
    messages: VecDeque<QueuedMessage>,
    /// Bytes of the messages.
    bytes: usize,
    /// Bytes after which the queue is full. The last message may exceed them.
    limit: usize,
    /// The memory of the messages.
    reserved: Reservation,
    /// The messages that the call has taken and answers in their order. A refusal replaces the call's answer.
    unanswered: VecDeque<Option<Box<EditResponse>>>,
}

impl MessageQueue {
    /// Creates an empty queue that counts its memory with `reserved`, and is full after `limit` bytes.
    pub(super) fn new(reserved: Reservation, limit: usize) -> Self {
        Self { messages: VecDeque::new(), bytes: 0, limit, reserved, unanswered: VecDeque::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Returns true if another message may be read.
    pub(super) fn has_room(&self) -> bool {
        self.bytes < self.limit
    }

    /// Adds a message. Fails if there is no memory for it.
    pub(super) fn push(&mut self, message: EditRequest) -> Result<()> {
        let splices = match &message.action {
            Some(Action::Splice(splice)) => splice.splices.len(),
            _ => 0,
        };
        let bytes = message.encoded_len() + OVERHEAD + splices * size_of::<TextSplice>();
        self.reserved.add(bytes)?;
        self.add(QueuedMessage { content: Content::Request(message), bytes, reserved: bytes });
        Ok(())
    }

    /// Adds the answer to a message that was refused. It is short, and is queued even if there is no memory for it: its client
    /// could not continue without it.
    pub(super) fn push_refusal(&mut self, answer: EditResponse) {
        let bytes = answer.encoded_len() + OVERHEAD + size_of::<EditResponse>();
        let reserved = if self.reserved.add(bytes).is_ok() { bytes } else { 0 };
        self.add(QueuedMessage { content: Content::Refusal(Box::new(answer)), bytes, reserved });
    }

    fn add(&mut self, message: QueuedMessage) {
        self.bytes += message.bytes;
        self.messages.push_back(message);
    }

    /// Sends the first message to the call.
    pub(super) fn send_next(&mut self, permit: OwnedPermit<EditRequest>) {
        let Some(QueuedMessage { content, bytes, reserved }) = self.messages.pop_front() else { return };
        self.bytes -= bytes;
        self.reserved.release(reserved);
        match content {
            Content::Request(message) => {
                if let Some(Action::Open(_) | Action::Splice(_)) = message.action {
                    self.unanswered.push_back(None);
                }
                permit.send(message);
            }
            Content::Refusal(answer) => {
                self.unanswered.push_back(Some(answer));
                permit.send(wrong_splice());
            }
        }
    }

    /// Replaces the call's answer to a message that was refused. Returns other responses as they are.
    pub(super) fn answer(&mut self, response: EditResponse) -> EditResponse {
        let is_in_order = match &response.event {
            Some(Event::Applied(_)) => true,
            Some(Event::Failed(failure)) => failure.id.is_none(),
            _ => false,
        };
        let refusal = if is_in_order { self.unanswered.pop_front().flatten() } else { None };
        refusal.map_or(response, |refusal| *refusal)
    }
}

/// Returns a splice that the call refuses, whatever its document is: no revision precedes 0.
fn wrong_splice() -> EditRequest {
    EditRequest { action: Some(Action::Splice(SpliceDocument { revision: 0, splices: Vec::new() })) }
}

/// Waits until the call takes another request. Waits forever once the call has ended: its last responses follow. Cancel safe.
pub(super) async fn permit(requests: Sender<EditRequest>) -> OwnedPermit<EditRequest> {
    match requests.reserve_owned().await {
        Ok(permit) => permit,
        Err(_) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::TransportConfig, serve::middleware::body_limits::BodyMemory};
    use std::sync::Arc;
    use tokio::sync::mpsc;
    use weir_proto::v1::{DocumentApplied, EditFailure, OpenDocument, StaleRequest};

    fn open(bytes: usize) -> EditRequest {
        let open = OpenDocument { text: "a".repeat(bytes), ..OpenDocument::default() };
        EditRequest { action: Some(Action::Open(open)) }
    }

    fn failed(id: Option<u64>, message: &str) -> EditResponse {
        let failure = EditFailure { id, message: message.into(), ..EditFailure::default() };
        EditResponse { event: Some(Event::Failed(failure)) }
    }

    fn memory(bytes: usize) -> impl Fn() -> Reservation {
        let config = TransportConfig { message_bytes: 100, request_memory: bytes, ..TransportConfig::default() };
        let memory = BodyMemory::new(&config);
        move || Reservation::new(Arc::clone(&memory), "a".into())
    }

    /// Returns the bytes that can be reserved now.
    fn free(reserved: Reservation) -> usize {
        (0..).take_while(|_| reserved.add(1).is_ok()).count()
    }

    #[tokio::test]
    async fn messages_count_until_they_are_sent() {
        let memory = memory(8000);
        let all = free(memory());
        let mut queue = MessageQueue::new(memory(), 700 + 2 * OVERHEAD);
        queue.push(open(700)).unwrap();
        assert!(queue.has_room() && !queue.is_empty());
        queue.push(open(701)).unwrap();
        assert!(!queue.has_room());
        let held = all - free(memory());
        assert!((1401 + 2 * OVERHEAD..1420 + 2 * OVERHEAD).contains(&held), "{held}");
        assert!(queue.push(open(all - held)).is_err());
        let (sender, mut receiver) = mpsc::channel(1);
        for bytes in [700, 701] {
            queue.send_next(permit(sender.clone()).await);
            assert_eq!(receiver.recv().await, Some(open(bytes)));
        }
        assert!(queue.has_room() && queue.is_empty());
        assert_eq!(free(memory()), all);
    }

    #[test]
    fn splices_count_with_the_memory_that_they_take() {
        let memory = memory(40_000);
        let all = free(memory());
        let mut queue = MessageQueue::new(memory(), usize::MAX);
        let splices = vec![TextSplice::default(); 256];
        queue.push(EditRequest { action: Some(Action::Splice(SpliceDocument { revision: 1, splices })) }).unwrap();
        let held = all - free(memory());
        assert!(held >= 256 * size_of::<TextSplice>(), "{held}");
    }

    #[tokio::test]
    async fn refusals_wait_in_their_place_and_replace_the_answers_of_the_call() {
        let memory = memory(4000);
        let full = memory();
        while full.add(1).is_ok() {}
        let mut queue = MessageQueue::new(memory(), 1);
        queue.push_refusal(failed(Some(7), "first"));
        assert!(!queue.has_room(), "it counts even without memory");
        drop(full);
        let all = free(memory());
        queue.push(open(1)).unwrap();
        queue.push_refusal(failed(None, "second"));
        let (sender, mut receiver) = mpsc::channel(1);
        for expected in [wrong_splice(), open(1), wrong_splice()] {
            queue.send_next(permit(sender.clone()).await);
            assert_eq!(receiver.recv().await, Some(expected));
        }
        assert!(queue.is_empty() && free(memory()) == all);
        let stale = EditResponse { event: Some(Event::Stale(StaleRequest { id: 1 })) };
        let applied = EditResponse { event: Some(Event::Applied(DocumentApplied::default())) };
        for (response, expected) in [
            (stale.clone(), stale),
            (failed(None, "of the call"), failed(Some(7), "first")),
            (failed(Some(1), "a request"), failed(Some(1), "a request")),
            (applied.clone(), applied),
            (failed(None, "of the call"), failed(None, "second")),
            (failed(None, "the last one"), failed(None, "the last one")),
        ] {
            assert_eq!(queue.answer(response), expected);
        }
    }
}
