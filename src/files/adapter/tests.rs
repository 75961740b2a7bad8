use std::path::PathBuf;

use safetensors::tensor::{Dtype, TensorView as Written};
use tempfile::TempDir;

use super::*;

/// Features of the model of these tests, which has one double and one single block.
const DIM: usize = 4;

fn modules() -> Modules {
    let place = |key: &str, first, rows| Place { key: key.to_string(), first, rows };
    let qkv = ["q", "k", "v"].iter().enumerate();
    let qkv = qkv.map(|(i, name)| place(&format!("to_{name}.weight"), 0, i * DIM..(i + 1) * DIM)).collect();
    let list = vec![
        Module { name: "double_blocks.0.img_attn.qkv".to_string(), shape: vec![3 * DIM, DIM], places: qkv },
        Module::whole("transformer_blocks.0.attn.to_q", "to_q.weight", &[DIM, DIM]),
        Module::whole("single_blocks.0.linear1", "linear1.weight", &[9 * DIM, DIM]),
        Module::whole("double_blocks.0.img_attn.norm.query_norm", "norm.weight", &[DIM]),
    ];
    Modules::new(list, DIM, [1, 1])
}

/// A file of these tensors, whose values are 0.5.
fn file(tensors: &[(&str, &[usize])], metadata: &[(&str, &str)]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("adapter.safetensors");
    let bytes: Vec<Vec<u8>> =
        tensors.iter().map(|(_, shape)| 0.5f32.to_le_bytes().repeat(shape.iter().product())).collect();
    let views = tensors
        .iter()
        .zip(&bytes)
        .map(|((name, shape), bytes)| (name.to_string(), Written::new(Dtype::F32, shape.to_vec(), bytes).unwrap()));
    let metadata = metadata.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    safetensors::serialize_to_file(views, Some(metadata), &path).unwrap();
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

/// The change of a module of ones, from row 0 on, of each row's first value.
fn changed(tensors: &[(&str, &[usize])], key: &str) -> Vec<f32> {
    let (_folder, path) = file(tensors, &[]);
    let adapter = Adapter::open(&path, &modules()).unwrap();
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
    assert_eq!(scale, 4.0, "the metadata counts");
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
    // Rows and columns of four equal values, brought to the length 0.5.
    let lora: [(&str, &[usize]); 2] = [("lora_A.weight", &[2, DIM]), ("lora_B.weight", &[DIM, 2])];
    for magnitude in [("dora_scale", &[DIM, 1][..]), ("dora_scale", &[1, DIM]), ("lora_magnitude_vector", &[DIM])] {
        assert_eq!(change(&[lora[0], lora[1], magnitude]), [0.25; DIM], "{magnitude:?}");
    }
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
    assert!(
        of_text.contains("1 tensors for a text encoder") && of_text.contains("`text_encoder.layers.0.lora_A.weight`")
    );
    refused(&some[2..4], &["changes no layer", "`diffusion_model.what`"]);
    refused(&some[4..], &["changes no layer", "text_encoder"]);
}

#[test]
fn a_file_that_is_not_whole_is_refused() {
    const Q: &str = "transformer_blocks.0.attn.to_q";
    let q = |ends: &[(&str, &[usize])], words: &[&str]| {
        let names: Vec<_> = ends.iter().map(|(end, shape)| (format!("{Q}.{end}"), *shape)).collect();
        refused(&names.iter().map(|(name, shape)| (name.as_str(), *shape)).collect::<Vec<_>>(), words);
    };
    q(&[("lora_A.weight", &[1, DIM])], &["lora_A.weight", "and not the factor"]);
    q(&[("lora_up.weight", &[DIM, 1])], &["lora_up.weight", "and not the factor"]);
    q(&[("alpha", &[])], &["alpha", "and not the factors"]);
    q(&[("lora_A.weight", &[2, DIM]), ("lora_B.weight", &[DIM, 1])], &["is [4, 1], expected [4, 2]"]);
    q(&[("lora_A.weight", &[0, DIM]), ("lora_B.weight", &[DIM, 0])], &["expected"]);
    q(&[("lora_A.weight", &[1, DIM]), ("lora_A.default.weight", &[1, DIM])], &["same factor of the same layer"]);
    q(&[("lokr_w1", &[2, 2])], &["Kronecker"]);
    q(&[("lokr_w1", &[2, 2]), ("lokr_w2", &[2, 3])], &["made for a model of 6 features"]);
    q(
        &[("lokr_w1_a", &[1 << 12, 1]), ("lokr_w1_b", &[1, 1 << 12]), ("lokr_w2", &[1, 1])],
        &["made for FLUX.2 klein 9B"],
    );
    q(&[("hada_w1_a", &[DIM, 1]), ("hada_w1_b", &[1, DIM])], &["and not the other"]);
    q(&[("dora_scale", &[DIM, 1])], &["dora_scale"]);
    q(&[("diff_b", &[DIM])], &["bias"]);
    q(&[("lokr_t2", &[DIM])], &["convolution"]);
}

#[test]
fn an_adapter_of_another_model_is_named_by_its_shapes() {
    let of = |out, dim| {
        let (name, rows) = ("lora_unet_single_blocks_0_linear1", out);
        let (down, up) = (format!("{name}.lora_down.weight"), format!("{name}.lora_up.weight"));
        refused(
            &[(&down, &[1, dim]), (&up, &[rows, 1])],
            &[
                "not for a model of 4 features",
                match dim {
                    4096 => "made for FLUX.2 klein 9B",
                    6144 => "made for FLUX.2 dev",
                    _ => "made for FLUX.1",
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
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("adapter.safetensors");
    let nan = f32::NAN.to_le_bytes().repeat(DIM);
    let down = Written::new(Dtype::F32, vec![1, DIM], &nan).unwrap();
    let up = Written::new(Dtype::F32, vec![DIM, 1], &nan).unwrap();
    let name = |half: &str| format!("transformer_blocks.0.attn.to_q.lora_{half}.weight");
    safetensors::serialize_to_file([(name("A"), down), (name("B"), up)], None, &path).unwrap();
    let error = Adapter::open(&path, &modules()).err().unwrap().to_string();
    assert!(error.contains("lora_A.weight` holds values that are not numbers") && error.contains("hint: "), "{error}");
}
