//! Transfers: host values to the device, results to the host, and rows within the device.

use std::hint::black_box;
use std::ops::Range;

use cudarc::driver::{result, sys};
use rayon::prelude::*;

use super::buffer::{Buffer, BufferKind};
use super::destination::{Destination, empty_copy};
use super::device::Stream;
use super::driver::failed;
use super::element::Element;
use super::event::Event;
use super::gemm::Matrix;
use super::staging::{STAGING_BYTES, StagingBuffer};
use super::{Cuda, Tensor};
use crate::error::{Error, Result};
use crate::files::{Format, TensorView};

/// Staging buffers for values computed on the host: as many as an image uploads, so that no upload waits for another of
/// the same image.
pub const VALUE_BUFFERS: usize = 8;
/// Staging buffers for results: the host reads one while the others are filled.
pub const RESULT_BUFFERS: usize = 4;
/// Below this size the driver copies from any memory at once; for more it waits for the stream.
const SHORT_BYTES: usize = 64 << 10;
/// The smallest page size of the host's memory.
const PAGE_BYTES: usize = 4096;
/// Bytes that one thread touches or copies at a time: one thread copies at a tenth of the bus's speed.
const COPY_BYTES: usize = 256 << 10;

/// An image as bytes on the device.
pub struct Rgb8 {
    /// A byte for every value, followed by one that is set if a value was NaN.
    bytes: Buffer,
    values: usize,
    made: Event,
}

/// Dense activations on the device.
pub struct Download {
    values: Tensor<Cuda>,
    made: Event,
}

impl Cuda {
    /// Errors if this thread captures work. `what` can't be captured, because the host reads or writes its values
    /// immediately.
    pub(super) fn expect_no_capture(&self, what: &str) -> Result<()> {
        // With a submission no other thread captures.
        let _submission = self.device().submit(self.device().stream)?;
        if self.device().is_capturing() { Err(Error::new(format!("{what} cannot be captured"))) } else { Ok(()) }
    }

    /// Uploads host values as activations; a vector is padded with zeros to a multiple of 8, as weights are.
    pub(super) fn upload_op(&self, values: &[f32], rows: usize, cols: usize) -> Result<Tensor<Cuda>> {
        let padded_cols = if rows == 1 { cols.next_multiple_of(8) } else { cols };
        let element = self.element();
        let buffer = self.upload_rows(element.kind(), rows, padded_cols, |some, out| {
            let values = &values[some.start * cols..some.end * cols];
            out.iter_mut().zip(values).for_each(|(to, value)| *to = element.activation(*value));
            out[values.len()..].fill(0);
        })?;
        Ok(Tensor::from_buffer(self, buffer, rows, cols))
    }

    /// Uploads host values as float32.
    pub(super) fn upload_f32_op(&self, values: &[f32], rows: usize, cols: usize) -> Result<Tensor<Cuda>> {
        let buffer = self.upload_rows(BufferKind::F32, rows, cols, |some, out| {
            out.copy_from_slice(&values[some.start * cols..some.end * cols])
        })?;
        Ok(Tensor::from_buffer(self, buffer, rows, cols))
    }

    /// See [`crate::backend::Memory::upload_rgb8`].
    pub(super) fn upload_rgb8_op(&self, bytes: &[u8], height: usize, width: usize) -> Result<Tensor<Cuda>> {
        let row_bytes = 3 * width;
        let buffer = self.upload_rows(BufferKind::Byte, height, row_bytes, |some, out| {
            out.copy_from_slice(&bytes[some.start * row_bytes..some.end * row_bytes])
        })?;
        let pixels = self.empty(height * width, 3)?;
        let launch = self.launch("transfer", "from_rgb8")?.address(buffer.address()).vector(&pixels).long(bytes.len());
        // SAFETY: argument types and order match `from_rgb8` in cuda/transfer.cu; the buffer has the bytes, and
        // `pixels` is a dense tensor with a value for each of them.
        unsafe { launch.run([bytes.len().div_ceil(256).min(1 << 16), 1, 1], [256, 1, 1]) }?;
        Ok(pixels)
    }

