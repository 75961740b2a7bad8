//! Descriptions of the tools, depending on the server's models.

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};

use crate::App;
use crate::jobs::request::MAX_FACTOR;

/// Facts about the default model.
pub struct About {
    pub model: String,
    /// Details of the model, if it is loaded.
    pub opened: Option<Opened>,
    pub max_pixels: usize,
    /// `true` if the client may name files of this machine.
    pub takes_paths: bool,
    /// `true` if the server has a language model that rewrites prompts.
    pub upsamples: bool,
    /// The upscalers of the server.
    pub upscalers: Vec<String>,
}

pub struct Opened {
    pub size: [usize; 2],
    pub steps: usize,
    pub is_distilled: bool,
}

impl About {
    pub fn new(app: &App, takes_paths: bool) -> Self {
        let models = app.queue.models();
        let opened = models.resident(0).map(|engine| {
            let info = engine.info();
            let [height, width] = info.default_image_size;
            Opened { size: [width, height], steps: info.default_steps, is_distilled: info.is_distilled }
        });
        Self {
            model: models.name(0).to_string(),
            opened,
            max_pixels: app.config.limits.max_pixels,
            takes_paths,
            upsamples: app.upsampling.is_some(),
            upscalers: models.upscalers().all_names(),
        }
    }

    /// Returns the instructions for clients.
    pub fn instructions(&self) -> String {
        format!(
            "Generates and edits images with the model {}. Describe the whole scene in one or two sentences. The result \
             has a small copy; the full image is the linked file, and a resource.",
            self.model
        )
    }

    fn sizes(&self) -> String {
        let megapixels = self.max_pixels as f64 / 1e6;
        let default = self
            .opened
            .as_ref()
            .map_or(String::new(), |Opened { size: [width, height], .. }| format!(", {width}x{height} by default"));
        format!("WIDTHxHEIGHT in pixels{default}: sides in multiples of 16, at most {megapixels:.1} megapixels")
    }

    fn upsampling(&self) -> &'static str {
        match self.upsamples {
            true => "Let a language model of the server rewrite the prompt as a full caption",
            false => "Not available on this server",
        }
    }

    fn guidance(&self) -> &'static str {
        match &self.opened {
            Some(opened) if opened.is_distilled => "No effect on the default model, which is distilled",
            _ => "No effect on distilled models",
        }
    }
}

/// Limitations of all models, for both tools.
const LIMITS: &str = "The model has no memory between calls, looks nothing up, and does not reason: the prompt must \
                      describe everything. Animations and vector graphics are not supported, and long texts in an \
                      image come out wrong.";

