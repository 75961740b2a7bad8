//! Conversion between YCbCr and RGB.
//!
//! Source: ITU-R BT.601, the usual default for streams without a named matrix, in fixed point with 16 fractional bits.

/// The range of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Range {
    /// 16 to 235, chroma 16 to 240.
    Limited,
    /// 0 to 255.
    Full,
}

/// Chroma subsampling: the number of pixels that share a chroma value, across and down, or grey.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shared {
    Grey,
    Pixels([usize; 2]),
}

const HALF: i32 = 1 << 15;

/// Converts Y, Cb and Cr planes to RGB. Subsampled chroma is repeated without interpolation.
pub fn to_rgb([y, u, v]: [&[u8]; 3], width: usize, shared: Shared, range: Range) -> Vec<u8> {
    let mut rgb = Vec::with_capacity(3 * y.len());
    for (row, brightness) in y.chunks_exact(width).enumerate() {
        let Shared::Pixels([across, down]) = shared else {
            rgb.extend(brightness.iter().flat_map(|y| pixel([*y, 128, 128], range)));
            continue;
        };
        let start = row / down * width.div_ceil(across);
        let colors = u[start..].iter().zip(&v[start..]);
        let of_pixels = colors.flat_map(|(u, v)| std::iter::repeat_n((*u, *v), across));
        rgb.extend(brightness.iter().zip(of_pixels).flat_map(|(y, (u, v))| pixel([*y, u, v], range)));
    }
    rgb
}

fn pixel([y, u, v]: [u8; 3], range: Range) -> [u8; 3] {
    let [y, u, v] = [y, u, v].map(i32::from);
    let (u, v) = (u - 128, v - 128);
    let (y, red, green, blue) = match range {
        Range::Limited => (76_309 * (y - 16), 104_597 * v, -25_675 * u - 53_279 * v, 132_201 * u),
        Range::Full => (65_536 * y, 91_881 * v, -22_554 * u - 46_802 * v, 116_130 * u),
    };
    [red, green, blue].map(|color| ((y + color + HALF) >> 16).clamp(0, 255) as u8)
}

/// Converts RGB to full-size Y, Cb and Cr planes in limited range.
pub fn from_rgb(rgb: &[u8]) -> [Vec<u8>; 3] {
    let plane = |[red, green, blue]: [i32; 3], offset: i32| -> Vec<u8> {
        let value = |pixel: &[u8; 3]| {
            let [r, g, b] = pixel.map(i32::from);
            (((red * r + green * g + blue * b + HALF) >> 16) + offset) as u8
        };
        rgb.as_chunks::<3>().0.iter().map(value).collect()
    };
    [plane([16_829, 33_039, 6_416], 16), plane([-9_714, -19_070, 28_784], 128), plane([28_784, -24_103, -4_681], 128)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn black_white_and_the_primaries_have_the_values_of_the_standard() {
        let planes = from_rgb(&[0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 255, 0, 0, 0, 255]);
        assert_eq!(planes, [vec![16, 235, 81, 145, 41], vec![128, 128, 90, 54, 240], vec![128, 128, 240, 34, 110]]);
        assert_eq!(to_rgb([&[0, 255], &[], &[]], 2, Shared::Grey, Range::Full), [0, 0, 0, 255, 255, 255]);
        assert_eq!(to_rgb([&[16, 235], &[], &[]], 2, Shared::Grey, Range::Limited), [0, 0, 0, 255, 255, 255]);
    }

    #[test]
    fn what_goes_there_and_back_moves_by_two_levels_at_most() {
        let rgb: Vec<u8> = (0..3 * 64 * 64_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let [y, u, v] = from_rgb(&rgb);
        let back = to_rgb([&y, &u, &v], 64, Shared::Pixels([1, 1]), Range::Limited);
        let apart = rgb.iter().zip(&back).map(|(a, b)| a.abs_diff(*b)).max();
        assert!(apart <= Some(2), "{apart:?}");
    }

    #[test]
    fn pixels_that_share_a_colour_have_it_also_at_an_odd_edge() {
        let y = [100; 9];
        let (u, v) = ([128, 90, 128, 90], [128, 128, 240, 240]);
        let rgb = to_rgb([&y, &u, &v], 3, Shared::Pixels([2, 2]), Range::Full);
        let grey = [100, 100, 100];
        assert_eq!((&rgb[..3], &rgb[3..6], &rgb[9..12]), (&grey[..], &grey[..], &grey[..]));
        assert!(rgb[6..9] != grey && rgb[18..21] != grey && rgb[24..27] != rgb[6..9]);
    }
}
