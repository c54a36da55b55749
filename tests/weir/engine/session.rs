//! Sessions, and speculation.

use super::*;
use crate::engine::harness::{drive, fresh_row, run};
use proptest::prelude::*;
use weir::engine::sampling::{LogprobOptions, Sampler};
use weir::engine::speculation::Speculation;

/// Returns the expected output for the symbol at `position` of a text.
fn character(text: &[u32], position: usize, options: LogprobOptions, boundaries: bool) -> EmittedSymbol {
    let symbol = text[position];
    let before = &text[..position];
    let details = if position == 0 { None } else { Some(options.compute(symbol, &logits_after(before)).unwrap()) };
    let details = details.unwrap_or_default();
    let decision = boundaries.then(|| SymbolBoundary { boundary: symbol == 0, ..SymbolBoundary::default() });
    EmittedSymbol { logprob: details.logprob, decision, top: details.top, ..EmittedSymbol::plain(symbol) }
}

/// Applies the documented rules to whole texts.
fn naive(request: &Generate, max_symbols: usize) -> (Vec<EmittedSymbol>, FinishReason) {
    let Generate { prompt, sampling, stopping, details, .. } = request;
    let mut text = prompt.clone();
    let (reason, dropped) = loop {
        let generated = &text[prompt.len()..];
        let stops = |stop: &Vec<u32>| generated.len() >= stopping.min_chars && generated.ends_with(stop);
        let matches = (0..stopping.stop.len()).filter(|&index| stops(&stopping.stop[index]));
        let longest = matches.min_by_key(|&index| (usize::MAX - stopping.stop[index].len(), index));
        let segments = generated.iter().filter(|&&symbol| symbol == 0).count();
        if let Some(index) = longest {
            break (FinishReason::Stop(index), if stopping.include_stop { 0 } else { stopping.stop[index].len() });
        } else if stopping.max_segments.is_some_and(|max| segments >= max) {
            break (FinishReason::MaxSegments, 0);
        } else if generated.len() == stopping.max_chars {
            break (FinishReason::MaxChars, 0);
        } else if text.len() == max_symbols {
            break (FinishReason::MaxContext, 0);
        }
        let mut sampler = Sampler::new(sampling.clone(), VOCABULARY);
        prompt.iter().for_each(|&symbol| sampler.see_prompt(symbol));
        text[prompt.len()..].iter().for_each(|&symbol| sampler.see(symbol));
        text.push(sampler.choose(&logits_after(&text), text.len()).unwrap());
    };
    let start = if details.echo { 0 } else { prompt.len() };
    let options = LogprobOptions { logprobs: details.logprobs, top: details.top_logprobs };
    let emitted = |position| character(&text, position, options, details.boundaries);
    ((start..text.len() - dropped).map(emitted).collect(), reason)
}

fn stopping() -> impl Strategy<Value = Stopping> {
    let stop = vec(vec(0..SAMPLED, 1..4), 0..3);
    let segments = prop_oneof![Just(None), (1usize..4).prop_map(Some)];
    (1usize..30, 0usize..10, segments, stop, any::<bool>()).prop_map(|(max_chars, min, max_segments, stop, include)| {
        let min_chars = min.min(max_chars);
        Stopping { max_chars, min_chars, max_segments, stop, include_stop: include, ..Stopping::default() }
    })
}

