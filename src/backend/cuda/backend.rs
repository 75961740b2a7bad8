//! [`Backend`](crate::backend::Backend) on the GPU: every op calls the launcher of its name.

use std::sync::Arc;
use std::time::Duration;

use super::buffer::BufferKind;
use super::element::Element;
use super::ops::quantize;
use super::transfer::{Download, Rgb8};
use super::upload::UploadSource;
use super::{
    AttentionPrecision, BlockStream, Buffer, ChannelStatistics, ConvWeight, Cuda, Event, Graph, Precision, Uploads,
    Weight, kernels, resident,
};
use crate::backend::member::Member;
use crate::backend::{
    AccessFrequency, Bands, Costs, Device, Group, Memory, Ops, Participants, Remark, Reservations, Stats, Storage,
    WeightStore, expect_rgb8, wrong_length,
};
use crate::error::Result;
use crate::files::TensorView;
use crate::nn::{Linear, LowRank, Operand};
use crate::ops::{
    self, Adaln, Attended, Attention, Conv2d, Convolved, DenseBlock, GatedAddAdaln, GroupNorm, Halo, Heads,
    InpaintBlend, LinearArgs, Norm, Patches, PixelShuffle, Products, Projection, QkNormRope, Rope, RowSplit,
    TokenLayout, TokenSplit,
};
use crate::tensor::{Dtype, Tensor};

/// Implements methods of a trait by methods of [`Cuda`].
macro_rules! forward {
    ($(fn $name:ident = $op:ident($($arg:ident: $kind:ty),*) -> $out:ty;)*) => {
        $(fn $name(&self, $($arg: $kind),*) -> $out {
            self.$op($($arg),*)
        })*
    };
}

impl Memory for Cuda {
    type Buffer = Buffer;
    type Rgb8 = Rgb8;
    type Download = Download;

    fn dtype(buffer: &Buffer) -> Dtype {
        match buffer.kind() {
            BufferKind::Bf16 => Dtype::Bf16,
            BufferKind::F16 => Dtype::F16,
            BufferKind::F32 => Dtype::F32,
            BufferKind::E4m3 => Dtype::E4m3,
            BufferKind::Int8 { .. } => Dtype::Int8,
            // Tensors never view such a buffer.
            BufferKind::W4a8 { .. } => Dtype::U8,
            BufferKind::Byte => Dtype::U8,
        }
    }

    fn activation_dtype(&self) -> Dtype {
        match self.element() {
            Element::Bf16 => Dtype::Bf16,
            Element::F16 => Dtype::F16,
        }
    }

    fn is_same_device(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn describe(&self) -> String {
        let capability = self.device().capability_name();
        let element = self.element().name();
        let products = match self.0.products {
            Precision::Bf16 => element.to_string(),
            Precision::Fp8 => format!("fp8 and {element}"),
            Precision::Int8 => format!("int8 and {element}"),
            Precision::W4a8 => format!("w4a8 and {element}"),
        };
        let attention = match self.attention_precision() {
            AttentionPrecision::Bf16 => "",
            AttentionPrecision::Fp8 => ", attention in fp8",
            AttentionPrecision::Int8 => ", attention in int8",
        };
        let rank = self.group_rank().map_or(String::new(), |rank| format!(" {:?}", rank.member));
        format!("{}{rank} (CUDA, {capability}, {products}{attention})", self.device().name())
    }

    fn available_bytes(&self) -> u64 {
        self.device().budget.available()
    }

    fn device_bytes(&self) -> u64 {
        self.device().free_bytes().unwrap_or(u64::MAX)
    }

    fn reservations(&self) -> (Arc<Reservations>, usize) {
        let device = self.device();
        (Reservations::for_device(("cuda", device.ordinal())), Arc::as_ptr(device).addr())
    }

    fn upload(&self, values: &[f32], rows: usize, cols: usize) -> Result<Tensor<Self>> {
        expect_values(values, rows, cols)?;
        self.upload_op(values, rows, cols)
    }

    fn upload_f32(&self, values: &[f32], rows: usize, cols: usize) -> Result<Tensor<Self>> {
        expect_values(values, rows, cols)?;
        self.upload_f32_op(values, rows, cols)
    }

    fn download(&self, x: &Tensor<Self>) -> Result<Vec<f32>> {
        let values = self.download_op(x)?;
        self.check_group("download")?;
        Ok(values)
    }

    fn take_download(&self, download: Download) -> Result<Vec<f32>> {
        let values = self.take_download_op(download)?;
        self.check_group("take_download")?;
        Ok(values)
    }

    fn upload_rgb8(&self, bytes: &[u8], height: usize, width: usize) -> Result<Tensor<Self>> {
        expect_rgb8(bytes, height, width)?;
        self.upload_rgb8_op(bytes, height, width)
    }

    fn take_rgb8(&self, rgb: Rgb8) -> Result<Vec<u8>> {
        let bytes = self.take_rgb8_op(rgb);
        // Results after ended collectives may even be NaN.
        self.check_group("take_rgb8")?;
        bytes
    }

    forward! {
        fn download_soon = download_soon_op(x: Tensor<Self>) -> Result<Download>;
        fn rgb8 = rgb8_op(x: &Tensor<Self>) -> Result<Rgb8>;
    }
}

impl Device for Cuda {
    type Event = Event;
    type Graph = Graph;

