//! A prefix that several texts share, such as the text before the cursor in a search for completions. The digests of its beginnings,
//! which find a text in the caches, are computed once for all of these texts.
//!
//! Each text extends the digests of the shared prefix by its own few symbols.

use sha2::{Digest as _, Sha256};
use std::{
    collections::BTreeMap,
    ops::Deref,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// Symbols that are digested at once.
const DIGESTED_SYMBOLS: usize = 64;
/// Maximum digests that a prefix keeps, not counting that of the whole prefix.
pub(super) const MAX_KNOWN_DIGESTS: usize = 64;

/// Adds the next symbols of a text to its digest.
pub(super) fn digest_symbols(digest: &mut Sha256, symbols: &[u32]) {
    let mut bytes = [0; DIGESTED_SYMBOLS * size_of::<u32>()];
    for symbols in symbols.chunks(DIGESTED_SYMBOLS) {
        let (own, _) = bytes.as_chunks_mut();
        own.iter_mut().zip(symbols).for_each(|(bytes, symbol)| *bytes = symbol.to_le_bytes());
        digest.update(&bytes[..size_of_val(symbols)]);
    }
}

/// The digests computed so far of a text's beginnings, by their number of symbols.
#[derive(Debug)]
pub struct KnownDigests {
    /// Number of symbols of the text. Digests of longer texts are not kept.
    len: usize,
    digests: Mutex<BTreeMap<usize, Sha256>>,
    /// True once the text's symbols have passed a check.
    is_checked: AtomicBool,
}

impl KnownDigests {
    fn new(len: usize) -> Self {
        Self { len, digests: Mutex::default(), is_checked: AtomicBool::new(false) }
    }

    /// Number of symbols of the text.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the length and the digest of the longest beginning of at most `len` symbols whose digest is known.
    pub(super) fn longest(&self, len: usize) -> Option<(usize, Sha256)> {
        self.lock().range(..=len).next_back().map(|(&len, digest)| (len, digest.clone()))
    }

    /// Keeps the digest of the first `len` symbols if fewer than [`MAX_KNOWN_DIGESTS`] are kept, or if it is that of the whole text.
    pub(super) fn keep(&self, len: usize, digest: &Sha256) {
        let mut digests = self.lock();
        if len == self.len || digests.len() < MAX_KNOWN_DIGESTS {
            digests.entry(len).or_insert_with(|| digest.clone());
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Sha256>> {
        self.digests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The symbols of a text, with the known digests of a prefix that it shares with other texts.
#[derive(Debug, Clone, Default)]
pub struct ForkedText {
    pub(super) symbols: Vec<u32>,
    pub(super) known: Option<Arc<KnownDigests>>,
}

impl From<Vec<u32>> for ForkedText {
    fn from(symbols: Vec<u32>) -> Self {
        Self { symbols, known: None }
    }
}

impl ForkedText {
    /// Checks the symbols with `check`; the symbols of a shared prefix are checked only once for all its texts. Fails with the
    /// error that `check` returns for the whole text.
    pub fn check<E>(&self, check: impl Fn(&[u32]) -> Result<(), E>) -> Result<(), E> {
        let Some(known) = &self.known else { return check(&self.symbols) };
        if known.is_checked.load(Relaxed) {
            let own = self.symbols.get(known.len()..).unwrap_or_default();
            return check(own).or_else(|_| check(&self.symbols));
        }
        check(&self.symbols)?;
        known.is_checked.store(true, Relaxed);
        Ok(())
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
    pub(super) known: Arc<KnownDigests>,
}

impl SharedPrefix {
    /// Creates a prefix of these symbols.
    pub fn new(symbols: Vec<u32>) -> Self {
        let known = Arc::new(KnownDigests::new(symbols.len()));
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
