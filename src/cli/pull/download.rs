//! Fetches the files of a checkpoint into a folder, within a limit of bytes, and computes the digest of the weights.
//!
//! Names come from a fixed list, from the index of the weights and from the configuration. Both are data of others, so their names
//! must be plain: none reaches out of the folder.

use super::files::{FileSource, Need, OpenFile};
use crate::{
    cli::local_models::plain_name,
    error::{Error, Result},
    family::{
        checkpoint::{
            CONFIG_FILE, Config, INDEX_FILE, PICKLE_FILE, PICKLE_INDEX_FILE, WEIGHTS_FILE,
            files::sync_folder,
            ngrams::NGRAMS_FILE,
            weights::{CARD_FILE, hexadecimal, indexed_files},
        },
        convert::Source,
        load::blueprint,
    },
};
use sha2::{Digest, Sha256};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{ErrorKind, Read, Write},
    path::{Path, PathBuf},
};

/// Optional files next to the configuration and the weights.
const OPTIONAL: [&str; 6] =
    [CARD_FILE, NGRAMS_FILE, "generation_config.json", "tokenizer.json", "tokenizer_config.json", "spiece.model"];
/// Maximum bytes of any file but the weights.
const SMALL_BYTES: u64 = 64 << 20;
/// Bytes read at a time.
const CHUNK: usize = 1 << 20;

/// A checkpoint being fetched.
pub(super) struct Download<'a> {
    from: &'a dyn FileSource,
    limit: u64,
    done: u64,
    /// Receives bytes of the current file, and its size.
    progress: &'a mut dyn FnMut(u64, u64),
}

/// A checkpoint, or its companion.
struct Part {
    /// The folder to write to.
    folder: PathBuf,
    /// Prefix of its file names at the source: empty, or the companion's folder and `/`.
    prefix: String,
}

impl Part {
    fn full_name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

/// The digests of a checkpoint that was fetched: SHA-256, in hexadecimal.
pub(super) struct Fetched {
    /// Digest of the weights.
    pub(super) sha256: String,
    /// Digests of the companions' weights, by the names of their folders.
    pub(super) companions: BTreeMap<String, String>,
}

/// How much of a file may be fetched, and why not more.
struct Bound {
    bytes: u64,
    reason: &'static str,
}

impl<'a> Download<'a> {
    pub(super) fn new(from: &'a dyn FileSource, limit: u64, progress: &'a mut dyn FnMut(u64, u64)) -> Self {
        Self { from, limit, done: 0, progress }
    }

    /// Fetches a checkpoint and its companions into an existing empty folder. Returns their digests. Fails if a file is missing or
    /// beyond a limit, or if weir cannot read the configuration.
    pub(super) fn checkpoint(&mut self, folder: &Path) -> Result<Fetched> {
        self.part(&Part { folder: folder.to_owned(), prefix: String::new() })
    }

    fn part(&mut self, part: &Part) -> Result<Fetched> {
        if !self.small(part, CONFIG_FILE, Need::Required)? {
            return Err(self.missing(part, CONFIG_FILE, "a file"));
        }
        for name in OPTIONAL {
            self.small(part, name, Need::Optional)?;
        }
        let needs_conversion = Source::of_folder(&part.folder)?.is_some();
        // Before the weights: a model that weir does not know costs no gigabytes.
        let companions = if needs_conversion { BTreeMap::new() } else { self.companions(part)? };
        let mut hash = Sha256::new();
        self.weights(part, needs_conversion, &mut hash)?;
        sync_folder(&part.folder)?;
        Ok(Fetched { sha256: hexadecimal(&hash.finalize()), companions })
    }

    /// Fetches the files of weights in their order, and adds them to the hash.
    fn weights(&mut self, part: &Part, needs_conversion: bool, hash: &mut Sha256) -> Result<()> {
        // The converter reads pickles, too. As the converter does, this prefers safetensors.
        let kinds = if needs_conversion {
            &[(INDEX_FILE, WEIGHTS_FILE), (PICKLE_INDEX_FILE, PICKLE_FILE)][..]
        } else {
            &[(INDEX_FILE, WEIGHTS_FILE)]
        };
        for (index, single) in kinds {
            if self.small(part, index, Need::Optional)? {
                return self.indexed_weights(part, index, hash);
            }
            if self.weights_file(part, single, hash)? {
                return Ok(());
            }
        }
        let names: Vec<&str> = kinds.iter().flat_map(|(index, single)| [*single, *index]).collect();
        Err(self.missing(part, WEIGHTS_FILE, &names.join(" or ")))
    }

