//! Documents that are summarized in parts: results, bounds, memory, and the end of the call.

use super::{
    super::{details, reason},
    Server, SummaryResponse, chunk, failed, options, parts, read,
};
use crate::document_model::TOKENS;
use std::time::Duration;
use tonic::{Code, Request, Status};
use weir::{config::TransportConfig, engine::Limits};
use weir_proto::v1::{self, LongDocuments, SummarizeOptions, SummarizeRequest, summarize_response::Event};

fn in_parts() -> SummarizeOptions {
    SummarizeOptions {
        long_documents: Some(LongDocuments::Chunk.into()),
        max_tokens: Some(6),
        ..SummarizeOptions::default()
    }
}

fn plain() -> SummarizeOptions {
    SummarizeOptions { long_documents: None, ..in_parts() }
}

fn sentences(count: usize) -> String {
    (0..count).map(|number| format!("Sentence {number} of the document ends. ")).collect()
}

/// Returns the code and the field of a refusal.
fn refusal(status: &Status) -> (Code, String) {
    let field = details(status).bad_request().map(|bad| bad.field_violations[0].field.clone());
    (status.code(), field.unwrap_or_default())
}

async fn refused(server: &Server, messages: Vec<SummarizeRequest>) -> Status {
    failed(server, tokio_stream::iter(messages)).await
}

/// Checks parts of one round against the summaries of their texts.
async fn check_round(server: &Server, text: &str, round: &[&v1::SummaryPart]) {
    let mut covered = 0;
    for (index, part) in round.iter().enumerate() {
        assert_eq!((part.part as usize, part.round_bytes), (index + 1, text.len() as u64));
        let [start, end] = [part.byte_start, part.byte_end].map(|byte| byte as usize);
        assert!(start <= covered && end > covered, "{start} {end} {covered}");
        covered = end;
        let cut = SummarizeOptions { cut: Some(true), ..plain() };
        let alone = server.answer(cut, &[&text[start..]]).await.unwrap();
        let usage = alone.finished.usage.unwrap();
        assert_eq!(part.summary, alone.text);
        assert_eq!((part.document_tokens, part.summary_tokens), (usage.document_tokens, usage.summary_tokens));
        assert_eq!(end - start, usage.document_bytes.unwrap() as usize);
        let [kept] = &part.selected[..] else { panic!("{:?}", part.selected) };
        assert_eq!(kept.tokens, alone.selected[0].tokens);
        for (span, expected) in kept.spans.iter().zip(&alone.selected[0].spans) {
            assert_eq!(span.byte_start - part.byte_start, expected.byte_start);
            assert_eq!(span.byte_end - part.byte_start, expected.byte_end);
        }
    }
    assert_eq!(covered, text.len());
}

#[tokio::test]
async fn parts_are_summarized_until_one_is_left() {
    let server = Server::new().await;
    let text = sentences(60);
    let chunks: Vec<&str> = [&text[..700], &text[700..1100], &text[1100..]].into();
    let answer = server.answer(in_parts(), &chunks).await.unwrap();
    let SummaryResponse { parts, finished, text: summary, .. } = answer;
    let first: Vec<_> = parts.iter().filter(|part| part.round == 1).collect();
    assert!(first.len() > 4);
    assert_eq!(server.engine.document_cache_usage().entries, 0, "no part is kept");
    check_round(&server, &text, &first).await;
    // the last round reads the summaries of the one before
    let rounds = parts.last().unwrap().round;
    let last: Vec<&str> = parts.iter().filter(|part| part.round == rounds).map(|part| &*part.summary).collect();
    let alone = server.answer(plain(), &[&last.join("\n")]).await.unwrap();
    assert_eq!((&summary, &finished.hypotheses), (&alone.text, &alone.finished.hypotheses));
    // the last message repeats the parts without their spans, and sums their tokens
    let without_spans: Vec<_> =
        parts.iter().map(|part| v1::SummaryPart { selected: Vec::new(), ..part.clone() }).collect();
    assert_eq!((finished.parts, finished.document_id), (without_spans, None));
    let usage = finished.usage.unwrap();
    let alone = alone.finished.usage.unwrap();
    let sum = |count: fn(&v1::SummaryPart) -> u64| parts.iter().map(count).sum::<u64>();
    assert_eq!(usage.document_tokens, sum(|part| part.document_tokens) + alone.document_tokens);
    assert_eq!(usage.summary_tokens, sum(|part| part.summary_tokens) + alone.summary_tokens);
    assert_eq!((usage.document_bytes, usage.cut), (Some(text.len() as u64), false));
    assert_eq!(usage.vectors, alone.vectors);
    let timing = finished.timing.unwrap();
    assert!(timing.total_ns >= timing.time_to_first_token_ns && timing.total_ns >= timing.upload_ns + timing.decode_ns);
    server.at_rest().await;
}

