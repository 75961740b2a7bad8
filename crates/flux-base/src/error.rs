//! The one error type: what is wrong, where, and a hint.

pub mod shell;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

pub use self::shell::shell_word;

/// The max characters of a part of a message.
pub const MAX_SHOWN: usize = 2000;

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

macro_rules! fields {
    ($($(#[$doc:meta])* $name:ident = $key:literal,)*) => {
        /// An option that a user can set. Texts of errors and notes name a field as `{}`, its short name if a front end
        /// has one, or as `{:#}`, its full name; [`named`] inserts the front end's names.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Field {
            $($(#[$doc])* $name,)*
        }

        impl Field {
            /// All fields.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Returns the key in JSON.
            pub fn key(self) -> &'static str {
                match self {
                    $(Self::$name => $key,)*
                }
            }
        }
    };
}

fields! {
    /// The prompt.
    Prompt = "prompt",
    /// The folder of wildcards.
    Wildcards = "wildcards",
    /// Boxes: the places of objects.
    Boxes = "boxes",
    /// Texts for parts of the image.
    Regions = "regions",
    /// Controls: references for one property of the result.
    Controls = "controls",
    /// The language model that rewrites prompts.
    Upsample = "upsample",
    /// The negative prompt.
    NegativePrompt = "negative",
    /// The width in pixels.
    Width = "width",
    /// The height in pixels.
    Height = "height",
    /// Width and height.
    Size = "size",
    /// The number of denoising steps.
    Steps = "steps",
    /// The seed of the noise.
    Seed = "seed",
    /// Variation of the image of another seed.
    Variation = "variation",
    /// Noise on the text features of the first steps.
    Variety = "variety",
    /// The number of images.
    Count = "n",
    /// The guidance scale.
    Guidance = "guidance",
    /// The schedule of noise levels.
    Schedule = "schedule",
    /// The generator that turns the seed into noise.
    Rng = "rng",
    /// The number of tokens that prompts are cut or padded to.
    MaxSequenceLength = "max_sequence_length",
    /// Text features in place of prompts.
    Embeddings = "embeddings",
    /// Noise in place of the noise from the seed.
    Noise = "noise",
    /// Latents that the first step begins with.
    Latents = "latents",
    /// Input images.
    Inputs = "inputs",
    /// The mask of the area to regenerate.
    Mask = "mask",
    /// Weights of input images.
    InputWeights = "input_weights",
    /// The strength of the change.
    Strength = "strength",
    /// The extension of the image.
    Extend = "extend",
    /// The padding around the mask.
    MaskPadding = "mask_padding",
    /// The number of pixels over which the new content fades.
    Feather = "feather",
    /// True if the result is the model's output without compositing.
    NoComposite = "no_composite",
    /// True if a result without a mask has the size of the image to edit.
    FullSize = "full_size",
    /// True if the image to edit is not a reference as well.
    NoSelfReference = "no_self_reference",
    /// True if each step computes only the regenerated area.
    Sparse = "sparse",
    /// The side of tiles.
    Tile = "tile",
    /// The overlap of tiles.
    TileOverlap = "tile_overlap",
    /// The second pass at a larger size.
    Hires = "hires",
    /// The way to remove the background.
    Transparent = "transparent",
    /// True if tokens of the previous frame are reused.
    Reuse = "reuse",
    /// Adapters of the transformer.
    Adapters = "adapters",
    /// The file to write.
    Output = "output",
    /// The JPEG quality.
    Quality = "quality",
    /// True if image files contain their input images.
    EmbedInputs = "embed_inputs",
    /// The certificate chain to sign images with.
    SignCert = "sign_cert",
    /// The private key to sign images with.
    SignKey = "sign_key",
    /// The certificates of trusted authorities.
    Trust = "trust",
    /// True if existing files are never overwritten.
    NoClobber = "no_clobber",
    /// The model.
    Model = "model",
    /// The text encoder of the model.
    TextEncoder = "text_encoder",
    /// The VAE of the model.
    Vae = "vae",
    /// The tokenizer of the model.
    Tokenizer = "tokenizer",
    /// The tiny decoder for previews.
    PreviewDecoder = "preview_decoder",
    /// The variant of the model.
    Variant = "variant",
    /// The device to compute on.
    Device = "device",
    /// The precision to compute in.
    Precision = "precision",
    /// The data type of attention.
    Attention = "attention",
    /// The memory limit of each GPU.
    GpuMemory = "gpu_memory",
    /// The number of CPU threads.
    Threads = "threads",
    /// The number of GPUs that generate an image together.
    Parallel = "parallel",
    /// Formats that weights are quantized to at load.
    Quantize = "quantize",
    /// True if fp8 weights are cached.
    Fp8Cache = "fp8_cache",
    /// The format of a weight file to write.
    Format = "format",
}

/// The form of a field's name in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The short name, if there is one.
    Short,
    /// The full name.
    Full,
}

/// The mark before the key of a field in a text: invisible characters that are rare elsewhere.
const MARKS: [(char, Form); 2] = [('\u{2063}', Form::Short), ('\u{2064}', Form::Full)];

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", MARKS[usize::from(f.alternate())].0, self.key())
    }
}

