//! The segment cache, the document cache, and memory pressure.

use super::*;
use crate::codec::compress;
use crate::document_model::{BLOCK, BYTES, LoggedStep, MARKS, TOKENS, hypotheses};
use crate::engine::harness::counting_evictions;
use crate::engine::resume::tight;
use weir::engine::summary::{ByteRange, EncodedDocument, SummaryResult};
use weir::engine::{DocumentEvent, DocumentSource, DocumentUpload};
use weir::models::contract::PoolingChoice;

const CACHE: usize = 64 << 20;

pub(super) fn limits(cache_bytes: usize) -> Limits {
    Limits { cache_bytes, chunk: 48, events: 4096, ..Limits::default() }
}

pub(super) fn engine(model: &Arc<dyn Model>, cache_bytes: usize) -> Handle {
    Handle::start(model.clone(), limits(cache_bytes)).unwrap()
}

/// Returns a text with a space (id 0) every few letters.
fn text(seed: u64, symbols: usize) -> Vec<u32> {
    let letter = |i: u64| if mix(seed + i).is_multiple_of(5) { 0 } else { 1 + (mix(seed * 31 + i) % 20) as u32 };
    (0..symbols as u64).map(letter).collect()
}

fn request(prompt: &[u32], max_chars: usize, boundaries: &BoundaryOptions) -> Generate {
    let mut request = generate(prompt, max_chars);
    request.sampling.seed = 11;
    request.details = Details { echo: false, logprobs: true, top_logprobs: 2, boundaries: true };
    request.boundaries = boundaries.clone();
    request
}

fn terms_of(tenant: &str) -> Terms {
    Terms { tenant: tenant.into(), ..Terms::default() }
}

fn submit(engine: &Handle, request: &Generate) -> Events {
    engine.submit(Job::Generate(request.clone()), None).unwrap()
}

/// Runs a request. Returns its output and the number of its symbols from the cache.
pub(super) fn ask(engine: &Handle, request: &Generate) -> (JobOutput, usize) {
    let mut output = read(submit(engine, request)).unwrap();
    let cached = std::mem::take(&mut output.usage.cached_chars);
    (output, cached)
}

#[test]
fn a_cache_hit_equals_a_cold_run_on_every_kind_of_model() {
    for (name, model, boundaries) in models() {
        let cold = engine(&model, 0);
        let warm = engine(&model, CACHE);
        let shared = text(1, 120);
        let longer = [&shared[..], &text(2, 30)[..]].concat();
        let other = [&shared[..90], &text(3, 30)[..]].concat();
        for (prompt, least) in [(&shared, 0), (&shared, 80), (&longer, 80), (&other, 60), (&longer, 110)] {
            let request = request(&text_symbols(&*model, prompt), 20, &boundaries);
            let (expected, none) = ask(&cold, &request);
            let (output, cached) = ask(&warm, &request);
            assert_eq!(output, expected, "{name}");
            assert_eq!(none, 0);
            assert!(cached >= least && cached < prompt.len(), "{name}: {cached} of {}", prompt.len());
        }
        let usage = warm.segment_cache_usage();
        assert!(usage.bytes <= CACHE, "{name}: {usage:?}");
        assert_eq!(warm.load().bytes, 0, "{name}: a row still holds memory");
        drop((cold, warm));
        assert_eq!(model.memory().in_use, 0, "{name}: pages leaked");
    }
}

#[test]
fn tenants_seeds_and_modes_share_no_cache_entry() {
    let model = fixture("gumbel");
    let warm = engine(&model, CACHE);
    let prompt = text(5, 100);
    let cached = |tenant: &str, mode, seed| {
        let boundaries = BoundaryOptions { mode: Some(mode), noise: Noise::Seeded(seed), offset: 0, threshold: None };
        let job = Job::Generate(request(&prompt, 3, &boundaries));
        read(warm.submit(job, terms_of(tenant)).unwrap()).unwrap().usage.cached_chars > 0
    };
    let threshold = BoundaryMode::Threshold;
    let sampled = BoundaryMode::Sampled;
    assert!(!cached("a", threshold, 1) && cached("a", threshold, 1), "the same request hits");
    assert!(cached("a", threshold, 2), "the seed matters only to sampled boundaries");
    assert!(!cached("b", threshold, 1), "the entry of another tenant");
    assert!(!cached("a", sampled, 1) && cached("a", sampled, 1) && !cached("a", sampled, 2));
}

