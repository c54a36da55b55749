//! Sessions that lose their row and resume with another, or start from a cached state. Their total output is that of an
//! undisturbed session.

use super::{
    jobs::{self, JobOutput},
    toy_model::Toy,
};
use crate::support::{
    converted, fixture, fixture_in, hnet_converted, hnet_in, lslm_converted, lslm_in, settings, text_symbols,
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
use weir::{
    decode::{
        contract::{BoundaryMode, BoundaryOptions, Model, Noise, SequenceRow, State, Want, advance},
        options::{Details, Generate, Sampling, Score, Stopping, WindowOptions},
        session::{Session, SessionProgress},
        usage::{LevelCounts, Usage},
    },
    engine::{
        Job,
        cache::{Capacity, Key, SegmentCache},
    },
    family::load::{Settings, load},
    kernels::Dtype,
};

/// State from which a session resumes after it lost its row.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Replacement {
    /// An empty state.
    Cold,
    /// The cache entry of the lost row.
    Cached,
    /// The state after the longest prefix that may be skipped, computed by another row.
    LongestPrefix,
}

/// When and how a row is lost.
#[derive(Debug, Clone, Copy)]
struct Loss {
    /// The row is lost before this step, and again two steps later.
    step: usize,
    /// True if the row was fed and the result of its step is lost too.
    in_flight: bool,
    replacement: Replacement,
}

fn begin(model: &dyn Model, session: &Session) -> SequenceRow {
    SequenceRow::new(model.begin(session.boundaries().clone()).unwrap())
}

/// Returns the state after the first `len` symbols of a session's text.
fn state_after(model: &dyn Model, session: &Session, len: usize) -> Box<dyn State> {
    let mut rows = [begin(model, session)];
    if len > 0 {
        rows[0].set(session.text().after(0).unwrap().take(len), Want::Nothing);
        advance(model, &mut rows, &[0], &mut model.scratch()).unwrap();
    }
    let [row] = rows;
    row.state
}

/// Rewinds a session and returns a replacement for its row.
fn lose(model: &dyn Model, session: &mut Session, row: &SequenceRow, replacement: Replacement) -> SequenceRow {
    session.rewind();
    let max_prefix = session.cacheable_prefix();
    let state = match replacement {
        Replacement::Cold => return begin(model, session),
        Replacement::LongestPrefix => state_after(model, session, max_prefix),
        Replacement::Cached => {
            let mut cache = SegmentCache::new(Capacity::with_bytes(1 << 30));
            // A scoring window has no key.
            let Some(key) = Key::for_sequence(&"".into(), session.boundaries(), model.card()) else {
                return begin(model, session);
            };
            cache.keep(&key, session.text(), &*row.state).unwrap();
            let Some(hit) = cache.find(&key, session.text().prefix(max_prefix)).unwrap() else {
                return begin(model, session);
            };
            hit.state
        }
    };
    session.start_at(state.len(), state.level_segments()).unwrap();
    SequenceRow::new(state)
}

/// Runs a session that may lose its row. Returns its output and the number of steps.
fn run(mut session: Session, model: &dyn Model, loss: Option<Loss>) -> (JobOutput, usize) {
    let mut rows = [begin(model, &session)];
    continue_session(&mut session, model, &mut rows, loss)
}

fn continue_session(
    session: &mut Session,
    model: &dyn Model,
    rows: &mut [SequenceRow; 1],
    loss: Option<Loss>,
) -> (JobOutput, usize) {
    let mut scratch = model.scratch();
    let mut characters = Vec::new();
    for step in 0.. {
        if let Some(Loss { in_flight, replacement, .. }) =
            loss.filter(|loss| step == loss.step || step == loss.step + 2)
        {
            if in_flight {
                session.feed(&mut rows[0], 5);
                model.symbol_step(rows, &[0], &mut scratch).unwrap();
            }
            rows[0] = lose(model, session, &rows[0], replacement);
        }
        let decoding = !session.is_prefilling();
        session.feed(&mut rows[0], 5);
        assert!(!decoding || rows[0].feed.len() == 1);
        advance(model, rows, &[0], &mut scratch).unwrap();
        let progress = session.absorb(&mut rows[0]).unwrap();
        characters.extend(session.take_output());
        assert_eq!(progress == SessionProgress::Prefilling, session.is_prefilling());
        if let SessionProgress::Finished(reason) = progress {
            let windowed = session.text().is_empty();
            assert!(windowed || rows[0].state.len() == session.text().len(), "some symbol was not fed");
            return (JobOutput { characters, reason, usage: session.usage() }, step);
        }
    }
    unreachable!()
}

