//! The program from outside: its treatment of existing files, and of paths that it refuses to write.

mod claims;

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::program::{Run, SMALL, draw, flux, folder, names};
use crate::pty::watch;
use flux::input::read;

/// Checks that a run is refused before the model is read: there is none, which would be another error.
#[track_caller]
fn refused(folder: &Path, flags: &[&str], code: i32, words: &[&str]) {
    let run = draw(folder, &[&["-d", "no-model", "-p", "a cat", "-S", "7"], flags].concat()).fails(code, words);
    assert!(!run.stderr.contains("no-model"), "{}", run.stderr);
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").permissions().mode() & 0o7777
}

#[test]
fn a_device_a_pipe_and_a_socket_are_never_replaced() {
    let folder = folder();
    symlink("/dev/null", folder.join("null.png")).unwrap();
    let _socket = UnixListener::bind(folder.join("socket.png")).unwrap();
    assert!(Command::new("mkfifo").arg(folder.join("pipe.png")).status().expect("mkfifo is there").success());
    symlink("pipe.png", folder.join("link.png")).unwrap();
    let before = names(&folder);
    refused(&folder, &["-o", "null.png"], 2, &["`/dev/null` is a device, not a file", "in: -o", "hint: "]);
    refused(&folder, &["-o", "/dev/null"], 2, &["`/dev/null` is a device"]);
    refused(&folder, &["-o", "pipe.png"], 2, &["`pipe.png` is a pipe", "hint: "]);
    refused(&folder, &["-o", "link.png"], 2, &["pipe.png` is a pipe"]);
    refused(&folder, &["-o", "socket.png"], 2, &["`socket.png` is a socket"]);
    assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    assert!(fs::metadata(folder.join("pipe.png")).unwrap().file_type().is_fifo());
    assert_eq!(names(&folder), before);
}

#[test]
fn a_link_to_a_file_is_written_through_and_one_to_nothing_is_refused() {
    let folder = folder();
    fs::create_dir(folder.join("real")).unwrap();
    fs::write(folder.join("real/out.png"), "old").unwrap();
    symlink("real/out.png", folder.join("link.png")).unwrap();
    draw(&folder, &["-p", "a cat", "-o", "link.png"]).succeeds();
    assert!(folder.join("link.png").is_symlink());
    assert_eq!(read(&folder.join("real/out.png")).unwrap().width, 32);
    symlink("nowhere/out.png", folder.join("dangling.png")).unwrap();
    refused(&folder, &["-o", "dangling.png"], 1, &["is a link to `nowhere/out.png`", "hint: remove the link"]);
    assert!(folder.join("dangling.png").is_symlink());
}

#[test]
fn an_older_image_keeps_its_mode_and_its_other_names() {
    let folder = folder();
    fs::write(folder.join("alone.png"), "old").unwrap();
    fs::set_permissions(folder.join("alone.png"), fs::Permissions::from_mode(0o604)).unwrap();
    draw(&folder, &["-p", "a cat", "-o", "alone.png"]).succeeds();
    assert_eq!((mode(&folder.join("alone.png")), read(&folder.join("alone.png")).unwrap().width), (0o604, 32));
    fs::write(folder.join("one.png"), "old").unwrap();
    fs::hard_link(folder.join("one.png"), folder.join("two.png")).unwrap();
    draw(&folder, &["-p", "a cat", "-o", "one.png"]).succeeds();
    assert_eq!(
        fs::metadata(folder.join("one.png")).unwrap().ino(),
        fs::metadata(folder.join("two.png")).unwrap().ino()
    );
    assert_eq!(read(&folder.join("two.png")).unwrap().width, 32);
    assert_eq!(names(&folder), ["alone.png", "one.png", "two.png"]);
}

/// Returns the program as a user with restricted permissions, who owns the files of `folder`. `None` if that is
/// impossible.
fn as_plain_user(folder: &Path) -> Option<Command> {
    const NOBODY: u32 = 65534;
    let (mut command, mut probe) = (flux(), flux());
    // The test owns the files that it makes.
    if folder_owner() == 0 {
        for path in names(folder).iter().map(|name| folder.join(name)).chain([folder.to_path_buf()]) {
            std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).ok()?;
        }
        command.uid(NOBODY).gid(NOBODY);
        probe.uid(NOBODY).gid(NOBODY);
    }
    if !probe.arg("-V").output().is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: another user cannot run the program");
        return None;
    }
    command.current_dir(folder).args(SMALL);
    Some(command)
}

fn folder_owner() -> u32 {
    fs::metadata(folder()).expect("it is there").uid()
}

