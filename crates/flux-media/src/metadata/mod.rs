//! Metadata of image files: how the image was made, for this program and for others.
//!
//! | | PNG | JPEG, WebP |
//! |---|---|---|
//! | keywords and texts | text chunks | - |
//! | the recipe that reproduces the image, as JSON | the text `flux`, and `flux:Recipe` of XMP | `flux:Recipe` of XMP |
//! | the settings for other programs | the text `parameters` | UserComment of EXIF |
//! | the mark of generated images | `DigitalSourceType` and `AISystemUsed` of XMP | the same |
//!
//! [`Settings`] are the settings of other programs: see the module `programs`. Nothing here knows the fields of a
//! recipe or a model. Start with [`Metadata`] for writing, [`said_by`] for reading and [`strip()`] for removing.

mod comfyui;
mod exif;
#[cfg(test)]
mod fuzz;
mod infotext;
pub(crate) mod parts;
mod pixels;
mod programs;
pub(crate) mod read;
mod settings;
mod strip;
mod tags;

pub use infotext::Infotext;
pub use pixels::Pixels;
pub use read::{MAX_TEXT, Said, said_by};
pub use settings::Settings;
pub use strip::{Stripped, strip};
pub use tags::{AdapterTag, split_tags, split_weights};

use serde_json::Value;

use flux_base::error::{Error, Field, Result};

/// The keyword of the recipe in a PNG.
pub(crate) const RECIPE: &str = "flux";
/// The keyword of the text for other programs.
const PARAMETERS: &str = "parameters";
/// The keyword of the comment of EXIF or XMP.
const USER_COMMENT: &str = "UserComment";
/// The keyword of XMP in a PNG.
pub(crate) const XMP: &str = "XML:com.adobe.xmp";
/// The first bytes of XMP in a JPEG.
const XMP_HEADER: &[u8] = b"http://ns.adobe.com/xap/1.0/\0";
/// The first bytes of EXIF in a JPEG.
const EXIF_HEADER: &[u8] = b"Exif\0\0";
/// The elements of XMP that mark an image: the program, the source of the pixels, and the AI system with its version.
/// The last three are of the IPTC.
const MARKS: [&str; 4] =
    ["xmp:CreatorTool", "Iptc4xmpExt:DigitalSourceType", "Iptc4xmpExt:AISystemUsed", "Iptc4xmpExt:AISystemVersionUsed"];
/// The element of XMP with the prompt, of the IPTC.
const PROMPT: &str = "Iptc4xmpExt:AIPromptInformation";
/// The element of XMP with the recipe.
const XMP_RECIPE: &str = "flux:Recipe";
/// The list of the sources of pixels.
const SOURCES: &str = "http://cv.iptc.org/newscodes/digitalsourcetype/";
/// The field of a recipe with embedded files, as JSON begins it.
const EMBEDDED: &str = "\"embedded\":";
/// Maximum bytes of a segment of a JPEG, without its length.
const SEGMENT: usize = 65_533;

/// The metadata of an image file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metadata {
    /// Pairs of a keyword and a text.
    pub texts: Vec<(&'static str, String)>,
    /// The recipe that reproduces the image, as JSON.
    pub recipe: Option<String>,
    /// The settings of the image, in the words of other programs.
    pub parameters: Option<String>,
    /// The source of the pixels, if the file should state it.
    pub source: Option<DigitalSource>,
    /// The prompt, which XMP repeats next to the source.
    pub prompt: Option<String>,
}

/// The source of pixels, in the terms of the IPTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DigitalSource {
    /// A model made all of them.
    TrainedAlgorithmicMedia,
    /// A model made some of them, and the others are those of another image.
    CompositeWithTrainedAlgorithmicMedia,
}

impl DigitalSource {
    /// Returns the URI of the term.
    pub fn uri(self) -> String {
        format!("{SOURCES}{}", self.term())
    }

    /// Returns the term of <http://cv.iptc.org/newscodes/digitalsourcetype/>.
    fn term(self) -> &'static str {
        match self {
            Self::TrainedAlgorithmicMedia => "trainedAlgorithmicMedia",
            Self::CompositeWithTrainedAlgorithmicMedia => "compositeWithTrainedAlgorithmicMedia",
        }
    }

    /// Reads the source in the metadata of a file. `None` if the file states none, or another one.
    pub fn read(said: &Said) -> Option<Self> {
        let term = said.source_term()?;
        [Self::TrainedAlgorithmicMedia, Self::CompositeWithTrainedAlgorithmicMedia]
            .into_iter()
            .find(|source| source.term().eq_ignore_ascii_case(term))
    }
}

