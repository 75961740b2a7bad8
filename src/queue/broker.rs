//! The broker: how it is reached, which queues it has, and messages that it has taken for certain.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flux::error::shown;
use flux::{Error, Result};
use futures_util::future::try_join_all;
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions,
    QueueDeclareOptions,
};
use lapin::protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError};
use lapin::tcp::{OwnedIdentity, OwnedTLSConfig};
use lapin::types::{AMQPValue, FieldTable, LongString};
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, Consumer, DefaultConnectionBuilder,
    ErrorKind, ExchangeKind,
};

use super::names::{CONTROL, DEAD, EVENTS, JOBS, Lane};

/// A URL, which may have a password here and nowhere else.
const URL_VARIABLE: &str = "FLUX_QUEUE";
const PASSWORD_VARIABLE: &str = "FLUX_QUEUE_PASSWORD";

/// Deliveries of a job that ended without an answer before it is dead, whoever's fault that was.
pub const DELIVERY_LIMIT: i64 = 20;
/// How long the broker may take to say that it has a message. One whose disk is full says nothing.
const CONFIRM_WITHIN: Duration = Duration::from_secs(30);
/// Seconds after which a silent connection is taken to be dead.
const HEARTBEAT: u16 = 10;
const CONNECT_WITHIN_MS: u64 = 10_000;
/// How long what may be lost may take to be sent, and a connection to end.
const TELL_WITHIN: Duration = Duration::from_secs(1);

/// How the broker is reached.
#[derive(Debug, Clone, Default)]
pub struct BrokerArgs {
    /// Without a password.
    pub url: Option<String>,
    pub password_file: Option<PathBuf>,
    /// Certificates, beside the system's, that may have signed the broker's.
    pub ca: Option<PathBuf>,
    /// A certificate and a private key of this program, in PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// How the broker is reached, with its password.
pub struct Broker {
    uri: AMQPUri,
    tls: OwnedTLSConfig,
}

impl Broker {
    /// Errors when there is no address, it has a password on the command line, or a file cannot be read.
    pub fn new(args: &BrokerArgs) -> Result<Self> {
        let (url, place) = match (&args.url, env::var(URL_VARIABLE)) {
            (Some(url), _) => {
                refuse_password(url)?;
                (url.clone(), "--queue")
            }
            (None, Ok(url)) => (url, URL_VARIABLE),
            (None, Err(_)) => {
                return Err(Error::usage("no queue is named")
                    .at("--queue")
                    .hint(format!("as in --queue amqps://flux@broker.example, or in {URL_VARIABLE}")));
            }
        };
        // What is no URL may hold a password anywhere.
        if !url.contains("://") {
            return Err(Error::usage("the address of the queue does not begin with amqp:// or amqps://")
                .at(place)
                .hint("as in amqps://USER@HOST:5671/VHOST"));
        }
        let mut uri: AMQPUri = url.parse().map_err(|e: String| {
            Error::usage(format!("the address of the queue is none: {}", shown(&without_password(&e, &url))))
                .at(place)
                .hint("as in amqps://USER@HOST:5671/VHOST")
        })?;
        if let Some(password) = password(args)? {
            uri.authority.userinfo.password = password;
        }
        uri.query.heartbeat.get_or_insert(HEARTBEAT);
        uri.query.connection_timeout.get_or_insert(CONNECT_WITHIN_MS);
        let is_plain = uri.scheme == AMQPScheme::AMQP;
        if let Some(file) = args.ca.as_ref().or(args.identity.as_ref().map(|(cert, _)| cert)).filter(|_| is_plain) {
            return Err(Error::usage("certificates are for amqps://, and the queue is named as amqp://").at_path(file));
        }
        let identity = args.identity.as_ref().map(|(cert, key)| {
            Ok(OwnedIdentity::PKCS8 { pem: read(cert, "certificate")?, key: read(key, "private key")? })
        });
        let ca = args.ca.as_deref().map(|file| {
            let pem = read(file, "certificates")?;
            String::from_utf8(pem).map_err(|_| Error::usage("the certificates are no PEM").at_path(file))
        });
        Ok(Self { uri, tls: OwnedTLSConfig { identity: identity.transpose()?, cert_chain: ca.transpose()? } })
    }

    /// The address, without who asks.
    pub fn address(&self) -> String {
        format!("{}://{}:{}/{}", self.uri.scheme, self.uri.authority.host, self.uri.authority.port, self.uri.vhost)
    }

