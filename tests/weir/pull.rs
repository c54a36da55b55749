//! `weir pull`: from folders and from a web server.

use crate::{
    process::{outcome, program, weir_json},
    *,
};
use std::{io::BufRead, net::TcpListener};
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

/// A user with an empty data folder.
struct User {
    data: TempDir,
    endpoint: String,
    /// File with the authorities that the user trusts.
    authorities: PathBuf,
    /// Variable with the user's token for the Hub, or with the folder of the token's file.
    token: (&'static str, String),
    /// Value of `HF_HUB_DISABLE_IMPLICIT_TOKEN`.
    disable_token: &'static str,
}

impl User {
    fn new() -> Self {
        let token = ("HF_TOKEN", "hf_secret".into());
        let (endpoint, authorities) = (String::new(), PathBuf::new());
        Self { data: TempDir::new().unwrap(), endpoint, authorities, token, disable_token: "" }
    }

    /// Returns a user of this server as the Hub with these authorities.
    fn of(server: &WebServer, authorities: PathBuf) -> Self {
        Self { endpoint: server.url(), authorities, ..Self::new() }
    }

    /// Runs the program. Returns stdout if it succeeds, otherwise stderr.
    fn weir(&self, args: &[&str]) -> Result<String, String> {
        let mut command = program(args);
        command.env("WEIR_DATA", self.data.path()).current_dir(self.data.path());
        command.env("HF_ENDPOINT", &self.endpoint).env("SSL_CERT_FILE", &self.authorities);
        command.env("HF_HUB_DISABLE_IMPLICIT_TOKEN", self.disable_token);
        outcome(command.env(self.token.0, &self.token.1))
    }

    fn pull(&self, args: &[&str]) -> Result<String, String> {
        self.weir(&[&["pull"], args].concat())
    }

    /// Pulls what must fail, with an error that has these parts.
    #[track_caller]
    fn refused(&self, source: &str, more: &[&str], parts: &[&str]) {
        let error = self.pull(&[&[source], more].concat()).unwrap_err();
        assert_eq!(self.names(), [""; 0], "something remains after {error}");
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        assert!(!error.contains("hidden") && !error.contains("HF_TOKEN"), "{error}");
    }

    fn models(&self) -> PathBuf {
        self.data.path().join("models")
    }

