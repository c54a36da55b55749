//! Moves vectors between an encoding's pages and the encoder's buffers: embedding, keys of full attention, padding, output.

use super::{
    config::PAD,
    encoding::{LayerKeys, PyramidionEncoding, UnpooledVectors},
    model::Pyramidion,
    plan::LayerGroup,
    scorer::Scorer,
    work::{EncoderHookPoint, Work},
};
use crate::{
    error::{Error, Result},
    kernels::{
        attention::attend_dense,
        memory::{cast, cast_mut},
        rowwise::layer_norm,
    },
    nn::{Position, attention::encoder::EncoderWork, kv_cache::KvCache, paged_vectors::PagedVectors, sized},
};
use std::sync::{Arc, PoisonError};

impl Pyramidion {
    /// Embeds tokens until the current page is full: √D · embedding + position. Padding is zero.
    pub(super) fn embed_tokens(&self, e: &mut PyramidionEncoding, work: &mut Work) -> Result<()> {
        let Some(group) = e.group().cloned() else { return Ok(()) };
        let before = e.vectors.len();
        let more = e.embedded_length(&group) - before;
        let dim = self.decoder.head.inputs();
        e.vectors.extend(more)?;
        work.positions.clear();
        work.tokens.clear();
        // With full attention all padding shares one vector, which comes last.
        let has_vector = |&&token: &&u32| group.block.is_some() || token != PAD;
        for &token in e.tokens.iter().filter(has_vector).skip(before).take(more) {
            work.positions.push(Position { sequence: 0, index: e.next_position });
            work.tokens.push(token);
            e.next_position += usize::from(token != PAD);
        }
        work.tokens.resize(more, PAD);
        work.positions.resize(more, Position { sequence: 0, index: 0 });
        let per_page = e.vectors.per_page();
        let x = &mut e.vectors.page_mut(before / per_page)?[before % per_page * dim..]; // (more, D)
        let Work { tokens, positions, .. } = &*work;
        self.decoder.compute.pool.for_chunks(x, dim, true, &|index, x| match tokens[index] {
            PAD => x.fill(0.0),
            token => {
                x.copy_from_slice(&self.decoder.embedding[token as usize * dim..][..dim]);
                self.positions.embed(x, &positions[index..=index]);
            }
        });
        work.show(EncoderHookPoint::Embedded, before, x);
        Ok(())
    }

    /// Writes a page's keys and values to the layer's store, and keeps its queries.
    pub(super) fn write_keys(&self, e: &mut PyramidionEncoding, layer: usize, work: &mut Work) -> Result<()> {
        let attention = self.encoder.attention(layer, e.key_count());
        let inner = self.encoder.heads * self.encoder.head_dim;
        let page = e.cursor.page;
        let per_page = e.vectors.per_page();
        let is_last_page = e.is_last_page();
        // Index of the padding vector, and the positions at which its key is written.
        let padding = if e.group == 0 { e.distinct_vectors() } else { usize::MAX };
        let padding_keys = if e.plan.masks_padding { 0 } else { e.padding_positions() };
        if e.keys.is_none() {
            let mut store = self.decoder.pages.allocate(attention.floats() * size_of::<f32>())?;
            attention.reset(&mut cast_mut(store.bytes_mut()?)[..attention.floats()]);
            let queries = PagedVectors::new(self.decoder.pages.clone(), inner, per_page);
            e.keys = Some(LayerKeys { store, count: 0, queries });
        }
        let LayerKeys { store, count, queries } =
            e.keys.as_mut().ok_or_else(|| Error::Internal("no store for keys".into()))?;
        let store = &mut cast_mut(store.bytes_mut()?)[..attention.floats()];
        let x = e.vectors.page(page);
        self.encoder.project(&self.decoder.compute, layer, x, &mut work.encoder, |index, keys, values| {
            let copies = if page * per_page + index == padding { padding_keys } else { 1 };
            for _ in 0..copies {
                attention.write(store, *count, keys, values);
                *count += 1;
            }
        });
        if is_last_page {
            attention.finish_keys(&self.decoder.compute, store, *count);
        }
        let page_queries = &work.encoder.queries;
        queries.extend(page_queries.len() / inner)?;
        queries.page_mut(page)?.copy_from_slice(page_queries);
        Ok(())
    }

    /// Writes the attention of a page's queries over the layer's keys, (vectors, I), to `work.head_outputs`.
    pub(super) fn attend_to_keys(
        &self,
        e: &mut PyramidionEncoding,
        layer: usize,
        work: &mut EncoderWork,
    ) -> Result<()> {
        let compute = &self.decoder.compute;
        let attention = self.encoder.attention(layer, e.key_count());
        let layout = self.encoder.store(e.key_count());
        let padding_positions = e.padding_positions();
        let has_padding = padding_positions > 0 && e.is_last_page();
        let keys = e.keys.as_ref().ok_or_else(|| Error::Internal("queries without keys".into()))?;
        let queries = keys.queries.page(e.cursor.page);
        let store = &cast(keys.store.bytes())[..attention.floats()];
        let outputs = sized(&mut work.head_outputs, queries.len());
        attention.attend(compute, store, keys.count, e.cursor.page * e.vectors.per_page(), queries, outputs);
        if self.scores_attention(e.group, layer) {
            e.mass.resize(keys.count, 0.0);
            // The padding vector, which comes last, queries once for each of its positions.
            let padding_query = if has_padding { layout.heads * layout.head_dim } else { 0 };
            let (own, padding) = queries.split_at(queries.len() - padding_query);
            let mut padding_mass = vec![0.0; keys.count];
            self.encoder.add_mass(compute, layout, store, own, &mut e.mass);
            self.encoder.add_mass(compute, layout, store, padding, &mut padding_mass);
            e.mass.iter_mut().zip(padding_mass).for_each(|(mass, padding)| *mass += padding_positions as f32 * padding);
        }
        Ok(())
    }

