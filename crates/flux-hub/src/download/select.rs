//! Selection of the files of a repository that `flux` reads.

use std::collections::BTreeSet;
use std::path::Path;

use crate::Named;
use flux_base::Result;
use flux_base::error::Error;
use flux_files::{Role, is_weights};

use super::remote::{MANIFEST, RemoteFile, check_path};

/// The file that marks a repository as a model in folders.
pub const INDEX: &str = "model_index.json";
/// As [`INDEX`], if parts of the model may be in other repositories.
pub const MODULAR_INDEX: &str = "modular_model_index.json";
/// The files of such a model that this or other programs read: folders, and endings of small files.
const FOLDERS: [&str; 5] = ["scheduler", "text_encoder", "tokenizer", "transformer", "vae"];
const SMALL: [&str; 4] = [".json", ".txt", ".jinja", ".model"];
/// The max bytes of a small file.
const SMALL_BYTES: u64 = 64 << 20;
/// The max number of names that an error lists.
const MAX_LISTED: usize = 12;

/// Returns the files that a name refers to, out of all files of a repository. `read` returns the text of a file.
///
/// Errors if a named file does not exist, or no file or several files may be meant.
pub fn select_files(
    named: &Named,
    all: Vec<RemoteFile>,
    read: impl Fn(&str) -> Result<String>,
) -> Result<Vec<RemoteFile>> {
    let has = |path: &str| all.iter().any(|file| file.path == path);
    let wanted: BTreeSet<String> = match &named.file {
        Some(file) if has(file) => BTreeSet::from([file.clone()]),
        Some(file) => return Err(no_such_file(named, file, &all)),
        None if has(INDEX) || has(MODULAR_INDEX) => select_model(&all, read)?,
        None => select_single_file(named, &all)?,
    };
    Ok(all.into_iter().filter(|file| wanted.contains(&file.path) || file.path == MANIFEST).collect())
}

/// Returns the files of a model in folders.
fn select_model(all: &[RemoteFile], read: impl Fn(&str) -> Result<String>) -> Result<BTreeSet<String>> {
    let mut wanted = BTreeSet::new();
    for file in all {
        let is_small = file.size <= SMALL_BYTES && SMALL.iter().any(|end| file.path.ends_with(end));
        let is_wanted = match file.path.rsplit_once('/') {
            None => is_card(&file.path) || [INDEX, MODULAR_INDEX].contains(&file.path.as_str()),
            // Lists of shards are selected together with the weights.
            Some((folder, name)) => FOLDERS.contains(&folder) && is_small && !name.ends_with(".index.json"),
        };
        if is_wanted {
            wanted.insert(file.path.clone());
        }
    }
    for role in Role::ALL {
        let stem = format!("{}/{}", role.folder(), role.stem());
        let (single, index) = (format!("{stem}.safetensors"), format!("{stem}.safetensors.index.json"));
        if all.iter().any(|file| file.path == single) {
            wanted.insert(single);
        } else if all.iter().any(|file| file.path == index) {
            wanted.extend(shards(&index, &read(&index)?)?);
            wanted.insert(index);
        } else if !all.iter().any(|file| file.path == MODULAR_INDEX) {
            let what =
                format!("the repository has no weights for the {}: neither `{single}` nor a shard index", role.title());
            return Err(Error::new(what)
                .hint("flux cannot run it as a whole model; use `owner/name:FILE` to download one file"));
        }
    }
    match wanted.iter().find(|path| !all.iter().any(|file| file.path == **path)) {
        None => Ok(wanted),
        Some(path) => Err(Error::new(format!("a shard index names `{path}`, which is missing from the repository"))),
    }
}

/// Returns `true` if a file states the licence.
fn is_card(path: &str) -> bool {
    path == "README.md" || path == "LICENSE" || path.starts_with("LICENSE.")
}

/// Returns the only weight file of a repository that is not a model in folders, with the files that state its sizes and
/// licence.
fn select_single_file(named: &Named, all: &[RemoteFile]) -> Result<BTreeSet<String>> {
    let weights: Vec<&RemoteFile> = all.iter().filter(|file| is_weights(Path::new(&file.path))).collect();
    match weights[..] {
        [only] => {
            let small = all.iter().filter(|file| is_card(&file.path) || file.path == "config.json");
            Ok(small.chain([only]).map(|file| file.path.clone()).collect())
        }
        [] => Err(Error::new(format!("`{}` has no `{INDEX}` and no weight file", named.repository))
            .hint("flux cannot run it as a model; use `flux download owner/name:FILE` to download any file")),
        [first, ..] => {
            let names: Vec<&str> = weights.iter().take(MAX_LISTED).map(|file| file.path.as_str()).collect();
            let more = if weights.len() > MAX_LISTED { ", ..." } else { "" };
            let what = format!("`{}` has {} weight files: {}{more}", named.repository, weights.len(), names.join(", "));
            Err(Error::usage(what).hint(format!("name one of them, as in `{}:{}`", named.repository, first.path)))
        }
    }
}

fn no_such_file(named: &Named, file: &str, all: &[RemoteFile]) -> Error {
    let weights = all.iter().filter(|file| is_weights(Path::new(&file.path)));
    let names: Vec<&str> = weights.take(MAX_LISTED).map(|file| file.path.as_str()).collect();
    let error = Error::new(format!("`{}` has no file `{file}`", named.repository));
    if names.is_empty() { error.hint("check the name") } else { error.hint(format!("it has {}", names.join(", "))) }
}

