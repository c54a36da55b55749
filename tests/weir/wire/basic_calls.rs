//! Successful calls of each method.

use super::{
    Server,
    fake_model::{Kind, MAX_SYMBOLS, SYMBOLS},
    prompt, seeded,
};
use std::f64::consts::LN_2;
use tokio_stream::StreamExt;
use weir::{config::TransportConfig, engine::Limits, serve::REQUEST_ID};
use weir_proto::v1::{self, FinishReason, score_response::Event as Scored};

#[tokio::test]
async fn the_same_seed_gives_the_same_text() {
    let server = Server::new().await;
    let first = server.answer(prompt("ab c")).await.unwrap();
    let seed = first.finished.seed;
    let again = server.answer(seeded("ab c", seed)).await.unwrap();
    assert_eq!((first.text(), seed), (again.text(), again.finished.seed));
    let other = server.answer(prompt("ab c")).await.unwrap();
    assert_ne!((first.text(), seed), (other.text(), other.finished.seed));

    assert_eq!(first.started.model, "fake");
    assert_eq!((first.started.prompt_chars, first.started.cached_chars), (4, 0));
    assert_eq!(first.text().chars().count(), 256);
    assert_eq!(first.finished.reason(), FinishReason::MaxChars);
    let usage = first.finished.usage.unwrap();
    let timing = first.finished.timing.unwrap();
    let spaces = first.text().chars().filter(|c| *c == ' ').count() as u64;
    assert_eq!((usage.prompt_chars, usage.generated_chars, usage.prompt_segments), (4, 256, 1));
    assert_eq!(usage.generated_segments, spaces);
    assert!(usage.shortening_factor.unwrap() > 1.0);
    assert!(timing.total_ns >= timing.prefill_ns && timing.steps >= 256 && timing.middle_steps > 0);
    assert!(first.pieces.iter().all(|piece| piece.characters.is_empty()));
    server.at_rest().await;
}

#[tokio::test]
async fn requests_have_ids() {
    let server = Server::new().await;
    let mut request = tonic::Request::new(prompt("a"));
    request.metadata_mut().insert(REQUEST_ID, "mine-7".parse().unwrap());
    let response = server.generation().generate(request).await.unwrap();
    assert_eq!(response.metadata().get(REQUEST_ID).unwrap(), "mine-7");
    assert_eq!(super::read(response.into_inner()).await.unwrap().started.request_id, "mine-7");
    let drawn = server.answer(prompt("a")).await.unwrap().started.request_id;
    assert_eq!(drawn.len(), 16);
}

#[tokio::test]
async fn requested_details_are_sent() {
    let server = Server::new().await;
    let details = v1::Details {
        echo: Some(true),
        logprobs: Some(true),
        top_logprobs: Some(3),
        boundaries: Some(true),
        ids: None,
    };
    let answer = server.answer(v1::GenerateRequest { details: Some(details), ..seeded("b ca", 5) }).await.unwrap();
    let echoed: String = answer.pieces.iter().filter(|piece| piece.prompt).map(|piece| piece.text.as_str()).collect();
    assert_eq!(echoed, "b ca");
    let characters: Vec<_> = answer.pieces.iter().flat_map(|piece| &piece.characters).collect();
    let text: String = characters.iter().map(|character| character.text.as_str()).collect();
    assert_eq!(text, format!("b ca{}", answer.text()));
    assert_eq!((characters[0].logprob, characters[0].top.len()), (None, 0));
    for character in &characters {
        assert_eq!(character.text, SYMBOLS[character.id as usize]);
        // The last character has a boundary too: all generated text is fed.
        let boundary = character.boundary.unwrap();
        assert_eq!(boundary, character.text == " ");
        assert_eq!(character.boundary_probability, Some(if boundary { 0.75 } else { 0.25 }));
    }
    for character in &characters[1..] {
        assert!(character.logprob.unwrap() < 0.0);
        assert_eq!(character.top.len(), 3);
        assert!(character.top.is_sorted_by(|a, b| a.logprob >= b.logprob));
    }
    // The options do not change the text.
    assert_eq!(answer.text(), server.answer(seeded("b ca", 5)).await.unwrap().text());
}

