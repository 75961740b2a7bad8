//! The layers of a component with adapters. Layers without changes are shared, low-rank changes become factors of the
//! layer, and all other changes are merged in float32.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

use super::layers::{LinearLayer, VectorLayer};
use super::{Layers, Linear, LowRank};
use crate::backend::{Backend, Storage};
use crate::error::{Error, Result};
use crate::files::adapter::{AdapterUse, Change, ColumnLengths};
use crate::files::{Bytes, Format, Scales, TensorView, dequantize_rows};
use crate::tensor::Tensor;

/// Rows of a weight that one task merges.
const TASK_ROWS: usize = 32;

/// A change to some rows of a layer.
struct Segment {
    change: Arc<Change>,
    /// The index of its adapter.
    of: usize,
    strength: f32,
    /// The rows in the module that the adapter changes.
    rows: Range<usize>,
    /// The first row in the layer.
    first: usize,
}

/// Low-rank factors, each as stacked parts.
struct Factors {
    downs: Vec<TensorView>,
    ups: Vec<TensorView>,
}

/// A layer and all changes to it.
struct Changed<'a, B: Backend> {
    layer: &'a LinearLayer<B>,
    segments: Vec<Segment>,
}

impl<B: Backend> Layers<B> {
    /// Returns these layers with `adapters`. Factors of low-rank changes are attached to the layers: [`Layers::merged`]
    /// merges factors into weights, and [`Layers::into_unmerged`] prepares the remaining ones. Weights of these layers
    /// are shared and stay unchanged.
    ///
    /// Errors if memory runs out.
    pub fn adapted(&self, adapters: &[AdapterUse]) -> Result<Self> {
        let mut layers = Self { originals: Arc::clone(&self.originals), ..Self::default() };
        let mut branches = Vec::new();
        for (key, layer) in &self.linears {
            let segments =
                segments(layer.parts.iter().map(|part| (&*part.key, part.first, part.view.rows())), adapters);
            let changed = Changed { layer, segments };
            let linear = if changed.segments.is_empty() {
                layer.linear.clone()
            } else if changed.is_low_rank() {
                branches.push((key.clone(), changed));
                continue;
            } else {
                changed.merged()?
            };
            layers.put(key, layer, linear);
        }
        for (key, linear) in with_factors(branches)? {
            layers.put(&key, &self.linears[&key], linear);
        }
        for (key, layer) in &self.vectors {
            layers.vectors.insert(key.clone(), layer.adapted(adapters)?);
        }
        Ok(layers)
    }

    /// Converts factors to the form that unmerged layers need.
    ///
    /// Errors if memory runs out.
    pub fn into_unmerged(mut self) -> Result<Self> {
        for layer in self.linears.values_mut() {
            if let Some(LowRank { down, up }) = layer.linear.low_rank() {
                layer.linear = layer.linear.with_low_rank(LowRank { down: down.clone(), up: up.clone() })?;
            }
        }
        Ok(self)
    }

    /// Returns the number of layers with low-rank factors.
    pub fn low_ranks(&self) -> usize {
        self.linears.values().filter(|layer| layer.linear.low_rank().is_some()).count()
    }

    /// Returns the number of values in the layers that `adapters` change, by storage.
    pub fn changed_elements(&self, adapters: &[AdapterUse]) -> [(Storage, u64); 4] {
        let mut elements = [Storage::Native, Storage::Fp8, Storage::Int8, Storage::W4a8].map(|storage| (storage, 0));
        for layer in self.linears.values().filter(|layer| layer.is_changed_by(adapters)) {
            let of_storage = elements.iter_mut().filter(|(storage, _)| *storage == layer.storage);
            of_storage.for_each(|(_, sum)| *sum += layer.elements());
        }
        elements
    }

    fn put(&mut self, key: &str, layer: &LinearLayer<B>, linear: Linear<B>) {
        let layer = LinearLayer { linear, parts: layer.parts.clone(), storage: layer.storage };
        self.linears.insert(key.to_string(), layer);
    }
}

/// Returns the changes of a layer that consists of `parts`, stacked: (key, first row in the tensor, rows).
fn segments<'a>(parts: impl Iterator<Item = (&'a str, usize, usize)>, adapters: &[AdapterUse]) -> Vec<Segment> {
    let (mut segments, mut row) = (Vec::new(), 0);
    for (key, first, rows) in parts {
        for (of, used) in adapters.iter().enumerate() {
            let strength = used.strength_in(key);
            for piece in used.changes(key) {
                let place = &piece.place;
                let (start, end) = (first.max(place.first), (first + rows).min(place.first + place.rows.len()));
                if start < end {
                    let in_module = |row: usize| place.rows.start + (row - place.first);
                    segments.push(Segment {
                        change: Arc::clone(&piece.change),
                        of,
                        strength,
                        rows: in_module(start)..in_module(end),
                        first: row + (start - first),
                    });
                }
            }
        }
        row += rows;
    }
    segments
}

