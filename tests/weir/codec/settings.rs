//! Data of one setting come back in another one with the same bits: dtypes, rows, threads, instruction sets, shipped models.

use super::{compress, decompress, default_settings, english};
use std::{path::PathBuf, sync::Arc};
use weir::{
    decode::contract::Model,
    error::Error,
    family::load::{Settings, load},
    kernels::{Dtype, Isa},
};

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models").join(name)
}

fn model(name: &str, dtype: Dtype, threads: usize, isa: Isa) -> Arc<dyn Model> {
    load(&folder(name), &Settings { dtype, threads, isa, ..default_settings() }).unwrap()
}

/// Returns the instruction sets with the same bits as the widest one.
fn fused() -> Vec<Isa> {
    Isa::all().into_iter().filter(|isa| isa.fuses() == Isa::detect().fuses()).collect()
}

/// `WEIR_CODEC_CHARS` sets the length of the text, by default 400 characters.
#[test]
fn the_default_model_computes_the_same_bits_in_every_setting() {
    const MODEL: &str = "hourglass-whitespace-english";
    let count = std::env::var("WEIR_CODEC_CHARS").map_or(400, |count| count.parse().unwrap());
    for dtype in Dtype::ALL {
        let first = model(MODEL, dtype, 2, Isa::detect());
        let text = english(&*first, count);
        let block = count.div_ceil(16);
        let data = compress(&*first, &text, block, 16, 64).unwrap();
        for isa in fused() {
            for (threads, rows, chunk) in [(1, 1, 1), (2, 16, 256)] {
                let other = model(MODEL, dtype, threads, isa);
                let name = format!("{}, {threads} threads, {rows} rows, {}", dtype.name(), isa.name());
                assert!(compress(&*other, &text, block, rows, chunk).unwrap() == data, "{name}: other data");
                assert!(decompress(&*other, &data, rows).unwrap() == text, "{name}: another text");
            }
        }
    }
}

#[test]
fn the_portable_kernels_read_their_own_data_only() {
    const MODEL: &str = "compared/decoder-xpos-3m";
    let portable = model(MODEL, Dtype::F32, 1, Isa::portable());
    let text = english(&*portable, 120);
    let data = compress(&*portable, &text, 64, 2, 16).unwrap();
    assert_eq!(decompress(&*portable, &data, 1).unwrap(), text);
    if Isa::detect().fuses() == Isa::portable().fuses() {
        return;
    }
    let fused = model(MODEL, Dtype::F32, 1, Isa::detect());
    let error = decompress(&*fused, &data, 1).unwrap_err();
    assert!(matches!(error, Error::CompressedWith { what: "multiply-adds that round", .. }), "{error}");
}

#[test]
fn every_shipped_model_that_reads_texts_gives_them_back() {
    let mut count = 0;
    for entry in std::fs::read_dir(folder("compared")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let model = model(&format!("compared/{name}"), Dtype::F32, 2, Isa::detect());
        let text = english(&*model, 150);
        match compress(&*model, &text, 60, 3, 16) {
            Ok(data) => {
                assert!(decompress(&*model, &data, 2).unwrap() == text, "{name}");
                count += 1;
            }
            Err(error) => {
                assert_eq!(model.card().family, "pyramidion", "{name}: {error}");
                assert!(error.to_string().contains("one that reads subwords"), "{error}");
            }
        }
    }
    assert!(count >= 5, "{count} models");
}
