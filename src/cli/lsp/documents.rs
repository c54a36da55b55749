//! The open documents. A document beyond a limit gets no completions; the others are not affected.

use super::{
    protocol::{ContentChange, TextRange},
    text::{DocumentText, PositionEncoding},
};
use std::collections::BTreeMap;

/// Limits of the open documents.
#[derive(Debug, Clone, Copy)]
pub(super) struct DocumentLimits {
    /// Maximum open documents.
    pub(super) documents: usize,
    /// Maximum bytes of a document.
    pub(super) document_bytes: usize,
    /// Maximum bytes of all documents.
    pub(super) total_bytes: usize,
}

impl Default for DocumentLimits {
    fn default() -> Self {
        Self { documents: 256, document_bytes: 4 << 20, total_bytes: 64 << 20 }
    }
}

/// The open documents.
#[derive(Debug)]
pub(super) struct Documents {
    limits: DocumentLimits,
    /// The texts by their URIs; `None` for a document beyond a limit.
    texts: BTreeMap<String, Option<DocumentText>>,
    /// Bytes of all texts.
    bytes: usize,
}

/// The reason why a document gets no completions.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal(pub(super) String);

impl Documents {
    pub(super) fn new(limits: DocumentLimits) -> Self {
        Self { limits, texts: BTreeMap::new(), bytes: 0 }
    }

    /// Returns the text of a document; `None` if it is not open or exceeds a limit.
    pub(super) fn text(&self, uri: &str) -> Option<&DocumentText> {
        self.texts.get(uri)?.as_ref()
    }

    /// Opens a document, in place of one with this URI. Fails if it is beyond a limit.
    pub(super) fn open(&mut self, uri: String, text: String) -> Result<(), Refusal> {
        self.close(&uri);
        let limit = self.limits.documents;
        if self.texts.len() >= limit {
            return Err(Refusal(format!("{uri}: expected at most {limit} open documents, found one more")));
        }
        let checked = self.check_bytes(&uri, text.len());
        let text = checked.is_ok().then(|| DocumentText::new(text));
        self.insert(uri, text);
        checked
    }

    /// Applies changes in their order. Does nothing for a document that is not open. Fails when the document first exceeds a
    /// limit, not at later changes.
    pub(super) fn change(
        &mut self,
        uri: &str,
        changes: Vec<ContentChange>,
        encoding: PositionEncoding,
    ) -> Result<(), Refusal> {
        let Some(held) = self.texts.get_mut(uri) else { return Ok(()) };
        let mut text = held.take();
        let was_left_out = text.is_none();
        self.bytes -= text.as_ref().map_or(0, |text| text.text().len());
        let mut checked = Ok(());
        for ContentChange { range, text: with } in changes {
            let range = range.map(|range| (text.as_ref(), range));
            let replaced = match range {
                None => None,
                // The document was left out, so its text is unknown.
                Some((None, _)) => continue,
                Some((Some(text), range)) => Some(bytes(text, range, encoding)),
            };
            let kept = match (&text, &replaced) {
                (Some(text), Some(replaced)) => text.text().len() - replaced.len(),
                _ => 0,
            };
            checked = self.check_bytes(uri, kept + with.len());
            match (&mut text, replaced) {
                _ if checked.is_err() => text = None,
                (Some(text), Some(replaced)) => text.replace(replaced, &with),
                _ => text = Some(DocumentText::new(with)),
            }
        }
        self.insert(uri.to_owned(), text);
        if was_left_out { Ok(()) } else { checked }
    }

    /// Leaves out a document, or all without a URI: a change of it could not be read, so its text is unknown until it is opened again
    /// or sent whole. Returns the URIs of the documents whose text was known.
    pub(super) fn leave_out(&mut self, uri: Option<&str>) -> Vec<String> {
        let mut lost = Vec::new();
        for (own, text) in &mut self.texts {
            if uri.is_none_or(|uri| uri == own)
                && let Some(text) = text.take()
            {
                self.bytes -= text.text().len();
                lost.push(own.clone());
            }
        }
        lost
    }

    /// Closes a document.
    pub(super) fn close(&mut self, uri: &str) {
        if let Some(Some(text)) = self.texts.remove(uri) {
            self.bytes -= text.text().len();
        }
    }

    fn insert(&mut self, uri: String, text: Option<DocumentText>) {
        self.bytes += text.as_ref().map_or(0, |text| text.text().len());
        self.texts.insert(uri, text);
    }

