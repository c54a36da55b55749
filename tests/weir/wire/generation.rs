//! Calls of `Generate`: prompts, pieces, stop conditions, the end byte, speculation and the choice of a model.

use super::*;
use crate::wire::fake_model::SYMBOLS;
use weir::engine::speculation::Speculation;
use weir_proto::inference::InferTensorContents;

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
    let text = InferTensorContents { bytes_contents: vec![b"a".to_vec()], ..Default::default() };
    let input = InferInputTensor {
        name: "text_input".into(),
        datatype: "BYTES".into(),
        shape: vec![1],
        contents: Some(text),
        ..Default::default()
    };
    let tokens = InferParameter { parameter_choice: Some(ParameterChoice::Int64Param(tokens)) };
    let outputs =
        ["text_output", "logprobs"].map(|name| InferRequestedOutputTensor { name: name.into(), ..Default::default() });
    ModelInferRequest {
        inputs: vec![input],
        outputs: outputs.to_vec(),
        parameters: [("max_tokens".to_owned(), tokens)].into(),
        ..Default::default()
    }
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

fn stopped_by(stop: &[&str]) -> GenerateRequest {
    let stop = stop.iter().map(|&text| text.to_owned()).collect();
    let stopping = v1::Stopping { stop, max_chars: Some(60), ..Default::default() };
    GenerateRequest { stopping: Some(stopping), ..seeded("ab c", 1) }
}

#[tokio::test]
async fn a_stop_string_that_cannot_be_generated_never_matches() {
    for kind in [Kind::Pooled, Kind::Text8] {
        let server = Server::of_kind(kind).await;
        let whole = server.answer(stopped_by(&[])).await.unwrap();
        assert!(whole.text().contains(' '), "a line break would match a space");
        let answer = server.answer(stopped_by(&["\n\n", "x", "日本", "."])).await.unwrap();
        assert_eq!((answer.text(), answer.finished.reason()), (whole.text(), FinishReason::MaxChars));
        // Others still match, and are reported as the request states them.
        let stop: String = whole.text().chars().skip(20).take(3).collect();
        let before = whole.text().find(&stop).unwrap();
        let answer = server.answer(stopped_by(&["\n\n", &stop])).await.unwrap();
        assert_eq!((answer.text(), answer.finished.matched_stop()), (whole.text()[..before].to_owned(), &*stop));
        server.at_rest().await;
    }
}

