//! The text of a session: from prompts to the features that the transformer reads.

use std::sync::Arc;

use super::progress::Caller;
use super::residency::Residency;
use super::shared_text::Reader;
use super::timings::Clock;
use super::{Embeddings, Plan, Request, Stage};
use crate::backend::Backend;
use crate::error::{Result, escaped};
use crate::files::Array;
use crate::tensor::Tensor;
use crate::text_encoder::PromptTokens;

/// What a session reads.
pub(super) enum Text {
    /// The prompt, and with guidance the negative one.
    Prompts(Vec<Prompt>),
    /// Their features.
    Given(Embeddings),
}

pub(super) struct Prompt {
    text: String,
    tokens: PromptTokens,
}

impl Text {
    /// Reads the prompts; `tokenize` makes a prompt a number of tokens. The plan gets a note for each that is cut off.
    ///
    /// Errors as `tokenize` does.
    pub(super) fn read(
        request: &Request,
        plan: &mut Plan,
        tokenize: impl Fn(&str, usize) -> Result<PromptTokens>,
    ) -> Result<Self> {
        if let Some(embeddings) = &request.embeddings {
            return Ok(Self::Given(embeddings.clone()));
        }
        let mut prompts = Vec::new();
        let mut read = |name: &str, text: &str| {
            let tokens = tokenize(text, plan.text_tokens)?;
            plan.notes.extend(cut_note(name, text, &tokens));
            prompts.push(Prompt { text: text.to_string(), tokens });
            Ok(())
        };
        read("the prompt", &request.prompt)?;
        if plan.guidance > 1.0 {
            read("the negative prompt", plan.negative.as_deref().unwrap_or_default())?;
        }
        Ok(Self::Prompts(prompts))
    }

    /// The features [tokens, features] of the prompt; with guidance those of the negative prompt are the rows below.
    /// The text encoder runs only for prompts that are not cached, and on the first device of a group only, unless the
    /// `reader` says that another group does it.
    ///
    /// Errors when memory runs out, or the caller cancels.
    pub(super) fn encode<B: Backend>(
        &self,
        residency: &Residency<B>,
        plan: &Plan,
        reader: &Reader,
        caller: &Caller<'_>,
        clock: &mut Clock<B>,
    ) -> Result<Tensor<B>> {
        caller.check()?;
        match self {
            Self::Prompts(prompts) => {
                let backend = residency.backend();
                let encoded = if backend.rank() == 0 {
                    let features = read(prompts, residency, plan, reader, caller, clock)?;
                    Some(Tensor::concat_rows(&features.iter().collect::<Vec<_>>())?)
                } else {
                    residency.prefetch(plan, false)?;
                    None
                };
                clock.encoded()?;
                backend.gather_host("the text", 0)?;
                let shape = [plan.text().iter().sum(), residency.info().transformer.joint_attention_dim];
                Tensor::broadcast(backend, encoded, shape)
            }
            Self::Given(embeddings) => {
                residency.prefetch(plan, false)?;
                let negative = embeddings.negative().filter(|_| plan.guided());
                let upload = |array: &Array| residency.backend().upload(&array.values, array.shape[0], array.shape[1]);
                let features = [Some(embeddings.prompt()), negative].into_iter().flatten().map(upload);
                let features = features.collect::<Result<Vec<_>>>()?;
                let txt = Tensor::concat_rows(&features.iter().collect::<Vec<_>>())?;
                clock.encoded()?;
                Ok(txt)
            }
        }
    }
}