    /// Names in the models folder, hidden folders included.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.models()).into_iter().flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// A small checkpoint.
fn small() -> PathBuf {
    converted("whitespaces")
}

fn digest(folder: &Path) -> String {
    weir_json(&["inspect", "--json", folder.to_str().unwrap()])["sha256"].as_str().unwrap().to_owned()
}

#[test]
fn a_folder_of_a_web_server_is_fetched() {
    let user = User::new();
    let server = WebServer::of_small(|_| None);
    let url = format!("{}/files/m/", server.url());
    user.pull(&[&url, "--sha256", &digest(&small())]).unwrap();
    assert_eq!(user.names(), ["m"]);
    assert_eq!(digest(&user.models().join("m")), digest(&small()));
    let missing = "/files/none/config.json: the file: expected a file, found none";
    User::new().refused(&format!("{}/files/none", server.url()), &[], &[missing]);
}

#[test]
fn lies_of_a_server_are_errors() {
    let weights = fs::read(small().join("model.safetensors")).unwrap();
    let size = weights.len();
    let less: fn(&[u8]) -> Answer = |bytes| Answer::bytes(bytes[..bytes.len() / 2].to_vec()).length(bytes.len());
    let more: fn(&[u8]) -> Answer = |bytes| Answer::bytes(bytes.to_vec()).length(1 << 40);
    let endless: fn(&[u8]) -> Answer = |bytes| Answer::endless(bytes[..1000].to_vec());
    for (answer, expected) in
        [(less, "bytes, as the server stated, found"), (more, "found 1099511627776 bytes"), (endless, "found more")]
    {
        let weights = weights.clone();
        let server = WebServer::of_small(move |file| (file == "model.safetensors").then(|| answer(&weights)));
        let limit = (size * 2).to_string();
        User::new().refused(&format!("{}/files/m", server.url()), &["--max-pull-bytes", &limit], &[expected]);
    }
}

/// Object stores answer 403 for a missing file if the client may not list the files.
#[test]
fn a_hidden_optional_file_counts_as_missing() {
    let server = WebServer::of_small(|file| (!small().join(file).exists()).then(|| Answer::status(403)));
    User::new().pull(&[&format!("{}/files/m", server.url())]).unwrap();
    let hidden = "/m/other/config.json: the server answered 403";
    User::new().refused(&format!("{}/files/m/other", server.url()), &[], &[hidden]);
}

/// Transformers does not read the index either.
#[test]
fn one_file_of_weights_comes_before_an_index() {
    let index = || Answer::bytes(br#"{"weight_map": {"a": "old.safetensors"}}"#.to_vec());
    let server = WebServer::of_small(move |file| (file == "model.safetensors.index.json").then(index));
    User::new().pull(&[&format!("{}/files/m", server.url())]).unwrap();
}

/// Only the Hub's repositories are pinned to the commit that a response states.
#[test]
fn a_subfolder_below_a_revision_is_fetched_as_it_is() {
    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
    let server = WebServer::start(|request| match request.path.strip_prefix("/org/all/resolve/main/small/") {
        Some(file) => Answer::file(small().join(file)).header("x-repo-commit", COMMIT),
        None => Answer::status(500),
    });
    let user = User::new();
    user.pull(&[&format!("{}/org/all/resolve/main/small", server.url())]).unwrap();
    assert_eq!(digest(&user.models().join("small")), digest(&small()));
}

/// A URL would give some characters of a name another meaning.
#[test]
fn names_in_an_index_are_plain() {
    for name in ["..%2f..%2fx.safetensors", "a?b.safetensors", "a b.safetensors"] {
        let index = format!(r#"{{"weight_map": {{"a": "{name}"}}}}"#);
        let server = WebServer::of_small(move |file| match file {
            "config.json" => None,
            "model.safetensors.index.json" => Some(Answer::bytes(index.clone().into_bytes())),
            _ => Some(Answer::status(404)),
        });
        let expected = format!("expected letters, digits, dots, hyphens and underscores, found {name:?}");
        User::new().refused(&format!("{}/files/m", server.url()), &[], &[&expected]);
        assert!(server.requests().iter().all(|request| !request.path.contains("x.safetensors")), "{name}");
    }
}

/// Writes a model whose boundaries come from an entropy model.
fn with_entropy_model() -> TempDir {
    let shapes = TempDir::new().unwrap();
    let mut config: serde_json::Value =
        serde_json::from_slice(&fs::read(small().join("config.json")).unwrap()).unwrap();
    let boundaries = json!({"kind": "entropy-spikes", "window": 2, "companion": "companion"});
    fs::write(shapes.path().join("companion.json"), config.to_string()).unwrap();
    config["architecture"]["boundaries"] = boundaries;
    fs::write(shapes.path().join("shape.json"), config.to_string()).unwrap();
    let folder = TempDir::new().unwrap();
    weir::models::load::init(&shapes.path().join("shape.json"), folder.path(), 1, false).unwrap();
    folder
}

#[test]
fn an_entropy_model_is_fetched_and_checked() {
    let source = with_entropy_model();
    let entropy_model = source.path().join("companion");
    let path = source.path().to_str().unwrap();
    let user = User::new();
    let printed = user.pull(&[path, "--name", "spikes", "--sha256", &digest(source.path()), "--json"]).unwrap();
    let printed: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(printed["companions"], json!({ "companion": digest(&entropy_model) }));
    assert_eq!(digest(&user.models().join("spikes/companion")), digest(&entropy_model));

    let card = entropy_model.join("card.json");
    let original = fs::read(&card).unwrap();
    fs::write(&card, r#"{"sha256": "00"}"#).unwrap();
    User::new().refused(path, &["--name", "x"], &["companion", "expected 00, as card.json states"]);
    fs::write(&card, original).unwrap();
    let weights = entropy_model.join("model.safetensors");
    let bytes = fs::read(&weights).unwrap();
    fs::write(&weights, &bytes[..bytes.len() - 4]).unwrap();
    let truncated = ["companion/model.safetensors: the file: expected ", "truncated"];
    User::new().refused(path, &["--name", "x"], &truncated);
}

/// A configuration that weir cannot read costs no download of the weights.
#[test]
fn weights_of_an_unknown_model_are_not_fetched() {
    let config = || Answer::bytes(br#"{"format": "weir/1", "family": "unheard"}"#.to_vec());
    let server = WebServer::of_small(move |file| (file == "config.json").then(config));
    let url = format!("{}/files/m", server.url());
    User::new().refused(&url, &[], &[&format!("weir: {url}/config.json: ")]);
    assert!(server.requests().iter().all(|request| !request.path.contains("safetensors")));
}

#[test]
fn a_checkpoint_of_another_format_is_converted() {
    let user = User::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/t5/t5_v10");
    let printed = user.pull(&[source.to_str().unwrap(), "--name", "t5"]).unwrap();
    assert_eq!(user.names(), ["t5"]);
    assert!(printed.contains(&format!("sha256 {}, source sha256 ", digest(&user.models().join("t5")))), "{printed}");
    let config = fs::read_to_string(user.models().join("t5/config.json")).unwrap();
    assert!(config.contains("\"format\": \"weir/1\"") && config.contains("\"family\": \"t5\""), "{config}");
}

#[test]
fn the_hub_serves_one_commit_of_a_repository() {
    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
    let server = WebServer::start(|request| {
        let first = "/org/small/resolve/v%2F1/config.json";
        let rest = format!("/org/small/resolve/{COMMIT}/");
        match request.path.as_str() {
            path if path == first => Answer::file(small().join("config.json")).header("x-repo-commit", COMMIT),
            // The Hub redirects to the storage of large files.
            path if *path == format!("{rest}model.safetensors") => Answer::redirect("/storage/weights"),
            "/storage/weights" => Answer::file(small().join("model.safetensors")),
            path if path.starts_with(&rest) => Answer::status(404),
            _ => Answer::status(500),
        }
    });
    let user = User { endpoint: server.url(), ..User::new() };
    user.pull(&["hf:org/small@v/1"]).unwrap();
    assert_eq!(user.names(), ["small"]);
    assert_eq!(digest(&user.models().join("small")), digest(&small()));
    assert!(
        server.requests().iter().all(|request| !request.headers.contains("hf_secret")),
        "the token was sent in plain text"
    );
}

/// Answers as the Hub: a repository with the small checkpoint, and a private one.
fn hub_of_small(request: &Request) -> Answer {
    match request.path.strip_prefix("/org/") {
        Some("private/resolve/main/config.json") => Answer::status(401),
        Some(path) => match path.strip_prefix("small/resolve/main/") {
            Some(file @ ("config.json" | "model.safetensors")) => Answer::file(small().join(file)),
            _ => Answer::status(404),
        },
        None => Answer::status(404),
    }
}

#[test]
fn the_hub_is_reached_over_tls() {
    let certificates = Certificates::new();
    let server = WebServer::encrypted(&certificates, hub_of_small);
    let user = User::of(&server, certificates.path("ca.pem"));
    user.pull(&["hf:org/small"]).unwrap();
    assert_eq!(digest(&user.models().join("small")), digest(&small()));
    assert!(server.requests().iter().all(|request| request.headers.contains("authorization: bearer hf_secret")));

    let before = server.requests().len();
    let hub = TempDir::new().unwrap();
    fs::write(hub.path().join("token"), "hf_of_file\n").unwrap();
    let token = ("HF_HOME", hub.path().to_str().unwrap().to_owned());
    let user = User { token, ..User::of(&server, certificates.path("ca.pem")) };
    user.pull(&["hf:org/small"]).unwrap();
    let later = server.requests().split_off(before);
    assert!(!later.is_empty());
    assert!(later.iter().all(|request| request.headers.contains("authorization: bearer hf_of_file")));

    let others = Certificates::new();
    let other = User::of(&server, others.path("ca.pem"));
    other.refused("hf:org/small", &[], &["config.json: ", "certificate"]);
    let none = User::of(&server, certificates.path("server.key"));
    none.refused("hf:org/small", &[], &["no certificate authorities", "SSL_CERT_FILE"]);
}

/// Another port of the Hub's host is another server.
#[test]
fn a_redirect_takes_the_token_to_the_hub_only() {
    let certificates = Certificates::new();
    let storage = WebServer::encrypted(&certificates, |_| Answer::file(small().join("model.safetensors")));
    let elsewhere = format!("{}/weights", storage.url());
    let hub = WebServer::encrypted(&certificates, move |request| match request.path.as_str() {
        "/org/small/resolve/main/config.json" => Answer::redirect("moved/config.json"),
        "/org/small/resolve/main/moved/config.json" => Answer::redirect("/org/new/config.json"),
        "/org/new/config.json" => Answer::file(small().join("config.json")),
        "/org/small/resolve/main/model.safetensors" => Answer::redirect(&elsewhere),
        _ => Answer::status(404),
    });
    let user = User::of(&hub, certificates.path("ca.pem"));
    user.pull(&["hf:org/small"]).unwrap();
    assert_eq!(digest(&user.models().join("small")), digest(&small()));
    let has_token = |request: &Request| request.headers.contains("authorization: bearer hf_secret");
    assert!(hub.requests().iter().all(has_token) && !storage.requests().iter().any(has_token));
    assert_eq!(storage.requests().len(), 1);
}

#[test]
fn a_token_stays_here_if_the_environment_forbids_to_send_it() {
    let certificates = Certificates::new();
    let server = WebServer::encrypted(&certificates, hub_of_small);
    let user = |disable_token| User { disable_token, ..User::of(&server, certificates.path("ca.pem")) };
    user("1").pull(&["hf:org/small"]).unwrap();
    let why = "HF_HUB_DISABLE_IMPLICIT_TOKEN stops weir from sending";
    user("true").refused("hf:org/private", &[], &["401", why]);
    let requests = server.requests().len();
    assert!(server.requests().iter().all(|request| !request.headers.contains("authorization")));
    user("0").pull(&["hf:org/small"]).unwrap();
    let later = server.requests().split_off(requests);
    assert!(!later.is_empty() && later.iter().all(|request| request.headers.contains("bearer hf_secret")));
}

#[test]
fn a_private_repository_asks_for_a_token() {
    let server = WebServer::start(|_| Answer::status(401));
    let user = User { endpoint: server.url(), ..User::new() };
    let expected = "SOURCE: expected a repository of the Hugging Face Hub, found hf:org/private, which does not exist or is private";
    user.refused("hf:org/private", &[], &["401", "a token, which is not sent without TLS", expected]);
    // A URL of another kind gets no token.
    user.refused(&format!("{}/org/private", server.url()), &[], &["401"]);
}

/// With a token, the Hub answers 404 for a repository that does not exist. Its header distinguishes that from a missing file.
#[test]
fn a_missing_repository_is_no_missing_file() {
    let server = WebServer::start(|request| {
        let code = match request.path.as_str() {
            "/org/none/resolve/main/config.json" => "RepoNotFound",
            "/org/old/resolve/v9/config.json" => "RevisionNotFound",
            _ => "EntryNotFound",
        };
        Answer::status(404).header("X-Error-Code", code)
    });
    let user = User { endpoint: server.url(), ..User::new() };
    let none = "found hf:org/none, which does not exist or is private (the Hub answered 404";
    user.refused("hf:org/none", &[], &[none]);
    let old = "SOURCE: expected a revision of a repository of the Hugging Face Hub, found hf:org/old@v9, which does not exist";
    user.refused("hf:org/old@v9", &[], &[old]);
    user.refused("hf:org/empty", &[], &["config.json: the file: expected a file, found none"]);
}

/// A request.
#[derive(Clone)]
struct Request {
    path: String,
    /// Its headers, in lower case.
    headers: String,
}

/// A response.
struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    /// The length that the server states. It may be a lie.
    length: usize,
    /// True if the body is repeated until the client closes the connection.
    endless: bool,
}

impl Answer {
    fn bytes(body: Vec<u8>) -> Self {
        Self { status: 200, headers: Vec::new(), length: body.len(), body, endless: false }
    }

    fn file(file: PathBuf) -> Self {
        fs::read(file).map_or_else(|_| Self::status(404), Self::bytes)
    }

    fn status(status: u16) -> Self {
        Self { status, ..Self::bytes(Vec::new()) }
    }

    fn redirect(to: &str) -> Self {
        Self::status(302).header("location", to)
    }

    fn endless(body: Vec<u8>) -> Self {
        Self { endless: true, ..Self::bytes(body) }
    }

    fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    fn length(self, length: usize) -> Self {
        Self { length, ..self }
    }

    /// Writes the response. The client may close the connection first.
    fn write(self, mut to: impl Write) -> std::io::Result<()> {
        let headers = self.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect::<String>();
        let length = if self.endless { String::new() } else { format!("content-length: {}\r\n", self.length) };
        write!(to, "HTTP/1.1 {} x\r\nconnection: close\r\n{length}{headers}\r\n", self.status)?;
        to.write_all(&self.body)?;
        to.flush()?;
        if !self.endless {
            return Ok(());
        }
        loop {
            to.write_all(&self.body)?;
        }
    }
}

/// A connection, with TLS or without.
trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

/// A server on a free port. Its thread ends with the process of the test.
struct WebServer {
    url: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl WebServer {
    fn start(answer: impl Fn(&Request) -> Answer + Send + 'static) -> Self {
        Self::start_with(None, answer)
    }

    /// Starts a server, with TLS if there are settings of it.
    fn start_with(tls: Option<Arc<ServerConfig>>, answer: impl Fn(&Request) -> Answer + Send + 'static) -> Self {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("{scheme}://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                let mut stream: Box<dyn Stream> = match &tls {
                    None => Box::new(stream),
                    Some(tls) => {
                        let connection = ServerConnection::new(Arc::clone(tls)).unwrap();
                        Box::new(StreamOwned::new(connection, stream))
                    }
                };
                let Some(request) = read(&mut stream) else { continue };
                seen.lock().unwrap().push(request.clone());
                // A client that has what it needs closes the connection.
                let _ = answer(&request).write(stream);
            }
        });
        Self { url, requests }
    }

    /// Serves the small checkpoint, except files for which `other` has another answer.
    fn of_small(other: impl Fn(&str) -> Option<Answer> + Send + 'static) -> Self {
        Self::start(move |request| match request.path.strip_prefix("/files/m/") {
            Some(file) => other(file).unwrap_or_else(|| Answer::file(small().join(file))),
            None => Answer::status(404),
        })
    }

    /// Starts a server with one of these certificates.
    fn encrypted(certificates: &Certificates, answer: impl Fn(&Request) -> Answer + Send + 'static) -> Self {
        Self::start_with(certificates.access(false).credentials.current().tls.as_ref().map(|tls| tls.http1()), answer)
    }

    fn url(&self) -> String {
        self.url.clone()
    }

    fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

fn read(stream: &mut impl Read) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    Some(Request { path, headers: lines.collect::<Vec<_>>().join("\n").to_lowercase() })
}
