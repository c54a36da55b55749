//! Conformance suite: properties of every model of every family, checked on each entry of [`configurations`].
//!
//! A new configuration is one more line in that table. A family without a configuration fails. `WEIR_CONFIGURATION=TEXT` runs those
//! whose name contains the text.

mod caching;
mod forks;
mod replay_starts;
mod resumed_texts;
mod speculation;

use super::hourglass::shapes;
use super::support::{
    Alone, BATCH_TOLERANCE, CASES, Dice, HNET_CASES, LSLM_CASES, difference, fixture_in, full, hnet_in, lslm_in,
    settings, storms,
};
use super::{decoder_shapes, lex};
use std::sync::Arc;
use weir::{
    decode::contract::{BoundaryMode, BoundaryOptions, Model, Noise, SequenceRow, StepStatus, Want, advance},
    engine::cache::{Capacity, Hit, Key, SegmentCache},
    family::load::{FAMILIES, load},
    kernels::Dtype,
};

/// Length of a test text in symbols: several pages of keys and a partly filled last page.
const SYMBOLS: usize = 150;

/// A model under test with its boundary options.
pub(super) struct Configuration {
    pub(super) name: String,
    pub(super) model: Arc<dyn Model>,
    boundaries: BoundaryOptions,
}

pub(super) fn configurations() -> Vec<Configuration> {
    let shapes = shapes().into_iter().map(|(name, model)| (name, model.clone()));
    let fixtures = CASES
        .iter()
        .flat_map(|case| Dtype::ALL.map(|dtype| (format!("{case}, {}", dtype.name()), fixture_in(case, dtype))));
    let latent = LSLM_CASES
        .iter()
        .flat_map(|case| Dtype::ALL.map(|dtype| (format!("lslm {case}, {}", dtype.name()), lslm_in(case, dtype))));
    let unusual = super::lslm::shapes::shapes()
        .iter()
        .map(|(name, folder)| (format!("lslm {name}"), load(folder, &settings()).unwrap()));
    let official = lex::CASES.iter().map(|case| ((*case).to_string(), lex::model(case, Dtype::F32)));
    let fewer_bits = ["xpos_bca", "xpos_full", "alibi_bca", "xpos_sliding"].into_iter().flat_map(|case| {
        [Dtype::Bf16, Dtype::Int8, Dtype::Int4]
            .map(|dtype| (format!("{case}, {}", dtype.name()), lex::model(case, dtype)))
    });
    let chunking = HNET_CASES.iter().map(|case| (*case, Dtype::F32));
    let chunking = chunking.chain([Dtype::Bf16, Dtype::Int8, Dtype::Int4].map(|dtype| ("two_stage", dtype)));
    let chunking = chunking.map(|(case, dtype)| (format!("hnet {case}, {}", dtype.name()), hnet_in(case, dtype)));
    let latent = latent.chain(unusual).chain(chunking);
    let decoders = official.chain(fewer_bits).chain(decoder_shapes::shapes());
    let mut all = Vec::new();
    #[cfg(feature = "candle")]
    let decoders = decoders.chain(super::hugging_face::configurations());
    let encoder_decoders = super::pyramidion::single_document::shapes().into_iter().chain(super::t5::shapes());
    for (name, model) in fixtures.chain(shapes).chain(latent).chain(decoders).chain(encoder_decoders) {
        for &mode in &model.card().boundary_modes.clone() {
            if mode == BoundaryMode::Predictor {
                // Prompts are segmented as in the other mode.
                continue;
            }
            let boundaries = BoundaryOptions { mode: Some(mode), noise: Noise::Seeded(7), offset: 0 };
            let name = format!("{name}, {}", mode.name());
            all.push(Configuration { name, model: model.clone(), boundaries });
        }
    }
    all
}

/// Runs a test on each configuration and checks that no memory leaks.
fn on_each(test: impl Fn(&Configuration, &mut Dice)) {
    let rounds = if storms() { 3 } else { 1 };
    for round in 0..rounds {
        let chosen = std::env::var("WEIR_CONFIGURATION").unwrap_or_default();
        let configurations = configurations().into_iter().filter(|configuration| configuration.name.contains(&chosen));
        for (index, configuration) in configurations.enumerate() {
            let configuration = &configuration;
            test(configuration, &mut Dice::new(round * 1000 + index as u64 + 1));
            let memory = configuration.model.memory();
            assert_eq!(memory.in_use, 0, "{}: pages leaked", configuration.name);
        }
    }
}

impl Configuration {
    /// Largest difference between two logits of the same symbols: none, unless the model's card states another.
    fn tolerance(&self) -> f32 {
        self.model.card().exactness.tolerance().unwrap_or(BATCH_TOLERANCE)
    }

