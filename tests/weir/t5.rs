//! The T5 family: golden data, the unpooled baseline, beam search, and documents in parts.

use crate::{
    process::weir_json,
    pyramidion::with_document,
    summaries::write_model_with,
    support::{T5_CASES, configured, encode, encoder, forced, read_json, settings, t5_shortened},
    *,
};
use weir::{
    engine::{
        DocumentEvent, DocumentSource, Event,
        beam::{BeamSearch, Hypothesis, SearchOptions, SearchStep},
        constraint::{Constraint, without_limit},
    },
    models::{
        contract::{Document, PoolingChoice, SearchRules},
        family::{parts::EncoderHookPoint, t5::Work},
        nn::{attention::HookPoint, position::Buckets},
    },
};

/// Returns whether a command succeeded, with its output and its messages.
fn weir(args: &[&str]) -> (bool, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_weir")).args(args).env_clear().output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    (output.status.success(), out, err)
}

/// A fixture with its golden data.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) golden: Golden,
    /// `golden.json`
    about: Value,
}

impl Case {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        T5_CASES.into_iter().map(|name| {
            let about = read_json(&golden_data("t5").join(name).join("golden.json"));
            Self { name, golden: Golden::open(&golden_data("t5").join(name)), about }
        })
    }

    /// Returns the names of the sources.
    fn sources(&self) -> Vec<String> {
        let sources = self.about["sources"].as_array().unwrap();
        sources.iter().map(|source| source["name"].as_str().unwrap().to_owned()).collect()
    }
}

/// Returns models for the conformance suite, with a document of their own.
pub(crate) fn shapes() -> Vec<(String, Arc<dyn Model>)> {
    let all = Dtype::ALL.map(|dtype| ("t5_v10", dtype)).into_iter().chain(Dtype::ALL.map(|dtype| ("mrt5", dtype)));
    let document: Vec<u32> = (0..90).map(|index| 3 + index * 7 % 250).collect();
    all.chain([("longt5_tglobal", Dtype::F32)])
        .map(|(case, dtype)| {
            (format!("{case}, {}", dtype.name()), with_document(model_of("t5", case, dtype), document.clone()))
        })
        .collect()
}

/// FIXTURES.md: states, gate values, logits.
const STATES: f32 = 1e-4;

const GATES: f32 = 2e-4;
const LOGITS: f32 = 5e-5;

/// States by the name of their golden tensor.
type Recorded = Arc<Mutex<BTreeMap<String, Vec<f32>>>>;

fn watch(scratch: &mut Scratch) -> Recorded {
    let recorded = Recorded::default();
    let work: &mut Work = work_mut(scratch).unwrap();
    let record = recorded.clone();
    work.hook = Some(Box::new(move |seen, _, x| {
        let name = match seen {
            EncoderHookPoint::Embedded => "enc.state.0".to_owned(),
            EncoderHookPoint::Layer(layer) => format!("enc.state.{}", layer + 1),
            EncoderHookPoint::Encoded => "enc.out".to_owned(),
            other => panic!("{other:?}"),
        };
        record.lock().unwrap().entry(name).or_default().extend_from_slice(x);
    }));
    let record = recorded.clone();
    work.watch_decoder(Box::new(move |seen, layer, _, x| {
        if seen != HookPoint::Layer {
            return;
        }
        record.lock().unwrap().entry(format!("dec.state.{}", layer + 1)).or_default().extend_from_slice(x);
    }));
    recorded
}

fn check_deletion(case: &Case, source: &str, choices: &[PoolingChoice]) {
    if !case.name.starts_with("mrt5") {
        assert!(choices.is_empty());
        return;
    }
    let kept = case.golden.ids(&format!("{source}.gate.kept"));
    let values = case.golden.get(&format!("{source}.gate.values"));
    assert_eq!(choices.len(), 1, "{}", case.name);
    assert_eq!(choices[0].layer, if case.name == "mrt5" { 3 } else { 1 });
    let actual: Vec<u32> = choices[0].kept.iter().map(|kept| kept.token as u32).collect();
    assert_eq!(actual, kept, "{} {source}", case.name);
    for kept in &choices[0].kept {
        assert!((kept.score - values[kept.token]).abs() <= GATES, "{} {source}: {kept:?}", case.name);
    }
}

