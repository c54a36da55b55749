//! `weir pull`: from folders and from a web server.

mod hub;
mod web_server;

use super::support::converted;
use serde_json::json;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;
use web_server::{Answer, WebServer};

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

    /// Runs the program. Returns stdout if it succeeds, otherwise stderr.
    fn weir(&self, args: &[&str]) -> Result<String, String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(args).env_clear().env("WEIR_DATA", self.data.path()).current_dir(self.data.path());
        command.env("HF_ENDPOINT", &self.endpoint).env("SSL_CERT_FILE", &self.authorities);
        command.env("HF_HUB_DISABLE_IMPLICIT_TOKEN", self.disable_token);
        let (variable, value) = &self.token;
        let output = command.env(variable, value).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }

    fn pull(&self, args: &[&str]) -> Result<String, String> {
        self.weir(&[&["pull"], args].concat())
    }

    fn error(&self, args: &[&str]) -> String {
        let error = self.pull(args).unwrap_err();
        assert_eq!(self.names(), [""; 0], "something remains after {error}");
        error
    }

    fn models(&self) -> PathBuf {
        self.data.path().join("models")
    }

    /// Names in the models folder, those of hidden folders included.
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
    let output = Command::new(env!("CARGO_BIN_EXE_weir")).args(["inspect", "--json"]).arg(folder).output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    json["sha256"].as_str().unwrap().to_owned()
}

fn copy_of(folder: &Path) -> TempDir {
    let copy = TempDir::new().unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(folder.join(name), copy.path().join(name)).unwrap();
    }
    copy
}

#[test]
fn a_folder_is_copied_and_found_by_name() {
    let user = User::new();
    let sha256 = digest(&small());
    let source = small();
    let source = source.to_str().unwrap();
    let printed = user.pull(&[source, "--name", "mine", "--sha256", &sha256]).unwrap();
    assert!(printed.starts_with("mine: ") && printed.contains(&sha256), "{printed}");
    assert_eq!(user.names(), ["mine"]);
    assert_eq!(digest(&user.models().join("mine")), sha256);
    user.weir(&["segment", "--model", "mine", "--text", "ab c"]).unwrap();

    let error = user.pull(&[source, "--name", "mine"]).unwrap_err();
    assert!(error.contains("a model of this name exists") && error.contains("--force"), "{error}");
    user.pull(&[source, "--name", "mine", "--force", "--json"]).unwrap();
    assert_eq!(user.names(), ["mine"]);
}

#[test]
fn wrong_sources_leave_nothing() {
    let user = User::new();
    let source = small();
    let source = source.to_str().unwrap();
    let other = "0".repeat(64);
    let error = user.error(&[source, "--sha256", &other]);
    assert!(error.contains("sha256 of the weights") && error.contains(&other), "{error}");
    let error = user.error(&[source, "--max-pull-bytes", "20000"]);
    assert!(
        error.contains("model.safetensors: the file: expected at most ") && error.contains("--max-pull-bytes"),
        "{error}"
    );
    let error = user.error(&[source, "--name", "../mine"]);
    assert!(error.contains("found \"../mine\""), "{error}");
    let error = user.error(&["/no/such/folder"]);
    assert!(error.contains("expected a checkpoint (a folder with a config.json)"), "{error}");

    let copy = copy_of(&small());
    fs::remove_file(copy.path().join("model.safetensors")).unwrap();
    let escape = r#"{"weight_map": {"a": "../../secret.safetensors"}}"#;
    fs::write(copy.path().join("model.safetensors.index.json"), escape).unwrap();
    let error = user.error(&[copy.path().to_str().unwrap(), "--name", "x"]);
    assert!(error.contains("weight_map.a: expected the plain name of a .safetensors file"), "{error}");

    let copy = copy_of(&small());
    fs::write(copy.path().join("model.safetensors"), [0; 64]).unwrap();
    let error = user.error(&[copy.path().to_str().unwrap(), "--name", "x"]);
    assert!(error.contains("found zeros at its start"), "{error}");
}

#[cfg(unix)]
#[test]
fn links_out_of_a_folder_are_not_followed() {
    let user = User::new();
    let copy = copy_of(&small());
    fs::remove_file(copy.path().join("model.safetensors")).unwrap();
    std::os::unix::fs::symlink(small().join("model.safetensors"), copy.path().join("model.safetensors")).unwrap();
    let error = user.error(&[copy.path().to_str().unwrap(), "--name", "x"]);
    assert!(error.contains("a link out of it"), "{error}");
}

