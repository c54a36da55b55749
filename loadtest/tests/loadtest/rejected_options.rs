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
        (&["run", "127.0.0.1:99999"][..], "ADDRESS: 127.0.0.1:99999 must be host:port"),
        (&["compare", "127.0.0.1"], "ADDRESS: 127.0.0.1 must be host:port"),
        (
            &["run", address, "--model", "a", "--workload", "name=x", "--workload", "name=x"],
            "--workload name: x must be",
        ),
        (&["run", address, "--model", "a", "--prefixes", "3"], "--prefixes: 3 must be used with --shared-prefix"),
        (&["run", address, "--model", "a", "--workload", "prefixes=3"], "prefixes needs shared-prefix"),
        (&["run", address, "--model", "a", "--prompts", blank], "a blank file"),
        (&["run", address, "--model", "a", "--workload", &documents], "a blank file"),
        (
            &["run", address, "--model", "a", "--beam", "2"],
            "--beam: 2 must be used with a workload that requests summaries",
        ),
        (&["report", address, "--beam", "2"], "--beam: 2 must be used with a workload that requests summaries"),
        (&["run", address, "--model", "a", "--workload", "beam=2"], "beam applies to summaries only"),
        (&["run", address, "--model", "a", "--workload", "rate=5"], "rate applies to edited documents only"),
        (
            &["run", address, "--model", "a", "--workload", "kind=edit,until=page"],
            "one of word, line, segment, max_chars",
        ),
        (&["run", address, "--model", "a", "--workload", "kind=edit,count=17"], "--workload count: 17 must be"),
        (
            &["run", address, "--model", "a", "--workload", "kind=edit,rate=0"],
            "--workload rate: 0 must be from 0.1 to 1000 keystrokes/s",
        ),
        (
            &["run", address, "--model", "a", "--workload", "kind=edit,temperature=0.5"],
            "temperature must be left out: kind=edit asks for the most probable completions",
        ),
        (
            &["run", address, "--model", "a", "--temperature", "0.5", "--workload", "kind=edit"],
            "--temperature: 0.5 must be left out: kind=edit",
        ),
        (
            &["run", address, "--model", "a", "--workload", "kind=edit,prompt-chars=lines"],
            "--prompt-chars: lines must be a length",
        ),
        (
            &["run", address, "--model", "a", "--workload", "kind=edit,output-chars=700"],
            "expected --timeout above 70 s for a session of 700 keystrokes, found 60s",
        ),
        (&["sweep", address, "--model", "a", "--from", "5", "--to", "2"], "--from: 5 must be at most --to, which is 2"),
        (&["compare", address, "--models", "a,c"], "--models: c must be one of a, b"),
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