/// Compares logits with the golden ones, which may be of some rows only.
fn check_logits(case: &Case, source: &str, logits: &[f32]) {
    let name = |part: &str| format!("{source}.{part}");
    if case.golden.has(&name("logits")) {
        let max_error = difference(logits, case.golden.get(&name("logits")));
        assert!(max_error <= LOGITS, "{} {source} logits: {max_error}", case.name);
        return;
    }
    let symbols = case.golden.shape(&name("logits_rows"))[1];
    for (index, row) in case.golden.ids(&name("rows")).into_iter().enumerate() {
        let actual = &logits[row as usize * symbols..][..symbols];
        let max_error = difference(actual, case.golden.row(&name("logits_rows"), index));
        assert!(max_error <= LOGITS, "{} {source} logits after {row}: {max_error}", case.name);
    }
}

fn check(case: &Case, model: &dyn Model) {
    for source in case.sources() {
        let mut scratch = model.scratch();
        let recorded = watch(&mut scratch);
        let document = encode(model, &case.golden.ids(&format!("{source}.ids")), &mut scratch);
        check_deletion(case, &source, &document.choices);
        let logits = forced(model, &document, &case.golden.ids(&format!("{source}.dec_ids")), &mut scratch);
        let mut compared = 0;
        for (name, actual) in recorded.lock().unwrap().iter() {
            let golden = format!("{source}.{name}");
            if case.golden.has(&golden) {
                let max_error = difference(actual, case.golden.get(&golden));
                assert!(max_error <= STATES, "{} {golden}: {max_error}", case.name);
                compared += 1;
            }
        }
        assert!(compared > 0 && document.vectors == case.golden.shape(&format!("{source}.enc.out"))[0]);
        check_logits(case, &source, &logits);
    }
}

#[test]
fn states_deleted_tokens_and_logits_equal_the_golden_data() {
    for case in Case::all() {
        for isa in Isa::all() {
            check(&case, &*load(&checkpoint("t5", case.name), &Settings { isa, ..settings() }).unwrap());
        }
    }
}

#[test]
fn buckets_equal_the_golden_data() {
    let golden = Golden::open(&golden_data("t5/buckets"));
    for (count, max_distance) in [(32, 128), (20, 48)] {
        for (name, bidirectional) in [("bidirectional", true), ("unidirectional", false)] {
            let expected = golden.get(&format!("{name}.{count}.{max_distance}"));
            let buckets = Buckets { count, max_distance, bidirectional };
            // a table of one head whose numbers are the buckets
            let bias: Vec<f32> = (0..count).map(|bucket| bucket as f32).collect();
            let two_sided = bidirectional.then(|| buckets.two_sided_tables(&bias).remove(0));
            for (&distance, &expected) in golden.get("relative_position").iter().zip(expected) {
                let distance = distance as i64;
                let actual = match &two_sided {
                    Some(table) => {
                        let last = max_distance as i64;
                        table[(distance.clamp(-last, last) + last) as usize] as usize
                    }
                    None => buckets.bucket(usize::try_from(-distance).unwrap_or(0)),
                };
                assert_eq!(actual, expected as usize, "{name} {count} {max_distance}: {distance}");
            }
        }
    }
}

fn unpooled() -> Settings {
    Settings { unpooled: true, ..settings() }
}

