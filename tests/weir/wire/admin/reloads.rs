//! Many reloads of a model while clients call it.

use super::*;
use std::collections::BTreeSet;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reloads_under_load_lose_nothing() {
    const CLIENTS: u64 = 8;
    const RELOADS: u64 = 5;
    let server = Exchange::new().await;
    // Collects the texts of all generations, per seed.
    let mut texts_by_seed: Vec<BTreeSet<String>> = vec![BTreeSet::new(); CLIENTS as usize];
    let clients: Vec<_> = (0..CLIENTS)
        .map(|seed| {
            let client = server.generation();
            let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
            let task = tokio::spawn(async move {
                let mut texts = Vec::new();
                while stopped.is_empty() && !stopped.is_terminated() {
                    texts.push(text(client.clone(), "first", seed).await.unwrap());
                }
                texts
            });
            (stop, task)
        })
        .collect();
    for reload in 0..=RELOADS {
        if reload > 0 {
            let loaded = server.load(None, Some("first")).await.unwrap();
            assert_eq!((loaded.generation.unwrap().number, loaded.draining), (reload + 1, Some(reload)));
        }
        for seed in 0..CLIENTS {
            texts_by_seed[seed as usize].insert(server.text("first", seed).await.unwrap());
        }
    }
    let mut seen = 0;
    for (seed, (stop, task)) in clients.into_iter().enumerate() {
        let _ = stop.send(());
        for text in task.await.unwrap() {
            assert!(texts_by_seed[seed].contains(&text), "text of no generation: {text:?}");
            seen += 1;
        }
    }
    assert!(seen > 0 && texts_by_seed.iter().all(|texts| texts.len() == RELOADS as usize + 1), "{texts_by_seed:?}");
    server.drained().await;
    assert_eq!(server.states().await, [("first".into(), RELOADS + 1, State::Serving)]);
    for reload in 0..RELOADS as usize {
        let fake = server.fake(reload);
        eventually("old engines are dropped", || Arc::strong_count(&fake) == 2).await;
    }
}
