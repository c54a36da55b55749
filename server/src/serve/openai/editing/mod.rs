//! `/v1/edit`: a WebSocket that carries one call of `Edit`. Each message of the call is a text message in JSON.
//!
//! The call begins before the handshake is answered. So the server checks the key and counts the session while it can still
//! answer with an HTTP status.

#[cfg(any(test, fuzzing))]
pub(in crate::serve) mod fuzzing;
mod message_queue;
mod messages;
mod responses;
mod session;

use self::{
    message_queue::{MessageQueue, READ_AHEAD},
    session::EditSocket,
};
use super::{error::ApiError, state::ApiState};
use crate::serve::{
    calls::ClientContext,
    middleware::body_limits::{RequestMemory, Reservation},
    transport::upgrades::UpgradeContext,
};
use axum::{
    Extension,
    extract::{FromRequestParts, Request, State, WebSocketUpgrade},
    http::{
        HeaderMap, HeaderValue, StatusCode,
        header::{AUTHORIZATION, CONNECTION, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE},
    },
    middleware::Next,
    response::{IntoResponse, Response},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use std::sync::Arc;
use tokio::sync::mpsc;
use tonic::Code;

/// The path of the handshake.
pub(super) const PATH: &str = "/v1/edit";
/// The subprotocol of these messages.
const PROTOCOL: &str = "weir.v1.edit";
/// The beginning of a subprotocol that carries an API key, in the alphabet of base64 for URLs. A page cannot set headers of a
/// WebSocket, and a key in the URL would be written to the logs of proxies.
const KEY_PROTOCOL: &str = "weir.v1.bearer.";
/// The header of the subprotocols.
const KEY_HEADER: &str = "Sec-WebSocket-Protocol";
/// Size in bytes of the buffer of received data. A longer message takes more.
const READ_BUFFER: usize = 8 << 10;

/// The mark of a handshake whose API key cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MalformedKey;

impl From<MalformedKey> for ApiError {
    fn from(_: MalformedKey) -> Self {
        let message = format!(
            "{KEY_HEADER}: expected an API key in base64url without padding after {KEY_PROTOCOL}, found other text"
        );
        Self::new(StatusCode::UNAUTHORIZED, "malformed_key", message)
            .with_param(KEY_HEADER)
            .logged_as(Code::InvalidArgument)
    }
}

/// Moves the API key of a handshake to `authorization`. Only marks a request with a malformed key: [`edit`] refuses it, so that the
/// layer in between logs the refusal.
pub(super) async fn read_key(mut request: Request, next: Next) -> Response {
    if request.uri().path() == PATH
        && let Err(malformed) = add_key(request.headers_mut())
    {
        request.extensions_mut().insert(malformed);
    }
    next.run(request).await
}

/// Answers the handshake of a WebSocket, and edits a document over it.
pub(super) async fn edit(
    State(state): State<ApiState>,
    Extension(client): Extension<ClientContext>,
    request: Request,
) -> Response {
    client.with_request_id(begin(state, &client, request).await.into_response())
}

/// Begins the call, and answers the handshake.
async fn begin(state: ApiState, client: &ClientContext, request: Request) -> Result<Response, ApiError> {
    if let Some(malformed) = request.extensions().get::<MalformedKey>() {
        return Err((*malformed).into());
    }
    let tenant = client.principal()?.tenant();
    let (mut parts, _) = request.into_parts();
    let context: Option<UpgradeContext> = parts.extensions.get().cloned();
    let Ok(socket) = WebSocketUpgrade::from_request_parts(&mut parts, &()).await else { return Ok(not_a_handshake()) };
    let UpgradeContext { open, received } = context.ok_or_else(|| {
        let message = "the request has no connection to upgrade";
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    })?;
    let (requests, receiver) = mpsc::channel(1);
    let memory = Arc::clone(&state.calls.jobs.memory);
    let reservation = || Reservation::new(Arc::clone(&memory), Arc::clone(&tenant));
    let sent = RequestMemory::new(reservation());
    let responses = state.calls.edit(client, receiver, sent.clone()).await?;
    let socket = socket
        .protocols([PROTOCOL])
        .max_frame_size(state.max_body_bytes)
        .max_message_size(state.max_body_bytes)
        .read_buffer_size(READ_BUFFER)
        .write_buffer_size(0);
    let call = open.begin_call();
    let reserved = reservation();
    let queue = MessageQueue::new(reservation(), sent, READ_AHEAD);
    let workers = state.calls.jobs.workers;
    let max_message = state.max_body_bytes;
    Ok(socket.on_upgrade(async move |socket| {
        received.begin(reserved);
        let ending = open.ending().clone();
        EditSocket { socket, requests, queue, received, tenant, memory, workers, max_message }
            .run(responses, ending)
            .await;
        drop(call);
    }))
}

/// Moves an API key from the subprotocols to `authorization`, where the server expects it.
fn add_key(headers: &mut HeaderMap) -> Result<(), MalformedKey> {
    let offered = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    let offered = offered.flat_map(|value| value.split(',')).map(str::trim);
    let keys: Vec<String> =
        offered.filter_map(|protocol| protocol.strip_prefix(KEY_PROTOCOL)).map(str::to_owned).collect();
    for key in keys {
        let decoded = URL_SAFE_NO_PAD.decode(key).map_err(|_| MalformedKey)?;
        let value = [b"Bearer ", decoded.as_slice()].concat();
        let mut value = HeaderValue::from_bytes(&value).map_err(|_| MalformedKey)?;
        value.set_sensitive(true);
        headers.append(AUTHORIZATION, value);
    }
    Ok(())
}

/// Refuses a request that is not a handshake.
fn not_a_handshake() -> Response {
    let message = "/v1/edit: expected the handshake of a WebSocket, with the headers `upgrade: websocket`, `connection: upgrade`, \
                   `sec-websocket-version: 13` and `sec-websocket-key`; a proxy in between must pass them on";
    let mut response = ApiError::new(StatusCode::UPGRADE_REQUIRED, "not_a_websocket", message).into_response();
    let headers = response.headers_mut();
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
    // `upgrade` is a header of this connection only.
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn authorization(protocols: &[&str]) -> Result<Vec<String>, MalformedKey> {
        let mut headers = HeaderMap::new();
        for protocol in protocols {
            headers.append(SEC_WEBSOCKET_PROTOCOL, protocol.parse().unwrap());
        }
        add_key(&mut headers)?;
        Ok(headers.get_all(AUTHORIZATION).iter().map(|value| value.to_str().unwrap().to_owned()).collect())
    }

    #[test]
    fn a_subprotocol_carries_the_key() {
        let key = |key: &str| format!("{KEY_PROTOCOL}{}", URL_SAFE_NO_PAD.encode(key));
        assert_eq!(authorization(&[PROTOCOL]).unwrap(), [""; 0]);
        let both = format!("{PROTOCOL},  {}", key("a-key?>~"));
        assert_eq!(authorization(&[&both]).unwrap(), ["Bearer a-key?>~"]);
        assert_eq!(authorization(&[PROTOCOL, &key("b")]).unwrap(), ["Bearer b"]);
        // Authentication refuses several.
        assert_eq!(authorization(&[&key("a"), &key("b")]).unwrap().len(), 2);
        for malformed in ["weir.v1.bearer.=", "weir.v1.bearer.CgA"] {
            assert_eq!(authorization(&[malformed]), Err(MalformedKey), "{malformed}");
        }
    }
}
