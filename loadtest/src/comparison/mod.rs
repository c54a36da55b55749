//! Compares models of one server request by request: each request goes to one model after the other, with the same prompt, length
//! and seed, in an order that changes with every round.

pub(crate) mod bootstrap;
pub mod result;
pub mod rounds;
