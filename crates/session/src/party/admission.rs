//! The one check that every session passes before it is planned, asked for or served.

use waggle_model::ModelSpec;
use waggle_protocols::HelperDeals;

use super::opening::{MAX_KEPT, SessionKind};
use super::{Limits, Request, Terms, chat};
use crate::Error;
use crate::pool::PoolError;

impl SessionKind {
    /// Refuses a session of this kind that the parties could not have, or that a server with these `limits` does not
    /// offer.
    pub(super) fn validate(
        &self,
        request: &Request,
        spec: &ModelSpec,
        terms: &Terms,
        limits: &Limits,
    ) -> Result<(), Error> {
        match self {
            SessionKind::Chat if terms.protocol.helper.any() => return Err(Error::HelperChat),
            SessionKind::Fill { .. } | SessionKind::Spend(_) if terms.protocol.helper == HelperDeals::Passes => {
                return Err(Error::PassesPool);
            }
            _ if terms.protocol.helper == HelperDeals::Passes && request.draft.is_some() => {
                return Err(Error::PassesDraft);
            }
            SessionKind::Chat if limits.conversation.is_none() => return Err(Error::NoChats),
            SessionKind::Chat if request.draft.is_some() => return Err(Error::DraftChat),
            SessionKind::Chat if request.all_positions => return Err(Error::PromptLogits),
            SessionKind::Chat => chat::check_talk(&terms.policy, request)?,
            SessionKind::Fill { .. } | SessionKind::Spend(_) if request.draft.is_some() => {
                return Err(Error::DraftPool);
            }
            SessionKind::Fill { .. } | SessionKind::Spend(_) if request.all_positions => {
                return Err(Error::PromptLogits);
            }
            SessionKind::Fill { .. } | SessionKind::Spend(_) if !terms.protocol.preprocess => {
                return Err(PoolError::OnePhase.into());
            }
            SessionKind::Fill { kept: Some(kept), .. } if kept.len() > MAX_KEPT => {
                return Err(Error::Limit { what: "files of pools", got: kept.len(), limit: MAX_KEPT });
            }
            // Only messages have these kinds.
            SessionKind::Score | SessionKind::Behind(..) => {}
            SessionKind::Generate | SessionKind::Fill { .. } | SessionKind::Spend(_) => {}
        }
        request.validate(spec, terms, limits)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use waggle_model::{DType, Drafts, Lengths, ModelFiles, Next, Sampler};
    use waggle_net::{Channel, NetError, Role, memory_pair};
    use waggle_protocols::Part;

    use super::super::{ClientOptions, ClientSession, ModelServer, Peer, Prompt, SessionPlan, nobody, opening};
    use super::*;

    /// A model of one layer with a million positions.
    const CONFIG: &[u8] =
        br#"{"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 8,
        "num_attention_heads": 2, "vocab_size": 11, "max_position_embeddings": 1048576}"#;

    /// Runs `client` and the server `hosted` in a session with each other. Returns the results of client and server,
    /// in this order.
    fn parties(
        hosted: &ModelServer,
        terms: &Terms,
        client: impl FnOnce(Channel) -> Result<(), Error>,
    ) -> [Result<(), Error>; 2] {
        let (here, there) = memory_pair(Duration::from_secs(60));
        std::thread::scope(|scope| {
            let server = scope.spawn(move || {
                let channel = Channel::new(Role::Server, there);
                hosted.serve(channel, &Peer::default(), terms, &Limits::NONE, &mut nobody).map(drop)
            });
            [client(Channel::new(Role::Client, here)), server.join().unwrap()]
        })
    }

    /// Only a generation shows the logits of a prompt: no message can ask for them in another kind of session.
    #[test]
    fn the_logits_of_a_prompt_are_those_of_a_generation() {
        let spec = crate::request::tests::llama(1);
        let request = Request { all_positions: true, ..Lengths { prompt: 4, tokens: 2 }.into() };
        let check =
            |kind: SessionKind| kind.validate(&request, &spec, &crate::request::tests::two_phases(), &Limits::NONE);
        check(SessionKind::Generate).unwrap();
        let fill = SessionKind::Fill { part: Part::WHOLE, kept: None };
        for kind in [fill, SessionKind::Spend(vec![crate::pool::PoolId([0; 16])]), SessionKind::Chat] {
            assert!(matches!(check(kind), Err(Error::PromptLogits)));
        }
    }

