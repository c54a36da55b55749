//! Reports of what normalising changed in a prompt or a text.

use super::{Server, fake_model::Kind, http::Both, http_cors::header, long};
use serde_json::json;
use weir::{config::TransportConfig, engine::Limits};
use weir_proto::v1::{self, score_response::Event};

#[tokio::test]
async fn grpc_reports_how_many_characters_normalising_changed() {
    let server = Server::with(Limits::default(), TransportConfig::default(), &[("fake", Kind::Text8)]).await;
    for (prompt, changed) in [("ab c", 0), ("A, b  é", 5)] {
        let request = long(prompt, 3);
        let answer = server.answer(request).await;
        // `é` becomes `e`, which is in the vocabulary.
        let answer = answer.unwrap();
        assert_eq!(answer.started.normalized_chars, Some(changed), "{prompt:?}");
        assert_eq!(answer.finished.usage.unwrap().normalized_chars, Some(changed), "{prompt:?}");
        let request = v1::ScoreRequest { text: prompt.into(), ..Default::default() };
        let mut stream = server.generation().score(request).await.unwrap().into_inner();
        let mut reported = None;
        while let Some(message) = stream.message().await.unwrap() {
            if let Some(Event::Summary(summary)) = message.event {
                reported = summary.usage.unwrap().normalized_chars;
            }
        }
        assert_eq!(reported, Some(changed), "{prompt:?}");
        let request = v1::SegmentRequest { text: prompt.into(), ..Default::default() };
        let segmented = server.generation().segment(request).await.unwrap().into_inner();
        assert_eq!(segmented.usage.unwrap().normalized_chars, Some(changed), "{prompt:?}");
    }
    server.at_rest().await;
}

#[tokio::test]
async fn http_counts_a_prompt_once() {
    let server = Both::of(Kind::Text8, Limits::default(), TransportConfig::default()).await;
    let body = json!({ "prompt": ["A b", "ab"], "n": 2, "max_tokens": 3, "seed": 1 });
    let answer = server.post(&body).await;
    assert_eq!(answer.json()["usage"]["normalized_chars"], 1);
    assert_eq!(header(&answer, "x-weir-normalized-chars"), Some("1"));
    let options = json!({ "continuous_usage_stats": true, "include_usage": true });
    let body = json!({ "prompt": "A b", "max_tokens": 3, "stream": true, "stream_options": options });
    let answer = server.post(&body).await;
    assert_eq!(header(&answer, "x-weir-normalized-chars"), Some("1"), "known before the first event");
    let events = answer.events();
    assert!(events.iter().all(|event| event["usage"]["normalized_chars"] == 1), "{events:?}");
    for stream in [false, true] {
        let answer = server.post(&json!({ "prompt": "a b", "max_tokens": 3, "stream": stream })).await;
        assert_eq!(header(&answer, "x-weir-normalized-chars"), None);
    }
    server.at_rest().await;
}
