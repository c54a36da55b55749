//! Summaries in the engine, over a model without arithmetic: other requests do not change them, and everything is released.

mod cache;

use super::jobs::eventually;
use crate::document_model::{BLOCK, BYTES, DocumentModel, FAIL, LoggedStep, MARKS, PANIC, TOKENS, logits};
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
        summary::{ByteRange, EncodedDocument, Summarize, SummaryResult, ValidSummarize},
    },
    engine::{DocumentEvent, DocumentSource, Event, Events, Handle, Limits, Terms},
    error::{Code, Error, Result},
};

/// Everything that a summary request returned.
struct Output {
    encoded: Arc<EncodedDocument>,
    /// Text that was streamed before the end.
    text: Vec<u32>,
    summary: SummaryResult,
    /// Tokens and blocks of each progress event.
    progress: Vec<(usize, usize)>,
}

fn read(mut events: Events) -> Result<Output> {
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
            Event::Finished { .. } | Event::Coded(_) | Event::Next(_) => panic!("not the end of a summary"),
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

/// Returns the hypotheses of a beam search without an engine.
fn alone(document: &[u32], request: &Summarize, model: &DocumentModel) -> Vec<Hypothesis> {
    let limits = model.document_encoder().unwrap().limits();
    let ValidSummarize { rules, hypotheses, .. } = request.plan(model.card(), limits, 32).unwrap();
    let mut search = BeamSearch::new(rules, MARKS, 256);
    let mut rows = vec![vec![MARKS.start]];
    loop {
        let row_logits: Vec<_> = rows.iter().map(|row| logits(document, row)).collect();
        match search.advance(row_logits.iter().map(Vec::as_slice)).unwrap() {
            SearchStep::Done => return search.finished()[..hypotheses.min(search.finished().len())].to_vec(),
            SearchStep::Continue(moves) => {
                let extended = |&RowMove { parent, token }: &RowMove| [rows[parent].as_slice(), &[token]].concat();
                rows = moves.iter().map(extended).collect();
            }
        }
    }
}

fn engine(model: &Arc<DocumentModel>, limits: Limits) -> Handle {
    Handle::start(Arc::clone(model) as Arc<dyn Model>, limits).unwrap()
}

/// Submits a request with a complete document.
fn submit(engine: &Handle, ids: &[u32], request: &Summarize, terms: Terms) -> Result<Events> {
    let (upload, incoming) = engine.upload();
    let events = engine.summarize(request, DocumentSource::Uploading(incoming), terms)?;
    upload.push(ids, &vec![ByteRange::default(); ids.len()]);
    upload.close(false);
    Ok(events)
}

fn tenant(name: &str) -> Terms {
    Terms { tenant: name.into(), ..Terms::default() }
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
        let engine = engine(&model, Limits { rows, chunk, document_bytes: 4000, ..Limits::default() });
        let requests: Vec<_> =
            (0..40).map(|number| (document(2 + number * 9, number as u32), varied(number))).collect();
        let readers: Vec<_> = requests
            .iter()
            .enumerate()
            .map(|(number, (ids, request))| submit(&engine, ids, request, tenant(["a", "b", "c"][number % 3])).unwrap())
            .collect();
        for ((ids, request), events) in requests.iter().zip(readers) {
            let output = read(events).unwrap();
            let expected = alone(ids, request, &model);
            assert_eq!(output.summary.hypotheses, expected, "{request:?}");
            let best = &expected[0].tokens;
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
    let engine = engine(&model, Limits::default());
    let ids = document(10 * BLOCK, 1);
    let (upload, incoming) = engine.upload();
    let request = Summarize::default();
    let events = engine.summarize(&request, DocumentSource::Uploading(incoming), None).unwrap();
    for (index, part) in ids.chunks(BLOCK).enumerate() {
        upload.push(part, &[ByteRange { start: 0, end: 1 }; BLOCK]);
        eventually("the first layer has encoded the block", || model.blocks() == index + 1);
    }
    assert_eq!(engine.load().running, 1);
    upload.close(true);
    let output = read(events).unwrap();
    let waits = output.summary.waits;
    assert_eq!((waits.blocks_at_end, waits.blocks), (10, 21));
    assert!(output.encoded.cut && output.encoded.byte_ranges.len() == ids.len());
    assert!(output.progress.is_sorted() && output.progress.last().unwrap().1 >= 20, "{:?}", output.progress);
    assert_eq!(output.summary.hypotheses, alone(&ids, &request, &model));
    assert_idle(&model, &engine);
}

#[test]
fn a_long_document_stalls_no_stream() {
    let model = DocumentModel::new();
    let engine = engine(&model, Limits { chunk: 4, step: Duration::ZERO, ..Limits::default() });
    let ids = document(9, 3);
    let slow = Summarize { beam: Some(1), min_tokens: Some(50), max_tokens: Some(50), ..Summarize::default() };
    model.slow(Duration::from_millis(5));
    let stream = submit(&engine, &ids, &slow, tenant("stream")).unwrap();
    eventually("the stream decodes", || model.log.lock().unwrap().contains(&LoggedStep::Rows(1)));
    model.hold();
    let long: Vec<_> = (0..3)
        .map(|salt| submit(&engine, &document(TOKENS, salt), &Summarize::default(), tenant("long")).unwrap())
        .collect();
    model.slow(Duration::from_millis(1));
    let streamed = read(stream).unwrap();
    assert_eq!(streamed.summary.hypotheses, alone(&ids, &slow, &model));
    let log = model.log.lock().unwrap().clone();
    let first = log.iter().position(|work| *work == LoggedStep::Rows(1)).unwrap();
    let last = log.iter().rposition(|work| *work == LoggedStep::Rows(1)).unwrap();
    // At most one block runs between two steps of the stream, although a block is twice a step's budget.
    let between: Vec<_> = log[first..last].split(|work| matches!(work, LoggedStep::Rows(_))).map(<[_]>::len).collect();
    assert!(between.iter().all(|blocks| *blocks <= 1) && between.contains(&1), "{between:?}");
    for events in long {
        read(events).unwrap();
    }
    assert_idle(&model, &engine);
}

#[test]
fn a_cancelled_request_releases_everything_at_every_stage() {
    let model = DocumentModel::new();
    let engine = engine(&model, Limits { rows: 2, ..Limits::default() });
    let ids = document(80, 4);
    let request = Summarize { beam: Some(2), min_tokens: Some(50), max_tokens: Some(50), ..Summarize::default() };
    // The client cancels during the upload.
    let (upload, incoming) = engine.upload();
    let events = engine.summarize(&request, DocumentSource::Uploading(incoming), None).unwrap();
    upload.push(&ids[..20], &[ByteRange::default(); 20]);
    eventually("the first blocks are encoded", || model.blocks() == 2);
    drop(events);
    assert_idle(&model, &engine);
    drop(upload);
    // The client cancels while the request is queued, encoded and decoded.
    model.hold();
    let running = submit(&engine, &ids, &request, Terms::default()).unwrap();
    let waiting = submit(&engine, &ids, &request, Terms::default()).unwrap();
    drop(waiting);
    model.release();
    drop(running);
    assert_idle(&model, &engine);
    model.slow(Duration::from_millis(1));
    let mut running = submit(&engine, &ids, &request, Terms::default()).unwrap();
    while !matches!(running.blocking_recv(), Some(Ok(Event::Characters(_)))) {}
    drop(running);
    assert_idle(&model, &engine);
    // The uploader is dropped, or reports an error.
    for error in [None, Some(Error::Deadline { stage: "during upload" })] {
        let (upload, incoming) = engine.upload();
        let events = engine.summarize(&request, DocumentSource::Uploading(incoming), None).unwrap();
        upload.push(&ids[..20], &[ByteRange::default(); 20]);
        let expected = error.as_ref().map_or(Code::Cancelled, Error::code);
        match error {
            None => drop(upload),
            Some(error) => upload.fail(error),
        }
        assert_eq!(read(events).err().unwrap().code(), expected);
    }
    // The deadline passes.
    let terms = Terms { deadline: Some(Instant::now() + Duration::from_millis(20)), ..Terms::default() };
    let late = read(submit(&engine, &ids, &request, terms).unwrap()).err().unwrap();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    assert_idle(&model, &engine);
}

#[test]
fn a_failure_ends_only_its_own_request() {
    let model = DocumentModel::new();
    let engine = engine(&model, Limits::default());
    let good = document(60, 5);
    let request = Summarize { min_tokens: Some(40), max_tokens: Some(40), ..Summarize::default() };
    for bad in [PANIC, FAIL] {
        let neighbor = submit(&engine, &good, &request, Terms::default()).unwrap();
        let mut ids = document(60, 6);
        ids[30] = bad;
        let failed = read(submit(&engine, &ids, &request, Terms::default()).unwrap()).err().unwrap();
        let expected = if bad == PANIC { Code::Internal } else { Code::ResourceExhausted };
        assert_eq!(failed.code(), expected, "{failed}");
        assert_eq!(read(neighbor).unwrap().summary.hypotheses, alone(&good, &request, &model));
    }
    assert_idle(&model, &engine);
}

#[test]
fn a_slow_reader_is_preempted_and_loses_nothing() {
    let model = DocumentModel::new();
    let engine = engine(&model, Limits { rows: 2, events: 1, ..Limits::default() });
    let request = Summarize { beam: Some(2), min_tokens: Some(50), max_tokens: Some(50), ..Summarize::default() };
    let first = document(60, 7);
    let other = document(50, 8);
    let slow = submit(&engine, &first, &request, tenant("slow")).unwrap();
    eventually("its rows run", || model.log.lock().unwrap().contains(&LoggedStep::Rows(2)));
    // The request holds all rows, and its reader does not read.
    let quick = read(submit(&engine, &other, &request, tenant("quick")).unwrap()).unwrap();
    assert_eq!(quick.summary.hypotheses, alone(&other, &request, &model));
    let output = read(slow).unwrap();
    assert_eq!(output.summary.hypotheses, alone(&first, &request, &model));
    assert_eq!(output.text, output.summary.hypotheses[0].tokens[..50]);
    assert_idle(&model, &engine);
}

#[test]
fn an_idle_upload_is_preempted_and_resumes() {
    let model = DocumentModel::new();
    let engine = engine(&model, Limits { rows: 2, ..Limits::default() });
    let request = Summarize { beam: Some(2), ..Summarize::default() };
    let first = document(60, 9);
    let other = document(50, 10);
    let (upload, incoming) = engine.upload();
    let idle = engine.summarize(&request, DocumentSource::Uploading(incoming), None).unwrap();
    upload.push(&first[..30], &[ByteRange::default(); 30]);
    eventually("the first blocks are encoded", || model.blocks() == 3);
    let quick = read(submit(&engine, &other, &request, tenant("quick")).unwrap()).unwrap();
    assert_eq!(quick.summary.hypotheses, alone(&other, &request, &model));
    upload.push(&first[30..], &[ByteRange::default(); 30]);
    upload.close(false);
    assert_eq!(read(idle).unwrap().summary.hypotheses, alone(&first, &request, &model));
    assert!(engine.counters().preemptions > 0);
    assert_idle(&model, &engine);
}

/// Tokens that arrive one by one do not keep the rows, although none is late.
#[test]
fn a_trickling_upload_is_preempted() {
    let model = DocumentModel::new();
    let engine = engine(&model, Limits { rows: 2, ..Limits::default() });
    let request = Summarize { beam: Some(2), ..Summarize::default() };
    let first = document(300, 9);
    let other = document(50, 10);
    let (upload, incoming) = engine.upload();
    let slow = engine.summarize(&request, DocumentSource::Uploading(incoming), None).unwrap();
    upload.push(&first[..30], &[ByteRange::default(); 30]);
    eventually("the first blocks are encoded", || model.blocks() == 3);
    let (done, is_done) = std::sync::mpsc::channel();
    let rest = first[30..].to_vec();
    let trickle = std::thread::spawn(move || {
        let mut rest = rest.iter();
        while is_done.recv_timeout(Duration::from_millis(80)).is_err() {
            let token = rest.next().expect("the other request waited for the whole upload");
            upload.push(&[*token], &[ByteRange::default()]);
        }
        rest.for_each(|token| upload.push(&[*token], &[ByteRange::default()]));
        upload.close(false);
    });
    let quick = read(submit(&engine, &other, &request, tenant("quick")).unwrap()).unwrap();
    done.send(()).unwrap();
    assert_eq!(quick.summary.hypotheses, alone(&other, &request, &model));
    assert!(engine.counters().preemptions > 0);
    trickle.join().unwrap();
    assert_eq!(read(slow).unwrap().summary.hypotheses, alone(&first, &request, &model));
    assert_idle(&model, &engine);
}

#[test]
fn impossible_requests_are_rejected_at_once() {
    let model = DocumentModel::with("reader", 2 * TOKENS * BYTES + 3 * 61 * BYTES);
    let engine = engine(&model, Limits { rows: 4, ..Limits::default() });
    let rejection = |request: &Summarize| {
        let (_upload, incoming) = engine.upload();
        engine.summarize(request, DocumentSource::Uploading(incoming), None).err().unwrap().to_string()
    };
    let beam = rejection(&Summarize { beam: Some(5), ..Summarize::default() });
    assert_eq!(beam, "options.beam_size: expected 1 to 4, found 5");
    let fits = rejection(&Summarize { beam: Some(4), max_tokens: Some(59), ..Summarize::default() });
    assert!(fits.starts_with("options.beam_size: expected a request that needs at most "), "{fits}");
    let prompt = super::jobs::generate(&[97], 5);
    let wrong = engine.submit(weir::engine::Job::Generate(prompt), None).err().unwrap();
    assert_eq!(wrong.code(), Code::FailedPrecondition, "{wrong}");
    let text = super::toy_model::Toy::new();
    let other = text.engine(Limits::default());
    let (_upload, incoming) = engine.upload();
    let wrong = other.summarize(&Summarize::default(), DocumentSource::Uploading(incoming), None).err().unwrap();
    assert_eq!(wrong.code(), Code::FailedPrecondition, "{wrong}");
    engine.drain();
    assert!(rejection(&Summarize::default()).starts_with("the server is shutting down"));
    assert_idle(&model, &engine);
}

#[test]
fn storms_release_everything() {
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
    assert_idle(&model, &engine);
    assert!(model.peak() <= 3 * TOKENS * BYTES);
}
