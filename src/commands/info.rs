//! `flux info`: what a model is.

use std::path::Path;

use flux::Result;
use flux::engine::{ImageRecipe, OfImages};
use flux::error::{Error, named};
use flux::input;
use flux::pipeline::{ComponentSummary, MemoryLevel, Sizes, Summary};

use super::{model, model_at, print};
use crate::cli::{Info, command_line, flag};

/// Prints what the model is, or how an image was made.
pub fn run(args: &Info) -> Result<()> {
    if let Some(made) = args.path.as_deref().map(made_by).transpose()?.flatten() {
        return print(if args.json { made.to_json() } else { lines_of_image(&made)? }.as_bytes());
    }
    let dir = match &args.path {
        Some(path) => model_at(&args.model, Some(path.clone()), None)?,
        None => model(&args.model)?,
    };
    let mut summary = Summary::read(&dir, &args.quantize.formats().unwrap_or_default())?;
    summary.notes.extend_from_slice(args.quantize.notes());
    summary.notes.iter_mut().for_each(|note| *note = named(note, flag));
    let text = if args.json {
        serde_json::to_string(&summary).map_err(|e| Error::new(format!("cannot write the summary as JSON: {e}")))?
    } else {
        text(&summary)
    };
    print(text.as_bytes())
}

/// How an image was made, where the file is one that says so.
fn made_by(path: &Path) -> Result<Option<ImageRecipe>> {
    if !input::is_image(path) {
        return Ok(None);
    }
    let recipe = input::said_by(path)?.recipe;
    recipe.map(|json| ImageRecipe::of_json(&json).map_err(|e| e.at(path.display().to_string()))).transpose()
}

fn lines_of_image(made: &ImageRecipe) -> Result<String> {
    let json =
        serde_json::to_string_pretty(made).map_err(|e| Error::new(format!("cannot write the recipe as JSON: {e}")))?;
    let of = made.of.map(|OfImages { place, count }| format!(", image {} of {count} of its files", place + 1));
    let head =
        format!("made by flux {} with {}, on {}{}", made.flux, made.model.name, made.device, of.unwrap_or_default());
    Ok([head, command_line(made), json].join("\n"))
}

fn text(summary: &Summary) -> String {
    let [height, width] = summary.default_image_size;
    let mut lines = vec![
        format!("{}: {} model", summary.name, summary.variant),
        format!(
            "  images of {width}x{height} in {} steps with guidance {}, where nothing else is asked for; prompts of {} tokens",
            summary.default_steps, summary.default_guidance, summary.text_tokens
        ),
    ];
    summary.components.iter().for_each(|component| lines.extend(component_lines(component)));
    lines.push("GPU memory for an image of that size, beside what the driver takes:".to_string());
    let level = |level: &MemoryLevel| format!("  {:.2} GiB, {}", level.bytes as f64 / f64::from(1 << 30), level.plan);
    lines.extend(summary.memory.iter().map(level));
    lines.push(format!("tokenizer: {}", summary.tokenizer));
    lines.extend(summary.notes.iter().map(|note| format!("note: {note}")));
    lines.join("\n")
}

fn component_lines(component: &ComponentSummary) -> Vec<String> {
    let ComponentSummary { role, files, tensors, bytes, formats, sizes, config } = component;
    let values: u64 = formats.values().sum();
    let formats: Vec<_> = formats.iter().map(|(format, values)| format!("{} in {format}", millions(*values))).collect();
    let mut lines = vec![format!(
        "{}: {} weights ({}), {tensors} tensors, {:.1} MB",
        role.title(),
        millions(values),
        formats.join(", "),
        *bytes as f64 / 1e6
    )];
    lines.push(format!("  {}", sizes_line(sizes)));
    lines.push(format!("  config: {config}"));
    lines.extend(files.iter().map(|file| format!("  {file}")));
    lines
}

fn millions(values: u64) -> String {
    if values < 100_000 { values.to_string() } else { format!("{:.1} M", values as f64 / 1e6) }
}

fn sizes_line(sizes: &Sizes) -> String {
    match sizes {
        Sizes::TextEncoder(config) => format!(
            "{} layers of {} features, {} heads and {} of keys, each of {}, MLP of {}, {} tokens",
            config.num_hidden_layers,
            config.hidden_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
            config.intermediate_size,
            config.vocab_size
        ),
        Sizes::Transformer(config) => format!(
            "{} double and {} single blocks of {} features, {} heads of {}, MLP of {}, reads {} features of text and {} \
             channels",
            config.num_layers,
            config.num_single_layers,
            config.dim(),
            config.num_attention_heads,
            config.attention_head_dim,
            config.mlp(),
            config.joint_attention_dim,
            config.in_channels
        ),
        Sizes::Vae(config) => format!(
            "{} latent channels, encoder of {:?} channels, decoder of {:?}",
            config.latent_channels,
            config.block_out_channels,
            config.decoder_channels()
        ),
    }
}