/// Returns the layers with their low-rank changes. All cores assemble the factors, which are then uploaded together.
fn with_factors<B: Backend>(changed: Vec<(String, Changed<'_, B>)>) -> Result<Vec<(String, Linear<B>)>> {
    let Some((_, Changed { layer, .. })) = changed.first() else { return Ok(Vec::new()) };
    let backend = layer.linear.backend().clone();
    let factors = changed.par_iter().map(|(_, changed)| changed.factors()).collect::<Result<Vec<_>>>()?;
    let load = |uploads: &B::Uploads| {
        changed.iter().zip(&factors).map(|((_, changed), factors)| changed.low_rank(factors, uploads)).collect()
    };
    let factors: Vec<LowRank<B>> = backend.load(load, &mut |_| {})?;
    let with_factors = |((key, Changed { layer, .. }), low_rank): ((String, Changed<'_, B>), LowRank<B>)| {
        (key, layer.linear.with_factors(low_rank))
    };
    Ok(changed.into_iter().zip(factors).map(with_factors).collect())
}

impl<B: Backend> Changed<'_, B> {
    fn is_low_rank(&self) -> bool {
        self.segments.iter().all(|segment| segment.change.low_rank().is_some())
    }

    /// Uploads factors.
    fn low_rank(&self, Factors { downs, ups }: &Factors, uploads: &B::Uploads) -> Result<LowRank<B>> {
        let linear = &self.layer.linear;
        let load = |half: &str, parts: &[TensorView]| {
            let backend = (linear.backend(), Some(uploads));
            let parts = parts.iter().map(in_floats).collect::<Result<Vec<_>>>()?;
            Linear::load_with(backend, format!("{}.{half}", linear.name()), &parts, Storage::Native)
        };
        Ok(LowRank { down: load("down", downs)?, up: load("up", ups)? })
    }

    /// Combines all changes into one pair of factors: the stacked downs, and for each down its columns of up, with
    /// zeros in rows that it does not change. up includes scales and strengths.
    fn factors(&self) -> Result<Factors> {
        // The parts of a fused module have one down.
        let mut columns: BTreeMap<(usize, usize), Range<usize>> = BTreeMap::new();
        let (mut downs, mut rank) = (Vec::new(), 0);
        for segment in &self.segments {
            let Some(low_rank) = segment.change.low_rank() else { continue };
            columns.entry(segment.factors()).or_insert_with(|| {
                downs.push(low_rank.down.clone());
                rank += low_rank.rank();
                rank - low_rank.rank()..rank
            });
        }
        if let Some(ups) = self.ups_of_file() {
            return Ok(Factors { downs, ups });
        }
        let all_rows = self.layer.linear.rows();
        let mut up = vec![0.0; all_rows * rank];
        up.par_chunks_mut(TASK_ROWS * rank).enumerate().for_each(|(task, out)| {
            let rows = task * TASK_ROWS..task * TASK_ROWS + out.len() / rank;
            for segment in &self.segments {
                let (Some(low_rank), Some((in_layer, in_module))) = (segment.change.low_rank(), segment.overlap(&rows))
                else {
                    continue;
                };
                let columns = &columns[&segment.factors()];
                let mut values = vec![0.0; in_module.len() * columns.len()];
                dequantize_rows(&low_rank.up, in_module, &mut values);
                let factor = low_rank.scale * segment.strength;
                for (row, values) in in_layer.zip(values.chunks_exact(columns.len())) {
                    let out = &mut out[(row - rows.start) * rank..][columns.clone()];
                    out.iter_mut().zip(values).for_each(|(out, value)| *out = factor * value);
                }
            }
        });
        Ok(Factors { downs, ups: vec![owned(up, &[all_rows, rank])?] })
    }

    /// Returns up as it is in the file, if nothing scales it and it has the layer's rows. The segments give the order
    /// of rows, which may differ between file and layer.
    fn ups_of_file(&self) -> Option<Vec<TensorView>> {
        let first = self.segments.first()?;
        let mut row = 0;
        let mut parts = Vec::new();
        for segment in &self.segments {
            let low_rank = segment.change.low_rank()?;
            if segment.factors() != first.factors() || segment.first != row || low_rank.scale * segment.strength != 1.0
            {
                return None;
            }
            parts.push(low_rank.up.row_range(segment.rows.clone()));
            row += segment.rows.len();
        }
        (row == self.layer.linear.rows()).then_some(parts)
    }

    /// Merges the changes into the weight: accumulated in float32, then stored in the layer's format.
    fn merged(&self) -> Result<Linear<B>> {
        let LinearLayer { linear, parts, storage } = self.layer;
        let views: Vec<TensorView> = parts.iter().map(|part| part.view.clone()).collect();
        let (rows, cols) = (linear.rows(), linear.cols());
        let bytes = (rows * cols * size_of::<f32>()) as u64;
        if linear.backend().available_bytes() < bytes {
            return Err(Error::new(format!(
                "`{}` with its adapter needs {} MiB, more than is free",
                linear.name(),
                bytes >> 20
            ))
            .hint("use fewer adapters, a smaller image, or a low-rank adapter (LoRA)"));
        }
        let base = |rows: Range<usize>| rows_of(&views, rows, cols);
        let lengths: Vec<Option<ColumnLengths>> =
            self.segments.iter().map(|segment| self.lengths(segment, base)).collect();
        let mut values = vec![0.0; rows * cols];
        values.par_chunks_mut(TASK_ROWS * cols).enumerate().for_each(|(task, out)| {
            let rows = task * TASK_ROWS..task * TASK_ROWS + out.len() / cols;
            let base = base(rows.clone());
            out.copy_from_slice(&base);
            for (segment, lengths) in self.segments.iter().zip(&lengths) {
                let Some((in_layer, in_module)) = segment.overlap(&rows) else { continue };
                let cells = (in_layer.start - rows.start) * cols..(in_layer.end - rows.start) * cols;
                let base = &base[cells.clone()];
                segment.change.add_to(base, in_module, segment.strength, lengths.as_ref(), &mut out[cells]);
            }
        });
        let weight = linear.backend().load_weight(&[owned(values, &[rows, cols])?], *storage, None)?;
        Ok(linear.with_weight(weight))
    }

    /// Returns the lengths of columns for the change of a segment. All rows of its module are in this layer.
    fn lengths(&self, segment: &Segment, base: impl Fn(Range<usize>) -> Vec<f32>) -> Option<ColumnLengths> {
        let same = |other: &&Segment| other.factors() == segment.factors();
        segment.change.column_lengths(|rows| {
            let mut values = vec![0.0; rows.len() * self.layer.linear.cols()];
            for other in self.segments.iter().filter(same) {
                let (start, end) = (rows.start.max(other.rows.start), rows.end.min(other.rows.end));
                if start < end {
                    let in_layer = |row: usize| other.first + (row - other.rows.start);
                    let from = base(in_layer(start)..in_layer(end));
                    values[(start - rows.start) * self.layer.linear.cols()..][..from.len()].copy_from_slice(&from);
                }
            }
            values
        })
    }
}

impl Segment {
    /// Returns an identifier that segments of one change by one adapter share.
    fn factors(&self) -> (usize, usize) {
        (self.of, Arc::as_ptr(&self.change).addr())
    }

    /// Returns the rows of `rows` that this segment changes: in the layer, and in the module.
    fn overlap(&self, rows: &Range<usize>) -> Option<(Range<usize>, Range<usize>)> {
        let (start, end) = (rows.start.max(self.first), rows.end.min(self.first + self.rows.len()));
        let in_module = |row: usize| self.rows.start + (row - self.first);
        (start < end).then(|| (start..end, in_module(start)..in_module(end)))
    }
}

impl<B: Backend> VectorLayer<B> {
    /// Returns the vector with its changes, or the vector itself.
    fn adapted(&self, adapters: &[AdapterUse]) -> Result<Self> {
        let (vector, part) = (&self.vector, self.part.clone());
        let len = part.view.rows();
        let segments = segments([(&*part.key, part.first, len)].into_iter(), adapters);
        if segments.is_empty() {
            return Ok(Self { vector: vector.row_view(0..1), part });
        }
        let base = part.view.to_f32();
        let mut values = base.clone();
        for segment in segments {
            let cells = segment.first..segment.first + segment.rows.len();
            segment.change.add_to(&base[cells.clone()], segment.rows, segment.strength, None, &mut values[cells]);
        }
        let vector: Tensor<B> = vector.backend().upload(&values, 1, len)?;
        Ok(Self { vector, part })
    }
}

/// Returns rows of stacked parts, in float32.
fn rows_of(parts: &[TensorView], rows: Range<usize>, cols: usize) -> Vec<f32> {
    let mut values = vec![0.0; rows.len() * cols];
    let mut top = 0;
    for part in parts {
        let (start, end) = (rows.start.max(top), rows.end.min(top + part.rows()));
        if start < end {
            let out = &mut values[(start - rows.start) * cols..(end - rows.start) * cols];
            dequantize_rows(part, start - top..end - top, out);
        }
        top += part.rows();
    }
    values
}

/// Returns a factor as it is, or in float32 if its file has it quantized: adding and merging factors read floats.
fn in_floats(view: &TensorView) -> Result<TensorView> {
    if view.format().is_float() { Ok(view.clone()) } else { owned(view.to_f32(), view.shape()) }
}

/// Creates a tensor from computed values.
fn owned(values: Vec<f32>, shape: &[usize]) -> Result<TensorView> {
    let bytes = Bytes::Computed(values);
    let range = 0..bytes.as_slice().len();
    TensorView::new(Arc::new(bytes), range, Format::F32, shape.to_vec(), Scales::None)
        .map_err(|why| Error::new(format!("the merged weight {why}")))
}

#[cfg(test)]
mod tests {
    use safetensors::tensor::{Dtype, TensorView as FileTensor};

    use super::*;
    use crate::backend::cpu::{Cpu, Precision};

    #[test]
    fn factors_in_few_bits_become_floats() {
        let of = |format: Format, bytes: &'static [u8]| {
            let file = Arc::new(Bytes::Embedded(bytes));
            TensorView::new(file, 0..bytes.len(), format, vec![1, 4], Scales::None).unwrap()
        };
        for format in [Format::E4m3, Format::E5m2] {
            let view = of(format, &[0x38, 0x40, 0xb8, 0x3c]);
            let floats = in_floats(&view).unwrap();
            assert_eq!((floats.format(), floats.shape()), (Format::F32, &[1, 4][..]));
            assert_eq!(floats.to_f32(), view.to_f32());
            assert!(floats.to_f32()[0] > 0.0, "{format}");
        }
        let bf16 = of(Format::Bf16, &[0x80, 0x3f, 0, 0, 0x80, 0xbf, 0, 0x40]);
        assert_eq!(in_floats(&bf16).unwrap().format(), Format::Bf16);
    }
    use crate::files::ModelFiles;
    use crate::files::adapter::Adapter;
    use crate::nn::Weights;
    use crate::transformer::{self, Transformer, TransformerConfig};

    #[test]
    fn up_is_taken_from_the_file_where_nothing_scales_or_adds_to_it() {
        let dir = ModelFiles::open("models/tiny".as_ref()).unwrap();
        let (config, files) = (TransformerConfig::read(&dir).unwrap(), transformer::open(&dir).unwrap());
        let cpu = Cpu::new(Precision::F32);
        let transformer = Transformer::load(&Weights::new(&cpu, &files), &config).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let dim = config.dim();
        let adapter = |module: &str, rows: usize| {
            let path = folder.path().join(module);
            let bytes: Vec<u8> = (0..rows).flat_map(|row| (1.0 + row as f32).to_le_bytes()).collect();
            let tensor = |bytes, shape| FileTensor::new(Dtype::F32, shape, bytes).unwrap();
            let pair = [
                (format!("{module}.lora_A.weight"), tensor(&bytes[..4 * dim], vec![1, dim])),
                (format!("{module}.lora_B.weight"), tensor(&bytes[..], vec![rows, 1])),
            ];
            safetensors::serialize_to_file(pair, None, &path).unwrap();
            Arc::new(Adapter::open(&path, &config.adapter_modules().unwrap()).unwrap())
        };
        let up = |layer: &str, uses: &[(&Arc<Adapter>, f32)]| {
            let uses: Vec<_> =
                uses.iter().map(|&(adapter, strength)| AdapterUse::new(Arc::clone(adapter), strength)).collect();
            let layer = &transformer.layers().linears[layer];
            let parts = layer.parts.iter().map(|part| (&*part.key, part.first, part.view.rows()));
            let changed = Changed { layer, segments: segments(parts, &uses) };
            changed.ups_of_file().map(|parts| parts.iter().flat_map(TensorView::to_f32).collect::<Vec<_>>())
        };
        // The file has q, k, v, and the layer k, v, q.
        let qkv = adapter("double_blocks.0.img_attn.qkv", 3 * dim);
        let expected: Vec<f32> = (dim..3 * dim).chain(0..dim).map(|row| 1.0 + row as f32).collect();
        let layer = "transformer_blocks.0.attn.to_kvq";
        assert_eq!(up(layer, &[(&qkv, 1.0)]), Some(expected));
        assert_eq!(up(layer, &[(&qkv, 0.5)]), None, "scaled");
        assert_eq!(up(layer, &[(&qkv, 1.0), (&qkv, 1.0)]), None, "two changes");
        let k = adapter("transformer_blocks.0.attn.to_k", dim);
        assert_eq!(up(layer, &[(&k, 1.0)]), None, "not all rows");
        assert_eq!(up(layer, &[]), None, "no change");
    }
}
