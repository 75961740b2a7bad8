//! Tensors of no klein model are named in a note; unknown tensors of a layer that is read are an error.

use flux::model::OpenModel;
use safetensors::Dtype;

use super::said::Single;

const PARTS: [&str; 3] = ["transformer", "text_encoder", "vae"];

/// Returns the notes on a component of the model with more tensors, in float32.
fn with(part: &'static str, name: &str, more: &[(&str, &[usize])]) -> flux::Result<Vec<String>> {
    let mut file = Single::new(&format!("left-out/{part}-{name}"), part);
    for (name, shape) in more {
        let bytes = vec![0x3f; 4 * shape.iter().product::<usize>()];
        file.tensors.insert(name.to_string(), (Dtype::F32, shape.to_vec(), bytes));
    }
    file.write(&[("config", super::renamed::CONFIG)]);
    let files = file.paths(&file.at("one.safetensors")).open(|| unreachable!("a model is named"))?;
    OpenModel::open(&files).map(|model| model.notes().to_vec())
}

#[test]
fn tensors_that_no_klein_model_has_are_named() {
    for part in PARTS {
        assert_eq!(with(part, "none", &[]).unwrap(), [""; 0], "{part}");
        for (name, shape) in [("control.hint.weight", &[4, 4][..]), ("b.c", &[3]), ("step", &[])] {
            let notes = with(part, "one", &[(name, shape), ("zz.weight", &[2])]).unwrap();
            let [note] = &notes[..] else { panic!("{part}: {notes:?}") };
            assert!(note.contains("one.safetensors") && note.contains(&format!("`{name}`")), "{note}");
        }
    }
}

#[test]
fn what_a_layer_that_is_read_has_beside_its_weight_is_refused() {
    for (part, layers) in [
        ("transformer", ["img_in", "double_blocks.0.img_attn.qkv", "single_blocks.0.linear1", "final_layer.linear"]),
        (
            "text_encoder",
            [
                "model.layers.0.self_attn.q_proj",
                "model.layers.1.mlp.down_proj",
                "model.embed_tokens",
                "model.layers.0.input_layernorm",
            ],
        ),
        ("vae", ["decoder.mid.attn_1.q", "decoder.conv_in", "encoder.conv_in", "decoder.norm_out"]),
    ] {
        for layer in layers {
            for end in ["bias_k", "weight_zero_point", "correction", "g"] {
                let name = format!("{layer}.{end}");
                let Err(error) = with(part, "layer", &[(&name, &[4])]) else { panic!("{name} is taken") };
                let text = error.to_string();
                assert!(["one.safetensors", &name, "hint: "].iter().all(|word| text.contains(word)), "{text}");
            }
        }
    }
    let Err(error) = with("transformer", "bias", &[("img_in.bias", &[32])]) else { panic!("a bias is taken") };
    assert!(error.to_string().contains("`img_in.bias`"), "{error}");
}

#[test]
fn what_a_block_of_a_transformer_has_and_no_model_knows_is_refused() {
    for name in ["double_blocks.0.img_attn.gate.weight", "single_blocks.1.ip_adapter.to_k.weight", "single_blocks.0.x"]
    {
        let Err(error) = with("transformer", "block", &[(name, &[4, 4])]) else { panic!("{name} is taken") };
        let text = error.to_string();
        assert!(
            ["one.safetensors", name, "belongs to a block", "hint: "].iter().all(|word| text.contains(word)),
            "{text}"
        );
    }
    let notes = with("transformer", "setting", &[("single_blocks.0.attn.comfy_quant", &[4])]).unwrap();
    assert!(notes.len() == 1 && notes[0].contains("`single_blocks.0.attn.comfy_quant`"), "{notes:?}");
}

#[test]
fn what_models_have_and_nothing_reads_has_no_note() {
    assert_eq!(with("text_encoder", "usual", &[("lm_head.weight", &[4, 4])]).unwrap(), [""; 0]);
    assert_eq!(with("text_encoder", "rope", &[("model.rotary_emb.inv_freq", &[4])]).unwrap(), [""; 0]);
    assert_eq!(with("vae", "usual", &[("bn.num_batches_tracked", &[])]).unwrap(), [""; 0]);
}