    /// Fetches the files that an index names, in the order of their names, and adds them to the hash.
    fn indexed_weights(&mut self, part: &Part, index: &str, hash: &mut Sha256) -> Result<()> {
        for name in indexed_files(&part.folder, index)? {
            if !self.weights_file(part, &name, hash)? {
                return Err(self.missing(part, &name, "a file, which the index names"));
            }
        }
        Ok(())
    }

    /// Fetches the companions that a configuration names. Returns the digests of their weights.
    fn companions(&mut self, part: &Part) -> Result<BTreeMap<String, String>> {
        let config = Config::read(&part.folder)?;
        let file = part.folder.join(CONFIG_FILE);
        let blueprint = blueprint(&config, &file)?;
        let mut digests = BTreeMap::new();
        for name in blueprint.entropy_models() {
            if plain_name(Path::new(name)).is_none() || !part.prefix.is_empty() {
                let key = "architecture.boundaries.companion";
                let expected = "the plain name of a subfolder, in a checkpoint that is no companion itself";
                return Err(Error::checkpoint(file, key, expected, format!("{name:?}")));
            }
            let inner = Part { folder: part.folder.join(name), prefix: format!("{name}/") };
            fs::create_dir(&inner.folder).map_err(Error::io(&inner.folder))?;
            let fetched = self.part(&inner)?;
            digests.insert(name.to_owned(), fetched.sha256);
        }
        Ok(digests)
    }

    fn missing(&self, part: &Part, name: &str, expected: &str) -> Error {
        Error::checkpoint(self.from.place(&part.full_name(name)), "the file", expected, "none")
    }

    /// The bytes that all files together may still have.
    fn left(&self) -> Bound {
        Bound { bytes: self.limit.saturating_sub(self.done), reason: "what --max-pull-bytes leaves" }
    }

    /// Fetches a small file. Returns false if there is none.
    fn small(&mut self, part: &Part, name: &str, need: Need) -> Result<bool> {
        let left = self.left();
        let bound = if left.bytes < SMALL_BYTES {
            left
        } else {
            Bound { bytes: SMALL_BYTES, reason: "the limit of files other than weights" }
        };
        match self.from.open(&part.full_name(name), need)? {
            Some(file) => self.save(file, part, name, &bound, None).map(|()| true),
            None => Ok(false),
        }
    }

    /// Fetches a file of weights, and adds it to the hash. Returns false if there is none.
    fn weights_file(&mut self, part: &Part, name: &str, hash: &mut Sha256) -> Result<bool> {
        let bound = self.left();
        match self.from.open(&part.full_name(name), Need::Required)? {
            Some(file) => self.save(file, part, name, &bound, Some(hash)).map(|()| true),
            None => Ok(false),
        }
    }

    /// Writes a file of at most `bound` bytes to the folder, and adds it to the hash.
    fn save(
        &mut self,
        file: OpenFile,
        part: &Part,
        name: &str,
        bound: &Bound,
        mut hash: Option<&mut Sha256>,
    ) -> Result<()> {
        let OpenFile { mut bytes, size } = file;
        let place = self.from.place(&part.full_name(name));
        let too_long = |found: String| {
            let expected = format!("at most {} bytes, {}", bound.bytes, bound.reason);
            Err(Error::checkpoint(&place, "the file", expected, found))
        };
        if let Some(size) = size.filter(|size| *size > bound.bytes) {
            return too_long(format!("{size} bytes"));
        }
        let path = part.folder.join(name);
        let mut out = File::create_new(&path).map_err(Error::io(&path))?;
        let mut chunk = vec![0; CHUNK];
        let mut written = 0;
        loop {
            let count = match bytes.read(&mut chunk) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                // The comparison of sizes below reports it.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof && size.is_some() => break,
                Err(error) => return Err(Error::io(&place)(error)),
            };
            written += count as u64;
            if written > bound.bytes {
                return too_long("more".into());
            }
            let read = chunk.get(..count).unwrap_or_default();
            out.write_all(read).map_err(Error::io(&path))?;
            if let Some(hash) = hash.as_deref_mut() {
                hash.update(read);
            }
            (self.progress)(written, size.unwrap_or(written));
        }
        if let Some(size) = size.filter(|size| *size != written) {
            let expected = format!("{size} bytes, as the server stated");
            return Err(Error::checkpoint(place, "the file", expected, format!("{written} bytes")));
        }
        out.sync_all().map_err(Error::io(&path))?;
        self.done += written;
        Ok(())
    }
}
