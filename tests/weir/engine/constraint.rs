//! Generations whose text must have a form: in company, preempted, resumed, and drawn by their probabilities.

use super::*;
use crate::{
    engine::{
        harness::{fresh_row, run, session},
        resume::{generated, resumed, tight},
    },
    toy_model::SYMBOLS,
};
use weir::{
    engine::{
        constraint::{CompiledConstraint, Constraint, ConstraintCompiler},
        speculation::Speculation,
    },
    models::{
        contract::Card,
        text::{SpecialSymbols, TextNormaliser, Vocabulary},
    },
};

fn compile(constraint: Constraint) -> Arc<CompiledConstraint> {
    let toy = Toy::new();
    ConstraintCompiler::new(Arc::clone(&toy.card().vocabulary)).compile(&constraint).unwrap()
}

fn regex(source: &str) -> Arc<CompiledConstraint> {
    compile(Constraint::Regex(source.to_owned()))
}

/// Returns a job of at least `chars` symbols, whose other options are derived from `seed`; most generations have a form. Half of them ask
/// for nothing that forbids to feed forced symbols together.
fn constrained(model: &dyn Model, seed: u64, chars: usize, forms: &[Arc<CompiledConstraint>]) -> Job {
    match varied(seed) {
        Job::Generate(request) => {
            let Generate { mut stopping, mut details, .. } = request;
            stopping.max_chars += chars;
            if seed.is_multiple_of(2) {
                stopping.max_segments = None;
                details = Details { echo: details.echo, ..Details::default() };
            }
            stopping.stop = stopping.stop.iter().map(|stop| text_symbols(model, stop)).collect();
            let constraint = forms.get(seed as usize % (forms.len() + 1)).cloned();
            let prompt = text_symbols(model, &request.prompt);
            Job::Generate(Generate { prompt, stopping, details, constraint, ..request })
        }
        Job::Score(request) => Job::Score(Score { symbols: text_symbols(model, &request.symbols), ..request }),
        other => other,
    }
}

fn without_counts(output: JobOutput) -> JobOutput {
    let usage = Usage { drafted_chars: 0, accepted_chars: 0, forced_chars: 0, ..output.usage };
    JobOutput { usage, ..output }
}

/// Returns the positions of a text at which the symbol before and the one after are forced.
fn within_forced(form: &Arc<CompiledConstraint>, vocabulary: &Vocabulary, text: &[u32]) -> Vec<usize> {
    let mut matcher = form.matcher().unwrap();
    let mut was_forced = false;
    let mut within = Vec::new();
    for (at, &symbol) in text.iter().enumerate() {
        let is_forced = matcher.only().is_some();
        within.extend(Some(at).filter(|_| was_forced && is_forced));
        was_forced = is_forced;
        // a mark between symbols has no text
        if !vocabulary.is_special(symbol) {
            matcher.consume(symbol).and_then(|()| matcher.update()).unwrap();
        }
    }
    within
}

/// A model, the same one with memory for few symbols, and forms that it can write.
struct Subject {
    name: String,
    ample: Arc<dyn Model>,
    scarce: Arc<dyn Model>,
    forms: Vec<Constraint>,
}

/// Returns the toy, and a model of letters and one of bytes in each dtype.
fn subjects() -> Vec<Subject> {
    let texts = |texts: [String; 3]| Constraint::Choice(texts.to_vec());
    let regex = |source: &str| Constraint::Regex(source.into());
    let grammar = |source: &str| Constraint::Grammar(source.into());
    let schema = |schema: Value| Constraint::JsonSchema(schema.to_string());
    let letters = vec![
        regex("(abc abcabc|cba|a b c |cc){300}"),
        regex("[ab]{3} ccccc( abcab| b)+ca"),
        regex("(a|bb ab ab ab ab){90,200}c?"),
        texts(["ab ".repeat(30), "abc".repeat(30), "ab abb".repeat(15)]),
        grammar("start: (\"abcabc \" | \"cb\" tail)+ \"aa\"\ntail: \"a b c\" | \"cc \" tail \"b\""),
    ];
    let words = schema(json!({ "enum": [true, false, null] }));
    let record = schema(json!({
        "type": "object",
        "properties": {
            "name": { "enum": ["abc abc", "abd", "é"] },
            "count": { "type": "integer" },
            "tags": { "type": "array", "items": { "enum": ["ab", "b \"a"] }, "minItems": 2 },
        },
        "required": ["name", "tags"],
        "additionalProperties": false,
    }));
    let mut subjects = vec![Subject {
        name: "toy".into(),
        ample: Toy::new(),
        scarce: Toy::with(MAX_SYMBOLS, 700 * BYTES),
        forms: letters.clone(),
    }];
    for dtype in Dtype::ALL {
        let settings = Settings { dtype, ..settings() };
        for (name, ample, own) in [
            ("whitespaces", fixture_in("whitespaces", dtype), vec![words.clone()]),
            ("hnet two_stage", model_of("hnet", "two_stage", dtype), vec![record.clone(), Constraint::JsonObject]),
        ] {
            let scarce = tight(name, &*ample, &settings, 360);
            let forms = [&letters[1..], &own].concat();
            subjects.push(Subject { name: format!("{name}, {}", dtype.name()), ample, scarce, forms });
        }
    }
    subjects
}

