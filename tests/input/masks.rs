//! Results under a mask: black areas unchanged, grey in proportion, and no part of the mask lost.

use flux::input::{Edit, Grey, Mask, Sides};
use flux::rgb::Rgb;

use super::noise;

fn image(width: usize, height: usize) -> Rgb {
    // Never the level of `even`.
    Rgb { width, height, bytes: noise(3 * width * height, 5).iter().map(|value| 30 + value / 2).collect() }
}

fn even(like: &Rgb, level: u8) -> Rgb {
    Rgb { bytes: vec![level; like.bytes.len()], ..*like }
}

/// A mask that is white if `is_white` returns `true` for the middle of a pixel, relative to the mask's sides.
fn mask(width: usize, height: usize, is_white: impl Fn(f64, f64) -> bool) -> Grey {
    let part = |at: usize, side: usize| (at as f64 + 0.5) / side as f64;
    let of = |at: usize| u8::from(is_white(part(at % width, width), part(at / width, height))) * 255;
    Grey { width, height, bytes: (0..width * height).map(of).collect() }
}

/// Returns `true` if one of the mask's pixels above the pixel `at` of an image of `size`, or within `reach` pixels of
/// the image around it, is not black.
fn selects(mask: &Grey, size: [usize; 2], at: usize, reach: usize) -> bool {
    let (x, y) = (at % size[0], at / size[0]);
    let over = |at: usize, side: usize, of: usize| {
        let (start, end) = (at.saturating_sub(reach), (at + 1 + reach).min(side));
        start * of / side..(end * of).div_ceil(side)
    };
    let mut rows = over(y, size[1], mask.height);
    rows.any(|row| over(x, size[0], mask.width).any(|column| mask.bytes[row * mask.width + column] > 0))
}

/// Fails if a pixel that the mask leaves black, and that is beyond the feather, has changed.
#[track_caller]
fn expect_kept(edit: &Edit, original: &Rgb, mask: &Grey, feather: usize, what: &str) {
    let result = edit.composite(&even(edit.image(), 255), feather).unwrap();
    let size = [original.width, original.height];
    let pixels = original.bytes.chunks_exact(3).zip(result.bytes.chunks_exact(3)).enumerate();
    let mut changed = 0;
    for (at, (old, new)) in pixels {
        assert!(old == new || selects(mask, size, at, feather), "{what}: the pixel {at} has changed");
        changed += usize::from(old != new);
    }
    assert!(changed > 0, "{what}: nothing has changed");
}

#[test]
fn black_comes_back_byte_for_byte_at_any_size_of_the_mask_and_with_any_feather() {
    let round = |x: f64, y: f64| (x - 0.4).hypot(y - 0.6) < 0.21;
    let line = |x: f64, y: f64| (x - y).abs() < 0.01;
    for size in [[96, 64], [101, 83], [257, 130]] {
        let original = image(size[0], size[1]);
        for to in [size, [96, 64], [40, 31], [202, 166], [512, 512], [999, 700], [7, 300]] {
            for (name, mask) in [("round", mask(to[0], to[1], round)), ("line", mask(to[0], to[1], line))] {
                for feather in [0, 1, 9] {
                    let what = format!("{name}, {to:?} over {size:?}, feather {feather}");
                    let read = Mask::from(mask.clone());
                    let edit = Edit::masked(original.clone(), &read).unwrap();
                    expect_kept(&edit, &original, &mask, feather, &what);
                    for padding in [0, 11] {
                        let edit = Edit::cropped(original.clone(), &read, padding).unwrap();
                        expect_kept(&edit, &original, &mask, feather, &format!("{what}, padding {padding}"));
                    }
                }
            }
        }
    }
}

#[test]
fn an_image_that_grows_keeps_what_is_black_and_beyond_its_edge() {
    let original = image(70, 53);
    let mask = mask(140, 90, |x, y| (x - 0.5).abs() < 0.1 && (y - 0.5).abs() < 0.1);
    let sides = Sides { right: 21, ..Sides::default() };
    for feather in [0, 5] {
        let edit = Edit::extended(&original, sides, Some(&Mask::from(mask.clone()))).unwrap();
        let result = edit.composite(&even(edit.image(), 255), feather).unwrap();
        for at in 0..70 * 53 {
            let (x, y) = (at % 70, at / 70);
            let is_kept = x < 70 - 16 - feather && !selects(&mask, [70, 53], at, feather);
            let new = &result.bytes[3 * (y * 91 + x)..][..3];
            assert!(!is_kept || new == &original.bytes[3 * at..][..3], "feather {feather}: {x}, {y}");
        }
    }
}

#[test]
fn grey_mixes_in_proportion_and_is_drawn_anew() {
    let original = even(&image(32, 32), 100);
    for value in 0..=255_u8 {
        let mask = Mask::from(Grey { width: 2, height: 2, bytes: vec![value; 4] });
        let edit = Edit::masked(original.clone(), &mask).unwrap();
        let drawn = if value == 0 { 0.0 } else { 1.0 };
        assert_eq!(edit.cells(), Some([drawn; 4].as_slice()), "{value}");
        let result = edit.composite(&even(edit.image(), 200), 0).unwrap();
        let mixed = 100.0 + 100.0 * f64::from(value) / 255.0;
        assert!(result.bytes.iter().all(|found| (f64::from(*found) - mixed).abs() <= 0.5), "{value}");
    }
}

#[test]
fn one_white_pixel_draws_its_square_anew_wherever_it_is() {
    let original = image(48, 32);
    for at in 0..48 * 32 {
        let mut mask = Grey { width: 48, height: 32, bytes: vec![0; 48 * 32] };
        mask.bytes[at] = 255;
        let edit = Edit::masked(original.clone(), &Mask::from(mask)).unwrap();
        let square = at / 48 / 16 * 3 + at % 48 / 16;
        let expected: Vec<f32> = (0..6).map(|cell| if cell == square { 1.0 } else { 0.0 }).collect();
        assert_eq!(edit.cells(), Some(expected.as_slice()), "{at}");
    }
}

/// Even if the mask's pixels are far smaller than the image's.
#[test]
fn a_thin_line_in_a_large_mask_is_not_lost() {
    let mut mask = Grey { width: 2000, height: 2000, bytes: vec![0; 2000 * 2000] };
    mask.bytes[700 * 2000..701 * 2000].fill(255);
    let edit = Edit::masked(image(100, 100), &Mask::from(mask)).unwrap();
    let rows: Vec<f32> = edit.cells().unwrap().chunks_exact(6).map(|row| row.iter().sum()).collect();
    assert_eq!(rows, [0.0, 0.0, 6.0, 0.0, 0.0, 0.0]);
    let result = edit.composite(&even(edit.image(), 255), 0).unwrap();
    assert_ne!(result, image(100, 100));
}
