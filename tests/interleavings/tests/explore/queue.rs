//! The queue between handles and worker: every request runs, ends, or is rejected, each once, also when the engine closes.

use crate::explore;
use weir_interleavings::{SharedState, sync::thread};

/// Threads that submit requests, each as another tenant.
const CLIENTS: usize = 3;
/// Requests of each client.
const REQUESTS: usize = 2;

/// Works until the queue is closed. Returns all requests that ran or ended.
fn work(queue: &SharedState) -> Vec<usize> {
    let mut seen = Vec::new();
    loop {
        let taken = queue.work();
        let is_idle = taken.ran.is_empty();
        seen.extend(taken.ran);
        seen.extend(taken.ended);
        if taken.is_closed {
            return seen;
        }
        if is_idle {
            queue.wait();
        }
    }
}

/// Submits the requests of all clients while a worker runs and `meanwhile` changes the state, and then closes the engine.
fn run(meanwhile: fn(&SharedState)) {
    explore(move || {
        let queue = SharedState::new(1, 2);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let queue = queue.clone();
                let requests = client * REQUESTS..(client + 1) * REQUESTS;
                let submit = move |request: &usize| !queue.submit(*request, &client.to_string());
                thread::spawn(move || requests.filter(submit).collect::<Vec<_>>())
            })
            .collect();
        let worker = {
            let queue = queue.clone();
            thread::spawn(move || work(&queue))
        };
        meanwhile(&queue);
        let mut seen: Vec<_> = clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
        queue.close();
        seen.extend(worker.join().unwrap());
        seen.sort_unstable();
        assert_eq!(seen, (0..CLIENTS * REQUESTS).collect::<Vec<_>>());
    });
}

#[test]
fn every_request_is_answered_once() {
    run(|_| ());
}

#[test]
fn an_engine_closes_at_any_time() {
    run(SharedState::close);
}

#[test]
fn an_engine_drains_at_any_time() {
    run(SharedState::drain);
}

/// The worker takes requests that are queued at once in one round, so that their rows share each step.
#[test]
fn requests_queued_at_once_run_together() {
    explore(|| {
        let queue = SharedState::new(2, 4);
        let worker = {
            let queue = queue.clone();
            thread::spawn(move || {
                let mut ran = Vec::new();
                while ran.is_empty() {
                    ran = queue.work().ran;
                    if ran.is_empty() {
                        queue.wait();
                    }
                }
                ran
            })
        };
        assert_eq!(queue.submit_all([0, 1], "a"), 2);
        assert_eq!(worker.join().unwrap(), [0, 1]);
    });
}

#[test]
fn requests_before_a_rejected_one_are_counted() {
    explore(|| {
        // one runs; a tenant may have half of the queue
        let queue = SharedState::new(1, 6);
        let client = {
            let queue = queue.clone();
            thread::spawn(move || queue.submit_all(0..8, "a"))
        };
        queue.drain();
        let queued = client.join().unwrap();
        assert!(queued == 0 || queued == 4, "{queued}");
        queue.close();
        assert_eq!(queue.work().ended, (0..queued).collect::<Vec<_>>());
    });
}
