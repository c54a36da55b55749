//! A document on its way to the engine: the caller pushes tokens, and the worker takes them while it encodes.

use crate::{
    decode::summary::{ByteRange, read_bytes},
    engine::wake::WakeSignal,
    error::{Error, Result},
};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Where the document of a summary comes from.
pub enum DocumentSource {
    /// An upload that was opened with [`Handle::upload`](crate::engine::Handle::upload).
    Uploading(IncomingDocument),
    /// The id of a document that was encoded for an earlier request of the same tenant.
    Cached(String),
}

/// The sending side of a document. Dropping it before [`close`](Self::close) cancels the request.
pub struct DocumentUpload {
    inbox: Arc<Inbox>,
    wake_signal: Arc<WakeSignal>,
}

/// The receiving side of a document, from which a request is made.
pub struct IncomingDocument(pub(crate) Arc<Inbox>);

/// Tokens that have arrived. The model's limit bounds them: the request fails at the first token beyond it.
#[derive(Default)]
pub(crate) struct Inbox(Mutex<Arrived>);

#[derive(Default)]
struct Arrived {
    ids: Vec<u32>,
    byte_ranges: Vec<ByteRange>,
    /// True if the text was cut after the last token.
    cut: bool,
    /// True if no later request uses the document.
    is_used_once: bool,
    /// Outcome of the upload; `None` while it goes on.
    end: Option<Result<()>>,
}

/// How long an upload may send no token before its request can be preempted for a queued one.
const LONG_WITHOUT_TOKEN: Duration = Duration::from_millis(100);
/// How long it may send tokens that complete no block: otherwise a steady trickle of tokens would hold all rows.
const LONG_WITHOUT_BLOCK: Duration = Duration::from_millis(500);

/// The wait of an encoding for tokens that complete a block.
#[derive(Debug, Clone, Copy)]
pub(super) struct UploadWait {
    since: Instant,
    last_token: Instant,
}

impl UploadWait {
    /// Returns the wait that goes on, or begins, after `tokens` have arrived.
    pub(super) fn after(before: Option<Self>, tokens: usize, now: Instant) -> Self {
        let Self { since, last_token } = before.unwrap_or(Self { since: now, last_token: now });
        Self { since, last_token: if tokens == 0 { last_token } else { now } }
    }

    /// Returns true if the request can be preempted.
    pub(super) fn is_long(self, now: Instant) -> bool {
        now.saturating_duration_since(self.last_token) >= LONG_WITHOUT_TOKEN
            || now.saturating_duration_since(self.since) >= LONG_WITHOUT_BLOCK
    }
}

/// Result of [`Inbox::take`].
pub(crate) struct NewTokens {
    /// True if the document is complete.
    pub(crate) ended: bool,
    pub(crate) count: usize,
    /// Bytes of the text up to the end of the last new token, if one of them covers text.
    pub(crate) read_bytes: Option<u64>,
    /// True if the text was cut after the last token.
    pub(crate) cut: bool,
}

/// Opens an upload; returns both sides.
pub(crate) fn open(wake_signal: &Arc<WakeSignal>) -> (DocumentUpload, IncomingDocument) {
    let inbox = Arc::<Inbox>::default();
    let upload = DocumentUpload { inbox: Arc::clone(&inbox), wake_signal: Arc::clone(wake_signal) };
    (upload, IncomingDocument(inbox))
}

impl DocumentUpload {
    /// Appends tokens, each with its byte range in the text.
    pub fn push(&self, ids: &[u32], byte_ranges: &[ByteRange]) {
        let mut arrived = self.inbox.lock();
        arrived.ids.extend_from_slice(ids);
        arrived.byte_ranges.extend_from_slice(byte_ranges);
        drop(arrived);
        self.wake_signal.raise();
    }

    /// Keeps the document, such as a part of a longer one, out of the document cache: no later request uses it.
    pub fn use_once(&self) {
        self.inbox.lock().is_used_once = true;
    }

    /// Completes the document; `cut` if its text was longer.
    pub fn close(self, cut: bool) {
        self.end(Ok(()), cut);
    }

    /// Ends the request with `error`.
    pub fn fail(self, error: Error) {
        self.end(Err(error), false);
    }

    fn end(&self, end: Result<()>, cut: bool) {
        let mut arrived = self.inbox.lock();
        if arrived.end.is_none() {
            arrived.end = Some(end);
            arrived.cut = cut;
        }
        drop(arrived);
        self.wake_signal.raise();
    }
}

impl Drop for DocumentUpload {
    fn drop(&mut self) {
        self.end(Err(Error::Cancelled), false);
    }
}

impl Inbox {
    pub(crate) fn complete(ids: Vec<u32>, byte_ranges: Vec<ByteRange>, cut: bool) -> Self {
        Self(Mutex::new(Arrived { ids, byte_ranges, cut, is_used_once: false, end: Some(Ok(())) }))
    }

    pub(crate) fn tokens(&self) -> usize {
        self.lock().ids.len()
    }

    pub(crate) fn is_complete(&self) -> bool {
        matches!(self.lock().end, Some(Ok(())))
    }

    /// Returns why the upload failed, if it did. Only the first call returns the upload's own error.
    pub(crate) fn failure(&self) -> Option<Error> {
        match &mut self.lock().end {
            Some(Err(error)) => Some(std::mem::replace(error, Error::Cancelled)),
            _ => None,
        }
    }

    /// Calls `take` with the tokens from index `from` on, if there are any. Returns the error of `take`.
    pub(crate) fn take(&self, from: usize, take: impl FnOnce(&[u32]) -> Result<()>) -> Result<NewTokens> {
        let arrived = self.lock();
        let new = arrived.ids.get(from..).unwrap_or_default();
        if !new.is_empty() {
            take(new)?;
        }
        Ok(NewTokens {
            ended: matches!(arrived.end, Some(Ok(()))),
            count: new.len(),
            read_bytes: read_bytes(arrived.byte_ranges.get(from..).unwrap_or_default()),
            cut: arrived.cut,
        })
    }

    /// Returns true if no later request uses the document.
    pub(crate) fn is_used_once(&self) -> bool {
        self.lock().is_used_once
    }

    /// Returns copies of all tokens and of their byte ranges, and whether the text was cut.
    pub(crate) fn contents(&self) -> (Vec<u32>, Vec<ByteRange>, bool) {
        let arrived = self.lock();
        (arrived.ids.clone(), arrived.byte_ranges.clone(), arrived.cut)
    }

    fn lock(&self) -> MutexGuard<'_, Arrived> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
