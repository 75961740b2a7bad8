//! Flags for prompts that a language model rewrites, and those of `flux upsample`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use flux::engine::Recipe;
use flux::{Error, Result};

use super::boxes::BoxArgs;
use super::values::{Size, path, time_limit};
use super::{IMAGES, INFORMATION, ModelArgs, PROMPT, SAMPLING, prompt};

/// The heading of these flags in `--help`.
const UPSAMPLING: &str = "Prompt upsampling";

/// Flags for the language model that rewrites prompts.
#[derive(Args, Clone)]
pub struct UpsampleArgs {
    /// Let a language model write the full prompt, as FLUX.3 expects
    ///
    /// URL is the base address of a server with the API of OpenAI, such as http://127.0.0.1:8080/v1 of llama.cpp, vLLM
    /// or Ollama [default: --upsample-url].
    #[arg(help_heading = UPSAMPLING, long, value_name = "URL", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "", hide_short_help = true)]
    upsample: Option<String>,
    /// Address of the language model, for --upsample without one
    #[arg(help_heading = UPSAMPLING, long, value_name = "URL", hide_short_help = true)]
    upsample_url: Option<String>,
    /// Name of the language model [default: the server's first]
    #[arg(help_heading = UPSAMPLING, long, value_name = "NAME", hide_short_help = true)]
    pub upsample_model: Option<String>,
    /// System prompt: a file, bfl or own [default: bfl if downloaded]
    ///
    /// bfl are the prompts of Black Forest Labs for FLUX.3, which `flux download flux3-prompts` downloads. own are
    /// those of this program.
    #[arg(help_heading = UPSAMPLING, long, value_name = "FILE", value_parser = path(), hide_short_help = true)]
    pub upsample_system: Option<PathBuf>,
    /// File with the API key of the language model
    ///
    /// [default: $FLUX_UPSAMPLE_KEY; for api.openai.com also $OPENAI_API_KEY]
    #[arg(help_heading = UPSAMPLING, long, value_name = "FILE", value_parser = path(), hide_short_help = true)]
    pub upsample_key_file: Option<PathBuf>,
    /// Max seconds for an answer of the language model
    #[arg(help_heading = UPSAMPLING, long, value_name = "SECONDS", default_value = "60", value_parser = time_limit)]
    #[arg(hide_short_help = true)]
    pub upsample_timeout: f64,
    /// Response to a failure of the language model
    #[arg(help_heading = UPSAMPLING, long, value_name = "POLICY", value_enum, default_value_t = UpsampleFails::Error)]
    #[arg(hide_short_help = true)]
    pub upsample_fails: UpsampleFails,
    /// Fields to add to the request, as in {"top_k": 1}; null removes one
    #[arg(help_heading = UPSAMPLING, long, value_name = "JSON", hide_short_help = true)]
    pub upsample_extra: Option<String>,
    /// Allow http:// to other machines
    #[arg(help_heading = UPSAMPLING, long, hide_short_help = true)]
    pub upsample_insecure: bool,
    /// Ask again for prompts that are in the cache
    #[arg(help_heading = UPSAMPLING, long, hide_short_help = true)]
    pub upsample_no_cache: bool,
}

/// `--upsample-fails`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum UpsampleFails {
    /// Fail.
    Error,
    /// Print a warning, and use the prompt as it is.
    Plain,
}

impl UpsampleArgs {
    /// Returns `true` if prompts are rewritten.
    pub fn is_on(&self) -> bool {
        self.upsample.is_some()
    }

    /// Returns the recipe that the language model reads if prompts are rewritten. Choices are made in its prompt.
    pub fn request(&self, recipe: Recipe) -> Recipe {
        if self.is_on() { recipe.before_upsampling() } else { recipe }
    }

    /// Returns `true` if `--upsample` has an address.
    pub fn names_url(&self) -> bool {
        self.upsample.as_ref().is_some_and(|url| !url.is_empty())
    }

    /// Returns the address of the language model, if there is one.
    pub fn url(&self) -> Option<&str> {
        self.upsample.as_deref().filter(|url| !url.is_empty()).or(self.upsample_url.as_deref())
    }
}

/// `flux upsample`
#[derive(Args)]
pub struct Upsample {
    /// Prompt
    #[arg(help_heading = PROMPT, short, long, value_name = "TEXT", allow_hyphen_values = true)]
    #[arg(required_unless_present = "words", conflicts_with = "words")]
    prompt: Option<OsString>,
    /// Prompt without a flag, in quotes
    #[arg(value_name = "PROMPT", help_heading = PROMPT)]
    words: Option<OsString>,
    #[command(flatten)]
    boxes: BoxArgs,
    /// Input image, up to 10 times
    #[arg(help_heading = IMAGES, short, long = "input", value_name = "FILE", value_parser = path())]
    inputs: Vec<PathBuf>,
    /// Size of the image, as in 768x512 [default: the model's]
    #[arg(help_heading = SAMPLING, long, value_name = "SIZE")]
    size: Option<Size>,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub upsample: UpsampleArgs,
    /// Print one JSON object: prompt, request, language model
    #[arg(help_heading = INFORMATION, long)]
    pub json: bool,
    /// Print only the prompt and errors
    #[arg(help_heading = INFORMATION, short, long)]
    pub quiet: bool,
}

impl Upsample {
    /// Returns the recipe of the request.
    ///
    /// Errors when the prompt is too long or not UTF-8, or a file of boxes is not one.
    pub fn recipe(&self) -> Result<Recipe> {
        let prompt = self.prompt.as_ref().or(self.words.as_ref());
        let prompt = prompt.map(|text| prompt::text(text.as_encoded_bytes().to_vec())).transpose();
        let size = self.size;
        let recipe = Recipe {
            inputs: self.inputs.clone(),
            width: size.map(|size| size.width),
            height: size.map(|size| size.height),
            ..Recipe::new(prompt.map_err(|e: Error| e.at("--prompt"))?.unwrap_or_default(), 0)
        };
        self.boxes.apply(recipe)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::cli::{Cli, Command};

    #[test]
    fn an_address_follows_an_equals_sign() {
        let parsed = |words: &[&str]| {
            let line = [&["flux", "a cat"], words].concat();
            Cli::try_parse_from(line).map(|cli| cli.generate.draw.upsample).map_err(|e| e.to_string())
        };
        let url = "http://127.0.0.1:8080/v1";
        let none = parsed(&[]).unwrap();
        assert!(!none.is_on() && none.url().is_none());
        let named = parsed(&[&format!("--upsample={url}"), "--upsample-url", "http://[::1]"]).unwrap();
        assert!(named.is_on() && named.names_url() && named.url() == Some(url));
        let set = parsed(&["--upsample", "--upsample-url", url]).unwrap();
        assert!(set.is_on() && !set.names_url() && set.url() == Some(url));
        assert!(parsed(&["--upsample-timeout", "-1"]).is_err() && parsed(&["--upsample-fails", "x"]).is_err());
    }

    #[test]
    fn the_command_has_a_prompt_images_and_boxes() {
        let line = ["flux", "upsample", "a cat", "-i", "a.png", "--box", "cat_1=0,0,9,9", "--size", "64x32"];
        let Some(Command::Upsample(args)) = Cli::try_parse_from(line).unwrap().command else { panic!("{line:?}") };
        let recipe = args.recipe().unwrap();
        assert_eq!((recipe.prompt.as_str(), recipe.inputs.len(), recipe.boxes.len()), ("a cat", 1, 1));
        assert_eq!((recipe.width, recipe.height), (Some(64), Some(32)));
        assert!(Cli::try_parse_from(["flux", "upsample"]).is_err());
    }
}
