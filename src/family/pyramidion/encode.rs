//! The reading of a document, a block at a time. Hot path: buffers are kept in [`Work`]; pages are taken where a layer begins.
//!
//! Up to the first pooling a block of attention needs nothing behind it: a page of blocks goes through all layers, then the
//! next. Where all vectors attend to all, a layer goes over the pages twice: the first time each leaves its keys, the second
//! time it meets those of all.

use super::{
    config::PAD,
    document::PyramidionDocument,
    encoding::{Cursor, Met, PyramidionEncoding},
    load::FIRST_SINUSOID,
    model::{Pyramidion, Seen, Work},
    plan::Segment,
    score::Scores,
};
use crate::{
    decode::document::{Document, KeptVector, PoolingChoice},
    error::{Error, Result},
    kernels::{
        memory::{cast, cast_mut},
        rowwise::layer_norm,
    },
    nn::{
        Position,
        attention::cross::project_memory,
        kv_cache::KvCache,
        paged_vectors::PagedVectors,
        position::{PositionScheme, absolute::Absolute},
        sized,
        topk::pooler::PoolerInput,
    },
};
use std::{sync::Arc, time::Instant};

impl Pyramidion {
    /// Runs at most `blocks` blocks of what can run; returns how many ran.
    pub(super) fn read(&self, e: &mut PyramidionEncoding, blocks: usize, work: &mut Work) -> Result<usize> {
        let mut ran = 0;
        self.settle(e, work)?;
        while ran < blocks && e.document.is_none() && e.can_run() {
            match e.segment().cloned() {
                Some(segment) if segment.block.is_some() => self.block(e, &segment, work)?,
                Some(segment) => self.half(e, &segment, work)?,
                None => self.project_memory(e, work)?,
            }
            (ran, e.blocks) = (ran + 1, e.blocks + 1);
            self.settle(e, work)?;
        }
        Ok(ran)
    }

    /// Ends segments that have nothing left to run.
    fn settle(&self, e: &mut PyramidionEncoding, work: &mut Work) -> Result<()> {
        while e.closed
            && let Some(segment) = e.segment().cloned()
        {
            let layers = segment.end - segment.first;
            let over = match segment.block {
                _ if layers == 0 => true,
                Some(_) => {
                    e.cursor.page == if e.segment == 0 { e.own_rows().div_ceil(segment.span()) } else { e.rows.pages() }
                }
                None => e.cursor.layer == layers,
            };
            if !over {
                break;
            }
            self.end_segment(e, &segment, work)?;
        }
        Ok(())
    }

    /// A page of blocks through one layer.
    fn block(&self, e: &mut PyramidionEncoding, segment: &Segment, work: &mut Work) -> Result<()> {
        let started = Instant::now();
        let Cursor { page, layer, .. } = e.cursor;
        if e.segment == 0 && layer == 0 {
            let upto = if e.closed { e.own_rows() } else { e.tokens.len() };
            self.take_up(e, upto.min((page + 1) * segment.span()), work)?;
        }
        let block = segment.block.unwrap_or(segment.length).min(segment.length);
        let x = e.rows.page_mut(page)?;
        self.encoder.blocks(&self.decoder.compute, segment.first + layer, x, block, &mut work.encoder);
        if self.weighs(segment, layer) {
            self.encoder.block_mass(&self.decoder.compute, block, &work.encoder, &mut e.mass);
        }
        work.show(Seen::Layer(segment.first + layer), page * segment.span(), x);
        let last = segment.first + layer + 1 == segment.end;
        e.cursor =
            if last { Cursor { page: page + 1, ..Cursor::default() } } else { Cursor { layer: layer + 1, ..e.cursor } };
        e.timings[segment.first + layer].ns += elapsed(started);
        Ok(())
    }

