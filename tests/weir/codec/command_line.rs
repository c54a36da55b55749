//! `weir compress` and `weir decompress`.

use crate::{
    cli::{json, weir},
    support::{converted, pyramidion_converted},
};
use std::{
    fs,
    io::Write,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};
use tempfile::tempdir;
use weir::report::sample::Sample;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/compared/hourglass-whitespace-english");

fn path(folder: &Path, name: &str) -> String {
    folder.join(name).to_str().unwrap().to_owned()
}

fn english(count: usize) -> String {
    let vocabulary = weir::family::load::load(Path::new(MODEL), &crate::support::settings()).unwrap();
    let vocabulary = &vocabulary.card().vocabulary;
    vocabulary.decode(&Sample::new(vocabulary).window(0, count))
}

#[test]
fn the_file_has_the_size_that_the_score_predicts() {
    let folder = tempdir().unwrap();
    let text = path(folder.path(), "a.txt");
    let out = path(folder.path(), "a.weir");
    let back = path(folder.path(), "b.txt");
    let english = english(3000);
    fs::write(&text, &english).unwrap();
    let args = ["compress", "--json", "--model", MODEL, "--windowed", "512,384", "--isa", "avx2", &text, &out];
    let args = if weir::kernels::Isa::parse("avx2").is_some() { &args[..] } else { &[&args[..6], &args[8..]].concat() };
    let report = json(args);
    let bytes = fs::metadata(&out).unwrap().len();
    assert_eq!((&report["files"][0]["compressed_bytes"], &report["files"][0]["chars"]), (&bytes.into(), &3000.into()));
    let score = json(&["score", "--json", "--model", MODEL, "--windowed", "512,384", "--file", &text]);
    let predicted = score["bits_per_char"].as_f64().unwrap() * 2999.0 + 27f64.log2();
    // header, one block's front, and end; the coder ends with up to two words
    let around = 63 + 9 + 41;
    let coded = (bytes - around) as f64 * 8.0;
    assert!((predicted..predicted + 64.5).contains(&coded), "{coded} bits, not {predicted}");
    // other rows, other steps
    json(&["decompress", "--json", "--model", MODEL, "--threads", "1", "--rows", "1", "--chunk", "7", &out, &back]);
    assert_eq!(fs::read_to_string(&back).unwrap(), english);
}

#[test]
fn several_files_share_a_batch() {
    let folder = tempdir().unwrap();
    let english = english(1500);
    let texts = [&english[..700], "", &english[700..], "a"];
    let names = ["a", "b", "c", "d"].map(|name| path(folder.path(), name));
    for (name, text) in names.iter().zip(texts) {
        fs::write(name, text).unwrap();
    }
    let model = converted("whitespaces");
    let model = model.to_str().unwrap();
    let packed = path(folder.path(), "packed");
    fs::create_dir(&packed).unwrap();
    let options = ["--model", model, "--rows", "5", "--block", "100", "--json"];
    let all: Vec<&str> = ["compress"].into_iter().chain(options).chain(names.iter().map(String::as_str)).collect();
    let report = json(&[&all[..], &[&packed]].concat());
    assert_eq!(report["files"].as_array().unwrap().len(), 4);
    let inputs = ["a", "b", "c", "d"].map(|name| path(Path::new(&packed), &format!("{name}.weir")));
    let refusal = weir(&[], &[&["decompress", "--model", model][..], &[&inputs[0], &names[0]]].concat()).unwrap_err();
    assert!(refusal.contains("the file exists; --force overwrites it"), "{refusal}");
    for name in &names {
        fs::remove_file(name).unwrap();
    }
    let options = ["decompress", "--model", model, "--rows", "3"];
    let out = path(folder.path(), "");
    let all: Vec<&str> = options.into_iter().chain(inputs.iter().map(String::as_str)).chain([&*out]).collect();
    let printed = weir(&[], &all).unwrap();
    assert!(printed.contains("characters per second"), "{printed}");
    for (name, text) in names.iter().zip(texts) {
        assert_eq!(fs::read_to_string(name).unwrap(), text);
    }
}

