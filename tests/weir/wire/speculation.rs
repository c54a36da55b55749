//! The field `speculate` of requests, over gRPC and HTTP.

use super::{GeneratedResponse, Running, Server, http::Both, prompt, read};
use crate::support::{fixture, text_symbols};
use serde_json::json;
use tonic::Code;
use weir::{
    config::TransportConfig,
    decode::speculation::Speculation,
    engine::{Handle, Limits},
};
use weir_proto::v1::{self, GenerateRequest, generation_client::GenerationClient};

/// Responses to one request with each setting, from a server whose engine has `default`.
async fn responses(default: Speculation, settings: &[Option<&str>]) -> Vec<GeneratedResponse> {
    let model = fixture("vanilla");
    let symbols = text_symbols(&*model, &[1, 2, 3, 4, 5, 6, 7].repeat(4));
    let limits = Limits { speculation: default, ..Limits::default() };
    let engine = Handle::start(model, limits).unwrap();
    let running = Running::start(vec![engine], TransportConfig::default()).await;
    let mut client = GenerationClient::new(running.channel.clone());
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

#[tokio::test]
async fn a_wrong_setting_is_refused_by_name() {
    let server = Server::new().await;
    for wrong in ["on", "0", "17", "-1", "auto "] {
        let request = GenerateRequest { speculate: Some(wrong.into()), ..prompt("ab") };
        let status = server.answer(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        let expected = format!("speculate: expected \"auto\", \"off\" or a whole number from 1 to 16, found {wrong:?}");
        assert_eq!(status.message(), expected);
    }
    // a model that does not speculate ignores it
    let request = GenerateRequest { speculate: Some("8".into()), ..prompt("ab") };
    assert_eq!(server.answer(request).await.unwrap().finished.usage.unwrap().drafted_chars, 0);
    let server = Both::new().await;
    let body = json!({ "prompt": "ab", "speculate": 17 });
    let reply = server.post(&body).await;
    assert_eq!((reply.0, &reply.json()["error"]["param"]), (400, &json!("speculate")));
    for setting in [json!("auto"), json!(4), json!(null)] {
        let body = json!({ "prompt": "ab", "speculate": setting });
        let choice = server.post(&body).await.json()["choices"][0].clone();
        assert_eq!(choice["weir"]["drafted_chars"], 0, "{choice}");
    }
}
