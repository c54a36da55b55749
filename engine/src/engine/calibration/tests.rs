//! Tests of tables of step times, with an artificial machine.

use super::{
    curves::PiecewiseLinear,
    table::{MAX_SPREAD, MIN_SAMPLES},
    *,
};
use crate::{
    decode::cost::{Cost, StepCost},
    error::Error,
};
use std::time::Duration;

/// Bytes that a symbol or segment attends to.
fn cost(symbols: usize, segments: usize) -> Cost {
    let step = |keys: usize| StepCost { own_bytes: keys * 8, ..StepCost::default() };
    Cost { symbol: step(symbols), segment: step(segments), logits: StepCost::default(), ..Cost::default() }
}

/// Time of a part on the artificial machine, in nanoseconds: for its weights, for each position, for each key of a position.
fn part(weights: f64, position: f64, key: f64, positions: usize, keys: f64) -> Duration {
    let positions = positions as f64;
    Duration::from_nanos((weights + positions * (position + key * keys)) as u64)
}

/// Full resolution: the weights take 40 µs after the middle stack and 30 µs otherwise.
fn full(weights: f64, positions: usize, keys: f64) -> Duration {
    part(weights, 2_000.0, 10.0, positions, keys)
}

/// The weights of the middle stack take 160 µs.
fn middle(positions: usize, keys: f64) -> Duration {
    part(160_000.0, 8_000.0, 20.0, positions, keys)
}

fn timing(rows: usize, symbols: usize, context: usize, segments: usize, closed: usize) -> StepTiming {
    let positions = rows * symbols;
    let keys = context as f64 + symbols as f64 / 2.0;
    let plain = full(30_000.0, positions, keys);
    StepTiming {
        shape: StepShape { rows, symbols, context, context_segments: segments, closed },
        samples: 5,
        spread: 0.1,
        symbol: full(40_000.0, positions, keys),
        middle: middle(closed, segments as f64 + closed as f64 / rows as f64 / 2.0),
        finish: full(40_000.0, positions, keys),
        plain: Some(PlainTiming { symbol: plain, finish: plain }),
    }
}

fn new_table(timings: Vec<StepTiming>) -> Option<TimingTable> {
    TimingTable::new(timings, 4096, cost, Duration::ZERO)
}

pub(super) fn table() -> TimingTable {
    let mut timings: Vec<StepTiming> = [1, 2, 4, 8].map(|rows| timing(rows, 1, 16, 16, rows)).into();
    timings.extend([timing(1, 128, 0, 0, 128), timing(1, 128, 256, 256, 128), timing(1, 1, 384, 384, 1)]);
    new_table(timings).unwrap()
}

impl TimingTable {
    /// Estimated nanoseconds that a step would take more without pooling.
    pub(super) fn extra(&self, step: &EngineStep) -> f64 {
        let estimate = self.estimate(step);
        estimate.unpooled - estimate.pooled
    }
}

/// Compares the estimate with the times of the artificial machine.
#[track_caller]
fn check(step: EngineStep) {
    let nanoseconds = |took: Duration| took.as_nanos() as f64;
    let middle = |positions, keys| if positions == 0 { 0.0 } else { nanoseconds(middle(positions, keys)) };
    let weights = if step.closed > 0 { 40_000.0 } else { 30_000.0 };
    let finish = if step.finished > 0 { full(weights, step.finished, step.context) } else { Duration::ZERO };
    let pooled = nanoseconds(full(weights, step.fed, step.context) + finish) + middle(step.closed, step.segments);
    let positions = step.fed + step.waiting;
    let unpooled = 2.0 * nanoseconds(full(40_000.0, positions, step.context)) + middle(positions, step.context);
    let actual = table().extra(&step);
    let expected = unpooled - pooled;
    assert!((actual - expected).abs() < 0.02 * unpooled, "{step:?}: {actual}, not {expected}");
}

fn step(fed: usize) -> EngineStep {
    EngineStep { fed, finished: fed, context: 100.0, segments: 20.0, ..EngineStep::default() }
}

#[test]
fn without_pooling_every_step_runs_the_middle_stack() {
    for rows in [1, 2, 3, 6, 8] {
        check(step(rows));
    }
}

#[test]
fn without_pooling_a_segment_step_takes_every_row_and_attends_to_every_symbol() {
    check(EngineStep { closed: 1, ..step(1) });
    check(EngineStep { closed: 2, ..step(5) });
    check(EngineStep { closed: 3, context: 384.0, segments: 70.0, ..step(8) });
}

#[test]
fn without_pooling_waiting_rows_would_be_fed() {
    let waits = EngineStep { waiting: 2, finished: 3, ..step(3) };
    check(waits);
    assert!(table().extra(&waits) > table().extra(&EngineStep { waiting: 0, ..waits }));
}

