//! `flux download`, `list` and `rm`, and models by name, with a hub on localhost.

mod asked;
mod faults;
mod listed;
mod names;
mod pages;
mod plain;
mod refused;
mod removed;
mod shared;
mod signals;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::hub::{COMMIT, Content, Hub, Reply, Seen, git_name, sha256};
use crate::model_copy;
use crate::program::{self, Run, names as names_in};

const KLEIN: &str = "black-forest-labs/FLUX.2-klein-4B";
const APACHE: &str = "{\"license\": \"apache-2.0\"}";
/// The largest file of [`small`].
const LARGE: &str = "transformer/diffusion_pytorch_model.safetensors";
const LARGE_BYTES: usize = 3_000_000;

/// Returns bytes that are no weights.
fn noise(count: usize, seed: u32) -> Vec<u8> {
    (0..count as u32).map(|i| (i.wrapping_add(seed).wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// Returns a repository with the file names of a model, but no weights.
fn small() -> Content {
    let text = |text: &str| text.as_bytes().to_vec();
    let files = [
        (".gitattributes", text("x")),
        ("README.md", text("---\nlicense: apache-2.0\n---\n")),
        ("flux-2-klein-4b.safetensors", noise(5000, 9)),
        ("model_index.json", text("{\"_class_name\": \"Flux2KleinPipeline\"}")),
        ("scheduler/scheduler_config.json", text("{}")),
        ("teaser.jpg", noise(2000, 8)),
        ("text_encoder/config.json", text("{}")),
        ("text_encoder/model.safetensors", noise(200_000, 1)),
        ("tokenizer/tokenizer.json", noise(1500, 2)),
        ("transformer/config.json", text("{}")),
        (LARGE, noise(LARGE_BYTES, 3)),
        ("vae/config.json", text("")),
        ("vae/diffusion_pytorch_model.safetensors", noise(70_000, 4)),
    ];
    content(KLEIN, files.map(|(name, bytes)| (name.to_string(), bytes)).into())
}

fn content(repository: &str, files: BTreeMap<String, Vec<u8>>) -> Content {
    let repository = repository.to_string();
    let (redirects, token, has_list, has_ranges) = (true, None, true, true);
    Content { repository, files, card: APACHE, redirects, page: 1000, token, has_list, has_ranges }
}

/// Returns the built-in model as a repository.
fn tiny(repository: &str) -> Content {
    let root = model_copy::tiny();
    let mut files = BTreeMap::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for name in names_in(&folder) {
            let path = folder.join(name);
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(&root).expect("below it").display().to_string();
                files.insert(name, fs::read(&path).expect("a file of the model"));
            }
        }
    }
    content(repository, files)
}

/// Leaves responses unchanged.
fn fine(_: &Seen, _: usize, _: &mut Reply) {}

/// A folder for the cache of a test.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Returns a command with this cache, without the user's environment.
    fn flux(&self) -> Command {
        let mut command = program::flux();
        let names = "\
            HF_TOKEN HF_TOKEN_PATH HUGGING_FACE_HUB_TOKEN HF_HUB_CACHE HF_HUB_OFFLINE HF_ENDPOINT XDG_CACHE_HOME \
            FLUX_MODELS HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy SSL_CERT_FILE";
        for name in names.split(' ') {
            command.env_remove(name);
        }
        command.env("HF_HOME", self.path()).current_dir(self.path());
        command
    }

    fn download(&self, hub: &Hub, arguments: &[&str]) -> Command {
        self.download_from(&hub.url(), arguments)
    }

    fn download_from(&self, url: &str, arguments: &[&str]) -> Command {
        let mut command = self.flux();
        command.env("HF_ENDPOINT", url).args(["download", "--retry-wait", "0"]).args(arguments);
        command
    }

    fn repository(&self, name: &str) -> PathBuf {
        self.path().join("hub").join(format!("models--{}", name.replace('/', "--")))
    }

    fn snapshot(&self, name: &str) -> PathBuf {
        self.repository(name).join("snapshots").join(COMMIT)
    }

    fn partial(&self, bytes: &[u8]) -> PathBuf {
        self.repository(KLEIN).join("blobs").join(format!("{}.incomplete", sha256(bytes)))
    }

    /// Fails unless the cache has these files as on the hub, and nothing else.
    #[track_caller]
    fn has(&self, hub: &Hub, wanted: impl Fn(&str) -> bool) {
        let content = hub.content();
        let (repository, snapshot) = (self.repository(&content.repository), self.snapshot(&content.repository));
        let mut blobs = Vec::new();
        for (name, bytes) in &content.files {
            let path = snapshot.join(name);
            if !wanted(name) {
                assert!(path.symlink_metadata().is_err(), "{name} is there");
                continue;
            }
            assert_eq!(fs::read(&path).unwrap_or_else(|e| panic!("{name}: {e}")), *bytes, "{name}");
            let blob = if bytes.len() > 1000 { sha256(bytes) } else { git_name(bytes) };
            let up = "../".repeat(2 + name.matches('/').count());
            assert_eq!(path.read_link().unwrap(), Path::new(&format!("{up}blobs/{blob}")), "{name}");
            blobs.push(blob);
        }
        blobs.sort();
        blobs.dedup();
        assert_eq!(names_in(&repository.join("blobs")), blobs, "nothing is left that is not whole");
        assert_eq!(fs::read_to_string(repository.join("refs/main")).unwrap(), COMMIT);
    }
}

