//! `/v1/edit`: messages and pings of a client whose session is idle, or held back.

use super::edit_socket::{Client, within};
use serde_json::json;
use std::time::{Duration, Instant};
use tokio::task::block_in_place;
use tungstenite::Message;
use weir::config::{EditingConfig, TransportConfig};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_message_delays_the_idle_limit() {
    let idle = Duration::from_millis(400);
    let editing = EditingConfig { idle, ..EditingConfig::default() };
    let server = within(TransportConfig { editing, ..TransportConfig::default() }).await;
    // On a busy machine the session may end before the message.
    for _ in 0..20 {
        let (mut client, _) = Client::connect(server.port, &[]).unwrap();
        tokio::time::sleep(idle / 2).await;
        let sent = Instant::now();
        block_in_place(|| client.0.send(Message::text("{")).unwrap());
        if client.next().get("failed").is_some() {
            assert_eq!(client.next(), json!({ "closed": { "reason": "idle" } }));
            assert!(sent.elapsed() >= idle, "{:?}", sent.elapsed());
            return;
        }
    }
    panic!("no session lived for {idle:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pings_are_answered_while_splices_exceed_their_rate() {
    let editing = EditingConfig { splice_rate: 1, ..EditingConfig::default() };
    let server = within(TransportConfig { editing, ..TransportConfig::default() }).await;
    let mut client = Client::open(&server, "a");
    (1..30).for_each(|revision| client.send(&json!({ "splice": { "revision": revision, "splices": [] } })));
    block_in_place(|| client.0.send(Message::Ping("a".into())).unwrap());
    let mut applied = 0;
    while let Message::Text(_) = block_in_place(|| client.0.read().unwrap()) {
        applied += 1;
    }
    assert!(applied < 20, "the ping waited for {applied} splices");
    drop(client);
    server.at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_messages_are_answered_in_their_turn_and_count_as_splices() {
    let editing = EditingConfig { splice_rate: 50, ..EditingConfig::default() };
    let server = within(TransportConfig { editing, ..TransportConfig::default() }).await;
    let mut client = Client::open(&server, "a");
    let began = Instant::now();
    for revision in 1..=35 {
        client.send(&json!({ "splice": { "revision": revision, "splices": [] } }));
        block_in_place(|| client.0.send(Message::text("{")).unwrap());
    }
    for revision in 1..=35 {
        assert_eq!(client.next()["applied"]["revision"], revision);
        assert_eq!(client.next()["failed"]["reason"], "UNREADABLE");
    }
    // 50 of the 70 come at once.
    assert!(began.elapsed() >= Duration::from_millis(350), "{:?}", began.elapsed());
    drop(client);
    server.at_rest().await;
}
