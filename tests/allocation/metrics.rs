//! Checks that recording metrics of a step and its characters does not allocate.

use super::allocations;
use std::{sync::Arc, thread, time::Duration};
use weir::{
    decode::{
        contract::Model,
        options::FinishReason,
        usage::{Timing, Usage},
    },
    engine::{
        Handle, Limits,
        observer::{EngineEvent, Observer},
    },
    metrics::Metrics,
};

/// Records every kind of event 700 times.
pub(super) fn check(model: Arc<dyn Model>) {
    let meter = Metrics::default().meter("m");
    let engine = Handle::start(model, Limits::default()).unwrap();
    meter.begin(&engine);
    let allocated = || {
        let before = allocations();
        (0..700).for_each(|step| record(&*meter, step));
        allocations() - before
    };
    // the engine's thread may still allocate its buffers, which adds to the count
    #[allow(clippy::disallowed_methods, reason = "the end of the engine's allocations cannot be observed")]
    let no_allocations = (0..100).any(|_| {
        thread::sleep(Duration::from_millis(10));
        allocated() == 0
    });
    assert!(no_allocations, "metrics");
}

fn record(meter: &dyn Observer, step: usize) {
    let took = Duration::from_micros(step as u64);
    meter.record(EngineEvent::Step { rows: 3, fed: 3, middle: step % 2 });
    meter.record(EngineEvent::Admitted(took));
    meter.record(EngineEvent::FirstChar(Duration::from_millis(step as u64)));
    meter.record(EngineEvent::Gap { gap: took, boundary: step.is_multiple_of(2) });
    let (usage, timing) = (&Usage::default(), &Timing::default());
    meter.record(EngineEvent::Finished { outcome: Ok(&FinishReason::MaxChars), usage, timing });
}
