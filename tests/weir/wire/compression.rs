//! Compressed requests: same answers and limits as plain requests, and compressed responses only for clients that compress.

use super::{Server, fake_model::Kind, prompt, raw_http2::connect, read, reason};
use prost::Message;
use std::time::Duration;
use tokio::time::timeout;
use tonic::{
    Code, Status,
    codec::CompressionEncoding::{self, Deflate, Gzip},
    codegen::http::Request,
    metadata::MetadataMap,
    transport::Channel,
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use weir::{config::TransportConfig, engine::Limits};
use weir_proto::{
    inference::{ModelInferRequest, ServerLiveRequest, grpc_inference_service_client::GrpcInferenceServiceClient},
    v1::{self, generation_client::GenerationClient},
};

/// Returns a client that compresses with `way` and accepts both encodings.
fn compressing(server: &Server, way: CompressionEncoding) -> GenerationClient<Channel> {
    let client = GenerationClient::new(server.channel.clone()).send_compressed(way);
    client.accept_compressed(Deflate).accept_compressed(Gzip)
}

fn text(text: &str) -> v1::SegmentRequest {
    v1::SegmentRequest { text: text.into(), ..Default::default() }
}

fn way(answer: &MetadataMap) -> Option<&str> {
    answer.get("grpc-encoding").map(|way| way.to_str().unwrap())
}

#[tokio::test]
async fn compressed_requests_get_the_same_answers() {
    let server = Server::new().await;
    let request = super::long("ab c", 40);
    let plain = server.answer(request.clone()).await.unwrap();
    let segments = server.generation().segment(text("ab cab")).await.unwrap();
    assert_eq!(way(segments.metadata()), None);
    for (sent, name) in [(Gzip, "gzip"), (Deflate, "deflate")] {
        let stream = compressing(&server, sent).generate(request.clone()).await.unwrap();
        assert_eq!(way(stream.metadata()), None, "streams are not compressed");
        assert_eq!(read(stream.into_inner()).await.unwrap().text(), plain.text());
        let answer = compressing(&server, sent).segment(text("ab cab")).await.unwrap();
        assert_eq!(way(answer.metadata()), Some(name), "the encoding of the request");
        assert_eq!(answer.get_ref().segments, segments.get_ref().segments);
        // A client that does not accept compression gets a plain answer.
        let mut plain_reader = GenerationClient::new(server.channel.clone()).send_compressed(sent);
        assert_eq!(way(plain_reader.segment(text("ab")).await.unwrap().metadata()), None);
    }
    // A client that accepts compression but sends plain requests gets plain answers.
    let mut reads = server.generation().accept_compressed(Gzip);
    assert_eq!(way(reads.segment(text("ab")).await.unwrap().metadata()), None);
}

#[tokio::test]
async fn every_service_accepts_compression() {
    let server = Server::new().await;
    let mut health = HealthClient::new(server.channel.clone()).send_compressed(Gzip);
    health.check(HealthCheckRequest::default()).await.unwrap();
    let mut other = GrpcInferenceServiceClient::new(server.channel.clone()).send_compressed(Gzip);
    assert!(other.server_live(ServerLiveRequest {}).await.unwrap().into_inner().live);
}

#[tokio::test]
async fn limits_apply_to_the_decompressed_size() {
    let config = TransportConfig { message_bytes: 64 << 10, ..TransportConfig::default() };
    let server = Server::with(Limits::default(), config, &[("fake", Kind::Pooled)]).await;
    for sent in [Gzip, Deflate] {
        let mut client = compressing(&server, sent);
        let refused =
            async |bytes: usize| client.clone().generate(prompt(&"a".repeat(bytes))).await.map(drop).unwrap_err();
        // Within the limit the message is read, and is too long for the model.
        assert_eq!(refused(60 << 10).await.code(), Code::InvalidArgument);
        // These messages are a few kilobytes on the wire.
        for bytes in [64 << 10, 3 << 20] {
            let status = refused(bytes).await;
            assert_eq!((status.code(), reason(&status).as_str()), (Code::OutOfRange, "OVERSIZED"), "{status:?}");
            assert!(status.message().contains("expected at most 65536 bytes, found more"), "{status:?}");
        }
        client.segment(text("ab")).await.unwrap();
    }
    server.at_rest().await;
}

const GENERATE: &str = "/weir.v1.Generation/Generate";
const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

/// Time after which a call without an answer counts as open.
const OPEN: Duration = Duration::from_millis(500);
/// Time within which an answer must come.
const ANSWERED: Duration = Duration::from_secs(10);

/// Starts a call that sends `incomplete` and stays open. Its answer is `None` if none came within `wait`.
async fn unfinished(
    server: &Server,
    path: &str,
    encoding: &str,
    incomplete: &[u8],
    wait: Duration,
) -> (h2::SendStream<tonic::codegen::Bytes>, impl Future<Output = Option<Status>>) {
    let sender = connect(server.running.address, 1 << 16).await;
    let request = Request::post(format!("http://weir{path}")).header("te", "trailers");
    let request = request.header("content-type", "application/grpc").header("grpc-encoding", encoding);
    let request = request.version(tonic::codegen::http::Version::HTTP_2).body(()).unwrap();
    let (response, mut sending) = sender.ready().await.unwrap().send_request(request, false).unwrap();
    sending.send_data(incomplete.to_vec().into(), false).unwrap();
    let answer = async move {
        let response = timeout(wait, response).await.ok()?.unwrap();
        Status::from_header_map(response.headers())
    };
    (sending, answer)
}

/// Returns a gRPC message in zlib format: one stored block.
fn deflated(message: &[u8]) -> Vec<u8> {
    let mut a = 1_u32;
    let mut b = 0_u32;
    for byte in message {
        a = (a + u32::from(*byte)) % 65521;
        b = (b + a) % 65521;
    }
    let length = message.len() as u16;
    let block = [&[0x78, 1, 1][..], &length.to_le_bytes(), &(!length).to_le_bytes(), message].concat();
    let message_frame = [block, (b << 16 | a).to_be_bytes().to_vec()].concat();
    [&[1][..], &(message_frame.len() as u32).to_be_bytes(), &message_frame].concat()
}

/// A compressed message reserves memory for its maximum decompressed size until its call ends.
#[tokio::test]
async fn the_maximum_decompressed_size_is_reserved() {
    let config = TransportConfig { message_bytes: 64 << 10, request_memory: 448 << 10, ..TransportConfig::default() };
    let message = prompt(&"a".repeat(1000)).encode_to_vec();
    let message_frame = deflated(&message);
    let plain = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
    let incomplete = &message_frame[..message_frame.len() - 1];
    let cases = [
        (GENERATE, "deflate", &message_frame[..], true),
        (STREAM, "deflate", &message_frame[..], true),
        // An incomplete message is not decompressed.
        (GENERATE, "deflate", incomplete, false),
        (GENERATE, "identity", &plain[..], false),
        (STREAM, "deflate", &plain[..], false),
    ];
    for (path, encoding, sent, full) in cases {
        let server = Server::with(Limits::default(), config.clone(), &[("fake", Kind::Pooled)]).await;
        let mut held = Vec::new();
        for _ in 0..3 {
            let (sending, answer) = unfinished(&server, path, encoding, sent, OPEN).await;
            assert!(answer.await.is_none(), "the call stays open");
            held.push(sending);
        }
        let last = async |wait| {
            let (sending, answer) = unfinished(&server, GENERATE, "deflate", &message_frame, wait).await;
            (sending, answer.await.map(|status| (status.code(), reason(&status))))
        };
        let (_sending, status) = last(if full { ANSWERED } else { OPEN }).await;
        assert_eq!(status, full.then(|| (Code::ResourceExhausted, "QUEUE_FULL".to_owned())), "{path} {encoding}");
        // Closing the calls releases their memory.
        drop(held);
        let again = async { while let (_sending, Some(_)) = last(OPEN).await {} };
        timeout(Duration::from_secs(20), again).await.expect("the memory is released");
    }
}

/// An error in the middle of a stream has the same status as a refused call.
#[tokio::test]
async fn a_stream_fails_with_the_same_status() {
    let config = TransportConfig { message_bytes: 64 << 10, ..TransportConfig::default() };
    let server = Server::with(Limits::default(), config, &[("fake", Kind::Pooled)]).await;
    let mut client = GrpcInferenceServiceClient::new(server.channel.clone()).send_compressed(Gzip);
    let long = ModelInferRequest { model_name: "a".repeat(3 << 20), ..Default::default() };
    let mut answers = client.model_stream_infer(tokio_stream::iter([long])).await.unwrap().into_inner();
    let status = answers.message().await.unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::OutOfRange, "OVERSIZED"), "{status:?}");
}

#[tokio::test]
async fn wrong_encodings_are_reported() {
    let server = Server::new().await;
    let incomplete = [&[1][..], &4_u32.to_be_bytes(), b"what"].concat();
    for encoding in ["gzip", "deflate"] {
        let (_sending, answer) = unfinished(&server, GENERATE, encoding, &incomplete, ANSWERED).await;
        let status = answer.await.expect("an answer");
        assert_eq!((status.code(), reason(&status).as_str()), (Code::InvalidArgument, "UNREADABLE"), "{status:?}");
        assert!(status.message().contains("compressed"), "{status:?}");
    }
    let (_sending, answer) = unfinished(&server, GENERATE, "zstd", &incomplete, ANSWERED).await;
    let status = answer.await.expect("an answer");
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(status.message().contains("`zstd`"), "{status:?}");
    server.at_rest().await;
}
