//! `/v1/live`: frames in and images out over a socket, each as soon as it is there.
//!
//! A text is an object of JSON: fields of `/v1/jobs` that hold from then on, and where `draw` is a number, an image of
//! words alone is asked for, which ends the one that is being made. Where `feedback` is a number, images begin with
//! this part of the one before; alone, it leaves the fields as they are. Bytes are a number of 32 bits and the file of
//! a frame. Images come back as bytes of the same form, errors as texts. Each is a job like any other: it waits its
//! turn, and all limits hold. While one is made, the newest frame takes the place of those that wait.

use std::sync::Arc;
use std::time::Instant;

use axum::Extension;
use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use bytes::{BufMut, Bytes, BytesMut};
use flux::pipeline::Latents;
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use super::connections::Counted;
use super::error::{ApiError, Result};
use super::fields::Fields;
use super::guard::Client;
use super::record::{JobRecord, Status};
use super::request::{self, Feedback, Route, Upload};
use super::room::Held;
use super::silence::is_gone;
use super::{App, EndsWithClient, intake};

/// The protocol that clients name; a key may stand beside it, see [`super::guard`].
pub const PROTOCOL: &str = "flux";
/// The longest frame, and the longest text.
const MOST_FRAME: usize = 8 << 20;
const MOST_TEXT: usize = 256 << 10;
/// Bytes of a number.
const NUMBER: usize = 4;
/// The quality of images where the client names none.
const QUALITY: u64 = 85;

pub async fn connect(
    State(app): State<Arc<App>>,
    Extension(client): Extension<Client>,
    Extension(connection): Extension<Arc<Counted>>,
    upgrade: std::result::Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response> {
    app.queue.check_live()?;
    let upgrade = upgrade.map_err(|e| ApiError::new(e.status(), "no_websocket", e.body_text()))?;
    let upgrade = upgrade.protocols([PROTOCOL]).max_message_size(MOST_FRAME).max_frame_size(MOST_FRAME);
    Ok(upgrade.on_upgrade(move |socket| async move {
        Live::new(&app, client).serve(socket).await;
        // It counted as long as the socket was open.
        drop(connection);
    }))
}

/// What a client asked for.
struct Asked {
    number: u32,
    /// None where words alone are asked for.
    frame: Option<Bytes>,
    fields: Map<String, Value>,
    /// The part of the image before with which it begins.
    feedback: f32,
    /// The bytes of the frame count among those of all bodies.
    _held: Held,
}

/// An image that is being made.
struct Running {
    number: u32,
    job: EndsWithClient,
}

/// A socket.
struct Live<'a> {
    app: &'a Arc<App>,
    client: Client,
    /// What holds for the images to come.
    fields: Map<String, Value>,
    feedback: f32,
    /// The final latents of the image before.
    before: Option<Latents>,
    waiting: Option<Asked>,
    running: Option<Running>,
}

impl<'a> Live<'a> {
    fn new(app: &'a Arc<App>, client: Client) -> Self {
        Self { app, client, fields: Map::new(), feedback: 0.0, before: None, waiting: None, running: None }
    }

    /// Serves until the client is gone.
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
                        Some(Ok(Message::Text(text))) => self.hear(&text),
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

    /// Hears what holds from now on. Returns what is wrong with it.
    fn hear(&mut self, text: &str) -> Option<Message> {
        let wrong = |what: &str| Some(error(None, &ApiError::bad("invalid_value", what)));
        if text.len() > MOST_TEXT {
            return wrong("the text is too long");
        }
        let Ok(Value::Object(mut fields)) = serde_json::from_str(text) else {
            return wrong("the text is no object of JSON");
        };
        let (draw, feedback) = (fields.remove("draw"), fields.remove("feedback"));
        // Alone, it leaves the other fields as they are.
        let is_told = feedback.is_some() || !fields.is_empty();
        let feedback = match feedback {
            None | Some(Value::Null) => Some(0.0),
            Some(part) => part.as_f64().filter(|part| (0.0..1.0).contains(part)),
        };
        let Some(feedback) = feedback else { return wrong("`feedback` is no number from 0 to below 1") };
        if is_told {
            let fields = if fields.is_empty() { &self.fields } else { &fields };
            if feedback > 0.0 && fields.get("strength").is_some_and(|strength| !strength.is_null()) {
                return wrong("`feedback` and `strength` both say what an image begins with");
            }
            (self.fields, self.feedback) = (fields.clone(), feedback as f32);
        }
        let number = match draw {
            None | Some(Value::Null) => return None,
            Some(number) => number.as_u64().and_then(|number| u32::try_from(number).ok()),
        };
        let Some(number) = number else { return wrong("`draw` is no number of 32 bits") };
        if let Some(Running { job, .. }) = self.running.take() {
            self.app.queue.cancel(&job.job);
        }
        self.ask(number, None)
    }

