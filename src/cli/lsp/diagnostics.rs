//! Misspelt words of the open documents: found by `Generation.Check` once a document rests, shown as hints, and replaced by quick fixes.
//!
//! One document is checked at a time, with the lowest priority, so that completions come first. A change ends the check of its
//! document, whose text the found places would not fit, and the next check skips the pieces that did not change. A quick fix needs no
//! state: the editor sends the hint back with the spellings in its `data`.

use crate::cli::{
    check::{MAX_WORDS, pieces},
    flag_names::message,
    lsp::{
        documents::{DocumentText, Documents, PositionEncoding},
        protocol::{CodeActionParams, Severity, TextRange},
        sessions::{Outbox, Place},
    },
    model::size,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    time::{Duration, Instant},
};
use tokio::{sync::mpsc, task::AbortHandle};
use weir_client::connection::Client;
use weir_kernels::error::{Code, Error, Result};
use weir_proto::v1::CheckRequest;

/// Time without a change after which a document is checked.
const REST: Duration = Duration::from_millis(500);

/// Maximum bytes of a document that is checked.
const MAX_CHECKED_BYTES: usize = 256 << 10;

/// Maximum bytes of a piece: a change lets its piece be checked again, and seldom others.
pub(super) const PIECE_BYTES: usize = 4 << 10;

/// Maximum hints of a document.
const MAX_HINTS: usize = 1000;

/// Maximum spellings in a hint.
const MAX_ALTERNATIVES: usize = 16;

/// Maximum bytes of a hint's texts: a word and its spellings have at most 41 letters each, and the message repeats these.
const MAX_HINT_BYTES: usize = 8 << 10;

/// Priority of a check: the lowest.
const PRIORITY: i32 = -8;

/// The name of this program in hints.
const SOURCE: &str = "weir";

/// The kind of actions that replace a word.
pub(super) const QUICK_FIX: &str = "quickfix";

/// The options of all checks.
#[derive(Debug, Clone)]
pub(super) struct CheckOptions {
    /// Name of the model. May be `None` if exactly one can answer the call.
    pub(super) model: Option<String>,
    /// Nats by which another spelling must be more probable. `None` for the server's default.
    pub(super) threshold: Option<f32>,
    /// Maximum spellings of a word.
    pub(super) alternatives: u32,
    /// Maximum bytes of a call's text.
    pub(super) piece_bytes: usize,
}

/// The checks of the open documents.
pub(super) struct Checks {
    client: Client,
    options: CheckOptions,
    /// The times at which changed documents are checked, unless they change again.
    due: BTreeMap<String, Instant>,
    running: Option<RunningCheck>,
    /// The documents that have hints.
    hinted: BTreeSet<String>,
    /// The pieces of the open documents as they were checked last.
    checked: BTreeMap<String, Vec<Piece>>,
    events: mpsc::Sender<CheckEvent>,
    /// Number of the last check.
    checks: u64,
    /// True if the model cannot check texts.
    is_off: bool,
}

/// A check in progress. Dropping it ends the check.
struct RunningCheck {
    uri: String,
    number: u64,
    task: AbortHandle,
}

impl Drop for RunningCheck {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The findings of a check so far.
#[derive(Debug)]
pub(super) struct CheckEvent {
    number: u64,
    found: Result<Vec<Piece>>,
    is_last: bool,
}

/// A piece of a document.
#[derive(Debug, Clone)]
struct Piece {
    bytes: usize,
    /// Hash of its text.
    hash: u64,
    /// Its misspelt words. `None` until it is checked.
    words: Option<Vec<FoundWord>>,
}

/// A misspelt word.
#[derive(Debug, Clone)]
struct FoundWord {
    /// Its place in the piece, in bytes.
    start: usize,
    end: usize,
    spellings: Spellings,
}

/// A word and its likelier spellings: data of a hint, which an editor sends back with a request for quick fixes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
struct Spellings {
    word: String,
    /// More probable spellings, best first.
    alternatives: Vec<String>,
}

impl Checks {
    pub(super) fn new(client: Client, options: CheckOptions, events: mpsc::Sender<CheckEvent>) -> Self {
        Self {
            client,
            options,
            due: BTreeMap::new(),
            running: None,
            hinted: BTreeSet::new(),
            checked: BTreeMap::new(),
            events,
            checks: 0,
            is_off: false,
        }
    }

    /// Plans the check of a document that was opened or changed. Ends one in progress.
    pub(super) fn change(&mut self, uri: &str) {
        self.end(uri);
        if !self.is_off {
            self.due.insert(uri.to_owned(), Instant::now() + REST);
        }
    }

