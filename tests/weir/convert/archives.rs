//! Training checkpoints: zip archives with a pickle, valid and malicious.

use super::{convert, golden, message, read};
use proptest::prelude::*;
use std::{
    fs,
    io::{Cursor, Read, Write},
    path::Path,
};
use tempfile::TempDir;
use weir::family::convert::pickle::Pickle;
use zip::{CompressionMethod, ZipArchive, ZipWriter, write::SimpleFileOptions};

/// Returns name and bytes of each file in the archive of a training checkpoint.
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
    const NAMESPACE: &[u8] = b"cargparse\nNamespace\n";
    const PREDICTOR: &str = "boundary_predictor.boundary_predictor.2.bias";
    let unknown = "data.pkl byte 17: expected a name that training checkpoints need, found";
    let cases = [
        (patched(NAMESPACE, b"cos\nsystem\n"), format!("{unknown} os.system")),
        (patched(NAMESPACE, b"cbuiltins\neval\n"), format!("{unknown} builtins.eval")),
        (patched(NAMESPACE, b"c__main__\nVocab\n"), format!("{unknown} __main__.Vocab")),
        (patched(NAMESPACE, b"ios\nsystem\n"), format!("{unknown} os.system")),
        (patched(NAMESPACE, b"itorch\nSize\n"), "data.pkl byte 17: expected an instruction that reads data".into()),
        (patched(NAMESPACE, b"K\x00"), "expected a known name and a tuple of arguments".into()),
        (
            patched(b"FloatStorage", b"LongStorage"),
            "r_w_bias: expected floats of 16 or 32 bits, found torch.LongStorage".into(),
        ),
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
    convert(&golden("dynamic-pooling-pt/plain"), straight.path()).unwrap();
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
    convert(&golden("dynamic-pooling-pt/plain"), straight.path()).unwrap();
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
        let mut file = fs::read(golden("dynamic-pooling-pt/plain/checkpoint_last.pt")).unwrap();
        for (index, byte) in changes {
            let index = index.index(file.len());
            file[index] = byte;
        }
        let [dir, dest] = [(); 2].map(|()| TempDir::new().unwrap());
        fs::write(dir.path().join("x.pt"), file).unwrap();
        let _ = convert(&dir.path().join("x.pt"), dest.path());
    }
}
