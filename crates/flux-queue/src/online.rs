//! The server's connections to the broker, for online jobs. Jobs are confirmed or refused within seconds, and events of
//! jobs are received.
//!
//! Publishing and consuming use separate connections, since a broker whose disk is full stops reading from a connection
//! that publishes. Both reconnect when they end. A probe is published every few seconds, so that a blocked broker is
//! noticed before a client waits for it.

use std::sync::Arc;
use std::time::Duration;

use flux::{Error, Result};
use futures_util::StreamExt;
use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::FieldTable;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::Notify;

use super::broker::{Broker, Link, Outgoing};
use super::dead::{self, Dead, Fate, Which, said};
use super::message::EventMessage;
use super::names::{self, DEAD, EVENTS, Lane};
use super::wait::Backoff;
use flux_runtime::progress::say;

/// The timeout for publisher confirms.
const CONFIRM_WITHIN: Duration = Duration::from_secs(5);
/// The interval between probes.
const PROBE_EVERY: Duration = Duration::from_secs(5);
/// The interval between checks of a connection.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The last part of the routing key of probes. No queue is bound to it.
const PROBE: &str = "probe";

/// A notification from the broker.
#[derive(Debug)]
pub enum QueueEvent {
    Event(EventMessage),
    /// The job was dead-lettered.
    Dead {
        job: String,
        reason: String,
    },
    /// The subscription is active. Earlier events were missed.
    Listening,
}

/// The reason why jobs were not accepted.
#[derive(Debug)]
pub enum Refused {
    /// The queue is full for the messages at these indices.
    Full(Vec<usize>),
    /// The broker is unreachable or blocked. Nothing was sent.
    Away,
    /// The broker did not confirm in time, and may still accept the messages.
    Unsure(Error),
}

/// The connections to the broker. See the [module](self).
pub struct Online {
    broker: Broker,
    models: Vec<String>,
    state: Mutex<State>,
    /// Wakes the task that supervises the publishing connection.
    failed: Notify,
}

#[derive(Default)]
struct State {
    link: Option<Arc<Link>>,
    /// `true` if the broker confirmed the last message.
    takes: bool,
    /// `true` if events are received.
    hears: bool,
}