#[test]
fn what_cannot_be_compressed_is_refused() {
    let folder = tempdir().unwrap();
    let (text, out) = (path(folder.path(), "a.txt"), path(folder.path(), "out"));
    fs::write(&text, "The end.").unwrap();
    let compress =
        |model: &str, more: &[&str]| weir(&[], &[&["compress", "--model", model][..], more, &[&text, &out]].concat());
    let refusal = compress(MODEL, &[]).unwrap_err();
    assert!(refusal.starts_with(&format!("weir: {text}: ")), "{refusal}");
    assert!(refusal.contains("expected symbols of the model's vocabulary, found 'T' at character 0"), "{refusal}");
    assert!(refusal.contains("--normalise"), "{refusal}");
    assert!(!Path::new(&out).exists());
    let summarizer = pyramidion_converted("pyramidion");
    let refusal = compress(summarizer.to_str().unwrap(), &[]).unwrap_err();
    assert!(refusal.contains("--model: expected one that"), "{refusal}");
    assert!(refusal.contains("(for `weir compress`)"), "{refusal}");
    compress(MODEL, &["--normalise"]).unwrap();
    let back = path(folder.path(), "back");
    weir(&[], &["decompress", "--model", MODEL, &out, &back]).unwrap();
    assert_eq!(fs::read_to_string(&back).unwrap(), "the end ");
    // another checkpoint, and another dtype
    let decompress = |model: &str, more: &[&str]| {
        weir(&[], &[&["decompress", "--force", "--model", model][..], more, &[&out, &back]].concat()).unwrap_err()
    };
    let refusal = decompress(converted("whitespaces").to_str().unwrap(), &[]);
    assert!(refusal.contains("compressed with the checkpoint with sha256"), "{refusal}");
    let refusal = decompress(MODEL, &["--dtype", "bf16"]);
    assert!(refusal.contains("compressed with the dtype f32"), "{refusal}");
    // longer windows than the model's sequences
    compress(MODEL, &["--normalise", "--force", "--max-symbols", "600", "--windowed", "600,100"]).unwrap();
    let refusal = decompress(MODEL, &["--max-symbols", "599"]);
    assert!(
        refusal.contains("windows of 600 symbols") && refusal.contains("at most 599, which --max-symbols"),
        "{refusal}"
    );
    // nothing is left of a file that was refused, and what was there before stays
    assert_eq!(fs::read_to_string(&back).unwrap(), "the end ");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}

/// Starts a command that reads its standard input, which stays open.
fn reading_a_pipe(command: &str, model: &Path, out: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_weir"))
        .env_clear()
        .args([command, "--threads", "1", "--model", model.to_str().unwrap(), "/dev/stdin", out])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[cfg(unix)]
#[test]
fn a_pipe_is_compressed_and_decompressed() {
    let folder = tempdir().unwrap();
    let model = converted("whitespaces");
    let text = english(300).into_bytes();
    let mut input = text.clone();
    for (command, name) in [("compress", "a.weir"), ("decompress", "a.txt")] {
        let out = path(folder.path(), name);
        let mut child = reading_a_pipe(command, &model, &out);
        child.stdin.take().unwrap().write_all(&input).unwrap();
        assert!(child.wait().unwrap().success());
        input = fs::read(out).unwrap();
    }
    assert_eq!(input, text);
}

/// The file appears while the command reads its input.
#[cfg(unix)]
#[test]
fn a_file_that_appears_is_kept() {
    let folder = tempdir().unwrap();
    let out = path(folder.path(), "a.weir");
    let mut child = reading_a_pipe("compress", &converted("whitespaces"), &out);
    while fs::read_dir(folder.path()).unwrap().count() == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    fs::write(&out, "kept").unwrap();
    child.stdin.take().unwrap().write_all(b"a text").unwrap();
    assert!(!child.wait().unwrap().success());
    assert_eq!(fs::read_to_string(&out).unwrap(), "kept");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no partial file is left");
}

#[cfg(unix)]
#[test]
fn a_signal_leaves_no_partial_file() {
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let folder = tempdir().unwrap();
        let files = || fs::read_dir(folder.path()).unwrap().count();
        let mut child = reading_a_pipe("compress", &converted("whitespaces"), &path(folder.path(), "a.weir"));
        // `wait` would close it, and the command could complete its file before the signal ends it.
        let _input = child.stdin.take();
        while files() == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(
            Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status().unwrap().success()
        );
        assert_eq!(child.wait().unwrap().code(), Some(code));
        assert_eq!(files(), 0, "SIG{signal}");
    }
}
