//! Flags for input images: references, an image to edit, a mask.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{ArgAction, Args};
use flux::engine::Recipe;
use flux::input::{Sides, is_stdin};
use flux::{Error, Result};

use super::IMAGES;
use super::controls::ControlArgs;
use super::values::{decimal, whole_of};

/// Flags for input images.
#[derive(Args)]
pub struct ImageArgs {
    /// Input image: a reference, or first the image to edit
    ///
    /// The flag can be repeated, up to 16 times. `-` reads one image from standard input. With --mask, --strength or
    /// --extend, the first image is edited.
    #[arg(help_heading = IMAGES, short, long = "input", value_name = "FILE")]
    pub inputs: Vec<PathBuf>,
    /// Strength of an --input as a reference, from 0 to 2; repeatable, in the order of --input [default: 1]
    ///
    /// Keys and values of the reference are multiplied by it. Try 0.7 to 1.3: above, the edit may not happen. 0 leaves
    /// the reference out.
    #[arg(help_heading = IMAGES, long, value_name = "X", allow_negative_numbers = true, hide_short_help = true)]
    #[arg(value_parser = decimal::<f32>("from 0 to 2"))]
    input_weight: Vec<f32>,
    #[command(flatten)]
    controls: ControlArgs,
    /// Regenerate the white area of this mask
    ///
    /// Grey areas are a mix of both, and black areas keep the input.
    #[arg(help_heading = IMAGES, long, value_name = "FILE")]
    pub mask: Option<PathBuf>,
    /// Edit strength, from 0 to 1
    ///
    /// The value is the part of the steps that runs [default: 1, with --mask 0.8].
    #[arg(help_heading = IMAGES, long, value_name = "X", allow_negative_numbers = true)]
    #[arg(value_parser = decimal::<f64>("from 0 to 1"))]
    pub strength: Option<f64>,
    /// Extend the image by LEFT,TOP,RIGHT,BOTTOM pixels, and fill them
    #[arg(help_heading = IMAGES, long, value_name = "L,T,R,B", allow_negative_numbers = true)]
    #[arg(hide_short_help = true)]
    pub extend: Option<GrownSides>,
    /// With --mask: generate the mask plus this many pixels around it
    ///
    /// This area is generated at the size of the whole image.
    #[arg(help_heading = IMAGES, long, value_name = "PIXELS", conflicts_with = "extend")]
    #[arg(allow_negative_numbers = true, hide_short_help = true, value_parser = whole_of("pixels"))]
    pub mask_padding: Option<usize>,
    /// Width of the blend around an edit, in pixels [default: 0]
    #[arg(help_heading = IMAGES, long, value_name = "PIXELS", allow_negative_numbers = true)]
    #[arg(hide_short_help = true, value_parser = whole_of("pixels"))]
    pub feather: Option<usize>,
    /// Write the model's output in its own size, without the input around it
    #[arg(help_heading = IMAGES, long, conflicts_with = "feather", action = ArgAction::SetTrue, hide_short_help = true)]
    pub no_composite: bool,
    /// Scale the result to the size of the input
    ///
    /// Results of --mask and --extend always have this size.
    #[arg(help_heading = IMAGES, long, conflicts_with = "no_composite", action = ArgAction::SetTrue)]
    #[arg(hide_short_help = true)]
    pub full_size: bool,
    /// Do not use the edited image as a reference
    ///
    /// The model then sees the image only in the noisy latents.
    #[arg(help_heading = IMAGES, long, action = ArgAction::SetTrue, hide_short_help = true)]
    pub no_self_reference: bool,
    /// With --mask or --extend: compute only the new area and its border
    ///
    /// This applies to all steps but the first. It is faster, and the result differs slightly: later steps see the rest
    /// of the image as it was at the first step.
    #[arg(help_heading = IMAGES, long, action = ArgAction::SetTrue, hide_short_help = true)]
    pub sparse: bool,
    /// Compute keys and values of references once for all steps
    ///
    /// For models that were trained this way, such as klein 9b-kv. Their folders enable it without the flag.
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
    /// Returns the recipe with the flags applied.
    pub fn apply(&self, recipe: Recipe) -> Recipe {
        // Controls of the recipe are of its own inputs.
        let (inputs, controls, weights) = match self.inputs.is_empty() {
            true => (recipe.inputs, recipe.controls, recipe.input_weights),
            false => (self.inputs.clone(), Vec::new(), Vec::new()),
        };
        let input_weights = if self.input_weight.is_empty() { weights } else { self.input_weight.clone() };
        self.controls.apply(Recipe {
            inputs,
            controls,
            input_weights,
            mask: self.mask.clone().or(recipe.mask),
            strength: self.strength.or(recipe.strength),
            extend: self.extend.map(|sides| sides.0).or(recipe.extend),
            mask_padding: self.mask_padding.or(recipe.mask_padding),
            feather: self.feather.unwrap_or(recipe.feather),
            no_composite: self.no_composite || recipe.no_composite,
            full_size: self.full_size || recipe.full_size,
            no_self_reference: self.no_self_reference || recipe.no_self_reference,
            sparse: self.sparse || recipe.sparse,
            ..recipe
        })
    }

    /// Returns `true` if an image is read from standard input.
    pub fn reads_stdin(&self) -> bool {
        self.files().any(is_stdin)
    }

    /// Errors if an image is read from standard input.
    pub fn check_no_stdin(&self) -> Result<()> {
        if self.reads_stdin() {
            return Err(Error::usage("an image cannot be read from standard input here")
                .at("--input")
                .hint("name a file"));
        }
        Ok(())
    }

    fn files(&self) -> impl Iterator<Item = &Path> {
        self.inputs.iter().chain(self.controls.files()).chain(&self.mask).map(PathBuf::as_path)
    }

    /// Errors if flags contradict each other in a way that clap does not express.
    pub fn check(&self, prompt_reads_stdin: bool) -> Result<()> {
        let from_stdin = self.files().filter(|file| is_stdin(file)).count() + usize::from(prompt_reads_stdin);
        if from_stdin > 1 {
            return Err(Error::usage("standard input cannot be read more than once")
                .at("--input")
                .hint("name files: only one image, the mask or the prompt can come from standard input"));
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