/// Returns `true` if a file of [`small`] is downloaded.
fn is_read(name: &str) -> bool {
    name.contains('/') || name == "README.md" || name == "model_index.json"
}

/// Returns the requested ranges of a file, with an empty text for all of it.
fn ranges(hub: &Hub, file: &str) -> Vec<String> {
    let seen = hub.take_seen().into_iter();
    let of_file = seen.filter(|seen| seen.path.starts_with("/cdn/") && seen.path.ends_with(file));
    of_file.map(|seen| seen.range.unwrap_or_default()).collect()
}

#[test]
fn a_model_comes_into_the_cache_that_other_tools_share() {
    let hub = Hub::start(Content { page: 4, ..small() }, fine);
    let home = Home::new();
    let run = Run::new(&mut home.download(&hub, &["4b"])).succeeds();
    assert_eq!(run.stdout, format!("{}\n", home.snapshot(KLEIN).display()));
    assert!(run.stderr.contains("licence: apache-2.0") && run.stderr.contains("fetched and checked"), "{}", run.stderr);
    home.has(&hub, is_read);
    assert!(hub.take_seen().iter().filter(|seen| seen.path.contains("cursor=")).count() >= 3, "all pages");

    // A second run downloads nothing, by either name.
    for name in ["4b", KLEIN] {
        let run = Run::new(&mut home.download(&hub, &[name, "--quiet"])).succeeds();
        assert_eq!((run.stdout, run.stderr.as_str()), (format!("{}\n", home.snapshot(KLEIN).display()), ""));
        assert!(hub.take_seen().iter().all(|seen| seen.path.starts_with("/api/")), "{name}");
    }
}

#[test]
fn one_file_is_fetched_by_its_name_and_json_tells_all() {
    let hub = Hub::start(small(), fine);
    let home = Home::new();
    let run = Run::new(&mut home.download(&hub, &[&format!("{KLEIN}:teaser.jpg"), "--json"])).succeeds();
    home.has(&hub, |name| name == "teaser.jpg");
    let json: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(json["path"], home.snapshot(KLEIN).join("teaser.jpg").display().to_string());
    assert_eq!((&json["bytes"], &json["commit"]), (&2000.into(), &COMMIT.into()));
    assert_eq!(
        (&json["licence"]["name"], &json["licence"]["is_non_commercial"]),
        (&"apache-2.0".into(), &false.into())
    );
    assert_eq!(run.stdout.lines().count(), 1);
    Run::new(&mut home.download(&hub, &["4b:none.jpg"])).fails(1, &["has no file `none.jpg`", "hint: it has "]);
}

#[test]
fn a_folder_gets_plain_files_and_takes_what_the_cache_has() {
    let hub = Hub::start(small(), fine);
    let home = Home::new();
    let run = Run::new(&mut home.download(&hub, &["4b", "--folder", "klein"])).succeeds();
    assert_eq!(run.stdout, "klein\n");
    let path = |name: &str| home.path().join("klein").join(name);
    for (name, bytes) in hub.content().files.iter().filter(|(name, _)| is_read(name)) {
        assert!(fs::read(path(name)).unwrap() == *bytes && path(name).symlink_metadata().unwrap().is_file(), "{name}");
    }
    assert!(!home.path().join("hub").exists(), "the cache is left alone");
    Run::new(&mut home.download(&hub, &["4b"])).succeeds();
    hub.take_seen();
    Run::new(&mut home.download(&hub, &["4b", "--folder", "other"])).succeeds();
    assert_eq!(ranges(&hub, LARGE), [""; 0], "copied from the cache");
    assert!(fs::read(home.path().join("other").join(LARGE)).unwrap() == hub.content().files[LARGE]);
}

