//! The shapes of a model's ops, and their amount of work.

use flux::model::ModelInfo;
use flux::ops::{Conv, TokenLayout};

/// The dimensions of a model that determine its running time.
#[derive(Debug, Clone, PartialEq)]
pub struct Shapes {
    /// The number of text tokens.
    pub txt: usize,
    /// The width of the transformer. The next fields are widths of a head, the MLP, packed latents and text features.
    pub dim: usize,
    pub head_dim: usize,
    pub mlp: usize,
    pub in_channels: usize,
    pub context: usize,
    pub double_blocks: usize,
    pub single_blocks: usize,
    /// The number of blocks per step that text, references and image each pass separately.
    pub early_blocks: [usize; 3],
    pub text: TextShapes,
    /// Channels of the decoder's blocks, starting at the pixels.
    pub vae_channels: Vec<usize>,
    /// Channels of the encoder's blocks, which have one residual block less each.
    pub encoder_channels: Vec<usize>,
    pub latent_channels: usize,
    /// Residual blocks per up block.
    pub vae_resnets: usize,
    pub vae_groups: usize,
}

/// The dimensions of the text encoder.
#[derive(Debug, Clone, PartialEq)]
pub struct TextShapes {
    pub hidden: usize,
    pub mlp: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// The number of layers that run.
    pub layers: usize,
}

/// A matrix multiplication [rows, cols] by [out, cols] that runs `times` times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Linear {
    pub rows: usize,
    pub cols: usize,
    pub out: usize,
    pub times: usize,
}

impl Linear {
    fn new(rows: usize, cols: usize, out: usize, times: usize) -> Self {
        Self { rows, cols, out, times }
    }

    /// Returns the floating-point operations of one run.
    pub fn flops(&self) -> u64 {
        2 * (self.rows * self.cols * self.out) as u64
    }
}

/// A convolution with an input of side x side pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Convolution {
    pub side: usize,
    pub cin: usize,
    pub cout: usize,
    pub kernel: usize,
    /// True if the result is added to a residual.
    pub add: bool,
    /// True if the result has half as many rows and columns.
    pub halves: bool,
}

impl Convolution {
    fn new(side: usize, cin: usize, cout: usize, kernel: usize) -> Self {
        Self { side, cin, cout, kernel, add: false, halves: false }
    }

    pub fn conv(&self) -> Conv {
        if self.halves { Conv::halve(self.side, self.side) } else { Conv::same(self.side, self.side, self.kernel) }
    }

    pub fn flops(&self) -> u64 {
        let pixels = self.conv().out_height() * self.conv().out_width();
        2 * (pixels * self.cin * self.cout * self.kernel * self.kernel) as u64
    }
}

/// Returns the convolutions of a residual block.
fn resnet(side: usize, cin: usize, cout: usize) -> impl Iterator<Item = Convolution> {
    let shortcut = (cin != cout).then(|| Convolution::new(side, cin, cout, 1));
    let sum = Convolution { add: true, ..Convolution::new(side, cout, cout, 3) };
    [Some(Convolution::new(side, cin, cout, 3)), shortcut, Some(sum)].into_iter().flatten()
}

impl Shapes {
    pub fn new(info: &ModelInfo) -> Self {
        let (transformer, text, vae) = (&info.transformer, &info.text_encoder, &info.vae);
        Self {
            txt: info.usual_text_tokens(),
            dim: transformer.dim(),
            head_dim: transformer.attention_head_dim,
            mlp: transformer.mlp(),
            in_channels: transformer.in_channels,
            context: transformer.joint_attention_dim,
            double_blocks: transformer.double_blocks(),
            single_blocks: transformer.num_single_layers,
            early_blocks: if transformer.has_early_blocks() {
                // The part that does not depend on the step is computed once.
                let of_context = if transformer.reads_next_time() { transformer.num_layers } else { 0 };
                [of_context, of_context, transformer.num_layers]
            } else {
                [0; 3]
            },
            text: TextShapes {
                hidden: text.hidden_size,
                mlp: text.intermediate_size,
                heads: text.num_attention_heads,
                kv_heads: text.num_key_value_heads,
                head_dim: text.head_dim,
                layers: info.out_layers.iter().copied().max().unwrap_or(0),
            },
            vae_channels: vae.decoder_channels().to_vec(),
            encoder_channels: vae.block_out_channels.clone(),
            latent_channels: vae.latent_channels,
            vae_resnets: vae.layers_per_block + 1,
            vae_groups: vae.norm_num_groups,
        }
    }