/// A front end's names of fields.
pub type Names = fn(Field, Form) -> &'static str;

/// Names of fields that are their keys in JSON.
pub const KEYS: Names = |field, _| field.key();

/// Returns a text in which fields have these names.
pub fn named(text: &str, names: Names) -> String {
    let field = |mark: char, behind: &str| {
        let (_, form) = MARKS.iter().find(|(known, _)| *known == mark)?;
        let key = behind.split(|c: char| !matches!(c, 'a'..='z' | '0'..='9' | '_')).next()?;
        let field = Field::ALL.iter().find(|field| field.key() == key)?;
        Some((names(*field, *form), key.len()))
    };
    let (mut line, mut rest) = (String::with_capacity(text.len()), text.chars());
    while let Some(c) = rest.next() {
        match field(c, rest.as_str()) {
            Some((name, key)) => {
                line.push_str(name);
                rest = rest.as_str()[key..].chars();
            }
            None => line.push(c),
        }
    }
    line
}

/// The kind of an error: a wrong request (exit code 2), a failure of the work (exit code 1), or a cancellation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request cannot be carried out as written.
    Usage,
    /// Something went wrong while the request was carried out.
    Failure,
    /// The user ended the work early.
    Cancelled,
}

/// An error for the user: the fact, the place (file, flag or op) and a hint.
#[derive(Debug, Clone)]
pub struct Error(Box<Parts>);

#[derive(Debug, Clone)]
struct Parts {
    kind: ErrorKind,
    what: String,
    field: Option<Field>,
    place: Option<String>,
    hint: Option<String>,
    is_out_of_memory: bool,
}

impl Error {
    /// Creates a failure; `what` is lowercase, without a full stop, with values in backticks.
    pub fn new(what: impl Into<String>) -> Self {
        Self(Box::new(Parts {
            kind: ErrorKind::Failure,
            what: without_system_codes(what.into()),
            field: None,
            place: None,
            hint: None,
            is_out_of_memory: false,
        }))
    }

    /// Creates the error for a request that cannot be carried out as written.
    pub fn usage(what: impl Into<String>) -> Self {
        let mut error = Self::new(what);
        error.0.kind = ErrorKind::Usage;
        error
    }

    /// Creates the error for work that the user has cancelled.
    pub fn cancelled() -> Self {
        let mut error = Self::new("cancelled");
        error.0.kind = ErrorKind::Cancelled;
        error
    }

    /// Creates the error for work that needs more memory than is available.
    pub fn no_memory(bytes: u64) -> Self {
        let mut error = Self::new(format!("out of memory: {} MiB more are needed", bytes.div_ceil(1 << 20)));
        error.0.is_out_of_memory = true;
        error.hint("use a smaller image, or raise the memory limit (`ulimit -v`, or the limit of the container)")
    }

    /// Returns `true` if there was not enough memory. The work may succeed after other work has ended.
    pub fn is_out_of_memory(&self) -> bool {
        self.0.is_out_of_memory
    }

    /// Creates the error for a thread that the system does not start.
    pub fn no_thread(error: &std::io::Error) -> Self {
        Self::new(format!("cannot start a thread: {error}"))
            .hint("raise the limits on processes (`ulimit -u`) and memory (`ulimit -v`)")
    }

    /// Sets the place; the innermost place wins, and an empty one is ignored.
    pub fn at(mut self, place: impl Into<String>) -> Self {
        let place = place.into();
        if !place.is_empty() {
            self.0.place.get_or_insert(place);
        }
        self
    }

    /// Sets the wrong field of the request, which is also the place if no other is set; the innermost field wins.
    pub fn for_field(mut self, field: Field) -> Self {
        self.0.field.get_or_insert(field);
        self.at(format!("{field:#}"))
    }

    /// Replaces the wrong field, and the place by it.
    pub fn for_field_instead(mut self, field: Field) -> Self {
        (self.0.field, self.0.place) = (None, None);
        self.for_field(field)
    }

