//! The values of a GGUF file under the name of its architecture, with the keys of llama.cpp.

use serde_json::{Value, json};

use super::architecture;
use super::values::{Said, Values};
use crate::catalog::role::Role;
use crate::containers::gguf::Gguf;
use flux_base::error::Result;

/// The kind of a key's value.
#[derive(Clone, Copy)]
enum KeyKind {
    Size,
    Sizes,
    Float,
    /// The type of scaling of rotary positions.
    Scaling,
    /// A number that counts as `true` if it is greater than 0.
    More,
    /// A value that images do not depend on.
    Any,
}

/// Keys after the architecture's name, with the keys of a config for them.
const TEXT_ENCODER: [(&str, &str, KeyKind); 19] = [
    ("rope.freq_base", "rope_theta", KeyKind::Float),
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps", KeyKind::Float),
    ("context_length", "max_position_embeddings", KeyKind::Size),
    ("block_count", "num_hidden_layers", KeyKind::Size),
    ("embedding_length", "hidden_size", KeyKind::Size),
    ("feed_forward_length", "intermediate_size", KeyKind::Size),
    ("attention.head_count", "num_attention_heads", KeyKind::Size),
    ("attention.head_count_kv", "num_key_value_heads", KeyKind::Size),
    ("attention.key_length", "head_dim", KeyKind::Size),
    ("attention.value_length", "head_dim", KeyKind::Size),
    ("rope.dimension_count", "head_dim", KeyKind::Size),
    ("rope.scaling.type", "rope_type", KeyKind::Scaling),
    ("attention.sliding_window", "use_sliding_window", KeyKind::More),
    ("expert_count", "has_experts", KeyKind::More),
    ("vocab_size", "", KeyKind::Any),
    ("pooling_type", "", KeyKind::Any),
    // For pictures, which have positions on three axes.
    ("rope.dimension_sections", "", KeyKind::Any),
    ("n_deepstack_layers", "", KeyKind::Any),
    // Parameters of the type of scaling, which is read above.
    ("rope.scaling.", "", KeyKind::Any),
];
const TRANSFORMER: [(&str, &str, KeyKind); 3] = [
    ("rope.freq_base", "rope_theta", KeyKind::Float),
    ("rope.dimension_sections", "axes_dims_rope", KeyKind::Sizes),
    ("attention.layer_norm_epsilon", "eps", KeyKind::Float),
];

/// Returns the values for a part of a model.
///
/// Errors if a value has another type.
pub fn values(file: &Gguf, role: Role) -> Result<Values> {
    let name = architecture::name(file)?.unwrap_or_default();
    let mut said = Vec::new();
    for (end, key, kind) in known(role) {
        let name = format!("{name}.{end}");
        if matches!(kind, KeyKind::Any) || !file.has(&name) {
            continue;
        }
        let value = match kind {
            KeyKind::Size => json!(file.u32(&name)?),
            KeyKind::Sizes => json!(file.i32s(&name)?),
            KeyKind::Float => float(file.f64(&name)?),
            KeyKind::More => json!(file.u32(&name)? > 0),
            KeyKind::Scaling => json!(Some(file.string(&name)?).filter(|kind| *kind != "none").unwrap_or("default")),
            KeyKind::Any => Value::Null,
        };
        said.push(Said { key: (*key).to_string(), name: format!("`{name}`"), value });
    }
    Ok(Values::new(file.path(), said))
}

/// Returns a float as a number. A value that is not finite becomes text, which is refused later as no float.
fn float(value: f64) -> Value {
    if value.is_finite() { json!(value) } else { json!(value.to_string()) }
}

/// Returns notes on an unknown architecture and on unknown keys.
pub fn notes(file: &Gguf, role: Role) -> Vec<String> {
    let Ok(Some(name)) = architecture::name(file) else { return Vec::new() };
    let path = file.path().display();
    let mut notes = Vec::new();
    if architecture::is_unknown(name, role) {
        notes.push(format!(
            "`{path}` has the unknown architecture `{name}`: it is read as a {} because of its tensor names",
            role.title()
        ));
    }
    let is_known = |end: &str| {
        known(role).iter().any(|(known, ..)| end == *known || known.ends_with('.') && end.starts_with(known))
    };
    let ends = file.keys().filter_map(|key| key.strip_prefix(name)?.strip_prefix('.'));
    if let Some(unknown) = ends.filter(|end| !is_known(end)).min() {
        notes.push(format!("`{path}` has the unknown key `{name}.{unknown}`, which is ignored"));
    }
    notes
}

fn known(role: Role) -> &'static [(&'static str, &'static str, KeyKind)] {
    match role {
        Role::TextEncoder => &TEXT_ENCODER,
        Role::Transformer => &TRANSFORMER,
        Role::Vae => &[],
    }
}
