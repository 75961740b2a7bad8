//! `--lora`: adapter files.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use flux::engine::{AdapterFile, Recipe};
use flux::files::adapter::BlockStrengths;
use flux::{Error, Result};

use super::MODEL;
use super::settings::settings;

const FLAG: &str = "--lora";
/// The extensions of adapter files.
const ENDINGS: [&str; 2] = ["safetensors", "sft"];

/// Flags for adapters.
#[derive(Args)]
pub struct AdapterArgs {
    /// Adapter and its strength; repeatable
    ///
    /// LoRA, LoKr, LoHa or DoRA: a file, or owner/name[:FILE] of an adapter from `flux download`. The default strength
    /// is 1. FILE:STRENGTH:BLOCKS multiplies it by block, as in single=0.5,double0-2=0: double and single for FLUX.2,
    /// text, image, reference and joint for FLUX.3, and other. `flux info` prints how much the file changes each block.
    #[arg(help_heading = MODEL, long, value_name = "FILE[:STRENGTH]")]
    #[arg(value_parser = OsStringValueParser::new().map(Lora::from))]
    lora: Vec<Lora>,
}

/// `FILE`, `FILE:STRENGTH` or `FILE:STRENGTH:BLOCKS`
#[derive(Debug, Clone, PartialEq)]
struct Lora {
    whole: PathBuf,
    /// The parts before and after the last colon.
    split: Option<(PathBuf, String)>,
}

impl From<OsString> for Lora {
    fn from(text: OsString) -> Self {
        Self { split: split(&text), whole: text.into() }
    }
}

impl Lora {
    /// Returns the adapter. File names may contain colons: if both readings are possible, `exists` decides.
    ///
    /// Errors when the strength is not a number, or the blocks are not understood.
    fn adapter(&self, exists: impl Fn(&Path) -> bool + Copy) -> Result<AdapterFile> {
        match &self.split {
            Some((rest, blocks)) if blocks.contains('=') && !exists(&self.whole) => {
                let rest = Self::from(rest.clone().into_os_string());
                let (file, strength) = rest.meant(exists)?;
                let blocks = blocks.parse::<BlockStrengths>().map_err(|why| Error::usage(why).at(FLAG))?;
                Ok(AdapterFile { blocks, ..AdapterFile::new(file, strength) })
            }
            _ => self.meant(exists).map(|(file, strength)| AdapterFile::new(file, strength)),
        }
    }

    /// Returns the file and its strength. File names may contain colons: if both readings are possible, `exists`
    /// decides.
    ///
    /// Errors when the part after the colon is not a number.
    fn meant(&self, exists: impl Fn(&Path) -> bool) -> Result<(&Path, f32)> {
        let Some((file, text)) = &self.split else { return Ok((&self.whole, 1.0)) };
        if exists(&self.whole) && !exists(file) {
            return Ok((&self.whole, 1.0));
        }
        // `nan` and `inf` would parse, but may be names.
        let number = text.parse().ok().filter(|_| text.contains(|c: char| c.is_ascii_digit()));
        let is_file = |file: &Path| {
            let ending = file.extension().unwrap_or_default();
            exists(file) || ENDINGS.iter().any(|known| ending.eq_ignore_ascii_case(known))
        };
        match number {
            Some(strength) => Ok((file, strength)),
            None if exists(&self.whole) || !is_file(file) => Ok((&self.whole, 1.0)),
            None => {
                let hint = match text.replace(',', ".") {
                    point if point.parse::<f32>().is_ok_and(f32::is_finite) => format!("write `:{point}`"),
                    _ => "write a number after the colon, as in `--lora style.safetensors:0.8`".to_string(),
                };
                let what = format!("the strength of `{}` is `{text}`, expected a number", file.display());
                Err(Error::usage(what).at(FLAG).hint(hint))
            }
        }
    }
}

/// Splits at the last colon. `None` if a part contains another folder, or the second is not UTF-8.
fn split(text: &OsStr) -> Option<(PathBuf, String)> {
    let bytes = text.as_bytes();
    let colon = bytes.iter().rposition(|byte| *byte == b':')?;
    let (file, behind) = (OsStr::from_bytes(&bytes[..colon]), std::str::from_utf8(&bytes[colon + 1..]).ok()?);
    (!file.is_empty() && !behind.contains(['/', '\\'])).then(|| (file.into(), behind.to_string()))
}

/// Returns the file of an adapter: the path itself, otherwise a file in the adapter folders.
pub fn in_folders(path: &Path) -> PathBuf {
    found(path, &settings().adapters())
}

/// Returns the file of an adapter: the path itself, otherwise a file with this name in one of the folders. The
/// extension is optional.
fn found(path: &Path, folders: &[PathBuf]) -> PathBuf {
    if is_there(path) || path.is_absolute() {
        return path.to_path_buf();
    }
    let endings = [""].into_iter().chain(ENDINGS).map(|ending| {
        let mut name = path.as_os_str().to_os_string();
        if !ending.is_empty() {
            name.push(".");
            name.push(ending);
        }
        name
    });
    let names: Vec<OsString> = endings.collect();
    let mut files = folders.iter().flat_map(|folder| names.iter().map(move |name| folder.join(name)));
    files.find(|file| is_there(file)).unwrap_or_else(|| path.to_path_buf())
}

