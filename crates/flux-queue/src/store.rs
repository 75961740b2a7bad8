//! The object store: S3, or a shared folder.

use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flux::error::shown;
use flux::{Error, Result};
use futures_util::{StreamExt, TryStreamExt};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::signer::{Method, Signer};
use object_store::{
    BackoffConfig, ClientOptions, Error as StoreError, ObjectStore, ObjectStoreExt, PutMode, PutOptions, RetryConfig,
    WriteMultipart,
};

use flux_runtime::address::is_own;

/// The part size of multipart uploads, in bytes. Smaller objects are written in one request.
const PART: usize = 8 << 20;
/// Concurrent part uploads.
const PARTS_AT_ONCE: usize = 4;
/// Concurrent listings of result folders, each named after the first two digits of its hashes.
const LISTS_AT_ONCE: usize = 16;

/// A store of objects.
#[derive(Clone)]
pub struct Store {
    objects: Arc<dyn ObjectStore>,
    /// The signer of URLs, and the prefix of the store. S3 only.
    signer: Option<(AmazonS3, String)>,
    /// The URL that the store was opened with.
    url: String,
}

impl Store {
    /// Opens the store at `s3://BUCKET[/PREFIX]`, with credentials and endpoint from the environment, or in the folder
    /// of `file:///PATH`. Sends no request yet.
    ///
    /// Errors if the URL is invalid or contains a password.
    pub fn open(url: &str) -> Result<Self> {
        let wrong = |what: &str| {
            Error::usage(format!("`{}` is not a valid store: {what}", shown(url)))
                .at("--store")
                .hint("write it as s3://BUCKET/PREFIX or file:///FOLDER")
        };
        let mut signer = None;
        let objects: Arc<dyn ObjectStore> = if let Some(place) = url.strip_prefix("s3://") {
            if place.contains('@') {
                return Err(Error::usage("a store address cannot contain credentials")
                    .at("--store")
                    .hint("put them into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"));
            }
            let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
            if bucket.is_empty() {
                return Err(wrong("it has no bucket"));
            }
            let s3 = s3(bucket).map_err(|e| wrong(&e.to_string()))?;
            signer = Some((s3.clone(), prefix.trim_matches('/').to_string()));
            within(s3, prefix)
        } else if let Some(folder) = url.strip_prefix("file://") {
            if !FilePath::new(folder).is_absolute() {
                return Err(wrong("the folder path does not begin with `/`"));
            }
            std::fs::create_dir_all(folder).map_err(|e| wrong(&e.to_string()))?;
            Arc::new(LocalFileSystem::new_with_prefix(folder).map_err(|e| wrong(&e.to_string()))?)
        } else {
            return Err(wrong("it begins with neither s3:// nor file://"));
        };
        Ok(Self { objects, signer, url: url.trim_end_matches('/').to_string() })
    }

    fn error(&self, name: &str, doing: &str, e: &StoreError) -> Error {
        Error::new(format!("cannot {doing} the object: {}", shown(&e.to_string())))
            .at(format!("{}/{name}", self.url))
            .hint("check that the store is reachable, and check its credentials and free space")
    }

    /// Writes an object, replacing an existing one.
    pub async fn put(&self, name: &str, bytes: impl Into<Bytes>) -> Result<()> {
        let (bytes, path) = (bytes.into(), Path::from(name));
        let done = if bytes.len() <= PART {
            self.objects.put(&path, bytes.into()).await.map(drop)
        } else {
            self.put_parts(&path, bytes).await
        };
        done.map_err(|e| self.error(name, "write", &e))
    }

    async fn put_parts(&self, path: &Path, bytes: Bytes) -> object_store::Result<()> {
        let mut upload = WriteMultipart::new_with_chunk_size(self.objects.put_multipart(path).await?, PART);
        for start in (0..bytes.len()).step_by(PART) {
            upload.wait_for_capacity(PARTS_AT_ONCE).await?;
            upload.put(bytes.slice(start..bytes.len().min(start + PART)));
        }
        upload.finish().await.map(drop)
    }

    /// Writes an object unless it exists. Returns `true` if this call created the object.
    pub async fn put_new(&self, name: &str, bytes: Bytes) -> Result<bool> {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match self.objects.put_opts(&Path::from(name), bytes.into(), options).await {
            Ok(_) => Ok(true),
            Err(StoreError::AlreadyExists { .. } | StoreError::Precondition { .. }) => Ok(false),
            Err(e) => Err(self.error(name, "write", &e)),
        }
    }