#[test]
fn a_folder_never_keeps_the_files_of_two_versions() {
    let hub = Hub::start(small(), fine);
    let mut content = small();
    content.files.insert(LARGE.to_string(), noise(LARGE_BYTES, 77));
    let other = Hub::start(content, fine);
    let home = Home::new();
    let path = home.path().join("x").join(LARGE);
    let fetch = |hub: &Hub| {
        let run = Run::new(&mut home.download(hub, &["4b", "--folder", "x"])).succeeds();
        assert!(fs::read(&path).unwrap() == hub.content().files[LARGE]);
        (run, ranges(hub, LARGE).len())
    };
    assert_eq!(fetch(&hub).1, 1);
    let (run, asked) = fetch(&other);
    assert!(asked == 1 && run.stderr.contains("another version, or damaged"), "{}", run.stderr);
    assert_eq!(fetch(&other).1, 0, "it is there");
    // Without the folder's records the checksum decides.
    fs::remove_dir_all(home.path().join("x/.cache")).unwrap();
    assert_eq!(fetch(&other).1, 0);
    fs::remove_dir_all(home.path().join("x/.cache")).unwrap();
    assert_eq!(fetch(&hub).1, 1);
    // A file that was changed since is checked.
    let mut bytes = fs::read(&path).unwrap();
    bytes[7] ^= 1;
    fs::write(&path, bytes).unwrap();
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(60);
    fs::File::options().append(true).open(&path).unwrap().set_modified(later).unwrap();
    assert_eq!(fetch(&hub).1, 1);
}

#[test]
fn verify_finds_damage_and_mends_it() {
    let hub = Hub::start(small(), fine);
    let home = Home::new();
    Run::new(&mut home.download(&hub, &["4b"])).succeeds();
    for name in [LARGE, "vae/config.json", "model_index.json"] {
        let path = home.snapshot(KLEIN).join(name).canonicalize().unwrap();
        let mut bytes = fs::read(&path).unwrap();
        match bytes.first_mut() {
            Some(byte) => *byte ^= 1,
            None => bytes.push(b'x'),
        }
        fs::write(&path, bytes).unwrap();
    }
    // Without it, a file of the right size is not read.
    hub.take_seen();
    Run::new(&mut home.download(&hub, &["4b", "--folder", "x", "--quiet"])).succeeds();
    let offline = Run::new(home.download(&hub, &["4b", "--verify"]).env("HF_HUB_OFFLINE", "1"));
    offline.fails(1, &["wrong checksums", "--verify"]);
    let run = Run::new(&mut home.download(&hub, &["4b", "--verify"])).succeeds();
    assert!(run.stderr.contains("wrong checksum, downloading it again"), "{}", run.stderr);
    home.has(&hub, is_read);
    Run::new(home.download(&hub, &["4b", "--verify"]).env("HF_HUB_OFFLINE", "1")).succeeds();
}

#[test]
fn without_the_network_the_cache_counts_alone() {
    let home = Home::new();
    let nobody = "http://127.0.0.1:9";
    let offline = |arguments: &[&str]| Run::new(home.download_from(nobody, arguments).env("HF_HUB_OFFLINE", "1"));
    offline(&["4b"]).fails(1, &["`4b` is not in the cache", "HF_HUB_OFFLINE"]);
    let hub = Hub::start(small(), fine);
    Run::new(&mut home.download(&hub, &["4b"])).succeeds();
    assert_eq!(offline(&["4b", "-q"]).succeeds().stdout, format!("{}\n", home.snapshot(KLEIN).display()));
    offline(&["4b", "--folder", "x"]).fails(1, &["HF_HUB_OFFLINE"]);
    fs::remove_file(home.snapshot(KLEIN).join(LARGE)).unwrap();
    offline(&["4b"]).fails(1, &["`4b` is incomplete in the cache: 1 file is missing", LARGE, "HF_HUB_OFFLINE"]);
}

