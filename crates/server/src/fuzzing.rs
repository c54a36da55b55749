//! Entry points of the fuzz targets for requests: each accepts any bytes, and must not panic. Compiled for tests and fuzz targets
//! only.

use crate::{
    completion_request::{CompletionRequest, Path, parse_json},
    grpc,
    http::{editing, open_inference::InferenceRequest},
    middleware::limits::WholeMessages,
    open_inference::request::InferRequest,
};
use tonic::codegen::Bytes;
use weir_proto::codec::decode_bounded;

/// Reads a request of `weir.v1`, and converts it to a job. The first byte selects the message.
pub fn grpc_request(data: &[u8]) {
    grpc::fuzzing::request(data);
}

/// Reads the body of a completion request over HTTP, and converts it to jobs of both kinds of models.
pub fn completion_request(data: &[u8]) {
    let Ok(request) = CompletionRequest::parse(data, Path::Completions) else { return };
    if let Ok(requests) = request.generate_requests() {
        requests.for_each(grpc::fuzzing::generate);
    }
    let summaries = request.summarize_requests("model").unwrap_or_default();
    summaries.into_iter().flatten().for_each(grpc::fuzzing::summarize);
}

/// Reads the body of a summary request over HTTP, and converts it to the messages of a call.
pub fn summary_request(data: &[u8]) {
    let messages = CompletionRequest::parse(data, Path::Summaries).and_then(|request| request.summary_messages());
    messages.unwrap_or_default().into_iter().for_each(grpc::fuzzing::summarize);
}

/// Receives a body of gRPC messages in parts whose size the first byte gives. The same bytes must come out.
pub fn message_framing(data: &[u8]) {
    let Some((&size, body)) = data.split_first() else { return };
    let mut messages = WholeMessages::new(MAX_FRAMED);
    let mut received = Vec::new();
    for part in body.chunks(usize::from(size).max(1)) {
        messages.push(Bytes::copy_from_slice(part));
        received.extend(messages.pop().unwrap_or_default());
        assert!(body.starts_with(&received), "other bytes came out");
    }
    received.extend(messages.take_rest().unwrap_or_default());
    assert!(messages.is_empty() && received == body, "bytes are missing");
}

/// Reads a request of the Open Inference Protocol as a message and as JSON, with its tensors, and converts it to a job.
pub fn inference_request(data: &[u8]) {
    let json = parse_json::<InferenceRequest>(data, "the body").ok();
    let json = json.map(|request| request.into_message(String::new(), String::new()));
    let messages = decode_bounded(&mut &data[..]).into_iter().chain(json);
    let Some(card) = grpc::fuzzing::CARDS.last() else { return };
    let requests = messages.filter_map(|message| InferRequest::parse(message, card).ok());
    requests.for_each(|request| grpc::fuzzing::generate(request.generate));
}

/// Reads the messages of an editing session over a WebSocket, one in each line, and applies them to the session's text.
pub fn edit_messages(data: &[u8]) {
    let messages = data.split(|byte| *byte == b'\n').filter_map(editing::check_request);
    grpc::fuzzing::edit(messages).iter().for_each(editing::check_response);
}

/// Maximum bytes of a message in [`message_framing`]. Longer ones pass at once.
const MAX_FRAMED: usize = 1 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Runs an entry on the kept corpus of a target, and on the beginnings of each input.
    fn run_corpus(target: &str, entry: fn(&[u8])) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/corpus").join(target);
        let mut count = 0;
        for file in folder.read_dir().unwrap() {
            let input = std::fs::read(file.unwrap().path()).unwrap();
            entry(&input);
            (0..input.len().min(256)).for_each(|end| entry(&input[..end]));
            count += 1;
        }
        assert!(count > 5, "only {count} inputs in {}", folder.display());
    }

    #[test]
    fn the_kept_corpora_pass() {
        for (target, entry) in [
            ("edit", edit_messages as fn(&[u8])),
            ("grpc", grpc_request),
            ("openai", completion_request),
            ("summaries", summary_request),
            ("framing", message_framing),
            ("open_inference", inference_request),
        ] {
            run_corpus(target, entry);
        }
    }
}
