//! The commands `weir score`, `generate`, `init` and `inspect` on latent segment models.

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

/// The bits per character equal the golden ones for every step size.
#[test]
fn scores_equal_the_golden_data() {
    for case in LSLM_CASES {
        let golden = Golden::open(&lslm_golden(case));
        let config: Value = serde_json::from_slice(&fs::read(lslm_golden(case).join("config.json")).unwrap()).unwrap();
        let expected = &config["golden_info"]["score"];
        let symbols = &golden.ids("ids")[1..];
        let ids = list(symbols);
        let bytes = lslm_in(case, Dtype::F32).card().vocabulary.decode(symbols).len();
        let out = TempDir::new().unwrap();
        for mode in ["full", "incremental", "chunked"] {
            let file = out.path().join(mode);
            let file = file.to_str().unwrap();
            let args = ["score", "--json", "--model", &folder(case), "--ids", &ids, "--mode", mode, "--chunk", "17"];
            let output = weir(&[&args[..], &["--logits", file]].concat()).unwrap();
            for name in ["bpc_paper", "bpc_joint", "bpc_renormalised", "bits_per_char_no_eos"] {
                let error = output[name].as_f64().unwrap() - expected[name].as_f64().unwrap();
                assert!(error.abs() < 1e-4, "{case} {mode} {name}: {error}");
            }
            assert_eq!(output["bits_per_char"], output["bpc_joint"], "the default mode counts the joint bits");
            assert_eq!(output["augmented_symbols"], expected["T"]);
            // Marks are no text.
            let bits = output["bits_per_byte"].as_f64().unwrap() * bytes as f64;
            assert!((bits - output["bits_text"].as_f64().unwrap()).abs() < 1e-6, "{case} {mode}: {bits}");
            let cuts: Vec<f64> = output["boundaries"].as_array().unwrap().iter().map(|z| z.as_f64().unwrap()).collect();
            assert_eq!(cuts, golden.get("z").iter().map(|&z| f64::from(z)).collect::<Vec<_>>(), "{case} {mode}");
            assert_eq!(output["logprobs"].as_array().unwrap().len() as u64, output["symbols"].as_u64().unwrap());
            let bytes = fs::read(file).unwrap();
            let tensors = SafeTensors::deserialize(&bytes).unwrap();
            assert_eq!(tensors.tensor("logits").unwrap().shape()[0], cuts.len());
            if mode != "full" {
                assert!(bytes == fs::read(out.path().join("full")).unwrap(), "{case} {mode}: to the bit");
            }
        }
        let args = ["score", "--json", "--model", &folder(case), "--ids", &ids, "--boundary-mode", "predictor"];
        let output = weir(&args).unwrap();
        assert_eq!(output["bits_per_char"], output["bpc_renormalised"]);
    }
}

#[test]
fn generated_events_equal_the_golden_data() {
    for (case, prompt) in [("hops0", "eos"), ("byte_vocab", "open"), ("dp", "empty")] {
        let golden = Golden::open(&lslm_golden(case));
        let name = |part: &str| format!("gen.{prompt}.nxt.{part}");
        let prompt_ids = golden.ids(&name("prompt_ids"));
        let text = golden.ids(&name("text_ids"));
        let ids = list(&prompt_ids[1..]);
        let count = text.len().to_string();
        let mut args = vec!["generate", "--json", "--temperature", "0", "--max-chars", &count];
        let folder = folder(case);
        args.extend(["--model", &folder]);
        args.extend(if prompt_ids.len() > 1 { ["--ids", &ids] } else { ["--prompt", ""] });
        let output = weir(&args).unwrap();
        let numbers = |key: &str| -> Vec<u32> {
            output[key].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
        };
        assert_eq!((numbers("events"), numbers("ids")), (golden.ids(&name("events")), text), "{case} {prompt}");
        assert!(output["usage"]["nxt_steps"].as_u64().unwrap() > 0 || prompt == "eos", "{output}");
        assert!(output["timing"]["middle_steps"].as_u64().is_some());
        assert!(!output["text"].as_str().unwrap().contains('<'), "special symbols are not part of the text");
    }
}

#[test]
fn special_symbols_in_a_text_are_rejected_by_name() {
    let rejection = |args: &[&str]| weir(&[args, &["--model", &folder("dp")]].concat()).unwrap_err();
    let message = rejection(&["score", "--ids", "8,3,9"]);
    assert!(message.contains("--ids: expected symbols of a text, found <nxt> at index 1"), "{message}");
    let message = rejection(&["generate", "--ids", "8,1"]);
    assert!(message.contains("--ids: expected symbols of a text, found <eos> at index 1"), "{message}");
    let message = rejection(&["score", "--text", "the", "--boundary-mode", "sampled"]);
    assert!(message.contains("one of nxt, predictor"), "{message}");
    // A character outside the vocabulary becomes the unknown symbol.
    let output = weir(&["score", "--json", "--text", "the ☃", "--model", &folder("dp")]).unwrap();
    assert_eq!(output["symbols"], 5);
}

#[test]
fn a_model_is_initialized_inspected_and_used() {
    let root = TempDir::new().unwrap();
    let shape = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("models/shapes/lslm-41m.json");
    let mut config: Value = serde_json::from_slice(&fs::read(shape).unwrap()).unwrap();
    for stack in ["token", "context", "decoder"] {
        for (key, value) in [("layers", 2), ("dim", 24), ("head_dim", 5), ("feed_forward", 31)] {
            config["architecture"][stack][key] = value.into();
        }
    }
    config["architecture"]["boundaries"]["hidden"] = 17.into();
    let file = root.path().join("small.json");
    let to = root.path().join("small");
    fs::write(&file, config.to_string()).unwrap();
    let file = file.to_str().unwrap();
    let to = to.to_str().unwrap();
    assert!(Command::new(env!("CARGO_BIN_EXE_weir")).args(["init", "--config", file, to]).status().unwrap().success());
    let output = weir(&["inspect", to, "--json"]).unwrap();
    assert_eq!((&output["family"], &output["boundaries"]), (&"lslm".into(), &"learned".into()));
    assert_eq!((&output["exactness"], output["tolerance"].is_null()), (&"bitwise".into(), true));
    // Byte-level text has complete code points or replacement characters.
    let args = ["generate", "--json", "--model", to, "--prompt", "日本語", "--max-chars", "40", "--seed", "3"];
    let output = weir(&args).unwrap();
    assert_eq!(output["usage"]["prompt_chars"], 9);
    let output = weir(&["segment", "--json", "--model", to, "--text", "日本語 the river"]).unwrap();
    assert!(output["closed"].as_u64().unwrap() > 0, "{output}");
}