    fn stats(&self) -> Stats {
        let (budget, counters) = (&self.device().budget, &self.device().counters);
        Stats {
            memory_bytes: budget.used(),
            peak_memory_bytes: budget.peak(),
            launches: counters.launches.get(),
            waits: counters.waits.get(),
            copies: counters.copies.get(),
            allocations: counters.allocations.get(),
            composed: counters.composed.get(),
            graph_launches: counters.graph_launches.get(),
            uncaptured: counters.uncaptured.get(),
        }
    }

    fn costs(&self) -> Costs {
        let products = match self.0.products {
            Precision::Bf16 => Storage::Native,
            Precision::Fp8 => Storage::Fp8,
            Precision::Int8 => Storage::Int8,
            Precision::W4a8 => Storage::W4a8,
        };
        Costs::gpu(products, self.copies_im2col(), self.world())
    }

    fn use_bands(&self, bands: Bands) {
        self.limit_bands(bands.bytes());
    }

    fn with_max_resident<T>(&self, bytes: u64, work: impl FnOnce() -> T) -> T {
        resident::with_max(bytes, work)
    }

    fn host_bytes(&self) -> u64 {
        self.device().host_blocks.lock().bytes()
    }

    fn event(&self) -> Result<Event> {
        Event::new(self.device(), self.device().stream)
    }

    fn is_done(&self, event: &Event) -> Result<bool> {
        event.is_done()
    }

    fn wait(&self, event: &Event) -> Result<()> {
        self.device().counters.waits.add(1);
        event.wait()?;
        self.check_group("wait")
    }

    fn elapsed(&self, from: &Event, to: &Event) -> Result<Duration> {
        from.elapsed(to)
    }

    fn warm_up(&self) -> Result<()> {
        self.gemm()?.warm_up()?;
        for buffers in [&self.0.value_buffers, &self.0.result_buffers] {
            drop(buffers.made(self.device())?);
        }
        // Missing kernels for this GPU are an error only when they are used.
        kernels::files(self.element()).for_each(|file| drop(self.device().load_kernels(file)));
        Ok(())
    }

    fn remarks(&self) -> Vec<Remark> {
        let copied = self.0.uploader.copied().map(Remark::Detail);
        let slow_uploads = self.0.uploader.registered().remark().map(Remark::Detail);
        let uncaptured = self.0.uncaptured.lock().clone().map(Remark::Warning);
        let slow_host = self.0.uploader.slow_host().map(Remark::Warning);
        let saturation = self.saturation().unwrap_or_else(|error| Some(error.what().to_string())).map(Remark::Warning);
        let note = self.note().map(Remark::Detail);
        let first = self.group_rank().filter(|rank| rank.member.rank() == 0);
        let slow_link = first.and_then(|rank| rank.note()).map(Remark::Warning);
        [copied, slow_uploads, slow_host, slow_link, saturation, note, uncaptured].into_iter().flatten().collect()
    }

    fn multiply_alone(&self, storage: Storage, steps: usize) -> Result<Option<u64>> {
        self.multiply_alone_op(storage, steps)
    }

