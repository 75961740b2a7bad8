//! Command lines: the one that runs, and the one that reproduces an image.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use flux::engine::choice::PrecisionChoice;
use flux::engine::regions::TextRegion;
use flux::engine::{ImageRecipe, ModelRecipe, Recipe};
use flux::error::shell::visible_word;
use flux::input::{Resize, Sides};
use flux::pipeline::Transparency;
use flux::sampler::{Rng, ScheduleKind};

/// A flag and its value, if it has one.
type Flag = (&'static str, Option<String>);

/// Flags without a value.
const SWITCHES: [&str; 6] =
    ["--no-composite", "--full-size", "--no-self-reference", "--sparse", "--kv", "--no-hires-reference"];

static ARGUMENTS: OnceLock<Vec<OsString>> = OnceLock::new();

fn is_made(recipe: &Recipe, input: usize) -> bool {
    recipe.controls.iter().any(|control| control.make && control.input == input)
}

/// Returns `true` if flags can give the inputs in their order: images whose edges are made are the last.
pub fn has_flags(recipe: &Recipe) -> bool {
    (0..recipe.inputs.len()).is_sorted_by_key(|input| is_made(recipe, input))
}

/// Returns the words of the command line. The recipe must be one of flags, see [`has_flags`].
pub fn command_line(made: &ImageRecipe) -> Vec<String> {
    let words = flags(made).into_iter().flat_map(|(flag, value)| [Some(flag.to_string()), value]);
    ["flux".to_string()].into_iter().chain(words.flatten()).collect()
}

/// Sets the command line. Only the first call has an effect.
pub fn set_arguments(arguments: Vec<OsString>) {
    let _ = ARGUMENTS.set(arguments);
}

/// Returns the command line that was set, otherwise that of the process.
pub fn arguments() -> &'static [OsString] {
    ARGUMENTS.get_or_init(|| env::args_os().collect())
}

/// Returns the command line, quoted for a shell, on one line.
pub fn given_command() -> String {
    arguments().iter().map(|word| visible_word(word.as_encoded_bytes())).collect::<Vec<_>>().join(" ")
}

