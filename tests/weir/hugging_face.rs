//! Hugging Face checkpoints, as transformers wrote them: their layouts, bad input, and the serving of tokens.

use crate::{
    process::{weir, weir_json},
    support::{self, edit_json, read_json, settings},
    verify::{changed_copy, run},
    *,
};
use proptest::prelude::*;
use serde_json::Map;
use weir::{
    models::text::StreamDetokenizer,
    verify::{LengthLimit, load::load as reference},
};
use weir_proto::v1::{FinishReason, Finished};

/// The golden checkpoints, one for each architecture.
pub(crate) const MODEL_TYPES: [&str; 6] = ["llama", "qwen2", "qwen3", "gemma2", "gpt_bigcode", "mamba"];

/// Returns the folder of a golden checkpoint.
pub(crate) fn folder(model_type: &str) -> PathBuf {
    golden_data("hugging-face").join(model_type)
}

/// Loads a golden checkpoint.
fn model(model_type: &str) -> Arc<dyn Model> {
    load(&folder(model_type), &settings()).unwrap()
}

/// Copies a golden checkpoint, so that a test can change it.
pub(crate) fn copied(model_type: &str) -> TempDir {
    support::copied(&folder(model_type))
}

/// Replaces the only occurrence of `from` in a file.
pub(crate) fn edit(file: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(file).unwrap();
    assert_eq!(text.matches(from).count(), 1, "{from:?} in {}", file.display());
    fs::write(file, text.replace(from, to)).unwrap();
}

fn message(dir: &Path, settings: &Settings) -> String {
    let error = load(dir, settings).err().expect("the folder is invalid").to_string();
    error.replace(&format!("{}/", dir.display()), "")
}

/// Returns a copy with one more tensor, of zeros.
fn with_tensor(model_type: &str, name: &str, shape: &[usize]) -> TempDir {
    changed_copy(&folder(model_type), |tensors| {
        let bytes = vec![0; size_of::<f32>() * shape.iter().product::<usize>()];
        tensors.insert(name.into(), (safetensors::Dtype::F32, shape.to_vec(), bytes));
    })
}

#[test]
fn unused_tensors_are_not_read() {
    let head = with_tensor("qwen2", "lm_head.weight", &[384, 49]);
    let expected = "model.safetensors: lm_head.weight: expected shape [384, 48], found shape [384, 49]";
    assert_eq!(message(head.path(), &settings()), expected);
    let mask = "transformer.h.0.attn.bias";
    for copy in
        [with_tensor("qwen2", "lm_head.weight", &[384, 48]), with_tensor("gpt_bigcode", mask, &[1, 1, 280, 280])]
    {
        load(copy.path(), &settings()).unwrap();
    }
    let booleans = changed_copy(&folder("gpt_bigcode"), |tensors| {
        tensors.insert(mask.into(), (safetensors::Dtype::BOOL, vec![1, 1, 8, 8], vec![1; 64]));
    });
    load(booleans.path(), &settings()).unwrap();
    let verified = Command::new(env!("CARGO_BIN_EXE_weir")).args(["verify", "--model"]).arg(booleans.path()).status();
    assert!(verified.unwrap().success());
}

const TEXT: &str = "Zürich's café, 1.5 million – naïve";

