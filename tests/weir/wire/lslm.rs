//! Latent segment models over gRPC: both boundary drivers, special symbols, and bytes sent as whole code points.

use super::{Running, http::exchange, read};
use crate::{
    golden::Golden,
    support::{LSLM_CASES, full, lslm_golden, lslm_in},
};
use serde_json::json;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio_stream::StreamExt;
use weir::{
    config::TransportConfig,
    decode::contract::{BoundaryOptions, Model},
    engine::{Handle, Limits},
    kernels::Dtype,
    serve::{Engines, ServerParts},
};
use weir_proto::v1::{
    self, FinishReason, generation_client::GenerationClient, models_client::ModelsClient, score_response::Event,
};

async fn served(case: &str) -> (Arc<dyn Model>, Running) {
    let model = lslm_in(case, Dtype::F32);
    let engine = Handle::start(Arc::clone(&model), Limits::default()).unwrap();
    (model, Running::start(vec![engine], TransportConfig::default()).await)
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
        let golden = Golden::open(&lslm_golden(case));
        let (model, running) = served(case).await;
        let mut client = GenerationClient::new(running.channel.clone());
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
    let (model, running) = served("byte_vocab").await;
    let mut client = GenerationClient::new(running.channel.clone());
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
        let (model, running) = served(case).await;
        let vocabulary = &model.card().vocabulary;
        let mut client = GenerationClient::new(running.channel.clone());
        let text = "the server reads ";
        let request = v1::ScoreRequest { text: text.into(), ..Default::default() };
        let mut stream = client.score(request).await.unwrap().into_inner();
        let mut characters = Vec::new();
        let mut summary = None;
        while let Some(message) = stream.next().await {
            match message.unwrap().event.unwrap() {
                Event::Chunk(chunk) => characters.extend(chunk.characters),
                Event::Summary(last) => summary = Some(last),
            }
        }
        let symbols = vocabulary.encode("text", text, usize::MAX).unwrap();
        let (_, marks) = full(&*model, &symbols, &BoundaryOptions::default());
        assert!(characters.iter().map(|c| c.nxt_logprob).eq(marks.iter().map(|mark| mark.end_logprob)), "{case}");
        assert!(characters.iter().all(|c| c.logprob.is_some()), "{case}: the first character too");
        let summary = summary.unwrap();
        assert_eq!(summary.scored_chars as usize, symbols.len());
        let nats: f64 = marks.iter().filter_map(|mark| mark.end_logprob).map(f64::from).sum();
        let bits = -nats / std::f64::consts::LN_2 / symbols.len() as f64;
        assert!((summary.nxt_bits_per_char.unwrap() - bits).abs() < 1e-9 && bits > 0.0, "{case}");
        let mut models = ModelsClient::new(running.channel.clone());
        let card = models.get_model(v1::GetModelRequest::default()).await.unwrap().into_inner();
        assert_eq!((card.family.as_str(), &card.boundary_modes[..]), ("lslm", &["nxt".into(), "predictor".into()][..]));
        let listed = card.vocabulary.unwrap();
        assert_eq!((listed.marks["segment_end"], listed.marks.len()), (vocabulary.specials().unwrap().segment_end, 5));
        assert_eq!(listed.size as usize, vocabulary.len());
        if case == "dp" {
            assert_eq!(listed.symbols[..6], ["<BoS>", "<eos>", "<bos>", "<nxt>", "<oov>", " "]);
        }
        let wrong = v1::GenerateRequest { boundary_mode: Some("sampled".into()), ..greedy("the".into(), 3, "nxt") };
        let status = client.generate(wrong).await.unwrap_err();
        assert!(status.message().contains("one of nxt, predictor"), "{status:?}");
    }
}

/// A model with a start mark continues an empty text, also if a request over HTTP has no prompt at all.
#[tokio::test]
async fn requests_without_a_prompt_are_answered() {
    let engine = Handle::start(lslm_in(LSLM_CASES[0], Dtype::F32), Limits::default()).unwrap();
    let http = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = http.local_addr().unwrap();
    let offer = ServerParts { http: Some(http.into()), ..Engines::new(vec![engine]).unwrap().into() };
    let _running = Running::offering(offer, TransportConfig::default()).await;
    let mut texts = Vec::new();
    for prompt in [json!({}), json!({ "prompt": null }), json!({ "prompt": [] }), json!({ "prompt": "" })] {
        let mut body = prompt.clone();
        body["max_tokens"] = 5.into();
        body["seed"] = 1.into();
        let answer = exchange(port, "POST", "/v1/completions", &[], &body.to_string()).await;
        assert_eq!(answer.0, 200, "{prompt}: {}", answer.body());
        texts.push(answer.json()["choices"][0]["text"].clone());
    }
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
}