    /// Symbols between two lengths from which a cached state of a model without segments can continue.
    fn resume_step(&self) -> usize {
        if self.model.card().family == "hugging-face" { 64 } else { 1 }
    }

    fn text(&self, dice: &mut Dice) -> Vec<u32> {
        dice.text(SYMBOLS, self.model.card().vocabulary.len())
    }

    fn alone(&self) -> Alone<'_> {
        Alone::new(&*self.model, self.boundaries.clone())
    }
}

#[test]
fn every_family_is_under_the_suite() {
    let names: Vec<_> = configurations().iter().map(|configuration| configuration.model.card().family).collect();
    for (family, _) in FAMILIES {
        assert!(names.contains(family), "{family} has no configuration in the conformance suite");
    }
}

#[test]
fn full_incremental_and_chunked_agree() {
    on_each(|configuration, dice| {
        let text = configuration.text(dice);
        let complete = full(&*configuration.model, &text, &configuration.boundaries);
        for round in 0..4 {
            let mut alone = configuration.alone();
            let mut logits = Vec::new();
            let mut marks = Vec::new();
            let mut position = 0;
            while position < text.len() {
                let size = if round == 0 { 1 } else { (1 + dice.below(60)).min(text.len() - position) };
                let step = alone.feed(&text[position..position + size]);
                logits.extend(step.0);
                marks.extend(step.1);
                position += size;
            }
            let max_error = difference(&logits, &complete.0);
            assert!(max_error <= configuration.tolerance(), "{}: {max_error}", configuration.name);
            assert_eq!(marks, complete.1, "{}", configuration.name);
        }
    });
}

#[test]
fn a_row_in_a_batch_has_the_logits_it_has_alone() {
    on_each(|configuration, dice| {
        let model = &*configuration.model;
        let texts: Vec<Vec<u32>> = (0..7).map(|_| configuration.text(dice)).collect();
        let alone: Vec<_> = texts.iter().map(|text| full(model, text, &configuration.boundaries)).collect();
        let mut scratch = model.scratch();
        let new_row = || SequenceRow::new(model.begin(configuration.boundaries.clone()).unwrap());
        let mut rows: Vec<SequenceRow> = texts.iter().map(|_| new_row()).collect();
        let mut batched: Vec<(Vec<f32>, Vec<_>)> = vec![Default::default(); texts.len()];
        // The batch is ragged: any rows in any order, each with any number of symbols.
        while batched.iter().zip(&texts).any(|(batched, text)| batched.1.len() < text.len()) {
            let mut selected = Vec::new();
            for _ in 0..1 + dice.below(texts.len()) {
                let row = dice.below(texts.len());
                let position = batched[row].1.len();
                if !selected.contains(&row) && position < texts[row].len() {
                    let size = if dice.below(3) > 0 { 1 } else { 1 + dice.below(20) };
                    rows[row].set(&texts[row][position..(position + size).min(texts[row].len())], Want::All);
                    selected.push(row);
                }
            }
            if selected.is_empty() {
                continue;
            }
            advance(model, &mut rows, &selected, &mut scratch).unwrap();
            for row in selected {
                batched[row].0.extend_from_slice(&rows[row].logits);
                batched[row].1.extend_from_slice(&rows[row].decisions);
            }
        }
        for (batched, alone) in batched.iter().zip(&alone) {
            let max_error = difference(&batched.0, &alone.0);
            assert!(max_error <= configuration.tolerance(), "{}: {max_error}", configuration.name);
            assert_eq!(batched.1, alone.1, "{}", configuration.name);
        }
    });
}

