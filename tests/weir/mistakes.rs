//! Mistakes of a new user, in one table, `mistakes.txt`: what the user typed, and the exact message.
//!
//! Every row runs the built program, or sends a request as curl does, in a folder of its own. The table is read when the test runs.
//! In a row, `{grpc}` and its like stand for addresses, and `…` in a message for text that depends on the system or on the build.

use crate::{
    hostile_checkpoints::{entries::SMALL_CONFIG, write_valid},
    process::{http, program},
    *,
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, SanType};
use std::net::TcpListener;

const KEY: &str = "key-of-the-test-0123456789";

/// A row of the table.
struct Mistake<'a> {
    /// The folder in which the user types, by its name in [`given::ALL`]; empty for the folder without changes.
    given: &'a str,
    typed: &'a str,
    message: &'a str,
}

/// Returns the rows: paragraphs of an optional line `given …`, a line `$ …` and the message. Lines that begin with `#` are
/// comments.
fn rows(table: &str) -> Vec<Mistake<'_>> {
    let paragraphs = table.split("\n\n").map(str::trim);
    paragraphs.filter(|paragraph| !paragraph.starts_with('#')).map(row).collect()
}

fn row(paragraph: &str) -> Mistake<'_> {
    let (given, rest) = match paragraph.strip_prefix("given ") {
        Some(paragraph) => paragraph.split_once('\n').unwrap(),
        None => ("", paragraph),
    };
    let (typed, message) = rest.strip_prefix("$ ").expect(rest).split_once('\n').expect(rest);
    Mistake { given, typed, message }
}

/// The servers that the rows call.
struct Servers {
    /// Two models that continue text and one that summarizes, over gRPC and HTTP.
    open: Server,
    /// TLS and keys.
    tls: Server,
    /// A server that uses the certificate of an authority.
    authority: Server,
    /// A server that requires client certificates.
    mutual: Server,
    certificates: Certificates,
    /// An address at which no server listens.
    free: String,
    _folder: TempDir,
}

impl Servers {
    fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let summarizer = write_random_model(folder.path());
        let models = [converted("whitespaces"), lslm_converted("byte_vocab"), summarizer.into()];
        let certificates = Certificates::new();
        write_authority(&certificates);
        let strangers = Certificates::new();
        for name in ["client.pem", "client.key"] {
            fs::copy(strangers.path(name), certificates.path(&name.replace("client", "stranger"))).unwrap();
        }
        certificates.write("key", &format!("{KEY}\n"));
        let keys = certificates.write("keys", &format!("tester:{KEY}\n"));
        let encrypted = |name: &str, more: &[&str]| {
            let [cert, key] = ["pem", "key"].map(|ending| certificates.name(&format!("{name}.{ending}")));
            Server::of(&models[..1], &[&["--tls-cert", &cert, "--tls-key", &key], more].concat())
        };
        let tls = encrypted("server", &["--api-keys", keys.to_str().unwrap()]);
        let authority = encrypted("authority", &[]);
        let mutual = encrypted("server", &["--tls-client-ca", &certificates.name("ca.pem")]);
        let token = certificates.write("token", "the-admin-token-of-the-test\n");
        let open = Server::of(&models, &["--admin-token-file", token.to_str().unwrap()]);
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        Self { open, tls, authority, mutual, certificates, free, _folder: folder }
    }

    /// Replaces the names of addresses.
    fn filled(&self, text: &str) -> String {
        let names = [
            ("{grpc}", self.open.address.to_string()),
            ("{http}", self.open.http()),
            ("{tls}", self.tls.address.to_string()),
            ("{https}", self.tls.http()),
            ("{authority}", self.authority.address.to_string()),
            ("{mutual}", self.mutual.address.to_string()),
            ("{free}", self.free.clone()),
        ];
        names.iter().fold(text.to_owned(), |text, (name, address)| text.replace(name, address))
    }

    /// Types a command line in a new folder. Returns the message.
    fn message(&self, mistake: &Mistake<'_>) -> String {
        let folder = TempDir::new().unwrap();
        let files = "ca.pem server.pem server.key authority.pem client.pem client.key stranger.pem stranger.key key";
        for name in files.split(' ') {
            fs::copy(self.certificates.path(name), folder.path().join(name)).unwrap();
        }
        write_valid(&folder.path().join("model"));
        if let Some(given) = ALL.iter().find(|given| given.name == mistake.given) {
            (given.change)(folder.path());
        }
        let words = split(&self.filled(mistake.typed));
        match words.split_first().map(|(program, words)| (program.as_str(), words)) {
            Some(("weir", words)) => weir(folder.path(), words),
            Some(("curl", words)) => curl(words),
            other => panic!("{other:?}"),
        }
    }
}

