//! Flags of `flux grid`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use flux::{Error, Result};

use super::values::{Seed, Size, path, whole};
use super::{DrawArgs, OUTPUT, PROMPT};

/// Maximum number of images in a grid.
const MAX: usize = 1000;

/// `flux grid`
#[derive(Args)]
pub struct Grid {
    /// Prompt
    #[arg(help_heading = PROMPT, short, long, value_name = "TEXT", allow_hyphen_values = true)]
    #[arg(required_unless_present = "words", conflicts_with = "words")]
    prompt: Option<String>,
    /// Prompt without a flag, in quotes
    #[arg(value_name = "PROMPT", help_heading = PROMPT)]
    words: Option<String>,
    /// Recipe field and its values, as in steps=2,4,8; repeatable
    ///
    /// Fields are those of a list for `flux batch`: steps, seed, guidance, strength, size, schedule, prompt and so on,
    /// and lora. If values contain commas, separate them with |: prompt=a cat, sitting|a dog. Each --vary multiplies
    /// the number of images. The values of the last --vary are the columns.
    #[arg(help_heading = PROMPT, long, value_name = "FIELD=VALUES", required = true)]
    pub vary: Vec<Varied>,
    /// Sheet to write; images go to a folder of the same name
    #[arg(help_heading = OUTPUT, short, long, value_name = "FILE", required = true, value_parser = path())]
    pub output: PathBuf,
    /// Max side of an image on the sheet, in pixels
    #[arg(help_heading = OUTPUT, long, value_name = "PIXELS", default_value_t = 256, value_parser = whole(16..=4096usize))]
    pub cell: usize,
    /// Overwrite an existing sheet and existing images
    #[arg(help_heading = OUTPUT, long)]
    pub force: bool,
    #[command(flatten)]
    pub draw: DrawArgs,
}

/// `--vary`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Varied {
    pub field: String,
    pub values: Vec<String>,
}

impl FromStr for Varied {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (field, values) = text.split_once('=').ok_or("expected FIELD=VALUES, as in steps=2,4,8")?;
        let separator = if values.contains('|') { '|' } else { ',' };
        let values: Vec<String> = values.split(separator).map(|value| value.trim().to_string()).collect();
        if field.is_empty() || values.iter().any(String::is_empty) {
            return Err("expected FIELD=VALUES, as in steps=2,4,8".to_string());
        }
        let field = if field == "lora" { "adapters" } else { field };
        Ok(Self { field: field.trim().replace('-', "_"), values })
    }
}

impl Varied {
    /// Returns the value of each image: random seeds are generated, and a single size becomes a square.
    pub fn each(&self) -> Vec<String> {
        let of_image = |value: &String| match self.field.as_str() {
            "seed" => value.parse().ok().map(|seed: Seed| seed.value().to_string()),
            "size" => value.parse().ok().map(|Size { width, height }| format!("{width}x{height}")),
            _ => None,
        };
        // Invalid values are reported when the recipes are created.
        self.values.iter().map(|value| of_image(value).unwrap_or_else(|| value.clone())).collect()
    }
}

impl Grid {
    /// Returns the prompt, from the flag or the positional argument.
    pub fn prompt(&self) -> &str {
        self.prompt.as_deref().or(self.words.as_deref()).unwrap_or_default()
    }

    /// Returns `true` if a field is varied.
    pub fn varies(&self, field: &str) -> bool {
        self.vary.iter().any(|varied| varied.field == field)
    }

