//! The file of an adapter on disk, and suggestions if a path leads to none.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::catalog::recognise::FileKind;
use crate::containers::container::Container;
use crate::containers::inspect;
use crate::containers::safetensors::Safetensors;
use crate::io::{name_of, near, regular};
use flux_base::error::{Error, Field, Result};

/// The names that PEFT and diffusers give the file of an adapter in its own folder.
const NAMES: [&str; 2] = ["adapter_model.safetensors", "pytorch_lora_weights.safetensors"];
const CONFIG: &str = "adapter_config.json";
const ENDINGS: [&str; 2] = ["safetensors", "sft"];
const PICKLES: [&str; 5] = ["bin", "ckpt", "pkl", "pt", "pth"];
const FETCH_AGAIN: &str = "the file is damaged or its download was cut off: fetch it again";
/// Limits of the search for adapters: parents of a model's file with a folder of ComfyUI, levels in it, and files.
const MAX_PARENTS: usize = 4;
const MAX_LEVELS: usize = 3;
const MAX_FILES: usize = 2000;
/// The max number of files that an error lists.
const MAX_NAMES: usize = 3;

/// An opened file, and the config that belongs to it.
pub struct Found {
    pub file: Safetensors,
    pub config: Option<PathBuf>,
    /// A note for the user on the choice of the config.
    pub note: Option<String>,
}

/// Opens the adapter at `path`: a file, or a folder with one file. If there is none, the error suggests adapters of
/// similar names, also from the folders `others`.
///
/// Errors if there is no adapter, and reports the file that is there instead.
pub fn find(path: &Path, others: &[PathBuf]) -> Result<Found> {
    let is_folder = match path.metadata() {
        Ok(found) => found.is_dir(),
        Err(error) if error.kind() == ErrorKind::NotFound && path.symlink_metadata().is_err() => {
            return Err(missing(path, others));
        }
        Err(_) => false,
    };
    let at = if is_folder { in_folder(path)? } else { path.to_path_buf() };
    let opened = [Container::open(&at, FETCH_AGAIN)?];
    let kind = inspect::kind(&opened);
    let [Container::Safetensors(file)] = opened else { return Err(no_adapter(&at, &kind)) };
    if !kind.may_be_adapter() {
        return Err(no_adapter(&at, &kind));
    }
    let beside = at.with_file_name(CONFIG);
    if !regular::exists(&beside) {
        return Ok(Found { file, config: None, note: None });
    }
    // Next to a file of another name, the config may belong to another adapter.
    let is_own = is_folder || at.file_name().is_some_and(|name| name == NAMES[0]);
    let is_peft =
        file.names().any(|key| key.contains("lora_A")) && !file.metadata().contains_key("lora_adapter_metadata");
    let note =
        (!is_own && is_peft).then(|| format!("adapter `{}` is scaled by the `{CONFIG}` next to it", name_of(&at)));
    Ok(Found { file, config: (is_own || is_peft).then_some(beside), note })
}

/// Returns the file of the adapter at `path` and the config that belongs to it, as [`find`] finds them; `None` if there
/// is no adapter.
pub fn files_of(path: &Path) -> Option<Vec<PathBuf>> {
    let found = find(path, &[]).ok()?;
    Some([found.file.path().to_path_buf()].into_iter().chain(found.config).collect())
}

/// Returns ComfyUI's folders of adapters near the file of a model.
pub fn folders_near(model: &Path) -> Vec<PathBuf> {
    let Ok(model) = model.canonicalize() else { return Vec::new() };
    let near = model.ancestors().skip(1).take(MAX_PARENTS);
    let all = near.flat_map(|folder| ["models/loras", "loras"].map(|name| folder.join(name))).filter(|at| at.is_dir());
    let mut folders: Vec<PathBuf> = all.collect();
    // `loras` in a folder `models` is also `models/loras` in the folder above.
    folders.dedup();
    folders
}

/// Returns the file of the adapter in a folder.
fn in_folder(folder: &Path) -> Result<PathBuf> {
    if let Some(known) = NAMES.iter().map(|name| folder.join(name)).find(|path| regular::exists(path)) {
        return Ok(known);
    }
    let mut files = Vec::new();
    list(folder, 1, &ENDINGS, &mut files);
    files.sort();
    let refused = |what: String, hint: String| Err(Error::new(what).at_path(folder).hint(hint));
    match &files[..] {
        [only] => Ok(only.clone()),
        [] => {
            let mut pickles = Vec::new();
            list(folder, 1, &PICKLES, &mut pickles);
            if folder.join("model_index.json").exists() {
                return refused(
                    "the folder contains a model, not an adapter".to_string(),
                    format!("pass it with `{}`", Field::Model),
                );
            }
            match pickles.first() {
                Some(pickle) => refused(
                    format!("the folder contains `{}`, a PyTorch pickle, but no safetensors file", name_of(pickle)),
                    "fetch the same adapter as a safetensors file, or convert it".to_string(),
                ),
                None => refused(
                    "the folder contains no adapter".to_string(),
                    format!("name a safetensors file, or a folder with `{}`", NAMES[0]),
                ),
            }
        }
        several => {
            let names: Vec<String> =
                several.iter().take(MAX_NAMES).map(|path| format!("`{}`", path.display())).collect();
            let what =
                format!("the folder contains {} files that may be the adapter: {}", several.len(), names.join(", "));
            refused(what, "name one of them".to_string())
        }
    }
}

