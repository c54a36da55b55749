//! Streams of `Generate` that break at random places and are resumed: by ids for every family, and by text.

use super::{GeneratedResponse, Running, Server, fake_model::Kind, http::Both, long, read, reason};
use crate::{
    lex,
    support::{Dice, fixture_in, hnet_in, lslm_in},
};
use serde_json::json;
use std::sync::Arc;
use tonic::{Code, transport::Channel};
use weir::{
    config::TransportConfig,
    decode::contract::Model,
    engine::{Handle, Limits},
    kernels::Dtype,
};
use weir_proto::v1::{self, GenerateRequest, generate_response::Event, generation_client::GenerationClient};

/// Reads a stream until it has sent at least `ids` ids, and breaks it. Returns the ids and the text.
async fn broken(client: &mut GenerationClient<Channel>, request: GenerateRequest, ids: usize) -> (Vec<u32>, String) {
    let mut stream = client.generate(request).await.unwrap().into_inner();
    let mut sent = (Vec::new(), String::new());
    while sent.0.len() < ids
        && let Some(message) = stream.message().await.unwrap()
    {
        if let Some(Event::Piece(piece)) = message.event {
            sent.0.extend(piece.ids);
            sent.1 += &piece.text;
        }
    }
    sent
}

fn characters(answer: &GeneratedResponse) -> Vec<v1::Character> {
    answer.pieces.iter().flat_map(|piece| piece.characters.clone()).collect()
}

/// Returns the usage without what a resumed stream states differently.
fn usage(answer: &GeneratedResponse) -> v1::Usage {
    v1::Usage { cached_chars: 0, resumed_chars: 0, ..answer.finished.usage.unwrap() }
}

#[tokio::test]
async fn a_stream_of_any_family_goes_on_where_it_broke() {
    let f32 = Dtype::F32;
    let models: Vec<(Arc<dyn Model>, &str)> = vec![
        (fixture_in("whitespaces", Dtype::Int8), ""),
        (fixture_in("gumbel", f32), "sampled"),
        (lslm_in("dp", f32), "nxt"),
        (lslm_in("byte_vocab", f32), "predictor"),
        (hnet_in("two_stage", f32), ""),
        (lex::model("alibi_bca", f32), ""),
    ];
    let mut dice = Dice::new(31);
    for (model, mode) in models {
        let name = format!("{}, {mode}", model.card().name);
        let engine = Handle::start(Arc::clone(&model), Limits { chunk: 16, ..Limits::default() }).unwrap();
        let running = Running::start(vec![engine], TransportConfig::default()).await;
        let mut client = GenerationClient::new(running.channel.clone());
        let details = v1::Details {
            logprobs: Some(true),
            boundaries: Some(true),
            ids: Some(true),
            echo: Some(true),
            ..Default::default()
        };
        let sampling = v1::Sampling { seed: Some(5), repetition_penalty: Some(1.1), ..Default::default() };
        let text: Vec<u32> = model.card().vocabulary.text_ids().take(26).collect();
        let request = GenerateRequest {
            prompt_ids: (0..40).map(|_| text[dice.below(text.len())]).collect(),
            sampling: Some(sampling),
            stopping: Some(v1::Stopping { max_chars: Some(60), ..Default::default() }),
            details: Some(details),
            boundary_mode: Some(mode.into()),
            ..Default::default()
        };
        let whole = read(client.generate(request.clone()).await.unwrap().into_inner()).await.unwrap();
        let all: Vec<u32> =
            whole.pieces.iter().filter(|piece| !piece.prompt).flat_map(|piece| piece.ids.clone()).collect();
        for _ in 0..3 {
            let wanted = 40 + 1 + dice.below(all.len());
            let (sent, text) = broken(&mut client, request.clone(), wanted).await;
            let (prompt, resume_ids) = sent.split_at(40);
            assert_eq!((prompt, resume_ids), (&request.prompt_ids[..], &all[..resume_ids.len()]), "{name}");
            let count = resume_ids.len();
            let resumed = GenerateRequest { resume_ids: resume_ids.to_vec(), ..request.clone() };
            let rest = read(client.generate(resumed).await.unwrap().into_inner()).await.unwrap();
            let whole_text: String = whole.pieces.iter().map(|piece| piece.text.as_str()).collect();
            assert_eq!(text + &rest.text(), whole_text, "{name}, after {count}");
            assert!(rest.pieces.iter().all(|piece| !piece.prompt), "{name}");
            assert_eq!(characters(&rest), characters(&whole)[40 + count..], "{name}, after {count}");
            assert_eq!(rest.finished.reason(), whole.finished.reason(), "{name}");
            assert_eq!(usage(&rest), usage(&whole), "{name}, after {count}");
            // an id that ends the text is no character
            let has_end = resume_ids.last().is_some_and(|&id| model.card().vocabulary.ends_text(id));
            let resumed_chars = (count - usize::from(has_end)) as u64;
            assert_eq!((rest.started.resumed_chars, rest.started.seed), (resumed_chars, Some(5)), "{name}");
        }
    }
}

