//! The weights and the forward pass. Hot path: buffers are kept in [`Work`], and pages are allocated where a layer begins.
//!
//! A unit of work is one page of vectors through one step. With attention within blocks, a page of the first group needs no
//! later tokens, so it goes through all layers up to the first pooling before the next page does. With full attention a layer
//! takes two passes over the pages: all of them write keys, then all of them attend.

use super::{
    encoding::{PyramidionEncoding, WorkUnit},
    plan::EncoderPlan,
    scorer::Scorer,
    work::{EncoderHookPoint, Work},
};
use crate::{
    decode::document::DocumentLimits,
    error::{Error, Result},
    family::decoder::model::Decoder,
    kernels::rowwise::LayerNorm,
    nn::{
        attention::{cross::project_memory, encoder::EncoderStack},
        position::PositionScheme,
        topk::{PoolerKind, pooler::PoolerInput},
    },
};
use std::{
    sync::{Arc, Mutex},
    time::Instant,
};

/// A loaded encoder-decoder. D = width, V = vocabulary size, I = heads · head_dim.
pub struct Pyramidion {
    /// The decoder, and what both sides share: embedding, head, threads, pages.
    pub(super) decoder: Decoder,
    pub(super) encoder: EncoderStack,
    /// Position scheme of the encoder's input.
    pub(super) positions: PositionScheme,
    /// Norm after the encoder's last layer, if layers do not end with one.
    pub(super) encoder_norm: Option<LayerNorm>,
    /// One for each pooling that selects by scores, in order.
    pub(super) scorers: Vec<Scorer>,
    /// Kind of all poolings, if there are any.
    pub(super) pooling: Option<PoolerKind>,
    pub(super) plan: Arc<EncoderPlan>,
    /// Vector of a block of padding after the first group: (D). Computed on first use.
    pub(super) padding: Mutex<Option<Arc<[f32]>>>,
    pub(super) limits: DocumentLimits,
}

impl Pyramidion {
    /// Encoder: embed → layers (blockwise attention) → score → top-k pooling → layers … → keys and values for the
    /// decoder. Runs at most `max_blocks` units of work, as far as tokens have arrived; returns how many ran.
    pub(super) fn encode(&self, e: &mut PyramidionEncoding, max_blocks: usize, work: &mut Work) -> Result<usize> {
        let mut ran = 0;
        loop {
            while e.group_done() {
                self.pool(e, work)?; // (n, D) → (k, D)
            }
            if ran == max_blocks || !e.can_run() {
                return Ok(ran);
            }
            let started = Instant::now();
            if e.at_first_layer() {
                self.embed_tokens(e, work)?; // tokens → (vectors, D)
            }
            match e.unit() {
                WorkUnit::BlockwiseLayer { layer, block } => self.blockwise_layer(e, layer, block, work)?, // (vectors, D)
                WorkUnit::Keys { layer } => self.write_keys(e, layer, work)?, // (vectors, I) each
                WorkUnit::FullLayer { layer } => self.full_layer(e, layer, work)?, // (vectors, D)
                WorkUnit::Memory => self.project_memory(e, work)?, // (k, D) → (k, 2·I) for each decoder layer
            }
            e.advance(started);
            ran += 1;
        }
    }

    /// One page of vectors through a layer with attention within blocks of `block` vectors.
    fn blockwise_layer(&self, e: &mut PyramidionEncoding, layer: usize, block: usize, work: &mut Work) -> Result<()> {
        let page = e.cursor.page;
        let x = e.vectors.page_mut(page)?;
        self.encoder.blocks(&self.decoder.compute, layer, x, block, &mut work.encoder); // (vectors, D)
        if self.scores_attention(e.group, layer) {
            self.encoder.block_mass(&self.decoder.compute, block, &work.encoder, &mut e.mass);
        }
        let first = page * e.vectors.per_page();
        work.show(EncoderHookPoint::Layer(layer), first, e.vectors.page(page));
        Ok(())
    }

    /// One page of vectors through the second half of a layer with full attention, after all keys were written.
    fn full_layer(&self, e: &mut PyramidionEncoding, layer: usize, work: &mut Work) -> Result<()> {
        let page = e.cursor.page;
        self.attend_to_keys(e, layer, &mut work.encoder)?; // (vectors, I)
        let x = e.vectors.page_mut(page)?;
        self.encoder.finish(&self.decoder.compute, layer, x, &mut work.encoder); // (vectors, D)
        let first = page * e.vectors.per_page();
        work.show(EncoderHookPoint::Layer(layer), first, e.vectors.page(page));
        Ok(())
    }

    /// Score → pooling, after the last layer of a group. The pooled vectors are the input of the next group.
    fn pool(&self, e: &mut PyramidionEncoding, work: &mut Work) -> Result<()> {
        let Some(group) = e.group().cloned() else { return Ok(()) };
        self.index_positions(e, &group, work)?;
        e.end_group(&group);
        let Some(factor) = group.factor else { return Ok(()) };
        let started = Instant::now();
        let input = PoolerInput { vectors: &e.vectors, index: &e.vector_index };
        // In a block of padding every key receives an attention weight of 1 from each head.
        let padding_mass = self.encoder.heads as f32;
        let scorer = self.scorers.get(e.group - 1);
        let scores = scorer.map_or_else(Vec::new, |scorer| scorer.scores(&input, &e.mass, padding_mass)); // (n)
        let n = if e.plan.padded { group.length } else { e.vector_index.len().next_multiple_of(factor) };
        let kind = self.pooling.map(|kind| if e.hard { kind.hardened() } else { kind });
        let pooler = kind.ok_or_else(|| "no kind of pooling".into()).and_then(|kind| kind.pooler(n, n / factor));
        let new_vectors = || self.new_vectors(e.plan.groups[e.group].unit());
        let pooled = pooler.map_err(Error::Internal)?.pool(&input, scores, &new_vectors)?; // (n, D) → (k, D)
        for page in 0..pooled.vectors.pages() {
            let first = page * pooled.vectors.per_page();
            work.show(EncoderHookPoint::Pooled(group.end - 1), first, pooled.vectors.page(page));
        }
        e.mass = Vec::new();
        e.take_pooled(&group, factor, pooled, started);
        Ok(())
    }

    /// Projects one page of the encoder's output to the decoder's keys and values.
    fn project_memory(&self, e: &mut PyramidionEncoding, work: &mut Work) -> Result<()> {
        self.gather_encoded(e, work); // (vectors, D)
        let (vectors, distinct) = e.memory_vectors();
        let first = e.cursor.page * e.vectors.per_page();
        let projections = self.decoder.stack.memory_projections();
        let memory = self.reserve_memory(&mut e.memory, vectors)?;
        let write = |layer: usize, index: usize, keys: &[f32], values: &[f32]| {
            // The last distinct vector may be the padding's, which stands at all positions that are left.
            let position = first + index;
            let end = if position + 1 == distinct { vectors } else { position + 1 };
            (position..end).try_for_each(|position| memory.write(layer, position, keys, values))
        };
        let Work { x, projected, encoder, .. } = work;
        project_memory(&self.decoder.compute, projections, x, projected, &mut encoder.quantized, write)
    }
}
