//! H-Nets over gRPC, the OpenAI API and the Open Inference Protocol: nested chunks, marks, bytes, batches, caches and preemption.

use super::{
    GeneratedResponse, Running, eventually,
    http::exchange,
    open_inference::{self as inference, words},
    read,
};
use crate::{
    golden::Golden,
    support::{full, hnet_converted, hnet_golden, settings},
};
use serde_json::{Value, json};
use std::{net::SocketAddr, sync::Arc};
use tokio::{net::TcpListener, sync::mpsc, task::JoinSet};
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use weir::{
    config::TransportConfig,
    decode::{
        boundary::levels,
        contract::{BoundaryOptions, Model, SymbolBoundary},
    },
    engine::{Handle, Limits},
    family::load::{Settings, load},
    serve::{Engines, ServerParts},
};
use weir_proto::{
    inference::grpc_inference_service_client::GrpcInferenceServiceClient,
    v1::{
        self, FinishReason, GenerateRequest, edit_request::Action, edit_response, editing_client::EditingClient,
        generation_client::GenerationClient, score_response::Event,
    },
};

const PROMPT: &str = "Chunks of bytes: été.";

/// A server of one golden checkpoint, with gRPC and HTTP ports.
struct Served {
    model: Arc<dyn Model>,
    engine: Handle,
    running: Running,
    port: SocketAddr,
}

impl Served {
    async fn new(case: &str) -> Self {
        Self::with(case, settings(), Limits::default()).await
    }

    async fn with(case: &str, settings: Settings, limits: Limits) -> Self {
        let model = load(&hnet_converted(case), &settings).unwrap();
        let engine = Handle::start(Arc::clone(&model), limits).unwrap();
        let http = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = http.local_addr().unwrap();
        let parts = ServerParts { http: Some(http.into()), ..Engines::new(vec![engine.clone()]).unwrap().into() };
        let running = Running::offering(parts, TransportConfig::default()).await;
        Self { model, engine, running, port }
    }

    fn generation(&self) -> GenerationClient<tonic::transport::Channel> {
        GenerationClient::new(self.running.channel.clone())
    }

    async fn answer(&self, request: GenerateRequest) -> GeneratedResponse {
        read(self.generation().generate(request).await.unwrap().into_inner()).await.unwrap()
    }

    /// Runs the requests at the same time, and returns their responses in order.
    async fn answers(&self, requests: Vec<GenerateRequest>) -> Vec<GeneratedResponse> {
        let mut calls = JoinSet::new();
        for (index, request) in requests.into_iter().enumerate() {
            let mut client = self.generation();
            calls.spawn(
                async move { (index, read(client.generate(request).await.unwrap().into_inner()).await.unwrap()) },
            );
        }
        let mut all = calls.join_all().await;
        all.sort_by_key(|(index, _)| *index);
        all.into_iter().map(|(_, answer)| answer).collect()
    }

    async fn post(&self, body: &Value) -> super::http::Reply {
        exchange(self.port, "POST", "/v1/completions", &[], &body.to_string()).await
    }

    fn decisions(&self, symbols: &[u32]) -> Vec<SymbolBoundary> {
        full(&*self.model, symbols, &BoundaryOptions::default()).1
    }

    fn encoded(&self, text: &str) -> Vec<u32> {
        self.model.card().encode("text", text).unwrap()
    }
}

/// Returns a request for exactly `max_chars` symbols, greedy if `seed` is 0.
fn request(prompt: &str, max_chars: u32, seed: u64) -> GenerateRequest {
    let temperature = Some(if seed == 0 { 0.0 } else { 1.5 });
    GenerateRequest {
        prompt: prompt.into(),
        sampling: Some(v1::Sampling { temperature, seed: Some(seed), ..Default::default() }),
        stopping: Some(v1::Stopping { max_chars: Some(max_chars), ignore_eos: Some(true), ..Default::default() }),
        details: Some(v1::Details { echo: Some(true), boundaries: Some(true), ..Default::default() }),
        ..Default::default()
    }
}

fn characters(answer: &GeneratedResponse) -> Vec<&v1::Character> {
    answer.pieces.iter().flat_map(|piece| &piece.characters).collect()
}

fn depths(decisions: &[SymbolBoundary]) -> Vec<u32> {
    decisions.iter().map(|decision| decision.depth.into()).collect()
}

/// Checks the levels of a response against the depths of all its symbols.
fn check_levels(levels: &[v1::LevelUsage], depths: &[u32], timing: v1::Timing) {
    let deepest = depths.iter().copied().max().unwrap();
    assert_eq!(levels.len(), if deepest > 1 { deepest as usize } else { 0 });
    let mut around = depths.len() as u64;
    for (level, own) in levels.iter().enumerate() {
        assert_eq!(own.chunks, depths.iter().filter(|depth| **depth > level as u32).count() as u64);
        assert_eq!(own.shortening_factor, around as f64 / own.chunks as f64);
        assert!(own.middle_steps > 0 && own.middle_steps <= own.chunks, "{levels:?}");
        around = own.chunks;
    }
    assert!(levels.first().is_none_or(|outermost| outermost.middle_steps == timing.middle_steps));
}

