//! Error messages for addresses at which no gRPC server answers.

use super::{
    program::{failure, script, serve},
    tls_and_keys::TlsFiles,
};
use std::{
    io::{Read, Write},
    net::TcpListener,
};

/// Answers every connection with `answer` until the test ends; without an answer, keeps connections open.
fn answering(answer: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            if answer.is_empty() {
                kept.push(stream);
                continue;
            }
            // the request does not matter, and the client may be gone
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(answer);
        }
    });
    address
}

#[test]
fn the_error_names_what_answers_at_the_address() {
    let http = answering(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n");
    // weir's gRPC port answers this. Its first answer to HTTP/2 is not TLS either.
    let grpc = answering(b"HTTP/1.1 505 HTTP Version Not Supported\r\ncontent-length: 0\r\n\r\n");
    let tls = answering(&[21, 3, 3, 0, 2, 2, 70]);
    // the alert of an HTTPS port to a client that offers HTTP/2 only: no_application_protocol
    let https = answering(&[21, 3, 3, 0, 2, 2, 120]);
    let silent = answering(b"");
    let plain = serve(vec![script("stub")]);
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let certificates = TlsFiles::new();
    let authority = certificates.file("ca.pem").display().to_string();
    let encrypted = |address: &str| format!("https://{}", address.replace("127.0.0.1", "localhost"));
    for (address, expected) in [
        (http.clone(), "the port serves HTTP/1, like those of --http-listen and --admin-listen: give the gRPC address"),
        (tls, "the port expects TLS: use https:// and --tls-ca"),
        (silent, "accepts connections but does not answer"),
        (closed, "no server listens there: is `weir serve` running"),
        ("nosuch.invalid:50051".to_owned(), "the host name cannot be resolved: is it correct? ("),
        (encrypted(&plain.address), "the port does not use TLS: leave out https://"),
        (encrypted(&http), "is it a gRPC port, and does it use TLS?"),
        (encrypted(&grpc), "the port does not use TLS: leave out https://"),
        (
            encrypted(&https),
            "the port serves HTTP/1, like those of --http-listen and --admin-listen: give the gRPC address",
        ),
    ] {
        let tls = ["--tls-ca", &authority];
        let tls = if address.starts_with("https://") { &tls[..] } else { &[] };
        let stderr = failure(&[&["run", &address, "--requests", "1"], tls].concat());
        assert!(stderr.contains(expected) && stderr.contains(&address), "{address}: {stderr}");
    }
}
