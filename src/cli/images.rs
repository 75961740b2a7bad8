//! Flags that name images: references, an image to change, a mask.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{ArgAction, Args};
use flux::engine::Recipe;
use flux::input::{Sides, is_stdin};
use flux::{Error, Result};

use super::IMAGES;
use super::values::{decimal, whole_of};

/// What an image is made from.
#[derive(Args)]
pub struct ImageArgs {
    /// Image to draw from, up to 16 times
    ///
    /// `-` reads one from standard input. With --mask, --strength or --extend the first is the image to change.
    #[arg(help_heading = IMAGES, short, long = "input", value_name = "FILE")]
    pub inputs: Vec<PathBuf>,
    /// Draw anew where this image is white
    ///
    /// Where it is grey both are mixed, and where it is black the input stays as it is.
    #[arg(help_heading = IMAGES, long, value_name = "FILE")]
    pub mask: Option<PathBuf>,
    /// How far from the image to go, from 0 to 1
    ///
    /// That is which part of the steps runs [default: 1, with --mask 0.8].
    #[arg(help_heading = IMAGES, long, value_name = "X", allow_negative_numbers = true)]
    #[arg(value_parser = decimal::<f64>("from 0 to 1"))]
    pub strength: Option<f64>,
    /// Grow the image by LEFT,TOP,RIGHT,BOTTOM pixels, and draw what is new
    #[arg(help_heading = IMAGES, long, value_name = "L,T,R,B", allow_negative_numbers = true)]
    #[arg(hide_short_help = true)]
    pub extend: Option<GrownSides>,
    /// With --mask: draw what the mask covers and this many pixels around it, in the size of the whole image
    #[arg(help_heading = IMAGES, long, value_name = "PIXELS", conflicts_with = "extend")]
    #[arg(allow_negative_numbers = true, hide_short_help = true, value_parser = whole_of("pixels"))]
    pub mask_padding: Option<usize>,
    /// Fade over this many pixels from what is drawn to the image around it [default: 0]
    #[arg(help_heading = IMAGES, long, value_name = "PIXELS", allow_negative_numbers = true)]
    #[arg(hide_short_help = true, value_parser = whole_of("pixels"))]
    pub feather: Option<usize>,
    /// Write what the model makes, in its size, and not the input with what is new
    #[arg(help_heading = IMAGES, long, conflicts_with = "feather", action = ArgAction::SetTrue, hide_short_help = true)]
    pub no_composite: bool,
    /// Do not show the image to change to the model, which then knows it from the noisy latents alone
    #[arg(help_heading = IMAGES, long, action = ArgAction::SetTrue, hide_short_help = true)]
    pub no_self_reference: bool,
    /// With --mask or --extend: compute only what is drawn anew and what is next to it, at all steps but the first
    ///
    /// That is faster, and the result a little other than without: steps see the rest as it was at the first.
    #[arg(help_heading = IMAGES, long, action = ArgAction::SetTrue, hide_short_help = true)]
    pub sparse: bool,
    /// Make keys and values of the references once for all steps: for models that were trained so. Their folders say
    /// so themselves
    #[arg(help_heading = IMAGES, long, action = ArgAction::SetTrue, hide_short_help = true)]
    pub kv: bool,
}

/// `--extend`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrownSides(pub Sides);

impl FromStr for GrownSides {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let wrong = || "expected four numbers of pixels: LEFT,TOP,RIGHT,BOTTOM, such as 0,0,256,0".to_string();
        let pixels = text.split(',').map(str::parse).collect::<std::result::Result<Vec<usize>, _>>();
        let [left, top, right, bottom] = pixels.map_err(|_| wrong())?[..] else { return Err(wrong()) };
        Ok(Self(Sides { left, top, right, bottom }))
    }
}

impl ImageArgs {
    /// Changes what the flags ask for.
    pub fn apply(&self, recipe: Recipe) -> Recipe {
        Recipe {
            inputs: if self.inputs.is_empty() { recipe.inputs } else { self.inputs.clone() },
            mask: self.mask.clone().or(recipe.mask),
            strength: self.strength.or(recipe.strength),
            extend: self.extend.map(|sides| sides.0).or(recipe.extend),
            mask_padding: self.mask_padding.or(recipe.mask_padding),
            feather: self.feather.unwrap_or(recipe.feather),
            no_composite: self.no_composite || recipe.no_composite,
            no_self_reference: self.no_self_reference || recipe.no_self_reference,
            sparse: self.sparse || recipe.sparse,
            ..recipe
        }
    }

    /// Whether an image comes from standard input.
    pub fn reads_stdin(&self) -> bool {
        self.files().any(is_stdin)
    }

    fn files(&self) -> impl Iterator<Item = &Path> {
        self.inputs.iter().chain(&self.mask).map(PathBuf::as_path)
    }

    /// Errors where flags contradict each other in a way that clap does not express.
    pub fn check(&self, prompt_reads_stdin: bool) -> Result<()> {
        let from_stdin = self.files().filter(|file| is_stdin(file)).count() + usize::from(prompt_reads_stdin);
        if from_stdin > 1 {
            return Err(Error::usage("standard input is to be read more than once")
                .at("--input")
                .hint("name files: one image, the mask or the prompt may come from standard input"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    fn parse(line: &str) -> std::result::Result<ImageArgs, String> {
        let cli = Cli::try_parse_from(format!("flux -p x {line}").split_whitespace()).map_err(|e| e.to_string())?;
        cli.generate.check().map_err(|e| e.to_string())?;
        cli.generate
            .recipe(None, &mut std::io::empty())
            .unwrap()
            .check()
            .map_err(|e| e.shown_with(crate::cli::flag).to_string())?;
        Ok(cli.generate.draw.recipe.images)
    }

    #[test]
    fn inputs_come_in_their_order_and_one_from_standard_input() {
        let images = parse("-i a.png -i - --input b.jpg").unwrap();
        assert_eq!(images.inputs, ["a.png", "-", "b.jpg"].map(PathBuf::from));
        assert!(parse("-i - -i -").is_err_and(|e| e.contains("more than once")));
        assert!(parse("-i - --mask -").is_err_and(|e| e.contains("more than once")));
    }

    #[test]
    fn what_says_how_to_change_an_image_needs_one() {
        for line in ["--mask m.png", "--strength 0.5", "--extend 0,0,16,0", "--feather 4", "--no-composite", "--sparse"]
        {
            assert!(parse(line).is_err_and(|e| e.contains("--input")), "{line}");
        }
        for line in ["-i a.png --no-self-reference", "-i a.png --strength 0.5 --feather 4", "-i a.png --sparse"] {
            assert!(parse(line).is_err_and(|e| e.contains("hint")), "{line}");
        }
        assert!(parse("-i a.png --mask m.png --mask-padding 8 --feather 4").is_ok());
    }

    #[test]
    fn sides_are_four_numbers() {
        let sides = parse("-i a.png --extend 1,2,3,4").unwrap().extend;
        assert_eq!(sides, Some(GrownSides(Sides { left: 1, top: 2, right: 3, bottom: 4 })));
        for bad in ["1,2,3", "1,2,3,4,5", "1,2,3,-4", "", "a,b,c,d"] {
            assert!(parse(&format!("-i a.png --extend={bad}")).is_err_and(|e| e.contains("LEFT,TOP")), "{bad}");
        }
    }
}
