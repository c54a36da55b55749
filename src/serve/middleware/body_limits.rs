//! What requests may take while they come in. Each connection may have many calls, and each call a message of some length:
//! together that is far more than a server has, so that there is a limit for all of them together, of which one caller may have
//! a part; and for the time, so that what never comes whole does not keep its room.

use super::{Call, Next, ResponseFuture, compression::Heads, status::status};
use crate::{config::Wire, error::Error, serve::registry::drain::draining};
use http_body::{Body as HttpBody, Frame};
use std::{
    collections::HashMap,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    sync::watch,
    time::{Instant, Sleep, sleep},
};
use tonic::{
    Status,
    body::Body,
    codegen::{Bytes, http::Request},
};
use tower::ServiceExt;

/// When to try again: what is on its way is there soon, or is given up.
const RETRY: Duration = Duration::from_secs(1);

/// The part of the room that one caller leaves to others: one in so many.
const KEPT: usize = 8;

/// How long a request has to come in whole once the server begins to end.
const LAST: Duration = Duration::from_secs(1);

/// The method whose body is a stream of requests, each on its own.
pub(in crate::serve) const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

/// The method that runs while its request comes in.
pub(in crate::serve) const UPLOAD: &str = "/weir.v1.Summarization/Summarize";

/// Counts the bytes of requests until their bodies have been read or dropped, and refuses what is too much for all, or for one
/// caller; and what does not come in whole in time. A compressed message that has come in whole counts with what it may become until
/// the body is dropped: whoever reads a body keeps the memory that its largest message took.
///
/// A request that has not come in whole soon after the server begins to end is refused; but a document that is being read is a
/// request that runs, which goes on like any other.
pub(in crate::serve) fn limit(
    wire: &Wire,
    ending: watch::Receiver<bool>,
) -> impl Fn(Request<Body>, Next) -> ResponseFuture + Clone + Send + Sync + 'static {
    let (most, time) = (wire.request_memory, wire.upload);
    let own = (most - most / KEPT).max(wire.message_bytes);
    // no message becomes longer; one alone is never too much
    let grows = wire.message_bytes.min(own - wire.message_bytes);
    let room = Arc::new(Room { most, own, held: Mutex::default() });
    move |mut request, next| {
        let call = Call::of_http(&request);
        let id = Arc::clone(&call.id);
        let held = Arc::new(Portion { room: Arc::clone(&room), caller: call.tenant(), taken: Mutex::default() });
        // A stream of requests is none that has to come in whole: each of them is.
        let each = request.uri().path() == STREAM;
        let runs = (request.uri().path() == UPLOAD).then_some(false);
        if each {
            request.extensions_mut().insert(Received(Arc::clone(&held)));
        }
        let (late, mut ending) = (Box::pin(sleep(time)), ending.clone());
        let ends = Box::pin(async move {
            // nobody is left to tell: that is an end, too
            let _ = ending.wait_for(|ending| *ending).await;
            sleep(LAST).await;
        });
        let meter = |body| Metered { body, id, held, heads: Heads::default(), grows, each, runs, time, late, ends };
        Box::pin(next.oneshot(request.map(|body| Body::new(meter(body)))))
    }
}

/// Room for requests that come in.
struct Room {
    /// Bytes of all.
    most: usize,
    /// Bytes of one caller.
    own: usize,
    held: Mutex<Held>,
}

/// Bytes that are there.
#[derive(Default)]
struct Held {
    all: usize,
    /// By caller; nobody who has none.
    of: HashMap<Arc<str>, usize>,
}

impl Room {
    fn take(&self, caller: &Arc<str>, bytes: usize) -> Result<(), Error> {
        let mut held = self.held();
        let own = held.of.get(caller).map_or(bytes, |own| own.saturating_add(bytes));
        let all = held.all.saturating_add(bytes);
        let full = |what, limit| Err(Error::QueueFull { what, limit, retry: RETRY });
        if all > self.most {
            return full("bytes of requests that are coming in", self.most);
        }
        if own > self.own {
            return full("bytes of one caller's requests that are coming in", self.own);
        }
        held.all = all;
        held.of.insert(Arc::clone(caller), own);
        Ok(())
    }

