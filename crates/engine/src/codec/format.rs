//! The format of compressed data: a header, the blocks, an end. All numbers are little-endian.
//!
//! | part | bytes | contents |
//! |---|---|---|
//! | header | 8 | `89 57 45 49 52 0D 0A 1A` (`WEIR` between bytes that a change of line ends would damage) |
//! | | 1 | version, 1 |
//! | | 1 | name of the dtype: 0 `f32`, 1 `bf16`, 2 `int8` |
//! | | 1 | rounding of a multiply-add: 0 twice, 1 once |
//! | | 32 | SHA-256 of the checkpoint's weights |
//! | | 4, 4, 4 | maximum symbols of a block; length and stride of its windows |
//! | | 8 | bytes of the text; 2⁶⁴ − 1 if the compressor did not know them |
//! | block | 1 | 1 |
//! | | 4, 4 | symbols, bytes of data |
//! | | | data |
//! | end | 1 | 0 |
//! | | 8 | bytes of the text |
//! | | 32 | SHA-256 of the text |
//!
//! All blocks but the last one have the maximum number of symbols.

use crate::{
    codec::coder::{Code, CodeInput, Coded, MAX_BLOCK, check_model, max_block_bytes},
    options::WindowOptions,
};
use sha2::{Digest as _, Sha256};
use std::{collections::VecDeque, sync::Arc};
use weir_kernels::error::{Error, Result};
use weir_models::{
    contract::Card,
    text::{StreamTokenizer, TextNormaliser, Vocabulary},
};

const MAGIC: [u8; 8] = *b"\x89WEIR\r\n\x1a";
const VERSION: u8 = 1;
const DTYPES: [&str; 4] = ["f32", "bf16", "int8", "int4"];
const UNKNOWN_LENGTH: u64 = u64::MAX;
const HEADER: usize = MAGIC.len() + 3 + DIGEST + 3 * 4 + 8;
const DIGEST: usize = 32;

/// Bytes of a block before its data.
const FRONT: usize = 1 + 4 + 4;

/// Maximum symbols of a window in any model.
const MAX_WINDOW: usize = 1 << 24;

const BLOCK: u8 = 1;
const END: u8 = 0;

/// SHA-256 of a text, or of a checkpoint's weights.
pub type Digest = [u8; DIGEST];

/// The beginning of compressed data: everything that the decompressor must have in common with the compressor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Storage type of the weights.
    pub dtype: &'static str,
    /// True if a multiply-add rounds once.
    pub fuses: bool,
    /// SHA-256 of the checkpoint's weights.
    pub sha256: Digest,
    /// Maximum symbols of a block.
    pub block: usize,
    /// The windows in which the model reads a block.
    pub windows: WindowOptions,
    /// Bytes of the text, if the compressor knew them.
    pub text_bytes: Option<u64>,
}

/// The end of compressed data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// Bytes of the text.
    pub text_bytes: u64,
    /// SHA-256 of the text.
    pub sha256: Digest,
}

/// A part of compressed data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// The first part.
    Header(Header),
    /// The next block: its symbols and its data.
    Block {
        /// Number of symbols.
        symbols: usize,
        /// The compressed data.
        data: Vec<u8>,
    },
    /// The last part.
    End(End),
}

impl Header {
    /// Creates the header of a text that `card`'s model compresses. Fails if block, windows, dtype or sha256 do not fit it.
    pub fn new(card: &Card, block: usize, windows: WindowOptions, text_bytes: Option<u64>) -> Result<Self> {
        crate::options::within("block_chars", block, 1..=MAX_BLOCK)?;
        windows.validate(card)?;
        let dtype = DTYPES.into_iter().find(|dtype| *dtype == card.dtype);
        let dtype = dtype.ok_or_else(|| Error::Internal(format!("the format has no dtype {}", card.dtype)))?;
        let sha256 = digest(&card.sha256).ok_or_else(|| Error::Internal("the model has no sha256".into()))?;
        Ok(Self { dtype, fuses: card.isa.fuses(), sha256, block, windows, text_bytes })
    }

    /// Checks that `card`'s model can compute the same bits. Fails with [`Error::CompressedWith`] or [`Error::Damaged`].
    pub fn check(&self, card: &Card) -> Result<()> {
        let checks = [
            ("the checkpoint with sha256", hex(&self.sha256), card.sha256.clone()),
            ("the dtype", self.dtype.to_owned(), card.dtype.to_owned()),
            ("multiply-adds that round", rounding(self.fuses).to_owned(), rounding(card.isa.fuses()).to_owned()),
        ];
        for (what, found, expected) in checks {
            if found != expected {
                return Err(Error::CompressedWith { what, found, model: card.name.clone(), expected });
            }
        }
        let WindowOptions { length, stride } = self.windows;
        if !(1..=length.min(MAX_WINDOW)).contains(&stride) || length > MAX_WINDOW {
            return Err(damaged("the header", "valid windows", format!("length {length}, stride {stride}")));
        }
        if length > card.max_symbols {
            let found = format!("{length} symbols");
            let expected = format!("at most {}, which --max-symbols sets", card.max_symbols);
            return Err(Error::CompressedWith { what: "windows of", found, model: card.name.clone(), expected });
        }
        Ok(())
    }

