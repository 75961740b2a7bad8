//! `flux verify`: the marks of images, and whether the pixels are those of the recipe.

use std::fs;
use std::path::Path;
use std::time::Instant;

use flux::engine::ImageRecipe;
use flux::error::{ErrorKind, escaped, shortened};
use flux::metadata::{Settings, said_by};
use flux::output::{ImageFormat, NameTemplate, jpeg_quality};
use flux::{Error, Result, input};
use serde::Serialize;

use super::json::print_object;
use super::signals::Signals;
use super::studio::Studio;
use super::{again, all_or_last, print};
use crate::cli::{Again, OutputArgs, flag};

/// The exit code if an image has no mark, and none is broken.
const UNMARKED: u8 = 3;
/// Maximum length of a printed text, in characters.
const MAX_SHOWN: usize = 200;

/// The state of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    /// All marks hold.
    Holds,
    /// The image has no mark.
    Unmarked,
    /// A mark does not hold.
    Broken,
}

/// The result of comparing pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Pixels {
    Same,
    Changed,
    /// The recipe has no digest, or the image cannot be generated.
    Unknown,
}

/// The state of a C2PA manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[expect(dead_code, reason = "a build has either the last state or the others")]
enum C2pa {
    /// The signature holds, and a trusted authority issued the certificate.
    Trusted,
    /// The signature holds, and no known authority issued the certificate.
    Untrusted,
    /// The signature does not hold.
    Broken,
    /// This program does not check manifests.
    Unchecked,
}

/// The marks of an image.
#[derive(Debug, Serialize)]
struct Report {
    file: String,
    format: &'static str,
    status: Status,
    /// The source of the pixels in XMP, as a term of the IPTC.
    source: Option<String>,
    /// The AI system in XMP, and its version.
    system: Option<String>,
    system_version: Option<String>,
    /// The program that wrote the recipe, and its model.
    recipe: Option<String>,
    /// The program that wrote the settings for others.
    settings: Option<String>,
    has_c2pa: bool,
    /// The state of the C2PA manifest.
    c2pa: Option<C2pa>,
    /// The pixels compared with the digest in the recipe.
    pixels: Option<Pixels>,
    /// The pixels compared with those of the image that the recipe generates.
    remake: Option<Pixels>,
    notes: Vec<String>,
}

/// The options of `flux verify`.
pub struct Options {
    /// Print an object in JSON for each image.
    pub json: bool,
    /// Generate the images again.
    pub remake: bool,
    /// Certificates of trusted authorities, in PEM.
    pub trusted: Option<String>,
}

/// Prints the marks of each image. Returns the exit code.
pub fn run(again: &Again, options: &Options, start: Instant, signals: &Signals) -> Result<u8> {
    again.check()?;
    let mut studio = options.remake.then(|| Studio::new(&again.draw, &again.show, signals, start).exact(true));
    let (mut worst, mut errors) = (Status::Holds, Vec::new());
    for image in &again.images {
        match Report::from_file(image, again, options, studio.as_mut()) {
            Ok(report) => {
                worst = worst.max(report.status);
                if options.json { print_object(&report)? } else { print(report.text().as_bytes())? }
            }
            Err(error) if error.kind() == ErrorKind::Cancelled => return Err(error),
            Err(error) => errors.push(error),
        }
    }
    studio.into_iter().for_each(Studio::end);
    all_or_last(errors)?;
    Ok(match worst {
        Status::Holds => 0,
        Status::Unmarked => UNMARKED,
        Status::Broken => 1,
    })
}

impl Report {
    /// Reads and checks the marks of an image; with a studio, also generates it again.
    fn from_file(image: &Path, again: &Again, options: &Options, studio: Option<&mut Studio>) -> Result<Self> {
        let file = input::read_file(image).map_err(|e| e.at_path(image))?;
        let mut report = Self::new(image, &file).map_err(|e| e.at_path(image))?;
        report.check_c2pa(&file, options.trusted.as_deref())?;
        if let Some(studio) = studio {
            report.remake(image, &file, again, studio)?;
        }
        Ok(report)
    }

