//! A table of n-grams: for contexts of a few symbols, the symbol that most often follows them, and how often it does. A context
//! hashes to one slot, which also has part of the hash. The table's size does not depend on the text.

use std::{array, fmt};

/// Lengths of the contexts.
const ORDERS: [usize; 4] = [3, 4, 6, 8];

/// The longest of them.
const LONGEST: usize = 8;

const MAGIC: [u8; 8] = *b"weirngr1";

/// Bytes before the slots: the magic, the vocabulary's size and the number of slots.
pub const HEADER_BYTES: usize = 24;

const SLOT_BYTES: usize = size_of::<u64>();

/// Maximum slots of a table: 32 MiB.
pub const MAX_SLOTS: usize = 1 << 22;

/// Minimum slots of a table.
pub const MIN_SLOTS: usize = 1 << 8;

/// Maximum bytes of a file.
pub const MAX_BYTES: usize = HEADER_BYTES + MAX_SLOTS * SLOT_BYTES;

/// Bits of a slot's symbol, and of its confidence.
const SYMBOL_BITS: u32 = 24;

const CONFIDENCE_BITS: u32 = 8;

/// Smallest confidence that a table keeps: a quarter.
const MIN_CONFIDENCE: u8 = 64;

/// Minimum times that a context occurred.
const MIN_TOTAL: u32 = 2;

/// The symbol that most often follows a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Successor {
    /// The symbol.
    pub symbol: u32,
    /// Share of the occurrences of the context that it followed in the table's text, in parts of 255.
    pub confidence: u8,
}

/// Successors by hash of their context. Shared by all sequences of a model.
#[derive(PartialEq, Eq)]
pub struct NgramTable {
    /// Each has part of the hash (32 bits), the symbol (24) and the confidence (8); 0 is an empty one. Their number is a power of
    /// two.
    slots: Vec<u64>,
    vocabulary: usize,
}

impl fmt::Debug for NgramTable {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "NgramTable({} slots)", self.slots.len())
    }
}

impl NgramTable {
    /// Returns the successor with the highest confidence of the contexts that end a text, whose symbols come latest first.
    pub fn successor(&self, latest_first: impl Iterator<Item = u32>) -> Option<Successor> {
        let found = contexts(latest_first).filter_map(|hash| {
            let slot = *self.slots.get(index(hash, self.slots.len()))?;
            let is_same = slot != 0 && slot >> (SYMBOL_BITS + CONFIDENCE_BITS) == u64::from(check(hash));
            is_same.then(|| unpack(slot))
        });
        // of equals, the one with the longest context
        found.max_by_key(|successor| successor.confidence)
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Number of contexts that have a successor.
    pub fn used(&self) -> usize {
        self.slots.iter().filter(|slot| **slot != 0).count()
    }

    /// Returns the bytes of the file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.slots.len() * SLOT_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&(self.vocabulary as u64).to_le_bytes());
        bytes.extend_from_slice(&(self.slots.len() as u64).to_le_bytes());
        self.slots.iter().for_each(|slot| bytes.extend_from_slice(&slot.to_le_bytes()));
        bytes
    }

    /// Reads the bytes of a file for a model with `vocabulary` symbols. Fails with what was expected and found.
    pub fn from_bytes(bytes: &[u8], vocabulary: usize) -> std::result::Result<Self, Mismatch> {
        let mismatch = |expected: String, found: String| Err(Mismatch { expected, found });
        let Some((header, slots)) = bytes.split_at_checked(HEADER_BYTES) else {
            return mismatch(format!("at least {HEADER_BYTES} bytes"), format!("{} bytes", bytes.len()));
        };
        if header[..MAGIC.len()] != MAGIC {
            return mismatch("a table of n-grams that this version reads".into(), "other bytes".into());
        }
        let (numbers, _) = header[MAGIC.len()..].as_chunks::<SLOT_BYTES>();
        let [symbols, count] = array::from_fn(|index| numbers.get(index).copied().map_or(0, u64::from_le_bytes));
        if symbols != vocabulary as u64 {
            return mismatch(format!("n-grams of {vocabulary} symbols, as the vocabulary has"), symbols.to_string());
        }
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if !count.is_power_of_two() || !(MIN_SLOTS..=MAX_SLOTS).contains(&count) {
            return mismatch(format!("a power of two from {MIN_SLOTS} to {MAX_SLOTS} slots"), count.to_string());
        }
        if slots.len() != count * SLOT_BYTES {
            return mismatch(format!("{} bytes", HEADER_BYTES + count * SLOT_BYTES), format!("{} bytes", bytes.len()));
        }
        let (slots, _) = slots.as_chunks::<SLOT_BYTES>();
        let slots: Vec<u64> = slots.iter().map(|slot| u64::from_le_bytes(*slot)).collect();
        let foreign = slots.iter().find(|&&slot| unpack(slot).symbol as usize >= vocabulary);
        if let Some(&slot) = foreign {
            return mismatch(format!("symbols below {vocabulary}"), unpack(slot).symbol.to_string());
        }
        Ok(Self { slots, vocabulary })
    }
}

