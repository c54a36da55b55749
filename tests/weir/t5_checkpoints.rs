//! Conversion from Hugging Face's layout: tokenizers, defaults, storage, and what is refused.

use crate::{
    process::weir_json,
    support::{configured, encode, encoder, forced, read_json, settings},
    t5::Case,
    verify::{Tensors, read_tensors},
    *,
};
use std::io::Cursor;
use weir::models::{contract::EarlyStopping, convert::convert, text::StreamTokenizer};
use zip::{CompressionMethod, ZipWriter, write::SimpleFileOptions};

fn cases(name: &str) -> Value {
    read_json(&golden_data("t5").join(name).join("tokenizer_cases.json"))
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// Encodes a text that arrives in chunks of `size` characters.
fn streamed(vocabulary: &Arc<Vocabulary>, text: &str, size: usize) -> Vec<u32> {
    let mut tokens = Vec::new();
    let mut reading = StreamTokenizer::new(vocabulary.clone(), "document", 1000);
    let characters: Vec<char> = text.chars().collect();
    for chunk in characters.chunks(size) {
        reading.push(&chunk.iter().collect::<String>(), &mut tokens).unwrap();
    }
    reading.finish(&mut tokens).unwrap();
    tokens.iter().map(|token| token.id).collect()
}

#[test]
fn tokenizers_agree_with_the_golden_cases() {
    // the same pieces from tokenizer.json and from spiece.model
    for (model, file) in [("t5_v10", "t5_v10"), ("t5_v11", "t5_v10"), ("byt5", "byt5")] {
        let vocabulary = model_of("t5", model, Dtype::F32).card().vocabulary.clone();
        let mut compared = 0;
        let file = cases(file);
        for case in file["cases"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let mut expected = ids(&case["ids"]);
            assert_eq!(vocabulary.decode(&expected), case["decoded"].as_str().unwrap(), "{model}: {text:?}");
            assert_eq!(expected.pop(), Some(1));
            for size in [1, 5, 1000] {
                assert_eq!(streamed(&vocabulary, text, size), expected, "{model}: {text:?} in chunks of {size}");
            }
            compared += 1;
        }
        for case in file["decode_only"].as_array().into_iter().flatten() {
            assert_eq!(vocabulary.decode(&ids(&case["ids"])), case["decoded"].as_str().unwrap(), "{model}: {case}");
        }
        assert!(compared > 3, "{model}: {compared}");
    }
}

#[test]
fn the_prefix_precedes_a_text_and_has_no_bytes() {
    let model = model_of("t5", "t5_v10", Dtype::F32);
    let vocabulary = model.card().vocabulary.clone();
    let mut tokens = Vec::new();
    let mut reading = encoder(&*model).limits().tokenizer(vocabulary, "document");
    reading.push("also known", &mut tokens).unwrap();
    reading.finish(&mut tokens).unwrap();
    let golden = Golden::open(&golden_data("t5/t5_v10"));
    let mut read: Vec<u32> = tokens.iter().map(|token| token.id).collect();
    read.push(1);
    assert_eq!(read, golden.ids("s0.ids"));
    assert_eq!((tokens[0].start, tokens[0].end), (0, 0));
    assert_eq!((tokens.last().unwrap().end, reading.bytes()), (10, 10));
}

#[test]
fn generation_settings_become_defaults() {
    let generation = encoder(&*model_of("t5", "t5_v10", Dtype::F32)).limits().generation.clone();
    assert_eq!((generation.beam, generation.length_penalty, generation.no_repeat_ngram), (4, 2.0, 3));
    // max_length and min_length count the start symbol
    assert_eq!((generation.min_tokens, generation.max_tokens), (29, 199));
    assert_eq!((generation.early_stopping, generation.prefix.as_str()), (EarlyStopping::True, "summarize: "));
    let generation = encoder(&*model_of("t5", "byt5", Dtype::F32)).limits().generation.clone();
    assert_eq!((generation.beam, generation.max_tokens), (1, 20));
    assert_eq!((generation.early_stopping, generation.prefix.as_str()), (EarlyStopping::Never, ""));
    // the minimum in one file, the maximum in the other
    let split = changed("t5_v11", |config| config["min_length"] = json!(30));
    fs::write(split.path().join("generation_config.json"), json!({ "max_length": 200 }).to_string()).unwrap();
    let model = load(split.path(), &settings()).unwrap();
    let generation = &encoder(&*model).limits().generation;
    assert_eq!((generation.min_tokens, generation.max_tokens), (29, 199));
}

/// Two keys win over `feed_forward_proj`, as in transformers.
#[test]
fn the_nonlinearity_may_have_its_own_keys() {
    let architecture = |keys: &[(&str, Value)]| {
        let source = changed("t5_v11", |config| {
            keys.iter().for_each(|(key, value)| config[key] = value.clone());
        });
        let dest = TempDir::new().unwrap();
        convert(Source::T5, source.path(), dest.path(), false).unwrap();
        read_json(&dest.path().join("config.json"))["architecture"].clone()
    };
    let [derived, stated, exact] = [
        architecture(&[]),
        architecture(&[
            ("feed_forward_proj", json!("relu")),
            ("dense_act_fn", json!("gelu_new")),
            ("is_gated_act", json!(true)),
        ]),
        architecture(&[("dense_act_fn", json!("gelu"))]),
    ];
    assert_eq!((&derived["activation"], &derived["gated"]), (&json!("gelu-tanh"), &json!(true)));
    assert_eq!(stated, derived);
    assert_eq!(exact["activation"], "gelu");
}

/// Copies a fixture and changes its `config.json`.
fn changed(case: &str, change: impl FnOnce(&mut Value)) -> TempDir {
    configured(&golden_data("t5").join(case), change)
}

/// Returns the error of converting a folder. Loading it gives the same one, with advice if a file is missing.
fn error(source: Source, from: &Path) -> String {
    let dest = TempDir::new().unwrap();
    let shortened = |message: String| message.replace(&format!("{}/", from.display()), "");
    let converted = convert(source, from, &dest.path().join("model"), false).unwrap_err();
    let loaded = load(from, &settings()).err().expect("the folder is invalid");
    let [converted, loaded] = [converted.to_string(), loaded.to_string()].map(shortened);
    assert!(loaded.starts_with(&converted), "{converted}, {loaded}");
    converted
}

#[test]
fn defaults_of_version_5_decide_the_scale_of_the_head() {
    let dest = TempDir::new().unwrap();
    let folder = dest.path().join("model");
    // mT5 has no such key: it never scales
    for (key, value) in [("scale_decoder_outputs", json!(false)), ("model_type", json!("mt5"))] {
        let source = changed("t5_v11", |config| {
            config["tie_word_embeddings"] = json!(true);
            config["transformers_version"] = json!("5.24.0");
            config[key] = value.clone();
        });
        convert(Source::T5, source.path(), &folder, true).unwrap();
        let model = load(&folder, &settings()).unwrap();
        let golden = Golden::open(&golden_data("t5/t5_v11"));
        let mut scratch = model.scratch();
        let document = encode(&*model, &golden.ids("s0.ids"), &mut scratch);
        let logits = forced(&*model, &document, &golden.ids("s0.dec_ids"), &mut scratch);
        assert!(difference(&logits, golden.get("s0.logits")) <= 5e-5, "{key}");
    }
}

#[test]
fn a_folder_gives_the_model_of_its_conversion() {
    for case in Case::all() {
        let [direct, converted] = [golden_data("t5").join(case.name), checkpoint("t5", case.name)]
            .map(|dir| load(&dir, &settings()).unwrap());
        assert_eq!(direct.card().shape, converted.card().shape, "{}", case.name);
        assert_eq!(encoder(&*direct).limits(), encoder(&*converted).limits(), "{}", case.name);
        assert_eq!(direct.card().name, case.name);
        assert_eq!(direct.card().sha256.len(), 64);
        let symbols = case.golden.ids("s0.dec_ids");
        let logits = [&direct, &converted].map(|model| {
            let mut scratch = model.scratch();
            let document = encode(&**model, &case.golden.ids("s0.ids"), &mut scratch);
            forced(&**model, &document, &symbols, &mut scratch)
        });
        assert!(logits[0] == logits[1], "{}: other logits", case.name);
    }
    let int8 = load(&golden_data("t5/mrt5"), &Settings { dtype: Dtype::Int8, ..settings() }).unwrap();
    assert_eq!(int8.card().dtype, "int8");
}

#[test]
fn commands_take_a_folder() {
    let folder = golden_data("t5/t5_v10");
    let folder = folder.to_str().unwrap();
    let contents = weir_json(&["inspect", "--json", folder]);
    assert_eq!(contents["family"], "t5");
    let digest = contents["sha256"].as_str().unwrap().to_owned();
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("document");
    fs::write(&file, "also known").unwrap();
    let golden = Golden::open(&golden_data("t5/t5_v10"));
    let length = golden.ids("s0.beam4_es_never.lengths")[0] as usize;
    let expected: Vec<u32> = golden.row_ids("s0.beam4_es_never.ids", 0)[..length].to_vec();
    let flags = "--beam 4 --max-new-tokens 30 --min-new-tokens 6 --length-penalty 2 --no-repeat-ngram-size 3 \
        --early-stopping never --repetition-penalty 1";
    let flags: Vec<&str> = flags.split_whitespace().collect();
    let summarize = ["summarize", "--json", "--file", file.to_str().unwrap(), "--model"];
    let found = weir_json(&[&summarize[..], &[folder], &flags].concat());
    assert_eq!(found["hypotheses"][0]["ids"], json!(expected), "{found}");
    // the same over a server, which serves the folder
    let server = Server::start(&["--threads", "1", "--calibration-milliseconds", "0", "--model", folder]);
    let address = server.address.to_string();
    let served = weir_json(&[&summarize[..], &["t5_v10", "--server", &address], &flags].concat());
    assert_eq!(served["hypotheses"][0]["ids"], json!(expected), "{served}");
    // a digest in a card is compared
    let copy = changed("t5_v10", |_| {});
    let card =
        |sha256: &str| fs::write(copy.path().join("card.json"), json!({ "sha256": sha256 }).to_string()).unwrap();
    card(&digest);
    assert!(load(copy.path(), &Settings { require_sha256: true, ..settings() }).is_ok());
    card(&"0".repeat(64));
    let error = load(copy.path(), &settings()).err().unwrap().to_string();
    assert!(error.contains("sha256"), "{error}");
}

/// The reference reads the same tensors as from a converted checkpoint.
#[test]
fn a_folder_is_verified_without_conversion() {
    for case in ["t5_v10", "longt5_tglobal", "mrt5"] {
        let [direct, converted] = [golden_data("t5").join(case), checkpoint("t5", case)].map(|folder| {
            let mut report = weir_json(&["verify", "--json", "--model", folder.to_str().unwrap()]);
            report["model"] = Value::Null;
            report
        });
        assert_eq!((&direct["ok"], &direct), (&json!(true), &converted), "{case}");
    }
}

fn message(dir: &Path) -> String {
    load(dir, &settings()).err().expect("the folder is invalid").to_string().replace(&format!("{}/", dir.display()), "")
}

#[cfg(unix)]
#[test]
fn links_out_of_the_folder_are_refused() {
    let dir = changed("t5_v11", |_| {});
    let rename = |from: &str, to: &str| fs::rename(dir.path().join(from), dir.path().join(to)).unwrap();
    for name in ["spiece.model", "generation_config.json", "model.safetensors", "config.json"] {
        let outside: PathBuf = golden_data("t5/t5_v11").join(name);
        let kept = dir.path().join("kept");
        rename(name, "kept");
        std::os::unix::fs::symlink(&outside, dir.path().join(name)).unwrap();
        let found = message(dir.path());
        assert!(found.contains("a link out of it") || found.contains("regular file"), "{name}: {found}");
        fs::remove_file(dir.path().join(name)).unwrap();
        fs::rename(kept, dir.path().join(name)).unwrap();
    }
}

const INDEX: &str = "pytorch_model.bin.index.json";

/// Returns the tensors of a fixture.
fn tensors(case: &str) -> Tensors {
    read_tensors(&golden_data("t5").join(case))
}

/// Returns the file that `torch.save` writes of a dict of tensors.
fn torch_file(tensors: &Tensors) -> Vec<u8> {
    torch_file_of(tensors, "torch._utils\n_rebuild_tensor_v2")
}

/// Returns such a file whose tensors are built by another function.
fn torch_file_of(tensors: &Tensors, builder: &str) -> Vec<u8> {
    let text = |out: &mut Vec<u8>, text: &str| {
        out.push(b'X');
        out.extend((text.len() as u32).to_le_bytes());
        out.extend(text.as_bytes());
    };
    let number = |out: &mut Vec<u8>, number: usize| {
        out.push(b'J');
        out.extend((number as i32).to_le_bytes());
    };
    let mut pickle = vec![0x80, 2, b'}', b'('];
    for (key, (name, (_, shape, data))) in tensors.iter().enumerate() {
        text(&mut pickle, name);
        pickle.extend(format!("c{builder}\n((").into_bytes());
        text(&mut pickle, "storage");
        let class = if name.starts_with("integers") { "Long" } else { "Float" };
        pickle.extend(format!("ctorch\n{class}Storage\n").into_bytes());
        text(&mut pickle, &key.to_string());
        text(&mut pickle, "cpu");
        number(&mut pickle, data.len() / 4);
        pickle.extend(b"tQ");
        number(&mut pickle, 0);
        let stride = |dim: usize| shape[dim + 1..].iter().product::<usize>();
        for sizes in [shape.clone(), (0..shape.len()).map(stride).collect()] {
            pickle.push(b'(');
            sizes.into_iter().for_each(|size| number(&mut pickle, size));
            pickle.push(b't');
        }
        pickle.push(0x89);
        pickle.extend(b"ccollections\nOrderedDict\n)RtR");
    }
    pickle.extend(b"u.");
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    let mut add = |name: String, bytes: &[u8]| {
        archive.start_file(name, stored).unwrap();
        archive.write_all(bytes).unwrap();
    };
    add("archive/data.pkl".into(), &pickle);
    tensors.values().enumerate().for_each(|(key, (.., data))| add(format!("archive/data/{key}"), data));
    archive.finish().unwrap().into_inner()
}

/// A copy of a fixture whose weights are pickles.
struct Pickled {
    dir: TempDir,
}

impl Pickled {
    /// Writes the weights in one file.
    fn single(case: &str) -> Self {
        let dir = changed(case, |_| {});
        fs::remove_file(dir.path().join("model.safetensors")).unwrap();
        fs::write(dir.path().join("pytorch_model.bin"), torch_file(&tensors(case))).unwrap();
        Self { dir }
    }

    /// Writes the weights in `count` files and an index.
    fn sharded(case: &str, count: usize) -> Self {
        let pickled = Self::single(case);
        pickled.remove("pytorch_model.bin");
        let mut shards = vec![BTreeMap::new(); count];
        let mut map = serde_json::Map::new();
        for (index, (name, tensor)) in tensors(case).into_iter().enumerate() {
            map.insert(name.clone(), shard(index % count, count).into());
            shards[index % count].insert(name, tensor);
        }
        for (index, tensors) in shards.iter().enumerate() {
            fs::write(pickled.path().join(shard(index, count)), torch_file(tensors)).unwrap();
        }
        pickled.write_index(&json!({ "metadata": { "total_size": 1 }, "weight_map": map }));
        pickled
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.path().join(name)).unwrap();
    }

    fn index(&self) -> Value {
        read_json(&self.path().join(INDEX))
    }

    fn write_index(&self, index: &Value) {
        fs::write(self.path().join(INDEX), index.to_string()).unwrap();
    }

    /// Changes the index, and returns the errors of conversion and of loading. They are the same.
    fn refused(&self, change: impl FnOnce(&mut Value)) -> String {
        let before = self.index();
        let mut index = before.clone();
        change(&mut index);
        self.write_index(&index);
        let found = self.error();
        self.write_index(&before);
        found
    }

    fn error(&self) -> String {
        error(Source::T5, self.path())
    }
}

