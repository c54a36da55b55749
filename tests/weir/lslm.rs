//! Latent segment models: golden data, generated text, replayed traces, and the command line.

use crate::{support::settings, *};
use weir::engine::Event;
use weir::engine::cache::{Capacity, Key, SegmentCache};
use weir::kernels::distribution::log_probability;
use weir::models::contract::{self, state_ref};
use weir::models::family::lslm::{LslmStage, LslmState, Work};
use weir::models::load;
use weir::models::text::SpecialSymbols;

/// FIXTURES.md: h, s, s_ctx, boundary logits; logits and log-probabilities.
const STAGES: f32 = 1e-4;

pub(crate) const LOGITS: f32 = 3e-4;

/// A fixture with its golden data and its model.
struct Case {
    name: &'static str,
    golden: Golden,
    model: Arc<dyn Model>,
}

impl Case {
    fn load(name: &'static str) -> Self {
        Self { name, golden: Golden::open(&golden_data("lslm").join(name)), model: model_of("lslm", name, Dtype::F32) }
    }

    fn all() -> impl Iterator<Item = Self> {
        LSLM_CASES.into_iter().map(Self::load)
    }

    fn specials(&self) -> SpecialSymbols {
        self.model.card().vocabulary.specials().unwrap()
    }

    fn first_logits(&self) -> &[f32] {
        self.model.card().first_logits.as_ref().unwrap()
    }

    /// Returns a text's steps in the order of the golden data.
    fn steps<'a>(&'a self, logits: &'a [f32], marks: &[SymbolBoundary]) -> Vec<Step<'a>> {
        let symbols = self.model.card().vocabulary.len();
        let mut steps = vec![Step::Logits(self.first_logits())];
        for (logits, mark) in logits.chunks(symbols).zip(marks) {
            if mark.boundary {
                steps.push(Step::Ends(mark.end_logprob.expect("all logits were requested")));
            }
            steps.push(Step::Logits(logits));
        }
        steps
    }
}

/// A step of the segment decoder.
enum Step<'a> {
    /// Logits for the next symbol.
    Logits(&'a [f32]),
    /// ln p of the symbol that ends a segment.
    Ends(f32),
}

fn stack(layers: usize, dim: usize, heads: usize, head_dim: usize) -> Value {
    json!({
        "layers": layers, "dim": dim, "heads": heads, "head_dim": head_dim, "feed_forward": 2 * dim + 3, "buckets": 10,
        "max_distance": 23, "bidirectional_buckets": false,
    })
}

fn config(vocabulary: Value, token: Value, context: Value, decoder: Value, extra: &[(&str, Value)]) -> Value {
    let mut architecture = json!({
        "token": token, "context": context, "decoder": decoder, "norm_eps": 1e-3, "pooling": {"hops": 2},
        "boundaries": {"kind": "learned", "hidden": 13, "threshold": 0.4}, "widths": "equal",
        "shared_embedding": false, "tied_head": false, "driver": "predictor",
    });
    for (key, value) in extra {
        architecture[*key] = value.clone();
    }
    json!({
        "format": "weir/1", "family": "lslm", "vocabulary": vocabulary, "normaliser": "none", "training_length": 64,
        "architecture": architecture,
    })
}

fn letters() -> Value {
    json!({
        "symbols": ["a", "<nxt>", "b", "語", "<BoS>", "é", "\n", "<oov>", "c", "<eos>", " ", "<bos>"],
        "specials": {"start": 4, "end": 9, "segment_start": 11, "segment_end": 1, "unknown": 7},
    })
}

