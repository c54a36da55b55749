//! Checkpoints of latent segment models and of their GPT-2: conversion, scores and texts from the command line.

use crate::{
    lslm::LOGITS,
    process::{scored_in_each_mode, weir, weir_json},
    support::{configured, published_shape, read_json},
    verify::{Tensors, changed_source},
    *,
};
use safetensors::Dtype as Stored;
use weir::models::convert;

#[test]
fn absent_keys_have_the_defaults_of_t5_and_of_the_paper() {
    let from = configured(&golden_data("lslm/dp"), |config| {
        let keys = config.as_object_mut().unwrap();
        for key in ["feed_forward_proj", "layer_norm_epsilon", "width_matching", "generation_boundary_source"] {
            keys.remove(key);
        }
        // These keys are ignored.
        keys.insert("dropout_rate".into(), json!(0.1));
        keys.insert("golden_info".into(), Value::Null);
        keys["decoder"].as_object_mut().unwrap().remove("d_kv");
    });
    convert::convert(Source::Lslm, from.path(), TempDir::new().unwrap().path(), false).unwrap();
}

fn folder(case: &str) -> String {
    checkpoint("lslm", case).to_str().unwrap().to_owned()
}

fn list(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// The bits per character equal the golden ones for every step size.
#[test]
fn scores_equal_the_golden_data() {
    for case in LSLM_CASES {
        let golden = Golden::open(&golden_data("lslm").join(case));
        let config = read_json(&golden_data("lslm").join(case).join("config.json"));
        let expected = &config["golden_info"]["score"];
        let symbols = &golden.ids("ids")[1..];
        let bytes = model_of("lslm", case, Dtype::F32).card().vocabulary.decode(symbols).len();
        let (outputs, logits) = scored_in_each_mode(&checkpoint("lslm", case), symbols);
        for output in outputs {
            for name in ["bpc_paper", "bpc_joint", "bpc_renormalised", "bits_per_char_no_eos"] {
                let error = output[name].as_f64().unwrap() - expected[name].as_f64().unwrap();
                assert!(error.abs() < 1e-4, "{case} {name}: {error}");
            }
            assert_eq!(output["bits_per_char"], output["bpc_joint"], "the default mode counts the joint bits");
            assert_eq!(output["augmented_symbols"], expected["T"]);
            // Marks are no text.
            let bits = output["bits_per_byte"].as_f64().unwrap() * bytes as f64;
            assert!((bits - output["bits_text"].as_f64().unwrap()).abs() < 1e-6, "{case}: {bits}");
            let cuts: Vec<f32> = serde_json::from_value(output["boundaries"].clone()).unwrap();
            assert_eq!(cuts, golden.get("z"), "{case}");
            assert_eq!(output["logprobs"].as_array().unwrap().len() as u64, output["symbols"].as_u64().unwrap());
            assert_eq!(logits.shape("logits")[0], cuts.len());
        }
        let args =
            ["score", "--json", "--model", &folder(case), "--ids", &list(symbols), "--boundary-mode", "predictor"];
        let output = weir_json(&args);
        assert_eq!(output["bits_per_char"], output["bpc_renormalised"]);
    }
}

#[test]
fn a_model_is_initialized_inspected_and_used() {
    let root = TempDir::new().unwrap();
    let mut config = published_shape("lslm-41m.json");
    let published = Config::parse(config.to_string().as_bytes(), Path::new("config.json")).unwrap();
    assert_eq!(
        blueprint(&published, Path::new("config.json")).unwrap().shape(),
        "token encoder 2 × 512, context encoder 8 × 512, segment decoder 2 × 512, mean pooling, learned boundaries"
    );
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
    weir(&["init", "--config", file, to]).unwrap();
    let output = weir_json(&["inspect", to, "--json"]);
    assert_eq!((&output["family"], &output["boundaries"]), (&"lslm".into(), &"learned".into()));
    assert_eq!((&output["exactness"], output["tolerance"].is_null()), (&"bitwise".into(), true));
    assert_eq!(
        output["shape"],
        "token encoder 2 × 24, context encoder 2 × 24, segment decoder 2 × 24, mean pooling, learned boundaries"
    );
    // Byte-level text has complete code points or replacement characters.
    let args = ["generate", "--json", "--model", to, "--prompt", "日本語", "--max-chars", "40", "--seed", "3"];
    let output = weir_json(&args);
    assert_eq!(output["usage"]["prompt_chars"], 9);
    let output = weir_json(&["segment", "--json", "--model", to, "--text", "日本語 the river"]);
    assert!(output["closed"].as_u64().unwrap() > 0, "{output}");
}

#[test]
fn logits_and_scores_of_the_baseline_equal_the_golden_data() {
    let golden = Golden::open(&golden_data("lslm/gpt2"));
    let config = read_json(&golden_data("lslm/gpt2").join("config.json"));
    let expected = &config["golden_info"]["score"];
    let (outputs, logits) = scored_in_each_mode(&checkpoint("lslm", "gpt2"), &golden.ids("ids")[1..]);
    let max_error = difference(logits.get("logits"), golden.get("logits"));
    assert!(max_error <= LOGITS, "{max_error}");
    for output in outputs {
        for name in ["bpc_paper", "bits_per_char_no_eos", "bits_text", "bits_eos"] {
            let error = output[name].as_f64().unwrap() - expected[name].as_f64().unwrap();
            assert!(error.abs() < if name.starts_with("bits_t") { 1e-2 } else { 1e-4 }, "{name}: {error}");
        }
        assert!(output["bpc_renormalised"].as_f64() < output["bpc_paper"].as_f64());
        assert_eq!(
            (&output["bits_per_char"], &output["augmented_symbols"]),
            (&output["bpc_renormalised"], &expected["T"])
        );
        assert!(output.get("bpc_joint").is_none() && output["shortening_factor"].is_null(), "no segments: {output}");
        let logprobs: Vec<f32> = serde_json::from_value(output["logprobs"].clone()).unwrap();
        assert!(difference(&logprobs, golden.get("target_logprobs")) <= LOGITS);
    }
}

/// The learned positions limit a text to 255 symbols, as the start symbol takes the first.
#[test]
fn the_longest_text_is_accepted_and_one_more_symbol_rejected() {
    let golden = Golden::open(&golden_data("lslm/gpt2"));
    let ids = golden.ids("long.ids");
    let out = TempDir::new().unwrap();
    let file = out.path().join("logits");
    let text = list(&ids[1..]);
    let args = ["score", "--json", "--model", &folder("gpt2"), "--ids", &text, "--logits", file.to_str().unwrap()];
    let output = weir_json(&args);
    let written = Golden::read_file(&file);
    let logits = written.get("logits");
    let last = golden.get("long.logits");
    assert!(difference(&logits[logits.len() - last.len()..], last) <= LOGITS);
    assert_eq!(output["symbols"], 255);
    // The end symbol is scored but not fed.
    let ended = format!("{text},1");
    assert!(weir(&["score", "--json", "--model", &folder("gpt2"), "--ids", &ended]).is_ok());
    for command in ["score", "generate"] {
        let long = format!("{text},9");
        let message = weir(&[command, "--model", &folder("gpt2"), "--ids", &long]).unwrap_err();
        assert!(
            message.contains("expected at most 255 symbols (no more positions were learned), found 256"),
            "{message}"
        );
    }
    let message = weir(&["score", "--model", &folder("gpt2"), "--ids", "9", "--max-symbols", "256"]).unwrap_err();
    assert!(message.contains("at most 255 (no more positions were learned)"), "{message}");
    let prompt = list(&ids[1..251]);
    let args = ["generate", "--json", "--model", &folder("gpt2"), "--max-chars", "100", "--ids", &prompt];
    let output = weir_json(&args);
    assert_eq!((&output["reason"], &output["usage"]["generated_chars"]), (&"max_context".into(), &5.into()));
}

/// Returns a changed copy of the fixture.
fn changed(change: impl FnOnce(&mut Value, &mut Tensors)) -> TempDir {
    changed_source(&golden_data("lslm/gpt2"), change)
}

/// Converts a folder. Returns the weights and the configuration.
fn convert_files(source: Source, from: &TempDir) -> Result<(Vec<u8>, Value), String> {
    let dest = TempDir::new().unwrap();
    convert::convert(source, from.path(), dest.path(), false).map_err(|error| error.to_string())?;
    Ok((fs::read(dest.path().join("model.safetensors")).unwrap(), read_json(&dest.path().join("config.json"))))
}

#[test]
fn all_hugging_face_layouts_convert_to_the_same_model() {
    let plain = convert_files(Source::Lslm, &changed(|_, _| {})).unwrap();
    assert_eq!(convert_files(Source::Gpt2, &changed(|_, _| {})).unwrap(), plain);
    // This layout has no prefix, but the mask's buffers, and the tied head as a tensor.
    let unprefixed = changed(|_, tensors| {
        let short = |name: String| name.strip_prefix("transformer.").unwrap().to_owned();
        *tensors = std::mem::take(tensors).into_iter().map(|(name, tensor)| (short(name), tensor)).collect();
        for layer in 0..3 {
            tensors.insert(format!("h.{layer}.attn.bias"), (Stored::F32, vec![1, 1, 2, 2], vec![0; 16]));
            tensors.insert(format!("h.{layer}.attn.masked_bias"), (Stored::F32, vec![], vec![0; 4]));
        }
        tensors.insert("lm_head.weight".into(), tensors["wte.weight"].clone());
    });
    assert_eq!(convert_files(Source::Gpt2, &unprefixed).unwrap(), plain);
    // Versions of transformers up to 2023 stored the mask as booleans.
    let masked = changed(|_, tensors| {
        for layer in 0..3 {
            tensors
                .insert(format!("transformer.h.{layer}.attn.bias"), (Stored::BOOL, vec![1, 1, 2, 2], vec![1, 0, 1, 1]));
        }
    });
    assert_eq!(convert_files(Source::Gpt2, &masked).unwrap(), plain);
    // This source has an untied head, and no vocabulary in the configuration.
    let untied = changed(|config, tensors| {
        config["tie_word_embeddings"] = false.into();
        config.as_object_mut().unwrap().retain(|key, _| !key.starts_with("vocab_t") && key != "vocab");
        tensors.insert("lm_head.weight".into(), tensors["transformer.wpe.weight"].clone());
        tensors.get_mut("lm_head.weight").unwrap().1[0] = 28;
        tensors.get_mut("lm_head.weight").unwrap().2.truncate(28 * 32 * 4);
    });
    let (_, config) = convert_files(Source::Gpt2, &untied).unwrap();
    assert_eq!((&config["architecture"]["tied"], config["vocabulary"].get("specials")), (&false.into(), None));
}

#[test]
fn sources_that_are_not_gpt2_are_rejected() {
    type Change = fn(&mut Value, &mut Tensors);
    let cases: [(&str, Change); 4] = [
        (
            "n_positions: expected room for 2 positions: the start symbol's and a symbol's, found 1",
            |config, tensors| {
                config["n_positions"] = 1.into();
                let table = tensors.get_mut("transformer.wpe.weight").unwrap();
                table.1[0] = 1;
                table.2.truncate(128);
            },
        ),
        ("transformer.h.1.ln_2.bias: expected a tensor, found none", |_, tensors| {
            tensors.remove("transformer.h.1.ln_2.bias");
        }),
        ("transformer.h.1.ln_2.bias: expected dtype F64, F32, F16, BF16 or I8, found dtype \"BOOL\"", |_, tensors| {
            let bias = tensors.get_mut("transformer.h.1.ln_2.bias").unwrap();
            bias.0 = Stored::BOOL;
            bias.2.truncate(32);
        }),
        ("lm_head.weight: expected the numbers of transformer.wte.weight, to which it is tied", |_, tensors| {
            let mut head = tensors["transformer.wte.weight"].clone();
            head.2[0] ^= 1;
            tensors.insert("lm_head.weight".into(), head);
        }),
    ];
    for (expected, change) in cases {
        let message = convert_files(Source::Lslm, &changed(change)).unwrap_err();
        assert!(message.contains(expected), "{message}");
    }
}