fn request() -> impl Strategy<Value = Generate> {
    let details = (any::<bool>(), any::<bool>(), 0usize..3, any::<bool>());
    let penalties = (prop_oneof![Just(1.0f32), Just(1.2)], prop_oneof![Just(0.0f32), -2.0f32..2.0], 0.0f32..1.0);
    let sampling = (any::<u64>(), prop_oneof![Just(0.0f32), Just(1.0)], penalties);
    (vec(0..SAMPLED, 1..25), sampling, stopping(), details).prop_map(|(prompt, sampling, stopping, details)| {
        let (seed, temperature, (repetition_penalty, presence_penalty, frequency_penalty)) = sampling;
        let (echo, logprobs, top_logprobs, boundaries) = details;
        let penalties = Sampling { repetition_penalty, presence_penalty, frequency_penalty, ..Sampling::default() };
        let sampling = Sampling { seed, temperature, ..penalties };
        let details = Details { echo, logprobs, top_logprobs, boundaries };
        Generate { prompt, sampling, stopping, details, ..Generate::default() }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn generates_as_the_naive_implementation(request in request(), chunk in 1usize..12, max_symbols in 30usize..60) {
        let toy = Toy::with(max_symbols, usize::MAX);
        let output = run(Session::generate(request.clone(), toy.card()).unwrap(), &*toy, chunk);
        let (characters, reason) = naive(&request, max_symbols);
        prop_assert_eq!(&output.reason, &reason);
        prop_assert_eq!(&output.characters, &characters);
        prop_assert_eq!(output.usage.prompt_chars, request.prompt.len());
        prop_assert_eq!(output.usage.prompt_segments, request.prompt.iter().filter(|&&symbol| symbol == 0).count());
        let emitted = characters.len() - if request.details.echo { request.prompt.len() } else { 0 };
        let dropped = match reason {
            FinishReason::Stop(index) if !request.stopping.include_stop => request.stopping.stop[index].len(),
            _ => 0,
        };
        prop_assert_eq!(output.usage.generated_chars, emitted + dropped);
        prop_assert_eq!(toy.sequences(), 0);
    }

    #[test]
    fn scores_as_the_naive_implementation(
        symbols in vec(0..SAMPLED, 1..60), logprobs: bool, top in 0usize..3, chunk in 1usize..12,
    ) {
        let toy = Toy::new();
        let score = Score { symbols: symbols.clone(), logprobs, top, ..Score::default() };
        let output = run(Session::score(score, toy.card()).unwrap(), &*toy, chunk);
        let options = LogprobOptions { logprobs, top };
        let expected: Vec<_> = (0..symbols.len()).map(|position| character(&symbols, position, options, true)).collect();
        prop_assert_eq!(output.characters, expected);
        prop_assert_eq!(output.reason, FinishReason::End);
        prop_assert_eq!((output.usage.prompt_chars, output.usage.generated_chars), (symbols.len(), 0));
        prop_assert_eq!(output.usage.prompt_segments, symbols.iter().filter(|&&symbol| symbol == 0).count());
    }
}

/// Returns the expected output of a text scored in windows. One window scores a symbol, the next one decides its boundary.
fn windowed(
    text: &[u32],
    WindowOptions { length, stride }: WindowOptions,
    options: LogprobOptions,
) -> Vec<EmittedSymbol> {
    let emitted = |position: usize| {
        let first = position.saturating_sub(1) / stride * stride;
        let start = first.saturating_sub(length - stride);
        let boundaries = position + 1 < text.len() || text.len() == 1;
        let character = character(&text[start..], position - start, options, boundaries);
        if position == 0 { EmittedSymbol { logprob: None, top: Vec::new(), ..character } } else { character }
    };
    (0..text.len()).map(emitted).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn scores_windows_as_the_naive_implementation(
        symbols in vec(0..SAMPLED, 1..90), logprobs: bool, top in 0usize..3, chunk in 1usize..12, length in 1usize..20,
        stride in 1usize..20,
    ) {
        let windows = WindowOptions { length, stride: stride.min(length) };
        let toy = Toy::with(20, 20 * BYTES);
        let score = Score { symbols: symbols.clone(), logprobs, top, windows: Some(windows), ..Score::default() };
        let session = Session::score(score, toy.card()).unwrap();
        prop_assert!(session.max_symbols() <= length);
        let output = run(session, &*toy, chunk);
        let expected = windowed(&symbols, windows, LogprobOptions { logprobs, top });
        prop_assert_eq!(output.usage.prompt_segments, expected.iter().filter(|c| c.decision.is_some_and(|m| m.boundary)).count());
        prop_assert_eq!(output.characters, expected);
        prop_assert_eq!((output.reason, output.usage.prompt_chars), (FinishReason::End, symbols.len()));
        prop_assert!(toy.peak() <= length * BYTES, "more than a window was held");
    }
}

/// Steps a session and returns the number of characters that each step emits.
fn emitted_per_step(request: Generate) -> Vec<usize> {
    let toy = Toy::new();
    let mut session = Session::generate(request, toy.card()).unwrap();
    let mut row = fresh_row(&*toy, &session);
    let mut emitted = Vec::new();
    let (output, _) = drive(&mut session, &*toy, &mut row, 4, |_, _, _, before| emitted.push(before));
    emitted.push(output.characters.len());
    // Every generated symbol has been fed.
    assert_eq!(row.state.len(), output.usage.prompt_chars + output.usage.generated_chars);
    emitted.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

#[test]
fn symbols_are_emitted_at_once_and_a_step_later_with_boundaries() {
    let mut request = generate(&[1, 2, 3, 1, 2, 3], 3);
    assert_eq!(emitted_per_step(request.clone()), [0, 1, 1, 1, 0]);
    request.details.boundaries = true;
    assert_eq!(emitted_per_step(request.clone()), [0, 0, 1, 1, 1]);
    request.details.echo = true;
    assert_eq!(emitted_per_step(request), [4, 2, 1, 1, 1]);
}

#[test]
fn a_possible_stop_string_is_held_back_until_decided() {
    let text: Vec<u32> = alone(Job::Generate(generate(&[1], 12)), 4).characters.iter().map(|c| c.symbol).collect();
    let mut request = generate(&[1], 12);
    // The text differs in the fourth symbol, which releases the first three.
    request.stopping.stop = vec![vec![text[0], text[1], text[2], (text[3] + 1) % SAMPLED]];
    let counts = emitted_per_step(request.clone());
    assert_eq!(counts[..3], [0, 0, 0]);
    assert_eq!(counts.iter().sum::<usize>(), 12);
    // The end releases everything.
    request.stopping.max_chars = 2;
    assert_eq!(emitted_per_step(request), [0, 2, 0]);
}

#[test]
fn a_prompt_of_the_longest_context_leaves_nothing_to_generate() {
    let toy = Toy::with(5, usize::MAX);
    let output = run(Session::generate(generate(&[1; 5], 3), toy.card()).unwrap(), &*toy, 2);
    assert_eq!((output.reason, output.characters.len(), output.usage.prompt_chars), (FinishReason::MaxContext, 0, 5));
}

fn limits(speculation: Speculation) -> Limits {
    Limits { rows: 5, queue: 300, chunk: 16, events: 300, speculation, ..Limits::default() }
}

/// The usage without the counts of speculation.
fn without_drafts(output: JobOutput) -> JobOutput {
    JobOutput { usage: Usage { drafted_chars: 0, accepted_chars: 0, ..output.usage }, ..output }
}

fn read_all(jobs: Vec<(u64, Events)>) -> Vec<(u64, JobOutput)> {
    let readers = jobs.into_iter().map(|(seed, events)| thread::spawn(move || (seed, read(events).unwrap())));
    readers.collect::<Vec<_>>().into_iter().map(|reader| reader.join().unwrap()).collect()
}

/// A request whose text repeats itself: one symbol is much more probable than the others.
fn repeating(symbol: u32, max_chars: usize) -> Generate {
    let mut request = generate(&[symbol; 8], max_chars);
    request.sampling.logit_bias = vec![(symbol, 100.0)];
    request
}

#[test]
fn outputs_do_not_depend_on_speculation() {
    let ample = usize::MAX;
    let scarce = 400 * BYTES;
    for (speculation, memory) in [
        (Speculation::Auto, ample),
        (Speculation::UpTo(1), ample),
        (Speculation::UpTo(3), ample),
        (Speculation::UpTo(8), scarce),
        (Speculation::UpTo(16), ample),
    ] {
        let toy = Toy::with(MAX_SYMBOLS, memory);
        let engine = toy.engine(limits(speculation));
        let jobs = (0..120).map(|seed| (seed, engine.submit(varied(seed), None).unwrap())).collect();
        let mut drafted = 0;
        for (seed, output) in read_all(jobs) {
            drafted += output.usage.drafted_chars;
            assert!(output.usage.accepted_chars <= output.usage.drafted_chars, "job {seed}");
            assert_eq!(without_drafts(output), alone(varied(seed), 1000), "job {seed}, {speculation}");
        }
        assert!(drafted > 0 || speculation == Speculation::Auto, "{speculation}: nothing was drafted");
        assert_idle(&toy, &engine);
        assert_eq!(engine.counters().drafted_chars as usize, drafted);
    }
}

#[test]
fn accepted_drafts_save_steps() {
    for (speculation, most_steps) in [(Speculation::UpTo(7), 200 / 8 + 4), (Speculation::Auto, 150)] {
        // On a busy machine `Auto` may measure a step that others made slow, so it has three attempts.
        let attempts = if speculation == Speculation::Auto { 3 } else { 1 };
        let few = (0..attempts).any(|_| {
            let toy = Toy::new();
            // A step of this model costs the same for any number of symbols. Without a duration, noise would decide what `Auto` measures.
            toy.step_ns.store(1_000_000, std::sync::atomic::Ordering::SeqCst);
            let engine = toy.engine(limits(speculation));
            let (output, timing) = read_timed(engine.submit(Job::Generate(repeating(1, 200)), None).unwrap()).unwrap();
            assert_eq!(output.usage.generated_chars, 200);
            assert!(output.characters.iter().all(|character| character.symbol == 1));
            let saved = timing.steps + output.usage.accepted_chars as u64;
            // one step takes the prompt, and each other one a sampled symbol
            assert_eq!(saved, 201, "{speculation}");
            assert_idle(&toy, &engine);
            timing.steps <= most_steps
        });
        assert!(few, "{speculation}");
    }
}

#[test]
fn drafts_end_before_their_first_boundary() {
    // symbol 0 ends a segment
    let (_, engine) = started(limits(Speculation::UpTo(7)));
    let output = read(engine.submit(Job::Generate(repeating(0, 50)), None).unwrap()).unwrap();
    assert_eq!((output.usage.generated_segments, output.usage.accepted_chars), (50, 0));
    let mut request = generate(&[1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0], 40);
    request.details.boundaries = true;
    let (toy, engine) = started(limits(Speculation::UpTo(7)));
    let output = read(engine.submit(Job::Generate(request.clone()), None).unwrap()).unwrap();
    assert_eq!(without_drafts(output), alone(Job::Generate(request), 7));
    assert!(toy.segment_steps.lock().unwrap().iter().all(|&(rows, _)| rows == 1));
}

#[test]
fn a_request_can_choose() {
    let toy = Toy::new();
    for (engine_wide, own, drafts) in [
        (Speculation::Off, None, false),
        (Speculation::Off, Some(Speculation::UpTo(3)), true),
        (Speculation::UpTo(3), None, true),
        (Speculation::UpTo(3), Some(Speculation::Off), false),
    ] {
        let engine = toy.engine(limits(engine_wide));
        let request = Generate { speculation: own, ..repeating(2, 60) };
        let output = read(engine.submit(Job::Generate(request), None).unwrap()).unwrap();
        assert_eq!(output.usage.drafted_chars > 0, drafts, "{engine_wide} {own:?}");
    }
}

#[test]
fn a_full_step_feeds_no_drafts() {
    let toy = Toy::new();
    // four rows fill the step
    let engine = toy.engine(Limits { chunk: 4, rows: 4, ..limits(Speculation::UpTo(7)) });
    toy.gate.hold(0);
    let jobs: Vec<_> = (0..4).map(|_| engine.submit(Job::Generate(repeating(1, 30)), None).unwrap()).collect();
    eventually("all have rows", || engine.load().running == 4);
    toy.gate.release();
    jobs.into_iter().for_each(|events| drop(read(events).unwrap()));
    let steps = toy.steps.lock().unwrap();
    assert!(steps.iter().all(|fed| fed.iter().sum::<usize>() <= 4 + 3), "{steps:?}");
}

#[test]
fn a_deadline_ends_a_generation_with_drafts() {
    let toy = Toy::new();
    toy.step_ns.store(1_000_000, std::sync::atomic::Ordering::SeqCst);
    let engine = toy.engine(Limits { events: 4000, ..limits(Speculation::UpTo(2)) });
    let deadline = std::time::Instant::now() + Duration::from_millis(60);
    let events = engine.submit(Job::Generate(repeating(1, 3000)), Some(deadline)).unwrap();
    assert!(read(events).is_err());
    assert_idle(&toy, &engine);
}
