//! The playground's editor: ghost text, alternatives, segments, the heat map, and connections that end.

use super::{Browser, ESCAPE, HOME, OVERFLOW, url};
use crate::{process::Server, support::converted};
use serde_json::{Value, json};

const TAB: &str = "\u{e004}";
const ALT: &str = "\u{e00a}";
const DOWN: &str = "\u{e015}";
const CONNECTED: &str = "document.getElementById('edit-status').textContent.startsWith('Connected')";
const GHOST: &str = "document.querySelector('.ghost') !== null && editor.asked.id === editor.work.id";
const SCORED: &str = "editor.parts.length > 0 && editor.parts.at(-1).end === editor.area.value.length";

fn start(flags: &[&str]) -> Server {
    let model = converted("whitespaces").to_string_lossy().into_owned();
    Server::start(&[&["--http-listen", "127.0.0.1:0", "--threads", "1", "--model", &model], flags].concat())
}

fn value(browser: &Browser) -> String {
    browser.evaluate("editor.area.value").as_str().unwrap().to_owned()
}

/// Waits for completions, and returns their texts.
fn completions(browser: &Browser) -> Vec<String> {
    browser.until(GHOST);
    serde_json::from_value(browser.evaluate("editor.items.map(item => item.text)")).unwrap()
}

#[test]
fn the_editor_completes_what_is_typed() {
    for dark in [false, true] {
        let Some(browser) = Browser::start(dark) else { return };
        let server = start(&[]);
        browser.open(&format!("{}#tab=edit", url(&server)));
        browser.until(CONNECTED);
        browser.keys("#editor", "the history of the ci");
        let items = completions(&browser);
        assert_eq!((items.len(), browser.text(".ghost")), (3, items[0].clone()));
        let shown =
            browser.evaluate("[...document.querySelectorAll('#alternatives .words')].map(words => words.textContent)");
        assert_eq!(shown, json!(items));
        assert_eq!(browser.evaluate("editor.times.length > 0"), true, "keystrokes are timed");
        // Tab does not replace selected text, which has no completions.
        let tab = "editor.area.dispatchEvent(new KeyboardEvent('keydown', { key: 'Tab', cancelable: true }))";
        let end = "editor.area.selectionEnd";
        let is_left = browser.evaluate(&format!("(editor.area.setSelectionRange(18, {end}), {tab})"));
        assert_eq!((is_left, value(&browser)), (json!(true), "the history of the ci".to_owned()));
        browser.until("editor.items.length === 0 && editor.asked.id === 0");
        browser.evaluate(&format!("(editor.area.setSelectionRange({end}, {end}), null)"));
        assert_eq!(completions(&browser), items);
        // Escape drops the completions, also for screen readers. Then Tab leaves the text.
        browser.until("at('edit-spoken').textContent.startsWith('Completion')");
        browser.keys("#editor", ESCAPE);
        assert_eq!(browser.text("#edit-spoken"), "");
        assert_eq!(browser.evaluate("document.querySelectorAll('.ghost, #alternatives button').length"), 0);
        browser.keys("#editor", TAB);
        assert_eq!(browser.evaluate("document.activeElement.id !== 'editor'"), true);
        assert_eq!(value(&browser), "the history of the ci");
        // Tab takes the ghost text.
        browser.keys("#editor", "t");
        let items = completions(&browser);
        browser.keys("#editor", TAB);
        let mut text = format!("the history of the cit{}", items[0]);
        assert_eq!((value(&browser), browser.evaluate("document.activeElement.id")), (text.clone(), json!("editor")));
        // Alt and an arrow choose another one, Alt and a number or a click take one.
        browser.keys("#editor", " ");
        text.push(' ');
        let items = completions(&browser);
        browser.keys("#editor", &format!("{ALT}{DOWN}"));
        assert_eq!(browser.text(".ghost"), items[1]);
        browser.keys("#editor", &format!("{ALT}3"));
        text.push_str(&items[2]);
        assert_eq!(value(&browser), text);
        browser.keys("#editor", " ");
        text.push(' ');
        let items = completions(&browser);
        browser.picture(if dark { "playground-editor-dark.png" } else { "playground-editor-light.png" });
        browser.click("#alternatives button:nth-child(2)");
        text.push_str(&items[1]);
        assert_eq!(value(&browser), text);
        // Segments end with spaces, and the mirror has the same text.
        browser.until(SCORED);
        browser.keys("#editor", ESCAPE);
        let marks = browser.evaluate(
            "[...document.querySelectorAll('#mirror .end-mark')].map(mark => mark.textContent.at(-1)).join('')",
        );
        assert_eq!(marks, " ".repeat(text.matches(' ').count()));
        assert_eq!(browser.text("#mirror"), format!("{text}\u{200b}"));
        // The heat map shows another shade.
        browser.click("#heat");
        assert_eq!(browser.evaluate("document.querySelectorAll('#mirror [class^=s]').length"), 0);
        assert_ne!(browser.evaluate("document.querySelectorAll('#mirror .h1, #mirror .h2, #mirror .h3').length"), 0);
        browser.keys("#editor", " a");
        browser.until(&format!("{GHOST} && {SCORED}"));
        browser.set_width(420);
        assert_eq!(browser.evaluate(OVERFLOW), 0, "something is wider than the page");
        let heights = "[editor.mirror, editor.area].map(box => [box.scrollHeight, box.clientWidth])";
        let heights = browser.evaluate(heights);
        assert_eq!(heights[0], heights[1], "the lines of both wrap at the same places");
        browser.picture(if dark { "playground-editor-narrow-dark.png" } else { "playground-editor-narrow.png" });
        assert_eq!(browser.severe_log_entries(), Vec::<Value>::new());
    }
}