    fn give_back(&self, caller: &Arc<str>, bytes: usize) {
        let mut held = self.held();
        held.all -= bytes;
        if let Some(own) = held.of.get_mut(caller) {
            *own -= bytes;
            if *own == 0 {
                held.of.remove(caller);
            }
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one body takes of the room.
struct Portion {
    room: Arc<Room>,
    caller: Arc<str>,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    /// Bytes that have come and are not read yet.
    came: usize,
    /// Bytes that its largest compressed message may have become.
    grown: usize,
}

impl Portion {
    /// Takes more; returns whether there was none before.
    fn take(&self, more: usize) -> Result<bool, Error> {
        let mut taken = self.taken();
        self.room.take(&self.caller, more)?;
        let first = taken.came == 0;
        taken.came += more;
        Ok(first)
    }

    /// Takes what is missing to so many for what a message may become.
    fn grow(&self, bytes: usize) -> Result<(), Error> {
        let mut taken = self.taken();
        if bytes > taken.grown {
            self.room.take(&self.caller, bytes - taken.grown)?;
            taken.grown = bytes;
        }
        Ok(())
    }

    /// Gives back what has come.
    fn read(&self) {
        let came = std::mem::take(&mut self.taken().came);
        self.room.give_back(&self.caller, came);
    }

    /// Gives back all.
    fn end(&self) {
        let Taken { came, grown } = std::mem::take(&mut *self.taken());
        self.room.give_back(&self.caller, came + grown);
    }

    fn is_empty(&self) -> bool {
        self.taken().came == 0
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Told by whoever reads a stream of requests that one has been read: its room is free again, and so is the time for the next.
#[derive(Clone)]
pub(in crate::serve) struct Received(Arc<Portion>);

impl Received {
    /// One has.
    pub(in crate::serve) fn one(&self) {
        self.0.read();
    }
}

/// A request's body, and the room that its bytes take.
struct Metered {
    body: Body,
    id: Arc<str>,
    held: Arc<Portion>,
    heads: Heads,
    /// Bytes at most that a compressed message may become.
    grows: usize,
    /// Whether it is a stream of requests.
    each: bool,
    /// Whether the call runs already, if it does while its request comes in.
    runs: Option<bool>,
    /// How long one may take to come in.
    time: Duration,
    /// When all of it must be there.
    late: Pin<Box<Sleep>>,
    /// Soon after the server begins to end.
    ends: Pin<Box<dyn Future<Output = ()> + Send + Sync>>,
}

impl Metered {
    /// Takes room for bytes that have come, and for what they may become; returns whether there were none before.
    fn meter(&mut self, bytes: &[u8]) -> Result<bool, Error> {
        let first = self.held.take(bytes.len())?;
        self.held.grow(self.heads.follow(bytes).min(self.grows))?;
        Ok(first)
    }
}

impl Drop for Metered {
    fn drop(&mut self) {
        self.held.end();
    }
}

impl HttpBody for Metered {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
            let error = if self.runs != Some(true) && self.ends.as_mut().poll(cx).is_ready() {
                draining()
            } else if self.each && self.held.is_empty() {
                // between two requests of a stream any time may pass
                return Poll::Pending;
            } else {
                ready!(self.late.as_mut().poll(cx));
                Error::Deadline { stage: "while the request came in" }
            };
            return Poll::Ready(Some(Err(status(&error, &self.id))));
        };
        if let Some(runs) = &mut self.runs {
            *runs = true;
        }
        if let Some(bytes) = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()) {
            match self.meter(bytes) {
                Ok(first) if first && self.each => {
                    let end = Instant::now() + self.time;
                    self.late.as_mut().reset(end);
                }
                Ok(_) => {}
                Err(full) => return Poll::Ready(Some(Err(status(&full, &self.id)))),
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
