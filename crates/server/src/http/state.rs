//! What the handlers of the HTTP API share, and how a body is read within its limits.

use crate::{
    call::ClientContext,
    calls::Calls,
    config::HttpMetrics,
    grpc::{models::ModelsService, summarization::SummaryResponses},
    http::error::ApiError,
    middleware::{
        CallResponse,
        compression::Encoding,
        limits::{CollectedLimits, Reservation, drained},
    },
    open_inference::service::InferenceService,
    registry::{Monitor, draining_error},
    tokenization::TokenizationWorkers,
};
use axum::{
    extract::{Path, Request, rejection::PathRejection},
    http::{HeaderMap, StatusCode, header},
};
use serde::Deserialize;
use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::time::sleep;
use tokio_stream::StreamExt as _;
use tokio_util::sync::CancellationToken;
use weir_kernels::error::{Error, Result, quoted};

/// The model that a path names.
#[derive(Deserialize)]
pub(crate) struct ModelPath {
    name: String,
    /// The name's part after a slash.
    #[serde(default)]
    part: String,
    /// Absent for the only version.
    #[serde(default)]
    pub(crate) version: String,
}

/// The model that a path names, unless its escapes are malformed.
pub(crate) type PathResult = Result<Path<ModelPath>, PathRejection>;

impl ModelPath {
    /// Returns the model's name.
    pub(crate) fn model(&self) -> String {
        let Self { name, part, .. } = self;
        if part.is_empty() { name.clone() } else { format!("{name}/{part}") }
    }
}

/// The state that all handlers share.
#[derive(Clone)]
pub(crate) struct ApiState {
    pub(crate) calls: Calls,
    pub(crate) inference: InferenceService,
    pub(crate) models: Arc<ModelsService>,
    pub(crate) monitor: Monitor,
    /// Limits of responses that are not streamed.
    pub(crate) collected: CollectedLimits,
    /// Compress texts with other programs, to compare.
    pub(crate) comparisons: TokenizationWorkers,
    /// Maximum bytes of a body.
    pub(crate) max_body_bytes: usize,
    /// Maximum time for a body to arrive.
    pub(crate) upload_timeout: Duration,
    /// Cancelled when the server begins to shut down.
    pub(crate) draining: CancellationToken,
    /// Start of the server, in seconds since 1970.
    pub(crate) started_at: u64,
    /// The access to the metrics on this port.
    pub(crate) metrics: HttpMetrics,
}

/// The headers of a request that describe its body. The client's key allows the request.
pub(crate) struct RequestHead {
    /// The tenant whose shares the request uses.
    pub(crate) tenant: Arc<str>,
    /// The compression of the body.
    encoding: Option<Encoding>,
}

/// A request's body, with the memory that it uses.
pub(crate) struct ApiBody {
    bytes: Vec<u8>,
    /// How the bytes are compressed.
    encoding: Option<Encoding>,
    /// The tenant whose shares the request uses.
    pub(crate) tenant: Arc<str>,
    /// Released when the body is dropped.
    reserved: Reservation,
}

