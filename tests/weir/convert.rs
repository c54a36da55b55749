//! Conversion of official checkpoints: the fixtures as they are, and files made to harm.

use proptest::prelude::*;
use safetensors::SafeTensors;
use std::{
    fs,
    io::{Cursor, Read, Write},
    path::{Path, PathBuf},
};
use tempfile::TempDir;
use weir::{
    error::Result,
    family::{
        checkpoint::{Config, Weights, read_weights},
        convert::{self, Source, pickle::Pickle},
        load::blueprint,
    },
};
use zip::{CompressionMethod, ZipArchive, ZipWriter, write::SimpleFileOptions};

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
        let (source, dest) = (golden("dynamic-pooling").join(case), TempDir::new().unwrap());
        convert(&source, dest.path()).unwrap();
        let (config, weights) = read(dest.path());
        assert_eq!((config.family.as_str(), config.training_length), ("hourglass", 2048));
        assert_eq!(config.vocabulary(dest.path()).unwrap().normaliser().name(), "text8");
        let official = fs::read(source.join("model.safetensors")).unwrap();
        let official = SafeTensors::deserialize(&official).unwrap();
        let dropped = official.names().into_iter().filter(|name| name.ends_with("r_net.bias")).count();
        assert_eq!(weights.len(), official.len() - dropped, "{case}");
        for (ours, theirs) in [
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
            let theirs = official.tensor(theirs).ok().map(|tensor| tensor.data().to_vec());
            let ours = weights.get(ours).map(|tensor| tensor.numbers.iter().flat_map(|x| x.to_le_bytes()).collect());
            assert_eq!(ours, theirs, "{case}");
        }
    }
}

#[test]
fn what_is_written_is_a_safetensors_file_to_others() {
    let dest = TempDir::new().unwrap();
    convert(&golden("dynamic-pooling/unigram"), dest.path()).unwrap();
    let bytes = fs::read(dest.path().join("model.safetensors")).unwrap();
    let theirs = SafeTensors::deserialize(&bytes).unwrap();
    let (_, weights) = read(dest.path());
    assert_eq!(theirs.len(), weights.len());
    for (name, view) in theirs.iter() {
        let ours = weights.get(name).unwrap();
        assert_eq!(ours.shape, view.shape());
        assert!(ours.numbers.iter().flat_map(|x| x.to_le_bytes()).eq(view.data().iter().copied()), "{name}");
    }
    assert_eq!(u64::from_le_bytes(bytes[..8].try_into().unwrap()) % 8, 0);
}

#[test]
fn training_checkpoints_are_the_same_as_the_fixture() {
    let dest = TempDir::new().unwrap();
    let made = |from: &Path, name: &str| {
        let dest = dest.path().join(name);
        convert(from, &dest).unwrap();
        (fs::read(dest.join("model.safetensors")).unwrap(), fs::read_to_string(dest.join("config.json")).unwrap())
    };
    let fixture = made(&golden("dynamic-pooling/unigram"), "fixture");
    assert_eq!(made(&golden("dynamic-pooling-pt/plain"), "plain"), fixture);
    assert_eq!(made(&golden("dynamic-pooling-pt/ddp"), "ddp"), fixture);
    assert_eq!(made(&golden("dynamic-pooling-pt/ddp/checkpoint_last.pt"), "file"), fixture);
}

#[test]
fn a_folder_that_holds_something_is_left_alone() {
    let dest = TempDir::new().unwrap();
    fs::write(dest.path().join("README.md"), "mine").unwrap();
    let source = golden("dynamic-pooling/vanilla");
    assert!(convert(&source, dest.path()).unwrap_err().to_string().contains("not empty"));
    convert::convert(Source::DynamicPooling, &source, dest.path(), true).unwrap();
    read(dest.path());
    let mut names: Vec<_> = fs::read_dir(dest.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["README.md", "config.json", "model.safetensors"]);
}

/// The fixture's arguments after a change.
fn with_arguments(case: &str, change: impl FnOnce(&mut serde_json::Value)) -> TempDir {
    let (source, dir) = (golden("dynamic-pooling").join(case), TempDir::new().unwrap());
    fs::copy(source.join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
    let mut arguments = serde_json::from_slice(&fs::read(source.join("config.json")).unwrap()).unwrap();
    change(&mut arguments);
    fs::write(dir.path().join("config.json"), arguments.to_string()).unwrap();
    dir
}

#[test]
fn arguments_that_cannot_be_are_named() {
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
        (set("unigram", "d_head", "8".into()), "d_head: expected usize, found string \"8\""),
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
        assert!(found.contains(expected), "{found}\nshould say: {expected}");
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

// ── training checkpoints made to harm ──────────────────────────────────────────────────────────────────────────────────

/// Name and bytes of every file in the archive of a training checkpoint.
fn entries() -> Vec<(String, Vec<u8>)> {
    let file = fs::read(golden("dynamic-pooling-pt/plain/checkpoint_last.pt")).unwrap();
    let mut archive = ZipArchive::new(Cursor::new(file)).unwrap();
    let mut entries = Vec::new();
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).unwrap();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        entries.push((entry.name().unwrap().into_owned(), bytes));
    }
    entries
}