#[test]
fn a_scored_text_is_a_cache_entry_for_prompts() {
    let model = fixture("whitespaces");
    let cold = engine(&model, 0);
    let warm = engine(&model, CACHE);
    let symbols = text(7, 150);
    let score = |logprobs| Job::Score(Score { symbols: symbols.clone(), logprobs, ..Score::default() });
    let run = |engine: &Handle, job: Job| read(engine.submit(job, None).unwrap()).unwrap();
    for logprobs in [true, false] {
        let output = run(&warm, score(logprobs));
        assert_eq!(output, run(&cold, score(logprobs)));
        assert_eq!(output.usage.cached_chars, 0, "a reported symbol is always computed");
    }
    let request = request(&symbols, 10, &BoundaryOptions::default());
    let (output, cached) = ask(&warm, &request);
    assert!(output == ask(&cold, &request).0 && cached > 100);
}

#[test]
fn a_prompt_is_shared_while_its_answer_is_generated() {
    let model = fixture("whitespaces");
    let warm = engine(&model, CACHE);
    let shared = text(9, 200);
    // No request has ended: the prompt is cached at the end of its prefill.
    let request = request(&shared, 300, &BoundaryOptions::default());
    let mut first = submit(&warm, &request);
    while !matches!(first.blocking_recv().unwrap().unwrap(), weir::engine::Event::Characters(_)) {}
    assert!(ask(&warm, &request).1 > 150);
    drop(first);
}

#[test]
fn the_cache_is_evicted_for_running_rows() {
    let free = fixture("whitespaces");
    let model = tight("whitespaces", &*free, &settings(), 300);
    let cold = engine(&free, 0);
    // The cache may fill all memory.
    let (warm, evicted) = counting_evictions(&model, limits(model.memory().limit));
    for seed in 0..30 {
        let request = request(&text(seed, 100 + seed as usize * 3), 100, &BoundaryOptions::default());
        assert_eq!(ask(&warm, &request).0, ask(&cold, &request).0, "{seed}");
    }
    let usage = warm.segment_cache_usage();
    assert!(evicted.load(SeqCst) > 0 && usage.entries > 0, "{usage:?}");
    // Several requests fit at a time without cached entries. Their prompts are cached while they run.
    let requests: Vec<_> =
        (0..12).map(|seed| request(&text(100 + seed, 40), 30, &BoundaryOptions::default())).collect();
    let expected: Vec<_> = requests.iter().map(|request| ask(&cold, request).0).collect();
    for (requests, expected) in requests.chunks(3).zip(expected.chunks(3)) {
        let running: Vec<_> = requests.iter().map(|request| submit(&warm, request)).collect();
        for (events, expected) in running.into_iter().zip(expected) {
            assert_eq!(&read(events).unwrap(), expected);
        }
    }
    assert_eq!(warm.counters().preemptions, 0, "a row was preempted for the cache");
    drop(warm);
    assert_eq!(model.memory().in_use, 0);
}

#[test]
fn a_deadline_estimate_counts_cached_symbols() {
    let toy = Toy::new();
    toy.step_ns.store(10_000_000, SeqCst);
    let engine = toy.engine(Limits { chunk: 16, cache_bytes: 1 << 20, ..Limits::default() });
    // A segment ends at the last symbol but one, and is cached.
    let prompt = [vec![2; 1598], vec![0, 1]].concat();
    let job = || Job::Generate(generate(&prompt, 1));
    read(engine.submit(job(), None).unwrap()).unwrap();
    let deadline_in = |time| Terms::from(Some(Instant::now() + time));
    let half = Duration::from_millis(500);
    assert_eq!(read(engine.submit(job(), deadline_in(half)).unwrap()).unwrap().usage.cached_chars, 1599);
    let uncached = Job::Generate(generate(&[vec![3; 1598], vec![0, 1]].concat(), 1));
    assert!(engine.submit(uncached, deadline_in(half)).is_err());
}

