//! Maximum lengths by position scheme and window, quality at those lengths (`score --lengths`), `inspect --resolution`, and
//! configurations whose parts are incompatible.

use super::{
    cli::{json as run_json, weir},
    decoder_shapes, lex,
    support::{Dice, settings},
};
use serde_json::{Value, json};
use std::{fs, path::Path};
use tempfile::TempDir;
use weir::{
    error::Error,
    family::{
        checkpoint::Config,
        load::{Settings, blueprint, load},
    },
    kernels::Dtype,
};

fn ids(count: usize) -> String {
    Dice::new(8).text(count, 56).iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

fn model(case: &str) -> String {
    lex::converted(case).to_str().unwrap().to_owned()
}

#[test]
fn bits_by_length_equal_those_of_windows() {
    let model = model("xpos_bca");
    let ids = ids(301);
    let scored = run_json(&["score", "--json", "--model", &model, "--ids", &ids, "--lengths", "16,32,100,300"]);
    let entries = scored["lengths"].as_array().unwrap();
    assert_eq!(entries.len(), 4);
    for entry in entries {
        let length = entry["length"].as_u64().unwrap();
        let windows = format!("{length},{length}");
        let windowed = run_json(&["score", "--json", "--model", &model, "--ids", &ids, "--windowed", &windows]);
        assert_eq!(entry["bits_per_char"], windowed["bits_per_char"], "{length}");
        // Each length scores the same symbols.
        assert_eq!((&entry["scored"], &entry["pieces"]), (&300.into(), &windowed["windows"]));
        assert_eq!(entry["extrapolates"], length > 32);
    }
    let table = weir(&[], &["score", "--model", &model, "--ids", &ids, "--lengths", "16,32,100,300"]).unwrap();
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["length", "16", "32", "100", "300"]);
    assert_eq!(lines[1][3..], ["inter", "inter", "extra", "extra"]);
    for (cell, entry) in lines[2][3..].iter().zip(entries) {
        assert_eq!(*cell, format!("{:.4}", entry["bits_per_char"].as_f64().unwrap()));
    }
}

#[test]
fn lengths_out_of_range_are_rejected() {
    let rejection = |case: &str, lengths: &str, more: &[&str]| {
        let model = model(case);
        let ids = ids(1_300);
        let args = [&["score", "--model", &model, "--ids", &ids, "--lengths", lengths], more].concat();
        weir(&[], &args).unwrap_err()
    };
    assert!(rejection("xpos_bca", "1300", &[]).contains("at most 1299"));
    // The scale of xPos without a window, B = 16, leaves the range of f32.
    assert!(rejection("xpos_full_base16", "1200", &[]).contains("at most 1115, the maximum symbols of one sequence"));
    assert!(rejection("xpos_bca", "0", &[]).contains("--lengths"));
    let both = rejection("xpos_bca", "16", &["--windowed", "16,16"]);
    assert!(both.contains("--lengths") && both.contains("--windowed") && both.contains("expected no value"), "{both}");
}

#[test]
fn the_maximum_length_follows_from_scheme_and_window() {
    let max_symbols = |case: &str, max_symbols: Option<usize>| {
        let settings = Settings { max_symbols, ..settings() };
        load(&lex::converted(case), &settings).map(|model| model.card().max_symbols)
    };
    // Schemes without a limit accept four training windows, but at least 8,192 symbols.
    assert_eq!(max_symbols("rope_full", None).unwrap(), 8192);
    assert_eq!(max_symbols("rope_full", Some(100_000)).unwrap(), 100_000);
    assert_eq!(max_symbols("xpos_full", None).unwrap(), 8192);
    assert_eq!(max_symbols("xpos_full", Some(35_694)).unwrap(), 35_694);
    assert_eq!(max_symbols("xpos_full_base16", None).unwrap(), 1115);
    // A window limits the kept keys.
    assert_eq!(max_symbols("xpos_bca", None).unwrap(), 1 << 24);
    assert_eq!(max_symbols("xpos_bca", Some(50)).unwrap(), 50);
    for (case, requested, expected) in
        [("xpos_full", 35_695, "at most 35694 (without a window"), ("xpos_full_base16", 2000, "1115")]
    {
        let message = max_symbols(case, Some(requested)).unwrap_err().to_string();
        assert!(message.contains("--max-symbols") && message.contains(expected), "{message}");
    }
    let learned = decoder_shapes::shapes().into_iter().find(|(name, _)| name == "gpt-2").unwrap().1;
    assert_eq!(learned.card().max_symbols, 1000);
    let long = weir(&[], &["score", "--model", &model("xpos_full_base16"), "--ids", &ids(1116)]).unwrap_err();
    let expected = "expected at most 1115 characters (without a window, xpos's scale of keys further off leaves f32's range), found 1116";
    assert!(long.contains(expected), "{long}");
    // A requested limit is not explained by the model.
    let short = weir(&[], &["score", "--model", &model("rope_full"), "--max-symbols", "9", "--ids", &ids(10)]);
    let short = short.unwrap_err();
    assert!(short.contains("expected at most 9 characters, found 10"), "{short}");
}