    /// Concatenates rows `ids` of a table in the file.
    pub(super) fn embedding_op(&self, table: &TensorView, ids: &[usize]) -> Result<Tensor<Cuda>> {
        let cols = table.cols();
        let element = self.element();
        let buffer = self.upload_rows(element.kind(), ids.len(), cols, |some, out: &mut [u16]| {
            let ids = &ids[some];
            for (i, &id) in ids.iter().enumerate() {
                if i > 0 && ids[i - 1] == id {
                    // Most of a prompt is padding.
                    out.copy_within((i - 1) * cols..i * cols, i * cols);
                    continue;
                }
                let (row, out) = (table.row_range(id..id + 1), &mut out[i * cols..(i + 1) * cols]);
                match (row.format(), element) {
                    (Format::Bf16, Element::Bf16) => bytemuck::cast_slice_mut(out).copy_from_slice(row.bytes()),
                    _ => out.iter_mut().zip(row.to_f32()).for_each(|(to, value)| *to = element.activation(value)),
                }
            }
        })?;
        Ok(Tensor::from_buffer(self, buffer, ids.len(), cols))
    }

    /// Uploads rows of `cols` values that `write` fills, some rows at a time. Does not wait for earlier work, unless a
    /// row exceeds a staging buffer.
    fn upload_rows<T: bytemuck::Pod>(
        &self,
        kind: BufferKind,
        rows: usize,
        cols: usize,
        write: impl Fn(Range<usize>, &mut [T]),
    ) -> Result<Buffer> {
        let device = self.device();
        self.expect_no_capture("an upload")?;
        let buffer = Buffer::new(device, kind, rows * cols)?;
        let row_bytes = cols * size_of::<T>();
        if rows * row_bytes < SHORT_BYTES || row_bytes > STAGING_BYTES {
            let mut host = vec![T::zeroed(); rows * cols];
            write(0..rows, &mut host);
            if !host.is_empty() {
                let _submission = device.submit(device.stream)?;
                // SAFETY: the buffer has room for the values; the driver has read pageable memory when the call
                // returns.
                let copied = unsafe { result::memcpy_htod_async(buffer.address(), &host, device.stream.raw()) };
                copied.map_err(|e| failed("cannot copy to the GPU", e))?;
                device.counters.copies.add(1);
            }
            return Ok(buffer);
        }
        let mut staging = self.0.value_buffers.made(device)?;
        let rows_at_once = STAGING_BYTES / row_bytes;
        for first in (0..rows).step_by(rows_at_once) {
            let some = first..(first + rows_at_once).min(rows);
            let bytes = some.len() * row_bytes;
            staging.rotate_left(1);
            let staging = staging.back_mut().expect("`made` creates at least one");
            write(some, bytemuck::cast_slice_mut(&mut staging.bytes()?[..bytes]));
            let to = Destination::dense(buffer.address() + (first * row_bytes) as u64);
            // SAFETY: the buffer has `rows` rows, and is freed behind work on this stream.
            unsafe { staging.copy_to(device, bytes, to, device.stream) }?;
        }
        Ok(buffer)
    }

    /// See [`crate::backend::Memory::download`].
    pub(super) fn download_op(&self, x: &Tensor<Cuda>) -> Result<Vec<f32>> {
        let (address, rows, cols, stride) = (x.address(), x.rows(), x.cols(), x.stride());
        // SAFETY: x is a live tensor of these rows.
        unsafe {
            match x.buffer().kind() {
                BufferKind::F32 => self.download_values::<f32>(address, rows, cols, stride),
                BufferKind::Bf16 | BufferKind::F16 => {
                    let values = self.download_values::<u16>(address, rows, cols, stride)?;
                    Ok(values.into_iter().map(|bits| self.element().activation_value(bits)).collect())
                }
                BufferKind::E4m3 | BufferKind::Int8 { .. } => x.download_quantized(),
                BufferKind::W4a8 { .. } | BufferKind::Byte => Err(Error::new("bytes are not activations")),
            }
        }
    }

