//! Complete responses that their clients do not read: their memory is limited, and released after a while.

use super::{
    Server,
    collected::inference,
    connections::{channel_from, segment},
    details, eventually,
    fake_model::Kind,
    http2_frames, raw_http2, reason,
};
use h2::{RecvStream, client::SendRequest};
use prost::Message;
use std::time::{Duration, Instant};
use tokio::time::timeout;
use tonic::{
    Code, Status,
    codegen::{Bytes, http::Response},
    transport::Channel,
};
use weir::{config::TransportConfig, engine::Limits};
use weir_proto::{
    inference::{
        ModelInferResponse, ModelStreamInferResponse, grpc_inference_service_client::GrpcInferenceServiceClient,
    },
    v1::{ScoreRequest, SegmentRequest, generation_client::GenerationClient},
};

const STREAM_INFER: &str = "/inference.GRPCInferenceService/ModelStreamInfer";
/// Number of segments of the test text, which has a character in each.
const SEGMENTS: usize = 1900;

fn request() -> SegmentRequest {
    SegmentRequest { text: " ".repeat(SEGMENTS), ..Default::default() }
}

async fn with_stall(stall: Duration) -> Server {
    let config = TransportConfig { message_bytes: 16 << 10, request_memory: 896 << 10, ..TransportConfig::default() };
    Server::with(Limits { stall, ..Limits::default() }, config, &[("fake", Kind::Pooled)]).await
}

/// Calls `Segment`. The client reads the headers only, until it releases capacity.
async fn unread(sender: &SendRequest<Bytes>) -> Response<RecvStream> {
    call(sender, "/weir.v1.Generation/Segment", &request()).await
}

async fn call(sender: &SendRequest<Bytes>, path: &str, request: &impl Message) -> Response<RecvStream> {
    let message = http2_frames::message(&request.encode_to_vec());
    raw_http2::called(sender.clone(), path, message, &[]).await.unwrap()
}

fn refusal(response: &Response<RecvStream>) -> Option<Status> {
    Status::from_header_map(response.headers()).filter(|status| status.code() != Code::Ok)
}

async fn segments(channel: &Channel) -> Result<usize, Status> {
    let response = GenerationClient::new(channel.clone()).segment(request()).await?;
    Ok(response.into_inner().segments.len())
}

/// Waits until there is memory for a response.
async fn memory_is_free(channel: &Channel) {
    let free = async {
        loop {
            match segments(channel).await {
                Err(status) if status.code() == Code::ResourceExhausted => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                answered => return answered.unwrap(),
            }
        }
    };
    assert_eq!(timeout(Duration::from_secs(20), free).await.expect("the memory is released"), SEGMENTS);
}

/// Reads a response to its end. Returns its bytes and status.
async fn read(mut response: Response<RecvStream>) -> (Vec<u8>, Status) {
    let mut bytes = Vec::new();
    while let Some(part) = response.body_mut().data().await {
        let part = part.unwrap();
        response.body_mut().flow_control().release_capacity(part.len()).unwrap();
        bytes.extend_from_slice(&part);
    }
    let trailers = response.body_mut().trailers().await.unwrap().unwrap();
    (bytes, Status::from_header_map(&trailers).unwrap())
}

#[tokio::test]
async fn responses_that_are_not_read_leave_memory_to_others() {
    let server = with_stall(Duration::from_secs(600)).await;
    for window in [0, 256] {
        let sender = raw_http2::connect(server.running.address, window).await;
        let mut held = Vec::new();
        let refused = loop {
            let response = unread(&sender).await;
            if let Some(refused) = refusal(&response) {
                break refused;
            }
            held.push(response);
            assert!(held.len() < 50, "unread responses take no memory");
        };
        assert_eq!((refused.code(), reason(&refused).as_str()), (Code::ResourceExhausted, "QUEUE_FULL"), "{refused:?}");
        assert!(details(&refused).retry_info().is_some());
        assert!(held.len() > 4, "only {} fit", held.len());
        // Small responses to this caller, and large ones to another, have room.
        segment(server.channel.clone()).await.unwrap();
        let other = channel_from(2, server.running.address).await;
        assert_eq!(segments(&other).await.unwrap(), SEGMENTS);
        drop((held, sender));
        memory_is_free(&server.channel).await;
    }
}

#[tokio::test]
async fn a_response_that_is_not_read_ends_after_the_stall_limit() {
    let server = with_stall(Duration::from_secs(2)).await;
    let (whole, status) = read(unread(&raw_http2::connect(server.running.address, 1 << 16).await).await).await;
    assert_eq!(status.code(), Code::Ok);
    let sender = raw_http2::connect(server.running.address, 256).await;
    let mut held = Vec::new();
    loop {
        let response = unread(&sender).await;
        if refusal(&response).is_some() {
            break;
        }
        held.push(response);
        assert!(held.len() < 50, "unread responses take no memory");
    }
    memory_is_free(&server.channel).await;
    // What the connection had taken arrives, and then the reason.
    let (bytes, status) = read(held.remove(0)).await;
    assert!(bytes.len() < whole.len(), "{} bytes of a response that was dropped", bytes.len());
    assert_eq!((status.code(), reason(&status).as_str()), (Code::ResourceExhausted, "STALLED"), "{status:?}");
}