    /// Returns the shapes of FLUX.2-klein 4B, for ops without a model.
    pub fn klein_4b() -> Self {
        Self {
            txt: 512,
            dim: 3072,
            head_dim: 128,
            mlp: 9216,
            in_channels: 128,
            context: 7680,
            double_blocks: 5,
            single_blocks: 20,
            early_blocks: [0; 3],
            text: TextShapes { hidden: 2560, mlp: 9728, heads: 32, kv_heads: 8, head_dim: 128, layers: 27 },
            vae_channels: vec![128, 256, 512, 512],
            encoder_channels: vec![128, 256, 512, 512],
            latent_channels: 32,
            vae_resnets: 3,
            vae_groups: 32,
        }
    }

    /// Returns the shapes with another number of text tokens.
    pub fn with_text(&self, txt: usize) -> Self {
        Self { txt, ..self.clone() }
    }

    /// Returns the pixels on a side of a packed latent.
    pub fn patch(&self) -> usize {
        2 << (self.vae_channels.len() - 1)
    }

    /// Returns the tokens of `batch` square images with sides of `size` pixels.
    pub fn layout(&self, batch: usize, size: usize) -> TokenLayout {
        TokenLayout::new(batch, self.txt, (size / self.patch()).pow(2))
    }

    /// Returns the tokens of one square image with sides of `size` pixels, and of the references before it.
    pub fn edit_layout(&self, size: usize, references: usize) -> TokenLayout {
        TokenLayout { references, ..self.layout(1, size) }
    }

    /// Returns the matrix multiplications of one evaluation of the transformer, with all rows in its last single block;
    /// [`Shapes::step_flops`] counts fewer.
    pub fn step_linears(&self, layout: TokenLayout) -> Vec<Linear> {
        let Self { dim, mlp, .. } = *self;
        let (all, img) = (layout.rows(), layout.img_rows());
        let image_stream = all - layout.txt_rows();
        let mut linears = vec![
            Linear::new(all, dim, 3 * dim + 2 * mlp, self.single_blocks),
            Linear::new(all, dim + mlp, dim, self.single_blocks),
        ];
        for rows in [image_stream, layout.txt_rows()] {
            linears.extend(
                [(dim, 3 * dim), (dim, dim), (dim, 2 * mlp), (mlp, dim)]
                    .map(|(cols, out)| Linear::new(rows, cols, out, self.double_blocks)),
            );
        }
        for (rows, blocks) in self.early(layout) {
            linears.push(Linear::new(rows, dim, 3 * dim + 2 * mlp, blocks));
            linears.push(Linear::new(rows, dim + mlp, dim, blocks));
        }
        linears.extend([Linear::new(img, self.in_channels, dim, 1), Linear::new(img, dim, self.in_channels, 1)]);
        linears
    }

    /// Returns rows and number of the separate blocks for text, references and images.
    fn early(&self, layout: TokenLayout) -> impl Iterator<Item = (usize, usize)> {
        let rows = [layout.txt_rows(), layout.references, layout.img_rows()];
        rows.into_iter().zip(self.early_blocks).filter(|(rows, blocks)| *rows > 0 && *blocks > 0)
    }

    /// Returns the matrix multiplications that run once per image: the projection of the text features, and the
    /// modulations of `steps` steps.
    pub fn prepare_linears(&self, steps: usize) -> Vec<Linear> {
        vec![Linear::new(self.txt, self.context, self.dim, 1), Linear::new(steps, self.dim, 6 * self.dim, 2)]
    }

    /// Returns the matrix multiplications of one prompt.
    pub fn text_linears(&self) -> Vec<Linear> {
        let TextShapes { hidden, mlp, heads, kv_heads, head_dim, layers } = self.text;
        let shapes =
            [(hidden, (heads + 2 * kv_heads) * head_dim), (heads * head_dim, hidden), (hidden, 2 * mlp), (mlp, hidden)];
        shapes.map(|(cols, out)| Linear::new(self.txt, cols, out, layers)).to_vec()
    }

    /// Returns the decoder's up blocks in order: (side, channels in, channels out).
    pub fn up_blocks(&self, size: usize) -> Vec<(usize, usize, usize)> {
        let channels: Vec<usize> = self.vae_channels.iter().rev().copied().collect();
        let side = |i: usize| size >> (channels.len() - 1 - i);
        (0..channels.len()).map(|i| (side(i), channels[i.saturating_sub(1)], channels[i])).collect()
    }

    /// Returns every convolution of the decoder, in order.
    pub fn convolutions(&self, size: usize) -> Vec<Convolution> {
        let blocks = self.up_blocks(size);
        let (inner, top, _) = blocks[0];
        let mut all = vec![Convolution::new(inner, self.latent_channels, top, 3)];
        all.extend((0..2).flat_map(|_| resnet(inner, top, top)));
        for (i, &(side, cin, cout)) in blocks.iter().enumerate() {
            all.extend((0..self.vae_resnets).flat_map(|j| resnet(side, if j == 0 { cin } else { cout }, cout)));
            if i + 1 < blocks.len() {
                all.push(Convolution::new(2 * side, cout, cout, 3));
            }
        }
        all.push(Convolution::new(size, self.vae_channels[0], 3, 3));
        all
    }