/// The second request continues from the states of the first one, although both arrive before there are any.
#[test]
fn a_deadline_estimate_counts_a_shared_text_once() {
    let toy = Toy::new();
    toy.step_ns.store(10_000_000, SeqCst);
    let engine = toy.engine(Limits { rows: 1, chunk: 16, cache_bytes: 1 << 20, ..Limits::default() });
    let job = |start: Vec<u32>, rest: u32| Job::Generate(generate(&[start, vec![rest; 3198], vec![0, 1]].concat(), 1));
    // After this request the rate is known: at most 1,600 symbols a second. A text takes 2 s at least.
    read(engine.submit(job(vec![], 3), None).unwrap()).unwrap();
    let first = engine.submit(job(vec![], 2), None).unwrap();
    let soon = || Terms::from(Some(Instant::now() + Duration::from_secs(3)));
    assert!(engine.submit(job(vec![], 4), soon()).is_err(), "both texts must be read");
    assert!(engine.submit(job(vec![2; 20], 4), soon()).is_err(), "most of both texts must be read");
    drop(engine.submit(job(vec![], 2), soon()).unwrap());
    drop(first);
}

#[test]
fn failed_rows_are_not_cached() {
    let (toy, engine) = started(Limits { cache_bytes: 1 << 20, chunk: 4, ..Limits::default() });
    for symbol in [PANIC, FAIL, PANIC_IN_MIDDLE, PANIC_AT_FINISH, NAN] {
        let prompt = [vec![0; 8], vec![symbol]].concat();
        assert!(read(engine.submit(Job::Generate(generate(&prompt, 5)), None).unwrap()).is_err());
        assert_eq!(engine.segment_cache_usage().entries, 0);
    }
    assert_eq!((toy.sequences(), engine.load().bytes), (0, 0));
}

/// The pool hands out pages filled with NaN in builds with debug assertions, such as this one. So an answer that depends on what a
/// page held before is an error, and differs from a model's with pages that no other request used.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "pages keep their contents without debug assertions")]
fn pages_of_another_tenant_leave_no_trace() {
    let mut compressing = 0;
    for ((name, used, boundaries), (_, fresh, _)) in models().into_iter().zip(models()) {
        for model in [&used, &fresh] {
            assert_eq!(model.memory().in_use, 0, "{name}");
        }
        let answers = |model: &Arc<dyn Model>, tenant: &str, seed: u64| {
            let engine = engine(model, 0);
            // longer than a page, and not a multiple of it
            let symbols = text_symbols(&**model, &text(seed, 150));
            let mut request = request(&symbols, 30, &boundaries);
            request.details.echo = true;
            let run = |job| read(engine.submit(job, terms_of(tenant)).unwrap()).unwrap();
            let score =
                Score { symbols: symbols.clone(), logprobs: true, boundaries: boundaries.clone(), ..Score::default() };
            // some models cannot compress
            let text = model.card().vocabulary.decode(&symbols);
            let compressed = compress(&**model, text.as_bytes(), 1000, 1, 48).map_err(|error| error.to_string());
            (run(Job::Generate(request)), run(Job::Score(score)), compressed)
        };
        let (_, _, other) = answers(&used, "a", 1);
        assert_eq!(used.memory().in_use, 0, "{name}: the pages are free");
        let found = answers(&used, "b", 2);
        assert_eq!(found, answers(&fresh, "b", 2), "{name}");
        if let Ok(data) = found.2 {
            assert!(!data.is_empty() && other != Ok(data), "{name}");
            compressing += 1;
        }
    }
    assert!(compressing > 0, "no model compresses");
}

