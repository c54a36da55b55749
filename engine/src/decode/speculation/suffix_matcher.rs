//! Finds where the end of a text occurred before: the symbols after that place are a guess of how the text continues.
//!
//! The matcher keeps the last symbols in a ring, and for each hash of [`MIN_MATCH`] symbols the place after their latest
//! occurrence. A symbol costs a constant time: either the present match goes on, or one table lookup finds another.

/// Minimum symbols that must match.
pub(super) const MIN_MATCH: usize = 4;
/// Longer matches count as this long.
pub(super) const MAX_MATCH: usize = 32;
/// Maximum symbols that the matcher remembers.
const MAX_WINDOW: usize = 1 << 14;
const MIN_WINDOW: usize = 1 << 6;

/// A place in the text whose last symbols equal the last symbols of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Match {
    /// Position of the symbol after the place.
    pub(super) next: usize,
    /// Number of equal symbols: exact below [`MAX_MATCH`], which stands for all larger numbers.
    pub(super) length: usize,
}

impl Match {
    /// Returns the match after the symbol at [`next`](Self::next) was repeated.
    pub(super) fn extended(self) -> Self {
        Self { next: self.next + 1, length: (self.length + 1).min(MAX_MATCH) }
    }
}

/// The last symbols of a text, and where their end occurred before.
#[derive(Debug, Clone)]
pub(super) struct SuffixMatcher {
    /// The symbol at position p, for the last positions, at p modulo the length of the ring: a power of two.
    ring: Vec<u32>,
    /// Number of symbols added.
    len: usize,
    /// Low bits of the position after the latest occurrence, indexed by hash.
    table: Vec<u32>,
    present: Option<Match>,
}

impl SuffixMatcher {
    /// Creates a matcher for a text of at most `max_symbols` symbols. Longer texts are allowed if that is at least `MAX_WINDOW`.
    pub(super) fn new(max_symbols: usize) -> Self {
        let window = max_symbols.clamp(MIN_WINDOW, MAX_WINDOW).next_power_of_two();
        Self { ring: vec![0; window], len: 0, table: vec![0; window], present: None }
    }

    /// Number of symbols that the matcher remembers.
    pub(super) fn window(&self) -> usize {
        self.ring.len()
    }

    /// The latest match, if the text's end occurred before.
    pub(super) fn present(&self) -> Option<Match> {
        self.present
    }

    /// Appends a symbol.
    pub(super) fn push(&mut self, symbol: u32) {
        let continued = self.present.filter(|present| self.at(present.next) == Some(symbol)).map(Match::extended);
        let slot = self.len & (self.ring.len() - 1);
        self.ring[slot] = symbol;
        self.len += 1;
        let Some(hash) = self.hash() else { return };
        let before = std::mem::replace(&mut self.table[hash], self.len as u32);
        self.present = continued.or_else(|| self.verified(before));
    }

    /// The symbol at `position`, which may lie beyond the end: the `draft` follows the text.
    pub(super) fn symbol(&self, position: usize, draft: &[u32]) -> Option<u32> {
        match position.checked_sub(self.len) {
            Some(beyond) => draft.get(beyond).copied(),
            None => self.at(position),
        }
    }

    /// The symbol at `position`, if it is still remembered.
    fn at(&self, position: usize) -> Option<u32> {
        let age = self.len.checked_sub(position)?;
        (1..=self.ring.len()).contains(&age).then(|| self.ring[position & (self.ring.len() - 1)])
    }

    /// The symbols of the text, the latest first, as far back as they are remembered.
    pub(super) fn latest_first(&self) -> impl Iterator<Item = u32> {
        self.backwards_from(self.len)
    }

    fn backwards_from(&self, end: usize) -> impl Iterator<Item = u32> {
        (0..end).rev().map_while(|position| self.at(position))
    }

