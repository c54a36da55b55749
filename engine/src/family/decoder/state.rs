//! One sequence: the keys and values within its window, and its length.

use crate::{
    decode::{
        contract::{PageUse, State},
        replay::ReplayStart,
    },
    error::{Error, Result},
    family::parts::step::check_rollback,
    nn::{kv_cache::KvCache, window::Window},
};
use std::sync::Arc;

/// One sequence of a decoder.
pub struct DecoderState {
    /// Keys and values: the start symbol's, if there is one, then those of the fed symbols.
    pub cache: KvCache,
    /// The cache of a sequence without symbols: empty, or with the start symbol.
    pub start: Arc<KvCache>,
    /// Positions that a position attends to.
    pub window: Window,
    /// Symbols that have had their finish step; later ones are in flight.
    pub finished: usize,
    /// The head's input: (wanted, D)
    pub hidden: Vec<f32>,
    /// Keys and values of an encoded document, if rows attend to one: shared, never written.
    pub memory: Option<KvCache>,
    /// Start of a resumed sequence; `None` if it starts with the text.
    pub resumed: Option<ReplayStart>,
}

impl DecoderState {
    /// Returns a sequence without symbols.
    pub fn new(start: Arc<KvCache>, window: Window, memory: Option<KvCache>) -> Self {
        Self { cache: (*start).clone(), start, window, finished: 0, hidden: Vec::new(), memory, resumed: None }
    }

    /// True if no symbol is in flight.
    pub fn is_ready(&self) -> bool {
        self.finished == self.len()
    }

    fn truncate(&mut self, len: usize) {
        if len == 0 && self.cache.first() > 0 {
            // the window dropped the start symbol, or the sequence was resumed after it
            self.cache = (*self.start).clone();
            self.resumed = None;
        }
        self.cache.truncate(self.start.len() + len);
        self.finished = self.finished.min(len);
    }
}

impl State for DecoderState {
    fn len(&self) -> usize {
        self.cache.len() - self.start.len()
    }

    fn segments(&self) -> usize {
        0
    }

    fn fork(&self) -> Box<dyn State> {
        let mut fork = Self {
            cache: self.cache.clone(),
            start: self.start.clone(),
            hidden: Vec::new(),
            memory: self.memory.clone(),
            ..*self
        };
        // if the window has moved past the start of the feed, only an empty sequence is left
        fork.truncate(if self.finished < self.earliest() { 0 } else { self.finished });
        Box::new(fork)
    }

    fn rollback(&mut self, len: usize) -> Result<()> {
        check_rollback(self, self.is_ready(), len)?;
        self.truncate(len);
        Ok(())
    }

    fn earliest(&self) -> usize {
        let held = self.window.earliest_rollback(self.cache.start()).saturating_sub(self.start.len());
        held.max(self.resumed.map_or(0, |start| start.valid_from))
    }

    fn replay_start(&self) -> Option<ReplayStart> {
        let valid_from = self.earliest();
        let lead = self.start.len();
        let can_resume = self.memory.is_none() && self.is_ready() && (1..=self.len()).contains(&valid_from);
        // each layer's window reaches further back: from the next symbol through all layers down to the first fed symbol
        let low = self.window.first_key_through(lead + valid_from, self.cache.layout().layers);
        let symbol = low.checked_sub(lead).filter(|&symbol| can_resume && symbol > 0)?;
        Some(ReplayStart { symbol, valid_from, skipped: None })
    }

    fn resume(&mut self, start: ReplayStart) -> Result<()> {
        if !(self.is_empty() && self.memory.is_none() && start.skipped.is_none()) {
            return Err(Error::Internal(format!("cannot resume a sequence of {} symbols from {start:?}", self.len())));
        }
        self.cache = self.cache.from_position(self.start.len() + start.symbol);
        self.finished = start.symbol;
        self.resumed = Some(start);
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
            each(PageUse { id: page.id(), bytes: page.bytes().len(), references: page.references(), own: 1 });
        }
    }

    fn own_bytes(&self) -> usize {
        size_of::<Self>() + self.cache.own_bytes() + self.memory.as_ref().map_or(0, KvCache::own_bytes)
    }
}
