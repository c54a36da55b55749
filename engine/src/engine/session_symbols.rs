//! The symbols of an editing session's text, which the session keeps between its searches.
//!
//! Clones of a session share them as long as they have the same text. The first clone to be edited keeps them; the others
//! encode their text again in each search, until they are edited and begin symbols of their own.
//!
//! A search takes the symbols, so that it encodes a long text without a lock, and returns them with what it encoded. An edit in the
//! meantime makes the symbols after it stale, and the search returns those before it.

use crate::{
    decode::{contract::Card, encoded_text::EncodedText, shared_prefix::SharedPrefix},
    error::Result,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The symbols of a session's text.
#[derive(Clone, Default)]
pub(super) struct SessionSymbols {
    kept: Arc<Mutex<KeptSymbols>>,
    /// The version of the session's text.
    version: u64,
}

#[derive(Default)]
struct KeptSymbols {
    /// Version of the encoded text. Each edit increments it.
    version: u64,
    /// Maximum bytes.
    limit: usize,
    encoded: EncodedText,
    /// Searches that have taken the symbols of any version.
    searches: usize,
    /// The first byte that was edited while searches had taken symbols.
    edited: Option<usize>,
}

/// Symbols that a search has taken, which no other search can use until they are dropped.
pub(super) struct TakenSymbols {
    encoded: EncodedText,
    /// Where the symbols are returned; `None` if they are not those of the text that is kept.
    owner: Option<Arc<Mutex<KeptSymbols>>>,
}

impl SessionSymbols {
    /// Sets the maximum number of bytes. The default, 0, keeps none.
    pub(super) fn set_limit(&self, bytes: usize) {
        let mut kept = self.lock();
        kept.limit = bytes;
        if kept.encoded.bytes() > bytes {
            kept.encoded = EncodedText::default();
        }
    }

    /// Records an edit of the session's text after the first `start` bytes.
    pub(super) fn edit(&mut self, start: usize) {
        let mut kept = self.lock();
        let limit = kept.limit;
        if kept.version == self.version {
            kept.encoded.truncate(start);
            if kept.searches > 0 {
                kept.edited = Some(kept.edited.map_or(start, |edited| edited.min(start)));
            }
            kept.version += 1;
            let version = kept.version;
            drop(kept);
            self.version = version;
        } else {
            drop(kept);
            *self = Self::default();
            self.set_limit(limit);
        }
    }

    /// Takes the symbols, if they are those of the session's text and no other search has them.
    pub(super) fn take(&self) -> TakenSymbols {
        let mut kept = self.lock();
        if kept.version != self.version {
            return TakenSymbols { encoded: EncodedText::default(), owner: None };
        }
        kept.searches += 1;
        TakenSymbols { encoded: std::mem::take(&mut kept.encoded), owner: Some(Arc::clone(&self.kept)) }
    }

    fn lock(&self) -> MutexGuard<'_, KeptSymbols> {
        lock(&self.kept)
    }
}

impl TakenSymbols {
    /// Returns how many of the first `bytes` bytes of the text must be encoded.
    pub(super) fn unencoded(&self, bytes: usize) -> usize {
        bytes - self.encoded.kept_bytes(bytes)
    }

    /// Encodes `text`, the beginning of the session's text. Fails as [`Card::encode`] does.
    pub(super) fn prefix(&mut self, field: &'static str, text: &str, card: &Card) -> Result<Arc<SharedPrefix>> {
        self.encoded.prefix(field, text, card)
    }
}

impl Drop for TakenSymbols {
    fn drop(&mut self) {
        let Some(owner) = self.owner.take() else { return };
        let mut kept = lock(&owner);
        if let Some(start) = kept.edited {
            self.encoded.truncate(start);
        }
        kept.searches -= 1;
        if kept.searches == 0 {
            kept.edited = None;
        }
        let is_longer = self.encoded.kept_bytes(usize::MAX) >= kept.encoded.kept_bytes(usize::MAX);
        if is_longer && self.encoded.bytes() <= kept.limit {
            std::mem::swap(&mut kept.encoded, &mut self.encoded);
        }
    }
}

