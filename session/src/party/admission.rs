//! The one check of a session, before it is planned, asked for or served.

use model::ModelSpec;

use super::opening::SessionKind;
use super::{Limits, Request, Terms, chat};
use crate::Error;
use crate::pool::PoolError;

impl SessionKind {
    /// Refuses a session of this kind that the parties could not have or that a server with these `limits` does not
    /// offer.
    pub(super) fn validate(
        &self,
        request: &Request,
        spec: &ModelSpec,
        terms: &Terms,
        limits: &Limits,
    ) -> Result<(), Error> {
        match self {
            SessionKind::Chat if limits.conversation.is_none() => return Err(Error::NoChats),
            SessionKind::Chat if request.draft.is_some() => return Err(Error::DraftChat),
            SessionKind::Chat => chat::check_talk(&terms.policy, request)?,
            SessionKind::Fill { .. } | SessionKind::Spend(_) if request.draft.is_some() => {
                return Err(Error::DraftPool);
            }
            SessionKind::Fill { .. } | SessionKind::Spend(_) if !terms.protocol.preprocess => {
                return Err(PoolError::OnePhase.into());
            }
            SessionKind::Generate | SessionKind::Fill { .. } | SessionKind::Spend(_) => {}
        }
        request.validate(spec, terms, limits)
    }
}
