//! What is said of an address at which no server of gRPC answers.

use super::{
    commands::{run, script, serve},
    tls_and_keys::Papers,
};
use std::{
    io::{Read, Write},
    net::TcpListener,
};

/// Answers every connection so, until the test ends; an answer of nothing keeps connections open.
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
            // what it was asked is all the same; who asked may be gone
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(answer);
        }
    });
    address
}

#[test]
fn an_address_of_no_such_server_is_told_with_what_answers_there() {
    let http = answering(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n");
    let tls = answering(&[21, 3, 3, 0, 2, 2, 70]);
    let (silent, plain) = (answering(b""), serve(vec![script("stub")]));
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let papers = Papers::new();
    let authority = papers.file("ca.pem").display().to_string();
    let encrypted = |address: &str| format!("https://{}", address.replace("127.0.0.1", "localhost"));
    for (address, expected) in [
        (http.clone(), "the port speaks HTTP/1, as that for administration (--admin-listen)"),
        (tls, "the port expects TLS: give https:// and --tls-ca"),
        (silent, "takes connections and says nothing"),
        (closed, "nothing is to be reached there: is the server started"),
        (encrypted(&plain.address), "the port speaks no TLS: leave out https://"),
        (encrypted(&http), "is it one of gRPC, and one of TLS?"),
    ] {
        let output = run(&["run", &address, "--requests", "1", "--tls-ca", &authority]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(expected) && said.contains(&address), "{address}: {said}");
    }
}
