//! Folders whose weights are pickles, in one file or in several with an index: the same model, and what is refused.

use super::{conversion::changed, *};
use safetensors::{Dtype as FileDtype, SafeTensors};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs,
    io::{Cursor, Write},
    path::Path,
    process::Command,
};
use tempfile::TempDir;
use weir::family::{
    convert::{Source, convert},
    load::{Settings, load},
};
use zip::{CompressionMethod, ZipWriter, write::SimpleFileOptions};

const INDEX: &str = "pytorch_model.bin.index.json";

/// A tensor of f32 numbers.
#[derive(Clone)]
struct Numbers {
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

/// Returns the tensors of a fixture.
fn tensors(case: &str) -> BTreeMap<String, Numbers> {
    let file = fs::read(t5_golden(case).join("model.safetensors")).unwrap();
    let read = SafeTensors::deserialize(&file).unwrap();
    let tensor = |name: &str| {
        let view = read.tensor(name).unwrap();
        assert_eq!(view.dtype(), FileDtype::F32);
        Numbers { shape: view.shape().to_vec(), bytes: view.data().to_vec() }
    };
    read.names().into_iter().map(|name| (name.to_owned(), tensor(name))).collect()
}

/// Returns the file that `torch.save` writes of a dict of tensors.
fn torch_file(tensors: &BTreeMap<String, Numbers>) -> Vec<u8> {
    torch_file_of(tensors, "torch._utils\n_rebuild_tensor_v2")
}

/// Returns such a file whose tensors are built by another function.
fn torch_file_of(tensors: &BTreeMap<String, Numbers>, builder: &str) -> Vec<u8> {
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
    for (key, (name, tensor)) in tensors.iter().enumerate() {
        text(&mut pickle, name);
        pickle.extend(format!("c{builder}\n((").into_bytes());
        text(&mut pickle, "storage");
        pickle.extend(b"ctorch\nFloatStorage\n");
        text(&mut pickle, &key.to_string());
        text(&mut pickle, "cpu");
        number(&mut pickle, tensor.bytes.len() / 4);
        pickle.extend(b"tQ");
        number(&mut pickle, 0);
        let stride = |dim: usize| tensor.shape[dim + 1..].iter().product::<usize>();
        for sizes in [tensor.shape.clone(), (0..tensor.shape.len()).map(stride).collect()] {
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
    tensors.values().enumerate().for_each(|(key, tensor)| add(format!("archive/data/{key}"), &tensor.bytes));
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
        serde_json::from_slice(&fs::read(self.path().join(INDEX)).unwrap()).unwrap()
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
        let dest = TempDir::new().unwrap();
        let shortened = |message: String| message.replace(&format!("{}/", self.path().display()), "");
        let converted = convert(Source::T5, self.path(), &dest.path().join("model"), false).unwrap_err();
        let loaded = load(self.path(), &settings()).err().expect("the folder is invalid");
        let [converted, loaded] = [converted.to_string(), loaded.to_string()].map(shortened);
        assert_eq!(converted, loaded);
        loaded
    }
}

fn shard(index: usize, count: usize) -> String {
    format!("pytorch_model-{:05}-of-{count:05}.bin", index + 1)
}

#[test]
fn pickles_give_the_model_of_safetensors() {
    let case = "t5_v11";
    let golden = Golden::open(&t5_golden(case));
    let logits = |folder: &Path| {
        let model = load(folder, &settings()).unwrap();
        let mut scratch = model.scratch();
        let document = encode(&*model, &golden.ids("s0.ids"), &mut scratch);
        (model.card().sha256.clone(), forced(&*model, &*document, &golden.ids("s0.dec_ids"), &mut scratch))
    };
    let (_, expected) = logits(&t5_golden(case));
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
        assert_eq!(printed["source_sha256"], parsed(&["inspect", "--json", folder])["sha256"]);
        let pulled = data.path().join("models/pulled/model.safetensors");
        let plain = fs::read(t5_converted("t5_v11").join("model.safetensors")).unwrap();
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
    let errors = [
        format!("{other}: {name}: expected a tensor, found none"),
        format!("{own}: {name}: expected no tensor of this name, found one"),
    ];
    assert!(errors.contains(&found), "{found}");
    // tensors that no model has, or that are missing everywhere
    let found = pickled.refused(|index| drop(index["weight_map"].as_object_mut().unwrap().remove(name)));
    assert_eq!(found, errors[1]);
    let found = pickled.refused(|index| index["weight_map"] = json!({}));
    assert_eq!(found, format!("{INDEX}: weight_map: expected names of tensors, found none"));
    for (change, key) in [(json!({}), "weight_map"), (json!({ "weight_map": { "a": 1 } }), "weight_map")] {
        let found = pickled.refused(|index| *index = change);
        assert!(found.starts_with(INDEX) && found.contains(key), "{found}");
    }
    // both forms
    fs::write(pickled.path().join("pytorch_model.bin"), "").unwrap();
    let found = pickled.error();
    assert_eq!(
        found,
        format!("pytorch_model.bin: the file: expected only one of pytorch_model.bin and {INDEX}, found both")
    );
    pickled.remove("pytorch_model.bin");
    assert!(load(pickled.path(), &settings()).is_ok());
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
    tensor.shape.push(1);
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
