//! The part of a step that encodes documents, block by block, and the rows that start from an encoded document.

use super::{Batch, copy_error};
use crate::{
    decode::{
        contract::{Model, State},
        document::{DocumentEncoder, EncodingStage},
    },
    engine::{
        clock,
        recovery::guarded,
        request::{
            RequestKind,
            summary::{DocumentRequest, StepOutcome},
        },
        shared::Inner,
    },
    error::{Error, Result},
};
use std::{sync::Arc, time::Instant};

impl Batch {
    /// Returns the initial states of a summary's rows; none while its document is not encoded.
    pub(super) fn begin_summary(
        inner: &Inner,
        summary: &mut DocumentRequest,
        tenant: &str,
        now: Instant,
    ) -> Result<Vec<Box<dyn State>>> {
        let reader = reader(&*inner.model)?;
        let cached = summary.id.as_deref().and_then(|id| inner.document_cache.get(tenant, id, now));
        summary.begin(reader, cached, now)?;
        let Some(cached) = &summary.document else { return Ok(Vec::new()) };
        (0..summary.search.rows()).map(|_| reader.begin(&*cached.document)).collect()
    }

    /// Runs the blocks that the step plan contains. Returns the number of symbols that they count as.
    pub(super) fn encode(&mut self) -> usize {
        let mut symbols = 0;
        for index in 0..self.encode_feeds.len() {
            let feed = self.encode_feeds[index];
            if self.requests[feed.request].outcome.is_some() {
                continue;
            }
            match guarded(|| self.encode_blocks(feed.request, feed.symbols)) {
                Ok(encoded) => symbols += encoded,
                Err(error) => {
                    tracing::error!(%error, "encoding a document failed");
                    self.requests[feed.request].outcome = Some(Err(copy_error(&error)));
                    self.scratch = self.inner.model.scratch();
                }
            }
        }
        symbols
    }

    /// Runs `blocks` blocks of one document, and starts its rows if it is complete. Returns their cost in symbols.
    fn encode_blocks(&mut self, index: usize, blocks: usize) -> Result<usize> {
        let inner = Arc::clone(&self.inner);
        let reader = reader(&*inner.model)?;
        let block_symbols = reader.limits().block.max(1);
        let request = &mut self.requests[index];
        let RequestKind::Document(summary) = &mut request.kind else { return Ok(0) };
        let mut ran = 0;
        let mut first_layer_symbols = 0;
        while ran < blocks {
            let Some(encoding) = summary.encoding.as_deref_mut() else { break };
            // the first layer reads each vector once; the number of layers after it depends on the model
            let first_layer = encoding.progress().stage == EncodingStage::Layer(0);
            let advanced = reader.advance(encoding, 1, &mut self.scratch)?;
            if advanced == 0 {
                break;
            }
            ran += advanced;
            first_layer_symbols += if first_layer { block_symbols } else { 0 };
        }
        let again = summary.encodes_again();
        if !again {
            if let Some(reading) = summary.reading() {
                request.event_sender.send_progress(reading);
            }
            request.event_sender.send_chosen(|| summary.take_new_choices());
        }
        let now = clock::now();
        let tenant = &request.tenant;
        let encoded = summary.finish_encoding(now, |cached| inner.document_cache.insert(tenant, cached.clone(), now));
        let state = summary.document.as_ref().map(|cached| reader.begin(&*cached.document)).transpose()?;
        let rows = summary.search.rows();
        request.count_encoded(first_layer_symbols);
        if let Some(encoded) = encoded {
            if !again {
                self.counters.prefill_chars += encoded.tokens as u64;
            }
            request.event_sender.send_encoded(&encoded);
        }
        if let Some(state) = state {
            // a request that was preempted with several rows resumes with as many
            for _ in 1..rows {
                self.row_table.push(state.fork(), index, &mut self.requests);
            }
            self.row_table.push(state, index, &mut self.requests);
        }
        Ok(ran * block_symbols)
    }

    /// Takes the outcome of a summary's rows, all of which are ready, and reorders them for the next step.
    pub(super) fn absorb_summary(&mut self, index: usize) -> Result<()> {
        let request = &mut self.requests[index];
        let RequestKind::Document(summary) = &mut request.kind else { return Ok(()) };
        match summary.absorb(&self.row_table.rows, &request.row_indices)? {
            StepOutcome::Refeeding => {}
            StepOutcome::Continue(order) => self.row_table.reorder(index, &mut self.requests, order.into_iter()),
            StepOutcome::Finished(reason) => request.outcome = Some(Ok(reason)),
        }
        Ok(())
    }
}

fn reader(model: &dyn Model) -> Result<&dyn DocumentEncoder> {
    model
        .document_encoder()
        .ok_or_else(|| Error::Internal("a summary was queued for a model that reads no documents".into()))
}