    /// Takes back the hints of a document that was closed, or whose text is unknown.
    pub(super) fn close(&mut self, uri: &str, out: &mut Outbox) {
        self.end(uri);
        self.due.remove(uri);
        self.checked.remove(uri);
        if self.hinted.remove(uri) {
            out.notify("textDocument/publishDiagnostics", json!({ "uri": uri, "diagnostics": [] }));
        }
    }

    /// Returns when the next check begins. The owner calls [`begin`](Self::begin) then.
    pub(super) fn timeout(&self) -> Option<Instant> {
        self.due.values().min().copied().filter(|_| self.running.is_none())
    }

    /// Begins the check of the document that waits longest, if none runs and it is time. Must run within a runtime.
    pub(super) fn begin(&mut self, documents: &Documents, out: &mut Outbox) {
        let now = Instant::now();
        while self.running.is_none()
            && let Some((uri, _)) = self.due.iter().filter(|(_, due)| **due <= now).min_by_key(|(_, due)| **due)
        {
            let uri = uri.clone();
            self.due.remove(&uri);
            match documents.text(&uri).map(DocumentText::text).filter(|text| text.len() <= MAX_CHECKED_BYTES) {
                Some(text) => self.start(uri, text.to_owned()),
                None => self.close(&uri, out),
            }
        }
    }

    fn start(&mut self, uri: String, text: String) {
        self.checks += 1;
        let number = self.checks;
        let events = self.events.clone();
        let client = self.client.clone();
        let options = self.options.clone();
        let cut = cut(&text, options.piece_bytes, self.checked.get(&uri).map_or(&[], Vec::as_slice));
        let task = tokio::spawn(async move {
            let report = CheckReport { number, events };
            let found = check(&client, &options, &text, cut, &report).await;
            report.send(found, true).await;
        });
        self.running = Some(RunningCheck { uri, number, task: task.abort_handle() });
    }

    /// Takes what a check has found: publishes the hints, in place of earlier ones. After a failure there are none.
    pub(super) fn take(&mut self, event: CheckEvent, documents: &Documents, out: &mut Outbox) {
        let CheckEvent { number, found, is_last } = event;
        let Some(RunningCheck { uri, .. }) = self.running.as_ref().filter(|running| running.number == number) else {
            return;
        };
        let uri = uri.clone();
        if is_last {
            self.running = None;
        }
        let pieces = found.unwrap_or_else(|error| {
            self.fail(error, out);
            Vec::new()
        });
        let Some(text) = documents.text(&uri) else { return };
        let mut hints = Vec::new();
        let mut start = 0;
        for piece in &pieces {
            hints.extend(piece.words.iter().flatten().map(|word| hint(word, start, text, out.encoding)));
            start += piece.bytes;
        }
        hints.truncate(MAX_HINTS);
        // After a failure the next check skips what earlier ones found.
        if !pieces.is_empty() {
            self.checked.insert(uri.clone(), pieces);
        }
        let has_hints = !hints.is_empty();
        // The hints of an earlier text stay until there are others, or surely none.
        let had_hints = if has_hints { !self.hinted.insert(uri.clone()) } else { is_last && self.hinted.remove(&uri) };
        if has_hints || had_hints {
            out.notify("textDocument/publishDiagnostics", json!({ "uri": uri, "diagnostics": hints }));
        }
    }

    /// Reports that a check failed. The next change of a document begins another, unless the model cannot check texts.
    fn fail(&mut self, error: Error, out: &mut Outbox) {
        if matches!(error.code(), Code::FailedPrecondition | Code::Unimplemented) {
            self.is_off = true;
            self.due.clear();
        }
        out.report(Place::Log, Severity::Info, &format!("misspelt words are not marked: {}", message(error)));
    }

    fn end(&mut self, uri: &str) {
        self.running.take_if(|running| running.uri == uri);
    }
}

/// The channel on which a check reports its findings.
struct CheckReport {
    number: u64,
    events: mpsc::Sender<CheckEvent>,
}

impl CheckReport {
    async fn send(&self, found: Result<Vec<Piece>>, is_last: bool) {
        // Nobody listens once the server has ended.
        let _ = self.events.send(CheckEvent { number: self.number, found, is_last }).await;
    }
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// Cuts a text into pieces of at most `limit` bytes. In the second half of each, the line with the smallest hash is the last one, so that
/// a change moves few of the later cuts.
fn pieces_by_content(text: &str, limit: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let most = pieces(rest, limit).next()?;
        let mut end = 0;
        let lines = most.split_inclusive('\n').map(|line| {
            end += line.len();
            (end, line)
        });
        let last =
            lines.filter(|(end, line)| *end >= limit / 2 && line.ends_with('\n')).min_by_key(|(_, line)| hash(line));
        let is_whole = most.len() == rest.len();
        let end = last.filter(|_| !is_whole).map_or(most.len(), |(end, _)| end);
        let (piece, after) = rest.split_at(end);
        rest = after;
        Some(piece)
    })
}

