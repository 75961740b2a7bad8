//! Listening sockets: TCP addresses, Unix socket files, and sockets inherited from a supervisor such as systemd.

use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net as unix;
use std::path::{Path, PathBuf};

use flux::{Error, Result};
use listenfd::ListenFd;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_util::either::Either;

use crate::http::config::{Config, Listen};

/// The default address.
const DEFAULT: Listen = Listen::Address(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7860));
/// The variable with the names of sockets that systemd passes, separated by colons.
const NAMES_VARIABLE: &str = "LISTEN_FDNAMES";

/// A listening socket.
pub struct Listener {
    kind: Kind,
    /// The address to show to users.
    pub place: Place,
    /// The socket file, removed on drop.
    _file: Option<SocketFile>,
}

enum Kind {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// The address of a listening socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    Address(SocketAddr),
    File(PathBuf),
    /// An inherited socket, by name.
    Given(String),
}

/// A connection.
pub type Stream = Either<TcpStream, UnixStream>;

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Peer {
    Address(SocketAddr),
    /// The ID of a local user.
    User(u32),
}

/// A socket file. Drop removes it, unless another socket replaced it.
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{}", address.ip()),
            Self::User(user) => write!(f, "uid-{user}"),
        }
    }
}

/// Returns the address under which clients are counted: one for all of this machine's loopback addresses, and one per
/// /64 network of IPv6.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        address if address.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        address => address,
    }
}

/// Opens all sockets of a server: configured and inherited ones, or the default address if there are none. Must be
/// called within a tokio runtime.
///
/// Errors if a socket cannot be opened, or an inherited one is open to other machines and there are no keys.
pub fn open(config: &Config) -> Result<Vec<Listener>> {
    let mut listeners = inherited(config)?;
    let own = if listeners.is_empty() && config.listen.is_empty() { &[DEFAULT][..] } else { &config.listen };
    for listen in own {
        listeners.push(match listen {
            Listen::Address(address) => at_address(*address)?,
            Listen::Socket(path) => at_file(path, config.socket_mode)?,
        });
    }
    Ok(listeners)
}

fn at_address(address: SocketAddr) -> Result<Listener> {
    let wrong = |e: io::Error| {
        Error::new(format!("cannot listen on {address}: {e}"))
            .at("--listen")
            .hint("is another server running there? `--listen 127.0.0.1:0` picks a free port")
    };
    // As tokio does, so that a server that is restarted at once gets its address.
    let socket = if address.is_ipv4() { tokio::net::TcpSocket::new_v4() } else { tokio::net::TcpSocket::new_v6() };
    let listener = socket.and_then(|socket| {
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(1024)
    });
    let listener = listener.map_err(wrong)?;
    let place = Place::Address(listener.local_addr().map_err(wrong)?);
    Ok(Listener { kind: Kind::Tcp(listener), place, _file: None })
}

/// Creates a socket file. Its permissions are set before the file appears under its name.
fn at_file(path: &Path, mode: u32) -> Result<Listener> {
    let wrong = |e: io::Error| {
        Error::new(format!("cannot listen on this socket: {e}")).at_path(path).hint("choose a path in your own folder")
    };
    check_free(path)?;
    let name = path.file_name().ok_or_else(|| wrong(io::ErrorKind::InvalidInput.into()))?;
    let made = path.with_file_name(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
    let listener = unix::UnixListener::bind(&made).map_err(wrong)?;
    let set_up = || {
        fs::set_permissions(&made, fs::Permissions::from_mode(mode))?;
        let found = fs::symlink_metadata(&made)?;
        fs::rename(&made, path)?;
        listener.set_nonblocking(true)?;
        Ok((found.dev(), found.ino()))
    };
    let identity = set_up().inspect_err(|_| drop(fs::remove_file(&made))).map_err(wrong)?;
    let file = SocketFile { path: path.to_path_buf(), identity };
    let listener = UnixListener::from_std(listener).map_err(wrong)?;
    Ok(Listener { kind: Kind::Unix(listener), place: Place::File(path.to_path_buf()), _file: Some(file) })
}

/// Errors if the path exists, unless it is a stale socket file.
fn check_free(path: &Path) -> Result<()> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    let (why, hint) = if !found.file_type().is_socket() {
        ("the file exists and is not a socket", "choose another path, or remove the file")
    } else {
        match unix::UnixStream::connect(path) {
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => return Ok(()),
            _ => ("another server listens on this socket", "choose another path, or stop that server"),
        }
    };
    Err(Error::usage(why).at_path(path).hint(hint))
}