    /// Prefixes the fact with the device, for errors on one of several devices.
    pub fn on(mut self, device: &str) -> Self {
        self.0.what.insert_str(0, &format!("{device}: "));
        self
    }

    /// Prefixes the fact with its consequence.
    pub fn prefixed(mut self, what: &str) -> Self {
        self.0.what.insert_str(0, &format!("{what}: "));
        self
    }

    /// As [`Error::at`], for a file or folder.
    pub fn at_path(self, path: &Path) -> Self {
        self.at(path.display().to_string())
    }

    /// Sets the hint; the innermost hint wins.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint.get_or_insert(hint.into());
        self
    }

    /// Replaces the hint.
    pub fn hint_instead(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// Returns the wrong field of the request, if there is one.
    pub fn field(&self) -> Option<Field> {
        self.0.field
    }

    /// Returns the hint, if there is one, with a front end's names of fields.
    pub fn shown_hint(&self, names: Names) -> Option<String> {
        self.0.hint.as_ref().map(|hint| named(hint, names))
    }

    /// Returns the whole error as text, with a front end's names of fields.
    pub fn shown_with(&self, names: Names) -> String {
        let parts =
            [("", Some(&self.0.what)), ("\n  in: ", self.0.place.as_ref()), ("\n  hint: ", self.0.hint.as_ref())];
        let part = |(before, text): (&str, Option<&String>)| Some(format!("{before}{}", shown(&named(text?, names))));
        parts.into_iter().filter_map(part).collect()
    }

    /// Returns the whole error as JSON, with a front end's names of fields: `kind`, `what`, and if known `field`,
    /// `where` and `hint`.
    pub fn json(&self, names: Names) -> serde_json::Value {
        let kind = match self.0.kind {
            ErrorKind::Usage => "usage",
            ErrorKind::Failure => "failure",
            ErrorKind::Cancelled => "cancelled",
        };
        let text = |text: &Option<String>| text.as_ref().map(|text| named(text, names).into());
        let parts = [
            ("kind", Some(kind.into())),
            ("what", Some(named(&self.0.what, names).into())),
            ("field", self.0.field.map(|field| field.key().into())),
            ("where", text(&self.0.place)),
            ("hint", self.shown_hint(names).map(Into::into)),
        ];
        parts
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_string(), value?)))
            .collect::<serde_json::Map<_, _>>()
            .into()
    }

    /// Returns the fact without place and hint; [`named`] inserts names of fields.
    pub fn what(&self) -> &str {
        &self.0.what
    }

    /// Returns the kind: usage, failure or cancelled.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown_with(KEYS))
    }
}

impl std::error::Error for Error {}

/// Returns a text without the numbers that [`std::io::Error`] appends, as in `(os error 2)`.
fn without_system_codes(mut text: String) -> String {
    const BEFORE: &str = " (os error ";
    while let Some(start) = text.find(BEFORE) {
        let code = &text[start + BEFORE.len()..];
        let digits = code.chars().take_while(|c| c.is_ascii_digit()).count();
        if digits == 0 || !code[digits..].starts_with(')') {
            break;
        }
        text.replace_range(start..start + BEFORE.len() + digits + 1, "");
    }
    text
}

/// Returns a part of a message for display: [`escaped`], and no longer than a screen. File names, contents of files and
/// values of flags may have any length; both ends of a long one are kept.
pub fn shown(text: &str) -> String {
    /// The max characters of each text outside of backticks, and of each text between backticks.
    const MAX_CUT: [usize; 2] = [800, 240];
    let parts = text.split('`').enumerate().map(|(place, part)| shortened(part, MAX_CUT[place % 2]));
    escaped(&shortened(&parts.collect::<Vec<_>>().join("`"), MAX_SHOWN)).into_owned()
}

/// Returns a text of at most `most` characters, or both ends of a longer one.
pub fn shortened(text: &str, most: usize) -> Cow<'_, str> {
    let Some(half) = text.char_indices().nth(most).and_then(|_| text.char_indices().nth(most / 2)) else {
        return Cow::Borrowed(text);
    };
    let end = text.char_indices().rev().nth(most / 2 - 1).map_or(text.len(), |(start, _)| start);
    Cow::Owned(format!("{}...{}", &text[..half.0], &text[end..]))
}

/// Returns a text as one line, with escapes such as `\u{1b}` for characters that control a terminal: control
/// characters, including line ends, and characters that change the direction of text. File names, prompts and contents
/// of files may hold any of these.
pub fn escaped(text: &str) -> Cow<'_, str> {
    let is_obeyed = |c: char| {
        c.is_control()
            || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut line = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_obeyed(c) {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    Cow::Owned(line)
}
