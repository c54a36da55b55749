//! Clients that compress what they send: it says the same, is held to the same limits, and only they get compressed answers.

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
use weir::{config::Wire, engine::Limits};
use weir_proto::{
    inference::{ModelInferRequest, ServerLiveRequest, grpc_inference_service_client::GrpcInferenceServiceClient},
    v1::{self, generation_client::GenerationClient},
};

/// A client that compresses in this way, and reads either.
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
async fn it_says_the_same() {
    let server = Server::new().await;
    let asked = super::long("ab c", 40);
    let plain = server.answer(asked.clone()).await.unwrap();
    let segments = server.generation().segment(text("ab cab")).await.unwrap();
    assert_eq!(way(segments.metadata()), None);
    for (sent, name) in [(Gzip, "gzip"), (Deflate, "deflate")] {
        let stream = compressing(&server, sent).generate(asked.clone()).await.unwrap();
        assert_eq!(way(stream.metadata()), None, "characters wait for no checksum");
        assert_eq!(read(stream.into_inner()).await.unwrap().text(), plain.text());
        let told = compressing(&server, sent).segment(text("ab cab")).await.unwrap();
        assert_eq!(way(told.metadata()), Some(name), "as it was sent");
        assert_eq!(told.get_ref().segments, segments.get_ref().segments);
        // who could not read a compressed answer gets none
        let mut deaf = GenerationClient::new(server.channel.clone()).send_compressed(sent);
        assert_eq!(way(deaf.segment(text("ab")).await.unwrap().metadata()), None);
    }
    // one that only says that it could read them has not asked for any
    let mut reads = server.generation().accept_compressed(Gzip);
    assert_eq!(way(reads.segment(text("ab")).await.unwrap().metadata()), None);
}

#[tokio::test]
async fn every_service_reads_it() {
    let server = Server::new().await;
    let mut health = HealthClient::new(server.channel.clone()).send_compressed(Gzip);
    health.check(HealthCheckRequest::default()).await.unwrap();
    let mut other = GrpcInferenceServiceClient::new(server.channel.clone()).send_compressed(Gzip);
    assert!(other.server_live(ServerLiveRequest {}).await.unwrap().into_inner().live);
}

#[tokio::test]
async fn it_has_the_limits_of_what_it_becomes() {
    let wire = Wire { message_bytes: 64 << 10, ..Wire::default() };
    let server = Server::with(Limits::default(), wire, &[("fake", Kind::Pooled)]).await;
    for sent in [Gzip, Deflate] {
        let mut client = compressing(&server, sent);
        let refused =
            async |bytes: usize| client.clone().generate(prompt(&"a".repeat(bytes))).await.map(drop).unwrap_err();
        // within the limit it is read, and found too long for the model
        assert_eq!(refused(60 << 10).await.code(), Code::InvalidArgument);
        // a few kilobytes on the wire
        for bytes in [64 << 10, 3 << 20] {
            let status = refused(bytes).await;
            assert_eq!((status.code(), reason(&status).as_str()), (Code::OutOfRange, "OVERSIZED"), "{status:?}");
            assert!(status.message().contains("more than 65536 bytes"), "{status:?}");
        }
        client.segment(text("ab")).await.unwrap();
    }
    server.at_rest().await;
}

const GENERATE: &str = "/weir.v1.Generation/Generate";
const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

/// A call whose request begins so and does not end.
async fn unfinished(
    server: &Server,
    (path, encoding): (&str, &str),
    begun: &[u8],
) -> (h2::SendStream<tonic::codegen::Bytes>, impl Future<Output = Option<Status>>) {
    let sender = connect(server.running.address, 1 << 16).await;
    let request = Request::post(format!("http://weir{path}")).header("te", "trailers");
    let request = request.header("content-type", "application/grpc").header("grpc-encoding", encoding);
    let request = request.version(tonic::codegen::http::Version::HTTP_2).body(()).unwrap();
    let (response, mut sending) = sender.ready().await.unwrap().send_request(request, false).unwrap();
    sending.send_data(begun.to_vec().into(), false).unwrap();
    let answer = async {
        let response = timeout(Duration::from_millis(500), response).await.ok()?.unwrap();
        Status::from_header_map(response.headers())
    };
    (sending, answer)
}

