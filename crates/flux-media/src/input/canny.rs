//! Edges of an image, by Canny's method.
//!
//! All arithmetic is in integers, as in OpenCV's `Canny` with thresholds of 100 and 200 on RGB, without smoothing: what
//! ControlNet's preprocessor shows to models. Equal to it in every pixel.

use super::size::scaled_down;
use crate::rgb::Rgb;

/// Gradients above the first one may be edges, and gradients above the second one are.
const THRESHOLDS: [i32; 2] = [100, 200];
/// The tangent of 22.5 degrees, in 1 / 2^15.
const TANGENT: i64 = 13_573;
const FRACTION: u32 = 15;

/// Returns the edges of an image, white on black. An image above 1024 x 1024 pixels is first scaled down to at most as
/// many, so that lines stay visible to models.
pub fn edges(image: &Rgb) -> Rgb {
    let image = &*scaled_down(image);
    let (width, height) = (image.width, image.height);
    let gradients: Vec<_> = (0..width * height).map(|at| gradient(image, at % width, at / width)).collect();
    // Beyond the borders there is no gradient.
    let size = |x: isize, y: isize| {
        let inside =
            usize::try_from(x).ok().filter(|x| *x < width).zip(usize::try_from(y).ok().filter(|y| *y < height));
        inside.map_or(0, |(x, y)| size_of_gradient(gradients[y * width + x]))
    };
    let is_ridge = |x: isize, y: isize| {
        let [dx, dy] = gradients[y as usize * width + x as usize];
        let own = size(x, y);
        let (along, across) = (i64::from(dx.abs()) * TANGENT, i64::from(dy.abs()) << FRACTION);
        if across < along {
            own > size(x - 1, y) && own >= size(x + 1, y)
        } else if across > along + (i64::from(dx.abs()) << (FRACTION + 1)) {
            own > size(x, y - 1) && own >= size(x, y + 1)
        } else {
            let side = if (dx < 0) == (dy < 0) { 1 } else { -1 };
            own > size(x - side, y - 1) && own > size(x + side, y + 1)
        }
    };
    let [low, high] = THRESHOLDS;
    let is_candidate = |(at, gradient): (usize, &[i32; 2])| {
        size_of_gradient(*gradient) > low && is_ridge((at % width) as isize, (at / width) as isize)
    };
    let may_be: Vec<bool> = gradients.iter().enumerate().map(is_candidate).collect();
    let strong = may_be.iter().zip(&gradients).map(|(may_be, gradient)| *may_be && size_of_gradient(*gradient) > high);
    let mut is_edge: Vec<bool> = strong.collect();
    let mut open: Vec<usize> = (0..is_edge.len()).filter(|at| is_edge[*at]).collect();
    while let Some(at) = open.pop() {
        let (x, y) = (at % width, at / width);
        for y in y.saturating_sub(1)..height.min(y + 2) {
            for x in x.saturating_sub(1)..width.min(x + 2) {
                let near = y * width + x;
                if may_be[near] && !is_edge[near] {
                    is_edge[near] = true;
                    open.push(near);
                }
            }
        }
    }
    let bytes = is_edge.iter().flat_map(|is_edge| [if *is_edge { 255 } else { 0 }; 3]).collect();
    Rgb { width, height, bytes }
}

/// Returns the gradient (x, y) of the colour that changes most, by Sobel's operator. Border pixels are repeated.
fn gradient(image: &Rgb, x: usize, y: usize) -> [i32; 2] {
    let (left, right) = (x.saturating_sub(1), (x + 1).min(image.width - 1));
    let (above, below) = (y.saturating_sub(1), (y + 1).min(image.height - 1));
    let of_colour = |colour: usize| {
        let at = |x: usize, y: usize| i32::from(image.bytes[3 * (y * image.width + x) + colour]);
        let down = |x: usize| at(x, above) + 2 * at(x, y) + at(x, below);
        let along = |y: usize| at(left, y) + 2 * at(x, y) + at(right, y);
        [down(right) - down(left), along(below) - along(above)]
    };
    let [red, others @ ..] = [0, 1, 2].map(of_colour);
    // The first of equal ones counts.
    others.into_iter().fold(
        red,
        |most, other| {
            if size_of_gradient(other) > size_of_gradient(most) { other } else { most }
        },
    )
}

fn size_of_gradient([dx, dy]: [i32; 2]) -> i32 {
    dx.abs() + dy.abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_of_any_size_have_edges() {
        for [width, height] in [[1, 1], [1, 9], [9, 1], [2, 2]] {
            let image = Rgb { width, height, bytes: vec![7; 3 * width * height] };
            assert!(edges(&image).bytes.iter().all(|byte| *byte == 0));
        }
        let half = |x: usize| if x < 8 { 0 } else { 200 };
        let bytes = (0..16 * 16).flat_map(|at| [half(at % 16); 3]).collect();
        let found = edges(&Rgb { width: 16, height: 16, bytes });
        let columns: Vec<_> = (0..16).filter(|x| (0..16).all(|y| found.bytes[3 * (16 * y + x)] == 255)).collect();
        assert_eq!((columns, found.bytes.iter().filter(|byte| **byte > 0).count()), (vec![7], 3 * 16));
        let large = Rgb { width: 2048, height: 1024, bytes: vec![0; 3 * 2048 * 1024] };
        let small = edges(&large);
        assert!(small.width * small.height <= 1024 * 1024 && small.width > 2 * small.height - 4);
    }
}
