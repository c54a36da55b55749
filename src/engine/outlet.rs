//! A job's way to its reader: bounded, never blocking.
//!
//! A reader that does not read pauses its own row and nothing else: what finds no room is held here, and the worker is
//! woken when there is some. Places of the channel are kept for what must be told in any case, so that nothing of it waits for
//! the reader: how a document was read, what was held back at the end, and the verdict.

use super::handle::{DocumentEvent, Event, Events};
use crate::{
    decode::{
        options::EmittedSymbol,
        summary::{DocumentProgress, EncodedDocument, PoolingUpdate},
    },
    error::{Error, Result},
};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};
use tokio::sync::mpsc::{
    self, OwnedPermit, Sender,
    error::{SendError, TrySendError},
};

type Message = Result<Event>;
type Room = Pin<Box<dyn Future<Output = Result<OwnedPermit<Message>, SendError<()>>> + Send>>;

/// Places kept for what must be told.
const KEPT: usize = 3;
/// More places than any reader could need, and less than the channel's own limit.
const MOST: usize = 1 << 24;

/// The sending side of a job's events.
pub(super) struct Outlet {
    sender: Sender<Message>,
    /// Symbols that found no room.
    held: Vec<EmittedSymbol>,
    /// The place in the channel that they wait for.
    room: Option<Room>,
    /// Places free when last looked at, and since when there have been no more: since the reader took something.
    seen: usize,
    since: Option<Instant>,
    /// Places for events, those kept left out.
    events: usize,
    /// None once it was used.
    read: Option<OwnedPermit<Message>>,
    last_words: OwnedPermit<Message>,
    verdict: OwnedPermit<Message>,
}

impl Outlet {
    /// An outlet and the reader's side of it, with room for so many events.
    pub(super) fn open(events: usize) -> Result<(Self, Events)> {
        let events = events.clamp(1, MOST);
        let (sender, reader) = mpsc::channel(events + KEPT);
        let keep = || sender.clone().try_reserve_owned();
        let (Ok(read), Ok(last_words), Ok(verdict)) = (keep(), keep(), keep()) else {
            return Err(Error::Internal("a new channel has no room".into()));
        };
        let (held, room, seen, since, read) = (Vec::new(), None, 0, None, Some(read));
        Ok((Self { sender, held, room, seen, since, events, read, last_words, verdict }, reader))
    }

    /// Whether the reader is gone.
    pub(super) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Tells that the job got its row. The first event always finds room.
    pub(super) fn start(&self, cached_chars: usize) {
        // A reader that is gone is noticed before the next step.
        let _ = self.sender.try_send(Ok(Event::Started { cached_chars }));
    }

    /// Tells how far a document is, if there is room: it is no matter if that is not heard.
    pub(super) fn note(&self, reading: DocumentProgress) {
        let _ = self.sender.try_send(Ok(Event::Document(DocumentEvent::Reading(reading))));
    }

    /// Tells what poolings have chosen, if there is room; only then is it gathered.
    pub(super) fn chosen(&self, gather: impl FnOnce() -> Option<PoolingUpdate>) {
        let Ok(place) = self.sender.try_reserve() else { return };
        if let Some(chosen) = gather() {
            place.send(Ok(Event::Document(DocumentEvent::Chosen(Box::new(chosen)))));
        }
    }

    /// Tells how a document was read, once.
    pub(super) fn read(&mut self, encoded: &Arc<EncodedDocument>) {
        if let Some(place) = self.read.take() {
            place.send(Ok(Event::Document(DocumentEvent::Encoded(Arc::clone(encoded)))));
        }
    }

    /// Tells symbols, or holds them until there is room.
    pub(super) fn tell(&mut self, characters: Vec<EmittedSymbol>) {
        if self.room.is_some() {
            self.held.extend(characters);
            return;
        }
        let refusal = match self.sender.try_reserve() {
            Ok(place) => return place.send(Ok(Event::Characters(characters))),
            Err(refusal) => refusal,
        };
        if matches!(refusal, TrySendError::Full(())) {
            self.held = characters;
            (self.seen, self.since) = (0, None);
            self.room = Some(Box::pin(self.sender.clone().reserve_owned()));
        }
    }

    /// Whether nothing is held any more, after another try; if something is, `waker` is called once there is room.
    pub(super) fn is_free(&mut self, waker: &Waker) -> bool {
        let Some(room) = &mut self.room else { return true };
        match room.as_mut().poll(&mut Context::from_waker(waker)) {
            Poll::Pending => return false,
            Poll::Ready(Ok(place)) => {
                place.send(Ok(Event::Characters(std::mem::take(&mut self.held))));
            }
            Poll::Ready(Err(_)) => self.held.clear(),
        }
        (self.room, self.since) = (None, None);
        true
    }

    /// Whether so many places are free that a reader that was behind may be said to have caught up: half of them.
    pub(super) fn is_roomy(&self) -> bool {
        self.sender.capacity() >= self.events.div_ceil(2)
    }

    /// How long the reader has taken nothing; to be asked while there is something for it.
    pub(super) fn silence(&mut self, now: Instant) -> Duration {
        let free = self.sender.capacity();
        if free > self.seen {
            self.since = None;
        }
        self.seen = free;
        now.saturating_duration_since(*self.since.get_or_insert(now))
    }

    /// Tells what is held and how the job ended.
    pub(super) fn finish(self, verdict: Message) {
        if !self.held.is_empty() {
            self.last_words.send(Ok(Event::Characters(self.held)));
        }
        self.verdict.send(verdict);
    }
}
