//! Consecutive symbols of a text that lie in two slices: the prefix that several requests share, and what a request owns.

use std::ops::Range;

/// Symbols that are compared at once.
const COMPARED_SYMBOLS: usize = 64;

/// Consecutive symbols of a text: those of `head`, then those of `tail`. Either may be empty.
#[derive(Debug, Clone, Copy, Default)]
pub struct SymbolSlices<'a> {
    head: &'a [u32],
    tail: &'a [u32],
}

impl<'a, T: AsRef<[u32]> + ?Sized> From<&'a T> for SymbolSlices<'a> {
    fn from(symbols: &'a T) -> Self {
        Self::new(&[], symbols.as_ref())
    }
}

impl PartialEq for SymbolSlices<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl<T: AsRef<[u32]> + ?Sized> PartialEq<&T> for SymbolSlices<'_> {
    fn eq(&self, other: &&T) -> bool {
        let other = other.as_ref();
        self.len() == other.len() && self.common_len(other) == other.len()
    }
}

impl<'a> SymbolSlices<'a> {
    pub(super) fn new(head: &'a [u32], tail: &'a [u32]) -> Self {
        Self { head, tail }
    }

    /// Number of symbols.
    pub fn len(self) -> usize {
        self.head.len() + self.tail.len()
    }

    /// True if there are no symbols.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Returns the symbol at `index`.
    pub fn get(self, index: usize) -> Option<u32> {
        self.head.get(index).or_else(|| self.tail.get(index.checked_sub(self.head.len())?)).copied()
    }

    /// Returns the symbols of a range, if it lies within these.
    pub fn range(self, range: Range<usize>) -> Option<Self> {
        let len = range.end.checked_sub(range.start)?;
        (range.end <= self.len()).then(|| self.skip(range.start).take(len))
    }

    /// Returns the first `len` symbols; all if there are fewer.
    pub fn take(self, len: usize) -> Self {
        let head = len.min(self.head.len());
        let tail = (len - head).min(self.tail.len());
        Self { head: &self.head[..head], tail: &self.tail[..tail] }
    }

    /// Returns the symbols after the first `len`.
    pub fn skip(self, len: usize) -> Self {
        let head = len.min(self.head.len());
        let tail = (len - head).min(self.tail.len());
        Self { head: &self.head[head..], tail: &self.tail[tail..] }
    }

    /// Returns the symbols in order.
    pub fn iter(self) -> impl Iterator<Item = u32> + Clone + 'a {
        self.head.iter().chain(self.tail).copied()
    }

    /// Returns the two slices in order.
    pub fn slices(self) -> [&'a [u32]; 2] {
        [self.head, self.tail]
    }

    /// Copies the symbols.
    pub fn to_vec(self) -> Vec<u32> {
        self.slices().concat()
    }

    /// Returns the number of symbols with which both texts begin.
    pub fn common_len(self, other: &[u32]) -> usize {
        let common = common_len(self.head, other);
        if common < self.head.len() { common } else { common + common_len(self.tail, &other[common..]) }
    }

    /// Returns true if these symbols begin with those of `other`.
    pub fn starts_with(self, other: &[u32]) -> bool {
        self.common_len(other) == other.len()
    }
}

/// Returns the number of symbols with which both texts begin.
fn common_len(a: &[u32], b: &[u32]) -> usize {
    let blocks = a.chunks_exact(COMPARED_SYMBOLS).zip(b.chunks_exact(COMPARED_SYMBOLS));
    let equal = COMPARED_SYMBOLS * blocks.take_while(|(a, b)| a == b).count();
    equal + a[equal..].iter().zip(&b[equal..]).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wherever the slices meet, they act as one.
    #[test]
    fn two_slices_are_one_text() {
        let text: Vec<u32> = (0..200).collect();
        for edge in [0, 1, 63, 64, 65, 100, 199, 200] {
            let slices = SymbolSlices::new(&text[..edge], &text[edge..]);
            assert_eq!((slices.len(), slices.is_empty(), slices.to_vec() == text), (200, false, true));
            assert!(slices == &text && slices == SymbolSlices::from(&text) && slices != &text[..199]);
            assert!((0..=200).all(|index| slices.get(index) == text.get(index).copied()));
            for (start, end) in [(0, 0), (0, 64), (40, 120), (64, 200), (199, 200), (200, 200), (120, 40), (190, 201)] {
                let range = slices.range(start..end).map(SymbolSlices::to_vec);
                assert_eq!(range.as_deref(), text.get(start..end), "{start}..{end} of {edge}");
            }
            assert_eq!((slices.take(120).to_vec(), slices.take(300).len()), (text[..120].to_vec(), 200));
            assert_eq!((slices.skip(120).to_vec(), slices.skip(300).len()), (text[120..].to_vec(), 0));
        }
    }

    #[test]
    fn texts_are_compared_to_their_first_difference() {
        let text: Vec<u32> = (0..300).collect();
        for end in [0, 1, 63, 64, 65, 128, 200, 300] {
            for difference in [0, 1, 63, 64, 65, 127, 128, 199, 299] {
                let mut other = text[..end].to_vec();
                other.iter_mut().skip(difference).take(1).for_each(|symbol| *symbol += 1);
                let expected = end.min(difference);
                assert_eq!((common_len(&text, &other), common_len(&other, &text)), (expected, expected));
                for edge in [0, 1, 64, 100, 300] {
                    let slices = SymbolSlices::new(&text[..edge], &text[edge..]);
                    assert_eq!((slices.common_len(&other), slices.starts_with(&other)), (expected, expected == end));
                }
            }
        }
    }
}
