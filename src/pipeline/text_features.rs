//! The text features of the last prompts, so that a prompt seen before costs no run of the encoder.

use std::collections::VecDeque;

use crate::backend::Backend;
use crate::tensor::Tensor;

/// Prompts whose features are kept. Those of one take 8 MB in the 4B model.
const CAPACITY: usize = 8;

/// Features of prompts, the one used last at the end.
pub(super) struct TextFeatures<B: Backend> {
    prompts: VecDeque<(String, Tensor<B>)>,
}

impl<B: Backend> TextFeatures<B> {
    pub(super) fn new() -> Self {
        Self { prompts: VecDeque::with_capacity(CAPACITY) }
    }

    /// Features [tokens, features] of a prompt, to read.
    pub(super) fn get(&mut self, prompt: &str) -> Option<Tensor<B>> {
        let at = self.prompts.iter().position(|(known, _)| known == prompt)?;
        let used = self.prompts.remove(at)?;
        let features = used.1.row_view(0..used.1.rows());
        self.prompts.push_back(used);
        Some(features)
    }

    /// Keeps the features of a prompt, in place of those that were not used for longest.
    pub(super) fn insert(&mut self, prompt: &str, features: Tensor<B>) {
        if self.prompts.len() == CAPACITY {
            self.prompts.pop_front();
        }
        self.prompts.push_back((prompt.to_string(), features));
    }

    pub(super) fn clear(&mut self) {
        self.prompts.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::{Cpu, Precision};

    #[test]
    fn the_prompt_that_was_not_used_for_longest_goes() {
        let cpu = Cpu::new(Precision::F32);
        let mut kept = TextFeatures::new();
        for i in 0..CAPACITY {
            kept.insert(&i.to_string(), cpu.upload(&[i as f32], 1, 1).unwrap());
        }
        assert_eq!(cpu.download(&kept.get("0").unwrap()).unwrap(), [0.0]);
        kept.insert("new", cpu.upload(&[9.0], 1, 1).unwrap());
        assert!(kept.get("0").is_some() && kept.get("new").is_some() && kept.get("1").is_none());
        kept.clear();
        assert!(kept.get("0").is_none());
    }
}
