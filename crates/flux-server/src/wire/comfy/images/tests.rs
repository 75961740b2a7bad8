//! Tests of images and masks of a graph.

use flux::input::Grey;

use super::mask::{grow_cross, spread};
use super::*;
use crate::jobs::admission::Estimate;

fn grey(rows: &[&[u8]]) -> Grey {
    Grey { width: rows[0].len(), height: rows.len(), bytes: rows.concat() }
}

#[test]
fn the_nearest_pixel_is_taken_from_the_middle() {
    let image = Rgb { width: 3, height: 1, bytes: vec![0, 0, 0, 1, 1, 1, 2, 2, 2] };
    let columns = |width| nearest(&image, [width, 1]).bytes.iter().step_by(3).copied().collect::<Vec<_>>();
    assert_eq!((columns(6), columns(2), columns(1)), (vec![0, 0, 1, 1, 2, 2], vec![0, 2], vec![1]));
}

#[test]
fn a_part_in_the_middle_has_the_new_proportions() {
    let region = middle([200, 100], [64, 64]);
    assert_eq!((region.size(), region.left, region.top), ([100, 100], 50, 0));
    assert_eq!(middle([100, 200], [64, 64]).size(), [100, 100]);
    assert_eq!(middle([64, 64], [64, 64]).size(), [64, 64]);
    assert_eq!(middle([1, 10_000], [10_000, 1]).size()[0], 1);
}

#[test]
fn masks_grow() {
    let dot = || grey(&[&[0, 0, 0, 0, 0], &[0, 0, 9, 0, 0], &[0, 0, 0, 0, 0]]);
    let mut square = dot();
    spread(&mut square, 1, 1);
    assert_eq!(square, grey(&[&[0, 9, 9, 9, 0], &[0, 9, 9, 9, 0], &[0, 9, 9, 9, 0]]));
    let mut cross = dot();
    grow_cross(&mut cross);
    assert_eq!(cross, grey(&[&[0, 0, 9, 0, 0], &[0, 9, 9, 9, 0], &[0, 0, 9, 0, 0]]));
    let mut wide = dot();
    spread(&mut wide, 1, 0);
    assert_eq!(wide, grey(&[&[0, 0, 0, 0, 0], &[0, 0, 9, 9, 0], &[0, 0, 9, 9, 0]]));
}

#[test]
fn a_part_is_cropped_inside_of_the_image() {
    let image = Rgb { width: 4, height: 2, bytes: (0..24).collect() };
    let (cancel, shape) = (CancelFlag::default(), Picture::generated((0, false), [4, 2]));
    let pixels = |part: Result<Arc<Picture>>| {
        let part = part.unwrap().with_file(png(&image).unwrap());
        (part.size, part.pixels(&cancel).unwrap().bytes.clone())
    };
    assert_eq!(pixels(shape.cropped([2, 1], [9, 9])), ([2, 1], (18..24).collect()));
    assert_eq!(pixels(shape.cropped([9, 9], [1, 1])).1, [21, 22, 23]);
    assert!(Picture::generated((0, false), [4, 2]).cropped([0, 0], [0, 1]).is_err());
}

#[test]
fn what_is_too_large_is_refused() {
    let picture = Picture::sent(Bytes::new(), [10, 10], (0, String::new()));
    assert!(picture.scaled("lanczos", [16384, 16384], false).is_err());
    assert!(picture.scaled("lanczos", [0, 10], false).is_err());
    let mut often = picture;
    for _ in 0..MAX_CHANGES {
        often = often.scaled("lanczos", [often.size[0] + 1, 10], false).unwrap();
    }
    assert!(often.scaled("lanczos", [10, 10], false).is_err());
    assert!(often.scaled("lanczos", often.size, false).is_ok(), "nothing needs to be scaled");
}

fn sent(width: usize, height: usize) -> Arc<Picture> {
    let bytes = (0..3 * width * height).map(|place| (place * 7) as u8).collect();
    Picture::sent(png(&Rgb { width, height, bytes }).unwrap(), [width, height], (3, "image".to_string()))
}

#[test]
fn an_image_is_made_and_counted_once_however_often_it_is_used() {
    let (first, cancel) = (sent(40, 30), CancelFlag::default());
    let half = first.scaled("lanczos", [20, 15], false).unwrap();
    let ends = [[8, 8], [9, 9]].map(|size| half.scaled("nearest-exact", size, true).unwrap());
    let mut costs = Costs::default();
    let counted = ends.each_ref().map(|end| costs.file(end));
    assert_eq!(counted[0].decoded, 1200);
    assert_eq!(counted[0].scaled, 2 * 64 + (1200 + 300) + 16 * 15 + 64, "encoded, scaled twice");
    assert_eq!((counted[1].decoded, counted[1].scaled), (0, 2 * 81 + 16 * 15 + 81));
    assert_eq!(costs.file(&ends[0]), Estimate::default(), "a second sampler costs nothing more");
    let kept = || [&first, &half].map(|picture| picture.pixels.lock().is_some());
    let file = ends[0].to_file(&cancel).unwrap();
    assert_eq!(kept(), [false, true], "until the last use");
    assert_eq!(ends[0].to_file(&cancel).unwrap().as_ptr(), file.as_ptr());
    ends[1].to_file(&cancel).unwrap();
    assert_eq!(kept(), [false, false]);
    let mask = MaskPicture::new(&half, Channel::Color(0)).grown(2, true).unwrap();
    assert!(costs.mask(&mask, [20, 15]).scaled > 0);
    assert_eq!(costs.mask(&mask, [20, 15]), Estimate::default());
    let file = mask.to_file([20, 15], &cancel).unwrap();
    assert_eq!(mask.to_file([20, 15], &cancel).unwrap().as_ptr(), file.as_ptr());
}

#[test]
fn work_that_is_cancelled_ends_and_a_damaged_file_is_named() {
    let cancel = CancelFlag::default();
    cancel.cancel();
    let half = sent(40, 30).scaled("lanczos", [20, 15], false).unwrap();
    assert!(half.to_file(&cancel).is_err());
    assert!(MaskPicture::new(&half, Channel::Color(0)).to_file([20, 15], &cancel).is_err());
    let damaged = Picture::sent(Bytes::from_static(b"x"), [40, 30], (3, "image".to_string()));
    let broken = damaged.scaled("lanczos", [20, 15], false).unwrap().to_file(&CancelFlag::default()).unwrap_err();
    assert_eq!(broken.origin, Some((3, "image".to_string())));
}
