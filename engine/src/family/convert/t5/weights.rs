//! The weights of a folder: safetensors or pickles, in one file or in several with an index.
//!
//! Pickles are read one at a time, and nothing in them is executed. Their tensors' names and shapes are checked before any numbers
//! are read.

use super::super::{torch::TorchFile, training::TorchTensors};
use crate::{
    error::{Error, Result},
    family::{
        TensorSpec,
        checkpoint::{
            INDEX_FILE, PICKLE_FILE, PICKLE_INDEX_FILE, WEIGHTS_FILE, Weights,
            links::check_inside,
            read_weights_with_progress,
            reader::{FilesDigest, shapes_in},
            shards::{Shard, indexed_pickles, same_names},
        },
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

pub(super) const EMBEDDING: &str = "shared.weight";
/// Names of the embedding, of which a file has one or several.
pub(super) const EMBEDDINGS: [&str; 3] = [EMBEDDING, "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"];
/// A table that files of T5 v1.0 contain and that no model reads.
const STALE: &str = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight";

/// The weights of a folder.
pub(super) struct SourceWeights<'a> {
    dir: &'a Path,
    /// Names of all tensors.
    pub(super) names: BTreeSet<String>,
    /// The pickles, in the order of their names; none: safetensors.
    pickles: Vec<PickleFile>,
}

/// A file of pickled tensors.
struct PickleFile {
    file: PathBuf,
    /// Shapes of its tensors.
    shapes: BTreeMap<String, Vec<usize>>,
}

/// The tensors of a folder, under the source's names.
pub(super) struct ReadWeights {
    pub(super) tensors: Weights,
    /// SHA-256 of the files, as if they were one file.
    pub(super) sha256: String,
}

impl<'a> SourceWeights<'a> {
    /// Finds the weights; safetensors precede pickles. Fails if there are none, a header cannot be read, or an index does not agree
    /// with its files.
    pub(super) fn open(dir: &'a Path) -> Result<Self> {
        let has_safetensors = [WEIGHTS_FILE, INDEX_FILE].iter().any(|name| dir.join(name).exists());
        let pickles = if has_safetensors { Vec::new() } else { pickles(dir)? };
        let names = match pickles.is_empty() {
            true => shapes_in(dir)?.into_keys().collect(),
            false => pickles.iter().flat_map(|pickle| pickle.shapes.keys().cloned()).collect(),
        };
        Ok(Self { dir, names, pickles })
    }

    /// Reads the tensors of `specs` under the source's names, `official`, and all copies.
    pub(super) fn read(
        &self,
        specs: &[TensorSpec],
        official: &[String],
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<ReadWeights> {
        let renamed = |(spec, name): (&TensorSpec, &String)| TensorSpec { name: name.clone(), ..spec.clone() };
        let mut all: Vec<TensorSpec> = specs.iter().zip(official).map(renamed).collect();
        let shape_of = |name: &str| specs.iter().find(|spec| spec.name == name).map(|spec| spec.shape.clone());
        let table = "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight";
        let copies = EMBEDDINGS.iter().map(|name| (*name, EMBEDDING)).chain([(STALE, table)]);
        for (name, like) in copies.filter(|(name, _)| self.names.contains(*name)) {
            if let Some(shape) = shape_of(like).filter(|_| all.iter().all(|spec| spec.name != name)) {
                all.push(TensorSpec::zeros(name, shape));
            }
        }
        if self.pickles.is_empty() {
            let (tensors, sha256) = read_weights_with_progress(self.dir, &all, progress)?;
            return Ok(ReadWeights { tensors, sha256 });
        }
        self.read_pickles(all, progress)
    }

    /// Reads exactly the tensors of `specs` from the pickles. Fails before it reads any numbers if tensors are missing, superfluous
    /// or of another shape. Fails if the folder's card states another digest.
    fn read_pickles(&self, specs: Vec<TensorSpec>, progress: &mut dyn FnMut(u64, u64)) -> Result<ReadWeights> {
        let expected: BTreeSet<String> = specs.iter().map(|spec| spec.name.clone()).collect();
        same_names(&self.listing(), &expected, &self.names)?;
        let mut specs: BTreeMap<String, TensorSpec> = specs.into_iter().map(|spec| (spec.name.clone(), spec)).collect();
        for PickleFile { file, shapes } in &self.pickles {
            for (name, found) in shapes {
                if let Some(spec) = specs.get(name).filter(|spec| spec.shape != *found) {
                    let expected = format!("shape {:?}", spec.shape);
                    return Err(Error::checkpoint(file, name.as_str(), expected, format!("shape {found:?}")));
                }
            }
        }
        let bytes = |specs: &mut dyn Iterator<Item = &TensorSpec>| {
            specs.fold(0_u64, |sum, spec| sum.saturating_add(4 * spec.numbers() as u64))
        };
        let total = bytes(&mut specs.values());
        let mut done = 0;
        let mut tensors = Weights::default();
        let mut digest = FilesDigest::default();
        for PickleFile { file, shapes } in &self.pickles {
            let own: Vec<TensorSpec> = shapes.keys().filter_map(|name| specs.remove(name)).collect();
            let own_bytes = bytes(&mut own.iter());
            let names: Vec<String> = own.iter().map(|spec| spec.name.clone()).collect();
            let (mut torch, saved) = open(file)?;
            let mut read = saved.read(&mut torch, own, &mut |part, _| progress(done + part, total))?;
            for name in names {
                let tensor = read.take_tensor(&name)?;
                tensors.insert(name, tensor);
            }
            // Of the file that was read, even if another has its name by now.
            digest.add(torch.into_file(), file)?;
            done += own_bytes;
        }
        Ok(ReadWeights { tensors, sha256: digest.finish(self.dir)? })
    }

    /// The file that lists all tensors, for messages.
    fn listing(&self) -> PathBuf {
        match &self.pickles[..] {
            [only] if only.file.ends_with(PICKLE_FILE) => only.file.clone(),
            _ => self.dir.join(PICKLE_INDEX_FILE),
        }
    }
}

/// Returns the pickles of a folder; none if it has none. At most one is in memory at a time.
fn pickles(dir: &Path) -> Result<Vec<PickleFile>> {
    let single = dir.join(PICKLE_FILE);
    match (single.exists(), dir.join(PICKLE_INDEX_FILE).exists()) {
        (false, false) => Ok(Vec::new()),
        (true, true) => {
            let expected = format!("only one of {PICKLE_FILE} and {PICKLE_INDEX_FILE}");
            Err(Error::checkpoint(single, "the file", expected, "both"))
        }
        (true, false) => {
            check_inside(dir, &single)?;
            let shapes = shapes(&single)?;
            Ok(vec![PickleFile { file: single, shapes }])
        }
        (false, true) => {
            let checked = |shard: Shard| {
                let shapes = shapes(&shard.file)?;
                same_names(&shard.file, &shard.names, shapes.keys())?;
                Ok(PickleFile { file: shard.file, shapes })
            };
            indexed_pickles(dir)?.into_iter().map(checked).collect()
        }
    }
}

/// Returns the shapes of a pickle's tensors.
fn shapes(file: &Path) -> Result<BTreeMap<String, Vec<usize>>> {
    let (_, tensors) = open(file)?;
    Ok(tensors.all.into_iter().map(|(name, tensor)| (name, tensor.shape)).collect())
}

fn open(file: &Path) -> Result<(TorchFile, TorchTensors)> {
    let torch = TorchFile::open(file)?;
    let tensors = TorchTensors::at_root(&torch, file)?;
    Ok((torch, tensors))
}
