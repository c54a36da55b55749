//! The weights and the encoder's forward pass. Hot path: buffers are kept in [`Work`], and pages are allocated where a layer
//! begins.
//!
//! A unit of work is one page of vectors through one half of a layer: all pages write keys, then all pages attend. Attention
//! looks both ways, so encoding begins when the document is complete.

use super::{
    encoding::{LayerKeys, T5Encoding, UNIT, WorkUnit},
    gate::DeletionGate,
    work::Work,
};
use crate::{
    decode::{contract::Card, document::DocumentLimits},
    error::{Error, Result},
    family::parts::encoder_hook::EncoderHookPoint,
    kernels::{
        Compute,
        linear::Linear,
        memory::{cast, cast_mut},
        pages::PagePool,
        rowwise::rms_norm,
    },
    nn::{
        attention::layer::add,
        kv_cache::KvCache,
        paged_vectors::PagedVectors,
        sized,
        t5::{
            T5Stack,
            encoder::{EncoderKeys, T5Encoder},
        },
    },
};
use std::{sync::Arc, time::Instant};

/// A loaded encoder-decoder. D = width, V = vocabulary size, I = heads · head_dim.
pub struct T5 {
    pub(super) card: Card,
    pub(super) compute: Compute,
    /// (V, D), of both sides.
    pub(super) embedding: Vec<f32>,
    pub(super) encoder: T5Encoder,
    /// Deletes tokens, in MrT5.
    pub(super) gate: Option<DeletionGate>,
    pub(super) decoder: T5Stack,
    /// (V, D)
    pub(super) head: Linear,
    /// Factor of the head's input.
    pub(super) head_scale: f32,
    /// Memory of keys, values and encoder vectors.
    pub(super) pages: Arc<PagePool>,
    pub(super) limits: DocumentLimits,
}

impl T5 {
    /// Encoder: embed → layers, with deletion before one of them → norm → keys and values for the decoder. Runs at most
    /// `max_blocks` units of work; returns how many ran.
    pub(super) fn encode(&self, e: &mut T5Encoding, max_blocks: usize, work: &mut Work) -> Result<usize> {
        let mut ran = 0;
        while ran < max_blocks && e.can_run() {
            let started = Instant::now();
            match e.unit() {
                WorkUnit::Keys { layer } => {
                    if e.at_first_page() {
                        self.begin_layer(e, layer, work)?;
                    }
                    self.write_keys(e, layer, work)?; // (vectors, I) each
                }
                WorkUnit::Layer { layer } => self.finish_layer(e, layer, work)?, // (vectors, D)
                WorkUnit::Memory => self.project_memory(e, work)?, // (vectors, D) → (vectors, 2·I) for each decoder layer
            }
            e.advance(started);
            ran += 1;
        }
        Ok(ran)
    }

    /// Embeds the document before the first layer, deletes tokens before the gate's layer, and allocates the layer's keys.
    fn begin_layer(&self, e: &mut T5Encoding, layer: usize, work: &mut Work) -> Result<()> {
        if layer == 0 {
            let dim = self.head.inputs();
            let T5Encoding { tokens, vectors, .. } = e;
            vectors.fill(tokens.len(), |index, x| {
                x.copy_from_slice(&self.embedding[tokens[index] as usize * dim..][..dim]);
            })?;
            (0..e.vectors.pages())
                .for_each(|page| work.show(EncoderHookPoint::Embedded, page * UNIT, e.vectors.page(page)));
        }
        if let Some(gate) = self.gate.as_ref().filter(|gate| gate.layer == layer) {
            self.delete_tokens(e, gate, work)?; // (n, D) → (n', D)
        }
        let count = e.vectors.len();
        let floats = self.encoder.store(count).floats();
        let side_count = self.encoder.global_tokens(count);
        let side = match side_count {
            0 => None,
            count => Some(self.pages.allocate(self.encoder.store(count).floats() * size_of::<f32>())?),
        };
        e.keys = Some(LayerKeys {
            store: self.pages.allocate(floats * size_of::<f32>())?,
            side,
            side_count,
            sums: vec![0.0; side_count * self.head.inputs()],
            queries: PagedVectors::new(self.pages.clone(), self.encoder.heads * self.encoder.head_dim, UNIT),
        });
        Ok(())
    }

