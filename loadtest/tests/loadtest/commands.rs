//! The program itself, against a stub on a port of loopback.

use serde_json::Value;
use std::{
    fs,
    future::pending,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};
use tokio::{net::TcpListener, runtime::Runtime};
use tonic::transport::server::TcpIncoming;
use weir_loadtest::stub::{Script, Stub};

const PATIENCE: Duration = Duration::from_secs(60);

/// A stub that serves until it is dropped.
pub(super) struct Served {
    pub(super) address: String,
    pub(super) stub: Stub,
    _runtime: Runtime,
}

pub(super) fn serve(scripts: Vec<Script>) -> Served {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let stub = Stub::new(scripts);
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    runtime.spawn(stub.clone().serve(TcpIncoming::from(listener).with_nodelay(Some(true)), pending()));
    Served { address, stub, _runtime: runtime }
}

pub(super) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir-loadtest"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub(super) fn run(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

#[track_caller]
pub(super) fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn ms(span: u64) -> Duration {
    Duration::from_millis(span)
}

pub(super) fn script(name: &str) -> Script {
    Script { first: ms(20), plain: ms(2), boundary: ms(4), segment: 4, rows: 4, ..Script::instant(name) }
}

#[test]
fn a_run_tells_json_and_page() {
    let served = serve(vec![script("stub")]);
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let arguments = ["--requests", "40", "--warm-up", "0", "--output-chars", "5..20", "--json", "-", "--html"];
    let base = [
        "run",
        &served.address,
        "--concurrency",
        "4",
        "--objective",
        "ttfc=10s",
        "--workload",
        "name=a,weight=2,temperature=0.5",
        "--workload",
        "name=b,prompt-chars=exponential:40",
    ];
    let told = json(&run(&[&base[..], &arguments[..], &[page.to_str().unwrap()]].concat()));
    let point = &told[0]["parts"][0]["point"];
    assert_eq!((&point["figures"]["requests"]["well"], &point["figures"]["good"]), (&40.into(), &40.into()));
    let parts = point["workloads"].as_array().unwrap();
    let well: Vec<_> = parts.iter().map(|part| part["requests"]["well"].as_u64().unwrap()).collect();
    assert!(well.len() == 2 && well[0] + well[1] == 40 && well[0] > well[1], "{well:?}");
    assert!(fs::read_to_string(&page).unwrap().ends_with("</html>"));
    // under which conditions: who served, and by which settings
    let conditions = &told[0]["conditions"];
    assert_eq!((&conditions["software"]["name"], &conditions["models"][0]["dtype"]), (&"stub".into(), &"none".into()));
    assert_eq!(conditions["software"]["version"], env!("CARGO_PKG_VERSION"));
    let settings = &conditions["workloads"][0]["settings"];
    assert_eq!((&settings["temperature"], &settings["top_p"]), (&"0.5".into(), &"server's default".into()));
    assert_eq!(conditions["workloads"][1]["settings"]["temperature"], "server's default");
}

#[test]
fn the_same_seed_asks_for_the_same() {
    let served = serve(vec![script("stub")]);
    let asked = |seed: &str| {
        let arguments = ["--requests", "20", "--warm-up", "0", "--output-chars", "1..9", "--json", "-", "--seed", seed];
        let told = json(&run(&[&["run", &served.address, "--concurrency", "3"][..], &arguments[..]].concat()));
        let figures = &told[0]["parts"][0]["point"]["figures"];
        (figures["characters"].clone(), figures["prompt_chars"].clone())
    };
    assert_eq!(asked("5"), asked("5"));
    assert_ne!(asked("5"), asked("6"));
}

#[test]
fn a_sweep_finds_the_knee_between_what_holds_and_what_does_not() {
    // one at a time, 20 ms and two of 2: about forty a second, were there no delays
    let served = serve(vec![Script { rows: 1, ..script("stub") }]);
    let arguments = [
        "--rates",
        "10,300",
        "--arrivals",
        "constant",
        "--duration",
        "2s",
        "--timeout",
        "3s",
        "--warm-up",
        "0",
        "--output-chars",
        "3",
    ];
    let told = json(&run(&[&["sweep", &served.address, "--json", "-"][..], &arguments[..]].concat()));
    let knee = &told[0]["parts"][0]["knee"];
    assert_eq!((&knee["rate"], &knee["broken_at"]), (&10.0.into(), &300.0.into()), "{knee}");
}

/// Everything as short as it can be.
const SHORT: [&str; 17] = [
    "--duration",
    "1s",
    "--warm-up",
    "0",
    "--output-chars",
    "4",
    "--rounds",
    "8",
    "--warm-up-rounds",
    "0",
    "--concurrency",
    "1,2",
    "--from",
    "8",
    "--to",
    "16",
    "--refine=0",
];