/// Logits stay finite up to the last symbol that xPos without a window accepts.
#[test]
fn the_longest_text_has_finite_logits() {
    for dtype in Dtype::ALL {
        let model = lex::model("xpos_full_base16", dtype);
        let text = Dice::new(2).text(1115, 56);
        let (logits, _) = super::support::full(&*model, &text, &Default::default());
        assert!(logits.iter().all(|logit| logit.is_finite()));
    }
}

#[test]
fn inspect_reports_the_resolution() {
    let text = ids(100);
    let inspected = run_json(&["inspect", &model("xpos_bca"), "--json", "--resolution-ids", &text]);
    let resolution = &inspected["resolution"];
    // With blocks of 16, a query reads itself and at most 31 symbols before it.
    assert_eq!((resolution["distances"].as_u64(), resolution["layers"].as_array().unwrap().len()), (Some(32), 2));
    let printed = weir(&[], &["inspect", &model("xpos_bca"), "--resolution-ids", &text]).unwrap();
    assert!(
        printed.contains(&format!("resolution       {:.4} over 32", resolution["all"].as_f64().unwrap())),
        "{printed}"
    );
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("text");
    fs::write(&file, "a be é").unwrap();
    let shape = decoder_shapes::folder("xpos, full").to_str().unwrap();
    let by_file = run_json(&["inspect", shape, "--json", "--resolution", file.to_str().unwrap()]);
    assert_eq!(by_file["resolution"], run_json(&["inspect", shape, "--json", "--resolution", "a be é"])["resolution"]);
    assert_eq!(by_file["resolution"]["distances"], 6);
    let pooled = super::support::converted("whitespaces");
    let error = weir(&[], &["inspect", pooled.to_str().unwrap(), "--resolution", "a b"]).unwrap_err();
    assert!(
        error.contains("model: expected one that is of the family decoder (for attention resolution), found "),
        "{error}"
    );
    assert!(weir(&[], &["inspect", shape, "--resolution", "xyz"]).unwrap_err().contains("'x'"));
}

/// Returns the error for a changed architecture.
fn refusal(change: &dyn Fn(&mut Value)) -> String {
    let mut config: Value =
        serde_json::from_slice(&fs::read(decoder_shapes::folder("xpos, blocks of 32").join("config.json")).unwrap())
            .unwrap();
    change(&mut config["architecture"]);
    let file = Path::new("config.json");
    let config = Config::parse(config.to_string().as_bytes(), file).unwrap();
    match blueprint(&config, file) {
        Err(Error::Checkpoint { key, expected, found, .. }) => format!("{key}: {expected}, {found}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn incompatible_parts_are_rejected_with_the_rule() {
    let set = |key: &'static str, value: Value| move |a: &mut Value| a[key] = value.clone();
    let position = |value: Value| set("position", value);
    let window = |value: Value| set("window", value);
    let cases: [(&dyn Fn(&mut Value), &str); 17] = [
        (&set("head_dim", 7.into()), "architecture.head_dim: an even number: this position scheme turns pairs"),
        (&window(json!({"blockwise": {"length": 7}})), "architecture.window.blockwise.length: an even number from 2"),
        (&window(json!({"blockwise": {"length": 0}})), "architecture.window.blockwise.length: an even number from 2"),
        (&window(json!({"sliding": {"keys": 0}})), "architecture.window.sliding.keys: 1 to"),
        (&window(json!({"sliding": {"keys": 1 << 20}})), "architecture.window: at most"),
        (&window(json!({"sliding": {"keys": 5, "length": 6}})), "architecture.window.sliding"),
        (&window(json!("circular")), "architecture.window"),
        (&position(json!({"xpos": {"scale_base": 0}})), "architecture.position.xpos.scale_base: 1 to"),
        (&position(json!({"xpos": {}})), "architecture.position.xpos"),
        (&position(json!("xpos")), "architecture.position"),
        (&position(json!({"buckets": {"count": 7, "max_distance": 50}})), "architecture.position.buckets.count"),
        (
            &position(json!({"buckets": {"count": 8, "max_distance": 4}})),
            "architecture.position.buckets.max_distance: 5 to",
        ),
        (&position(json!({"learned": {"positions": 0}})), "architecture.position.learned.positions: 1 to"),
        (&set("layers", 0.into()), "architecture.layers: 1 to"),
        (&set("layer_norm_eps", 0.into()), "architecture.layer_norm_eps: above 0"),
        (&set("pooling", "mean".into()), "architecture.pooling"),
        (&set("sub_norms", 1.into()), "architecture.sub_norms"),
    ];
    for (change, expected) in cases {
        let message = refusal(change);
        assert!(message.contains(expected), "{message}");
    }
    let odd_heads = |a: &mut Value| {
        a["dim"] = 21.into();
        a["position"] = "sinusoidal".into();
    };
    assert!(refusal(&odd_heads).contains("architecture.dim: an even number"));
    let huge_scale = |a: &mut Value| {
        a["dim"] = (1 << 20).into();
        a["layers"] = 1024.into();
        a["feed_forward"] = (1 << 20).into();
    };
    assert!(refusal(&huge_scale).contains("architecture.dim: at most"));
    let huge_tables = |a: &mut Value| {
        a["heads"] = 64.into();
        a["position"] = json!({"buckets": {"count": 8, "max_distance": 1 << 20}});
    };
    assert!(refusal(&huge_tables).contains("architecture.position.buckets.max_distance: a table of at most 67108864"));
}
