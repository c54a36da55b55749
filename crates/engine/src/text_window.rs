//! A text that can drop its beginning; positions still count from the text's start. A digest of the dropped symbols remains:
//! two texts that were cut at one position have the same beginning if their digests are equal.

use sha2::{Digest as _, Sha256};
use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};
use weir_kernels::sync::lock;
use weir_models::contract::SymbolSlices;

/// SHA-256 of a text's prefix.
pub type Digest = [u8; 32];

/// The end of a text, with a digest of the dropped beginning.
#[derive(Debug, Clone)]
pub(crate) struct TextWindow {
    /// The prefix that the whole text shares with others. Its symbols before `own` are held.
    prefix: Option<Arc<SharedPrefix>>,
    /// Number of dropped symbols.
    dropped: usize,
    digest: Sha256,
    /// Position of the first symbol of `own`.
    own_start: usize,
    /// The last symbols, which belong to this text alone.
    own: Vec<u32>,
}

impl TextWindow {
    pub(crate) fn new(text: impl Into<ForkedText>) -> Self {
        let text = text.into();
        let own_start = text.len() - text.own.len();
        let ForkedText { prefix, own } = text;
        Self { prefix, dropped: 0, digest: Sha256::default(), own_start, own }
    }

    /// Number of symbols, dropped ones included.
    pub(crate) fn len(&self) -> usize {
        self.own_start + self.own.len()
    }

    /// Returns the symbols that were not dropped.
    pub(crate) fn held(&self) -> SymbolSlices<'_> {
        let shared = self.prefix.as_deref().map_or(&[][..], SharedPrefix::shared_symbols);
        SymbolSlices::new(shared.get(self.dropped..self.own_start).unwrap_or_default(), &self.own)
    }

    /// Returns the symbols at `positions`, if all are held.
    pub(crate) fn get(&self, positions: Range<usize>) -> Option<SymbolSlices<'_>> {
        self.held().range(positions.start.checked_sub(self.dropped)?..positions.end.checked_sub(self.dropped)?)
    }

    pub(crate) fn get_mut(&mut self, positions: Range<usize>) -> Option<&mut [u32]> {
        if self.prefix.as_ref().is_some_and(|prefix| positions.start < prefix.len()) {
            self.own = self.held().to_vec();
            self.own_start = self.dropped;
            self.prefix = None;
        }
        self.own.get_mut(positions.start.checked_sub(self.own_start)?..positions.end.checked_sub(self.own_start)?)
    }

    pub(crate) fn extend(&mut self, symbols: impl IntoIterator<Item = u32>) {
        self.own.extend(symbols);
    }

    pub(crate) fn drop_before(&mut self, position: usize) {
        let position = position.clamp(self.dropped, self.len());
        // a shared prefix may already know the digest
        let digest = self.text().digests().before(position).cloned();
        if let Some(digest) = digest {
            self.digest = digest;
            self.own.drain(..position.saturating_sub(self.own_start));
            self.own_start = self.own_start.max(position);
            self.dropped = position;
        }
    }

    pub(crate) fn text(&self) -> TextView<'_> {
        let prefix = self.prefix.as_deref();
        TextView { dropped: self.dropped, digest: Some(&self.digest), held: self.held(), prefix }
    }
}

/// A borrowed text, of which the beginning may have been dropped.
#[derive(Debug, Clone, Copy)]
pub struct TextView<'a> {
    dropped: usize,
    /// Digest of the dropped symbols; none if the text is complete.
    digest: Option<&'a Sha256>,
    held: SymbolSlices<'a>,
    /// A prefix of the whole text, some of whose digests are known.
    prefix: Option<&'a SharedPrefix>,
}

impl<'a, T: AsRef<[u32]> + ?Sized> From<&'a T> for TextView<'a> {
    fn from(symbols: &'a T) -> Self {
        Self::new(symbols.into(), None)
    }
}

impl<'a> TextView<'a> {
    /// Creates a complete text, which may begin with a shared prefix.
    fn new(symbols: SymbolSlices<'a>, prefix: Option<&'a SharedPrefix>) -> Self {
        Self { dropped: 0, digest: None, held: symbols, prefix }
    }

    /// Number of symbols, dropped ones included.
    pub fn len(&self) -> usize {
        self.dropped + self.held.len()
    }

    /// True if the text never had a symbol.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of dropped symbols.
    pub fn dropped(&self) -> usize {
        self.dropped
    }

