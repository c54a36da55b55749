//! State of a document that is being encoded: its tokens, its vectors, and the next unit of work.

use super::{
    config::PAD,
    plan::{EncoderPlan, LayerGroup},
};
use crate::{
    decode::document::{Document, EncodingStage, KeptVector, LayerTime, PoolingChoice},
    family::parts::document::MemoryDocument,
    kernels::pages::Page,
    nn::{kv_cache::KvCache, paged_vectors::PagedVectors, topk::pooler::PooledVectors},
};
use std::{sync::Arc, time::Instant};

/// A document that is being encoded.
pub struct PyramidionEncoding {
    pub(super) plan: Arc<EncoderPlan>,
    /// Vocabulary size V.
    pub(super) symbols: usize,
    /// All tokens pushed.
    pub(super) tokens: Vec<u32>,
    pub(super) closed: bool,
    /// True if poolings keep vectors unchanged instead of mixing them.
    pub(super) hard: bool,
    /// Index of the layer group that runs; one past the last while the decoder's keys and values are projected.
    pub(super) group: usize,
    /// Next unit of work in the group.
    pub(super) cursor: Cursor,
    /// Distinct vectors of the group; in the first group those of the tokens embedded so far.
    pub(super) vectors: PagedVectors,
    /// Index of each position's vector; in the first group filled when the group ends.
    pub(super) vector_index: Vec<u32>,
    /// The token that each position's vector came from.
    origins: Vec<usize>,
    /// Embedded tokens that are not padding: the next token's position.
    pub(super) next_position: usize,
    /// Keys, values and queries of the layer that runs, if every vector attends to all.
    pub(super) keys: Option<LayerKeys>,
    /// Attention weight that each vector received in the group's last layer, if the pooling scores by it.
    pub(super) mass: Vec<f32>,
    /// Vectors before the first pooling, if the decoder attends to all positions.
    pub(super) unpooled: Option<UnpooledVectors>,
    /// Keys and values for the decoder.
    pub(super) memory: Option<KvCache>,
    pub(super) blocks: usize,
    pub(super) choices: Vec<PoolingChoice>,
    timings: Vec<LayerTime>,
    memory_ns: u64,
    pub(super) document: Option<Arc<dyn Document>>,
}

/// Place of a unit of work in its layer group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Cursor {
    /// Page of the group's vectors.
    pub(super) page: usize,
    /// Layer, counted from the group's first.
    layer: usize,
    /// True if all keys of the layer are written, where every vector attends to all.
    attending: bool,
}

/// Next unit of work: a page of vectors through one step.
pub(super) enum WorkUnit {
    /// A layer with attention within blocks of this many vectors.
    BlockwiseLayer { layer: usize, block: usize },
    /// First half of a layer with full attention: queries, keys and values.
    Keys { layer: usize },
    /// Second half of a layer with full attention.
    FullLayer { layer: usize },
    /// The decoder's keys and values.
    Memory,
}

/// Keys and values of one layer, and the queries that read them.
pub(super) struct LayerKeys {
    pub(super) store: Page,
    /// Keys written.
    pub(super) count: usize,
    pub(super) queries: PagedVectors,
}

/// The document's vectors before the first pooling.
pub(super) struct UnpooledVectors {
    pub(super) vectors: PagedVectors,
    /// Index of each position's vector.
    pub(super) index: Vec<u32>,
}

impl PyramidionEncoding {
    /// Creates an encoding without tokens, of an encoder of `layers` layers.
    pub(super) fn new(
        plan: Arc<EncoderPlan>,
        symbols: usize,
        vectors: PagedVectors,
        layers: usize,
        hard: bool,
    ) -> Self {
        Self {
            plan,
            symbols,
            tokens: Vec::new(),
            closed: false,
            hard,
            group: 0,
            cursor: Cursor::default(),
            vectors,
            vector_index: Vec::new(),
            origins: Vec::new(),
            next_position: 0,
            keys: None,
            mass: Vec::new(),
            unpooled: None,
            memory: None,
            blocks: 0,
            choices: Vec::new(),
            timings: vec![LayerTime { length: 0, ns: 0 }; layers],
            memory_ns: 0,
            document: None,
        }
    }

    /// Returns the layer group that runs; `None` while the decoder's keys and values are projected.
    pub(super) fn group(&self) -> Option<&LayerGroup> {
        self.plan.groups.get(self.group)
    }

    /// Returns the document's positions in the first group: padded, and cut to whole blocks.
    pub(super) fn first_length(&self) -> usize {
        let Some(first) = self.plan.groups.first() else { return 0 };
        self.whole_blocks(first, if self.plan.padded { first.length } else { self.tokens.len() })
    }

    /// Returns how many of `length` positions lie in whole blocks.
    fn whole_blocks(&self, group: &LayerGroup, length: usize) -> usize {
        match group.block {
            Some(block) if self.plan.padded => length / block.min(length).max(1) * block.min(length),
            _ => length,
        }
    }

