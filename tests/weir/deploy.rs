//! Two replicas behind the proxies of `deploy/`: one replica is killed or terminated under load. The tests are skipped with a
//! message if a proxy is not installed, unless `WEIR_REQUIRE_PROXIES=1`.

use super::process::{Program, Server};
use crate::*;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::Uri;
use weir_proto::v1::{Sampling, Stopping};

/// Concurrent requests: far more than both replicas have rows.
const CLIENTS: u64 = 16;
const CHARS: u32 = 100;

#[derive(Debug, Clone, Copy)]
enum Proxy {
    Nginx,
    Haproxy,
}

/// Two replicas and a proxy that listens on a socket in its own folder.
struct Site {
    replicas: Vec<Server>,
    channel: Channel,
    proxy: Program,
    _folder: TempDir,
}

/// Result of a request.
#[derive(Debug)]
struct Outcome {
    seed: u64,
    text: String,
    failure: Option<Status>,
}

impl Proxy {
    /// Returns the path of the program if it is installed.
    fn program(self) -> Option<PathBuf> {
        let name = match self {
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
        };
        let folders = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin", "/opt/homebrew/bin"];
        let program = folders.into_iter().map(|folder| Path::new(folder).join(name)).find(|path| path.is_file());
        let required = std::env::var_os("WEIR_REQUIRE_PROXIES").is_some_and(|value| value == "1");
        assert!(program.is_some() || !required, "{name} is required, and not installed");
        if program.is_none() {
            eprintln!("skipped: {name} is not installed");
        }
        program
    }

    /// Writes the file of `deploy/` with the addresses of this test, and returns its path.
    fn configured(self, folder: &Path, replicas: &[Server]) -> PathBuf {
        let name = match self {
            Self::Nginx => "nginx.conf",
            Self::Haproxy => "haproxy.cfg",
        };
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(name);
        let mut text = fs::read_to_string(file).unwrap();
        let socket = folder.join("socket");
        let socket = match self {
            Self::Nginx => format!("unix:{}", socket.display()),
            Self::Haproxy => format!("unix@{}", socket.display()),
        };
        let mut replace = |from: &str, to: &str| {
            assert!(text.contains(from), "{from} in {name}");
            text = text.replace(from, to);
        };
        replace("127.0.0.1:8080", &socket);
        for (replica, (address, port)) in
            replicas.iter().zip([("127.0.0.1:50051", "9091"), ("127.0.0.1:50052", "9092")])
        {
            replace(address, &replica.address.to_string());
            if let Self::Haproxy = self {
                replace(&format!("port {port}"), &format!("port {}", replica.admin_address.port()));
            }
        }
        let file = folder.join(name);
        fs::write(&file, text).unwrap();
        file
    }

    fn start(self, program: &Path, folder: &Path, replicas: &[Server]) -> Program {
        let file = self.configured(folder, replicas);
        let mut command = Command::new(program);
        match self {
            Self::Nginx => command.arg("-p").arg(folder).arg("-c").arg(file).args(["-g", "daemon off;"]),
            Self::Haproxy => command.arg("-db").arg("-f").arg(file),
        };
        Program::start(&mut command)
    }
}

