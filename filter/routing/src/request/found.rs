//! What was found in a body so far, whatever its format, and how it becomes facts.

use super::kept::Kept;
use super::keys::{Field, PARTS, Part};
use super::{Api, Facts, ModelAt, PromptSize};
use crate::limits::COMPLETIONS_MAX_OUTPUT;
use berth_shared_state::units::Tokens;

/// Values as the body gave them last, and the size of each part of the prompt.
#[derive(Clone, Debug)]
pub(super) struct Found {
    api: Api,
    model: Name,
    adapter: Name,
    /// Where `model` stands.
    model_at: Option<ModelAt>,
    cache_salt: Option<String>,
    user: Option<String>,
    stream: bool,
    max_output: Option<u64>,
    max_completion: Option<u64>,
    choices: Option<u64>,
    best_of: Option<u64>,
    truncate: Option<u64>,
    /// The `source` being read has plain text as data.
    pub(super) source_is_text: bool,
    /// Refers to history that is not in the request.
    pub(super) hidden: bool,
    /// The part that text and tokens are added to.
    part: Part,
    parts: [Portion; PARTS],
}

/// Size of one part of the prompt.
#[derive(Clone, Copy, Debug, Default)]
struct Portion {
    size: PromptSize,
    prompts: u32,
}

#[derive(Clone, Debug, Default)]
enum Name {
    #[default]
    Absent,
    Known(String),
    TooLong,
}

impl Found {
    pub(super) fn new(api: Api) -> Self {
        Self {
            api,
            model: Name::Absent,
            adapter: Name::Absent,
            model_at: None,
            cache_salt: None,
            user: None,
            stream: false,
            max_output: None,
            max_completion: None,
            choices: None,
            best_of: None,
            truncate: None,
            source_is_text: false,
            hidden: false,
            part: Part::Prompt,
            parts: [Portion::default(); PARTS],
        }
    }

    /// What follows is this part; what an earlier key of the same meaning gave is void.
    pub(super) fn begin(&mut self, part: Part) {
        self.part = part;
        self.add(|portion| *portion = Portion::default());
    }

    /// A string value, or a form field. Numbers in quotes count: lenient engines take them.
    pub(super) fn string(&mut self, field: Field, value: &Kept) {
        match field {
            Field::Model => self.model = Name::of(value),
            Field::Adapter => self.adapter = Name::of(value),
            Field::CacheSalt => self.cache_salt = Some(String::from_utf8_lossy(value.start()).into_owned()),
            Field::User => self.user = Some(String::from_utf8_lossy(value.start()).into_owned()),
            Field::SourceType => self.source_is_text = value.start() == b"text",
            _ => self.scalar(field, value.whole().unwrap_or_default()),
        }
    }

    /// A number, `true`, `false` or `null`.
    pub(super) fn scalar(&mut self, field: Field, text: &[u8]) {
        let number = number(text);
        match field {
            Field::Model => self.model = Name::Absent,
            Field::Adapter => self.adapter = Name::Absent,
            Field::CacheSalt => self.cache_salt = None,
            Field::User => self.user = None,
            Field::Stream => self.stream = text.eq_ignore_ascii_case(b"true") || text == b"1",
            Field::MaxOutput => self.max_output = number,
            Field::MaxCompletion => self.max_completion = number,
            Field::Choices => self.choices = number,
            Field::BestOf => self.best_of = number,
            Field::TruncatePrompt => self.truncate = number,
            Field::SourceType => {}
        }
    }

    /// The last `model` is the bytes `start..end` of the body.
    pub(super) fn model_stands(&mut self, start: usize, end: usize, quoted: bool) {
        self.model_at = Some(ModelAt { start, end, quoted });
    }

    /// Prompt text.
    pub(super) fn text(&mut self, bytes: usize, other: usize) {
        self.add(|portion| {
            portion.size.ascii_bytes += (bytes - other.min(bytes)) as u64;
            portion.size.other_bytes += other as u64;
        });
    }

    /// A token given as a number.
    pub(super) fn token(&mut self) {
        self.add(|portion| portion.size.tokens += 1);
    }

    /// A part with a fixed cost.
    pub(super) fn media(&mut self) {
        self.add(|portion| portion.size.media_parts = portion.size.media_parts.saturating_add(1));
    }