    /// Returns every convolution of the encoder, in order.
    pub fn encoder_convolutions(&self, size: usize) -> Vec<Convolution> {
        let channels = &self.encoder_channels;
        let (inner, top) = self.encoded(size);
        let mut all = vec![Convolution::new(size, 3, channels[0], 3)];
        for (i, &cout) in channels.iter().enumerate() {
            let (side, cin) = (size >> i, channels[i.saturating_sub(1)]);
            all.extend((1..self.vae_resnets).flat_map(|j| resnet(side, if j == 1 { cin } else { cout }, cout)));
            if i + 1 < channels.len() {
                all.push(Convolution { halves: true, ..Convolution::new(side, cout, cout, 3) });
            }
        }
        all.extend((0..2).flat_map(|_| resnet(inner, top, top)));
        all.push(Convolution::new(inner, top, 2 * self.latent_channels, 3));
        all.push(Convolution::new(inner, 2 * self.latent_channels, self.latent_channels, 1));
        all
    }

    /// Returns side and channels of the input of the encoder's middle block.
    fn encoded(&self, size: usize) -> (usize, usize) {
        let last = self.encoder_channels.len() - 1;
        (size >> last, self.encoder_channels[last])
    }

    /// Returns the floating-point operations of one evaluation: matrix multiplications with weights, and attention,
    /// which also reads the keys of `cached` tokens.
    pub fn step_flops(&self, layout: TokenLayout, cached: usize) -> u64 {
        let attention = |queries: usize| 4 * (queries * (layout.tokens() + cached) * self.dim) as u64;
        let blocks = (self.double_blocks + self.single_blocks) as u64;
        let samples = layout.batch as u64;
        // Tokens attend within their sample. With references, there is only one sample.
        let early =
            |(rows, blocks): (usize, usize)| blocks as u64 * 4 * (rows as u64).pow(2) * self.dim as u64 / samples;
        let all = flops(&self.step_linears(layout))
            + attention(layout.rows()) * blocks
            + self.early(layout).map(early).sum::<u64>();
        // For text and references, the last single block computes only keys and values.
        let (dim, mlp) = (self.dim, self.mlp);
        let unread = layout.context_rows();
        let of_unread = [(dim, dim + 2 * mlp), (dim + mlp, dim)]
            .map(|(cols, out)| Linear::new(unread, cols, out, self.single_blocks.min(1)));
        all - flops(&of_unread) - attention(unread) * self.single_blocks.min(1) as u64
    }

    /// Returns the floating-point operations for the keys and values of `tokens` reference tokens: all blocks, without
    /// the layers before and after them.
    pub fn reference_flops(&self, tokens: usize) -> u64 {
        let ends = 2 * Linear::new(tokens, self.in_channels, self.dim, 1).flops();
        self.step_flops(TokenLayout::single(tokens), 0) - ends
    }

    /// Returns the floating-point operations of one prompt, without attention, which is about 1% of them.
    pub fn text_flops(&self) -> u64 {
        flops(&self.text_linears())
    }

    /// Returns the floating-point operations of decoding one image.
    pub fn decode_flops(&self, size: usize) -> u64 {
        let (side, channels, _) = self.up_blocks(size)[0];
        self.convolutions(size).iter().map(Convolution::flops).sum::<u64>() + middle_flops(side, channels)
    }

    /// Returns the floating-point operations of encoding one image.
    pub fn encode_flops(&self, size: usize) -> u64 {
        let (side, channels) = self.encoded(size);
        self.encoder_convolutions(size).iter().map(Convolution::flops).sum::<u64>() + middle_flops(side, channels)
    }
}

/// Returns the floating-point operations of the VAE's middle attention, with its four matrix multiplications.
fn middle_flops(side: usize, channels: usize) -> u64 {
    let pixels = side * side;
    (4 * pixels.pow(2) * channels + 4 * 2 * pixels * channels * channels) as u64
}

