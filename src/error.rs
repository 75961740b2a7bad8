//! The one error type: what is wrong, where, and how to mend it.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

/// The most characters of a part of a message that are shown.
pub const MOST_SHOWN: usize = 2000;

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

macro_rules! fields {
    ($($(#[$doc:meta])* $name:ident = $key:literal,)*) => {
        /// What a user may ask for. A text, be it of an error or a note, names a field as `{}`, its short name where a
        /// front end has one, or as `{:#}`, its name in full; [`named`] puts in these names.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Field {
            $($(#[$doc])* $name,)*
        }

        impl Field {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Its key in JSON.
            pub fn key(self) -> &'static str {
                match self {
                    $(Self::$name => $key,)*
                }
            }
        }
    };
}

fields! {
    /// What to draw.
    Prompt = "prompt",
    /// What to lean away from.
    NegativePrompt = "negative",
    /// Pixels.
    Width = "width",
    /// Pixels.
    Height = "height",
    /// Width and height.
    Size = "size",
    /// Denoising steps.
    Steps = "steps",
    /// Seed of the noise.
    Seed = "seed",
    /// Images.
    Count = "n",
    /// Guidance scale.
    Guidance = "guidance",
    /// How the noise levels fall.
    Schedule = "schedule",
    /// How the seed becomes noise.
    Rng = "rng",
    /// Tokens that prompts are cut or padded to.
    MaxSequenceLength = "max_sequence_length",
    /// Text features in place of prompts.
    Embeddings = "embeddings",
    /// Noise in place of the seed's.
    Noise = "noise",
    /// What the first step begins with.
    Latents = "latents",
    /// Images to draw from.
    Inputs = "inputs",
    /// Where to draw anew.
    Mask = "mask",
    /// How far from the image to go.
    Strength = "strength",
    /// By how much the image grows.
    Extend = "extend",
    /// How far around the mask to draw.
    MaskPadding = "mask_padding",
    /// Over how many pixels what is new fades.
    Feather = "feather",
    /// Whether the result is what the model makes.
    NoComposite = "no_composite",
    /// Whether the image to change is no reference.
    NoSelfReference = "no_self_reference",
    /// Whether only what is drawn anew is computed at each step.
    Sparse = "sparse",
    /// Whether tokens of the frame before are kept.
    Reuse = "reuse",
    /// What changes the transformer.
    Adapters = "adapters",
    /// The file to write.
    Output = "output",
    /// Whether image files carry the images that they are made from.
    EmbedInputs = "embed_inputs",
    /// Whether a file that is there stays.
    NoClobber = "no_clobber",
    /// The model.
    Model = "model",
    /// Its text encoder.
    TextEncoder = "text_encoder",
    /// Its VAE.
    Vae = "vae",
    /// Its tokenizer.
    Tokenizer = "tokenizer",
    /// The tiny decoder that shows what steps lead to.
    PreviewDecoder = "preview_decoder",
    /// How it was trained.
    Variant = "variant",
    /// Where to compute.
    Device = "device",
    /// In which precision.
    Precision = "precision",
    /// In which type attention is computed.
    Attention = "attention",
    /// Memory of each GPU.
    GpuMemory = "gpu_memory",
    /// Threads on the CPU.
    Threads = "threads",
    /// GPUs that make an image together.
    Parallel = "parallel",
    /// Formats that weights are brought to as they load.
    Quantize = "quantize",
    /// Whether weights in fp8 are cached.
    Fp8Cache = "fp8_cache",
    /// The format of a file of weights to write.
    Format = "format",
}

/// Which name of a field a text asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The short one, where there is one.
    Short,
    /// The one in full.
    Full,
}

/// What stands in front of the key of a field in a text: characters that nobody sees, and that are rare elsewhere.
const MARKS: [(char, Form); 2] = [('\u{2063}', Form::Short), ('\u{2064}', Form::Full)];

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", MARKS[usize::from(f.alternate())].0, self.key())
    }
}

/// How a front end calls fields.
pub type Names = fn(Field, Form) -> &'static str;

/// The names of fields that are their keys in JSON.
pub const KEYS: Names = |field, _| field.key();

/// A text in which fields have these names.
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

/// Whether the request itself was wrong (exit code 2), carrying it out failed (exit code 1), or it was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request cannot be carried out as it was written.
    Usage,
    /// Something went wrong while carrying it out.
    Failure,
    /// It was ended early because the user asked for that.
    Cancelled,
}

/// An error in the user's words: the fact, the place (file, flag or op) and a remedy.
#[derive(Debug, Clone)]
pub struct Error(Box<Parts>);

