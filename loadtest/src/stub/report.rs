//! What the stub says of its calibration: no more than a client of comparisons asks for.

use super::Stub;
use tonic::{Request, Response, Status};
use weir_proto::v1::{Calibration, EstimatedGain, GetReportRequest, GetReportResponse, ModelReport, latency_server};

/// The spread above which it doubts itself.
const WIDE: f64 = 0.2;

#[tonic::async_trait]
impl latency_server::Latency for Stub {
    async fn get_report(&self, request: Request<GetReportRequest>) -> Result<Response<GetReportResponse>, Status> {
        let (script, _) = self.model(request.get_ref().model())?;
        let doubt = (script.spread > WIDE).then(|| "the machine was busy".to_owned());
        let calibration = Calibration { fewest_samples: 31, spread: script.spread, doubt, ..Default::default() };
        let gain = || EstimatedGain { calibration: Some(calibration), ..Default::default() };
        let estimated_gain = script.gain.map(|_| gain());
        let report = ModelReport { model: script.name.clone(), estimated_gain, ..Default::default() };
        Ok(Response::new(GetReportResponse { models: vec![report] }))
    }
}
