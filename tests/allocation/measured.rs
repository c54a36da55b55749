//! What a step and its characters tell the metrics allocates nothing.

use super::allocations;
use std::{sync::Arc, thread, time::Duration};
use weir::{
    decode::{
        contract::Model,
        options::FinishReason,
        usage::{Timing, Usage},
    },
    engine::{Handle, Limits, observer::Observer},
    metrics::Metrics,
};

/// Tells a meter of everything, again and again.
pub(super) fn check(model: Arc<dyn Model>) {
    let meter = Metrics::default().meter("m");
    let engine = Handle::start(model, Limits::default()).unwrap();
    meter.begin(&engine);
    let allocated = || {
        let before = allocations();
        (0..700).for_each(|step| tell(&*meter, step));
        allocations() - before
    };
    // the engine's own thread is still making its buffers, which can only add to what is counted
    #[allow(clippy::disallowed_methods, reason = "there is nothing to wait for: nobody tells when it is done")]
    let quiet = (0..100).any(|_| {
        thread::sleep(Duration::from_millis(10));
        allocated() == 0
    });
    assert!(quiet, "metrics");
}

fn tell(meter: &dyn Observer, step: usize) {
    meter.step(3, 3, step % 2);
    meter.queued(Duration::from_micros(step as u64));
    meter.first_char(Duration::from_millis(step as u64));
    meter.gap(Duration::from_micros(step as u64), step.is_multiple_of(2));
    meter.finished(Ok(&FinishReason::MaxChars), &Usage::default(), &Timing::default());
}
