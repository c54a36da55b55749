//! Encoder-decoders that pool their document: the Pyramidion, the Transpooler, and the blockwise and vanilla baselines.
//!
//! Paper: Trainable Representation Pooling (Pietruszka et al., ACL 2022, arXiv 2009.05169). Read from applicaai/pyramidions at
//! commit fa9dddc, in `fairseq/examples/deep_pyramidion/`: `pyramidion.py` (the model), `pooler_utils.py` (blocks, pooler) and
//! `successive_halving_topk.py` (successive halving). Also read: its older snapshot `deep_pyramidion.tar.xz`. The authors' copy
//! pietruh/deep-pyramidion at commit ef0f2aa has their generation settings. Where these disagree, the model follows fa9dddc.
//!
//! The encoder's vectors attend within blocks. Between layers successive halving keeps those with the best scores, and the
//! decoder attends to what is left. Padding is part of the model: every document has the maximum length. Vectors of padding are
//! equal, so a block of padding is computed once per model and other padding once per document.
//!
//! Start with [`model`]: the weights and the forward pass. [`config`], [`blueprint`] and `plan` describe an architecture,
//! [`encoding`] is a document in progress, [`work`] a thread's buffers. `gather` moves vectors between these, `scorer` scores
//! them, `load` builds the model, and `contract` implements [`Model`](crate::decode::contract::Model),
//! [`DocumentEncoder`](crate::decode::document::DocumentEncoder) and [`Document`](crate::decode::document::Document).

pub mod blueprint;
pub mod config;
mod contract;
pub mod encoding;
mod gather;
mod load;
pub mod model;
mod plan;
mod scorer;
pub mod work;
