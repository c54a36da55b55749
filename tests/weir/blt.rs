//! The Byte Latent Transformer: every stage, long texts, its folder and its conversion, the table that stays in its file, and the
//! threshold of its boundaries.

use crate::process::{http, scored_in_each_mode, weir, weir_json};
use crate::support::{copied, edit_json, golden_data, settings};
use crate::*;
use weir::models::checkpoint::weights::shapes_in;
use weir::models::contract::state_ref;
use weir::models::convert::convert;
use weir::models::family::blt::{BltStage, BltState, HashedNgrams, MAX_REQUESTED_PATCH, Work};
use weir::models::nn::kv_cache::KvCache;

fn golden(case: &str) -> Golden {
    Golden::open(&golden_data("blt").join(case))
}

fn model(case: &str) -> Arc<dyn Model> {
    model_of("blt", case, Dtype::F32)
}

#[test]
fn every_stage_equals_the_golden_data() {
    for (case, layers) in [("base", [1, 2, 2]), ("widths", [2, 2, 3])] {
        let golden = golden(case);
        let model = model(case);
        let ids = golden.ids("s0.ids");
        let seen: Arc<Mutex<Vec<(BltStage, usize, Vec<f32>)>>> = Arc::default();
        let mut alone = Alone::new(&*model, BoundaryOptions::default());
        let record = seen.clone();
        work_mut::<Work>(&mut alone.scratch).unwrap().watcher = Some(Box::new(move |stage, position, numbers| {
            record.lock().unwrap().push((stage, position.index, numbers.to_vec()));
        }));
        // some patches straddle both chunks
        alone.feed(&ids[..41]);
        alone.feed(&ids[41..]);
        let [encoder, global, decoder] = layers.map(|layers: usize| layers - 1);
        for (stage, name) in [
            (BltStage::PatcherLogits, "patcher.logits".to_owned()),
            (BltStage::Embedded, "embeds".to_owned()),
            (BltStage::Encoded, format!("encoder.layers.{encoder}")),
            (BltStage::Patch, "encoder.cross".to_owned()),
            (BltStage::Global, format!("global.layers.{global}")),
            (BltStage::Decoded, format!("decoder.layers.{decoder}")),
        ] {
            let name = format!("s0.hidden.{name}");
            if !golden.has(&name) {
                assert!(stage == BltStage::PatcherLogits, "{case} {name}");
                continue;
            }
            let mut actual: Vec<_> = seen.lock().unwrap().iter().filter(|entry| entry.0 == stage).cloned().collect();
            actual.sort_by_key(|entry| entry.1);
            let flat: Vec<f32> = actual.into_iter().flat_map(|entry| entry.2).collect();
            let expected = golden.get(&name);
            let largest = expected.iter().fold(0.0_f32, |largest, number| largest.max(number.abs()));
            let error = difference(&flat, expected) / largest;
            assert!(error <= 1e-4, "{case} {name}: {error}");
        }
        let state: &BltState = state_ref(&*alone.rows[0].state).unwrap();
        assert_eq!(state.patch_ends.len(), golden.get("s0.patch_lengths").len(), "{case}");
    }
}

/// The windows of 512 have moved on at the end of such a text, in steps as in one pass.
#[test]
fn texts_longer_than_the_windows_are_equal_in_steps() {
    for case in ["published_form", "no_hash"] {
        for dtype in [Dtype::F32, Dtype::Int8] {
            let model = model_of("blt", case, dtype);
            let ids = golden(case).ids("s2.ids").repeat(2);
            let complete = full(&*model, &ids, &BoundaryOptions::default());
            for size in [1, 50, 700] {
                let mut alone = Alone::new(&*model, BoundaryOptions::default());
                let (logits, marks): (Vec<_>, Vec<_>) = ids.chunks(size).map(|part| alone.feed(part)).unzip();
                assert!((logits.concat(), marks.concat()) == complete, "{case} in {} by {size}", dtype.name());
                let state = &mut alone.rows[0].state;
                assert!(state.bytes() <= model.bytes_for(state.len()));
                let back = state.len() - 30;
                assert!(state.earliest() <= back, "{case}: {} of {}", state.earliest(), state.len());
                state.rollback(back).unwrap();
                let symbols = model.card().vocabulary.len();
                assert_eq!(alone.feed(&ids[back..]).0, complete.0[back * symbols..], "{case} after a rollback");
            }
        }
    }
}

