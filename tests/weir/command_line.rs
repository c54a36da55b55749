//! The commands of the program: accepted and refused arguments, their output, and what they ask of a server.

use crate::{process::program, support::settings, *};
use std::sync::{PoisonError, Weak};

pub(crate) use crate::process::weir_json as run_json;

fn model(case: &str) -> String {
    converted(case).to_str().unwrap().to_owned()
}

/// Returns `count` symbol ids; every sixth is a space.
fn ids(count: usize) -> String {
    (0..count)
        .map(|position| if position % 6 == 5 { "0".into() } else { (1 + position * 7 % 26).to_string() })
        .collect::<Vec<_>>()
        .join(",")
}

#[test]
fn windowed_scores_equal_those_of_one_pass() {
    let model = model("fixed_sf3");
    let ids = ids(50);
    let out = TempDir::new().unwrap();
    let file = |name: &str| out.path().join(name).to_str().unwrap().to_owned();
    let score = |more: &[&str]| run_json(&[&["score", "--json", "--model", &model, "--ids", &ids], more].concat());
    let complete = score(&["--logits", &file("whole")]);
    // One window equals one pass, except that the last symbol is scored but not fed.
    let window = score(&["--windowed", "50,50", "--logits", &file("window")]);
    assert_eq!(complete["logprobs"], window["logprobs"]);
    assert_eq!(complete["boundaries"].as_array().unwrap()[..49], window["boundaries"].as_array().unwrap()[..]);
    let [complete, window] = ["whole", "window"].map(|name| fs::read(file(name)).unwrap());
    let [complete, window] = [&complete, &window].map(|bytes| SafeTensors::deserialize(bytes).unwrap());
    let [complete, window] = [&complete, &window].map(|tensors| tensors.tensor("logits").unwrap());
    assert_eq!((complete.shape(), window.shape()), (&[50, 27][..], &[49, 27][..]));
    assert_eq!(complete.data()[..window.data().len()], *window.data());
    // With several windows, each symbol except the last is reported once, and fixed boundaries keep their phase in the
    // text.
    let several = score(&["--windowed", "20,7"]);
    let expected: Vec<u8> = (0..49).map(|position| u8::from(position % 3 == 0)).collect();
    assert_eq!(several["boundaries"], serde_json::json!(expected));
    let logprobs: Vec<f64> = serde_json::from_value(several["logprobs"].clone()).unwrap();
    let bits = -logprobs.iter().sum::<f64>() / 49.0 / std::f64::consts::LN_2;
    assert!((bits - several["bits_per_char"].as_f64().unwrap()).abs() < 1e-9);
}

#[test]
fn memory_too_small_for_the_model_is_refused() {
    let folder = converted("whitespaces");
    let error = load(&folder, &Settings { memory_bytes: 16, ..settings() }).err().unwrap().to_string();
    let start = format!("{}: --kv-memory: expected at least ", folder.display());
    assert!(error.starts_with(&start) && error.ends_with(" bytes, found 16"), "{error}");
}

/// A server of four models, and the folder of one of them.
struct Served {
    server: crate::process::Server,
    folder: TempDir,
}

/// Returns the server, which the tests that run at the same time share. It is killed when the last of them ends.
fn served() -> Arc<Served> {
    static SERVED: Mutex<Weak<Served>> = Mutex::new(Weak::new());
    let mut running = SERVED.lock().unwrap_or_else(PoisonError::into_inner);
    running.upgrade().unwrap_or_else(|| {
        let started = Arc::new(Served::start());
        *running = Arc::downgrade(&started);
        started
    })
}

impl Served {
    fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let summarizer = write_random_model(folder.path());
        let bytes = checkpoint("lslm", "byte_vocab");
        let models = [converted("whitespaces"), bytes, summarizer.into(), checkpoint("hnet", "two_stage")];
        Self { server: crate::process::Server::of(&models, &[]), folder }
    }
}

/// Runs a command that must succeed. Returns stdout and stderr.
#[track_caller]
fn printed(args: &[&str]) -> (String, String) {
    let output = program(args).output().unwrap();
    let [text, notes] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(output.status.success(), "{args:?}: {notes}");
    (text, notes)
}

/// Runs a command with the checkpoint in its own process, then with the server's model. Returns stdout and stderr of both.
#[track_caller]
fn both_printed(folder: &Path, args: &[&str]) -> [(String, String); 2] {
    let serving = served();
    let name = folder.file_name().unwrap().to_str().unwrap();
    let address = serving.server.address.to_string();
    let local = ["--model", folder.to_str().unwrap(), "--threads", "1"];
    let served = ["--server", &address, "--model", name];
    [printed(&[args, &local].concat()), printed(&[args, &served].concat())]
}

/// Returns stdout of both.
#[track_caller]
fn both(folder: &Path, args: &[&str]) -> [String; 2] {
    both_printed(folder, args).map(|(text, _)| text)
}

