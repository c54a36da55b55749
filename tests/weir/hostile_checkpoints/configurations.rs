//! Malicious configurations, invalid companions, and random bytes.

use super::{assembled, check_messages, configured, entries, message, open, valid, weights_file};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::{fs, path::Path};
use tempfile::TempDir;
use weir::{
    decode::contract::{BoundaryOptions, SequenceRow, Want, advance},
    family::{
        checkpoint::Config,
        init::init,
        load::{Settings, blueprint, load, needs},
    },
};

#[test]
fn malicious_configurations_are_rejected() {
    let architecture = |key: &str, value: Value| {
        let key = key.to_owned();
        configured(move |config| config["architecture"][&key] = value)
    };
    check_messages(&[
        (architecture("heads", 0.into()), "architecture.heads: expected 1 to"),
        (architecture("layers", json!({"pre": 1_000_000_000_000_u64})), "architecture.layers.pre: expected 1 to"),
        (
            architecture("layers", json!({"pre": 1e12})),
            "architecture.layers.pre: expected a whole number of at least 0, found 1000000000000.0",
        ),
        (architecture("layers", json!({"pre": 1, "middle": 1})), "architecture.layers: expected pre alone"),
        (architecture("layers", json!({"pre": 0})), "architecture.layers.pre: expected 1 to"),
        (architecture("layers", json!({})), "architecture.layers.pre: expected a value, found nothing"),
        (architecture("dim", u64::MAX.into()), "architecture.dim: expected 1 to"),
        (architecture("dim", 3.into()), "architecture.dim: expected an even number"),
        (architecture("feed_forward", (1 << 20).into()), "shape"),
        (
            architecture("head_dim", "64".into()),
            "architecture.head_dim: expected a whole number of at least 0, found \"64\"",
        ),
        (architecture("layer_norm_eps", (-1.0).into()), "architecture.layer_norm_eps: expected above 0"),
        (architecture("windows", 3.into()), "architecture.windows"),
        (
            architecture("activation", "swish".into()),
            "architecture.activation: expected one of `gelu`, `gelu-tanh`, `silu`, `relu`, found \"swish\"",
        ),
        (
            architecture("boundaries", json!({"kind": "fixed", "every": 2})),
            "architecture.boundaries.kind: expected none",
        ),
        (architecture("boundaries", json!({"kind": "none", "every": 2})), "architecture.boundaries"),
        (architecture("boundaries", json!({"kind": "psychic"})), "architecture.boundaries"),
        (architecture("pooling", "mean".into()), "architecture.pooling: expected nothing"),
        (architecture("ngrams", json!({"sizes": [2, 3]})), "architecture.ngrams.rows: expected a value, found nothing"),
        (
            architecture("ngrams", json!({"sizes": [2], "rows": 8, "hash": 1})),
            "architecture.ngrams.hash: expected `sizes` or `rows`, found an unknown key",
        ),
        (
            architecture("ngrams", json!({"sizes": [], "rows": 8})),
            "architecture.ngrams.sizes: expected 1 to 8 sizes, found 0",
        ),
        (
            architecture("ngrams", json!({"sizes": [2, u64::MAX], "rows": 8})),
            "architecture.ngrams.sizes: expected sizes from 2 to 16, found 18446744073709551615",
        ),
        (
            architecture("ngrams", json!({"sizes": [3, 3], "rows": 8})),
            "architecture.ngrams.sizes: expected increasing sizes, found [3, 3]",
        ),
        (
            architecture("ngrams", json!({"sizes": [2], "rows": 0})),
            "architecture.ngrams.rows: expected 1 to 16777216, found 0",
        ),
        (
            architecture("ngrams", json!({"sizes": [2], "rows": u64::MAX})),
            "architecture.ngrams.rows: expected 1 to 16777216, found 18446744073709551615",
        ),
        (architecture("ngrams", json!({"sizes": [2], "rows": 8})), "ngrams.2.weight"),
        (configured(|config| config["architecture"] = json!([1])), "architecture"),
        (configured(|config| config["family"] = "transformer".into()), "family: expected one of hourglass"),
        (
            configured(|config| config["vocabulary"] = json!({"symbols": []})),
            "vocabulary.symbols: expected 1 to 1114112 symbols",
        ),
        (configured(|config| config["vocabulary"] = json!({"symbols": ["a", "a"]})), "vocabulary.symbols[1]"),
        (
            configured(|config| config["vocabulary"] = json!({"bytes": true})),
            "embedding.weight: expected shape [256, 2], found shape [2, 2]",
        ),
        (configured(|config| config["training_length"] = 0.into()), "training_length: expected 1 to"),
        (
            configured(|config| drop(config.as_object_mut().unwrap().remove("normaliser"))),
            "normaliser: expected a value, found nothing",
        ),
        (configured(|config| config["surprise"] = 1.into()), "surprise"),
        (configured(|config| *config = json!([])), "config.json"),
    ]);
    let pooled = |dim: u64, layers: u64| {
        configured(move |config| {
            let huge = json!({"layers": {"pre": layers, "middle": layers, "post": layers}, "dim": dim, "heads": 1024, "head_dim": 1024,
                "pooling": "mean", "boundaries": {"kind": "learned", "hidden": 1024, "threshold": 0.5}});
            config["architecture"].as_object_mut().unwrap().extend(huge.as_object().unwrap().clone());
        })
    };
    let tables = configured(|config| {
        config["architecture"]["dim"] = (1 << 14).into();
        config["architecture"]["ngrams"] = json!({"sizes": [2, 3, 4, 5, 6, 7, 8, 9], "rows": 1 << 24});
    });
    check_messages(&[
        (pooled(1 << 20, 1024), "numbers in all tensors"),
        (pooled(4, 1024), "found"),
        (tables, "architecture.dim: expected at most 17179869184 numbers in all tensors"),
    ]);
}

