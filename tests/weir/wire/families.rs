//! H-Nets, Hugging Face models and latent segment models over gRPC.

use super::*;
use crate::wire::editing::Session;
use crate::wire::open_inference as inference;
use crate::wire::open_inference::{next, words};
use weir::models::contract::levels;
use weir_proto::inference::ModelConfigRequest;

const PROMPT: &str = "Chunks of bytes: été.";

/// A server of one golden checkpoint.
type Served = Server<dyn Model>;

impl Served {
    async fn loaded(folder: &Path, settings: Settings, limits: Limits) -> Self {
        let model = load(folder, &settings).unwrap();
        Self::hosting(Arc::clone(&model), model, limits, TransportConfig::default()).await
    }

    async fn hnet(case: &str) -> Self {
        Self::loaded(&checkpoint("hnet", case), settings(), Limits::default()).await
    }

    async fn lslm(case: &str) -> Self {
        let model = model_of("lslm", case, Dtype::F32);
        Self::hosting(Arc::clone(&model), model, Limits::default(), TransportConfig::default()).await
    }

    /// Starts a server of a Hugging Face model whose segment cache is empty, so that requests have all memory.
    async fn hugging_face(model_type: &str) -> Self {
        Self::hugging_face_with(model_type, settings(), Limits { cache_bytes: 0, ..Limits::default() }).await
    }

