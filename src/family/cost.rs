//! What parts cost, for the families' [`Model::cost`](crate::decode::contract::Model::cost).

use crate::{
    decode::cost::StepCost,
    kernels::{attention::Layout, linear::Linear, rowwise::Norm},
    nn::stack::Stack,
};

/// A matrix product.
pub fn linear(matrix: &Linear) -> StepCost {
    let multiply_adds = matrix.inputs() * matrix.outputs();
    StepCost { shared_bytes: matrix.bytes(), own_bytes: 0, multiply_adds }
}

/// A normalisation: its multiplications are not worth counting.
pub fn norm(norm: &Norm) -> StepCost {
    StepCost { shared_bytes: size_of_val(&*norm.weight) + size_of_val(&*norm.bias), ..StepCost::default() }
}

/// A stack, for the last of so many `positions`.
pub fn stack(stack: &Stack, positions: usize) -> StepCost {
    let keys = stack.window.keys(positions);
    let Layout { layers, heads, head_dim, .. } = stack.layout;
    let numbers = layers * heads * head_dim * keys; // of the keys of all layers, and as many of the values
    let mut cost = StepCost {
        shared_bytes: stack.position.bytes_for(&stack.layout, keys),
        own_bytes: keys * stack.layout.bytes_for_key(),
        multiply_adds: (stack.position.products() + 1) * numbers,
    };
    for layer in &stack.layers {
        for matrix in [&layer.qkv, &layer.output, &layer.up, &layer.down] {
            cost += linear(matrix);
        }
        cost += norm(&layer.attention_norm);
        cost += norm(&layer.feed_forward_norm);
        for sub_norm in [&layer.mixed_norm, &layer.wide_norm].into_iter().flatten() {
            cost += norm(sub_norm);
        }
    }
    cost
}
