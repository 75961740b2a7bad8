//! From a request to a job: what all routes that make images have in common.

use std::sync::Arc;

use super::App;
use super::error::{ApiError, Result};
use super::fields::Fields;
use super::guard::Client;
use super::record::{JobRecord, Owner};
use super::request::{Asked, Route, Upload};

/// Reads the fields of a request. What decodes images runs on threads that may block.
///
/// Errors when one is wrong.
pub async fn read(
    app: &Arc<App>,
    client: &Client,
    fields: Fields,
    uploads: Vec<Upload>,
    route: Route,
) -> Result<Asked> {
    let most = client.most_priority();
    let seed = u64::from(rand::random::<u32>());
    let mut asked = blocking(app, move || Asked::read(fields, uploads, route, seed)).await?;
    if asked.priority > most {
        asked.notes.push("the key may not ask for this priority: it has a lower one".to_string());
        asked.priority = most;
    }
    Ok(asked)
}

/// Puts it into the queue.
///
/// Errors when it cannot be carried out, or there is too much work.
pub async fn submit(app: &Arc<App>, client: &Client, asked: Asked) -> Result<Arc<JobRecord>> {
    client.take(asked.count)?;
    // Who asks for whom is told apart, and not known.
    let user = asked.user.as_ref().map_or_else(String::new, |user| blake3::hash(user.as_bytes()).to_hex().to_string());
    let owner = Owner { key: client.name.clone(), user };
    let job = app.queue.submit(app, asked, owner).await.inspect_err(|error| {
        app.metrics.refused(error.code);
    })?;
    app.log.job(&job.id, &client.name, &job.prompt);
    let (metrics, counted) = (Arc::clone(&app.metrics), Arc::clone(&job));
    tokio::spawn(async move {
        counted.end().await;
        metrics.ended(&counted);
    });
    Ok(job)
}

/// Does what may take long, such as decoding images, beside other requests: only so many at once.
pub async fn blocking<T: Send + 'static>(
    app: &Arc<App>,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let permit = Arc::clone(&app.decoding).acquire_owned().await;
    let done = tokio::task::spawn_blocking(move || {
        let done = work();
        drop(permit);
        done
    });
    done.await.unwrap_or_else(|_| Err(ApiError::internal("reading the request panicked").for_good()))
}
