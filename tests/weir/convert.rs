//! Conversion of official checkpoints: the fixtures, and malicious files.

use crate::{
    support::configured,
    verify::{Tensors, changed_source},
    *,
};
use proptest::prelude::*;
use safetensors::Dtype;
use std::io::Cursor;
use weir::models::{
    checkpoint::{Weights, read_weights},
    convert::{self, pickle::Pickle},
};
use zip::{CompressionMethod, ZipArchive, ZipWriter, write::SimpleFileOptions};

const CASES: &[&str] =
    &["entropy", "fixed_sf2", "fixed_sf3", "fixed_sf4", "gumbel", "unigram", "vanilla", "whitespaces"];

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
        let source = golden_data("dynamic-pooling").join(case);
        let dest = TempDir::new().unwrap();
        convert(&source, dest.path()).unwrap();
        let (config, weights) = read(dest.path());
        assert_eq!((config.family.as_str(), config.training_length), ("hourglass", 2048));
        assert_eq!(config.vocabulary(dest.path()).unwrap().normaliser().name(), "text8");
        let official = fs::read(source.join("model.safetensors")).unwrap();
        let official = SafeTensors::deserialize(&official).unwrap();
        let dropped = official.names().into_iter().filter(|name| name.ends_with("r_net.bias")).count();
        assert_eq!(weights.len(), official.len() - dropped, "{case}");
        for (name, official_name) in [
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
            let expected = official.tensor(official_name).ok().map(|tensor| tensor.data().to_vec());
            let actual =
                weights.get(name).map(|tensor| tensor.numbers().iter().flat_map(|x| x.to_le_bytes()).collect());
            assert_eq!(actual, expected, "{case}");
        }
    }
}

#[test]
fn the_safetensors_crate_reads_what_is_written() {
    let dest = TempDir::new().unwrap();
    convert(&golden_data("dynamic-pooling/unigram"), dest.path()).unwrap();
    let bytes = fs::read(dest.path().join("model.safetensors")).unwrap();
    let official = SafeTensors::deserialize(&bytes).unwrap();
    let (_, weights) = read(dest.path());
    assert_eq!(official.len(), weights.len());
    for (name, view) in official.iter() {
        let tensor = weights.get(name).unwrap();
        assert_eq!(tensor.shape, view.shape());
        assert!(tensor.numbers().iter().flat_map(|x| x.to_le_bytes()).eq(view.data().iter().copied()), "{name}");
    }
    assert_eq!(u64::from_le_bytes(bytes[..8].try_into().unwrap()) % 8, 0);
}

#[test]
fn training_checkpoints_convert_like_the_fixture() {
    let dest = TempDir::new().unwrap();
    let convert_to = |from: &Path, name: &str| {
        let dest = dest.path().join(name);
        convert(from, &dest).unwrap();
        (fs::read(dest.join("model.safetensors")).unwrap(), fs::read_to_string(dest.join("config.json")).unwrap())
    };
    let fixture = convert_to(&golden_data("dynamic-pooling/unigram"), "fixture");
    assert_eq!(convert_to(&golden_data("dynamic-pooling-pt/plain"), "plain"), fixture);
    assert_eq!(convert_to(&golden_data("dynamic-pooling-pt/ddp"), "ddp"), fixture);
    assert_eq!(convert_to(&golden_data("dynamic-pooling-pt/ddp/checkpoint_last.pt"), "file"), fixture);
}

#[test]
fn other_vocabularies_keep_their_text_as_it_is() {
    let dir = configured(&golden_data("dynamic-pooling/whitespaces"), |arguments| arguments["vocab"][3] = "é".into());
    let dest = TempDir::new().unwrap();
    convert(dir.path(), dest.path()).unwrap();
    let vocabulary = Config::read(dest.path()).unwrap().vocabulary(dest.path()).unwrap();
    assert_eq!((vocabulary.normaliser().name(), vocabulary.id_of('é')), ("none", Some(3)));
}

