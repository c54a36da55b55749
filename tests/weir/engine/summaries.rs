//! Documents in the engine, over a toy model: the same texts whatever happens beside them, and everything given back.

use super::jobs::eventually;
use crate::document_model::{BLOCK, BYTES, DocumentModel, FAIL, MARKS, PANIC, TOKENS, Work, logits};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use weir::{
    decode::{
        beam::{BeamSearch, Hypothesis, RowMove, SearchStep},
        contract::Model,
        document::PoolingChoice,
        options::{FinishReason, Sampling},
        summary::{EncodedDocument, Summarize, SummaryResult, ValidSummarize},
    },
    engine::{DocumentEvent, DocumentSource, Event, Events, Handle, Limits, Terms},
    error::{Code, Error, Result},
};

/// All that a summary said.
struct Said {
    encoded: Arc<EncodedDocument>,
    /// What was told before the end.
    text: Vec<u32>,
    summary: SummaryResult,
    /// Tokens and blocks, as they went by.
    progress: Vec<(usize, usize)>,
}

fn read(mut events: Events) -> Result<Said> {
    let (mut text, mut encoded, mut progress, mut started) = (Vec::new(), None, Vec::new(), false);
    let mut chosen: Vec<PoolingChoice> = Vec::new();
    loop {
        match events.blocking_recv().expect("the last event tells the end")? {
            Event::Started { .. } => assert!(!std::mem::replace(&mut started, true), "started twice"),
            Event::Document(DocumentEvent::Reading(reading)) => {
                assert!(encoded.is_none());
                progress.push((reading.tokens, reading.blocks));
            }
            Event::Document(DocumentEvent::Chosen(told)) => {
                assert!(encoded.is_none() && !told.choices.is_empty());
                chosen.extend(told.choices);
            }
            Event::Document(DocumentEvent::Encoded(found)) => {
                assert!(found.choices.starts_with(&chosen), "something else was chosen in the end");
                assert!(encoded.replace(found).is_none(), "encoded twice")
            }
            Event::Characters(told) => {
                assert!(encoded.is_some());
                text.extend(told.into_iter().map(|character| character.symbol));
            }
            Event::Finished { .. } => panic!("another kind of end"),
            Event::Document(DocumentEvent::Summarized(summary)) => {
                assert!(started && events.blocking_recv().is_none(), "nothing follows the end");
                let encoded = encoded.expect("it was read");
                return Ok(Said { encoded, text, summary: *summary, progress });
            }
        }
    }
}

/// A document of so many tokens.
fn document(tokens: usize, salt: u32) -> Vec<u32> {
    (0..tokens as u32 - 1).map(|at| 97 + (at * 7 + salt) % 26).chain([MARKS.end]).collect()
}

/// What is written about a document by a search alone.
fn alone(document: &[u32], request: &Summarize, model: &DocumentModel) -> Vec<Hypothesis> {
    let limits = model.document_encoder().unwrap().limits();
    let ValidSummarize { rules, hypotheses, .. } = request.plan(model.card(), limits, 32).unwrap();
    let mut search = BeamSearch::new(rules, MARKS, 256);
    let mut rows = vec![vec![MARKS.start]];
    loop {
        let given: Vec<_> = rows.iter().map(|row| logits(document, row)).collect();
        match search.advance(given.iter().map(Vec::as_slice)).unwrap() {
            SearchStep::Done => return search.finished()[..hypotheses.min(search.finished().len())].to_vec(),
            SearchStep::Continue(moves) => {
                let grown = |&RowMove { parent, token }: &RowMove| [rows[parent].as_slice(), &[token]].concat();
                rows = moves.iter().map(grown).collect();
            }
        }
    }
}

fn engine(model: &Arc<DocumentModel>, limits: Limits) -> Handle {
    Handle::start(Arc::clone(model) as Arc<dyn Model>, limits).unwrap()
}

/// Leaves a whole document.
fn submit(engine: &Handle, ids: &[u32], request: &Summarize, terms: Terms) -> Result<Events> {
    let (upload, arriving) = engine.upload();
    let events = engine.summarize(request, DocumentSource::Uploading(arriving), terms)?;
    upload.push(ids, &vec![(0, 0); ids.len()]);
    upload.close(false);
    Ok(events)
}

fn tenant(name: &str) -> Terms {
    Terms { tenant: name.into(), ..Terms::default() }
}

fn at_rest(model: &DocumentModel, engine: &Handle) {
    eventually("everything is given back", || {
        let load = engine.load();
        (load.queued, load.running, load.bytes, model.alive() - engine.document_cache_usage().entries) == (0, 0, 0, 0)
    });
}

