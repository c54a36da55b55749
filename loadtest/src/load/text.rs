//! Texts from which prompts and documents are taken.

use super::workload::PromptSource;
use crate::error::{Error, Result};
use rand::{Rng, RngExt};
use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    sync::Arc,
};
use weir_proto::shown::quoted;

/// English in lower case: Wikipedia, CC BY-SA 4.0.
const SAMPLE: &str = include_str!("english.txt");
const SAMPLE_NAME: &str = "bundled English sample";
/// Maximum bytes of a file.
const MAX_BYTES: u64 = 16 << 20;

#[derive(Debug, Clone)]
pub(crate) struct PromptText {
    /// Names of the files, or of the bundled sample.
    pub name: String,
    chars: Vec<char>,
}

impl PromptText {
    /// Reads and concatenates files, or returns the bundled sample. Fails if a file is missing, empty, too large or not UTF-8.
    pub(crate) fn read(files: &[PathBuf]) -> Result<Self> {
        if files.is_empty() {
            return Ok(Self { name: SAMPLE_NAME.into(), chars: SAMPLE.chars().collect() });
        }
        let mut chars = Vec::new();
        for file in files {
            chars.extend(read_file(file)?.chars());
        }
        let name = |file: &PathBuf| file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned();
        Ok(Self { name: files.iter().map(name).collect::<Vec<_>>().join(", "), chars })
    }

    /// Reads documents, and a text without characters that carries their common name. Each line of a `.jsonl` file is an object
    /// with a document as `text`, `document` or `article`; every other file is one document. Fails if there is no file, or one is
    /// missing, empty, too large, or malformed.
    pub(crate) fn documents(files: &[PathBuf]) -> Result<(Self, Vec<String>)> {
        if files.is_empty() {
            return Err(Error::option("--prompts", "no file", "files, because the prompts are documents"));
        }
        let name = Self::read(files)?.name;
        let mut documents = Vec::new();
        for file in files {
            let text = read_file(file)?;
            if file.extension().is_some_and(|extension| extension == "jsonl") {
                let expected = "a JSON object with a text as `text`, `document` or `article`";
                for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
                    let field = || format!("--prompts: {}, line {}", file.display(), number + 1);
                    let malformed = || Error::option(field(), "another value", expected);
                    let object: serde_json::Value = serde_json::from_str(line).map_err(|_| malformed())?;
                    let value = ["text", "document", "article"].iter().find_map(|key| object.get(key)?.as_str());
                    let document = value.filter(|document| !document.trim().is_empty()).ok_or_else(malformed)?;
                    documents.push(document.to_owned());
                }
            } else {
                documents.push(text);
            }
        }
        Ok((Self { name, chars: Vec::new() }, documents))
    }

    /// Reads documents as [`documents`](Self::documents) does, as one text with a newline between two of them.
    pub(crate) fn joined_documents(files: &[PathBuf]) -> Result<Self> {
        let (text, documents) = Self::documents(files)?;
        Ok(Self { chars: documents.join("\n").chars().collect(), ..text })
    }

    /// Returns the lines that are not blank. Fails if there are none.
    pub(crate) fn lines(&self) -> Result<Vec<String>> {
        let text: String = self.chars.iter().collect();
        let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect();
        if lines.is_empty() {
            Err(Error::option("--prompts", quoted(&self.name), "text with lines in it"))
        } else {
            Ok(lines)
        }
    }

    pub(crate) fn head(&self, length: usize) -> String {
        self.chars.iter().take(length).collect()
    }

    /// Returns `length` characters from a random position, at the start of a word if the text has words. Wraps around at the end.
    pub(crate) fn excerpt(&self, rng: &mut impl Rng, length: u64) -> String {
        let count = self.chars.len();
        if count == 0 {
            return String::new();
        }
        let start = rng.random_range(0..count);
        let word = (0..count).find(|ahead| self.chars[(start + ahead + count - 1) % count].is_whitespace());
        let start = start + word.unwrap_or(0);
        (0..length as usize).map(|ahead| self.chars[(start + ahead) % count]).collect()
    }
}

pub(super) struct PromptSet {
    source: PromptSource,
    pub(super) text: PromptText,
    /// Lines or documents; empty if prompts are excerpts of the text.
    pub(super) items: Vec<Arc<str>>,
}

