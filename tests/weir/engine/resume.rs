//! Streams that are resumed, endless, or read slowly.

use super::*;
use crate::engine::caching::{ask, engine, limits};
use crate::engine::harness::{
    counting_evictions, drive, fresh_row, read_rest, read_to_error, run as run_alone, session,
};
use proptest::prelude::*;
use weir::engine::cache::{Capacity, Key, SegmentCache};
use weir::models::usage::LevelCounts;

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

/// Returns the state after the first `len` symbols of a session's text.
fn state_after(model: &dyn Model, session: &Session, len: usize) -> Box<dyn State> {
    let mut rows = [fresh_row(model, session)];
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
        Replacement::Cold => return fresh_row(model, session),
        Replacement::LongestPrefix => state_after(model, session, max_prefix),
        Replacement::Cached => {
            let mut cache = SegmentCache::new(Capacity::with_bytes(1 << 30));
            // A scoring window has no key.
            let Some(key) = Key::for_sequence(&"".into(), session.boundaries(), model.card()) else {
                return fresh_row(model, session);
            };
            cache.keep(&key, session.text(), &*row.state).unwrap();
            let Some(hit) = cache.find(&key, session.text().prefix(max_prefix)).unwrap() else {
                return fresh_row(model, session);
            };
            hit.state
        }
    };
    session.start_at(state.len(), state.level_segments()).unwrap();
    SequenceRow::new(state)
}

/// Runs a session that may lose its row. Returns its output and the number of steps.
fn run(mut session: Session, model: &dyn Model, loss: Option<Loss>) -> (JobOutput, usize) {
    let row = fresh_row(model, &session);
    continue_session(&mut session, model, row, loss)
}

fn continue_session(
    session: &mut Session,
    model: &dyn Model,
    mut row: SequenceRow,
    loss: Option<Loss>,
) -> (JobOutput, usize) {
    let output = drive(session, model, &mut row, 5, |session, row, step, _| {
        if let Some(Loss { in_flight, replacement, .. }) =
            loss.filter(|loss| step == loss.step || step == loss.step + 2)
        {
            if in_flight {
                session.feed(row, 5);
                model.symbol_step(std::slice::from_mut(row), &[0], &mut model.scratch()).unwrap();
            }
            *row = lose(model, session, row, replacement);
        }
    });
    let windowed = session.text().is_empty();
    assert!(windowed || row.state.len() == session.text().len(), "some symbol was not fed");
    output
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
        let (output, _) = continue_session(&mut session, model, SequenceRow::new(state), Some(loss));
        let usage = Usage { cached_chars: len, ..expected.usage };
        assert_eq!(output, JobOutput { usage, ..expected.clone() }, "{name}: from {len}");
    }
}

#[test]
fn losses_and_starts_keep_the_output() {
    let toy = Toy::new();
    for seed in 0..150 {
        let session = session(varied(seed), toy.card());
        check_losses(&format!("{seed}"), &session, &*toy, seed < 20);
        if seed < 60 {
            check_starts(&format!("{seed}"), &session, &*toy);
        }
    }
    assert_eq!(toy.sequences(), 0);
}

#[test]
fn only_symbols_without_requested_details_may_be_skipped() {
    let toy = Toy::new();
    let mut request = generate(&[1, 2, 0, 1, 2], 3);
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
    let key = |mode, noise, offset| {
        Key::for_sequence(&"a".into(), &BoundaryOptions { mode, noise, offset, threshold: None }, model.card())
    };
    let threshold = Some(BoundaryMode::Threshold);
    let plain = key(None, Noise::Seeded(1), 0).unwrap();
    assert_eq!(Some(&plain), key(threshold, Noise::Seeded(2), 0).as_ref(), "the seed has no effect on thresholds");
    assert_eq!(Some(&plain), key(threshold, Noise::Given([].into()), 0).as_ref());
    assert_eq!(key(Some(BoundaryMode::Sampled), Noise::Given([].into()), 0), None);
    assert_eq!(key(threshold, Noise::Seeded(0), 1), None);
}

/// Prefix of the names of latent segment models.
const LATENT: &str = "lslm ";

const CHUNKING: &str = "hnet ";

/// Returns the checkpoint of a model of [`models`].
fn checkpoint(name: &str) -> PathBuf {
    let case = name.split(',').next().unwrap();
    match (case.strip_prefix(LATENT), case.strip_prefix(CHUNKING)) {
        (Some(case), _) => support::checkpoint("lslm", case),
        (None, Some(case)) => support::checkpoint("hnet", case),
        (None, None) => converted(case),
    }
}

