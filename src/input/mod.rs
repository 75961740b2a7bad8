//! From image files to the pixels that models read, and back onto the originals: on the host and exact, so that every
//! machine and device starts from the same values.
//!
//! ```text
//! PNG, JPEG, WebP -> read -> Rgb, upright, 8 bits
//! Rgb             -> reference -> at most a megapixel, sides multiples of 16
//! ```

mod jpeg_file;
pub mod lanczos;
mod mask;
mod png_file;
mod read;
mod region;
mod size;
mod webp_file;

pub use mask::{Grey, Mask};
pub use read::{MAX_FILE_BYTES, read, read_bytes, read_from};
pub use region::Region;
pub use size::{editing_size, reference, resized};