fn the_pickle() -> Vec<u8> {
    entries().into_iter().find(|(name, _)| name.ends_with("data.pkl")).unwrap().1
}

fn archive(entries: &[(String, Vec<u8>)], method: CompressionMethod) -> Vec<u8> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in entries {
        writer.start_file(name.as_str(), SimpleFileOptions::default().compression_method(method)).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

fn message_of(archive: &[u8]) -> String {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("x.pt"), archive).unwrap();
    message(&dir.path().join("x.pt"))
}

/// The message after a change to the archive's files.
fn changed(change: impl FnOnce(&mut Vec<(String, Vec<u8>)>)) -> String {
    let mut entries = entries();
    change(&mut entries);
    message_of(&archive(&entries, CompressionMethod::Stored))
}

/// Replaces the first place of some bytes in the pickle.
fn patched(from: &[u8], to: &[u8]) -> String {
    changed(|entries| {
        let (_, pickle) = entries.iter_mut().find(|(name, _)| name.ends_with("data.pkl")).unwrap();
        let at = pickle.windows(from.len()).position(|window| window == from).unwrap();
        pickle.splice(at..at + from.len(), to.iter().copied());
    })
}

#[test]
fn archives_made_to_harm_are_refused() {
    let place =
        |entries: &[(String, Vec<u8>)], end: &str| entries.iter().position(|(name, _)| name.ends_with(end)).unwrap();
    let cases = [
        (message_of(&archive(&entries(), CompressionMethod::Deflated)), "not compressed"),
        (message_of(b"not a zip archive at all"), "a zip archive"),
        (message_of(&[]), "a zip archive"),
        (changed(|entries| entries.clear()), "one data.pkl, as torch.save writes it, found none"),
        (changed(|entries| entries.push(("other/data.pkl".into(), vec![]))), "found several"),
        (
            changed(|entries| entries.push(("checkpoint_last/byteorder".into(), b"big".into()))),
            "byteorder: expected little, found big",
        ),
        (changed(|entries| drop(entries.remove(place(entries, "/data/7")))), "data/7 in the archive, found none"),
        (
            changed(|entries| {
                let at = place(entries, "/data/0");
                entries[at].1.pop();
            }),
            "32 numbers of 4 bytes",
        ),
        (
            changed(|entries| {
                let at = place(entries, "/data/0");
                entries[at].1.extend([0; 4]);
            }),
            "32 numbers of 4 bytes",
        ),
        (
            changed(|entries| {
                let at = place(entries, "/data/0");
                entries[at].1[3] = 0x7f;
                entries[at].1[2] = 0xff;
            }),
            "r_w_bias: expected finite numbers, found NaN at index 0",
        ),
        (
            changed(|entries| {
                let at = place(entries, "data.pkl");
                entries[at].1 = vec![b'N'; 17 << 20];
            }),
            "at most",
        ),
    ];
    for (found, expected) in cases {
        assert!(found.contains(expected), "{found}\nshould say: {expected}");
    }
}

#[test]
fn pickles_made_to_harm_are_refused() {
    const NAMESPACE: &[u8] = b"cargparse\nNamespace\n";
    const PREDICTOR: &str = "boundary_predictor.boundary_predictor.2.bias";
    let unknown = "data.pkl byte 17: expected a name that training checkpoints need, found";
    let cases = [
        (patched(NAMESPACE, b"cos\nsystem\n"), format!("{unknown} os.system")),
        (patched(NAMESPACE, b"cbuiltins\neval\n"), format!("{unknown} builtins.eval")),
        (patched(NAMESPACE, b"c__main__\nVocab\n"), format!("{unknown} __main__.Vocab")),
        (patched(NAMESPACE, b"ios\nsystem\n"), "data.pkl byte 17: expected an instruction that reads data".into()),
        (patched(NAMESPACE, b"K\x00"), "expected a known name and a tuple of arguments".into()),
        (
            patched(b"FloatStorage", b"LongStorage"),
            "r_w_bias: expected floats of 16, 32 or 64 bits, found torch.LongStorage".into(),
        ),
        // r_w_bias: one row more than the storage has; the same number again and again; as many, but beyond the end
        (patched(b"K\x04K\x08\x86", b"K\x05K\x08\x86"), "r_w_bias: expected a view of a storage of 32 numbers".into()),
        (patched(b"K\x04K\x08\x86", b"J\xff\xff\xff\x7fJ\xff\xff\xff\x7f\x86"), "r_w_bias: expected a view".into()),
        (patched(b"K\x04K\x08\x86", b"J\xff\xff\xff\xffK\x08\x86"), "r_w_bias: expected a size".into()),
        (patched(b"K\x08K\x01\x86", b"K\x09K\x01\x86"), "r_w_bias: expected a view".into()),
        (patched(b"K\x20tq", b"J\xff\xff\xff\x7ftq"), "r_w_bias: expected 2147483647 numbers of 4 bytes".into()),
        (
            patched(PREDICTOR.as_bytes(), &PREDICTOR.replace("bias", "bios").into_bytes()),
            format!("{PREDICTOR}: expected a tensor"),
        ),
        (patched(b"idx2sym", b"idx2sum"), "vocab.idx2sym: expected a list".into()),
        (patched(b"model_state", b"model_stats"), "model_state: expected a dict of tensors, found nothing".into()),
    ];
    for (found, expected) in cases {
        assert!(found.contains(&expected), "{found}\nshould say: {expected}");
    }
}