#[test]
fn segment_and_finish_steps_may_be_delayed() {
    on_each(|configuration, dice| {
        let model = &*configuration.model;
        let texts: Vec<Vec<u32>> = (0..4).map(|_| configuration.text(dice)).collect();
        let alone: Vec<_> = texts.iter().map(|text| full(model, text, &configuration.boundaries)).collect();
        let mut scratch = model.scratch();
        let new_row = || SequenceRow::new(model.begin(configuration.boundaries.clone()).unwrap());
        let mut rows: Vec<SequenceRow> = texts.iter().map(|_| new_row()).collect();
        let mut delayed = vec![Vec::new(); rows.len()];
        let mut fed = vec![0; rows.len()];
        while delayed.iter().zip(&alone).any(|(delayed, alone)| delayed.len() < alone.0.len()) {
            // Each kind of step runs for some rows, independent of their status.
            let mut random_rows = || (0..texts.len()).filter(|_| dice.below(3) > 0).collect::<Vec<_>>();
            let feedable = random_rows();
            let closing = random_rows();
            let finishing = random_rows();
            let ready = |row: &usize| rows[*row].status == StepStatus::Ready && fed[*row] < SYMBOLS;
            let feedable: Vec<_> = feedable.into_iter().filter(ready).collect();
            for &row in &feedable {
                let size = if dice.below(3) > 0 { 1 } else { 1 + dice.below(20) };
                let end = (fed[row] + size).min(SYMBOLS);
                rows[row].set(&texts[row][fed[row]..end], Want::All);
                fed[row] = end;
            }
            model.symbol_step(&mut rows, &feedable, &mut scratch).unwrap();
            assert!(feedable.iter().all(|&row| rows[row].status != StepStatus::Ready), "{}", configuration.name);
            let before: Vec<_> = rows.iter().map(|row| row.status).collect();
            model.segment_step(&mut rows, &closing, &mut scratch).unwrap();
            for (row, &before) in before.iter().enumerate() {
                let advanced = before == StepStatus::Waiting && closing.contains(&row);
                assert_eq!(rows[row].status, if advanced { StepStatus::Unfinished } else { before });
            }
            let before: Vec<_> = rows.iter().map(|row| row.status).collect();
            model.finish_step(&mut rows, &finishing, &mut scratch).unwrap();
            for (row, &before) in before.iter().enumerate() {
                let advanced = before == StepStatus::Unfinished && finishing.contains(&row);
                assert_eq!(rows[row].status, if advanced { StepStatus::Ready } else { before });
                if advanced {
                    delayed[row].extend_from_slice(&rows[row].logits);
                }
            }
        }
        for (delayed, alone) in delayed.iter().zip(&alone) {
            assert!(difference(delayed, &alone.0) <= configuration.tolerance(), "{}", configuration.name);
        }
    });
}

#[test]
fn later_symbols_do_not_leak() {
    on_each(|configuration, dice| {
        let text = configuration.text(dice);
        let symbols = configuration.model.card().vocabulary.len();
        let complete = full(&*configuration.model, &text, &configuration.boundaries);
        for _ in 0..4 {
            let cut = 1 + dice.below(SYMBOLS - 1);
            let mut other = text.clone();
            other[cut..].iter_mut().for_each(|symbol| *symbol = dice.below(symbols) as u32);
            let changed = full(&*configuration.model, &other, &configuration.boundaries);
            let max_error = difference(&changed.0[..cut * symbols], &complete.0[..cut * symbols]);
            assert!(max_error <= configuration.tolerance(), "{} at {cut}: {max_error}", configuration.name);
            assert_eq!(changed.1[..cut], complete.1[..cut]);
        }
    });
}

#[test]
fn sizes_add_up() {
    on_each(|configuration, dice| {
        let text = configuration.text(dice);
        let model = &*configuration.model;
        let mut alone = configuration.alone();
        alone.feed(&text);
        let alone_bytes = model.memory().in_use;
        assert!(alone_bytes > 0);
        assert!(alone_bytes <= model.bytes_for(SYMBOLS), "{}: {alone_bytes}", configuration.name);
        assert!(alone_bytes <= alone.rows[0].state.bytes(), "{}", configuration.name);
        let forks: Vec<_> = (0..5).map(|_| alone.rows[0].state.fork()).collect();
        assert_eq!(model.memory().in_use, alone_bytes, "{}: a fork copied pages", configuration.name);
        drop(alone);
        assert_eq!(model.memory().in_use, alone_bytes, "{}: forks lost shared pages", configuration.name);
        drop(forks);
        assert_eq!(model.memory().in_use, 0);
        assert!((1..200).all(|n| model.bytes_for(n) <= model.bytes_for(n + 1)));
    });
}

#[test]
fn misuse_is_an_error() {
    on_each(|configuration, _| {
        let model = &*configuration.model;
        let symbols = model.card().vocabulary.len() as u32;
        let new_row = || SequenceRow::new(model.begin(configuration.boundaries.clone()).unwrap());
        let mut scratch = model.scratch();
        let mut step = |row: SequenceRow| advance(model, &mut [row], &[0], &mut scratch);
        assert!(step(new_row()).is_err(), "nothing to feed");
        let mut row = new_row();
        row.set(&[symbols], Want::Last);
        assert!(step(row).is_err(), "a symbol outside the vocabulary");
        let mut row = new_row();
        // Zeros cost no physical memory.
        row.feed = vec![0; model.card().max_symbols + 1];
        row.want = Want::Nothing;
        assert!(step(row).is_err(), "too many symbols");
        assert!(new_row().state.rollback(1).is_err(), "rollback beyond the end");
        let mut rows = [new_row()];
        rows[0].set(&[0], Want::Last);
        model.symbol_step(&mut rows, &[0], &mut scratch).unwrap();
        assert!(model.symbol_step(&mut rows, &[0], &mut scratch).is_err(), "fed before it is ready");
    });
}