#[derive(Debug, Clone)]
struct Parts {
    kind: ErrorKind,
    what: String,
    field: Option<Field>,
    place: Option<String>,
    hint: Option<String>,
}

impl Error {
    /// A failure; `what` is lower case, without a full stop, values in backticks.
    pub fn new(what: impl Into<String>) -> Self {
        Self(Box::new(Parts { kind: ErrorKind::Failure, what: what.into(), field: None, place: None, hint: None }))
    }

    /// A request that cannot be carried out as written.
    pub fn usage(what: impl Into<String>) -> Self {
        let mut error = Self::new(what);
        error.0.kind = ErrorKind::Usage;
        error
    }

    /// Work that was ended because the user asked for that.
    pub fn cancelled() -> Self {
        let mut error = Self::new("cancelled");
        error.0.kind = ErrorKind::Cancelled;
        error
    }

    /// A thread that the system does not start.
    pub fn no_thread(error: &std::io::Error) -> Self {
        Self::new(format!("cannot start a thread: {error}"))
            .hint("raise the limits on processes (`ulimit -u`) and on memory (`ulimit -v`)")
    }

    /// Says where; the innermost place wins, and an empty one is none.
    pub fn at(mut self, place: impl Into<String>) -> Self {
        let place = place.into();
        if !place.is_empty() {
            self.0.place.get_or_insert(place);
        }
        self
    }

    /// Says which field of the request is wrong, which is where if nothing else says that; the innermost field wins.
    pub fn of(mut self, field: Field) -> Self {
        self.0.field.get_or_insert(field);
        self.at(format!("{field:#}"))
    }

    /// Says which of several devices it happened on, in front of the fact.
    pub fn on(mut self, device: &str) -> Self {
        self.0.what.insert_str(0, &format!("{device}: "));
        self
    }

    /// Says in front of the fact what it is the reason of.
    pub fn prefixed(mut self, what: &str) -> Self {
        self.0.what.insert_str(0, &format!("{what}: "));
        self
    }

    /// [`Error::at`] a file or folder.
    pub fn at_path(self, path: &Path) -> Self {
        self.at(path.display().to_string())
    }

    /// Says how to mend it; the innermost hint wins.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint.get_or_insert(hint.into());
        self
    }

    /// Says how to mend it, in place of what was said before.
    pub fn hint_instead(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// The field of the request that is wrong, where it is one.
    pub fn field(&self) -> Option<Field> {
        self.0.field
    }

    /// All of it, with the names of a front end for fields.
    pub fn shown_with(&self, names: Names) -> String {
        let parts =
            [("", Some(&self.0.what)), ("\n  in: ", self.0.place.as_ref()), ("\n  hint: ", self.0.hint.as_ref())];
        let part = |(before, text): (&str, Option<&String>)| Some(format!("{before}{}", shown(&named(text?, names))));
        parts.into_iter().filter_map(part).collect()
    }

    /// All of it as JSON, with the names of a front end for fields: `kind`, `what`, and where they are known `field`,
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
            ("hint", text(&self.0.hint)),
        ];
        parts
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_string(), value?)))
            .collect::<serde_json::Map<_, _>>()
            .into()
    }

    /// The fact alone, without place and hint; [`named`] tells how it names fields.
    pub fn what(&self) -> &str {
        &self.0.what
    }

    /// Usage, failure or cancelled.
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

/// A path as one word of a shell's command.
pub fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    // Such a path begins with what a command takes for a flag.
    let text = if text.starts_with('-') { format!("./{text}") } else { text };
    shlex::try_quote(&text).map(Cow::into_owned).unwrap_or(text)
}

/// A part of a message as it is shown: [`escaped`], and no longer than a screen. File names, what is in files and what
/// stands behind flags may have any length; of each that is too long, both ends stay.
pub fn shown(text: &str) -> String {
    /// The most characters of what stands between backticks, and in turn of what does not.
    const MOST_BETWEEN: [usize; 2] = [800, 240];
    let parts = text.split('`').enumerate().map(|(place, part)| shortened(part, MOST_BETWEEN[place % 2]));
    escaped(&shortened(&parts.collect::<Vec<_>>().join("`"), MOST_SHOWN)).into_owned()
}

/// A text of at most `most` characters, or both ends of a longer one.
pub fn shortened(text: &str, most: usize) -> Cow<'_, str> {
    let Some(half) = text.char_indices().nth(most).and_then(|_| text.char_indices().nth(most / 2)) else {
        return Cow::Borrowed(text);
    };
    let end = text.char_indices().rev().nth(most / 2 - 1).map_or(text.len(), |(start, _)| start);
    Cow::Owned(format!("{}...{}", &text[..half.0], &text[end..]))
}

