//! Changes, positions and completions, cancelled and overtaken requests.

use super::{
    super::support::converted, CANCELLED, CONTENT_MODIFIED, Client, Options, at, change, client::notification, inserted,
};
use serde_json::json;

const URI: &str = "file:///a%20b/é.txt";
const LIST: &str = "textDocument/completion";
const INLINE: &str = "textDocument/inlineCompletion";

#[test]
fn both_kinds_of_completions_are_ranked_and_at_the_cursor() {
    let model = converted("whitespaces");
    let (mut client, initialized) = Client::start(&Options::process(&model));
    let capabilities = &initialized["result"]["capabilities"];
    assert_eq!(capabilities["positionEncoding"], "utf-16");
    assert_eq!(capabilities["textDocumentSync"], json!({ "openClose": true, "change": 2 }));
    assert!(capabilities["completionProvider"].is_object() && capabilities["inlineCompletionProvider"].is_object());
    client.open(URI, "ab ca\nthe rest");
    let inline = client.ask(INLINE, at(URI, 0, 5));
    let cursor = json!({ "line": 0, "character": 5 });
    assert_eq!(inline["result"]["items"][0]["range"], json!({ "start": cursor, "end": cursor }));
    let texts = inserted(&inline);
    assert!(texts.len() == 3 && texts.iter().all(|text| !text.is_empty() && !text.contains(' ')), "{inline}");
    let list = client.ask(LIST, at(URI, 0, 5));
    assert_eq!(list["result"]["isIncomplete"], true);
    let whole: Vec<String> = texts.iter().map(|text| format!("ca{text}")).collect();
    assert_eq!(inserted(&list), whole, "the word before the cursor is replaced by itself and the completion");
    let first = &list["result"]["items"][0];
    assert_eq!((&first["label"], &first["sortText"]), (&whole[0].clone().into(), &"0000".into()));
    let word = json!({ "line": 0, "character": 3 });
    assert_eq!(first["textEdit"]["range"], json!({ "start": word, "end": cursor }));
    let shares = list["result"]["items"].as_array().unwrap().iter().map(|item| {
        let detail = item["detail"].as_str().unwrap().strip_suffix(" %").unwrap();
        detail.parse::<f64>().unwrap()
    });
    assert!(shares.is_sorted_by(|a, b| a >= b), "{list}");
    client.notify("textDocument/didClose", json!({ "textDocument": { "uri": URI } }));
    assert_eq!(inserted(&client.ask(LIST, at(URI, 0, 5))), [""; 0]);
    let errors = client.shut_down();
    assert!(errors.starts_with("weir: running ") && errors.lines().count() == 1, "{errors}");
}

/// A document after changes gets the completions of one that is opened with their result.
#[test]
fn changes_with_any_characters_are_those_of_the_editor() {
    let model = converted("whitespaces");
    // where é, | and b begin, and where c does once it follows 😀
    for (encoding, [e, bar, b, c]) in [("utf-16", [1, 2, 3, 4]), ("utf-8", [1, 3, 4, 7])] {
        let mut options = Options::process(&model);
        options.flags.extend(["--count", "5", "--until", "line", "--completion-chars", "4"]);
        options.capabilities = json!({ "general": { "positionEncodings": [encoding, "utf-16"] } });
        let (mut client, initialized) = Client::start(&options);
        assert_eq!(initialized["result"]["capabilities"]["positionEncoding"], encoding);
        client.open(URI, "aé|b\r\n\n");
        client.change(URI, &[change([0, b], [0, b + 1], "😀c\nthe"), change([0, bar], [0, b], "")]);
        client.change(URI, &[change([0, c], [0, 99], " caf")]);
        client.change(URI, &[change([1, 3], [9, 0], " river"), change([0, 0], [0, e], "")]);
        client.open("file:///cold", "é😀 caf\nthe river");
        for character in [3, 9] {
            let warm = client.ask(INLINE, at(URI, 1, character));
            let cold = client.ask(INLINE, at("file:///cold", 1, character));
            assert_eq!((&warm["result"], inserted(&warm).len()), (&cold["result"], 5), "{encoding}");
        }
        // the word begins after the character of two units
        let list = client.ask(LIST, at(URI, 0, 99));
        let start = list["result"]["items"][0]["textEdit"]["range"]["start"]["character"].as_u64().unwrap();
        assert_eq!(start, if encoding == "utf-8" { 7 } else { 4 }, "{list}");
        client.shut_down();
    }
}

