//! The sending side of a request's events: bounded, and it never blocks the worker.
//!
//! A client that does not read pauses its own row and nothing else. Characters without room in the channel wait here, and the
//! worker is woken when there is room. Three slots of the channel are reserved for events that must not wait for the client:
//! the encoded document or the coded block, the characters held at the end, and the outcome.

use crate::{
    decode::{
        codec::Coded,
        next_symbol::NextDistributions,
        options::EmittedSymbol,
        summary::{DocumentProgress, EncodedDocument, PoolingUpdate},
    },
    engine::api::{DocumentEvent, Event, Events},
    error::{Error, Result},
};
use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};
use tokio::sync::mpsc::{
    self, OwnedPermit, Sender,
    error::{SendError, TrySendError},
};

type EventResult = Result<Event>;
type PendingSlot = Pin<Box<dyn Future<Output = Result<OwnedPermit<EventResult>, SendError<()>>> + Send>>;

/// Slots reserved for the encoded document or coded block, the final characters and the outcome.
const RESERVED_SLOTS: usize = 3;
/// Maximum symbols of an event, in which each alternative of a symbol counts like one. The last event has all that are held. A step
/// may emit a whole chunk of a prompt; the memory of a channel must not depend on it.
const EVENT_SYMBOLS: usize = 4;
/// Maximum events of a channel: more than any client needs, and below tokio's own limit.
const MAX_EVENTS: usize = 1 << 24;

pub(crate) struct EventSender {
    sender: Sender<EventResult>,
    /// Characters without room in the channel.
    held: VecDeque<EmittedSymbol>,
    /// Resolves to a slot for the held characters.
    pending_slot: Option<PendingSlot>,
    free_slots: usize,
    /// Since when the client has read nothing, according to `free_slots`.
    unread_since: Option<Instant>,
    /// Slots of the channel without the reserved ones.
    capacity: usize,
    /// `None` once it is used.
    encoded_slot: Option<OwnedPermit<EventResult>>,
    final_slot: Option<OwnedPermit<EventResult>>,
    outcome_slot: Option<OwnedPermit<EventResult>>,
}

impl EventSender {
    /// Opens a channel with room for `capacity` events. Fails with `Internal` if the new channel has no room.
    pub(crate) fn open(capacity: usize) -> Result<(Self, Events)> {
        let capacity = capacity.clamp(1, MAX_EVENTS);
        let (sender, events) = mpsc::channel(capacity + RESERVED_SLOTS);
        let reserve = || sender.clone().try_reserve_owned();
        let (Ok(encoded_slot), Ok(final_slot), Ok(outcome_slot)) = (reserve(), reserve(), reserve()) else {
            return Err(Error::Internal("a new event channel has no room".into()));
        };
        let event_sender = Self {
            sender,
            held: VecDeque::new(),
            pending_slot: None,
            free_slots: 0,
            unread_since: None,
            capacity,
            encoded_slot: Some(encoded_slot),
            final_slot: Some(final_slot),
            outcome_slot: Some(outcome_slot),
        };
        Ok((event_sender, events))
    }

    /// Returns true if the client dropped its receiver.
    pub(crate) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Sends `Started`. The first event always finds room.
    pub(crate) fn send_started(&self, cached_chars: usize) {
        // the worker notices a dropped receiver before the next step
        let _ = self.sender.try_send(Ok(Event::Started { cached_chars }));
    }

    /// Sends the progress of a document's encoding. Dropped if the channel is full.
    pub(crate) fn send_progress(&self, reading: DocumentProgress) {
        let _ = self.sender.try_send(Ok(Event::Document(DocumentEvent::Reading(reading))));
    }

    /// Sends the choices of poolings. Calls `collect` only if the channel has room.
    pub(crate) fn send_chosen(&self, collect: impl FnOnce() -> Option<PoolingUpdate>) {
        let Ok(slot) = self.sender.try_reserve() else { return };
        if let Some(chosen) = collect() {
            slot.send(Ok(Event::Document(DocumentEvent::Chosen(Box::new(chosen)))));
        }
    }

    /// Sends how a document was encoded; only the first call sends.
    pub(crate) fn send_encoded(&mut self, encoded: &Arc<EncodedDocument>) {
        self.send_reserved(Event::Document(DocumentEvent::Encoded(Arc::clone(encoded))));
    }

    /// Sends the block of a request that reads no document.
    pub(crate) fn send_coded(&mut self, coded: Coded) {
        self.send_reserved(Event::Coded(coded));
    }

    /// Sends the distributions of a request that emits no characters.
    pub(crate) fn send_next(&mut self, distributions: NextDistributions) {
        self.send_reserved(Event::Next(distributions));
    }

    fn send_reserved(&mut self, event: Event) {
        if let Some(slot) = self.encoded_slot.take() {
            slot.send(Ok(event));
        }
    }