    #[test]
    fn plan_client_and_server_refuse_alike() {
        let dir = tempfile::tempdir().unwrap();
        waggle_model::synthesize(CONFIG, dir.path(), None, DType::F32, None, 1).unwrap();
        let hosted = ModelServer::builder().load(ModelFiles::open(dir.path()).unwrap()).unwrap();
        let public = hosted.public();
        let of = |prompt, tokens| Request::from(Lengths { prompt, tokens });
        let drafted = Request { draft: Drafts::new(2, 1.0).ok(), ..of(4, 4) };
        let padding = Request { stop_at_eos: true, pad_answer: true, ..of(4, 4) };
        let fill = || SessionKind::Fill { part: Part::WHOLE, kept: None };
        let (one, two) = (false, true);
        for (policy, preprocess, kind, request, words) in [
            ("full", one, SessionKind::Generate, of(0, 4), "needs at least one prompt token"),
            ("full", two, SessionKind::Generate, of(4, 0), "needs at least one prompt token"),
            ("full", one, SessionKind::Generate, of(4, 1 << 20), "1048579 positions would go through a model"),
            ("full", one, SessionKind::Generate, of(4, 1 << 18), "more than the 131072 that this program can"),
            ("full", two, SessionKind::Generate, of(4, 1 << 16), "steps to plan, more than 65536"),
            ("h2o", one, SessionKind::Generate, Request { padded: true, ..of(4, 4) }, "padding needs cache policy"),
            ("h2o", one, SessionKind::Generate, drafted, "`h2o`"),
            ("squeeze:layers=7", one, SessionKind::Generate, of(4, 4), "names layer 7"),
            ("full", one, SessionKind::Generate, Request { draft: drafted.draft, ..padding }, "takes no draft"),
            ("full", one, fill(), of(4, 4), "two phases"),
            ("full", two, fill(), of(1 << 20, 4), "1048579 positions would go through a model"),
            ("snapkv", one, SessionKind::Chat, of(4, 4), "keeps a share of the first prompt alone"),
            ("h2o", one, SessionKind::Chat, padding, "padding needs cache policy"),
        ] {
            let mut terms = Terms { policy: policy.parse().unwrap(), ..Terms::default() };
            terms.protocol.preprocess = preprocess;
            let plan = SessionPlan::new(public, &terms).request(request);
            let planned = match kind {
                SessionKind::Fill { part, .. } => plan.filling(part).run(&mut nobody).map(drop),
                // Nothing plans a chat, and a plan may take as long as it does.
                _ if kind == SessionKind::Chat || words.contains("steps to plan") => {
                    kind.validate(&request, &public.spec, &terms, &Limits::NONE)
                }
                _ => plan.run(&mut nobody).map(drop),
            };
            let Lengths { prompt, tokens } = request.lengths;
            let [asked, waiting] = parties(&hosted, &terms, |channel| {
                let session = ClientSession::open(channel, &Peer::default(), &terms, &ClientOptions::default())?;
                let session = if request.pad_answer { session.padding_answers() } else { session };
                let session = request.draft.into_iter().fold(session, ClientSession::drafting);
                let session = if request.stop_at_eos { session.stopping_at_eos() } else { session };
                let ids = vec![1; prompt];
                match kind {
                    SessionKind::Fill { .. } => {
                        session.fill(request.lengths, &dir.path().join("pool"), &mut nobody).map(drop)
                    }
                    SessionKind::Chat => session.chat(request.lengths, &mut nobody).map(drop),
                    _ => {
                        let whole = if request.padded { Prompt::padded(&ids, prompt)? } else { (&ids).into() };
                        let next = Next::Pick(&mut Sampler::greedy());
                        session.generate(whole, tokens, next, &mut nobody).map(drop)
                    }
                }
            });
            // The client sent nothing that the server could refuse.
            assert!(
                matches!(&waiting, Err(Error::Net(NetError::Closed { step: "handshake/request" }))),
                "{words}: {waiting:?}"
            );
            let [told, served] = parties(&hosted, &terms, |mut channel| {
                let (model, mut agreed) = opening::meet_server(&mut channel, &terms, &ClientOptions::default())?;
                opening::ask(&mut channel, &model, &mut agreed, &request, &kind)
            });
            let [planned, asked, served, told] = [planned, asked, served, told].map(Result::unwrap_err);
            assert!(planned.to_string().contains(words), "{words}: {planned}");
            for refused in [&asked, &served] {
                assert_eq!(refused.to_string(), planned.to_string());
                assert_eq!(std::mem::discriminant(refused), std::mem::discriminant(&planned));
            }
            assert!(matches!(&told, Error::Refused { reason } if *reason == planned.to_string()), "{words}: {told}");
        }
    }
}