    /// Takes a frame in place of one that waits.
    fn take(&mut self, bytes: &Bytes) -> Option<Message> {
        let number = bytes.first_chunk::<NUMBER>().map(|number| u32::from_be_bytes(*number));
        let Some(number) = number else {
            return Some(error(None, &ApiError::bad("invalid_value", "the frame has no number")));
        };
        self.ask(number, Some(bytes.slice(NUMBER..)))
    }

    fn ask(&mut self, number: u32, frame: Option<Bytes>) -> Option<Message> {
        self.waiting = None;
        let held = self.app.bodies.hold();
        if let Err(full) = held.add(frame.as_ref().map_or(0, Bytes::len)) {
            return Some(error(Some(number), &full));
        }
        self.waiting = Some(Asked { number, frame, fields: self.fields.clone(), feedback: self.feedback, _held: held });
        None
    }

    /// Begins what waits, where nothing is being made. Returns what is wrong with it.
    async fn begin(&mut self) -> Option<Message> {
        if self.running.is_some() {
            return None;
        }
        let asked = self.waiting.take()?;
        let number = asked.number;
        match self.submit(asked).await {
            Ok(job) => {
                self.running = Some(Running { number, job: EndsWithClient::new(self.app, job) });
                None
            }
            Err(wrong) => Some(error(Some(number), &wrong)),
        }
    }

    async fn submit(&mut self, Asked { frame, fields, feedback, _held, .. }: Asked) -> Result<Arc<JobRecord>> {
        let mut fields = fields;
        fields.retain(|_, value| !value.is_null());
        for (name, value) in
            [("output_format", json!("jpeg")), ("output_compression", QUALITY.into()), ("partial_images", 0.into())]
        {
            fields.entry(name).or_insert(value);
        }
        let fields = Fields::from_json(Value::Object(fields).to_string().as_bytes())?;
        let upload = |bytes| Upload { part: "image".to_string(), file_name: None, bytes };
        let uploads = frame.map(upload).into_iter().collect();
        let mut asked = intake::read(self.app, &self.client, fields, uploads, Route::Jobs).await?;
        check(&asked)?;
        let before = self.before.clone();
        asked.feedback = (feedback > 0.0).then_some(Feedback { part: feedback, before });
        intake::submit(self.app, &self.client, asked).await
    }

    /// What became of the image that was being made.
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
            _ => Some(error(Some(number), &ApiError::internal("the image is not there"))),
        }
    }
}

/// Errors when something is asked for that other routes give, and a socket does not.
fn check(asked: &request::Asked) -> Result<()> {
    let wrong = [
        (asked.count != 1, "n", "a frame is one image"),
        (asked.answer.stream, "stream", "images come one by one as they are"),
        (asked.answer.as_url, "response_format", "images come as bytes: `url` cannot be had"),
        (asked.previews.are_wanted(), "partial_images", "images come once they are whole"),
    ];
    match wrong.into_iter().find(|(is_wrong, ..)| *is_wrong) {
        Some((_, field, why)) => {
            Err(ApiError::bad("unsupported_value", format!("`{field}` is not for live images: {why}")).of(field))
        }
        None => Ok(()),
    }
}

/// Waits until a job is over; for ever where there is none.
async fn ended(job: Option<&JobRecord>) {
    match job {
        Some(job) => job.end().await,
        None => std::future::pending().await,
    }
}

/// What is wrong with an image, as a text; where it may be asked for again, it says after how many seconds.
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