/// Windows and pieces of each length, in this process and on a server.
#[test]
fn scores_by_length_are_per_character_of_the_text() {
    let folder = folder("qwen2");
    let folder = folder.to_str().unwrap();
    let server = Server::start(&["--threads", "1", "--calibration-milliseconds", "0", "--model", folder]);
    let address = server.address.to_string();
    let score = |source: [&str; 2], size: [&str; 2], more: &[&str]| {
        weir(&[&["score", "--text", TEXT][..], &source, &size, more].concat()).unwrap()
    };
    let close = |a: &Value, b: &Value| (a.as_f64().unwrap() - b.as_f64().unwrap()).abs() < 1e-4;
    for source in [["--model", folder], ["--server", &address]] {
        let scored: Value = serde_json::from_str(&score(source, ["--lengths", "4,9"], &["--json"])).unwrap();
        let mut cells = Vec::new();
        for entry in scored["lengths"].as_array().unwrap() {
            let bits = entry["bits_per_token"].as_f64().unwrap() * entry["scored"].as_f64().unwrap();
            // The first token is Z, which is not scored.
            for (key, count) in [("bits_per_char", TEXT.chars().count() - 1), ("bits_per_byte", TEXT.len() - 1)] {
                assert!(close(&entry[key], &json!(bits / count as f64)), "{source:?} {key}: {entry}");
            }
            let size = format!("{0},{0}", entry["length"]);
            let windowed: Value = serde_json::from_str(&score(source, ["--windowed", &size], &["--json"])).unwrap();
            for key in ["bits_per_char", "bits_per_byte", "bits_per_token"] {
                assert!(close(&entry[key], &windowed[key]), "{source:?} {key}: {entry} {windowed}");
            }
            assert_eq!(windowed["window_nats_per_token"].as_array().unwrap().len(), windowed["windows"]);
            assert!(windowed.get("window_nats_per_char").is_none(), "{windowed}");
            cells.push(format!("{:.4}", entry["bits_per_char"].as_f64().unwrap()));
        }
        let table = score(source, ["--lengths", "4,9"], &[]);
        let line = table.lines().nth(2).unwrap();
        let found: Vec<&str> = line.split_whitespace().skip(3).collect();
        assert!(line.starts_with("bits per character ") && found == cells, "{table}");
    }
}

#[test]
fn models_of_tokens_and_of_characters_are_compared_per_character() {
    let tokens = folder("llama");
    let characters = converted("whitespaces");
    let folders = [tokens.to_str().unwrap(), characters.to_str().unwrap()];
    let options = ["--pairs", "2", "--context", "16", "--steps", "8", "--batch", "2", "--threads", "1"];
    let table = weir(&[&["bench", "compare"], &options[..], &folders[..]].concat()).unwrap();
    assert!(table.contains(" per character (p10"), "{table}");
    assert!(table.contains("llama: a symbol is a token of "), "{table}");
    let json = weir_json(&[&["bench", "compare", "--json"], &options[..], &folders[..]].concat());
    let comparison = if json.is_array() { json[0].clone() } else { json };
    let found = comparison.to_string();
    assert!(found.contains("\"chars_per_symbol\":1.0") && found.contains("\"chars_per_symbol\":"), "{found}");
}

#[test]
fn a_folder_is_inspected_as_it_is() {
    let copy = copied("llama");
    shard(copy.path());
    let inspected = weir_json(&["inspect", "--json", copy.path().to_str().unwrap()]);
    assert_eq!((&inspected["family"], &inspected["exactness"]), (&json!("hugging-face"), &json!("within")));
    assert_eq!(
        inspected["vocabulary"],
        json!({ "size": 384, "tokenizer": "tokenizer.json", "start": [], "ends": [0] })
    );
    assert_eq!(inspected["architecture"]["model_type"], "llama");
    // 384 · 48 twice, 2 layers, and the last norm; without the tensor that is not used
    let layer = 48 * 48 * 2 + 24 * 48 * 2 + 3 * 96 * 48 + 2 * 48;
    assert_eq!(inspected["parameters"], json!(2 * 384 * 48 + 2 * layer + 48));
}

/// Keys of transformers 4 instead of transformers 5, and weights in two files.
#[test]
fn older_keys_and_shards_give_the_same_logits() {
    for model_type in ["llama", "qwen2", "gemma2"] {
        let copy = copied(model_type);
        change_config(copy.path(), |keys| {
            keys.remove("rope_parameters");
            keys.remove("layer_types");
            keys.insert("rope_theta".into(), 10_000.0.into());
            keys.insert("rope_scaling".into(), Value::Null);
            if model_type == "llama" {
                keys.remove("head_dim");
            }
        });
        shard(copy.path());
        let golden = Golden::open(&folder(model_type));
        let ids = golden.ids("ids");
        let changed = load(copy.path(), &settings()).unwrap();
        let changed = full(&*changed, &ids, &BoundaryOptions::default()).0;
        assert_eq!(changed, full(&*model(model_type), &ids, &BoundaryOptions::default()).0, "{model_type}");
    }
}