/// Returns `true` if a path exists, even as a broken link.
fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

impl AdapterArgs {
    /// Returns the adapters without their strengths.
    pub fn named(&self) -> Vec<PathBuf> {
        self.lora.iter().map(|lora| lora.adapter(is_there).map_or(lora.whole.clone(), |used| used.file)).collect()
    }

    /// Returns the recipe with its adapters replaced by those of the flags, in order, if there are any.
    ///
    /// Errors when a strength is not a number, or a name is empty.
    pub fn apply(&self, recipe: Recipe) -> Result<Recipe> {
        if self.lora.is_empty() {
            return Ok(recipe);
        }
        let named = self.lora.iter().map(|lora| {
            let used = lora.adapter(is_there)?;
            if used.file.as_os_str().is_empty() {
                return Err(Error::usage("the name of the adapter is empty").at(FLAG).hint("name a safetensors file"));
            }
            Ok(AdapterFile { file: in_folders(&used.file), ..used })
        });
        Ok(Recipe { adapters: named.collect::<Result<_>>()?, ..recipe })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meant(text: &str, there: &[&str]) -> std::result::Result<(String, f32), String> {
        let lora = Lora::from(OsString::from(text));
        let used = lora.adapter(|path| there.iter().any(|name| path == Path::new(name)));
        used.map(|used| (format!("{}{}", used.file.display(), used.blocks.suffix()), used.strength))
            .map_err(|e| e.to_string())
    }

    #[test]
    fn a_strength_is_a_number_behind_the_last_colon() {
        for (text, path, strength) in [
            ("a.safetensors", "a.safetensors", 1.0),
            ("a.safetensors:0.8", "a.safetensors", 0.8),
            ("a:-1", "a", -1.0),
            ("a:0", "a", 0.0),
            ("a:1e-1", "a", 0.1),
            ("C:/a:b.safetensors:2", "C:/a:b.safetensors", 2.0),
            ("C:/a.safetensors", "C:/a.safetensors", 1.0),
            ("a:b", "a:b", 1.0),
            ("a:", "a:", 1.0),
            ("a:nan", "a:nan", 1.0),
            (":2", ":2", 1.0),
            ("a.safetensors:0.5:single12-=0.5,other=0", "a.safetensors:single12-=0.5,other=0", 0.5),
            ("C:/a.safetensors:double=0", "C:/a.safetensors:double=0", 1.0),
        ] {
            assert_eq!(meant(text, &[]), Ok((path.to_string(), strength)), "{text}");
        }
    }

    #[test]
    fn files_that_are_there_decide_what_a_colon_is() {
        assert_eq!(meant("a:2", &["a:2"]), Ok(("a:2".to_string(), 1.0)));
        assert_eq!(meant("a:2", &["a:2", "a"]), Ok(("a".to_string(), 2.0)));
        assert_eq!(meant("a:nan", &["a:nan", "a"]), Ok(("a:nan".to_string(), 1.0)));
        for (text, there, hint) in [
            ("a.safetensors:0,5", &["a.safetensors"][..], "write `:0.5`"),
            ("none.SafeTensors:0,5", &[], "write `:0.5`"),
            ("a.sft:half", &[], "`--lora style.safetensors:0.8`"),
            ("a:", &["a"], "`--lora style.safetensors:0.8`"),
            ("a:nan", &["a"], "a number after the colon"),
            ("a:0,5:single=1", &["a"], "write `:0.5`"),
            ("a:50%", &["a"], "a number after the colon"),
        ] {
            let error = meant(text, there).unwrap_err();
            assert!(error.contains("expected a number") && error.contains(hint), "{text}: {error}");
        }
    }

    #[test]
    fn the_name_of_an_adapter_is_looked_for_in_the_folders_of_adapters() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("oil.safetensors"), "").unwrap();
        let folders = [PathBuf::from("none"), folder.path().to_path_buf()];
        for name in ["oil", "oil.safetensors"] {
            assert_eq!(found(Path::new(name), &folders), folder.path().join("oil.safetensors"));
        }
        assert_eq!(found(Path::new("water"), &folders), Path::new("water"));
        assert_eq!(found(Path::new("Cargo.toml"), &folders), Path::new("Cargo.toml"), "existing files take precedence");
    }

    #[test]
    fn blocks_that_are_not_understood_are_named() {
        assert!(meant("a:1:singles=2", &[]).unwrap_err().contains("`singles`"));
        assert_eq!(meant("a:single=2", &["a:single=2"]), Ok(("a:single=2".to_string(), 1.0)), "a file");
    }

    #[test]
    fn names_that_are_no_text_take_a_strength() {
        use std::os::unix::ffi::OsStringExt;

        let lora = Lora::from(OsString::from_vec(b"b\xff.safetensors:0.25".to_vec()));
        let (path, strength) = lora.meant(|_| false).unwrap();
        assert_eq!((path.as_os_str().as_bytes(), strength), (&b"b\xff.safetensors"[..], 0.25));
    }
}
