//! Commands that call a server ask for the model's description before the call: later it would delay the text, and another model
//! could have its name by then.

use std::{
    net::SocketAddr,
    process::Command,
    sync::{Arc, Mutex},
};
use tokio::net::TcpListener;
use tokio_stream::{Iter, iter, wrappers::TcpListenerStream};
use tonic::{Request, Response, Status, transport::Server};
use weir_proto::v1::{
    self, GenerateResponse, generate_response::Event, generation_server::Generation,
    generation_server::GenerationServer, models_server::Models, models_server::ModelsServer,
};

type Messages = Iter<std::vec::IntoIter<Result<GenerateResponse, Status>>>;

/// A server that records the calls in their order.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<&'static str>>>);

impl Recorder {
    fn record(&self, call: &'static str) {
        self.0.lock().unwrap().push(call);
    }
}

fn model(name: &str) -> v1::Model {
    let vocabulary = v1::Vocabulary { normaliser: "text8".into(), ..Default::default() };
    v1::Model { name: name.into(), vocabulary: Some(vocabulary), ..Default::default() }
}

#[tonic::async_trait]
impl Models for Recorder {
    async fn list_models(&self, _: Request<v1::ListModelsRequest>) -> Result<Response<v1::ListModelsResponse>, Status> {
        self.record("ListModels");
        Ok(Response::new(v1::ListModelsResponse { models: vec![model("only")] }))
    }

    async fn get_model(&self, request: Request<v1::GetModelRequest>) -> Result<Response<v1::Model>, Status> {
        self.record("GetModel");
        Ok(Response::new(model(request.get_ref().name())))
    }
}

#[tonic::async_trait]
impl Generation for Recorder {
    type GenerateStream = Messages;
    type ScoreStream = Iter<std::vec::IntoIter<Result<v1::ScoreResponse, Status>>>;

    async fn generate(&self, request: Request<v1::GenerateRequest>) -> Result<Response<Messages>, Status> {
        self.record("Generate");
        let model = request.into_inner().model.unwrap_or_default();
        let events = [
            Event::Started(v1::Started { model, normalized_chars: Some(1), ..Default::default() }),
            Event::Piece(v1::Piece { text: "b".into(), ..Default::default() }),
            Event::Finished(v1::Finished::default()),
        ];
        let messages = events.map(|event| Ok(GenerateResponse { event: Some(event) }));
        Ok(Response::new(iter(Vec::from(messages))))
    }

    async fn score(&self, _: Request<v1::ScoreRequest>) -> Result<Response<Self::ScoreStream>, Status> {
        Err(Status::unimplemented("score"))
    }

    async fn segment(&self, _: Request<v1::SegmentRequest>) -> Result<Response<v1::SegmentResponse>, Status> {
        Err(Status::unimplemented("segment"))
    }
}

async fn serve(recorder: Recorder) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let services =
        Server::builder().add_service(ModelsServer::new(recorder.clone())).add_service(GenerationServer::new(recorder));
    tokio::spawn(services.serve_with_incoming(TcpListenerStream::new(listener)));
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn generate_asks_for_the_description_before_the_call() {
    let note = "weir: note: --prompt: the normaliser text8 changed 1 of 1 character; the model reads \"a\"\n";
    for (named, first) in [(&["--model", "m"][..], "GetModel"), (&[], "ListModels")] {
        let recorder = Recorder::default();
        let address = serve(recorder.clone()).await.to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(["generate", "--prompt", "A", "--server", &address]).args(named).env_clear();
        let output = tokio::task::block_in_place(|| command.output().unwrap());
        assert_eq!(String::from_utf8(output.stderr).unwrap(), note);
        assert!(output.status.success() && output.stdout.starts_with(b"b"), "{:?}", output.stdout);
        assert_eq!(*recorder.0.lock().unwrap(), [first, "Generate"]);
    }
}
