//! The options by which a client reaches its server, and notes about the server to the user.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use waggle::program::with_port;
use waggle::{Allow, Client, Event, LOOKS, Network, Proof, Terms, offer_note, template_note};
use waggle_net::PublicKey;

use super::options::{LINKS, link_between_processes, seconds, set};
use super::out;

/// Which key pair this party has.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct IdentityArgs {
    /// File with this party's key pair; made if it is not there [default: `identity` in $WAGGLE_HOME,
    /// $XDG_CONFIG_HOME/waggle or $HOME/.config/waggle].
    #[arg(long, value_name = "FILE")]
    pub(super) identity: Option<PathBuf>,
}

impl IdentityArgs {
    /// The key pair by which this party proves who it is.
    pub(super) fn proof(&self, plaintext: bool) -> Proof {
        match &self.identity {
            _ if plaintext => Proof::Plaintext,
            Some(file) => Proof::File(file.clone()),
            None => Proof::User,
        }
    }
}

/// Who this party is, and whom it lets in.
#[derive(Args, Clone, Debug)]
pub(super) struct DoorArgs {
    #[command(flatten)]
    identity: IdentityArgs,
    /// Let in the parties whose keys stand in this file, one on each line. The file is read anew for every party
    /// [default: `allowed_clients` beside the default identity]. This party's own key is let in as well.
    #[arg(long, value_name = "FILE", conflicts_with = "allow_any")]
    allow: Option<PathBuf>,
    /// Let in every party that proves any key.
    #[arg(long)]
    allow_any: bool,
    /// Encrypt nothing and let in everybody, for measurements; the others must be told the same.
    #[arg(long, conflicts_with_all = ["identity", "allow", "allow_any"])]
    insecure_plaintext: bool,
}

impl DoorArgs {
    /// The parties to let in.
    pub(super) fn allow(&self) -> Allow {
        match &self.allow {
            _ if self.allow_any => Allow::Any,
            Some(file) => Allow::List(file.clone()),
            None => Allow::Known,
        }
    }

    /// The key pair by which this party proves who it is.
    pub(super) fn proof(&self) -> Proof {
        self.identity.proof(self.insecure_plaintext)
    }

    pub(super) fn is_plaintext(&self) -> bool {
        self.insecure_plaintext
    }
}

/// How long a party may take, and how many may come before they have proved a key.
#[derive(Args, Clone, Debug)]
pub(super) struct BusyArgs {
    /// End a session after this many seconds. The client of a conversation is told.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "3600")]
    pub(super) session_limit: Duration,
    /// Give up on a party that has not proved its key after this many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "10")]
    pub(super) handshake_timeout: Duration,
    /// Most connections at once that have not proved a key; those beyond are dropped before anything can be said to
    /// them, so the other end reads that the connection was closed.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(super) max_idle: usize,
    /// Most such connections from one address (IPv6: one network).
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub(super) max_idle_per_address: usize,
}

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
    /// The directory of the model that this party has itself, where the server says that parts of it are public
    /// (`serve --base`, `serve --public`). A directory in which one of these parts differs is refused before anything
    /// else is sent. The server learns digests of all parts of the directory.
    #[arg(long, value_name = "DIR")]
    base: Option<String>,
    /// Slow this party's messages down to those of a network; the server must do the same.
    #[arg(long, value_name = LINKS, value_parser = link_between_processes, default_value = "loopback")]
    link: Network,
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

/// Warns, before a text, of the risks of a link without encryption.
pub(super) fn warn_of_plaintext(is_plaintext: bool) {
    if is_plaintext {
        out::note("--insecure-plaintext: nothing is encrypted, and the text is unverified until it has ended");
    }
}

impl ConnectArgs {
    /// The client with these options under `terms`. Warns the user if nothing is encrypted.
    pub(super) fn client(&self, terms: Terms) -> Client {
        warn_of_plaintext(self.insecure_plaintext);
        let client = Client::new(&*self.connect).terms(terms).network(self.link);
        let client = client.proof(self.identity.proof(self.insecure_plaintext));
        set!(client, self => expect, base, server_key, timeout, connect_timeout)
    }
}

/// Writes a note if the user should know of `event`.
pub(super) fn note(event: &Event<'_>) {
    match event {
        Event::Waits => out::note("the server is busy: this client waits"),
        Event::NoSandbox(why) => out::note(format_args!(
            "the server's tokenizer runs under limits alone: there is no sandbox here ({why})"
        )),
        Event::Template(address, template) => {
            out::note(format_args!("{}\n--template FILE takes your own", template_note(address, template).trim_end()))
        }
        Event::Offer(offer, text) => {
            out::note(format_args!("{}; --no-public-prefix does without", offer_note(offer, text)));
        }
        Event::Rereads => out::note(
            "the chat template changes what was said before: the model reads the conversation from its beginning",
        ),
        Event::Looks => out::note(LOOKS),
        _ => (),
    }
}
