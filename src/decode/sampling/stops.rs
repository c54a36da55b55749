//! Stop strings over symbols, met as the symbols come.
//!
//! Each stop string keeps how much of its beginning the generated text ends with (Knuth, Morris and Pratt's automaton), so
//! a symbol costs one look per string whatever its length. Symbols that may still turn out to be part of a stop string are
//! *withheld*: the caller tells them once they are not, and a stop string is never told in part. Prompts are never looked
//! at.

/// The stop strings of one generation.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    patterns: Vec<Pattern>,
    /// No stop string counts that is complete before this many symbols.
    min_chars: usize,
    /// Symbols seen.
    generated: usize,
}

/// A stop string that the text now ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopMatch {
    /// Which of them.
    pub index: usize,
    /// Its length: the last symbols of the text.
    pub length: usize,
}

#[derive(Debug, Clone)]
struct Pattern {
    symbols: Vec<u32>,
    /// For each length of a beginning: the length of the longest shorter beginning that it ends with.
    borders: Vec<usize>,
    /// How long a beginning the text ends with.
    matched: usize,
}

impl StopMatcher {
    /// For these stop strings, none of which is empty.
    pub fn new(stop: Vec<Vec<u32>>, min_chars: usize) -> Self {
        Self { patterns: stop.into_iter().map(Pattern::new).collect(), min_chars, generated: 0 }
    }

    /// Takes the next generated symbol; tells the stop string that it completes. If there are several: the one that starts
    /// earliest, then the one of lowest index.
    pub fn push(&mut self, symbol: u32) -> Option<StopMatch> {
        self.generated += 1;
        let mut met: Option<StopMatch> = None;
        for (index, pattern) in self.patterns.iter_mut().enumerate() {
            pattern.push(symbol);
            let length = pattern.symbols.len();
            let complete = pattern.matched == length && self.generated >= self.min_chars;
            if complete && met.is_none_or(|other| length > other.length) {
                met = Some(StopMatch { index, length });
            }
        }
        met
    }

    /// How many of the last symbols may be the beginning of a stop string that will count.
    pub fn withheld(&self) -> usize {
        let longest = |pattern| longest_open(pattern, self.generated, self.min_chars);
        self.patterns.iter().map(longest).max().unwrap_or(0)
    }
}

/// The longest incomplete beginning of the pattern at the text's end whose completion would not come too early to count.
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
            // It was met too early to count; a later one may begin within it.
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

    /// Looks through the whole text for every symbol.
    struct Naive {
        stop: Vec<Vec<u32>>,
        min_chars: usize,
        text: Vec<u32>,
    }

    impl Naive {
        fn push(&mut self, symbol: u32) -> Option<StopMatch> {
            self.text.push(symbol);
            if self.text.len() < self.min_chars {
                return None;
            }
            // Every beginning in the text from its start, every stop string by index: the first hit wins.
            (0..self.text.len()).find_map(|start| {
                let index = self.stop.iter().position(|stop| *stop == self.text[start..])?;
                Some(StopMatch { index, length: self.text.len() - start })
            })
        }

        fn withheld(&self) -> usize {
            let may_become = |start: usize, stop: &Vec<u32>| {
                let tail = &self.text[start..];
                stop.len() > tail.len() && stop.starts_with(tail) && start + stop.len() >= self.min_chars
            };
            let start = (0..self.text.len()).find(|&start| self.stop.iter().any(|stop| may_become(start, stop)));
            start.map_or(0, |start| self.text.len() - start)
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        #[test]
        fn meets_and_withholds_as_the_naive_twin(
            stop in vec(vec(0u32..2, 1..7), 0..5), min_chars in 0usize..25, text in vec(0u32..2, 1..60),
        ) {
            let mut stops = StopMatcher::new(stop.clone(), min_chars);
            let mut naive = Naive { stop, min_chars, text: Vec::new() };
            let mut told = 0;
            for symbol in text {
                let met = stops.push(symbol);
                prop_assert_eq!(met, naive.push(symbol));
                if let Some(met) = met {
                    prop_assert!(told <= naive.text.len() - met.length, "part of a stop string was told");
                    break;
                }
                prop_assert_eq!(stops.withheld(), naive.withheld());
                let free = naive.text.len() - stops.withheld();
                prop_assert!(free >= told, "what was told cannot be withheld");
                told = free;
            }
        }
    }

    fn met(stop: &[&str], min_chars: usize, text: &str) -> Option<(usize, StopMatch)> {
        let symbols = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
        let mut stops = StopMatcher::new(stop.iter().map(|stop| symbols(stop)).collect(), min_chars);
        symbols(text).into_iter().enumerate().find_map(|(at, symbol)| Some((at, stops.push(symbol)?)))
    }

    #[test]
    fn the_earliest_start_wins_then_the_lowest_index() {
        assert_eq!(met(&["d", "cd", "cd"], 0, "abcd"), Some((3, StopMatch { index: 1, length: 2 })));
    }

    #[test]
    fn one_that_comes_too_early_does_not_count() {
        assert_eq!(met(&["ab"], 3, "ab"), None);
        assert_eq!(met(&["ab"], 3, "xab"), Some((2, StopMatch { index: 0, length: 2 })));
        // The second may overlap the first.
        assert_eq!(met(&["aba"], 4, "ababa"), Some((4, StopMatch { index: 0, length: 3 })));
    }
}