    /// A page of vectors through one half of a layer in which all attend to all.
    fn half(&self, e: &mut PyramidionEncoding, segment: &Segment, work: &mut Work) -> Result<()> {
        let started = Instant::now();
        let (Cursor { page, layer, asking }, compute) = (e.cursor, &self.decoder.compute);
        let alike = self.alike(e);
        let pages = if e.segment == 0 {
            (e.own_rows() + usize::from(alike > 0)).div_ceil(segment.span())
        } else {
            e.rows.pages()
        };
        if asking {
            let met = e.met.as_ref().ok_or_else(|| Error::Internal("queries without keys".into()))?;
            let attention = self.encoder.attention(segment.first + layer, self.keys(e));
            let (queries, store) = (met.queries.page(page), &cast(met.store.bytes())[..attention.floats()]);
            let mixed = sized(&mut work.encoder.head_outputs, queries.len());
            attention.attend(compute, store, met.count, page * segment.span(), queries, mixed);
            if self.weighs(segment, layer) {
                let layout = self.encoder.store(self.keys(e));
                e.mass.resize(met.count, 0.0);
                // what is alike asks from many positions, and comes last
                let last =
                    queries.len() - if alike > 0 && page + 1 == pages { layout.heads * layout.head_dim } else { 0 };
                let mut of_alike = vec![0.0; met.count];
                self.encoder.add_mass(compute, layout, store, &queries[..last], &mut e.mass);
                self.encoder.add_mass(compute, layout, store, &queries[last..], &mut of_alike);
                e.mass.iter_mut().zip(of_alike).for_each(|(mass, one)| *mass += alike as f32 * one);
            }
            let x = e.rows.page_mut(page)?;
            self.encoder.finish(compute, segment.first + layer, x, &mut work.encoder);
            work.show(Seen::Layer(segment.first + layer), page * segment.span(), x);
        } else {
            if e.segment == 0 && layer == 0 {
                let upto = e.own_rows() + usize::from(alike > 0);
                self.take_up(e, upto.min((page + 1) * segment.span()), work)?;
            }
            self.meet(e, segment.first + layer, work)?;
            if page + 1 == pages {
                self.close(e, segment.first + layer)?;
            }
        }
        e.timings[segment.first + layer].ns += elapsed(started);
        e.cursor = match (page + 1 == pages, asking) {
            (false, _) => Cursor { page: page + 1, ..e.cursor },
            (true, false) => Cursor { page: 0, layer, asking: true },
            (true, true) => {
                e.met = None;
                Cursor { layer: layer + 1, ..Cursor::default() }
            }
        };
        Ok(())
    }

    /// Whether the pooling behind a segment's layer wants to know the attention that vectors got there.
    fn weighs(&self, segment: &Segment, layer: usize) -> bool {
        let asked = matches!(self.scorers.first(), Some(Scores::Attention));
        asked && segment.factor.is_some() && segment.first + layer + 1 == segment.end
    }

    /// Leaves a page's queries, keys and values.
    fn meet(&self, e: &mut PyramidionEncoding, layer: usize, work: &mut Work) -> Result<()> {
        let (page, alike, own) = (e.cursor.page, self.alike(e), e.own_rows());
        let (keys, first_segment) = (self.keys(e), e.segment == 0);
        let (attention, inner) = (self.encoder.attention(layer, keys), self.encoder.heads * self.encoder.head_dim);
        let per_page = e.rows.per_page();
        if e.met.is_none() {
            let mut store = self.decoder.pages.allocate(attention.floats() * size_of::<f32>())?;
            attention.reset(&mut cast_mut(store.bytes_mut()?)[..attention.floats()]);
            let queries = PagedVectors::new(self.decoder.pages.clone(), inner, per_page);
            e.met = Some(Met { store, count: 0, queries });
        }
        let met = e.met.as_mut().ok_or_else(|| Error::Internal("no room for keys".into()))?;
        let (x, hidden, count) = (e.rows.page(page), e.plan.hides_padding, &mut met.count);
        let store = &mut cast_mut(met.store.bytes_mut()?)[..attention.floats()];
        self.encoder.project(&self.decoder.compute, layer, x, &mut work.encoder, |row, keys, values| {
            // what is alike stands at many positions, and is met at each
            let copies = match first_segment && page * per_page + row == own {
                true if hidden => 0,
                true => alike,
                false => 1,
            };
            for _ in 0..copies {
                attention.write(store, *count, keys, values);
                *count += 1;
            }
        });
        let queries = &work.encoder.queries;
        met.queries.extend(queries.len() / inner)?;
        met.queries.page_mut(page)?.copy_from_slice(queries);
        Ok(())
    }

    /// All have left their keys.
    fn close(&self, e: &mut PyramidionEncoding, layer: usize) -> Result<()> {
        let attention = self.encoder.attention(layer, self.keys(e));
        if let Some(met) = &mut e.met {
            let store = &mut cast_mut(met.store.bytes_mut()?)[..attention.floats()];
            attention.finish_keys(&self.decoder.compute, store, met.count);
        }
        Ok(())
    }

    /// Places at which the first segment's vectors are alike, being padding; none later.
    fn alike(&self, e: &PyramidionEncoding) -> usize {
        if e.segment == 0 { e.first_length() - e.own_rows() } else { 0 }
    }