#[tokio::test]
async fn a_document_that_fits_is_summarized_at_once() {
    let server = Server::new().await;
    let text = sentences(8);
    let several = SummarizeOptions { beam_size: Some(3), hypotheses: Some(3), ..in_parts() };
    let answer = server.answer(several.clone(), &[&text]).await.unwrap();
    let alone = server.answer(SummarizeOptions { long_documents: None, ..several }, &[&text]).await.unwrap();
    assert!(answer.parts.is_empty() && answer.finished.parts.is_empty());
    assert_eq!((answer.text, answer.selected), (alone.text, alone.selected));
    assert_eq!((answer.finished.hypotheses.len(), answer.finished.hypotheses), (3, alone.finished.hypotheses));
    assert_eq!(answer.finished.usage, alone.finished.usage);
    let again = SummarizeOptions { document_id: answer.finished.document_id, ..plain() };
    assert_eq!(server.answer(again, &[]).await.unwrap().started.cached_tokens, text.len() as u64 + 1);
    server.at_rest().await;
}

#[tokio::test]
async fn contradictions_and_unsupported_requests_are_refused() {
    let server = Server::new().await;
    let choice = |choice: i32, cut: Option<bool>| SummarizeOptions { long_documents: Some(choice), cut, ..plain() };
    let contradictions = [
        choice(LongDocuments::Refuse.into(), Some(true)),
        choice(LongDocuments::Chunk.into(), Some(true)),
        choice(LongDocuments::Cut.into(), Some(false)),
        choice(9, None),
        SummarizeOptions { document_id: Some("a".into()), ..in_parts() },
    ];
    for wrong in contradictions {
        let status = refused(&server, parts(wrong.clone(), &["a"])).await;
        assert_eq!(refusal(&status), (Code::InvalidArgument, "options.long_documents".into()), "{wrong:?}");
    }
    let long = sentences(60);
    let refuse = choice(LongDocuments::Refuse.into(), Some(false));
    assert_eq!(reason(&refused(&server, parts(refuse, &[&long])).await), "TOO_LONG");
    for cut in [None, Some(true)] {
        let answer = server.answer(choice(LongDocuments::Cut.into(), cut), &[&long]).await.unwrap();
        assert!(answer.finished.usage.unwrap().cut);
    }
    // options are checked before the document is read
    let beam = SummarizeOptions { beam_size: Some(65), ..in_parts() };
    assert_eq!(refusal(&refused(&server, parts(beam, &[])).await).1, "options.beam_size");
    for (messages, field) in [
        (parts(in_parts(), &[]), "chunk.text"),
        (vec![options(in_parts()), options(in_parts())], "options"),
        (vec![options(in_parts()), SummarizeRequest { part: None }], "part"),
    ] {
        assert_eq!(refusal(&refused(&server, messages).await), (Code::InvalidArgument, field.into()));
    }
    server.at_rest().await;
}

