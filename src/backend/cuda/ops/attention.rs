//! Launches cuda/attention.cu and cuda/attention_sm90a.cu: `attention` and `attention_cached`. With fp8 matrix
//! multiplications, long attention without a mask uses `attention_e4m3` or `attention_int8`.
//!
//! Hopper has its own kernels for heads of 128 and, in `attention_512`, of 512; heads without a kernel use
//! `attention_softmax`. `FLUX_ATTENTION=base` disables the Hopper kernels. `FLUX_ATTENTION=sm90` makes it an error if
//! this GPU or this program has none, and so does `FLUX_ATTENTION=sm90-single`, which disables their pairs of blocks.

use std::ffi::c_void;

use super::attention_512::suits_512;
use super::attention_hopper::{CHOICE, SINGLE, apart, tensor_map};
use crate::backend::cuda::element::Element;
use crate::backend::cuda::{Cuda, Tensor, all_aligned};
use crate::error::Result;
use crate::ops::{self, Attention, KeyValues, Mask, TokenLayout};

/// `QUERIES`, `KEYS` and the shared memory of cuda/attention_sm90a.cu: Q, two stages of K and of V, barriers.
const HOPPER_QUERIES: usize = 128;
const HOPPER_KEYS: usize = 176;
pub(super) const HOPPER_SHARED_BYTES: usize = (HOPPER_QUERIES + 4 * HOPPER_KEYS) * 128 * 2 + 128;
/// `KEY_TILE` and `THREADS` of cuda/attention.cu.
const KEY_TILE: usize = 64;
const THREADS: u32 = 128;

/// A kernel of cuda/attention.cu.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Base {
    pub(super) name: &'static str,
    queries: usize,
    stages: usize,
}

impl Base {
    pub(super) fn find(head_dim: usize, element: Element, capability: (i32, i32)) -> Option<Self> {
        let (name, queries, stages) = match head_dim {
            // Two blocks per multiprocessor, with 80 KiB of shared memory each. Kernels for fp16 are those of 7.5,
            // whichever GPU runs them.
            128 if element == Element::Bf16 && !has_100_kib(capability) => ("attention_128x128", 128, 3),
            128 => ("attention_128x64", 64, 2),
            64 => ("attention_64", 128, 3),
            32 => ("attention_32", 128, 3),
            16 => ("attention_16", 128, 3),
            _ => return None,
        };
        Some(Self { name, queries, stages })
    }

    pub(super) fn shared_bytes(self, head_dim: usize) -> usize {
        (self.queries + self.stages * KEY_TILE) * head_dim * 2
    }

    /// Returns how many of `tiles` one block computes alone; tiles of 64 queries are never shared.
    fn whole_tiles(self, tiles: usize, at_once: usize) -> usize {
        if self.queries == 128 { whole_tiles(tiles, at_once) } else { tiles }
    }
}

/// Returns how many of `tiles` one block computes alone, if `at_once` blocks run at a time. Two blocks share each tile
/// of the last round if that adds no round.
pub(super) fn whole_tiles(tiles: usize, at_once: usize) -> usize {
    let rest = tiles % at_once;
    if 2 * rest <= at_once { tiles - rest } else { tiles }
}

/// Returns `true` if a multiprocessor of a GPU with bf16 has 100 KiB of shared memory; the others have 164 or more.
/// Source: CUDA C++ Programming Guide, technical specifications per compute capability.
pub(super) fn has_100_kib(capability: (i32, i32)) -> bool {
    matches!(capability, (8, 6 | 9) | (12, _))
}

/// Returns the tiles of one head and sample in the Hopper kernel.
fn hopper_tiles(layout: TokenLayout) -> usize {
    let first = layout.first_query();
    let runs = if apart(layout) { [layout.txt - first, layout.image_stream()] } else { [layout.tokens() - first, 0] };
    runs.iter().map(|tokens| tokens.div_ceil(HOPPER_QUERIES)).sum()
}

/// Blocks of the Hopper kernel that work together, each on a tile of one head and sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blocks {
    Single,
    Pairs,
}

impl Blocks {
    /// Chooses pairs, which fetch less, if they take no more rounds and their tiles see the same keys. A short op (1536
    /// tokens) may take a tenth longer by itself, but not within a step.
    fn choose(tiles: usize, heads: usize, mask: Mask, multiprocessors: usize) -> Self {
        let rounds = |blocks: Self| blocks.items(tiles, heads).div_ceil((multiprocessors / blocks.count()).max(1));
        let pairs =
            mask == Mask::None && tiles > 1 && multiprocessors > 1 && rounds(Self::Pairs) <= rounds(Self::Single);
        if pairs { Self::Pairs } else { Self::Single }
    }

    fn count(self) -> usize {
        match self {
            Self::Single => 1,
            Self::Pairs => 2,
        }
    }

