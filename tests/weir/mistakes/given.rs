//! The folders in which the mistakes of the table happen. Each has a small valid checkpoint, `model`.

use crate::hostile_checkpoints::entries::SMALL_CONFIG;
use std::{fs, path::Path};

const POINTER: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 7782708\n";

const PAGE: &str = "<!DOCTYPE html>\n<html><body>Not found</body></html>\n";

/// A folder: the name after `given` in the table, and how the folder is changed.
pub(super) struct Given {
    pub(super) name: &'static str,
    pub(super) change: fn(&Path),
}

const fn given(name: &'static str, change: fn(&Path)) -> Given {
    Given { name, change }
}

fn write(folder: &Path, name: &str, contents: impl AsRef<[u8]>) {
    fs::write(folder.join(name), contents).unwrap();
}

fn config(folder: &Path, contents: impl AsRef<[u8]>) {
    write(folder, "model/config.json", contents);
}

fn weights(folder: &Path, contents: impl AsRef<[u8]>) {
    write(folder, "model/model.safetensors", contents);
}

/// Leaves one file in the checkpoint's folder.
fn only(folder: &Path, file: &str) {
    fs::remove_dir_all(folder.join("model")).unwrap();
    fs::create_dir(folder.join("model")).unwrap();
    write(folder, &format!("model/{file}"), "x");
}

/// Replaces the configuration by that of a Llama, and writes its tokenizer, if there is one.
#[cfg(feature = "candle")]
fn llama(folder: &Path, tokenizer: Option<&str>) {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/hugging-face/llama/config.json");
    config(folder, fs::read(golden).unwrap());
    if let Some(tokenizer) = tokenizer {
        write(folder, "model/tokenizer.json", tokenizer);
    }
}

pub(super) const ALL: &[Given] = &[
    given("an empty configuration", |folder| config(folder, "")),
    given("a configuration of zeros", |folder| config(folder, [0; 64])),
    given("a configuration in Git LFS", |folder| config(folder, POINTER)),
    given("a broken configuration", |folder| {
        config(folder, "{\n  \"format\": \"weir/1\",\n  \"family\": hourglass\n}");
    }),
    given("half a configuration", |folder| config(folder, &SMALL_CONFIG[..SMALL_CONFIG.len() / 2])),
    given("empty weights", |folder| weights(folder, "")),
    given("weights of zeros", |folder| weights(folder, [0; 4096])),
    given("weights in Git LFS", |folder| weights(folder, POINTER)),
    given("weights alone", |folder| fs::remove_file(folder.join("model/config.json")).unwrap()),
    given("no weights", |folder| fs::remove_file(folder.join("model/model.safetensors")).unwrap()),
    given("pickled weights", |folder| {
        fs::rename(folder.join("model/model.safetensors"), folder.join("model/pytorch_model.bin")).unwrap();
    }),
    given("pickled weights in Git LFS", |folder| {
        fs::remove_file(folder.join("model/model.safetensors")).unwrap();
        write(folder, "model/pytorch_model.bin", POINTER);
    }),
    given("a GPT-2 of Hugging Face without weights", |folder| {
        config(folder, "{\"model_type\": \"gpt2\"}");
        fs::remove_file(folder.join("model/model.safetensors")).unwrap();
    }),
    #[cfg(feature = "candle")]
    given("a Llama of Hugging Face without a tokenizer", |folder| llama(folder, None)),
    #[cfg(feature = "candle")]
    given("a Llama of Hugging Face with a broken tokenizer", |folder| llama(folder, Some("tokenizer"))),
    #[cfg(feature = "candle")]
    given("a Llama of Hugging Face with a tokenizer in Git LFS", |folder| llama(folder, Some(POINTER))),
    given("a GPT-2 of Hugging Face", |folder| config(folder, "{\"model_type\": \"gpt2\"}")),
    #[cfg(feature = "candle")]
    given("a BERT of Hugging Face", |folder| config(folder, "{\"model_type\": \"bert\", \"vocab_size\": 7}")),
    given("an empty folder", |folder| {
        only(folder, "x");
        fs::remove_file(folder.join("model/x")).unwrap();
    }),
    given("a folder of notes", |folder| only(folder, "notes.txt")),
    given("a folder of a GGUF file", |folder| only(folder, "model.gguf")),
    given("a folder of a training checkpoint", |folder| only(folder, "checkpoint_last.pt")),
    given("a folder of a training run", |folder| only(folder, "state.pt")),
    given("a configuration of another project", |folder| config(folder, "{\"arch_layout\": [\"m2\"]}")),
    given("a folder of checkpoints", |folder| {
        only(folder, "notes.txt");
        fs::create_dir(folder.join("model/inner")).unwrap();
        write(folder, "model/inner/config.json", SMALL_CONFIG);
    }),
    given("a configuration that is a web page", |folder| config(folder, PAGE)),
    given("weights that are a web page", |folder| weights(folder, PAGE)),
    #[cfg(feature = "candle")]
    given("half a Llama of Hugging Face", |folder| {
        config(folder, "{\"model_type\": \"llama\"}");
        fs::remove_file(folder.join("model/model.safetensors")).unwrap();
    }),
    given("settings in JSON", |folder| write(folder, "weir.toml", "{\n  \"rows\": 8,\n  \"listen\": \"a\"\n}\n")),
    given("a photo", |folder| write(folder, "photo.jpg", b"\xff\xd8\xff")),
    given("a text", |folder| write(folder, "text.txt", "Hello")),
    given("an empty text", |folder| write(folder, "text.txt", "")),
    given("a wrong key", |folder| write(folder, "wrong-key", "another-key-0123456789\n")),
    given("a wrong setting", |folder| {
        write(folder, "weir.toml", "rows = 8\nlisten-http = \"127.0.0.1:8000\"\n");
    }),
];
