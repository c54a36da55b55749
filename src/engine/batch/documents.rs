//! The part of a step in which documents are encoded, a block at a time, and the rows that begin from them.

use super::{Batch, again, guarded};
use crate::{
    decode::{
        contract::{Model, State},
        document::{DocumentEncoder, EncodingStage},
    },
    engine::{
        desk::Common,
        shelf::Kept,
        summary::{Summary, Written},
        task::Life,
    },
    error::{Error, Result},
};
use std::{sync::Arc, time::Instant};

impl Batch {
    /// The rows of a summary that begins, or goes on; none while its document is not encoded.
    pub(super) fn begin_summary(
        &self,
        summary: &mut Summary,
        tenant: &Arc<str>,
        now: Instant,
    ) -> Result<Vec<Box<dyn State>>> {
        let Common { model, shelf, .. } = &*self.common;
        let reader = reader(&**model)?;
        let kept = summary.id().and_then(|id| shelf.again(tenant, id, now));
        summary.begin(reader, kept, now)?;
        let Some(Kept { document, .. }) = summary.document() else { return Ok(Vec::new()) };
        (0..summary.rows()).map(|_| reader.begin(&**document)).collect()
    }

    /// Encodes what the step was laid out with; returns how many symbols that counts as.
    pub(super) fn encode(&mut self) -> usize {
        let mut symbols = 0;
        for at in 0..self.encodes.len() {
            let (index, blocks) = self.encodes[at];
            if self.tasks[index].verdict.is_some() {
                continue;
            }
            match guarded(|| self.advance(index, blocks)) {
                Ok(done) => symbols += done,
                Err(error) => {
                    tracing::error!(%error, "a document was lost");
                    self.tasks[index].verdict = Some(Err(again(&error)));
                    self.scratch = self.common.model.scratch();
                }
            }
        }
        symbols
    }

    /// Runs so many blocks of one job's document, and begins its row if it is done. Returns the symbols that they count as.
    fn advance(&mut self, index: usize, blocks: usize) -> Result<usize> {
        let common = Arc::clone(&self.common);
        let Common { model, shelf, tally, .. } = &*common;
        let reader = reader(&**model)?;
        let block = reader.limits().block.max(1);
        let task = &mut self.tasks[index];
        let Life::Document(summary) = &mut task.life else { return Ok(0) };
        let (mut ran, mut read) = (0, 0);
        while ran < blocks {
            let Some(encoding) = summary.encoding() else { break };
            // each vector is read once, by the first layer; how many layers follow is the model's affair
            let first = encoding.progress().stage == EncodingStage::Layer(0);
            let done = reader.advance(encoding, 1, &mut self.scratch)?;
            if done == 0 {
                break;
            }
            (ran, read) = (ran + done, read + if first { block } else { 0 });
        }
        let again = summary.is_again();
        if !again {
            if let Some(reading) = summary.reading() {
                task.outlet.note(reading);
            }
            task.outlet.chosen(|| summary.newly_chosen());
        }
        let tenant = Arc::clone(&task.tenant);
        let now = Instant::now();
        let encoded = summary.finish(now, |kept| shelf.keep(&tenant, kept.clone(), now));
        let state = summary.document().map(|kept| reader.begin(&*kept.document)).transpose()?;
        let rows = summary.rows();
        task.reads(read);
        if let Some(encoded) = encoded {
            if !again {
                tally.prefill_chars.add(encoded.tokens);
            }
            task.outlet.read(&encoded);
        }
        if let Some(state) = state {
            // several, if it had several before it had to make way
            for _ in 1..rows {
                self.seats.give(state.fork(), index, &mut self.tasks);
            }
            self.seats.give(state, index, &mut self.tasks);
        }
        Ok(ran * block)
    }

    /// Takes the outcome of a summary's rows, all of which are ready, and gives it those of the next step.
    pub(super) fn absorb_summary(&mut self, index: usize) -> Result<()> {
        let task = &mut self.tasks[index];
        let Life::Document(summary) = &mut task.life else { return Ok(()) };
        match summary.absorb(&self.seats.rows, &task.seats)? {
            Written::Refeeding => {}
            Written::Goes(order) => self.seats.arrange(index, &mut self.tasks, order.into_iter()),
            Written::Finished(reason) => task.verdict = Some(Ok(reason)),
        }
        Ok(())
    }
}

fn reader(model: &dyn Model) -> Result<&dyn DocumentEncoder> {
    model.document_encoder().ok_or_else(|| Error::Internal("a document for a model that reads none".into()))
}