fn flops(linears: &[Linear]) -> u64 {
    linears.iter().map(|linear| linear.flops() * linear.times as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_of_klein_4b_is_two_flops_a_weight_and_token() {
        let shapes = Shapes::klein_4b();
        let layout = shapes.layout(1, 1024);
        assert_eq!((layout.tokens(), layout.rows()), (4608, 4608));
        // 3.87 billion weights without the modulations. Each stream of a double block has its own weights, so a token
        // passes 25 blocks.
        let block = 4 * 3072_u64.pow(2) + 3 * 3072 * 9216;
        let attention = 4 * 4608_u64.pow(2) * 3072 * 25;
        // For the 512 text tokens, the last block computes only keys and values, without attention.
        let unread = 2 * 512 * (block - 2 * 3072_u64.pow(2)) + 4 * 512 * 4608 * 3072;
        let of_weights = 2 * 4608 * block * 25 + 2 * 2 * 4096 * 128 * 3072;
        assert_eq!(shapes.step_flops(layout, 0), of_weights + attention - unread);
        assert_eq!(shapes.step_flops(shapes.layout(3, 1024), 0), 3 * shapes.step_flops(layout, 0));
        // Cached keys are read by all queries; in the last block, only by the image's.
        let read = 4 * (4608 * 24 + 4096) * 1000 * 3072;
        assert_eq!(shapes.step_flops(layout, 1000), shapes.step_flops(layout, 0) + read);
    }

    #[test]
    fn streams_of_flux3_pass_blocks_of_their_own() {
        let klein = Shapes::klein_4b();
        let alone = Shapes { double_blocks: 0, single_blocks: 28, ..klein.with_text(320) };
        let flux3 = Shapes { early_blocks: [5; 3], ..alone.clone() };
        let layout = flux3.layout(1, 1024);
        let block = 4 * 3072_u64.pow(2) + 3 * 3072 * 9216;
        let early = 5 * (2 * 4416 * block + 4 * (320_u64.pow(2) + 4096_u64.pow(2)) * 3072);
        assert_eq!(flux3.step_flops(layout, 0), alone.step_flops(layout, 0) + early);
        assert!((43.0..44.0).contains(&(flux3.step_flops(layout, 0) as f64 / 1e12)));
    }

    #[test]
    fn references_are_tokens_that_ask_no_queries_in_the_last_block() {
        let shapes = Shapes::klein_4b();
        let layout = shapes.edit_layout(1024, 4096);
        assert_eq!((layout.tokens(), layout.context_rows(), layout.img_rows()), (8704, 4608, 4096));
        let block = 4 * 3072_u64.pow(2) + 3 * 3072 * 9216;
        let of_weights = 2 * 8704 * block * 25 + 2 * 2 * 4096 * 128 * 3072;
        let unread = 2 * 4608 * (block - 2 * 3072_u64.pow(2)) + 4 * 4608 * 8704 * 3072;
        assert_eq!(shapes.step_flops(layout, 0), of_weights + 4 * 8704_u64.pow(2) * 3072 * 25 - unread);
        // Encoded alone, the reference tokens pass every block completely.
        assert_eq!(shapes.reference_flops(4096), 2 * 4096 * block * 25 + 4 * 4096_u64.pow(2) * 3072 * 25);
    }

    #[test]
    fn the_decoder_of_klein_4b_has_its_convolutions() {
        let convolutions = Shapes::klein_4b().convolutions(1024);
        // The first one, the middle, three residual blocks at each of four sides with two shortcuts, three upsamplers,
        // and the last one.
        assert_eq!(convolutions.len(), 1 + 4 + 4 * 6 + 2 + 3 + 1);
        assert_eq!((convolutions[0].side, convolutions[0].cin, convolutions[0].cout), (128, 32, 512));
        assert!(convolutions.contains(&Convolution::new(1024, 256, 128, 1)));
        assert!(convolutions.contains(&Convolution::new(1024, 256, 256, 3)), "the last upsampler");
    }

    #[test]
    fn the_encoder_of_klein_4b_has_its_convolutions() {
        let shapes = Shapes::klein_4b();
        let convolutions = shapes.encoder_convolutions(1024);
        // The first one, two residual blocks at each of four sides with two shortcuts, three downsamplers, the middle,
        // the last one and the 1 x 1 after it.
        assert_eq!(convolutions.len(), 1 + 4 * 4 + 2 + 3 + 4 + 2);
        assert!(convolutions.contains(&Convolution::new(512, 128, 256, 1)));
        let last = Convolution { halves: true, ..Convolution::new(256, 512, 512, 3) };
        assert!(convolutions.contains(&last));
        assert_eq!(last.flops(), 2 * 128 * 128 * 512 * 512 * 9);
        assert_eq!(shapes.encode_flops(1024) / 100_000_000_000, 48, "tenths of a TFLOP");
    }

    #[test]
    fn a_model_has_the_shapes_that_its_configs_say() {
        let dir =
            flux::files::ModelFiles::open(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny").as_ref()).unwrap();
        let info = ModelInfo::read(&dir).unwrap();
        let shapes = Shapes::new(&info);
        assert_eq!(shapes.patch(), info.vae.patch_pixels());
        assert_eq!(shapes.text.layers, *info.out_layers.iter().max().unwrap());
        assert_eq!((shapes.dim, shapes.txt), (info.transformer.dim(), info.max_sequence_length));
    }
}
