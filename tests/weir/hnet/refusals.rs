//! `weir convert --from hnet` of hostile and broken tensors: what the error names.

use super::super::support::{hnet_converted, hnet_golden};
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
    let cases: [(&[u8], &[u8], &str); 5] = [
        (b"lm_head.weight", b"lm_head.wright", "lm_head.weight: expected a tensor, found none"),
        (b"BFloat16Storage", b"DoubleStorage", "expected floats of 16 or 32 bits, found torch.DoubleStorage"),
        (b"BFloat16Storage", b"LongStorage", "expected floats of 16 or 32 bits, found torch.LongStorage"),
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
    let cases: [(Change, &[&str]); 4] = [
        (
            |header| {
                let tensor = header.remove("backbone.residual_proj.bias").unwrap();
                header.insert("backbone.residual_proj.bios".into(), tensor);
            },
            &["backbone.residual_proj.bias: expected a tensor, found none"],
        ),
        (
            |header| header["backbone.encoder.layers.0.mixer.D"]["dtype"] = "I32".into(),
            &["backbone.encoder.layers.0.mixer.D", "expected dtype F32, F16, BF16 or I8, found dtype \"I32\""],
        ),
        (
            |header| header["lm_head.weight"]["dtype"] = "F64".into(),
            &["lm_head.weight", "expected dtype F32, F16, BF16 or I8, found dtype \"F64\""],
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

/// Changes the text of the two-stage fixture's configuration and returns the error of its conversion, without the folder.
fn refused_config(change: &dyn Fn(&mut Value) -> Option<String>) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/hnet-pt/two_stage");
    let dir = TempDir::new().unwrap();
    fs::copy(source.join("checkpoint.pt"), dir.path().join("checkpoint.pt")).unwrap();
    let mut config = serde_json::from_slice(&fs::read(source.join("config.json")).unwrap()).unwrap();
    let text = change(&mut config).unwrap_or_else(|| config.to_string());
    fs::write(dir.path().join("config.json"), text).unwrap();
    refused(dir.path()).replace(&format!("weir: {}/config.json: ", dir.path().display()), "").trim_end().to_owned()
}

/// Messages have the official keys and the words of JSON.
#[test]
fn configurations_of_another_form_are_refused_in_official_words() {
    let whole = "a whole number of at least 0";
    let per_stage = "a whole number of at least 0, or a list with one for each stage";
    let set = [
        ("/d_model", "64", "d_model: expected a list, found 64".to_owned()),
        ("/d_model", "null", "d_model: expected a list, found null".into()),
        ("/d_model", "[32, -1, 64]", format!("d_model[1]: expected {whole}, found -1")),
        ("/d_model", "[32, 1.5, 64]", format!("d_model[1]: expected {whole}, found 1.5")),
        ("/d_model", "[32, 0, 64]", "d_model[1]: expected 1 to 1048576, found 0".into()),
        ("/ssm_cfg", "3", "ssm_cfg: expected an object, found 3".into()),
        ("/ssm_cfg", "[1, 2]", "ssm_cfg: expected an object, found a list of 2".into()),
        ("/ssm_cfg/d_conv", "\"4\"", format!("ssm_cfg.d_conv: expected {per_stage}, found \"4\"")),
        ("/ssm_cfg/d_conv", "[4, \"x\", 4]", format!("ssm_cfg.d_conv[1]: expected {whole}, found \"x\"")),
        ("/ssm_cfg/d_state", "0", "ssm_cfg.d_state[0]: expected 1 to 1048576, found 0".into()),
        (
            "/ssm_cfg/expand",
            "[1, 2, 2]",
            "ssm_cfg.expand[0]: expected expand · d_model divisible by 64, the width of a head, found 32".into(),
        ),
        ("/attn_cfg", "{}", "attn_cfg.num_heads: expected a value, found nothing".into()),
        (
            "/attn_cfg/num_heads",
            "[2, 5, 2]",
            "attn_cfg.num_heads[1]: expected a divisor of d_model, 32, found 5".into(),
        ),
        ("/attn_cfg/window_size", "[1, 2.5, 3]", "attn_cfg.window_size[1]: expected a whole number, found 2.5".into()),
        (
            "/attn_cfg/window_size",
            "[1023, 16777216, -1]",
            "attn_cfg.window_size[1]: expected -1 for no window, or 0 to 16777215, found 16777216".into(),
        ),
        ("/vocab_size", "true", format!("vocab_size: expected {whole}, found true")),
        ("/tie_embeddings", "\"no\"", "tie_embeddings: expected true or false, found \"no\"".into()),
        ("/arch_layout/0", "3", "arch_layout[0]: expected a string, found 3".into()),
        (
            "/arch_layout/1/1",
            "[\"T2\", \"m1\"]",
            "arch_layout[1][1]: expected [encoder, [inner stage], decoder], or [main] in the innermost stage, found [\"T2\",\"m1\"]".into(),
        ),
    ];
    for (key, value, expected) in set {
        let message = refused_config(&|config| {
            *config.pointer_mut(key).unwrap() = serde_json::from_str(value).unwrap();
            None
        });
        assert_eq!(message, expected, "{key}: {value}");
    }
    let json = "expected valid JSON, found a syntax error (EOF while parsing";
    for (text, expected) in [
        ("[]", "the file: expected an object, found a list of 0".to_owned()),
        ("null", "the file: expected an object, found null".into()),
        ("{", format!("the file: {json} an object at line 1 column 1)")),
        ("{\"ssm_cfg\": {\"d_conv\": 4", format!("ssm_cfg: {json} an object at line 1 column 24)")),
        ("{\"d_model\": [32], \"d_in", format!("the file: {json} a string at line 1 column 23)")),
    ] {
        assert_eq!(refused_config(&|_| Some(text.to_owned())), expected, "{text}");
    }
}

/// The error names the file that is missing, and what the folder has.
#[test]
fn sources_without_a_file_are_refused_by_its_name() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/hnet-pt/two_stage");
    let expected =
        "the folder: expected a folder with the official config.json, and model.safetensors or one .pt file, found";
    let cases: [(&[&str], &str, String); 5] = [
        (&["checkpoint.pt"], "", format!("{expected} no config.json; the folder has checkpoint.pt")),
        (&[], "", format!("{expected} an empty folder")),
        (&[], "none", format!("{expected} no folder of this name")),
        (&["config.json", "checkpoint.pt"], "checkpoint.pt", format!("{expected} a file")),
        (
            &["config.json"],
            "",
            "the folder: expected model.safetensors, or one .pt file, found neither; the folder has config.json".into(),
        ),
    ];
    for (files, source, expected) in cases {
        let dir = TempDir::new().unwrap();
        for file in files {
            fs::copy(fixture.join(file), dir.path().join(file)).unwrap();
        }
        let to = TempDir::new().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(["convert", "--from", "hnet"]).arg(dir.path().join(source)).arg(to.path().join("to")).env_clear();
        let output = command.output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && message.trim_end().ends_with(&expected), "{message}\n{expected}");
        assert!(message.contains(&*dir.path().to_string_lossy()) && !message.contains("os error"), "{message}");
    }
    // a converted checkpoint whose window is no window
    let dir = TempDir::new().unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(hnet_converted("two_stage").join(file), dir.path().join(file)).unwrap();
    }
    let file = dir.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    config["architecture"]["stages"][1]["window"] = 0.into();
    fs::write(&file, config.to_string()).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_weir")).arg("inspect").arg(dir.path()).env_clear().output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    let expected = "architecture.stages[1].window: expected one of `full`, `blockwise`, `sliding`, found 0";
    assert!(message.contains(expected), "{message}");
}