/// Returns name and bytes of each file in the archive of a training checkpoint.
fn entries() -> Vec<(String, Vec<u8>)> {
    let file = fs::read(golden_data("dynamic-pooling-pt/plain/checkpoint_last.pt")).unwrap();
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

/// Returns the error message after a change to the archive's files.
fn changed(change: impl FnOnce(&mut Vec<(String, Vec<u8>)>)) -> String {
    let mut entries = entries();
    change(&mut entries);
    message_of(&archive(&entries, CompressionMethod::Stored))
}

/// Replaces the first occurrence of `from` in the pickle, and returns the error message.
fn patched(from: &[u8], to: &[u8]) -> String {
    changed(|entries| {
        let (_, pickle) = entries.iter_mut().find(|(name, _)| name.ends_with("data.pkl")).unwrap();
        let offset = pickle.windows(from.len()).position(|window| window == from).unwrap();
        pickle.splice(offset..offset + from.len(), to.iter().copied());
    })
}

#[test]
fn malicious_archives_are_refused() {
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
                let index = place(entries, "/data/0");
                entries[index].1.pop();
            }),
            "32 numbers of 4 bytes",
        ),
        (
            changed(|entries| {
                let index = place(entries, "/data/0");
                entries[index].1.extend([0; 4]);
            }),
            "32 numbers of 4 bytes",
        ),
        (
            changed(|entries| {
                let index = place(entries, "/data/0");
                entries[index].1[3] = 0x7f;
                entries[index].1[2] = 0xff;
            }),
            "r_w_bias: expected finite numbers, found NaN at index 0",
        ),
        (
            changed(|entries| {
                let index = place(entries, "data.pkl");
                entries[index].1 = vec![b'N'; 17 << 20];
            }),
            "at most",
        ),
    ];
    for (found, expected) in cases {
        assert!(found.contains(expected), "{found}\nshould contain: {expected}");
    }
}

#[test]
fn malicious_pickles_are_refused() {
    const START: &[u8] = b"\x80\x02";
    const NAMESPACE: &[u8] = b"cargparse\nNamespace\n";
    const BUILDER: &[u8] = b"ctorch._utils\n_rebuild_tensor_v2\n";
    const PREDICTOR: &str = "boundary_predictor.boundary_predictor.2.bias";
    let name = "expected a name that training checkpoints need, found";
    let unknown = format!("data.pkl byte 17: {name}");
    let floats = "word_emb.weight: expected floats of 16, 32 or 64 bits, found";
    let inserted = |code: &[u8]| patched(START, &[START, code].concat());
    let cases = [
        (patched(NAMESPACE, b"cos\nsystem\n"), format!("{unknown} os.system")),
        (patched(NAMESPACE, b"cbuiltins\neval\n"), format!("{unknown} builtins.eval")),
        (patched(NAMESPACE, b"c__main__\nVocab\n"), format!("{unknown} __main__.Vocab")),
        (patched(NAMESPACE, b"ios\nsystem\n"), format!("{unknown} os.system")),
        (patched(NAMESPACE, b"itorch\nSize\n"), "data.pkl byte 17: expected an instruction that reads data".into()),
        (patched(NAMESPACE, b"K\x00"), "expected a known name and a tuple of arguments".into()),
        // a call before the dict, as exploits put it
        (inserted(b"cposix\nsystem\n(X\x04\0\0\0truetR0"), format!("byte 2: {name} posix.system")),
        (inserted(b"csubprocess\nPopen\n(X\x04\0\0\0truetR0"), format!("{name} subprocess.Popen")),
        (inserted(b"\x8c\x08builtins\x8c\x04eval\x93(X\x01\0\0\x001tR0"), format!("{name} builtins.eval")),
        (inserted(b"(X\x04\0\0\0trueios\nsystem\n0"), format!("{name} os.system")),
        (inserted(b"comegaconf.listconfig\nListConfig\n0"), format!("{name} omegaconf.listconfig.ListConfig")),
        // instructions that run code without naming it
        (inserted(b"\x82\x01"), "expected an instruction that reads data, found 0x82".into()),
        (inserted(b"(ctorch\nSize\no"), "expected an instruction that reads data, found 0x6f".into()),
        (patched(START, b"cos\nsystem\n"), "expected a pickle (first byte 0x80), found 0x63".into()),
        // a name in the place of one that is needed; a known one cannot be called in place of a tensor's builder
        (patched(b"ccollections\nOrderedDict\n", b"cbuiltins\nexec\n"), format!("{name} builtins.exec")),
        (patched(BUILDER, b"ctorch\nload\n"), format!("{name} torch.load")),
        (patched(BUILDER, b"cbuiltins\nint\n"), "r_w_bias: expected a tensor".into()),
        (patched(b"FloatStorage", b"hub.load_state_x"), format!("{name} torch.hub.load_state_x")),
        (patched(b"FloatStorage", b"LongStorage"), format!("{floats} torch.LongStorage")),
        (patched(b"FloatStorage", b"DoubleStorage"), "numbers of 8 bytes, not compressed".into()),
        // `r_w_bias` has one row more than its storage, repeats one number, or reads beyond the storage's end.
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
        assert!(found.contains(&expected), "{found}\nshould contain: {expected}");
    }
}