    /// Number of leading symbols that belong to the shared prefix; all of them if there is none.
    pub fn shared_prefix_len(&self) -> usize {
        self.prefix.map_or(self.len(), |prefix| prefix.len().min(self.len()))
    }

    /// Returns its first `len` symbols; at least the dropped ones.
    pub fn prefix(self, len: usize) -> Self {
        Self { held: self.held.take(len.saturating_sub(self.dropped)), ..self }
    }

    /// Returns the symbols from `position` on; none if some of them were dropped.
    pub fn after(&self, position: usize) -> Option<SymbolSlices<'a>> {
        self.held.range(position.checked_sub(self.dropped)?..self.held.len())
    }

    /// Returns the digests of prefixes of rising length.
    pub fn digests(&self) -> PrefixDigests<'a> {
        PrefixDigests { text: *self, position: self.dropped, digest: self.digest.cloned().unwrap_or_default() }
    }
}

/// The digests of a text's prefixes of rising length. See [`TextView::digests`].
#[derive(Debug)]
pub struct PrefixDigests<'a> {
    text: TextView<'a>,
    /// Number of symbols in `digest`.
    position: usize,
    digest: Sha256,
}

impl PrefixDigests<'_> {
    /// Returns the unfinished digest of the symbols before `position`, which must not decrease. `None` if symbols are missing.
    fn before(&mut self, position: usize) -> Option<&Sha256> {
        if !(self.position..=self.text.len()).contains(&position) {
            return None;
        }
        if let Some(prefix) = self.text.prefix {
            if let Some((len, digest)) = prefix.longest_digest(position).filter(|(len, _)| *len > self.position) {
                self.position = len;
                self.digest = digest;
            }
            if self.position < prefix.len() {
                self.advance(position.min(prefix.len()))?;
                prefix.keep_digest(self.position, &self.digest);
            }
        }
        self.advance(position)?;
        Some(&self.digest)
    }

    fn advance(&mut self, position: usize) -> Option<()> {
        let symbols = self.text.after(self.position)?.range(0..position.checked_sub(self.position)?)?;
        digest_symbols(&mut self.digest, symbols);
        self.position = position;
        Some(())
    }

    /// Returns the digest of the symbols before `position`, or `None` in the cases of `before`.
    pub fn digest_before(&mut self, position: usize) -> Option<Digest> {
        self.before(position).map(|digest| digest.clone().finalize().into())
    }
}

// A prefix that several texts share, such as the text before the cursor in a search for completions: its symbols are stored and
// digested once. Each text owns only its last symbols. Digests at regular positions outlive the search.

const DIGESTED_SYMBOLS: usize = 64;

/// Maximum digests that a prefix keeps, not counting the whole prefix's and the shared symbols'.
pub(crate) const MAX_KNOWN_DIGESTS: usize = 64;

/// Distance of the digests of shared symbols.
const DIGEST_STRIDE: usize = 1024;

pub(crate) fn digest_symbols(digest: &mut Sha256, symbols: SymbolSlices<'_>) {
    let mut bytes = [0; DIGESTED_SYMBOLS * size_of::<u32>()];
    for symbols in symbols.slices().into_iter().flat_map(|slice| slice.chunks(DIGESTED_SYMBOLS)) {
        let (own, _) = bytes.as_chunks_mut();
        own.iter_mut().zip(symbols).for_each(|(bytes, symbol)| *bytes = symbol.to_le_bytes());
        digest.update(&bytes[..size_of_val(symbols)]);
    }
}

/// Symbols that texts share, with the digests of their beginnings.
#[derive(Debug, Default)]
pub(crate) struct SharedSymbols {
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
    pub(crate) fn new(symbols: Vec<u32>) -> Self {
        let mut shared = Self { symbols, ..Self::default() };
        shared.digest();
        shared
    }

    pub(crate) fn symbols(&self) -> &[u32] {
        &self.symbols
    }