#[test]
fn a_configuration_too_long_or_too_deep_is_rejected() {
    let dir = valid();
    let file = dir.path().join("config.json");
    fs::write(&file, vec![b' '; (16 << 20) + 1]).unwrap();
    check_messages(&[(message(dir.path()), "the file: expected at most 16777216 bytes")]);
    fs::write(&file, "{\"architecture\":".repeat(1000)).unwrap();
    check_messages(&[(message(dir.path()), "config.json")]);
    fs::write(&file, b"\xff\xfe").unwrap();
    check_messages(&[(message(dir.path()), "config.json")]);
}

#[test]
fn a_training_length_allocates_no_tables_of_its_size() {
    let dir = valid();
    let mut config: Value = serde_json::from_str(entries::SMALL_CONFIG).unwrap();
    config["training_length"] = json!(1 << 30);
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let max_symbols = |max_symbols| {
        let settings = Settings { threads: 1, max_symbols, ..Settings::default() };
        load(dir.path(), &settings).unwrap().card().max_symbols
    };
    assert_eq!(max_symbols(None), 1 << 24);
    assert_eq!(max_symbols(Some(usize::MAX)), 1 << 24);
    assert_eq!(max_symbols(Some(100)), 100);
}

#[test]
fn a_training_length_beyond_the_learned_positions_is_rejected() {
    let message = configured(|config| {
        config["architecture"]["position"] = json!({"learned": {"positions": 3}});
        config["training_length"] = 4.into();
    });
    let expected =
        "training_length: expected at most 3 (position.learned.positions): no more positions were learned, found 4";
    check_messages(&[(message, expected)]);
}

/// The file has a number for each bucket, and the model one for each distance.
#[test]
fn tables_of_distances_are_bounded_and_counted() {
    let buckets = |max_distance: usize| json!({"buckets": {"count": 2, "max_distance": max_distance}});
    let message = configured(|config| {
        config["architecture"]["heads"] = 64.into();
        config["architecture"]["position"] = buckets(1 << 20);
    });
    let expected = "architecture.position.buckets.max_distance: expected a table of at most 67108864 numbers, one for each of \
                    `heads` and each distance, found 67108928";
    check_messages(&[(message, expected)]);
    let dir = valid();
    let memory = |max_distance: usize| {
        let mut config: Value = serde_json::from_str(entries::SMALL_CONFIG).unwrap();
        config["architecture"]["position"] = buckets(max_distance);
        fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        needs(&dir.path().into(), &Settings::default()).unwrap()
    };
    assert_eq!(memory(1 << 20) - memory(1 << 10), size_of::<f32>() * ((1 << 20) - (1 << 10)));
}

#[test]
fn every_segment_has_a_position() {
    let dir = TempDir::new().unwrap();
    let dest = TempDir::new().unwrap();
    let mut config: Value = serde_json::from_str(entries::SMALL_CONFIG).unwrap();
    config["training_length"] = json!(2);
    config["architecture"].as_object_mut().unwrap().extend([
        ("layers".to_owned(), json!({"pre": 1, "middle": 1, "post": 1})),
        ("pooling".to_owned(), json!("mean")),
        ("boundaries".to_owned(), json!({"kind": "fixed", "every": 1})),
        ("position".to_owned(), json!({"learned": {"positions": 9}})),
    ]);
    let file = dir.path().join("shape.json");
    fs::write(&file, config.to_string()).unwrap();
    init(&file, &dest.path().join("model"), 0, false).unwrap();
    let model = load(&dest.path().join("model"), &Settings { threads: 1, ..Settings::default() }).unwrap();
    // The null group has the first position.
    assert_eq!(model.card().max_symbols, 8);
    let mut rows = [SequenceRow::new(model.begin(BoundaryOptions::default()).unwrap())];
    rows[0].set(&[0; 8], Want::Last);
    advance(&*model, &mut rows, &[0], &mut model.scratch()).unwrap();
    assert_eq!(rows[0].state.segments(), 8);
    config["architecture"]["position"]["learned"]["positions"] = json!(1);
    config["training_length"] = json!(1);
    fs::write(&file, config.to_string()).unwrap();
    let message = init(&file, &dest.path().join("none"), 0, false).unwrap_err().to_string();
    check_messages(&[(
        message,
        "architecture.position: expected room for 2 positions: the null group's and a symbol's, found 1",
    )]);
}

