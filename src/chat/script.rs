//! The text of each turn.
//!
//! A chat template writes a whole conversation. The model has read most of it, so only the end by which the text grew
//! goes through it. Templates that change what stood before (some leave out older thoughts) are noticed, and the
//! model then reads the whole text again.
//!
//! **A template never sees the words.** It comes from the server, and the number of tokens of a turn is public: a
//! hostile template could write more or fewer of them, depending on what was said. So each message is given to it as
//! a placeholder, drawn at random, and the words take its place afterwards. Spaces at the ends of a message are left
//! out before, as most templates would. A template that drops a new message, doubles one or looks into it is refused.

use tokenizer::{ChatTemplate, Message, Tokenizer, TokenizerError};

use crate::Error;

/// A turn's input to the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) text: String,
    /// Whether the tokens that begin a text belong before it: raw text at its beginning. A template writes them.
    pub(crate) begins: bool,
    /// Whether a template wrote it.
    pub(crate) marked: bool,
    /// Whether it is all of the conversation, and takes the place of what the model has read.
    pub(crate) rewrites: bool,
    words: String,
    rendered: String,
}

/// A conversation, written for a model.
pub(crate) struct Script {
    template: Option<ChatTemplate>,
    system: Option<String>,
    /// The messages so far, in their order.
    said: Vec<(&'static str, String)>,
    /// The text that the model has read, by the template, with placeholders.
    rendered: String,
    /// Raw: whether something was read, and whether the text ends at the end of a line.
    begun: bool,
    ended: bool,
    mark: String,
}

impl Script {
    pub(crate) fn new(template: Option<ChatTemplate>, system: Option<String>) -> Self {
        let mark = format!("{:032x}", rand::random::<u128>());
        let mut script =
            Script { template, system, said: Vec::new(), rendered: String::new(), begun: false, ended: true, mark };
        script.reset();
        script
    }

    pub(crate) fn reset(&mut self) {
        self.begin_after(self.system.iter().map(|system| ("system", system.clone())).collect());
    }

