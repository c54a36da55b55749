//! The weights and the forward pass, split into the contract's three steps. Hot path: no locks, no logging.
//!
//! A bulk forward pass feeds each row a complete text, a decode step one symbol: both run these lines. Symbols that a rollback
//! kept but whose states it dropped are fed again, before those of the row's feed.

use super::{
    snapshots::{LONG_FEED, MAX_REPLAY, MAX_SNAPSHOTS, REWIND, SnapshotPlan, StackState},
    state::{FedSymbol, HnetState, state},
    work::{StageWork, Work},
};
use crate::{
    decode::{
        contract::{
            BoundaryOptions, Card, KvMemory, Model, Scratch, SequenceRow, State, StepStatus, SymbolBoundary, state_ref,
        },
        cost::{Cost, StepCost},
        options::check_mode,
    },
    error::Result,
    family::{
        cost,
        parts::step::{check_feed, deliver_logits, with_status, work_mut},
    },
    kernels::{
        Compute,
        linear::{Epilogue, Linear},
        pages::PagePool,
    },
    nn::{
        Position,
        hybrid::HybridStack,
        kv_cache::KvCache,
        recurrent::{RecurrentMemory, page_bytes},
        router::{Router, begins_chunk},
        sized,
        window::CHUNK,
    },
};
use std::sync::Arc;

/// A loaded H-Net. D = width of the outermost stage, V = vocabulary size.
pub struct Hnet {
    pub(super) card: Card,
    pub(super) compute: Compute,
    /// (V, D)
    pub(super) embedding: Vec<f32>,
    /// Appended to each stage's inputs; empty where the stage is as wide as the one around it.
    pub(super) padding: Vec<Vec<f32>>,
    /// Encoders from the outside in, the main stack, decoders from the inside out.
    pub(super) stacks: Vec<HybridStack>,
    /// Weights of the stages that chunk, outermost first.
    pub(super) chunking: Vec<ChunkingStage>,
    /// (V, D)
    pub(super) head: Linear,
    pub(super) pages: Arc<PagePool>,
}

/// Weights of a stage that chunks, in addition to its stacks. D = width.
pub(super) struct ChunkingStage {
    pub(super) router: Router,
    /// From the encoder's output to the decoder's input: (D, D), in f32.
    pub(super) residual: Linear,
}

impl Model for Hnet {
    fn card(&self) -> &Card {
        &self.card
    }

    fn begin(&self, boundaries: BoundaryOptions) -> Result<Box<dyn State>> {
        check_mode(&boundaries, &self.card)?;
        let stack = |stack: &HybridStack| StackState {
            cache: KvCache::new(stack.layout, self.pages.clone()),
            memory: RecurrentMemory::new(self.pages.clone(), stack.recurrent_numbers()),
        };
        Ok(Box::new(HnetState::new(self.stacks.iter().map(stack).collect(), self.chunking.len())))
    }

    fn scratch(&self) -> Scratch {
        let stages = self.padding.iter().map(|_| StageWork::default()).collect();
        Scratch(Box::new(Work { stages, ..Work::default() }))
    }

