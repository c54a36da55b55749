//! `weir generate`, `score`, `segment` and `summarize` with `--server`: the same output as in this process, keys, TLS and errors.
#![cfg(unix)]

use super::{
    certificates::Certificates,
    process::Server,
    summaries::write_random_model,
    support::{converted, hnet_converted, lslm_converted},
};
use serde_json::Value;
use std::{
    fs,
    net::TcpListener,
    path::Path,
    process::{Command, Output, Stdio},
    sync::{Arc, Mutex, PoisonError, Weak},
};
use tempfile::TempDir;

mod keys;

/// A server of four models, and the folders of their checkpoints.
struct Served {
    server: Server,
    http: String,
    folder: TempDir,
}

/// Returns the server, which the tests that run at the same time share. It is killed when the last of them ends.
fn served() -> Arc<Served> {
    static SERVED: Mutex<Weak<Served>> = Mutex::new(Weak::new());
    let mut running = SERVED.lock().unwrap_or_else(PoisonError::into_inner);
    running.upgrade().unwrap_or_else(|| {
        let started = Arc::new(Served::start());
        *running = Arc::downgrade(&started);
        started
    })
}

impl Served {
    fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let summarizer = write_random_model(folder.path());
        let bytes = lslm_converted("byte_vocab");
        let models = [converted("whitespaces"), bytes, summarizer.into(), hnet_converted("two_stage")];
        let mut flags = vec!["--http-listen", "127.0.0.1:0", "--threads", "1", "--calibration-milliseconds", "0"];
        for model in &models {
            flags.extend(["--model", model.to_str().unwrap()]);
        }
        let server = Server::start(&flags);
        let http = server.program.listener("playground");
        Self { server, http, folder }
    }
}

fn weir(environment: &[(&str, &str)], args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(args).env_clear().envs(environment.iter().copied()).stdin(Stdio::null()).output().unwrap()
}