    /// Appends the header.
    pub fn write(&self, out: &mut Vec<u8>) {
        let dtype = DTYPES.iter().position(|dtype| *dtype == self.dtype).unwrap_or_default();
        out.extend(MAGIC);
        out.extend([VERSION, dtype as u8, u8::from(self.fuses)]);
        out.extend(self.sha256);
        for number in [self.block, self.windows.length, self.windows.stride] {
            out.extend(word(number));
        }
        out.extend(self.text_bytes.unwrap_or(UNKNOWN_LENGTH).to_le_bytes());
    }

    fn parse(bytes: &[u8; HEADER]) -> Result<Self> {
        let wrong = |expected: &str, found: String| Err(damaged("the header", expected, found));
        let mut fields = Fields(bytes);
        if fields.take() != MAGIC {
            return wrong("data that weir compressed", "other data".into());
        }
        let [version, dtype, rounding] = fields.take();
        if version != VERSION {
            return wrong("version 1", format!("version {version}"));
        }
        let Some(&dtype) = DTYPES.get(usize::from(dtype)) else {
            return wrong("a known dtype", format!("number {dtype}"));
        };
        if rounding > 1 {
            return wrong("a known rounding", format!("number {rounding}"));
        }
        let sha256 = fields.take();
        let [block, length, stride] = [fields.number(), fields.number(), fields.number()];
        if !(1..=MAX_BLOCK).contains(&block) {
            return wrong("blocks of 1 to 1048576 symbols", block.to_string());
        }
        let text_bytes = Some(u64::from_le_bytes(fields.take())).filter(|bytes| *bytes != UNKNOWN_LENGTH);
        let windows = WindowOptions { length, stride };
        Ok(Self { dtype, fuses: rounding == 1, sha256, block, windows, text_bytes })
    }
}

/// Appends a block of `symbols` symbols.
pub fn write_block(symbols: usize, data: &[u8], out: &mut Vec<u8>) {
    out.push(BLOCK);
    out.extend(word(symbols));
    out.extend(word(data.len()));
    out.extend(data);
}

impl End {
    /// Checks the decompressed text. Fails with [`Error::Damaged`] if it is not the text that was compressed.
    pub fn check(&self, header: &Header, text: &Self) -> Result<()> {
        if header.text_bytes.is_some_and(|bytes| bytes != self.text_bytes) {
            let found = format!("{} at the end", self.text_bytes);
            return Err(damaged("the length of the text", "one length", found));
        }
        if self.text_bytes != text.text_bytes {
            let expected = format!("{} bytes", self.text_bytes);
            return Err(damaged("the decompressed text", &expected, text.text_bytes.to_string()));
        }
        if self.sha256 != text.sha256 {
            let expected = format!("the checksum {}", hex(&self.sha256));
            return Err(damaged("the decompressed text", &expected, hex(&text.sha256)));
        }
        Ok(())
    }

    /// Appends the end.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.push(END);
        out.extend(self.text_bytes.to_le_bytes());
        out.extend(self.sha256);
    }
}

/// Reads compressed data that arrive in pieces. Holds at most one part and the piece.
#[derive(Debug, Default)]
pub struct ContainerReader {
    /// Bytes that are not part of a complete part yet.
    buffer: Vec<u8>,
    /// Number of bytes of `buffer` that were read.
    read: usize,
    header: Option<Header>,
    /// True after a block with fewer symbols than the maximum.
    is_last: bool,
    end: bool,
}

impl ContainerReader {
    /// Appends a piece. [`next`](Self::next) must have returned `None` before.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.read);
        self.read = 0;
        let capacity = self.capacity_for(self.buffer.len() + bytes.len());
        self.buffer.reserve_exact(capacity - self.buffer.len());
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the bytes of memory that the input and the next part take after `more` bytes are pushed.
    pub fn bytes_after(&self, more: usize) -> usize {
        let unread = self.buffer.len() - self.read + more;
        self.capacity_for(unread) + unread
    }

    /// Returns the capacity of the buffer with `bytes` bytes in it.
    fn capacity_for(&self, bytes: usize) -> usize {
        let longest = self.header.as_ref().map_or(HEADER, |header| FRONT + max_block_bytes(header.block));
        grown(self.buffer.capacity(), bytes, longest)
    }

