//! Quality of a model: bits per character of a text, from the server's `Score`.

use crate::{client::connection::code, load::workload::RequestTarget};
use tokio::time::timeout;
use tonic::Status;
use weir_proto::v1::{ScoreRequest, generation_client::GenerationClient, score_response::Event};

/// Returns the bits per character of the text.
/// Fails if the server rejects the request, or does not answer within the target's time limit.
pub async fn bits_per_char(target: &RequestTarget, text: &str) -> Result<f64, String> {
    let describe = |status: Status| format!("{}: {}", code(&status), status.message());
    match timeout(target.timeout, score(target, text)).await {
        Ok(answer) => answer.map_err(describe),
        Err(_) => Err(format!("no answer in {:?}", target.timeout)),
    }
}

async fn score(target: &RequestTarget, text: &str) -> Result<f64, Status> {
    let connection = target.pool.next()?;
    let message = ScoreRequest { model: Some(target.model.clone()), text: text.into(), ..Default::default() };
    let request = connection.request(message, target.timeout);
    let mut stream = GenerationClient::new(connection.channel()).score(request).await?.into_inner();
    while let Some(message) = stream.message().await? {
        if let Some(Event::Summary(summary)) = message.event {
            return summary.bits_per_char.ok_or_else(|| Status::unknown("nothing was scored"));
        }
    }
    Err(Status::unknown("the stream ended without `summary`"))
}