/// Why bytes are not a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// Expected content, for a message.
    pub expected: String,
    /// Content that was found, for a message.
    pub found: String,
}

/// Counts the n-grams of texts in a bounded number of slots. A context takes a slot away from another one that has become rarer.
pub struct NgramCounter {
    slots: Vec<CountedSlot>,
    vocabulary: usize,
    /// The last symbols of the present text, latest last.
    recent: Vec<u32>,
}

/// The candidate of one slot.
#[derive(Debug, Clone, Copy, Default)]
struct CountedSlot {
    check: u32,
    symbol: u32,
    /// Excess of the candidate over other symbols and other contexts.
    votes: u32,
    /// Times that the candidate followed its context since it became the candidate.
    right: u32,
    /// Times that the context occurred since then.
    total: u32,
}

impl NgramCounter {
    /// Creates a counter with `slots` slots, a power of two within the limits, for texts over `vocabulary` symbols.
    pub fn new(slots: usize, vocabulary: usize) -> Self {
        let slots = slots.clamp(MIN_SLOTS, MAX_SLOTS).next_power_of_two();
        Self { slots: vec![CountedSlot::default(); slots], vocabulary, recent: Vec::with_capacity(LONGEST + 1) }
    }

    /// Counts the next symbol of the text.
    pub fn push(&mut self, symbol: u32) {
        let slots = self.slots.len();
        for hash in contexts(self.recent.iter().rev().copied()) {
            self.slots[index(hash, slots)].count(check(hash), symbol);
        }
        if self.recent.len() == LONGEST {
            self.recent.remove(0);
        }
        self.recent.push(symbol);
    }

    /// Returns the table of the contexts whose successor is likely enough.
    pub fn finish(self) -> NgramTable {
        let slots = self.slots.into_iter().map(CountedSlot::packed).collect();
        NgramTable { slots, vocabulary: self.vocabulary }
    }
}

impl CountedSlot {
    fn count(&mut self, check: u32, symbol: u32) {
        let is_own = self.total > 0 && self.check == check;
        if is_own && self.symbol == symbol {
            self.votes = self.votes.saturating_add(1);
            self.right = self.right.saturating_add(1);
            self.total = self.total.saturating_add(1);
        } else if self.votes > 0 {
            self.votes -= 1;
            self.total = self.total.saturating_add(u32::from(is_own));
        } else {
            *self = Self { check, symbol, votes: 1, right: 1, total: 1 };
        }
    }

    fn packed(self) -> u64 {
        // a rare context counts less
        let share = u64::from(self.right) * 255 / (u64::from(self.total) + 1);
        let confidence = u8::try_from(share).unwrap_or(u8::MAX);
        if self.total < MIN_TOTAL || confidence < MIN_CONFIDENCE {
            return 0;
        }
        let symbol = u64::from(self.symbol) << CONFIDENCE_BITS;
        u64::from(self.check) << (SYMBOL_BITS + CONFIDENCE_BITS) | symbol | u64::from(confidence)
    }
}

fn unpack(slot: u64) -> Successor {
    let symbol = (slot >> CONFIDENCE_BITS) as u32 & ((1 << SYMBOL_BITS) - 1);
    Successor { symbol, confidence: slot as u8 }
}