    /// Begins anew behind these messages, which the model reads with the next turn.
    pub(crate) fn begin_after(&mut self, said: Vec<(&'static str, String)>) {
        self.said = said.into_iter().map(|(role, text)| (role, text.trim().to_owned())).collect();
        self.rendered.clear();
        (self.begun, self.ended) = (false, true);
    }

    /// The system text, if it belongs to the turn that comes next.
    pub(crate) fn system(&self) -> Option<&str> {
        self.system.as_deref().filter(|_| !self.begun)
    }

    /// The model's input when the user says `words`. Nothing is remembered before the answer.
    pub(crate) fn next(&self, tokenizer: &Tokenizer, words: &str) -> Result<Step, Error> {
        match &self.template {
            None => Ok(self.raw(words)),
            Some(template) => {
                let messages = self.messages();
                let rendered = tokenizer.render(template, &messages, true)?;
                self.step(words, rendered)
            }
        }
    }

    /// The answer to `step` was `text`.
    pub(crate) fn answered(&mut self, step: Step, text: &str) {
        self.said.push(("user", step.words));
        self.said.push(("assistant", text.trim().to_owned()));
        self.rendered = step.rendered;
        self.begun = true;
        self.ended = text.ends_with('\n');
    }

    /// Words as they are, on lines of their own.
    fn raw(&self, words: &str) -> Step {
        let before: &[_] = if self.begun { &[] } else { &self.said };
        let start: String =
            if self.ended { before.iter().map(|(_, text)| format!("{text}\n")).collect() } else { "\n".into() };
        Step {
            text: format!("{start}{words}\n"),
            begins: !self.begun,
            marked: false,
            rewrites: false,
            words: words.to_owned(),
            rendered: String::new(),
        }
    }

    /// The messages with placeholders, and a new one of the user's.
    fn messages(&self) -> Vec<Message> {
        let roles = self.said.iter().map(|(role, _)| *role).chain(["user"]);
        roles.enumerate().map(|(i, role)| Message::new(role, &self.placeholder(i))).collect()
    }

    fn placeholder(&self, index: usize) -> String {
        format!("{}x{index}x", self.mark)
    }

    /// The step by which the text grew to `rendered`.
    fn step(&self, words: &str, rendered: String) -> Result<Step, Error> {
        let new = self.said.len();
        let words = words.trim();
        for index in 0..=new {
            let times = rendered.matches(&self.placeholder(index)).count();
            // Older messages may be left out.
            if times > 1 || (index == new && times == 0) {
                let what = format!("message {index} stands {times} times in its text");
                return Err(TokenizerError::Template { what }.into());
            }
        }
        let read = match new.checked_sub(1) {
            Some(answer) if !self.rendered.is_empty() => format!("{}{}", self.rendered, self.placeholder(answer)),
            _ => String::new(),
        };
        let grown = rendered.strip_prefix(&read);
        let text = self
            .filled(grown.unwrap_or(&rendered), words)
            .ok_or_else(|| TokenizerError::Template { what: "it takes the messages apart".into() })?;
        let rewrites = grown.is_none();
        Ok(Step { text, begins: false, marked: true, rewrites, words: words.into(), rendered })
    }

    /// The text with words in the place of placeholders, in one pass: words may look like placeholders. `None` if a
    /// piece of a placeholder is there.
    fn filled(&self, text: &str, words: &str) -> Option<String> {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(&self.mark) {
            let (before, from) = rest.split_at(at);
            out.push_str(before);
            let known = |i: usize| Some((i, from.strip_prefix(&self.placeholder(i))?));
            let (index, after) = (0..=self.said.len()).find_map(known)?;
            out.push_str(self.said.get(index).map_or(words, |(_, said)| said));
            rest = after;
        }
        Some(out + rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHATML: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}<end>{% endfor %}\
        {% if add_generation_prompt %}<assistant>{% endif %}";

    fn tokenizer() -> Tokenizer {
        Tokenizer::from_bytes(&model::bundled("shakespeare-gpt2").unwrap().tokenizer.unwrap()).unwrap()
    }

    fn script(template: &str, system: Option<&str>) -> Script {
        let template = ChatTemplate { template: template.into(), bos_token: "<s>".into(), eos_token: "<end>".into() };
        Script::new(Some(template), system.map(str::to_owned))
    }

    fn text(script: &Script, words: &str) -> (String, bool) {
        let step = script.next(&tokenizer(), words).unwrap();
        (step.text.clone(), step.rewrites)
    }

    fn say(script: &mut Script, words: &str, answer: &str) -> String {
        let step = script.next(&tokenizer(), words).unwrap();
        let text = step.text.clone();
        script.answered(step, answer);
        text
    }

    /// The pieces and the answers are the whole text, whatever was said.
    #[test]
    fn only_what_is_new_is_read() {
        let mut script = script(CHATML, Some("be brief"));
        let mut read = String::new();
        let turns = [("hello", "good day"), (" how are you? ", "fine"), ("<end><user>{{ 7 * 7 }}", ""), ("bye", "x")];
        for (words, answer) in turns {
            read += &say(&mut script, words, answer);
            read += answer;
        }
        assert_eq!(
            read,
            "<system>be brief<end><user>hello<end><assistant>good day<end><user>how are you?<end><assistant>fine\
             <end><user><end><user>{{ 7 * 7 }}<end><assistant><end><user>bye<end><assistant>x"
        );
        assert_eq!(text(&script, "so"), ("<end><user>so<end><assistant>".into(), false));
        script.reset();
        assert_eq!(text(&script, "so"), ("<system>be brief<end><user>so<end><assistant>".into(), false));
    }

    #[test]
    fn a_template_that_rewrites_is_noticed() {
        // The last message alone.
        let mut last = script("{{ messages[-1].content }}!", None);
        assert_eq!(text(&last, "a"), ("a!".into(), false));
        say(&mut last, "a", "b");
        assert_eq!(text(&last, "c"), ("c!".into(), true));
        // Words that look like a placeholder stay words.
        let mut script = script(CHATML, None);
        let odd = script.placeholder(0);
        assert_eq!(text(&script, &odd).0, format!("<user>{odd}<end><assistant>").replace(&odd, &odd));
        say(&mut script, "a", "b");
    }

    #[test]
    fn a_template_that_looks_at_words_sees_none() {
        let curious = script(
            "{{ messages[0].content | length }}{% if 'secret' in messages[0].content %}{{ 'y' * 99 }}\
            {% endif %}{{ messages[0].content }}",
            None,
        );
        let [a, b] = ["secret", "public"].map(|words| text(&curious, words).0);
        assert_eq!(a.replace("secret", ""), b.replace("public", ""));
        for bad in [
            "nothing",
            "{{ messages[0].content }}{{ messages[0].content }}",
            "{{ messages[0].content | upper }}",
            "{{ messages[0].content }}{{ messages[0].content[:40] }}",
            "{{ messages[0].content }}{{ messages[0].content[:34] }}",
        ] {
            let refused = script(bad, None).next(&tokenizer(), "word");
            assert!(matches!(refused, Err(Error::Tokenizer(TokenizerError::Template { .. }))), "{bad}: {refused:?}");
        }
    }

    #[test]
    fn raw_words_stand_on_lines_of_their_own() {
        let mut script = Script::new(None, Some("A play.".into()));
        let first = script.next(&tokenizer(), "ROMEO:").unwrap();
        assert_eq!((&first.text[..], first.begins, first.marked), ("A play.\nROMEO:\n", true, false));
        script.answered(first, "I will");
        let second = script.next(&tokenizer(), "JULIET:").unwrap();
        assert_eq!((&second.text[..], second.begins), ("\nJULIET:\n", false));
        script.answered(second, "No.\n");
        assert_eq!(script.next(&tokenizer(), "ROMEO:").unwrap().text, "ROMEO:\n");
        script.reset();
        assert_eq!(script.next(&tokenizer(), "ROMEO:").unwrap().text, "A play.\nROMEO:\n");
    }
}
