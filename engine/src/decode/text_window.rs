//! A text that can drop its beginning; positions still count from the text's start. A digest of the dropped symbols remains:
//! two texts that were cut at one position have the same beginning if their digests are equal.

use sha2::{Digest as _, Sha256};
use std::ops::Range;

/// Symbols that are digested at once.
const DIGESTED_SYMBOLS: usize = 64;

/// SHA-256 of a text's prefix.
pub type Digest = [u8; 32];

/// The end of a text, with a digest of the dropped beginning.
#[derive(Debug, Clone)]
pub(super) struct TextWindow {
    /// Number of dropped symbols.
    dropped: usize,
    digest: Sha256,
    /// The symbols after them.
    pub(super) held: Vec<u32>,
}

impl TextWindow {
    pub(super) fn new(symbols: Vec<u32>) -> Self {
        Self { dropped: 0, digest: Sha256::new(), held: symbols }
    }

    /// Number of symbols, dropped ones included.
    pub(super) fn len(&self) -> usize {
        self.dropped + self.held.len()
    }

    /// Returns the symbols at `positions`, if all are held.
    pub(super) fn get(&self, positions: Range<usize>) -> Option<&[u32]> {
        self.held.get(positions.start.checked_sub(self.dropped)?..positions.end.checked_sub(self.dropped)?)
    }

    /// Mutable variant of [`get`](Self::get).
    pub(super) fn get_mut(&mut self, positions: Range<usize>) -> Option<&mut [u32]> {
        self.held.get_mut(positions.start.checked_sub(self.dropped)?..positions.end.checked_sub(self.dropped)?)
    }

    pub(super) fn drop_before(&mut self, position: usize) {
        let count = position.saturating_sub(self.dropped).min(self.held.len());
        digest(&mut self.digest, &self.held[..count]);
        self.held.drain(..count);
        self.dropped += count;
    }

    pub(super) fn text(&self) -> TextView<'_> {
        TextView { dropped: self.dropped, digest: Some(&self.digest), held: &self.held }
    }
}

/// A borrowed text, of which the beginning may have been dropped.
#[derive(Debug, Clone, Copy)]
pub struct TextView<'a> {
    dropped: usize,
    /// Digest of the dropped symbols; none if the text is complete.
    digest: Option<&'a Sha256>,
    held: &'a [u32],
}

impl<'a, T: AsRef<[u32]> + ?Sized> From<&'a T> for TextView<'a> {
    fn from(symbols: &'a T) -> Self {
        Self { dropped: 0, digest: None, held: symbols.as_ref() }
    }
}

impl<'a> TextView<'a> {
    /// Number of symbols, dropped ones included.
    pub fn len(&self) -> usize {
        self.dropped + self.held.len()
    }

    /// True if the text never had a symbol.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of dropped symbols.
    pub fn dropped(&self) -> usize {
        self.dropped
    }

    /// Returns its first `len` symbols; at least the dropped ones.
    pub fn prefix(self, len: usize) -> Self {
        let held = len.saturating_sub(self.dropped).min(self.held.len());
        Self { held: &self.held[..held], ..self }
    }

    /// Returns the symbols from `position` on; none if some of them were dropped.
    pub fn after(&self, position: usize) -> Option<&'a [u32]> {
        self.held.get(position.checked_sub(self.dropped)?..)
    }

    /// Returns a [`PrefixDigests`], which computes the digests of prefixes of rising length.
    pub fn digests(&self) -> PrefixDigests<'a> {
        PrefixDigests { text: *self, position: self.dropped, digest: self.digest.cloned().unwrap_or_default() }
    }
}

/// See [`TextView::digests`].
pub struct PrefixDigests<'a> {
    text: TextView<'a>,
    position: usize,
    digest: Sha256,
}

impl PrefixDigests<'_> {
    /// Returns the digest of the symbols before `position`, which must not be below the last one requested. None if symbols from
    /// there on were dropped, or if `position` is beyond the end.
    pub fn before(&mut self, position: usize) -> Option<Digest> {
        let more = self.text.after(self.position)?.get(..position.checked_sub(self.position)?)?;
        digest(&mut self.digest, more);
        self.position = position;
        Some(self.digest.clone().finalize().into())
    }
}

fn digest(digest: &mut Sha256, symbols: &[u32]) {
    let mut bytes = [0; DIGESTED_SYMBOLS * size_of::<u32>()];
    for symbols in symbols.chunks(DIGESTED_SYMBOLS) {
        let (own, _) = bytes.as_chunks_mut();
        own.iter_mut().zip(symbols).for_each(|(bytes, symbol)| *bytes = symbol.to_le_bytes());
        digest.update(&bytes[..size_of_val(symbols)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_prefixes_keep_positions_and_digests() {
        let symbols: Vec<u32> = (0..100).collect();
        let mut window = TextWindow::new(symbols[..70].to_vec());
        for position in [0, 10, 10, 4, 50] {
            window.drop_before(position);
        }
        symbols[70..].iter().for_each(|&symbol| window.held.push(symbol));
        assert_eq!((window.len(), window.held.len()), (100, 50));
        assert_eq!((window.get(60..80), window.get(49..80), window.get(60..101)), (Some(&symbols[60..80]), None, None));
        let cut = window.text();
        let complete = TextView::from(&symbols);
        assert_eq!((cut.len(), cut.dropped(), complete.dropped()), (100, 50, 0));
        assert_eq!((cut.after(90), cut.after(49)), (Some(&symbols[90..]), None));
        assert_eq!((cut.prefix(60).after(50), cut.prefix(20).len()), (Some(&symbols[50..60]), 50));
        let mut cut_digests = cut.digests();
        let mut complete_digests = complete.digests();
        let early = complete_digests.before(20);
        assert!(early.is_some() && complete_digests.before(19).is_none() && cut.digests().before(49).is_none());
        for position in [50, 50, 77] {
            let digest = cut_digests.before(position);
            assert!(digest.is_some() && digest == complete_digests.before(position) && digest != early);
        }
        assert!(complete_digests.before(101).is_none());
        window.drop_before(500);
        assert_eq!((window.len(), window.held.len()), (100, 0));
    }
}
