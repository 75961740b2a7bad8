//! The config that lies beside a single file.

use std::path::{Path, PathBuf};

use super::super::component::CONFIG;
use super::super::folder::Folder;
use super::super::recognise::Role;
use super::values::{Values, section};
use super::{Told, file_name};
use crate::error::Result;

/// The name of the config that is of this file alone.
pub fn own_name(file: &Path) -> String {
    file_name(&file.with_extension("json"))
}

/// The config beside a file: the one of its name, else `config.json`, else that in the folder of the part, where its sizes
/// are those that the tensors tell.
///
/// Errors when the first of them that is there is no JSON, or contradicts the tensors.
pub fn find(file: &Path, role: Role, told: &[Told]) -> Result<Option<Values>> {
    let folder = Folder::Disk(file.parent().map(Path::to_path_buf).unwrap_or_default());
    for name in [own_name(file), CONFIG.to_string()] {
        let Some((path, found)) = read(&folder, &name, role) else { continue };
        match found {
            Ok(Some(values)) => return values.check(told).map(|()| Some(values)),
            // One folder holds files of many models.
            Err(error) if name != CONFIG => return Err(error.at_path(&path)),
            Ok(None) | Err(_) => {}
        }
    }
    let of_folder = read(&folder.sub(role.folder()), CONFIG, role).and_then(|(_, found)| found.ok().flatten());
    Ok(of_folder.filter(|values| values.check(told).is_ok()))
}

/// The config `name`, if there is one.
fn read(folder: &Folder, name: &str, role: Role) -> Option<(PathBuf, Result<Option<Values>>)> {
    let path = folder.path(name);
    let read = || Ok(section(folder.json(name)?, role)?.map(|map| Values::of_config(&path, map)));
    folder.exists(name).then(|| (path.clone(), read()))
}