#[tokio::test]
async fn nested_chunks_are_reported_by_every_call() {
    for case in ["one_stage", "two_stage"] {
        let served = Served::new(case).await;
        let golden = Golden::open(&hnet_golden(case));
        // generate: the golden bytes, and the chunks that a full pass over them has
        let prompt_ids = golden.ids("greedy.prompt_ids");
        let answer = served.answer(GenerateRequest { prompt_ids: prompt_ids.clone(), ..request("", 60, 0) }).await;
        let all = characters(&answer);
        let ids: Vec<u32> = all.iter().map(|character| character.id).collect();
        assert_eq!(ids, [prompt_ids, golden.ids("greedy.ids")].concat(), "{case}");
        let decisions = served.decisions(&ids);
        assert!(all.iter().map(|character| character.chunk_depth).eq(depths(&decisions)), "{case}");
        assert!(all.iter().map(|character| character.boundary()).eq(decisions.iter().map(|mark| mark.boundary)));
        check_levels(&answer.finished.levels, &depths(&decisions), answer.finished.timing.unwrap());
        let usage = answer.finished.usage.unwrap();
        let chunks = decisions.iter().filter(|mark| mark.boundary).count() as u64;
        assert_eq!(usage.prompt_segments + usage.generated_segments, chunks, "{case}");
        // score
        let symbols = served.encoded(PROMPT);
        let expected = served.decisions(&symbols);
        let score = v1::ScoreRequest { text: PROMPT.into(), ..Default::default() };
        let mut stream = served.generation().score(score).await.unwrap().into_inner();
        let mut scored = Vec::new();
        while let Some(message) = stream.next().await {
            match message.unwrap().event.unwrap() {
                Event::Chunk(chunk) => scored.extend(chunk.characters),
                Event::Summary(summary) => check_levels(&summary.levels, &depths(&expected), summary.timing.unwrap()),
            }
        }
        assert!(scored.iter().map(|character| character.chunk_depth).eq(depths(&expected)), "{case}");
        assert!(scored.iter().map(|character| character.id).eq(symbols), "{case}");
        // segment
        let segment = v1::SegmentRequest { text: PROMPT.into(), ..Default::default() };
        let answer = served.generation().segment(segment).await.unwrap().into_inner();
        check_levels(&answer.levels, &depths(&expected), answer.timing.unwrap());
        let nested: Vec<Vec<u32>> =
            answer.boundary_levels.into_iter().map(|level: v1::BoundaryLevel| level.boundaries).collect();
        let all = levels(expected.iter().map(|mark| mark.depth));
        let all: Vec<Vec<u32>> = all.into_iter().map(|level| level.into_iter().map(u32::from).collect()).collect();
        assert_eq!(nested, if all.len() > 1 { all } else { Vec::new() }, "{case}");
        let begun = depths(&expected).into_iter().filter(|depth| *depth > 0);
        assert!(answer.segments.iter().map(|segment| segment.chunk_depth).eq(begun), "{case}");
        assert_eq!(answer.segments.last().unwrap().byte_end as usize, PROMPT.len());
    }
}

#[tokio::test]
async fn marks_and_bytes_are_sent_as_text() {
    let served = Served::new("two_stage").await;
    let vocabulary = &served.model.card().vocabulary;
    // 254 begins a text, and an empty prompt is that mark alone
    let empty = served.answer(request("", 20, 3)).await;
    assert_eq!((empty.started.prompt_chars, empty.started.prompt_text_chars()), (1, 0));
    let by_id = served.answer(GenerateRequest { prompt_ids: vec![254], ..request("", 20, 3) }).await;
    assert_eq!((by_id.text(), characters(&by_id)), (empty.text(), characters(&empty)));
    // pieces never end within a code point, and bytes that are no text are replaced
    for seed in 1..6 {
        let answer = served.answer(request("東京 é", 60, seed)).await;
        let ids: Vec<u32> = characters(&answer).iter().map(|character| character.id).collect();
        assert_eq!(ids[0], 254);
        let text: String = answer.pieces.iter().map(|piece| piece.text.as_str()).collect();
        assert_eq!(text, vocabulary.decode(&ids), "seed {seed}");
        assert!(text.starts_with("東京 é"), "{text}");
    }
    // 255 ends a text, unless the request ignores it; 254 is a symbol without text
    let chosen = |id, ignore_eos| {
        let mut request = request("ab", 4, 0);
        request.sampling.as_mut().unwrap().logit_bias =
            vec![v1::LogitBias { symbol: Some(v1::logit_bias::Symbol::Id(id)), bias: 1000.0 }];
        request.stopping.as_mut().unwrap().ignore_eos = Some(ignore_eos);
        request
    };
    let ended = served.answer(chosen(255, false)).await;
    assert_eq!((ended.finished.reason(), ended.text()), (FinishReason::EndOfText, String::new()));
    let ignored = served.answer(chosen(255, true)).await;
    assert_eq!(ignored.finished.reason(), FinishReason::MaxChars);
    assert!(characters(&ignored).iter().all(|character| character.id != 255));
    let started = served.answer(chosen(254, false)).await;
    assert_eq!((started.finished.reason(), started.text()), (FinishReason::MaxChars, String::new()));
    assert_eq!(started.finished.usage.unwrap().generated_chars, 4);
}