#[test]
fn a_transposed_view_is_put_in_order() {
    // r_w_bias (4, 8) with strides (1, 4): column after column
    let (dir, dest) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let mut entries = entries();
    let (_, pickle) = entries.iter_mut().find(|(name, _)| name.ends_with("data.pkl")).unwrap();
    let at = pickle.windows(5).position(|window| window == b"K\x08K\x01\x86").unwrap();
    pickle.splice(at..at + 5, *b"K\x01K\x04\x86");
    fs::write(dir.path().join("x.pt"), archive(&entries, CompressionMethod::Stored)).unwrap();
    convert(&dir.path().join("x.pt"), dest.path()).unwrap();
    let straight = TempDir::new().unwrap();
    convert(&golden("dynamic-pooling-pt/plain"), straight.path()).unwrap();
    let bias = |dir: &Path| read(dir).1.take("position.content_bias").unwrap();
    let (turned, straight) = (bias(dest.path()), bias(straight.path()));
    for (at, number) in turned.iter().enumerate() {
        assert_eq!(*number, straight[at % 8 * 4 + at / 8]);
    }
}

#[test]
fn other_precisions_are_read() {
    type Narrow = fn(f32) -> (Vec<u8>, f32);
    let half: Narrow = |x| (half::f16::from_f32(x).to_le_bytes().to_vec(), half::f16::from_f32(x).to_f32());
    let brain: Narrow = |x| (half::bf16::from_f32(x).to_le_bytes().to_vec(), half::bf16::from_f32(x).to_f32());
    let double: Narrow = |x| (f64::from(x).to_le_bytes().to_vec(), x);
    let straight = TempDir::new().unwrap();
    convert(&golden("dynamic-pooling-pt/plain"), straight.path()).unwrap();
    for (class, narrow) in [("HalfStorage", half), ("BFloat16Storage", brain), ("DoubleStorage", double)] {
        let (dir, dest) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let mut entries = entries();
        for (name, bytes) in &mut entries {
            if name.ends_with("data.pkl") {
                let at = bytes.windows(12).position(|window| window == b"FloatStorage").unwrap();
                bytes.splice(at..at + 12, class.bytes());
            } else if name.contains("/data/") {
                *bytes = bytes.as_chunks().0.iter().flat_map(|&x| narrow(f32::from_le_bytes(x)).0).collect();
            }
        }
        fs::write(dir.path().join("x.pt"), archive(&entries, CompressionMethod::Stored)).unwrap();
        convert(&dir.path().join("x.pt"), dest.path()).unwrap();
        let (mut narrowed, mut whole) = (read(dest.path()).1, read(straight.path()).1);
        for name in ["head.weight", "null_group", "middle.1.attention.qkv.weight"] {
            let expected: Vec<_> = whole.take(name).unwrap().into_iter().map(|x| narrow(x).1).collect();
            assert_eq!(narrowed.take(name).unwrap(), expected, "{class}");
        }
    }
}

#[test]
fn a_pickle_cut_anywhere_is_an_error() {
    let pickle = the_pickle();
    Pickle::read(&pickle).unwrap();
    for length in 0..pickle.len() {
        assert!(Pickle::read(&pickle[..length]).is_err(), "{length}");
    }
}

#[test]
fn a_training_checkpoint_cut_anywhere_is_an_error() {
    let file = fs::read(golden("dynamic-pooling-pt/plain/checkpoint_last.pt")).unwrap();
    for length in (0..file.len()).step_by(file.len() / 100) {
        message_of(&file[..length]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn bytes_changed_in_a_pickle_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let mut pickle = the_pickle();
        for (at, byte) in changes {
            let at = at.index(pickle.len());
            pickle[at] = byte;
        }
        let mut entries = entries();
        entries.iter_mut().filter(|(name, _)| name.ends_with("data.pkl")).for_each(|(_, bytes)| *bytes = pickle.clone());
        let (dir, dest) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let file = dir.path().join("x.pt");
        fs::write(&file, archive(&entries, CompressionMethod::Stored)).unwrap();
        let _ = convert(&file, dest.path());
    }

    #[test]
    fn bytes_changed_in_an_archive_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let mut file = fs::read(golden("dynamic-pooling-pt/plain/checkpoint_last.pt")).unwrap();
        for (at, byte) in changes {
            let at = at.index(file.len());
            file[at] = byte;
        }
        let (dir, dest) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        fs::write(dir.path().join("x.pt"), file).unwrap();
        let _ = convert(&dir.path().join("x.pt"), dest.path());
    }
}