/// An absent key has the value that transformers gives it; null stands for none.
#[test]
fn absent_keys_have_the_values_of_transformers() {
    let logits = |model_type: &str, change: &dyn Fn(&mut Map<String, Value>)| {
        let copy = copied(model_type);
        change_config(copy.path(), change);
        let model = load(copy.path(), &settings()).unwrap();
        full(&*model, &Golden::open(&folder(model_type)).ids("ids"), &BoundaryOptions::default()).0
    };
    let unchanged = |model_type: &str| logits(model_type, &|_| {});
    let caps = ["attn_logit_softcapping", "final_logit_softcapping"];
    // the caps of the golden checkpoint are the usual ones
    let without_caps = logits("gemma2", &|keys| keys.retain(|key, _| !caps.contains(&key.as_str())));
    assert_eq!(without_caps, unchanged("gemma2"));
    for cap in caps {
        let null = logits("gemma2", &|keys| drop(keys.insert(cap.into(), Value::Null)));
        assert_ne!(null, unchanged("gemma2"), "{cap}");
    }
    let with_window = |keys: &mut Map<String, Value>, layers: Option<usize>| {
        keys.remove("layer_types");
        keys.remove("max_window_layers");
        keys.insert("use_sliding_window".into(), true.into());
        keys.insert("sliding_window".into(), 4.into());
        keys.extend(layers.map(|layers| ("max_window_layers".into(), layers.into())));
    };
    // the first 28 layers have no window
    assert_eq!(logits("qwen2", &|keys| with_window(keys, None)), unchanged("qwen2"));
    assert_ne!(logits("qwen2", &|keys| with_window(keys, Some(1))), unchanged("qwen2"));
}

/// Changes the keys of a copy's `config.json`.
fn change_config(dir: &Path, change: impl FnOnce(&mut Map<String, Value>)) {
    edit_json(&dir.join("config.json"), |keys| change(keys.as_object_mut().unwrap()));
}

/// Splits the weights into two files with an index, and adds a tensor that older versions of transformers wrote.
fn shard(dir: &Path) {
    let single = dir.join("model.safetensors");
    let bytes = fs::read(&single).unwrap();
    let weights = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let frequencies = [0_u8; 8];
    let unused = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![2], &frequencies).unwrap();
    let mut parts = [Vec::new(), Vec::new()];
    for (index, (name, view)) in weights.tensors().into_iter().enumerate() {
        parts[index % 2].push((name, view));
    }
    parts[0].push(("model.layers.0.self_attn.rotary_emb.inv_freq".into(), unused));
    let mut map = Map::new();
    for (index, part) in parts.into_iter().enumerate() {
        let file = format!("model-0000{}-of-00002.safetensors", index + 1);
        map.extend(part.iter().map(|(name, _)| (name.clone(), file.clone().into())));
        safetensors::serialize_to_file(part, None, &dir.join(file)).unwrap();
    }
    let index = json!({ "metadata": { "total_size": 1 }, "weight_map": map });
    fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
    fs::remove_file(single).unwrap();
}

#[test]
fn the_tokenizer_gives_the_ids_and_the_text_of_transformers() {
    for model_type in MODEL_TYPES {
        let golden = Golden::open(&folder(model_type));
        let facts = read_json(&folder(model_type).join("golden.json"));
        let model = model(model_type);
        let vocabulary = &model.card().vocabulary;
        let text = facts["text"].as_str().unwrap();
        assert_eq!(vocabulary.encode("prompt", text, usize::MAX).unwrap(), golden.ids("ids"));
        assert_eq!(vocabulary.decode(&golden.ids("ids")), text);
        assert_eq!(vocabulary.decode(&golden.ids("greedy")), facts["greedy_text"].as_str().unwrap());
    }
}

