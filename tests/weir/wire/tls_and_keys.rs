//! TLS, client certificates and API keys.

use super::{Server, details, eventually, fake_model::Kind, long, plain, prompt, read, reason};
use crate::certificates::{Certificates, tls};
use std::{path::Path, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, crypto::ring};
use tokio_stream::StreamExt;
use tonic::{Code, Request, Status, metadata::MetadataValue, transport::Channel};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest,
};
use weir::{
    config::{Access, Credentials, Keys, TlsFiles, TransportConfig},
    engine::Limits,
};
use weir_proto::v1::{self, generate_response::Event, models_client::ModelsClient};

const MODELS: [(&str, Kind); 1] = [("fake", Kind::Pooled)];
/// The header of the tenant alice, and that of bob.
pub(super) const ALICE: &str = "Bearer a-key-that-alice-has";
pub(super) const BOB: &str = "Bearer another-key-that-bob-has";

async fn behind(access: Access, certificates: &Certificates, shown: Option<&Certificates>) -> Server {
    let config = TransportConfig { access, ..TransportConfig::default() };
    Server::reached_by(Limits::default(), config, &MODELS, |address| certificates.reach(address, shown)).await
}

/// Calls a method on a connection that may fail.
pub(super) async fn tried(endpoint: tonic::transport::Endpoint) -> Result<(), Status> {
    let channel = endpoint.connect_timeout(Duration::from_secs(10)).connect_lazy();
    let mut client = ModelsClient::new(channel);
    client.list_models(v1::ListModelsRequest {}).await.map(drop)
}

#[tokio::test]
async fn connections_can_use_tls() {
    let certificates = Certificates::new();
    let server = behind(certificates.access(false), &certificates, None).await;
    assert_eq!(server.answer(long("ab", 9)).await.unwrap().text().chars().count(), 9);
    let address = server.running.address;
    tried(plain(address)).await.expect_err("it is not encrypted");
    tried(Certificates::new().reach(address, None))
        .await
        .expect_err("the server's certificate is of another authority");
    tried(certificates.reach(address, None)).await.unwrap();
    server.at_rest().await;
}

