//! The text that is fed while time is measured: real English, so that boundaries fall where language puts them, whatever the
//! weights. Its words are from articles of the English Wikipedia (CC BY-SA 4.0), in lower case with digits spelt out.

use crate::text::Vocabulary;

/// Lower-case letters and single spaces; it ends with a space, so that it can be read in a circle.
const ENGLISH: &str = include_str!("english.txt");

/// Rows start so many symbols apart: a prime number, so that rows differ in phase whatever a fixed pooling's period is.
const STRIDE: usize = 1031;

/// The sample in a model's symbols.
#[derive(Debug, Clone)]
pub struct Sample {
    symbols: Vec<u32>,
    foreign: usize,
}

impl Sample {
    /// In this vocabulary. A letter that it does not have becomes the symbol numbered by the letter's place in the alphabet
    /// (space 0, a 1 … z 26) modulo the vocabulary's size: the text is then no language to the model, its boundaries fall where
    /// those symbols put them, and [`foreign`](Self::foreign) tells how many there were.
    pub fn new(vocabulary: &Vocabulary) -> Self {
        let mut foreign = 0;
        let mut symbol = |letter: char| {
            vocabulary.id_of(letter).unwrap_or_else(|| {
                foreign += 1;
                let place = if letter == ' ' { 0 } else { u32::from(letter) - u32::from('a') + 1 };
                (place as usize % vocabulary.len()) as u32
            })
        };
        let symbols = ENGLISH.chars().map(&mut symbol).collect();
        Self { symbols, foreign }
    }

    /// Its length, after which it begins again.
    #[expect(clippy::len_without_is_empty, reason = "a sample is never empty")]
    pub fn len(&self) -> usize {
        self.symbols.len()
    }

    /// Letters that the vocabulary does not have.
    pub fn foreign(&self) -> usize {
        self.foreign
    }

    /// Where a row's text starts.
    pub fn start(row: usize) -> usize {
        row * STRIDE
    }

    /// The symbol at a place of the endless text.
    pub fn at(&self, place: usize) -> u32 {
        self.symbols[place % self.symbols.len()]
    }

    /// `count` symbols from a place of the endless text on.
    pub fn window(&self, start: usize, count: usize) -> Vec<u32> {
        (start..start + count).map(|place| self.at(place)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::TextNormaliser;

    #[test]
    fn the_text_is_plain_and_closes_into_a_circle() {
        assert!(ENGLISH.chars().all(|letter| letter == ' ' || letter.is_ascii_lowercase()));
        assert!(ENGLISH.ends_with(' ') && !ENGLISH.starts_with(' ') && !ENGLISH.contains("  "));
        assert!((8 << 10..=16 << 10).contains(&ENGLISH.len()));
    }

    #[test]
    fn windows_go_on_at_the_start() {
        let sample = Sample::new(&Vocabulary::byte_level(TextNormaliser::None));
        let len = sample.len();
        assert_eq!((sample.foreign(), len), (0, ENGLISH.len()));
        let text: Vec<u32> = ENGLISH.bytes().map(u32::from).collect();
        assert_eq!(sample.window(5, 20), text[5..25]);
        assert_eq!(sample.window(len - 3, 7), [&text[len - 3..], &text[..4]].concat());
        assert_eq!(sample.window(2 * len + 1, 2), text[1..3]);
    }

    #[test]
    fn rows_start_apart_in_text_and_phase() {
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
        assert_eq!(sample.foreign(), ENGLISH.len() - known);
        for (place, letter) in ENGLISH.chars().enumerate().take(300) {
            let expected = match letter {
                'e' => 0,
                ' ' => 1,
                other => (other as u32 - 'a' as u32 + 1) % 3,
            };
            assert_eq!(sample.at(place), expected);
        }
    }
}