async fn ask(channel: &Channel, request: GenerateRequest) -> (String, Finished) {
    let mut stream = GenerationClient::new(channel.clone()).generate(request).await.unwrap().into_inner();
    let mut text = String::new();
    while let Some(message) = stream.message().await.unwrap() {
        match message.event.unwrap() {
            Event::Piece(piece) => text.push_str(&piece.text),
            Event::Finished(finished) => return (text, finished),
            Event::Started(_) => {}
        }
    }
    panic!("the answer ended without a status");
}

/// Here the token ")" ends a text. It is not special, so it has a text of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_text_of_an_end_token_is_not_sent() {
    let copy = copied("gemma2");
    edit(&copy.path().join("generation_config.json"), r#""eos_token_id": 0"#, r#""eos_token_id": [0, 9]"#);
    let server = Server::start(&["--model", copy.path().to_str().unwrap()]);
    let channel = server.endpoint().connect().await.unwrap();
    let whole = GenerateRequest {
        prompt: "Daejeon is South Korea's fif".into(),
        sampling: Some(v1::Sampling { temperature: Some(0.0), seed: Some(1), ..Default::default() }),
        ..Default::default()
    };
    // the second stream broke after its last id
    for (resume_ids, expected) in [(vec![], " of"), (vec![276, 9], "")] {
        let (text, finished) = ask(&channel, GenerateRequest { resume_ids, ..whole.clone() }).await;
        assert_eq!((&*text, finished.reason()), (expected, FinishReason::EndOfText));
        let usage = finished.usage.unwrap();
        assert_eq!((usage.generated_chars, usage.generated_text_chars()), (1, 3));
    }
}

/// candle 0.11 reads `/proc/cpuinfo` at every product unless `RAYON_NUM_THREADS` is set. On processors with unequal cores it never does.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_do_not_read_cpuinfo() {
    let folder = folder("llama");
    let server = Server::start(&["--model", folder.to_str().unwrap(), "--calibration-milliseconds", "0"]);
    let channel = server.endpoint().connect().await.unwrap();
    let read = || {
        let counters = std::fs::read_to_string(format!("/proc/{}/io", server.program.id())).unwrap();
        let bytes = counters.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap();
        bytes.parse::<u64>().unwrap()
    };
    let request = GenerateRequest {
        prompt: "The town was founded by settlers from the north".into(),
        stopping: Some(v1::Stopping { max_chars: Some(28), ignore_eos: Some(true), ..Default::default() }),
        ..Default::default()
    };
    ask(&channel, request.clone()).await;
    let before = read();
    for _ in 0..16 {
        ask(&channel, request.clone()).await;
    }
    let bytes = read() - before;
    // 448 tokens of at least 15 products each: one read of `/proc/cpuinfo` per product exceeds 1 MiB
    assert!(bytes < 1 << 20, "{bytes} bytes were read");
}

proptest! {
    /// Random tokens split code points and are often invalid UTF-8.
    #[test]
    fn pieces_are_never_taken_back_and_concatenate_to_the_text(ids in prop::collection::vec(0_u32..384, 0..60)) {
        static MODEL: LazyLock<Arc<dyn Model>> = LazyLock::new(|| model("llama"));
        let vocabulary = &MODEL.card().vocabulary;
        let mut stream = StreamDetokenizer::new(vocabulary.clone());
        let mut sent = String::new();
        for (index, &id) in ids.iter().enumerate() {
            sent.push_str(stream.push(id));
            // what was sent is a beginning of the text, whatever tokens follow
            let next = vocabulary.decode(&[&ids[..=index], &[33]].concat());
            prop_assert!(next.starts_with(&sent), "{next:?} does not start with {sent:?}");
        }
        sent.push_str(stream.finish());
        prop_assert_eq!(sent, vocabulary.decode(&ids));
    }
}

