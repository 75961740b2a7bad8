//! Guidance, and windows of text of any length.

use flux::files::ModelFiles;
use flux::pipeline::Request;
use flux::stage::CancelFlag;

use super::{load, long, pixels, small};
use crate::flux3_base::write_base;

#[test]
fn guidance_is_off_at_one_alone() {
    let folder = tempfile::tempdir().unwrap();
    write_base(folder.path());
    let model = load(&ModelFiles::open(folder.path()).unwrap());
    let guided = |guidance| Request { guidance, negative: Some("blurry".to_string()), ..small("a cat", 1) };
    let plan = |guidance| model.plan(&guided(guidance)).unwrap();
    assert_eq!((plan(None).guidance, plan(None).guided()), (3.5, true));
    assert!(plan(Some(0.5)).guided() && !plan(Some(1.0)).guided());
    let images = [0.5, 1.0, 2.0].map(|guidance| pixels(&model, &guided(Some(guidance))));
    assert!(images[0] != images[1] && images[1] != images[2]);
    let plain = pixels(&model, &Request { guidance: Some(1.0), ..small("a cat", 1) });
    assert!(images[1] == plain, "without guidance nothing reads the negative prompt");
}

#[test]
fn windows_follow_the_prompt_and_may_differ() {
    let folder = tempfile::tempdir().unwrap();
    write_base(folder.path());
    let model = load(&ModelFiles::open(folder.path()).unwrap());
    let request = |negative: &str| Request { negative: Some(negative.to_string()), ..small("a cat", 1) };
    let plan = model.plan(&request(&long())).unwrap();
    assert_eq!((plan.text_tokens, plan.negative_tokens), (80, 240));
    let image = pixels(&model, &request(&long()));
    assert!(image != pixels(&model, &request("")));
    // Text features behave like prompts.
    let mut session = model.session(&request(&long()), 1, &CancelFlag::default()).unwrap();
    let features = session.embeddings().unwrap();
    let given = Request { embeddings: Some(features), ..small("", 1) };
    assert!(pixels(&model, &given) == image);
    let cut = Request { max_sequence_length: Some(60), ..request(&long()) };
    let plan = model.plan(&cut).unwrap();
    assert_eq!((plan.text_tokens, plan.negative_tokens), (60, 60));
    assert!(plan.notes.iter().any(|note| note.contains("longer than the model reads")), "{:?}", plan.notes);
}
