//! Texts that prompts are cut from.

use crate::error::{Error, Result};
use rand::{Rng, RngExt};
use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

/// English in lower case: Wikipedia, CC BY-SA 4.0.
const SAMPLE: &str = include_str!("../../../src/report/english.txt");
/// What the sample is called in reports.
const SAMPLE_NAME: &str = "bundled English sample";
/// Bytes of a file.
const MAX_BYTES: u64 = 16 << 20;

/// A text.
#[derive(Debug, Clone)]
pub struct PromptText {
    /// Where it is from.
    pub name: String,
    letters: Vec<char>,
}

impl PromptText {
    /// The bundled one.
    pub fn sample() -> Self {
        Self { name: SAMPLE_NAME.into(), letters: SAMPLE.chars().collect() }
    }

    /// Several files, one after the other; of none the bundled sample.
    ///
    /// # Errors
    /// A file that is not there, empty, too large, or no UTF-8.
    pub fn read(files: &[PathBuf]) -> Result<Self> {
        if files.is_empty() {
            return Ok(Self::sample());
        }
        let mut letters = Vec::new();
        for file in files {
            letters.extend(content(file)?.chars());
        }
        let names: Vec<_> =
            files.iter().map(|file| file.file_name().unwrap_or(file.as_os_str()).to_string_lossy()).collect();
        Ok(Self { name: names.join(", "), letters })
    }

    /// Documents, and what they are called together: each line of a file whose name ends in `.jsonl` is an object whose key
    /// `text`, `document` or `article` has one; every other file is one.
    ///
    /// # Errors
    /// No file, or one that is not there, empty, too large, or not what it should be.
    pub fn documents(files: &[PathBuf]) -> Result<(Self, Vec<String>)> {
        if files.is_empty() {
            return Err(Error::option("--prompts", "no file", "files, where documents are asked for"));
        }
        let name = Self::read(files)?.name;
        let mut documents = Vec::new();
        for file in files {
            let text = content(file)?;
            if file.extension().is_some_and(|extension| extension == "jsonl") {
                let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
                for (number, line) in lines {
                    let place = || {
                        Error::option(
                            format!("--prompts {}", file.display()),
                            format!("line {}", number + 1),
                            "an object of JSON with a text as `text`, `document` or `article`",
                        )
                    };
                    let object: serde_json::Value = serde_json::from_str(line).map_err(|_| place())?;
                    let found = ["text", "document", "article"].iter().find_map(|key| object.get(key)?.as_str());
                    let document = found.filter(|document| !document.trim().is_empty()).ok_or_else(place)?;
                    documents.push(document.to_owned());
                }
            } else {
                documents.push(text);
            }
        }
        Ok((Self { name, letters: Vec::new() }, documents))
    }

    /// The lines that are not blank.
    ///
    /// # Errors
    /// There are none.
    pub fn lines(&self) -> Result<Vec<String>> {
        let text: String = self.letters.iter().collect();
        let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect();
        if lines.is_empty() { Err(Error::option("--prompts", &self.name, "text with lines in it")) } else { Ok(lines) }
    }

    /// How many characters it has.
    pub fn len(&self) -> usize {
        self.letters.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.letters.is_empty()
    }

    /// The first `length` characters.
    pub fn head(&self, length: usize) -> String {
        self.letters.iter().take(length).collect()
    }

    /// `length` characters from a random place on, the beginning of a word where the text has words. Read in a circle.
    pub fn window(&self, rng: &mut impl Rng, length: u64) -> String {
        let count = self.letters.len();
        if count == 0 {
            return String::new();
        }
        let start = rng.random_range(0..count);
        let word = (0..count).find(|ahead| self.letters[(start + ahead + count - 1) % count].is_whitespace());
        let start = start + word.unwrap_or(0);
        (0..length as usize).map(|ahead| self.letters[(start + ahead) % count]).collect()
    }
}

fn content(file: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    let opened = File::open(file).map_err(Error::io(file))?;
    opened.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(Error::io(file))?;
    let field = || format!("--prompts {}", file.display());
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Error::option(field(), "a larger one", format!("at most {MAX_BYTES} bytes")));
    }
    if bytes.is_empty() {
        return Err(Error::option(field(), "an empty file", "a text"));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        Error::option(field(), format!("byte {} of it", error.utf8_error().valid_up_to()), "UTF-8 text")
    })?;
    if text.trim().is_empty() {
        return Err(Error::option(field(), "a file of blanks", "a text"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    #[test]
    fn windows_begin_with_words_and_go_round() {
        let text = PromptText { name: String::new(), letters: "one two three".chars().collect() };
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let mut found: Vec<_> = (0..200).map(|_| text.window(&mut rng, 5)).collect();
        found.sort();
        found.dedup();
        assert_eq!(found, ["three", "two t"]);
        assert_eq!(text.window(&mut rng, 40).chars().count(), 40);
    }

    #[test]
    fn documents_are_files_or_lines_of_json() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let lines = file("set.jsonl", "{\"text\": \"one\", \"id\": 1}\n\n{\"article\": \"two\\nlines\"}\n");
        let (text, documents) = PromptText::documents(&[lines, file("a.txt", "three\n\nfour")]).unwrap();
        assert_eq!((text.name.as_str(), documents.len()), ("set.jsonl, a.txt", 3));
        assert_eq!(documents, ["one", "two\nlines", "three\n\nfour"]);
        for (wrong, line) in
            [("{\"text\": 3}", "line 1"), ("{\"text\": \"x\"}\nno", "line 2"), ("{\"text\": \" \"}", "line 1")]
        {
            let told = PromptText::documents(&[file("w.jsonl", wrong)]).unwrap_err().to_string();
            assert!(told.contains("w.jsonl") && told.contains(line), "{told}");
        }
        assert!(PromptText::documents(&[]).unwrap_err().to_string().contains("no file"));
    }

    #[test]
    fn files_are_checked() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let told = |path| PromptText::read(&[path]).unwrap_err().to_string();
        assert!(told(file("empty", b"")).contains("an empty file"));
        assert!(told(file("bytes", b"abc\xff")).contains("byte 3"));
        assert!(told(folder.path().join("none")).contains("none"));
        let text = PromptText::read(&[file("a", "ä\n\nb \n".as_bytes()), file("b", b"c")]).unwrap();
        assert_eq!((text.len(), text.name.as_str()), (7, "a, b"));
        assert_eq!(text.lines().unwrap(), ["ä", "b", "c"]);
        assert_eq!(text.head(3), "ä\n\n");
    }
}
