//! Checks of requests. Some need only what is public, others what only one party knows.

use waggle_engine::Engine;
use waggle_mpcache::{KvCache, PolicySpec, ScoreSource};

use super::types::{GenerateOptions, Next, Reveal};
use crate::draft::Drafts;
use crate::image::{ImageShape, MAX_IMAGE_VALUE};
use crate::{Error, Input, Lengths, ModelSpec};

/// Refuses a generation without a prompt or without tokens to generate ([`Error::Nothing`]) or over more than `limit`
/// positions ([`Error::TooLong`]).
pub fn check_lengths(lengths: Lengths, limit: usize) -> Result<(), Error> {
    if lengths.prompt == 0 || lengths.tokens == 0 {
        return Err(Error::Nothing);
    }
    let positions = lengths.positions();
    if positions > limit { Err(Error::TooLong { positions, limit }) } else { Ok(()) }
}

/// Refuses padding in a prompt, or in the answers of a conversation, under a policy that cannot tell padding from
/// tokens.
pub fn check_padding(padded: bool, policy: &PolicySpec) -> Result<(), Error> {
    if padded && !policy.keeps_all() {
        return Err(Error::PaddedPolicy(policy.to_string()));
    }
    Ok(())
}

/// Refuses drafts under `policy` unless generated tokens can be taken back (`can_roll_back`).
pub fn check_draft(draft: Option<Drafts>, policy: &PolicySpec, can_roll_back: bool) -> Result<(), Error> {
    if draft.is_some() && !can_roll_back {
        return Err(Error::DraftPolicy { policy: policy.to_string() });
    }
    Ok(())
}

/// Refuses samplers that need logits if the client learns only tokens.
///
/// # Errors
/// [`Error::NeedsLogits`].
pub fn check_next(spec: &ModelSpec, reveal: Reveal, next: &Next) -> Result<(), Error> {
    match next {
        Next::Pick(sampler) | Next::Drafted { sampler, .. } => {
            sampler.check(reveal, spec.style().logit_cap.is_some())
        }
        Next::Forced(_) => Ok(()),
        Next::Each(all) => all.iter().try_for_each(|next| check_next(spec, reveal, next)),
    }
}

/// Refuses options that an encoder does not support.
pub fn check_encoder(spec: &ModelSpec, options: &GenerateOptions) -> Result<(), Error> {
    let GenerateOptions { tokens, stop_at_eos, pad_answer, ref policy, prefill_chunk, ref padding, draft, .. } =
        *options;
    let asked = [
        (tokens > 1, "more than one token"),
        (stop_at_eos, "an end that the text finds"),
        (pad_answer, "a padded answer"),
        (padding.is_some() && spec.image().is_some(), "a padded image"),
        (!policy.keeps_all(), "a cache policy"),
        (prefill_chunk.is_some(), "a prompt in chunks"),
        (draft.is_some(), "a draft"),
    ];
    match asked.into_iter().find(|(asked, _)| *asked && spec.is_encoder()) {
        Some((_, what)) => Err(Error::Encoder { what }),
        None => Ok(()),
    }
}

/// Refuses a request for no texts. Refuses several texts with a draft, or under a policy for single texts.
pub fn check_texts(texts: usize, policy: &PolicySpec, draft: Option<Drafts>) -> Result<(), Error> {
    match texts {
        0 => Err(Error::Nothing),
        1 => Ok(()),
        texts if draft.is_some() => Err(Error::Texts { texts, what: "a draft".into() }),
        texts if !policy.side_by_side() => Err(Error::Texts { texts, what: format!("the policy `{policy}`") }),
        _ => Ok(()),
    }
}

/// For a model that reads images, refuses a `prompt` whose number of tokens is not that of an image.
pub fn check_image(spec: &ModelSpec, prompt: usize) -> Result<(), Error> {
    match spec.image().map(ImageShape::rows) {
        Some(expected) if prompt != expected => Err(Error::ImageRows { expected, got: prompt }),
        _ => Ok(()),
    }
}