/// The hashes of the contexts at the end of a text, shortest first.
fn contexts(latest_first: impl Iterator<Item = u32>) -> impl Iterator<Item = u64> {
    let hashes = latest_first.take(LONGEST).scan(0u64, |hash, symbol| {
        *hash = (*hash ^ (u64::from(symbol) + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        Some(*hash)
    });
    hashes.enumerate().filter(|(count, _)| ORDERS.contains(&(count + 1))).map(|(count, hash)| {
        // contexts of different lengths are different
        let mixed = (hash ^ count as u64).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed ^ mixed >> 32
    })
}

fn index(hash: u64, slots: usize) -> usize {
    (hash >> 32) as usize & (slots - 1)
}

fn check(hash: u64) -> u32 {
    // the lowest bit keeps a used slot apart from an empty one
    hash as u32 | 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::writer::{NGRAMS_FILE, write_ngrams as write};
    use crate::load::read_ngrams as read;
    use crate::ngrams::{HEADER_BYTES, MAX_SLOTS, MIN_SLOTS, NgramCounter, NgramTable};
    use std::{collections::HashMap, fs};

    fn table(text: &[u32], slots: usize, vocabulary: usize) -> NgramTable {
        let mut counter = NgramCounter::new(slots, vocabulary);
        text.iter().for_each(|&symbol| counter.push(symbol));
        counter.finish()
    }

    /// Text in which each context of three symbols is usually followed by one symbol.
    fn text(len: usize) -> Vec<u32> {
        let mut text = vec![1, 2, 3];
        let mut state = 1u64;
        while text.len() < len {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let context = &text[text.len() - 3..];
            let usual = context.iter().fold(7u32, |hash, symbol| hash.wrapping_mul(31) ^ symbol) % 5;
            text.push(if state >> 60 == 0 { (state >> 40) as u32 % 5 } else { usual });
        }
        text
    }

    #[test]
    fn successors_are_the_most_frequent_ones() {
        let text = text(20_000);
        let table = table(&text, 1 << 20, 5);
        // naive implementation: all counts of contexts of three symbols
        let mut counts: HashMap<&[u32], HashMap<u32, usize>> = HashMap::new();
        for window in text.windows(4) {
            *counts.entry(&window[..3]).or_default().entry(window[3]).or_default() += 1;
        }
        let mut checked = 0;
        for (context, successors) in counts {
            let total: usize = successors.values().sum();
            let (&symbol, &count) = successors.iter().max_by_key(|(_, count)| **count).unwrap();
            if total >= 50 && count * 10 >= total * 8 {
                let found = table.successor(context.iter().rev().copied()).unwrap();
                assert_eq!(found.symbol, symbol, "{context:?}");
                let share = f64::from(found.confidence) / 255.0;
                assert!((share - count as f64 / total as f64).abs() < 0.1, "{context:?}: {share}");
                checked += 1;
            }
        }
        assert!(checked > 10, "{checked}");
    }

    #[test]
    fn files_are_read_as_they_were_written() {
        let table = table(&text(5000), 1 << 10, 5);
        assert!(table.used() > 20 && table.slots() == 1 << 10);
        let bytes = table.to_bytes();
        assert_eq!(NgramTable::from_bytes(&bytes, 5), Ok(table));
        let refused = |bytes: &[u8], vocabulary| NgramTable::from_bytes(bytes, vocabulary).unwrap_err();
        assert_eq!(refused(&bytes[..23], 5).found, "23 bytes");
        assert_eq!(refused(&bytes, 6).found, "5");
        assert!(refused(&bytes[..bytes.len() - 1], 5).expected.starts_with("8216 bytes"));
        let changed = |at: usize, value: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            bytes
        };
        assert_eq!(refused(&changed(0, 0), 5).found, "other bytes");
        // 2^10 + 1 slots, then more than there may be
        assert_eq!(refused(&changed(16, 1), 5).found, "1025");
        assert!(refused(&changed(23, 1), 5).expected.contains("4194304"));
        assert_eq!(refused(&changed(HEADER_BYTES + 3, 9), 5).expected, "symbols below 5");
    }

    #[test]
    fn a_small_table_keeps_frequent_contexts() {
        let mut symbols = text(3000);
        // another text, much of which occurs once
        symbols.extend((0..3000u32).map(|position| 5 + position % 1000));
        symbols.extend(text(3000));
        let table = table(&symbols, MIN_SLOTS, 2000);
        assert!(table.used() > 20 && table.slots() == MIN_SLOTS, "{}", table.used());
        assert_eq!(NgramCounter::new(usize::MAX, 5).slots.len(), MAX_SLOTS);
    }

    #[test]
    fn a_short_text_has_no_context() {
        let table = table(&[1; 50], MIN_SLOTS, 5);
        assert_eq!(table.successor([1, 1].into_iter()), None);
        let found = table.successor([1; 20].into_iter()).unwrap();
        assert!(found.symbol == 1 && found.confidence > 200);
        assert_eq!(table.successor([1, 2, 1].into_iter()), None);
    }

    #[test]
    fn errors_name_the_file_and_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read(dir.path(), 5).unwrap().is_none());
        let mut counter = NgramCounter::new(1 << 8, 5);
        (0..1000).for_each(|position| counter.push(position % 5));
        let table = counter.finish();
        let file = write(dir.path(), &table).unwrap();
        assert_eq!(read(dir.path(), 5).unwrap().as_ref(), Some(&table));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let error = |vocabulary| read(dir.path(), vocabulary).unwrap_err().to_string();
        assert!(error(6).contains(NGRAMS_FILE) && error(6).contains("n-grams of 6 symbols"), "{}", error(6));
        // a file that cannot get its name leaves nothing behind
        let taken = tempfile::tempdir().unwrap();
        fs::create_dir_all(taken.path().join(NGRAMS_FILE).join("x")).unwrap();
        assert!(write(taken.path(), &table).unwrap_err().to_string().contains(NGRAMS_FILE));
        assert_eq!(fs::read_dir(taken.path()).unwrap().count(), 1);
        fs::write(&file, "short").unwrap();
        assert!(error(5).contains(NGRAMS_FILE) && error(5).contains("5 bytes"), "{}", error(5));
        // a sparse file
        fs::File::create(&file).unwrap().set_len(1 << 40).unwrap();
        assert!(error(5).contains(&format!("at most {MAX_BYTES} bytes")), "{}", error(5));
    }
}