    /// Returns how many of the first group's positions have a vector of their own: those in blocks with a token, or with full
    /// attention those that are not padding. All other positions share one more vector, the padding's.
    pub(super) fn distinct_vectors(&self) -> usize {
        match self.plan.groups.first() {
            Some(first) if first.block.is_none() => self.tokens.iter().filter(|&&token| token != PAD).count(),
            Some(first) if self.plan.padded => {
                self.tokens.len().next_multiple_of(first.block_len()).min(self.first_length())
            }
            _ => self.tokens.len(),
        }
    }

    /// Returns how many positions share the padding vector: in the first group, with full attention.
    pub(super) fn padding_positions(&self) -> usize {
        if self.group == 0 { self.first_length() - self.distinct_vectors() } else { 0 }
    }

    /// Returns the keys of a layer with full attention.
    pub(super) fn key_count(&self) -> usize {
        match self.group {
            0 if self.plan.masks_padding => self.distinct_vectors(),
            0 => self.first_length(),
            _ => self.vectors.len(),
        }
    }

    /// Returns the pages of vectors that go through each layer of the group.
    fn pages(&self, group: &LayerGroup) -> usize {
        if self.group > 0 {
            return self.vectors.pages();
        }
        let padding = usize::from(group.block.is_none() && self.padding_positions() > 0);
        (self.distinct_vectors() + padding).div_ceil(group.unit())
    }

    /// Returns true if the current page is the last one of the group's vectors.
    pub(super) fn is_last_page(&self) -> bool {
        self.group().is_some_and(|group| self.cursor.page + 1 == self.pages(group))
    }

    /// Returns true if the unit is the first half, or the only one, of the encoder's first layer.
    pub(super) fn at_first_layer(&self) -> bool {
        self.group == 0 && self.cursor.layer == 0 && !self.cursor.attending
    }

    /// Returns how many vectors must be embedded before the first layer takes the current page.
    pub(super) fn embedded_length(&self, group: &LayerGroup) -> usize {
        let available = match group.block {
            Some(_) if !self.closed => self.tokens.len(),
            Some(_) => self.distinct_vectors(),
            None => self.distinct_vectors() + usize::from(self.padding_positions() > 0),
        };
        available.min((self.cursor.page + 1) * group.unit())
    }

    /// Returns true if all units of the group ran and no more tokens come.
    pub(super) fn group_done(&self) -> bool {
        let Some(group) = self.group().filter(|_| self.closed) else { return false };
        let layers = group.end - group.first;
        let done =
            if group.block.is_some() { self.cursor.page == self.pages(group) } else { self.cursor.layer == layers };
        layers == 0 || done
    }

    /// Returns true if the tokens of the next unit have arrived.
    pub(super) fn can_run(&self) -> bool {
        match self.plan.groups.first() {
            Some(first) if self.group == 0 && !self.closed => {
                // Blocks run before the document ends once all their tokens have arrived.
                first.block.is_some() && self.tokens.len() >= (self.cursor.page + 1) * first.unit()
            }
            _ => self.document.is_none(),
        }
    }

    /// Returns the next unit of work.
    pub(super) fn unit(&self) -> WorkUnit {
        let Some(group) = self.group() else { return WorkUnit::Memory };
        let layer = group.first + self.cursor.layer;
        match group.block {
            Some(_) => WorkUnit::BlockwiseLayer { layer, block: group.block_len() },
            None if self.cursor.attending => WorkUnit::FullLayer { layer },
            None => WorkUnit::Keys { layer },
        }
    }

    /// Moves on to the next unit, after one that began at `started`. After the last one, creates the document.
    ///
    /// In blockwise attention, a page passes through all layers of the group before the next page does. In full attention, all
    /// pages pass through a layer twice.
    pub(super) fn advance(&mut self, started: Instant) {
        self.blocks += 1;
        let Cursor { page, layer, attending } = self.cursor;
        let Some(group) = self.group() else {
            self.memory_ns += elapsed(started);
            self.cursor.page += 1;
            let (vectors, distinct) = self.memory_vectors();
            if self.cursor.page == distinct.div_ceil(self.vectors.per_page()) {
                self.finish(vectors);
            }
            return;
        };
        let absolute = group.first + layer;
        self.cursor = match group.block {
            Some(_) if absolute + 1 == group.end => Cursor { page: page + 1, ..Cursor::default() },
            Some(_) => Cursor { layer: layer + 1, ..self.cursor },
            None if page + 1 < self.pages(group) => Cursor { page: page + 1, ..self.cursor },
            None if !attending => Cursor { page: 0, layer, attending: true },
            None => {
                self.keys = None;
                Cursor { layer: layer + 1, ..Cursor::default() }
            }
        };
        self.timings[absolute].ns += elapsed(started);
    }

    /// Ends the group that `group` is: the next one begins, or the projection of the decoder's keys and values.
    pub(super) fn end_group(&mut self, group: &LayerGroup) {
        for time in &mut self.timings[group.first..group.end] {
            time.length = self.vector_index.len();
        }
        self.cursor = Cursor::default();
        self.group += 1;
    }

