//! The command line that makes an image again.

use std::borrow::Cow;
use std::path::PathBuf;

use flux::engine::choice::PrecisionChoice;
use flux::engine::{ImageRecipe, ModelRecipe, Recipe};
use flux::files::Variant;
use flux::input::Sides;
use flux::sampler::{Rng, ScheduleKind};

/// A flag, and its value if it has one.
type Flag = (&'static str, Option<String>);

/// The command line as a shell reads it.
pub fn command_line(made: &ImageRecipe) -> String {
    // There is no NUL in what a command line gave.
    let word = |word: &str| shlex::try_quote(word).map_or_else(|_| word.to_string(), Cow::into_owned);
    let flags =
        flags(made).into_iter().flat_map(|(flag, value)| [Some(flag.to_string()), value.map(|value| word(&value))]);
    ["flux".to_string()].into_iter().chain(flags.flatten()).collect::<Vec<_>>().join(" ")
}

/// The flags, one after the other.
fn flags(made: &ImageRecipe) -> Vec<Flag> {
    let ImageRecipe { recipe, model, .. } = made;
    let Recipe { width, height, steps, seed, guidance, schedule, rng, max_sequence_length, .. } = recipe;
    let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
    let set = |is_set: bool| is_set.then(String::new);
    let ModelRecipe { paths, kv, quantize, precision, attention, .. } = model;
    let sides = |Sides { left, top, right, bottom }: Sides| format!("{left},{top},{right},{bottom}");
    let prompt = recipe.embeddings.is_none().then(|| recipe.prompt.clone());
    let mut flags = vec![
        ("-p", prompt),
        ("--negative", recipe.negative.clone()),
        ("-d", path(&paths.model)),
        ("--text-encoder", path(&paths.text_encoder)),
        ("--vae", path(&paths.vae)),
        ("--tokenizer", path(&paths.tokenizer)),
        ("--variant", paths.variant.map(variant)),
        ("--quantize", quantize.clone()),
        ("--precision", (*precision != PrecisionChoice::Auto).then(|| precision.name().to_string())),
        ("--attention", (!attention.is_auto()).then(|| attention.name().to_string())),
        ("--size", width.zip(*height).map(|(width, height)| format!("{width}x{height}"))),
        ("-s", steps.map(|steps| steps.to_string())),
        ("-S", Some(seed.to_string())),
        ("--guidance", guidance.filter(|guidance| *guidance != 1.0).map(|guidance| guidance.to_string())),
        ("--schedule", (*schedule != ScheduleKind::default()).then(|| schedule.to_string())),
        ("--rng", (*rng != Rng::default()).then(|| rng.to_string())),
        ("--max-sequence-length", max_sequence_length.map(|tokens| tokens.to_string())),
    ];
    flags.extend(recipe.inputs.iter().map(|file| ("-i", Some(file.display().to_string()))));
    flags.extend([
        ("--mask", path(&recipe.mask)),
        ("--strength", recipe.strength.map(|strength| strength.to_string())),
        ("--extend", recipe.extend.map(sides)),
        ("--mask-padding", recipe.mask_padding.map(|pixels| pixels.to_string())),
        ("--feather", (recipe.feather > 0).then(|| recipe.feather.to_string())),
        ("--no-composite", set(recipe.no_composite)),
        ("--no-self-reference", set(recipe.no_self_reference)),
        ("--sparse", set(recipe.sparse)),
        ("--kv", set(*kv)),
        ("--noise", path(&recipe.noise)),
        ("--latents", path(&recipe.latents)),
        ("--embeddings", path(&recipe.embeddings)),
    ]);
    let adapters = recipe.adapters.iter();
    flags.extend(adapters.map(|used| ("--lora", Some(format!("{}:{}", used.file.display(), used.strength)))));
    let given = flags.into_iter().filter_map(|(flag, value)| value.map(|value| (flag, value)));
    let is_switch = |flag: &str| ["--no-composite", "--no-self-reference", "--sparse", "--kv"].contains(&flag);
    given.map(|(flag, value)| (flag, (!is_switch(flag)).then_some(value))).collect()
}

fn variant(variant: Variant) -> String {
    match variant {
        Variant::Distilled => "distilled",
        Variant::Base => "base",
        Variant::Kv => "kv",
    }
    .to_string()
}

#[cfg(test)]
mod tests {
    use flux::engine::AdapterFile;
    use flux::engine::choice::AttentionChoice;
    use flux::files::ModelPaths;

    use super::*;
    use crate::cli::Cli;

    fn made(recipe: Recipe, model: ModelRecipe) -> ImageRecipe {
        ImageRecipe { recipe, model, ..ImageRecipe::default() }
    }

    /// What the command line asks for.
    fn read(line: &str) -> Recipe {
        let words: Vec<_> = shlex::split(line).unwrap().into_iter().map(Into::into).collect();
        let Ok(cli) = Cli::read(&words) else { panic!("{line}") };
        cli.generate.check().unwrap();
        cli.generate.recipe(None, &mut std::io::empty()).unwrap()
    }

    #[test]
    fn a_command_line_asks_for_the_recipe_that_it_is_made_of() {
        let sized = |recipe: Recipe| Recipe { width: Some(64), height: Some(48), steps: Some(3), ..recipe };
        let changed = Recipe {
            inputs: vec!["a b.png".into(), "c.png".into()],
            mask: Some("m'.png".into()),
            strength: Some(0.1 + 0.2),
            mask_padding: Some(8),
            feather: 4,
            no_self_reference: true,
            ..Recipe::new("it's \"here\", $HOME\nand there", 7)
        };
        let grown = Recipe {
            inputs: vec!["a.png".into()],
            extend: Some(Sides { left: 16, bottom: 8, ..Sides::default() }),
            no_composite: true,
            sparse: true,
            ..Recipe::new("-x", u64::MAX)
        };
        let sampled = Recipe {
            negative: Some("-a dog".to_string()),
            guidance: Some(2.5),
            schedule: "power:1.5".parse().unwrap(),
            rng: Rng::Portable,
            max_sequence_length: Some(32),
            latents: Some("l.safetensors".into()),
            adapters: vec![AdapterFile { file: "style:1.safetensors".into(), strength: -0.7 }],
            ..Recipe::new("käse 🧀", 0)
        };
        let given = Recipe { embeddings: Some("e".into()), noise: Some("n".into()), ..Recipe::new("", 3) };
        for recipe in [changed, grown, sampled, given].map(sized) {
            let line = command_line(&made(recipe.clone(), ModelRecipe::default()));
            assert_eq!(read(&line), recipe, "{line}");
        }
    }

    #[test]
    fn the_model_is_named_as_it_was() {
        let paths = ModelPaths { model: Some("a b".into()), variant: Some(Variant::Base), ..ModelPaths::default() };
        let model = ModelRecipe {
            name: "a b".to_string(),
            paths,
            kv: true,
            quantize: Some("fp8".to_string()),
            precision: PrecisionChoice::Bf16,
            attention: AttentionChoice::Fp8,
            ..ModelRecipe::default()
        };
        let line = command_line(&made(Recipe::new("x", 1), model));
        assert_eq!(line, "flux -p x -d 'a b' --variant base --quantize fp8 --precision bf16 --attention fp8 -S 1 --kv");
    }
}