    /// Reads the marks of a file.
    ///
    /// Errors if it is no PNG, JPEG or WebP, or if it is damaged.
    fn new(path: &Path, file: &[u8]) -> Result<Self> {
        let said = said_by(file)?;
        let format = ImageFormat::from_magic(file).map_or("", ImageFormat::name);
        let text = |keyword: &str| said.text(keyword).map(|text| shortened(text, MAX_SHOWN).into_owned());
        let source = said.source_term().map(|term| shortened(term, MAX_SHOWN).into_owned());
        let mut report = Self {
            file: path.display().to_string(),
            format,
            status: Status::Holds,
            system: text("AISystemUsed"),
            system_version: text("AISystemVersionUsed"),
            recipe: None,
            settings: Settings::read(&said).map(|settings| shortened(&settings.program, MAX_SHOWN).into_owned()),
            has_c2pa: said.has_c2pa,
            c2pa: None,
            pixels: None,
            remake: None,
            notes: Vec::new(),
            source,
        };
        let is_generated = |term: &str| {
            let term = term.to_ascii_lowercase();
            term.contains("algorithmic") || term.contains("synthetic")
        };
        let marks = [report.source.as_deref().is_some_and(is_generated), said.recipe.is_some()];
        if marks == [false; 2] && report.system.is_none() && report.settings.is_none() && !report.has_c2pa {
            report.status = Status::Unmarked;
        }
        match said.recipe.as_deref().map(ImageRecipe::from_json) {
            Some(Ok(made)) => report.compare(file, &made)?,
            Some(Err(error)) => report.fail(error.what()),
            None => {
                // A file without a recipe must be whole, too.
                input::pixel_digest(file)?;
            }
        }
        Ok(report)
    }

    /// Verifies the C2PA manifest.
    #[cfg(feature = "c2pa")]
    fn check_c2pa(&mut self, file: &[u8], trusted: Option<&str>) -> Result<()> {
        use flux_provenance::Manifest;

        let Some(format) = ImageFormat::from_magic(file).filter(|_| self.has_c2pa) else { return Ok(()) };
        self.c2pa = Some(match flux_provenance::check(file, format, trusted)? {
            Manifest::Trusted => C2pa::Trusted,
            Manifest::Untrusted => C2pa::Untrusted,
            Manifest::Broken(why) => {
                self.fail(format!("the C2PA manifest does not hold: {}", shortened(&why, MAX_SHOWN)));
                C2pa::Broken
            }
        });
        Ok(())
    }

    /// Notes that the C2PA manifest is not verified.
    #[cfg(not(feature = "c2pa"))]
    fn check_c2pa(&mut self, _file: &[u8], _trusted: Option<&str>) -> Result<()> {
        self.c2pa = self.has_c2pa.then_some(C2pa::Unchecked);
        Ok(())
    }

    /// Adds a note about a mark that does not hold.
    fn fail(&mut self, note: impl Into<String>) {
        self.status = Status::Broken;
        self.notes.push(note.into());
    }

    /// Compares the pixels with the digest in the recipe.
    fn compare(&mut self, file: &[u8], made: &ImageRecipe) -> Result<()> {
        let made_by = format!("flux {}, model {}", made.flux, made.model.name);
        self.recipe = Some(shortened(&made_by, MAX_SHOWN).into_owned());
        let digest = input::pixel_digest(file)?;
        let kind = |digest: &str| digest.split(':').next().unwrap_or_default().to_string();
        let (pixels, note) = match &made.pixels {
            None => (Pixels::Unknown, "the recipe has no digest of the pixels: an older flux wrote it"),
            Some(known) if *known == digest => {
                self.pixels = Some(Pixels::Same);
                return Ok(());
            }
            Some(known) if kind(known) != kind(&digest) => {
                (Pixels::Changed, "the image was converted to another format, and the digest is of the original")
            }
            Some(_) => (Pixels::Changed, "the pixels are not those of the recipe"),
        };
        self.pixels = Some(pixels);
        match pixels {
            Pixels::Changed => self.fail(note),
            _ => self.notes.push(note.to_string()),
        }
        Ok(())
    }

