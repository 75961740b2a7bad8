//! Serves images from an app of its own, with the APIs and the page of `flux serve` below `/flux`:
//! `cargo run --profile quick --example embedded_server`, then open http://127.0.0.1:8000/flux or
//! http://127.0.0.1:8000/images/a-red-heart.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use flux::{Device, Engine, Error, ImageFormat};
use flux_server::config::Config;
use flux_server::keys::Keys;
use flux_server::models::Models;
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = TcpListener::bind("127.0.0.1:8000").await?;
    // Answers depend on the addresses of clients.
    axum::serve(listener, app().await?.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

/// Returns the app. Its own route and the server of flux share one engine.
pub async fn app() -> flux::Result<Router> {
    let engine = blocking(|| Engine::built_in().device(Device::Auto).open()).await?;
    let engine = Arc::new(engine);
    let config = Config { base_path: "/flux".to_string(), ..Config::new(Vec::new(), Keys::none()) };
    let server = flux_server::router(config, Models::from_engine("tiny", Arc::clone(&engine))).await?;
    Ok(Router::new().route("/images/{prompt}", get(image)).with_state(engine).fallback_service(server))
}

/// Answers with a small image of a prompt.
async fn image(State(flux): State<Arc<Engine>>, Path(prompt): Path<String>) -> Response {
    let prompt = prompt.replace('-', " ");
    match blocking(move || flux.generate(prompt).size(64, 64).seed(45).run()?.encode(ImageFormat::Png)).await {
        Ok(png) => ([(header::CONTENT_TYPE, "image/png")], png).into_response(),
        Err(error) => (StatusCode::UNPROCESSABLE_ENTITY, error.to_string()).into_response(),
    }
}

/// Runs work that blocks, on a thread for it.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> flux::Result<T> + Send + 'static) -> flux::Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(Error::new(format!("the work did not end: {error}"))))
}
