//! The symbols of an editing session's text, which the session keeps between its searches.
//!
//! Clones of a session share them as long as they have the same text. The clone that is edited first takes them along. A clone that
//! stays behind encodes its text in each search, until it is edited and begins symbols of its own.

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
    /// The version of the text that is encoded. Each edit makes the next one.
    version: u64,
    /// Maximum bytes.
    limit: usize,
    encoded: EncodedText,
}

impl SessionSymbols {
    /// Sets the maximum number of bytes. Without one, no symbols are kept.
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

    /// Returns how many of the first `bytes` bytes of the text must be encoded.
    pub(super) fn unencoded(&self, bytes: usize) -> usize {
        let kept = self.lock();
        if kept.version == self.version { bytes - kept.encoded.kept(bytes) } else { bytes }
    }

    /// Encodes `text`, the beginning of the session's text. Fails as [`Card::encode`] does.
    pub(super) fn prefix(&self, field: &'static str, text: &str, card: &Card) -> Result<Arc<SharedPrefix>> {
        // a long text is encoded while the symbols are not locked
        let mut encoded = self.take();
        let prefix = encoded.prefix(field, text, card);
        let mut kept = self.lock();
        let is_longer = encoded.kept(usize::MAX) >= kept.encoded.kept(usize::MAX);
        if kept.version == self.version && is_longer && encoded.bytes() <= kept.limit {
            std::mem::swap(&mut kept.encoded, &mut encoded);
        }
        drop(kept);
        prefix
    }

    /// Takes the symbols, if they are those of the session's text.
    fn take(&self) -> EncodedText {
        let mut kept = self.lock();
        if kept.version == self.version { std::mem::take(&mut kept.encoded) } else { EncodedText::default() }
    }

    fn lock(&self) -> MutexGuard<'_, KeptSymbols> {
        // each change is complete before anything can panic
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{TextNormaliser, Vocabulary};

    fn card() -> Card {
        Card { max_symbols: 1 << 20, ..Card::for_tests(Vocabulary::byte_level(TextNormaliser::None)) }
    }

    fn read(symbols: &SessionSymbols, text: &str) -> usize {
        let left = symbols.unencoded(text.len());
        let prefix = symbols.prefix("text", text, &card()).unwrap();
        assert!(prefix.symbols() == &card().encode("text", text).unwrap());
        left
    }

    /// The clone that is edited first takes the symbols along.
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

    /// A search that began before an edit does not bring back what the edit made void.
    #[test]
    fn an_edit_voids_the_symbols_of_a_search_in_progress() {
        let mut session = SessionSymbols::default();
        session.set_limit(1 << 16);
        let text = "a".repeat(10_000);
        let search = session.clone();
        let taken = session.take();
        session.edit(3_000);
        drop(taken);
        assert_eq!(read(&search, &text), 10_000);
        let edited = [&text[..3_000], &"b".repeat(4_000)].concat();
        assert_eq!(read(&session, &edited), 7_000);
        assert!(read(&session, &edited) < 2_048);
    }
}