/// Loads the same checkpoint with memory for `symbols` symbols in total.
pub(super) fn tight(name: &str, model: &dyn Model, settings: &Settings, symbols: usize) -> Arc<dyn Model> {
    let null = settings.memory_bytes - model.memory().limit;
    let memory_bytes = model.bytes_for(symbols) + null;
    load(&checkpoint(name), &Settings { memory_bytes, ..settings.clone() }).unwrap()
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
        .flat_map(|case| Dtype::ALL.map(|dtype| (format!("{LATENT}{case}"), dtype, model_of("lslm", case, dtype))));
    let chunking = ["one_stage", "two_stage_padded"]
        .into_iter()
        .map(|case| (format!("{CHUNKING}{case}"), Dtype::F32, model_of("hnet", case, Dtype::F32)));
    for (case, dtype, model) in fixtures.chain(latent).chain(chunking) {
        for &mode in &model.card().boundary_modes {
            let boundaries = BoundaryOptions { mode: Some(mode), noise: Noise::Seeded(3), offset: 0, threshold: None };
            all.push((format!("{case}, {}, {}", dtype.name(), mode.name()), model.clone(), boundaries));
        }
    }
    all
}

#[test]
fn losses_and_starts_keep_the_output_on_every_kind_of_model() {
    for (name, model, boundaries) in models().into_iter().filter(|(_, model, _)| model.card().dtype == "f32") {
        let prompt: Vec<u32> = (0..17).map(|i| if i % 5 == 4 { 0 } else { 1 + i % 7 }).collect();
        let mut request = Generate { boundaries, ..generate(&text_symbols(&*model, &prompt), 14) };
        request.sampling = Sampling { seed: 5, repetition_penalty: 1.2, frequency_penalty: 0.5, ..Sampling::default() };
        request.stopping.stop = vec![text_symbols(&*model, &[2, 3, 4])];
        request.details = Details { echo: false, logprobs: true, top_logprobs: 2, boundaries: true };
        let session = Session::generate(request, model.card()).unwrap();
        check_losses(&name, &session, &*model, false);
        check_starts(&name, &session, &*model);
        drop(session);
        assert_eq!(model.memory().in_use, 0, "{name}: pages leaked");
    }
}

fn resumed_request(seed: u64) -> Option<Generate> {
    match varied(seed) {
        Job::Generate(resumed_request) => Some(resumed_request),
        _ => None,
    }
}

/// Returns what a request emits after its prompt.
pub(super) fn generated<'a>(request: &Generate, output: &'a JobOutput) -> &'a [EmittedSymbol] {
    &output.characters[if request.details.echo { request.prompt.len() } else { 0 }..]
}

/// Returns the request that resumes after the first `cut` of these symbols.
pub(super) fn resumed(request: &Generate, generated: &[EmittedSymbol], cut: usize) -> Generate {
    Generate { resumed: generated[..cut].iter().map(|emitted| emitted.symbol).collect(), ..request.clone() }
}

/// Takes the row of a session away. Returns a new one.
fn rewound(model: &dyn Model, session: &mut Session) -> SequenceRow {
    session.rewind();
    fresh_row(model, session)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn the_rest_is_that_of_the_whole(
        seed: u64, cut: usize, chunk in 1_usize..12, losses in prop::collection::vec(1_usize..30, 0..3),
    ) {
        let Some(request) = resumed_request(seed) else { return Ok(()) };
        let whole = alone(Job::Generate(request.clone()), chunk);
        let generated = generated(&request, &whole);
        let cut = cut % (generated.len() + 1);
        let request = resumed(&request, generated, cut);
        let toy = Toy::new();
        let mut session = Session::generate(request, toy.card()).unwrap();
        let mut row = fresh_row(&*toy, &session);
        let (rest, _) = drive(&mut session, &*toy, &mut row, chunk, |session, row, step, _| {
            if losses.contains(&step) {
                *row = rewound(&*toy, session);
            }
        });
        let before = if cut == 0 { whole.characters.len() - generated.len() } else { 0 };
        prop_assert_eq!(&rest.characters[before..], &generated[cut..]);
        prop_assert_eq!(&rest.reason, &whole.reason);
        prop_assert_eq!(rest.usage, Usage { resumed_chars: cut, ..whole.usage });
    }
}