#[test]
fn a_part_of_a_model_in_the_cache_is_not_the_model() {
    let home = Home::new();
    let offline =
        |arguments: &[&str]| Run::new(home.download_from("http://127.0.0.1:9", arguments).env("HF_HUB_OFFLINE", "1"));
    let hub = Hub::start(small(), fine);
    Run::new(&mut home.download(&hub, &["4b:scheduler/scheduler_config.json"])).succeeds();
    for arguments in [&["4b"][..], &["4b", "--verify"], &["4b", "--json"]] {
        offline(arguments)
            .fails(1, &["`4b` is incomplete in the cache: 8 files are missing, such as `model_index.json`"]);
    }
    offline(&["4b:scheduler/scheduler_config.json"]).succeeds();
    let hub = Hub::start(
        content(
            "someone/style",
            [("README.md".to_string(), b"x".to_vec()), ("a.safetensors".to_string(), noise(2000, 1))].into(),
        ),
        fine,
    );
    Run::new(&mut home.download(&hub, &["someone/style:README.md"])).succeeds();
    offline(&["someone/style"]).fails(1, &["no weights of `someone/style`"]);
    Run::new(&mut home.download(&hub, &["someone/style"])).succeeds();
    offline(&["someone/style"]).succeeds();
}

#[test]
fn revisions_are_branches_and_commits() {
    let hub = Hub::start(small(), fine);
    let home = Home::new();
    Run::new(&mut home.download(&hub, &["4b", "--revision", COMMIT])).succeeds();
    assert!(
        home.snapshot(KLEIN).is_dir() && !home.repository(KLEIN).join("refs").exists(),
        "a commit needs no reference"
    );
    Run::new(&mut home.download(&hub, &["4b", "--revision", "none"])).fails(1, &["no such revision", "--revision"]);
    Run::new(&mut home.download(&hub, &["4b", "--revision", "../x"])).fails(2, &["--revision"]);
}

#[test]
fn licences_are_shown_as_the_card_has_them() {
    let card = "{\"license\": \"other\", \"license_name\": \"flux-non-commercial-license\", \
                \"license_link\": \"https://example.org/L\"}";
    let hub = Hub::start(Content { card, ..small() }, fine);
    let run = Run::new(&mut Home::new().download(&hub, &["4b"])).succeeds();
    let words = "licence: flux-non-commercial-license, for non-commercial use, https://example.org/L";
    assert!(run.stderr.contains(words), "{}", run.stderr);
}

#[test]
fn links_that_somebody_planted_lead_no_file_elsewhere() {
    use std::os::unix::fs::symlink;

    let hub = Hub::start(small(), fine);
    let home = Home::new();
    let elsewhere = home.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let folder = Path::new(LARGE).parent().unwrap();
    let (cache, repository) = (Path::new(".cache"), home.repository(KLEIN));
    for (number, link) in
        [folder, cache, &cache.join("huggingface"), &cache.join("huggingface/download")].iter().enumerate()
    {
        let root = home.path().join(number.to_string());
        fs::create_dir_all(root.join(link).parent().unwrap()).unwrap();
        symlink(&elsewhere, root.join(link)).unwrap();
        Run::new(&mut home.download(&hub, &["4b", "--folder", &number.to_string()])).fails(1, &["a link", "hint: "]);
        assert_eq!(names_in(&elsewhere), [""; 0], "{}", link.display());
    }
    for link in ["blobs", "refs", "snapshots", &format!("snapshots/{COMMIT}")] {
        let link = repository.join(link);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(&elsewhere, &link).unwrap();
        Run::new(&mut home.download(&hub, &["4b"])).fails(1, &["a link"]);
        assert_eq!(names_in(&elsewhere), [""; 0], "{}", link.display());
        fs::remove_dir_all(&repository).unwrap();
    }
    // The root may be a link: it belongs to the user.
    symlink(&elsewhere, home.path().join("own")).unwrap();
    Run::new(&mut home.download(&hub, &["4b", "--folder", "own"])).succeeds();
    assert!(elsewhere.join(LARGE).exists());
}

#[test]
fn a_part_that_is_a_link_a_pipe_or_has_another_name_is_not_written() {
    let hub = Hub::start(small(), fine);
    let home = Home::new();
    let victim = home.path().join("victim");
    let partial = home.partial(&hub.content().files[LARGE]);
    fs::create_dir_all(partial.parent().unwrap()).unwrap();
    let plants: [fn(&Path, &Path); 3] = [
        |victim, partial| std::os::unix::fs::symlink(victim, partial).unwrap(),
        |victim, partial| fs::hard_link(victim, partial).unwrap(),
        |_, partial| assert!(Command::new("mkfifo").arg(partial).status().unwrap().success()),
    ];
    for plant in plants {
        fs::write(&victim, "mine").unwrap();
        plant(&victim, &partial);
        Run::new(&mut home.download(&hub, &["4b"])).fails(1, &["cannot write it"]);
        assert_eq!(fs::read(&victim).unwrap(), b"mine");
        fs::remove_file(&partial).unwrap();
    }
    Run::new(&mut home.download(&hub, &["4b"])).succeeds();
}
