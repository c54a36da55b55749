//! `weir convert --from hnet` of hostile and broken tensors: what the error names.

use super::super::support::hnet_golden;
use serde_json::Value;
use std::{
    fs,
    io::{Cursor, Read, Write},
    path::Path,
    process::Command,
};
use tempfile::TempDir;
use zip::{CompressionMethod, ZipArchive, ZipWriter, write::SimpleFileOptions};

/// Runs the command on a folder, which it must refuse, and returns its error.
fn refused(from: &Path) -> String {
    let to = from.join("to");
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["convert", "--from", "hnet"]).arg(from).arg(&to).env_clear();
    let output = command.output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && !to.join("config.json").exists(), "{message}");
    message
}

/// Replaces the first occurrence of `from`.
fn patched(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let offset = bytes.windows(from.len()).position(|window| window == from).unwrap();
    [&bytes[..offset], to, &bytes[offset + from.len()..]].concat()
}

/// Writes the two-stage fixture with another pickle and returns the error of its conversion.
fn refused_pickle(change: &dyn Fn(&[u8]) -> Vec<u8>) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/hnet-pt/two_stage");
    let mut archive = ZipArchive::new(Cursor::new(fs::read(source.join("checkpoint.pt")).unwrap())).unwrap();
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).unwrap();
        let name = entry.name().unwrap().into_owned();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        if name.ends_with("data.pkl") {
            bytes = change(&bytes);
        }
        let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
        writer.start_file(name, stored).unwrap();
        writer.write_all(&bytes).unwrap();
    }
    let dir = TempDir::new().unwrap();
    fs::copy(source.join("config.json"), dir.path().join("config.json")).unwrap();
    fs::write(dir.path().join("checkpoint.pt"), writer.finish().unwrap().into_inner()).unwrap();
    refused(dir.path())
}

#[test]
fn a_pickle_with_anything_executable_is_refused_by_name() {
    const DICT: &[u8] = b"ccollections\nOrderedDict\n";
    const TENSOR: &[u8] = b"ctorch._utils\n_rebuild_tensor_v2\n";
    let at_start = |code: &'static [u8]| move |pickle: &[u8]| [&pickle[..2], code, &pickle[2..]].concat();
    let unknown = "expected a name that training checkpoints need, found";
    let replaced = |from: &'static [u8], to: &'static [u8]| move |pickle: &[u8]| patched(pickle, from, to);
    let cases: [(Box<dyn Fn(&[u8]) -> Vec<u8>>, String); 13] = [
        // a call before the dict, as exploits put it
        (Box::new(at_start(b"cos\nsystem\n(X\x04\0\0\0truetR0")), format!("data.pkl byte 2: {unknown} os.system")),
        (Box::new(at_start(b"cposix\nsystem\n(X\x04\0\0\0truetR0")), format!("{unknown} posix.system")),
        (Box::new(at_start(b"csubprocess\nPopen\n(X\x04\0\0\0truetR0")), format!("{unknown} subprocess.Popen")),
        (Box::new(at_start(b"\x8c\x08builtins\x8c\x04eval\x93(X\x01\0\0\x001tR0")), format!("{unknown} builtins.eval")),
        (Box::new(at_start(b"(X\x04\0\0\0trueios\nsystem\n0")), format!("{unknown} os.system")),
        // a name in the place of one that is needed
        (Box::new(replaced(DICT, b"cbuiltins\nexec\n")), format!("data.pkl byte 2: {unknown} builtins.exec")),
        (Box::new(replaced(TENSOR, b"ctorch\nload\n")), format!("{unknown} torch.load")),
        (Box::new(replaced(b"BFloat16Storage", b"hub.load_state_x")), format!("{unknown} torch.hub.load_state_x")),
        (
            Box::new(at_start(b"comegaconf.listconfig\nListConfig\n0")),
            format!("{unknown} omegaconf.listconfig.ListConfig"),
        ),
        // instructions that run code without naming it
        (Box::new(at_start(b"\x82\x01")), "expected an instruction that reads data, found 0x82".into()),
        (Box::new(at_start(b"(ctorch\nSize\no")), "expected an instruction that reads data, found 0x6f".into()),
        (
            Box::new(|_| b"cos\nsystem\n(S'true'\ntR.".to_vec()),
            "expected a pickle (first byte 0x80), found 0x63".into(),
        ),
        // a known name cannot be called in place of a tensor's builder
        (Box::new(replaced(TENSOR, b"cbuiltins\nint\n")), "embeddings.weight: expected a tensor".into()),
    ];
    for (change, expected) in cases {
        let message = refused_pickle(&*change);
        assert!(message.contains("checkpoint.pt") && message.contains(&expected), "{message}\n{expected}");
    }
}

#[test]
fn a_pickle_with_other_tensors_is_refused_by_key() {
    let cases: [(&[u8], &[u8], &str); 4] = [
        (b"lm_head.weight", b"lm_head.wright", "lm_head.weight: expected a tensor, found none"),
        (b"BFloat16Storage", b"LongStorage", "expected floats of 16, 32 or 64 bits, found torch.LongStorage"),
        (
            b"M\x00\x01K\x20\x86",
            b"M\x80\x00K\x40\x86",
            "embeddings.weight: expected shape [256, 32], found shape [128, 64]",
        ),
        (
            b"M\x00\x01K\x20\x86",
            b"M\x01\x01K\x20\x86",
            "embeddings.weight: expected a view of a storage of 8192 numbers",
        ),
    ];
    for (from, to, expected) in cases {
        let message = refused_pickle(&|pickle| patched(pickle, from, to));
        assert!(message.contains("checkpoint.pt") && message.contains(expected), "{message}\n{expected}");
    }
}

/// Writes the one-stage fixture with another header of `model.safetensors` and returns the error of its conversion.
fn refused_header(change: &dyn Fn(&mut serde_json::Map<String, Value>)) -> String {
    let source = hnet_golden("one_stage");
    let file = fs::read(source.join("model.safetensors")).unwrap();
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let mut header = serde_json::from_slice(&file[8..8 + length]).unwrap();
    change(&mut header);
    let header = serde_json::to_vec(&header).unwrap();
    let dir = TempDir::new().unwrap();
    fs::copy(source.join("config.json"), dir.path().join("config.json")).unwrap();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], &header, &file[8 + length..]].concat();
    fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
    refused(dir.path())
}

#[test]
fn safetensors_with_other_tensors_are_refused_by_key() {
    type Change = fn(&mut serde_json::Map<String, Value>);
    let cases: [(Change, &[&str]); 3] = [
        (
            |header| {
                let tensor = header.remove("backbone.residual_proj.bias").unwrap();
                header.insert("backbone.residual_proj.bios".into(), tensor);
            },
            &["backbone.residual_proj.bias: expected a tensor, found none"],
        ),
        (
            |header| header["backbone.encoder.layers.0.mixer.D"]["dtype"] = "I32".into(),
            &["backbone.encoder.layers.0.mixer.D", "expected dtype F32, F16 or BF16, found dtype \"I32\""],
        ),
        (
            |header| {
                let shape = header["lm_head.weight"]["shape"].as_array_mut().unwrap();
                shape.reverse();
            },
            &["lm_head.weight: expected shape [256, ", "found shape ["],
        ),
    ];
    for (change, expected) in cases {
        let message = refused_header(&change);
        assert!(expected.iter().all(|part| message.contains(part)), "{message}\n{expected:?}");
    }
}
