//! The key of a tensor in an adapter: which module it belongs to, and what it is of it.

/// What a tensor is of its module's change, by its canonical name.
pub type Role = &'static str;

pub const DOWN: Role = "lora_down";
pub const UP: Role = "lora_up";
pub const ALPHA: Role = "alpha";
pub const MAGNITUDE: Role = "dora_scale";
pub const DIFFERENCE: Role = "diff";
pub const REPLACEMENT: Role = "set_weight";

/// The ends of keys. Of two that fit, the first counts.
const SUFFIXES: [(&str, Role); 37] = [
    (".lora_A.weight", DOWN),
    (".lora_B.weight", UP),
    (".lora_down.weight", DOWN),
    (".lora_up.weight", UP),
    (".lora.down.weight", DOWN),
    (".lora.up.weight", UP),
    ("_lora.down.weight", DOWN),
    ("_lora.up.weight", UP),
    (".lora_A", DOWN),
    (".lora_B", UP),
    (".lora_down", DOWN),
    (".lora_up", UP),
    (".alpha", ALPHA),
    (".dora_scale", MAGNITUDE),
    (".lora_magnitude_vector.weight", MAGNITUDE),
    (".lora_magnitude_vector", MAGNITUDE),
    (".diff", DIFFERENCE),
    (".set_weight", REPLACEMENT),
    (".lokr_w1", "lokr_w1"),
    (".lokr_w1_a", "lokr_w1_a"),
    (".lokr_w1_b", "lokr_w1_b"),
    (".lokr_w2", "lokr_w2"),
    (".lokr_w2_a", "lokr_w2_a"),
    (".lokr_w2_b", "lokr_w2_b"),
    (".hada_w1_a", "hada_w1_a"),
    (".hada_w1_b", "hada_w1_b"),
    (".hada_w2_a", "hada_w2_a"),
    (".hada_w2_b", "hada_w2_b"),
    (".lora_mid.weight", "lora_mid"),
    (".lokr_t1", "lokr_t1"),
    (".lokr_t2", "lokr_t2"),
    (".hada_t1", "hada_t1"),
    (".hada_t2", "hada_t2"),
    (".reshape_weight", "reshape_weight"),
    (".diff_b", "diff_b"),
    (".lora_B.bias", "bias"),
    (".lora_up.bias", "bias"),
];

/// The roles that no layer of a klein model can take, and why.
pub const REFUSED: [(Role, &str); 8] = [
    ("lora_mid", "is the middle of a convolution's factors, and no layer of the model is a convolution"),
    ("lokr_t1", "is of a convolution, and no layer of the model is one"),
    ("lokr_t2", "is of a convolution, and no layer of the model is one"),
    ("hada_t1", "is of a convolution, and no layer of the model is one"),
    ("hada_t2", "is of a convolution, and no layer of the model is one"),
    ("reshape_weight", "changes the shape of a layer"),
    ("diff_b", "changes a bias, and no layer of the model has one"),
    ("bias", "is a bias, and no layer of the model has one"),
];

/// The module's name in `key` and the tensor's role; none where the key ends as none of an adapter.
pub fn parse(key: &str) -> Option<(&str, Role)> {
    let suffix = SUFFIXES.iter().find_map(|(suffix, role)| Some((key.strip_suffix(suffix)?, *role)));
    suffix.or_else(|| parse_named(key))
}

/// As [`parse`], for keys with the name of an adapter in front of `.weight`, which PEFT writes.
fn parse_named(key: &str) -> Option<(&str, Role)> {
    const INFIXES: [(&str, &str, Role); 4] = [
        (".lora_A.", ".weight", DOWN),
        (".lora_B.", ".weight", UP),
        (".lora_B.", ".bias", "bias"),
        (".lora_magnitude_vector.", "", MAGNITUDE),
    ];
    INFIXES.iter().find_map(|(infix, end, role)| {
        let (module, rest) = key.rsplit_once(infix)?;
        let rest = rest.strip_suffix(end)?;
        let name = if end.is_empty() { rest.strip_suffix(".weight").unwrap_or(rest) } else { rest };
        (!name.is_empty() && !name.contains('.')).then_some((module, *role))
    })
}

/// Whether the key is of a text encoder, which no adapter changes here.
pub fn is_of_text_encoder(key: &str) -> bool {
    ["text_encoder", "lora_te", "text_model", "transformer.text_model"].iter().any(|start| key.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_end_of_a_key_is_known_with_and_without_the_name_of_an_adapter() {
        for (key, expected) in [
            ("a.b.lora_A.weight", Some(("a.b", DOWN))),
            ("a.b.lora_B.default.weight", Some(("a.b", UP))),
            ("a.b.lora.down.weight", Some(("a.b", DOWN))),
            ("a.to_q_lora.up.weight", Some(("a.to_q", UP))),
            ("a_b.lora_up.weight", Some(("a_b", UP))),
            ("a.alpha", Some(("a", ALPHA))),
            ("a.lora_magnitude_vector.default.weight", Some(("a", MAGNITUDE))),
            ("a.lora_magnitude_vector.default", Some(("a", MAGNITUDE))),
            ("a.lora_magnitude_vector", Some(("a", MAGNITUDE))),
            ("a.lokr_w2_b", Some(("a", "lokr_w2_b"))),
            ("a.diff_b", Some(("a", "diff_b"))),
            ("a.lora_B.default.bias", Some(("a", "bias"))),
            ("a.lora_A.one.two.weight", None),
            ("a.weight", None),
            ("", None),
        ] {
            assert_eq!(parse(key), expected, "{key}");
        }
        let unused = REFUSED.iter().find(|(refused, _)| !SUFFIXES.iter().any(|(_, role)| role == refused));
        assert_eq!(unused, None);
    }
}
