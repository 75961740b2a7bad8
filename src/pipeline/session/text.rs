//! The texts of a batch: from prompts to the features that the transformer reads.

use std::ops::Range;
use std::sync::Arc;

use crate::backend::Backend;
use crate::error::{Result, escaped};
use crate::files::Array;
use crate::pipeline::request::embeddings::Embeddings;
use crate::pipeline::request::fields::Request;
use crate::pipeline::request::plan::Plan;
use crate::pipeline::residency::Residency;
use crate::pipeline::residency::known::Known;
use crate::pipeline::residency::prepared::Prepared;
use crate::pipeline::residency::timings::{Clock, Span};
use crate::pipeline::session::shared_text::TextSource;
use crate::sampler::Variety;
use crate::stage::Caller;
use crate::stage::Stage;
use crate::tensor::Tensor;
use crate::text_encoder::PromptTokens;

/// The distinct texts of a batch, and the texts that each item reads.
pub(crate) struct Text {
    texts: Texts,
    /// For each item the indices of its prompt and, with guidance, of its negative prompt in the texts.
    of_items: Vec<Vec<usize>>,
    /// Number of first texts that are those of regions. They form one text with the prompt, which follows them.
    regions: usize,
}

enum Texts {
    Prompts(Vec<Prompt>),
    /// Passed features [tokens, features].
    Given(Vec<Arc<Array>>),
}

struct Prompt {
    text: String,
    tokens: PromptTokens,
}

/// The text features of a batch on the device that computes them.
pub(crate) struct Encoded<'a, B: Backend> {
    text: &'a Text,
    /// Features [tokens of all texts, features]; `None` on other devices of a group, unless they are passed in.
    rows: Option<Tensor<B>>,
    lengths: Vec<usize>,
    /// As in [`TextFeatures`].
    numbers: Vec<Option<u64>>,
}

/// The text features of a batch, concatenated.
pub(crate) struct TextFeatures<B: Backend> {
    /// Features [tokens of all texts, features].
    pub(crate) rows: Tensor<B>,
    /// Each text.
    texts: Vec<TextRows>,
    /// As in [`Text`].
    of_items: Vec<Vec<usize>>,
}

/// A text among text features.
#[derive(Debug, Clone)]
pub(crate) struct TextRows {
    pub(crate) rows: Range<usize>,
    /// Number of the text, the cache key of results computed from it, see [`Known`]; `None` if the features are not
    /// cached here.
    pub(crate) number: Option<u64>,
    /// Number of rows that are not padding, as far as it is known.
    pub(crate) prompt: usize,
}

impl<B: Backend> TextFeatures<B> {
    /// Returns the distinct texts that the first `samples` items read in these evaluations of a step. Also returns
    /// the index of the text for each evaluation and item.
    pub(crate) fn read(&self, evaluations: Range<usize>, samples: usize) -> (Vec<TextRows>, Vec<usize>) {
        let (mut texts, mut places) = (Vec::new(), Vec::new());
        for evaluation in evaluations {
            for texts_of_item in &self.of_items[..samples] {
                let text = texts_of_item[evaluation];
                let known = texts.iter().position(|known| *known == text);
                places.push(known.unwrap_or_else(|| {
                    texts.push(text);
                    texts.len() - 1
                }));
            }
        }
        (texts.into_iter().map(|text| self.texts[text].clone()).collect(), places)
    }

    /// Returns the features with noise on the prompt of each item, from the seeds of the items. Padding and negative
    /// prompts have none. The features with noise are not cached.
    ///
    /// Errors if memory runs out.
    pub(crate) fn varied(&self, variety: Variety, seeds: &[u64]) -> Result<Self> {
        let (backend, columns) = (self.rows.backend(), self.rows.cols());
        let mut parts = vec![self.rows.row_view(0..self.rows.rows())];
        let (mut texts, mut of_items) = (self.texts.clone(), self.of_items.clone());
        let mut end = self.rows.rows();
        for (of_item, seed) in of_items.iter_mut().zip(seeds) {
            let TextRows { rows, prompt, .. } = &self.texts[of_item[0]];
            let (words, padding) = (rows.start..rows.start + prompt, rows.start + prompt..rows.end);
            let words = self.rows.row_view(words);
            let noise = variety.noise(*seed, &backend.download(&words)?);
            parts.push(words.add(&backend.upload(&noise, *prompt, columns)?)?);
            parts.push(self.rows.row_view(padding));
            texts.push(TextRows { rows: end..end + rows.len(), number: None, prompt: *prompt });
            of_item[0] = texts.len() - 1;
            end += rows.len();
        }
        let parts: Vec<_> = parts.iter().filter(|part| part.rows() > 0).collect();
        Ok(Self { rows: Tensor::concat_rows(&parts)?, texts, of_items })
    }

    /// Returns the rows of the texts of an item.
    pub(crate) fn item_rows(&self, item: usize) -> impl Iterator<Item = Range<usize>> {
        self.of_items[item].iter().map(|text| self.texts[*text].rows.clone())
    }
}

