//! The cases in `tests/cases/`: what a client sends, and the exact answer. One paragraph is one case, and the files are read when the
//! tests run:
//!
//! ```text
//! given SCRIPT        a script of the shell that changes the folder in which the command runs; optional
//! $ COMMAND           several commands have the same answer
//! ANSWER
//! ```
//!
//! - `weir …` runs the built program. The answer is its stderr if it fails, otherwise its stdout, which is compared as JSON if the case
//!   has JSON. Variables may stand before it. `sh -c SCRIPT` is answered likewise, and finds the program as `weir`.
//! - `curl ADDRESS/PATH` takes `-X`, `-H`, `-d` and `--json`, and JSON that it compresses by `--gzip`, `--deflate` or
//!   `--raw-deflate`; `--http 2` speaks HTTP/2. The answer is the status with the error's type, code and field; its
//!   message, or the body without its empty lines; and the body as JSON. `-w '%header{NAME}'` puts a header of the response behind
//!   the status.
//! - `grpcurl ADDRESS SERVICE/METHOD` takes `-H` and `-d` with the messages as JSON. The answer is the code with the reason and the
//!   field; the message; and the reason's metadata as JSON. The JSON of a call that succeeds is the response, or a list of responses.
//!   With `-max-time SECONDS`, the call must stay open. The answer is `Open` with the responses that arrive until they are as expected,
//!   or until the time has passed.
//! - `lsp FLAGS` runs and initializes `weir lsp`, and sends it each `-d MESSAGE`, once the message before is answered if it has an id.
//!   The JSON is the list of the answers.
//! - `websocat ADDRESS/v1/edit` opens a session of editing over a WebSocket, and sends it each `-d MESSAGE`, once the message before is
//!   answered. The JSON is the list of the answers.
//!
//! Answers to `curl`, `grpcurl`, `lsp` and `websocat` may leave out the message and the JSON. The JSON may lack members, and
//! `"no NAME": true` states that there is no such member. `{grpc}` and its like stand for addresses, `%{a*3}` for `aaa`, `…` for any text,
//! and `"≈1.5"` for a number within a hundred-thousandth of 1.5, because sums differ between processors. Paragraphs that begin with `#`
//! are comments.
//!
//! A case with files is a folder with a `case.txt`, whose commands run in one copy of the folder. If they call `{grpc}` or `{http}`, a
//! server runs there with the flags of the line `serve FLAGS`, or with `--model m=model` if there is none. `{root}` is the folder of the
//! repository.

use crate::{
    hostile_checkpoints::write_valid,
    process::{Program, outcome, program},
    wire::{
        CaseServers, WebSocketClient,
        errors::{answer_of_call, answer_while_open},
        exchange, exchange_http2, framed,
    },
    *,
};
use flate2::{
    Compression,
    read::{DeflateEncoder, GzEncoder, ZlibEncoder},
};
use prost_reflect::{DescriptorPool, DynamicMessage, SerializeOptions};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, SanType};
use serde_json::Deserializer;
use std::{net, rc::Rc};
use tokio::runtime::Builder;
use tonic_types::StatusExt;

const KEY: &str = "key-of-the-test-0123456789";
const CASES_FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases");

/// One paragraph.
struct Case<'a> {
    /// The script that changes the folder; empty for the folder without changes.
    given: &'a str,
    commands: Vec<&'a str>,
    answer: &'a str,
}

/// Returns the cases of a file.
fn cases(file: &str) -> Vec<Case<'_>> {
    let paragraphs = file.split("\n\n").map(str::trim);
    let is_case = |paragraph: &&str| {
        let is_comment = paragraph.starts_with('#');
        assert!(!is_comment || !paragraph.contains("\n$ "), "no empty line after the comment {paragraph}");
        !is_comment && !paragraph.starts_with("serve ")
    };
    let cases: Vec<_> = paragraphs.filter(is_case).map(case).collect();
    assert!(!cases.is_empty(), "{file}");
    cases
}

