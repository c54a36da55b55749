//! The weights and the forward pass, split into the contract's three steps. Hot path: no allocation once the buffers in [`Work`]
//! have grown, no locks, no logging.
//!
//! The functions of `gather` and `decode` collect vectors of many rows into `work.x` and store the results in the rows.

use super::{
    decode::{
        SegmentCaches, end_logprobs, finish_rows, gather_closed_segments, gather_open_segments, gather_runs,
        reserve_wanted, scatter_runs, segment_memory,
    },
    gather::{
        advance_segments, append_feed, cut_segments, embed_symbols, gather_closed_symbols, gather_unread_symbols,
        pool_segments, scatter_symbols, set_summarized,
    },
    state::{LslmState, StartCaches},
    work::{CONTEXT, EncoderCaches, LslmStage, TOKEN, Work, state},
};
use crate::{
    decode::{
        contract::{BoundaryOptions, Card, KvMemory, Model, Scratch, SequenceRow, State, StepStatus, state_ref},
        cost::Cost,
        options::check_mode,
    },
    error::Result,
    family::{
        cost,
        parts::step::{deliver_logits, with_status, work_mut},
    },
    kernels::{
        Compute,
        attention::PageLayout,
        linear::{Epilogue, Linear},
        pages::PagePool,
    },
    nn::{
        boundary::summed::Summed,
        kv_cache::KvCache,
        pooling::Pooling,
        sized,
        t5::{T5Memory, T5Stack},
    },
    text::SpecialSymbols,
};
use std::sync::Arc;

/// A loaded latent segment model. D, C, E = widths of token encoder, context encoder, decoder; V = vocabulary size, special
/// symbols included.
pub struct Lslm {
    pub(super) card: Card,
    pub(super) compute: Compute,
    pub(super) specials: SpecialSymbols,
    /// (V, D)
    pub(super) token_embedding: Arc<[f32]>,
    /// (V, E)
    pub(super) decoder_embedding: Arc<[f32]>,
    pub(super) token: T5Stack,
    pub(super) predictor: Summed,
    pub(super) pooling: Pooling,
    /// (C, D), between pooling and context encoder, if their widths differ and the first layer does not change the width.
    pub(super) projection: Option<Linear>,
    pub(super) context: T5Stack,
    pub(super) decoder: T5Stack,
    /// (V, E)
    pub(super) head: Linear,
    /// Factor of the head's input: 1, unless the head is the embedding.
    pub(super) head_scale: f32,
    /// Layout of the decoder's keys and values of segments.
    pub(super) memory: PageLayout,
    /// The state after the start symbol, computed once: every sequence begins with it.
    pub(super) start: StartCaches,
    pub(super) pages: Arc<PagePool>,
    /// Bytes of pages that the model itself holds: the start symbol's.
    pub(super) own_bytes: usize,
}

impl Model for Lslm {
    fn card(&self) -> &Card {
        &self.card
    }

    fn begin(&self, boundaries: BoundaryOptions) -> Result<Box<dyn State>> {
        check_mode(&boundaries, &self.card)?;
        let decoder = KvCache::new(self.decoder.layout, self.pages.clone());
        Ok(Box::new(LslmState::new(self.start.clone(), decoder)))
    }

    fn scratch(&self) -> Scratch {
        Scratch(Box::new(Work::default()))
    }

    /// Symbol step: token encoder → boundary predictor → segment ends. Symbols that come with their boundaries are read in the
    /// segment step: nothing needs their vectors earlier.
    fn symbol_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        let work: &mut Work = work_mut(scratch)?;
        which.iter().try_for_each(|&index| append_feed(&self.card, &mut rows[index]))?;
        gather_unread_symbols(rows, which, work)?;
        self.encode_symbols(rows, work)?; // (symbols, D), boundary logits (symbols)
        cut_segments(&self.predictor, rows, which, work)
    }

    /// Segment step, for rows that closed a segment: token encoder for symbols not yet read → pool → context encoder → the
    /// decoder's keys and values of the segments.
    fn segment_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        let work: &mut Work = work_mut(scratch)?;
        with_status(StepStatus::Waiting, rows, which, work, |rows, waiting, work| {
            gather_closed_symbols(rows, waiting, work)?;
            self.encode_symbols(rows, work)?; // (symbols, D)
            pool_segments(self.pooling, self.width(), rows, waiting, work)?; // (segments, D)
            self.encode_segments(rows, work)?; // (segments, C)
            set_summarized(rows, waiting)
        })
    }

    /// Finish step: segment decoder, with cross-attention to the closed segments → logits. Segments that closed while all logits
    /// are wanted are decoded some dozens at a time; open segments only if logits are wanted.
    fn finish_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        let work: &mut Work = work_mut(scratch)?;
        with_status(StepStatus::Unfinished, rows, which, work, |rows, unfinished, work| {
            reserve_wanted(self.head.inputs(), rows, unfinished, work);
            while gather_closed_segments(self.decoder.layout, rows, unfinished, work)? {
                self.decode_segments(rows, work)?;
            }
            gather_open_segments(rows, unfinished, work)?;
            self.decode_segments(rows, work)?;
            self.apply_head(work, true); // (closed segments, V)
            end_logprobs(self.head.outputs(), self.specials.segment_end, rows, work)?;
            self.apply_head(work, false); // (wanted, V)
            deliver_logits(rows, unfinished, &work.logits, self.head.outputs())?;
            finish_rows(rows, unfinished)
        })
    }

    fn bytes_for(&self, symbols: usize) -> usize {
        // every symbol may end a segment, or none
        let layouts = [&self.token.layout, &self.context.layout, &self.memory, &self.decoder.layout];
        layouts.into_iter().map(|layout| layout.bytes_for(symbols + 1)).sum()
    }

    fn growth(&self, state: &dyn State, more: usize) -> usize {
        // the step rejects another model's state
        let Ok(state) = state_ref::<LslmState>(state) else { return 0 };
        let segments = state.segment_ends.len() + more;
        state.token.growth(state.symbols.len() + more + 1)
            + state.context.growth(segments + 1)
            + state.memory.growth(segments + 1)
            + state.decoder_growth(state.open_len() + more + 1)
    }

    fn memory(&self) -> KvMemory {
        // admission counts on the complete limit, so the start symbol's pages are taken off it
        KvMemory { in_use: self.pages.in_use() - self.own_bytes, limit: self.pages.limit() - self.own_bytes }
    }

    fn cost(&self, symbols: usize, segments: usize) -> Cost {
        let mut cost = Cost::default();
        cost.symbol += cost::t5_stack(&self.token, symbols + 1, 0);
        for matrix in self.predictor.matrices() {
            cost.symbol += cost::linear(matrix);
        }
        let open = symbols.div_ceil(segments.max(1)) + 1;
        cost.symbol += cost::t5_stack(&self.decoder, open, segments + 1);
        cost.segment += cost::t5_stack(&self.context, segments + 1, 0);
        let memory = self.decoder.layers.iter().filter_map(|layer| layer.cross.as_ref()).map(|cross| &cross.memory);
        for matrix in self.projection.iter().chain(memory) {
            cost.segment += cost::linear(matrix);
        }
        cost.logits += cost::linear(&self.head);
        cost
    }
}