    /// Generates the image again, and compares the pixels.
    ///
    /// Errors if a signal ends the work.
    fn remake(&mut self, path: &Path, file: &[u8], again: &Again, studio: &mut Studio<'_>) -> Result<()> {
        match remade(path, file, again, studio) {
            Ok(remade) if input::pixel_digest(&remade)? == input::pixel_digest(file)? => {
                self.remake = Some(Pixels::Same);
            }
            Ok(_) => {
                self.remake = Some(Pixels::Changed);
                self.fail("the recipe generates another image");
            }
            Err(error) if error.kind() == ErrorKind::Cancelled => return Err(error),
            Err(error) => {
                self.remake = Some(Pixels::Unknown);
                let named = error.shown_with(flag);
                self.fail(format!("the image cannot be generated again: {}", named.lines().next().unwrap_or_default()));
            }
        }
        Ok(())
    }

    /// Formats the report for a terminal.
    fn text(&self) -> String {
        let status = match self.status {
            Status::Holds => "all marks hold",
            Status::Unmarked => "no mark",
            Status::Broken => "broken",
        };
        let pixels = |pixels| match pixels {
            Pixels::Same => "the same",
            Pixels::Changed => "changed",
            Pixels::Unknown => "unknown",
        };
        let c2pa = |state| match state {
            C2pa::Trusted => "trusted",
            C2pa::Untrusted => "the signature holds, but no known authority issued the certificate",
            C2pa::Broken => "broken",
            C2pa::Unchecked => "present, not checked by this program",
        };
        let system = [self.system.as_deref(), self.system_version.as_deref()];
        let system = system.into_iter().flatten().collect::<Vec<_>>().join(" ");
        let lines = [
            ("source", self.source.clone()),
            ("AI system", Some(system).filter(|system| !system.is_empty())),
            ("recipe", self.recipe.clone()),
            ("settings", self.settings.clone()),
            ("C2PA manifest", self.c2pa.map(|state| c2pa(state).to_string())),
            ("pixels of the recipe", self.pixels.map(|same| pixels(same).to_string())),
            ("pixels generated again", self.remake.map(|same| pixels(same).to_string())),
        ];
        let lines = lines.into_iter().filter_map(|(name, value)| Some(format!("  {name}: {}", value?)));
        let notes = self.notes.iter().map(|note| format!("  note: {note}"));
        let head = std::iter::once(format!("{}: {status}", self.file));
        head.chain(lines).chain(notes).map(|line| escaped(&line).into_owned()).collect::<Vec<_>>().join("\n")
    }
}

/// Returns the file that the recipe of an image generates, as [`again`] does with `--exact`.
fn remade(path: &Path, file: &[u8], again: &Again, studio: &mut Studio<'_>) -> Result<Vec<u8>> {
    let folder = tempfile::tempdir().map_err(|e| Error::new(format!("cannot create a temporary folder: {e}")))?;
    let format = ImageFormat::from_magic(file).unwrap_or(ImageFormat::Png);
    let output = folder.path().join(format!("again.{}", format.ending()));
    let quality = if format == ImageFormat::Jpeg { jpeg_quality(file) } else { None };
    let name = NameTemplate::literal(&output.to_string_lossy());
    let args = OutputArgs::new_file(name.into()).with_quality(quality);
    studio.draw(again::wanted(again, path)?, &args)?;
    fs::read(&output).map_err(|e| Error::new(format!("cannot read the image: {e}")).at_path(&output))
}
