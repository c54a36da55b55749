//! Certificates, revocation lists and API keys that are replaced while the server runs.

use super::{
    Server,
    fake_model::Kind,
    http::{Both, exchange},
    long, plain, read,
    tls_and_keys::{ALICE, BOB, bearing, tried},
};
use crate::certificates::{CLIENT_SERIAL, Certificates, credentials};
use tonic::Code;
use weir::{
    config::{Access, CredentialFiles, Credentials, Keys, LiveCredentials, TransportConfig},
    engine::Limits,
};
use weir_proto::v1::{self, models_client::ModelsClient};

const MODELS: [(&str, Kind); 1] = [("fake", Kind::Pooled)];
/// A year that has passed, and one that has not.
const PAST: i32 = 2025;
const FUTURE: i32 = 2500;

fn keys(lines: &str) -> Credentials {
    Credentials { keys: Some(Keys::parse(lines).unwrap()), ..Credentials::default() }
}

/// Returns settings that use these credentials.
fn using(live: &LiveCredentials) -> TransportConfig {
    let access = Access { credentials: live.clone(), ..Access::default() };
    TransportConfig { access, ..TransportConfig::default() }
}

#[tokio::test]
async fn a_removed_key_works_only_where_it_was_used() {
    let live: LiveCredentials = keys("alice:a-key-that-alice-has").into();
    let server = Server::with(Limits::default(), using(&live), &MODELS).await;
    let ask = async |key: &str| {
        let request = bearing(v1::ListModelsRequest {}, &[key]);
        server.models().list_models(request).await.map_or_else(|status| status.code(), |_| Code::Ok)
    };
    assert_eq!([ask(ALICE).await, ask(BOB).await], [Code::Ok, Code::Unauthenticated]);
    server.model.hold();
    let stream = server.generation().generate(bearing(long("a", 9), &[ALICE])).await.unwrap().into_inner();
    let other = plain(server.running.address).connect().await.unwrap();
    let elsewhere = async |key: &str| {
        let request = bearing(v1::ListModelsRequest {}, &[key]);
        ModelsClient::new(other.clone()).list_models(request).await.map_or_else(|status| status.code(), |_| Code::Ok)
    };
    live.replace(keys("bob:another-key-that-bob-has"));
    assert_eq!([ask(ALICE).await, ask(BOB).await], [Code::Ok, Code::Ok]);
    assert_eq!([elsewhere(ALICE).await, elsewhere(BOB).await], [Code::Unauthenticated, Code::Ok]);
    server.model.release();
    assert_eq!(read(stream).await.unwrap().text().chars().count(), 9);
    server.at_rest().await;
}

#[tokio::test]
async fn reloaded_keys_count_over_http_too() {
    let live: LiveCredentials = keys("alice:a-key-that-alice-has").into();
    let server = Both::with(Limits::default(), using(&live)).await;
    let post = async |key: &str| {
        let header = format!("authorization: {key}");
        exchange(server.port, "POST", "/v1/completions", &[&header], "{\"prompt\":\"a\"}").await.0
    };
    assert_eq!([post(ALICE).await, post(BOB).await], [200, 401]);
    live.replace(keys("bob:another-key-that-bob-has"));
    assert_eq!([post(ALICE).await, post(BOB).await], [401, 200]);
}

#[tokio::test]
async fn a_replaced_certificate_serves_new_connections() {
    let before = Certificates::new();
    let after = Certificates::new();
    let live = LiveCredentials::from(credentials(&before.files(false)));
    let reach = |address| before.reach(address, None);
    let server = Server::reached_by(Limits::default(), using(&live), &MODELS, reach).await;
    let address = server.running.address;
    tried(after.reach(address, None)).await.expect_err("the certificate is not replaced yet");
    server.model.hold();
    let stream = server.generate(long("a", 9)).await.unwrap();
    live.replace(credentials(&after.files(false)));
    tried(after.reach(address, None)).await.unwrap();
    tried(before.reach(address, None)).await.expect_err("the certificate is replaced");
    server.model.release();
    // The connection from before the reload keeps its stream and takes further calls.
    assert_eq!(read(stream).await.unwrap().text().chars().count(), 9);
    server.answer(long("a", 3)).await.unwrap();
    server.at_rest().await;
}

/// The client resumes no session from before the reload, in which the server would not check its certificate again.
#[tokio::test]
async fn a_certificate_revoked_by_a_reload_is_refused() {
    let certificates = Certificates::new();
    let stranger = Certificates::new();
    let reload = |list: &str| {
        let mut files: CredentialFiles = certificates.files(true);
        files.tls.client_crl = Some(certificates.write("revoked.pem", list));
        credentials(&files)
    };
    let live = LiveCredentials::from(reload(&certificates.revocation_list(&[], FUTURE)));
    let reach = |address| certificates.reach(address, Some(&certificates));
    let server = Server::reached_by(Limits::default(), using(&live), &MODELS, reach).await;
    let endpoint = reach(server.running.address);
    tried(endpoint.clone()).await.unwrap();
    live.replace(reload(&certificates.revocation_list(&[CLIENT_SERIAL], FUTURE)));
    tried(endpoint.clone()).await.expect_err("the certificate is revoked");
    server.answer(long("a", 3)).await.expect("an established connection stays");
    live.replace(reload(&certificates.revocation_list(&[CLIENT_SERIAL + 1], FUTURE)));
    tried(endpoint.clone()).await.expect("another certificate is revoked");
    live.replace(reload(&certificates.revocation_list(&[], PAST)));
    tried(endpoint.clone()).await.expect_err("the list has expired");
    live.replace(reload(&stranger.revocation_list(&[], FUTURE)));
    tried(endpoint.clone()).await.expect_err("no list of the certificate's authority");
    let both = certificates.revocation_list(&[], FUTURE) + &stranger.revocation_list(&[], FUTURE);
    live.replace(reload(&both));
    tried(endpoint).await.expect("one list for each authority");
}
