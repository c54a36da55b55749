//! Two replicas behind the proxies of `deploy/`, as they are installed: one replica is killed, or told to end, under load.
//! Skipped, and said so, where a proxy is not installed, unless `WEIR_REQUIRE_PROXIES=1`.

use super::process::{Program, Server};
use hyper_util::rt::TokioIo;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tokio::{net::UnixStream, task::JoinSet};
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint, Uri},
};
use weir_proto::v1::{
    GenerateRequest, Sampling, Stopping, generate_response::Event, generation_client::GenerationClient,
};

/// Requests at once: far more than both replicas have rows.
const CLIENTS: u64 = 24;
const CHARS: u32 = 400;
/// How long what must come soon may take.
const SOON: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy)]
enum Proxy {
    Nginx,
    Haproxy,
}

/// Two replicas and a proxy, which listens on a socket in a folder of its own.
struct Site {
    replicas: Vec<Server>,
    channel: Channel,
    proxy: Program,
    _folder: TempDir,
}

/// How a request went.
#[derive(Debug)]
struct Outcome {
    seed: u64,
    text: String,
    failure: Option<Status>,
}

impl Proxy {
    /// Its program, if it is installed.
    fn program(self) -> Option<PathBuf> {
        let name = match self {
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
        };
        let folders = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin", "/opt/homebrew/bin"];
        let found = folders.into_iter().map(|folder| Path::new(folder).join(name)).find(|path| path.is_file());
        let required = std::env::var_os("WEIR_REQUIRE_PROXIES").is_some_and(|value| value == "1");
        assert!(found.is_some() || !required, "{name} is required, and not installed");
        if found.is_none() {
            eprintln!("skipped: {name} is not installed");
        }
        found
    }

    /// The file of `deploy/`, with our addresses instead of those that it names.
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
    /// None if the proxy is not installed.
    async fn open(proxy: Proxy) -> Option<Self> {
        let program = proxy.program()?;
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/hourglass-whitespace-english");
        let flags = ["--model", model.to_str().unwrap(), "--rows", "2", "--kv-memory", "64MiB", "--late-headers"];
        let replicas = vec![Server::start(&flags), Server::start(&flags)];
        let folder = TempDir::new().unwrap();
        let proxy = proxy.start(&program, folder.path(), &replicas);
        let socket = folder.path().join("socket");
        let begun = Instant::now();
        let channel = loop {
            assert!(begun.elapsed() < SOON, "the proxy does not listen: {}", proxy.stderr());
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
        let site = Self { replicas, channel, proxy, _folder: folder };
        let site = site.refuses_orders().await;
        // Health checks may have to find the replicas first.
        while site.ask(0, 1).await.failure.is_some() {
            assert!(begun.elapsed() < SOON, "no replica is found: {}", site.proxy.stderr());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Some(site)
    }

    /// Orders reach no replica.
    async fn refuses_orders(self) -> Self {
        let order = weir_proto::v1::ListGenerationsRequest {};
        let mut admin = weir_proto::v1::admin_client::AdminClient::new(self.channel.clone());
        let refused = admin.list_generations(order).await.unwrap_err();
        assert_eq!(
            (refused.code(), refused.message()),
            (Code::PermissionDenied, "admin calls are not proxied: call a replica directly")
        );
        self
    }

    async fn ask(&self, seed: u64, chars: u32) -> Outcome {
        ask(self.channel.clone(), seed, chars).await
    }

    /// All clients' outcomes; once both replicas run some requests and keep others waiting, this is done to the first.
    async fn under_load(&mut self, deed: impl FnOnce(&Server)) -> Vec<Outcome> {
        let mut clients = JoinSet::new();
        for seed in 0..CLIENTS {
            clients.spawn(ask(self.channel.clone(), seed, CHARS));
        }
        loop {
            let busy = |replica: &Server| {
                replica.metric("num_requests_waiting") >= 4.0 && replica.metric("generation_tokens_total") >= 10.0
            };
            if self.replicas.iter().all(busy) {
                break;
            }
            if let Some(over) = clients.try_join_next() {
                panic!("a request was over before all had come: {over:?}");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        deed(&self.replicas[0]);
        clients.join_all().await
    }
}

/// Generates a text, and tells how far that went.
async fn ask(channel: Channel, seed: u64, chars: u32) -> Outcome {
    let sampling = Some(Sampling { seed: Some(seed), ..Default::default() });
    let stopping = Some(Stopping { max_chars: Some(chars), ..Default::default() });
    let request =
        GenerateRequest { prompt: "the history of the city".into(), sampling, stopping, ..Default::default() };
    let mut outcome = Outcome { seed, text: String::new(), failure: None };
    let mut finished = false;
    let told = async {
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
    let told: Result<(), Status> = told.await;
    outcome.failure = told.err();
    outcome
}

/// Every text that was finished is the one that its request gives alone.
async fn check_texts(site: &Site, outcomes: &[Outcome]) {
    for outcome in outcomes.iter().filter(|outcome| outcome.failure.is_none()) {
        let alone = site.ask(outcome.seed, CHARS).await;
        assert!(alone.failure.is_none(), "{alone:?}");
        assert_eq!(alone.text, outcome.text, "seed {}", outcome.seed);
    }
}

async fn one_replica_dies(proxy: Proxy) {
    let Some(mut site) = Site::open(proxy).await else { return };
    let outcomes = site.under_load(|replica| replica.program.signal("KILL")).await;
    let (lost, cut): (Vec<_>, Vec<_>) =
        outcomes.iter().filter(|outcome| outcome.failure.is_some()).partition(|outcome| outcome.text.is_empty());
    assert!(lost.is_empty(), "requests without a character were lost: {lost:?}");
    // Those whose text had begun cannot be helped; each replica ran two.
    assert!(cut.len() <= 4, "{cut:?}");
    for outcome in &cut {
        let code = outcome.failure.as_ref().unwrap().code();
        assert!([Code::Unavailable, Code::Internal, Code::Unknown, Code::Cancelled].contains(&code), "{outcome:?}");
    }
    assert_eq!(outcomes.len(), CLIENTS as usize);
    check_texts(&site, &outcomes).await;
}

async fn one_replica_is_told_to_end(proxy: Proxy) {
    let Some(mut site) = Site::open(proxy).await else { return };
    // Those that come while it drains are begun at once, many on connections of their own to it.
    let (channel, mut late) = (site.channel.clone(), JoinSet::new());
    let deed = |replica: &Server| {
        replica.program.signal("TERM");
        for seed in 0..CLIENTS {
            late.spawn(ask(channel.clone(), seed, 20));
        }
    };
    let outcomes = site.under_load(deed).await;
    let late = late.join_all().await;
    let failed: Vec<_> = late.iter().filter(|outcome| outcome.failure.is_some()).collect();
    assert!(failed.is_empty(), "of those that came late: {failed:?}");
    let failed: Vec<_> = outcomes.iter().filter(|outcome| outcome.failure.is_some()).collect();
    assert!(failed.is_empty(), "{failed:?}");
    // New ones, too, while it drains and when it is gone.
    for seed in 0..8 {
        let outcome = site.ask(seed, 20).await;
        assert!(outcome.failure.is_none(), "{outcome:?}");
    }
    assert!(site.replicas[0].program.wait().success());
    check_texts(&site, &outcomes).await;
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
async fn behind_nginx_a_replica_that_ends_loses_nothing() {
    one_replica_is_told_to_end(Proxy::Nginx).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_haproxy_a_replica_that_ends_loses_nothing() {
    one_replica_is_told_to_end(Proxy::Haproxy).await;
}
