//! Matches stop strings over symbols while the symbols come.
//!
//! Each stop string stores the length of its longest prefix that ends the generated text (the automaton of Knuth,
//! Morris and Pratt). A symbol costs amortised constant time per string of any length. Symbols that may become part of
//! a stop string are *withheld* until they cannot, so none is emitted in part. Prompts are not searched.
//!
//! The units of a pattern are symbols. In a model of tokens they are the bytes of the text, because one text has many spellings in
//! tokens, and a stop string may begin or end inside a token.

/// The stop strings of one generation.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    patterns: Vec<Pattern>,
    /// A stop string that is complete before this many symbols does not count.
    min_chars: usize,
    generated: usize,
    /// True if the symbols are bytes of tokens' text. A token may have no text, so missing bytes do not count missing tokens.
    is_text: bool,
}

/// A stop string that the text now ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopMatch {
    /// Index of the stop string.
    pub index: usize,
    /// Its length in symbols, which are the last of the text.
    pub length: usize,
}

#[derive(Debug, Clone)]
struct Pattern {
    symbols: Vec<u32>,
    /// For each prefix length: the length of the longest shorter prefix that ends it.
    borders: Vec<usize>,
    /// Length of the longest prefix that ends the text.
    matched: usize,
}

impl StopMatcher {
    /// Creates a matcher for the strings of `stop`, none of which is empty.
    pub fn new(stop: Vec<Vec<u32>>, min_chars: usize) -> Self {
        Self { patterns: stop.into_iter().map(Pattern::new).collect(), min_chars, generated: 0, is_text: false }
    }

    /// Takes the next symbol and returns the stop string that it completes. The earliest start wins, then the lowest index.
    pub fn push(&mut self, symbol: u32) -> Option<StopMatch> {
        self.generated += 1;
        let mut best: Option<StopMatch> = None;
        for (index, pattern) in self.patterns.iter_mut().enumerate() {
            pattern.push(symbol);
            let length = pattern.symbols.len();
            let complete = pattern.matched == length && self.generated >= self.min_chars;
            if complete && best.is_none_or(|other| length > other.length) {
                best = Some(StopMatch { index, length });
            }
        }
        best
    }

    /// Takes the text of the next token and returns the stop string that it completes first, with the number of the text's bytes up
    /// to its end. If several end there, the earliest start wins, then the lowest index.
    pub fn push_text(&mut self, text: &str) -> Option<(StopMatch, usize)> {
        self.generated += 1;
        self.is_text = true;
        for (end, byte) in (1..).zip(text.bytes()) {
            let mut best: Option<StopMatch> = None;
            for (index, pattern) in self.patterns.iter_mut().enumerate() {
                pattern.push(byte.into());
                let length = pattern.symbols.len();
                let complete = pattern.matched == length && self.generated >= self.min_chars;
                if complete && best.is_none_or(|other| length > other.length) {
                    best = Some(StopMatch { index, length });
                }
            }
            if let Some(best) = best {
                return Some((best, end));
            }
        }
        None
    }

    /// Number of last units that may begin a stop string that will count.
    pub fn withheld(&self) -> usize {
        let min_chars = if self.is_text { 0 } else { self.min_chars };
        let longest = |pattern| longest_open(pattern, self.generated, min_chars);
        self.patterns.iter().map(longest).max().unwrap_or(0)
    }
}

/// Returns the length of the longest incomplete prefix at the text's end whose completion would not be too early to count.
fn longest_open(pattern: &Pattern, generated: usize, min_chars: usize) -> usize {
    let length = pattern.symbols.len();
    let mut matched = pattern.matched;
    while matched > 0 && (matched == length || generated + (length - matched) < min_chars) {
        matched = pattern.borders[matched];
    }
    matched
}

impl Pattern {
    fn new(symbols: Vec<u32>) -> Self {
        let mut borders = vec![0; symbols.len() + 1];
        let mut border = 0;
        for end in 1..symbols.len() {
            while border > 0 && symbols[border] != symbols[end] {
                border = borders[border];
            }
            border += usize::from(symbols[border] == symbols[end]);
            borders[end + 1] = border;
        }
        Self { symbols, borders, matched: 0 }
    }