/// Returns stdout of a command that succeeds.
#[track_caller]
fn stdout(args: &[&str]) -> String {
    let output = weir(&[], args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns stderr of a command that fails.
#[track_caller]
fn stderr(environment: &[(&str, &str)], args: &[&str]) -> String {
    let output = weir(environment, args);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && output.stdout.is_empty(), "{args:?}: {errors}");
    errors
}

/// Runs a command with the checkpoint in its own process, then with the server's model. Returns both outputs.
#[track_caller]
fn both(folder: &Path, args: &[&str]) -> [String; 2] {
    let serving = served();
    let name = folder.file_name().unwrap().to_str().unwrap();
    let address = serving.server.address.to_string();
    let local = ["--model", folder.to_str().unwrap(), "--threads", "1"];
    let served = ["--server", &address, "--model", name];
    [stdout(&[args, &local].concat()), stdout(&[args, &served].concat())]
}

/// Compares JSON: the same keys in the same order, the same values, numbers within `tolerance`. Keys named in `omitted` may be
/// absent on the right, and have other values. Times may differ.
#[track_caller]
fn assert_alike(local: &Value, served: &Value, omitted: &[&str], path: &str) {
    match (local, served) {
        (Value::Object(local), Value::Object(served)) => {
            let keys = local.keys().filter(|key| !omitted.contains(&key.as_str()) || served.contains_key(*key));
            assert_eq!(keys.collect::<Vec<_>>(), served.keys().collect::<Vec<_>>(), "{path}");
            for (key, value) in served.iter().filter(|(key, _)| !omitted.contains(&key.as_str())) {
                assert_alike(&local[key], value, omitted, &format!("{path}.{key}"));
            }
        }
        (Value::Array(local), Value::Array(served)) => {
            assert_eq!(local.len(), served.len(), "{path}");
            for (index, (local, served)) in local.iter().zip(served).enumerate() {
                assert_alike(local, served, omitted, &format!("{path}[{index}]"));
            }
        }
        _ if path.contains(".timing") => assert_eq!(local.is_number(), served.is_number(), "{path}"),
        (Value::Number(local), Value::Number(served)) => {
            let [local, served] = [local, served].map(|number| number.as_f64().unwrap());
            assert!((local - served).abs() <= 1e-4 * local.abs().max(1.0), "{path}: {local} {served}");
        }
        _ => assert_eq!(local, served, "{path}"),
    }
}

#[track_caller]
fn assert_same_json(folder: &Path, args: &[&str], omitted: &[&str]) -> Value {
    let [local, served] = both(folder, &[args, &["--json"]].concat()).map(|text| serde_json::from_str(&text).unwrap());
    assert_alike(&local, &served, omitted, "");
    served
}

#[test]
fn generated_text_is_that_of_this_process() {
    let _serving = served();
    let args = ["generate", "--prompt", "a word or two", "--max-tokens", "30", "--seed", "7", "--temperature", "0.8"];
    let [local, served] = both(&converted("whitespaces"), &args);
    assert_eq!(local, served);
    assert_eq!(served.chars().count(), 31, "{served}");
    // The server may have the prompt in its cache.
    let json = assert_same_json(&converted("whitespaces"), &args, &["cached_chars"]);
    assert_eq!((&json["reason"], json["ids"].as_array().unwrap().len()), (&"max_chars".into(), 30));
    let stopped = [&args[..], &["--stop", " ", "--max-segments", "1"]].concat();
    assert_same_json(&converted("whitespaces"), &stopped, &["cached_chars"]);
    // A model with special symbols also lists the ends of segments.
    let json = assert_same_json(&lslm_converted("byte_vocab"), &args, &["cached_chars"]);
    assert!(json["events"].as_array().unwrap().len() >= json["ids"].as_array().unwrap().len());
}

#[test]
fn scores_are_those_of_this_process() {
    let _serving = served();
    let text = ["score", "--text", "the river runs past the mill"];
    for folder in [converted("whitespaces"), lslm_converted("byte_vocab")] {
        let [local, served] = both(&folder, &text);
        // The API has no distributions, so it lacks one figure of models with special symbols.
        let is_special = folder.ends_with("lslm-byte_vocab");
        assert_eq!(local == served, !is_special, "{local}{served}");
        assert_eq!(local.lines().next(), served.lines().next());
        assert_eq!(served.contains("text alone unknown"), is_special);
        let omitted: &[&str] = if is_special { &["bpc_renormalised"] } else { &[] };
        assert_same_json(&folder, &text, omitted);
    }
    let windows = [&text[..], &["--windowed", "12,5"]].concat();
    let [local, served] =
        both(&converted("whitespaces"), &windows).map(|line| line.split(", shortening").next().unwrap().to_owned());
    assert_eq!(local, served);
    // The server counts each boundary once, although windows overlap.
    let json = assert_same_json(&converted("whitespaces"), &windows, &["shortening_factor"]);
    assert!(json["shortening_factor"].is_number());
    let lengths = [&text[..], &["--lengths", "5,20"]].concat();
    let [local, served] = both(&converted("whitespaces"), &lengths);
    assert_eq!(local, served);
    assert_same_json(&converted("whitespaces"), &lengths, &[]);
}

#[test]
fn notes_on_normalised_text_are_those_of_this_process() {
    let serving = served();
    let address = serving.server.address.to_string();
    let folder = converted("whitespaces");
    let name = folder.file_name().unwrap().to_str().unwrap();
    let local = ["--model", folder.to_str().unwrap(), "--threads", "1"];
    let served = ["--server", &address, "--model", name];
    let notes = |args: &[&str], source: &[&str]| {
        let errors = String::from_utf8(weir(&[], &[args, source].concat()).stderr).unwrap();
        errors.lines().filter(|line| line.starts_with("weir: note: ")).collect::<Vec<_>>().join("\n")
    };
    let texts = [("A, b", "3 of 4 characters"), ("A", "1 of 1 character;"), ("a b", "")];
    for (text, changed) in texts {
        let generate = ["generate", "--max-chars", "3", "--prompt", text];
        let score = ["score", "--text", text];
        let segment = ["segment", "--text", text];
        for args in [&generate[..], &score, &segment] {
            let notes = [notes(args, &local), notes(args, &served)];
            assert_eq!(notes[0], notes[1], "{args:?}");
            assert!(notes[0].contains(changed) && notes[0].is_empty() == changed.is_empty(), "{args:?}: {notes:?}");
        }
    }
    let json = assert_same_json(&folder, &["segment", "--text", "A, b"], &[]);
    assert_eq!(json["normalized_chars"], 3);
}

#[test]
fn segments_are_those_of_this_process() {
    let _serving = served();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("text");
    fs::write(&file, "a weir pools\na stream").unwrap();
    let args = ["segment", "--file", file.to_str().unwrap()];
    let [local, served] = both(&converted("whitespaces"), &args);
    assert_eq!(local, served);
    assert!(served.contains("4 closed segments"), "{served}");
    assert_same_json(&converted("whitespaces"), &args, &[]);
    // Colours, if asked for, in either case.
    let [local, served] = both(&converted("whitespaces"), &[&args[..], &["--color", "always"]].concat());
    assert!(local == served && served.contains("\u{1b}[36m"), "{served}");
    // Offsets are those of the text: a start mark has no place in it.
    let text = "été: where chunks begin";
    for (folder, has_mark) in [(converted("whitespaces"), false), (hnet_converted("two_stage"), true)] {
        let text = if has_mark { text } else { &text["été: ".len()..] };
        let json = assert_same_json(&folder, &["segment", "--text", text], &[]);
        assert_eq!(json["symbols"], text.len() + usize::from(has_mark), "{json}");
        let mut end = 0;
        for segment in json["segments"].as_array().unwrap() {
            assert_eq!(segment["start"], end, "{json}");
            end = segment["end"].as_u64().unwrap();
        }
        assert_eq!(end, text.len() as u64, "{json}");
    }
}

#[test]
fn summaries_are_those_of_this_process() {
    let serving = served();
    let folder = serving.folder.path();
    let model = folder.join("model");
    let write = |name: &str, text: &str| {
        fs::write(folder.join(name), text).unwrap();
        folder.join(name).to_str().unwrap().to_owned()
    };
    let document = write("document", "the café is pooling, the rest is going.");
    let reference = write("reference", "the rest");
    let args = ["summarize", "--file", &document, "--max-tokens", "9", "--min-len", "5", "--reference", &reference];
    let [local, served] = both(&model, &[&args[..], &["--highlights"]].concat());
    assert!(local == served && served.contains("tokens kept") && served.contains("ROUGE-1"), "{served}");
    // The API has the kept tokens as spans of the text.
    let json = assert_same_json(&model, &args, &["kept"]);
    assert!(!json["poolings"][0]["spans"].as_array().unwrap().is_empty(), "{json}");
    // A document that is too long is refused, or cut, before it is read to its end.
    let long = write("long", &"the rest is ".repeat(200_000));
    let address = serving.server.address.to_string();
    let args = ["summarize", "--server", &address, "--model", "model", "--max-len", "5", "--min-len", "1"];
    let refused = stderr(&[], &[&args[..], &["--file", &long]].concat());
    assert!(refused.contains("expected at most 63 tokens, found more"), "{refused}");
    let cut: Value =
        serde_json::from_str(&stdout(&[&args[..], &["--file", &long, "--cut", "--json"]].concat())).unwrap();
    assert_eq!((&cut["usage"]["cut"], &cut["usage"]["document_tokens"]), (&true.into(), &64.into()));
    // The beginning of a file that is no text is never summarized as the whole.
    fs::write(folder.join("binary"), b"the rest\xff").unwrap();
    let binary = folder.join("binary");
    let refused = stderr(&[], &[&args[..], &["--file", binary.to_str().unwrap()]].concat());
    assert!(refused.contains("binary: expected UTF-8, found other bytes at position 8"), "{refused}");
    let line =
        |source: &str| format!("{{\"source\": {source:?}, \"document\": \"the one\", \"summary\": \"the rest\"}}\n");
    let lines = write("lines.jsonl", &[line("b"), line("a"), line("b")].concat());
    let table: Value = serde_json::from_str(&stdout(&[&args[..], &["--table", &lines, "--json"]].concat())).unwrap();
    assert_eq!((&table[1]["source"], &table[1]["documents"]), (&"b".into(), &2.into()), "{table}");
}

#[test]
fn errors_name_the_flag_and_the_server() {
    let serving = served();
    let address = serving.server.address.to_string();
    let base = ["generate", "--server", &address, "--model", "whitespaces", "--prompt", "a"];
    let long = stderr(&[], &[&base[..], &["--max-chars", "999999"]].concat());
    assert!(long.starts_with(&format!("weir: {address}: --max-chars: expected 0 to ")), "{long}");
    let several = stderr(&[], &["generate", "--server", &address, "--prompt", "a"]);
    assert!(several.contains("whitespaces") && several.contains("lslm-byte_vocab"), "{several}");
    let unknown = stderr(&[], &["segment", "--server", &address, "--model", "nobody", "--text", "a"]);
    assert!(unknown.starts_with(&format!("weir: {address}: --model: expected one of ")), "{unknown}");
    let kind = stderr(&[], &["generate", "--server", &address, "--model", "model", "--prompt", "a"]);
    assert!(kind.contains("--model: expected one that continues a prompt (for `weir generate`), found "), "{kind}");
    // An environment variable names the server; a flag of a model in this process is then refused, by name.
    let environment = [("WEIR_SERVER", &*address), ("WEIR_MODEL", "whitespaces"), ("WEIR_DTYPE", "bf16")];
    let found = weir(&environment, &["segment", "--text", "a b"]);
    assert!(found.status.success() && found.stderr.is_empty(), "{found:?}");
    let refused = stderr(&environment, &["segment", "--text", "a b", "--threads", "2"]);
    assert!(refused.contains("--threads: expected no value next to WEIR_SERVER, found one"), "{refused}");
    let address_by_variable = stderr(&[("WEIR_SERVER", "localhost")], &["segment", "--text", "a b"]);
    assert!(address_by_variable.starts_with("weir: --server (from WEIR_SERVER): expected"), "{address_by_variable}");
    let segments = ["generate", "--server", &address, "--model", "whitespaces", "--prompt", "a"];
    for value in ["x", "999999"] {
        let by_variable = stderr(&[("WEIR_MAX_CHARS", value)], &segments);
        assert!(by_variable.contains("--max-chars (from WEIR_MAX_CHARS): expected"), "{by_variable}");
    }
    let empty = stderr(&environment, &["segment", "--server", "", "--text", "a b"]);
    assert!(empty.starts_with("weir: --server: expected host:port or a URL"), "{empty}");
    // An empty variable runs the model in this process.
    let folder = converted("whitespaces");
    let args = ["segment", "--model", folder.to_str().unwrap(), "--text", "a b"];
    let local = weir(&[("WEIR_SERVER", "")], &args);
    let notice = format!("weir: running {} in this process; use --server to call a server\n", folder.display());
    assert_eq!((local.status.success(), String::from_utf8(local.stderr).unwrap()), (true, notice));
    // Neither a server nor a model: the embedded model.
    let embedded = weir(&[], &["segment", "--text", "a"]);
    let notice = "weir: running embedded:hourglass-english in this process; use --server to call a server\n";
    assert_eq!((embedded.status.success(), String::from_utf8(embedded.stderr).unwrap()), (true, notice.to_owned()));
}

/// A name may be left out if exactly one model can answer the call, also where the command asks for the model's description.
#[test]
fn one_text_model_next_to_a_summarizer_needs_no_name() {
    let folder = TempDir::new().unwrap();
    let summarizer = write_random_model(folder.path());
    let text = converted("whitespaces");
    let flags = ["--threads", "1", "--calibration-milliseconds", "0", "--model", text.to_str().unwrap()];
    let server = Server::start(&[&flags[..], &["--model", &summarizer]].concat());
    let address = server.address.to_string();
    let output = |args: &[&str]| {
        let output = weir(&[], &[args, &["--server", &address]].concat());
        let notes = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{args:?}: {notes}");
        (String::from_utf8(output.stdout).unwrap(), notes)
    };
    let (score, note) = output(&["score", "--json", "--text", "The river"]);
    assert!(score.contains("bits_per_char"));
    assert_eq!(
        note,
        "weir: note: --text: the normaliser text8 changed 1 of 9 characters; the model reads \"the river\"\n"
    );
    for how in [["--windowed", "4,2"], ["--lengths", "4"]] {
        output(&[&["score", "--text", "the river"][..], &how].concat());
    }
    let generate = ["generate", "--prompt", "The river", "--max-tokens", "3"];
    let (generated, note) = output(&[&generate[..], &["--json"]].concat());
    assert!(generated.contains("\"ids\""), "{generated}");
    assert_eq!(
        note,
        "weir: note: --prompt: the normaliser text8 changed 1 of 9 characters; the model reads \"the river\"\n"
    );
    output(&generate);
    output(&["segment", "--text", "the river"]);
}

#[test]
fn an_unreachable_server_is_diagnosed() {
    let serving = served();
    let call = |address: &str| stderr(&[], &["segment", "--server", address, "--text", "a b"]);
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let nobody = call(&free);
    assert!(nobody.starts_with(&format!("weir: {free}: no server listens there")), "{nobody}");
    let http = call(&serving.http);
    assert!(http.contains(&serving.http) && http.contains("give the gRPC address (weir serve --listen)"), "{http}");
    let portless = call("localhost");
    assert!(portless.contains("expected host:port or a URL"), "{portless}");
    let certificates = Certificates::new();
    let ca = certificates.path("ca.pem");
    let plain = format!("https://{}", serving.server.address);
    let encrypted = stderr(&[], &["segment", "--server", &plain, "--tls-ca", ca.to_str().unwrap(), "--text", "a b"]);
    assert!(encrypted.contains("leave out https://"), "{encrypted}");
    assert!(call(&plain).contains("--tls-ca: expected a file"));
}

#[test]
fn completions_and_manual_pages_name_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = stdout(&["completions", shell]);
        assert!(script.contains("summarize") && script.contains("api-key-file"), "{shell}");
    }
    let folder = TempDir::new().unwrap();
    let pages = folder.path().join("new/man1");
    stdout(&["man", pages.to_str().unwrap()]);
    let page = |name: &str| fs::read_to_string(pages.join(name)).unwrap();
    assert!(page("weir.1").contains("weir\\-generate(1)") && page("weir-serve.1").contains("max\\-message\\-bytes"));
    // Flags have their environment variables and their other names.
    let generate = page("weir-generate.1");
    assert!(generate.contains("WEIR_MAX_CHARS") && generate.contains("Other names: \\-\\-max\\-tokens."), "{generate}");
    assert!(page("weir-serve.1").contains("WEIR_MAX_MESSAGE_BYTES"));
    let help = stdout(&["serve", "--help"]);
    for heading in ["Models:", "Scheduling and memory:", "Addresses and limits:", "Operations:", "Access:", "Log:"] {
        assert!(help.lines().any(|line| line == heading), "{heading}\n{help}");
    }
}

#[test]
fn colors_of_help_follow_the_flag_and_the_environment() {
    let has_color = |environment: &[(&str, &str)], args: &[&str]| {
        String::from_utf8(weir(environment, args).stdout).unwrap().contains('\u{1b}')
    };
    assert!(has_color(&[], &["segment", "--help", "--color", "always"]));
    assert!(has_color(&[("WEIR_COLOR", "always")], &["segment", "--help"]));
    assert!(!has_color(&[("WEIR_COLOR", "always")], &["segment", "--help", "--color=never"]));
    assert!(!has_color(&[], &["segment", "--help"]));
}
