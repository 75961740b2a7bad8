//! A random tiny decoder with the layer names of files, and its definition in plain loops.

// Each test crate uses its own part of this module.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::path::Path;

use flux::rgb::Rgb;
use half::f16;
use safetensors::tensor::{Dtype, TensorView};

/// A tensor: its shape and its values.
type Tensor = (Vec<usize>, Vec<f64>);

/// A decoder with the tensors of the reference, by their names there: `1.weight`.
pub struct TinyDecoder {
    latent_channels: usize,
    pub tensors: BTreeMap<String, Tensor>,
}

/// An image in planes of doubles, [channels, height, width].
struct Planes {
    channels: usize,
    height: usize,
    width: usize,
    values: Vec<f64>,
}

const POOLED: [usize; 3] = [3, 4, 5];

impl TinyDecoder {
    /// Creates a decoder of latents with `latent_channels` channels. Its values are fp16 values.
    pub fn random(latent_channels: usize, channels: usize) -> Self {
        let mut made = Self { latent_channels, tensors: BTreeMap::new() };
        made.conv("1", [channels, latent_channels, 3], true);
        for block in [3, 4, 5, 8, 9, 10, 13, 14, 15, 18] {
            for conv in [0, 2, 4] {
                made.conv(&format!("{block}.conv.{conv}"), [channels, channels, 3], true);
            }
            if POOLED.contains(&block) {
                made.conv(&format!("{block}.pool.0"), [4 * channels, channels, 1], false);
                made.add(&format!("{block}.pool.1.weight"), vec![4 * channels], 0.5, 1.0);
                made.add(&format!("{block}.pool.1.bias"), vec![4 * channels], 0.5, 0.0);
                made.conv(&format!("{block}.pool.3"), [channels, 4 * channels, 1], false);
            }
        }
        for upsampled in [7, 12, 17] {
            made.conv(&upsampled.to_string(), [channels, channels, 3], false);
        }
        made.conv("19", [3, channels, 3], true);
        made
    }

    fn conv(&mut self, name: &str, [out, channels, side]: [usize; 3], has_bias: bool) {
        let range = 1.5 / ((channels * side * side) as f64).sqrt();
        self.add(&format!("{name}.weight"), vec![out, channels, side, side], range, 0.0);
        if has_bias {
            self.add(&format!("{name}.bias"), vec![out], 0.1, if name == "19" { 0.2 } else { 0.0 });
        }
    }

