//! Errors as reported to clients.

use std::borrow::Cow;
use std::iter;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use flux::error::{ErrorKind, Field, Form, escaped, named, shortened};
use serde_json::{Value, json};

use crate::http::answer;

/// The range of `Retry-After` in seconds. Clients that are asked to wait for more than two minutes give up at once.
const RETRY_WITHIN: [u64; 2] = [1, 120];
/// The default delay before a client should retry.
pub const SOON: Duration = Duration::from_secs(2);
/// The estimated time until other work has freed its memory.
const OTHER_WORK: Duration = Duration::from_secs(10);
/// Max bytes of an error message and of a field name in it, so that a response does not repeat a whole request.
const MAX_MESSAGE: usize = 2000;
const MAX_PARAM: usize = 120;
/// Max errors in a response.
pub const MAX_ERRORS: usize = 16;
/// A header that tells client libraries whether to retry automatically.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

pub type Result<T> = std::result::Result<T, ApiError>;

/// An error in the format of OpenAI's API.
#[derive(Debug, Clone)]
pub struct ApiError {
    pub status: StatusCode,
    /// A stable code for programs.
    pub code: &'static str,
    pub message: String,
    /// The invalid field of the request.
    pub param: Option<Cow<'static, str>>,
    pub retry_after: Option<Duration>,
    /// `None` leaves the decision to the status.
    pub should_retry: Option<bool>,
    /// Further errors of the request.
    more: Vec<ApiError>,
}

impl ApiError {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        let message = match message.into() {
            message if message.len() <= MAX_MESSAGE => message,
            message => shortened(&message, MAX_MESSAGE).into_owned(),
        };
        Self { status, code, message, param: None, retry_after: None, should_retry: None, more: Vec::new() }
    }

    /// Returns an error of an invalid request.
    pub fn bad(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// Returns an error of a field with an invalid value.
    pub fn value(param: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self::bad("invalid_value", message).with_param(param)
    }

    pub fn not_found(what: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", what)
    }

    /// Returns an error that is not the request's fault.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    }

    /// Returns an error of a server that accepts no work at the moment.
    pub fn unavailable(code: &'static str, message: impl Into<String>, after: Duration) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message).after(after)
    }

    /// Returns an error of a server without memory for the request until other work has ended.
    pub fn no_memory(message: impl Into<String>) -> Self {
        Self::unavailable("out_of_memory", message, OTHER_WORK)
    }

    /// Returns an error of an input image that cannot be read.
    pub fn image(error: &flux::Error, param: &'static str) -> Self {
        match error.is_out_of_memory() {
            true => Self::no_memory(error.what()),
            false => Self::bad("invalid_image", error.what()),
        }
        .with_param(param)
    }

    /// Returns an error of a client or server with too much work.
    pub fn too_many(code: &'static str, message: impl Into<String>, after: Duration) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, code, message).after(after)
    }

    pub fn is_cancelled(&self) -> bool {
        self.code == "cancelled"
    }

    pub fn with_param(self, param: impl Into<Cow<'static, str>>) -> Self {
        let param = match param.into() {
            Cow::Owned(param) => Cow::Owned(shortened(&param, MAX_PARAM).into_owned()),
            known => known,
        };
        Self { param: Some(param), ..self }
    }

    fn after(self, time: Duration) -> Self {
        Self { retry_after: Some(time), ..self }
    }

    /// Tells clients not to retry, since the response would be the same.
    pub fn for_good(self) -> Self {
        Self { should_retry: Some(false), ..self }
    }

    /// Combines errors into one. Returns `None` if there are none.
    pub fn all(errors: Vec<Self>) -> Option<Self> {
        let mut errors = errors.into_iter();
        let first = errors.next()?;
        Some(Self { more: errors.collect(), ..first })
    }

    /// Splits an error that [`ApiError::all`] combined.
    pub fn apart(mut self) -> impl Iterator<Item = Self> {
        let more = std::mem::take(&mut self.more);
        iter::once(self).chain(more)
    }

    /// Returns the invalid fields.
    pub fn params(&self) -> impl Iterator<Item = &str> {
        iter::once(self).chain(&self.more).filter_map(|error| error.param.as_deref())
    }

    /// Returns OpenAI's name for this type of error.
    fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// Returns the seconds after which clients may retry, if they may.
    pub fn retry_after(&self) -> Option<u64> {
        let [least, most] = RETRY_WITHIN;
        self.retry_after.map(|after| (after.as_secs_f64().ceil() as u64).clamp(least, most))
    }

    /// Returns the JSON body of the response.
    pub fn json(&self) -> Value {
        let Self { message, param, code, .. } = self;
        let mut body = json!({"message": message, "type": self.kind(), "param": param, "code": code});
        if !self.more.is_empty() {
            let all: Vec<_> = iter::once(self).chain(&self.more).take(MAX_ERRORS).collect();
            let messages: Vec<_> = all.iter().map(|error| &*error.message).collect();
            body["message"] = messages.join("; ").into();
            if self.more.len() >= MAX_ERRORS {
                body["message"] =
                    format!("{}; and {} more", messages.join("; "), self.more.len() + 1 - MAX_ERRORS).into();
            }
            let one = |error: &&Self| json!({"message": error.message, "param": error.param, "code": error.code});
            body["errors"] = all.iter().map(one).collect();
        }
        json!({"error": body})
    }
}

