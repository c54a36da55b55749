//! What a step and its characters tell the metrics allocates nothing.

use super::allocations;
use std::{sync::Arc, time::Duration};
use weir::{
    decode::{
        contract::Model,
        options::{Reason, Timing, Usage},
    },
    engine::{
        handle::{Handle, Limits},
        observer::Observer,
    },
    metrics::Metrics,
};

/// Tells a meter of everything, again and again.
pub(super) fn check(model: Arc<dyn Model>) {
    let meter = Metrics::default().meter("m");
    let engine = Handle::start(model, Limits::default()).unwrap();
    meter.begin(&engine);
    let before = allocations();
    for step in 0..700 {
        meter.step(3, 3, step % 2);
        meter.queued(Duration::from_micros(step as u64));
        meter.first_char(Duration::from_millis(step as u64));
        meter.gap(Duration::from_micros(step as u64), step % 2 == 0);
        meter.finished(Ok(&Reason::MaxChars), &Usage::default(), &Timing::default());
    }
    assert_eq!(allocations() - before, 0, "metrics");
}