    /// Returns the contents of an object, or `None` if it does not exist. Errors if it has more than `most` bytes.
    pub async fn get(&self, name: &str, most: u64) -> Result<Option<Bytes>> {
        let object = match self.objects.get(&Path::from(name)).await {
            Ok(object) if object.meta.size > most => {
                let size = object.meta.size;
                return Err(Error::usage(format!("the object has {size} bytes, expected at most {most}"))
                    .at(format!("{}/{name}", self.url)));
            }
            Ok(object) => object,
            Err(StoreError::NotFound { .. }) => return Ok(None),
            Err(e) => return Err(self.error(name, "read", &e)),
        };
        object.bytes().await.map(Some).map_err(|e| self.error(name, "read", &e))
    }

    pub async fn has(&self, name: &str) -> Result<bool> {
        Ok(self.written(name).await?.is_some())
    }

    /// Returns the Unix time in seconds at which an object was written, or `None` if it does not exist.
    pub async fn written(&self, name: &str) -> Result<Option<u64>> {
        match self.objects.head(&Path::from(name)).await {
            Ok(object) => Ok(Some(u64::try_from(object.last_modified.timestamp()).unwrap_or(0))),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(e) => Err(self.error(name, "look up", &e)),
        }
    }

    /// Returns `true` if [`Store::presigned`] returns URLs.
    pub fn presigns(&self) -> bool {
        self.signer.is_some()
    }

    /// Returns a URL at which anyone can read the object for this time, or `None` if the store is a folder.
    pub async fn presigned(&self, name: &str, time: Duration) -> Result<Option<String>> {
        let Some((s3, prefix)) = &self.signer else { return Ok(None) };
        let signed = s3.signed_url(Method::GET, &Path::from(format!("{prefix}/{name}")), time).await;
        signed.map(|url| Some(url.to_string())).map_err(|e| self.error(name, "sign the URL of", &e))
    }

    /// Removes an object, if it exists.
    pub async fn remove(&self, name: &str) -> Result<()> {
        match self.objects.delete(&Path::from(name)).await {
            Ok(()) | Err(StoreError::NotFound { .. }) => Ok(()),
            Err(e) => Err(self.error(name, "remove", &e)),
        }
    }

    /// Returns the names of the objects and folders directly below a folder.
    pub async fn names(&self, folder: &str) -> Result<Vec<String>> {
        let found = self.objects.list_with_delimiter(Some(&Path::from(folder))).await;
        let found = found.map_err(|e| self.error(folder, "list", &e))?;
        let objects = found.objects.into_iter().map(|object| object.location);
        Ok(objects.chain(found.common_prefixes).filter_map(|path| Some(path.filename()?.to_string())).collect())
    }

    /// Calls `visit` with the name of every object below `out/`.
    pub async fn results(&self, mut visit: impl FnMut(&str)) -> Result<()> {
        let folders = (0..=255_u8).map(|first| format!("out/{first:02x}"));
        let lists = futures_util::stream::iter(folders).map(|folder| async move {
            let objects = self.objects.list(Some(&Path::from(folder.as_str()))).map_ok(|object| object.location);
            objects.try_collect::<Vec<_>>().await.map_err(|e| self.error(&folder, "list", &e))
        });
        let mut lists = lists.buffer_unordered(LISTS_AT_ONCE);
        while let Some(found) = lists.next().await {
            found?.iter().for_each(|path| visit(path.as_ref()));
        }
        Ok(())
    }
}

/// Creates a client for S3 or a compatible store. The configuration comes from the environment: `AWS_ENDPOINT_URL`,
/// `AWS_REGION`, `AWS_ACCESS_KEY_ID` and the like. Retries are short, since callers retry themselves.
fn s3(bucket: &str) -> object_store::Result<AmazonS3> {
    let is_endpoint = |name: &str| matches!(name, "AWS_ENDPOINT" | "AWS_ENDPOINT_URL" | "AWS_ENDPOINT_URL_S3");
    let endpoints: Vec<String> = std::env::vars().filter(|(name, _)| is_endpoint(name)).map(|(_, url)| url).collect();
    let retry =
        RetryConfig { backoff: BackoffConfig::default(), max_retries: 3, retry_timeout: Duration::from_secs(20) };
    super::choose_cryptography();
    AmazonS3Builder::from_env()
        .with_bucket_name(bucket)
        .with_client_options(client_options(&endpoints))
        .with_retry(retry)
        .build()
}

