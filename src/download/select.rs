//! Which files of a repository `flux` reads.

use std::collections::BTreeSet;
use std::path::Path;

use flux::Result;
use flux::error::Error;
use flux::files::{Role, is_weights};
use flux::hub::Named;

use super::remote::{MANIFEST, RemoteFile, check_path};

/// The file that says that a repository is a model in folders.
pub const INDEX: &str = "model_index.json";
/// The same where parts of the model may be in other repositories.
pub const MODULAR_INDEX: &str = "modular_model_index.json";
/// What is read of such a model, or by other programs: folders, and how the names of their small files end.
const FOLDERS: [&str; 5] = ["scheduler", "text_encoder", "tokenizer", "transformer", "vae"];
const SMALL: [&str; 4] = [".json", ".txt", ".jinja", ".model"];
/// The largest small file.
const SMALL_BYTES: u64 = 64 << 20;
/// How many names an error lists.
const MOST_TOLD: usize = 12;

/// The files that are meant by a name, of all that a repository has. `read` returns the text of one of them.
///
/// Errors when a named file is not there, or none or several may be meant.
pub fn of_list(named: &Named, all: Vec<RemoteFile>, read: impl Fn(&str) -> Result<String>) -> Result<Vec<RemoteFile>> {
    let has = |path: &str| all.iter().any(|file| file.path == path);
    let wanted: BTreeSet<String> = match &named.file {
        Some(file) if has(file) => BTreeSet::from([file.clone()]),
        Some(file) => return Err(no_such_file(named, file, &all)),
        None if has(INDEX) || has(MODULAR_INDEX) => of_model(&all, read)?,
        None => of_single(named, &all)?,
    };
    Ok(all.into_iter().filter(|file| wanted.contains(&file.path) || file.path == MANIFEST).collect())
}

/// The files of a model in folders.
fn of_model(all: &[RemoteFile], read: impl Fn(&str) -> Result<String>) -> Result<BTreeSet<String>> {
    let mut wanted = BTreeSet::new();
    for file in all {
        let is_small = file.size <= SMALL_BYTES && SMALL.iter().any(|end| file.path.ends_with(end));
        let is_wanted = match file.path.rsplit_once('/') {
            None => is_card(&file.path) || [INDEX, MODULAR_INDEX].contains(&file.path.as_str()),
            // Which lists of shards count is decided with the weights.
            Some((folder, name)) => FOLDERS.contains(&folder) && is_small && !name.ends_with(".index.json"),
        };
        if is_wanted {
            wanted.insert(file.path.clone());
        }
    }
    for role in [Role::TextEncoder, Role::Transformer, Role::Vae] {
        let stem = format!("{}/{}", role.folder(), role.stem());
        let (single, index) = (format!("{stem}.safetensors"), format!("{stem}.safetensors.index.json"));
        if all.iter().any(|file| file.path == single) {
            wanted.insert(single);
        } else if all.iter().any(|file| file.path == index) {
            wanted.extend(shards(&index, &read(&index)?)?);
            wanted.insert(index);
        } else if !all.iter().any(|file| file.path == MODULAR_INDEX) {
            let what = format!(
                "the repository has no weights of the {}: neither `{single}` nor a list of shards",
                role.title()
            );
            return Err(
                Error::new(what).hint("it is no model that flux runs as a whole; `owner/name:FILE` fetches one file")
            );
        }
    }
    match wanted.iter().find(|path| !all.iter().any(|file| file.path == **path)) {
        None => Ok(wanted),
        Some(path) => Err(Error::new(format!("a list of shards names `{path}`, which the repository lacks"))),
    }
}

/// Whether a file tells the licence.
fn is_card(path: &str) -> bool {
    path == "README.md" || path == "LICENSE" || path.starts_with("LICENSE.")
}

/// The only file of weights of a repository that is no model in folders, with what tells its sizes and licence.
fn of_single(named: &Named, all: &[RemoteFile]) -> Result<BTreeSet<String>> {
    let weights: Vec<&RemoteFile> = all.iter().filter(|file| is_weights(Path::new(&file.path))).collect();
    match weights[..] {
        [only] => {
            let small = all.iter().filter(|file| is_card(&file.path) || file.path == "config.json");
            Ok(small.chain([only]).map(|file| file.path.clone()).collect())
        }
        [] => Err(Error::new(format!("`{}` has no `{INDEX}` and no file of weights", named.repository))
            .hint("it is no model that flux runs; `flux download owner/name:FILE` fetches a file of any kind")),
        [first, ..] => {
            let names: Vec<&str> = weights.iter().take(MOST_TOLD).map(|file| file.path.as_str()).collect();
            let more = if weights.len() > MOST_TOLD { ", ..." } else { "" };
            let what =
                format!("`{}` has {} files of weights: {}{more}", named.repository, weights.len(), names.join(", "));
            Err(Error::usage(what).hint(format!("name one of them, as in `{}:{}`", named.repository, first.path)))
        }
    }
}

fn no_such_file(named: &Named, file: &str, all: &[RemoteFile]) -> Error {
    let weights = all.iter().filter(|file| is_weights(Path::new(&file.path)));
    let names: Vec<&str> = weights.take(MOST_TOLD).map(|file| file.path.as_str()).collect();
    let error = Error::new(format!("`{}` has no file `{file}`", named.repository));
    if names.is_empty() { error.hint("look at its name") } else { error.hint(format!("it has {}", names.join(", "))) }
}

/// The shards that a list of them names, by their paths in the repository.
///
/// Errors when it is none, or names something else than files beside it.
pub fn shards(index: &str, text: &str) -> Result<BTreeSet<String>> {
    #[derive(serde::Deserialize)]
    struct List {
        weight_map: std::collections::HashMap<String, String>,
    }
    let folder = index.rsplit_once('/').map_or("", |(folder, _)| folder);
    let wrong = |what: String| Error::new(what).hint(super::remote::wrong_server());
    let list: List = serde_json::from_str(text).map_err(|e| wrong(format!("`{index}` is no list of shards: {e}")))?;
    let mut found = BTreeSet::new();
    for name in list.weight_map.into_values() {
        let is_beside = name.ends_with(".safetensors") && !name.contains('/') && !name.starts_with('-');
        if !is_beside || check_path(&name).is_err() {
            let what = format!(
                "`{index}` names `{}`, which is no name for a file of weights beside it",
                flux::error::shortened(&name, 80)
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
        let found = of_list(&named, files(paths), |_| Ok(index.to_string())).map_err(|e| e.to_string())?;
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
    fn of_a_model_in_folders_all_is_fetched_that_is_read_and_nothing_else() {
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
        assert!(chosen("4b", &all).is_err_and(|e| e.contains("no weights of the VAE")));
        assert_eq!(chosen("4b:others.jpg", &["others.jpg", "a"]).unwrap(), ["others.jpg"]);
    }

    #[test]
    fn of_other_repositories_the_only_file_of_weights_is_meant() {
        assert_eq!(chosen("a/b", &["README.md", "s.safetensors", "x.png"]).unwrap(), ["README.md", "s.safetensors"]);
        for (name, paths, words) in [
            ("a/b", &["a.gguf", "b.gguf"][..], "as in `a/b:a.gguf`"),
            ("a/b", &["a.bin"], "no file of weights"),
            ("a/b:c.gguf", &["a.gguf"], "it has a.gguf"),
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
            assert!(of(name).is_err_and(|e| e.contains("no name for a file of weights")), "{name}");
        }
        assert!(shards("a", "{}").is_err() && shards("a", r#"{"weight_map": {}}"#).is_err());
    }
}