/// Admission counts the maximum that sequences can hold. If it counted less, a step would run out of pages and fail all
/// its rows. Only fixed boundaries allow an exact count of segments.
#[test]
fn tight_memory_delays_or_rejects_but_fails_no_request() {
    for case in ["fixed_sf2", "fixed_sf3", "fixed_sf4"] {
        // The memory has room for one sequence of 150 symbols: larger ones never fit, and small ones run together.
        let model = tight(case, &*fixture(case), &settings(), 150);
        let limit = model.bytes_for(150);
        assert_eq!(model.memory().limit, limit);
        let engine = Handle::start(model.clone(), Limits { rows: 16, queue: 128, ..Limits::default() }).unwrap();
        let mut rng = Random::new(7);
        let mut accepted = Vec::new();
        let mut rejected = 0;
        for _ in 0..60 {
            let prompt = 1 + rng.below(90);
            let max_chars = 1 + rng.below(90);
            let request = generate(&rng.text(prompt, model.card().vocabulary.len()), max_chars);
            let needed = model.bytes_for(prompt + max_chars);
            match engine.submit(Job::Generate(request), None) {
                Ok(events) => {
                    assert!(needed <= limit);
                    accepted.push((events, max_chars));
                }
                Err(error @ Error::NeverFits { .. }) => {
                    assert_eq!(error.code(), Code::InvalidArgument);
                    assert!(needed > limit);
                    rejected += 1;
                }
                Err(error) => panic!("{case}: {error}"),
            }
        }
        assert!(rejected > 0 && accepted.len() > 30, "{case}: {rejected} rejected");
        assert!(engine.load().queued > 0, "{case}: memory suffices for all at once");
        for (events, max_chars) in accepted {
            let output = read(events).unwrap_or_else(|error| panic!("{case}: {error}"));
            assert_eq!(output.usage.generated_chars, max_chars, "{case}");
        }
        assert_eq!(model.memory().in_use, 0, "{case}");
    }
}

/// Everything that a summary request returned.
struct Output {
    encoded: Arc<EncodedDocument>,
    /// Text that was streamed before the end.
    text: Vec<u32>,
    summary: SummaryResult,
    /// Tokens and blocks of each progress event.
    progress: Vec<(usize, usize)>,
}

fn read_summary(mut events: Events) -> Result<Output> {
    let mut text = Vec::new();
    let mut encoded = None;
    let mut progress = Vec::new();
    let mut started = false;
    let mut chosen: Vec<PoolingChoice> = Vec::new();
    loop {
        match events.blocking_recv().expect("the last event ends the request")? {
            Event::Started { .. } => assert!(!std::mem::replace(&mut started, true), "started twice"),
            Event::Document(DocumentEvent::Reading(reading)) => {
                assert!(encoded.is_none());
                progress.push((reading.tokens, reading.blocks));
            }
            Event::Document(DocumentEvent::Chosen(update)) => {
                assert!(encoded.is_none() && !update.choices.is_empty());
                chosen.extend(update.choices);
            }
            Event::Document(DocumentEvent::Encoded(document)) => {
                assert!(document.choices.starts_with(&chosen), "the final choices differ from the streamed ones");
                assert!(encoded.replace(document).is_none(), "encoded twice")
            }
            Event::Characters(symbols) => {
                assert!(encoded.is_some());
                text.extend(symbols.into_iter().map(|character| character.symbol));
            }
            Event::Finished { .. } | Event::Coding(_) | Event::Coded(_) | Event::Next(_) => {
                panic!("not the end of a summary")
            }
            Event::Document(DocumentEvent::Summarized(summary)) => {
                assert!(started && events.blocking_recv().is_none(), "nothing follows the end");
                let encoded = encoded.expect("the document was encoded");
                return Ok(Output { encoded, text, summary: *summary, progress });
            }
        }
    }
}

/// Returns a document of `tokens` tokens.
fn document(tokens: usize, salt: u32) -> Vec<u32> {
    (0..tokens as u32 - 1).map(|index| 97 + (index * 7 + salt) % 26).chain([MARKS.end]).collect()
}

/// Reads the summary of a document, which must be the one that it has without an engine.
fn checked(events: Events, document: &[u32], request: &Summarize, model: &DocumentModel) -> Output {
    let output = read_summary(events).unwrap();
    assert_eq!(output.summary.hypotheses, hypotheses(document, request, model, 32), "{request:?}");
    output
}

fn document_engine(model: &Arc<DocumentModel>, limits: Limits) -> Handle {
    Handle::start(Arc::clone(model) as Arc<dyn Model>, limits).unwrap()
}