/// The editor connects at once, with another model, and still shows that the link's is not served.
#[test]
fn a_link_to_a_model_that_is_not_served_is_reported() {
    let Some(browser) = Browser::start(false) else { return };
    let server = start(&[]);
    browser.open(&format!("{}#tab=edit&model=gone&until=never", url(&server)));
    browser.until(CONNECTED);
    let problem = "This server does not have the model gone: the page uses whitespaces.";
    assert_eq!(browser.text("#link-problem"), problem);
    assert_eq!(browser.evaluate("document.getElementById('edit-model').value"), "whitespaces");
    // A model that replaces none has a sentence, too.
    browser.evaluate("location.hash = 'tab=generate&compare=other&model=whitespaces', null");
    browser.until("document.getElementById('link-problem').textContent.includes('other')");
    assert_eq!(browser.text("#link-problem"), "This server does not have the model other.");
}

#[test]
fn the_editor_follows_any_change_and_opens_again() {
    let Some(browser) = Browser::start(false) else { return };
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "alice:a-key-that-alice-has\n").unwrap();
    let server = start(&["--api-keys", &keys.to_string_lossy()]);
    browser.open(&format!("{}#tab=edit&until=segment", url(&server)));
    browser.until("document.getElementById('status').textContent.startsWith('This server needs an API key')");
    browser.keys("#key", "a-key-that-alice-has\t");
    browser.until(CONNECTED);
    assert_eq!(browser.evaluate("document.getElementById('until').value"), "segment");
    // Changes anywhere, of characters that take one to four bytes.
    browser.keys("#editor", "one two");
    browser.keys("#editor", &format!("{HOME}zero "));
    assert_eq!(value(&browser), "zero one two");
    let change = |start: u32, end: u32, text: &str| {
        let script = format!(
            "(editor.area.setRangeText({}, {start}, {end}, 'end'), editor.area.dispatchEvent(new Event('input')), null)",
            json!(text)
        );
        browser.evaluate(&script);
    };
    change(5, 8, "é€😀");
    change(7, 9, "😁");
    change(0, 12, "the city and");
    browser.until(&format!("editor.session.text === editor.area.value && {SCORED}"));
    assert!(browser.evaluate(CONNECTED) == true, "{}", browser.text("#edit-status"));
    // Scores of an earlier text are not shown.
    let ignored = browser.evaluate(
        "(() => {
            const { length } = editor.parts;
            const characters = [{ logprob: -1 }];
            const revision = editor.session.revision - 1;
            editor.receive({ scores: { id: editor.scored.id, revision, characters, start_bytes: [0] } });
            const isIgnored = editor.parts.length === length;
            editor.area.dispatchEvent(new Event('input'));
            return [isIgnored, editor.scored];
        })()",
    );
    assert_eq!(ignored, json!([true, null]));
    // The document opens again with its text when the connection ends.
    browser.evaluate("(window.before = editor.session, editor.work = null, editor.session.socket.close(), null)");
    browser.until(&format!("editor.session !== null && editor.session !== window.before && {CONNECTED}"));
    browser.keys("#editor", " x");
    browser.until("editor.session.text === editor.area.value && editor.session.revision === 2");
    browser.until("editor.work !== null && editor.work.id === editor.asked.id && editor.work.revision === 2");
    // A text that the server refuses is shown as an error of the text, and a shorter one is taken.
    browser.evaluate("(editor.area.value = 'a'.repeat(1048577), editor.area.dispatchEvent(new Event('input')), null)");
    browser.until("document.querySelector('#edit-status.error') !== null");
    assert_eq!(
        browser.text("#edit-status"),
        "Text: too long. The server takes at most 1,048,576 bytes of text. Shorten it."
    );
    change(0, 1_048_577, "a b");
    browser.until(&format!("{CONNECTED} && editor.session.text === 'a b'"));
    // A text that does not fit into one message is not sent again and again.
    browser.evaluate("(editor.area.value = 'a'.repeat(4200000), editor.area.dispatchEvent(new Event('input')), null)");
    browser.until("document.getElementById('edit-status').textContent.startsWith('Text: too long for one message.')");
    change(0, 4_200_000, "a b");
    browser.until(&format!("{CONNECTED} && editor.session.text === 'a b'"));
    // Disconnecting ends it, and starting connects again.
    browser.click("#edit-stop");
    browser.until("document.getElementById('edit-status').textContent === 'Stopped.' && editor.session === null");
    browser.click("#edit-go");
    browser.until(CONNECTED);
    let stored = browser.evaluate("JSON.stringify(localStorage) + location.href");
    assert!(!stored.as_str().unwrap().contains("alice"), "{stored}");
    // The log has only the refusal without a key.
    let errors = browser.severe_log_entries();
    assert!(errors.iter().all(|entry| entry["message"].as_str().unwrap().contains("401")), "{errors:?}");
}