    fn kernel(self, cached: bool) -> &'static str {
        match (self, cached) {
            (Self::Single, false) => "attention_bf16_128_sm90",
            (Self::Pairs, false) => "attention_bf16_128_pairs_sm90",
            (Self::Single, true) => "attention_cached_bf16_128_sm90",
            (Self::Pairs, true) => "attention_cached_bf16_128_pairs_sm90",
        }
    }

    /// Returns the work items of cooperating blocks, for `tiles` tiles per head of each sample, and `heads` heads of
    /// all samples.
    fn items(self, tiles: usize, heads: usize) -> usize {
        tiles.div_ceil(self.count()) * heads
    }

    fn grid(self, tiles: usize, heads: usize, multiprocessors: usize) -> usize {
        self.items(tiles, heads).min(multiprocessors / self.count()) * self.count()
    }
}

/// One call, with tensors that the kernels support.
pub(super) struct Call<'a> {
    pub(super) q: &'a Tensor<Cuda>,
    pub(super) k: &'a Tensor<Cuda>,
    pub(super) v: &'a Tensor<Cuda>,
    pub(super) out: &'a Tensor<Cuda>,
    pub(super) head_dim: usize,
    pub(super) layout: TokenLayout,
    pub(super) mask: Mask,
    /// More keys, for the Hopper kernels without a mask.
    pub(super) cached: Option<&'a KeyValues<Cuda>>,
}

impl Call<'_> {
    pub(super) fn heads(&self) -> usize {
        self.q.cols() / self.head_dim
    }

    /// Returns the query heads that share a key head.
    pub(super) fn group(&self) -> usize {
        self.q.cols() / self.k.cols()
    }

    /// Returns the causal mask's keys; 0 without a mask.
    fn keys(&self) -> usize {
        match self.mask {
            Mask::None => 0,
            Mask::Causal { keys } => keys,
        }
    }

    /// Returns the factor of scores, which are products of two activations, before they become powers of two.
    pub(super) fn scale(&self) -> f32 {
        let unit = f64::from(self.q.backend().element().unit());
        (std::f64::consts::LOG2_E * unit * unit / (self.head_dim as f64).sqrt()) as f32
    }

    fn suits_hopper(&self) -> bool {
        self.head_dim == 128 && (self.mask == Mask::None || !apart(self.layout))
    }
}

impl Cuda {
    /// Computes `softmax(q k^T / sqrt(head_dim) + mask) v`; overwrites q if it is writable.
    ///
    /// Errors if `FLUX_ATTENTION` names no available kernel.
    pub(crate) fn attention_op(&self, attention: Attention<'_, Cuda>) -> Result<Tensor<Cuda>> {
        let Attention { q, k, v, cached, head_dim, layout, mask } = attention;
        if let Some(cached) = cached {
            return self.attention_cached(Attention { q, ..attention }, cached);
        }
        let hopper = self.hopper_form(CHOICE)?;
        let aligned = all_aligned(&[&q, k, v]);
        if let Some(form) = hopper.filter(|_| aligned && suits_512(head_dim, layout, mask)) {
            return self.attention_512(q, k, v, layout, form == SINGLE);
        }
        let Some(base) = Base::find(head_dim, self.element(), self.device().capability).filter(|_| aligned) else {
            if !aligned {
                self.device().count_composed();
            }
            return self.attention_softmax(Attention { q, ..attention });
        };
        let fresh = self.unless_writable(&q)?;
        let call = Call { q: &q, k, v, out: fresh.as_ref().unwrap_or(&q), head_dim, layout, mask, cached: None };
        match hopper.filter(|_| call.suits_hopper()) {
            _ if self.attends_in_int8(head_dim, layout, mask) => self.attend_in_int8(&call, None)?,
            Some(_) if self.attends_in_e4m3(head_dim, layout, mask)? => self.attend_in_e4m3(&call)?,
            Some(form) => self.run_hopper(&call, form == SINGLE)?,
            None => self.run_base(base, &call)?,
        }
        Ok(fresh.unwrap_or(q))
    }

    /// As [`Cuda::attention_op`] without a mask, over cached keys as well. If the Hopper kernel doesn't support the
    /// call, it concatenates the cached keys and the others.
    fn attention_cached(&self, attention: Attention<'_, Cuda>, cached: &KeyValues<Cuda>) -> Result<Tensor<Cuda>> {
        let Attention { q, k, v, head_dim, layout, .. } = attention;
        let aligned = all_aligned(&[&q, k, v, &cached.k, &cached.v]);
        let suits = head_dim == 128 && aligned && cached.k.rows() > 0;
        let in_int8 = self.attends_in_int8(head_dim, layout, Mask::None);
        let Some(form) = self.hopper_form(CHOICE)?.filter(|_| suits && !in_int8) else {
            self.device().count_composed();
            return ops::attention::compose(self, Attention { q, ..attention });
        };
        let fresh = self.unless_writable(&q)?;
        let (out, mask, cached) = (fresh.as_ref().unwrap_or(&q), Mask::None, Some(cached));
        let call = Call { q: &q, k, v, out, head_dim, layout, mask, cached };
        match self.attends_in_e4m3(head_dim, layout, mask)? {
            true => self.attend_in_e4m3(&call)?,
            false => self.run_hopper(&call, form == SINGLE)?,
        }
        Ok(fresh.unwrap_or(q))
    }