/// Cuts a text into pieces of at most `limit` bytes. Those that equal a `known` one have its words.
fn cut(text: &str, limit: usize, known: &[Piece]) -> Vec<Piece> {
    let piece = |text: &str| {
        let hash = hash(text);
        let same = known.iter().find(|other| (other.hash, other.bytes) == (hash, text.len()));
        Piece { bytes: text.len(), hash, words: same.and_then(|same| same.words.clone()) }
    };
    pieces_by_content(text, limit).map(piece).collect()
}

/// Checks the pieces of a text whose words are unknown. Sends what is known to `report` after each but the last.
async fn check(
    client: &Client,
    options: &CheckOptions,
    text: &str,
    mut cut: Vec<Piece>,
    report: &CheckReport,
) -> Result<Vec<Piece>> {
    let mut unknown = cut.iter().filter(|piece| piece.words.is_none()).count();
    for (index, text) in pieces_by_content(text, options.piece_bytes).enumerate() {
        let Some(piece) = cut.get_mut(index).filter(|piece| piece.words.is_none()) else { continue };
        // A text without words may have nothing that the model can read.
        let found = if text.trim().is_empty() { Vec::new() } else { misspelt_words(client, options, text).await? };
        piece.words = Some(found);
        unknown -= 1;
        if unknown > 0 {
            report.send(Ok(cut.clone()), false).await;
        }
    }
    Ok(cut)
}

/// Asks the server which words of a text are misspelt.
async fn misspelt_words(client: &Client, options: &CheckOptions, text: &str) -> Result<Vec<FoundWord>> {
    let request = CheckRequest {
        model: options.model.clone(),
        text: text.to_owned(),
        threshold: options.threshold,
        alternatives: Some(options.alternatives),
        max_words: Some(MAX_WORDS),
        priority: Some(PRIORITY),
    };
    let found = client.check(request).await?.words.into_iter().take(MAX_HINTS).map(|word| FoundWord {
        start: size(word.start_byte),
        end: size(word.end_byte),
        spellings: Spellings {
            word: word.text,
            alternatives: word.alternatives.into_iter().map(|other| other.text).collect(),
        },
    });
    Ok(found.collect())
}

/// Returns the hint of a word of the piece that begins at a byte of the text, as the protocol's diagnostic.
fn hint(word: &FoundWord, piece: usize, text: &DocumentText, encoding: PositionEncoding) -> Value {
    let FoundWord { start, end, spellings } = word;
    let range = TextRange { start: text.position(piece + start, encoding), end: text.position(piece + end, encoding) };
    json!({
        "range": range,
        "severity": Severity::Hint as u8,
        "source": SOURCE,
        "message": format!("more probable: {}", spellings.alternatives.join(", ")),
        "data": spellings,
    })
}

