//! The files of a checkpoint's folder, which may come from anywhere: which of them are opened, what is wrong with others, how new
//! files replace them, and how JSON is parsed, with errors that name the key, the expected and the actual value.

use serde::Deserialize;
use serde::de::{self, DeserializeOwned};
use serde_json::Value;
use serde_path_to_error::{Path as KeyPath, Segment};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use weir_kernels::error::{Error, Mismatch, QUOTED, Result, clip, mismatch, split_place};

/// The file that every checkpoint has.
pub const CONFIG_FILE: &str = "config.json";

/// Fails for `key` of a file unless a condition holds.
pub(crate) fn require(
    holds: bool,
    file: &Path,
    key: impl Into<String>,
    expected: impl Into<String>,
    found: impl ToString,
) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::checkpoint(file, key, expected, found.to_string())) }
}

/// Maximum names that a message lists.
const LISTED: usize = 8;

/// Maximum entries of a folder that are read for a message.
const READ: usize = 1000;

/// Endings of files that are not checkpoints, with a description and advice for each. `PATH` stands for the argument.
const FOREIGN: [(&str, &str, &str); 10] = [
    (".gguf", "a GGUF file", GGUF),
    (
        STATE,
        "a training state",
        "the file belongs to a run of weir's training, from which `python -m training.export --run PATH --out MODEL` writes a checkpoint",
    ),
    ("params.json", "a configuration of Meta's code", META),
    ("consolidated.pth", "a file of Meta's code", META),
    ("consolidated.00.pth", "a file of Meta's code", META),
    (".pt", "a PyTorch file", PYTORCH),
    (".bin", "a PyTorch file", PYTORCH),
    (
        ".onnx",
        "an ONNX file",
        "weir does not read ONNX, but it reads folders in Hugging Face's format (docs/models.md lists the kinds of models)",
    ),
    (".tar.gz", "an archive", "unpack the archive first"),
    (WEIGHTS, "a file of weights", "give the folder of this file, which has a config.json as well"),
];

/// The end of the names of weights.
const WEIGHTS: &str = ".safetensors";

/// Advice about a folder that has weights only.
const WEIGHTS_ALONE: &str = "the weights need the config.json that belongs to them: weir's (docs/checkpoints.md), or that of the \
                             model on Hugging Face (docs/models.md)";

/// The state of a run, which `models/training` writes.
const STATE: &str = "state.pt";

const GGUF: &str = "weir does not read GGUF, but it reads folders in Hugging Face's format (docs/models.md lists the kinds of \
                    models)";

const META: &str = "weir does not read Meta's own files, but Hugging Face's form of the model, which transformers' \
                    convert_blt_weights_to_hf.py writes for a Byte Latent Transformer";

const PYTORCH: &str = "`weir convert --help` lists the projects whose PyTorch checkpoints weir can convert";

/// Checks that a folder exists and has a `config.json`. The error says what is there.
pub fn check_folder(dir: &Path) -> Result<()> {
    check(dir, format!("a checkpoint (a folder with a {CONFIG_FILE})"), true)
}

/// Checks that the source of a conversion is a folder with a `config.json`; `expected` describes it. The error says what is there.
pub fn check_source(dir: &Path, expected: &str) -> Result<()> {
    check(dir, expected.to_owned(), false)
}

/// Lists what a folder has, for a message.
pub fn contents(dir: &Path) -> String {
    match &*names(dir) {
        [] => "the folder is empty".into(),
        names => format!("the folder has {}", listed(names)),
    }
}

