//! What a client is told when its request fails.

use std::borrow::Cow;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use flux::error::{ErrorKind, Field, Form, named};
use serde_json::{Value, json};

use super::answer;

/// The longest time that clients are asked to wait: more than two minutes, and they give up at once.
const RETRY_WITHIN: [u64; 2] = [1, 120];
/// Whether clients that repeat requests by themselves should.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

pub type Result<T> = std::result::Result<T, ApiError>;

/// An error as clients of OpenAI's API read it.
#[derive(Debug, Clone)]
pub struct ApiError {
    pub status: StatusCode,
    /// Stable, for programs.
    pub code: &'static str,
    pub message: String,
    /// The field of the request that is wrong.
    pub param: Option<Cow<'static, str>>,
    pub retry_after: Option<Duration>,
    /// None leaves it to the status.
    pub should_retry: Option<bool>,
}

impl ApiError {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), param: None, retry_after: None, should_retry: None }
    }

    /// A request that cannot be carried out as it is written.
    pub fn bad(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// A field whose value is wrong.
    pub fn value(param: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self::bad("invalid_value", message).of(param)
    }

    pub fn not_found(what: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", what)
    }

    /// Of work that failed for no fault of the request.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    }

    /// The server does not take work now.
    pub fn unavailable(code: &'static str, message: impl Into<String>, after: Duration) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message).after(after)
    }

    /// There is too much work.
    pub fn too_many(code: &'static str, message: impl Into<String>, after: Duration) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, code, message).after(after)
    }

    pub fn of(self, param: impl Into<Cow<'static, str>>) -> Self {
        Self { param: Some(param.into()), ..self }
    }

    fn after(self, time: Duration) -> Self {
        Self { retry_after: Some(time), ..self }
    }

    /// Clients that repeat requests get the same answer.
    pub fn for_good(self) -> Self {
        Self { should_retry: Some(false), ..self }
    }

    /// OpenAI's name for a kind of errors.
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

    /// After how many seconds clients may ask again, where they may.
    pub fn retry_after(&self) -> Option<u64> {
        let [least, most] = RETRY_WITHIN;
        self.retry_after.map(|after| (after.as_secs_f64().ceil() as u64).clamp(least, most))
    }

    /// The body of the answer.
    pub fn json(&self) -> Value {
        let Self { message, param, code, .. } = self;
        json!({"error": {"message": message, "type": self.kind(), "param": param, "code": code}})
    }
}

/// What the engine says of a request. Places are files of this machine, of which clients are told nothing.
impl From<&flux::Error> for ApiError {
    fn from(error: &flux::Error) -> Self {
        let hint = error.json(field_name)["hint"].as_str().map_or_else(String::new, |hint| format!("; {hint}"));
        let message = named(error.what(), field_name);
        match (error.kind(), error.field()) {
            (ErrorKind::Usage, Some(field)) => Self::value(field_name(field, Form::Full), message + &hint),
            (ErrorKind::Usage, None) => Self::bad("invalid_value", message + &hint),
            (ErrorKind::Failure, _) => Self::internal(message),
            (ErrorKind::Cancelled, _) => cancelled(),
        }
    }
}

impl From<flux::Error> for ApiError {
    fn from(error: flux::Error) -> Self {
        Self::from(&error)
    }
}

/// A job that was ended because somebody asked for that.
pub fn cancelled() -> ApiError {
    ApiError::new(StatusCode::CONFLICT, "cancelled", "the job was cancelled").for_good()
}

/// What requests call a field.
pub fn field_name(field: Field, _: Form) -> &'static str {
    match field {
        Field::NegativePrompt => "negative_prompt",
        Field::Width | Field::Height | Field::Size => "size",
        Field::Inputs => "image",
        Field::Adapters => "loras",
        other => other.key(),
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = answer::json_with(self.status, &self.json());
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
        let error = flux::Error::usage("the mask has another size").of(Field::Inputs).hint("scale it");
        let told = ApiError::from(&error.at("/home/someone/x.png"));
        assert_eq!(
            (told.status, told.code, told.param.as_deref()),
            (StatusCode::BAD_REQUEST, "invalid_value", Some("image"))
        );
        assert_eq!(told.message, "the mask has another size; scale it");
        let told = ApiError::from(flux::Error::new("cannot read the file").at("/secret"));
        assert_eq!(told.json()["error"]["type"], "server_error");
        assert!(!told.json().to_string().contains("secret"));
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
