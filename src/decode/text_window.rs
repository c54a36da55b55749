//! A text as far as it is still needed: its end, with all positions counted from its beginning. Of what was dropped a digest
//! stays, by which two texts that were cut alike are known to have begun alike.

use sha2::{Digest as _, Sha256};
use std::ops::Range;

/// SHA-256 of a text's beginning.
pub type Digest = [u8; 32];

/// A text that can lose its beginning.
#[derive(Debug, Clone)]
pub(super) struct TextWindow {
    /// Symbols dropped, and their digest so far.
    dropped: usize,
    digest: Sha256,
    /// Those behind.
    held: Vec<u32>,
}

impl TextWindow {
    pub(super) fn new(symbols: Vec<u32>) -> Self {
        Self { dropped: 0, digest: Sha256::new(), held: symbols }
    }

    /// Symbols, dropped ones included.
    pub(super) fn len(&self) -> usize {
        self.dropped + self.held.len()
    }

    /// Symbols held.
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// The symbols at these positions, if all are held.
    pub(super) fn get(&self, positions: Range<usize>) -> Option<&[u32]> {
        self.held.get(positions.start.checked_sub(self.dropped)?..positions.end.checked_sub(self.dropped)?)
    }

    /// The same, to change.
    pub(super) fn get_mut(&mut self, positions: Range<usize>) -> Option<&mut [u32]> {
        self.held.get_mut(positions.start.checked_sub(self.dropped)?..positions.end.checked_sub(self.dropped)?)
    }

    pub(super) fn push(&mut self, symbol: u32) {
        self.held.push(symbol);
    }

    pub(super) fn last_mut(&mut self) -> Option<&mut u32> {
        self.held.last_mut()
    }

    /// Drops what lies before a position.
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

/// A text, or what is left of it, to be looked at.
#[derive(Debug, Clone, Copy)]
pub struct TextView<'a> {
    dropped: usize,
    /// Of what was dropped, if anything was.
    digest: Option<&'a Sha256>,
    held: &'a [u32],
}

impl<'a, T: AsRef<[u32]> + ?Sized> From<&'a T> for TextView<'a> {
    fn from(symbols: &'a T) -> Self {
        Self { dropped: 0, digest: None, held: symbols.as_ref() }
    }
}

impl<'a> TextView<'a> {
    /// Symbols, dropped ones included.
    pub fn len(&self) -> usize {
        self.dropped + self.held.len()
    }

    /// Whether there never was any.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Symbols that were dropped.
    pub fn dropped(&self) -> usize {
        self.dropped
    }

    /// Its first `len` symbols, or as many as were dropped.
    pub fn to(self, len: usize) -> Self {
        let held = len.saturating_sub(self.dropped).min(self.held.len());
        Self { held: &self.held[..held], ..self }
    }

    /// The symbols from a position on; none if some of these were dropped.
    pub fn after(&self, position: usize) -> Option<&'a [u32]> {
        self.held.get(position.checked_sub(self.dropped)?..)
    }

    /// Tells the digests of what lies before rising positions.
    pub fn digests(&self) -> PrefixDigests<'a> {
        let digest = self.digest.cloned().unwrap_or_default();
        PrefixDigests { text: *self, at: self.dropped, digest }
    }
}

/// See [`TextView::digests`].
pub struct PrefixDigests<'a> {
    text: TextView<'a>,
    at: usize,
    digest: Sha256,
}

impl PrefixDigests<'_> {
    /// That of what lies before a position, which is no smaller than the last one asked for; none if some of what lies behind it
    /// was dropped, or it lies beyond the end.
    pub fn before(&mut self, position: usize) -> Option<Digest> {
        let more = self.text.after(self.at)?.get(..position.checked_sub(self.at)?)?;
        digest(&mut self.digest, more);
        self.at = position;
        Some(self.digest.clone().finalize().into())
    }
}

fn digest(digest: &mut Sha256, symbols: &[u32]) {
    symbols.iter().for_each(|symbol| digest.update(symbol.to_le_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_where_it_was_and_the_rest_is_known_by_its_digest() {
        let symbols: Vec<u32> = (0..100).collect();
        let mut tail = TextWindow::new(symbols[..70].to_vec());
        for position in [0, 10, 10, 4, 50] {
            tail.drop_before(position);
        }
        symbols[70..].iter().for_each(|&symbol| tail.push(symbol));
        assert_eq!((tail.len(), tail.held()), (100, 50));
        assert_eq!((tail.get(60..80), tail.get(49..80), tail.get(60..101)), (Some(&symbols[60..80]), None, None));
        let (cut, whole) = (tail.text(), TextView::from(&symbols));
        assert_eq!((cut.len(), cut.dropped(), whole.dropped()), (100, 50, 0));
        assert_eq!((cut.after(90), cut.after(49)), (Some(&symbols[90..]), None));
        assert_eq!((cut.to(60).after(50), cut.to(20).len()), (Some(&symbols[50..60]), 50));
        let (mut of_cut, mut of_whole) = (cut.digests(), whole.digests());
        let early = of_whole.before(20);
        assert!(early.is_some() && of_whole.before(19).is_none() && cut.digests().before(49).is_none());
        for position in [50, 50, 77] {
            let digest = of_cut.before(position);
            assert!(digest.is_some() && digest == of_whole.before(position) && digest != early);
        }
        assert!(of_whole.before(101).is_none());
        tail.drop_before(500);
        assert_eq!((tail.len(), tail.held()), (100, 0));
    }
}
