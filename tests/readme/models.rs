//! The commands for existing models, each with a model of its kind.

#[path = "../opening/renamed.rs"]
mod renamed;

use std::fs;
use std::path::Path;

use super::{checkout, run, text_of};
use crate::support::random_model::RandomModel;

/// Writes the files in the table of models, from one random model with the vocabulary of Qwen3.
fn write_files(folder: &Path) {
    let mut model = RandomModel::tiny();
    model.text_encoder.vocab = 151_936;
    model.vae.norm_num_groups = 32;
    model.vae.block_out_channels = [32, 64, 64, 64];
    let whole = folder.join("whole");
    model.write(&whole).expect("a temporary folder is writable");
    let transformer = renamed::read(&whole.join("transformer/diffusion_pytorch_model.safetensors"));
    let vae = renamed::ldm(&renamed::read(&whole.join("vae/diffusion_pytorch_model.safetensors")));
    let qwen = renamed::read(&whole.join("text_encoder/model.safetensors"));
    let klein = renamed::bfl(&transformer, "", ".scale");
    let comfy = folder.join("ComfyUI/models");
    for name in ["flux-2-klein-4b", "finetune", "ComfyUI/models/diffusion_models/flux-2-klein-4b"] {
        renamed::write(&folder.join(format!("{name}.safetensors")), &klein);
    }
    for root in [folder, &comfy.join("text_encoders")] {
        renamed::write(&root.join("qwen_3_4b.safetensors"), &qwen);
    }
    for path in ["flux2-vae", "full_encoder_small_decoder", "ComfyUI/models/vae/flux2-vae"] {
        renamed::write(&folder.join(format!("{path}.safetensors")), &vae);
    }
    renamed::write_gguf(&folder.join("flux-2-klein-4b-Q4_K_M.gguf"), &klein);
    renamed::write_gguf(&folder.join("Qwen3-4B-Q4_K_M.gguf"), &renamed::llama(&qwen));
    fs::remove_file(folder.join("models/klein-4b")).expect("a link of ours");
    fs::rename(whole, folder.join("models/klein-4b")).expect("a temporary folder is writable");
}

/// Returns the commands in the table of existing models.
pub fn lines_of_models() -> Vec<String> {
    let text = text_of("docs/files.md");
    // The first table.
    let cells = text.lines().skip_while(|line| !line.starts_with("|")).take_while(|line| line.starts_with("|"));
    cells.filter_map(|line| line.split("| `").nth(1)?.split('`').next()).map(String::from).collect()
}

#[test]
fn the_commands_for_models_that_one_has_work() {
    let folder = checkout();
    write_files(&folder);
    let lines = lines_of_models();
    assert_eq!(lines.len(), 11, "{lines:?}");
    for line in &lines {
        if line.starts_with("flux convert") {
            run(line, &folder).succeeds();
            let file = line.split(' ').nth(3).expect("the command names the file behind the model");
            assert!(folder.join(file).exists(), "{line}");
            continue;
        }
        let found = if line.starts_with("flux info") {
            run(&format!("{line} && {line} --json"), &folder).succeeds()
        } else {
            run(&format!("{line} --size 32 -s 1 --max-sequence-length 32 --device cpu"), &folder).succeeds()
        };
        if line.starts_with("flux info") {
            for word in ["distilled model", "in bf16", "2 double and 4 single", "\"joint_attention_dim\":192"] {
                assert!(found.stdout.contains(word), "{word}: {}", found.stdout);
            }
        } else {
            let image = line.rsplit(' ').next().expect("the command names an image last");
            assert!(folder.join(image).exists(), "{line}");
        }
    }
}
