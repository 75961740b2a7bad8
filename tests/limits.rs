//! The program within bounds: on few and many threads, in little memory, and after a panic.

#[path = "support/program.rs"]
mod program;

use std::fs;

use program::{Run, flux};

#[test]
fn an_image_is_the_same_on_any_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    for side in ["64", "256"] {
        let image = |threads: &str| {
            let name = format!("{side}-{threads}.png");
            let size = ["-W", side, "-H", side, "-s", "2", "-S", "7", "--device", "cpu", "-p", "a red apple", "-o"];
            let mut command = flux();
            Run::of(command.env("RAYON_NUM_THREADS", threads).current_dir(&folder).args(size).arg(&name)).succeeds();
            fs::read(folder.path().join(name)).unwrap()
        };
        let one = image("1");
        for threads in ["2", "3", "8"] {
            assert!(image(threads) == one, "{side} x {side} on {threads} threads");
        }
    }
}
