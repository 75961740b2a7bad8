//! Keys of an adapter's tensors: each belongs to a module and has a role in the module's change.
//!
//! Writers separate words with dots, underscores, dashes or a mix of them, so names are compared with underscores
//! alone.

/// The role of a tensor in its module's change, by its canonical name.
pub type Role = &'static str;

pub const DOWN: Role = "lora_down";
pub const UP: Role = "lora_up";
pub const ALPHA: Role = "alpha";
pub const MAGNITUDE: Role = "dora_scale";
pub const DIFFERENCE: Role = "diff";
pub const REPLACEMENT: Role = "set_weight";

/// The endings of keys. `weight` may follow.
const ENDS: [(Role, &str); 6] = [
    (DOWN, "lora_A lora_down lora_linear_layer_down"),
    (UP, "lora_B lora_up lora_linear_layer_up"),
    (ALPHA, "alpha lora_alpha network_alpha"),
    (MAGNITUDE, "dora_scale lora_magnitude_vector lora_magnitude magnitude weight_m_wdecomp"),
    (DIFFERENCE, "diff"),
    (REPLACEMENT, "set_weight"),
];
/// The endings of factors of LoKr and LoHa, which are the roles.
const FACTORS: &str = "lokr_w1 lokr_w1_a lokr_w1_b lokr_w2 lokr_w2_a lokr_w2_b hada_w1_a hada_w1_b hada_w2_a hada_w2_b";
const WEIGHT: &str = "weight";

/// Tensors of a layer that are not read: the words after the layer's name, and the reason.
const UNREAD: [(&str, &str); 22] = [
    ("lora_mid", "is the middle factor of a convolution, but the model has no convolutional layers"),
    ("lokr_t1 lokr_t2 hada_t1 hada_t2", "belongs to a convolution, but the model has no convolutional layers"),
    ("reshape_weight", "changes the shape of a layer, which is not supported"),
    ("diff_b", "changes a bias, but no layer of the model has a bias"),
    ("bias", "is a bias, but no layer of the model has a bias"),
    ("w_norm", "is the difference of a norm (LyCORIS), which is not supported"),
    ("b_norm", "is the difference of a norm's bias (LyCORIS), but no norm of the model has a bias"),
    ("a1 a2 b1 b2 bm1 bm2", "belongs to GLoRA, which is not supported"),
    ("boft", "belongs to BOFT, which is not supported"),
    ("oft rescale", "belongs to OFT or BOFT, which is not supported"),
    ("scaled_oft", "belongs to OFT, which is not supported"),
    ("on_input ia3", "belongs to (IA)^3, which is not supported"),
    ("vera", "belongs to VeRA, which is not supported"),
    ("vblora", "belongs to VB-LoRA, which is not supported"),
    ("randlora", "belongs to RandLoRA, which is not supported"),
    ("fourierft", "belongs to FourierFT, which is not supported"),
    ("hra", "belongs to HRA, which is not supported"),
    ("lora_E ranknum", "belongs to AdaLoRA, which is not supported"),
    ("lora_embedding", "belongs to the LoRA of an embedding, but the layer is not an embedding"),
    ("lora_a lora_b", "is a factor in MLX's layout, whose axes are swapped"),
    ("modules_to_save", "replaces the weight of the layer (`modules_to_save`), which is not supported"),
    ("weight", "is the complete weight of a layer, not a change to it"),
];

/// Characters that writers put between words.
const BETWEEN: [char; 3] = ['.', '_', '-'];

/// Returns the name with underscores in place of dots and dashes. The length stays the same.
pub fn flat(name: &str) -> String {
    name.replace(BETWEEN, "_")
}

/// Splits `key` into the module's name and the tensor's role; `None` if the key does not end like a key of an adapter.
pub fn parse(key: &str) -> Option<(&str, Role)> {
    let plain = end_of(key, key.len()).or_else(|| end_of(key, without_weight(key)));
    plain.or_else(|| parse_named(key)).map(|(module, role)| (module.trim_end_matches(BETWEEN), role))
}

/// Splits the first `len` bytes of `key` into the part before the longest known ending, and the ending's role.
fn end_of(key: &str, len: usize) -> Option<(&str, Role)> {
    let flat = flat(&key[..len]);
    let fits = |end: &str| flat.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('_'));
    let ends = ENDS.iter().flat_map(|(role, ends)| ends.split(' ').map(move |end| (end, *role)));
    let ends = ends.chain(FACTORS.split(' ').map(|end| (end, end)));
    let (end, role) = ends.filter(|(end, _)| fits(end)).max_by_key(|(end, _)| end.len())?;
    Some((&key[..len - end.len()], role))
}

/// Returns the length of `key` in bytes, without `weight` and the separator before it.
fn without_weight(key: &str) -> usize {
    let is_cut = |rest: &&str| rest.ends_with(BETWEEN);
    key.strip_suffix(WEIGHT).filter(is_cut).map_or(key.len(), |rest| rest.len() - 1)
}