#[test]
fn a_folder_without_the_right_to_write_takes_an_image_in_place_of_a_file_that_has_it() {
    let folder = folder();
    for (name, mode) in [("open.png", 0o644), ("closed.png", 0o444)] {
        fs::write(folder.join(name), "old").unwrap();
        fs::set_permissions(folder.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o555)).unwrap();
    let run = |flags: &[&str]| Some(Run::new(as_plain_user(&folder)?.args(["-p", "a cat", "-o"]).args(flags)));
    let Some(open) = run(&["open.png"]) else { return };
    open.succeeds();
    assert_eq!(read(&folder.join("open.png")).unwrap().width, 32);
    for name in ["closed.png", "new.png"] {
        let run = run(&[name, "-d", "no-model"]).expect("as before");
        let run = run.fails(1, &["cannot write the image: Permission denied", name, "hint: "]);
        assert!(!run.stderr.contains("no-model"), "{}", run.stderr);
    }
    assert_eq!(fs::read(folder.join("closed.png")).unwrap(), b"old");
    assert_eq!(names(&folder), ["closed.png", "open.png"]);
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs a script with mounts of its own. `None` if that is not allowed.
fn with_mounts(script: &str) -> Option<Run> {
    let run = Run::new(Command::new("unshare").args(["--map-root-user", "--mount", "sh", "-c", script]));
    if run.code == Some(77) || run.stderr.contains("unshare") {
        eprintln!("skipped: no right to mount: {}", run.stderr.trim());
        return None;
    }
    Some(run)
}

#[test]
fn a_file_that_is_mounted_by_itself_is_written_in_place() {
    let folder = folder();
    fs::write(folder.join("outside.png"), "old").unwrap();
    fs::write(folder.join("inside.png"), "").unwrap();
    let script = format!(
        "cd {} && mount --bind outside.png inside.png || exit 77; {} -p x {} -o inside.png",
        folder.display(),
        env!("CARGO_BIN_EXE_flux"),
        SMALL.join(" ")
    );
    let Some(run) = with_mounts(&script) else { return };
    run.succeeds();
    assert_eq!(read(&folder.join("outside.png")).unwrap().width, 32);
    assert_eq!(names(&folder), ["inside.png", "outside.png"]);
}

#[test]
fn a_full_disk_keeps_an_image_that_is_replaced_and_tells_of_one_that_is_written_in_place() {
    let folder = folder();
    let disk = folder.display();
    let flux = env!("CARGO_BIN_EXE_flux");
    // An image of noise does not fit into 16 KiB.
    let script = |before: &str| {
        format!(
            "mount -t tmpfs -o size=16k none {disk} || exit 77; cd {disk}; echo old >out.png; {before} \
             {flux} -p x -W 256 -H 256 -s 1 -S 1 --device cpu -o out.png; code=$?; ls -A >&2; head -c 9 out.png >&2; \
             exit $code"
        )
    };
    let Some(run) = with_mounts(&script("")) else { return };
    let run = run.fails(1, &["cannot write the image", "No space left", "free some space"]);
    assert!(run.stderr.ends_with("\nout.png\nold\n") && !run.stderr.contains("is lost"), "{}", run.stderr);
    let run = with_mounts(&script("ln out.png other.png;")).expect("as before");
    let run = run.fails(1, &["No space left", "its old content is lost", "free some space"]);
    assert!(run.stderr.ends_with("\nother.png\nout.png\n"), "the file is empty: {}", run.stderr);
}

#[test]
fn no_clobber_keeps_what_is_there_and_says_so_before_any_work() {
    let folder = folder();
    fs::write(folder.join("out.png"), "old").unwrap();
    fs::write(folder.join("many-8.png"), "old").unwrap();
    refused(&folder, &["--no-clobber", "-o", "out.png"], 1, &["`out.png` already exists", "--no-clobber"]);
    refused(&folder, &["--no-clobber", "-o", "many.png", "-n", "3"], 1, &["`many-8.png` already exists"]);
    assert_eq!(fs::read(folder.join("out.png")).unwrap(), b"old");
    draw(&folder, &["--no-clobber", "-p", "a cat", "-o", "new.png"]).succeeds();
    assert_eq!(names(&folder), ["many-8.png", "new.png", "out.png"]);
}

#[test]
fn a_folder_gets_an_image_with_the_name_of_its_seed() {
    let folder = folder();
    fs::create_dir(folder.join("album.png")).unwrap();
    for (output, seed) in [("album.png/", "7"), ("album.png", "8"), (".", "9")] {
        draw(&folder, &["-p", "a cat", "-S", seed, "-o", output]).succeeds();
    }
    draw(&folder, &["-p", "a cat", "-S", "1", "-n", "2", "-o", "album.png"]).succeeds();
    assert_eq!(names(&folder), ["album.png", "flux-9.png"]);
    assert_eq!(names(&folder.join("album.png")), ["flux-1.png", "flux-2.png", "flux-7.png", "flux-8.png"]);
    draw(&folder, &["-p", "a cat", "-S", "3", "-o", "new/"]).succeeds();
    assert_eq!(names(&folder.join("new")), ["flux-3.png"]);
    refused(&folder, &["-o", "none/out.png"], 1, &["no such folder: `none", "mkdir -p none"]);
    refused(&folder, &["-o", "flux-9.png/"], 1, &["is a file, not a folder"]);
}

#[test]
fn a_hyphen_writes_a_png_to_standard_output() {
    let folder = folder();
    let flags = ["-p", "a cat", "-S", "1", "-o"];
    draw(&folder, &[&flags[..], &["file.png"]].concat()).succeeds();
    let output = flux().current_dir(&folder).args(SMALL).args(flags).arg("-").output().expect("it starts");
    assert!(output.status.success() && output.stdout == fs::read(folder.join("file.png")).unwrap());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("wrote standard output in "), "{said}");
    for other in ["--print-path", "--timings=json"] {
        refused(&folder, &["-o", "-", other], 2, &[other, "standard output", "hint: leave out"]);
    }
    refused(&folder, &["-o", "-", "-n", "2"], 2, &["--count", "standard output"]);
    assert_eq!(names(&folder), ["file.png"]);
}

