//! Image input: image files to the pixels that models read, and results back onto the originals.
//!
//! All of it runs on the host and is exact, so that every machine and device starts from the same values. Nothing here
//! knows a model or a device. Start with [`read`](read()) and [`Edit`].
//!
//! ```text
//! PNG, JPEG, WebP -> read -> Rgb, upright, 8 bits
//! Rgb             -> reference -> at most a megapixel, sides multiples of 16
//! Rgb, Mask       -> Edit -> image and cells for the model; result -> composite -> the original with what is new
//! ```

mod area;
pub mod bilinear;
mod canny;
mod decoded;
mod edit;
mod extend;
mod feather;
mod header;
mod heif;
mod jpeg_bits;
mod jpeg_file;
mod jpeg_scans;
mod jpeg_tables;
pub mod lanczos;
mod mask;
mod mask_file;
mod png_file;
mod read;
mod region;
mod resize;
mod size;
mod webp_file;

pub use canny::edges;
pub use edit::Edit;
pub use extend::Sides;
pub use header::Header;
pub use mask::{Grey, Mask};
pub use read::{
    MAX_FILE_BYTES, RgbAlpha, file_size, is_image, is_stdin, may_be_image, pixel_digest, read, read_alpha, read_bytes,
    read_file, read_over_white, read_stream, said_by, upright_size,
};
pub use region::Region;
pub use resize::Resize;
pub use size::{
    CELL, capped, check_reference, cropped, editing_size, in_cells, is_reduced, reference, reference_alone,
    reference_of_any_size, resized, resized_unless,
};
