//! A server that requires client certificates and a key.

use crate::{
    support::{command, failure, script},
    *,
};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use std::{
    io::{Read, Write},
    net::TcpListener,
};
use tempfile::TempDir;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use weir_proto::v1::{generation_server::GenerationServer, models_server::ModelsServer};

const KEY: &str = "a-key-that-alice-has";

/// Folder with an authority's certificate, and a server's and a client's that it signed.
pub(crate) struct TlsFiles {
    folder: TempDir,
}

impl TlsFiles {
    pub(crate) fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = KeyPair::generate().unwrap();
        std::fs::write(folder.path().join("ca.pem"), params.self_signed(&authority).unwrap().pem()).unwrap();
        let issuer = Issuer::new(params, authority);
        for (name, purpose) in
            [("server", ExtendedKeyUsagePurpose::ServerAuth), ("client", ExtendedKeyUsagePurpose::ClientAuth)]
        {
            let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            params.extended_key_usages = vec![purpose];
            let key = KeyPair::generate().unwrap();
            let signed = params.signed_by(&key, &issuer).unwrap();
            std::fs::write(folder.path().join(format!("{name}.pem")), signed.pem()).unwrap();
            std::fs::write(folder.path().join(format!("{name}.key")), key.serialize_pem()).unwrap();
        }
        Self { folder }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn pem(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.file(name)).unwrap()
    }
}

fn with_key(request: Request<()>) -> Result<Request<()>, Status> {
    let header = request.metadata().get("authorization").map(|value| value.as_bytes().to_vec());
    match header {
        Some(header) if header == format!("Bearer {KEY}").as_bytes() => Ok(request),
        _ => Err(Status::unauthenticated("send one header `authorization: Bearer KEY`")),
    }
}

/// Serves a stub over TLS to clients with a certificate and the key. Returns its port, and the runtime that keeps it running.
fn serve_tls(certificates: &TlsFiles) -> (u16, Runtime) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let stub = Stub::new(vec![script("stub")]);
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let port = listener.local_addr().unwrap().port();
    let tls = ServerTlsConfig::new()
        .identity(Identity::from_pem(certificates.pem("server.pem"), certificates.pem("server.key")))
        .client_ca_root(Certificate::from_pem(certificates.pem("ca.pem")));
    let mut server = {
        let _runtime = runtime.enter();
        Server::builder().tls_config(tls).unwrap()
    };
    let routes = server
        .add_service(GenerationServer::with_interceptor(stub.clone(), with_key))
        .add_service(ModelsServer::with_interceptor(stub, with_key));
    runtime.spawn(routes.serve_with_incoming_shutdown(TcpIncoming::from(listener).with_nodelay(Some(true)), pending()));
    (port, runtime)
}