impl Text {
    /// Reads the prompts or features of requests of one shape, with their plans; `tokenize` converts a prompt to a
    /// number of tokens. A plan gets a note for each of its prompts that is truncated.
    ///
    /// Errors as `tokenize` does.
    pub(crate) fn read(
        requests: &[Request],
        plans: &mut [Plan],
        tokenize: impl Fn(&str, usize) -> Result<PromptTokens>,
    ) -> Result<Self> {
        let given = requests.iter().map(|request| request.embeddings.as_ref()).collect::<Option<Vec<_>>>();
        if let Some(given) = given {
            return Ok(Self::given(&given, plans));
        }
        let (mut prompts, mut of_items): (Vec<Prompt>, _) = (Vec::new(), Vec::new());
        let mut regions = 0;
        for (request, plan) in requests.iter().zip(plans) {
            // Items with regions are alone.
            for (region, length) in request.regions.iter().zip(plan.region_texts().to_vec()) {
                let tokens = tokenize(&region.prompt, length)?;
                regions += 1;
                plan.notes.extend(cut_note(&format!("the text of region {regions}"), &region.prompt, &tokens));
                prompts.push(Prompt { text: region.prompt.clone(), tokens });
            }
            let (guided, lengths) = (plan.guided(), [plan.prompt_tokens(), plan.negative_tokens]);
            let mut read = |name: &str, text: &str, length: usize| {
                let known = (regions..prompts.len()).find(|place| prompts[*place].text == text);
                let place = known.map_or_else(
                    || {
                        let tokens = tokenize(text, length)?;
                        prompts.push(Prompt { text: text.to_string(), tokens });
                        Ok(prompts.len() - 1)
                    },
                    Ok,
                )?;
                plan.notes.extend(cut_note(name, text, &prompts[place].tokens));
                Ok(place)
            };
            let mut of_item = vec![read("the prompt", &request.prompt, lengths[0])?];
            if guided {
                let negative = request.negative.as_deref().unwrap_or_default();
                of_item.push(read("the negative prompt", negative, lengths[1])?);
            }
            of_items.push(of_item);
        }
        Ok(Self { texts: Texts::Prompts(prompts), of_items, regions })
    }

    fn given(given: &[&Embeddings], plans: &[Plan]) -> Self {
        let mut texts: Vec<Arc<Array>> = Vec::new();
        let mut place = |features: &Arc<Array>| {
            let known = texts.iter().position(|known| Arc::ptr_eq(known, features));
            known.unwrap_or_else(|| {
                texts.push(Arc::clone(features));
                texts.len() - 1
            })
        };
        let of_item = |(embeddings, plan): (&&Embeddings, &Plan)| {
            let evaluations = if plan.guided() { 2 } else { 1 };
            embeddings.arrays().into_iter().take(evaluations).flatten().map(&mut place).collect()
        };
        let of_items = given.iter().zip(plans).map(of_item).collect();
        Self { texts: Texts::Given(texts), of_items, regions: 0 }
    }

    /// Returns the features of all texts. The text encoder runs only for prompts that are not cached, and only on the
    /// first device of a group, unless `reader` names another group.
    ///
    /// Errors if memory runs out, or the caller cancels.
    pub(crate) fn encode<B: Backend>(
        &self,
        residency: &Residency<B>,
        prepared: &Prepared,
        reader: &TextSource,
        caller: &Caller<'_>,
        clock: &mut Clock<B>,
    ) -> Result<Encoded<'_, B>> {
        caller.check()?;
        let backend = residency.backend();
        let (features, lengths, numbers) = match &self.texts {
            Texts::Prompts(prompts) => {
                let features = if backend.rank() == 0 {
                    read(prompts, residency, prepared, reader, caller, clock)?
                } else {
                    residency.prefetch(&prepared.memory, false);
                    Vec::new()
                };
                let (features, numbers): (Vec<_>, Vec<_>) =
                    features.into_iter().map(|known| (known.rows, Some(known.number))).unzip();
                (features, prompts.iter().map(|prompt| prompt.tokens.ids.len()).collect(), numbers)
            }
            Texts::Given(texts) => {
                residency.prefetch(&prepared.memory, false);
                let upload = |array: &Arc<Array>| backend.upload(&array.values, array.shape[0], array.shape[1]);
                let features = texts.iter().map(upload).collect::<Result<Vec<_>>>()?;
                (features, texts.iter().map(|array| array.shape[0]).collect(), Vec::new())
            }
        };
        let concat = || Tensor::concat_rows(&features.iter().collect::<Vec<_>>());
        let rows = (!features.is_empty()).then(concat).transpose()?;
        clock.end(Span::Text)?;
        Ok(Encoded { text: self, rows, lengths, numbers })
    }
}

