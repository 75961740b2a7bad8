//! What has to be sent to the device for a weight.

use std::sync::Arc;

use super::loaded::{CopyOfWeight, Made};
use crate::backend::cuda::buffer::Buffer;
use crate::backend::cuda::destination::Destination;
use crate::backend::cuda::device::{Device, Stream};
use crate::backend::cuda::element::Element;
use crate::backend::cuda::staging::STAGING_BYTES;
use crate::error::{Error, Result};
use crate::files::{Format, TensorView};

/// Weights whose memory is there and whose values are not, which come by work on one stream.
pub struct Queue {
    pub stream: Stream,
    /// What weights are in.
    element: Element,
    pub jobs: Vec<UploadJob>,
    /// Memory that jobs need until they are done.
    pub temporaries: Vec<Buffer>,
    /// Weights that come from another GPU.
    pub copies: Vec<CopyOfWeight>,
    /// Weights that other GPUs may copy once all of this is there.
    pub made: Vec<Made>,
}

/// The values of a tensor, as products read them or as they are in the file, dense, to the device; then, of some, to
/// their places in a padded or reordered weight.
pub struct UploadJob {
    pub view: TensorView,
    /// None where the device takes the values as they are in the file.
    pub conversion: Option<Conversion>,
    /// Whether bf16 becomes fp16 when it is there.
    pub narrows: bool,
    pub to: Destination,
    pub place: Option<CopyTarget>,
}

/// Which values are rounded to what products read, and where.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Conversion {
    /// By a kernel on the device.
    F16,
    /// By a kernel on the device.
    F32,
    /// By the thread that copies them. A job has no more rows than a staging buffer holds.
    Dequantise,
}

/// `to` [to_rows, stride] takes [rows, channels, taps], columns ordered (tap, channel), zeros elsewhere.
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
            _ => (Some(Conversion::Dequantise), false),
        };
        Self { view: view.clone(), conversion, narrows, to: Destination::dense(to), place }
    }

    /// Bytes as they are in the file, whatever they mean.
    pub fn raw(view: &TensorView, to: Destination) -> Self {
        Self { view: view.clone(), conversion: None, narrows: false, to, place: None }
    }

    /// What is to be done when the values are there, by work on `stream`.
    pub fn finish(&self, device: &Device, stream: Stream) -> Result<()> {
        let to = self.to.address();
        if self.narrows {
            let values = self.view.elements();
            let launch = device.launch("transfer", "from_bf16")?.on(stream).address(to).address(to);
            // SAFETY: types and order match `from_bf16` in cuda/transfer.cu, which reads each value before it writes
            // it; the job's memory has as many values of 16 bits.
            unsafe { launch.long(values).run([values.div_ceil(256).min(4096), 1, 1], [256, 1, 1]) }?;
        }
        self.place.as_ref().map_or(Ok(()), |place| place.launch(device, stream, to))
    }
}

impl Conversion {
    /// Bytes of a value that a staging buffer takes.
    pub fn size(self) -> usize {
        match self {
            Self::F16 | Self::Dequantise => 2,
            Self::F32 => 4,
        }
    }

    /// What rounds the values on the device, if they are not yet when they come there.
    pub fn kernel(self) -> Option<&'static str> {
        match self {
            Self::F16 => Some("from_f16"),
            Self::F32 => Some("from_f32"),
            Self::Dequantise => None,
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

    /// Takes up all of another queue.
    pub fn append(&mut self, mut other: Self) {
        self.jobs.append(&mut other.jobs);
        self.temporaries.append(&mut other.temporaries);
        self.copies.append(&mut other.copies);
        self.made.append(&mut other.made);
    }

    /// The values of a tensor, which are as products read them at `to`, and then go to their place, if they have
    /// another one.
    ///
    /// Errors when a row of a quantised tensor does not fit a staging buffer.
    pub fn push(&mut self, view: &TensorView, to: u64, mut place: Option<CopyTarget>) -> Result<()> {
        if UploadJob::new(self.element, view, to, None).conversion != Some(Conversion::Dequantise) {
            self.jobs.push(UploadJob::new(self.element, view, to, place));
            return Ok(());
        }
        let row_bytes = view.cols() * Element::BYTES;
        let rows_at_once = STAGING_BYTES / row_bytes.max(1);
        if rows_at_once == 0 {
            return Err(Error::new(format!(
                "a weight of rows of {} values is too wide to be dequantised",
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

    /// A job that goes through dense memory of its own.
    pub fn push_dense(&mut self, device: &Arc<Device>, view: &TensorView, place: CopyTarget) -> Result<()> {
        let dense = Buffer::on_stream(device, self.stream, self.element.kind(), view.elements())?;
        self.push(view, dense.address(), Some(place))?;
        self.temporaries.push(dense);
        Ok(())
    }
}

impl CopyTarget {
    /// By work on `stream`.
    pub fn launch(&self, device: &Device, stream: Stream, from: u64) -> Result<()> {
        let [rows, channels, taps] = self.from;
        let launch = device.launch("transfer", "place_weight")?.on(stream).address(from).address(self.to);
        let launch = launch.int(rows).int(channels).int(taps).int(self.to_rows).long(self.stride);
        // SAFETY: types and order match `place_weight` in cuda/transfer.cu; `from` holds rows * channels * taps values,
        // and `to` has room for to_rows * stride.
        unsafe { launch.run([(self.to_rows * self.stride).div_ceil(256).min(1 << 16), 1, 1], [256, 1, 1]) }
    }
}

/// What `bytes` of a file take on the device.
pub fn bytes_on_device(conversion: Option<Conversion>, bytes: usize) -> usize {
    conversion.map_or(bytes, |conversion| bytes / conversion.size() * Element::BYTES)
}
