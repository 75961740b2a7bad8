use std::path::PathBuf;

use safetensors::tensor::{Dtype, TensorView as Written};
use tempfile::TempDir;

use super::*;
use crate::catalog::own_models::Architecture;

/// Features of the test model, which has one double and one single block.
const DIM: usize = 4;

fn modules() -> Modules {
    let place = |key: &str, first, rows| ModuleRows { key: key.to_string(), first, rows };
    let qkv = ["q", "k", "v"].iter().enumerate();
    let qkv = qkv.map(|(i, name)| place(&format!("to_{name}.weight"), 0, i * DIM..(i + 1) * DIM)).collect();
    let list = vec![
        Module { name: "double_blocks.0.img_attn.qkv".to_string(), shape: vec![3 * DIM, DIM], places: qkv },
        Module::whole("transformer_blocks.0.attn.to_q", "to_q.weight", &[DIM, DIM]),
        Module::whole("single_blocks.0.linear1", "linear1.weight", &[9 * DIM, DIM]),
        Module::whole("double_blocks.0.img_attn.norm.query_norm", "norm.weight", &[DIM]),
    ];
    Modules::new(list, Architecture::Flux2, DIM, [1, 1])
}

/// Creates a file of these tensors, with all values 0.5.
fn file(tensors: &[(&str, &[usize])], metadata: &[(&str, &str)]) -> (TempDir, PathBuf) {
    file_with(tensors, metadata, &[])
}

/// Creates a file as [`file`], with additional scalars by name, dtype and bytes.
fn file_with(
    tensors: &[(&str, &[usize])],
    metadata: &[(&str, &str)],
    numbers: &[(&str, Dtype, &[u8])],
) -> (TempDir, PathBuf) {
    let tensors: Vec<_> = tensors.iter().map(|(name, shape)| (*name, *shape, 0.5)).collect();
    write(&tensors, metadata, numbers)
}

/// Writes a file of these tensors, each with one value for all of its elements, and of scalars.
fn write(
    tensors: &[(&str, &[usize], f32)],
    metadata: &[(&str, &str)],
    numbers: &[(&str, Dtype, &[u8])],
) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("adapter.safetensors");
    let bytes = tensors.iter().map(|(_, shape, value)| value.to_le_bytes().repeat(shape.iter().product()));
    let bytes: Vec<Vec<u8>> = bytes.collect();
    let views = tensors.iter().zip(&bytes).map(|((name, shape, _), bytes)| (*name, Dtype::F32, *shape, &bytes[..]));
    let numbers = numbers.iter().map(|(name, dtype, bytes)| (*name, *dtype, &[][..], *bytes));
    let view = |(name, dtype, shape, bytes): (&str, _, &[usize], _)| {
        (name.to_string(), Written::new(dtype, shape.to_vec(), bytes).unwrap())
    };
    let metadata = metadata.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    safetensors::serialize_to_file(views.chain(numbers).map(view), Some(metadata), &path).unwrap();
    (folder, path)
}

fn open(tensors: &[(&str, &[usize])]) -> Result<Adapter> {
    Adapter::open(&file(tensors, &[]).1, &modules())
}

#[track_caller]
fn refused(tensors: &[(&str, &[usize])], words: &[&str]) {
    let error = open(tensors).err().expect("refused").to_string();
    assert!(error.contains("hint: ") && words.iter().all(|word| error.contains(word)), "{error}");
}

/// Returns the first value of each row of a module of ones after the change.
fn changed(tensors: &[(&str, &[usize])], key: &str) -> Vec<f32> {
    let (_folder, path) = file(tensors, &[]);
    changed_by(&Adapter::open(&path, &modules()).unwrap(), key)
}

fn changed_by(adapter: &Adapter, key: &str) -> Vec<f32> {
    let [piece] = adapter.changes(key) else { panic!("{} changes", adapter.changes(key).len()) };
    let rows = piece.place.rows.clone();
    let base = vec![1.0; rows.len() * DIM];
    let mut out = base.clone();
    let lengths = piece.change.column_lengths(|rows| vec![1.0; rows.len() * DIM]);
    piece.change.add_to(&base, rows, 1.0, lengths.as_ref(), &mut out);
    out.chunks(DIM).map(|row| row[0]).collect()
}