    /// Returns true if the pooling after `layer` scores vectors by the attention weight that they receive there.
    pub(super) fn scores_attention(&self, group: usize, layer: usize) -> bool {
        let group = &self.plan.groups[group];
        let by_attention = matches!(self.scorers.first(), Some(Scorer::Attention));
        by_attention && group.factor.is_some() && layer + 1 == group.end
    }

    /// At the end of the first group, sets the vector of each position, and appends the padding's if it has one.
    pub(super) fn index_positions(
        &self,
        e: &mut PyramidionEncoding,
        group: &LayerGroup,
        work: &mut Work,
    ) -> Result<()> {
        if e.group > 0 {
            return Ok(());
        }
        let distinct = e.distinct_vectors();
        e.index_positions(group.block.is_some(), distinct as u32);
        if group.block.is_some() && distinct < e.first_length() {
            let padding = self.padding_vector(group, work)?;
            e.vectors.extend(1)?;
            let per_page = e.vectors.per_page();
            let page = e.vectors.page_mut(distinct / per_page)?;
            page[distinct % per_page * padding.len()..].copy_from_slice(&padding);
        }
        Ok(())
    }

    /// Returns the vector of a block of padding after the first group: (D). All keys of such a block are equal, so the vector is
    /// the same in every document and at every position; it is computed once.
    fn padding_vector(&self, group: &LayerGroup, work: &mut Work) -> Result<Arc<[f32]>> {
        let mut cached = self.padding.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(padding) = &*cached {
            return Ok(padding.clone());
        }
        let block = group.block_len();
        let layout = self.encoder.store(block);
        let compute = &self.decoder.compute;
        let mut x = vec![0.0; self.decoder.head.inputs()];
        let mut store = vec![0.0; layout.floats()];
        work.show(EncoderHookPoint::Padding(None), 0, &x);
        for layer in group.first..group.end {
            self.encoder.project(compute, layer, &x, &mut work.encoder, |_, keys, values| {
                (0..block).for_each(|index| layout.write(&mut store, index, keys, values));
            });
            let outputs = sized(&mut work.encoder.head_outputs, work.encoder.queries.len());
            attend_dense(compute, layout, &store, block, &work.encoder.queries, outputs);
            self.encoder.finish(compute, layer, &mut x, &mut work.encoder);
            work.show(EncoderHookPoint::Padding(Some(layer)), 0, &x);
        }
        let padding: Arc<[f32]> = x.into();
        *cached = Some(padding.clone());
        Ok(padding)
    }

    /// Writes a page of the encoder's output to `work.x`: (vectors, D).
    pub(super) fn gather_encoded(&self, e: &PyramidionEncoding, work: &mut Work) {
        let page = e.cursor.page;
        let per_page = e.vectors.per_page();
        work.x.clear();
        match &e.unpooled {
            None => work.x.extend_from_slice(e.vectors.page(page)),
            Some(UnpooledVectors { vectors, index }) => {
                let factor = e.plan.total_factor();
                for (position, &vector) in index.iter().enumerate().skip(page * per_page).take(per_page) {
                    let pooled = e.vectors.vector(position / factor);
                    work.x.extend(vectors.vector(vector as usize).iter().zip(pooled).map(|(a, b)| a + b));
                }
            }
        }
        if let Some(norm) = &self.encoder_norm {
            layer_norm(&self.decoder.compute, &mut work.x, norm);
        }
        let Work { hook, x, .. } = work;
        if let Some(hook) = hook {
            hook(EncoderHookPoint::Encoded, page * per_page, x);
        }
    }

    /// Returns the document's memory, with `vectors` positions reserved.
    pub(super) fn reserve_memory<'a>(
        &self,
        memory: &'a mut Option<KvCache>,
        vectors: usize,
    ) -> Result<&'a mut KvCache> {
        match memory {
            Some(memory) => Ok(memory),
            empty => {
                let mut memory = KvCache::new(self.decoder.stack.layout, self.decoder.pages.clone());
                memory.reserve(vectors)?;
                Ok(empty.insert(memory))
            }
        }
    }

    /// Creates an empty list of vectors, with `per_page` of them a page.
    pub(super) fn new_vectors(&self, per_page: usize) -> PagedVectors {
        PagedVectors::new(self.decoder.pages.clone(), self.decoder.head.inputs(), per_page)
    }
}
