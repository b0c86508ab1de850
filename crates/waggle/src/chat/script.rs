//! The text of each turn.
//!
//! A chat template writes a whole conversation. The model has read most of the text, so it reads only what was added
//! at the end. If a template changes earlier text (some leave out older thoughts), the model reads the whole text
//! again.
//!
//! **A template never sees the words.** It comes from the server, and the number of tokens of a turn is public: a
//! hostile template could write more or fewer of them, depending on what was said. So the template gets a random
//! placeholder for each message, and the words replace the placeholder afterwards. Spaces at the ends of a message
//! are cut off first, as most templates would do. An answer keeps its spaces, as the model has written and read them.
//! A template that drops the last message, doubles a message or looks into one is refused. The template decides which
//! messages may follow which. Some templates write certain words differently, for example leave out the thoughts of
//! earlier answers. Here they leave all words as they are, and [`Script::looks`] says so.
//!
//! **Time.** A template may ask for the date. It gets the time at which the conversation began, on this party's
//! clock. That time is public, because the length of the text may depend on it.
//!
//! **A public beginning.** The template's text before the first words of a user, with a system text that is no
//! secret, may stand in the clear before all conversations of a session ([`Script::publish`]). The text is cut at the
//! end of a token, which made-up words decide: a cut that depended on the user's words would tell about them. So the
//! two parts are encoded apart, and a time that the template was told stays that of the first conversation.

use waggle_tokenizer::{ChatTemplate, Message, Tokenizer, TokenizerError};

use crate::Error;
use crate::error::ChatError;

/// A turn's input to the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) text: String,
    /// Whether the tokenizer puts its tokens for the beginning of a text before `text`. It does so before the first
    /// raw text; a template writes these tokens itself.
    pub(crate) begins: bool,
    /// Whether a template wrote the text.
    pub(crate) marked: bool,
    /// Whether the text is the whole conversation and replaces what the model has read.
    pub(crate) rewrites: bool,
    new: Vec<Words>,
    rendered: String,
}

