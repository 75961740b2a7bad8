//! Damaged images: to compare, to edit, and in place of other files.

use std::fs;
use std::path::PathBuf;

use super::{Place, link, models, work};
use crate::expect::{End, Prints};
use crate::rng::Rng;
use crate::run::Case;
use crate::{folder, pictures};

/// The name of a damaged image in the folder of a run.
const NAME: &str = "image.png";

/// Compares a damaged image with a valid one, or shows it.
pub fn looked_at(place: &Place<'_>, rng: &mut Rng) -> Case {
    let mut case = place.case();
    let (source, damaged) = image(&mut case, place, true, rng);
    case.expected.prints = Prints::OnSuccess;
    if rng.one_of(12) {
        case.expected.end = End::Any;
        case.command.arg("info").arg(damaged);
    } else if rng.one_of(3) {
        case.command.arg("compare").arg(damaged).arg(source);
        case.expected.blames.push("different sizes".to_string()); // of another size
    } else {
        case.command.arg("compare").args([&damaged, &damaged]);
    }
    case
}

/// An edit of a damaged image, or with a damaged mask.
pub fn edited(place: &Place<'_>, rng: &mut Rng) -> Case {
    let mut case = place.case();
    let is_small = rng.one_of(2);
    let (source, damaged) = image(&mut case, place, is_small, rng);
    let (model, _) = models::linked(place, rng);
    let flags: &[&str] = match rng.below(6) {
        0 => &["--strength", "1"],
        1 => &["--extend", "16,0,5,0", "--feather", "3"],
        2 => &["--mask"],
        3 => &["--mask-padding", "3", "--mask"],
        4 => &["-i"],
        _ => &[],
    };
    work::draw_in_own_size(&mut case, place, &model);
    case.command.arg("-i");
    // The damaged file follows a flag that takes a file.
    match flags.last() {
        Some(&"--mask" | &"-i") => case.command.arg(source).args(flags).arg(damaged),
        _ => case.command.arg(damaged).args(flags),
    };
    case.expected.blames.extend(["--input", "--mask", "--size", "--extend"].map(String::from));
    case.what += &format!(", with {flags:?}");
    case
}

/// Returns a valid image, and a damaged one in the folder of the run.
fn image(case: &mut Case, place: &Place<'_>, is_small: bool, rng: &mut Rng) -> (PathBuf, PathBuf) {
    let source = rng.pick(&place.sources.images).clone();
    let damaged = place.at(NAME);
    if is_small {
        let (number, bytes) = pick_of(&place.sources.corpus, rng);
        fs::write(&damaged, bytes).expect("a temporary folder is writable");
        case.what = format!("an image like number {number} of the corpus");
    } else {
        link(&source, &damaged);
        case.what = format!("an image like {source:?}");
    }
    match rng.below(8) {
        0 => case.what = format!("an image is {}", folder::replace(&damaged, rng)),
        1 => folder::damage(&damaged, rng),
        _ => {
            let bytes = fs::read(&damaged).expect("written above");
            let picture = pictures::damaged(&bytes, rng);
            case.what += &format!(", {}", picture.what);
            case.expected.end = picture.end;
            folder::change(&damaged, |_| picture.bytes);
        }
    }
    case.expected.blames.push(NAME.to_string());
    (source, damaged)
}

fn pick_of<'a>(corpus: &'a [Vec<u8>], rng: &mut Rng) -> (usize, &'a [u8]) {
    let number = rng.below(corpus.len());
    (number, &corpus[number])
}
