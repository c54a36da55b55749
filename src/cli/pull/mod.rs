//! `weir pull`: copies a checkpoint into the user's models folder, from a folder, a URL or the Hugging Face Hub.
//!
//! Reading order: `origin` (what the argument names), `files` (how one file is opened) with `http`, `hub` and `hub_token`,
//! `download` (which files are fetched, and the limits), `install` (the folder appears completely or not at all).

mod download;
mod files;
mod http;
mod hub;
mod hub_token;
mod install;
mod origin;

use super::{local_models, notes, output, progress::Progress};
use crate::{
    config::parse_bytes,
    error::{Error, Result},
    family::{
        Blueprint,
        checkpoint::CheckpointSource,
        convert::{Source, convert},
        load::{blueprint, entropy_models, tensors},
    },
};
use download::{Download, Fetched};
use files::FileSource;
use install::Installation;
use origin::Origin;
use serde_json::json;
use std::path::{Path, PathBuf};

/// Copies a checkpoint into the user's models folder, where `--model NAME` finds it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Checkpoint folder, URL of a folder whose files can be fetched, or hf:ORG/NAME[@REVISION] on the Hugging Face Hub. T5's
    /// family and GPT-2 are converted.
    source: String,
    /// Name of the model. Default: the last part of SOURCE.
    #[arg(long, value_name = "NAME", env = "WEIR_NAME")]
    name: Option<String>,
    /// Expected SHA-256 of the weights at SOURCE, 64 hexadecimal digits. Several files count as one, in the order of their names.
    /// It covers neither other files nor the weights of a companion model.
    #[arg(long, value_name = "HEX", env = "WEIR_SHA256", value_parser = sha256)]
    sha256: Option<String>,
    /// Maximum size of all files together.
    #[arg(long, value_name = "SIZE", env = "WEIR_MAX_PULL_BYTES", default_value = "16GiB", value_parser = size)]
    max_pull_bytes: u64,
    /// Replace a model of the same name.
    #[arg(long, env = "WEIR_FORCE", value_parser = clap::builder::BoolishValueParser::new())]
    force: bool,
    /// Print JSON.
    #[arg(long, env = "WEIR_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,
}

fn sha256(text: &str) -> std::result::Result<String, String> {
    match text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        true => Ok(text.to_ascii_lowercase()),
        false => Err("expected 64 hexadecimal digits".into()),
    }
}

fn size(text: &str) -> std::result::Result<u64, String> {
    let bytes = parse_bytes(text).ok_or("expected a size such as 512MiB, 2GiB or 1000000")?;
    u64::try_from(bytes).map_err(|_| format!("expected at most {} bytes", u64::MAX))
}

/// Fetches the checkpoint, checks it, and moves it into the models folder. Fails if a file is missing, too large or damaged, if the
/// digest differs, or if the name is taken.
pub fn run(args: Args) -> Result<()> {
    let origin = Origin::parse(&args.source)?;
    let name = args.name.clone().or_else(|| origin.name());
    let name = name.ok_or_else(|| {
        Error::bad_option("--name", "none", "a name, because SOURCE has no last path segment to use as one")
    })?;
    check_name(&name)?;
    let models = local_models::models_folder().ok_or_else(|| {
        let variable = local_models::DATA_VARIABLE;
        Error::Setting(format!("there is no data folder: set {variable}, XDG_DATA_HOME or HOME"))
    })?;
    let installation = Installation::begin(&models, &name, args.force)?;
    let folder = installation.folder().join("fetched");
    std::fs::create_dir(&folder).map_err(Error::io(&folder))?;
    let mut progress = Progress::bytes();
    let files = origin.open()?;
    let report = &mut |done, total| progress.update(done, total);
    let mut download = Download::new(&*files, args.max_pull_bytes, report);
    // Messages name the source, not the temporary copy.
    let at_source = |error| at_source(error, &folder, &*files);
    let fetched = download.checkpoint(&folder).map_err(at_source)?;
    drop(progress);
    if let Some(expected) = args.sha256.as_ref().filter(|expected| **expected != fetched.sha256) {
        let found = fetched.sha256;
        return Err(Error::checkpoint(args.source, "sha256 of the weights", format!("{expected} (--sha256)"), found));
    }
    let (complete, converted_sha256) = match Source::of_folder(&folder)? {
        None => {
            check(&folder, &fetched).map_err(at_source)?;
            (folder.clone(), None)
        }
        Some(kind) => {
            let converted = installation.folder().join("converted");
            let written = convert(kind, &folder, &converted, false).map_err(at_source)?;
            notes::tokenizer_not_converted(kind, &folder);
            (converted, Some(written.sha256))
        }
    };
    let path = installation.finish(&complete)?;
    let shape = shape(&path)?;
    print(&Pulled { name, path, shape, fetched, converted_sha256 }, args.json)
}

