//! Flags for places: boxes of objects, and regions with their own texts.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use flux::engine::Recipe;
use flux::engine::boxes::{LayoutBox, reference};
use flux::engine::regions::TextRegion;
use flux::files::open_regular;
use flux::{Error, Result};

use super::PROMPT;
use super::values::path;

/// Maximum number of bytes of a file; the engine bounds the number of boxes.
const MAX_FILE: u64 = 1 << 20;

/// Flags for boxes.
#[derive(Args)]
pub struct BoxArgs {
    /// Place of an object, for FLUX.3: ID=TOP,LEFT,BOTTOM,RIGHT[:DESCRIPTION]
    ///
    /// The prompt cites objects, as in "a cat <cat_1> on a mat", or they are cited at its end. Coordinates go from 0 to
    /// 1000, or are percentages. The flag can be repeated.
    #[arg(help_heading = PROMPT, long = "box", value_name = "BOX", value_parser = placed, hide_short_help = true)]
    boxes: Vec<LayoutBox>,
    /// With --input: place of an object in a reference: ID=N:TOP,LEFT,BOTTOM,RIGHT
    ///
    /// References count from 0. With a --box of the same ID, the object is moved there; otherwise it is removed.
    #[arg(help_heading = PROMPT, long, value_name = "BOX", value_parser = source, hide_short_help = true)]
    #[arg(requires = "inputs")]
    box_from: Vec<LayoutBox>,
    /// JSON file with boxes: [{"id": "cat_1", "bbox": [0, 100, 500, 900], "desc": "a cat"}]
    ///
    /// Numbers with a decimal point are shares from 0 to 1.
    #[arg(help_heading = PROMPT, long = "boxes", value_name = "FILE", value_parser = path(), hide_short_help = true)]
    boxes_file: Option<PathBuf>,
}

/// Flags for regions.
#[derive(Args)]
pub struct RegionArgs {
    /// Text for a part of the image: TOP,LEFT,BOTTOM,RIGHT:TEXT or MASK.png:TEXT
    ///
    /// For FLUX.2. The whole image sees the prompt, and the region also sees its text. Coordinates go from 0 to 1000,
    /// or are percentages. A mask is white in its region. The flag can be repeated, up to 30 times.
    #[arg(help_heading = PROMPT, long = "region", value_name = "REGION", hide_short_help = true)]
    regions: Vec<TextRegion>,
}

impl RegionArgs {
    /// Returns the recipe with the flags applied. Regions of flags replace those of the recipe.
    pub fn apply(&self, recipe: Recipe) -> Recipe {
        match self.regions.is_empty() {
            true => recipe,
            false => Recipe { regions: self.regions.clone(), ..recipe },
        }
    }
}

/// Parses `--box`.
fn placed(text: &str) -> std::result::Result<LayoutBox, String> {
    let (id, rest) = text.split_once('=').ok_or("expected ID=TOP,LEFT,BOTTOM,RIGHT, such as cat_1=0,100,500,900")?;
    let (sides, desc) = rest.split_once(':').unwrap_or((rest, ""));
    let (id, desc) = (id.trim().to_string(), desc.trim().to_string());
    Ok(LayoutBox { id, bbox: Some(sides.parse()?), from: None, src_bbox: None, desc })
}

/// Parses `--box-from`.
fn source(text: &str) -> std::result::Result<LayoutBox, String> {
    let parts = text.split_once('=').and_then(|(id, rest)| Some((id, rest.split_once(':')?)));
    let (id, (number, sides)) = parts.ok_or("expected ID=N:TOP,LEFT,BOTTOM,RIGHT, such as cat_1=0:0,100,500,900")?;
    let number: usize = number.trim().parse().map_err(|_| format!("`{number}` is not the number of a reference"))?;
    let (id, src_bbox) = (id.trim().to_string(), Some(sides.parse()?));
    Ok(LayoutBox { id, bbox: None, from: Some(reference(number)), src_bbox, desc: String::new() })
}

