//! Fetches the files of a checkpoint into a folder, within a limit of bytes, and computes the digest of the weights.
//!
//! Names come from a fixed list, from the index of the weights and from the configuration. Both are data of others, so their names
//! must be plain: none reaches out of the folder.

use super::files::{FileSource, OpenFile};
use crate::{
    cli::local_models::plain_name,
    error::{Error, Result},
    family::{
        checkpoint::{
            CONFIG_FILE, Config, INDEX_FILE, WEIGHTS_FILE, card::CARD_FILE, reader::hexadecimal, shards::indexed_files,
            writer::sync_folder,
        },
        convert::Source,
        load::blueprint,
    },
};
use sha2::{Digest, Sha256};
use std::{
    fs::{self, File},
    io::{Read, Write},
    path::Path,
};

/// Files next to the configuration and the weights, none of which every checkpoint has.
const OPTIONAL: [&str; 5] =
    [CARD_FILE, "generation_config.json", "tokenizer.json", "tokenizer_config.json", "spiece.model"];
/// Weights of a checkpoint that must be converted, if it has no others.
const PICKLE_FILE: &str = "pytorch_model.bin";
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

/// How much of a file may be fetched, and why not more.
struct Bound {
    bytes: u64,
    reason: &'static str,
}

impl<'a> Download<'a> {
    pub(super) fn new(from: &'a dyn FileSource, limit: u64, progress: &'a mut dyn FnMut(u64, u64)) -> Self {
        Self { from, limit, done: 0, progress }
    }

    /// Fetches a checkpoint and its companions into an existing empty folder. Returns the SHA-256 of its weights, in hexadecimal.
    /// Fails if a file is missing or beyond a limit, or if weir cannot read the configuration.
    pub(super) fn checkpoint(&mut self, folder: &Path) -> Result<String> {
        self.part(folder, "")
    }

    /// Fetches the checkpoint whose names begin with `prefix`.
    fn part(&mut self, folder: &Path, prefix: &str) -> Result<String> {
        if !self.small(folder, prefix, CONFIG_FILE)? {
            return Err(self.missing(prefix, CONFIG_FILE, "a file"));
        }
        for name in OPTIONAL {
            self.small(folder, prefix, name)?;
        }
        let needs_conversion = Source::of_folder(folder)?.is_some();
        if !needs_conversion {
            // Before the weights: a model that weir does not know costs no gigabytes.
            self.companions(folder, prefix)?;
        }
        let mut hash = Sha256::new();
        self.weights(folder, prefix, needs_conversion, &mut hash)?;
        sync_folder(folder)?;
        Ok(hexadecimal(&hash.finalize()))
    }

    /// Fetches the files of weights in their order, and adds them to the hash.
    fn weights(&mut self, folder: &Path, prefix: &str, needs_conversion: bool, hash: &mut Sha256) -> Result<()> {
        if self.small(folder, prefix, INDEX_FILE)? {
            for name in indexed_files(folder)? {
                let bound = self.left();
                if !self.file(folder, prefix, &name, bound, Some(hash))? {
                    return Err(self.missing(prefix, &name, "a file, which the index names"));
                }
            }
            return Ok(());
        }
        let candidates = if needs_conversion { &[WEIGHTS_FILE, PICKLE_FILE][..] } else { &[WEIGHTS_FILE] };
        for name in candidates {
            let bound = self.left();
            if self.file(folder, prefix, name, bound, Some(hash))? {
                return Ok(());
            }
        }
        Err(self.missing(prefix, WEIGHTS_FILE, &format!("it or {INDEX_FILE}")))
    }

    fn companions(&mut self, folder: &Path, prefix: &str) -> Result<()> {
        let config = Config::read(folder)?;
        let file = folder.join(CONFIG_FILE);
        let blueprint = blueprint(&config, &file)?;
        for name in blueprint.companions() {
            if plain_name(Path::new(name)).is_none() || !prefix.is_empty() {
                let expected = "the plain name of a subfolder, in a checkpoint that is no companion itself";
                return Err(Error::checkpoint(
                    file,
                    "architecture.boundaries.companion",
                    expected,
                    format!("{name:?}"),
                ));
            }
            let inner = folder.join(name);
            fs::create_dir(&inner).map_err(Error::io(&inner))?;
            self.part(&inner, &format!("{name}/"))?;
        }
        Ok(())
    }

    fn missing(&self, prefix: &str, name: &str, expected: &str) -> Error {
        Error::checkpoint(self.from.place(&format!("{prefix}{name}")), "the file", expected, "none")
    }

    /// The bytes that all files together may still have.
    fn left(&self) -> Bound {
        Bound { bytes: self.limit.saturating_sub(self.done), reason: "what --max-pull-bytes leaves" }
    }

    /// Fetches a small file. Returns false if there is none.
    fn small(&mut self, folder: &Path, prefix: &str, name: &str) -> Result<bool> {
        let left = self.left();
        let bound = if left.bytes < SMALL_BYTES {
            left
        } else {
            Bound { bytes: SMALL_BYTES, reason: "the limit of files other than weights" }
        };
        self.file(folder, prefix, name, bound, None)
    }

    /// Fetches a file of at most `bound` bytes, and adds it to the hash. Returns false if there is none.
    fn file(
        &mut self,
        folder: &Path,
        prefix: &str,
        name: &str,
        bound: Bound,
        mut hash: Option<&mut Sha256>,
    ) -> Result<bool> {
        let full_name = format!("{prefix}{name}");
        let Some(OpenFile { mut bytes, size }) = self.from.open(&full_name)? else { return Ok(false) };
        let place = self.from.place(&full_name);
        let too_long = |found: String| {
            let expected = format!("at most {} bytes, {}", bound.bytes, bound.reason);
            Err(Error::checkpoint(&place, "the file", expected, found))
        };
        if let Some(size) = size.filter(|size| *size > bound.bytes) {
            return too_long(format!("{size} bytes"));
        }
        let path = folder.join(name);
        let mut out = File::create_new(&path).map_err(Error::io(&path))?;
        let mut chunk = vec![0; CHUNK];
        let mut written = 0;
        loop {
            let count = match bytes.read(&mut chunk) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
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
        Ok(true)
    }
}
