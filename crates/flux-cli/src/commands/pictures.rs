//! The images passed to a command: files, and folders of images.

use std::fs;
use std::path::{Path, PathBuf};

use flux::files::FileId;
use flux::input::is_image;
use flux::{Error, Result};

/// Maximum number of images in a folder.
const MAX_IMAGES: usize = 100_000;

/// Returns the files, with each folder replaced by its images, ordered by name. `output` is left out.
///
/// Errors if a folder cannot be read, or has no image.
pub fn expanded(files: &[PathBuf], output: Option<&Path>) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for file in files {
        if file.is_dir() { all.extend(images_in_folder(file, output)?) } else { all.push(file.clone()) }
    }
    Ok(all)
}

/// Returns the images in a folder, ordered by name. Hidden files are left out.
///
/// Errors if the folder cannot be read, or has no image.
pub fn images_in_folder(folder: &Path, output: Option<&Path>) -> Result<Vec<PathBuf>> {
    let failed = |e| Error::new(format!("cannot read the folder: {e}")).at_path(folder).hint("check its permissions");
    let output = output.filter(|path| path.exists()).map(FileId::from_path);
    let mut images = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        // Skips pipes, which would block.
        if !is_hidden && path.is_file() && is_image(&path) && output.as_ref() != Some(&FileId::from_path(&path)) {
            images.push(path);
        }
        if images.len() > MAX_IMAGES {
            return Err(Error::new(format!("the folder has more than {MAX_IMAGES} images"))
                .at_path(folder)
                .hint("name a folder with fewer images"));
        }
    }
    if images.is_empty() {
        return Err(Error::usage("the folder has no images").at_path(folder).hint("name images, or another folder"));
    }
    images.sort();
    Ok(images)
}

#[cfg(test)]
mod tests {
    use flux::output::{ImageFormat, encode};
    use flux::rgb::Rgb;

    use super::*;

    #[test]
    fn the_images_of_a_folder_are_in_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let rgb = Rgb { width: 16, height: 16, bytes: vec![7; 16 * 16 * 3] };
        let image = encode(&rgb, ImageFormat::Png, &Default::default()).unwrap();
        fs::create_dir(path("b")).unwrap();
        for name in ["b/2.png", "b/1.png", "b/sheet.png", "b/.hidden.png", "a.png"] {
            fs::write(path(name), &image).unwrap();
        }
        fs::write(path("b/list.txt"), "a cat").unwrap();
        let files = expanded(&[path("a.png"), path("b"), path("none.png")], Some(&path("b/sheet.png"))).unwrap();
        assert_eq!(files, ["a.png", "b/1.png", "b/2.png", "none.png"].map(path));
        fs::create_dir(path("empty")).unwrap();
        assert!(expanded(&[path("empty")], None).is_err_and(|e| e.to_string().contains("no images")));
    }
}