/// A message behind its head, in zlib's form: one block that is stored as it is.
fn deflated(message: &[u8]) -> Vec<u8> {
    let (mut a, mut b) = (1u32, 0u32);
    for byte in message {
        a = (a + u32::from(*byte)) % 65521;
        b = (b + a) % 65521;
    }
    let length = message.len() as u16;
    let block = [&[0x78, 1, 1][..], &length.to_le_bytes(), &(!length).to_le_bytes(), message].concat();
    let whole = [block, (b << 16 | a).to_be_bytes().to_vec()].concat();
    [&[1][..], &(whole.len() as u32).to_be_bytes(), &whole].concat()
}

/// A kilobyte that may have become a megabyte takes the room of one, as long as its call is not over, read or not.
#[tokio::test]
async fn what_it_may_become_takes_room() {
    let wire = Wire { message_bytes: 64 << 10, request_memory: 256 << 10, ..Wire::default() };
    let message = prompt(&"a".repeat(1000)).encode_to_vec();
    let (whole, plain) = (deflated(&message), [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat());
    let begun = &whole[..whole.len() - 1];
    let cases = [
        ((GENERATE, "deflate"), &whole[..], true),
        ((STREAM, "deflate"), &whole[..], true),
        // nothing comes of what is not there yet
        ((GENERATE, "deflate"), begun, false),
        ((GENERATE, "identity"), &plain[..], false),
        ((STREAM, "deflate"), &plain[..], false),
    ];
    for (call, sent, full) in cases {
        let server = Server::with(Limits::default(), wire.clone(), &[("fake", Kind::Pooled)]).await;
        let mut held = Vec::new();
        for _ in 0..3 {
            let (sending, answer) = unfinished(&server, call, sent).await;
            assert!(answer.await.is_none(), "it is waited for");
            held.push(sending);
        }
        let last = async || {
            let (sending, answer) = unfinished(&server, (GENERATE, "deflate"), &whole).await;
            (sending, answer.await.map(|status| (status.code(), reason(&status))))
        };
        let (_sending, told) = last().await;
        assert_eq!(told, full.then(|| (Code::ResourceExhausted, "QUEUE_FULL".to_owned())), "{call:?}");
        // there is room again once they are gone
        drop(held);
        let again = async { while let (_sending, Some(_)) = last().await {} };
        timeout(Duration::from_secs(20), again).await.expect("the room is given back");
    }
}

/// What ends a stream whose answers have begun is told in the same words as what refuses a call.
#[tokio::test]
async fn a_stream_ends_with_the_same_words() {
    let wire = Wire { message_bytes: 64 << 10, ..Wire::default() };
    let server = Server::with(Limits::default(), wire, &[("fake", Kind::Pooled)]).await;
    let mut client = GrpcInferenceServiceClient::new(server.channel.clone()).send_compressed(Gzip);
    let long = ModelInferRequest { model_name: "a".repeat(3 << 20), ..Default::default() };
    let mut answers = client.model_stream_infer(tokio_stream::iter([long])).await.unwrap().into_inner();
    let status = answers.message().await.unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::OutOfRange, "OVERSIZED"), "{status:?}");
}

#[tokio::test]
async fn what_is_not_compressed_as_it_says_is_told() {
    let server = Server::new().await;
    let begun = [&[1][..], &4_u32.to_be_bytes(), b"what"].concat();
    for encoding in ["gzip", "deflate"] {
        let (_sending, answer) = unfinished(&server, (GENERATE, encoding), &begun).await;
        let status = answer.await.expect("an answer");
        assert_eq!((status.code(), reason(&status).as_str()), (Code::InvalidArgument, "UNREADABLE"), "{status:?}");
        assert!(status.message().starts_with("Error decompressing: "), "{status:?}");
    }
    let (_sending, answer) = unfinished(&server, (GENERATE, "zstd"), &begun).await;
    let status = answer.await.expect("an answer");
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(status.message().contains("`zstd`"), "{status:?}");
    server.at_rest().await;
}
