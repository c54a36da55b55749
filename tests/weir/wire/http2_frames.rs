//! HTTP/2 frames and uncompressed headers for misbehaving clients (RFC 9113, RFC 7541).

use std::net::SocketAddr;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

pub(super) const DATA: u8 = 0;
const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const END_STREAM: u8 = 1;
pub(super) const SETTINGS: u8 = 4;
const END_HEADERS: u8 = 4;

/// Returns one frame.
pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Returns the connection preface with empty settings.
pub(super) fn beginning() -> Vec<u8> {
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(SETTINGS, 0, 0, &[])].concat()
}

/// Returns the headers of a gRPC call.
pub(super) fn call(stream: u32, path: &str) -> Vec<u8> {
    // `:method POST` and `:scheme http` are indices of the static table; other headers are literals.
    let mut block = vec![0x83, 0x86];
    for (name, value) in
        [(":path", path), (":authority", "weir"), ("content-type", "application/grpc"), ("te", "trailers")]
    {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend_from_slice(text.as_bytes());
        }
    }
    frame(HEADERS, END_HEADERS, stream, &block)
}

/// Returns a message with its gRPC prefix.
pub(super) fn message(bytes: &[u8]) -> Vec<u8> {
    [&[0], &u32::try_from(bytes.len()).unwrap().to_be_bytes()[..], bytes].concat()
}

/// Connects and sends `bytes`.
pub(super) async fn sent(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The server may have closed the connection already; a later read shows it.
    let _ = stream.write_all(bytes).await;
    stream
}

/// Reads until the server closes the connection. Answers nothing, not even pings.
pub(super) async fn until_closed(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A reset also ends the connection.
    let _ = stream.read_to_end(&mut bytes).await;
    bytes
}

/// Splits `bytes` into complete frames: kind, stream and payload.
pub(super) fn frames(mut bytes: &[u8]) -> Vec<(u8, u32, Vec<u8>)> {
    let mut frames = Vec::new();
    while let Some((head, rest)) = bytes.split_at_checked(9) {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let stream = u32::from_be_bytes(head[5..].try_into().unwrap());
        let Some((payload, rest)) = rest.split_at_checked(length) else { break };
        frames.push((head[3], stream, payload.to_vec()));
        bytes = rest;
    }
    frames
}
