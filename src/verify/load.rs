//! The table of references: the second implementation of each family.

use crate::verify::{
    Checkpoint, Reference, ReferenceReader, blt, decoder, hnet, hourglass, hugging_face, lslm, pyramidion, t5,
};
use weir_kernels::Dtype;
use weir_kernels::error::Result;
use weir_models::checkpoint::{CheckpointSource, hugging_face::FAMILY as HUGGING_FACE};

/// The families: name in `config.json`, and reader of its checkpoint.
pub const FAMILIES: &[(&str, ReferenceReader)] = &[
    ("hourglass", hourglass::read),
    ("decoder", decoder::read),
    ("lslm", lslm::read),
    ("pyramidion", pyramidion::read),
    ("hnet", hnet::read),
    ("t5", t5::read),
    ("blt", blt::read),
    (HUGGING_FACE, hugging_face::read),
];

/// Loads the reference implementation of a checkpoint. The model's own loader checks a checkpoint; this one reads a
/// checkpoint that passed. Fails if a file cannot be read, or if the family has no reference implementation.
pub fn load(source: &CheckpointSource) -> Result<Box<dyn Reference>> {
    load_for(source, Dtype::F32)
}

/// Loads the reference of a model in a number format, as [`load`] does. The reference of a Byte Latent Transformer multiplies with the
/// weights as that format stores them: random ones amplify rounding some thirtyfold, which would hide errors.
pub fn load_for(source: &CheckpointSource, dtype: Dtype) -> Result<Box<dyn Reference>> {
    let checkpoint = Checkpoint::read(source, load, dtype)?;
    match FAMILIES.iter().find(|(name, _)| *name == checkpoint.config.family) {
        Some((_, read)) => read(checkpoint),
        None => {
            let names: Vec<_> = FAMILIES.iter().map(|(name, _)| *name).collect();
            let expected = format!("a family that can be verified: {}", names.join(", "));
            Err(checkpoint.error("family", expected, checkpoint.config.family.clone()))
        }
    }
}
