//! A prefix that several texts share, such as the text before the cursor in a search for completions. Its symbols are stored once
//! for all of these texts. The digests of its beginnings, which find a text in the caches, are computed once.
//!
//! Each text owns only its last symbols, and extends the digests of the shared prefix by these. Shared symbols also have digests at
//! regular positions. They outlive the search, so that the next one digests only what has changed.

use super::symbol_slices::SymbolSlices;
use sha2::{Digest as _, Sha256};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

/// Symbols that are digested at once.
const DIGESTED_SYMBOLS: usize = 64;
/// Maximum digests that a prefix keeps, not counting that of the whole prefix and those of shared symbols.
pub(super) const MAX_KNOWN_DIGESTS: usize = 64;
/// Distance of the digests of shared symbols.
const DIGEST_STRIDE: usize = 1024;

/// Adds the next symbols of a text to its digest.
pub(super) fn digest_symbols(digest: &mut Sha256, symbols: SymbolSlices<'_>) {
    let mut bytes = [0; DIGESTED_SYMBOLS * size_of::<u32>()];
    for symbols in symbols.slices().into_iter().flat_map(|slice| slice.chunks(DIGESTED_SYMBOLS)) {
        let (own, _) = bytes.as_chunks_mut();
        own.iter_mut().zip(symbols).for_each(|(bytes, symbol)| *bytes = symbol.to_le_bytes());
        digest.update(&bytes[..size_of_val(symbols)]);
    }
}

/// Symbols that texts share, with the digests of their beginnings.
#[derive(Debug, Default)]
pub(super) struct SharedSymbols {
    symbols: Vec<u32>,
    /// The digest of the first `DIGEST_STRIDE` symbols, of twice as many, and so on.
    digests: Vec<Sha256>,
    /// Number of leading symbols that have passed a check.
    checked: AtomicUsize,
}

impl Clone for SharedSymbols {
    fn clone(&self) -> Self {
        let Self { symbols, digests, checked } = self;
        let checked = AtomicUsize::new(checked.load(Relaxed));
        Self { symbols: symbols.clone(), digests: digests.clone(), checked }
    }
}

impl SharedSymbols {
    pub(super) fn new(symbols: Vec<u32>) -> Self {
        let mut shared = Self { symbols, ..Self::default() };
        shared.digest();
        shared
    }

    /// Replaces all symbols of `shared` after the first `len`. Copies only these if a prefix shares them.
    pub(super) fn replace_after(shared: &mut Arc<Self>, len: usize, symbols: Vec<u32>) {
        if Arc::get_mut(shared).is_none() {
            *shared = Arc::new(shared.beginning(len, symbols.len()));
        }
        // never copies: the symbols have one owner
        Arc::make_mut(shared).replace_own_after(len, symbols);
    }

    /// Copies the first `len` symbols and their digests, with room for `added` symbols.
    fn beginning(&self, len: usize, added: usize) -> Self {
        let len = len.min(self.symbols.len());
        let mut symbols = Vec::with_capacity(len.saturating_add(added));
        symbols.extend_from_slice(&self.symbols[..len]);
        let digests = self.digests[..len / DIGEST_STRIDE].to_vec();
        Self { symbols, digests, checked: AtomicUsize::new(self.checked.load(Relaxed).min(len)) }
    }

    fn replace_own_after(&mut self, len: usize, mut symbols: Vec<u32>) {
        self.symbols.truncate(len);
        self.digests.truncate(self.symbols.len() / DIGEST_STRIDE);
        let checked = self.checked.get_mut();
        *checked = (*checked).min(len);
        if self.symbols.is_empty() {
            symbols.shrink_to_fit();
            self.symbols = symbols;
        } else {
            self.symbols.reserve_exact(symbols.len());
            self.symbols.extend(symbols);
        }
        self.digest();
    }

    /// Digests the symbols that were added.
    fn digest(&mut self) {
        let mut digest = self.digests.last().cloned().unwrap_or_default();
        let digested = self.digests.len() * DIGEST_STRIDE;
        for symbols in self.symbols[digested..].chunks_exact(DIGEST_STRIDE) {
            digest_symbols(&mut digest, symbols.into());
            self.digests.push(digest.clone());
        }
    }

    /// Returns the bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.symbols.capacity() * size_of::<u32>() + self.digests.capacity() * size_of::<Sha256>()
    }
}

/// A prefix that texts share.
#[derive(Debug)]
pub struct SharedPrefix {
    /// Symbols that may outlive this prefix, and that the prefixes of later searches then share.
    shared: Arc<SharedSymbols>,
    /// Number of these symbols with which the prefix begins.
    shared_len: usize,
    /// The symbols after them. Each text of the prefix has a copy.
    rest: Vec<u32>,
    /// The digests computed so far of the prefix's beginnings, by their number of symbols.
    digests: Mutex<BTreeMap<usize, Sha256>>,
}

