//! A single job compared with a naive implementation that starts from the whole text for every symbol.

use super::{jobs::*, toy_model::*};
use proptest::{collection::vec, prelude::*};
use weir::{
    decode::{
        contract::{BoundaryOptions, Model, SequenceRow, SymbolBoundary, advance},
        options::{Details, EmittedSymbol, FinishReason, Generate, Sampling, Score, Stopping, WindowOptions},
        sampling::{logprobs::LogprobOptions, sampler::Sampler},
        session::{Session, SessionProgress},
    },
    engine::Job,
    error::Error,
};

/// Returns the expected output for the symbol at `position` of a text.
fn character(text: &[u32], position: usize, options: LogprobOptions, boundaries: bool) -> EmittedSymbol {
    let symbol = text[position];
    let before = &text[..position];
    let details = if position == 0 { None } else { Some(options.compute(symbol, &logits_after(before)).unwrap()) };
    let details = details.unwrap_or_default();
    let decision =
        boundaries.then_some(SymbolBoundary { boundary: symbol == 0, depth: 0, probability: None, end_logprob: None });
    EmittedSymbol { symbol, logprob: details.logprob, decision, top: details.top, cut: None }
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
        text.iter().for_each(|&symbol| sampler.see(symbol));
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
        Stopping {
            max_chars,
            min_chars: min.min(max_chars),
            max_segments,
            stop,
            include_stop: include,
            ignore_end: false,
        }
    })
}

fn request() -> impl Strategy<Value = Generate> {
    let details = (any::<bool>(), any::<bool>(), 0usize..3, any::<bool>());
    let sampling = (any::<u64>(), prop_oneof![Just(0.0f32), Just(1.0)], prop_oneof![Just(1.0f32), Just(1.2)]);
    (vec(0..SAMPLED, 1..25), sampling, stopping(), details).prop_map(|(prompt, sampling, stopping, details)| {
        let (seed, temperature, repetition_penalty) = sampling;
        let (echo, logprobs, top_logprobs, boundaries) = details;
        let sampling = Sampling { seed, temperature, repetition_penalty, ..Sampling::default() };
        let details = Details { echo, logprobs, top_logprobs, boundaries };
        let boundaries = BoundaryOptions::default();
        Generate { prompt, sampling, stopping, details, boundaries, resumed: Vec::new(), speculation: None }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn generates_as_the_naive_implementation(request in request(), chunk in 1usize..12, max_symbols in 30usize..60) {
        let toy = Toy::with(max_symbols, usize::MAX);
        let output = run(Session::generate(request.clone(), toy.card()).unwrap(), &toy, chunk);
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
        let boundaries = BoundaryOptions::default();
        let score = Score { symbols: symbols.clone(), logprobs, top, boundaries, windows: None };
        let output = run(Session::score(score, toy.card()).unwrap(), &toy, chunk);
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
        let boundaries = BoundaryOptions::default();
        let score = Score { symbols: symbols.clone(), logprobs, top, boundaries, windows: Some(windows) };
        let session = Session::score(score, toy.card()).unwrap();
        prop_assert!(session.max_symbols() <= length);
        let output = run(session, &toy, chunk);
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
    let mut rows = [SequenceRow::new(toy.begin(session.boundaries().clone()).unwrap())];
    let mut scratch = toy.scratch();
    let mut counts = Vec::new();
    loop {
        session.feed(&mut rows[0], 4);
        advance(&*toy, &mut rows, &[0], &mut scratch).unwrap();
        let progress = session.absorb(&mut rows[0]).unwrap();
        counts.push(session.take_output().len());
        if matches!(progress, SessionProgress::Finished(_)) {
            // Every generated symbol has been fed.
            assert_eq!(rows[0].state.len(), session.usage().prompt_chars + session.usage().generated_chars);
            return counts;
        }
    }
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
fn a_stop_string_in_the_prompt_does_not_count() {
    let text: Vec<u32> = alone(Job::Generate(generate(&[1], 2)), 4).characters.iter().map(|c| c.symbol).collect();
    let mut request = generate(&[1], 2);
    request.stopping.stop = vec![vec![1], vec![1, text[0]]];
    request.stopping.stop.retain(|stop| !text.windows(stop.len()).any(|window| window == stop));
    assert_eq!(alone(Job::Generate(request), 4).reason, FinishReason::MaxChars);
}

#[test]
fn a_prompt_of_the_longest_context_leaves_nothing_to_generate() {
    let toy = Toy::with(5, usize::MAX);
    let output = run(Session::generate(generate(&[1; 5], 3), toy.card()).unwrap(), &toy, 2);
    assert_eq!((output.reason, output.characters.len(), output.usage.prompt_chars), (FinishReason::MaxContext, 0, 5));
}

#[test]
fn nan_logits_are_an_error() {
    let toy = Toy::new();
    let session = Session::generate(generate(&[1, NAN], 3), toy.card()).unwrap();
    assert!(matches!(session.run(&*toy, 8, &mut |_| Ok(())), Err(Error::Internal(_))));
    assert_eq!(toy.sequences(), 0);
}