    /// The table's index for the last [`MIN_MATCH`] symbols.
    fn hash(&self) -> Option<usize> {
        let mut hash: u64 = 0;
        let mut count = 0;
        for symbol in self.latest_first().take(MIN_MATCH) {
            hash = (hash ^ u64::from(symbol)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
            count += 1;
        }
        // a power of two below 2³²
        (count == MIN_MATCH).then(|| (hash >> 32) as usize & (self.table.len() - 1))
    }

    /// Returns the match at a place that the table has, unless it was overwritten or only the hashes are equal.
    fn verified(&self, place: u32) -> Option<Match> {
        let age = (self.len as u32).wrapping_sub(place) as usize;
        let next = self.len.checked_sub(age).filter(|next| age > 0 && *next >= MIN_MATCH)?;
        let pairs = self.backwards_from(next).zip(self.latest_first());
        let length = pairs.take(MAX_MATCH).take_while(|(earlier, latest)| earlier == latest).count();
        (length >= MIN_MATCH).then_some(Match { next, length })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    /// Naive implementation: the present match goes on if it can; otherwise the latest place with [`MIN_MATCH`] equal symbols.
    fn naive(text: &[u32], window: usize, before: Option<Match>) -> Option<Match> {
        let len = text.len();
        let remembered = |position: usize, len: usize| position + window >= len;
        let going_on = before.filter(|before| remembered(before.next, len - 1) && text[before.next] == text[len - 1]);
        if let Some(before) = going_on {
            return (len >= MIN_MATCH).then_some(before.extended());
        }
        let equal = |next: usize| {
            (0..next.min(MAX_MATCH))
                .take_while(|back| remembered(next - 1 - back, len) && text[next - 1 - back] == text[len - 1 - back])
                .count()
        };
        let next = (MIN_MATCH..len).rev().find(|&next| text[next - MIN_MATCH..next] == text[len - MIN_MATCH..])?;
        let length = equal(next);
        (length >= MIN_MATCH).then_some(Match { next, length })
    }

    proptest! {
        #[test]
        fn matches_equal_the_naive_ones(text in vec(0u32..3, 0..400), max_symbols in 0usize..200) {
            let mut matcher = SuffixMatcher::new(max_symbols);
            let window = matcher.window();
            let mut before = None;
            for end in 1..=text.len() {
                matcher.push(text[end - 1]);
                let expected = naive(&text[..end], window, before);
                // another text may have taken the entry of the table
                prop_assert!(matcher.present() == expected || matcher.present().is_none(), "at {}", end);
                before = matcher.present();
                if let Some(found) = before {
                    prop_assert!(found.next < end);
                    let next = matcher.symbol(found.next, &[]);
                    prop_assert_eq!(next, (found.next + window >= end).then(|| text[found.next]));
                }
            }
        }
    }

    #[test]
    fn a_repeated_text_is_found_and_followed() {
        let text: Vec<u32> = (0..500).collect();
        let mut matcher = SuffixMatcher::new(2000);
        for &symbol in text.iter().chain(&text[100..104]) {
            matcher.push(symbol);
        }
        assert_eq!(matcher.present(), Some(Match { next: 104, length: 4 }));
        text[104..200].iter().for_each(|&symbol| matcher.push(symbol));
        assert_eq!(matcher.present(), Some(Match { next: 200, length: MAX_MATCH }));
        matcher.push(7);
        assert_eq!(matcher.present(), None);
    }

    #[test]
    fn a_period_continues_beyond_the_end() {
        let mut matcher = SuffixMatcher::new(100);
        [1, 2, 1, 2, 1, 2].into_iter().for_each(|symbol| matcher.push(symbol));
        let next = matcher.present().unwrap().next;
        let mut draft = Vec::new();
        for position in next..next + 6 {
            draft.push(matcher.symbol(position, &draft).unwrap());
        }
        assert_eq!(draft, [1, 2, 1, 2, 1, 2]);
    }

    #[test]
    fn memory_is_bounded() {
        assert_eq!((SuffixMatcher::new(1).window(), SuffixMatcher::new(usize::MAX).window()), (MIN_WINDOW, MAX_WINDOW));
        let mut matcher = SuffixMatcher::new(1);
        (0..10_000u32).for_each(|symbol| matcher.push(symbol % 1000));
        assert_eq!((matcher.ring.len(), matcher.present()), (MIN_WINDOW, None));
    }
}
