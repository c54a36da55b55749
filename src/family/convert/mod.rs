//! Official checkpoints into weir's format, one kind of source a file.
//!
//! A source is read by a function of the table into a configuration and the tensors that this configuration asks
//! for, under weir's names; the rest is the same for all. Pickles are read by [`pickle`], which executes nothing. To add a
//! source: one file, one line.

pub mod dynamic_pooling;
pub mod gpt2;
pub mod lslm;
pub mod pickle;
pub mod pyramidions;
pub mod torch;
pub mod torchscale;
mod training;
mod vocabulary;

use super::{
    checkpoint::{Config, Weights, Writer, WrittenCheckpoint, writer::check_vacant},
    load::blueprint,
};
use crate::error::{Error, Result};
use std::path::Path;

/// Whose checkpoints can be converted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The official Dynamic Token Pooling code.
    DynamicPooling,
    /// Hugging Face's GPT-2.
    Gpt2,
    /// Latent Segment Language Models, in the layout of Hugging Face's T5; their baseline, GPT-2, as well.
    Lslm,
    /// torchscale's decoder, LeX's fork included.
    Torchscale,
    /// The official code of Trainable Representation Pooling, a fork of fairseq.
    Pyramidions,
}

/// Reads a source; told bytes read and bytes to read.
type Reader = fn(&Path, &mut dyn FnMut(u64, u64)) -> Result<Converted>;

/// The table of sources: its name on the command line, and its reader.
const SOURCES: &[(Source, &str, Reader)] = &[
    (Source::DynamicPooling, "dynamic-pooling", dynamic_pooling::read),
    (Source::Gpt2, "gpt2", gpt2::read),
    (Source::Lslm, "lslm", lslm::read),
    (Source::Torchscale, "torchscale", torchscale::read),
    (Source::Pyramidions, "pyramidions", pyramidions::read),
];

impl Source {
    /// The names of all sources.
    pub fn names() -> impl Iterator<Item = &'static str> {
        SOURCES.iter().map(|(_, name, _)| *name)
    }

    /// The source of that name.
    pub fn parse(name: &str) -> Option<Self> {
        SOURCES.iter().find(|(_, known, _)| *known == name).map(|(source, ..)| *source)
    }

    fn reader(self) -> Result<Reader> {
        let found = SOURCES.iter().find(|(source, ..)| *source == self).map(|(.., reader)| *reader);
        found.ok_or_else(|| Error::Internal(format!("{self:?} is not in the table of sources")))
    }
}

/// A checkpoint that was read from another format.
#[derive(Debug)]
pub struct Converted {
    /// Its configuration in weir's terms.
    pub config: Config,
    /// The tensors that this configuration asks for, by weir's names.
    pub weights: Weights,
}

/// Reads the checkpoint at `from` and writes it to the folder `dest`.
///
/// # Errors
/// A source that is not as its kind must be, with file, key, expected and found; a folder that is the source, cannot be
/// written to, or holds something, unless that is a checkpoint and may be overwritten.
pub fn convert(source: Source, from: &Path, dest: &Path, overwrite: bool) -> Result<WrittenCheckpoint> {
    convert_telling(source, from, dest, overwrite, &mut |_, _| {})
}

/// As [`convert`]; `progress` is told bytes read and bytes to read.
///
/// # Errors
/// As for [`convert`].
pub fn convert_telling(
    source: Source,
    from: &Path,
    dest: &Path,
    overwrite: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<WrittenCheckpoint> {
    // Whatever links lead there.
    if let (Ok(source), Ok(target)) = (from.canonicalize(), dest.canonicalize())
        && source == target
    {
        let dest = dest.display();
        return Err(Error::Setting(format!("{dest}: the source itself; a converted checkpoint needs another folder")));
    }
    check_vacant(dest, overwrite)?;
    let Converted { config, mut weights } = source.reader()?(from, progress)?;
    let blueprint = blueprint(&config, from)?;
    let specs = blueprint.tensors();
    let mut writer = Writer::create(dest, &config, &specs, overwrite)?;
    let mut parameters = 0;
    for spec in &specs {
        let numbers = weights.take(&spec.name)?;
        writer.tensor(&spec.name, &numbers)?;
        parameters += if spec.trained { numbers.len() } else { 0 };
    }
    Ok(WrittenCheckpoint { shape: blueprint.shape(), parameters, sha256: writer.finish()? })
}