/// A gate that keeps everything changes nothing, so the unpooled baseline gives the results of such a gate.
#[test]
fn the_unpooled_baseline_gives_the_results_of_a_gate_that_keeps_everything() {
    for case in ["mrt5", "mrt5_plain"] {
        let open = configured(&golden_data("t5").join(case), |config| config["deletion_threshold"] = json!(-10_000.0));
        let baseline = load(&golden_data("t5").join(case), &unpooled()).unwrap();
        let gated = load(&golden_data("t5").join(case), &settings()).unwrap();
        assert_eq!((&baseline.card().sha256, baseline.card().unpooled_baseline), (&gated.card().sha256, true));
        assert!(
            baseline.card().shape.ends_with(", gate off") && !gated.card().unpooled_baseline,
            "{}",
            baseline.card().shape
        );
        assert!(encoder(&*baseline).limits().poolings.is_empty());
        let golden = Golden::open(&golden_data("t5").join(case));
        let tokens = golden.ids("s1.ids");
        let logits = |model: &dyn Model| {
            let mut scratch = model.scratch();
            let document = encode(model, &tokens, &mut scratch);
            (document.vectors, forced(model, &document, &golden.ids("s1.dec_ids"), &mut scratch))
        };
        let (vectors, without) = logits(&*baseline);
        let (kept, all) = logits(&*load(open.path(), &settings()).unwrap());
        assert_eq!((vectors, kept), (tokens.len(), tokens.len()), "{case}");
        assert!(difference(&without, &all) <= 1e-6, "{case}: {}", difference(&without, &all));
        let (vectors, deleted) = logits(&*gated);
        assert!(vectors < tokens.len() && difference(&without, &deleted) > 1e-3, "{case}: the gate deletes");
        let cost = |model: &dyn Model| encoder(model).multiply_adds(tokens.len(), vectors);
        assert!(cost(&*gated) < cost(&*baseline), "{case}: deleted tokens cost nothing");
    }
}

/// The documents' kept shares are as in the golden data.
#[test]
fn documents_are_benchmarked_against_the_unpooled_baseline() {
    let dir = TempDir::new().unwrap();
    let about = read_json(&golden_data("t5/mrt5").join("golden.json"));
    let sources: Vec<_> = about["sources"].as_array().unwrap().iter().take(2).collect();
    let alone = dir.path().join("alone");
    fs::write(&alone, sources[0]["text"].as_str().unwrap()).unwrap();
    let lines = dir.path().join("several.jsonl");
    fs::write(&lines, format!("{}\n\n", json!({ "document": sources[1]["text"], "source": "ignored" }))).unwrap();
    let folder = golden_data("t5/mrt5");
    let [folder, alone, lines] = [&folder, &alone, &lines].map(|path| path.to_str().unwrap());
    let args = ["bench", "documents", folder, alone, lines, "--tokens", "3", "--pairs", "2", "--threads", "1"];
    let found = weir_json(&[&args[..], &["--json"]].concat());
    let found = &found[0];
    assert_eq!((&found["a"]["model"], &found["b"]["model"]), (&json!("mrt5"), &json!("mrt5-unpooled")));
    let documents = found["documents"].as_array().unwrap();
    assert_eq!((&documents[0]["document"], &documents[1]["document"]), (&json!(alone), &json!(format!("{lines}:1"))));
    let mut bytes = [0, 0];
    let mut sums = [0, 0];
    for (document, source) in documents.iter().zip(&sources) {
        let [kept, length] = ["kept", "length"].map(|key| source[key].as_u64().unwrap());
        let [a, b] = ["a", "b"].map(|model| &document[model]);
        assert_eq!((a["tokens"].as_u64(), b["tokens"].as_u64()), (Some(length), Some(length)));
        assert_eq!(a["kept_share"].as_f64().unwrap(), kept as f64 / length as f64);
        assert_eq!(b["kept_share"].as_f64().unwrap(), 1.0);
        // the end mark has no bytes
        assert_eq!((document["bytes"].as_u64(), &document["cut"]), (Some(length - 1), &json!(false)));
        for (sum, cost) in bytes.iter_mut().zip([a, b]) {
            *sum += cost["cross_attention_bytes"].as_u64().unwrap();
            assert!(cost["encode_ns"].as_f64() > Some(0.0) && cost["decode_ns_per_token"].as_f64() > Some(0.0));
        }
        for gain in ["encode_gain", "decode_gain", "total_gain"].map(|gain| &document[gain]) {
            let [low, median, high] = ["p10", "median", "p90"].map(|key| gain[key].as_f64().unwrap());
            assert!(0.0 < low && low <= median && median <= high, "{gain}");
        }
        sums = [sums[0] + kept, sums[1] + length];
    }
    let total = &found["total"];
    let found_bytes = ["a", "b"].map(|model| total[model]["cross_attention_bytes"].as_u64().unwrap());
    assert_eq!(found_bytes, bytes);
    let share = total["a"]["kept_share"].as_f64().unwrap();
    assert!((share - sums[0] as f64 / sums[1] as f64).abs() < 1e-9, "{share}");
    assert_eq!(total["cross_attention_gain"].as_f64().unwrap(), bytes[1] as f64 / bytes[0] as f64);
    assert_eq!(found["median"]["document"], "median document");
    let (ok, table, _) = weir(&args);
    assert!(ok && table.starts_with("A: mrt5, B: mrt5-unpooled, f32, 1 threads; 3 tokens decoded, 2 pairs"), "{table}");
    assert!(
        table.contains("41.7 %") && table.contains("all documents") && table.contains("median document"),
        "{table}"
    );
    // another baseline
    let byt5 = golden_data("t5/byt5");
    let byt5 = byt5.to_str().unwrap();
    let found = weir_json(&[&args[..], &["--json", "--baseline", byt5]].concat());
    assert_eq!(found[0]["b"]["model"], "byt5");
}

