//! Softens the edge of a mask.

use rayon::prelude::*;

use super::mask::Grey;

/// Minimum value of a white pixel in a mask.
const WHITE: u8 = 128;

/// Adds a slope of `pixels` pixels around the mask's white area, which falls linearly from the value of the nearest
/// white pixel. The white area itself stays, because an object that should vanish ends at the mask. Pixels farther
/// than `pixels` from the mask stay black.
pub(super) fn feathered(mask: &Grey, pixels: usize) -> Grey {
    if pixels == 0 || !mask.bytes.iter().any(|value| *value >= WHITE) {
        return mask.clone();
    }
    let far = pixels.saturating_add(1);
    let columns = column_distances(mask, far);
    let mut bytes = mask.bytes.clone();
    let rows = bytes.par_chunks_exact_mut(mask.width).zip(columns.par_chunks_exact(mask.width)).enumerate();
    rows.for_each(|(y, (out, columns))| {
        for (value, (distance, x)) in out.iter_mut().zip(row_distances(columns, far)) {
            if distance <= pixels as f64 {
                let slope = f64::from(nearest(mask, columns[x] as usize, [x, y])) * (1.0 - distance / far as f64);
                *value = (*value).max(slope.round() as u8);
            }
        }
    });
    Grey { bytes, ..*mask }
}

/// Returns the brighter of the pixels at `distance` above and below a place; one of them is white.
fn nearest(mask: &Grey, distance: usize, [x, y]: [usize; 2]) -> u8 {
    let of = |y: Option<usize>| y.and_then(|y| mask.bytes.get(y * mask.width + x)).copied().unwrap_or(0);
    of(y.checked_sub(distance)).max(of(y.checked_add(distance)))
}

/// Returns the distance of each pixel to the nearest white pixel in its column, at most `far`.
fn column_distances(mask: &Grey, far: usize) -> Vec<u32> {
    let far = u32::try_from(far).unwrap_or(u32::MAX - 1);
    let mut distances: Vec<u32> = mask.bytes.iter().map(|value| if *value >= WHITE { 0 } else { far }).collect();
    for at in mask.width..distances.len() {
        distances[at] = distances[at].min((distances[at - mask.width] + 1).min(far));
    }
    for at in (0..distances.len() - mask.width).rev() {
        distances[at] = distances[at].min((distances[at + mask.width] + 1).min(far));
    }
    distances
}

/// Returns the distance of each pixel of a row to the nearest white pixel, and that pixel's column, from the distances
/// in the columns: the lowest of the parabolas `columns[x]^2 + (x - at)^2`. Source: Felzenszwalb and Huttenlocher,
/// Distance Transforms of Sampled Functions.
fn row_distances(columns: &[u32], far: usize) -> Vec<(f64, usize)> {
    if columns.iter().all(|distance| *distance as usize >= far) {
        return vec![(far as f64, 0); columns.len()];
    }
    let square = |x: usize| f64::from(columns[x]).powi(2);
    // The place from which the parabola of b is below that of a, which begins to the left of it.
    let cut = |a: usize, b: usize| {
        let (a, b, height) = (a as f64, b as f64, square(b) - square(a));
        (height + b * b - a * a) / (2.0 * (b - a))
    };
    let mut lowest: Vec<(usize, f64)> = vec![(0, f64::NEG_INFINITY)];
    for x in 1..columns.len() {
        while lowest.len() > 1 && lowest.last().is_some_and(|&(last, from)| cut(last, x) <= from) {
            lowest.pop();
        }
        let from = lowest.last().map_or(f64::NEG_INFINITY, |&(last, _)| cut(last, x));
        lowest.push((x, from));
    }
    let mut at = 0;
    let of = |x: usize| {
        while lowest.get(at + 1).is_some_and(|&(_, from)| from <= x as f64) {
            at += 1;
        }
        let column = lowest[at].0;
        ((square(column) + (x as f64 - column as f64).powi(2)).sqrt(), column)
    };
    (0..columns.len()).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slope_follows_the_distance_from_the_nearest_white_pixel() {
        let (width, height) = (37, 23);
        let white = [(3, 4), (30, 4), (31, 20), (12, 11)];
        let mut mask = Grey { width, height, bytes: vec![0; width * height] };
        white.iter().for_each(|&(x, y)| mask.bytes[y * width + x] = 255);
        mask.bytes[22 * width] = 100;
        for pixels in [1, 5, 12, 1000] {
            let soft = feathered(&mask, pixels);
            for (x, y) in (0..width).flat_map(|x| (0..height).map(move |y| (x, y))) {
                let apart = |&(to_x, to_y): &(usize, usize)| (x as f64 - to_x as f64).hypot(y as f64 - to_y as f64);
                let distance = white.iter().map(apart).fold(f64::INFINITY, f64::min);
                let slope = (255.0 * (1.0 - distance / (pixels + 1) as f64)).round() as u8;
                let expected = if distance <= pixels as f64 { slope } else { 0 };
                let expected = expected.max(mask.bytes[y * width + x]);
                assert_eq!(soft.bytes[y * width + x], expected, "{pixels} {x} {y}");
            }
        }
    }

    #[test]
    fn a_slope_begins_with_the_value_beside_it() {
        let grey = Grey { width: 6, height: 2, bytes: vec![0, 0, 150, 150, 0, 0, 0, 0, 0, 150, 0, 0] };
        assert_eq!(feathered(&grey, 1).bytes, [0, 75, 150, 150, 75, 0, 0, 0, 75, 150, 75, 0]);
    }

    #[test]
    fn a_mask_without_white_and_a_feather_of_nothing_change_nothing() {
        let grey = Grey { width: 3, height: 1, bytes: vec![0, 127, 0] };
        assert_eq!(feathered(&grey, 9), grey);
        let white = Grey { width: 3, height: 1, bytes: vec![0, 255, 0] };
        assert_eq!(feathered(&white, 0), white);
        assert_eq!(feathered(&white, usize::MAX).bytes, [255; 3]);
    }
}