/// Writes an authority's certificate that a server could use, and its key.
fn write_authority(certificates: &Certificates) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.subject_alt_names = vec![SanType::IpAddress([127, 0, 0, 1].into())];
    let key = KeyPair::generate().unwrap();
    certificates.write("authority.pem", &params.self_signed(&key).unwrap().pem());
    certificates.write("authority.key", &key.serialize_pem());
}

/// Splits a command line at spaces outside of single quotes.
fn split(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for (index, part) in line.split('\'').enumerate() {
        let mut pieces = if index % 2 == 0 { part.split(' ').collect() } else { vec![part] }.into_iter();
        words.last_mut().unwrap().push_str(pieces.next().unwrap());
        words.extend(pieces.map(str::to_owned));
    }
    words
}

/// Runs a command that must fail. Returns its message without the line that states where the model runs.
fn weir(folder: &Path, words: &[String]) -> String {
    let output = program(&[]).args(words).current_dir(folder).env("WEIR_DATA", "data").output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && output.stdout.is_empty(), "{words:?}: {message}");
    let lines = message.lines().filter(|line| !line.is_empty() && !line.starts_with("weir: running "));
    lines.collect::<Vec<_>>().join("\n")
}

/// Sends a request with these options of curl: `-H`, `-d` and `--json`. Returns the message in the response.
fn curl(words: &[String]) -> String {
    let (url, options) = words.split_first().unwrap();
    let (address, path) = url.split_once('/').unwrap();
    let mut headers = String::new();
    let mut body = "";
    for option in options.chunks(2) {
        let value = option[1].as_str();
        match option[0].as_str() {
            "-H" => headers += &format!("{value}\r\n"),
            "-d" => (headers, body) = (headers + "Content-Type: application/x-www-form-urlencoded\r\n", value),
            "--json" => (headers, body) = (headers + "Content-Type: application/json\r\n", value),
            other => panic!("{other}"),
        }
    }
    let method = if body.is_empty() { "GET" } else { "POST" };
    let (_, body) = http(address, &format!("{method} /{path}"), &headers, body);
    let message = serde_json::from_str::<Value>(&body).ok();
    let message = message.and_then(|body| body["error"]["message"].as_str().map(str::to_owned));
    message.unwrap_or_else(|| body.trim_end().to_owned())
}

