//! Notes about a prompt, printed before images are generated.

use flux::default_model::knows_a_word_of;
use flux::engine::Recipe;
use flux::engine::controls::missing_lines;
use flux::engine::expand::has_choices;
use flux::error::shortened;
use flux::files::ModelPaths;
use flux::metadata::split_weights;

/// Maximum length of quoted words, in characters.
const MAX_SHOWN: usize = 80;

/// Returns the notes on a recipe's prompt for a model.
pub fn notes(recipe: &Recipe, prompt: &str, model: &ModelPaths) -> Vec<String> {
    if recipe.embeddings.is_some() {
        return Vec::new();
    }
    let is_built_in = model.model.is_none() && model.text_encoder.is_none();
    let is_unknown = is_built_in && !prompt.trim().is_empty() && !knows_a_word_of(prompt, !recipe.inputs.is_empty());
    let unknown = is_unknown.then(|| {
        "the built-in model does not know any word of this prompt: it generates emoji, shapes and colours from their \
         English names; select a larger model with `-d`"
            .to_string()
    });
    let is_template = recipe.template.is_none() && has_choices(&recipe.prompt);
    let choices = is_template.then(|| {
        "choices in the prompt, such as {a|b} or __a__, are read as text; choose words with `--expand`".to_string()
    });
    let lines = missing_lines(&recipe.prompt, &recipe.controls);
    let lines = (!lines.is_empty()).then(|| format!("the prompt begins with `{}`", lines.join(" ")));
    lines.into_iter().chain(adapter_note(prompt)).chain(weight_note(prompt)).chain(choices).chain(unknown).collect()
}

/// Returns a note if the prompt contains `<lora:NAME:STRENGTH>`, an adapter in other programs.
fn adapter_note(prompt: &str) -> Option<String> {
    let lower = prompt.to_ascii_lowercase();
    let (start, kind) =
        ["<lora:", "<lyco:", "<hypernet:"].iter().find_map(|kind| Some((lower.find(kind)?, kind.len())))?;
    let tag = &prompt[start..];
    let tag = &tag[..=tag.find('>')?];
    let (name, strength) = tag[kind..tag.len() - 1].split_once(':').unwrap_or((&tag[kind..tag.len() - 1], "1"));
    Some(format!(
        "`{tag}` is read as part of the prompt; to use an adapter, pass `--lora {name}.safetensors:{strength}`"
    ))
}

/// Returns a note if words of a prompt have weights, as in `(red:1.3)`.
fn weight_note(prompt: &str) -> Option<String> {
    let text = shortened(split_weights(prompt).1?, MAX_SHOWN);
    Some(format!("`{text}` is read as part of the prompt, and its weight as text; describe emphasis in words"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_in_a_prompt_are_told() {
        assert!(weight_note("a (red:1.3) cat").is_some_and(|note| note.starts_with("`(red:1.3)` ")));
        assert_eq!(weight_note(r#"{"scene": "(red:1.3)"}"#), None);
    }

    #[test]
    fn an_adapter_in_a_prompt_is_told() {
        let note = adapter_note("a cat <lora:Style:0.8>, oil").unwrap();
        assert!(note.starts_with("`<lora:Style:0.8>` ") && note.contains("--lora Style.safetensors:0.8"));
        assert!(adapter_note("ä <LoRA:x>").is_some_and(|note| note.contains("--lora x.safetensors:1`")));
        for prompt in ["a cat", "<lora>", "<lora:x", "lora:x>"] {
            assert_eq!(adapter_note(prompt), None, "{prompt}");
        }
    }
}