/// Compares an undisturbed session with ones that lose their row before each step. Each step tries every kind of loss if
/// `all_kinds`, otherwise the kinds take turns.
fn check_losses(name: &str, session: &Session, model: &dyn Model, all_kinds: bool) {
    let (expected, steps) = run(session.clone(), model, None);
    let kinds = [Replacement::Cold, Replacement::Cached, Replacement::LongestPrefix];
    let kinds: Vec<_> = kinds.into_iter().flat_map(|kind| [(kind, false), (kind, true)]).collect();
    for step in 0..=steps {
        for (index, &(replacement, in_flight)) in kinds.iter().enumerate() {
            if all_kinds || step % kinds.len() == index {
                let loss = Loss { step, in_flight, replacement };
                let (output, _) = run(session.clone(), model, Some(loss));
                assert_eq!(output, expected, "{name}: {loss:?}");
            }
        }
    }
}

/// Starts a session after each prefix that may be skipped, and compares its output.
fn check_starts(name: &str, session: &Session, model: &dyn Model) {
    let (expected, _) = run(session.clone(), model, None);
    for len in 0..=session.cacheable_prefix() {
        let mut session = session.clone();
        let state = state_after(model, &session, len);
        session.start_at(state.len(), state.level_segments()).unwrap();
        let loss = Loss { step: 2, in_flight: false, replacement: Replacement::Cached };
        let (output, _) = continue_session(&mut session, model, &mut [SequenceRow::new(state)], Some(loss));
        let usage = Usage { cached_chars: len, ..expected.usage };
        assert_eq!(output, JobOutput { usage, ..expected.clone() }, "{name}: from {len}");
    }
}

fn sessions(request: &Generate, model: &dyn Model) -> Vec<(String, Session)> {
    let mut all = Vec::new();
    for bits in 0..8 {
        let [echo, logprobs, boundaries] = [1, 2, 4].map(|bit| bits & bit > 0);
        let details = Details { echo, logprobs, top_logprobs: usize::from(logprobs) * 2, boundaries };
        let session =
            Session::generate(Generate { details: details.clone(), ..request.clone() }, model.card()).unwrap();
        all.push((format!("{details:?}"), session));
    }
    let windows = [None, Some(WindowOptions { length: 6, stride: 6 }), Some(WindowOptions { length: 9, stride: 4 })];
    for (logprobs, windows) in [false, true].into_iter().flat_map(|logprobs| windows.map(|windows| (logprobs, windows)))
    {
        let boundaries = request.boundaries.clone();
        let score = Score { symbols: request.prompt.clone(), logprobs, top: 0, boundaries, windows };
        all.push((format!("score, {logprobs}, {windows:?}"), Session::score(score, model.card()).unwrap()));
    }
    all
}

#[test]
fn a_session_that_loses_its_row_has_the_same_output() {
    let toy = Toy::new();
    for seed in 0..150 {
        let session = match jobs::varied(seed) {
            Job::Generate(request) => Session::generate(request, toy.card()),
            Job::Score(request) => Session::score(request, toy.card()),
            Job::Code(request) => Session::code(request, toy.card()),
            Job::Next(request) => Session::next_symbol(request, toy.card()),
        };
        check_losses(&format!("{seed}"), &session.unwrap(), &*toy, seed < 20);
    }
    assert_eq!(toy.sequences(), 0);
}

#[test]
fn a_session_starts_after_any_cacheable_prefix() {
    let toy = Toy::new();
    for seed in 0..60 {
        let session = match jobs::varied(seed) {
            Job::Generate(request) => Session::generate(request, toy.card()),
            Job::Score(request) => Session::score(request, toy.card()),
            Job::Code(request) => Session::code(request, toy.card()),
            Job::Next(request) => Session::next_symbol(request, toy.card()),
        };
        check_starts(&format!("{seed}"), &session.unwrap(), &*toy);
    }
}

#[test]
fn only_symbols_without_requested_details_may_be_skipped() {
    let toy = Toy::new();
    let mut request = jobs::generate(&[1, 2, 0, 1, 2], 3);
    let max_prefix = |request: &Generate| Session::generate(request.clone(), toy.card()).unwrap().cacheable_prefix();
    assert_eq!(max_prefix(&request), 4);
    request.details.boundaries = true;
    request.details.logprobs = true;
    assert_eq!(max_prefix(&request), 4, "a prompt without echo has no details");
    request.details = Details { echo: true, ..Details::default() };
    assert_eq!(max_prefix(&request), 4);
    let long = Generate { prompt: [1, 2, 0].repeat(500), ..request.clone() };
    assert_eq!(max_prefix(&long), 1024, "a long prompt is not emitted at once");
    for details in [
        Details { boundaries: true, ..request.details.clone() },
        Details { top_logprobs: 1, ..request.details.clone() },
    ] {
        assert_eq!(max_prefix(&Generate { details, ..request.clone() }), 0);
    }
    let mut session = Session::generate(request, toy.card()).unwrap();
    assert!(session.start_at(5, LevelCounts::default()).is_err());
    assert_eq!(session.text().after(0), Some((&[1, 2, 0, 1, 2]).into()));
}

