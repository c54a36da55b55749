//! What a sequence remembers: the keys and values that its window still shows, and how far it has come.

use crate::{
    decode::{
        contract::{PageUse, State},
        replay::ReplayStart,
    },
    error::{Error, Result},
    nn::{kv_cache::KvCache, window::Window},
};
use std::sync::Arc;

/// One sequence of a decoder.
pub struct DecoderState {
    /// Keys and values: of what every sequence begins with, then of its symbols.
    pub cache: KvCache,
    /// The cache of a sequence that has seen no symbol: empty, or with the start's mark.
    pub begun: Arc<KvCache>,
    /// Which positions a position attends to.
    pub window: Window,
    /// Symbols that have had their finish step; those behind are in flight.
    pub finished: usize,
    /// What the finish step makes logits of: (wanted, D).
    pub hidden: Vec<f32>,
    /// What it attends to beside its own past, where that is something: never written, shared with whoever else reads it.
    pub memory: Option<KvCache>,
    /// Where it was taken up, if that was not at the text's beginning.
    pub resumed: Option<ReplayStart>,
}

impl DecoderState {
    /// One that has seen no symbol.
    pub fn new(begun: Arc<KvCache>, window: Window, memory: Option<KvCache>) -> Self {
        Self { cache: (*begun).clone(), begun, window, finished: 0, hidden: Vec::new(), memory, resumed: None }
    }

    /// Whether no symbol is in flight.
    pub fn is_ready(&self) -> bool {
        self.finished == self.len()
    }

    fn truncate(&mut self, len: usize) {
        if len == 0 && self.cache.first() > 0 {
            // the window has left the start's mark behind, or it was passed over
            self.cache = (*self.begun).clone();
            self.resumed = None;
        }
        self.cache.truncate(self.begun.len() + len);
        self.finished = self.finished.min(len);
    }
}

impl State for DecoderState {
    fn len(&self) -> usize {
        self.cache.len() - self.begun.len()
    }

    fn segments(&self) -> usize {
        0
    }

    fn fork(&self) -> Box<dyn State> {
        let Self { window, finished, resumed, .. } = *self;
        let (cache, begun, memory) = (self.cache.clone(), self.begun.clone(), self.memory.clone());
        let mut fork = Self { cache, begun, window, finished, hidden: Vec::new(), memory, resumed };
        // where the window has moved on too far since, there is no way back to before the feed
        fork.truncate(if finished < self.earliest() { 0 } else { finished });
        Box::new(fork)
    }

    fn rollback(&mut self, len: usize) -> Result<()> {
        if !self.is_ready() {
            return Err(Error::Internal("a row that is not ready cannot be rolled back".into()));
        }
        if len > self.len() {
            return Err(Error::Internal(format!("rollback to {len}, beyond the end {}", self.len())));
        }
        if len > 0 && len < self.earliest() {
            let earliest = self.earliest();
            return Err(Error::Internal(format!(
                "rollback to {len}, whose window is forgotten: none or {earliest} on"
            )));
        }
        self.truncate(len);
        Ok(())
    }

    fn earliest(&self) -> usize {
        let held = self.window.earliest_rollback(self.cache.start()).saturating_sub(self.begun.len());
        held.max(self.resumed.map_or(0, |origin| origin.valid_from))
    }

    fn replay_start(&self) -> Option<ReplayStart> {
        let (sound, lead) = (self.earliest(), self.begun.len());
        let known = self.memory.is_none() && self.is_ready() && (1..=self.len()).contains(&sound);
        // the last layer's keys for the next symbol, the one's before for those, and so on down to the symbols
        let low = self.window.first_key_through(lead + sound, self.cache.layout().layers);
        let symbol = low.checked_sub(lead).filter(|&symbol| known && symbol > 0)?;
        Some(ReplayStart { symbol, valid_from: sound, skipped: None })
    }

    fn resume(&mut self, origin: ReplayStart) -> Result<()> {
        if !(self.is_empty() && self.memory.is_none() && origin.skipped.is_none()) {
            return Err(Error::Internal(format!("a sequence of {} was to go on from {origin:?}", self.len())));
        }
        self.cache = self.cache.from_position(self.begun.len() + origin.symbol);
        (self.finished, self.resumed) = (origin.symbol, Some(origin));
        Ok(())
    }

    fn restart(&mut self, _: usize) {
        self.truncate(0);
        self.hidden.clear();
    }

    fn boundary_before(&self, len: usize) -> usize {
        let len = len.min(self.len());
        if len < self.earliest() { 0 } else { len }
    }

    fn bytes(&self) -> usize {
        self.cache.bytes() + self.memory.as_ref().map_or(0, KvCache::bytes)
    }

    fn pages(&self, each: &mut dyn FnMut(PageUse)) {
        for page in self.cache.pages().iter().chain(self.memory.iter().flat_map(KvCache::pages)) {
            each(PageUse { id: page.id(), bytes: page.bytes().len(), references: page.references() });
        }
    }

    fn own_bytes(&self) -> usize {
        size_of::<Self>() + self.cache.own_bytes() + self.memory.as_ref().map_or(0, KvCache::own_bytes)
    }
}