/// Returns the flags in order.
fn flags(made: &ImageRecipe) -> Vec<Flag> {
    let ImageRecipe { recipe, model, .. } = made;
    let Recipe { width, height, steps, seed, guidance, schedule, rng, max_sequence_length, .. } = recipe;
    let path = |path: &Option<PathBuf>| path.as_deref().map(file);
    let hires = recipe.hires.as_ref();
    let set = |is_set: bool| is_set.then(String::new);
    let ModelRecipe { paths, kv, quantize, precision, attention, .. } = model;
    // The built-in model's own precision is the default one on every device.
    let precision = (*precision != PrecisionChoice::Auto || paths.model.is_some()).then(|| precision.recorded());
    let sides = |Sides { left, top, right, bottom }: Sides| format!("{left},{top},{right},{bottom}");
    let prompt = recipe.embeddings.is_none().then(|| recipe.full_prompt().into_owned());
    // An edited image has the input's size, unless the input is scaled.
    let size = width.zip(*height).filter(|_| !recipe.changes()).map(|(width, height)| format!("{width}x{height}"));
    let (size, [width, height]) = match recipe.resize {
        Some(Resize::Sides([Some(width), Some(height)])) => (Some(format!("{width}x{height}")), [None, None]),
        Some(Resize::Sides(sides)) => (None, sides.map(|side| side.map(|side| side.to_string()))),
        Some(Resize::Longest(side)) => (Some(side.to_string()), [None, None]),
        None => (size, [None, None]),
    };
    let mut flags = vec![
        ("-p", prompt),
        ("--negative", recipe.negative.clone()),
        ("-d", path(&paths.model)),
        ("--text-encoder", path(&paths.text_encoder)),
        ("--vae", path(&paths.vae)),
        ("--tokenizer", path(&paths.tokenizer)),
        ("--variant", paths.variant.map(|variant| variant.to_string())),
        ("--quantize", quantize.clone()),
        ("--precision", precision.map(|precision| precision.name().to_string())),
        ("--attention", (!attention.is_auto()).then(|| attention.name().to_string())),
        ("--size", size),
        ("-W", width),
        ("-H", height),
        ("-s", steps.map(|steps| steps.to_string())),
        ("-S", Some(seed.to_string())),
        ("--variation", recipe.variation.map(|variation| variation.to_string())),
        ("--variety", recipe.variety.map(|variety| variety.to_string())),
        ("--guidance", guidance.filter(|guidance| *guidance != 1.0).map(|guidance| guidance.to_string())),
        ("--schedule", (*schedule != ScheduleKind::default()).then(|| schedule.to_string())),
        ("--rng", (*rng != Rng::default()).then(|| rng.to_string())),
        ("--max-sequence-length", max_sequence_length.map(|tokens| tokens.to_string())),
    ];
    // The prompt has the lines of controls, so only images whose edges are made need their flag.
    let made: Vec<_> = (0..recipe.inputs.len()).map(|input| is_made(recipe, input)).collect();
    flags.extend(
        recipe.inputs.iter().zip(made).map(|(input, made)| (if made { "--canny" } else { "-i" }, Some(file(input)))),
    );
    flags.extend(recipe.regions.iter().map(|region| ("--region", Some(region_value(region)))));
    flags.extend(recipe.input_weights.iter().map(|weight| ("--input-weight", Some(weight.to_string()))));
    flags.extend([
        ("--mask", path(&recipe.mask)),
        ("--strength", recipe.strength.map(|strength| strength.to_string())),
        ("--extend", recipe.extend.map(sides)),
        ("--mask-padding", recipe.mask_padding.map(|pixels| pixels.to_string())),
        ("--feather", (recipe.feather > 0).then(|| recipe.feather.to_string())),
        ("--no-composite", set(recipe.no_composite)),
        ("--full-size", set(recipe.full_size)),
        ("--no-self-reference", set(recipe.no_self_reference)),
        ("--sparse", set(recipe.sparse)),
        ("--transparent=edit", set(recipe.transparent == Transparency::Edit)),
        ("--transparent=key", set(recipe.transparent == Transparency::Key)),
        ("--kv", set(*kv)),
        ("--hires", hires.and_then(|hires| hires.by).map(|by| by.to_string())),
        ("--hires-size", hires.and_then(|hires| hires.size).map(|size| size.to_string())),
        ("--hires-upscaler", recipe.upscaler().map(file)),
        ("--hires-strength", hires.and_then(|hires| hires.strength).map(|strength| strength.to_string())),
        ("--hires-steps", hires.and_then(|hires| hires.steps).map(|steps| steps.to_string())),
        ("--hires-prompt", hires.and_then(|hires| hires.prompt.clone())),
        ("--no-hires-reference", set(hires.is_some_and(|hires| hires.no_reference))),
        ("--tile", recipe.tile.map(|pixels| pixels.to_string())),
        ("--tile-overlap", recipe.tile_overlap.map(|pixels| pixels.to_string())),
        ("--noise", path(&recipe.noise)),
        ("--latents", path(&recipe.latents)),
        ("--embeddings", path(&recipe.embeddings)),
    ]);
    let adapters = recipe.adapters.iter();
    flags.extend(
        adapters
            .map(|used| ("--lora", Some(format!("{}:{}{}", file(&used.file), used.strength, used.blocks.suffix())))),
    );
    let given = flags.into_iter().filter_map(|(flag, value)| value.map(|value| (flag, value)));
    let is_switch = |flag: &str| SWITCHES.contains(&flag) || flag.contains('=');
    given.map(|(flag, value)| (flag, (!is_switch(flag)).then_some(value))).collect()
}

/// Returns a region as a flag's value.
fn region_value(region: &TextRegion) -> String {
    TextRegion { mask: region.mask.as_deref().map(|mask| file(mask).into()), ..region.clone() }.to_string()
}

/// Returns a file name as a flag's value. A leading hyphen would make it a flag.
fn file(path: &Path) -> String {
    let path = path.display();
    if path.to_string().starts_with('-') { format!("./{path}") } else { path.to_string() }
}

#[cfg(test)]
mod tests {
    use flux::engine::AdapterFile;
    use flux::engine::choice::AttentionChoice;
    use flux::engine::controls::{Control, ControlKind};
    use flux::files::{ModelPaths, Variant};
    use flux::pipeline::Hires;

    use super::*;
    use crate::cli::Cli;

    fn made(recipe: Recipe, model: ModelRecipe) -> ImageRecipe {
        ImageRecipe { recipe, model, ..ImageRecipe::default() }
    }

