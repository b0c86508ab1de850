//! Serves a model: `cargo run --release -p outside --bin server -- MODEL [ADDRESS]`. MODEL is a Hugging Face directory
//! or a bundled name.
//!
//! The server lets in every client that proves that it has a key. The first Ctrl-C lets running sessions finish, and
//! a second one ends the server at once.

use waggle::{Allow, Server};

fn main() -> Result<(), waggle::Error> {
    let mut arguments = std::env::args().skip(1);
    let model = arguments.next().unwrap_or_else(|| waggle::DEFAULT_MODEL.into());
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:7411".into());
    let server = Server::of(model)
        .listen(address)
        .allow(Allow::Any)
        // The number of positions that a key may read and generate in all. Each position tells something about the
        // weights.
        .max_reveals(100_000)
        .max_tokens(256)
        .bind()?
        .until_signalled()?;
    if let Some(key) = server.key() {
        println!("serving {} on {} with the key {key}", server.model(), server.address());
    }
    server.run()
}