    fn run_base(&self, base: Base, call: &Call<'_>) -> Result<()> {
        let Call { q, k, v, out, head_dim, layout, .. } = *call;
        let launch = self.launch("attention", base.name)?.shared(base.shared_bytes(head_dim) as u32)?;
        let tiles = (layout.tokens() - layout.first_query()).div_ceil(base.queries) * call.heads() * layout.batch;
        let whole = base.whole_tiles(tiles, launch.blocks_at_once(THREADS)?);
        let launch = launch
            .vector(q)
            .vector(k)
            .vector(v)
            .vector(out)
            .int(q.stride())
            .int(k.stride())
            .int(v.stride())
            .int(out.stride());
        let launch = launch.int(layout.batch).int(layout.txt).int(layout.image_stream()).int(layout.first_query());
        let launch = launch.int(call.heads()).int(call.group()).int(call.keys()).int(whole).float(call.scale());
        // SAFETY: argument types and order match `ATTENTION` in cuda/attention.cu, and the shared memory its `Shape`.
        // `Tensor::attention` checked k and v to have layout.rows() rows of whole heads, the number of k's heads to
        // divide that of q's, q to have layout.query_rows() rows, and 1 <= keys <= tokens; rows are aligned to 16
        // bytes; `out` is q, or new and of its shape. A block reads its queries before it writes them, and nothing else
        // of q. Tiles behind `whole` have two blocks each.
        unsafe { launch.run([2 * tiles - whole, 1, 1], [THREADS as usize, 1, 1]) }
    }