    /// Returns the next part if it is complete. Fails with [`Error::Damaged`] if the data are not in the format.
    #[expect(clippy::should_implement_trait, reason = "an iterator would end where more data are needed")]
    pub fn next(&mut self) -> Result<Option<Part>> {
        if self.end && self.read < self.buffer.len() {
            return Err(damaged("the end", "no more data", "more data".into()));
        }
        let Some(block) = self.header.as_ref().map(|header| header.block) else {
            let Some(bytes) = self.take::<HEADER>() else {
                // foreign data are rejected before they are as long as a header
                if self.buffer.iter().zip(&MAGIC).any(|(found, expected)| found != expected) {
                    return Err(damaged("the header", "data that weir compressed", "other data".into()));
                }
                return Ok(None);
            };
            let header = Header::parse(&bytes)?;
            self.header = Some(header.clone());
            return Ok(Some(Part::Header(header)));
        };
        match self.buffer.get(self.read) {
            Some(&BLOCK) => self.next_block(block),
            Some(&END) => {
                let Some(bytes) = self.take::<{ 1 + 8 + DIGEST }>() else { return Ok(None) };
                let mut fields = Fields(&bytes[1..]);
                self.end = true;
                let end = End { text_bytes: u64::from_le_bytes(fields.take()), sha256: fields.take() };
                Ok(Some(Part::End(end)))
            }
            Some(&tag) => Err(damaged("a part", "a block or the end", format!("number {tag}"))),
            None => Ok(None),
        }
    }

    /// Checks that the data are complete. Fails with [`Error::Damaged`] if they end early.
    pub fn finish(&self) -> Result<()> {
        if self.end {
            return Ok(());
        }
        Err(damaged("the data", "an end", "data that end before it".into()))
    }

    fn next_block(&mut self, block: usize) -> Result<Option<Part>> {
        let Some(front) = self.buffer.get(self.read + 1..self.read + FRONT) else { return Ok(None) };
        let mut fields = Fields(front);
        let [symbols, bytes] = [fields.number(), fields.number()];
        if self.is_last {
            return Err(damaged("a block", "the end after a short block", "another block".into()));
        }
        if !(1..=block).contains(&symbols) {
            return Err(damaged("a block", &format!("1 to {block} symbols"), symbols.to_string()));
        }
        let limit = max_block_bytes(symbols);
        if bytes > limit {
            return Err(damaged("a block", &format!("at most {limit} bytes"), bytes.to_string()));
        }
        let start = self.read + FRONT;
        let Some(data) = self.buffer.get(start..start + bytes) else { return Ok(None) };
        let data = data.to_vec();
        self.read = start + bytes;
        self.is_last = symbols < block;
        Ok(Some(Part::Block { symbols, data }))
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = self.buffer.get(self.read..)?.first_chunk().copied()?;
        self.read += N;
        Some(bytes)
    }
}

/// The fields of a part whose length was checked.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let Some((field, rest)) = self.0.split_first_chunk() else { return [0; N] };
        self.0 = rest;
        *field
    }

    fn number(&mut self) -> usize {
        u32::from_le_bytes(self.take()) as usize
    }
}

/// Encodes a number below 2^32: lengths of blocks and windows are at most 2^24.
fn word(number: usize) -> [u8; 4] {
    u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes()
}

fn rounding(fuses: bool) -> &'static str {
    if fuses { "once (AVX2, AVX-512, AMX)" } else { "twice (portable)" }
}

