//! A WebSocket after its handshake: passes messages in both directions until one side closes.

use super::{
    message_queue::{MessageQueue, permit},
    messages::{RefusedMessage, read_message},
    responses::{FORMATTED, response_text},
};
use crate::{
    error::Error,
    serve::{
        grpc::{
            editing::EditMessage,
            editing_messages::{failed, request_id as action_id},
        },
        middleware::body_limits::{BodyMemory, Reservation},
        openai::error::ApiError,
        tokenization::TokenizationWorkers,
        transport::upgrades::ReceivedBytes,
    },
};
use axum::{
    body::Bytes,
    extract::ws::{CloseCode, CloseFrame, Message, Utf8Bytes, WebSocket, close_code},
};
use prost::Message as _;
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::mpsc::Sender,
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_stream::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use weir_proto::v1::{EditRequest, EditResponse, document_closed::Reason, edit_response::Event};

/// Time between two pings. It is shorter than the time after which common proxies close a silent connection.
const PING_INTERVAL: Duration = Duration::from_secs(20);
/// Maximum pings that a client may leave unanswered.
const MAX_PINGS: u32 = 2;
/// Maximum time for the client to answer the close frame.
const CLOSE_TIME: Duration = Duration::from_millis(400);
/// Copies of a formatted response at a time: its text, and the frame that is sent.
const COPIES: usize = 2;

/// A WebSocket, and the call that it carries.
pub(super) struct EditSocket {
    pub(super) socket: WebSocket,
    /// The call's requests.
    pub(super) requests: Sender<EditMessage>,
    /// Messages that the call has not taken yet.
    pub(super) queue: MessageQueue,
    /// The memory of received messages.
    pub(super) received: ReceivedBytes,
    pub(super) tenant: Arc<str>,
    pub(super) memory: Arc<BodyMemory>,
    /// Parse and format long messages.
    pub(super) workers: TokenizationWorkers,
    /// Maximum bytes of a message.
    pub(super) max_message: usize,
}

/// The reason for the end of the WebSocket.
enum End {
    /// The client has closed it, or is gone.
    Client,
    /// The server closes it, with a code and a reason of at most 123 bytes.
    Server(CloseCode, &'static str),
}

impl EditSocket {
    /// Passes messages on until the session ends or `ending` is cancelled.
    pub(super) async fn run(
        mut self,
        mut responses: impl Stream<Item = Result<EditResponse, Status>> + Unpin,
        ending: CancellationToken,
    ) {
        // Also while a client reads nothing, so that a response cannot be sent.
        let ended = ending.run_until_cancelled(self.exchange(&mut responses)).await;
        let end =
            ended.unwrap_or(End::Server(close_code::AWAY, "the server closes the connection; open the document again"));
        // Ends the call.
        drop(responses);
        if let End::Server(code, reason) = end {
            let frame = CloseFrame { code, reason: Utf8Bytes::from_static(reason) };
            let socket = &mut self.socket;
            let close = async move {
                socket.send(Message::Close(Some(frame))).await?;
                // Closing a connection with unread data would discard what the client has not read yet.
                while socket.recv().await.transpose()?.is_some() {}
                Ok::<_, axum::Error>(())
            };
            // A client that is gone needs no answer.
            let _ = timeout(CLOSE_TIME, close).await;
        }
    }

    async fn exchange(&mut self, responses: &mut (impl Stream<Item = Result<EditResponse, Status>> + Unpin)) -> End {
        let mut pings = interval(PING_INTERVAL);
        // A response that the client reads slowly delays the pings, and the answers to them.
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        pings.tick().await;
        // Intervals since the last message in which the server has read. The first one may begin without a ping.
        let mut silent = 0;
        // True once the server has read since the last ping or message. While the queue is full, it does not.
        let mut has_read = false;
        let mut end = End::Server(close_code::ERROR, "the call ended early");
        loop {
            tokio::select! {
                biased;
                response = responses.next() => match response {
                    Some(Ok(response)) => {
                        if let Some(Event::Closed(closed)) = &response.event {
                            end = end_of(closed.reason());
                        }
                        if self.send(response).await.is_err() {
                            return End::Client;
                        }
                    }
                    None => return end,
                    Some(Err(status)) => return self.fail(status).await,
                },
                _ = pings.tick() => {
                    silent += u32::from(std::mem::take(&mut has_read));
                    if silent > MAX_PINGS || self.socket.send(Message::Ping(Bytes::new())).await.is_err() {
                        return End::Client;
                    }
                }
                permit = permit(self.requests.clone()), if !self.queue.is_empty() => self.queue.send_next(permit),
                received = next_message(&mut self.socket, &mut has_read), if self.queue.has_room() => {
                    silent = 0;
                    has_read = false;
                    match received {
                        None => return End::Client,
                        Some(Err(error)) => return self.end_of_broken(error),
                        Some(Ok(message)) => self.take(message).await,
                    }
                }
            }
        }
    }

