//! `weir admin`: loads and unloads models of a running server.

use crate::cli::{flag_names::with_flag, model::runtime, output};
use clap::{ArgMatches, Command, FromArgMatches};
use serde_json::{Value, json};
use weir_client::{
    connection::{Client, ServerEndpoint},
    flags::{ADDRESS, AddressArgs, FlagNames, SERVER, SecretFlags, SecretSource, TlsArgs, both_given},
};
use weir_kernels::error::{Error, Result};
use weir_proto::v1::{ModelGeneration, model_generation::State};
use weir_server::config::AdminToken;

/// Loads, unloads and lists the models of a running server.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: AdminCommand,
}

#[derive(Debug, clap::Subcommand)]
enum AdminCommand {
    /// Load or reload a model. The new generation takes over once it is warm; the old one drains.
    Load {
        #[command(flatten)]
        server: Server,
        /// Checkpoint folder, relative to the server's models folder. Default: the folder that the model was loaded from.
        #[arg(value_name = "PATH")]
        path: Option<String>,
        /// Name to serve the model under. Default: the folder's name.
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
    },
    /// Unload a model. Its running requests finish first.
    #[command(allow_missing_positional = true)]
    Unload {
        #[command(flatten)]
        server: Server,
        /// Name of the model.
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Restart the `reset` window of `weir report`.
    ResetReport {
        #[command(flatten)]
        server: Server,
        /// Name of the model. Default: all models.
        #[arg(value_name = "NAME")]
        name: Option<String>,
    },
    /// List the models in memory.
    List {
        #[command(flatten)]
        server: Server,
    },
}

#[derive(Debug, clap::Args)]
struct Server {
    #[command(flatten)]
    address: AddressArgs,
    #[command(flatten)]
    token: AdminTokenArgs,
    #[command(flatten)]
    tls: TlsArgs,
    /// Print JSON.
    #[arg(long, env = "WEIR_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,
}

/// The flags of the admin token.
const ADMIN_TOKEN: SecretFlags = SecretFlags {
    text: FlagNames { id: "admin_token", flag: "--admin-token", variable: "WEIR_ADMIN_TOKEN" },
    file: FlagNames { id: "admin_token_file", flag: "--admin-token-file", variable: "WEIR_ADMIN_TOKEN_FILE" },
};

/// Flags of the admin token. A flag overrides the variables.
#[derive(Debug)]
struct AdminTokenArgs {
    source: Option<SecretSource>,
}

impl clap::Args for AdminTokenArgs {
    fn augment_args(command: Command) -> Command {
        let help =
            "Admin token of the server. Prefer the environment variable: other users can see command-line arguments";
        command.args(ADMIN_TOKEN.args("TOKEN", help, "File that contains the admin token"))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for AdminTokenArgs {
    fn from_arg_matches(matches: &ArgMatches) -> std::result::Result<Self, clap::Error> {
        Ok(Self { source: ADMIN_TOKEN.source(matches) })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> std::result::Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Server {
    async fn connect(&self) -> Result<Client> {
        let token = match &self.token.source {
            Some(SecretSource::Text { origin, secret }) => {
                AdminToken::new(secret.value()).map_err(|why| format!("{origin}: {why}"))
            }
            Some(SecretSource::File { origin, path }) => {
                AdminToken::read(path).map_err(|why| format!("{origin}: {why}"))
            }
            Some(SecretSource::Both { text, file }) => Err(both_given(text, file)),
            None => {
                Err("--admin-token-file (or WEIR_ADMIN_TOKEN): expected the server's admin token, found none".into())
            }
        };
        let token = token.map_err(Error::Setting)?;
        let missing = || Error::Setting(format!("{ADDRESS} or {SERVER}: expected the address of a server, found none"));
        let (argument, address) = self.address.given().map_err(Error::Setting)?.ok_or_else(missing)?;
        let endpoint = self.tls.endpoint(argument, address).map_err(Error::Setting)?;
        ServerEndpoint { key: Some(token.value()), ..endpoint }.connect().await
    }
}

/// Returns the error of a call with the name of the argument that names a model.
fn named(error: Error) -> Error {
    with_flag(with_flag(error, "model", "NAME"), "name", "NAME")
}

/// Runs the command. Fails if the server cannot be reached or rejects the call.
pub fn run(args: Args) -> Result<()> {
    runtime()?.block_on(async {
        match args.command {
            AdminCommand::Load { mut server, path, name } => {
                let path = path.or_else(|| server.address.take_other());
                let answer = server.connect().await?.load_model(path, name).await;
                let (loaded, draining) =
                    answer.map_err(|error| with_flag(with_flag(error, "path", "PATH"), "name", "--name"))?;
                if server.json {
                    return output::json(&json!({ "loaded": shown(&loaded), "draining": draining }));
                }
                let old = draining.map(|number| format!("; generation {number} drains")).unwrap_or_default();
                output::write(&format!("{} is served by generation {}{old}\n", loaded.name, loaded.number))
            }
            AdminCommand::Unload { server, name } => {
                let number = server.connect().await?.unload_model(name.clone()).await.map_err(named)?;
                if server.json {
                    return output::json(&json!({ "name": name, "draining": number }));
                }
                output::write(&format!("{name}: generation {number} drains\n"))
            }
            AdminCommand::ResetReport { mut server, name } => {
                let name = name.or_else(|| server.address.take_other());
                let models = server.connect().await?.reset_report(name).await.map_err(named)?;
                if server.json {
                    return output::json(&json!({ "models": models }));
                }
                output::write(&format!("report window restarted: {}\n", models.join(", ")))
            }
            AdminCommand::List { server } => {
                let all = server.connect().await?.list_generations().await?;
                if server.json {
                    output::json(&all.iter().map(shown).collect())
                } else {
                    all.iter().try_for_each(print_model)
                }
            }
        }
    })
}

/// Returns the fields of a generation that people and programs read.
fn shown(generation: &ModelGeneration) -> Value {
    let ModelGeneration { name, number, path, sha256, running, waiting, kv_bytes, .. } = generation;
    json!({
        "name": name,
        "generation": number,
        "state": state_name(generation),
        "path": path,
        "sha256": sha256,
        "running": running,
        "waiting": waiting,
        "kv_bytes": kv_bytes,
    })
}

fn state_name(generation: &ModelGeneration) -> &'static str {
    match generation.state() {
        State::Serving => "serving",
        State::Draining => "draining",
        State::Broken => "broken",
        State::Unspecified => "unknown",
    }
}

fn print_model(generation: &ModelGeneration) -> Result<()> {
    let ModelGeneration { name, number, path, running, waiting, kv_bytes, .. } = generation;
    let state = state_name(generation);
    output::write(&format!(
        "{name}\tgeneration {number}\t{state}\t{running} running, {waiting} waiting, {kv_bytes} bytes\t{path}\n"
    ))
}
