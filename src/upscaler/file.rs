//! Files of upscalers: which network the tensors are, and its sizes.

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};

use super::compact::CompactSizes;
use super::rrdb::{Keys, RrdbSizes};
use super::span::SpanSizes;
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::files::{TensorFiles, open_pickled_weights};
use crate::nn::Weights;

/// Dictionaries of a checkpoint that hold the weights, the preferred one first. Averages over training come before the
/// last weights.
const PREFIXES: [&str; 4] = ["params_ema", "params", "state_dict", ""];
/// Tensors that identify networks that are not run, and their names.
const OTHERS: [(&str, &str); 7] = [
    ("layers.0.residual_group.blocks.0.conv_block.cab.0.weight", "HAT"),
    ("layers.0.residual_group.blocks.0.norm1.weight", "SwinIR"),
    ("layers.0.blocks.0.norm1.weight", "DAT"),
    ("feats.0.weight", "RealPLKSR"),
    ("residual_layer.0.residual_layer.0.layer.0.fn.0.weight", "OmniSR"),
    ("m_head.weight", "SCUNet"),
    ("patch_embed.proj.weight", "a window transformer"),
];
const HINT: &str = "use a model of the kind ESRGAN, Real-ESRGAN, BSRGAN, Real-ESRGAN Compact or SPAN";
/// Limits that no published network reaches.
const MAX_FEATURES: usize = 1024;
const MAX_SCALE: usize = 16;

/// An opened file of an upscaler, whose tensors are checked.
pub struct UpscalerFile {
    path: PathBuf,
    files: TensorFiles,
    prefix: &'static str,
    kind: Kind,
}

impl fmt::Debug for UpscalerFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpscalerFile").field("path", &self.path).field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// The network of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Rrdb(RrdbSizes),
    Compact(CompactSizes),
    Span(SpanSizes),
}

impl UpscalerFile {
    /// Opens a file: safetensors, or a `.pth` of PyTorch.
    ///
    /// Errors if the file holds no network that is run, or if a tensor is missing, unknown, no float, of another shape,
    /// or has a value that is not finite.
    pub fn open(path: &Path) -> Result<Self> {
        let open = || -> Result<Self> {
            let files = TensorFiles::new(vec![open_pickled_weights(path)?])?;
            let names: HashSet<String> = files.files().iter().flat_map(|file| file.names()).map(String::from).collect();
            let (prefix, kind) = recognise(&names, |name| files.shape(name))?;
            files.check_floats()?;
            files.check_finite()?;
            Ok(Self { path: path.to_path_buf(), files, prefix, kind })
        };
        open().map_err(|e| e.at_path(path))
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the name of the network's kind.
    pub fn architecture(&self) -> &'static str {
        match self.kind {
            Kind::Rrdb(RrdbSizes { plus: true, .. }) => "ESRGAN+",
            Kind::Rrdb(_) => "ESRGAN",
            Kind::Compact(_) => "Compact",
            Kind::Span(_) => "SPAN",
        }
    }

    /// Returns the factor by which the network enlarges width and height.
    pub fn scale(&self) -> usize {
        match self.kind {
            Kind::Rrdb(sizes) => (1 << sizes.ups) / self.unshuffle(),
            Kind::Compact(sizes) => sizes.scale,
            Kind::Span(sizes) => sizes.scale,
        }
    }

