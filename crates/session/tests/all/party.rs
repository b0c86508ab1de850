//! A session from Rust gives the text of the plaintext and equal ledgers, and a client reports a lying server by a
//! typed error.

use std::thread;
use std::time::Duration;

use ndarray::s;
use waggle_engine::Float;
use waggle_model::{GenerateOptions, Input, Lengths, Next, NoHooks, Reveal, Sampler, bundled, generate};
use waggle_net::{Channel, Handshake, NetError, Role, memory_pair};
use waggle_session::Error;
use waggle_session::party::{
    ClientOptions, ClientSession, Event, Flow, Limits, ModelServer, PROTOCOL, Peer, Prompt, Request, SessionPlan,
    Terms, nobody,
};

use crate::outcome::untimed;
use crate::parties::{session, watched};
use crate::support::{greedy, load};

const PROMPT: [u32; 4] = [30, 27, 25, 17];

fn channels() -> (Channel, Channel) {
    let (client, server) = memory_pair(Duration::from_secs(60));
    (Channel::new(Role::Client, client), Channel::new(Role::Server, server))
}

#[test]
fn a_session_gives_the_plaintext_and_three_equal_ledgers() {
    let hosted = ModelServer::builder().load(bundled("shakespeare-llama").unwrap()).unwrap();
    let terms = Terms::default();
    let options =
        ClientOptions { tokenizer: true, expected: Some(&hosted.public().spec), ..ClientOptions::default() };
    let (client, server) = channels();
    let (client, server) = thread::scope(|scope| {
        let server =
            scope.spawn(|| hosted.serve(server, &Peer::default(), &terms, &Limits::default(), &mut nobody).unwrap());
        let session = ClientSession::open(client, &Peer::default(), &terms, &options).unwrap();
        assert_eq!(session.model(), hosted.public());
        let mut sampler = Sampler::greedy();
        let client = session.stopping_at_eos().generate(&PROMPT, 2, Next::Pick(&mut sampler), &mut nobody).unwrap();
        (client, server.join().unwrap())
    });
    let truth = greedy(&load(bundled("shakespeare-llama").unwrap()), &PROMPT, 2);
    assert_eq!(client.generation.tokens, truth.tokens);
    assert_eq!((server.generation.tokens.len(), server.generation.logits.as_ref()), (0, None));
    assert_eq!((client.generation.count, server.generation.count, server.prompt_tokens), (2, 2, 4));

    let request = Request { stop_at_eos: true, ..Lengths { prompt: 4, tokens: 2 }.into() };
    let planned = SessionPlan::new(hosted.public(), &terms).options(options).request(request);
    let planned = planned.run(&mut nobody).unwrap().outcome;
    assert_eq!(untimed(&client), untimed(&server));
    assert_eq!(untimed(&client), untimed(&planned));
    assert_eq!((client.per_token.len(), planned.per_token.len()), (1, 1));
    assert_eq!(client.per_token[0].flows, planned.per_token[0].flows);
}

/// Several texts, of which the shorter has padding before it.
#[test]
fn a_client_that_scores_its_prompt_learns_the_logits_of_every_position() {
    let hosted = ModelServer::builder().load(bundled("shakespeare-llama").unwrap()).unwrap();
    let clear = load(bundled("shakespeare-llama").unwrap());
    for preprocess in [false, true] {
        let mut terms = Terms::default();
        terms.protocol.preprocess = preprocess;
        let whole = Prompt::side_by_side(&[PROMPT[..].into(), PROMPT[1..].into()], None, false).unwrap();
        let mut shown = 0;
        let mut count = |event: Event<'_>| {
            if let Event::Shown(positions) = event {
                shown += positions;
            }
            Flow::GoOn
        };
        let (client, server) = watched(&hosted, &terms, &Limits::default(), &mut count, |session| {
            session.scoring_prompt().generate(whole, 2, Next::Pick(&mut Sampler::greedy()), &mut nobody)
        });
        let (client, server) = (client.unwrap(), server.unwrap());
        assert_eq!(server.generation.logits, None);
        let logits = client.generation.logits.as_ref().unwrap();
        assert_eq!(logits.nrows(), 2 * (4 + 1));
        for (text, padding) in [0, 1].into_iter().enumerate() {
            let ids = &PROMPT[padding..];
            let options = GenerateOptions { tokens: 2, all_positions: true, ..GenerateOptions::default() };
            let mut engine = Float::default();
            let next = Next::Pick(&mut Sampler::greedy());
            let truth = generate(&mut engine, &clear, Input::known(ids), &options, next, &mut NoHooks).unwrap();
            let found = logits.slice(s![text * 5 + padding..text * 5 + 5, ..]);
            let off = (&found - truth.logits.as_ref().unwrap()).iter().fold(0f32, |most, d| most.max(d.abs()));
            assert!(off < 0.02, "{off}");
        }
        let request =
            Request { all_positions: true, padded: true, texts: 2, ..Lengths { prompt: 4, tokens: 2 }.into() };
        assert_eq!(request.positions(), 2 * 5);
        assert_eq!(shown, 2 * 5);
        let planned = SessionPlan::new(hosted.public(), &terms).request(request).run(&mut nobody).unwrap().outcome;
        assert_eq!(untimed(&client), untimed(&planned));
        assert_eq!(untimed(&client), untimed(&server));
    }
    let tokens = Terms { reveal: Reveal::Token, ..Terms::default() };
    let (client, _) = session(&hosted, &tokens, &Limits::default(), |session| {
        session.scoring_prompt().generate(&PROMPT, 2, Next::Pick(&mut Sampler::greedy()), &mut nobody)
    });
    assert!(matches!(client, Err(Error::PromptLogits)), "{client:?}");
}