#[test]
fn a_comparison_and_all_in_one_report_are_written_and_drawn_again() {
    let slow = Script { first: ms(60), ..script("slow") };
    let served = serve(vec![slow, script("fast")]);
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let output =
        run(&[&["report", &served.address, "--json", &file("a.json"), "--html", &file("a.html")][..], &SHORT[..]]
            .concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let told: Value = serde_json::from_str(&fs::read_to_string(file("a.json")).unwrap()).unwrap();
    let compared = &told[0]["parts"][0]["comparison"];
    assert_eq!(compared["complete"], 8);
    assert!(compared["models"][1]["gains"]["time_to_first_char"]["ratio"].as_f64().unwrap() > 1.0);
    assert_eq!(compared["models"][1]["bits_per_char"], 2.0);
    let kinds: Vec<_> =
        told[1]["parts"].as_array().unwrap().iter().map(|part| part["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["batches", "rates", "run"].repeat(2));
    let again = run(&["draw", &file("a.json"), "--html", &file("b.html")]);
    assert!(again.status.success() && String::from_utf8(again.stdout).unwrap().contains("measured gain over slow"));
    assert_eq!(fs::read_to_string(file("a.html")).unwrap(), fs::read_to_string(file("b.html")).unwrap());
}

#[test]
fn the_report_in_the_documents_is_drawn_from_its_data() {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/latency-report");
    let folder = tempfile::tempdir().unwrap();
    let drawn = folder.path().join("again.html").to_str().unwrap().to_owned();
    let title = "What pooling is worth: two pairs of models";
    let output = run(&["draw", &format!("{docs}.json"), "--html", &drawn, "--title", title]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let same = fs::read_to_string(&drawn).unwrap() == fs::read_to_string(format!("{docs}.html")).unwrap();
    assert!(
        same,
        "`weir-loadtest draw docs/latency-report.json --html docs/latency-report.html --title …` draws another"
    );
}

#[test]
fn a_report_compares_each_kind_of_models_within_itself() {
    let reader = |name| Script { summarizes: true, ..script(name) };
    let served = serve(vec![script("a"), reader("long"), script("b"), reader("short")]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("all.json").to_str().unwrap().to_owned();
    let mix = ["--workload", "kind=generate,name=texts", "--workload", "kind=summarize,name=documents,prompt-chars=40"];
    let output = run(&[&["report", &served.address, "--json", &file][..], &SHORT, &mix].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let told: Vec<Value> = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let names = |list: &Value, key: &str| {
        list.as_array().unwrap().iter().map(|one| one[key].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(told.len(), 4);
    for (at, of, asked) in [(0, ["a", "b"], "texts"), (2, ["long", "short"], "documents")] {
        let compared = &told[at]["parts"][0]["comparison"];
        assert_eq!((&compared["baseline"], &compared["complete"]), (&Value::from(of[0]), &Value::from(8)));
        assert_eq!(names(&compared["models"], "model"), of);
        assert_eq!(names(&told[at]["conditions"]["workloads"], "name"), [asked]);
        assert_eq!(names(&told[at + 1]["parts"], "model"), [[of[0]; 3], [of[1]; 3]].concat());
    }
}

#[test]
#[cfg(unix)]
fn an_interrupted_measurement_tells_what_there_is() {
    let served = serve(vec![script("stub")]);
    let started = Instant::now();
    let arguments = ["--warm-up", "0", "--duration", "10m", "--output-chars", "4", "--json", "-"];
    let mut child = command(&[&["run", &served.address, "--rate", "40"][..], &arguments[..]].concat()).spawn().unwrap();
    wait(&mut child, || served.stub.sent().len() >= 10);
    assert!(Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status().unwrap().success());
    let told = json(&child.wait_with_output().unwrap());
    assert!(started.elapsed() < PATIENCE);
    let point = &told[0]["parts"][0]["point"];
    assert_eq!(point["interrupted"], true);
    assert!(point["figures"]["requests"]["well"].as_u64().unwrap() >= 9, "{point}");
}

/// Waits until it is so; kills the program if it never is.
pub(super) fn wait(child: &mut Child, is_so: impl Fn() -> bool) {
    let started = Instant::now();
    let (_open, nothing) = std::sync::mpsc::sync_channel::<()>(0);
    while !is_so() {
        if started.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("it never was so");
        }
        let _ = nothing.recv_timeout(ms(10));
    }
}

#[test]
fn what_cannot_be_is_refused_with_its_bound() {
    let served = serve(vec![script("a"), script("b")]);
    let told = |arguments: &[&str]| {
        let output = run(&[&["run", &served.address][..], arguments].concat());
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    for (arguments, expected) in [
        (&["--model", "c"][..], "one of a, b"),
        (&["--requests", "1"], "one of a, b"),
        (&["--model", "a", "--output-chars", "2000000"], "from 1 to 1048576"),
        (&["--model", "a", "--output-chars", "1000000", "--prompt-chars", "100000"], "limits.max_symbols"),
        (&["--model", "a", "--rate", "0"], "from 0.001"),
        (&["--model", "a", "--concurrency", "0"], "from 1 to 65536"),
        (&["--model", "a", "--duration", "5"], "unit"),
        (&["--model", "a", "--objective", "speed=5ms"], "none of ttfc"),
        (&["--model", "a", "--workload", "kind=dance"], "one of generate"),
        (&["--model", "a", "--workload", "weight=0"], "above 0"),
        (&["--model", "a", "--workload", "kind=summarize"], "kind=summarize: a does not read documents"),
        (&["--model", "a", "--workload", "kind=summarize,model=b"], "kind=summarize: b does not read documents"),
        (&["--model", "a", "--rate", "5", "--burst", "4"], "--arrivals bursty"),
        (&["--model", "a", "--rate", "5", "--arrivals", "bursty", "--burst", "0"], "from 1 to 65536"),
        (&["--model", "a", "--concurrency", "5", "--arrivals", "bursty"], "--arrivals is about open loops"),
        (&["--model", "a", "--burst", "4"], "--burst is about open loops: give --rate"),
        (&["--model", "a", "--json", "-", "--html", "-"], "one of them may go to stdout"),
        (&["--model", "a", "--prompts", "/none/there"], "/none/there"),
        (&["--model", "a", "--json", "/none/there"], "/none/there"),
        (&["--model", "a", "--threads", "0"], "from 1 to 256"),
    ] {
        let said = told(arguments);
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
    // a sweep says the same of the same
    for (arguments, expected) in [
        (&["--burst", "4"][..], "--arrivals bursty"),
        (&["--arrivals", "bursty", "--burst", "0"], "from 1 to 65536"),
        (&["--concurrency", "5", "--arrivals", "bursty"], "--arrivals is about open loops"),
    ] {
        let output = run(&[&["sweep", &served.address, "--model", "a"][..], arguments].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(expected), "{arguments:?}: {said}");
    }
    let named = run(&["compare", &served.address, "--models", "a,b", "--workload", "name=x,model=a"]);
    let said = String::from_utf8(named.stderr).unwrap();
    assert!(said.contains("--workload x: model=a: models are compared by the same requests"), "{said}");
}

/// How fast it is depends on the machine; that it reads all that the server makes does not.
#[test]
fn the_self_test_tells_a_rate_and_holds_it_against_what_is_asked() {
    let short = ["self-test", "--duration", "200ms", "--streams", "4"];
    let output = run(&short);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && said.contains(" % of a core; "), "{said}");
    let output = run(&[&short[..], &["--gap", "50us", "--at-least", "1e15"]].concat());
    assert!(!output.status.success());
    assert!(String::from_utf8(output.stderr).unwrap().contains("fewer than --at-least"));
}

#[test]
fn a_mix_asks_several_models_for_several_things() {
    let reader = Script { summarizes: true, ..script("reader") };
    let served = serve(vec![script("writer"), reader]);
    let folder = tempfile::tempdir().unwrap();
    let documents = folder.path().join("set.jsonl");
    fs::write(&documents, "{\"text\": \"one document\"}\n{\"article\": \"and another\"}\n").unwrap();
    let summaries = format!(
        "name=summaries,kind=summarize,model=reader,prompts={},prompt-chars=documents,output-chars=4,chunk-chars=5",
        documents.display()
    );
    let arguments = ["--requests", "30", "--warm-up", "0", "--output-chars", "6", "--json", "-", "--concurrency", "3"];
    let mix = ["--model", "writer", "--workload", "name=texts,weight=2", "--workload", &summaries];
    let told = json(&run(&[&["run", &served.address][..], &mix, &arguments].concat()));
    let (all, parts) =
        (&told[0]["parts"][0]["point"]["figures"], told[0]["parts"][0]["point"]["workloads"].as_array().unwrap());
    for of_texts in ["prompt_chars", "cached_chars", "shortening_factor"] {
        assert!(all[of_texts].is_number() && all[of_texts] == parts[0][of_texts], "{of_texts}: {all}");
    }
    let well: Vec<_> = parts.iter().map(|part| part["requests"]["well"].as_u64().unwrap()).collect();
    assert!(well.iter().sum::<u64>() == 30 && well[1] > 0, "{well:?}");
    assert!(parts[0]["summaries"].is_null());
    assert_eq!(parts[1]["summaries"]["count"], well[1]);
    assert_eq!(parts[1]["summaries"]["summary_tokens"], 4 * well[1]);
    let unknown = run(&["run", &served.address, "--model", "writer", "--workload", "model=nobody"]);
    assert!(String::from_utf8(unknown.stderr).unwrap().contains("one of writer, reader"));
}

/// One figure of a model that pools and of one that does not would be of neither.
#[test]
fn a_mix_of_models_has_a_shortening_factor_for_each() {
    let served = serve(vec![script("pooled"), Script { segment: 0, ..script("plain") }]);
    let arguments = ["--requests", "30", "--warm-up", "0", "--output-chars", "8", "--prompt-chars", "16"];
    let mix = |other: &str| {
        let other = format!("name=b,model={other}");
        let named = ["run", &served.address, "--model", "pooled", "--workload", "name=a", "--workload", &other];
        run(&[&named[..], &arguments, &["--json", "-"]].concat())
    };
    let told = json(&mix("plain"));
    let point = &told[0]["parts"][0]["point"];
    let factor = |model: &str, factor: Value| serde_json::json!({ "model": model, "factor": factor });
    assert!(point["figures"]["shortening_factor"].is_null(), "{point}");
    assert_eq!(
        point["shortening_by_model"],
        serde_json::json!([factor("pooled", 4.0.into()), factor("plain", Value::Null)])
    );
    let told = json(&mix("pooled"));
    let point = &told[0]["parts"][0]["point"];
    assert_eq!(
        (&point["figures"]["shortening_factor"], &point["shortening_by_model"]),
        (&4.0.into(), &serde_json::json!([]))
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mix.json");
    fs::write(&file, mix("plain").stdout).unwrap();
    let table = String::from_utf8(run(&["draw", file.to_str().unwrap()]).stdout).unwrap();
    assert!(
        table.contains("; shortening factor 4.000 of pooled, – of plain (models differ, so that there is none of all)"),
        "{table}"
    );
}

#[test]
fn a_measurement_of_nothing_but_failures_is_told_and_fails() {
    let served = serve(vec![Script { refuse: 1, ..script("stub") }, script("other")]);
    let short = ["--requests", "5", "--warm-up", "0", "--output-chars", "4"];
    let output = run(&[&["run", &served.address, "--model", "stub", "--json", "-"][..], &short].concat());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(said.contains("no request ended well: 5 requests: 0 well, 5 "), "{said}");
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told[0]["parts"][0]["point"]["figures"]["requests"]["measured"], 5, "the report is written");
    // of a comparison one model is enough, and what was cancelled on purpose ended as it should
    let compared = ["compare", &served.address, "--rounds", "2", "--score-chars", "0", "--output-chars", "4"];
    assert!(run(&compared).status.success());
    let given_up = [&["run", &served.address, "--model", "other", "--cancel-share", "1"][..], &short].concat();
    assert!(run(&given_up).status.success());
}

#[test]
fn a_page_may_go_to_stdout() {
    let served = serve(vec![script("stub")]);
    let output =
        run(&["run", &served.address, "--requests", "5", "--warm-up", "0", "--output-chars", "4", "--html", "-"]);
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>"), "{page}");
    assert!(!std::path::Path::new("-").exists());
}

/// That the command fails by what the comparison finds: how near is near is `pairs`' to test, by a clock that stands still. These
/// estimates are right, or wrong, whatever the machine has to do.
#[test]
fn an_estimate_is_held_against_the_measured_gain() {
    let pooled = |gain| Script { gain: Some(gain), ..script("pooled") };
    for (gain, agrees) in [(3.0, true), (1e6, false)] {
        let served = serve(vec![script("plain"), pooled(gain)]);
        let arguments = ["--rounds", "4", "--output-chars", "8", "--agree-within", "1000"];
        let output = run(&[&["compare", &served.address, "--models", "plain,pooled"][..], &arguments].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), agrees, "{said}{}", String::from_utf8_lossy(&output.stdout));
        assert!(agrees || said.contains("more than 1000 %"), "{said}");
        let told = String::from_utf8(output.stdout).unwrap();
        assert!(
            told.contains("ESTIMATED by a calibration: each step timed at least 31 times, spread 2.00 %"),
            "{told}"
        );
    }
    // a table that the server itself doubts is told as one
    let served = serve(vec![script("plain"), Script { spread: 0.63, ..pooled(3.0) }]);
    let output = run(&["compare", &served.address, "--models", "plain,pooled", "--rounds", "2", "--html", "-"]);
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(page.contains("NOT TO BE TRUSTED: the machine was busy") && page.contains("spread 63.0 %"), "{page}");
    let served = serve(vec![script("plain"), script("silent")]);
    let output =
        run(&["compare", &served.address, "--models", "plain,silent", "--rounds", "2", "--agree-within", "10"]);
    assert!(String::from_utf8(output.stderr).unwrap().contains("no estimate"));
}
