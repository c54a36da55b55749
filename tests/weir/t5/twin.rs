//! MrT5 with its gate off, its unpooled twin: the same weights read as ByT5 reads them, and what is reported of both.

use super::{conversion::changed, *};
use crate::process::Server;
use serde_json::json;
use std::fs;
use tempfile::TempDir;
use weir::family::load::{Settings, load};

fn unpooled() -> Settings {
    Settings { unpooled: true, ..settings() }
}

/// A gate that keeps everything changes nothing, so the twin gives the results of such a gate.
#[test]
fn the_twin_gives_the_results_of_a_gate_that_keeps_everything() {
    for case in ["mrt5", "mrt5_plain"] {
        let open = changed(case, |config| config["deletion_threshold"] = json!(-10_000.0));
        let twin = load(&t5_golden(case), &unpooled()).unwrap();
        let gated = load(&t5_golden(case), &settings()).unwrap();
        assert_eq!((&twin.card().sha256, twin.card().unpooled_baseline), (&gated.card().sha256, true));
        assert!(twin.card().shape.ends_with(", gate off") && !gated.card().unpooled_baseline, "{}", twin.card().shape);
        assert!(encoder(&*twin).limits().poolings.is_empty());
        let golden = Golden::open(&t5_golden(case));
        let tokens = golden.ids("s1.ids");
        let logits = |model: &dyn Model| {
            let mut scratch = model.scratch();
            let document = encode(model, &tokens, &mut scratch);
            (document.vectors(), forced(model, &*document, &golden.ids("s1.dec_ids"), &mut scratch))
        };
        let (vectors, without) = logits(&*twin);
        let (kept, all) = logits(&*load(open.path(), &settings()).unwrap());
        assert_eq!((vectors, kept), (tokens.len(), tokens.len()), "{case}");
        assert!(difference(&without, &all) <= 1e-6, "{case}: {}", difference(&without, &all));
        let (vectors, deleted) = logits(&*gated);
        assert!(vectors < tokens.len() && difference(&without, &deleted) > 1e-3, "{case}: the gate deletes");
        let cost = |model: &dyn Model| encoder(model).multiply_adds(tokens.len(), vectors);
        assert!(cost(&*gated) < cost(&*twin), "{case}: deleted tokens cost nothing");
    }
}

#[test]
fn a_model_without_a_gate_has_no_twin() {
    for case in ["byt5", "longt5_tglobal"] {
        let error = load(&t5_golden(case), &unpooled()).err().unwrap().to_string();
        assert!(error.contains("expected a model whose pooling can be turned off: MrT5 with its gate"), "{error}");
    }
}

/// The documents' kept shares are those of the golden data.
#[test]
fn documents_are_benchmarked_against_the_twin() {
    let dir = TempDir::new().unwrap();
    let about: serde_json::Value =
        serde_json::from_slice(&fs::read(t5_golden("mrt5").join("golden.json")).unwrap()).unwrap();
    let sources: Vec<_> = about["sources"].as_array().unwrap().iter().take(2).collect();
    let alone = dir.path().join("alone");
    fs::write(&alone, sources[0]["text"].as_str().unwrap()).unwrap();
    let lines = dir.path().join("several.jsonl");
    fs::write(&lines, format!("{}\n\n", json!({ "document": sources[1]["text"], "source": "ignored" }))).unwrap();
    let folder = t5_golden("mrt5");
    let [folder, alone, lines] = [&folder, &alone, &lines].map(|path| path.to_str().unwrap());
    let args = ["bench", "documents", folder, alone, lines, "--tokens", "3", "--pairs", "2", "--threads", "1"];
    let found = parsed(&[&args[..], &["--json"]].concat());
    let found = &found[0];
    assert_eq!((&found["a"]["model"], &found["b"]["model"]), (&json!("mrt5"), &json!("mrt5-unpooled")));
    let documents = found["documents"].as_array().unwrap();
    assert_eq!((&documents[0]["document"], &documents[1]["document"]), (&json!(alone), &json!(format!("{lines}:1"))));
    let mut bytes = [0, 0];
    let mut sums = [0, 0];
    for (document, source) in documents.iter().zip(&sources) {
        let [kept, length] = ["kept", "length"].map(|key| source[key].as_u64().unwrap());
        let [a, b] = ["a", "b"].map(|model| &document[model]);
        assert_eq!((a["tokens"].as_u64(), b["tokens"].as_u64()), (Some(length), Some(length)));
        assert_eq!(a["kept_share"].as_f64().unwrap(), kept as f64 / length as f64);
        assert_eq!(b["kept_share"].as_f64().unwrap(), 1.0);
        // the end mark has no bytes
        assert_eq!((document["bytes"].as_u64(), &document["cut"]), (Some(length - 1), &json!(false)));
        for (sum, cost) in bytes.iter_mut().zip([a, b]) {
            *sum += cost["cross_attention_bytes"].as_u64().unwrap();
            assert!(cost["encode_ns"].as_f64() > Some(0.0) && cost["decode_ns_per_token"].as_f64() > Some(0.0));
        }
        for gain in ["encode_gain", "decode_gain", "total_gain"].map(|gain| &document[gain]) {
            let [low, median, high] = ["p10", "median", "p90"].map(|key| gain[key].as_f64().unwrap());
            assert!(0.0 < low && low <= median && median <= high, "{gain}");
        }
        sums = [sums[0] + kept, sums[1] + length];
    }
    let total = &found["total"];
    let found_bytes = ["a", "b"].map(|model| total[model]["cross_attention_bytes"].as_u64().unwrap());
    assert_eq!(found_bytes, bytes);
    let share = total["a"]["kept_share"].as_f64().unwrap();
    assert!((share - sums[0] as f64 / sums[1] as f64).abs() < 1e-9, "{share}");
    assert_eq!(total["cross_attention_gain"].as_f64().unwrap(), bytes[1] as f64 / bytes[0] as f64);
    assert_eq!(found["median"]["document"], "median document");
    let (ok, table, _) = weir(&args);
    assert!(ok && table.starts_with("A: mrt5, B: mrt5-unpooled, f32, 1 threads; 3 tokens decoded, 2 pairs"), "{table}");
    assert!(
        table.contains("41.7 %") && table.contains("all documents") && table.contains("median document"),
        "{table}"
    );
    // another baseline, and what is refused
    let byt5 = t5_golden("byt5");
    let byt5 = byt5.to_str().unwrap();
    let found = parsed(&[&args[..], &["--json", "--baseline", byt5]].concat());
    assert_eq!(found[0]["b"]["model"], "byt5");
    let empty = dir.path().join("empty");
    fs::write(&empty, "").unwrap();
    let wrong = dir.path().join("wrong.jsonl");
    fs::write(&wrong, "{\"text\": \"a\"}\n").unwrap();
    let [empty, wrong] = [&empty, &wrong].map(|path| path.to_str().unwrap());
    for (args, expected) in [
        ([byt5, alone], "a model whose pooling can be turned off"),
        ([folder, empty], "document: expected text of at least one token, found none"),
        ([folder, wrong], "line 1: expected an object with `document`"),
    ] {
        let (ok, _, error) = weir(&[&["bench", "documents"], &args[..]].concat());
        assert!(!ok && error.contains(expected), "{error}");
    }
}