/// Submits a request with a complete document.
fn submit_document(engine: &Handle, ids: &[u32], request: &Summarize, terms: Terms) -> Result<Events> {
    let (upload, incoming) = engine.upload();
    let events = engine.summarize(request, DocumentSource::Uploading(incoming), terms)?;
    upload.push(ids, &vec![ByteRange::default(); ids.len()]);
    upload.close(false);
    Ok(events)
}

/// Submits a request whose document begins with `ids`.
fn uploading(engine: &Handle, request: &Summarize, ids: &[u32]) -> (DocumentUpload, Events) {
    let (upload, incoming) = engine.upload();
    let events = engine.summarize(request, DocumentSource::Uploading(incoming), None).unwrap();
    upload.push(ids, &vec![ByteRange::default(); ids.len()]);
    (upload, events)
}

fn assert_idle(model: &DocumentModel, engine: &Handle) {
    eventually("everything is released", || {
        let load = engine.load();
        (load.queued, load.running, load.bytes, model.alive() - engine.document_cache_usage().entries) == (0, 0, 0, 0)
    });
}

/// Returns a request whose options are derived from `number`.
fn varied(number: usize) -> Summarize {
    let sampling = (number % 5 == 4).then(|| Sampling { seed: number as u64, ..Sampling::default() });
    Summarize {
        beam: Some(1 + number % 4),
        length_penalty: Some([1.0, 0.5, 2.0][number % 3]),
        min_tokens: Some(number % 6),
        max_tokens: Some(8 + number % 30),
        no_repeat_ngram: Some([0, 2, 3][number % 3]),
        sampling,
        hypotheses: Some(1 + number % 4),
        ..Summarize::default()
    }
}

#[test]
fn concurrent_documents_have_the_summaries_they_have_alone() {
    for (rows, bytes, chunk) in
        [(32, usize::MAX, 256), (4, usize::MAX, 5), (9, 2 * TOKENS * BYTES + 4 * 60 * BYTES, 64)]
    {
        let model = DocumentModel::with("reader", bytes);
        let engine = document_engine(&model, Limits { rows, chunk, document_bytes: 4000, ..Limits::default() });
        let requests: Vec<_> =
            (0..40).map(|number| (document(2 + number * 9, number as u32), varied(number))).collect();
        let submit = |(number, (ids, request)): (usize, &(Vec<u32>, Summarize))| {
            submit_document(&engine, ids, request, terms_of(["a", "b", "c"][number % 3])).unwrap()
        };
        let readers: Vec<_> = requests.iter().enumerate().map(submit).collect();
        for ((ids, request), events) in requests.iter().zip(readers) {
            let output = checked(events, ids, request, &model);
            let best = &output.summary.hypotheses[0].tokens;
            assert_eq!(output.text, best[..best.len() - 1], "the streamed text is the best hypothesis");
            assert_eq!(output.summary.usage.prompt_chars, ids.len());
            let ended = best.len() <= request.max_tokens.unwrap();
            assert_eq!(output.summary.reason, if ended { FinishReason::EndOfText } else { FinishReason::MaxChars });
        }
        assert!(model.peak() <= bytes);
        assert_idle(&model, &engine);
        assert!(engine.document_cache_usage().bytes <= 4000);
        drop(engine);
        assert_eq!(model.alive(), 0, "the document cache still holds memory");
    }
}

#[test]
fn a_document_is_encoded_while_it_arrives() {
    let model = DocumentModel::new();
    let engine = document_engine(&model, Limits::default());
    let ids = document(10 * BLOCK, 1);
    let request = Summarize::default();
    let (upload, events) = uploading(&engine, &request, &[]);
    for (index, part) in ids.chunks(BLOCK).enumerate() {
        upload.push(part, &[ByteRange { start: 0, end: 1 }; BLOCK]);
        eventually("the first layer has encoded the block", || model.blocks() == index + 1);
    }
    assert_eq!(engine.load().running, 1);
    upload.close(true);
    let output = checked(events, &ids, &request, &model);
    let waits = output.summary.waits;
    assert_eq!((waits.blocks_at_end, waits.blocks), (10, 21));
    assert!(output.encoded.cut && output.encoded.byte_ranges.len() == ids.len());
    assert!(output.progress.is_sorted() && output.progress.last().unwrap().1 >= 20, "{:?}", output.progress);
    assert_idle(&model, &engine);
}