/// Returns true if `text` is `pattern`, in which `…` stands for any text.
fn is_like(text: &str, pattern: &str) -> bool {
    let mut parts = pattern.split('…');
    let Some(mut rest) = text.strip_prefix(parts.next().unwrap()) else { return false };
    let Some(last) = pattern.contains('…').then(|| parts.next_back().unwrap()) else { return rest.is_empty() };
    for part in parts {
        match rest.split_once(part) {
            Some((_, behind)) => rest = behind,
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[test]
fn every_mistake_has_its_message() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/weir/mistakes.txt");
    let table = fs::read_to_string(file).unwrap();
    let rows = rows(&table);
    let is_known = |row: &Mistake<'_>| row.given.is_empty() || ALL.iter().any(|given| given.name == row.given);
    // Some rows for Hugging Face models need the feature.
    let needs_candle = |row: &&Mistake<'_>| !cfg!(feature = "candle") && row.given.contains("Hugging Face");
    assert!(rows.iter().all(|row| is_known(row) || needs_candle(&row)));
    assert!(ALL.iter().all(|given| rows.iter().any(|row| row.given == given.name)), "every folder is used");
    assert!(rows.len() >= 25, "{}", rows.len());
    let servers = Servers::start();
    let mut wrong = String::new();
    for row in rows.iter().filter(|row| is_known(row)) {
        let message = servers.message(row);
        let expected = servers.filled(row.message);
        if !is_like(&message, &expected) {
            wrong += &format!("{}\n$ {}\n{expected}\nis not\n{message}\n\n", row.given, row.typed);
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn patterns_and_words() {
    assert!(is_like("abc", "abc") && is_like("abc", "a…c") && is_like("abcabc", "…bc") && is_like("abc", "…"));
    assert!(!is_like("abcd", "abc") && !is_like("abc", "b…") && !is_like("abc", "a…b") && !is_like("abc", "abc…c"));
    assert_eq!(split("weir score --text 'a  b' c"), ["weir", "score", "--text", "a  b", "c"]);
}

const POINTER: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 7782708\n";

const PAGE: &str = "<!DOCTYPE html>\n<html><body>Not found</body></html>\n";

/// A folder: the name after `given` in the table, and how the folder is changed.
struct Given {
    name: &'static str,
    change: fn(&Path),
}

const fn given(name: &'static str, change: fn(&Path)) -> Given {
    Given { name, change }
}

fn write(folder: &Path, name: &str, contents: impl AsRef<[u8]>) {
    fs::write(folder.join(name), contents).unwrap();
}

fn config(folder: &Path, contents: impl AsRef<[u8]>) {
    write(folder, "model/config.json", contents);
}

fn weights(folder: &Path, contents: impl AsRef<[u8]>) {
    write(folder, "model/model.safetensors", contents);
}

/// Leaves one file in the checkpoint's folder.
fn only(folder: &Path, file: &str) {
    fs::remove_dir_all(folder.join("model")).unwrap();
    fs::create_dir(folder.join("model")).unwrap();
    write(folder, &format!("model/{file}"), "x");
}

/// Replaces the configuration by that of a Llama, and writes its tokenizer, if there is one.
fn llama(folder: &Path, tokenizer: Option<&str>) {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/hugging-face/llama/config.json");
    config(folder, fs::read(golden).unwrap());
    if let Some(tokenizer) = tokenizer {
        write(folder, "model/tokenizer.json", tokenizer);
    }
}

const ALL: &[Given] = &[
    given("an empty configuration", |folder| config(folder, "")),
    given("a configuration of zeros", |folder| config(folder, [0; 64])),
    given("a configuration in Git LFS", |folder| config(folder, POINTER)),
    given("a broken configuration", |folder| {
        config(folder, "{\n  \"format\": \"weir/1\",\n  \"family\": hourglass\n}");
    }),
    given("half a configuration", |folder| config(folder, &SMALL_CONFIG[..SMALL_CONFIG.len() / 2])),
    given("empty weights", |folder| weights(folder, "")),
    given("weights of zeros", |folder| weights(folder, [0; 4096])),
    given("weights in Git LFS", |folder| weights(folder, POINTER)),
    given("weights alone", |folder| fs::remove_file(folder.join("model/config.json")).unwrap()),
    given("no weights", |folder| fs::remove_file(folder.join("model/model.safetensors")).unwrap()),
    given("pickled weights", |folder| {
        fs::rename(folder.join("model/model.safetensors"), folder.join("model/pytorch_model.bin")).unwrap();
    }),
    given("pickled weights in Git LFS", |folder| {
        fs::remove_file(folder.join("model/model.safetensors")).unwrap();
        write(folder, "model/pytorch_model.bin", POINTER);
    }),
    given("a GPT-2 of Hugging Face without weights", |folder| {
        config(folder, "{\"model_type\": \"gpt2\"}");
        fs::remove_file(folder.join("model/model.safetensors")).unwrap();
    }),
    given("a Llama of Hugging Face without a tokenizer", |folder| llama(folder, None)),
    given("a Llama of Hugging Face with a broken tokenizer", |folder| llama(folder, Some("tokenizer"))),
    given("a Llama of Hugging Face with a tokenizer in Git LFS", |folder| llama(folder, Some(POINTER))),
    given("a GPT-2 of Hugging Face", |folder| config(folder, "{\"model_type\": \"gpt2\"}")),
    given("a BERT of Hugging Face", |folder| config(folder, "{\"model_type\": \"bert\", \"vocab_size\": 7}")),
    given("an empty folder", |folder| {
        only(folder, "x");
        fs::remove_file(folder.join("model/x")).unwrap();
    }),
    given("a folder of notes", |folder| only(folder, "notes.txt")),
    given("a folder of a GGUF file", |folder| only(folder, "model.gguf")),
    given("a folder of a training checkpoint", |folder| only(folder, "checkpoint_last.pt")),
    given("a folder of a training run", |folder| only(folder, "state.pt")),
    given("a configuration of another project", |folder| config(folder, "{\"arch_layout\": [\"m2\"]}")),
    given("a folder of checkpoints", |folder| {
        only(folder, "notes.txt");
        fs::create_dir(folder.join("model/inner")).unwrap();
        write(folder, "model/inner/config.json", SMALL_CONFIG);
    }),
    given("a configuration that is a web page", |folder| config(folder, PAGE)),
    given("weights that are a web page", |folder| weights(folder, PAGE)),
    given("half a Llama of Hugging Face", |folder| {
        config(folder, "{\"model_type\": \"llama\"}");
        fs::remove_file(folder.join("model/model.safetensors")).unwrap();
    }),
    given("settings in JSON", |folder| write(folder, "weir.toml", "{\n  \"rows\": 8,\n  \"listen\": \"a\"\n}\n")),
    given("a photo", |folder| write(folder, "photo.jpg", b"\xff\xd8\xff")),
    given("a text", |folder| write(folder, "text.txt", "Hello")),
    given("an empty text", |folder| write(folder, "text.txt", "")),
    given("a wrong key", |folder| write(folder, "wrong-key", "another-key-0123456789\n")),
    given("a wrong setting", |folder| {
        write(folder, "weir.toml", "rows = 8\nlisten-http = \"127.0.0.1:8000\"\n");
    }),
];