/// A model that was put among the user's models.
struct Pulled {
    name: String,
    path: PathBuf,
    shape: String,
    fetched: Fetched,
    /// Digest of the weights after a conversion.
    converted_sha256: Option<String>,
}

fn print(pulled: &Pulled, as_json: bool) -> Result<()> {
    let Pulled { name, path, shape, fetched, converted_sha256 } = pulled;
    let Fetched { sha256: source_sha256, companions } = fetched;
    let sha256 = converted_sha256.as_ref().unwrap_or(source_sha256);
    if as_json {
        return output::json(&json!({
            "name": name,
            "path": path,
            "shape": shape,
            "sha256": sha256,
            "source_sha256": source_sha256,
            "companions": companions,
        }));
    }
    let mut digests = format!("sha256 {sha256}");
    if converted_sha256.is_some() {
        digests += &format!(", source sha256 {source_sha256}");
    }
    for (companion, sha256) in companions {
        digests += &format!(", {companion} sha256 {sha256}");
    }
    output::write(&format!("{name}: {shape}, {digests}, in {}\n", path.display()))
}

/// Replaces the temporary path of a file in an error by the file's place at the source.
fn at_source(error: Error, folder: &Path, files: &dyn FileSource) -> Error {
    match error {
        Error::Checkpoint { file, key, expected, found } => {
            let name = file.strip_prefix(folder).ok().and_then(Path::to_str);
            Error::Checkpoint { file: name.map_or(file.clone(), |name| files.place(name)), key, expected, found }
        }
        other => other,
    }
}

/// Names are plain, because they are folder names and are written in lists and URLs.
fn check_name(name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if (1..=128).contains(&name.len()) && name.chars().all(plain) && !name.starts_with('.') {
        return Ok(());
    }
    let bound = "1 to 128 letters, digits, hyphens, underscores and dots, of which the first is no dot";
    Err(Error::bad_option("--name", format!("{name:?}"), bound))
}

/// Checks all of a checkpoint and its companions but their numbers, of which the digests were computed while they were fetched.
fn check(folder: &Path, fetched: &Fetched) -> Result<()> {
    let source = CheckpointSource::from(folder);
    let config = source.config()?;
    let blueprint = blueprint(&config, &source.config_file())?;
    check_weights(&source, &*blueprint, &fetched.sha256)?;
    entropy_models(&source, &config, &*blueprint)?;
    for (name, sha256) in &fetched.companions {
        let companion = source.entropy_model(name)?;
        let blueprint = self::blueprint(&companion.config()?, &companion.config_file())?;
        check_weights(&companion, &*blueprint, sha256)?;
    }
    Ok(())
}

fn check_weights(source: &CheckpointSource, blueprint: &dyn Blueprint, sha256: &str) -> Result<()> {
    source.check_headers(&tensors(source, blueprint)?)?;
    source.check_digest(sha256)
}

fn shape(folder: &Path) -> Result<String> {
    let source = CheckpointSource::from(folder);
    Ok(blueprint(&source.config()?, &source.config_file())?.shape())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        for name in ["english", "gpt2-byte_level.v1", "7b"] {
            check_name(name).unwrap();
        }
        for name in ["", ".", "..", ".hidden", "a/b", "a\\b", "a b", "a,b", "a=b", "é", &"x".repeat(129)] {
            assert!(check_name(name).unwrap_err().to_string().starts_with("--name: "), "{name}");
        }
    }

    #[test]
    fn digests_have_64_digits() {
        assert_eq!(sha256(&"Ab".repeat(32)), Ok("ab".repeat(32)));
        for wrong in ["", "ab", &"g".repeat(64), &"a".repeat(65)] {
            assert!(sha256(wrong).is_err(), "{wrong}");
        }
    }
}