    /// Sets the vector of each position at the end of the first group; `padding` is the index of the padding vector.
    pub(super) fn index_positions(&mut self, blockwise: bool, padding: u32) {
        let length = self.first_length();
        if blockwise {
            self.vector_index = (0..length as u32).map(|position| position.min(padding)).collect();
        } else {
            let mut next = 0..padding;
            let mut vector = |position: usize| match self.tokens.get(position) {
                Some(&token) if token != PAD => next.next().unwrap_or(padding),
                _ => padding,
            };
            self.vector_index = (0..length).map(&mut vector).collect();
        }
        self.origins = (0..length).collect();
    }

    /// Replaces the vectors with the output of the pooling after `group`, cut to whole blocks of the next group.
    pub(super) fn take_pooled(&mut self, group: &LayerGroup, factor: usize, pooled: PooledVectors, started: Instant) {
        // Zero vectors that pad the pooling's input have origins after all tokens.
        let origin = |position: usize| self.origins.get(position).copied().unwrap_or(self.tokens.len() + position);
        let origins: Vec<usize> = match pooled.winners.is_empty() {
            true => (0..pooled.vectors.len()).map(|window| origin(window * factor)).collect(),
            false => pooled.winners.iter().map(|&winner| origin(winner)).collect(),
        };
        if !pooled.winners.is_empty() {
            let kept = origins.iter().zip(&pooled.scores).map(|(&token, &score)| KeptVector { token, score }).collect();
            self.choices.push(PoolingChoice { layer: group.end - 1, kept });
        }
        self.origins = origins;
        let vectors = std::mem::replace(&mut self.vectors, pooled.vectors);
        let index = std::mem::take(&mut self.vector_index);
        if self.plan.upsamples && self.unpooled.is_none() {
            self.unpooled = Some(UnpooledVectors { vectors, index });
        }
        if let Some(next) = self.group().filter(|next| next.end > next.first) {
            let whole = self.whole_blocks(next, self.vectors.len());
            self.vectors.truncate(whole);
            self.origins.truncate(whole);
        }
        self.vector_index = (0..self.vectors.len() as u32).collect();
        self.timings[group.end - 1].ns += elapsed(started);
    }

    /// Returns how many vectors the decoder attends to, and how many of them are distinct.
    pub(super) fn memory_vectors(&self) -> (usize, usize) {
        match &self.unpooled {
            Some(UnpooledVectors { index, .. }) => (index.len(), index.len()),
            None => (self.vector_index.len(), self.vectors.len()),
        }
    }

    /// Creates the document from its complete memory of `vectors`, and frees everything else.
    fn finish(&mut self, vectors: usize) {
        let Some(mut memory) = self.memory.take() else { return };
        memory.advance(vectors);
        let unpooled = if self.plan.padded { self.plan.groups[0].length } else { self.tokens.len() };
        self.vectors.truncate(0);
        self.unpooled = None;
        self.vector_index = Vec::new();
        self.origins = Vec::new();
        self.document = Some(Arc::new(MemoryDocument {
            tokens: self.tokens.len(),
            unpooled_bytes: memory.layout().bytes_for(unpooled),
            memory,
            choices: std::mem::take(&mut self.choices),
            timings: std::mem::take(&mut self.timings),
            memory_ns: self.memory_ns,
        }));
    }

    /// Returns the blocks of the complete document.
    pub(super) fn total_blocks(&self) -> usize {
        let mut length = self.first_length();
        let mut vectors = self.distinct_vectors();
        let padding = usize::from(vectors < length);
        let mut blocks = 0;
        for (index, group) in self.plan.groups.iter().enumerate() {
            if index > 0 {
                length = self.whole_blocks(group, length);
                vectors = length;
            }
            let pages = match group.block {
                Some(_) => vectors.div_ceil(group.unit()),
                None => 2 * (vectors + if index == 0 { padding } else { 0 }).div_ceil(group.unit()),
            };
            blocks += pages * (group.end - group.first);
            if let Some(factor) = group.factor {
                length = if self.plan.padded { group.length / factor } else { length.div_ceil(factor) };
                vectors = length;
            }
        }
        let Some(last) = self.plan.groups.last() else { return 0 };
        if self.plan.upsamples {
            return blocks + self.first_length().div_ceil(last.unit());
        }
        blocks + (vectors + if self.plan.groups.len() > 1 { 0 } else { padding }).div_ceil(last.unit())
    }

    /// Returns the next step of the encoding.
    pub(super) fn stage(&self) -> EncodingStage {
        if self.document.is_some() {
            return EncodingStage::Done;
        }
        match self.group() {
            Some(_) if !self.can_run() => EncodingStage::Waiting,
            Some(group) if group.first + self.cursor.layer < group.end => {
                EncodingStage::Layer(group.first + self.cursor.layer)
            }
            _ => EncodingStage::Memory,
        }
    }
}

fn elapsed(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