/// The features of each prompt, made here or by another device.
fn read<B: Backend>(
    prompts: &[Prompt],
    residency: &Residency<B>,
    plan: &Plan,
    reader: &Reader,
    caller: &Caller<'_>,
    clock: &mut Clock<B>,
) -> Result<Vec<Tensor<B>>> {
    let backend = residency.backend();
    match reader {
        Reader::Own => encode(prompts, residency, plan, caller, clock),
        Reader::First(shared) => {
            let features = encode(prompts, residency, plan, caller, clock)?;
            let named = prompts.iter().map(|prompt| (prompt.text.as_str(), prompt.tokens.ids.len()));
            shared.give(named, |place| {
                let features = &features[place];
                Ok(Array { shape: vec![features.rows(), features.cols()], values: backend.download(features)? })
            })?;
            Ok(features)
        }
        Reader::Other(shared) => {
            residency.prefetch(plan, false)?;
            let cached: Vec<_> = prompts.iter().filter_map(|prompt| cached(prompt, residency)).collect();
            if cached.len() == prompts.len() {
                return Ok(cached);
            }
            let Some(made) = shared.wait(caller)? else {
                let here = Plan { is_read_elsewhere: false, ..plan.clone() };
                return encode(prompts, residency, &here, caller, clock);
            };
            let upload = |(prompt, made): (&Prompt, &Arc<Array>)| {
                let features = backend.upload(&made.values, made.shape[0], made.shape[1])?;
                let held = features.row_view(0..features.rows());
                residency.prompts.insert(&prompt.text, features);
                Ok(held)
            };
            prompts.iter().zip(&made).map(upload).collect()
        }
    }
}

/// The session holds what is cached, so that the cache may drop it for a new prompt or for memory.
fn cached<B: Backend>(prompt: &Prompt, residency: &Residency<B>) -> Option<Tensor<B>> {
    residency.prompts.get(&prompt.text, prompt.tokens.ids.len())
}

/// The features of each prompt, which the text encoder makes where they are not cached.
fn encode<B: Backend>(
    prompts: &[Prompt],
    residency: &Residency<B>,
    plan: &Plan,
    caller: &Caller<'_>,
    clock: &mut Clock<B>,
) -> Result<Vec<Tensor<B>>> {
    let mut features: Vec<Option<Tensor<B>>> = prompts.iter().map(|prompt| cached(prompt, residency)).collect();
    let mut new: Vec<&Prompt> =
        prompts.iter().zip(&features).filter(|(_, known)| known.is_none()).map(|(prompt, _)| prompt).collect();
    new.dedup_by(|a, b| a.text == b.text); // the prompt may be the negative one
    residency.prefetch(plan, !new.is_empty())?;
    if !new.is_empty() {
        let encoder = residency.text_encoder(plan, caller, clock)?;
        let (layers, total) = (encoder.layers(), (new.len() * encoder.layers()) as u64);
        for (i, new) in new.iter().enumerate() {
            let encoded = encoder.forward(&new.tokens, |done| {
                caller.report(Stage::Text, (i * layers + done) as u64, total);
                caller.check()
            })?;
            for (features, _) in features.iter_mut().zip(prompts).filter(|(_, prompt)| prompt.text == new.text) {
                *features = Some(encoded.row_view(0..encoded.rows()));
            }
            residency.prompts.insert(&new.text, encoded);
        }
    }
    clock.ran_text_encoder(new.len());
    Ok(features.into_iter().flatten().collect())
}

/// What someone should know of a prompt that is cut off; `name` is what to call it.
fn cut_note(name: &str, text: &str, tokens: &PromptTokens) -> Option<String> {
    let truncated = tokens.truncated;
    // Where there are no words, only the template is cut.
    if truncated == 0 || text.is_empty() {
        return None;
    }
    let lost = first_words(text.get(tokens.cut_at..)).map_or(String::new(), |words| format!(", from `{words}` on"));
    Some(format!("{name} is {truncated} tokens longer than the model reads; its end is cut off{lost}"))
}

/// The beginning of a text for a message, on one line; `None` where there are no words.
fn first_words(text: Option<&str>) -> Option<String> {
    const MOST: usize = 60;
    let text = text?.trim();
    let mut words = escaped(&text.chars().take(MOST).collect::<String>()).into_owned();
    if text.chars().nth(MOST).is_some() {
        words.push_str("...");
    }
    (!words.is_empty()).then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_are_cut_off_are_quoted_on_one_line() {
        assert_eq!(first_words(Some(" a\ncat\t")).as_deref(), Some("a\\ncat"));
        assert_eq!(first_words(Some(&"ä".repeat(60))), Some("ä".repeat(60)));
        assert_eq!(first_words(Some(&"ä".repeat(61))), Some("ä".repeat(60) + "..."));
        assert_eq!(first_words(Some(" ")), None);
        assert_eq!(first_words(None), None);
    }
}
