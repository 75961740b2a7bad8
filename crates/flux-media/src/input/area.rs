//! Resizes masks by means over areas: pixels above only black stay black, pixels above only white stay white, and grey
//! in between is the white share of a pixel. A Lanczos filter would ring there.

use rayon::prelude::*;

/// Resizes pixels [height, width] of size `from = [width, height]` to the size `to`. No size may be 0. A pixel above
/// anything that is not black is at least 1.
pub(super) fn resize(pixels: &[u8], from: [usize; 2], to: [usize; 2]) -> Vec<u8> {
    if from == to {
        return pixels.to_vec();
    }
    let [width, height] = from;
    let all = (width * height) as u64;
    let columns: Vec<Span> = (0..to[0]).map(|output| Span { output, inputs: width, outputs: to[0] }).collect();
    let mut out = vec![0; to[0] * to[1]];
    out.par_chunks_exact_mut(to[0]).enumerate().for_each_init(
        || vec![0_u64; width],
        |sums, (output, out)| {
            sums.fill(0);
            for (y, weight) in (Span { output, inputs: height, outputs: to[1] }).weights() {
                let row = &pixels[y * width..][..width];
                sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += weight * u64::from(*value));
            }
            for (value, span) in out.iter_mut().zip(&columns) {
                let sum: u64 = span.weights().map(|(x, weight)| weight * sums[x]).sum();
                *value = ((sum + all / 2) / all).max(sum.min(1)) as u8;
            }
        },
    );
    out
}

/// The inputs below an output pixel. The axis has `inputs * outputs` units: an input is `outputs` units long, and an
/// output `inputs` units.
struct Span {
    output: usize,
    inputs: usize,
    outputs: usize,
}

impl Span {
    /// Returns each input with its length below the output. The lengths add up to the number of inputs.
    fn weights(&self) -> impl Iterator<Item = (usize, u64)> {
        let Self { output, inputs, outputs } = *self;
        let (start, end) = (output * inputs, (output + 1) * inputs);
        (start / outputs..end.div_ceil(outputs)).map(move |input| {
            let length = ((input + 1) * outputs).min(end) - (input * outputs).max(start);
            (input, length as u64)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pixel_is_the_mean_of_what_lies_under_it() {
        assert_eq!(resize(&[0, 255], [2, 1], [4, 1]), [0, 0, 255, 255]);
        assert_eq!(resize(&[0, 255], [2, 1], [3, 1]), [0, 128, 255]);
        assert_eq!(resize(&[0, 0, 255, 0, 0, 0], [3, 2], [1, 1]), [43], "255 / 6 is 42.5");
        assert_eq!(resize(&[10, 20, 30, 40], [2, 2], [1, 2]), [15, 35]);
        assert_eq!(resize(&[7, 9], [1, 2], [3, 2]), [7, 7, 7, 9, 9, 9]);
    }

    #[test]
    fn black_stays_black_white_stays_white_and_nothing_that_is_white_is_lost_at_any_scale() {
        let side = 97;
        for at in [0, 1, side * side / 2, side * side - 1] {
            let mut pixels = vec![0; side * side];
            pixels[at] = 255;
            for to in [[1, 1], [16, 16], [96, 98], [97, 31], [300, 200]] {
                let resized = resize(&pixels, [side, side], to);
                let lies_over = |x: usize, y: usize| {
                    let over = |at: usize, output: usize, outputs: usize| {
                        at * outputs < (output + 1) * side && (at + 1) * outputs > output * side
                    };
                    over(at % side, x, to[0]) && over(at / side, y, to[1])
                };
                for (i, value) in resized.iter().enumerate() {
                    assert_eq!(*value > 0, lies_over(i % to[0], i / to[0]), "{at} {to:?} {i}");
                }
                pixels.iter_mut().for_each(|value| *value = 255);
                assert!(resize(&pixels, [side, side], to).iter().all(|value| *value == 255), "{to:?}");
                pixels.fill(0);
                pixels[at] = 255;
            }
        }
    }
}