impl Metadata {
    /// Returns the text chunks of a PNG, in order.
    pub(crate) fn png_texts(&self) -> impl Iterator<Item = (&str, &str)> {
        let own = [(PARAMETERS, &self.parameters), (RECIPE, &self.recipe)];
        let own = own.into_iter().filter_map(|(keyword, text)| Some((keyword, text.as_deref()?)));
        self.texts.iter().map(|(keyword, text)| (*keyword, text.as_str())).chain(own)
    }

    /// Returns the XMP of a PNG. Programs that rewrite the file often keep XMP and drop the texts, so XMP repeats the
    /// recipe, without its embedded files: these are stored once.
    pub(crate) fn png_xmp(&self) -> Option<String> {
        let recipe = self.recipe.as_deref().map(|recipe| match recipe.contains(EMBEDDED) {
            true => without_embedded(recipe),
            false => recipe.to_string(),
        });
        self.packet(recipe.as_deref())
    }

    /// Returns the XMP of other formats.
    pub(crate) fn xmp(&self) -> Option<String> {
        self.packet(self.recipe.as_deref())
    }

    /// Returns XMP with the source and a recipe. The prompt is left out if it is too long for a segment of a JPEG.
    fn packet(&self, recipe: Option<&str>) -> Option<String> {
        let source = self.source.map(DigitalSource::uri);
        if recipe.is_none() && source.is_none() {
            return None;
        }
        let version = env!("CARGO_PKG_VERSION");
        let creator = format!("flux {version}");
        let marks =
            [Some(&*creator), source.as_deref(), source.as_ref().map(|_| "flux"), source.as_ref().map(|_| version)];
        let elements = |prompt| {
            let marks = MARKS.into_iter().zip(marks).chain([(PROMPT, prompt), (XMP_RECIPE, recipe)]);
            packet(marks.filter_map(|(name, text)| Some((name, text?))))
        };
        let prompt = self.prompt.as_deref().filter(|_| source.is_some());
        let whole = elements(prompt);
        Some(if XMP_HEADER.len() + whole.len() > SEGMENT { elements(None) } else { whole })
    }

    /// Returns EXIF with the parameters.
    pub(crate) fn exif(&self) -> Option<Vec<u8>> {
        self.parameters.as_deref().map(exif::user_comment)
    }

    /// Errors if the metadata do not fit in a JPEG.
    pub fn check_jpeg(&self) -> Result<()> {
        let exif = self.exif().map_or(0, |exif| EXIF_HEADER.len() + exif.len());
        let xmp = self.xmp().map_or(0, |xmp| XMP_HEADER.len() + xmp.len());
        if exif.max(xmp) > SEGMENT {
            return Err(Error::new(format!(
                "the metadata has {} bytes, the maximum for a JPEG is {SEGMENT}",
                exif.max(xmp)
            ))
            .for_field(Field::Output)
            .hint("write a PNG or a WebP, or shorten the prompt"));
        }
        Ok(())
    }
}

/// Returns the APP1 segments of a JPEG with this EXIF and XMP, whose lengths were checked.
pub(crate) fn jpeg_metadata(exif: Option<&[u8]>, xmp: Option<&str>) -> Vec<u8> {
    let segment = |header: &[u8], data: &[u8]| {
        let length = (2 + header.len() + data.len()) as u16;
        [&[0xff, 0xe1], &length.to_be_bytes()[..], header, data].concat()
    };
    let exif = exif.map(|exif| segment(EXIF_HEADER, exif));
    let xmp = xmp.map(|xmp| segment(XMP_HEADER, xmp.as_bytes()));
    exif.into_iter().chain(xmp).flatten().collect()
}

/// Returns a recipe without its embedded files.
fn without_embedded(recipe: &str) -> String {
    let Ok(Value::Object(mut fields)) = serde_json::from_str(recipe) else { return recipe.to_string() };
    fields.remove("embedded");
    Value::Object(fields).to_string()
}

/// Returns XMP with these elements.
fn packet<'a>(elements: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let said: String = elements.map(|(name, text)| format!("<{name}>{}</{name}>", escaped(text))).collect();
    format!(
        "<?xpacket begin=\"\u{feff}\" id=\"W5M0MpCehiHzreSzNTczkc9d\"?>\
         <x:xmpmeta xmlns:x=\"adobe:ns:meta/\"><rdf:RDF xmlns:rdf=\"http://www.w3.org/1999/02/22-rdf-syntax-ns#\">\
         <rdf:Description rdf:about=\"\" xmlns:xmp=\"http://ns.adobe.com/xap/1.0/\" \
         xmlns:Iptc4xmpExt=\"http://iptc.org/std/Iptc4xmpExt/2008-02-29/\" xmlns:flux=\"urn:flux:recipe:1\">\
         {said}</rdf:Description></rdf:RDF></x:xmpmeta><?xpacket end=\"r\"?>"
    )
}

