//! Plots of new and of saved measurements, and errors that name the file.

use super::{bench, failure, json, texts};
use crate::support::converted;
use serde_json::Value;
use std::path::Path;

#[test]
fn plots_have_a_line_per_series() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second, both] = ["one.svg", "two.svg", "both.svg"].map(|name| folder.path().join(name));
    let drawn = |svg: &Path| texts(svg).into_iter().filter(|text| text.contains(", f32, threads")).count();
    let options = ["--steps", "4", "--threads", "1", "--batch", "1,2", "--context", "8,16", "--json", "--plot"];
    let args = [&["decode"], &options[..], &[first.to_str().unwrap(), "--model"]].concat();
    let decoded = json(&args, &[converted("whitespaces")]);
    // The plot has two contexts in two panels.
    assert_eq!(drawn(&first), 4);
    let args = [&["compare", "--pairs", "1"], &options[..], &[second.to_str().unwrap()]].concat();
    let compared = json(&args, &[converted("whitespaces"), converted("vanilla")]);
    // The plot has both models, and a ratio for each context.
    assert_eq!(drawn(&second), 8 + 2);
    let saved = [("a.json", decoded), ("b.json", compared)].map(|(name, entries)| {
        let mut entries = entries;
        if let Some(model) = entries[0].get_mut("model") {
            *model = "a <odd> & \"named\" model".into();
        }
        let path = folder.path().join(name);
        std::fs::write(&path, Value::from(entries).to_string()).unwrap();
        path
    });
    let output = bench(&["plot", "--out", both.to_str().unwrap()], &saved);
    assert!(output.status.success() && output.stdout.is_empty());
    // The renamed entry is a separate line in two panels.
    assert_eq!(drawn(&both), 10 + 2);
    assert!(texts(&both).iter().any(|text| text.starts_with("a <odd> & \"named\" model")));
}

#[test]
fn plots_that_cannot_be_drawn_are_refused() {
    let error = failure(&["decode", "--plot", "/nowhere/at/all.svg", "--model"], &[converted("whitespaces")]);
    assert!(error.contains("/nowhere/at/all.svg"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let [svg, saved] = ["x.svg", "x.json"].map(|name| folder.path().join(name));
    let out = ["plot", "--out", svg.to_str().unwrap()];
    let list = "expected a list that weir bench printed with --json, found";
    let speed = |number: &str| entry("a model", number);
    let cases = [
        ("[]".to_owned(), "FILE.json: expected 1 to 10000 measurements, found 0".to_owned()),
        ("{".into(), format!("x.json: line 1, column 1: {list} EOF while parsing an object")),
        ("".into(), format!("x.json: line 1, column 0: {list} EOF while parsing a value")),
        ("{\"a\":1}".into(), format!("x.json: the JSON: {list} {{\"a\":1}}")),
        ("[{\"model\":1}]".into(), "x.json: entry 0: expected a measurement of weir bench decode".into()),
        ("[7]".into(), "x.json: entry 0: expected a measurement".into()),
        (format!("[{},{}]", speed("3.5"), speed("\"7\"")), "x.json: entry 1, chars_per_second: expected a".into()),
        (format!("[{}]", speed("1e400")), format!("{list} number out of range")),
    ];
    for (text, expected) in cases {
        std::fs::write(&saved, text).unwrap();
        let error = failure(&out, std::slice::from_ref(&saved));
        assert!(error.contains(&expected), "{error}");
        assert!(!svg.exists());
    }
    assert!(failure(&out, &[folder.path().join("missing.json")]).contains("missing.json"));
    std::fs::File::create(&saved).unwrap().set_len((64 << 20) + 1).unwrap();
    let error = failure(&out, std::slice::from_ref(&saved));
    assert!(error.contains("x.json: length: expected a file of at most 67108864 bytes, found 67108865"), "{error}");
    // A failed plot leaves an existing picture unchanged.
    std::fs::write(&svg, "before").unwrap();
    failure(&["decode", "--batch", "0", "--plot", svg.to_str().unwrap(), "--model"], &[converted("vanilla")]);
    assert_eq!(std::fs::read_to_string(&svg).unwrap(), "before");
}

/// Returns a decode measurement with the keys that plots need.
fn entry(model: &str, speed: &str) -> String {
    let model = Value::from(model);
    format!("{{\"model\":{model},\"dtype\":\"f32\",\"threads\":1,\"batch\":1,\"chars_per_second\":{speed}}}")
}

/// Numbers beyond and at the limits of what an axis can show.
#[test]
fn extreme_numbers_are_drawn_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let [svg, saved] = ["x.svg", "x.json"].map(|name| folder.path().join(name));
    let out = ["plot", "--out", svg.to_str().unwrap()];
    for odd in ["5e-324", "1e308", "1.7e308", "0", "-1", "1e-31", "2e30"] {
        std::fs::write(&saved, format!("[{}]", entry("m", odd))).unwrap();
        let error = failure(&out, std::slice::from_ref(&saved));
        let expected = "x.json: entry 0, chars_per_second: expected a number from 1e-30 to 1e30, found";
        assert!(error.contains(expected), "{error}");
    }
    // An error names the side of a comparison by its key.
    let comparison = format!("[{{\"a\":{},\"b\":{},\"ratio\":{{}}}}]", entry("m", "1"), entry("m", "1e99"));
    std::fs::write(&saved, comparison).unwrap();
    assert!(failure(&out, std::slice::from_ref(&saved)).contains("entry 0, b.chars_per_second: expected"));
    for numbers in [&["2e-30", "9e29"][..], &["2e-30"], &["9e29"], &["2e-30", "5", "9e29"], &["1e9", "2e9"]] {
        let entries: Vec<_> = numbers.iter().map(|number| entry("m", number)).collect();
        std::fs::write(&saved, format!("[{}]", entries.join(","))).unwrap();
        assert!(bench(&out, std::slice::from_ref(&saved)).status.success());
        let drawn = texts(&svg);
        assert!(drawn.len() > 10 && drawn.len() < 80, "{numbers:?}: {} texts", drawn.len());
    }
}

#[test]
fn control_characters_in_names_are_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let [svg, saved] = ["x.svg", "x.json"].map(|name| folder.path().join(name));
    let out = ["plot", "--out", svg.to_str().unwrap()];
    std::fs::write(&saved, format!("[{}]", entry("a\0b\u{1b}[2J\u{1f}\u{9b}\u{fffe}\u{ffff}c", "3"))).unwrap();
    assert!(bench(&out, std::slice::from_ref(&saved)).status.success());
    let shown = "a\u{fffd}b\u{fffd}[2J\u{fffd}\u{fffd}\u{fffd}\u{fffd}c, f32, threads 1";
    assert_eq!(texts(&svg).iter().filter(|text| *text == shown).count(), 2);
    // The terminal, a table and an error show the same name.
    let model = folder.path().join("m\u{1b}[2J\u{7}");
    std::fs::create_dir(&model).unwrap();
    for file in converted("vanilla").read_dir().unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), model.join(file.file_name())).unwrap();
    }
    let measured = bench(&["decode", "--context", "4", "--steps", "2", "--model"], std::slice::from_ref(&model));
    let output_text = String::from_utf8(measured.stdout).unwrap();
    assert!(output_text.contains("\nm\u{fffd}[2J\u{fffd}  "), "{output_text:?}");
    std::fs::remove_file(model.join("config.json")).unwrap();
    let error = failure(&["decode", "--model"], std::slice::from_ref(&model));
    assert!(error.contains("m\u{fffd}[2J\u{fffd}") && !error.contains('\u{1b}'), "{error:?}");
}
