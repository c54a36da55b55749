//! The content of the log of `weir serve`.
#![cfg(unix)]

use super::{certificates::Certificates, serve_process::Process};
use tonic::{Code, Request, Status, Streaming};
use weir_proto::v1::{self, generation_client::GenerationClient};

async fn drained<T>(call: Result<tonic::Response<Streaming<T>>, Status>) -> Result<(), Status> {
    let mut stream = call?.into_inner();
    while stream.message().await?.is_some() {}
    Ok(())
}

/// Letters of the model's alphabet that no log contains by chance.
const WORD: &str = "zxqjvkwzqx";
const KEY: &str = "key-of-the-test-0123456789";

/// Sends valid and invalid calls that contain `WORD` in each text field, and returns their codes.
async fn calls(process: &Process) -> Vec<Code> {
    let mut client =
        GenerationClient::with_interceptor(process.plain().connect().await.unwrap(), |mut request: Request<()>| {
            request.metadata_mut().insert("authorization", format!("Bearer {KEY}").parse().unwrap());
            Ok(request)
        });
    let text = format!("a {WORD} b");
    let right = v1::GenerateRequest {
        prompt: text.clone(),
        stopping: Some(v1::Stopping { max_chars: Some(20), stop: vec![WORD.into()], ..Default::default() }),
        details: Some(v1::Details { echo: Some(true), logprobs: Some(true), ..Default::default() }),
        ..Default::default()
    };
    let wrong = [
        right.clone(),
        v1::GenerateRequest { prompt: format!("{WORD}{}", WORD.repeat(2000)), ..right.clone() },
        v1::GenerateRequest { boundary_mode: Some(WORD.into()), ..right.clone() },
        v1::GenerateRequest { model: Some(WORD.into()), ..right.clone() },
        v1::GenerateRequest {
            stopping: Some(v1::Stopping { stop: vec![WORD.to_uppercase()], ..Default::default() }),
            ..right.clone()
        },
        v1::GenerateRequest {
            sampling: Some(v1::Sampling {
                logit_bias: vec![v1::LogitBias { symbol: Some(v1::logit_bias::Symbol::Text(WORD.into())), bias: 1.0 }],
                ..Default::default()
            }),
            ..right.clone()
        },
    ];
    let mut results = Vec::new();
    for request in wrong {
        results.push(drained(client.generate(request).await).await);
    }
    let score = v1::ScoreRequest { text: text.clone(), ..Default::default() };
    results.push(drained(client.score(score.clone()).await).await);
    results.push(drained(client.score(v1::ScoreRequest { top_logprobs: Some(99), ..score.clone() }).await).await);
    results.push(client.segment(v1::SegmentRequest { text, ..Default::default() }).await.map(drop));
    // Sends a cancelled call and one with an unknown key.
    drop(client.generate(right).await.unwrap());
    let mut stranger = GenerationClient::new(process.plain().connect().await.unwrap());
    let mut request = Request::new(score);
    request.metadata_mut().insert("authorization", format!("Bearer not-{KEY}").parse().unwrap());
    results.push(drained(stranger.score(request).await).await);
    results.into_iter().map(|result| result.map_or_else(|status| status.code(), |()| Code::Ok)).collect()
}

/// At the most verbose level, valid and invalid calls log neither a text of a request nor a key.
#[tokio::test]
async fn no_text_of_a_request_is_logged() {
    let certificates = Certificates::new();
    let keys = certificates.write("keys", &format!("tester:{KEY}\n"));
    let keys = keys.to_str().unwrap();
    for format in ["text", "json"] {
        let mut process = Process::start(&["--log", "trace", "--log-format", format, "--api-keys", keys]);
        let invalid = Code::InvalidArgument;
        let expected = [
            Code::Ok,
            invalid,
            invalid,
            Code::NotFound,
            // A stop string that the model cannot generate.
            Code::Ok,
            invalid,
            Code::Ok,
            invalid,
            Code::Ok,
            Code::Unauthenticated,
        ];
        assert_eq!(calls(&process).await, expected);
        process.terminate();
        let log = process.ended().await;
        // The log is complete and contains all levels.
        for part in ["TRACE", "DEBUG", "finished", "scored", "ended early", "refused credentials", "draining", "tester"]
        {
            assert!(log.contains(part), "{part} is not in the log");
        }
        let bytes = |text: &str| text.bytes().map(|byte| byte.to_string()).collect::<Vec<_>>().join(", ");
        let hexadecimal = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
        for secret in [WORD, KEY] {
            for form in [secret.to_owned(), secret.to_uppercase(), bytes(secret), hexadecimal(secret)] {
                let line = log.lines().find(|line| line.contains(&form));
                assert_eq!(line, None, "{form} is in the log");
            }
        }
    }
}

/// The server warns of a key file that others can read or change, and uses it.
#[tokio::test]
async fn a_readable_key_file_causes_a_warning() {
    use std::os::unix::fs::PermissionsExt;
    let certificates = Certificates::new();
    let keys = certificates.write("keys", &format!("tester:{KEY}\n"));
    for (mode, warned) in [(0o644, true), (0o620, true), (0o600, false), (0o440, false)] {
        std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(mode)).unwrap();
        let mut process = Process::start(&["--api-keys", keys.to_str().unwrap()]);
        process.terminate();
        let log = process.ended().await;
        assert_eq!(log.contains("others can read or change this secret"), warned, "{mode:o}: {log}");
    }
}
