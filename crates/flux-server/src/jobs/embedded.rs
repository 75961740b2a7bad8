//! Images in the fields of a request: base64, data URLs, and URLs of this server's files. They become files of the
//! request. Other URLs are never fetched.

use std::borrow::Cow;

use axum::http::StatusCode;
use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use base64::engine::{DecodePaddingMode, Engine};
use bytes::Bytes;
use serde_json::Value;

use crate::http::error::{ApiError, Result, shown};
use crate::jobs::fields::Fields;
use crate::jobs::names;
use crate::jobs::request::Upload;

/// The path of files that responses link to.
const FILES: &str = "/v1/files/";
/// Keys of an object that may hold an image.
const KEYS: [&str; 5] = ["image_url", "url", "b64_json", "image", "data"];
/// Max images of a field, checked before the images of all fields are counted.
const MAX_IMAGES: usize = 64;

/// Accepts base64 with or without padding, since some clients omit it.
const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);
const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT);

/// A reader of a request's images and masks. It renames their parts to `image` and `mask`.
pub struct Reader<'a> {
    /// Looks up a result file by its name.
    pub file: &'a dyn Fn(&str) -> Option<Bytes>,
    /// Max bytes of a file.
    pub max_bytes: usize,
}

impl Reader<'_> {
    /// Moves images from fields to files, and renames the parts of all files. Numbered files are sorted by number.
    ///
    /// Errors if a value is not an image.
    pub fn read(&self, fields: &mut Fields, uploads: Vec<Upload>) -> Result<Vec<Upload>> {
        let mut files = Vec::new();
        // Browsers send an empty file if none was chosen.
        let is_sent =
            |upload: &Upload| !upload.bytes.is_empty() || upload.file_name.as_ref().is_some_and(|n| !n.is_empty());
        for mut upload in uploads.into_iter().filter(is_sent) {
            let (field, place) = names::file_field(&upload.part);
            if let Some(field) = field {
                if let Some(text) = text_of(&upload.bytes) {
                    upload.bytes = self.image(&upload.part, text)?;
                }
                upload.part = field.to_string();
            }
            files.push((place, upload));
        }
        files.sort_by_key(|(place, _)| *place);
        let mut files: Vec<_> = files.into_iter().map(|(_, upload)| upload).collect();
        for part in ["image", "mask"] {
            let Some((name, value)) = fields.given(part) else { continue };
            let mut values = Vec::new();
            self.add_images(&name, value, &mut values)?;
            files.extend(values.into_iter().map(|bytes| Upload { part: part.to_string(), file_name: None, bytes }));
        }
        Ok(files)
    }

    /// Adds the images of a value: a text, an object with an image, or a list.
    fn add_images(&self, name: &str, value: Value, to: &mut Vec<Bytes>) -> Result<()> {
        match value {
            Value::String(text) => to.push(self.image(name, &text)?),
            Value::Array(values) if values.len() > MAX_IMAGES => {
                let message = format!("`{}` has {} images, expected at most 16", shown(name), values.len());
                return Err(ApiError::value(name.to_string(), message));
            }
            Value::Array(values) => {
                for (place, value) in values.into_iter().enumerate() {
                    if value.is_array() {
                        return Err(not_an_image(name));
                    }
                    self.add_images(&format!("{name}[{place}]"), value, to)?;
                }
            }
            Value::Object(mut object) if object.get("file_id").is_some_and(|id| !id.is_null()) => {
                object.remove("file_id");
                let name = format!("{name}.file_id");
                let message =
                    format!("`{}`: stored files are not supported: send the image as a data URL", shown(&name));
                return Err(ApiError::bad("unsupported_value", message).with_param(name));
            }
            Value::Object(mut object) => {
                let found =
                    KEYS.iter().find_map(|key| Some((key, object.remove(*key).filter(|value| !value.is_null())?)));
                match found {
                    // As in chat APIs: {"image_url": {"url": ..}}
                    Some((key, value @ (Value::String(_) | Value::Object(_)))) => {
                        self.add_images(&format!("{name}.{key}"), value, to)?;
                    }
                    _ => return Err(not_an_image(name)),
                }
            }
            _ => return Err(not_an_image(name)),
        }
        Ok(())
    }

    /// Returns the image of a text.
    fn image(&self, name: &str, text: &str) -> Result<Bytes> {
        if let Some((_, file)) = text.rsplit_once(FILES).filter(|(before, _)| before.len() <= 1024) {
            let gone = || {
                let message = format!("`{}` names a file that does not exist or is no longer kept", shown(name));
                ApiError::value(name.to_string(), message)
            };
            return (self.file)(file).ok_or_else(gone);
        }
        if text.starts_with("http:") || text.starts_with("https:") {
            let message =
                format!("`{}` is an address, and addresses are not fetched: send the image as a data URL", shown(name));
            return Err(ApiError::bad("unsupported_value", message).with_param(name.to_string()));
        }
        let bytes = decode(text).ok_or_else(|| not_an_image(name))?;
        if bytes.len() > self.max_bytes {
            let message = format!("`{}` has more than {} bytes", shown(name), self.max_bytes);
            let status = StatusCode::PAYLOAD_TOO_LARGE;
            return Err(ApiError::new(status, "payload_too_large", message).with_param(name.to_string()));
        }
        Ok(bytes.into())
    }
}

