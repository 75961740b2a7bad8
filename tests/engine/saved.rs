//! Images that the library saves: the bytes are those of the program's file for the same recipe.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use flux::engine::choice::Device;
use flux::engine::{AdapterFile, Engine, EngineArgs, Event, Recipe, Unobserved};
use flux::files::{Array, ArrayTarget, ModelFiles};
use flux::model::ModelInfo;
use flux::sampler::Rng;
use flux::stage::CancelFlag;

use crate::program::{Run, flux, folder, project};
use crate::support::{golden, preset};

/// Makes the images of a recipe, and saves them as these files.
fn save(files: &ModelFiles, quantize: Option<&str>, recipe: &Recipe, names: &[PathBuf]) -> flux::Result<()> {
    let quantize = quantize.map(|formats| formats.parse().unwrap());
    let args = EngineArgs { device: Device::Cpu, quantize, ..EngineArgs::default() };
    let engine = Engine::open(files.clone(), &args, None, &mut Unobserved, &CancelFlag::default())?;
    for event in engine.submit(engine.job(recipe, names.len(), &mut std::io::empty())?)?.in_order() {
        if let Event::Image { place, image, .. } = event? {
            image.save(&names[place])?;
        }
    }
    Ok(())
}

/// Writes an adapter of the model in a folder of its own, in the form of PEFT.
fn write_adapter(folder: &Path, files: &ModelFiles) {
    let dim = ModelInfo::read(files).unwrap().transformer.dim();
    let array = |shape: [usize; 2]| Array::new(shape.to_vec(), vec![0.05; dim]).unwrap();
    let halves = [("lora_A", array([1, dim])), ("lora_B", array([dim, 1]))];
    let halves =
        halves.map(|(half, array)| (format!("transformer.transformer_blocks.0.attn.to_q.{half}.weight"), array));
    fs::create_dir(folder).unwrap();
    let target = ArrayTarget::new(&folder.join("adapter_model.safetensors"), false).unwrap();
    target.write(&halves.each_ref().map(|(name, array)| (name.as_str(), array)), HashMap::new()).unwrap();
}

#[test]
fn an_image_that_is_saved_is_the_file_that_the_program_writes() {
    let folder = folder();
    let files = preset("tiny");
    write_adapter(&folder.join("style"), &files);
    let draw = |line: &str| {
        let mut command = flux();
        command.args(["-S", "7", "--device", "cpu", "-d"]).arg(files.folder().unwrap());
        let words = line.split_whitespace();
        Run::new(command.args(words.map(|word| word.replace("DIR", folder.to_str().unwrap())))).succeeds();
    };
    draw("-p cat -s 1 -W 64 -H 64 --save-latents DIR/l.safetensors --save-embeddings DIR/e.safetensors -o DIR/x.png");
    let (image, mask) = (golden("tiny-144x80-s0.png"), project("docs/corner.png"));
    let cat = Recipe { steps: Some(1), width: Some(32), height: Some(48), ..Recipe::new("cat", 7) };
    let edited = Recipe {
        steps: Some(2),
        inputs: vec![image.clone(), folder.join("x.png")],
        mask: Some(mask.clone()),
        strength: Some(0.7),
        mask_padding: Some(8),
        feather: 3,
        ..Recipe::new("cat", 7)
    };
    let tensors = Recipe {
        steps: Some(1),
        rng: Rng::Portable,
        schedule: "power:1.5".parse().unwrap(),
        latents: Some(folder.join("l.safetensors")),
        embeddings: Some(folder.join("e.safetensors")),
        adapters: vec![AdapterFile::new(folder.join("style"), 0.5)],
        ..Recipe::new("", 7)
    };
    let edit = format!(
        "-p cat -s 2 -i {} -i DIR/x.png --mask {} --strength 0.7 --mask-padding 8 --feather 3",
        image.display(),
        mask.display()
    );
    let of_tensors = "-s 1 --rng portable --schedule power:1.5 --latents DIR/l.safetensors \
                      --embeddings DIR/e.safetensors --lora DIR/style:0.5 --quantize fp8";
    let plain = "-p cat -s 1 -W 32 -H 48";
    for (recipe, quantize, line, ending, count) in [
        (&cat, None, plain, "png", 2),
        (&cat, None, plain, "jpg", 1),
        (&cat, None, plain, "webp", 1),
        (&edited, None, &edit, "png", 1),
        (&tensors, Some("fp8"), of_tensors, "png", 1),
    ] {
        draw(&format!("{line} -n {count} -o DIR/program.{ending}"));
        let names = |who: &str| match count {
            1 => vec![folder.join(format!("{who}.{ending}"))],
            count => (7..7 + count).map(|seed| folder.join(format!("{who}-{seed}.{ending}"))).collect::<Vec<_>>(),
        };
        save(&files, quantize, recipe, &names("library")).unwrap();
        for (written, saved) in names("program").iter().zip(names("library")) {
            assert!(fs::read(written).unwrap() == fs::read(saved).unwrap(), "{line}, {ending}");
        }
    }
}
