//! Conformance suite: properties of every model of every family, checked on each entry of [`configurations`].
//!
//! A new configuration is one more line in that table. A family without a configuration fails. `WEIR_CONFIGURATION=TEXT` runs those
//! whose name contains the text.

use crate::support::{BATCH_TOLERANCE, settings};
use crate::*;
use std::ops::Range;
use std::sync::{PoisonError, TryLockError, atomic::Ordering::Relaxed};
use weir::engine::cache::{Capacity, Hit, Key, SegmentCache};
use weir::engine::constraint::{CompiledConstraint, Constraint, ConstraintCompiler};
use weir::engine::speculation::{DraftBudget, GuessRates, MAX_DRAFT, Speculation};
use weir::models::contract::{Exactness, ReplayStart};
use weir::models::load::FAMILIES;
use weir::models::nn::window::ROLLBACK;

/// Length of a test text in symbols: several pages of keys and a partly filled last page.
const SYMBOLS: usize = 150;

/// A model under test with its boundary options.
pub(crate) struct Configuration {
    pub(crate) name: String,
    pub(crate) model: Arc<dyn Model>,
    boundaries: BoundaryOptions,
}

/// Returns the configurations of each model.
fn configurations() -> Vec<Vec<Configuration>> {
    const FEWER_BITS: [Dtype; 3] = [Dtype::Bf16, Dtype::Int8, Dtype::Int4];
    let golden: [(&str, &[&str], &[Dtype]); 9] = [
        ("dynamic-pooling", &CASES, &Dtype::ALL),
        ("lslm", &LSLM_CASES, &Dtype::ALL),
        ("hnet", &HNET_CASES, &[Dtype::F32]),
        ("hnet", &["two_stage"], &FEWER_BITS),
        ("torchscale", &decoder::CASES, &[Dtype::F32]),
        ("torchscale", &["xpos_bca", "xpos_full", "alibi_bca", "xpos_sliding"], &FEWER_BITS),
        ("hugging-face", &hugging_face::MODEL_TYPES, &[Dtype::F32]),
        ("blt", &BLT_CASES, &[Dtype::F32]),
        ("blt", &["base", "widths", "windows"], &FEWER_BITS),
    ];
    let golden = golden.into_iter().flat_map(|(folder, cases, dtypes)| {
        let all = cases.iter().flat_map(move |case| dtypes.iter().map(move |&dtype| (case, dtype)));
        all.map(move |(case, dtype)| (format!("{folder} {case}, {}", dtype.name()), model_of(folder, case, dtype)))
    });
    let latent =
        lslm::shapes().iter().map(|(name, folder)| (format!("lslm {name}"), load(folder, &settings()).unwrap()));
    let decoders = hourglass::shapes().into_iter().chain(latent).chain(decoder::shapes());
    let encoder_decoders = pyramidion::shapes().into_iter().chain(t5::shapes());
    let models = golden.chain(decoders).chain(encoder_decoders);
    let modes = |(name, model): (String, Arc<dyn Model>)| {
        let mut all = Vec::new();
        for &mode in &model.card().boundary_modes {
            if mode == BoundaryMode::Predictor {
                // Prompts are segmented as in the other mode.
                continue;
            }
            let boundaries = BoundaryOptions { mode: Some(mode), noise: Noise::Seeded(7), offset: 0, threshold: None };
            let name = format!("{name}, {}", mode.name());
            all.push(Configuration { name, model: model.clone(), boundaries });
        }
        all
    };
    models.map(modes).collect()
}

/// Runs a test on each configuration and checks that no memory leaks. Tests share the models, which are loaded once. Because each test
/// checks a model's memory, it has the model for itself, and goes on with another one while a model is in use.
pub(crate) fn on_each(test: impl Fn(&Configuration, &mut Random)) {
    static ALL: LazyLock<Vec<Mutex<Vec<Configuration>>>> =
        LazyLock::new(|| configurations().into_iter().map(Mutex::new).collect());
    let chosen = std::env::var("WEIR_CONFIGURATION").unwrap_or_default();
    let is_free = |(_, model): &(usize, &Mutex<_>)| !matches!(model.try_lock(), Err(TryLockError::WouldBlock));
    let rounds = if long_runs() { 3 } else { 1 };
    for round in 0..rounds {
        let mut left: Vec<_> = ALL.iter().enumerate().collect();
        while !left.is_empty() {
            let (index, model) = left.remove(left.iter().position(is_free).unwrap_or(0));
            let configurations = model.lock().unwrap_or_else(PoisonError::into_inner);
            for configuration in configurations.iter().filter(|configuration| configuration.name.contains(&chosen)) {
                test(configuration, &mut Random::new(round * 1000 + index as u64 + 1));
                let memory = configuration.model.memory();
                assert_eq!(memory.in_use, 0, "{}: pages leaked", configuration.name);
            }
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

    fn text(&self, rng: &mut Random) -> Vec<u32> {
        rng.text(SYMBOLS, self.model.card().vocabulary.len())
    }

    fn alone(&self) -> Alone<'_> {
        Alone::new(&*self.model, self.boundaries.clone())
    }

    fn row(&self) -> SequenceRow {
        SequenceRow::new(self.model.begin(self.boundaries.clone()).unwrap())
    }

    /// Returns a sequence with this state.
    fn with(&self, state: Box<dyn State>) -> Alone<'_> {
        Alone::from(&*self.model, SequenceRow::new(state))
    }

    /// Checks that logits equal a run's that is known to be right.
    #[track_caller]
    fn check(&self, actual: &[f32], expected: &[f32], context: &str) {
        let max_error = difference(actual, expected);
        assert!(max_error <= self.tolerance(), "{}: {context}: {max_error}", self.name);
    }

    /// Feeds symbols in one step. Checks that it takes no more memory than announced, whatever forks share.
    fn feed(&self, alone: &mut Alone<'_>, symbols: &[u32]) -> (Vec<f32>, Vec<SymbolBoundary>) {
        let feed = |row: &mut Alone<'_>, want| {
            let before = self.model.memory().in_use;
            let announced = self.model.growth(&*row.rows[0].state, symbols.len());
            let fed = row.feed_for(symbols, want);
            let taken = self.model.memory().in_use.saturating_sub(before);
            assert!(taken <= announced, "{}: {taken} bytes, announced {announced}, {want:?}", self.name);
            fed
        };
        feed(&mut Alone::from(&*self.model, SequenceRow::new(alone.rows[0].state.fork())), Want::Nothing);
        let fed = feed(alone, Want::All);
        let state = &alone.rows[0].state;
        assert!(state.bytes() <= self.model.bytes_for(state.len()), "{}", self.name);
        fed
    }

    /// Generates in chunks of 16 symbols.
    fn generate(&self, request: Generate) -> Output {
        let mut emitted = Vec::new();
        let session = Session::generate(request, self.model.card()).unwrap();
        let mut emit = |symbols: Vec<_>| {
            emitted.extend(symbols);
            Ok(())
        };
        let (reason, usage) = session.run(&*self.model, 16, &mut emit).unwrap();
        (emitted, reason, usage)
    }
}