fn not_an_image(name: &str) -> ApiError {
    let message = format!("`{}` is not an image: send base64 or a data URL, or a form with the file", shown(name));
    ApiError::bad("invalid_image", message).with_param(name.to_string())
}

/// Returns the text of a form part that contains a URL or base64 instead of a file.
fn text_of(bytes: &[u8]) -> Option<&str> {
    const STARTS: [&[u8]; 7] = [b"data:", b"http:", b"https:", b"/v1/files/", b"iVBORw0KGgo", b"/9j/", b"UklGR"];
    STARTS.iter().any(|start| bytes.starts_with(start)).then(|| str::from_utf8(bytes).ok()).flatten()
}

/// Decodes base64 of either alphabet, with or without padding and whitespace, or a data URL with base64.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let data = match text.strip_prefix("data:") {
        Some(url) => {
            let (kind, data) = url.split_once(',')?;
            kind.ends_with(";base64").then_some(data)?
        }
        None => text,
    };
    let data: Cow<'_, [u8]> = match data.bytes().any(|byte| byte.is_ascii_whitespace()) {
        true => data.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect::<Vec<_>>().into(),
        false => data.as_bytes().into(),
    };
    if data.is_empty() {
        return None;
    }
    STANDARD.decode(&data).or_else(|_| URL_SAFE.decode(&data)).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PNG: &[u8] = b"\x89PNG\r\n\x1a\n and more";

    fn read(value: Value) -> std::result::Result<Vec<Vec<u8>>, (&'static str, String)> {
        let file = |name: &str| (name == "1.png").then(|| Bytes::from_static(b"own"));
        let mut fields = Fields::from_object(value.as_object().unwrap().clone());
        let reader = Reader { file: &file, max_bytes: 1000 };
        let files = reader.read(&mut fields, Vec::new());
        let files = files.map_err(|error| (error.code, error.param.unwrap_or_default().into_owned()))?;
        Ok(files.into_iter().map(|upload| upload.bytes.to_vec()).collect())
    }

    #[test]
    fn an_image_is_written_in_many_ways() {
        let text = STANDARD.encode(PNG);
        let url = format!("data:image/png;base64,{text}");
        let lines = text.as_bytes().chunks(4).map(|line| str::from_utf8(line).unwrap()).collect::<Vec<_>>().join("\n");
        for image in [
            json!(text),
            json!(url),
            json!([url]),
            json!({"image_url": url}),
            json!({"image_url": {"url": url}}),
            json!([{"image_url": url, "file_id": null}]),
            json!({"url": url}),
            json!({"b64_json": text}),
            json!(lines),
            json!(text.trim_end_matches('=')),
            json!(text.replace('+', "-").replace('/', "_")),
        ] {
            assert_eq!(read(json!({"image": image})).unwrap(), [PNG], "{image}");
        }
        let own = json!({"image": [url, "http://any/flux/v1/files/1.png"], "mask": {"image_url": url}});
        assert_eq!(read(own).unwrap(), [PNG, b"own", PNG]);
    }

    #[test]
    fn what_is_no_image_is_named() {
        for (image, code, param) in [
            (json!("http://example.com/a.png"), "unsupported_value", "image"),
            (json!([{"file_id": "file-1"}]), "unsupported_value", "image[0].file_id"),
            (json!({"image_url": "x y!"}), "invalid_image", "image.image_url"),
            (json!("data:image/png,abc"), "invalid_image", "image"),
            (json!([["aGk="]]), "invalid_image", "image"),
            (json!(""), "invalid_image", "image"),
            (json!(3), "invalid_image", "image"),
            (json!({"what": 1}), "invalid_image", "image"),
            (json!("/v1/files/2.png"), "invalid_value", "image"),
            (json!("QUFB".repeat(334)), "payload_too_large", "image"),
            (json!(vec!["aGk="; 65]), "invalid_value", "image"),
        ] {
            assert_eq!(read(json!({"image": image})), Err((code, param.to_string())), "{image}");
        }
    }

    #[test]
    fn numbered_files_are_in_the_order_of_their_numbers() {
        let upload = |part: &str, bytes: &'static [u8]| Upload {
            part: part.to_string(),
            file_name: None,
            bytes: Bytes::from_static(bytes),
        };
        let reader = Reader { file: &|_| None, max_bytes: 1000 };
        let files = vec![upload("image[1]", b"b"), upload("mask[]", b"m"), upload("image[0]", b"a"), upload("x", b"x")];
        let read = reader.read(&mut Fields::default(), files).unwrap();
        let names: Vec<_> = read.iter().map(|upload| (&*upload.part, &*upload.bytes)).collect();
        assert_eq!(names, [("mask", &b"m"[..]), ("x", b"x"), ("image", b"a"), ("image", b"b")]);
        let url = vec![upload("image", b"data:image/png;base64,aGk=")];
        assert_eq!(&reader.read(&mut Fields::default(), url).unwrap()[0].bytes[..], b"hi");
    }
}
