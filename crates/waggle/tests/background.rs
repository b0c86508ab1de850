//! A server and a client in one process, and conversations in threads of their own.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use waggle::{
    ChatOptions, Client, DEFAULT_MODEL, Event, Flow, Proof, Role, Server, Template, Terms, nobody, on_text,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The server's tokenizer runs in a process that starts this program again, so the test is a program of its own.
    waggle::init();
    let server = Server::of(DEFAULT_MODEL).listen("127.0.0.1:0").proof(Proof::Plaintext).bind()?;
    let (address, stop) = (server.address().to_string(), server.stop());
    let serving = thread::spawn(|| server.run());
    let client = Client::new(address).proof(Proof::Plaintext).terms(Terms::default().preprocess(true));
    let options = ChatOptions::default().tokens(4).turn_tokens(16).template(Template::Raw);
    let options = options.check(DEFAULT_MODEL.to_owned());

    let chat = client.chat(options.clone())?.in_background()?;
    // Correlations of the next turn come while the program does other things, within ten minutes on any machine.
    let mut looks = 0..60_000;
    while chat.prepared().tokens == 0 {
        looks.next().ok_or("nothing was prepared")?;
        thread::sleep(Duration::from_millis(10));
    }
    let heard = Arc::<Mutex<String>>::default();
    let pieces = heard.clone();
    let first =
        chat.say("Once upon a time", Box::new(on_text(move |piece| pieces.lock().unwrap().push_str(piece))))?;
    assert_eq!((&*heard.lock().unwrap(), first.tokens.len()), (&first.text, 4));
    // A turn that is refused, and one that is given up before it begins, leave the conversation as it is.
    assert!(chat.say("", Box::new(nobody)).is_err());
    assert!(chat.say("Then", Box::new(|_: Event<'_>| Flow::Abandon)).is_err());
    let said: Vec<_> = chat.transcript().into_iter().map(|said| (said.role, said.text)).collect();
    assert_eq!(said, [(Role::User, "Once upon a time".to_owned()), (Role::Assistant, first.text.clone())]);
    chat.reset()?;
    let again = chat.say("Once upon a time", Box::new(nobody))?;
    assert_eq!((again.conversation, &again.text), (1, &first.text));
    let report = chat.close()?.ok_or("the session was over")?;
    assert_eq!((report.turns.len(), report.report.check.map(|check| check.token_agreement)), (2, Some(1.0)));
    assert!(chat.close()?.is_none() && chat.say("And", Box::new(nobody)).is_err());

    // The panic of a watcher is the caller's. The session is over, and the server goes on.
    let chat = client.chat(options)?.in_background()?;
    let watch = |event: Event<'_>| match event {
        Event::Text(_) => resume_unwind(Box::new("a watcher")),
        _ => Flow::GoOn,
    };
    let panic = catch_unwind(AssertUnwindSafe(|| chat.say("Once", Box::new(watch))));
    assert_eq!(panic.err().and_then(|panic| panic.downcast_ref::<&str>().copied()), Some("a watcher"));
    drop(chat);
    stop.stop();
    Ok(serving.join().map_err(|_| "the server panicked")??)
}
