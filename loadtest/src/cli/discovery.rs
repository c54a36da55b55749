//! Finds the models of a server and selects those to measure.

use super::server::ServerArgs;
use crate::{
    client::{
        connection::ConnectOptions,
        models::{self, ModelInfo, ServerSoftware},
    },
    error::{Error, Result},
};

/// Server with its models.
#[derive(Clone)]
pub(super) struct Discovery {
    pub(super) connect: ConnectOptions,
    pub(super) software: Option<ServerSoftware>,
    /// All models of the server.
    pub(super) known: Vec<ModelInfo>,
    /// Models to measure.
    pub(super) models: Vec<ModelInfo>,
}

impl Discovery {
    /// Connects and selects the models called `names`. Without names, selects the server's only model, or every model if `all`.
    pub(super) async fn run(server: &ServerArgs, names: &[String], all: bool) -> Result<Self> {
        let connect = server.connect_options()?;
        let listed = match server.first_connection(&connect).await {
            Ok(connection) => models::list(&connect.address, &connection).await.map(|known| (known, connection)),
            Err(error) => Err(error),
        };
        let (known, connection) = match listed {
            Ok(listed) => listed,
            Err(error) => return Err(connect.diagnose(error).await),
        };
        let models = if all && names.is_empty() {
            known.clone()
        } else {
            models::select(if all { "--models" } else { "--model" }, names, &known)?
        };
        if models.is_empty() {
            return Err(Error::Setting("the server has no model".into()));
        }
        let software = models::fetch_software(&connection).await;
        Ok(Self { connect, software, known, models })
    }
}
