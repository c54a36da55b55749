//! Documents in the document cache.

use super::{alone, assert_idle, document, engine, eventually, read, submit, tenant, varied};
use crate::document_model::DocumentModel;
use std::time::Duration;
use weir::{
    decode::summary::Summarize,
    engine::{DocumentSource, Handle, Limits},
    error::{Code, Error},
};

#[test]
fn a_cached_document_is_not_encoded_again_and_belongs_to_its_tenant() {
    let model = DocumentModel::new();
    let limits = Limits { document_bytes: 1 << 20, document_keep: Duration::from_millis(400), ..Limits::default() };
    let engine = engine(&model, limits);
    let ids = document(100, 2);
    let first = read(submit(&engine, &ids, &Summarize::default(), tenant("a")).unwrap()).unwrap();
    let id = first.summary.document_id.clone().unwrap();
    let blocks = model.blocks();
    let other = Summarize { beam: Some(4), hypotheses: Some(4), ..varied(1) };
    let again = read(engine.summarize(&other, DocumentSource::Cached(id.clone()), tenant("a")).unwrap()).unwrap();
    assert_eq!(again.summary.hypotheses, alone(&ids, &other, &model));
    assert_eq!((model.blocks(), again.summary.usage.cached_chars), (blocks, ids.len()));
    assert_eq!((again.encoded, again.summary.document_id.as_ref()), (first.encoded, Some(&id)));
    let foreign = engine.summarize(&other, DocumentSource::Cached(id.clone()), tenant("b")).err().unwrap();
    assert_eq!(foreign.code(), Code::NotFound);
    assert_idle(&model, &engine);
    eventually("the entry expires", || model.alive() == 0);
    let late = engine.summarize(&other, DocumentSource::Cached(id), tenant("a")).err().unwrap();
    assert!(matches!(late, Error::UnknownDocument { .. }));
    assert_eq!((engine.document_cache_usage().hits, engine.document_cache_usage().misses), (1, 2));
}

#[test]
fn a_tenant_keeps_its_documents_while_another_stores_many() {
    let model = DocumentModel::new();
    let store = |engine: &Handle, name: &str, salt: u32| {
        let events = submit(engine, &document(100, salt), &Summarize::default(), tenant(name)).unwrap();
        read(events).unwrap().summary.document_id
    };
    let large = engine(&model, Limits { document_bytes: 1 << 20, ..Limits::default() });
    store(&large, "quiet", 1);
    let document_bytes = 5 * large.document_cache_usage().bytes;
    let engine =
        engine(&model, Limits { document_bytes, document_keep: Duration::from_secs(600), ..Limits::default() });
    let id = store(&engine, "quiet", 1).unwrap();
    for salt in 2..20 {
        assert!(store(&engine, "busy", salt).is_some());
    }
    let evictions = engine.document_cache_usage().evictions;
    assert!(evictions > 10, "the cache is full: {evictions}");
    let cached = engine.summarize(&Summarize::default(), DocumentSource::Cached(id), tenant("quiet"));
    read(cached.expect("another tenant displaced the document")).unwrap();
}
