//! Bytes and operations of a step for a given model shape, compared with figures computed by hand.

use crate::{
    hourglass::folder,
    support::{converted, fixture, hnet_in, settings},
};
use std::path::Path;
use weir::{
    decode::cost::{Cost, StepCost},
    family::load::{Settings, load},
    kernels::Dtype,
};

/// Returns the bytes of a matrix in its layout: outputs padded to groups of 16, also in biases and in int8's
/// scales and sums; for int8 inputs padded to groups of 4, for int4 to 32.
fn matrix_bytes(dtype: Dtype, outputs: usize, inputs: usize) -> usize {
    let padded = outputs.next_multiple_of(16);
    match dtype {
        Dtype::F32 => padded * inputs * 4 + padded * 4,
        Dtype::Bf16 => padded * inputs * 2 + padded * 4,
        // Each output has a bias, a scale and a sum of bytes.
        Dtype::Int8 => padded * inputs.next_multiple_of(4) + 3 * padded * 4,
        // 32 inputs have half a byte each and one multiplier. Each output has a bias and a scale.
        Dtype::Int4 => padded * inputs.div_ceil(32) * (16 + 1) + 2 * padded * 4,
    }
}

/// Layers (1, 2, 1), D = 32, 4 heads of 8, F = 64, V = 27; the head is padded to 32 outputs.
#[test]
fn the_cost_of_a_fixture_follows_from_its_shape() {
    const F32: usize = 4;
    let shapes = [(96, 32), (32, 32), (64, 32), (32, 64)];
    let products: usize = shapes.iter().map(|(outputs, inputs)| outputs * inputs).sum();
    // Bytes per distance (R) and per key-value pair of all heads. int8 adds one and two scales per head; int4 has the same.
    for (dtype, distance, pair, by_hand) in [
        (Dtype::F32, 32 * 4, 2 * 32 * 4, [79_104, 20_480, 70_912, 4_096, 4_224]),
        (Dtype::Bf16, 32 * 2, 2 * 32 * 2, [41_216, 10_240, 37_120, 2_048, 2_176]),
        (Dtype::Int8, 32 + 4 * F32, 2 * 32 + 4 * 2 * F32, [27_136, 7_680, 24_064, 1_536, 1_408]),
        (Dtype::Int4, 32 + 4 * F32, 2 * 32 + 4 * 2 * F32, [17_664, 7_680, 14_592, 1_536, 800]),
    ] {
        let matrices: usize = shapes.iter().map(|&(outputs, inputs)| matrix_bytes(dtype, outputs, inputs)).sum();
        let layer = matrices + 2 * 2 * 32 * F32;
        // 40 keys need R of 40 distances, u and v, keys and values. Each score takes two products, and each value takes
        // one.
        let symbol = StepCost {
            shared_bytes: 2 * (layer + 40 * distance + 2 * 32 * F32),
            own_bytes: 2 * 40 * pair,
            multiply_adds: 2 * (products + 3 * 40 * 32),
        };
        // The two middle layers read seven segments and the null group, after the norm of the pooled vectors.
        let segment = StepCost {
            shared_bytes: 2 * layer + 2 * 8 * distance + 2 * 32 * F32 + 2 * 32 * F32,
            own_bytes: 2 * 8 * pair,
            multiply_adds: 2 * (products + 3 * 8 * 32),
        };
        let head = matrix_bytes(dtype, 27, 32);
        let logits = StepCost { shared_bytes: head, own_bytes: 0, multiply_adds: 27 * 32 };
        let model = load(&converted("whitespaces"), &Settings { dtype, ..settings() }).unwrap();
        assert_eq!(model.cost(40, 7), Cost { symbol, segment, logits, ..Cost::default() }, "{dtype:?}");
        let counted = [symbol.shared_bytes, symbol.own_bytes, segment.shared_bytes, segment.own_bytes, head];
        assert_eq!(counted, by_hand, "{dtype:?}");
    }
}

#[test]
fn a_vanilla_model_has_no_segment_step() {
    assert_eq!(fixture("vanilla").cost(40, 0).segment, StepCost::default());
}

/// The layers inside a level are read only where its chunks begin.
#[test]
fn deeper_levels_add_to_a_segment_step() {
    let one = hnet_in("one_stage", Dtype::F32).cost(40, 7);
    assert_eq!((one.deeper, one.segment_step(2)), (StepCost::default(), one.segment));
    let two = hnet_in("two_stage", Dtype::F32).cost(40, 7);
    assert_eq!((two.segment_step(0), two.segment_step(1)), (StepCost::default(), two.segment));
    let mut both = two.segment;
    both += two.deeper;
    assert_eq!((two.segment_step(2), two.segment_step(3)), (both, both));
    // the stack inside both levels, T2 × 64, has at least its matrices: four of 64 × 64 and three of 64 × 128, twice
    assert!(two.deeper.multiply_adds > 2 * (4 * 64 * 64 + 3 * 64 * 128) && two.deeper.own_bytes > 0);
}

#[test]
fn boundary_deciders_are_read_at_every_symbol() {
    for dtype in Dtype::ALL {
        let settings = Settings { dtype, ..settings() };
        let cost = |dir: &Path| load(dir, &settings).unwrap().cost(40, 7);
        let plain = cost(folder("odd-shape"));
        // The predictor has matrices (17, 24) and (1, 17).
        let mut learned = plain;
        let bytes = matrix_bytes(dtype, 17, 24) + matrix_bytes(dtype, 1, 17);
        learned.symbol += StepCost { shared_bytes: bytes, own_bytes: 0, multiply_adds: 17 * 24 + 17 };
        assert_eq!(cost(folder("learned")), learned, "{dtype:?}");
        // The logits of a companion decide the boundaries.
        let mut spikes = plain;
        let companion = cost(&folder("spikes").join("companion"));
        spikes.symbol += companion.symbol;
        spikes.symbol += companion.logits;
        assert_eq!(cost(folder("spikes")), spikes, "{dtype:?}");
        assert_eq!(companion.segment, StepCost::default());
    }
}
