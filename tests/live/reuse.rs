//! `--reuse`: frames that differ little from an earlier one.

use std::fs;

use flux::rgb::Rgb;
use serde_json::Value;

use super::{SIDE, frame, images, raw_flags, run};

/// Returns a frame with an object in its first square.
fn marked() -> Rgb {
    let mut frame = frame(0);
    let is_marked = |i: usize| i / 3 % SIDE < 8 && i / 3 / SIDE < 8;
    frame.bytes.iter_mut().enumerate().filter(|(i, _)| is_marked(*i)).for_each(|(_, value)| *value ^= 0x7f);
    frame
}

#[test]
fn frames_that_do_not_change_cost_nothing_and_the_figures_tell_it() {
    let folder = tempfile::tempdir().unwrap();
    let frames = [frame(0), frame(0), marked(), frame(3)].map(|frame| frame.bytes).concat();
    let flags = raw_flags(&["--all", "--reuse", "0", "--stats=told"]);
    let (out, ended) = run(folder.path(), &flags, frames.clone());
    ended.succeeds();
    let (plain, ended) = run(folder.path(), &raw_flags(&["--all"]), frames);
    ended.succeeds();
    let (images, plain) = (images(&out), images(&plain));
    assert_eq!(images.len(), 4);
    assert_eq!([&images[0], &images[1], &images[3]], [&plain[0], &plain[1], &plain[3]]);
    assert_ne!(images[2], images[1], "what changed is drawn");
    let told = fs::read_to_string(folder.path().join("told")).unwrap();
    let last: Value = serde_json::from_str(told.lines().last().unwrap()).unwrap();
    assert_eq!((&last["reused"]["whole"], &last["reused"]["again"]), (&2.into(), &1.into()), "{last}");
    let computed = last["reused"]["computed"].as_f64().unwrap();
    assert!((0.5..0.53).contains(&computed), "{computed}");
}

#[test]
fn what_changes_all_of_a_frame_does_not_go_with_it() {
    let folder = tempfile::tempdir().unwrap();
    for flags in [&["--reuse", "0.1", "--feedback", "0.3"][..], &["--reuse", "2"], &["--refresh", "3"]] {
        let (_, ended) = run(folder.path(), &raw_flags(flags), Vec::new());
        ended.fails(2, &["--re"]);
    }
}
