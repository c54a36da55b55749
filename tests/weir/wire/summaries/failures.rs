//! Invalid requests, cancellation, a full queue and the shutdown.

use super::{
    super::{
        self as wire, details, eventually,
        hostile::status_of_call,
        http2_frames::{self, DATA, RST_STREAM, frame, sent},
        reason,
    },
    Server, best, chunk, failed, options, parts, read,
};
use crate::document_model::{PANIC, TOKENS};
use prost::Message;
use std::time::Duration;
use tokio::{io::AsyncWriteExt, sync::mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request};
use weir::{config::TransportConfig, decode::summary::Summarize, engine::Limits};
use weir_proto::v1::{
    self, SummarizeOptions, SummarizeRequest, generation_client::GenerationClient, models_client::ModelsClient,
    summarization_client::SummarizationClient,
};

#[tokio::test]
async fn invalid_requests_are_refused_with_the_field() {
    let server = Server::new().await;
    let refused = async |parts: Vec<SummarizeRequest>| {
        let status = failed(&server, tokio_stream::iter(parts)).await;
        let field = details(&status).bad_request().map(|bad| bad.field_violations[0].field.clone());
        (status.code(), field.unwrap_or_default())
    };
    let plain = SummarizeOptions::default;
    let bad = |field: &str| (Code::InvalidArgument, field.to_owned());
    assert_eq!(refused(vec![]).await, bad("options"));
    assert_eq!(refused(vec![chunk("text")]).await, bad("options"));
    assert_eq!(refused(vec![options(plain())]).await, bad("chunk.text"), "no text at all");
    assert_eq!(refused(vec![options(plain()), chunk("")]).await, bad("chunk.text"));
    assert_eq!(refused(vec![options(plain()), options(plain())]).await, bad("options"));
    assert_eq!(refused(vec![options(plain()), SummarizeRequest { part: None }]).await, bad("part"));
    let beam = SummarizeOptions { beam_size: Some(65), ..plain() };
    assert_eq!(refused(parts(beam, &["text"])).await, bad("options.beam_size"));
    let length = SummarizeOptions { max_tokens: Some(1000), ..plain() };
    assert_eq!(refused(parts(length, &["text"])).await, bad("options.max_tokens"));
    let drawn = v1::Sampling { temperature: Some(-1.0), ..Default::default() };
    let sampling = SummarizeOptions { sampling: Some(drawn), ..plain() };
    assert_eq!(refused(parts(sampling, &["text"])).await, bad("sampling.temperature"));
    let model = SummarizeOptions { model: Some("none".into()), ..plain() };
    assert_eq!(refused(parts(model, &["text"])).await.0, Code::NotFound);
    let bytes = http2_frames::message(b"\x12\x03\x0a\x01\xff");
    let first = http2_frames::message(&options(plain()).encode_to_vec());
    for body in [bytes.clone(), [first, bytes].concat()] {
        let status = status_of_call(server.running.address, "/weir.v1.Summarization/Summarize", body, &[]).await;
        let field = details(&status).bad_request().unwrap().field_violations[0].field.clone();
        assert_eq!((status.code(), reason(&status).as_str(), field), (bad("").0, "UNREADABLE", "chunk.text".into()));
    }
    let panics = char::from(PANIC as u8).to_string();
    assert_eq!(refused(parts(plain(), &[&panics])).await.0, Code::Internal);
    server.at_rest().await;
    server.answer(plain(), &["the server continues"]).await.unwrap();
}