    /// Returns the recipe of the command line.
    fn read(line: &[String]) -> Recipe {
        let words: Vec<_> = line.iter().map(Into::into).collect();
        let Ok(cli) = Cli::read(&words) else { panic!("{line:?}") };
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
            variation: "42:0.25".parse().ok(),
            extend: Some(Sides { left: 16, bottom: 8, ..Sides::default() }),
            no_composite: true,
            sparse: true,
            ..Recipe::new("-x", u64::MAX)
        };
        let sampled = Recipe {
            negative: Some("-a dog".to_string()),
            variety: "0.3:25".parse().ok(),
            tile: Some(512),
            tile_overlap: Some(64),
            transparent: Transparency::Key,
            guidance: Some(2.5),
            schedule: "power:1.5".parse().unwrap(),
            rng: Rng::Portable,
            latents: Some("l.safetensors".into()),
            max_sequence_length: Some(32),
            adapters: vec![AdapterFile {
                blocks: "single12-=0.5,other=0".parse().unwrap(),
                ..AdapterFile::new("style:1.safetensors", -0.7)
            }],
            ..Recipe::new("käse 🧀 on a white background", 0)
        };
        let hires = Hires {
            size: "512x".parse().ok(),
            upscaler: Some("./-u.pth".into()),
            strength: Some(0.25),
            steps: Some(8),
            prompt: Some("-sharp".to_string()),
            no_reference: true,
            ..Hires::default()
        };
        let doubled = Hires { by: Some(2.0), ..Hires::default() };
        let enlarged = [hires, doubled].map(|hires| Recipe { hires: Some(hires), ..Recipe::new("x", 1) });
        let given = Recipe { embeddings: Some("e".into()), noise: Some("n".into()), ..Recipe::new("", 3) };
        let hyphens = Recipe {
            inputs: vec!["./-a.png".into(), "-".into()],
            adapters: vec![AdapterFile::new("./-style", 1.0)],
            ..Recipe::new("-", 1)
        };
        let canny = Control { kind: ControlKind::Canny, input: 1, make: true };
        let edges = Recipe {
            inputs: vec!["a.png".into(), "b.png".into()],
            controls: vec![canny],
            input_weights: vec![0.7, 1.25],
            regions: vec!["0,0,1000,500:it's a cat: black".parse().unwrap(), "./-m.png:a hat".parse().unwrap()],
            ..Recipe::new("Match the edge map in image 2.\na cat", 1)
        };
        assert!(has_flags(&edges));
        assert!(!has_flags(&Recipe { controls: vec![Control { input: 0, ..canny }], ..edges.clone() }));
        let dashed = Recipe { inputs: vec!["-a.png".into()], ..Recipe::new("x", 1) };
        assert!(command_line(&made(dashed, ModelRecipe::default())).contains(&"./-a.png".to_string()));
        assert!(command_line(&made(hyphens, ModelRecipe::default())).contains(&"./-".to_string()));
        let sizes = ["512", "768x512"].map(|size| Recipe { resize: size.parse().ok(), ..changed.clone() });
        let side = Recipe { resize: "x300".parse().ok(), full_size: true, ..changed.clone() };
        let of_first =
            Recipe { resize: "512".parse().ok(), mask: None, strength: None, mask_padding: None, ..side.clone() };
        let of_first = Recipe { full_size: false, feather: 0, no_self_reference: false, ..of_first };
        for recipe in
            [changed, grown, sampled, given, side, of_first, edges].into_iter().chain(sizes).chain(enlarged).map(sized)
        {
            // An edited image has its own size.
            let is_own = recipe.changes() || recipe.resize.is_some();
            let expected = Recipe { width: recipe.width.filter(|_| !is_own), ..recipe.clone() };
            let expected = Recipe { height: recipe.height.filter(|_| !is_own), ..expected };
            let line = command_line(&made(recipe.clone(), ModelRecipe::default()));
            assert_eq!(read(&line), expected, "{line:?}");
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
        let line = command_line(&made(Recipe::new("x", 1), model)).join(" ");
        assert_eq!(line, "flux -p x -d a b --variant base --quantize fp8 --precision bf16 --attention fp8 -S 1 --kv");
        // A recipe has no precision if it was that of the model, which the default may not be on this device.
        let line = |model: Option<PathBuf>| {
            let model = ModelRecipe { paths: ModelPaths { model, ..ModelPaths::default() }, ..ModelRecipe::default() };
            command_line(&made(Recipe::new("x", 1), model)).join(" ")
        };
        assert_eq!(line(Some("4b".into())), "flux -p x -d 4b --precision native -S 1");
        assert_eq!(line(None), "flux -p x -S 1");
    }
}
