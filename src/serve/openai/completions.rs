//! `/v1/completions`: one call of `Generate` for each answer, gathered or streamed as events of the server.

use super::{
    Door,
    refusal::Refusal,
    reply::{Choice, Counts, Head},
    request::{CompletionRequest, StreamOptions},
};
use crate::serve::in_process::Caller;
use axum::{
    Json,
    body::{Body, Bytes},
    extract::{Request, State},
    http::header,
    response::{IntoResponse, Response},
};
use serde_json::Value;
use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};
use tokio_stream::{Stream, StreamMap};
use tonic::{Status, Streaming};
use weir_proto::v1::{GenerateResponse, generate_response::Event, generation_client::GenerationClient};

/// Takes a request.
pub(super) async fn complete(State(door): State<Door>, caller: Caller, request: Request) -> Response {
    match answered(door, &caller, request).await {
        Ok(response) => caller.named(response),
        Err(refusal) => caller.named(refusal.into_response()),
    }
}

async fn answered(door: Door, caller: &Caller, request: Request) -> Result<Response, Refusal> {
    let began = Instant::now();
    let body = door.read(request).await?;
    let asked = CompletionRequest::parse(&body, "the body")?;
    drop(body);
    let answers = Answers::begin(&door, caller, &asked).await?;
    if !asked.streams() {
        return answers.gathered().await.map(IntoResponse::into_response);
    }
    let clock = asked.tells_boundaries().then_some(began);
    let events = Body::from_stream(Events::new(answers, asked.stream_options(), clock));
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    Ok((headers, events).into_response())
}

/// The answers to one request, while they come.
struct Answers {
    head: Head,
    choices: Vec<Choice>,
    /// How many choices each prompt has, one after the other.
    each: usize,
    /// By the index of the choice.
    streams: StreamMap<usize, Streaming<GenerateResponse>>,
}

impl Answers {
    async fn begin(door: &Door, caller: &Caller, asked: &CompletionRequest) -> Result<Self, Refusal> {
        let mut client = GenerationClient::new(door.services.clone()).max_decoding_message_size(usize::MAX);
        let (mut choices, mut streams) = (Vec::new(), StreamMap::new());
        for (index, request) in asked.requests()?.into_iter().enumerate() {
            let answer = client.generate(caller.call(request)).await?;
            streams.insert(index, answer.into_inner());
            choices.push(Choice::new(index, asked.tells_characters()));
        }
        Ok(Self { head: Head::new(caller.id()), choices, each: asked.answers(), streams })
    }

    /// The next choice that has something to tell.
    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<usize, Status>>> {
        loop {
            let Some((index, message)) = ready!(Pin::new(&mut self.streams).poll_next(cx)) else {
                return Poll::Ready(None);
            };
            let event = match message {
                Ok(message) => message.event,
                Err(status) => return Poll::Ready(Some(Err(status))),
            };
            let Some(choice) = self.choices.get_mut(index) else { continue };
            match event {
                Some(Event::Started(started)) => {
                    self.head.answered_by(&started.model);
                    choice.start(&started);
                }
                Some(Event::Piece(piece)) => choice.push(piece),
                Some(Event::Finished(finished)) => choice.finish(finished),
                None => {}
            }
            if choice.has_news() {
                return Poll::Ready(Some(Ok(index)));
            }
        }
    }

    /// All of them, once they are complete.
    async fn gathered(mut self) -> Result<Json<Value>, Refusal> {
        while let Some(news) = std::future::poll_fn(|cx| self.poll_news(cx)).await {
            news?;
        }
        let usage = self.counts().usage();
        let choices = self.choices.iter_mut().map(Choice::take).collect();
        Ok(Json(self.head.message(choices, Some(usage))))
    }

    /// Of all choices. A prompt counts once, however many answers it has.
    fn counts(&self) -> Counts {
        let counts = self.choices.iter().enumerate().map(|(index, choice)| {
            let counts = choice.counts();
            if index % self.each == 0 { counts } else { counts.without_prompt() }
        });
        counts.fold(Counts::default(), Counts::and)
    }
}

/// Answers as events of the server (`text/event-stream`), each a line of JSON.
struct Events {
    answers: Answers,
    options: StreamOptions,
    /// When the request came, where messages tell how long ago that was.
    clock: Option<Instant>,
    waiting: VecDeque<Bytes>,
    over: bool,
}

impl Events {
    fn new(answers: Answers, options: StreamOptions, clock: Option<Instant>) -> Self {
        Self { answers, options, clock, waiting: VecDeque::new(), over: false }
    }

    fn say(&mut self, what: &dyn std::fmt::Display) {
        self.waiting.push_back(format!("data: {what}\n\n").into());
    }

    fn take(&mut self, news: Option<Result<usize, Status>>) {
        match news {
            Some(Ok(index)) => {
                let choice = self.answers.choices[index].take();
                let usage = match self.options {
                    StreamOptions { continuous_usage_stats: true, .. } => Some(self.answers.counts().usage()),
                    StreamOptions { include_usage: true, .. } => Some(Value::Null),
                    _ => None,
                };
                let mut message = self.answers.head.message(vec![choice], usage);
                if let (Some(clock), Some(message)) = (self.clock, message.as_object_mut()) {
                    message.insert("elapsed_ns".into(), nanoseconds(clock.elapsed()).into());
                }
                self.say(&message);
                return;
            }
            Some(Err(status)) => self.say(&Refusal::from(status).body()),
            None if self.options.include_usage => {
                let usage = self.answers.counts().usage();
                let message = self.answers.head.message(Vec::new(), Some(usage));
                self.say(&message);
            }
            None => {}
        }
        self.say(&"[DONE]");
        self.over = true;
        // what still runs after a failure is of no use any more
        self.answers.streams.clear();
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Stream for Events {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(line) = self.waiting.pop_front() {
                return Poll::Ready(Some(Ok(line)));
            }
            if self.over {
                return Poll::Ready(None);
            }
            let news = ready!(self.answers.poll_news(cx));
            self.take(news);
        }
    }
}