#[tokio::test]
async fn wrong_kinds_of_models_are_refused_both_ways() {
    let server = Server::new().await;
    let mut generation = GenerationClient::new(server.running.channel.clone());
    let status = generation.generate(wire::prompt("a")).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::FailedPrecondition, "WRONG_KIND_OF_MODEL"));
    let score = v1::ScoreRequest { text: "a".into(), ..Default::default() };
    assert_eq!(generation.score(score).await.unwrap_err().code(), Code::FailedPrecondition);
    let other = wire::Server::new().await;
    let mut client = SummarizationClient::new(other.channel.clone());
    let status = client.summarize(tokio_stream::iter(parts(Default::default(), &["a"]))).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::FailedPrecondition, "WRONG_KIND_OF_MODEL"));
    let mut models = ModelsClient::new(server.running.channel.clone());
    let model = models.get_model(v1::GetModelRequest::default()).await.unwrap().into_inner();
    let documents = model.documents.unwrap();
    assert_eq!((documents.max_tokens, documents.max_summary_tokens, documents.beam_size), (TOKENS as u64 - 1, 59, 2));
    assert_eq!(documents.poolings.len(), 1);
    assert_eq!(model.limits.unwrap().document_bytes, 1 << 20);
    let model = other.models().get_model(v1::GetModelRequest::default()).await.unwrap().into_inner();
    assert!(model.documents.is_none());
}

#[tokio::test]
async fn cancelled_and_late_requests_release_everything() {
    let server = Server::new().await;
    // during the upload: with a reset frame, and without
    for reset in [true, false] {
        let blocks = server.model.blocks();
        let messages = parts(SummarizeOptions::default(), &[&"a".repeat(50)]);
        let data: Vec<u8> = messages.iter().flat_map(|part| http2_frames::message(&part.encode_to_vec())).collect();
        let call = http2_frames::call(1, "/weir.v1.Summarization/Summarize");
        let bytes = [http2_frames::beginning(), call, frame(DATA, 0, 1, &data)].concat();
        let mut client = sent(server.running.address, &bytes).await;
        eventually("the document is read", || server.model.blocks() >= blocks + 6).await;
        assert_eq!(server.engine.load().running, 1);
        if reset {
            client.write_all(&frame(RST_STREAM, 0, 1, &8_u32.to_be_bytes())).await.unwrap();
            server.at_rest().await;
        }
        drop(client);
        server.at_rest().await;
    }
    // during encoding, at the deadline
    server.model.slow(Duration::from_millis(60));
    let mut request = Request::new(tokio_stream::iter(parts(SummarizeOptions::default(), &[&"late ".repeat(10)])));
    request.set_timeout(Duration::from_millis(150));
    let status = failed(&server, request).await;
    assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status:?}");
    server.model.release();
    server.at_rest().await;
    server.answer(SummarizeOptions::default(), &["the server continues"]).await.unwrap();
}

#[tokio::test]
async fn a_full_queue_refuses_summaries() {
    let limits = Limits { rows: 2, queue: 2, ..Limits::default() };
    let server = Server::with(limits, TransportConfig::default()).await;
    server.model.hold();
    let mut calls = Vec::new();
    let mut refused = 0;
    for _ in 0..8 {
        let parts = parts(SummarizeOptions::default(), &["one of many"]);
        match server.client().summarize(tokio_stream::iter(parts)).await {
            Ok(stream) => calls.push(stream.into_inner()),
            Err(status) => {
                assert_eq!((status.code(), reason(&status).as_str()), (Code::ResourceExhausted, "QUEUE_FULL"));
                refused += 1;
            }
        }
    }
    assert!(refused >= 5, "{refused}");
    server.model.release();
    for call in calls {
        read(call).await.unwrap();
    }
    server.at_rest().await;
}

#[tokio::test]
async fn draining_lets_summaries_finish() {
    let mut server = Server::new().await;
    let (sender, receiver) = mpsc::channel(8);
    sender.send(options(SummarizeOptions::default())).await.unwrap();
    sender.send(chunk("the first half, ")).await.unwrap();
    let stream = server.client().summarize(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    eventually("the document is read", || server.model.blocks() >= 2).await;
    server.running.shut_down();
    // longer than the drain waits for queued requests
    tokio::time::sleep(Duration::from_millis(1300)).await;
    sender.send(chunk("and the second")).await.unwrap();
    drop(sender);
    let answer = read(stream).await.unwrap();
    let text = "the first half, and the second";
    assert_eq!(answer.finished.hypotheses[0].ids, best(text, &Summarize::default(), &server.model).0);
}
