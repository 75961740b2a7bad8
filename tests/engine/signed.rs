//! Images that an engine signs.

use std::sync::{Arc, Mutex};

use flux::engine::choice::Device;
use flux::engine::{EngineArgs, Recipe};
use flux::metadata::{DigitalSource, said_by};
use flux::output::{Claim, Sign};
use flux::{Engine, Event, Image, ImageFormat};

use crate::support::golden;

/// Appends a line to each file, and keeps the claims.
#[derive(Debug, Default)]
struct Notary(Mutex<Vec<Claim>>);

const SEAL: &[u8] = b"signed";

impl Sign for Notary {
    fn sign(&self, file: &[u8], format: ImageFormat, claim: &Claim) -> flux::Result<Vec<u8>> {
        assert_eq!(ImageFormat::from_magic(file), Some(format));
        assert!(said_by(file)?.recipe.is_some(), "the signature covers the recipe");
        self.0.lock().unwrap().push(claim.clone());
        Ok([file, SEAL].concat())
    }
}

fn image(engine: &Engine, recipe: &Recipe, provenance: bool) -> Image {
    let mut job = engine.job(recipe, 1, &mut std::io::empty()).unwrap();
    job.provenance = provenance;
    let events = engine.submit(job).unwrap().in_order();
    let images = events.filter_map(|event| match event.unwrap() {
        Event::Image { image, .. } => Some(*image),
        _ => None,
    });
    images.last().unwrap()
}

#[test]
fn each_encoded_file_is_signed_with_the_source_and_the_digests_of_the_inputs() {
    let notary = Arc::new(Notary::default());
    let signer: Arc<dyn Sign> = notary.clone();
    let open = |args: &mut EngineArgs| args.signer = Some(signer);
    let engine = Engine::built_in().device(Device::Cpu).configure(open).open().unwrap();
    let text = Recipe { steps: Some(1), width: Some(32), height: Some(32), ..Recipe::new("cat", 7) };
    let made = image(&engine, &text, true);
    for format in [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::Webp] {
        assert!(made.encode(format).unwrap().ends_with(SEAL), "{format}");
    }
    assert!(made.encode_jpeg(80).unwrap().ends_with(SEAL));
    let folder = tempfile::tempdir().unwrap();
    made.save(folder.path().join("a.png")).unwrap();
    assert!(std::fs::read(folder.path().join("a.png")).unwrap().ends_with(SEAL));
    let claims = std::mem::take(&mut *notary.0.lock().unwrap());
    let created = Claim { source: DigitalSource::TrainedAlgorithmicMedia, inputs: Vec::new(), is_edit: false };
    assert_eq!(claims, vec![created.clone(); 5]);

    let input = golden("tiny-144x80-s0.png");
    let digest = flux::files::digest::hash_file(&input).unwrap();
    let edits = [(None, false), (Some(0.5), true)];
    for (strength, is_edit) in edits {
        let edit = Recipe { inputs: vec![input.clone()], strength, steps: Some(2), ..Recipe::new("cat", 7) };
        image(&engine, &edit, true).encode(ImageFormat::Png).unwrap();
        let claims = std::mem::take(&mut *notary.0.lock().unwrap());
        let [claim] = claims.try_into().unwrap();
        assert_eq!((claim.inputs, claim.is_edit), (vec![digest.clone()], is_edit));
    }

    let unmarked = image(&engine, &text, false).encode(ImageFormat::Png).unwrap();
    assert!(!unmarked.ends_with(SEAL) && notary.0.lock().unwrap().is_empty());
}