#[tokio::test]
async fn documents_with_too_many_parts_or_bytes_are_refused() {
    let server = Server::new().await;
    let blocks = server.model.blocks();
    let long = "a".repeat(65 * TOKENS);
    let status = refused(&server, parts(in_parts(), &[&long])).await;
    assert_eq!(refusal(&status), (Code::InvalidArgument, "options.long_documents".into()));
    assert!(status.message().contains("at most 64 parts, found about 66 parts"), "{}", status.message());
    assert_eq!(server.model.blocks(), blocks, "before any part is summarized");
    // The first part has no overlap and the others one of a quarter, so that the estimate is too low.
    let text = ["b".repeat(2 * TOKENS), format!("{}. ", "a".repeat(318)).repeat(70)].concat();
    let short = SummarizeOptions { max_tokens: Some(1), min_tokens: Some(0), beam_size: Some(1), ..in_parts() };
    let status = refused(&server, parts(short, &[&text])).await;
    assert!(status.message().contains("at most 64 parts, found about 65 parts"), "{}", status.message());
    // one byte more than 16 MiB
    let megabyte = chunk(&"a".repeat(1 << 20));
    let messages = [options(in_parts())].into_iter().chain(std::iter::repeat_n(megabyte, 16)).chain([chunk("a")]);
    let status = refused(&server, messages.collect()).await;
    assert_eq!((refusal(&status).1.as_str(), reason(&status).as_str()), ("chunk.text", "TOO_LONG"));
    assert_eq!(details(&status).error_info().unwrap().metadata["limit"], (16 << 20).to_string());
    server.at_rest().await;
}

#[tokio::test]
async fn the_text_of_a_document_counts_as_request_memory() {
    let config = TransportConfig { message_bytes: 4 << 10, request_memory: 32 << 10, ..TransportConfig::default() };
    let server = Server::with(Limits::default(), config).await;
    let text = sentences(400);
    let chunks: Vec<&str> = text.as_bytes().chunks(2000).map(|bytes| std::str::from_utf8(bytes).unwrap()).collect();
    // A caller may hold 16 KiB. Many times, so that memory that is not released would be missed.
    for _ in 0..4 {
        let status = refused(&server, parts(in_parts(), &chunks)).await;
        assert!(matches!(status.code(), Code::ResourceExhausted | Code::OutOfRange), "{status:?}");
        let answer = server.answer(in_parts(), &chunks[..2]).await.unwrap();
        assert!(answer.parts.len() > 4);
    }
    server.at_rest().await;
}

#[tokio::test]
async fn the_end_of_the_call_ends_its_part() {
    let server = Server::new().await;
    let text = sentences(100);
    server.model.slow(Duration::from_millis(2));
    // the client leaves after the first part
    let messages = parts(in_parts(), &[&text]);
    let mut stream = server.client().summarize(tokio_stream::iter(messages.clone())).await.unwrap().into_inner();
    while !matches!(stream.message().await.unwrap().unwrap().event, Some(Event::Part(_))) {}
    drop(stream);
    server.at_rest().await;
    let blocks = server.model.blocks();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(server.model.blocks(), blocks, "no other part is summarized");
    // its deadline passes
    server.model.hold();
    let mut request = Request::new(tokio_stream::iter(messages));
    request.set_timeout(Duration::from_millis(300));
    let status = failed(&server, request).await;
    assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status:?}");
    server.model.release();
    server.at_rest().await;
    server.answer(plain(), &["the server continues"]).await.unwrap();
}

#[tokio::test]
async fn a_full_queue_refuses_the_first_part() {
    let limits = Limits { rows: 2, queue: 1, ..Limits::default() };
    let server = Server::with(limits, TransportConfig::default()).await;
    server.model.hold();
    let mut calls = Vec::new();
    for _ in 0..3 {
        let messages = parts(plain(), &["one of many"]);
        if let Ok(stream) = server.client().summarize(tokio_stream::iter(messages)).await {
            calls.push(stream.into_inner());
        }
    }
    let status = refused(&server, parts(in_parts(), &[&sentences(60)])).await;
    assert_eq!((status.code(), reason(&status).as_str()), (Code::ResourceExhausted, "QUEUE_FULL"));
    server.model.release();
    for call in calls {
        read(call).await.unwrap();
    }
    assert!(server.answer(in_parts(), &[&sentences(60)]).await.unwrap().parts.len() > 4);
    server.at_rest().await;
}