    /// Queues a message for the call, or `failed` if it is refused.
    async fn take(&mut self, message: Message) {
        // A control frame may come between the parts of a message, which are not read yet.
        let control = control_bytes(&message);
        let taken = parse(&self.workers, &self.tenant, message).await;
        match control {
            Some(payload) => self.received.release_control(payload),
            None => self.received.release_message(),
        }
        let queued = match taken {
            Ok(None) => return,
            Ok(Some(request)) => {
                let id = action_id(&request);
                self.queue.push(request).map_err(|error| RefusedMessage { id, error })
            }
            Err(refused) => Err(refused),
        };
        if let Err(RefusedMessage { id, error }) = queued {
            self.queue.push_refusal(failed(id, &error));
        }
    }

    /// Sends a response. Fails if the client is gone.
    async fn send(&mut self, mut response: EditResponse) -> Result<(), axum::Error> {
        let reserved = Reservation::new(Arc::clone(&self.memory), Arc::clone(&self.tenant));
        let id = request_id(&response);
        // The other responses are short. Their client could not continue without them.
        if id.is_some()
            && let Err(full) = reserved.add(response.encoded_len().saturating_mul(FORMATTED * COPIES))
        {
            response = failed(id, &full);
        }
        let bytes = response.encoded_len().saturating_mul(FORMATTED);
        let formatted = self.workers.run(&self.tenant, bytes, move || response_text(&response)).await.flatten();
        let text = match formatted.or_else(|error| response_text(&failed(id, &error))) {
            Ok(text) => text,
            Err(error) => ApiError::from(error).body().to_string(),
        };
        self.socket.send(Message::Text(text.into())).await
    }

    /// Sends the error of a call that failed.
    async fn fail(&mut self, status: Status) -> End {
        let text = ApiError::from(status).body().to_string();
        // A client that is gone needs no answer.
        let _ = self.socket.send(Message::Text(text.into())).await;
        End::Server(close_code::ERROR, "the call failed; the last message has the error")
    }

    /// Returns the end of a WebSocket from which no message could be read.
    fn end_of_broken(&self, error: axum::Error) -> End {
        use tungstenite::Error as Broken;
        match error.into_inner().downcast_ref() {
            Some(Broken::Capacity(_)) => {
                tracing::info!(limit = self.max_message, "rejected a message that is too long");
                End::Server(close_code::SIZE, "a message is longer than --max-message-bytes")
            }
            Some(Broken::Utf8(_)) => End::Server(close_code::INVALID, "a text message is not UTF-8"),
            Some(Broken::Protocol(_)) => End::Server(close_code::PROTOCOL, "a frame breaks RFC 6455"),
            // The only error of this crate is that of the memory of received messages.
            Some(Broken::Io(error)) if error.get_ref().is_some_and(|source| source.is::<Error>()) => {
                End::Server(close_code::AGAIN, "no memory for the message now; try again later")
            }
            // The connection broke.
            _ => End::Client,
        }
    }
}

/// Returns the end of a WebSocket whose session has ended.
fn end_of(reason: Reason) -> End {
    match reason {
        Reason::Client => End::Server(close_code::NORMAL, "closed by the client"),
        Reason::Idle => End::Server(close_code::AWAY, "idle; open the document again"),
        Reason::Draining => End::Server(close_code::AWAY, "the server shuts down; open the document on another one"),
        Reason::ModelChanged => End::Server(close_code::AWAY, "the model has changed; open the document again"),
        Reason::Unspecified => End::Server(close_code::ERROR, "closed for no known reason"),
    }
}

/// Returns the id of the request that a response answers.
fn request_id(response: &EditResponse) -> Option<u64> {
    match &response.event {
        Some(Event::Completions(completions)) => Some(completions.id),
        Some(Event::Scores(scores)) => Some(scores.id),
        _ => None,
    }
}

/// Sets `has_read`, and reads a message. Returns `None` if the client is gone. Cancel safe.
async fn next_message(socket: &mut WebSocket, has_read: &mut bool) -> Option<Result<Message, axum::Error>> {
    *has_read = true;
    socket.recv().await
}

/// Returns the length of a control frame's payload, or `None` for a whole message.
fn control_bytes(message: &Message) -> Option<usize> {
    match message {
        Message::Text(_) | Message::Binary(_) => None,
        Message::Ping(payload) | Message::Pong(payload) => Some(payload.len()),
        // Nothing follows it.
        Message::Close(_) => Some(0),
    }
}

/// Parses a message, on a worker if it is long. Returns `None` for a control frame, such as a pong.
async fn parse(
    workers: &TokenizationWorkers,
    tenant: &Arc<str>,
    message: Message,
) -> Result<Option<EditRequest>, RefusedMessage> {
    let text = match message {
        Message::Text(text) => text,
        Message::Binary(_) => {
            let why = "the message: expected a text message in JSON, not a binary one".to_owned();
            return Err(Error::Unreadable { field: None, why }.into());
        }
        Message::Ping(_) | Message::Pong(_) | Message::Close(_) => return Ok(None),
    };
    let bytes = text.len();
    workers.run(tenant, bytes, move || read_message(text.as_bytes())).await?.map(Some)
}

#[cfg(test)]
mod tests;