pub fn tools(about: &About) -> Vec<Tool> {
    let with_default = |mut field: Value, default: Option<Value>| {
        if let Some(default) = default {
            field["default"] = default;
        }
        field
    };
    let size = about.opened.as_ref().map(|opened| json!(format!("{}x{}", opened.size[0], opened.size[1])));
    let steps = about.opened.as_ref().map(|opened| json!(opened.steps));
    let mut common = json!({
        "prompt": {"type": "string", "description": "Description of the scene"},
        "size": {"type": "string", "description": about.sizes(), "examples": ["1024x768"]},
        "n": {"type": "integer", "minimum": 1, "maximum": 10, "default": 1,
            "description": "Number of images, with consecutive seeds"},
        "seed": {"type": "integer", "minimum": 0,
            "description": "The same seed and arguments give the same image; random by default"},
        "variation": {"type": "string", "examples": ["42:0.2"],
            "description": "SEED:X varies the image of SEED; X is from 0, that image, to 1, the image of `seed`"},
        "variety": {"type": "number", "minimum": 0, "maximum": 2, "default": 0,
            "description": "How much more images of one prompt differ; 0.5 is little, and 1.5 much"},
        "steps": with_default(json!({"type": "integer", "minimum": 1, "maximum": 1000,
            "description": "Denoising steps; by default the model's own number"}), steps),
        "guidance": {"type": "number", "minimum": 0,
            "description": format!("How closely to follow the prompt. {}", about.guidance())},
        "negative_prompt": {"type": "string", "description": format!("What to avoid. {}", about.guidance())},
        "boxes": {"type": "array", "description": "Places of objects, for FLUX.3: the prompt cites them as <id>; bbox is \
            top, left, bottom, right from 0 to 1000", "items": {"type": "object", "required": ["id", "bbox"], "properties": {
            "id": {"type": "string"}, "bbox": {"type": "array", "items": {"type": "integer"}, "minItems": 4, "maxItems": 4},
            "desc": {"type": "string"}}}},
        "regions": {"type": "array", "description": "Texts for parts of the image, for FLUX.2: box is top, left, bottom, \
            right from 0 to 1000", "items": {"type": "object", "required": ["box", "prompt"], "properties": {
            "box": {"type": "array", "items": {"type": "integer"}, "minItems": 4, "maxItems": 4},
            "prompt": {"type": "string"}}}},
        "expand": {"type": "boolean", "default": false,
            "description": "Choose words of the prompt by the seed: {red|blue} or __name__"},
        "upsample": {"type": "boolean", "description": about.upsampling()},
        "model": {"type": "string", "default": about.model, "description": "A model from list_models"},
        "loras": {"type": "array", "description": "Adapters from list_models", "items": {"type": "object",
            "required": ["name"], "properties": {"name": {"type": "string"}, "weight": {"type": "number", "default": 1},
                "blocks": {"type": "string", "description": "Factors by blocks: single=0.5,double0-2=0,other=1"}}}},
        "output_format": {"type": "string", "enum": ["png", "jpeg", "webp"], "default": "png",
            "description": "Format of the linked file"},
        "background": {"type": "string", "enum": ["opaque", "transparent"], "default": "opaque",
            "description": "transparent removes the background of an object, and takes twice as long"},
        "recipe": {"type": "boolean", "default": true,
            "description": "false keeps prompt and settings out of the file"},
    });
    extend(&mut common, settings(about));
    let mut generated = common.clone();
    generated["size"] = with_default(common["size"].clone(), size);
    let mut enlarged = json!({
        "upscaler": {"type": "string", "enum": about.upscalers, "default": crate::upscalers::LANCZOS,
            "description": "Lanczos is a filter; the others are networks that add detail"},
        "by": {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_FACTOR,
            "description": "Factor of width and height. The default is the upscaler's own"},
        "size": {"type": "string", "description": "Size of the result instead, WIDTHxHEIGHT in pixels",
            "examples": ["3840x2160"]},
        "output_format": common["output_format"], "recipe": common["recipe"],
    });
    let paths = if about.takes_paths { ", the path of a file" } else { "" };
    let image = format!("An image: base64{paths}, or the link from an earlier result");
    enlarged["image"] = json!({"type": "string", "description": image});
    let mut edited = common;
    edited["size"]["description"] = json!(format!("{}. The default is the size of the first image", about.sizes()));
    edited["controls"] = json!({"type": "array", "description": "Images that show one property of the result, such as \
        its depth or pose. The prompt begins with a line for each", "items": {"type": "object",
        "required": ["kind", "input"], "properties": {
        "kind": {"enum": ["style", "composition", "face", "sketch", "lines", "canny", "depth", "pose"]},
        "input": {"type": "integer", "minimum": 0, "description": "Index in images, from 0"},
        "make": {"type": "boolean", "description": "true to follow the edges in the image, with canny"}}}});
    edited["input_weights"] = json!({"type": "array", "description": "Strength of each image as a reference, in their \
        order; the default is 1, try 0.7 to 1.3", "items": {"type": "number", "minimum": 0, "maximum": 2}});
    edited["images"] = json!({"type": "array", "minItems": 1, "maxItems": 16,
        "description": "The image to edit, then further references", "items": {"type": "string", "description": image}});
    edited["mask"] = json!({"type": "string",
        "description": "A mask in the size of the first image, passed in the same way. Its transparent area is \
                        regenerated, or its white area if it is opaque; the rest is kept"});
    edited["strength"] = json!({"type": "number", "minimum": 0, "maximum": 1,
        "description": "Edit strength, relative to the first image; 1 starts from noise"});
    extend(&mut edited, changes());
    let made = json!({"type": "object", "required": ["images", "notes"], "properties": {
        "images": {"type": "array", "items": {"type": "object",
            "required": ["uri", "name", "mime_type", "bytes", "width", "height", "seed", "model"],
            "properties": {
                "uri": {"type": "string", "description": "The full image"},
                "name": {"type": "string", "description": "NAME in the resources flux://images/NAME and flux://recipes/NAME"},
                "mime_type": {"type": "string"}, "bytes": {"type": "integer"},
                "width": {"type": "integer"}, "height": {"type": "integer"},
                "seed": {"type": "integer"}, "model": {"type": "string"},
                "revised_prompt": {"type": "string", "description": "The prompt after expand and upsample"},
            }}},
        "notes": {"type": "array", "items": {"type": "string"}, "description": "Arguments without an effect"},
    }});
    let listed = json!({"type": "object", "required": ["models", "loras"], "properties": {
        "models": {"type": "array", "items": {"type": "object", "required": ["id"],
            "properties": {"id": {"type": "string"}}}},
        "loras": {"type": "array", "items": {"type": "string"}},
    }});
    let tool = |name: &'static str, title: &str, text: String, [input, output]: [Value; 2], reads: bool| {
        // No tool deletes anything, or uses more of the network than the server's language model. Without a seed, each
        // call generates another image.
        let hints =
            ToolAnnotations::from_raw(Some(title.to_string()), Some(reads), Some(false), Some(reads), Some(false));
        Tool::new(name, text, object(input))
            .with_title(title)
            .with_raw_output_schema(object(output).into())
            .with_annotations(hints)
    };
    vec![
        tool(
            "generate_image",
            "Generate an image",
            format!("Generate an image from a text prompt, with the model {}. {LIMITS}", about.model),
            [input_schema(generated, &["prompt"]), made.clone()],
            false,
        ),
        tool(
            "edit_image",
            "Edit an image",
            format!(
                "Edit an image with a text prompt, or generate one from up to 16 reference images, with the model {}. \
                 {LIMITS} Large images are scaled down to about a megapixel.",
                about.model
            ),
            [input_schema(edited, &["prompt", "images"]), made.clone()],
            false,
        ),
        tool(
            "upscale_image",
            "Enlarge an image",
            "Enlarge an image without a prompt. Its content stays the same".to_string(),
            [input_schema(enlarged, &["image"]), made],
            false,
        ),
        tool(
            "list_models",
            "List models",
            "List the models and LoRA adapters for the other tools".to_string(),
            [input_schema(json!({}), &[]), listed],
            true,
        ),
    ]
}