    /// Symbol step: embed → encoder → router. A row at which a chunk begins waits.
    fn symbol_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        let Work { stages, pass, .. } = work_mut(scratch)?;
        let own = &mut stages[0];
        own.positions.clear();
        own.x.clear();
        for &index in which {
            self.start_feed(&mut rows[index])?;
            self.gather_symbols(rows, index, own)?;
        }
        if own.positions.is_empty() {
            return Ok(());
        }
        self.run_stack(0, 0, rows, own, pass)?; // (symbols, D)
        self.route(0, rows, own, pass)?; // (symbols)
        self.scatter_symbols(rows, which, own)
    }

    /// Segment step, for rows at which chunks begin: the stages inside.
    fn segment_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        let work: &mut Work = work_mut(scratch)?;
        with_status(StepStatus::Waiting, rows, which, work, |rows, waiting, Work { stages, pass, .. }| {
            let inner = &mut stages[1..];
            let dim = self.dim(0);
            inner[0].positions.clear();
            inner[0].symbols.clear();
            inner[0].x.clear();
            for &index in waiting {
                let state = state(rows, index)?;
                let first = state.stacks[1].cache.len();
                for (chunk, vector) in state.flight.chunks.chunks_exact(dim).enumerate() {
                    inner[0].positions.push(Position { sequence: index, index: first + chunk });
                    self.push_padded(1, vector, &mut inner[0].x);
                }
                let fed = (state.computed..).zip(&state.flight.probabilities);
                let begun = fed.filter(|(_, probability)| begins_chunk(**probability));
                inner[0].symbols.extend(begun.map(|(position, _)| position.checked_sub(state.ready)));
            }
            self.run_stage(1, rows, inner, pass)?; // (chunks, D of the next stage)
            let outputs = inner[0].x.chunks_exact(self.dim(1));
            for (position, output) in inner[0].positions.iter().zip(outputs) {
                state(rows, position.sequence)?.flight.outputs.extend_from_slice(&output[..dim]);
            }
            waiting.iter().for_each(|&index| rows[index].status = StepStatus::Unfinished);
            Ok(())
        })
    }

    /// Finish step: moving average + residual → decoder → logits.
    fn finish_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        let work: &mut Work = work_mut(scratch)?;
        with_status(StepStatus::Unfinished, rows, which, work, |rows, unfinished, work| {
            let Work { stages, pass, wanted, logits, .. } = work;
            let own = &mut stages[0];
            self.gather_averages(rows, unfinished, own)?;
            self.run_stack(self.decoder(0), 0, rows, own, pass)?; // (symbols, D)
            let dim = self.dim(0);
            wanted.clear();
            let mut end = 0;
            for &index in unfinished {
                end += own.positions[end..].iter().take_while(|position| position.sequence == index).count();
                wanted.extend_from_slice(&own.x[(end - rows[index].wanted()) * dim..end * dim]);
                state(rows, index)?.finish_flight();
            }
            let logits = sized(logits, wanted.len() / dim * self.head.outputs());
            self.head.apply(&self.compute, wanted, Epilogue::None, &mut pass.quantized, logits); // (wanted, V)
            deliver_logits(rows, unfinished, logits, self.head.outputs())
        })
    }

    fn bytes_for(&self, symbols: usize) -> usize {
        // every symbol may begin a chunk, in every stage
        let held = |stack: &HybridStack| match stack.window.max_keys() {
            Some(keys) => symbols.min(keys + MAX_REPLAY + 2 * CHUNK),
            None => symbols,
        };
        let cached: usize = self.stacks.iter().map(|stack| cache_bytes(stack, held(stack))).sum();
        cached + self.recurrent_bytes() * (MAX_SNAPSHOTS + 1)
    }

    fn growth(&self, state: &dyn State, more: usize) -> usize {
        // the step rejects another model's state
        let Ok(state) = state_ref::<HnetState>(state) else { return 0 };
        let fed = state.to_compute(more);
        let mut bytes = 0;
        for (stack, own) in self.stacks.iter().zip(&state.stacks) {
            if stack.layout.layers > 0 {
                bytes += own.cache.growth(own.cache.len() + fed);
            }
            bytes += own.memory.growth();
        }
        if fed >= LONG_FEED { bytes + self.recurrent_bytes() } else { bytes }
    }

    fn memory(&self) -> KvMemory {
        KvMemory { in_use: self.pages.in_use(), limit: self.pages.limit() }
    }

    fn cost(&self, symbols: usize, segments: usize) -> Cost {
        let mut cost = Cost::default();
        let last = self.stacks.len() - 1;
        for (index, stack) in self.stacks.iter().enumerate() {
            let stage = index.min(last - index);
            let positions = if stage == 0 { symbols } else { segments };
            *in_stage(&mut cost, stage) += cost::hybrid_stack(stack, positions);
        }
        for (stage, ChunkingStage { router, residual }) in self.chunking.iter().enumerate() {
            for matrix in [&router.query, &router.key, residual] {
                *in_stage(&mut cost, stage) += cost::linear(matrix);
            }
        }
        cost.logits += cost::linear(&self.head);
        cost
    }
}

impl Hnet {
    /// Returns the width D of a stage.
    pub(super) fn dim(&self, stage: usize) -> usize {
        self.stacks[stage].norm.weight.len()
    }

    /// Returns the index of a chunking stage's decoder among the stacks.
    pub(super) fn decoder(&self, stage: usize) -> usize {
        self.stacks.len() - 1 - stage
    }

    /// Returns the bytes of one sequence's recurrent memories, all stacks together.
    fn recurrent_bytes(&self) -> usize {
        self.stacks.iter().map(|stack| page_bytes(stack.recurrent_numbers())).sum()
    }

