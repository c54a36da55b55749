//! The messages that were read before the call of their session takes them.
//!
//! The server reads ahead, so that it answers a client's pings while `--max-edit-rate` holds its session back.

use crate::{
    error::Result,
    serve::{
        grpc::editing::EditMessage,
        middleware::body_limits::{RequestMemory, Reservation},
    },
};
use prost::Message as _;
use std::collections::VecDeque;
use tokio::sync::mpsc::{OwnedPermit, Sender};
use weir_proto::v1::{EditRequest, EditResponse, TextSplice, edit_request::Action};

/// Bytes of messages after which the server reads no further.
pub(super) const READ_AHEAD: usize = 256 << 10;
/// Bytes that a message takes in addition to its length and its splices.
const OVERHEAD: usize = size_of::<QueuedMessage>();

/// A message that waits.
struct QueuedMessage {
    message: EditMessage,
    /// Bytes that it takes.
    bytes: usize,
    /// Bytes that are reserved for it.
    reserved: usize,
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
    /// The memory of messages that are sent to the call, which releases it.
    sent: RequestMemory,
}

impl MessageQueue {
    /// Creates an empty queue that is full after `limit` bytes. `reserved` counts waiting messages, and `sent` those that the call
    /// converts.
    pub(super) fn new(reserved: Reservation, sent: RequestMemory, limit: usize) -> Self {
        Self { messages: VecDeque::new(), bytes: 0, limit, reserved, sent }
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
        self.add(QueuedMessage { message: Ok(message), bytes, reserved: bytes });
        Ok(())
    }

    /// Adds the answer to a message that was refused. It is short, and is queued even if there is no memory for it: its client
    /// could not continue without it.
    pub(super) fn push_refusal(&mut self, answer: EditResponse) {
        let bytes = answer.encoded_len() + OVERHEAD + size_of::<EditResponse>();
        let reserved = if self.reserved.add(bytes).is_ok() { bytes } else { 0 };
        self.add(QueuedMessage { message: Err(answer), bytes, reserved });
    }

    fn add(&mut self, message: QueuedMessage) {
        self.bytes += message.bytes;
        self.messages.push_back(message);
    }

    /// Sends the first message to the call.
    pub(super) fn send_next(&mut self, permit: OwnedPermit<EditMessage>) {
        let Some(QueuedMessage { message, bytes, reserved }) = self.messages.pop_front() else { return };
        self.bytes -= bytes;
        self.reserved.release(reserved);
        // Fails only if others took the memory in between.
        let _ = self.sent.add(reserved);
        permit.send(message);
    }
}

/// Waits until the call takes another request. Waits forever once the call has ended: its last responses follow. Cancel safe.
pub(super) async fn permit(requests: Sender<EditMessage>) -> OwnedPermit<EditMessage> {
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
    use weir_proto::v1::{EditFailure, OpenDocument, SpliceDocument, edit_response::Event};

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
    async fn messages_count_until_the_call_has_converted_them() {
        let memory = memory(8000);
        let all = free(memory());
        let sent = RequestMemory::new(memory());
        let mut queue = MessageQueue::new(memory(), sent.clone(), 700 + 2 * OVERHEAD);
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
            assert_eq!(receiver.recv().await, Some(Ok(open(bytes))));
        }
        assert!(queue.has_room() && queue.is_empty());
        assert_eq!(all - free(memory()), held);
        sent.release();
        assert_eq!(free(memory()), all);
    }

    #[test]
    fn splices_count_with_the_memory_that_they_take() {
        let memory = memory(40_000);
        let all = free(memory());
        let mut queue = MessageQueue::new(memory(), RequestMemory::new(memory()), usize::MAX);
        let splices = vec![TextSplice::default(); 256];
        queue.push(EditRequest { action: Some(Action::Splice(SpliceDocument { revision: 1, splices })) }).unwrap();
        let held = all - free(memory());
        assert!(held >= 256 * size_of::<TextSplice>(), "{held}");
    }

    #[tokio::test]
    async fn refusals_wait_in_their_place() {
        let memory = memory(4000);
        let full = memory();
        while full.add(1).is_ok() {}
        let mut queue = MessageQueue::new(memory(), RequestMemory::new(memory()), 1);
        queue.push_refusal(failed(Some(7), "first"));
        assert!(!queue.has_room(), "it counts even without memory");
        drop(full);
        let all = free(memory());
        queue.push(open(1)).unwrap();
        queue.push_refusal(failed(None, "second"));
        let (sender, mut receiver) = mpsc::channel(1);
        for expected in [Err(failed(Some(7), "first")), Ok(open(1)), Err(failed(None, "second"))] {
            queue.send_next(permit(sender.clone()).await);
            assert_eq!(receiver.recv().await, Some(expected));
        }
        queue.sent.release();
        assert!(queue.is_empty() && free(memory()) == all);
    }
}
