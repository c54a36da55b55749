//! The paper's baseline, a decoder whose texts begin with a start symbol: golden data, the layouts in which Hugging Face
//! stores its weights, and rejected sources.

use super::{super::support::*, cli::weir, *};
use safetensors::{Dtype as Stored, SafeTensors, tensor::TensorView};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};
use tempfile::TempDir;
use weir::family::convert::{self, Source};

type Tensors = BTreeMap<String, (Vec<usize>, Vec<u8>)>;

fn converted() -> &'static str {
    static ROOT: LazyLock<TempDir> = LazyLock::new(|| {
        let root = TempDir::new().unwrap();
        convert::convert(Source::Lslm, &lslm_golden("gpt2"), &root.path().join("gpt2"), false).unwrap();
        root
    });
    static PATH: LazyLock<PathBuf> = LazyLock::new(|| ROOT.path().join("gpt2"));
    PATH.to_str().unwrap()
}

fn list(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

fn logits_in(file: &Path) -> Vec<f32> {
    let bytes = fs::read(file).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    tensors.tensor("logits").unwrap().data().as_chunks().0.iter().map(|&four| f32::from_le_bytes(four)).collect()
}

#[test]
fn logits_and_scores_equal_the_golden_data() {
    let golden = Golden::open(&lslm_golden("gpt2"));
    let config: Value = serde_json::from_slice(&fs::read(lslm_golden("gpt2").join("config.json")).unwrap()).unwrap();
    let expected = &config["golden_info"]["score"];
    let ids = list(&golden.ids("ids")[1..]);
    let out = TempDir::new().unwrap();
    for mode in ["full", "incremental", "chunked"] {
        let file = out.path().join(mode);
        let args = ["score", "--json", "--model", converted(), "--ids", &ids, "--mode", mode, "--chunk", "17"];
        let output = weir(&[&args[..], &["--logits", file.to_str().unwrap()]].concat()).unwrap();
        for name in ["bpc_paper", "bits_per_char_no_eos", "bits_text", "bits_eos"] {
            let error = output[name].as_f64().unwrap() - expected[name].as_f64().unwrap();
            assert!(error.abs() < if name.starts_with("bits_t") { 1e-2 } else { 1e-4 }, "{mode} {name}: {error}");
        }
        assert!(output["bpc_renormalised"].as_f64() < output["bpc_paper"].as_f64());
        assert_eq!(
            (&output["bits_per_char"], &output["augmented_symbols"]),
            (&output["bpc_renormalised"], &expected["T"])
        );
        assert!(output.get("bpc_joint").is_none() && output["shortening_factor"].is_null(), "no segments: {output}");
        let max_error = difference(&logits_in(&file), golden.get("logits"));
        assert!(max_error <= LOGITS, "{mode}: {max_error}");
        if mode != "full" {
            assert!(fs::read(&file).unwrap() == fs::read(out.path().join("full")).unwrap(), "{mode}: to the bit");
        }
        let logprobs: Vec<f32> =
            output["logprobs"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect();
        assert!(difference(&logprobs, golden.get("target_logprobs")) <= LOGITS);
    }
}

/// The learned positions limit a text to 255 symbols, as the start symbol takes the first.
#[test]
fn the_longest_text_is_accepted_and_one_more_symbol_rejected() {
    let golden = Golden::open(&lslm_golden("gpt2"));
    let ids = golden.ids("long.ids");
    let out = TempDir::new().unwrap();
    let file = out.path().join("logits");
    let text = list(&ids[1..]);
    let args = ["score", "--json", "--model", converted(), "--ids", &text, "--logits", file.to_str().unwrap()];
    let output = weir(&args).unwrap();
    let logits = logits_in(&file);
    let last = golden.get("long.logits");
    assert!(difference(&logits[logits.len() - last.len()..], last) <= LOGITS);
    assert_eq!(output["symbols"], 255);
    // The end symbol is scored but not fed.
    let ended = format!("{text},1");
    assert!(weir(&["score", "--json", "--model", converted(), "--ids", &ended]).is_ok());
    for command in ["score", "generate"] {
        let long = format!("{text},9");
        let message = weir(&[command, "--model", converted(), "--ids", &long]).unwrap_err();
        assert!(
            message.contains("expected at most 255 characters (no more positions were learned), found 256"),
            "{message}"
        );
    }
    let message = weir(&["score", "--model", converted(), "--ids", "9", "--max-symbols", "256"]).unwrap_err();
    assert!(message.contains("at most 255 (no more positions were learned)"), "{message}");
    let prompt = list(&ids[1..251]);
    let args = ["generate", "--json", "--model", converted(), "--max-chars", "100", "--ids", &prompt];
    let output = weir(&args).unwrap();
    assert_eq!((&output["reason"], &output["usage"]["generated_chars"]), (&"max_context".into(), &5.into()));
}

#[test]
fn generated_text_equals_the_golden_data() {
    let golden = Golden::open(&lslm_golden("gpt2"));
    let prompt_ids = golden.ids("gen.open.prompt_ids");
    let events = golden.ids("gen.open.events");
    let args = ["generate", "--json", "--temperature", "0", "--max-chars", "60", "--model", converted()];
    let output = weir(&[&args[..], &["--ids", &list(&prompt_ids[1..])]].concat()).unwrap();
    assert_eq!(output["ids"], json!(events));
    assert_eq!(output["usage"]["nxt_steps"], 0);
    // The text is generated from the start symbol only.
    let output = weir(&[&args[..], &["--prompt", ""]].concat()).unwrap();
    let ids = output["ids"].as_array().unwrap();
    assert_eq!((ids.len(), &output["usage"]["prompt_chars"]), (60, &0.into()));
    assert!(ids.iter().all(|id| id.as_u64().unwrap() > 4), "no special symbols: {output}");
    let first = weir(&["score", "--json", "--model", converted(), "--ids", &ids[0].to_string()]).unwrap();
    assert_eq!(first["logprobs"].as_array().unwrap().len(), 1, "the first symbol has a probability");
}

/// Returns a changed copy of the fixture.
fn changed(change: impl Fn(&mut Value, &mut Tensors)) -> TempDir {
    let source = lslm_golden("gpt2");
    let dir = TempDir::new().unwrap();
    let mut config: Value = serde_json::from_slice(&fs::read(source.join("config.json")).unwrap()).unwrap();
    let bytes = fs::read(source.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors: Tensors = tensors
        .tensors()
        .into_iter()
        .map(|(name, view)| (name, (view.shape().to_vec(), view.data().to_vec())))
        .collect();
    change(&mut config, &mut tensors);
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let views = tensors.iter().map(|(name, (shape, data))| {
        let is_mask = data.len() == shape.iter().product::<usize>(); // one byte each
        let dtype = if is_mask { Stored::BOOL } else { Stored::F32 };
        (name.clone(), TensorView::new(dtype, shape.clone(), data).unwrap())
    });
    fs::write(dir.path().join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    dir
}

/// Converts a folder. Returns the weights and the configuration.
fn convert_files(source: Source, from: &TempDir) -> Result<(Vec<u8>, Value), String> {
    let dest = TempDir::new().unwrap();
    convert::convert(source, from.path(), dest.path(), false).map_err(|error| error.to_string())?;
    let read = |name: &str| fs::read(dest.path().join(name)).unwrap();
    Ok((read("model.safetensors"), serde_json::from_slice(&read("config.json")).unwrap()))
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
            tensors.insert(format!("h.{layer}.attn.bias"), (vec![1, 1, 2, 2], vec![0; 16]));
            tensors.insert(format!("h.{layer}.attn.masked_bias"), (vec![], vec![0; 4]));
        }
        tensors.insert("lm_head.weight".into(), tensors["wte.weight"].clone());
    });
    assert_eq!(convert_files(Source::Gpt2, &unprefixed).unwrap(), plain);
    // Versions of transformers up to 2023 stored the mask as booleans.
    let masked = changed(|_, tensors| {
        for layer in 0..3 {
            tensors.insert(format!("transformer.h.{layer}.attn.bias"), (vec![1, 1, 2, 2], vec![1, 0, 1, 1]));
        }
    });
    assert_eq!(convert_files(Source::Gpt2, &masked).unwrap(), plain);
    // This source has an untied head, and no vocabulary in the configuration.
    let untied = changed(|config, tensors| {
        config["tie_word_embeddings"] = false.into();
        config.as_object_mut().unwrap().retain(|key, _| !key.starts_with("vocab_t") && key != "vocab");
        tensors.insert("lm_head.weight".into(), tensors["transformer.wpe.weight"].clone());
        tensors.get_mut("lm_head.weight").unwrap().0[0] = 28;
        tensors.get_mut("lm_head.weight").unwrap().1.truncate(28 * 32 * 4);
    });
    let (_, config) = convert_files(Source::Gpt2, &untied).unwrap();
    assert_eq!((&config["architecture"]["tied"], config["vocabulary"].get("specials")), (&false.into(), None));
}

#[test]
fn sources_that_are_not_gpt2_are_rejected() {
    type Change = fn(&mut Value, &mut Tensors);
    let cases: [(&str, Change); 10] = [
        ("n_head: expected a divisor of n_embd, 32, found 5", |config, _| config["n_head"] = 5.into()),
        ("activation_function: expected gelu_new, gelu, relu or silu", |config, _| {
            config["activation_function"] = "tanh".into();
        }),
        ("scale_attn_by_inverse_layer_idx: expected false", |config, _| {
            config["scale_attn_by_inverse_layer_idx"] = true.into();
        }),
        ("vocab_size: expected 28, as many as there are symbols", |config, _| config["vocab_size"] = 29.into()),
        ("n_layer: expected 1 to", |config, _| config["n_layer"] = 0.into()),
        ("next_token_id: expected a distinct id", |config, _| config["next_token_id"] = 1.into()),
        (
            "n_positions: expected room for 2 positions: the start symbol's and a symbol's, found 1",
            |config, tensors| {
                config["n_positions"] = 1.into();
                let table = tensors.get_mut("transformer.wpe.weight").unwrap();
                table.0[0] = 1;
                table.1.truncate(128);
            },
        ),
        ("transformer.h.1.ln_2.bias: expected a tensor, found none", |_, tensors| {
            tensors.remove("transformer.h.1.ln_2.bias");
        }),
        ("transformer.h.1.ln_2.bias: expected dtype F32, F16, BF16 or I8, found dtype \"BOOL\"", |_, tensors| {
            tensors.get_mut("transformer.h.1.ln_2.bias").unwrap().1.truncate(32);
        }),
        ("lm_head.weight: expected the numbers of transformer.wte.weight, to which it is tied", |_, tensors| {
            let mut head = tensors["transformer.wte.weight"].clone();
            head.1[0] ^= 1;
            tensors.insert("lm_head.weight".into(), head);
        }),
    ];
    for (expected, change) in cases {
        let message = convert_files(Source::Lslm, &changed(change)).unwrap_err();
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn a_note_says_that_the_tokenizer_is_left_behind() {
    let source = changed(|_, _| {});
    let dest = TempDir::new().unwrap();
    let convert = |name: &str| {
        let dest = dest.path().join(name);
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        let output = command.args(["convert", "--from", "gpt2"]).args([source.path(), &dest]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap().contains("conversions from GPT-2 read no tokenizer")
    };
    assert!(!convert("without"));
    fs::write(source.path().join("tokenizer.json"), "{}").unwrap();
    assert!(convert("with"));
}