#[test]
fn a_cache_key_holds_the_inputs_of_the_boundaries() {
    let model = fixture("gumbel");
    let key = |tenant: &str, mode, noise, offset| {
        Key::for_sequence(&tenant.into(), &BoundaryOptions { mode, noise, offset }, model.card())
    };
    let threshold = Some(BoundaryMode::Threshold);
    let sampled = Some(BoundaryMode::Sampled);
    let plain = key("a", None, Noise::Seeded(1), 0).unwrap();
    assert_eq!(Some(&plain), key("a", threshold, Noise::Seeded(2), 0).as_ref(), "the seed has no effect on thresholds");
    assert_eq!(Some(&plain), key("a", threshold, Noise::Given([].into()), 0).as_ref());
    let seeded = |seed| key("a", sampled, Noise::Seeded(seed), 0).unwrap();
    assert!(plain != seeded(1) && seeded(1) != seeded(2) && seeded(1) == seeded(1));
    assert_ne!(Some(plain), key("b", None, Noise::Seeded(1), 0));
    assert_eq!(key("a", sampled, Noise::Given([].into()), 0), None);
    assert_eq!(key("a", threshold, Noise::Seeded(0), 1), None);
}

fn request(prompt: Vec<u32>, boundaries: BoundaryOptions) -> Generate {
    let stopping = Stopping {
        max_chars: 14,
        min_chars: 0,
        max_segments: None,
        stop: vec![vec![2, 3, 4]],
        include_stop: false,
        ignore_end: false,
    };
    let sampling = Sampling { seed: 5, repetition_penalty: 1.2, ..Sampling::default() };
    Generate {
        prompt,
        sampling,
        stopping,
        details: Details::default(),
        boundaries,
        resumed: Vec::new(),
        speculation: None,
    }
}

/// Prefix of the names of latent segment models.
const LATENT: &str = "lslm ";
const CHUNKING: &str = "hnet ";

/// Returns the checkpoint of a model of [`models`].
pub(super) fn checkpoint(name: &str) -> PathBuf {
    let case = name.split(',').next().unwrap();
    match (case.strip_prefix(LATENT), case.strip_prefix(CHUNKING)) {
        (Some(case), _) => lslm_converted(case),
        (None, Some(case)) => hnet_converted(case),
        (None, None) => converted(case),
    }
}

/// Returns one model of each source of boundaries, in all dtypes.
pub(super) fn models() -> Vec<(String, Arc<dyn Model>, BoundaryOptions)> {
    let cases = ["vanilla", "fixed_sf3", "whitespaces", "entropy", "gumbel"];
    let latent = ["hops1", "both_small_first_layer"];
    let mut all = Vec::new();
    let fixtures = cases.into_iter().flat_map(|case| Dtype::ALL.map(|dtype| (case, dtype, fixture_in(case, dtype))));
    let fixtures = fixtures.map(|(case, dtype, model)| (case.to_owned(), dtype, model));
    let latent = latent
        .into_iter()
        .flat_map(|case| Dtype::ALL.map(|dtype| (format!("{LATENT}{case}"), dtype, lslm_in(case, dtype))));
    let chunking = ["one_stage", "two_stage_padded"]
        .into_iter()
        .map(|case| (format!("{CHUNKING}{case}"), Dtype::F32, hnet_in(case, Dtype::F32)));
    for (case, dtype, model) in fixtures.chain(latent).chain(chunking) {
        for &mode in &model.card().boundary_modes {
            let boundaries = BoundaryOptions { mode: Some(mode), noise: Noise::Seeded(3), offset: 0 };
            all.push((format!("{case}, {}, {}", dtype.name(), mode.name()), model.clone(), boundaries));
        }
    }
    all
}

#[test]
fn losses_and_starts_keep_the_output_on_every_kind_of_model() {
    for (name, model, boundaries) in models() {
        let prompt: Vec<u32> = (0..17).map(|i| if i % 5 == 4 { 0 } else { 1 + i % 7 }).collect();
        let mut request = request(text_symbols(&*model, &prompt), boundaries);
        request.stopping.stop = vec![text_symbols(&*model, &[2, 3, 4])];
        for (details, session) in sessions(&request, &*model) {
            check_losses(&format!("{name}, {details}"), &session, &*model, false);
            check_starts(&format!("{name}, {details}"), &session, &*model);
        }
        assert_eq!(model.memory().in_use, 0, "{name}: pages leaked");
    }
}

#[test]
fn the_shipped_model_resumes_from_its_cache() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/hourglass-english");
    for dtype in Dtype::ALL {
        let model = load(&folder, &Settings { dtype, ..settings() }).unwrap();
        let prompt = "it was the best of times it was the worst of ti";
        let prompt = model.card().vocabulary.encode("prompt", prompt, 100).unwrap();
        let request = request(prompt, BoundaryOptions::default());
        for (details, session) in sessions(&request, &*model).into_iter().step_by(3) {
            check_losses(&format!("{dtype:?}, {details}"), &session, &*model, false);
        }
        assert_eq!(model.memory().in_use, 0, "pages leaked");
    }
}
