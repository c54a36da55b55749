//! Notes on stderr: how a command treats its input.

use crate::{error::clip, text::Vocabulary};
use std::io::Write;

/// Maximum bytes of the normalised text in a note.
const SHOWN_BYTES: usize = 80;

/// Reports that normalising changes the text of `flag`, if it does.
pub(super) fn normalised(flag: &str, text: &str, vocabulary: &Vocabulary) {
    if let Some(note) = normalised_note(flag, text, vocabulary) {
        write(&note);
    }
}

/// Reports that the server's normaliser changed this many characters of the text of `flag`.
pub(super) fn normalised_by_server(flag: &str, changed: usize) {
    write(&format!("{flag}: the model's normaliser changed {changed} characters"));
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

fn normalised_note(flag: &str, text: &str, vocabulary: &Vocabulary) -> Option<String> {
    let changed = vocabulary.normaliser().changed_chars(text);
    let normal = vocabulary.normalise(text);
    let name = vocabulary.normaliser().name();
    let count = text.chars().count();
    let shown = clip(&normal, SHOWN_BYTES);
    (changed > 0).then(|| {
        format!("{flag}: the normaliser {name} changed {changed} of {count} characters; the model reads {shown:?}")
    })
}

fn write(note: &str) {
    // `eprintln!` would panic if stderr is closed.
    let _ = writeln!(std::io::stderr(), "weir: note: {note}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::TextNormaliser;

    #[test]
    fn a_note_shows_what_the_model_reads() {
        let vocabulary = Vocabulary::from_symbols(&[" ", "a", "b"], TextNormaliser::Text8).unwrap();
        let note = normalised_note("--prompt", "A, b", &vocabulary).unwrap();
        assert_eq!(note, "--prompt: the normaliser text8 changed 3 of 4 characters; the model reads \"a b\"");
        assert_eq!(normalised_note("--prompt", "a b", &vocabulary), None);
    }
}