    /// Connects, and makes sure that there are exchanges and the queue of the dead.
    ///
    /// Errors when the broker is away, or refuses.
    pub async fn connect(&self) -> Result<Link> {
        let failed = |e: lapin::Error| self.error(&e);
        let properties =
            ConnectionProperties::default().with_connection_name(concat!("flux ", env!("CARGO_PKG_VERSION")).into());
        let builder = DefaultConnectionBuilder::new().map_err(failed)?;
        let builder = builder.with_uri(self.uri.clone()).with_properties(properties).with_tls_config(self.tls.clone());
        let connection = builder.connect().await.map_err(failed)?;
        let channel = connection.create_channel().await.map_err(failed)?;
        channel.confirm_select(ConfirmSelectOptions::default()).await.map_err(failed)?;
        declare(&channel).await.map_err(|e| declared_otherwise(e, &self.address()))?;
        Ok(Link { connection, channel, address: self.address() })
    }

    fn error(&self, e: &lapin::Error) -> Error {
        broker_error(&self.address(), e)
    }
}

/// Wrong usage where trying again is of no use.
fn broker_error(address: &str, e: &lapin::Error) -> Error {
    if is_refusal(e) {
        return Error::usage(format!("the broker, or this program, refuses the other: {}", shown(&e.to_string())))
            .at(address)
            .hint("do user, password, virtual host and certificates hold?");
    }
    Error::new(format!("the broker does not do as asked: {}", shown(&e.to_string())))
        .at(address)
        .hint("is it there, and do user, password and certificates hold?")
}

/// An error of a declaration: what is there may have been declared by another version, or by somebody else.
fn declared_otherwise(e: lapin::Error, address: &str) -> Error {
    match e.kind() {
        ErrorKind::ProtocolError(told) if *told.kind() == AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED) => {
            Error::usage(format!("a queue or an exchange of this name is of another kind: {}", shown(&e.to_string())))
                .at(address)
                .hint("delete it once nothing is in it (`rabbitmqctl delete_queue NAME`), or take another `--name`")
        }
        _ => broker_error(address, &e),
    }
}

/// Whether credentials or certificates are wrong.
fn is_refusal(e: &lapin::Error) -> bool {
    match e.kind() {
        ErrorKind::ProtocolError(e) => matches!(
            e.kind(),
            AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED) | AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED)
        ),
        // So TLS says that a certificate is none, or is not the one of this host.
        ErrorKind::IOError(e) => e.kind() == io::ErrorKind::InvalidData,
        _ => false,
    }
}

/// Errors when a URL of a command line has a password.
fn refuse_password(url: &str) -> Result<()> {
    if userinfo(url).is_some_and(|user| user.contains(':')) {
        return Err(Error::usage("a password does not belong on a command line, which other users of the machine see")
            .at("--queue")
            .hint(format!(
                "leave it out of the address, and put it into {PASSWORD_VARIABLE} or into a file for \
                 `--queue-password-file`"
            )));
    }
    Ok(())
}

/// What stands before the `@` of a URL.
fn userinfo(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    authority.rsplit_once('@').map(|(user, _)| user)
}

/// An error of a parser, which may have told the URL.
fn without_password(error: &str, url: &str) -> String {
    userinfo(url).map_or_else(|| error.to_string(), |user| error.replace(user, "..."))
}

fn password(args: &BrokerArgs) -> Result<Option<String>> {
    match &args.password_file {
        Some(file) => {
            let bytes = read(file, "password")?;
            let text = String::from_utf8(bytes).map_err(|_| Error::usage("the password is no text").at_path(file))?;
            Ok(Some(text.trim_end_matches(['\r', '\n']).to_string()))
        }
        None => Ok(env::var(PASSWORD_VARIABLE).ok()),
    }
}

fn read(file: &Path, what: &str) -> Result<Vec<u8>> {
    fs::read(file).map_err(|e| Error::usage(format!("cannot read the {what}: {e}")).at_path(file))
}

/// A connection, with a channel whose messages the broker confirms.
pub struct Link {
    pub connection: Connection,
    channel: Channel,
    address: String,
}

/// A message to send.
pub struct Outgoing {
    pub exchange: &'static str,
    pub key: String,
    pub bytes: Vec<u8>,
    pub properties: BasicProperties,
}

impl Outgoing {
    /// A job, which survives a restart of the broker.
    pub fn job(lane: Lane, model: &str, bytes: Vec<u8>) -> Self {
        let properties = BasicProperties::default().with_delivery_mode(2).with_content_type("application/json".into());
        Self { exchange: JOBS, key: lane.queue(model), bytes, properties }
    }
}

