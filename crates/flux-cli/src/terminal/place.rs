//! The size of an image on a terminal.

/// Maximum number of rows without another limit, because a narrow image scaled to a large width would exhaust memory.
const MAX_ROWS: usize = 512;

/// A size in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cells {
    pub columns: usize,
    pub rows: usize,
}

/// The known size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Maximum number of columns of an image.
    pub columns: usize,
    /// Maximum number of rows; [`MAX_ROWS`] if `None`.
    pub rows: Option<usize>,
    /// Width and height of a character in pixels.
    pub cell: [usize; 2],
}

/// The place of an image: the characters that it covers, and the pixels to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    pub cells: Cells,
    pub pixels: [usize; 2],
}

impl Room {
    /// Returns the size of an image of `image = [width, height]` pixels: its own size, or `columns` wide if given,
    /// limited to the room. The aspect ratio is kept to within a row.
    pub fn place(&self, image: [usize; 2], columns: Option<usize>) -> Placed {
        let [width, height] = image;
        let wanted = columns.map_or(width, |columns| columns * self.cell[0]).max(1);
        let mut pixels = scaled(image, wanted.min(self.columns.max(1) * self.cell[0]));
        let most_high = self.rows.unwrap_or(MAX_ROWS).max(1) * self.cell[1];
        if pixels[1] > most_high {
            pixels = [(width * most_high / height.max(1)).max(1), most_high];
        }
        let [columns, rows] = [0, 1].map(|side| pixels[side].div_ceil(self.cell[side]));
        Placed { cells: Cells { columns, rows }, pixels }
    }
}

/// Returns the image's size scaled to a width.
fn scaled([width, height]: [usize; 2], to: usize) -> [usize; 2] {
    [to, ((height * to + width / 2) / width.max(1)).max(1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Room = Room { columns: 80, rows: Some(23), cell: [10, 20] };

    fn placed(image: [usize; 2], columns: Option<usize>) -> (usize, usize, [usize; 2]) {
        let Placed { cells, pixels } = ROOM.place(image, columns);
        (cells.columns, cells.rows, pixels)
    }

    #[test]
    fn an_image_has_its_size_where_there_is_room() {
        assert_eq!(placed([256, 256], None), (26, 13, [256, 256]));
        assert_eq!(placed([1, 1], None), (1, 1, [1, 1]));
        assert_eq!(placed([256, 256], Some(10)), (10, 5, [100, 100]));
        assert_eq!(placed([64, 64], Some(40)), (40, 20, [400, 400]));
    }

    #[test]
    fn no_image_is_larger_than_the_room() {
        assert_eq!(placed([1024, 512], None), (80, 20, [800, 400]));
        assert_eq!(placed([1024, 1024], None), (46, 23, [460, 460]));
        assert_eq!(placed([64, 64], Some(1000)), (46, 23, [460, 460]));
        assert_eq!(placed([1, 16384], None), (1, 23, [1, 460]));
        assert_eq!(placed([16384, 1], None), (80, 1, [800, 1]));
        assert_eq!(Room { rows: None, ..ROOM }.place([100, 5000], None).cells, Cells { columns: 10, rows: 250 });
        for (image, columns) in [([1, 16384], 1000), ([16384, 16384], 1000), ([1000, 16384], 80)] {
            let Placed { cells, pixels } = Room { columns, rows: None, ..ROOM }.place(image, Some(columns));
            assert!(cells.rows <= MAX_ROWS && cells.columns <= columns && !pixels.contains(&0), "{image:?}: {cells:?}");
        }
    }
}