/// Returns the shards that a list of shards names, by their paths in the repository.
///
/// Errors if the text is not such a list, or names anything but files next to it.
pub fn shards(index: &str, text: &str) -> Result<BTreeSet<String>> {
    #[derive(serde::Deserialize)]
    struct List {
        weight_map: std::collections::HashMap<String, String>,
    }
    let folder = index.rsplit_once('/').map_or("", |(folder, _)| folder);
    let wrong = |what: String| Error::new(what).hint(super::remote::wrong_server());
    let list: List = serde_json::from_str(text).map_err(|e| wrong(format!("`{index}` is not a shard index: {e}")))?;
    let mut found = BTreeSet::new();
    for name in list.weight_map.into_values() {
        let is_beside = name.ends_with(".safetensors") && !name.contains('/') && !name.starts_with('-');
        if !is_beside || check_path(&name).is_err() {
            let what = format!(
                "`{index}` names `{}`, which is not a valid weight file in the same folder",
                flux_base::error::shortened(&name, 80)
            );
            return Err(wrong(what));
        }
        found.insert(format!("{folder}/{name}"));
    }
    if found.is_empty() {
        return Err(wrong(format!("`{index}` names no weights")));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(paths: &[&str]) -> Vec<RemoteFile> {
        paths.iter().map(|path| RemoteFile::new(path, Some(1), &"a".repeat(40)).unwrap()).collect()
    }

    fn chosen(name: &str, paths: &[&str]) -> std::result::Result<Vec<String>, String> {
        let named = Named::parse(name).unwrap();
        let index = r#"{"metadata": {}, "weight_map": {"a": "diffusion_pytorch_model-00001-of-00002.safetensors"}}"#;
        let found = select_files(&named, files(paths), |_| Ok(index.to_string())).map_err(|e| e.to_string())?;
        Ok(found.into_iter().map(|file| file.path).collect())
    }

    #[test]
    fn parts_of_a_modular_repository_may_be_elsewhere() {
        let paths = [
            "modular_model_index.json",
            "transformer/config.json",
            "transformer/diffusion_pytorch_model.safetensors",
            "prompt_upsampler/model.safetensors",
        ];
        assert_eq!(chosen("a/b", &paths).unwrap(), paths[..3]);
    }

    #[test]
    fn a_model_in_folders_is_fetched_without_the_files_that_are_not_read() {
        let wanted = [
            "LICENSE.md",
            "README.md",
            "model_index.json",
            "scheduler/scheduler_config.json",
            "text_encoder/config.json",
            "text_encoder/model.safetensors",
            "tokenizer/merges.txt",
            "tokenizer/tokenizer.json",
            "transformer/config.json",
            "transformer/diffusion_pytorch_model-00001-of-00002.safetensors",
            "transformer/diffusion_pytorch_model.safetensors.index.json",
            "vae/diffusion_pytorch_model.safetensors",
        ];
        let others = [
            ".gitattributes",
            "flux-2-klein-4b.safetensors",
            "others.jpg",
            "text_encoder/model-00001-of-00002.safetensors",
            "text_encoder/model.safetensors.index.json",
            "transformer/diffusion_pytorch_model-00002-of-00002.safetensors",
            "vae/diffusion_pytorch_model.fp16.safetensors",
            "vae/sub/a.json",
            "onnx/model.onnx",
        ];
        let mut all = [&wanted[..], &others].concat();
        all.sort();
        let mut found = chosen("4b", &all).unwrap();
        found.sort();
        assert_eq!(found, wanted);
        all.retain(|path| !path.starts_with("vae/"));
        assert!(chosen("4b", &all).is_err_and(|e| e.contains("VAE")));
        assert_eq!(chosen("4b:others.jpg", &["others.jpg", "a"]).unwrap(), ["others.jpg"]);
    }

    #[test]
    fn other_repositories_mean_their_only_weight_file() {
        assert_eq!(chosen("a/b", &["README.md", "s.safetensors", "x.png"]).unwrap(), ["README.md", "s.safetensors"]);
        for (name, paths, words) in [
            ("a/b", &["a.gguf", "b.gguf"][..], "`a/b:a.gguf`"),
            ("a/b", &["a.bin"], "no weight file"),
            ("a/b:c.gguf", &["a.gguf"], "a.gguf"),
        ] {
            assert!(chosen(name, paths).is_err_and(|e| e.contains(words)), "{name} {paths:?}");
        }
    }

    #[test]
    fn shards_are_files_beside_their_list() {
        let of = |name: &str| {
            let map = std::collections::HashMap::from([("one", name)]);
            shards("vae/x.index.json", &serde_json::json!({ "weight_map": map }).to_string()).map_err(|e| e.to_string())
        };
        assert_eq!(of("a.safetensors").unwrap(), BTreeSet::from(["vae/a.safetensors".to_string()]));
        for name in
            ["../a.safetensors", "/a.safetensors", "b/a.safetensors", "-a.safetensors", "a\u{1b}.safetensors", ""]
        {
            assert!(of(name).is_err_and(|e| e.contains("not a valid weight file")), "{name}");
        }
        assert!(shards("a", "{}").is_err() && shards("a", r#"{"weight_map": {}}"#).is_err());
    }
}