/// Each text, alone: next to 64 others, with and without speculation, preempted, and resumed in the middle of a forced span.
#[test]
fn texts_do_not_depend_on_company_memory_or_speculation() {
    for Subject { name, ample, scarce, forms } in subjects() {
        let card = ample.card();
        let compiler = ConstraintCompiler::new(Arc::clone(&card.vocabulary));
        let forms: Vec<_> = forms.iter().map(|form| compiler.compile(form).unwrap()).collect();
        let alone = |chars: usize| {
            let mut expected = Vec::new();
            for seed in 0..80 {
                let job = constrained(&*ample, seed, chars, &forms);
                let output = without_counts(run(session(job.clone(), card), &*ample, 1000));
                if let Job::Generate(request) = &job
                    && let Some(form) = &request.constraint
                {
                    let written = generated(request, &output);
                    let symbols: Vec<u32> = written.iter().map(|own| own.symbol).collect();
                    let cuts = within_forced(form, &card.vocabulary, &symbols);
                    if let Some(&cut) = cuts.get(seed as usize % cuts.len().max(1)) {
                        let usage = Usage { resumed_chars: cut, ..output.usage };
                        let rest = JobOutput { characters: written[cut..].to_vec(), usage, ..output.clone() };
                        expected.push((Job::Generate(resumed(request, written, cut)), rest));
                    }
                }
                expected.push((job, output));
            }
            assert!(expected.len() > 110, "{name}: {}", expected.len());
            expected
        };
        let [short, long] = [0, 200].map(alone);
        for (speculation, model, rows, expected) in [
            (Speculation::Off, &ample, 65, &short),
            (Speculation::Off, &scarce, 8, &long),
            (Speculation::UpTo(8), &scarce, 8, &long),
        ] {
            let limits = Limits { rows, queue: 1024, speculation, chunk: 32, ..Limits::default() };
            let engine = Handle::start(Arc::clone(model), limits).unwrap();
            let submit = |(job, _): &(Job, _)| engine.submit(job.clone(), None).unwrap();
            let readers = expected.iter().map(submit).map(|events| thread::spawn(move || read(events).unwrap()));
            let mut forced = 0;
            for (reader, (job, expected)) in readers.collect::<Vec<_>>().into_iter().zip(expected) {
                let output = reader.join().unwrap();
                forced += output.usage.forced_chars;
                assert_eq!(without_counts(output), *expected, "{name}, {speculation}, {job:?}");
            }
            // a busy machine delays masks: `forced_text_takes_one_step` checks the exact count
            assert!(forced > 0, "{name}, {speculation}: nothing was forced");
            eventually("everything is released", || (engine.load().running, engine.load().bytes) == (0, 0));
            assert!(rows > 8 || engine.counters().preemptions > 0, "{name}, {speculation}: no row was preempted");
            drop(engine);
            assert_eq!(model.memory().in_use, 0, "{name}: pages leaked");
        }
    }
}

