//! `flux info`: what a model is.

use std::borrow::Cow;
use std::path::Path;

use flux::Result;
use flux::engine::{ImageRecipe, OfImages};
use flux::error::{Error, escaped, named};
use flux::files::own_models::{Architecture, OWN_MODELS};
use flux::files::{ModelFiles, ModelPaths};
use flux::hub::{Licence, Published, Repository};
use flux::input;
use flux::pipeline::{ComponentSummary, MemoryLevel, Sizes, Summary};

use super::list::licence_in;
use super::{model, model_at, print};
use crate::cli::{Info, command_line, flag};

/// Prints what the model is, or how an image was made.
pub fn run(args: &Info) -> Result<()> {
    if let Some(made) = args.path.as_deref().map(made_by).transpose()?.flatten() {
        return print(if args.json { escaped_json(&made.to_json()) } else { lines_of_image(&made)? }.as_bytes());
    }
    let dir = match &args.path {
        Some(path) => model_at(&ModelPaths { model: Some(path.clone()), ..args.model.paths(None).0 }, None)?,
        None => model(&args.model)?,
    };
    let mut summary = Summary::read(&dir, &args.quantize.formats().unwrap_or_default())?;
    summary.notes.extend_from_slice(args.quantize.notes());
    summary.notes.iter_mut().for_each(|note| *note = named(note, flag));
    let text = if args.json {
        serde_json::to_string(&summary).map_err(|e| Error::new(format!("cannot write the summary as JSON: {e}")))?
    } else {
        text(&summary, licence(&dir, summary.kind).as_ref())
    };
    print(text.as_bytes())
}

/// The licence of a model: what its folder says, else that of all that are published of its kind, where these have one.
fn licence(dir: &ModelFiles, kind: &str) -> Option<Licence> {
    let own = OWN_MODELS.iter().find(|own| own.name == kind).filter(|own| own.sizes.len() == 1);
    let published = || Some(Published::of_repository(&Repository::parse(own?.repository.0)?)?.licence());
    dir.folder().and_then(licence_in).or_else(published)
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
    let of =
        |OfImages { place, count }: OfImages| format!(", image {} of {count} of its files", place.saturating_add(1));
    let of = made.of.map(of).unwrap_or_default();
    let head = format!("made by flux {} with {}, on {}{of}", made.flux, made.model.name, made.device);
    Ok([escaped(&head).into_owned(), shown_command(&command_line(made)), escaped_json(&json)].join("\n"))
}

/// A command line as a terminal may show it, and a shell reads it: a word with what a terminal obeys is quoted as
/// `$'\033'`. Lines of a prompt stay lines.
fn shown_command(line: &str) -> String {
    // No program is given a NUL, and nothing quotes it.
    let words = if line.contains('\0') { None } else { shlex::split(line) };
    let Some(words) = words else { return "no command line makes it again: there is a NUL in its recipe".to_string() };
    let word = |word: String| {
        if word.chars().any(is_obeyed) {
            let part = |c: char| match c {
                '\\' | '\'' => format!("\\{c}"),
                c if c != '\n' && !is_obeyed(c) => c.to_string(),
                // Bytes in octal are the same to all shells and in all locales.
                c => c.encode_utf8(&mut [0; 4]).bytes().map(|byte| format!("\\{byte:03o}")).collect(),
            };
            return format!("$'{}'", word.chars().map(part).collect::<String>());
        }
        shlex::try_quote(&word).map_or_else(|_| word.clone(), Cow::into_owned)
    };
    words.into_iter().map(word).collect::<Vec<_>>().join(" ")
}

/// JSON in which what a terminal obeys is escaped, beside what JSON itself escapes.
fn escaped_json(json: &str) -> String {
    let escape = |c: char| match is_obeyed(c) {
        true => c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect(),
        false => c.to_string(),
    };
    json.chars().map(escape).collect()
}

/// Whether a terminal obeys a character instead of showing it, which it may do with line ends.
fn is_obeyed(c: char) -> bool {
    c != '\n' && matches!(escaped(c.encode_utf8(&mut [0; 4])), Cow::Owned(_))
}

