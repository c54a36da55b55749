//! Calls of `Generate`: prompts, pieces, stop conditions, the end byte, speculation and the choice of a model.

use super::*;
use weir::engine::speculation::Speculation;

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
    assert_eq!(crate::wire::read(response.into_inner()).await.unwrap().started.request_id, "mine-7");
    let drawn = server.answer(prompt("a")).await.unwrap().started.request_id;
    assert_eq!(drawn.len(), 16);
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
    let (characters, summary) = server.score(request).await.unwrap();
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
async fn models_are_described() {
    let kinds = [("b", Kind::Pooled), ("a", Kind::Vanilla), ("c", Kind::Bytes)];
    let server = Server::of(&kinds, Limits::default(), TransportConfig::default()).await;
    let models = server.models().list_models(v1::ListModelsRequest {}).await.unwrap().into_inner().models;
    assert_eq!(models.iter().map(|model| model.name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    let get = |name: &str| v1::GetModelRequest { name: Some(name.into()) };
    let model = server.models().get_model(get("b")).await.unwrap().into_inner();
    assert_eq!(model, models[1]);
    assert_eq!((model.tolerance, &model.documents), (None, &None));
    let limits = model.limits.unwrap();
    let engine = Limits::default();
    assert_eq!(
        (limits.boundary_wait as usize, limits.queued_symbols as usize),
        (engine.boundary_wait, engine.queued_symbols)
    );
    let bytes = models[2].vocabulary.as_ref().unwrap();
    assert_eq!((bytes.size, bytes.symbols.len(), bytes.bytes), (256, 0, true));
    let query = weir_proto::inference::ModelConfigRequest { name: "c".into(), ..Default::default() };
    let config = server.inference().model_config(query).await.unwrap().into_inner().config.unwrap();
    assert_eq!(config.parameters["token"].string_value, "byte");
    // Each model answers under its own name.
    for name in ["a", "b"] {
        let request = v1::GenerateRequest { model: Some(name.into()), ..prompt("a") };
        assert_eq!(server.answer(request).await.unwrap().started.model, name);
    }
}

/// The default of `response_bytes` is higher. These need fewer characters.
const RESPONSE_BYTES: usize = 256 << 10;

const INFER_RESPONSE_BYTES: usize = 32 << 10;

fn small() -> TransportConfig {
    TransportConfig { response_bytes: RESPONSE_BYTES, ..TransportConfig::default() }
}

/// A completion that takes more memory than one response may: 4 × 1,000 characters, each with details.
fn large() -> Value {
    json!({ "prompt": "a", "n": 4, "max_tokens": 1000, "echo": true, "logprobs": 5 })
}

#[tokio::test]
async fn a_large_completion_has_to_be_streamed() {
    let server = Server::within(small()).await;
    let reply = server.post(&large()).await;
    assert_eq!(reply.refused(), (400, "invalid_request_error".into(), "stream".into()));
    let limit = format!("{RESPONSE_BYTES} bytes of a response that is not streamed");
    assert!(reply.body().contains(&limit) && reply.body().contains("set stream to true"), "{}", reply.body());
    server.at_rest().await;
    let reply = server.post(&changed(&large(), "stream", true)).await;
    assert!(reply.events().len() > 4);
    // Without details the characters take little memory.
    let reply = server.post(&changed(&large(), "logprobs", Value::Null)).await;
    assert_eq!(reply.json()["choices"].as_array().unwrap().len(), 4);
    server.at_rest().await;
}

/// Collected responses share their memory with the requests that arrive.
#[tokio::test]
async fn the_memory_of_collected_responses_is_shared_and_released() {
    let config = TransportConfig {
        response_bytes: 64 << 20,
        request_memory: 1792 << 10,
        message_bytes: 64 << 10,
        ..TransportConfig::default()
    };
    let server = Server::within(config).await;
    for _ in 0..4 {
        let reply = server.post(&large()).await;
        assert_eq!((reply.0, reply.json()["error"]["code"].as_str()), (429, Some("queue_full")), "{}", reply.body());
        // A tenth fits, and only if the memory of the refused one was released.
        let reply = server.post(&changed(&large(), "max_tokens", 100)).await;
        assert_eq!(reply.0, 200, "{}", reply.body());
    }
    server.at_rest().await;
}

/// Returns a request for `tokens` characters with their log-probabilities.
pub(super) fn inference(tokens: i64) -> ModelInferRequest {
    let outputs =
        ["text_output", "logprobs"].map(|name| InferRequestedOutputTensor { name: name.into(), ..Default::default() });
    ModelInferRequest { outputs: outputs.to_vec(), ..open_inference::continuation("a", tokens) }
}

#[tokio::test]
async fn a_large_inference_has_to_be_streamed() {
    let config = TransportConfig { response_bytes: INFER_RESPONSE_BYTES, ..TransportConfig::default() };
    let server = Server::within(config).await;
    let mut client = server.inference();
    let status = client.model_infer(inference(1000)).await.unwrap_err();
    assert_refused(&status, Code::InvalidArgument, "TOO_LONG");
    assert!(status.message().contains("use ModelStreamInfer"), "{status}");
    assert_eq!(client.model_infer(inference(100)).await.unwrap().into_inner().outputs.len(), 2);
    server.at_rest().await;
}

/// A stream of requests does not make their responses streamed.
#[tokio::test]
async fn a_large_inference_on_a_stream_fails_alone() {
    let config = TransportConfig { response_bytes: INFER_RESPONSE_BYTES, ..TransportConfig::default() };
    let server = Server::within(config).await;
    let mut client = server.inference();
    let requests = [1000, 100].map(inference);
    let mut messages = client.model_stream_infer(tokio_stream::iter(requests)).await.unwrap().into_inner();
    let mut failures = Vec::new();
    let mut outputs = 0;
    while let Some(message) = messages.next().await {
        let message = message.unwrap();
        outputs += message.infer_response.map_or(0, |response| response.outputs.len());
        failures.extend(Some(message.error_message).filter(|failure| !failure.is_empty()));
    }
    assert_eq!((outputs, failures.len()), (2, 1), "{failures:?}");
    assert!(failures[0].contains("use the input stream"), "{failures:?}");
    server.at_rest().await;
}

/// A stream that the shutdown ends says so.
#[tokio::test]
async fn a_stream_that_is_cut_ends_with_an_error() {
    let config = TransportConfig { drain: Duration::from_millis(100), ..TransportConfig::default() };
    let mut server = Server::within(config).await;
    server.model.gate.slow(Duration::from_millis(20));
    let body = json!({ "prompt": "a", "max_tokens": 1900, "stream": true }).to_string();
    let port = server.port;
    let stream = tokio::spawn(async move { exchange(port, "POST", "/v1/completions", &[], &body).await });
    server.until_running(1).await;
    server.shut_down();
    let events = stream.await.unwrap().all_events();
    assert!(!events.iter().any(|event| event == "[DONE]"), "{events:?}");
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    let failure = &last["error"];
    assert_eq!((&failure["type"], &failure["code"]), (&json!("server_error"), &json!("draining")), "{failure}");
}

/// The body is that of lm-eval 0.4.11 for two requests of a batch: contexts with their continuations, as ids.
#[tokio::test]
async fn lm_eval_reads_loglikelihoods() {
    let server = Server::new().await;
    let body = json!({
        "model": "fake", "prompt": [[1, 2, 0, 3], [4, 0, 5, 1]], "temperature": 0, "max_tokens": 1, "logprobs": 1,
        "seed": 1234, "echo": true,
    });
    let answer = server.post(&body).await.json();
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 2);
    for (choice, (text, context)) in choices.iter().zip([("ab c", 2), ("d ea", 3)]) {
        // As `LocalCompletionsAPI.parse_logprobs`: the last entry is the generated token.
        let list = |name: &str| choice["logprobs"][name].as_array().unwrap().clone();
        let end = list("token_logprobs").len() - 1;
        assert_eq!((end, list("top_logprobs").len() - 1), (4, 4));
        let continuation = &list("token_logprobs")[context..end];
        let sum: f64 = continuation.iter().map(|logprob| logprob.as_f64().unwrap()).sum();
        let best = list("top_logprobs");
        let is_greedy = continuation.iter().zip(&best[context..end]).all(|(logprob, top)| {
            let likeliest = top.as_object().unwrap().values().map(|top| top.as_f64().unwrap()).fold(f64::MIN, f64::max);
            logprob.as_f64() == Some(likeliest)
        });
        // The same from a request with the text instead of the ids.
        let body = json!({ "prompt": text, "max_tokens": 0, "echo": true, "logprobs": 1 });
        let alone = server.post(&body).await.json()["choices"][0]["logprobs"].clone();
        let expected = alone["token_logprobs"].as_array().unwrap()[context..].iter();
        assert_eq!(sum, expected.map(|logprob| logprob.as_f64().unwrap()).sum::<f64>());
        // The generated token is listed next to the likeliest one, unless it is that.
        let likeliest = (context..end).all(|place| alone["top_logprobs"][place].as_object().unwrap().len() == 1);
        assert_eq!(is_greedy, likeliest);
    }
    server.at_rest().await;
}

/// Responses to one request with each setting, from a server whose engine has `default`.
async fn responses(default: Speculation, settings: &[Option<&str>]) -> Vec<GeneratedResponse> {
    let model = fixture("vanilla");
    let symbols = text_symbols(&*model, &[1, 2, 3, 4, 5, 6, 7].repeat(4));
    let limits = Limits { speculation: default, ..Limits::default() };
    let engine = Handle::start(model, limits).unwrap();
    let running = Running::start(vec![engine], TransportConfig::default()).await;
    let mut client = running.generation();
    let mut all = Vec::new();
    for setting in settings {
        let request = GenerateRequest {
            prompt_ids: symbols.clone(),
            sampling: Some(v1::Sampling { temperature: Some(0.2), seed: Some(3), ..Default::default() }),
            stopping: Some(v1::Stopping { max_chars: Some(120), ..Default::default() }),
            details: Some(v1::Details { logprobs: Some(true), top_logprobs: Some(2), ..Default::default() }),
            speculate: setting.map(str::to_owned),
            ..prompt("")
        };
        all.push(read(client.generate(request).await.unwrap().into_inner()).await.unwrap());
    }
    all
}

fn characters(response: &GeneratedResponse) -> Vec<v1::Character> {
    response.pieces.iter().flat_map(|piece| piece.characters.clone()).collect()
}

#[tokio::test]
async fn responses_differ_in_their_usage_only() {
    let settings = [None, Some("off"), Some("auto"), Some("1"), Some("16"), Some("")];
    for default in [Speculation::Off, Speculation::UpTo(4)] {
        let all = responses(default, &settings).await;
        for (response, setting) in all.iter().zip(settings) {
            assert_eq!(response.text(), all[1].text(), "{setting:?}");
            assert_eq!(characters(response), characters(&all[1]), "{setting:?}");
            let usage = response.finished.usage.unwrap();
            assert!(usage.accepted_chars <= usage.drafted_chars);
            let drafts = match setting {
                Some("off") => Some(false),
                Some("auto") => None,
                None | Some("") => Some(default != Speculation::Off),
                Some(_) => Some(true),
            };
            if let Some(drafts) = drafts {
                assert_eq!(usage.drafted_chars > 0, drafts, "{setting:?}, default {default}");
            }
            let timing = response.finished.timing.unwrap();
            assert!(timing.steps + usage.accepted_chars >= 120, "{setting:?}");
        }
    }
}