impl Link {
    pub fn error(&self, e: &lapin::Error) -> Error {
        broker_error(&self.address, e)
    }

    /// Makes sure that there are the queues of a model.
    pub async fn declare_model(&self, model: &str) -> Result<()> {
        for lane in Lane::ALL {
            declare_lane(&self.channel, model, lane).await.map_err(|e| declared_otherwise(e, &self.address))?;
        }
        Ok(())
    }

    /// Jobs that wait in a queue, and consumers that it has; none where there is no such queue. The channel is this
    /// question's own: a queue that is not there ends it.
    pub async fn waiting(&self, queue: &str) -> Result<Option<[u32; 2]>> {
        let channel = self.connection.create_channel().await.map_err(|e| self.error(&e))?;
        let options = QueueDeclareOptions::durable().passive();
        match channel.queue_declare(queue.into(), options, FieldTable::default()).await {
            Ok(queue) => Ok(Some([queue.message_count(), queue.consumer_count()])),
            Err(e) if e.is_amqp_soft_error() => Ok(None),
            Err(e) => Err(self.error(&e)),
        }
    }

    /// [`Link::send_within`] half a minute.
    pub async fn send(&self, messages: &[Outgoing]) -> Result<Vec<usize>> {
        self.send_within(messages, CONFIRM_WITHIN).await
    }

    /// Whether the connection is there, and the broker takes messages from it.
    #[cfg(feature = "server")]
    pub fn is_open(&self) -> bool {
        let status = self.connection.status();
        status.connected() && !status.blocked()
    }

    /// Sends messages, and waits until the broker has them. Returns the places of those that it refused, since a queue
    /// is full.
    ///
    /// Errors when it does not say so in time, has no queue for one, or is gone.
    pub async fn send_within(&self, messages: &[Outgoing], time: Duration) -> Result<Vec<usize>> {
        // All at once: each waits until it is written, and then until the broker has it.
        let sending = try_join_all(messages.iter().map(|message| self.publish(message)));
        let confirmed = tokio::time::timeout(time, sending).await.map_err(|_| {
            Error::new(format!("the broker did not take the messages within {} s", time.as_secs()))
                .at(self.address.clone())
                .hint("is its disk or its memory full?")
        })?;
        let mut refused = Vec::new();
        for (place, confirmation) in confirmed.map_err(|e| self.error(&e))?.into_iter().enumerate() {
            match confirmation {
                Confirmation::Ack(None) => {}
                Confirmation::Nack(_) => refused.push(place),
                Confirmation::Ack(Some(_)) | Confirmation::NotRequested => {
                    return Err(Error::new(format!("the broker has no queue `{}`", messages[place].key))
                        .at(self.address.clone())
                        .hint("was it removed? What uses the queue declares it when it starts"));
                }
            }
        }
        Ok(refused)
    }

    /// Errors when the connection has ended.
    pub fn check(&self) -> Result<()> {
        if self.connection.status().connected() {
            return Ok(());
        }
        Err(Error::new("the broker ended the connection").at(self.address.clone()))
    }

    /// Ends the connection; what was not answered goes back. A broker that hangs, or takes nothing, is not waited for.
    pub async fn close(&self) {
        let closing = self.connection.close(200, "the program is done with it".into());
        let _ = tokio::time::timeout(TELL_WITHIN, closing).await;
    }

    async fn publish(&self, message: &Outgoing) -> lapin::Result<Confirmation> {
        let Outgoing { exchange, key, bytes, properties } = message;
        let options = BasicPublishOptions { mandatory: *exchange == JOBS, ..BasicPublishOptions::default() };
        let exchange = (*exchange).into();
        let sent = self.channel.basic_publish(exchange, key.as_str().into(), options, bytes, properties.clone());
        sent.await?.await
    }

    /// Sends what may be lost, and is where the broker takes nothing.
    pub async fn tell(&self, message: Outgoing) {
        if self.connection.status().blocked() {
            return;
        }
        let Outgoing { exchange, key, bytes, properties } = message;
        let sent =
            self.channel.basic_publish(exchange.into(), key.into(), BasicPublishOptions::default(), &bytes, properties);
        // Whoever missed it looks into the store.
        let _ = tokio::time::timeout(TELL_WITHIN, sent).await;
    }