#[test]
fn contexts_and_chunks_beyond_the_measured_ones_are_extrapolated() {
    check(EngineStep { context: 2000.0, segments: 350.0, closed: 1, ..step(1) });
    check(EngineStep { context: 1000.0, segments: 150.0, closed: 4, ..step(24) });
    check(EngineStep { chunk: true, closed: 40, context: 128.0, segments: 20.0, ..step(256) });
    check(EngineStep { chunk: true, closed: 100, context: 900.0, segments: 150.0, ..step(100) });
}

#[test]
fn pooling_saves_nothing_if_every_symbol_closes_a_segment() {
    let all = EngineStep { closed: 4, segments: 100.0, ..step(4) };
    assert!(table().extra(&all).abs() < 1e-6);
    assert!(table().extra(&EngineStep::default()).abs() < 1e-6, "an empty step");
}

#[test]
fn a_table_needs_single_symbols() {
    assert!(new_table(Vec::new()).is_none());
    assert!(new_table(vec![timing(1, 128, 0, 0, 128)]).is_none());
    let single = new_table(vec![timing(1, 1, 16, 16, 1)]).unwrap();
    assert!(single.extra(&step(1)) > 160_000.0);
}

#[test]
fn a_line_goes_through_its_points() {
    let line = PiecewiseLinear::through(vec![(8.0, 30.0), (2.0, 10.0), (8.0, 50.0), (0.0, 99.0)]).unwrap();
    assert_eq!([1.0, 2.0, 5.0, 8.0, 11.0].map(|x| line.evaluate(x)), [10.0, 10.0, 25.0, 40.0, 55.0]);
    let single = PiecewiseLinear::through(vec![(4.0, 20.0)]).unwrap();
    assert_eq!([1.0, 4.0, 8.0].map(|x| single.evaluate(x)), [20.0, 20.0, 40.0]);
}

#[test]
fn a_table_of_a_busy_machine_is_doubted() {
    let doubt = |change: &dyn Fn(usize, &mut StepTiming)| {
        let mut timings = table().timings;
        timings.iter_mut().enumerate().for_each(|(index, timing)| change(index, timing));
        new_table(timings).unwrap().doubt()
    };
    assert_eq!(doubt(&|_, _| {}), None);
    // at the limits
    let at_limits = |_: usize, timing: &mut StepTiming| {
        timing.samples = MIN_SAMPLES;
        timing.spread = MAX_SPREAD;
    };
    assert_eq!(doubt(&at_limits), None);
    // three of seven steps are a minority
    assert_eq!(doubt(&|index, timing| timing.spread = if index < 3 { 0.9 } else { 0.05 }), None);
    let wide = doubt(&|index, timing| timing.spread = if index < 4 { 0.35 } else { 0.05 }).unwrap();
    assert!(wide.contains(" 35 % of their median") && wide.contains("more than 20 %"), "{wide}");
    let few = doubt(&|index, timing| timing.samples = if index == 6 { 4 } else { 31 }).unwrap();
    assert!(few.contains("timed 4 times, fewer than 5"), "{few}");
}

/// Returns a table of a busy machine.
fn doubtful_table() -> TimingTable {
    let mut timings = table().timings;
    timings.iter_mut().for_each(|timing| timing.spread = 0.9);
    new_table(timings).unwrap()
}

#[test]
fn a_doubtful_calibration_is_replaced_and_a_reliable_one_is_final() {
    let latest = LatestCalibration::default();
    let known = || latest.get().and_then(Result::ok).map(|table| table.doubt().is_some());
    assert_eq!(latest.measure(|| Ok(Err(NotCalibrated::Stopped))), Err(NotCalibrated::Stopped));
    assert!(latest.get().is_none(), "it may be tried again");
    assert!(latest.measure(|| Ok(Ok(doubtful_table()))).unwrap().doubt().is_some());
    assert_eq!(known(), Some(true));
    // A repetition that fails reports it, and keeps the doubtful table.
    for failure in [NotCalibrated::Stopped, NotCalibrated::NoMemory] {
        assert_eq!(latest.measure(|| Ok(Err(failure))), Err(failure));
    }
    assert_eq!(latest.measure(|| Err(Error::Internal("x".into()))), Err(NotCalibrated::Failed));
    assert_eq!(latest.measure(|| panic!("x")), Err(NotCalibrated::Failed));
    assert_eq!(known(), Some(true));
    assert!(latest.measure(|| Ok(Ok(table()))).unwrap().doubt().is_none());
    assert_eq!(known(), Some(false));
    // A reliable table and a failure at first are final: nothing is measured.
    latest.measure(|| unreachable!()).unwrap();
    let failed = LatestCalibration::default();
    assert_eq!(failed.measure(|| Ok(Err(NotCalibrated::NoBoundary))), Err(NotCalibrated::NoBoundary));
    assert_eq!(failed.measure(|| Ok(Ok(table()))), Err(NotCalibrated::NoBoundary));
}
