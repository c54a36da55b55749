//! Tests of the table without connections.

use super::*;

const ALICE: &str = "10.0.0.1";
const BOB: &str = "10.0.0.2";

fn table(total: usize, per_network: usize) -> Arc<ConnectionTable> {
    ConnectionTable::new(ConnectionLimits { total, per_network })
}

fn connect(table: &Arc<ConnectionTable>, address: &str) -> (ConnectionPlace, Option<Admission>) {
    let place = table.begin_handshake(address.parse().unwrap());
    let admission = place.open();
    (place, admission)
}

fn is_evicted(place: &ConnectionPlace) -> bool {
    *place.evicted.borrow()
}

#[test]
fn a_handshake_replaces_the_oldest_of_the_largest_network() {
    let table = table(1024, 256);
    let bob = table.begin_handshake(BOB.parse().unwrap());
    let places: Vec<_> = (0..200).map(|_| table.begin_handshake(ALICE.parse().unwrap())).collect();
    let evicted = places.iter().take_while(|place| is_evicted(place)).count();
    assert_eq!(evicted, 201 - 128);
    assert!(!places[evicted..].iter().any(is_evicted));
    assert!(!is_evicted(&bob));
    assert_eq!(bob.open(), Some(Admission::AllCalls));
    assert_eq!(places[0].open(), None);
}

#[test]
fn an_idle_connection_gives_way_to_a_new_one_of_its_network() {
    let table = table(8, 2);
    let (busy, _) = connect(&table, ALICE);
    let calls = watch::Sender::new(0);
    let call = busy.begin_call(&calls);
    let (idle, _) = connect(&table, ALICE);
    let (bob, _) = connect(&table, BOB);
    let (_new, admission) = connect(&table, ALICE);
    assert_eq!(admission, Some(Admission::AllCalls));
    assert!(is_evicted(&idle) && !is_evicted(&busy) && !is_evicted(&bob));
    assert_eq!(*calls.borrow(), 1);
    drop(call);
    assert_eq!(*calls.borrow(), 0);
}

#[test]
fn the_least_recently_used_connection_goes_first() {
    let table = table(2, 2);
    let calls = watch::Sender::new(0);
    let (first, _) = connect(&table, ALICE);
    let (second, _) = connect(&table, ALICE);
    drop(first.begin_call(&calls));
    let (_third, _) = connect(&table, BOB);
    assert!(is_evicted(&second) && !is_evicted(&first));
}

#[test]
fn calls_that_need_no_key_keep_no_place() {
    let table = table(8, 4);
    let calls = watch::Sender::new(0);
    let (bob, _) = connect(&table, BOB);
    let _watch = bob.begin_keyless_call(&calls);
    let alices: Vec<_> = (0..7).map(|number| connect(&table, if number < 4 { ALICE } else { "10.0.0.3" }).0).collect();
    let watches: Vec<_> = alices.iter().map(|place| place.begin_keyless_call(&calls)).collect();
    let call = alices[0].begin_call(&calls);
    assert_eq!(*calls.borrow(), 9);
    let (_dave, admission) = connect(&table, "10.0.0.4");
    assert_eq!(admission, Some(Admission::AllCalls));
    let evicted: Vec<_> = alices.iter().map(is_evicted).collect();
    assert_eq!(evicted.iter().position(|evicted| *evicted), Some(1), "the oldest of Alice's without another call");
    assert_eq!(evicted.iter().filter(|evicted| **evicted).count(), 1);
    assert!(!is_evicted(&bob));
    drop((watches, call));
    assert_eq!(*calls.borrow(), 1);
}

#[test]
fn health_has_places_when_all_others_are_busy() {
    let table = table(4, 4);
    let calls = watch::Sender::new(0);
    let busy: Vec<_> = (0..4).map(|_| connect(&table, ALICE).0).collect();
    let in_progress: Vec<_> = busy.iter().map(|place| place.begin_call(&calls)).collect();
    let (bob, admission) = connect(&table, BOB);
    assert_eq!(admission, Some(Admission::HealthOnly));
    let more: Vec<_> = (0..40).map(|_| connect(&table, ALICE)).collect();
    assert!(more.iter().all(|(_, admission)| *admission == Some(Admission::HealthOnly)));
    assert!(!is_evicted(&bob), "a network with more connections goes first");
    // Also one with a check that never ends.
    let checks: Vec<_> = more.iter().map(|(place, _)| place.begin_call(&calls)).collect();
    let (carol, admission) = connect(&table, "10.0.0.3");
    assert_eq!(admission, Some(Admission::HealthOnly));
    assert!(!is_evicted(&bob) && !is_evicted(&carol));
    assert_eq!(table.places().health.len(), HEALTH_PLACES);
    drop(checks);
    drop(in_progress);
    assert_eq!(connect(&table, BOB).1, Some(Admission::AllCalls));
}

#[test]
fn places_are_freed() {
    let table = table(4, 4);
    for _ in 0..100 {
        let (place, admission) = connect(&table, ALICE);
        assert_eq!(admission, Some(Admission::AllCalls));
        drop(place.begin_call(&watch::Sender::new(0)));
        drop(table.begin_handshake(BOB.parse().unwrap()));
    }
    let places = table.places();
    assert!(places.handshakes.is_empty() && places.open.is_empty() && places.health.is_empty());
    assert!(places.by_network.is_empty());
}

#[test]
fn an_ipv6_site_is_one_network() {
    let of = |address: &str| network(address.parse().unwrap());
    assert_eq!(of("2001:db8:1:2:3::4"), of("2001:db8:1:2:ffff::1"));
    assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
    assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
}
