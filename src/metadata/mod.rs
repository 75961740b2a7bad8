//! What an image file says of itself beside its pixels: how it was made, for this program and for others.
//!
//! | | PNG | JPEG, WebP |
//! |---|---|---|
//! | keywords and texts | text chunks | - |
//! | how it is made again, as JSON | the text `flux` | `flux:Recipe` of XMP |
//! | the same as other programs read it | the text `parameters` | UserComment of EXIF |
//! | that a model made it | `DigitalSourceType` of XMP | the same |

mod read;

pub use read::{Said, said_by};

use crate::error::{Error, Field, Result};

/// The keyword of the recipe in a PNG.
const RECIPE: &str = "flux";
/// The keyword of what other programs read.
const PARAMETERS: &str = "parameters";
/// The keyword of XMP in a PNG.
pub(crate) const XMP: &str = "XML:com.adobe.xmp";
/// What XMP begins with in a JPEG.
const XMP_HEADER: &[u8] = b"http://ns.adobe.com/xap/1.0/\0";
/// What the recipe stands between in XMP.
const RECIPE_TAGS: [&str; 2] = ["<flux:Recipe>", "</flux:Recipe>"];
/// The most bytes of a segment of a JPEG, without its length.
const SEGMENT: usize = 65_533;

/// What an image file says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metadata {
    /// Pairs of a keyword and a text.
    pub texts: Vec<(&'static str, String)>,
    /// How the image is made again, as JSON.
    pub recipe: Option<String>,
    /// How the image was made, in the words of other programs.
    pub parameters: Option<String>,
    /// What the pixels come from, where the file tells it.
    pub source: Option<DigitalSource>,
}

/// What pixels come from, in the words of the IPTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DigitalSource {
    /// A model made all of them.
    TrainedAlgorithmicMedia,
    /// A model made some of them, and the others are those of another image.
    CompositeWithTrainedAlgorithmicMedia,
}

impl DigitalSource {
    /// The term of <http://cv.iptc.org/newscodes/digitalsourcetype/>.
    fn term(self) -> &'static str {
        match self {
            Self::TrainedAlgorithmicMedia => "trainedAlgorithmicMedia",
            Self::CompositeWithTrainedAlgorithmicMedia => "compositeWithTrainedAlgorithmicMedia",
        }
    }
}

impl Metadata {
    /// A text chunk for each of these, in this order.
    pub(crate) fn png_texts(&self) -> impl Iterator<Item = (&str, &str)> {
        let own = [(PARAMETERS, &self.parameters), (RECIPE, &self.recipe)];
        let own = own.into_iter().filter_map(|(keyword, text)| Some((keyword, text.as_deref()?)));
        self.texts.iter().map(|(keyword, text)| (*keyword, text.as_str())).chain(own)
    }

    /// The XMP of a PNG, which has the recipe as a text.
    pub(crate) fn png_xmp(&self) -> Option<String> {
        self.source.map(|source| xmp(None, Some(source)))
    }

    /// The XMP of other files.
    pub(crate) fn xmp(&self) -> Option<String> {
        let says = self.recipe.is_some() || self.source.is_some();
        says.then(|| xmp(self.recipe.as_deref(), self.source))
    }

    /// EXIF with the parameters.
    pub(crate) fn exif(&self) -> Option<Vec<u8>> {
        self.parameters.as_deref().map(exif)
    }

    /// Errors when a JPEG has no room for it.
    pub(crate) fn check_jpeg(&self) -> Result<()> {
        let exif = self.exif().map_or(0, |exif| b"Exif\0\0".len() + exif.len());
        let xmp = self.xmp().map_or(0, |xmp| XMP_HEADER.len() + xmp.len());
        if exif.max(xmp) > SEGMENT {
            return Err(Error::new(format!(
                "what the image says of itself takes {} bytes, a JPEG has room for {SEGMENT}",
                exif.max(xmp)
            ))
            .of(Field::Output)
            .hint("write a PNG or a WebP, or shorten the prompt"));
        }
        Ok(())
    }
}

/// The segment APP1 of a JPEG that holds XMP.
pub(crate) fn xmp_segment(xmp: &str) -> Vec<u8> {
    [XMP_HEADER, xmp.as_bytes()].concat()
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

/// JSON as text of XML: it has no control characters, which XML cannot hold.
fn escaped(json: &str) -> String {
    json.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The JSON that [`escaped`] made text of XML, which other programs may have written anew.
fn unescaped(text: &str) -> String {
    let text = text.replace("&quot;", "\"").replace("&#34;", "\"").replace("&apos;", "'").replace("&#39;", "'");
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
}

/// EXIF of one UserComment in UTF-16, big endian as A1111 writes it.
fn exif(comment: &str) -> Vec<u8> {
    let text = [&b"UNICODE\0"[..], &comment.encode_utf16().flat_map(u16::to_be_bytes).collect::<Vec<_>>()].concat();
    // A directory is the number of its entries, the entries, and where the next one is.
    let directory = |tag: u16, kind: u16, count: u32, value: u32| {
        let entry = [&tag.to_be_bytes()[..], &kind.to_be_bytes(), &count.to_be_bytes(), &value.to_be_bytes()];
        [&1u16.to_be_bytes()[..], &entry.concat(), &0u32.to_be_bytes()].concat()
    };
    const HEADER: &[u8] = b"MM\0\x2a\0\0\0\x08";
    const DIRECTORY: u32 = 2 + 12 + 4;
    let (own, behind) = (8 + DIRECTORY, 8 + 2 * DIRECTORY);
    let exif_directory = directory(0x8769, 4, 1, own);
    let comment_entry = directory(0x9286, 7, text.len() as u32, behind);
    [HEADER, &exif_directory, &comment_entry, &text].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exif_leads_to_the_comment() {
        let exif = exif("a 🧀");
        let at = |at: usize| u32::from_be_bytes(exif[at..at + 4].try_into().unwrap()) as usize;
        assert_eq!(at(4), 8);
        let own = at(8 + 2 + 8);
        assert_eq!(exif[own + 2..own + 6], [0x92, 0x86, 0, 7]);
        let (length, text) = (at(own + 2 + 4), at(own + 2 + 8));
        assert_eq!((text + length, &exif[text..text + 8]), (exif.len(), &b"UNICODE\0"[..]));
        let units: Vec<u16> = exif[text + 8..].chunks(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect();
        assert_eq!(String::from_utf16(&units).unwrap(), "a 🧀");
    }

    #[test]
    fn json_is_the_same_after_xml() {
        for json in [r#"{"a":"<b> & \"c\" &amp; 'd'"}"#, "{}"] {
            assert_eq!(unescaped(&escaped(json)), json);
        }
    }

    #[test]
    fn what_a_jpeg_has_no_room_for_is_refused() {
        let of = |bytes: usize| Metadata { recipe: Some("x".repeat(bytes)), ..Metadata::default() };
        assert!(of(60_000).check_jpeg().is_ok());
        assert!(of(SEGMENT).check_jpeg().is_err_and(|e| e.to_string().contains("PNG")));
    }
}
