//! A request about a text, which runs on one row: generation or scoring.

use crate::{
    decode::{
        contract::{Model, State},
        session::Session,
    },
    engine::{
        cache::{Key, SegmentCacheHandle},
        observer::Observer,
        scheduler::{Beginning, RowActivity},
    },
    error::Result,
};

/// Symbols beyond its current ones for which a request must have memory when it is admitted.
pub(super) const MEMORY_MARGIN: usize = 64;
/// Maximum remaining symbols of a search's request that is fed before prompts. A request with more is treated as a prompt.
const MAX_SEARCHED_SYMBOLS: usize = 16;

pub(crate) struct TextRequest {
    pub(crate) session: Session,
    /// Key of its states in the segment cache; `None` if they are not cached.
    pub(crate) cache_key: Option<Key>,
}

impl TextRequest {
    /// Returns the state to start from: that of the longest cached prefix of its text, or a new one.
    pub(crate) fn begin(
        &mut self,
        model: &dyn Model,
        cache: &SegmentCacheHandle,
        observer: &dyn Observer,
    ) -> Result<Box<dyn State>> {
        let session = &mut self.session;
        let hit = cache.find(self.cache_key.as_ref(), session);
        if self.cache_key.is_some() {
            let (len, bytes) = hit.as_ref().map_or((0, 0), |hit| (hit.len, hit.state.bytes()));
            observer.cache_lookup(session.cacheable_prefix(), len, bytes);
        }
        let Some(hit) = hit else {
            let mut state = model.begin(session.boundaries().clone())?;
            session.resume(&mut *state)?;
            return Ok(state);
        };
        session.start_at(hit.len, hit.state.level_segments())?;
        Ok(hit.state)
    }

    /// Returns the beginning of its text, which other requests may share.
    pub(super) fn beginning(&self) -> Beginning {
        let text = self.session.text();
        match (&self.cache_key, text.after(0)) {
            (Some(key), Some(symbols)) => Beginning::new(key, symbols.iter()),
            _ => Beginning::default(),
        }
    }

    pub(crate) fn cache_state(&self, cache: &SegmentCacheHandle, state: &dyn State) {
        cache.keep(self.cache_key.as_ref(), &self.session, state);
    }

    /// Caches the state of a request that looks ahead, for other continuations of its text.
    pub(crate) fn cache_open_state(&self, cache: &SegmentCacheHandle, state: &dyn State) {
        if self.cache_key.is_some() {
            cache.keep_open(self.cache_key.as_ref(), &self.session, state.fork());
        }
    }

    /// Caches the state of an ended request. The state after a text whose distribution was wanted serves its continuations, too.
    pub(crate) fn cache_last_state(&self, cache: &SegmentCacheHandle, state: Box<dyn State>) {
        if self.session.wants_distribution() && state.len() == self.session.text_symbols() {
            cache.keep_open(self.cache_key.as_ref(), &self.session, state);
        } else {
            self.cache_state(cache, &*state);
        }
    }

    /// Returns the number of symbols for which its row needs memory soon.
    pub(super) fn symbols_soon(&self) -> usize {
        let symbols = self.session.sequence_symbols().saturating_add(self.session.resumed_ahead());
        symbols.saturating_add(MEMORY_MARGIN).min(self.session.max_symbols())
    }

    /// Returns its row's next activity, if its client keeps up.
    pub(super) fn activity(&self) -> RowActivity {
        if !self.session.is_prefilling() {
            return RowActivity::Decoding(1);
        }
        match self.session.remaining_symbols().max(1) {
            left @ ..=MAX_SEARCHED_SYMBOLS if self.session.wants_distribution() => RowActivity::Searching(left),
            left => RowActivity::Prefilling(left),
        }
    }
}