/// Returns client options for a store at these endpoints.
fn client_options(endpoints: &[String]) -> ClientOptions {
    let mut options = ClientOptions::new();
    if endpoints.iter().any(|url| is_own(url)) {
        // A proxy would see data that is stored on this machine. The proxy set here replaces the environment's, and
        // serves no host: `*` excludes all names, but no addresses.
        options = options.with_proxy_url("http://127.0.0.1").with_proxy_excludes("*,0.0.0.0/0,::/0");
    }
    options
        .with_allow_http(endpoints.iter().any(|url| url.starts_with("http://")))
        .with_connect_timeout(Duration::from_secs(5))
        .with_timeout(Duration::from_secs(120))
}

fn within(objects: impl ObjectStore, prefix: &str) -> Arc<dyn ObjectStore> {
    match prefix.trim_matches('/') {
        "" => Arc::new(objects),
        prefix => Arc::new(PrefixStore::new(objects, prefix)),
    }
}

#[cfg(test)]
impl Store {
    /// Opens a store in a temporary folder, which is removed on drop.
    pub fn temporary() -> (tempfile::TempDir, Self) {
        let folder = tempfile::tempdir().unwrap();
        let store = Self::open(&format!("file://{}", folder.path().display())).unwrap();
        (folder, store)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn a_store_has_an_address_without_a_password() {
        for (url, words) in [
            ("s3://", "no bucket"),
            ("s3://key:secret@bucket", "AWS_SECRET_ACCESS_KEY"),
            ("file://relative", "does not begin"),
            ("gs://bucket", "neither"),
            ("/folder", "neither"),
        ] {
            let error = Store::open(url).map(drop).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[tokio::test]
    async fn a_store_on_this_machine_is_reached_without_a_proxy() {
        for address in ["127.0.0.1:0", "[::1]:0", "127.0.0.9:0"] {
            let Ok(listener) = TcpListener::bind(address).await else {
                assert!(address.starts_with('['), "{address}");
                continue; // no IPv6
            };
            let bound = listener.local_addr().unwrap();
            let mut hosts = vec![bound.to_string()];
            if address == "127.0.0.1:0" {
                hosts.push(format!("localhost:{}", bound.port()));
            }
            tokio::spawn(async move {
                loop {
                    let (mut socket, _) = listener.accept().await.unwrap();
                    let _ = socket.read(&mut [0; 4096]).await.unwrap();
                    let answer = b"HTTP/1.1 200 OK\r\nETag: \"a\"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
                    socket.write_all(answer).await.unwrap();
                }
            });
            for host in hosts {
                super::super::choose_cryptography();
                let endpoint = format!("http://{host}");
                let objects = AmazonS3Builder::new()
                    .with_endpoint(&endpoint)
                    .with_bucket_name("b")
                    .with_access_key_id("k")
                    .with_secret_access_key("s")
                    .with_region("r")
                    .with_client_options(client_options(&[endpoint]))
                    .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
                    .build()
                    .unwrap();
                objects.put(&Path::from("x"), "bytes".into()).await.unwrap_or_else(|e| panic!("{host}: {e}"));
            }
        }
    }

    #[tokio::test]
    async fn the_first_writer_wins() {
        let (_folder, store) = Store::temporary();
        assert!(store.put_new("out/aa/x.png", Bytes::from_static(b"one")).await.unwrap());
        assert!(!store.put_new("out/aa/x.png", Bytes::from_static(b"two")).await.unwrap());
        assert_eq!(store.get("out/aa/x.png", 9).await.unwrap().unwrap(), "one");
        assert!(store.get("out/aa/x.png", 2).await.is_err_and(|e| e.to_string().contains("3 bytes")));
        store.put("out/aa/x.png", "three").await.unwrap();
        assert_eq!(store.get("out/aa/x.png", 9).await.unwrap().unwrap(), "three");
        assert!(store.has("out/aa/x.png").await.unwrap() && !store.has("out/aa/y.png").await.unwrap());
        let mut found = Vec::new();
        store.results(|name| found.push(name.to_string())).await.unwrap();
        assert_eq!(found, ["out/aa/x.png"]);
        assert_eq!(store.names("out").await.unwrap(), ["aa"]);
        store.remove("out/aa/x.png").await.unwrap();
        store.remove("out/aa/x.png").await.unwrap();
        assert_eq!(store.get("out/aa/x.png", 9).await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_long_object_is_written_in_parts() {
        let (_folder, store) = Store::temporary();
        let bytes: Vec<u8> = (0..PART * 2 + 7).map(|byte| byte as u8).collect();
        store.put("batches/b/manifest.jsonl", bytes.clone()).await.unwrap();
        assert_eq!(store.get("batches/b/manifest.jsonl", u64::MAX).await.unwrap().unwrap(), bytes);
    }
}