impl BoxArgs {
    /// Returns the recipe with the flags applied. Boxes of flags replace those of the recipe.
    ///
    /// Errors if the file cannot be read, or contains something else.
    pub fn apply(&self, recipe: Recipe) -> Result<Recipe> {
        let mut boxes = self.boxes_file.as_deref().map(read).transpose()?.unwrap_or_default();
        boxes.extend_from_slice(&self.boxes);
        for source in &self.box_from {
            match boxes.iter_mut().find(|layout_box| layout_box.id == source.id && layout_box.from.is_none()) {
                Some(moved) => (moved.from, moved.src_bbox) = (source.from.clone(), source.src_bbox),
                None => boxes.push(source.clone()),
            }
        }
        Ok(if boxes.is_empty() { recipe } else { Recipe { boxes, ..recipe } })
    }
}

fn read(file: &Path) -> Result<Vec<LayoutBox>> {
    let place = || format!("--boxes {}", file.display());
    let mut bytes = Vec::new();
    let opened = open_regular(file, "name a file of boxes").map_err(|e| e.at("--boxes"))?;
    opened
        .take(MAX_FILE)
        .read_to_end(&mut bytes)
        .map_err(|e| Error::new(format!("cannot read the boxes: {e}")).at(place()))?;
    serde_json::from_slice(&bytes).map_err(|e| {
        Error::usage(format!("the file does not contain boxes: {e}"))
            .at(place())
            .hint(r#"write a list such as [{"id": "cat_1", "bbox": [0, 100, 500, 900], "desc": "a cat"}]"#)
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    fn boxes(words: &[&str]) -> std::result::Result<Vec<LayoutBox>, String> {
        let cli = Cli::try_parse_from([&["flux", "-p", "x"], words].concat()).map_err(|e| e.to_string())?;
        cli.generate.recipe(None, &mut std::io::empty()).map(|recipe| recipe.boxes).map_err(|e| e.to_string())
    }

    #[test]
    fn a_box_has_a_place_and_perhaps_a_source() {
        let found = boxes(&["--box", "cat_1=0,10%,500,900:a cat: black", "--box", "sun_1 = 0,0,9,9"]).unwrap();
        assert_eq!((found[0].id.as_str(), found[0].desc.as_str()), ("cat_1", "a cat: black"));
        assert_eq!(found[0].bbox, Some("0,100,500,900".parse().unwrap()));
        assert_eq!((found[1].id.as_str(), found[1].desc.as_str()), ("sun_1", ""));
        let moved = ["-i", "a.png", "--box", "a=0,0,9,9", "--box-from", "a=0:0,0,5,5", "--box-from", "b=1:0,0,5,5"];
        let found = boxes(&moved).unwrap();
        assert_eq!((found[0].from.as_deref(), found[0].bbox.is_some()), (Some("ref_image_0"), true));
        assert_eq!((found[1].from.as_deref(), found[1].bbox), (Some("ref_image_1"), None));
    }

    #[test]
    fn a_wrong_box_is_an_error_of_its_flag() {
        for (words, expected) in [
            (&["--box", "cat"][..], "--box"),
            (&["--box", "cat=1,2,3"], "TOP,LEFT,BOTTOM,RIGHT"),
            (&["--box-from", "cat=0:0,0,5,5"], "--input"),
            (&["-i", "a.png", "--box-from", "cat=x:0,0,5,5"], "`x`"),
            (&["--boxes", "/nonexistent/boxes.json"], "boxes.json"),
        ] {
            let error = boxes(words).unwrap_err();
            assert!(error.contains(expected), "{words:?}: {error}");
        }
    }

    #[test]
    fn a_file_has_the_rows_of_the_table() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("boxes.json");
        let flag = |text: &str| {
            std::fs::write(&file, text).unwrap();
            boxes(&["--boxes", file.to_str().unwrap()])
        };
        let found = flag(r#"[{"id": "cat_1", "bbox": [0.0, 0.1, 0.5, 0.9], "desc": "a cat"}]"#).unwrap();
        assert_eq!(found[0].bbox, Some("0,100,500,900".parse().unwrap()));
        for text in ["", "{}", r#"[{"id": "cat_1", "bbox": [0, 0, 5], "desc": ""}]"#, r#"[{"name": "cat"}]"#] {
            assert!(flag(text).unwrap_err().contains("--boxes"), "{text}");
        }
    }
}
