//! Checks the messages of a generation: their order, their text, and that they end once.

use crate::{
    client::End,
    log::Log,
    model::greedy,
    plan::{CallPlan, Reading},
};
use tokio::time::sleep;
use weir_proto::v1::{FinishReason, GenerateResponse, generate_response::Event};

/// The response to one generation.
pub(crate) struct Answer<'a> {
    name: &'a str,
    log: &'a Log,
    expected: String,
    text: String,
    messages: usize,
    started: bool,
    finished: bool,
}

impl<'a> Answer<'a> {
    pub(crate) fn new(plan: &CallPlan, name: &'a str, log: &'a Log) -> Self {
        let expected = if plan.prompt.contains('!') { String::new() } else { greedy(&plan.prompt, plan.count) };
        Self { name, log, expected, text: String::new(), messages: 0, started: false, finished: false }
    }

    /// Waits as long as the client does before it reads the next message. Returns true if it cancels the call instead.
    pub(crate) async fn pause(&self, reading: Reading) -> bool {
        match reading {
            Reading::Slow(pause) => sleep(pause).await,
            Reading::Late(pause) if self.messages == 0 => sleep(pause).await,
            Reading::Cancel(messages) if self.messages >= messages => return true,
            _ => {}
        }
        false
    }

    pub(crate) fn take(&mut self, message: GenerateResponse) {
        self.messages += 1;
        if self.finished {
            self.violation(format_args!("{message:?} follows the end"));
        }
        match message.event {
            Some(Event::Started(_)) if !self.started => self.started = true,
            Some(Event::Piece(piece)) if self.started => {
                self.log.line(format_args!("{} {:?}", self.name, piece.text));
                self.text.push_str(&piece.text);
                if !self.expected.starts_with(&self.text) {
                    self.violation(format_args!("{:?} instead of {:?}", self.text, self.expected));
                }
            }
            Some(Event::Finished(finished)) if self.started => {
                self.finished = true;
                if self.text != self.expected || finished.reason() != FinishReason::MaxChars {
                    self.violation(format_args!("finished ({:?}) after {:?}", finished.reason(), self.text));
                }
            }
            other => self.violation(format_args!("message {} is {other:?}", self.messages)),
        }
    }

    /// Takes the end of the stream without an error.
    pub(crate) fn end(self) -> End {
        if !self.finished {
            self.violation("the stream ended without its last message");
        }
        End::Complete
    }

    fn violation(&self, what: impl std::fmt::Display) {
        self.log.violation(format_args!("{}: {what}", self.name));
    }
}