    /// Returns the side of the squares of pixels that are channels of the input.
    pub(super) fn unshuffle(&self) -> usize {
        match self.kind {
            Kind::Rrdb(sizes) => (sizes.channels / 3).isqrt(),
            Kind::Compact(_) | Kind::Span(_) => 1,
        }
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the weights under the names of the network.
    pub(super) fn weights<'a, B: Backend>(&'a self, backend: &'a B) -> Weights<'a, B> {
        let weights = Weights::new(backend, &self.files);
        if self.prefix.is_empty() { weights } else { weights.at(self.prefix) }
    }

    /// Returns the multiplications for each pixel of the image.
    pub fn multiplications(&self) -> u64 {
        let conv = |ins: usize, outs: usize| (9 * ins * outs) as u64;
        match self.kind {
            Kind::Rrdb(RrdbSizes { channels, features: f, grown: g, blocks, ups, .. }) => {
                let dense = (0..4).map(|i| conv(f + i * g, g)).sum::<u64>() + conv(f + 4 * g, f);
                let small = conv(channels, f) + 3 * blocks as u64 * dense + conv(f, f);
                let doubled: u64 = (1..=ups).map(|up| conv(f, f) << (2 * up)).sum();
                let large = (conv(f, f) + conv(f, 3)) << (2 * ups);
                (small + doubled + large).div_ceil(self.unshuffle().pow(2) as u64)
            }
            Kind::Compact(CompactSizes { features: f, layers, scale }) => {
                conv(3, f) + (layers as u64).saturating_sub(1) * conv(f, f) + conv(f, 3 * scale * scale)
            }
            Kind::Span(SpanSizes { features: f, scale, .. }) => {
                conv(3, f) + 19 * conv(f, f) + (4 * f * f) as u64 + conv(f, 3 * scale * scale)
            }
        }
    }

    /// Returns an upper bound of the values that a device holds for each pixel of the image: two tensors at the size of
    /// the result, or the dense blocks' buffers, and the pixels.
    pub(super) fn values_per_pixel(&self) -> usize {
        match self.kind {
            Kind::Rrdb(RrdbSizes { features, grown, ups, .. }) => {
                let (large, area) = (1usize << (2 * ups), self.unshuffle().pow(2));
                let blocks = 3 * (features + 4 * grown) + 2 * features;
                ((2 * large * features).max(blocks) + 8 * large).div_ceil(area)
            }
            Kind::Compact(CompactSizes { features, scale, .. }) => 3 * features + 9 * scale * scale,
            Kind::Span(SpanSizes { features, scale, .. }) => 10 * features + 9 * scale * scale,
        }
    }
}

/// Returns the dictionary and the network of the tensors of a file.
///
/// Errors with the name of another network, or of some tensors.
fn recognise(names: &HashSet<String>, shape: impl Fn(&str) -> Option<Vec<usize>>) -> Result<(&'static str, Kind)> {
    for prefix in PREFIXES {
        let key = |name: &str| if prefix.is_empty() { name.to_string() } else { format!("{prefix}.{name}") };
        let has = |name: &str| names.contains(&key(name));
        let shape = |name: &str| shape(&key(name));
        if let Some((_, other)) = OTHERS.iter().find(|(name, _)| has(name)) {
            return Err(
                Error::new(format!("the file is an upscaler of the kind {other}, which is not supported")).hint(HINT)
            );
        }
        let styles = [Keys::Old, Keys::New, Keys::Bsrgan];
        let rrdb = styles.into_iter().find(|keys| has(&format!("{}.weight", keys.conv(0, 1, 1))));
        if let Some(keys) = rrdb {
            return rrdb_sizes(keys, &shape).map(|sizes| (prefix, Kind::Rrdb(sizes)));
        }
        let is_compact = shape("body.0.weight").is_some_and(|shape| shape.len() == 4)
            && shape("body.1.weight").is_some_and(|shape| shape.len() == 1);
        if is_compact {
            return compact_sizes(&shape).map(|sizes| (prefix, Kind::Compact(sizes)));
        }
        if has("conv_1.sk.weight") && has("conv_cat.weight") {
            return span_sizes(&shape).map(|sizes| (prefix, Kind::Span(sizes)));
        }
    }
    let mut some: Vec<_> = names.iter().map(String::as_str).collect();
    some.sort_unstable();
    some.truncate(3);
    Err(Error::new(format!("the file is not an upscaler: its first tensors are `{}`", some.join("`, `"))).hint(HINT))
}

fn rrdb_sizes(keys: Keys, shape: &dyn Fn(&str) -> Option<Vec<usize>>) -> Result<RrdbSizes> {
    let weight = |name: String| conv_shape(shape, &name);
    let [features, channels] = weight(keys.first().to_string())?;
    let [grown, _] = weight(keys.conv(0, 1, 1))?;
    let has = |name: String| shape(&format!("{name}.weight")).is_some();
    let blocks = (0..).take_while(|block| has(keys.conv(*block, 1, 1))).count();
    // In the old names, the convolutions of doublings are followed by the last two, two apart.
    let ups = match keys {
        Keys::Old => (0..).take_while(|up| !has(keys.ends(*up)[1].clone()) && has(keys.up(*up))).count(),
        Keys::New | Keys::Bsrgan => (0..).take_while(|up| has(keys.up(*up))).count(),
    };
    let plus = has(format!("{}.conv1x1", keys.dense(0, 1)));
    let sizes = RrdbSizes { keys, channels, features, grown, blocks, ups, plus };
    let scale = 1usize.checked_shl(ups as u32).unwrap_or(0);
    let unshuffle = (channels / 3).isqrt();
    if ![3, 12, 48].contains(&channels) || !scale.is_multiple_of(unshuffle) || !(1..=MAX_SCALE * 4).contains(&scale) {
        return Err(unknown(format!("{channels} input channels and {ups} doublings")));
    }
    check([("features", features), ("grown channels", grown)]).map(|()| sizes)
}

fn compact_sizes(shape: &dyn Fn(&str) -> Option<Vec<usize>>) -> Result<CompactSizes> {
    let [features, channels] = conv_shape(shape, "body.0")?;
    let layers = (0..).take_while(|i| shape(&format!("body.{}.weight", 2 * i + 1)).is_some()).count();
    let scale = shuffled_scale(channels, shape, &format!("body.{}", 2 * layers))?;
    check([("features", features), ("layers", layers)])?;
    Ok(CompactSizes { features, layers, scale })
}

fn span_sizes(shape: &dyn Fn(&str) -> Option<Vec<usize>>) -> Result<SpanSizes> {
    let [features, channels] = conv_shape(shape, "conv_1.sk")?;
    let scale = shuffled_scale(channels, shape, "upsampler.0")?;
    check([("features", features), ("features", features)])?;
    Ok(SpanSizes { features, scale, has_norm: shape("no_norm").is_none() })
}

/// Returns the scale of a network whose last convolution has the channels of `scale` x `scale` pixels.
fn shuffled_scale(channels: usize, shape: &dyn Fn(&str) -> Option<Vec<usize>>, last: &str) -> Result<usize> {
    let [outs, _] = conv_shape(shape, last)?;
    let scale = (outs / 3).isqrt();
    if channels != 3 || scale == 0 || scale > MAX_SCALE || outs != 3 * scale * scale {
        return Err(unknown(format!("{channels} input and {outs} output channels")));
    }
    Ok(scale)
}

/// Returns the outputs and inputs of a convolution.
fn conv_shape(shape: &dyn Fn(&str) -> Option<Vec<usize>>, name: &str) -> Result<[usize; 2]> {
    match shape(&format!("{name}.weight")).as_deref() {
        Some(&[outs, inputs, _, _]) => Ok([outs, inputs]),
        Some(shape) => Err(Error::new(format!("tensor `{name}.weight` has shape {shape:?}, expected 4 axes"))),
        None => Err(Error::new(format!("tensor `{name}.weight` is missing")).hint("fetch the file again")),
    }
}

fn check(sizes: [(&str, usize); 2]) -> Result<()> {
    match sizes.iter().find(|(_, size)| !(1..=MAX_FEATURES).contains(size)) {
        Some((what, size)) => Err(unknown(format!("{size} {what}"))),
        None => Ok(()),
    }
}

fn unknown(what: String) -> Error {
    Error::new(format!("the upscaler has {what}, which is not supported")).hint(HINT)
}