/// Refuses an image for a model of texts, a text for a model of images, pixels that no engine takes, and token ids
/// that the model does not have.
pub fn check_input(spec: &ModelSpec, prompt: Input) -> Result<(), Error> {
    match (spec.image(), prompt.patches) {
        (None, Some(_)) => Err(Error::NoImages),
        (Some(_), _) if prompt.ids.is_some() || prompt.seconds.iter().any(Option::is_some) => Err(Error::NoTexts),
        (Some(_), Some(patches)) => match patches.iter().find(|x| x.is_nan() || x.abs() > MAX_IMAGE_VALUE) {
            Some(&value) => Err(Error::ImageValue { value }),
            None => check_image(spec, prompt.count),
        },
        (Some(_), None) => check_image(spec, prompt.count),
        (None, None) => spec.check_ids(prompt.ids.unwrap_or_default()),
    }
}

/// Refuses a request that does not fit the model, or does not fit it after the tokens that are in `cache`.
pub(super) fn check<E: Engine>(
    spec: &ModelSpec,
    prompt: Input,
    options: &GenerateOptions,
    cache: &KvCache<E>,
) -> Result<(), Error> {
    let lengths = Lengths { prompt: prompt.count, tokens: options.tokens };
    let (before, read) = (cache.position(), cache.tokens());
    check_encoder(spec, options)?;
    check_input(spec, prompt)?;
    check_texts(prompt.texts, &options.policy, options.draft)?;
    if options.policy.shed().is_some() {
        let asked = [
            (options.all_positions, "every position of the prompt was asked for"),
            (
                cache.wants_scores() == Some(ScoreSource::Surprisal),
                "the policy looks at the logits of every position",
            ),
        ];
        if let Some((_, what)) = asked.into_iter().find(|(asked, _)| *asked) {
            return Err(Error::Shed { what });
        }
    }
    for at in prompt.seconds.iter().copied().flatten() {
        if !spec.is_encoder() {
            return Err(Error::Second { at: None, tokens: prompt.count });
        }
        if at == 0 || at >= prompt.count {
            return Err(Error::Second { at: Some(at), tokens: prompt.count });
        }
    }
    let fits = match prompt.masks {
        [] => !spec.fills_mask() || prompt.ids.is_none(),
        masks => spec.fills_mask() && masks.len() == prompt.texts && masks.iter().all(|at| *at < prompt.count),
    };
    if !fits {
        return Err(Error::Mask { at: prompt.masks.first().copied(), tokens: prompt.count });
    }
    if before > 0 && spec.is_encoder() {
        return Err(Error::Encoder { what: "a text after another" });
    }
    let positions = spec.max_positions_of(cache.text().filter(|_| before > 0));
    check_lengths(lengths, positions.saturating_sub(before))?;
    // Padding of an answer comes last in a generation, but in the next turn it stands before other words.
    check_padding(options.padding.is_some() || (options.pad_answer && read > 0), &options.policy)?;
    if options.padding.is_some() && before > read {
        return Err(Error::PaddedPrefix);
    }
    let hidden = options.padding.as_ref().and_then(|padding| padding.tokens.as_ref());
    if let Some(&tokens) = hidden.into_iter().flatten().find(|tokens| **tokens >= prompt.count) {
        return Err(Error::AllPadding { tokens, prompt: prompt.count });
    }
    // Positions are public, and tokens of padding have none.
    for (text, ids) in prompt.ids.unwrap_or_default().chunks(prompt.count.max(1)).enumerate() {
        let padding = hidden.and_then(|hidden| hidden.get(text)).copied().unwrap_or_default();
        let own = &ids[..ids.len() - padding.min(ids.len())];
        if let Some(at) = own.iter().position(|id| Some(*id) == spec.uncounted()) {
            return Err(Error::PaddingId { id: own[at], at });
        }
    }
    Ok(())
}
