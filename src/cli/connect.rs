//! How a client reaches its server.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use clap::Args;
use net::tcp::{self, ConnectOptions};
use net::{Channel, Link, NetError, PublicKey, Role, await_admission, tls};
use session::Expectation;
use session::party::{Caller, ClientOptions, ClientSession, Terms};
use tokenizer::ChatTemplate;

use super::options::{LINKS, LinkArg, link_between_processes, seconds};
use super::progress::harmless;
use super::trust::{IdentityArgs, ServerTrust};
use super::{Error, out};

/// The most characters that are shown of a server's chat template, and of each token that it names.
const SHOWN_TEMPLATE: usize = 8192;
const SHOWN_TOKEN: usize = 80;

/// The server, and what it must be.
#[derive(Args, Clone, Debug)]
pub(super) struct ConnectArgs {
    /// Address of the server; without a port, 7411.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7411", value_parser = with_port)]
    connect: String,
    /// Insist on this model: a `config.json` (shape and end tokens), a directory with one (and with its tokenizer, if
    /// there is one, and its chat template or none), the name of a bundled model, or a fingerprint (`waggle-model:`
    /// and digits). A changed model of a known server is accepted if this names it.
    #[arg(long, value_name = "FILE|HASH")]
    expect: Option<String>,
    /// Slow this party's messages down to those of a network; the server must do the same.
    #[arg(long, value_name = LINKS, value_parser = link_between_processes, default_value = "loopback")]
    pub(super) link: LinkArg,
    /// Give up on a server that is silent for this many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "120")]
    timeout: Duration,
    /// Give up on a server that cannot be reached for this many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "30")]
    connect_timeout: Duration,
    #[command(flatten)]
    identity: IdentityArgs,
    /// Trust the server with this public key, which its owner's `waggle keygen` or `serve` prints. It is remembered
    /// under the address, in `known_servers` beside the default identity.
    #[arg(long, value_name = "KEY")]
    server_key: Option<PublicKey>,
    /// Encrypt nothing and ask for no key, for measurements; the server must do the same. A text is unverified until
    /// it has ended: what was changed on its way is noticed then, after it was printed.
    #[arg(long, conflicts_with_all = ["identity", "server_key"])]
    insecure_plaintext: bool,
}

/// The port of a server where none is named.
const PORT: u16 = 7411;

/// `address` with a port. One in figures has brackets only with a port.
fn with_port(address: &str) -> Result<String, Infallible> {
    let has_port = address.parse::<SocketAddr>().is_ok()
        || address.parse::<IpAddr>().is_err()
            && address.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
    Ok(match address.parse::<IpAddr>() {
        _ if has_port => address.to_owned(),
        Ok(ip) => SocketAddr::new(ip, PORT).to_string(),
        Err(_) => format!("{address}:{PORT}"),
    })
}

/// Says before a text what a link without encryption does not hold.
pub(super) fn warn_of_plaintext(is_plaintext: bool) {
    if is_plaintext {
        out::note("--insecure-plaintext: nothing is encrypted, and the text is unverified until it has ended");
    }
}

/// What is known of a server, and the key that it has proved.
type Proved = (ServerTrust, PublicKey);

impl ConnectArgs {
    /// Whether nothing is encrypted.
    pub(super) fn is_plaintext(&self) -> bool {
        self.insecure_plaintext
    }

    /// Opens a session under `terms`, with what is `wanted` of the server. A chat template that was not met before is
    /// shown.
    pub(super) fn open(&self, terms: &Terms, wanted: ClientOptions) -> Result<ClientSession, Error> {
        let expected = self.expect.as_deref().map(Expectation::named).transpose()?;
        let (link, server) = self.link()?;
        let channel = Channel::new(Role::Client, self.link.wrap(link)?);
        let options =
            ClientOptions { expected: expected.as_ref().and_then(|expected| expected.spec.as_ref()), ..wanted };
        let caller = Caller { key: server.as_ref().map(|(_, key)| key.to_string()) };
        let session = ClientSession::open(channel, &caller, terms, &options)?;
        let met = session.model().fingerprint()?;
        if let Some(expected) = &expected {
            expected.fingerprint.expect(&met)?;
        }
        if let Some((mut trust, key)) = server {
            let news = trust.met(key, &met, expected.is_some_and(|expected| expected.fingerprint.names(&met)))?;
            let template = session.model().chat_template()?.filter(|_| news);
            template.iter().for_each(|template| out::note(shown(&self.connect, template)));
        }
        Ok(session)
    }

    /// A link to the server, which has proved a trusted key (`None`: without encryption) and lets this client in.
    fn link(&self) -> Result<(Box<dyn Link>, Option<Proved>), Error> {
        let options = ConnectOptions { connect_timeout: self.connect_timeout, read_timeout: self.timeout };
        let address = self.connect.as_str();
        if self.insecure_plaintext {
            let mut link = tcp::connect(address, options)?;
            wait_for_turn(&mut link)?;
            return Ok((Box::new(link), None));
        }
        let identity = self.identity.open()?.0;
        let mut trust = ServerTrust::of(address, self.server_key, identity.public())?;
        let keys = trust.keys();
        let mut link =
            tls::connect(address, &identity, move |key| keys.contains(key), options).map_err(
                |error| match error {
                    NetError::Untrusted { key } => trust.refusal(key),
                    source @ NetError::Closed { .. } => Error::NoAnswer { source },
                    error => error.into(),
                },
            )?;
        trust.proved()?;
        wait_for_turn(&mut link)?;
        let key = link.peer_key();
        Ok((Box::new(link), Some((trust, key))))
    }
}

/// What a user sees of a server's chat template: it adds to the words, so it has a say in how long answers are.
fn shown(address: &str, template: &ChatTemplate) -> String {
    let ChatTemplate { template, bos_token, eos_token } = template;
    let cut = |text: &str, most: usize| match text.chars().count().checked_sub(most) {
        None | Some(0) => harmless(text),
        Some(more) => {
            let start: String = text.chars().take(most).collect();
            format!("{} ... and {more} characters more", harmless(&start))
        }
    };
    let [begins, ends] = [bos_token, eos_token].map(|token| cut(token, SHOWN_TOKEN));
    format!(
        "the server at {address} has its chat template put these words around yours; --template FILE takes your \
         own\nbos_token: {begins}\neos_token: {ends}\n{}",
        cut(template, SHOWN_TEMPLATE)
    )
}

/// Waits until the server has a place for this client, and says so to the user.
fn wait_for_turn(link: &mut dyn Link) -> Result<(), Error> {
    let mut last = None;
    let mut on_busy = |place| {
        // The server repeats itself as a sign of life.
        if last.replace(place) != Some(place) {
            out::note(format_args!("the server is busy: you are number {place}"));
        }
    };
    Ok(await_admission(link, &mut on_busy)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_a_port_has_the_usual_one() {
        for (given, meant) in [
            ("localhost", "localhost:7411"),
            ("localhost:80", "localhost:80"),
            ("10.0.0.1", "10.0.0.1:7411"),
            ("10.0.0.1:80", "10.0.0.1:80"),
            ("::1", "[::1]:7411"),
            ("[::1]", "[::1]:7411"),
            ("[::1]:80", "[::1]:80"),
        ] {
            assert_eq!(with_port(given), Ok(meant.to_owned()), "{given}");
        }
    }
}
