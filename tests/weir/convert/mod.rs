//! Conversion of official checkpoints: the fixtures, and malicious files.

mod archives;
mod torchscale;

use safetensors::SafeTensors;
use std::{
    fs,
    path::{Path, PathBuf},
};
use tempfile::TempDir;
use weir::{
    error::Result,
    family::{
        checkpoint::{Config, Weights, read_weights},
        convert::{self, Source},
        load::blueprint,
    },
};

const CASES: &[&str] =
    &["entropy", "fixed_sf2", "fixed_sf3", "fixed_sf4", "gumbel", "unigram", "vanilla", "whitespaces"];

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn convert(from: &Path, dest: &Path) -> Result<()> {
    convert::convert(Source::DynamicPooling, from, dest, false).map(|_| ())
}

fn read(dir: &Path) -> (Config, Weights) {
    let config = Config::read(dir).unwrap();
    let specs = blueprint(&config, dir).unwrap().tensors();
    let (weights, _) = read_weights(dir, &specs).unwrap();
    assert_eq!(weights.len(), specs.len());
    (config, weights)
}

fn message(from: &Path) -> String {
    let dest = TempDir::new().unwrap();
    let message = convert(from, dest.path()).unwrap_err().to_string();
    assert_eq!(fs::read_dir(dest.path()).unwrap().count(), 0, "a failed conversion leaves nothing behind");
    message
}

#[test]
fn every_fixture_is_converted_number_by_number() {
    for case in CASES {
        let source = golden("dynamic-pooling").join(case);
        let dest = TempDir::new().unwrap();
        convert(&source, dest.path()).unwrap();
        let (config, weights) = read(dest.path());
        assert_eq!((config.family.as_str(), config.training_length), ("hourglass", 2048));
        assert_eq!(config.vocabulary(dest.path()).unwrap().normaliser().name(), "text8");
        let official = fs::read(source.join("model.safetensors")).unwrap();
        let official = SafeTensors::deserialize(&official).unwrap();
        let dropped = official.names().into_iter().filter(|name| name.ends_with("r_net.bias")).count();
        assert_eq!(weights.len(), official.len() - dropped, "{case}");
        for (name, official_name) in [
            ("pre.0.attention.qkv.weight", "layers.0.0.dec_attn.qkv_net.weight"),
            ("pre.0.feed_forward.down.bias", "layers.0.0.pos_ff.CoreNet.3.bias"),
            ("position.content_bias", "r_w_bias"),
            ("position.distance_bias", "r_r_bias"),
            ("position.inverse_frequency", "pos_emb.inv_freq"),
            ("head.weight", "final_cast.weight"),
            ("null_group", "null_group"),
            ("middle.1.attention.distance.weight", "layers.1.1.dec_attn.r_net.weight"),
            ("post.0.feed_forward.norm.weight", "layers.2.0.pos_ff.layer_norm.weight"),
            ("boundary.output.weight", "boundary_predictor.boundary_predictor.2.weight"),
        ] {
            let expected = official.tensor(official_name).ok().map(|tensor| tensor.data().to_vec());
            let actual =
                weights.get(name).map(|tensor| tensor.numbers().iter().flat_map(|x| x.to_le_bytes()).collect());
            assert_eq!(actual, expected, "{case}");
        }
    }
}

#[test]
fn the_safetensors_crate_reads_what_is_written() {
    let dest = TempDir::new().unwrap();
    convert(&golden("dynamic-pooling/unigram"), dest.path()).unwrap();
    let bytes = fs::read(dest.path().join("model.safetensors")).unwrap();
    let official = SafeTensors::deserialize(&bytes).unwrap();
    let (_, weights) = read(dest.path());
    assert_eq!(official.len(), weights.len());
    for (name, view) in official.iter() {
        let tensor = weights.get(name).unwrap();
        assert_eq!(tensor.shape, view.shape());
        assert!(tensor.numbers().iter().flat_map(|x| x.to_le_bytes()).eq(view.data().iter().copied()), "{name}");
    }
    assert_eq!(u64::from_le_bytes(bytes[..8].try_into().unwrap()) % 8, 0);
}

#[test]
fn training_checkpoints_convert_like_the_fixture() {
    let dest = TempDir::new().unwrap();
    let convert_to = |from: &Path, name: &str| {
        let dest = dest.path().join(name);
        convert(from, &dest).unwrap();
        (fs::read(dest.join("model.safetensors")).unwrap(), fs::read_to_string(dest.join("config.json")).unwrap())
    };
    let fixture = convert_to(&golden("dynamic-pooling/unigram"), "fixture");
    assert_eq!(convert_to(&golden("dynamic-pooling-pt/plain"), "plain"), fixture);
    assert_eq!(convert_to(&golden("dynamic-pooling-pt/ddp"), "ddp"), fixture);
    assert_eq!(convert_to(&golden("dynamic-pooling-pt/ddp/checkpoint_last.pt"), "file"), fixture);
}

