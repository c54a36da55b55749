//! Reflection in both versions, and health of the reflected services.

use super::Server;
use prost::Message;
use tokio_stream::StreamExt;
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};

const SERVICES: [&str; 7] = [
    "grpc.health.v1.Health",
    "inference.GRPCInferenceService",
    "weir.v1.Codec",
    "weir.v1.Generation",
    "weir.v1.Latency",
    "weir.v1.Models",
    "weir.v1.Summarization",
];

/// The part of a file descriptor that the test reads.
#[derive(Message)]
struct File {
    #[prost(string, tag = "1")]
    name: String,
}

/// Generates the same test for each version of the protocol, whose types differ.
macro_rules! reflects {
    ($test:ident, $version:ident) => {
        #[tokio::test]
        async fn $test() {
            use tonic_reflection::pb::$version::{
                ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
                server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
            };
            let server = Server::new().await;
            let symbol = |symbol: &str| MessageRequest::FileContainingSymbol(symbol.into());
            let questions = [
                MessageRequest::ListServices(String::new()),
                symbol("weir.v1.Generation"),
                symbol("weir.v1.Model"),
                symbol("weir.v1.SummarizeRequest"),
                symbol("inference.ModelInferRequest"),
                symbol("grpc.health.v1.HealthCheckRequest"),
                symbol("google.rpc.BadRequest"),
                symbol("weir.v1.Nothing"),
            ];
            let ask = |question| ServerReflectionRequest { host: String::new(), message_request: Some(question) };
            let mut client = ServerReflectionClient::new(server.channel.clone());
            let questions = tokio_stream::iter(questions.map(ask));
            let mut answers = client.server_reflection_info(questions).await.unwrap().into_inner();
            let mut next = async || answers.next().await.unwrap().map(|answer| answer.message_response.unwrap());
            let MessageResponse::ListServicesResponse(list) = next().await.unwrap() else { panic!("no list") };
            let names: Vec<_> = list.service.into_iter().map(|service| service.name).collect();
            for service in SERVICES {
                assert!(names.iter().any(|name| name == service), "{service} is not in {names:?}");
            }
            let files = [
                "generation.proto",
                "models.proto",
                "summarization.proto",
                "inference.proto",
                "health.proto",
                "error_details.proto",
            ];
            for file in files {
                let MessageResponse::FileDescriptorResponse(response) = next().await.unwrap() else {
                    panic!("no {file}")
                };
                let descriptor = File::decode(&response.file_descriptor_proto[0][..]).unwrap();
                assert!(descriptor.name.ends_with(file), "{}", descriptor.name);
            }
            assert!(next().await.is_err(), "the symbol does not exist");
            let long = tokio_stream::iter([ask(symbol(&"x".repeat(5000)))]);
            let mut answers = client.server_reflection_info(long).await.unwrap().into_inner();
            let refused = answers.next().await.unwrap().unwrap_err();
            assert_eq!(refused.code(), tonic::Code::OutOfRange);
            assert_eq!(refused.message(), "the message: expected at most 4096 bytes, found more");
        }
    };
}

reflects!(reflection_v1_lists_services_and_files, v1);
reflects!(reflection_v1alpha_lists_services_and_files, v1alpha);

#[tokio::test]
async fn every_service_is_healthy() {
    let server = Server::new().await;
    let mut health = HealthClient::new(server.channel.clone());
    for service in SERVICES[1..].iter().chain(&[""]) {
        let request = HealthCheckRequest { service: (*service).into() };
        assert_eq!(health.check(request).await.unwrap().into_inner().status(), ServingStatus::Serving, "{service:?}");
    }
    let request = HealthCheckRequest { service: "weir.v1.Nothing".into() };
    assert_eq!(health.check(request).await.unwrap_err().code(), tonic::Code::NotFound);
}
