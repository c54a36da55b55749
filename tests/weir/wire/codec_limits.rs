//! Limits of the service `Codec`: the queue, the memory of requests, and clients that neither send nor read.

use super::{
    Running,
    codec::{TEXT, client, compress, freed, read, reason, to_compress, to_decompress},
    http2_frames, long, raw_http2,
};
use crate::support::{converted, settings};
use prost::Message;
use std::time::Duration;
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_stream::{StreamExt, wrappers::UnboundedReceiverStream};
use tonic::{Code, Streaming};
use weir::{
    config::TransportConfig,
    engine::{Handle, Limits},
    family::load::load,
};
use weir_proto::v1::{CompressOptions, CompressRequest, GenerateResponse, generation_client::GenerationClient};

async fn served(limits: Limits) -> (Running, Handle) {
    served_with(limits, TransportConfig::default()).await
}

async fn served_with(limits: Limits, config: TransportConfig) -> (Running, Handle) {
    let engine = Handle::start(load(&converted("whitespaces"), &settings()).unwrap(), limits).unwrap();
    (Running::start(vec![engine.clone()], config).await, engine)
}

/// Starts generations that their client does not read, until the queue has no room for another one.
async fn fill_queue(running: &Running) -> Vec<Streaming<GenerateResponse>> {
    let mut client = GenerationClient::new(running.channel.clone());
    let mut unread = Vec::new();
    loop {
        match client.generate(long("a", 8000)).await {
            Ok(response) => unread.push(response.into_inner()),
            Err(status) => {
                assert_eq!(reason(&status), "QUEUE_FULL", "{status:?}");
                return unread;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn later_blocks_wait_for_the_queue() {
    let (running, engine) = served(Limits { rows: 1, queue: 2, ..Limits::default() }).await;
    let block = |block_chars| CompressOptions { block_chars: Some(block_chars), ..Default::default() };
    let text = TEXT.repeat(10);
    let (first, rest): (Vec<_>, Vec<_>) =
        to_compress(block(100), &text).into_iter().enumerate().partition(|(part, _)| *part < 15);
    let (sender, parts) = mpsc::unbounded_channel::<CompressRequest>();
    let send_all =
        |parts: Vec<(usize, CompressRequest)>| parts.into_iter().for_each(|(_, part)| sender.send(part).unwrap());
    send_all(first);
    let mut stream = client(&running).compress(UnboundedReceiverStream::new(parts)).await.unwrap().into_inner();
    stream.next().await.unwrap().unwrap();
    freed(&engine).await;
    // The call has a block behind it. Others fill the row and the queue.
    let others = fill_queue(&running).await;
    let status = compress(&mut client(&running), block(100), &text).await.unwrap_err();
    assert_eq!((status.code(), reason(&status)), (Code::ResourceExhausted, "QUEUE_FULL".into()), "a first block waits");
    send_all(rest);
    drop(sender);
    let ended = timeout(Duration::from_millis(500), stream.next()).await;
    assert!(ended.is_err(), "a later block does not wait: {ended:?}");
    drop(others);
    assert_eq!(read(stream).await.unwrap().text_bytes, text.len() as u64);
    freed(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_stops_arriving_ends_after_the_stall_limit() {
    let (running, engine) = served(Limits { stall: Duration::from_millis(300), ..Limits::default() }).await;
    let parts = tokio_stream::iter(to_compress(CompressOptions::default(), TEXT)).chain(tokio_stream::pending());
    let status = match client(&running).compress(parts).await {
        Ok(response) => read(response.into_inner()).await.unwrap_err(),
        Err(status) => status,
    };
    assert_eq!((status.code(), reason(&status)), (Code::DeadlineExceeded, "DEADLINE".into()), "{status:?}");
    assert!(status.message().contains("while the request came in"), "{status:?}");
    freed(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_options_ends_after_the_upload_limit() {
    let config = TransportConfig { upload: Duration::from_millis(300), ..TransportConfig::default() };
    let (running, _engine) = served_with(Limits::default(), config).await;
    let call = client(&running).compress(tokio_stream::pending()).await;
    let status = call.map(|_| ()).unwrap_err();
    assert_eq!((status.code(), reason(&status)), (Code::DeadlineExceeded, "INCOMPLETE".into()), "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_that_is_not_read_ends_after_the_stall_limit() {
    let (running, engine) = served(Limits { stall: Duration::from_secs(1), ..Limits::default() }).await;
    let text = TEXT.repeat(40);
    let options = CompressOptions { block_chars: Some(50), ..Default::default() };
    let (data, _) = compress(&mut client(&running), options, &text).await.unwrap();
    let body: Vec<u8> =
        to_decompress(&data).iter().flat_map(|part| http2_frames::message(&part.encode_to_vec())).collect();
    let sender = raw_http2::connect(running.address, 64).await;
    let response = raw_http2::called(sender, "/weir.v1.Codec/Decompress", body, &[]).await.unwrap();
    freed(&engine).await;
    // The error is not lost while the client still reads nothing.
    sleep(Duration::from_millis(2500)).await;
    let mut body = response.into_body();
    let mut bytes = 0;
    let status = loop {
        match body.data().await {
            Some(part) => {
                let part = part.unwrap();
                bytes += part.len();
                body.flow_control().release_capacity(part.len()).unwrap();
            }
            None => break tonic::Status::from_header_map(&body.trailers().await.unwrap().unwrap()).unwrap(),
        }
    };
    assert!(bytes < text.len(), "{bytes} bytes of a response that was dropped");
    assert_eq!((status.code(), reason(&status)), (Code::ResourceExhausted, "STALLED".into()), "{status:?}");
}

/// Input that never completes a block counts, however slowly it arrives.
#[tokio::test(flavor = "multi_thread")]
async fn input_without_a_complete_block_counts_in_the_memory_of_requests() {
    let config = TransportConfig { message_bytes: 8 << 10, request_memory: 1 << 20, ..TransportConfig::default() };
    let (running, engine) = served_with(Limits::default(), config).await;
    let mut client = client(&running);
    let text = TEXT.repeat(40_000 / TEXT.len());
    let mut held = Vec::new();
    let status = loop {
        let options = CompressOptions { block_chars: Some(1 << 20), ..Default::default() };
        let parts = tokio_stream::iter(to_compress(options, &text)).chain(tokio_stream::pending());
        let mut stream = client.compress(parts).await.unwrap().into_inner();
        match timeout(Duration::from_secs(1), stream.next()).await {
            Ok(message) => break message.unwrap().unwrap_err(),
            Err(_) => held.push(stream),
        }
        assert!(held.len() < 10, "no call was refused");
    };
    assert_eq!((status.code(), reason(&status)), (Code::ResourceExhausted, "QUEUE_FULL".into()), "{status:?}");
    drop(held);
    let options = CompressOptions { block_chars: Some(100), ..Default::default() };
    let (_, summary) = compress(&mut client, options, &text).await.unwrap();
    assert_eq!(summary.text_bytes, text.len() as u64);
    freed(&engine).await;
}

/// The symbols of blocks in the engine count against the memory of requests.
#[tokio::test(flavor = "multi_thread")]
async fn blocks_count_in_the_memory_of_requests() {
    let config = TransportConfig { message_bytes: 8 << 10, request_memory: 28 << 10, ..TransportConfig::default() };
    let (running, engine) = served_with(Limits::default(), config).await;
    let mut client = client(&running);
    let with_blocks = |block_chars| CompressOptions { block_chars: Some(block_chars), ..Default::default() };
    let text = TEXT.repeat(150);
    // one block takes 20 KB
    let status = compress(&mut client, with_blocks(5000), &text).await.unwrap_err();
    assert_eq!((status.code(), reason(&status)), (Code::OutOfRange, "OVERSIZED".into()), "{status:?}");
    // with 700, a block and its input take nearly all
    for block_chars in [500, 700] {
        let compressed = compress(&mut client, with_blocks(block_chars), &text).await;
        let (_, summary) = compressed.expect("the blocks wait for one another");
        assert_eq!(summary.text_bytes, text.len() as u64);
    }
    freed(&engine).await;
}