#[test]
fn a_folder_with_files_is_not_overwritten() {
    let dest = TempDir::new().unwrap();
    let source = golden("dynamic-pooling/vanilla");
    let forced = || convert::convert(Source::DynamicPooling, &source, dest.path(), true);
    let names = || {
        let mut names: Vec<_> = fs::read_dir(dest.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    fs::write(dest.path().join("README.md"), "mine").unwrap();
    assert!(convert(&source, dest.path()).unwrap_err().to_string().contains("not empty"));
    assert!(forced().unwrap_err().to_string().contains("README.md"), "no checkpoint's card without a checkpoint");
    fs::remove_file(dest.path().join("README.md")).unwrap();
    convert(&source, dest.path()).unwrap();
    fs::write(dest.path().join("README.md"), "the card of the old weights").unwrap();
    assert!(convert(&source, dest.path()).unwrap_err().to_string().contains("--force"));
    forced().unwrap();
    read(dest.path());
    assert_eq!(names(), ["card.json", "config.json", "model.safetensors"]);
    fs::write(dest.path().join("curve.svg"), "").unwrap();
    assert!(forced().unwrap_err().to_string().contains("curve.svg"));
    assert_eq!(names(), ["card.json", "config.json", "curve.svg", "model.safetensors"]);
}

#[test]
fn the_source_is_refused_as_destination() {
    let folder = TempDir::new().unwrap();
    let source = folder.path().join("official");
    fs::create_dir(&source).unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(golden("dynamic-pooling/vanilla").join(file), source.join(file)).unwrap();
    }
    let before = fs::read(source.join("model.safetensors")).unwrap();
    let mut paths = vec![source.clone(), source.join("..").join("official")];
    #[cfg(unix)]
    {
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&source, &link).unwrap();
        paths.push(link);
    }
    for dest in paths {
        let error = convert::convert(Source::DynamicPooling, &source, &dest, true).unwrap_err().to_string();
        assert!(error.contains("the source itself"), "{error}");
    }
    assert_eq!(fs::read(source.join("model.safetensors")).unwrap(), before);
}

/// Copies a fixture and changes its arguments.
fn with_arguments(case: &str, change: impl FnOnce(&mut serde_json::Value)) -> TempDir {
    let source = golden("dynamic-pooling").join(case);
    let dir = TempDir::new().unwrap();
    fs::copy(source.join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
    let mut arguments = serde_json::from_slice(&fs::read(source.join("config.json")).unwrap()).unwrap();
    change(&mut arguments);
    fs::write(dir.path().join("config.json"), arguments.to_string()).unwrap();
    dir
}

#[test]
fn invalid_arguments_are_named() {
    let set = |case: &str, key: &str, value: serde_json::Value| {
        message(with_arguments(case, |arguments| arguments[key] = value).path())
    };
    let cases = [
        (
            set("unigram", "model_config", "[1, (2,), __import__('os')]".into()),
            "model_config: expected three layer counts",
        ),
        (set("unigram", "layers", [2, 2, 1].into()), "layers: expected [1, 2, 1], as in model_config"),
        (set("unigram", "boundaries_type", "magic".into()), "boundaries_type: expected none, fixed"),
        (
            set("fixed_sf2", "fixed_sf", serde_json::Value::Null),
            "fixed_sf: expected the segments' length, found nothing",
        ),
        (set("fixed_sf2", "fixed_sf", 0.into()), "fixed_sf: expected 1 to"),
        (set("whitespaces", "whitespace_id", 3.into()), "whitespace_id: expected the index of \" \" in vocab, found 3"),
        (set("whitespaces", "n_token", 28.into()), "vocab: expected 28 symbols (n_token), found 27"),
        (set("unigram", "pre_lnorm", true.into()), "pre_lnorm: expected false"),
        (set("unigram", "d_model", 34.into()), ", 34], found shape ["),
        (set("unigram", "d_model", (1_u64 << 40).into()), "d_model: expected 1 to"),
        (set("unigram", "n_head", 0.into()), "n_head: expected 1 to"),
        (set("unigram", "d_head", "8".into()), "d_head: expected a whole number of at least 0, found \"8\""),
        (set("unigram", "activation_function", "swish".into()), "activation_function: expected"),
        (set("vanilla", "boundaries_type", "fixed".into()), "fixed_sf"),
        (set("unigram", "boundaries_type", "none".into()), "model_config: expected [n, (0,), 0] without boundaries"),
        (
            set("whitespaces", "boundaries_type", "gumbel".into()),
            "boundary_predictor.boundary_predictor.0.bias: expected a tensor",
        ),
        (
            set("gumbel", "boundaries_type", "whitespaces".into()),
            "boundary_predictor.boundary_predictor.0.bias: expected no tensor",
        ),
    ];
    for (found, expected) in cases {
        assert!(found.contains(expected), "{found}\nshould contain: {expected}");
    }
}

#[test]
fn other_vocabularies_keep_their_text_as_it_is() {
    let dir = with_arguments("whitespaces", |arguments| arguments["vocab"][3] = "é".into());
    let dest = TempDir::new().unwrap();
    convert(dir.path(), dest.path()).unwrap();
    let vocabulary = Config::read(dest.path()).unwrap().vocabulary(dest.path()).unwrap();
    assert_eq!((vocabulary.normaliser().name(), vocabulary.id_of('é')), ("none", Some(3)));
}