    /// Keys that a layer's vectors meet, where all meet all.
    fn keys(&self, e: &PyramidionEncoding) -> usize {
        match e.segment {
            0 if e.plan.hides_padding => e.own_rows(),
            0 => e.first_length(),
            _ => e.rows.len(),
        }
    }

    /// Embeds tokens, until there are `upto` vectors.
    fn take_up(&self, e: &mut PyramidionEncoding, upto: usize, work: &mut Work) -> Result<()> {
        let (have, dim) = (e.rows.len(), self.decoder.head.inputs());
        let full = e.plan.segments.first().is_some_and(|first| first.block.is_none());
        e.rows.extend(upto - have)?;
        work.positions.clear();
        work.taken.clear();
        let passed = |&&token: &&u32| !full || token != PAD;
        for &token in e.tokens.iter().filter(passed).skip(have).take(upto - have) {
            work.positions.push(Position { sequence: 0, index: e.counted });
            work.taken.push(token);
            e.counted += usize::from(token != PAD);
        }
        work.taken.resize(upto - have, PAD);
        work.positions.resize(upto - have, Position { sequence: 0, index: 0 });
        let (page, per_page) = (have / e.rows.per_page(), e.rows.per_page());
        let x = &mut e.rows.page_mut(page)?[(have - page * per_page) * dim..];
        let (taken, positions, compute) = (&work.taken, &work.positions, &self.decoder.compute);
        compute.pool.for_chunks(x, dim, true, &|row, x| match taken[row] {
            PAD => x.fill(0.0),
            token => {
                x.copy_from_slice(&self.decoder.embedding[token as usize * dim..][..dim]);
                self.positions.embed(x, &positions[row..=row]);
            }
        });
        work.show(Seen::Embedded, have, x);
        Ok(())
    }

    /// What follows a segment's last layer.
    fn end_segment(&self, e: &mut PyramidionEncoding, segment: &Segment, work: &mut Work) -> Result<()> {
        if e.segment == 0 {
            self.place(e, segment, work)?;
        }
        for time in &mut e.timings[segment.first..segment.end] {
            time.length = e.positions.len();
        }
        e.cursor = Cursor::default();
        e.segment += 1;
        let Some(factor) = segment.factor else { return Ok(()) };
        let started = Instant::now();
        let (from, next) = match e.plan.padded {
            true => (segment.length, e.plan.segments[e.segment].clone()),
            false => (e.positions.len().next_multiple_of(factor), e.plan.segments[e.segment].clone()),
        };
        let input = PoolerInput { vectors: &e.rows, index: &e.positions };
        // in a block of nothing but padding every query gives every key the same
        let mass = (std::mem::take(&mut e.mass), self.encoder.heads as f32);
        let scores = self.scorers.get(e.segment - 1);
        let scores = scores.map_or_else(Vec::new, |scorer| scorer.of(&input, (&mass.0, mass.1)));
        let (pool, dim) = (&self.decoder.pages, self.decoder.head.inputs());
        let make = || PagedVectors::new(pool.clone(), dim, next.span());
        let kind = self.pooling.map(|kind| if e.hard { kind.hardened() } else { kind });
        let select = kind.ok_or_else(|| "no kind of pooling".into()).and_then(|kind| kind.pooler(from, from / factor));
        let pooled = select.map_err(Error::Internal)?.pool(&input, scores, &make)?;
        // what fills up stands behind all tokens
        let origin = |place: usize| e.origins.get(place).copied().unwrap_or(e.tokens.len() + place);
        let origins: Vec<usize> = match pooled.winners.is_empty() {
            true => (0..pooled.vectors.len()).map(|window| origin(window * factor)).collect(),
            false => pooled.winners.iter().map(|&winner| origin(winner)).collect(),
        };
        if !pooled.winners.is_empty() {
            let kept = origins.iter().zip(&pooled.scores).map(|(&token, &score)| KeptVector { token, score }).collect();
            e.choices.push(PoolingChoice { layer: segment.end - 1, kept });
        }
        let before = std::mem::replace(&mut e.rows, pooled.vectors);
        e.origins = origins;
        if e.plan.upsamples && e.before.is_none() {
            e.before = Some((before, std::mem::take(&mut e.positions)));
        }
        (0..e.rows.pages())
            .for_each(|page| work.show(Seen::Pooled(segment.end - 1), page * e.rows.per_page(), e.rows.page(page)));
        if next.end > next.first {
            let whole = e.whole(&next, e.rows.len());
            e.rows.truncate(whole);
            e.origins.truncate(whole);
        }
        e.positions = (0..e.rows.len() as u32).collect();
        e.timings[segment.end - 1].ns += elapsed(started);
        Ok(())
    }

