//! Encodings and documents of the document model.

use super::*;
use weir::decode::document::{
    Document, Encoding, EncodingProgress, EncodingStage, KeptVector, LayerTime, PoolingChoice, document_ref,
    encoding_mut,
};

struct HashedDocument {
    hash: u64,
    tokens: usize,
    hard: bool,
    choices: Vec<PoolingChoice>,
    timings: Vec<LayerTime>,
    alive: Alive,
}

impl Document for HashedDocument {
    fn tokens(&self) -> usize {
        self.tokens
    }
    fn vectors(&self) -> usize {
        self.tokens.div_ceil(2)
    }
    fn bytes(&self) -> usize {
        self.alive.bytes
    }
    fn unpooled_bytes(&self) -> usize {
        self.tokens * 2 * BYTES
    }
    fn own_bytes(&self) -> usize {
        0
    }
    fn choices(&self) -> &[PoolingChoice] {
        &self.choices
    }
    fn timings(&self) -> &[LayerTime] {
        &self.timings
    }
    fn memory_ns(&self) -> u64 {
        7
    }
}

/// Encoding with two layers. The first runs while the document arrives.
#[derive(Default)]
struct Opening {
    tokens: Vec<u32>,
    closed: bool,
    hard: bool,
    /// Number of encoded blocks.
    ran: usize,
    /// Choices of the pooling after the first layer, until the document exists.
    choices: Vec<PoolingChoice>,
    document: Option<Arc<dyn Document>>,
    alive: Option<Alive>,
    counts: Arc<Counts>,
}

impl Opening {
    fn blocks(&self) -> usize {
        self.tokens.len().div_ceil(BLOCK)
    }

    fn stage(&self) -> EncodingStage {
        let complete = self.tokens.len() / BLOCK;
        match self.ran {
            _ if self.document.is_some() => EncodingStage::Done,
            ran if ran < complete || (self.closed && ran < self.blocks()) => EncodingStage::Layer(0),
            _ if !self.closed => EncodingStage::Waiting,
            ran if ran < 2 * self.blocks() => EncodingStage::Layer(1),
            _ => EncodingStage::Memory,
        }
    }
}

impl Encoding for Opening {
    fn push(&mut self, tokens: &[u32]) -> Result<()> {
        if self.closed {
            return Err(Error::Internal("closed".into()));
        }
        let length = self.tokens.len() + tokens.len();
        if length > TOKENS {
            return Err(Error::TooLong { field: "document", length, limit: TOKENS, unit: "tokens", why: None });
        }
        self.tokens.extend_from_slice(tokens);
        Ok(())
    }
    fn close(&mut self) -> Result<()> {
        if self.tokens.is_empty() {
            return Err(Error::BadOption {
                field: "document",
                found: "\"\"".into(),
                bound: "at least one token".into(),
            });
        }
        self.closed = true;
        Ok(())
    }
    fn tokens(&self) -> usize {
        self.tokens.len()
    }
    fn progress(&self) -> EncodingProgress {
        let total = self.closed.then(|| 2 * self.blocks() + 1);
        EncodingProgress { stage: self.stage(), blocks: self.ran, total }
    }
    fn choices(&self) -> &[PoolingChoice] {
        &self.choices
    }
    fn document(&self) -> Option<Arc<dyn Document>> {
        self.document.clone()
    }
    fn bytes(&self) -> usize {
        self.alive.as_ref().map_or(0, |alive| alive.bytes)
            + self.document.as_ref().map_or(0, |document| document.bytes())
    }
}

impl DocumentEncoder for DocumentModel {
    fn limits(&self) -> &DocumentLimits {
        &self.limits
    }

    fn open(&self) -> Box<dyn Encoding> {
        let alive = Some(Alive::new(&self.counts));
        Box::new(Opening { alive, counts: Arc::clone(&self.counts), ..Opening::default() })
    }

    fn open_hard(&self) -> Result<Box<dyn Encoding>> {
        let mut opening = self.open();
        encoding_mut::<Opening>(&mut *opening)?.hard = true;
        Ok(opening)
    }

    fn bytes_for(&self, tokens: usize) -> usize {
        2 * tokens.next_multiple_of(BLOCK) * BYTES
    }

    fn multiply_adds(&self, tokens: usize, _: usize) -> usize {
        tokens
    }

    fn advance(&self, encoding: &mut dyn Encoding, blocks: usize, scratch: &mut Scratch) -> Result<usize> {
        let opening = encoding_mut::<Opening>(encoding)?;
        let clean = scratch.0.downcast_mut::<bool>().unwrap();
        assert!(std::mem::take(clean), "a failed step's scratch was used again");
        let mut ran = 0;
        while ran < blocks && !matches!(opening.stage(), EncodingStage::Waiting | EncodingStage::Done) {
            self.wait();
            self.log.lock().unwrap().push(LoggedStep::Block);
            self.counts.blocks.fetch_add(1, SeqCst);
            let block = opening.tokens.chunks(BLOCK).nth(opening.ran).unwrap_or_default();
            assert!(!block.contains(&PANIC), "the test requests a panic");
            if block.contains(&FAIL) {
                return Err(Error::OutOfPages { needed: 1, limit: 0 });
            }
            match opening.stage() {
                EncodingStage::Layer(0) => opening.alive.as_mut().unwrap().grow(BLOCK * BYTES),
                EncodingStage::Memory => {
                    let mut alive = Alive::new(&opening.counts);
                    alive.grow(opening.tokens.len() * BYTES);
                    // Releases the memory of the encoder.
                    opening.alive = None;
                    opening.choices.clear();
                    opening.document = Some(Arc::new(hashed_document(&opening.tokens, opening.hard, alive)));
                }
                _ => {}
            }
            opening.ran += 1;
            ran += 1;
            if opening.closed && opening.ran == opening.blocks() {
                opening.choices = vec![pooling_choice(&opening.tokens)];
            }
        }
        *clean = true;
        Ok(ran)
    }

    fn begin(&self, document: &dyn Document) -> Result<Box<dyn State>> {
        let document = document_ref::<HashedDocument>(document)?;
        let hash = mix(document.hash ^ u64::from(document.hard));
        Ok(Box::new(DecoderState { hash, past: Vec::new(), alive: Alive::new(&self.counts) }))
    }
}

/// Returns the vectors that the pooling after the first layer keeps.
fn pooling_choice(tokens: &[u32]) -> PoolingChoice {
    let kept =
        (0..tokens.len()).step_by(2).map(|token| KeptVector { token, score: (token % 7) as f32 / 8.0 }).collect();
    PoolingChoice { layer: 0, kept }
}

fn hashed_document(tokens: &[u32], hard: bool, alive: Alive) -> HashedDocument {
    let hash = tokens.iter().fold(7, |hash, &token| mix(hash ^ u64::from(token)));
    let choices = vec![pooling_choice(tokens)];
    let timings = vec![LayerTime { length: tokens.len(), ns: 5 }; 2];
    HashedDocument { hash, tokens: tokens.len(), hard, choices, timings, alive }
}
