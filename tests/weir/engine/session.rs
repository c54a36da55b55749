//! One job alone, against a twin that starts from the whole text for every symbol.

use super::{jobs::*, toy_model::*};
use proptest::{collection::vec, prelude::*};
use weir::{
    decode::{
        contract::{BoundaryOptions, Model, SequenceRow, SymbolBoundary, advance},
        options::{Details, EmittedSymbol, FinishReason, Generate, Sampling, Score, Stopping, Windows},
        sampling::{logprobs::LogprobOptions, sampler::Sampler},
        session::{Session, SessionProgress},
    },
    engine::Job,
    error::Error,
};

/// What is told of the symbol at a position of a text.
fn character(text: &[u32], at: usize, telling: LogprobOptions, marks: bool) -> EmittedSymbol {
    let symbol = text[at];
    let told = if at == 0 { Default::default() } else { telling.compute(symbol, &logits_after(&text[..at])).unwrap() };
    let decision = marks.then_some(SymbolBoundary { boundary: symbol == 0, probability: None, end_logprob: None });
    EmittedSymbol { symbol, logprob: told.logprob, decision, top: told.top }
}

/// The rules as they are documented, on whole texts.
fn naive(request: &Generate, max_symbols: usize) -> (Vec<EmittedSymbol>, FinishReason) {
    let Generate { prompt, sampling, stopping, details, .. } = request;
    let mut text = prompt.clone();
    let (reason, dropped) = loop {
        let generated = &text[prompt.len()..];
        let stop = |stop: &Vec<u32>| generated.len() >= stopping.min_chars && generated.ends_with(stop);
        let met = (0..stopping.stop.len()).filter(|&index| stop(&stopping.stop[index]));
        let longest = met.min_by_key(|&index| (usize::MAX - stopping.stop[index].len(), index));
        let segments = generated.iter().filter(|&&symbol| symbol == 0).count();
        if let Some(index) = longest {
            break (FinishReason::Stop(index), if stopping.include_stop { 0 } else { stopping.stop[index].len() });
        } else if stopping.max_segments.is_some_and(|most| segments >= most) {
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
    let from = if details.echo { 0 } else { prompt.len() };
    let telling = LogprobOptions { logprobs: details.logprobs, top: details.top_logprobs };
    let tell = |at| character(&text, at, telling, details.boundaries);
    ((from..text.len() - dropped).map(tell).collect(), reason)
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
        Generate { prompt, sampling, stopping, details, boundaries: BoundaryOptions::default() }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn generates_as_the_naive_twin(request in request(), chunk in 1usize..12, max_symbols in 30usize..60) {
        let toy = Toy::with(max_symbols, usize::MAX);
        let said = run(Session::generate(request.clone(), toy.card()).unwrap(), &toy, chunk);
        let (characters, reason) = naive(&request, max_symbols);
        prop_assert_eq!(&said.reason, &reason);
        prop_assert_eq!(&said.characters, &characters);
        prop_assert_eq!(said.usage.prompt_chars, request.prompt.len());
        prop_assert_eq!(said.usage.prompt_segments, request.prompt.iter().filter(|&&symbol| symbol == 0).count());
        let told = characters.len() - if request.details.echo { request.prompt.len() } else { 0 };
        let dropped = match reason {
            FinishReason::Stop(index) if !request.stopping.include_stop => request.stopping.stop[index].len(),
            _ => 0,
        };
        prop_assert_eq!(said.usage.generated_chars, told + dropped);
        prop_assert_eq!(toy.sequences(), 0);
    }

    #[test]
    fn scores_as_the_naive_twin(
        symbols in vec(0..SAMPLED, 1..60), logprobs: bool, top in 0usize..3, chunk in 1usize..12,
    ) {
        let toy = Toy::new();
        let boundaries = BoundaryOptions::default();
        let score = Score { symbols: symbols.clone(), logprobs, top, boundaries, windows: None };
        let said = run(Session::score(score, toy.card()).unwrap(), &toy, chunk);
        let telling = LogprobOptions { logprobs, top };
        let expected: Vec<_> = (0..symbols.len()).map(|at| character(&symbols, at, telling, true)).collect();
        prop_assert_eq!(said.characters, expected);
        prop_assert_eq!(said.reason, FinishReason::End);
        prop_assert_eq!((said.usage.prompt_chars, said.usage.generated_chars), (symbols.len(), 0));
        prop_assert_eq!(said.usage.prompt_segments, symbols.iter().filter(|&&symbol| symbol == 0).count());
    }
}

/// What is told of a text in windows: a symbol's probability by the window whose turn it is to score it, its mark by the next.
fn windowed(text: &[u32], Windows { length, stride }: Windows, telling: LogprobOptions) -> Vec<EmittedSymbol> {
    let tell = |at: usize| {
        let first = at.saturating_sub(1) / stride * stride;
        let start = first.saturating_sub(length - stride);
        let character = character(&text[start..], at - start, telling, at + 1 < text.len() || text.len() == 1);
        if at == 0 { EmittedSymbol { logprob: None, top: Vec::new(), ..character } } else { character }
    };
    (0..text.len()).map(tell).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn scores_windows_as_the_naive_twin(
        symbols in vec(0..SAMPLED, 1..90), logprobs: bool, top in 0usize..3, chunk in 1usize..12, length in 1usize..20,
        stride in 1usize..20,
    ) {
        let windows = Windows { length, stride: stride.min(length) };
        let toy = Toy::with(20, 20 * BYTES);
        let boundaries = BoundaryOptions::default();
        let score = Score { symbols: symbols.clone(), logprobs, top, boundaries, windows: Some(windows) };
        let session = Session::score(score, toy.card()).unwrap();
        prop_assert!(session.max_symbols() <= length);
        let said = run(session, &toy, chunk);
        let expected = windowed(&symbols, windows, LogprobOptions { logprobs, top });
        prop_assert_eq!(said.usage.prompt_segments, expected.iter().filter(|c| c.decision.is_some_and(|m| m.boundary)).count());
        prop_assert_eq!(said.characters, expected);
        prop_assert_eq!((said.reason, said.usage.prompt_chars), (FinishReason::End, symbols.len()));
        prop_assert!(toy.peak() <= length * BYTES, "more than a window was held");
    }
}

/// Steps a session alone and tells what it told after each step.
fn told_by_step(request: Generate) -> Vec<usize> {
    let toy = Toy::new();
    let mut session = Session::generate(request, toy.card()).unwrap();
    let mut rows = [SequenceRow::new(toy.begin(session.boundaries().clone()).unwrap())];
    let mut scratch = toy.scratch();
    let mut told = Vec::new();
    loop {
        session.feed(&mut rows[0], 4);
        advance(&*toy, &mut rows, &[0], &mut scratch).unwrap();
        let progress = session.absorb(&mut rows[0]).unwrap();
        told.push(session.take_output().len());
        if matches!(progress, SessionProgress::Finished(_)) {
            // Every generated symbol was fed.
            assert_eq!(rows[0].state.len(), session.usage().prompt_chars + session.usage().generated_chars);
            return told;
        }
    }
}

#[test]
fn symbols_are_told_at_once_and_a_step_later_with_marks() {
    let mut request = generate(&[1, 2, 3, 1, 2, 3], 3);
    assert_eq!(told_by_step(request.clone()), [0, 1, 1, 1, 0]);
    request.details.boundaries = true;
    assert_eq!(told_by_step(request.clone()), [0, 0, 1, 1, 1]);
    request.details.echo = true;
    assert_eq!(told_by_step(request), [4, 2, 1, 1, 1]);
}

#[test]
fn what_may_be_a_stop_string_is_held_until_decided() {
    let text: Vec<u32> = alone(Job::Generate(generate(&[1], 12)), 4).characters.iter().map(|c| c.symbol).collect();
    let mut request = generate(&[1], 12);
    // It ends otherwise than the text goes on, so its beginning is let go with the fourth symbol.
    request.stopping.stop = vec![vec![text[0], text[1], text[2], (text[3] + 1) % SAMPLED]];
    let told = told_by_step(request.clone());
    assert_eq!(told[..3], [0, 0, 0]);
    assert_eq!(told.iter().sum::<usize>(), 12);
    // At the end nothing is held.
    request.stopping.max_chars = 2;
    assert_eq!(told_by_step(request), [0, 2, 0]);
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
    let said = run(Session::generate(generate(&[1; 5], 3), toy.card()).unwrap(), &toy, 2);
    assert_eq!((said.reason, said.characters.len(), said.usage.prompt_chars), (FinishReason::MaxContext, 0, 5));
}

#[test]
fn logits_that_are_not_numbers_are_an_error() {
    let toy = Toy::new();
    let session = Session::generate(generate(&[1, NAN], 3), toy.card()).unwrap();
    assert!(matches!(session.run(&*toy, 8, &mut |_| Ok(())), Err(Error::Internal(_))));
    assert_eq!(toy.sequences(), 0);
}