impl ApiState {
    /// Checks the key and the headers of a request whose body has this type.
    pub(crate) fn check_head(
        &self,
        client: &ClientContext,
        request: &Request,
        media_type: &str,
    ) -> Result<RequestHead, ApiError> {
        let tenant = client.principal()?.tenant();
        if !has_type(request.headers(), media_type) {
            let found = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
            let found = found.map_or_else(|| "none".to_owned(), quoted);
            let message = format!("Content-Type: expected {media_type}, found {found}");
            let code = if media_type == JSON { "not_json" } else { "not_bytes" };
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, code, message));
        }
        let encoding = encoding(request.headers())?;
        let declared = request.headers().get(header::CONTENT_LENGTH);
        let declared = declared.and_then(|length| length.to_str().ok()?.parse().ok());
        if declared.is_some_and(|length: usize| length > self.max_body_bytes) {
            return Err(self.oversized());
        }
        Ok(RequestHead { tenant, encoding })
    }

    fn oversized(&self) -> ApiError {
        Error::Oversized { what: "the body", limit: self.max_body_bytes }.into()
    }

    /// Reads the body of a request after [`check_head`](Self::check_head).
    pub(crate) async fn read_body(
        &self,
        client: &ClientContext,
        request: Request,
        media_type: &str,
    ) -> Result<ApiBody, ApiError> {
        let head = self.check_head(client, &request, media_type)?;
        self.read_body_after(head, request).await
    }

    /// Reads a request's body within the limits on one body, on one caller's, and on all together.
    pub(crate) async fn read_body_after(&self, head: RequestHead, request: Request) -> Result<ApiBody, ApiError> {
        let RequestHead { tenant, encoding } = head;
        // Memory is taken as bytes arrive: a declared length costs the client nothing.
        let reserved = Reservation::new(Arc::clone(&self.calls.jobs.memory), Arc::clone(&tenant));
        let read = async {
            let mut parts = request.into_body().into_data_stream();
            let mut body = Vec::new();
            while let Some(part) = parts.next().await {
                let message = "the body is incomplete or malformed";
                let part = part.map_err(|_| ApiError::new(StatusCode::BAD_REQUEST, "incomplete", message))?;
                if part.len() > self.max_body_bytes - body.len() {
                    return Err(self.oversized());
                }
                reserved.add(part.len())?;
                body.extend_from_slice(&part);
            }
            Ok(ApiBody { bytes: body, encoding, tenant, reserved })
        };
        tokio::select! {
            biased;
            body = read => body,
            () = sleep(self.upload_timeout) => {
                let message = format!("the body did not arrive completely within {:?}", self.upload_timeout);
                Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "incomplete", message))
            }
            () = drained(self.draining.clone()) => Err(draining_error().into()),
        }
    }

    /// Decompresses and parses a body, on a worker if it is long.
    pub(crate) async fn parse<T: Send + 'static>(
        &self,
        body: ApiBody,
        parse: impl FnOnce(Vec<u8>) -> Result<T> + Send + 'static,
    ) -> Result<T, ApiError> {
        let ApiBody { bytes, encoding, tenant, reserved } = body;
        let limit = self.max_body_bytes;
        let most = encoding.map_or(bytes.len(), |_| Encoding::max_decompressed(bytes.len()).min(limit));
        let parsed = self.calls.jobs.workers.run(&tenant, most, move || match encoding {
            Some(encoding) => parse(encoding.decompress_body(&bytes, limit, |more| reserved.add(more).map(drop))?),
            None => parse(bytes),
        });
        Ok(parsed.await.flatten()?)
    }
}

/// The response to a `Summarize`.
pub(super) type Summarized = CallResponse<SummaryResponses>;

/// Returns how a body with these headers is compressed.
fn encoding(headers: &HeaderMap) -> Result<Option<Encoding>, ApiError> {
    let stated: Vec<_> = headers.get_all(header::CONTENT_ENCODING).iter().map(|name| name.as_bytes()).collect();
    let stated = stated.join(&b", "[..]).to_ascii_lowercase();
    // `identity` changes nothing, wherever it stands.
    let names = stated.split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
    let mut changing = names.filter(|name| !matches!(*name, b"" | b"identity"));
    let known = match (changing.next(), changing.next()) {
        (None, _) => Some(None),
        (Some(b"x-gzip"), None) => Some(Some(Encoding::Gzip)),
        (Some(name), None) => Encoding::named(name).map(Some),
        (Some(_), Some(_)) => None,
    };
    known.ok_or_else(|| {
        let found = quoted(&String::from_utf8_lossy(&stated));
        let message = format!("Content-Encoding: expected gzip, deflate or identity, found {found}");
        ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "compressed", message)
    })
}

/// The type of a body in JSON.
pub(crate) const JSON: &str = "application/json";

/// The type of a body of bytes.
pub(crate) const BYTES: &str = "application/octet-stream";

/// Returns true if the headers announce `media_type`. For a page of another origin, a browser asks the server before it sends
/// [`JSON`] or [`BYTES`], but not before it sends forms or plain text.
fn has_type(headers: &HeaderMap, media_type: &str) -> bool {
    let is_type = |kind: &str| {
        let kind = kind.split(';').next().unwrap_or_default().trim();
        kind.eq_ignore_ascii_case(media_type)
    };
    let mut kinds = headers.get_all(header::CONTENT_TYPE).iter();
    let first = kinds.next().and_then(|kind| kind.to_str().ok());
    first.is_some_and(is_type) && kinds.next().is_none()
}

/// Returns the current time in seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
