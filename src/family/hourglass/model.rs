//! The weights and the forward pass, split into the contract's three steps. Hot path: no allocation once the buffers in [`Work`]
//! have grown, no locks, no logging.
//!
//! A bulk forward pass feeds each row a complete text, a decode step one symbol: both run these lines. The functions of `gather`
//! collect vectors of many rows into `work.x` and return false when no row has any left. A windowed stack takes a chunk of
//! each row at a time, so that its cache never holds more than a window and a chunk.

use super::{
    gather::{
        count_post, decide_boundaries, embed, finish_rows, gather_segments, gather_symbols, gather_upsampled,
        gather_wanted, keep_last_closed, pool_closed, scatter_middle, scatter_post, set_fed_status,
    },
    state::HourglassState,
    work::{MIDDLE, POST, PRE, StackCaches, Stage, Work},
};
use crate::{
    decode::contract::{Card, Model, SequenceRow, StepStatus, state_mut},
    error::{Error, Result},
    family::parts::step::{deliver_logits, with_status},
    kernels::{
        Compute,
        linear::{Epilogue, Linear},
        pages::PagePool,
        rowwise::{LayerNorm, layer_norm},
    },
    nn::{attention::stack::Stack, boundary::Boundaries, kv_cache::KvCache, pooling::Pooling, sized},
};
use std::sync::Arc;

/// A loaded hourglass. D = width, V = vocabulary size.
pub struct Hourglass {
    pub(super) card: Card,
    pub(super) compute: Compute,
    /// (V, D)
    pub(super) embedding: Vec<f32>,
    pub(super) pre: Stack,
    pub(super) boundaries: Boundaries,
    /// The model whose entropies place boundaries, if the checkpoint has one.
    pub(super) companion: Option<Arc<dyn Model>>,
    /// `None` in a vanilla model.
    pub(super) pooled: Option<Pooled>,
    /// (V, D)
    pub(super) head: Linear,
    pub(super) pages: Arc<PagePool>,
    /// Bytes of pages that the model itself holds: the null group's.
    pub(super) own_bytes: usize,
}

/// The weights above the pre stack.
pub(super) struct Pooled {
    pub(super) pooling: Pooling,
    /// Between pooling and middle stack; applied to the null group too.
    pub(super) norm: LayerNorm,
    pub(super) middle: Stack,
    pub(super) post: Stack,
    /// The null group's keys, values and output, computed once: the start of every sequence's middle cache.
    pub(super) null_group: KvCache,
}

impl Hourglass {
    /// Symbol step: embed → pre stack → boundaries → pool.
    pub(super) fn feed_symbols(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        self.start_feed(rows, which, work)?;
        while gather_symbols(&self.pre, rows, which, work)? {
            embed(&self.embedding, self.head.inputs(), work); // (symbols, D)
            let caches = &mut StackCaches::<PRE>(rows);
            self.pre.forward(&self.compute, &mut work.x, &work.positions, caches, &mut work.stack)?; // (symbols, D)
            work.show(Stage::PreOutput);
            decide_boundaries(&self.boundaries, &self.compute, rows, work)?; // (symbols)
            pool_closed(self.pooled.as_ref().map(|pooled| pooled.pooling), rows, which, work)?; // (closed segments, D)
        }
        set_fed_status(rows, which)
    }

    /// Segment step, for rows that closed a segment: pooled vectors → norm → middle stack.
    pub(super) fn close_segments(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        let Some(Pooled { norm: pool_norm, middle, .. }) = &self.pooled else { return Ok(()) };
        with_status(StepStatus::Waiting, rows, which, work, |rows, waiting, work| {
            keep_last_closed(rows, waiting)?;
            while gather_segments(middle, rows, waiting, work)? {
                layer_norm(&self.compute, &mut work.x, pool_norm); // (segments, D)
                work.show(Stage::PooledNormed);
                let caches = &mut StackCaches::<MIDDLE>(rows);
                middle.forward(&self.compute, &mut work.x, &work.positions, caches, &mut work.stack)?; // (segments, D)
                scatter_middle(rows, work)?;
            }
            waiting.iter().for_each(|&index| rows[index].status = StepStatus::Unfinished);
            Ok(())
        })
    }

    /// Finish step: upsample + residual → post stack → logits.
    pub(super) fn finish(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        with_status(StepStatus::Unfinished, rows, which, work, |rows, unfinished, work| {
            if let Some(Pooled { post, .. }) = &self.pooled {
                count_post(rows, unfinished, work)?;
                while gather_upsampled(post, rows, unfinished, work)? {
                    let caches = &mut StackCaches::<POST>(rows);
                    post.forward(&self.compute, &mut work.x, &work.positions, caches, &mut work.stack)?; // (symbols, D)
                    scatter_post(rows, unfinished, work)?;
                }
            }
            gather_wanted(rows, unfinished, work)?; // (wanted, D)
            let logits = sized(&mut work.logits, work.wanted.len() / self.head.inputs() * self.head.outputs());
            self.head.apply(&self.compute, &work.wanted, Epilogue::None, &mut work.stack.quantized, logits); // (wanted, V)
            deliver_logits(rows, unfinished, logits, self.head.outputs())?;
            finish_rows(rows, unfinished)
        })
    }

    /// Checks the feeds, clears what earlier steps left in the rows, and steps the companions.
    fn start_feed(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        for &index in which {
            self.check_feed(&mut rows[index])?;
        }
        if let Some(companion) = self.companion.as_deref().filter(|_| !which.is_empty()) {
            work.companion.step(companion, rows, which)?;
        }
        work.processed.clear();
        work.processed.resize(which.len(), 0);
        Ok(())
    }

    fn check_feed(&self, row: &mut SequenceRow) -> Result<()> {
        let state: &mut HourglassState = state_mut(&mut *row.state)?;
        if row.status != StepStatus::Ready || !state.is_ready() || row.feed.is_empty() {
            return Err(Error::Internal("a row was fed no symbols, or before it was ready".into()));
        }
        let length = state.pre.len() + row.feed.len();
        let limit = self.card.max_symbols;
        if length > limit {
            return Err(Error::TooLong { field: "sequence", length, limit, unit: "characters", why: None });
        }
        self.card.vocabulary.check_ids("feed", &row.feed)?;
        row.decisions.clear();
        state.start_feed();
        Ok(())
    }
}