#[tokio::test]
async fn a_stop_string_is_normalised_like_the_prompt() {
    let server = Server::of_kind(Kind::Text8).await;
    let whole = server.answer(stopped_by(&[])).await.unwrap().text();
    let stop = whole[20..23].to_ascii_uppercase();
    let answer = server.answer(stopped_by(&[&stop])).await.unwrap();
    assert_eq!(answer.text(), whole[..whole.find(&whole[20..23]).unwrap()]);
    assert_eq!((answer.finished.reason(), answer.finished.matched_stop()), (FinishReason::Stop, &*stop));
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

/// First byte of "é".
const LEAD: u32 = 0xc3;

const END: u32 = 3;

/// Starts a server of the checkpoint in `folder`.
async fn served(folder: &Path) -> Running {
    Running::of(load(folder, &settings()).unwrap(), Limits::default(), TransportConfig::default()).await
}

/// Starts a server of a model with an end byte.
async fn ended() -> Running {
    served(hourglass::folder("ended-ngrams")).await
}

async fn complete(server: &Running, body: &Value) -> Value {
    server.post(body).await.json()["choices"][0].clone()
}

async fn marks(server: &Running) -> Vec<(String, u32)> {
    server.model().await.vocabulary.unwrap().marks.into_iter().collect()
}

/// Returns the folder of a decoder over bytes with an end byte.
fn decoder(root: &Path) -> std::path::PathBuf {
    let config = json!({
        "format": "weir/1", "family": "decoder", "vocabulary": {"bytes": true, "end": END}, "normaliser": "none",
        "training_length": 64,
        "architecture": {
            "layers": 1, "dim": 16, "heads": 2, "head_dim": 8, "feed_forward": 16, "activation": "gelu",
            "layer_norm_eps": 1e-5, "position": "sinusoidal", "window": "full", "sub_norms": false,
            "scale_embedding": false, "tied": false,
        },
    });
    hourglass::write(root, "decoder", &config, 1)
}

/// Returns a request whose `favoured` symbols are far more probable than all others, the later ones more than the earlier ones.
fn request(prompt: &str, favoured: &[u32], stopping: v1::Stopping) -> GenerateRequest {
    let bias = |(place, &id)| v1::LogitBias { symbol: Some(Symbol::Id(id)), bias: 400.0 * f32::from(place) };
    let logit_bias = (1_u8..).zip(favoured).map(bias).collect();
    GenerateRequest {
        prompt: prompt.into(),
        sampling: Some(v1::Sampling { seed: Some(1), logit_bias, ..Default::default() }),
        stopping: Some(v1::Stopping { max_chars: Some(8), ..stopping }),
        details: Some(v1::Details {
            logprobs: Some(true),
            top_logprobs: Some(3),
            ids: Some(true),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn end_byte_ids(answer: &GeneratedResponse) -> Vec<u32> {
    answer.pieces.iter().flat_map(|piece| piece.ids.clone()).collect()
}

#[tokio::test]
async fn a_generation_ends_at_the_end_byte() {
    let root = TempDir::new().unwrap();
    for folder in [hourglass::folder("ended-ngrams"), &decoder(root.path())] {
        let served = served(folder).await;
        let ended = served.answer(request("The ", &[END], v1::Stopping::default())).await.unwrap();
        assert_eq!((ended.finished.reason(), ended.text()), (FinishReason::EndOfText, String::new()));
        assert_eq!((end_byte_ids(&ended), ended.finished.usage.unwrap().generated_chars), (vec![END], 0));
        let end = &ended.pieces[0].characters[0];
        assert_eq!((end.id, end.text.as_str(), end.ends_text, end.logprob.is_some()), (END, "", true, true));

        let later = v1::Stopping { min_chars: Some(5), ..Default::default() };
        let later = served.answer(request("The ", &[u32::from(b'x'), END], later)).await.unwrap();
        assert_eq!((later.finished.reason(), later.text()), (FinishReason::EndOfText, "xxxxx".into()));

        let ignored = v1::Stopping { ignore_eos: Some(true), ..Default::default() };
        let ignored = served.answer(request("The ", &[END], ignored)).await.unwrap();
        assert_eq!((ignored.finished.reason(), end_byte_ids(&ignored).len()), (FinishReason::MaxChars, 8));
        assert!(!end_byte_ids(&ignored).contains(&END));
    }
}

/// The start of a stop string is held back until the next character, here the end.
#[tokio::test]
async fn a_held_stop_string_is_sent_before_the_end_byte() {
    let served = ended().await;
    let stopping = v1::Stopping { min_chars: Some(1), stop: vec!["xy".into()], ..Default::default() };
    let answer = served.answer(request("The ", &[u32::from(b'x'), END], stopping)).await.unwrap();
    assert_eq!((answer.finished.reason(), answer.text()), (FinishReason::EndOfText, "x".into()));
    assert_eq!(answer.finished.matched_stop, None);
}

#[tokio::test]
async fn an_unfinished_code_point_before_the_end_byte_is_replaced() {
    let served = ended().await;
    let one = v1::Stopping { min_chars: Some(1), ..Default::default() };
    let whole = request("The ", &[LEAD, END], one);
    let answer = served.answer(whole.clone()).await.unwrap();
    assert_eq!((answer.text(), end_byte_ids(&answer)), ("\u{fffd}".into(), vec![LEAD, END]));
    // the stream broke before the event `finished`
    let resumed = GenerateRequest { resume_ids: end_byte_ids(&answer), ..whole };
    let rest = served.answer(resumed).await.unwrap();
    assert_eq!(
        (rest.finished.reason(), rest.text(), end_byte_ids(&rest)),
        (FinishReason::EndOfText, String::new(), vec![])
    );
    let (usage, before) = (rest.finished.usage.unwrap(), answer.finished.usage.unwrap());
    assert_eq!((usage.generated_chars, usage.generated_text_chars), (1, Some(1)));
    assert_eq!(usage.generated_text_chars, before.generated_text_chars);
}

#[tokio::test]
async fn a_resumed_text_ends_only_where_its_stream_may_end() {
    let served = ended().await;
    let resumed = |min_chars, ignore_eos| GenerateRequest {
        resume_ids: vec![u32::from(b'x'), END],
        ..request("The ", &[], v1::Stopping { min_chars: Some(min_chars), ignore_eos, ..Default::default() })
    };
    let rest = served.answer(resumed(1, None)).await.unwrap();
    assert_eq!((rest.finished.reason(), rest.text()), (FinishReason::EndOfText, String::new()));
    for refused in [resumed(2, None), resumed(1, Some(true))] {
        let status = served.answer(refused).await.unwrap_err();
        assert_eq!((&*reason(&status), &*field(&status)), ("BAD_OPTION", "resume_ids"));
    }
}

/// The end byte of the prompt is guessed again after the same characters.
#[tokio::test]
async fn a_guessed_end_byte_ends_the_text() {
    let served = ended().await;
    let one = v1::Stopping { min_chars: Some(1), ..Default::default() };
    let whole = request("One.\u{3}Two One", &[u32::from(b'.'), END], one);
    for speculate in ["off", "4", "4"] {
        let answer =
            served.answer(GenerateRequest { speculate: Some(speculate.into()), ..whole.clone() }).await.unwrap();
        assert_eq!((answer.text(), end_byte_ids(&answer)), (".".into(), vec![u32::from(b'.'), END]), "{speculate}");
        assert_eq!(answer.finished.reason(), FinishReason::EndOfText);
    }
}

#[tokio::test]
async fn a_prompt_may_contain_the_end_byte() {
    let served = ended().await;
    assert_eq!(marks(&served).await, [("end".to_owned(), END)]);
    let mut request = request("One.\u{3}Two", &[], v1::Stopping::default());
    request.details.as_mut().unwrap().echo = Some(true);
    let answer = served.answer(request).await.unwrap();
    let echoed: String = answer.pieces.iter().filter(|piece| piece.prompt).map(|piece| piece.text.as_str()).collect();
    assert_eq!((echoed.as_str(), answer.started.prompt_chars), ("One.\u{3}Two", 8));
    let mut characters = answer.pieces.iter().filter(|piece| piece.prompt).flat_map(|piece| &piece.characters);
    assert!(characters.any(|character| character.text == "\u{3}" && !character.ends_text));
}

#[tokio::test]
async fn completions_over_http_end_at_the_end_byte() {
    let served = ended().await;
    let mut body = json!({
        "prompt": "The ", "max_tokens": 8, "seed": 1, "logit_bias": { "3": 100 }, "temperature": 0, "logprobs": 0,
    });
    let ended = complete(&served, &body).await;
    assert_eq!((&ended["finish_reason"], &ended["text"]), (&json!("stop"), &json!("")));
    assert_eq!(ended["logprobs"]["tokens"], json!([""]));
    body["ignore_eos"] = json!(true);
    assert_eq!(complete(&served, &body).await["finish_reason"], "length");
}

#[tokio::test]
async fn the_default_model_has_an_end_byte() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/hourglass-english");
    assert_eq!(marks(&served(&folder).await).await, [("end".to_owned(), END)]);
}

#[tokio::test]
async fn grpc_reports_how_many_characters_normalising_changed() {
    let server = Server::of_kind(Kind::Text8).await;
    for (prompt, changed) in [("ab c", 0), ("A, b  é", 5)] {
        let request = long(prompt, 3);
        let answer = server.answer(request).await;
        // `é` becomes `e`, which is in the vocabulary.
        let answer = answer.unwrap();
        assert_eq!(answer.started.normalized_chars, Some(changed), "{prompt:?}");
        assert_eq!(answer.finished.usage.unwrap().normalized_chars, Some(changed), "{prompt:?}");
        let request = v1::ScoreRequest { text: prompt.into(), ..Default::default() };
        let (_, summary) = server.score(request).await.unwrap();
        assert_eq!(summary.usage.unwrap().normalized_chars, Some(changed), "{prompt:?}");
        let request = v1::SegmentRequest { text: prompt.into(), ..Default::default() };
        let segmented = server.generation().segment(request).await.unwrap().into_inner();
        assert_eq!(segmented.usage.unwrap().normalized_chars, Some(changed), "{prompt:?}");
    }
    server.at_rest().await;
}

#[tokio::test]
async fn http_counts_a_prompt_once() {
    let server = Server::of_kind(Kind::Text8).await;
    let body = json!({ "prompt": ["A b", "ab"], "n": 2, "max_tokens": 3, "seed": 1 });
    let answer = server.post(&body).await;
    assert_eq!(answer.json()["usage"]["normalized_chars"], 1);
    assert_eq!(answer.header("x-weir-normalized-chars"), Some("1"));
    let options = json!({ "continuous_usage_stats": true, "include_usage": true });
    let body = json!({ "prompt": "A b", "max_tokens": 3, "stream": true, "stream_options": options });
    let answer = server.post(&body).await;
    assert_eq!(answer.header("x-weir-normalized-chars"), Some("1"), "known before the first event");
    let events = answer.events();
    assert!(events.iter().all(|event| event["usage"]["normalized_chars"] == 1), "{events:?}");
    for stream in [false, true] {
        let answer = server.post(&json!({ "prompt": "a b", "max_tokens": 3, "stream": stream })).await;
        assert_eq!(answer.header("x-weir-normalized-chars"), None);
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

/// Starts a server of a summarizer and of these models.
async fn server(writers: &[(&str, Kind)]) -> Running {
    let limits = Limits { document_bytes: 1 << 20, ..Limits::default() };
    let models = writers.iter().map(|&(name, kind)| Fake::new(name, kind) as Arc<dyn Model>);
    let models = models.chain([DocumentModel::new() as Arc<dyn Model>]);
    let engines = models.map(|model| Handle::start(model, limits).unwrap()).collect();
    Running::start(engines, TransportConfig::default()).await
}

fn summarize() -> impl tokio_stream::Stream<Item = SummarizeRequest> {
    let options = SummarizeOptions { max_tokens: Some(3), ..Default::default() };
    let parts = [Part::Options(options), Part::Chunk(v1::DocumentChunk { text: "a document".into(), ids: Vec::new() })];
    tokio_stream::iter(parts.map(|part| SummarizeRequest { part: Some(part) }))
}

#[tokio::test]
async fn a_call_without_a_name_goes_to_the_only_model_that_can_answer_it() {
    let server = server(&[("writer", Kind::Pooled)]).await;
    let mut generation = server.generation();
    generation.generate(prompt("a")).await.unwrap();
    generation.score(v1::ScoreRequest { text: "ab".into(), ..Default::default() }).await.unwrap();
    server.summarization().summarize(summarize()).await.unwrap();
    let completion = server.post(&json!({ "prompt": "a", "max_tokens": 1 })).await;
    assert_eq!((completion.0, &completion.json()["model"]), (200, &json!("writer")));
    let summary = server.post_to("/v1/summaries", &json!({ "document": "a document", "max_tokens": 3 })).await;
    assert_eq!(summary.0, 200, "{}", summary.body());
}

#[tokio::test]
async fn a_call_that_several_models_can_answer_needs_a_name() {
    let server = server(&[("one", Kind::Pooled), ("other", Kind::Vanilla)]).await;
    let mut generation = server.generation();
    let refused = generation.generate(prompt("a")).await.unwrap_err();
    assert_eq!((reason(&refused).as_str(), field(&refused).as_str()), ("BAD_OPTION", "model"));
    // Only one of the two splits texts into segments.
    generation.segment(SegmentRequest { text: "a b".into(), ..Default::default() }).await.unwrap();
    server.summarization().summarize(summarize()).await.unwrap();
    let refused = server.post(&json!({ "prompt": "a" })).await;
    assert_eq!(refused.refused(), (400, "invalid_request_error".into(), "model".into()));
}