    /// Sends characters in events of at most [`EVENT_SYMBOLS`], or holds them until the channel has room.
    pub(crate) fn send_characters(&mut self, characters: Vec<EmittedSymbol>) {
        if self.pending_slot.is_some() {
            self.held.extend(characters);
            return;
        }
        // The usual case, in which nothing is copied.
        if characters.len() <= event_symbols(characters.first())
            && let Ok(slot) = self.sender.try_reserve()
        {
            return slot.send(Ok(Event::Characters(characters)));
        }
        self.held.extend(characters);
        self.send_held();
    }

    /// Sends held characters while the channel has room.
    fn send_held(&mut self) {
        while !self.held.is_empty() {
            match self.sender.try_reserve() {
                Ok(slot) => slot.send(Ok(Event::Characters(next_characters(&mut self.held)))),
                Err(TrySendError::Full(())) => {
                    self.free_slots = 0;
                    self.unread_since = None;
                    self.pending_slot = Some(Box::pin(self.sender.clone().reserve_owned()));
                    return;
                }
                Err(TrySendError::Closed(())) => self.held.clear(),
            }
        }
    }

    /// Tries to send the held characters. Returns true if none are left; otherwise `waker` is woken once there is room.
    pub(crate) fn flush(&mut self, waker: &Waker) -> bool {
        while let Some(slot) = &mut self.pending_slot {
            match slot.as_mut().poll(&mut Context::from_waker(waker)) {
                Poll::Pending => return false,
                Poll::Ready(Ok(slot)) => {
                    slot.send(Ok(Event::Characters(next_characters(&mut self.held))));
                }
                Poll::Ready(Err(_)) => self.held.clear(),
            }
            self.pending_slot = None;
            self.unread_since = None;
            self.send_held();
        }
        true
    }

    /// Returns true if at least half of the slots are free: a client that was behind has caught up.
    pub(crate) fn has_caught_up(&self) -> bool {
        self.sender.capacity() >= self.capacity.div_ceil(2)
    }

    /// Returns how long the client has read nothing. Called only while there are events for it to read.
    pub(crate) fn unread_for(&mut self, now: Instant) -> Duration {
        let free = self.sender.capacity();
        if free > self.free_slots {
            self.unread_since = None;
        }
        self.free_slots = free;
        now.saturating_duration_since(*self.unread_since.get_or_insert(now))
    }

    pub(crate) fn finish(mut self, outcome: EventResult) {
        self.send_outcome(outcome);
    }

    fn send_outcome(&mut self, outcome: EventResult) {
        let held = std::mem::take(&mut self.held);
        if let Some(slot) = self.final_slot.take().filter(|_| !held.is_empty()) {
            slot.send(Ok(Event::Characters(held.into())));
        }
        if let Some(slot) = self.outcome_slot.take() {
            slot.send(outcome);
        }
    }
}

/// Takes the characters of the next event.
fn next_characters(held: &mut VecDeque<EmittedSymbol>) -> Vec<EmittedSymbol> {
    let count = event_symbols(held.front()).min(held.len());
    held.drain(..count).collect()
}

/// Returns the maximum number of symbols of an event that begins with `first`. All symbols of a request have as many alternatives.
fn event_symbols(first: Option<&EmittedSymbol>) -> usize {
    let alternatives = first.map_or(0, |symbol| symbol.top.len());
    (EVENT_SYMBOLS / (1 + alternatives)).max(1)
}

/// Every request is answered, even if a panic of the worker dropped it.
impl Drop for EventSender {
    fn drop(&mut self) {
        self.send_outcome(Err(Error::Internal("the worker lost the request in a panic".into())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbols(count: u32, alternatives: usize) -> Vec<EmittedSymbol> {
        let top = vec![(0, 0.0); alternatives];
        (0..count).map(|symbol| EmittedSymbol { top: top.clone(), ..EmittedSymbol::plain(symbol) }).collect()
    }

    fn received(events: &mut Events) -> Vec<usize> {
        let mut lengths = Vec::new();
        while let Ok(event) = events.try_recv() {
            let Ok(Event::Characters(characters)) = event else { continue };
            lengths.push(characters.len());
        }
        lengths
    }

    #[test]
    fn a_channel_holds_a_limited_number_of_symbols() {
        for (alternatives, in_event) in [(0, 4), (1, 2), (20, 1)] {
            let (mut sender, mut events) = EventSender::open(3).unwrap();
            sender.send_characters(symbols(15, alternatives));
            assert_eq!(received(&mut events), [in_event; 3]);
            let mut left = 15 - 3 * in_event;
            while !sender.flush(Waker::noop()) {
                let lengths = received(&mut events);
                assert!(lengths.len() <= 3 && lengths.iter().all(|length| *length <= in_event), "{lengths:?}");
                left -= lengths.iter().sum::<usize>();
            }
            assert_eq!(received(&mut events).iter().sum::<usize>(), left);
        }
    }
}
