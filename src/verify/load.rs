//! The table of families, and the loading of a checkpoint.

use super::{Reference, checkpoint::Checkpoint, decoder, hnet, hourglass, lslm, pyramidion, t5};
use crate::{
    error::Result,
    family::checkpoint::{CheckpointSource, hugging_face},
};

/// Reads a family's checkpoint.
pub type ReferenceReader = fn(Checkpoint) -> Result<Box<dyn Reference>>;

/// The families: name in `config.json`, and reader of its checkpoint.
pub const FAMILIES: &[(&str, ReferenceReader)] = &[
    ("hourglass", hourglass::read),
    ("decoder", decoder::read),
    ("lslm", lslm::read),
    ("pyramidion", pyramidion::read),
    ("hnet", hnet::read),
    ("t5", t5::read),
];

/// Loads the reference implementation of a checkpoint. The model's own loader checks a checkpoint; this one reads a
/// checkpoint that passed. Fails if a file cannot be read, or if the family has no reference implementation.
pub fn load(source: &CheckpointSource) -> Result<Box<dyn Reference>> {
    let checkpoint = Checkpoint::read(source, load)?;
    match FAMILIES.iter().find(|(name, _)| *name == checkpoint.family()) {
        Some((_, read)) => read(checkpoint),
        None => {
            let names: Vec<_> = FAMILIES.iter().map(|(name, _)| *name).collect();
            let mut expected = format!("a family that can be verified: {}", names.join(", "));
            if checkpoint.family() == hugging_face::FAMILY {
                expected.push_str(" (candle itself computes Hugging Face models, so candle cannot check them)");
            }
            Err(checkpoint.error("family", expected, checkpoint.family().to_owned()))
        }
    }
}
