use super::*;
use crate::decode::cost::StepCost;

/// Bytes that a symbol attends to, of each kind.
fn cost(symbols: usize, segments: usize) -> Cost {
    let step = |keys: usize| StepCost { own_bytes: keys * 8, ..StepCost::default() };
    Cost { symbol: step(symbols), segment: step(segments), logits: StepCost::default() }
}

/// Nanoseconds of a part by what a machine might take: to read weights, for each position, and for each key of each position.
fn takes(weights: f64, each: f64, key: f64, positions: usize, keys: f64) -> Duration {
    let positions = positions as f64;
    Duration::from_nanos((weights + positions * (each + key * keys)) as u64)
}

/// A round on that machine. Full resolution: 40 µs of weights after the middle layers, 30 µs else; the middle layers 160 µs.
fn timed(rows: usize, symbols: usize, context: usize, segments: usize, closed: usize) -> Cell {
    let positions = rows * symbols;
    let keys = context as f64 + symbols as f64 / 2.0;
    let full = |weights: f64| takes(weights, 2_000.0, 10.0, positions, keys);
    let inner = segments as f64 + closed as f64 / rows as f64 / 2.0;
    Cell {
        rows,
        symbols,
        context,
        context_segments: segments,
        closed,
        samples: 5,
        spread: 0.1,
        symbol: full(40_000.0),
        middle: takes(160_000.0, 8_000.0, 20.0, closed, inner),
        finish: full(40_000.0),
        plain: Some((full(30_000.0), full(30_000.0))),
    }
}

pub(super) fn table() -> Table {
    let mut cells: Vec<Cell> = [1, 2, 4, 8].map(|rows| timed(rows, 1, 16, 16, rows)).into();
    cells.extend([timed(1, 128, 0, 0, 128), timed(1, 128, 256, 256, 128), timed(1, 1, 384, 384, 1)]);
    Table::new(cells, 4096, cost, Duration::ZERO).unwrap()
}

/// What the same round takes without and with pooling, reckoned from the machine itself.
fn expected(round: &Round) -> (f64, f64) {
    let full = |weights, positions| takes(weights, 2_000.0, 10.0, positions, round.context).as_nanos() as f64;
    let middle = |positions: usize, keys| match positions {
        0 => 0.0,
        _ => takes(160_000.0, 8_000.0, 20.0, positions, keys).as_nanos() as f64,
    };
    let weights = if round.closed > 0 { 40_000.0 } else { 30_000.0 };
    let finish = if round.finished > 0 { full(weights, round.finished) } else { 0.0 };
    let pooled = full(weights, round.fed) + finish + middle(round.closed, round.segments);
    let all = round.fed + round.waiting;
    let unpooled = 2.0 * full(40_000.0, all) + middle(all, round.context);
    (unpooled, pooled)
}

impl Table {
    pub(super) fn more(&self, round: &Round) -> f64 {
        let (unpooled, pooled) = self.reckon(round);
        unpooled - pooled
    }
}

#[track_caller]
fn check(round: Round) {
    let (found, (unpooled, pooled)) = (table().more(&round), expected(&round));
    let expected = unpooled - pooled;
    assert!((found - expected).abs() < 0.02 * unpooled, "{round:?}: {found}, not {expected}");
}

fn round(fed: usize) -> Round {
    Round { fed, finished: fed, context: 100.0, segments: 20.0, ..Round::default() }
}

#[test]
fn a_round_without_middle_layers_would_have_run_them() {
    for rows in [1, 2, 3, 6, 8] {
        check(round(rows));
    }
}

#[test]
fn a_round_with_them_would_have_run_them_for_every_row_over_every_symbol() {
    check(Round { closed: 1, ..round(1) });
    check(Round { closed: 2, ..round(5) });
    check(Round { closed: 3, context: 384.0, segments: 70.0, ..round(8) });
}

#[test]
fn rows_that_wait_would_have_been_fed() {
    let waits = Round { waiting: 2, finished: 3, ..round(3) };
    check(waits);
    assert!(table().more(&waits) > table().more(&Round { waiting: 0, ..waits }));
}

#[test]
fn contexts_and_chunks_beyond_what_was_timed_go_on_as_before() {
    check(Round { context: 2000.0, segments: 350.0, closed: 1, ..round(1) });
    check(Round { context: 1000.0, segments: 150.0, closed: 4, ..round(24) });
    check(Round { chunk: true, closed: 40, context: 128.0, segments: 20.0, ..round(256) });
    check(Round { chunk: true, closed: 100, context: 900.0, segments: 150.0, ..round(100) });
}

#[test]
fn nothing_was_spared_where_every_symbol_closes_a_segment() {
    let all = Round { closed: 4, segments: 100.0, ..round(4) };
    assert!(table().more(&all).abs() < 1e-6);
    assert!(table().more(&Round::default()).abs() < 1e-6, "nothing happened");
}

#[test]
fn there_is_no_table_without_single_symbols() {
    assert!(Table::new(Vec::new(), 4096, cost, Duration::ZERO).is_none());
    assert!(Table::new(vec![timed(1, 128, 0, 0, 128)], 4096, cost, Duration::ZERO).is_none());
    let one = Table::new(vec![timed(1, 1, 16, 16, 1)], 4096, cost, Duration::ZERO).unwrap();
    assert!(one.more(&round(1)) > 160_000.0);
}

#[test]
fn a_line_goes_through_its_points() {
    let line = Line::through(vec![(8.0, 30.0), (2.0, 10.0), (8.0, 50.0), (0.0, 99.0)]).unwrap();
    assert_eq!([1.0, 2.0, 5.0, 8.0, 11.0].map(|place| line.at(place)), [10.0, 10.0, 25.0, 40.0, 55.0]);
    let one = Line::through(vec![(4.0, 20.0)]).unwrap();
    assert_eq!([1.0, 4.0, 8.0].map(|place| one.at(place)), [20.0, 20.0, 40.0]);
}

#[test]
fn a_table_of_a_busy_machine_is_doubted() {
    let told = |change: &dyn Fn(usize, &mut Cell)| {
        let mut cells = table().cells;
        cells.iter_mut().enumerate().for_each(|(index, cell)| change(index, cell));
        Table::new(cells, 4096, cost, Duration::ZERO).unwrap().doubt()
    };
    assert_eq!(told(&|_, _| {}), None);
    // at the bounds
    assert_eq!(told(&|_, cell| (cell.samples, cell.spread) = (FEW, WIDE)), None);
    // three of its seven cells are few
    assert_eq!(told(&|index, cell| cell.spread = if index < 3 { 0.9 } else { 0.05 }), None);
    let wide = told(&|index, cell| cell.spread = if index < 4 { 0.35 } else { 0.05 }).unwrap();
    assert!(wide.contains(" 35 % of their median") && wide.contains("more than 20 %"), "{wide}");
    let few = told(&|index, cell| cell.samples = if index == 6 { 4 } else { 31 }).unwrap();
    assert!(few.contains("timed 4 times, fewer than 5"), "{few}");
}