#[tokio::test]
async fn rows_of_a_batch_equal_each_row_alone() {
    let requests: Vec<_> =
        (0..32).map(|row| request(&"Rows begin their chunks at different bytes. "[row..], 16, row as u64)).collect();
    for case in ["one_stage", "two_stage"] {
        let one = Served::with(case, settings(), Limits { rows: 1, cache_bytes: 0, ..Limits::default() }).await;
        let mut alone = Vec::new();
        for request in &requests {
            alone.push(one.answer(request.clone()).await);
        }
        let batch = Served::with(case, settings(), Limits { rows: 32, cache_bytes: 0, ..Limits::default() }).await;
        for rows in [2, 32] {
            let answers = batch.answers(requests[..rows].to_vec()).await;
            for (row, (answer, alone)) in answers.iter().zip(&alone).enumerate() {
                assert_eq!(characters(answer), characters(alone), "{case}, row {row} of {rows}");
                assert_eq!(answer.text(), alone.text(), "{case}, row {row} of {rows}");
            }
        }
        assert!(batch.engine.counters().segment_rows > batch.engine.counters().segment_steps, "{case}: never together");
    }
}

/// States cannot be rewound: a replay feeds the text again.
#[tokio::test]
async fn cached_and_preempted_sequences_keep_their_bytes() {
    for (case, chars) in [("one_stage", 400), ("two_stage", 1000)] {
        let free = Served::with(case, settings(), Limits { cache_bytes: 0, ..Limits::default() }).await;
        let plain = |prompt: &str, chars, seed| GenerateRequest { details: None, ..request(prompt, chars, seed) };
        let requests: Vec<_> = (1..5).map(|seed| plain(&PROMPT[..8 + seed as usize], chars, seed)).collect();
        let expected = free.answers(requests.clone()).await;
        let chunks =
            |answer: &GeneratedResponse| answer.finished.levels.iter().map(|own| own.chunks).collect::<Vec<_>>();
        // memory for four sequences when they begin, but not when they end
        let memory_bytes = (4 * free.model.bytes_for(80)).max(free.model.bytes_for(20 + chars as usize));
        let limits = Limits { rows: 4, cache_bytes: 0, ..Limits::default() };
        let tight = Served::with(case, Settings { memory_bytes, ..settings() }, limits).await;
        // a fast machine may finish one request before the next arrives
        for _ in 0..50 {
            let answers = tight.answers(requests.clone()).await;
            for (answer, expected) in answers.iter().zip(&expected) {
                assert_eq!(answer.text(), expected.text(), "{case}");
                assert_eq!(chunks(answer), chunks(expected), "{case}");
            }
            if tight.engine.counters().preemptions > 0 {
                break;
            }
        }
        assert!(tight.engine.counters().preemptions > 0, "{case}: memory did not run out");
        eventually("all pages are free", || tight.model.memory().in_use == 0).await;
        // the prompt, and then the prompt with the first answer, come from the cache
        let limits = Limits { cache_bytes: 64 << 20, ..Limits::default() };
        let cached = Served::with(case, settings(), limits).await;
        let long = PROMPT.repeat(6);
        let expected = free.answer(plain(&long, 60, 7)).await;
        let cold = cached.answer(plain(&long, 60, 7)).await;
        let warm = cached.answer(plain(&long, 60, 7)).await;
        let reused = warm.finished.usage.unwrap();
        assert_eq!(cold.finished.usage.unwrap().cached_chars, 0, "{case}");
        assert!(reused.cached_chars > 0, "{case}: nothing came from the cache");
        assert_eq!((cold.text(), warm.text()), (expected.text(), expected.text()), "{case}");
        assert_eq!((chunks(&cold), chunks(&warm)), (chunks(&expected), chunks(&expected)), "{case}");
    }
}