#[test]
fn forced_text_takes_one_step() {
    let (toy, engine) = started(Limits::default());
    let source = "abc abc abc abc abc abcabca";
    for details in [Details::default(), Details { logprobs: true, ..Details::default() }] {
        let request = Generate { constraint: Some(regex(source)), details: details.clone(), ..generate(&[1, 2], 100) };
        let (output, timing) = read_timed(engine.submit(Job::Generate(request), None).unwrap()).unwrap();
        let text: Vec<u32> = output.characters.iter().map(|emitted| emitted.symbol).collect();
        assert_eq!(toy.card().vocabulary.decode(&text), source);
        assert_eq!((output.reason, output.usage.generated_chars), (FinishReason::Constraint, 27));
        assert_eq!(output.usage.forced_chars, if details.logprobs { output.usage.forced_chars } else { 26 });
        // the prompt, then the text; in drafts up to each end of a segment
        assert!(timing.steps <= if details.logprobs { 14 } else { 2 }, "{}", timing.steps);
    }
    assert_idle(&toy, &engine);
}

/// Its masks come long after their steps, and no other request wakes the worker.
#[test]
fn a_text_of_an_ambiguous_grammar_goes_on_alone() {
    let (toy, engine) = started(Limits::default());
    let grammar = compile(Constraint::Grammar("start: a\na: a a | \"a\" | \"b\" | \"c\"".into()));
    let request = Generate { constraint: Some(grammar), ..generate(&[1], 300) };
    // the grammar may be too slow in the end
    match read(engine.submit(Job::Generate(request), None).unwrap()) {
        Ok(output) => assert_eq!(output.usage.generated_chars, 300),
        Err(error) => assert!(matches!(error, Error::BadOption { field: "constraint.grammar", .. }), "{error}"),
    }
    assert_idle(&toy, &engine);
}

#[test]
fn the_rules_of_an_end_apply_in_order() {
    let request = |source: &str| Generate { constraint: Some(regex(source)), ..generate(&[1], 6) };
    let ended = |request: Generate| {
        let output = alone(Job::Generate(request), 10);
        (output.reason, output.usage.generated_chars)
    };
    assert_eq!(ended(request("abcabcabc")), (FinishReason::MaxChars, 6));
    assert_eq!(ended(request("abcabc")), (FinishReason::MaxChars, 6));
    assert_eq!(ended(request("abcab")), (FinishReason::Constraint, 5));
    assert_eq!(ended(request("")), (FinishReason::Constraint, 0));
    let mut stopped = request("abcabcabc");
    stopped.stopping.stop = vec![vec![3, 1]];
    assert_eq!(ended(stopped), (FinishReason::Stop(0), 4));
    // the model of this test cannot end a text
    let mut open = request("a(bc)*");
    assert_eq!(ended(open.clone()).0, FinishReason::MaxChars);
    open.stopping.end_when_complete = Some(true);
    open.sampling.seed = 3;
    let text = Toy::new().card().vocabulary.encode("prompt", "aa", 9).unwrap();
    let leaves = |text: &[u32]| {
        let weights = logits_after(text).map(|logit| f64::from(logit).exp());
        weights[2] < weights.iter().sum::<f64>() / 2.0
    };
    let expected = if leaves(&text) { (FinishReason::Constraint, 1) } else { ended(open.clone()) };
    assert_eq!(ended(open), expected);
}

#[test]
fn a_resumed_text_must_have_the_form() {
    let toy = Toy::new();
    let open = |resumed: &[u32]| {
        let request = Generate { constraint: Some(regex("abc")), resumed: resumed.to_vec(), ..generate(&[1], 9) };
        Session::generate(request, toy.card()).map(|session| run(session, &*toy, 9))
    };
    let rest =
        |resumed: &[u32]| open(resumed).unwrap().characters.iter().map(|emitted| emitted.symbol).collect::<Vec<_>>();
    assert_eq!([rest(&[]), rest(&[1]), rest(&[1, 2]), rest(&[1, 2, 3])], [vec![1, 2, 3], vec![2, 3], vec![3], vec![]]);
    for wrong in [&[2][..], &[1, 2, 2], &[1, 2, 3, 1]] {
        assert!(matches!(open(wrong), Err(Error::BadOption { field: "resume_text", .. })), "{wrong:?}");
    }
}

/// Returns what a generation with a choice writes after `prompt`, and resumes after `resumed`.
fn chosen(card: &Card, choice: &Arc<CompiledConstraint>, prompt: &[u32], resumed: &[u32], seed: u64) -> Vec<u32> {
    let constraint = Some(Arc::clone(choice));
    let mut request = Generate { constraint, resumed: resumed.to_vec(), ..generate(prompt, 20) };
    request.sampling.seed = seed;
    let output = run(Session::generate(request, card).unwrap(), &*Toy::new(), 9);
    assert_eq!(output.reason, FinishReason::Constraint);
    output.characters.iter().map(|emitted| emitted.symbol).collect()
}

