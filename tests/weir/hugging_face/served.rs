//! The built server with a model of tokens: the same text alone and in company, over gRPC and over HTTP.

use super::*;
use crate::process::Server;
use tokio::task::JoinSet;
use tonic::transport::Channel;
use weir_proto::v1::{
    FinishReason, Finished, GenerateRequest, Sampling, Stopping, generate_response::Event,
    generation_client::GenerationClient,
};

/// Requests at the same time.
const COMPANY: u32 = 16;

fn request(number: u32) -> GenerateRequest {
    let text = "The town was founded by settlers from the north, who had come down the river in search of land. ";
    let from = number as usize * 5 % 60;
    let prompt = text[from..].repeat(1 + number as usize % 3);
    let sampling = Sampling {
        seed: Some(number.into()),
        temperature: Some([0.0, 0.9][number as usize % 2]),
        ..Default::default()
    };
    let stopping = Stopping { max_chars: Some(20 + number), ignore_eos: Some(true), ..Default::default() };
    GenerateRequest { prompt, sampling: Some(sampling), stopping: Some(stopping), ..Default::default() }
}

async fn ask(channel: &Channel, request: GenerateRequest) -> (String, Finished) {
    let mut stream = GenerationClient::new(channel.clone()).generate(request).await.unwrap().into_inner();
    let mut text = String::new();
    while let Some(message) = stream.message().await.unwrap() {
        match message.event.unwrap() {
            Event::Piece(piece) => text.push_str(&piece.text),
            Event::Finished(finished) => return (text, finished),
            Event::Started(_) => {}
        }
    }
    panic!("the answer ended without a status");
}

async fn connect(server: &Server) -> Channel {
    Channel::from_shared(format!("http://{}", server.address)).unwrap().connect().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_does_not_depend_on_its_company() {
    for model_type in ["llama", "mamba"] {
        let folder = folder(model_type);
        let server = Server::start(&["--model", folder.to_str().unwrap(), "--cache-memory", "0"]);
        let channel = connect(&server).await;
        let mut alone = Vec::new();
        for number in 0..COMPANY {
            alone.push(ask(&channel, request(number)).await.0);
        }
        let mut calls = JoinSet::new();
        for number in 0..COMPANY {
            let channel = channel.clone();
            calls.spawn(async move { (number, ask(&channel, request(number)).await.0) });
        }
        while let Some(call) = calls.join_next().await {
            let (number, text) = call.unwrap();
            assert_eq!(text, alone[number as usize], "{model_type}, request {number}");
        }
        assert_eq!(ask(&channel, request(3)).await.1.usage.unwrap().generated_chars, 23);
    }
}

/// The greedy text of gemma2 after this prompt is " of))))…", in the tokens " of" and ")".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_string_ends_the_text_inside_a_token() {
    let folder = folder("gemma2");
    let server = Server::start(&["--model", folder.to_str().unwrap()]);
    let channel = connect(&server).await;
    let prompt = "Daejeon is South Korea's fif";
    for (stop, include, text, tokens) in
        [("f)", false, " o", 2), ("f))", true, " of))", 3), ("))))", false, " of", 5), (" ", false, "", 1)]
    {
        let stopping = Stopping {
            max_chars: Some(12),
            stop: vec!["unused".into(), stop.into()],
            include_stop: Some(include),
            ignore_eos: Some(true),
            ..Default::default()
        };
        let sampling = Sampling { temperature: Some(0.0), ..Default::default() };
        let request = GenerateRequest {
            prompt: prompt.into(),
            sampling: Some(sampling),
            stopping: Some(stopping),
            ..Default::default()
        };
        let (found, finished) = ask(&channel, request).await;
        assert_eq!((&*found, finished.matched_stop()), (text, stop));
        let usage = finished.usage.unwrap();
        assert_eq!(usage.generated_chars, tokens, "{stop:?}");
        assert_eq!(usage.generated_text_chars(), text.chars().count() as u64);
        assert_eq!((usage.prompt_chars, usage.prompt_text_chars()), (20, prompt.chars().count() as u64));
    }
}

/// Here the token ")" ends a text. It is not special, so it has a text of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_text_of_an_end_token_is_not_sent() {
    let copy = copied("gemma2");
    edit(&copy.path().join("generation_config.json"), r#""eos_token_id": 0"#, r#""eos_token_id": [0, 9]"#);
    let server = Server::start(&["--model", copy.path().to_str().unwrap()]);
    let channel = connect(&server).await;
    let whole = GenerateRequest {
        prompt: "Daejeon is South Korea's fif".into(),
        sampling: Some(Sampling { temperature: Some(0.0), seed: Some(1), ..Default::default() }),
        ..Default::default()
    };
    // the second stream broke after its last id
    for (resume_ids, expected) in [(vec![], " of"), (vec![276, 9], "")] {
        let (text, finished) = ask(&channel, GenerateRequest { resume_ids, ..whole.clone() }).await;
        assert_eq!((&*text, finished.reason()), (expected, FinishReason::EndOfText));
        let usage = finished.usage.unwrap();
        assert_eq!((usage.generated_chars, usage.generated_text_chars()), (1, 3));
    }
}

/// candle 0.11 reads `/proc/cpuinfo` at every product unless `RAYON_NUM_THREADS` is set. On processors with unequal cores it never does.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_do_not_read_cpuinfo() {
    let folder = folder("llama");
    let server = Server::start(&["--model", folder.to_str().unwrap(), "--calibration-milliseconds", "0"]);
    let channel = connect(&server).await;
    let read = || {
        let counters = std::fs::read_to_string(format!("/proc/{}/io", server.program.id())).unwrap();
        let bytes = counters.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap();
        bytes.parse::<u64>().unwrap()
    };
    ask(&channel, request(0)).await;
    let before = read();
    for number in 0..16 {
        ask(&channel, request(number)).await;
    }
    let bytes = read() - before;
    // 440 tokens of at least 15 products each: one read of `/proc/cpuinfo` per product exceeds 1 MiB
    assert!(bytes < 1 << 20, "{bytes} bytes were read");
}
