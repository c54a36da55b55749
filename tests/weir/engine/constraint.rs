//! Generations whose text must have a form: in company, preempted, resumed, and drawn by their probabilities.

use super::*;
use crate::engine::harness::run;
use weir::engine::{
    constraint::{CompiledConstraint, Constraint, ConstraintCompiler},
    speculation::Speculation,
};

fn compile(constraint: Constraint) -> Arc<CompiledConstraint> {
    let toy = Toy::new();
    ConstraintCompiler::new(Arc::clone(&toy.card().vocabulary)).compile(&constraint).unwrap()
}

fn regex(source: &str) -> Arc<CompiledConstraint> {
    compile(Constraint::Regex(source.to_owned()))
}

/// Returns a job of at least `chars` symbols, whose other options are derived from `seed`; three of four generations have a constraint.
fn constrained(seed: u64, chars: usize, constraints: &[Arc<CompiledConstraint>]) -> Job {
    let Job::Generate(mut request) = varied(seed) else { return varied(seed) };
    request.stopping.max_chars += chars;
    let constraint = constraints.get(seed as usize % (constraints.len() + 1)).cloned();
    Job::Generate(Generate { constraint, ..request })
}

fn without_counts(output: JobOutput) -> JobOutput {
    let usage = Usage { drafted_chars: 0, accepted_chars: 0, forced_chars: 0, ..output.usage };
    JobOutput { usage, ..output }
}

#[test]
fn texts_do_not_depend_on_company_memory_or_speculation() {
    let constraints = [
        regex("(abc abcabc|cba|a b c |cc){300}"),
        regex("[ab]{3} ccccc( abcab| b)+ca"),
        regex("(a|bb ab ab ab ab){90,200}c?"),
        compile(Constraint::Choice(["ab ".repeat(30), "abc".repeat(30), "ab abb".repeat(15)].to_vec())),
    ];
    let ample = usize::MAX;
    let scarce = 700 * BYTES;
    for (speculation, memory, rows, chars) in
        [(Speculation::Off, ample, 64, 0), (Speculation::Off, scarce, 8, 200), (Speculation::UpTo(8), scarce, 8, 200)]
    {
        let toy = Toy::with(MAX_SYMBOLS, memory);
        let engine = toy.engine(Limits { rows, speculation, chunk: 32, ..Limits::default() });
        let job = |seed| constrained(seed, chars, &constraints);
        let all: Vec<_> = (0..80).map(|seed| (seed, engine.submit(job(seed), None).unwrap())).collect();
        let readers = all.into_iter().map(|(seed, events)| (seed, thread::spawn(move || read(events).unwrap())));
        let mut forced = 0;
        for (seed, reader) in readers.collect::<Vec<_>>() {
            let output = reader.join().unwrap();
            forced += output.usage.forced_chars;
            assert_eq!(without_counts(output), without_counts(alone(job(seed), 1000)), "job {seed}, {speculation}");
        }
        assert!(forced > 40, "{forced}");
        assert_idle(&toy, &engine);
        assert!(memory == usize::MAX || engine.counters().preemptions > 0);
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
fn chosen(toy: &Toy, choice: &Arc<CompiledConstraint>, prompt: &[u32], resumed: &[u32], seed: u64) -> Vec<u32> {
    let constraint = Some(Arc::clone(choice));
    let mut request = Generate { constraint, resumed: resumed.to_vec(), ..generate(prompt, 20) };
    request.sampling.seed = seed;
    let output = run(Session::generate(request, toy.card()).unwrap(), toy, 9);
    assert_eq!(output.reason, FinishReason::Constraint);
    output.characters.iter().map(|emitted| emitted.symbol).collect()
}

/// A choice draws each text by its probability, as scoring gives it, divided by the sum of all.
#[test]
fn choices_are_drawn_by_their_probabilities() {
    let toy = Toy::new();
    let vocabulary = &toy.card().vocabulary;
    // one begins another one
    let texts = ["ab", "aba", "aca", "acbbb", "b c", "c"];
    let prompt = [1, 2, 3];
    let encoded = texts.map(|text| vocabulary.encode("prompt", text, 9).unwrap());
    let weights = encoded.clone().map(|text| {
        let symbols = [&prompt[..], &text].concat();
        let score = Score { symbols, logprobs: true, ..Score::default() };
        let output = run(Session::score(score, toy.card()).unwrap(), &*toy, 9);
        let scored = output.characters[prompt.len()..].iter();
        scored.map(|emitted| f64::from(emitted.logprob.unwrap())).sum::<f64>().exp()
    });
    let choice = compile(Constraint::Choice(texts.map(str::to_owned).to_vec()));
    let draws = 10_000;
    let mut counts = [0_usize; 6];
    for seed in 0..draws {
        let drawn = chosen(&toy, &choice, &prompt, &[], seed);
        counts[encoded.iter().position(|text| *text == drawn).unwrap()] += 1;
    }
    let expected = weights.map(|weight| weight / weights.iter().sum::<f64>() * draws as f64);
    let terms = counts.iter().zip(expected).map(|(&count, mean)| (count as f64 - mean).powi(2) / mean);
    // exceeded by one in a thousand with five degrees of freedom
    assert!(terms.sum::<f64>() < 20.52, "{counts:?} {expected:?}");
    // the order of the texts is of no importance, and the most probable one is greedy's
    let turned = compile(Constraint::Choice(texts.iter().rev().map(|text| (*text).to_owned()).collect()));
    for seed in 0..200 {
        assert_eq!(chosen(&toy, &turned, &prompt, &[], seed), chosen(&toy, &choice, &prompt, &[], seed));
    }
    let mut greedy = Generate { constraint: Some(choice), ..generate(&prompt, 20) };
    greedy.sampling.temperature = 0.0;
    let written: Vec<u32> = alone(Job::Generate(greedy), 9).characters.iter().map(|emitted| emitted.symbol).collect();
    let best = (0..6).max_by(|&a, &b| weights[a].total_cmp(&weights[b])).unwrap();
    assert_eq!(written, encoded[best]);
}

#[test]
fn a_resumed_choice_goes_on_with_the_text_that_was_drawn() {
    let toy = Toy::new();
    let choice = compile(Constraint::Choice(["abcab", "abcac", "abb", "ab", "cca"].map(str::to_owned).to_vec()));
    for seed in 0..40 {
        let whole = chosen(&toy, &choice, &[1, 2], &[], seed);
        for at in 0..=whole.len() {
            assert_eq!(chosen(&toy, &choice, &[1, 2], &whole[..at], seed), whole[at..], "{seed}, {at}");
        }
        // a text that this seed may not draw
        let other = chosen(&toy, &choice, &[1, 2], &[1, 2, 3, 1], seed);
        assert!(other == [2] || other == [3], "{other:?}");
    }
}