impl<B: Backend> Encoded<'_, B> {
    /// Copies the features to all devices.
    ///
    /// Errors if memory runs out, or another device fails.
    pub(crate) fn share(self, residency: &Residency<B>) -> Result<TextFeatures<B>> {
        let Self { text, rows, lengths, numbers } = self;
        let rows = match (&text.texts, rows) {
            (Texts::Given(_), Some(rows)) => rows,
            (_, rows) => {
                let shape = [lengths.iter().sum(), residency.info().transformer.joint_attention_dim];
                Tensor::broadcast(residency.backend(), rows, shape)?
            }
        };
        let mut end = 0;
        let texts = lengths.into_iter().enumerate().map(|(place, length)| {
            end += length;
            let prompt = match &text.texts {
                Texts::Prompts(prompts) => prompts.get(place).map_or(length, |prompt| prompt.tokens.real.min(length)),
                Texts::Given(_) => length,
            };
            match text.regions {
                regions if regions > 0 && place == regions => TextRows { rows: 0..end, number: None, prompt },
                _ => TextRows { rows: end - length..end, number: numbers.get(place).copied().flatten(), prompt },
            }
        });
        Ok(TextFeatures { rows, texts: texts.collect(), of_items: text.of_items.clone() })
    }
}

/// Returns the features of each prompt, computed here or by another device.
fn read<B: Backend>(
    prompts: &[Prompt],
    residency: &Residency<B>,
    prepared: &Prepared,
    reader: &TextSource,
    caller: &Caller<'_>,
    clock: &mut Clock<B>,
) -> Result<Vec<Known<B>>> {
    let backend = residency.backend();
    match reader {
        TextSource::Own => encode(prompts, residency, prepared, caller, clock),
        TextSource::First(shared) => {
            let features = encode(prompts, residency, prepared, caller, clock)?;
            let tokens = prompts.iter().map(|prompt| &prompt.tokens);
            shared.give(tokens, |place| {
                let features = &features[place].rows;
                Ok(Array { shape: vec![features.rows(), features.cols()], values: backend.download(features)? })
            })?;
            Ok(features)
        }
        TextSource::Other(shared) => {
            residency.prefetch(&prepared.memory, false);
            let cached: Vec<_> = prompts.iter().filter_map(|prompt| cached(prompt, residency)).collect();
            if cached.len() == prompts.len() {
                return Ok(cached);
            }
            let Some(made) = shared.wait(caller)? else {
                let plan = Plan { is_read_elsewhere: false, ..prepared.plan.clone() };
                let here = residency.prepare(plan)?;
                return encode(prompts, residency, &here, caller, clock);
            };
            let value_bytes = backend.costs().element_bytes;
            let upload = |(prompt, made): (&Prompt, &Arc<Array>)| {
                let features = backend.upload(&made.values, made.shape[0], made.shape[1])?;
                Ok(residency.prompts.insert(&prompt.tokens, features, value_bytes))
            };
            prompts.iter().zip(&made).map(upload).collect()
        }
    }
}

/// Returns the cached features of a prompt. The session holds them, so that the cache may drop them for a new prompt
/// or for memory.
fn cached<B: Backend>(prompt: &Prompt, residency: &Residency<B>) -> Option<Known<B>> {
    residency.prompts.get(&prompt.tokens)
}

/// Returns the features of each prompt; the text encoder computes those that are not cached.
fn encode<B: Backend>(
    prompts: &[Prompt],
    residency: &Residency<B>,
    prepared: &Prepared,
    caller: &Caller<'_>,
    clock: &mut Clock<B>,
) -> Result<Vec<Known<B>>> {
    let mut features: Vec<Option<Known<B>>> = prompts.iter().map(|prompt| cached(prompt, residency)).collect();
    let new = features.iter().filter(|known| known.is_none()).count();
    residency.prefetch(&prepared.memory, new > 0);
    if new > 0 {
        let encoder = residency.text_encoder(prepared, caller, clock)?;
        let value_bytes = residency.backend().costs().element_bytes;
        let (layers, total) = (encoder.layers(), (new * encoder.layers()) as u64);
        let missing = features.iter_mut().zip(prompts).filter(|(features, _)| features.is_none());
        for (i, (features, prompt)) in missing.enumerate() {
            let encoded = encoder.forward(&prompt.tokens, |done| {
                caller.report(Stage::Text, (i * layers + done) as u64, total);
                caller.check()
            })?;
            *features = Some(residency.prompts.insert(&prompt.tokens, encoded, value_bytes));
        }
    }
    clock.ran_text_encoder(new);
    Ok(features.into_iter().flatten().collect())
}

/// Returns a note for the user if a prompt is truncated; `name` is the name of the prompt.
fn cut_note(name: &str, text: &str, tokens: &PromptTokens) -> Option<String> {
    let truncated = tokens.truncated;
    // Without words, only the template is truncated.
    if truncated == 0 || text.is_empty() {
        return None;
    }
    let lost = first_words(text.get(tokens.cut_at..)).map_or(String::new(), |words| format!(", from `{words}` on"));
    Some(format!("{name} is {truncated} tokens longer than the model reads; its end is cut off{lost}"))
}

/// Returns the beginning of a text for a message, on one line; `None` if there are no words.
fn first_words(text: Option<&str>) -> Option<String> {
    const MAX: usize = 60;
    let text = text?.trim();
    let mut words = escaped(&text.chars().take(MAX).collect::<String>()).into_owned();
    if text.chars().nth(MAX).is_some() {
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