/// Compares the JSON of both, without times and what the server had cached.
#[track_caller]
fn assert_same_json(folder: &Path, args: &[&str]) -> Value {
    let [local, served] = both(folder, &[args, &["--json"]].concat()).map(|text| {
        let mut json: Value = serde_json::from_str(&text).unwrap();
        json["timing"].take();
        for key in ["cached_chars", "cached_tokens"] {
            json["usage"][key].take();
        }
        json
    });
    assert_eq!(local, served);
    served
}

#[test]
fn generated_text_is_that_of_this_process() {
    let _serving = served();
    let args = ["generate", "--prompt", "a word or two", "--max-tokens", "30", "--seed", "7", "--temperature", "0.8"];
    let [local, served] = both(&converted("whitespaces"), &args);
    assert_eq!(local, served);
    assert_eq!(served.chars().count(), 31, "{served}");
    // The server may have the prompt in its cache.
    let json = assert_same_json(&converted("whitespaces"), &args);
    assert_eq!((&json["reason"], json["ids"].as_array().unwrap().len()), (&"max_chars".into(), 30));
    let stopped = [&args[..], &["--stop", " ", "--max-segments", "1"]].concat();
    assert_same_json(&converted("whitespaces"), &stopped);
    // A model with special symbols also lists the ends of segments.
    let json = assert_same_json(&checkpoint("lslm", "byte_vocab"), &args);
    assert!(json["events"].as_array().unwrap().len() >= json["ids"].as_array().unwrap().len());
}

#[test]
fn scores_are_those_of_this_process() {
    let _serving = served();
    let text = ["score", "--text", "the river runs past the mill"];
    for folder in [converted("whitespaces"), checkpoint("lslm", "byte_vocab")] {
        for more in [&[][..], &["--windowed", "12,5"], &["--lengths", "5,20"]] {
            let args = [&text[..], more].concat();
            let [local, served] = both(&folder, &args);
            assert_eq!(local, served);
            assert_same_json(&folder, &args);
        }
    }
}

#[test]
fn notes_on_normalised_text_are_those_of_this_process() {
    let _serving = served();
    let folder = converted("whitespaces");
    for (text, changed) in [("A, b", "3 of 4 characters"), ("A", "1 of 1 character;"), ("a b", "")] {
        for command in [&["generate", "--max-chars", "3", "--prompt"][..], &["score", "--text"], &["segment", "--text"]]
        {
            let notes = both_printed(&folder, &[command, &[text]].concat()).map(|(_, errors)| errors);
            assert_eq!(notes[0], notes[1], "{command:?}");
            assert!(notes[0].contains(changed) && notes[0].is_empty() == changed.is_empty(), "{command:?}: {notes:?}");
        }
    }
    let json = assert_same_json(&folder, &["segment", "--text", "A, b"]);
    assert_eq!(json["normalized_chars"], 3);
}

#[test]
fn segments_are_those_of_this_process() {
    let _serving = served();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("text");
    fs::write(&file, "a weir pools\na stream").unwrap();
    let args = ["segment", "--file", file.to_str().unwrap()];
    let [local, served] = both(&converted("whitespaces"), &args);
    assert_eq!(local, served);
    assert!(served.contains("4 closed segments"), "{served}");
    assert_same_json(&converted("whitespaces"), &args);
    // Colours, if asked for, in either case.
    let [local, served] = both(&converted("whitespaces"), &[&args[..], &["--color", "always"]].concat());
    assert!(local == served && served.contains("\u{1b}[36m"), "{served}");
    // Offsets are within the text: a start mark has no place in it.
    let text = "été: where chunks begin";
    for (folder, has_mark) in [(converted("whitespaces"), false), (checkpoint("hnet", "two_stage"), true)] {
        let text = if has_mark { text } else { &text["été: ".len()..] };
        let json = assert_same_json(&folder, &["segment", "--text", text]);
        assert_eq!(json["symbols"], text.len() + usize::from(has_mark), "{json}");
        let mut end = 0;
        for segment in json["segments"].as_array().unwrap() {
            assert_eq!(segment["start"], end, "{json}");
            end = segment["end"].as_u64().unwrap();
        }
        assert_eq!(end, text.len() as u64, "{json}");
    }
}

#[test]
fn summaries_are_those_of_this_process() {
    let serving = served();
    let folder = serving.folder.path();
    let model = folder.join("model");
    let write = |name: &str, text: &str| {
        fs::write(folder.join(name), text).unwrap();
        folder.join(name).to_str().unwrap().to_owned()
    };
    let document = write("document", "the café is pooling, the rest is going.");
    let reference = write("reference", "the rest");
    let args = ["summarize", "--file", &document, "--max-tokens", "9", "--min-len", "5", "--reference", &reference];
    let [local, served] = both(&model, &[&args[..], &["--highlights"]].concat());
    assert!(local == served && served.contains("tokens kept") && served.contains("ROUGE-1"), "{served}");
    // The API has the kept tokens as spans of the text.
    let json = assert_same_json(&model, &args);
    assert!(!json["poolings"][0]["spans"].as_array().unwrap().is_empty(), "{json}");
}
