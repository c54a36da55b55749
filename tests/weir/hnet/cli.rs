//! The commands `weir score`, `segment` and `generate` on H-Nets.

use super::*;
use serde_json::{Value, json};
use std::process::Command;

fn weir(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_weir")).args(args).env_clear().output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn folder(case: &str) -> String {
    hnet_converted(case).to_str().unwrap().to_owned()
}

/// The boundaries of every level equal the official ones, whatever the steps are.
#[test]
fn scores_list_the_boundaries_of_every_level() {
    for case in HNET_CASES {
        let golden = Golden::open(&hnet_golden(case));
        for text in ["s0", "s1", "s2"] {
            let ids = golden.ids(&format!("{text}.ids"));
            let list = ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
            let level = |level: usize| -> Option<Vec<u32>> {
                let name = format!("{text}.level{level}.boundary");
                golden.has(&name).then(|| golden.ids(&name))
            };
            for mode in ["full", "incremental", "chunked"] {
                let args =
                    ["score", "--json", "--model", &folder(case), "--ids", &list, "--mode", mode, "--chunk", "9"];
                let output: Value = serde_json::from_str(&weir(&args)).unwrap();
                assert_eq!(output["boundaries"], json!(level(0).unwrap()), "{case}, {text}, {mode}");
                let levels: Vec<_> = (0..).map_while(level).collect();
                let expected = if levels.len() > 1 { json!(levels) } else { Value::Null };
                assert_eq!(output["boundary_levels"], expected, "{case}, {text}, {mode}");
                assert_eq!(output["logprobs"].as_array().unwrap().len(), ids.len() - 1);
            }
        }
    }
}

#[test]
fn segments_begin_with_their_boundary() {
    let model = folder("two_stage");
    let text = "Chunks begin where bytes differ: été.";
    let output: Value = serde_json::from_str(&weir(&["segment", "--json", "--model", &model, "--text", text])).unwrap();
    let levels = output["boundary_levels"].as_array().unwrap();
    let boundaries: Vec<u64> = levels[0].as_array().unwrap().iter().map(|bit| bit.as_u64().unwrap()).collect();
    // the start mark is a symbol, but has no place in the text
    assert_eq!((levels.len(), boundaries.len()), (2, text.len() + 1));
    let starts: Vec<usize> = (0..boundaries.len())
        .filter(|&symbol| boundaries[symbol] == 1)
        .map(|symbol| symbol.saturating_sub(1))
        .collect();
    let segments = output["segments"].as_array().unwrap();
    assert_eq!(segments.iter().map(|segment| segment["start"].as_u64().unwrap() as usize).collect::<Vec<_>>(), starts);
    let places = segments.iter().map(|segment| {
        &text.as_bytes()[segment["start"].as_u64().unwrap() as usize..segment["end"].as_u64().unwrap() as usize]
    });
    let parts: Vec<_> = places.map(String::from_utf8_lossy).collect();
    assert_eq!(segments.iter().map(|segment| segment["text"].as_str().unwrap()).collect::<Vec<_>>(), parts);
    assert_eq!(levels[1].as_array().unwrap().len(), starts.len());
    let shown = weir(&["segment", "--model", &model, "--text", text]);
    let bars = shown.lines().next().unwrap().matches('│').count();
    let deeper = levels[1].as_array().unwrap().iter().filter(|bit| **bit == 1).count();
    // the first chunk has no bar before it
    assert_eq!(bars, starts.len() - 1 + deeper - 1, "{shown}");
}

#[test]
fn a_text_gets_a_start_mark_that_is_not_shown() {
    let model = folder("one_stage");
    let args = |prompt| {
        ["generate", "--json", "--model", &model, "--max-chars", "5", "--temperature", "0", "--prompt", prompt]
    };
    let output: Value = serde_json::from_str(&weir(&args("ab"))).unwrap();
    assert_eq!(output["usage"]["prompt_chars"], 3, "{output}");
    let empty: Value = serde_json::from_str(&weir(&args(""))).unwrap();
    assert_eq!(empty["usage"]["prompt_chars"], 1, "{empty}");
}

/// Chunks, their lengths and the steps of each level, as the boundaries of a score with the same symbols have them.
#[test]
fn levels_are_counted_in_generations_and_benchmarks() {
    let model = folder("two_stage");
    let args =
        ["generate", "--json", "--model", &model, "--max-chars", "30", "--seed", "4", "--ignore-eos", "--prompt"];
    let output: Value = serde_json::from_str(&weir(&[&args[..], &["levels of chunks"]].concat())).unwrap();
    let ids = output["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap());
    let all: Vec<u64> = std::iter::once(254).chain(b"levels of chunks".iter().map(|&b| b.into())).chain(ids).collect();
    let list = all.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    let score: Value = serde_json::from_str(&weir(&["score", "--json", "--model", &model, "--ids", &list])).unwrap();
    let levels = output["levels"].as_array().unwrap();
    assert_eq!(levels.len(), 2, "{output}");
    assert_eq!(levels[0]["middle_steps"], output["timing"]["middle_steps"]);
    let mut around = all.len() as f64;
    for (level, boundaries) in levels.iter().zip(score["boundary_levels"].as_array().unwrap()) {
        let chunks = boundaries.as_array().unwrap().iter().filter(|bit| **bit == 1).count();
        assert_eq!(level["chunks"], chunks, "{output}");
        assert_eq!(level["shortening_factor"], around / chunks as f64);
        let steps = level["middle_steps"].as_u64().unwrap() as usize;
        assert!(steps > 0 && steps <= chunks, "{output}");
        around = chunks as f64;
    }
    // a model with one level has no list
    let one = folder("one_stage");
    let args = ["generate", "--json", "--model", &one, "--max-chars", "3", "--prompt", "levels"];
    assert_eq!(serde_json::from_str::<Value>(&weir(&args)).unwrap()["levels"], Value::Null);
    let args =
        ["bench", "decode", "--json", "--batch", "1", "--context", "8", "--steps", "150", "--threads", "1", "--model"];
    for (model, count) in [(&model, 2), (&one, 0)] {
        let output: Value = serde_json::from_str(&weir(&[&args[..], &[model]].concat())).unwrap();
        let levels = output[0]["levels"].as_array().map_or(&[][..], Vec::as_slice);
        assert_eq!(levels.len(), count, "{output}");
        if let [outer, inner] = levels {
            assert_eq!(outer["shortening_factor"], output[0]["shortening_factor"]);
            assert_eq!(outer["middle_steps"], output[0]["middle_steps"]);
            let steps = [outer, inner].map(|level| level["middle_steps"].as_u64().unwrap());
            assert!(steps[0] >= steps[1] && steps[1] > 0, "{output}");
            assert_eq!(inner["shortening_factor"].as_f64().unwrap(), steps[0] as f64 / steps[1] as f64);
        }
    }
}