#[test]
fn a_server_reports_the_gain_over_the_unpooled_baseline() {
    let folder = golden_data("t5/mrt5");
    let quick = ["--threads", "1", "--calibration-milliseconds", "0"];
    let server = Server::start(&[&quick[..], &["--unpooled-twins", folder.to_str().unwrap()]].concat());
    let address = server.address.to_string();
    let report = |name: &str| weir_json(&["report", &address, "--json", "--name", name])["models"][0].clone();
    assert_eq!(report("mrt5")["twin_gain"]["encode"], json!(null), "nothing was measured");
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("document");
    fs::write(&file, "more will h").unwrap();
    let source = ["summarize", "--json", "--file", file.to_str().unwrap(), "--server", &address];
    let summarize = [&source[..], &["--max-len", "4", "--min-len", "4"]].concat();
    let [gated, baseline] = ["mrt5", "mrt5-unpooled"].map(|model| {
        let mut last = json!(null);
        for _ in 0..8 {
            last = weir_json(&[&summarize[..], &["--model", model]].concat());
        }
        last
    });
    assert_eq!((&gated["timing"]["kept_share"], &baseline["timing"]["kept_share"]), (&json!(5.0 / 12.0), &json!(1.0)));
    let encode = &gated["timing"];
    let layers = encode["layers"].as_array().unwrap().iter().map(|layer| layer["ns"].as_u64().unwrap());
    let all = layers.sum::<u64>() + encode["memory_ns"].as_u64().unwrap();
    assert_eq!(encode["encode_ns"].as_u64().unwrap(), all);
    let [own, other] = ["mrt5", "mrt5-unpooled"].map(report);
    assert_eq!((&other["twin_gain"], &other["summaries"]["requests"]), (&json!(null), &json!(8)));
    let gain = &own["twin_gain"];
    assert_eq!(gain["twin"], "mrt5-unpooled");
    for kind in ["encode", "decode_per_token"] {
        let [low, ratio, high] = ["low", "ratio", "high"].map(|key| gain[kind][key].as_f64().unwrap());
        assert!(0.0 < low && low <= ratio && ratio <= high, "{gain}");
        assert_eq!((&gain[kind]["count"], &gain[kind]["twin_count"]), (&json!(8), &json!(8)));
    }
    let bytes = |report: &Value| report["summaries"]["cross_attention_bytes"].as_f64().unwrap();
    assert!((gain["cross_attention_bytes"].as_f64().unwrap() - bytes(&other) / bytes(&own)).abs() < 1e-9, "{gain}");
    let kept = &own["summaries"]["kept_share"];
    assert_eq!(kept["count"], 8);
    for key in ["mean", "min", "p50", "max"] {
        let share = kept[key].as_f64().unwrap();
        assert!((share - 5.0 / 12.0).abs() < 0.01, "{key}: {kept}");
    }
    assert_eq!(other["summaries"]["kept_share"]["min"].as_f64().map(|share| share > 0.99), Some(true), "{other}");
    let (ok, shown, _) = weir(&["report", &address, "--name", "mrt5"]);
    assert!(
        ok && shown.contains("measured gain over mrt5-unpooled, if both had the same documents: encode "),
        "{shown}"
    );
    assert!(shown.contains("kept share of 8 documents: mean 41."), "{shown}");
    // a call that names no model gets the one that pools; a document that fits has the same figures if it may be read in parts
    let unnamed = weir_json(&[&summarize[..], &["--long-documents", "chunk"]].concat());
    for key in ["kept_share", "cross_attention_bytes", "unpooled_cross_attention_bytes"] {
        assert_eq!(unnamed["timing"][key], gated["timing"][key], "{key}");
    }
    assert_ne!(unnamed["timing"]["encode_ns"], json!(0));
}