#[test]
fn a_long_document_stalls_no_stream() {
    let model = DocumentModel::new();
    let engine = document_engine(&model, Limits { chunk: 4, step: Duration::ZERO, ..Limits::default() });
    let ids = document(9, 3);
    let slow = Summarize { beam: Some(1), min_tokens: Some(50), max_tokens: Some(50), ..Summarize::default() };
    model.gate.slow(Duration::from_millis(5));
    let stream = submit_document(&engine, &ids, &slow, terms_of("stream")).unwrap();
    eventually("the stream decodes", || model.log.lock().unwrap().contains(&LoggedStep::Rows(1)));
    model.gate.hold(0);
    let long: Vec<_> = (0..3)
        .map(|salt| submit_document(&engine, &document(TOKENS, salt), &Summarize::default(), terms_of("long")).unwrap())
        .collect();
    model.gate.slow(Duration::from_millis(1));
    checked(stream, &ids, &slow, &model);
    let log = model.log.lock().unwrap().clone();
    let first = log.iter().position(|work| *work == LoggedStep::Rows(1)).unwrap();
    let last = log.iter().rposition(|work| *work == LoggedStep::Rows(1)).unwrap();
    // At most one block runs between two steps of the stream, although a block is twice a step's budget.
    let between: Vec<_> = log[first..last].split(|work| matches!(work, LoggedStep::Rows(_))).map(<[_]>::len).collect();
    assert!(between.iter().all(|blocks| *blocks <= 1) && between.contains(&1), "{between:?}");
    for events in long {
        read_summary(events).unwrap();
    }
    assert_idle(&model, &engine);
}

#[test]
fn a_cancelled_request_releases_everything_at_every_stage() {
    let model = DocumentModel::new();
    let engine = document_engine(&model, Limits { rows: 2, ..Limits::default() });
    let ids = document(80, 4);
    let request = Summarize { beam: Some(2), min_tokens: Some(50), max_tokens: Some(50), ..Summarize::default() };
    // The client cancels during the upload.
    let (upload, events) = uploading(&engine, &request, &ids[..20]);
    eventually("the first blocks are encoded", || model.blocks() == 2);
    drop(events);
    assert_idle(&model, &engine);
    drop(upload);
    // The client cancels while the request is queued, encoded and decoded.
    model.gate.hold(0);
    let running = submit_document(&engine, &ids, &request, Terms::default()).unwrap();
    let waiting = submit_document(&engine, &ids, &request, Terms::default()).unwrap();
    drop(waiting);
    model.gate.release();
    drop(running);
    assert_idle(&model, &engine);
    model.gate.slow(Duration::from_millis(1));
    let mut running = submit_document(&engine, &ids, &request, Terms::default()).unwrap();
    while !matches!(running.blocking_recv(), Some(Ok(Event::Characters(_)))) {}
    drop(running);
    assert_idle(&model, &engine);
    // The uploader is dropped, or reports an error.
    for error in [None, Some(Error::Deadline { stage: "during upload" })] {
        let (upload, events) = uploading(&engine, &request, &ids[..20]);
        let expected = error.as_ref().map_or(Code::Cancelled, Error::code);
        match error {
            None => drop(upload),
            Some(error) => upload.fail(error),
        }
        assert_eq!(read_summary(events).err().unwrap().code(), expected);
    }
    // The deadline passes.
    let terms = Terms { deadline: Some(Instant::now() + Duration::from_millis(20)), ..Terms::default() };
    let late = read_summary(submit_document(&engine, &ids, &request, terms).unwrap()).err().unwrap();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    assert_idle(&model, &engine);
}

#[test]
fn a_failure_ends_only_its_own_request() {
    let model = DocumentModel::new();
    let engine = document_engine(&model, Limits::default());
    let good = document(60, 5);
    let request = Summarize { min_tokens: Some(40), max_tokens: Some(40), ..Summarize::default() };
    for bad in [crate::document_model::PANIC, crate::document_model::FAIL] {
        let neighbor = submit_document(&engine, &good, &request, Terms::default()).unwrap();
        let mut ids = document(60, 6);
        ids[30] = bad;
        let failed = read_summary(submit_document(&engine, &ids, &request, Terms::default()).unwrap()).err().unwrap();
        let expected = if bad == crate::document_model::PANIC { Code::Internal } else { Code::ResourceExhausted };
        assert_eq!(failed.code(), expected, "{failed}");
        checked(neighbor, &good, &request, &model);
    }
    assert_idle(&model, &engine);
}