/// A score that its client does not read holds little: the engine pauses it, and ends it after the stall limit.
#[tokio::test]
async fn a_score_that_is_not_read_does_not_finish() {
    let server = with_stall(Duration::from_secs(2)).await;
    let sender = raw_http2::connect(server.running.address, 256).await;
    let detailed = ScoreRequest { text: "a ".repeat(900), top_logprobs: Some(4), ..Default::default() };
    let response = call(&sender, "/weir.v1.Generation/Score", &detailed).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(server.engine.load().running, 1, "the response waits in memory as a whole");
    eventually("the stall limit ends the request", || server.engine.load().running == 0).await;
    let (_, status) = read(response).await;
    assert_eq!((status.code(), reason(&status).as_str()), (Code::ResourceExhausted, "STALLED"), "{status:?}");
}

/// Complete responses on streams of requests.
#[tokio::test]
async fn inferences_that_are_not_read_leave_memory_to_others() {
    let server = with_stall(Duration::from_secs(600)).await;
    let sender = raw_http2::connect(server.running.address, 0).await;
    let mut held = Vec::new();
    let refused = loop {
        held.push(call(&sender, STREAM_INFER, &inference(1900)).await);
        eventually("the request ends", || server.engine.load().running + server.engine.load().queued == 0).await;
        let mut client = GrpcInferenceServiceClient::new(server.channel.clone());
        if let Err(refused) = client.model_infer(inference(1900)).await {
            break refused;
        }
        assert!(held.len() < 50, "unread responses take no memory");
    };
    assert_eq!((refused.code(), reason(&refused).as_str()), (Code::ResourceExhausted, "QUEUE_FULL"), "{refused:?}");
    let other = channel_from(2, server.running.address).await;
    assert_eq!(segments(&other).await.unwrap(), SEGMENTS);
    drop((held, sender));
    memory_is_free(&server.channel).await;
}

#[tokio::test]
async fn inferences_that_are_not_read_end_after_the_stall_limit() {
    let server = with_stall(Duration::from_secs(6)).await;
    let sender = raw_http2::connect(server.running.address, 256).await;
    let mut held = Vec::new();
    loop {
        held.push(call(&sender, STREAM_INFER, &inference(1900)).await);
        eventually("the request ends", || server.engine.load().running + server.engine.load().queued == 0).await;
        let mut client = GrpcInferenceServiceClient::new(server.channel.clone());
        if let Err(refused) = client.model_infer(inference(1900)).await {
            assert_eq!(reason(&refused), "QUEUE_FULL", "{refused:?}");
            break;
        }
        assert!(held.len() < 50, "unread responses take no memory");
    }
    let mut client = GrpcInferenceServiceClient::new(server.channel.clone());
    let answered = async { while client.model_infer(inference(1900)).await.is_err() {} };
    timeout(Duration::from_secs(40), answered).await.expect("the memory is released");
    let (_, status) = read(held.remove(0)).await;
    assert_eq!((status.code(), reason(&status).as_str()), (Code::ResourceExhausted, "STALLED"), "{status:?}");
}

/// Any time may pass between two requests.
#[tokio::test]
async fn a_stream_without_requests_does_not_stall() {
    let server = with_stall(Duration::from_millis(200)).await;
    let (requests, incoming) = tokio::sync::mpsc::channel(1);
    let mut client = GrpcInferenceServiceClient::new(server.channel.clone());
    let answers = client.model_stream_infer(tokio_stream::wrappers::ReceiverStream::new(incoming));
    let mut answers = answers.await.unwrap().into_inner();
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(600)).await;
        requests.send(inference(3)).await.unwrap();
        let answer = answers.message().await.unwrap().unwrap();
        assert_eq!(answer.error_message, "");
    }
}

/// The client reads more slowly than the stall limit in all, and never pauses for as long as the limit.
#[tokio::test]
async fn a_slow_client_gets_its_whole_response() {
    let limits = Limits { stall: Duration::from_secs(2), ..Limits::default() };
    let server = Server::with(limits, TransportConfig::default(), &[("fake", Kind::Pooled)]).await;
    let sender = raw_http2::connect(server.running.address, 8 << 10).await;
    let read_slowly = async |path: &str| {
        let began = Instant::now();
        let mut response = call(&sender, path, &inference(1900)).await;
        let mut bytes = Vec::new();
        while let Some(part) = response.body_mut().data().await {
            let part = part.unwrap();
            tokio::time::sleep(Duration::from_millis(250)).await;
            response.body_mut().flow_control().release_capacity(part.len()).unwrap();
            bytes.extend_from_slice(&part);
        }
        assert_eq!(response.body_mut().trailers().await.unwrap().unwrap()["grpc-status"], "0");
        let elapsed = began.elapsed();
        assert!(elapsed > Duration::from_secs(3), "{path}: {elapsed:?} and {} bytes show nothing", bytes.len());
        bytes
    };
    let (complete, streamed) =
        tokio::join!(read_slowly("/inference.GRPCInferenceService/ModelInfer"), read_slowly(STREAM_INFER));
    assert_eq!(ModelInferResponse::decode(&complete[5..]).unwrap().outputs.len(), 2);
    let streamed = ModelStreamInferResponse::decode(&streamed[5..]).unwrap();
    assert_eq!(streamed.infer_response.unwrap().outputs.len(), 2);
}
