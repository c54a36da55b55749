//! Malicious and damaged checkpoints. Each is rejected with file, key, expected and found value before memory is allocated.

use super::support::remove_card;
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
};
use tempfile::TempDir;
use weir::{
    error::{Error, Result},
    family::{
        checkpoint::{Config, FileDtype, Writer, read_weights},
        load::{Settings, blueprint, load},
    },
};

mod configurations;
#[path = "../../../fuzz/entries.rs"]
pub(crate) mod entries;
mod shards;

/// Writes a small valid checkpoint.
fn valid() -> TempDir {
    let dir = TempDir::new().unwrap();
    write_valid(dir.path());
    dir
}

/// Writes a small valid checkpoint to a folder.
pub(crate) fn write_valid(dir: &Path) {
    let file = dir.join("config.json");
    let config = Config::parse(entries::SMALL_CONFIG.as_bytes(), &file).unwrap();
    let specs = entries::small().unwrap().tensors();
    let mut writer = Writer::create(dir, &config, &specs, FileDtype::F32, false).unwrap();
    for spec in &specs {
        writer.tensor(&spec.name, &vec![0.5; spec.shape.iter().product()]).unwrap();
    }
    writer.finish().unwrap();
    // Most tests change the weights, and look for another error than that of the digest.
    remove_card(dir);
}

fn open(dir: &Path) -> Result<()> {
    let config = Config::read(dir)?;
    let specs = blueprint(&config, &dir.join("config.json"))?.tensors();
    read_weights(dir, &specs).map(|_| ())
}

fn message(dir: &Path) -> String {
    let error = open(dir).unwrap_err();
    assert!(matches!(error, Error::Checkpoint { .. } | Error::Io { .. }), "{error:?}");
    let settings = Settings { threads: 1, ..Settings::default() };
    assert_eq!(
        load(dir, &settings).err().map(|error| error.to_string()),
        Some(error.to_string()),
        "loading reports another error"
    );
    error.to_string()
}

fn weights_file(dir: &TempDir) -> PathBuf {
    dir.path().join("model.safetensors")
}

/// Returns the header and the numbers of a weight file.
fn parts(file: &Path) -> (Value, Vec<u8>) {
    let bytes = fs::read(file).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&bytes[8..8 + length]).unwrap(), bytes[8 + length..].to_vec())
}

fn assembled(header: &str, numbers: &[u8]) -> Vec<u8> {
    [(header.len() as u64).to_le_bytes().as_slice(), header.as_bytes(), numbers].concat()
}

/// Returns the error after a change to the header and the numbers.
fn changed(change: impl FnOnce(&mut Value, &mut Vec<u8>)) -> String {
    let dir = valid();
    let (mut header, mut numbers) = parts(&weights_file(&dir));
    change(&mut header, &mut numbers);
    fs::write(weights_file(&dir), assembled(&header.to_string(), &numbers)).unwrap();
    message(dir.path())
}

/// Returns the error for other bytes in the weight file.
fn replaced(bytes: &[u8]) -> String {
    let dir = valid();
    fs::write(weights_file(&dir), bytes).unwrap();
    message(dir.path())
}

/// Returns the error after a change to `config.json`.
fn configured(change: impl FnOnce(&mut Value)) -> String {
    let dir = valid();
    let mut config: Value = serde_json::from_str(entries::SMALL_CONFIG).unwrap();
    change(&mut config);
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    message(dir.path())
}

fn check_messages(cases: &[(String, &str)]) {
    for (message, expected) in cases {
        assert!(message.contains(expected), "{message}\nshould contain: {expected}");
        assert!(message.len() < 2000, "{message}");
    }
}

#[test]
fn a_valid_checkpoint_loads() {
    open(valid().path()).unwrap();
    load(valid().path(), &Settings { threads: 1, ..Settings::default() }).unwrap();
}

