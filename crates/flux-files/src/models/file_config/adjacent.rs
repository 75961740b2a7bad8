//! The config next to a single file.

use std::path::Path;

use serde_json::{Map, Value};

use super::ImpliedValue;
use super::values::{Values, section};
use crate::catalog::role::Role;
use crate::io::name_of;
use crate::models::component::CONFIG;
use crate::models::folder::Folder;
use flux_base::error::Result;

/// Returns the name of the config that belongs to this file alone.
pub fn own_name(file: &Path) -> String {
    name_of(&file.with_extension("json"))
}

/// Finds the config of a file: next to it, the one with its name or else `config.json`; else the one in the folder of
/// the part, if its sizes match the tensors.
///
/// Errors if the first config that exists cannot be read, is no JSON, or contradicts the tensors.
pub fn find(file: &Path, role: Role, implied: &[ImpliedValue]) -> Result<Option<Values>> {
    let folder = Folder::Disk(file.parent().map(Path::to_path_buf).unwrap_or_default());
    for name in [own_name(file), CONFIG.to_string()] {
        let Some(config) = json(&folder, &name)? else { continue };
        let path = folder.path(&name);
        match section(config, role) {
            Ok(Some(map)) => {
                let values = Values::from_config(&path, map);
                return values.check(implied).map(|()| Some(values));
            }
            // A folder may hold files of many models, so `config.json` may belong to another one.
            Err(error) if name != CONFIG => return Err(error.at_path(&path)),
            Ok(None) | Err(_) => {}
        }
    }
    // This config belongs to the files in its own folder.
    let folder = folder.sub(role.folder());
    let found = json(&folder, CONFIG).ok().flatten().and_then(|config| section(config, role).ok().flatten());
    let values = found.map(|map| Values::from_config(&folder.path(CONFIG), map));
    Ok(values.filter(|values| values.check(implied).is_ok()))
}

/// Reads the object in the config `name`, if there is one.
///
/// Errors if it cannot be read or is no JSON.
fn json(folder: &Folder, name: &str) -> Result<Option<Map<String, Value>>> {
    folder.exists(name).then(|| folder.json(name)).transpose()
}