#[test]
fn a_card_with_another_digest_is_rejected() {
    let user = User::new();
    let copy = copy_of(&small());
    fs::write(copy.path().join("card.json"), r#"{"sha256": "00"}"#).unwrap();
    let error = user.error(&[copy.path().to_str().unwrap(), "--name", "x"]);
    assert!(error.contains("sha256 of the weights: expected 00, as card.json states"), "{error}");
}

#[test]
fn a_folder_of_a_web_server_is_fetched() {
    let user = User::new();
    let server = WebServer::of_folder("/files/english", small());
    let url = format!("{}/files/english/", server.url());
    user.pull(&[&url, "--sha256", &digest(&small())]).unwrap();
    assert_eq!(user.names(), ["english"]);
    assert_eq!(digest(&user.models().join("english")), digest(&small()));
    let missing = User::new().error(&[&format!("{}/files/none", server.url())]);
    assert!(missing.contains("/files/none/config.json: the file: expected a file, found none"), "{missing}");
}

#[test]
fn lies_of_a_server_are_errors() {
    let weights = fs::read(small().join("model.safetensors")).unwrap();
    let size = weights.len();
    type Weights = fn(&[u8]) -> Answer;
    let cases: [(&str, Weights, &str); 3] = [
        (
            "less than stated",
            |bytes| Answer::bytes(bytes[..bytes.len() / 2].to_vec()).length(bytes.len()),
            "bytes, as the server stated, found",
        ),
        ("more than allowed", |bytes| Answer::bytes(bytes.to_vec()).length(1 << 40), "found 1099511627776 bytes"),
        ("without an end", |bytes| Answer::endless(bytes[..1000].to_vec()), "found more"),
    ];
    for (name, answer, expected) in cases {
        let weights = weights.clone();
        let server = WebServer::start(move |request| match request.path.as_str() {
            "/m/config.json" => Answer::file(small().join("config.json")),
            "/m/model.safetensors" => answer(&weights),
            _ => Answer::status(404),
        });
        let limit = (size * 2).to_string();
        let error = User::new().error(&[&format!("{}/m", server.url()), "--max-pull-bytes", &limit]);
        assert!(error.contains(expected), "{name}: {error}");
    }
}

/// Object stores answer 403 for a missing file if the client may not list the files.
#[test]
fn a_hidden_optional_file_counts_as_missing() {
    let server = WebServer::start(|request| match request.path.as_str() {
        "/m/config.json" => Answer::file(small().join("config.json")),
        "/m/model.safetensors" => Answer::file(small().join("model.safetensors")),
        _ => Answer::status(403),
    });
    User::new().pull(&[&format!("{}/m", server.url())]).unwrap();
    let error = User::new().error(&[&format!("{}/other", server.url())]);
    assert!(error.contains("/other/config.json: the server answered 403"), "{error}");
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
        let server = WebServer::start(move |request| match request.path.as_str() {
            "/m/config.json" => Answer::file(small().join("config.json")),
            "/m/model.safetensors.index.json" => Answer::bytes(index.clone().into_bytes()),
            _ => Answer::status(404),
        });
        let error = User::new().error(&[&format!("{}/m", server.url())]);
        let expected = format!("expected letters, digits, dots, hyphens and underscores, found {name:?}");
        assert!(error.contains(&expected), "{error}");
        assert!(server.requests().iter().all(|request| !request.path.contains("x.safetensors")), "{name}");
    }
}

/// Writes a model whose boundaries come from a companion.
fn with_companion() -> TempDir {
    let shapes = TempDir::new().unwrap();
    let mut config: serde_json::Value =
        serde_json::from_slice(&fs::read(small().join("config.json")).unwrap()).unwrap();
    let boundaries = json!({"kind": "entropy-spikes", "window": 2, "companion": "companion"});
    fs::write(shapes.path().join("companion.json"), config.to_string()).unwrap();
    config["architecture"]["boundaries"] = boundaries;
    fs::write(shapes.path().join("shape.json"), config.to_string()).unwrap();
    let folder = TempDir::new().unwrap();
    weir::family::init::init(&shapes.path().join("shape.json"), folder.path(), 1, false).unwrap();
    folder
}

#[test]
fn a_companion_is_fetched_and_checked() {
    let source = with_companion();
    let companion = source.path().join("companion");
    let path = source.path().to_str().unwrap();
    let user = User::new();
    let printed = user.pull(&[path, "--name", "spikes", "--sha256", &digest(source.path()), "--json"]).unwrap();
    let printed: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(printed["companions"], json!({ "companion": digest(&companion) }));
    assert_eq!(digest(&user.models().join("spikes/companion")), digest(&companion));

    let card = companion.join("card.json");
    let original = fs::read(&card).unwrap();
    fs::write(&card, r#"{"sha256": "00"}"#).unwrap();
    let error = User::new().error(&[path, "--name", "x"]);
    assert!(error.contains("companion") && error.contains("expected 00, as card.json states"), "{error}");
    fs::write(&card, original).unwrap();
    let weights = companion.join("model.safetensors");
    let bytes = fs::read(&weights).unwrap();
    fs::write(&weights, &bytes[..bytes.len() - 4]).unwrap();
    let error = User::new().error(&[path, "--name", "x"]);
    assert!(
        error.contains("companion/model.safetensors: the file: expected ") && error.contains("truncated"),
        "{error}"
    );
}

/// A configuration that weir cannot read costs no download of the weights.
#[test]
fn weights_of_an_unknown_model_are_not_fetched() {
    let server = WebServer::start(|request| match request.path.as_str() {
        "/m/config.json" => Answer::bytes(br#"{"format": "weir/1", "family": "unheard"}"#.to_vec()),
        _ => Answer::status(404),
    });
    let error = User::new().error(&[&format!("{}/m", server.url())]);
    assert!(error.starts_with(&format!("weir: {}/m/config.json: ", server.url())), "{error}");
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