    /// Checks a row's feed and plans its snapshot.
    fn start_feed(&self, row: &mut SequenceRow) -> Result<()> {
        check_feed(&self.card, row, state_ref::<HnetState>(&*row.state)?.is_ready())?;
        self.card.vocabulary.check_ids("feed", &row.feed)?;
        row.decisions.clear();
        let SequenceRow { state, feed, .. } = row;
        let state: &mut HnetState = crate::decode::contract::state_mut(&mut **state)?;
        state.flight.clear();
        let fed = state.to_compute(feed.len());
        state.history.extend(feed.iter().map(|&symbol| FedSymbol { symbol, depth: 0 }));
        if fed >= LONG_FEED {
            let position = state.len() - REWIND;
            state.flight.plan = Some(SnapshotPlan::new(position, self.stacks.len(), self.chunking.len()));
        }
        if fed > CHUNK {
            // windows move on during such a feed, so nothing before it can be restored
            state.snapshots.clear();
            state.can_rewind_feed = false;
        }
        Ok(())
    }

    /// Appends the embeddings of a row's symbols that the stacks have not seen.
    fn gather_symbols(&self, rows: &mut [SequenceRow], index: usize, own: &mut StageWork) -> Result<()> {
        let dim = self.dim(0);
        let state = state(rows, index)?;
        for (position, fed) in (state.start..).zip(&state.history).skip(state.computed - state.start) {
            own.positions.push(Position { sequence: index, index: position });
            own.x.extend_from_slice(&self.embedding[fed.symbol as usize * dim..][..dim]);
        }
        Ok(())
    }

    /// Stores residuals, boundaries and the chunks' vectors in the rows. Rows at which a chunk begins wait.
    fn scatter_symbols(&self, rows: &mut [SequenceRow], which: &[usize], own: &StageWork) -> Result<()> {
        let dim = self.dim(0);
        for (row, &Position { sequence, index }) in own.positions.iter().enumerate() {
            let probability = own.probabilities[row];
            let boundary = begins_chunk(probability);
            let state = state(rows, sequence)?;
            let is_new = index >= state.ready;
            let first = state.start;
            if is_new {
                // one that is fed again has its complete depth
                state.history[index - first].depth = u8::from(boundary);
            }
            state.flight.residual.extend_from_slice(&own.residual[row * dim..][..dim]);
            state.flight.probabilities.push(probability);
            if boundary {
                state.flight.chunks.extend_from_slice(&own.x[row * dim..][..dim]);
            }
            if is_new {
                let probability = Some(probability);
                rows[sequence].decisions.push(SymbolBoundary {
                    boundary,
                    depth: u8::from(boundary),
                    probability,
                    end_logprob: None,
                });
            }
        }
        for &index in which {
            let waits = !state(rows, index)?.flight.chunks.is_empty();
            rows[index].status = if waits { StepStatus::Waiting } else { StepStatus::Unfinished };
        }
        Ok(())
    }

    /// `own.x` (symbols, D) = the moving average plus the residual, for all symbols in flight.
    fn gather_averages(&self, rows: &mut [SequenceRow], which: &[usize], own: &mut StageWork) -> Result<()> {
        let dim = self.dim(0);
        own.positions.clear();
        own.x.clear();
        for &index in which {
            let state = state(rows, index)?;
            let first = state.computed;
            let probabilities = std::mem::take(&mut state.flight.probabilities);
            let residual = std::mem::take(&mut state.flight.residual);
            let outputs = std::mem::take(&mut state.flight.outputs);
            let mut chunks = outputs.chunks_exact(dim);
            for ((position, probability), residual) in (first..).zip(&probabilities).zip(residual.chunks_exact(dim)) {
                let output = if begins_chunk(*probability) { chunks.next() } else { None };
                let average = self.average(0, state, position, *probability, output);
                own.positions.push(Position { sequence: index, index: position });
                own.x.extend(average.iter().zip(residual).map(|(average, residual)| average + residual));
            }
            // the vectors keep their memory for the next feed
            state.flight.probabilities = probabilities;
            state.flight.residual = residual;
            state.flight.outputs = outputs;
        }
        Ok(())
    }
}

/// Returns the part of the cost to which a stage adds.
fn in_stage(cost: &mut Cost, stage: usize) -> &mut StepCost {
    match stage {
        0 => &mut cost.symbol,
        1 => &mut cost.segment,
        _ => &mut cost.deeper,
    }
}

/// Returns the bytes of a stack's cache of `positions`.
fn cache_bytes(stack: &HybridStack, positions: usize) -> usize {
    if stack.layout.layers == 0 { 0 } else { stack.layout.bytes_for(positions) }
}