#[test]
fn factors_are_multiplied_and_scaled_by_alpha() {
    let lora: [(&str, &[usize]); 2] = [("to_q.lora_A.weight", &[2, DIM]), ("to_q.lora_B.weight", &[DIM, 2])];
    let of = |prefix: &str| lora.map(|(name, shape)| (format!("{prefix}transformer_blocks.0.attn.{name}"), shape));
    let names = of("transformer.");
    let mut tensors: Vec<(&str, &[usize])> = names.iter().map(|(name, shape)| (name.as_str(), *shape)).collect();
    assert_eq!(changed(&tensors, "to_q.weight"), [1.5; DIM], "two products of 0.25");
    // Alpha is 0.5, and the rank 2.
    tensors.push(("transformer.transformer_blocks.0.attn.to_q.alpha", &[]));
    assert_eq!(changed(&tensors, "to_q.weight"), [1.125; DIM]);
    let metadata = [("lora_adapter_metadata", r#"{"transformer.lora_alpha": 8, "transformer.use_rslora": false}"#)];
    let (_folder, path) = file(&tensors, &metadata);
    let adapter = Adapter::open(&path, &modules()).unwrap();
    let scale = adapter.changes("to_q.weight")[0].change.low_rank().unwrap().scale;
    assert_eq!(scale, 4.0, "the metadata takes precedence");
    assert!(adapter.notes()[0].contains("two alphas for 1 layers"), "{:?}", adapter.notes());
}

#[test]
fn rows_of_a_fused_module_are_those_of_its_parts() {
    let (_folder, path) = file(
        &[
            ("lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight", &[1, DIM]),
            ("lora_unet_double_blocks_0_img_attn_qkv.lora_up.weight", &[3 * DIM, 1]),
        ],
        &[],
    );
    let adapter = Adapter::open(&path, &modules()).unwrap();
    let rows = |key: &str| adapter.changes(key)[0].place.rows.clone();
    assert_eq!([rows("to_q.weight"), rows("to_k.weight"), rows("to_v.weight")], [0..4, 4..8, 8..12]);
    assert!(adapter.notes().is_empty());
}

#[test]
fn every_kind_means_what_its_writers_say() {
    let q = |end: &str| format!("lycoris_transformer_blocks_0_attn_to_q.{end}");
    let change = |ends: &[(&str, &[usize])]| {
        let names: Vec<_> = ends.iter().map(|(end, shape)| (q(end), *shape)).collect();
        changed(&names.iter().map(|(name, shape)| (name.as_str(), *shape)).collect::<Vec<_>>(), "to_q.weight")
    };
    assert_eq!(change(&[("lokr_w1", &[2, 2]), ("lokr_w2", &[2, 2]), ("alpha", &[])]), [1.25; DIM], "alpha is nothing");
    let half = change(&[("lokr_w1", &[2, 2]), ("lokr_w2_a", &[2, 1]), ("lokr_w2_b", &[1, 2]), ("alpha", &[])]);
    assert_eq!(half, [1.0625; DIM], "0.5 * 0.5 * 0.25");
    let pair: [(&str, &[usize]); 4] =
        [("hada_w1_a", &[DIM, 2]), ("hada_w1_b", &[2, DIM]), ("hada_w2_a", &[DIM, 2]), ("hada_w2_b", &[2, DIM])];
    assert_eq!(change(&pair), [1.25; DIM], "0.5 * 0.5");
    assert_eq!(change(&[("diff", &[DIM, DIM])]), [1.5; DIM]);
    assert_eq!(change(&[("set_weight", &[DIM, DIM])]), [0.5; DIM]);
    // Rows and columns of four equal values are scaled to a norm of 0.5.
    let lora: [(&str, &[usize]); 2] = [("lora_A.weight", &[2, DIM]), ("lora_B.weight", &[DIM, 2])];
    for name in [
        "dora_scale",
        "lora_magnitude_vector",
        "lora_magnitude_vector.weight",
        "lora_magnitude_vector.default",
        "lora_magnitude_vector.default.weight",
        "lora_magnitude",
        "magnitude",
        "weight_m_wdecomp.weight",
    ] {
        for shape in [&[DIM, 1][..], &[1, DIM], &[DIM], &[DIM, 1, 1, 1], &[1, DIM, 1, 1]] {
            assert_eq!(change(&[lora[0], lora[1], (name, shape)]), [0.25; DIM], "{name} {shape:?}");
        }
    }
}

/// The tensors of `q`'s factors, by the ends of their names.
fn factors(rank: usize) -> [(&'static str, [usize; 2]); 2] {
    [("lora_A.weight", [rank, DIM]), ("lora_B.weight", [DIM, rank])]
}

const Q: &str = "transformer.transformer_blocks.0.attn.to_q";

fn q_adapter(metadata: &[(&str, &str)], alpha: &[(&str, Dtype, &[u8])]) -> Result<Adapter> {
    let names = factors(2).map(|(end, shape)| (format!("{Q}.{end}"), shape));
    let tensors: Vec<(&str, &[usize])> = names.iter().map(|(name, shape)| (name.as_str(), &shape[..])).collect();
    Adapter::open(&file_with(&tensors, metadata, alpha).1, &modules())
}

#[test]
fn alpha_is_read_from_a_tensor_of_any_type() {
    for (dtype, bytes) in [
        (Dtype::F64, &4.0f64.to_le_bytes()[..]),
        (Dtype::F32, &4.0f32.to_le_bytes()),
        (Dtype::F16, &[0x00, 0x44]),
        (Dtype::BF16, &[0x80, 0x40]),
        (Dtype::I64, &4i64.to_le_bytes()),
        (Dtype::I32, &4i32.to_le_bytes()),
        (Dtype::I16, &4i16.to_le_bytes()),
        (Dtype::U8, &[4]),
    ] {
        let adapter = q_adapter(&[], &[(&format!("{Q}.alpha"), dtype, bytes)]).unwrap();
        assert_eq!(changed_by(&adapter, "to_q.weight"), [2.0; DIM], "{dtype:?}");
    }
    let error = q_adapter(&[], &[(&format!("{Q}.alpha"), Dtype::BOOL, &[1])]).err().unwrap().to_string();
    assert!(error.contains("to_q.alpha`") && error.contains("BOOL") && error.contains("hint: "), "{error}");
}

#[test]
fn alpha_is_read_from_the_header_and_from_a_config() {
    let dora = r#"{"lora_alpha": 4, "use_dora": true}"#;
    for metadata in [
        ("ss_network_alpha", "4"),
        ("ot_config", r#"{"lora_alpha": 4.0}"#),
        ("lora_adapter_metadata", r#"{"transformer.r": 2, "transformer.lora_alpha": 4}"#),
        ("lora_adapter_metadata", r#"{"r": 2, "lora_alpha": 1, "alpha_pattern": {".*attn.to_q": 4}}"#),
    ] {
        let adapter = q_adapter(&[metadata], &[]).unwrap();
        assert_eq!(changed_by(&adapter, "to_q.weight"), [2.0; DIM], "{metadata:?}");
        assert!(adapter.notes().is_empty());
    }
    let config = |name: &str, text: &str| {
        let names = factors(2).map(|(end, shape)| (format!("{Q}.{end}"), shape));
        let tensors: Vec<(&str, &[usize])> = names.iter().map(|(name, shape)| (name.as_str(), &shape[..])).collect();
        let (folder, path) = file(&tensors, &[]);
        let named = folder.path().join(name);
        std::fs::rename(path, &named).unwrap();
        std::fs::write(folder.path().join("adapter_config.json"), text).unwrap();
        let open = |path: &Path| Adapter::open(path, &modules());
        (open(&named), open(folder.path()))
    };
    let text = r#"{"peft_type": "LORA", "r": 2, "lora_alpha": 4, "rank_pattern": {}, "target_modules": ["to_q"]}"#;
    for name in ["adapter_model.safetensors", "style.safetensors"] {
        let (file, folder) = config(name, text);
        let (file, folder) = (file.unwrap(), folder.unwrap());
        assert_eq!(changed_by(&file, "to_q.weight"), [2.0; DIM]);
        assert_eq!(changed_by(&folder, "to_q.weight"), [2.0; DIM]);
        assert_eq!((file.notes().len(), folder.notes().len()), (usize::from(name == "style.safetensors"), 0));
    }
    for (text, why) in [
        (r#"{"peft_type": "IA3", "lora_alpha": 4}"#, "`peft_type` is \"IA3\""),
        (r#"{"r": 2}"#, "has no `lora_alpha`"),
        (r#"{"r": 4, "lora_alpha": 4}"#, "rank 4 for `transformer_blocks.0.attn.to_q`"),
        (dora, "`use_dora` is true"),
        ("not JSON", "cannot be read"),
    ] {
        let error = config("adapter_model.safetensors", text).0.err().expect(text).to_string();
        assert!(error.contains(why) && error.contains("in: ") && error.contains("hint: "), "{text}: {error}");
    }
    let error = q_adapter(&[("ss_network_alpha", "Dynamic")], &[]).err().unwrap().to_string();
    assert!(error.contains("`ss_network_alpha`") && error.contains("`Dynamic`") && error.contains("in: "), "{error}");
}

#[test]
fn a_tensor_of_a_known_layer_that_is_not_read_is_an_error() {
    for (end, why) in [
        (".unheard_of", "unknown kind"),
        (".lora_C.weight", "unknown kind"),
        (".scale", "unknown kind"),
        (".rank", "unknown kind"),
        ("", "unknown kind"),
        (".weight", "complete weight"),
        (".modules_to_save.weight", "modules_to_save"),
        (".oft_blocks", "OFT"),
        (".oft_R.default.weight", "OFT"),
        (".boft_R", "BOFT"),
        (".a1.weight", "GLoRA"),
        (".on_input", "(IA)^3"),
        (".ia3_l", "(IA)^3"),
        (".vera_lambda_b", "VeRA"),
        (".w_norm", "norm"),
        (".b_norm", "norm"),
        (".lora_E", "AdaLoRA"),
        (".lora_B.bias", "bias"),
        (".lora_B.default.bias", "bias"),
        (".diff_b", "bias"),
        (".lora_mid.weight", "convolution"),
        (".lora_a", "MLX"),
        (".what.is.this", "unknown kind"),
        (".lokr_t2", "convolution"),
        ("_extra.lora_A.weight", "unknown kind"),
    ] {
        for layer in [Q, "lora_unet_double_blocks_0_img_attn_qkv", "x.single_blocks.0.linear1"] {
            let key = format!("{layer}{end}");
            let [down, up] = ["A", "B"].map(|half| format!("{Q}.lora_{half}.weight"));
            refused(
                &[(&down, &[1, DIM]), (&up, &[DIM, 1]), (&key, &[DIM])],
                &[&format!("tensor `{key}` of layer `"), why],
            );
        }
    }
}

/// Names with any prefix, with dots and underscores mixed, and factors of a 1 x 1 convolution equal the plain form.
#[test]
fn every_spelling_of_a_name_is_the_plain_one() {
    let plain = changed(
        &[(&format!("{Q}.lora_A.weight"), &[2, DIM]), (&format!("{Q}.lora_B.weight"), &[DIM, 2])],
        "to_q.weight",
    );
    assert_eq!(plain, [1.5; DIM]);
    for name in [
        "transformer_blocks.0.attn.to_q",
        "base_model.model.transformer.transformer_blocks.0.attn.to_q",
        "diffusion_model.model.transformer_blocks.0.attn.to_q",
        "model.diffusion_model.transformer_blocks.0.attn.to_q",
        "pipe.dit.transformer_blocks.0.attn.to_q",
        "_orig_mod.module.transformer_blocks.0.attn.to_q",
        "unet.transformer_blocks_0.attn_to_q",
        "lora_unet_diffusion_model_transformer_blocks_0_attn_to_q",
        "lora_unet_model_diffusion_model_transformer_blocks_0_attn_to_q",
        "lora_unet__transformer_blocks_0_attn_to_q",
        "lora_transformer_transformer_blocks_0_attn_to_q_",
        "lycoris_transformer_blocks.0_attn.to_q",
        "lora_unet-transformer_blocks-0-attn-to_q",
    ] {
        for [down, up] in [
            [".lora_A.weight", ".lora_B.weight"],
            [".lora_A.adapter-1.weight", ".lora_B.adapter-1.weight"],
            [".lora_down.weight", ".lora_up.weight"],
            [".lora.down.weight", ".lora.up.weight"],
            [".lora_linear_layer.down.weight", ".lora_linear_layer.up.weight"],
            ["_lora.down.weight", "_lora.up.weight"],
            [".lora_A", ".lora_B"],
            ["_lora_down_weight", "_lora_up_weight"],
        ] {
            for [a, b] in [[&[2, DIM][..], &[DIM, 2]], [&[2, DIM, 1, 1], &[DIM, 2, 1, 1]], [&[2, DIM, 1], &[DIM, 2]]] {
                let (down, up) = (format!("{name}{down}"), format!("{name}{up}"));
                assert_eq!(changed(&[(&down, a), (&up, b)], "to_q.weight"), plain, "{down}");
            }
        }
    }
    for name in
        ["text_encoder.img_in", "controlnet.transformer_blocks.0.attn.to_q", "refiner.0.transformer_blocks.0.attn.to_q"]
    {
        let (down, up) = (format!("{name}.lora_A.weight"), format!("{name}.lora_B.weight"));
        refused(&[(&down, &[2, DIM]), (&up, &[DIM, 2])], &["changes no layer"]);
    }
}

#[test]
fn what_overflows_is_refused_when_it_is_read() {
    assert_eq!(f64::from(half::bf16::MAX), super::change::LARGEST);
    let names = ["lora_A", "lora_B"].map(|end| format!("{Q}.{end}.weight"));
    let open = |[a, b]: [f32; 2], alpha: f32| {
        let tensors: [(&str, &[usize], f32); 3] =
            [(&names[0], &[1, DIM], a), (&names[1], &[DIM, 1], b), (&format!("{Q}.alpha"), &[], alpha)];
        Adapter::open(&write(&tensors, &[], &[]).1, &modules())
    };
    for (values, alpha) in [([1e38, 1e38], 1.0), ([1e20, 1e20], 1.0), ([1.0, 1e30], 1e10), ([1e-30, 1e38], 10.0)] {
        let error = open(values, alpha).err().expect("refused").to_string();
        assert!(error.contains("lora_A.weight` overflows") && error.contains("hint: "), "{values:?}: {error}");
    }
    let error = open([3.4e38, 0.0], 1.0).err().expect("overflows bfloat16").to_string();
    assert!(error.contains("reaches 3.4"), "{error}");
    let fine = open([1e18, 1e18], 1.0).unwrap();
    fine.check_strength(-2.0).unwrap();
    let error = fine.check_strength(1000.0).unwrap_err().to_string();
    assert!(error.contains("strength 1000") && error.contains("overflow"), "{error}");
}

#[test]
fn what_is_left_over_is_told_and_nothing_at_all_is_an_error() {
    let some: [(&str, &[usize]); 5] = [
        ("diffusion_model.single_blocks.0.linear1.lora_A.weight", &[1, DIM]),
        ("diffusion_model.single_blocks.0.linear1.lora_B.weight", &[9 * DIM, 1]),
        ("diffusion_model.what.lora_A.weight", &[1, DIM]),
        ("diffusion_model.what.lora_B.weight", &[1, 1]),
        ("text_encoder.layers.0.lora_A.weight", &[1, 1]),
    ];
    let (_folder, path) = file(&some, &[]);
    let adapter = Adapter::open(&path, &modules()).unwrap();
    let [unknown, of_text] = adapter.notes() else { panic!("{:?}", adapter.notes()) };
    assert!(
        unknown.contains("of the 2 layers")
            && unknown.contains("1 are in")
            && unknown.contains("`diffusion_model.what`")
    );
    assert!(of_text.contains("1 tensors") && of_text.contains("`text_encoder.layers.0.lora_A.weight`"));
    refused(&some[2..4], &["changes no layer", "`diffusion_model.what`"]);
    refused(&some[4..], &["changes no layer", "text_encoder"]);
}

#[test]
fn a_file_that_is_not_whole_is_refused() {
    let q = |ends: &[(&str, &[usize])], words: &[&str]| {
        let names: Vec<_> = ends.iter().map(|(end, shape)| (format!("{Q}.{end}"), *shape)).collect();
        refused(&names.iter().map(|(name, shape)| (name.as_str(), *shape)).collect::<Vec<_>>(), words);
    };
    q(&[("lora_A.weight", &[1, DIM])], &["lora_A.weight", "but not the matching factor"]);
    q(&[("lora_up.weight", &[DIM, 1])], &["lora_up.weight", "but not the matching factor"]);
    q(&[("alpha", &[])], &["alpha", "but not the factors"]);
    q(&[("lora_A.weight", &[2, DIM]), ("lora_B.weight", &[DIM, 1])], &["shape [4, 1], expected [4, 2]"]);
    q(&[("lora_A.weight", &[0, DIM]), ("lora_B.weight", &[DIM, 0])], &["expected"]);
    q(&[("lora_A.weight", &[1, DIM]), ("lora_A.default.weight", &[1, DIM])], &["same factor"]);
    q(&[("lokr_w1", &[2, 2])], &["Kronecker"]);
    q(&[("lokr_w1", &[2, 2]), ("lokr_w2", &[2, 3])], &["trained for a model with 6 features"]);
    q(
        &[("lokr_w1_a", &[1 << 12, 1]), ("lokr_w1_b", &[1, 1 << 12]), ("lokr_w2", &[1, 1])],
        &["trained for FLUX.2 klein 9B"],
    );
    q(&[("hada_w1_a", &[DIM, 1]), ("hada_w1_b", &[1, DIM])], &["but not the other"]);
    q(&[("dora_scale", &[DIM, 1])], &["dora_scale"]);
}

#[test]
fn an_adapter_of_another_model_is_named_by_its_shapes() {
    let of = |out, dim| {
        let (name, rows) = ("lora_unet_single_blocks_0_linear1", out);
        let (down, up) = (format!("{name}.lora_down.weight"), format!("{name}.lora_up.weight"));
        refused(
            &[(&down, &[1, dim]), (&up, &[rows, 1])],
            &[
                "not for a model with 4 features",
                match dim {
                    4096 => "trained for FLUX.2 klein 9B",
                    6144 => "trained for FLUX.2-dev",
                    _ => "trained for FLUX.1",
                },
            ],
        );
    };
    of(9 * 4096, 4096);
    of(9 * 6144, 6144);
    of(7 * DIM, DIM);
}

#[test]
fn values_that_are_no_numbers_are_refused() {
    let [down, up] = ["A", "B"].map(|half| format!("{Q}.lora_{half}.weight"));
    let (_folder, path) = write(&[(&down, &[1, DIM], f32::NAN), (&up, &[DIM, 1], f32::NAN)], &[], &[]);
    let error = Adapter::open(&path, &modules()).err().unwrap().to_string();
    assert!(error.contains("lora_A.weight`") && error.contains("NaN") && error.contains("hint: "), "{error}");
}

#[test]
fn an_adapter_of_zeros_has_a_note() {
    let alpha = |value: f32| q_adapter(&[], &[(&format!("{Q}.alpha"), Dtype::F32, &value.to_le_bytes())]).unwrap();
    assert_eq!(alpha(1.0).notes(), [""; 0]);
    assert!(alpha(0.0).notes()[0].contains("changes nothing"));
    // All tensors are ones, except the tensor `zero`.
    let of = |tensors: &[(&str, &[usize])], zero: &str| {
        let names: Vec<String> = tensors.iter().map(|(name, _)| format!("{Q}.{name}")).collect();
        let value = |name: &str| if name == zero { 0.0 } else { 1.0 };
        let tensors: Vec<_> =
            tensors.iter().zip(&names).map(|((name, shape), full)| (full.as_str(), *shape, value(name))).collect();
        let (_folder, path) = write(&tensors, &[], &[]);
        Adapter::open(&path, &modules()).unwrap().notes().iter().filter(|note| note.contains("changes nothing")).count()
    };
    let hada = ["hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"];
    let hada = hada.map(|name| (name, if name.ends_with('a') { [DIM, 2] } else { [2, DIM] }));
    let kron = [("lokr_w1", [2, 2]), ("lokr_w2", [DIM / 2, DIM / 2])];
    for tensors in [&factors(2)[..], &hada, &kron, &[("diff", [DIM, DIM])]] {
        let tensors: Vec<(&str, &[usize])> = tensors.iter().map(|(name, shape)| (*name, &shape[..])).collect();
        assert_eq!(of(&tensors, ""), 0);
        tensors.iter().for_each(|(name, _)| assert_eq!(of(&tensors, name), 1, "{name}"));
    }
}