fn hex(digest: &Digest) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn digest(hex: &str) -> Option<Digest> {
    let mut digest = [0; DIGEST];
    for (index, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hex.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    (hex.len() == 2 * DIGEST).then_some(digest)
}

fn damaged(what: &'static str, expected: &str, found: String) -> Error {
    Error::Damaged { what, expected: expected.to_owned(), found }
}

/// Maximum items by which a buffer grows at a time.
const STEP: usize = 1 << 14;

/// Returns the capacity of a buffer that must hold `needed` items. It grows in few steps, to `most` if that is enough.
pub(super) fn grown(capacity: usize, needed: usize, most: usize) -> usize {
    if needed <= capacity {
        return capacity;
    }
    needed.max(most.min(capacity.saturating_add(capacity.min(STEP))))
}

const TEXT: &str = "text";

/// Longest encoding of a character in UTF-8.
const MAX_CHARACTER: usize = 4;

/// Encodes a text that arrives in pieces. A text that is not normalised comes back byte by byte.
pub struct TextReader {
    vocabulary: Arc<Vocabulary>,
    normaliser: Option<StreamTokenizer>,
    /// The beginning of a character whose end did not arrive yet.
    incomplete: Vec<u8>,
    /// Bytes of the text before `incomplete`.
    bytes: u64,
    /// Characters of the text before `incomplete`.
    characters: usize,
    /// Checksum of the bytes that must come back.
    sha256: Sha256,
}

impl TextReader {
    /// Creates the reader of a text. With `normalise`, the normalised text is the one that comes back.
    pub fn new(vocabulary: &Arc<Vocabulary>, normalise: bool) -> Self {
        let normalises = normalise && vocabulary.normaliser() != TextNormaliser::None;
        let normaliser = normalises.then(|| StreamTokenizer::new(Arc::clone(vocabulary), TEXT, usize::MAX));
        let vocabulary = Arc::clone(vocabulary);
        Self { vocabulary, normaliser, incomplete: Vec::new(), bytes: 0, characters: 0, sha256: Sha256::new() }
    }

    /// Returns true if the decoded text is the one that was read. Always true if the reader normalises.
    pub fn is_read(&self, text: &End) -> bool {
        self.normaliser.is_some() || text.sha256 == Digest::from(self.sha256.clone().finalize())
    }

    /// Encodes a piece and appends its symbols. A model of bytes takes any bytes; others fail with [`Error::Unreadable`] or at
    /// the first unknown character.
    pub fn push(&mut self, mut piece: &[u8], symbols: &mut Vec<u32>) -> Result<()> {
        self.sha256.update(piece);
        if let (Some(zero), None) = (self.vocabulary.byte_zero(), &self.normaliser) {
            symbols.extend(piece.iter().map(|&byte| zero + u32::from(byte)));
            return Ok(());
        }
        // a character that was cut is completed byte by byte
        while !self.incomplete.is_empty() {
            let Some((&byte, rest)) = piece.split_first() else { return Ok(()) };
            piece = rest;
            self.incomplete.push(byte);
            let bytes = std::mem::take(&mut self.incomplete);
            self.push_utf8(&bytes, symbols)?;
        }
        self.push_utf8(piece, symbols)
    }

    /// Ends the text. Fails with [`Error::Unreadable`] if its last character is incomplete.
    pub fn finish(&self) -> Result<()> {
        if self.incomplete.is_empty() { Ok(()) } else { Err(self.not_utf8(0)) }
    }

    /// Encodes the complete characters of `bytes`, and keeps an incomplete one.
    fn push_utf8(&mut self, bytes: &[u8], symbols: &mut Vec<u32>) -> Result<()> {
        let (text, rest) = match std::str::from_utf8(bytes) {
            Ok(text) => (text, &[][..]),
            Err(error) => {
                let (valid, rest) = bytes.split_at(error.valid_up_to());
                if error.error_len().is_some() || rest.len() >= MAX_CHARACTER {
                    return Err(self.not_utf8(valid.len()));
                }
                // valid up to here
                (std::str::from_utf8(valid).unwrap_or_default(), rest)
            }
        };
        self.encode(text, symbols)?;
        self.bytes += text.len() as u64;
        self.characters += text.chars().count();
        self.incomplete = rest.to_vec();
        Ok(())
    }

    fn encode(&mut self, text: &str, symbols: &mut Vec<u32>) -> Result<()> {
        let Some(normaliser) = &mut self.normaliser else { return self.encode_exactly(text, symbols) };
        let mut tokens = Vec::new();
        normaliser.push(text, &mut tokens)?;
        // the `unknown` symbol would not come back as the character that it stands for
        if let Some(token) = tokens.iter().find(|token| self.vocabulary.is_special(token.id)) {
            let (before, from) = text.split_at(token.start.saturating_sub(self.bytes) as usize);
            let found = format!("{:?}", from.chars().next().unwrap_or_default());
            let offset = self.characters + before.chars().count();
            return Err(Error::UnknownSymbol { field: TEXT, found, offset, unit: "character" });
        }
        symbols.extend(tokens.iter().map(|token| token.id));
        Ok(())
    }

    fn encode_exactly(&self, text: &str, symbols: &mut Vec<u32>) -> Result<()> {
        for (index, character) in text.chars().enumerate() {
            let Some(id) = self.vocabulary.id_of(character) else {
                let found = format!("{character:?}");
                let offset = self.characters + index;
                return Err(match self.vocabulary.normaliser() {
                    TextNormaliser::None => Error::UnknownSymbol { field: TEXT, found, offset, unit: "character" },
                    normaliser => {
                        let normaliser = normaliser.name().to_owned();
                        Error::NeedsNormaliser { found, offset, normaliser, option: "normalise" }
                    }
                });
            };
            symbols.push(id);
        }
        Ok(())
    }

    fn not_utf8(&self, offset: usize) -> Error {
        let at = self.bytes + offset as u64;
        let why = format!("the text is not valid UTF-8 at byte {at}, and the model's symbols are not bytes");
        Error::Unreadable { field: Some(TEXT.into()), why }
    }
}

/// Decodes the symbols of a text in order, and computes the text's length and checksum.
pub struct TextWriter {
    vocabulary: Arc<Vocabulary>,
    sha256: Sha256,
    bytes: u64,
}

impl TextWriter {
    /// Creates the writer of a text.
    pub fn new(vocabulary: &Arc<Vocabulary>) -> Self {
        Self { vocabulary: Arc::clone(vocabulary), sha256: Sha256::new(), bytes: 0 }
    }

    /// Returns the bytes of the next symbols.
    pub fn push(&mut self, symbols: &[u32]) -> Vec<u8> {
        let bytes: Vec<u8> = match self.vocabulary.byte_zero() {
            // a mark of the model is a byte like all others here: files have bytes that texts never have
            Some(zero) => symbols.iter().map(|&symbol| symbol.wrapping_sub(zero) as u8).collect(),
            None => self.vocabulary.decode(symbols).into_bytes(),
        };
        self.sha256.update(&bytes);
        self.bytes += bytes.len() as u64;
        bytes
    }

    /// Returns the length and the checksum of the text so far.
    pub fn end(&self) -> End {
        let sha256: Digest = self.sha256.clone().finalize().into();
        End { text_bytes: self.bytes, sha256 }
    }
}

/// A text that is compressed, or data that are decompressed. The caller pushes input, takes the complete blocks, codes them in
/// any order, and returns the results in order. Memory is bounded by a block and the bytes of one call.
pub trait BlockStream: Send {
    /// Takes the next bytes of the input, after all complete [blocks](Self::next_block) were taken. Fails for invalid input.
    fn push(&mut self, bytes: &[u8]) -> Result<()>;

    /// Ends the input. Fails if it is incomplete.
    fn finish(&mut self) -> Result<()>;

    /// Returns the bytes of memory that the input and the next block take after `more` bytes are pushed.
    fn input_bytes(&self, more: usize) -> usize;

    /// Returns the next block if it is complete. Fails for data that are not in the format or of another model.
    fn next_block(&mut self) -> Result<Option<Code>>;

    /// Takes the result of the next block, and appends its output.
    fn accept(&mut self, coded: Coded, out: &mut Vec<u8>) -> Result<()>;

    /// Ends the output after the last block. Fails with [`Error::Damaged`] if the decompressed text is not the one that was compressed.
    fn end(&mut self, out: &mut Vec<u8>) -> Result<()>;

    /// Returns the totals so far.
    fn totals(&self) -> Totals;
}

/// Totals of a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes of the text.
    pub text_bytes: u64,
    /// Symbols of the text.
    pub symbols: u64,
    /// Bytes of the compressed data.
    pub compressed_bytes: u64,
    /// Blocks.
    pub blocks: u64,
}

