//! The program as a command, against a stub on a loopback port.

use super::stub::Script;
use super::support::{command, ms, run_interrupted, script, serve, wait};
use crate::*;
use serde_json::json;
use std::path::Path;

#[test]
fn the_same_seed_sends_the_same_requests() {
    let served = serve(vec![script("stub")]);
    let characters = |seed: u64| {
        let load = "--concurrency 3 --requests 20 --warm-up 0 --output-chars 1..9";
        let report = served.report(&format!("run @ {load} --seed {seed}"));
        let figures = &report[0]["parts"][0]["point"]["figures"];
        (figures["characters"].clone(), figures["prompt_chars"].clone())
    };
    assert_eq!(characters(5), characters(5));
    assert_ne!(characters(5), characters(6));
}

#[test]
fn a_sweep_finds_the_knee_between_sustained_and_unsustained_rates() {
    // one at a time, 20 ms and two of 2 ms: about forty per second without other delays
    let served = serve(vec![Script { rows: 1, ..script("stub") }]);
    let load = "--rates 10,300 --duration 2s --timeout 3s --warm-up 0 --output-chars 3";
    let report = served.report(&format!("sweep @ {load}"));
    let knee = &report[0]["parts"][0]["knee"];
    assert_eq!((&knee["rate"], &knee["broken_at"]), (&10.0.into(), &300.0.into()), "{knee}");
}

#[test]
fn the_documented_report_is_drawn_from_its_data() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let folder = tempfile::tempdir().unwrap();
    let drawn = folder.path().join("latency-report.md");
    let title = "What pooling is worth: two pairs of trained models";
    let data = docs.join("latency-report.json").display().to_string();
    let output =
        command(["draw", &data, "--markdown", &drawn.display().to_string(), "--title", title]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let advice = "run `weir-loadtest draw docs/latency-report.json --markdown docs/latency-report.md --title …`";
    let names = |folder: &Path| -> Vec<_> {
        let entries = fs::read_dir(folder.join("latency-report")).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(folder.path()), names(&docs), "{advice}");
    let pictures = names(&docs).into_iter().map(|name| Path::new("latency-report").join(name));
    for name in pictures.chain([Path::new("latency-report.md").to_owned()]) {
        let is_same = fs::read(folder.path().join(&name)).unwrap() == fs::read(docs.join(&name)).unwrap();
        assert!(is_same, "{}: {advice}", name.display());
    }
}

#[test]
fn a_report_measures_every_model_and_compares_models_of_each_kind() {
    let reader = |name| Script { summarizes: true, ..script(name) };
    let served = serve(vec![Script { first: ms(60), ..script("a") }, reader("long"), script("b"), reader("short")]);
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let short = "--duration 100ms --warm-up 0 --output-chars 4 --rounds 8 --warm-up-rounds 0 --concurrency 1,2 --from 64 --to 128 \
                 --refine 0";
    let mix = "--workload kind=generate,name=texts --workload kind=summarize,name=documents,prompt-chars=40";
    let output = served.run(&format!("report @ {short} {mix} --json {} --markdown {}", file("a.json"), file("a.md")));
    let progress = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{progress}");
    // a comparison of each kind; and for each model two closed loops, a search of four loads, and a run at half of the knee, which
    // may be missing
    for step in [
        "a, b, comparison in 8 rounds",
        "a, closed loop, 1 at a time",
        "a, open loop, Poisson arrivals, 64.0 requests/s",
        &format!("wrote {}", file("a.md")),
    ] {
        assert!(progress.lines().any(|line| line == format!("weir-loadtest: {step}")), "{step}\n{progress}");
    }
    assert!(String::from_utf8(output.stdout).unwrap().contains("measured gain over a"));
    let reports: Vec<Value> = serde_json::from_str(&fs::read_to_string(file("a.json")).unwrap()).unwrap();
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
        assert_eq!(names(&reports[index + 1]["parts"], "kind"), ["batches", "rates", "run"].repeat(2));
    }
    let fast = &reports[0]["parts"][0]["comparison"]["models"][1];
    assert!(fast["gains"]["time_to_first_char"]["ratio"].as_f64().unwrap() > 1.0);
    assert_eq!(fast["bits_per_char"], 2.0);
}

