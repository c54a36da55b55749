//! Options that would measure something else than intended are rejected before any request.

use super::{
    stub::Script,
    support::{failure, json, run, script, serve},
};
use crate::*;

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
        (&["run", "127.0.0.1:99999"][..], "ADDRESS: expected a port from 1 to 65535, found \"127.0.0.1:99999\""),
        (&["run", ""], "ADDRESS: expected host:port or a URL, such as 127.0.0.1:50051, found \"\""),
        (
            &["compare", "127.0.0.1"],
            "ADDRESS: expected host:port or a URL, such as 127.0.0.1:50051, found \"127.0.0.1\"",
        ),
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
            "--prompt-chars: expected a length for kind=edit: the characters before the cursor, found \"lines\"",
        ),
        (
            &["run", address, "--model", "a", "--workload", "kind=edit,output-chars=700"],
            "--timeout: expected more than 70 s for a session of 700 keystrokes, found 60s",
        ),
        (
            &["sweep", address, "--model", "a", "--from", "5", "--to", "2"],
            "--from: expected at most 2 (the value of --to), found 5",
        ),
        (&["compare", address, "--models", "a,c"], "--models: expected one of a, b, found \"c\""),
    ] {
        let stderr = failure(arguments);
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
    assert!(served.stub.sent().is_empty(), "no request was sent");
}

#[test]
fn addresses_numbers_and_commands_that_cannot_work_are_rejected() {
    let served = serve(vec![script("a"), script("b")]);
    let address = served.address.as_str();
    for (arguments, expected) in [
        (&["run", "http://"][..], "ADDRESS: expected host:port or a URL, such as 127.0.0.1:50051, found \"http://\""),
        (&["run", "ftp://host:1"], "ADDRESS: expected host:port, or a URL that begins with http:// or https://"),
        (&["run", "http://127.0.0.1:1/v1"], "ADDRESS: expected an address without a path, because gRPC calls have"),
        (&["run", ":1"], "127.0.0.1:1: no server listens there"),
        (&["run", address, "--concurrency", "-1"], "invalid value '-1' for '--concurrency <"),
        (&["run", address, "--rate", "-1"], "--rate: expected 0.001 to 1000000 requests/s, found -1"),
        (&["run", address, "--threads", "-1"], "invalid value '-1' for '--threads <"),
        (&["run", address, "--warm-up", "-1s"], "for '--warm-up <TIME>': expected a number with its unit"),
        (&["sweep", address, "--rates", "-1,2"], "--rates: expected 0.001 to 1000000 requests/s, found -1"),
        (&["report", address, "--concurrency", "-1,2"], "invalid value '-1' for '--concurrency <"),
        (&["compare", address, "--rounds", "-1"], "invalid value '-1' for '--rounds <"),
        (&["run", address, "--concurrency", "1", "--rate", "2"], "cannot be used with '--rate"),
        (
            &["run", address, "--requests", "1", "--requests", "2"],
            "the argument '--requests <N>' cannot be used multiple times",
        ),
        (&["nosuch"], "unrecognized subcommand 'nosuch'"),
        (&["run", address, "--model", "c"], "--model: expected one of a, b, found \"c\""),
    ] {
        let stderr = failure(arguments);
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
    assert!(served.stub.sent().is_empty(), "no request was sent");
}

/// Every numeric flag takes a negative number as its value, so that the error can name the limit.
#[test]
fn negative_numbers_are_values_of_their_flags() {
    let served = serve(vec![script("a")]);
    let flags = "connections threads shared-prefix prefixes temperature chunk-chars beam seed requests max-in-flight cancel-share \
                 burst prompt-chars output-chars duration timeout wait";
    for flag in flags.split_whitespace() {
        let stderr = failure(&["run", &served.address, &format!("--{flag}"), "-1"]);
        let named = [format!("--{flag}: expected "), format!("invalid value '-1' for '--{flag} <")];
        assert!(named.iter().any(|named| stderr.contains(named)), "{stderr}");
    }
}

#[test]
fn refusals_come_before_the_first_step() {
    let served = serve(vec![script("a")]);
    for (command, options, expected) in [
        ("run", &["--cancel-share", "2"][..], "--cancel-share: expected 0 to 1, found 2"),
        ("sweep", &["--cancel-share", "2"], "--cancel-share: expected 0 to 1, found 2"),
        ("report", &["--cancel-share", "NaN"], "--cancel-share: expected 0 to 1, found NaN"),
        (
            "compare",
            &[],
            "--models: expected 2 to 8 models, found 1; to compare, serve another model as well, for example with `weir serve \
             MODEL_A MODEL_B`",
        ),
    ] {
        let stderr = failure(&[&[command, &served.address][..], options].concat());
        assert_eq!(stderr, format!("weir-loadtest: {expected}\n"));
    }
}

#[test]
fn files_that_are_no_reports_are_named_with_the_place_of_the_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let shown = file.to_str().unwrap();
    for (text, expected) in [
        ("", "expected a report that --json wrote, found an empty file"),
        ("{\"a\":\n ", "expected valid JSON, found a syntax error (EOF while parsing a value at line 2 column 1)"),
        (
            "{}",
            "expected a report that --json wrote, found other JSON (invalid type: map, expected a sequence at line 1 column 0)",
        ),
        (
            "[{\"format\": 1}]",
            "[0].format: expected a report that --json wrote, found other JSON (invalid type: integer `1`",
        ),
    ] {
        fs::write(&file, text).unwrap();
        let stderr = failure(&["draw", shown]);
        assert!(stderr.starts_with(&format!("weir-loadtest: {shown}: {expected}")), "{stderr}");
    }
    let missing = failure(&["draw", "none.json"]);
    assert!(missing.starts_with("weir-loadtest: FILE: cannot read none.json: "), "{missing}");
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
    for expected in ["<h2>writer, reader: closed loop", "answers of 4 tokens, of reader"] {
        assert!(page.contains(expected), "{expected}");
    }
}