    /// Starts a server of a Hugging Face model. Models of 256 positions get more.
    async fn hugging_face_with(model_type: &str, settings: Settings, limits: Limits) -> Self {
        let folder = hugging_face::copied(model_type);
        if model_type == "llama" {
            let key = "\"max_position_embeddings\": ";
            hugging_face::edit(&folder.path().join("config.json"), &format!("{key}256"), &format!("{key}16384"));
        }
        Self::loaded(folder.path(), settings, limits).await
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
        let served = Served::hnet(case).await;
        let golden = Golden::open(&golden_data("hnet").join(case));
        // generate: the golden bytes, and the chunks that a full pass over them has
        let prompt_ids = golden.ids("greedy.prompt_ids");
        let answer =
            served.answer(GenerateRequest { prompt_ids: prompt_ids.clone(), ..request("", 60, 0) }).await.unwrap();
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
        let (scored, summary) = served.score(score).await.unwrap();
        check_levels(&summary.levels, &depths(&expected), summary.timing.unwrap());
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
    let served = Served::hnet("two_stage").await;
    let vocabulary = &served.model.card().vocabulary;
    // 254 begins a text, and an empty prompt is that mark alone
    let empty = served.answer(request("", 20, 3)).await.unwrap();
    assert_eq!((empty.started.prompt_chars, empty.started.prompt_text_chars()), (1, 0));
    let by_id = served.answer(GenerateRequest { prompt_ids: vec![254], ..request("", 20, 3) }).await.unwrap();
    assert_eq!((by_id.text(), characters(&by_id)), (empty.text(), characters(&empty)));
    // pieces never end within a code point, and bytes that are no text are replaced
    for seed in 1..6 {
        let answer = served.answer(request("東京 é", 60, seed)).await.unwrap();
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
    let ended = served.answer(chosen(255, false)).await.unwrap();
    assert_eq!((ended.finished.reason(), ended.text()), (FinishReason::EndOfText, String::new()));
    let ignored = served.answer(chosen(255, true)).await.unwrap();
    assert_eq!(ignored.finished.reason(), FinishReason::MaxChars);
    assert!(characters(&ignored).iter().all(|character| character.id != 255));
    let started = served.answer(chosen(254, false)).await.unwrap();
    assert_eq!((started.finished.reason(), started.text()), (FinishReason::MaxChars, String::new()));
    assert_eq!(started.finished.usage.unwrap().generated_chars, 4);
}

#[tokio::test]
async fn other_protocols_have_the_same_text_and_levels() {
    for (folder, case) in [("hnet", "one_stage"), ("hnet", "two_stage"), ("blt", "base")] {
        let served = Served::loaded(&checkpoint(folder, case), settings(), Limits::default()).await;
        let expected = served.answer(request(PROMPT, 40, 5)).await.unwrap();
        let text: String = expected.pieces.iter().map(|piece| piece.text.as_str()).collect();
        let body = json!({
            "prompt": PROMPT, "max_tokens": 40, "seed": 5, "temperature": 1.5, "echo": true, "logprobs": 0,
            "boundaries": true, "ignore_eos": true,
        });
        let choice = served.post(&body).await.json()["choices"][0].clone();
        assert_eq!(choice["text"], text, "{case}");
        let depths: Vec<u32> = characters(&expected).iter().map(|character| character.chunk_depth).collect();
        assert_eq!(choice["logprobs"]["chunk_depths"], json!(depths), "{case}");
        let boundaries: Vec<bool> = characters(&expected).iter().map(|character| character.boundary()).collect();
        assert!(choice["logprobs"]["boundaries"] == json!(boundaries) && boundaries.contains(&true), "{case}");
        check_offsets(&choice["logprobs"], &served.model.card().vocabulary, &text, case);
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
        let streamed = changed(&body, "stream", true);
        let events = served.post(&streamed).await.events();
        let parts = events.iter().filter_map(|event| event["choices"][0]["text"].as_str());
        assert_eq!(parts.collect::<String>(), text, "{case}");
        let sampling = r#"{"max_tokens": 40, "seed": 5, "temperature": 1.5, "ignore_eos": true}"#;
        let inputs = [inference::text("text_input", PROMPT), inference::text("sampling_parameters", sampling)];
        let answer = served.inference().model_infer(inference::request("", &inputs)).await.unwrap().into_inner();
        assert_eq!(words(&answer, "text_output"), text, "{case}");
    }
}

/// Checks that the bytes of the prompt have the offset of their character, and that the offsets of all tokens are in the text.
fn check_offsets(logprobs: &Value, vocabulary: &Vocabulary, text: &str, case: &str) {
    let prompt = vocabulary.encode("text", PROMPT, usize::MAX).unwrap();
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
        let expected = match vocabulary.byte_of(id) {
            None => String::new(),
            Some(byte @ 0x80..) => format!("bytes:\\x{byte:02x}"),
            Some(_) => text.chars().nth(*offset as usize).unwrap().to_string(),
        };
        assert_eq!(*token, expected, "{case}");
    }
    for (token, offset) in tokens.iter().zip(&offsets).filter(|(token, _)| token.is_ascii() && token.len() == 1) {
        assert_eq!(text.chars().nth(*offset as usize), token.chars().next(), "{case}");
    }
}

/// The page lists a Byte Latent Transformer as a pooled model of bytes, with its threshold, which requests may set.
#[tokio::test]
async fn a_request_sets_the_threshold_of_patches() {
    let served = Served::loaded(&checkpoint("blt", "base"), settings(), Limits::default()).await;
    assert!(served.get("/").await.body().contains("model-a"));
    let listed = served.get("/v1/models").await.json()["data"][0].clone();
    assert_eq!((&listed["family"], &listed["pooled"], &listed["token"]), (&json!("blt"), &json!(true), &json!("byte")));
    let own = served.model.card().boundary_threshold;
    assert_eq!(listed["boundary_threshold"].as_f64().map(|own| own as f32), own);
    let steps = |threshold: f32| {
        let body = json!({
            "prompt": PROMPT, "max_tokens": 20, "temperature": 0, "ignore_eos": true, "boundary_threshold": threshold,
        });
        let served = &served;
        async move { served.post(&body).await.json()["choices"][0]["weir"]["middle_steps"].as_u64().unwrap() }
    };
    let [every, default, first] = [steps(0.0).await, steps(own.unwrap()).await, steps(99.0).await];
    assert!(every >= 19 && every > default && default > first && first <= 1, "{every} {default} {first}");
    let refused = served.post(&json!({ "prompt": "a", "boundary_threshold": 101 })).await;
    assert!(refused.0 == 400 && refused.body().contains("boundary_threshold: expected 0 to 100, in nats"));
}

/// A chunk begins with a character, so no completion can end after the last one of a chunk.
#[tokio::test]
async fn editing_refuses_completions_up_to_a_segment() {
    let limits = Limits { cache_bytes: 1 << 20, ..Limits::default() };
    let served = Served::loaded(&checkpoint("hnet", "two_stage"), settings(), limits).await;
    let mut session = Session::open(&served, "ab").await;
    let until = Some(v1::Until::Segment.into());
    let complete = v1::CompleteDocument { id: 1, cursor_byte: 1, until, max_chars: Some(1), ..Default::default() };
    let failure = session.refused(Action::Complete(complete)).await;
    assert_eq!((failure.id, failure.reason.as_str()), (Some(1), "WRONG_KIND_OF_MODEL"));
}

/// A model with keys and values, and one with a recurrent state.
pub(super) const MODELS: [&str; 2] = ["llama", "mamba"];

pub(super) const TOKEN_PROMPT: &str = "The town was founded by settlers from the north. ";

/// Tokens of an answer that takes many seconds.
pub(super) const ENDLESS: u32 = 8000;

/// Returns a greedy request for `tokens` tokens, which no end mark stops.
pub(super) fn token_request(prompt: &str, tokens: u32) -> GenerateRequest {
    GenerateRequest {
        prompt: prompt.into(),
        sampling: Some(v1::Sampling { temperature: Some(0.0), ..Default::default() }),
        stopping: Some(v1::Stopping { max_chars: Some(tokens), ignore_eos: Some(true), ..Default::default() }),
        ..Default::default()
    }
}

/// Returns the same request for the Open Inference Protocol.
fn infer_request(prompt: &str, tokens: u32, streamed: bool) -> ModelInferRequest {
    let sampling = format!(r#"{{"max_tokens": {tokens}, "temperature": 0, "ignore_eos": true}}"#);
    let mut inputs = vec![
        inference::text("text_input", prompt),
        inference::text("sampling_parameters", &sampling),
        inference::flag("exclude_input_in_output", true),
    ];
    if streamed {
        inputs.push(inference::flag("stream", true));
    }
    let outputs = ["text_output", "finish_reason", "num_input_tokens", "num_output_tokens"];
    let wanted = |name: &str| weir_proto::inference::model_infer_request::InferRequestedOutputTensor {
        name: name.into(),
        ..Default::default()
    };
    ModelInferRequest { outputs: outputs.map(wanted).to_vec(), ..inference::request("a", &inputs) }
}

#[tokio::test]
async fn a_cancelled_request_frees_its_row_and_memory() {
    for model_type in MODELS {
        let server = Served::hugging_face(model_type).await;
        let mut stream = server.generation().generate(token_request(TOKEN_PROMPT, ENDLESS)).await.unwrap().into_inner();
        for _ in 0..3 {
            stream.next().await.unwrap().unwrap();
        }
        assert!(server.engine.load().running == 1 && server.model.memory().in_use > 0);
        drop(stream);
        server.at_rest().await;
        // So does a client of the other protocols that leaves.
        let (send, requests) = tokio::sync::mpsc::channel(1);
        let answers = server.inference().model_stream_infer(ReceiverStream::new(requests)).await.unwrap();
        let mut answers = answers.into_inner();
        send.send(infer_request(TOKEN_PROMPT, ENDLESS, true)).await.unwrap();
        next(&mut answers).await;
        assert_eq!(server.engine.load().running, 1, "{model_type}");
        drop((send, answers));
        server.at_rest().await;
    }
}

/// Without enough memory for all requests at once, some are preempted; their texts do not change. A request that never fits is
/// refused.
#[tokio::test]
async fn memory_is_limited() {
    for model_type in MODELS {
        let free = Served::hugging_face(model_type).await;
        let bytes = free.model.bytes_for(260) + free.model.bytes_for(64) / 2;
        let limits = Limits { rows: 4, cache_bytes: 0, ..Limits::default() };
        let tight = Settings { memory_bytes: bytes, ..settings() };
        let server = Served::hugging_face_with(model_type, tight, limits).await;
        let prompts: Vec<String> = (0..4).map(|number| TOKEN_PROMPT[number * 3..].repeat(2)).collect();
        let mut calls = Vec::new();
        for prompt in &prompts {
            calls.push(server.generation().generate(token_request(prompt, 100)).await.unwrap().into_inner());
        }
        for (prompt, call) in prompts.iter().zip(calls) {
            let alone = free.answer(token_request(prompt, 100)).await.unwrap();
            let answer = read(call).await.unwrap();
            assert_eq!(answer.text(), alone.text(), "{model_type}");
            assert_eq!(answer.finished.usage.unwrap().generated_chars, 100);
        }
        server.at_rest().await;
        if model_type == "llama" {
            assert!(server.engine.counters().preemptions > 0, "memory did not run out");
            let status = server.answer(token_request(&TOKEN_PROMPT.repeat(40), 10)).await.unwrap_err();
            assert_eq!(reason(&status), "NEVER_FITS", "{status:?}");
        }
        assert!(server.model.memory().limit <= bytes);
    }
}

/// The playground's page fetches `/v1/models` and streams `/v1/completions`.
#[tokio::test]
async fn the_playground_lists_a_model_and_streams_it() {
    let server = Served::hugging_face("gemma2").await;
    let page = server.get("/").await;
    assert!(page.0 == 200 && page.body().contains("model-a"), "{}", page.0);
    let listed = server.get("/v1/models").await.json();
    let model = &listed["data"][0];
    let name = &server.model.card().name;
    assert_eq!(model["id"], json!(name));
    assert_eq!((&model["token"], &model["family"]), (&json!("piece"), &json!("hugging-face")));
    assert_eq!((&model["pooled"], &model["documents"]), (&json!(false), &Value::Null));
    assert!(model["shape"].as_str().unwrap().starts_with("gemma2: "), "{model}");
    let body = json!({
        "model": name, "prompt": TOKEN_PROMPT, "max_tokens": 24, "temperature": 0, "ignore_eos": true, "boundaries": true,
        "logprobs": 1, "stream": true, "stream_options": { "include_usage": true },
    });
    let events = server.post(&body).await.events();
    let text: String = events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, server.answer(token_request(TOKEN_PROMPT, 24)).await.unwrap().text());
    let tokens: usize =
        events.iter().filter_map(|event| event["choices"][0]["logprobs"]["tokens"].as_array()).map(Vec::len).sum();
    assert_eq!(tokens, 24);
}

/// gRPC and OpenAI's API count the same tokens and characters, in whole answers and in streams.
#[tokio::test]
async fn usage_counts_tokens_and_characters() {
    let server = Served::hugging_face("qwen2").await;
    let query = ModelConfigRequest { name: server.model.card().name.clone(), ..Default::default() };
    let config = server.inference().model_config(query).await.unwrap().into_inner().config.unwrap();
    assert_eq!(config.parameters["token"].string_value, "piece");
    let prompt = "Zürich's café – naïve";
    let expected = server.answer(token_request(prompt, 30)).await.unwrap();
    let usage = expected.finished.usage.unwrap();
    assert_eq!(expected.started.prompt_text_chars(), prompt.chars().count() as u64);
    assert_eq!(usage.prompt_text_chars(), prompt.chars().count() as u64);
    assert_eq!(usage.generated_text_chars(), expected.text().chars().count() as u64);
    assert!(usage.prompt_chars != usage.prompt_text_chars() && usage.generated_chars == 30);
    let counts = |usage: &Value| {
        let keys = ["prompt_tokens", "completion_tokens", "prompt_text_chars", "completion_text_chars"];
        keys.map(|key| usage[key].as_u64().unwrap_or_else(|| panic!("{key}: {usage}")))
    };
    let once = [usage.prompt_chars, 30, usage.prompt_text_chars(), usage.generated_text_chars()];
    let mut body = json!({ "prompt": prompt, "max_tokens": 30, "temperature": 0, "ignore_eos": true });
    assert_eq!(counts(&server.post(&body).await.json()["usage"]), once);
    // A prompt counts once, however many choices it has.
    body["n"] = json!(2);
    assert_eq!(counts(&server.post(&body).await.json()["usage"]), [once[0], 60, once[2], 2 * once[3]]);
    body["n"] = json!(1);
    body["stream"] = json!(true);
    body["stream_options"] = json!({ "include_usage": true, "continuous_usage_stats": true });
    let events = server.post(&body).await.events();
    let mut chars = 0;
    for event in &events {
        chars += event["choices"][0]["text"].as_str().unwrap_or_default().chars().count() as u64;
        let [prompt_tokens, _, prompt_text_chars, completion_text_chars] = counts(&event["usage"]);
        assert_eq!([prompt_tokens, prompt_text_chars, completion_text_chars], [once[0], once[2], chars], "{event}");
    }
    assert_eq!(counts(&events.last().unwrap()["usage"]), once);
}

fn greedy(prompt: String, max_chars: usize, mode: &str) -> v1::GenerateRequest {
    v1::GenerateRequest {
        prompt,
        sampling: Some(v1::Sampling { temperature: Some(0.0), ..Default::default() }),
        stopping: Some(v1::Stopping { max_chars: Some(max_chars as u32), ..Default::default() }),
        boundary_mode: Some(mode.into()),
        ..Default::default()
    }
}

#[tokio::test]
async fn both_drivers_write_the_golden_texts() {
    for case in LSLM_CASES {
        let golden = Golden::open(&golden_data("lslm").join(case));
        let server = Served::lslm(case).await;
        let model = Arc::clone(&server.model);
        let mut client = server.generation();
        let vocabulary = &model.card().vocabulary;
        let specials = vocabulary.specials().unwrap();
        let mut compared = 0;
        for (prompt, mode) in ["open", "closed", "empty", "eos"].iter().flat_map(|p| [(p, "nxt"), (p, "predictor")]) {
            let name = format!("gen.{prompt}.{mode}");
            if !golden.has(&format!("{name}.events")) {
                continue;
            }
            let prompt_ids = &golden.ids(&format!("{name}.prompt_ids"))[1..];
            let prompt = vocabulary.decode(prompt_ids);
            if vocabulary.encode("prompt", &prompt, usize::MAX).unwrap() != prompt_ids {
                // The prompt ends within a code point, which text cannot express.
                continue;
            }
            compared += 1;
            let text = golden.ids(&format!("{name}.text_ids"));
            let ends = text.last() == Some(&specials.end);
            let request = greedy(prompt, text.len() + usize::from(ends), mode);
            let answer = read(client.generate(request.clone()).await.unwrap().into_inner()).await.unwrap();
            assert_eq!(answer.text(), vocabulary.decode(&text), "{case} {name}");
            let reason = if ends { FinishReason::EndOfText } else { FinishReason::MaxChars };
            assert_eq!(answer.finished.reason(), reason, "{case} {name}");
            let usage = answer.finished.usage.unwrap();
            let events = golden.ids(&format!("{name}.events"));
            let nxt = events.iter().filter(|&&event| event == specials.segment_end).count();
            assert_eq!(usage.nxt_steps, nxt as u64, "{case} {name}");
            assert_eq!(usage.generated_chars as usize, text.len() - usize::from(ends));
            // Both drivers send one piece per segment.
            let details = Some(v1::Details { boundaries: Some(true), ..Default::default() });
            let stream = Some(v1::Streaming { per_segment: Some(true), ..Default::default() });
            let request = v1::GenerateRequest { stream, details, ..request };
            let answer = read(client.generate(request).await.unwrap().into_inner()).await.unwrap();
            let z = golden.ids(&format!("{name}.z"));
            let closed = z[1 + prompt_ids.len()..].iter().filter(|&&z| z == 1).count();
            let characters: Vec<_> = answer.pieces.iter().flat_map(|piece| &piece.characters).collect();
            assert_eq!(characters.iter().filter(|c| c.boundary()).count(), closed, "{case} {name}");
            assert!(answer.pieces.len() <= closed + 1, "{case} {name}");
            let marked = characters.iter().filter(|c| c.nxt_logprob.is_some()).count();
            assert_eq!(marked, if mode == "nxt" { closed } else { 0 }, "{case} {name}");
        }
        assert!(compared >= 4, "{case}");
    }
}

/// Chinese and Japanese prompts of a byte-level model.
#[tokio::test]
async fn bytes_come_as_whole_code_points() {
    let server = Served::lslm("byte_vocab").await;
    let model = Arc::clone(&server.model);
    let mut client = server.generation();
    for (seed, prompt) in ["東京の川が流れる。", "河水流过山谷", ""].iter().cycle().take(12).enumerate()
    {
        let details = v1::Details { boundaries: Some(true), ..Default::default() };
        let request = v1::GenerateRequest {
            prompt: (*prompt).into(),
            sampling: Some(v1::Sampling { temperature: Some(2.5), seed: Some(seed as u64), ..Default::default() }),
            stopping: Some(v1::Stopping { max_chars: Some(60), ignore_eos: Some(true), ..Default::default() }),
            details: Some(details),
            ..Default::default()
        };
        let answer = read(client.generate(request).await.unwrap().into_inner()).await.unwrap();
        let ids: Vec<u32> = answer.pieces.iter().flat_map(|piece| &piece.characters).map(|c| c.id).collect();
        assert_eq!((ids.len(), answer.started.prompt_chars as usize), (60, prompt.len()));
        assert_eq!(answer.text(), model.card().vocabulary.decode(&ids), "pieces never split a code point");
    }
    // The echo is complete although segments end within code points.
    let text = "東京の川が流れる。";
    let request = v1::SegmentRequest { text: text.into(), ..Default::default() };
    let answer = client.segment(request).await.unwrap().into_inner();
    assert_eq!(answer.segments.last().unwrap().byte_end as usize, text.len());
    let echo = Some(v1::Details { echo: Some(true), ..Default::default() });
    let request = v1::GenerateRequest { details: echo, ..greedy(text.into(), 1, "nxt") };
    let answer = read(client.generate(request).await.unwrap().into_inner()).await.unwrap();
    // A busy machine may send it in several pieces.
    let echoed: String = answer.pieces.iter().filter(|piece| piece.prompt).map(|piece| piece.text.as_str()).collect();
    assert_eq!(echoed, text);
}

#[tokio::test]
async fn scores_and_cards_contain_special_symbols() {
    for case in ["dp", "byte_vocab"] {
        let server = Served::lslm(case).await;
        let model = Arc::clone(&server.model);
        let vocabulary = &model.card().vocabulary;
        let mut client = server.generation();
        let text = "the server reads ";
        let request = v1::ScoreRequest { text: text.into(), ..Default::default() };
        let (characters, summary) = server.score(request).await.unwrap();
        let symbols = vocabulary.encode("text", text, usize::MAX).unwrap();
        let (_, marks) = full(&*model, &symbols, &BoundaryOptions::default());
        assert!(characters.iter().map(|c| c.nxt_logprob).eq(marks.iter().map(|mark| mark.end_logprob)), "{case}");
        assert!(characters.iter().all(|c| c.logprob.is_some()), "{case}: the first character too");
        assert_eq!(summary.scored_chars as usize, symbols.len());
        let nats: f64 = marks.iter().filter_map(|mark| mark.end_logprob).map(f64::from).sum();
        let bits = -nats / std::f64::consts::LN_2 / symbols.len() as f64;
        assert!((summary.nxt_bits_per_char.unwrap() - bits).abs() < 1e-9 && bits > 0.0, "{case}");
        let card = server.model().await;
        assert_eq!((card.family.as_str(), &card.boundary_modes[..]), ("lslm", &["nxt".into(), "predictor".into()][..]));
        let listed = card.vocabulary.unwrap();
        assert_eq!((listed.marks["segment_end"], listed.marks.len()), (vocabulary.specials().unwrap().segment_end, 5));
        assert_eq!(listed.size as usize, vocabulary.len());
        if case == "dp" {
            assert_eq!(listed.symbols[..6], ["<BoS>", "<eos>", "<bos>", "<nxt>", "<oov>", " "]);
        }
        let wrong = v1::GenerateRequest { boundary_mode: Some("sampled".into()), ..greedy("the".into(), 3, "nxt") };
        let status = client.generate(wrong).await.unwrap_err();
        assert_eq!((&*reason(&status), &*field(&status)), ("BAD_OPTION", "boundary_mode"));
    }
}