fn lock(kept: &Mutex<KeptSymbols>) -> MutexGuard<'_, KeptSymbols> {
    // each change is complete before anything can panic
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{TextNormaliser, Vocabulary};

    fn card() -> Card {
        Card { max_symbols: 1 << 20, ..Card::for_tests(Vocabulary::byte_level(TextNormaliser::None)) }
    }

    fn read(symbols: &SessionSymbols, text: &str) -> usize {
        let mut taken = symbols.take();
        let left = taken.unencoded(text.len());
        let prefix = taken.prefix("text", text, &card()).unwrap();
        assert!(prefix.symbols() == &card().encode("text", text).unwrap());
        left
    }

    /// The first clone that is edited keeps the symbols.
    #[test]
    fn clones_with_the_same_text_share_their_symbols() {
        let mut first = SessionSymbols::default();
        let text = "a".repeat(10_000);
        assert_eq!((read(&first, &text), read(&first, &text)), (10_000, 10_000), "no memory for symbols");
        first.set_limit(1 << 16);
        let mut second = first.clone();
        assert_eq!(read(&first, &text), 10_000);
        assert!(read(&second, &text) < 2_048 && read(&second, &text[..7_000]) < 2_048);
        second.edit(9_999);
        let edited = [&text[..9_999], "bc"].concat();
        assert!(read(&second, &edited) < 2_048);
        assert_eq!((read(&first, &text), read(&first, &text)), (10_000, 10_000), "another text is encoded");
        first.edit(5_000);
        let other = [&text[..5_000], &"d".repeat(9_000)].concat();
        assert_eq!(read(&first, &other), 14_000);
        assert!(read(&first, &other) < 2_048 && read(&second, &edited) < 2_048);
        second.set_limit(30_000);
        assert_eq!(
            (read(&second, &edited), read(&second, &edited)),
            (10_001, 10_001),
            "the symbols are above the limit"
        );
    }

    /// A search returns what it encoded before the first edit, and nothing that the edits made stale.
    #[test]
    fn an_edit_keeps_the_symbols_before_it_of_a_search_in_progress() {
        let mut session = SessionSymbols::default();
        session.set_limit(1 << 16);
        let text = "a".repeat(10_000);
        let search = session.clone();
        let mut taken = search.take();
        taken.prefix("text", &text, &card()).unwrap();
        session.edit(5_000);
        session.edit(8_000);
        drop(taken);
        assert_eq!(read(&search, &text), 10_000, "another text is encoded");
        let edited = [&text[..5_000], &"b".repeat(4_000)].concat();
        assert!((4_000..6_100).contains(&read(&session, &edited)));
        assert!(read(&session, &edited) < 2_048);
        // earlier edits do not affect the next search
        let taken = session.take();
        session.edit(8_900);
        drop(taken);
        assert!(read(&session, &edited[..8_900]) < 2_048);
    }

    /// The search that takes no symbols finds that the whole text is not encoded.
    #[test]
    fn one_of_two_searches_takes_the_symbols() {
        let mut session = SessionSymbols::default();
        session.set_limit(1 << 16);
        let text = "a".repeat(10_000);
        read(&session, &text);
        let mut first = session.take();
        let mut second = session.take();
        assert!(first.unencoded(10_000) < 2_048 && second.unencoded(10_000) == 10_000);
        for taken in [&mut first, &mut second] {
            assert!(taken.prefix("text", &text, &card()).unwrap().symbols() == &card().encode("text", &text).unwrap());
        }
        drop(first);
        session.edit(4_000);
        drop(second);
        let edited = [&text[..4_000], "b"].concat();
        assert!(read(&session, &edited) < 2_048);
    }
}
