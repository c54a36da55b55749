//! Data of one setting come back in another one with the same bits: dtypes, rows, threads, instruction sets, shipped models.

use super::{compress, converted, decompress, default_settings, english};
use std::{path::PathBuf, sync::Arc, time::Instant};
use weir::{
    decode::contract::Model,
    error::Error,
    family::load::{Settings, load},
    kernels::{Dtype, Isa},
};

const DEFAULT: &str = "hourglass-english";

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

#[test]
fn the_default_model_computes_the_same_bits_in_every_setting() {
    for dtype in Dtype::ALL {
        let first = model(DEFAULT, dtype, 2, Isa::detect());
        let text = english(&*first, 400);
        let data = compress(&*first, &text, 25, 16, 64).unwrap();
        for isa in fused() {
            for (threads, rows, chunk) in [(1, 1, 1), (2, 16, 256)] {
                let other = model(DEFAULT, dtype, threads, isa);
                let name = format!("{}, {threads} threads, {rows} rows, {}", dtype.name(), isa.name());
                assert!(compress(&*other, &text, 25, rows, chunk).unwrap() == data, "{name}: other data");
                assert!(decompress(&*other, &data, rows).unwrap() == text, "{name}: another text");
            }
        }
    }
}

/// One side of a round trip.
#[derive(Debug, Clone, Copy)]
struct Side {
    isa: Isa,
    threads: usize,
    rows: usize,
    /// Symbols of a step of the compressor.
    chunk: usize,
}

/// Returns the pairs of settings whose bits agree. Each pair has both counts of threads, one row against many, and steps of one
/// symbol against chunks.
fn pairs() -> Vec<(Side, Side)> {
    let fused = fused();
    let from_all = fused.iter().flat_map(|&from| fused.iter().map(move |&to| (from, to)));
    let isas = from_all.filter(|(from, to)| from != to || fused.len() == 1).chain([(Isa::portable(), Isa::portable())]);
    let both_ways = |(number, (from, to)): (usize, (Isa, Isa))| {
        let many = Side { isa: from, threads: 1 + number % 2, rows: 16, chunk: 256 };
        let one = Side { isa: to, threads: 2 - number % 2, rows: 1, chunk: 1 };
        if number % 2 == 0 { (many, one) } else { (Side { isa: from, ..one }, Side { isa: to, ..many }) }
    };
    isas.enumerate().map(both_ways).collect()
}

#[test]
fn a_text_comes_back_in_every_pair_of_settings_in_f32() {
    check_pairs(Dtype::F32);
}

#[test]
fn a_text_comes_back_in_every_pair_of_settings_in_bf16() {
    check_pairs(Dtype::Bf16);
}

#[test]
fn a_text_comes_back_in_every_pair_of_settings_in_int8() {
    check_pairs(Dtype::Int8);
}

#[test]
fn a_text_comes_back_in_every_pair_of_settings_in_int4() {
    check_pairs(Dtype::Int4);
}

/// Sends a text through a small model. `WEIR_CODEC_CHARS` sets its length. Ten million characters take hours.
#[allow(clippy::print_stdout, reason = "a long run reports its pairs")]
fn check_pairs(dtype: Dtype) {
    let count = std::env::var("WEIR_CODEC_CHARS").map_or(1000, |count| count.parse().unwrap());
    let small = |Side { isa, threads, .. }: Side| {
        load(&converted("whitespaces"), &Settings { dtype, threads, isa, ..default_settings() }).unwrap()
    };
    for (first, second) in pairs() {
        let began = Instant::now();
        let compressor = small(first);
        let text = english(&*compressor, count);
        let block = count.div_ceil(64);
        let data = compress(&*compressor, &text, block, first.rows, first.chunk).unwrap();
        let decompressor = small(second);
        let name = format!("{}: {first:?}, {second:?}", dtype.name());
        assert!(decompress(&*decompressor, &data, second.rows).unwrap() == text, "{name}: another text");
        // the whole data again would double the time
        let beginning = &text[..block.min(5000)];
        let again = |model: &dyn Model, side: Side| compress(model, beginning, 500, side.rows, side.chunk).unwrap();
        assert!(again(&*compressor, first) == again(&*decompressor, second), "{name}: other data");
        println!("{name}: {count} characters in {} bytes, {:.0?}", data.len(), began.elapsed());
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

/// Each model in each dtype, with the widest kernels and with the portable ones. The data of a chunked batch on two threads are
/// those of a stepped row on one thread and another instruction set.
#[test]
fn every_shipped_model_that_reads_texts_gives_them_back() {
    let compared = std::fs::read_dir(folder("compared")).unwrap();
    let compared = compared.map(|entry| format!("compared/{}", entry.unwrap().file_name().into_string().unwrap()));
    let mut count = 0;
    for name in compared.chain([DEFAULT.to_owned()]) {
        for dtype in Dtype::ALL {
            let another = fused().into_iter().find(|isa| *isa != Isa::detect()).unwrap_or(Isa::detect());
            // the portable kernels are slow
            for (isa, other, chars) in [(Isa::detect(), another, 60), (Isa::portable(), Isa::portable(), 18)] {
                let batched = model(&name, dtype, 2, isa);
                let text = english(&*batched, chars);
                let block = chars / 3;
                let data = match compress(&*batched, &text, block, 3, 16) {
                    Ok(data) => data,
                    Err(error) => {
                        assert_eq!(batched.card().family, "pyramidion", "{name}: {error}");
                        assert!(error.to_string().contains("one that reads subwords"), "{error}");
                        continue;
                    }
                };
                let stepped = model(&name, dtype, 1, other);
                let what = format!("{name}, {}, {} and {}", dtype.name(), isa.name(), other.name());
                assert!(compress(&*stepped, &text, block, 1, 1).unwrap() == data, "{what}: other data");
                assert!(decompress(&*stepped, &data, 16).unwrap() == text, "{what}: another text");
                assert!(decompress(&*batched, &data, 1).unwrap() == text, "{what}: another text");
                count += 1;
            }
        }
    }
    assert!(count >= 6 * 6, "{count} round trips");
}