impl Lslm {
    /// Token encoder and boundary predictor over the symbols of `work.positions`.
    fn encode_symbols(&self, rows: &mut [SequenceRow], work: &mut Work) -> Result<()> {
        embed_symbols(&self.token_embedding, self.width(), rows, work)?; // (symbols, D)
        if work.positions.is_empty() {
            return Ok(());
        }
        let caches = &mut EncoderCaches::<TOKEN>(rows);
        self.token.forward(&self.compute, &mut work.x, &work.positions, caches, None, &mut work.stack)?;
        work.show(LslmStage::Token);
        self.predictor.logits(&self.compute, &work.x, &mut work.predictor, &mut work.boundary_logits); // (symbols)
        work.show(LslmStage::Boundary);
        scatter_symbols(&self.predictor, rows, work)
    }

    /// Context encoder over the pooled vectors `work.x` (segments, D), and the decoder's keys and values of its outputs.
    pub(super) fn encode_segments(&self, rows: &mut [SequenceRow], work: &mut Work) -> Result<()> {
        if let Some(projection) = &self.projection {
            std::mem::swap(&mut work.x, &mut work.unprojected);
            let x = sized(&mut work.x, work.positions.len() * projection.outputs());
            projection.apply(&self.compute, &work.unprojected, Epilogue::None, &mut work.stack.quantized, x); // (segments, C)
        }
        let caches = &mut EncoderCaches::<CONTEXT>(rows);
        self.context.forward(&self.compute, &mut work.x, &work.positions, caches, None, &mut work.stack)?; // (segments, C)
        work.show(LslmStage::Context);
        let positions = &work.positions;
        self.decoder.project_memory(&self.compute, &work.x, &mut work.stack, |layer, index, keys, values| {
            let position = positions[index];
            state(rows, position.sequence)?.memory.write(layer, position.index, keys, values)
        })?;
        advance_segments(rows, positions)
    }

    /// Decoder over the segments' positions in `work.runs`.
    fn decode_segments(&self, rows: &mut [SequenceRow], work: &mut Work) -> Result<()> {
        gather_runs(&self.decoder_embedding, self.head.inputs(), self.specials.segment_start, rows, work)?; // (positions, E)
        let mut caches = SegmentCaches { rows, runs: &work.runs, spare: &mut work.spare_caches };
        let memory = T5Memory { positions: &work.memory_positions, cache: segment_memory };
        let positions = &work.positions;
        self.decoder.forward(&self.compute, &mut work.x, positions, &mut caches, Some(&memory), &mut work.stack)?; // (positions, E)
        scatter_runs(self.head.inputs(), rows, work)
    }

    /// `work.logits` (vectors, V) = logits of the wanted vectors, or of the closed segments' last vectors.
    fn apply_head(&self, work: &mut Work, segment_ends: bool) {
        let vectors = if segment_ends { &mut work.wanted.end_vectors } else { &mut work.wanted.vectors };
        work.logits.clear();
        if vectors.is_empty() {
            return;
        }
        if self.head_scale != 1.0 {
            vectors.iter_mut().for_each(|x| *x *= self.head_scale);
        }
        let logits = sized(&mut work.logits, vectors.len() / self.head.inputs() * self.head.outputs());
        self.head.apply(&self.compute, vectors, Epilogue::None, &mut work.stack.quantized, logits);
    }

    /// Width D of the token encoder.
    pub(super) fn width(&self) -> usize {
        self.token.norm.weight.len()
    }
}