    /// What an exchange is told under these keys from now on, in a queue of this connection alone.
    pub async fn hear(&self, exchange: &str, keys: &[&str]) -> Result<Consumer> {
        let channel = self.connection.create_channel().await.map_err(|e| self.error(&e))?;
        let queue = self.own_queue(&channel, exchange, keys).await?;
        let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        let consumer = channel.basic_consume(queue.into(), "".into(), options, FieldTable::default()).await;
        consumer.map_err(|e| self.error(&e))
    }

    async fn own_queue(&self, channel: &Channel, exchange: &str, keys: &[&str]) -> Result<String> {
        let failed = |e: lapin::Error| self.error(&e);
        let queue = channel.queue_declare("".into(), QueueDeclareOptions::exclusive(), FieldTable::default()).await;
        let name = queue.map_err(failed)?.name().as_str().to_string();
        for key in keys {
            let bound = channel.queue_bind(
                name.as_str().into(),
                exchange.into(),
                (*key).into(),
                QueueBindOptions::default(),
                FieldTable::default(),
            );
            bound.await.map_err(failed)?;
        }
        Ok(name)
    }
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(value))
}

/// The exchanges, and the queue of the dead.
async fn declare(channel: &Channel) -> lapin::Result<()> {
    let exchanges = [
        (JOBS, ExchangeKind::Direct),
        (DEAD, ExchangeKind::Fanout),
        (CONTROL, ExchangeKind::Fanout),
        (EVENTS, ExchangeKind::Topic),
    ];
    for (exchange, kind) in exchanges {
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        channel.exchange_declare(exchange.into(), kind, options, FieldTable::default()).await?;
    }
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), text("quorum"));
    // Whoever lists the dead takes and gives back each of them, which counts as a delivery.
    arguments.insert("x-delivery-limit".into(), AMQPValue::LongLongInt(1_000_000_000));
    channel.queue_declare(DEAD.into(), QueueDeclareOptions::durable(), arguments).await?;
    channel.queue_bind(DEAD.into(), DEAD.into(), "".into(), QueueBindOptions::default(), FieldTable::default()).await
}

async fn declare_lane(channel: &Channel, model: &str, lane: Lane) -> lapin::Result<()> {
    let queue = lane.queue(model);
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), text("quorum"));
    arguments.insert("x-delivery-limit".into(), AMQPValue::LongLongInt(DELIVERY_LIMIT));
    arguments.insert("x-dead-letter-exchange".into(), text(DEAD));
    arguments.insert("x-dead-letter-strategy".into(), text("at-least-once"));
    arguments.insert("x-overflow".into(), text("reject-publish"));
    arguments.insert("x-max-length".into(), AMQPValue::LongLongInt(lane.most_jobs()));
    channel.queue_declare(queue.as_str().into(), QueueDeclareOptions::durable(), arguments).await?;
    let key = queue.as_str().into();
    channel
        .queue_bind(queue.as_str().into(), JOBS.into(), key, QueueBindOptions::default(), FieldTable::default())
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_is_told_apart_from_what_is_away() {
        let of = |kind| lapin::Error::from(io::Error::from(kind));
        assert!(is_refusal(&of(io::ErrorKind::InvalidData)));
        for away in [io::ErrorKind::ConnectionRefused, io::ErrorKind::ConnectionReset, io::ErrorKind::TimedOut] {
            assert!(!is_refusal(&of(away)), "{away}");
        }
    }

    #[test]
    fn a_password_is_taken_from_a_file_and_refused_on_the_command_line() {
        let of = |url: &str| BrokerArgs { url: Some(url.to_string()), ..BrokerArgs::default() };
        let error = |args: &BrokerArgs| Broker::new(args).map(drop).unwrap_err().to_string();
        for url in ["amqps://flux:secret@host", "amqp://:secret@host/v", "amqp://a:b:c@host?x=1"] {
            let told = error(&of(url));
            assert!(told.contains("FLUX_QUEUE_PASSWORD") && !told.contains("secret"), "{told}");
        }
        for url in ["http://host", "amqp", "", "amqp://host:port"] {
            assert!(error(&of(url)).contains("amqps://USER@HOST"), "{url}");
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        fs::write(&file, "se cret\n").unwrap();
        let broker = Broker::new(&BrokerArgs { password_file: Some(file), ..of("amqp://flux@host/v") }).unwrap();
        assert_eq!(broker.uri.authority.userinfo.username, "flux");
        assert_eq!(broker.uri.authority.userinfo.password, "se cret");
        assert_eq!(broker.address(), "amqp://host:5672/v");
        assert!(error(&BrokerArgs { ca: Some("ca.pem".into()), ..of("amqp://host") }).contains("amqps://"));
    }
}