fn case(paragraph: &str) -> Case<'_> {
    let (given, mut rest) = match paragraph.strip_prefix("given ") {
        Some(paragraph) => paragraph.split_once('\n').unwrap(),
        None => ("", paragraph),
    };
    let mut commands = Vec::new();
    while let Some(line) = rest.strip_prefix("$ ") {
        let (command, after) = line.split_once('\n').expect(paragraph);
        commands.push(command);
        rest = after;
    }
    assert!(!commands.is_empty(), "{paragraph}");
    Case { given, commands, answer: rest }
}

/// What came back.
#[derive(Default)]
struct Answer {
    /// The status, or the code, with what names the error. Empty for a command.
    head: String,
    message: String,
    json: Value,
}

impl Answer {
    /// The answer of a call that succeeds.
    fn ok(head: &str, json: impl Into<Value>) -> Self {
        Self { head: head.into(), message: String::new(), json: json.into() }
    }

    /// Returns true if this is what a case expects.
    fn is_like(&self, expected: &str) -> bool {
        if self.head.is_empty() {
            return match serde_json::from_str(expected) {
                Ok(expected) => serde_json::from_str(&self.message).is_ok_and(|found| is_like_json(&found, &expected)),
                Err(_) => is_like(&self.message, expected),
            };
        }
        let (head, rest) = expected.split_once('\n').unwrap_or((expected, ""));
        let (message, json) = rest
            .match_indices(['{', '['])
            .find(|&(at, _)| at == 0 || rest[..at].ends_with('\n'))
            .map_or((rest, ""), |(at, _)| rest.split_at(at));
        let message = message.trim_end();
        is_like(&self.head, head)
            && (message.is_empty() || is_like(&self.message, message))
            && (json.is_empty() || is_like_json(&self.json, &serde_json::from_str(json).expect(json)))
    }
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
    /// The checkpoint that summarizes.
    summarizer: String,
    _folder: TempDir,
}

impl Servers {
    fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let summarizer = write_random_model(folder.path());
        let models = [converted("whitespaces"), checkpoint("lslm", "byte_vocab"), summarizer.clone().into()];
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
        let free = net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        Self { open, tls, authority, mutual, certificates, free, summarizer, _folder: folder }
    }

    fn addresses(&self) -> Vec<(&'static str, String)> {
        vec![
            ("grpc", self.open.address.to_string()),
            ("http", self.open.http()),
            ("tls", self.tls.address.to_string()),
            ("https", self.tls.http()),
            ("authority", self.authority.address.to_string()),
            ("mutual", self.mutual.address.to_string()),
            ("admin", self.open.admin_address.to_string()),
            ("free", self.free.clone()),
            ("summarizer", self.summarizer.clone()),
            ("root", env!("CARGO_MANIFEST_DIR").to_owned()),
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ]
    }
}

/// Replaces the names of addresses, and `%{TEXT*COUNT}`.
fn filled(text: &str, addresses: &[(&str, String)]) -> String {
    let mut text = text.to_owned();
    for (name, address) in addresses {
        text = text.replace(&format!("{{{name}}}"), address);
    }
    let mut from = 0;
    while let Some(star) = text[from..].find('*').map(|at| from + at) {
        from = star + 1;
        let digits = text[from..].chars().take_while(char::is_ascii_digit).count();
        let Some(start) = text[..star].rfind("%{").filter(|_| digits > 0 && text[from + digits..].starts_with('}'))
        else {
            continue;
        };
        let repeated = text[start + 2..star].repeat(text[from..from + digits].parse().unwrap());
        text.replace_range(start..=from + digits, &repeated);
        from = start + repeated.len();
    }
    text
}