    fn push(&mut self, symbol: u32) {
        if self.matched == self.symbols.len() {
            // the match came too early to count; a later one may begin within it
            self.matched = self.borders[self.matched];
        }
        while self.matched > 0 && self.symbols[self.matched] != symbol {
            self.matched = self.borders[self.matched];
        }
        self.matched += usize::from(self.symbols[self.matched] == symbol);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    /// Searches the whole text for every symbol.
    struct NaiveStops {
        stop: Vec<Vec<u32>>,
        min_chars: usize,
        text: Vec<u32>,
    }

    impl NaiveStops {
        fn push(&mut self, symbol: u32) -> Option<StopMatch> {
            self.text.push(symbol);
            if self.text.len() < self.min_chars {
                return None;
            }
            // by start, then by index: the first hit wins
            (0..self.text.len()).find_map(|start| {
                let index = self.stop.iter().position(|stop| *stop == self.text[start..])?;
                Some(StopMatch { index, length: self.text.len() - start })
            })
        }

        fn withheld(&self) -> usize {
            let may_become = |start: usize, stop: &Vec<u32>| {
                let end = &self.text[start..];
                stop.len() > end.len() && stop.starts_with(end) && start + stop.len() >= self.min_chars
            };
            let start = (0..self.text.len()).find(|&start| self.stop.iter().any(|stop| may_become(start, stop)));
            start.map_or(0, |start| self.text.len() - start)
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        #[test]
        fn matches_and_withholds_as_the_naive_implementation(
            stop in vec(vec(0u32..2, 1..7), 0..5), min_chars in 0usize..25, text in vec(0u32..2, 1..60),
        ) {
            let mut stops = StopMatcher::new(stop.clone(), min_chars);
            let mut naive = NaiveStops { stop, min_chars, text: Vec::new() };
            let mut emitted = 0;
            for symbol in text {
                let found = stops.push(symbol);
                prop_assert_eq!(found, naive.push(symbol));
                if let Some(found) = found {
                    prop_assert!(emitted <= naive.text.len() - found.length, "part of a stop string was emitted");
                    break;
                }
                prop_assert_eq!(stops.withheld(), naive.withheld());
                let free = naive.text.len() - stops.withheld();
                prop_assert!(free >= emitted, "emitted symbols cannot be withheld");
                emitted = free;
            }
        }
    }

    fn first_match(stop: &[&str], min_chars: usize, text: &str) -> Option<(usize, StopMatch)> {
        let symbols = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
        let mut stops = StopMatcher::new(stop.iter().map(|stop| symbols(stop)).collect(), min_chars);
        symbols(text).into_iter().enumerate().find_map(|(index, symbol)| Some((index, stops.push(symbol)?)))
    }

    #[test]
    fn a_stop_string_may_begin_and_end_inside_a_token() {
        let bytes = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
        let mut stops = StopMatcher::new(vec![bytes("b\nc")], 0);
        assert_eq!((stops.push_text("ab"), stops.withheld()), (None, 1));
        assert_eq!((stops.push_text(""), stops.withheld()), (None, 1));
        assert_eq!(stops.push_text("\ncd"), Some((StopMatch { index: 0, length: 3 }, 2)));
        // The bytes of a character may come in tokens of which only the last has text.
        let mut stops = StopMatcher::new(vec![bytes("a€")], 5);
        assert_eq!((stops.push_text("a"), stops.withheld()), (None, 1));
        assert!((0..2).all(|_| stops.push_text("").is_none() && stops.withheld() == 1));
        assert_eq!((stops.push_text(""), stops.withheld()), (None, 1));
        assert_eq!(stops.push_text("€"), Some((StopMatch { index: 0, length: 4 }, 3)));
        let mut stops = StopMatcher::new(vec![bytes("a")], 2);
        assert_eq!((stops.push_text("a"), stops.withheld()), (None, 0));
        assert_eq!(stops.push_text("xa"), Some((StopMatch { index: 0, length: 1 }, 2)));
    }

    #[test]
    fn the_earliest_start_wins_then_the_lowest_index() {
        assert_eq!(first_match(&["d", "cd", "cd"], 0, "abcd"), Some((3, StopMatch { index: 1, length: 2 })));
    }

    #[test]
    fn a_stop_string_that_comes_too_early_does_not_count() {
        assert_eq!(first_match(&["ab"], 3, "ab"), None);
        assert_eq!(first_match(&["ab"], 3, "xab"), Some((2, StopMatch { index: 0, length: 2 })));
        // the second may overlap the first
        assert_eq!(first_match(&["aba"], 4, "ababa"), Some((4, StopMatch { index: 0, length: 3 })));
    }
}
