//! The jobs to upload a weight.

use std::sync::Arc;

use super::loaded::{CopyOfWeight, Made};
use crate::backend::cuda::buffer::Buffer;
use crate::backend::cuda::destination::Destination;
use crate::backend::cuda::device::{Device, Stream};
use crate::backend::cuda::element::Element;
use crate::backend::cuda::staging::STAGING_BYTES;
use crate::error::{Error, Result};
use crate::files::{Format, TensorView};

/// Jobs for weights with allocated memory, which work on one stream fills.
pub struct Queue {
    pub stream: Stream,
    /// The type of 16-bit weights.
    element: Element,
    pub jobs: Vec<UploadJob>,
    /// Memory that jobs need until they are done.
    pub temporaries: Vec<Buffer>,
    /// Weights to copy from another GPU.
    pub copies: Vec<CopyOfWeight>,
    /// Weights that other GPUs may copy once all of this queue is done.
    pub made: Vec<Made>,
}

/// An upload of the values of a tensor, converted for matrix multiplications or as in the file, dense; some are then
/// moved to a padded or reordered weight.
pub struct UploadJob {
    pub view: TensorView,
    /// `None` if the device gets the values as in the file.
    pub conversion: Option<Conversion>,
    /// `true` if bf16 is converted to fp16 on the device.
    pub narrows: bool,
    pub to: Destination,
    pub place: Option<CopyTarget>,
}

/// A conversion to the type of matrix multiplications.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Conversion {
    /// From fp16, by a kernel on the device.
    F16,
    /// From float32, by a kernel on the device.
    F32,
    /// By the thread that copies them. A job has no more rows than a staging buffer holds.
    Dequantize,
}

/// The destination `to` [to_rows, stride] of [rows, channels, taps], with columns ordered (tap, channel) and zeros
/// elsewhere.
pub struct CopyTarget {
    pub to: u64,
    pub from: [usize; 3],
    pub to_rows: usize,
    pub stride: usize,
}

impl UploadJob {
    pub fn new(element: Element, view: &TensorView, to: u64, place: Option<CopyTarget>) -> Self {
        let (conversion, narrows) = match (view.format(), element) {
            (Format::E4m3Rows, _) | (Format::Bf16, Element::Bf16) | (Format::F16, Element::F16) => (None, false),
            (Format::Bf16, Element::F16) => (None, true),
            (Format::F16, Element::Bf16) => (Some(Conversion::F16), false),
            (Format::F32, _) => (Some(Conversion::F32), false),
            _ => (Some(Conversion::Dequantize), false),
        };
        Self { view: view.clone(), conversion, narrows, to: Destination::dense(to), place }
    }

    /// Returns an upload of bytes as in the file, whatever their format.
    pub fn raw(view: &TensorView, to: Destination) -> Self {
        Self { view: view.clone(), conversion: None, narrows: false, to, place: None }
    }

    /// Enqueues the remaining work on `stream` after the values have arrived.
    pub fn finish(&self, device: &Device, stream: Stream) -> Result<()> {
        let to = self.to.address();
        if self.narrows {
            let values = self.view.elements();
            let launch = device.launch("transfer", "from_bf16")?.on(stream).address(to).address(to);
            // SAFETY: types and order match `from_bf16` in cuda/transfer.cu, which reads each value before it writes
            // it; the job's memory has as many 16-bit values.
            unsafe { launch.long(values).run([values.div_ceil(256).min(4096), 1, 1], [256, 1, 1]) }?;
        }
        self.place.as_ref().map_or(Ok(()), |place| place.launch(device, stream, to))
    }
}

impl Conversion {
    /// Returns the bytes of a value in a staging buffer.
    pub fn size(self) -> usize {
        match self {
            Self::F16 | Self::Dequantize => 2,
            Self::F32 => 4,
        }
    }

    /// Returns the kernel that converts the values on the device, if one is needed.
    pub fn kernel(self) -> Option<&'static str> {
        match self {
            Self::F16 => Some("from_f16"),
            Self::F32 => Some("from_f32"),
            Self::Dequantize => None,
        }
    }
}

impl Queue {
    pub fn new(device: &Device, stream: Stream) -> Self {
        Self {
            stream,
            element: device.element(),
            jobs: Vec::new(),
            temporaries: Vec::new(),
            copies: Vec::new(),
            made: Vec::new(),
        }
    }

    /// Appends another queue.
    pub fn append(&mut self, mut other: Self) {
        self.jobs.append(&mut other.jobs);
        self.temporaries.append(&mut other.temporaries);
        self.copies.append(&mut other.copies);
        self.made.append(&mut other.made);
    }

    /// Adds an upload of the values of a tensor to `to`, converted for matrix multiplications, and their move to their
    /// place, if they have another one.
    ///
    /// Errors if a row of a quantized tensor does not fit a staging buffer.
    pub fn push(&mut self, view: &TensorView, to: u64, mut place: Option<CopyTarget>) -> Result<()> {
        if UploadJob::new(self.element, view, to, None).conversion != Some(Conversion::Dequantize) {
            self.jobs.push(UploadJob::new(self.element, view, to, place));
            return Ok(());
        }
        let row_bytes = view.cols() * Element::BYTES;
        let rows_at_once = STAGING_BYTES / row_bytes.max(1);
        if rows_at_once == 0 {
            return Err(Error::new(format!(
                "a weight with rows of {} values is too wide to be dequantized",
                view.cols()
            )));
        }
        for first in (0..view.rows()).step_by(rows_at_once) {
            let rows = first..(first + rows_at_once).min(view.rows());
            self.jobs.push(UploadJob::new(
                self.element,
                &view.row_range(rows),
                to + (first * row_bytes) as u64,
                place.take(),
            ));
        }
        Ok(())
    }

    /// Adds an upload through dense memory of its own.
    pub fn push_dense(&mut self, device: &Arc<Device>, view: &TensorView, place: CopyTarget) -> Result<()> {
        let dense = Buffer::on_stream(device, self.stream, self.element.kind(), view.elements())?;
        self.push(view, dense.address(), Some(place))?;
        self.temporaries.push(dense);
        Ok(())
    }
}

impl CopyTarget {
    /// Enqueues the move on `stream`.
    pub fn launch(&self, device: &Device, stream: Stream, from: u64) -> Result<()> {
        let [rows, channels, taps] = self.from;
        let launch = device.launch("transfer", "place_weight")?.on(stream).address(from).address(self.to);
        let launch = launch.int(rows).int(channels).int(taps).int(self.to_rows).long(self.stride);
        // SAFETY: types and order match `place_weight` in cuda/transfer.cu; `from` holds rows * channels * taps values,
        // and `to` has room for to_rows * stride.
        unsafe { launch.run([(self.to_rows * self.stride).div_ceil(256).min(1 << 16), 1, 1], [256, 1, 1]) }
    }
}

/// Returns the bytes on the device for `bytes` of a file.
pub fn bytes_on_device(conversion: Option<Conversion>, bytes: usize) -> usize {
    conversion.map_or(bytes, |conversion| bytes / conversion.size() * Element::BYTES)
}
