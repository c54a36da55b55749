//! `weir admin`: models loaded and unloaded while a server runs.

use super::{output, reach::TlsArgs, runtime};
use crate::{
    config::Token,
    error::{Error, Result},
    serve::client::{Loaded, Operator},
};
use serde_json::json;
use std::path::PathBuf;

/// Loads, unloads and lists the models of a running server.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    order: Order,
}

#[derive(Debug, clap::Subcommand)]
enum Order {
    /// Load a model, or load one again: the new generation serves as soon as it is warm, the old one drains.
    Load {
        #[command(flatten)]
        server: Server,
        /// The checkpoint's folder, relative to the server's models folder; if not given, the model is loaded again from
        /// where it came from.
        #[arg(value_name = "PATH")]
        path: Option<String>,
        /// The name to serve it under; the folder's own if not given.
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
    },
    /// Take a model out of service; its last requests go on.
    Unload {
        #[command(flatten)]
        server: Server,
        /// The model's name.
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Begin the window `reset` of `weir report` anew.
    ResetReport {
        #[command(flatten)]
        server: Server,
        /// The model's name; all models if not given.
        #[arg(value_name = "NAME")]
        name: Option<String>,
    },
    /// List what is in memory.
    List {
        #[command(flatten)]
        server: Server,
    },
}

#[derive(Debug, clap::Args)]
struct Server {
    /// The server, as host:port or a URL.
    #[arg(value_name = "ADDRESS")]
    address: String,
    /// The server's token; best in the environment, for other users may see a command's arguments.
    #[arg(long, value_name = "TOKEN", env = "WEIR_ADMIN_TOKEN", hide_env_values = true)]
    admin_token: Option<String>,
    /// A file with the server's token.
    #[arg(long, value_name = "FILE", env = "WEIR_ADMIN_TOKEN_FILE")]
    admin_token_file: Option<PathBuf>,
    #[command(flatten)]
    tls: TlsArgs,
    /// Print JSON.
    #[arg(long, env = "WEIR_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,
}

impl Server {
    async fn connect(&self) -> Result<Operator> {
        let token = match (&self.admin_token, &self.admin_token_file) {
            (Some(token), _) => Token::new(token),
            (None, Some(file)) => Token::read(file).map_err(|why| format!("{}: {why}", file.display())),
            (None, None) => Err("a token is needed: WEIR_ADMIN_TOKEN or --admin-token-file".into()),
        };
        Operator::connect(&self.tls.reach(&self.address)?, &token.map_err(Error::Setting)?).await
    }
}

/// Runs the command.
///
/// # Errors
/// The server is not there, or refuses.
pub fn run(args: Args) -> Result<()> {
    runtime()?.block_on(async {
        match args.order {
            Order::Load { server, path, name } => {
                let (loaded, draining) = server.connect().await?.load(path, name).await?;
                if server.json {
                    return output::json(&json!({ "loaded": loaded, "draining": draining }));
                }
                let old = draining.map(|number| format!("; generation {number} drains")).unwrap_or_default();
                output::write(&format!("{} is served by generation {}{old}\n", loaded.name, loaded.generation))
            }
            Order::Unload { server, name } => {
                let number = server.connect().await?.unload(name.clone()).await?;
                if server.json {
                    return output::json(&json!({ "name": name, "draining": number }));
                }
                output::write(&format!("{name}: generation {number} drains\n"))
            }
            Order::ResetReport { server, name } => {
                let models = server.connect().await?.reset_report(name).await?;
                if server.json {
                    return output::json(&json!({ "models": models }));
                }
                output::write(&format!("begins anew: {}\n", models.join(", ")))
            }
            Order::List { server } => {
                let all = server.connect().await?.list().await?;
                if server.json { output::json(&json!(all)) } else { all.iter().try_for_each(tell) }
            }
        }
    })
}

fn tell(loaded: &Loaded) -> Result<()> {
    let Loaded { name, generation, state, path, running, waiting, kv_bytes, .. } = loaded;
    output::write(&format!(
        "{name}\tgeneration {generation}\t{state}\t{running} running, {waiting} waiting, {kv_bytes} bytes\t{path}\n"
    ))
}
