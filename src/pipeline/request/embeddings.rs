//! Text features that replace prompts, or that a caller saves.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::files::{Array, ArrayFile, ArrayTarget, encode_arrays};
use crate::model::info::MAX_TEXT_TOKENS;
use crate::pipeline::request::source::ValueOrigin;

/// The names of the tensors, equal to the argument names of the reference.
const PROMPT: &str = "prompt_embeds";
const NEGATIVE: &str = "negative_prompt_embeds";

/// Text features of a prompt and, with guidance, of the negative prompt: float32 [tokens, features] each. All rows
/// are read, including padding; row i has the text position i. The two may have different numbers of tokens.
///
/// Their file is safetensors with the tensors `prompt_embeds` and, for guidance, `negative_prompt_embeds`, [tokens,
/// features] or [1, tokens, features].
#[derive(Debug, Clone, PartialEq)]
pub struct Embeddings {
    prompt: Arc<Array>,
    negative: Option<Arc<Array>>,
    source: ValueOrigin,
}

impl Embeddings {
    /// Creates embeddings from features of a prompt and, for guidance, of the negative prompt: [tokens, features] or
    /// [1, tokens, features].
    ///
    /// Errors if a shape is different, there are more than 65536 tokens, or the two have different features.
    pub fn new(prompt: Array, negative: Option<Array>) -> Result<Self> {
        let prompt = matrix(PROMPT, prompt)?;
        let negative = negative.map(|negative| matrix(NEGATIVE, negative)).transpose()?;
        if let Some(negative) = negative.as_ref().filter(|negative| negative.shape[1] != prompt.shape[1]) {
            let features = [negative.shape[1], prompt.shape[1]];
            return Err(Error::usage(format!(
                "`{NEGATIVE}` has {} features, but `{PROMPT}` has {}",
                features[0], features[1]
            ))
            .hint("create both with the same model"));
        }
        Ok(Self { prompt: Arc::new(prompt), negative: negative.map(Arc::new), source: ValueOrigin::default() })
    }

    /// Reads embeddings from a file, and the prompt in its metadata.
    ///
    /// Errors if the file cannot be read, or as [`Embeddings::new`].
    pub fn read(path: &Path) -> Result<(Self, Option<String>)> {
        Self::from_file(&ArrayFile::read(path)?)
    }

    /// Reads embeddings from a file in memory, and the prompt in its metadata.
    ///
    /// Errors as [`Embeddings::read`].
    pub fn from_file(file: &ArrayFile) -> Result<(Self, Option<String>)> {
        let negative = file.get(NEGATIVE)?;
        let embeddings = Self::new(file.get_or_only(PROMPT)?, negative).map_err(|e| e.at_path(file.path()))?;
        let embeddings = Self { source: file.path().into(), ..embeddings };
        Ok((embeddings, file.metadata().remove("prompt")))
    }

    /// Writes embeddings to a file.
    ///
    /// Errors if the file cannot be written.
    pub fn write(&self, target: &ArrayTarget, metadata: HashMap<String, String>) -> Result<()> {
        self.with_arrays(|arrays| target.write(arrays, metadata))
    }

    /// Returns the bytes of a file with the embeddings.
    ///
    /// Errors never for embeddings that were created.
    pub fn encode(&self) -> Result<Vec<u8>> {
        self.with_arrays(|arrays| encode_arrays(arrays, HashMap::new()))
    }

    /// Calls `write` with the tensors of a file: with a batch axis, as the reference takes them.
    fn with_arrays<T>(&self, write: impl FnOnce(&[(&str, &Array)]) -> Result<T>) -> Result<T> {
        let batch = |array: &Array| Array { shape: [&[1], &array.shape[..]].concat(), values: array.values.clone() };
        let (prompt, negative) = (batch(&self.prompt), self.negative.as_deref().map(batch));
        let mut arrays = vec![(PROMPT, &prompt)];
        arrays.extend(negative.as_ref().map(|negative| (NEGATIVE, negative)));
        write(&arrays)
    }

    /// Returns the file that the features were read from, if any.
    pub fn path(&self) -> Option<&Path> {
        self.source.path()
    }

    /// Returns the features of the prompt and of the negative prompt, [tokens, features] each; clones share them.
    pub(crate) fn arrays(&self) -> [Option<&Arc<Array>>; 2] {
        [Some(&self.prompt), self.negative.as_ref()]
    }

    /// Returns the features of the prompt, [tokens, features].
    pub fn prompt(&self) -> &Array {
        &self.prompt
    }

    /// Returns the features of the negative prompt, [tokens, features].
    pub fn negative(&self) -> Option<&Array> {
        self.negative.as_deref()
    }
}

/// Returns the array as [tokens, features].
fn matrix(name: &str, array: Array) -> Result<Array> {
    let Array { shape, values } = array;
    match shape[..] {
        [tokens, features] | [1, tokens, features] if tokens * features > 0 && tokens <= MAX_TEXT_TOKENS => {
            Ok(Array { shape: vec![tokens, features], values })
        }
        _ => Err(Error::usage(format!("`{name}` has shape {shape:?}, expected [1, tokens, features]"))
            .hint(format!("use 1 to {MAX_TEXT_TOKENS} tokens and 7680 features for klein 4B, 12288 for 9B"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(shape: &[usize]) -> Array {
        Array { shape: shape.to_vec(), values: vec![0.5; shape.iter().product()] }
    }

    #[test]
    fn the_axis_of_images_may_be_left_out() {
        let of = |shape: &[usize]| Embeddings::new(array(shape), None);
        assert_eq!(of(&[3, 8]).unwrap(), of(&[1, 3, 8]).unwrap());
        for shape in [&[8][..], &[2, 3, 8], &[0, 8], &[1, 3, 0], &[MAX_TEXT_TOKENS + 1, 1]] {
            let error = of(shape).unwrap_err().to_string();
            assert!(error.contains("[1, tokens, features]") && error.contains("hint: "), "{error}");
        }
    }

    #[test]
    fn the_negative_ones_may_have_other_tokens_but_no_other_features() {
        assert!(Embeddings::new(array(&[3, 8]), Some(array(&[5, 8]))).is_ok());
        let error = Embeddings::new(array(&[3, 8]), Some(array(&[3, 9]))).unwrap_err().to_string();
        assert!(error.contains("9 features") && error.contains("8"), "{error}");
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("e.safetensors");
        let target = ArrayTarget::new(&path, false).unwrap();
        for negative in [None, Some(array(&[2, 8]))] {
            let embeddings = Embeddings::new(array(&[3, 8]), negative).unwrap();
            embeddings.write(&target, HashMap::from([("prompt".to_string(), "a cat".to_string())])).unwrap();
            assert_eq!(Embeddings::read(&path).unwrap(), (embeddings, Some("a cat".to_string())));
        }
    }
}
