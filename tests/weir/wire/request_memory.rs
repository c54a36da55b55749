//! The memory that requests share: while they arrive, and until their responses end.

use super::{
    Server,
    connections::{channel_from, connect_from},
    details,
    fake_model::Kind,
    http2_frames::{self, DATA, frame, sent},
    prompt, reason,
};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tonic::{Code, Streaming, transport::Channel};
use weir::{config::TransportConfig, engine::Limits};
use weir_proto::v1::{self, ScoreResponse, generation_client::GenerationClient};

const GENERATE: &str = "/weir.v1.Generation/Generate";

async fn within(config: TransportConfig) -> Server {
    Server::with(Limits::default(), config, &[("fake", Kind::Pooled)]).await
}

/// Incomplete requests of all connections share `request_memory`.
#[tokio::test]
async fn incomplete_requests_share_the_request_memory() {
    let server =
        within(TransportConfig { message_bytes: 64 << 10, request_memory: 100 << 10, ..TransportConfig::default() })
            .await;
    // Each text exceeds the model's limit, which is reported once the message is read.
    let large = || server.generate(prompt(&"a".repeat(60 << 10)));
    assert_eq!(large().await.map(drop).unwrap_err().code(), Code::InvalidArgument);
    let incomplete = [&[0][..], &(60_u32 << 10).to_be_bytes(), &[b'a'; 8000]].concat();
    let mut bytes =
        [http2_frames::beginning(), http2_frames::call(1, GENERATE), frame(DATA, 0, 1, &incomplete)].concat();
    for _ in 0..5 {
        bytes.extend(frame(DATA, 0, 1, &[b'a'; 8000]));
    }
    let unfinished = sent(server.running.address, &bytes).await;
    let mut refused = large().await.map(drop).unwrap_err();
    for _ in 0..1000 {
        if refused.code() == Code::ResourceExhausted {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
        refused = large().await.map(drop).unwrap_err();
    }
    assert_eq!((refused.code(), reason(&refused).as_str()), (Code::ResourceExhausted, "QUEUE_FULL"));
    assert!(details(&refused).retry_info().is_some());
    // Requests that fit are served, and all requests once the memory is released.
    server.answer(prompt("a")).await.unwrap();
    drop(unfinished);
    let mut again = refused;
    for _ in 0..1000 {
        again = large().await.map(drop).unwrap_err();
        if again.code() == Code::InvalidArgument {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(again.code(), Code::InvalidArgument, "the memory was not released");
}

/// Two callers that hold all that they may leave memory to a third.
#[tokio::test]
async fn incomplete_requests_leave_memory_to_the_next_caller() {
    let config = TransportConfig { message_bytes: 16 << 10, request_memory: 128 << 10, ..TransportConfig::default() };
    let server = within(config).await;
    let address = server.running.address;
    // Each text exceeds the model's limit, which is reported once the message is read.
    let large = async |channel: Channel| {
        let request = prompt(&"a".repeat(12 << 10));
        GenerationClient::new(channel).generate(request).await.map(drop).unwrap_err().code()
    };
    // The first caller may hold 64 KiB, and the second 32 KiB.
    let mut held = Vec::new();
    for (host, connections) in [(1, 2), (2, 1)] {
        let channel = channel_from(host, address).await;
        assert_eq!(large(channel.clone()).await, Code::InvalidArgument);
        // Two requests of 14,000 bytes leave less than the large one of each share.
        let mut bytes = http2_frames::beginning();
        for stream in [1, 3] {
            bytes.extend(http2_frames::call(stream, GENERATE));
            let begin = [&[0][..], &(15_u32 << 10).to_be_bytes(), &[b'a'; 6995]].concat();
            for part in [&begin[..], &[b'a'; 7000]] {
                bytes.extend(frame(DATA, 0, stream, part));
            }
        }
        for _ in 0..connections {
            let mut connection = connect_from(host, address).await.unwrap();
            connection.write_all(&bytes).await.unwrap();
            held.push(connection);
        }
        let mut same = Code::InvalidArgument;
        for _ in 0..1000 {
            same = large(channel.clone()).await;
            if same == Code::ResourceExhausted {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(same, Code::ResourceExhausted, "the share of caller {host} is used up");
    }
    let third = channel_from(3, address).await;
    for _ in 0..20 {
        assert_eq!(large(third.clone()).await, Code::InvalidArgument, "the message of the third caller is read");
    }
}

/// A score of 10 KiB in windows: 10 KiB while it arrives, and 40 KiB of symbols until its response ends.
async fn start_score(channel: &Channel) -> Result<Streaming<ScoreResponse>, tonic::Status> {
    let windows = Some(v1::Windows { length: 1024, stride: 512 });
    let request = v1::ScoreRequest { text: "a".repeat(10 << 10), windows, ..Default::default() };
    GenerationClient::new(channel.clone()).score(request).await.map(tonic::Response::into_inner)
}

/// Symbols take four times the memory of their text, and a score may run for long.
#[tokio::test]
async fn symbols_count_until_the_response_ends() {
    let config = TransportConfig { message_bytes: 16 << 10, request_memory: 448 << 10, ..TransportConfig::default() };
    let server = within(config).await;
    server.model.hold();
    // Half of 448 KiB holds five such lists of symbols, and not six.
    let mut running = Vec::new();
    for _ in 0..5 {
        running.push(start_score(&server.channel).await.unwrap());
    }
    let refused = start_score(&server.channel).await.unwrap_err();
    assert_eq!((refused.code(), reason(&refused).as_str()), (Code::ResourceExhausted, "QUEUE_FULL"));
    assert!(refused.message().contains("one caller's requests"), "{refused:?}");
    assert!(details(&refused).retry_info().is_some());
    // Small requests of this caller, and those of others, have room.
    let small = server.generate(prompt("a")).await.unwrap();
    let other = channel_from(2, server.running.address).await;
    let of_other = GenerationClient::new(other).generate(prompt(&"a".repeat(1900))).await.unwrap();
    running.clear();
    drop((small, of_other));
    server.model.release();
    server.at_rest().await;
    let mut again = start_score(&server.channel).await.unwrap();
    while again.message().await.unwrap().is_some() {}
    server.model.hold();
    for _ in 0..5 {
        running.push(start_score(&server.channel).await.expect("a finished response holds nothing"));
    }
    server.model.release();
}
