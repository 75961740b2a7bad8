//! `flux queue`: how far batches are, their end, and the dead.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use flux::{Error, Result};

use super::json::print_object;
use super::print;
use super::signals::Signals;
use crate::cli::{DeadChoice, Queue, QueueArgs, QueueCommand};
use crate::progress::{Console, Shown, say};
use crate::queue;
use crate::queue::broker::{Broker, BrokerArgs};
use crate::queue::dead::{self, Dead, Fate, Which};
use crate::queue::message::Happened;
use crate::queue::status::{self, BatchStatus, Watch};
use crate::queue::store::Store;

/// How often what is watched is looked for in the store: events may be lost.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// How the broker is reached.
///
/// Errors as [`Broker::new`].
pub fn broker(args: &QueueArgs) -> Result<Broker> {
    Broker::new(&BrokerArgs {
        url: args.queue.clone(),
        password_file: args.queue_password_file.clone(),
        ca: args.queue_ca.clone(),
        identity: args.queue_cert.clone().zip(args.queue_key.clone()),
    })
}

/// The store.
///
/// Errors as [`Store::open`], and when none is named.
pub fn store(args: &QueueArgs) -> Result<Store> {
    Store::open(&args.store()?)
}

/// Does what is asked for.
pub fn run(args: &Queue, signals: &Signals) -> Result<()> {
    match &args.command {
        QueueCommand::Status { batch: None, json, of, .. } => overview(of, *json),
        QueueCommand::Status { batch: Some(batch), watch: false, json, of } => {
            let (store, broker) = (store(of)?, broker(of)?);
            let status = queue::run(async { BatchStatus::of(&store, &broker.connect().await?, batch).await })?;
            if *json { print_object(&status) } else { print(text(&status).as_bytes()) }
        }
        QueueCommand::Status { batch: Some(batch), watch: true, of, .. } => {
            signals.listen()?;
            let status = watch(of, batch, signals)?;
            print(text(&status).as_bytes())
        }
        QueueCommand::Cancel { name, of } => {
            let (store, broker) = (store(of)?, broker(of)?);
            queue::run(status::cancel(&store, &broker, name))
        }
        QueueCommand::Dead { what, name, all, json, of } => {
            if *what != DeadChoice::List && name.is_none() && !all {
                return Err(Error::usage("it is not said which of the dead are meant")
                    .hint("name a batch or a job, or say `--all`"));
            }
            treat(of, *what, name.clone(), *json)
        }
    }
}

fn text(status: &BatchStatus) -> String {
    let BatchStatus { batch, jobs, submitted, done, failed, dead, queued, is_cancelled } = status;
    let mut text = format!("{batch}: {done} of {jobs} done, {failed} failed, {dead} dead, {queued} queued");
    if submitted < jobs {
        text += &format!("; {submitted} submitted, `flux submit` goes on");
    }
    if *is_cancelled {
        text += "; cancelled";
    }
    text
}

fn overview(of: &QueueArgs, json: bool) -> Result<()> {
    let (store, broker) = (store(of)?, broker(of)?);
    let (queues, batches) = queue::run(async {
        let link = broker.connect().await?;
        Ok((status::queues(&store, &link).await?, status::batches(&store).await?))
    })?;
    if json {
        return print_object(&serde_json::json!({"queues": queues, "batches": batches}));
    }
    let queues =
        queues.iter().map(|queue| format!("{}: {} jobs wait, {} workers", queue.queue, queue.waiting, queue.workers));
    let lines: Vec<_> = queues.chain(batches.iter().map(|batch| format!("batch {batch}"))).collect();
    print(lines.join("\n").as_bytes())
}

/// Shows how far a batch is until it is over, and returns where it is then.
///
/// Errors as cancelled where a signal ends it.
fn watch(of: &QueueArgs, batch: &str, signals: &Signals) -> Result<BatchStatus> {
    let (store, broker) = (store(of)?, broker(of)?);
    let mut console = Console::new(false, false, Shown::Auto);
    let cancel = signals.cancel_flag();
    let watched = queue::run(async {
        let link = broker.connect().await?;
        let mut events = Watch::new(&link, batch).await?;
        loop {
            let status = BatchStatus::of(&store, &link, batch).await?;
            if status.over() >= status.jobs {
                return Ok(status);
            }
            if status.failed + status.dead > 0 {
                say(&text(&status));
            }
            let (since, mut ended) = (Instant::now(), HashSet::new());
            while since.elapsed() < LOOK_EVERY && status.over() + ended.len() < status.jobs {
                cancel.check()?;
                console.images((status.over() + ended.len()) as u64, status.jobs as u64);
                match tokio::time::timeout(Duration::from_millis(200), events.next()).await {
                    Ok(Some((key, Happened::Done | Happened::Failed))) => drop(ended.insert(key.hash)),
                    Ok(Some((_, Happened::Started | Happened::Step))) | Err(_) => {}
                    Ok(None) => return Err(Error::new("the broker ended the connection").hint("watch again")),
                }
            }
        }
    });
    console.end_images();
    watched
}

fn treat(of: &QueueArgs, what: DeadChoice, name: Option<String>, json: bool) -> Result<()> {
    let broker = broker(of)?;
    let which = name.clone().map_or(Which::All, Which::Named);
    let (fate, verb) = match what {
        DeadChoice::List => (Fate::Stay, "are dead"),
        DeadChoice::Retry => (Fate::Retry, "were sent again"),
        DeadChoice::Drop => (Fate::Drop, "were dropped"),
    };
    let treated = queue::run(async { dead::treat(&broker.connect().await?, &which, fate).await })?;
    for dead in &treated.jobs {
        if json { print_object(dead)? } else { print(line(dead).as_bytes())? }
    }
    say(&format!("{} jobs {verb}", treated.jobs.len()));
    if treated.are_more {
        say(&format!("note: only the first {} of the dead were looked at", dead::MOST));
    }
    match (treated.stays, name) {
        (Some(error), _) => Err(error.at("some of the dead")),
        (None, Some(name)) if treated.jobs.is_empty() && fate != Fate::Stay => {
            Err(Error::usage(format!("no job of `{}` is dead", flux::error::shown(&name)))
                .hint("`flux queue dead list` prints those that are; those that another program looks at are not seen"))
        }
        _ => Ok(()),
    }
}

fn line(dead: &Dead) -> String {
    let or_hyphen = |text: Option<&str>| text.unwrap_or("-").to_string();
    let line = dead.line.map_or("-".to_string(), |line| line.to_string());
    let (job, batch) = (or_hyphen(dead.job.as_deref()), or_hyphen(dead.batch.as_deref()));
    flux::error::escaped(&format!("{job} {batch} line {line}: {}", dead.reason)).into_owned()
}