/// Escapes a text for XML. Characters that XML cannot hold are replaced.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + text.len() / 8);
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            // Readers would read a line feed.
            '\r' => escaped += "&#xD;",
            '\t' | '\n' => escaped.push(c),
            '\0'..' ' | '\u{fffe}' | '\u{ffff}' => escaped.push(char::REPLACEMENT_CHARACTER),
            _ => escaped.push(c),
        }
    }
    escaped
}

/// Decodes XML text from [`escaped`] or another program.
fn unescaped(text: &str) -> String {
    /// Maximum length of an entity's name: `#1114111`.
    const MAX_NAME: usize = 8;
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        plain.push_str(&rest[..at]);
        rest = &rest[at..];
        let end = rest.bytes().take(MAX_NAME + 2).position(|byte| byte == b';');
        match end.and_then(|end| Some((entity(&rest[1..end])?, end))) {
            Some((character, end)) => {
                plain.push(character);
                rest = &rest[end + 1..];
            }
            None => {
                plain.push('&');
                rest = &rest[1..];
            }
        }
    }
    plain + rest
}

/// Returns the character of an XML entity.
fn entity(name: &str) -> Option<char> {
    Some(match name {
        "amp" => '&',
        "lt" => '<',
        "gt" => '>',
        "quot" => '"',
        "apos" => '\'',
        _ => {
            let number = name.strip_prefix('#')?;
            let hexadecimal = number.strip_prefix(['x', 'X']);
            let code = hexadecimal.map_or_else(|| number.parse(), |digits| u32::from_str_radix(digits, 16));
            char::from_u32(code.ok()?)?
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_the_same_after_xml() {
        for text in [r#"{"a":"<b> & \"c\" &amp; 'd'"}"#, "{}", "a\tcat\r\n]]>"] {
            assert_eq!(unescaped(&escaped(text)), text);
        }
        assert_eq!(escaped("\u{1b}[2J\0\u{ffff}"), "\u{fffd}[2J\u{fffd}\u{fffd}");
        let written_again = "&#x7B;&quot;a&#34;:&apos;&#128008;&#39;&#xA;&amp;lt;&&nothing;&#xffffffff;&#;";
        assert_eq!(unescaped(written_again), "{\"a\":'\u{1f408}'\n&lt;&&nothing;&#xffffffff;&#;");
    }

    #[test]
    fn the_xmp_of_a_png_holds_the_recipe_and_no_files() {
        let recipe = r#"{"embedded":{"a.png":"QUJD"},"recipe":{"prompt":"x","seed":18446744073709551615}}"#;
        let metadata = Metadata { recipe: Some(recipe.to_string()), ..Metadata::default() };
        let xmp = metadata.png_xmp().unwrap();
        assert!(xmp.contains("18446744073709551615") && !xmp.contains("QUJD"), "{xmp}");
        assert!(metadata.xmp().unwrap().contains("QUJD"));
    }

    #[test]
    fn the_prompt_is_next_to_the_mark_if_there_is_room() {
        let of = |prompt: &str, source| Metadata {
            recipe: Some("{}".to_string()),
            prompt: Some(prompt.to_string()),
            source,
            ..Metadata::default()
        };
        let source = Some(DigitalSource::TrainedAlgorithmicMedia);
        let prompt = "<AIPromptInformation>a & b\u{0}</Iptc4xmpExt:AIPromptInformation>";
        let xmp = of(prompt, source).xmp().unwrap();
        assert!(xmp.contains("Ext:AIPromptInformation>&lt;AIPromptInformation&gt;a &amp; b\u{fffd}&lt;/"), "{xmp}");
        assert!(xmp.contains("Ext:AISystemUsed>flux</") && xmp.contains("AISystemVersionUsed>0"), "{xmp}");
        for metadata in [of(prompt, None), of(&"x".repeat(SEGMENT), source)] {
            let xmp = metadata.xmp().unwrap();
            assert!(!xmp.contains("AIPrompt") && xmp.contains("<flux:Recipe>{}<"), "{xmp}");
        }
    }

    #[test]
    fn what_a_jpeg_has_no_room_for_is_refused() {
        let of = |bytes: usize| Metadata { recipe: Some("x".repeat(bytes)), ..Metadata::default() };
        assert!(of(60_000).check_jpeg().is_ok());
        assert!(of(SEGMENT).check_jpeg().is_err_and(|e| e.to_string().contains("PNG")));
    }
}