/// Writes a valid checkpoint whose card states the digest of its weights.
fn with_card() -> TempDir {
    let dir = valid();
    let config = Config::read(dir.path()).unwrap();
    let specs = blueprint(&config, &dir.path().join("config.json")).unwrap().tensors();
    let (_, sha256) = read_weights(dir.path(), &specs).unwrap();
    fs::write(dir.path().join("card.json"), json!({ "name": "small", "sha256": sha256 }).to_string()).unwrap();
    dir
}

#[test]
fn weights_that_differ_from_their_card_are_rejected() {
    let dir = with_card();
    open(dir.path()).unwrap();
    // One flipped bit leaves a finite number of the right shape: only the digest differs.
    let mut bytes = fs::read(weights_file(&dir)).unwrap();
    *bytes.last_mut().unwrap() ^= 0x80;
    fs::write(weights_file(&dir), bytes).unwrap();
    let error = message(dir.path());
    assert!(error.contains("sha256 of the weights") && error.contains("as card.json states"), "{error}");

    let card = dir.path().join("card.json");
    fs::write(&card, r#"{"sha256": 7}"#).unwrap();
    assert!(message(dir.path()).contains("sha256"), "{}", message(dir.path()));
    fs::write(&card, r#"{"name": "small"}"#).unwrap();
    open(dir.path()).unwrap();
}

#[test]
fn a_required_digest_must_be_stated() {
    let settings = Settings { threads: 1, require_sha256: true, ..Settings::default() };
    let dir = with_card();
    load(dir.path(), &settings).unwrap();
    let refusal = || load(dir.path(), &settings).err().unwrap().to_string();
    let card = dir.path().join("card.json");
    fs::write(&card, r#"{"name": "small"}"#).unwrap();
    assert!(refusal().contains("card.json: sha256: expected the digest of the weights"), "{}", refusal());
    fs::remove_file(&card).unwrap();
    assert!(refusal().ends_with("found no card"), "{}", refusal());
    load(dir.path(), &Settings { require_sha256: false, ..settings.clone() }).unwrap();
}

#[test]
fn unexpected_tensors_are_rejected() {
    let head = "/head.weight";
    check_messages(&[
        (
            changed(|header, _| drop(header.as_object_mut().unwrap().remove("head.weight"))),
            "data_offsets: expected a start at",
        ),
        (
            changed(|header, numbers| {
                // Removes the last tensor, so that no gap remains.
                let names: Vec<_> = header.as_object().unwrap().keys().cloned().collect();
                let last = header.as_object_mut().unwrap().remove(names.last().unwrap()).unwrap();
                numbers.truncate(last["data_offsets"][0].as_u64().unwrap() as usize);
            }),
            "head.bias: expected a tensor, found none",
        ),
        (
            changed(|header, numbers| {
                header["extra"] =
                    json!({"dtype": "F32", "shape": [1], "data_offsets": [numbers.len(), numbers.len() + 4]});
                numbers.extend([0; 4]);
            }),
            "extra: expected no tensor of this name, found one",
        ),
        (
            changed(|header, _| header.pointer_mut(head).unwrap()["shape"] = json!([4])),
            "head.weight: expected shape [2, 2], found shape [4]",
        ),
        (
            changed(|header, _| header.pointer_mut(head).unwrap()["shape"] = json!([2, 3])),
            "head.weight: expected offsets 24 bytes apart",
        ),
        (
            changed(|header, _| header.pointer_mut(head).unwrap()["dtype"] = json!("I32")),
            "head.weight: expected dtype F32, F16, BF16 or I8, found dtype \"I32\"",
        ),
        (
            changed(|header, _| header.pointer_mut(head).unwrap()["shape"] = json!([1_u64 << 40, 1_u64 << 40])),
            "a shape whose size fits into 64 bits",
        ),
        (
            changed(|header, _| header.pointer_mut(head).unwrap()["shape"] = json!([-1, 2])),
            "head.weight.shape[0]: expected a whole number of at least 0",
        ),
        (changed(|header, _| header.pointer_mut(head).unwrap()["more"] = json!(1)), "head.weight.more"),
        (changed(|header, _| header["head.weight"] = json!(7)), "head.weight: expected an object, found 7"),
        (
            changed(|_, numbers| numbers[4..8].copy_from_slice(&f32::NAN.to_le_bytes())),
            "embedding.weight: expected finite numbers, found NaN at index 1",
        ),
        (
            changed(|_, numbers| numbers[0..4].copy_from_slice(&f32::NEG_INFINITY.to_le_bytes())),
            "embedding.weight: expected finite numbers, found -inf at index 0",
        ),
    ]);
}

#[test]
fn damaged_files_are_rejected() {
    let bytes = fs::read(weights_file(&valid())).unwrap();
    let overlap = changed(|header, _| {
        let place = header["embedding.weight"]["data_offsets"].clone();
        header["head.weight"]["data_offsets"] = place;
    });
    check_messages(&[
        (replaced(&[]), "the file: expected at least 8 bytes, found an empty file"),
        (replaced(&bytes[..bytes.len() - 1]), "(truncated)"),
        (replaced(&[&bytes[..], &[0]].concat()), "(trailing bytes)"),
        (replaced(b"PK\x03\x04 this is a zip archive"), "header length: expected at most the"),
        (
            replaced(&[&u64::MAX.to_le_bytes()[..], b"{}"].concat()),
            "header length: expected at most the 2 bytes that follow it",
        ),
        (replaced(&assembled(&" ".repeat(4 << 20), &[])), "header length: expected at most"),
        (replaced(&assembled("[]", &[])), "header: expected a JSON object"),
        (replaced(&assembled("{\"a\": ", &[])), "EOF"),
        (replaced(&assembled("{}", &[])), "expected a tensor, found none (18 more of the kind)"),
        (overlap, "they overlap"),
        (changed(|header, _| header["embedding.weight"]["data_offsets"] = json!([4, 20])), "there is a gap"),
        (changed(|header, _| header["embedding.weight"]["data_offsets"] = json!([16, 0])), "offsets [16, 0]"),
        (
            changed(|header, _| header["embedding.weight"]["data_offsets"] = json!([u64::MAX - 15, u64::MAX])),
            "embedding.weight",
        ),
    ]);
    let dir = valid();
    let (header, numbers) = parts(&weights_file(&dir));
    let twice = header.to_string().replacen('{', &format!("{{\"head.bias\": {},", header["head.bias"]), 1);
    fs::write(weights_file(&dir), assembled(&twice, &numbers)).unwrap();
    check_messages(&[(message(dir.path()), "head.bias: expected one value, found two")]);
}

#[test]
fn a_file_truncated_anywhere_is_an_error() {
    let dir = valid();
    let bytes = fs::read(weights_file(&valid())).unwrap();
    for length in 0..bytes.len() {
        fs::write(weights_file(&dir), &bytes[..length]).unwrap();
        assert!(open(dir.path()).is_err(), "{length}");
    }
}

#[test]
fn half_precision_is_converted_to_f32() {
    let dir = valid();
    let (mut header, mut numbers) = parts(&weights_file(&dir));
    let start = header["head.bias"]["data_offsets"][0].as_u64().unwrap() as usize;
    assert_eq!(start + 8, numbers.len());
    for (dtype, bytes) in [("F16", [0x00, 0x3c, 0x00, 0xc0]), ("BF16", [0x80, 0x3f, 0x00, 0xc0])] {
        numbers.truncate(start);
        numbers.extend(bytes);
        header["head.bias"] = json!({"dtype": dtype, "shape": [2], "data_offsets": [start, start + 4]});
        fs::write(weights_file(&dir), assembled(&header.to_string(), &numbers)).unwrap();
        let (mut weights, _) = read_weights(dir.path(), &entries::small().unwrap().tensors()).unwrap();
        assert_eq!(weights.take("head.bias").unwrap(), [1.0, -2.0]);
        assert!(weights.take("head.bias").is_err());
    }
}