#[test]
fn marks_and_defaults_come_from_the_checkpoint() {
    let copy = copied("llama");
    let config = copy.path().join("generation_config.json");
    edit(&config, r#""eos_token_id": 0"#, r#""eos_token_id": [0, 9], "temperature": 0.6, "top_p": 0.9"#);
    let tokenizer = copy.path().join("tokenizer.json");
    edit(
        &tokenizer,
        r#""post_processor": null"#,
        r#""post_processor": {"type": "TemplateProcessing", "pair": [], "single": [{"SpecialToken": {"id": "<eos>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}}], "special_tokens": {"<eos>": {"id": "<eos>", "ids": [0], "tokens": ["<eos>"]}}}"#,
    );
    let model = load(copy.path(), &settings()).unwrap();
    let card = model.card();
    assert_eq!(card.vocabulary.end_marks().collect::<Vec<_>>(), [0, 9]);
    assert_eq!((card.sampling.temperature, card.sampling.top_p, card.sampling.top_k), (0.6, 0.9, 0));
    let ids = card.vocabulary.encode("prompt", "a<eos>", 99).unwrap();
    assert_eq!((ids[0], ids.last(), &*card.vocabulary.decode(&ids)), (0, Some(&0), "a"));
    assert_eq!(card.vocabulary.encode("prompt", "", 99).unwrap(), [0]);
    assert_eq!((card.max_symbols, card.max_symbols_why), (256, Some("the checkpoint's max_position_embeddings")));
}

#[test]
fn the_command_verifies_each_architecture() {
    for model_type in MODEL_TYPES {
        let folder = folder(model_type);
        let (code, out, error) = run(&["--model", folder.to_str().unwrap()]);
        // A window of 16 tokens limits the sample.
        let tokens = if model_type == "gemma2" { 16 } else { 160 };
        assert_eq!((code, error.as_str()), (0, ""), "{out}");
        assert!(
            out.starts_with(&format!("{model_type}: hugging-face, f32, {tokens} symbols\nbits per token ")),
            "{out}"
        );
        assert!(out.ends_with("verified\n"), "{out}");
    }
    let folder = folder("gemma2");
    let ids = ["7"; 17].join(",");
    let (code, out, error) = run(&["--model", folder.to_str().unwrap(), "--ids", &ids]);
    let expected = "--ids: expected at most 16 symbols (candle-transformers and transformers compute longer texts \
                    differently), found 17";
    assert!(code == 1 && out.is_empty() && error.contains(expected), "{error}");
}

/// Both layouts of positions, Llama 3's scaling, an untied Mamba, and shards.
#[test]
fn other_layouts_are_verified() {
    let verified = |copy: &Path, why: &str| {
        let (code, out, error) = run(&["--model", copy.to_str().unwrap(), "--json"]);
        let json: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{why}: {error}"));
        assert_eq!((code, &json["ok"], &json["symbols"]), (0, &true.into(), &160.into()), "{why}: {out}{error}");
    };
    let llama3 = r#""rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64}, "rope_scaling": null"#;
    let older = r#""rope_theta": 300.0, "rope_scaling": null"#;
    for (model_type, positions) in [("llama", llama3), ("llama", older), ("qwen2", older), ("qwen3", older)] {
        let copy = copied(model_type);
        change_config(copy.path(), |keys| {
            keys.remove("rope_parameters");
            keys.extend(serde_json::from_str::<Map<String, Value>>(&format!("{{{positions}}}")).unwrap());
        });
        shard(copy.path());
        verified(copy.path(), model_type);
    }
    let untied = changed_copy(&folder("mamba"), |tensors| {
        let (dtype, shape, data) = tensors["backbone.embeddings.weight"].clone();
        // The rows of the embedding in reverse order.
        let rows: Vec<u8> = data.chunks_exact(4 * shape[1]).rev().flatten().copied().collect();
        tensors.insert("lm_head.weight".into(), (dtype, shape, rows));
    });
    edit(&untied.path().join("config.json"), r#""tie_word_embeddings": true"#, r#""tie_word_embeddings": false"#);
    verified(untied.path(), "untied mamba");
}

/// The recurrence of Mamba compares no pairs of symbols.
#[test]
fn the_limit_of_a_text_has_the_reason_of_its_architecture() {
    let limit = |model_type: &str| reference(&folder(model_type).as_path().into()).unwrap().limit();
    assert_eq!(limit("llama"), LengthLimit::PAIRS);
    let why = "the reference implementation has the vectors of all symbols in memory";
    assert_eq!(limit("mamba"), LengthLimit { symbols: 4096, why });
}
