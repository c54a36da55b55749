//! The rooms' order of dependence, read off the `use crate::` lines: an arrow against the grain fails.

use std::{fs, path::Path};

/// Each room, and the rooms it may use. `error` is everybody's.
const MAY_USE: &[(&str, &[&str])] = &[
    ("cli", &["config", "serve", "engine", "decode", "family", "kernels", "report", "text"]),
    ("config", &["engine", "family"]),
    ("serve", &["config", "engine", "decode", "metrics", "text"]),
    ("metrics", &["decode", "engine"]),
    ("engine", &["decode"]),
    ("report", &["decode", "kernels", "text"]),
    ("family", &["decode", "nn", "text", "kernels"]),
    ("decode", &["kernels", "text"]),
    ("nn", &["kernels"]),
    ("kernels", &[]),
    ("text", &[]),
    ("error", &[]),
];

/// Crates that only some rooms may name.
const CRATES: &[(&str, &[&str])] = &[
    ("axum", &["serve"]),
    ("base64", &["serve"]),
    ("http_body", &["serve"]),
    ("hdrhistogram", &["metrics"]),
    ("hyper", &["serve"]),
    ("hyper_util", &["serve"]),
    ("opentelemetry", &["serve"]),
    ("opentelemetry_otlp", &["serve"]),
    ("opentelemetry_sdk", &["serve"]),
    ("prometheus_client", &["metrics"]),
    ("tonic", &["serve"]),
    ("tonic_health", &["serve"]),
    ("tonic_reflection", &["serve"]),
    ("tonic_types", &["serve"]),
    ("http_body", &["serve"]),
    ("tower", &["serve"]),
    ("tower_http", &["serve"]),
    ("weir_proto", &["serve"]),
    // Of checkpoints; of messages that may be none.
    ("prost", &["family", "serve"]),
    ("tokio_stream", &["serve"]),
    ("lru", &["engine"]),
    ("uuid", &["engine"]),
    // The engine's channels and their wakers; the command line's runtime and signals.
    ("tokio", &["serve", "engine", "cli"]),
    ("clap", &["cli", "main"]),
    ("indicatif", &["cli"]),
    ("tracing_subscriber", &["cli"]),
    ("safetensors", &["cli"]),
    ("zip", &["family"]),
    // Of checkpoints; of API keys; of certificates; of texts' beginnings.
    ("sha2", &["family", "config", "serve", "decode"]),
    ("subtle", &["config"]),
    ("toml", &["config"]),
    ("tokio_rustls", &["config", "serve"]),
    ("webpki", &["serve"]),
    ("rand_chacha", &["decode", "family"]),
    ("unicode_normalization", &["text"]),
    ("uuid", &["engine", "serve"]),
    ("tokenizers", &["text"]),
    ("thiserror", &["error", "family", "text"]),
    ("plotters", &["report"]),
    ("sysinfo", &["report", "serve"]),
    ("memmap2", &["kernels"]),
];

fn sources(folder: &Path, out: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            out.push((path.to_string_lossy().replace('\\', "/"), fs::read_to_string(&path).unwrap()));
        }
    }
}

fn all() -> Vec<(String, String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    assert!(files.len() > 30, "only {} files: looked in the wrong place", files.len());
    let prefix = format!("{}/", root.to_string_lossy());
    let room =
        |path: &str| path.trim_start_matches(&prefix).split('/').next().unwrap().trim_end_matches(".rs").to_string();
    files.into_iter().map(|(path, text)| (room(&path), path, text)).collect()
}

/// The rooms that a file uses: `crate::room` anywhere but in comments, and the heads of `use crate::{…}`.
fn used(text: &str) -> Vec<String> {
    let code: String = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let mut rooms = Vec::new();
    let word = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    for (at, _) in code.match_indices("crate::").filter(|&(at, _)| !code[..at].ends_with('$')) {
        let rest = &code[at + "crate::".len()..];
        let Some(group) = rest.strip_prefix('{') else {
            rooms.push(word(rest));
            continue;
        };
        let (mut depth, mut item) = (0, String::new());
        for c in group.chars() {
            match c {
                '}' if depth == 0 => break,
                ',' if depth == 0 => rooms.push(word(std::mem::take(&mut item).trim())),
                _ => {
                    depth += i32::from(c == '{') - i32::from(c == '}');
                    item.push(c);
                }
            }
        }
        rooms.push(word(item.trim()));
    }
    rooms.retain(|room| !room.is_empty());
    rooms
}

#[test]
fn rooms_depend_on_each_other_one_way() {
    let mut wrong = Vec::new();
    for (room, path, text) in all() {
        // The map, and a program of its own.
        if ["lib", "main"].contains(&room.as_str()) {
            continue;
        }
        let Some((_, allowed)) = MAY_USE.iter().find(|(name, _)| *name == room) else {
            wrong.push(format!("{path}: the room {room:?} is not in the table"));
            continue;
        };
        for target in used(&text) {
            if target != room && target != "error" && !allowed.contains(&target.as_str()) {
                wrong.push(format!("{path}: {room} must not use {target}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// An arrow that nobody needs any more would let the next one in unseen.
#[test]
fn every_arrow_is_used() {
    let files = all();
    for (room, allowed) in MAY_USE {
        let own = files.iter().filter(|(name, ..)| name == room);
        let used: Vec<String> = own.flat_map(|(_, _, text)| used(text)).collect();
        for target in *allowed {
            assert!(used.iter().any(|used| used == target), "{room} does not use {target}");
        }
    }
}

/// Whether a line names a crate, and not only one whose name begins or ends alike.
fn names(line: &str, krate: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    let path = format!("{krate}::");
    line.match_indices(&path).any(|(at, _)| !line[..at].ends_with(part))
        || line.strip_prefix(&format!("use {krate}")).is_some_and(|after| !after.starts_with(part))
}

#[test]
fn crates_stay_in_their_rooms() {
    let mut wrong = Vec::new();
    for (room, path, text) in all() {
        for (name, allowed) in CRATES {
            let named = text.lines().map(str::trim_start).any(|line| !line.starts_with("//") && names(line, name));
            if named && !allowed.contains(&room.as_str()) {
                wrong.push(format!("{path}: {room} must not name {name}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn only_the_kernels_are_unsafe() {
    for (room, path, text) in all() {
        let has = text.lines().any(|line| !line.trim_start().starts_with("//") && line.contains("unsafe "));
        assert!(!has || room == "kernels", "{path} has unsafe code");
    }
}

#[test]
fn the_reader_of_arrows_sees_groups_and_paths() {
    let text = "use crate::{a::{b, c}, d,\n e::f};\n// crate::no\nlet x = crate::g::h();\n$crate::no2";
    assert_eq!(used(text), ["a", "d", "e", "g"]);
}
