//! `--hires`: a second pass at a larger size.

use std::fs;
use std::path::Path;

use flux::input::read;
use flux::rgb::Rgb;

use super::{folder, texts};
use crate::program::{Run, names, project, run};

const FLAGS: [&str; 10] = ["-p", "a red heart", "-S", "3", "-W", "64", "-H", "48", "--device", "cpu"];

/// Runs for an image of 64x48 with further flags.
fn small(folder: &Path, more: &[&str]) -> Run {
    run(folder, &[&FLAGS[..], more].concat())
}

fn pixels(folder: &Path, name: &str) -> Rgb {
    read(&folder.join(name)).unwrap()
}

#[test]
fn a_second_pass_gives_the_pixels_of_its_commands_by_hand() {
    let folder = &folder();
    small(folder, &["-s", "2", "-o", "first.png"]).succeeds();
    let upscaler = project("tests/upscaler/compact-3x.pth");
    let upscaler = upscaler.to_str().unwrap();
    for (hires, enlarge, by_hand) in [
        (&["--hires", "2"][..], &["--by", "2"][..], &["--strength", "0.5"][..]),
        (
            &["--hires-size", "160x96", "--hires-upscaler", upscaler, "--hires-strength", "1", "--no-hires-reference"],
            &["--to", "160x96", "--upscaler", upscaler],
            &["--strength", "1", "--no-self-reference"],
        ),
        (
            &["--hires", "2", "--tile", "64"],
            &["--by", "2"],
            &["--strength", "0.5", "--tile", "64", "--tile-overlap", "16"],
        ),
        (
            &["--hires", "1.5", "--hires-steps", "4", "--hires-prompt", "a blue heart", "--hires-strength", "0.25"],
            &["--to", "96x80"],
            &["--strength", "0.25"],
        ),
    ] {
        small(folder, &[&["-s", "2", "-o", "out.png"], hires].concat()).succeeds();
        let source = if hires[0] == "--hires-size" { "cut.png" } else { "first.png" };
        if source == "cut.png" {
            // The middle with the proportions of the result.
            let Rgb { width, bytes, .. } = pixels(folder, "first.png");
            let rows = bytes.chunks_exact(3 * width).skip(5).take(38).flatten().copied().collect();
            let cut = Rgb { width, height: 38, bytes: rows };
            let png = flux::output::encode(&cut, flux::output::ImageFormat::Png, &Default::default());
            fs::write(folder.join(source), png.unwrap()).unwrap();
        }
        let device = ["upscale", source, "-o", "large.png", "--device", "cpu"];
        run(folder, &[&device[..], enlarge].concat()).succeeds();
        let own = if hires.contains(&"--hires-prompt") { ["a blue heart", "4"] } else { ["a red heart", "2"] };
        let edit = ["-p", own[0], "-s", own[1], "-S", "3", "-i", "large.png", "--device", "cpu", "-o", "hand.png"];
        run(folder, &[&edit[..], by_hand].concat()).succeeds();
        assert!(pixels(folder, "out.png") == pixels(folder, "hand.png"), "{hires:?}");
        run(folder, &["again", "out.png", "-o", "again.png", "--exact", "--device", "cpu"]).succeeds();
        assert!(fs::read(folder.join("out.png")).unwrap() == fs::read(folder.join("again.png")).unwrap(), "{hires:?}");
    }
}

#[test]
fn strength_0_only_enlarges_and_each_image_has_a_seed_of_its_own() {
    let folder = &folder();
    small(folder, &["-s", "1", "-o", "first.png"]).succeeds();
    run(folder, &["upscale", "first.png", "--by", "2", "-o", "large.png"]).succeeds();
    let said = small(folder, &["-s", "1", "--hires", "2", "--hires-strength", "0", "-o", "out.png"]).succeeds();
    assert!(said.stderr.contains("only enlarges"), "{}", said.stderr);
    assert!(pixels(folder, "out.png") == pixels(folder, "large.png"));
    small(folder, &["-s", "1", "--hires", "2", "-n", "2", "-o", "two.png"]).succeeds();
    for seed in ["3", "4"] {
        let seed_flags = ["-p", "a red heart", "-S", seed, "-W", "64", "-H", "48", "--device", "cpu"];
        run(folder, &[&seed_flags[..], &["-s", "1", "--hires", "2", "-o", "one.png"]].concat()).succeeds();
        let two = fs::read(folder.join(format!("two-{seed}.png"))).unwrap();
        assert!(two == fs::read(folder.join("one.png")).unwrap(), "{seed}");
    }
    let texts = texts(&folder.join("two-3.png"));
    let of = |keyword: &str| texts.iter().find(|(known, _)| known == keyword).map(|(_, text)| text.as_str());
    assert_eq!((of("size"), of("hires")), (Some("128x96"), Some("from 64x48")));
    let parameters = of("parameters").unwrap_or_default();
    assert!(parameters.contains("Size: 64x48") && parameters.contains("Hires upscale: 2"), "{parameters}");
    assert!(parameters.contains("Denoising strength: 0.5") && parameters.contains("Hires upscaler: Lanczos"));
}