    /// Replaces the vectors by those that the gate keeps.
    fn delete_tokens(&self, e: &mut T5Encoding, gate: &DeletionGate, work: &mut Work) -> Result<()> {
        let mut values = Vec::with_capacity(e.vectors.len());
        for page in 0..e.vectors.pages() {
            gate.values(&self.compute, e.vectors.page(page), &mut work.x, &mut values); // (vectors)
        }
        let kept = gate.kept(&values);
        let mut vectors = PagedVectors::new(self.pages.clone(), self.head.inputs(), UNIT);
        vectors.fill(kept.len(), |index, x| x.copy_from_slice(e.vectors.vector(kept[index])))?;
        e.keep(gate.layer, &kept, &values, vectors);
        Ok(())
    }

    /// Writes a page's keys and values to the layer's store, and keeps its queries. After the last page, the same for the
    /// global tokens.
    fn write_keys(&self, e: &mut T5Encoding, layer: usize, work: &mut Work) -> Result<()> {
        let compute = &self.compute;
        let encoder = &self.encoder;
        let dim = self.head.inputs();
        let page = e.page();
        let count = e.vectors.len();
        let is_last_page = e.is_last_page();
        let T5Encoding { keys, vectors, .. } = e;
        let keys = keys.as_mut().ok_or_else(|| Error::Internal("no store for keys".into()))?;
        let layout = encoder.store(count);
        let store = &mut cast_mut(keys.store.bytes_mut()?)[..layout.floats()];
        encoder.project(compute, layer, vectors.page(page), &mut work.encoder, |index, key, value| {
            layout.write(store, page * UNIT + index, key, value);
        });
        let queries = &work.encoder.queries;
        keys.queries.extend(queries.len() / (encoder.heads * encoder.head_dim))?;
        keys.queries.page_mut(page)?.copy_from_slice(queries);
        let (Some(global), Some(side)) = (&encoder.global, &mut keys.side) else { return Ok(()) };
        for (index, normed) in work.encoder.normed.chunks_exact(dim).enumerate() {
            let group = ((page * UNIT + index) / global.group).min(keys.side_count - 1);
            add(&mut keys.sums[group * dim..][..dim], normed);
        }
        if is_last_page {
            let layout = encoder.store(keys.side_count);
            let side = &mut cast_mut(side.bytes_mut()?)[..layout.floats()];
            encoder.project_global(compute, layer, &keys.sums, &mut work.encoder, |index, key, value| {
                layout.write(side, index, key, value);
            });
        }
        Ok(())
    }

    /// Takes one page of vectors through the second half of a layer, after all keys were written.
    fn finish_layer(&self, e: &mut T5Encoding, layer: usize, work: &mut Work) -> Result<()> {
        let compute = &self.compute;
        let page = e.page();
        let count = e.vectors.len();
        let T5Encoding { keys, vectors, positions, .. } = e;
        let keys = keys.as_ref().ok_or_else(|| Error::Internal("queries without keys".into()))?;
        let side_store: &[f32] = match &keys.side {
            None => &[],
            Some(side) => &cast(side.bytes())[..self.encoder.store(keys.side_count).floats()],
        };
        let attended = EncoderKeys {
            store: &cast(keys.store.bytes())[..self.encoder.store(count).floats()],
            count,
            positions: positions.as_deref(),
            side_store,
            side_count: keys.side_count,
        };
        self.encoder.attend(compute, &attended, page * UNIT, keys.queries.page(page), &mut work.encoder); // (vectors, I)
        self.encoder.finish(compute, layer, vectors.page_mut(page)?, &mut work.encoder); // (vectors, D)
        work.show(EncoderHookPoint::Layer(layer), page * UNIT, vectors.page(page));
        Ok(())
    }

    /// Norms one page of the encoder's output, and projects it to the decoder's keys and values.
    fn project_memory(&self, e: &mut T5Encoding, work: &mut Work) -> Result<()> {
        let page = e.page();
        let vectors = e.vectors.page(page);
        let mut x = std::mem::take(&mut work.x);
        rms_norm(&self.compute, vectors, &self.encoder.norm, sized(&mut x, vectors.len())); // (vectors, D)
        work.show(EncoderHookPoint::Encoded, page * UNIT, &x);
        if e.memory.is_none() {
            let mut memory = KvCache::new(self.decoder.layout, self.pages.clone());
            memory.reserve(e.vectors.len())?;
            e.memory = Some(memory);
        }
        let memory = e.memory.as_mut().ok_or_else(|| Error::Internal("no memory for the decoder".into()))?;
        let write = |layer: usize, index: usize, keys: &[f32], values: &[f32]| {
            memory.write(layer, page * UNIT + index, keys, values)
        };
        let result = self.decoder.project_memory(&self.compute, &x, &mut work.decoder, write);
        work.x = x;
        result
    }
}