/// Runs a command line. Returns its answer. A call that stays open ends once it has the expected one.
async fn answer(command: &str, expected: &str, folder: &dyn Fn() -> Rc<TempDir>) -> Answer {
    let words = split(command);
    let variables = words.iter().map_while(|word| word.split_once('=')).collect::<Vec<_>>();
    match words[variables.len()..].split_first().map(|(program, words)| (program.as_str(), words)) {
        Some(("weir", words)) => run(program(&[]).args(words), folder().path(), &variables),
        Some(("sh", words)) => {
            let bin = Path::new(env!("CARGO_BIN_EXE_weir")).parent().unwrap().to_str().unwrap();
            let path = format!("{bin}:/usr/bin:/bin");
            run(Command::new("sh").args(words).env_clear().env("PATH", path), folder().path(), &variables)
        }
        Some(("curl", words)) => curl(words).await,
        Some(("grpcurl", words)) => grpcurl(words, expected).await,
        Some(("lsp", words)) => {
            let (flags, messages) = words.split_at(words.iter().position(|word| word == "-d").unwrap());
            let answers = lsp::answers(flags, folder().path(), messages.iter().skip(1).step_by(2));
            Answer::ok("Ok", answers)
        }
        Some(("websocat", words)) => {
            let (address, _) = words[0].split_once('/').unwrap();
            let (mut client, _) = WebSocketClient::connect(address.parse().unwrap(), &[]).unwrap();
            let messages = words.iter().skip(2).step_by(2);
            Answer::ok("Ok", messages.map(|message| client.ask_text(message)).collect::<Vec<_>>())
        }
        other => panic!("{other:?}"),
    }
}

fn read_cases(file: &str) -> String {
    let text = fs::read_to_string(Path::new(CASES_FOLDER).join(file)).unwrap();
    assert!(cases(&text).len() > 60, "{file}");
    text
}

/// Returns the commands of a case that have another answer than the expected one.
async fn wrong(case: &Case<'_>, addresses: &[(&str, String)], folder: &dyn Fn(&str) -> Rc<TempDir>) -> String {
    let mut wrong = String::new();
    let expected = filled(case.answer, addresses);
    for command in &case.commands {
        let answer = answer(&filled(command, addresses), &expected, &|| folder(case.given)).await;
        if !answer.is_like(&expected) {
            let Answer { head, message, json } = answer;
            wrong += &format!("{}\n$ {command}\n{expected}\nis not\n{head}\n{message}\n{json}\n\n", case.given);
        }
    }
    wrong
}

