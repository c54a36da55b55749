//! Checkpoints whose weights are in several files, and links in place of files.

use super::{assembled, check_messages, entries, message, open, parts, valid, weights_file};
use serde_json::{Value, json};
use std::{fs, path::Path};
use tempfile::TempDir;
use weir::family::checkpoint::{read_weights, weights::shapes_in};

/// Writes a checkpoint in two shards. `change` may damage the index.
fn sharded(change: impl FnOnce(&mut Value, &Path)) -> TempDir {
    let dir = valid();
    let (header, numbers) = parts(&weights_file(&dir));
    let mut map = serde_json::Map::new();
    let names: Vec<_> = header.as_object().unwrap().keys().cloned().collect();
    for (index, names) in names.chunks(names.len().div_ceil(2)).enumerate() {
        let file = format!("model-{:05}-of-00002.safetensors", index + 1);
        let mut shard = serde_json::Map::new();
        let mut bytes = Vec::new();
        for name in names {
            let place = |end: usize| header[name]["data_offsets"][end].as_u64().unwrap() as usize;
            let from = bytes.len();
            bytes.extend_from_slice(&numbers[place(0)..place(1)]);
            let entry = json!({"dtype": "F32", "shape": header[name]["shape"], "data_offsets": [from, bytes.len()]});
            shard.insert(name.clone(), entry);
            map.insert(name.clone(), file.clone().into());
        }
        fs::write(dir.path().join(file), assembled(&Value::Object(shard).to_string(), &bytes)).unwrap();
    }
    fs::remove_file(weights_file(&dir)).unwrap();
    let mut index = json!({"metadata": {"total_size": numbers.len()}, "weight_map": map});
    change(&mut index, dir.path());
    fs::write(dir.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
    dir
}

#[test]
fn shards_equal_a_single_file() {
    let dir = sharded(|_, _| {});
    let specs = entries::small().unwrap().tensors();
    let (mut shards, sha256) = read_weights(dir.path(), &specs).unwrap();
    let (mut single, _) = read_weights(valid().path(), &specs).unwrap();
    for spec in &specs {
        assert_eq!(shards.take(&spec.name).unwrap(), single.take(&spec.name).unwrap());
    }
    assert_eq!(sha256.len(), 64);
}

#[test]
fn malicious_indices_are_rejected() {
    const FIRST: &str = "model-00001-of-00002.safetensors";
    const SECOND: &str = "model-00002-of-00002.safetensors";
    let other_folder = valid();
    let outside = weights_file(&other_folder);
    let named = |file: &str| {
        let file = file.to_owned();
        message(sharded(move |index, _| index["weight_map"]["head.bias"] = file.into()).path())
    };
    let plain = "expected the plain name of a .safetensors file in this folder";
    check_messages(&[
        (named("../model.safetensors"), plain),
        (named(outside.to_str().unwrap()), plain),
        (named("sub/model.safetensors"), plain),
        (named(".."), plain),
        (named(""), plain),
        (named("config.json"), plain),
        (named("./model-00002-of-00002.safetensors"), plain),
        (
            named("none.safetensors"),
            "weight_map.head.bias: expected a file that the folder has, found \"none.safetensors\"",
        ),
        (named(FIRST), "head.bias: expected a tensor, found none"),
        (
            message(
                sharded(|index, dir| {
                    fs::remove_file(dir.join(SECOND)).unwrap();
                    let _ = index;
                    #[cfg(unix)]
                    std::os::unix::fs::symlink(&outside, dir.join(SECOND)).unwrap();
                })
                .path(),
            ),
            if cfg!(unix) { "not a link out of it" } else { SECOND },
        ),
        (
            message(sharded(|index, _| drop(index["weight_map"].as_object_mut().unwrap().remove("head.bias"))).path()),
            "head.bias: expected a tensor, found none",
        ),
        (
            message(sharded(|index, _| index["weight_map"]["extra"] = FIRST.into()).path()),
            "extra: expected no tensor of this name, found one",
        ),
        (
            message(sharded(|index, _| index["weight_map"]["head.bias"] = 7.into()).path()),
            "weight_map.head.bias: expected a string, found 7",
        ),
        (message(sharded(|index, _| index["other"] = 7.into()).path()), "other: expected"),
        (message(sharded(|_, dir| fs::write(dir.join("model.safetensors"), b"").unwrap()).path()), "found both"),
    ]);
    let dir = valid();
    fs::remove_file(weights_file(&dir)).unwrap();
    check_messages(&[(message(dir.path()), "found neither")]);
    fs::create_dir(weights_file(&dir)).unwrap();
    check_messages(&[(message(dir.path()), "model.safetensors: expected a regular file, found a folder")]);
}

#[cfg(unix)]
#[test]
fn links_out_of_the_folder_are_rejected() {
    let dir = valid();
    let other_folder = valid();
    let file = weights_file(&dir);
    fs::rename(&file, dir.path().join("other.safetensors")).unwrap();
    std::os::unix::fs::symlink("other.safetensors", &file).unwrap();
    open(dir.path()).unwrap();
    assert!(shapes_in(dir.path()).is_ok());
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink(weights_file(&other_folder), &file).unwrap();
    let expected = "model.safetensors: the file: expected a file in this folder, found a link out of it";
    check_messages(&[(message(dir.path()), expected), (shapes_in(dir.path()).unwrap_err().to_string(), expected)]);
    for name in ["config.json", "card.json"] {
        let dir = valid();
        let file = dir.path().join(name);
        fs::write(other_folder.path().join(name), fs::read(&file).unwrap_or_else(|_| b"{}".into())).unwrap();
        fs::remove_file(&file).ok();
        std::os::unix::fs::symlink(other_folder.path().join(name), &file).unwrap();
        let expected = format!("{name}: the file: expected a file in this folder, found a link out of it");
        check_messages(&[(message(dir.path()), &expected)]);
    }
}

/// No writer ever opens these pipes: a reader that waited would hang.
#[cfg(unix)]
#[test]
fn pipes_are_rejected() {
    let pipe = |path: &Path| {
        fs::remove_file(path).ok();
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    };
    for name in ["config.json", "card.json", "model.safetensors"] {
        let dir = valid();
        pipe(&dir.path().join(name));
        check_messages(&[(message(dir.path()), &format!("{name}: expected a regular file, found a pipe or a device"))]);
    }
    let dir = sharded(|_, dir| pipe(&dir.join("model-00001-of-00002.safetensors")));
    check_messages(&[(message(dir.path()), "00001-of-00002.safetensors: expected a regular file, found a pipe")]);
    pipe(&dir.path().join("model.safetensors.index.json"));
    check_messages(&[(message(dir.path()), "model.safetensors.index.json: expected a regular file, found a pipe")]);
}