impl Site {
    /// Starts replicas and proxy. Returns `None` if the proxy is not installed.
    async fn open(proxy: Proxy) -> Option<Self> {
        let program = proxy.program()?;
        let model = concat!(env!("CARGO_MANIFEST_DIR"), "/models/hourglass-english");
        // On a busy machine, draining takes longer than the default limit.
        let flags = ["--rows", "2", "--kv-memory", "64MiB", "--late-headers", "--drain-seconds", "600"];
        let start = || Server::of(&[model.into()], &flags);
        let replicas = vec![start(), start()];
        let folder = TempDir::new().unwrap();
        let proxy = proxy.start(&program, folder.path(), &replicas);
        let socket = folder.path().join("socket");
        let started = Instant::now();
        let channel = loop {
            assert!(started.elapsed() < TIMEOUT, "the proxy does not listen: {}", proxy.stderr());
            let socket = socket.clone();
            let connect = tower::service_fn(move |_: Uri| {
                let socket = socket.clone();
                async move { UnixStream::connect(socket).await.map(TokioIo::new) }
            });
            match Endpoint::from_static("http://weir").connect_with_connector(connect).await {
                Ok(channel) => break channel,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        let deployment = Self { replicas, channel, proxy, _folder: folder };
        let mut admin = weir_proto::v1::admin_client::AdminClient::new(deployment.channel.clone());
        let refused = admin.list_generations(weir_proto::v1::ListGenerationsRequest {}).await.unwrap_err();
        let expected = (Code::PermissionDenied, "admin calls are not proxied: call a replica directly");
        assert_eq!((refused.code(), refused.message()), expected);
        // The proxy's health checks may need some time to find the replicas.
        while deployment.ask(0, 1).await.failure.is_some() {
            assert!(started.elapsed() < TIMEOUT, "no replica is found: {}", deployment.proxy.stderr());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Some(deployment)
    }

    async fn ask(&self, seed: u64, chars: u32) -> Outcome {
        ask(self.channel.clone(), seed, chars).await
    }

    /// Runs clients until both replicas have running and waiting requests, applies `action` to the first one, and returns the
    /// outcomes of the requests that were open then.
    async fn under_load(&mut self, action: impl FnOnce(&Server)) -> Vec<Outcome> {
        let mut clients = JoinSet::new();
        let mut seeds = (0..CLIENTS).cycle();
        let is_busy = |replica: &Server| {
            replica.metric("num_requests_waiting") >= 1.0 && replica.metric("generation_tokens_total") >= 10.0
        };
        while !self.replicas.iter().all(is_busy) {
            while let Some(over) = clients.try_join_next() {
                let over: Outcome = over.unwrap();
                assert!(over.failure.is_none(), "{over:?}");
            }
            while clients.len() < CLIENTS as usize {
                clients.spawn(ask(self.channel.clone(), seeds.next().unwrap(), CHARS));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        action(&self.replicas[0]);
        clients.join_all().await
    }
}

/// Generates a text and returns its outcome. Every second request says which others it is related to.
async fn ask(channel: Channel, seed: u64, chars: u32) -> Outcome {
    let sampling = Some(Sampling { seed: Some(seed), ..Default::default() });
    let stopping = Some(Stopping { max_chars: Some(chars), ignore_eos: Some(true), ..Default::default() });
    let request =
        GenerateRequest { prompt: "the history of the city".into(), sampling, stopping, ..Default::default() };
    let mut request = Request::new(request);
    if seed % 2 == 1 {
        request.metadata_mut().insert("weir-affinity", seed.into());
    }
    let mut outcome = Outcome { seed, text: String::new(), failure: None };
    let mut finished = false;
    let reading = async {
        let mut stream = GenerationClient::new(channel).generate(request).await?.into_inner();
        while let Some(message) = stream.message().await? {
            match message.event {
                Some(Event::Piece(piece)) => outcome.text.push_str(&piece.text),
                Some(Event::Finished(_)) => finished = true,
                _ => {}
            }
        }
        if finished { Ok(()) } else { Err(Status::unknown("the answer broke off without a status")) }
    };
    let result: Result<(), Status> = reading.await;
    Outcome { failure: result.err(), ..outcome }
}

/// Checks that each finished text equals the text of the same request sent alone.
async fn check_texts(deployment: &Site, outcomes: &[Outcome]) {
    for outcome in outcomes.iter().filter(|outcome| outcome.failure.is_none()) {
        let alone = deployment.ask(outcome.seed, CHARS).await;
        assert!(alone.failure.is_none(), "{alone:?}");
        assert_eq!(alone.text, outcome.text, "seed {}", outcome.seed);
    }
}

async fn one_replica_dies(proxy: Proxy) {
    let Some(mut deployment) = Site::open(proxy).await else { return };
    let outcomes = deployment.under_load(|replica| replica.program.signal("KILL")).await;
    let (lost, cut): (Vec<_>, Vec<_>) =
        outcomes.iter().filter(|outcome| outcome.failure.is_some()).partition(|outcome| outcome.text.is_empty());
    assert!(lost.is_empty(), "requests without a character were lost: {lost:?}");
    // Texts that had begun at this replica are lost; those of the other replica are not.
    assert!(cut.len() < outcomes.len(), "{cut:?}");
    for outcome in &cut {
        let code = outcome.failure.as_ref().unwrap().code();
        assert!([Code::Unavailable, Code::Internal, Code::Unknown, Code::Cancelled].contains(&code), "{outcome:?}");
    }
    check_texts(&deployment, &outcomes).await;
}

async fn one_replica_is_terminated(proxy: Proxy) {
    let Some(mut deployment) = Site::open(proxy).await else { return };
    // These requests start while the replica drains.
    let channel = deployment.channel.clone();
    let mut late = JoinSet::new();
    let action = |replica: &Server| {
        replica.program.signal("TERM");
        for seed in 0..CLIENTS {
            late.spawn(ask(channel.clone(), seed, 20));
        }
    };
    let outcomes = deployment.under_load(action).await;
    let late = late.join_all().await;
    let failed: Vec<_> = late.iter().chain(&outcomes).filter(|outcome| outcome.failure.is_some()).collect();
    assert!(failed.is_empty(), "{failed:?}");
    // New requests succeed while the replica drains and after it has exited.
    for seed in 0..8 {
        let outcome = deployment.ask(seed, 20).await;
        assert!(outcome.failure.is_none(), "{outcome:?}");
    }
    assert!(deployment.replicas[0].program.wait().success());
    check_texts(&deployment, &outcomes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_nginx_no_request_without_a_character_is_lost() {
    one_replica_dies(Proxy::Nginx).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_haproxy_no_request_without_a_character_is_lost() {
    one_replica_dies(Proxy::Haproxy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_nginx_a_terminated_replica_loses_nothing() {
    one_replica_is_terminated(Proxy::Nginx).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_haproxy_a_terminated_replica_loses_nothing() {
    one_replica_is_terminated(Proxy::Haproxy).await;
}
