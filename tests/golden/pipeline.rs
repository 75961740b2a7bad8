//! Whole images of random models: distilled and base, one file and shards, three dtypes, odd sizes.

use flux::backend::cpu::{Cpu, Precision};
use flux::pipeline::Model;
use flux::text_encoder::Tokenizer;

use crate::support::random_model::PRESETS;
use crate::support::{Golden, assert_close, golden, images, preset};

#[test]
fn images_are_within_one_level_of_the_reference() {
    let images = images();
    for name in PRESETS {
        let dir = preset(name);
        let model = Model::load(Cpu::new(Precision::F32), &dir).unwrap();
        let latents = Golden::open(&format!("{name}.safetensors"));
        for row in images.iter().filter(|row| row.preset == name) {
            let tokens = Tokenizer::load(dir.tokenizer(), model.info().kind.template, model.info().max_sequence_length)
                .unwrap()
                .encode(&row.prompt)
                .unwrap();
            assert_eq!(tokens.ids[..tokens.real], row.ids);

            let request = row.request();
            let what = format!("{name} {}", row.case);
            // The reference in float32 is up to 1.2e-5 from itself in float64.
            assert_close(
                &what,
                &model.latents(&request).unwrap(),
                &latents.get(&format!("pipeline.{}.latents", row.case)).1,
                1e-4,
            );

            let image = model.generate(&request).unwrap();
            let expected = image::open(golden(&row.png)).unwrap().to_rgb8();
            assert_eq!((image.plan.width as u32, image.plan.height as u32), expected.dimensions());
            let worst = image.rgb.iter().zip(expected.as_raw()).map(|(a, b)| a.abs_diff(*b)).max();
            assert!(worst <= Some(1), "{what} differs by {worst:?} levels");
        }
    }
}