fn no_adapter(path: &Path, kind: &FileKind) -> Error {
    Error::new(format!("the file is {}, expected an adapter", kind.title())).at_path(path).hint(kind.remedy())
}

/// Returns the error of a path that does not exist, with suggestions.
fn missing(path: &Path, others: &[PathBuf]) -> Error {
    let beside = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut files = Vec::new();
    list(beside.unwrap_or(Path::new(".")), 1, &ENDINGS, &mut files);
    // If the path is a bare name, the suggestions are bare names, too.
    if beside.is_none() {
        files.iter_mut().for_each(|file| *file = name_of(file).into());
    }
    others.iter().for_each(|folder| list(folder, MAX_LEVELS, &ENDINGS, &mut files));
    let meant = near::nearest(files, path.file_name().unwrap_or_default());
    let hint =
        near::did_you_mean(&meant).unwrap_or_else(|| "name a safetensors file, or a folder with one".to_string());
    Error::new(format!("no such file or folder: `{}`", path.display())).hint(hint)
}

/// Adds the files with these extensions in `folder` and in `levels - 1` levels of folders below it.
fn list(folder: &Path, levels: usize, endings: &[&str], files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if files.len() >= MAX_FILES {
            return;
        }
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        if path.is_dir() {
            if levels > 1 {
                list(&path, levels - 1, endings, files);
            }
        } else if endings.iter().any(|known| ending.eq_ignore_ascii_case(known)) {
            files.push(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn refused(path: &Path, others: &[PathBuf], words: &[&str]) {
        let error = find(path, others).err().expect("refused").to_string();
        assert!(words.iter().chain(&["hint: "]).all(|word| error.contains(word)), "{error}");
        assert!(!error.contains("download"), "{error}");
    }

    fn write(path: &Path, key: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![1], &[0; 4]).unwrap();
        safetensors::serialize_to_file([(key, view)], None, path).unwrap();
    }

    #[test]
    fn similar_names_beside_it_and_in_the_folder_of_comfyui_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        write(&at("mine/watercolour.safetensors"), "x.lora_A.weight");
        write(&at("models/loras/styles/Pencil_v2.safetensors"), "x.lora_A.weight");
        write(&at("models/diffusion_models/klein/model.safetensors"), "x");
        let near = folders_near(&at("models/diffusion_models/klein/model.safetensors"));
        assert_eq!(near.len(), 1);
        refused(
            &at("mine/watercolor.safetensors"),
            &near,
            &["no such file", "did you mean `", "mine/watercolour.safetensors`?"],
        );
        refused(&at("mine/watercolour"), &near, &["watercolour.safetensors`?"]);
        refused(&at("mine/pencil_v2.safetensors"), &near, &["loras/styles/Pencil_v2.safetensors`?"]);
        write(&at("mine/h.safetensors"), "x.lora_A.weight");
        refused(&at("mine/watercolor.safetensor"), &near, &["did you mean `", "mine/watercolour.safetensors`?"]);
        refused(&at("mine/unlike.safetensors"), &[], &["name a safetensors file"]);
        refused(&at("none/at/all"), &[], &["no such file or folder", "name a safetensors file"]);
    }

    #[test]
    fn a_folder_gives_its_adapter_or_says_what_it_holds() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        write(&at("peft/adapter_model.safetensors"), "x.lora_A.weight");
        write(&at("peft/other.safetensors"), "x.lora_A.weight");
        write(&at("one/any.SafeTensors"), "x.lora_A.weight");
        let file = |name: &str| find(&at(name), &[]).unwrap().file.path().to_path_buf();
        assert_eq!(file("peft"), at("peft/adapter_model.safetensors"));
        assert_eq!(file("one"), at("one/any.SafeTensors"));
        write(&at("one/more.safetensors"), "x.lora_A.weight");
        refused(&at("one"), &[], &["contains 2 files", "any.SafeTensors", "more.safetensors"]);
        fs::create_dir(at("none")).unwrap();
        refused(&at("none"), &[], &["contains no adapter", "adapter_model.safetensors"]);
        fs::write(at("none/adapter_model.bin"), "").unwrap();
        refused(&at("none"), &[], &["`adapter_model.bin`, a PyTorch pickle"]);
        refused(Path::new("../../models/tiny"), &[], &["contains a model", "`model`"]);
        refused(Path::new("../../models/tiny/transformer"), &[], &["the file is a transformer, expected an adapter"]);
        refused(Path::new("../../models/tiny/vae/diffusion_pytorch_model.safetensors"), &[], &["is a VAE", "`vae`"]);
    }

    #[test]
    fn a_config_belongs_to_a_file_of_peft() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["adapter_model", "peft", "kohya"] {
            let factor = if name == "kohya" { "x.lora_down.weight" } else { "x.lora_A.weight" };
            write(&at(&format!("{name}.safetensors")), factor);
        }
        let config = |name: &str| find(&at(name), &[]).unwrap();
        assert!(config("adapter_model.safetensors").config.is_none());
        fs::write(at(CONFIG), "{}").unwrap();
        let found = config("adapter_model.safetensors");
        assert!(found.config.is_some() && found.note.is_none());
        let found = config("peft.safetensors");
        assert!(found.config.is_some() && found.note.is_some_and(|note| note.contains("adapter_config.json")));
        assert!(config("kohya.safetensors").config.is_none());
    }
}
