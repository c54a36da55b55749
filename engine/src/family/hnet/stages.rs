//! The passes of a step through the stages. Hot path, as [`model`](super::model) is.
//!
//! A pass takes the positions of all rows of a step; those of one row are consecutive. It is cut into parts of at most
//! [`CHUNK`] positions, and where a row's planned snapshot lies.

use super::{
    model::Hnet,
    snapshots::StackState,
    state::{HnetState, state},
    work::{PassWork, StackCaches, StageWork},
};
use crate::{
    decode::contract::SequenceRow,
    error::{Error, Result},
    kernels::linear::Epilogue,
    nn::{
        Position,
        mamba2::RecurrentRun,
        recurrent,
        router::{begins_chunk, boundary_probability, move_average},
        sized,
        window::CHUNK,
    },
};

impl Hnet {
    /// Runs the vectors of stage `stage`, which is not the outermost, through it and the stages inside it. `stages` are the
    /// buffers of these; the outputs replace the inputs in `stages[0].x`, (positions, D).
    pub(super) fn run_stage(
        &self,
        stage: usize,
        rows: &mut [SequenceRow],
        stages: &mut [StageWork],
        pass: &mut PassWork,
    ) -> Result<()> {
        let Some((own, inner)) = stages.split_first_mut() else {
            return Err(Error::Internal(format!("no buffers for stage {stage}")));
        };
        // the stack of a stage in is its encoder, or the main stack
        self.run_stack(stage, stage, rows, own, pass)?; // (positions, D)
        let Some(next) = inner.first_mut() else { return Ok(()) };
        self.route(stage, rows, own, pass)?;
        next.positions.clear();
        next.symbols.clear();
        next.x.clear();
        let dim = self.dim(stage);
        for (row, &Position { sequence, .. }) in own.positions.iter().enumerate() {
            if begins_chunk(own.probabilities[row]) {
                let index = match next.positions.last() {
                    Some(last) if last.sequence == sequence => last.index + 1,
                    _ => state(rows, sequence)?.stacks[stage + 1].cache.len(),
                };
                next.positions.push(Position { sequence, index });
                self.push_padded(stage + 1, &own.x[row * dim..][..dim], &mut next.x);
                next.symbols.push(own.symbols[row]);
                if let Some(symbol) = own.symbols[row] {
                    rows[sequence].decisions[symbol].depth += 1;
                    let state = state(rows, sequence)?;
                    let held = state.ready + symbol - state.start;
                    state.history[held].depth += 1;
                }
            }
        }
        if !next.positions.is_empty() {
            self.run_stage(stage + 1, rows, inner, pass)?;
        }
        let inner_dim = self.dim(stage + 1);
        let mut outputs = inner.iter().take(1).flat_map(|next| next.x.chunks_exact(inner_dim));
        for (row, position) in own.positions.iter().enumerate() {
            let probability = own.probabilities[row];
            let output = if begins_chunk(probability) { outputs.next().map(|output| &output[..dim]) } else { None };
            let average = self.average(stage, state(rows, position.sequence)?, position.index, probability, output);
            let x = &mut own.x[row * dim..][..dim];
            for ((x, average), residual) in x.iter_mut().zip(average).zip(&own.residual[row * dim..][..dim]) {
                *x = average + residual;
            }
        }
        self.run_stack(self.decoder(stage), stage, rows, own, pass) // (positions, D)
    }

    /// Appends a vector of the stage around `stage`, with this stage's padding, to `out`.
    pub(super) fn push_padded(&self, stage: usize, vector: &[f32], out: &mut Vec<f32>) {
        out.extend_from_slice(vector);
        out.extend_from_slice(&self.padding[stage]);
    }

