//! A document on its way to the engine: whoever receives it leaves its tokens here, and the worker takes them up as it goes.

use super::signal::Signal;
use crate::{
    decode::summary::ByteRange,
    error::{Error, Result},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The end of a document where its tokens are left. Dropping it before the document has ended cancels the job.
pub struct Upload {
    inbox: Arc<Inbox>,
    signal: Arc<Signal>,
}

/// The other end: what a job is made of.
pub struct Arriving(pub(super) Arc<Inbox>);

/// What has come of a document. Its length is bounded by the model's: the job ends with the first token too many.
#[derive(Default)]
pub(super) struct Inbox(Mutex<Came>);

#[derive(Default)]
struct Came {
    ids: Vec<u32>,
    places: Vec<ByteRange>,
    /// Whether the text went on behind the last token.
    cut: bool,
    /// How it ended, until the job has taken that.
    end: Option<Result<()>>,
}

/// What the worker finds of a document.
pub(super) struct Found {
    /// Whether it has ended.
    pub(super) ended: bool,
    /// Tokens that were not there before.
    pub(super) new: usize,
}

/// Both ends of a document.
pub(super) fn begin(signal: &Arc<Signal>) -> (Upload, Arriving) {
    let inbox = Arc::<Inbox>::default();
    (Upload { inbox: Arc::clone(&inbox), signal: Arc::clone(signal) }, Arriving(inbox))
}

impl Upload {
    /// Leaves the next tokens, each with its bytes in the text.
    pub fn push(&self, ids: &[u32], places: &[ByteRange]) {
        let mut came = self.inbox.came();
        came.ids.extend_from_slice(ids);
        came.places.extend_from_slice(places);
        drop(came);
        self.signal.raise();
    }

    /// Whether nothing was left yet.
    pub fn is_empty(&self) -> bool {
        self.inbox.tokens() == 0
    }

    /// Ends the document; `cut` if the text went on.
    pub fn close(self, cut: bool) {
        self.end(Ok(()), cut);
    }

    /// Ends the job: the document will never be whole.
    pub fn fail(self, error: Error) {
        self.end(Err(error), false);
    }

    fn end(&self, end: Result<()>, cut: bool) {
        let mut came = self.inbox.came();
        if came.end.is_none() {
            (came.end, came.cut) = (Some(end), cut);
        }
        drop(came);
        self.signal.raise();
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.end(Err(Error::Cancelled), false);
    }
}

impl Inbox {
    /// Of a document that is whole.
    pub(super) fn whole(ids: Vec<u32>, places: Vec<ByteRange>, cut: bool) -> Self {
        Self(Mutex::new(Came { ids, places, cut, end: Some(Ok(())) }))
    }

    /// Tokens that have come.
    pub(super) fn tokens(&self) -> usize {
        self.came().ids.len()
    }

    /// Whether it has ended well.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.came().end, Some(Ok(())))
    }

    /// Why it will never be whole, if so; told once.
    pub(super) fn failure(&self) -> Option<Error> {
        match &mut self.came().end {
            Some(Err(error)) => Some(std::mem::replace(error, Error::Cancelled)),
            _ => None,
        }
    }

    /// Shows the tokens from `from` on.
    pub(super) fn take(&self, from: usize, take: impl FnOnce(&[u32]) -> Result<()>) -> Result<Found> {
        let came = self.came();
        let new = came.ids.get(from..).unwrap_or_default();
        if !new.is_empty() {
            take(new)?;
        }
        Ok(Found { ended: matches!(came.end, Some(Ok(()))), new: new.len() })
    }

    /// All of it, where its tokens stand, and whether its text went on.
    pub(super) fn all(&self) -> (Vec<u32>, Vec<ByteRange>, bool) {
        let came = self.came();
        (came.ids.clone(), came.places.clone(), came.cut)
    }

    fn came(&self) -> MutexGuard<'_, Came> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