#[tokio::test]
async fn pieces_follow_the_streaming_options() {
    let server = Server::new().await;
    let plain = server.answer(seeded("a", 3)).await.unwrap().text();
    let cut = |stream| v1::GenerateRequest { stream: Some(stream), ..seeded("a", 3) };
    let answer = server.answer(cut(v1::Streaming { coalesce_chars: Some(10), ..Default::default() })).await.unwrap();
    let (last, others) = answer.pieces.split_last().unwrap();
    assert!(others.iter().all(|piece| piece.text.chars().count() >= 10) && last.text.chars().count() <= 256);
    assert_eq!(answer.text(), plain);

    let answer = server.answer(cut(v1::Streaming { per_segment: Some(true), ..Default::default() })).await.unwrap();
    let (_, others) = answer.pieces.split_last().unwrap();
    assert!(!others.is_empty() && others.iter().all(|piece| piece.text.find(' ') == Some(piece.text.len() - 1)));
    assert!(answer.pieces.iter().all(|piece| piece.characters.is_empty()), "boundaries were not requested");
    assert_eq!(answer.text(), plain);
}

#[tokio::test]
async fn stop_strings_end_the_text() {
    let server = Server::new().await;
    let plain = server.answer(seeded("a", 3)).await.unwrap().text();
    let stop: String = plain.chars().skip(20).take(4).collect();
    let before = plain.find(&stop).unwrap();
    let stopped = |include| {
        let stop = vec!["!!!!".into(), stop.clone()];
        let stopping = v1::Stopping { stop, include_stop: Some(include), ..Default::default() };
        server.answer(v1::GenerateRequest { stopping: Some(stopping), ..seeded("a", 3) })
    };
    let answer = stopped(false).await.unwrap();
    assert_eq!(answer.text(), plain[..before]);
    assert_eq!((answer.finished.reason(), answer.finished.matched_stop()), (FinishReason::Stop, stop.as_str()));
    assert_eq!(stopped(true).await.unwrap().text(), plain[..before + stop.len()]);
}

#[tokio::test]
async fn other_finish_reasons_are_reported() {
    let server = Server::new().await;
    let stopping = v1::Stopping { max_segments: Some(2), ..Default::default() };
    let answer = server.answer(v1::GenerateRequest { stopping: Some(stopping), ..seeded("a", 3) }).await.unwrap();
    assert_eq!(answer.finished.reason(), FinishReason::MaxSegments);
    assert_eq!(answer.finished.usage.unwrap().generated_segments, 2);
    let full = "a".repeat(MAX_SYMBOLS - 5);
    let stopping = v1::Stopping { max_chars: Some(50), ..Default::default() };
    let answer = server.answer(v1::GenerateRequest { stopping: Some(stopping), ..seeded(&full, 3) }).await.unwrap();
    assert_eq!(answer.finished.reason(), FinishReason::MaxContext);
}

#[tokio::test]
async fn sampled_boundaries_follow_the_seed() {
    let server = Server::new().await;
    let segment = |seed| {
        let mode = Some("sampled".to_owned());
        let text = "abc ".repeat(30);
        let request = v1::SegmentRequest { text, boundary_mode: mode, seed, ..Default::default() };
        let mut client = server.generation();
        async move { client.segment(request).await.unwrap().into_inner() }
    };
    let first = segment(None).await;
    assert_eq!(segment(Some(first.seed)).await.segments, first.segments);
    assert_ne!(segment(Some(first.seed ^ 1)).await.segments, first.segments);
}

#[tokio::test]
async fn a_text_is_scored() {
    let server = Server::new().await;
    let text = "ab ca é".repeat(200);
    let request = v1::ScoreRequest { text: text.clone(), top_logprobs: Some(2), ..Default::default() };
    let mut stream = server.generation().score(request).await.unwrap().into_inner();
    let mut characters = Vec::new();
    let mut summary = None;
    while let Some(message) = stream.next().await {
        assert!(summary.is_none(), "the summary is last");
        match message.unwrap().event.unwrap() {
            Scored::Chunk(chunk) => {
                assert!((1..=512).contains(&chunk.characters.len()));
                characters.extend(chunk.characters);
            }
            Scored::Summary(last) => summary = Some(last),
        }
    }
    let summary = summary.unwrap();
    assert_eq!(characters.iter().map(|character| character.text.as_str()).collect::<String>(), text);
    assert!(characters.iter().all(|character| character.boundary == Some(character.text == " ")));
    let logprobs: Vec<_> = characters.iter().filter_map(|character| character.logprob).collect();
    assert_eq!((logprobs.len(), summary.scored_chars), (1399, 1399));
    let bits = -logprobs.iter().map(|&logprob| f64::from(logprob)).sum::<f64>() / LN_2 / 1399.0;
    assert!((summary.bits_per_char.unwrap() - bits).abs() < 1e-9);
    let usage = summary.usage.unwrap();
    assert_eq!((usage.prompt_chars, usage.prompt_segments), (1400, 400));
    assert_eq!(usage.shortening_factor, Some(3.5));
    server.at_rest().await;
}

