//! `weir serve` reads certificates and keys again on SIGHUP.
#![cfg(unix)]

use super::{certificates::Certificates, process::Server, support::converted};
use std::{
    fs,
    time::{Duration, Instant},
};
use tonic::{Code, Request};
use weir_proto::v1::{ListModelsRequest, models_client::ModelsClient};

const TIMEOUT: Duration = Duration::from_secs(120);
const OLD: &str = "a-key-that-is-removed";
const NEW: &str = "a-key-that-is-added";

/// Returns the numbers of reloads that succeeded and that failed.
fn reloads(server: &Server) -> [u64; 2] {
    let (_, text) = server.get("/metrics");
    ["success", "failure"].map(|result| {
        let name = format!("weir_credential_reloads_total{{result=\"{result}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
    })
}

/// Sends SIGHUP and waits until the metrics report these results.
async fn reload(server: &Server, expected: [u64; 2]) {
    server.program.signal("HUP");
    let started = Instant::now();
    while reloads(server) != expected {
        assert!(started.elapsed() < TIMEOUT, "{:?}, expected {expected:?}", reloads(server));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Connects with the authority of `certificates`, and calls with each key.
async fn codes(server: &Server, certificates: &Certificates) -> Option<[Code; 2]> {
    let channel = certificates.reach(server.address, None).connect().await.ok()?;
    let mut codes = Vec::new();
    for key in [OLD, NEW] {
        let mut request = Request::new(ListModelsRequest {});
        request.metadata_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
        let listed = ModelsClient::new(channel.clone()).list_models(request).await;
        codes.push(listed.map_or_else(|status| status.code(), |_| Code::Ok));
    }
    codes.try_into().ok()
}

#[tokio::test]
async fn a_hangup_reloads_certificates_and_keys() {
    let certificates = Certificates::new();
    let others = Certificates::new();
    let keys = certificates.write("keys", &format!("alice:{OLD}\n"));
    let [model, cert, key, keys] =
        [converted("whitespaces"), certificates.path("server.pem"), certificates.path("server.key"), keys]
            .map(|path| path.to_str().unwrap().to_owned());
    let server = Server::start(&["--model", &model, "--tls-cert", &cert, "--tls-key", &key, "--api-keys", &keys]);
    let before = Some([Code::Ok, Code::Unauthenticated]);
    assert_eq!(codes(&server, &certificates).await, before);
    assert_eq!(reloads(&server), [0, 0]);

    // The certificate does not match the key: the new API keys are not used either.
    fs::copy(others.path("server.pem"), &cert).unwrap();
    fs::write(&keys, format!("alice:{NEW}\n")).unwrap();
    reload(&server, [0, 1]).await;
    assert_eq!(codes(&server, &certificates).await, before);
    assert_eq!(codes(&server, &others).await, None);

    fs::copy(others.path("server.key"), &key).unwrap();
    reload(&server, [1, 1]).await;
    let after = Some([Code::Unauthenticated, Code::Ok]);
    assert_eq!(codes(&server, &others).await, after);
    assert_eq!(codes(&server, &certificates).await, None);

    for (path, broken, expected) in
        [(&cert, Some("no PEM"), [1, 2]), (&cert, None, [1, 3]), (&keys, Some("\n"), [1, 4])]
    {
        let valid = fs::read(path).unwrap();
        match broken {
            Some(text) => fs::write(path, text).unwrap(),
            None => fs::remove_file(path).unwrap(),
        }
        reload(&server, expected).await;
        assert_eq!(codes(&server, &others).await, after, "{broken:?}");
        fs::write(path, valid).unwrap();
    }
    reload(&server, [2, 4]).await;

    for part in [
        "reloaded certificates and keys",
        "found that of another certificate",
        "expected PEM with a certificate, found none",
        "No such file",
        "expected a key, found none",
        "server.pem",
    ] {
        server.program.wait_for_part(part);
    }
    let log = server.program.stderr();
    assert!(!log.contains(OLD) && !log.contains(NEW), "{log}");
}

#[tokio::test]
async fn a_hangup_without_files_changes_nothing() {
    let server = Server::start(&["--model", converted("whitespaces").to_str().unwrap()]);
    server.program.signal("HUP");
    server.program.wait_for_part("name no certificates and keys to read again");
    assert_eq!(reloads(&server), [0, 0]);
}
