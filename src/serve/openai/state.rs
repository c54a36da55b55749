//! The state that all handlers share, and the limits on request bodies.

use super::error::ApiError;
use crate::{
    config::TransportConfig,
    error::Error,
    serve::{in_process::Services, registry::health::Monitor},
};
use axum::{
    body::Bytes,
    extract::Request,
    http::{StatusCode, header},
};
use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::sync::Semaphore;
use tokio_stream::StreamExt;

/// Bytes of a body that one permit stands for.
const PERMIT_BYTES: usize = 1024;

/// The state that all handlers share.
#[derive(Clone)]
pub(super) struct ApiState {
    pub(super) services: Services,
    pub(super) monitor: Monitor,
    /// The memory for bodies that are arriving, in permits.
    body_permits: Arc<Semaphore>,
    /// Maximum bytes of a body.
    max_body_bytes: usize,
    /// Maximum time for a body to arrive.
    upload_timeout: Duration,
    /// When the server started, in seconds since 1970.
    pub(super) started_at: u64,
}

impl ApiState {
    pub(super) fn new(services: Services, monitor: Monitor, config: &TransportConfig) -> Self {
        let permits = (config.request_memory / PERMIT_BYTES).min(Semaphore::MAX_PERMITS);
        Self {
            services,
            monitor,
            body_permits: Arc::new(Semaphore::new(permits)),
            max_body_bytes: config.message_bytes,
            upload_timeout: config.upload,
            started_at: unix_seconds(),
        }
    }

    /// Reads a request's body within the limits on one body and on all together.
    pub(super) async fn read_body(&self, request: Request) -> Result<Bytes, ApiError> {
        let encodings = request.headers().get_all(header::CONTENT_ENCODING);
        if encodings.iter().any(|encoding| encoding != "identity") {
            let message = "Content-Encoding: compressed bodies are not supported";
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "compressed", message));
        }
        let declared = request.headers().get(header::CONTENT_LENGTH);
        let declared = declared.and_then(|length| length.to_str().ok()?.parse().ok());
        let length: usize = declared.unwrap_or(self.max_body_bytes);
        let oversized = || ApiError::from(Error::Oversized { what: "the body", limit: self.max_body_bytes });
        if length > self.max_body_bytes {
            return Err(oversized());
        }
        let permits = u32::try_from(length.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX);
        let Ok(_permits) = self.body_permits.try_acquire_many(permits) else {
            let message = "the memory for arriving requests is in use";
            return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, "no_room", message).retry_after(1));
        };
        let read = async {
            let mut parts = request.into_body().into_data_stream();
            let mut body = Vec::new();
            while let Some(part) = parts.next().await {
                let message = "the body is incomplete or malformed";
                let part = part.map_err(|_| ApiError::new(StatusCode::BAD_REQUEST, "incomplete", message))?;
                if part.len() > self.max_body_bytes - body.len() {
                    return Err(oversized());
                }
                body.extend_from_slice(&part);
            }
            Ok(Bytes::from(body))
        };
        tokio::time::timeout(self.upload_timeout, read).await.unwrap_or_else(|_| {
            let message = format!("the body did not arrive completely within {:?}", self.upload_timeout);
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "incomplete", message))
        })
    }
}

/// Returns the current time in seconds since 1970.
pub(super) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
