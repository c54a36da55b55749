//! Long requests of one tenant to a model that candle runs delay no other tenant's.

use super::{
    eventually,
    hugging_face::{ENDLESS, MODELS, PROMPT, Served, request},
    read,
    tls_and_keys::{ALICE, BOB, alice_and_bob, bearing},
};
use crate::support::settings;
use std::{future::Future, pin::Pin};
use tokio::task::JoinSet;
use tonic::{Status, transport::Channel};
use weir::{config::TransportConfig, engine::Limits};
use weir_proto::v1::{ScoreRequest, Windows, generation_client::GenerationClient};

/// Rows of the engine.
const ROWS: usize = 2;
/// Long requests of one tenant at the same time.
const LONG: usize = 6;

type Call = Pin<Box<dyn Future<Output = Result<(), Status>> + Send>>;

/// A generation that takes many seconds.
fn generation(mut client: GenerationClient<Channel>) -> Call {
    Box::pin(async move {
        let request = bearing(request(PROMPT, ENDLESS), &[ALICE]);
        read(client.generate(request).await?.into_inner()).await.map(drop)
    })
}

/// The score of a text that takes many seconds: each token is computed some hundred times.
fn score(mut client: GenerationClient<Channel>) -> Call {
    Box::pin(async move {
        let windows = Some(Windows { length: 200, stride: 1 });
        let request = ScoreRequest { text: PROMPT.repeat(200), windows, ..Default::default() };
        let mut stream = client.score(bearing(request, &[ALICE])).await?.into_inner();
        while stream.message().await?.is_some() {}
        Ok(())
    })
}

/// One tenant fills all rows and the queue; short requests of another end before any of these.
#[tokio::test]
async fn long_requests_of_one_tenant_delay_no_other() {
    for model_type in MODELS {
        for long in [generation, score] {
            let limits = Limits { rows: ROWS, cache_bytes: 0, ..Limits::default() };
            let config = TransportConfig { access: alice_and_bob(), ..TransportConfig::default() };
            let server = Served::with(model_type, settings(), limits, config).await;
            let mut calls = JoinSet::new();
            for _ in 0..LONG {
                calls.spawn(long(server.generation()));
            }
            eventually("alice has all rows and waits", || server.engine.load().queued == LONG - ROWS).await;
            for _ in 0..2 {
                let short = bearing(request(PROMPT, 4), &[BOB]);
                let answer = read(server.generation().generate(short).await.unwrap().into_inner()).await.unwrap();
                assert_eq!(answer.finished.usage.unwrap().generated_chars, 4);
                assert!(calls.try_join_next().is_none(), "{model_type}: bob's requests wait for alice's");
            }
            eventually("alice has all rows again", || {
                let load = server.engine.load();
                (load.running, load.queued) == (ROWS, LONG - ROWS)
            })
            .await;
            calls.shutdown().await;
            server.at_rest().await;
        }
    }
}