#[test]
fn requests_beyond_the_limits_are_refused_on_both_sides() {
    let hosted = ModelServer::builder().load(bundled("shakespeare-gpt2").unwrap()).unwrap();
    let terms = Terms::default();
    let limits = Limits { lengths: Lengths { prompt: 3, tokens: 9 }, drafted: 0, ..Limits::NONE };
    let (client, server) = session(&hosted, &terms, &limits, |session| {
        assert_eq!(session.model().tokenizer, None, "it was not wanted");
        session.generate(&PROMPT, 2, Next::Pick(&mut Sampler::greedy()), &mut nobody)
    });
    match client {
        Err(Error::Refused { reason }) => assert!(reason.contains("4 tokens of a prompt"), "{reason}"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(server, Err(Error::Limit { got: 4, limit: 3, .. })));
    let request = |prompt, tokens| Request::from(Lengths { prompt, tokens });
    let spec = &hosted.public().spec;
    assert!(request(3, 9).validate(spec, &terms, &limits).is_ok());
    assert!(matches!(request(3, 10).validate(spec, &terms, &limits), Err(Error::Limit { got: 10, limit: 9, .. })));
    assert!(matches!(
        request(usize::MAX, 2).validate(spec, &terms, &Limits::NONE),
        Err(Error::Model(waggle_model::Error::TooLong { limit: 256, .. }))
    ));
    assert!(matches!(request(0, 1).validate(spec, &terms, &limits), Err(Error::Model(waggle_model::Error::Nothing))));
}

/// The error of a client that meets a server that shakes hands and then behaves as `lie` does.
fn client_against(lie: impl FnOnce(&mut Channel) -> Result<(), NetError> + Send) -> Error {
    let (client, mut server) = channels();
    thread::scope(|scope| {
        scope.spawn(move || {
            let hello = Handshake::new().agree("protocol", format!("{PROTOCOL:04}")).agree("ot", "silent");
            let hello = hello
                .agree("preprocess", false)
                .agree("packing", "auto")
                .agree("masks", "seeded")
                .tell("own-cores", "40")
                .tell("kernels", "portable")
                .tell("cores", "")
                .tell("link", "")
                .tell("imitated-link", "");
            hello.agree("reveal", "logits").agree("policy", "full").run(&mut server).unwrap();
            // The client may hang up in the middle of the lie.
            let _ = lie(&mut server);
        });
        let opened = ClientSession::open(client, &Peer::default(), &Terms::default(), &ClientOptions::default());
        let generated = opened.and_then(|session| {
            let mut sampler = Sampler::greedy();
            session.generate(&PROMPT, 2, Next::Pick(&mut sampler), &mut nobody)
        });
        generated.expect_err("the server lies")
    })
}

#[test]
fn a_server_that_lies_gets_a_typed_error() {
    let spec = bundled("shakespeare-gpt2").unwrap().spec;
    let honest = serde_json::to_string(&spec).unwrap();
    let weights = spec.weight_specs().len();
    let huge = honest.replace("\"n_layer\":4", "\"n_layer\":4000000000");
    assert_ne!(huge, honest);
    for (shape, words) in [("{}", "model_type"), ("\u{0}\u{1}", "no model"), (&*huge, "n_layer")] {
        let error = client_against(|server| {
            server.send("handshake/shape", shape.as_bytes())?;
            server.recv("never", 1).map(|_| ())
        });
        let Error::Net(NetError::Malformed { step: "handshake/shape", what }) = error else { panic!("{error:?}") };
        assert!(what.contains(words), "{what}");
    }
    type Lie<'a> = (&'a str, Box<dyn FnOnce(&mut Channel) -> Result<(), NetError> + Send + 'a>);
    let scales = vec![16u8; weights];
    let opening = |server: &mut Channel, scales: &[u8], tokenizer: &[u8]| {
        server.send("handshake/shape", honest.as_bytes())?;
        server.send("handshake/scales", scales)?;
        server.send("handshake/tokenizer", tokenizer)
    };
    let lies: [Lie; 5] = [
        ("has 16385 bytes", Box::new(|server| server.send("handshake/shape", &[b' '; 16385]))),
        ("fractional bits", Box::new(|server| opening(server, &vec![40; weights], b""))),
        ("handshake/scales` has", Box::new(|server| opening(server, &scales[1..], b""))),
        ("handshake/tokenizer` has 2 bytes, expected 0", Box::new(|server| opening(server, &scales, b"{}"))),
        (
            "the server refuses: no [2J way",
            Box::new(|server| {
                opening(server, &scales, b"")?;
                server.recv_up_to("handshake/request", 26)?;
                server.send("handshake/verdict", b"no\x1b[2J\x07way")
            }),
        ),
    ];
    for (words, lie) in lies {
        let error = client_against(move |server| {
            lie(server)?;
            server.recv("never", 1).map(|_| ())
        });
        let text = error.to_string();
        assert!(text.contains(words) && !text.contains(char::is_control), "{words}: {text}");
    }
    let error = client_against(|_| Ok(()));
    assert!(matches!(error, Error::Net(NetError::Closed { step: "handshake/shape" })), "{error:?}");
}
