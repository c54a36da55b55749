//! The text that models are fed while time is measured: English, so that boundaries fall as often as in real text.
//!
//! The words are from articles of the English Wikipedia (CC BY-SA 4.0), in lower case with digits spelled out.

use weir_models::text::Vocabulary;

/// Lower-case letters and single spaces. It ends with a space, so that it can be repeated.
const ENGLISH: &str = include_str!("english.txt");

/// Symbols between the starts of two rows. A prime number, so that rows differ in phase for every fixed pooling period.
const STRIDE: usize = 1031;

/// The sample text in the symbols of a model.
#[derive(Debug, Clone)]
pub struct Sample {
    symbols: Vec<u32>,
    /// Number of letters that are not in the vocabulary.
    pub foreign: usize,
    /// Mean characters of a symbol: 1, unless symbols are tokens.
    pub chars_per_symbol: f64,
}

impl Sample {
    /// Encodes the sample. A letter that is not in the vocabulary becomes the symbol with the letter's index in the
    /// alphabet (space 0, a 1 … z 26) modulo the size of the vocabulary. The text and its boundaries are then not English;
    /// [`foreign`](Self::foreign) counts such letters.
    pub fn new(vocabulary: &Vocabulary) -> Self {
        // A tokenizer without a piece for some part of the sample is treated as a vocabulary of characters.
        let tokens = if vocabulary.is_subword() { vocabulary.encode_exactly("sample", ENGLISH).ok() } else { None };
        if let Some(symbols) = tokens.filter(|tokens| !tokens.is_empty()) {
            let chars_per_symbol = ENGLISH.len() as f64 / symbols.len() as f64;
            return Self { symbols, foreign: 0, chars_per_symbol };
        }
        let mut foreign = 0;
        let symbol = |letter: char| {
            vocabulary.id_of(letter).unwrap_or_else(|| {
                foreign += 1;
                let index = if letter == ' ' { 0 } else { u32::from(letter) - u32::from('a') + 1 };
                (index as usize % vocabulary.len()) as u32
            })
        };
        Self { symbols: ENGLISH.chars().map(symbol).collect(), foreign, chars_per_symbol: 1.0 }
    }

    /// The sample as text.
    pub fn text() -> &'static str {
        ENGLISH
    }

    /// Returns the number of symbols, after which the text repeats.
    #[expect(clippy::len_without_is_empty, reason = "a sample is never empty")]
    pub fn len(&self) -> usize {
        self.symbols.len()
    }

    /// Returns the position at which the text of a row starts.
    pub fn start(row: usize) -> usize {
        row * STRIDE
    }

    /// Returns the symbol at a position of the repeated text.
    pub fn symbol(&self, position: usize) -> u32 {
        self.symbols[position % self.symbols.len()]
    }

    /// Returns `count` symbols of the repeated text, from `start` on.
    pub fn window(&self, start: usize, count: usize) -> Vec<u32> {
        (start..start + count).map(|position| self.symbol(position)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_models::text::TextNormaliser;

    #[test]
    fn the_text_is_plain_and_can_be_repeated() {
        assert!(ENGLISH.chars().all(|letter| letter == ' ' || letter.is_ascii_lowercase()));
        assert!(ENGLISH.ends_with(' ') && !ENGLISH.starts_with(' ') && !ENGLISH.contains("  "));
        assert!((8 << 10..=16 << 10).contains(&ENGLISH.len()));
    }

    #[test]
    fn windows_wrap_around() {
        let sample = Sample::new(&Vocabulary::byte_level(TextNormaliser::None));
        let len = sample.len();
        assert_eq!((sample.foreign, len), (0, ENGLISH.len()));
        let text: Vec<u32> = ENGLISH.bytes().map(u32::from).collect();
        assert_eq!(sample.window(5, 20), text[5..25]);
        assert_eq!(sample.window(len - 3, 7), [&text[len - 3..], &text[..4]].concat());
        assert_eq!(sample.window(2 * len + 1, 2), text[1..3]);
    }

    #[test]
    fn rows_differ_in_start_and_phase() {
        let len = ENGLISH.len();
        let mut starts: Vec<_> = (0..1024).map(|row| Sample::start(row) % len).collect();
        starts.sort_unstable();
        starts.dedup();
        assert_eq!(starts.len(), 1024);
        for period in 2..10 {
            let mut phases: Vec<_> = (0..period).map(|row| Sample::start(row) % period).collect();
            phases.sort_unstable();
            assert_eq!(phases, (0..period).collect::<Vec<_>>());
        }
    }

    #[test]
    fn letters_that_a_vocabulary_lacks_are_replaced_and_counted() {
        let vocabulary = Vocabulary::from_symbols(&["e", " ", "ж"], TextNormaliser::None).unwrap();
        let sample = Sample::new(&vocabulary);
        let known = ENGLISH.chars().filter(|letter| [' ', 'e'].contains(letter)).count();
        assert_eq!(sample.foreign, ENGLISH.len() - known);
        for (position, letter) in ENGLISH.chars().enumerate().take(300) {
            let expected = match letter {
                'e' => 0,
                ' ' => 1,
                other => (other as u32 - 'a' as u32 + 1) % 3,
            };
            assert_eq!(sample.symbol(position), expected);
        }
    }
}
