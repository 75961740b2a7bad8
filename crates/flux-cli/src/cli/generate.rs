//! `flux` without a subcommand.

use std::ffi::OsString;
use std::io::Read;

use clap::{ArgAction, Args, ValueEnum};
use flux::engine::Recipe;
use flux::{Error, Result};

use super::values::Seed;
use super::{
    DrawArgs, INFORMATION, OutputArgs, PROMPT, SAMPLING, ShowArgs, SourceArgs, TimingsFormat, foreign, prompt, values,
};

/// `flux` without a subcommand. Every flag has a heading.
#[derive(Args)]
pub struct Generate {
    /// Prompt; `-` reads it from standard input
    ///
    /// The maximum is 64 KiB.
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    #[arg(required_unless_present_any = ["words", "embeddings", "recipe_file", "config_from_metadata"])]
    #[arg(help_heading = PROMPT)]
    prompt: Option<OsString>,
    /// Prompt without a flag, in quotes
    ///
    /// A word that is the name of a command runs the command.
    #[arg(value_name = "PROMPT", help_heading = PROMPT)]
    words: Vec<OsString>,
    #[command(flatten)]
    pub source: SourceArgs,
    /// Number of images, with consecutive seeds
    ///
    /// out.png becomes out-SEED.png.
    #[arg(help_heading = SAMPLING)]
    #[arg(short = 'n', long, value_name = "K", default_value_t = 1, allow_negative_numbers = true)]
    #[arg(value_parser = values::count)]
    pub count: u64,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub show: ShowArgs,
    #[command(flatten)]
    pub draw: DrawArgs,
    /// Generate on a running `flux serve`, as in http://127.0.0.1:7860
    ///
    /// The server's model is already loaded. -d NAME selects another model of the server, and --lora NAME an adapter of
    /// the server. The bytes are the same as on this machine with the same model [default: $FLUX_SERVER].
    #[cfg(feature = "server")]
    #[arg(help_heading = super::DEVICE, long, value_name = "URL", hide_short_help = true)]
    server: Option<String>,
    /// Print this help; -h prints a summary
    #[arg(help_heading = INFORMATION, short, long, action = ArgAction::Help, global = true)]
    help: Option<bool>,
    /// Print the version
    #[arg(help_heading = INFORMATION, short = 'V', long, action = ArgAction::Version)]
    version: Option<bool>,
}

impl Generate {
    /// Reads the prompt from the flags or standard input; `None` without a prompt.
    ///
    /// Errors when the prompt is too long, not UTF-8, or missing from standard input.
    fn read_prompt(&self, stdin: &mut dyn Read) -> Result<Option<String>> {
        let prompt = match self.prompt() {
            Some(_) if self.reads_stdin() => Some(prompt::read(stdin)),
            Some(given) => Some(prompt::text(given.as_encoded_bytes().to_vec())),
            None => None,
        };
        prompt.transpose().map_err(|e| e.at(self.prompt_place()))
    }

    /// Returns the recipe from flags and standard input, with `base` for missing values. Without any seed, a random one
    /// is chosen.
    ///
    /// Errors when the prompt is too long, not UTF-8, or missing from standard input, and when the strength of an
    /// adapter is not a number.
    pub fn recipe(&self, base: Option<Recipe>, stdin: &mut dyn Read) -> Result<Recipe> {
        let recipe = base.unwrap_or_else(|| Recipe { seed: Seed::Random.value(), ..Recipe::default() });
        self.draw.recipe.apply(self.draw.recipe.tensors.with_prompt(recipe, self.read_prompt(stdin)?))
    }