#[test]
fn a_server_reports_the_gain_over_the_twin() {
    let folder = t5_golden("mrt5");
    let server = Server::start(&[
        "--threads",
        "1",
        "--calibration-milliseconds",
        "0",
        "--unpooled-twins",
        folder.to_str().unwrap(),
    ]);
    let address = server.address.to_string();
    let report = |name: &str| parsed(&["report", &address, "--json", "--name", name])["models"][0].clone();
    assert_eq!(report("mrt5")["twin_gain"]["encode"], json!(null), "nothing was measured");
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("document");
    fs::write(&file, "more will h").unwrap();
    let summarize = [
        "summarize",
        "--json",
        "--file",
        file.to_str().unwrap(),
        "--server",
        &address,
        "--max-len",
        "4",
        "--min-len",
        "4",
    ];
    let [gated, twin] = ["mrt5", "mrt5-unpooled"].map(|model| {
        let mut last = json!(null);
        for _ in 0..8 {
            last = parsed(&[&summarize[..], &["--model", model]].concat());
        }
        last
    });
    assert_eq!((&gated["timing"]["kept_share"], &twin["timing"]["kept_share"]), (&json!(5.0 / 12.0), &json!(1.0)));
    let encode = &gated["timing"];
    let layers = encode["layers"].as_array().unwrap().iter().map(|layer| layer["ns"].as_u64().unwrap());
    let all = layers.sum::<u64>() + encode["memory_ns"].as_u64().unwrap();
    assert_eq!(encode["encode_ns"].as_u64().unwrap(), all);
    let [own, other] = ["mrt5", "mrt5-unpooled"].map(report);
    assert_eq!((&other["twin_gain"], &other["summaries"]["requests"]), (&json!(null), &json!(8)));
    let gain = &own["twin_gain"];
    assert_eq!(gain["twin"], "mrt5-unpooled");
    for kind in ["encode", "decode_per_token"] {
        let [low, ratio, high] = ["low", "ratio", "high"].map(|key| gain[kind][key].as_f64().unwrap());
        assert!(0.0 < low && low <= ratio && ratio <= high, "{gain}");
        assert_eq!((&gain[kind]["count"], &gain[kind]["twin_count"]), (&json!(8), &json!(8)));
    }
    let bytes = |report: &serde_json::Value| report["summaries"]["cross_attention_bytes"].as_f64().unwrap();
    assert!((gain["cross_attention_bytes"].as_f64().unwrap() - bytes(&other) / bytes(&own)).abs() < 1e-9, "{gain}");
    let kept = &own["summaries"]["kept_share"];
    assert_eq!(kept["count"], 8);
    for key in ["mean", "min", "p50", "max"] {
        let share = kept[key].as_f64().unwrap();
        assert!((share - 5.0 / 12.0).abs() < 0.01, "{key}: {kept}");
    }
    assert_eq!(other["summaries"]["kept_share"]["min"].as_f64().map(|share| share > 0.99), Some(true), "{other}");
    let (ok, shown, _) = weir(&["report", &address, "--name", "mrt5"]);
    assert!(
        ok && shown.contains("measured gain over mrt5-unpooled, if both had the same documents: encode "),
        "{shown}"
    );
    assert!(shown.contains("kept share of 8 documents: mean 41."), "{shown}");
    // a call that names no model gets the one that pools; a document that fits has the same figures if it may be read in parts
    let unnamed = parsed(&[&summarize[..], &["--long-documents", "chunk"]].concat());
    for key in ["kept_share", "cross_attention_bytes", "unpooled_cross_attention_bytes"] {
        assert_eq!(unnamed["timing"][key], gated["timing"][key], "{key}");
    }
    assert_ne!(unnamed["timing"]["encode_ns"], json!(0));
}