impl Totals {
    /// Returns the size of the compressed data in bits per symbol; none for an empty text.
    pub fn bits_per_symbol(&self) -> Option<f64> {
        (self.symbols > 0).then(|| self.compressed_bytes as f64 * 8.0 / self.symbols as f64)
    }
}

/// How a text is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompressOptions {
    /// Maximum symbols of a block.
    pub block: usize,
    /// The windows in which the model reads a block.
    pub windows: WindowOptions,
    /// Rewrites the text like the model's training text before it is compressed.
    pub normalise: bool,
    /// Bytes of the text, if known.
    pub text_bytes: Option<u64>,
}

/// Compresses one text.
pub struct Compressor {
    header: Header,
    /// True once the header is written.
    begun: bool,
    reader: TextReader,
    writer: TextWriter,
    /// Symbols that have arrived.
    symbols: Vec<u32>,
    /// Number of these that are part of a block.
    taken: usize,
    finished: bool,
    /// Symbols of each block whose result is missing.
    lengths: VecDeque<usize>,
    totals: Totals,
}

impl Compressor {
    /// Creates the stream of a text. Fails if the model has no [exactness](check_model) that suffices, or an option is out of bounds.
    pub fn new(card: &Card, options: CompressOptions) -> Result<Self> {
        check_model(card)?;
        let CompressOptions { block, windows, normalise, text_bytes } = options;
        Ok(Self {
            header: Header::new(card, block, windows, text_bytes)?,
            begun: false,
            reader: TextReader::new(&card.vocabulary, normalise),
            writer: TextWriter::new(&card.vocabulary),
            symbols: Vec::new(),
            taken: 0,
            finished: false,
            lengths: VecDeque::new(),
            totals: Totals::default(),
        })
    }

    /// Returns the symbols in no block after `more` bytes are pushed.
    fn symbols_after(&self, more: usize) -> usize {
        self.symbols.len() - self.taken + more
    }

    fn capacity_after(&self, more: usize) -> usize {
        grown(self.symbols.capacity(), self.symbols_after(more), self.header.block)
    }

    /// Writes the header before anything else.
    fn begin(&mut self, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.begun, true) {
            self.header.write(out);
        }
    }
}