#[test]
fn a_transposed_view_is_put_in_order() {
    // `r_w_bias` (4, 8) with strides (1, 4) is stored column by column.
    let [dir, dest] = [(); 2].map(|()| TempDir::new().unwrap());
    let mut entries = entries();
    let (_, pickle) = entries.iter_mut().find(|(name, _)| name.ends_with("data.pkl")).unwrap();
    let offset = pickle.windows(5).position(|window| window == b"K\x08K\x01\x86").unwrap();
    pickle.splice(offset..offset + 5, *b"K\x01K\x04\x86");
    fs::write(dir.path().join("x.pt"), archive(&entries, CompressionMethod::Stored)).unwrap();
    convert(&dir.path().join("x.pt"), dest.path()).unwrap();
    let straight = TempDir::new().unwrap();
    convert(&golden_data("dynamic-pooling-pt/plain"), straight.path()).unwrap();
    let bias = |dir: &Path| read(dir).1.take("position.content_bias").unwrap();
    let [turned, straight] = [&dest, &straight].map(|folder| bias(folder.path()));
    for (index, number) in turned.iter().enumerate() {
        assert_eq!(*number, straight[index % 8 * 4 + index / 8]);
    }
}

#[test]
fn other_precisions_are_read() {
    type Narrow = fn(f32) -> (Vec<u8>, f32);
    let half: Narrow = |x| (half::f16::from_f32(x).to_le_bytes().to_vec(), half::f16::from_f32(x).to_f32());
    let to_bf16: Narrow = |x| (half::bf16::from_f32(x).to_le_bytes().to_vec(), half::bf16::from_f32(x).to_f32());
    let straight = TempDir::new().unwrap();
    convert(&golden_data("dynamic-pooling-pt/plain"), straight.path()).unwrap();
    for (class, narrow) in [("HalfStorage", half), ("BFloat16Storage", to_bf16)] {
        let [dir, dest] = [(); 2].map(|()| TempDir::new().unwrap());
        let mut entries = entries();
        for (name, bytes) in &mut entries {
            if name.ends_with("data.pkl") {
                let offset = bytes.windows(12).position(|window| window == b"FloatStorage").unwrap();
                bytes.splice(offset..offset + 12, class.bytes());
            } else if name.contains("/data/") {
                *bytes = bytes.as_chunks().0.iter().flat_map(|&x| narrow(f32::from_le_bytes(x)).0).collect();
            }
        }
        fs::write(dir.path().join("x.pt"), archive(&entries, CompressionMethod::Stored)).unwrap();
        convert(&dir.path().join("x.pt"), dest.path()).unwrap();
        let mut narrowed = read(dest.path()).1;
        let mut original = read(straight.path()).1;
        for name in ["head.weight", "null_group", "middle.1.attention.qkv.weight"] {
            let expected: Vec<_> = original.take(name).unwrap().into_iter().map(|x| narrow(x).1).collect();
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
    let file = fs::read(golden_data("dynamic-pooling-pt/plain/checkpoint_last.pt")).unwrap();
    for length in (0..file.len()).step_by(file.len() / 100) {
        message_of(&file[..length]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn bytes_changed_in_a_pickle_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let mut pickle = the_pickle();
        for (index, byte) in changes {
            let index = index.index(pickle.len());
            pickle[index] = byte;
        }
        let mut entries = entries();
        entries.iter_mut().filter(|(name, _)| name.ends_with("data.pkl")).for_each(|(_, bytes)| *bytes = pickle.clone());
        let [dir, dest] = [(); 2].map(|()| TempDir::new().unwrap());
        let file = dir.path().join("x.pt");
        fs::write(&file, archive(&entries, CompressionMethod::Stored)).unwrap();
        let _ = convert(&file, dest.path());
    }

    #[test]
    fn bytes_changed_in_an_archive_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let mut file = fs::read(golden_data("dynamic-pooling-pt/plain/checkpoint_last.pt")).unwrap();
        for (index, byte) in changes {
            let index = index.index(file.len());
            file[index] = byte;
        }
        let [dir, dest] = [(); 2].map(|()| TempDir::new().unwrap());
        fs::write(dir.path().join("x.pt"), file).unwrap();
        let _ = convert(&dir.path().join("x.pt"), dest.path());
    }
}

/// Copies a fixture and changes its config and tensors.
fn torchscale_changed(case: &str, change: impl FnOnce(&mut Value, &mut Tensors)) -> TempDir {
    changed_source(&golden_data("torchscale").join(case), change)
}

fn converted(from: &TempDir) -> Result<TempDir> {
    let dest = TempDir::new().unwrap();
    convert::convert(Source::Torchscale, from.path(), dest.path(), false).map(|_| dest)
}

fn torchscale_message(case: &str, change: impl Fn(&mut Value, &mut Tensors)) -> String {
    converted(&torchscale_changed(case, change)).unwrap_err().to_string()
}

fn written(dest: &TempDir) -> (Vec<u8>, String) {
    let read = |name: &str| fs::read(dest.path().join(name)).unwrap();
    (read("model.safetensors"), String::from_utf8(read("config.json")).unwrap())
}

#[test]
fn tensors_are_copied_to_their_names() {
    let dest = converted(&torchscale_changed("xpos_full", |_, _| {})).unwrap();
    let (config, weights) = read(dest.path());
    assert_eq!((config.family.as_str(), config.training_length), ("decoder", 32));
    let source = fs::read(golden_data("torchscale/xpos_full/model.safetensors")).unwrap();
    let official = SafeTensors::deserialize(&source).unwrap();
    let official_tensor = |name: &str| official.tensor(name).unwrap().data().to_vec();
    let converted_tensor =
        |name: &str| -> Vec<u8> { weights.get(name).unwrap().numbers().iter().flat_map(|x| x.to_le_bytes()).collect() };
    let parts = ["q", "k", "v"].map(|part| official_tensor(&format!("layers.1.self_attn.{part}_proj.weight")));
    assert_eq!(converted_tensor("layers.1.attention.qkv.weight"), parts.concat());
    for (name, official) in [
        ("embedding.weight", "embed_tokens.weight"),
        ("layers.0.attention.inner_norm.bias", "layers.0.self_attn.inner_attn_ln.bias"),
        ("layers.0.feed_forward.inner_norm.weight", "layers.0.ffn.ffn_layernorm.weight"),
        ("layers.1.feed_forward.norm.weight", "layers.1.final_layer_norm.weight"),
        ("layers.1.feed_forward.down.weight", "layers.1.ffn.fc2.weight"),
        ("norm.weight", "layer_norm.weight"),
        ("head.weight", "output_projection.weight"),
    ] {
        assert_eq!(converted_tensor(name), official_tensor(official), "{name}");
    }
}

#[test]
fn prefixes_and_buffer_locations_are_optional() {
    let plain = written(&converted(&torchscale_changed("xpos_full", |_, _| {})).unwrap());
    let prefixed = torchscale_changed("xpos_full", |_, tensors| {
        *tensors =
            std::mem::take(tensors).into_iter().map(|(name, tensor)| (format!("decoder.{name}"), tensor)).collect();
        tensors.insert("decoder.version".into(), (Dtype::F32, vec![1], vec![0; 4]));
    });
    assert_eq!(written(&converted(&prefixed).unwrap()), plain);
    let top = torchscale_changed("xpos_full", |_, tensors| {
        let scale = tensors.remove("layers.0.self_attn.xpos.scale").unwrap();
        tensors.remove("layers.1.self_attn.xpos.scale");
        tensors.insert("self_attn_xpos.scale".into(), scale);
    });
    assert_eq!(written(&converted(&top).unwrap()), plain);
    let without_scale =
        torchscale_changed("xpos_full", |_, tensors| tensors.retain(|name, _| !name.ends_with("xpos.scale")));
    assert_eq!(written(&converted(&without_scale).unwrap()), plain);
}

#[test]
fn a_learned_table_starts_after_the_padding() {
    let learned = torchscale_changed("xpos_short", |config, tensors| {
        (config["position"], config["max_positions"]) = (json!("learned"), json!(3));
        config["train_length"] = json!(3);
        tensors.remove("self_attn_xpos.scale");
        let rows: Vec<u8> = (0..5 * 32).flat_map(|n| (n as f32).to_le_bytes()).collect();
        tensors.insert("embed_positions.weight".into(), (Dtype::F32, vec![5, 32], rows));
    });
    let dest = converted(&learned).unwrap();
    let (_, weights) = read(dest.path());
    let table = weights.get("position.table").unwrap();
    assert_eq!((&*table.shape, table.numbers()[0]), (&[3, 32][..], 64.0));
}

#[test]
fn unsupported_tensors_are_refused() {
    type Change = fn(&mut Value, &mut Tensors);
    let cases: [(&str, &str, Change); 3] = [
        ("xpos_bca_lmexample", "to which it is tied, found other numbers", |_, tensors| {
            tensors.get_mut("output_projection.weight").unwrap().2[0] ^= 1;
        }),
        ("alibi_full", "self_attn_xpos.scale: expected no tensor of this name", |_, tensors| {
            tensors.insert("self_attn_xpos.scale".into(), (Dtype::F32, vec![4], vec![0; 16]));
        }),
        ("xpos_full", "layers.1.ffn.fc1.bias: expected a tensor, found none", |_, tensors| {
            tensors.remove("layers.1.ffn.fc1.bias");
        }),
    ];
    for (case, expected, change) in cases {
        let message = torchscale_message(case, change);
        assert!(message.contains(expected), "{case}: {message}");
    }
    let empty_folder = TempDir::new().unwrap();
    assert!(convert::convert(Source::Torchscale, empty_folder.path(), &empty_folder.path().join("to"), false).is_err());
    let dir = torchscale_changed("xpos_full", |_, _| {});
    fs::remove_file(dir.path().join("model.safetensors")).unwrap();
    assert!(converted(&dir).unwrap_err().to_string().contains("found neither"));
}

/// Copies a fixture with the arguments under fairseq's names.
fn with_fairseq_names(case: &str, change: impl FnOnce(&mut Value, &mut Tensors)) -> TempDir {
    torchscale_changed(case, |config, tensors| {
        let original = config.take();
        *config = json!({
            "decoder_embed_dim": 32, "decoder_ffn_embed_dim": 48, "decoder_layers": 2, "decoder_attention_heads": 4,
            "decoder_normalize_before": true, "activation_fn": original["activation"], "subln": original["subln"],
            "no_scale_embedding": original["scale_embedding"] == false, "share_decoder_input_output_embed": original["tied"],
            "xpos_rel_pos": original["position"] == "xpos" || original["position"] == "rope",
            "xpos_scale_base": original["xpos_scale_base"], "rel_pos_buckets": original["rel_pos_buckets"],
            "max_rel_pos": original["max_rel_pos"], "block_size": original["block_size"], "vocab_size": -1,
            "no_token_positional_embeddings": original["position"] != "sinusoidal", "tokens_per_sample": 32, "moe_freq": 0,
        });
        change(config, tensors);
    })
}

#[test]
fn fairseq_names_give_the_same_checkpoint() {
    for case in [
        "xpos_bca",
        "xpos_full_base16",
        "xpos_bca_lmexample",
        "rope_bca",
        "rope_full",
        "sinusoidal_full",
        "bucket_full",
    ] {
        let plain = written(&converted(&torchscale_changed(case, |_, _| {})).unwrap());
        assert_eq!(written(&converted(&with_fairseq_names(case, |_, _| {})).unwrap()), plain, "{case}");
    }
    // fairseq does not record this; the tensors show it.
    let learned = with_fairseq_names("xpos_short", |config, tensors| {
        (config["xpos_rel_pos"], config["no_token_positional_embeddings"]) = (false.into(), Value::Null);
        config["tokens_per_sample"] = 7.into();
        tensors.remove("self_attn_xpos.scale");
        tensors.insert("embed_positions.weight".into(), (Dtype::F32, vec![9, 32], vec![0; 9 * 32 * 4]));
    });
    let (_, config) = written(&converted(&learned).unwrap());
    let config: Value = serde_json::from_str(&config).unwrap();
    assert_eq!(config["architecture"]["position"], json!({"learned": {"positions": 7}}));
}

#[test]
fn a_training_checkpoint_equals_its_exported_parts() {
    let dest = TempDir::new().unwrap();
    let file = golden_data("torchscale-pt/rope_bca/checkpoint_last.pt");
    for from in [&*file, file.parent().unwrap()] {
        convert::convert(Source::Torchscale, from, dest.path(), true).unwrap();
        assert_eq!(written(&dest), written(&converted(&torchscale_changed("rope_bca", |_, _| {})).unwrap()));
    }
    let other = golden_data("dynamic-pooling-pt/plain/checkpoint_last.pt");
    let error = convert::convert(Source::Torchscale, &other, &dest.path().join("to"), false).unwrap_err().to_string();
    assert!(error.contains("model: expected a dict of tensors, found nothing"), "{error}");
}

#[test]
fn other_architectures_are_refused() {
    let cases = [
        ("decoder_normalize_before", json!(false), "expected true: norms before the sub-layers"),
        ("deepnorm", json!(true), "expected false: norms before"),
        ("layernorm_embedding", json!(true), "expected false: no norm behind the embedding"),
        ("moe_freq", json!(2), "expected 0: no mixture of experts"),
        (
            "no_token_positional_embeddings",
            json!(false),
            "xpos_rel_pos: expected one position scheme, found xpos and sinus",
        ),
        ("activation_fn", json!("tanh"), "activation_fn: expected one of"),
        ("decoder_layers", json!("two"), "decoder_layers: expected a whole number of at least 0, found \"two\""),
    ];
    for (key, value, expected) in cases {
        let error = converted(&with_fairseq_names("xpos_full", |config, _| config[key] = value.clone())).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}