/// Checks a folder as [`check_folder`] does. If `hints` is true, the error also has advice about files of [`FOREIGN`].
fn check(dir: &Path, expected: String, hints: bool) -> Result<()> {
    let wrong = |found: String| Err(Error::checkpoint(dir, "the folder", expected, found));
    let foreign = |names: &[String]| foreign(names).filter(|_| hints);
    let with_path = |advice: &str, path: &Path| advice.replace("PATH", &path.display().to_string());
    if dir.is_file() {
        let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        return wrong(match foreign(&[name]) {
            Some((STATE, kind, advice)) => format!("{kind}; {}", with_path(advice, parent(dir))),
            Some((_, kind, advice)) => format!("{kind}; {}", with_path(advice, dir)),
            None => "a file".into(),
        });
    }
    if !dir.is_dir() {
        return wrong("no folder of this name".into());
    }
    if dir.join(CONFIG_FILE).exists() {
        return Ok(());
    }
    let names = names(dir);
    if names.is_empty() {
        return wrong("an empty folder".into());
    }
    let is_checkpoint = |name: &&String| dir.join(name).join(CONFIG_FILE).is_file();
    let checkpoints: Vec<_> = names.iter().filter(is_checkpoint).cloned().collect();
    if !checkpoints.is_empty() {
        return wrong(format!("no {CONFIG_FILE}, but subfolders that are checkpoints: {}", listed(&checkpoints)));
    }
    let hint = match foreign(&names) {
        Some((WEIGHTS, ..)) => format!("; {WEIGHTS_ALONE}"),
        Some((.., advice)) => format!("; {}", with_path(advice, dir)),
        None => String::new(),
    };
    wrong(format!("no {CONFIG_FILE}; the folder has {}{hint}", listed(&names)))
}