/// Parses keys that have the name of an adapter after their ending, as PEFT writes them; see [`parse`]. Keys of factors
/// then end with `.weight`.
fn parse_named(key: &str) -> Option<(&str, Role)> {
    let (front, is_weight) = match key.strip_suffix(".weight") {
        Some(front) => (front, true),
        None => (key, false),
    };
    let (front, name) = front.rsplit_once('.').filter(|(_, name)| !["", "bias", WEIGHT].contains(name))?;
    let (module, role) = end_of(front, front.len())?;
    // The words of an ending are not the name of an adapter.
    let is_end = end_of(name, name.len()).is_some();
    let is_named = match role {
        DOWN | UP => is_weight,
        ALPHA | DIFFERENCE | REPLACEMENT => false,
        _ => true,
    };
    (is_named && !is_end).then_some((module, role))
}

/// Returns the reason why a tensor is not read. `end` is the rest of its key after the layer's name.
pub fn why_unread(end: &str) -> &'static str {
    let flat = flat(end);
    let flat = flat.trim_start_matches('_');
    let begins = |start: &str| flat.strip_prefix(start).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'));
    let is_bias = flat.ends_with("_bias");
    let known =
        UNREAD.iter().find(|(starts, _)| if is_bias { *starts == "bias" } else { starts.split(' ').any(begins) });
    known.map_or("belongs to an unknown kind of adapter", |(_, why)| why)
}

/// Returns `true` if the key belongs to a text encoder, which adapters do not change here.
pub fn is_of_text_encoder(key: &str) -> bool {
    const PARTS: [&str; 5] = ["text_encoder", "text_model", "language_model", "conditioner", "clip"];
    let flat = flat(key);
    let words = format!("_{flat}");
    PARTS.iter().any(|part| words.contains(&format!("_{part}"))) || words.contains("_lora_te") || is_of_language(&flat)
}

/// Returns `true` if a flat name contains layers of a language model.
fn is_of_language(flat: &str) -> bool {
    flat.contains("layers_") && ["_self_attn_", "_mlp_gate_proj", "_mlp_up_proj"].iter().any(|part| flat.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_end_of_a_key_is_known_with_and_without_the_name_of_an_adapter() {
        for (key, expected) in [
            ("a.b.lora_A.weight", Some(("a.b", DOWN))),
            ("a.b.lora_A", Some(("a.b", DOWN))),
            ("a.b.lora_B.default.weight", Some(("a.b", UP))),
            ("a.b.lora.down.weight", Some(("a.b", DOWN))),
            ("a.to_q_lora.up.weight", Some(("a.to_q", UP))),
            ("a.to_q.lora_linear_layer.up.weight", Some(("a.to_q", UP))),
            ("a_b.lora_up.weight", Some(("a_b", UP))),
            ("a_b_.lora_up.weight", Some(("a_b", UP))),
            ("a_b_lora_down_weight", Some(("a_b", DOWN))),
            ("a.alpha", Some(("a", ALPHA))),
            ("a_alpha", Some(("a", ALPHA))),
            ("a.lora_alpha", Some(("a", ALPHA))),
            ("a.lora_magnitude_vector.default.weight", Some(("a", MAGNITUDE))),
            ("a.lora_magnitude_vector.default", Some(("a", MAGNITUDE))),
            ("a.lora_magnitude_vector.weight", Some(("a", MAGNITUDE))),
            ("a.lora_magnitude_vector", Some(("a", MAGNITUDE))),
            ("a.magnitude", Some(("a", MAGNITUDE))),
            ("a.dora_scale", Some(("a", MAGNITUDE))),
            ("a.weight_m_wdecomp.weight", Some(("a", MAGNITUDE))),
            ("a.set_weight", Some(("a", REPLACEMENT))),
            ("a.lokr_w2_b", Some(("a", "lokr_w2_b"))),
            ("a.hada_w1_a.default", Some(("a", "hada_w1_a"))),
            ("a.diff_b", None),
            ("a.diff.one", None),
            ("a.lora_B.default.bias", None),
            ("a.lora_B.bias", None),
            ("a.lora_A.one.two.weight", None),
            ("a.lora_A.one", None),
            ("a.weight", None),
            ("aalpha", None),
            ("", None),
        ] {
            assert_eq!(parse(key), expected, "{key}");
        }
    }

    #[test]
    fn text_encoders_are_told_from_layers() {
        for key in [
            "text_encoder.layers.0.lora_A.weight",
            "lora_te1_text_model_encoder_layers_0_mlp_fc1.alpha",
            "base_model.model.text_encoder.model.layers.0.lora_A.weight",
            "text_encoders.qwen3_4b.transformer.model.layers.0.mlp.up_proj.lora_A.weight",
            "base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight",
        ] {
            assert!(is_of_text_encoder(key), "{key}");
        }
        for key in ["txt_in.lora_A.weight", "context_embedder.lora_A.weight", "layers.0.attention.to_q.lora_A.weight"] {
            assert!(!is_of_text_encoder(key), "{key}");
        }
    }
}
