//! Tests of settings.

use std::fs;

use super::*;

fn read(text: &str, variables: &[(&str, &str)]) -> std::result::Result<Settings, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE);
    fs::write(&path, text).unwrap();
    let variable = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
    Settings::read(variable, &[path]).map_err(|e| e.to_string())
}

#[test]
fn what_is_wrong_in_a_file_is_told_with_its_line() {
    for (text, words) in [
        ("device = \"tpu\"\n", &["`device` is `tpu`", "line 1"][..]),
        ("\nprecison = \"fp8\"\n", &["line 2", "precison", "keys are model"]),
        ("device = \n", &["line 1"]),
        ("gpu_memory = -1\n", &["gpu_memory"]),
        ("output = \"{sed}.png\"\n", &["unknown field"]),
    ] {
        let error = read(text, &[]).unwrap_err();
        assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
    }
    assert!(read("", &[("FLUX_DEVICE", "tpu")]).is_err_and(|e| e.contains("in: FLUX_DEVICE")));
}

#[test]
fn a_file_that_is_too_long_is_refused_and_not_cut() {
    let most = MAX_FILE as usize;
    let text = |length: usize| format!("device = \"cpu\"\n#{}", "ä".repeat(length)) + "\n";
    let longest = text((most - 17) / 2);
    assert!(longest.len() <= most && read(&longest, &[]).is_ok());
    let error = read(&(longest + "precision = \"fp8\"\n"), &[]).unwrap_err();
    assert!(error.contains("1 MiB") && error.contains(FILE), "{error}");
}

#[test]
fn a_variable_that_is_no_text_is_an_error() {
    use std::os::unix::ffi::OsStringExt;
    let variable = |name: &str| (name == "FLUX_DEVICE").then(|| OsString::from_vec(b"cp\xff".to_vec()));
    let error = Settings::read(variable, &[]).unwrap_err().to_string();
    assert!(error.contains("UTF-8") && error.contains("in: FLUX_DEVICE"), "{error}");
}

#[test]
fn paths_are_seen_from_the_file() {
    let settings = read(
        "output = \"images/{seed}.png\"\npreview_decoder = \"t.sft\"\nadapters = [\"a\", \"/b\"]\nmodel = \"4b\"\n",
        &[],
    )
    .unwrap();
    let output = settings.output().unwrap();
    assert!(output.is_absolute() && output.ends_with("images/{seed}.png"), "{output:?}");
    assert_eq!(settings.preview_decoder(), output.parent().and_then(Path::parent).map(|folder| folder.join("t.sft")));
    let adapters = settings.adapters();
    assert!(adapters[0].is_absolute() && adapters[1] == Path::new("/b"));
    assert_eq!(settings.model().unwrap().0, Path::new("4b"), "the name of a model");
}

#[test]
fn the_folder_of_a_file_has_no_fields() {
    let folder = tempfile::tempdir().unwrap();
    let output = |name: &str, output: &str| {
        let inner = folder.path().join(name);
        fs::create_dir_all(inner.join("images{n}")).unwrap();
        fs::write(inner.join(FILE), format!("# mine\noutput = \"{output}\"\n")).unwrap();
        let settings = Settings::read(|_| None, &[inner.join(FILE)]).unwrap();
        let output = settings.output().unwrap();
        output.to_str().unwrap().replacen(folder.path().to_str().unwrap(), "", 1)
    };
    assert_eq!(output("c{x}", "{seed}.png"), "/c{{x}}/{seed}.png");
    assert_eq!(output("c{x}", "/a/{seed}.png"), "/a/{seed}.png");
    assert_eq!(output("c{x}", "images{n}"), "/c{{x}}/images{{n}}/", "an existing folder");
    assert_eq!(output("50%", "%d.png"), "/50%/%d.png");
    assert_eq!(output("c%d", "{seed}.png"), "/c%%d/{seed}.png");
    assert_eq!(output("c%d", "/a/{seed}.png"), "/a/{seed}.png");
}
