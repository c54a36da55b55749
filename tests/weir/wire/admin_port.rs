//! The admin port: metrics, health, version.

use super::{
    Running, eventually,
    fake_model::{Fake, Kind},
    long, prompt,
    raw_http2::{called, connect},
    read,
};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tonic::{
    Code,
    codegen::http::{Request, Version},
};
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};
use weir::{
    config::TransportConfig,
    decode::contract::Model,
    engine::Limits,
    serve::{Engines, Monitor, ServerParts, serve_admin_port},
};
use weir_proto::v1::{self, edit_request::Action, editing_client::EditingClient, generation_client::GenerationClient};

/// A server with an admin port and one model named `fake`.
pub(super) struct Watched {
    pub(super) fake: Arc<Fake>,
    pub(super) engines: Engines,
    port: SocketAddr,
    running: Running,
}

impl Watched {
    pub(super) async fn new(hang: Duration) -> Self {
        let fake = Fake::new("fake", Kind::Pooled);
        let engines = Engines::default();
        let model = Arc::clone(&fake) as Arc<dyn Model>;
        let into = engines.clone();
        let limits = Limits { cache_bytes: 1 << 20, ..Limits::default() };
        let load = move || into.add(into.launch(model, limits, None).unwrap()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap();
        let monitor = Monitor::new(engines.clone(), hang);
        tokio::spawn(serve_admin_port(listener, monitor.clone(), Arc::default()));
        assert_eq!(get(port, "/health/live", "").await.0, 200);
        let (status, why) = get(port, "/health/ready", "").await;
        assert_eq!((status, why.as_str()), (503, "models are being loaded\n"));
        tokio::task::spawn_blocking(load).await.unwrap();
        let running = Running::offering(
            ServerParts::from(monitor),
            // Tests cancel many calls at once; a busy machine may see them all before the server accepts one.
            TransportConfig { pending_resets: 1000, ..TransportConfig::default() },
        )
        .await;
        Self { fake, engines, port, running }
    }

    async fn get(&self, path: &str) -> (u16, String) {
        get(self.port, path, "").await
    }

    /// Returns the value of a series, given its name and labels as printed.
    async fn value(&self, series: &str) -> f64 {
        self.find(series).await.unwrap_or_else(|| panic!("no {series}"))
    }

    async fn find(&self, series: &str) -> Option<f64> {
        let (_, text) = self.get("/metrics").await;
        text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
    }

    /// Waits until a series has `value`: some metrics are updated after the client receives the end.
    pub(super) async fn until(&self, series: &str, value: f64) {
        for _ in 0..1000 {
            if self.find(series).await == Some(value) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{series} never became {value}");
    }

    async fn of_model(&self, name: &str) -> f64 {
        self.value(&format!("weir_{name}{{model_name=\"fake\"}}")).await
    }

    pub(super) fn generation(&self) -> GenerationClient<tonic::transport::Channel> {
        GenerationClient::new(self.running.channel.clone())
    }

    async fn health(&self, service: &str) -> ServingStatus {
        let mut client = HealthClient::new(self.running.channel.clone());
        client.check(HealthCheckRequest { service: service.into() }).await.unwrap().into_inner().status()
    }

    async fn until_health(&self, service: &str, status: ServingStatus) {
        for _ in 0..1000 {
            if self.health(service).await == status {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{service:?} never became {status:?}");
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.fake.release();
    }
}

/// Sends an HTTP request, and returns status and body.
async fn get(port: SocketAddr, path: &str, headers: &str) -> (u16, String) {
    let host = if headers.contains("host:") { "" } else { "host: x\r\n" };
    let (head, body) =
        exchange(port, &format!("GET {path} HTTP/1.1\r\n{host}connection: close\r\n{headers}\r\n")).await;
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body)
}

async fn exchange(port: SocketAddr, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(port).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_counted_and_the_warm_up_is_not() {
    let server = Watched::new(Duration::from_secs(60)).await;
    assert!(server.fake.steps() > 0, "the model was not warmed up");
    for counter in ["prompt_tokens_total", "generation_tokens_total"] {
        assert_eq!(server.of_model(counter).await, 0.0, "{counter}");
    }
    assert_eq!(server.find("weir_rows_per_step_count{model_name=\"fake\"}").await, None);
    // The counts cover the boundaries before the last character, and all boundaries. The prompt closes no segment, so
    // it is not cached.
    let mut before_last = 0;
    let mut all = 0;
    for seed in 0..3 {
        let mut request = super::seeded("abcd", seed);
        request.stopping = long("", 40).stopping;
        let answer = read(server.generation().generate(request).await.unwrap().into_inner()).await.unwrap();
        let text = answer.text();
        assert_eq!(text.chars().count(), 40);
        before_last += text.chars().take(39).filter(|c| *c == ' ').count();
        all += text.chars().filter(|c| *c == ' ').count();
    }
    let status = server.generation().generate(prompt("ab?")).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    let status = read(server.generation().generate(prompt("ab!")).await.unwrap().into_inner()).await.unwrap_err();
    assert_eq!(status.code(), Code::Internal);
    server.until("weir_request_failure_total{model_name=\"fake\",code=\"INTERNAL\"}", 1.0).await;

    let model = "model_name=\"fake\"";
    assert_eq!(server.of_model("resumed_requests_total").await, 0.0);
    assert_eq!(server.of_model("prompt_tokens_total").await, 12.0);
    assert_eq!(server.of_model("generation_tokens_total").await, 120.0);
    assert_eq!(server.of_model("time_to_first_token_seconds_count").await, 3.0);
    let after = async |after: &str| {
        server.value(&format!("weir_inter_token_latency_seconds_count{{{model},after=\"{after}\"}}")).await
    };
    assert_eq!((after("char").await, after("boundary").await), ((117 - before_last) as f64, before_last as f64));
    assert_eq!(server.of_model("middle_steps_run_total").await, all as f64);
    assert_eq!(server.of_model("middle_steps_skipped_total").await, (132 - all) as f64);
    let factor = server.of_model("shortening_factor").await;
    assert!((factor - 132.0 / all as f64).abs() < 1e-9, "{factor}");
    assert!((server.of_model("boundary_rate").await - 1.0 / factor).abs() < 1e-9);
    let labelled = async |name: &str, label: &str| server.value(&format!("weir_{name}{{{model},{label}}}")).await;
    assert_eq!(labelled("request_success_total", "finished_reason=\"max_chars\"").await, 3.0);
    for (code, count) in [("OK", 3.0), ("INVALID_ARGUMENT", 1.0), ("INTERNAL", 1.0)] {
        let labels = format!("service=\"weir.v1.Generation\",method=\"Generate\",code=\"{code}\"");
        assert_eq!(server.value(&format!("weir_grpc_calls_total{{{labels}}}")).await, count, "{code}");
    }
    assert_eq!(labelled("segment_cache_lookups_total", "result=\"hit\"").await, 0.0);
    for gauge in ["num_requests_running", "num_requests_waiting", "kv_cache_used_bytes", "kv_cache_usage_ratio"] {
        assert_eq!(server.of_model(gauge).await, 0.0, "{gauge}");
    }
    assert_eq!(server.of_model("model_generations").await, 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cached_characters_are_counted() {
    let server = Watched::new(Duration::from_secs(60)).await;
    for _ in 0..2 {
        read(server.generation().generate(long("ab cd ee", 3)).await.unwrap().into_inner()).await.unwrap();
    }
    let hits = server.value("weir_segment_cache_lookups_total{model_name=\"fake\",result=\"hit\"}").await;
    assert_eq!(hits, 1.0);
    // The last character of a prompt is always fed.
    server.until("weir_prefix_cache_queries_total{model_name=\"fake\"}", 14.0).await;
    let spared = server.of_model("prefix_cache_hits_total").await;
    assert!(spared > 0.0, "nothing was cached");
    assert_eq!(server.of_model("prompt_tokens_total").await, 16.0 - spared);
    assert!(server.of_model("segment_cache_hit_bytes_total").await > 0.0);
    assert!(server.of_model("segment_cache_entries").await > 0.0);
    assert!(server.of_model("segment_cache_bytes").await > 0.0);
    server.until("weir_kv_cache_used_bytes{model_name=\"fake\"}", 0.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_and_cancelled_requests_are_counted() {
    let server = Watched::new(Duration::from_secs(60)).await;
    server.fake.slow(Duration::from_millis(2));
    let stream = server.generation().generate(long("a", 1900)).await.unwrap();
    eventually("the request runs", || server.engines.all()[0].load().running == 1).await;
    assert_eq!(server.of_model("num_requests_running").await, 1.0);
    drop(stream);
    eventually("the request has ended", || server.engines.all()[0].load().running == 0).await;
    assert_eq!(server.of_model("num_requests_running").await, 0.0);
    server.until("weir_request_failure_total{model_name=\"fake\",code=\"CANCELLED\"}", 1.0).await;
    let labels = "service=\"weir.v1.Generation\",method=\"Generate\",code=\"CANCELLED\"";
    server.until(&format!("weir_grpc_calls_total{{{labels}}}"), 1.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_hangs_is_not_alive() {
    let server = Watched::new(Duration::from_millis(200)).await;
    assert_eq!((server.get("/health/live").await.0, server.get("/health/ready").await.0), (200, 200));
    assert_eq!(server.health("").await, ServingStatus::Serving);
    server.fake.hold();
    let stream = server.generation().generate(long("a", 5)).await.unwrap();
    server.until_health("", ServingStatus::NotServing).await;
    server.until_health("weir.v1.Generation", ServingStatus::NotServing).await;
    let (status, why) = server.get("/health/live").await;
    assert_eq!(status, 503);
    assert!(why.contains("\"fake\"") && why.contains("200ms"), "{why}");
    server.fake.release();
    read(stream.into_inner()).await.unwrap();
    server.until_health("", ServingStatus::Serving).await;
    server.until_health("weir.v1.Generation", ServingStatus::Serving).await;
    assert_eq!(server.get("/health/live").await, (200, "ok\n".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_draining_server_is_alive_and_not_ready() {
    let mut server = Watched::new(Duration::from_secs(60)).await;
    server.fake.hold();
    let _stream = server.generation().generate(long("a", 5)).await.unwrap();
    server.running.shut_down();
    server.until_health("weir.v1.Generation", ServingStatus::NotServing).await;
    let (status, why) = server.get("/health/ready").await;
    assert_eq!((status, why.as_str()), (503, "the server is shutting down\n"));
    assert_eq!(server.get("/health/live").await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_port_serves_both_metric_formats_only() {
    let server = Watched::new(Duration::from_secs(60)).await;
    let (_, version) = server.get("/version").await;
    assert_eq!(serde_json::from_str::<serde_json::Value>(&version).unwrap()["version"], env!("CARGO_PKG_VERSION"));
    let (_, old) = server.get("/metrics").await;
    assert!(old.contains("# TYPE weir_prompt_tokens_total counter\n") && !old.contains("# EOF"), "{old}");
    let accept = "accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n";
    let (_, open) = get(server.port, "/metrics", accept).await;
    assert!(open.contains("# TYPE weir_prompt_tokens counter\n") && open.ends_with("# EOF\n"), "{open}");
    let paths = "weir's admin port has /metrics, /health/live, /health/ready and /version\n";
    assert_eq!(server.get("/nothing").await, (404, format!("this path does not exist; {paths}")));
    let (head, body) = exchange(server.port, "POST /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 405 ") && body.ends_with(paths), "{head} {body}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_other_origins_read_nothing() {
    let server = Watched::new(Duration::from_secs(60)).await;
    for headers in [
        "host: rebound.example.com:9090\r\n",
        "host: 127.0.0.1:9090\r\norigin: https://evil.example.com\r\n",
        "origin: null\r\n",
    ] {
        for path in ["/metrics", "/version", "/health/ready"] {
            let (status, body) = get(server.port, path, headers).await;
            assert_eq!(status, 403, "{path} with {headers}");
            assert!(body.contains("--allowed-") && !body.contains("weir_"), "{body}");
        }
    }
    let own = "host: 127.0.0.1:9090\r\norigin: http://127.0.0.1:9090\r\n";
    assert_eq!(get(server.port, "/metrics", own).await.0, 200);
}

/// Requests that their connection refuses reach no service, and are counted all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_reach_no_service_are_counted() {
    let server = Watched::new(Duration::from_secs(60)).await;
    for path in ["/v1/completions", "/weir.v1.Generation/Generate"] {
        let request = Request::builder().method("GET").uri(format!("http://weir{path}")).version(Version::HTTP_2);
        let mut sender = connect(server.running.address, 1 << 16).await.ready().await.unwrap();
        let (response, _) = sender.send_request(request.body(()).unwrap(), true).unwrap();
        assert_eq!(response.await.unwrap().status(), 415);
    }
    let labels = "service=\"other\",method=\"other\",code=\"INVALID_ARGUMENT\"";
    server.until(&format!("weir_grpc_calls_total{{{labels}}}"), 2.0).await;
    let names: Vec<_> = (0..101).map(|index| format!("x-{index}")).collect();
    let headers: Vec<_> = names.iter().map(|name| (name.as_str(), "a")).collect();
    let sender = connect(server.running.address, 1 << 16).await;
    called(sender, "/weir.v1.Generation/Generate", Vec::new(), &headers).await.unwrap();
    let labels = "service=\"weir.v1.Generation\",method=\"Generate\",code=\"INVALID_ARGUMENT\"";
    server.until(&format!("weir_grpc_calls_total{{{labels}}}"), 1.0).await;
    // As many headers, but no content type of gRPC.
    let mut request = Request::get("http://weir/weir.v1.Generation/Generate").version(Version::HTTP_2);
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let mut sender = connect(server.running.address, 1 << 16).await.ready().await.unwrap();
    sender.send_request(request.body(()).unwrap(), true).unwrap().0.await.unwrap();
    let labels = "service=\"other\",method=\"other\",code=\"INVALID_ARGUMENT\"";
    server.until(&format!("weir_grpc_calls_total{{{labels}}}"), 3.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn editing_sessions_are_counted() {
    let server = Watched::new(Duration::from_secs(60)).await;
    let (requests, receiver) = tokio::sync::mpsc::channel(4);
    let mut client = EditingClient::new(server.running.channel.clone());
    let call = client.edit(tokio_stream::wrappers::ReceiverStream::new(receiver)).await.unwrap();
    let mut responses = call.into_inner();
    let open = v1::OpenDocument { text: "ab ".into(), ..Default::default() };
    let splice = v1::SpliceDocument { revision: 1, splices: Vec::new() };
    let complete = v1::CompleteDocument { id: 1, cursor_byte: 3, max_chars: Some(1), ..Default::default() };
    for action in [Action::Open(open), Action::Splice(splice), Action::Complete(complete)] {
        requests.send(v1::EditRequest { action: Some(action) }).await.unwrap();
        responses.message().await.unwrap().unwrap();
    }
    assert_eq!(server.of_model("edit_sessions").await, 1.0);
    for (event, count) in [("splice", 1.0), ("completion", 1.0), ("score", 0.0), ("stale", 0.0)] {
        let series = format!("weir_edit_events_total{{model_name=\"fake\",event=\"{event}\"}}");
        assert_eq!(server.value(&series).await, count, "{event}");
    }
    drop(requests);
    assert!(responses.message().await.unwrap().is_none());
    server.until("weir_edit_sessions{model_name=\"fake\"}", 0.0).await;
    let labels = "service=\"weir.v1.Editing\",method=\"Edit\",code=\"OK\"";
    server.until(&format!("weir_grpc_calls_total{{{labels}}}"), 1.0).await;
}
