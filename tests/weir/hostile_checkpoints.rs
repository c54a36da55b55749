//! Malicious and damaged checkpoints. Each is rejected with file, key, expected and found value before memory is allocated.

#[path = "../fuzz/src/lib.rs"]
#[allow(unreachable_pub, reason = "the fuzz targets use the file as a library")]
pub(crate) mod entries;

use crate::{
    support::{copied, edit_json, remove_card, settings, source_of},
    *,
};
use proptest::prelude::*;
use weir::{
    models::{
        checkpoint::{FileDtype, Writer, read_weights},
        convert::convert,
        load::{init, needs},
    },
    verify::load::load as reference,
};

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
    // Most tests change the weights, and look for another error than the digest's.
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
    assert!(message(dir.path()).contains("sha256 of the weights"), "{}", message(dir.path()));
    fs::write(dir.path().join("card.json"), r#"{"name": "small"}"#).unwrap();
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

/// The file has a number for each bucket, and the model one for each distance.
#[test]
fn tables_of_distances_are_counted() {
    let buckets = |max_distance: usize| json!({"buckets": {"count": 2, "max_distance": max_distance}});
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

/// Rows of a table of refused checkpoints: what is read, how its files are changed, and the whole message. A line `given …` holds
/// for the rows after it: `small` for a checkpoint of [`entries::SMALL_CONFIG`], `sharded` for one in two files, `shapes/…` for one of
/// models/shapes, `verify …` for a folder of tests/golden that the second implementation reads, and otherwise such a folder that weir
/// converts or loads.
fn refusals(table: &str) -> Vec<(&str, Vec<&str>, &str)> {
    let mut given = "";
    let mut rows = Vec::new();
    for paragraph in table.split("\n\n").map(str::trim).filter(|paragraph| !paragraph.starts_with('#')) {
        match (paragraph.strip_prefix("given "), paragraph.rsplit_once('\n')) {
            (Some(name), _) => given = name,
            (None, Some((changes, message))) => rows.push((given, changes.lines().collect(), message)),
            (None, None) => panic!("{paragraph}"),
        }
    }
    rows
}

/// Applies a line `POINTER = JSON` or `POINTER removed` to a folder's `config.json`, or to the file that the line begins with: to its header
/// if it has weights. A line `$ SCRIPT` is a script of the shell that runs in the folder.
fn apply(folder: &Path, change: &str) {
    if let Some(script) = change.strip_prefix("$ ") {
        assert!(Command::new("sh").args(["-ec", script]).current_dir(folder).status().unwrap().success(), "{script}");
        return;
    }
    let (place, value) = match change.split_once(" = ") {
        Some((place, json)) => (place, Some(serde_json::from_str::<Value>(json).expect(change))),
        None => (change.strip_suffix(" removed").expect(change), None),
    };
    let (file, pointer) = place.split_once(' ').unwrap_or(("config.json", place));
    let (parent, key) = pointer.rsplit_once('/').expect(change);
    let edit = |json: &mut Value| {
        let parent = json.pointer_mut(parent).expect(change);
        match (value, parent.as_array_mut()) {
            (Some(value), Some(list)) => list[key.parse::<usize>().expect(change)] = value,
            (Some(value), None) => parent[key] = value,
            (None, _) => drop(parent.as_object_mut().expect(change).remove(key).expect(change)),
        }
    };
    let file = folder.join(file);
    if file.extension().is_none_or(|extension| extension != "safetensors") {
        return edit_json(&file, edit);
    }
    let (mut header, numbers) = parts(&file);
    edit(&mut header);
    fs::write(file, assembled(&header.to_string(), &numbers)).unwrap();
}

/// Returns the error for a changed checkpoint, without the folder's path.
fn refusal(given: &str, changes: &[&str]) -> String {
    let folder = match given.strip_prefix("shapes/") {
        _ if given == "small" => valid(),
        _ if given == "sharded" => sharded(),
        None => copied(&golden_data(given.trim_start_matches("verify "))),
        Some(name) => {
            let shape = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("models/shapes/{name}.json"));
            let folder = TempDir::new().unwrap();
            fs::copy(shape, folder.path().join("config.json")).unwrap();
            folder
        }
    };
    changes.iter().for_each(|change| apply(folder.path(), change));
    let dir = folder.path();
    let loaded = || load(dir, &settings()).err().expect("it is refused").to_string();
    let converted = |source| {
        let to = TempDir::new().unwrap();
        let error = convert(source, dir, to.path(), false).unwrap_err().to_string();
        assert_eq!(fs::read_dir(to.path()).unwrap().count(), 0, "something is left behind after {error}");
        error
    };
    let message = match given.split(['/', ' ']).next().unwrap() {
        "small" | "sharded" => message(dir),
        "shapes" => {
            Config::read(dir).and_then(|config| blueprint(&config, &dir.join("config.json"))).unwrap_err().to_string()
        }
        "verify" => reference(&dir.into()).err().expect("it is refused").to_string(),
        "hugging-face" => loaded(),
        "blt" => {
            let error = converted(Source::Blt);
            assert_eq!(loaded(), error);
            error
        }
        family => {
            let error = converted(source_of(family, given.split_once('/').unwrap().1).unwrap());
            // weir also reads these folders as they are; of a type that it does not read it says which ones it reads
            let is_unread = error.contains(": model_type:");
            assert!(family != "t5" || is_unread || loaded().starts_with(&error), "{error}, {}", loaded());
            error
        }
    };
    message.replace(&format!("{}/", dir.display()), "").replace(&*dir.to_string_lossy(), ".")
}

/// Every key of every family's configuration is checked, and the message names it with the bound and the value.
#[test]
fn refused_checkpoints_have_their_messages() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/checkpoints.txt");
    let table = fs::read_to_string(file).unwrap();
    let mut wrong = String::new();
    for (given, changes, expected) in refusals(&table) {
        let found = refusal(given, &changes);
        assert!(found.len() < 2000, "{found}");
        if found != expected {
            wrong += &format!("given {given}\n{}\n{expected}\nis not\n{found}\n\n", changes.join("\n"));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(refusals(&table).len() > 250);
}

/// Runs the fuzz targets of files on their kept corpora, in which inputs that once failed stay.
#[test]
fn the_kept_corpora_never_panic() {
    let targets: [(&str, fn(&[u8])); 8] = [
        ("config", entries::config),
        ("weights", entries::weights),
        ("pickle", entries::pickle),
        ("tokenizer", entries::tokenizer),
        ("settings", entries::settings),
        ("codec", entries::codec),
        ("ngrams", entries::ngrams),
        ("constraint", entries::constraint),
    ];
    for (target, entry) in targets {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(target);
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
        entries::constraint(&bytes);
    }

    #[test]
    fn programs_of_known_instructions_never_panic(
        program in prop::collection::vec(prop::sample::select(b"(012NKJMGXUTBC]})tldaeusqrhjcRbQ\x80\x81\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x92\x93\x94\x95\x96\x00\x01\x02.".to_vec()), 0..200),
    ) {
        entries::pickle(&[b"\x80\x04", &program[..]].concat());
    }
}

/// Writes a checkpoint in two shards.
fn sharded() -> TempDir {
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
    let index = json!({"metadata": {"total_size": numbers.len()}, "weight_map": map});
    fs::write(dir.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
    dir
}

#[test]
fn shards_equal_a_single_file() {
    let dir = sharded();
    let specs = entries::small().unwrap().tensors();
    let (mut shards, sha256) = read_weights(dir.path(), &specs).unwrap();
    let (mut single, _) = read_weights(valid().path(), &specs).unwrap();
    for spec in &specs {
        assert_eq!(shards.take(&spec.name).unwrap(), single.take(&spec.name).unwrap());
    }
    assert_eq!(sha256.len(), 64);
}