    /// Returns the source of the prompt, for messages.
    pub fn prompt_place(&self) -> &'static str {
        if self.reads_stdin() { "standard input" } else { "--prompt" }
    }

    /// Returns the prompt as given.
    fn prompt(&self) -> Option<&OsString> {
        self.prompt.as_ref().or(self.words.first())
    }

    /// Errors when there are several prompts. A word that looks like a misplaced value gets its own hint.
    fn check_prompts(&self) -> Result<()> {
        let first = self.words.first().filter(|_| self.prompt.is_none()).and_then(|word| word.to_str());
        if let Some(error) = first.and_then(foreign::no_command) {
            return Err(error);
        }
        if first.is_some_and(|word| word.trim().is_empty()) {
            return Err(Error::usage("the prompt is empty")
                .at("--prompt")
                .hint("pass a prompt in quotes, or use `-p \"\"` to generate without a prompt"));
        }
        let words = self.words.iter().map(|word| word.to_string_lossy());
        if let Some(format) = words.clone().find(|word| TimingsFormat::from_str(word, false).is_ok())
            && self.draw.console.timings.is_some()
        {
            return Err(Error::usage(format!("`{format}` is read as the prompt"))
                .at("--timings")
                .hint(format!("write `--timings={format}`, or `--prompt={format}` for a prompt of this word")));
        }
        if self.draw.recipe.expand.is_on() && words.clone().any(|word| word == "all") {
            return Err(Error::usage("`all` is read as the prompt")
                .at("--expand")
                .hint("write `--expand=all`, or `--prompt=all` for a prompt of this word"));
        }
        let given: Vec<_> = self.prompt.iter().map(|prompt| prompt.to_string_lossy()).chain(words).collect();
        if let [first, second, ..] = given.as_slice() {
            let error = Error::usage(format!("there are several prompts: `{first}` and `{second}`")).at("--prompt");
            // In other programs `-q 8` is the number of weight bits.
            let bits = given
                .iter()
                .find(|word| self.draw.console.quiet && matches!(word.as_ref(), "3" | "4" | "5" | "6" | "8"));
            if let Some(bits) = bits {
                return Err(
                    error.hint(format!("`-q` is `--quiet`; use `--quantize FORMAT` for weights of {bits} bits"))
                );
            }
            return Err(error.hint("put the prompt in quotes, and pass it once: flux \"a red circle\""));
        }
        Ok(())
    }

    /// Returns `true` if the prompt is read from standard input.
    pub fn reads_stdin(&self) -> bool {
        self.prompt().is_some_and(|prompt| prompt == "-")
    }

    /// Returns the server that generates the images, if any.
    ///
    /// Errors when its address is invalid, or another flag does not apply to servers.
    #[cfg(feature = "server")]
    pub fn server(&self) -> Result<Option<String>> {
        let from_environment = || std::env::var("FLUX_SERVER").ok().filter(|url| !url.is_empty());
        let (url, place) = match &self.server {
            Some(url) => (url.clone(), "--server"),
            None => match from_environment() {
                Some(url) => (url, "FLUX_SERVER"),
                None => return Ok(None),
            },
        };
        values::check_server(&url, place)?;
        let Self { draw, show, source, .. } = self;
        let flags = [
            (draw.console.timings.is_some(), "--timings"),
            (draw.console.json, "--json"),
            (draw.upsample.names_url(), "--upsample=URL"),
            (draw.embed_inputs, "--embed-inputs"),
            (draw.no_provenance, "--no-provenance"),
            (draw.sign.is_on(), "--sign-cert"),
            (draw.fp8_cache, "--fp8-cache"),
            (draw.quantize.formats().is_some(), "--quantize"),
            (draw.on.precision.is_some(), "--precision"),
            (draw.on.attention.is_some(), "--attention"),
            (draw.model.text_encoder.is_some(), "--text-encoder"),
            (draw.model.vae.is_some(), "--vae"),
            (draw.model.tokenizer.is_some(), "--tokenizer"),
            (draw.model.variant.is_some(), "--variant"),
            (draw.recipe.images.kv, "--kv"),
            (show.protocol().is_some(), "--show"),
            (source.recipe.is_some() || source.config_from_metadata.is_some(), "--recipe"),
        ];
        let flag = flags.iter().find(|(given, _)| *given).map(|(_, flag)| *flag);
        match flag.or(draw.recipe.tensors.saves()) {
            Some(flag) => Err(Error::usage(format!("`{flag}` cannot be used with a server"))
                .at(place)
                .hint("leave one of them out")),
            None => Ok(Some(url)),
        }
    }

    /// Errors if flags contradict each other in a way that clap does not express.
    pub fn check(&self) -> Result<()> {
        self.check_prompts()?;
        self.output.check(self.count, &self.draw.console, &self.show)?;
        self.draw.recipe.tensors.check(self.prompt().is_some())?;
        self.draw.check(self.reads_stdin())
    }
}
