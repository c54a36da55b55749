//! torchscale's checkpoints: both locations of the scale buffers, fairseq's prefix, and refused files.

use super::{golden, read};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::{Value, json};
use std::{collections::BTreeMap, fs};
use tempfile::TempDir;
use weir::{
    error::Result,
    family::convert::{self, Source},
};

type Tensors = BTreeMap<String, (Vec<usize>, Vec<u8>)>;

/// Copies a fixture and changes its config and tensors.
fn changed(case: &str, change: impl Fn(&mut Value, &mut Tensors)) -> TempDir {
    let source = golden("torchscale").join(case);
    let dir = TempDir::new().unwrap();
    let mut config: Value = serde_json::from_slice(&fs::read(source.join("config.json")).unwrap()).unwrap();
    let bytes = fs::read(source.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensors = file.tensors().into_iter();
    let mut tensors: Tensors =
        tensors.map(|(name, view)| (name, (view.shape().to_vec(), view.data().to_vec()))).collect();
    change(&mut config, &mut tensors);
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let views = tensors
        .iter()
        .map(|(name, (shape, data))| (name.clone(), TensorView::new(Dtype::F32, shape.clone(), data).unwrap()));
    fs::write(dir.path().join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    dir
}

fn converted(from: &TempDir) -> Result<TempDir> {
    let dest = TempDir::new().unwrap();
    convert::convert(Source::Torchscale, from.path(), dest.path(), false).map(|_| dest)
}

fn message(case: &str, change: impl Fn(&mut Value, &mut Tensors)) -> String {
    converted(&changed(case, change)).unwrap_err().to_string()
}

fn written(dest: &TempDir) -> (Vec<u8>, String) {
    let read = |name: &str| fs::read(dest.path().join(name)).unwrap();
    (read("model.safetensors"), String::from_utf8(read("config.json")).unwrap())
}

#[test]
fn tensors_are_copied_to_their_names() {
    let dest = converted(&changed("xpos_full", |_, _| {})).unwrap();
    let (config, weights) = read(dest.path());
    assert_eq!((config.family.as_str(), config.training_length), ("decoder", 32));
    let source = fs::read(golden("torchscale/xpos_full/model.safetensors")).unwrap();
    let official = SafeTensors::deserialize(&source).unwrap();
    let official_tensor = |name: &str| official.tensor(name).unwrap().data().to_vec();
    let converted_tensor =
        |name: &str| -> Vec<u8> { weights.get(name).unwrap().numbers().iter().flat_map(|x| x.to_le_bytes()).collect() };
    let parts = ["q", "k", "v"].map(|part| official_tensor(&format!("layers.1.self_attn.{part}_proj.weight")));
    assert_eq!(converted_tensor("layers.1.attention.qkv.weight"), parts.concat());
    for (name, official) in [
        ("embedding.weight", "embed_tokens.weight"),
        ("layers.0.attention.inner_norm.bias", "layers.0.self_attn.inner_attn_ln.bias"),
        ("layers.0.feed_forward.inner_norm.weight", "layers.0.ffn.ffn_layernorm.weight"),
        ("layers.1.feed_forward.norm.weight", "layers.1.final_layer_norm.weight"),
        ("layers.1.feed_forward.down.weight", "layers.1.ffn.fc2.weight"),
        ("norm.weight", "layer_norm.weight"),
        ("head.weight", "output_projection.weight"),
    ] {
        assert_eq!(converted_tensor(name), official_tensor(official), "{name}");
    }
}

#[test]
fn prefixes_and_buffer_locations_are_optional() {
    let plain = written(&converted(&changed("xpos_full", |_, _| {})).unwrap());
    let prefixed = changed("xpos_full", |_, tensors| {
        *tensors =
            std::mem::take(tensors).into_iter().map(|(name, tensor)| (format!("decoder.{name}"), tensor)).collect();
        tensors.insert("decoder.version".into(), (vec![1], vec![0; 4]));
    });
    assert_eq!(written(&converted(&prefixed).unwrap()), plain);
    let top = changed("xpos_full", |_, tensors| {
        let scale = tensors.remove("layers.0.self_attn.xpos.scale").unwrap();
        tensors.remove("layers.1.self_attn.xpos.scale");
        tensors.insert("self_attn_xpos.scale".into(), scale);
    });
    assert_eq!(written(&converted(&top).unwrap()), plain);
    let without_scale = changed("xpos_full", |_, tensors| tensors.retain(|name, _| !name.ends_with("xpos.scale")));
    assert_eq!(written(&converted(&without_scale).unwrap()), plain);
}

#[test]
fn a_learned_table_starts_after_the_padding() {
    let learned = changed("xpos_short", |config, tensors| {
        (config["position"], config["max_positions"]) = (json!("learned"), json!(3));
        config["train_length"] = json!(3);
        tensors.remove("self_attn_xpos.scale");
        let rows: Vec<u8> = (0..5 * 32).flat_map(|n| (n as f32).to_le_bytes()).collect();
        tensors.insert("embed_positions.weight".into(), (vec![5, 32], rows));
    });
    let dest = converted(&learned).unwrap();
    let (_, weights) = read(dest.path());
    let table = weights.get("position.table").unwrap();
    assert_eq!((&*table.shape, table.numbers()[0]), (&[3, 32][..], 64.0));
}

#[test]
fn unsupported_checkpoints_are_refused() {
    type Change = fn(&mut Value, &mut Tensors);
    let cases: [(&str, &str, Change); 16] = [
        ("xpos_full", "layers.0.self_attn.xpos.scale: expected 1 at index 0", |config, _| {
            config["position"] = "rope".into()
        }),
        ("rope_full", "layers.0.self_attn.xpos.scale: expected 0.2857143 at index 0", |config, _| {
            config["position"] = "xpos".into();
        }),
        ("xpos_bca_lmexample", "to which it is tied, found other numbers", |_, tensors| {
            tensors.get_mut("output_projection.weight").unwrap().1[0] ^= 1;
        }),
        ("alibi_full", "self_attn_xpos.scale: expected no tensor of this name", |_, tensors| {
            tensors.insert("self_attn_xpos.scale".into(), (vec![4], vec![0; 16]));
        }),
        ("xpos_full", "layers.1.ffn.fc1.bias: expected a tensor, found none", |_, tensors| {
            tensors.remove("layers.1.ffn.fc1.bias");
        }),
        ("xpos_full", "position: expected xpos, rope", |config, _| config["position"] = "rotary".into()),
        ("xpos_full", "gamma: expected 0.4, found 0.5", |config, _| config["gamma"] = 0.5.into()),
        ("xpos_full", "heads: expected a divisor of d_model, 32, found 5", |config, _| config["heads"] = 5.into()),
        ("xpos_full", "heads: expected a divisor of d_model, 32, found 0", |config, _| config["heads"] = 0.into()),
        ("xpos_full", "d_model / heads: expected an even number", |config, _| config["heads"] = 32.into()),
        ("xpos_bca", "block_size: expected an even number", |config, _| config["block_size"] = 31.into()),
        ("xpos_bca", "block_size: expected an even number", |config, _| config["block_size"] = 0.into()),
        ("xpos_bca", "block_size: expected a length, or -1", |config, _| config["block_size"] = (-2).into()),
        ("xpos_bca", "block_size: expected at most", |config, _| {
            (config["block_size"], config["xpos_scale_base"]) = (4096.into(), 8.into());
        }),
        ("bucket_full", "rel_pos_buckets: expected a number", |config, _| {
            config.as_object_mut().unwrap().remove("rel_pos_buckets");
        }),
        ("xpos_full", "vocab: expected 56 symbols", |config, _| config["vocab"] = json!(["a"])),
    ];
    for (case, expected, change) in cases {
        let message = message(case, change);
        assert!(message.contains(expected), "{case}: {message}");
    }
    let empty_folder = TempDir::new().unwrap();
    assert!(convert::convert(Source::Torchscale, empty_folder.path(), &empty_folder.path().join("to"), false).is_err());
    let dir = changed("xpos_full", |_, _| {});
    fs::remove_file(dir.path().join("model.safetensors")).unwrap();
    assert!(converted(&dir).unwrap_err().to_string().contains("found neither"));
}

/// Copies a fixture with the arguments under fairseq's names.
fn with_fairseq_names(case: &str, change: impl Fn(&mut Value, &mut Tensors)) -> TempDir {
    changed(case, |config, tensors| {
        let original = config.take();
        *config = json!({
            "decoder_embed_dim": 32, "decoder_ffn_embed_dim": 48, "decoder_layers": 2, "decoder_attention_heads": 4,
            "decoder_normalize_before": true, "activation_fn": original["activation"], "subln": original["subln"],
            "no_scale_embedding": original["scale_embedding"] == false, "share_decoder_input_output_embed": original["tied"],
            "xpos_rel_pos": original["position"] == "xpos" || original["position"] == "rope",
            "xpos_scale_base": original["xpos_scale_base"], "rel_pos_buckets": original["rel_pos_buckets"],
            "max_rel_pos": original["max_rel_pos"], "block_size": original["block_size"], "vocab_size": -1,
            "no_token_positional_embeddings": original["position"] != "sinusoidal", "tokens_per_sample": 32, "moe_freq": 0,
        });
        change(config, tensors);
    })
}

#[test]
fn fairseq_names_give_the_same_checkpoint() {
    for case in [
        "xpos_bca",
        "xpos_full_base16",
        "xpos_bca_lmexample",
        "rope_bca",
        "rope_full",
        "sinusoidal_full",
        "bucket_full",
    ] {
        let plain = written(&converted(&changed(case, |_, _| {})).unwrap());
        assert_eq!(written(&converted(&with_fairseq_names(case, |_, _| {})).unwrap()), plain, "{case}");
    }
    // fairseq does not record this; the tensors show it.
    let learned = with_fairseq_names("xpos_short", |config, tensors| {
        (config["xpos_rel_pos"], config["no_token_positional_embeddings"]) = (false.into(), Value::Null);
        config["tokens_per_sample"] = 7.into();
        tensors.remove("self_attn_xpos.scale");
        tensors.insert("embed_positions.weight".into(), (vec![9, 32], vec![0; 9 * 32 * 4]));
    });
    let (_, config) = written(&converted(&learned).unwrap());
    let config: Value = serde_json::from_str(&config).unwrap();
    assert_eq!(config["architecture"]["position"], json!({"learned": {"positions": 7}}));
}

#[test]
fn a_training_checkpoint_equals_its_exported_parts() {
    let dest = TempDir::new().unwrap();
    let file = golden("torchscale-pt/rope_bca/checkpoint_last.pt");
    for from in [&*file, file.parent().unwrap()] {
        convert::convert(Source::Torchscale, from, dest.path(), true).unwrap();
        assert_eq!(written(&dest), written(&converted(&changed("rope_bca", |_, _| {})).unwrap()));
    }
    let other = golden("dynamic-pooling-pt/plain/checkpoint_last.pt");
    let error = convert::convert(Source::Torchscale, &other, &dest.path().join("to"), false).unwrap_err().to_string();
    assert!(error.contains("model: expected a dict of tensors, found nothing"), "{error}");
}

#[test]
fn other_architectures_are_refused() {
    let cases = [
        ("decoder_normalize_before", json!(false), "expected true: norms before the sub-layers"),
        ("deepnorm", json!(true), "expected false: norms before"),
        ("layernorm_embedding", json!(true), "expected false: no norm behind the embedding"),
        ("moe_freq", json!(2), "expected 0: no mixture of experts"),
        (
            "no_token_positional_embeddings",
            json!(false),
            "xpos_rel_pos: expected one position scheme, found xpos and sinus",
        ),
        ("activation_fn", json!("tanh"), "activation_fn: expected one of"),
        ("decoder_layers", json!("two"), "decoder_layers: expected a whole number of at least 0, found \"two\""),
    ];
    for (key, value, expected) in cases {
        let error = converted(&with_fairseq_names("xpos_full", |config, _| config[key] = value.clone())).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}