/// Converts an error of the engine. Paths on this machine are not disclosed to clients.
impl From<&flux::Error> for ApiError {
    fn from(error: &flux::Error) -> Self {
        let hint = error.json(field_name)["hint"].as_str().map_or_else(String::new, |hint| format!("; {hint}"));
        let message = named(error.what(), field_name);
        if error.is_out_of_memory() {
            return Self::no_memory(message);
        }
        match (error.kind(), error.field()) {
            // A background that cannot be removed is not the server's fault, and clients need not retry.
            (ErrorKind::Usage, Some(field)) | (ErrorKind::Failure, Some(field @ Field::Transparent)) => {
                Self::value(field_name(field, Form::Full), message + &hint)
            }
            (ErrorKind::Usage, None) => Self::bad("invalid_value", message + &hint),
            (ErrorKind::Cancelled, _) => cancelled(),
            _ => Self::internal(message),
        }
    }
}

impl From<flux::Error> for ApiError {
    fn from(error: flux::Error) -> Self {
        Self::from(&error)
    }
}

/// Returns the error of a job that was cancelled by request.
pub fn cancelled() -> ApiError {
    ApiError::new(StatusCode::CONFLICT, "cancelled", "the job was cancelled").for_good()
}

/// Returns the error of a job whose deadline has passed.
pub fn too_late() -> ApiError {
    ApiError::too_many("would_miss_deadline", "the job could not be done before its deadline", SOON)
}

/// Returns the name of a field in requests.
pub fn field_name(field: Field, _: Form) -> &'static str {
    match field {
        Field::NegativePrompt => "negative_prompt",
        Field::Width | Field::Height | Field::Size => "size",
        Field::Inputs => "image",
        Field::Adapters => "loras",
        // Clients cannot name a folder of the server.
        Field::Wildcards => "flux serve --wildcards",
        other => other.key(),
    }
}

/// Max characters of a client's text in a message.
const MAX_SHOWN: usize = 80;

/// Returns a client's text for use in a message: shortened, and with control characters escaped.
pub fn shown(text: &str) -> String {
    let short = shortened(text, MAX_SHOWN);
    shortened(&escaped(&short), MAX_SHOWN).into_owned()
}

/// The part of an error that is logged. Responses carry it as an extension.
#[derive(Debug, Clone)]
pub struct Failure {
    pub code: &'static str,
    /// The invalid fields.
    pub params: Vec<String>,
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = answer::json_with(self.status, &self.json());
        let params = self.params().take(MAX_ERRORS).map(shown).collect();
        response.extensions_mut().insert(Failure { code: self.code, params });
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after() {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if let Some(should) = self.should_retry {
            headers.insert(SHOULD_RETRY, HeaderValue::from_static(if should { "true" } else { "false" }));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_s_errors_have_the_names_of_requests_and_no_paths() {
        let error = flux::Error::usage("the mask has another size").for_field(Field::Inputs).hint("scale it");
        let told = ApiError::from(&error.at("/home/someone/x.png"));
        assert_eq!(
            (told.status, told.code, told.param.as_deref()),
            (StatusCode::BAD_REQUEST, "invalid_value", Some("image"))
        );
        assert_eq!(told.message, "the mask has another size; scale it");
        let hint = format!("name it with `{:#}`", Field::Wildcards);
        let told = ApiError::from(flux::Error::usage("there is no folder").hint(hint));
        assert_eq!(told.message, "there is no folder; name it with `flux serve --wildcards`");
        let told = ApiError::from(flux::Error::new("it is all background").for_field(Field::Transparent));
        assert_eq!((told.code, told.param.as_deref()), ("invalid_value", Some("transparent")));
        let told = ApiError::from(flux::Error::new("cannot read the file").at("/secret"));
        assert_eq!(told.json()["error"]["type"], "server_error");
        assert!(!told.json().to_string().contains("secret"));
    }

    #[test]
    fn what_a_client_sent_is_shown_in_short() {
        assert_eq!(shown("a\u{1b}[31mb"), "a\\u{1b}[31mb");
        for long in ["x".repeat(1 << 20), "\u{1b}".repeat(1 << 20)] {
            assert!(shown(&long).chars().count() <= MAX_SHOWN + 3);
        }
    }

    #[test]
    fn an_error_repeats_only_so_much_of_what_was_sent() {
        let long = "\u{e9}".repeat(1 << 20);
        let told = ApiError::value(long.clone(), format!("`{long}` is unknown"));
        assert!(told.json().to_string().len() < 5000);
        assert!(told.message.ends_with("` is unknown"), "{}", told.message);
        let told = ApiError::from(flux::Error::usage(long.clone()).hint(long));
        assert!(told.json().to_string().len() < 5000);
    }

    #[test]
    fn clients_are_asked_to_wait_from_a_second_to_two_minutes() {
        let wait = |seconds| {
            let error = ApiError::too_many("queue_full", "", Duration::from_secs_f64(seconds));
            error.into_response().headers()[header::RETRY_AFTER].to_str().unwrap().to_string()
        };
        assert_eq!([0.0, 1.2, 1e6].map(wait), ["1", "2", "120"]);
    }
}
