//! The table of families, and the loading of a checkpoint.

use super::{
    Reference,
    checkpoint::{Checkpoint, ReferenceReader},
    decoder, hnet, hourglass, hugging_face, lslm, pyramidion, t5,
};
use crate::{
    error::Result,
    family::checkpoint::{CheckpointSource, hugging_face::FAMILY as HUGGING_FACE},
};

/// The families: name in `config.json`, and reader of its checkpoint.
pub const FAMILIES: &[(&str, ReferenceReader)] = &[
    ("hourglass", hourglass::read),
    ("decoder", decoder::read),
    ("lslm", lslm::read),
    ("pyramidion", pyramidion::read),
    ("hnet", hnet::read),
    ("t5", t5::read),
    (HUGGING_FACE, hugging_face::read),
];

/// Loads the reference implementation of a checkpoint. The model's own loader checks a checkpoint; this one reads a
/// checkpoint that passed. Fails if a file cannot be read, or if the family has no reference implementation.
pub fn load(source: &CheckpointSource) -> Result<Box<dyn Reference>> {
    let checkpoint = Checkpoint::read(source, load)?;
    match FAMILIES.iter().find(|(name, _)| *name == checkpoint.family()) {
        Some((_, read)) => read(checkpoint),
        None => {
            let names: Vec<_> = FAMILIES.iter().map(|(name, _)| *name).collect();
            let expected = format!("a family that can be verified: {}", names.join(", "));
            Err(checkpoint.error("family", expected, checkpoint.family().to_owned()))
        }
    }
}
