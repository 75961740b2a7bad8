//! The key of a tensor in an adapter: which module it belongs to, and what it is of it.
//!
//! Writers put dots, underscores or dashes between words, or all of them, so names are compared with underscores alone.

/// What a tensor is of its module's change, by its canonical name.
pub type Role = &'static str;

pub const DOWN: Role = "lora_down";
pub const UP: Role = "lora_up";
pub const ALPHA: Role = "alpha";
pub const MAGNITUDE: Role = "dora_scale";
pub const DIFFERENCE: Role = "diff";
pub const REPLACEMENT: Role = "set_weight";

/// The ends of keys, behind which `weight` may follow.
const ENDS: [(&str, Role); 26] = [
    ("lora_A", DOWN),
    ("lora_B", UP),
    ("lora_down", DOWN),
    ("lora_up", UP),
    ("lora_linear_layer_down", DOWN),
    ("lora_linear_layer_up", UP),
    ("alpha", ALPHA),
    ("lora_alpha", ALPHA),
    ("network_alpha", ALPHA),
    ("dora_scale", MAGNITUDE),
    ("lora_magnitude_vector", MAGNITUDE),
    ("lora_magnitude", MAGNITUDE),
    ("magnitude", MAGNITUDE),
    ("weight_m_wdecomp", MAGNITUDE),
    ("diff", DIFFERENCE),
    ("set_weight", REPLACEMENT),
    ("lokr_w1", "lokr_w1"),
    ("lokr_w1_a", "lokr_w1_a"),
    ("lokr_w1_b", "lokr_w1_b"),
    ("lokr_w2", "lokr_w2"),
    ("lokr_w2_a", "lokr_w2_a"),
    ("lokr_w2_b", "lokr_w2_b"),
    ("hada_w1_a", "hada_w1_a"),
    ("hada_w1_b", "hada_w1_b"),
    ("hada_w2_a", "hada_w2_a"),
    ("hada_w2_b", "hada_w2_b"),
];
const WEIGHT: &str = "weight";

/// How tensors of a layer's change begin behind its name that are not read, and what they are.
const UNREAD: [(&str, &str); 34] = [
    ("lora_mid", "is the middle of a convolution's factors, and no layer of the model is a convolution"),
    ("lokr_t1", "is of a convolution, and no layer of the model is one"),
    ("lokr_t2", "is of a convolution, and no layer of the model is one"),
    ("hada_t1", "is of a convolution, and no layer of the model is one"),
    ("hada_t2", "is of a convolution, and no layer of the model is one"),
    ("reshape_weight", "changes the shape of a layer"),
    ("diff_b", "changes a bias, and no layer of the model has one"),
    ("bias", "is a bias, and no layer of the model has one"),
    ("w_norm", "is the difference of a norm (LyCORIS), which this program does not read"),
    ("b_norm", "is the difference of a norm's bias (LyCORIS), and no norm of the model has one"),
    ("a1", "is of GLoRA, which this program does not read"),
    ("a2", "is of GLoRA, which this program does not read"),
    ("b1", "is of GLoRA, which this program does not read"),
    ("b2", "is of GLoRA, which this program does not read"),
    ("bm1", "is of GLoRA, which this program does not read"),
    ("bm2", "is of GLoRA, which this program does not read"),
    ("boft", "is of BOFT, which this program does not read"),
    ("oft", "is of OFT or BOFT, which this program does not read"),
    ("scaled_oft", "is of OFT, which this program does not read"),
    ("rescale", "is of OFT or BOFT, which this program does not read"),
    ("on_input", "is of (IA)^3, which this program does not read"),
    ("ia3", "is of (IA)^3, which this program does not read"),
    ("vera", "is of VeRA, which this program does not read"),
    ("vblora", "is of VB-LoRA, which this program does not read"),
    ("randlora", "is of RandLoRA, which this program does not read"),
    ("fourierft", "is of FourierFT, which this program does not read"),
    ("hra", "is of HRA, which this program does not read"),
    ("lora_E", "is of AdaLoRA, which this program does not read"),
    ("ranknum", "is of AdaLoRA, which this program does not read"),
    ("lora_embedding", "is of the LoRA of an embedding, and the layer is none"),
    ("lora_a", "is a factor in the layout of MLX, whose axes are the other way round"),
    ("lora_b", "is a factor in the layout of MLX, whose axes are the other way round"),
    ("modules_to_save", "is a weight that takes the place of the layer's own (`modules_to_save`)"),
    (WEIGHT, "is the weight of a layer as a whole, not a change of it"),
];

