//! The Open Inference Protocol over HTTP and JSON, compared with completions.

use super::{
    fake_model::Kind,
    http::{Both, Reply, exchange},
};
use serde_json::{Value, json};
use weir::{
    config::{Access, Credentials, Keys, TransportConfig},
    engine::Limits,
};

async fn get(server: &Both, path: &str) -> (u16, Value) {
    let reply = exchange(server.port, "GET", path, &[], "").await;
    (reply.0, reply.json())
}

async fn infer(server: &Both, path: &str, body: &Value) -> Reply {
    exchange(server.port, "POST", path, &[], &body.to_string()).await
}

/// A request with this prompt, for these outputs.
fn request(prompt: &str, outputs: &[&str]) -> Value {
    json!({
        "id": "7",
        "inputs": [
            { "name": "text_input", "shape": [1], "datatype": "BYTES", "data": [prompt] },
            { "name": "exclude_input_in_output", "shape": [1, 1], "datatype": "BOOL", "data": [[true]] },
        ],
        "parameters": { "max_tokens": 20, "seed": 1, "temperature": 0.5 },
        "outputs": outputs.iter().map(|name| json!({ "name": name })).collect::<Vec<_>>(),
    })
}

#[tokio::test]
async fn an_inference_equals_a_completion() {
    let server = Both::of(Kind::Bytes, Limits::default(), TransportConfig::default()).await;
    let completion = json!({ "prompt": "ab é", "max_tokens": 20, "seed": 1, "temperature": 0.5 });
    let expected = server.post(&completion).await.json();
    let body = request("ab é", &["text_output", "finish_reason", "num_input_tokens", "cumulative_logprob"]);
    for path in ["/v2/models/fake/infer", "/v2/models/fake/versions/1/infer"] {
        let reply = infer(&server, path, &body).await;
        assert_eq!(reply.0, 200, "{}", reply.body());
        assert!(reply.1.contains("x-request-id: "), "{}", reply.1);
        let answer = reply.json();
        assert_eq!(
            (&answer["id"], &answer["model_name"], &answer["model_version"]),
            (&json!("7"), &json!("fake"), &json!("1"))
        );
        let outputs = answer["outputs"].as_array().unwrap();
        assert_eq!(outputs.len(), 4);
        let data = |name: &str| outputs.iter().find(|output| output["name"] == name).unwrap()["data"][0].clone();
        assert_eq!(data("text_output"), expected["choices"][0]["text"]);
        assert_eq!((data("finish_reason"), data("num_input_tokens")), (json!("length"), json!(5)));
        assert!(data("cumulative_logprob").as_f64().unwrap() < 0.0);
    }
    server.at_rest().await;
}

#[tokio::test]
async fn metadata_and_health_are_served() {
    let server = Both::new().await;
    assert_eq!(get(&server, "/v2/health/live").await, (200, json!({ "live": true })));
    assert_eq!(get(&server, "/v2/health/ready").await, (200, json!({ "ready": true })));
    let (status, metadata) = get(&server, "/v2").await;
    assert_eq!((status, &metadata["name"]), (200, &json!("weir")));
    for path in ["/v2/models/fake", "/v2/models/fake/versions/1"] {
        let (status, model) = get(&server, path).await;
        assert_eq!((status, &model["name"], &model["versions"]), (200, &json!("fake"), &json!(["1"])));
        let text = json!({ "name": "text_input", "datatype": "BYTES", "shape": [1] });
        assert!(model["inputs"].as_array().unwrap().contains(&text), "{model}");
    }
    assert_eq!(get(&server, "/v2/models/fake/ready").await, (200, json!({ "name": "fake", "ready": true })));
    assert_eq!(get(&server, "/v2/models/nobody/ready").await, (400, json!({ "name": "nobody", "ready": false })));
    server.at_rest().await;
}

#[tokio::test]
async fn invalid_inferences_are_refused_with_a_text() {
    let server = Both::new().await;
    let mut wrong_type = request("a", &[]);
    wrong_type["inputs"][0]["datatype"] = "INT32".into();
    let mut stream = request("a", &[]);
    stream["inputs"][1]["name"] = "stream".into();
    let mut hot = request("a", &[]);
    hot["parameters"]["temperature"] = (-1).into();
    for (path, body, status, start) in [
        ("/v2/models/nobody/infer", request("a", &[]), 404, "model: expected one of "),
        ("/v2/models/fake/versions/2/infer", request("a", &[]), 400, "model_version: expected "),
        ("/v2/models/fake/infer", wrong_type, 400, "text_input: expected the datatype BYTES, found \"INT32\""),
        ("/v2/models/fake/infer", stream, 400, "stream: expected false"),
        ("/v2/models/fake/infer", hot, 400, "temperature: expected 0 to 100, found -1"),
        ("/v2/models/fake/infer", request("X", &[]), 400, "text_input: "),
        ("/v2/models/fake/infer", json!({}), 400, "inputs: "),
        ("/v2/models/fake/infer", json!({ "inputs": [{}] }), 400, "inputs[0].name: expected a value, found nothing"),
    ] {
        let reply = infer(&server, path, &body).await;
        let error = reply.json()["error"].as_str().unwrap().to_owned();
        assert_eq!(reply.0, status, "{error}");
        assert!(error.starts_with(start), "{error}");
    }
    let binary = ["inference-header-content-length: 20"];
    let reply = exchange(server.port, "POST", "/v2/models/fake/infer", &binary, "{}").await;
    assert!(reply.0 == 400 && reply.json()["error"].as_str().unwrap().contains("binary tensors"), "{}", reply.body());
    server.at_rest().await;
}

#[tokio::test]
async fn all_but_health_needs_a_key() {
    let keys = Keys::parse("alice:a-key-that-alice-has").unwrap();
    let access = Access::from(Credentials { keys: Some(keys), ..Credentials::default() });
    let server = Both::with(Limits::default(), TransportConfig { access, ..TransportConfig::default() }).await;
    for path in ["/v2/health/live", "/v2/health/ready"] {
        assert_eq!(get(&server, path).await.0, 200, "{path}");
    }
    for path in ["/v2", "/v2/models/fake", "/v2/models/fake/ready"] {
        assert_eq!(get(&server, path).await.0, 401, "{path}");
    }
    let key = "authorization: Bearer a-key-that-alice-has";
    assert_eq!(infer(&server, "/v2/models/fake/infer", &request("a", &[])).await.0, 401);
    let body = request("a", &[]).to_string();
    assert_eq!(exchange(server.port, "POST", "/v2/models/fake/infer", &[key], &body).await.0, 200);
}