    /// Returns the moving average at a position, after the chunk with that output if one begins there.
    pub(super) fn average<'a>(
        &self,
        stage: usize,
        state: &'a mut HnetState,
        index: usize,
        probability: f32,
        output: Option<&[f32]>,
    ) -> &'a [f32] {
        let average = &mut state.levels[stage].average;
        if let Some(plan) = &mut state.flight.plan
            && plan.stages[stage] == Some(index)
        {
            plan.averages[stage] = Some(average.clone());
        }
        if let Some(output) = output {
            move_average(average, probability, output);
        }
        average
    }

    /// Computes residuals and boundary probabilities of the encoder's outputs, and moves the routers' queries on.
    pub(super) fn route(
        &self,
        stage: usize,
        rows: &mut [SequenceRow],
        own: &mut StageWork,
        pass: &mut PassWork,
    ) -> Result<()> {
        let chunking = &self.chunking[stage];
        let residual = sized(&mut own.residual, own.x.len());
        chunking.residual.apply(&self.compute, &own.x, Epilogue::None, &mut pass.quantized, residual); // (positions, D)
        chunking.router.project(&self.compute, &own.x, &mut pass.router); // (positions, D), twice
        let dim = self.dim(stage);
        own.probabilities.clear();
        // chunks that begin in this pass, in the sequence of the present position
        let mut begun = 0;
        let mut last = None;
        for (row, &Position { sequence, index }) in own.positions.iter().enumerate() {
            if last != Some(sequence) {
                begun = 0;
                last = Some(sequence);
            }
            let state = state(rows, sequence)?;
            let query = &mut state.levels[stage].query;
            if let Some(plan) = &mut state.flight.plan
                && plan.stages[stage] == Some(index)
            {
                plan.queries[stage] = Some(query.clone());
                plan.stages[stage + 1] = Some(state.stacks[stage + 1].cache.len() + begun);
            }
            let probability = boundary_probability(&pass.router, row, query);
            own.probabilities.push(probability);
            begun += usize::from(begins_chunk(probability));
            query.clear();
            query.extend_from_slice(pass.router.query(row, dim));
        }
        Ok(())
    }

    /// Runs the vectors of a stage, (positions, D), through one of its stacks, in place.
    pub(super) fn run_stack(
        &self,
        index: usize,
        stage: usize,
        rows: &mut [SequenceRow],
        own: &mut StageWork,
        pass: &mut PassWork,
    ) -> Result<()> {
        let dim = self.dim(stage);
        let mut from = 0;
        while from < own.positions.len() {
            let rest = &own.positions[from..];
            let mut count = rest.len().min(CHUNK);
            for (offset, &Position { sequence, index }) in rest[..count].iter().enumerate().skip(1) {
                let plan = &state(rows, sequence)?.flight.plan;
                if plan.as_ref().is_some_and(|plan| plan.stages[stage] == Some(index)) {
                    count = offset;
                    break;
                }
            }
            self.run_part(index, stage, rows, &rest[..count], &mut own.x[from * dim..(from + count) * dim], pass)?;
            from += count;
        }
        Ok(())
    }

    /// Runs a part of a pass, which no planned snapshot divides.
    fn run_part(
        &self,
        index: usize,
        stage: usize,
        rows: &mut [SequenceRow],
        positions: &[Position],
        x: &mut [f32],
        pass: &mut PassWork,
    ) -> Result<()> {
        let stack = &self.stacks[index];
        pass.pages.clear();
        let runs = || positions.chunk_by(|a, b| a.sequence == b.sequence);
        for run in runs() {
            let Position { sequence, index: first } = run[0];
            let state = state(rows, sequence)?;
            if let Some(plan) = &mut state.flight.plan {
                plan.take_stack(index, stage, &state.stacks[index]);
            }
            let kept = match &state.flight.plan {
                Some(plan) if !state.can_rewind_feed => plan.stages[stage].unwrap_or(first).min(first),
                _ => state.kept_from(index),
            };
            let StackState { cache, memory } = &mut state.stacks[index];
            if stack.layout.layers > 0 {
                cache.free_before(stack.window.first_key(kept));
                cache.reserve(run.len())?;
            }
            pass.pages.push(memory.take()?);
        }
        let mut recurrent = Vec::with_capacity(pass.pages.len());
        let mut first = 0;
        for (run, page) in runs().zip(&mut pass.pages) {
            recurrent.push(RecurrentRun { memory: recurrent::numbers(page)?, first, count: run.len() });
            first += run.len();
        }
        let caches = &mut StackCaches { rows, stack: index };
        stack.forward(&self.compute, x, positions, caches, &mut recurrent, &mut pass.hybrid)?; // (positions, D)
        drop(recurrent);
        for (run, page) in runs().zip(pass.pages.drain(..)) {
            let stack = &mut state(rows, run[0].sequence)?.stacks[index];
            stack.memory.put(page);
            stack.cache.advance(run.len());
        }
        Ok(())
    }
}
