//! The messages that were read before the call of their session takes them.
//!
//! The server reads ahead, so that it answers a client's pings while `--max-edit-rate` holds its session back.

use crate::{error::Result, serve::middleware::body_limits::Reservation};
use prost::Message as _;
use std::collections::VecDeque;
use tokio::sync::mpsc::{OwnedPermit, Sender};
use weir_proto::v1::EditRequest;

/// Bytes of messages after which the server reads no further.
pub(super) const READ_AHEAD: usize = 256 << 10;
/// Bytes that a message takes in addition to its length.
const OVERHEAD: usize = size_of::<EditRequest>();

/// Messages that wait for the call.
pub(super) struct MessageQueue {
    messages: VecDeque<EditRequest>,
    /// Bytes of the messages.
    bytes: usize,
    /// Bytes after which the queue is full. The last message may exceed them.
    limit: usize,
    /// The memory of the messages.
    reserved: Reservation,
}

impl MessageQueue {
    /// Creates an empty queue that counts its memory with `reserved`, and is full after `limit` bytes.
    pub(super) fn new(reserved: Reservation, limit: usize) -> Self {
        Self { messages: VecDeque::new(), bytes: 0, limit, reserved }
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
        let bytes = message.encoded_len();
        self.reserved.add(bytes)?;
        self.bytes += bytes + OVERHEAD;
        self.messages.push_back(message);
        Ok(())
    }

    /// Sends the first message to the call.
    pub(super) fn send_next(&mut self, permit: OwnedPermit<EditRequest>) {
        let Some(message) = self.messages.pop_front() else { return };
        let bytes = message.encoded_len();
        self.bytes -= bytes + OVERHEAD;
        self.reserved.release(bytes);
        permit.send(message);
    }
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
    use weir_proto::v1::{OpenDocument, edit_request::Action};

    fn open(bytes: usize) -> EditRequest {
        let open = OpenDocument { text: "a".repeat(bytes), ..OpenDocument::default() };
        EditRequest { action: Some(Action::Open(open)) }
    }

    #[tokio::test]
    async fn messages_count_until_they_are_sent() {
        let config = TransportConfig { message_bytes: 1000, request_memory: 4000, ..TransportConfig::default() };
        let memory = BodyMemory::new(&config);
        let reserved = || Reservation::new(Arc::clone(&memory), "a".into());
        let mut queue = MessageQueue::new(reserved(), 800);
        queue.push(open(700)).unwrap();
        assert!(queue.has_room() && !queue.is_empty());
        queue.push(open(701)).unwrap();
        assert!(!queue.has_room());
        let other = reserved();
        let mut held = 0;
        while other.add(1).is_ok() {
            held += 1;
        }
        assert!(held < 600, "{held}");
        assert!(queue.push(open(1)).is_err());
        let (sender, mut receiver) = mpsc::channel(1);
        for bytes in [700, 701] {
            queue.send_next(permit(sender.clone()).await);
            assert_eq!(receiver.recv().await, Some(open(bytes)));
        }
        assert!(queue.has_room() && queue.is_empty() && other.add(1400).is_ok());
    }
}