/// The functions that find a change, and the characters that a model has read in place of others.
#[test]
fn changes_and_normalised_characters_are_found() {
    let Some(browser) = Browser::start(false) else { return };
    let server = start(&[]);
    browser.open(&url(&server));
    let wrong = browser.evaluate(
        "(() => {
            const letters = ['a', 'b', 'é', '😀', '😁', '\\n'];
            let state = 1;
            const draw = (limit) => (state = (state * 48271) % 2147483647) % limit;
            const text = () => Array.from({ length: draw(8) }, () => letters[draw(letters.length)]).join('');
            const inside = (whole, place) => isLow(whole.charCodeAt(place));
            for (let round = 0; round < 20000; round++) {
                const [before, after] = [text(), text()];
                const { start, end, text: added } = replacement(before, after);
                const done = before.slice(0, start) + added + before.slice(end);
                if (done !== after || inside(before, start) || inside(before, end)) return [before, after, start, end, added];
            }
            return null;
        })()",
    );
    assert_eq!(wrong, Value::Null);
    let parts = |text: &str, start: usize, offsets: &[usize]| {
        browser.evaluate(&format!(
            "readParts({}, {start}, {{ characters: {offsets:?}.map(() => ({{ logprob: -Math.LN2 }})), start_bytes: {offsets:?} }})
                .map(part => [part.length, part.bits])",
            json!(text)
        ))
    };
    assert_eq!(parts("A\nb", 7, &[7, 8, 9]), json!([[1, 1], [1, 1], [1, 1]]));
    // One character was read as three, and the next two were dropped.
    assert_eq!(parts("a1- b", 0, &[0, 1, 1, 1, 4]), json!([[1, 1], [3, 3], [1, 1]]));
    assert_eq!(parts("é😀", 0, &[0, 0, 2, 2, 2, 2]), json!([[1, 2], [2, 4]]));
    assert_eq!(parts("- a", 0, &[2]), json!([[2, null], [1, 1]]));
}