/// What writers put between words.
const BETWEEN: [char; 3] = ['.', '_', '-'];

/// The same name with underscores in place of dots and dashes, of the same length.
pub fn flat(name: &str) -> String {
    name.replace(BETWEEN, "_")
}

/// The module's name in `key` and the tensor's role; none where the key ends as none of an adapter.
pub fn parse(key: &str) -> Option<(&str, Role)> {
    let plain = end_of(key, key.len()).or_else(|| end_of(key, without_weight(key)));
    plain.or_else(|| parse_named(key)).map(|(module, role)| (module.trim_end_matches(BETWEEN), role))
}

/// The longest of the known ends of `key`, of which the first `len` bytes count, and what is in front.
fn end_of(key: &str, len: usize) -> Option<(&str, Role)> {
    let flat = flat(&key[..len]);
    let fits = |end: &str| flat.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('_'));
    let (end, role) = ENDS.iter().filter(|(end, _)| fits(end)).max_by_key(|(end, _)| end.len())?;
    Some((&key[..len - end.len()], role))
}

/// How many bytes of `key` are in front of `weight`.
fn without_weight(key: &str) -> usize {
    let is_cut = |rest: &&str| rest.ends_with(BETWEEN);
    key.strip_suffix(WEIGHT).filter(is_cut).map_or(key.len(), |rest| rest.len() - 1)
}

/// As [`parse`], for keys with the name of an adapter behind their end, which PEFT writes. Those of factors go on with
/// `.weight`.
fn parse_named(key: &str) -> Option<(&str, Role)> {
    let (front, is_weight) = match key.strip_suffix(".weight") {
        Some(front) => (front, true),
        None => (key, false),
    };
    let (front, name) = front.rsplit_once('.').filter(|(_, name)| !["", "bias", WEIGHT].contains(name))?;
    let (module, role) = end_of(front, front.len())?;
    // The words of an end are no name of an adapter.
    let is_end = end_of(name, name.len()).is_some();
    let is_named = match role {
        DOWN | UP => is_weight,
        ALPHA | DIFFERENCE | REPLACEMENT => false,
        _ => true,
    };
    (is_named && !is_end).then_some((module, role))
}

/// Why a tensor is not read whose key goes on like this behind the name of its layer.
pub fn why_unread(end: &str) -> &'static str {
    let flat = flat(end);
    let flat = flat.trim_start_matches('_');
    let begins = |start: &str| flat.strip_prefix(start).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'));
    let is_bias = flat.ends_with("_bias");
    let known = UNREAD.iter().find(|(start, _)| if is_bias { *start == "bias" } else { begins(start) });
    known.map_or("is of a kind of adapter that this program does not know", |(_, why)| why)
}

/// Whether the key is of a text encoder, which no adapter changes here.
pub fn is_of_text_encoder(key: &str) -> bool {
    const PARTS: [&str; 5] = ["text_encoder", "text_model", "language_model", "conditioner", "clip"];
    let flat = flat(key);
    let words = format!("_{flat}");
    PARTS.iter().any(|part| words.contains(&format!("_{part}"))) || words.contains("_lora_te") || is_of_language(&flat)
}

/// Whether a name with underscores has the layers of a language model.
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
    fn what_is_not_read_is_told_by_its_kind() {
        for (end, kind) in [
            (".diff_b", "bias"),
            (".lora_B.default.bias", "bias"),
            (".lora_mid.weight", "convolution"),
            (".oft_blocks", "OFT"),
            (".oft_R.default.weight", "OFT"),
            (".boft_R", "BOFT"),
            ("_a1.weight", "GLoRA"),
            (".on_input", "(IA)^3"),
            (".w_norm", "norm"),
            (".modules_to_save.weight", "modules_to_save"),
            (".lora_a", "MLX"),
            (".weight", "as a whole"),
            (".what.is.this", "does not know"),
            ("", "does not know"),
        ] {
            assert!(why_unread(end).contains(kind), "{end}: {}", why_unread(end));
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