pub(crate) fn parent(file: &Path) -> &Path {
    file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Returns the first entry of [`FOREIGN`] that matches one of the files.
fn foreign(names: &[String]) -> Option<(&'static str, &'static str, &'static str)> {
    FOREIGN.into_iter().find(|(ending, ..)| names.iter().any(|name| name.ends_with(ending)))
}

/// Returns the names in a folder, sorted.
fn names(dir: &Path) -> Vec<String> {
    let entries = dir.read_dir().into_iter().flatten().flatten().take(READ);
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn listed(names: &[String]) -> String {
    let more = names.len().saturating_sub(LISTED);
    let shown = names.iter().take(LISTED).map(String::as_str).collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

// Links within a checkpoint. A checkpoint is data: none of its files may be a link out of its folder.

/// Fails with [`Error::Checkpoint`] if a file of the folder is somewhere else once all links are followed.
pub fn check_inside(dir: &Path, file: &Path) -> Result<()> {
    if is_inside(dir, file)? {
        return Ok(());
    }
    Err(Error::checkpoint(file, "the file", "a file in this folder", "a link out of it"))
}

/// Returns the path of a file in a folder, if it has one of this name. Fails if that is a link out of the folder, or to no file.
pub fn present(dir: &Path, name: &str) -> Result<Option<PathBuf>> {
    let file = dir.join(name);
    match file.symlink_metadata() {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(Error::io(file)(error)),
        Ok(_) => check_inside(dir, &file).map(|()| Some(file)),
    }
}

/// Returns true if a file of the folder is still there after all links are followed. Fails if either does not exist.
pub(crate) fn is_inside(dir: &Path, file: &Path) -> Result<bool> {
    let target = file.canonicalize().map_err(Error::io(file))?;
    Ok(target.starts_with(without_links(dir)?))
}

/// Returns a folder's path without links.
fn without_links(dir: &Path) -> Result<PathBuf> {
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    dir.canonicalize().map_err(Error::io(dir))
}

// Opens regular files only. A pipe in place of a file would block its reader for ever, and a device would never end.

/// Opens a regular file to read, and returns its size. Never blocks; fails with [`ErrorKind::InvalidInput`] for other files.
pub fn open(path: &Path) -> std::io::Result<(File, u64)> {
    let mut options = OpenOptions::new();
    options.read(true);
    do_not_wait(&mut options);
    let file = options.open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() {
        return Ok((file, metadata.len()));
    }
    let found = if metadata.is_dir() { "a folder" } else { "a pipe or a device" };
    Err(std::io::Error::new(ErrorKind::InvalidInput, format!("expected a regular file, found {found}")))
}

/// Opens a regular file of a folder, and returns its size. Fails if the opened file is outside of the folder: a link may turn after
/// [`check_inside`].
pub fn open_inside(dir: &Path, path: &Path) -> Result<(File, u64)> {
    let (file, size) = open(path).map_err(Error::io(path))?;
    match place(&file).or_else(|| path.canonicalize().ok()) {
        Some(place) if place.starts_with(without_links(dir)?) => Ok((file, size)),
        _ => Err(Error::checkpoint(path, "the file", "a file in this folder", "a link out of it")),
    }
}

/// Returns the path of an open file, if the system reports it.
#[cfg(target_os = "linux")]
fn place(file: &File) -> Option<PathBuf> {
    use std::os::fd::AsRawFd;
    fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}

/// Returns nothing: only Linux reports it.
#[cfg(not(target_os = "linux"))]
fn place(_: &File) -> Option<PathBuf> {
    None
}

/// Opening a pipe must not wait for its writer. The flag has no effect on a regular file.
#[cfg(unix)]
fn do_not_wait(options: &mut OpenOptions) {
    use std::os::unix::fs::OpenOptionsExt;
    options.custom_flags(libc::O_NONBLOCK);
}

/// Does nothing: other systems have no pipes among their files.
#[cfg(not(unix))]
fn do_not_wait(_: &mut OpenOptions) {}

/// A file under a temporary name, which is removed unless it is renamed.
pub(crate) struct PartialFile {
    path: PathBuf,
    renamed: bool,
}

impl PartialFile {
    /// Chooses the temporary name of `name` in the folder `dest`. The caller creates the file.
    pub(crate) fn new(dest: &Path, name: &str) -> Self {
        Self { path: dest.join(format!(".{name}{}", Self::own_ending())), renamed: false }
    }

    fn own_ending() -> String {
        format!(".{}.partial", std::process::id())
    }

    /// Returns true for a temporary name of this process.
    pub(crate) fn is_own_name(name: &str) -> bool {
        name.starts_with('.') && name.ends_with(&Self::own_ending())
    }

    /// Returns true for a temporary name. A process that was killed leaves such a file.
    pub(crate) fn is_name(name: &str) -> bool {
        name.starts_with('.') && name.ends_with(".partial")
    }

    /// Writes a file with these contents, and waits until they are on the disk.
    pub(crate) fn write(dest: &Path, name: &str, contents: &[u8]) -> Result<Self> {
        let partial = Self::new(dest, name);
        let mut file = File::create(&partial.path).map_err(unwritable(dest))?;
        file.write_all(contents).and_then(|()| file.sync_all()).map_err(Error::io(&partial.path))?;
        Ok(partial)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn rename(&mut self, to: &Path) -> Result<()> {
        fs::rename(&self.path, to).map_err(Error::io(to))?;
        self.renamed = true;
        Ok(())
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if !self.renamed {
            // an error cannot be reported here; a leftover is recognised by its name
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Returns a function that turns an error of creating a file in `dest` into one that says what was to be written.
pub(crate) fn unwritable(dest: &Path) -> impl FnOnce(std::io::Error) -> Error {
    move |error| Error::Setting(format!("{}: cannot write a checkpoint there: {error}", dest.display()))
}

/// Waits until the names in a folder are on the disk. Fails if the file system reports an error.
#[cfg(unix)]
pub fn sync_folder(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(Error::io(folder))
}

/// Does nothing: other systems cannot open a folder.
#[cfg(not(unix))]
pub fn sync_folder(_: &Path) -> Result<()> {
    Ok(())
}

// Placeholders in place of a file, which an error names.

/// The first bytes of a Git LFS pointer.
const LFS: &[u8] = b"version https://git-lfs.github.com/spec/";

/// Description of a file in a repository that was cloned without Git LFS.
pub(crate) const LFS_POINTER: &str = "a Git LFS pointer (`git lfs pull` fetches the file)";

/// Description of a file that an interrupted download leaves.
pub(crate) const ZEROS: &str = "only zeros (an interrupted download leaves such a file)";

/// Description of such a file if only its first bytes were read.
pub(crate) const ZEROS_AT_START: &str = "zeros at its start (an interrupted download leaves such a file)";

/// Description of a file that a browser saved, or that a server sent in place of a missing one.
pub(crate) const WEB_PAGE: &str = "a web page in HTML (`weir pull` downloads the files of a model)";

/// Returns true for the beginning of a web page.
pub fn is_web_page(bytes: &[u8]) -> bool {
    let text = bytes.trim_ascii_start();
    let begins = |mark: &[u8]| text.get(..mark.len()).is_some_and(|start| start.eq_ignore_ascii_case(mark));
    begins(b"<html") || begins(b"<!doct")
}

/// Names what a file holds in place of its contents, if it is empty, only zeros, a Git LFS pointer, or a web page.
pub(crate) fn placeholder(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [] => Some("an empty file"),
        bytes if bytes.starts_with(LFS) => Some(LFS_POINTER),
        bytes if is_web_page(bytes) => Some(WEB_PAGE),
        bytes if bytes.iter().all(|byte| *byte == 0) => Some(ZEROS),
        _ => None,
    }
}

/// Reads a small file completely. Fails unless it is a regular file of at most `limit` bytes, or if it is empty or a placeholder.
pub fn read_limited(file: &Path, limit: u64) -> Result<Vec<u8>> {
    let too_long = |bytes: u64| {
        Err(Error::checkpoint(file, "the file", format!("at most {limit} bytes"), format!("{bytes} bytes or more")))
    };
    let (opened, size) = open(file).map_err(Error::io(file))?;
    if size > limit {
        return too_long(size);
    }
    let mut text = Vec::new();
    opened.take(limit + 1).read_to_end(&mut text).map_err(Error::io(file))?;
    if text.len() as u64 > limit {
        return too_long(text.len() as u64);
    }
    match placeholder(&text) {
        Some(found) => Err(Error::checkpoint(file, "the file", "its contents", found)),
        None => Ok(text),
    }
}

/// Parses `text`, the value of the key `within` in `file` or the complete file. Errors have the full path of the key.
pub fn parse<T: DeserializeOwned>(text: &[u8], file: &Path, within: &str) -> Result<T> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    match serde_path_to_error::deserialize(&mut deserializer) {
        Ok(value) => match deserializer.end() {
            Ok(()) => Ok(value),
            Err(error) => Err(explain(&error.to_string(), file, vec![within], error.is_data())),
        },
        Err(error) => Err(explain_value::<T>(text, file, within, &error)),
    }
}

/// A JSON object without duplicate keys (serde's own maps keep the last one silently).
#[derive(Debug, Clone)]
pub struct UniqueMap<T>(pub BTreeMap<String, T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for UniqueMap<T> {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Visitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> de::Visitor<'de> for Visitor<T> {
            type Value = UniqueMap<T>;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("an object")
            }

            fn visit_map<A: de::MapAccess<'de>>(self, mut object: A) -> std::result::Result<Self::Value, A::Error> {
                let mut map = BTreeMap::new();
                while let Some(key) = object.next_key::<String>()? {
                    let value = object.next_value()?;
                    if map.contains_key(&key) {
                        return Err(de::Error::custom(format!("duplicate field `{key}`")));
                    }
                    map.insert(key, value);
                }
                Ok(UniqueMap(map))
            }
        }
        deserializer.deserialize_map(Visitor(PhantomData))
    }
}

// Error messages for JSON that does not have the expected form, in JSON's terms instead of Rust's and serde's.

/// serde's message, expectation and finding if a choice, `"name"` or `{"name": {…}}`, is given in the other form.
const CHOICES: &[(&str, &str, &str)] = &[
    (
        "invalid type: unit variant, expected struct variant",
        "an object with the settings of this choice",
        "only its name",
    ),
    (
        "invalid type: struct variant, expected unit variant",
        "only the name, because this choice has no settings",
        "an object",
    ),
    ("invalid type: map, expected unit variant", "only the name, because this choice has no settings", "an object"),
];

/// serde's message if a choice is neither a name nor an object with one key. It is also the message for invalid JSON.
const NO_CHOICE: &str = "expected value";

/// Explains why `text`, which is the value of the key `within` in `file`, is not a `T`.
pub(crate) fn explain_value<T: DeserializeOwned>(
    text: &[u8],
    file: &Path,
    within: &str,
    error: &serde_path_to_error::Error<serde_json::Error>,
) -> Error {
    let path = error.path().to_string();
    // serde's path ends with `?` where the text ends within a key, and is `.` at the root
    let path = path.trim_end_matches('?').trim_end_matches('.');
    let message = error.inner().to_string();
    let (start, _) = split_place(&message);
    if (start == NO_CHOICE || CHOICES.iter().any(|(known, ..)| *known == start))
        && serde_json::from_slice::<de::IgnoredAny>(text).is_ok()
    {
        let key = [within, path].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(".");
        if let Some((_, expected, found)) = CHOICES.iter().find(|(known, ..)| *known == start) {
            return Error::checkpoint(file, key, *expected, *found);
        }
        let (expected, found) = choices::<T>(text, error.path());
        return Error::checkpoint(file, key, expected, found);
    }
    explain(&message, file, vec![within, path], error.inner().is_data())
}

/// Returns the names of a choice, and the value that is none of them.
fn choices<T: DeserializeOwned>(text: &[u8], path: &KeyPath) -> (String, String) {
    let mut value: Value = serde_json::from_slice(text).unwrap_or_default();
    let Some(place) = value.pointer_mut(&pointer(path)) else { return ("one name".into(), "another value".into()) };
    let found = clip(&place.to_string(), QUOTED);
    // serde lists the names in its message for an unknown one
    *place = Value::String(String::new());
    let message = serde_json::from_str::<T>(&value.to_string()).err().map(|error| error.to_string());
    let names =
        message.as_deref().and_then(|message| split_place(message).0.strip_prefix("unknown variant ``, expected "));
    (names.unwrap_or("a name, or an object with one key").to_owned(), found)
}

fn pointer(path: &KeyPath) -> String {
    let escaped = |key: &str| key.replace('~', "~0").replace('/', "~1");
    let segment = |segment: &Segment| match segment {
        Segment::Seq { index } => format!("/{index}"),
        Segment::Map { key } | Segment::Enum { variant: key } => format!("/{}", escaped(key)),
        Segment::Unknown => "/?".to_owned(),
    };
    path.iter().map(segment).collect()
}

/// Returns the error of a file for serde's message about the value at `path`.
pub(crate) fn explain<'a>(message: &'a str, file: &Path, path: Vec<&'a str>, is_data: bool) -> Error {
    let Mismatch { key, expected, found, .. } = mismatch(message, path, is_data);
    let key = if key.is_empty() { "the file".into() } else { key };
    Error::Checkpoint { file: PathBuf::from(file), key, expected, found }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_file_outside_of_the_folder_is_not_opened() {
        use std::os::unix::fs::symlink;
        let other = tempfile::tempdir().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        fs::write(other.path().join("secret"), "secret").unwrap();
        fs::write(file("own"), "own").unwrap();
        symlink("own", file("inside")).unwrap();
        symlink(other.path().join("secret"), file("outside")).unwrap();
        for name in ["own", "inside"] {
            assert_eq!(open_inside(dir.path(), &file(name)).unwrap().1, 3);
        }
        let error = open_inside(dir.path(), &file("outside")).unwrap_err().to_string();
        assert!(
            error.ends_with("outside: the file: expected a file in this folder, found a link out of it"),
            "{error}"
        );
        assert!(open_inside(dir.path(), &file("none")).is_err());
    }

    /// Files in the place of a folder. The program's tests compare the messages of folders.
    #[test]
    fn files_of_other_programs_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let export = format!("`python -m training.export --run {} --out MODEL`", dir.path().display());
        for (name, found) in [
            ("best.pt", "found a PyTorch file; `weir convert --help` lists"),
            ("state.pt", &export),
            ("notes.txt", "found a file"),
        ] {
            let file = dir.path().join(name);
            std::fs::write(&file, "x").unwrap();
            let message = check_folder(&file).unwrap_err().to_string();
            assert!(message.contains(found), "{message}");
        }
    }

    #[test]
    fn long_folders_are_shortened() {
        let dir = tempfile::tempdir().unwrap();
        for index in 0..12 {
            std::fs::write(dir.path().join(format!("part-{index:02}")), "").unwrap();
        }
        let error = check_folder(dir.path()).unwrap_err().to_string();
        assert!(error.ends_with("part-06, part-07 and 4 more"), "{error}");
    }

    #[test]
    fn a_file_has_its_name_when_it_is_complete() {
        let dir = tempfile::tempdir().unwrap();
        let names = || -> Vec<String> {
            let entries = fs::read_dir(dir.path()).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        };
        let mut partial = PartialFile::write(dir.path(), "a", b"contents").unwrap();
        assert!(names().len() == 1 && PartialFile::is_name(&names()[0]), "{:?}", names());
        partial.rename(&dir.path().join("a")).unwrap();
        drop(partial);
        assert_eq!(names(), ["a"]);
        drop(PartialFile::write(dir.path(), "b", b"contents").unwrap());
        assert_eq!(names(), ["a"]);
        assert!(!PartialFile::is_name("a") && !PartialFile::is_name("ngrams.bin.partial"));
    }

    #[test]
    fn a_device_is_not_opened() {
        let error = open(Path::new("/dev/zero")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("a device"), "{error}");
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Window {
        Full,
        Sliding { _keys: usize },
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Sizes {
        _width: Option<usize>,
        _list: Option<Vec<f32>>,
        _window: Option<Window>,
        _inner: Option<Box<Sizes>>,
        _flag: Option<bool>,
        _signed: Option<i64>,
    }

    #[test]
    fn messages_have_the_words_of_json() {
        for (text, expected) in [
            (r#"{"_width": "a"}"#, r#"_width: expected a whole number of at least 0, found "a""#),
            (r#"{"_width": -1}"#, "_width: expected a whole number of at least 0, found -1"),
            (r#"{"_width": {}}"#, "_width: expected a whole number of at least 0, found an object"),
            (r#"{"_list": 2.5}"#, "_list: expected a list, found 2.5"),
            (r#"{"_list": [null]}"#, "_list[0]: expected a number, found null"),
            (r#"{"_flag": "no"}"#, r#"_flag: expected true or false, found "no""#),
            (r#"{"_signed": 0.5}"#, "_signed: expected a whole number, found 0.5"),
            (r#"{"_inner": 3}"#, "_inner: expected an object, found 3"),
            (r#"{"_inner": []}"#, "_inner: expected an object, found a list of 0"),
            ("[]", "the file: expected an object, found a list of 0"),
            ("7", "the file: expected an object, found 7"),
            (r#"{"_window": 0}"#, "_window: expected `full` or `sliding`, found 0"),
            (r#"{"_window": {}}"#, "_window: expected `full` or `sliding`, found {}"),
            (r#"{"_window": ["full"]}"#, r#"_window: expected `full` or `sliding`, found ["full"]"#),
            (r#"{"_window": "none"}"#, r#"_window: expected `full` or `sliding`, found "none""#),
            (r#"{"_inner": {"_window": 3}}"#, "_inner._window: expected `full` or `sliding`, found 3"),
            (r#"{"_window": {"sliding": 3}}"#, "_window.sliding: expected an object, found 3"),
            (
                r#"{"_window": "sliding"}"#,
                "_window.sliding: expected an object with the settings of this choice, found only its name",
            ),
            (
                "{",
                "the file: expected valid JSON, found a syntax error (EOF while parsing an object at line 1 column 1)",
            ),
            (
                r#"{"_inner": {"_wid"#,
                "_inner: expected valid JSON, found a syntax error (EOF while parsing a string at line 1 column 17)",
            ),
            (
                r#"{"_width": 1, "_wid"#,
                "the file: expected valid JSON, found a syntax error (EOF while parsing a string at line 1 column 19)",
            ),
        ] {
            let message = parse::<Sizes>(text.as_bytes(), Path::new("c"), "").unwrap_err().to_string();
            assert_eq!(message, format!("c: {expected}"), "{text}");
        }
        let inside = parse::<Sizes>(b"{", Path::new("c"), "architecture").unwrap_err().to_string();
        assert!(inside.starts_with("c: architecture: expected valid JSON"), "{inside}");
        assert!(matches!(
            parse::<Window>(br#"{"sliding": {"_keys": 2}}"#, Path::new("c"), ""),
            Ok(Window::Sliding { .. })
        ));
        assert!(matches!(parse::<Window>(br#""full""#, Path::new("c"), ""), Ok(Window::Full)));
    }
}
