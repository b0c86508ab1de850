//! A prompt as token ids, perhaps with padding, or as an image; and several of them.

use ndarray::{Array2, Axis, concatenate};
use waggle_model::{Input, Padding};

use crate::Error;

/// A prompt as ids or as an image, or several prompts of one length that a model reads side by side. The number of
/// prompts and their length are public; how much of the length is padding is not.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    ids: Vec<u32>,
    patches: Option<Array2<f32>>,
    /// The number of tokens of padding in each text; `None` if the server is told that there is no padding.
    padding: Option<Vec<usize>>,
    /// For each prompt, the position at which its second text begins, if it has one.
    seconds: Vec<Option<usize>>,
    /// The position of the mask in each text, for models that fill one.
    masks: Vec<usize>,
}

impl Prompt {
    /// A prompt that the server sees as one of `length` tokens, whatever the number of `ids`. Padding comes first,
    /// and no token attends to it.
    ///
    /// # Errors
    /// [`Error::Padding`] if the prompt is longer.
    pub fn padded(ids: &[u32], length: usize) -> Result<Self, Error> {
        let mut prompt = Prompt::from(ids).padded_behind(length)?;
        prompt.ids.rotate_left(ids.len());
        Ok(prompt)
    }

    /// This text, padded to `length` for an encoder, which reads its first token: padding comes last. An image stays
    /// as it is.
    ///
    /// # Errors
    /// [`Error::Padding`] if the prompt is longer.
    pub fn padded_behind(mut self, length: usize) -> Result<Self, Error> {
        if self.patches.is_none() {
            let got = self.ids.len();
            let padding = length.checked_sub(got).ok_or(Error::Padding { got, length })?;
            // Any id will do, because no token attends to it.
            self.ids.resize(length, 0);
            let before: usize = self.padding.iter().flatten().sum();
            self.padding = Some(vec![before + padding]);
        }
        Ok(self)
    }

    /// The patches of an image, for a model that reads images
    /// ([`ImageShape::patches`](waggle_model::ImageShape::patches)).
    pub fn image(patches: Array2<f32>) -> Self {
        Prompt { ids: Vec::new(), patches: Some(patches), padding: None, seconds: vec![None], masks: Vec::new() }
    }

    /// Several prompts of one kind, which a model reads side by side: all padded to `length`, or to the longest of
    /// them if they are not of one length. For an `encoder` padding comes [behind](Prompt::padded_behind) the texts.
    ///
    /// # Errors
    /// [`Error::Unlike`] if the prompts are not of one kind, or there is none; [`Error::Padding`] if one is longer
    /// than `length`.
    pub fn side_by_side(prompts: &[Prompt], length: Option<usize>, encoder: bool) -> Result<Self, Error> {
        let counts = || prompts.iter().map(|prompt| prompt.input().count);
        let longest = counts().max().filter(|longest| counts().any(|count| count < *longest));
        let padded = |prompt: &Prompt| match length.or(longest) {
            Some(length) if !encoder => Prompt::padded(prompt.ids(), length),
            Some(length) => prompt.clone().padded_behind(length),
            None => Ok(prompt.clone()),
        };
        let prompts: Vec<Prompt> = prompts.iter().map(padded).collect::<Result<_, _>>()?;
        let shape = |prompt: &Prompt| {
            let Input { count, texts, .. } = prompt.input();
            (texts, count, prompt.patches.is_some(), prompt.padding.is_some(), prompt.masks.len())
        };
        let Some((first, rest)) = prompts.split_first() else { return Err(Error::Unlike { text: 0 }) };
        if let Some(at) = rest.iter().position(|prompt| shape(prompt) != shape(first)) {
            return Err(Error::Unlike { text: at + 2 });
        }
        let patches: Vec<_> = prompts.iter().filter_map(|prompt| Some(prompt.patches.as_ref()?.view())).collect();
        let patches = (!patches.is_empty()).then(|| concatenate(Axis(0), &patches)).transpose();
        Ok(Prompt {
            ids: prompts.iter().flat_map(|prompt| &prompt.ids).copied().collect(),
            patches: patches.map_err(|_| Error::Unlike { text: 1 })?,
            padding: first
                .padding
                .as_ref()
                .map(|_| prompts.iter().filter_map(|p| p.padding.clone()).flatten().collect()),
            seconds: prompts.iter().flat_map(|prompt| &prompt.seconds).copied().collect(),
            masks: prompts.iter().flat_map(|prompt| &prompt.masks).copied().collect(),
        })
    }

    /// The prompt as the model reads it.
    pub fn input(&self) -> Input<'_> {
        let texts = self.seconds.len();
        let input = match &self.patches {
            Some(patches) => Input { count: patches.nrows() / texts + 1, ..Input::image(patches) },
            None => Input { count: self.ids.len() / texts, ..Input::known(&self.ids) },
        };
        Input { texts, seconds: &self.seconds, masks: &self.masks, ..input }
    }

    /// Says where a second text begins, if there is one, see [`Input::seconds`](waggle_model::Input::seconds). The
    /// server does not learn it.
    pub fn with_second(self, second: Option<usize>) -> Self {
        Prompt { seconds: vec![second], ..self }
    }

    /// Says where the mask stands that the model fills, if there is one, see
    /// [`Input::masks`](waggle_model::Input::masks). The server does not learn it.
    pub fn with_mask(self, mask: Option<usize>) -> Self {
        Prompt { masks: mask.into_iter().collect(), ..self }
    }

    /// All ids, including those of padding, text by text.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The padding in the form that a model takes, with the numbers of tokens that only this party knows.
    pub fn known_padding(&self) -> Option<Padding> {
        self.padding.clone().map(|tokens| Padding { tokens: Some(tokens) })
    }

    /// The number of tokens of padding in each text; `None` if the server is told that there is no padding.
    pub fn padding(&self) -> Option<&[usize]> {
        self.padding.as_deref()
    }
}

impl From<&[u32]> for Prompt {
    fn from(ids: &[u32]) -> Self {
        Prompt { ids: ids.to_vec(), patches: None, padding: None, seconds: vec![None], masks: Vec::new() }
    }
}

impl From<&Vec<u32>> for Prompt {
    fn from(ids: &Vec<u32>) -> Self {
        ids.as_slice().into()
    }
}

impl<const N: usize> From<&[u32; N]> for Prompt {
    fn from(ids: &[u32; N]) -> Self {
        ids.as_slice().into()
    }
}
