//! HTTP/1.1 connections that a client may upgrade to a WebSocket. An upgraded connection keeps its slot and its limits.

use super::{
    adapted::{Adapted, StreamAdapter},
    lifetime::{ClosingConnection, OpenConnection},
};
use crate::serve::middleware::body_limits::Reservation;
use hyper::{body::Incoming, rt, server::conn::http1, service::HttpService};
use std::{
    error::Error,
    io,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes of a client's control frame before the payload: the shortest header, and a mask.
const CONTROL_HEADER: usize = 6;

/// A connection that ends with its last call, even if that call has upgraded it.
pub(crate) struct UpgradableConnection<I, S: HttpService<Incoming>> {
    /// Reads requests and writes responses. `None` once the connection has closed or left HTTP.
    http: Option<Pin<Box<http1::UpgradeableConnection<I, S>>>>,
    open: OpenConnection,
    /// Ready when no call is in progress.
    calls_ended: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// True once the connection has to close.
    is_closing: bool,
}

impl<I, S: HttpService<Incoming>> Unpin for UpgradableConnection<I, S> {}

impl<I, S: HttpService<Incoming>> UpgradableConnection<I, S> {
    /// Serves a connection of hyper. `open` counts its calls.
    pub(crate) fn new(http: http1::UpgradeableConnection<I, S>, open: OpenConnection) -> Self {
        let calls_ended = Box::pin(open.clone().calls_ended());
        Self { http: Some(Box::pin(http)), open, calls_ended, is_closing: false }
    }
}

impl<I, S, B> Future for UpgradableConnection<I, S>
where
    S: HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    I: rt::Read + rt::Write + Unpin + Send + 'static,
    B: hyper::body::Body + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Output = Result<(), hyper::Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(http) = &mut self.http {
            ready!(http.as_mut().poll(cx))?;
            // Ends the calls of HTTP, but not one that has taken the connection over.
            self.http = None;
            if self.is_closing {
                self.open.ending().cancel();
            }
        }
        self.calls_ended.as_mut().poll(cx).map(Ok)
    }
}

impl<I, S, B> ClosingConnection for UpgradableConnection<I, S>
where
    S: HttpService<Incoming, ResBody = B> + Send,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    S::Future: Send,
    I: rt::Read + rt::Write + Unpin + Send + 'static,
    B: hyper::body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    fn close_gracefully(mut self: Pin<&mut Self>) {
        self.is_closing = true;
        match &mut self.http {
            Some(http) => http.as_mut().graceful_shutdown(),
            // A call that has taken the connection over may never end by itself.
            None => self.open.ending().cancel(),
        }
    }
}

impl<I, S: HttpService<Incoming>> Drop for UpgradableConnection<I, S> {
    fn drop(&mut self) {
        // The call that has taken the connection over runs in a task of its own.
        self.open.ending().cancel();
    }
}

/// The parts of its connection that a WebSocket uses, as an extension of the request.
#[derive(Clone)]
pub(crate) struct UpgradeContext {
    /// Counts the WebSocket as a call.
    pub(crate) open: OpenConnection,
    /// Counts what it receives.
    pub(crate) received: ReceivedBytes,
}

/// Counts the memory of the bytes that a connection receives after its upgrade. Clones share it.
///
/// HTTP request bodies are counted separately.
#[derive(Clone, Default)]
pub(crate) struct ReceivedBytes(Arc<OnceLock<Reservation>>);

impl ReceivedBytes {
    /// Counts what `stream` receives.
    pub(crate) fn wrap<S>(stream: S, received: Self) -> Adapted<S, Self> {
        Adapted { stream, adapter: received }
    }

    /// Counts the bytes that arrive from now on.
    pub(crate) fn begin(&self, reserved: Reservation) {
        // A connection leaves HTTP once.
        let _ = self.0.set(reserved);
    }

    /// Releases the bytes that have arrived, after a whole message. What a buffer of reads holds of the next one is also released.
    pub(crate) fn release_message(&self) {
        self.release(usize::MAX);
    }

    /// Releases the bytes of a control frame. Its client may send it between the parts of a message, which still count.
    pub(crate) fn release_control(&self, payload: usize) {
        self.release(payload.saturating_add(CONTROL_HEADER));
    }

    fn release(&self, bytes: usize) {
        if let Some(reserved) = self.0.get() {
            reserved.release(bytes);
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> StreamAdapter<S> for ReceivedBytes {
    fn poll_read(&mut self, stream: &mut S, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(stream).poll_read(cx, into))?;
        if let Some(reserved) = self.0.get() {
            reserved.add(into.filled().len() - before).map_err(io::Error::other)?;
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::TransportConfig, serve::middleware::body_limits::BodyMemory};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn bytes_count_once_the_connection_has_left_http() {
        let config = TransportConfig { message_bytes: 100, request_memory: 200, ..TransportConfig::default() };
        let memory = BodyMemory::new(&config);
        let (server, mut client) = tokio::io::duplex(1024);
        let received = ReceivedBytes::default();
        let mut server = ReceivedBytes::wrap(server, received.clone());
        let mut buffer = [0; 100];
        for _ in 0..10 {
            client.write_all(&[7; 100]).await.unwrap();
            server.read_exact(&mut buffer).await.unwrap();
        }
        received.begin(Reservation::new(Arc::clone(&memory), "a".into()));
        for _ in 0..10 {
            client.write_all(&[7; 100]).await.unwrap();
            server.read_exact(&mut buffer).await.unwrap();
            received.release_message();
        }
        client.write_all(&[7; 200]).await.unwrap();
        server.read_exact(&mut buffer).await.unwrap();
        let full = server.read_exact(&mut buffer).await.unwrap_err();
        assert!(full.to_string().contains("bytes"), "{full}");
        received.release_message();
        client.write_all(&[7; 100]).await.unwrap();
        server.read_exact(&mut buffer).await.unwrap();
        // A control frame releases no more than itself.
        received.release_control(94);
        client.write_all(&[7; 100]).await.unwrap();
        server.read_exact(&mut buffer).await.unwrap();
        received.release_control(44);
        client.write_all(&[7; 100]).await.unwrap();
        assert!(server.read_exact(&mut buffer).await.is_err());
    }
}