/// Runs a measurement with these flags and this key. Returns its stdout if it succeeded, its stderr if not.
fn measure(address: &str, flags: &[&str], key: Option<&str>) -> Result<String, String> {
    let fixed = ["--requests", "6", "--warm-up", "0s", "--output-chars", "4", "--json", "-", "--concurrency", "2"];
    let mut command = command(&[&["run", address][..], &fixed, flags].concat());
    for name in ["WEIR_API_KEY", "WEIR_API_KEY_FILE", "WEIR_TLS_CA", "WEIR_TLS_CLIENT_CERT", "WEIR_TLS_CLIENT_KEY"] {
        command.env_remove(name);
    }
    if let Some(key) = key {
        command.env("WEIR_API_KEY", key);
    }
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

#[test]
fn servers_that_require_certificates_and_a_key_are_measured() {
    let certificates = TlsFiles::new();
    let (port, _running) = serve_tls(&certificates);
    let address = format!("https://localhost:{port}");
    let path = |name| certificates.file(name).display().to_string();
    let [ca, cert, key] = ["ca.pem", "client.pem", "client.key"].map(path);
    let all = ["--tls-ca", &ca, "--tls-client-cert", &cert, "--tls-client-key", &key];
    let report = measure(&address, &all, Some(KEY)).unwrap();
    let figures: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(figures[0]["parts"][0]["point"]["figures"]["requests"]["well"], 6);
    assert!(!report.contains(KEY), "the key is in the report");
    // from a file, and from the command line, where the report leaves it out
    let file = certificates.file("key");
    std::fs::write(&file, format!("{KEY}\n")).unwrap();
    let path = file.display().to_string();
    measure(&address, &[&all[..], &["--api-key-file", &path]].concat(), None).unwrap();
    let report = measure(&address, &[&all[..], &["--api-key", KEY]].concat(), None).unwrap();
    assert!(!report.contains(KEY), "the key is in the report");

    let refused = "UNAUTHENTICATED: send one header `authorization: Bearer KEY`";
    let missing = measure(&address, &all, None).unwrap_err();
    assert!(missing.contains(&format!("{refused}: use --api-key-file or WEIR_API_KEY")), "{missing}");
    let wrong = measure(&address, &all, Some("another-key-altogether")).unwrap_err();
    assert!(wrong.contains(&format!("{refused}: check --api-key-file or WEIR_API_KEY")), "{wrong}");
    let empty = measure(&address, &[&all[..], &["--api-key-file", "/dev/null"]].concat(), Some(KEY)).unwrap_err();
    assert!(empty.contains("--api-key-file: /dev/null: expected the API key, found an empty file"), "{empty}");
    let both = measure(&address, &["--api-key", KEY, "--api-key-file", &path], None).unwrap_err();
    assert!(both.contains("--api-key: expected no value next to --api-key-file, found one"), "{both}");
    let malformed = measure(&address, &[&all[..], &["--api-key-file", &key]].concat(), None).unwrap_err();
    let expected = format!("--api-key-file: {key}: expected one line with the API key, found several");
    assert!(malformed.contains(&expected), "{malformed}");
    assert!(measure(&address, &[], Some(KEY)).unwrap_err().contains("--tls-ca"));
    measure(&format!("http://localhost:{port}"), &[], Some(KEY)).expect_err("the server requires TLS");
    let others = TlsFiles::new().file("ca.pem");
    let stranger = ["--tls-ca", others.to_str().unwrap(), "--tls-client-cert", &cert, "--tls-client-key", &key];
    measure(&address, &stranger, Some(KEY)).expect_err("another authority");
    assert!(measure(&address, &["--tls-ca", "/none/there"], None).unwrap_err().contains("/none/there"));
}

/// Whether the error of a call still has the server's alert depends on timing, so every case runs several times.
#[test]
fn refused_client_certificates_are_explained() {
    let certificates = TlsFiles::new();
    let (port, _running) = serve_tls(&certificates);
    let address = format!("https://localhost:{port}");
    let strangers = TlsFiles::new();
    let path = |files: &TlsFiles, name: &str| files.file(name).display().to_string();
    let [ca, cert, key] = ["ca.pem", "client.pem", "client.key"].map(|name| path(&certificates, name));
    let [other_cert, other_key] = ["client.pem", "client.key"].map(|name| path(&strangers, name));
    for (cert, key, expected) in [
        (
            "",
            "",
            format!(
                "{address}: the server requires a client certificate: use --tls-client-cert and --tls-client-key ("
            ),
        ),
        (
            &other_cert,
            &other_key,
            format!("{address}: the server does not accept the client certificate of --tls-client-cert: "),
        ),
        (
            &cert,
            &other_key,
            format!(
                "--tls-client-key: {other_key}: expected the private key of the certificate in {cert} (--tls-client-cert), \
                 found that of another certificate"
            ),
        ),
        (&key, &cert, format!("--tls-client-cert: {key}: expected PEM with a certificate, found a private key")),
    ] {
        let identity = ["--tls-client-cert", cert, "--tls-client-key", key];
        let flags = [&["--tls-ca", &ca][..], &identity[..if cert.is_empty() { 0 } else { 4 }]].concat();
        for _ in 0..3 {
            let error = measure(&address, &flags, Some(KEY)).unwrap_err();
            assert!(error.contains(&expected), "{error}");
        }
    }
    let error = measure(&address, &[], Some(KEY)).unwrap_err();
    let expected = "--tls-ca: expected a file with the server's CA certificate, because the address begins with https://, found none";
    assert!(error.contains(expected), "{error}");
}

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