#[test]
fn every_family_is_under_the_suite() {
    let names = Mutex::new(BTreeSet::new());
    on_each(|configuration, _| {
        names.lock().unwrap().insert(configuration.model.card().family);
    });
    let names = names.into_inner().unwrap();
    let missing = FAMILIES.iter().find(|(family, _)| !names.contains(family)).map(|(family, _)| family);
    assert!(std::env::var_os("WEIR_CONFIGURATION").is_some() || missing.is_none(), "{missing:?} has no configuration");
}

#[test]
fn full_incremental_and_chunked_agree() {
    on_each(|configuration, rng| {
        let text = configuration.text(rng);
        let complete = full(&*configuration.model, &text, &configuration.boundaries);
        for round in 0..4 {
            let mut alone = configuration.alone();
            let mut logits = Vec::new();
            let mut marks = Vec::new();
            let mut position = 0;
            while position < text.len() {
                let size = if round == 0 { 1 } else { (1 + rng.below(60)).min(text.len() - position) };
                let step = configuration.feed(&mut alone, &text[position..position + size]);
                logits.extend(step.0);
                marks.extend(step.1);
                position += size;
            }
            configuration.check(&logits, &complete.0, "in chunks");
            assert_eq!(marks, complete.1, "{}", configuration.name);
        }
    });
}

