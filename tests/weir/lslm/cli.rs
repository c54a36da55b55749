//! `weir score`, `generate`, `init` and `inspect` of latent segment models, as programs call them.

use super::{super::support::*, *};
use safetensors::SafeTensors;
use serde_json::Value;
use std::{fs, process::Command};
use tempfile::TempDir;

pub(super) fn weir(args: &[&str]) -> Result<Value, String> {
    let output = Command::new(env!("CARGO_BIN_EXE_weir")).args(args).env_clear().output().unwrap();
    if output.status.success() {
        return Ok(serde_json::from_slice(&output.stdout).unwrap());
    }
    Err(String::from_utf8(output.stderr).unwrap())
}

fn folder(case: &str) -> String {
    lslm_converted(case).to_str().unwrap().to_owned()
}

fn list(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// The figures that the fixtures give, in every way to cut a text into steps.
#[test]
fn the_three_figures_are_the_golden_ones() {
    for case in LSLM_CASES {
        let golden = Golden::of(&lslm_golden(case));
        let config: Value = serde_json::from_slice(&fs::read(lslm_golden(case).join("config.json")).unwrap()).unwrap();
        let expected = &config["golden_info"]["score"];
        let ids = list(&golden.ids("ids")[1..]);
        let out = TempDir::new().unwrap();
        for mode in ["full", "incremental", "chunked"] {
            let file = out.path().join(mode);
            let file = file.to_str().unwrap();
            let args = ["score", "--json", "--model", &folder(case), "--ids", &ids, "--mode", mode, "--chunk", "17"];
            let told = weir(&[&args[..], &["--logits", file]].concat()).unwrap();
            for name in ["bpc_paper", "bpc_joint", "bpc_renormalised", "bits_per_char_no_eos"] {
                let off = told[name].as_f64().unwrap() - expected[name].as_f64().unwrap();
                assert!(off.abs() < 1e-4, "{case} {mode} {name}: {off}");
            }
            assert_eq!(told["bits_per_char"], told["bpc_joint"], "what the model's own driver costs");
            assert_eq!(told["augmented_symbols"], expected["T"]);
            let cuts: Vec<f64> = told["boundaries"].as_array().unwrap().iter().map(|z| z.as_f64().unwrap()).collect();
            assert_eq!(cuts, golden.get("z").iter().map(|&z| f64::from(z)).collect::<Vec<_>>(), "{case} {mode}");
            assert_eq!(told["logprobs"].as_array().unwrap().len() as u64, told["symbols"].as_u64().unwrap());
            let bytes = fs::read(file).unwrap();
            let tensors = SafeTensors::deserialize(&bytes).unwrap();
            assert_eq!(tensors.tensor("logits").unwrap().shape()[0], cuts.len());
            if mode != "full" {
                assert!(bytes == fs::read(out.path().join("full")).unwrap(), "{case} {mode}: to the bit");
            }
        }
        let args = ["score", "--json", "--model", &folder(case), "--ids", &ids, "--boundary-mode", "predictor"];
        let told = weir(&args).unwrap();
        assert_eq!(told["bits_per_char"], told["bpc_renormalised"]);
    }
}

#[test]
fn generated_events_are_the_golden_ones() {
    for (case, prompt) in [("hops0", "eos"), ("byte_vocab", "open"), ("dp", "empty")] {
        let golden = Golden::of(&lslm_golden(case));
        let name = |part: &str| format!("gen.{prompt}.nxt.{part}");
        let (given, text) = (golden.ids(&name("prompt_ids")), golden.ids(&name("text_ids")));
        let (ids, count) = (list(&given[1..]), text.len().to_string());
        let mut args = vec!["generate", "--json", "--temperature", "0", "--max-chars", &count];
        let folder = folder(case);
        args.extend(["--model", &folder]);
        args.extend(if given.len() > 1 { ["--ids", &ids] } else { ["--prompt", ""] });
        let told = weir(&args).unwrap();
        let numbers = |key: &str| -> Vec<u32> {
            told[key].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
        };
        assert_eq!((numbers("events"), numbers("ids")), (golden.ids(&name("events")), text), "{case} {prompt}");
        assert!(told["usage"]["nxt_steps"].as_u64().unwrap() > 0 || prompt == "eos", "{told}");
        assert!(told["timing"]["middle_steps"].as_u64().is_some());
        assert!(!told["text"].as_str().unwrap().contains('<'), "marks are no text");
    }
}

#[test]
fn marks_in_a_text_are_refused_by_name() {
    let refused = |args: &[&str]| weir(&[args, &["--model", &folder("dp")]].concat()).unwrap_err();
    let told = refused(&["score", "--ids", "8,3,9"]);
    assert!(told.contains("--ids: <nxt>, which is not a character, at character 1"), "{told}");
    let told = refused(&["generate", "--ids", "8,1"]);
    assert!(told.contains("prompt: <eos>, which is not a character, at character 1"), "{told}");
    let told = refused(&["score", "--text", "the", "--boundary-mode", "sampled"]);
    assert!(told.contains("one of nxt, predictor"), "{told}");
    // a character that the vocabulary lacks is the unknown one
    let told = weir(&["score", "--json", "--text", "the ☃", "--model", &folder("dp")]).unwrap();
    assert_eq!(told["symbols"], 5);
}

#[test]
fn a_shape_is_made_inspected_and_written_with() {
    let root = TempDir::new().unwrap();
    let shape = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("models/shapes/lslm-41m.json");
    let mut config: Value = serde_json::from_slice(&fs::read(shape).unwrap()).unwrap();
    for stack in ["token", "context", "decoder"] {
        for (key, value) in [("layers", 2), ("dim", 24), ("head_dim", 5), ("feed_forward", 31)] {
            config["architecture"][stack][key] = value.into();
        }
    }
    config["architecture"]["boundaries"]["hidden"] = 17.into();
    let (file, to) = (root.path().join("small.json"), root.path().join("small"));
    fs::write(&file, config.to_string()).unwrap();
    let (file, to) = (file.to_str().unwrap(), to.to_str().unwrap());
    assert!(Command::new(env!("CARGO_BIN_EXE_weir")).args(["init", "--config", file, to]).status().unwrap().success());
    let told = weir(&["inspect", to, "--json"]).unwrap();
    assert_eq!((&told["family"], &told["boundaries"]), (&"lslm".into(), &"learned".into()));
    // text in bytes: whole code points, or what stands for a part of one
    let args = ["generate", "--json", "--model", to, "--prompt", "日本語", "--max-chars", "40", "--seed", "3"];
    let told = weir(&args).unwrap();
    assert_eq!(told["usage"]["prompt_chars"], 9);
    let told = weir(&["segment", "--json", "--model", to, "--text", "日本語 the river"]).unwrap();
    assert!(told["closed"].as_u64().unwrap() > 0, "{told}");
}
