//! Options that would measure something else than intended are rejected before any request.

use super::program::{failure, json, run, script, serve};
use std::fs;
use weir_loadtest::stub::Script;

#[test]
fn contradicting_options_are_rejected() {
    let served = serve(vec![script("a"), script("b")]);
    let folder = tempfile::tempdir().unwrap();
    let blank = folder.path().join("blank.txt");
    fs::write(&blank, " \n\t\n").unwrap();
    let blank = blank.to_str().unwrap();
    let address = served.address.as_str();
    let documents = format!("prompts={blank},prompt-chars=documents");
    for (arguments, expected) in [
        (&["run", "127.0.0.1:99999"][..], "ADDRESS: expected host:port or a URL with a port"),
        (&["compare", "127.0.0.1"], "such as 127.0.0.1:50051 or [::1]:50051, found 127.0.0.1"),
        (
            &["run", address, "--model", "a", "--workload", "name=x", "--workload", "name=x"],
            "--workload name: expected a name of its own",
        ),
        (
            &["run", address, "--model", "a", "--prefixes", "3"],
            "--prefixes: expected 1 unless --shared-prefix gives the length of a prefix, found 3",
        ),
        (
            &["run", address, "--model", "a", "--workload", "prefixes=3"],
            "prefixes: expected no value unless shared-prefix gives the length of a prefix",
        ),
        (&["run", address, "--model", "a", "--prompts", blank], "a blank file"),
        (&["run", address, "--model", "a", "--workload", &documents], "a blank file"),
        (
            &["run", address, "--model", "a", "--beam", "2"],
            "--beam: expected no value without a workload that requests summaries, from a model that writes them, found 2",
        ),
        (
            &["report", address, "--beam", "2"],
            "--beam: expected no value without a workload that requests summaries, from a model that writes them, found 2",
        ),
        (&["run", address, "--model", "a", "--workload", "beam=2"], "beam: expected no value without kind=summarize"),
        (&["run", address, "--model", "a", "--workload", "rate=5"], "rate: expected no value without kind=edit"),
        (
            &["run", address, "--model", "a", "--workload", "kind=edit,until=page"],
            "one of word, line, segment, max_chars",
        ),
        (
            &["run", address, "--model", "a", "--workload", "kind=edit,count=17"],
            "--workload count: expected 1 to 16, found 17",
        ),
        (
            &["run", address, "--model", "a", "--workload", "kind=edit,rate=0"],
            "--workload rate: expected 0.1 to 1000 keystrokes/s, found 0",
        ),
        (
            &["run", address, "--model", "a", "--workload", "kind=edit,temperature=0.5"],
            "temperature: expected no value (kind=edit asks for the most probable completions",
        ),
        (
            &["run", address, "--model", "a", "--temperature", "0.5", "--workload", "kind=edit"],
            "--temperature: expected no value (kind=edit",
        ),
        (
            &["run", address, "--model", "a", "--workload", "kind=edit,prompt-chars=lines"],
            "--prompt-chars: expected a length for kind=edit: the characters before the cursor, found lines",
        ),
        (
            &["run", address, "--model", "a", "--workload", "kind=edit,output-chars=700"],
            "--timeout: expected more than 70 s for a session of 700 keystrokes, found 60s",
        ),
        (
            &["sweep", address, "--model", "a", "--from", "5", "--to", "2"],
            "--from: expected at most 2 (the value of --to), found 5",
        ),
        (&["compare", address, "--models", "a,c"], "--models: expected one of a, b, found c"),
    ] {
        let stderr = failure(arguments);
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
    assert!(served.stub.sent().is_empty(), "no request was sent");
}

/// Conditions and headings name all models that workloads use.
#[test]
fn a_mix_of_models_names_them_all() {
    let served = serve(vec![script("writer"), Script { summarizes: true, ..script("reader") }, script("idle")]);
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html").to_str().unwrap().to_owned();
    let arguments = ["--requests", "20", "--warm-up", "0", "--output-chars", "4", "--json", "-", "--html", &page];
    let mix = ["--model", "writer", "--workload", "name=t", "--workload", "name=s,kind=summarize,model=reader"];
    let report = json(&run(&[&["run", &served.address][..], &mix, &arguments].concat()));
    assert_eq!(report[0]["parts"][0]["model"], "writer, reader");
    let models = report[0]["conditions"]["models"].as_array().unwrap();
    assert_eq!(models.iter().map(|model| model["name"].as_str().unwrap()).collect::<Vec<_>>(), ["writer", "reader"]);
    let page = fs::read_to_string(page).unwrap();
    let headings = [">writer, reader</h2>", "<li>writer, reader, closed loop"];
    for expected in headings.into_iter().chain(["answers of 4 tokens, of reader"]) {
        assert!(page.contains(expected), "{expected}");
    }
}