/// Returns inherited sockets by systemd's protocol: `LISTEN_FDS` sockets from descriptor 3 on.
fn inherited(config: &Config) -> Result<Vec<Listener>> {
    let names = std::env::var(NAMES_VARIABLE).unwrap_or_default();
    let mut given = ListenFd::from_env();
    let mut listeners = Vec::new();
    for place in 0..given.len() {
        let name = names.split(':').nth(place).filter(|name| !name.is_empty());
        let name = name.map_or_else(|| format!("descriptor {}", place + 3), str::to_string);
        let wrong = |e: io::Error| {
            Error::usage(format!("cannot listen on the inherited socket `{name}`: {e}"))
                .at("LISTEN_FDS")
                .hint("pass listening stream sockets, as systemd does with `ListenStream=`")
        };
        let kind = match given.take_unix_listener(place) {
            Ok(Some(listener)) => {
                check_listens(&listener).map_err(wrong)?;
                listener.set_nonblocking(true).map_err(wrong)?;
                Kind::Unix(UnixListener::from_std(listener).map_err(wrong)?)
            }
            _ => {
                let listener = given.take_tcp_listener(place).map_err(wrong)?;
                let listener = listener.ok_or_else(|| wrong(io::ErrorKind::NotFound.into()))?;
                check_listens(&listener).map_err(wrong)?;
                listener.set_nonblocking(true).map_err(wrong)?;
                let address = listener.local_addr().map_err(wrong)?;
                if !address.ip().is_loopback() && !config.keys.are_needed() && !config.answers_all {
                    return Err(Error::usage(format!(
                        "the inherited socket `{name}` is open to other machines at {address}, and there are no keys"
                    ))
                    .at("LISTEN_FDS")
                    .hint("require keys with `--api-keys FILE`, or accept all clients with `--no-auth`"));
                }
                Kind::Tcp(TcpListener::from_std(listener).map_err(wrong)?)
            }
        };
        listeners.push(Listener { kind, place: Place::Given(name.clone()), _file: None });
    }
    Ok(listeners)
}

/// Errors if the socket is a connection, which systemd passes with `Accept=yes`.
fn check_listens(socket: &impl std::os::fd::AsFd) -> io::Result<()> {
    if rustix::net::sockopt::socket_acceptconn(socket)? { Ok(()) } else { Err(io::Error::other("it is not listening")) }
}

impl Listener {
    /// Accepts the next connection. Returns its stream and its peer.
    pub async fn accept(&self) -> io::Result<(Stream, Peer)> {
        match &self.kind {
            Kind::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                // An IPv4 client of an IPv6 socket counts under its IPv4 address.
                let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
                Ok((Either::Left(stream), Peer::Address(peer)))
            }
            Kind::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let peer = Peer::User(stream.peer_cred()?.uid());
                Ok((Either::Right(stream), peer))
            }
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let found = fs::symlink_metadata(&self.path).map(|found| (found.dev(), found.ino()));
        if found.is_ok_and(|found| found == self.identity) {
            // If removal fails, the next server replaces the file.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Waits until there is something to read, or the stream has ended.
pub async fn readable(stream: &Stream) -> io::Result<()> {
    match stream {
        Either::Left(stream) => stream.readable().await,
        Either::Right(stream) => stream.readable().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_machine_or_network_count_as_one_client() {
        let counted = |address: &str| network(address.parse().unwrap()).to_string();
        for own in ["127.0.0.1", "127.0.0.9", "127.255.1.2", "::1", "::ffff:127.0.0.3"] {
            assert_eq!(counted(own), "127.0.0.1", "{own}");
        }
        assert_eq!((counted("10.0.0.1"), counted("::ffff:10.0.0.2")), ("10.0.0.1".into(), "10.0.0.2".into()));
        assert_eq!(counted("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(counted("2001:db8:1:3::6"), "2001:db8:1:3::");
    }

    #[tokio::test]
    async fn a_socket_is_replaced_only_where_nobody_listens_and_leaves_with_its_server() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("flux.sock");
        drop(unix::UnixListener::bind(&path).unwrap());
        let first = at_file(&path, 0o600).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let error = at_file(&path, 0o600).err().unwrap();
        assert!(error.what().contains("another server"), "{error}");
        let client = unix::UnixStream::connect(&path).unwrap();
        let (_, peer) = first.accept().await.unwrap();
        assert_eq!(peer, Peer::User(fs::metadata(&path).unwrap().uid()));
        drop((client, first));
        assert!(!path.exists());
        fs::write(&path, "text").unwrap();
        assert_eq!(at_file(&path, 0o600).err().unwrap().what(), "the file exists and is not a socket");
        assert_eq!(fs::read(&path).unwrap(), b"text");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no other file is left");
    }

    #[tokio::test]
    async fn a_socket_that_took_its_place_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("flux.sock");
        let first = at_file(&path, 0o600).unwrap();
        fs::remove_file(&path).unwrap();
        let _second = at_file(&path, 0o660).unwrap();
        drop(first);
        assert!(unix::UnixStream::connect(&path).is_ok());
    }
}
