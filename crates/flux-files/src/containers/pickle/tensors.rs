//! The tensors in nested dictionaries.

use std::collections::HashSet;

use super::value::{Tensor, Value};

/// Maximum number of tensors.
const MAX_TENSORS: usize = 100_000;

/// Returns the tensors of a dictionary and of dictionaries in it, by their keys joined with dots. Other values are
/// skipped, such as the number of a training step.
///
/// Errors if there is no tensor, or two have the same name.
pub(super) fn flatten(root: &Value) -> Result<Vec<(String, Tensor)>, String> {
    let Value::Dict(_) = root else { return Err("it does not contain a dictionary of tensors".to_string()) };
    let mut found = Vec::new();
    walk("", root, &mut found)?;
    if found.is_empty() {
        return Err("it contains no tensors".to_string());
    }
    let mut names = HashSet::new();
    match found.iter().find(|(name, _)| !names.insert(name.as_str())) {
        Some((name, _)) => Err(format!("it has two tensors `{name}`")),
        None => Ok(found),
    }
}

/// The machine limits the depth.
fn walk(prefix: &str, value: &Value, found: &mut Vec<(String, Tensor)>) -> Result<(), String> {
    match value {
        Value::Tensor(tensor) if found.len() < MAX_TENSORS => found.push((prefix.to_string(), tensor.clone())),
        Value::Tensor(_) => return Err(format!("it has more than {MAX_TENSORS} tensors")),
        Value::Dict(entries) => {
            for (key, value) in entries {
                // The state of an optimizer has numbers as keys.
                let Value::Text(key) = key else { continue };
                let name = if prefix.is_empty() { key.to_string() } else { format!("{prefix}.{key}") };
                walk(&name, value, found)?;
            }
        }
        _ => {}
    }
    Ok(())
}
