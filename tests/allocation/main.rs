//! Checks that a steady decode step does not allocate, in the model and in the engine.
//!
//! This is a separate binary because the counting allocator is global, and a single test because concurrent tests would be
//! counted, too.

#![allow(unsafe_code, clippy::unwrap_used, reason = "an allocator is unsafe by nature; tests may unwrap")]

mod engine;
mod metrics;
mod model;

use serde_json::{Value, json};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};
use tempfile::TempDir;
use weir::{
    decode::contract::Model,
    family::{
        init,
        load::{Settings, load},
    },
    kernels::Dtype,
};

/// The system allocator with a count of allocations.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// True if allocations of this thread do not count, because it is a reader, not the engine.
    static READER: Cell<bool> = const { Cell::new(false) };
}

fn count() {
    // a thread that is ending has no such cell and does not belong to the engine
    if !READER.try_with(Cell::get).unwrap_or(true) {
        ALLOCATIONS.fetch_add(1, Relaxed);
    }
}

// SAFETY: every call is forwarded to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the contract of the allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the contract of the allocator.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of the allocator.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the number of allocations so far, of all threads except readers.
fn allocations() -> usize {
    ALLOCATIONS.load(Relaxed)
}

/// Maximum attempts per check. Threads outside the steps, such as one that prepares memory, may allocate at the same time.
/// A step that allocates does so in every attempt.
const ATTEMPTS: usize = 20;

/// Returns the configuration of a small model over the letters a to z and the space.
fn config(layers: Value, boundaries: Value) -> Value {
    let symbols: Vec<String> = std::iter::once(' ').chain('a'..='z').map(String::from).collect();
    let mut architecture = json!({
        "layers": layers, "dim": 64, "heads": 4, "head_dim": 16, "feed_forward": 128, "activation": "gelu",
        "layer_norm_eps": 1e-5, "position": "transformer-xl", "boundaries": boundaries,
    });
    if boundaries["kind"] != "none" {
        architecture["pooling"] = json!("mean");
    }
    json!({
        "format": "weir/1", "family": "hourglass", "vocabulary": {"symbols": symbols}, "normaliser": "none",
        "training_length": 512, "architecture": architecture,
    })
}

/// Returns the configuration of a small latent segment model over the same letters. Its predictor ends segments of generated
/// text, so that every step generates a character.
fn latent() -> Value {
    let special_symbols = ["<BoS>", "<eos>", "<bos>", "<nxt>", "<oov>"].map(String::from);
    let symbols: Vec<String> = std::iter::once(' ').chain('a'..='z').map(String::from).chain(special_symbols).collect();
    let specials = json!({"start": 27, "end": 28, "segment_start": 29, "segment_end": 30, "unknown": 31});
    let stack = |layers: usize| {
        json!({
            "layers": layers, "dim": 64, "heads": 4, "head_dim": 16, "feed_forward": 128, "buckets": 32,
            "max_distance": 128, "bidirectional_buckets": false,
        })
    };
    json!({
        "format": "weir/1", "family": "lslm", "vocabulary": {"symbols": symbols, "specials": specials},
        "normaliser": "none", "training_length": 512,
        "architecture": {
            "token": stack(1), "context": stack(2), "decoder": stack(1), "norm_eps": 1e-6, "pooling": {"hops": 1},
            "boundaries": {"kind": "learned", "hidden": 32, "threshold": 0.5}, "widths": "equal",
            "shared_embedding": true, "tied_head": false, "driver": "predictor",
        },
    })
}

/// Returns the configuration of an hourglass model with xPos, windows and n-grams.
fn windowed() -> Value {
    let mut config = config(json!({"pre": 1, "middle": 2, "post": 1}), json!({"kind": "whitespace", "symbol": " "}));
    for (key, value) in [
        ("position", json!({"xpos": {"scale_base": 512}})),
        ("ngrams", json!({"sizes": [3, 4, 5], "rows": 50})),
        ("window", json!({"blockwise": {"length": 128}})),
        ("middle_window", json!({"sliding": {"keys": 40}})),
    ] {
        config["architecture"][key] = value;
    }
    config
}

/// Returns the configuration of a plain decoder.
fn decoder() -> Value {
    let mut config = config(json!(2), json!({"kind": "none"}));
    config["family"] = json!("decoder");
    let architecture = config["architecture"].as_object_mut().unwrap();
    architecture.remove("boundaries");
    architecture.extend(["sub_norms", "scale_embedding", "tied"].map(|key| (key.to_owned(), json!(true))));
    architecture.insert("position".into(), json!({"xpos": {"scale_base": 512}}));
    architecture.insert("window".into(), json!({"blockwise": {"length": 128}}));
    config
}

/// Creates a checkpoint of each configuration and returns their folders, with that of the shipped model.
fn folders(root: &Path) -> Vec<PathBuf> {
    let pooled_layers = json!({"pre": 1, "middle": 2, "post": 1});
    fs::write(root.join("companion.json"), config(json!({"pre": 1}), json!({"kind": "none"})).to_string()).unwrap();
    let spikes = json!({"kind": "entropy-spikes", "window": 2, "companion": "companion"});
    let learned = json!({"kind": "learned", "hidden": 32, "threshold": 0.5});
    let created = [
        ("vanilla", config(json!({"pre": 3}), json!({"kind": "none"}))),
        ("spikes", config(pooled_layers.clone(), spikes)),
        ("learned", config(pooled_layers, learned)),
        ("latent", latent()),
        ("windowed", windowed()),
        ("decoder", decoder()),
    ]
    .map(|(name, config)| {
        let file = root.join(format!("{name}.json"));
        let to = root.join(name);
        fs::write(&file, config.to_string()).unwrap();
        init::init(&file, &to, 3, false).unwrap();
        to
    });
    let english = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/hourglass-english");
    [&[english][..], &created].concat()
}

#[test]
fn a_steady_decode_step_allocates_nothing() {
    let root = TempDir::new().unwrap();
    for folder in folders(root.path()) {
        for dtype in Dtype::ALL {
            for threads in [1, 2] {
                let settings = Settings { threads, dtype, memory_bytes: 1 << 30, ..Settings::default() };
                let model: Arc<dyn Model> = load(&folder, &settings).unwrap();
                model::check(&*model);
                engine::check(Arc::clone(&model));
                metrics::check(model);
            }
        }
    }
}