/// Returns the quick fixes of the hints that a request names: one for each spelling of a word that is still there.
pub(super) fn quick_fixes(documents: &Documents, encoding: PositionEncoding, params: CodeActionParams) -> Value {
    let CodeActionParams { text_document, context } = params;
    // A kind includes those that it begins.
    let is_quick_fix = |kind: &String| kind.is_empty() || kind == QUICK_FIX;
    let is_wanted = context.only.is_none_or(|only| only.iter().any(is_quick_fix));
    let Some(text) = documents.text(&text_document.uri).filter(|_| is_wanted) else { return json!([]) };
    let mut actions = Vec::new();
    for hint in context.diagnostics.into_iter().take(MAX_HINTS).filter(|hint| hint["source"] == SOURCE) {
        let range = TextRange::deserialize(&hint["range"]);
        let spellings = Spellings::deserialize(&hint["data"]);
        let Ok(range) = range else { continue };
        let Ok(Spellings { word, alternatives }) = spellings else { continue };
        let place = text.offset(range.start, encoding)..text.offset(range.end, encoding);
        if text.text().get(place) != Some(&*word) {
            continue;
        }
        let message = &hint["message"];
        let texts = alternatives.iter().map(String::as_str).chain([&*word]).chain(message.as_str());
        // Larger ones are not from this server.
        if alternatives.len() > MAX_ALTERNATIVES || texts.map(str::len).sum::<usize>() > MAX_HINT_BYTES {
            continue;
        }
        let hint = json!({ "range": range, "severity": Severity::Hint as u8, "source": SOURCE, "message": message });
        for (rank, new_text) in alternatives.iter().enumerate() {
            actions.push(json!({
                "title": format!("Replace by “{new_text}”"),
                "kind": QUICK_FIX,
                "diagnostics": [hint],
                "isPreferred": rank == 0,
                "edit": { "changes": { &text_document.uri: [{ "range": range, "newText": new_text }] } },
            }));
        }
    }
    actions.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::lsp::{documents::DocumentLimits, protocol::Position};

    fn documents(text: &str) -> Documents {
        let mut documents = Documents::new(DocumentLimits::default());
        documents.open("a".into(), text.into()).unwrap();
        documents
    }

    fn goverment() -> FoundWord {
        let alternatives = ["government", "governments"].map(str::to_owned).to_vec();
        FoundWord { start: 6, end: 15, spellings: Spellings { word: "goverment".into(), alternatives } }
    }

    fn params(hints: &[&Value], only: Option<&[&str]>) -> CodeActionParams {
        serde_json::from_value(json!({
            "textDocument": { "uri": "a" },
            "range": {},
            "context": { "diagnostics": hints, "only": only },
        }))
        .unwrap()
    }

    #[test]
    fn hints_have_the_places_of_words_and_their_spellings() {
        let documents = documents("é\nthe goverment of");
        let text = documents.text("a").unwrap();
        let word = FoundWord { start: 4, end: 13, ..goverment() };
        let hint = hint(&word, 3, text, PositionEncoding::Utf16);
        let position = |character| Position { line: 1, character };
        assert_eq!(hint["range"], json!(TextRange { start: position(4), end: position(13) }));
        assert_eq!((&hint["severity"], &hint["source"]), (&4.into(), &"weir".into()));
        assert_eq!(hint["message"], "more probable: government, governments");
        let fixes = quick_fixes(&documents, PositionEncoding::Utf16, params(&[&hint], None));
        assert_eq!(
            (fixes[0]["title"].as_str(), fixes[0]["isPreferred"].as_bool()),
            (Some("Replace by “government”"), Some(true))
        );
        assert_eq!(fixes[1]["edit"]["changes"]["a"], json!([{ "range": hint["range"], "newText": "governments" }]));
        assert_eq!((fixes.as_array().unwrap().len(), &fixes[1]["diagnostics"][0]["range"]), (2, &hint["range"]));
    }

    /// Cuts follow the text: lines that come or go move few of the later ones.
    #[test]
    fn a_change_leaves_other_pieces_known() {
        let lines: Vec<_> = (0..200).map(|line| format!("line {line} of the goverment\n")).collect();
        let text = lines.concat();
        let mut known = cut(&text, 400, &[]);
        assert!(known.len() > 10 && known.iter().all(|piece| piece.words.is_none() && piece.bytes <= 400), "{known:?}");
        assert_eq!(known.iter().map(|piece| piece.bytes).sum::<usize>(), text.len());
        known.iter_mut().for_each(|piece| piece.words = Some(vec![goverment()]));
        let unknown = |text: &str| cut(text, 400, &known).iter().filter(|piece| piece.words.is_none()).count();
        assert_eq!(unknown(&text), 0);
        for changed in [format!("a new line\n{text}"), lines[1..].concat(), text.replace("line 7 ", "the line 7 ")] {
            assert!((1..=5).contains(&unknown(&changed)), "{}", unknown(&changed));
        }
    }

    #[test]
    fn only_words_that_are_still_there_have_quick_fixes() {
        let open = documents("in the goverment of");
        let own =
            hint(&FoundWord { start: 7, end: 16, ..goverment() }, 0, open.text("a").unwrap(), PositionEncoding::Utf8);
        let fixes = |documents: &Documents, hints: &[&Value], only: Option<&[&str]>| {
            quick_fixes(documents, PositionEncoding::Utf8, params(hints, only)).as_array().unwrap().len()
        };
        assert_eq!(fixes(&open, &[&own], Some(&["quickfix"])), 2);
        assert_eq!(fixes(&open, &[&own], Some(&["refactor", "quickfix"])), 2);
        let mut large = own.clone();
        large["data"]["alternatives"] = vec!["a"; MAX_ALTERNATIVES + 1].into();
        assert_eq!(fixes(&open, &[&large], None), 0);
        assert_eq!(fixes(&open, &[&own], Some(&["source.organizeImports"])), 0);
        assert_eq!(fixes(&documents("in a goverment of the"), &[&own], None), 0);
        assert_eq!(fixes(&documents("short"), &[&own], None), 0);
        let mut other = own.clone();
        other["source"] = "spell".into();
        let mut bare = own.clone();
        bare["data"] = Value::Null;
        let mut odd = own.clone();
        odd["range"] = "everywhere".into();
        assert_eq!(fixes(&open, &[&other, &bare, &odd], None), 0);
        assert_eq!(
            quick_fixes(&Documents::new(DocumentLimits::default()), PositionEncoding::Utf8, params(&[&own], None)),
            json!([])
        );
    }
}