fn shard(index: usize, count: usize) -> String {
    format!("pytorch_model-{:05}-of-{count:05}.bin", index + 1)
}

#[test]
fn pickles_give_the_model_of_safetensors() {
    let case = "t5_v11";
    let golden = Golden::open(&golden_data("t5").join(case));
    let logits = |folder: &Path| {
        let model = load(folder, &settings()).unwrap();
        let mut scratch = model.scratch();
        let document = encode(&*model, &golden.ids("s0.ids"), &mut scratch);
        (model.card().sha256.clone(), forced(&*model, &document, &golden.ids("s0.dec_ids"), &mut scratch))
    };
    let (_, expected) = logits(&golden_data("t5").join(case));
    let dest = TempDir::new().unwrap();
    let forms = [Pickled::single(case), Pickled::sharded(case, 1), Pickled::sharded(case, 3)];
    for (form, pickled) in forms.into_iter().enumerate() {
        let (sha256, found) = logits(pickled.path());
        assert!(found == expected && sha256.len() == 64, "{sha256}");
        let converted = dest.path().join(form.to_string());
        convert(Source::T5, pickled.path(), &converted, false).unwrap();
        let (_, found) = logits(&converted);
        assert!(found == expected, "converted");
        // a digest in a card is compared
        let card = |sha256: &str| {
            fs::write(pickled.path().join("card.json"), json!({ "sha256": sha256 }).to_string()).unwrap();
            load(pickled.path(), &Settings { require_sha256: true, ..settings() })
        };
        assert!(card(&sha256).is_ok());
        let error = card(&"0".repeat(64)).err().unwrap().to_string();
        assert!(error.contains("sha256 of the weights"), "{error}");
    }
}