/// Returns the card of a model whose symbol `c` ends a text.
fn ended() -> Card {
    let specials = SpecialSymbols { start: 4, end: 3, segment_start: 5, segment_end: 6, unknown: 7 };
    let vocabulary = Vocabulary::from_symbols_with_specials(&SYMBOLS, specials, TextNormaliser::None).unwrap();
    Card { vocabulary: Arc::new(vocabulary), ..Toy::new().card().clone() }
}

/// Returns the probabilities that scoring gives to texts after `prompt`, with their ends if the model has an end mark.
fn scored<'a>(card: &Card, prompt: &[u32], texts: impl Iterator<Item = &'a [u32]>) -> Vec<f64> {
    let toy = Toy::new();
    let ends_text = card.vocabulary.specials().is_some();
    let weight = |text: &[u32]| {
        let score = Score { symbols: [prompt, text].concat(), logprobs: true, ends_text, ..Score::default() };
        let output = run(Session::score(score, card).unwrap(), &*toy, 9);
        let scored = output.characters[prompt.len()..].iter();
        scored.map(|emitted| f64::from(emitted.logprob.unwrap())).sum::<f64>().exp()
    };
    texts.map(weight).collect()
}

fn choose_between(card: &Card, texts: Vec<String>) -> Arc<CompiledConstraint> {
    ConstraintCompiler::new(Arc::clone(&card.vocabulary)).compile(&Constraint::Choice(texts)).unwrap()
}

/// A choice draws each text by its probability, as scoring gives it, divided by the sum of all.
#[test]
fn choices_are_drawn_by_their_probabilities() {
    let without_end = Toy::new().card().clone();
    // one begins another one
    for (card, texts) in
        [(without_end, ["ab", "aba", "aca", "acbbb", "b c", "c"]), (ended(), ["ab", "aba", "a a", "a bbb", "b", "bb"])]
    {
        let prompt = [1, 2, 3].map(|symbol| symbol.min(2));
        let encoded = texts.map(|text| card.vocabulary.encode("prompt", text, 9).unwrap());
        let weights = scored(&card, &prompt, encoded.iter().map(|text| &text[..]));
        let choice = choose_between(&card, texts.map(str::to_owned).to_vec());
        let draws = 10_000;
        let mut counts = [0_usize; 6];
        for seed in 0..draws {
            let drawn = chosen(&card, &choice, &prompt, &[], seed);
            counts[encoded.iter().position(|text| *text == drawn).unwrap()] += 1;
        }
        let total: f64 = weights.iter().sum();
        let expected = weights.iter().map(|weight| weight / total * draws as f64);
        let terms = counts.iter().zip(expected).map(|(&count, mean)| (count as f64 - mean).powi(2) / mean);
        // exceeded by one in a thousand with five degrees of freedom
        assert!(terms.sum::<f64>() < 20.52, "{counts:?} {weights:?}");
        // the order of the texts is of no importance
        let turned = choose_between(&card, texts.iter().rev().map(|text| (*text).to_owned()).collect());
        for seed in 0..200 {
            assert_eq!(chosen(&card, &turned, &prompt, &[], seed), chosen(&card, &choice, &prompt, &[], seed));
        }
    }
}

/// Texts that part in many places, and more often than states are kept.
#[test]
fn greedy_choices_are_the_most_probable_texts() {
    for card in [Toy::new().card().clone(), ended()] {
        for seed in 0..30 {
            let digit = |index: u64| (mix(seed << 20 | index) % 3) as u32;
            let mut texts: Vec<Vec<u32>> = match seed % 3 {
                0 => (0..30).map(|own| (0..1 + own % 9).map(|index| digit(own * 9 + index)).collect()).collect(),
                1 => (0..40).map(|own| [vec![1; 40 - own], vec![2; 1 + own % 3]].concat()).collect(),
                _ => (0..81).map(|own: u32| [27, 9, 3, 1].map(|power| own / power % 3).to_vec()).collect(),
            };
            texts.sort();
            texts.dedup();
            let weights = scored(&card, &[1, 2], texts.iter().map(|text| &text[..]));
            let mut best = 0;
            for index in 1..texts.len() {
                best = if weights[index] > weights[best] { index } else { best };
            }
            let choice = choose_between(&card, texts.iter().map(|text| card.vocabulary.decode(text)).collect());
            let mut request = Generate { constraint: Some(choice), ..generate(&[1, 2], 60) };
            request.sampling.temperature = 0.0;
            let output = run(Session::generate(request, &card).unwrap(), &*Toy::new(), 7);
            let written: Vec<u32> = output.characters.iter().map(|emitted| emitted.symbol).collect();
            assert_eq!(written, texts[best], "{seed}");
        }
    }
}

