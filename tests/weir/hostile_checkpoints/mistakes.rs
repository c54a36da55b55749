//! Checkpoints that are wrong by accident: the error names the accident, and what to do.

use super::{entries, message, valid, weights_file};
use crate::cli::weir;
use std::{fs, path::Path};
use tempfile::TempDir;

const POINTER: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 7782708\n";

/// A mistake: how a valid checkpoint is changed, and parts of the error that loading it reports.
struct Mistake {
    name: &'static str,
    change: fn(&Path),
    expected: &'static [&'static str],
}

fn write(dir: &Path, file: &str, contents: impl AsRef<[u8]>) {
    fs::write(dir.join(file), contents).unwrap();
}

fn config_and(dir: &Path, key: &str) {
    write(dir, "config.json", format!("{{{key}}}"));
}

/// Removes all files, and adds one.
fn only(dir: &Path, file: &str) {
    for name in ["config.json", "model.safetensors"] {
        fs::remove_file(dir.join(name)).unwrap();
    }
    if !file.is_empty() {
        write(dir, file, "x");
    }
}

const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "empty configuration",
        change: |dir| write(dir, "config.json", ""),
        expected: &["config.json: the file: expected its contents, found an empty file"],
    },
    Mistake {
        name: "configuration of zeros",
        change: |dir| write(dir, "config.json", [0; 64]),
        expected: &["config.json: ", "found only zeros: its download did not finish"],
    },
    Mistake {
        name: "configuration in Git LFS",
        change: |dir| write(dir, "config.json", POINTER),
        expected: &["config.json: ", "a Git LFS pointer", "`git lfs pull`"],
    },
    Mistake {
        name: "broken configuration",
        change: |dir| write(dir, "config.json", "{\n  \"format\": \"weir/1\",\n  \"family\": hourglass\n}"),
        expected: &["config.json: ", "expected valid JSON, found expected value at line 3 column 13"],
    },
    Mistake {
        name: "cut configuration",
        change: |dir| write(dir, "config.json", &entries::SMALL_CONFIG[..entries::SMALL_CONFIG.len() / 2]),
        expected: &["config.json: ", "EOF while parsing", " at line "],
    },
    Mistake {
        name: "empty weights",
        change: |dir| write(dir, "model.safetensors", ""),
        expected: &["model.safetensors: the file: expected at least 8 bytes, found an empty file"],
    },
    Mistake {
        name: "weights of zeros",
        change: |dir| write(dir, "model.safetensors", [0; 4096]),
        expected: &["model.safetensors: ", "expected safetensors, found zeros at its start; an interrupted download"],
    },
    Mistake {
        name: "weights in Git LFS",
        change: |dir| write(dir, "model.safetensors", POINTER),
        expected: &["model.safetensors: ", "a Git LFS pointer", "`git lfs pull`"],
    },
    Mistake {
        name: "no weights",
        change: |dir| fs::remove_file(dir.join("model.safetensors")).unwrap(),
        expected: &["model.safetensors: the file: expected it or model.safetensors.index.json, found neither"],
    },
    Mistake {
        name: "only pickled weights",
        change: |dir| fs::rename(dir.join("model.safetensors"), dir.join("pytorch_model.bin")).unwrap(),
        expected: &["found neither, but pytorch_model.bin, which only `weir convert` reads"],
    },
    Mistake {
        name: "GPT-2 of Hugging Face",
        change: |dir| config_and(dir, "\"model_type\": \"gpt2\""),
        expected: &["model_type: ", "`weir convert --from gpt2 ", " NEW-FOLDER`", "found \"gpt2\""],
    },
    Mistake {
        name: "another architecture of Hugging Face",
        change: |dir| config_and(dir, "\"model_type\": \"bert\", \"vocab_size\": 7"),
        expected: &["model_type: expected one of llama, ", "found bert"],
    },
    Mistake {
        name: "empty folder",
        change: |dir| only(dir, ""),
        expected: &["the folder: expected a checkpoint: a folder with a config.json, found an empty folder"],
    },
    Mistake {
        name: "folder of other files",
        change: |dir| only(dir, "notes.txt"),
        expected: &["the folder: expected a checkpoint", "found none; the folder has notes.txt"],
    },
    Mistake {
        name: "folder of a GGUF file",
        change: |dir| only(dir, "model.gguf"),
        expected: &["the folder has model.gguf; weir does not read GGUF"],
    },
    Mistake {
        name: "folder of a training checkpoint",
        change: |dir| only(dir, "checkpoint_last.pt"),
        expected: &["the folder has checkpoint_last.pt; `weir convert` reads PyTorch checkpoints"],
    },
    Mistake {
        name: "folder of checkpoints",
        change: |dir| {
            only(dir, "notes.txt");
            fs::create_dir(dir.join("inner")).unwrap();
            write(&dir.join("inner"), "config.json", entries::SMALL_CONFIG);
        },
        expected: &["found none, but subfolders that are checkpoints: inner"],
    },
];

#[test]
fn errors_name_the_mistake() {
    for Mistake { name, change, expected } in MISTAKES {
        // Models of Hugging Face need the feature.
        if *name == "another architecture of Hugging Face" && !cfg!(feature = "candle") {
            continue;
        }
        let dir = valid();
        change(dir.path());
        let message = message(dir.path());
        for part in *expected {
            assert!(message.contains(part), "{name}: {message}\nshould contain: {part}");
        }
    }
}

#[test]
fn a_path_that_is_no_folder_is_named() {
    let dir = valid();
    let file = message(&weights_file(&dir));
    assert!(file.contains("model.safetensors: the folder: ") && file.ends_with("found a file"), "{file}");
    let none = message(&dir.path().join("none"));
    assert!(none.ends_with(
        "none: the folder: expected a checkpoint: a folder with a config.json, found no folder of this name"
    ));
}

/// The server reports the same, before it loads anything, and names the flag.
#[test]
fn the_server_names_the_mistake_too() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("model.gguf"), "x").unwrap();
    let path = dir.path().to_str().unwrap();
    let error = weir(&[], &["serve", "--check-config", path]).unwrap_err();
    let expected =
        "expected a checkpoint: a folder with a config.json, found none; the folder has model.gguf; weir does not";
    assert!(error.starts_with("weir: --model ") && error.contains(expected), "{error}");
}