/// Returns the shapes and their checkpoints with random weights.
pub(crate) fn shapes() -> &'static [(&'static str, PathBuf)] {
    static ALL: LazyLock<(TempDir, Vec<(&str, PathBuf)>)> = LazyLock::new(|| {
        let root = TempDir::new().unwrap();
        let bytes = json!({
            "bytes": true, "first_byte": 2,
            "specials": {"start": 260, "end": 0, "segment_start": 1, "segment_end": 259, "unknown": 258},
        });
        let mut both = stack(2, 20, 3, 5);
        both["bidirectional_buckets"] = json!(true);
        let configs = [
            (
                "scattered",
                config(
                    letters(),
                    stack(2, 20, 3, 5),
                    stack(1, 20, 2, 7),
                    stack(2, 12, 3, 6),
                    &[("tied_head", json!(true))],
                ),
            ),
            (
                "bytes",
                config(
                    bytes,
                    both,
                    stack(2, 28, 4, 6),
                    stack(1, 20, 3, 4),
                    &[("widths", json!("first-layer")), ("shared_embedding", json!(true)), ("pooling", json!("mean"))],
                ),
            ),
            (
                "projected",
                config(
                    letters(),
                    stack(1, 12, 1, 9),
                    stack(2, 20, 5, 3),
                    stack(2, 20, 2, 9),
                    &[("widths", json!("projection"))],
                ),
            ),
        ];
        let write = |(name, config): (&'static str, Value)| {
            let file = root.path().join(format!("{name}.json"));
            let to = root.path().join(name);
            fs::write(&file, config.to_string()).unwrap();
            // Some random predictors decide the same for every symbol.
            let mixed = |seed: &u64| {
                load::init(&file, &to, *seed, true).unwrap();
                let model = load(&to, &settings()).unwrap();
                let shares = (1..4).map(|seed| {
                    let (_, marks) = full(&*model, &text(&*model, seed), &BoundaryOptions::default());
                    marks.iter().filter(|mark| mark.boundary).count() * 100 / marks.len()
                });
                shares.into_iter().all(|share| (10..=80).contains(&share))
            };
            assert!((1..100).any(|seed| mixed(&seed)), "{name}");
            (name, to)
        };
        let folders = configs.into_iter().map(write).collect();
        (root, folders)
    });
    &ALL.1
}

/// Returns a random text of the model's symbols.
fn text(model: &dyn Model, seed: u64) -> Vec<u32> {
    text_symbols(model, &Random::new(seed).text(60, model.card().vocabulary.len()))
}

