//! Whole images of random models: distilled and base, one file and shards, three dtypes, odd sizes.

use flux::text_encoder::Tokenizer;

use crate::support::random_model::PRESETS;
use crate::support::{Golden, assert_close, assert_near, golden, images, load, preset};

#[test]
fn images_are_within_one_level_of_the_reference() {
    let images = images();
    for name in PRESETS {
        let dir = preset(name);
        let model = load(&dir);
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
            assert_near(&what, &image.rgb, expected.as_raw());
        }
    }
}
