//! The time that the head of an HTTP/1.1 request may take to arrive. hyper's own limit also counts the time between two requests, for
//! which a client may keep its connection.

use super::{
    adapted::{Adapted, StreamAdapter},
    lifetime::OpenConnection,
};
use std::{
    io::{Error, ErrorKind, Result},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// Ends a connection on which the head of a request does not arrive in time.
pub(crate) struct HeadLimit {
    limit: Duration,
    open: OpenConnection,
    arrived: HeadArrived,
    /// When the head must have arrived; `None` while no part of one has arrived.
    late: Option<Pin<Box<Sleep>>>,
}

/// Is told when a head has arrived. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct HeadArrived(Arc<AtomicBool>);

impl HeadArrived {
    /// Records that the head of a request has arrived.
    pub(crate) fn record(&self) {
        self.0.store(true, Relaxed);
    }
}

impl HeadLimit {
    /// Limits the heads that arrive on `stream`, from their first byte. `open` counts the connection's calls.
    pub(crate) fn wrap<S>(stream: S, limit: Duration, open: OpenConnection, arrived: HeadArrived) -> Adapted<S, Self> {
        Adapted { stream, adapter: Self { limit, open, arrived, late: None } }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> StreamAdapter<S> for HeadLimit {
    fn poll_read(&mut self, stream: &mut S, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(stream).poll_read(cx, into);
        // what arrives during a call is its body
        if self.arrived.0.swap(false, Relaxed) || self.open.has_calls() {
            self.late = None;
        }
        if self.open.has_calls() {
            return read;
        }
        if read.is_ready() {
            if into.filled().len() > before {
                self.late.get_or_insert_with(|| Box::pin(sleep(self.limit)));
            }
            return read;
        }
        let Some(late) = &mut self.late else { return Poll::Pending };
        ready!(late.as_mut().poll(cx));
        Poll::Ready(Err(Error::new(ErrorKind::TimedOut, "the head of a request did not arrive in time")))
    }
}
