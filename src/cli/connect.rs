//! How a client reaches its server.

use std::path::Path;
use std::time::Duration;

use clap::Args;
use model::party::{Caller, Opened, Terms, Wishes};
use model::{ModelSpec, bundled, bundled_names};
use net::tcp::{self, ConnectOptions};
use net::{Channel, Role};

use super::Error;
use super::options::{LINKS, LinkArg, link_between_processes, seconds};

/// The server, and what it must be.
#[derive(Args, Clone, Debug)]
pub(super) struct ConnectArgs {
    /// Address of the server.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7411")]
    connect: String,
    /// Insist on the shape of this `config.json` (or of the one in this directory, or of this bundled model).
    #[arg(long, value_name = "CONFIG")]
    expect: Option<String>,
    /// Slow what this party sends to a network; the server must do the same.
    #[arg(long, value_name = LINKS, value_parser = link_between_processes, default_value = "loopback")]
    pub(super) link: LinkArg,
    /// Give up on a server that is silent for this many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "120")]
    timeout: Duration,
    /// Give up on a server that cannot be reached for this many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "30")]
    connect_timeout: Duration,
}

impl ConnectArgs {
    /// Opens a session under `terms`, with or without the server's tokenizer.
    pub(super) fn open(&self, terms: &Terms, tokenizer: bool) -> Result<Opened, Error> {
        let expected = self.expect.as_deref().map(expected_shape).transpose()?;
        let timeouts = ConnectOptions { connect_timeout: self.connect_timeout, read_timeout: self.timeout };
        let link = tcp::connect(self.connect.as_str(), timeouts)?;
        let channel = Channel::new(Role::Client, self.link.wrap(link)?);
        let wishes = Wishes { expected: expected.as_ref(), tokenizer };
        Ok(Opened::open(channel, &Caller::default(), terms, &wishes)?)
    }
}

fn expected_shape(name: &str) -> Result<ModelSpec, Error> {
    let path = Path::new(name);
    if !path.exists() && bundled_names().any(|bundled| bundled == name) {
        return Ok(bundled(name)?.spec);
    }
    Ok(ModelSpec::open(path)?)
}