/// Feeds each text to its row in ragged batches: any rows in any order, each with any number of symbols.
pub(crate) fn batched(
    model: &dyn Model,
    mut rows: Vec<SequenceRow>,
    texts: &[Vec<u32>],
    rng: &mut Random,
) -> Vec<(Vec<f32>, Vec<SymbolBoundary>)> {
    let mut scratch = model.scratch();
    let mut batched: Vec<(Vec<f32>, Vec<_>)> = vec![Default::default(); texts.len()];
    while batched.iter().zip(texts).any(|(batched, text)| batched.1.len() < text.len()) {
        let mut selected = Vec::new();
        for _ in 0..1 + rng.below(texts.len()) {
            let row = rng.below(texts.len());
            let position = batched[row].1.len();
            if !selected.contains(&row) && position < texts[row].len() {
                let size = if rng.below(3) > 0 { 1 } else { 1 + rng.below(20) };
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
    batched
}

#[test]
fn a_row_in_a_batch_has_the_logits_it_has_alone() {
    on_each(|configuration, rng| {
        let model = &*configuration.model;
        let texts: Vec<Vec<u32>> = (0..7).map(|_| configuration.text(rng)).collect();
        let rows = texts.iter().map(|_| configuration.row()).collect();
        for (text, batched) in texts.iter().zip(batched(model, rows, &texts, rng)) {
            let alone = full(model, text, &configuration.boundaries);
            configuration.check(&batched.0, &alone.0, "in a batch");
            assert_eq!(batched.1, alone.1, "{}", configuration.name);
        }
    });
}

#[test]
fn segment_and_finish_steps_may_be_delayed() {
    on_each(|configuration, rng| {
        let model = &*configuration.model;
        let texts: Vec<Vec<u32>> = (0..4).map(|_| configuration.text(rng)).collect();
        let alone: Vec<_> = texts.iter().map(|text| full(model, text, &configuration.boundaries)).collect();
        let mut scratch = model.scratch();
        let mut rows: Vec<SequenceRow> = texts.iter().map(|_| configuration.row()).collect();
        let mut delayed = vec![Vec::new(); rows.len()];
        let mut fed = vec![0; rows.len()];
        while delayed.iter().zip(&alone).any(|(delayed, alone)| delayed.len() < alone.0.len()) {
            // Each kind of step runs for some rows, independent of their status.
            let mut random_rows = || (0..texts.len()).filter(|_| rng.below(3) > 0).collect::<Vec<_>>();
            let feedable = random_rows();
            let closing = random_rows();
            let finishing = random_rows();
            let ready = |row: &usize| rows[*row].status == StepStatus::Ready && fed[*row] < SYMBOLS;
            let feedable: Vec<_> = feedable.into_iter().filter(ready).collect();
            for &row in &feedable {
                let size = if rng.below(3) > 0 { 1 } else { 1 + rng.below(20) };
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
            configuration.check(delayed, &alone.0, "delayed");
        }
    });
}

#[test]
fn later_symbols_do_not_leak() {
    on_each(|configuration, rng| {
        let text = configuration.text(rng);
        let symbols = configuration.model.card().vocabulary.len();
        let complete = full(&*configuration.model, &text, &configuration.boundaries);
        for _ in 0..4 {
            let cut = 1 + rng.below(SYMBOLS - 1);
            let mut other = text.clone();
            other[cut..].iter_mut().for_each(|symbol| *symbol = rng.below(symbols) as u32);
            let changed = full(&*configuration.model, &other, &configuration.boundaries);
            configuration.check(&changed.0[..cut * symbols], &complete.0[..cut * symbols], &format!("at {cut}"));
            assert_eq!(changed.1[..cut], complete.1[..cut]);
        }
    });
}

#[test]
fn sizes_add_up() {
    on_each(|configuration, rng| {
        let text = configuration.text(rng);
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
        let new_row = || configuration.row();
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

/// Returns the length of the common prefix of two texts.
fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[test]
fn a_cached_state_equals_a_cold_run() {
    on_each(|configuration, rng| {
        let model = &*configuration.model;
        let key = Key::for_sequence(&"somebody".into(), &configuration.boundaries, model.card()).unwrap();
        let mut cache = SegmentCache::new(Capacity::with_bytes(1 << 30));
        let symbols = model.card().vocabulary.len();
        let mut texts = vec![configuration.text(rng)];
        // Each text has the shortest length to which its state can be rolled back.
        let mut kept: Vec<(Vec<u32>, usize)> = Vec::new();
        for round in 0..10 {
            // The text is a prefix of a known text, followed by other symbols.
            let mut text = texts[rng.below(texts.len())].clone();
            if round > 0 {
                let cut = rng.below(text.len());
                let more = 1 + rng.below(60);
                let other = rng.text(more, symbols);
                text.splice(cut.., other);
            }
            let fresh = full(model, &text, &configuration.boundaries);
            let (mut alone, from) = match cache.find(&key, &text[..text.len() - 1]).unwrap() {
                Some(Hit { state, len }) => (configuration.with(state), len),
                None => (configuration.alone(), 0),
            };
            assert_eq!(alone.rows[0].state.len(), from);
            // The expected length is the longest prefix shared with an earlier text, up to the end of a segment.
            let ends = |&position: &usize| match model.card().pooled {
                true => position == 0 || fresh.1[position - 1].boundary,
                false => position.is_multiple_of(configuration.resume_step()),
            };
            let serves = |(known, earliest): &(Vec<u32>, usize)| {
                let shared = common_prefix(known, &text[..text.len() - 1]);
                // Positions that the windows have dropped are not available.
                (0..=shared).rev().find(ends).filter(|position| position >= earliest).unwrap_or(0)
            };
            assert_eq!(from, kept.iter().map(serves).max().unwrap_or(0), "{}", configuration.name);
            let actual = alone.feed(&text[from..]);
            configuration.check(&actual.0, &fresh.0[from * symbols..], &format!("from {from}"));
            assert_eq!(actual.1, fresh.1[from..], "{}", configuration.name);
            cache.keep(&key, &text, &*alone.rows[0].state).unwrap();
            kept.push((text.clone(), alone.rows[0].state.earliest()));
            texts.push(text);
        }
        let held = cache.usage().page_bytes;
        assert_eq!(held, model.memory().in_use, "{}: pages are not counted exactly once", configuration.name);
        assert_eq!(cache.evictable_bytes(), held, "{}: a page is used outside the cache", configuration.name);
        assert_eq!(std::iter::from_fn(|| cache.evict()).sum::<usize>(), held, "{}", configuration.name);
    });
}

#[test]
fn a_fork_excludes_symbols_in_flight() {
    on_each(|configuration, rng| {
        let model = &*configuration.model;
        let text = configuration.text(rng);
        let complete = full(model, &text, &configuration.boundaries).0;
        let symbols = model.card().vocabulary.len();
        for _ in 0..if long_runs() { 4 } else { 2 } {
            let cut = rng.below(100);
            let more = 1 + rng.below(40);
            let mut main = configuration.alone();
            if cut > 0 {
                main.feed(&text[..cut]);
            }
            main.rows[0].set(&text[cut..cut + more], Want::All);
            model.symbol_step(&mut main.rows, &[0], &mut main.scratch).unwrap();
            let mut steps = 0;
            // The rollback happens once before the segment step and once before the finish step.
            while main.rows[0].status != StepStatus::Ready {
                assert!(main.rows[0].state.rollback(cut).is_err(), "{}: rolled back in flight", configuration.name);
                let mut fork = configuration.with(main.rows[0].state.fork());
                assert_eq!(
                    fork.rows[0].state.len(),
                    cut,
                    "{}: the fork includes symbols in flight",
                    configuration.name
                );
                let actual: Vec<f32> = text[cut..].iter().flat_map(|&symbol| fork.feed(&[symbol]).0).collect();
                configuration.check(&actual, &complete[cut * symbols..], "fork");
                if steps == 0 {
                    model.segment_step(&mut main.rows, &[0], &mut main.scratch).unwrap();
                } else {
                    model.finish_step(&mut main.rows, &[0], &mut main.scratch).unwrap();
                }
                steps += 1;
            }
            let actual = &main.rows[0].logits;
            configuration.check(actual, &complete[cut * symbols..(cut + more) * symbols], "after forks");
        }
    });
}

#[test]
fn forks_and_rollbacks_equal_a_fresh_run() {
    on_each(|configuration, rng| {
        let text = configuration.text(rng);
        let model = &*configuration.model;
        let mut main = configuration.alone();
        let mut history: Vec<u32> = Vec::new();
        let mut furthest = 0;
        for _ in 0..if long_runs() { 12 } else { 6 } {
            // Rolls back to any available position, then feeds other text in one chunk or symbol by symbol.
            let len = history.len();
            let earliest = main.rows[0].state.earliest();
            furthest = furthest.max(len);
            assert!(earliest == 0 || earliest + ROLLBACK <= furthest, "{}: {earliest} of {len}", configuration.name);
            let back = match rng.below(len + 1) {
                back if back >= earliest => back,
                // A rollback to the start is always possible.
                0 => 0,
                dropped => {
                    let is_rejected = main.rows[0].state.rollback(dropped).is_err();
                    assert!(is_rejected, "{}: back to {dropped}, before {earliest}", configuration.name);
                    earliest
                }
            };
            furthest = if back == 0 { 0 } else { furthest };
            main.rows[0].state.rollback(back).unwrap();
            history.truncate(back);
            assert_eq!(main.rows[0].state.len(), back);
            let more = &text[rng.below(40)..][..1 + rng.below(50)];
            let mut fork = configuration.with(main.rows[0].state.fork());
            let actual = if rng.below(2) == 0 {
                configuration.feed(&mut main, more)
            } else {
                let steps: Vec<_> = more.iter().map(|&symbol| configuration.feed(&mut main, &[symbol])).collect();
                let (logits, marks): (Vec<_>, Vec<_>) = steps.into_iter().unzip();
                (logits.concat(), marks.concat())
            };
            // The fork is fed other symbols first, which must not change the main row.
            configuration.feed(&mut fork, &text[60..60 + rng.below(30) + 1]);
            fork.rows[0].state.rollback(back).unwrap();
            let fork_logits: Vec<f32> =
                more.iter().flat_map(|&symbol| configuration.feed(&mut fork, &[symbol]).0).collect();
            history.extend_from_slice(more);
            let fresh = full(model, &history, &configuration.boundaries);
            let tail = fresh.0.len() - actual.0.len();
            configuration.check(&actual.0, &fresh.0[tail..], "after a rollback");
            configuration.check(&fork_logits, &fresh.0[tail..], "fork");
            assert_eq!(actual.1, fresh.1[back..], "{}", configuration.name);
            let closed = fresh.1.iter().filter(|mark| mark.boundary).count();
            assert_eq!(main.rows[0].state.segments(), if model.card().pooled { closed } else { 0 });
        }
    });
}

/// Length of a text whose start is far outside all windows, and which is cut at least once.
const LONG: usize = 2000;

/// Returns true if every layer of a configuration has a window and no document is kept.
fn is_windowed(Configuration { name, model, .. }: &Configuration) -> bool {
    let windows = ["blocks of", "last 40", "scaled", "windows", "xpos-last", "_bca", "sliding"];
    // the global transformer of the Byte Latent Transformer reads all patches
    let reads_all = model.document_encoder().is_some() || model.card().family == "blt";
    windows.iter().any(|window| name.contains(window)) && !reads_all
}

/// Rebuilds a sequence from a replay start by feeding the rest of `text`. Checks that it allows no other use before it is
/// valid.
fn rebuilt<'a>(configuration: &'a Configuration, text: &[u32], start: ReplayStart, rng: &mut Random) -> Alone<'a> {
    let mut again = configuration.alone();
    again.rows[0].state.resume(start).unwrap();
    let mut fed = start.symbol;
    while fed < text.len() {
        let state = &mut again.rows[0].state;
        let invalid = fed < start.valid_from;
        assert_eq!((state.len(), state.fork().is_empty()), (fed, invalid), "{}", configuration.name);
        assert_eq!(state.rollback(fed).is_err(), invalid, "{}", configuration.name);
        assert!(
            !invalid || (state.boundary_before(fed) == 0 && state.replay_start().is_none()),
            "{}",
            configuration.name
        );
        assert!(state.resume(start).is_err(), "{}: the state is not empty", configuration.name);
        let size = (1 + rng.below(70)).min(text.len() - fed);
        again.rows[0].set(&text[fed..fed + size], Want::Nothing);
        advance(again.model, &mut again.rows, &[0], &mut again.scratch).unwrap();
        fed += size;
    }
    again
}

#[test]
fn a_state_is_rebuilt_from_its_replay_start() {
    on_each(|configuration, rng| {
        let model = &*configuration.model;
        let name = &configuration.name;
        let symbols = model.card().vocabulary.len();
        let windowed = is_windowed(configuration);
        let text = rng.text(if windowed { LONG.min(model.card().max_symbols) } else { SYMBOLS }, symbols);
        let complete = full(model, &text, &configuration.boundaries);
        let equal = |alone: &mut Alone<'_>, part: Range<usize>| {
            let actual = alone.feed(&text[part.clone()]);
            let expected = &complete.0[part.start * symbols..part.end * symbols];
            configuration.check(&actual.0, expected, &format!("{part:?}"));
            assert_eq!(actual.1, complete.1[part.clone()], "{name}: {part:?}");
        };
        let mut main = configuration.alone();
        let mut position = 0;
        let mut count = 0;
        let mut before = 0;
        let mut last = None;
        while position + 110 < text.len() {
            let size = 1 + rng.below(60);
            main.feed(&text[position..position + size]);
            position += size;
            let state = &main.rows[0].state;
            let Some(start) = state.replay_start() else { continue };
            assert!(
                (before..=start.valid_from).contains(&start.symbol) && start.cut_position() <= start.symbol,
                "{name}"
            );
            assert_eq!(start.valid_from, state.earliest(), "{name}");
            before = start.symbol;
            last = Some(start);
            count += 1;
            // Checks a few of the many starts, and the last one.
            if rng.below(6) > 0 && position + 110 < text.len() {
                continue;
            }
            let mut again = rebuilt(configuration, &text[..position], start, rng);
            let state = &main.rows[0].state;
            let other = &again.rows[0].state;
            assert_eq!((state.len(), state.segments()), (other.len(), other.segments()), "{name}");
            let earliest = other.earliest();
            let next = other.replay_start().unwrap();
            assert!(earliest >= start.valid_from && earliest <= position, "{name}: {earliest} of {position}");
            assert!(next.symbol >= start.symbol, "{name}: {next:?} after {start:?}");
            let forks = [earliest, earliest + rng.below(position - earliest + 1)].map(|back| (back, other.fork()));
            equal(&mut again, position..position + 40);
            // The rebuilt state is valid from its earliest position, and can itself be rebuilt from its replay start.
            for (back, mut state) in forks {
                state.rollback(back).unwrap();
                equal(&mut configuration.with(state), back..position + 1);
            }
            let mut third = rebuilt(configuration, &text[..position], next, rng);
            equal(&mut third, position..position + 30);
            third.rows[0].state.restart(0);
            assert!(third.rows[0].state.is_empty() && third.rows[0].state.segments() == 0, "{name}");
            equal(&mut third, 0..60);
        }
        assert_eq!(count > 0, windowed, "{name}: {count} replay starts");
        // A later start gives other logits.
        if let Some(start) = last.filter(|start| start.skipped.is_none()) {
            let late = ReplayStart { symbol: start.valid_from - 1, ..start };
            let mut late = rebuilt(configuration, &text[..start.valid_from], late, rng);
            let actual = late.feed(&text[start.valid_from..][..1]);
            let error = difference(&actual.0, &complete.0[start.valid_from * symbols..][..symbols]);
            assert!(error > configuration.tolerance(), "{name}");
        }
    });
}

#[test]
fn a_cache_entry_of_a_long_text_matches_its_end() {
    on_each(|configuration, rng| {
        let model = &*configuration.model;
        let name = &configuration.name;
        // A table of learned positions may be too short for such a text.
        if !is_windowed(configuration) || model.card().max_symbols < LONG + 40 {
            return;
        }
        let symbols = model.card().vocabulary.len();
        let pooled = model.card().pooled;
        let text = rng.text(LONG, symbols);
        let mut main = configuration.alone();
        text.chunks(50).for_each(|chunk| drop(main.feed(chunk)));
        let key = Key::for_sequence(&"somebody".into(), &configuration.boundaries, model.card()).unwrap();
        let mut cache = SegmentCache::new(Capacity::with_bytes(1 << 30));
        // If the last segment is longer than the windows, no segment end is left to resume from.
        let state = &*main.rows[0].state;
        let ends = state.boundary_before(state.len()) > 0;
        assert_eq!(cache.keep(&key, &text, state).unwrap(), ends, "{name}");
        drop(main);
        if !ends {
            return;
        }
        let mut other = text.clone();
        other[..300].iter_mut().for_each(|symbol| *symbol = (*symbol + 1) % symbols as u32);
        for (mut text, same) in [(text.clone(), true), (other, false)] {
            text.extend(rng.text(40, symbols));
            let known = cache.known(&key, &text);
            let hit = cache.find(&key, &text).unwrap();
            assert_eq!(hit.as_ref().map_or(0, |hit| hit.len), known, "{name}");
            // Pooled models count segments, so the text before must be the same.
            assert_eq!(hit.is_some(), same || !pooled, "{name}: {same}");
            let Some(Hit { state, len }) = hit else { continue };
            let fresh = full(model, &text, &configuration.boundaries);
            let actual = configuration.with(state).feed(&text[len..]);
            configuration.check(&actual.0, &fresh.0[len * symbols..], &format!("from {len}"));
            assert_eq!(actual.1, fresh.1[len..], "{name}");
        }
        // The text differs in one symbol, before the earliest position of the entry.
        let mut near = text;
        near[LONG - 200] = (near[LONG - 200] + 1) % symbols as u32;
        assert_eq!(cache.known(&key, &near), 0, "{name}");
        assert_eq!(std::iter::from_fn(|| cache.evict()).count(), 1, "{name}");
        assert_eq!(cache.usage().bytes, 0, "{name}");
    });
}

#[test]
fn a_resumed_generation_is_the_rest_of_the_whole() {
    on_each(|configuration, rng| {
        let model = &*configuration.model;
        if model.document_encoder().is_some() {
            return;
        }
        let predictor = model.card().boundary_modes.contains(&BoundaryMode::Predictor);
        let modes = [configuration.boundaries.mode, Some(BoundaryMode::Predictor)];
        for mode in modes.into_iter().take(if predictor { 2 } else { 1 }) {
            let request = Generate {
                sampling: Sampling { seed: rng.below(1000) as u64, repetition_penalty: 1.1, ..Sampling::default() },
                details: Details { logprobs: true, boundaries: true, ..Details::default() },
                boundaries: BoundaryOptions { mode, ..configuration.boundaries.clone() },
                speculation: None,
                ..request(configuration, rng)
            };
            let (emitted, reason, usage) = configuration.generate(request.clone());
            for cut in [rng.below(emitted.len()), rng.below(emitted.len() + 1), emitted.len()] {
                let resumed: Vec<u32> = emitted[..cut].iter().map(|emitted| emitted.symbol).collect();
                let (rest, own_reason, own_usage) = configuration.generate(Generate { resumed, ..request.clone() });
                let name = format!("{}, mode {mode:?}, {cut} of {}", configuration.name, emitted.len());
                assert_eq!(rest, emitted[cut..], "{name}");
                assert_eq!(own_reason, reason, "{name}");
                assert_eq!(Usage { resumed_chars: 0, ..own_usage }, usage, "{name}");
                assert_eq!(own_usage.resumed_chars, cut - usize::from(cut > own_usage.generated_chars), "{name}");
            }
        }
    });
}

const _: () = assert!(MAX_DRAFT <= ROLLBACK, "windows keep what a rollback of a draft needs");

#[test]
fn a_cut_feed_equals_a_shorter_one() {
    on_each(|configuration, rng| {
        let model = &*configuration.model;
        if !(model.card().speculates && model.card().pooled) {
            return;
        }
        let text = configuration.text(rng);
        let symbols = model.card().vocabulary.len();
        let (logits, decisions) = full(model, &text, &configuration.boundaries);
        for _ in 0..8 {
            let start = rng.below(90);
            let more = 2 + rng.below(ROLLBACK - 2);
            let kept = 1 + rng.below(more - 1);
            let mut main = configuration.alone();
            if start > 0 {
                main.feed(&text[..start]);
            }
            main.rows[0].set(&text[start..start + more], Want::All);
            model.symbol_step(&mut main.rows, &[0], &mut main.scratch).unwrap();
            assert!(main.rows[0].state.cut(start).is_err(), "{}: nothing would be fed", configuration.name);
            assert!(main.rows[0].state.cut(start + more + 1).is_err(), "{}: beyond the end", configuration.name);
            main.rows[0].cut(kept).unwrap();
            let end = start + kept;
            assert_eq!(main.rows[0].state.len(), end, "{}", configuration.name);
            let mut fork = configuration.with(main.rows[0].state.fork());
            model.segment_step(&mut main.rows, &[0], &mut main.scratch).unwrap();
            model.finish_step(&mut main.rows, &[0], &mut main.scratch).unwrap();
            assert!(main.rows[0].state.cut(end - 1).is_err(), "{}: cut when ready", configuration.name);
            let name = format!("{}: {start}, {kept} of {more}", configuration.name);
            assert_eq!(main.rows[0].logits, logits[start * symbols..end * symbols], "{name}");
            assert_eq!(main.rows[0].decisions, decisions[start..end], "{name}");
            assert_eq!(main.feed(&text[end..]).0, logits[end * symbols..], "{name}");
            // the fork is the sequence before the feed
            assert_eq!(fork.feed(&text[start..]).0, logits[start * symbols..], "{name}");
        }
    });
}

/// Output of a generation, and the reason for its end.
type Output = (Vec<EmittedSymbol>, FinishReason, Usage);

/// Generates in chunks of `chunk` symbols with drafts as long as the request permits. The row is lost before each step of `losses`.
fn with_drafts(configuration: &Configuration, request: Generate, chunk: usize, losses: &[usize]) -> Output {
    let model = &*configuration.model;
    let mut session = Session::generate(request, model.card()).unwrap();
    let mut alone = Alone::new(model, session.boundaries().clone());
    let mut emitted = Vec::new();
    let mut rates = GuessRates::default();
    for step in 0.. {
        if losses.contains(&step) {
            session.rewind();
            alone = Alone::new(model, session.boundaries().clone());
        }
        let mut budget = DraftBudget { free: 100, fixed: 4.0, symbols: 1, expected: 1.0, feeds_prompts: false };
        session.draft(&mut budget, &mut rates);
        session.feed(&mut alone.rows[0], chunk);
        model.symbol_step(&mut alone.rows, &[0], &mut alone.scratch).unwrap();
        if session.has_draft() {
            alone.rows[0].cut_draft().unwrap();
        }
        model.segment_step(&mut alone.rows, &[0], &mut alone.scratch).unwrap();
        model.finish_step(&mut alone.rows, &[0], &mut alone.scratch).unwrap();
        let progress = session.absorb(&mut alone.rows[0]).unwrap();
        emitted.extend(session.take_output());
        if let SessionProgress::Finished(reason) = progress {
            assert_eq!(alone.rows[0].state.len(), session.text_symbols(), "{}", configuration.name);
            return (emitted, reason, session.usage());
        }
    }
    unreachable!("a generation ends");
}

fn request(configuration: &Configuration, rng: &mut Random) -> Generate {
    let model = &*configuration.model;
    let numbers: Vec<u32> = (0..5 + rng.below(20)).map(|_| rng.below(1000) as u32).collect();
    Generate {
        prompt: text_symbols(model, &numbers.repeat(1 + rng.below(3))),
        sampling: Sampling {
            temperature: [0.0, 0.1, 1.0][rng.below(3)],
            seed: rng.below(1000) as u64,
            repetition_penalty: [1.0, 1.1][rng.below(2)],
            presence_penalty: [0.0, 0.3][rng.below(2)],
            frequency_penalty: [0.0, 0.1][rng.below(2)],
            ..Sampling::default()
        },
        stopping: Stopping {
            max_chars: 20 + rng.below(SYMBOLS / 2),
            max_segments: model.card().pooled.then_some(12),
            ..Stopping::default()
        },
        details: Details { logprobs: true, boundaries: rng.below(2) == 0, ..Details::default() },
        boundaries: BoundaryOptions { ..configuration.boundaries.clone() },
        resumed: Vec::new(),
        speculation: Some(Speculation::UpTo(1 + rng.below(MAX_DRAFT))),
        constraint: None,
    }
}

#[test]
fn generations_with_drafts_emit_the_same_bits() {
    let accepted = AtomicUsize::new(0);
    let rejected = AtomicUsize::new(0);
    on_each(|configuration, rng| {
        if configuration.model.document_encoder().is_some() {
            return;
        }
        for _ in 0..3 {
            let request = request(configuration, rng);
            let (emitted, reason, usage) = with_drafts(configuration, request.clone(), 16, &[]);
            let expected = configuration.generate(request.clone());
            let name = format!("{}, {request:?}", configuration.name);
            assert!(configuration.model.card().speculates || usage.drafted_chars == 0, "{name}");
            accepted.fetch_add(usage.accepted_chars, Relaxed);
            rejected.fetch_add(usage.drafted_chars - usage.accepted_chars, Relaxed);
            let usage = Usage { drafted_chars: 0, accepted_chars: 0, ..usage };
            assert_eq!((emitted, reason, usage), expected, "{name}");
        }
    });
    let counts = (accepted.into_inner(), rejected.into_inner());
    assert!(std::env::var_os("WEIR_CONFIGURATION").is_some() || (counts.0 > 100 && counts.1 > 100), "{counts:?}");
}

/// Returns three letters that the vocabulary can write.
fn letters(vocabulary: &Vocabulary) -> Option<[char; 3]> {
    let letter = |id| {
        let bytes = vocabulary.symbol_bytes(id)?;
        let [byte] = bytes[..] else { return None };
        byte.is_ascii_lowercase().then(|| char::from(byte))
    };
    let mut letters = vocabulary.text_ids().filter_map(letter);
    Some([letters.next()?, letters.next()?, letters.next()?])
}

/// Returns the forms of [`Constraint`] that the vocabulary can write, by its letters: first the expression.
fn forms(vocabulary: &Arc<Vocabulary>, [a, b, c]: [char; 3]) -> Vec<Arc<CompiledConstraint>> {
    let choice = [format!("{a}{b}{c}{b}{a}"), format!("{a}{b}{c}{c}"), format!("{b}{a}{a}")];
    let grammar =
        format!("start: (\"{a}{b}{c}{b}{a}\" | \"{c}{b}\" tail)+ \"{b}{b}\"\ntail: \"{a}{a}\" | \"{c}\" tail \"{b}\"");
    let record = json!({
        "type": "object",
        "properties": { "name": { "enum": ["abc", "abd", "é"] }, "count": { "type": "integer" } },
        "required": ["name"],
        "additionalProperties": false,
    });
    let all = [
        Constraint::Regex(format!("({a}{b}{c}{b}{a}{b}{c}{b}{a}|{b}{a}{a}{c}|{c}{b}|{c}{c}{a}[^{a}]{c})*{a}{a}")),
        Constraint::Choice(choice.to_vec()),
        Constraint::Grammar(grammar),
        Constraint::JsonSchema(json!({ "enum": [true, false, null] }).to_string()),
        Constraint::JsonSchema(record.to_string()),
        Constraint::JsonObject,
    ];
    let writes = |letter| vocabulary.text_ids().any(|id| vocabulary.symbol_bytes(id) == Some(vec![letter]));
    let count = match vocabulary.is_bytes() {
        true => all.len(),
        false => 3 + usize::from(b"truefalsn".iter().all(|letter| writes(*letter))),
    };
    let compiler = ConstraintCompiler::new(Arc::clone(vocabulary));
    all.iter().take(count).map(|form| compiler.compile(form).unwrap()).collect()
}

/// Short runs test one random form per configuration.
#[test]
fn constrained_generations_emit_the_same_bits() {
    let forced = Mutex::new(BTreeMap::<_, usize>::new());
    on_each(|configuration, rng| {
        let model = &*configuration.model;
        let vocabulary = &model.card().vocabulary;
        let Some(letters) = letters(vocabulary).filter(|_| model.document_encoder().is_none()) else { return };
        let forms = forms(vocabulary, letters);
        let chosen = rng.below(forms.len());
        for (_, form) in forms.iter().enumerate().filter(|(index, _)| long_runs() || *index == chosen) {
            *forced.lock().unwrap().entry(form.kind()).or_default() += check_form(configuration, form, rng);
        }
    });
    let forced = forced.into_inner().unwrap();
    assert!(
        std::env::var_os("WEIR_CONFIGURATION").is_some()
            || Constraint::KINDS.iter().all(|kind| forced.get(kind).is_some_and(|count| *count > 10)),
        "{forced:?}"
    );
}

/// Compares texts of a form that are written one by one, in drafts, in chunks, with lost rows and resumed. Returns the forced characters.
fn check_form(configuration: &Configuration, form: &Arc<CompiledConstraint>, rng: &mut Random) -> usize {
    let mut forced = 0;
    let mut request = Generate { constraint: Some(Arc::clone(form)), ..request(configuration, rng) };
    request.details = Details { logprobs: true, boundaries: true, ..Details::default() };
    request.sampling.temperature = 1.0;
    // one by one
    let (emitted, reason, usage) = configuration.generate(request.clone());
    let name = format!("{}, {request:?}", configuration.name);
    let symbols: Vec<u32> = emitted.iter().map(|emitted| emitted.symbol).collect();
    if reason == FinishReason::Constraint {
        let text = configuration.model.card().vocabulary.decode(&symbols);
        let has_form = match form.kind() {
            "regex" => text.as_bytes().last_chunk::<2>().is_some_and(|[one, other]| one == other),
            // no value, because JSON has numbers beyond those of floats
            "json_schema" | "json_object" => serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok(),
            _ => true,
        };
        assert!(has_form, "{name}: {text}");
    }
    assert!(emitted.iter().all(|emitted| emitted.constraint_mass.is_some_and(|mass| mass <= 1.0001)), "{name}");
    let losses = [rng.below(10), rng.below(20)];
    // in drafts
    for losses in [&[][..], &losses] {
        let (drafted, own_reason, own_usage) = with_drafts(configuration, request.clone(), 16, losses);
        forced += own_usage.forced_chars;
        assert_eq!((&drafted, &own_reason), (&emitted, &reason), "{name}");
        assert_eq!(own_usage.generated_segments, usage.generated_segments, "{name}");
    }
    // in chunks, whose symbols have no results
    let request = Generate { details: Details::default(), ..request };
    for max_segments in [request.stopping.max_segments, None] {
        let mut request = request.clone();
        request.stopping.max_segments = max_segments;
        let (alone, alone_reason, _) = configuration
            .generate(Generate { details: Details { logprobs: true, ..Details::default() }, ..request.clone() });
        let alone: Vec<u32> = alone.iter().map(|emitted| emitted.symbol).collect();
        for (chunk, losses) in [(5, &losses[..]), (64, &[])] {
            let (chunked, own_reason, own_usage) = with_drafts(configuration, request.clone(), chunk, losses);
            forced += own_usage.forced_chars;
            let chunked: Vec<u32> = chunked.iter().map(|emitted| emitted.symbol).collect();
            assert_eq!((&chunked, &own_reason), (&alone, &alone_reason), "{name}, chunks of {chunk}");
        }
    }
    // resumed, also in the middle of a forced span
    for cut in [1, 3, 6, symbols.len()].into_iter().filter(|cut| *cut <= symbols.len()) {
        let resumed = Generate { resumed: symbols[..cut].to_vec(), ..request.clone() };
        let (rest, own_reason, _) = with_drafts(configuration, resumed, 16, &[]);
        let rest: Vec<u32> = rest.iter().map(|emitted| emitted.symbol).collect();
        assert_eq!((&rest[..], &own_reason), (&symbols[cut..], &reason), "{name}, resumed at {cut}");
    }
    forced
}

/// The bits of all probabilities are equal, also where the products of a model depend on how many rows they have.
#[test]
fn a_lost_row_and_other_chunks_change_no_bit() {
    on_each(|configuration, rng| {
        let model = &*configuration.model;
        if model.document_encoder().is_some() {
            return;
        }
        let numbers: Vec<u32> = (0..110).map(|_| rng.below(1000) as u32).collect();
        let mut request = request(configuration, rng);
        request.prompt = text_symbols(model, &numbers);
        request.details.top_logprobs = 2;
        request.stopping = Stopping { max_chars: 40, ignore_end: true, ..Stopping::default() };
        let (emitted, reason, _) = configuration.generate(request.clone());
        assert_eq!(emitted.len(), 40, "{}", configuration.name);
        let bitwise = model.card().exactness == Exactness::Bitwise;
        for chunk in if bitwise { vec![1 + rng.below(100)] } else { vec![1, 17, 64, 100, 512] } {
            let prefill = request.prompt.len().div_ceil(chunk);
            for losses in [&[][..], &[1, prefill + 5, 3 * prefill + 40]] {
                let (other, other_reason, _) = with_drafts(configuration, request.clone(), chunk, losses);
                let name = format!("{}, chunks of {chunk}, rows lost at {losses:?}", configuration.name);
                assert!(other == emitted && other_reason == reason, "{name}");
            }
        }
    });
}
