//! Names of the request fields, in JSON and in forms.
//!
//! Aliases from other APIs are accepted as well, in any case and with or without underscores. Errors use the name that
//! the client sent.

use std::iter;

/// Each field, with its aliases from diffusers, A1111, ComfyUI, fal, Replicate, Together and Stability.
const NAMES: &[(&str, &[&str])] = &[
    ("prompt", &["positive_prompt", "text_prompt"]),
    ("negative_prompt", &["negative"]),
    ("model", &["model_id", "model_name", "checkpoint"]),
    (
        "n",
        &[
            "num_images", "batch_size", "num_images_per_prompt", "num_outputs", "number_of_images", "number_results",
            "num_samples", "samples", "n_iter", "image_count",
        ],
    ),
    ("size", &["image_size", "resolution", "dimensions"]),
    ("by", &["scale", "factor", "upscale_by", "upscale_factor"]),
    ("width", &["image_width"]),
    ("height", &["image_height"]),
    ("aspect_ratio", &["ratio"]),
    ("steps", &["num_inference_steps", "inference_steps", "num_steps", "sampling_steps", "sample_steps"]),
    ("seed", &["random_seed", "noise_seed"]),
    ("guidance", &["guidance_scale", "cfg_scale", "cfg", "true_cfg_scale"]),
    ("strength", &["denoising_strength", "denoise", "denoise_strength", "prompt_strength"]),
    ("loras", &["lora", "adapters"]),
    (
        "image",
        &[
            "images", "image_url", "image_urls", "init_image", "init_images", "input_image", "input_images",
            "source_image", "reference_image", "reference_images", "url", "urls",
        ],
    ),
    ("mask", &["masks", "mask_url", "mask_image"]),
    ("output_format", &["image_format", "format"]),
    ("output_compression", &["output_quality", "jpeg_quality"]),
    ("response_format", &[]),
    ("partial_images", &[]),
    ("priority", &[]),
    ("upsample", &["prompt_upsampling", "enable_prompt_expansion", "enhance_prompt"]),
    ("deadline_s", &[]),
    ("user", &["user_id"]),
];

/// Fields of other APIs that have no equivalent, with a suggestion for each.
const INSTEAD: &[(&str, &str)] = &[
    ("image_strength", "use `strength`, which is 1 - image_strength"),
    ("scheduler", "the sampler is Euler, and `steps` is its number of steps"),
    ("sampler", "the sampler is Euler, and `steps` is its number of steps"),
    ("sampler_name", "the sampler is Euler, and `steps` is its number of steps"),
    ("sample_method", "the sampler is Euler, and `steps` is its number of steps"),
    ("megapixels", "use `size` as WIDTHxHEIGHT"),
    ("lora_scale", "use `loras`, a list of {\"name\", \"weight\"}"),
    ("lora_weight", "use `loras`, a list of {\"name\", \"weight\"}"),
    ("lora_weights", "use `loras`, a list of {\"name\", \"weight\"}"),
    ("image_prompt", "send input images as `image` to /v1/images/edits"),
    ("extra_body", "send its fields in the request itself"),
    ("parameters", "send its fields in the request itself"),
    ("file", "send images as `image`"),
    ("files", "send images as `image`"),
];

/// Returns the field with this name or alias.
pub fn field(name: &str) -> Option<&'static str> {
    let known =
        NAMES.iter().find(|(field, others)| iter::once(field).chain(others.iter()).any(|known| is_same(known, name)));
    known.map(|(field, _)| *field)
}

/// Returns the field of a file's name in a form, and its index in a list: `image`, `image[]`, `image[1]`.
pub fn file_field(name: &str) -> (Option<&'static str>, Option<usize>) {
    let (list, place) = name.strip_suffix(']').and_then(|name| name.rsplit_once('[')).unwrap_or((name, ""));
    let is_place = place.chars().all(|c| c.is_ascii_digit());
    let field = field(if is_place { list } else { name }).filter(|field| matches!(*field, "image" | "mask"));
    (field, place.parse().ok().filter(|_| is_place))
}

/// Returns a suggestion for a field of another API that has no equivalent.
pub fn instead(name: &str) -> Option<&'static str> {
    INSTEAD.iter().find(|(known, _)| is_same(known, name)).map(|(_, instead)| *instead)
}

/// Returns `true` if two names are equal, ignoring case, underscores and hyphens.
fn is_same(a: &str, b: &str) -> bool {
    let letters = |byte: &u8| !matches!(byte, b'_' | b'-');
    let [mut a, mut b] = [a, b].map(|name| name.bytes().filter(letters).map(|byte| byte.to_ascii_lowercase()));
    // Compares letter by letter without allocating, since each of many fields may be compared with all names. Most
    // names differ in their first letters.
    loop {
        match (a.next(), b.next()) {
            (None, None) => return true,
            (one, other) if one == other => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_field() {
        let mut all: Vec<&str> =
            NAMES.iter().flat_map(|(field, others)| iter::once(field).chain(*others)).copied().collect();
        all.extend(INSTEAD.iter().map(|(name, _)| *name));
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        assert_eq!(field("numInferenceSteps"), Some("steps"));
        assert_eq!(field("CFG-Scale"), Some("guidance"));
        assert_eq!([field("what"), field(""), field("stepss")], [None; 3]);
    }

    #[test]
    fn files_of_a_form_may_be_numbered() {
        for (name, expected) in [
            ("image", (Some("image"), None)),
            ("image[]", (Some("image"), None)),
            ("images[1]", (Some("image"), Some(1))),
            ("mask[0]", (Some("mask"), Some(0))),
            ("mask[]", (Some("mask"), None)),
            ("prompt", (None, None)),
            ("image[x]", (None, None)),
            ("picture", (None, None)),
        ] {
            assert_eq!(file_field(name), expected, "{name}");
        }
    }
}