    fn run_graph<R: Send + Sync + 'static, const N: usize>(
        &self,
        graph: &mut Graph,
        doers: Participants,
        reads: &Arc<R>,
        inputs: [&Tensor<Self>; N],
        work: impl Fn(&R, [&Tensor<Self>; N]) -> Result<Tensor<Self>>,
    ) -> Result<Tensor<Self>> {
        self.run_graph_op(graph, doers, reads, inputs, work)
    }
}

impl Group for Cuda {
    fn member(&self) -> Option<&Member> {
        self.group_rank().map(|rank| &rank.member)
    }

    fn exchange(&self, op: &'static str, sent: Vec<Vec<Tensor<Self>>>) -> Result<Vec<Vec<Tensor<Self>>>> {
        if self.world() == 1 { Ok(sent) } else { self.exchange_op(op, &sent) }
    }

    fn restore_collectives(&self) -> Result<()> {
        self.group_rank().map_or(Ok(()), |rank| rank.restore())
    }
}

impl WeightStore for Cuda {
    type Weight = Weight;
    type BlockStream = BlockStream;
    type ConvWeight = ConvWeight;
    type Uploads = Uploads;

    fn load_weight(&self, parts: &[TensorView], storage: Storage, uploads: Option<&Uploads>) -> Result<Weight> {
        self.check_storage(storage)?;
        self.0.uploader.weight(self.device(), &UploadSource::new(parts, storage, self.has_fp8())?, uploads)
    }

    fn load_summed_weights(
        &self,
        weights: &[Vec<TensorView>],
        storage: Storage,
        uploads: Option<&Uploads>,
    ) -> Result<Vec<Weight>> {
        let sources = self.summed_sources(weights, storage)?;
        if sources.first().is_some_and(|source| source.columns.is_some()) {
            return self.0.uploader.side_by_side(self.device(), &sources, uploads);
        }
        sources.iter().map(|source| self.0.uploader.weight(self.device(), source, uploads)).collect()
    }

    fn stream_summed_weights(
        &self,
        stream: &BlockStream,
        turn: usize,
        weights: &[Vec<TensorView>],
        storage: Storage,
    ) -> Result<Vec<Weight>> {
        self.stream_weights_op(stream, turn, self.summed_sources(weights, storage)?)
    }

    fn stream_weight(
        &self,
        stream: &BlockStream,
        turn: usize,
        parts: &[TensorView],
        storage: Storage,
    ) -> Result<Weight> {
        self.check_storage(storage)?;
        let source = UploadSource::new(parts, storage, self.has_fp8())?;
        Ok(self.stream_weights_op(stream, turn, vec![source])?.remove(0))
    }

    fn merge_weight(&self, base: &Linear<Self>, low_rank: &LowRank<Self>, storage: Storage) -> Result<Option<Weight>> {
        // A weight quantized in its file would grow to bf16, a quantized weight would be rounded twice, and a streamed
        // weight has no memory of its own.
        let weight = base.weight();
        if weight.is_streamed() || weight.stored().is_some() || weight.quantized_kind().is_some() {
            return Ok(None);
        }
        self.merge_weight_op(weight, low_rank, storage).map(Some)
    }

    fn load_conv_weight(&self, view: &TensorView, uploads: Option<&Uploads>) -> Result<ConvWeight> {
        self.0.uploader.conv_weight(self.device(), view, uploads).map(ConvWeight)
    }

    fn load<T>(&self, work: impl FnOnce(&Uploads) -> Result<T>, report: &mut dyn FnMut(u64)) -> Result<T> {
        self.0.uploader.together(self.device(), work, report)
    }

    fn settle(&self) -> Result<()> {
        self.0.uploader.registered().settle()
    }

    forward! {
        fn allocate_stream = allocate_stream_op(stream: &BlockStream, passes: AccessFrequency) -> Result<()>;
        fn enter_block = enter_block_op(stream: &BlockStream, turn: usize) -> Result<()>;
        fn leave_block = leave_block_op(stream: &BlockStream, turn: usize) -> Result<()>;
        fn factors_for = factors_for_op(base: &Linear<Self>, factors: LowRank<Self>) -> Result<LowRank<Self>>;
        fn embedding = embedding_op(table: &TensorView, ids: &[usize]) -> Result<Tensor<Self>>;
        fn copy_weights_from = copy_weights_from_op(other: &Self) -> Result<bool>;
    }
}

