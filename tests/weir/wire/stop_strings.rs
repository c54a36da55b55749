//! Stop strings that the model cannot generate, and stop strings that its normaliser changes.

use super::{Server, fake_model::Kind, http::Both, seeded};
use serde_json::{Value, json};
use weir::{config::TransportConfig, engine::Limits};
use weir_proto::v1::{self, FinishReason, GenerateRequest};

fn stopped_by(stop: &[&str]) -> GenerateRequest {
    let stop = stop.iter().map(|&text| text.to_owned()).collect();
    let stopping = v1::Stopping { stop, max_chars: Some(60), ..Default::default() };
    GenerateRequest { stopping: Some(stopping), ..seeded("ab c", 1) }
}

#[tokio::test]
async fn a_stop_string_that_cannot_be_generated_never_matches() {
    for kind in [Kind::Pooled, Kind::Text8] {
        let server = Server::with(Limits::default(), TransportConfig::default(), &[("fake", kind)]).await;
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
    let server = Server::with(Limits::default(), TransportConfig::default(), &[("fake", Kind::Text8)]).await;
    let whole = server.answer(stopped_by(&[])).await.unwrap().text();
    let stop = whole[20..23].to_ascii_uppercase();
    let answer = server.answer(stopped_by(&[&stop])).await.unwrap();
    assert_eq!(answer.text(), whole[..whole.find(&whole[20..23]).unwrap()]);
    assert_eq!((answer.finished.reason(), answer.finished.matched_stop()), (FinishReason::Stop, &*stop));
}

#[tokio::test]
async fn completions_take_stop_strings_of_other_models() {
    let server = Both::new().await;
    let ask = async |stop: Value| {
        let body = json!({ "prompt": "ab c", "max_tokens": 60, "seed": 1, "stop": stop });
        server.post(&body).await.json()["choices"][0].clone()
    };
    let whole = ask(Value::Null).await;
    for stop in [json!("\n\n"), json!(["\n\n", "</s>", "<|im_end|>", "Question:"])] {
        let choice = ask(stop.clone()).await;
        assert_eq!((&choice["text"], &choice["finish_reason"]), (&whole["text"], &json!("length")), "{stop}");
        assert_eq!(choice["stop_reason"], Value::Null);
    }
    server.at_rest().await;
}