/// Checks items on as many threads as the machine has cores. Fails with what `check` finds wrong.
fn check_each<T: Sync>(items: &[T], check: impl AsyncFn(&T) -> String + Sync) {
    let next = AtomicUsize::new(0);
    let check_next = || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let mut wrong = String::new();
        while let Some(item) = items.get(next.fetch_add(1, SeqCst)) {
            wrong += &runtime.block_on(check(item));
        }
        wrong
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let wrong: String = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(check_next)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn every_mistake_on_the_command_line_has_its_message() {
    check_commands("command-line.txt");
}

#[test]
fn every_mistake_with_a_server_has_its_message() {
    check_commands("servers.txt");
}

/// Checks a file's commands. Each paragraph has a folder of its own.
fn check_commands(file: &str) {
    let servers = Servers::start();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let folder = |given: &str| {
        let folder = TempDir::new().unwrap();
        let files = "ca.pem server.pem server.key authority.pem client.pem client.key stranger.pem stranger.key key";
        for name in files.split(' ') {
            fs::copy(servers.certificates.path(name), folder.path().join(name)).unwrap();
        }
        for (name, case) in [("llama.json", "hugging-face/llama"), ("hnet.json", "hnet/two_stage")] {
            fs::copy(golden.join(case).join("config.json"), folder.path().join(name)).unwrap();
        }
        write_valid(&folder.path().join("model"));
        let mut change = Command::new("sh");
        change.args(["-c", given]).current_dir(folder.path());
        assert!(given.is_empty() || change.status().unwrap().success(), "{given}");
        Rc::new(folder)
    };
    let addresses = servers.addresses();
    let text = read_cases(file);
    check_each(&cases(&text), async |case: &Case<'_>| wrong(case, &addresses, &folder).await);
}

/// Checks a file's cases. The servers run in this process, with models that are quick.
async fn check_answers(file: &str) {
    let servers = CaseServers::start().await;
    let mut addresses = servers.addresses();
    addresses.push(("version", env!("CARGO_PKG_VERSION").to_owned()));
    let none = |_: &str| unreachable!("no command runs in a folder");
    let mut all_wrong = String::new();
    for case in cases(&read_cases(file)) {
        all_wrong += &wrong(&case, &addresses, &none).await;
    }
    assert!(all_wrong.is_empty(), "{all_wrong}");
    servers.at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_grpc_request_has_its_answer() {
    check_answers("grpc.txt").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_http_request_has_its_answer() {
    check_answers("http.txt").await;
}

/// Copies a folder with its subfolders.
pub(crate) fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in from.read_dir().unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_folder(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}

/// Runs the commands of a case with files in a copy of its folder. Returns those that have another answer than the expected one.
async fn wrong_in_folder(folder: &Path) -> String {
    let copy = Rc::new(TempDir::new().unwrap());
    copy_folder(folder, copy.path());
    let text = fs::read_to_string(folder.join("case.txt")).unwrap();
    let root = ("root", env!("CARGO_MANIFEST_DIR").to_owned());
    let text = filled(&text, &[root]);
    let server = ["{grpc}", "{http}"].iter().any(|name| text.contains(name)).then(|| {
        let flags = text.lines().find_map(|line| line.strip_prefix("serve ")).unwrap_or("--model m=model");
        let listen = "serve --listen 127.0.0.1:0 --http-listen 127.0.0.1:0 --admin-listen 127.0.0.1:0 --threads 1";
        let mut command = program(&listen.split(' ').collect::<Vec<_>>());
        Program::start(command.args(["--calibration-milliseconds", "0"]).args(split(flags)).current_dir(copy.path()))
    });
    let listeners = [("http", "playground"), ("grpc", "gRPC")];
    let addresses: Vec<_> =
        server.iter().flat_map(|server| listeners.map(|(name, listener)| (name, server.listener(listener)))).collect();
    let mut all_wrong = String::new();
    for case in cases(&text) {
        all_wrong += &wrong(&case, &addresses, &|_| Rc::clone(&copy)).await;
    }
    if all_wrong.is_empty() { all_wrong } else { format!("{}\n\n{all_wrong}", folder.display()) }
}

/// `WEIR_CASE` selects folders by a part of their names.
#[test]
fn every_case_with_files_has_its_answer() {
    let selected = std::env::var("WEIR_CASE").unwrap_or_default();
    let entries = Path::new(CASES_FOLDER).read_dir().unwrap().map(|entry| entry.unwrap().path());
    let folders: Vec<_> = entries.filter(|path| path.is_dir() && path.to_str().unwrap().contains(&selected)).collect();
    check_each(&folders, async |folder: &PathBuf| wrong_in_folder(folder).await);
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

/// Runs a command. Its message is its error's, without the line that states where the model runs, or else its output.
fn run(command: &mut Command, folder: &Path, variables: &[(&str, &str)]) -> Answer {
    let variables = variables.iter().copied().chain([("WEIR_DATA", "data")]);
    let message = match outcome(command.current_dir(folder).envs(variables)) {
        Ok(output) => output.trim_end().to_owned(),
        Err(error) => {
            let lines = error.lines().filter(|line| !line.is_empty() && !line.starts_with("weir: running "));
            lines.collect::<Vec<_>>().join("\n")
        }
    };
    Answer { message, ..Answer::default() }
}

async fn curl(words: &[String]) -> Answer {
    let (url, options) = words.split_first().unwrap();
    let (address, path) = url.split_once('/').unwrap();
    let mut method = None;
    let mut headers = Vec::new();
    let mut body = Vec::new();
    let mut printed = None;
    let mut encoding = None;
    let mut version = "1.1";
    for option in options.chunks(2) {
        let value = option[1].as_str();
        match option[0].as_str() {
            "-X" => method = Some(value),
            "--http" => version = value,
            "-H" => headers.push(value),
            "-d" => {
                headers.push("content-type: application/x-www-form-urlencoded");
                body = value.into();
            }
            "--json" => body = value.into(),
            "--gzip" => {
                encoding = Some("content-encoding: gzip");
                GzEncoder::new(value.as_bytes(), Compression::fast()).read_to_end(&mut body).unwrap();
            }
            "--deflate" => {
                encoding = Some("content-encoding: deflate");
                ZlibEncoder::new(value.as_bytes(), Compression::fast()).read_to_end(&mut body).unwrap();
            }
            "--raw-deflate" => {
                encoding = Some("content-encoding: deflate");
                DeflateEncoder::new(value.as_bytes(), Compression::fast()).read_to_end(&mut body).unwrap();
            }
            "-w" => printed = value.strip_prefix("%header{").and_then(|name| name.strip_suffix('}')),
            other => panic!("{other}"),
        }
    }
    let host = format!("host: {address}");
    for default in [Some(host.as_str()), encoding].into_iter().flatten() {
        let name = &default[..=default.find(':').unwrap()];
        if !headers.iter().any(|header| header.to_ascii_lowercase().starts_with(name)) {
            headers.push(default);
        }
    }
    let method = method.unwrap_or(if body.is_empty() { "GET" } else { "POST" });
    let address = address.parse().unwrap();
    let path = format!("/{path}");
    let reply = match version {
        "2" => exchange_http2(address, method, &path, &headers, body).await,
        _ => exchange(address, method, &path, &headers, &body).await,
    };
    let json = serde_json::from_str(reply.body()).unwrap_or(Value::Null);
    let error = &json["error"];
    let names = ["type", "code", "param"].iter().filter_map(|name| error[name].as_str());
    let header = printed.map(|name| reply.headers(name).collect::<Vec<_>>().join(" and ")).unwrap_or_default();
    let head: Vec<_> = names.chain(Some(&*header).filter(|header| !header.is_empty())).collect();
    let message = error["message"].as_str().or(error.as_str()).map(str::to_owned);
    let body = || reply.body().lines().filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n");
    let message = message.unwrap_or_else(body);
    assert!(method == "HEAD" || reply.0 < 400 || !message.is_empty(), "{words:?}: no message");
    Answer { head: [&[&*reply.0.to_string()][..], &head].concat().join(" "), message, json }
}

async fn grpcurl(words: &[String], expected: &str) -> Answer {
    static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
        let mut pool = DescriptorPool::decode(weir_proto::FILE_DESCRIPTOR_SET).unwrap();
        pool.decode_file_descriptor_set(weir_proto::INFERENCE_DESCRIPTOR_SET).unwrap();
        pool.decode_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET).unwrap();
        pool
    });
    let [address, path, options @ ..] = words else { panic!("{words:?}") };
    let (service, method) = path.split_once('/').unwrap();
    let service = POOL.get_service_by_name(service).unwrap_or_else(|| panic!("no {service}"));
    let method = service.methods().find(|known| known.name() == method).unwrap_or_else(|| panic!("no {path}"));
    let mut headers = Vec::new();
    let mut body = Vec::new();
    let mut max_time = None;
    for option in options.chunks(2) {
        match (option[0].as_str(), option[1].as_str()) {
            ("-max-time", seconds) => max_time = Some(Duration::from_secs(seconds.parse().unwrap())),
            ("-H", header) => headers.push(header.split_once(": ").unwrap()),
            ("-d", messages) => {
                for message in Deserializer::from_str(messages).into_iter::<Value>() {
                    let message = message.unwrap_or_else(|error| panic!("{messages}: {error}"));
                    body.extend(framed(&DynamicMessage::deserialize(method.input(), message).unwrap().encode_to_vec()));
                }
            }
            (other, _) => panic!("{other}"),
        }
    }
    let responses = |mut body: Vec<u8>| {
        let mut responses = Vec::new();
        while body.len() >= 5 {
            let length = u32::from_be_bytes(body[1..5].try_into().unwrap()) as usize;
            // the rest of a message may follow
            let Some(message) = body.get(5..5 + length) else { break };
            let response = DynamicMessage::decode(method.output(), message).unwrap();
            let options = SerializeOptions::new().use_proto_field_name(true).stringify_64_bit_integers(false);
            let options = options.skip_default_fields(false);
            responses.push(response.serialize_with_options(serde_json::value::Serializer, &options).unwrap());
            body.drain(..5 + length);
        }
        if method.is_server_streaming() { Value::from(responses) } else { responses.pop().unwrap_or_default() }
    };
    let address = address.parse().unwrap();
    let path = format!("/{path}");
    if let Some(time) = max_time {
        let open = |body: &[u8]| Answer::ok("Open", responses(body.to_vec()));
        let is_expected = |body: &[u8]| open(body).is_like(expected);
        return open(&answer_while_open(time, is_expected, address, &path, body, &headers).await);
    }
    let (body, status) = answer_of_call(address, &path, body, &headers).await;
    if status.code() == Code::Ok {
        assert!(method.is_server_streaming() || !body.is_empty(), "{words:?}: no response");
        return Answer::ok("Ok", responses(body));
    }
    let details = status.get_error_details();
    let info = details.error_info();
    let violations = details.bad_request().map(|bad| bad.field_violations.clone()).unwrap_or_default();
    // The service of health is not this program's, and its errors have no details.
    let has_request_id = details.request_info().is_some_and(|info| !info.request_id.is_empty());
    assert!(has_request_id || path.starts_with("/grpc.health."), "{status:?}");
    assert!(status.message().len() < 1100, "{} bytes", status.message().len());
    for violation in &violations {
        assert!(status.message().starts_with(violation.description.trim_end_matches('…')), "{status:?}");
    }
    let fields = violations.iter().map(|violation| violation.field.clone());
    let head: Vec<_> = [format!("{:?}", status.code()), info.map(|info| info.reason.clone()).unwrap_or_default()]
        .into_iter()
        .chain(fields)
        .collect();
    let json = serde_json::to_value(info.map(|info| &info.metadata)).unwrap();
    Answer { head: head.join(" ").trim_end().to_owned(), message: status.message().to_owned(), json }
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

/// Returns true if `found` has what `expected` has. Texts may have `…`, and objects may have further members, except those that `expected`
/// has with "no " before their names.
fn is_like_json(found: &Value, expected: &Value) -> bool {
    match (found, expected) {
        (Value::Object(found), Value::Object(expected)) => {
            expected.iter().all(|(name, expected)| match name.strip_prefix("no ") {
                Some(absent) => !found.contains_key(absent),
                None => found.get(name).is_some_and(|found| is_like_json(found, expected)),
            })
        }
        (Value::Array(found), Value::Array(expected)) => {
            found.len() == expected.len()
                && found.iter().zip(expected).all(|(found, expected)| is_like_json(found, expected))
        }
        (Value::String(found), Value::String(expected)) => is_like(found, expected),
        (Value::Number(found), Value::String(expected)) => expected.strip_prefix('≈').is_some_and(|expected| {
            let (found, expected) = (found.as_f64().unwrap(), expected.parse::<f64>().unwrap());
            (found - expected).abs() <= expected.abs() * 1e-5
        }),
        _ => found == expected,
    }
}

#[test]
fn patterns_and_words() {
    assert!(is_like("abc", "abc") && is_like("abc", "a…c") && is_like("abcabc", "…bc") && is_like("abc", "…"));
    assert!(!is_like("abcd", "abc") && !is_like("abc", "b…") && !is_like("abc", "a…b") && !is_like("abc", "abc…c"));
    let [found, expected] = [json!({ "a": [1, "bc"], "b": 2 }), json!({ "a": [1, "b…"] })];
    assert!(is_like_json(&found, &expected) && !is_like_json(&expected, &found));
    assert!(is_like_json(&found, &json!({ "no c": true })) && !is_like_json(&found, &json!({ "no b": true })));
    assert!(is_like_json(&json!(-2.68933), &json!("≈-2.68934")) && !is_like_json(&json!(-2.68933), &json!("≈-2.6894")));
    assert!(!is_like_json(&json!(-2.68933), &json!(-2.68934)));
    assert_eq!(filled("{one} {\"a\": \"%{b*3}\"} 2*3", &[("one", "x:1".into())]), "x:1 {\"a\": \"bbb\"} 2*3");
    assert_eq!(split("weir score --text 'a  b' c"), ["weir", "score", "--text", "a  b", "c"]);
}
