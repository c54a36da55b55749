//! Notes on stderr: how a command treats its input.

use crate::{
    error::{clip, printable},
    family::convert::Source,
    text::{TextNormaliser, Vocabulary, subwords::TOKENIZER_FILE},
};
use std::{io::Write, path::Path};

/// Maximum bytes of the normalised text in a note.
const SHOWN_BYTES: usize = 80;

/// Reports that normalising changes the text of `flag`, if it does.
pub(super) fn normalised(flag: &str, text: &str, vocabulary: &Vocabulary) {
    let normaliser = vocabulary.normaliser();
    characters_changed(flag, text, normaliser.changed_chars(text), Some(normaliser.name()));
}

/// Reports that a normaliser changed this many characters of the text of `flag`, if it did. `name` is the normaliser's name, if known.
pub(super) fn characters_changed(flag: &str, text: &str, changed: usize, name: Option<&str>) {
    if changed > 0 {
        write(&normalised_note(flag, text, changed, name));
    }
}

/// Reports that a conversion left a tokenizer behind.
pub(super) fn tokenizer_not_converted(kind: Source, folder: &Path) {
    let has_tokenizer = [TOKENIZER_FILE, "vocab.json"].iter().any(|name| folder.join(name).exists());
    if kind == Source::Gpt2 && has_tokenizer {
        write(
            "conversions from GPT-2 read no tokenizer: without vocab in config.json, the model takes --ids and no text",
        );
    }
}

/// Reports that a stop string never ends the text.
pub(super) fn never_matches(stop: &str) {
    write(&format!("--stop: {stop:?} never matches, because the model cannot generate it"));
}

/// Reports that the document was longer than the model's limit.
pub(super) fn document_cut(tokens: usize) {
    write(&format!("--cut: only the first {tokens} tokens of the document were summarized"));
}

/// Reports that a part of a long document is summarized.
pub(super) fn part_summarized(round: usize, part: usize, read: u64, bytes: u64) {
    write(&format!("--long-documents: summarized part {part} of round {round} ({read} of {bytes} bytes read)"));
}

/// Returns the note on a text of which a normaliser changed characters. A server of another version may have a normaliser that this
/// program does not know; what the model reads is then unknown.
fn normalised_note(flag: &str, text: &str, changed: usize, name: Option<&str>) -> String {
    let count = text.chars().count();
    let noun = if count == 1 { "character" } else { "characters" };
    let normaliser =
        name.map_or("the model's normaliser".to_owned(), |name| format!("the normaliser {}", printable(name)));
    let read = name.and_then(TextNormaliser::parse).map_or_else(String::new, |known| {
        let shown = clip(&known.apply(text), SHOWN_BYTES);
        format!("; the model reads {shown:?}")
    });
    format!("{flag}: {normaliser} changed {changed} of {count} {noun}{read}")
}

fn write(note: &str) {
    // `eprintln!` would panic if stderr is closed.
    let _ = writeln!(std::io::stderr(), "weir: note: {note}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_shows_what_the_model_reads() {
        let note = normalised_note("--prompt", "A, b", 3, Some("text8"));
        assert_eq!(note, "--prompt: the normaliser text8 changed 3 of 4 characters; the model reads \"a b\"");
        let single = normalised_note("--text", "A", 1, Some("text8"));
        assert_eq!(single, "--text: the normaliser text8 changed 1 of 1 character; the model reads \"a\"");
        let later = normalised_note("--text", "A b", 1, Some("text9"));
        assert_eq!(later, "--text: the normaliser text9 changed 1 of 3 characters");
        let unknown = normalised_note("--text", "A b", 1, None);
        assert_eq!(unknown, "--text: the model's normaliser changed 1 of 3 characters");
    }
}
