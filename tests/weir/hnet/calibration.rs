//! Calibration of models whose states cannot be rewound: a rollback feeds symbols again, and their chunks must not count.

use super::*;
use std::{ops::ControlFlow, time::Duration};
use weir::engine::calibration::measure;

#[test]
fn measured_steps_begin_a_chunk_or_none() {
    for case in HNET_CASES {
        let model = load(&hnet_converted(case), &settings()).unwrap();
        let go_on = &mut || ControlFlow::Continue(());
        let table = measure(&*model, 2, Duration::from_secs(20), go_on).unwrap().unwrap();
        let short = table.timings.iter().filter(|timing| timing.shape.symbols == 1 && timing.shape.context < 100);
        // a step that does not do what it was chosen for has no samples
        let rows: Vec<_> = short.map(|timing| (timing.shape.rows, timing.plain.is_some())).collect();
        assert_eq!(rows, [(1, true), (2, true)], "{case}");
    }
}