#[test]
fn an_invalid_companion_is_rejected() {
    let dir = TempDir::new().unwrap();
    let dest = TempDir::new().unwrap();
    let mut config: Value = serde_json::from_str(entries::SMALL_CONFIG).unwrap();
    config["architecture"].as_object_mut().unwrap().extend([
        ("layers".to_owned(), json!({"pre": 1, "middle": 1, "post": 1})),
        ("pooling".to_owned(), json!("mean")),
        ("boundaries".to_owned(), json!({"kind": "entropy-spikes", "window": 2, "companion": "companion"})),
    ]);
    let file = dir.path().join("shape.json");
    let companion = dir.path().join("companion.json");
    fs::write(&file, config.to_string()).unwrap();
    let rejection = || init(&file, dest.path(), 0, false).unwrap_err().to_string();
    check_messages(&[(rejection(), "companion.json: No such file")]);
    fs::write(&companion, config.to_string()).unwrap();
    check_messages(&[(rejection(), "expected an entropy model without entropy models")]);
    fs::write(&companion, entries::SMALL_CONFIG.replace(r#"["a", " "]"#, r#"["b", " "]"#)).unwrap();
    check_messages(&[(rejection(), "vocabulary: expected the symbols of the model that it accompanies")]);
    assert_eq!(fs::read_dir(dest.path()).unwrap().count(), 0);
    fs::write(&companion, entries::SMALL_CONFIG).unwrap();
    init(&file, dest.path(), 0, false).unwrap();
    load(dest.path(), &Settings { threads: 1, ..Settings::default() }).unwrap();
}

#[test]
fn random_weights_depend_only_on_the_seed() {
    let dir = valid();
    let dest = TempDir::new().unwrap();
    let create =
        |name: &str, seed| init(&dir.path().join("config.json"), &dest.path().join(name), seed, false).unwrap();
    assert_eq!(create("a", 1), create("b", 1));
    assert_ne!(create("c", 2).sha256, create("d", 3).sha256);
    open(&dest.path().join("a")).unwrap();
}

#[test]
fn shipped_shapes_have_the_parameters_in_their_names() {
    for (name, parameters) in [("hourglass-41m", 41_010_715), ("vanilla-41m", 41_009_179)] {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("models/shapes/{name}.json"));
        let blueprint = blueprint(&Config::read_file(&file).unwrap(), &file).unwrap();
        let counted: usize = blueprint
            .tensors()
            .iter()
            .filter(|spec| spec.trained)
            .map(|spec| spec.shape.iter().product::<usize>())
            .sum();
        // The count is the official one without the twelve distance biases, which have no effect and are dropped.
        assert_eq!(counted, parameters - 12 * 512, "{name}");
    }
}

/// Runs the fuzz targets of files on their kept corpora, in which inputs that once failed stay.
#[test]
fn the_kept_corpora_never_panic() {
    let targets: [(&str, fn(&[u8])); 7] = [
        ("config", entries::config),
        ("weights", entries::weights),
        ("pickle", entries::pickle),
        ("tokenizer", entries::tokenizer),
        ("settings", entries::settings),
        ("codec", entries::codec),
        ("ngrams", entries::ngrams),
    ];
    for (target, entry) in targets {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
        let files: Vec<_> = folder.read_dir().unwrap().map(|file| file.unwrap().path()).collect();
        assert!(files.len() >= 3, "only {} inputs in {}", files.len(), folder.display());
        files.iter().for_each(|file| entry(&fs::read(file).unwrap()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn changed_bytes_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5)) {
        let dir = valid();
        let mut bytes = fs::read(weights_file(&dir)).unwrap();
        let mut config = entries::SMALL_CONFIG.as_bytes().to_vec();
        for (index, byte) in changes {
            let weights_index = index.index(bytes.len());
            let config_index = index.index(config.len());
            bytes[weights_index] = byte;
            config[config_index] = byte;
        }
        entries::weights(&bytes);
        entries::config(&config);
    }

    #[test]
    fn any_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        entries::weights(&bytes);
        entries::weights(&assembled(&String::from_utf8_lossy(&bytes), &bytes));
        entries::config(&bytes);
        entries::pickle(&bytes);
        entries::pickle(&[b"\x80\x02", &bytes[..]].concat());
        entries::codec(&bytes);
        entries::ngrams(&bytes);
    }

    #[test]
    fn programs_of_known_instructions_never_panic(
        program in prop::collection::vec(prop::sample::select(b"(012NKJMGXUTBC]})tldaeusqrhjcRbQ\x80\x81\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x92\x93\x94\x95\x96\x00\x01\x02.".to_vec()), 0..200),
    ) {
        entries::pickle(&[b"\x80\x04", &program[..]].concat());
    }
}
