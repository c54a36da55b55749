//! T5 and its relatives: T5 v1.0 and v1.1 (also flan-T5 and mT5), ByT5, LongT5, and MrT5.
//!
//! Papers: Raffel et al. 2020 (arXiv 1910.10683), ByT5 (2105.13626), LongT5 (2112.07916), MrT5 (2410.20771). Read from `t5` and
//! `longt5` of Hugging Face's transformers 5.23.0, and from jkallini/mrt5 at commit e79c3e7. Tensors keep the names of
//! transformers.
//!
//! The encoder looks both ways, over the whole document (T5, ByT5, MrT5) or over a band with or without global tokens (LongT5).
//! MrT5 pools: a gate in one block deletes tokens, and later blocks and the decoder read what is left. Kept tokens keep their
//! positions.
//!
//! Start with [`model`]: the weights and the forward pass. [`config`] and [`blueprint`] describe an architecture, [`encoding`] is
//! a document in progress, [`gate`] deletes tokens, `steps` feeds the decoder's rows, `load` builds the model. `contract`
//! implements [`Model`](crate::decode::contract::Model) and [`DocumentEncoder`](crate::decode::document::DocumentEncoder).

pub mod blueprint;
pub mod config;
mod contract;
pub mod encoding;
pub mod gate;
mod load;
pub mod model;
mod steps;
pub mod work;