    /// Checks a document's new length; the bytes of all documents are those of the others.
    fn check_bytes(&self, uri: &str, length: usize) -> Result<(), Refusal> {
        let DocumentLimits { document_bytes, total_bytes, .. } = self.limits;
        let all = self.bytes + length;
        if length > document_bytes {
            return Err(Refusal(format!(
                "{uri}: expected a document of at most {document_bytes} bytes, found {length}; it gets no completions"
            )));
        }
        if all > total_bytes {
            return Err(Refusal(format!(
                "{uri}: expected at most {total_bytes} bytes in all open documents, found {all}; it gets no completions"
            )));
        }
        Ok(())
    }
}

/// Returns the bytes of a range. Its ends may come in either order.
fn bytes(text: &DocumentText, range: TextRange, encoding: PositionEncoding) -> std::ops::Range<usize> {
    let one = text.offset(range.start, encoding);
    let other = text.offset(range.end, encoding);
    one.min(other)..one.max(other)
}

#[cfg(test)]
mod tests {
    use super::{super::protocol::Position, *};
    use PositionEncoding::Utf16;

    fn limits() -> DocumentLimits {
        DocumentLimits { documents: 2, document_bytes: 8, total_bytes: 12 }
    }

    fn change(range: Option<[u32; 2]>, text: &str) -> ContentChange {
        let position = |character| Position { line: 0, character };
        let range = range.map(|[start, end]| TextRange { start: position(start), end: position(end) });
        ContentChange { range, text: text.into() }
    }

    fn text<'a>(documents: &'a Documents, uri: &str) -> Option<&'a str> {
        documents.text(uri).map(DocumentText::text)
    }

    #[test]
    fn changes_apply_in_their_order() {
        let mut documents = Documents::new(limits());
        documents.open("a".into(), "😀bc".into()).unwrap();
        // after the surrogate pair; then from the end to the beginning
        documents.change("a", vec![change(Some([2, 3]), "é"), change(Some([4, 3]), "")], Utf16).unwrap();
        assert_eq!(text(&documents, "a"), Some("😀é"));
        documents.change("a", vec![change(None, "new"), change(Some([3, 9]), "!")], Utf16).unwrap();
        assert_eq!(text(&documents, "a"), Some("new!"));
        documents.change("unknown", vec![change(None, "new")], Utf16).unwrap();
        assert_eq!((text(&documents, "unknown"), documents.bytes), (None, 4));
    }

    #[test]
    fn a_document_beyond_a_limit_is_left_out() {
        let mut documents = Documents::new(limits());
        let refused = documents.open("a".into(), "123456789".into()).unwrap_err();
        assert_eq!(refused.0, "a: expected a document of at most 8 bytes, found 9; it gets no completions");
        documents.change("a", vec![change(Some([0, 0]), "1")], Utf16).unwrap();
        assert_eq!(text(&documents, "a"), None);
        documents.change("a", vec![change(None, "0123456789")], Utf16).unwrap();
        // a whole text takes it in again
        documents.change("a", vec![change(None, "12345678")], Utf16).unwrap();
        assert_eq!(text(&documents, "a"), Some("12345678"));
        let refused = documents.change("a", vec![change(Some([0, 0]), "0")], Utf16).unwrap_err();
        assert!(refused.0.contains("at most 8 bytes, found 9"), "{}", refused.0);
        assert_eq!((text(&documents, "a"), documents.bytes), (None, 0));
        documents.open("b".into(), "12345678".into()).unwrap();
        let refused = documents.open("a".into(), "12345".into()).unwrap_err();
        assert!(refused.0.contains("at most 12 bytes in all open documents, found 13"), "{}", refused.0);
        let refused = documents.open("c".into(), String::new()).unwrap_err();
        assert_eq!(refused.0, "c: expected at most 2 open documents, found one more");
        documents.close("b");
        documents.open("a".into(), "1".into()).unwrap();
        assert_eq!((text(&documents, "a"), documents.bytes, documents.texts.len()), (Some("1"), 1, 1));
    }

    #[test]
    fn a_document_is_left_out_until_its_text_is_known() {
        let mut documents = Documents::new(limits());
        documents.open("a".into(), "1".into()).unwrap();
        documents.open("b".into(), "2".into()).unwrap();
        assert_eq!(documents.leave_out(Some("a")), ["a"]);
        assert_eq!((text(&documents, "a"), text(&documents, "b"), documents.bytes), (None, Some("2"), 1));
        assert_eq!((documents.leave_out(None), documents.bytes), (vec!["b".to_owned()], 0));
        documents.change("a", vec![change(Some([0, 1]), "3")], Utf16).unwrap();
        assert_eq!(text(&documents, "a"), None);
        documents.change("a", vec![change(None, "3")], Utf16).unwrap();
        documents.open("b".into(), "4".into()).unwrap();
        assert_eq!((text(&documents, "a"), text(&documents, "b"), documents.bytes), (Some("3"), Some("4"), 2));
    }
}
