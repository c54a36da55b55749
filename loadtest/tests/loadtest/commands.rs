//! The program as a command, against a stub on a loopback port.

use super::{
    stub::Script,
    support::{ServedStub, TIMEOUT, command, failure, json, ms, run, run_interrupted, script, serve, wait, words},
};
use crate::*;
use std::time::Instant;

#[test]
fn a_run_writes_json_and_a_page() {
    let served = serve(vec![script("stub")]);
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let arguments = ["--requests", "40", "--warm-up", "0", "--output-chars", "5..20", "--json", "-", "--html"];
    let base = ["run", &served.address, "--concurrency", "4", "--objective", "ttfc=10s"];
    let mix = words("--workload name=a,weight=2,temperature=0.5 --workload name=b,prompt-chars=exponential:40");
    let report = json(&run(&[&base[..], &mix, &arguments[..], &[page.to_str().unwrap()]].concat()));
    let point = &report[0]["parts"][0]["point"];
    assert_eq!((&point["figures"]["requests"]["well"], &point["figures"]["good"]), (&40.into(), &40.into()));
    let parts = point["workloads"].as_array().unwrap();
    let well: Vec<_> = parts.iter().map(|part| part["requests"]["well"].as_u64().unwrap()).collect();
    assert!(well.len() == 2 && well[0] + well[1] == 40 && well[0] > well[1], "{well:?}");
    assert!(fs::read_to_string(&page).unwrap().ends_with("</html>"));
    // conditions: the server's software, and the settings
    let conditions = &report[0]["conditions"];
    assert_eq!((&conditions["software"]["name"], &conditions["models"][0]["dtype"]), (&"stub".into(), &"none".into()));
    assert_eq!(conditions["software"]["version"], env!("CARGO_PKG_VERSION"));
    let settings = &conditions["workloads"][0]["settings"];
    assert_eq!((&settings["temperature"], &settings["top_p"]), (&"0.5".into(), &"server's default".into()));
    assert_eq!(conditions["workloads"][1]["settings"]["temperature"], "server's default");
}

#[test]
fn the_same_seed_sends_the_same_requests() {
    let served = serve(vec![script("stub")]);
    let characters = |seed: &str| {
        let arguments = ["--requests", "20", "--warm-up", "0", "--output-chars", "1..9", "--json", "-", "--seed", seed];
        let report = json(&run(&[&["run", &served.address, "--concurrency", "3"][..], &arguments[..]].concat()));
        let figures = &report[0]["parts"][0]["point"]["figures"];
        (figures["characters"].clone(), figures["prompt_chars"].clone())
    };
    assert_eq!(characters("5"), characters("5"));
    assert_ne!(characters("5"), characters("6"));
}

#[test]
fn a_sweep_finds_the_knee_between_sustained_and_unsustained_rates() {
    // one at a time, 20 ms and two of 2 ms: about forty per second without other delays
    let served = serve(vec![Script { rows: 1, ..script("stub") }]);
    let arguments = words("--rates 10,300 --arrivals constant --duration 2s --timeout 3s --warm-up 0 --output-chars 3");
    let report = json(&run(&[&["sweep", &served.address, "--json", "-"][..], &arguments[..]].concat()));
    let knee = &report[0]["parts"][0]["knee"];
    assert_eq!((&knee["rate"], &knee["broken_at"]), (&10.0.into(), &300.0.into()), "{knee}");
}

/// Arguments of a short `report`.
const SHORT: &str = "--duration 1s --warm-up 0 --output-chars 4 --rounds 8 --warm-up-rounds 0 --concurrency 1,2 \
    --from 8 --to 16 --refine 0";

