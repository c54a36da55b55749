//! A generation that resumes after a part of its own text emits the rest, bit for bit.

use super::{super::support::text_symbols, on_each};
use weir::decode::{
    contract::{BoundaryMode, BoundaryOptions},
    options::{Details, EmittedSymbol, FinishReason, Generate, Sampling, Stopping},
    session::Session,
    usage::Usage,
};

const CHARS: usize = 40;

#[test]
fn a_resumed_generation_is_the_rest_of_the_whole() {
    on_each(|configuration, dice| {
        let model = &*configuration.model;
        if model.document_encoder().is_some() {
            return;
        }
        let run = |request: Generate, chunk: usize| -> (Vec<EmittedSymbol>, FinishReason, Usage) {
            let mut emitted = Vec::new();
            let session = Session::generate(request, model.card()).unwrap();
            let mut emit = |symbols: Vec<_>| {
                emitted.extend(symbols);
                Ok(())
            };
            let (reason, usage) = session.run(model, chunk, &mut emit).unwrap();
            (emitted, reason, usage)
        };
        let predictor = model.card().boundary_modes.contains(&BoundaryMode::Predictor);
        let modes = [configuration.boundaries.mode, Some(BoundaryMode::Predictor)];
        for mode in modes.into_iter().take(if predictor { 2 } else { 1 }) {
            let numbers: Vec<u32> = (0..20 + dice.below(20)).map(|_| dice.below(1000) as u32).collect();
            let request = Generate {
                prompt: text_symbols(model, &numbers),
                sampling: Sampling { seed: dice.below(1000) as u64, repetition_penalty: 1.1, ..Sampling::default() },
                stopping: Stopping {
                    max_chars: CHARS,
                    max_segments: model.card().pooled.then_some(12),
                    ..Stopping::default()
                },
                details: Details { logprobs: true, boundaries: true, ..Details::default() },
                boundaries: BoundaryOptions { mode, ..configuration.boundaries.clone() },
                resumed: Vec::new(),
                speculation: None,
            };
            let (emitted, reason, usage) = run(request.clone(), 16);
            for cut in [dice.below(emitted.len()), dice.below(emitted.len() + 1), emitted.len()] {
                let resumed: Vec<u32> = emitted[..cut].iter().map(|emitted| emitted.symbol).collect();
                let (rest, own_reason, own_usage) = run(Generate { resumed, ..request.clone() }, 16);
                let name = format!("{}, mode {mode:?}, {cut} of {}", configuration.name, emitted.len());
                assert_eq!(rest, emitted[cut..], "{name}");
                assert_eq!(own_reason, reason, "{name}");
                assert_eq!(Usage { resumed_chars: 0, ..own_usage }, usage, "{name}");
                assert_eq!(own_usage.resumed_chars, cut - usize::from(cut > own_usage.generated_chars), "{name}");
            }
        }
    });
}