#[test]
fn the_baseline_is_a_model_that_does_not_pool_unless_models_are_named() {
    let served = serve(vec![script("pooled"), Script { segment: 0, ..script("plain") }]);
    let baseline = |models: &str| {
        let report = served.report(&format!("compare @ --rounds 1 --warm-up-rounds 0 --output-chars 4{models}"));
        report[0]["parts"][0]["comparison"]["baseline"].as_str().unwrap().to_owned()
    };
    assert_eq!(baseline(""), "plain");
    assert_eq!(baseline(" --models pooled,plain"), "pooled");
}

#[test]
fn a_mix_sends_different_workloads() {
    let served = serve(vec![script("stub")]);
    let mix = "--workload name=texts,weight=2,output-chars=6 --workload name=edits,kind=edit,rate=50,output-chars=4";
    let load = "--requests 30 --warm-up 0 --prompt-chars 16 --concurrency 3 --objective ttfc=10s";
    let report = served.report(&format!("run @ {mix} {load}"));
    let conditions = &report[0]["conditions"];
    assert_eq!(conditions["software"], json!({ "name": "stub", "version": env!("CARGO_PKG_VERSION") }));
    assert_eq!(conditions["models"][0]["dtype"], "none");
    let kinds: Vec<_> = (0..2).map(|index| conditions["workloads"][index]["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["generate", "edit"]);
    let point = &report[0]["parts"][0]["point"];
    let all = &point["figures"];
    let parts = point["workloads"].as_array().unwrap();
    for key in ["prompt_chars", "cached_chars", "shortening_factor"] {
        assert!(all[key].is_number() && all[key] == parts[0][key], "{key}: {all}");
    }
    let well: Vec<_> = parts.iter().map(|part| part["requests"]["well"].as_u64().unwrap()).collect();
    assert!(well.iter().sum::<u64>() == 30 && well[0] > well[1] && well[1] > 0, "{well:?}");
    assert_eq!(all["good"], 30);
    assert!(parts[0]["edits"].is_null());
    assert_eq!(
        (&parts[1]["edits"]["sessions"], &parts[1]["edits"]["keystrokes"]),
        (&well[1].into(), &(4 * well[1]).into())
    );
}

/// A single load fails, unlike the search for a knee, which overloads the server on purpose.
#[test]
fn a_load_of_which_fewer_than_half_succeed_is_reported_and_fails() {
    let refusing = |refuse| Script { refuse, ..script("stub") };
    let load = "--requests 9 --warm-up 0 --output-chars 2 --concurrency 1";
    let half = serve(vec![refusing(2)]);
    assert!(half.run(&format!("run @ {load}")).status.success(), "five of nine");
    let stderr = half.failure(&format!("run @ {load}"));
    let expected = "fewer than half of the requests succeeded: 9 requests: 4 succeeded, 5 RESOURCE_EXHAUSTED";
    assert!(stderr.contains(expected), "{stderr}");

    let all = serve(vec![refusing(1), script("other")]);
    let output = all.run(&format!("run @ --model stub {load} --json -"));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(stderr.contains("no request succeeded: 9 requests: 0 succeeded, 9 "), "{stderr}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report[0]["parts"][0]["point"]["figures"]["requests"]["measured"], 9, "the report is written");
    // one model of a comparison is enough
    assert!(all.run("compare @ --rounds 2 --score-chars 0 --output-chars 4").status.success());
}

/// This estimate is wrong on any machine; `comparisons` tests the exact difference on a paused clock.
#[test]
fn an_estimate_is_compared_with_the_measured_gain() {
    let pooled = |gain, spread| Script { gain: Some(gain), spread, ..script("pooled") };
    let served = serve(vec![script("plain"), pooled(1e6, 0.02)]);
    let output = served.run("compare @ --models plain,pooled --rounds 4 --output-chars 8");
    let stdout = String::from_utf8(output.stdout).unwrap();
    let expected = "calibration of the ESTIMATED gains: timings of each step: at least 31, spread 2.00 %";
    assert!(stdout.contains(expected) && stdout.contains("pooled: total: the ESTIMATED gain is +"), "{stdout}");
    // a calibration that the server itself doubts is marked
    let served = serve(vec![script("plain"), pooled(3.0, 0.63)]);
    let output = served.run("compare @ --models plain,pooled --rounds 4 --output-chars 8");
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.contains("UNRELIABLE: the machine was busy") && stdout.contains("spread 63.0 %"), "{stdout}");
}

/// Arrivals also depend on the measurement's index: two rates do not share a draw, and each has the promised number of requests.
#[test]
fn arrivals_of_each_rate_are_a_draw_of_their_own() {
    let served = serve(vec![Script::instant("stub")]);
    let report = served.report("sweep @ --rates 40,41,42 --duration 100ms --warm-up 0 --output-chars 2");
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
#[cfg(unix)]
fn an_interrupted_sweep_reports_the_interruption() {
    let served = serve(vec![script("stub")]);
    let line = "sweep @ --concurrency 2,3 --warm-up 0 --duration 10m --output-chars 4";
    let output = run_interrupted(&mut served.command(line), || served.stub.answered() >= 10);
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.starts_with("ENDED EARLY: it was interrupted\n\n"), "{table}");
    assert!(table.contains("2 at a time (interrupted)") && !table.contains("3 at a time"), "{table}");
}

#[test]
#[cfg(unix)]
fn an_interrupted_report_has_the_comparison_as_far_as_it_came() {
    let served = serve(vec![script("a"), script("b"), Script { summarizes: true, ..script("reader") }]);
    let line = "report @ --rounds 2000 --concurrency 1,2 --output-chars 4 --json -";
    let output = run_interrupted(&mut served.command(line), || served.stub.answered() >= 30);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report[0]["broken_off"], "it was interrupted");
    let comparison = &report[0]["parts"][0]["comparison"];
    assert_eq!((&comparison["interrupted"], report.as_array().unwrap().len()), (&true.into(), 1), "{comparison}");
}

#[test]
#[cfg(unix)]
fn an_interrupted_warm_up_measures_nothing() {
    let served = serve(vec![script("stub")]);
    let mut command = served.command("run @ --warm-up 10m --output-chars 4");
    let output = run_interrupted(&mut command, || served.stub.answered() > 0);
    let stdout = String::from_utf8(output.stdout).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stdout.contains("\nnothing was measured: ") && !stdout.contains("characters/s"), "{stdout}");
    assert!(output.status.code() == Some(1) && stderr.contains("nothing was measured"), "{stderr}");
}