#[test]
fn a_conversion_gives_the_same_bits_and_keeps_the_type_of_the_table() {
    for case in BLT_CASES {
        let folder = golden_data("blt").join(case);
        let to = TempDir::new().unwrap();
        let dest = to.path().join("converted");
        let written = convert(Source::Blt, &folder, &dest, false).unwrap();
        let converted = load(&dest, &Settings { require_sha256: true, ..settings() }).unwrap();
        let own = model(case);
        assert_eq!((converted.card().parameters, &*converted.card().shape), (written.parameters, &*own.card().shape));
        assert_eq!(converted.card().sha256, written.sha256);
        let ids = golden(case).ids("s0.ids");
        let options = BoundaryOptions::default();
        assert!(full(&*converted, &ids, &options) == full(&*own, &ids, &options), "{case}");
        let copied = load(&dest, &Settings { copy_tables: true, ..settings() }).unwrap();
        assert!(full(&*copied, &ids, &options) == full(&*own, &ids, &options), "{case}");
        let tables = |folder: &Path, name: &str| shapes_in(folder).unwrap().get(name).cloned();
        let table = tables(&folder, "model.encoder_hash_tok_embedding.weight").filter(|shape| shape[0] > 0);
        assert_eq!(tables(&dest, "ngrams.weight"), table);
    }
    let to = TempDir::new().unwrap();
    let dest = to.path().join("damaged");
    convert(Source::Blt, &golden_data("blt").join("base"), &dest, false).unwrap();
    let file = dest.join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let end = {
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let table = tensors.tensor("ngrams.weight").unwrap().data();
        table.as_ptr() as usize + table.len() - bytes.as_ptr() as usize
    };
    bytes[end - 1] ^= 1;
    fs::write(&file, bytes).unwrap();
    load(&dest, &settings()).unwrap();
    let error = load(&dest, &Settings { require_sha256: true, ..settings() }).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("sha256 of the weights"), "{error}");
    assert!(weir(&["inspect", dest.to_str().unwrap()]).unwrap_err().contains("sha256 of the weights"));
    let to = TempDir::new().unwrap();
    let source = golden_data("blt").join("published_form");
    let ids = golden("published_form").ids("s0.ids");
    for (name, stored, dtype) in [
        ("f32", safetensors::Dtype::F32, Dtype::F32),
        ("bf16", safetensors::Dtype::BF16, Dtype::Bf16),
        ("int8", safetensors::Dtype::I8, Dtype::Int8),
    ] {
        let dest = to.path().join(name);
        let [from, into] = [&source, &dest].map(|path| path.to_str().unwrap());
        weir(&["convert", "--from", "blt", "--dtype", name, from, into]).unwrap();
        let bytes = fs::read(dest.join("model.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let types =
            ["ngrams", "head", "patcher.head"].map(|name| file.tensor(&format!("{name}.weight")).unwrap().dtype());
        let patcher = if name == "f32" { stored } else { safetensors::Dtype::BF16 };
        assert_eq!(types, [safetensors::Dtype::BF16, stored, patcher]);
        let model = load(&dest, &Settings { dtype, ..settings() }).unwrap();
        let own = model_of("blt", "published_form", dtype);
        let [(logits, marks), (expected, own_marks)] =
            [model, own].map(|model| full(&*model, &ids, &BoundaryOptions::default()));
        assert!(marks == own_marks && (name == "int8" || logits == expected), "{name}");
    }
}

/// Rows are read from the file while the model is served.
#[test]
fn a_file_that_changes_fails_the_step_and_nothing_else() {
    let folder = copied(&golden_data("blt").join("base"));
    let file = folder.path().join("model.safetensors");
    let from_file = load(folder.path(), &settings()).unwrap();
    let from_memory = load(folder.path(), &Settings { copy_tables: true, ..settings() }).unwrap();
    let ids = golden("base").ids("s0.ids");
    let options = BoundaryOptions::default();
    let expected = full(&*from_file, &ids, &options);
    let size = fs::metadata(&file).unwrap().len();
    fs::File::options().write(true).open(&file).unwrap().set_len(size / 2).unwrap();
    let step = |model: &dyn Model| {
        let mut rows = [SequenceRow::new(model.begin(BoundaryOptions::default()).unwrap())];
        rows[0].set(&ids, Want::All);
        advance(model, &mut rows, &[0], &mut model.scratch()).map_err(|error| error.to_string())
    };
    let message = step(&*from_file).unwrap_err();
    let found = format!("found a file of {} bytes now, {size} when the model was loaded", size / 2);
    assert!(message.contains("model.safetensors: model.encoder_hash_tok_embedding.weight: expected an unchanged file"));
    assert!(message.contains(&found), "{message}");
    assert!(full(&*from_memory, &ids, &options) == expected);
    // a file that another one replaces by its name stays open
    let folder = copied(&golden_data("blt").join("base"));
    let file = folder.path().join("model.safetensors");
    let model = load(folder.path(), &settings()).unwrap();
    fs::copy(&file, folder.path().join("new")).unwrap();
    fs::rename(folder.path().join("new"), &file).unwrap();
    assert!(full(&*model, &ids, &options) == expected);
}

/// Makes a number of the table of `base` infinite or not a number: in a row that the first ids read, and none of the second.
fn damage_table(folder: &Path, with: &[u32], without: &[u32]) {
    let ngrams = HashedNgrams { sizes: vec![3, 4, 5, 6, 7, 8], functions: 1, rows: 211 };
    let rows = |ids: &[u32]| {
        let mut rows = Vec::new();
        for end in 1..=ids.len() {
            ngrams.rows_at(ids[..end].iter().rev().copied().chain(std::iter::repeat(0)), &mut rows);
        }
        rows
    };
    let spared = rows(without);
    let row = rows(with).into_iter().rfind(|row| !spared.contains(row)).unwrap();
    let file = folder.join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let table = tensors.tensor("model.encoder_hash_tok_embedding.weight").unwrap();
    let row_bytes = table.data().len() / table.shape()[0];
    let start = table.data().as_ptr() as usize - bytes.as_ptr() as usize;
    // the upper half of an f32, or a bf16
    let end = start + (row + 1) * row_bytes;
    bytes[end - 2..end].copy_from_slice(&[0x80, 0x7f]);
    fs::write(&file, bytes).unwrap();
}

#[test]
fn a_row_that_is_not_finite_fails_those_who_read_it() {
    let folder = copied(&golden_data("blt").join("base"));
    let ids = golden("base").ids("s0.ids");
    let other = &ids[..6];
    damage_table(folder.path(), &ids, other);
    let model = load(folder.path(), &settings()).unwrap();
    let row = |ids: &[u32]| {
        let mut row = SequenceRow::new(model.begin(BoundaryOptions::default()).unwrap());
        row.set(ids, Want::All);
        row
    };
    let mut rows = [row(&ids), row(other)];
    let mut scratch = model.scratch();
    model.symbol_step(&mut rows, &[0, 1], &mut scratch).unwrap();
    let message = rows[0].failure.take().unwrap().to_string();
    assert!(message.contains("expected finite numbers, found ") && !message.contains('/'), "{message}");
    assert!(rows[1].failure.is_none());
    model.segment_step(&mut rows, &[1], &mut scratch).unwrap();
    model.finish_step(&mut rows, &[1], &mut scratch).unwrap();
    assert!(rows[1].logits == full(&*crate::blt::model("base"), other, &BoundaryOptions::default()).0);
    assert!(advance(&*model, &mut [row(&ids)], &[0], &mut scratch).is_err());
}

/// A changed file breaks its model alone. A row that is not finite breaks none.
#[test]
fn a_changed_file_takes_its_model_out_of_service() {
    let folder = copied(&golden_data("blt").join("base"));
    let card = model("base");
    let text = |text: &str| card.card().vocabulary.encode("text", text, 100).unwrap();
    let harmful = "The mill burnt down in a winter night.";
    damage_table(folder.path(), &text(harmful), &text("weir"));
    let named = format!("patches={}", folder.path().display());
    let other = format!("other={}", checkpoint("dynamic-pooling", "vanilla").display());
    let quick = ["--http-listen", "127.0.0.1:0", "--threads", "1", "--calibration-milliseconds", "0"];
    let server = Server::start(&[&quick[..], &["--kv-memory", "64MiB", "--model", &named, "--model", &other]].concat());
    let complete = |model: &str, prompt: &str| {
        let body = json!({"model": model, "prompt": prompt, "max_tokens": 2, "temperature": 0}).to_string();
        http(&server.http(), "POST /v1/completions", "content-type: application/json\r\n", &body)
    };
    let address = server.address.to_string();
    let serves = |service: &str| weir(&["health", &address, "--service", service]).is_ok();
    let until = |what: &str, holds: &dyn Fn() -> bool| {
        let began = Instant::now();
        while !holds() {
            assert!(began.elapsed() < TIMEOUT, "{what}");
        }
    };
    until("the server is ready", &|| serves("patches") && serves("other"));
    let (status, message) = complete("patches", harmful);
    assert!(status == 500 && message.contains("finite numbers"), "{status} {message}");
    assert_eq!(complete("patches", "weir").0, 200);

    fs::File::options().write(true).open(folder.path().join("model.safetensors")).unwrap().set_len(1000).unwrap();
    let (status, message) = complete("patches", "weir");
    assert!(status == 503 && message.contains("a file of 1000 bytes now"), "{status} {message}");
    assert!(!message.contains(folder.path().to_str().unwrap()), "{message}");
    until("the model is out of service", &|| !serves("patches"));
    let (status, message) = complete("patches", "weir");
    assert!(status == 503 && message.contains("worker is broken: load the model again"), "{status} {message}");
    assert!(serves("") && serves("other") && serves("weir.v1.Generation"));
    assert_eq!((server.get("/health/live").0, server.get("/health/ready").0), (200, 200));
    assert_eq!(complete("other", "a").0, 200);
}

/// Integers would move boundaries.
#[test]
fn patches_are_those_of_bf16_in_fewer_bits() {
    for case in ["base", "widths"] {
        let ids = golden(case).ids("s1.ids");
        let marks = |dtype| full(&*model_of("blt", case, dtype), &ids, &BoundaryOptions::default()).1;
        let expected = marks(Dtype::Bf16);
        assert!(expected.iter().any(|mark| mark.boundary));
        assert!([Dtype::Int8, Dtype::Int4].map(marks).iter().all(|marks| *marks == expected), "{case}");
    }
}

/// A long text takes memory for its windows, for its open patch, whose length has a limit if the request sets the threshold, and for
/// the global transformer's keys and values of each patch.
#[test]
fn a_long_text_takes_bounded_memory() {
    let folder = golden_data("blt").join("published_form");
    let model = load(&folder, &Settings { max_symbols: Some(1 << 17), ..settings() }).unwrap();
    let ids = golden("published_form").ids("s2.ids");
    let with = |threshold: Option<f32>, symbols: usize| {
        let ids: Vec<u32> = ids.iter().copied().skip(1).cycle().take(symbols).collect();
        let mut alone = Alone::new(&*model, BoundaryOptions { threshold, ..BoundaryOptions::default() });
        let patch = threshold.map_or(100, |_| MAX_REQUESTED_PATCH);
        let local = model.bytes_for(patch + 2000);
        let mut peak = (0, 0);
        for part in ids.chunks(500) {
            alone.feed_for(part, Want::Last);
            let state: &BltState = state_ref(&*alone.rows[0].state).unwrap();
            let global = state.global.layout().bytes_for(state.segments());
            let held = (state.bytes(), state.own_bytes());
            let limit = local + global;
            assert!(held.0 <= limit && held.1 <= 1 << 19, "{held:?} at {} symbols, the limit is {limit}", state.len());
            // nothing but the global transformer's keys and values grows, apart from a page that is not full
            let page = |cache: &KvCache| cache.layout().page_bytes();
            let pages = page(&state.patcher) + page(&state.encoder) + page(&state.decoder);
            let flat = (state.bytes() - global, state.own_bytes() - state.global.own_bytes());
            if state.len() <= symbols / 2 {
                peak = (peak.0.max(flat.0), peak.1.max(flat.1));
            } else {
                assert!(flat.0 <= peak.0 + pages && flat.1 <= peak.1, "{flat:?} at {} symbols: {peak:?}", state.len());
            }
        }
        alone.rows[0].state.segments()
    };
    // the first symbol is a patch by itself
    assert_eq!(with(Some(50.0), 100_000), 1 + 99_999 / MAX_REQUESTED_PATCH);
    let symbols = if long_runs() { 100_000 } else { 10_000 };
    assert!((symbols / 10..symbols / 5).contains(&with(None, symbols)));
}

/// The steps that read a long patch change no bit. Between them other rows are fed.
#[test]
fn a_long_patch_takes_several_steps() {
    const PATCH: usize = 40;
    let folder = copied(&golden_data("blt").join("published_form"));
    edit_json(&folder.path().join("config.json"), |config| {
        config["patching_threshold"] = 50.0.into();
        config["max_patch_length"] = PATCH.into();
    });
    let ids = golden("published_form").ids("s2.ids").repeat(2);
    for dtype in [Dtype::F32, Dtype::Int8] {
        let model = load(folder.path(), &Settings { dtype, ..settings() }).unwrap();
        let complete = full(&*model, &ids, &BoundaryOptions::default());
        let begin = |part: usize| {
            let mut alone = Alone::new(&*model, BoundaryOptions::default());
            work_mut::<Work>(&mut alone.scratch).unwrap().closing_symbols = Some(part);
            alone
        };
        for (part, size) in [(1, ids.len()), (1, 50), (7, ids.len()), (7, 1), (39, 700)] {
            let mut alone = begin(part);
            let (logits, marks): (Vec<_>, Vec<_>) = ids.chunks(size).map(|chunk| alone.feed(chunk)).unzip();
            assert!((logits.concat(), marks.concat()) == complete, "{} by {size}, {part} a step", dtype.name());
        }
        let mut alone = begin(7);
        alone.feed(&ids[..PATCH]);
        let last = &ids[PATCH..=PATCH];
        let expected = &complete.0[PATCH * model.card().vocabulary.len()..][..model.card().vocabulary.len()];
        alone.rows[0].set(last, Want::All);
        model.symbol_step(&mut alone.rows, &[0], &mut alone.scratch).unwrap();
        let mut steps = 0;
        while alone.rows[0].status == StepStatus::Waiting {
            let fork = SequenceRow::new(alone.rows[0].state.fork());
            assert_eq!(Alone::from(&*model, fork).feed(last).0, expected);
            model.segment_step(&mut alone.rows, &[0], &mut alone.scratch).unwrap();
            steps += 1;
        }
        model.finish_step(&mut alone.rows, &[0], &mut alone.scratch).unwrap();
        // the symbol step has read the first part
        assert!(steps == PATCH.div_ceil(7) - 1 && alone.rows[0].logits == expected, "{steps}");
    }
    // the engine counts the patch once
    edit_json(&folder.path().join("config.json"), |config| config["max_patch_length"] = 3000.into());
    let engine = Handle::start(load(folder.path(), &settings()).unwrap(), Limits::default()).unwrap();
    let generate = Generate {
        prompt: ids.iter().copied().cycle().take(1 + 3000).collect(),
        stopping: Stopping { max_chars: 1, ..Stopping::default() },
        ..Generate::default()
    };
    let mut events = engine.submit(Job::Generate(generate), None).unwrap();
    let timing = loop {
        if let weir::engine::Event::Finished { timing, .. } = events.blocking_recv().unwrap().unwrap() {
            break timing;
        }
    };
    assert_eq!(timing.middle_steps, 2);
}

#[test]
fn a_request_may_set_the_threshold() {
    let folder = copied(&golden_data("blt").join("base"));
    let ids = golden("base").ids("s0.ids");
    let default = model("base");
    let segments = |model: &dyn Model, threshold: Option<f32>| {
        let (logits, marks) = full(model, &ids, &BoundaryOptions { threshold, ..BoundaryOptions::default() });
        (logits, marks.iter().filter(|mark| mark.boundary).count())
    };
    let own = default.card().boundary_threshold.unwrap();
    assert!(segments(&*default, Some(own)) == segments(&*default, None));
    assert_eq!(segments(&*default, Some(0.0)).1, ids.len());
    assert_eq!(segments(&*default, Some(50.0)).1, 1);
    edit_json(&folder.path().join("config.json"), |config| config["patching_threshold"] = 3.0.into());
    let changed = load(folder.path(), &settings()).unwrap();
    assert!(segments(&*changed, None) == segments(&*default, Some(3.0)));
    for (threshold, expected) in [(-0.5, "found -0.5"), (f32::NAN, "found NaN"), (101.0, "expected 0 to 100, in nats")]
    {
        let options = BoundaryOptions { threshold: Some(threshold), ..BoundaryOptions::default() };
        let message = default.begin(options).err().unwrap().to_string();
        assert!(message.starts_with("boundary_threshold: ") && message.contains(expected), "{message}");
    }
    let options = BoundaryOptions { threshold: Some(1.0), ..BoundaryOptions::default() };
    let message = fixture("unigram").begin(options).err().unwrap().to_string();
    assert!(message.contains("have no threshold that requests may set"), "{message}");
}

/// Ids may stand anywhere: a text may begin with a mark.
#[test]
fn commands_score_and_segment_a_folder_as_it_is() {
    for case in ["base", "widths"] {
        let folder = golden_data("blt").join(case);
        let golden = golden(case);
        for text in 0..3 {
            let named = |name: &str| format!("s{text}.{name}");
            let (outputs, logits) = scored_in_each_mode(&folder, &golden.ids(&named("ids")));
            let expected = golden.get(&named("logits"));
            let largest = expected.iter().fold(0.0_f32, |largest, logit| largest.max(logit.abs()));
            assert!(difference(logits.get("logits"), expected) <= 5e-5 * largest, "{case} {text}");
            for output in outputs {
                let numbers = |key: &str| serde_json::from_value::<Vec<f32>>(output[key].clone()).unwrap();
                assert_eq!(numbers("boundaries"), golden.get(&named("boundary")), "{case} {text}");
                assert!(difference(&numbers("entropies"), golden.get(&named("entropies"))) < 5e-5);
            }
        }
    }
    let folder = golden_data("blt").join("base");
    let folder = folder.to_str().unwrap();
    let measured = [
        "bench",
        "decode",
        "--model",
        folder,
        "--json",
        "--context",
        "8",
        "--steps",
        "20",
        "--boundary-threshold",
        "0,3,99",
    ];
    let factors: Vec<f64> = weir_json(&measured)
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| {
            assert!(entry["bits_per_char"].as_f64().unwrap() > 1.0 && entry["boundary_threshold"].is_number());
            entry["shortening_factor"].as_f64().unwrap_or(f64::INFINITY)
        })
        .collect();
    assert!(factors[0] == 1.0 && factors[1] > 1.0 && factors[2] == f64::INFINITY, "{factors:?}");
}