#[test]
fn a_report_with_a_comparison_is_written_and_drawn_again() {
    let slow = Script { first: ms(60), ..script("slow") };
    let served = serve(vec![slow, script("fast")]);
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let files = ["report", &served.address, "--json", &file("a.json"), "--html", &file("a.html")];
    let output = run(&[&files[..], &words(SHORT)].concat());
    let progress = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{progress}");
    // a comparison; and for each model two closed loops, a search of four loads, and a run at half of the knee, which may be
    // missing
    let plan = "weir-loadtest: 9 steps: about 14 s of sending, plus the wait for each load's last answers, plus 8 rounds, each as long as \
        its requests\n";
    assert!(progress.starts_with(plan), "{progress}");
    for step in [
        "step 1 of 9: slow, fast, comparison in 8 rounds",
        "step 2 of 9: slow, closed loop, 1 at a time",
        "step 4 of 9: slow, search for the knee",
        "step 4 of 9: load 1, open loop, Poisson arrivals, 8.00 requests/s, for about 3 s until 20 requests have arrived",
        &format!("wrote {}", file("a.html")),
    ] {
        assert!(progress.lines().any(|line| line == format!("weir-loadtest: {step}")), "{step}\n{progress}");
    }
    let report: Value = serde_json::from_str(&fs::read_to_string(file("a.json")).unwrap()).unwrap();
    let comparison = &report[0]["parts"][0]["comparison"];
    assert_eq!(comparison["complete"], 8);
    assert!(comparison["models"][1]["gains"]["time_to_first_char"]["ratio"].as_f64().unwrap() > 1.0);
    assert_eq!(comparison["models"][1]["bits_per_char"], 2.0);
    let parts = report[1]["parts"].as_array().unwrap().iter();
    let kinds: Vec<_> = parts.map(|part| part["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["batches", "rates", "run"].repeat(2));
    let again = run(&["draw", &file("a.json"), "--html", &file("b.html")]);
    assert!(again.status.success() && String::from_utf8(again.stdout).unwrap().contains("measured gain over slow"));
    assert_eq!(fs::read_to_string(file("a.html")).unwrap(), fs::read_to_string(file("b.html")).unwrap());
}

#[test]
fn the_documented_report_is_drawn_from_its_data() {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/latency-report");
    let folder = tempfile::tempdir().unwrap();
    let drawn = folder.path().join("again.html").to_str().unwrap().to_owned();
    let title = "What pooling is worth: two pairs of trained models";
    let output = run(&["draw", &format!("{docs}.json"), "--html", &drawn, "--title", title]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let is_same = fs::read_to_string(&drawn).unwrap() == fs::read_to_string(format!("{docs}.html")).unwrap();
    assert!(is_same, "`weir-loadtest draw docs/latency-report.json --html {docs}.html --title …` draws another page");
}

#[test]
fn a_report_compares_models_of_each_kind_separately() {
    let reader = |name| Script { summarizes: true, ..script(name) };
    let served = serve(vec![script("a"), reader("long"), script("b"), reader("short")]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("all.json").to_str().unwrap().to_owned();
    let mix = ["--workload", "kind=generate,name=texts", "--workload", "kind=summarize,name=documents,prompt-chars=40"];
    let output = run(&[&["report", &served.address, "--json", &file][..], &words(SHORT), &mix].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let reports: Vec<Value> = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let names = |list: &Value, key: &str| {
        list.as_array().unwrap().iter().map(|item| item[key].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(reports.len(), 4);
    for (index, models, workload) in [(0, ["a", "b"], "texts"), (2, ["long", "short"], "documents")] {
        let comparison = &reports[index]["parts"][0]["comparison"];
        assert_eq!((&comparison["baseline"], &comparison["complete"]), (&Value::from(models[0]), &Value::from(8)));
        assert_eq!(names(&comparison["models"], "model"), models);
        assert_eq!(names(&reports[index]["conditions"]["workloads"], "name"), [workload]);
        assert_eq!(names(&reports[index + 1]["parts"], "model"), [[models[0]; 3], [models[1]; 3]].concat());
    }
}

#[test]
#[cfg(unix)]
fn an_interrupted_measurement_reports_what_was_measured() {
    let served = serve(vec![script("stub")]);
    let started = Instant::now();
    let arguments = ["--warm-up", "0", "--duration", "10m", "--output-chars", "4", "--json", "-"];
    let base = ["run", &served.address, "--rate", "40"];
    let report = json(&run_interrupted(&[&base[..], &arguments].concat(), || served.stub.sent().len() >= 10));
    assert!(started.elapsed() < TIMEOUT);
    let point = &report[0]["parts"][0]["point"];
    assert_eq!(point["interrupted"], true);
    assert!(point["figures"]["requests"]["well"].as_u64().unwrap() >= 9, "{point}");
}

#[test]
fn invalid_options_are_rejected_with_their_limits() {
    let served = serve(vec![script("a"), script("b")]);
    for (arguments, expected) in [
        (&["--model", "c"][..], "one of a, b"),
        (&["--requests", "1"], "one of a, b"),
        (&["--model", "a", "--output-chars", "2000000"], "from 1 to 1048576"),
        (&["--model", "a", "--output-chars", "1000000", "--prompt-chars", "100000"], "limits.max_symbols"),
        (&["--model", "a", "--rate", "0"], "--rate: expected 0.001 to 1000000 requests/s, found 0"),
        (&["--model", "a", "--concurrency", "0"], "expected 1 to 65536, found 0"),
        (
            &["--model", "a", "--duration", "5"],
            "error: invalid value '5' for '--duration <TIME>': expected a number with its unit, ns, us, ms, s or m",
        ),
        (&["--model", "a", "--requests=-1"], "error: invalid value '-1' for '--requests <N>'"),
        (&["--model", "a", "--temperature", "x"], "error: invalid value 'x' for '--temperature <T>'"),
        (&["--model", "a", "--arrivals", "often"], "[possible values: constant, poisson, bursty]"),
        (&["--model", "a", "--objective", "speed=5ms"], "expected one of ttfc"),
        (&["--model", "a", "--workload", "kind=dance"], "one of generate"),
        (&["--model", "a", "--workload", "weight=0"], "above 0"),
        (
            &["--model", "a", "--workload", "kind=summarize"],
            "kind: expected generate (what a does), found \"summarize\"",
        ),
        (
            &["--model", "a", "--workload", "kind=summarize,model=b"],
            "kind: expected generate (what b does), found \"summarize\"",
        ),
        (&["--model", "a", "--rate", "5", "--burst", "4"], "--arrivals bursty"),
        (&["--model", "a", "--rate", "5", "--arrivals", "bursty", "--burst", "0"], "expected 1 to 65536, found 0"),
        (
            &["--model", "a", "--concurrency", "5", "--arrivals", "bursty"],
            "--arrivals: expected no value without an open loop",
        ),
        (
            &["--model", "a", "--burst", "4"],
            "--burst: expected no value without an open loop (use --rate without --concurrency), found one",
        ),
        (
            &["--model", "a", "--json", "-", "--html", "-"],
            "--html: expected a file because --json writes to stdout, found \"-\"",
        ),
        (&["--model", "a", "--prompts", "/none/there"], "/none/there"),
        (&["--model", "a", "--json", "/none/there"], "--json: cannot write /none/there: "),
        (&["--model", "a", "--html", "/none/there"], "--html: cannot write /none/there: "),
        (&["--model", "a", "--threads", "0"], "--threads: expected 1 to 256, found 0"),
    ] {
        let stderr = failure(&[&["run", &served.address][..], arguments].concat());
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
    // a sweep rejects the same options
    for (arguments, expected) in [
        (&["--burst", "4"][..], "--arrivals bursty"),
        (&["--arrivals", "bursty", "--burst", "0"], "expected 1 to 65536, found 0"),
        (&["--concurrency", "5", "--arrivals", "bursty"], "--arrivals: expected no value without an open loop"),
    ] {
        let stderr = failure(&[&["sweep", &served.address, "--model", "a"][..], arguments].concat());
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
    let stderr = failure(&["compare", &served.address, "--models", "a,b", "--workload", "name=x,model=a"]);
    assert!(stderr.contains("--workload x: model=a: a comparison sends the same requests to all models"), "{stderr}");
}

#[test]
fn a_mix_sends_different_workloads_to_several_models() {
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
    let report = json(&run(&[&["run", &served.address][..], &mix, &arguments].concat()));
    let point = &report[0]["parts"][0]["point"];
    let all = &point["figures"];
    let parts = point["workloads"].as_array().unwrap();
    for key in ["prompt_chars", "cached_chars", "shortening_factor"] {
        assert!(all[key].is_number() && all[key] == parts[0][key], "{key}: {all}");
    }
    let well: Vec<_> = parts.iter().map(|part| part["requests"]["well"].as_u64().unwrap()).collect();
    assert!(well.iter().sum::<u64>() == 30 && well[1] > 0, "{well:?}");
    assert!(parts[0]["summaries"].is_null());
    assert_eq!(parts[1]["summaries"]["count"], well[1]);
    assert_eq!(parts[1]["summaries"]["summary_tokens"], 4 * well[1]);
    let stderr = failure(&["run", &served.address, "--model", "writer", "--workload", "model=nobody"]);
    assert!(stderr.contains("one of writer, reader"), "{stderr}");
}

/// One factor for a model that pools and one that does not would describe neither.
#[test]
fn a_mix_of_models_has_a_shortening_factor_for_each() {
    let served = serve(vec![script("pooled"), Script { segment: 0, ..script("plain") }]);
    let arguments = ["--requests", "30", "--warm-up", "0", "--output-chars", "8", "--prompt-chars", "16"];
    let mix = |other: &str| {
        let other = format!("name=b,model={other}");
        let named = ["run", &served.address, "--model", "pooled", "--workload", "name=a", "--workload", &other];
        run(&[&named[..], &arguments, &["--json", "-"]].concat())
    };
    let report = json(&mix("plain"));
    let point = &report[0]["parts"][0]["point"];
    let factors = serde_json::json!([{ "model": "pooled", "factor": 4.0 }, { "model": "plain", "factor": null }]);
    assert!(point["figures"]["shortening_factor"].is_null(), "{point}");
    assert_eq!(point["shortening_by_model"], factors);
    let report = json(&mix("pooled"));
    let point = &report[0]["parts"][0]["point"];
    let shortening = (&point["figures"]["shortening_factor"], &point["shortening_by_model"]);
    assert_eq!(shortening, (&4.0.into(), &serde_json::json!([])));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mix.json");
    fs::write(&file, mix("plain").stdout).unwrap();
    let table = String::from_utf8(run(&["draw", file.to_str().unwrap()]).stdout).unwrap();
    let expected = "; shortening factor 4.000 of pooled, – of plain (separate, because the models differ)";
    assert!(table.contains(expected), "{table}");
}

#[test]
fn a_measurement_without_success_is_reported_and_fails() {
    let served = serve(vec![Script { refuse: 1, ..script("stub") }, script("other")]);
    let short = ["--requests", "5", "--warm-up", "0", "--output-chars", "4"];
    let output = run(&[&["run", &served.address, "--model", "stub", "--json", "-"][..], &short].concat());
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(stderr.contains("no request succeeded: 5 requests: 0 succeeded, 5 "), "{stderr}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report[0]["parts"][0]["point"]["figures"]["requests"]["measured"], 5, "the report is written");
    // one model of a comparison is enough, and requests cancelled on purpose are not failures
    let compared = ["compare", &served.address, "--rounds", "2", "--score-chars", "0", "--output-chars", "4"];
    assert!(run(&compared).status.success());
    let cancelled = [&["run", &served.address, "--model", "other", "--cancel-share", "1"][..], &short].concat();
    assert!(run(&cancelled).status.success());
}

#[test]
fn a_page_may_go_to_stdout() {
    let served = serve(vec![script("stub")]);
    let options = words("--requests 5 --warm-up 0 --output-chars 4 --html -");
    let output = run(&[&["run", &served.address][..], &options].concat());
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>"), "{page}");
    assert!(!std::path::Path::new("-").exists());
}

/// The command fails if an estimate deviates. These estimates are right, or wrong, on any machine; `comparisons` tests the exact
/// threshold on a paused clock.
#[test]
fn an_estimate_is_compared_with_the_measured_gain() {
    let pooled = |gain| Script { gain: Some(gain), ..script("pooled") };
    for (gain, agrees) in [(3.0, true), (1e6, false)] {
        let served = serve(vec![script("plain"), pooled(gain)]);
        let arguments = ["--rounds", "4", "--output-chars", "8", "--agree-within", "1000"];
        let output = run(&[&["compare", &served.address, "--models", "plain,pooled"][..], &arguments].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), agrees, "{stderr}{}", String::from_utf8_lossy(&output.stdout));
        assert!(agrees || stderr.contains("more than 1000 %"), "{stderr}");
        let stdout = String::from_utf8(output.stdout).unwrap();
        let expected = "calibration of the ESTIMATED gains: each step timed at least 31 times, spread 2.00 %";
        assert!(stdout.contains(expected), "{stdout}");
    }
    // a calibration that the server itself doubts is marked
    let served = serve(vec![script("plain"), Script { spread: 0.63, ..pooled(3.0) }]);
    let output = run(&["compare", &served.address, "--models", "plain,pooled", "--rounds", "2", "--html", "-"]);
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(page.contains("UNRELIABLE: the machine was busy") && page.contains("spread 63.0 %"), "{page}");
    let served = serve(vec![script("plain"), script("silent")]);
    let options = words("--models plain,silent --rounds 2 --agree-within 10");
    let stderr = failure(&[&["compare", &served.address][..], &options].concat());
    assert!(stderr.contains("no estimate"), "{stderr}");
}

/// Arrivals also depend on the measurement's index: two rates do not share a draw, and each has the promised number of requests.
#[test]
fn arrivals_of_each_rate_are_a_draw_of_their_own() {
    let served = serve(vec![Script::instant("stub")]);
    let arguments = words("--rates 40,41,42 --duration 100ms --warm-up 0 --output-chars 2 --json -");
    let report = json(&run(&[&["sweep", &served.address][..], &arguments].concat()));
    let points = report[0]["parts"][0]["points"].as_array().unwrap();
    let measured = |point: &Value| point["figures"]["requests"]["measured"].as_u64().unwrap();
    assert!(points.len() == 3 && points.iter().all(|point| measured(point) >= 20), "{points:?}");
    // with one draw, windows that end at the same request would have lengths inversely proportional to the rates
    let scaled: Vec<_> = points
        .iter()
        .map(|point| {
            let window = point["window"]["window_ns"].as_f64().unwrap();
            (measured(point), window * point["load"]["rate"].as_f64().unwrap())
        })
        .collect();
    let same = |a: (u64, f64), b: (u64, f64)| a.0 == b.0 && (a.1 / b.1 - 1.0).abs() < 0.01;
    assert!(!same(scaled[0], scaled[1]) || !same(scaled[1], scaled[2]), "{scaled:?}");
}

#[test]
fn measurements_before_the_server_died_are_reported_and_the_command_fails() {
    let served = serve(vec![Script { first: Duration::from_millis(150), ..script("stub") }]);
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let data = file("a.json");
    let page = file("a.html");
    let arguments = ["--concurrency", "1,2,3,4", "--requests", "20", "--warm-up", "0", "--output-chars", "4"];
    let to = ["sweep", &served.address, "--json", &data, "--html", &page];
    let mut child = command(&[&to[..], &arguments].concat()).spawn().unwrap();
    wait(&mut child, || served.stub.sent().len() >= 30);
    drop(served);
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let report: Value = serde_json::from_str(&fs::read_to_string(&data).unwrap()).unwrap();
    let why = report[0]["broken_off"].as_str().unwrap();
    assert!(stderr.contains(why), "{why}: {stderr}");
    let points = report[0]["parts"][0]["points"].as_array().unwrap();
    assert_eq!(points[0]["figures"]["requests"]["well"], 20);
    // every load is either measured or missing
    let missing = report[0]["missing"].as_array().unwrap();
    let last = missing.last().unwrap();
    assert_eq!((points.len() + missing.len(), &last["what"]), (4, &Value::from("closed loop, 4 at a time")));
    assert!(fs::read_to_string(&page).unwrap().contains("ENDED EARLY: "));
    assert!(String::from_utf8(output.stdout).unwrap().contains("ENDED EARLY: "));
    // an unreachable server leaves no file
    let none = file("none.json");
    assert!(!run(&["sweep", "127.0.0.1:1", "--concurrency", "1", "--json", &none]).status.success());
    assert!(!std::path::Path::new(&none).exists());
}

#[test]
#[cfg(unix)]
fn an_interrupted_sweep_reports_the_interruption() {
    let served = serve(vec![script("stub")]);
    let options = words("--concurrency 2,3 --warm-up 0 --duration 10m --output-chars 4");
    let arguments = [&["sweep", &served.address][..], &options].concat();
    let output = run_interrupted(&arguments, || served.stub.sent().len() >= 10);
    let table = String::from_utf8(output.stdout).unwrap();
    let expected = "ENDED EARLY: it was interrupted; missing:\n  stub: closed loop, 3 at a time\n\n";
    assert!(table.starts_with(expected), "{table}");
    assert!(table.contains("2 at a time (interrupted)") && table.matches("3 at a time").count() == 1, "{table}");
}

#[test]
#[cfg(unix)]
fn an_interrupted_report_lists_what_is_missing() {
    let served = serve(vec![script("a"), script("b"), Script { summarizes: true, ..script("reader") }]);
    let arguments = ["--rounds", "2000", "--concurrency", "1,2", "--output-chars", "4", "--json", "-"];
    let arguments = [&["report", &served.address][..], &arguments].concat();
    let report = json(&run_interrupted(&arguments, || served.stub.sent().len() >= 30));
    let missing = report[0]["missing"].as_array().unwrap().iter();
    let missing: Vec<_> =
        missing.map(|entry| (entry["model"].as_str().unwrap(), entry["what"].as_str().unwrap())).collect();
    let loops = ["closed loop, 1 at a time", "closed loop, 2 at a time"];
    let all = [loops[0], loops[1], "the search for the knee", "the open loop at half of the knee"];
    let expected: Vec<_> = ["a", "b", "reader"].iter().flat_map(|model| all.map(|what| (*model, what))).collect();
    assert_eq!(missing, expected, "the comparison is reported as far as it came");
}

#[test]
fn models_that_cannot_be_compared_are_rejected() {
    let reader = Script { summarizes: true, ..script("reader") };
    let served = serve(vec![script("a"), script("b"), reader]);
    for (arguments, expected) in [
        (
            &["--models", "a,b,a"][..],
            "--models: expected each model once (a model compared with itself shows nothing), found \"a\"",
        ),
        (&["--models", "a,reader"], "reader summarizes documents and a does not"),
        (&[], "reader summarizes documents and a does not"),
    ] {
        let output = run(&[&["compare", &served.address][..], arguments].concat());
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && output.stdout.is_empty() && stderr.contains(expected), "{stderr}");
    }
}

/// Runs a command whose server goes away after the first answers.
fn run_until_gone(arguments: &[&str]) -> (Output, String) {
    // slow, so that few answers come before the server goes away, however late that is noticed
    let served: ServedStub = serve(vec![Script { first: Duration::from_millis(300), ..script("stub") }]);
    let address = served.address.clone();
    let short = ["--warm-up", "0", "--duration", "3s", "--output-chars", "4", "--json", "-"];
    let mut child = command(&[&[arguments[0], &address], &arguments[1..], &short].concat()).spawn().unwrap();
    wait(&mut child, || !served.stub.sent().is_empty());
    drop(served);
    (child.wait_with_output().unwrap(), address)
}

#[test]
fn a_closed_loop_backs_off_from_a_lost_server_and_the_command_fails() {
    let (output, _) = run_until_gone(&["run", "--concurrency", "2"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && stderr.contains("succeeded: "), "{stderr}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let point = &report[0]["parts"][0]["point"];
    // after 100, 200, 400, 800 and 1000 ms
    let gone = point["figures"]["requests"]["errors"]["UNAVAILABLE"].as_u64().unwrap();
    assert!((4..=16).contains(&gone), "{gone}");
    assert!(point["broken_off"].as_str().unwrap().starts_with("the server went away: "), "{point}");
    assert_eq!(point["tester"]["limits"].as_array().unwrap().len(), 0);
}

#[test]
fn a_sweep_ends_where_the_server_went_away() {
    let (output, address) = run_until_gone(&["sweep", "--concurrency", "2,3"]);
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let why = report[0]["broken_off"].as_str().unwrap();
    let expected = format!("{address}: closed loop, 2 at a time: the server went away: ");
    assert!(why.starts_with(&expected), "{why}");
    assert_eq!(report[0]["missing"].as_array().unwrap().len(), 1);
    assert_eq!(report[0]["missing"][0]["what"], "closed loop, 3 at a time");
}

/// A single load fails, unlike the search for a knee, which overloads the server on purpose.
#[test]
fn a_load_of_which_fewer_than_half_succeed_fails() {
    let served = serve(vec![Script { refuse: 2, ..script("half") }]);
    let load = ["--requests", "9", "--warm-up", "0", "--output-chars", "2", "--concurrency", "1"];
    assert!(run(&[&["run", &served.address][..], &load].concat()).status.success(), "five of nine");
    let stderr = failure(&[&["run", &served.address][..], &load].concat());
    let expected = "fewer than half of the requests succeeded: 9 requests: 4 succeeded, 5 RESOURCE_EXHAUSTED";
    assert!(stderr.contains(expected), "{stderr}");
}

#[test]
#[cfg(unix)]
fn an_interrupted_warm_up_measures_nothing() {
    let served = serve(vec![script("stub")]);
    let arguments = ["run", &served.address, "--warm-up", "10m", "--output-chars", "4"];
    let output = run_interrupted(&arguments, || !served.stub.sent().is_empty());
    let stdout = String::from_utf8(output.stdout).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stdout.contains("\nnothing was measured: ") && !stdout.contains("characters/s"), "{stdout}");
    assert!(output.status.code() == Some(1) && stderr.contains("nothing was measured"), "{stderr}");
}