/// Returns the best summary of a document, end mark included.
fn summary(engine: &Handle, request: &Summarize, ids: &[u32]) -> Vec<u32> {
    let (upload, arriving) = engine.upload();
    let mut events = engine.summarize(request, DocumentSource::Uploading(arriving), None).unwrap();
    upload.push(ids, &vec![Default::default(); ids.len()]);
    upload.close(false);
    loop {
        if let Event::Document(DocumentEvent::Summarized(summary)) = events.blocking_recv().unwrap().unwrap() {
            return summary.hypotheses.into_iter().next().unwrap().tokens;
        }
    }
}

/// Returns the least number of tokens to insert, remove or replace that turns one text into the other.
fn edits(from: &[u32], to: &[u32]) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (index, token) in from.iter().enumerate() {
        let mut diagonal = index;
        row[0] = index + 1;
        for (column, other) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(token != other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

/// Returns the tokens of the summaries of all fixtures, greedy and of four beams, and how many of them change.
fn changed_tokens(dtype: Dtype) -> (usize, usize) {
    let mut tokens = 0;
    let mut changed = 0;
    for case in Case::all() {
        let [exact, other] = [Dtype::F32, dtype]
            .map(|dtype| Handle::start(model_of("t5", case.name, dtype), Limits::default()).unwrap());
        for beam in [1, 4] {
            let request =
                Summarize { beam: Some(beam), max_tokens: Some(24), min_tokens: Some(0), ..Summarize::default() };
            for source in case.sources() {
                let ids = case.golden.ids(&format!("{source}.ids"));
                let [expected, actual] = [&exact, &other].map(|engine| summary(engine, &request, &ids));
                tokens += expected.len();
                changed += edits(&expected, &actual);
            }
        }
    }
    (tokens, changed)
}

#[test]
fn summaries_in_bf16_and_int8_are_close_to_those_in_f32() {
    assert_eq!(edits(&[1, 2, 3], &[2, 3, 4]), 2);
    for dtype in [Dtype::Bf16, Dtype::Int8] {
        let (tokens, changed) = changed_tokens(dtype);
        assert!(tokens > 700 && changed * 20 < tokens, "{}: {changed} of {tokens} tokens changed", dtype.name());
    }
}

/// Beams of two T5 and of a Pyramidion. One tokenizer has no brackets, which are refused with their position.
#[test]
fn summaries_have_the_form_of_their_constraint() {
    let list = r#"{"type": "array", "items": {"enum": ["on", "off"]}, "minItems": 2, "maxItems": 3}"#;
    let is_list = |text: &str| {
        let list: Vec<String> = serde_json::from_str(text).unwrap();
        (2..=3).contains(&list.len()) && list.iter().all(|word| ["on", "off"].contains(&&**word))
    };
    let is_pair = |text: &str| {
        let (first, second) = text.split_once(' ').unwrap();
        ["the", "a"].contains(&first)
            && (2..=4).contains(&second.len())
            && second.bytes().all(|byte| byte.is_ascii_lowercase())
    };
    let forms: [(Constraint, &dyn Fn(&str) -> bool); 5] = [
        (Constraint::Regex("(the|a) [a-z]{2,4}".into()), &is_pair),
        (Constraint::Choice(vec!["red and blue".into(), "red".into()]), &|text| {
            ["red and blue", "red"].contains(&text)
        }),
        (Constraint::Grammar("start: \"go\" (\" on\")*".into()), &|text| text.replace(" on", "") == "go"),
        (Constraint::JsonSchema(r#"{"enum": ["on", "a b", null]}"#.into()), &|text| {
            ["\"on\"", "\"a b\"", "null"].contains(&text)
        }),
        (Constraint::JsonSchema(list.into()), &is_list),
    ];
    let folder = TempDir::new().unwrap();
    let pyramidion = load(Path::new(&write_model_with(folder.path(), "\"[]")), &settings()).unwrap();
    let cases = Case::all().filter(|case| ["t5_v10", "byt5"].contains(&case.name)).map(|case| {
        let documents = case.sources().iter().map(|source| case.golden.ids(&format!("{source}.ids"))).collect();
        (case.name, model_of("t5", case.name, Dtype::F32), documents)
    });
    let documents: Vec<Vec<u32>> = (0..6).map(|id| (0..40).map(|at| 4 + (at * (id + 3) + id) % 30).collect()).collect();
    for (name, model, documents) in cases.chain([("pyramidion", pyramidion, documents)]) {
        let vocabulary = Arc::clone(&model.card().vocabulary);
        let limits = Limits { document_bytes: 1 << 20, ..Limits::default() };
        let engine = Handle::start(model, limits).unwrap();
        let end = engine.document_limits().unwrap().marks.end;
        for (constraint, has_form) in &forms {
            let compiled = match engine.compile("", constraint, without_limit) {
                Err(error) if name == "t5_v10" && error.to_string().contains("allows only \"[\" at position 0") => {
                    continue;
                }
                compiled => compiled.unwrap(),
            };
            let mut ended = 0;
            for (beam, sampled) in [(1, false), (4, false), (3, true)] {
                let sampling = sampled.then(|| Sampling { seed: 5, ..Sampling::default() });
                let request = Summarize {
                    beam: Some(beam),
                    max_tokens: Some(24),
                    min_tokens: Some(0),
                    sampling,
                    constraint: Some(Arc::clone(&compiled)),
                    ..Summarize::default()
                };
                for document in &documents {
                    let mut tokens = summary(&engine, &request, document);
                    if tokens.pop_if(|token| *token == end).is_some() {
                        let text = vocabulary.decode(&tokens);
                        assert!(has_form(&text), "{name}, {constraint:?}, {beam} beams: {text:?}");
                        ended += 1;
                    }
                }
            }
            assert!(ended > 0, "{name}, {constraint:?}");
        }
    }
}

const SCORES: f32 = 1e-5;

/// Returns the options for settings in the names of transformers.
fn options(settings: &Value) -> SearchOptions {
    let number = |key: &str| settings[key].as_u64().map(|number| number as usize);
    let float = |key: &str| settings[key].as_f64().unwrap_or(1.0) as f32;
    // lengths in total count the start symbol
    let length = |new: &str, total: &str| number(new).or(number(total).map(|total| total - 1));
    SearchOptions {
        beam: number("num_beams").unwrap(),
        length_penalty: float("length_penalty"),
        min_tokens: length("min_new_tokens", "min_length").unwrap_or(0),
        max_tokens: length("max_new_tokens", "max_length").unwrap(),
        no_repeat_ngram: number("no_repeat_ngram_size").unwrap_or(0),
        rules: SearchRules::Transformers,
        early_stopping: match &settings["early_stopping"] {
            Value::Null => Default::default(),
            other => serde_json::from_value(other.clone()).unwrap(),
        },
        repetition_penalty: float("repetition_penalty"),
        sampling: None,
    }
}

/// Runs a search on rows of the model.
fn search(model: &dyn Model, document: &Document, options: SearchOptions) -> Vec<Hypothesis> {
    let marks = encoder(model).limits().marks;
    let mut search = BeamSearch::new(options, marks, model.card().vocabulary.len());
    let mut scratch = model.scratch();
    let mut rows = vec![SequenceRow::new(encoder(model).begin(document).unwrap())];
    rows[0].set(&[marks.start], Want::Last);
    loop {
        let all: Vec<usize> = (0..rows.len()).collect();
        advance(model, &mut rows, &all, &mut scratch).unwrap();
        match search.advance(rows.iter().map(|row| row.logits.as_slice())).unwrap() {
            SearchStep::Done => return search.finished().to_vec(),
            SearchStep::Continue(moves) => {
                let next = |step: &weir::engine::beam::RowMove| {
                    let mut row = SequenceRow::new(rows[step.parent].state.fork());
                    row.set(&[step.token], Want::Last);
                    row
                };
                rows = moves.iter().map(next).collect();
            }
        }
    }
}

#[test]
fn texts_and_scores_equal_those_of_transformers() {
    for case in Case::all() {
        let model = model_of("t5", case.name, Dtype::F32);
        let mut compared = 0;
        for source in case.sources() {
            let document = encode(&*model, &case.golden.ids(&format!("{source}.ids")), &mut model.scratch());
            for (name, settings) in case.about["settings"].as_object().unwrap() {
                let key = |part: &str| format!("{source}.{name}.{part}");
                // forced tokens are not supported
                if name == "forced" || !case.golden.has(&key("ids")) {
                    continue;
                }
                let hypotheses = search(&*model, &document, options(settings));
                let lengths = case.golden.ids(&key("lengths"));
                assert_eq!(hypotheses.len(), lengths.len(), "{} {source} {name}", case.name);
                for (index, (hypothesis, &length)) in hypotheses.iter().zip(&lengths).enumerate() {
                    let ids = case.golden.row(&key("ids"), index);
                    let ids: Vec<u32> = ids[..length as usize].iter().map(|&id| id as u32).collect();
                    assert_eq!(hypothesis.tokens, ids, "{} {source} {name} {index}", case.name);
                    if case.golden.has(&key("scores")) {
                        let expected = case.golden.get(&key("scores"))[index];
                        let error = (hypothesis.score - expected).abs();
                        assert!(error <= SCORES, "{} {source} {name} {index}: {error}", case.name);
                    }
                    compared += 1;
                }
            }
        }
        assert!(compared >= 8, "{}: {compared}", case.name);
    }
}

const TEXT: &str = "The river runs past the mill. It turns the wheel, and the wheel turns the stone. The stone grinds corn. \
    The miller sells the flour in the town. The town lies on a hill above the river.";

/// `wire/summaries.rs` checks the parts themselves.
#[test]
fn parts_are_summarized_in_this_process_and_by_a_server() {
    let model = t5_shortened(24);
    let model = model.path().to_str().unwrap();
    let folder = TempDir::new().unwrap();
    let write = |name: &str, text: &str| {
        fs::write(folder.path().join(name), text).unwrap();
        folder.path().join(name).to_str().unwrap().to_owned()
    };
    let document = write("document", TEXT);
    let base = ["summarize", "--model", model, "--max-len", "4", "--min-len", "0", "--beam", "1", "--json", "--file"];
    let in_parts = |file: &str| weir_json(&[&base[..], &[file, "--long-documents", "chunk"]].concat());
    let whole = in_parts(&document);
    let parts = whole["parts"].as_array().unwrap();
    assert!(parts.iter().all(|part| part["part"].as_u64() > Some(0) && part["round_bytes"].as_u64() > Some(0)));
    assert!(parts.iter().filter(|part| part["round"] == 1).count() > 2, "{whole}");
    // a document that fits has no parts
    let short = write("short", "The river runs.");
    let fits = in_parts(&short);
    assert!(fits.get("parts").is_none() && fits["ids"] == weir_json(&[&base[..], &[&short]].concat())["ids"]);
    // the same from a server
    let server =
        Server::start(&["--threads", "1", "--calibration-milliseconds", "0", "--model", &format!("short={model}")]);
    let address = server.address.to_string();
    let call = ["summarize", "--server", &address, "--max-len", "4", "--min-len", "0", "--beam", "1", "--json"];
    let served = weir_json(&[&call[..], &["--file", &document, "--long-documents", "chunk"]].concat());
    assert_eq!((&served["text"], &served["parts"]), (&whole["text"], &whole["parts"]));
    for key in ["document_tokens", "summary_tokens", "document_bytes", "cut"] {
        assert_eq!(served["usage"][key], whole["usage"][key], "{key}");
    }
    assert_eq!(whole["usage"]["document_bytes"], TEXT.len());
    let (ok, _, message) = weir(&[&call[..9], &["--file", &document, "--long-documents", "chunk"]].concat());
    assert!(ok && message.contains("summarized part 2 of round 1"), "{message}");
    let long = write("long", &"A river. ".repeat(2000));
    let (ok, _, message) = weir(&[&call[..], &["--file", &long, "--long-documents", "chunk"]].concat());
    assert!(!ok && message.contains("found about ") && message.contains("at most 64"), "{message}");
}
