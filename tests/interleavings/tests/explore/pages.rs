//! The page pool: a page is freed once, when its last reference is dropped; a shared page is never written; the limit holds.

use crate::explore;
use std::sync::Arc;
use weir_interleavings::{
    pages::{Page, PagePool},
    sync::thread,
};

const BYTES: usize = 64;

/// Checks that the pool counts `held`, and that freed pages are distinct.
fn check_rest(pool: &Arc<PagePool>, held: usize, pages: usize) {
    assert_eq!(pool.in_use(), held * BYTES);
    let free: Vec<Page> = (held..pages).map(|_| pool.allocate(BYTES).unwrap()).collect();
    let mut ids: Vec<_> = free.iter().map(Page::id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), pages - held, "a page is free twice");
    assert!(pool.allocate(BYTES).is_err(), "the limit holds");
}

#[test]
fn the_last_reference_frees_a_page() {
    explore(|| {
        let pool = PagePool::new(2 * BYTES);
        let page = pool.allocate(BYTES).unwrap();
        let holders: Vec<_> = (0..3)
            .map(|_| {
                let page = page.clone();
                thread::spawn(move || drop(page))
            })
            .collect();
        drop(page);
        holders.into_iter().for_each(|holder| holder.join().unwrap());
        check_rest(&pool, 0, 2);
    });
}

#[test]
fn a_shared_page_is_not_written() {
    explore(|| {
        let pool = PagePool::new(4 * BYTES);
        let mut page = pool.allocate(BYTES).unwrap();
        page.bytes_mut().unwrap().fill(9);
        let writers: Vec<_> = (0..3)
            .map(|value| {
                let mut page = page.clone();
                thread::spawn(move || {
                    assert!(page.bytes().iter().all(|&byte| byte == 9), "another thread wrote the page");
                    page.bytes_mut().unwrap().fill(value);
                    thread::yield_now();
                    assert!(page.bytes().iter().all(|&byte| byte == value), "another thread wrote the copy");
                    let fork = page.clone();
                    drop(page);
                    assert_eq!(fork.references(), 1);
                })
            })
            .collect();
        let fork = page.clone();
        drop(page);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        assert!(fork.bytes().iter().all(|&byte| byte == 9) && !fork.is_shared());
        check_rest(&pool, 1, 4);
    });
}

#[test]
fn the_limit_holds_for_pages_of_several_sizes() {
    explore(|| {
        let limit = 4 * BYTES;
        let pool = PagePool::new(limit);
        let users: Vec<_> = [BYTES, 2 * BYTES, BYTES]
            .into_iter()
            .map(|bytes| {
                let pool = Arc::clone(&pool);
                thread::spawn(move || {
                    let pages: Vec<_> = (0..2).filter_map(|_| pool.allocate(bytes).ok()).collect();
                    assert!(pool.in_use() <= limit);
                    drop(pages);
                })
            })
            .collect();
        users.into_iter().for_each(|user| user.join().unwrap());
        check_rest(&pool, 0, 4);
    });
}