/// What texts share is fed once.
#[test]
fn a_choice_costs_as_much_as_the_places_where_its_texts_part() {
    let (toy, engine) = started(Limits::default());
    let label = |own: u32| [vec![1, 2, 3, 1, 2, 3], [81, 27, 9, 3, 1].map(|power| own / power % 3).to_vec()].concat();
    let texts = (0..243).map(|own| toy.card().vocabulary.decode(&label(own))).collect();
    let constraint = Some(choose_between(toy.card(), texts));
    let request = Generate { constraint, ..generate(&[1, 2], 100) };
    let (output, timing) = read_timed(engine.submit(Job::Generate(request), None).unwrap()).unwrap();
    // the tenant pays for all texts as for a prompt, and is told the length of the one that was written
    assert_eq!((output.usage.prompt_chars, output.usage.generated_chars), (2, 11));
    assert_eq!(engine.counters().prefill_chars, 2 + 6 + 120);
    // the prompt, the beginning, each of 3 + 9 + 27 + 81 places, and the text that was drawn
    assert!(timing.steps <= 124, "{}", timing.steps);
    let fed: usize = toy.steps.lock().unwrap().iter().flatten().sum();
    assert!(fed <= 2 + 6 + 120 + 11, "{fed}");
    assert_idle(&toy, &engine);
}

/// Symbols count as repeated if a lost row was fed them while texts were tried; no others do.
#[test]
fn a_choice_that_loses_its_row_pays_once_for_its_texts() {
    let toy = Toy::new();
    let label = |own: u32| [vec![1, 2, 3], [27, 9, 3, 1].map(|power| own / power % 3).to_vec(), vec![2, 1]].concat();
    let texts = (0..81).map(|own| toy.card().vocabulary.decode(&label(own))).collect();
    let constraint = Some(choose_between(toy.card(), texts));
    // returns the symbols that were fed for the first time, those that were repeated, and those of lost rows
    let run = |lost: &[usize]| {
        let request = Generate { constraint: constraint.clone(), ..generate(&[1, 2], 100) };
        let mut session = Session::generate(request, toy.card()).unwrap();
        let mut row = fresh_row(&*toy, &session);
        let mut scratch = toy.scratch();
        let mut fed = [0; 3];
        for step in 0.. {
            if lost.contains(&step) && session.forks() > 0 {
                fed[2] += row.state.len();
                session.rewind();
                row = fresh_row(&*toy, &session);
            }
            session.feed(&mut row, 2);
            fed[usize::from(session.is_repeating())] += row.feed.len();
            advance(&*toy, std::slice::from_mut(&mut row), &[0], &mut scratch).unwrap();
            if matches!(session.absorb(&mut row).unwrap(), SessionProgress::Finished(_)) {
                break;
            }
        }
        fed
    };
    let [new, 0, 0] = run(&[]) else { panic!("an undisturbed choice repeats nothing") };
    for first in 3..100 {
        let [again, repeated, lost] = run(&[first, first + 1, first + 4]);
        assert_eq!((again, repeated), (new, lost), "{first}");
        assert!(lost > 0, "{first}");
    }
}

#[test]
fn a_resumed_choice_goes_on_with_the_text_that_was_drawn() {
    let card = Toy::new().card().clone();
    let choice = compile(Constraint::Choice(["abcab", "abcac", "abb", "ab", "cca"].map(str::to_owned).to_vec()));
    for seed in 0..40 {
        let whole = chosen(&card, &choice, &[1, 2], &[], seed);
        for at in 0..=whole.len() {
            assert_eq!(chosen(&card, &choice, &[1, 2], &whole[..at], seed), whole[at..], "{seed}, {at}");
        }
        // a text that this seed may not draw
        let other = chosen(&card, &choice, &[1, 2], &[1, 2, 3, 1], seed);
        assert!(other == [2] || other == [3], "{other:?}");
    }
}