impl BlockStream for Compressor {
    fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.symbols.drain(..self.taken);
        self.taken = 0;
        // Reserves what `input_bytes` counted. A byte becomes at most one symbol, unless the text is normalised.
        let capacity = self.capacity_after(bytes.len());
        self.symbols.reserve_exact(capacity - self.symbols.len());
        self.reader.push(bytes, &mut self.symbols)
    }

    fn input_bytes(&self, more: usize) -> usize {
        let block = self.symbols_after(more).min(self.header.block);
        (self.capacity_after(more) + block) * size_of::<u32>()
    }

    fn finish(&mut self) -> Result<()> {
        self.reader.finish()?;
        self.finished = true;
        Ok(())
    }

    fn next_block(&mut self) -> Result<Option<Code>> {
        let block = self.header.block;
        let left = self.symbols.get(self.taken..).unwrap_or_default();
        if left.is_empty() || (left.len() < block && !self.finished) {
            return Ok(None);
        }
        let symbols = left[..block.min(left.len())].to_vec();
        self.taken += symbols.len();
        self.writer.push(&symbols);
        self.lengths.push_back(symbols.len());
        Ok(Some(Code { input: CodeInput::Compress(symbols), windows: self.header.windows, progress: false }))
    }

    fn accept(&mut self, coded: Coded, out: &mut Vec<u8>) -> Result<()> {
        let (Coded::Data(data), Some(symbols)) = (coded, self.lengths.pop_front()) else {
            return Err(Error::Internal("a compressed block has no data".into()));
        };
        let before = out.len();
        self.begin(out);
        write_block(symbols, &data, out);
        self.totals.symbols += symbols as u64;
        self.totals.blocks += 1;
        self.totals.compressed_bytes += (out.len() - before) as u64;
        Ok(())
    }

    fn end(&mut self, out: &mut Vec<u8>) -> Result<()> {
        let end = self.writer.end();
        if let Some(bytes) = self.header.text_bytes.filter(|bytes| *bytes != end.text_bytes) {
            let bound = format!("{} (the length of the text)", end.text_bytes);
            return Err(Error::bad_option("text_bytes", bytes.to_string(), bound));
        }
        if !self.reader.is_read(&end) {
            return Err(Error::Internal("the compressed text would come back as another one".into()));
        }
        let before = out.len();
        self.begin(out);
        end.write(out);
        self.totals.compressed_bytes += (out.len() - before) as u64;
        Ok(())
    }

    fn totals(&self) -> Totals {
        Totals { text_bytes: self.writer.bytes, ..self.totals }
    }
}

/// Decompresses the data of one text.
pub struct Decompressor<'a> {
    card: &'a Card,
    reader: ContainerReader,
    header: Option<Header>,
    writer: TextWriter,
    end: Option<End>,
    totals: Totals,
}

impl<'a> Decompressor<'a> {
    /// Creates the stream of a text that `card`'s model compressed. Fails if the model has no [exactness](check_model) that suffices.
    pub fn new(card: &'a Card) -> Result<Self> {
        check_model(card)?;
        Ok(Self {
            card,
            reader: ContainerReader::default(),
            header: None,
            writer: TextWriter::new(&card.vocabulary),
            end: None,
            totals: Totals::default(),
        })
    }

    /// Returns the header, once it has arrived.
    pub fn header(&self) -> Option<&Header> {
        self.header.as_ref()
    }
}

