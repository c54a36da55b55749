//! Metadata, configuration, statistics and readiness of the server and its models.

use super::{
    super::{
        Running, Server,
        fake_model::{Fake, Kind},
        prompt, read,
    },
    Client, RawCodec, client,
};
use tonic::{Code, Request, codegen::http::uri::PathAndQuery};
use weir::{config::TransportConfig, engine::Limits, serve::Engines};
use weir_proto::{inference as oip, v1::generation_client::GenerationClient};

#[tokio::test]
async fn server_and_model_queries_are_answered() {
    let server =
        Server::with(Limits::default(), TransportConfig::default(), &[("fake", Kind::Pooled), ("other", Kind::Bytes)])
            .await;
    let mut client = client(&server);
    assert!(client.server_live(oip::ServerLiveRequest {}).await.unwrap().into_inner().live);
    assert!(client.server_ready(oip::ServerReadyRequest {}).await.unwrap().into_inner().ready);
    let metadata = client.server_metadata(oip::ServerMetadataRequest {}).await.unwrap().into_inner();
    assert_eq!((metadata.name.as_str(), metadata.version.as_str()), ("weir", env!("CARGO_PKG_VERSION")));
    for (name, version, ready) in [("fake", "", true), ("fake", "1", true), ("fake", "2", false), ("nobody", "", false)]
    {
        let query = oip::ModelReadyRequest { name: name.into(), version: version.into() };
        assert_eq!(client.model_ready(query).await.unwrap().into_inner().ready, ready, "{name} {version}");
    }
    let query = oip::ModelMetadataRequest { name: "fake".into(), ..Default::default() };
    let metadata = client.model_metadata(query).await.unwrap().into_inner();
    assert_eq!((metadata.versions, metadata.platform.as_str()), (vec!["1".to_owned()], "weir"));
    let first = &metadata.inputs[0];
    assert_eq!((first.name.as_str(), first.datatype.as_str(), &first.shape[..]), ("text_input", "BYTES", &[1][..]));
    let query = oip::ModelConfigRequest { name: "other".into(), ..Default::default() };
    let config = client.model_config(query).await.unwrap().into_inner().config.unwrap();
    assert!(config.model_transaction_policy.unwrap().decoupled);
    assert_eq!((config.parameters["token"].string_value.as_str(), config.max_batch_size), ("byte", 0));
    assert!(config.input.iter().all(|input| input.optional == (input.name != "text_input")));
    let query = oip::RepositoryIndexRequest { ready: true, ..Default::default() };
    let index = client.repository_index(query).await.unwrap().into_inner().models;
    let index: Vec<_> = index.iter().map(|model| (&*model.name, &*model.version, &*model.state)).collect();
    assert_eq!(index, [("fake", "1", "READY"), ("other", "1", "READY")]);
    let unknown = oip::ModelConfigRequest { name: "nobody".into(), ..Default::default() };
    assert_eq!(client.model_config(unknown).await.unwrap_err().code(), Code::NotFound);
    let mut raw = tonic::client::Grpc::new(server.channel.clone());
    for method in ["RepositoryModelLoad", "SystemSharedMemoryStatus", "TraceSetting", "Nothing"] {
        raw.ready().await.unwrap();
        let path = PathAndQuery::try_from(format!("/inference.GRPCInferenceService/{method}")).unwrap();
        let status = raw.unary(Request::new(Vec::new()), path, RawCodec).await.unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented, "{method}");
    }
}

#[tokio::test]
async fn statistics_count_request_outcomes() {
    let engines = Engines::default();
    let model = Fake::new("fake", Kind::Pooled);
    let own = engines.clone();
    // a launch blocks until the warm-up ends
    let launched = tokio::task::spawn_blocking(move || own.add(own.launch(model, Limits::default(), None).unwrap()));
    launched.await.unwrap().unwrap();
    let running = Running::offering(engines, TransportConfig::default()).await;
    let mut client = Client::new(running.channel.clone());
    let mut statistics = async || {
        let response = client.model_statistics(oip::ModelStatisticsRequest::default()).await.unwrap().into_inner();
        let [model] = &response.model_stats[..] else { panic!("{response:?}") };
        model.clone()
    };
    let before = statistics().await;
    assert_eq!((before.inference_count, before.last_inference, before.execution_count), (0, 0, 0));
    let mut generation = GenerationClient::new(running.channel.clone());
    read(generation.generate(prompt("ab")).await.unwrap().into_inner()).await.unwrap();
    let after = statistics().await;
    let stats = after.inference_stats.unwrap();
    let [success, queue, input, infer] =
        [stats.success, stats.queue, stats.compute_input, stats.compute_infer].map(Option::unwrap);
    assert_eq!((after.inference_count, success.count, stats.fail.unwrap().count), (1, 1, 0));
    assert_eq!(success.ns, queue.ns + input.ns + infer.ns);
    assert!(after.execution_count > 0 && after.last_inference > 1_600_000_000_000);
}