impl SharedPrefix {
    /// Creates a prefix of these symbols.
    pub fn new(symbols: Vec<u32>) -> Arc<Self> {
        let shared_len = symbols.len();
        Self::of(Arc::new(SharedSymbols::new(symbols)), shared_len, Vec::new())
    }

    /// Creates a prefix of the first `shared_len` symbols of `shared` and those of `rest`.
    pub(super) fn of(shared: Arc<SharedSymbols>, shared_len: usize, rest: Vec<u32>) -> Arc<Self> {
        let shared_len = shared_len.min(shared.symbols.len());
        Arc::new(Self { shared, shared_len, rest, digests: Mutex::default() })
    }

    /// Number of symbols.
    pub fn len(&self) -> usize {
        self.shared_len + self.rest.len()
    }

    /// True if it has no symbols.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns its symbols.
    pub fn symbols(&self) -> SymbolSlices<'_> {
        SymbolSlices::new(self.shared_symbols(), &self.rest)
    }

    /// Returns the symbols that its texts do not copy.
    pub(super) fn shared_symbols(&self) -> &[u32] {
        &self.shared.symbols[..self.shared_len]
    }

    /// Returns the text of the prefix and a continuation that a search tries. The segment cache keeps no entry beyond the prefix.
    pub fn fork(self: &Arc<Self>, continuation: &[u32]) -> ForkedText {
        ForkedText { prefix: Some(Arc::clone(self)), own: [&self.rest, continuation].concat() }
    }

    /// Returns the length and the digest of the longest beginning of at most `len` symbols whose digest is known.
    pub(super) fn longest_digest(&self, len: usize) -> Option<(usize, Sha256)> {
        let strides = len.min(self.shared_len) / DIGEST_STRIDE;
        let shared = strides.checked_sub(1).and_then(|last| self.shared.digests.get(last));
        let shared = shared.map(|digest| (strides * DIGEST_STRIDE, digest));
        let digests = self.digests();
        let own = digests.range(..=len).next_back().map(|(&len, digest)| (len, digest));
        let (len, digest) = shared.into_iter().chain(own).max_by_key(|(len, _)| *len)?;
        Some((len, digest.clone()))
    }

    /// Keeps the digest of the first `len` symbols if fewer than [`MAX_KNOWN_DIGESTS`] are kept, or if it is that of the whole
    /// prefix.
    pub(super) fn keep_digest(&self, len: usize, digest: &Sha256) {
        let mut digests = self.digests();
        if len == self.len() || digests.len() < MAX_KNOWN_DIGESTS {
            digests.entry(len).or_insert_with(|| digest.clone());
        }
    }

    fn digests(&self) -> MutexGuard<'_, BTreeMap<usize, Sha256>> {
        self.digests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The symbols of a text, which may begin with a prefix that it shares with other texts.
#[derive(Debug, Clone, Default)]
pub struct ForkedText {
    pub(super) prefix: Option<Arc<SharedPrefix>>,
    /// The symbols after the shared ones of the prefix.
    pub(super) own: Vec<u32>,
}

impl From<Vec<u32>> for ForkedText {
    fn from(symbols: Vec<u32>) -> Self {
        Self { prefix: None, own: symbols }
    }
}

impl ForkedText {
    /// Number of symbols.
    pub fn len(&self) -> usize {
        self.symbols().len()
    }

    /// True if it has no symbols.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns its symbols.
    pub fn symbols(&self) -> SymbolSlices<'_> {
        let shared = self.prefix.as_deref().map_or(&[][..], SharedPrefix::shared_symbols);
        SymbolSlices::new(shared, &self.own)
    }

    /// Checks the symbols with `check`; shared symbols are checked only once for all texts. Fails with the error that `check`
    /// returns for the whole text.
    pub fn check<E>(&self, check: impl Fn(&[u32]) -> Result<(), E>) -> Result<(), E> {
        let shared = self.prefix.as_deref().map_or(&[][..], SharedPrefix::shared_symbols);
        let checked = self.prefix.as_ref().map(|prefix| &prefix.shared.checked);
        let first = checked.map_or(0, |checked| checked.load(Relaxed)).min(shared.len());
        let unchecked = SymbolSlices::new(&shared[first..], &self.own);
        if unchecked.slices().into_iter().any(|symbols| check(symbols).is_err()) {
            return check(&self.symbols().to_vec());
        }
        if let Some(checked) = checked {
            checked.fetch_max(shared.len(), Relaxed);
        }
        Ok(())
    }
}