/// A request that follows from a number.
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
        hard: None,
    }
}

#[test]
fn many_documents_at_once_are_written_about_as_alone() {
    for (rows, bytes, chunk) in
        [(32, usize::MAX, 256), (4, usize::MAX, 5), (9, 2 * TOKENS * BYTES + 4 * 60 * BYTES, 64)]
    {
        let model = DocumentModel::with("reader", bytes);
        let engine = engine(&model, Limits { rows, chunk, document_bytes: 4000, ..Limits::default() });
        let asked: Vec<_> = (0..40).map(|number| (document(2 + number * 9, number as u32), varied(number))).collect();
        let readers: Vec<_> = asked
            .iter()
            .enumerate()
            .map(|(number, (ids, request))| submit(&engine, ids, request, tenant(["a", "b", "c"][number % 3])).unwrap())
            .collect();
        for ((ids, request), events) in asked.iter().zip(readers) {
            let said = read(events).unwrap();
            let expected = alone(ids, request, &model);
            assert_eq!(said.summary.hypotheses, expected, "{request:?}");
            let best = &expected[0].tokens;
            assert_eq!(said.text, best[..best.len() - 1], "what was told is the best text");
            assert_eq!(said.summary.usage.prompt_chars, ids.len());
            let ended = best.len() <= request.max_tokens.unwrap();
            assert_eq!(said.summary.reason, if ended { FinishReason::EndOfText } else { FinishReason::MaxChars });
        }
        assert!(model.peak() <= bytes);
        at_rest(&model, &engine);
        assert!(engine.document_cache_usage().bytes <= 4000);
        drop(engine);
        assert_eq!(model.alive(), 0, "the shelf is empty, too");
    }
}

#[test]
fn a_document_is_encoded_while_it_arrives() {
    let model = DocumentModel::new();
    let engine = engine(&model, Limits::default());
    let ids = document(10 * BLOCK, 1);
    let (upload, arriving) = engine.upload();
    let request = Summarize::default();
    let events = engine.summarize(&request, DocumentSource::Uploading(arriving), None).unwrap();
    for (at, part) in ids.chunks(BLOCK).enumerate() {
        upload.push(part, &[(0, 1); BLOCK]);
        eventually("the first layer has read it", || model.blocks() == at + 1);
    }
    assert_eq!(engine.load().running, 1);
    upload.close(true);
    let said = read(events).unwrap();
    let waits = said.summary.waits;
    assert_eq!((waits.blocks_at_end, waits.blocks), (10, 21));
    assert!(said.encoded.cut && said.encoded.places.len() == ids.len());
    assert!(said.progress.is_sorted() && said.progress.last().unwrap().1 >= 20, "{:?}", said.progress);
    assert_eq!(said.summary.hypotheses, alone(&ids, &request, &model));
    at_rest(&model, &engine);
}

#[test]
fn a_kept_document_is_not_encoded_again_and_is_nobody_elses() {
    let model = DocumentModel::new();
    let limits = Limits { document_bytes: 1 << 20, document_keep: Duration::from_millis(400), ..Limits::default() };
    let engine = engine(&model, limits);
    let ids = document(100, 2);
    let first = read(submit(&engine, &ids, &Summarize::default(), tenant("a")).unwrap()).unwrap();
    let id = first.summary.document_id.clone().unwrap();
    let blocks = model.blocks();
    let other = Summarize { beam: Some(4), hypotheses: Some(4), ..varied(1) };
    let again = read(engine.summarize(&other, DocumentSource::Cached(id.clone()), tenant("a")).unwrap()).unwrap();
    assert_eq!(again.summary.hypotheses, alone(&ids, &other, &model));
    assert_eq!((model.blocks(), again.summary.usage.cached_chars), (blocks, ids.len()));
    assert_eq!((again.encoded, again.summary.document_id.as_ref()), (first.encoded, Some(&id)));
    let strange = engine.summarize(&other, DocumentSource::Cached(id.clone()), tenant("b")).err().unwrap();
    assert_eq!(strange.code(), Code::NotFound);
    at_rest(&model, &engine);
    eventually("it expires by itself", || model.alive() == 0);
    let late = engine.summarize(&other, DocumentSource::Cached(id), tenant("a")).err().unwrap();
    assert!(matches!(late, Error::UnknownDocument { .. }));
    assert_eq!((engine.document_cache_usage().hits, engine.document_cache_usage().misses), (1, 2));
}