#[test]
fn a_complete_text_ends_without_another_symbol() {
    let request = Generate { resumed: vec![1, 2, 3], ..generate(&[1], 3) };
    let output = alone(Job::Generate(request), 8);
    assert_eq!((output.characters, output.reason), (Vec::new(), FinishReason::MaxChars));
    assert_eq!((output.usage.generated_chars, output.usage.resumed_chars), (3, 3));
    let mut request = Generate { resumed: vec![1, 2, 3, 1], ..generate(&[1], 9) };
    request.stopping.stop = vec![vec![2, 3]];
    let output = alone(Job::Generate(request), 8);
    assert_eq!((output.characters, output.reason), (Vec::new(), FinishReason::Stop(0)));
    assert_eq!(output.usage.generated_chars, 3, "the text ended with the stop string");
}

#[test]
fn a_resumed_text_has_limits() {
    let toy = Toy::new();
    let refused = |request: Generate| Session::generate(request, toy.card()).map(drop).unwrap_err();
    let long = refused(Generate { resumed: vec![1; 4], ..generate(&[1], 3) });
    assert!(matches!(long, Error::BadOption { field: "resume_text", .. }), "{long}");
    let full = refused(Generate { resumed: vec![1; 9], ..generate(&[1; MAX_SYMBOLS - 8], 20) });
    assert!(matches!(full, Error::BadOption { field: "resume_text", .. }), "{full}");
    let unknown = refused(Generate { resumed: vec![VOCABULARY as u32], ..generate(&[1], 3) });
    assert!(matches!(unknown, Error::UnknownSymbol { field: "resume_text", .. }), "{unknown}");
}

/// Number of generated symbols.
const CHARS: usize = 3200;

/// Position from which rows are lost. The start of the text has been dropped by then.
const LOSS_START: usize = 2100;

/// Returns models with windows: plain, pooled, and with special symbols.
fn endless_models() -> Vec<(String, Arc<dyn Model>)> {
    let pooled =
        ["windows", "xpos-windows", "learned-windows", "plain-windows", "ngrams-windows", "plain-ngrams-windows"];
    let decoders = ["xpos, blocks of 11", "sinusoidal, last 40", "marked xpos, blocks of 32", "marked alibi, last 40"];
    let all = hourglass::shapes().into_iter().chain(decoder::shapes());
    let models: Vec<_> =
        all.filter(|(name, _)| pooled.contains(&name.as_str()) || decoders.contains(&name.as_str())).collect();
    assert_eq!(models.len(), pooled.len() + decoders.len());
    models
}

fn endless_request(model: &dyn Model, seed: u64, chars: usize) -> Generate {
    let numbers: Vec<u32> = (0..70).map(|i| if i % 6 == 5 { 3 } else { i % 7 }).collect();
    let mut request = generate(&text_symbols(model, &numbers), chars);
    request.sampling.seed = seed;
    request.sampling.temperature = 1.0;
    request.sampling.repetition_penalty = 1.2;
    // An end symbol does not stop the text.
    request.stopping.ignore_end = true;
    request.stopping.stop = vec![text_symbols(model, &[1; 40])];
    request
}

/// Runs a session whose row is replaced where `lose` returns one. Returns the output and the maximum of held symbols.
fn run_losing(
    model: &dyn Model,
    request: &Generate,
    mut lose: impl FnMut(&mut Session, usize) -> Option<SequenceRow>,
) -> (JobOutput, usize) {
    let mut session = Session::generate(request.clone(), model.card()).unwrap();
    let mut row = fresh_row(model, &session);
    let mut max_held = 0;
    let change = |session: &mut Session, row: &mut SequenceRow, _, emitted| {
        max_held = max_held.max(session.text().len() - session.text().dropped());
        if !session.is_prefilling()
            && let Some(other) = lose(session, emitted)
        {
            *row = other;
        }
    };
    let (output, _) = drive(&mut session, model, &mut row, 64, change);
    (output, max_held)
}

#[test]
fn only_the_text_that_a_new_row_needs_is_held() {
    for (name, model) in endless_models() {
        let model = &*model;
        let request = endless_request(model, 5, CHARS);
        let (expected, max_held) = run_losing(model, &request, |_, _| None);
        assert_eq!(expected.characters.len(), CHARS, "{name}");
        assert!(max_held <= 2100, "{name}: {max_held} symbols of {CHARS} were held");
        let mut rng = Random::new(3);
        let mut losses = 0;
        let (output, max_held) = run_losing(model, &request, |session, generated| {
            (generated >= LOSS_START && rng.below(200) == 0).then(|| {
                losses += 1;
                assert!(session.replay_position() > 0, "{name}: no text was dropped");
                rewound(model, session)
            })
        });
        assert_eq!(output, expected, "{name}, from its own text");
        assert!(losses > 0 && max_held <= 2100, "{name}: lost {losses} times, {max_held} held");
        assert_eq!(model.memory().in_use, 0, "{name}: pages leaked");
    }
}