impl Ops for Cuda {
    type ChannelStatistics = ChannelStatistics;

    fn group_norm(&self, x: &Tensor<Self>, norm: &GroupNorm<'_, Self>) -> Result<Tensor<Self>> {
        self.group_norm_op(x, norm, false)
    }

    fn adaln(&self, x: &Tensor<Self>, shift: &Tensor<Self>, scale: &Tensor<Self>, eps: f32) -> Result<Tensor<Self>> {
        self.adaln_op(x, [[shift, scale]; 2], Adaln { txt_rows: 0, eps })
    }

    fn adaln_rows(&self, x: &Tensor<Self>, norms: [Norm<'_, Self>; 2], adaln: Adaln) -> Result<Tensor<Self>> {
        self.adaln_op(x, norms.map(|norm| [norm.shift, norm.scale]), adaln)
    }

    fn group_norm_silu(&self, x: &Tensor<Self>, norm: &GroupNorm<'_, Self>) -> Result<Tensor<Self>> {
        self.group_norm_op(x, norm, true)
    }

    fn all_to_all_heads(&self, kvq: [Tensor<Self>; 3], split: &TokenSplit) -> Result<[Tensor<Self>; 3]> {
        if split.world() == 1 { Ok(kvq) } else { self.all_to_all_heads_op(kvq, split) }
    }

    fn all_to_all_rows(&self, x: Tensor<Self>, split: &TokenSplit) -> Result<Tensor<Self>> {
        if split.world() == 1 { Ok(x) } else { self.all_to_all_rows_op(&x, split) }
    }

    fn all_gather_rows(&self, x: Tensor<Self>, rows: &RowSplit) -> Result<Tensor<Self>> {
        if rows.world() == 1 { Ok(x) } else { self.all_gather_rows_op(&x, rows) }
    }

    fn halo_rows(&self, x: &Tensor<Self>, halo: [usize; 2]) -> Result<Halo<Self>> {
        if self.world() == 1 { ops::halo::compose(self, x, halo) } else { self.halo_rows_op(x, halo) }
    }

    fn all_reduce_statistics(
        &self,
        x: &Tensor<Self>,
        own: Option<&ChannelStatistics>,
    ) -> Result<Option<ChannelStatistics>> {
        if self.world() == 1 { Ok(None) } else { self.all_reduce_statistics_op(x, own).map(Some) }
    }

    fn broadcast(&self, x: Option<Tensor<Self>>, shape: [usize; 2]) -> Result<Tensor<Self>> {
        if self.world() == 1 { ops::broadcast::compose(self, x, shape) } else { self.broadcast_op(x, shape) }
    }

    forward! {
        fn linear = linear_op(args: LinearArgs<'_, Self>) -> Result<Tensor<Self>>;
        fn linear_sum = linear_sum_op(parts: &[(&Tensor<Self>, &Linear<Self>)]) -> Result<Tensor<Self>>;
        fn conv2d = conv2d_op(conv2d: Conv2d<'_, Self>) -> Result<Convolved<Self>>;
        fn attention = attention_op(attention: Attention<'_, Self>) -> Result<Tensor<Self>>;
        fn layer_norm = layer_norm_op(x: &Tensor<Self>, eps: f32) -> Result<Tensor<Self>>;
        fn rms_norm = rms_norm_op(x: &Tensor<Self>, weight: &Tensor<Self>, eps: f32) -> Result<Tensor<Self>>;
        fn rope = rope_op(x: Tensor<Self>, rope: &Rope<Self>, layout: TokenLayout) -> Result<Tensor<Self>>;
        fn silu = silu_op(x: Tensor<Self>) -> Result<Tensor<Self>>;
        fn relu = relu_op(x: Tensor<Self>) -> Result<Tensor<Self>>;
        fn leaky_relu = leaky_relu_op(x: Tensor<Self>, slope: &Tensor<Self>) -> Result<Tensor<Self>>;
        fn softcap = softcap_op(x: Tensor<Self>, cap: f32) -> Result<Tensor<Self>>;
        fn add = add_op(x: Tensor<Self>, y: &Tensor<Self>) -> Result<Tensor<Self>>;
        fn mul = mul_op(x: Tensor<Self>, y: &Tensor<Self>) -> Result<Tensor<Self>>;
        fn scale_shift = scale_shift_op(
            x: Tensor<Self>, scale: &Tensor<Self>, shift: &Tensor<Self>
        ) -> Result<Tensor<Self>>;
        fn concat_rows = concat_rows_op(parts: &[&Tensor<Self>]) -> Result<Tensor<Self>>;
        fn concat_cols = concat_cols_op(parts: &[&Tensor<Self>]) -> Result<Tensor<Self>>;
        fn upsample = upsample_op(x: &Tensor<Self>, height: usize, width: usize) -> Result<Tensor<Self>>;
        fn pixel_shuffle = pixel_shuffle_op(operands: PixelShuffle<'_, Self>) -> Result<Tensor<Self>>;
        fn dense_block = dense_block_op(x: Tensor<Self>, block: &DenseBlock<'_, Self>) -> Result<Tensor<Self>>;
        fn dense_block_sum = dense_block_sum_op(
            x: Tensor<Self>, blocks: &[DenseBlock<'_, Self>], scale: &Tensor<Self>
        ) -> Result<Tensor<Self>>;
        fn patchify = patchify_op(patches: Patches<'_, Self>) -> Result<Tensor<Self>>;
        fn unpatchify = unpatchify_op(patches: Patches<'_, Self>) -> Result<Tensor<Self>>;
        fn euler_step = euler_step_op(
            latents: Tensor<Self>, velocity: &Tensor<Self>, dt: &Tensor<Self>
        ) -> Result<Tensor<Self>>;
        fn inpaint_blend = inpaint_blend_op(operands: InpaintBlend<'_, Self>) -> Result<Tensor<Self>>;
        fn guide = guide_op(positive: &Tensor<Self>, negative: &Tensor<Self>, guidance: f32) -> Result<Tensor<Self>>;
        fn low_rank = low_rank_op(products: Products<'_, Self>) -> Result<Tensor<Self>>;
        fn gated_add = gated_add_op(x: Tensor<Self>, gate: &Tensor<Self>, y: &Tensor<Self>) -> Result<Tensor<Self>>;
        fn gated_add_adaln = gated_add_adaln_op(
            operands: GatedAddAdaln<'_, Self>
        ) -> Result<(Tensor<Self>, Operand<Self>)>;
        fn swiglu = swiglu_op(gate: Tensor<Self>, up: &Tensor<Self>) -> Result<Tensor<Self>>;
        fn project = project_op(
            parts: &[(&Operand<Self>, &Linear<Self>)], heads: Option<&Heads<'_, Self>>
        ) -> Result<Projection<Self>>;
        fn project_attention = project_attention_op(
            parts: Vec<(Operand<Self>, &Linear<Self>)>, heads: &Heads<'_, Self>
        ) -> Result<Attended<Self>>;
        fn qk_norm_rope = qk_norm_rope_op(operands: QkNormRope<'_, Self>) -> Result<(Tensor<Self>, Tensor<Self>)>;
    }
}

impl Cuda {
    /// Returns sources for weights with summed products, as columns of one matrix if possible.
    fn summed_sources(&self, weights: &[Vec<TensorView>], storage: Storage) -> Result<Vec<UploadSource>> {
        self.check_storage(storage)?;
        let sources = weights.iter().map(|parts| UploadSource::new(parts, storage, self.has_fp8()));
        Ok(UploadSource::side_by_side(sources.collect::<Result<_>>()?, self.element()))
    }

    /// Errors if this GPU doesn't multiply weights of this storage.
    fn check_storage(&self, storage: Storage) -> Result<()> {
        match storage {
            Storage::Native => Ok(()),
            Storage::Fp8 => quantize::check(Precision::Fp8, self.device()),
            Storage::Int8 => quantize::check(Precision::Int8, self.device()),
            Storage::W4a8 => quantize::check(Precision::W4a8, self.device()),
        }
    }
}

fn expect_values(values: &[f32], rows: usize, cols: usize) -> Result<()> {
    if rows.checked_mul(cols) == Some(values.len()) { Ok(()) } else { Err(wrong_length(values.len(), rows, cols)) }
}
