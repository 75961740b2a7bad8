//! Images by a tiny decoder.

use std::sync::Arc;

use flux::pipeline::Request;
use flux::stage::CancelFlag;
use safetensors::tensor::Dtype;

use super::{frame, images, raw, raw_flags, run};
use crate::support::{assert_near, built_in, load};
use crate::tiny_decoder::{TinyDecoder, diffusers_name};

#[test]
fn a_tiny_decoder_makes_the_images_where_it_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let decoder = TinyDecoder::random(8, 8);
    decoder.write(&folder.path().join("taef2.safetensors"), Dtype::F16, diffusers_name);
    let drawn = |flags: &[&str]| {
        let flags = [&["--all", "--precision", "f32"], flags].concat();
        let (bytes, ended) = run(folder.path(), &raw_flags(&flags), raw([1, 2, 1]));
        ended.succeeds();
        images(&bytes)
    };
    let (whole, tiny) = (drawn(&[]), drawn(&["--preview-decoder", "taef2.safetensors"]));
    assert!(tiny.len() == 3 && tiny[0] == tiny[2] && tiny[0] != tiny[1] && tiny[0] != whole[0]);

    let model = load(&built_in());
    let references = vec![Arc::new(frame(1))];
    let request = Request { references, steps: Some(1), ..Request::new("a red circle", 7) };
    let mut session = model.session_of(&[request], &CancelFlag::default()).unwrap();
    session.watch(&mut |_| {}).unwrap();
    session.step(&mut |_| {}).unwrap();
    let expected = decoder.image(&session.predicted().unwrap().unwrap(), [4, 4]);
    assert_near("a preview", &tiny[0].bytes, &expected.bytes);
}

#[test]
fn a_decoder_that_is_none_or_of_another_model_is_refused_before_any_frame() {
    let folder = tempfile::tempdir().unwrap();
    TinyDecoder::random(32, 4).write(&folder.path().join("other.safetensors"), Dtype::F16, diffusers_name);
    for (file, words) in [("none", "none"), ("other.safetensors", "latent")] {
        let (bytes, ended) = run(folder.path(), &raw_flags(&["--preview-decoder", file]), raw([1]));
        assert!(bytes.is_empty());
        ended.fails(1, &[words]);
    }
}
