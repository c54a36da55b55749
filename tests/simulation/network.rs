//! Connections in memory that are slow, stall, and break.

use crate::*;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::pin::pin;
use std::sync::MutexGuard;
use tokio::io::{DuplexStream, ReadHalf, WriteHalf, duplex, split};
use tokio::sync::Notify;

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkState {
    Open,
    /// Bytes wait, as if the route were gone.
    Stalled,
    /// Both ends see the connection closed.
    Cut,
}

/// Maximum milliseconds that a packet takes in any scenario.
pub(crate) const MAX_LATENCY: usize = 20;

/// Properties of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LinkQuality {
    /// Maximum milliseconds that a packet takes.
    pub(crate) latency: usize,
    /// Bytes that fit into each of the buffers on the way.
    pub(crate) buffer: usize,
}

/// The control of a client's connections. Dropping it cuts them.
pub(crate) struct Link(Arc<Line>);

/// The state of a link. Unlike the channels of tokio, it wakes those who wait in the order in which they came.
struct Line {
    state: Mutex<LinkState>,
    changed: Notify,
}

/// Connects a client to the server, again after the server has closed a connection.
pub(crate) struct Dialer {
    line: Arc<Line>,
    listener: mpsc::Sender<Accepted>,
    address: SocketAddr,
    quality: LinkQuality,
    random: Random,
}

impl Link {
    pub(crate) fn open() -> Self {
        Self(Arc::new(Line { state: Mutex::new(LinkState::Open), changed: Notify::new() }))
    }

    pub(crate) fn set(&self, state: LinkState) {
        *self.0.state.lock().unwrap() = state;
        self.0.changed.notify_waiters();
    }

    pub(crate) fn dialer(
        &self,
        listener: &mpsc::Sender<Accepted>,
        address: SocketAddr,
        quality: LinkQuality,
        random: Random,
    ) -> Dialer {
        Dialer { line: Arc::clone(&self.0), listener: listener.clone(), address, quality, random }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.set(LinkState::Cut);
    }
}

impl Line {
    fn state(&self) -> LinkState {
        *self.state.lock().unwrap()
    }

    /// Waits for a state that `is_wanted`.
    async fn wait_for(&self, is_wanted: impl Fn(LinkState) -> bool) {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if is_wanted(self.state()) {
                return;
            }
            changed.await;
        }
    }
}

impl Dialer {
    /// Connects. Fails if the listener is closed, or the link is cut.
    pub(crate) fn connect(&mut self) -> impl Future<Output = io::Result<DuplexStream>> + Send + use<> {
        let (near, near_wire) = duplex(self.quality.buffer);
        let (far, far_wire) = duplex(self.quality.buffer);
        let (from_near, to_near) = split(near_wire);
        let (from_far, to_far) = split(far_wire);
        let is_cut = self.line.state() == LinkState::Cut;
        tokio::spawn(carry(from_near, to_far, Arc::clone(&self.line), self.quality, self.random.split()));
        tokio::spawn(carry(from_far, to_near, Arc::clone(&self.line), self.quality, self.random.split()));
        let listener = self.listener.clone();
        let address = self.address;
        async move {
            let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
            if is_cut {
                return Err(refused());
            }
            listener.send(Accepted { stream: Box::new(far), address }).await.map_err(|_| refused())?;
            Ok(near)
        }
    }
}

/// Carries bytes in one direction until one end closes or the link is cut.
async fn carry(
    from: ReadHalf<DuplexStream>,
    to: WriteHalf<DuplexStream>,
    line: Arc<Line>,
    quality: LinkQuality,
    random: Random,
) {
    tokio::select! {
        biased;
        () = line.wait_for(|state| state == LinkState::Cut) => {}
        () = forward(from, to, &line, quality, random) => {}
    }
}

async fn forward(
    mut from: ReadHalf<DuplexStream>,
    mut to: WriteHalf<DuplexStream>,
    line: &Line,
    quality: LinkQuality,
    mut random: Random,
) {
    let mut packet = [0; 2048];
    loop {
        let limit = if random.chance(30) { random.between(1, 64) } else { packet.len() };
        let count = from.read(&mut packet[..limit]).await.unwrap_or(0);
        let delay = random.between(0, quality.latency);
        if delay > 0 {
            sleep(Duration::from_millis(delay as u64)).await;
        }
        line.wait_for(|state| state != LinkState::Stalled).await;
        if count == 0 {
            // the other direction goes on
            let _ = to.shutdown().await;
            return;
        }
        if to.write_all(&packet[..count]).await.is_err() {
            return;
        }
    }
}

pub(crate) struct Log {
    start: Instant,
    contents: Mutex<Contents>,
}

#[derive(Debug, Default)]
pub(crate) struct Contents {
    pub(crate) lines: Vec<String>,
    pub(crate) violations: Vec<String>,
    /// Number of events of each kind.
    pub(crate) counts: BTreeMap<String, usize>,
}

impl Log {
    /// Begins a log. Its times count from now.
    pub(crate) fn begin() -> Self {
        Self { start: Instant::now(), contents: Mutex::default() }
    }

    pub(crate) fn line(&self, what: impl std::fmt::Display) {
        let line = format!("{:>7} ms  {what}", self.start.elapsed().as_millis());
        self.contents().lines.push(line);
    }

    /// Records a broken invariant.
    pub(crate) fn violation(&self, what: impl std::fmt::Display) {
        self.line(format_args!("VIOLATION: {what}"));
        self.contents().violations.push(what.to_string());
    }

    pub(crate) fn count(&self, kind: &str, by: usize) {
        *self.contents().counts.entry(kind.to_owned()).or_default() += by;
    }

    /// Takes everything out of the log.
    pub(crate) fn take(&self) -> Contents {
        std::mem::take(&mut *self.contents())
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap()
    }
}

impl Contents {
    /// Returns a hash of all events and their times.
    pub(crate) fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.lines.hash(&mut hasher);
        hasher.finish()
    }
}
