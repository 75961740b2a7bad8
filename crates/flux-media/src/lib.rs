//! Images before and after a model: files, masks, metadata, video, comparison and contact sheets.
//!
//! This crate knows no model and no device. Every image is an [`Rgb`]: [`input`] reads image files and masks and lays
//! results over an edited image, [`output`] writes files with their [`metadata`], [`video`] reads and writes frames,
//! [`alpha`] removes plain backgrounds, [`compare`] measures how far two images are apart, and [`sheet`] arranges many
//! with [`lettering`] below them. Start with [`input::Edit`].

#![warn(missing_docs)]

pub mod alpha;
pub mod compare;
pub mod input;
pub mod lettering;
pub mod metadata;
pub mod output;
pub mod rgb;
pub mod sheet;
pub mod video;

pub use rgb::Rgb;
