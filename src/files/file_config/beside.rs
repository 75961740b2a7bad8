//! The config that lies beside a single file.

use std::path::Path;

use serde_json::{Map, Value};

use super::super::component::CONFIG;
use super::super::folder::Folder;
use super::super::role::Role;
use super::values::{Values, section};
use super::{Told, file_name};
use crate::error::Result;

/// The name of the config that is of this file alone.
pub fn own_name(file: &Path) -> String {
    file_name(&file.with_extension("json"))
}

/// The config beside a file: the one of its name, else `config.json`, else that in the folder of the part, where its
/// sizes are those that the tensors tell.
///
/// Errors when the first of them that is there cannot be read, is no JSON, or contradicts the tensors.
pub fn find(file: &Path, role: Role, told: &[Told]) -> Result<Option<Values>> {
    let folder = Folder::Disk(file.parent().map(Path::to_path_buf).unwrap_or_default());
    for name in [own_name(file), CONFIG.to_string()] {
        let Some(config) = json(&folder, &name)? else { continue };
        let path = folder.path(&name);
        match section(config, role) {
            Ok(Some(map)) => {
                let values = Values::of_config(&path, map);
                return values.check(told).map(|()| Some(values));
            }
            // One folder holds files of many models.
            Err(error) if name != CONFIG => return Err(error.at_path(&path)),
            Ok(None) | Err(_) => {}
        }
    }
    // This is of the files in its own folder.
    let folder = folder.sub(role.folder());
    let found = json(&folder, CONFIG).ok().flatten().and_then(|config| section(config, role).ok().flatten());
    let values = found.map(|map| Values::of_config(&folder.path(CONFIG), map));
    Ok(values.filter(|values| values.check(told).is_ok()))
}

/// The object in the config `name`, if there is one.
///
/// Errors when it cannot be read, or is no JSON.
fn json(folder: &Folder, name: &str) -> Result<Option<Map<String, Value>>> {
    folder.exists(name).then(|| folder.json(name)).transpose()
}
