//! Conversion of official checkpoints: both forms of the tensors, and what is refused.

use super::{super::support::hnet_golden, *};
use serde_json::{Value, json};
use std::{fs, path::Path};
use tempfile::TempDir;
use weir::family::convert::{Source, convert};

#[test]
fn a_torch_file_gives_the_weights_of_safetensors() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/hnet-pt/two_stage");
    let to = TempDir::new().unwrap();
    let written = convert(Source::Hnet, &folder, to.path(), false).unwrap();
    let bytes = |folder: &Path| fs::read(folder.join("model.safetensors")).unwrap();
    assert_eq!(bytes(to.path()), bytes(&hnet_converted("two_stage")));
    assert!(written.parameters > 0 && written.shape.contains("2 levels"), "{}", written.shape);
}

/// Converts a fixture with a changed configuration and returns the error.
fn refused(case: &str, change: impl Fn(&mut Value)) -> String {
    let from = TempDir::new().unwrap();
    let source = hnet_golden(case);
    let mut config: Value = serde_json::from_slice(&fs::read(source.join("config.json")).unwrap()).unwrap();
    change(&mut config);
    fs::write(from.path().join("config.json"), config.to_string()).unwrap();
    fs::copy(source.join("model.safetensors"), from.path().join("model.safetensors")).unwrap();
    let to = from.path().join("to");
    let message = convert(Source::Hnet, from.path(), &to, false).unwrap_err().to_string();
    assert!(!to.join("config.json").exists(), "{message}");
    message.replace(&*from.path().to_string_lossy(), "SRC")
}

#[test]
fn configurations_out_of_bounds_are_refused_by_key() {
    let cases: [(fn(&mut Value), &str); 15] = [
        (|config| config["arch_layout"] = json!(["m2", "T2", "m2"]), "config.json: arch_layout: expected [encoder"),
        (|config| config["arch_layout"] = json!(["m2", ["x2"], "m2"]), "arch_layout[1][0]: expected letters of mMtT"),
        (|config| config["arch_layout"] = json!(["T2"]), "d_model: expected 1 numbers, one for each stage"),
        (
            |config| config["arch_layout"] = json!(["m2", ["m2", ["T2"], "m2"], "m2"]),
            "d_model: expected 3 numbers, one for each stage of arch_layout, found 2 numbers",
        ),
        (|config| config["d_model"] = json!([64, 32]), "d_model[1]: expected at least 64"),
        (|config| config["d_model"] = json!([16, 32]), "ssm_cfg.expand[0]: expected expand · d_model divisible by 64"),
        (|config| config["d_intermediate"] = json!([0, 0]), "d_intermediate[1]: expected 1 to"),
        (
            |config| config["attn_cfg"]["num_heads"] = json!([2, 3]),
            "attn_cfg.num_heads[1]: expected a divisor of d_model, 32, found 3",
        ),
        (
            |config| config["attn_cfg"]["rotary_emb_dim"] = json!([16, 18]),
            "attn_cfg.rotary_emb_dim[1]: expected an even",
        ),
        (
            |config| config["attn_cfg"]["window_size"] = json!([1023, -2]),
            "attn_cfg.window_size[1]: expected -1 for no window, or 0 to 16777215, found -2",
        ),
        (|config| config["ssm_cfg"]["d_conv"] = json!(0), "ssm_cfg.d_conv[0]: expected 1 to 64, found 0"),
        (|config| config["ssm_cfg"]["d_ssm"] = json!(0), "ssm_cfg.d_ssm: expected one of"),
        (|config| config["vocab_size"] = json!(257), "vocab_size: expected 256, the byte values, found 257"),
        (|config| config["tie_embeddings"] = json!(true), "lm_head.weight: expected the numbers of embeddings.weight"),
        (
            |config| config["arch_layout"] = json!(["m2", ["T3"], "m2"]),
            "backbone.main_network.main_network.layers.2.mixer.Wqkv.weight: expected a tensor, found none (5 more",
        ),
    ];
    for (change, expected) in cases {
        let message = refused("one_stage", change);
        assert!(message.contains(expected), "{message}\n{expected}");
    }
    let superfluous = refused("one_stage", |config| config["arch_layout"] = json!(["m1", ["T2"], "m2"]));
    assert!(superfluous.contains("backbone.encoder.layers.1") && superfluous.contains("found one"), "{superfluous}");
    let shape = refused("one_stage", |config| config["ssm_cfg"]["d_state"] = json!(32));
    assert!(shape.contains("expected shape"), "{shape}");
}

#[test]
fn two_files_of_tensors_are_refused() {
    let from = TempDir::new().unwrap();
    let source = hnet_golden("two_stage");
    for name in ["config.json", "model.safetensors"] {
        fs::copy(source.join(name), from.path().join(name)).unwrap();
    }
    fs::write(from.path().join("checkpoint.pt"), "no archive").unwrap();
    let message = convert(Source::Hnet, from.path(), &from.path().join("to"), false).unwrap_err().to_string();
    assert!(message.contains("expected model.safetensors, or one .pt file, found both"), "{message}");
    fs::remove_file(from.path().join("model.safetensors")).unwrap();
    let message = convert(Source::Hnet, from.path(), &from.path().join("to"), false).unwrap_err().to_string();
    assert!(message.contains("checkpoint.pt") && message.contains("a zip archive"), "{message}");
}