impl PromptSet {
    pub(super) fn read(source: PromptSource, files: &[PathBuf]) -> Result<Self> {
        let (text, items) = match source {
            PromptSource::Documents => PromptText::documents(files)?,
            PromptSource::Excerpts(_) => (PromptText::read(files)?, Vec::new()),
            PromptSource::Lines => {
                let text = PromptText::read(files)?;
                let lines = text.lines()?;
                (text, lines)
            }
        };
        Ok(Self { source, text, items: items.into_iter().map(Arc::from).collect() })
    }

    /// Draws a prompt. An excerpt has at most `max` characters.
    pub(super) fn draw(&self, rng: &mut impl Rng, max: u64) -> Result<Arc<str>> {
        if let PromptSource::Excerpts(length) = self.source {
            let length = length.draw(rng, max)?;
            return Ok(self.text.excerpt(rng, length).into());
        }
        let item = self.items.get(rng.random_range(0..self.items.len().max(1)));
        item.cloned().ok_or_else(|| Error::Internal("no prompts".into()))
    }
}

fn read_file(file: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    File::open(file)
        .and_then(|opened| opened.take(MAX_BYTES + 1).read_to_end(&mut bytes))
        .map_err(Error::unreadable("--prompts", file))?;
    let field = || format!("--prompts: {}", file.display());
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Error::option(field(), "a larger file", format!("at most {MAX_BYTES} bytes")));
    }
    if bytes.is_empty() {
        return Err(Error::option(field(), "an empty file", "a text"));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        Error::option(field(), format!("an invalid byte at offset {}", error.utf8_error().valid_up_to()), "UTF-8 text")
    })?;
    if text.trim().is_empty() {
        return Err(Error::option(field(), "a blank file", "a text"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    #[test]
    fn excerpts_begin_with_words_and_wrap_around() {
        let text = PromptText { name: String::new(), chars: "one two three".chars().collect() };
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let mut excerpts: Vec<_> = (0..200).map(|_| text.excerpt(&mut rng, 5)).collect();
        excerpts.sort();
        excerpts.dedup();
        assert_eq!(excerpts, ["three", "two t"]);
        assert_eq!(text.excerpt(&mut rng, 40).chars().count(), 40);
    }

    fn written(folder: &tempfile::TempDir, name: &str, bytes: &[u8]) -> PathBuf {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    #[test]
    fn documents_are_files_or_lines_of_json() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| written(&folder, name, text.as_bytes());
        let lines = file("set.jsonl", "{\"text\": \"one\", \"id\": 1}\n\n{\"article\": \"two\\nlines\"}\n");
        let files = [lines, file("a.txt", "three\n\nfour")];
        let (text, documents) = PromptText::documents(&files).unwrap();
        assert_eq!((text.name.as_str(), documents.len()), ("set.jsonl, a.txt", 3));
        assert_eq!(documents, ["one", "two\nlines", "three\n\nfour"]);
        assert_eq!(PromptText::joined_documents(&files).unwrap().head(99), "one\ntwo\nlines\nthree\n\nfour");
        for (wrong, line) in
            [("{\"text\": 3}", "line 1"), ("{\"text\": \"x\"}\nno", "line 2"), ("{\"text\": \" \"}", "line 1")]
        {
            let message = PromptText::documents(&[file("w.jsonl", wrong)]).unwrap_err().to_string();
            assert!(message.contains("w.jsonl") && message.contains(line), "{message}");
        }
        assert!(PromptText::documents(&[]).unwrap_err().to_string().contains("no file"));
    }

    #[test]
    fn files_are_checked() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| written(&folder, name, bytes);
        let message = |path| PromptText::read(&[path]).unwrap_err().to_string();
        assert!(message(file("empty", b"")).contains("an empty file"));
        assert!(message(file("bytes", b"abc\xff")).contains("byte at offset 3"));
        assert!(message(folder.path().join("none")).contains("none"));
        let text = PromptText::read(&[file("a", "ä\n\nb \n".as_bytes()), file("b", b"c")]).unwrap();
        assert_eq!((text.chars.len(), text.name.as_str()), (7, "a, b"));
        assert_eq!(text.lines().unwrap(), ["ä", "b", "c"]);
        assert_eq!(text.head(3), "ä\n\n");
    }
}
