//! `/v1/live`: live generation over a WebSocket. Frames go in, and images come out as soon as they are ready.
//!
//! A text message is a JSON object. Its fields, as for `/v1/jobs`, hold from then on. A number in `draw` requests an
//! image from the prompt alone, and cancels the running one. A number in `feedback` starts each image from this part of
//! the previous image. On its own, `feedback` leaves the other fields as they are. A binary message is a 32-bit number
//! and the file of a frame. Images are returned in the same binary form, and errors as texts. Each image is a regular
//! job: it waits for its turn, and all limits apply. While an image is running, a new frame replaces a waiting one.

use std::sync::Arc;
use std::time::Instant;

use axum::Extension;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use bytes::{BufMut, Bytes, BytesMut};
use flux::pipeline::Latents;
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use crate::http::client::Client;
use crate::http::connections::Counted;
use crate::http::error::{ApiError, Result};
use crate::http::silence::is_gone;
use crate::jobs::admission::Permit;
use crate::jobs::body::values;
use crate::jobs::fields::Fields;
use crate::jobs::record::{JobRecord, Status};
use crate::jobs::request::{self, Feedback, Route, Upload};
use crate::wire::FromClient;
use crate::{App, EndsWithClient, jobs::intake};

/// The subprotocol that clients name. A key may follow as another one, see [`mod@crate::guard`].
pub const PROTOCOL: &str = "flux";
/// Max bytes of a frame and of a text.
const MAX_FRAME: usize = 8 << 20;
const MAX_TEXT: usize = 256 << 10;
/// Bytes of a number.
const NUMBER: usize = 4;
/// The default JPEG quality.
const QUALITY: u64 = 85;

pub async fn connect(
    FromClient(app, client): FromClient,
    Extension(connection): Extension<Arc<Counted>>,
    upgrade: std::result::Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response> {
    app.queue.check_live()?;
    let upgrade = upgrade.map_err(|e| ApiError::new(e.status(), "no_websocket", e.body_text()))?;
    let upgrade = upgrade.protocols([PROTOCOL]).max_message_size(MAX_FRAME).max_frame_size(MAX_FRAME);
    Ok(upgrade.on_upgrade(move |socket| async move {
        Live::new(&app, client).serve(socket).await;
        // The connection counts while the socket is open.
        drop(connection);
    }))
}

/// A requested image.
struct Asked {
    number: u32,
    /// `None` for an image from the prompt alone.
    frame: Option<Bytes>,
    fields: Map<String, Value>,
    /// The part of the previous image to start from.
    feedback: f32,
    /// Counts the bytes of the frame as part of a body.
    permit: Arc<Permit>,
}

/// An image in progress.
struct Running {
    number: u32,
    job: EndsWithClient,
}

/// The state of a socket.
struct Live<'a> {
    app: &'a Arc<App>,
    client: Client,
    /// The fields of the following images.
    fields: Map<String, Value>,
    feedback: f32,
    /// Counts the bytes of the fields.
    settings: Option<Arc<Permit>>,
    /// The final latents of the previous image.
    before: Option<Latents>,
    waiting: Option<Asked>,
    running: Option<Running>,
}

impl<'a> Live<'a> {
    fn new(app: &'a Arc<App>, client: Client) -> Self {
        let fields = Map::new();
        Self { app, client, fields, feedback: 0.0, settings: None, before: None, waiting: None, running: None }
    }

    /// Serves until the client disconnects.
    async fn serve(mut self, mut socket: WebSocket) {
        let silence = self.app.config.limits.silence;
        let mut heard = Instant::now();
        let mut ticks = tokio::time::interval((silence / 2).max(std::time::Duration::from_millis(1)));
        loop {
            let running = self.running.as_ref().map(|running| &*running.job);
            let answer = tokio::select! {
                () = ended(running) => self.answer(),
                message = socket.recv() => {
                    heard = Instant::now();
                    match message {
                        Some(Ok(Message::Text(text))) => self.apply_text(&text),
                        Some(Ok(Message::Binary(bytes))) => self.take(&bytes),
                        Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                        Some(Ok(_)) => None,
                    }
                }
                _ = ticks.tick() => {
                    if is_gone(heard.elapsed(), silence) {
                        return;
                    }
                    Some(Message::Ping(Bytes::new()))
                }
            };
            let begun = self.begin().await;
            for message in answer.into_iter().chain(begun) {
                if !matches!(timeout(silence, socket.send(message)).await, Ok(Ok(()))) {
                    return;
                }
            }
        }
    }

    /// Applies the fields of a text message. Returns an error message if they are invalid.
    fn apply_text(&mut self, text: &str) -> Option<Message> {
        let wrong = |what: &str| Some(error(None, &ApiError::bad("invalid_value", what)));
        if text.len() > MAX_TEXT {
            return wrong("the text is too long");
        }
        let Ok(Value::Object(mut fields)) = serde_json::from_str(text) else {
            return wrong("the text is not a JSON object");
        };
        let (draw, feedback) = (fields.remove("draw"), fields.remove("feedback"));
        // `feedback` alone leaves the other fields as they are.
        let is_told = feedback.is_some() || !fields.is_empty();
        let feedback = match feedback {
            None | Some(Value::Null) => Some(0.0),
            Some(part) => part.as_f64().filter(|part| (0.0..1.0).contains(part)),
        };
        let Some(feedback) = feedback else { return wrong("`feedback` is not a number from 0 to below 1") };
        if is_told {
            let fields = if fields.is_empty() { &self.fields } else { &fields };
            if feedback > 0.0 && fields.get("strength").is_some_and(|strength| !strength.is_null()) {
                return wrong("`feedback` cannot be used with `strength`");
            }
            // Counted twice: the socket keeps the fields, and a waiting image has a copy.
            let settings = self.app.permit(&self.client);
            if let Err(full) = settings.keep(2 * (text.len() + values(text.as_bytes()))) {
                return Some(error(None, &full));
            }
            (self.fields, self.feedback, self.settings) = (fields.clone(), feedback as f32, Some(settings));
        }
        let number = match draw {
            None | Some(Value::Null) => return None,
            Some(number) => number.as_u64().and_then(|number| u32::try_from(number).ok()),
        };
        let Some(number) = number else { return wrong("`draw` is not a 32-bit number") };
        if let Some(Running { job, .. }) = self.running.take() {
            self.app.queue.cancel(&job.job);
        }
        self.ask(number, None)
    }

