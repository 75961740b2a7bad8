//! The values of a GGUF file under the name of its architecture, as llama.cpp calls them.

use serde_json::{Value, json};

use super::super::gguf::Gguf;
use super::super::role::Role;
use super::architecture;
use super::values::{Said, Values};
use crate::error::Result;

/// What a key holds.
#[derive(Clone, Copy)]
enum Kind {
    Size,
    Sizes,
    Float,
    /// How rotary positions are stretched.
    Scaling,
    /// Whether it is more than none.
    More,
    /// What no image depends on.
    Any,
}

/// Keys behind the architecture's name, and those of a config.
const TEXT_ENCODER: [(&str, &str, Kind); 19] = [
    ("rope.freq_base", "rope_theta", Kind::Float),
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps", Kind::Float),
    ("context_length", "max_position_embeddings", Kind::Size),
    ("block_count", "num_hidden_layers", Kind::Size),
    ("embedding_length", "hidden_size", Kind::Size),
    ("feed_forward_length", "intermediate_size", Kind::Size),
    ("attention.head_count", "num_attention_heads", Kind::Size),
    ("attention.head_count_kv", "num_key_value_heads", Kind::Size),
    ("attention.key_length", "head_dim", Kind::Size),
    ("attention.value_length", "head_dim", Kind::Size),
    ("rope.dimension_count", "head_dim", Kind::Size),
    ("rope.scaling.type", "rope_type", Kind::Scaling),
    ("attention.sliding_window", "use_sliding_window", Kind::More),
    ("expert_count", "has_experts", Kind::More),
    ("vocab_size", "", Kind::Any),
    ("pooling_type", "", Kind::Any),
    // Of pictures, which have positions on three axes.
    ("rope.dimension_sections", "", Kind::Any),
    ("n_deepstack_layers", "", Kind::Any),
    // Of the type of scaling, which is read.
    ("rope.scaling.", "", Kind::Any),
];
const TRANSFORMER: [(&str, &str, Kind); 3] = [
    ("rope.freq_base", "rope_theta", Kind::Float),
    ("rope.dimension_sections", "axes_dims_rope", Kind::Sizes),
    ("attention.layer_norm_epsilon", "eps", Kind::Float),
];

/// The values of a part of a model.
///
/// Errors when one is of another type.
pub fn values(file: &Gguf, role: Role) -> Result<Values> {
    let name = architecture::name(file)?.unwrap_or_default();
    let mut said = Vec::new();
    for (end, key, kind) in known(role) {
        let name = format!("{name}.{end}");
        if matches!(kind, Kind::Any) || !file.has(&name) {
            continue;
        }
        let value = match kind {
            Kind::Size => json!(file.u32(&name)?),
            Kind::Sizes => json!(file.i32s(&name)?),
            Kind::Float => float(file.f64(&name)?),
            Kind::More => json!(file.u32(&name)? > 0),
            Kind::Scaling => json!(Some(file.string(&name)?).filter(|kind| *kind != "none").unwrap_or("default")),
            Kind::Any => Value::Null,
        };
        said.push(Said { key: (*key).to_string(), name: format!("`{name}`"), value });
    }
    Ok(Values::new(file.path(), said))
}

/// A float; what is no number is text, which is no float.
fn float(value: f64) -> Value {
    if value.is_finite() { json!(value) } else { json!(value.to_string()) }
}

/// What is not known of the architecture and its values.
pub fn notes(file: &Gguf, role: Role) -> Vec<String> {
    let Ok(Some(name)) = architecture::name(file) else { return Vec::new() };
    let path = file.path().display();
    let mut notes = Vec::new();
    if architecture::is_unknown(name, role) {
        notes.push(format!(
            "`{path}` is of the architecture `{name}`, which is not known: it is read as a {}, by the names of its tensors",
            role.title()
        ));
    }
    let is_known = |end: &str| {
        known(role).iter().any(|(known, ..)| end == *known || known.ends_with('.') && end.starts_with(known))
    };
    let ends = file.keys().filter_map(|key| key.strip_prefix(name)?.strip_prefix('.'));
    if let Some(unknown) = ends.filter(|end| !is_known(end)).min() {
        notes.push(format!("`{path}` says `{name}.{unknown}`, which is not known and left out"));
    }
    notes
}

fn known(role: Role) -> &'static [(&'static str, &'static str, Kind)] {
    match role {
        Role::TextEncoder => &TEXT_ENCODER,
        Role::Transformer => &TRANSFORMER,
        Role::Vae => &[],
    }
}