    /// Errors when there are too many images, or flags do not apply.
    pub fn check(&self) -> Result<()> {
        if self.words.as_ref().is_some_and(|words| words.trim().is_empty()) {
            return Err(Error::usage("the prompt is empty").at("--prompt").hint("pass a prompt in quotes"));
        }
        let count = self.vary.iter().try_fold(1usize, |count, varied| count.checked_mul(varied.values.len()));
        if count.is_none_or(|count| count > MAX) {
            return Err(Error::usage(format!("the grid has more than {MAX} images"))
                .at("--vary")
                .hint("leave some out"));
        }
        let is_twice =
            |(at, varied): &(usize, &Varied)| self.vary[..*at].iter().any(|other| other.field == varied.field);
        if let Some((_, varied)) = self.vary.iter().enumerate().find(is_twice) {
            return Err(Error::usage(format!("`{}` is varied twice", varied.field))
                .at("--vary")
                .hint("pass all values at once"));
        }
        if let Some(field) = ["n", "output"].into_iter().find(|field| self.varies(field)) {
            return Err(Error::usage(format!("`{field}` cannot be varied: a grid has one image per recipe"))
                .at("--vary")
                .hint("vary `seed` for several images, and name the sheet with `-o`"));
        }
        if let Some(side) = ["width", "height"].into_iter().find(|side| self.varies("size") && self.varies(side)) {
            return Err(Error::usage(format!("`size` and `{side}` cannot both be varied"))
                .at("--vary")
                .hint("leave one of them out"));
        }
        if self.draw.recipe.expand.is_all() {
            return Err(Error::usage("a grid has one image per recipe, not all combinations of its prompt")
                .at("--expand")
                .hint("vary `prompt`, or leave out `=all`"));
        }
        self.draw.recipe.images.check_no_stdin()?;
        if self.draw.recipe.tensors.saves().is_some() {
            return Err(
                Error::usage("a grid cannot write tensors").hint("leave out `--save-latents` and `--save-embeddings`")
            );
        }
        self.draw.check(false)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn values_stand_between_commas_or_bars() {
        let varied = |text: &str| text.parse::<Varied>().map(|varied| (varied.field, varied.values));
        let of = |field: &str, values: &[&str]| Ok((field.to_string(), values.iter().map(|v| v.to_string()).collect()));
        assert_eq!(varied("steps=2,4, 8"), of("steps", &["2", "4", "8"]));
        assert_eq!(varied("prompt=a cat, sitting|a dog"), of("prompt", &["a cat, sitting", "a dog"]));
        assert_eq!(varied("lora=a.safetensors:0.5,b"), of("adapters", &["a.safetensors:0.5", "b"]));
        assert_eq!(varied("mask-padding=8"), of("mask_padding", &["8"]));
        for bad in ["steps", "steps=", "=2", "steps=2,,4"] {
            assert!(varied(bad).is_err_and(|why| why.contains("steps=2,4,8")), "{bad}");
        }
    }

    #[test]
    fn each_random_seed_is_drawn_and_a_side_is_a_square() {
        let each = |text: &str| text.parse::<Varied>().unwrap().each();
        let seeds = each("seed=random,7,-1,random");
        assert_eq!(seeds[1], "7");
        assert!(seeds.iter().all(|seed| seed.parse::<u64>().is_ok()), "{seeds:?}");
        assert!(seeds[0] != seeds[2] && seeds[2] != seeds[3] && seeds[0] != seeds[3], "{seeds:?}");
        assert_eq!(each("size=64,128x32,large"), ["64x64", "128x32", "large"]);
        assert_eq!(each("steps=1,random"), ["1", "random"]);
    }

    #[test]
    fn what_no_single_image_has_is_not_varied() {
        for (vary, words) in [
            (&["n=1,2"][..], "`n` cannot be varied"),
            (&["output=a.png,b.png"], "`output` cannot be varied"),
            (&["size=64", "width=32,64"], "`size` and `width`"),
            (&["steps=1", "steps=2"], "varied twice"),
        ] {
            let flags = vary.iter().flat_map(|vary| ["--vary", vary]);
            let line = ["flux", "grid", "-p", "x", "-o", "x.png"].into_iter().chain(flags);
            let Some(Command::Grid(grid)) = Cli::try_parse_from(line).unwrap_or_else(|e| panic!("{e}")).command else {
                panic!("{vary:?}")
            };
            let error = grid.check().unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("in: --vary"), "{error}");
        }
    }
}
