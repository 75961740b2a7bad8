//! Flicker: changes between images whose frames do not change.

use crate::rgb::Rgb;

/// Pixels on a side of the compared cells.
const CELL: usize = 16;
/// The mean difference of frames up to which a cell counts as unchanged, in levels. Smaller differences are a camera's
/// noise.
const STILL: f64 = 4.0;

/// A frame and the image generated from it.
#[derive(Debug, Clone, Copy)]
pub struct Framed<'a> {
    /// The camera's frame.
    pub frame: &'a Rgb,
    /// The image; its size may differ from the frame's.
    pub image: &'a Rgb,
}

/// Returns the mean absolute difference of two consecutive images, in 8-bit levels, over the cells of 16 x 16 pixels
/// whose frames do not change. `None` if all cells change, or sizes differ.
pub fn flicker(before: Framed<'_>, now: Framed<'_>) -> Option<f64> {
    let size = |image: &Rgb| [image.width, image.height];
    if size(before.frame) != size(now.frame) || size(before.image) != size(now.image) {
        return None;
    }
    let [columns, rows] = size(now.image).map(|side| side.div_ceil(CELL).max(1));
    let cells = (0..columns * rows).map(|cell| [cell % columns, cell / columns]);
    let mut sum = (0.0, 0);
    for cell in cells {
        let of = |a: &Rgb, b: &Rgb| a.cell_difference(b, cell, [columns, rows]);
        if of(before.frame, now.frame)? <= STILL {
            sum = (sum.0 + of(before.image, now.image)?, sum.1 + 1);
        }
    }
    (sum.1 > 0).then(|| sum.0 / f64::from(sum.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A grey image whose left half is brighter by `left` levels.
    fn image(width: usize, height: usize, left: u8) -> Rgb {
        let level = |i: usize| if i / 3 % width < width / 2 { 100 + left } else { 100 };
        Rgb { width, height, bytes: (0..3 * width * height).map(level).collect() }
    }

    #[test]
    fn only_cells_whose_frames_do_not_change_count() {
        let (still, moved) = (image(64, 32, 0), image(64, 32, 60));
        let [a, b] = [0, 10].map(|left| image(64, 32, left));
        let of = |frames: [&Rgb; 2], images: [&Rgb; 2]| {
            flicker(Framed { frame: frames[0], image: images[0] }, Framed { frame: frames[1], image: images[1] })
        };
        assert_eq!(of([&still, &still], [&a, &a]), Some(0.0));
        assert_eq!(of([&still, &still], [&a, &b]), Some(5.0), "half of the image by ten levels");
        assert_eq!(of([&still, &moved], [&a, &b]), Some(0.0), "changes of the frame are not flicker");
        assert_eq!(of([&still, &image(64, 32, 4)], [&a, &b]), Some(5.0), "camera noise is not a change");
        let all = Rgb { bytes: vec![200; 3 * 64 * 32], ..still.clone() };
        assert_eq!(of([&still, &all], [&a, &b]), None);
        assert_eq!(of([&still, &still], [&a, &image(32, 64, 0)]), None, "different sizes");
        // Frames may be larger than their images.
        let [wide, shifted] = [0, 60].map(|left| image(200, 100, left));
        assert_eq!(of([&wide, &shifted], [&a, &b]), Some(0.0));
    }
}