/// One line of text in which what a terminal obeys instead of showing it is spelled out, as in `\u{1b}`: control
/// characters, line ends too, and what changes the direction of text. File names, prompts and what is in files may hold
/// any of these.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_spelled_out_and_all_else_stays() {
        for text in ["", "a `b` c", "käse 🧀 \u{200d}", "C:\\folder", "עברית"] {
            assert!(matches!(escaped(text), Cow::Borrowed(same) if same == text), "{text}");
        }
        assert_eq!(escaped("\x1b[2J\r\n\t\0\x7f"), r"\u{1b}[2J\r\n\t\u{0}\u{7f}");
        assert_eq!(escaped("é\u{9b}31m\u{85}"), r"é\u{9b}31m\u{85}");
        for c in "\u{61c}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\u{202e}\u{2066}\u{2069}".chars() {
            assert_eq!(escaped(&c.to_string()), format!("\\u{{{:x}}}", c as u32));
        }
        let spelled = escaped("\x1b").into_owned();
        assert_eq!(escaped(&spelled), spelled, "what is spelled out stays as it is");
    }

    #[test]
    fn a_shell_takes_a_path_as_one_word() {
        for (path, word) in [
            ("models/a.png", "models/a.png"),
            ("my models", "'my models'"),
            ("a$(b)`c`", "'a$(b)`c`'"),
            ("it's", "\"it's\""),
            ("-o", "./-o"),
            ("", "''"),
        ] {
            assert_eq!(shell_word(Path::new(path)), word);
        }
    }

    #[test]
    fn long_names_keep_both_ends_and_a_message_stays_on_a_screen() {
        let long = format!("begin{}end", "ä".repeat(1 << 20));
        let error = Error::new(format!("tensor `{long}` is missing in `{long}`, expected `w`"));
        let text = error.at(long.as_str()).hint(format!("use `{long}`")).to_string();
        assert!(text.chars().count() < 2000, "{}", text.chars().count());
        for words in
            ["tensor `beginä", "äend` is missing in `begin", "äend`, expected `w`\n  in: begin", "ä...ä", "use `begin"]
        {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(Error::new("`".repeat(1 << 20)).to_string().len() < 2100);
        assert!(shown(&"`a` ".repeat(1 << 18)).len() < 2100);
        let path = format!("/{}", "a/".repeat(110));
        assert_eq!(shown(&format!("`{path}` is there")), format!("`{path}` is there"));
        assert_eq!([3, 4].map(|count| shortened(&"ä".repeat(count), 3).into_owned()), ["äää", "ä...ä"]);
    }

    #[test]
    fn texts_name_fields_as_the_front_end_does() {
        let flags: Names = |field, form| match (field, form) {
            (Field::Width, Form::Short) => "-W",
            (Field::Width, Form::Full) => "--width",
            _ => "?",
        };
        let error =
            Error::usage("width is 7").of(Field::Width).of(Field::Height).hint(format!("`{} 64`", Field::Width));
        assert_eq!(error.field(), Some(Field::Width));
        assert_eq!(error.to_string(), "width is 7\n  in: width\n  hint: `width 64`");
        assert_eq!(error.shown_with(flags), "width is 7\n  in: --width\n  hint: `-W 64`");
        let elsewhere = Error::new("x").at("a.png").of(Field::Mask);
        assert_eq!((elsewhere.field(), elsewhere.to_string()), (Some(Field::Mask), "x\n  in: a.png".to_string()));
        let text = format!("{:#}, {}", Field::Width, Field::Size);
        assert_eq!([named(&text, flags), named(&text, KEYS)], ["--width, ?", "width, size"]);
        for text in ["", "width, `width`", "\u{2063}", "a\u{2064} b", "\u{2063}widths", "\u{2063}ä"] {
            assert_eq!(named(text, flags), text);
        }
        assert_eq!(named("\u{2064}\u{2063}width\u{2063}n", flags), "\u{2064}-W?");
        for field in Field::ALL {
            assert_eq!(Field::ALL.iter().filter(|other| other.key() == field.key()).count(), 1, "{field:?}");
            assert_eq!(named(&field.to_string(), KEYS), field.key());
        }
    }

    #[test]
    fn every_part_of_an_error_is_one_line() {
        let error = Error::new("a\nb").at_path(Path::new("c\x1bd")).hint("e\rf");
        assert_eq!(error.to_string(), "a\\nb\n  in: c\\u{1b}d\n  hint: e\\rf");
    }
}
