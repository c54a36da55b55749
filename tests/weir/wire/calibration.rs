//! Doubtful calibrations are repeated when the server is quiet. The clock is virtual.

use super::fake_model::{Fake, Kind};
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, sleep};
use weir::{
    decode::options::Generate,
    engine::{Job, Limits},
    serve::Engines,
};

#[tokio::test(start_paused = true)]
async fn a_doubtful_calibration_is_repeated_after_growing_idle_times() {
    let engines = Engines::default();
    // There is time for one sample, too few for a reliable calibration.
    let limits = Limits { calibration: Duration::from_nanos(1), ..Limits::default() };
    let into = engines.clone();
    let launch = move || into.add(into.launch(Fake::new("fake", Kind::Pooled), limits, None).unwrap()).unwrap();
    tokio::task::spawn_blocking(launch).await.unwrap();
    let engine = engines.find("model", None).unwrap();
    let began = Instant::now();
    let calibrating = tokio::spawn(engines.calibrate_when_idle());
    // This time lies between the server's polls, which are at even seconds.
    sleep(Duration::from_millis(20_500)).await;
    let busy = engine.clone();
    let answer = move || {
        let request = Generate::from_text("ab cd", busy.card()).unwrap();
        let mut events = busy.submit(Job::Generate(request), None).unwrap();
        while events.blocking_recv().is_some() {}
    };
    // While a blocking task runs, the virtual clock stands still.
    tokio::task::spawn_blocking(answer).await.unwrap();
    let mut known = engine.calibration().unwrap().unwrap();
    let mut repeated = Vec::new();
    while began.elapsed() < Duration::from_secs(5 * 3600) {
        sleep(Duration::from_secs(1)).await;
        let table = engine.calibration().unwrap().unwrap();
        assert!(table.doubt().is_some());
        if !Arc::ptr_eq(&table, &known) {
            repeated.push(began.elapsed().as_secs());
            known = table;
        }
    }
    // The server saw at 22 seconds that a request had come. It has been idle since.
    assert_eq!(repeated, [30, 2 * 60, 10 * 60, 60 * 60].map(|idle| 22 + idle));
    calibrating.abort();
}