/// Compares all steps of a text with the golden ones.
fn compare(case: &Case, steps: &[Step<'_>], name: &str, targets: &[f32]) {
    let context = |index: usize| format!("{}: {name}, step {index}", case.name);
    for (index, step) in steps.iter().enumerate() {
        match step {
            Step::Logits(logits) => {
                let max_error = difference(logits, case.golden.row(name, index));
                assert!(max_error <= LOGITS, "{}: {max_error}", context(index));
            }
            Step::Ends(logprob) => {
                let error = (logprob - targets[index]).abs();
                assert!(error <= LOGITS, "{}: {error}", context(index));
            }
        }
    }
}

/// Returns ln p of the symbol that ends segments, computed from golden logits.
fn nxt_logprobs(case: &Case, name: &str, count: usize) -> Vec<f32> {
    let nxt = case.specials().segment_end;
    (0..count).map(|index| log_probability(case.golden.row(name, index), nxt).unwrap() as f32).collect()
}

/// Returns the boundaries as numbers, including the one of the start symbol.
fn cuts(marks: &[SymbolBoundary]) -> Vec<f32> {
    std::iter::once(1.0).chain(marks.iter().map(|mark| f32::from(u8::from(mark.boundary)))).collect()
}

/// Returns a golden text without its special symbols.
fn golden_text(case: &Case, name: &str) -> Vec<u32> {
    let ids = case.golden.ids(name);
    let specials = case.specials();
    assert_eq!(ids[0], specials.start);
    ids.into_iter().skip(1).filter(|&id| id != specials.end).collect()
}

#[test]
fn logits_boundaries_and_end_logprobs() {
    let load = |name, isa| load(&checkpoint("lslm", name), &Settings { isa, ..settings() }).unwrap();
    for (name, isa) in LSLM_CASES.into_iter().flat_map(|name| Isa::all().into_iter().map(move |isa| (name, isa))) {
        let case = Case { model: load(name, isa), ..Case::load(name) };
        let text = golden_text(&case, "ids");
        let (logits, marks) = full(&*case.model, &text, &BoundaryOptions::default());
        let mut alone = Alone::new(&*case.model, BoundaryOptions::default());
        let (stepped, stepped_marks): (Vec<_>, Vec<_>) = text.iter().map(|&id| alone.feed(&[id])).unzip();
        assert!(stepped.concat() == logits && stepped_marks.concat() == marks, "{}", case.name);
        assert_eq!(cuts(&marks), case.golden.get("z"), "{}", case.name);
        let steps = case.steps(&logits, &marks);
        let targets = case.golden.ids("dec.target_ids");
        assert_eq!(steps.len(), targets.len(), "{}", case.name);
        let nxt = case.specials().segment_end;
        for (step, target) in steps.iter().zip(targets) {
            assert_eq!(matches!(step, Step::Ends(_)), target == nxt);
        }
        compare(&case, &steps, "dec.logits", case.golden.get("dec.target_logprobs"));
        assert!(
            difference(case.first_logits(), case.golden.row("gen.empty.nxt.first_logits", 0)) <= LOGITS,
            "{}",
            case.name
        );
        for (mark, expected) in marks.iter().zip(&case.golden.get("boundary_probs")[1..]) {
            assert!((mark.probability.unwrap() - expected).abs() < STAGES, "{}", case.name);
        }
    }
}

#[test]
fn every_stage_between() {
    for case in Case::all() {
        let text = golden_text(&case, "ids");
        let seen: Arc<Mutex<Vec<(LslmStage, usize, Vec<f32>)>>> = Arc::default();
        let mut alone = Alone::new(&*case.model, BoundaryOptions::default());
        let record = seen.clone();
        work_mut::<Work>(&mut alone.scratch).unwrap().watcher = Some(Box::new(move |stage, position, numbers| {
            record.lock().unwrap().push((stage, position.index, numbers.to_vec()));
        }));
        // The text is fed in chunks, so that some segments straddle two chunks.
        text.chunks(41).for_each(|piece| drop(alone.feed(piece)));
        let check = |stage: LslmStage, name: &str| {
            let mut actual: Vec<_> = seen.lock().unwrap().iter().filter(|entry| entry.0 == stage).cloned().collect();
            actual.sort_by_key(|entry| entry.1);
            let flat: Vec<f32> = actual.iter().flat_map(|entry| entry.2.clone()).collect();
            // Position 0 is the start symbol, which is computed when the model is loaded.
            let width = flat.len() / actual.len();
            let max_error = difference(&flat, &case.golden.get(name)[width..]);
            assert!(max_error <= STAGES, "{} {name}: {max_error}", case.name);
        };
        check(LslmStage::Token, "h");
        check(LslmStage::Boundary, "boundary_logits");
        check(LslmStage::Pooled, "s");
        check(LslmStage::Context, "s_ctx");
        let state: &LslmState = state_ref(&*alone.rows[0].state).unwrap();
        let start = state.token.output(0);
        assert!(difference(start, &case.golden.get("h")[..start.len()]) <= STAGES);
    }
}

#[test]
fn longer_than_the_largest_distance() {
    for case in Case::all() {
        let text = golden_text(&case, "long.ids");
        let (logits, marks) = full(&*case.model, &text, &BoundaryOptions::default());
        assert_eq!(cuts(&marks), case.golden.get("long.z"), "{}", case.name);
        let steps = case.steps(&logits, &marks);
        let targets = case.golden.get("long.target_logprobs");
        assert_eq!(steps.len(), targets.len());
        let mut symbols = text.iter();
        for (index, (step, target)) in steps.iter().zip(targets).enumerate().take(targets.len() - 1) {
            let logprob = match step {
                Step::Ends(logprob) => *logprob,
                Step::Logits(logits) => log_probability(logits, *symbols.next().unwrap()).unwrap() as f32,
            };
            assert!((logprob - target).abs() <= LOGITS, "{} step {index}: {logprob} {target}", case.name);
        }
        for (row, index) in case.golden.ids("long.rows").into_iter().enumerate() {
            if let Step::Logits(logits) = steps[index as usize] {
                assert!(difference(logits, case.golden.row("long.logits", row)) <= LOGITS, "{} {index}", case.name);
            }
        }
    }
}

/// Boundaries from a trace: one segment per symbol, and one segment that stays open.
#[test]
fn given_boundaries() {
    for case in Case::all() {
        for name in ["forced_ones", "forced_zeros"] {
            let z = case.golden.get(&format!("{name}.z"));
            let text = golden_text(&case, &format!("{name}.ids"));
            let items: Vec<u32> = text.iter().zip(&z[1..]).map(|(&id, &z)| contract::item(id, z == 1.0)).collect();
            let (logits, marks) = full(&*case.model, &items, &BoundaryOptions::default());
            assert_eq!(cuts(&marks), z, "{} {name}", case.name);
            let steps = case.steps(&logits, &marks);
            let name = format!("{name}.logits");
            compare(&case, &steps, &name, &nxt_logprobs(&case, &name, steps.len()));
        }
    }
}

/// Weights in fewer bits change the logits slightly when the boundaries are fixed. The limits are twice the measured
/// differences.
#[test]
fn fewer_bits_stay_near() {
    for (dtype, limit) in [(Dtype::Bf16, 0.36), (Dtype::Int8, 1.6)] {
        let mut worst = 0f32;
        for case in Case::all() {
            let model = model_of("lslm", case.name, dtype);
            let z = case.golden.get("z");
            let text = golden_text(&case, "ids");
            let items: Vec<u32> = text.iter().zip(&z[1..]).map(|(&id, &z)| contract::item(id, z == 1.0)).collect();
            let (exact, _) = full(&*case.model, &items, &BoundaryOptions::default());
            let (near, _) = full(&*model, &items, &BoundaryOptions::default());
            worst = worst.max(difference(&exact, &near));
        }
        assert!(worst <= limit && worst > LOGITS, "{dtype:?}: {worst}");
    }
}

fn greedy(prompt: &[u32], max_chars: usize, mode: BoundaryMode) -> Generate {
    Generate {
        prompt: prompt.to_vec(),
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        stopping: Stopping { max_chars, ..Stopping::default() },
        details: Details { boundaries: true, echo: true, ..Details::default() },
        boundaries: BoundaryOptions { mode: Some(mode), ..BoundaryOptions::default() },
        ..Generate::default()
    }
}

fn run(engine: &Handle, job: Generate) -> (Vec<EmittedSymbol>, FinishReason, Usage) {
    let mut events = engine.submit(Job::Generate(job), None).unwrap();
    let mut emitted = Vec::new();
    loop {
        match events.blocking_recv().unwrap().unwrap() {
            Event::Started { .. } | Event::Coding(_) | Event::Coded(_) | Event::Next(_) | Event::Document(_) => {}
            Event::Characters(characters) => emitted.extend(characters),
            Event::Finished { reason, usage, .. } => return (emitted, reason, usage),
        }
    }
}

#[test]
fn greedy_texts_equal_the_golden_data() {
    for case in Case::all() {
        let engine = Handle::start(case.model.clone(), Limits { rows: 2, ..Limits::default() }).unwrap();
        let specials = case.specials();
        for prompt in ["open", "closed", "empty", "eos"] {
            for (name, mode) in [("nxt", BoundaryMode::Nxt), ("predictor", BoundaryMode::Predictor)] {
                let name = format!("gen.{prompt}.{name}");
                if !case.golden.has(&format!("{name}.events")) {
                    continue;
                }
                let prompt_ids = &case.golden.ids(&format!("{name}.prompt_ids"))[1..];
                let text = case.golden.ids(&format!("{name}.text_ids"));
                let ends = text.last() == Some(&specials.end);
                let (emitted, reason, usage) = run(&engine, greedy(prompt_ids, text.len() + usize::from(ends), mode));
                let context = format!("{} {name}", case.name);
                assert_eq!(reason, if ends { FinishReason::EndOfText } else { FinishReason::MaxChars }, "{context}");
                let (echo, answer) = emitted.split_at(prompt_ids.len());
                assert_eq!(answer.iter().map(|character| character.symbol).collect::<Vec<_>>(), text, "{context}");
                let cuts: Vec<f32> = std::iter::once(1.0)
                    .chain(
                        echo.iter()
                            .chain(answer)
                            .filter_map(|character| character.decision)
                            .map(|decision| f32::from(u8::from(decision.boundary))),
                    )
                    .collect();
                assert_eq!(cuts, case.golden.get(&format!("{name}.z")), "{context}");
                let events = case.golden.ids(&format!("{name}.events"));
                let nxt = events.iter().filter(|&&event| event == specials.segment_end).count();
                assert_eq!(
                    (usage.nxt_steps, usage.generated_chars),
                    (nxt, text.len() - usize::from(ends)),
                    "{context}"
                );
                let closed = cuts[1 + prompt_ids.len()..].iter().filter(|&&cut| cut == 1.0).count();
                assert_eq!(usage.generated_segments, closed, "{context}");
            }
        }
        drop(engine);
        assert_eq!(case.model.memory().in_use, 0, "{}", case.name);
    }
}

/// At any seed, sampling never emits a special symbol or an empty segment.
#[test]
fn sampled_texts_have_only_text_symbols_and_no_empty_segment() {
    for case in Case::all() {
        let engine = Handle::start(case.model.clone(), Limits::default()).unwrap();
        let specials = case.specials();
        for seed in 0..12 {
            for mode in [BoundaryMode::Nxt, BoundaryMode::Predictor] {
                let mut job = greedy(&[], 80, mode);
                job.sampling = Sampling { temperature: 3.0, seed, ..Sampling::default() };
                job.stopping.ignore_end = seed % 2 == 0;
                let (emitted, reason, usage) = run(&engine, job.clone());
                let ended = reason == FinishReason::EndOfText;
                assert!(!(ended && job.stopping.ignore_end), "{}", case.name);
                let symbols = &emitted[..emitted.len() - usize::from(ended)];
                assert!(symbols.iter().all(|character| !specials.contains(character.symbol)), "{}", case.name);
                assert_eq!(symbols.len(), usage.generated_chars);
                assert!(usage.nxt_steps <= usage.generated_chars, "{}: a segment has a symbol", case.name);
                assert_eq!(usage.nxt_steps, if mode == BoundaryMode::Nxt { usage.generated_segments } else { 0 });
                // A draw depends only on the seed and its position.
                let again = run(&engine, job);
                assert_eq!((emitted, reason, usage.generated_chars), (again.0, again.1, again.2.generated_chars));
            }
        }
    }
}

#[test]
fn min_chars_and_max_segments_control_the_end() {
    let case = Case::load("hops0");
    let engine = Handle::start(case.model.clone(), Limits::default()).unwrap();
    let prompt_ids = case.golden.ids("gen.eos.nxt.prompt_ids");
    let mut job = greedy(&prompt_ids[1..], 40, BoundaryMode::Nxt);
    assert_eq!(run(&engine, job.clone()).1, FinishReason::EndOfText);
    job.stopping.min_chars = 30;
    let (_, _, usage) = run(&engine, job.clone());
    assert!(usage.generated_chars >= 30, "{usage:?}");
    job.stopping = Stopping { max_segments: Some(3), ignore_end: true, min_chars: 0, ..job.stopping };
    let (emitted, reason, usage) = run(&engine, job);
    assert_eq!((reason, usage.generated_segments), (FinishReason::MaxSegments, 3));
    assert!(emitted.last().unwrap().decision.unwrap().boundary, "the text ends at a segment's end");
}

/// Generating and scoring a text report the same log-probabilities and boundary decisions.
#[test]
fn generating_and_scoring_report_the_same_details() {
    for case in Case::all() {
        let mut job = greedy(&[], 40, BoundaryMode::Predictor);
        job.details = Details { logprobs: true, boundaries: true, ..Details::default() };
        let mut generated = Vec::new();
        let emit = &mut |characters: Vec<EmittedSymbol>| {
            generated.extend(characters);
            Ok(())
        };
        Session::generate(job, case.model.card()).unwrap().run(&*case.model, 64, emit).unwrap();
        let text: Vec<u32> = generated.iter().map(|character| character.symbol).collect();
        let text = text.strip_suffix(&[case.specials().end]).unwrap_or(&text);
        let score = Score { symbols: text.to_vec(), logprobs: true, ..Score::default() };
        let mut scored = Vec::new();
        let emit = &mut |characters: Vec<EmittedSymbol>| {
            scored.extend(characters);
            Ok(())
        };
        Session::score(score, case.model.card()).unwrap().run(&*case.model, 7, emit).unwrap();
        for (generated, scored) in generated.iter().zip(&scored) {
            assert_eq!((generated.symbol, generated.logprob), (scored.symbol, scored.logprob), "{}", case.name);
            let generated = generated.decision.unwrap();
            let scored = scored.decision.unwrap();
            assert_eq!(
                (generated.boundary, generated.probability),
                (scored.boundary, scored.probability),
                "{}",
                case.name
            );
            assert_eq!(scored.end_logprob.is_some(), scored.boundary, "{}", case.name);
        }
        assert!(scored[0].logprob.is_some(), "{}: the first symbol has a probability", case.name);
    }
}

const MODE: BoundaryOptions =
    BoundaryOptions { mode: Some(BoundaryMode::Nxt), noise: Noise::Seeded(0), offset: 0, threshold: None };

/// Generates in the mode `nxt` and calls `each` after every step. Returns the final session and row.
fn write(
    case: &Case,
    prompt: &[u32],
    seed: u64,
    each: &mut dyn FnMut(&Session, &SequenceRow),
) -> (Session, SequenceRow) {
    let mut request = greedy(prompt, 60, BoundaryMode::Nxt);
    request.sampling = Sampling { temperature: if seed == 0 { 0.0 } else { 1.5 }, seed, ..Sampling::default() };
    request.stopping.ignore_end = true;
    request.details.echo = false;
    let mut session = Session::generate(request, case.model.card()).unwrap();
    let mut rows = [SequenceRow::new(case.model.begin(MODE).unwrap())];
    let mut scratch = case.model.scratch();
    loop {
        session.feed(&mut rows[0], 9);
        advance(&*case.model, &mut rows, &[0], &mut scratch).unwrap();
        let progress = session.absorb(&mut rows[0]).unwrap();
        each(&session, &rows[0]);
        if let SessionProgress::Finished(_) = progress {
            let [row] = rows;
            return (session, row);
        }
    }
}

/// Returns the logits after one more symbol.
fn next(case: &Case, row: SequenceRow, symbol: u32) -> Vec<f32> {
    Alone::from(&*case.model, row).feed(&[symbol]).0
}

fn prompt(case: &Case) -> Vec<u32> {
    case.golden.ids("gen.open.nxt.prompt_ids")[1..].to_vec()
}

/// Replays a trace in chunks of `size` items.
fn replay(case: &Case, items: &[u32], size: usize) -> SequenceRow {
    let mut rows = [SequenceRow::new(case.model.begin(MODE).unwrap())];
    for piece in items.chunks(size.max(1)) {
        rows[0].set(piece, Want::Nothing);
        advance(&*case.model, &mut rows, &[0], &mut case.model.scratch()).unwrap();
    }
    let [row] = rows;
    row
}

#[test]
fn a_trace_reproduces_the_state() {
    for case in Case::all() {
        let any = prompt(&case)[0];
        for seed in 0..4 {
            let prompt = if seed == 0 { Vec::new() } else { prompt(&case) };
            let (session, row) = write(&case, &prompt, seed, &mut |_, _| {});
            let items = session.text().after(0).unwrap().to_vec();
            assert_eq!(items.len(), row.state.len());
            let segments = row.state.segments();
            let expected = next(&case, row, any);
            for size in [1, 7, items.len()] {
                let again = replay(&case, &items, size);
                assert_eq!(again.state.segments(), segments, "{}", case.name);
                assert!(next(&case, again, any) == expected, "{} by {size}", case.name);
            }
        }
        assert_eq!(case.model.memory().in_use, 0);
    }
}

#[test]
fn the_predictor_segments_generated_text_again() {
    let mut differ = 0;
    let mut shared = 0;
    for case in Case::all() {
        for seed in 0..6 {
            let mut cache = SegmentCache::new(Capacity::with_bytes(1 << 30));
            let key = Key::for_sequence(&"".into(), &MODE, case.model.card()).unwrap();
            let (session, row) = write(&case, &prompt(&case), seed, &mut |session, row| {
                let plain = session.text().after(0).unwrap().take(row.state.agreed());
                assert!(plain.iter().all(|item| contract::ends_segment(item).is_none()), "{}", case.name);
            });
            let items = session.text().after(0).unwrap().to_vec();
            cache.keep(&key, &items, &*row.state).unwrap();
            let text: Vec<u32> = items.iter().map(|&item| contract::symbol(item)).collect();
            let (cold, marks) = full(&*case.model, &text, &MODE);
            let differs = |&position: &usize| {
                contract::ends_segment(items[position]).is_some_and(|ends| ends != marks[position].boundary)
            };
            let first = (0..text.len()).find(differs);
            differ += usize::from(first.is_some());
            let hit = cache.find(&key, &text[..text.len() - 1]).unwrap();
            let from = hit.as_ref().map_or(0, |hit| hit.len);
            assert!(from <= first.unwrap_or(text.len()), "{} {seed}: from {from}, {first:?} differs", case.name);
            shared += usize::from(from > 0);
            let mut alone = match hit {
                Some(hit) => Alone::from(&*case.model, SequenceRow::new(hit.state)),
                None => Alone::new(&*case.model, MODE),
            };
            let symbols = case.model.card().vocabulary.len();
            let actual = alone.feed(&text[from..]);
            assert!(
                actual.0 == cold[from * symbols..] && actual.1 == marks[from..],
                "{} {seed} from {from}",
                case.name
            );
        }
    }
    // The test needs texts on which the modes differ.
    assert!(differ > 5 && shared > 5, "{differ} {shared}");
}

/// A state agrees with the predictor up to the end of the last segment before the first different boundary.
#[test]
fn agreement_ends_at_the_first_different_boundary() {
    for case in Case::all() {
        let text = &case.golden.ids("long.ids")[1..120];
        let (_, marks) = full(&*case.model, text, &MODE);
        let ends: Vec<usize> = (0..text.len()).filter(|&position| marks[position].boundary).collect();
        for difference in (0..text.len()).step_by(7) {
            let cut = |position: usize| marks[position].boundary != (position == difference);
            let items: Vec<u32> =
                (0..text.len()).map(|position| contract::item(text[position], cut(position))).collect();
            let before = ends.iter().filter(|&&end| end < difference).max().map_or(0, |end| end + 1);
            for size in [1, 10, items.len()] {
                let row = replay(&case, &items, size);
                assert_eq!(row.state.agreed(), before, "{} differs at {difference}, by {size}", case.name);
            }
            // After a rollback to the difference, text with the predictor's boundaries agrees to its end.
            let mut alone = Alone::from(&*case.model, replay(&case, &items, 50));
            alone.rows[0].state.rollback(difference).unwrap();
            alone.feed(&text[difference..]);
            let agreed = ends.last().map_or(0, |end| end + 1);
            assert_eq!(alone.rows[0].state.agreed(), agreed, "{} after {difference}", case.name);
        }
    }
}

#[test]
fn a_fork_of_a_row_in_flight_has_its_previous_state() {
    for case in Case::all() {
        let any = prompt(&case)[0];
        // The text ends in an open segment and is fed with its boundaries.
        let mut items: Vec<u32> = prompt(&case);
        items.extend([any, any, any].map(|symbol| contract::item(symbol, false)));
        let mut rows = [replay(&case, &items, 100)];
        let model = &*case.model;
        let mut scratch = model.scratch();
        let before = next(&case, SequenceRow::new(rows[0].state.fork()), any);
        rows[0].set(&[contract::END], Want::Last);
        model.symbol_step(&mut rows, &[0], &mut scratch).unwrap();
        assert_eq!(rows[0].status, StepStatus::Waiting);
        assert!(rows[0].state.rollback(0).is_err(), "{}: in flight", case.name);
        assert!(next(&case, SequenceRow::new(rows[0].state.fork()), any) == before, "{}", case.name);
        model.segment_step(&mut rows, &[0], &mut scratch).unwrap();
        assert!(next(&case, SequenceRow::new(rows[0].state.fork()), any) == before, "{}", case.name);
        model.finish_step(&mut rows, &[0], &mut scratch).unwrap();
        let after = rows[0].logits.clone();
        // The end of the segment may also be part of the symbol's item.
        if let Some(last) = items.last_mut() {
            *last = contract::item(any, true);
        }
        let (last, rest) = items.split_last().unwrap();
        let mut again = Alone::from(model, replay(&case, rest, 100));
        assert!(again.feed(&[*last]).0 == after, "{}", case.name);
        // A rollback to before the end opens the segment again.
        rows[0].state.rollback(items.len() - 1).unwrap();
        let [row] = rows;
        let open = next(&case, SequenceRow::new(row.state.fork()), contract::item(any, false));
        assert!(next(&case, replay(&case, rest, 3), contract::item(any, false)) == open, "{}", case.name);
    }
}

#[test]
fn misplaced_trace_items_are_errors() {
    for case in Case::all() {
        let model = &*case.model;
        let step = |items: &[u32], feed: &[u32]| {
            let mut rows = [replay(&case, items, 100)];
            rows[0].set(feed, Want::Last);
            advance(model, &mut rows, &[0], &mut model.scratch()).map(|()| rows[0].logits.clone())
        };
        let any = prompt(&case)[0];
        assert!(step(&[], &[contract::END]).is_err(), "a segment is empty");
        assert!(step(&[contract::item(any, true)], &[contract::END]).is_err());
        assert!(step(&[any], &[contract::BEGIN]).is_err(), "a text begins twice");
        assert!(step(&[], &[any, contract::END]).is_err() && step(&[], &[contract::BEGIN, any]).is_err());
        assert!(step(&[], &[contract::BEGIN]).unwrap() == case.first_logits());
        let mut rows = [replay(&case, &[any], 1)];
        rows[0].state.rollback(0).unwrap();
        rows[0].set(&[contract::BEGIN], Want::All);
        advance(model, &mut rows, &[0], &mut model.scratch()).unwrap();
        assert!(rows[0].logits == case.first_logits(), "{}: after a rollback too", case.name);
    }
}
