//! The beginning and the end of a connection, wrong messages, and limits.

use super::{
    super::support::converted,
    Client, Options, at, change,
    client::{frame, notification},
    inserted,
};
use serde_json::{Value, json};

const INLINE: &str = "textDocument/inlineCompletion";

#[test]
fn wrong_messages_are_answered_and_the_server_goes_on() {
    let model = converted("whitespaces");
    let mut client = Client::silent(&Options::process(&model));
    let early = client.ask(INLINE, at("a", 0, 0));
    assert_eq!(early["error"]["code"], -32002, "{early}");
    client.open("a", "dropped before initialize");
    assert!(client.ask("initialize", json!({ "capabilities": { "general": null } }))["result"].is_object());
    assert_eq!(client.ask("initialize", json!({ "capabilities": {} }))["error"]["code"], -32600);
    assert_eq!(inserted(&client.ask(INLINE, at("a", 0, 0))), [""; 0]);
    for (body, code) in
        [("{\"id\": 1", -32700), ("\u{1}", -32700), ("", -32700), ("[]", -32600), ("{\"id\": [1]}", -32600)]
    {
        client.send_raw(frame(body).as_bytes());
        let answer = client.wait_for(body, |message| message["error"]["code"] == code);
        assert_eq!(answer.get("id"), Some(&Value::Null), "{answer}");
    }
    client.send_raw(frame("{\"id\": \"a\", \"method\": null}").as_bytes());
    assert_eq!(client.wait_for("a", |message| message["id"] == "a")["error"]["code"], -32600);
    assert_eq!(client.ask("textDocument/hover", at("a", 0, 0))["error"]["code"], -32601);
    for params in [json!(null), json!([]), json!({ "textDocument": { "uri": 1 } }), at("a", 0, 0)["position"].clone()] {
        let answer = client.ask("textDocument/completion", params);
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
    }
    let negative = json!({ "textDocument": { "uri": "a" }, "position": { "line": -1, "character": 0 } });
    assert_eq!(client.ask(INLINE, negative)["error"]["code"], -32602);
    // A change that cannot be read leaves the document out, and unknown notices are ignored.
    client.open("a", "the river");
    client.notify("textDocument/didChange", json!({ "textDocument": { "uri": "a" }, "contentChanges": 7 }));
    let log = client.wait_for("a log", |message| {
        message["params"]["message"].as_str().is_some_and(|text| text.contains("textDocument/didChange"))
    });
    assert_eq!(log["method"], "window/logMessage");
    let shown = client.message("window/showMessage");
    assert!(shown.contains("a: a message could not be read, so the text is unknown; open it again"), "{shown}");
    assert_eq!(inserted(&client.ask(INLINE, at("a", 0, 9))).len(), 0);
    client.open("a", "the river");
    client.notify("$/setTrace", json!({ "value": "off" }));
    client.send(&[json!({ "jsonrpc": "2.0", "id": 9000, "result": null })]);
    client.change("unknown", &[change([0, 0], [0, 0], "a")]);
    assert_eq!(inserted(&client.ask(INLINE, at("a", 0, 9))).len(), 3);
    assert_eq!(client.ask("shutdown", json!(null))["result"], json!(null));
    assert_eq!(client.ask(INLINE, at("a", 0, 9))["error"]["code"], -32600);
    client.notify("exit", json!(null));
    let (code, errors) = client.ended();
    assert!(code == Some(0) && errors.contains("weir: expected JSON"), "{code:?}: {errors}");
}

#[test]
fn documents_beyond_the_limit_are_left_out_and_others_go_on() {
    let model = converted("whitespaces");
    let (mut client, _) = Client::start(&Options::process(&model));
    client.open("small", "the river");
    client.open("large", &"a".repeat((4 << 20) + 1));
    let shown = client.message("window/showMessage");
    assert!(shown.contains("large: expected a document of at most 4194304 bytes, found 4194305"), "{shown}");
    client.change("large", &[change([0, 0], [0, 0], "b")]);
    assert_eq!(inserted(&client.ask(INLINE, at("large", 0, 1))), [""; 0]);
    assert_eq!(inserted(&client.ask(INLINE, at("small", 0, 9))).len(), 3);
    assert!(!client.others().iter().any(|message| message["method"] == "window/showMessage"), "shown once");
    // A message that is too long is skipped. Unless it names another method, it may have changed any document.
    let opens = format!(r#"{{"method": "textDocument/didOpen", {}}}"#, " ".repeat(32 << 20));
    client.send_raw(frame(&opens).as_bytes());
    assert_eq!(inserted(&client.ask(INLINE, at("small", 0, 9))).len(), 3);
    client.send_raw(frame(&" ".repeat((32 << 20) + 1)).as_bytes());
    for found in [opens.len(), (32 << 20) + 1] {
        let logged = client.message("window/logMessage");
        let expected = format!("expected a message of at most 33554432 bytes, found {found}");
        assert!(logged.contains(&expected), "{logged}");
    }
    let shown = client.message("window/showMessage");
    assert!(shown.contains("the open documents: a message could not be read"), "{shown}");
    assert_eq!(inserted(&client.ask(INLINE, at("small", 0, 9))), [""; 0]);
    client.change("large", &[json!({ "text": "the river" })]);
    assert_eq!(inserted(&client.ask(INLINE, at("large", 0, 9))).len(), 3);
    client.shut_down();
}

#[test]
fn a_client_that_leaves_without_shutdown_is_an_error() {
    let model = converted("whitespaces");
    let options = Options::process(&model);
    let mut exits = Client::silent(&options);
    exits.send(&[notification("exit", json!(null))]);
    let mut hangs_up = Client::silent(&options);
    hangs_up.hang_up();
    let mut breaks = Client::silent(&options);
    breaks.send_raw(b"GET / HTTP/1.1\r\n\r\n");
    for (client, expected) in [
        (&mut exits, "the client left without shutdown"),
        (&mut hangs_up, "the client left without shutdown"),
        (&mut breaks, "standard input: expected a header such as Content-Length: 2, found \"GET / HTTP/1.1\""),
    ] {
        let (code, errors) = client.ended();
        assert!(code == Some(1) && errors.contains(expected), "{code:?}: {errors}");
    }
}
