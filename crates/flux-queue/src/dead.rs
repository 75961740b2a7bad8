//! The dead-letter queue: messages that no worker could process, with a reason for each.

use flux::{Error, Result};
use lapin::Channel;
use lapin::message::BasicGetMessage;
use lapin::options::{BasicAckOptions, BasicGetOptions};
use lapin::types::{AMQPValue, FieldTable};
use serde::Serialize;
use serde_json::Value;

use super::broker::{Link, Outgoing};
use super::message::JobMessage;
use super::names::DEAD;

/// The headers that workers add to a dead letter: the reason, and the original queue.
pub const REASON: &str = "flux-reason";
pub const ORIGIN: &str = "flux-queue";

/// Max dead letters read at once.
pub const MAX: usize = 10_000;

/// A dead letter.
#[derive(Debug, Clone, Serialize)]
pub struct Dead {
    /// The ID of the job. `None` if the message is not a job.
    pub job: Option<String>,
    pub batch: Option<String>,
    pub line: Option<usize>,
    pub prompt: Option<String>,
    pub reason: String,
    /// The queue that the message came from.
    pub queue: Option<String>,
    #[serde(skip)]
    pub hash: Option<blake3::Hash>,
}

/// A selection of dead letters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    All,
    /// All dead letters of a batch, or a single job.
    Named(String),
}

impl Which {
    fn means(&self, dead: &Dead) -> bool {
        match self {
            Self::All => true,
            Self::Named(name) => dead.batch.as_ref() == Some(name) || dead.job.as_ref() == Some(name),
        }
    }
}

/// The action to take on dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Keep them.
    Stay,
    /// Send them back to their original queues.
    Retry,
    /// Delete them.
    Drop,
}

/// The dead letters that were selected, and the outcome.
#[derive(Debug, Default)]
pub struct Treated {
    pub jobs: Vec<Dead>,
    /// The first error that kept a selected message in the queue, if any.
    pub stays: Option<Error>,
    /// `true` if the queue has more messages than were read.
    pub are_more: bool,
}

/// Reads the dead-letter queue and applies `fate` to the messages that `which` selects. Returns the selected messages.
///
/// Errors if the broker is unreachable.
pub async fn treat(link: &Link, which: &Which, fate: Fate) -> Result<Treated> {
    let channel = link.connection.create_channel().await.map_err(|e| link.error(&e))?;
    let treated = treat_all(link, &channel, which, fate).await;
    // The broker requeues messages that were taken and not acknowledged.
    let _ = channel.close(200, "looked".into()).await;
    treated
}

async fn treat_all(link: &Link, channel: &Channel, which: &Which, fate: Fate) -> Result<Treated> {
    let mut treated = Treated::default();
    for _ in 0..MAX {
        let message = channel.basic_get(DEAD.into(), BasicGetOptions::default()).await.map_err(|e| link.error(&e))?;
        let Some(message) = message else { return Ok(treated) };
        let dead = Dead::from_message(&message);
        if !which.means(&dead) {
            continue;
        }
        if fate == Fate::Retry
            && let Err(error) = revive(link, &message, &dead).await
        {
            treated.stays.get_or_insert(error);
            continue;
        }
        if fate != Fate::Stay {
            message.delivery.acker.ack(BasicAckOptions::default()).await.map_err(|e| link.error(&e))?;
        }
        treated.jobs.push(dead);
    }
    treated.are_more = true;
    Ok(treated)
}

/// Sends a message back to its original queue.
async fn revive(link: &Link, message: &BasicGetMessage, dead: &Dead) -> Result<()> {
    let key = dead.queue.clone().ok_or_else(|| {
        Error::new("a message does not name its original queue").hint("remove it with `flux queue dead drop`")
    })?;
    let refused = link.send(&[Outgoing::job(key.clone(), message.delivery.data.clone())]).await?;
    if refused.is_empty() {
        return Ok(());
    }
    Err(Error::new(format!("the queue `{key}` is full")).hint("try again when there is room"))
}

impl Dead {
    fn from_message(message: &BasicGetMessage) -> Self {
        let nothing = FieldTable::default();
        let headers = message.delivery.properties.headers().as_ref().unwrap_or(&nothing);
        let (reason, queue) = said(headers);
        let job = JobMessage::read(&message.delivery.data).ok();
        // The IDs may be readable even if the message as a whole is not valid.
        let loose: Value = serde_json::from_slice(&message.delivery.data).unwrap_or_default();
        let text = |field: &str| loose.get(field).and_then(Value::as_str).map(flux::error::shown);
        Self {
            job: text("job"),
            batch: text("batch"),
            line: loose.get("line").and_then(Value::as_u64).map(|line| line as usize),
            prompt: job.as_ref().map(|job| job.recipe.prompt.clone()),
            reason,
            queue,
            hash: job.map(|job| job.key.hash),
        }
    }
}

/// Returns the reason for a dead letter and its original queue. Headers of a worker come first, then those of the
/// broker.
pub fn said(headers: &FieldTable) -> (String, Option<String>) {
    let of = |table: &FieldTable, name: &str| match table.inner().get(name) {
        Some(AMQPValue::LongString(text)) => Some(text.to_string()),
        Some(AMQPValue::ShortString(text)) => Some(text.to_string()),
        _ => None,
    };
    if let Some(reason) = of(headers, REASON) {
        return (reason, of(headers, ORIGIN));
    }
    let death = match headers.inner().get("x-death") {
        Some(AMQPValue::FieldArray(deaths)) => deaths.as_slice().first().cloned(),
        _ => None,
    };
    let Some(AMQPValue::FieldTable(death)) = death else { return ("unknown".to_string(), None) };
    let reason = match of(&death, "reason").as_deref() {
        Some("delivery_limit") => "delivery_limit: workers ended while they held it, or returned it".to_string(),
        Some(reason) => reason.to_string(),
        None => "unknown".to_string(),
    };
    (reason, of(&death, "queue"))
}

#[cfg(test)]
mod tests {
    use lapin::types::{FieldArray, LongString};

    use super::*;

    fn text(text: &str) -> AMQPValue {
        AMQPValue::LongString(LongString::from(text))
    }

    #[test]
    fn a_worker_says_more_than_the_broker() {
        let mut death = FieldTable::default();
        death.insert("reason".into(), text("delivery_limit"));
        death.insert("queue".into(), text("flux.tiny.batch"));
        let mut headers = FieldTable::default();
        headers.insert("x-death".into(), AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::FieldTable(death)])));
        let (reason, queue) = said(&headers);
        assert!(reason.starts_with("delivery_limit") && queue.as_deref() == Some("flux.tiny.batch"));
        headers.insert(REASON.into(), text("not a valid job"));
        headers.insert(ORIGIN.into(), text("flux.tiny.online"));
        assert_eq!(said(&headers), ("not a valid job".to_string(), Some("flux.tiny.online".to_string())));
        assert_eq!(said(&FieldTable::default()), ("unknown".to_string(), None));
    }
}