fn extend(arguments: &mut Value, more: Value) {
    if let Value::Object(arguments) = arguments {
        arguments.extend(object(more));
    }
}

/// Returns further arguments of both tools.
fn settings(about: &About) -> Value {
    json!({
        "hires": {"type": "object", "properties": {
            "by": {"type": "number", "minimum": 1.25, "maximum": 4},
            "size": {"type": "string", "examples": ["2048x2048"]},
            "upscaler": {"type": "string", "enum": about.upscalers, "default": crate::upscalers::LANCZOS},
            "strength": {"type": "number", "minimum": 0, "maximum": 1, "default": 0.5},
            "steps": {"type": "integer"}, "prompt": {"type": "string"},
            "no_reference": {"type": "boolean", "default": false}},
            "description": "Second pass: the image is enlarged by a factor, or to a size, and edited"},
        "tile": {"type": "integer", "minimum": 0,
            "description": "Side of the tiles of each step in pixels, 0 for one piece; by default chosen for second passes"},
        "tile_overlap": {"type": "integer", "minimum": 0, "description": "Pixels that adjacent tiles share"},
        "transparent": {"type": "string", "enum": ["edit", "key"],
            "description": "How to remove the background: by comparing two images, or by its colour, which is faster"},
        "schedule": {"type": "string", "examples": ["linear", "sigmas:1,0.75,0.5,0.25"],
            "description": "Noise levels; by default as in the training of the model"},
        "rng": {"type": "string", "enum": ["torch", "portable"], "default": "torch",
            "description": "Noise of a seed; portable gives similar images in all sizes"},
        "max_sequence_length": {"type": "integer", "minimum": 1, "description": "Tokens of the prompt that are read"},
    })
}

/// Returns the arguments for the image to edit.
fn changes() -> Value {
    let flag = |description: &str| json!({"type": "boolean", "default": false, "description": description});
    let pixels = |description: &str| json!({"type": "integer", "minimum": 0, "description": description});
    let side = || json!({"type": "integer", "minimum": 0});
    json!({
        "resize": {"type": "string", "examples": ["768x512", "1024"],
            "description": "Size to which the first image is resized before the edit, or its longer side"},
        "full_size": flag("With strength alone: scale the result to the size of the first image"),
        "extend": {"type": "object", "description": "Pixels by which the first image grows at its sides",
            "required": ["left", "top", "right", "bottom"],
            "properties": {"left": side(), "top": side(), "right": side(), "bottom": side()}},
        "feather": pixels("Pixels of the transition around a mask or an extension"),
        "mask_padding": pixels("Pixels around the masked area that the model sees; by default the whole image"),
        "no_composite": flag("Return the output of the model, without pasting the masked area back"),
        "no_self_reference": flag("The image to edit is no reference"),
        "sparse": flag("Compute only the masked area after the first step, which is faster"),
    })
}

fn input_schema(properties: Value, required: &[&str]) -> Value {
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

fn object(value: Value) -> JsonObject {
    match value {
        Value::Object(object) => object,
        _ => JsonObject::new(),
    }
}
