//! The last symbols of a sequence, from which n-grams are read: a list that drops its oldest entries as windows move on.

use crate::family::parts::step::clone_with_capacity;

/// Initial capacity in symbols, so that a usual sequence never reallocates during a step.
const CAPACITY: usize = 4096;

/// The symbols from some position on, up to the end of the sequence.
#[derive(Debug)]
pub struct RecentSymbols {
    /// Symbols before an n-gram's last one that the largest n reads.
    context: usize,
    /// Position of the first listed symbol.
    start: usize,
    listed: Vec<u32>,
    /// Length of the list at which the next entries are dropped.
    full: usize,
}

impl Clone for RecentSymbols {
    fn clone(&self) -> Self {
        Self { listed: clone_with_capacity(&self.listed, CAPACITY), ..*self }
    }
}

impl RecentSymbols {
    /// Returns the list of an empty sequence; `largest` is the largest n.
    pub fn new(largest: usize) -> Self {
        let listed = Vec::with_capacity(CAPACITY);
        Self { context: largest.saturating_sub(1), start: 0, listed, full: CAPACITY / 2 }
    }

    /// Symbols before a position that its n-grams read.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Empties the list of a sequence whose next position is `position`.
    pub fn start_at(&mut self, position: usize) {
        self.listed.clear();
        self.start = position;
        self.full = CAPACITY / 2;
    }

    /// Appends symbols.
    pub fn extend(&mut self, symbols: &[u32]) {
        self.listed.extend_from_slice(symbols);
    }

    /// Iterates without end from the symbol at `position` to the start of the text, before which every symbol counts as 0. So do
    /// symbols that are dropped, which no n-gram reads. Returns `None` if the symbol at `position` is not listed.
    pub fn newest_first(&self, position: usize) -> Option<impl Iterator<Item = u32>> {
        let up_to = self.listed.get(..=position.checked_sub(self.start)?)?;
        Some(up_to.iter().rev().copied().chain(std::iter::repeat(0)))
    }

    /// Truncates the sequence to its first `len` symbols.
    pub fn truncate(&mut self, len: usize) {
        match len.checked_sub(self.start) {
            Some(listed) if len > 0 => self.listed.truncate(listed),
            _ => self.start_at(len),
        }
    }

    /// Drops the symbols that a sequence of `len` or more symbols never reads. It does so for many at a time.
    pub fn drop_before(&mut self, len: usize) {
        if self.listed.len() < self.full {
            return;
        }
        let count = len.saturating_sub(self.context).saturating_sub(self.start).min(self.listed.len());
        self.listed.drain(..count);
        self.start += count;
        self.full = CAPACITY / 2 + self.listed.len();
    }

    /// Bytes of memory that the list occupies.
    pub fn own_bytes(&self) -> usize {
        self.listed.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last(recent: &RecentSymbols, position: usize, count: usize) -> Option<Vec<u32>> {
        Some(recent.newest_first(position)?.take(count).collect())
    }

    #[test]
    fn symbols_before_the_text_count_as_zero() {
        let mut recent = RecentSymbols::new(4);
        assert_eq!((recent.context(), last(&recent, 0, 1)), (3, None));
        recent.extend(&[7, 8]);
        recent.extend(&[9]);
        assert_eq!(last(&recent, 2, 5), Some(vec![9, 8, 7, 0, 0]));
        assert_eq!(last(&recent, 1, 2), Some(vec![8, 7]));
        recent.truncate(2);
        recent.extend(&[5]);
        assert_eq!(last(&recent, 2, 4), Some(vec![5, 8, 7, 0]));
        recent.truncate(0);
        recent.extend(&[1]);
        assert_eq!(last(&recent, 0, 2), Some(vec![1, 0]));
        recent.start_at(50);
        recent.extend(&[2, 3]);
        assert_eq!((last(&recent, 51, 3), last(&recent, 49, 1)), (Some(vec![3, 2, 0]), None));
    }

    #[test]
    fn a_long_sequence_keeps_what_its_windows_need() {
        let mut recent = RecentSymbols::new(5);
        let bytes = recent.own_bytes();
        for position in 0..100_000usize {
            let earliest = position.saturating_sub(300);
            recent.drop_before(earliest);
            recent.extend(&[position as u32]);
            let expected: Vec<u32> = (0..5).map(|back| earliest.saturating_sub(back) as u32).collect();
            if earliest >= 5 {
                assert_eq!(last(&recent, earliest, 5), Some(expected), "{position}");
            }
        }
        assert_eq!(recent.own_bytes(), bytes);
        assert!(recent.start > 90_000);
        let fork = recent.clone();
        assert_eq!((fork.own_bytes(), last(&fork, 99_999, 1)), (bytes, Some(vec![99_999])));
        recent.truncate(99_701);
        assert_eq!(last(&recent, 99_700, 2), Some(vec![99_700, 99_699]));
        recent.truncate(0);
        recent.extend(&[6]);
        assert_eq!(last(&recent, 0, 2), Some(vec![6, 0]));
    }
}