#[tokio::test]
async fn a_text_is_cut_into_segments() {
    let server = Server::new().await;
    let request = v1::SegmentRequest { text: "éa b cé".into(), ..Default::default() };
    let answer = server.generation().segment(request).await.unwrap().into_inner();
    assert_eq!(answer.text, "éa b cé");
    let segment = |text: &str, bytes: (u64, u64), chars: (u64, u64), open| v1::Segment {
        text: text.into(),
        byte_start: bytes.0,
        byte_end: bytes.1,
        char_start: chars.0,
        char_end: chars.1,
        boundary_probability: Some(if open { 0.25 } else { 0.75 }),
        open,
        chunk_depth: 0,
    };
    let expected = [
        segment("éa ", (0, 4), (0, 3), false),
        segment("b ", (4, 6), (3, 5), false),
        segment("cé", (6, 9), (5, 7), true),
    ];
    assert_eq!(answer.segments, expected);
    assert_eq!(answer.usage.unwrap().prompt_segments, 2);
    assert!(answer.timing.unwrap().total_ns > 0);
}

#[tokio::test]
async fn a_model_of_bytes_streams_whole_code_points() {
    let server = Server::with(Limits::default(), TransportConfig::default(), &[("bytes", Kind::Bytes)]).await;
    let details = Some(v1::Details { echo: Some(true), logprobs: Some(true), ..Default::default() });
    let answer = server.answer(v1::GenerateRequest { details, ..seeded("a€", 2) }).await.unwrap();
    let complete: String = answer.pieces.iter().map(|piece| piece.text.as_str()).collect();
    assert!(complete.starts_with("a€"));
    let ids: Vec<u8> = answer.pieces.iter().flat_map(|piece| &piece.characters).map(|c| c.id as u8).collect();
    assert_eq!(ids.len(), 4 + 256);
    assert_eq!(String::from_utf8_lossy(&ids), complete);
}

#[tokio::test]
async fn models_are_described() {
    let kinds = [("b", Kind::Pooled), ("a", Kind::Vanilla), ("c", Kind::Bytes)];
    let server = Server::with(Limits::default(), TransportConfig::default(), &kinds).await;
    let models = server.models().list_models(v1::ListModelsRequest {}).await.unwrap().into_inner().models;
    assert_eq!(models.iter().map(|model| model.name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    let get = |name: &str| v1::GetModelRequest { name: Some(name.into()) };
    let model = server.models().get_model(get("b")).await.unwrap().into_inner();
    assert_eq!(model, models[1]);
    assert_eq!((model.family.as_str(), model.dtype.as_str(), model.sha256.as_str()), ("fake", "f32", "00ff"));
    assert_eq!((model.parameters, model.training_length, model.pooled), (7, 64, true));
    assert_eq!((model.exactness.as_str(), model.tolerance), ("bitwise", None));
    assert_eq!(model.boundary_modes, ["threshold", "sampled"]);
    let vocabulary = model.vocabulary.unwrap();
    assert_eq!((vocabulary.symbols, vocabulary.size), (SYMBOLS.map(String::from).to_vec(), 8));
    assert_eq!((vocabulary.bytes, vocabulary.normaliser.as_str()), (false, "none"));
    let limits = model.limits.unwrap();
    assert_eq!((limits.max_symbols, limits.rows, limits.queue), (MAX_SYMBOLS as u64, 32, 256));
    assert_eq!(limits.boundary_wait as usize, Limits::default().boundary_wait);
    let engine = Limits::default();
    assert_eq!((limits.queued_symbols, limits.cache_bytes), (engine.queued_symbols as u64, 0));
    assert_eq!((limits.stall_ns, limits.lowest_priority, limits.highest_priority), (30_000_000_000, -8, 7));
    assert_eq!((limits.message_bytes, limits.stop_strings, limits.top_logprobs), (4 << 20, 16, 20));
    let bytes = models[2].vocabulary.as_ref().unwrap();
    assert_eq!((bytes.size, bytes.symbols.len(), bytes.bytes), (256, 0, true));
    // Each model answers under its own name.
    for name in ["a", "b"] {
        let request = v1::GenerateRequest { model: Some(name.into()), ..prompt("a") };
        assert_eq!(server.answer(request).await.unwrap().started.model, name);
    }
}