fn text(summary: &Summary, licence: Option<&Licence>) -> String {
    let [height, width] = summary.default_image_size;
    let up_to = if summary.text_token_step.is_some() { "up to " } else { "" };
    let mut lines = vec![
        format!("{}: {} model", summary.name, summary.variant),
        format!(
            "  images of {width}x{height} in {} steps with guidance {}, where nothing else is asked for; prompts of {up_to}{} \
             tokens",
            summary.default_steps, summary.default_guidance, summary.text_tokens
        ),
    ];
    lines.extend(licence.map(|licence| format!("  licence: {licence}")));
    summary.components.iter().for_each(|component| lines.extend(component_lines(component)));
    lines.push("GPU memory for an image of that size, beside what the driver takes:".to_string());
    let level = |level: &MemoryLevel| format!("  {:.2} GiB, {}", level.bytes as f64 / f64::from(1 << 30), level.plan);
    lines.extend(summary.memory.iter().map(level));
    lines.push(format!("tokenizer: {}", summary.tokenizer));
    lines.extend(summary.notes.iter().map(|note| format!("note: {note}")));
    // Names of files, and what is in them.
    lines.iter().map(|line| escaped(line)).collect::<Vec<_>>().join("\n")
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
            "{} of {} features, {} heads of {}, MLP of {}, reads {} features of text and {} \
             channels",
            match config.architecture() {
                Architecture::Flux2 => {
                    format!("{} double and {} single blocks", config.num_layers, config.num_single_layers)
                }
                Architecture::Flux3 => format!(
                    "FLUX.3, {} blocks each of text, references and image and {} of all together",
                    config.num_layers, config.num_single_layers
                ),
            },
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

#[cfg(test)]
mod tests {
    use flux::engine::{ModelRecipe, Recipe};

    use super::*;

    fn made(prompt: &str) -> ImageRecipe {
        let model = ModelRecipe { name: "m\u{1b}[2J".to_string(), ..ModelRecipe::default() };
        let (flux, device) = ("1\u{9b}31m".to_string(), "\u{1b}]0;pwn\u{7}".to_string());
        ImageRecipe { flux, device, model, recipe: Recipe::new(prompt, 7), ..ImageRecipe::default() }
    }

    #[test]
    fn nothing_of_an_image_is_obeyed_by_a_terminal() {
        let made = made("\u{1b}[31m\u{202e}it's\r\n\\a käse\u{7f} \u{85}");
        let lines = lines_of_image(&made).unwrap();
        assert!(!lines.chars().any(is_obeyed), "{lines}");
        assert!(lines.starts_with(r"made by flux 1\u{9b}31m with m\u{1b}[2J, on \u{1b}]0;pwn\u{7}"), "{lines}");
        let command = lines.lines().nth(1).unwrap();
        let prompt = r"$'\033[31m\342\200\256it\'s\015\012\\a käse\177 \302\205'";
        assert_eq!(command, format!("flux -p {prompt} -S 7"));
        let json = &lines[lines.find("\n{").unwrap()..];
        assert_eq!(serde_json::from_str::<ImageRecipe>(json).unwrap(), made);
        assert_eq!(serde_json::from_str::<ImageRecipe>(&escaped_json(&made.to_json())).unwrap(), made);
    }

    #[cfg(unix)]
    #[test]
    fn a_shell_reads_the_words_of_a_command_line() {
        let Ok(bash) = std::process::Command::new("bash").arg("--version").output().map(|_| "bash") else {
            println!("skipped: no bash");
            return;
        };
        for prompt in ["a\nb", "\u{1b}[0m'; echo $HOME `ls` \\", "\u{9b}1m\n\"x\"", "\u{1b}7", "-x", "\\\u{1b}'"] {
            let command = shown_command(&command_line(&made(prompt)));
            let printed = command.replacen("flux -p ", "printf %s ", 1).replacen(" -S 7", "", 1);
            let told = std::process::Command::new(bash).args(["-c", &printed]).output().unwrap().stdout;
            assert_eq!(String::from_utf8(told).unwrap(), prompt, "{command}");
        }
    }

    #[test]
    fn a_prompt_with_a_nul_is_in_no_command_line() {
        let command = shown_command(&command_line(&made("\0; echo x")));
        assert!(!command.contains("echo") && command.contains("NUL"), "{command}");
        assert_eq!(shown_command("flux -p 'a\nb c' -S 7"), "flux -p 'a\nb c' -S 7");
    }

    #[test]
    fn the_last_place_is_told() {
        let made = ImageRecipe { of: Some(OfImages { place: usize::MAX, count: 1 }), ..made("x") };
        assert!(lines_of_image(&made).unwrap().contains(&format!("image {} of 1", usize::MAX)));
    }
}