/// Returns what a client sends first.
fn client_hello() -> Vec<u8> {
    let provider = Arc::new(ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = versions.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let mut connection = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    let mut hello = Vec::new();
    connection.write_tls(&mut hello).unwrap();
    hello
}

/// The server computes one signature at a time, but waits for no client meanwhile.
#[tokio::test]
async fn unfinished_handshakes_let_others_pass() {
    let certificates = Certificates::new();
    let config = TransportConfig {
        access: certificates.access(false),
        handshake: Duration::from_secs(600),
        ..TransportConfig::default()
    };
    let reach = |address| certificates.reach(address, None);
    let server = Server::reached_by(Limits::default(), config, &MODELS, reach).await;
    let mut silent = Vec::new();
    for _ in 0..3 {
        let mut client = TcpStream::connect(server.running.address).await.unwrap();
        client.write_all(&client_hello()).await.unwrap();
        // The server has answered, and waits for the client.
        client.read_u8().await.unwrap();
        silent.push(client);
    }
    tried(certificates.reach(server.running.address, None)).await.unwrap();
}

#[tokio::test]
async fn client_certificates_can_be_required() {
    let certificates = Certificates::new();
    let others = Certificates::new();
    let server = behind(certificates.access(true), &certificates, Some(&certificates)).await;
    server.answer(prompt("ab")).await.unwrap();
    let address = server.running.address;
    tried(certificates.reach(address, None)).await.expect_err("no certificate");
    tried(certificates.reach(address, Some(&others))).await.expect_err("a certificate of another authority");
    tried(certificates.reach(address, Some(&certificates))).await.unwrap();
}

#[tokio::test]
async fn encrypted_streams_finish_while_the_server_drains() {
    let certificates = Certificates::new();
    let mut server = behind(certificates.access(true), &certificates, Some(&certificates)).await;
    server.model.slow(Duration::from_millis(2));
    let mut stream = server.generate(long("a", 100)).await.unwrap();
    stream.next().await.unwrap().unwrap();
    server.running.shut_down();
    let mut last = None;
    while let Some(message) = stream.next().await {
        last = message.unwrap().event;
    }
    assert!(matches!(last, Some(Event::Finished(_))), "cut off: {last:?}");
    tokio::time::timeout(Duration::from_secs(10), &mut server.running.task).await.unwrap().unwrap().unwrap();
    server.at_rest().await;
}

fn of_server(cert: &Path, key: &Path) -> TlsFiles {
    TlsFiles { cert: Some(cert.into()), key: Some(key.into()), ..TlsFiles::default() }
}

#[test]
fn certificate_errors_are_reported() {
    let certificates = Certificates::new();
    let text = certificates.write("text", "no PEM at all");
    let missing = certificates.path("none");
    let truncated = certificates.write("torn", "-----BEGIN CERTIFICATE-----\nAAAA\n");
    let [cert, key, other, ca] =
        ["server.pem", "server.key", "client.key", "ca.pem"].map(|name| certificates.path(name));
    let wrong = |cert: &Path, key: &Path, client_ca: Option<&Path>| {
        tls(&TlsFiles { client_ca: client_ca.map(Into::into), ..of_server(cert, key) }).unwrap_err()
    };
    let check_parts = |problem: String, parts: &[&str]| {
        for part in parts {
            assert!(problem.contains(part), "{part} is not in {problem}");
        }
    };
    check_parts(wrong(&missing, &key, None), &["--tls-cert", "none:", "No such file"]);
    check_parts(wrong(&text, &key, None), &["--tls-cert", "text:", "expected PEM with a certificate, found none"]);
    check_parts(wrong(&truncated, &key, None), &["--tls-cert", "torn:", "a section without an end"]);
    check_parts(wrong(&cert, &cert, None), &["--tls-key", "server.pem:", "expected PEM with a private key"]);
    let of_another = "server.pem (--tls-cert), found that of another certificate";
    check_parts(wrong(&cert, &other, None), &["--tls-key: ", "client.key: expected the private key", of_another]);
    check_parts(wrong(&key, &cert, None), &["--tls-cert", "server.key:", "found a private key", "found a certificate"]);
    check_parts(wrong(&cert, &key, Some(&key)), &["--tls-client-ca", "server.key:", "expected PEM with a certificate"]);
    // All errors are reported at once.
    check_parts(
        wrong(&missing, &text, Some(&truncated)),
        &["3 settings", "--tls-cert", "--tls-key", "--tls-client-ca"],
    );
    let wrong_list = |file: &Path| {
        let client_crl = Some(file.to_owned());
        tls(&TlsFiles { client_ca: Some(ca.clone()), client_crl, ..of_server(&cert, &key) }).unwrap_err()
    };
    let expected = "expected PEM with a certificate revocation list, found none";
    check_parts(wrong_list(&ca), &["--tls-client-crl", "ca.pem:", expected]);
    check_parts(wrong_list(&missing), &["--tls-client-crl", "none:", "No such file"]);
    let empty_list = certificates.write("list", "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n");
    check_parts(wrong_list(&empty_list), &["--tls-client-crl", "list:", "could not be parsed"]);
    assert!(tls(&TlsFiles { client_ca: Some(ca.clone()), ..of_server(&cert, &key) }).is_ok());
}

/// Returns the access of the two owners of keys.
pub(super) fn alice_and_bob() -> Access {
    let keys = Keys::parse("alice:a-key-that-alice-has\nbob:another-key-that-bob-has").unwrap();
    Access::from(Credentials { keys: Some(keys), ..Credentials::default() })
}

pub(super) async fn with_keys(limits: Limits) -> Server {
    let config = TransportConfig { access: alice_and_bob(), ..TransportConfig::default() };
    Server::with(limits, config, &MODELS).await
}

/// Returns a request with these `authorization` values.
pub(super) fn bearing<T>(message: T, values: &[&str]) -> Request<T> {
    let mut request = Request::new(message);
    for value in values {
        request.metadata_mut().append("authorization", MetadataValue::try_from(*value).unwrap());
    }
    request
}

#[tokio::test]
async fn api_keys_can_be_required() {
    let server = with_keys(Limits::default()).await;
    let wrong: [&[&str]; 9] = [
        &[],
        &[""],
        &["Bearer "],
        &["a-key-that-alice-has"],
        &["Bearer a-key-that-alice-hat"],
        &["Bearer a-key-that-alice-has-not"],
        &["Bearer  a-key-that-alice-has"],
        &["Basic a-key-that-alice-has"],
        &[ALICE, ALICE],
    ];
    for values in wrong {
        let status = server.generation().generate(bearing(prompt("a"), values)).await.map(drop).unwrap_err();
        assert_eq!((status.code(), reason(&status).as_str()), (Code::Unauthenticated, "UNAUTHENTICATED"), "{values:?}");
        assert!(!details(&status).request_info().unwrap().request_id.is_empty());
        assert!(!format!("{status:?}").contains("alice"), "{status:?}");
        let status = server.models().list_models(bearing(v1::ListModelsRequest {}, values)).await.unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated, "{values:?}");
    }
    server.at_rest().await;
    for right in [ALICE, "bearer a-key-that-alice-has", BOB] {
        let request = bearing(v1::SegmentRequest { text: "ab c".into(), ..Default::default() }, &[right]);
        server.generation().segment(request).await.unwrap();
    }
}