#[test]
fn a_long_document_stalls_no_stream() {
    let model = DocumentModel::new();
    let engine = engine(&model, Limits { chunk: 4, step: Duration::ZERO, ..Limits::default() });
    let ids = document(9, 3);
    let slow = Summarize { beam: Some(1), min_tokens: Some(50), max_tokens: Some(50), ..Summarize::default() };
    model.slow(Duration::from_millis(1));
    let stream = submit(&engine, &ids, &slow, tenant("stream")).unwrap();
    eventually("it writes", || model.log.lock().unwrap().contains(&Work::Rows(1)));
    let long: Vec<_> = (0..3)
        .map(|salt| submit(&engine, &document(TOKENS, salt), &Summarize::default(), tenant("long")).unwrap())
        .collect();
    let streamed = read(stream).unwrap();
    assert_eq!(streamed.summary.hypotheses, alone(&ids, &slow, &model));
    let log = model.log.lock().unwrap().clone();
    let first = log.iter().position(|work| *work == Work::Rows(1)).unwrap();
    let last = log.iter().rposition(|work| *work == Work::Rows(1)).unwrap();
    // a block between two of its steps at most, though each block is twice a step's budget
    let between: Vec<_> = log[first..last].split(|work| matches!(work, Work::Rows(_))).map(<[_]>::len).collect();
    assert!(between.iter().all(|blocks| *blocks <= 1) && between.contains(&1), "{between:?}");
    for events in long {
        read(events).unwrap();
    }
    at_rest(&model, &engine);
}

#[test]
fn who_goes_gives_all_back_at_every_stage() {
    let model = DocumentModel::new();
    let engine = engine(&model, Limits { rows: 2, ..Limits::default() });
    let ids = document(80, 4);
    let request = Summarize { beam: Some(2), min_tokens: Some(50), max_tokens: Some(50), ..Summarize::default() };
    // while it arrives
    let (upload, arriving) = engine.upload();
    let events = engine.summarize(&request, DocumentSource::Uploading(arriving), None).unwrap();
    upload.push(&ids[..20], &[(0, 0); 20]);
    eventually("it is read", || model.blocks() == 2);
    drop(events);
    at_rest(&model, &engine);
    drop(upload);
    // while it waits, is encoded, is written about
    model.hold();
    let running = submit(&engine, &ids, &request, Terms::default()).unwrap();
    let waiting = submit(&engine, &ids, &request, Terms::default()).unwrap();
    drop(waiting);
    model.release();
    drop(running);
    at_rest(&model, &engine);
    model.slow(Duration::from_millis(1));
    let mut running = submit(&engine, &ids, &request, Terms::default()).unwrap();
    while !matches!(running.blocking_recv(), Some(Ok(Event::Characters(_)))) {}
    drop(running);
    at_rest(&model, &engine);
    // its sender is gone, or says why there will be no more
    for error in [None, Some(Error::Deadline { stage: "on its way" })] {
        let (upload, arriving) = engine.upload();
        let events = engine.summarize(&request, DocumentSource::Uploading(arriving), None).unwrap();
        upload.push(&ids[..20], &[(0, 0); 20]);
        let expected = error.as_ref().map_or(Code::Cancelled, Error::code);
        match error {
            None => drop(upload),
            Some(error) => upload.fail(error),
        }
        assert_eq!(read(events).err().unwrap().code(), expected);
    }
    // its time is over
    let terms = Terms { deadline: Some(Instant::now() + Duration::from_millis(20)), ..Terms::default() };
    let late = read(submit(&engine, &ids, &request, terms).unwrap()).err().unwrap();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    at_rest(&model, &engine);
}

#[test]
fn a_failure_is_its_own_jobs_alone() {
    let model = DocumentModel::new();
    let engine = engine(&model, Limits::default());
    let good = document(60, 5);
    let request = Summarize { min_tokens: Some(40), max_tokens: Some(40), ..Summarize::default() };
    for bad in [PANIC, FAIL] {
        let beside = submit(&engine, &good, &request, Terms::default()).unwrap();
        let mut ids = document(60, 6);
        ids[30] = bad;
        let failed = read(submit(&engine, &ids, &request, Terms::default()).unwrap()).err().unwrap();
        let expected = if bad == PANIC { Code::Internal } else { Code::ResourceExhausted };
        assert_eq!(failed.code(), expected, "{failed}");
        assert_eq!(read(beside).unwrap().summary.hypotheses, alone(&good, &request, &model));
    }
    at_rest(&model, &engine);
}

