//! `weir summarize --long-documents`: parts, rounds and bounds, in this process and with a server.

use super::{parsed, weir};
use crate::{process::Server, support::t5_shortened};
use serde_json::Value;
use std::fs;
use tempfile::TempDir;

const TEXT: &str = "The river runs past the mill. It turns the wheel, and the wheel turns the stone. The stone grinds corn. \
    The miller sells the flour in the town. The town lies on a hill above the river.";

#[test]
fn parts_are_summarized_until_one_is_left() {
    let model = t5_shortened(24);
    let model = model.path().to_str().unwrap();
    let folder = TempDir::new().unwrap();
    let write = |name: &str, text: &str| {
        fs::write(folder.path().join(name), text).unwrap();
        folder.path().join(name).to_str().unwrap().to_owned()
    };
    let document = write("document", TEXT);
    let base = ["summarize", "--model", model, "--max-len", "4", "--min-len", "0", "--beam", "1", "--json", "--file"];
    let in_parts = |file: &str| parsed(&[&base[..], &[file, "--long-documents", "chunk"]].concat());
    let whole = in_parts(&document);
    let parts = whole["parts"].as_array().unwrap();
    let mut covered = 0;
    assert!(parts.iter().all(|part| part["part"].as_u64() > Some(0) && part["round_bytes"].as_u64() > Some(0)));
    let first: Vec<&Value> = parts.iter().filter(|part| part["round"] == 1).collect();
    assert!(first.len() > 2, "{whole}");
    for part in &first {
        let [start, end] = ["byte_start", "byte_end"].map(|key| part[key].as_u64().unwrap() as usize);
        assert!(start <= covered && end > covered, "{start} {end} {covered}");
        covered = end;
        // a part is summarized as a document of its own
        let own = write("part", &TEXT[start..]);
        let alone = parsed(&[&base[..], &[&own, "--cut"]].concat());
        assert_eq!((&part["summary"], &part["document_tokens"]), (&alone["text"], &alone["usage"]["document_tokens"]));
    }
    assert_eq!(covered, TEXT.len());
    // the last round's text is the summaries of the one before
    let rounds = parts.last().unwrap()["round"].as_u64().unwrap();
    let last = parts.iter().filter(|part| part["round"] == rounds).map(|part| part["summary"].as_str().unwrap());
    let joined = write("joined", &last.collect::<Vec<_>>().join("\n"));
    let alone = parsed(&[&base[..], &[&joined]].concat());
    assert_eq!((&whole["text"], &whole["usage"]["cut"]), (&alone["text"], &false.into()));
    // a document that fits has no parts
    let short = write("short", "The river runs.");
    let fits = in_parts(&short);
    assert!(fits.get("parts").is_none() && fits["ids"] == parsed(&[&base[..], &[&short]].concat())["ids"]);
    // the same from a server
    let server =
        Server::start(&["--threads", "1", "--calibration-milliseconds", "0", "--model", &format!("short={model}")]);
    let address = server.address.to_string();
    let call = ["summarize", "--server", &address, "--max-len", "4", "--min-len", "0", "--beam", "1", "--json"];
    let served = parsed(&[&call[..], &["--file", &document, "--long-documents", "chunk"]].concat());
    assert_eq!((&served["text"], &served["parts"]), (&whole["text"], &whole["parts"]));
    // tokens are sums over the parts and the last round
    for key in ["document_tokens", "summary_tokens", "document_bytes", "cut"] {
        assert_eq!(served["usage"][key], whole["usage"][key], "{key}");
    }
    let tokens: u64 = parts.iter().map(|part| part["document_tokens"].as_u64().unwrap()).sum();
    let last = alone["usage"]["document_tokens"].as_u64().unwrap();
    assert_eq!(whole["usage"]["document_tokens"], tokens + last);
    assert_eq!(whole["usage"]["document_bytes"], TEXT.len());
    let (ok, _, message) = weir(&[&call[..9], &["--file", &document, "--long-documents", "chunk"]].concat());
    assert!(ok && message.contains("summarized part 2 of round 1"), "{message}");
    let long = write("long", &"A river. ".repeat(2000));
    let (ok, _, message) = weir(&[&call[..], &["--file", &long, "--long-documents", "chunk"]].concat());
    assert!(!ok && message.contains("found about ") && message.contains("at most 64"), "{message}");
}

#[test]
fn long_documents_are_refused_by_default_and_work_is_bounded() {
    let model = t5_shortened(24);
    let model = model.path().to_str().unwrap();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("document");
    fs::write(&file, TEXT).unwrap();
    let base = ["summarize", "--model", model, "--max-len", "4", "--min-len", "0", "--file", file.to_str().unwrap()];
    for flags in [&[][..], &["--long-documents", "refuse"]] {
        let (ok, _, message) = weir(&[&base[..], flags].concat());
        assert!(!ok && message.contains("at most 23 tokens"), "{message}");
    }
    let (ok, cut, message) = weir(&[&base[..], &["--long-documents", "cut"]].concat());
    assert!(ok && message.contains("only the first 24 tokens"), "{message}");
    assert_eq!(cut, weir(&[&base[..], &["--cut"]].concat()).1);
    let (ok, _, message) = weir(&[&base[..], &["--long-documents", "chunk"]].concat());
    assert!(ok && message.contains("summarized part 2 of round 1"), "{message}");
    for (flag, value) in [("--cut", None), ("--highlights", None), ("--long-documents", Some("all"))] {
        let flags: Vec<&str> = ["--long-documents", "chunk"].into_iter().chain([flag]).chain(value).collect();
        let (ok, _, message) = weir(&[&base[..], &flags].concat());
        assert!(!ok && message.contains("--long-documents"), "{flag}: {message}");
    }
    fs::write(&file, "A river. ".repeat(2000)).unwrap();
    let (ok, _, message) = weir(&[&base[..], &["--long-documents", "chunk"]].concat());
    assert!(!ok && message.contains("found about ") && message.contains("at most 64"), "{message}");
}
