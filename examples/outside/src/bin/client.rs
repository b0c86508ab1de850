//! Generates text with the model of a server: `cargo run --release -p outside --bin client -- ADDRESS KEY "Once upon
//! a time"`.
//!
//! The server learns how long the prompt is and how many tokens are written, but no word of either. KEY is the
//! server's public key, which `server.rs` prints. The client remembers it for the next time.

use std::io::Write;

use waggle::{Client, Request, on_text};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The server's tokenizer runs in a separate process, which starts this program again.
    waggle::init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, key, prompt] = &arguments[..] else {
        return Err("give an address, the server's key and a prompt".into());
    };
    let client = Client::new(address).server_key(key.parse::<waggle::PublicKey>()?);
    let request = Request::after(&**prompt).tokens(12);
    let mut stream = on_text(|piece| {
        print!("{piece}");
        let _ = std::io::stdout().flush();
    });
    let written = client.generate_with(&request, &mut stream)?;
    let cost = &written.report.phases.decode.total;
    println!("\n{} bytes to the server, {} back", cost.bytes_client_to_server, cost.bytes_server_to_client);
    Ok(())
}
