//! Text responses.

use std::io::Read;

use crate::Repository;
use flux_base::Result;
use flux_base::error::{Error, shortened};
use ureq::http::HeaderMap;

use super::client::{Client, Follow, Length, Trouble};
use super::refused::{not_there, refused};
use super::remote::wrong_server;

/// Requests a text of at most `limit` bytes, and returns it with the headers. Returns `None` if there is nothing at the
/// path and the server is not a hub.
///
/// Errors if the server refuses the request, or the response is longer or not text.
pub fn find_text(client: &Client, path: &str, limit: u64, of: &Repository) -> Result<Option<(String, HeaderMap)>> {
    client.persist(|_| {
        let answer = client.request("GET", path, &[], (Follow::All, Length::Text))?;
        if answer.status != 200 {
            if answer.status == 404 && answer.header("x-error-code").is_none() {
                return Ok(None);
            }
            return Err(refused(client, &answer, of, path));
        }
        let length = answer.header("content-length").and_then(|text| text.parse::<u64>().ok());
        let mut text = String::new();
        let mut body = answer.body.into_reader().take(limit + 1);
        body.read_to_string(&mut text).map_err(|e| client.broken(&e, path))?;
        if text.len() as u64 > limit {
            let what = format!("the response to `{}` is longer than {limit} bytes", shortened(path, 200));
            return Err(Error::new(what).hint(wrong_server()).into());
        }
        if length.is_some_and(|length| length != text.len() as u64) {
            return Err(Trouble::Passing(Error::new(format!("the response to `{path}` is incomplete")), None));
        }
        Ok(Some((text, answer.headers)))
    })
}

/// Requests a text of at most `limit` bytes.
///
/// Errors if there is nothing at the path, and as [`find_text`].
pub fn text(client: &Client, path: &str, limit: u64, of: &Repository) -> Result<String> {
    let found = find_text(client, path, limit, of)?;
    found.map(|(text, _)| text).ok_or_else(|| not_there(client, path))
}
