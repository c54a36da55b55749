//! A prefix that several texts share, such as the text before the cursor in a search for completions. The sums of its beginnings,
//! which find a text in the caches, are computed once for all of these texts.
//!
//! A sum is a digest or a hash. Each text extends the sums of the shared prefix by its own few symbols.

use sha2::{Digest as _, Sha256};
use std::{
    collections::BTreeMap,
    ops::Deref,
    sync::{Arc, Mutex, PoisonError},
};

/// Symbols that are digested at once.
const DIGESTED_SYMBOLS: usize = 64;
/// Maximum sums of a kind that a prefix keeps, not counting that of the whole prefix.
pub(super) const MAX_KNOWN_SUMS: usize = 64;
/// Odd multiplier with mixed bits, which spreads each symbol over the hash.
const HASH_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// A value that is computed from a text's symbols in order.
pub trait PrefixSum: Clone + Default {
    /// Adds the next symbols.
    fn extend(&mut self, symbols: &[u32]);

    /// Returns the sums of this kind.
    fn known(sums: &KnownSums) -> &Mutex<BTreeMap<usize, Self>>;
}

impl PrefixSum for Sha256 {
    fn extend(&mut self, symbols: &[u32]) {
        let mut bytes = [0; DIGESTED_SYMBOLS * size_of::<u32>()];
        for symbols in symbols.chunks(DIGESTED_SYMBOLS) {
            let (own, _) = bytes.as_chunks_mut();
            own.iter_mut().zip(symbols).for_each(|(bytes, symbol)| *bytes = symbol.to_le_bytes());
            self.update(&bytes[..size_of_val(symbols)]);
        }
    }

    fn known(sums: &KnownSums) -> &Mutex<BTreeMap<usize, Self>> {
        &sums.digests
    }
}

/// A hash of a text. Different texts may have equal hashes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TextHash(u64);

impl PrefixSum for TextHash {
    fn extend(&mut self, symbols: &[u32]) {
        let add = |hash: u64, symbol: &u32| (hash.rotate_left(5) ^ u64::from(*symbol)).wrapping_mul(HASH_FACTOR);
        self.0 = symbols.iter().fold(self.0, add);
    }

    fn known(sums: &KnownSums) -> &Mutex<BTreeMap<usize, Self>> {
        &sums.hashes
    }
}

/// The sums of a text's beginnings that were computed, by the number of symbols.
#[derive(Debug)]
pub struct KnownSums {
    /// Number of symbols of the text. Sums of longer texts are not kept.
    len: usize,
    digests: Mutex<BTreeMap<usize, Sha256>>,
    hashes: Mutex<BTreeMap<usize, TextHash>>,
}

impl KnownSums {
    fn new(len: usize) -> Self {
        Self { len, digests: Mutex::default(), hashes: Mutex::default() }
    }

    /// Number of symbols of the text.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the length and the sum of the longest beginning of at most `len` symbols whose sum is known.
    pub(super) fn longest<S: PrefixSum>(&self, len: usize) -> Option<(usize, S)> {
        let sums = S::known(self).lock().unwrap_or_else(PoisonError::into_inner);
        sums.range(..=len).next_back().map(|(&len, sum)| (len, sum.clone()))
    }

    /// Keeps the sum of the first `len` symbols if fewer than [`MAX_KNOWN_SUMS`] are kept, or if it is the sum of the whole text.
    pub(super) fn keep<S: PrefixSum>(&self, len: usize, sum: &S) {
        let mut sums = S::known(self).lock().unwrap_or_else(PoisonError::into_inner);
        if len == self.len || sums.len() < MAX_KNOWN_SUMS {
            sums.entry(len).or_insert_with(|| sum.clone());
        }
    }
}

/// The symbols of a text, with the known sums of a prefix that it shares with other texts.
#[derive(Debug, Clone, Default)]
pub struct ForkedText {
    pub(super) symbols: Vec<u32>,
    pub(super) known: Option<Arc<KnownSums>>,
}

impl From<Vec<u32>> for ForkedText {
    fn from(symbols: Vec<u32>) -> Self {
        Self { symbols, known: None }
    }
}

impl Deref for ForkedText {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        &self.symbols
    }
}

/// A prefix that texts share.
#[derive(Debug)]
pub struct SharedPrefix {
    pub(super) symbols: Vec<u32>,
    pub(super) known: Arc<KnownSums>,
}

impl SharedPrefix {
    /// Creates a prefix of these symbols.
    pub fn new(symbols: Vec<u32>) -> Self {
        let known = Arc::new(KnownSums::new(symbols.len()));
        Self { symbols, known }
    }

    /// Returns the text of the prefix and a continuation.
    pub fn fork(&self, continuation: &[u32]) -> ForkedText {
        let mut symbols = Vec::with_capacity(self.symbols.len() + continuation.len());
        symbols.extend_from_slice(&self.symbols);
        symbols.extend_from_slice(continuation);
        ForkedText { symbols, known: Some(Arc::clone(&self.known)) }
    }
}

impl Deref for SharedPrefix {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        &self.symbols
    }
}