#[tokio::test]
async fn other_protocols_have_the_same_text_and_levels() {
    for case in ["one_stage", "two_stage"] {
        let served = Served::new(case).await;
        let expected = served.answer(request(PROMPT, 40, 5)).await;
        let text: String = expected.pieces.iter().map(|piece| piece.text.as_str()).collect();
        let body = json!({
            "prompt": PROMPT, "max_tokens": 40, "seed": 5, "temperature": 1.5, "echo": true, "logprobs": 0,
            "boundaries": true, "ignore_eos": true,
        });
        let choice = served.post(&body).await.json()["choices"][0].clone();
        assert_eq!(choice["text"], text, "{case}");
        let depths: Vec<u32> = characters(&expected).iter().map(|character| character.chunk_depth).collect();
        assert_eq!(choice["logprobs"]["chunk_depths"], json!(depths), "{case}");
        check_offsets(&choice["logprobs"], &served.encoded(PROMPT), &text, case);
        let levels = expected.finished.levels.iter().map(|level| {
            json!({
                "chunks": level.chunks, "shortening_factor": level.shortening_factor, "middle_steps": level.middle_steps,
            })
        });
        let levels: Vec<_> = levels.collect();
        let chunks = |value: &Value| -> Vec<Value> {
            value.as_array().into_iter().flatten().map(|level| level["chunks"].clone()).collect()
        };
        assert_eq!(chunks(&choice["weir"]["levels"]), chunks(&json!(levels)), "{case}");
        assert_eq!(choice["weir"].get("levels").is_some(), !levels.is_empty(), "{case}");
        let mut streamed = body.clone();
        streamed["stream"] = true.into();
        let events = served.post(&streamed).await.events();
        let parts = events.iter().filter_map(|event| event["choices"][0]["text"].as_str());
        assert_eq!(parts.collect::<String>(), text, "{case}");
        let sampling = r#"{"max_tokens": 40, "seed": 5, "temperature": 1.5, "ignore_eos": true}"#;
        let inputs = [inference::text("text_input", PROMPT), inference::text("sampling_parameters", sampling)];
        let mut client = GrpcInferenceServiceClient::new(served.running.channel.clone());
        let answer = client.model_infer(inference::request("", &inputs)).await.unwrap().into_inner();
        assert_eq!(words(&answer, "text_output"), text, "{case}");
    }
}

/// Checks that the bytes of the prompt have the offset of their character, and that the offsets of all tokens are in the text.
fn check_offsets(logprobs: &Value, prompt: &[u32], text: &str, case: &str) {
    let tokens: Vec<&str> =
        logprobs["tokens"].as_array().unwrap().iter().map(|token| token.as_str().unwrap()).collect();
    let offsets: Vec<u64> =
        logprobs["text_offset"].as_array().unwrap().iter().map(|offset| offset.as_u64().unwrap()).collect();
    let mut places = vec![0];
    places.extend((0_u64..).zip(PROMPT.chars()).flat_map(|(place, letter)| vec![place; letter.len_utf8()]));
    assert_eq!(offsets[..prompt.len()], places, "{case}");
    let length = text.chars().count() as u64;
    assert!(offsets.is_sorted() && offsets.iter().all(|&offset| offset <= length), "{case}: {offsets:?}");
    for ((token, offset), id) in tokens.iter().zip(&offsets).zip(prompt) {
        let expected = match id {
            254 => String::new(),
            0x80.. => format!("bytes:\\x{id:02x}"),
            _ => text.chars().nth(*offset as usize).unwrap().to_string(),
        };
        assert_eq!(*token, expected, "{case}");
    }
    for (token, offset) in tokens.iter().zip(&offsets).filter(|(token, _)| token.is_ascii() && token.len() == 1) {
        assert_eq!(text.chars().nth(*offset as usize), token.chars().next(), "{case}");
    }
}

/// A chunk begins with a character, so no completion can end after the last one of a chunk.
#[tokio::test]
async fn editing_refuses_completions_up_to_a_segment() {
    let served = Served::with("two_stage", settings(), Limits { cache_bytes: 1 << 20, ..Limits::default() }).await;
    let (requests, receiver) = mpsc::channel(4);
    let mut client = EditingClient::new(served.running.channel.clone());
    let mut responses = client.edit(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    let open = v1::OpenDocument { text: "ab".into(), ..Default::default() };
    let until = Some(v1::Until::Segment.into());
    let complete = v1::CompleteDocument { id: 1, cursor_byte: 1, until, max_chars: Some(1), ..Default::default() };
    for action in [Action::Open(open), Action::Complete(complete)] {
        requests.send(v1::EditRequest { action: Some(action) }).await.unwrap();
    }
    responses.message().await.unwrap();
    match responses.message().await.unwrap().unwrap().event.unwrap() {
        edit_response::Event::Failed(failure) => {
            assert_eq!((failure.id, failure.reason.as_str()), (Some(1), "WRONG_KIND_OF_MODEL"));
        }
        other => panic!("{other:?}"),
    }
}