#[test]
fn a_slow_reader_loses_nothing_and_makes_way() {
    let model = DocumentModel::new();
    let engine = engine(&model, Limits { rows: 2, events: 1, ..Limits::default() });
    let request = Summarize { beam: Some(2), min_tokens: Some(50), max_tokens: Some(50), ..Summarize::default() };
    let (one, other) = (document(60, 7), document(50, 8));
    let slow = submit(&engine, &one, &request, tenant("slow")).unwrap();
    eventually("it is behind", || model.log.lock().unwrap().contains(&Work::Rows(2)));
    // it has all rows, and nobody reads
    let quick = read(submit(&engine, &other, &request, tenant("quick")).unwrap()).unwrap();
    assert_eq!(quick.summary.hypotheses, alone(&other, &request, &model));
    let said = read(slow).unwrap();
    assert_eq!(said.summary.hypotheses, alone(&one, &request, &model));
    assert_eq!(said.text, said.summary.hypotheses[0].tokens[..50]);
    at_rest(&model, &engine);
}

#[test]
fn an_idle_upload_makes_way_and_comes_back() {
    let model = DocumentModel::new();
    let engine = engine(&model, Limits { rows: 2, ..Limits::default() });
    let request = Summarize { beam: Some(2), ..Summarize::default() };
    let (one, other) = (document(60, 9), document(50, 10));
    let (upload, arriving) = engine.upload();
    let idle = engine.summarize(&request, DocumentSource::Uploading(arriving), None).unwrap();
    upload.push(&one[..30], &[(0, 0); 30]);
    eventually("it is read", || model.blocks() == 3);
    let quick = read(submit(&engine, &other, &request, tenant("quick")).unwrap()).unwrap();
    assert_eq!(quick.summary.hypotheses, alone(&other, &request, &model));
    upload.push(&one[30..], &[(0, 0); 30]);
    upload.close(false);
    assert_eq!(read(idle).unwrap().summary.hypotheses, alone(&one, &request, &model));
    assert!(engine.counters().preemptions > 0);
    at_rest(&model, &engine);
}

#[test]
fn what_cannot_be_is_refused_at_once() {
    let model = DocumentModel::with("reader", 2 * TOKENS * BYTES + 3 * 61 * BYTES);
    let engine = engine(&model, Limits { rows: 4, ..Limits::default() });
    let refused = |request: &Summarize| {
        let (_upload, arriving) = engine.upload();
        engine.summarize(request, DocumentSource::Uploading(arriving), None).err().unwrap().to_string()
    };
    let beam = refused(&Summarize { beam: Some(5), ..Summarize::default() });
    assert_eq!(beam, "options.beam_size: 5 is out of bounds: 1 to 4");
    let fits = refused(&Summarize { beam: Some(4), max_tokens: Some(59), ..Summarize::default() });
    assert!(fits.starts_with("options.beam_size: the request can need "), "{fits}");
    let prompt = super::jobs::generate(&[97], 5);
    let wrong = engine.submit(weir::engine::Job::Generate(prompt), None).err().unwrap();
    assert_eq!(wrong.code(), Code::FailedPrecondition, "{wrong}");
    let text = super::toy_model::Toy::new();
    let (other, (_upload, arriving)) = (text.engine(Limits::default()), engine.upload());
    let wrong = other.summarize(&Summarize::default(), DocumentSource::Uploading(arriving), None).err().unwrap();
    assert_eq!(wrong.code(), Code::FailedPrecondition, "{wrong}");
    engine.drain();
    assert!(refused(&Summarize::default()).starts_with("the server is shutting down"));
    at_rest(&model, &engine);
}

#[test]
fn storms_leave_nothing_behind() {
    let model = DocumentModel::with("reader", 3 * TOKENS * BYTES);
    let limits = Limits { rows: 6, queue: 8, chunk: 16, document_bytes: 6000, events: 2, ..Limits::default() };
    let engine = engine(&model, limits);
    let mut readers = Vec::new();
    for number in 0..150_usize {
        let ids = document(2 + number * 37 % (TOKENS / 2), number as u32);
        let request = varied(number * 7);
        match submit(&engine, &ids, &request, tenant(["a", "b"][number % 2])) {
            Ok(events) if number % 4 == 0 => drop(events),
            Ok(events) => readers.push((ids, request, events)),
            Err(error) => assert_eq!(error.code(), Code::ResourceExhausted, "{error}"),
        }
        if number % 8 == 7 {
            for (ids, request, events) in readers.drain(..) {
                assert_eq!(read(events).unwrap().summary.hypotheses, alone(&ids, &request, &model), "{request:?}");
            }
        }
    }
    drop(readers);
    at_rest(&model, &engine);
    assert!(model.peak() <= 3 * TOKENS * BYTES);
}