impl BlockStream for Decompressor<'_> {
    fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.reader.push(bytes);
        self.totals.compressed_bytes += bytes.len() as u64;
        Ok(())
    }

    fn input_bytes(&self, more: usize) -> usize {
        self.reader.bytes_after(more)
    }

    fn finish(&mut self) -> Result<()> {
        self.reader.finish()
    }

    fn next_block(&mut self) -> Result<Option<Code>> {
        while let Some(part) = self.reader.next()? {
            match (part, &self.header) {
                (Part::Header(header), _) => {
                    header.check(self.card)?;
                    self.header = Some(header);
                }
                (Part::Block { symbols, data }, Some(header)) => {
                    let input = CodeInput::Decompress { symbols, data };
                    return Ok(Some(Code { input, windows: header.windows, progress: false }));
                }
                (Part::End(end), _) => self.end = Some(end),
                (Part::Block { .. }, None) => return Err(Error::Internal("a block before the header".into())),
            }
        }
        Ok(None)
    }

    fn accept(&mut self, coded: Coded, out: &mut Vec<u8>) -> Result<()> {
        let Coded::Symbols(symbols) = coded else {
            return Err(Error::Internal("a decompressed block has no symbols".into()));
        };
        self.totals.symbols += symbols.len() as u64;
        self.totals.blocks += 1;
        out.extend(self.writer.push(&symbols));
        Ok(())
    }

    fn end(&mut self, _: &mut Vec<u8>) -> Result<()> {
        match (&self.header, self.end) {
            (Some(header), Some(end)) => end.check(header, &self.writer.end()),
            _ => Err(Error::Internal("the data have no end".into())),
        }
    }

    fn totals(&self) -> Totals {
        Totals { text_bytes: self.writer.bytes, ..self.totals }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_kernels::Isa;
    use weir_models::text::TextMarks;

    #[test]
    fn buffers_grow_in_few_steps_up_to_their_limit() {
        assert_eq!([grown(8, 8, 100), grown(8, 9, 100), grown(8, 40, 100)], [8, 16, 40]);
        assert_eq!([grown(8, 9, 10), grown(8, 9, 1), grown(1 << 16, (1 << 16) + 1, 1 << 20)], [10, 9, 5 << 14]);
    }

    fn card() -> Card {
        let vocabulary = Vocabulary::byte_level(TextNormaliser::None);
        Card { sha256: "0123456789abcdef".repeat(4), ..Card::for_tests(vocabulary) }
    }

    fn header() -> Header {
        Header::new(&card(), 4, WindowOptions { length: 8, stride: 6 }, Some(6)).unwrap()
    }

    fn parts() -> Vec<Part> {
        let end = End { text_bytes: 6, sha256: [7; DIGEST] };
        vec![
            Part::Header(header()),
            Part::Block { symbols: 4, data: vec![1, 2, 3, 4, 0, 1, 1, 1] },
            Part::Block { symbols: 2, data: Vec::new() },
            Part::End(end),
        ]
    }

    fn write(parts: &[Part]) -> Vec<u8> {
        let mut out = Vec::new();
        for part in parts {
            match part {
                Part::Header(header) => header.write(&mut out),
                Part::Block { symbols, data } => write_block(*symbols, data, &mut out),
                Part::End(end) => end.write(&mut out),
            }
        }
        out
    }

    fn read(data: &[u8], piece: usize) -> Result<Vec<Part>> {
        let mut reader = ContainerReader::default();
        let mut parts = Vec::new();
        for piece in data.chunks(piece) {
            reader.push(piece);
            while let Some(part) = reader.next()? {
                parts.push(part);
            }
        }
        reader.finish()?;
        Ok(parts)
    }

    #[test]
    fn parts_come_back_however_the_data_are_split() {
        let data = write(&parts());
        for piece in 1..=data.len() {
            assert_eq!(read(&data, piece).unwrap(), parts());
        }
    }

    #[test]
    fn incomplete_and_longer_data_are_refused() {
        let data = write(&parts());
        for length in 0..data.len() {
            assert!(read(&data[..length], 5).is_err(), "{length} bytes");
        }
        for piece in [1, 1000] {
            assert!(read(&[&data[..], &[0]].concat(), piece).is_err());
        }
    }

    #[test]
    fn a_length_is_checked_before_its_data_arrive() {
        let mut data = Vec::new();
        header().write(&mut data);
        for (symbols, bytes) in [(0, 0), (5, 0), (4, max_block_bytes(4) + 1), (4, u32::MAX as usize)] {
            let front = [&[BLOCK][..], &word(symbols), &word(bytes)].concat();
            let mut reader = ContainerReader::default();
            reader.push(&[&data[..], &front].concat());
            assert!(matches!(reader.next(), Ok(Some(Part::Header(_)))));
            assert!(matches!(reader.next(), Err(Error::Damaged { .. })), "{symbols} symbols in {bytes} bytes");
        }
    }

    #[test]
    fn foreign_data_are_refused_at_the_first_byte() {
        for foreign in [&b"PK\x03\x04"[..], b"\x89PNG\r\n\x1a\n", b"plain text", &[0]] {
            let mut reader = ContainerReader::default();
            reader.push(foreign);
            let message = reader.next().unwrap_err().to_string();
            assert_eq!(message, "the header: expected data that weir compressed, found other data");
        }
    }

    #[test]
    fn another_model_dtype_or_rounding_is_refused() {
        header().check(&card()).unwrap();
        let refusal = |card: Card| header().check(&card).unwrap_err().to_string();
        let sha256 = refusal(Card { sha256: "ff".repeat(32), ..card() });
        assert!(sha256.contains("with the checkpoint with sha256 0123") && sha256.contains("has ffff"), "{sha256}");
        let dtype = refusal(Card { dtype: "int8", ..card() });
        assert!(dtype.contains("the dtype f32") && dtype.contains("has int8"), "{dtype}");
        // no processor without fused multiply-adds has anything to compare
        if Isa::detect().fuses() && !Isa::portable().fuses() {
            let rounding = refusal(Card { isa: Isa::portable(), ..card() });
            assert!(rounding.contains("multiply-adds that round once"), "{rounding}");
        }
    }

    #[test]
    fn the_header_has_a_place_for_every_card() {
        for dtype in weir_kernels::Dtype::ALL {
            let card = Card { dtype: dtype.name(), ..card() };
            assert_eq!(Header::new(&card, 4, WindowOptions { length: 8, stride: 6 }, None).unwrap().dtype, card.dtype);
        }
        assert!(
            Header::new(&Card { dtype: "f16", ..card() }, 4, WindowOptions { length: 8, stride: 6 }, None).is_err()
        );
        assert!(Header::new(&card(), 0, WindowOptions { length: 8, stride: 6 }, None).is_err());
        assert!(Header::new(&card(), MAX_BLOCK + 1, WindowOptions { length: 8, stride: 6 }, None).is_err());
        assert!(Header::new(&card(), 4, WindowOptions { length: 101, stride: 6 }, None).is_err());
    }

    proptest! {
        #[test]
        fn random_data_never_panic(
            data in proptest::collection::vec(any::<u8>(), 0..300), position in 0usize..200, piece in 1usize..50,
        ) {
            let mut damaged = write(&parts());
            let position = position.min(damaged.len());
            damaged.splice(position.., data.iter().copied());
            let _ = read(&damaged, piece);
            let _ = read(&data, piece);
        }
    }

    #[test]
    fn windows_that_are_too_long_for_the_model_name_the_setting() {
        let header = header();
        let with = |max_symbols| Card { max_symbols, ..card() };
        header.check(&with(8)).unwrap();
        let error = header.check(&with(7)).unwrap_err();
        assert!(matches!(error, Error::CompressedWith { .. }), "{error:?}");
        let expected =
            "the data were compressed with windows of 8 symbols; \"m\" has at most 7, which --max-symbols sets";
        assert_eq!(error.to_string(), expected);
        for windows in [WindowOptions { length: 8, stride: 9 }, WindowOptions { length: 8, stride: 0 }] {
            let error = Header { windows, ..header.clone() }.check(&card()).unwrap_err();
            assert!(matches!(error, Error::Damaged { .. }), "{error:?}");
        }
    }

    fn letters() -> Arc<Vocabulary> {
        Arc::new(Vocabulary::from_symbols(&[" ", "a", "b", "é", "日"], TextNormaliser::None).unwrap())
    }

    fn english() -> Arc<Vocabulary> {
        let symbols: Vec<String> = std::iter::once(' ').chain('a'..='z').map(String::from).collect();
        Arc::new(Vocabulary::from_symbols(&symbols, TextNormaliser::Text8).unwrap())
    }

    fn read_text(vocabulary: &Arc<Vocabulary>, normalise: bool, text: &[u8], piece: usize) -> Result<Vec<u32>> {
        let mut reader = TextReader::new(vocabulary, normalise);
        let mut symbols = Vec::new();
        text.chunks(piece).try_for_each(|piece| reader.push(piece, &mut symbols))?;
        reader.finish().map(|()| symbols)
    }

    fn refused_text(vocabulary: &Arc<Vocabulary>, text: &[u8]) -> String {
        read_text(vocabulary, false, text, 2).unwrap_err().to_string()
    }

    #[test]
    fn the_first_offender_is_named() {
        let letters = letters();
        let found = refused_text(&letters, "aéé日x".as_bytes());
        assert_eq!(found, "text: expected symbols of the model's vocabulary, found 'x' at character 4");
        let normalisable = refused_text(&english(), b"the end.");
        assert!(normalisable.contains(", found '.' at character 7; with "), "{normalisable}");
        assert!(normalisable.contains("text8") && normalisable.contains("normalise"), "{normalisable}");
        assert!(refused_text(&letters, b"ab\xffa").contains("at byte 2"));
        assert!(refused_text(&letters, "a日".as_bytes().split_last().unwrap().1).contains("at byte 1"));
        assert!(refused_text(&letters, b"a\xc3a").contains("at byte 1"));
    }

    #[test]
    fn a_normalised_text_is_the_one_that_comes_back() {
        for piece in 1..9 {
            let symbols = read_text(&english(), true, "Café,  No. 7!".as_bytes(), piece).unwrap();
            assert_eq!(TextWriter::new(&english()).push(&symbols), b"cafe no seven ");
            // without a normaliser nothing is rewritten
            assert!(read_text(&letters(), true, b"A", piece).is_err());
        }
    }

    proptest! {
        #[test]
        fn texts_come_back_however_they_are_split(text in "[ abé日]{0,40}", piece in 1usize..9) {
            let symbols = read_text(&letters(), false, text.as_bytes(), piece).unwrap();
            prop_assert_eq!(symbols.len(), text.chars().count());
            prop_assert_eq!(TextWriter::new(&letters()).push(&symbols), text.as_bytes());
        }

        #[test]
        fn byte_models_take_any_bytes(
            bytes in proptest::collection::vec(any::<u8>(), 0..80), piece in 1usize..9, has_marks: bool,
        ) {
            let marks = TextMarks { start: 254, end: 255 };
            let marked = Vocabulary::byte_level_with_marks(marks, TextNormaliser::None).unwrap();
            let vocabulary = Arc::new(if has_marks { marked } else { Vocabulary::byte_level(TextNormaliser::None) });
            let symbols = read_text(&vocabulary, false, &bytes, piece).unwrap();
            let mut writer = TextWriter::new(&vocabulary);
            let (first, second) = symbols.split_at(symbols.len() / 2);
            prop_assert_eq!([writer.push(first), writer.push(second)].concat(), bytes.clone());
            prop_assert_eq!(writer.end(), End { text_bytes: bytes.len() as u64, sha256: Sha256::digest(&bytes).into() });
        }
    }
}