    fn run_hopper(&self, call: &Call<'_>, single: bool) -> Result<()> {
        let Call { q, k, v, out, layout, mask, cached, .. } = *call;
        let (tiles, heads) = (hopper_tiles(layout), call.heads() * layout.batch);
        let multiprocessors = self.device().multiprocessors();
        let blocks = if single { Blocks::Single } else { Blocks::choose(tiles, heads, mask, multiprocessors) };
        let grid = blocks.grid(tiles, heads, multiprocessors);
        if grid == 0 {
            return Ok(());
        }
        // Load first: a driver that loads this kernel supports tensor maps too.
        let launch = self.launch(CHOICE.file, blocks.kernel(cached.is_some()))?.shared(HOPPER_SHARED_BYTES as u32)?;
        let keys = [k, v].into_iter().chain(cached.iter().flat_map(|cached| [&cached.k, &cached.v]));
        let maps = [tensor_map(q, HOPPER_QUERIES)].into_iter().chain(keys.map(|x| tensor_map(x, HOPPER_KEYS)));
        let mut maps = maps.collect::<Result<Vec<_>>>()?;
        let mut out_address = out.address();
        CHOICE.int(blocks.items(tiles, heads))?;
        let ints = match cached {
            None => vec![
                out.stride(),
                layout.batch,
                layout.txt,
                layout.image_stream(),
                layout.first_query(),
                call.heads(),
                call.group(),
                call.keys(),
            ],
            Some(cached) => {
                let tokens = layout.tokens();
                vec![out.stride(), tokens, layout.first_query(), call.heads(), call.group(), cached.k.rows()]
            }
        };
        let mut ints = ints.into_iter().map(|value| CHOICE.int(value)).collect::<Result<Vec<i32>>>()?;
        let mut scale = call.scale();
        let mut arguments: Vec<*mut c_void> = maps.iter_mut().map(|map| std::ptr::from_mut(map).cast()).collect();
        arguments.push(std::ptr::from_mut(&mut out_address).cast());
        arguments.extend(ints.iter_mut().map(|int| std::ptr::from_mut(int).cast::<c_void>()));
        arguments.push(std::ptr::from_mut(&mut scale).cast());
        // SAFETY: `arguments` are, in the order of `ATTENTION` in cuda/attention_sm90a.cu, three tensor maps, a
        // pointer, eight ints and a float, or, for `ATTENTION_CACHED`, five maps, a pointer, six ints and a float, all
        // alive until the call returns; the shared memory is its `Shared`. The maps cover exactly the cells of q, k and
        // v, and of the cached keys and values. `Tensor::attention` checked their shapes and 1 <= keys <= tokens,
        // `Tensor::attention_cached` the shapes of the cached ones and that there is one sample; `out` is q, or new and
        // of its shape. A tile's queries are read before its output is written, and no other tile's output depends on
        // them. Pairs have an even number of blocks and no mask.
        unsafe { launch.run_raw([grid, 1, 1], [384, 1, 1], &mut arguments) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_fits_the_shared_memory_of_its_gpus() {
        for (capability, block_bytes) in [
            ((7, 5), 64 << 10),
            ((8, 0), 163 << 10),
            ((8, 6), 99 << 10),
            ((8, 9), 99 << 10),
            ((9, 0), 227 << 10),
            ((12, 0), 99 << 10),
        ] {
            let element = if capability == (7, 5) { Element::F16 } else { Element::Bf16 };
            for head_dim in [16, 32, 64, 128] {
                let base = Base::find(head_dim, element, capability).unwrap();
                assert!(base.shared_bytes(head_dim) <= block_bytes, "{base:?} on {capability:?}");
            }
        }
        const { assert!(HOPPER_SHARED_BYTES <= 227 << 10) };
        assert_eq!(Base::find(512, Element::Bf16, (9, 0)), None);
    }

    #[test]
    fn tiles_of_a_short_last_round_are_halved() {
        let whole = |capability, tiles, at_once| {
            Base::find(128, Element::Bf16, capability).unwrap().whole_tiles(tiles, at_once)
        };
        // 24 heads of 4608, 1536 and 8704 tokens on 132 multiprocessors.
        assert_eq!([864, 288, 1632].map(|tiles| whole((8, 0), tiles, 264)), [792, 264, 1584]);
        // With 133 tiles, halves would take two rounds.
        assert_eq!([1, 132, 133, 264].map(|tiles| whole((8, 0), tiles, 264)), [0, 0, 133, 264]);
        assert_eq!(whole((8, 9), 288, 264), 288);
    }

    #[test]
    fn hopper_tiles_do_not_cross_between_samples() {
        let tiles = |batch, txt, img| hopper_tiles(TokenLayout::new(batch, txt, img)) * batch;
        assert_eq!(tiles(1, 512, 4096), 36);
        assert_eq!(tiles(1, 100, 100), 2);
        assert_eq!(tiles(2, 100, 100), 4);
        assert_eq!(tiles(3, 0, 129), 6);
        assert_eq!(tiles(1, 0, 0), 0);
        let of_images = |layout: TokenLayout| hopper_tiles(layout.image_queries()) * layout.batch;
        let layouts = [TokenLayout::new(1, 512, 4096), TokenLayout::new(1, 100, 100), TokenLayout::new(3, 100, 129)];
        assert_eq!(layouts.map(of_images), [32, 1, 6]);
        let with_references = TokenLayout { references: 300, ..TokenLayout::new(1, 512, 4096) };
        assert_eq!((hopper_tiles(with_references), of_images(with_references)), (39, 32));
    }

    #[test]
    fn pairs_of_blocks_take_tiles_of_one_head_and_sample_without_a_mask() {
        let none = Mask::None;
        for ((batch, txt, img), heads, mask, expected, grid) in [
            // Images: as many rounds in pairs.
            ((1, 512, 4096), 24, none, Blocks::Pairs, 132),
            ((1, 512, 1024), 24, none, Blocks::Pairs, 132),
            ((2, 512, 1024), 24, none, Blocks::Pairs, 132),
            // 13 tiles: 312 in 3 rounds, 168 pairs in 3; 11 tiles: 264 in 2, 144 pairs in 3.
            ((1, 0, 1660), 24, none, Blocks::Pairs, 132),
            ((1, 0, 1400), 24, none, Blocks::Single, 132),
            // A tile of text and one of image, three tiles, and one.
            ((2, 45, 64), 2, none, Blocks::Pairs, 8),
            ((1, 3, 352), 2, none, Blocks::Pairs, 8),
            ((1, 45, 64), 2, none, Blocks::Single, 2),
            ((1, 0, 512), 32, Mask::Causal { keys: 512 }, Blocks::Single, 128),
            ((1, 0, 0), 24, none, Blocks::Single, 0),
        ] {
            let layout = TokenLayout::new(batch, txt, img);
            let (tiles, heads) = (hopper_tiles(layout), batch * heads);
            let blocks = Blocks::choose(tiles, heads, mask, 132);
            assert_eq!(
                (blocks, blocks.grid(tiles, heads, 132)),
                (expected, grid),
                "{layout:?}, {heads} heads, {mask:?}"
            );
        }
        assert_eq!(Blocks::choose(36, 24, none, 1), Blocks::Single);
        // Half of an odd number of multiprocessors; one stays idle.
        assert_eq!(Blocks::Pairs.grid(36, 24, 133), 132);
    }
}
