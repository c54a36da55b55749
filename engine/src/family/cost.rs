//! Costs of model parts, from which families add up [`Model::cost`](crate::decode::contract::Model::cost).

use crate::{
    decode::cost::StepCost,
    kernels::{attention::PageLayout, linear::Linear, rowwise::LayerNorm},
    nn::{
        attention::Stack,
        mamba2::{HybridStack, Mixer},
        t5::T5Stack,
    },
};

/// Cost of a matrix product with one vector.
pub fn linear(matrix: &Linear) -> StepCost {
    let multiply_adds = matrix.inputs() * matrix.outputs();
    StepCost { shared_bytes: matrix.bytes(), own_bytes: 0, multiply_adds }
}

/// Cost of a normalisation; its few multiplications are not counted.
pub fn norm(norm: &LayerNorm) -> StepCost {
    StepCost { shared_bytes: size_of_val(&*norm.weight) + size_of_val(&*norm.bias), ..StepCost::default() }
}

/// Cost of a T5 stack for a row that attends to `keys` of its own positions in each layer, and in a decoder to `memory` vectors.
pub fn t5_stack(stack: &T5Stack, keys: usize, memory: usize) -> StepCost {
    let PageLayout { layers, heads, head_dim, .. } = stack.layout;
    let numbers = layers * heads * head_dim; // one key in all layers
    let mut cost = StepCost {
        shared_bytes: stack.position.bytes_for(&stack.layout, keys) + size_of_val(&*stack.norm.weight),
        own_bytes: (keys + memory) * stack.layout.bytes_per_key(),
        // queries times keys, weights times values
        multiply_adds: 2 * (keys + memory) * numbers,
    };
    for layer in &stack.layers {
        for matrix in layer.matrices() {
            cost += linear(matrix);
        }
        let norms = [&layer.attention_norm, &layer.feed_forward_norm].into_iter();
        for norm in norms.chain(layer.cross.iter().map(|cross| &cross.norm)) {
            cost.shared_bytes += size_of_val(&*norm.weight);
        }
    }
    cost
}

/// Cost of a stack for the last of `positions`.
pub fn stack(stack: &Stack, positions: usize) -> StepCost {
    let keys = stack.window.keys(positions);
    let PageLayout { layers, heads, head_dim, .. } = stack.layout;
    let numbers = layers * heads * head_dim * keys; // the keys of all layers; the values have as many
    let mut cost = StepCost {
        shared_bytes: stack.position.bytes_for(&stack.layout, keys),
        own_bytes: keys * stack.layout.bytes_per_key(),
        multiply_adds: (stack.position.products() + 1) * numbers,
    };
    for layer in &stack.layers {
        for matrix in [&layer.qkv, &layer.output, &layer.up, &layer.down] {
            cost += linear(matrix);
        }
        cost += norm(&layer.attention_norm);
        cost += norm(&layer.feed_forward_norm);
        for sub_norm in [&layer.context_norm, &layer.hidden_norm].into_iter().flatten() {
            cost += norm(sub_norm);
        }
        if let Some(cross) = &layer.cross {
            cost += linear(&cross.query);
            cost += linear(&cross.output);
            cost += norm(&cross.norm);
        }
    }
    cost
}

/// Cost of a hybrid stack for the last of `positions`. A recurrent layer reads and writes its state.
pub fn hybrid_stack(stack: &HybridStack, positions: usize) -> StepCost {
    let keys = stack.window.keys(positions.max(1));
    let PageLayout { layers, heads, head_dim, .. } = stack.layout;
    let mut cost = StepCost {
        shared_bytes: size_of_val(&*stack.norm.weight),
        own_bytes: keys * stack.layout.bytes_per_key() + 2 * size_of::<f32>() * stack.recurrent_numbers(),
        multiply_adds: 2 * layers * heads * head_dim * keys,
    };
    for layer in &stack.layers {
        layer.matrices().for_each(|matrix| cost += linear(matrix));
        cost.shared_bytes += size_of_val(&*layer.norm.weight);
        if let Mixer::Mamba2(mixer) = &layer.mixer {
            cost.multiply_adds += mixer.recurrence_multiply_adds();
            cost.shared_bytes += size_of_val(&*mixer.taps.weight);
        }
    }
    cost
}

/// Cost of a stack's attention to a memory of `vectors`.
pub fn memory(stack: &Stack, vectors: usize) -> StepCost {
    let PageLayout { layers, heads, head_dim, .. } = stack.layout;
    let multiply_adds = 2 * layers * heads * head_dim * vectors;
    StepCost { shared_bytes: 0, own_bytes: vectors * stack.layout.bytes_per_key(), multiply_adds }
}
