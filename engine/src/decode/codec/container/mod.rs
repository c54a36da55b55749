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

use super::{
    buffer::grown,
    request::{MAX_BLOCK, max_block_bytes},
};
use crate::{
    decode::{contract::Card, options::WindowOptions},
    error::{Error, Result},
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
        /// The data.
        data: Vec<u8>,
    },
    /// The last part.
    End(End),
}

impl Header {
    /// Creates the header of a text that `card`'s model compresses. Fails with [`Error::BadOption`] if the block or its windows are
    /// out of bounds, and with [`Error::Internal`] if the card's dtype or sha256 has no place in the format.
    pub fn new(card: &Card, block: usize, windows: WindowOptions, text_bytes: Option<u64>) -> Result<Self> {
        crate::decode::options::within("block_chars", block, 1..=MAX_BLOCK)?;
        windows.validate(card)?;
        let dtype = DTYPES.into_iter().find(|dtype| *dtype == card.dtype);
        let dtype = dtype.ok_or_else(|| Error::Internal(format!("the format has no dtype {}", card.dtype)))?;
        let sha256 = digest(&card.sha256).ok_or_else(|| Error::Internal("the model has no sha256".into()))?;
        Ok(Self { dtype, fuses: card.isa.fuses(), sha256, block, windows, text_bytes })
    }

    /// Checks that `card`'s model can compute the bits that the compressor's model computed. Fails with [`Error::CompressedWith`] if
    /// it differs or its sequences are too short, and with [`Error::Damaged`] for windows that no model has.
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
    /// Checks the decompressed text, whose length and checksum are `text`. Fails with [`Error::Damaged`] if it is not the text that
    /// was compressed.
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

    /// Returns the next part if it is complete. Fails with [`Error::Damaged`] if the data are not in the format. Checks the length of
    /// a block before it is collected.
    #[expect(clippy::should_implement_trait, reason = "an iterator would end where more data are needed")]
    pub fn next(&mut self) -> Result<Option<Part>> {
        if self.end && self.read < self.buffer.len() {
            return Err(damaged("the end", "no more data", "more data".into()));
        }
        let Some(block) = self.header.as_ref().map(|header| header.block) else {
            let Some(bytes) = self.take::<HEADER>() else { return self.check_magic() };
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

    /// Rejects foreign data before they are as long as a header.
    fn check_magic(&self) -> Result<Option<Part>> {
        if self.buffer.iter().zip(&MAGIC).any(|(found, expected)| found != expected) {
            return Err(damaged("the header", "data that weir compressed", "other data".into()));
        }
        Ok(None)
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

#[cfg(test)]
mod tests;