#[test]
fn a_request_is_cancelled_and_another_goes_on() {
    let model = converted("whitespaces");
    let mut options = Options::process(&model);
    options.flags.extend(["--count", "16", "--until", "word", "--completion-chars", "5"]);
    let (mut client, _) = Client::start(&options);
    client.open(URI, "the river runs");
    let expected = client.ask(INLINE, at(URI, 0, 9));
    let (cancelled, first) = client.request(LIST, at(URI, 0, 14));
    let (kept, second) = client.request(INLINE, at(URI, 0, 9));
    let cancel = notification("$/cancelRequest", json!({ "id": cancelled }));
    let unknown = notification("$/cancelRequest", json!({ "id": "unknown" }));
    client.send(&[first, second, cancel, unknown]);
    assert_eq!(client.answer(cancelled)["error"]["code"], CANCELLED);
    let answer = client.answer(kept);
    assert_eq!((&answer["result"], inserted(&answer).is_empty()), (&expected["result"], false));
    client.shut_down();
}

#[test]
fn a_change_overtakes_requests() {
    let model = converted("whitespaces");
    let mut options = Options::process(&model);
    options.flags.extend(["--count", "16", "--until", "word", "--completion-chars", "5"]);
    let (mut client, _) = Client::start(&options);
    client.open(URI, "the");
    client.open("file:///other", "the");
    let (overtaken, first) = client.request(INLINE, at(URI, 0, 3));
    let (other, second) = client.request(INLINE, at("file:///other", 0, 3));
    let notice = client.changed(URI, &[change([0, 3], [0, 3], " river")]);
    let (after, third) = client.request(INLINE, at(URI, 0, 9));
    client.send(&[first, second, notice, third]);
    assert_eq!(client.answer(overtaken)["error"]["code"], CONTENT_MODIFIED);
    // the requests of another document and later ones are answered
    assert!(!inserted(&client.answer(other)).is_empty() && !inserted(&client.answer(after)).is_empty());
    // elsewhere: the distributions after the same text are known, and the answer could come first
    let (closed, request) = client.request(INLINE, at(URI, 0, 8));
    let close = notification("textDocument/didClose", json!({ "textDocument": { "uri": URI } }));
    client.send(&[request, close]);
    assert_eq!(client.answer(closed)["error"]["code"], CONTENT_MODIFIED);
    let (ended, request) = client.request(INLINE, at("file:///other", 0, 2));
    let (shutdown, last) = client.request("shutdown", json!(null));
    client.send(&[request, last]);
    assert_eq!(client.answer(ended)["error"]["code"], CANCELLED);
    assert_eq!(client.answer(shutdown)["result"], json!(null));
}

/// The model reads the end of a long text, and more sessions than are kept are opened one after the other.
#[test]
fn long_and_many_documents_are_completed() {
    let model = converted("whitespaces");
    let mut options = Options::process(&model);
    options.flags.extend(["--max-symbols", "128", "--completion-chars", "8"]);
    let (mut client, _) = Client::start(&options);
    let long = "the river runs past the mill. ".repeat(40);
    for index in 0..12 {
        client.open(&format!("file:///{index}"), &long);
    }
    for index in (0..12).chain(0..3) {
        let list = client.ask(INLINE, at(&format!("file:///{index}"), 0, 1199));
        assert_eq!(inserted(&list).len(), 3, "{list}");
    }
    // More documents than sessions ask at the same time. None loses its request.
    let (ids, requests): (Vec<_>, Vec<_>) =
        (0..12).map(|index| client.request(INLINE, at(&format!("file:///{index}"), 0, 1190))).unzip();
    client.send(&requests);
    for id in ids {
        let answer = client.answer(id);
        assert_eq!(inserted(&answer).len(), 3, "{answer}");
    }
    // Requests whose texts begin at different places wait for one another, and those of longer texts overtake shorter ones.
    let cursors = [100, 600, 1199, 3, 104, 1195];
    let (ids, requests): (Vec<_>, Vec<_>) =
        cursors.map(|cursor| client.request(INLINE, at("file:///2", 0, cursor))).into_iter().unzip();
    client.send(&requests);
    for id in ids {
        let answer = client.answer(id);
        assert!(!inserted(&answer).is_empty(), "{answer}");
    }
    assert_eq!(client.others(), [json!(null); 0]);
    client.shut_down();
}