    /// Which vector stands at each place of the first segment.
    fn place(&self, e: &mut PyramidionEncoding, segment: &Segment, work: &mut Work) -> Result<()> {
        let (own, length) = (e.own_rows(), e.first_length());
        let alike = own as u32;
        if segment.block.is_some() {
            e.positions = (0..length as u32).map(|place| place.min(alike)).collect();
            if own < length {
                let padding = self.padding(segment, work)?;
                e.rows.extend(1)?;
                let (page, per_page) = (own / e.rows.per_page(), e.rows.per_page());
                e.rows.page_mut(page)?[(own - page * per_page) * padding.len()..].copy_from_slice(&padding);
            }
        } else {
            let mut next = 0..alike;
            let mut place = |at: usize| match e.tokens.get(at) {
                Some(&token) if token != PAD => next.next().unwrap_or(alike),
                _ => alike,
            };
            e.positions = (0..length).map(&mut place).collect();
        }
        e.origins = (0..length).collect();
        Ok(())
    }

    /// The decoder's keys and values of a page of vectors; after the last one, the document.
    fn project_memory(&self, e: &mut PyramidionEncoding, work: &mut Work) -> Result<()> {
        let started = Instant::now();
        let (page, per_page, stack) = (e.cursor.page, e.rows.per_page(), &self.decoder.stack);
        let vectors = e.before.as_ref().map_or(e.positions.len(), |(_, positions)| positions.len());
        self.collect(e, work)?;
        let memory = match &mut e.memory {
            Some(memory) => memory,
            empty => {
                let mut memory = KvCache::new(stack.layout, self.decoder.pages.clone());
                memory.reserve(vectors)?;
                empty.insert(memory)
            }
        };
        let (first, rows) = (page * per_page, if e.before.is_some() { vectors } else { e.rows.len() });
        // what is alike comes last, and stands at all positions that are left
        let positions =
            |row: usize| if first + row + 1 == rows { first + row..vectors } else { first + row..first + row + 1 };

        project_memory(
            &self.decoder.compute,
            &stack.layers,
            &work.x,
            &mut work.both,
            &mut work.encoder.quantized,
            |layer, row, keys, values| positions(row).try_for_each(|place| memory.write(layer, place, keys, values)),
        )?;
        e.cursor.page += 1;
        e.memory_ns += elapsed(started);
        if e.cursor.page == rows.div_ceil(per_page) {
            memory.advance(vectors);
            self.end(e);
        }
        Ok(())
    }

    /// `work.x` (rows, D) = a page of what the decoder is to attend to.
    fn collect(&self, e: &PyramidionEncoding, work: &mut Work) -> Result<()> {
        let (page, per_page) = (e.cursor.page, e.rows.per_page());
        work.x.clear();
        match &e.before {
            None => work.x.extend_from_slice(e.rows.page(page)),
            Some((before, positions)) => {
                let stride: usize = e.plan.segments.iter().filter_map(|segment| segment.factor).product();
                for (place, &row) in positions.iter().enumerate().skip(page * per_page).take(per_page) {
                    let sum = before.vector(row as usize).iter().zip(e.rows.vector(place / stride)).map(|(a, b)| a + b);
                    work.x.extend(sum);
                }
            }
        }
        if let Some(parameters) = &self.encoder_norm {
            layer_norm(&self.decoder.compute, &mut work.x, parameters);
        }
        let Work { watcher, x, .. } = work;
        if let Some(watcher) = watcher {
            watcher(Seen::Encoded, page * per_page, x);
        }
        Ok(())
    }

    /// The document is done; what it was made of goes.
    fn end(&self, e: &mut PyramidionEncoding) {
        let Some(memory) = e.memory.take() else { return };
        let unpooled = if e.plan.padded { e.plan.segments[0].length } else { e.tokens.len() };
        e.rows.truncate(0);
        e.before = None;
        (e.positions, e.origins) = (Vec::new(), Vec::new());
        let document = PyramidionDocument {
            tokens: e.tokens.len(),
            unpooled_bytes: memory.layout().bytes_for(unpooled),
            memory,
            choices: std::mem::take(&mut e.choices),
            timings: std::mem::take(&mut e.timings),
            memory_ns: e.memory_ns,
        };
        e.document = Some(Arc::new(document) as Arc<dyn Document>);
    }
}

/// fairseq's positions for an encoder.
pub(super) fn positions(frequencies: Vec<f32>) -> PositionScheme {
    PositionScheme::Absolute(Absolute::Sinusoidal { frequencies, first: FIRST_SINUSOID })
}

fn elapsed(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