/// Reads events until `count` characters have arrived.
fn read_until(events: &mut weir::engine::Events, characters: &mut Vec<EmittedSymbol>, count: usize) {
    while characters.len() < count {
        match events.blocking_recv().unwrap().unwrap() {
            Event::Characters(symbols) => characters.extend(symbols),
            Event::Started { .. } => {}
            Event::Finished { .. } | Event::Coding(_) | Event::Coded(_) | Event::Next(_) | Event::Document(_) => {
                panic!("ended after {} characters", characters.len())
            }
        }
    }
}

#[test]
fn a_long_generation_is_preempted_and_resumes() {
    for (name, model) in endless_models().into_iter().step_by(2) {
        let job = endless_request(&*model, 8, CHARS);
        let brief = endless_request(&*model, 9, 20);
        let expected = run_alone(Session::generate(job.clone(), model.card()).unwrap(), &*model, 64);
        for cache_bytes in [0, 1 << 20] {
            let engine =
                Handle::start(model.clone(), Limits { rows: 1, events: 16, cache_bytes, ..Limits::default() }).unwrap();
            let mut events = engine.submit(Job::Generate(job.clone()), None).unwrap();
            let mut characters = Vec::new();
            let mut prompt_symbols = 70;
            for until in [LOSS_START, LOSS_START + 400] {
                read_until(&mut events, &mut characters, until);
                // The reader stops, and another request waits for the only row.
                read(engine.submit(Job::Generate(brief.clone()), None).unwrap()).unwrap();
                prompt_symbols += 70;
            }
            let counters = engine.counters();
            assert_eq!(counters.preemptions, 2, "{name}");
            let (output, _) = read_rest(events, characters).unwrap();
            assert_eq!(output, expected, "{name}, {cache_bytes} bytes of cache");
            // The symbols fed again are far fewer than those generated before.
            let replayed = (engine.counters().prefill_chars as usize).saturating_sub(prompt_symbols);
            let limit = if cache_bytes == 0 { 2 * 1500 } else { 2 * 64 };
            assert!(
                replayed <= limit && (replayed > 0 || cache_bytes > 0),
                "{name}: {replayed} symbols were fed again"
            );
            drop(engine);
            assert_eq!(model.memory().in_use, 0, "{name}: pages leaked");
        }
    }
}

#[test]
fn a_prompt_stays_cached_next_to_its_continuation() {
    for (name, model) in endless_models() {
        let cold = engine(&model, 0);
        let warm = engine(&model, 64 << 20);
        let first = endless_request(&*model, 5, 600);
        let answer: Vec<u32> = ask(&cold, &first).0.characters.iter().map(|character| character.symbol).collect();
        let with_prompt = |parts: [&[u32]; 2]| Generate { prompt: parts.concat(), ..first.clone() };
        let more = text_symbols(&*model, &[1, 2, 3, 0, 4]);
        let repeat = with_prompt([&first.prompt, &[]]);
        let branch = with_prompt([&first.prompt, &more]);
        let chat = with_prompt([&first.prompt, &answer]);
        let next = with_prompt([&chat.prompt, &more]);
        // Each request follows one whose text is longer than its prompt.
        for (request, least) in [(&first, 0), (&repeat, 60), (&branch, 60), (&next, 600), (&chat, 600), (&repeat, 60)] {
            let (expected, _) = ask(&cold, request);
            let (output, cached) = ask(&warm, request);
            assert_eq!(output, expected, "{name}, {} symbols", request.prompt.len());
            let len = request.prompt.len();
            assert!((least..len).contains(&cached), "{name}: {cached} of {len}, at least {least} expected");
        }
        let usage = warm.segment_cache_usage();
        assert!(usage.page_bytes == model.memory().in_use - warm.load().bytes, "{name}: {usage:?}");
        drop(warm);
        // A repeated prompt stays in a cache for a few requests with two entries each.
        let measure = engine(&model, 64 << 20);
        ask(&measure, &first);
        let limit = 4 * measure.segment_cache_usage().bytes;
        drop(measure);
        let (tight, evicted) = counting_evictions(&model, limits(limit));
        for round in 0..if long_runs() { 16 } else { 8 } {
            let numbers: Vec<u32> =
                (0..40).map(|i| if i % 6 == 5 { 3 } else { (i * (round + 2) + round) % 7 }).collect();
            let other =
                Generate { prompt: text_symbols(&*model, &numbers), ..endless_request(&*model, round.into(), 300) };
            for (request, least) in [(&other, 0), (&repeat, if round == 0 { 0 } else { 60 })] {
                let (output, cached) = ask(&tight, request);
                assert_eq!(output, ask(&cold, request).0, "{name}");
                assert!(
                    cached >= least && tight.segment_cache_usage().bytes <= limit,
                    "{name}: {cached}, {:?}",
                    tight.segment_cache_usage()
                );
            }
        }
        assert!(evicted.load(SeqCst) > 0, "{name}");
        drop((cold, tight));
        assert_eq!(model.memory().in_use, 0, "{name}: pages leaked");
    }
}

