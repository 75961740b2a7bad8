//! `flux upscale`: enlarges image files. Start reading at [`run`].

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use flux::engine::{Enlarging, Upscaling};
use flux::files::FileId;
use flux::input::{file_size, read_file};
use flux::output::{Encoding, ImageFormat, Target};
use flux::stage::CancelFlag;
use flux::{Error, Result};

use super::json::print_object;
use super::pictures;
#[cfg(feature = "server")]
use super::remote;
use super::signals::Signals;
use crate::cli::{Upscale, UpscalerChoice};
use flux_runtime::progress::{Console, Shown};

/// Enlarges each image and writes it.
///
/// Errors before an image is read if an output cannot be written or is one of the images, or two outputs are the same
/// file. Errors if an image cannot be read.
pub fn run(args: &Upscale, signals: &Signals) -> Result<()> {
    args.on.check()?;
    let (size, tiles) = (args.size()?, args.tiles()?);
    let images = pictures::expanded(&args.images, None)?;
    let targets = targets(args, &images)?;
    signals.listen()?;
    let cancel = signals.cancel_flag();
    let shown = if args.quiet || args.json { Shown::Nothing } else { Shown::Auto };
    let mut console = Console::new(args.quiet, args.verbose, shown);
    #[cfg(feature = "server")]
    if let Some(url) = args.server()? {
        let server = remote::Enlarger::new(url, args, &mut console, &cancel)?;
        let enlarge = |file: &[u8], target: &Target, console: &mut Console| server.enlarge(file, target, console);
        return write(args, images.iter().zip(targets), &mut console, &cancel, enlarge);
    }
    let upscaling = match &args.upscaler {
        UpscalerChoice::Lanczos => Upscaling::lanczos(),
        UpscalerChoice::File(file) => {
            Upscaling::open(file, &args.on.engine(), &mut console).map_err(|e| e.at("--upscaler"))?
        }
    };
    let enlarge = |file: &[u8], target: &Target, console: &mut Console| {
        let enlarging = Enlarging::read(file, size, upscaling.file().cloned())?;
        let (rgb, to) = (enlarging.image(), enlarging.to());
        let made = upscaling.enlarge(rgb, to, tiles, &mut |progress| console.progress(progress), &cancel)?;
        console.finish();
        enlarging.encode(&made, target.format(), target.quality()).map_err(|e| e.at_path(target.path()))
    };
    write(args, images.iter().zip(targets), &mut console, &cancel, enlarge)
}

/// Writes the image that `enlarge` makes of each file.
fn write<'a>(
    args: &Upscale,
    images: impl Iterator<Item = (&'a PathBuf, Target)>,
    console: &mut Console,
    cancel: &CancelFlag,
    enlarge: impl Fn(&[u8], &Target, &mut Console) -> Result<Vec<u8>>,
) -> Result<()> {
    for (image, target) in images {
        cancel.check()?;
        let file = read_file(image).map_err(|e| e.at_path(image))?;
        let made = enlarge(&file, &target, console).map_err(|e| e.at_path(image))?;
        target.write_bytes(&made)?;
        let ([width, height], path) = (file_size(&made)?, target.path().display());
        if args.json {
            print_object(&serde_json::json!({
                "input": image.display().to_string(), "output": path.to_string(), "width": width, "height": height,
            }))?;
        } else {
            console.info(&format!("wrote {path}: {width}x{height}"));
        }
    }
    Ok(())
}

/// Returns the file for each image.
///
/// Errors if one cannot be written, is one of the images, or is also the file for another image.
fn targets(args: &Upscale, images: &[PathBuf]) -> Result<Vec<Target>> {
    let inputs: HashSet<FileId> = images.iter().map(|image| FileId::from_path(image)).collect();
    let is_folder = args.output.as_deref().is_some_and(|output| output.is_dir());
    if images.len() > 1 && args.output.is_some() && !is_folder {
        return Err(Error::usage("one output file was passed for several images")
            .at("--output")
            .hint("name an existing folder, or leave it out"));
    }
    let mut taken = HashSet::new();
    images
        .iter()
        .map(|image| {
            let path = match &args.output {
                Some(folder) if is_folder => folder.join(image.file_name().unwrap_or_default()),
                Some(file) => file.clone(),
                None => default_name(image),
            };
            if inputs.contains(&FileId::from_path(&path)) {
                return Err(Error::usage(format!("`{}` is one of the images", path.display()))
                    .at("--output")
                    .hint("name another file or folder"));
            }
            if !taken.insert(path.clone()) {
                return Err(Error::usage(format!("two images would be written to `{}`", path.display()))
                    .at("--output")
                    .hint("enlarge the images of each folder on their own"));
            }
            let target = Target::with_encoding(&path, Encoding { format: None, quality: args.quality })?;
            if args.no_clobber { target.without_overwriting() } else { Ok(target) }
        })
        .collect()
}

/// Returns `NAME-upscaled` in the current folder, with the extension of the image, or .png for an unknown one.
fn default_name(image: &Path) -> PathBuf {
    let mut name = image.file_stem().unwrap_or_default().to_os_string();
    name.push("-upscaled.");
    name.push(ImageFormat::from_path(image).map_or("png", ImageFormat::ending));
    PathBuf::from(name)
}
