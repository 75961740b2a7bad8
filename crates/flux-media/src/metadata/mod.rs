//! Metadata of image files: how the image was made, for this program and for others.
//!
//! | | PNG | JPEG, WebP |
//! |---|---|---|
//! | keywords and texts | text chunks | - |
//! | the recipe that reproduces the image, as JSON | the text `flux`, and `flux:Recipe` of XMP | `flux:Recipe` of XMP |
//! | the settings for other programs | the text `parameters` | UserComment of EXIF |
//! | the mark of generated images | `DigitalSourceType` of XMP | `DigitalSourceType` of XMP |
//!
//! [`Settings`] are the settings of other programs: see the module `programs`. Nothing here knows the fields of a
//! recipe or a model. Start with [`Metadata`] for writing and [`said_by`] for reading.

mod comfyui;
mod exif;
#[cfg(test)]
mod fuzz;
mod infotext;
mod programs;
mod read;
mod settings;
mod tags;

pub use infotext::Infotext;
pub use read::{MAX_TEXT, Said, said_by};
pub use settings::Settings;
pub use tags::{AdapterTag, has_weighted_words, split_tags};

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
/// The tags around the recipe in XMP.
const RECIPE_TAGS: [&str; 2] = ["<flux:Recipe>", "</flux:Recipe>"];
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
    /// Returns the term of <http://cv.iptc.org/newscodes/digitalsourcetype/>.
    fn term(self) -> &'static str {
        match self {
            Self::TrainedAlgorithmicMedia => "trainedAlgorithmicMedia",
            Self::CompositeWithTrainedAlgorithmicMedia => "compositeWithTrainedAlgorithmicMedia",
        }
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
        let says = recipe.is_some() || self.source.is_some();
        says.then(|| xmp(recipe.as_deref(), self.source))
    }

    /// Returns the XMP of other formats.
    pub(crate) fn xmp(&self) -> Option<String> {
        let says = self.recipe.is_some() || self.source.is_some();
        says.then(|| xmp(self.recipe.as_deref(), self.source))
    }

    /// Returns EXIF with the parameters.
    pub(crate) fn exif(&self) -> Option<Vec<u8>> {
        self.parameters.as_deref().map(exif::user_comment)
    }

    /// Errors if the metadata do not fit in a JPEG.
    pub fn check_jpeg(&self) -> Result<()> {
        let exif = self.exif().map_or(0, |exif| b"Exif\0\0".len() + exif.len());
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

/// Returns the APP1 segment of a JPEG with XMP.
pub(crate) fn xmp_segment(xmp: &str) -> Vec<u8> {
    [XMP_HEADER, xmp.as_bytes()].concat()
}

/// Returns a recipe without its embedded files.
fn without_embedded(recipe: &str) -> String {
    let Ok(Value::Object(mut fields)) = serde_json::from_str(recipe) else { return recipe.to_string() };
    fields.remove("embedded");
    Value::Object(fields).to_string()
}

fn xmp(recipe: Option<&str>, source: Option<DigitalSource>) -> String {
    let mut said = format!("<xmp:CreatorTool>flux {}</xmp:CreatorTool>", env!("CARGO_PKG_VERSION"));
    if let Some(source) = source {
        said += "<Iptc4xmpExt:DigitalSourceType>http://cv.iptc.org/newscodes/digitalsourcetype/";
        said += source.term();
        said += "</Iptc4xmpExt:DigitalSourceType>";
    }
    if let Some(recipe) = recipe {
        let [begin, end] = RECIPE_TAGS;
        said += &[begin, &escaped(recipe), end].concat();
    }
    format!(
        "<?xpacket begin=\"\u{feff}\" id=\"W5M0MpCehiHzreSzNTczkc9d\"?>\
         <x:xmpmeta xmlns:x=\"adobe:ns:meta/\"><rdf:RDF xmlns:rdf=\"http://www.w3.org/1999/02/22-rdf-syntax-ns#\">\
         <rdf:Description rdf:about=\"\" xmlns:xmp=\"http://ns.adobe.com/xap/1.0/\" \
         xmlns:Iptc4xmpExt=\"http://iptc.org/std/Iptc4xmpExt/2008-02-29/\" xmlns:flux=\"urn:flux:recipe:1\">\
         {said}</rdf:Description></rdf:RDF></x:xmpmeta><?xpacket end=\"r\"?>"
    )
}

/// Escapes JSON for XML. It has no control characters, which XML cannot hold.
fn escaped(json: &str) -> String {
    json.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
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
        for json in [r#"{"a":"<b> & \"c\" &amp; 'd'"}"#, "{}"] {
            assert_eq!(unescaped(&escaped(json)), json);
        }
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
    fn what_a_jpeg_has_no_room_for_is_refused() {
        let of = |bytes: usize| Metadata { recipe: Some("x".repeat(bytes)), ..Metadata::default() };
        assert!(of(60_000).check_jpeg().is_ok());
        assert!(of(SEGMENT).check_jpeg().is_err_and(|e| e.to_string().contains("PNG")));
    }
}