#[test]
fn a_slow_reader_is_preempted_and_loses_nothing() {
    let model = DocumentModel::new();
    let engine = document_engine(&model, Limits { rows: 2, events: 1, ..Limits::default() });
    let request = Summarize { beam: Some(2), min_tokens: Some(50), max_tokens: Some(50), ..Summarize::default() };
    let first = document(60, 7);
    let other = document(50, 8);
    let slow = submit_document(&engine, &first, &request, terms_of("slow")).unwrap();
    eventually("its rows run", || model.log.lock().unwrap().contains(&LoggedStep::Rows(2)));
    // The request holds all rows, and its reader does not read.
    checked(submit_document(&engine, &other, &request, terms_of("quick")).unwrap(), &other, &request, &model);
    let output = checked(slow, &first, &request, &model);
    assert_eq!(output.text, output.summary.hypotheses[0].tokens[..50]);
    assert_idle(&model, &engine);
}

/// Neither an idle upload nor tokens that arrive one by one, none of them late, keep the rows.
#[test]
fn a_slow_upload_is_preempted_and_resumes() {
    for trickles in [false, true] {
        let model = DocumentModel::new();
        let engine = document_engine(&model, Limits { rows: 2, ..Limits::default() });
        let request = Summarize { beam: Some(2), ..Summarize::default() };
        let first = document(300, 9);
        let other = document(50, 10);
        let (upload, slow) = uploading(&engine, &request, &first[..30]);
        eventually("the first blocks are encoded", || model.blocks() == 3);
        let (done, is_done) = std::sync::mpsc::channel();
        let rest = first[30..].to_vec();
        let uploader = std::thread::spawn(move || {
            let push = |token: &u32| upload.push(&[*token], &[ByteRange::default()]);
            let mut rest = rest.iter();
            while is_done.recv_timeout(Duration::from_millis(80)).is_err() {
                if trickles {
                    push(rest.next().expect("the other request waited for the whole upload"));
                }
            }
            rest.for_each(push);
            upload.close(false);
        });
        checked(submit_document(&engine, &other, &request, terms_of("quick")).unwrap(), &other, &request, &model);
        done.send(()).unwrap();
        assert!(engine.counters().preemptions > 0);
        uploader.join().unwrap();
        checked(slow, &first, &request, &model);
        assert_idle(&model, &engine);
    }
}

#[test]
fn impossible_requests_are_rejected_at_once() {
    let model = DocumentModel::with("reader", 2 * TOKENS * BYTES + 3 * 61 * BYTES);
    let engine = document_engine(&model, Limits { rows: 4, ..Limits::default() });
    let rejection = |request: &Summarize| {
        let (_upload, incoming) = engine.upload();
        engine.summarize(request, DocumentSource::Uploading(incoming), None).err().unwrap().to_string()
    };
    let beam = rejection(&Summarize { beam: Some(5), ..Summarize::default() });
    assert_eq!(beam, "options.beam_size: expected 1 to 4, found 5");
    let fits = rejection(&Summarize { beam: Some(4), max_tokens: Some(59), ..Summarize::default() });
    assert!(fits.starts_with("options.beam_size: expected a request that needs at most "), "{fits}");
    let prompt = generate(&[97], 5);
    let wrong = engine.submit(weir::engine::Job::Generate(prompt), None).err().unwrap();
    assert_eq!(wrong.code(), Code::FailedPrecondition, "{wrong}");
    let text = Toy::new();
    let other = text.engine(Limits::default());
    let (_upload, incoming) = engine.upload();
    let wrong = other.summarize(&Summarize::default(), DocumentSource::Uploading(incoming), None).err().unwrap();
    assert_eq!(wrong.code(), Code::FailedPrecondition, "{wrong}");
    engine.drain();
    assert!(rejection(&Summarize::default()).starts_with("the server is shutting down"));
    assert_idle(&model, &engine);
}