    /// A message.
    pub(super) fn message(&mut self) {
        self.add(|portion| portion.size.messages = portion.size.messages.saturating_add(1));
    }

    /// A prompt of possibly several.
    pub(super) fn prompt(&mut self) {
        self.add(|portion| portion.prompts = portion.prompts.saturating_add(1));
    }

    /// Prompts in the part being read.
    pub(super) fn prompts(&self) -> u32 {
        self.portion(self.part).prompts
    }

    fn add(&mut self, change: impl FnOnce(&mut Portion)) {
        if let Some(portion) = self.parts.get_mut(self.part as usize) {
            change(portion);
        }
    }

    fn portion(&self, part: Part) -> Portion {
        self.parts.get(part as usize).copied().unwrap_or_default()
    }

    /// The facts so far.
    pub(super) fn facts(&self) -> Facts {
        let (mut prompt, prompts) = self.prompt_size();
        prompt.hidden = self.hidden;
        prompt.at_most = self
            .truncate
            .map(|each| Tokens(each.saturating_mul(u64::from(prompts))));
        let name = if matches!(self.adapter, Name::Absent) {
            &self.model
        } else {
            &self.adapter
        };
        let choices = self.choices.max(self.best_of).unwrap_or(1).max(1);
        Facts {
            api: Some(self.api),
            model: if let Name::Known(name) = name {
                Some(name.clone())
            } else {
                None
            },
            // Another field that decides is not known by its place.
            model_at: match name {
                Name::Known(_) if matches!(self.adapter, Name::Absent) => self.model_at,
                _ => None,
            },
            model_too_long: matches!(name, Name::TooLong),
            prompt,
            max_output: self.output_bound().map(Tokens),
            choices: u32::try_from(choices).unwrap_or(u32::MAX),
            prompts,
            stream: self.stream,
            cache_salt: self.cache_salt.clone(),
            user: self.user.clone(),
            complete: false,
            malformed: false,
        }
    }

    fn output_bound(&self) -> Option<u64> {
        let asked = self.max_completion.or(self.max_output);
        match self.api {
            Api::Embeddings | Api::Rerank | Api::Tokenize => Some(0),
            Api::Completions => asked.or(Some(COMPLETIONS_MAX_OUTPUT)),
            _ => asked,
        }
    }

    /// The whole prompt, and the number of prompts. One query stands before each document; two
    /// lists are pairs.
    fn prompt_size(&self) -> (PromptSize, u32) {
        let (query, documents) = (self.portion(Part::Query).prompts, self.portion(Part::Documents).prompts);
        let copies = if query == 1 { documents.max(1) } else { 1 };
        let mut size = PromptSize::default();
        for (index, portion) in self.parts.iter().enumerate() {
            let times = if index == Part::Query as usize { copies } else { 1 };
            add(&mut size, &portion.size, times);
        }
        let prompts = if self.api == Api::Rerank {
            query.max(documents)
        } else {
            self.portion(Part::Prompt).prompts
        };
        (size, prompts.max(1))
    }
}

impl Name {
    /// An empty name asks for the base, as vLLM reads it.
    fn of(value: &Kept) -> Self {
        match value.whole() {
            Some([]) => Self::Absent,
            Some(name) => Self::Known(String::from_utf8_lossy(name).into_owned()),
            None => Self::TooLong,
        }
    }
}

fn add(sum: &mut PromptSize, part: &PromptSize, times: u32) {
    let wide = u64::from(times);
    sum.ascii_bytes = sum.ascii_bytes.saturating_add(part.ascii_bytes.saturating_mul(wide));
    sum.other_bytes = sum.other_bytes.saturating_add(part.other_bytes.saturating_mul(wide));
    sum.tokens = sum.tokens.saturating_add(part.tokens.saturating_mul(wide));
    sum.media_parts = sum.media_parts.saturating_add(part.media_parts.saturating_mul(times));
    sum.messages = sum.messages.saturating_add(part.messages.saturating_mul(times));
}

/// A number as an amount: fractions are cut off, values beyond u64 are its maximum. Anything
/// negative (llama.cpp: no bound) is no amount.
pub(super) fn number(text: &[u8]) -> Option<u64> {
    let text = core::str::from_utf8(text).ok()?.trim();
    if let Ok(whole) = text.parse() {
        return Some(whole);
    }
    let value: f64 = text.parse().ok()?;
    (value >= 0.0).then_some(value as u64)
}
