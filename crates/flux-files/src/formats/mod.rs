//! Number formats: how the values of a tensor are stored in bytes, and how they are quantized.
//!
//! Nothing here knows a container. Start with the table in [`format`](mod@format).

pub(crate) mod blocks;
pub(crate) mod dequantize;
pub mod e4m3;
pub(crate) mod format;
pub mod int8;
pub mod quantize;
pub(crate) mod scales;
pub(crate) mod tensor_view;
pub(crate) mod values;
pub mod w4a8;