    /// See [`crate::backend::Memory::download_soon`].
    pub(super) fn download_soon_op(&self, x: Tensor<Cuda>) -> Result<Download> {
        self.expect_no_capture("a download")?;
        let values = if x.stride() == x.cols() {
            x
        } else {
            let dense = self.empty(x.rows(), x.cols())?;
            self.copy_cells(&x, &dense)?;
            dense
        };
        Ok(Download { values, made: Event::new(self.device(), self.device().stream)? })
    }

    /// See [`crate::backend::Memory::take_download`].
    pub(super) fn take_download_op(&self, Download { values, made }: Download) -> Result<Vec<f32>> {
        let stream = self.device().download_stream;
        made.make_wait(stream)?;
        // All copies are done when this returns, as in `take_rgb8_op`.
        // SAFETY: the tensor is dense, lives until this returns, and its values take two bytes each.
        let downloaded = unsafe { self.download_dense::<u16>(values.address(), values.rows() * values.cols(), stream) };
        let bits = downloaded.inspect_err(|_| {
            // SAFETY: the stream lives as long as the device. A failure here repeats one above.
            let _ = unsafe { result::stream::synchronize(stream.raw()) };
        })?;
        Ok(bits.into_iter().map(|bits| self.element().activation_value(bits)).collect())
    }

    /// Downloads rows of `cols` values of `T`, row by row from a matrix of any stride. Waits.
    ///
    /// # Safety
    /// The matrix is in a live buffer.
    pub(super) unsafe fn download_values<T: bytemuck::Pod>(
        &self,
        address: u64,
        rows: usize,
        cols: usize,
        stride: usize,
    ) -> Result<Vec<T>> {
        self.expect_no_capture("a download")?;
        if stride == cols && rows * cols * size_of::<T>() >= SHORT_BYTES {
            // SAFETY: as the caller promises; a dense matrix is one run of values.
            return unsafe { self.download_dense(address, rows * cols, self.device().stream) };
        }
        let device = self.device();
        let mut host = vec![T::zeroed(); rows * cols];
        if host.is_empty() {
            return Ok(host);
        }
        if self.group_rank().is_some() {
            // A copy to unpinned memory waits inside the driver, and other ranks in this GPU's context may need the
            // driver meanwhile to enqueue work that this copy waits for. An event waits outside the driver's lock.
            Event::new(device, device.stream)?.wait()?;
        }
        {
            let _submission = device.submit(device.stream)?;
            if stride == cols {
                // SAFETY: as the caller promises; `host` has this length, and is waited for below.
                unsafe { result::memcpy_dtoh_async(&mut host, address, device.stream.raw()) }
                    .map_err(|e| failed("cannot copy from the GPU", e))?;
            } else {
                // SAFETY: as above.
                unsafe { self.copy_to_host(&mut host, address, [rows, cols], stride) }?;
            }
            device.counters.copies.add(1);
        }
        // Wait without a submission, which would block other threads.
        let done = Event::new(device, device.stream).and_then(|event| event.wait());
        device.counters.waits.add(1);
        if done.is_err() {
            // On a failed device, the copy may still write there.
            std::mem::forget(std::mem::take(&mut host));
        }
        done.map(|()| host)
    }