#[test]
fn pickles_can_be_pulled() {
    for pickled in [Pickled::single("t5_v11"), Pickled::sharded("t5_v11", 3)] {
        let folder = pickled.path().to_str().unwrap();
        let data = TempDir::new().unwrap();
        let mut pull = Command::new(env!("CARGO_BIN_EXE_weir"));
        pull.args(["pull", folder, "--name", "pulled", "--json"]).env("WEIR_DATA", data.path());
        let output = pull.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(printed["source_sha256"], weir_json(&["inspect", "--json", folder])["sha256"]);
        let pulled = data.path().join("models/pulled/model.safetensors");
        let plain = fs::read(checkpoint("t5", "t5_v11").join("model.safetensors")).unwrap();
        assert_eq!(fs::read(pulled).unwrap(), plain);
    }
}

#[test]
fn an_index_must_agree_with_its_files() {
    let pickled = Pickled::sharded("t5_v11", 2);
    let [first, second] = [shard(0, 2), shard(1, 2)];
    let name = "encoder.final_layer_norm.weight";
    let at = |file: &str| {
        let file = file.to_owned();
        pickled.refused(|index| index["weight_map"][name] = json!(file))
    };
    let key = format!("{INDEX}: weight_map.{name}: expected ");
    for outside in ["../pytorch_model.bin", "/etc/passwd", "a/b.bin", "..", "", "c\\d.bin", "model.safetensors", "x.pt"]
    {
        let found = at(outside);
        let expected = format!("{key}the plain name of a .bin file in this folder, found {outside:?}");
        assert_eq!(found, expected);
    }
    let found = at("pytorch_model-00003-of-00002.bin");
    assert!(found.starts_with(&format!("{key}a file that the folder has")), "{found}");
    // a tensor that the index places in the other file
    let own = pickled.index()["weight_map"][name].as_str().unwrap().to_owned();
    let other = if own == first { &second } else { &first };
    let found = at(other);
    assert_eq!(found, format!("{other}: {name}: expected a tensor, found none"));
    // tensors that are missing everywhere
    let found = pickled.refused(|index| drop(index["weight_map"].as_object_mut().unwrap().remove(name)));
    assert_eq!(found, format!("{INDEX}: {name}: expected a tensor, found none"));
    let found = pickled.refused(|index| index["weight_map"] = json!({}));
    assert_eq!(found, format!("{INDEX}: weight_map: expected names of tensors, found none"));
    for (change, key) in [(json!({}), "weight_map"), (json!({ "weight_map": { "a": 1 } }), "weight_map")] {
        let found = pickled.refused(|index| *index = change);
        assert!(found.starts_with(INDEX) && found.contains(key), "{found}");
    }
    // the single file counts, even next to an index
    fs::write(pickled.path().join("pytorch_model.bin"), "").unwrap();
    let found = pickled.error();
    assert!(found.starts_with("pytorch_model.bin: the file: expected a zip archive"), "{found}");
    pickled.remove("pytorch_model.bin");
    assert!(load(pickled.path(), &settings()).is_ok());
}