#[tokio::test]
async fn limits_and_stop_strings_count_the_resumed_text() {
    let server = Server::new().await;
    let mut client = server.generation();
    let free = server.answer(long("ab", 80)).await.unwrap().text();
    // a stop string of three characters that the text has in its middle
    let stop: String = free.chars().skip(40).take(3).collect();
    let cut = free.find(&stop).unwrap();
    let stopping = |include| v1::Stopping {
        max_chars: Some(80),
        stop: vec![stop.clone()],
        include_stop: Some(include),
        ..Default::default()
    };
    for include in [false, true] {
        let request = GenerateRequest { stopping: Some(stopping(include)), ..long("ab", 80) };
        let whole = server.answer(request.clone()).await.unwrap();
        assert!(whole.text().chars().count() >= 1 && whole.finished.matched_stop.as_ref() == Some(&stop));
        let ends: Vec<usize> = whole.text().char_indices().map(|(start, _)| start).skip(1).collect();
        for end in ends.into_iter().chain([whole.text().len()]) {
            let resume_text = whole.text()[..end].to_owned();
            let rest = server.answer(GenerateRequest { resume_text, ..request.clone() }).await.unwrap();
            assert_eq!(rest.text(), whole.text()[end..], "{end} of {cut}");
            assert_eq!(rest.finished.matched_stop, whole.finished.matched_stop);
            assert_eq!(usage(&rest), usage(&whole));
        }
    }
    // a text that was complete needs no other character
    let (_, text) = broken(&mut client, long("ab", 80), usize::MAX).await;
    let rest = server.answer(GenerateRequest { resume_text: text, ..long("ab", 80) }).await.unwrap();
    assert_eq!((rest.text().as_str(), rest.finished.reason()), ("", v1::FinishReason::MaxChars));
    server.at_rest().await;
}

#[tokio::test]
async fn a_text_that_cannot_be_resumed_is_refused() {
    let server = Server::with(Limits::default(), TransportConfig::default(), &[("fake", Kind::Pooled)]).await;
    let request = |text: &str| GenerateRequest { resume_text: text.into(), ..long("ab", 3) };
    let unseeded = GenerateRequest { sampling: None, ..request("a") };
    let both = GenerateRequest { resume_ids: vec![1], ..request("a") };
    let ids = GenerateRequest { resume_ids: vec![1000], ..long("ab", 3) };
    let long_ids = GenerateRequest { resume_ids: vec![1; 4], ..long("ab", 3) };
    for (request, expected, named) in [
        (unseeded, "BAD_OPTION", "sampling.seed"),
        (both, "EXCLUSIVE_OPTIONS", "resume_text"),
        (ids, "UNKNOWN_SYMBOL", "resume_ids"),
        (request("a?"), "UNKNOWN_SYMBOL", "resume_text"),
        (request("abab"), "BAD_OPTION", "resume_text"),
        (long_ids, "BAD_OPTION", "resume_ids"),
    ] {
        let status = server.answer(request).await.unwrap_err();
        assert_eq!((status.code(), reason(&status).as_str()), (Code::InvalidArgument, expected), "{status}");
        assert!(status.message().contains(named), "{status}");
    }
    server.at_rest().await;
}

#[tokio::test]
async fn http_resumes_by_text() {
    let server = Both::new().await;
    let body = json!({ "prompt": "ab", "max_tokens": 30, "seed": 4 });
    let whole = server.post(&body).await.json();
    let text = whole["choices"][0]["text"].as_str().unwrap();
    let sent: String = text.chars().take(11).collect();
    let mut resumed = body.clone();
    resumed["resume_text"] = sent.clone().into();
    let rest = server.post(&resumed).await.json();
    assert_eq!(rest["choices"][0]["text"].as_str().unwrap(), &text[sent.len()..]);
    for count in ["completion_tokens", "completion_text_chars", "prompt_tokens"] {
        assert_eq!(rest["usage"][count], whole["usage"][count], "{count}");
    }
    assert_eq!(rest["choices"][0]["weir"]["resumed_chars"], 11);
    for (field, value, named) in [("n", json!(2), "resume_text"), ("seed", json!(null), "seed")] {
        let mut wrong = resumed.clone();
        wrong[field] = value;
        let refused = server.post(&wrong).await;
        assert_eq!((refused.0, refused.json()["error"]["param"].as_str()), (400, Some(named)), "{}", refused.body());
    }
    server.at_rest().await;
}