fn long(seed: u64, max_chars: usize) -> Job {
    let mut request = generate(&[1, 0, 2], max_chars);
    request.sampling.seed = seed;
    Job::Generate(request)
}

#[test]
fn a_stalled_reader_is_ended_after_the_stall_limit() {
    let toy = Toy::new();
    let stall = Duration::from_millis(150);
    let engine = toy.engine(Limits { events: 4, stall, ..Limits::default() });
    let start = Instant::now();
    let slow = engine.submit(long(1, 500), None).unwrap();
    assert_idle(&toy, &engine);
    assert!(start.elapsed() >= stall);
    // The reader receives the ready characters first, then the error.
    let (received, error) = read_to_error(slow);
    assert!(
        matches!(error, Error::Stalled { limit } if limit == stall) && received.len() >= 4,
        "{error}, {received:?}"
    );
    assert_eq!(error.code(), Code::ResourceExhausted);
}

#[test]
fn a_slow_but_steady_reader_is_not_ended() {
    let toy = Toy::new();
    let stall = Duration::from_millis(400);
    let engine = toy.engine(Limits { events: 2, stall, ..Limits::default() });
    // on a busy machine this thread may itself pause for longer than the limit
    let is_answered = (0..5).any(|_| {
        let mut events = engine.submit(long(2, 12), None).unwrap();
        let mut received = 0;
        let start = Instant::now();
        loop {
            thread::sleep(Duration::from_millis(60));
            match events.blocking_recv().unwrap() {
                Ok(Event::Characters(characters)) => received += characters.len(),
                Ok(Event::Finished { .. }) => break,
                Ok(_) => {}
                Err(Error::Stalled { .. }) => return false,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(received == 12 && start.elapsed() > stall);
        true
    });
    assert!(is_answered);
    assert_idle(&toy, &engine);
}

#[test]
fn rows_of_slow_readers_are_preempted_and_resumed() {
    let (toy, engine) = started(Limits { rows: 2, events: 8, ..Limits::default() });
    let mut slow: Vec<_> = (0..2).map(|seed| engine.submit(long(seed, 60), None).unwrap()).collect();
    eventually("both rows have paused", || slow.iter().all(|events| events.len() == 8));
    // Without preemption these requests would wait forever.
    for seed in 0..10 {
        assert_eq!(read(engine.submit(varied(seed), None).unwrap()).unwrap(), alone(varied(seed), 1000));
    }
    assert!(engine.counters().preemptions >= 1);
    let second = slow.pop().unwrap();
    assert_eq!(read(slow.pop().unwrap()).unwrap(), alone(long(0, 60), 1000));
    assert_eq!(read(second).unwrap(), alone(long(1, 60), 1000));
    assert_idle(&toy, &engine);
}

/// Returns an engine with one row, and a job that lost it to another one because its reader does not read.
fn preempted(stall: Duration) -> (Arc<Toy>, Handle, Events) {
    let (toy, engine) = started(Limits { rows: 1, events: 4, stall, ..Limits::default() });
    let slow = engine.submit(long(1, 500), None).unwrap();
    eventually("the row has paused", || slow.len() == 4);
    assert_eq!(read(engine.submit(varied(3), None).unwrap()).unwrap(), alone(varied(3), 1000));
    assert_eq!((engine.counters().preemptions, engine.load().queued), (1, 1));
    (toy, engine, slow)
}

#[test]
fn a_preempted_job_with_a_stalled_reader_is_ended() {
    let (toy, engine, slow) = preempted(Duration::from_secs(2));
    assert_idle(&toy, &engine);
    let (_, error) = read_to_error(slow);
    assert!(matches!(error, Error::Stalled { .. }), "{error:?}");
}

#[test]
fn a_preempted_job_ends_when_its_reader_cancels() {
    let (toy, engine, slow) = preempted(Limits::default().stall);
    drop(slow);
    assert_idle(&toy, &engine);
}