/// Transformers ignores them as well. The tensors are in the single file, in a shard and in the index, or only in a shard.
#[test]
fn pickled_tensors_that_no_model_has_are_ignored() {
    let expected = load(&golden_data("t5").join("t5_v11"), &settings()).unwrap().card().parameters;
    let mut all = tensors("t5_v11");
    let extra = all.values().next().unwrap().clone();
    all.insert("integers".into(), extra.clone());
    all.insert("extra.weight".into(), extra);
    let single = Pickled::single("t5_v11");
    fs::write(single.path().join("pytorch_model.bin"), torch_file(&all)).unwrap();
    let sharded = Pickled::sharded("t5_v11", 2);
    let mut index = sharded.index();
    let unused = |name: &str| ["extra.weight", "integers"].contains(&name);
    all.retain(|name, _| unused(name) || index["weight_map"][name] == json!(shard(1, 2)));
    fs::write(sharded.path().join(shard(1, 2)), torch_file(&all)).unwrap();
    for _ in 0..2 {
        for pickled in [&single, &sharded] {
            assert_eq!(load(pickled.path(), &settings()).unwrap().card().parameters, expected);
        }
        index["weight_map"]["extra.weight"] = json!(shard(1, 2));
        sharded.write_index(&index);
    }
}

#[test]
fn bad_files_are_refused_before_numbers_are_read() {
    let pickled = Pickled::sharded("t5_v11", 2);
    let second = pickled.path().join(shard(1, 2));
    let kept = fs::read(&second).unwrap();
    fs::write(&second, b"no archive").unwrap();
    let found = pickled.error();
    assert!(found.starts_with(&format!("{}: the file: expected a zip archive", shard(1, 2))), "{found}");
    // a shape that is not the configuration's, in the last file
    let mut all = tensors("t5_v11");
    let index = pickled.index();
    all.retain(|name, _| index["weight_map"][name] == json!(shard(1, 2)));
    let (name, mut tensor) = all.pop_last().unwrap();
    tensor.1.push(1);
    all.insert(name.clone(), tensor);
    fs::write(&second, torch_file(&all)).unwrap();
    let found = pickled.error();
    assert!(found.starts_with(&format!("{}: {name}: expected shape", shard(1, 2))), "{found}");
    // a pickle that calls anything but the builders of tensors
    fs::write(&second, torch_file_of(&all, "posix\nsystem")).unwrap();
    let found = pickled.error();
    assert!(
        found.starts_with(&format!("{}: data.pkl byte ", shard(1, 2))) && found.contains("posix.system"),
        "{found}"
    );
    #[cfg(unix)]
    {
        let outside = TempDir::new().unwrap();
        fs::write(outside.path().join("shard"), &kept).unwrap();
        fs::remove_file(&second).unwrap();
        std::os::unix::fs::symlink(outside.path().join("shard"), &second).unwrap();
        let found = pickled.error();
        assert!(found.contains("expected a file in this folder, not a link out of it"), "{found}");
        fs::remove_file(&second).unwrap();
    }
    fs::write(&second, &kept).unwrap();
    assert!(load(pickled.path(), &settings()).is_ok());
}
