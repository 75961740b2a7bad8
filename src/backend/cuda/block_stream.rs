//! Streaming of blocks: their weights use a few slabs of memory in turn.
//!
//! Each block always uses the same slab, so weights have fixed addresses, and kernels and launches don't depend on
//! streaming. The copy engine reads the weights from the registered pages of the mapped file, on its own stream: a copy
//! waits for the last work that reads the slab, and work waits for the copy of its weights. The host doesn't wait, so
//! the copy of a block overlaps the compute of the block before. If pages can't be registered, or are not registered
//! yet because blocks are seldom read, the calling thread copies them through staging buffers, after it has enqueued
//! the work of the block before.
//! work with the block before.

use std::sync::Arc;

use parking_lot::Mutex;

use super::Cuda;
use super::buffer::{Buffer, BufferKind};
use super::device::{Device, Stream};
use super::event::Event;
use super::slabs::Slabs;
use super::upload::{MappedFile, UploadSource};
use super::weight::Weight;
use crate::backend::{AccessFrequency, SLABS, SlabSchedule, slab_bytes, slab_of};
use crate::error::{Error, Result};

/// Weights in a slab begin at multiples of the driver's allocation alignment.
const ALIGNMENT: u64 = 256;

/// The streamed blocks of a component, and the sources of their weights.
#[derive(Default)]
pub struct BlockStream {
    slabs: Arc<Slabs>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    turns: SlabSchedule,
    /// By turn.
    blocks: Vec<Block>,
    /// Kept so that the files stay registered.
    files: Vec<Arc<MappedFile>>,
    /// Scratch memory for weights that are quantized on the device.
    scratch: Option<Buffer>,
    /// Events after the last work that reads each slab.
    read: [Option<Event>; SLABS],
    /// Events after the last copy to each slab.
    written: [Option<Event>; SLABS],
}

#[derive(Default)]
struct Block {
    /// Sources, with their byte offsets in the slab.
    weights: Vec<(UploadSource, u64)>,
    bytes: u64,
}

impl Block {
    /// Appends weights. Returns their offsets in the slab: one each, or one in total if they are columns of one matrix.
    fn push(&mut self, sources: Vec<UploadSource>) -> Vec<u64> {
        let (mut offsets, mut offset) = (Vec::new(), self.bytes.next_multiple_of(ALIGNMENT));
        for source in sources {
            if source.columns.is_none() {
                offset = self.bytes.next_multiple_of(ALIGNMENT);
            }
            self.bytes = self.bytes.max(offset) + source.bytes() as u64;
            self.weights.push((source, offset));
            offsets.push(offset);
        }
        offsets
    }
}

impl Cuda {
    /// See [`crate::backend::WeightStore::stream_weight`] and [`crate::backend::WeightStore::stream_summed_weights`].
    pub(super) fn stream_weights_op(
        &self,
        stream: &BlockStream,
        turn: usize,
        sources: Vec<UploadSource>,
    ) -> Result<Vec<Weight>> {
        if stream.slabs.are_made() {
            return Err(Error::new("a weight cannot join streamed blocks whose memory is already allocated"));
        }
        let weight = |source: &UploadSource| {
            let (form, stored, columns) = (source.form, source.stored.clone(), source.columns);
            move |offset: u64| {
                let scales = form.quantized_kind().zip(form.scales());
                let scales = scales.map(|(kind, scales)| (kind, offset + scales as u64));
                let slab = (Arc::clone(&stream.slabs), slab_of(turn));
                let weight = Weight::in_slab(slab, [form.rows, form.cols], offset, scales);
                weight.with_stored(stored).with_columns(columns)
            }
        };
        let weights: Vec<_> = sources.iter().map(weight).collect();
        let mut state = stream.state.lock();
        if state.blocks.len() <= turn {
            state.blocks.resize_with(turn + 1, Block::default);
        }
        let offsets = state.blocks[turn].push(sources);
        Ok(weights.into_iter().zip(offsets).map(|(weight, offset)| weight(offset)).collect())
    }

    /// See [`crate::backend::WeightStore::allocate_stream`].
    pub(super) fn allocate_stream_op(&self, stream: &BlockStream, passes: AccessFrequency) -> Result<()> {
        let mut state = stream.state.lock();
        let bytes = slab_bytes(state.blocks.iter().map(|block| block.bytes));
        let device = self.device();
        let slab = |bytes: u64| match usize::try_from(bytes) {
            Ok(0) => Ok(None),
            Ok(bytes) => Buffer::for_weights(device, device.block_stream, BufferKind::Byte, bytes).map(Some),
            Err(_) => Err(device.budget.full(bytes)),
        };
        let slabs = bytes.into_iter().map(slab).collect::<Result<Vec<_>>>()?;
        let slabs = slabs.try_into().unwrap_or_else(|_| unreachable!("one buffer per slab"));
        stream.slabs.set(slabs)?;
        let views = || state.blocks.iter().flat_map(|block| &block.weights).flat_map(|(source, _)| source.views());
        let files = self.0.uploader.files_of(views());
        if passes == AccessFrequency::Often {
            // Weights that will be read again are registered on their first read.
            views().for_each(|view| files.iter().filter(|file| file.is_of(view)).for_each(|file| file.mark_read(view)));
        }
        state.files = files;
        Ok(())
    }

    /// See [`crate::backend::WeightStore::enter_block`].
    pub(super) fn enter_block_op(&self, stream: &BlockStream, turn: usize) -> Result<()> {
        let (device, copies) = (self.device(), self.device().block_stream);
        let (mut state, slab) = (stream.state.lock(), slab_of(turn));
        let State { turns, blocks, scratch, read, written, .. } = &mut *state;
        if turns.needs_filling(turn) {
            let address = stream.slabs.address(slab);
            let block = blocks.get(turn).filter(|_| address != 0);
            let block = block.ok_or_else(|| Error::new(format!("streamed block {turn} does not exist")))?;
            turns.begin_filling(turn);
            if let Some(read) = &read[slab] {
                read.make_wait(copies)?;
            }
            // SAFETY: the slab is as large as its largest block, which was measured when its weights were added, and
            // lives with `stream`. Copies are ordered behind all work that reads it.
            unsafe { self.0.uploader.write(device, copies, &block.weights, address, scratch) }?;
            mark(device, &mut written[slab], copies)?;
            turns.filled(turn);
        }
        written[slab].as_ref().map_or(Ok(()), |written| written.make_wait(device.stream))
    }

    /// See [`crate::backend::WeightStore::leave_block`].
    pub(super) fn leave_block_op(&self, stream: &BlockStream, turn: usize) -> Result<()> {
        let device = self.device();
        mark(device, &mut stream.state.lock().read[slab_of(turn)], device.stream)
    }
}

/// Records an event after all work on `stream` so far; creates it the first time.
fn mark(device: &Arc<Device>, event: &mut Option<Event>, stream: Stream) -> Result<()> {
    match event {
        Some(event) => event.record(stream),
        None => {
            *event = Some(Event::new(device, stream)?);
            Ok(())
        }
    }
}