    /// Replaces all symbols of `shared` after the first `len`. Copies only these if a prefix shares them.
    pub(crate) fn replace_after(shared: &mut Arc<Self>, len: usize, symbols: Vec<u32>) {
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

    fn digest(&mut self) {
        let mut digest = self.digests.last().cloned().unwrap_or_default();
        let digested = self.digests.len() * DIGEST_STRIDE;
        for symbols in self.symbols[digested..].chunks_exact(DIGEST_STRIDE) {
            digest_symbols(&mut digest, symbols.into());
            self.digests.push(digest.clone());
        }
    }

    pub(crate) fn bytes(&self) -> usize {
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

    /// Creates a prefix of the first `shared_len` symbols of `shared`, and of `rest`.
    pub(crate) fn of(shared: Arc<SharedSymbols>, shared_len: usize, rest: Vec<u32>) -> Arc<Self> {
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

    /// Returns its symbols, with their known digests.
    pub fn text(&self) -> TextView<'_> {
        TextView::new(self.symbols(), Some(self))
    }

    /// Returns the symbols that its texts do not copy.
    pub(crate) fn shared_symbols(&self) -> &[u32] {
        &self.shared.symbols[..self.shared_len]
    }

    /// Returns the text of the prefix and a continuation that a search tries. The segment cache keeps no entry beyond the prefix.
    pub fn fork(self: &Arc<Self>, continuation: &[u32]) -> ForkedText {
        ForkedText { prefix: Some(Arc::clone(self)), own: [&self.rest, continuation].concat() }
    }

    /// Returns the length and the digest of the longest beginning of at most `len` symbols whose digest is known.
    pub(crate) fn longest_digest(&self, len: usize) -> Option<(usize, Sha256)> {
        let strides = len.min(self.shared_len) / DIGEST_STRIDE;
        let shared = strides.checked_sub(1).and_then(|last| self.shared.digests.get(last));
        let shared = shared.map(|digest| (strides * DIGEST_STRIDE, digest));
        let digests = lock(&self.digests);
        let own = digests.range(..=len).next_back().map(|(&len, digest)| (len, digest));
        let (len, digest) = shared.into_iter().chain(own).max_by_key(|(len, _)| *len)?;
        Some((len, digest.clone()))
    }

    /// Keeps the digest of the first `len` symbols if few are kept, or if it is the whole prefix's.
    pub(crate) fn keep_digest(&self, len: usize, digest: &Sha256) {
        let mut digests = lock(&self.digests);
        if len == self.len() || digests.len() < MAX_KNOWN_DIGESTS {
            digests.entry(len).or_insert_with(|| digest.clone());
        }
    }
}

/// The symbols of a text, which may begin with a prefix that it shares with other texts.
#[derive(Debug, Clone, Default)]
pub struct ForkedText {
    pub(crate) prefix: Option<Arc<SharedPrefix>>,
    /// The symbols after the shared ones of the prefix.
    pub(crate) own: Vec<u32>,
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

    /// Returns its symbols, with the known digests of the prefix.
    pub fn text(&self) -> TextView<'_> {
        TextView::new(self.symbols(), self.prefix.as_deref())
    }

    /// Checks the symbols with `check`, shared ones only once. Fails with its error for the whole text.
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

#[cfg(test)]
mod tests {
    use super::*;
    use weir_models::random::{Purpose, uniform};

    #[test]
    fn dropped_prefixes_keep_positions() {
        let symbols: Vec<u32> = (0..100).collect();
        let mut window = TextWindow::new(symbols[..70].to_vec());
        for position in [0, 10, 10, 4, 50] {
            window.drop_before(position);
        }
        window.extend(symbols[70..].iter().copied());
        assert_eq!((window.len(), window.held().len()), (100, 50));
        assert_eq!(
            (window.get(60..80), window.get(49..80), window.get(60..101)),
            (Some((&symbols[60..80]).into()), None, None)
        );
        let cut = window.text();
        let complete = TextView::from(&symbols);
        assert_eq!((cut.len(), cut.dropped(), complete.dropped()), (100, 50, 0));
        assert_eq!((cut.after(90), cut.after(49)), (Some((&symbols[90..]).into()), None));
        assert_eq!((cut.prefix(60).after(50), cut.prefix(20).len()), (Some((&symbols[50..60]).into()), 50));
        let mut digests = complete.digests();
        assert!(digests.digest_before(20).is_some() && digests.digest_before(19).is_none(), "positions must rise");
        window.drop_before(500);
        assert_eq!((window.len(), window.held().len()), (100, 0));
    }

    fn digest(symbols: &[u32]) -> Digest {
        let mut digest = Sha256::default();
        symbols.iter().for_each(|symbol| digest.update(symbol.to_le_bytes()));
        digest.finalize().into()
    }

    /// Texts of one prefix ask for digests in random order, at random positions, and after their beginning was dropped.
    #[test]
    fn forks_have_the_digests_of_texts_without_a_shared_prefix() {
        for round in 0..300 {
            let below = |draw, sides| (uniform(round, Purpose::Sampling, draw) * sides as f32) as usize;
            let symbols = |first, len| (0..len).map(|index| below(first + index, 3) as u32).collect::<Vec<u32>>();
            // some prefixes have digests at regular positions
            let longest = if round % 20 == 0 { 4000 } else { 300 };
            let shared = SharedPrefix::new(symbols(0, below(1000, longest)));
            for number in 0..20 {
                let draw = 2000 + 100 * number;
                let continuation = symbols(draw, below(draw + 50, 8));
                let text = [shared.symbols().to_vec(), continuation.clone()].concat();
                let forked = shared.fork(&continuation);
                assert_eq!((forked.symbols(), forked.len()), ((&text).into(), text.len()));
                let mut window = TextWindow::new(forked);
                window.drop_before([0, below(draw + 51, longest)][below(draw + 52, 2)]);
                let dropped = window.len() - window.held().len();
                let mut positions: Vec<usize> = (0..4).map(|index| below(draw + 60 + index, longest + 10)).collect();
                positions.sort_unstable();
                let mut digests = window.text().digests();
                for position in positions {
                    let expected = (dropped..=text.len()).contains(&position).then(|| digest(&text[..position]));
                    assert_eq!(digests.digest_before(position), expected, "{position} of {}", text.len());
                }
            }
        }
    }

    #[test]
    fn the_shared_prefix_ends_before_the_continuation() {
        let symbols = Arc::new(SharedSymbols::new((0..50).collect()));
        let mut window = TextWindow::new(SharedPrefix::of(symbols, 40, vec![1, 2, 3]).fork(&[7, 8]));
        let lengths = |window: &TextWindow| [45, 43, 42, 10].map(|len| window.text().prefix(len).shared_prefix_len());
        assert_eq!(lengths(&window), [43, 43, 42, 10]);
        window.drop_before(41);
        assert_eq!(lengths(&window), [43, 43, 42, 41]);
        assert_eq!(TextView::from(&[1_u32, 2, 3]).shared_prefix_len(), 3);
    }

    #[test]
    fn a_digest_is_computed_once_and_few_are_kept() {
        let shared = SharedPrefix::new((0..500).collect());
        let known = |position| shared.longest_digest(position).map(|(len, _)| len);
        assert!(shared.text().digests().digest_before(70).is_some());
        let fork = TextWindow::new(shared.fork(&[7, 8]));
        assert!(fork.text().digests().digest_before(501).is_some());
        assert_eq!((known(69), known(499), known(502)), (None, Some(70), Some(500)));
        assert!((0..500).all(|position| shared.text().digests().digest_before(position).is_some()));
        let kept = (0..=500).filter(|&position| known(position) == Some(position)).count();
        assert_eq!(kept, MAX_KNOWN_DIGESTS);
    }

    #[test]
    fn a_shared_prefix_is_checked_once() {
        let checked = std::cell::RefCell::new(Vec::new());
        let below_9 = |symbols: &[u32]| {
            checked.borrow_mut().push(symbols.len());
            symbols.iter().position(|&symbol| symbol > 8).map_or(Ok(()), Err)
        };
        let shared = SharedPrefix::new(vec![1; 5]);
        let results = [&[2, 3][..], &[2], &[], &[3, 9]].map(|own| shared.fork(own).check(below_9));
        assert_eq!(results, [Ok(()), Ok(()), Ok(()), Err(6)]);
        assert_eq!(SharedPrefix::new(vec![9]).fork(&[1]).check(below_9), Err(0));
        assert_eq!(ForkedText::from(vec![1, 9]).check(below_9), Err(1));
        assert_eq!(*checked.borrow(), [5, 2, 0, 1, 0, 0, 0, 2, 7, 1, 2, 0, 2, 2]);
    }

    /// A text that changes within the prefix has no known digests any more.
    #[test]
    fn a_changed_text_has_digests_of_its_own() {
        let shared = SharedPrefix::new((0..100).collect());
        assert!(shared.text().digests().digest_before(100).is_some());
        let mut window = TextWindow::new(shared.fork(&[7, 8]));
        window.get_mut(101..102).unwrap()[0] = 9;
        assert_eq!(
            window.text().digests().digest_before(102),
            Some(digest(&[shared.symbols().to_vec(), vec![7, 9]].concat()))
        );
        window.get_mut(99..100).unwrap()[0] = 5;
        assert_eq!(
            window.text().digests().digest_before(100),
            Some(digest(&[shared.symbols().take(99).to_vec(), vec![5]].concat()))
        );
    }
}
