//! Calls of `weir.v1` by the HTTP API and by the Open Inference Protocol: they run the handlers of the gRPC services directly.
//!
//! Such a call has a message and no bytes. It meets the [`Admission`](super::middleware::Admission) that every call meets.

use crate::call::{Call, ClientContext};
use crate::grpc::generation::{GenerateEncoder, Incoming, JobService};
use crate::grpc::response::{ResponseStream, log_rejection};
use crate::middleware::limits::{RequestMemory, Reservation};
use crate::middleware::{Admission, CallResponse};
use prost::Message;
use std::sync::Arc;
use weir_engine::clock;
use weir_kernels::error::Result;
use weir_proto::v1;

/// Makes calls on behalf of clients.
#[derive(Clone)]
pub(crate) struct Calls {
    pub(crate) jobs: JobService,
    pub(crate) admission: Admission,
}

/// The response to a `Generate`.
pub(crate) type Generated = CallResponse<ResponseStream<GenerateEncoder>>;

impl Calls {
    pub(crate) async fn generate(&self, client: &ClientContext, message: v1::GenerateRequest) -> Result<Generated> {
        let handler = async |call: Call, _| self.start_generate(call, message).await;
        self.begin("/weir.v1.Generation/Generate", client, 0, handler).await
    }

    /// Starts to generate in a call that is admitted, whatever its method is.
    pub(crate) async fn start_generate(
        &self,
        call: Call,
        message: v1::GenerateRequest,
    ) -> Result<ResponseStream<GenerateEncoder>> {
        let memory = RequestMemory::new(Reservation::new(Arc::clone(&self.jobs.memory), call.tenant()));
        memory.add(message.encoded_len())?;
        let request = Incoming { message, call, memory: Some(memory) };
        self.jobs.start_generate(request).await.inspect_err(log_rejection)
    }

    /// Runs `handler` as a call of the method at `path`, whose request has `bytes` bytes. The call is in progress until its response
    /// is dropped.
    pub(crate) async fn begin<R>(
        &self,
        path: &'static str,
        client: &ClientContext,
        bytes: usize,
        handler: impl AsyncFnOnce(Call, RequestMemory) -> Result<R>,
    ) -> Result<CallResponse<R>> {
        let handler = async |call: Call| {
            let memory = RequestMemory::new(Reservation::new(Arc::clone(&self.jobs.memory), call.tenant()));
            // A caller may hold more than its share, which others shorten. Its calls without a request are not refused.
            if bytes > 0 {
                memory.add(bytes)?;
            }
            handler(call, memory).await
        };
        self.admission.begin(path, clock::now(), client, handler).await
    }
}