#[test]
fn a_terminal_gets_no_image_and_a_closed_pipe_is_told() {
    let folder = folder();
    let played = watch(flux().current_dir(&folder).args(["-p", "x", "-o", "-"]).args(SMALL), 80);
    assert_eq!(played.code, Some(2), "{}", played.shown);
    assert!(played.shown.contains("standard output is a terminal"), "{}", played.shown);
    assert!(played.shown.contains("image.png"), "{}", played.shown);
    let piped = format!("{{ {} -p x {} -o -; echo $? >&2; }} | true", env!("CARGO_BIN_EXE_flux"), SMALL.join(" "));
    let run = Run::new(Command::new("sh").args(["-c", &piped]).current_dir(&folder).env_remove("FLUX_MODEL"));
    assert!(run.stderr.contains("cannot write to standard output") && run.stderr.ends_with("\n1\n"), "{}", run.stderr);
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error_and_leaves_nothing() {
    let folder = folder();
    // An image of noise is larger than the few blocks of the limit.
    let line =
        format!("ulimit -f 4; exec {} -p x -W 256 -H 256 -s 1 --device cpu -o out.png", env!("CARGO_BIN_EXE_flux"));
    let run = Run::new(Command::new("sh").args(["-c", &line]).current_dir(&folder).env_remove("FLUX_MODEL"));
    run.fails(1, &["cannot write the image", "out.png", "ulimit -f"]);
    assert!(names(&folder).is_empty());
}

#[test]
fn a_program_begun_with_nohup_goes_on_when_its_terminal_is_closed() {
    let folder = folder();
    // The signal is sent once the program prints the seed, after it has installed its signal handlers.
    let line = format!(
        "trap '' HUP; {} -p x -S 1 -W 256 -H 256 -s 2 --device cpu -o out.png 2>said & \
         until grep -q '^seed 1' said; do sleep 0.01; done; kill -HUP $!; wait $!",
        env!("CARGO_BIN_EXE_flux")
    );
    let run = Run::new(Command::new("sh").args(["-c", &line]).current_dir(&folder).env_remove("FLUX_MODEL"));
    run.succeeds();
    assert_eq!(read(&folder.join("out.png")).unwrap().width, 256);
}

#[test]
fn what_a_killed_program_left_is_removed_after_an_hour() {
    let folder = folder();
    let left = |name: &str, minutes: u64| {
        let time = std::time::SystemTime::now() - std::time::Duration::from_secs(60 * minutes);
        fs::File::create(folder.join(name)).unwrap().set_modified(time).unwrap();
    };
    left(".flux-abc123.part", 70);
    left(".flux-def456.part", 50);
    left(".other-abc123.part", 70);
    draw(&folder, &["-p", "a cat", "-o", "out.png"]).succeeds();
    assert_eq!(names(&folder), [".flux-def456.part", ".other-abc123.part", "out.png"]);
}
