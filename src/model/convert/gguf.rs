//! Metadata of a component in a GGUF file, with the keys of llama.cpp and of programs that read transformers.

use crate::error::{Error, Result};
use crate::files::writer::{self, TensorWriter, Value};
use crate::files::{CONFIG_KEY, Format, Role};
use crate::model::convert::{Conversion, shape};
use crate::model::quantize::plan::Planned;
use crate::model::registry::ModelKind;
use crate::text_encoder::{TextEncoderConfig, Tokenizer};
use crate::transformer::TransformerConfig;

/// The version of the quantized blocks.
const QUANTIZATION_VERSION: u32 = 2;
/// Maximum prompt length of a text encoder, unless its config has one.
const CONTEXT_LENGTH: usize = 40960;
/// The tokens that end and pad a text.
const END: &str = "<|im_end|>";
const PADDING: &str = "<|endoftext|>";
/// Axes of a tensor.
const MAX_AXES: usize = 4;
/// Arbitrary: reading a vocabulary cuts no prompts.
const PROMPT_TOKENS: usize = 512;

/// Begins the file.
pub fn begin(conversion: &Conversion, tensors: &[(Planned, Format)]) -> Result<TensorWriter> {
    let role = conversion.component.role();
    // For transformers, ComfyUI's loader recognises the family by this name.
    let architecture = conversion.own().part(role).architectures[0];
    let mut values = Values { architecture, said: Vec::new() };
    values.text("general.architecture", architecture);
    values.number("general.quantization_version", QUANTIZATION_VERSION);
    values.number("general.file_type", conversion.format.row().gguf.expect("a format of GGUF").file_type);
    values.text(CONFIG_KEY, &conversion.config()?);
    if role == Role::Transformer {
        transformer(conversion, &mut values)?;
    } else {
        text_encoder(conversion, &mut values)?;
    }
    let entry = |(tensor, format): &(Planned, Format)| {
        let shape = shape(tensor);
        if !(1..=MAX_AXES).contains(&shape.len()) {
            return Err(Error::new(format!("tensor `{}` has shape {shape:?}, which GGUF cannot store", tensor.name))
                .at(tensor.path.as_str())
                .hint(format!("this is not a {} text encoder: choose another one", conversion.own().text_encoder)));
        }
        Ok((conversion.name_in_gguf(tensor)?, *format, shape))
    };
    let entries = tensors.iter().map(entry).collect::<Result<Vec<_>>>()?;
    writer::gguf(&conversion.target, &values.said, &entries)
}

struct Values {
    architecture: &'static str,
    said: Vec<(String, Value)>,
}

impl Values {
    fn put(&mut self, key: &str, value: Value) {
        self.said.push((key.to_string(), value));
    }

    /// Adds a value under the key prefix of the architecture.
    fn own(&mut self, end: &str, value: Value) {
        self.put(&format!("{}.{end}", self.architecture), value);
    }

    fn text(&mut self, key: &str, text: &str) {
        self.put(key, Value::Text(text.to_string()));
    }

    fn number(&mut self, key: &str, number: u32) {
        self.put(key, Value::U32(number));
    }

    fn size(&mut self, key: &str, size: usize) -> Result<()> {
        let size =
            u32::try_from(size).map_err(|_| Error::new(format!("`{key}` is {size}, which GGUF cannot store")))?;
        self.number(key, size);
        Ok(())
    }
}

/// Adds the values that no shape determines.
fn transformer(conversion: &Conversion, values: &mut Values) -> Result<()> {
    let config = TransformerConfig::from_component(&conversion.component)?;
    values.own("rope.freq_base", Value::F32(config.rope_theta as f32));
    values.own("attention.layer_norm_epsilon", Value::F32(config.eps));
    let axes = config.axes_dims_rope.iter().map(|axis| *axis as i32).collect();
    values.own("rope.dimension_sections", Value::Ints(axes));
    Ok(())
}

/// Adds the sizes and the tokenizer.
fn text_encoder(conversion: &Conversion, values: &mut Values) -> Result<()> {
    let config = TextEncoderConfig::from_component(&conversion.component)?;
    for (end, size) in [
        ("block_count", config.num_hidden_layers),
        ("context_length", config.max_position_embeddings.unwrap_or(CONTEXT_LENGTH)),
        ("embedding_length", config.hidden_size),
        ("feed_forward_length", config.intermediate_size),
        ("attention.head_count", config.num_attention_heads),
        ("attention.head_count_kv", config.num_key_value_heads),
        ("attention.key_length", config.head_dim),
        ("attention.value_length", config.head_dim),
    ] {
        values.size(&format!("{}.{end}", values.architecture), size)?;
    }
    values.own("rope.freq_base", Value::F32(config.rope_theta as f32));
    values.own("attention.layer_norm_rms_epsilon", Value::F32(config.rms_norm_eps));
    let Some(file) = &conversion.tokenizer else { return Ok(()) };
    let vocabulary =
        Tokenizer::load(file, ModelKind::for_architecture(conversion.own().architecture).template, PROMPT_TOKENS)?
            .vocabulary(config.vocab_size)?;
    values.text("tokenizer.ggml.model", "gpt2");
    values.text("tokenizer.ggml.pre", "qwen2");
    for (key, token) in [("tokenizer.ggml.eos_token_id", END), ("tokenizer.ggml.padding_token_id", PADDING)] {
        if let Some(id) = vocabulary.id(token) {
            values.size(key, id)?;
        }
    }
    values.put("tokenizer.ggml.add_bos_token", Value::Bool(false));
    values.put("tokenizer.ggml.tokens", Value::Texts(vocabulary.tokens));
    values.put("tokenizer.ggml.token_type", Value::Ints(vocabulary.kinds));
    values.put("tokenizer.ggml.merges", Value::Texts(vocabulary.merges));
    Ok(())
}
