//! One text, or its compressed data, as a stream: bytes come in, blocks are coded elsewhere, and bytes go out in order.

use super::{
    buffer::grown,
    coder::Coded,
    container::{ContainerReader, End, Header, Part, write_block},
    request::{Code, CodeInput, check_model},
    text::{TextReader, TextWriter},
};
use crate::{
    decode::{contract::Card, options::WindowOptions},
    error::{Error, Result},
};
use std::collections::VecDeque;

/// A text that is compressed, or data that are decompressed. Memory is bounded by a block and the bytes of one call.
///
/// The caller pushes input, takes the blocks that are complete, codes them in any order, and hands the results back in the order of
/// the blocks. It may code several blocks at once.
pub trait BlockStream: Send {
    /// Takes the next bytes of the input. The caller has taken all complete [blocks](Self::next_block) before. Fails for input that
    /// cannot be part of a text or of compressed data.
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
        check_model("Compress", card)?;
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
        Ok(Some(Code { input: CodeInput::Compress(symbols), windows: self.header.windows }))
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
        Totals { text_bytes: self.writer.bytes(), ..self.totals }
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
        check_model("Decompress", card)?;
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
                    return Ok(Some(Code { input, windows: header.windows }));
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
        Totals { text_bytes: self.writer.bytes(), ..self.totals }
    }
}