    /// Takes a frame, which replaces a waiting one.
    fn take(&mut self, bytes: &Bytes) -> Option<Message> {
        let number = bytes.first_chunk::<NUMBER>().map(|number| u32::from_be_bytes(*number));
        let Some(number) = number else {
            return Some(error(None, &ApiError::bad("invalid_value", "the frame has no number")));
        };
        self.ask(number, Some(bytes.slice(NUMBER..)))
    }

    fn ask(&mut self, number: u32, frame: Option<Bytes>) -> Option<Message> {
        self.waiting = None;
        let permit = self.app.permit(&self.client);
        if let Err(full) = permit.keep(frame.as_ref().map_or(0, Bytes::len)) {
            return Some(error(Some(number), &full));
        }
        self.waiting = Some(Asked { number, frame, fields: self.fields.clone(), feedback: self.feedback, permit });
        None
    }

    /// Starts the waiting image if none is running. Returns an error message if that fails.
    async fn begin(&mut self) -> Option<Message> {
        if self.running.is_some() {
            return None;
        }
        let asked = self.waiting.take()?;
        let number = asked.number;
        match self.submit(asked).await {
            Ok(job) => {
                self.running = Some(Running { number, job });
                None
            }
            Err(wrong) => Some(error(Some(number), &wrong)),
        }
    }

    async fn submit(&mut self, Asked { frame, fields, feedback, permit, .. }: Asked) -> Result<EndsWithClient> {
        let mut fields = fields;
        fields.retain(|_, value| !value.is_null());
        for (name, value) in
            [("output_format", json!("jpeg")), ("output_compression", QUALITY.into()), ("partial_images", 0.into())]
        {
            fields.entry(name).or_insert(value);
        }
        let fields = Fields::from_object(fields);
        let upload = |bytes| Upload { part: "image".to_string(), file_name: None, bytes };
        let uploads = frame.map(upload).into_iter().collect();
        let mut asked = intake::read(self.app, &self.client, &permit, fields, uploads, Route::Jobs).await?;
        check(&asked)?;
        asked.upsample = Some(false);
        let before = self.before.clone();
        asked.feedback = (feedback > 0.0).then_some(Feedback { part: feedback, before });
        intake::submit(self.app, &self.client, &permit, asked).await
    }

    /// Returns the message for the image that has ended.
    fn answer(&mut self) -> Option<Message> {
        let Running { number, job } = self.running.take()?;
        let snapshot = job.snapshot();
        if snapshot.status == Status::Done {
            self.before = job.take_latents();
        }
        match (snapshot.status, snapshot.images.into_iter().next().flatten(), snapshot.error) {
            (Status::Done, Some(made), _) => {
                let mut bytes = BytesMut::with_capacity(NUMBER + made.file.len());
                bytes.put_u32(number);
                bytes.put_slice(&made.file);
                Some(Message::Binary(bytes.freeze()))
            }
            (_, _, Some(wrong)) => Some(error(Some(number), &wrong)),
            _ => Some(error(Some(number), &ApiError::internal("the image is missing"))),
        }
    }
}

/// Errors if a request uses options that a socket does not support.
fn check(asked: &request::Asked) -> Result<()> {
    let wrong = [
        (asked.count != 1, "n", "each frame generates one image"),
        (asked.enlarging.is_some(), "upscale", "an image cannot be enlarged as fast as frames"),
        (asked.answer.stream, "stream", "each image is sent by itself anyway"),
        (asked.answer.as_url, "response_format", "images are sent as bytes, not as `url`"),
        (asked.upsample == Some(true), "upsample", "a language model takes longer than a frame"),
        (asked.previews.are_wanted(), "partial_images", "only finished images are sent"),
    ];
    match wrong.into_iter().find(|(is_wrong, ..)| *is_wrong) {
        Some((_, field, why)) => {
            Err(ApiError::bad("unsupported_value", format!("`{field}` is not supported for live images: {why}"))
                .with_param(field))
        }
        None => Ok(()),
    }
}

/// Waits until a job has ended, or forever without one.
async fn ended(job: Option<&JobRecord>) {
    match job {
        Some(job) => job.end().await,
        None => std::future::pending().await,
    }
}

/// Returns an error message. It includes the seconds after which the client may retry, if it may.
fn error(number: Option<u32>, wrong: &ApiError) -> Message {
    let mut answer = wrong.json();
    (answer["number"], answer["retry_after"]) = (number.into(), wrong.retry_after().into());
    Message::Text(answer.to_string().into())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_error_says_whether_the_image_may_be_asked_for_again() {
        let told = |wrong: ApiError| -> Value {
            let Message::Text(text) = error(Some(7), &wrong) else { panic!("no text") };
            serde_json::from_str(&text).unwrap()
        };
        let full = told(ApiError::too_many("queue_full", "", Duration::from_millis(1500)));
        assert_eq!((&full["number"], &full["retry_after"]), (&json!(7), &json!(2)));
        assert_eq!(told(ApiError::bad("invalid_value", ""))["retry_after"], Value::Null);
    }
}