#[test]
fn an_edit_and_its_references_have_a_second_pass() {
    let folder = &folder();
    run(folder, &["a red heart", "-S", "3", "--size", "64", "-s", "1", "--device", "cpu", "-o", "input.png"])
        .succeeds();
    let edit = ["-p", "a blue heart", "-S", "3", "-i", "input.png", "-s", "1", "--device", "cpu"];
    for more in [&["--strength", "0.5"][..], &[]] {
        run(folder, &[&edit[..], more, &["-o", "out.png"]].concat()).succeeds();
        run(folder, &["upscale", "out.png", "--by", "2", "-o", "large.png"]).succeeds();
        let by_hand = ["-p", "a blue heart", "-S", "3", "-i", "large.png", "--strength", "0.5", "-s", "1"];
        run(folder, &[&by_hand[..], &["--device", "cpu", "-o", "hand.png"]].concat()).succeeds();
        run(folder, &[&edit[..], more, &["--hires", "2", "-o", "hires.png"]].concat()).succeeds();
        assert!(pixels(folder, "hires.png") == pixels(folder, "hand.png"), "{more:?}");
    }
}

#[test]
fn values_that_cannot_be_are_errors_before_any_work() {
    let folder = &folder();
    fs::write(folder.join("no.pth"), "no upscaler").unwrap();
    small(folder, &["-s", "1", "-o", "input.png"]).succeeds();
    for (flags, words) in [
        (&["--hires", "1"][..], "expected 1.25 to 4"),
        (&["--hires", "5"], "expected 1.25 to 4"),
        (&["--hires", "x"], "from 1.25 to 4"),
        (&["--hires", "2", "--hires-size", "128x96"], "--hires-size"),
        (&["--hires-size", "100x100"], "the nearest is 96x96"),
        (&["--hires-size", "64x48"], "not larger than the first"),
        (&["--hires-size", "16384x16384"], "expected at most"),
        (&["--hires-strength", "0.5"], "has no size"),
        (&["--hires", "2", "--hires-strength", "1.5"], "expected 0 to 1"),
        (&["--hires", "2", "--hires-steps", "0"], "second pass: steps is 0, expected 1 to 1000\n  in: --hires\n"),
        (&["--hires", "2", "--hires-steps", "2000"], "second pass: steps is 2000"),
        (&["--hires", "2", "--tile", "100"], "the nearest is 96"),
        (&["--hires", "2", "--tile", "64", "--tile-overlap", "64"], "--tile-overlap"),
        (&["--tile-overlap", "16"], "requires `--tile`"),
        (&["--tile", "48", "--region", "0,0,500,500:a cat"], "cannot be used with `--region`"),
        (&["--hires", "2", "--hires-upscaler", "none.pth"], "none.pth"),
        (&["--hires", "2", "--hires-upscaler", "no.pth"], "no.pth"),
        (&["--hires", "2", "--hires-upscaler", "input.png"], "a PNG image"),
        (&["-i", "input.png", "--mask", "input.png", "--hires", "2"], "cannot be used with `--mask`"),
        (&["-i", "input.png", "--extend", "16,0,0,0", "--hires", "2"], "cannot be used with `--extend`"),
    ] {
        let said = small(folder, &[flags, &["-s", "1", "-o", "out.png"]].concat());
        assert!(said.code != Some(0) && said.stderr.contains(words), "{flags:?}: {}", said.stderr);
        assert!(!said.stderr.contains("seed 3"), "{flags:?}: {}", said.stderr);
    }
    assert_eq!(names(folder), ["input.png", "no.pth"]);
}

#[test]
fn a_list_has_it_as_a_field() {
    let folder = &folder();
    small(folder, &["-s", "1", "--hires", "2", "-o", "one.png"]).succeeds();
    let line = r#"{"prompt": "a red heart", "seed": 3, "size": "64x48", "steps": 1, "output": "NAME", "hires": HIRES}"#;
    let whole = r#"{"size": "128x96", "strength": 0.5}"#;
    let lines = [("a.png", "2"), ("b.png", whole)]
        .map(|(name, hires)| line.replace("NAME", name).replace("HIRES", hires))
        .join("\n");
    fs::write(folder.join("list.jsonl"), lines).unwrap();
    fs::write(folder.join("list.csv"), "prompt,seed,size,steps,hires,output\na red heart,3,64x48,1,2,c.png\n").unwrap();
    small(folder, &["-s", "1", "--tile", "48", "--tile-overlap", "16", "-o", "tiles.png"]).succeeds();
    let tiles = "prompt,seed,size,steps,tile,tile_overlap,output\na red heart,3,64x48,1,48,16,d.png\n";
    fs::write(folder.join("tiles.csv"), tiles).unwrap();
    for list in ["list.jsonl", "list.csv", "tiles.csv"] {
        run(folder, &["batch", list, "out", "--device", "cpu"]).succeeds();
    }
    for name in ["a.png", "b.png", "c.png"] {
        assert!(pixels(folder, "one.png") == pixels(&folder.join("out"), name), "{name}");
    }
    assert!(pixels(folder, "tiles.png") == pixels(&folder.join("out"), "d.png"));
    small(folder, &["-s", "1", "-o", "plain.png"]).succeeds();
    assert!(pixels(folder, "tiles.png") != pixels(folder, "plain.png"));
}