/// A configuration that ties two matrices does not drop one that the folder has, as in transformers.
#[test]
fn matrices_of_a_folder_with_both_are_not_tied() {
    let folder = copied(&golden_data("blt").join("base"));
    edit_json(&folder.path().join("config.json"), |config| config["tie_word_embeddings"] = true.into());
    let ids = golden("base").ids("s0.ids");
    let options = BoundaryOptions::default();
    let expected = full(&*model("base"), &ids, &options);
    assert!(full(&*load(folder.path(), &settings()).unwrap(), &ids, &options) == expected);
    let to = TempDir::new().unwrap();
    let dest = to.path().join("converted");
    convert(Source::Blt, folder.path(), &dest, false).unwrap();
    assert!(full(&*load(&dest, &settings()).unwrap(), &ids, &options) == expected);
}

/// The digest of a folder without a card covers its table.
#[test]
fn a_text_is_not_decompressed_with_another_table() {
    let folder = copied(&golden_data("blt").join("base"));
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let [text, packed, back] = ["a.txt", "a.weir", "b.txt"].map(path);
    let model = folder.path().to_str().unwrap();
    fs::write(&text, "The town of Weir, é.").unwrap();
    weir(&["compress", "--model", model, &text, &packed]).unwrap();
    weir(&["decompress", "--model", model, &packed, &back]).unwrap();
    assert_eq!(fs::read_to_string(&back).unwrap(), "The town of Weir, é.");
    damage_table(folder.path(), &golden("base").ids("s0.ids"), &[]);
    let message = weir(&["decompress", "--force", "--model", model, &packed, &back]).unwrap_err();
    assert!(message.contains("compressed with the checkpoint with sha256"), "{message}");
}
