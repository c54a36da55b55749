//! `ModelStreamInfer`: requests as they come, answers as they are made. Each request is a call of its own; what is wrong with one
//! is told within the stream, and does not end it.

use super::{
    codec::Heard,
    fail,
    request::{Inquiry, id_of},
    talk::Talk,
};
use crate::{
    error::Error,
    serve::{
        in_process::{ClientContext, Services},
        middleware::{
            body_limits::StreamMemory,
            tonic_errors::{undecodable, unreadable},
        },
        status::status,
    },
};
use std::{
    pin::Pin,
    task::{Context, Poll},
};
use tokio_stream::{Stream, StreamMap};
use tonic::{Status, Streaming};
use weir_proto::inference::ModelStreamInferResponse;

/// One call of `ModelStreamInfer`.
pub(super) struct Exchange {
    services: Services,
    caller: ClientContext,
    /// None once there will be no more.
    incoming: Option<Streaming<Heard>>,
    /// To be told of each request that has been read.
    received: Option<StreamMemory>,
    /// Requests so far.
    count: u64,
    /// Those that are being answered, by their numbers.
    talks: StreamMap<u64, Talk>,
    /// How many there may be: while there are so many, no more is read.
    most: usize,
    /// What ended the requests, until the answers to those before are complete.
    failure: Option<Status>,
}

impl Exchange {
    /// Of requests by that caller, so many at a time.
    pub(super) fn new(
        services: Services,
        caller: ClientContext,
        request: tonic::Request<Streaming<Heard>>,
        most: usize,
    ) -> Self {
        let received = request.extensions().get().cloned();
        let incoming = Some(request.into_inner());
        Self { services, caller, incoming, received, count: 0, talks: StreamMap::new(), most, failure: None }
    }

    /// Reads requests while there are some, and room for them.
    fn listen(&mut self, cx: &mut Context<'_>) {
        while self.talks.len() < self.most {
            let Some(incoming) = &mut self.incoming else { return };
            match Pin::new(incoming).poll_next(cx) {
                Poll::Pending => return,
                Poll::Ready(Some(Ok(heard))) => self.begin(heard),
                Poll::Ready(Some(Err(said))) => {
                    // headers are on their way: here the library's words are not translated by others
                    let worded = |error| fail::renamed(&status(&error, self.caller.request_id()));
                    self.failure = Some(unreadable(&said).map_or(said, worded));
                    self.incoming = None;
                }
                Poll::Ready(None) => self.incoming = None,
            }
        }
    }

    fn begin(&mut self, heard: Heard) {
        if let Some(received) = &self.received {
            received.release();
        }
        self.count += 1;
        let caller = self.caller.numbered(self.count);
        let refuse = |id: &str, error: &Error| Talk::refused(id, &fail::renamed(&status(error, caller.request_id())));
        let talk = match heard {
            Err(said) => refuse("", &undecodable(&said)),
            Ok(request) => {
                let id = id_of(&request);
                match Inquiry::read(request) {
                    Ok(inquiry) => Talk::new(self.services.clone(), caller.clone(), inquiry),
                    Err(error) => refuse(&id, &error),
                }
            }
        };
        self.talks.insert(self.count, talk);
    }
}

impl Stream for Exchange {
    type Item = Result<ModelStreamInferResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            self.listen(cx);
            let was_full = self.talks.len() >= self.most;
            match Pin::new(&mut self.talks).poll_next(cx) {
                Poll::Ready(Some((_, message))) => return Poll::Ready(Some(Ok(message))),
                // an answer that is over has made room for a request
                _ if was_full && self.talks.len() < self.most => {}
                Poll::Ready(None) if self.incoming.is_none() => return Poll::Ready(self.failure.take().map(Err)),
                Poll::Ready(None) | Poll::Pending => return Poll::Pending,
            }
        }
    }
}
