//! Encoder-decoders that pool their document (Trainable Representation Pooling, Pietruszka et al. 2022, arXiv 2009.05169): the
//! Pyramidion, the Transpooler, and the Blockwise and vanilla models that they are compared with.
//!
//! The encoder's vectors attend within blocks; between layers successive halving keeps those with the best scores, and the
//! decoder attends to what is left. Padding is part of the model: every document is as long as the longest. What is all padding
//! is the same in every document, so it is computed once a model; what is alike in one document, once a document.
//!
//! [`config`] and [`attention`] are the blueprint and `plan` what it means layer by layer, [`model`] the weights, [`encoding`] a
//! document that is being read, `encode` the reading, `cost` what it costs, `padding` what is read once for all, [`document`] what
//! comes of it. PagedVectors are the decoder family's: the same stack, with a memory.

pub mod attention;
pub mod config;
mod cost;
pub mod document;
mod encode;
pub mod encoding;
mod load;
pub mod model;
mod padding;
mod plan;
mod score;
