//! Rectangles of pixels.

/// A rectangle inside an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// Columns to its left.
    pub left: usize,
    /// Rows above it.
    pub top: usize,
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
}

impl Region {
    /// Returns the region of a whole image.
    pub fn all(width: usize, height: usize) -> Self {
        Self { left: 0, top: 0, width, height }
    }

    /// Returns the middle of an image; an odd rest goes to the right and the bottom.
    pub fn middle([width, height]: [usize; 2], [inner_width, inner_height]: [usize; 2]) -> Self {
        let (left, top) = ((width - inner_width) / 2, (height - inner_height) / 2);
        Self { left, top, width: inner_width, height: inner_height }
    }

    /// Returns its size, [width, height].
    pub fn size(&self) -> [usize; 2] {
        [self.width, self.height]
    }

    /// Copies the region from the pixels [height, width, channels] of an image.
    pub fn cut(&self, pixels: &[u8], width: usize, channels: usize) -> Vec<u8> {
        let mut cut = Vec::with_capacity(self.width * self.height * channels);
        for row in pixels.chunks_exact(width * channels).skip(self.top).take(self.height) {
            cut.extend_from_slice(&row[self.left * channels..][..self.width * channels]);
        }
        cut
    }

    /// Returns the smallest region that contains all of `mask` [height, width] that is not black and `padding` pixels
    /// around it, with the proportions of `to = [width, height]` as far as the mask's size allows. `None` for a black
    /// mask.
    ///
    /// Source: `get_crop_region` of the image processor of diffusers.
    pub fn around(mask: &[u8], width: usize, padding: usize, to: [usize; 2]) -> Option<Self> {
        let height = mask.len() / width;
        let is_white = |value: &u8| *value > 0;
        let row = |y: usize| &mask[y * width..][..width];
        let top = (0..height).find(|&y| row(y).iter().any(is_white))?;
        let bottom = (0..height).rfind(|&y| row(y).iter().any(is_white))? + 1;
        let left = row_range(mask, width, |row| row.iter().position(is_white)).min()?;
        let right = row_range(mask, width, |row| row.iter().rposition(is_white)).max()? + 1;
        let (mut left, mut right) = (left.saturating_sub(padding), right.saturating_add(padding).min(width));
        let (mut top, mut bottom) = (top.saturating_sub(padding), bottom.saturating_add(padding).min(height));
        let ratio = to[0] as f64 / to[1] as f64;
        let (columns, rows) = ((right - left) as f64, (bottom - top) as f64);
        if columns / rows > ratio {
            (top, bottom) = widened(top, bottom, columns / ratio - rows, height);
        } else {
            (left, right) = widened(left, right, rows * ratio - columns, width);
        }
        Some(Self { left, top, width: right - left, height: bottom - top })
    }
}

fn row_range(mask: &[u8], width: usize, find: impl Fn(&[u8]) -> Option<usize>) -> impl Iterator<Item = usize> {
    mask.chunks_exact(width).filter_map(find)
}

/// Widens `start..end` by `missing`, half of it before the start, then moves and cuts it to be inside `0..size`.
fn widened(start: usize, end: usize, missing: f64, size: usize) -> (usize, usize) {
    // The cast truncates. Rounding may make 0 slightly negative, which becomes 0.
    let missing = missing as usize;
    let after = missing - missing / 2;
    let beyond = (end + after).saturating_sub(size);
    let start = start as i64 - (missing / 2) as i64 - beyond as i64;
    let end = end + after - beyond + start.min(0).unsigned_abs() as usize;
    (start.max(0) as usize, end.min(size))
}
