//! Lookup of a single part of a model, without the other parts.

use std::path::Path;

use serde::de::DeserializeOwned;

use crate::catalog::fetch::fetch_a_model;
use crate::catalog::role::Role;
use crate::models::component::{CONFIG, Component, open_weights};
use crate::models::folder::Folder;
use crate::models::model_files::{ModelFiles, TokenizerFile, has_index, index_in};
use crate::models::model_paths::{is_transformer_folder, tokenizer, tokenizer_inside};
use crate::models::search::{candidates, expect_role, is_comfy, is_folder, only, places};
use crate::{containers::inspect, models::hub};
use flux_base::error::{Error, Field, Result};

impl Component {
    /// Finds the component at `path`: a file, a folder of its own, or the `role` of a whole model. Without `role`, a
    /// whole model gives its transformer.
    ///
    /// Errors if there is none, or if its role is not `role`.
    pub fn at(path: &Path, role: Option<Role>) -> Result<Self> {
        let path = &*hub::resolve(path, |_| false)?;
        if !is_folder(path, fetch_a_model)? {
            return component_from_file(path, role);
        }
        let folder = Folder::Disk(path.to_path_buf());
        if has_index(path) {
            let role = role.unwrap_or(Role::Transformer);
            return Ok(Self::folder(role, folder.sub(role.folder())));
        }
        if folder.exists(CONFIG) {
            let is = if is_transformer_folder(path) { Role::Transformer } else { Role::TextEncoder };
            return match role {
                Some(role) if role != is => {
                    let what = format!("the folder contains a {}, not a {}", is.title(), role.title());
                    Err(Error::new(what).at_path(path).hint("name another folder, or another component"))
                }
                _ => Ok(Self::folder(is, folder)),
            };
        }
        let nested = path.join("models");
        let root = if !is_comfy(path) && is_comfy(&nested) { nested } else { path.to_path_buf() };
        let role = role.unwrap_or(Role::Transformer);
        let missing = || Error::new(format!("the folder contains no {} file", role.title())).hint(fetch_a_model());
        let found = only(candidates(&[root], role), role, missing).map_err(|e| e.at_path(path))?;
        Ok(Self::file(role, found))
    }

    /// Reads the `model_index.json` next to this folder or file, if there is one.
    ///
    /// Errors if it cannot be read or is no JSON.
    pub fn adjacent_index<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        let path = self.path();
        let full = path.canonicalize().unwrap_or(path);
        let folder = full.parent().filter(|folder| has_index(folder));
        folder
            .map(|folder| {
                let folder = Folder::Disk(folder.to_path_buf());
                folder.json(index_in(&folder))
            })
            .transpose()
    }

    /// Returns the tokenizer of this text encoder: the one at `named`, else one in its file or next to its folder, else
    /// the one in the program.
    ///
    /// Errors if the tokenizer at `named` does not exist.
    pub fn own_tokenizer(&self, named: Option<&Path>) -> Result<TokenizerFile> {
        if let Some(path) = named {
            return tokenizer(path).map_err(|e| e.for_field(Field::Tokenizer));
        }
        let own = match self.single_file() {
            Some(file) => tokenizer_inside(file),
            None => places(&self.path()).iter().find_map(|place| place.parent().and_then(ModelFiles::tokenizer_in)),
        };
        Ok(own.unwrap_or(TokenizerFile::Carried))
    }
}

fn component_from_file(path: &Path, role: Option<Role>) -> Result<Component> {
    if let Some(role) = role {
        expect_role(path, role)?;
        return Ok(Component::file(role, path.to_path_buf()));
    }
    let files = [open_weights(path)?];
    inspect::check_forms(&files)?;
    let kind = inspect::kind(&files);
    let role = kind.main_role().ok_or_else(|| {
        Error::new(format!("the file is {}", kind.title()))
            .at_path(path)
            .hint("name a transformer file or a text encoder file")
    })?;
    Ok(Component::file(role, path.to_path_buf()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_are_found_in_folders_and_files() {
        let model = Path::new("../../models/tiny");
        let role = |path: &Path, role| Component::at(path, role).map(|found| found.role()).map_err(|e| e.to_string());
        assert_eq!(role(model, None), Ok(Role::Transformer));
        assert_eq!(role(model, Some(Role::TextEncoder)), Ok(Role::TextEncoder));
        assert_eq!(role(&model.join("text_encoder"), None), Ok(Role::TextEncoder));
        assert_eq!(role(&model.join("transformer/diffusion_pytorch_model.safetensors"), None), Ok(Role::Transformer));
        assert_eq!(role(&model.join("vae/diffusion_pytorch_model.safetensors"), None), Ok(Role::Vae));
        let refused = [
            (model.join("transformer"), Some(Role::TextEncoder), "contains a transformer"),
            (model.join("text_encoder/model.safetensors"), Some(Role::Transformer), "expected a transformer"),
            (model.join("none"), None, "no such file or folder"),
            (Path::new("src").to_path_buf(), None, "contains no transformer file"),
        ];
        for (path, asked, words) in refused {
            assert!(role(&path, asked).is_err_and(|error| error.contains(words)), "{}", path.display());
        }
        let text = Component::at(&model.join("text_encoder"), None).unwrap();
        assert!(matches!(text.own_tokenizer(None).unwrap(), TokenizerFile::Json(..)));
    }
}
