//! One request of a stream, from the call to its last message.

use super::{
    fail,
    reply::{Reply, failed},
    request::{Inquiry, Wanted},
};
use crate::serve::in_process::{ClientContext, Services};
use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio_stream::Stream;
use tonic::{Status, Streaming};
use weir_proto::{
    inference::ModelStreamInferResponse,
    v1::{GenerateResponse, generation_client::GenerationClient},
};

/// A call that has not begun to answer.
type Beginning = Pin<Box<dyn Future<Output = Result<Streaming<GenerateResponse>, Status>> + Send>>;

/// The answer to one request.
pub(super) struct Talk {
    id: String,
    stage: Stage,
    reply: Reply,
    ready: VecDeque<ModelStreamInferResponse>,
}

enum Stage {
    Beginning(Beginning),
    Going(Streaming<GenerateResponse>),
    Over,
}

/// Makes the call.
pub(super) async fn begin(
    services: Services,
    caller: &ClientContext,
    inquiry: Inquiry,
) -> Result<Streaming<GenerateResponse>, Status> {
    let mut client = GenerationClient::new(services).max_decoding_message_size(usize::MAX);
    let caller = caller.clone().until(inquiry.deadline);
    client.generate(caller.call(inquiry.generate)).await.map(tonic::Response::into_inner)
}

impl Talk {
    /// Of a request that is well formed.
    pub(super) fn new(services: Services, caller: ClientContext, inquiry: Inquiry) -> Self {
        let (id, reply) = (inquiry.wanted.id.clone(), Reply::new(inquiry.wanted.clone()));
        let call = Box::pin(async move { begin(services, &caller, inquiry).await });
        Self { id, stage: Stage::Beginning(call), reply, ready: VecDeque::new() }
    }

    /// Of one that is not.
    pub(super) fn refused(id: &str, status: &Status) -> Self {
        let ready = [failed(id, status)].into();
        Self { id: id.to_owned(), stage: Stage::Over, reply: Reply::new(Wanted::default()), ready }
    }

    /// What the next message of the call comes to.
    fn take(&mut self, message: Option<Result<GenerateResponse, Status>>) {
        match message {
            Some(Ok(message)) => {
                message.event.into_iter().for_each(|event| self.reply.take(event));
                if self.reply.has_news() {
                    self.say();
                }
            }
            Some(Err(status)) => self.fail(&status),
            None if self.reply.is_complete() => {}
            None => self.fail(&Status::internal("the answer broke off")),
        }
    }

    fn say(&mut self) {
        let message = self.reply.message();
        let end = self.reply.is_complete().then(|| self.reply.end()).flatten();
        let told = [Some(message), end].into_iter().flatten();
        self.ready.extend(told.map(|one| ModelStreamInferResponse { infer_response: Some(one), ..Default::default() }));
        if self.reply.is_complete() {
            self.stage = Stage::Over;
        }
    }

    fn fail(&mut self, status: &Status) {
        self.ready.push_back(failed(&self.id, &fail::renamed(status)));
        self.stage = Stage::Over;
    }
}

impl Stream for Talk {
    type Item = ModelStreamInferResponse;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Poll::Ready(Some(message));
            }
            match &mut self.stage {
                Stage::Over => return Poll::Ready(None),
                Stage::Beginning(call) => match ready!(call.as_mut().poll(cx)) {
                    Ok(answer) => self.stage = Stage::Going(answer),
                    Err(status) => self.fail(&status),
                },
                Stage::Going(answer) => {
                    let message = ready!(Pin::new(answer).poll_next(cx));
                    self.take(message);
                }
            }
        }
    }
}