    /// Adds a tensor of values from `centre - range` to `centre + range`.
    fn add(&mut self, name: &str, shape: Vec<usize>, range: f64, centre: f64) {
        let seed = self.tensors.len() as u64;
        let value = |i: usize| {
            let mut z = (seed << 32 | i as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let unit = ((z ^ (z >> 27)) >> 40) as f64 / f64::from(1u32 << 24);
            f16::from_f64(centre + range * (2.0 * unit - 1.0)).to_f64()
        };
        let values = (0..shape.iter().product()).map(value).collect();
        self.tensors.insert(name.to_string(), (shape, values));
    }

    /// Writes a file of the decoder alone, with names that `name` makes from those of the reference.
    pub fn write(&self, path: &Path, dtype: Dtype, name: impl Fn(&str) -> String) {
        let bytes = |value: &f64| match dtype {
            Dtype::F32 => (*value as f32).to_le_bytes().to_vec(),
            Dtype::BF16 => half::bf16::from_f64(*value).to_le_bytes().to_vec(),
            _ => f16::from_f64(*value).to_le_bytes().to_vec(),
        };
        let all = self.tensors.iter().map(|(own, (shape, values))| {
            (name(own), shape.clone(), values.iter().flat_map(bytes).collect::<Vec<u8>>())
        });
        let all: Vec<_> = all.collect();
        let view = |(name, shape, bytes)| (name, TensorView::new(dtype, shape, bytes).unwrap());
        let views = all.iter().map(|(name, shape, bytes)| view((name.as_str(), shape.clone(), bytes.as_slice())));
        safetensors::serialize_to_file(views, None, path).unwrap();
    }

    /// Decodes packed latents [height * width, 4 * latent_channels] to an image.
    pub fn image(&self, latents: &[f32], [height, width]: [usize; 2]) -> Rgb {
        let pixel = |channel: usize, y: usize, x: usize| {
            let packed = 4 * channel + 2 * (y % 2) + x % 2;
            let value = f64::from(latents[(y / 2 * width + x / 2) * 4 * self.latent_channels + packed]);
            (value / 3.0).tanh() * 3.0
        };
        let mut x = Planes::from_fn(self.latent_channels, 2 * height, 2 * width, pixel);
        x = self.convolved("1", &x).relu();
        for layer in 3..19 {
            x = match layer {
                6 | 11 | 16 => x.doubled(),
                7 | 12 | 17 => self.convolved(&layer.to_string(), &x),
                _ => self.block(layer, x),
            };
        }
        let rgb = self.convolved("19", &x);
        let byte = |value: f64| (255.0 * value.clamp(0.0, 1.0)).round() as u8;
        let at = |y: usize, x: usize| [0, 1, 2].map(|colour| byte(rgb.at(colour, y, x)));
        let bytes = (0..rgb.height).flat_map(|y| (0..rgb.width).flat_map(move |x| [y, x])).collect::<Vec<_>>();
        Rgb {
            width: rgb.width,
            height: rgb.height,
            bytes: bytes.chunks(2).flat_map(|place| at(place[0], place[1])).collect(),
        }
    }

    fn block(&self, layer: usize, x: Planes) -> Planes {
        let x = if POOLED.contains(&layer) {
            let h = self.convolved(&format!("{layer}.pool.0"), &x);
            let h = self.normed(&format!("{layer}.pool.1"), &h).relu();
            x.plus(&self.convolved(&format!("{layer}.pool.3"), &h))
        } else {
            x
        };
        let h = self.convolved(&format!("{layer}.conv.0"), &x).relu();
        let h = self.convolved(&format!("{layer}.conv.2"), &h).relu();
        self.convolved(&format!("{layer}.conv.4"), &h).plus(&x).relu()
    }

    fn convolved(&self, name: &str, x: &Planes) -> Planes {
        let (shape, weight) = &self.tensors[&format!("{name}.weight")];
        let &[out, channels, side, _] = &shape[..] else { panic!("{name}: {shape:?}") };
        let bias = self.tensors.get(&format!("{name}.bias"));
        Planes::from_fn(out, x.height, x.width, |o, y, column| {
            let mut sum = bias.map_or(0.0, |(_, bias)| bias[o]);
            for (c, ky, kx) in each([channels, side, side]) {
                let (py, px) = ((y + ky).checked_sub(side / 2), (column + kx).checked_sub(side / 2));
                if let (Some(py), Some(px)) = (py, px)
                    && py < x.height
                    && px < x.width
                {
                    sum += weight[((o * channels + c) * side + ky) * side + kx] * x.at(c, py, px);
                }
            }
            sum
        })
    }

    /// Group norm in four groups.
    fn normed(&self, name: &str, x: &Planes) -> Planes {
        let [weight, bias] = ["weight", "bias"].map(|word| &self.tensors[&format!("{name}.{word}")].1);
        let each_group = x.values.chunks_exact(x.values.len() / 4).map(|group| {
            let mean = group.iter().sum::<f64>() / group.len() as f64;
            let variance = group.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / group.len() as f64;
            (mean, (variance + 1e-5).sqrt())
        });
        let groups: Vec<_> = each_group.collect();
        Planes::from_fn(x.channels, x.height, x.width, |channel, y, column| {
            let (mean, deviation) = groups[channel / (x.channels / 4)];
            (x.at(channel, y, column) - mean) / deviation * weight[channel] + bias[channel]
        })
    }
}

/// Returns all positions on three axes.
fn each([a, b, c]: [usize; 3]) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..a * b * c).map(move |i| (i / (b * c), i / c % b, i % c))
}

impl Planes {
    fn from_fn(channels: usize, height: usize, width: usize, value: impl Fn(usize, usize, usize) -> f64) -> Self {
        let values = each([channels, height, width]).map(|(c, y, x)| value(c, y, x)).collect();
        Self { channels, height, width, values }
    }

    fn at(&self, channel: usize, y: usize, x: usize) -> f64 {
        self.values[(channel * self.height + y) * self.width + x]
    }

    fn relu(mut self) -> Self {
        self.values.iter_mut().for_each(|value| *value = value.max(0.0));
        self
    }

    fn plus(mut self, other: &Self) -> Self {
        self.values.iter_mut().zip(&other.values).for_each(|(value, other)| *value += other);
        self
    }

    fn doubled(&self) -> Self {
        Self::from_fn(self.channels, 2 * self.height, 2 * self.width, |c, y, x| self.at(c, y / 2, x / 2))
    }
}

/// Converts a name of the reference to diffusers, which does not count the first layer.
pub fn diffusers_name(name: &str) -> String {
    let (number, rest) = name.split_once('.').expect("a layer and a tensor");
    format!("decoder.layers.{}.{rest}", number.parse::<usize>().expect("a number") - 1)
}