/// A message: the role that says it, and its words.
pub type Words = (&'static str, String);

/// A conversation, written for a model.
pub(crate) struct Script {
    template: Option<ChatTemplate>,
    system: Option<String>,
    /// The messages so far, in order.
    said: Vec<Words>,
    /// The text that the model has read, as the template wrote it, with placeholders.
    rendered: String,
    /// For raw text: whether the model has read something. `ended` says whether what it has read ends with a line
    /// end.
    begun: bool,
    ended: bool,
    mark: String,
    /// Time at which the conversation began.
    now: String,
    /// The text that stands in the clear before every conversation. The template writes it, and it is left out of the
    /// first step.
    head: String,
    /// Whether public tokens stand before the conversation.
    behind: bool,
}

/// Made-up first words of a user, which show whether a token reaches from the text before into words.
const FIRST_WORDS: [&str; 3] = ["What", "a", "1."];

/// The most places at which [`Script::publish`] tries to cut a text.
const CUTS: usize = 16;

/// Made-up words of the kinds that templates look for. They come from no conversation.
const PROBES: [&str; 4] =
    ["<think>\na\n</think>\n\nb", "/no_think", "<|channel|>final<|message|>a", "[TOOL_CALLS] a"];

impl Script {
    pub(crate) fn new(template: Option<ChatTemplate>, system: Option<String>) -> Self {
        let mark = format!("{:032x}", rand::random::<u128>());
        let mut script = Script {
            template,
            system,
            said: Vec::new(),
            rendered: String::new(),
            begun: false,
            ended: true,
            mark,
            now: String::new(),
            head: String::new(),
            behind: false,
        };
        script.reset();
        script
    }

    /// Notes that public tokens stand before every conversation.
    pub(crate) fn goes_behind(&mut self) {
        self.behind = true;
    }

    /// Makes the text before the first words of a user public, with the system text. Returns its tokens.
    ///
    /// # Errors
    /// [`ChatError::NoHead`] if no text stands there.
    pub(crate) fn publish(&mut self, tokenizer: &Tokenizer) -> Result<Vec<u32>, Error> {
        let text = match &self.template {
            None => self.raw(&[]).text,
            Some(template) => {
                let all: Vec<Words> = self.said.iter().cloned().chain([("user", String::new())]).collect();
                let rendered = tokenizer.render(template, &self.hidden(&all), true, &self.now)?;
                let (before, _) = rendered.split_once(&self.placeholder(self.said.len())).unwrap_or_default();
                self.filled(before, &self.said).unwrap_or_default()
            }
        };
        let begins = self.template.is_none() && !self.behind;
        let encode = |text: &str| if begins { tokenizer.encode(text) } else { tokenizer.encode_more(text) };
        let whole = FIRST_WORDS.map(|words| encode(&format!("{text}{words}")));
        let cuts = (1..=text.len()).rev().filter(|end| text.is_char_boundary(*end)).take(CUTS);
        let fits = |end: &usize| {
            let (head, rest) = text.split_at(*end);
            let Ok(head) = encode(head) else { return false };
            FIRST_WORDS.iter().zip(&whole).all(|(words, whole)| {
                let more = tokenizer.encode_more(&format!("{rest}{words}"));
                more.is_ok_and(|more| whole.as_ref().is_ok_and(|whole| *whole == [&head[..], &more].concat()))
            })
        };
        // Some tokenizers mark the beginning of every text that they encode, so nothing fits.
        self.head = text[..cuts.into_iter().find(fits).unwrap_or(text.len())].to_owned();
        let ids = if self.head.is_empty() { Vec::new() } else { encode(&self.head)? };
        if ids.is_empty() {
            return Err(ChatError::NoHead.into());
        }
        self.behind = true;
        Ok(ids)
    }

    /// Whether the template would write words differently depending on what they are, which it cannot do here. It is
    /// tried with made-up words, because its running time may depend on them.
    pub(crate) fn looks(&self, tokenizer: &Tokenizer) -> bool {
        let Some(template) = &self.template else { return false };
        let looks = |probe: &str| {
            let said: Vec<Words> =
                [("user", probe), ("assistant", probe), ("user", "c")].map(|(r, w)| (r, w.to_owned())).into();
            let messages: Vec<_> = said.iter().map(|(role, words)| Message::new(role, words)).collect();
            let seen = tokenizer.render(template, &messages, true, &self.now).ok();
            let hidden = tokenizer.render(template, &self.hidden(&said), true, &self.now).ok();
            seen != hidden.and_then(|text| self.filled(&text, &said))
        };
        PROBES.iter().any(|words| looks(words))
    }

    /// The time that a template was told, if it asks for one.
    pub(crate) fn clock(&self) -> Option<&str> {
        self.template.as_ref().filter(|template| template.tells_time()).map(|_| &self.now[..])
    }

    pub(crate) fn reset(&mut self) {
        self.said = self.system.iter().map(|system| form("system", system)).collect();
        self.rendered.clear();
        (self.begun, self.ended) = (false, true);
        if self.head.is_empty() {
            self.now = waggle_tokenizer::local_time();
        }
    }

    /// The system text, if it belongs to the next turn.
    pub(crate) fn system(&self) -> Option<&str> {
        self.system.as_deref().filter(|_| !self.begun && self.head.is_empty())
    }

    /// The model's input after the new messages `new`. They are remembered only with the answer.
    pub(crate) fn next(&self, tokenizer: &Tokenizer, new: &[Words]) -> Result<Step, Error> {
        let step = self.written(tokenizer, new)?;
        if self.begun && !step.rewrites {
            return Ok(step);
        }
        match step.text.strip_prefix(&self.head) {
            Some(rest) => Ok(Step { text: rest.to_owned(), begins: step.begins && !self.behind, ..step }),
            None => Err(TokenizerError::Template { what: "this conversation has no public beginning".into() }.into()),
        }
    }

    /// The step of [`Script::next`], with the public text.
    fn written(&self, tokenizer: &Tokenizer, new: &[Words]) -> Result<Step, Error> {
        let Some(template) = &self.template else { return Ok(self.raw(new)) };
        let new: Vec<Words> = new.iter().map(|(role, text)| form(role, text)).collect();
        let all: Vec<Words> = self.said.iter().chain(&new).cloned().collect();
        let rendered = tokenizer.render(template, &self.hidden(&all), true, &self.now)?;
        self.step(new, rendered)
    }

    /// The messages with placeholders instead of words.
    fn hidden(&self, all: &[Words]) -> Vec<Message> {
        (0..).zip(all).map(|(i, (role, _))| Message::new(role, &self.placeholder(i))).collect()
    }

    /// Whether `new` alone gives the model something to read.
    pub(crate) fn reads(&self, new: &[Words]) -> bool {
        self.template.is_some() || new.iter().any(|(_, text)| !text.trim().is_empty())
    }

    /// Remembers `text` as the answer to `step`.
    pub(crate) fn answered(&mut self, step: Step, text: &str) {
        self.said.extend(step.new);
        self.said.push(("assistant", text.to_owned()));
        self.rendered = step.rendered;
        self.begun = true;
        self.ended = text.ends_with('\n');
    }

    /// A step of raw text: each message's words on a line of its own.
    fn raw(&self, new: &[Words]) -> Step {
        let before: &[_] = if self.begun { &[] } else { &self.said };
        let start = if self.ended { "" } else { "\n" };
        // The previous answer may have ended its line already.
        let line = |(role, text): &Words| {
            let end = if *role == "assistant" && text.ends_with('\n') { "" } else { "\n" };
            format!("{text}{end}")
        };
        let text = start.to_owned() + &before.iter().chain(new).map(line).collect::<String>();
        let (begins, new) = (!self.begun, new.to_vec());
        Step { text, begins, marked: false, rewrites: false, new, rendered: String::new() }
    }

    fn placeholder(&self, index: usize) -> String {
        format!("{}x{index}x", self.mark)
    }

    /// The step for the new messages `new`. With them, the template writes the whole conversation as `rendered`. A
    /// template that leaves out the last message or writes a message twice is refused.
    fn step(&self, new: Vec<Words>, rendered: String) -> Result<Step, Error> {
        let last = (self.said.len() + new.len()).saturating_sub(1);
        for index in 0..=last {
            let times = rendered.matches(&self.placeholder(index)).count();
            // A template may leave out older messages, but not the last one.
            if times > 1 || (index == last && times == 0) {
                let what = format!("message {index} stands {times} times in its text");
                return Err(TokenizerError::Template { what }.into());
            }
        }
        let read = match self.said.len().checked_sub(1) {
            Some(answer) if !self.rendered.is_empty() => format!("{}{}", self.rendered, self.placeholder(answer)),
            _ => String::new(),
        };
        let grown = rendered.strip_prefix(&read);
        let text = self
            .filled(grown.unwrap_or(&rendered), &[&self.said[..], &new[..]].concat())
            .ok_or_else(|| TokenizerError::Template { what: "it takes the messages apart".into() })?;
        let rewrites = grown.is_none();
        Ok(Step { text, begins: false, marked: true, rewrites, new, rendered })
    }

    /// Replaces the placeholders in `text` by words. They are replaced in a single pass, because words may look like
    /// placeholders. `None` if a piece of a placeholder is left.
    fn filled(&self, text: &str, all: &[Words]) -> Option<String> {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(&self.mark) {
            let (before, from) = rest.split_at(at);
            out.push_str(before);
            let (words, after) = all
                .iter()
                .enumerate()
                .find_map(|(i, (_, words))| Some((words, from.strip_prefix(&self.placeholder(i))?)))?;
            out.push_str(words);
            rest = after;
        }
        Some(out + rest)
    }
}

/// A message in the form in which a template writes it.
fn form(role: &'static str, text: &str) -> Words {
    (role, if role == "assistant" { text } else { text.trim() }.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHATML: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}<end>{% endfor %}\
        {% if add_generation_prompt %}<assistant>{% endif %}";

    fn tokenizer() -> Tokenizer {
        Tokenizer::from_bytes(&waggle_model::bundled("shakespeare-gpt2").unwrap().tokenizer.unwrap()).unwrap()
    }

    fn script(template: &str, system: Option<&str>) -> Script {
        let template =
            ChatTemplate { template: template.into(), tokens: [("eos_token".into(), "<end>".into())].into() };
        Script::new(Some(template), system.map(str::to_owned))
    }

    fn user(words: &str) -> [Words; 1] {
        [("user", words.into())]
    }

    fn text(script: &Script, words: &str) -> (String, bool) {
        let step = script.next(&tokenizer(), &user(words)).unwrap();
        (step.text.clone(), step.rewrites)
    }

    fn say(script: &mut Script, words: &str, answer: &str) -> String {
        let step = script.next(&tokenizer(), &user(words)).unwrap();
        let text = step.text.clone();
        script.answered(step, answer);
        text
    }

    /// The steps and the answers, joined, are the whole text, whatever was said.
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

    /// A conversation is the same text whether it is continued or read again, for messages in any order, empty or
    /// with spaces at their ends.
    #[test]
    fn a_conversation_has_one_text() {
        let turns: [(&[Words], &str); 3] = [
            (&[("assistant", " Well? ".into()), ("user", " What of the king ".into())], "And "),
            (&[("user", "\nSpeak".into()), ("system", "Be brief. ".into()), ("user", String::new())], "No.\n"),
            (&[("user", "Again\n".into()), ("assistant", "I\n".into())], ""),
        ];
        let template = |text: &str| ChatTemplate { template: text.into(), tokens: Default::default() };
        for template in [None, Some(template(CHATML)), Some(template(&CHATML.replace(" | trim", "")))] {
            let new = || Script::new(template.clone(), None);
            let (mut kept, mut read, mut all) = (new(), String::new(), Vec::new());
            for (messages, answer) in &turns {
                let step = kept.next(&tokenizer(), messages).unwrap();
                assert!(!step.rewrites);
                read += &step.text;
                all.extend_from_slice(messages);
                assert_eq!(new().next(&tokenizer(), &all).unwrap().text, read);
                kept.answered(step, answer);
                read += answer;
                all.push(("assistant", (*answer).to_owned()));
            }
        }
        let strict = "{% if messages[1].role == 'user' %}{{ raise_exception('take turns') }}{% endif %}";
        let refused = script(strict, None).next(&tokenizer(), &[user("a"), user("b")].concat());
        assert!(refused.unwrap_err().to_string().contains("take turns"));
    }

    #[test]
    fn a_template_that_rewrites_is_noticed() {
        // A template that writes only the last message.
        let mut last = script("{{ messages[-1].content }}!", None);
        assert_eq!(text(&last, "a"), ("a!".into(), false));
        say(&mut last, "a", "b");
        assert_eq!(text(&last, "c"), ("c!".into(), true));
        // Words that look like a placeholder are left as they are.
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
            let refused = script(bad, None).next(&tokenizer(), &user("word"));
            assert!(matches!(refused, Err(Error::Tokenizer(TokenizerError::Template { .. }))), "{bad}: {refused:?}");
        }
    }

    #[test]
    fn a_template_that_would_look_into_words_is_known() {
        for (template, looks) in [
            (CHATML, false),
            ("{{ messages[-1].content }}", false),
            (
                "{% if '</think>' in messages[1].content %}{{ messages[1].content.split('</think>')[-1] }}{% endif %}{{ messages[2].content }}",
                true,
            ),
            ("{% for m in messages %}{{ m.content.replace('/no_think', '') }}{% endfor %}", true),
            ("{% for m in messages %}{% if m.content is string %}{{ m.content }}{% endif %}{% endfor %}", false),
        ] {
            assert_eq!(script(template, Some("be brief")).looks(&tokenizer()), looks, "{template}");
        }
    }

    /// The time is fixed within a conversation, so that its text grows only at the end.
    #[test]
    fn a_template_gets_the_time_at_which_a_conversation_began() {
        let mut dated = script(&format!("{{{{ strftime_now('%Y-%m-%dT%H:%M:%S') }}}}{CHATML}"), None);
        let clock = dated.clock().unwrap()[..19].to_owned();
        assert_eq!(say(&mut dated, "a", "b"), format!("{clock}<user>a<end><assistant>"));
        assert_eq!(text(&dated, "c"), ("<end><user>c<end><assistant>".into(), false));
        assert_eq!(script(CHATML, None).clock(), None);
    }

    /// Public tokens and the tokens of the first turn, joined, are those of the joined text; later turns and other
    /// conversations go on behind the same public tokens.
    #[test]
    fn a_public_beginning_is_left_out_of_the_first_turn() {
        let tokenizer =
            |name: &str| Tokenizer::from_bytes(&waggle_model::bundled(name).unwrap().tokenizer.unwrap()).unwrap();
        for (template, system, head) in [
            (Some(CHATML), Some(" be brief "), "<system>be brief<end><user>"),
            (Some(CHATML), None, "<user>"),
            (None, Some("A play."), "A play.\n"),
        ] {
            for (name, joins) in [("shakespeare-gpt2", true), ("stories260k", false)] {
                let tokenizer = tokenizer(name);
                let of = |text: &str| ChatTemplate { template: text.into(), tokens: Default::default() };
                let mut script = Script::new(template.map(of), system.map(str::to_owned));
                let whole = script.next(&tokenizer, &user("Well")).unwrap().text;
                let ids = script.publish(&tokenizer).unwrap();
                let first = script.next(&tokenizer, &user("Well")).unwrap();
                assert_eq!((format!("{}{}", script.head, first.text), first.begins), (whole.clone(), false));
                assert!(head.starts_with(&script.head), "{}", script.head);
                if joins {
                    assert_eq!(script.head, head);
                    let rest = tokenizer.encode_more(&first.text).unwrap();
                    assert_eq!([ids, rest].concat(), tokenizer.encode_more(&whole).unwrap());
                }
                let begins = first.text.clone();
                script.answered(first, "x");
                let later = script.next(&tokenizer, &user("so")).unwrap().text;
                assert!(!["be brief", "A play"].iter().any(|words| later.contains(words)), "{later}");
                script.reset();
                assert_eq!(script.next(&tokenizer, &user("Well")).unwrap().text, begins);
            }
        }
        let tokenizer = tokenizer("shakespeare-gpt2");
        let none = Script::new(None, None).publish(&tokenizer).unwrap_err();
        assert!(matches!(none, Error::Chat(ChatError::NoHead)), "{none}");
        // A conversation that the template begins otherwise is no longer behind the public text.
        let mut other = script("{{ messages | length }}{{ messages[-1].content }}", None);
        other.publish(&tokenizer).unwrap();
        let step = other.next(&tokenizer, &user("a")).unwrap();
        other.answered(step, "b");
        assert!(other.next(&tokenizer, &user("c")).is_err());
    }

    #[test]
    fn raw_words_stand_on_lines_of_their_own() {
        let mut script = Script::new(None, Some("A play.".into()));
        let first = script.next(&tokenizer(), &user("ROMEO:")).unwrap();
        assert_eq!((&first.text[..], first.begins, first.marked), ("A play.\nROMEO:\n", true, false));
        script.answered(first, "I will");
        let second = script.next(&tokenizer(), &user("JULIET:")).unwrap();
        assert_eq!((&second.text[..], second.begins), ("\nJULIET:\n", false));
        script.answered(second, "No.\n");
        assert_eq!(script.next(&tokenizer(), &user("ROMEO:")).unwrap().text, "ROMEO:\n");
        script.reset();
        assert_eq!(script.next(&tokenizer(), &user("ROMEO:")).unwrap().text, "A play.\nROMEO:\n");
    }
}