/// The second load answers twice, and the rest of its requests find no server.
#[test]
fn a_sweep_reports_what_it_measured_before_the_server_went_away_and_fails() {
    // most answers are still to come when the server goes away, however late that is noticed
    let served = serve(vec![Script { answers: Some(14), ..script("stub") }]);
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let load = "--concurrency 4,2,3 --requests 12 --warm-up 0 --output-chars 4";
    let line = format!("sweep @ {load} --json {} --markdown {}", file("a.json"), file("a.md"));
    let mut child = served.command(&line).spawn().unwrap();
    wait(&mut child, || served.stub.answered() >= 14);
    let gone = format!("{}: closed loop, 2 at a time: the server went away: ", served.address);
    drop(served);
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let report: Value = serde_json::from_str(&fs::read_to_string(file("a.json")).unwrap()).unwrap();
    let why = report[0]["broken_off"].as_str().unwrap();
    assert!(output.status.code() == Some(1) && stderr.contains(why) && why.starts_with(&gone), "{why}: {stderr}");
    let points = &report[0]["parts"][0]["points"];
    assert_eq!(points[0]["figures"]["requests"]["well"], 12);
    assert!(points[1]["broken_off"].as_str().unwrap().starts_with("the server went away: "), "{points}");
    let errors = points[1]["figures"]["requests"]["errors"].as_object().unwrap();
    assert!(errors.keys().eq(["UNAVAILABLE"]), "a request that was under way counts too: {errors:?}");
    assert_eq!(points[1]["tester"]["limits"], json!([]));
    assert_eq!(points.as_array().unwrap().len(), 2);
    assert!(fs::read_to_string(file("a.md")).unwrap().contains("ENDED EARLY: "));
    assert!(String::from_utf8(output.stdout).unwrap().contains("ENDED EARLY: "));
    // an unreachable server leaves no file
    let none = file("none.json");
    assert!(!command(["sweep", "127.0.0.1:1", "--concurrency", "1", "--json", &none]).status().unwrap().success());
    assert!(!Path::new(&none).exists());
}

#[test]
fn a_closed_loop_backs_off_from_a_lost_server() {
    let served = serve(vec![Script { first: ms(300), ..script("stub") }]);
    let line = "run @ --concurrency 2 --warm-up 0 --duration 3s --output-chars 4 --json -";
    let mut child = served.command(line).spawn().unwrap();
    wait(&mut child, || served.stub.answered() > 0);
    drop(served);
    let output = child.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    // after 100, 200, 400, 800 and 1000 ms
    let gone = &report[0]["parts"][0]["point"]["figures"]["requests"]["errors"]["UNAVAILABLE"];
    assert!((4..=16).contains(&gone.as_u64().unwrap()), "{gone}");
}
