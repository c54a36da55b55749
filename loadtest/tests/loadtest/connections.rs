//! A server that requires client certificates and a key.

use crate::support::{command, script};
use crate::*;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use tempfile::TempDir;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use weir_proto::v1::{generation_server::GenerationServer, models_server::ModelsServer};

const KEY: &str = "a-key-that-alice-has";

/// A folder with the self-signed certificate of the server and its clients.
struct TlsFiles {
    folder: TempDir,
}

impl TlsFiles {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        fs::write(folder.path().join("cert.pem"), cert.pem()).unwrap();
        fs::write(folder.path().join("key.pem"), signing_key.serialize_pem()).unwrap();
        Self { folder }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn pem(&self, name: &str) -> Vec<u8> {
        fs::read(self.file(name)).unwrap()
    }

    /// Returns the flag of the authority, and the client's flags.
    fn flags(&self) -> [String; 2] {
        let [cert, key] = ["cert.pem", "key.pem"].map(|name| self.file(name).display().to_string());
        [format!("--tls-ca {cert}"), format!("--tls-client-cert {cert} --tls-client-key {key}")]
    }
}

fn with_key(request: Request<()>) -> Result<Request<()>, Status> {
    let header = request.metadata().get("authorization").map(|value| value.as_bytes().to_vec());
    match header {
        Some(header) if header == format!("Bearer {KEY}").as_bytes() => Ok(request),
        _ => Err(Status::unauthenticated("send one header `authorization: Bearer KEY`")),
    }
}

/// Serves a stub over TLS to clients with a certificate and the key. Returns its address, and the runtime that keeps it running.
fn serve_tls(certificates: &TlsFiles) -> (String, Runtime) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let stub = Stub::new(vec![script("stub")]);
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    let tls = ServerTlsConfig::new()
        .identity(Identity::from_pem(certificates.pem("cert.pem"), certificates.pem("key.pem")))
        .client_ca_root(Certificate::from_pem(certificates.pem("cert.pem")));
    let mut server = {
        let _runtime = runtime.enter();
        Server::builder().tls_config(tls).unwrap()
    };
    let routes = server
        .add_service(GenerationServer::with_interceptor(stub.clone(), with_key))
        .add_service(ModelsServer::with_interceptor(stub, with_key));
    runtime.spawn(routes.serve_with_incoming_shutdown(TcpIncoming::from(listener).with_nodelay(Some(true)), pending()));
    (address, runtime)
}

/// Runs a measurement with these flags and this key. Returns its stdout if it succeeded, its stderr if not.
fn measure(address: &str, flags: &str, key: Option<&str>) -> Result<String, String> {
    let fixed = "--requests 6 --warm-up 0s --output-chars 4 --json - --concurrency 2";
    let mut command = command(format!("run --server {address} {fixed} {flags}").split_whitespace());
    for name in ["WEIR_API_KEY", "WEIR_API_KEY_FILE", "WEIR_TLS_CA", "WEIR_TLS_CLIENT_CERT", "WEIR_TLS_CLIENT_KEY"] {
        command.env_remove(name);
    }
    let output = command.envs(key.map(|key| ("WEIR_API_KEY", key))).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

#[test]
fn servers_that_require_certificates_and_a_key_are_measured() {
    let certificates = TlsFiles::new();
    let (address, _running) = serve_tls(&certificates);
    let [authority, client] = certificates.flags();
    let files = format!("{authority} {client}");
    // from the environment, a file, and the command line, where the report leaves it out
    let key_file = certificates.file("key");
    fs::write(&key_file, format!("{KEY}\n")).unwrap();
    for (flags, variable) in [
        (String::new(), Some(KEY)),
        (format!(" --api-key-file {}", key_file.display()), None),
        (format!(" --api-key {KEY}"), None),
    ] {
        let report = measure(&address, &format!("{files}{flags}"), variable).unwrap();
        assert!(!report.contains(KEY), "the key is in the report");
        let figures: Value = serde_json::from_str(&report).unwrap();
        assert_eq!(figures[0]["parts"][0]["point"]["figures"]["requests"]["well"], 6);
    }
    for (flags, key, expected) in [
        (&files, None, ": use --api-key-file or WEIR_API_KEY"),
        (&authority, Some(KEY), ": the server requires a client certificate: use --tls-client-"),
    ] {
        let error = measure(&address, flags, key).unwrap_err();
        assert!(error.contains(expected), "{flags}: {error}");
    }
}
