//! `/ws`: a WebSocket with the events of a client's prompts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Extension;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use bytes::{BufMut, BytesMut};
use serde_json::Value;
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

use super::error::ComfyResult;
use super::hub::{Frame, message};
use super::lists::{Asked, features};
use super::run::status;
use crate::App;
use crate::http::client::Client;
use crate::http::connections::Counted;
use crate::http::error::ApiError;
use crate::http::silence::is_gone;
use crate::wire::FromClient;

/// Max bytes of a client's message. Only feature flags are answered.
const MAX_MESSAGE: usize = 64 << 10;
/// Max bytes of a client ID.
pub const MAX_NAME: usize = 128;

pub async fn connect(
    FromClient(app, client): FromClient,
    Extension(connection): Extension<Arc<Counted>>,
    asked: Asked,
    upgrade: std::result::Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> ComfyResult {
    let upgrade = upgrade.map_err(|e| ApiError::new(e.status(), "no_websocket", e.body_text()))?;
    let id = asked.get("clientId").filter(|id| !id.is_empty()).map_or_else(crate::http::ids::new_id, str::to_string);
    if id.len() > MAX_NAME {
        return Err(ApiError::value("clientId", format!("the name has more than {MAX_NAME} bytes")).into());
    }
    let upgrade = upgrade.max_message_size(MAX_MESSAGE).max_frame_size(MAX_MESSAGE);
    Ok(upgrade.on_upgrade(move |socket| async move {
        let (number, frames) = app.comfy.hub.open(&client.name, &id);
        serve(&app, &client, socket, (frames, id)).await;
        app.comfy.hub.close(number);
        // The connection counts while the socket is open.
        drop(connection);
    }))
}

async fn serve(app: &App, client: &Client, mut socket: WebSocket, (mut frames, id): (Receiver<Frame>, String)) {
    let silence = app.config.limits.silence;
    let mut hello = status(app, &client.name);
    hello["sid"] = id.into();
    if !send(&mut socket, message("status", &hello), silence).await {
        return;
    }
    let mut heard = Instant::now();
    let mut ticks = tokio::time::interval((silence / 2).max(Duration::from_millis(1)));
    loop {
        let sent = tokio::select! {
            frame = frames.recv() => match frame {
                Some(frame) => send(&mut socket, frame, silence).await,
                None => {
                    let close = CloseFrame { code: close_code::AWAY, reason: "".into() };
                    let _ = timeout(silence, socket.send(Message::Close(Some(close)))).await;
                    return;
                }
            },
            message = socket.recv() => {
                heard = Instant::now();
                match message {
                    Some(Ok(Message::Text(text))) => answer(app, &mut socket, &text, silence).await,
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                    Some(Ok(_)) => true,
                }
            }
            _ = ticks.tick() => {
                !is_gone(heard.elapsed(), silence)
                    && matches!(timeout(silence, socket.send(Message::Ping(bytes::Bytes::new()))).await, Ok(Ok(())))
            }
        };
        if !sent {
            return;
        }
    }
}

/// Answers a client's feature flags with those of the server.
async fn answer(app: &App, socket: &mut WebSocket, text: &str, silence: Duration) -> bool {
    let said: Value = serde_json::from_str(text).unwrap_or_default();
    if said["type"] != "feature_flags" {
        return true;
    }
    send(socket, message("feature_flags", &features(app)), silence).await
}

/// Sends a frame. Returns `true` if the client accepted it.
async fn send(socket: &mut WebSocket, frame: Frame, silence: Duration) -> bool {
    let message = match frame {
        Frame::Text(text) => Message::Text(text.into()),
        Frame::Image(format, file) => {
            let mut bytes = BytesMut::with_capacity(8 + file.len());
            bytes.put_u32(1);
            bytes.put_u32(format);
            bytes.put_slice(&file);
            Message::Binary(bytes.freeze())
        }
    };
    matches!(timeout(silence, socket.send(message)).await, Ok(Ok(())))
}