    /// Downloads `len` values through staging buffers, by copies on `stream`. Waits.
    ///
    /// # Safety
    /// The values are in a live buffer, dense from `address` on.
    unsafe fn download_dense<T: bytemuck::Pod>(&self, address: u64, len: usize, stream: Stream) -> Result<Vec<T>> {
        let device = self.device();
        let bytes = len * size_of::<T>();
        let part = |index: usize| index * STAGING_BYTES..((index + 1) * STAGING_BYTES).min(bytes);
        // SAFETY: each part is within the values.
        let enqueue = |staging: &mut StagingBuffer, part: Range<usize>| unsafe {
            staging.copy_from(device, part.len(), address + part.start as u64, stream)
        };
        let mut staging = self.0.result_buffers.made(device)?;
        let (parts, ahead) = (bytes.div_ceil(STAGING_BYTES), staging.len());
        for (index, staging) in staging.iter_mut().enumerate().take(parts) {
            // Its last copy may have been on another stream.
            staging.bytes()?;
            enqueue(staging, part(index))?;
        }
        let mut host = vec![T::zeroed(); len];
        let host_bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut host);
        // The system allocates each page on the first write, which takes longer than the copy: touch the pages now,
        // while the device computes.
        host_bytes
            .par_chunks_mut(COPY_BYTES)
            .for_each(|part| part.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *black_box(byte) = 0));
        for index in 0..parts {
            let staging = &mut staging[index % ahead];
            let (to, from) = (&mut host_bytes[part(index)], staging.bytes()?);
            to.par_chunks_mut(COPY_BYTES)
                .zip(from.par_chunks(COPY_BYTES))
                .for_each(|(to, from)| to.copy_from_slice(&from[..to.len()]));
            if index + ahead < parts {
                enqueue(staging, part(index + ahead))?;
            }
        }
        device.counters.waits.add(1);
        Ok(host)
    }

    /// Zeroes a range of a buffer's bytes.
    ///
    /// Errors if the range exceeds the buffer.
    pub(super) fn clear(&self, buffer: &Buffer, bytes: Range<usize>) -> Result<()> {
        if bytes.end > buffer.bytes() {
            return Err(Error::new(format!("bytes {bytes:?} are outside a buffer of {}", buffer.bytes())));
        }
        let device = self.device();
        let _submission = device.submit(device.stream)?;
        let address = buffer.address() + bytes.start as u64;
        // SAFETY: the buffer has the bytes.
        unsafe { result::memset_d8_async(address, 0, bytes.len(), device.stream.raw()) }
            .map_err(|e| failed("cannot clear GPU memory", e))
    }

    /// See [`crate::backend::Memory::rgb8`].
    pub(super) fn rgb8_op(&self, x: &Tensor<Cuda>) -> Result<Rgb8> {
        self.expect_no_capture("an image download")?;
        let values = x.rows() * x.cols();
        let (device, bytes) = (self.device(), Buffer::new(self.device(), BufferKind::Byte, values + 1)?);
        self.clear(&bytes, values..values + 1)?;
        let launch = self.launch("transfer", "to_rgb8")?.matrix(x).address(bytes.address()).int(x.rows()).int(x.cols());
        // SAFETY: argument types and order match `to_rgb8` in cuda/transfer.cu; `bytes` has a byte for every cell of x,
        // and one more.
        unsafe { launch.run([values.div_ceil(256).min(1 << 16), 1, 1], [256, 1, 1]) }?;
        Ok(Rgb8 { bytes, values, made: Event::new(device, device.stream)? })
    }

    /// See [`crate::backend::Memory::take_rgb8`].
    pub(super) fn take_rgb8_op(&self, Rgb8 { bytes, values, made }: Rgb8) -> Result<Vec<u8>> {
        let stream = self.device().download_stream;
        made.make_wait(stream)?;
        // All copies are done when this returns, so `bytes` may be dropped; its free is ordered only by the compute
        // stream.
        // SAFETY: `bytes` has one byte more than values.
        let downloaded = unsafe { self.download_dense::<u8>(bytes.address(), values + 1, stream) };
        let mut host = downloaded.inspect_err(|_| {
            // SAFETY: the stream lives as long as the device. A failure here repeats one above.
            let _ = unsafe { result::stream::synchronize(stream.raw()) };
        })?;
        if host.pop() == Some(0) { Ok(host) } else { Err(crate::backend::not_a_number()) }
    }

    /// # Safety
    /// The matrix is in a live buffer, and `host` stays until the copy is done.
    unsafe fn copy_to_host<T>(
        &self,
        host: &mut [T],
        address: u64,
        [rows, cols]: [usize; 2],
        stride: usize,
    ) -> Result<()> {
        let width = cols * size_of::<T>();
        let copy = sys::CUDA_MEMCPY2D {
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcDevice: address,
            srcPitch: stride * size_of::<T>(),
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
            dstHost: host.as_mut_ptr().cast(),
            dstPitch: width,
            WidthInBytes: width,
            Height: rows,
            ..empty_copy()
        };
        // SAFETY: as the caller promises.
        unsafe { self.copy_2d(&copy) }
    }

    /// Copies `from` to the cells of `to`, of equal shape, both activations.
    pub(super) fn copy_cells(&self, from: &Tensor<Cuda>, to: &Tensor<Cuda>) -> Result<()> {
        let shapes = [from, to].map(|x| (x.rows(), x.cols(), x.buffer().kind()));
        if shapes[0] != shapes[1] || !from.is_activation() {
            return Err(Error::new(format!("cannot copy {:?} to {:?}", shapes[0], shapes[1])));
        }
        let (own, other) = (Matrix::new(from), Matrix::new(to));
        // SAFETY: both are live tensors of one shape. Callers copy to tensors that they allocated.
        unsafe {
            if from.buffer().is_on_host() || to.buffer().is_on_host() {
                return self.copy_host_rows(own, other, [from.rows(), from.cols()]);
            }
            self.copy_rows(own.address, own.stride, other.address, other.stride, from.rows(), from.cols())
        }
    }

    /// Copies rows of 16-bit values on the device.
    ///
    /// # Safety
    /// Both matrices are in live buffers and do not overlap.
    pub(super) unsafe fn copy_rows(
        &self,
        from: u64,
        from_stride: usize,
        to: u64,
        to_stride: usize,
        rows: usize,
        cols: usize,
    ) -> Result<()> {
        let place = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE;
        // SAFETY: as the caller promises.
        unsafe { self.copy_rows_in(place, [from, to], [from_stride, to_stride], [rows, cols]) }
    }

    /// Copies rows of 16-bit values between the device and host memory.
    ///
    /// # Safety
    /// Both matrices are in live buffers and do not overlap.
    pub(super) unsafe fn copy_host_rows(&self, from: Matrix, to: Matrix, shape: [usize; 2]) -> Result<()> {
        // The driver finds out by the addresses where the memory is.
        let place = sys::CUmemorytype::CU_MEMORYTYPE_UNIFIED;
        // SAFETY: as the caller promises.
        unsafe { self.copy_rows_in(place, [from.address, to.address], [from.stride, to.stride], shape) }
    }

    /// # Safety
    /// As [`Cuda::copy_rows`], with memory in `place`.
    unsafe fn copy_rows_in(
        &self,
        place: sys::CUmemorytype,
        [from, to]: [u64; 2],
        [from_stride, to_stride]: [usize; 2],
        [rows, cols]: [usize; 2],
    ) -> Result<()> {
        if rows == 0 || cols == 0 {
            return Ok(());
        }
        let device = self.device();
        let _submission = device.submit(device.stream)?;
        if rows == 1 || (from_stride == cols && to_stride == cols) {
            let (bytes, stream) = (rows * cols * 2, device.stream.raw());
            // SAFETY: as the caller promises.
            let copied = unsafe {
                match place {
                    sys::CUmemorytype::CU_MEMORYTYPE_DEVICE => result::memcpy_dtod_async(to, from, bytes, stream),
                    _ => sys::cuMemcpyAsync(to, from, bytes, stream).result(),
                }
            };
            copied.map_err(|e| failed("cannot copy GPU memory", e))?;
        } else {
            let copy = sys::CUDA_MEMCPY2D {
                srcMemoryType: place,
                srcDevice: from,
                srcPitch: from_stride * 2,
                dstMemoryType: place,
                dstDevice: to,
                dstPitch: to_stride * 2,
                WidthInBytes: cols * 2,
                Height: rows,
                ..empty_copy()
            };
            // SAFETY: as the caller promises.
            unsafe { self.copy_2d(&copy) }?;
        }
        device.counters.launches.add(1);
        Ok(())
    }

    /// # Safety
    /// `copy` is between ranges of live buffers, and of host memory that stays until it is done. The caller has a
    /// submission.
    unsafe fn copy_2d(&self, copy: &sys::CUDA_MEMCPY2D) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { sys::cuMemcpy2DAsync_v2(copy, self.device().stream.raw()) }
            .result()
            .map_err(|e| failed("cannot copy GPU memory", e))
    }
}