/// Tenants share neither cached prompts nor their part of the queue.
#[tokio::test]
async fn each_key_owner_is_a_tenant() {
    let server = with_keys(Limits { rows: 1, queue: 8, cache_bytes: 1 << 20, ..Limits::default() }).await;
    let ask = async |key: &str, prompt: &str| {
        let stream = server.generation().generate(bearing(long(prompt, 3), &[key])).await?.into_inner();
        read(stream).await
    };
    let cached = async |key: &str| ask(key, "ab cd ab e").await.unwrap().started.cached_chars;
    assert_eq!(cached(ALICE).await, 0);
    assert!(cached(ALICE).await > 0);
    assert_eq!(cached(BOB).await, 0, "the cached prompt belongs to alice");
    assert!(cached(BOB).await > 0);

    server.model.hold();
    let call = |key: &str| {
        let mut client = server.generation();
        let request = bearing(long("a", 3), &[key]);
        async move { client.generate(request).await }
    };
    let mut taken = vec![call(ALICE).await.unwrap()];
    eventually("it runs", || server.engine.load().running == 1).await;
    for _ in 0..4 {
        taken.push(call(ALICE).await.unwrap());
    }
    let status = call(ALICE).await.map(drop).unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::ResourceExhausted, "QUEUE_FULL"), "{status:?}");
    taken.push(call(BOB).await.unwrap());
    server.model.release();
    for stream in taken {
        read(stream.into_inner()).await.unwrap();
    }
    server.at_rest().await;
}

#[tokio::test]
async fn health_and_reflection_need_no_key() {
    let server = with_keys(Limits::default()).await;
    let mut health = HealthClient::new(server.channel.clone());
    health.check(HealthCheckRequest { service: String::new() }).await.unwrap();
    let mut reflection: ServerReflectionClient<Channel> = ServerReflectionClient::new(server.channel.clone());
    let message_request = Some(MessageRequest::ListServices(String::new()));
    let question = ServerReflectionRequest { host: String::new(), message_request };
    let mut answers = reflection.server_reflection_info(tokio_stream::iter([question])).await.unwrap().into_inner();
    answers.next().await.unwrap().unwrap();
}
