//! `waggle keygen`: the public key by which others know this party.

use clap::Args;
use waggle::{KeyFile, identity};

use super::connect::IdentityArgs;
use super::{Error, out};

/// Prints the public key by which others know this party. Makes the key pair first if there is none. A server's owner
/// adds a client's key to the file of `serve --allow`; a client gives a server's key as `generate --server-key`.
#[derive(Args, Debug)]
pub(super) struct KeygenArgs {
    #[command(flatten)]
    identity: IdentityArgs,
}

pub(super) fn run(args: KeygenArgs) -> Result<(), Error> {
    let KeyFile { identity, path, made } = identity(args.identity.identity.as_deref())?;
    out::note(format_args!("{} {}", if made { "new key pair in" } else { "the key pair in" }, path.display()));
    out::line(identity.public())
}