impl Online {
    /// Connects, declares the queues of these models, and reconnects as needed. Calls `notify` for each notification.
    /// Must be called within a runtime.
    pub fn start(
        broker: Broker,
        models: Vec<String>,
        notify: impl Fn(QueueEvent) + Send + Sync + 'static,
    ) -> Arc<Self> {
        let online = Arc::new(Self { broker, models, state: Mutex::default(), failed: Notify::new() });
        tokio::spawn(Arc::clone(&online).keep_sending());
        tokio::spawn(Arc::clone(&online).keep_listening(notify));
        online
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock())
    }

    /// Returns `true` if the broker accepts messages and events are received.
    pub fn is_there(&self) -> bool {
        self.change(|state| state.takes && state.hears && state.link.as_ref().is_some_and(|link| link.is_open()))
    }

    /// Publishes jobs, each with the name of its model, and waits for the broker's confirms.
    ///
    /// Errors if the broker has not accepted all of them within a few seconds.
    pub async fn send(&self, jobs: Vec<(&str, Vec<u8>)>) -> std::result::Result<(), Refused> {
        let link = self.change(|state| state.link.clone().filter(|link| state.takes && link.is_open()));
        let link = link.ok_or(Refused::Away)?;
        let messages: Vec<_> =
            jobs.into_iter().map(|(model, bytes)| Outgoing::job(Lane::Online.queue(model), bytes)).collect();
        match link.send_within(&messages, CONFIRM_WITHIN).await {
            Ok(refused) if refused.is_empty() => Ok(()),
            Ok(refused) => Err(Refused::Full(refused)),
            Err(error) => {
                self.change(|state| state.takes = false);
                self.failed.notify_one();
                Err(Refused::Unsure(error))
            }
        }
    }

    /// Returns the dead-lettered jobs, or `None` if the broker is unreachable.
    pub async fn dead(&self) -> Option<Vec<Dead>> {
        let link = self.change(|state| state.link.clone())?;
        dead::treat(&link, &Which::All, Fate::Stay).await.ok().map(|treated| treated.jobs)
    }

    /// Broadcasts the cancellation of a job to the workers. The message may be lost.
    pub async fn cancel(&self, job: &str) {
        let Some(link) = self.change(|state| state.link.clone()) else { return };
        if let Ok(order) = Outgoing::cancel(job) {
            link.publish_unconfirmed(order).await;
        }
    }

    async fn keep_sending(self: Arc<Self>) {
        let mut backoff = Backoff::default();
        loop {
            match self.connect().await {
                Ok(link) => {
                    let link = Arc::new(link);
                    self.change(|state| state.link = Some(Arc::clone(&link)));
                    if self.use_while_open(&link).await {
                        backoff = Backoff::default();
                    }
                    self.change(|state| (state.link, state.takes) = (None, false));
                    say("note: the broker is unavailable, or accepts no messages; trying again");
                }
                Err(error) => say(&format!("note: {error}; trying again")),
            }
            backoff.wait().await;
        }
    }

    async fn connect(&self) -> Result<Link> {
        let link = self.broker.connect().await?;
        for model in &self.models {
            link.declare_model(model).await?;
        }
        Ok(link)
    }

    /// Probes the broker until the connection ends or a probe is not confirmed. Returns `true` if any probe was
    /// confirmed.
    async fn use_while_open(&self, link: &Link) -> bool {
        let mut took = false;
        loop {
            let takes = link.send_within(&[probe()], CONFIRM_WITHIN).await.is_ok_and(|refused| refused.is_empty());
            self.change(|state| state.takes = takes);
            took |= takes;
            let was_open = link.is_open();
            // A new connection would be blocked, too. This one gets notified when the broker has room again.
            while link.connection.status().blocked() && link.connection.status().connected() {
                self.change(|state| state.takes = false);
                tokio::time::sleep(LOOK_EVERY).await;
            }
            if !link.connection.status().connected() || (was_open && !takes) {
                return took;
            }
            if was_open {
                let next = tokio::time::timeout(PROBE_EVERY, self.failed.notified());
                tokio::select! {
                    _ = next => {}
                    () = closed(link) => return took,
                }
            }
        }
    }

    async fn keep_listening(self: Arc<Self>, notify: impl Fn(QueueEvent) + Send + Sync + 'static) {
        let mut backoff = Backoff::default();
        loop {
            if self.listen(&notify).await.is_ok() {
                backoff = Backoff::default();
            }
            self.change(|state| state.hears = false);
            backoff.wait().await;
        }
    }

    /// Receives notifications until the connection ends.
    ///
    /// Errors if connecting fails.
    async fn listen(&self, notify: &(impl Fn(QueueEvent) + Send + Sync)) -> Result<()> {
        let link = self.broker.connect().await?;
        let mut events = link.subscribe(EVENTS, &["*.started", "*.step", "*.done", "*.failed"]).await?;
        let mut deaths = link.subscribe(DEAD, &[""]).await?;
        self.change(|state| state.hears = true);
        notify(QueueEvent::Listening);
        loop {
            let (delivery, is_event) = tokio::select! {
                delivery = events.next() => (delivery, true),
                delivery = deaths.next() => (delivery, false),
            };
            let Some(Ok(delivery)) = delivery else { return Ok(()) };
            let event = if is_event { event(&delivery) } else { death(&delivery) };
            if let Some(event) = event {
                notify(event);
            }
        }
    }
}

/// Returns when the connection ends.
async fn closed(link: &Link) {
    while link.connection.status().connected() {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn probe() -> Outgoing {
    Outgoing { exchange: EVENTS, key: PROBE.to_string(), bytes: Vec::new(), properties: BasicProperties::default() }
}

/// Parses an event of an online job. Returns `None` for other messages.
fn event(delivery: &Delivery) -> Option<QueueEvent> {
    let event: EventMessage = serde_json::from_slice(&delivery.data).ok()?;
    event.batch.is_none().then_some(QueueEvent::Event(event))
}

/// Parses a dead-lettered job, with its reason.
fn death(delivery: &Delivery) -> Option<QueueEvent> {
    /// The ID may be readable even if the message as a whole is not valid.
    #[derive(Deserialize)]
    struct Named {
        job: String,
    }
    let Named { job } = serde_json::from_slice(&delivery.data).ok()?;
    let nothing = FieldTable::default();
    let (reason, _) = said(delivery.properties.headers().as_ref().unwrap_or(&nothing));
    names::is_job(&job).then_some(QueueEvent::Dead { job, reason })
}
