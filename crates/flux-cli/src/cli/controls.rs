//! `--control` and `--canny`: references that show a property of the result.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use flux::engine::Recipe;
use flux::engine::controls::{Control, ControlKind};

use super::IMAGES;
use super::values::path;

/// Flags for controls.
#[derive(Args)]
pub struct ControlArgs {
    /// Reference for one property: style, depth, pose, ..: KIND:FILE; repeatable
    ///
    /// style, composition, face, sketch, lines, canny (an edge map), depth or pose. A line before the prompt says what
    /// to take from the image. Make maps of depth and poses with other programs.
    #[arg(help_heading = IMAGES, long, value_name = "KIND:FILE", hide_short_help = true)]
    control: Vec<ControlFile>,
    /// Follow the edges in this image; repeatable
    ///
    /// The edge map is made as ControlNet's preprocessor makes it: Canny with thresholds of 100 and 200.
    #[arg(help_heading = IMAGES, long, value_name = "FILE", value_parser = path(), hide_short_help = true)]
    canny: Vec<PathBuf>,
}

/// `KIND:FILE`
#[derive(Debug, Clone, PartialEq)]
struct ControlFile {
    kind: ControlKind,
    file: PathBuf,
}

impl FromStr for ControlFile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, file) = text.split_once(':').ok_or("expected KIND:FILE, such as depth:depth.png")?;
        if file.is_empty() {
            return Err("the name of the file is empty".to_string());
        }
        Ok(Self { kind: kind.trim().parse()?, file: file.into() })
    }
}

impl ControlArgs {
    /// Returns the recipe with the controls as further inputs.
    pub fn apply(&self, mut recipe: Recipe) -> Recipe {
        let given = self.control.iter().map(|ControlFile { kind, file }| (*kind, file, false));
        for (kind, file, make) in given.chain(self.canny.iter().map(|file| (ControlKind::Canny, file, true))) {
            recipe.controls.push(Control { kind, input: recipe.inputs.len(), make });
            recipe.inputs.push(file.clone());
        }
        recipe
    }

    /// Returns the files of the images.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.control.iter().map(|control| &control.file).chain(&self.canny)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    fn recipe(line: &str) -> Result<Recipe, String> {
        let cli = Cli::try_parse_from(format!("flux -p x {line}").split_whitespace()).map_err(|e| e.to_string())?;
        cli.generate.check().map_err(|e| e.to_string())?;
        cli.generate.recipe(None, &mut std::io::empty()).map_err(|e| e.to_string())
    }

    #[test]
    fn controls_are_inputs_behind_the_others() {
        let found = recipe("--canny photo.jpg -i a.png --control depth:C:/d.png").unwrap();
        assert_eq!(found.inputs, ["a.png", "C:/d.png", "photo.jpg"].map(PathBuf::from));
        let prompt = "Match the depth map in image 2.\nMatch the edge map in image 3.\nx";
        assert_eq!(found.full_prompt(), prompt);
        assert_eq!(found.controls.iter().map(|control| control.make).collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn wrong_controls_are_errors_of_their_flag() {
        for (line, words) in [
            ("--control depth.png", "KIND:FILE"),
            ("--control deep:depth.png", "`deep`"),
            ("--control depth:", "empty"),
            ("--control style:- --control depth:-", "more than once"),
        ] {
            let error = recipe(line).unwrap_err();
            assert!(error.contains(words), "{line}: {error}");
        }
    }
}
