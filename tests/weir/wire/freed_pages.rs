//! Key-value pages that another tenant used before hold nothing that any call can read.

use super::{Running, connections::channel_from};
use crate::support::converted;
use std::sync::Arc;
use tokio_stream::StreamExt;
use tonic::transport::Channel;
use weir::{
    config::TransportConfig,
    decode::contract::Model,
    engine::{Handle, Limits},
    family::load::{Settings, load},
};
use weir_proto::v1::{
    self, codec_client::CodecClient, compress_request::Part, compress_response::Event as Compressed,
    generate_response::Event, generation_client::GenerationClient, score_response::Event as ScoreEvent,
};

/// Everything that a caller learns from a text, apart from times.
#[derive(Debug, PartialEq)]
struct Answers {
    /// The text and the generated characters, however they are cut into pieces.
    generated: Vec<v1::Character>,
    characters: Vec<v1::Character>,
    segments: Vec<v1::Segment>,
    compressed: Vec<u8>,
}

async fn answers(channel: Channel, text: &str) -> Answers {
    let mut client = GenerationClient::new(channel.clone());
    let request = v1::GenerateRequest {
        prompt: text.into(),
        sampling: Some(v1::Sampling { seed: Some(3), ..Default::default() }),
        stopping: Some(v1::Stopping { max_chars: Some(40), ..Default::default() }),
        details: Some(v1::Details {
            top_logprobs: Some(5),
            logprobs: Some(true),
            echo: Some(true),
            ..Default::default()
        }),
        ..Default::default()
    };
    let mut stream = client.generate(request).await.unwrap().into_inner();
    let mut generated = Vec::new();
    while let Some(message) = stream.next().await {
        if let Some(Event::Piece(piece)) = message.unwrap().event {
            generated.extend(piece.characters);
        }
    }
    let request = v1::ScoreRequest { text: text.into(), seed: Some(3), ..Default::default() };
    let mut stream = client.score(request).await.unwrap().into_inner();
    let mut characters = Vec::new();
    while let Some(message) = stream.next().await {
        if let Some(ScoreEvent::Chunk(chunk)) = message.unwrap().event {
            characters.extend(chunk.characters);
        }
    }
    let request = v1::SegmentRequest { text: text.into(), seed: Some(3), ..Default::default() };
    let segments = client.segment(request).await.unwrap().into_inner().segments;
    let parts = [Part::Options(v1::CompressOptions::default()), Part::Text(text.into())];
    let parts = parts.map(|part| v1::CompressRequest { part: Some(part) });
    let mut stream = CodecClient::new(channel).compress(tokio_stream::iter(parts)).await.unwrap().into_inner();
    let mut compressed = Vec::new();
    while let Some(message) = stream.next().await {
        if let Some(Compressed::Data(data)) = message.unwrap().event {
            compressed.extend(data);
        }
    }
    Answers { generated, characters, segments, compressed }
}

/// Starts a server of a model whose memory holds little more than one text, so that all texts use the same pages.
async fn serve(case: &str) -> (Arc<dyn Model>, Running) {
    let settings = Settings { threads: 1, memory_bytes: 1 << 20, ..Settings::default() };
    let model = load(&converted(case), &settings).unwrap();
    let limits = Limits { cache_bytes: 0, rows: 1, ..Limits::default() };
    let engine = Handle::start(Arc::clone(&model), limits).unwrap();
    (model, Running::start(vec![engine], TransportConfig::default()).await)
}

/// The pool also fills freed pages with NaN in builds with debug assertions, such as this one.
#[tokio::test]
async fn pages_of_another_tenant_hold_nothing_readable() {
    for case in ["whitespaces", "fixed_sf2"] {
        let (used, server) = serve(case).await;
        let (_, fresh) = serve(case).await;
        let secret = "the password is swordfish and nobody else knows it ".repeat(3);
        let alice = answers(channel_from(2, server.address).await, &secret).await;
        assert_eq!(used.memory().in_use, 0, "{case}: the pages are free");
        let text = "a quite different text that another tenant sends later ".repeat(2);
        let bob = answers(channel_from(3, server.address).await, &text).await;
        let expected = answers(channel_from(3, fresh.address).await, &text).await;
        assert!(bob == expected, "{case}: {bob:?}, not {expected:?}");
        assert!(bob != alice && !bob.generated.is_empty() && !bob.characters.is_empty(), "{case}");
        assert!(!bob.segments.is_empty() && !bob.compressed.is_empty(), "{case}");
    }
}
