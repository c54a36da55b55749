//! Completions over HTTP/1.1, each on a connection of its own.

use crate::{
    client::{Client, End},
    model::greedy,
    plan::{CallPlan, Reading, key},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::sleep,
};

/// Bytes that a slow client reads at once.
const SLOW_BYTES: usize = 64;

/// A response whose connection has closed.
struct Response {
    status: u16,
    body: String,
    /// True if nothing of the body is missing.
    is_complete: bool,
}

impl Client {
    /// Completes a prompt, streamed if the plan wants segments. Checks the text and how the response ends.
    pub(crate) async fn complete(&self, plan: &CallPlan, name: &str) -> End {
        let Some(bytes) = self.exchange(plan, name).await else { return End::Cancelled };
        let Some(response) = Response::parse(&bytes) else { return self.broken(plan, name) };
        if response.status != 200 {
            let reason = serde_json::from_str(&response.body).ok().and_then(|body: Value| reason(&body));
            return reason.map_or_else(|| self.broken(plan, name), |reason| self.refused(plan, reason, name));
        }
        let expected = if plan.prompt.contains('!') { String::new() } else { greedy(&plan.prompt, plan.count) };
        let violation = |what: &str, found: &str| self.world.log.violation(format_args!("{name}: {what}: {found:?}"));
        if !plan.per_segment {
            if !response.is_complete {
                return self.broken(plan, name);
            }
            let text = serde_json::from_str(&response.body).ok().and_then(|body: Value| text(&body));
            if text.as_ref() != Some(&expected) {
                violation("a completion is not its text", &response.body);
            }
            return End::Complete;
        }
        let mut generated = String::new();
        let mut events = response.body.split_terminator("\n\n").peekable();
        while let Some(event) = events.next() {
            if event == "data: [DONE]" {
                if generated != expected || events.peek().is_some() || !response.is_complete {
                    violation("a stream is done after", &generated);
                }
                return End::Complete;
            }
            let data = event.strip_prefix("data: ").and_then(|data| serde_json::from_str::<Value>(data).ok());
            let Some(data) = data else { break };
            if let Some(reason) = reason(&data) {
                return self.refused(plan, reason, name);
            }
            generated += &text(&data).unwrap_or_default();
            if !expected.starts_with(&generated) {
                violation("a stream has another text", &generated);
            }
        }
        if response.is_complete {
            violation("a stream ends without its last event", &response.body);
        }
        self.broken(plan, name)
    }

    /// Sends a request, and reads until the server closes the connection. Returns `None` if the client leaves before.
    async fn exchange(&self, plan: &CallPlan, name: &str) -> Option<Vec<u8>> {
        let body = json!({
            "prompt": plan.prompt, "max_tokens": plan.count, "temperature": 0, "seed": 1, "stream": plan.per_segment,
            "priority": plan.priority,
        });
        let body = body.to_string();
        let mut head = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nX-Request-Id: {}\r\n",
            body.len(),
            name.replace(' ', "-")
        );
        if self.world.plan.tenants > 0 {
            head += &format!("Authorization: Bearer {}\r\n", key(self.tenant, self.world.keys()));
        }
        let connecting = self.http.lock().unwrap().connect();
        let mut bytes = Vec::new();
        let Ok(mut stream) = connecting.await else { return Some(bytes) };
        if stream.write_all(format!("{head}\r\n{body}").as_bytes()).await.is_err() {
            return Some(bytes);
        }
        if let Reading::Late(pause) = plan.reading {
            sleep(pause).await;
        }
        let mut part = [0; 4096];
        let size = if matches!(plan.reading, Reading::Slow(_)) { SLOW_BYTES } else { part.len() };
        let mut reads = 0;
        loop {
            match plan.reading {
                Reading::Slow(pause) => sleep(pause).await,
                Reading::Cancel(limit) if reads >= limit => return None,
                _ => {}
            }
            reads += 1;
            match stream.read(&mut part[..size]).await {
                Ok(0) | Err(_) => return Some(bytes),
                Ok(count) => bytes.extend_from_slice(&part[..count]),
            }
        }
    }

    /// Checks that a refusal is one that the plan explains.
    fn refused(&self, plan: &CallPlan, reason: String, name: &str) -> End {
        let reason = reason.to_uppercase();
        if !self.is_explained(plan, &reason) {
            self.world.log.violation(format_args!("{name}: {reason} over HTTP"));
        }
        End::Refused(reason)
    }

    /// Checks that the plan explains why a response is incomplete.
    fn broken(&self, plan: &CallPlan, name: &str) -> End {
        // Over HTTP the server can end a response early only by closing the connection.
        let is_slow = matches!(plan.reading, Reading::Slow(_) | Reading::Late(_));
        if !(self.has_faults || is_slow || self.world.is_ending()) {
            self.world.log.violation(format_args!("{name}: the response is incomplete"));
        }
        End::Disconnected
    }
}

impl Response {
    /// Parses what a connection received. Returns `None` if that is not even a head.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let received = String::from_utf8_lossy(bytes);
        let (head, body) = received.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        if let Some(length) = length {
            return Some(Self { status, body: body.to_owned(), is_complete: length.parse() == Ok(body.len()) });
        }
        let mut rest = body;
        let mut body = String::new();
        while let Some((size, chunk)) = rest.split_once("\r\n") {
            let size = usize::from_str_radix(size, 16).ok()?;
            if size == 0 {
                return Some(Self { status, body, is_complete: true });
            }
            let Some((data, after)) = chunk.split_at_checked(size) else { break };
            body += data;
            rest = after.strip_prefix("\r\n").unwrap_or_default();
        }
        Some(Self { status, body, is_complete: false })
    }
}

fn text(message: &Value) -> Option<String> {
    Some(message["choices"][0]["text"].as_str()?.to_owned())
}

fn reason(message: &Value) -> Option<String> {
    Some(message["error"]["code"].as_str()?.to_owned())
}
